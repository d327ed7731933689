//! Commands that change the store.

use std::process::Stdio;

use fleetcron::record::Outcome;
use fleetcron::store::{Event, Seen, keys, values};
use serde_json::json;

use super::*;

const ID: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

fn jobs(names: &[&str]) -> String {
    let job =
        |name: &&str| format!("[jobs.{name}]\nschedule = '0 2 * * *'\ntimezone = 'UTC'\ncommand = 'true'\n");
    names.iter().map(job).collect()
}

impl Desk {
    fn names(&self) -> Vec<String> {
        self.json(&["jobs"]).iter().map(|row| row["job"].as_str().unwrap().to_owned()).collect()
    }

    fn requests(&self) -> Vec<String> {
        self.in_store(async |store| {
            let listing = store.list(keys::requests()).await.unwrap();
            listing.entries.into_iter().map(|entry| entry.key).collect()
        })
    }
}

#[test]
fn sync_shows_the_plan_and_makes_the_store_equal() {
    let desk = Desk::with_jobs(&jobs(&["a", "b", "c"]));
    desk.write("jobs.toml", jobs(&["a", "b", "d"]).replacen("0 2", "0 3", 1));
    let said = desk.run(&["sync", "jobs.toml", "--dry-run"]).ended_with(0);
    assert!(said.out.contains("+ d") && said.out.contains("~ a") && said.out.contains("- c"), "{said:#?}");
    assert_eq!(desk.names(), ["a", "b", "c"]);
    let rows = desk.json(&["sync", "jobs.toml", "--dry-run"]);
    assert_eq!(rows[0], json!({"job": "d", "change": "add", "fields": []}));
    assert_eq!(rows[1], json!({"job": "a", "change": "change", "fields": ["schedule"]}));
    desk.run(&["sync", "jobs.toml"]).ended_with(0);
    assert_eq!(desk.names(), ["a", "b", "d"]);
    let said = desk.run(&["sync", "jobs.toml"]).ended_with(0);
    assert!(said.err.contains("the store has this already"), "{said:#?}");
}

#[test]
fn sync_removes_more_than_half_only_when_told_to() {
    let desk = Desk::with_jobs(&jobs(&["a", "b", "c"]));
    desk.write("jobs.toml", jobs(&["a"]));
    for args in [&["sync", "jobs.toml"][..], &["sync", "jobs.toml", "--yes"]] {
        let said = desk.run(args).ended_with(1);
        assert!(said.err.contains("2 of the 3 jobs") && said.err.contains("--prune"), "{said:#?}");
    }
    assert_eq!(desk.names(), ["a", "b", "c"]);
    desk.run(&["sync", "jobs.toml", "--prune"]).ended_with(0);
    assert_eq!(desk.names(), ["a"]);
}

#[test]
fn files_that_say_nothing_remove_nothing() {
    let desk = Desk::with_jobs(&jobs(&["a", "b", "c"]));
    desk.write("none.toml", "# nothing yet\n");
    desk.run(&["sync", "none.toml", "--prune"]).refused_with(2, "no job");
    // Two of three files are there; the third had jobs before it became empty.
    desk.write("d/1.toml", jobs(&["a"]));
    desk.write("d/2.toml", jobs(&["b"]));
    desk.write("d/3.toml", "");
    let said = desk.run(&["sync", "d", "--prune"]).ended_with(2);
    assert!(
        said.err.contains("3.toml is ignored: the file is empty") && said.err.contains("nothing is applied"),
        "{said:#?}"
    );
    desk.write("d/3.toml", "[jobs.c]\nschedule = ");
    desk.run(&["sync", "d", "--prune"]).ended_with(2);
    desk.run(&["sync", "d", "missing.toml", "--prune"]).ended_with(2);
    assert_eq!(desk.names(), ["a", "b", "c"]);
    // Who names the source means it.
    desk.write("none.toml", "[source]\nname = 'default'\n");
    desk.run(&["sync", "none.toml"]).ended_with(1);
    desk.run(&["sync", "none.toml", "--prune"]).ended_with(0);
    assert_eq!(desk.names(), [] as [&str; 0]);
}

#[test]
fn a_job_of_another_source_is_named_and_taken_over_only_when_told_to() {
    let desk = Desk::with_jobs(&jobs(&["a", "b"]));
    desk.write("shop.toml", format!("[source]\nname = 'shop'\n{}", jobs(&["b", "c"])));
    let said = desk.run(&["sync", "shop.toml"]).ended_with(1);
    assert!(said.err.contains("b belongs to source default") && said.err.contains("--adopt"), "{said:#?}");
    assert_eq!(desk.names(), ["a", "b"]);
    desk.run(&["sync", "shop.toml", "--adopt"]).ended_with(0);
    let sources: Vec<_> = desk.json(&["jobs"]).iter().map(|row| row["source"].clone()).collect();
    assert_eq!(sources, ["default", "shop", "shop"]);
}

#[test]
fn start_asks_once_for_one_id() {
    let desk = Desk::with_jobs(&jobs(&["backup"]));
    let said = desk.run(&["start", "backup", "--id", ID]).ended_with(0);
    assert_eq!(said.out, format!("m-{ID}\n"));
    assert!(said.err.contains("warning: no node is registered"), "{said:#?}");
    let rows = desk.json(&["start", "backup", "--id", ID]);
    assert_eq!(rows, [json!({"job": "backup", "fire": format!("m-{ID}")})]);
    assert_eq!(desk.requests(), [format!("requests/backup/m-{ID}")]);
    // Used up by a claim, and then decided: the same request starts nothing more.
    let of = fire("backup", &format!("m-{ID}"));
    for (key, value) in [
        (keys::lock(&of), lock(of.scheduled_at())),
        (keys::record(&of), values::encode_record(&record(of.clone(), Outcome::Succeeded, Some(0), None))),
    ] {
        desk.in_store(async |store| {
            let all = [keys::request(&of), keys::lock(&of), keys::record(&of)];
            store.txn(Txn::new().then(all.map(Op::delete))).await.unwrap();
            store.txn(Txn::new().then([Op::put(key, value)])).await.unwrap();
        });
        let said = desk.run(&["start", "backup", "--id", ID]).ended_with(0);
        assert!(said.err.contains("was asked for before"), "{said:#?}");
        assert_eq!(desk.requests(), [] as [&str; 0]);
    }
}

#[test]
fn each_start_is_a_new_request() {
    let desk = Desk::with_jobs(&jobs(&["backup"]));
    desk.run(&["start", "backup"]).ended_with(0);
    desk.run(&["start", "backup"]).ended_with(0);
    assert_eq!(desk.requests().len(), 2);
}

#[test]
fn a_job_that_is_not_there_is_not_started() {
    let desk = Desk::with_jobs(&jobs(&["backup"]));
    desk.run(&["start", "bckup"]).refused_with(1, "no job is called bckup; did you mean backup?");
    desk.run(&["start", "Backup!"]).refused_with(2, "a name has 1 to 64");
    desk.run(&["start", "backup", "--id", "7"]).ended_with(2);
    assert_eq!(desk.requests(), [] as [&str; 0]);
}

/// Starts a job that a daemon would give this record, and waits.
fn start_and_wait(outcome: Outcome, exit_code: Option<i32>, signal: Option<i32>, args: &[&str]) -> Said {
    let desk = Desk::with_jobs(&jobs(&["backup"]));
    let mut command = desk.command(&[&["start", "backup", "--wait"], args].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    desk.in_store(async |store| {
        let mut requests = store.follow(keys::requests());
        let asked = loop {
            let found = match requests.next().await {
                Seen::All { entries, .. } => entries.first().map(|entry| entry.key.clone()),
                Seen::Changes { events, .. } => events.first().map(Event::key).map(str::to_owned),
                Seen::OutOfTouch { error } => panic!("{error}"),
            };
            if let Some(key) = found {
                break keys::fire_requested(&key).unwrap();
            }
        };
        let unrun = exit_code.is_none() && signal.is_none();
        let record = match unrun {
            true => unrun_record(asked.clone(), outcome),
            false => record(asked.clone(), outcome, exit_code, signal),
        };
        let ops = [
            Op::delete(keys::request(&asked)),
            Op::put(keys::record(&asked), values::encode_record(&record)),
        ];
        store.txn(Txn::new().then(ops)).await.unwrap();
    });
    Said::of(child.wait_with_output().unwrap())
}

fn unrun_record(fire: Fire, outcome: Outcome) -> Record {
    unrun(fire, outcome, "overlap")
}

#[test]
fn start_and_wait_exits_as_the_command_did() {
    for (outcome, exit_code, signal, code) in [
        (Outcome::Succeeded, Some(0), None, 0),
        (Outcome::Failed, Some(3), None, 3),
        (Outcome::Failed, None, Some(9), 137),
        (Outcome::TimedOut, None, Some(15), 143),
        (Outcome::TimedOut, Some(0), None, 1),
        // The job counts it as success; the caller knows what it means.
        (Outcome::Succeeded, Some(4), None, 4),
        (Outcome::Skipped, None, None, 125),
    ] {
        let said = start_and_wait(outcome, exit_code, signal, &["--output", "json"]).ended_with(code);
        let row: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(row["outcome"], outcome.word());
    }
    let said = start_and_wait(Outcome::Failed, Some(3), None, &[]).ended_with(3);
    assert!(said.out.starts_with("JOB") && said.out.contains("failed"), "{said:?}");
}
