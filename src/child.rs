//! Processes: how a command is started, signalled and found again. Only this module knows process groups.

mod clone_into;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_char, c_void};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::sched::CloneFlags;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;

use crate::job::{IoNice, Limit};
use crate::record::Usage;

/// A command to be started.
pub struct Start<'a> {
    /// Never empty.
    pub argv: &'a [String],
    /// All of its environment.
    pub env: &'a BTreeMap<String, String>,
    pub workdir: &'a str,
    pub stdin: &'a File,
    /// Becomes stdout and stderr.
    pub output: &'a OwnedFd,
    /// None: the caller's own, with all its groups.
    pub identity: Option<&'a Identity>,
    pub bounds: &'a Bounds,
    /// The folder of the cgroup it is to be in: see [`crate::cgroup`].
    pub cgroup: Option<&'a File>,
}

/// Whose rights a command has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// None: they stay as they are, and so does everything: it is the caller's own identity.
    pub groups: Option<Vec<u32>>,
}

/// What binds a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bounds {
    pub umask: Option<u32>,
    pub nice: Option<i32>,
    pub ionice: Option<IoNice>,
    /// Each with its number, or without end.
    pub limits: Vec<(Limit, Option<u64>)>,
    pub no_new_privs: bool,
}

/// Starts a command in a process group of its own, in the caller's session, with every signal as it is by default.
///
/// The caller must be a process of one thread, with all signals blocked and all other descriptors marked to be closed.
/// The child shares its memory until it becomes the command (as `vfork` does), so nothing is copied, and a step that
/// fails is told through that memory.
///
/// Errors: which step failed, as text for the record.
pub fn start(start: &Start<'_>) -> Result<Pid, String> {
    let prepared = Prepared::of(start)?;
    let failed = Failed { step: AtomicI32::new(0), errno: AtomicI32::new(0) };
    // So large that it is mapped by itself, and what is never used of it is never there.
    let mut stack = vec![0; 256 * 1024];
    let pid = match start.cgroup.map(|cgroup| in_cgroup(&prepared, &failed, cgroup, &mut stack)) {
        Some(Ok(pid)) => pid,
        // The child goes there by itself: that takes longer, and where it cannot be done tells why.
        Some(Err(_)) | None => anywhere(&prepared, &failed, &mut stack)
            .map_err(|error| format!("new process: {}", plain(&error)))?,
    };
    let Some(step) = Step::from_number(failed.step.load(Ordering::SeqCst)) else { return Ok(pid) };
    // It is gone without having been the command.
    let _ = nix::sys::wait::waitpid(pid, None);
    let why = plain(&io::Error::from_raw_os_error(failed.errno.load(Ordering::SeqCst)));
    Err(match step {
        Step::Group => format!("process group: {why}"),
        Step::Cgroup => format!("cgroup: {why}"),
        Step::Descriptors => format!("standard input and output: {why}"),
        Step::Nice => format!("nice: {why}"),
        Step::IoNice => format!("ionice: {why}"),
        Step::Limits => format!("limits: {why}"),
        Step::Groups => format!("setting the groups: {why}"),
        Step::Gid => format!("setting the group: {why}"),
        Step::Uid => format!("setting the user: {why}"),
        Step::Verify => "the ids that were set are not those of the user".to_owned(),
        Step::Capabilities => format!("dropping capabilities: {why}"),
        Step::NoNewPrivs => format!("no_new_privs: {why}"),
        Step::Folder => format!("working folder {}: {why}", start.workdir),
        Step::Exec => format!("{}: {why}", start.argv[0]),
    })
}

/// The child, in the caller's own cgroup.
fn anywhere(prepared: &Prepared<'_>, failed: &Failed, stack: &mut [u8]) -> io::Result<Pid> {
    let child = Box::new(|| {
        prepared.become_command(failed, prepared.cgroup);
        127
    });
    // SAFETY: the child runs on a stack of its own, and only makes system calls on what was prepared before; the
    // parent stands still until it is done with the shared memory.
    Ok(unsafe {
        nix::sched::clone(
            child,
            stack,
            CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK,
            Some(Signal::SIGCHLD as i32),
        )
    }?)
}

/// The child, in a cgroup from its first moment on.
fn in_cgroup(prepared: &Prepared<'_>, failed: &Failed, cgroup: &File, stack: &mut [u8]) -> io::Result<Pid> {
    extern "C" fn child(both: *const c_void) -> ! {
        // SAFETY: the parent, which owns it, stands still.
        let (prepared, failed) = unsafe { &*both.cast::<(&Prepared<'_>, &Failed)>() };
        prepared.become_command(failed, None);
        // SAFETY: ends this process only, and runs nothing of the parent's.
        unsafe { libc::_exit(127) }
    }
    let both = (prepared, failed);
    // SAFETY: as above.
    unsafe { clone_into::clone_into(cgroup.as_raw_fd(), stack, child, (&raw const both).cast()) }
}

/// What a child does before it is the command, in this order: what needs rights comes before they are given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Group = 1,
    Cgroup,
    Descriptors,
    Nice,
    IoNice,
    Limits,
    Groups,
    Gid,
    Uid,
    Verify,
    Capabilities,
    NoNewPrivs,
    Folder,
    Exec,
}

impl Step {
    const ALL: [Step; 14] = [
        Step::Group,
        Step::Cgroup,
        Step::Descriptors,
        Step::Nice,
        Step::IoNice,
        Step::Limits,
        Step::Groups,
        Step::Gid,
        Step::Uid,
        Step::Verify,
        Step::Capabilities,
        Step::NoNewPrivs,
        Step::Folder,
        Step::Exec,
    ];

    fn from_number(number: i32) -> Option<Step> {
        Step::ALL.into_iter().find(|step| *step as i32 == number)
    }
}

/// Where a child says what failed.
struct Failed {
    step: AtomicI32,
    errno: AtomicI32,
}

/// All that a child needs, as the system calls want it: it must not allocate.
struct Prepared<'a> {
    identity: Option<&'a Identity>,
    bounds: &'a Bounds,
    /// Where the program may be, in order.
    programs: Vec<CString>,
    workdir: CString,
    _texts: Vec<CString>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    stdin: RawFd,
    output: RawFd,
    cgroup: Option<RawFd>,
}

impl<'a> Prepared<'a> {
    fn of(start: &Start<'a>) -> Result<Prepared<'a>, String> {
        let text = |text: &str| CString::new(text).map_err(|_| format!("{text:?} has a NUL character in it"));
        let program = start.argv.first().ok_or("there is no program to run")?;
        let programs = match program.contains('/') {
            true => vec![text(program)?],
            false => {
                let path = start.env.get("PATH").map_or("/bin:/usr/bin", String::as_str);
                let places = path.split(':').map(|folder| match folder {
                    "" => text(&format!("./{program}")),
                    folder => text(&format!("{folder}/{program}")),
                });
                places.collect::<Result<_, _>>()?
            }
        };
        let mut texts = Vec::with_capacity(start.argv.len() + start.env.len());
        for word in start.argv {
            texts.push(text(word)?);
        }
        for (name, value) in start.env {
            texts.push(text(&format!("{name}={value}"))?);
        }
        let pointers = |texts: &[CString]| {
            texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
        };
        let (argv, envp) = texts.split_at(start.argv.len());
        let (argv, envp) = (pointers(argv), pointers(envp));
        Ok(Prepared {
            identity: start.identity,
            bounds: start.bounds,
            programs,
            workdir: text(start.workdir)?,
            _texts: texts,
            argv,
            envp,
            stdin: start.stdin.as_raw_fd(),
            output: start.output.as_raw_fd(),
            cgroup: start.cgroup.map(AsRawFd::as_raw_fd),
        })
    }

    /// Runs in the child, and returns only when a step failed. `cgroup`: where it has to go by itself.
    fn become_command(&self, failed: &Failed, cgroup: Option<RawFd>) {
        let say = |(step, errno): (Step, i32)| {
            failed.errno.store(errno, Ordering::SeqCst);
            failed.step.store(step as i32, Ordering::SeqCst);
        };
        if let Err(failure) = self.steps(cgroup) {
            say(failure);
        }
    }

    fn steps(&self, cgroup: Option<RawFd>) -> Result<(), (Step, i32)> {
        let check = |step: Step, result: i32| match result {
            -1 => Err((step, Errno::last_raw())),
            _ => Ok(()),
        };
        // SAFETY, for all of this: system calls on texts and descriptors that outlive the call, in a process of its own
        // whose parent stands still.
        unsafe {
            check(Step::Group, libc::setpgid(0, 0))?;
            if let Some(cgroup) = cgroup {
                let procs = libc::openat(cgroup, c"cgroup.procs".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                check(Step::Cgroup, procs)?;
                // Oneself. Before anything can be started, and while there is the right to.
                check(Step::Cgroup, libc::write(procs, c"0".as_ptr().cast(), 1) as i32)?;
            }
            check(Step::Descriptors, libc::dup2(self.stdin, 0))?;
            check(Step::Descriptors, libc::dup2(self.output, 1))?;
            check(Step::Descriptors, libc::dup2(self.output, 2))?;
            self.bind(&check)?;
            if let Some(Identity { uid, gid, groups: Some(groups) }) = self.identity {
                become_user(*uid, *gid, groups, &check)?;
            }
            if self.bounds.no_new_privs {
                check(Step::NoNewPrivs, libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            }
            // As the user: it may not look into a folder that root may.
            check(Step::Folder, libc::chdir(self.workdir.as_ptr()))?;
            default_signals();
            let mut errno = libc::ENOENT;
            for program in &self.programs {
                libc::execve(program.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr());
                match Errno::last_raw() {
                    // As every shell does: look further, and remember what was there and could not be run.
                    libc::ENOENT | libc::ENOTDIR => {}
                    libc::EACCES => errno = libc::EACCES,
                    other => return Err((Step::Exec, other)),
                }
            }
            Err((Step::Exec, errno))
        }
    }
}

impl Prepared<'_> {
    unsafe fn bind(&self, check: &Check) -> Result<(), (Step, i32)> {
        const WHO_PROCESS: i32 = 1;
        let Bounds { umask, nice, ionice, limits, no_new_privs: _ } = self.bounds;
        // SAFETY: system calls on plain data.
        unsafe {
            if let Some(umask) = umask {
                libc::umask(*umask);
            }
            if let Some(nice) = nice {
                check(Step::Nice, libc::setpriority(libc::PRIO_PROCESS, 0, *nice))?;
            }
            if let Some(ionice) = ionice {
                let value = io_priority(*ionice);
                check(Step::IoNice, libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, value) as i32)?;
            }
            for (limit, most) in limits {
                let most = most.unwrap_or(libc::RLIM_INFINITY);
                let both = libc::rlimit { rlim_cur: most, rlim_max: most };
                check(Step::Limits, libc::setrlimit(resource(*limit), &both))?;
            }
        }
        Ok(())
    }
}

type Check = dyn Fn(Step, i32) -> Result<(), (Step, i32)>;

/// Groups first, the user last, and a look at what came of it. The plain system calls: the C library's would look for
/// other threads, whose memory this is.
unsafe fn become_user(uid: u32, gid: u32, groups: &[u32], check: &Check) -> Result<(), (Step, i32)> {
    // SAFETY: system calls on plain data.
    unsafe {
        check(Step::Groups, libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) as i32)?;
        check(Step::Gid, libc::syscall(libc::SYS_setresgid, gid, gid, gid) as i32)?;
        check(Step::Uid, libc::syscall(libc::SYS_setresuid, uid, uid, uid) as i32)?;
        let (mut uids, mut gids) = ([0; 3], [0; 3]);
        let [real, effective, saved] = &mut uids;
        check(Step::Verify, libc::getresuid(real, effective, saved))?;
        let [real, effective, saved] = &mut gids;
        check(Step::Verify, libc::getresgid(real, effective, saved))?;
        if uids != [uid; 3]
            || gids != [gid; 3]
            || libc::getgroups(0, std::ptr::null_mut()) != groups.len() as i32
        {
            return Err((Step::Verify, libc::EPERM));
        }
        if uid != 0 {
            // The kernel took those in force away with the ids; none may be left to come back.
            const VERSION_3: u32 = 0x2008_0522;
            let (header, none) = ([VERSION_3, 0], [0u32; 6]);
            check(Step::Capabilities, libc::syscall(libc::SYS_capset, &header, &none) as i32)?;
        }
    }
    Ok(())
}

fn io_priority(ionice: IoNice) -> u32 {
    let (class, level) = match ionice {
        IoNice::Realtime(level) => (1, level),
        IoNice::BestEffort(level) => (2, level),
        IoNice::Idle => (3, 0),
    };
    class << 13 | u32::from(level)
}

fn resource(limit: Limit) -> libc::__rlimit_resource_t {
    match limit {
        Limit::Core => libc::RLIMIT_CORE,
        Limit::Cpu => libc::RLIMIT_CPU,
        Limit::Data => libc::RLIMIT_DATA,
        Limit::Fsize => libc::RLIMIT_FSIZE,
        Limit::Memlock => libc::RLIMIT_MEMLOCK,
        Limit::Memory => libc::RLIMIT_AS,
        Limit::Nofile => libc::RLIMIT_NOFILE,
        Limit::Nproc => libc::RLIMIT_NPROC,
        Limit::Stack => libc::RLIMIT_STACK,
    }
}

/// Every signal to its default and none blocked: whatever `nohup` and the like left to the daemon, a command begins as
/// from a login.
unsafe fn default_signals() {
    // The kernel's own form of an action: all zero is the default. The C library would keep two signals to itself.
    let default = [0u64; 4];
    // SAFETY: reads plain data; signals that cannot be set are at their default.
    unsafe {
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, &default, std::ptr::null::<u8>(), 8);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// From here on all that the caller's children start is its own when their parents end: so that nothing of a command
/// gets out of sight, whatever group or session it moves to.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// What [`reap`] found.
#[derive(Debug, Default)]
pub struct Reaped {
    /// How the command ended, where it did.
    pub command: Option<ExitStatus>,
    /// The caller has no child any more. With [`adopt_orphans`]: nothing of the command lives.
    pub none_left: bool,
}

/// Collects every child of the caller that has ended. Never waits.
pub fn reap(command: Pid) -> Reaped {
    let mut reaped = Reaped::default();
    loop {
        let mut status = 0;
        // SAFETY: writes to `status` only.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::__WALL) } {
            0 => return reaped,
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => {
                reaped.none_left = true;
                return reaped;
            }
            pid if pid == command.as_raw() => reaped.command = Some(ExitStatus::from_raw(status)),
            _ => {}
        }
    }
}

/// Signals a command's group and all that it started besides: the children of this process, theirs, and so on.
///
/// What is started meanwhile may be missed, so whoever means it calls again until nothing is left.
pub fn signal_tree(group: Pid, signal: Signal) {
    // Nothing can be done about a failure that what is left does not show.
    let _ = signal_group(group, signal);
    let own = std::process::id() as i32;
    let mut known = BTreeSet::from([own]);
    // Again for those that a first look missed because of the many that came and went.
    for _ in 0..8 {
        let found: Vec<i32> = descendants(own).into_iter().filter(|pid| known.insert(*pid)).collect();
        if found.is_empty() {
            return;
        }
        for pid in found {
            signal_descendant(pid, group, signal, &known);
        }
    }
}

/// Signals one process that was found, unless the group's signal reached it, or its number is another's by now.
fn signal_descendant(pid: i32, group: Pid, signal: Signal, known: &BTreeSet<i32>) {
    // SAFETY: a system call without memory.
    let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as RawFd;
    // The handle first: what is seen then is of the process that is signalled, or that one is gone.
    let reached = |found: &Stat| found.group == group.as_raw() && signal != Signal::SIGKILL;
    let wanted =
        stat(pid).is_ok_and(|found| known.contains(&found.parent) && !found.zombie && !reached(&found));
    if handle < 0 {
        // Kernels before 5.3.
        if wanted && Errno::last() == Errno::ENOSYS {
            let _ = signal_one(Pid::from_raw(pid), signal);
        }
        return;
    }
    // SAFETY: a descriptor that was just made, and no memory.
    unsafe {
        if wanted {
            libc::syscall(libc::SYS_pidfd_send_signal, handle, signal as i32, std::ptr::null::<u8>(), 0);
        }
        libc::close(handle);
    }
}

/// The processes below one, parents before their children. Some that come or go meanwhile may be missing.
fn descendants(of: i32) -> Vec<i32> {
    let mut found = vec![of];
    let mut next = 0;
    // Kernels are built without lists of children as well: then all processes are looked at.
    let all = match Path::new("/proc/thread-self/children").exists() {
        true => Vec::new(),
        false => all_processes().unwrap_or_default(),
    };
    while next < found.len() {
        let parent = found[next];
        match all.is_empty() {
            true => found.extend(children(parent).unwrap_or_default()),
            false => found.extend(all.iter().filter(|(_, is)| is.parent == parent).map(|(pid, _)| pid)),
        }
        next += 1;
    }
    found.remove(0);
    found
}

/// The children of each thread of a process.
fn children(of: i32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    let mut text = String::new();
    for thread in std::fs::read_dir(format!("/proc/{of}/task"))? {
        text.clear();
        match File::open(thread?.path().join("children")) {
            Ok(mut file) => file.read_to_string(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        found.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Ok(found)
}

/// An I/O error in plain words, without the number.
pub fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => Errno::from_raw(code).desc().to_lowercase(),
        None => error.to_string(),
    }
}

/// Signals a process group. One that is gone counts as signalled.
pub fn signal_group(leader: Pid, signal: Signal) -> io::Result<()> {
    match killpg(leader, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Signals one process. One that is gone counts as signalled.
pub fn signal_one(pid: Pid, signal: Signal) -> io::Result<()> {
    match kill(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How a command ended, as two facts: it exited with a code, or a signal ended it.
pub fn exit_facts(status: ExitStatus) -> (Option<i32>, Option<i32>) {
    (status.code(), status.signal())
}

/// What the children of the caller that it has reaped used, with theirs.
///
/// The peak is never less than what the caller itself had when it started them.
pub fn usage() -> Option<Usage> {
    let used = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    let millis = |time: TimeVal| time.tv_sec() * 1000 + time.tv_usec() / 1000;
    Some(Usage {
        cpu: u64::try_from(millis(used.user_time()) + millis(used.system_time())).ok()?,
        // It counts in KiB.
        peak_memory: u64::try_from(used.max_rss()).ok()? * 1024,
    })
}

/// The name of a signal without `SIG`: `KILL`, `TERM`, or `RTMIN+3` for those without a name of their own.
pub fn signal_name(number: i32) -> String {
    match Signal::try_from(number) {
        Ok(signal) => signal.as_str().trim_start_matches("SIG").to_owned(),
        Err(_) if number >= libc::SIGRTMIN() => format!("RTMIN+{}", number - libc::SIGRTMIN()),
        Err(_) => number.to_string(),
    }
}

/// A process as it is told from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    /// Clock ticks from boot to its start: field 22 of `/proc/<pid>/stat`, see proc(5).
    pub started: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub fn of(pid: i32) -> io::Result<ProcessId> {
        Ok(ProcessId { pid, started: stat(pid)?.started })
    }

    /// The calling process.
    pub fn own() -> io::Result<ProcessId> {
        ProcessId::of(std::process::id() as i32)
    }
}

/// Has a process go on that was stopped by a signal.
pub fn wake(process: ProcessId) {
    if stat(process.pid).is_ok_and(|found| found.stopped && found.started == process.started) {
        let _ = signal_one(Pid::from_raw(process.pid), Signal::SIGCONT);
    }
}

/// The processes of a session, without its leader. A session's number is not used again while one of them lives.
pub fn session_members(session: i32) -> io::Result<Vec<Pid>> {
    let members = all_processes()?
        .into_iter()
        .filter(|(pid, found)| found.session == session && *pid != session && !found.zombie);
    Ok(members.map(|(pid, _)| Pid::from_raw(pid)).collect())
}

fn all_processes() -> io::Result<Vec<(i32, Stat)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok())
            // A process may end while we look.
            && let Ok(is) = stat(pid)
        {
            found.push((pid, is));
        }
    }
    Ok(found)
}

/// The id of this boot of the machine; differs after every boot.
pub fn boot_id() -> io::Result<String> {
    read_line(Path::new("/proc/sys/kernel/random/boot_id"))
}

/// What tells this machine from a copy of its disk: the machine id and, where it can be read, the product's UUID.
pub fn machine_id() -> String {
    let part = |path| read_line(Path::new(path)).unwrap_or_default();
    format!("{}/{}", part("/etc/machine-id"), part("/sys/class/dmi/id/product_uuid"))
}

fn read_line(path: &Path) -> io::Result<String> {
    Ok(std::fs::read_to_string(path)?.trim().to_owned())
}

struct Stat {
    parent: i32,
    group: i32,
    session: i32,
    started: u64,
    zombie: bool,
    /// By a signal.
    stopped: bool,
}

/// Fields of `/proc/<pid>/stat`. The name in brackets may hold anything, brackets too, so fields count from the
/// last closing one.
fn stat(pid: i32) -> io::Result<Stat> {
    // Far more than it ever is, and given in one piece.
    let mut raw = [0; 1024];
    let read = File::open(format!("/proc/{pid}/stat"))?.read(&mut raw)?;
    let text = String::from_utf8_lossy(&raw[..read]);
    let odd = || io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat is not understood"));
    let fields: Vec<&str> = text.rsplit_once(')').ok_or_else(odd)?.1.split_ascii_whitespace().collect();
    // The first of these is field 3 of proc(5).
    let field = |number: usize| fields.get(number - 3).copied().ok_or_else(odd);
    Ok(Stat {
        parent: field(4)?.parse().map_err(|_| odd())?,
        group: field(5)?.parse().map_err(|_| odd())?,
        session: field(6)?.parse().map_err(|_| odd())?,
        started: field(22)?.parse().map_err(|_| odd())?,
        zombie: matches!(field(3)?, "Z" | "X"),
        stopped: field(3)? == "T",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_in_its_session() {
        let own = ProcessId::own().unwrap();
        assert_eq!(own.pid, std::process::id() as i32);
        assert!(own.started > 0);
        let session = stat(own.pid).unwrap().session;
        if session != own.pid {
            assert!(session_members(session).unwrap().contains(&Pid::from_raw(own.pid)));
        }
    }

    #[test]
    fn signals_have_their_names() {
        for (number, name) in [(9, "KILL"), (15, "TERM"), (11, "SEGV"), (10, "USR1")] {
            assert_eq!(signal_name(number), name);
        }
        assert_eq!(signal_name(libc::SIGRTMIN() + 3), "RTMIN+3");
    }
}
