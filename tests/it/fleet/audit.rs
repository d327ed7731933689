//! The audit of a fleet that was hurt: the books are right, and the nodes' own journals say the same.

use serde_json::Value;

use super::*;

/// Jobs of several kinds, of which some always run.
fn jobs(fleet: &Fleet) -> String {
    [
        ("tick", "@every 1s", "true", ""),
        ("fails", "@every 3s", "exit 3", ""),
        ("slow", "@every 2s", "sleep 3", ""),
        ("wide", "@every 2s", "sleep 3", "overlap = 'allow'"),
        ("once", "@every 4s", "sleep 3", "promise = 'at-most-once'"),
        ("long", "@every 5s", "sleep 20", ""),
        ("nobody-else", "@every 4s", "sleep 3", "overlap = 'allow'\npromise = 'at-most-once'"),
    ]
    .map(|(name, schedule, command, fields)| {
        let command = quoted(&fleet.marking(command));
        format!(
            "[jobs.{name}]\nschedule = '{schedule}'\ncommand = {command}\nhold = '6s'\nkill_after = '1s'\n{fields}\n"
        )
    })
    .concat()
}

/// The rows of the audit, with the journals of these nodes, whose clocks are so far apart. Panics if it finds a fault.
#[track_caller]
pub fn clean(fleet: &Fleet, nodes: &[&Node], skew: &str) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetcron"));
    command.args(["audit", "--output", "json", "--skew", skew, "--store", &fleet.address.to_string()]);
    command.arg("--journals").args(nodes.iter().map(|node| &node.state));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let rows: Vec<Value> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    let (findings, lanes): (Vec<Value>, Vec<Value>) =
        rows.into_iter().partition(|row| row["row"] == "finding");
    assert!(output.status.success(), "{said}\n{findings:#?}\n{}", fleet.logs());
    lanes
}

/// All run on one machine, so there is one clock.
const ONE_CLOCK: &str = "0s";

/// How a node is lost.
enum Lost {
    /// With all that it runs.
    Host,
    /// Its guards go on, until their hold has passed.
    Daemon,
}

#[tokio::test]
async fn a_fleet_that_lost_a_host_has_right_books_and_its_journals_agree() {
    check(Lost::Host).await;
}

#[tokio::test]
async fn a_fleet_that_lost_a_daemon_has_right_books_and_its_journals_agree() {
    check(Lost::Daemon).await;
}

async fn check(how: Lost) {
    let fleet = Fleet::on_etcd(Version::V36).await;
    fleet.sync(&jobs(&fleet)).await;
    let mut lost = fleet.node("a").ready().await;
    let mut other = fleet.node("b").ready().await;
    fleet.wait_for_records("tick", 8).await;
    clean(&fleet, &[&lost, &other], ONE_CLOCK);
    fleet
        .wait_until("a to run what another may run again, and what not", async || {
            let locks = fleet.list(keys::locks()).await.entries;
            let of_a = |entry: &&fleetcron::store::Entry| {
                values::decode::<Lock>(&entry.key, &entry.value).unwrap().node.as_str() == "a"
            };
            let jobs: BTreeSet<String> = locks
                .iter()
                .filter(of_a)
                .filter_map(|entry| Some(keys::fire_of(&entry.key)?.job.to_string()))
                .collect();
            jobs.contains("long") || (jobs.contains("once") && jobs.contains("slow"))
        })
        .await;
    match how {
        Lost::Host => lost.lose_host(),
        Lost::Daemon => lost.kill(),
    }
    fleet
        .wait_until("b to have taken over", async || {
            let is_of_a = |record: &Record| record.past.iter().any(|past| past.node.as_str() == "a");
            fleet.records().await.iter().any(is_of_a)
        })
        .await;
    clean(&fleet, &[&lost, &other], ONE_CLOCK);
    let mut back = fleet.node("a").ready().await;
    let before = fleet.records_of("tick").await.len();
    fleet.wait_for_records("tick", before + 8).await;
    clean(&fleet, &[&back, &other], ONE_CLOCK);
    back.stop(&fleet).await;
    other.stop(&fleet).await;
    for lane in clean(&fleet, &[&back, &other], ONE_CLOCK) {
        println!("{lane}");
        assert!(lane["due"].as_u64().unwrap() > 3 && lane["gaps"] == 0, "{lane}");
    }
}

#[tokio::test]
async fn what_a_journal_tells_and_the_store_has_lost_is_found() {
    let fleet = Fleet::on_sqlite().await;
    fleet.sync(&jobs(&fleet)).await;
    let mut node = fleet.node("a").ready().await;
    let records = fleet.wait_for_records("tick", 8).await;
    node.stop(&fleet).await;
    clean(&fleet, &[&node], ONE_CLOCK);
    let gone = &records[4].fire;
    fleet.store.txn(Txn::new().then([Op::delete(keys::record(gone))])).await.unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetcron"));
    command.args(["audit", "tick", "--store", &fleet.address.to_string(), "--journals"]).arg(&node.state);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("unrecorded: {gone}: by its journal a started attempt 1")), "{text}");
}

/// The floor of a job's one lane.
async fn floor(fleet: &Fleet, job: &str) -> Option<Timestamp> {
    let entry = fleet.store.get(&keys::floor(&name(job), &fleetcron::fire::Lane::OneNode)).await.ok()??;
    let id: FireId = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
    Some(id.instant())
}

#[tokio::test]
async fn pauses_edits_removals_and_times_when_nobody_was_up_leave_no_gap() {
    let fleet = Fleet::on_sqlite().await;
    let job = |name: &str, schedule: &str| {
        let command = quoted(&fleet.marking("true"));
        format!("[jobs.{name}]\nschedule = '{schedule}'\ncommand = {command}\n")
    };
    let stays = job("stays", "@every 1s");
    fleet.sync(&[&stays[..], &job("edited", "@every 2s"), &job("gone", "@every 1s")].concat()).await;
    let mut node = fleet.node("a").ready().await;
    fleet.wait_for_records("stays", 4).await;
    fleet.act(&["pause", "stays"]);
    fleet.wait_for_records("gone", 6).await;
    fleet.act(&["resume", "stays"]);
    let before = fleet.records_of("stays").await.len();
    fleet.wait_for_records("stays", before + 2).await;
    node.kill();
    fleet.sync(&[&stays[..], &job("edited", "@every 3s")].concat()).await;
    let down = chrono::Utc::now();
    fleet
        .wait_until("some fires to pass while nobody is up", async || {
            chrono::Utc::now() > down + chrono::TimeDelta::seconds(8)
        })
        .await;
    let mut node = fleet.node("a").ready().await;
    let up = chrono::Utc::now();
    for job in ["stays", "edited"] {
        fleet.wait_until("all that was to be settled", async || floor(&fleet, job).await > Some(up)).await;
    }
    fleet
        .wait_until("the removed job's lane to be closed", async || floor(&fleet, "gone").await.is_none())
        .await;
    node.stop(&fleet).await;
    let lanes = clean(&fleet, &[&node], ONE_CLOCK);
    let of =
        |job: &str, field: &str| lanes.iter().find(|row| row["job"] == job).unwrap()[field].as_u64().unwrap();
    assert!(of("stays", "missed") >= 5 && of("edited", "missed") >= 1, "{lanes:#?}");
    assert_eq!(of("gone", "open") + of("gone", "unknown"), 0, "{lanes:#?}");
}
