//! Stories of a fleet: real stores, real daemons, which are killed, frozen and cut off.
//!
//! [`Fleet`] is the store and the folder of one story, [`Node`] one daemon in it; both end all they started when they
//! are dropped. Stories wait for conditions; the deadline of a wait is only a net, whose message shows the logs.

mod access;
mod acts;
mod audit;
mod backups;
mod cancels;
mod chains;
mod clocks;
mod commands;
mod definitions;
mod fail_points;
mod health;
mod holds;
mod many_nodes;
mod missed;
mod mutexes;
mod outages;
mod overlaps;
mod retries;
mod shutdown;
mod takeover;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fleetcron::child::session_members;
use fleetcron::clock::TEST_CLOCK;
use fleetcron::fail_point::{FAIL_POINT, FAIL_POINT_WAIT};
use fleetcron::fire::{Fire, FireId};
use fleetcron::guard::RunFolder;
use fleetcron::job::JobName;
use fleetcron::jobfile::{self, SourceFile};
use fleetcron::record::{Outcome, Record};
use fleetcron::schedule::Timestamp;
use fleetcron::store::values::{self, Definition, Lock, Presence, Request};
use fleetcron::store::{Access, Address, Listing, Op, Store, Txn, keys};
use fleetcron::sync::{self, Wanted};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use ulid::Ulid;

use crate::etcd::{Etcd, Version};

/// How long a story waits for what must come. Only a net: nothing here is about speed.
const LONG_ENOUGH: Duration = Duration::from_secs(90);

/// The hold of what goes on after an orderly stop, in milliseconds.
const STOP_HOLD: u64 = 900_000;

/// What daemons log: of their own all, of the libraries little.
const LOG: &str = "debug,h2=info,tower=info,hyper=info";

/// Whether the long versions of the stories are asked for.
fn long() -> bool {
    std::env::var("FLEETCRON_TEST_LONG").is_ok_and(|value| value == "1")
}

/// Seconds for a story to go on under load: few, or many when asked for.
fn seconds(short: u64, many: u64) -> Duration {
    Duration::from_secs(if long() { many } else { short })
}

/// One story's world: a store and a folder.
pub struct Fleet {
    folder: TempDir,
    pub etcd: Option<Etcd>,
    address: Address,
    pub store: Store,
    /// Settings for the daemons, where the store asks for more than an address.
    settings: Option<PathBuf>,
}

/// Whose turn a fire is may take a second longer than the next one's, and go by another clock.
const LAST_SECONDS: chrono::TimeDelta = chrono::TimeDelta::seconds(15);

impl Fleet {
    pub async fn on_sqlite() -> Fleet {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Sqlite(folder.path().join("store/fleetcron.db"));
        let access = Access { create: true, ..Access::default() };
        let store = Store::open(&address, &access).await.unwrap();
        Fleet { folder, etcd: None, address, store, settings: None }
    }

    pub async fn on_etcd(version: Version) -> Fleet {
        Fleet::on(Etcd::start(version).await).await
    }

    /// On an etcd that answers anybody.
    pub async fn on(etcd: Etcd) -> Fleet {
        Fleet::on_guarded(etcd, Access::default(), "").await
    }

    /// On an etcd that asks who one is, with what the `[etcd]` table of the settings is to say.
    pub async fn on_guarded(etcd: Etcd, access: Access, settings: &str) -> Fleet {
        let folder = tempfile::tempdir().unwrap();
        let address = etcd.address("fleet");
        let store = Store::open(&address, &access).await.unwrap();
        let path = folder.path().join("fleetcron.toml");
        let settings = (!settings.is_empty()).then(|| {
            fs::write(&path, format!("[etcd]\n{settings}\n")).unwrap();
            path
        });
        Fleet { folder, etcd: Some(etcd), address, store, settings }
    }

    pub fn etcd(&mut self) -> &mut Etcd {
        self.etcd.as_mut().expect("the store is an etcd")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file that is there while a daemon waits at a point.
    pub fn waiting_path(&self) -> PathBuf {
        self.path("waiting")
    }

    /// Where the commands of [`Fleet::marking`] leave a line for each start.
    pub fn marks_path(&self) -> PathBuf {
        self.path("marks")
    }

    /// A command that leaves a line in the marker file and then goes on with `more`.
    pub fn marking(&self, more: &str) -> String {
        let marks = self.marks_path();
        let tokens = self.path("tokens");
        format!(
            "echo $FLEETCRON_JOB $FLEETCRON_FIRE $FLEETCRON_ATTEMPT >> {}; \
             echo $FLEETCRON_FIRE $FLEETCRON_FENCING_TOKEN >> {}; {more}",
            marks.display(),
            tokens.display()
        )
    }

    /// A node that is not started yet. Its state folder is that of the node of this name.
    pub fn node(&self, name: &str) -> Setup<'_> {
        Setup {
            fleet: self,
            name: name.to_owned(),
            state: self.path(&format!("state-{name}")),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Makes the store's jobs equal to those of a job file.
    pub async fn sync(&self, text: &str) {
        let files =
            jobfile::parse(&[SourceFile { path: "jobs.toml", text }]).unwrap_or_else(|e| panic!("{e}"));
        let wanted = Wanted { source: files.source, jobs: files.jobs, limits: files.limits };
        let outlook = sync::look(&self.store, &wanted).await.unwrap();
        sync::apply(&self.store, &wanted, outlook, "test", chrono::Utc::now()).await.unwrap();
    }

    /// Asks for a run of a job, as `fleetcron start` does.
    pub async fn ask(&self, job: &str) -> Fire {
        let fire = Fire::new(name(job), format!("m-{}", Ulid::generate()).parse::<FireId>().unwrap());
        let request = values::encode(&Request::new("test".to_owned(), chrono::Utc::now()));
        self.store.txn(Txn::new().then([Op::put(keys::request(&fire), request)])).await.unwrap();
        fire
    }

    /// Lists, for as long as it takes.
    async fn list(&self, range: impl Into<fleetcron::store::KeyRange>) -> Listing {
        let range = range.into();
        self.wait_for("the store to answer", async || self.store.list(range.clone()).await.ok()).await
    }

    /// All records, oldest first for each job.
    pub async fn records(&self) -> Vec<Record> {
        self.records_in(keys::records()).await
    }

    pub async fn records_of(&self, job: &str) -> Vec<Record> {
        self.records_in(keys::records_of(&name(job))).await
    }

    async fn records_in(&self, range: fleetcron::store::KeyRange) -> Vec<Record> {
        let listing = self.list(range).await;
        let read = |entry: &fleetcron::store::Entry| {
            let fire = keys::fire_of(&entry.key)?;
            Some(values::decode_record(fire, &entry.key, &entry.value).unwrap())
        };
        listing.entries.iter().filter_map(read).collect()
    }

    pub async fn wait_for_records(&self, job: &str, least: usize) -> Vec<Record> {
        self.wait_for(&format!("{least} records of {job}"), async || {
            Some(self.records_of(job).await).filter(|records| records.len() >= least)
        })
        .await
    }

    pub async fn wait_for_record(&self, fire: &Fire) -> Record {
        self.wait_for(&format!("the record of {fire}"), async || {
            self.records().await.into_iter().find(|record| record.fire == *fire)
        })
        .await
    }

    /// Waits for a condition. `None`: not yet.
    pub async fn wait_for<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let until = Instant::now() + LONG_ENOUGH;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            if Instant::now() > until {
                panic!("waited for {what}\n{}", self.logs());
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Waits for a condition that is either true or not.
    pub async fn wait_until(&self, what: &str, mut is: impl AsyncFnMut() -> bool) {
        self.wait_for(what, async || is().await.then_some(())).await;
    }

    /// What is registered under a node's name.
    pub async fn presence(&self, node: &str) -> Option<Presence> {
        let entry = self.store.get(&keys::node(&node.parse().unwrap())).await.ok()??;
        Some(values::decode(&entry.key, &entry.value).unwrap())
    }

    /// The lock of a fire, if there is one.
    pub async fn lock(&self, fire: &Fire) -> Option<Lock> {
        let entry = self.store.get(&keys::lock(fire)).await.ok()??;
        Some(values::decode(&entry.key, &entry.value).unwrap())
    }

    /// The fencing token that the first command of a fire was told: see [`Fleet::marking`].
    pub fn token(&self, fire: &Fire) -> Option<i64> {
        let text = fs::read_to_string(self.path("tokens")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{} ", fire.id)))?;
        line.parse().ok()
    }

    /// The lines of the marker file: job, fire and attempt of each start.
    pub fn marks(&self) -> Vec<(String, String, u32)> {
        let text = fs::read_to_string(self.marks_path()).unwrap_or_default();
        let read = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let [job, fire, attempt] = words[..] else { panic!("a torn line in the marker file: {line:?}") };
            (job.to_owned(), fire.to_owned(), attempt.parse().unwrap())
        };
        text.lines().map(read).collect()
    }

    /// What the nodes logged last.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|is| is == "log") {
                let log = fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(60)..].join("\n");
                text.push_str(&format!("--- {}\n{last}\n", path.display()));
            }
        }
        text
    }

    /// Checks what must hold once all daemons are gone, and counts. What they parted from may still run.
    pub async fn check_books(&self, gaps: Gaps) -> Books {
        let locks = self.list(keys::locks()).await.entries;
        let mut parted = BTreeSet::new();
        for entry in &locks {
            let lock: Lock = values::decode(&entry.key, &entry.value).unwrap();
            let fire = keys::fire_of(&entry.key).unwrap();
            assert_eq!(lock.hold, Some(STOP_HOLD), "a lock is left: {}\n{}", entry.key, self.logs());
            parted.insert((fire.job.to_string(), fire.id.to_string()));
        }
        let records = self.records().await;
        let marks = self.marks();
        let marked: BTreeSet<_> = marks.iter().map(|(job, fire, _)| (job.clone(), fire.clone())).collect();
        // Each attempt is one start.
        let starts: BTreeSet<_> = marks.iter().collect();
        assert_eq!(starts.len(), marks.len(), "a fire started twice: {:?}\n{}", twice(&marks), self.logs());
        let started: BTreeSet<_> = records
            .iter()
            .filter(|record| {
                let started = record.run.as_ref().is_some_and(|run| run.started_at.is_some());
                started || record.past.iter().any(|past| past.started_at.is_some())
            })
            .map(|record| (record.fire.job.to_string(), record.fire.id.to_string()))
            .chain(parted.iter().cloned())
            .collect();
        // Of those nobody can say whether they started.
        let lost: BTreeSet<_> = records
            .iter()
            .filter(|record| record.outcome == Outcome::Lost)
            .map(|record| (record.fire.job.to_string(), record.fire.id.to_string()))
            .collect();
        let odd: Vec<_> =
            marked.symmetric_difference(&started).filter(|fire| !lost.contains(*fire)).collect();
        assert!(odd.is_empty(), "marks and started records differ: {odd:?}\n{}", self.logs());
        if gaps == Gaps::None {
            let gap = self.gap(LAST_SECONDS).await;
            assert_eq!(gap, None, "{}", self.logs());
        }
        let mut outcomes = BTreeMap::new();
        for record in &records {
            *outcomes.entry(record.outcome).or_default() += 1;
        }
        Books { records: records.len(), starts: marks.len(), outcomes }
    }

    /// The first instant that has no record though later ones of its job have, if there is one. The last seconds are
    /// left out: whose turn it was may have gone before the others had theirs.
    pub async fn gap(&self, last_seconds: chrono::TimeDelta) -> Option<String> {
        let records = self.records().await;
        let locks = self.list(keys::locks()).await.entries;
        let locked: Vec<Fire> = locks.iter().filter_map(|entry| keys::fire_of(&entry.key)).collect();
        let first_gap = |definition: &Definition| {
            let spans: Vec<(Timestamp, Timestamp)> = records
                .iter()
                .filter(|record| record.fire.job == definition.job.name)
                .filter_map(|record| Some((record.fire.scheduled_at(), record.span?.last)))
                .collect();
            let of: BTreeSet<Timestamp> = records
                .iter()
                .map(|record| &record.fire)
                .chain(&locked)
                .filter(|fire| fire.job == definition.job.name)
                .filter(|fire| matches!(fire.id, FireId::Scheduled(_)))
                .map(Fire::scheduled_at)
                .collect();
            let last = *of.last()? - last_seconds;
            let mut at = definition.since;
            while let Some(next) = definition.job.schedule.next_after(at).filter(|next| *next <= last) {
                let in_span = spans.iter().any(|(first, last)| (*first..=*last).contains(&next));
                if !of.contains(&next) && !in_span {
                    return Some(format!("{} has no record of {next}", definition.job.name));
                }
                at = next;
            }
            None
        };
        let entries = self.list(keys::jobs()).await.entries;
        let definitions = entries.iter().map(|entry| Definition::decode(&entry.key, &entry.value).unwrap());
        definitions.filter_map(|definition| first_gap(&definition)).next()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // For whoever looks into a failure.
        if std::thread::panicking() && std::env::var_os("FLEETCRON_TEST_KEEP").is_some() {
            self.folder.disable_cleanup(true);
        }
    }
}

/// Whether some fires may have no record: the nodes were all down for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gaps {
    None,
    Allowed,
}

/// What [`Fleet::check_books`] counted.
pub struct Books {
    pub records: usize,
    pub starts: usize,
    pub outcomes: BTreeMap<Outcome, usize>,
}

impl std::fmt::Display for Books {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} records, {} starts", self.records, self.starts)?;
        self.outcomes.iter().try_for_each(|(outcome, count)| write!(f, ", {count} {outcome}"))
    }
}

fn twice(marks: &[(String, String, u32)]) -> Vec<&(String, String, u32)> {
    let mut seen = BTreeSet::new();
    marks.iter().filter(|mark| !seen.insert(*mark)).collect()
}

pub fn name(job: &str) -> JobName {
    job.parse().unwrap()
}

/// A node before it is started.
pub struct Setup<'a> {
    fleet: &'a Fleet,
    name: String,
    state: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Setup<'_> {
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| argument.to_string()));
        self
    }

    pub fn jobs(self, path: &Path) -> Self {
        self.with(&["--jobs", &path.display().to_string()])
    }

    /// Sets its clock: `-5s`, `+5s`.
    pub fn clock(mut self, text: &str) -> Self {
        self.environment.push((TEST_CLOCK, text.to_owned()));
        self
    }

    /// Has its clock be as a file says at the moment: see [`ClockFile`].
    pub fn clock_file(self, clock: &ClockFile) -> Self {
        let text = format!("file:{}", clock.0.display());
        self.clock(&text)
    }

    /// Its own settings file.
    pub fn settings(self, text: &str) -> Self {
        let path = self.fleet.path(&format!("{}.toml", self.name));
        fs::write(&path, text).unwrap();
        self.with(&["--config", &path.display().to_string()])
    }

    pub fn environment(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Has it believe that its machine goes down: in place of systemd's own `systemctl` it finds one that says so.
    pub fn going_down(self) -> Self {
        let bin = self.fleet.path("bin");
        fs::create_dir(&bin).unwrap();
        let systemctl = bin.join("systemctl");
        fs::write(&systemctl, "#!/bin/sh\necho stopping\nexit 1\n").unwrap();
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        self.environment("PATH", &path)
    }

    /// Ends it, or has it wait, at points of the code.
    pub fn fail_at(mut self, points: &str) -> Self {
        self.environment.push((FAIL_POINT_WAIT, self.fleet.waiting_path().display().to_string()));
        self.environment.push((FAIL_POINT, points.to_owned()));
        self
    }

    /// Another state folder than its name has.
    pub fn state(mut self, name: &str) -> Self {
        self.state = self.fleet.path(name);
        self
    }

    /// The command line, and the log it writes to.
    pub fn command(&self) -> (Command, PathBuf) {
        let log = self.fleet.path(&format!("{}.log", self.name));
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleetcron"));
        command.args(["run", "--store", &self.fleet.address.to_string(), "--node", &self.name, "--state"]);
        command.arg(&self.state).args(&self.arguments);
        if let Some(settings) = &self.fleet.settings {
            command.arg("--config").arg(settings);
        }
        command.env("FLEETCRON_LOG", LOG);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::options().create(true).append(true).open(&log).unwrap());
        (command, log)
    }

    /// Starts it and does not wait.
    pub fn start(self) -> Node {
        let (command, _) = self.command();
        self.start_as(command)
    }

    /// Starts it by a command that becomes it.
    pub fn start_as(self, mut command: Command) -> Node {
        let (_, log) = self.command();
        command.env("FLEETCRON_LOG", LOG).stderr(File::options().append(true).open(&log).unwrap());
        let from = fs::metadata(&log).map_or(0, |log| log.len() as usize);
        let child = command.spawn().unwrap();
        Node { name: self.name, state: self.state, log, from, child, ended: None }
    }

    /// Starts it and waits until it knows its jobs.
    pub async fn ready(self) -> Node {
        let fleet = self.fleet;
        let mut node = self.start();
        node.wait_until_ready(fleet).await;
        node
    }
}

/// A node's clock, which is set while the node runs.
pub struct ClockFile(PathBuf);

impl ClockFile {
    pub fn new(fleet: &Fleet, name: &str) -> ClockFile {
        let clock = ClockFile(fleet.path(&format!("clock-{name}")));
        clock.set("+0s");
        clock
    }

    /// `+1h`, `-5s`; with ` unsynced`: and nothing keeps it right.
    pub fn set(&self, text: &str) {
        let new = self.0.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, &self.0).unwrap();
    }
}

/// A daemon. Dropped, it is ended with all it started.
pub struct Node {
    pub name: String,
    pub state: PathBuf,
    log: PathBuf,
    /// Where in the log its own part begins.
    from: usize,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Node {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub async fn wait_until_ready(&mut self, fleet: &Fleet) {
        fleet
            .wait_until(&format!("{} to be ready", self.name), async || {
                if let Some(status) = self.status() {
                    panic!("{} ended: {status}\n{}", self.name, fleet.logs());
                }
                self.says("ready")
            })
            .await;
    }

    /// What it logged.
    pub fn log(&self) -> String {
        let log = fs::read(&self.log).unwrap();
        String::from_utf8_lossy(&log[self.from..]).into_owned()
    }

    pub fn says(&self, text: &str) -> bool {
        self.log().contains(text)
    }

    pub async fn wait_until_it_says(&self, fleet: &Fleet, text: &str) {
        fleet.wait_until(&format!("{} to say {text:?}", self.name), async || self.says(text)).await;
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Kills the daemon, and nothing else.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.ended = Some(self.child.wait().unwrap());
    }

    /// Stops it in order.
    pub async fn stop(&mut self, fleet: &Fleet) {
        self.signal(Signal::SIGTERM);
        let status = self.wait_for_end(fleet).await;
        assert!(status.success(), "{} ended with {status}\n{}", self.name, fleet.logs());
    }

    /// Kills it and all it started, as when its machine is gone: nothing is left.
    pub fn lose_host(&mut self) {
        let guards = self.guards();
        self.kill();
        for guard in guards {
            for process in session_members(guard).unwrap().into_iter().chain([Pid::from_raw(guard)]) {
                let _ = kill(process, Signal::SIGKILL);
            }
        }
    }

    /// How it ended, if it has.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap();
        }
        self.ended
    }

    pub async fn wait_for_end(&mut self, fleet: &Fleet) -> ExitStatus {
        let what = format!("{} to end", self.name);
        fleet.wait_for(&what, async || self.status()).await
    }

    /// Waits until it has died at its fail point.
    pub async fn wait_for_death(&mut self, fleet: &Fleet) {
        let status = self.wait_for_end(fleet).await;
        assert_eq!(status.signal(), Some(9), "{} ended with {status}\n{}", self.name, fleet.logs());
    }

    /// The guards that run for it, by the notes in its run folders.
    pub fn guards(&self) -> Vec<i32> {
        guards(&self.state)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.status().is_none() {
            self.kill();
        }
        for guard in guards(&self.state) {
            for process in session_members(guard).unwrap_or_default() {
                let _ = kill(process, Signal::SIGKILL);
            }
            if process_state(guard).is_some_and(|state| state != 'Z') {
                let _ = kill(Pid::from_raw(guard), Signal::SIGKILL);
            }
        }
    }
}

/// The pids of the guards whose notes are in a state folder and that live.
fn guards(state: &Path) -> Vec<i32> {
    let Ok(folders) = RunFolder::list(&state.join("runs")) else { return Vec::new() };
    let read = |folder: &RunFolder| {
        let started = folder.read_started().ok()??;
        (stat_field(started.guard.pid, 22)? == started.guard.started.to_string()).then_some(started.guard.pid)
    };
    folders.iter().filter_map(|(_, folder)| read(folder)).collect()
}

pub fn is_gone(pid: i32) -> bool {
    process_state(pid).is_none_or(|state| state == 'Z')
}

/// The letter that `ps` shows; none for a process that is gone.
pub fn process_state(pid: i32) -> Option<char> {
    stat_field(pid, 3)?.chars().next()
}

/// A field of `/proc/<pid>/stat`, counted as in proc(5), from the third on.
fn stat_field(pid: i32, number: usize) -> Option<String> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let behind_name = text.rsplit_once(')')?.1;
    behind_name.split_ascii_whitespace().nth(number - 3).map(str::to_owned)
}

/// Text as a TOML string that stands for it.
pub fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
