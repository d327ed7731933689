//! The simulated store's own: faults on demand, and the same run for the same seed.

use std::time::Duration;

use fleetcron::store::sim::{Fault, Faults, Sim};
use fleetcron::store::*;
use tokio::time::{Instant, timeout};

fn put(key: &str, value: &str) -> Txn {
    Txn::new().then([Op::put(key, value)])
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_no_answer_and_the_change_is_there() {
    let sim = Sim::new(1);
    let store = sim.client("a");
    sim.at_next_change("a", Fault::LoseReply);
    let error = store.txn(put("k", "v")).await.unwrap_err();
    assert!(matches!(error, StoreError::NoAnswer { .. }), "{error}");
    assert_eq!(store.get("k").await.unwrap().unwrap().value, b"v");
}

#[tokio::test(start_paused = true)]
async fn a_late_request_is_done_after_its_client_gave_up() {
    let sim = Sim::new(1);
    let store = sim.client("a");
    sim.at_next_change("a", Fault::Delay(Duration::from_secs(7)));
    store.txn(put("k", "v")).await.unwrap_err();
    assert_eq!(store.get("k").await.unwrap(), None);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(store.get("k").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn one_client_can_be_cut_off_while_the_others_work() {
    let sim = Sim::new(1);
    let (a, b) = (sim.client("a"), sim.client("b"));
    sim.cut_off("a");
    assert!(matches!(a.txn(put("k", "a")).await, Err(StoreError::NoAnswer { .. })));
    assert!(matches!(a.get("k").await, Err(StoreError::NotReached { .. })));
    b.txn(put("k", "b")).await.unwrap();
    sim.heal("a");
    assert_eq!(a.get("k").await.unwrap().unwrap().value, b"b");
}

#[tokio::test(start_paused = true)]
async fn a_lease_takes_its_keys_with_it_while_somebody_follows() {
    let sim = Sim::new(1);
    let store = sim.client("a");
    let lease = store.grant(Duration::from_secs(5)).await.unwrap();
    let leased = Op::put_on("nodes/a", "here", lease.id);
    store.txn(Txn::new().then([leased])).await.unwrap();
    let mut follow = store.follow(KeyRange::prefix("nodes/"));
    let Seen::All { entries, .. } = follow.next().await else { panic!("the list comes first") };
    assert_eq!(entries.len(), 1);
    let began = Instant::now();
    let Seen::Changes { events, .. } = follow.next().await else { panic!("then what happens") };
    assert!(matches!(&events[..], [Event::Delete { key, .. }] if key == "nodes/a"));
    assert!(began.elapsed() <= Duration::from_secs(6));
    assert_eq!(store.renew(lease.id).await, Err(StoreError::LeaseGone));
}

#[tokio::test(start_paused = true)]
async fn following_says_once_that_it_is_out_of_touch_and_goes_on_by_itself() {
    let sim = Sim::new(1);
    let store = sim.client("a");
    let mut follow = store.follow(KeyRange::prefix(""));
    assert!(matches!(follow.next().await, Seen::All { .. }));
    sim.cut_off("a");
    assert!(matches!(follow.next().await, Seen::OutOfTouch { .. }));
    assert!(follow.since_contact() >= Duration::from_secs(4));
    sim.client("b").txn(put("k", "v")).await.unwrap();
    assert!(timeout(Duration::from_secs(60), follow.next()).await.is_err());
    sim.heal("a");
    let Seen::Changes { events, .. } = follow.next().await else { panic!("in touch again") };
    assert!(events.is_empty());
    let Seen::Changes { events, .. } = follow.next().await else { panic!("goes on") };
    assert_eq!(events.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn following_lists_again_when_the_store_forgot() {
    let sim = Sim::new(1);
    let store = sim.client("a");
    let mut follow = store.follow(KeyRange::prefix(""));
    assert!(matches!(follow.next().await, Seen::All { .. }));
    sim.cut_off("a");
    assert!(matches!(follow.next().await, Seen::OutOfTouch { .. }));
    let other = sim.client("b");
    other.txn(put("k", "1")).await.unwrap();
    other.txn(put("k", "2")).await.unwrap();
    sim.compact();
    sim.heal("a");
    let mut again = follow.next().await;
    if matches!(&again, Seen::Changes { events, .. } if events.is_empty()) {
        again = follow.next().await;
    }
    let Seen::All { entries, .. } = again else { panic!("lists again") };
    assert_eq!(entries[0].value, b"2");
}

/// Three clients that put in a world full of faults; what came of it, and when.
async fn a_run(seed: u64) -> (Vec<Entry>, Duration) {
    let sim = Sim::new(seed);
    sim.set_faults(Faults {
        lose_request: 0.1,
        lose_reply: 0.1,
        delay: Duration::from_millis(1)..Duration::from_millis(40),
        ..Faults::default()
    });
    let began = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for name in ["a", "b", "c"] {
        let store = sim.client(name);
        clients.spawn(async move {
            for n in 0..50 {
                let _ = store.txn(put(&format!("k{}", n % 7), name)).await;
            }
        });
    }
    clients.join_all().await;
    (sim.dump(), began.elapsed())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(a_run(seed))
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
