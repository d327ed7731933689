//! Jobs: checked definitions of what to run, when, and by which policies.
//!
//! A [`Job`] is only made from texts that were checked (`jobfile` reads files, `store` reads definitions back),
//! so whoever holds one need not check it again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::node::{Selector, is_key_segment};
use crate::schedule::Schedule;

/// A job's name, safe as one segment of a store key: 1 to 64 of `a-z`, `0-9`, `.`, `_`, `-`, beginning with a
/// letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobName(Box<str>);

impl JobName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name that tasks lie under. No job can have it.
    pub fn of_tasks() -> JobName {
        JobName(TASKS.into())
    }

    pub fn is_of_tasks(&self) -> bool {
        &*self.0 == TASKS
    }
}

/// A job's name does not begin with a tilde.
const TASKS: &str = "~task";

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for JobName {
    type Err = BadName;

    /// Reads a name out of a key, so also that of tasks.
    fn from_str(text: &str) -> Result<JobName, BadName> {
        match text {
            TASKS => Ok(JobName::of_tasks()),
            _ => checked_name(text).map(JobName),
        }
    }
}

/// The name of a set of job files that are synced together; the same rule as for a [`JobName`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceName(Box<str>);

impl SourceName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for SourceName {
    fn default() -> SourceName {
        SourceName("default".into())
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SourceName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<SourceName, BadName> {
        checked_name(text).map(SourceName)
    }
}

/// What several jobs and tasks share of which only so many may run at once; the same rule as for a [`JobName`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MutexName(Box<str>);

impl MutexName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MutexName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for MutexName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<MutexName, BadName> {
        checked_name(text).map(MutexName)
    }
}

/// One of the places that a mutex has: `db1/0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub mutex: MutexName,
    pub number: u32,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.mutex, self.number)
    }
}

impl FromStr for Slot {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Slot, BadName> {
        let bad = || BadName(text.to_owned());
        let (mutex, number) = text.split_once('/').ok_or_else(bad)?;
        let slot = Slot { mutex: mutex.parse()?, number: number.parse().map_err(|_| bad())? };
        // One spelling for each: two keys of one place would be two places.
        if slot.to_string() == text { Ok(slot) } else { Err(bad()) }
    }
}

/// What comes first of what waits for a slot of a node: 9 before 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    pub const HIGHEST: Priority = Priority(9);

    /// All, the highest first.
    pub fn all() -> impl Iterator<Item = Priority> {
        (0..=9).rev().map(Priority)
    }

    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Priority {
        Priority(5)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<u64> for Priority {
    type Error = String;

    fn try_from(number: u64) -> Result<Priority, String> {
        let bad = || format!("a priority is 0 to 9, not {number}");
        u8::try_from(number).ok().filter(|number| *number <= 9).map(Priority).ok_or_else(bad)
    }
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Priority, String> {
        let number: u64 = text.parse().map_err(|_| format!("a priority is 0 to 9, not {text:?}"))?;
        number.try_into()
    }
}

/// The jobs whose ends set a job off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    /// Never empty.
    pub jobs: BTreeSet<JobName>,
    /// All of them, since the job's own last run; else each of them by itself.
    pub all: bool,
    pub on: EndsIn,
}

/// Which ends of a run count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EndsIn {
    #[default]
    Success,
    Failure,
    Any,
}

/// Why a text is no name of a job or source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to 64 of a-z, 0-9, '.', '_', '-' and begins with a letter or digit, not {0:?}")]
pub struct BadName(pub String);

fn checked_name(text: &str) -> Result<Box<str>, BadName> {
    if text.len() > 64 || !is_key_segment(text) {
        return Err(BadName(text.to_owned()));
    }
    Ok(text.into())
}

/// A checked definition: schedule, command, policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub name: JobName,
    pub description: Option<String>,
    pub owner: Option<String>,
    /// When it is due, with its zone and calendar.
    pub schedule: Schedule,
    /// Its fires start up to so much later than they are due, so that jobs due together spread out: see
    /// [`crate::schedule::splay`].
    pub splay: Duration,
    pub command: Command,
    /// A job that is not enabled has no scheduled fires; it can still be started by hand.
    pub enabled: bool,
    pub env: BTreeMap<String, String>,
    /// The folder the command starts in; else the user's home.
    pub workdir: Option<String>,
    /// An absolute path; runs a [`Command::Shell`] as `shell -c TEXT`.
    pub shell: String,
    pub timeout: Option<Duration>,
    /// How long after TERM a command that is to stop gets KILL.
    pub kill_after: Duration,
    /// How long a run may go on after its node's last contact with the store.
    pub hold: Duration,
    pub overlap: Overlap,
    pub promise: Promise,
    /// The nodes that may run it; else any.
    pub nodes: Option<Selector>,
    pub run_on: RunOn,
    pub catch_up: CatchUp,
    /// How long after its instant a fire may start, whatever delays it.
    pub start_within: Duration,
    pub retry: Option<Retry>,
    /// What it shares with others.
    pub mutex: Option<MutexName>,
    pub priority: Priority,
    /// What sets it off beside its schedule.
    pub after: Option<After>,
    /// The exit codes that count as success.
    pub success_exit: BTreeSet<u8>,
    pub keep: Keep,
    pub terms: Terms,
    /// Its former name: no claim while a fire under that name has a lock.
    pub was: Option<JobName>,
}

impl Job {
    /// How much later than its instant a scheduled fire starts: the same on every node and every day.
    pub fn delay(&self) -> Duration {
        crate::schedule::splay(self.name.as_str(), self.splay)
    }
}

/// What a job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A text handed to the job's shell byte for byte.
    Shell(String),
    /// A program and its arguments, run as they are; never empty.
    Argv(Vec<String>),
}

/// What happens to a fire that comes due while another of its lane runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// It is recorded as skipped.
    Skip,
    /// It runs beside the other.
    Allow,
    /// It waits for the other to end; only the newest does.
    Queue,
    /// The other is stopped, and then it runs.
    Replace,
}

/// What becomes of a fire whose node is lost while it runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// It is run again.
    AtLeastOnce,
    /// It is recorded as lost.
    AtMostOnce,
}

/// Where a job's fires run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunOn {
    /// On one of the nodes that may run it.
    #[default]
    OneNode,
    /// On each of them.
    EveryNode,
}

/// Which of the fires run that nobody started at their instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// The newest.
    #[default]
    Latest,
    /// All that may still start, in their order.
    All,
    None,
}

/// How an attempt that failed is followed by another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// In all, the first among them.
    pub attempts: u32,
    /// Between the first two attempts.
    pub delay: Duration,
    /// How many times as long each further delay is.
    pub factor: Thousandths,
    /// No delay is longer, but for its jitter.
    pub max_delay: Duration,
    /// By what share of it a delay is longer or shorter, at most.
    pub jitter: Thousandths,
    /// After which failures; else after any.
    pub on: Option<RetryOn>,
}

impl Retry {
    /// How long to wait after so many failures. `random` is in `[0, 1)` and spreads those out that failed together.
    pub fn delay_after(&self, failures: u32, random: f64) -> Duration {
        let further = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let grown = self.delay.as_secs_f64() * self.factor.value().powi(further);
        let delay = grown.min(self.max_delay.as_secs_f64());
        Duration::from_secs_f64(delay * (1.0 + self.jitter.value() * (2.0 * random - 1.0)))
    }
}

/// The failures after which there is another attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetryOn {
    pub exit_codes: BTreeSet<u8>,
    pub timeout: bool,
}

/// A number of three decimals, as its thousandth parts: such numbers can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Thousandths(pub u32);

impl Thousandths {
    pub fn value(self) -> f64 {
        f64::from(self.0) / 1000.0
    }
}

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

/// How much is kept of what a job did; whichever limit comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    pub records: u32,
    pub days: u32,
    /// Bytes of output kept of each run: its head and its tail.
    pub output: u64,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep { records: 100, days: 30, output: 10 * 1024 * 1024 }
    }
}

/// On which terms a command runs: as whom, within which limits, with what to read. The default is the daemon's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// A name of the user database of the node that runs it.
    pub user: Option<String>,
    /// In place of the user's own group.
    pub group: Option<String>,
    pub umask: Option<u32>,
    pub nice: Option<i32>,
    pub ionice: Option<IoNice>,
    /// `None`: no limit.
    pub limits: BTreeMap<Limit, Option<u64>>,
    /// What the command reads; else nothing.
    pub stdin: Option<String>,
    /// Neither it nor what it starts gains rights by running a program: no `sudo`.
    pub no_new_privs: bool,
    /// What it leaves behind ends with it.
    pub kill_leftovers: bool,
    /// A file on the node with more variables for its environment.
    pub env_file: Option<String>,
    /// The name of a credential that systemd gave to the daemon, with more variables.
    pub credential: Option<String>,
    /// Variables whose values are not kept in its output.
    pub redact: BTreeSet<String>,
    /// Its output is kept with the time of every line.
    pub timestamps: bool,
}

/// How `env_from` begins; a credential's name follows.
pub const CREDENTIALS: &str = "credentials:";

/// How its input and output come after others', as `ionice` knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoNice {
    Idle,
    /// 0 to 7; 0 comes first.
    BestEffort(u8),
    /// 0 to 7; before all others.
    Realtime(u8),
}

impl fmt::Display for IoNice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IoNice::Idle => f.write_str("idle"),
            IoNice::BestEffort(level) => write!(f, "best-effort:{level}"),
            IoNice::Realtime(level) => write!(f, "realtime:{level}"),
        }
    }
}

impl FromStr for IoNice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<IoNice, &'static str> {
        // The kernel's own level of who says none.
        let (class, level) = text.split_once(':').unwrap_or((text, "4"));
        let level = level.parse().ok().filter(|level| *level < 8);
        match (class, level) {
            ("idle", _) if text == class => Ok(IoNice::Idle),
            ("best-effort", Some(level)) => Ok(IoNice::BestEffort(level)),
            ("realtime", Some(level)) => Ok(IoNice::Realtime(level)),
            _ => Err(
                "it is \"idle\", \"best-effort\" or \"realtime\", the latter two with a level like \"best-effort:7\"",
            ),
        }
    }
}

/// What a command and each process that it starts can be limited in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// Bytes of a core dump.
    Core,
    /// Seconds of processor time.
    Cpu,
    /// Bytes of data.
    Data,
    /// Bytes of a file that is written.
    Fsize,
    /// Bytes locked in memory.
    Memlock,
    /// Bytes of address space.
    Memory,
    /// Open files.
    Nofile,
    /// Processes of the user.
    Nproc,
    /// Bytes of stack.
    Stack,
}

impl Limit {
    pub const ALL: [Limit; 9] = [
        Limit::Core,
        Limit::Cpu,
        Limit::Data,
        Limit::Fsize,
        Limit::Memlock,
        Limit::Memory,
        Limit::Nofile,
        Limit::Nproc,
        Limit::Stack,
    ];

    /// Its name in job files and stored forms.
    pub fn word(self) -> &'static str {
        match self {
            Limit::Core => "core",
            Limit::Cpu => "cpu",
            Limit::Data => "data",
            Limit::Fsize => "fsize",
            Limit::Memlock => "memlock",
            Limit::Memory => "memory",
            Limit::Nofile => "nofile",
            Limit::Nproc => "nproc",
            Limit::Stack => "stack",
        }
    }

    pub fn unit(self) -> LimitUnit {
        match self {
            Limit::Cpu => LimitUnit::Seconds,
            Limit::Nofile | Limit::Nproc => LimitUnit::Count,
            Limit::Core | Limit::Data | Limit::Fsize | Limit::Memlock | Limit::Memory | Limit::Stack => {
                LimitUnit::Bytes
            }
        }
    }
}

/// What the number of a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitUnit {
    Bytes,
    Seconds,
    Count,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        let known = Limit::ALL.into_iter().find(|limit| limit.word() == text);
        known.ok_or_else(|| format!("there is no limit {text:?}"))
    }
}

/// Defaults of the fields that have one, as the table in the README shows them.
pub const DEFAULT_SHELL: &str = "/bin/sh";
pub const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(10);
/// The hold of a job that does not set one.
pub const DEFAULT_HOLD: Duration = Duration::from_secs(60);
/// How long after its instant a fire may start, unless its job says otherwise.
pub const DEFAULT_START_WITHIN: Duration = Duration::from_secs(60 * 60);
/// What a `retry` that says only how many attempts there are says of the rest.
pub const DEFAULT_RETRY_DELAY: Duration = Duration::from_secs(30);
pub const DEFAULT_RETRY_FACTOR: Thousandths = Thousandths(2000);
pub const DEFAULT_RETRY_MAX_DELAY: Duration = Duration::from_secs(10 * 60);
pub const DEFAULT_RETRY_JITTER: Thousandths = Thousandths(200);
/// A shorter hold would stop commands for a single renewal that was late.
pub const LEAST_HOLD: Duration = Duration::from_secs(6);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_the_longest_and_are_spread_by_their_jitter() {
        let retry = Retry {
            attempts: 100,
            delay: Duration::from_secs(30),
            factor: DEFAULT_RETRY_FACTOR,
            max_delay: DEFAULT_RETRY_MAX_DELAY,
            jitter: DEFAULT_RETRY_JITTER,
            on: None,
        };
        let after = |failures, random| retry.delay_after(failures, random).as_secs_f64();
        let middle: Vec<_> = (1..=7).map(|failures| after(failures, 0.5)).collect();
        assert_eq!(middle, [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]);
        assert_eq!(after(100, 0.5), 600.0);
        assert_eq!((after(1, 0.0), after(6, 0.0)), (24.0, 480.0));
        assert!((after(6, 0.999) - 720.0).abs() < 1.0);
        let steady = Retry { factor: Thousandths(1000), jitter: Thousandths(0), ..retry };
        assert_eq!(steady.delay_after(9, 0.9), Duration::from_secs(30));
    }

    #[test]
    fn an_ionice_is_a_class_with_a_level() {
        for (text, is) in [
            ("idle", IoNice::Idle),
            ("best-effort", IoNice::BestEffort(4)),
            ("best-effort:0", IoNice::BestEffort(0)),
            ("realtime:7", IoNice::Realtime(7)),
        ] {
            assert_eq!(text.parse(), Ok(is));
            assert_eq!(is.to_string().parse(), Ok(is));
        }
        for text in ["", "idle:1", "best-effort:8", "realtime:", "fast", "best-effort:-1"] {
            assert!(text.parse::<IoNice>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_job_name_is_one_safe_segment() {
        for name in ["a", "nightly-db-backup", "0", "a.b_c-d", &"x".repeat(64)] {
            assert_eq!(name.parse::<JobName>().map(|n| n.to_string()), Ok(name.to_owned()));
        }
        assert!("~task".parse::<JobName>().is_ok_and(|name| name.is_of_tasks()), "keys have it");
        for name in ["", "A", "-a", ".a", "a/b", "a b", "ä", "~tasks", &"x".repeat(65)] {
            assert_eq!(name.parse::<JobName>(), Err(BadName(name.to_owned())));
        }
    }
}
