//! `fleetcron audit`: was everything run that was due, and nothing twice?

mod books;
mod journals;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use chrono::TimeDelta;
use serde::Serialize;

use self::books::Lanes;
use super::Door;
use super::failure::{Failure, say};
use super::out::GiveUp::{All, OneLine};
use super::out::{Out, Table, harmless};
use super::read::{self, Scope};
use super::time::{self, Toward};
use crate::audit::{Counts, Finding, Report};
use crate::fire::{FireId, Lane};
use crate::job::JobName;
use crate::record::Outcome;
use crate::schedule::{Timestamp, Zone};

/// Check that every due fire was dealt with once, and that no two runs met
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What was due is worked out anew from the definitions that were in force, and held against the locks, records and spans \
in the store, also of jobs that are gone. A row for each lane tells how many fires were due and what they came to; \
below that, each finding is one line. Before the oldest record that is kept of a lane, fires are not known (`keep`).

Faults, with which the exit code is 1:
  gap          due, and nothing says what became of it
  double       covered twice, or one attempt started twice
  overlap      two runs at one time that exclude each other
  not-due      recorded, and not due by any definition; other time zone data may be why
  span         a record of many fires that are not those that were due
  restarted    promised at most once, and started again
  token        a fencing token that is not above the one before
  unrecorded   started, says a journal, and the store knows nothing of it
  unjournaled  recorded as run on a node whose journal knows nothing of it
  differs      record and journal tell of different ends
Notes:
  late         a true result that came after the fire had been decided otherwise
  clocks       an overlap on two nodes that is shorter than their clocks may be apart (--skew)
  unsynced     missing from a journal, whose end a crash of the machine may have taken

A node writes down in its state folder what it ran, for 30 days. With --journals those are read too, and what they \
tell must agree with the records.

A time is RFC 3339 (2026-11-30T02:00:00Z), a date, a time of day (06:00), or how long ago (8h); dates and times of \
day are UTC, as are all that are shown.

JSON has one object a line. `row` is \"lane\" or \"finding\". A lane has job, lane, since, until, due, succeeded, failed, \
timed_out, cancelled, lost, skipped, missed, refused, running, waiting, open (undecided, may still be run), gaps, \
unknown, unreadable, asked (fires by hand or at a boot, which are not due), faults. All from succeeded to unreadable add \
up to due. A finding has job, lane, finding, fault (false: a note), fire, last (the instant of the last fire, where it is \
about several), count, detail.

Exit codes: 0 nothing is wrong, 1 something is, or cannot be read, 2 wrong usage or a folder that is no node's, 3 store \
not reached.

Examples:
  fleetcron audit
  fleetcron audit backup --since 7days
  fleetcron audit --since 2026-11-01 --until 2026-12-01 --output json | jq 'select(.fault)'
  fleetcron audit --journals /var/lib/fleetcron/nodes/*")]
pub struct Args {
    /// Only these jobs
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    /// Fires due at or after this time
    #[arg(long, value_name = "TIME", default_value = "24h")]
    since: String,
    /// Fires due before this time [default: now]
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// State folders of nodes, to hold their journals against the records
    #[arg(long, value_name = "DIR", num_args = 1..)]
    journals: Vec<PathBuf>,
    /// How far the clocks of two nodes may be apart
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = humantime::parse_duration)]
    skew: Duration,
}

/// What is asked.
struct Question {
    scope: Scope,
    /// From here on …
    since: Timestamp,
    /// … to before this.
    until: Timestamp,
    now: Timestamp,
    skew: TimeDelta,
}

pub async fn audit(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let question = Question::of(args, door.now())?;
    // Before the store, so that of what they tell nothing can be missing there.
    let journals = match &args.journals[..] {
        [] => None,
        folders => Some(journals::read(folders, question.now)?),
    };
    let store = door.store().await?;
    let lanes = books::judge(&store, &question, journals.as_ref()).await?;
    let out = &mut door.out;
    match out.is_json() {
        true => rows(out, &question, &lanes)?,
        false => words(out, &lanes)?,
    }
    let faults: usize = lanes.reports.values().map(faults).sum();
    if faults > 0 {
        say(format_args!("something is wrong: {faults} finding(s) are faults"));
        return Err(Failure::Said(1));
    }
    read::ended_with(lanes.unreadable)?;
    Ok(ExitCode::SUCCESS)
}

impl Question {
    fn of(args: &Args, now: Timestamp) -> Result<Question, Failure> {
        let instant = |text: &str, flag: &str| {
            let read = time::instant(text, now, &Zone::utc(), Toward::Past);
            read.map_err(|error| Failure::Usage(format!("{flag}: {error}")))
        };
        let since = instant(&args.since, "--since")?;
        let until = args.until.as_deref().map_or(Ok(now), |until| instant(until, "--until"))?;
        if since >= until {
            return Err(Failure::Usage(format!(
                "--since {} is not before --until {}",
                time::utc(since),
                time::utc(until)
            )));
        }
        let skew = TimeDelta::from_std(args.skew).map_err(|_| Failure::usage("--skew: too long"))?;
        Ok(Question { scope: Scope::of(&args.jobs)?, since, until, now, skew })
    }
}

fn faults(report: &Report) -> usize {
    report.findings.iter().filter(|finding| finding.kind.is_fault()).count()
}

/// A lane, in JSON. Names once released do not change.
#[derive(Serialize)]
struct LaneRow<'r> {
    row: &'static str,
    job: &'r str,
    lane: String,
    since: String,
    until: String,
    due: u64,
    succeeded: u64,
    failed: u64,
    timed_out: u64,
    cancelled: u64,
    lost: u64,
    skipped: u64,
    missed: u64,
    refused: u64,
    running: u64,
    waiting: u64,
    open: u64,
    gaps: u64,
    unknown: u64,
    unreadable: u64,
    asked: u64,
    faults: usize,
}

/// A finding, in JSON. Names once released do not change.
#[derive(Serialize)]
struct FindingRow<'r> {
    row: &'static str,
    job: &'r str,
    lane: String,
    finding: &'static str,
    fault: bool,
    fire: String,
    last: Option<String>,
    count: u64,
    detail: &'r str,
}

fn rows(out: &mut Out, question: &Question, lanes: &Lanes) -> Result<(), Failure> {
    for ((job, lane), report) in &lanes.reports {
        out.json(&lane_row(question, job, lane, report))?;
        for finding in &report.findings {
            out.json(&FindingRow {
                row: "finding",
                job: job.as_str(),
                lane: lane.to_string(),
                finding: finding.kind.word(),
                fault: finding.kind.is_fault(),
                fire: finding.fire.to_string(),
                last: finding.last.map(time::utc),
                count: finding.count,
                detail: &finding.detail,
            })?;
        }
    }
    out.flush()
}

fn lane_row<'r>(question: &Question, job: &'r JobName, lane: &Lane, report: &Report) -> LaneRow<'r> {
    let Counts { due, outcomes, running, waiting, open, gaps, unknown, unreadable, asked } = &report.counts;
    let of = |outcome| outcomes.get(&outcome).copied().unwrap_or_default();
    LaneRow {
        row: "lane",
        job: job.as_str(),
        lane: lane.to_string(),
        since: time::utc(question.since),
        until: time::utc(question.until),
        due: *due,
        succeeded: of(Outcome::Succeeded),
        failed: of(Outcome::Failed),
        timed_out: of(Outcome::TimedOut),
        cancelled: of(Outcome::Cancelled),
        lost: of(Outcome::Lost),
        skipped: of(Outcome::Skipped),
        missed: of(Outcome::Missed),
        refused: of(Outcome::Refused),
        running: *running,
        waiting: *waiting,
        open: *open,
        gaps: *gaps,
        unknown: *unknown,
        unreadable: *unreadable,
        asked: *asked,
        faults: faults(report),
    }
}

/// The same for people: a table, and a line for each finding.
fn words(out: &mut Out, lanes: &Lanes) -> Result<(), Failure> {
    let header = ["JOB", "LANE", "DUE", "OPEN", "GAPS", "UNKNOWN", "FAULTS", "CAME TO"];
    let mut table = Table::new(&header, &[OneLine("CAME TO"), All("UNKNOWN"), All("OPEN")]);
    for ((job, lane), report) in &lanes.reports {
        let counts = &report.counts;
        let numbers = [counts.due, counts.open, counts.gaps, counts.unknown, faults(report) as u64];
        let mut cells = vec![job.to_string(), lane.to_string()];
        cells.extend(numbers.map(|number| number.to_string()));
        cells.push(came_to(counts));
        table.row(out, cells)?;
    }
    table.end(out)?;
    for ((job, lane), report) in &lanes.reports {
        for finding in &report.findings {
            out.line(harmless(&sentence(job, lane, finding)))?;
        }
    }
    out.flush()
}

fn came_to(counts: &Counts) -> String {
    let outcomes = counts.outcomes.iter().map(|(outcome, count)| (*count, outcome.word()));
    let others = [
        (counts.running, "running"),
        (counts.waiting, "waiting"),
        (counts.unreadable, "unreadable"),
        (counts.asked, "more by hand or at a boot"),
    ];
    let all = outcomes.chain(others).filter(|(count, _)| *count > 0);
    let told: Vec<String> = all.map(|(count, word)| format!("{count} {word}")).collect();
    match told.is_empty() {
        true => "-".to_owned(),
        false => told.join(", "),
    }
}

fn sentence(job: &JobName, lane: &Lane, finding: &Finding) -> String {
    let lane = match lane {
        Lane::OneNode => String::new(),
        lane => format!("{lane}/"),
    };
    let last = finding.last.map(|last| format!("..{}", FireId::scheduled(last))).unwrap_or_default();
    format!("{}: {job}/{lane}{}{last}: {}", finding.kind, finding.fire, finding.detail)
}
