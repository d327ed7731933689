//! The files of a run: what a node and a guard tell each other through the disk, so that it outlives both.
//!
//! | file | who, when |
//! | --- | --- |
//! | `NAME.run` | made and flocked by the node before the spawn, the open file inherited by the guard: not locked = no guard, and none on its way |
//! | `NAME.control` | the socket over which a guard is found again, bound by the guard once no node listens to it |
//! | `NAME.output` | the guard, with the first byte of output: see [`crate::output`] |
//!
//! A run file has one line of JSON for each thing that is known of the run, written by who holds its lock:
//!
//! | line | who, when |
//! | --- | --- |
//! | `{"spec": …}` | the node, before the spawn: what to run |
//! | `{"started": …}` | the guard, before it starts the command, if there is no such line yet and no `void` |
//! | `{"void": true}` | whoever closes a claim that never started: no guard starts anything here any more |
//! | `{"ended": …}` | the guard, synced, when the command has ended |
//!
//! Few files, and none in a folder of its own: making one is what costs most about a short run, and most runs have only
//! the run file. A line that was torn by a crash counts as never written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::hold::Contact;
use crate::child::ProcessId;
use crate::fire::Fire;
use crate::node::NodeStart;
use crate::record::Usage;
use crate::schedule::Timestamp;

/// The version of every form in a run file that this release writes. Guards of an older release may still run
/// when the daemon is replaced, so each released version is read for ever.
pub const VERSION: u32 = 1;

/// One claim's files, in the node's folder of runs.
#[derive(Debug, Clone)]
pub struct RunFolder {
    /// What the names of its files begin with.
    path: PathBuf,
}

/// The run file, locked: the lock is held until all who share the open file have closed it; never unlocked otherwise, since that
/// would take it from a guard that inherited it.
#[derive(Debug)]
pub struct FolderLock(File);

impl From<FolderLock> for OwnedFd {
    fn from(lock: FolderLock) -> OwnedFd {
        lock.0.into()
    }
}

/// Whose run it is, as the names of its files say: `JOB,LANE,FIRE,ATTEMPT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderName {
    pub fire: Fire,
    pub attempt: u32,
}

impl std::fmt::Display for FolderName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Fire { job, lane, id } = &self.fire;
        // No name holds a comma.
        write!(f, "{job},{lane},{id},{}", self.attempt)
    }
}

impl std::str::FromStr for FolderName {
    type Err = String;

    fn from_str(text: &str) -> Result<FolderName, String> {
        let odd = || format!("{text:?} is no run file's name");
        let [job, lane, id, attempt] = text.split(',').collect::<Vec<_>>()[..] else { return Err(odd()) };
        let fire = Fire {
            job: job.parse().map_err(|_| odd())?,
            lane: lane.parse().map_err(|_| odd())?,
            id: id.parse().map_err(|_| odd())?,
        };
        Ok(FolderName { fire, attempt: attempt.parse().map_err(|_| odd())? })
    }
}

/// What a guard is to run. Durations are in milliseconds, sizes in bytes. What came with a later release may be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    pub v: u32,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub workdir: String,
    pub timeout: Option<u64>,
    pub kill_after: u64,
    pub output_cap: u64,
    /// The exit codes that count as success. The guard does not judge; whoever closes the run does, by the job as it
    /// was when the run began.
    pub success_exit: BTreeSet<u8>,
    /// What the command leaves behind ends with it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub kill_leftovers: bool,
    /// The contact that the claim was, and its hold. None: nobody else may run it, so nothing stops it but its job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contact: Option<Contact>,
    /// Who runs the command; else whoever the guard is. Its home is then the working folder where `workdir` is empty, and
    /// its names are put into the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ionice: Option<String>,
    /// By the names that job files have for them; null is no limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Option<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub no_new_privs: bool,
    /// A file of the node with more variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_file: Option<String>,
    /// A credential of the daemon's with more variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<Credential>,
    /// Variables whose values are replaced in the output.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub redact: BTreeSet<String>,
    /// Each line of output is kept with its time.
    #[serde(default, skip_serializing_if = "is_false")]
    pub timestamps: bool,
    /// The cgroup to make for the command, where this node may make one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// Whose run it is, for whoever closes it when its lock is gone. The guard has no use for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// The claim that a run was started by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    #[serde(with = "crate::node::as_text")]
    pub node_start: NodeStart,
    /// The fencing token.
    pub token: i64,
    pub claimed_at: Timestamp,
}

/// A file that systemd gave to the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    pub name: String,
    /// Where the daemon has them; none, if it was started without.
    pub folder: Option<PathBuf>,
}

/// The guard's note that it starts the command now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub v: u32,
    /// The boot in which it was written: a guard of another boot is gone for certain.
    pub boot: String,
    /// The guard, which leads the session that the command is in.
    pub guard: ProcessId,
    pub at: Timestamp,
    /// The cgroup that the command is in with all it starts, where one could be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub v: u32,
    pub how: How,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// What failed, where it could not be started; who asked, where it was cancelled.
    pub reason: Option<String>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub output_bytes: u64,
    pub output_left_out: u64,
    /// Output was lost because the disk failed.
    pub output_failed: Option<String>,
    /// What the command and all that ended with it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Why a command's life was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// By itself, or by somebody else's signal.
    Exited,
    CouldNotStart,
    TimedOut,
    Cancelled,
    /// The hold passed without a contact.
    OutOfTouch,
    /// The machine went down.
    Shutdown,
}

/// What is known of a run, from its file.
#[derive(Debug, Default)]
struct Lines {
    spec: Option<Spec>,
    started: Option<Started>,
    void: bool,
    ended: Option<Ended>,
    /// Where the next line goes: behind the last whole one that says something.
    end: u64,
}

/// What a run file tells for a reader who does not touch its lock.
#[derive(Debug, Default)]
pub struct Notes {
    pub spec: Option<Spec>,
    pub started: Option<Started>,
    pub ended: Option<Ended>,
}

/// One line of a run file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Spec(Box<Spec>),
    Started(Started),
    Void(bool),
    Ended(Ended),
}

/// What a run file shows to a node that finds it.
#[derive(Debug)]
pub enum Found {
    /// The lock is held: a guard is there, or on its way.
    Guarded,
    /// The command ended; the lock is free.
    Ended(Ended),
    /// The guard is gone without a word about the end.
    Abandoned(Started, FolderLock),
    /// Nothing was started. Who holds the lock may write `void` and be sure that nothing ever is.
    NeverStarted(FolderLock),
}

/// A file's room for the line about the end, set aside before the command starts so that a full disk cannot lose it.
const ROOM_FOR_END: usize = 2048;
/// What a reason may take of that room.
const LONGEST_REASON: usize = 512;

impl RunFolder {
    /// Makes a claim's run file in `runs` and takes its lock. What a crash left half made is used.
    pub fn create(runs: &Path, name: &FolderName) -> io::Result<(RunFolder, FolderLock)> {
        let folder = RunFolder::at(runs.join(name.to_string()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(folder.file("run"))?;
        match lock(file)? {
            Some(lock) => Ok((folder, lock)),
            None => Err(io::Error::new(io::ErrorKind::WouldBlock, format!("{name} has a guard"))),
        }
    }

    /// The files of this name, if there are any.
    pub fn open(runs: &Path, name: &FolderName) -> Option<RunFolder> {
        let folder = RunFolder::at(runs.join(name.to_string()));
        folder.is_there().then_some(folder)
    }

    /// Whether the run file is there: from before the guard is spawned until the run has its record.
    pub fn is_there(&self) -> bool {
        self.file("run").is_file()
    }

    /// The files whose names begin so, as a guard is told it.
    pub fn at(path: PathBuf) -> RunFolder {
        RunFolder { path }
    }

    /// The files of all runs in `runs`, by name.
    pub fn list(runs: &Path) -> io::Result<Vec<(FolderName, RunFolder)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(runs)? {
            let file = entry?.file_name();
            let name =
                file.to_str().and_then(|file| file.strip_suffix(".run")).and_then(|name| name.parse().ok());
            found.extend(name.map(|name: FolderName| {
                let folder = RunFolder::at(runs.join(name.to_string()));
                (name, folder)
            }));
        }
        // Whatever order the file system has them in.
        found.sort_by(|(one, _), (other, _)| (&one.fire, one.attempt).cmp(&(&other.fire, other.attempt)));
        Ok(found)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn output(&self) -> PathBuf {
        self.file("output")
    }

    /// Looks at what is here. Answers for this moment, and for good where it returns the lock.
    pub fn look(&self) -> io::Result<Found> {
        let file = OpenOptions::new().read(true).write(true).open(self.file("run"))?;
        // The lock first: a guard writes about the end before it lets go of it.
        let (lines, lock) = match lock(file)? {
            Some(lock) => (lock.lines()?, Some(lock)),
            None => (self.lines()?, None),
        };
        Ok(match (lines, lock) {
            (Lines { ended: Some(ended), .. }, _) => Found::Ended(ended),
            (_, None) => Found::Guarded,
            (Lines { started: Some(started), .. }, Some(lock)) => Found::Abandoned(started, lock),
            (_, Some(lock)) => Found::NeverStarted(lock),
        })
    }

    pub fn read_spec(&self) -> io::Result<Spec> {
        self.lines()?.spec.ok_or_else(no_spec)
    }

    /// The guard's note, if there is one.
    pub fn read_started(&self) -> io::Result<Option<Started>> {
        Ok(self.lines()?.started)
    }

    /// All that was noted so far.
    pub fn notes(&self) -> io::Result<Notes> {
        let Lines { spec, started, ended, .. } = self.lines()?;
        Ok(Notes { spec, started, ended })
    }

    /// Whether a guard is there, or on its way.
    pub fn is_guarded(&self) -> bool {
        matches!(self.look(), Ok(Found::Guarded))
    }

    /// Binds the socket over which a node finds the guard again.
    pub fn bind_control(&self) -> io::Result<UnixListener> {
        let (_open, path) = self.control()?;
        match UnixListener::bind(&path) {
            // Of a guard that a crash of the machine took.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                fs::remove_file(&path)?;
                UnixListener::bind(path)
            }
            bound => bound,
        }
    }

    /// The folder it is in, open, and the path of the socket, good for as long as the folder is held open: a socket's
    /// path has at most 107 bytes, a folder's many more, so it is named through the open folder.
    pub fn control(&self) -> io::Result<(File, PathBuf)> {
        let folder = File::open(self.path.parent().ok_or_else(no_folder)?)?;
        let path = format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), self.control_name()?);
        Ok((folder, path.into()))
    }

    fn control_name(&self) -> io::Result<String> {
        let name = self.path.file_name().and_then(|name| name.to_str()).ok_or_else(no_folder)?;
        let short = match name.len() <= LONGEST_SOCKET_NAME {
            true => name.to_owned(),
            // The digest is as good: no other run has it.
            false => {
                Sha256::digest(name.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
            }
        };
        Ok(format!("{short}.control"))
    }

    /// Removes all files; those that are gone count as removed. The run file goes last: as long as it is there, the
    /// others are found again.
    pub fn remove(&self) -> io::Result<()> {
        let gone = |path: PathBuf| match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        gone(self.path.with_file_name(self.control_name()?))?;
        gone(self.output())?;
        gone(self.file("run"))
    }

    fn lines(&self) -> io::Result<Lines> {
        read_lines(&File::open(self.file("run"))?)
    }

    /// With `extension` behind the whole name, which has dots of its own.
    fn file(&self, extension: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".");
        path.push(extension);
        path.into()
    }
}

/// Leaves room for the number of the folder's descriptor, which is another in every process.
const LONGEST_SOCKET_NAME: usize = 64;

impl FolderLock {
    /// The lock that a guard inherited.
    pub fn inherited(file: File) -> FolderLock {
        FolderLock(file)
    }

    /// Writes what is to be run, in place of all that was here.
    pub fn write_spec(&self, spec: &Spec) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.write_all_at(&json(&Line::Spec(Box::new(spec.clone()))), 0)
    }

    pub fn read_spec(&self) -> io::Result<Spec> {
        self.lines()?.spec.ok_or_else(no_spec)
    }

    /// The guard's note, before it starts anything; sets the room for the end aside.
    ///
    /// Errors: `AlreadyExists` where a note or `void` is there; the caller must then go without starting anything.
    pub fn note_started(&self, started: &Started) -> io::Result<EndLine> {
        let lines = self.lines()?;
        if lines.void || lines.started.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let line = json(&Line::Started(started.clone()));
        let at = lines.end + line.len() as u64;
        // Blank lines say nothing, and their blocks are there.
        self.0.write_all_at(&[line, vec![b'\n'; ROOM_FOR_END]].concat(), lines.end)?;
        Ok(EndLine { at })
    }

    /// Makes sure that nothing is ever started here: holding the lock shows that no guard is on its way.
    pub fn void(&self) -> io::Result<()> {
        self.0.write_all_at(&json(&Line::Void(true)), self.lines()?.end)?;
        self.0.sync_all()
    }

    /// Writes how the command ended; it is on the disk itself when this returns. (Syncing a file that is new syncs its
    /// place in the folder as well, on the file systems that Linux servers use.)
    pub fn note_ended(&self, place: &EndLine, ended: &Ended) -> io::Result<()> {
        let mut ended = ended.clone();
        for text in [&mut ended.reason, &mut ended.output_failed].into_iter().flatten() {
            text.truncate(text.floor_char_boundary(LONGEST_REASON));
        }
        self.0.write_all_at(&json(&Line::Ended(ended)), place.at)?;
        self.0.sync_data()
    }

    fn lines(&self) -> io::Result<Lines> {
        read_lines(&self.0)
    }
}

/// Where in a run file the line about the end goes.
#[derive(Debug)]
pub struct EndLine {
    at: u64,
}

fn lock(file: File) -> io::Result<Option<FolderLock>> {
    match file.try_lock() {
        Ok(()) => Ok(Some(FolderLock(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn read_lines(file: &File) -> io::Result<Lines> {
    let mut text = vec![0; file.metadata()?.len() as usize];
    let read = file.read_at(&mut text, 0)?;
    let mut lines = Lines::default();
    let mut at = 0;
    for line in text[..read].split_inclusive(|&byte| byte == b'\n') {
        at += line.len() as u64;
        // The room for the end is two thousand of these.
        if line == b"\n" {
            continue;
        }
        // A later release may write lines that this one does not know; a torn one has no end.
        let Ok(line) = serde_json::from_slice(line) else { continue };
        lines.end = at;
        match line {
            Line::Spec(spec) => lines.spec = Some(*spec),
            Line::Started(started) => lines.started = Some(started),
            Line::Void(void) => lines.void = void,
            Line::Ended(ended) => lines.ended = Some(ended),
        }
    }
    Ok(lines)
}

fn no_folder() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a run's files are in a folder")
}

fn no_spec() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the run file says nothing of what is to be run")
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// One line of JSON.
pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(value).expect("these forms have only text keys");
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_folder() -> (tempfile::TempDir, RunFolder, FolderLock) {
        let dir = tempfile::tempdir().unwrap();
        let name = "backup,-,20261130T020000Z,1".parse().unwrap();
        let (folder, lock) = RunFolder::create(dir.path(), &name).unwrap();
        (dir, folder, lock)
    }

    fn started() -> Started {
        Started {
            v: VERSION,
            boot: "b".into(),
            guard: ProcessId::own().unwrap(),
            at: Timestamp::UNIX_EPOCH,
            cgroup: None,
        }
    }

    #[test]
    fn a_folder_is_named_by_its_claim() {
        for text in ["backup,-,20261130T020000Z,1", "a.b,@db-1,m-01ARZ3NDEKTSV4RRFFQ69G5FAV,12"] {
            assert_eq!(text.parse::<FolderName>().map(|n| n.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "backup", "backup,-,20261130T020000Z", "backup,-,20261130T020000Z,1,2", "A,-,x,1"] {
            assert!(text.parse::<FolderName>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_held_lock_means_guarded_and_a_free_one_tells_how_far_it_came() {
        let (_dir, folder, lock) = a_folder();
        assert!(matches!(folder.look().unwrap(), Found::Guarded));
        drop(lock);
        let Found::NeverStarted(lock) = folder.look().unwrap() else { panic!("nothing started") };
        let end = lock.note_started(&started()).unwrap();
        drop(lock);
        let Found::Abandoned(s, lock) = folder.look().unwrap() else { panic!("it started") };
        assert_eq!(s, started());
        let ended = Ended {
            v: VERSION,
            how: How::Exited,
            exit_code: Some(3),
            signal: None,
            reason: None,
            started_at: None,
            ended_at: Timestamp::UNIX_EPOCH,
            output_bytes: 0,
            output_left_out: 0,
            output_failed: None,
            usage: None,
        };
        let size = std::fs::metadata(folder.file("run")).unwrap().len();
        lock.note_ended(&end, &ended).unwrap();
        assert_eq!(std::fs::metadata(folder.file("run")).unwrap().len(), size, "the room was set aside");
        drop(lock);
        assert!(matches!(folder.look().unwrap(), Found::Ended(e) if e == ended));
    }

    #[test]
    fn only_one_guard_notes_that_it_starts_and_none_after_void() {
        let (_dir, _folder, lock) = a_folder();
        lock.note_started(&started()).unwrap();
        let again = lock.note_started(&started()).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);

        let (_dir, _folder, lock) = a_folder();
        lock.void().unwrap();
        lock.void().unwrap();
        let late = lock.note_started(&started()).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn what_a_crash_tore_counts_as_never_written() {
        let (_dir, folder, lock) = a_folder();
        let spec = Spec { v: VERSION, argv: vec!["true".into()], workdir: "/".into(), ..Spec::default() };
        lock.write_spec(&spec).unwrap();
        let file = OpenOptions::new().append(true).open(folder.file("run")).unwrap();
        std::io::Write::write_all(&mut &file, b"{\"started\":{\"v\":1,\"bo").unwrap();
        assert_eq!(folder.read_spec().unwrap(), spec);
        let end = lock.note_started(&started()).unwrap();
        assert_eq!(lock.lines().unwrap().started, Some(started()));
        assert!(end.at > 0);
    }

    #[test]
    fn a_second_claim_of_the_same_folder_is_refused_while_it_is_locked() {
        let (dir, _folder, lock) = a_folder();
        let name = "backup,-,20261130T020000Z,1".parse().unwrap();
        assert_eq!(RunFolder::create(dir.path(), &name).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        assert!(RunFolder::create(dir.path(), &name).is_ok());
    }
}
