//! What follows an attempt that failed, whatever dies while the fire waits for it.

use chrono::TimeDelta;
use fleetcron::fire::Lane;
use fleetcron::store::values::{HoldBack, LockState};

use super::*;

async fn each_store() -> Vec<Fleet> {
    vec![Fleet::on_sqlite().await, Fleet::on_etcd(Version::V36).await]
}

/// A job `once` that runs this after it has left its mark.
async fn with_job(fleet: &Fleet, command: &str, fields: &str) {
    let command = quoted(&fleet.marking(command));
    fleet.sync(&format!("[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = {command}\n{fields}\n")).await;
}

/// Fails until its third attempt.
const THIRD_TIME: &str = "[ $FLEETCRON_ATTEMPT = 3 ]";

/// The lock of a fire, as soon as it waits for its next attempt.
async fn waiting(fleet: &Fleet, fire: &Fire) -> Lock {
    fleet
        .wait_for("the lock to wait", async || {
            fleet.lock(fire).await.filter(|lock| lock.state == LockState::Waiting)
        })
        .await
}

fn attempts(fleet: &Fleet) -> Vec<u32> {
    fleet.marks().into_iter().map(|(_, _, attempt)| attempt).collect()
}

#[tokio::test]
async fn what_fails_twice_and_then_succeeds_has_one_record_of_three_attempts() {
    for fleet in each_store().await {
        let retry = "retry = { attempts = 3, delay = '200ms', factor = 1, jitter = 0 }";
        // What is known to have failed may be tried again under either promise.
        for promise in ["at-least-once", "at-most-once"] {
            with_job(&fleet, THIRD_TIME, &format!("{retry}\npromise = '{promise}'")).await;
            let mut node = fleet.node("a").ready().await;
            let fire = fleet.ask("once").await;
            let record = fleet.wait_for_record(&fire).await;
            let run = record.run.as_ref().unwrap();
            assert_eq!(
                (record.outcome, run.attempt, record.reason.as_deref()),
                (Outcome::Succeeded, 3, None)
            );
            let past: Vec<_> =
                record.past.iter().map(|past| (past.attempt, past.outcome, past.exit_code)).collect();
            assert_eq!(past, [(1, Outcome::Failed, Some(1)), (2, Outcome::Failed, Some(1))]);
            let between = record.past[1].started_at.unwrap() - record.past[0].ended_at.unwrap();
            assert!(between >= TimeDelta::milliseconds(200), "{between}");
            node.stop(&fleet).await;
        }
        println!("{}", fleet.check_books(Gaps::None).await);
    }
}

#[tokio::test]
async fn attempts_that_are_used_up_leave_the_last_failure() {
    let fleet = Fleet::on_sqlite().await;
    with_job(&fleet, "exit $FLEETCRON_ATTEMPT", "retry = { attempts = 2, delay = '10ms' }").await;
    let mut node = fleet.node("a").ready().await;
    let fire = fleet.ask("once").await;
    let record = fleet.wait_for_record(&fire).await;
    let run = record.run.as_ref().unwrap();
    assert_eq!((record.outcome, run.attempt, run.exit_code), (Outcome::Failed, 2, Some(2)));
    assert_eq!(record.past.len(), 1);
    node.stop(&fleet).await;
}

#[tokio::test]
async fn only_the_failures_that_are_listed_are_followed_by_another_attempt() {
    let fleet = Fleet::on_sqlite().await;
    let mut node = fleet.node("a").ready().await;
    let more = "retry = { attempts = 2, delay = '10ms', on = [75, 'timeout'] }\ntimeout = '300ms'";
    for (command, outcome, last) in [
        ("exit 75", Outcome::Failed, 2),
        ("exit 1", Outcome::Failed, 1),
        ("exec sleep 60", Outcome::TimedOut, 2),
        ("kill -9 $$", Outcome::Failed, 1),
    ] {
        with_job(&fleet, command, more).await;
        let fire = fleet.ask("once").await;
        let record = fleet.wait_for_record(&fire).await;
        let attempt = record.run.as_ref().unwrap().attempt;
        assert_eq!(
            (record.outcome, attempt, record.past.len()),
            (outcome, last, last as usize - 1),
            "{command}"
        );
    }
    node.stop(&fleet).await;
}

#[tokio::test]
async fn what_could_not_start_is_tried_again_and_what_is_refused_is_not() {
    let fleet = Fleet::on_sqlite().await;
    let retry = "retry = { attempts = 2, delay = '10ms' }";
    let mut node = fleet.node("a").ready().await;
    for (fields, outcome, attempt) in
        [("workdir = '/no/such/folder'", Outcome::Failed, 2), ("timeout = '1m'", Outcome::Succeeded, 1)]
    {
        with_job(&fleet, "true", &format!("{retry}\n{fields}")).await;
        let fire = fleet.ask("once").await;
        let record = fleet.wait_for_record(&fire).await;
        assert_eq!((record.outcome, record.run.unwrap().attempt), (outcome, attempt), "{fields}");
    }
    node.stop(&fleet).await;
    let settings = fleet.path("strict.toml");
    fs::write(&settings, "allow_users = []\n").unwrap();
    let config = settings.display().to_string();
    let mut strict = fleet.node("b").with(&["--config", &config]).ready().await;
    let fire = fleet.ask("once").await;
    let record = fleet.wait_for_record(&fire).await;
    assert_eq!((record.outcome, record.past.len()), (Outcome::Refused, 0));
    strict.stop(&fleet).await;
}

#[tokio::test]
async fn an_attempt_that_could_not_start_in_time_is_not_waited_for() {
    for fleet in each_store().await {
        let fields = "start_within = '10s'\nretry = { attempts = 3, delay = '20s', jitter = 0 }";
        with_job(&fleet, "exit 7", fields).await;
        let mut node = fleet.node("a").ready().await;
        let fire = fleet.ask("once").await;
        let record = fleet.wait_for_record(&fire).await;
        let run = record.run.as_ref().unwrap();
        assert_eq!((record.outcome, run.attempt, run.exit_code), (Outcome::Failed, 1, Some(7)));
        assert_eq!(record.reason.as_deref(), Some("it is too late for another attempt"));
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn a_daemon_killed_while_a_fire_waits_takes_it_back_and_waits_on() {
    for fleet in each_store().await {
        with_job(&fleet, "[ $FLEETCRON_ATTEMPT = 2 ]", "retry = { attempts = 2, delay = '4s', jitter = 0 }")
            .await;
        let mut node = fleet.node("a").ready().await;
        let fire = fleet.ask("once").await;
        let lock = waiting(&fleet, &fire).await;
        node.kill();
        let mut again = fleet.node("a").ready().await;
        let record = fleet.wait_for_record(&fire).await;
        let run = record.run.as_ref().unwrap();
        assert_eq!((record.outcome, run.attempt), (Outcome::Succeeded, 2));
        assert!(run.claimed_at >= lock.due.unwrap(), "{run:?} {lock:?}");
        assert_eq!(attempts(&fleet), [1, 2]);
        again.stop(&fleet).await;
        fleet.check_books(Gaps::None).await;
    }
}

#[tokio::test]
async fn a_fire_that_was_due_again_while_its_node_was_down_is_ended_when_it_is_too_late() {
    let fleet = Fleet::on_sqlite().await;
    let fields = "start_within = '4s'\nretry = { attempts = 2, delay = '2s', jitter = 0 }";
    with_job(&fleet, "exit 7", fields).await;
    let mut node = fleet.node("a").ready().await;
    let fire = fleet.ask("once").await;
    let lock = waiting(&fleet, &fire).await;
    node.kill();
    fleet.wait_until("the last start to pass", async || chrono::Utc::now() > lock.last_start).await;
    let mut again = fleet.node("a").ready().await;
    let record = fleet.wait_for_record(&fire).await;
    let run = record.run.as_ref().unwrap();
    assert_eq!((record.outcome, run.attempt, run.exit_code), (Outcome::Failed, 1, Some(7)));
    assert_eq!(record.reason.as_deref(), Some("it is too late for another attempt"));
    assert!(record.past.is_empty(), "{record:?}");
    again.stop(&fleet).await;
    fleet.check_books(Gaps::None).await;
}

#[tokio::test]
async fn a_fire_that_waits_on_a_lost_node_goes_to_another_which_waits_on() {
    for fleet in each_store().await {
        let fields = "retry = { attempts = 2, delay = '14s', jitter = 0 }\nhold = '10m'";
        with_job(&fleet, "[ $FLEETCRON_ATTEMPT = 2 ]", fields).await;
        let mut lost = fleet.node("a").ready().await;
        let fire = fleet.ask("once").await;
        let lock = waiting(&fleet, &fire).await;
        let mut other = fleet.node("b").ready().await;
        lost.lose_host();
        // At once, though the hold of the job is long: nothing runs.
        fleet
            .wait_until("the other to have it", async || {
                let now = fleet.lock(&fire).await.expect("it is there until it has its record");
                now.node.as_str() == "b" && now.state == LockState::Waiting && now.due == lock.due
            })
            .await;
        let record = fleet.wait_for_record(&fire).await;
        let run = record.run.as_ref().unwrap();
        assert_eq!((record.outcome, run.attempt, run.node.as_str()), (Outcome::Succeeded, 2, "b"));
        assert!(run.claimed_at >= lock.due.unwrap(), "{run:?} {lock:?}");
        let [past] = &record.past[..] else { panic!("one attempt before: {record:?}") };
        assert_eq!((past.node.as_str(), past.outcome), ("a", Outcome::Failed));
        other.stop(&fleet).await;
        fleet.check_books(Gaps::None).await;
    }
}

#[tokio::test]
async fn a_drained_node_leaves_what_waits_to_others() {
    for fleet in each_store().await {
        with_job(&fleet, "[ $FLEETCRON_ATTEMPT = 2 ]", "retry = { attempts = 2, delay = '2s' }").await;
        let mut drained = fleet.node("a").ready().await;
        let fire = fleet.ask("once").await;
        waiting(&fleet, &fire).await;
        let drain = values::encode(&HoldBack::new("test".to_owned(), chrono::Utc::now(), None, None));
        let key = keys::drained(&"a".parse().unwrap());
        fleet.store.txn(Txn::new().then([Op::put(key.as_str(), drain)])).await.unwrap();
        drained.wait_until_it_says(&fleet, "drained").await;
        // And one that comes later finds it.
        let mut other = fleet.node("b").ready().await;
        let record = fleet.wait_for_record(&fire).await;
        let run = record.run.as_ref().unwrap();
        assert_eq!((record.outcome, run.attempt, run.node.as_str()), (Outcome::Succeeded, 2, "b"));
        fleet.store.txn(Txn::new().then([Op::delete(key.as_str())])).await.unwrap();
        other.stop(&fleet).await;
        drained.stop(&fleet).await;
    }
}

#[tokio::test]
async fn a_fire_that_waits_for_its_next_attempt_takes_no_slot() {
    let fleet = Fleet::on_sqlite().await;
    let command = quoted(&fleet.marking("[ $FLEETCRON_ATTEMPT = 2 ]"));
    fleet
        .sync(&format!(
            "[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = {command}\n\
             retry = {{ attempts = 2, delay = '3s', jitter = 0 }}\n\
             [jobs.other]\nschedule = '0 0 1 1 *'\ncommand = 'true'\n"
        ))
        .await;
    let mut node = fleet.node("a").with(&["--slots", "1"]).ready().await;
    let fire = fleet.ask("once").await;
    let due = waiting(&fleet, &fire).await.due.unwrap();
    let other = fleet.ask("other").await;
    let ended = fleet.wait_for_record(&other).await.run.unwrap().ended_at.unwrap();
    assert!(ended < due, "{ended} {due}");
    assert_eq!(fleet.wait_for_record(&fire).await.outcome, Outcome::Succeeded);
    node.stop(&fleet).await;
}

#[tokio::test]
async fn while_a_fire_waits_no_other_of_its_lane_runs() {
    let fleet = Fleet::on_sqlite().await;
    with_job(&fleet, "[ $FLEETCRON_ATTEMPT = 2 ]", "retry = { attempts = 2, delay = '2s' }").await;
    let mut node = fleet.node("a").ready().await;
    let fire = fleet.ask("once").await;
    waiting(&fleet, &fire).await;
    let second = fleet.ask("once").await;
    assert_eq!(fleet.wait_for_record(&second).await.outcome, Outcome::Skipped);
    assert_eq!(fleet.wait_for_record(&fire).await.outcome, Outcome::Succeeded);
    node.stop(&fleet).await;
}

/// What waits in a node's own lane is that node's, however long it is away.
#[tokio::test]
async fn the_next_attempt_of_an_every_node_job_is_never_made_on_another_node() {
    for fleet in each_store().await {
        let command = quoted(&fleet.marking("[ $FLEETCRON_NODE = b ] || [ $FLEETCRON_ATTEMPT = 2 ]"));
        let fields = "run_on = 'every-node'\nretry = { attempts = 2, delay = '1s', jitter = 0 }";
        // Due once in an hour: the first two seconds are enough for both nodes.
        let soon = (chrono::Utc::now() + TimeDelta::seconds(3)).format("%Y-%m-%dT%H:%M:%SZ");
        fleet.sync(&format!("[jobs.once]\nschedule = '@at {soon}'\ncommand = {command}\n{fields}\n")).await;
        let mut lost = fleet.node("a").ready().await;
        let mut other = fleet.node("b").ready().await;
        let of_a = |record: &Record| record.fire.lane == Lane::Node("a".parse().unwrap());
        let lock = fleet
            .wait_for("the lock of a to wait", async || {
                let entries = fleet.list(keys::locks_of(&name("once"))).await.entries;
                let mut locks = entries.iter().filter_map(|entry| {
                    let lock: Lock = values::decode(&entry.key, &entry.value).ok()?;
                    (lock.node.as_str() == "a" && lock.state == LockState::Waiting).then_some(lock)
                });
                locks.next()
            })
            .await;
        lost.lose_host();
        fleet.wait_until("the loss to be seen", async || fleet.presence("a").await.is_none()).await;
        // The other one looks at the locks of a lost node at once, and this one is due by then.
        fleet
            .wait_until("it to be due", async || {
                chrono::Utc::now() > lock.due.unwrap() + TimeDelta::seconds(2)
            })
            .await;
        assert!(!fleet.records().await.iter().any(of_a), "{}", fleet.logs());
        let mut back = fleet.node("a").ready().await;
        let record =
            fleet.wait_for("the record of a", async || fleet.records().await.into_iter().find(of_a)).await;
        let run = record.run.as_ref().unwrap();
        assert_eq!(
            (record.outcome, run.attempt, run.node.as_str()),
            (Outcome::Succeeded, 2, "a"),
            "{}",
            fleet.logs()
        );
        back.stop(&fleet).await;
        other.stop(&fleet).await;
    }
}
