//! One suite for all stores: the same generated operations on each and on the model, every reply compared.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetcron::store::sim::Sim;
use fleetcron::store::*;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;

use super::model::Model;
use crate::etcd::{Etcd, SOON, Version};

const KEYS: [&str; 7] = ["a", "a/1", "a/2", "a0", "b", "b/1", "é"];
const VALUES: [&str; 4] = ["", "0", "1", "10"];
const STEPS: usize = 60;

/// How many sequences, unless FLEETCRON_TEST_LONG asks for many more.
fn sequences(usual: u64) -> u64 {
    match std::env::var_os("FLEETCRON_TEST_LONG") {
        Some(_) => usual * 20,
        None => usual,
    }
}

#[test]
fn the_simulated_store_does_what_the_model_does() {
    for seed in 0..sequences(300) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(compare(&Sim::new(seed).client("one"), seed));
    }
}

#[tokio::test]
async fn sqlite_does_what_the_model_does() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..sequences(60) {
        let path = folder.path().join(format!("{seed}.db"));
        compare(&super::sqlite::open(&path).await, seed).await;
    }
}

#[tokio::test]
async fn etcd_3_4_does_what_the_model_does() {
    compare_with_etcd(Version::V34).await;
}

#[tokio::test]
async fn etcd_3_6_does_what_the_model_does() {
    compare_with_etcd(Version::V36).await;
}

async fn compare_with_etcd(version: Version) {
    let etcd = Etcd::start(version).await;
    for seed in 0..sequences(40) {
        compare(&etcd.open(&format!("seed-{seed}")).await, seed).await;
    }
}

/// A store beside the model. The store may have a past: its revisions and leases are counted from where
/// the sequence began.
struct Beside<'a> {
    store: &'a Store,
    model: Model,
    base: i64,
    /// The store's own ids of the leases, in the order they were granted.
    leases: Vec<LeaseId>,
    random: StdRng,
}

async fn compare(store: &Store, seed: u64) {
    let base = store.status().await.unwrap().revision.0;
    let mut beside =
        Beside { store, model: Model::new(), base, leases: Vec::new(), random: StdRng::seed_from_u64(seed) };
    for step in 0..STEPS {
        let place = format!("{}, seed {seed}, step {step}", store.describe());
        match beside.random.random_range(0..20) {
            0..=9 => beside.a_txn(&place).await,
            10..=12 => beside.a_page(&place).await,
            13 => beside.a_list(&place).await,
            14 => beside.a_grant().await,
            15 => beside.a_renewal(&place).await,
            16 => beside.a_revocation(&place).await,
            17..=18 => beside.a_watch(&place).await,
            _ => beside.a_compaction(&place).await,
        }
    }
}

impl Beside<'_> {
    async fn a_txn(&mut self, place: &str) {
        let txn = match self.random.random_range(0..30) {
            0 => self.too_many(),
            _ => self.some_txn(2),
        };
        let expected = self.model.txn(&txn);
        let got = self.store.txn(self.outward(&txn)).await;
        let got = got.map(|reply| self.inward_reply(reply)).map_err(kind);
        assert_eq!(got, expected, "{place}: {txn:#?}");
    }

    async fn a_page(&mut self, place: &str) {
        let range = self.some_range();
        let now = self.model.revision();
        let spec = PageSpec {
            after: self.maybe().then(|| self.some_key()),
            limit: self.maybe().then(|| self.random.random_range(1..4)),
            at: self.maybe().then(|| Revision(self.random.random_range(0..now + 2))),
            order: if self.maybe() { Order::Ascending } else { Order::Descending },
            keys_only: self.maybe(),
        };
        let expected = self.model.page(&range, &spec);
        let outward = PageSpec { at: spec.at.map(|at| Revision(at.0 + self.base)), ..spec.clone() };
        let got = self.store.page(range.clone(), outward).await;
        let got = got.map(|page| Page {
            entries: self.inward_entries(page.entries),
            revision: self.inward(page.revision),
            more: page.more,
        });
        assert_eq!(got.map_err(kind), expected, "{place}: {range:?} {spec:?}");
    }

    async fn a_list(&mut self, place: &str) {
        let range = self.some_range();
        let expected = self.model.page(&range, &PageSpec::default()).unwrap();
        let got = self.store.list(range.clone()).await.unwrap();
        assert_eq!(self.inward_entries(got.entries), expected.entries, "{place}: {range:?}");
        assert_eq!(self.inward(got.revision), expected.revision, "{place}");
    }

    async fn a_grant(&mut self) {
        // Long enough that none runs out by itself.
        let lease = self.store.grant(Duration::from_secs(600)).await.unwrap();
        assert_eq!(lease.ttl, Duration::from_secs(600));
        self.leases.push(lease.id);
        self.model.leases.insert(self.model.granted);
        self.model.granted += 1;
    }

    async fn a_renewal(&mut self, place: &str) {
        let Some(lease) = self.some_lease() else {
            return;
        };
        let there = self.model.leases.contains(&lease.0);
        let expected = there.then_some(Duration::from_secs(600)).ok_or("LeaseGone");
        let got = self.store.renew(self.leases[lease.0 as usize]).await;
        assert_eq!(got.map_err(kind), expected, "{place}");
    }

    async fn a_revocation(&mut self, place: &str) {
        let Some(lease) = self.some_lease() else {
            return;
        };
        self.model.revoke(lease.0);
        let got = self.store.revoke(self.leases[lease.0 as usize]).await;
        assert_eq!(got, Ok(()), "{place}");
    }

    async fn a_compaction(&mut self, place: &str) {
        let now = self.model.revision();
        let at = self.random.random_range((now - 10).max(1)..now + 2);
        let got = self.store.compact(Revision(at + self.base)).await.map_err(kind);
        assert_eq!(got, self.model.compact(at), "{place}");
    }

    /// Watches from some revision on. A change at the end shows that nothing more came before it.
    async fn a_watch(&mut self, place: &str) {
        let range = self.some_range();
        let from = self.random.random_range(1..self.model.revision() + 2);
        // etcd replays from the compacted revision itself too, but may have lost a deletion at it.
        if from == self.model.compacted {
            return;
        }
        let end = Txn::new().then([Op::put(range.bounds().0 + "", "end")]);
        if range.bounds().0.is_empty() {
            return; // The empty key cannot be put; other ranges begin with keys.
        }
        let watch = self.store.watch(range.clone(), Revision(from + self.base)).await;
        let reply = self.store.txn(end.clone()).await.unwrap();
        self.model.txn(&end).unwrap();
        let end = self.inward(reply.revision);
        let mut got = Vec::new();
        let seen = async {
            let mut watch = watch?;
            while got.last().is_none_or(|event: &Event| event.revision() < end) {
                let events = watch.next().await?.events;
                got.extend(events.into_iter().map(|event| self.inward_event(event)));
            }
            Ok(())
        };
        let seen: Result<(), StoreError> = timeout(SOON, seen).await.expect("events come");
        if from < self.model.compacted {
            assert_eq!(seen.map_err(kind), Err("Compacted"), "{place}: from {from}");
        } else {
            assert_eq!(seen, Ok(()), "{place}: from {from}");
            assert_eq!(got, self.model.events_from(&range, from), "{place}: {range:?} from {from}");
        }
    }

    fn some_txn(&mut self, depth: usize) -> Txn {
        let count = self.random.random_range(0..3);
        let compare: Vec<_> = (0..count).map(|_| self.some_compare()).collect();
        let ops = |this: &mut Self| {
            let count = this.random.random_range(0..4);
            (0..count).map(|_| this.some_op(depth)).collect::<Vec<_>>()
        };
        let (then, otherwise) = (ops(self), ops(self));
        Txn::when(compare).then(then).otherwise(otherwise)
    }

    fn some_op(&mut self, depth: usize) -> Op {
        match self.random.random_range(0..10) {
            0..=4 => {
                let lease = if self.random.random_range(0..4) == 0 { self.some_lease() } else { None };
                Op::put_on(self.some_key(), self.some_value(), lease)
            }
            5..=6 => Op::delete(self.some_range()),
            7 => Op::get(self.some_range()),
            8 => Op::get_first(self.some_range(), self.random.random_range(1..3)),
            _ if depth > 0 => self.some_txn(depth - 1).into(),
            _ => Op::get(self.some_range()),
        }
    }

    fn some_compare(&mut self) -> Compare {
        let revision = self.some_revision();
        let is = *[Is::Equal, Is::NotEqual, Is::Less, Is::Greater].choose(&mut self.random).unwrap();
        match self.random.random_range(0..8) {
            0 => Compare::absent(self.some_range()),
            1 => Compare::present(self.some_key()),
            2 => Compare::create_revision(self.some_key(), revision),
            3 => Compare::mod_revision(self.some_key(), revision),
            4 => Compare::value(self.some_key(), is, self.some_value()),
            5 => Compare::Each { range: self.some_range(), test: Test::Value(is, self.some_value().into()) },
            6 => Compare::Each { range: self.some_range(), test: Test::CreateRevision(is, revision) },
            _ => Compare::Each { range: self.some_range(), test: Test::ModRevision(is, revision) },
        }
    }

    /// One more step than a store takes, somewhere.
    fn too_many(&mut self) -> Txn {
        let get = Op::get("a");
        match self.random.random_range(0..4) {
            0 => Txn::new().then(vec![get; 129]),
            1 => Txn::new().otherwise(vec![get; 128]),
            2 => Txn::when(vec![Compare::absent("a"); 129]),
            // 64 nested ones leave 64 steps for each.
            _ => {
                let steps = self.random.random_range(64..66);
                let nested: Op = Txn::new().then(vec![get; steps]).into();
                Txn::new().then(vec![nested; 64])
            }
        }
    }

    fn some_key(&mut self) -> String {
        KEYS.choose(&mut self.random).unwrap().to_string()
    }

    fn some_value(&mut self) -> &'static str {
        VALUES.choose(&mut self.random).unwrap()
    }

    fn some_range(&mut self) -> KeyRange {
        let (one, other) = (self.some_key(), self.some_key());
        match self.random.random_range(0..6) {
            0..=1 => KeyRange::key(one),
            2 => KeyRange::prefix(one),
            3 => KeyRange::prefix(""),
            _ if one >= other => KeyRange::between_inclusive(other, one),
            4 => KeyRange::between(one, other),
            _ => KeyRange::between_inclusive(one, other),
        }
    }

    /// Often one that some key has.
    fn some_revision(&mut self) -> Revision {
        let known: Vec<_> = self.model.now().values().map(|entry| entry.mod_revision).collect();
        match known.choose(&mut self.random) {
            Some(revision) if self.maybe() => *revision,
            _ => Revision(self.random.random_range(0..self.model.revision() + 2)),
        }
    }

    fn some_lease(&mut self) -> Option<LeaseId> {
        let granted = self.model.granted;
        (granted > 0).then(|| LeaseId(self.random.random_range(0..granted)))
    }

    fn maybe(&mut self) -> bool {
        self.random.random()
    }

    fn outward(&self, txn: &Txn) -> Txn {
        // Revision 0 means "not there" everywhere.
        let revision = |given: &Revision| match given.0 {
            0 => Revision(0),
            given => Revision(given + self.base),
        };
        let compare = txn.compare.iter().map(|compare| match compare.clone() {
            Compare::CreateRevision { key, revision: r } => Compare::create_revision(key, revision(&r)),
            Compare::ModRevision { key, revision: r } => Compare::mod_revision(key, revision(&r)),
            Compare::Each { range, test } => Compare::Each {
                range,
                test: match test {
                    Test::CreateRevision(is, r) => Test::CreateRevision(is, revision(&r)),
                    Test::ModRevision(is, r) => Test::ModRevision(is, revision(&r)),
                    test => test,
                },
            },
            other => other,
        });
        let ops = |ops: &[Op]| {
            let ops = ops.iter().map(|op| match op.clone() {
                Op::Put { key, value, lease } => {
                    Op::put_on(key, value, lease.map(|lease| self.leases[lease.0 as usize]))
                }
                Op::Txn(inner) => self.outward(&inner).into(),
                other => other,
            });
            ops.collect::<Vec<_>>()
        };
        Txn::when(compare).then(ops(&txn.then)).otherwise(ops(&txn.otherwise))
    }

    fn inward(&self, revision: Revision) -> Revision {
        Revision(revision.0 - self.base)
    }

    fn inward_entry(&self, entry: Entry) -> Entry {
        let leases: BTreeMap<_, _> = self.leases.iter().zip(0..).collect();
        Entry {
            create_revision: self.inward(entry.create_revision),
            mod_revision: self.inward(entry.mod_revision),
            lease: entry.lease.map(|lease| LeaseId(leases[&lease])),
            ..entry
        }
    }

    fn inward_entries(&self, entries: Vec<Entry>) -> Vec<Entry> {
        entries.into_iter().map(|entry| self.inward_entry(entry)).collect()
    }

    fn inward_event(&self, event: Event) -> Event {
        match event {
            Event::Put(entry) => Event::Put(self.inward_entry(entry)),
            Event::Delete { key, mod_revision } => {
                Event::Delete { key, mod_revision: self.inward(mod_revision) }
            }
        }
    }

    fn inward_reply(&self, reply: TxnReply) -> TxnReply {
        let results = reply.results.into_iter().map(|result| match result {
            OpReply::Got(entries) => OpReply::Got(self.inward_entries(entries)),
            OpReply::Txn(inner) => OpReply::Txn(self.inward_reply(inner)),
            other => other,
        });
        TxnReply {
            succeeded: reply.succeeded,
            revision: self.inward(reply.revision),
            results: results.collect(),
        }
    }
}

/// What a caller would do about an error; the words may differ from store to store.
fn kind(error: StoreError) -> &'static str {
    match error {
        StoreError::Rejected(_) => "Rejected",
        StoreError::Compacted(_) => "Compacted",
        StoreError::LeaseGone => "LeaseGone",
        other => panic!("no store should say: {other}"),
    }
}
