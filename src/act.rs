//! Acts: what operators asked for is written down, so that the others can see who did what.
//!
//! An act stands in the same transaction as what it tells of: neither is there without the other. It says who asked, as
//! a claim, never as proof.

use chrono::TimeDelta;
use ulid::Ulid;

use crate::schedule::Timestamp;
use crate::store::values::{self, Act};
use crate::store::{Op, PageSpec, Store, StoreError, Txn, keys};

/// How many acts are kept, give or take what one pruning removes.
pub const KEPT: usize = 10_000;
/// How long they are kept.
const KEPT_FOR: TimeDelta = TimeDelta::days(90);
/// How many go at once, at most: an act must not become slow because of old ones.
const AT_ONCE: usize = 100;
/// The kept ones are counted at one act in so many, because counting reads them all.
const COUNT_ONE_IN: f64 = 50.0;

/// What writes an act down: to be put into the transaction that does it. `what` is the command's name.
///
/// Made once for all tries of a transaction, so that one sent twice is one act.
pub fn note(by: &str, at: Timestamp, what: &str, subject: impl ToString, detail: Option<String>) -> Op {
    let act = Act::new(by.to_owned(), at, what, subject.to_string(), detail);
    Op::put(keys::act(at, Ulid::generate()), values::encode(&act))
}

/// Removes some acts that are too old, or too many. Old acts harm nobody, so an error is left to the next act.
pub async fn prune(store: &Store, now: Timestamp) {
    _ = prune_old(store, now).await;
    if store.random() * COUNT_ONE_IN < 1.0 {
        _ = prune_beyond(store, KEPT).await;
    }
}

async fn prune_old(store: &Store, now: Timestamp) -> Result<(), StoreError> {
    let some = PageSpec { limit: Some(AT_ONCE), ..PageSpec::default() };
    let old = store.page(keys::acts_before(now - KEPT_FOR), some).await?;
    remove(store, old.entries.into_iter().map(|entry| entry.key).collect()).await
}

/// Removes the oldest of those that are more than `kept`.
async fn prune_beyond(store: &Store, kept: usize) -> Result<(), StoreError> {
    let (mut oldest, mut count, mut spec) = (Vec::new(), 0, PageSpec::default());
    loop {
        let page = store.page(keys::acts(), spec.clone()).await?;
        count += page.entries.len();
        spec.after = page.entries.last().map(|entry| entry.key.clone());
        let room = AT_ONCE - oldest.len();
        oldest.extend(page.entries.into_iter().take(room).map(|entry| entry.key));
        if !page.more {
            break;
        }
    }
    oldest.truncate(count.saturating_sub(kept));
    remove(store, oldest).await
}

/// Safe when several do it at once: no key of an act is ever used again.
async fn remove(store: &Store, keys: Vec<String>) -> Result<(), StoreError> {
    if keys.is_empty() {
        return Ok(());
    }
    store.txn(Txn::new().then(keys.into_iter().map(Op::delete))).await.map(|_| ())
}

/// `user@host` of this process, as a claim.
pub fn who() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name);
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    format!("{}@{}", user.unwrap_or_else(|| "?".to_owned()), host.unwrap_or_else(|| "?".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Access, Address};

    async fn store(folder: &std::path::Path) -> Store {
        let access = Access { create: true, ..Access::default() };
        Store::open(&Address::Sqlite(folder.join("store/fleetcron.db")), &access).await.unwrap()
    }

    async fn acts(store: &Store) -> Vec<Act> {
        let listing = store.list(keys::acts()).await.unwrap();
        listing.entries.iter().map(|entry| values::decode(&entry.key, &entry.value).unwrap()).collect()
    }

    #[tokio::test]
    async fn old_acts_go_a_hundred_at_a_time_and_the_newest_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path()).await;
        let now: Timestamp = "2026-11-30T02:00:00Z".parse().unwrap();
        let ages = (0..120).map(|hours| TimeDelta::days(91) + TimeDelta::hours(hours));
        let young = (0..110).map(TimeDelta::minutes);
        for age in ages.chain(young) {
            let note = note("ann@laptop", now - age, "start", "backup", None);
            store.txn(Txn::new().then([note])).await.unwrap();
        }
        prune_old(&store, now).await.unwrap();
        assert_eq!(acts(&store).await.len(), 130);
        prune_old(&store, now).await.unwrap();
        assert_eq!(acts(&store).await.len(), 110);
        prune_beyond(&store, 110).await.unwrap();
        assert_eq!(acts(&store).await.len(), 110);
        prune_beyond(&store, 5).await.unwrap();
        prune_beyond(&store, 5).await.unwrap();
        let left = acts(&store).await;
        assert_eq!(left.len(), 5);
        assert_eq!(left[4].at, now);
    }
}
