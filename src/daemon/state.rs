//! The state folder: what a node remembers on its own disk from one daemon to the next.
//!
//! | entry | what |
//! | --- | --- |
//! | `lock` | flocked while a daemon uses the folder |
//! | `node` | this life of the node, in which boot and on which machine it began, and the lives before it |
//! | `files` | by source, the digest of the job files when they were last looked at |
//! | `health.json` | how fresh the node's doings are: see [`super::health`] |
//! | `runs/` | run files: see [`crate::guard::folder`] |
//! | `output/` | output of runs that have their record |
//! | `journal/` | what the node ran, by day: see [`crate::journal`] |

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::child;
use crate::config::StateFolder;
use crate::journal::Journal;
use crate::node::{NodeName, NodeStart};

const VERSION: u32 = 1;

/// A state folder in use.
pub struct State {
    dir: PathBuf,
    /// This life of the node.
    pub start: NodeStart,
    /// Those before it, on this machine: what they left is this node's to close.
    earlier: Vec<NodeStart>,
    _lock: File,
}

/// The file `node`.
#[derive(Serialize, Deserialize)]
struct NodeFile {
    v: u32,
    node: String,
    start: String,
    boot: String,
    machine: String,
    earlier: Vec<String>,
}

/// What a state folder tells a life of the node by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The id of this boot.
    pub boot: String,
    /// What tells the machine from a copy of its disk.
    pub machine: String,
    /// The node start, if a new life begins.
    pub fresh: NodeStart,
}

impl Life {
    /// On this machine.
    ///
    /// Errors: the id of the boot cannot be read.
    pub fn here() -> io::Result<Life> {
        Ok(Life { boot: child::boot_id()?, machine: child::machine_id(), fresh: NodeStart(Ulid::generate()) })
    }
}

/// More lives than this are not remembered: their locks are long closed.
const MOST_LIVES: usize = 100;

impl State {
    /// Takes a node's state folder into use, making it if need be.
    ///
    /// Errors: another daemon uses it, it belongs to another node, or it cannot be read.
    pub fn open(dir: &Path, node: &str, life: Life) -> anyhow::Result<State> {
        let layout = StateFolder::at(dir.to_owned());
        for folder in [dir.to_owned(), layout.runs(), layout.outputs()] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .with_context(|| format!("the state folder {} cannot be made", folder.display()))?;
        }
        let lock = take_lock(dir)?;
        let Life { boot, machine, fresh } = life;
        let path = dir.join("node");
        let before: Option<NodeFile> = read(&path)?;
        let (start, earlier) = match before {
            Some(file) if file.node != node => bail!(
                "the state folder {} is that of node {}, not of {node}; give this node its own with --state",
                dir.display(),
                file.node
            ),
            // The same boot: the same life, whose guards may be running.
            Some(file) if file.boot == boot && file.machine == machine => (file.start, file.earlier),
            Some(mut file) if file.machine == machine => {
                file.earlier.push(file.start);
                let from = file.earlier.len().saturating_sub(MOST_LIVES);
                (fresh.to_string(), file.earlier.split_off(from))
            }
            // Copied from another machine: what that one left is not ours to close.
            _ => (fresh.to_string(), Vec::new()),
        };
        let file = NodeFile { v: VERSION, node: node.to_owned(), start, boot, machine, earlier };
        write(&path, &file)?;
        let starts = |texts: &[String]| texts.iter().filter_map(|text| text.parse().ok()).collect();
        Ok(State {
            dir: dir.to_owned(),
            start: file.start.parse().with_context(|| format!("{} holds no node start", path.display()))?,
            earlier: starts(&file.earlier),
            _lock: lock,
        })
    }

    /// Whether what this node start left is this node's to close.
    pub fn is_own(&self, start: NodeStart) -> bool {
        start == self.start || self.earlier.contains(&start)
    }

    pub fn runs(&self) -> PathBuf {
        StateFolder::at(self.dir.clone()).runs()
    }

    pub fn outputs(&self) -> PathBuf {
        StateFolder::at(self.dir.clone()).outputs()
    }

    pub fn journal(&self) -> Journal {
        Journal::at(StateFolder::at(self.dir.clone()).journal())
    }

    /// The digests that were last seen.
    pub fn files_seen(&self) -> anyhow::Result<BTreeMap<String, String>> {
        Ok(read(&self.dir.join("files"))?.unwrap_or_default())
    }

    pub fn note_files_seen(&self, digests: &BTreeMap<String, String>) -> anyhow::Result<()> {
        write(&self.dir.join("files"), digests)
    }
}

/// Whose state folder it is, and in which life, for who only looks at it.
///
/// Errors: it is none, or cannot be read.
pub fn owner_of(dir: &Path) -> anyhow::Result<(NodeName, NodeStart)> {
    let file: Option<NodeFile> = read(&dir.join("node"))?;
    let Some(file) = file else { bail!("{} is no state folder of a node", dir.display()) };
    let odd = || format!("{} names no node", dir.join("node").display());
    Ok((file.node.parse().with_context(odd)?, file.start.parse().with_context(odd)?))
}

/// Whether a daemon uses a state folder. None: there is no node's.
pub fn is_in_use(dir: &Path) -> io::Result<Option<bool>> {
    let file = match File::open(dir.join("lock")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // Shared, and let go of at once: a daemon that starts just now tries again.
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(false)),
        Err(TryLockError::WouldBlock) => Ok(Some(true)),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn take_lock(dir: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join("lock"))
        .with_context(|| format!("the state folder {} cannot be used", dir.display()))?;
    let give_up = Instant::now() + STILL_SPAWNING;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // Of a daemon that was killed while it spawned a guard, the new process holds the lock until it execs.
            Err(TryLockError::WouldBlock) if Instant::now() < give_up => std::thread::sleep(LOOK_AGAIN),
            Err(TryLockError::WouldBlock) => bail!(
                "the state folder {} is in use by another daemon; two nodes on one machine each need their own \
                 --node",
                dir.display()
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error)
                    .with_context(|| format!("the state folder {} cannot be locked", dir.display()));
            }
        }
    }
}

/// How long a process that was just spawned may take to exec, on a machine that is busy.
const STILL_SPAWNING: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Option<T>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("{} cannot be read", path.display()))?,
    };
    serde_json::from_slice(&text).map(Some).with_context(|| format!("{} cannot be read", path.display()))
}

/// Whole or not at all, also after a power cut.
fn write(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let written = || -> io::Result<()> {
        let new = path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(value)?)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(path.parent().expect("a file is in a folder"))?.sync_all()
    };
    written().with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_in_the_same_boot_is_the_same_life() {
        let dir = tempfile::tempdir().unwrap();
        let first = State::open(dir.path(), "a", Life::here().unwrap()).unwrap().start;
        let again = State::open(dir.path(), "a", Life::here().unwrap()).unwrap();
        assert_eq!(again.start, first);
        assert!(again.is_own(first));
    }

    #[test]
    fn a_boot_makes_another_life_and_another_machine_a_stranger() {
        let dir = tempfile::tempdir().unwrap();
        let first = State::open(dir.path(), "a", Life::here().unwrap()).unwrap().start;
        let change = |field: fn(&mut NodeFile)| {
            let path = dir.path().join("node");
            let mut file: NodeFile = read(&path).unwrap().unwrap();
            field(&mut file);
            write(&path, &file).unwrap();
            State::open(dir.path(), "a", Life::here().unwrap()).unwrap()
        };
        let second = change(|file| file.boot = "another".into());
        assert_ne!(second.start, first);
        assert!(second.is_own(first));
        drop(second);
        let copied = change(|file| file.machine = "another".into());
        assert!(!copied.is_own(first));
    }

    #[test]
    fn two_daemons_do_not_share_a_state_folder_nor_two_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path(), "a", Life::here().unwrap()).unwrap();
        let refused = State::open(dir.path(), "a", Life::here().unwrap()).err().unwrap().to_string();
        assert!(refused.contains("in use by another daemon"), "{refused}");
        drop(state);
        let refused = State::open(dir.path(), "b", Life::here().unwrap()).err().unwrap().to_string();
        assert!(refused.contains("that of node a"), "{refused}");
    }
}
