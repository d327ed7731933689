//! Cgroups, version 2: where the machine lets a node make some, each run has one of its own.
//!
//! What a command starts stays in its cgroup whatever session it makes and whoever adopts it, so a KILL reaches all of
//! it at once, and whether any of it lives can be seen even when its guard is gone. Memory and the number of processes
//! are limited for all of it together.
//!
//! ```text
//! BASE                    the cgroup of the service; also the daemon's own where no controller is handed on
//! ├── daemon              the daemon and the guards, if the service manager puts them there
//! └── fleetcron-runs-KEY  of one state folder
//!     └── JOB,LANE,FIRE,ATTEMPT   a command with all that it started, and what it left behind
//! ```
//!
//! Never moves a process but the one that becomes the command. A cgroup that hands controllers on may have no process
//! of its own, and a service manager that starts the daemon anew puts it into BASE, which then fails as long as runs
//! live on. So controllers are handed on only where the manager itself puts the daemon into a leaf
//! (`DelegateSubgroup=daemon`); elsewhere memory and processes are limited as everything else is, by rlimits.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::unistd::{AccessFlags, access};
use sha2::{Digest, Sha256};

use crate::child::plain;
use crate::job::Limit;

/// The part of the tree that is this process's to arrange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegated {
    base: PathBuf,
    /// This process is in a leaf below it, so that it may hand controllers on.
    in_leaf: bool,
}

/// Where a service manager puts the daemon if it is told so.
const LEAF: &str = "daemon";
const RUNS: &str = "fleetcron-runs-";

impl Delegated {
    /// Looks where this process may make cgroups. Changes nothing.
    ///
    /// Errors: nowhere; why, in a few words.
    pub fn find() -> Result<Delegated, String> {
        let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let own = own_cgroup(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)?;
        delegated(own)
    }

    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Whether the kernel ends all of a cgroup at once when it is asked to (Linux 5.14).
    pub fn has_kill(&self) -> bool {
        // The root of the tree has no such file, whatever the kernel can.
        self.base.join("cgroup.kill").exists() || kernel_has_kill(&self.base)
    }

    /// The limits that the cgroups of runs take over here, as far as can be seen without making one.
    pub fn limits(&self) -> Vec<Limit> {
        let handed_on = words(&self.base.join("cgroup.subtree_control"));
        let could_be = match self.in_leaf {
            true => words(&self.base.join("cgroup.controllers")),
            false => handed_on,
        };
        let taken = Limit::ALL.into_iter().filter(|limit| {
            file_of(*limit).is_some_and(|file| could_be.iter().any(|name| file.starts_with(name)))
        });
        taken.collect()
    }

    /// Hands on what runs are limited by, and removes the empty ones that earlier lives of any node left. Returns the folder of the
    /// cgroups of one state folder's runs, which is made with the first one.
    pub fn take_up(&self, state: &Path) -> PathBuf {
        if self.in_leaf {
            hand_on(&self.base);
        }
        let runs = self.runs(state);
        for folder in folders(&self.base) {
            if folder.file_name().is_some_and(|name| name.as_bytes().starts_with(RUNS.as_bytes())) {
                sweep(&folder);
                give_back(&folder);
            }
        }
        runs
    }

    fn runs(&self, state: &Path) -> PathBuf {
        // Two nodes on one machine may each run a fire of this name, of two stores.
        let state = fs::canonicalize(state).unwrap_or_else(|_| state.to_owned());
        let key: String =
            Sha256::digest(state.as_os_str().as_bytes()).iter().take(4).map(|b| format!("{b:02x}")).collect();
        self.base.join(format!("{RUNS}{key}"))
    }
}

/// Where the cgroup of this process is, from the two files of `/proc` that tell it.
fn own_cgroup(cgroup: &str, mountinfo: &str) -> Result<PathBuf, String> {
    let own = cgroup
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .ok_or("this kernel has no cgroup v2, or it is not in use")?;
    // Beside version 1 it is mounted elsewhere, so the place is looked up.
    for line in mountinfo.lines() {
        let Some((mount, rest)) = line.split_once(" - ") else { continue };
        let fields: Vec<&str> = mount.split(' ').collect();
        let (Some(root), Some(place), true) = (fields.get(3), fields.get(4), rest.starts_with("cgroup2 "))
        else {
            continue;
        };
        let inside = match *root {
            "/" => Some(own),
            root => own.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/')),
        };
        if let Some(inside) = inside {
            let inside = inside.trim_start_matches('/');
            // What a namespace hides begins so.
            if inside.split('/').any(|part| part == "..") {
                continue;
            }
            let place = PathBuf::from(unescaped(place));
            return Ok(if inside.is_empty() { place } else { place.join(inside) });
        }
    }
    Err("no cgroup v2 is mounted that shows this process".to_owned())
}

/// The kernel writes blanks in paths as three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, is)| text.replace(code, is))
}

fn delegated(own: PathBuf) -> Result<Delegated, String> {
    let above = own.parent().filter(|_| own.file_name().is_some_and(|name| name == LEAF));
    if let Some(base) = above
        && may_arrange(base).is_ok()
    {
        return Ok(Delegated { base: base.to_owned(), in_leaf: true });
    }
    match may_arrange(&own) {
        Ok(()) => Ok(Delegated { base: own, in_leaf: false }),
        Err(errno) => {
            Err(format!("{} is not this user's to arrange: {}", own.display(), errno.desc().to_lowercase()))
        }
    }
}

/// To move a process one must also be allowed to write into the cgroup above both places.
fn may_arrange(base: &Path) -> nix::Result<()> {
    access(base, AccessFlags::W_OK | AccessFlags::X_OK)?;
    access(&base.join("cgroup.procs"), AccessFlags::W_OK)
}

fn kernel_has_kill(base: &Path) -> bool {
    folders(base).iter().any(|folder| folder.join("cgroup.kill").exists())
        || nix::sys::utsname::uname().is_ok_and(|name| is_since(&name.release().to_string_lossy(), (5, 14)))
}

fn is_since(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
    (major, minor) >= version
}

/// Lets the cgroups below have the controllers that limit runs, as far as this one has them.
fn hand_on(folder: &Path) {
    for name in words(&folder.join("cgroup.controllers")) {
        if ["memory", "pids"].contains(&name.as_str()) {
            // One by one: what cannot be handed on is limited otherwise.
            let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{name}"));
        }
    }
}

/// Removes the cgroups in `runs` in which nothing lives any more: what a command left behind kept its own until now.
pub fn sweep(runs: &Path) {
    for folder in folders(runs) {
        // A guard that is just starting has made its own and not filled it yet.
        let is_old = fs::metadata(&folder)
            .and_then(|is| is.modified())
            .is_ok_and(|made| made.elapsed().is_ok_and(|age| age > JUST_MADE));
        if is_old {
            let _ = Cgroup { path: folder }.remove();
        }
    }
}

/// Removes `runs` when no run is in it any more; the next one makes it again.
pub fn give_back(runs: &Path) {
    // Refused as long as there is one.
    let _ = fs::remove_dir(runs);
}

const JUST_MADE: Duration = Duration::from_secs(60);

/// The cgroup of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes it. One that is there and empty is taken: of a guard that went before it began.
    ///
    /// Errors: it cannot be made here; the run goes without.
    pub fn create(path: &Path) -> io::Result<Cgroup> {
        let group = Cgroup { path: path.to_owned() };
        let make = || DirBuilder::new().mode(0o755).create(path);
        match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let runs = path.parent().ok_or(error)?;
                fs::create_dir(runs).or_else(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => Ok(()),
                    _ => Err(error),
                })?;
                hand_on(runs);
                make()?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && group.is_empty()? => {}
            made => made?,
        }
        Ok(group)
    }

    /// One that a guard has made.
    pub fn at(path: PathBuf) -> Cgroup {
        Cgroup { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its folder, which is the way in for [`crate::child::start`].
    pub fn folder(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    /// Limits all that will be in it together. Returns what is left for rlimits, which count for each process.
    ///
    /// Errors: which limit, and why.
    pub fn limit(&self, limits: Vec<(Limit, Option<u64>)>) -> Result<Vec<(Limit, Option<u64>)>, String> {
        let mut rest = Vec::new();
        for (limit, most) in limits {
            let file = file_of(limit).map(|name| self.path.join(name)).filter(|file| file.exists());
            if let Some(file) = &file {
                let text = most.map_or_else(|| "max".to_owned(), |most| most.to_string());
                fs::write(file, text)
                    .map_err(|error| format!("limits: {}: {}", limit.word(), plain(&error)))?;
            }
            // An end that the daemon's own rlimits set is taken away here as well.
            if file.is_none() || most.is_none() {
                rest.push((limit, most));
            }
        }
        Ok(rest)
    }

    /// How many processes in it the kernel has ended for want of memory, as far as it counts them here.
    pub fn out_of_memory(&self) -> u64 {
        let events = fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
        let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Whether nothing lives in it or below it. One that is gone is empty.
    pub fn is_empty(&self) -> io::Result<bool> {
        match fs::read_to_string(self.path.join("cgroup.events")) {
            Ok(text) => Ok(is_unpopulated(&text)),
            Err(error) if is_gone(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// KILL to all that is in it and below it.
    pub fn kill(&self) -> io::Result<()> {
        match OpenOptions::new().write(true).open(self.path.join("cgroup.kill")) {
            Ok(mut file) => file.write_all(b"1"),
            // Kernels before 5.14. What is started meanwhile may be missed: whoever means it looks again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                kill_one_by_one(&self.path);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Ends all that is in it, waits until nothing is, and removes it.
    ///
    /// Errors: something does not end, or nobody may end it.
    pub fn end(&self) -> io::Result<()> {
        let give_up = Instant::now() + LONGEST_DYING;
        while !self.is_empty()? {
            self.kill()?;
            if Instant::now() >= give_up {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.wait_for_a_change()?;
        }
        self.remove()
    }

    /// Waits until something of it is another than now, or a moment.
    fn wait_for_a_change(&self) -> io::Result<()> {
        let Ok(mut events) = File::open(self.path.join("cgroup.events")) else { return Ok(()) };
        // The kernel tells of changes since the last reading.
        let mut text = String::new();
        if events.read_to_string(&mut text).is_err() || is_unpopulated(&text) {
            return Ok(());
        }
        match poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], 100u8) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes it, with those that its command made below it. One that is gone counts as removed.
    ///
    /// Errors: something lives in it.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir(&self.path) {
            Ok(()) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) if !self.is_empty().unwrap_or(false) => Err(error),
            Err(_) => {
                for below in folders(&self.path) {
                    Cgroup { path: below }.remove()?;
                }
                fs::remove_dir(&self.path)
            }
        }
    }
}

/// How long what was killed may take to be gone.
const LONGEST_DYING: Duration = Duration::from_secs(2);

/// The file of a cgroup that takes a limit over, whose name begins with its controller's.
fn file_of(limit: Limit) -> Option<&'static str> {
    match limit {
        Limit::Memory => Some("memory.max"),
        Limit::Nproc => Some("pids.max"),
        // Seconds and sizes of one process: no controller counts those.
        Limit::Core
        | Limit::Cpu
        | Limit::Data
        | Limit::Fsize
        | Limit::Memlock
        | Limit::Nofile
        | Limit::Stack => None,
    }
}

fn is_unpopulated(events: &str) -> bool {
    events.lines().any(|line| line == "populated 0")
}

fn kill_one_by_one(folder: &Path) {
    for below in folders(folder) {
        kill_one_by_one(&below);
    }
    for pid in words(&folder.join("cgroup.procs")) {
        if let Ok(pid) = pid.parse::<i32>()
            && pid > 1
        {
            // It may be gone by now.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
    }
}

/// The files of a cgroup that is being removed are gone in two ways.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|is| is.is_dir())).map(|entry| entry.path()).collect()
}

fn words(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As much of a cgroup as plain files can be: the kernel's own files are there when a folder is made.
    fn fake(path: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(path).unwrap();
        for (name, text) in files {
            fs::write(path.join(name), text).unwrap();
        }
    }

    #[test]
    fn ones_own_place_is_found_wherever_the_tree_is_mounted() {
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw\n";
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let bound = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let odd = "30 23 0:26 / /mnt/a\\040b rw - cgroup2 cgroup2 rw\n";
        let service = "0::/system.slice/fleetcron.service\n";
        for (cgroup, mounts, place) in [
            ("9:name=systemd:/\n4:memory:/a\n0::/\n", hybrid, Some("/sys/fs/cgroup/unified")),
            (service, hybrid, Some("/sys/fs/cgroup/unified/system.slice/fleetcron.service")),
            (service, unified, Some("/sys/fs/cgroup/system.slice/fleetcron.service")),
            ("0::/docker/abc\n", bound, Some("/sys/fs/cgroup")),
            ("0::/docker/abc/x\n", bound, Some("/sys/fs/cgroup/x")),
            // Another's name that begins the same, and what a namespace does not show.
            ("0::/docker/abcd\n", bound, None),
            ("0::/../other\n", unified, None),
            (service, odd, Some("/mnt/a b/system.slice/fleetcron.service")),
            ("4:memory:/a\n", unified, None),
            (service, "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", None),
        ] {
            assert_eq!(own_cgroup(cgroup, mounts).ok(), place.map(PathBuf::from), "{cgroup} {mounts}");
        }
    }

    #[test]
    fn controllers_are_handed_on_only_from_above_a_leaf() {
        let folder = tempfile::tempdir().unwrap();
        let service = folder.path().join("fleetcron.service");
        let (controllers, none) =
            (("cgroup.controllers", "cpu memory pids\n"), ("cgroup.subtree_control", ""));
        fake(&service, &[("cgroup.procs", ""), controllers, none]);
        let own = delegated(service.clone()).unwrap();
        assert_eq!(own, Delegated { base: service.clone(), in_leaf: false });
        assert_eq!(own.limits(), [], "a process of the service itself may be in it");
        own.take_up(folder.path());
        assert_eq!(fs::read_to_string(service.join("cgroup.subtree_control")).unwrap(), "");

        fake(&service.join("daemon"), &[("cgroup.procs", "")]);
        let leaf = delegated(service.join("daemon")).unwrap();
        assert_eq!(leaf, Delegated { base: service.clone(), in_leaf: true });
        assert_eq!(leaf.limits(), [Limit::Memory, Limit::Nproc]);
        let runs = leaf.take_up(folder.path());
        // One write for each controller; the last one is in the file.
        assert_eq!(fs::read_to_string(service.join("cgroup.subtree_control")).unwrap(), "+pids");
        assert_eq!(runs.parent(), Some(service.as_path()));
        // Where the kernel has handed them on already, runs have them too.
        fake(&service, &[("cgroup.subtree_control", "memory\n")]);
        assert_eq!(own.limits(), [Limit::Memory]);
        assert!(delegated(folder.path().join("nowhere")).unwrap_err().contains("nowhere"));
    }

    #[test]
    fn two_state_folders_never_share_a_cgroup() {
        let folder = tempfile::tempdir().unwrap();
        let here = Delegated { base: folder.path().to_owned(), in_leaf: false };
        let states = ["a", "b"].map(|name| folder.path().join(name));
        states.iter().for_each(|state| fs::create_dir(state).unwrap());
        assert_ne!(here.runs(&states[0]), here.runs(&states[1]));
        assert_eq!(here.runs(&states[0]), here.runs(&folder.path().join("b/../a")));
    }

    #[test]
    fn a_limit_is_taken_over_where_there_is_a_controller_and_else_left_to_rlimits() {
        let folder = tempfile::tempdir().unwrap();
        let group = Cgroup::at(folder.path().to_owned());
        let all = vec![
            (Limit::Cpu, Some(60)),
            (Limit::Memory, Some(1 << 30)),
            (Limit::Nofile, Some(64)),
            (Limit::Nproc, Some(100)),
        ];
        assert_eq!(group.limit(all.clone()).unwrap(), all, "no controller at all");
        fake(folder.path(), &[("memory.max", "max\n")]);
        let rest: Vec<_> = all.iter().copied().filter(|(limit, _)| *limit != Limit::Memory).collect();
        assert_eq!(group.limit(all.clone()).unwrap(), rest);
        fake(folder.path(), &[("pids.max", "max\n")]);
        let rest: Vec<_> = rest.into_iter().filter(|(limit, _)| *limit != Limit::Nproc).collect();
        assert_eq!(group.limit(all).unwrap(), rest);
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!((read("memory.max"), read("pids.max")), ("1073741824".to_owned(), "100".to_owned()));
        // No limit means none of either kind.
        let unlimited = vec![(Limit::Memory, None)];
        assert_eq!(group.limit(unlimited.clone()).unwrap(), unlimited);
        assert_eq!(read("memory.max"), "max");
        fs::remove_file(folder.path().join("pids.max")).unwrap();
        fs::create_dir(folder.path().join("pids.max")).unwrap();
        let refused = group.limit(vec![(Limit::Nproc, Some(1))]).unwrap_err();
        assert_eq!(refused, "limits: nproc: is a directory");
    }

    #[test]
    fn what_the_kernel_ended_for_want_of_memory_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let group = Cgroup::at(folder.path().to_owned());
        assert_eq!(group.out_of_memory(), 0, "nobody counts");
        fake(
            folder.path(),
            &[("memory.events", "low 0\nhigh 0\nmax 31\noom 2\noom_kill 2\noom_group_kill 0\n")],
        );
        assert_eq!(group.out_of_memory(), 2);
    }

    #[test]
    fn only_what_is_old_and_empty_is_swept() {
        let runs = tempfile::tempdir().unwrap();
        let folder = |name: &str| runs.path().join(name);
        for name in ["old", "old/below", "new", "full/x"] {
            fs::create_dir_all(folder(name)).unwrap();
        }
        for name in ["old", "full"] {
            fake(&folder(name), &[]);
        }
        fake(&folder("full"), &[("cgroup.events", "populated 1\nfrozen 0\n")]);
        for name in ["old", "full"] {
            let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
            File::open(folder(name)).unwrap().set_modified(hour_ago).unwrap();
        }
        sweep(runs.path());
        assert!(!folder("old").exists() && folder("new").exists() && folder("full/x").exists());
    }

    #[test]
    fn what_is_gone_is_empty_and_counts_as_removed() {
        let group = Cgroup::at(PathBuf::from("/nonexistent/cgroup"));
        assert!(group.is_empty().unwrap());
        group.remove().unwrap();
        group.end().unwrap();
        assert!(is_unpopulated("populated 0\nfrozen 0\n") && !is_unpopulated("populated 1\nfrozen 0\n"));
    }

    #[test]
    fn a_kernel_says_since_when_it_can_kill_a_cgroup() {
        for (release, can) in [("5.13.19-amd64", false), ("5.14", true), ("6.1.0-18", true), ("odd", false)] {
            assert_eq!(is_since(release, (5, 14)), can, "{release}");
        }
    }
}
