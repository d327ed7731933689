//! The promises, checked against the true story and what the store holds at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::TimeDelta;
use fleetcron::fire::{Fire, FireId, Lane};
use fleetcron::job::JobName;
use fleetcron::planner::{Dues, Reign};
use fleetcron::record::Record;
use fleetcron::schedule::Timestamp;
use fleetcron::store::values::{self, Definition, Former, Lock};
use fleetcron::store::{Entry, keys};
use fleetcron::warden;

use crate::jobs;
use crate::truth::Run;

/// What a promise that was not kept looks like.
pub type Violation = String;

/// Two commands that both ran for less than this did so within the rounding of the simulated timers.
const ROUNDING: Duration = Duration::from_millis(3);

/// All of them. `was_ahead`: a clock was ahead of the true time by more than clocks may differ. Such a node, alone with
/// the store, settles times that are still to come, so what is due by a definition of a later time may have no record.
pub fn check(runs: &[Run], store: &[Entry], now: Timestamp, was_ahead: bool) -> Vec<Violation> {
    let mut found = Vec::new();
    each_attempt_starts_once(runs, &mut found);
    at_most_once_starts_once(runs, &mut found);
    no_two_overlap(runs, &mut found);
    tokens_grow(runs, &mut found);
    every_start_has_its_record(runs, store, &mut found);
    no_result_is_lost(runs, store, &mut found);
    records_stay(store, &mut found);
    if !was_ahead {
        every_due_fire_is_covered(store, now, &mut found);
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

/// Of one fire; of one lane whose job does not allow it; and of those that share a mutex.
fn no_two_overlap(runs: &[Run], found: &mut Vec<Violation>) {
    let mut lanes: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        let lane = match jobs::kind_of(&run.fire.job).allow {
            true => run.fire.to_string(),
            false => format!("{}/{}", run.fire.job, run.fire.lane),
        };
        lanes.entry(lane).or_default().push(run);
        if jobs::kind_of(&run.fire.job).mutex {
            lanes.entry("the mutex".to_owned()).or_default().push(run);
        }
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

/// A record of a run is written once, and nobody changes it. What a clock that was wrong has said of fires to come may
/// be taken back.
fn records_stay(store: &[Entry], found: &mut Vec<Violation>) {
    let records = store.iter().filter(|entry| keys::fire_of(&entry.key).is_some());
    for entry in records.filter(|entry| entry.key.starts_with("history/")) {
        if entry.create_revision != entry.mod_revision && values::span_of(&entry.value).is_none() {
            found.push(format!("{} was written twice", entry.key));
        }
    }
}

/// Every fire that was due by any definition of a job, up to the floor, has one record or lies in one span; and the floor
/// has come up to the last fires.
fn every_due_fire_is_covered(store: &[Entry], now: Timestamp, found: &mut Vec<Violation>) {
    let covered = covered(store);
    for kind in jobs::KINDS {
        let job: JobName = kind.name.parse().expect("a name");
        let Some(floor) = store.iter().find(|entry| entry.key == keys::floor(&job, &Lane::OneNode)) else {
            // It was removed, and is settled.
            continue;
        };
        let Some((floor, _)) = warden::read_floor(floor) else {
            found.push(format!("the floor of {job} cannot be read"));
            continue;
        };
        let (dues, began) = dues(store, &job);
        let mut due = dues.next_after(began).filter(|at| *at <= floor);
        while let Some(at) = due {
            let fire = Fire::new(job.clone(), FireId::scheduled(at));
            let times = covered.get(&job).into_iter().flatten();
            match times.filter(|(first, last)| (*first..=*last).contains(&at)).count() {
                1 => {}
                0 => found.push(format!("{fire} was due, and nothing tells what became of it")),
                times => found.push(format!("{fire} is covered {times} times")),
            }
            due = dues.next_after(at).filter(|at| *at <= floor);
        }
        // What a clock that was ahead has decided may lie in the time to come.
        if let Some(due) = dues.next_after(floor).filter(|due| *due < now - STAYS_BEHIND) {
            found.push(format!("the floor of {job} stays behind: {floor}, and {due} was due"));
        }
    }
}

/// How long the calm is at the least, so that wardens have been there.
const STAYS_BEHIND: TimeDelta = TimeDelta::minutes(5);

/// What was due of a job over time, and since when.
fn dues(store: &[Entry], job: &JobName) -> (Dues, Timestamp) {
    let mut reigns = Vec::new();
    for entry in store {
        if keys::former_job(&entry.key).as_ref() == Some(job) {
            reigns.push(Reign::from(Former::decode(&entry.key, &entry.value).expect("what sync wrote")));
        }
    }
    if let Some(entry) = store.iter().find(|entry| entry.key == keys::job(job)) {
        reigns.push(Reign::from(Definition::decode(&entry.key, &entry.value).expect("what sync wrote")));
    }
    let began = reigns.iter().map(|reign| reign.since).min().unwrap_or_default();
    (Dues::new(reigns), began)
}

/// The first and the last instant that each record of a scheduled fire stands for, by job.
fn covered(store: &[Entry]) -> BTreeMap<JobName, Vec<(Timestamp, Timestamp)>> {
    let mut covered = BTreeMap::<JobName, Vec<_>>::new();
    for entry in store.iter().filter(|entry| entry.key.starts_with("history/")) {
        if let Some(Fire { job, id: FireId::Scheduled(first), .. }) = keys::fire_of(&entry.key) {
            let last = values::span_of(&entry.value).map_or(first, |span| span.last);
            covered.entry(job).or_default().push((first, last));
        }
    }
    covered
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
