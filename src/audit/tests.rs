use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::jobfile;
use crate::node::{NodeName, NodeStart};
use crate::record::{Span, Writer};

fn at(text: &str) -> Timestamp {
    format!("2026-11-30T{text}Z").parse().unwrap()
}

fn job(fields: &str) -> Arc<Job> {
    let text = format!("[jobs.a]\ncommand = 'true'\n{fields}\n");
    let files = [jobfile::SourceFile { path: "jobs.toml", text: &text }];
    Arc::new(jobfile::parse(&files).unwrap().jobs.remove(0))
}

fn reign(fields: &str, since: Timestamp, until: Option<Timestamp>) -> Reign {
    Reign { job: job(fields), since, until, removed: false }
}

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn node_start() -> NodeStart {
    "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap()
}

fn fire(id: FireId) -> Fire {
    Fire::new("a".parse().unwrap(), id)
}

fn unrun(first: Timestamp, last: Timestamp, count: u64, outcome: Outcome) -> Record {
    let writer = Writer::Node { node: node("n1"), node_start: node_start() };
    let record = Record::unrun(fire(FireId::scheduled(first)), outcome, "why", writer, last);
    Record { span: (count > 1).then_some(Span { last, count }), ..record }
}

/// A run that began so many milliseconds after its instant and took so many.
fn ran(due: Timestamp, token: i64, after: i64, took: i64, on: &str) -> Record {
    let began = due + TimeDelta::milliseconds(after);
    let mut run = RunFacts::claimed(node(on), node_start(), 1, token, due);
    run.started_at = Some(began);
    run.ended_at = Some(began + TimeDelta::milliseconds(took));
    run.exit_code = Some(0);
    Record { reason: None, run: Some(run), ..unrun(due, due, 1, Outcome::Succeeded) }
}

/// All that there is of a lane, to be changed by tests.
#[derive(Clone)]
struct Case {
    dues: Dues,
    dues_are_known: bool,
    floor: Option<Timestamp>,
    is_attended: bool,
    oldest: Option<Timestamp>,
    records: Vec<Record>,
    late: Vec<Record>,
    locks: Vec<Held>,
    unreadable: Vec<(Timestamp, Timestamp)>,
    journals: Option<Journals>,
    entries: Vec<JournalEntry>,
    since: Timestamp,
    now: Timestamp,
}

impl Case {
    /// As of 12:00:00, asked about from 06:00:00 on.
    fn new(reigns: impl IntoIterator<Item = Reign>, floor: &str) -> Case {
        Case {
            dues: Dues::new(reigns),
            dues_are_known: true,
            floor: Some(at(floor)),
            is_attended: true,
            oldest: Some(at("00:00:00")),
            records: Vec::new(),
            late: Vec::new(),
            locks: Vec::new(),
            unreadable: Vec::new(),
            journals: None,
            entries: Vec::new(),
            since: at("06:00:00"),
            now: at("12:00:00"),
        }
    }

    fn judge(&self) -> Report {
        judge(&Books {
            dues: &self.dues,
            dues_are_known: self.dues_are_known,
            floor: self.floor,
            is_attended: self.is_attended,
            oldest: self.oldest,
            oldest_asked: self.oldest,
            records: &self.records,
            late: &self.late,
            locks: &self.locks,
            unreadable: &self.unreadable,
            journals: self.journals.as_ref(),
            entries: &self.entries,
            since: self.since,
            until: self.now,
            now: self.now,
            skew: TimeDelta::milliseconds(500),
        })
    }

    /// Each finding as `KIND FIRE[..LAST][ xCOUNT]`.
    #[track_caller]
    fn finds(&self, findings: &[&str]) -> Counts {
        let report = self.judge();
        let found: Vec<String> = report
            .findings
            .iter()
            .map(|Finding { kind, fire, last, count, .. }| {
                let time = |at: Timestamp| at.format("%H:%M:%S").to_string();
                let last = last.map(|last| format!("..{}", time(last))).unwrap_or_default();
                let count = if *count > 1 { format!(" x{count}") } else { String::new() };
                format!("{kind} {}{last}{count}", time(fire.instant()))
            })
            .collect();
        assert_eq!(found, findings, "{:#?}", report.findings);
        report.counts
    }

    /// The journals of all nodes, which tell of all that the records tell.
    fn with_journals(mut self) -> Case {
        let lives = ["n1", "n2", "n3"].map(|name| {
            let reach = Reach { since: Some(at("00:00:00")), whole_until: None };
            ((node(name), node_start()), reach)
        });
        self.journals = Some(Journals { lives: HashMap::from(lives), read_at: self.now });
        self.entries = self.records.iter().filter_map(entry).collect();
        self
    }
}

fn entry(record: &Record) -> Option<JournalEntry> {
    let run = record.run.as_ref()?;
    Some(JournalEntry {
        fire: record.fire.clone(),
        attempt: run.attempt,
        fencing_token: run.fencing_token,
        node: run.node.clone(),
        node_start: run.node_start,
        guard: Some(7),
        started_at: run.started_at,
        ended_at: run.ended_at,
        exit_code: run.exit_code,
        signal: run.signal,
        lost: false,
    })
}

fn held(due: Timestamp, token: i64, is_running: bool) -> Held {
    let claim = RunFacts::claimed(node("n1"), node_start(), 1, token, due);
    Held { fire: fire(FireId::scheduled(due)), is_running, claim, past: Vec::new() }
}

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

const SCHEDULES: [&str; 5] = ["@every 90s", "@every 5m", "*/7 * * * *", "0,1,30 * * * *", "15 * * * *"];

/// A history as nodes and wardens write it that make no mistake.
fn right(seed: u64) -> Case {
    let mut dice = Dice(seed);
    let mut pick = |terms: &str| {
        let schedule = SCHEDULES[dice.below(SCHEDULES.len() as u64) as usize];
        format!("schedule = '{schedule}'\n{terms}")
    };
    let cuts = [at("07:10:20"), at("09:50:00")];
    let reigns = match seed % 3 {
        0 => vec![reign(&pick("promise = 'at-most-once'"), at("00:00:00"), None)],
        1 => vec![
            reign(&pick(""), at("00:00:00"), Some(cuts[0])),
            reign(&pick("promise = 'at-most-once'"), cuts[0], None),
        ],
        _ => vec![
            reign(&pick(""), at("00:00:00"), Some(cuts[0])),
            reign(&pick("enabled = false"), cuts[0], Some(cuts[1])),
            reign(&pick(""), cuts[1], None),
        ],
    };
    let mut case = Case::new(reigns, "11:20:00");
    let due: Vec<Timestamp> = {
        let next = |after: &Timestamp| case.dues.next_after(*after).filter(|next| *next <= case.now);
        std::iter::successors(next(&at("05:30:00")), next).collect()
    };
    let (mut index, mut token) = (0, 10);
    while index < due.len() {
        let first = due[index];
        token += 1 + dice.below(5) as i64;
        index += 1;
        if first > at("11:58:00") {
            case.locks.push(held(first, token, dice.below(2) == 0));
            break;
        }
        match dice.below(6) {
            0 => case.records.push(unrun(first, first, 1, Outcome::Skipped)),
            1 => {
                let more = (dice.below(9) as usize).min(due.len() - index);
                let last = match more {
                    0 => first,
                    _ => due[index + more - 1],
                };
                index += more;
                case.records.push(unrun(first, last, more as u64 + 1, Outcome::Missed));
            }
            // Behind the floor it may still be open.
            2 if first > case.floor.unwrap() => {}
            _ => {
                let on = ["n1", "n2", "n3"][dice.below(3) as usize];
                // It is over before the next one is due.
                let most = due.get(index).map_or(50_000, |next| (*next - first).num_milliseconds() - 100);
                case.records.push(ran(first, token, 50, most.min(1000 + dice.below(50_000) as i64), on));
            }
        }
    }
    case
}

#[test]
fn histories_that_are_right_give_no_finding() {
    for seed in 0..300 {
        let case = right(seed).with_journals();
        let counts = case.finds(&[]);
        assert_eq!(counts.told(), counts.due, "{seed}: {counts:?}");
        assert_eq!(counts.gaps + counts.unknown, 0);
    }
}

/// The records of runs, whole in the time asked about and under the floor, that are due for certain.
fn runs_of(case: &Case) -> Vec<usize> {
    let is_run = |index: &usize| {
        let record = &case.records[*index];
        let at = record.fire.scheduled_at();
        record.run.is_some() && at >= case.since && at <= case.floor.unwrap()
    };
    (0..case.records.len()).filter(is_run).collect()
}

/// A finding's own words for an instant.
fn time(at: Timestamp) -> String {
    at.format("%H:%M:%S").to_string()
}

#[test]
fn a_record_that_is_gone_is_a_gap() {
    for seed in 0..100 {
        let mut case = right(seed);
        let Some(&gone) = runs_of(&case).get(1) else { continue };
        let record = case.records.remove(gone);
        let counts = case.finds(&[&format!("gap {}", time(record.fire.scheduled_at()))]);
        assert_eq!((counts.gaps, counts.told()), (1, counts.due));
    }
}

#[test]
fn a_span_that_is_gone_is_a_gap_of_as_many() {
    let mut seen = 0;
    for seed in 0..100 {
        let mut case = right(seed);
        let whole = |record: &Record| {
            let at = record.fire.scheduled_at();
            at >= case.since && record.span.is_some_and(|span| span.last <= case.floor.unwrap())
        };
        let Some(gone) = case.records.iter().position(whole) else { continue };
        let record = case.records.remove(gone);
        let span = record.span.unwrap();
        let (first, last) = (time(record.fire.scheduled_at()), time(span.last));
        case.finds(&[&format!("gap {first}..{last} x{}", span.count)]);
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn what_is_covered_twice_is_a_double() {
    for seed in 0..100 {
        let case = right(seed);
        let Some(&index) = runs_of(&case).first() else { continue };
        let due = case.records[index].fire.scheduled_at();
        let mut with_lock = case.clone();
        with_lock.locks.push(held(due, 9, true));
        let counts = with_lock.finds(&[&format!("double {}", time(due))]);
        assert_eq!(counts.told(), counts.due, "nothing is counted twice");
        let mut with_span = case.clone();
        let next = case.dues.next_after(due).unwrap();
        let count = case.dues.count(due - TimeDelta::seconds(1), next);
        with_span.records.push(unrun(due, next, count, Outcome::Missed));
        let found = with_span.judge().findings;
        assert!(!found.is_empty() && found.iter().all(|finding| finding.kind == Kind::Double), "{found:#?}");
        let mut twice = case.clone();
        twice.unreadable.push((due, due));
        twice.finds(&[&format!("double {}", time(due))]);
    }
}

#[test]
fn a_span_that_was_moved_tells_itself() {
    let mut case = Case::new([reign("schedule = '@every 5m'", at("00:00:00"), None)], "07:00:00");
    case.now = at("07:00:00");
    let span = |first, last, count| unrun(at(first), at(last), count, Outcome::Missed);
    case.records = vec![span("06:00:00", "06:30:00", 7), span("06:35:00", "07:00:00", 6)];
    // 07:00:00 is not asked about, though the span reaches it.
    assert_eq!(case.finds(&[]).due, 12);
    case.records[0] = span("06:05:00", "06:35:00", 7);
    case.finds(&["gap 06:00:00", "double 06:35:00"]);
    case.records[0] = span("06:00:01", "06:30:01", 7);
    case.finds(&["gap 06:00:00", "span 06:00:01..06:30:01 x7"]);
    case.records[0] = span("06:00:00", "06:30:00", 8);
    case.finds(&["span 06:00:00..06:30:00 x8"]);
    case.records = vec![span("05:55:00", "06:30:00", 8), span("06:30:00", "07:00:00", 7)];
    case.finds(&["double 06:30:00"]);
    // It meets another before the time asked about only.
    case.records = vec![span("05:55:00", "07:00:00", 14)];
    assert_eq!(case.finds(&[]).outcomes, [(Outcome::Missed, 12)].into());
}

#[test]
fn what_is_undecided_behind_the_floor_is_open_until_it_is_too_late() {
    let mut case = Case::new([reign("schedule = '*/10 * * * *'", at("00:00:00"), None)], "09:50:00");
    case.records = vec![unrun(at("06:00:00"), at("09:50:00"), 24, Outcome::Missed)];
    // Within an hour it may start.
    let counts = case.finds(&["gap 10:00:00..10:50:00 x6"]);
    assert_eq!((counts.open, counts.gaps), (6, 6));
    // The node whose lane it is tells of it when it is back.
    case.is_attended = false;
    assert_eq!(case.finds(&[]).open, 12);
    case.is_attended = true;
    case.floor = None;
    case.finds(&["gap 10:00:00..10:50:00 x6"]);
}

#[test]
fn under_the_floor_what_is_undecided_is_a_gap_at_once() {
    let mut case = Case::new([reign("schedule = '*/10 * * * *'", at("00:00:00"), None)], "11:40:00");
    case.records = vec![unrun(at("06:00:00"), at("11:20:00"), 33, Outcome::Missed)];
    let counts = case.finds(&["gap 11:30:00..11:40:00 x2"]);
    assert_eq!(counts.open, 1);
}

#[test]
fn a_lane_that_was_closed_has_all_decided() {
    let removed =
        Reign { removed: true, ..reign("schedule = '0 * * * *'", at("00:00:00"), Some(at("08:30:00"))) };
    let mut case = Case::new([removed], "00:00:00");
    case.floor = None;
    case.records = vec![unrun(at("06:00:00"), at("07:00:00"), 2, Outcome::Missed)];
    case.finds(&["gap 08:00:00"]);
}

#[test]
fn before_the_oldest_record_nothing_is_known() {
    let mut case = Case::new([reign("schedule = '0 * * * *'", at("00:00:00"), None)], "11:00:00");
    case.oldest = Some(at("09:00:00"));
    case.records = vec![unrun(at("09:00:00"), at("10:00:00"), 2, Outcome::Missed)];
    let counts = case.finds(&["gap 11:00:00"]);
    assert_eq!((counts.unknown, counts.due), (3, 6));
    // Nothing is kept, so nothing is known up to the floor.
    case.oldest = None;
    case.records.clear();
    assert_eq!(case.finds(&[]).unknown, 6);
    // A record that is not under the floor was never the oldest one left by pruning.
    case.floor = Some(at("08:00:00"));
    case.oldest = Some(at("11:00:00"));
    case.records = vec![unrun(at("11:00:00"), at("11:00:00"), 1, Outcome::Missed)];
    case.finds(&["gap 09:00:00..10:00:00 x2"]);
    case.dues_are_known = false;
    assert_eq!(case.finds(&[]).unknown, 5);
}

#[test]
fn a_weekend_of_every_second_is_one_span() {
    let since = at("00:00:00") - TimeDelta::days(365);
    let mut case = Case::new([reign("schedule = '@every 1s'", since, None)], "11:59:59");
    case.since = since + TimeDelta::seconds(1);
    case.oldest = Some(since);
    let count = case.dues.count(since, at("11:59:59"));
    case.records = vec![unrun(since + TimeDelta::seconds(1), at("11:59:59"), count, Outcome::Missed)];
    let counts = case.finds(&[]);
    assert_eq!((counts.due, counts.outcomes[&Outcome::Missed]), (count, count));
    assert!(count > 31_000_000);
}

#[test]
fn two_runs_that_meet_overlap_unless_that_is_allowed() {
    for (fields, on, kind) in
        [("", "n1", Some("overlap")), ("", "n2", Some("overlap")), ("overlap = 'allow'", "n1", None)]
    {
        let fields = format!("schedule = '0 * * * *'\n{fields}");
        let mut case = Case::new([reign(&fields, at("00:00:00"), None)], "11:00:00");
        let hour = TimeDelta::hours(1).num_milliseconds();
        case.records = vec![
            ran(at("06:00:00"), 1, 100, hour + 1000, "n1"),
            ran(at("07:00:00"), 2, 100, 1000, on),
            unrun(at("08:00:00"), at("11:00:00"), 4, Outcome::Missed),
        ];
        let found: Vec<String> = kind.iter().map(|kind| format!("{kind} 07:00:00")).collect();
        case.finds(&found.iter().map(String::as_str).collect::<Vec<_>>());
        // By less than clocks may be apart.
        case.records[0] = ran(at("06:00:00"), 1, 100, hour + 300, "n1");
        let found = match (kind, on) {
            (Some(_), "n2") => vec!["clocks 07:00:00"],
            (Some(_), _) => vec!["overlap 07:00:00"],
            (None, _) => vec![],
        };
        case.finds(&found);
        // One after the other.
        case.records[0] = ran(at("06:00:00"), 1, 100, hour, "n1");
        case.finds(&[]);
    }
}

#[test]
fn one_long_run_is_told_of_with_each_that_met_it() {
    let mut case = Case::new([reign("schedule = '0 * * * *'", at("00:00:00"), None)], "09:00:00");
    case.now = at("09:30:00");
    let hours = |hours| TimeDelta::hours(hours).num_milliseconds();
    case.records = vec![
        ran(at("06:00:00"), 1, 100, hours(3) + 9, "n1"),
        ran(at("07:00:00"), 2, 100, 10, "n1"),
        ran(at("08:00:00"), 3, 100, 10, "n1"),
        ran(at("09:00:00"), 4, 100, 10, "n1"),
    ];
    case.finds(&["overlap 07:00:00", "overlap 08:00:00", "overlap 09:00:00"]);
}

/// A fire with an attempt before the one of its record, on another node.
fn tried_twice(first_started: bool, promise: &str) -> Case {
    let fields = format!("schedule = '0 * * * *'\noverlap = 'allow'\npromise = '{promise}'");
    let mut case = Case::new([reign(&fields, at("00:00:00"), None)], "06:00:00");
    case.now = at("06:30:00");
    let mut record = ran(at("06:00:00"), 9, 60_000, 1000, "n2");
    record.run.as_mut().unwrap().attempt = 2;
    record.past.push(Past {
        attempt: 1,
        node: node("n1"),
        outcome: Outcome::Lost,
        reason: None,
        exit_code: None,
        signal: None,
        started_at: first_started.then(|| at("06:00:01")),
        ended_at: None,
    });
    case.records.push(record);
    case
}

#[test]
fn an_at_most_once_fire_is_started_once() {
    tried_twice(true, "at-least-once").finds(&[]);
    tried_twice(false, "at-most-once").finds(&[]);
    tried_twice(true, "at-most-once").finds(&["restarted 06:00:00 x2"]);
}

#[test]
fn no_two_attempts_of_a_fire_overlap_even_where_runs_may() {
    let mut case = tried_twice(true, "at-least-once");
    case.records[0].past[0].ended_at = Some(at("06:02:00"));
    case.finds(&["overlap 06:00:00"]);
    case.records[0].past[0].ended_at = Some(at("06:00:40"));
    case.finds(&[]);
    // The true end comes with the late result.
    case.records[0].past[0].ended_at = None;
    let mut late = ran(at("06:00:00"), 5, 1000, 200_000, "n1");
    late.outcome = Outcome::Lost;
    case.late.push(late);
    case.finds(&["overlap 06:00:00", "late 06:00:00"]);
}

#[test]
fn one_attempt_is_started_by_one_node() {
    let mut case = tried_twice(true, "at-least-once");
    case.records[0].past[0].attempt = 2;
    case.finds(&["double 06:00:00"]);
}

#[test]
fn tokens_grow_with_every_start() {
    for seed in 0..100 {
        let mut case = right(seed);
        let runs = runs_of(&case);
        let [_, second, third, ..] = runs[..] else { continue };
        let token = |case: &Case, index: usize| case.records[index].run.as_ref().unwrap().fencing_token;
        let low = token(&case, second) - 1000;
        case.records[second].run.as_mut().unwrap().fencing_token = low;
        case.finds(&[&format!("token {}", time(case.records[second].fire.scheduled_at()))]);
        let mut case = right(seed);
        let same = token(&case, second);
        case.records[third].run.as_mut().unwrap().fencing_token = same;
        case.finds(&[&format!("token {}", time(case.records[third].fire.scheduled_at()))]);
    }
}

#[test]
fn a_run_that_no_definition_asked_for_is_told() {
    for seed in 0..100 {
        let mut case = right(seed);
        let odd = at("08:13:17");
        // In a span it would be a double as well.
        let is_covered = |record: &Record| {
            record.span.is_some_and(|span| (record.fire.scheduled_at()..=span.last).contains(&odd))
        };
        if case.records.iter().any(is_covered) {
            continue;
        }
        case.records.push(unrun(odd, odd, 1, Outcome::Skipped));
        case.finds(&["not-due 08:13:17"]);
    }
}

#[test]
fn by_the_clock_of_who_changed_it_a_definition_may_end_some_seconds_early() {
    let before = reign("schedule = '0 * * * *'", at("00:00:00"), Some(at("06:59:58")));
    let mut case = Case::new([before, reign("schedule = '30 * * * *'", at("06:59:58"), None)], "07:00:00");
    case.now = at("07:10:00");
    case.records = vec![ran(at("06:00:00"), 1, 1, 1, "n1"), ran(at("07:00:00"), 2, 1, 1, "n1")];
    case.finds(&[]);
    case.records.push(ran(at("07:02:00"), 3, 1, 1, "n1"));
    case.finds(&["not-due 07:02:00"]);
}

#[test]
fn a_request_is_no_due_fire_and_excludes_others_all_the_same() {
    let mut case = Case::new([reign("schedule = '0 * * * *'", at("00:00:00"), None)], "06:00:00");
    case.now = at("06:30:00");
    let ulid = ulid::Ulid::from_parts(at("06:00:02").timestamp_millis() as u64, 1);
    let mut by_hand = ran(at("06:00:02"), 2, 0, 1000, "n1");
    by_hand.fire.id = FireId::Manual(ulid);
    case.records = vec![ran(at("06:00:00"), 1, 0, 1000, "n1"), by_hand];
    let counts = case.finds(&[]);
    assert_eq!((counts.asked, counts.due, counts.told()), (1, 1, 1));
    case.records[0] = ran(at("06:00:00"), 1, 0, 9000, "n1");
    case.finds(&["overlap 06:00:02"]);
}

#[test]
fn a_start_in_a_journal_is_known_to_the_store() {
    for seed in 0..100 {
        let case = right(seed).with_journals();
        let runs = runs_of(&case);
        let Some(&index) = runs.get(1) else { continue };
        let record = &case.records[index];
        let when = time(record.fire.scheduled_at());
        // The record tells of another claim.
        let mut other = case.clone();
        other.records[index].run.as_mut().unwrap().fencing_token += 1;
        other.entries.retain(|entry| entry.fire == record.fire);
        let entries = other.entries.clone();
        other.journals = None;
        assert!(other.judge().is_clean());
        other.journals = case.journals.clone();
        other.entries = case.entries.clone();
        assert_eq!(entries.len(), 1);
        other.finds(&[&format!("unrecorded {when}")]);
        // It is gone.
        let mut gone = case.clone();
        gone.records.remove(index);
        gone.finds(&[&format!("gap {when}"), &format!("unrecorded {when}")]);
        // It is not known what was before.
        gone.oldest = Some(record.fire.scheduled_at() + TimeDelta::seconds(1));
        assert!(gone.judge().is_clean(), "{:#?}", gone.judge().findings);
        // A lock tells of it.
        let mut locked = gone.clone();
        locked.oldest = case.oldest;
        let run = record.run.clone().unwrap();
        locked.locks.push(Held { fire: record.fire.clone(), is_running: true, claim: run, past: Vec::new() });
        locked.finds(&[]);
    }
}

#[test]
fn a_run_in_a_record_is_known_to_the_journal_of_its_node() {
    for seed in 0..100 {
        let case = right(seed).with_journals();
        let Some(&index) = runs_of(&case).get(1) else { continue };
        let record = case.records[index].clone();
        let when = time(record.fire.scheduled_at());
        let mut gone = case.clone();
        gone.entries.retain(|entry| entry.fire != record.fire);
        gone.finds(&[&format!("unjournaled {when}")]);
        let on = (record.run.clone().unwrap().node, node_start());
        let reach = |gone: &mut Case, reach: Option<Reach>| {
            let lives = &mut gone.journals.as_mut().unwrap().lives;
            match reach {
                Some(reach) => lives.insert(on.clone(), reach),
                None => lives.remove(&on),
            };
        };
        reach(&mut gone, Some(Reach { since: Some(at("00:00:00")), whole_until: Some(case.since) }));
        gone.finds(&[&format!("unsynced {when}")]);
        reach(&mut gone, Some(Reach { since: Some(case.now), whole_until: None }));
        gone.finds(&[]);
        reach(&mut gone, None);
        gone.finds(&[]);
        let mut differs = case.clone();
        differs.records[index].run.as_mut().unwrap().exit_code = Some(1);
        differs.finds(&[&format!("differs {when}")]);
    }
}

#[test]
fn a_journal_tells_the_end_that_nobody_else_saw() {
    let mut case = tried_twice(true, "at-least-once").with_journals();
    let mut first = case.entries[0].clone();
    first.attempt = 1;
    first.fencing_token = 3;
    first.node = node("n1");
    first.started_at = Some(at("06:00:01"));
    first.ended_at = Some(at("06:00:30"));
    case.entries.push(first);
    case.finds(&[]);
    case.entries[1].ended_at = Some(at("06:05:00"));
    case.finds(&["overlap 06:00:00"]);
    case.entries[1].attempt = 3;
    case.entries[1].ended_at = Some(at("06:00:30"));
    case.entries[1].fencing_token = 10;
    case.finds(&["token 06:00:00", "unrecorded 06:00:00", "unjournaled 06:00:00"]);
}

#[test]
fn every_kind_has_a_word_of_its_own() {
    let words: std::collections::BTreeSet<_> = Kind::ALL.iter().map(|kind| kind.word()).collect();
    assert_eq!(words.len(), Kind::ALL.len());
}
