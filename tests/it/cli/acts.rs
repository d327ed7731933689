//! The operators' acts: pauses, drains, nodes that are forgotten, and what is written down of them.

use fleetcron::store::values::{Epoch, decode_record};
use serde_json::{Value, json};

use super::*;

const JOBS: &str = "[jobs.backup]\nschedule = '0 2 * * *'\ntimezone = 'UTC'\ncommand = 'true'\n\
                    [jobs.report]\nschedule = '0 3 * * *'\ntimezone = 'UTC'\ncommand = 'true'\n";

impl Desk {
    fn has(&self, key: &str) -> bool {
        self.in_store(async |store| store.get(key).await.unwrap().is_some())
    }

    /// What, and about what, the newest first.
    fn acts(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        self.json(&["acts"]).iter().map(|act| (text(&act["what"]), text(&act["subject"]))).collect()
    }

    fn put_epoch(&self, name: &str) {
        let epoch = Epoch::new(node_start(), 1, "x".to_owned());
        self.put([(keys::epoch(&name.parse().unwrap()), values::encode(&epoch))]);
    }
}

/// A lock of db-1 with this hold.
fn lock_with(hold: Option<u64>) -> Vec<u8> {
    let due = at("2026-11-30T02:00:00Z");
    let hold = hold.map(std::time::Duration::from_millis);
    let policy = LockPolicy {
        promise: Promise::AtLeastOnce,
        last_start: due,
        hold,
        retry: None,
        slot: None,
        task: None,
    };
    values::encode(&Lock::held(node(), node_start(), 2, due, policy))
}

#[test]
fn a_pause_shows_why_and_until_when_and_is_ended_by_resume() {
    let desk = Desk::with_jobs(JOBS);
    let now = "2026-11-30T01:00:00Z";
    let said =
        desk.run_at(now, &["pause", "backup", "--until", "06:00", "--reason", "new disk"]).ended_with(0);
    assert_eq!(said.err, "fleetcron: backup is paused until 2026-11-30T06:00:00Z\n");
    let row = &desk.json(&["jobs", "backup"])[0];
    assert_eq!(
        (&row["paused"], &row["paused_reason"], &row["paused_until"]),
        (&json!(true), &json!("new disk"), &json!("2026-11-30T06:00:00Z"))
    );
    assert!(row["paused_by"].as_str().unwrap().contains('@'));
    let table = desk.run(&["jobs"]).ended_with(0).out;
    assert!(table.contains("paused until 2026-11-30T06:00:00Z (new disk)"), "{table}");
    assert_eq!(desk.json(&["jobs", "report"])[0]["paused"], false);
    desk.run(&["pause", "--all"]).ended_with(0);
    assert_eq!(desk.json(&["jobs", "report"])[0]["paused"], true);
    let said = desk.run(&["resume", "backup"]).ended_with(0);
    assert!(said.err.contains("backup goes on") && said.err.contains("all jobs are paused"), "{said:?}");
    desk.run(&["pause", "report"]).ended_with(0);
    let said = desk.run(&["resume", "--all"]).ended_with(0);
    assert!(said.err.contains("still paused by name: report\n"), "{said:?}");
    assert_eq!(desk.json(&["jobs", "backup"])[0]["paused"], false);
    let said = desk.run(&["resume", "backup"]).ended_with(0);
    assert!(said.err.contains("not paused by name"), "{said:?}");
}

impl Desk {
    /// The requests that wait.
    fn asked(&self) -> Vec<String> {
        self.in_store(async |store| {
            let listing = store.list(keys::requests()).await.unwrap();
            let asked = listing.entries.iter().map(|entry| keys::fire_requested(&entry.key).unwrap());
            asked.map(|fire| format!("{} {}", fire.job, fire.scheduled_at().to_rfc3339())).collect()
        })
    }
}

#[test]
fn resume_with_catch_up_asks_for_the_newest_instant_that_came_due_in_the_pause() {
    let more = "[jobs.all]\nschedule = '0 * * * *'\nrun_on = 'every-node'\ncommand = 'true'\n\
                [jobs.off]\nschedule = '0 * * * *'\nenabled = false\ncommand = 'true'\n";
    let desk = Desk::new();
    desk.write("jobs.toml", format!("{JOBS}{more}"));
    desk.run_at("2026-11-01T00:00:00Z", &["sync", "jobs.toml"]).ended_with(0);
    let jobs = ["backup", "report", "all", "off"];
    desk.run_at("2026-11-28T02:00:00Z", &[&["pause"][..], &jobs].concat()).ended_with(0);
    // Of the first instant in the pause, and of none.
    let said =
        desk.run_at("2026-11-28T02:30:00Z", &["resume", "backup", "report", "--catch-up"]).ended_with(0);
    assert!(said.err.contains("backup goes on, and makes good for 2026-11-28T02:00:00Z (m-"), "{said:?}");
    assert!(said.err.contains("report goes on; it has nothing to make good for"), "{said:?}");
    assert_eq!(desk.asked(), ["backup 2026-11-28T02:00:00+00:00"]);
    // One that is over is over: nothing is asked for again.
    desk.run_at("2026-11-30T02:30:00Z", &["resume", "backup", "report", "--catch-up"]).ended_with(0);
    let said = desk.run_at("2026-11-30T03:00:00Z", &["resume", "all", "off", "--catch-up"]).ended_with(0);
    assert!(said.err.contains("runs once, on one node, also for all\n"), "{said:?}");
    assert_eq!(desk.asked(), ["all 2026-11-30T02:00:00+00:00", "backup 2026-11-28T02:00:00+00:00"]);
    let act = &desk.json(&["acts"])[0];
    assert_eq!(act["detail"], "with catch-up of 0 jobs");
}

#[test]
fn what_did_not_pass_because_of_the_pause_is_not_made_good() {
    let desk = Desk::new();
    desk.write("jobs.toml", JOBS);
    desk.run_at("2026-11-01T00:00:00Z", &["sync", "jobs.toml"]).ended_with(0);
    desk.run_at("2026-11-28T01:59:00Z", &["pause", "backup", "report"]).ended_with(0);
    // By an operator's clock that is slow, or a moment before the pause was there.
    desk.put_record(&record(fire("backup", "20261128T020000Z"), Outcome::Failed, Some(1), None));
    desk.put_record(&unrun(fire("report", "20261128T030000Z"), Outcome::Missed, "paused"));
    let said =
        desk.run_at("2026-11-28T04:00:00Z", &["resume", "backup", "report", "--catch-up"]).ended_with(0);
    assert!(said.err.contains("backup goes on; it has nothing"), "{said:?}");
    assert_eq!(desk.asked(), ["report 2026-11-28T03:00:00+00:00"]);
}

#[test]
fn resume_of_all_catches_up_with_each_job_that_is_not_paused_by_name() {
    let desk = Desk::new();
    // More than one transaction takes.
    desk.write("jobs.toml", many_jobs(120));
    desk.run_at("2026-11-01T00:00:00Z", &["sync", "jobs.toml"]).ended_with(0);
    desk.run_at("2026-11-28T01:00:00Z", &["pause", "--all"]).ended_with(0);
    desk.run_at("2026-11-28T01:30:00Z", &["pause", "job-007"]).ended_with(0);
    let said = desk.run_at("2026-11-28T03:00:00Z", &["resume", "--all", "--catch-up"]).ended_with(0);
    assert!(said.err.contains("all jobs go on, and 119 of them make good"), "{said:?}");
    let asked = desk.asked();
    assert!(asked.len() == 119 && !asked.iter().any(|asked| asked.starts_with("job-007")), "{asked:?}");
    assert_eq!(desk.json(&["acts"])[0]["detail"], "with catch-up of 119 jobs");
    assert!(!desk.has("paused/~all"));
}

#[test]
fn what_cannot_be_paused_is_said_and_changes_nothing() {
    let desk = Desk::with_jobs(JOBS);
    desk.run(&["pause", "report", "bakup"]).refused_with(1, "no job is called bakup; did you mean backup?");
    desk.run(&["resume", "bakup"]).refused_with(1, "did you mean backup?");
    desk.run(&["pause", "backup", "--until", "soon"]).refused_with(2, "--until: \"soon\" is not a time");
    desk.run(&["pause", "backup", "--until", "2020-01-01"]).refused_with(2, "is not to come");
    for args in [&["pause"][..], &["resume"], &["pause", "backup", "--all"], &["drain", "A/b"], &["forget"]] {
        desk.run(args).ended_with(2);
    }
    assert!(!desk.has("paused/report") && !desk.has("paused/backup"));
    let away = "sqlite:/nowhere/fleetcron.db";
    for args in [&["pause", "backup"][..], &["resume", "--all"], &["drain", "a"], &["forget", "a"], &["acts"]]
    {
        desk.run(&[args, &["--store", away]].concat()).ended_with(3);
    }
}

#[test]
fn every_act_is_written_down() {
    let desk = Desk::with_jobs(JOBS);
    desk.run(&["sync", "jobs.toml"]).ended_with(0);
    desk.run(&["pause", "backup", "report", "--reason", "x"]).ended_with(0);
    desk.run(&["start", "backup", "--id", "01ARZ3NDEKTSV4RRFFQ69G5FAV"]).ended_with(0);
    desk.run(&["start", "backup", "--id", "01ARZ3NDEKTSV4RRFFQ69G5FAV"]).ended_with(0);
    desk.run(&["resume", "backup"]).ended_with(0);
    desk.run(&["resume", "backup"]).ended_with(0);
    desk.put_epoch("db-1");
    desk.run(&["drain", "db-1"]).ended_with(0);
    desk.run(&["undrain", "db-1"]).ended_with(0);
    desk.run(&["forget", "db-1"]).ended_with(0);
    let acts = desk.acts();
    let mut of_pause = [acts[5].clone(), acts[6].clone()];
    of_pause.sort();
    let pair = |what: &str, subject: &str| (what.to_owned(), subject.to_owned());
    assert_eq!(of_pause, [pair("pause", "backup"), pair("pause", "report")]);
    assert_eq!(
        [&acts[..5], &acts[7..]].concat(),
        [
            pair("forget", "db-1"),
            pair("undrain", "db-1"),
            pair("drain", "db-1"),
            pair("resume", "backup"),
            pair("start", "backup/m-01ARZ3NDEKTSV4RRFFQ69G5FAV"),
            pair("sync", "default"),
        ]
    );
    let rows = desk.json(&["acts"]);
    assert_eq!(rows[7]["detail"], "2 added, 0 changed, 0 removed");
    assert_eq!(desk.json(&["acts", "--limit", "2"]).len(), 2);
    let since = rows[2]["at"].as_str().unwrap();
    assert_eq!(desk.json(&["acts", "--since", since]).len(), 3);
    let table = desk.run(&["acts"]).ended_with(0).out;
    assert!(table.starts_with("AT ") && table.contains("forget"), "{table}");
}

#[test]
fn a_drained_node_is_shown_and_one_that_nobody_knows_is_warned_about() {
    let desk = Desk::with_jobs(JOBS);
    let value = values::encode(&presence(&[], &[], at("2026-11-30T02:00:00Z")));
    desk.put([(keys::node(&node()), value)]);
    let said = desk.run(&["drain", "db-1", "--reason", "new disks", "--wait"]).ended_with(0);
    assert!(!said.err.contains("warning") && said.err.contains("runs nothing any more"), "{said:?}");
    let row = &desk.json(&["nodes"])[0];
    assert_eq!((&row["drained"], &row["drained_reason"]), (&json!(true), &json!("new disks")));
    assert!(desk.run(&["nodes"]).out.contains("drained (new disks)"));
    let said = desk.run(&["drain", "db-2"]).ended_with(0);
    assert!(said.err.contains("warning: no node called db-2"), "{said:?}");
    assert!(desk.run(&["nodes"]).err.contains("drained and not registered: db-2"));
    let mut own = desk.command(&["undrain"]);
    let said = Said::of(own.env("FLEETCRON_NODE", "db-1").output().unwrap()).ended_with(0);
    assert!(said.err.contains("db-1 may claim again"), "{said:?}");
    assert_eq!(desk.json(&["nodes"])[0]["drained"], false);
}

#[test]
fn a_node_that_is_there_or_unknown_is_not_forgotten() {
    let desk = Desk::with_jobs(JOBS);
    desk.put_epoch("db-1");
    desk.run(&["forget", "db-7-x"]).refused_with(1, "knows no node called db-7-x");
    desk.run(&["forget", "db1"]).refused_with(1, "did you mean db-1?");
    let value = values::encode(&presence(&[], &[], at("2026-11-30T02:00:00Z")));
    desk.put([(keys::node(&node()), value)]);
    desk.run(&["forget", "db-1", "--yes-it-is-dead"]).refused_with(1, "db-1 is registered");
    assert!(desk.has("epochs/db-1"));
}

#[test]
fn what_a_forgotten_node_held_is_lost_by_the_operators_word() {
    let desk = Desk::with_jobs(JOBS);
    for (flag, holds) in
        [(None, [Some(700), None]), (Some("--yes-it-is-dead"), [Some(900_000), Some(60_000)])]
    {
        desk.put_epoch("db-1");
        let fires = [fire("backup", "20261130T020000Z"), fire("report", "20261130T030000Z")];
        for (of, hold) in fires.iter().zip(holds) {
            desk.in_store(async |store| {
                store.txn(Txn::new().then([Op::delete(keys::record(of))])).await.unwrap();
            });
            desk.put([(keys::lock(of), lock_with(hold))]);
        }
        let began = std::time::Instant::now();
        desk.run(&["drain", "db-1"]).ended_with(0);
        let args: Vec<_> = ["forget", "db-1"].into_iter().chain(flag).collect();
        let said = desk.run(&args).ended_with(0);
        assert!(said.err.contains("2 of its runs are recorded as lost"), "{said:?}");
        // The hold is waited for, from when the holder was seen to be gone.
        if flag.is_none() {
            assert!(began.elapsed() >= std::time::Duration::from_millis(700));
            assert!(said.err.contains("waiting"), "{said:?}");
        }
        for of in &fires {
            let key = keys::record(of);
            let entry = desk.in_store(async |store| store.get(&key).await.unwrap().unwrap());
            let record = decode_record(of.clone(), &entry.key, &entry.value).unwrap();
            assert_eq!((record.outcome, record.reason.as_deref()), (Outcome::Lost, Some("node forgotten")));
            assert!(matches!(&record.writer, Writer::Operator(by) if by.contains('@')));
            assert_eq!(record.run.unwrap().attempt, 2);
            assert!(!desk.has(&keys::lock(of)));
        }
        assert!(!desk.has("epochs/db-1") && !desk.has("drained/db-1"));
    }
    assert_eq!(desk.json(&["runs", "backup"])[0]["outcome"], "lost");
    assert_eq!(desk.json(&["acts", "-n", "1"])[0]["detail"], "2 runs lost, no hold waited for");
}
