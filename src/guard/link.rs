//! The node's side: it spawns guards, finds them again, hears from them and speaks to them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::folder::{Ended, FolderLock, RunFolder, Spec, json};
use super::hold::Contact;
use super::{sim, stem};
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
    /// To whoever begins to listen.
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

/// Where a node's guards come from.
#[derive(Clone)]
pub enum Guards {
    /// Of this executable.
    Program(PathBuf),
    Simulated(sim::Host),
}

impl Guards {
    /// Has a guard begin for a claim's run file. It is given the file's lock, so from here on the lock says whether there
    /// is a guard.
    pub async fn spawn(&self, folder: &RunFolder, lock: FolderLock, spec: &Spec) -> io::Result<Guard> {
        match self {
            Guards::Program(program) => Guard::spawn(program, folder, lock, spec).await,
            Guards::Simulated(host) => {
                lock.write_spec(spec)?;
                Ok(Guard { line: Line::Simulated(host.spawn(folder, lock)), process: None })
            }
        }
    }

    /// Finds a guard that an earlier life of this node had begin.
    ///
    /// It is waited for as long as there is a guard: one that nobody listens to, however it came to that, makes itself be found.
    pub async fn connect(&self, folder: &RunFolder) -> io::Result<Guard> {
        match self {
            Guards::Program(_) => Guard::connect(folder).await,
            Guards::Simulated(host) => loop {
                match host.connect(folder) {
                    Ok(line) => return Ok(Guard { line: Line::Simulated(line), process: None }),
                    Err(error) if may_come(&error) && folder.is_guarded() => {
                        tokio::time::sleep(LOOK_AGAIN).await;
                    }
                    Err(error) => return Err(error),
                }
            },
        }
    }
}

/// A guard, as a node knows it.
pub struct Guard {
    line: Line,
    /// Its process, once that was looked up.
    process: Option<ProcessId>,
}

/// What goes to a guard and comes from it.
enum Line {
    Socket { lines: Lines<BufReader<OwnedReadHalf>>, speak: OwnedWriteHalf },
    Simulated(sim::Line),
}

impl Guard {
    /// Spawns a guard of `program`: see [`Guards::spawn`].
    pub async fn spawn(
        program: &Path,
        folder: &RunFolder,
        lock: FolderLock,
        spec: &Spec,
    ) -> io::Result<Guard> {
        lock.write_spec(spec)?;
        // A pair, and no file for it: the guard makes one when it sees this end closed, so that it is found again.
        let (ours, its) = std::os::unix::net::UnixStream::pair()?;
        stem::spawn(program, folder, lock, its).await?;
        ours.set_nonblocking(true)?;
        Ok(Guard::over(UnixStream::from_std(ours)?))
    }

    /// Finds a guard's process: see [`Guards::connect`].
    pub async fn connect(folder: &RunFolder) -> io::Result<Guard> {
        let (_open, path) = folder.control()?;
        loop {
            match UnixStream::connect(&path).await {
                Ok(stream) => return Ok(Guard::over(stream)),
                Err(error) if may_come(&error) && folder.is_guarded() => tokio::time::sleep(LOOK_AGAIN).await,
                Err(error) => return Err(error),
            }
        }
    }

    fn over(stream: UnixStream) -> Guard {
        let (read, speak) = stream.into_split();
        let lines = BufReader::with_capacity(ROOM_FOR_LINE, read).lines();
        Guard { line: Line::Socket { lines, speak }, process: None }
    }

    /// What it says next. Safe to drop while it waits.
    pub async fn hear(&mut self) -> Heard {
        match self.line.hear().await {
            Some(Answer::Hello { started_at, .. }) => Heard::Started(started_at),
            Some(Answer::Holds(contact)) => Heard::Holds(contact),
            Some(Answer::Ended(ended)) => Heard::Ended(ended),
            None => Heard::Gone,
        }
    }

    /// Asks for something. A guard that is gone cannot be asked; [`Guard::hear`] tells so.
    pub async fn ask(&mut self, request: &Request) {
        match &mut self.line {
            Line::Socket { speak, .. } => _ = speak.write_all(&json(request)).await,
            Line::Simulated(line) => line.ask(request).await,
        }
    }

    /// Passes on that this node was in touch with the store, and the hold that its lock says. Only for a lock that this
    /// node was shown as its own.
    pub async fn keep(&mut self, contact: Contact) {
        self.ask(&Request::Contact(contact)).await;
    }

    /// Has a guard that was stopped by a signal go on: nobody may want that, least of all its command.
    pub fn wake(&mut self, folder: &RunFolder) {
        if self.process.is_none() {
            self.process = folder.read_started().ok().flatten().map(|started| started.guard);
        }
        if let Some(process) = self.process {
            child::wake(process);
        }
    }

    /// Waits until the process is gone.
    pub async fn reap(mut self) {
        while !matches!(self.hear().await, Heard::Gone) {}
    }
}

impl Line {
    /// None: nothing more comes.
    async fn hear(&mut self) -> Option<Answer> {
        let lines = match self {
            Line::Socket { lines, .. } => lines,
            Line::Simulated(line) => return line.hear().await,
        };
        loop {
            let line = lines.next_line().await.ok().flatten()?;
            // A guard of a later release may say more than we know.
            if let Ok(answer) = serde_json::from_str(&line) {
                return Some(answer);
            }
        }
    }
}

/// Most of what a guard says fits; a node with a thousand runs has as many of these.
const ROOM_FOR_LINE: usize = 512;

/// How soon a guard that has just lost its node may be found.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Whether a socket that cannot be connected to may be there soon.
fn may_come(error: &io::Error) -> bool {
    // Refused: it is bound and not listened to yet.
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
