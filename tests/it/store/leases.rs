//! Leases on each store, with real time: they run out, renewals keep them, and their keys go with them.

use std::time::{Duration, Instant};

use fleetcron::store::*;
use tokio::time::timeout;

use crate::etcd::{Etcd, SOON, Version};

#[tokio::test]
async fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    check(&super::sqlite::open(&folder.path().join("store.db")).await).await;
}

#[tokio::test]
async fn on_etcd_3_4() {
    check(&Etcd::start(Version::V34).await.open("leases").await).await;
}

#[tokio::test]
async fn on_etcd_3_6() {
    check(&Etcd::start(Version::V36).await.open("leases").await).await;
}

async fn check(store: &Store) {
    // Nothing shorter than 2 s is granted, and less than a second counts as one.
    let short = store.grant(Duration::from_millis(1)).await.unwrap();
    assert_eq!(short.ttl, SHORTEST_LEASE);
    let kept = store.grant(Duration::from_millis(1500)).await.unwrap();
    assert_eq!(kept.ttl, SHORTEST_LEASE);
    assert_ne!(short.id, kept.id);
    let puts = [
        Op::put_on("short/1", "", short.id),
        Op::put_on("short/2", "", short.id),
        Op::put_on("kept", "", kept.id),
        Op::put_on("freed", "", short.id),
    ];
    let put = store.txn(Txn::new().then(puts)).await.unwrap();
    // A put without the lease takes the key off it.
    store.txn(Txn::new().then([Op::put("freed", "")])).await.unwrap();

    let began = Instant::now();
    let mut watch = store.watch(KeyRange::prefix("short/"), put.revision.next()).await.unwrap();
    let gone = timeout(SOON, async {
        loop {
            tokio::select! {
                seen = watch.next() => {
                    let seen = seen.unwrap();
                    if !seen.events.is_empty() {
                        return seen.events;
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(400)) => {
                    store.renew(kept.id).await.unwrap();
                }
            }
        }
    });
    let gone = gone.await.unwrap();
    assert!(began.elapsed() > Duration::from_secs(1), "never early");
    let [Event::Delete { key: one, mod_revision: at }, Event::Delete { key: two, mod_revision }] = &gone[..]
    else {
        panic!("both keys go at once: {gone:?}");
    };
    assert_eq!((one.as_str(), two.as_str(), at), ("short/1", "short/2", mod_revision));
    assert_eq!(store.renew(short.id).await, Err(StoreError::LeaseGone));
    assert_eq!(store.revoke(short.id).await, Ok(()));
    let late = Txn::new().then([Op::put_on("late", "", short.id)]);
    assert_eq!(store.txn(late).await, Err(StoreError::LeaseGone));

    let left: Vec<_> = store.list(KeyRange::prefix("")).await.unwrap().entries;
    let left: Vec<_> = left.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(left, ["freed", "kept"]);
    store.revoke(kept.id).await.unwrap();
    assert_eq!(store.get("kept").await.unwrap(), None);
}
