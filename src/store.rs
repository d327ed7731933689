//! The one place where everything durable lies: etcd for a fleet, an SQLite file for one machine, or a
//! simulated store for tests.
//!
//! Revisions, transactions, watches and leases are etcd's. Nothing above this module knows which of the three
//! it talks to; all pass one conformance suite. This module never retries a change whose outcome it does not
//! know: [`StoreError::NoAnswer`] is for the caller, who reads back.

mod address;
mod engine;
mod error;
mod etcd;
mod follow;
pub mod keys;
pub mod sim;
mod sqlite;
mod together;
pub mod values;
mod words;

use std::time::Duration;

pub use address::{Access, Address, AddressError, EtcdAddress};
pub use engine::{MOST_BYTES, MOST_OPS};
pub use error::StoreError;
pub use follow::{Follow, Seen};
pub use together::Together;
pub use words::*;

use crate::clock::Clock;

/// A store. Clones are cheap and are the same store.
#[derive(Clone)]
pub struct Store(Backend);

#[derive(Clone)]
enum Backend {
    Sim(sim::SimStore),
    Sqlite(sqlite::SqliteStore),
    Etcd(etcd::EtcdStore),
}

impl Store {
    /// Opens the store and makes sure that it answers, within 5 s.
    pub async fn open(address: &Address, access: &Access) -> Result<Store, StoreError> {
        match address {
            Address::Sqlite(path) => {
                let store = sqlite::SqliteStore::open(path, access.create).await?;
                Ok(Store(Backend::Sqlite(store)))
            }
            Address::Etcd(address) => {
                let store = etcd::EtcdStore::open(address, access).await?;
                Ok(Store(Backend::Etcd(store)))
            }
        }
    }

    fn simulated(store: sim::SimStore) -> Store {
        Store(Backend::Sim(store))
    }

    /// One key, as it is now: whatever any client was told is done is seen.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let page = self.page(KeyRange::key(key), PageSpec::default()).await?;
        Ok(page.entries.into_iter().next())
    }

    /// A whole range at one revision, read in pages.
    pub async fn list(&self, range: impl Into<KeyRange>) -> Result<Listing, StoreError> {
        let range = range.into();
        let mut spec = PageSpec::default();
        let mut entries = Vec::new();
        loop {
            let page = match self.page(range.clone(), spec.clone()).await {
                // The store forgot the revision between two pages: begin at a new one.
                Err(StoreError::Compacted(_)) if spec.at.is_some() => {
                    spec = PageSpec::default();
                    entries.clear();
                    continue;
                }
                page => page?,
            };
            entries.extend(page.entries);
            if !page.more {
                let revision = page.revision;
                return Ok(Listing { entries, revision });
            }
            let last = entries.last().map(|entry| entry.key.clone());
            if last == spec.after {
                // Keys that are no text are not told as they are, so behind a page of them one does not get.
                let why = "it holds too many keys that are not fleetcron's".to_owned();
                return Err(StoreError::Unusable { store: self.describe(), why });
            }
            spec.after = last;
            spec.at = Some(page.revision);
        }
    }

    /// One page of a range, in either order, now or at an earlier revision.
    pub async fn page(&self, range: impl Into<KeyRange>, spec: PageSpec) -> Result<Page, StoreError> {
        let range = range.into();
        let keys_only = spec.keys_only;
        let mut page = match &self.0 {
            Backend::Sim(store) => store.page(range, spec).await?,
            Backend::Sqlite(store) => store.page(range, spec).await?,
            // Large, and part of every task that asks the store for something: only while it is asked.
            Backend::Etcd(store) => Box::pin(store.page(range, spec)).await?,
        };
        if keys_only {
            // Only etcd's are spared the way.
            page.entries.iter_mut().for_each(|entry| entry.value = Vec::new());
        }
        Ok(page)
    }

    /// All or nothing. With writes in it and [`StoreError::NoAnswer`] it may have been done, or may yet be.
    pub async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        engine::check_sizes(&txn)?;
        match &self.0 {
            Backend::Sim(store) => store.txn(txn).await,
            Backend::Sqlite(store) => store.txn(txn).await,
            // As above.
            Backend::Etcd(store) => Box::pin(store.txn(txn)).await,
        }
    }

    /// Everything that happens in a range from a revision on. Ends with any failure; to go on, ask again from
    /// behind the last revision seen, or use [`Store::follow`].
    pub async fn watch(&self, range: impl Into<KeyRange>, from: Revision) -> Result<Watch, StoreError> {
        let range = range.into();
        match &self.0 {
            Backend::Sim(store) => Ok(Watch(Watching::Sim(store.watch(range, from).await?))),
            Backend::Sqlite(store) => Ok(Watch(Watching::Sqlite(store.watch(range, from).await?))),
            Backend::Etcd(store) => Ok(Watch(Watching::Etcd(store.watch(range, from).await?))),
        }
    }

    /// A range and all its changes, whatever happens to the store meanwhile.
    pub fn follow(&self, range: impl Into<KeyRange>) -> Follow {
        Follow::start(self.clone(), range.into())
    }

    /// A new lease. Stores count in whole seconds and have a least TTL: use the one in the reply.
    pub async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        match &self.0 {
            Backend::Sim(store) => store.grant(ttl).await,
            Backend::Sqlite(store) => store.grant(ttl).await,
            Backend::Etcd(store) => store.grant(ttl).await,
        }
    }

    /// Starts the lease's time anew. Returns its TTL, which runs at the latest from when this was called.
    pub async fn renew(&self, lease: LeaseId) -> Result<Duration, StoreError> {
        match &self.0 {
            Backend::Sim(store) => store.renew(lease).await,
            Backend::Sqlite(store) => store.renew(lease).await,
            Backend::Etcd(store) => store.renew(lease).await,
        }
    }

    /// Ends the lease and deletes its keys. A lease that is gone already counts as done.
    pub async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        match &self.0 {
            Backend::Sim(store) => store.revoke(lease).await,
            Backend::Sqlite(store) => store.revoke(lease).await,
            Backend::Etcd(store) => store.revoke(lease).await,
        }
    }

    /// Forgets what happened up to a revision; reads and watches from before it fail with
    /// [`StoreError::Compacted`]. For tests and for keeping an etcd of one's own small.
    pub async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        match &self.0 {
            Backend::Sim(store) => store.compact(revision).await,
            Backend::Sqlite(store) => store.compact(revision).await,
            Backend::Etcd(store) => store.compact(revision).await,
        }
    }

    /// What the store says of itself.
    pub async fn status(&self) -> Result<Status, StoreError> {
        match &self.0 {
            Backend::Sim(store) => store.status().await,
            Backend::Sqlite(store) => store.status().await,
            Backend::Etcd(store) => store.status().await,
        }
    }

    /// Whether several machines share it, so that no one of them says alone what it holds.
    pub fn is_shared(&self) -> bool {
        match &self.0 {
            Backend::Sim(_) | Backend::Etcd(_) => true,
            Backend::Sqlite(_) => false,
        }
    }

    /// The clock that tasks of this store's client are bound to.
    fn clock(&self) -> Clock {
        match &self.0 {
            Backend::Sim(store) => store.clock(),
            Backend::Sqlite(_) | Backend::Etcd(_) => Clock::system(),
        }
    }

    /// Where the store is, for logs and messages. There is never a secret in it.
    pub fn describe(&self) -> String {
        match &self.0 {
            Backend::Sim(store) => store.describe(),
            Backend::Sqlite(store) => store.describe(),
            Backend::Etcd(store) => store.describe(),
        }
    }

    /// A number in `[0, 1)`, for jitter: a simulated store draws it from its seed.
    pub fn random(&self) -> f64 {
        match &self.0 {
            Backend::Sim(store) => store.random(),
            Backend::Sqlite(_) | Backend::Etcd(_) => rand::random(),
        }
    }
}

/// A watch, until the first failure.
pub struct Watch(Watching);

enum Watching {
    Sim(sim::SimWatch),
    Sqlite(sqlite::SqliteWatch),
    Etcd(etcd::EtcdWatch),
}

impl Watch {
    /// Waits for what happens next. Safe to cancel. After an error the watch is of no more use.
    pub async fn next(&mut self) -> Result<Events, StoreError> {
        match &mut self.0 {
            Watching::Sim(watch) => watch.next().await,
            Watching::Sqlite(watch) => watch.next().await,
            Watching::Etcd(watch) => watch.next().await,
        }
    }
}
