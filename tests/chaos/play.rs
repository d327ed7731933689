//! Does what was planned, ends it, waits until all is calm, and asks what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};

use crate::history;
use crate::jobs::{self, Defined};
use crate::plan::{self, Fault, Step};
use crate::world::{GuardedRun, Host, MEMBERS, NODES, World, make_for_all, node_name};

/// How long calm may take to come: the longest hold, retries and what is then still to be run.
const CALM: Duration = Duration::from_secs(240);
/// A daemon that has ended by itself is started again, as a service manager does it.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Guards have so long to end what must not go on, before the commands of a frozen machine go on.
const GUARDS_FIRST: Duration = Duration::from_millis(1500);
/// A guard that was frozen has so long to end what it watches.
const WAKING: chrono::TimeDelta = chrono::TimeDelta::milliseconds(1500);
/// An operator's command has so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// From when to when.
type Instants = (chrono::DateTime<chrono::Utc>, chrono::DateTime<chrono::Utc>);

pub struct Failed {
    pub why: String,
    pub kept: String,
}

/// Errors: something is not as promised, or calm does not come.
pub fn play(seed: u32, length: Duration) -> Result<String, Failed> {
    let folder = std::env::temp_dir().join(format!("fleetcron-chaos-{seed}-{}", boot_seconds()));
    let mut play = Play::begin(folder, seed, length);
    let came = play.all();
    match came {
        Ok(came) => {
            let _ = fs::remove_dir_all(play.end());
            Ok(came)
        }
        Err(why) => {
            play.world.keep();
            Err(Failed { why, kept: play.end().display().to_string() })
        }
    }
}

fn boot_seconds() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every kernel has it");
    now.tv_sec() as u64
}

struct Play {
    world: World,
    steps: Vec<Step>,
    length: Duration,
    begun: Instant,
    since: chrono::DateTime<chrono::Utc>,
    defined: Vec<Defined>,
    /// When a node's daemon is to be started; none while a fault keeps it down.
    restarts: BTreeMap<usize, Instant>,
    /// Whose commands are still to go on.
    thaws: Vec<(Instant, usize)>,
    frozen_runs: BTreeMap<usize, GuardedRun>,
    frozen_leader: Option<usize>,
    /// Whose guards stood still with all they watch, from when to when.
    frozen: Vec<(String, Instants)>,
    /// Operators' commands that have not ended.
    errands: Vec<(Instant, String, Child)>,
    /// A sync waits until the one before it has ended.
    unsynced: bool,
    log: File,
    done: BTreeMap<String, usize>,
    errands_failed: usize,
}

impl Play {
    fn begin(folder: PathBuf, seed: u32, length: Duration) -> Play {
        let world = World::make(folder.clone());
        make_for_all(&folder.join("history"), "");
        fs::write(folder.join("environment"), "WORD=secret\n").expect("a file");
        fs::write(folder.join("command.sh"), jobs::COMMAND).expect("a file");
        let steps = plan::plan(seed, length);
        let log = File::create(folder.join("faults.log")).expect("a log");
        Play {
            steps,
            length,
            begun: Instant::now(),
            since: chrono::Utc::now(),
            defined: jobs::at_first(&folder),
            restarts: BTreeMap::new(),
            thaws: Vec::new(),
            frozen_runs: BTreeMap::new(),
            frozen_leader: None,
            frozen: Vec::new(),
            errands: Vec::new(),
            unsynced: false,
            log,
            done: BTreeMap::new(),
            errands_failed: 0,
            world,
        }
    }

    fn all(&mut self) -> Result<String, String> {
        self.set_up()?;
        self.ill_treat();
        self.make_good();
        self.wait_for_calm()?;
        self.judge()
    }

    fn set_up(&mut self) -> Result<(), String> {
        self.world.members.iter_mut().for_each(|member| member.start());
        self.wait("etcd to answer", Duration::from_secs(60), |play| play.sync_now())?;
        self.world.nodes.iter_mut().for_each(|node| node.start());
        self.wait("all nodes to be there", Duration::from_secs(60), |play| play.registered() == NODES)?;
        self.begun = Instant::now();
        Ok(())
    }

    fn ill_treat(&mut self) {
        let mut ahead: Vec<Step> = self.steps.clone();
        ahead.reverse();
        let mut there: Vec<Step> = Vec::new();
        while self.begun.elapsed() < self.length {
            let now = self.begun.elapsed();
            if let Some(step) = ahead.pop_if(|step| step.from <= now) {
                self.note(&format!("begins {step}"));
                *self.done.entry(step.fault.kind()).or_default() += 1;
                self.begin_fault(step.fault);
                there.push(step);
            }
            for over in there.extract_if(.., |step| step.to <= now).collect::<Vec<_>>() {
                self.note(&format!("ends   {over}"));
                self.end_fault(over.fault);
            }
            self.tend();
            std::thread::sleep(Duration::from_millis(20));
        }
        for step in there {
            self.note(&format!("ends   {step}"));
            self.end_fault(step.fault);
        }
    }

    fn begin_fault(&mut self, fault: Fault) {
        match fault {
            Fault::KillDaemon(node) => {
                self.restarts.remove(&node);
                self.world.nodes[node].kill();
            }
            Fault::KillHost(node) => {
                self.restarts.remove(&node);
                self.world.nodes[node].kill_host();
            }
            Fault::FreezeDaemon(node) => self.world.nodes[node].signal(Signal::SIGSTOP),
            Fault::FreezeHost(node) => {
                self.world.nodes[node].freeze_host();
                self.freezes(node);
            }
            Fault::KillGuard { node, pick } => {
                if let Some(run) = self.picked_run(node, pick) {
                    run.guard.signal(Signal::SIGKILL);
                }
            }
            Fault::FreezeRun { node, pick } => {
                if let Some(run) = self.picked_run(node, pick) {
                    run.guard.signal(Signal::SIGSTOP);
                    run.commands.iter().for_each(|command| command.signal(Signal::SIGSTOP));
                    self.frozen_runs.insert(node, run);
                    self.freezes(node);
                }
            }
            Fault::StopDaemon(node) => self.world.nodes[node].signal(Signal::SIGTERM),
            Fault::Upgrade(node) => {
                self.world.nodes[node].replace();
                self.world.nodes[node].signal(Signal::SIGTERM);
            }
            Fault::FillDisk(node) => self.world.nodes[node].fill_disk(true),
            Fault::KillMember(member) => self.world.members[member].kill(),
            Fault::FreezeMember(member) => self.world.members[member].signal(Signal::SIGSTOP),
            Fault::FreezeLeader => {
                self.frozen_leader = self.world.leader();
                if let Some(leader) = self.frozen_leader {
                    self.world.members[leader].signal(Signal::SIGSTOP);
                }
            }
            Fault::Cut { .. } | Fault::CutOff { .. } => self.cut(fault, true),
            Fault::SlowLinks { node, millis } => self.world.nodes[node].tell_relay(&millis.to_string()),
            Fault::ResetLinks(node) => self.world.nodes[node].tell_relay("reset"),
            Fault::Compact => self.compact(),
            Fault::Defragment(member) => {
                let command = self.world.etcdctl(&[member], &["defrag"]);
                self.errand("defrag", command);
            }
            Fault::Pause { job } => self.act(&["pause", &self.job(job), "--reason", "chaos"]),
            Fault::PauseAll => self.act(&["pause", "--all"]),
            Fault::Drain(node) => self.act(&["drain", &node_name(node)]),
            Fault::EditJob { job, slower, hold } => {
                let defined = &mut self.defined[job];
                (defined.slower, defined.hold) = (slower, hold);
                self.unsynced = true;
            }
            Fault::DisableJob(job) => {
                self.defined[job].enabled = false;
                self.unsynced = true;
            }
            Fault::RemoveJob(job) => {
                self.defined[job].there = false;
                self.unsynced = true;
            }
            Fault::Start { first, jobs } => {
                for job in (first..first + jobs).map(|job| job % jobs::JOBS) {
                    if self.defined[job].kind.by_hand && self.defined[job].there {
                        self.act(&["start", &self.job(job)]);
                    }
                }
            }
        }
    }

    fn end_fault(&mut self, fault: Fault) {
        match fault {
            Fault::KillDaemon(node) | Fault::KillHost(node) => _ = self.restarts.insert(node, Instant::now()),
            Fault::FreezeDaemon(node) => self.world.nodes[node].signal(Signal::SIGCONT),
            Fault::FreezeHost(node) => {
                self.thawed(node);
                self.world.nodes[node].thaw_own();
                self.thaws.push((Instant::now() + GUARDS_FIRST, node));
            }
            Fault::FreezeRun { node, .. } => {
                if let Some(run) = self.frozen_runs.remove(&node) {
                    self.thawed(node);
                    run.guard.signal(Signal::SIGCONT);
                    self.thaws.push((Instant::now() + GUARDS_FIRST, node));
                }
            }
            Fault::FillDisk(node) => self.world.nodes[node].fill_disk(false),
            Fault::KillMember(member) => self.world.members[member].start(),
            Fault::FreezeMember(member) => self.world.members[member].signal(Signal::SIGCONT),
            Fault::FreezeLeader => {
                if let Some(leader) = self.frozen_leader.take() {
                    self.world.members[leader].signal(Signal::SIGCONT);
                }
            }
            Fault::Cut { .. } | Fault::CutOff { .. } => self.cut(fault, false),
            Fault::SlowLinks { node, .. } => self.world.nodes[node].tell_relay("0"),
            Fault::Pause { job } => self.act(&["resume", &self.job(job)]),
            Fault::PauseAll => self.act(&["resume", "--all"]),
            Fault::Drain(node) => self.act(&["undrain", &node_name(node)]),
            Fault::DisableJob(job) => {
                self.defined[job].enabled = true;
                self.unsynced = true;
            }
            Fault::RemoveJob(job) => {
                self.defined[job].there = true;
                self.unsynced = true;
            }
            Fault::KillGuard { .. }
            | Fault::StopDaemon(_)
            | Fault::Upgrade(_)
            | Fault::ResetLinks(_)
            | Fault::Compact
            | Fault::Defragment(_)
            | Fault::EditJob { .. }
            | Fault::Start { .. } => {}
        }
    }

    fn freezes(&mut self, node: usize) {
        let now = chrono::Utc::now();
        self.frozen.push((node_name(node), (now, now)));
    }

    fn thawed(&mut self, node: usize) {
        let last = self.frozen.iter_mut().rev().find(|(frozen, _)| *frozen == node_name(node));
        last.expect("it was frozen").1.1 = chrono::Utc::now();
    }

    fn picked_run(&self, node: usize, pick: usize) -> Option<GuardedRun> {
        let mut runs = self.world.nodes[node].runs();
        (!runs.is_empty()).then(|| runs.swap_remove(pick % runs.len()))
    }

    fn cut(&mut self, fault: Fault, cut: bool) {
        match fault {
            Fault::Cut { from, to, both } => {
                self.world.cut(from, to, cut);
                if both {
                    self.world.cut(to, from, cut);
                }
            }
            Fault::CutOff { node, both } => {
                for member in 0..MEMBERS {
                    self.cut(Fault::Cut { from: Host::Node(node), to: Host::Member(member), both }, cut);
                }
            }
            _ => unreachable!("only links are cut"),
        }
    }

    fn compact(&mut self) {
        let all: Vec<usize> = (0..MEMBERS).collect();
        let got = self.world.etcdctl(&all, &["get", "none", "-w", "json"]).output();
        let text = got.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
        let revision = text
            .split_once("\"revision\":")
            .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
        if let Some(revision) = revision {
            let command = self.world.etcdctl(&all, &["compact", "--physical", &revision]);
            self.errand("compact", command);
        }
    }

    fn job(&self, job: usize) -> String {
        self.defined[job].kind.name.clone()
    }

    fn act(&mut self, arguments: &[&str]) {
        let command = self.world.fleetcron(arguments);
        self.errand(&arguments.join(" "), command);
    }

    fn errand(&mut self, what: &str, mut command: Command) {
        let log = File::options().create(true).append(true).open(self.world.folder.join("operator.log"));
        let log = log.expect("a log");
        let told = log.try_clone().expect("a second handle");
        let child = command.stdout(told).stderr(log).spawn().expect("it starts");
        self.errands.push((Instant::now(), what.to_owned(), child));
    }

    /// What happens all the time, whatever goes wrong: daemons are started again, errands end.
    fn tend(&mut self) {
        let now = Instant::now();
        for node in 0..NODES {
            if let Some(status) = self.world.nodes[node].ended() {
                self.note(&format!("the daemon of {} ended: {status}", node_name(node)));
                self.restarts.insert(node, now + RESTART_AFTER);
            }
        }
        for (node, _) in self.restarts.extract_if(.., |_, due| *due <= now).collect::<Vec<_>>() {
            if !self.world.nodes[node].is_up() {
                self.world.nodes[node].start();
            }
        }
        for (_, node) in self.thaws.extract_if(.., |(due, _)| *due <= now).collect::<Vec<_>>() {
            self.world.nodes[node].thaw_commands();
        }
        self.end_errands(now);
        if self.unsynced && !self.errands.iter().any(|(_, what, _)| what == "sync") {
            self.unsynced = false;
            self.sync();
        }
    }

    fn end_errands(&mut self, now: Instant) {
        let mut told = Vec::new();
        self.errands.retain_mut(|(since, what, child)| {
            let ended = child.try_wait().expect("it can be waited for");
            if ended.is_none() && now < *since + PATIENCE {
                return true;
            }
            if ended.is_none() {
                let _ = child.kill();
                let _ = child.wait();
            }
            if !ended.is_some_and(|status| status.success()) {
                told.push(format!("{what}: {ended:?}"));
            }
            false
        });
        self.errands_failed += told.len();
        for what in told {
            // Nobody knows whether a definition is in force; the next sync says it again.
            self.unsynced |= what.starts_with("sync");
            self.note(&what);
        }
    }

    fn sync(&mut self) {
        let file = self.write_jobs();
        self.act_as("sync", &["sync", "--yes", "--prune", &file]);
    }

    fn act_as(&mut self, what: &str, arguments: &[&str]) {
        let command = self.world.fleetcron(arguments);
        self.errand(what, command);
    }

    fn write_jobs(&self) -> String {
        let file = self.world.folder.join("jobs.toml");
        fs::write(&file, jobs::text(&self.defined, &self.world.folder)).expect("a file");
        file.display().to_string()
    }

    fn sync_now(&mut self) -> bool {
        let file = self.write_jobs();
        let done = self.world.fleetcron(&["sync", "--yes", "--prune", &file]).output().expect("it starts");
        if done.status.code() == Some(2) {
            panic!("{}", String::from_utf8_lossy(&done.stderr));
        }
        done.status.success()
    }

    /// Ends every fault there may be.
    fn make_good(&mut self) {
        self.note("all faults end");
        self.world.mend_all_links();
        for member in &mut self.world.members {
            member.signal(Signal::SIGCONT);
            if !member.is_up() {
                member.start();
            }
        }
        for (number, node) in self.world.nodes.iter_mut().enumerate() {
            node.fill_disk(false);
            node.signal(Signal::SIGCONT);
            if !node.is_up() {
                self.restarts.insert(number, Instant::now());
            }
        }
        self.unsynced = true;
    }

    /// Nothing waits and nothing runs, with all nodes there and all jobs as defined.
    fn wait_for_calm(&mut self) -> Result<(), String> {
        let quiet = |play: &mut Play| play.errands.is_empty() && !play.unsynced;
        self.wait("the operators to be done", CALM, quiet)?;
        self.end_what_operators_left()?;
        self.wait("all nodes to be there", CALM, |play| play.registered() == NODES)?;
        self.wait("what was asked for by hand to be taken", CALM, |play| play.keys("requests/").is_empty())?;
        self.wait("all jobs to be held back", CALM, |play| play.done_now(&["pause", "--all"]))?;
        self.wait("every lock to go", CALM, |play| play.keys("locks/").is_empty())?;
        self.note("calm");
        Ok(())
    }

    /// Their own word for the end may not have got through.
    fn end_what_operators_left(&mut self) -> Result<(), String> {
        let paused = self.steps.iter().filter_map(|step| match step.fault {
            Fault::Pause { job } => Some(["resume".to_owned(), self.job(job)]),
            Fault::PauseAll => Some(["resume".to_owned(), "--all".to_owned()]),
            Fault::Drain(node) => Some(["undrain".to_owned(), node_name(node)]),
            _ => None,
        });
        for [act, of] in paused.collect::<BTreeSet<_>>() {
            self.wait(&format!("{act} {of}"), CALM, |play| play.done_now(&[&act, &of]))?;
        }
        Ok(())
    }

    fn done_now(&self, arguments: &[&str]) -> bool {
        let mut command = self.world.fleetcron(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it starts").success()
    }

    fn registered(&self) -> usize {
        let nodes = self.world.fleetcron(&["nodes", "--output", "json"]).output().expect("it starts");
        nodes.stdout.iter().filter(|byte| **byte == b'\n').count()
    }

    /// The keys below a name; one that says so while the store is not to be asked.
    fn keys(&self, below: &str) -> Vec<String> {
        let all: Vec<usize> = (0..MEMBERS).collect();
        let below = format!("/chaos/{below}");
        let got = self
            .world
            .etcdctl(&all, &["get", "--prefix", "--keys-only", &below])
            .output()
            .expect("it starts");
        if !got.status.success() {
            return vec!["(no answer)".to_owned()];
        }
        String::from_utf8_lossy(&got.stdout)
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Waits for a condition while everything is tended.
    fn wait(
        &mut self,
        what: &str,
        most: Duration,
        mut is: impl FnMut(&mut Play) -> bool,
    ) -> Result<(), String> {
        let until = Instant::now() + most;
        loop {
            self.tend();
            if is(self) {
                return Ok(());
            }
            if Instant::now() > until {
                let left = [self.keys("requests/"), self.keys("locks/")].concat();
                return Err(format!("waited {most:?} for {what}; there are {left:#?}"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn judge(&mut self) -> Result<String, String> {
        let kinds: Vec<_> = self.defined.iter().map(|job| &job.kind).collect();
        let text = fs::read_to_string(self.world.folder.join("history")).expect("the history");
        let checked = history::check(&text, &kinds);
        let mut wrong = checked.violations;
        let existed = self.audit().unwrap_or_else(|not_clean| {
            wrong.push(not_clean);
            0
        });
        wrong.extend(self.panics());
        if !wrong.is_empty() {
            return Err(wrong.join("\n"));
        }
        let done: Vec<_> = self.done.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        Ok(format!(
            "{} starts, {} of them second attempts or later, {} cut short; {existed} stood still with their machine while \
             another ran; {} operators' commands failed; faults: {}",
            checked.starts,
            checked.second_attempts,
            checked.cut_short,
            self.errands_failed,
            done.join(", ")
        ))
    }

    /// How many overlaps it tells that are none: see [`Play::only_existed`].
    fn audit(&self) -> Result<usize, String> {
        let since = self.since.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
        let ask = |output: &str| {
            let mut command =
                self.world.fleetcron(&["audit", "--output", output, "--since", &since, "--journals"]);
            command.args(self.world.nodes.iter().map(|node| &node.state));
            let done = command.output().expect("it starts");
            let text = [done.stdout, done.stderr].concat();
            (done.status.success(), String::from_utf8_lossy(&text).into_owned())
        };
        let (_, text) = ask("table");
        fs::write(self.world.folder.join("audit"), &text).expect("a file");
        let (clean, rows) = ask("json");
        let rows: Vec<serde_json::Value> =
            rows.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let faults: Vec<_> = rows.iter().filter(|row| row["fault"] == true).collect();
        let real = faults.iter().filter(|row| !self.only_existed(row)).count();
        match real == 0 && (clean || !faults.is_empty()) {
            true => Ok(faults.len()),
            false => Err(format!("the audit is not clean:\n{text}")),
        }
    }

    /// Whether an overlap is only that a command still existed on a machine that stood still, and was ended when that
    /// woke up. No store and no journal can tell that it did nothing meanwhile; its own lines can, and have been checked.
    fn only_existed(&self, row: &serde_json::Value) -> bool {
        let detail = row["detail"].as_str().unwrap_or_default();
        let instant = |behind: &str| {
            let text = detail.split_once(behind)?.1.split(' ').next()?;
            text.parse::<chrono::DateTime<chrono::Utc>>().ok()
        };
        let node =
            detail.split_once("attempt ").and_then(|(_, rest)| rest.split_once("on ")?.1.split_once(')'));
        let (Some(began), Some(ended), Some((node, _))) =
            (instant("started at "), instant("was running until "), node)
        else {
            return false;
        };
        row["finding"] == "overlap"
            && self.frozen.iter().any(|(frozen, (from, to))| {
                frozen == node && *from <= began && *to <= ended && ended < *to + WAKING
            })
    }

    fn panics(&self) -> Vec<String> {
        let logs = self.world.nodes.iter().map(|node| fs::read_to_string(node.log()).unwrap_or_default());
        let lines: Vec<String> =
            logs.flat_map(|log| log.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        lines.into_iter().filter(|line| line.contains("panicked")).collect()
    }

    fn note(&mut self, text: &str) {
        let at = self.begun.elapsed().as_secs_f64();
        let wall = chrono::Utc::now().format("%H:%M:%S%.3f");
        writeln!(self.log, "{wall} {at:8.2} boot {} {text}", boot_seconds()).expect("the log is written");
    }

    /// Ends all that runs; what is left in the folder is for who looks into a failure.
    fn end(mut self) -> PathBuf {
        self.world.nodes.iter_mut().for_each(|node| node.kill_host());
        self.world.members.iter_mut().for_each(|member| member.kill());
        self.world.nodes.iter().for_each(|node| node.give_disk_back());
        self.world.folder
    }
}
