//! Simulated guards and commands, for tests under tokio's paused time: timers in place of processes.
//!
//! A [`Host`] has them as a machine has processes: they live on when the daemon is gone, stand still with the machine and
//! end with it. A guard goes by the same [table](super::life) and the same [hold](super::hold) as the real one, and by the
//! run file: its lock, its notes. A command does what its [`Script`] says. What truly happened, and when, is told to the
//! [`Stage`], which knows more than any node.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::due::Due;
use super::folder::{EndLine, Ended, FolderLock, How, RunFolder, Spec, Started, VERSION};
use super::hold::Contact;
use super::life::{Action, Event, Leftovers, State, Stop};
use super::link::{Answer, Request};
use crate::child::ProcessId;
use crate::clock::Clock;
use crate::clock::sim::{Machine, Process};
use crate::mutant;
use crate::schedule::Timestamp;

/// What a simulated command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Script {
    /// How long its guard takes to begin.
    pub slow_start: Duration,
    /// How long it runs if nobody stops it.
    pub length: Duration,
    pub exit_code: i32,
    /// How long it goes on after TERM. None: it takes no notice.
    pub heeds_term: Option<Duration>,
}

/// What truly happened to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    Started(Box<Spec>),
    /// It is over, whoever may know of it.
    Ended,
    /// How it ended is on the disk.
    Noted,
}

/// Writes the scripts, and sees it all. A run is told by the path of its files.
pub trait Stage: Send + Sync {
    fn script(&self, run: &RunFolder) -> Script;
    fn happened(&self, run: &RunFolder, what: Happened);
}

/// One boot of a simulated machine, with its guards and commands. Clones are the same.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    machine: &'static Machine,
    boot: String,
    stage: Arc<dyn Stage>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    last_pid: i32,
    guards: BTreeMap<i32, Listed<Asked>>,
    commands: BTreeMap<i32, Listed<Signal>>,
}

/// A process as its host knows it.
struct Listed<Message> {
    run: RunFolder,
    process: &'static Process,
    task: AbortHandle,
    tell: mpsc::Sender<Message>,
}

/// What comes to a guard.
enum Asked {
    /// A node that listens from now on.
    Listen(mpsc::Sender<Answer>),
    Request(Request),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    Term,
    Kill,
}

/// A node's line to a guard.
pub struct Line {
    hear: mpsc::Receiver<Answer>,
    ask: mpsc::Sender<Asked>,
}

/// What a socket would take in before somebody has to wait.
const WAITING: usize = 64;
/// Larger than any number a real process can have: nothing that is done to a simulated one can hit another.
const FIRST_PID: i32 = 1 << 24;

impl Host {
    pub fn boot(machine: &'static Machine, boot: String, stage: Arc<dyn Stage>) -> Host {
        let running = Mutex::new(Running { last_pid: FIRST_PID, ..Running::default() });
        Host(Arc::new(Inner { machine, boot, stage, running }))
    }

    pub fn machine(&self) -> &'static Machine {
        self.0.machine
    }

    pub fn boot_id(&self) -> &str {
        &self.0.boot
    }

    /// As the stem does: the guard holds the lock from here on.
    pub fn spawn(&self, run: &RunFolder, lock: FolderLock) -> Line {
        let (tell, asked) = mpsc::channel(WAITING);
        let (answer, hear) = mpsc::channel(WAITING);
        let process = self.0.machine.process();
        let mut running = self.running();
        running.last_pid += 1;
        let pid = running.last_pid;
        let guard = guard(self.clone(), pid, process.clock(), run.clone(), lock, answer, asked);
        let task = tokio::spawn(process.clock().bind(guard)).abort_handle();
        let run = run.clone();
        running.guards.insert(pid, Listed { run, process, task, tell: tell.clone() });
        Line { hear, ask: tell }
    }

    /// As a node connects to the socket beside the run file.
    pub fn connect(&self, run: &RunFolder) -> io::Result<Line> {
        let running = self.running();
        let mut guards = running.guards.values().rev();
        let there = guards.find(|guard| guard.run.path() == run.path() && !guard.tell.is_closed());
        let (answer, hear) = mpsc::channel(WAITING);
        match there.filter(|guard| guard.tell.try_send(Asked::Listen(answer)).is_ok()) {
            Some(guard) => Ok(Line { hear, ask: guard.tell.clone() }),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Ends what is left of the command of a guard that is gone, and is sure of it.
    pub fn end_leftovers(&self, guard: ProcessId) {
        let left = self.running().commands.remove(&guard.pid);
        if let Some(command) = left {
            self.end_command(command);
        }
    }

    /// The runs that have a guard now, oldest first, by their process numbers.
    pub fn guards(&self) -> Vec<(i32, RunFolder)> {
        let running = self.running();
        let alive = running.guards.iter().filter(|(_, guard)| !guard.task.is_finished());
        alive.map(|(pid, guard)| (*pid, guard.run.clone())).collect()
    }

    /// As `kill -9` does to a guard. Its command lives on.
    pub fn kill_guard(&self, pid: i32) {
        if let Some(guard) = self.running().guards.remove(&pid) {
            guard.process.end();
            guard.task.abort();
        }
    }

    /// Guards and commands stand still.
    pub fn freeze(&self) {
        self.processes().iter().for_each(|process| process.freeze());
    }

    pub fn thaw(&self) {
        self.processes().iter().for_each(|process| process.thaw());
    }

    /// The power fails: everything ends in this moment.
    pub fn crash(&self) {
        let gone = std::mem::take(&mut *self.running());
        for guard in gone.guards.into_values() {
            guard.process.end();
            guard.task.abort();
        }
        for command in gone.commands.into_values() {
            self.end_command(command);
        }
    }

    fn end_command(&self, command: Listed<Signal>) {
        command.process.end();
        command.task.abort();
        self.0.stage.happened(&command.run, Happened::Ended);
    }

    fn processes(&self) -> Vec<&'static Process> {
        let mut running = self.running();
        running.guards.retain(|_, guard| !guard.task.is_finished());
        let guards = running.guards.values().map(|guard| guard.process);
        guards.chain(running.commands.values().map(|command| command.process)).collect()
    }

    /// The command of this guard begins. Returns how it is signalled, and what tells its end.
    fn start_command(
        &self,
        pid: i32,
        run: &RunFolder,
        spec: &Spec,
        script: Script,
    ) -> (mpsc::Sender<Signal>, oneshot::Receiver<Exit>) {
        let (tell, signals) = mpsc::channel(WAITING);
        let (exit, exited) = oneshot::channel();
        let process = self.0.machine.process();
        let (host, of) = (self.clone(), run.clone());
        let life = async move {
            let how = command(script, signals).await;
            host.running().commands.remove(&pid);
            host.0.stage.happened(&of, Happened::Ended);
            // Its guard may be gone.
            let _ = exit.send(how);
        };
        self.0.stage.happened(run, Happened::Started(Box::new(spec.clone())));
        let task = tokio::spawn(process.clock().bind(life)).abort_handle();
        let listed = Listed { run: run.clone(), process, task, tell: tell.clone() };
        self.running().commands.insert(pid, listed);
        (tell, exited)
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.0.running.lock().expect("nobody panics holding this")
    }
}

impl Line {
    /// None: the guard is gone. Safe to drop while it waits.
    pub async fn hear(&mut self) -> Option<Answer> {
        self.hear.recv().await
    }

    pub async fn ask(&mut self, request: &Request) {
        let _ = self.ask.send(Asked::Request(request.clone())).await;
    }
}

/// How a simulated command ended.
enum Exit {
    Code(i32),
    Signal(i32),
}

async fn command(script: Script, mut signals: mpsc::Receiver<Signal>) -> Exit {
    let over = tokio::time::sleep(script.length);
    tokio::pin!(over);
    let mut stopping = false;
    loop {
        // A signal first: KILL at the last moment is still KILL.
        tokio::select! {
            biased;
            Some(signal) = signals.recv() => match (signal, script.heeds_term) {
                (Signal::Kill, _) => return Exit::Signal(libc::SIGKILL),
                (Signal::Term, Some(after)) if !stopping => {
                    stopping = true;
                    let soon = tokio::time::Instant::now() + after;
                    let sooner = soon.min(over.deadline());
                    over.as_mut().reset(sooner);
                }
                (Signal::Term, _) => {}
            },
            () = &mut over => return if stopping { Exit::Signal(libc::SIGTERM) } else { Exit::Code(script.exit_code) },
        }
    }
}

/// The life of a guard.
async fn guard(
    host: Host,
    pid: i32,
    clock: Clock,
    run: RunFolder,
    lock: FolderLock,
    node: mpsc::Sender<Answer>,
    asked: mpsc::Receiver<Asked>,
) {
    let script = host.0.stage.script(&run);
    tokio::time::sleep(script.slow_start).await;
    let Ok(spec) = lock.read_spec() else { return };
    let started = Started {
        v: VERSION,
        boot: host.0.boot.clone(),
        guard: ProcessId { pid, started: 0 },
        at: clock.now(),
        cgroup: None,
    };
    let Ok(end_line) = lock.note_started(&started) else { return };
    let mut watch = Watch {
        contact: spec.contact,
        host,
        pid,
        clock,
        run,
        spec,
        lock,
        end_line,
        links: vec![node],
        state: State::Starting,
        command: None,
        exit: None,
        reason: None,
        started_at: None,
        due: Due::default(),
    };
    watch.begin(script);
    watch.watch(asked).await;
}

/// A guard at work: the counterpart of the real one's, with timers for processes.
struct Watch {
    host: Host,
    pid: i32,
    clock: Clock,
    run: RunFolder,
    spec: Spec,
    lock: FolderLock,
    end_line: EndLine,
    links: Vec<mpsc::Sender<Answer>>,
    state: State,
    command: Option<(mpsc::Sender<Signal>, oneshot::Receiver<Exit>)>,
    exit: Option<Exit>,
    reason: Option<String>,
    started_at: Option<Timestamp>,
    contact: Option<Contact>,
    due: Due,
}

impl Watch {
    fn begin(&mut self, script: Script) {
        self.count_from_contact();
        // A claim that has grown stale is somebody else's soon.
        if !mutant!("guard-does-not-look") {
            self.look_at_the_clock();
        }
        if self.state == State::Starting {
            self.started_at = Some(self.clock.now());
            self.command = Some(self.host.start_command(self.pid, &self.run, &self.spec, script));
            self.due.time_up =
                self.spec.timeout.map(|millis| self.clock.since_boot() + Duration::from_millis(millis));
            self.tell(&self.hello());
            self.happened(Event::Spawned);
        }
    }

    async fn watch(mut self, mut asked: mpsc::Receiver<Asked>) {
        while !self.state.is_end() {
            let wait = self.due.next().map(|due| due.saturating_sub(self.clock.since_boot()));
            // What is said first, the clock after: a contact that comes with its deadline is too late.
            tokio::select! {
                biased;
                Some(said) = asked.recv() => {
                    self.take_in(said);
                    while let Ok(said) = asked.try_recv() {
                        self.take_in(said);
                    }
                }
                exit = async { (&mut self.command.as_mut().expect("there is one").1).await }, if self.exit.is_none() && self.command.is_some() => {
                    self.exit = exit.ok();
                    self.happened(Event::Exited(Leftovers::Nothing));
                }
                // The timer counts whole milliseconds, so it may ring a little early.
                () = tokio::time::sleep(wait.unwrap_or_default() + ROUNDING), if wait.is_some() => {}
            }
            self.look_at_the_clock();
        }
        // First it is nowhere to be found, then its lock is free.
        drop(asked);
        drop(self.links);
        drop(self.lock);
        self.host.running().guards.remove(&self.pid);
    }

    fn take_in(&mut self, said: Asked) {
        match said {
            Asked::Listen(node) => {
                if node.try_send(self.hello()).is_ok() {
                    self.links.push(node);
                }
            }
            Asked::Request(Request::Cancel { reason }) => {
                self.reason.get_or_insert(reason);
                self.happened(Event::CancelAsked);
            }
            Asked::Request(Request::Kill { reason }) => {
                self.reason.get_or_insert(reason);
                self.happened(Event::KillAsked);
            }
            Asked::Request(Request::Contact(contact)) => self.renew(contact),
            Asked::Request(Request::Shutdown) => self.happened(Event::ShutdownAsked),
        }
    }

    fn happened(&mut self, event: Event) {
        let (state, actions) = self.state.after(event);
        self.state = state;
        for action in actions {
            match action {
                Action::Ask => self.signal(Signal::Term),
                Action::Grace => {
                    let grace = Duration::from_millis(self.spec.kill_after);
                    self.due.grace_up = Some(self.clock.since_boot() + grace);
                }
                Action::Insist => self.signal(Signal::Kill),
                Action::Drain => self.happened(Event::OutputEnd),
                Action::Note => self.note_end(),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some((command, _)) = &self.command {
            let _ = command.try_send(signal);
        }
    }

    fn look_at_the_clock(&mut self) {
        let now = self.clock.since_boot();
        while let Some(event) = self.due.take(now) {
            self.happened(event);
        }
    }

    fn count_from_contact(&mut self) {
        if let Some(contact) = self.contact {
            self.due.count_from(contact, Duration::from_millis(self.spec.kill_after));
        }
    }

    fn renew(&mut self, by: Contact) {
        let Some(contact) = self.contact else { return };
        let kill_after = Duration::from_millis(self.spec.kill_after);
        let renewed = contact.renewed(by, self.clock.since_boot(), kill_after);
        if renewed != contact {
            self.contact = Some(renewed);
            self.count_from_contact();
        }
        self.tell(&Answer::Holds(renewed));
    }

    fn note_end(&mut self) {
        let stop = match self.state {
            State::Done(stop) | State::Unstarted(stop) => stop,
            _ => None,
        };
        let how = match (stop, self.started_at) {
            (None, None) => How::CouldNotStart,
            (None, Some(_)) => How::Exited,
            (Some(Stop::TimedOut), _) => How::TimedOut,
            (Some(Stop::Cancelled), _) => How::Cancelled,
            (Some(Stop::OutOfTouch), _) => How::OutOfTouch,
            (Some(Stop::Shutdown), _) => How::Shutdown,
        };
        let (exit_code, signal) = match self.exit {
            Some(Exit::Code(code)) => (Some(code), None),
            Some(Exit::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let ended = Ended {
            v: VERSION,
            how,
            exit_code,
            signal,
            reason: self.reason.clone(),
            started_at: self.started_at,
            ended_at: self.clock.now(),
            output_bytes: 0,
            output_left_out: 0,
            output_failed: None,
            usage: None,
        };
        // The disk of a simulated machine is never full.
        if self.lock.note_ended(&self.end_line, &ended).is_ok() {
            self.host.0.stage.happened(&self.run, Happened::Noted);
            self.tell(&Answer::Ended(ended));
        }
    }

    fn hello(&self) -> Answer {
        Answer::Hello { v: VERSION, started_at: self.started_at }
    }

    fn tell(&mut self, answer: &Answer) {
        self.links.retain(|link| link.try_send(answer.clone()).is_ok());
    }
}

/// A timer of the runtime rounds down by at most so much.
const ROUNDING: Duration = Duration::from_millis(1);
