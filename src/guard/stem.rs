//! The stem: a guard that has no run yet, kept by each node so that a guard is forked off it for every run.
//!
//! To fork a process this small takes a quarter of what it takes to start a program, and the node, which is large, has no
//! process to start and none to collect: it only sends what the guard is to have. What is on its way there is open all the
//! while, so a lock that is free still means that there is no guard and none is coming.
//!
//! It has nothing of any run, ends with the node that keeps it, and where it has ended, the node starts another. A
//! guard does not notice either.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg,
    socketpair,
};
use nix::unistd::{ForkResult, dup2_stdin, dup2_stdout, fork, setsid};

use super::folder::{FolderLock, RunFolder};
use crate::child;

/// What a guard is given.
pub struct Handed {
    pub folder: RunFolder,
    /// Held for as long as the guard's process lives.
    pub lock: FolderLock,
    /// The line to its node.
    pub node: UnixStream,
    pub null: File,
    /// The id of this boot of the machine.
    pub boot: String,
}

/// A stem, as seen from the node.
struct Stem {
    child: Child,
    socket: OwnedFd,
}

/// The stems of this process, by their program. There is no sense in a second one, whatever part of the process asks for
/// a guard.
static STEMS: Mutex<BTreeMap<PathBuf, Stem>> = Mutex::new(BTreeMap::new());

/// How long a stem may be busy with those before.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
const MOST_LOOKS: usize = 2500;

/// Has a guard of `program` begin. It holds the lock from here on; where it cannot begin, its end of the line is closed.
///
/// Errors: there is no stem, so there is no guard.
pub async fn spawn(program: &Path, folder: &RunFolder, lock: FolderLock, line: UnixStream) -> io::Result<()> {
    let handed = [OwnedFd::from(lock), line.into()];
    for _ in 0..MOST_LOOKS {
        match send(program, folder.path(), &handed) {
            Err(error) if is_busy(&error) => tokio::time::sleep(LOOK_AGAIN).await,
            sent => return sent,
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("{} takes no more runs", program.display())))
}

fn send(program: &Path, name: &Path, handed: &[OwnedFd; 2]) -> io::Result<()> {
    let mut stems = STEMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(stem) = stems.get(program) {
        match stem.send(name, handed) {
            // It has ended, and took nothing.
            Err(Errno::EPIPE | Errno::ECONNRESET) => {}
            sent => return Ok(sent?),
        }
    }
    let stem = Stem::start(program)?;
    let sent = stem.send(name, handed);
    stems.insert(program.to_owned(), stem);
    Ok(sent?)
}

/// There is no room for more on the way.
fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ETOOMANYREFS))
}

impl Stem {
    /// Never forks: the standard library's spawn without a hook stays on `posix_spawn`.
    fn start(program: &Path) -> io::Result<Stem> {
        // Whole messages, and an end that is seen.
        let kind = SockType::SeqPacket;
        let (socket, its) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
        let child = Command::new(program)
            .arg(" ".repeat(LONGEST_TITLE))
            .env_clear()
            .stdin(Stdio::from(its))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))?;
        Ok(Stem { child, socket })
    }

    fn send(&self, name: &Path, handed: &[OwnedFd; 2]) -> nix::Result<()> {
        let fds = [handed[0].as_raw_fd(), handed[1].as_raw_fd()];
        let (text, rights) = ([IoSlice::new(name.as_os_str().as_bytes())], [ControlMessage::ScmRights(&fds)]);
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(self.socket.as_raw_fd(), &text, &rights, flags, None).map(|_| ())
    }
}

impl Drop for Stem {
    fn drop(&mut self) {
        // Only one that has ended is let go of.
        let _ = self.child.wait();
    }
}

/// Room for the name of a run, as the list of processes shows it.
const LONGEST_TITLE: usize = 200;

/// The stem's life, in its own process. Comes back in each guard with what that one is given, and in the stem itself at
/// its end, with nothing.
///
/// `title` is where the list of processes finds the program's argument. Descriptor 0 is the line to the node.
///
/// Errors: it was not started by a node.
pub fn stem(title: &mut [u8]) -> io::Result<Option<Handed>> {
    let socket = move_away(0)?;
    close_the_rest()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    // What is typed at the node's terminal is not for it.
    setsid()?;
    let boot = child::boot_id()?;
    // Guards that have ended leave nothing to collect.
    set_child_signal(SigHandler::SigIgn)?;
    while let Some((name, lock, node)) = next(&socket)? {
        // SAFETY: a process of one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { .. }) => {}
            Ok(ForkResult::Child) => {
                // First: as long as a guard had it open too, nobody would see that the stem has ended.
                drop(socket);
                set_child_signal(SigHandler::SigDfl)?;
                set_title(title, &name);
                let (folder, lock) = (RunFolder::at(name), FolderLock::inherited(File::from(lock)));
                return Ok(Some(Handed { folder, lock, node: node.into(), null, boot }));
            }
            // Its node sees the line closed and the lock free.
            Err(errno) => eprintln!("fleetcron-guard: {}: new process: {}", name.display(), errno.desc()),
        }
    }
    Ok(None)
}

/// The next run. None: the node is gone.
fn next(socket: &OwnedFd) -> nix::Result<Option<(PathBuf, OwnedFd, OwnedFd)>> {
    let mut name = [0; libc::PATH_MAX as usize];
    loop {
        let mut rights = nix::cmsg_space!([RawFd; 2]);
        let (mut text, flags) = ([IoSliceMut::new(&mut name)], MsgFlags::MSG_CMSG_CLOEXEC);
        let got = match recvmsg::<()>(socket.as_raw_fd(), &mut text, Some(&mut rights), flags) {
            Err(Errno::EINTR) => continue,
            got => got?,
        };
        let length = got.bytes;
        let mut handed = Vec::new();
        for message in got.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = message {
                // SAFETY: they came with this message, and nobody else knows them.
                handed.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        if length == 0 {
            return Ok(None);
        }
        let name = PathBuf::from(OsString::from_vec(name[..length].to_vec()));
        // Only a process that may open no more files loses some on the way: they are closed, and the node sees that.
        if let (Some(node), Some(lock), None) = (handed.pop(), handed.pop(), handed.pop()) {
            return Ok(Some((name, lock, node)));
        }
    }
}

/// Marks every descriptor above the standard ones to be closed when the command is started: also those that whoever
/// started the daemon left open.
fn close_the_rest() -> io::Result<()> {
    // SAFETY: changes flags of descriptors only.
    let done = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
    if done == 0 {
        return Ok(());
    }
    // Kernels before 5.11 do not know it.
    for entry in std::fs::read_dir("/proc/self/fd")? {
        if let Some(fd) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok())
            && fd > 2
        {
            // SAFETY: as above.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

fn set_child_signal(handler: SigHandler) -> nix::Result<()> {
    // SAFETY: no handler of ours is called.
    unsafe { signal(Signal::SIGCHLD, handler) }.map(|_| ())
}

/// Shows in the list of processes which run a guard has.
fn set_title(title: &mut [u8], name: &Path) {
    let name = name.file_name().unwrap_or_default().as_bytes();
    let shown = name.len().min(title.len());
    title.fill(0);
    title[..shown].copy_from_slice(&name[..shown]);
}

/// Moves a descriptor away from the standard numbers, to where the command does not get it.
fn move_away(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor, which nobody else knows.
    match unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) } {
        -1 => Err(io::Error::last_os_error()),
        moved => Ok(unsafe { OwnedFd::from_raw_fd(moved) }),
    }
}
