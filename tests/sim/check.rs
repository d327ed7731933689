//! The promises, checked against the true story and what the store holds at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleetcron::fire::{Fire, FireId, Lane};
use fleetcron::record::Record;
use fleetcron::store::values::{self, Definition, Lock};
use fleetcron::store::{Entry, keys};

use crate::jobs;
use crate::truth::Run;

/// What a promise that was not kept looks like.
pub type Violation = String;

/// Two commands that both ran for less than this did so within the rounding of the simulated timers.
const ROUNDING: Duration = Duration::from_millis(3);

/// Everything but the coverage of fires.
pub fn check(runs: &[Run], store: &[Entry]) -> Vec<Violation> {
    let mut found = Vec::new();
    each_attempt_starts_once(runs, &mut found);
    at_most_once_starts_once(runs, &mut found);
    no_two_overlap(runs, &mut found);
    tokens_grow(runs, &mut found);
    every_start_has_its_record(runs, store, &mut found);
    no_result_is_lost(runs, store, &mut found);
    records_stay(store, &mut found);
    if THE_FLOOR_MOVES {
        every_due_fire_is_covered(store, &mut found);
    }
    nothing_is_left(store, &mut found);
    found
}

fn each_attempt_starts_once(runs: &[Run], found: &mut Vec<Violation>) {
    let mut seen = BTreeSet::new();
    for run in runs {
        if !seen.insert((&run.fire, run.attempt)) {
            found.push(format!("{} attempt {} started twice", run.fire, run.attempt));
        }
    }
}

fn at_most_once_starts_once(runs: &[Run], found: &mut Vec<Violation>) {
    let mut seen = BTreeSet::new();
    for run in runs.iter().filter(|run| jobs::kind_of(&run.fire.job).at_most_once) {
        if !seen.insert(&run.fire) {
            found.push(format!(
                "{} promises at most one start, and attempt {} was another",
                run.fire, run.attempt
            ));
        }
    }
}

/// Of one fire; and of one lane whose job does not allow it.
fn no_two_overlap(runs: &[Run], found: &mut Vec<Violation>) {
    let mut lanes: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        let lane = match jobs::kind_of(&run.fire.job).allow {
            true => run.fire.to_string(),
            false => format!("{}/{}", run.fire.job, run.fire.lane),
        };
        lanes.entry(lane).or_default().push(run);
    }
    for (lane, runs) in lanes {
        let mut awake: Vec<(Duration, Duration, &Run)> =
            runs.iter().flat_map(|run| awake(run).into_iter().map(|(from, to)| (from, to, *run))).collect();
        awake.sort_by_key(|(from, to, run)| (*from, *to, run.token));
        // The one that ends last of all before.
        let mut last: Option<(Duration, &Run)> = None;
        for (from, to, run) in awake {
            if let Some((until, other)) = last
                && (other.fire != run.fire || other.attempt != run.attempt || other.node != run.node)
                && until.min(to) > from + ROUNDING
            {
                let (one, two) = (name(other), name(run));
                found.push(format!(
                    "{lane}: {one} and {two} ran at once from {from:?} for {:?}",
                    until.min(to) - from
                ));
            }
            if last.is_none_or(|(until, _)| to > until) {
                last = Some((to, run));
            }
        }
    }
}

fn name(run: &Run) -> String {
    format!("{} attempt {} on n{}", run.fire, run.attempt, run.node)
}

/// When it ran, without the time that it stood still with its machine.
fn awake(run: &Run) -> Vec<(Duration, Duration)> {
    let end = run.ended.unwrap_or(Duration::MAX);
    let mut from = run.began;
    let mut parts = Vec::new();
    for (since, until) in &run.still {
        parts.push((from, *since));
        from = *until;
    }
    parts.push((from, end));
    parts
}

fn tokens_grow(runs: &[Run], found: &mut Vec<Violation>) {
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    for run in runs.iter().filter(|run| !jobs::kind_of(&run.fire.job).allow) {
        let lane = format!("{}/{}", run.fire.job, run.fire.lane);
        let before = last.insert(lane, run.token).unwrap_or(0);
        if run.token <= before {
            found.push(format!("{} has token {}, and {before} was before it", name(run), run.token));
        }
    }
}

fn every_start_has_its_record(runs: &[Run], store: &[Entry], found: &mut Vec<Violation>) {
    let records = records(store);
    let started: BTreeSet<&Fire> = runs.iter().map(|run| &run.fire).collect();
    for fire in started {
        if !records.contains_key(fire) {
            found.push(format!("{fire} started and has no record"));
        }
    }
}

/// A command that ended, as a disk that lives has it noted, shows in the store: as the record, in the record's list of
/// former attempts, or beside the record of who closed the fire.
fn no_result_is_lost(runs: &[Run], store: &[Entry], found: &mut Vec<Violation>) {
    let records = records(store);
    let there: BTreeSet<&str> = store.iter().map(|entry| entry.key.as_str()).collect();
    for run in runs.iter().filter(|run| run.noted) {
        let late = keys::late_record(&run.fire, run.node_start, run.attempt);
        let shown = records.get(&run.fire).is_some_and(|record| shows(record, run));
        if !shown && !there.contains(late.as_str()) {
            found.push(format!("the result of {} is lost", name(run)));
        }
    }
}

fn shows(record: &Record, run: &Run) -> bool {
    let is_it = record.run.as_ref().is_some_and(|facts| {
        facts.node_start == run.node_start && facts.attempt == run.attempt && facts.ended_at.is_some()
    });
    let was_it = record.past.iter().any(|past| past.attempt == run.attempt && past.ended_at.is_some());
    is_it || was_it
}

/// A record is written once, and nobody changes it.
fn records_stay(store: &[Entry], found: &mut Vec<Violation>) {
    let records = store.iter().filter(|entry| keys::fire_of(&entry.key).is_some());
    for entry in records.filter(|entry| entry.key.starts_with("history/")) {
        if entry.create_revision != entry.mod_revision {
            found.push(format!("{} was written twice", entry.key));
        }
    }
}

/// To be switched on when wardens move the floor and write spans; [`span_of`] then has to read what they write.
const THE_FLOOR_MOVES: bool = false;

/// Every fire that was due by the present definition of a job, up to the floor, has a record or lies in a span; and the
/// floor has come up to where the fleet was paused.
fn every_due_fire_is_covered(store: &[Entry], found: &mut Vec<Violation>) {
    let value = |key: &str| store.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_slice());
    let covered: Vec<(Fire, Fire)> = store.iter().filter_map(span_of).collect();
    for entry in store.iter().filter(|entry| entry.key.starts_with("jobs/")) {
        let Ok(Definition { job, since, .. }) = Definition::decode(&entry.key, &entry.value) else {
            continue;
        };
        let floor = value(&keys::floor(&job.name, &Lane::OneNode)).map(String::from_utf8_lossy);
        let Some(FireId::Scheduled(floor)) = floor.and_then(|floor| floor.parse().ok()) else {
            found.push(format!("{} has no floor", job.name));
            continue;
        };
        let mut due = job.schedule.next_after(since).filter(|at| *at <= floor);
        while let Some(at) = due {
            let fire = Fire::new(job.name.clone(), FireId::scheduled(at));
            match covered.iter().filter(|(first, last)| *first <= fire && fire <= *last).count() {
                1 => {}
                0 => found.push(format!("{fire} was due, and nothing tells what became of it")),
                times => found.push(format!("{fire} is covered {times} times")),
            }
            due = job.schedule.next_after(at).filter(|at| *at <= floor);
        }
    }
}

/// The first and the last scheduled fire that a record or span is about.
fn span_of(entry: &Entry) -> Option<(Fire, Fire)> {
    let first = keys::fire_of(&entry.key).filter(|_| entry.key.starts_with("history/"))?;
    let FireId::Scheduled(_) = first.id else { return None };
    let form: serde_json::Value = serde_json::from_slice(&entry.value).ok()?;
    let last = form.get("last").and_then(|last| last.as_str()).and_then(|last| last.parse().ok());
    let last = Fire { id: last.unwrap_or(first.id), ..first.clone() };
    Some((first, last))
}

fn nothing_is_left(store: &[Entry], found: &mut Vec<Violation>) {
    for entry in store.iter().filter(|entry| entry.key.starts_with("locks/")) {
        let lock = values::decode::<Lock>(&entry.key, &entry.value);
        let lock = lock.map(|lock| format!("{:?} by {} attempt {}", lock.state, lock.node, lock.attempt));
        found.push(format!("{} is left: {lock:?}", entry.key));
    }
}

fn records(store: &[Entry]) -> BTreeMap<Fire, Record> {
    let read = |entry: &Entry| {
        let fire = keys::fire_of(&entry.key).filter(|_| entry.key.starts_with("history/"))?;
        let record = values::decode_record(fire.clone(), &entry.key, &entry.value).ok()?;
        Some((fire, record))
    };
    store.iter().filter_map(read).collect()
}
