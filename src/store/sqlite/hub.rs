//! Wakes the watches of this process: for what other processes commit, and for leases that run out.
//!
//! Whoever commits touches the write-ahead log afterwards, and inotify tells of it. A process killed
//! between its commit and its touch is noticed by a look every few seconds.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::writer::{Ask, Command, wal};
use super::{Read, Shared, Tables, ask_reader, ask_writer};
use crate::store::engine::Rows;
use crate::store::{Revision, StoreError};

/// The net under inotify, and all that there is on a file system without it.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Touches that come closer together than this cause one look.
const GATHER: Duration = Duration::from_millis(2);

/// Starts the hub unless it runs.
pub(super) fn start(shared: &Arc<Shared>) {
    let mut running = shared.hub.lock().expect("nobody panics while starting the hub");
    if running.as_ref().is_some_and(|task| !task.is_finished()) {
        return;
    }
    let hub = Hub {
        path: shared.path.clone(),
        writes: shared.writes.clone(),
        reads: shared.reads.clone(),
        news: shared.news.clone(),
    };
    *running = Some(tokio::spawn(hub.run()));
}

struct Hub {
    path: PathBuf,
    writes: mpsc::Sender<Command>,
    reads: mpsc::Sender<Read>,
    news: watch::Sender<Revision>,
}

impl Hub {
    async fn run(self) {
        let touches = match Touches::listen(&wal(&self.path)) {
            Ok(touches) => Some(touches),
            Err(error) => {
                tracing::warn!(%error, "no inotify: changes of other processes are seen within {LOOK_EVERY:?}");
                None
            }
        };
        loop {
            let until = match self.look().await {
                Ok(next_lease_end) => next_lease_end.unwrap_or(LOOK_EVERY).min(LOOK_EVERY),
                // The watches find out for themselves.
                Err(_) => LOOK_EVERY,
            };
            tokio::select! {
                () = next_touch(touches.as_ref()) => sleep(GATHER).await,
                () = sleep(until) => {}
            }
        }
    }

    /// Publishes the revision, ends leases, and tells when the next one ends.
    async fn look(&self) -> Result<Option<Duration>, StoreError> {
        let look = |tables: &mut Tables| {
            Ok((tables.leases_want_a_look()?, tables.revision(), tables.next_lease_end()?))
        };
        let mut seen = ask_reader(&self.reads, &self.path, look).await?;
        if seen.0 {
            ask_writer(&self.writes, &self.path, Ask::LookAtLeases).await?;
            seen = ask_reader(&self.reads, &self.path, look).await?;
        }
        let (_, revision, next_lease_end) = seen;
        self.news.send_if_modified(|known| {
            let newer = revision > *known;
            *known = revision.max(*known);
            newer
        });
        // A millisecond is the clock's grain: before it is over the lease would not count as ended.
        Ok(next_lease_end.map(|left| left + Duration::from_millis(1)))
    }
}

async fn next_touch(touches: Option<&Touches>) {
    match touches {
        Some(touches) => touches.next().await,
        None => std::future::pending().await,
    }
}

/// An inotify instance that listens to one file.
struct Touches(AsyncFd<Listener>);

/// nix gives only one of the two traits that tokio asks for.
struct Listener(Inotify);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Touches {
    fn listen(file: &std::path::Path) -> std::io::Result<Touches> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        inotify.add_watch(file, AddWatchFlags::IN_ATTRIB)?;
        // SAFETY: the descriptor is owned by what is registered, is open, and never changes.
        let registered = unsafe { AsyncFd::register(Listener(inotify)) };
        Ok(Touches(registered?))
    }

    /// Waits for a touch, and takes all that have come.
    async fn next(&self) {
        let Ok(mut ready) = self.0.readable().await else {
            return std::future::pending().await;
        };
        while self.0.get_ref().0.read_events().is_ok_and(|events| !events.is_empty()) {}
        ready.clear_ready();
    }
}
