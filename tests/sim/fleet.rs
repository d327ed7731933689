//! A simulated fleet: real nodes on simulated machines, one simulated store, and the operator.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::TimeDelta;
use fleetcron::clock::sim::{Machine, Process};
use fleetcron::config::{Policy, StateFolder};
use fleetcron::daemon::signals::{Signal, Signals};
use fleetcron::daemon::state::{Life, State};
use fleetcron::daemon::{self, Options, Parts};
use fleetcron::fire::{Fire, FireId};
use fleetcron::guard::Guards;
use fleetcron::guard::sim::Host;
use fleetcron::node::{NodeName, NodeStart};
use fleetcron::race::Chains;
use fleetcron::run::{Account, Place};
use fleetcron::schedule::Timestamp;
use fleetcron::store::sim::Sim;
use fleetcron::store::values::{self, HoldBack, Request};
use fleetcron::store::{Access, Compare, Op, Store, Together, Txn, keys};
use fleetcron::sync;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use crate::jobs::{self, Defined};
use crate::truth::Truth;

pub struct Fleet {
    pub sim: Sim,
    pub truth: Truth,
    pub nodes: Vec<Node>,
    pub jobs: Vec<Defined>,
    pub random: StdRng,
    /// What the operator is at. He waits for nobody.
    acts: JoinSet<()>,
    operator: Store,
    /// Of each node. Few, so that fires wait for one, or more than are ever needed.
    slots: u32,
    /// Whether clocks may be further ahead of the true time than nodes let pass.
    may_be_ahead: bool,
    /// One was.
    pub was_ahead: bool,
    _folder: tempfile::TempDir,
}

/// One node with its machine.
pub struct Node {
    pub number: usize,
    pub name: NodeName,
    folder: PathBuf,
    machine: &'static Machine,
    boots: u32,
    /// None: it is down.
    pub host: Option<Host>,
    /// None: it is not running.
    pub daemon: Option<Daemon>,
    pub cut_off: bool,
    pub frozen: bool,
    /// When its daemon was last killed: what that one owned goes a moment later.
    pub killed_at: Duration,
}

impl Node {
    /// Whether nothing keeps it from its work at the moment.
    pub fn works(&self) -> bool {
        let daemon = self.daemon.as_ref().is_some_and(|daemon| !daemon.frozen && !daemon.leaving);
        daemon && !self.frozen && !self.cut_off
    }
}

/// A daemon that runs.
pub struct Daemon {
    process: &'static Process,
    task: JoinHandle<anyhow::Result<()>>,
    signals: mpsc::Sender<Signal>,
    pub since: Duration,
    pub leaving: bool,
    pub frozen: bool,
}

/// How long commands go on without a daemon after an orderly stop.
const STOP_HOLD: Duration = Duration::from_secs(120);

impl Fleet {
    pub fn new(seed: u64, nodes: usize) -> Fleet {
        let sim = Sim::new(seed);
        let truth = Truth::new(seed);
        let folder = match Path::new("/dev/shm") {
            memory if memory.is_dir() => tempfile::tempdir_in(memory),
            _ => tempfile::tempdir(),
        };
        let folder = folder.expect("a folder for the run files");
        let node = |number: usize| Node {
            number,
            name: format!("n{number}").parse().expect("a node's name"),
            folder: folder.path().join(format!("n{number}")),
            machine: Machine::boot(at_first()),
            boots: 0,
            host: None,
            daemon: None,
            cut_off: false,
            frozen: false,
            killed_at: Duration::ZERO,
        };
        let nodes = (0..nodes).map(node).collect();
        let random = StdRng::seed_from_u64(seed);
        let operator = sim.client("operator");
        let jobs = jobs::at_first();
        let slots = [2, 3, 16, 16][(seed / 3 % 4) as usize];
        Fleet {
            sim,
            truth,
            nodes,
            jobs,
            random,
            acts: JoinSet::new(),
            operator,
            slots,
            may_be_ahead: seed % 2 == 0,
            was_ahead: false,
            _folder: folder,
        }
    }

    /// The true time, as a clock that is right shows it.
    pub fn now(&self) -> Timestamp {
        at_first() + self.truth.story().now()
    }

    pub fn say(&self, who: &str, what: impl std::fmt::Display) {
        self.truth.say(who, what);
    }

    /// Turns a node's machine on.
    pub fn boot(&mut self, number: usize) {
        let now = self.now();
        let node = &mut self.nodes[number];
        assert!(node.host.is_none());
        node.boots += 1;
        node.machine = Machine::boot(now);
        let boot = format!("boot-{number}-{}", node.boots);
        node.host = Some(Host::boot(node.machine, boot, self.truth.stage(number)));
        self.truth.say(&format!("n{number}"), "the machine boots");
    }

    /// Starts a node's daemon.
    pub fn start(&mut self, number: usize) {
        let fresh = NodeStart(self.ulid());
        let instance = self.ulid();
        let since = self.truth.story().now();
        let node = &mut self.nodes[number];
        assert!(node.daemon.is_none() && !node.frozen);
        let host = node.host.clone().expect("its machine is on");
        let process = node.machine.process();
        let clock = process.clock();
        let life = Life { boot: host.boot_id().to_owned(), machine: format!("machine-{number}"), fresh };
        let state = State::open(&node.folder, node.name.as_str(), life).expect("its folder is free");
        let store = self.sim.client_of(node.name.as_str(), clock);
        let policy = Policy { users: None, root: true };
        let account = Account {
            name: "simulated".to_owned(),
            home: "/".to_owned(),
            shell: "/bin/sh".to_owned(),
            is_root: false,
        };
        let place = Place {
            store: store.clone(),
            together: Together::new(store),
            clock,
            runs: state.runs(),
            outputs: state.outputs(),
            journal: state.journal(),
            guards: Guards::Simulated(host),
            cgroups: None,
            account,
            policy: policy.clone(),
            chains: Chains::default(),
        };
        let options = Options {
            require_synced_clock: false,
            store: "sqlite:/nowhere".parse().expect("an address that is never opened"),
            access: Access::default(),
            node: node.name.clone(),
            labels: BTreeMap::new(),
            slots: self.slots,
            state: node.folder.clone(),
            jobs: Vec::new(),
            stop_hold: STOP_HOLD,
            policy,
            clock,
        };
        let (signals, told) = mpsc::channel(4);
        let parts = Parts {
            pulse: tokio::sync::watch::channel(None).0,
            signals: Signals::told(told, false),
            state,
            place,
            instance,
            services: JoinSet::new(),
            gone: CancellationToken::new(),
        };
        let task = tokio::spawn(clock.bind(daemon::node(options, parts)));
        node.daemon = Some(Daemon { process, task, signals, since, leaving: false, frozen: false });
        self.truth.say(&format!("n{number}"), "the daemon starts");
    }

    /// As `kill -9` does to a daemon.
    pub fn crash(&mut self, number: usize) {
        let now = self.truth.story().now();
        let node = &mut self.nodes[number];
        let Some(daemon) = node.daemon.take() else { return };
        node.killed_at = now;
        daemon.process.end();
        daemon.task.abort();
        self.truth.say(&format!("n{number}"), "the daemon is killed");
    }

    /// SIGTERM to a daemon.
    pub fn stop(&mut self, number: usize) {
        let Some(daemon) = &mut self.nodes[number].daemon else { return };
        daemon.leaving = true;
        let _ = daemon.signals.try_send(Signal::Stop);
        self.truth.say(&format!("n{number}"), "the daemon is told to stop");
    }

    /// The power of a machine fails. What was not synced may be gone from its disk.
    pub fn power_off(&mut self, number: usize) {
        self.crash(number);
        let node = &mut self.nodes[number];
        let Some(host) = node.host.take() else { return };
        host.crash();
        node.frozen = false;
        self.truth.say(&format!("n{number}"), "the power fails");
        let _ = self.truth.thaw(number);
        let runs = StateFolder::at(self.nodes[number].folder.clone()).runs();
        let mut files: Vec<PathBuf> =
            fs::read_dir(&runs).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        files.sort();
        for file in files {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let synced = text.contains("{\"ended\"") || text.contains("{\"void\"");
            if !synced && self.random.random_range(0..3) == 0 {
                fs::remove_file(&file).expect("it is there");
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.truth.say(&format!("n{number}"), format!("the disk has lost {name}"));
            }
        }
    }

    /// A machine that is off gets an empty disk. What it knew is nobody's fault any more.
    pub fn reimage(&mut self, number: usize) {
        let node = &self.nodes[number];
        fs::remove_dir_all(&node.folder).expect("nobody uses it");
        self.truth.story().disk_is_gone(number);
        self.truth.say(&format!("n{number}"), "its disk is replaced by an empty one");
    }

    /// A daemon stands still, as by SIGSTOP.
    pub fn freeze_daemon(&mut self, number: usize) {
        let Some(daemon) = &mut self.nodes[number].daemon else { return };
        daemon.frozen = true;
        daemon.process.freeze();
        self.truth.say(&format!("n{number}"), "the daemon is frozen");
    }

    pub fn thaw_daemon(&mut self, number: usize) {
        let Some(daemon) = self.nodes[number].daemon.as_mut().filter(|daemon| daemon.frozen) else { return };
        daemon.frozen = false;
        self.truth.say(&format!("n{number}"), "the daemon goes on");
        daemon.process.thaw();
    }

    /// A machine stands still with all that is on it.
    pub fn freeze_host(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(host) = node.host.as_ref().filter(|_| !node.frozen) else { return };
        node.frozen = true;
        host.freeze();
        if let Some(daemon) = &node.daemon {
            daemon.process.freeze();
        }
        self.truth.freeze(number);
        self.truth.say(&format!("n{number}"), "the machine is frozen");
    }

    pub fn thaw_host(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(host) = node.host.as_ref().filter(|_| node.frozen) else { return };
        node.frozen = false;
        self.truth.thaw(number);
        self.truth.say(&format!("n{number}"), "the machine goes on");
        host.thaw();
        if let Some(daemon) = &node.daemon {
            daemon.process.thaw();
        }
    }

    pub fn cut_off(&mut self, number: usize) {
        self.nodes[number].cut_off = true;
        self.sim.cut_off(self.nodes[number].name.as_str());
        self.truth.say(&format!("n{number}"), "is cut off from the store");
    }

    pub fn heal(&mut self, number: usize) {
        if std::mem::take(&mut self.nodes[number].cut_off) {
            self.sim.heal(self.nodes[number].name.as_str());
            self.truth.say(&format!("n{number}"), "reaches the store again");
        }
    }

    pub fn step_clock(&mut self, number: usize, by: TimeDelta) {
        let ahead = self.nodes[number].machine.wall() + by - self.now();
        let by = match self.may_be_ahead {
            true => by,
            false => by - (ahead - LET_PASS).max(TimeDelta::zero()),
        };
        self.nodes[number].machine.step(by);
        self.was_ahead |= self.nodes[number].machine.wall() - self.now() > LET_PASS + TimeDelta::seconds(1);
        self.truth.say(&format!("n{number}"), format!("its clock is set by {} s", by.num_seconds()));
    }

    pub fn drift(&mut self, number: usize, millionths: i32) {
        self.nodes[number].machine.drift(millionths);
        self.truth.say(&format!("n{number}"), format!("its clock runs {millionths} ppm fast"));
    }

    /// Its wall clock shows the true time, and runs right.
    pub fn set_clock_right(&mut self, number: usize) {
        let node = &self.nodes[number];
        node.machine.drift(0);
        node.machine.step(self.now() - node.machine.wall());
    }

    /// The daemons that have ended by themselves, and those that were told to. Errors: why one could not go on.
    pub async fn reap(&mut self) -> Vec<Result<usize, (usize, String)>> {
        let mut ended = Vec::new();
        for node in &mut self.nodes {
            let Some(daemon) = node.daemon.take_if(|daemon| daemon.task.is_finished()) else { continue };
            let end = match daemon.task.await {
                Ok(Ok(())) => Ok(node.number),
                Ok(Err(error)) => Err((node.number, format!("{error:#}"))),
                Err(error) => Err((node.number, error.to_string())),
            };
            self.truth.say(node.name.as_str(), "the daemon has ended");
            ended.push(end);
        }
        ended
    }

    /// Puts the jobs into the store as they are to be now.
    pub fn sync(&mut self) {
        let (store, wanted, now) = (self.operator.clone(), jobs::wanted(&self.jobs), self.now());
        self.acts.spawn(async move {
            // The next sync does what this one could not.
            let Ok(outlook) = sync::look(&store, &wanted).await else { return };
            let _ = sync::apply(&store, &wanted, outlook, "simulated", now).await;
        });
    }

    /// Asks for a run by hand.
    pub fn ask(&mut self, job: &str) {
        let id = FireId::Manual(self.ulid());
        let fire = Fire::new(job.parse().expect("a job's name"), id);
        self.truth.say("op", format!("asks for {fire}"));
        let value = values::encode(&Request::new("simulated".to_owned(), self.now()));
        // As `fleetcron start` does: what a claim has used up has left a lock, or a record.
        let known = [keys::request(&fire), keys::lock(&fire), keys::record(&fire)];
        let absent = known.iter().map(|key| Compare::absent(key.as_str()));
        let compare = [Compare::present(keys::job(&fire.job))].into_iter().chain(absent);
        self.act(Txn::when(compare).then([Op::put(keys::request(&fire), value)]));
    }

    pub fn hold_back(&mut self, key: String, until: Option<Timestamp>) {
        self.truth.say("op", format!("puts {key}"));
        let value = values::encode(&HoldBack::new("simulated".to_owned(), self.now(), None, until));
        self.act(Txn::new().then([Op::put(key, value)]));
    }

    pub fn let_go(&mut self, key: String) {
        self.truth.say("op", format!("deletes {key}"));
        self.act(Txn::new().then([Op::delete(key)]));
    }

    fn act(&mut self, txn: Txn) {
        let store = self.operator.clone();
        self.acts.spawn(async move {
            while store.txn(txn.clone()).await.is_err() {
                sleep(Duration::from_millis(500)).await;
            }
        });
    }

    /// Waits until the operator has nothing more to do.
    pub async fn acts_done(&mut self) {
        while self.acts.join_next().await.is_some() {}
    }

    /// The names of the files of runs that lie on a node's disk.
    pub fn run_files_of(&self, node: &Node) -> Vec<String> {
        let runs = StateFolder::at(node.folder.clone()).runs();
        let files = fs::read_dir(runs).into_iter().flatten().flatten();
        files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
    }

    /// The files of runs that lie on the disks of the nodes.
    pub fn run_files(&self) -> Vec<PathBuf> {
        let folders = self.nodes.iter().map(|node| StateFolder::at(node.folder.clone()).runs());
        let files = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
        let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
        files.sort();
        files
    }

    fn ulid(&mut self) -> Ulid {
        let millis = self.now().timestamp_millis().unsigned_abs();
        Ulid::from_parts(millis, self.random.random())
    }
}

/// A clock may differ by so much from others without a word.
const LET_PASS: TimeDelta = TimeDelta::seconds(4);

pub fn at_first() -> Timestamp {
    "2026-11-30T02:00:00Z".parse().expect("an instant")
}
