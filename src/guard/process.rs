//! The guard process itself: one thread, one `poll`, no runtime.
//!
//! It is forked off the [stem](super::stem), which hands it the run file's lock and the line to its node; the list of processes
//! shows the run's name, and neither the command nor its environment.
//!
//! Whenever no node listens, from its very start on, it has a socket beside the run file, so that the next one finds it.
//!
//! It adopts the orphans of its command, so the command and all it started are gone exactly when the guard has no
//! child any more. What a command leaves behind when it ends by itself lives on; if that still holds the output, a
//! small [drain](let_go) stays for it, without the lock: the run is over all the same.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitStatus;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::{ForkResult, Pid, chdir, dup2_stderr, fork, pipe2, setsid};

use super::due::Due;
use super::folder::{EndLine, Ended, FolderLock, How, RunFolder, Spec, Started, VERSION, json};
use super::hold::Contact;
use super::life::{Action, Event, Leftovers, State, Stop};
use super::link::{Answer, Request};
use super::stem::Handed;
use super::terms;
use crate::cgroup::Cgroup;
use crate::child::{self, ProcessId, plain};
use crate::clock::since_boot;
use crate::output;
use crate::schedule::Timestamp;

/// Runs the command of a run file to its end.
///
/// Errors: it could not even begin, and nothing was started.
pub fn guard(handed: Handed) -> io::Result<()> {
    handed.node.set_nonblocking(true)?;
    // A session of its own: the terminal and the daemon's end do not reach it, nor the command.
    setsid()?;
    child::adopt_orphans()?;
    let signals = take_signals()?;
    // This clock goes on while the machine is suspended, and wakes us when it is back.
    let clock = timerfd::ClockId::CLOCK_BOOTTIME;
    let timer = TimerFd::new(clock, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
    let spec = handed.lock.read_spec()?;
    // Without one its session and its descendants are all there is to go by.
    let cgroup = spec.cgroup.as_deref().and_then(|path| Cgroup::create(path).ok());
    let started = Started {
        v: VERSION,
        boot: handed.boot.clone(),
        guard: ProcessId::own()?,
        at: Timestamp::from(std::time::SystemTime::now()),
        cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
    };
    let end_line = handed.lock.note_started(&started)?;
    // From here on nothing makes it give up: it would leave its command alone.
    if let Some(pipe) = Watch::start(handed, spec, cgroup, end_line, signals, timer).watch() {
        let_go(pipe);
    }
    Ok(())
}

/// Children's ends, and who would end the guard, come as a descriptor, so that one `poll` waits for everything. All
/// other signals are blocked: a guard that is gone cannot keep its promise.
fn take_signals() -> io::Result<SignalFd> {
    SigSet::all().thread_block()?;
    let mut set = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        set.add(signal);
    }
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// A command being watched.
struct Watch {
    folder: RunFolder,
    spec: Spec,
    /// What the command is in, and the guard is not: it must see the end of all that is in it.
    cgroup: Option<Cgroup>,
    end_line: EndLine,
    lock: FolderLock,
    null: File,
    signals: SignalFd,
    timer: TimerFd,
    state: State,
    command: Option<Pid>,
    status: Option<ExitStatus>,
    /// What failed at the start, or who asked for the stop.
    reason: Option<String>,
    started_at: Option<Timestamp>,
    contact: Option<Contact>,
    due: Due,
    /// Since boot: when the next round of KILL is, and when it is tried again to be found by a node.
    insist_again: Option<Duration>,
    be_found_again: Option<Duration>,
    /// What the timer is set to.
    set_to: Option<Duration>,
    /// How long after a KILL the next round of it is.
    patience: Duration,
    pipe: Option<File>,
    output: output::Writer,
    filter: Option<output::Filter>,
    output_failed: Option<String>,
    /// Where output is read into. So large that it is mapped by itself, and what is never used of it is never there.
    buffer: Vec<u8>,
    links: Vec<Link>,
    /// Once no node listened.
    listener: Option<UnixListener>,
}

/// One node, or one node's life, that listens.
struct Link {
    stream: UnixStream,
    /// What came of its next line.
    partial: Vec<u8>,
}

/// How much of the output is read at a time: what a pipe holds.
const AT_A_TIME: usize = 64 * 1024;
/// A line longer than this is from nobody who speaks our language.
const LONGEST_LINE: usize = 4096;
/// More listeners than a node ever opens.
const MOST_LINKS: usize = 8;
/// How long after a round of KILL the next one is: what was started meanwhile gets it then.
const FIRST_PATIENCE: Duration = Duration::from_millis(5);
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits where it cannot wait for something.
const BREATH: Duration = Duration::from_millis(100);
/// How long after it could not make itself be found it tries again: a disk may have room then.
const BE_FOUND_AGAIN: Duration = Duration::from_secs(1);

impl Watch {
    fn start(
        handed: Handed,
        spec: Spec,
        cgroup: Option<Cgroup>,
        end_line: EndLine,
        signals: SignalFd,
        timer: TimerFd,
    ) -> Watch {
        let Handed { folder, lock, node, null, boot: _ } = handed;
        let mut watch = Watch {
            contact: spec.contact,
            output: output::Writer::new(folder.output(), spec.output_cap),
            folder,
            spec,
            cgroup,
            end_line,
            lock,
            null,
            signals,
            timer,
            state: State::Starting,
            command: None,
            status: None,
            reason: None,
            started_at: None,
            due: Due::default(),
            insist_again: None,
            be_found_again: None,
            set_to: None,
            patience: FIRST_PATIENCE,
            pipe: None,
            filter: None,
            output_failed: None,
            buffer: vec![0; 4 * AT_A_TIME],
            links: vec![Link::over(node)],
            listener: None,
        };
        watch.count_from_contact();
        // A claim that has grown stale is somebody else's soon.
        watch.look_at_the_clock();
        if watch.state == State::Starting {
            let spawned = watch.spawn();
            watch.tell(&watch.hello());
            match spawned {
                Ok(()) => watch.happened(Event::Spawned),
                Err(step) => {
                    watch.reason = Some(step);
                    watch.happened(Event::SpawnFailed);
                }
            }
        }
        watch
    }

    fn spawn(&mut self) -> Result<(), String> {
        let (read, write) =
            pipe2(OFlag::O_CLOEXEC).map_err(|error| format!("output pipe: {}", plain(&error.into())))?;
        fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|error| format!("output pipe: {}", plain(&error.into())))?;
        let identity = terms::identify(&mut self.spec)?;
        terms::add_variables(&mut self.spec, identity.as_ref())?;
        self.filter = terms::filter(&self.spec);
        let mut bounds = terms::bounds(&self.spec)?;
        if let Some(cgroup) = &self.cgroup {
            bounds.limits = cgroup.limit(bounds.limits)?;
        }
        let cgroup = self.cgroup.as_ref().map(Cgroup::folder).transpose();
        let cgroup = cgroup.map_err(|error| format!("cgroup: {}", plain(&error)))?;
        let text = self.spec.stdin.as_deref().map(terms::stdin).transpose()?;
        // Before it: a command may stop its guard at once.
        let started_at = Timestamp::from(std::time::SystemTime::now());
        let command = child::start(&child::Start {
            argv: &self.spec.argv,
            env: &self.spec.env,
            workdir: &self.spec.workdir,
            stdin: text.as_ref().unwrap_or(&self.null),
            output: &write,
            identity: identity.as_ref(),
            bounds: &bounds,
            cgroup: cgroup.as_ref(),
        })?;
        self.command = Some(command);
        self.pipe = Some(File::from(read));
        self.started_at = Some(started_at);
        self.due.time_up = self.spec.timeout.map(|millis| since_boot() + Duration::from_millis(millis));
        Ok(())
    }

    /// Waits and acts until all is known and written. What it returns is the output that somebody still holds open.
    fn watch(mut self) -> Option<File> {
        while !self.state.is_end() {
            self.be_found();
            let ready = self.wait().unwrap_or_else(|_| {
                // Out of memory, at most. Nothing that is looked at makes us wait.
                std::thread::sleep(BREATH);
                Ready { signals: true, links: true, output: true }
            });
            // What is said first, the clock after: a contact that comes with its deadline is too late.
            if ready.links {
                self.listen();
            }
            // Output before the end: what the command wrote last is then in the file when it is over.
            if ready.output {
                self.read_output(false);
            }
            if ready.signals {
                self.take_signals();
            }
            self.look_at_the_clock();
        }
        self.pipe.take()
    }

    fn happened(&mut self, event: Event) {
        let (state, actions) = self.state.after(event);
        self.state = state;
        for action in actions {
            match action {
                Action::Ask => {
                    self.signal(Signal::SIGTERM);
                    // What is stopped could not take the signal in.
                    self.signal(Signal::SIGCONT);
                }
                Action::Grace => {
                    self.due.grace_up = Some(since_boot() + Duration::from_millis(self.spec.kill_after));
                }
                Action::Insist => self.insist(),
                Action::Drain => {
                    self.read_output(true);
                    if let Some(filter) = &mut self.filter {
                        let rest = filter.end(std::time::SystemTime::now().into());
                        self.keep(&rest);
                        self.note_output();
                    }
                    self.happened(Event::OutputEnd);
                }
                Action::Note => self.note_end(),
            }
        }
    }

    fn insist(&mut self) {
        // All of it at once; what is in it cannot start anything meanwhile.
        let at_once = self.cgroup.as_ref().is_some_and(|cgroup| cgroup.kill().is_ok());
        // What has left the cgroup, as root's commands may, shows in that something is left.
        if !at_once || self.patience > FIRST_PATIENCE {
            self.signal(Signal::SIGKILL);
        }
        self.insist_again = Some(since_boot() + self.patience);
        self.patience = (self.patience * 2).min(LAST_PATIENCE);
    }

    fn signal(&self, signal: Signal) {
        if let Some(command) = self.command {
            child::signal_tree(command, signal);
        }
    }

    fn take_signals(&mut self) {
        let mut told_to_end = false;
        while let Ok(Some(signal)) = self.signals.read_signal() {
            told_to_end |= signal.ssi_signo != Signal::SIGCHLD as u32;
        }
        if told_to_end {
            self.reason.get_or_insert_with(|| "its guard was told to end by a signal".to_owned());
            self.happened(Event::Signalled);
        }
        self.reap();
    }

    fn reap(&mut self) {
        let Some(command) = self.command else { return };
        let reaped = child::reap(command);
        if let Some(status) = reaped.command {
            self.status = Some(status);
            self.happened(Event::Exited(
                match (reaped.none_left && self.is_empty(), self.spec.kill_leftovers) {
                    (true, _) => Leftovers::Nothing,
                    (false, false) => Leftovers::LiveOn,
                    (false, true) => Leftovers::ToEnd,
                },
            ));
        } else if reaped.none_left && self.is_empty() {
            self.happened(Event::TreeEmpty);
        }
    }

    /// Whether nothing lives in the cgroup: not all that is in it need be the guard's to reap.
    fn is_empty(&self) -> bool {
        self.cgroup.as_ref().is_none_or(|cgroup| cgroup.is_empty().unwrap_or(true))
    }

    fn look_at_the_clock(&mut self) {
        let now = since_boot();
        while let Some(event) = self.due.take(now) {
            self.happened(event);
        }
        let is_due = |due: &mut Option<Duration>| due.take_if(|at| now >= *at).is_some();
        if is_due(&mut self.insist_again) && self.state.is_insisting() {
            self.insist();
            // No signal tells of the end of what is in the cgroup and not the guard's.
            self.reap();
        }
        // It is tried before every wait.
        is_due(&mut self.be_found_again);
    }

    fn count_from_contact(&mut self) {
        if let Some(contact) = self.contact {
            self.due.count_from(contact, Duration::from_millis(self.spec.kill_after));
        }
    }

    /// A node tells that it was in touch.
    fn renew(&mut self, by: Contact) {
        let Some(contact) = self.contact else { return };
        let renewed = contact.renewed(by, since_boot(), Duration::from_millis(self.spec.kill_after));
        if renewed != contact {
            self.contact = Some(renewed);
            self.count_from_contact();
        }
        // Always answered: a hold is lowered in the store only when it is known to be lower here.
        self.tell(&Answer::Holds(renewed));
    }

    /// Reads what is there; never waits for more. `all`: until nothing is there, else one bufferful, so that a
    /// command that never stops writing does not keep the guard from its other duties.
    fn read_output(&mut self, all: bool) {
        let mut buffer = std::mem::take(&mut self.buffer);
        // A grandchild may go on writing for ever: what a pipe holds is enough.
        let mut left = if all { 32 } else { 1 };
        while left > 0
            && let Some(pipe) = &mut self.pipe
        {
            left -= 1;
            match pipe.read(&mut buffer[..AT_A_TIME]) {
                Ok(0) => self.pipe = None,
                Ok(read) => {
                    let now = std::time::SystemTime::now();
                    match &mut self.filter {
                        None => self.keep(&buffer[..read]),
                        Some(filter) => {
                            let passed = filter.pass(&buffer[..read], now.into());
                            self.keep(&passed);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.output_failed = Some(plain(&error));
                    self.pipe = None;
                }
            }
        }
        self.buffer = buffer;
        self.note_output();
    }

    fn keep(&mut self, bytes: &[u8]) {
        let whole = self.output.failure().is_none();
        self.output.write(bytes);
        if whole && self.output.failure().is_some() {
            self.happened(Event::DiskFull);
        }
    }

    /// Tells in the file how far it is.
    fn note_output(&mut self) {
        if let Err(error) = self.output.note() {
            self.output_failed = Some(plain(&error));
        }
    }

    fn note_end(&mut self) {
        let how = match self.state {
            State::Unstarted(None) => How::CouldNotStart,
            State::Done(Some(Stop::TimedOut)) | State::Unstarted(Some(Stop::TimedOut)) => How::TimedOut,
            State::Done(Some(Stop::Cancelled)) | State::Unstarted(Some(Stop::Cancelled)) => How::Cancelled,
            State::Done(Some(Stop::OutOfTouch)) | State::Unstarted(Some(Stop::OutOfTouch)) => How::OutOfTouch,
            State::Done(Some(Stop::Shutdown)) | State::Unstarted(Some(Stop::Shutdown)) => How::Shutdown,
            _ => How::Exited,
        };
        let (exit_code, signal) = self.status.map(child::exit_facts).unwrap_or_default();
        let failed = self.output.failure().map(plain);
        let ended = Ended {
            v: VERSION,
            how,
            exit_code,
            signal,
            reason: self.reason.take().or_else(|| self.want_of_memory()),
            started_at: self.started_at,
            ended_at: Timestamp::from(std::time::SystemTime::now()),
            output_bytes: self.output.seen(),
            output_left_out: self.output.left_out(),
            output_failed: failed.or(self.output_failed.take()),
            usage: self.status.and_then(|_| child::usage()),
        };
        // On disk first; but where the disk fails, those who listen are told all the same.
        let written = self.lock.note_ended(&self.end_line, &ended);
        self.accept();
        self.tell(&Answer::Ended(ended));
        if let Some(cgroup) = &self.cgroup {
            // What the command left behind keeps it; it is removed when that has ended.
            let _ = cgroup.remove();
        }
        // At once, so that a node that waits for the end of the line too need not be woken again.
        self.links.clear();
        if let Err(error) = written {
            eprintln!(
                "fleetcron-guard: {}: the end could not be written: {error}",
                self.folder.path().display()
            );
        }
    }

    /// A KILL from the kernel looks like anybody's.
    fn want_of_memory(&self) -> Option<String> {
        let ended = self.cgroup.as_ref()?.out_of_memory();
        (ended > 0).then(|| format!("for want of memory the kernel ended {ended} of its processes"))
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        while let Ok((stream, _)) = listener.accept() {
            if self.links.len() < MOST_LINKS && stream.set_nonblocking(true).is_ok() {
                let mut link = Link::over(stream);
                if link.tell(&self.hello()) {
                    self.links.push(link);
                }
            }
        }
    }

    fn hello(&self) -> Answer {
        Answer::Hello { v: VERSION, started_at: self.started_at }
    }

    /// Where no node listens, opens the socket over which the next one does.
    fn be_found(&mut self) {
        if !self.links.is_empty() || self.listener.is_some() {
            return;
        }
        let bound = self.folder.bind_control().and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match bound {
            Ok(listener) => self.listener = Some(listener),
            Err(_) => self.be_found_again = Some(since_boot() + BE_FOUND_AGAIN),
        }
    }

    /// Takes in new listeners and what the others say.
    fn listen(&mut self) {
        let before = self.links.len();
        self.accept();
        let mut asked = Vec::new();
        self.links.retain_mut(|link| link.hear(&mut asked));
        match (before, self.links.len()) {
            (0, 1..) => self.happened(Event::DaemonBack),
            (1.., 0) => self.happened(Event::DaemonGone),
            _ => {}
        }
        for request in asked {
            match request {
                Request::Cancel { reason } => {
                    self.reason.get_or_insert(reason);
                    self.happened(Event::CancelAsked);
                }
                Request::Kill { reason } => {
                    self.reason.get_or_insert(reason);
                    self.happened(Event::KillAsked);
                }
                Request::Contact(contact) => self.renew(contact),
                Request::Shutdown => self.happened(Event::ShutdownAsked),
            }
        }
    }

    fn tell(&mut self, answer: &Answer) {
        self.links.retain_mut(|link| link.tell(answer));
    }

    fn wait(&mut self) -> io::Result<Ready> {
        self.set_timer()?;
        let mut fds = Vec::with_capacity(4 + self.links.len());
        let mut want = |fd| fds.push(PollFd::new(fd, PollFlags::POLLIN));
        want(self.signals.as_fd());
        want(self.timer.as_fd());
        self.listener.iter().for_each(|listener| want(listener.as_fd()));
        self.links.iter().for_each(|link| want(link.stream.as_fd()));
        self.pipe.iter().for_each(|pipe| want(pipe.as_fd()));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |fd: &PollFd| fd.any().unwrap_or(false);
        let links = 2 + self.listener.iter().len() + self.links.len();
        Ok(Ready {
            signals: is_ready(&fds[0]),
            links: fds[2..links].iter().any(is_ready),
            output: fds[links..].iter().any(is_ready),
        })
    }

    /// Has the timer ring at what is due next. What rang is not read: setting it anew stops it.
    fn set_timer(&mut self) -> io::Result<()> {
        let all = [self.due.next(), self.insist_again, self.be_found_again];
        let next = all.into_iter().flatten().min();
        if next == self.set_to {
            return Ok(());
        }
        match next {
            // Nought would stop it.
            Some(at) => self.timer.set(
                Expiration::OneShot(TimeSpec::from_duration(at.max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )?,
            None => self.timer.unset()?,
        }
        self.set_to = next;
        Ok(())
    }
}

struct Ready {
    signals: bool,
    links: bool,
    output: bool,
}

impl Link {
    fn over(stream: UnixStream) -> Link {
        Link { stream, partial: Vec::new() }
    }

    /// Reads what is there; false when the other side is gone or talks nonsense.
    fn hear(&mut self, asked: &mut Vec<Request>) -> bool {
        let mut buffer = [0; 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(read) => self.partial.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
            while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                // What a later release asks and this one does not know is passed over.
                asked.extend(serde_json::from_slice::<Request>(&line));
            }
            if self.partial.len() > LONGEST_LINE {
                return false;
            }
        }
    }

    /// Says one line; false when the other side is gone or does not listen.
    fn tell(&mut self, answer: &Answer) -> bool {
        self.stream.write_all(&json(answer)).is_ok()
    }
}

/// Leaves a process behind that reads what the command's leftovers still write and throws it away: without a reader
/// their next line would end them. It ends when the last of them closes the output, and has nothing of the guard's: no
/// lock, no socket, no child.
fn let_go(pipe: File) {
    // SAFETY: a process of one thread.
    if !matches!(unsafe { fork() }, Ok(ForkResult::Child)) {
        // Without a process left on this machine the leftovers have to do without.
        return;
    }
    let drain = || -> io::Result<()> {
        let mut pipe = pipe;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        dup2_stderr(&null)?;
        chdir("/")?;
        nix::sys::prctl::set_name(c"fleetcron-drain")?;
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::empty()))?;
        SigSet::all().thread_unblock()?;
        io::copy(&mut pipe, &mut &null)?;
        Ok(())
    };
    let _ = drain();
}
