//! Health: how fresh a node's own doings are, in a small file of its state folder that `doctor --health` reads.
//!
//! The loop tells its doings ([`Beat`]); a service writes them down at most once a second. So of a loop that stands
//! still the file grows old, and of a daemon that is gone the lock of the folder is free. For people and for service
//! managers; nothing of the fleet hangs on it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::node::{NodeStart, as_text};
use crate::schedule::Timestamp;

const VERSION: u32 = 1;
/// The file's name in the state folder.
const FILE: &str = "health.json";
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// A moment, by the wall clock for people, and in milliseconds since boot to count by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub at: Timestamp,
    since_boot: u64,
}

impl Moment {
    pub fn new(at: Timestamp, since_boot: Duration) -> Moment {
        Moment { at, since_boot: u64::try_from(since_boot.as_millis()).unwrap_or(u64::MAX) }
    }

    /// How long ago it was, in the same boot.
    pub fn age(&self, since_boot: Duration) -> Duration {
        since_boot.saturating_sub(Duration::from_millis(self.since_boot))
    }
}

/// What the loop tells at each look at the time.
#[derive(Debug, Clone)]
pub struct Beat {
    /// The look at what is due.
    pub pass: Moment,
    /// The last sign of life of the store.
    pub contact: Moment,
    /// When this node last claimed a fire or wrote what became of one, if it has.
    pub decision: Option<Moment>,
    /// Fires in its hands.
    pub runs: usize,
    /// Why it decides nothing by its clock.
    pub clock: Option<String>,
}

/// What the file says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Health {
    v: u32,
    pub node: String,
    #[serde(with = "as_text")]
    pub node_start: NodeStart,
    pub pid: i32,
    /// The id of the boot.
    pub boot: String,
    pub pass: Moment,
    pub contact: Moment,
    pub decision: Option<Moment>,
    pub runs: usize,
    pub clock: Option<String>,
}

/// Who writes it.
#[derive(Debug, Clone)]
pub struct Whose {
    pub node: String,
    pub node_start: NodeStart,
    pub boot: String,
}

impl Health {
    fn of(whose: &Whose, beat: Beat) -> Health {
        let Beat { pass, contact, decision, runs, clock } = beat;
        let Whose { node, node_start, boot } = whose.clone();
        let pid = nix::unistd::getpid().as_raw();
        Health { v: VERSION, node, node_start, pid, boot, pass, contact, decision, runs, clock }
    }

    /// What the node of a state folder wrote last. None: nothing.
    pub fn read(state: &Path) -> io::Result<Option<Health>> {
        match fs::read(state.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        }
    }

    /// Whole or not at all; not for ever, since a boot makes it worthless.
    fn write(&self, state: &Path) -> io::Result<()> {
        let new = state.join("health.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&new, state.join(FILE))
    }
}

/// Writes down what the loop tells, until `stop`. A disk that is full only makes the file old.
pub(super) async fn keep(
    state: std::path::PathBuf,
    whose: Whose,
    mut beats: watch::Receiver<Option<Beat>>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut told = false;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            changed = beats.changed() => if changed.is_err() {
                stop.cancelled().await;
                return Ok(());
            },
        }
        let Some(beat) = beats.borrow_and_update().clone() else { continue };
        let (health, state) = (Health::of(&whose, beat), state.clone());
        let written = tokio::task::spawn_blocking(move || health.write(&state)).await?;
        if let Err(error) = written
            && !std::mem::replace(&mut told, true)
        {
            warn!(%error, "the node's health cannot be written down");
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = sleep(WRITE_EVERY) => {}
        }
    }
}
