//! Keys, history and leases as rows, within one transaction of SQLite that the caller holds.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use rusqlite::types::Value;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};

use super::file;
use crate::store::engine::{self, Rows};
use crate::store::{
    Entry, Event, KeyRange, Lease, LeaseId, Order, Page, PageSpec, Revision, SHORTEST_LEASE, StoreError,
};

/// How many changes are kept for watches and looks at the past, at least and at most.
const LEAST_CHANGES: i64 = 10_000;
const MOST_CHANGES: i64 = 12_000;

/// The open file, inside a transaction; with writes, while one revision is being made.
pub(super) struct Tables<'a> {
    connection: &'a Connection,
    path: &'a Path,
    boot: &'a str,
    revision: Revision,
    compacted: Revision,
    /// How many changes the revision being made has.
    steps: i64,
}

impl<'a> Tables<'a> {
    pub fn read(connection: &'a Connection, path: &'a Path, boot: &'a str) -> Result<Tables<'a>, StoreError> {
        let sql = "SELECT revision, compacted FROM store";
        let read = |row: &Row| Ok((Revision(row.get(0)?), Revision(row.get(1)?)));
        let found = connection.prepare_cached(sql).and_then(|mut s| s.query_row([], read));
        let (revision, compacted) = found.map_err(|error| file::trouble(path, error))?;
        Ok(Tables { connection, path, boot, revision, compacted, steps: 0 })
    }

    /// Writes down that the revision was made. Returns the store's revision then.
    pub fn finish(self) -> Result<Revision, StoreError> {
        let revision = self.revision();
        if self.steps > 0 {
            self.run("UPDATE store SET revision = ?1", [revision.0])?;
        }
        Ok(revision)
    }

    pub fn page(&mut self, range: &KeyRange, spec: &PageSpec) -> Result<Page, StoreError> {
        let revision = spec.at.unwrap_or(self.revision);
        if revision > self.revision {
            return Err(StoreError::Rejected(format!("revision {revision} is in the future")));
        }
        if revision < self.compacted {
            return Err(StoreError::Compacted(self.compacted));
        }
        let rest = spec.rest_of(range);
        let limit = spec.limit();
        let undo = self.changes_undone(&rest, revision)?;
        let mut entries = if undo.is_empty() {
            self.select(&rest, Some(limit + 1), spec.order)?
        } else {
            self.as_of(&rest, undo, spec.order)?
        };
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(Page { entries, revision, more })
    }

    /// What the keys of the range were that changed after a revision; `None` for those that were not there.
    fn changes_undone(
        &self,
        range: &KeyRange,
        revision: Revision,
    ) -> Result<BTreeMap<String, Option<Entry>>, StoreError> {
        let (start, end) = sql_bounds(range);
        let sql = "SELECT key, old_value, old_create_revision, old_mod_revision, old_lease FROM log
                   WHERE revision > ?1 AND key >= ?2 AND key < ?3 ORDER BY revision, step";
        let read = |row: &Row| {
            let key: String = row.get(0)?;
            let there = row.get::<_, Option<Vec<u8>>>(1)?.is_some();
            let before = there.then(|| entry(row)).transpose()?;
            Ok((key, before))
        };
        let changes = self.rows(sql, params![revision.0, start, end], read)?;
        let mut undone = BTreeMap::new();
        for (key, before) in changes {
            // The first change after the revision knows what was there at it.
            undone.entry(key).or_insert(before);
        }
        Ok(undone)
    }

    fn as_of(
        &self,
        range: &KeyRange,
        undo: BTreeMap<String, Option<Entry>>,
        order: Order,
    ) -> Result<Vec<Entry>, StoreError> {
        let now = self.select(range, None, Order::Ascending)?.into_iter();
        let mut then: BTreeMap<String, Entry> = now.map(|entry| (entry.key.clone(), entry)).collect();
        for (key, before) in undo {
            match before {
                Some(before) => then.insert(key, before),
                None => then.remove(&key),
            };
        }
        let mut entries: Vec<Entry> = then.into_values().collect();
        if order == Order::Descending {
            entries.reverse();
        }
        Ok(entries)
    }

    pub fn events(&self, range: &KeyRange, from: Revision) -> Result<Vec<Event>, StoreError> {
        if from <= self.compacted {
            return Err(StoreError::Compacted(self.compacted));
        }
        let (start, end) = sql_bounds(range);
        let sql = "SELECT key, value, create_revision, revision, lease FROM log
                   WHERE revision >= ?1 AND key >= ?2 AND key < ?3 ORDER BY revision, step";
        let read = |row: &Row| {
            Ok(match row.get::<_, Option<Vec<u8>>>(1)? {
                Some(_) => Event::Put(entry(row)?),
                None => Event::Delete { key: row.get(0)?, mod_revision: Revision(row.get(3)?) },
            })
        };
        self.rows(sql, params![from.0, start, end], read)
    }

    /// As etcd does: not in the future, and not twice.
    pub fn compact_at_wish(&mut self, revision: Revision) -> Result<(), StoreError> {
        engine::check_compaction(revision, self.compacted, self.revision)?;
        self.compact(revision)
    }

    fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        self.compacted = self.compacted.max(revision.min(self.revision));
        self.run("UPDATE store SET compacted = ?1", [self.compacted.0])?;
        self.run("DELETE FROM log WHERE revision <= ?1", [self.compacted.0])?;
        Ok(())
    }

    /// Forgets the oldest history when there is too much of it.
    pub fn trim(&mut self) -> Result<(), StoreError> {
        let count: i64 = self.one("SELECT count(*) FROM log", [])?.unwrap_or(0);
        if count <= MOST_CHANGES {
            return Ok(());
        }
        let last_to_go = "SELECT revision FROM log ORDER BY revision, step LIMIT 1 OFFSET ?1";
        match self.one(last_to_go, [count - LEAST_CHANGES])? {
            Some(revision) => self.compact(Revision(revision)),
            None => Ok(()),
        }
    }

    pub fn grant(&mut self, ttl: Duration) -> Result<Lease, StoreError> {
        // Whole seconds, as etcd has them.
        let ttl = Duration::from_secs(ttl.as_secs_f64().ceil() as u64).max(SHORTEST_LEASE);
        let deadline = now_ms() + ttl.as_millis() as i64;
        let sql = "INSERT INTO lease (ttl_seconds, deadline_ms, boot) VALUES (?1, ?2, ?3)";
        self.run(sql, params![ttl.as_secs() as i64, deadline, self.boot])?;
        let id = LeaseId(self.connection.last_insert_rowid());
        Ok(Lease { id, ttl })
    }

    pub fn renew(&mut self, lease: LeaseId) -> Result<Duration, StoreError> {
        let sql = "UPDATE lease SET deadline_ms = ?2 + ttl_seconds * 1000, boot = ?3 WHERE id = ?1
                   RETURNING ttl_seconds";
        let ttl: Option<i64> = self.one(sql, params![lease.0, now_ms(), self.boot])?;
        ttl.map(|seconds| Duration::from_secs(seconds as u64)).ok_or(StoreError::LeaseGone)
    }

    /// Deletes the lease and its keys; a lease that is gone has none.
    pub fn revoke(&mut self, lease: LeaseId) -> Result<(), StoreError> {
        let sql = "SELECT key FROM kv WHERE lease = ?1 ORDER BY key";
        let keys: Vec<String> = self.rows(sql, [lease.0], |row| row.get(0))?;
        for key in keys {
            self.delete(&KeyRange::Key(key))?;
        }
        self.run("DELETE FROM lease WHERE id = ?1", [lease.0])?;
        Ok(())
    }

    /// Whether a lease has run out, or is of another boot, so that a writer has to see to it.
    pub fn leases_want_a_look(&self) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM lease WHERE deadline_ms <= ?1 OR boot <> ?2 LIMIT 1";
        let found: Option<i64> = self.one(sql, params![now_ms(), self.boot])?;
        Ok(found.is_some())
    }

    /// Leases that were granted before this boot begin anew, as after a restart of etcd: their clock
    /// means nothing any more.
    pub fn adopt_leases(&self) -> Result<(), StoreError> {
        let sql = "UPDATE lease SET deadline_ms = ?1 + ttl_seconds * 1000, boot = ?2 WHERE boot <> ?2";
        self.run(sql, params![now_ms(), self.boot])?;
        Ok(())
    }

    /// The leases that have run out, the oldest first.
    pub fn expired_leases(&self) -> Result<Vec<LeaseId>, StoreError> {
        let sql = "SELECT id FROM lease WHERE deadline_ms <= ?1 ORDER BY deadline_ms, id";
        self.rows(sql, [now_ms()], |row| Ok(LeaseId(row.get(0)?)))
    }

    /// How long until the next lease runs out.
    pub fn next_lease_end(&self) -> Result<Option<Duration>, StoreError> {
        let deadline: Option<Option<i64>> = self.one("SELECT min(deadline_ms) FROM lease", [])?;
        let left = |deadline: i64| Duration::from_millis((deadline - now_ms()).max(0) as u64);
        Ok(deadline.flatten().map(left))
    }

    #[cfg(test)]
    pub fn set_most_pages(&self, most: u32) -> Result<(), StoreError> {
        let set = self.connection.pragma_update(None, "max_page_count", most);
        set.map_err(|error| file::trouble(self.path, error))
    }

    fn select(&self, range: &KeyRange, limit: Option<usize>, order: Order) -> Result<Vec<Entry>, StoreError> {
        let (start, end) = sql_bounds(range);
        let limit = limit.map_or(-1, |limit| limit as i64);
        let sql = match order {
            Order::Ascending => {
                "SELECT key, value, create_revision, mod_revision, lease FROM kv
                 WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3"
            }
            Order::Descending => {
                "SELECT key, value, create_revision, mod_revision, lease FROM kv
                 WHERE key >= ?1 AND key < ?2 ORDER BY key DESC LIMIT ?3"
            }
        };
        self.rows(sql, params![start, end, limit], entry)
    }

    fn log(&mut self, key: &str, new: Option<&Entry>, old: Option<&Entry>) -> Result<(), StoreError> {
        self.steps += 1;
        let sql = "INSERT INTO log VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        self.run(
            sql,
            params![
                self.revision().0,
                self.steps,
                key,
                new.map(|entry| &entry.value),
                new.map(|entry| entry.create_revision.0),
                new.and_then(|entry| entry.lease).map(|lease| lease.0),
                old.map(|entry| &entry.value),
                old.map(|entry| entry.create_revision.0),
                old.map(|entry| entry.mod_revision.0),
                old.and_then(|entry| entry.lease).map(|lease| lease.0),
            ],
        )?;
        Ok(())
    }

    fn statement(&self, sql: &str) -> Result<CachedStatement<'_>, StoreError> {
        self.connection.prepare_cached(sql).map_err(|error| file::trouble(self.path, error))
    }

    fn run(&self, sql: &str, params: impl rusqlite::Params) -> Result<usize, StoreError> {
        self.statement(sql)?.execute(params).map_err(|error| file::trouble(self.path, error))
    }

    fn one<T: rusqlite::types::FromSql>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> Result<Option<T>, StoreError> {
        let found = self.statement(sql)?.query_row(params, |row| row.get(0)).optional();
        found.map_err(|error| file::trouble(self.path, error))
    }

    fn rows<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl FnMut(&Row) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let mut statement = self.statement(sql)?;
        let rows = statement.query_map(params, read).and_then(|rows| rows.collect());
        rows.map_err(|error| file::trouble(self.path, error))
    }
}

impl Rows for Tables<'_> {
    fn range(&mut self, range: &KeyRange, limit: Option<usize>) -> Result<Vec<Entry>, StoreError> {
        self.select(range, limit, Order::Ascending)
    }

    fn put(&mut self, key: &str, value: &[u8], lease: Option<LeaseId>) -> Result<(), StoreError> {
        let old = self.select(&KeyRange::key(key), None, Order::Ascending)?.pop();
        let revision = self.revision.next();
        let new = Entry {
            key: key.to_owned(),
            value: value.to_owned(),
            create_revision: old.as_ref().map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            lease,
        };
        self.log(key, Some(&new), old.as_ref())?;
        let sql = "INSERT OR REPLACE INTO kv VALUES (?1, ?2, ?3, ?4, ?5)";
        let lease = lease.map(|lease| lease.0);
        self.run(sql, params![key, value, new.create_revision.0, revision.0, lease])?;
        Ok(())
    }

    fn delete(&mut self, range: &KeyRange) -> Result<u64, StoreError> {
        let doomed = self.select(range, None, Order::Ascending)?;
        for old in &doomed {
            self.log(&old.key, None, Some(old))?;
            self.run("DELETE FROM kv WHERE key = ?1", [&old.key])?;
        }
        Ok(doomed.len() as u64)
    }

    fn lease_lives(&mut self, lease: LeaseId) -> Result<bool, StoreError> {
        let found: Option<i64> = self.one("SELECT 1 FROM lease WHERE id = ?1", [lease.0])?;
        Ok(found.is_some())
    }

    fn revision(&self) -> Revision {
        match self.steps {
            0 => self.revision,
            _ => self.revision.next(),
        }
    }
}

/// A range as two values to compare keys with. In SQLite every blob is greater than every text, so the
/// empty blob ends a range that has no end.
fn sql_bounds(range: &KeyRange) -> (String, Value) {
    let (start, end) = range.bounds();
    (start, end.map_or(Value::Blob(Vec::new()), Value::Text))
}

/// Reads key, value, create revision, mod revision, lease.
fn entry(row: &Row) -> rusqlite::Result<Entry> {
    Ok(Entry {
        key: row.get(0)?,
        value: row.get(1)?,
        create_revision: Revision(row.get(2)?),
        mod_revision: Revision(row.get(3)?),
        lease: row.get::<_, Option<i64>>(4)?.map(LeaseId),
    })
}

/// Milliseconds since the machine started, with sleep counted in; nobody can set this clock.
fn now_ms() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock since 2.6.39");
    now.tv_sec() * 1000 + now.tv_nsec() / 1_000_000
}
