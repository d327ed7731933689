//! The store of one machine: an SQLite file that several processes may have open at once.
//!
//! Changes go through one thread that puts what waits into one commit; reads have a connection and a thread of
//! their own. A reply means that the change is on disk. Nothing here looks at the wall clock: leases
//! count by CLOCK_BOOTTIME. The types of rusqlite stay in this folder.

mod file;
mod hub;
mod rows;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{
    Events, KeyRange, Lease, LeaseId, Page, PageSpec, Revision, Status, StoreError, Txn, TxnReply, engine,
};
use rows::Tables;
use writer::{Ask, Command, Done, Writer};

/// How many requests may wait for a thread; the next ones wait for their turn to wait.
const QUEUE: usize = 1024;
/// For how long one waits for a thread: a locked file for [`file::BUSY`], and some more for the disk.
const PATIENCE: Duration = Duration::from_secs(10);
/// A watch that sees nothing gives a sign of life this often.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// An open SQLite store.
#[derive(Clone)]
pub(super) struct SqliteStore(Arc<Shared>);

struct Shared {
    path: PathBuf,
    writes: mpsc::Sender<Command>,
    reads: mpsc::Sender<Read>,
    /// The newest revision that this process knows of.
    news: watch::Sender<Revision>,
    /// Tells of what other processes do; there is one as soon as somebody watches.
    hub: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Its ends of the queues go with it, and then the threads end by themselves.
        let hub = self.hub.lock().ok().and_then(|mut hub| hub.take());
        hub.inspect(JoinHandle::abort);
    }
}

/// Something to do with the connection for reading.
type Read = Box<dyn FnOnce(&mut Reader) + Send>;

struct Reader {
    connection: Connection,
    path: PathBuf,
    boot: String,
}

impl SqliteStore {
    pub async fn open(path: &Path, create: bool) -> Result<SqliteStore, StoreError> {
        let (news, _) = watch::channel(Revision(0));
        let (writes, waiting) = mpsc::channel(QUEUE);
        let boot = boot_id();
        let writer = Writer::new(path, &boot, news.clone(), waiting);
        let reader = Reader {
            // Replaced as soon as the writer has made sure that there is a file to open.
            connection: Connection::open_in_memory().map_err(|e| file::trouble(path, e))?,
            path: path.to_owned(),
            boot,
        };
        let (reads, reading) = mpsc::channel::<Read>(QUEUE);
        let (opened, is_open) = oneshot::channel();
        start_thread("store-write", move || writer.run(create, opened));
        let open = timeout(PATIENCE, is_open).await;
        open.map_err(|_| no_time(path))?.map_err(|_| no_time(path))??;
        start_thread("store-read", move || reader.run(reading));
        Ok(SqliteStore(Arc::new(Shared {
            path: path.to_owned(),
            writes,
            reads,
            news,
            hub: Mutex::new(None),
        })))
    }

    pub fn describe(&self) -> String {
        file::name(&self.0.path)
    }

    pub async fn page(&self, range: KeyRange, spec: PageSpec) -> Result<Page, StoreError> {
        self.read(move |tables| tables.page(&range, &spec)).await
    }

    pub async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        engine::check(&txn)?;
        if !txn.may_write() {
            return self.read(move |tables| engine::apply(tables, &txn)).await;
        }
        match self.write(Ask::Txn(txn)).await? {
            Done::Txn(reply) => Ok(reply),
            other => unreachable!("a transaction is not answered with {other:?}"),
        }
    }

    pub async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        match self.write(Ask::Grant(ttl)).await? {
            Done::Lease(lease) => Ok(lease),
            other => unreachable!("a grant is not answered with {other:?}"),
        }
    }

    pub async fn renew(&self, lease: LeaseId) -> Result<Duration, StoreError> {
        match self.write(Ask::Renew(lease)).await? {
            Done::Ttl(ttl) => Ok(ttl),
            other => unreachable!("a renewal is not answered with {other:?}"),
        }
    }

    pub async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.write(Ask::Revoke(lease)).await.map(drop)
    }

    pub async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.write(Ask::Compact(revision)).await.map(drop)
    }

    pub async fn status(&self) -> Result<Status, StoreError> {
        let version = format!("SQLite {}", rusqlite::version());
        let look = |tables: &mut Tables| Ok(engine::Rows::revision(tables));
        let revision = self.read(look).await?;
        Ok(Status { version, revision, complaints: Vec::new() })
    }

    pub async fn watch(&self, range: KeyRange, from: Revision) -> Result<SqliteWatch, StoreError> {
        // Only what can be read can be watched.
        self.status().await?;
        hub::start(&self.0);
        Ok(SqliteWatch { news: self.0.news.subscribe(), store: self.clone(), range, next: from })
    }

    /// Reads, after the leases that have run out are gone.
    async fn read<R: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Tables) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        if ask_reader(&self.0.reads, &self.0.path, |tables| tables.leases_want_a_look()).await? {
            match self.write(Ask::LookAtLeases).await {
                // On a full disk one can still read, though nobody can be seen to be gone.
                Ok(_) | Err(StoreError::Full { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        ask_reader(&self.0.reads, &self.0.path, look).await
    }

    async fn write(&self, ask: Ask) -> Result<Done, StoreError> {
        ask_writer(&self.0.writes, &self.0.path, ask).await
    }
}

async fn ask_writer(writes: &mpsc::Sender<Command>, path: &Path, ask: Ask) -> Result<Done, StoreError> {
    let (reply, done) = oneshot::channel();
    let ask = async {
        // The thread lives as long as its queue has an end here, so both can only fail if it panicked.
        let sent = writes.send(Command { ask, reply }).await;
        sent.ok()?;
        done.await.ok()
    };
    match timeout(PATIENCE, ask).await {
        Ok(Some(done)) => done,
        Ok(None) | Err(_) => Err(StoreError::NoAnswer {
            store: file::name(path),
            why: format!("the thread that writes gave no answer within {PATIENCE:?}"),
        }),
    }
}

async fn ask_reader<R: Send + 'static>(
    reads: &mpsc::Sender<Read>,
    path: &Path,
    look: impl FnOnce(&mut Tables) -> Result<R, StoreError> + Send + 'static,
) -> Result<R, StoreError> {
    let (reply, answer) = oneshot::channel();
    let read: Read = Box::new(move |reader| {
        // Nobody may be waiting any more; a read changes nothing.
        let _ = reply.send(reader.look(look));
    });
    let ask = async {
        reads.send(read).await.ok()?;
        answer.await.ok()
    };
    match timeout(PATIENCE, ask).await {
        Ok(Some(found)) => found,
        Ok(None) | Err(_) => Err(no_time(path)),
    }
}

fn no_time(path: &Path) -> StoreError {
    StoreError::NotReached {
        store: file::name(path),
        why: format!("the thread that reads gave no answer within {PATIENCE:?}"),
    }
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(run).expect("a process may start a thread");
}

impl Reader {
    fn run(mut self, mut reading: mpsc::Receiver<Read>) {
        match file::open_again(&self.path) {
            Ok(connection) => self.connection = connection,
            // Whoever asks is told that nothing was heard of the disk.
            Err(error) => return tracing::error!(%error, "the store cannot be read"),
        }
        while let Some(read) = reading.blocking_recv() {
            read(&mut self);
        }
    }

    /// One transaction, so that all that is read is of one revision.
    fn look<R>(&mut self, look: impl FnOnce(&mut Tables) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let whole = self.connection.transaction_with_behavior(TransactionBehavior::Deferred);
        let whole = whole.map_err(|error| file::trouble(&self.path, error))?;
        let mut tables = Tables::read(&whole, &self.path, &self.boot)?;
        look(&mut tables)
    }
}

/// Tells one start of the machine from another.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    // Without it (a very narrow container) leases only fail to begin anew after a reboot.
    id.map_or("unknown".to_owned(), |id| id.trim().to_owned())
}

/// A watch of the file.
pub(super) struct SqliteWatch {
    store: SqliteStore,
    news: watch::Receiver<Revision>,
    range: KeyRange,
    next: Revision,
}

impl SqliteWatch {
    /// Safe to cancel: what is not returned is looked up again.
    pub async fn next(&mut self) -> Result<Events, StoreError> {
        loop {
            self.news.mark_unchanged();
            let (range, from) = (self.range.clone(), self.next);
            let look =
                move |tables: &mut Tables| Ok((tables.events(&range, from)?, engine::Rows::revision(tables)));
            let (events, revision) = self.store.read(look).await?;
            self.next = self.next.max(revision.next());
            if !events.is_empty() {
                return Ok(Events { revision, events });
            }
            tokio::select! {
                changed = self.news.changed() => {
                    changed.expect("the watch itself keeps the store alive");
                }
                () = sleep(HEARTBEAT) => {
                    return Ok(Events { revision, events: Vec::new() });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Op;

    #[tokio::test]
    async fn nothing_is_written_to_a_file_that_was_moved_away_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let (path, away) = (folder.path().join("store.db"), folder.path().join("away.db"));
        let store = SqliteStore::open(&path, true).await.unwrap();
        let put = || Txn::new().then([Op::put("k", "v")]);
        std::fs::rename(&path, &away).unwrap();
        for other in [false, true] {
            if other {
                std::fs::write(&path, "").unwrap();
            }
            let refused = store.txn(put()).await;
            assert!(matches!(refused, Err(StoreError::Unusable { .. })), "{refused:?}");
        }
        std::fs::rename(&away, &path).unwrap();
        store.txn(put()).await.unwrap();
    }

    #[tokio::test]
    async fn a_full_disk_is_told_and_when_there_is_room_it_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("store.db"), true).await.unwrap();
        let put = |n: u32| Txn::new().then([Op::put(format!("k/{n}"), vec![7; 20_000])]);
        store.txn(put(0)).await.unwrap();
        store.write(Ask::MostPages(40)).await.unwrap();
        // Several at once, so that they share a commit.
        let mut waiting = tokio::task::JoinSet::new();
        for n in 1..20 {
            let (store, txn) = (store.clone(), put(n));
            waiting.spawn(async move { (n, store.txn(txn).await) });
        }
        let (done, failed): (Vec<_>, Vec<_>) =
            waiting.join_all().await.into_iter().partition(|(_, done)| done.is_ok());
        assert!(!failed.is_empty());
        for (_, error) in failed {
            assert!(matches!(error, Err(StoreError::Full { .. })), "{error:?}");
        }
        let all = store.page(KeyRange::prefix("k/"), PageSpec::default()).await.unwrap();
        assert_eq!(all.entries.len(), done.len() + 1);
        store.write(Ask::MostPages(100_000)).await.unwrap();
        store.txn(put(99)).await.unwrap();
    }
}
