//! The one thread of this process that changes the file.
//!
//! What waits goes into one commit, each change within a savepoint of its own, so that one that is refused
//! takes no other with it. The commit costs a sync of the disk, and many share it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, oneshot, watch};

use super::file;
use super::rows::Tables;
use crate::store::{Lease, LeaseId, Revision, StoreError, Txn, TxnReply, engine};

/// The most changes in one commit.
const BATCH: usize = 256;
/// How many commits there are between two looks at the length of the history.
const COMMITS_UNTIL_TRIM: u32 = 500;

/// A change somebody waits for.
pub(super) struct Command {
    pub ask: Ask,
    pub reply: oneshot::Sender<Result<Done, StoreError>>,
}

#[derive(Debug)]
pub(super) enum Ask {
    Txn(Txn),
    Grant(Duration),
    Renew(LeaseId),
    Revoke(LeaseId),
    /// Delete what has run out, if anything has.
    LookAtLeases,
    Compact(Revision),
    /// Makes a small disk of a large one.
    #[cfg(test)]
    MostPages(u32),
}

#[derive(Debug)]
pub(super) enum Done {
    Txn(TxnReply),
    Lease(Lease),
    Ttl(Duration),
    Nothing,
}

pub(super) struct Writer {
    path: PathBuf,
    wal: PathBuf,
    boot: String,
    news: watch::Sender<Revision>,
    waiting: mpsc::Receiver<Command>,
    until_trim: u32,
    /// Which file it is that is open.
    opened: Option<file::Identity>,
}

impl Writer {
    pub fn new(
        path: &Path,
        boot: &str,
        news: watch::Sender<Revision>,
        waiting: mpsc::Receiver<Command>,
    ) -> Writer {
        Writer {
            path: path.to_owned(),
            wal: wal(path),
            boot: boot.to_owned(),
            news,
            waiting,
            // Soon after the start, for the sake of processes that never do many.
            until_trim: 10,
            opened: None,
        }
    }

    /// Opens the file, says so, and works until nobody can ask any more.
    pub fn run(mut self, create: bool, opened: oneshot::Sender<Result<(), StoreError>>) {
        let connection = match file::open(&self.path, create) {
            Ok(connection) => connection,
            Err(error) => return drop(opened.send(Err(error))),
        };
        self.opened = file::identity(&self.path).ok();
        if opened.send(Ok(())).is_err() {
            return;
        }
        while let Some(first) = self.waiting.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < BATCH
                && let Ok(next) = self.waiting.try_recv()
            {
                batch.push(next);
            }
            self.commit(&connection, batch);
        }
    }

    fn commit(&mut self, connection: &Connection, batch: Vec<Command>) {
        let (asks, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(|c| (c.ask, c.reply)).unzip();
        let done = self.still_there().and_then(|()| self.try_commit(connection, &asks));
        if done.is_err() && !connection.is_autocommit() {
            // What cannot be taken back now is taken back by the next process that opens the file.
            let _ = connection.execute_batch("ROLLBACK");
        }
        let done: Vec<_> = match done {
            Ok(done) => done,
            Err(error) => asks.iter().map(|_| Err(error.clone())).collect(),
        };
        for (reply, done) in replies.into_iter().zip(done) {
            // Who asked may have given up; what was done is done.
            let _ = reply.send(done);
        }
    }

    /// What is written to a file that has no name any more, nobody will ever read.
    fn still_there(&self) -> Result<(), StoreError> {
        match file::identity(&self.path) {
            Ok(there) if self.opened.is_some_and(|opened| opened != there) => {
                Err(file::was_replaced(&self.path))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(file::was_replaced(&self.path)),
            // What else there is to say of it, SQLite says.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// All of it in one commit. An error means that nothing of it was done, unless it is `NoAnswer`.
    fn try_commit(
        &mut self,
        connection: &Connection,
        asks: &[Ask],
    ) -> Result<Vec<Result<Done, StoreError>>, StoreError> {
        self.execute(connection, "BEGIN IMMEDIATE")?;
        let before = Tables::read(connection, &self.path, &self.boot)?.finish()?;
        self.end_leases(connection)?;
        let mut done = Vec::with_capacity(asks.len());
        for ask in asks {
            done.push(self.do_one(connection, ask)?);
        }
        self.trim_now_and_then(connection)?;
        let after = Tables::read(connection, &self.path, &self.boot)?.finish()?;
        self.execute(connection, "COMMIT").map_err(|error| self.commit_failed(error))?;
        let granted = asks.iter().any(|ask| matches!(ask, Ask::Grant(_) | Ask::Compact(_)));
        if after != before || granted {
            self.announce(after);
        }
        Ok(done)
    }

    /// The inner error is the asker's alone; the outer one ends the whole batch.
    fn do_one(&self, connection: &Connection, ask: &Ask) -> Result<Result<Done, StoreError>, StoreError> {
        self.execute(connection, "SAVEPOINT one")?;
        let mut tables = Tables::read(connection, &self.path, &self.boot)?;
        let done = do_ask(&mut tables, ask).and_then(|done| tables.finish().map(|_| done));
        match done {
            Ok(done) => {
                self.execute(connection, "RELEASE one")?;
                Ok(Ok(done))
            }
            // A full disk has ended the transaction of the whole batch by itself.
            Err(error) if connection.is_autocommit() => Err(error),
            Err(error) => {
                self.execute(connection, "ROLLBACK TO one")?;
                self.execute(connection, "RELEASE one")?;
                Ok(Err(error))
            }
        }
    }

    /// Deletes the leases that have run out with their keys, each at a revision of its own.
    fn end_leases(&self, connection: &Connection) -> Result<(), StoreError> {
        let tables = Tables::read(connection, &self.path, &self.boot)?;
        if !tables.leases_want_a_look()? {
            return Ok(());
        }
        tables.adopt_leases()?;
        for lease in tables.expired_leases()? {
            let mut tables = Tables::read(connection, &self.path, &self.boot)?;
            tables.revoke(lease)?;
            tables.finish()?;
        }
        Ok(())
    }

    fn trim_now_and_then(&mut self, connection: &Connection) -> Result<(), StoreError> {
        self.until_trim -= 1;
        if self.until_trim == 0 {
            self.until_trim = COMMITS_UNTIL_TRIM;
            Tables::read(connection, &self.path, &self.boot)?.trim()?;
        }
        Ok(())
    }

    /// Tells the watches of this process directly, and those of others by touching the log. The touch comes
    /// after the commit: a watch that woke up at the write itself would not see the change yet.
    fn announce(&self, revision: Revision) {
        self.news.send_replace(revision);
        let now = &TimeSpec::UTIME_NOW;
        let touched = utimensat(AT_FDCWD, &self.wal, now, now, UtimensatFlags::FollowSymlink);
        if let Err(error) = touched {
            // They look by themselves every few seconds.
            tracing::debug!(%error, "cannot touch the store's log");
        }
    }

    fn execute(&self, connection: &Connection, sql: &str) -> Result<(), StoreError> {
        let done = connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        done.map(drop).map_err(|error| match error.sqlite_error_code() {
            // The disk may or may not have taken what was written.
            Some(ErrorCode::SystemIoFailure) if sql == "COMMIT" => {
                StoreError::NoAnswer { store: file::name(&self.path), why: error.to_string() }
            }
            _ => file::trouble(&self.path, error),
        })
    }

    fn commit_failed(&self, error: StoreError) -> StoreError {
        tracing::warn!(store = %file::name(&self.path), %error, "a commit failed");
        error
    }
}

fn do_ask(tables: &mut Tables, ask: &Ask) -> Result<Done, StoreError> {
    match ask {
        Ask::Txn(txn) => engine::apply(tables, txn).map(Done::Txn),
        Ask::Grant(ttl) => tables.grant(*ttl).map(Done::Lease),
        Ask::Renew(lease) => tables.renew(*lease).map(Done::Ttl),
        Ask::Revoke(lease) => tables.revoke(*lease).map(|()| Done::Nothing),
        // Every commit begins with that.
        Ask::LookAtLeases => Ok(Done::Nothing),
        Ask::Compact(revision) => tables.compact_at_wish(*revision).map(|()| Done::Nothing),
        #[cfg(test)]
        Ask::MostPages(most) => tables.set_most_pages(*most).map(|()| Done::Nothing),
    }
}

/// SQLite's write-ahead log, which is there as long as any process has the file open.
pub(super) fn wal(path: &Path) -> PathBuf {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    PathBuf::from(wal)
}
