//! A real daemon walks through nights on which the clock changes: its records are exactly the instants that a second
//! implementation of the schedule's rules finds.
//!
//! The daemon's clock is injected (`FLEETCRON_TEST_CLOCK`): it begins before the change and runs many times as fast as
//! real time. In the middle of the walk, which is in a repeated hour where there is one, the daemon is stopped and
//! started again.

use std::collections::BTreeSet;

use fleetcron::record::Outcome;
use fleetcron::schedule::Timestamp;
use fleetcron::store::keys;
use fleetcron::store::values::Definition;

use crate::fleet::{Fleet, name};
use crate::schedule::brute::Walked;

/// How fast the injected clock runs. A minute must be long against the time a busy machine takes to wake a process.
const PACE: i64 = 360;
const HOUR: i64 = 3600;
/// How long before a change a walk begins, and how long after it it ends.
const BEFORE: i64 = HOUR;
const AFTER: i64 = 3 * HOUR;

/// Six kinds of jobs, so that each rule of the oracle has its own: by real time, by the clock at a time that may be
/// missing or repeated, several such times, every minute of an hour by list, daily, and off the hour.
const KINDS: [(&str, &str); 6] = [
    ("quarters", "*/15 * * * *"),
    ("hourly", "30 * * * *"),
    ("at-change", "30 HOUR * * *"),
    ("twice-at-change", "10,50 HOUR * * *"),
    ("daily", "0 0 * * *"),
    ("by-list", "20 0-23 * * *"),
];

/// The changes of these zones in one year: an hour on and back, half an hour, at midnight, and against the season.
const ZONES: [&str; 4] = ["America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca"];
const YEAR: std::ops::Range<i64> = 1_735_689_600..1_767_225_600; // 2025

#[tokio::test]
async fn a_daemon_records_exactly_the_oracles_instants_on_nights_when_the_clock_changes() {
    let here = tokio::task::LocalSet::new();
    here.run_until(all_walks()).await;
}

async fn all_walks() {
    let mut walks = tokio::task::JoinSet::new();
    for zone in ZONES {
        let changes: Vec<i64> =
            Walked::new(zone).changes.into_iter().filter(|at| YEAR.contains(at)).collect();
        assert_eq!(changes.len(), 2, "{zone} changes its clock twice in 2025");
        for change in changes {
            walks.spawn_local(walk(zone, change));
        }
    }
    while let Some(walked) = walks.join_next().await {
        println!("{}", walked.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
    }
}

async fn walk(zone: &'static str, change: i64) -> String {
    let fleet = Fleet::on_sqlite().await;
    let jobs = fleet.path("jobs.toml");
    std::fs::write(&jobs, job_file(zone, change, &fleet.marking("true"))).unwrap();
    // The middle of a repeated hour; after a gap just some time.
    let middle = change + 25 * 60;
    let begun = change - BEFORE;

    let mut node = fleet.node("n").jobs(&jobs).clock(&clock(begun)).ready().await;
    let marker = format!("{}Z", at(middle).format("%Y%m%dT%H%M%S"));
    fleet
        .wait_until("the first half", async || {
            fleet.records().await.iter().any(|record| record.fire.id.to_string() >= marker)
        })
        .await;
    node.kill();
    // Where it was: what it has run since is not run again, whatever the next clock says.
    let mut node = fleet.node("n").jobs(&jobs).clock(&clock(middle)).ready().await;
    let end = at(change + AFTER).format("%Y%m%dT%H%M%SZ").to_string();
    fleet
        .wait_until("the second half", async || {
            fleet.records().await.iter().any(|record| record.fire.id.to_string() >= end)
        })
        .await;
    node.stop(&fleet).await;

    let mut fires = 0;
    for (job, expr) in kinds(zone, change) {
        let since = since(&fleet, job).await;
        let expected: BTreeSet<i64> = Walked::new(zone)
            .walk(&expr, since)
            .into_iter()
            .filter(|at| (since + 1..=change + AFTER).contains(at))
            .collect();
        let records = fleet.records_of(job).await;
        let recorded: Vec<i64> = records
            .iter()
            .map(|record| record.fire.scheduled_at().timestamp())
            .filter(|at| *at <= change + AFTER)
            .collect();
        assert_eq!(
            recorded.iter().copied().collect::<BTreeSet<i64>>(),
            expected,
            "{zone}, change at {}: {job} {expr}\n{}",
            at(change),
            fleet.logs()
        );
        assert_eq!(recorded.len(), expected.len());
        let done = records.iter().filter(|record| record.fire.scheduled_at() <= at(change + AFTER));
        for record in done {
            assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
        }
        fires += expected.len();
    }
    // One mark for each record: nothing ran twice, before and after the restart.
    let marks = fleet.marks();
    let distinct: BTreeSet<_> = marks.iter().map(|(job, fire, _)| (job, fire)).collect();
    assert_eq!(marks.len(), distinct.len());
    format!("{zone} {}: {fires} fires", at(change))
}

fn kinds(zone: &'static str, change: i64) -> Vec<(&'static str, String)> {
    // The hour on the clock that is missing or comes twice.
    let zone: fleetcron::schedule::Zone = zone.parse().unwrap();
    let (before, after) = (zone.local(at(change - 1)), zone.local(at(change)));
    let hour = before.wall().max(after.wall()).format("%H").to_string();
    let hour: u32 = hour.parse().unwrap();
    let touched = match before.offset_seconds() < after.offset_seconds() {
        // A gap: the hour that the clock would have begun.
        true => zone.local(at(change - 60)).wall().format("%H").to_string().parse::<u32>().unwrap() + 1,
        // A repeat: the hour that the clock shows again.
        false => hour,
    };
    KINDS.map(|(job, expr)| (job, expr.replace("HOUR", &(touched % 24).to_string()))).to_vec()
}

fn job_file(zone: &'static str, change: i64, command: &str) -> String {
    let mut text = format!("[defaults]\ntimezone = {zone:?}\noverlap = 'allow'\n");
    for (job, expr) in kinds(zone, change) {
        text.push_str(&format!("[jobs.{job}]\nschedule = {expr:?}\ncommand = {command:?}\n"));
    }
    text
}

async fn since(fleet: &Fleet, job: &str) -> i64 {
    let key = keys::job(&name(job));
    let entry = fleet.store.get(&key).await.unwrap().unwrap();
    Definition::decode(&key, &entry.value).unwrap().since.timestamp()
}

fn clock(begun: i64) -> String {
    format!("{}*{PACE}", at(begun).format("%FT%TZ"))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_timestamp(second, 0).unwrap()
}
