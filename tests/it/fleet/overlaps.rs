//! What becomes of a fire that comes due while another of its lane runs, where it is to wait or to take its place.

use fleetcron::store::values::{HoldBack, LockState};

use super::*;

async fn each_store() -> Vec<Fleet> {
    vec![Fleet::on_sqlite().await, Fleet::on_etcd(Version::V36).await]
}

/// A job `once` whose runs go on until the gate is open.
async fn gated(fleet: &Fleet, fields: &str) {
    let gate = fleet.path("gate").display().to_string();
    let command = quoted(&fleet.marking(&format!("while [ ! -e {gate} ]; do sleep 0.05; done")));
    let hold = if fields.contains("hold") { "" } else { "hold = '6s'" };
    let more = format!("{hold}\nkill_after = '1s'");
    fleet
        .sync(&format!("[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = {command}\n{more}\n{fields}\n"))
        .await;
}

fn open_gate(fleet: &Fleet) {
    fs::write(fleet.path("gate"), "").unwrap();
}

/// Asks for a run, and waits until it runs.
async fn running(fleet: &Fleet) -> Fire {
    let before = fleet.marks().len();
    let fire = fleet.ask("once").await;
    fleet.wait_until("the command to begin", async || fleet.marks().len() > before).await;
    fire
}

/// Checks that no two runs of a job were at once, by what its records say.
async fn check_one_at_a_time(fleet: &Fleet, job: &str) {
    let mut runs: Vec<_> = fleet
        .records_of(job)
        .await
        .into_iter()
        .filter_map(|record| {
            let run = record.run?;
            Some((run.started_at?, run.ended_at?, record.fire.id.to_string()))
        })
        .collect();
    runs.sort();
    for pair in runs.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two at once: {pair:?}\n{}", fleet.logs());
    }
}

async fn check_nothing_is_asked(fleet: &Fleet) {
    let left = fleet.list(keys::requests()).await.entries;
    assert!(left.is_empty(), "requests are left: {left:?}");
}

#[tokio::test]
async fn a_queued_fire_runs_when_the_other_has_ended() {
    for fleet in each_store().await {
        gated(&fleet, "overlap = 'queue'").await;
        let mut nodes = [fleet.node("a").ready().await, fleet.node("b").ready().await];
        let first = running(&fleet).await;
        let second = fleet.ask("once").await;
        for node in &nodes {
            node.wait_until_it_says(&fleet, "waits until the other has ended").await;
        }
        open_gate(&fleet);
        for fire in [&first, &second] {
            assert_eq!(fleet.wait_for_record(fire).await.outcome, Outcome::Succeeded);
        }
        check_one_at_a_time(&fleet, "once").await;
        for node in &mut nodes {
            node.stop(&fleet).await;
        }
        fleet.check_books(Gaps::None).await;
    }
}

#[tokio::test]
async fn of_the_fires_that_wait_only_the_newest_runs() {
    for fleet in each_store().await {
        gated(&fleet, "overlap = 'queue'").await;
        let mut nodes = [fleet.node("a").ready().await, fleet.node("b").ready().await];
        let first = running(&fleet).await;
        let second = fleet.ask("once").await;
        let says = format!("fire={} ", second.id);
        nodes[0].wait_until_it_says(&fleet, &says).await;
        let third = fleet.ask("once").await;
        let skipped = fleet.wait_for_record(&second).await;
        let reason = skipped.reason.unwrap();
        assert_eq!(skipped.outcome, Outcome::Skipped, "{reason}");
        assert!(reason.starts_with(&format!("superseded by {}", third.id)), "{reason}");
        open_gate(&fleet);
        for fire in [&first, &third] {
            assert_eq!(fleet.wait_for_record(fire).await.outcome, Outcome::Succeeded);
        }
        for node in &mut nodes {
            node.stop(&fleet).await;
        }
        check_nothing_is_asked(&fleet).await;
        fleet.check_books(Gaps::None).await;
    }
}

#[tokio::test]
async fn a_queued_fire_that_waits_too_long_is_missed() {
    let fleet = Fleet::on_sqlite().await;
    gated(&fleet, "overlap = 'queue'\nstart_within = '2s'").await;
    let mut node = fleet.node("a").ready().await;
    let first = running(&fleet).await;
    let second = fleet.ask("once").await;
    let record = fleet.wait_for_record(&second).await;
    assert_eq!((record.outcome, record.reason.as_deref()), (Outcome::Missed, Some("too late")));
    open_gate(&fleet);
    assert_eq!(fleet.wait_for_record(&first).await.outcome, Outcome::Succeeded);
    node.stop(&fleet).await;
}

#[tokio::test]
async fn a_queued_fire_takes_no_slot() {
    let fleet = Fleet::on_sqlite().await;
    gated(&fleet, "overlap = 'queue'\n[jobs.other]\nschedule = '0 0 1 1 *'\ncommand = 'true'").await;
    let mut node = fleet.node("a").with(&["--slots", "2"]).ready().await;
    let first = running(&fleet).await;
    let second = fleet.ask("once").await;
    node.wait_until_it_says(&fleet, "waits until the other has ended").await;
    let other = fleet.ask("other").await;
    assert_eq!(fleet.wait_for_record(&other).await.outcome, Outcome::Succeeded);
    open_gate(&fleet);
    for fire in [&first, &second] {
        assert_eq!(fleet.wait_for_record(fire).await.outcome, Outcome::Succeeded);
    }
    node.stop(&fleet).await;
}

#[tokio::test]
async fn when_a_daemon_dies_what_it_had_queued_runs_all_the_same() {
    for fleet in each_store().await {
        gated(&fleet, "overlap = 'queue'").await;
        let mut node = fleet.node("a").ready().await;
        let first = running(&fleet).await;
        let second = fleet.ask("once").await;
        node.wait_until_it_says(&fleet, "waits until the other has ended").await;
        node.kill();
        open_gate(&fleet);
        let mut again = fleet.node("a").ready().await;
        for fire in [&first, &second] {
            assert_eq!(fleet.wait_for_record(fire).await.outcome, Outcome::Succeeded);
        }
        check_one_at_a_time(&fleet, "once").await;
        again.stop(&fleet).await;
        fleet.check_books(Gaps::None).await;
    }
}

#[tokio::test]
async fn a_fire_that_replaces_has_the_other_stopped_and_runs_when_it_has() {
    for fleet in each_store().await {
        gated(&fleet, "overlap = 'replace'").await;
        let mut nodes = [fleet.node("a").ready().await, fleet.node("b").ready().await];
        let first = running(&fleet).await;
        let second = running(&fleet).await;
        let record = fleet.wait_for_record(&first).await;
        let reason = format!("replaced by {}", second.id);
        assert_eq!((record.outcome, record.reason.as_deref()), (Outcome::Cancelled, Some(reason.as_str())));
        open_gate(&fleet);
        assert_eq!(fleet.wait_for_record(&second).await.outcome, Outcome::Succeeded);
        check_one_at_a_time(&fleet, "once").await;
        for node in &mut nodes {
            node.stop(&fleet).await;
        }
        check_nothing_is_asked(&fleet).await;
        fleet.check_books(Gaps::None).await;
    }
}

#[tokio::test]
async fn a_fire_between_two_attempts_can_be_replaced_at_once() {
    for fleet in each_store().await {
        let command = quoted(&fleet.marking("exit 1"));
        fleet
            .sync(&format!(
                "[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = {command}\noverlap = 'replace'\n\
                 retry = {{ attempts = 2, delay = '30m' }}\n"
            ))
            .await;
        let mut node = fleet.node("a").ready().await;
        let first = fleet.ask("once").await;
        node.wait_until_it_says(&fleet, "an attempt is over").await;
        let second = fleet.ask("once").await;
        let record = fleet.wait_for_record(&first).await;
        let reason = format!("replaced by {}", second.id);
        assert_eq!((record.outcome, record.reason.as_deref()), (Outcome::Cancelled, Some(reason.as_str())));
        let [past] = &record.past[..] else { panic!("one attempt before: {record:?}") };
        assert_eq!((past.outcome, past.exit_code), (Outcome::Failed, Some(1)));
        let is_waiting =
            async || fleet.lock(&second).await.is_some_and(|lock| lock.state == LockState::Waiting);
        fleet.wait_until("the second to wait", is_waiting).await;
        // Its next daemon takes it back, and one that comes later has it go.
        node.kill();
        let mut again = fleet.node("a").ready().await;
        let third = fleet.ask("once").await;
        let record = fleet.wait_for_record(&second).await;
        assert_eq!(record.reason, Some(format!("replaced by {}", third.id)));
        fleet.wait_until("the third to be claimed", async || fleet.lock(&third).await.is_some()).await;
        again.kill();
        check_nothing_is_asked(&fleet).await;
    }
}

#[tokio::test]
async fn a_fire_of_a_lost_node_that_is_to_be_replaced_is_not_run_again() {
    for fleet in each_store().await {
        gated(&fleet, "overlap = 'replace'").await;
        let mut lost = fleet.node("a").ready().await;
        let first = running(&fleet).await;
        lost.lose_host();
        let mut other = fleet.node("b").ready().await;
        let second = fleet.ask("once").await;
        let record = fleet.wait_for_record(&first).await;
        let reason = format!("its node was lost; not run again: replaced by {}", second.id);
        assert_eq!((record.outcome, record.reason), (Outcome::Lost, Some(reason)));
        open_gate(&fleet);
        assert_eq!(fleet.wait_for_record(&second).await.outcome, Outcome::Succeeded);
        other.stop(&fleet).await;
        check_nothing_is_asked(&fleet).await;
        fleet.check_books(Gaps::None).await;
    }
}

#[tokio::test]
async fn a_daemon_that_was_down_when_it_was_asked_obeys_at_its_next_start() {
    for fleet in each_store().await {
        gated(&fleet, "overlap = 'replace'\nhold = '10m'").await;
        let mut node = fleet.node("a").ready().await;
        let first = running(&fleet).await;
        node.kill();
        let mut other = fleet.node("b").ready().await;
        let second = fleet.ask("once").await;
        other.wait_until_it_says(&fleet, "waits until the other has ended").await;
        // The command goes on meanwhile, and its lock with it.
        assert!(fleet.lock(&first).await.is_some());
        let mut again = fleet.node("a").ready().await;
        let record = fleet.wait_for_record(&first).await;
        assert_eq!(record.reason, Some(format!("replaced by {}", second.id)));
        open_gate(&fleet);
        assert_eq!(fleet.wait_for_record(&second).await.outcome, Outcome::Succeeded);
        again.stop(&fleet).await;
        other.stop(&fleet).await;
        check_one_at_a_time(&fleet, "once").await;
        check_nothing_is_asked(&fleet).await;
        fleet.check_books(Gaps::None).await;
    }
}

#[tokio::test]
async fn scheduled_fires_queue_or_replace_without_a_gap_and_never_two_at_once() {
    for fleet in each_store().await {
        let command = quoted(&fleet.marking("exec sleep 1.5"));
        let job = |name: &str, overlap: &str| {
            let more = format!("overlap = '{overlap}'\nkill_after = '1s'");
            format!("[jobs.{name}]\nschedule = '@every 1s'\ncommand = {command}\n{more}\n")
        };
        fleet.sync(&format!("{}{}", job("queues", "queue"), job("replaces", "replace"))).await;
        let mut nodes = [fleet.node("a").ready().await, fleet.node("b").ready().await];
        let queued = fleet.wait_for_records("queues", 12).await;
        let replaced = fleet.wait_for_records("replaces", 8).await;
        let count =
            |records: &[Record], outcome| records.iter().filter(|record| record.outcome == outcome).count();
        assert!(count(&queued, Outcome::Succeeded) >= 4, "{queued:#?}");
        assert!(count(&queued, Outcome::Skipped) >= 1, "{queued:#?}");
        assert!(count(&replaced, Outcome::Cancelled) >= 4, "{replaced:#?}");
        for node in &mut nodes {
            node.stop(&fleet).await;
        }
        for job in ["queues", "replaces"] {
            check_one_at_a_time(&fleet, job).await;
        }
        println!("{}", fleet.check_books(Gaps::None).await);
    }
}

/// Where a daemon dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dies {
    /// The one that has the fire which is to be stopped.
    Holder,
    /// The one whose fire is to run instead.
    Other,
}

#[tokio::test]
async fn either_daemon_may_die_at_any_step_of_a_replacement() {
    for (who, point) in [
        (Dies::Holder, "run.order"),
        (Dies::Holder, "run.reap"),
        (Dies::Holder, "run.finish"),
        (Dies::Holder, "finish.send"),
        (Dies::Other, "claim.answered"),
        (Dies::Other, "stop.send"),
        (Dies::Other, "lane.wait"),
        (Dies::Other, "run.begin"),
        (Dies::Other, "run.spawn"),
    ] {
        let fleet = Fleet::on_sqlite().await;
        gated(&fleet, "overlap = 'replace'").await;
        let mut holder = fleet.node("a").ready().await;
        let first = running(&fleet).await;
        // With a node that is dropped all ends that it started.
        let mut earlier = Vec::new();
        // So it is the other that runs the next one; what is in hand it sees to all the same.
        let drain = values::encode(&HoldBack::new("test".to_owned(), chrono::Utc::now(), None, None));
        let drained = keys::drained(&"a".parse().unwrap());
        fleet.store.txn(Txn::new().then([Op::put(drained, drain)])).await.unwrap();
        let other = fleet.node("b");
        let mut other = match who {
            Dies::Holder => {
                holder.kill();
                let again = fleet.node("a").fail_at(point).start();
                earlier.push(std::mem::replace(&mut holder, again));
                other.start()
            }
            Dies::Other => other.fail_at(point).start(),
        };
        let second = fleet.ask("once").await;
        match who {
            Dies::Holder => {
                holder.wait_for_death(&fleet).await;
                let again = fleet.node("a").ready().await;
                earlier.push(std::mem::replace(&mut holder, again));
            }
            Dies::Other => {
                other.wait_for_death(&fleet).await;
                let again = fleet.node("b").ready().await;
                earlier.push(std::mem::replace(&mut other, again));
            }
        }
        let record = fleet.wait_for_record(&first).await;
        let reason = format!("replaced by {}", second.id);
        assert_eq!((record.outcome, record.reason), (Outcome::Cancelled, Some(reason)), "{who:?} at {point}");
        open_gate(&fleet);
        let record = fleet.wait_for_record(&second).await;
        assert_eq!(record.outcome, Outcome::Succeeded, "{who:?} at {point}: {record:?}");
        holder.stop(&fleet).await;
        other.stop(&fleet).await;
        check_one_at_a_time(&fleet, "once").await;
        check_nothing_is_asked(&fleet).await;
        println!("{who:?} at {point}: {}", fleet.check_books(Gaps::None).await);
    }
}
