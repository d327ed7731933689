//! The contents of the simulated store: keys, their history and leases, with time as an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::engine::{self, Rows};
use crate::store::{
    Entry, Event, KeyRange, Lease, LeaseId, Order, Page, PageSpec, Revision, SHORTEST_LEASE, StoreError, Txn,
    TxnReply,
};

/// How many changes are remembered. More are compacted away, as a store that lives for long must.
const MOST_CHANGES: usize = 10_000;

pub(super) struct Table {
    entries: BTreeMap<String, Entry>,
    revision: Revision,
    /// Everything after this revision is in `changes`.
    compacted: Revision,
    changes: VecDeque<Change>,
    leases: BTreeMap<LeaseId, LeaseState>,
    last_lease: i64,
}

/// One change of one key, with what was there before, so that it can be undone for a look at the past.
struct Change {
    event: Event,
    before: Option<Entry>,
}

struct LeaseState {
    ttl: Duration,
    deadline: Instant,
}

impl Table {
    pub fn new() -> Table {
        Table {
            entries: BTreeMap::new(),
            // As a new etcd does.
            revision: Revision(1),
            compacted: Revision(0),
            changes: VecDeque::new(),
            leases: BTreeMap::new(),
            last_lease: 0,
        }
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Differs as soon as there is anything that a watch may want to know of.
    pub fn news(&self) -> (Revision, Revision, i64) {
        (self.revision, self.compacted, self.last_lease)
    }

    pub fn txn(&mut self, txn: &Txn) -> Result<TxnReply, StoreError> {
        engine::check(txn)?;
        let mut change = Changing::begin(self);
        // The engine fails only before its first write, so there is nothing to take back.
        let reply = engine::apply(&mut change, txn)?;
        change.end();
        Ok(reply)
    }

    pub fn list(&self, range: &KeyRange) -> Vec<Entry> {
        let (start, end) = range.bounds();
        let from_start = self.entries.range(start..).map(|(_, entry)| entry);
        let inside = from_start.take_while(|entry| end.as_ref().is_none_or(|end| entry.key < *end));
        inside.cloned().collect()
    }

    pub fn page(&self, range: &KeyRange, spec: &PageSpec) -> Result<Page, StoreError> {
        let revision = spec.at.unwrap_or(self.revision);
        if revision > self.revision {
            return Err(StoreError::Rejected(format!("revision {revision} is in the future")));
        }
        if revision < self.compacted {
            return Err(StoreError::Compacted(self.compacted));
        }
        let mut entries = self.as_of(&spec.rest_of(range), revision);
        if spec.order == Order::Descending {
            entries.reverse();
        }
        let more = entries.len() > spec.limit();
        entries.truncate(spec.limit());
        Ok(Page { entries, revision, more })
    }

    /// The range as it was, by undoing what came later.
    fn as_of(&self, range: &KeyRange, revision: Revision) -> Vec<Entry> {
        let now = self.list(range).into_iter();
        let mut then: BTreeMap<String, Entry> = now.map(|entry| (entry.key.clone(), entry)).collect();
        let later = self.changes.iter().rev();
        for change in later.take_while(|change| change.event.revision() > revision) {
            let key = change.event.key();
            match &change.before {
                _ if !range.contains(key) => {}
                Some(before) => drop(then.insert(key.to_owned(), before.clone())),
                None => drop(then.remove(key)),
            }
        }
        then.into_values().collect()
    }

    pub fn events(&self, range: &KeyRange, from: Revision) -> Result<Vec<Event>, StoreError> {
        if from <= self.compacted {
            return Err(StoreError::Compacted(self.compacted));
        }
        let start = self.changes.partition_point(|change| change.event.revision() < from);
        let later = self.changes.range(start..).map(|change| &change.event);
        Ok(later.filter(|event| range.contains(event.key())).cloned().collect())
    }

    /// As etcd does: not in the future, and not twice.
    pub fn compact_at_wish(&mut self, revision: Revision) -> Result<(), StoreError> {
        engine::check_compaction(revision, self.compacted, self.revision)?;
        self.compact(revision);
        Ok(())
    }

    pub fn compact(&mut self, revision: Revision) {
        self.compacted = self.compacted.max(revision.min(self.revision));
        let kept = self.changes.partition_point(|change| change.event.revision() <= self.compacted);
        self.changes.drain(..kept);
    }

    pub fn grant(&mut self, ttl: Duration, now: Instant) -> Lease {
        // Whole seconds, as etcd has them.
        let ttl = Duration::from_secs(ttl.as_secs_f64().ceil() as u64).max(SHORTEST_LEASE);
        self.last_lease += 1;
        let id = LeaseId(self.last_lease);
        let deadline = now + ttl;
        self.leases.insert(id, LeaseState { ttl, deadline });
        Lease { id, ttl }
    }

    pub fn renew(&mut self, lease: LeaseId, now: Instant) -> Result<Duration, StoreError> {
        let state = self.leases.get_mut(&lease).ok_or(StoreError::LeaseGone)?;
        state.deadline = now + state.ttl;
        Ok(state.ttl)
    }

    /// Deletes the lease and its keys, at one revision.
    pub fn revoke(&mut self, lease: LeaseId) {
        if self.leases.remove(&lease).is_none() {
            return;
        }
        let on_it = self.entries.values().filter(|entry| entry.lease == Some(lease));
        let keys: Vec<String> = on_it.map(|entry| entry.key.clone()).collect();
        let mut change = Changing::begin(self);
        for key in keys {
            change.delete_one(&key);
        }
        change.end();
    }

    /// Ends the leases that have run out, the oldest first. Returns whether there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let over = self.leases.iter().filter(|(_, state)| state.deadline <= now);
        let mut over: Vec<_> = over.map(|(id, state)| (state.deadline, *id)).collect();
        over.sort();
        for (_, lease) in &over {
            self.revoke(*lease);
        }
        !over.is_empty()
    }

    pub fn leases(&self) -> Vec<LeaseId> {
        self.leases.keys().copied().collect()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.leases.values().map(|state| state.deadline).min()
    }
}

/// The table while one revision is being made.
struct Changing<'a> {
    table: &'a mut Table,
    revision: Revision,
    changed: bool,
}

impl<'a> Changing<'a> {
    fn begin(table: &'a mut Table) -> Changing<'a> {
        let revision = table.revision.next();
        Changing { table, revision, changed: false }
    }

    fn end(self) {
        self.table.revision = self.revision();
        if self.table.changes.len() > MOST_CHANGES {
            let surplus = self.table.changes.len() - MOST_CHANGES;
            self.table.compact(self.table.changes[surplus - 1].event.revision());
        }
    }

    fn delete_one(&mut self, key: &str) {
        let Some(before) = self.table.entries.remove(key) else {
            return;
        };
        let event = Event::Delete { key: key.to_owned(), mod_revision: self.revision };
        self.note(event, Some(before));
    }

    fn note(&mut self, event: Event, before: Option<Entry>) {
        self.changed = true;
        self.table.changes.push_back(Change { event, before });
    }
}

impl Rows for Changing<'_> {
    fn range(&mut self, range: &KeyRange, limit: Option<usize>) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.table.list(range);
        entries.truncate(limit.unwrap_or(usize::MAX));
        Ok(entries)
    }

    fn put(&mut self, key: &str, value: &[u8], lease: Option<LeaseId>) -> Result<(), StoreError> {
        let before = self.table.entries.get(key).cloned();
        let entry = Entry {
            key: key.to_owned(),
            value: value.to_owned(),
            create_revision: before.as_ref().map_or(self.revision, |b| b.create_revision),
            mod_revision: self.revision,
            lease,
        };
        self.table.entries.insert(key.to_owned(), entry.clone());
        self.note(Event::Put(entry), before);
        Ok(())
    }

    fn delete(&mut self, range: &KeyRange) -> Result<u64, StoreError> {
        let keys: Vec<String> = self.table.list(range).into_iter().map(|entry| entry.key).collect();
        for key in &keys {
            self.delete_one(key);
        }
        Ok(keys.len() as u64)
    }

    fn lease_lives(&mut self, lease: LeaseId) -> Result<bool, StoreError> {
        Ok(self.table.leases.contains_key(&lease))
    }

    fn revision(&self) -> Revision {
        match self.changed {
            true => self.revision,
            false => self.table.revision,
        }
    }
}
