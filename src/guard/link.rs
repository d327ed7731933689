//! The node's side: it spawns guards, finds them again, hears from them and speaks to them.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

use super::folder::{Ended, FolderLock, RunFolder, Spec, json};
use super::hold::Contact;
use crate::child::{self, ProcessId};
use crate::schedule::Timestamp;

/// What a node asks of a guard: one line of JSON each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
pub enum Request {
    /// TERM, `kill_after`, KILL.
    Cancel { reason: String },
    /// KILL now.
    Kill { reason: String },
    /// The node was in touch with the store, and its lock says so long a hold. Answered with what is in force then,
    /// unless the run has no hold.
    Contact(Contact),
    /// The machine goes down: TERM, `kill_after`, KILL.
    Shutdown,
}

/// What a guard says: one line of JSON each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "say")]
pub enum Answer {
    /// To whoever connects.
    Hello {
        v: u32,
        started_at: Option<Timestamp>,
    },
    /// The contact and hold that are in force: the answer to each contact.
    Holds(Contact),
    Ended(Ended),
}

/// What a node hears of a guard.
#[derive(Debug)]
pub enum Heard {
    /// The guard lives; the command was started then, or could not be.
    Started(Option<Timestamp>),
    /// The contact and hold that are in force there: the answer to each contact.
    Holds(Contact),
    Ended(Ended),
    /// It is gone. What the run file shows is all there is to know.
    Gone,
}

/// A guard, as a node knows it.
pub struct Guard {
    lines: Lines<BufReader<OwnedReadHalf>>,
    speak: OwnedWriteHalf,
    /// Where this process spawned it, so that it is reaped.
    child: Option<Child>,
    /// Where another process did.
    process: Option<ProcessId>,
}

impl Guard {
    /// Spawns the guard `program` for a claim's folder. It inherits the folder's lock, so from here on the lock says
    /// whether there is a guard.
    ///
    /// Never forks: the standard library's spawn without a hook stays on `posix_spawn`.
    pub async fn spawn(
        program: &Path,
        folder: &RunFolder,
        lock: FolderLock,
        spec: &Spec,
    ) -> io::Result<Guard> {
        lock.write_spec(spec)?;
        let listener = folder.bind_control()?;
        // Before the spawn: a short command's guard may be gone before this thread runs again.
        let mut guard = Guard::connect(folder).await?;
        let child = Command::new(program)
            .arg(folder.path())
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(lock)))
            .stdout(Stdio::from(OwnedFd::from(listener)))
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))?;
        (guard.process, guard.child) = (None, Some(child));
        Ok(guard)
    }

    /// Finds a guard that an earlier life of this node spawned.
    pub async fn connect(folder: &RunFolder) -> io::Result<Guard> {
        let (_open, path) = folder.control()?;
        let (read, speak) = UnixStream::connect(path).await?.into_split();
        let process = folder.read_started().ok().flatten().map(|started| started.guard);
        Ok(Guard { lines: BufReader::new(read).lines(), speak, child: None, process })
    }

    /// What it says next. Safe to drop while it waits.
    pub async fn hear(&mut self) -> Heard {
        loop {
            match self.lines.next_line().await {
                Ok(Some(line)) => match serde_json::from_str(&line) {
                    Ok(Answer::Hello { started_at, .. }) => return Heard::Started(started_at),
                    Ok(Answer::Holds(contact)) => return Heard::Holds(contact),
                    Ok(Answer::Ended(ended)) => return Heard::Ended(ended),
                    // A guard of a later release may say more than we know.
                    Err(_) => continue,
                },
                Ok(None) | Err(_) => return Heard::Gone,
            }
        }
    }

    /// Asks for something. A guard that is gone cannot be asked; [`Guard::hear`] tells so.
    pub async fn ask(&mut self, request: &Request) {
        let _ = self.speak.write_all(&json(request)).await;
    }

    /// Passes on that this node was in touch with the store, and the hold that its lock says. Only for a lock that this
    /// node was shown as its own.
    pub async fn keep(&mut self, contact: Contact) {
        self.ask(&Request::Contact(contact)).await;
    }

    /// Has a guard that was stopped by a signal go on: nobody may want that, least of all its command.
    pub fn wake(&self) {
        match (&self.child, self.process) {
            // Not reaped yet, so the number is still its own.
            (Some(child), _) => child.id().into_iter().for_each(|pid| child::wake(pid as i32, None)),
            (None, Some(process)) => child::wake(process.pid, Some(process)),
            (None, None) => {}
        }
    }

    /// Waits until the process is gone, where this process spawned it.
    pub async fn reap(mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.wait().await;
        }
    }
}

/// Asks a guard for something without waiting for what comes of it.
pub fn ask_at_once(folder: &RunFolder, request: &Request) -> io::Result<()> {
    let (_open, path) = folder.control()?;
    std::os::unix::net::UnixStream::connect(path)?.write_all(&json(request))
}
