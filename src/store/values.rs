//! The stored forms: what the values of the store look like, kept apart from the types the program works with.
//!
//! Each is JSON with a version in `v`. A sample of every released form lies in `tests/it/golden` and is read for
//! ever. Instants are RFC 3339 in UTC, durations whole milliseconds, sizes bytes. Unknown fields are passed over,
//! so that a later release may add some while a fleet is upgraded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Revision;
use crate::fire::{Fire, FireId};
use crate::job::{
    After, CREDENTIALS, CatchUp, Command, DEFAULT_HOLD, DEFAULT_START_WITHIN, EndsIn, Job, JobName, Keep,
    Limit, MutexName, Overlap, Priority, Promise, Retry, RetryOn, RunOn, Slot, SourceName, Terms,
    Thousandths,
};
use crate::node::{Labels, NodeName, NodeStart, as_text};
use crate::record::{Outcome, Past, Record, RunFacts, Span, Usage, Writer};
use crate::schedule::{Calendar, CalendarText, Dates, Schedule, Timestamp, Zone};
use crate::task::Task;

/// The version that this release writes of every form.
const VERSION: u32 = 1;

/// A stored value that this release cannot read. A person must look at it; nothing else is held up by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} cannot be read by this release: {why}")]
pub struct Unreadable {
    pub key: String,
    pub why: String,
}

/// A job as the store holds it: the definition in force, whose it is, and since when its schedule counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    pub job: Job,
    pub source: SourceName,
    /// When it was made, or its schedule last changed: nothing before has been missed.
    pub since: Timestamp,
}

/// A definition that was in force: a value of `jobs-before/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Former {
    pub definition: Definition,
    /// When another took its place, or the job was removed.
    pub until: Timestamp,
    pub removed: bool,
}

impl Former {
    pub fn encode(&self) -> Vec<u8> {
        let end = EndForm { until: self.until, removed: self.removed };
        encode(&DefinitionForm { end: Some(end), ..DefinitionForm::of(&self.definition) })
    }

    /// Reads a value of `jobs-before/`, whose key names the job.
    pub fn decode(key: &str, value: &[u8]) -> Result<Former, Unreadable> {
        let mut form: DefinitionForm = decode(key, value)?;
        let unreadable = |why: &str| Unreadable { key: key.to_owned(), why: why.to_owned() };
        let name = super::keys::former_job(key).ok_or_else(|| unreadable("it is no former definition"))?;
        let EndForm { until, removed } =
            form.end.take().ok_or_else(|| unreadable("it does not say until when it was in force"))?;
        let definition = form.into_definition(name).map_err(|why| unreadable(&why))?;
        Ok(Former { definition, until, removed })
    }
}

impl Definition {
    pub fn encode(&self) -> Vec<u8> {
        encode(&DefinitionForm::of(self))
    }

    /// Reads a value of `jobs/`, whose key names the job.
    pub fn decode(key: &str, value: &[u8]) -> Result<Definition, Unreadable> {
        let form: DefinitionForm = decode(key, value)?;
        let unreadable = |why: String| Unreadable { key: key.to_owned(), why };
        let name = super::keys::name_of(key).parse::<JobName>().map_err(|e| unreadable(e.to_string()))?;
        form.into_definition(name).map_err(unreadable)
    }
}

#[derive(Serialize, Deserialize)]
struct DefinitionForm {
    v: u32,
    source: String,
    since: Timestamp,
    job: JobForm,
    /// Of a former one.
    #[serde(default, skip_serializing_if = "Option::is_none", flatten)]
    end: Option<EndForm>,
}

#[derive(Serialize, Deserialize)]
struct EndForm {
    until: Timestamp,
    #[serde(default, skip_serializing_if = "is_false")]
    removed: bool,
}

impl DefinitionForm {
    fn of(definition: &Definition) -> DefinitionForm {
        DefinitionForm {
            v: VERSION,
            source: definition.source.to_string(),
            since: definition.since,
            job: JobForm::of(&definition.job),
            end: None,
        }
    }

    fn into_definition(self, name: JobName) -> Result<Definition, String> {
        let source = self.source.parse::<SourceName>().map_err(|error| error.to_string())?;
        Ok(Definition { job: self.job.into_job(name)?, source, since: self.since })
    }
}

/// A job's fields. The digest of a source is taken over these, so their order and names are part of the form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct JobForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    schedule: Vec<String>,
    timezone: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end_at: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skip_dates: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    only_dates: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    splay: u64,
    command: CommandForm,
    enabled: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workdir: Option<String>,
    shell: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
    kill_after: u64,
    /// Absent: the default, as in every definition before there was another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hold: Option<u64>,
    overlap: OverlapForm,
    /// Absent: the default, as in every definition before there was another.
    #[serde(default, skip_serializing_if = "is_default")]
    promise: PromiseForm,
    /// A selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nodes: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    run_on: RunOnForm,
    #[serde(default, skip_serializing_if = "is_default")]
    catch_up: CatchUpForm,
    /// Absent: the default, as in every definition before there was another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start_within: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry: Option<RetryForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mutex: Option<String>,
    /// Absent: the default, as in every definition before there was another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<AfterForm>,
    success_exit: BTreeSet<u8>,
    keep: KeepForm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    umask: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nice: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ionice: Option<String>,
    /// By name; null is no limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, Option<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stdin: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    no_new_privs: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    kill_leftovers: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    env_file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    env_from: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    redact: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    timestamps: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    was: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum CommandForm {
    Shell(String),
    Argv(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OverlapForm {
    Skip,
    Allow,
    Queue,
    Replace,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RunOnForm {
    #[default]
    OneNode,
    EveryNode,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CatchUpForm {
    #[default]
    Latest,
    All,
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct AfterForm {
    jobs: BTreeSet<String>,
    all: bool,
    on: EndsInForm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum EndsInForm {
    Success,
    Failure,
    Any,
}

impl From<&After> for AfterForm {
    fn from(after: &After) -> AfterForm {
        let on = match after.on {
            EndsIn::Success => EndsInForm::Success,
            EndsIn::Failure => EndsInForm::Failure,
            EndsIn::Any => EndsInForm::Any,
        };
        AfterForm { jobs: after.jobs.iter().map(JobName::to_string).collect(), all: after.all, on }
    }
}

impl TryFrom<AfterForm> for After {
    type Error = String;

    fn try_from(form: AfterForm) -> Result<After, String> {
        let jobs = form.jobs.iter().map(|name| name.parse().map_err(|error| format!("after: {error}")));
        let on = match form.on {
            EndsInForm::Success => EndsIn::Success,
            EndsInForm::Failure => EndsIn::Failure,
            EndsInForm::Any => EndsIn::Any,
        };
        Ok(After { jobs: jobs.collect::<Result<_, String>>()?, all: form.all, on })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryForm {
    attempts: u32,
    delay: u64,
    /// In thousandths, as `jitter`.
    factor: u32,
    max_delay: u64,
    jitter: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on: Option<RetryOnForm>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RetryOnForm {
    exit_codes: BTreeSet<u8>,
    timeout: bool,
}

impl From<&Retry> for RetryForm {
    fn from(retry: &Retry) -> RetryForm {
        let on = |on: &RetryOn| RetryOnForm { exit_codes: on.exit_codes.clone(), timeout: on.timeout };
        RetryForm {
            attempts: retry.attempts,
            delay: millis(retry.delay),
            factor: retry.factor.0,
            max_delay: millis(retry.max_delay),
            jitter: retry.jitter.0,
            on: retry.on.as_ref().map(on),
        }
    }
}

impl From<&RetryForm> for Retry {
    fn from(form: &RetryForm) -> Retry {
        let on = |on: &RetryOnForm| RetryOn { exit_codes: on.exit_codes.clone(), timeout: on.timeout };
        Retry {
            attempts: form.attempts,
            delay: Duration::from_millis(form.delay),
            factor: Thousandths(form.factor),
            max_delay: Duration::from_millis(form.max_delay),
            jitter: Thousandths(form.jitter),
            on: form.on.as_ref().map(on),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PromiseForm {
    #[default]
    AtLeastOnce,
    AtMostOnce,
}

impl From<Promise> for PromiseForm {
    fn from(promise: Promise) -> PromiseForm {
        match promise {
            Promise::AtLeastOnce => PromiseForm::AtLeastOnce,
            Promise::AtMostOnce => PromiseForm::AtMostOnce,
        }
    }
}

impl From<PromiseForm> for Promise {
    fn from(form: PromiseForm) -> Promise {
        match form {
            PromiseForm::AtLeastOnce => Promise::AtLeastOnce,
            PromiseForm::AtMostOnce => Promise::AtMostOnce,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KeepForm {
    records: u32,
    days: u32,
    output: u64,
}

impl JobForm {
    fn of(job: &Job) -> JobForm {
        let calendar = job.schedule.calendar().cloned().unwrap_or_default();
        let dates = |dates: &[Dates]| dates.iter().map(Dates::to_string).collect();
        JobForm {
            description: job.description.clone(),
            owner: job.owner.clone(),
            schedule: job.schedule.texts().to_vec(),
            timezone: job.schedule.zone().to_string(),
            start_at: calendar.start_at().map(instant),
            end_at: calendar.end_at().map(instant),
            skip_dates: dates(calendar.skip_dates()),
            only_dates: calendar.only_dates().map(dates),
            splay: millis(job.splay),
            command: match &job.command {
                Command::Shell(text) => CommandForm::Shell(text.clone()),
                Command::Argv(words) => CommandForm::Argv(words.clone()),
            },
            enabled: job.enabled,
            env: job.env.clone(),
            workdir: job.workdir.clone(),
            shell: job.shell.clone(),
            timeout: job.timeout.map(millis),
            kill_after: millis(job.kill_after),
            hold: (job.hold != DEFAULT_HOLD).then(|| millis(job.hold)),
            overlap: match job.overlap {
                Overlap::Skip => OverlapForm::Skip,
                Overlap::Allow => OverlapForm::Allow,
                Overlap::Queue => OverlapForm::Queue,
                Overlap::Replace => OverlapForm::Replace,
            },
            promise: job.promise.into(),
            nodes: job.nodes.as_ref().map(ToString::to_string),
            run_on: match job.run_on {
                RunOn::OneNode => RunOnForm::OneNode,
                RunOn::EveryNode => RunOnForm::EveryNode,
            },
            catch_up: match job.catch_up {
                CatchUp::Latest => CatchUpForm::Latest,
                CatchUp::All => CatchUpForm::All,
                CatchUp::None => CatchUpForm::None,
            },
            start_within: (job.start_within != DEFAULT_START_WITHIN).then(|| millis(job.start_within)),
            retry: job.retry.as_ref().map(RetryForm::from),
            mutex: job.mutex.as_ref().map(MutexName::to_string),
            priority: (job.priority != Priority::default()).then(|| job.priority.get().into()),
            after: job.after.as_ref().map(AfterForm::from),
            success_exit: job.success_exit.clone(),
            keep: KeepForm { records: job.keep.records, days: job.keep.days, output: job.keep.output },
            user: job.terms.user.clone(),
            group: job.terms.group.clone(),
            umask: job.terms.umask,
            nice: job.terms.nice,
            ionice: job.terms.ionice.map(|ionice| ionice.to_string()),
            limits: job.terms.limits.iter().map(|(limit, most)| (limit.word().to_owned(), *most)).collect(),
            stdin: job.terms.stdin.clone(),
            no_new_privs: job.terms.no_new_privs,
            kill_leftovers: job.terms.kill_leftovers,
            env_file: job.terms.env_file.clone(),
            env_from: job.terms.credential.as_ref().map(|name| format!("{CREDENTIALS}{name}")),
            redact: job.terms.redact.clone(),
            timestamps: job.terms.timestamps,
            was: job.was.as_ref().map(JobName::to_string),
        }
    }

    fn into_job(self, name: JobName) -> Result<Job, String> {
        let zone: Zone = self.timezone.parse().map_err(|error| format!("timezone: {error}"))?;
        let schedule = match self.schedule.is_empty() {
            true => Schedule::none(&zone),
            false => Schedule::parse(&self.schedule, &zone, name.as_str()).map_err(|errors| {
                errors.into_iter().map(|(_, error)| error.to_string()).collect::<Vec<_>>().join("; ")
            })?,
        };
        let calendar = Calendar::parse(CalendarText {
            start_at: self.start_at.as_deref(),
            end_at: self.end_at.as_deref(),
            skip_dates: &self.skip_dates,
            only_dates: self.only_dates.as_deref(),
        })
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        if matches!(&self.command, CommandForm::Argv(words) if words.is_empty()) {
            return Err("command: an empty list".to_owned());
        }
        let limits = self.limits.into_iter().map(|(name, most)| Ok((name.parse::<Limit>()?, most)));
        let terms = Terms {
            user: self.user,
            group: self.group,
            umask: self.umask,
            nice: self.nice,
            ionice: self
                .ionice
                .map(|text| text.parse().map_err(|why| format!("ionice: {why}")))
                .transpose()?,
            limits: limits.collect::<Result<_, String>>()?,
            stdin: self.stdin,
            no_new_privs: self.no_new_privs,
            kill_leftovers: self.kill_leftovers,
            env_file: self.env_file,
            credential: self
                .env_from
                .map(|from| {
                    from.strip_prefix(CREDENTIALS).map(str::to_owned).ok_or("env_from: not understood")
                })
                .transpose()?,
            redact: self.redact,
            timestamps: self.timestamps,
        };
        Ok(Job {
            name,
            description: self.description,
            owner: self.owner,
            schedule: schedule.within(calendar),
            splay: Duration::from_millis(self.splay),
            command: match self.command {
                CommandForm::Shell(text) => Command::Shell(text),
                CommandForm::Argv(words) => Command::Argv(words),
            },
            enabled: self.enabled,
            env: self.env,
            workdir: self.workdir,
            shell: self.shell,
            timeout: self.timeout.map(Duration::from_millis),
            kill_after: Duration::from_millis(self.kill_after),
            hold: self.hold.map_or(DEFAULT_HOLD, Duration::from_millis),
            overlap: match self.overlap {
                OverlapForm::Skip => Overlap::Skip,
                OverlapForm::Allow => Overlap::Allow,
                OverlapForm::Queue => Overlap::Queue,
                OverlapForm::Replace => Overlap::Replace,
            },
            promise: self.promise.into(),
            nodes: self
                .nodes
                .map(|nodes| nodes.parse().map_err(|error| format!("nodes: {error}")))
                .transpose()?,
            run_on: match self.run_on {
                RunOnForm::OneNode => RunOn::OneNode,
                RunOnForm::EveryNode => RunOn::EveryNode,
            },
            catch_up: match self.catch_up {
                CatchUpForm::Latest => CatchUp::Latest,
                CatchUpForm::All => CatchUp::All,
                CatchUpForm::None => CatchUp::None,
            },
            start_within: self.start_within.map_or(DEFAULT_START_WITHIN, Duration::from_millis),
            retry: self.retry.as_ref().map(Retry::from),
            mutex: self.mutex.map(|name| name.parse().map_err(|e| format!("mutex: {e}"))).transpose()?,
            priority: self.priority.map_or(Ok(Priority::default()), Priority::try_from)?,
            after: self.after.map(After::try_from).transpose()?,
            success_exit: self.success_exit,
            keep: Keep { records: self.keep.records, days: self.keep.days, output: self.keep.output },
            terms,
            was: self.was.map(|was| was.parse().map_err(|error| format!("was: {error}"))).transpose()?,
        })
    }
}

/// What a set of jobs is, in 64 hexadecimal digits: the same for the same checked definitions, in every release
/// that writes this version of them, whatever the files they came from look like.
pub fn digest<'a>(jobs: impl IntoIterator<Item = &'a Job>, limits: &BTreeMap<MutexName, u32>) -> String {
    let forms: BTreeMap<String, JobForm> =
        jobs.into_iter().map(|job| (job.name.to_string(), JobForm::of(job))).collect();
    let limits: BTreeMap<&str, u32> = limits.iter().map(|(name, slots)| (name.as_str(), *slots)).collect();
    let bytes = match limits.is_empty() {
        // As before there were any.
        true => encode(&(VERSION, forms)),
        false => encode(&(VERSION, forms, limits)),
    };
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Whether two jobs are the same definition.
pub fn same(one: &Job, other: &Job) -> bool {
    one.name == other.name && encode(&JobForm::of(one)) == encode(&JobForm::of(other))
}

/// A value of `sources/`: what the store's definitions of a source are, and who put them there. Every transaction of
/// a sync rewrites it, so that two syncs of one source cannot mix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    v: u32,
    pub digest: String,
    /// `user@host`, as a claim, not as proof.
    pub by: String,
    pub at: Timestamp,
    /// The sync that wrote it, and which of its transactions.
    pub sync: String,
    pub step: u32,
    /// Whether that was its last: if not, the definitions are not what the digest says yet.
    pub complete: bool,
}

impl SourceState {
    pub fn new(digest: String, by: String, at: Timestamp, sync: String) -> SourceState {
        SourceState { v: VERSION, digest, by, at, sync, step: 0, complete: false }
    }
}

/// A value of `nodes/`: a node that is registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    v: u32,
    #[serde(with = "as_text")]
    pub node_start: NodeStart,
    pub labels: Labels,
    /// The release of fleetcron.
    pub version: String,
    /// The version of its time zone data.
    pub tzdata: String,
    pub slots: u32,
    /// The digest of its own job files, by source, where it was given some.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// The node's wall clock when it registered.
    pub at: Timestamp,
    /// What it showed when this was written: to be compared with only at the moment at which that is seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_at: Option<Timestamp>,
    /// What the node knows to be wrong with its clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockWord>,
}

/// What a node says of its own clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockWord {
    pub says: String,
    /// Another number: the others are asked to show their clocks. 0: they are not asked.
    #[serde(default)]
    pub asked: u32,
}

/// What a node tells of itself.
pub struct Facts<'a> {
    pub node_start: NodeStart,
    pub labels: &'a Labels,
    pub slots: u32,
    pub files: BTreeMap<String, String>,
    pub at: Timestamp,
}

impl Presence {
    pub fn new(facts: Facts<'_>) -> Presence {
        Presence {
            v: VERSION,
            node_start: facts.node_start,
            labels: facts.labels.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tzdata: crate::schedule::tzdata_version().to_owned(),
            slots: facts.slots,
            files: facts.files,
            at: facts.at,
            clock_at: Some(facts.at),
            clock: None,
        }
    }
}

/// A value of `epochs/`: rewritten whenever transactions that are still on their way must not count any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoch {
    v: u32,
    #[serde(with = "as_text")]
    pub node_start: NodeStart,
    pub counter: u64,
    /// The daemon that wrote it: two daemons with one state folder's copy differ in this.
    pub instance: String,
}

impl Epoch {
    pub fn new(node_start: NodeStart, counter: u64, instance: String) -> Epoch {
        Epoch { v: VERSION, node_start, counter, instance }
    }
}

/// A value of `locks/`: who deals with a fire, and the policy it was claimed under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    v: u32,
    #[serde(with = "as_text")]
    pub node: NodeName,
    #[serde(with = "as_text")]
    pub node_start: NodeStart,
    pub attempt: u32,
    pub state: LockState,
    pub claimed_at: Timestamp,
    promise: PromiseForm,
    /// The last instant at which an attempt may start.
    pub last_start: Timestamp,
    /// How long after its holder's last contact a run may go on, in milliseconds. None: nobody else may take it over.
    pub hold: Option<u64>,
    /// How attempts that failed are followed by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry: Option<RetryForm>,
    /// Of a lock that waits: when the next attempt is to begin. None: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// The fencing token of the claim, where the lock was rewritten since: else it is the lock's own revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<i64>,
    /// What became of the attempts before this one, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    past: Vec<PastForm>,
    /// The place of a mutex that it has: that key is there as long as this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<String>,
    /// The task that it is, if it is one: the queue does not tell any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<Box<TaskForm>>,
}

/// An attempt that is over, as a lock and a record tell it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastForm {
    attempt: u32,
    #[serde(with = "as_text")]
    node: NodeName,
    #[serde(with = "as_text")]
    outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended_at: Option<Timestamp>,
}

impl From<&Past> for PastForm {
    fn from(past: &Past) -> PastForm {
        PastForm {
            attempt: past.attempt,
            node: past.node.clone(),
            outcome: past.outcome,
            reason: past.reason.clone(),
            exit_code: past.exit_code,
            signal: past.signal,
            started_at: past.started_at,
            ended_at: past.ended_at,
        }
    }
}

impl From<&PastForm> for Past {
    fn from(form: &PastForm) -> Past {
        Past {
            attempt: form.attempt,
            node: form.node.clone(),
            outcome: form.outcome,
            reason: form.reason.clone(),
            exit_code: form.exit_code,
            signal: form.signal,
            started_at: form.started_at,
            ended_at: form.ended_at,
        }
    }
}

/// The policy that a fire is claimed under: the lock keeps it, whatever becomes of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockPolicy {
    pub promise: Promise,
    /// The last instant at which an attempt may start.
    pub last_start: Timestamp,
    /// None: nobody else may take it over.
    pub hold: Option<Duration>,
    pub retry: Option<Retry>,
    /// The place of a mutex that it takes.
    pub slot: Option<Slot>,
    pub task: Option<Box<Task>>,
}

impl Lock {
    pub fn held(
        node: NodeName,
        node_start: NodeStart,
        attempt: u32,
        at: Timestamp,
        policy: LockPolicy,
    ) -> Lock {
        Lock {
            v: VERSION,
            node,
            node_start,
            attempt,
            state: LockState::Held,
            claimed_at: at,
            promise: policy.promise.into(),
            last_start: policy.last_start,
            hold: policy.hold.map(millis),
            retry: policy.retry.as_ref().map(RetryForm::from),
            due: None,
            token: None,
            past: Vec::new(),
            slot: policy.slot.as_ref().map(Slot::to_string),
            task: policy.task.map(|task| Box::new(TaskForm::of(&task))),
        }
    }

    /// The place of a mutex that it has.
    pub fn slot(&self) -> Option<Slot> {
        self.slot.as_ref().and_then(|slot| slot.parse().ok())
    }

    /// The task that it is, of the fire with this id.
    pub fn task(&self, fire: &Fire) -> Option<Task> {
        let FireId::Task(id) = fire.id else { return None };
        self.task.as_ref().and_then(|form| form.clone().into_task(id).ok())
    }

    /// The lock of the attempt after this one, by whoever begins it.
    pub fn next_attempt(
        &self,
        node: &NodeName,
        node_start: NodeStart,
        at: Timestamp,
        hold: Option<Duration>,
    ) -> Lock {
        let (promise, last_start, retry) = (self.promise(), self.last_start, self.retry());
        let policy = LockPolicy { promise, last_start, hold, retry, slot: None, task: None };
        let lock = Lock::held(node.clone(), node_start, self.attempt + 1, at, policy);
        Lock { past: self.past.clone(), slot: self.slot.clone(), task: self.task.clone(), ..lock }
    }

    /// The same lock with another hold, in milliseconds, for the claim with this token.
    pub fn with_hold(&self, hold: u64, token: i64) -> Lock {
        Lock { hold: Some(hold), token: Some(token), ..self.clone() }
    }

    /// The lock between two attempts: nothing runs, so nobody has to wait for its holder. `due`: when the next one is
    /// to begin; else at once.
    pub fn waiting(&self, past: &Past, due: Option<Timestamp>) -> Lock {
        let mut all = self.past.clone();
        all.push(past.into());
        Lock { state: LockState::Waiting, hold: Some(0), due, token: None, past: all, ..self.clone() }
    }

    /// The same lock between two attempts, for another node to begin the next one.
    pub fn passed_on(&self, node: &NodeName, node_start: NodeStart) -> Lock {
        Lock { node: node.clone(), node_start, ..self.clone() }
    }

    /// Whether its next attempt is to begin later than `now`.
    pub fn is_early(&self, now: Timestamp) -> bool {
        self.due.is_some_and(|due| now < due)
    }

    pub fn retry(&self) -> Option<Retry> {
        self.retry.as_ref().map(Retry::from)
    }

    pub fn promise(&self) -> Promise {
        self.promise.into()
    }

    /// The attempts before this one, the oldest first.
    pub fn past(&self) -> Vec<Past> {
        self.past.iter().map(Past::from).collect()
    }

    /// The fencing token of its claim, the lock being at this revision.
    pub fn fencing_token(&self, revision: Revision) -> i64 {
        self.token.unwrap_or(revision.0)
    }

    /// What is known of its attempt to who has only the lock, at this revision.
    pub fn facts(&self, revision: Revision) -> RunFacts {
        let token = self.fencing_token(revision);
        RunFacts::claimed(self.node.clone(), self.node_start, self.attempt, token, self.claimed_at)
    }

    /// Whether it is the lock of this very claim.
    pub fn is_of(&self, node: &NodeName, node_start: NodeStart, attempt: u32) -> bool {
        self.node == *node && self.node_start == node_start && self.attempt == attempt
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockState {
    Held,
    /// Between two attempts: nothing runs.
    Waiting,
}

/// A value of `status/`: for people, never a proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    v: u32,
    pub last_outcome: String,
    /// The id of the fire that had it.
    pub last_fire: String,
    pub last_at: Timestamp,
    #[serde(default)]
    pub last_success: Option<Timestamp>,
    pub failures_in_a_row: u32,
    /// Why it was so, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reason: Option<String>,
    /// Fires that were skipped since the last one that ran.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skips_in_a_row: u64,
}

impl Status {
    /// The status after a record, from the one before it.
    pub fn after(before: Option<&Status>, record: &Record) -> Status {
        let ended = record.run.as_ref().and_then(|run| run.ended_at).unwrap_or(record.written_at);
        let failures = before.map_or(0, |status| status.failures_in_a_row);
        let skips = before.map_or(0, |status| status.skips_in_a_row);
        let succeeded = record.outcome == Outcome::Succeeded;
        Status {
            v: VERSION,
            last_outcome: record.outcome.to_string(),
            last_fire: record.fire.id.to_string(),
            last_at: ended,
            last_success: if succeeded { Some(ended) } else { before.and_then(|status| status.last_success) },
            failures_in_a_row: match record.outcome {
                Outcome::Succeeded => 0,
                // Not run at all: neither a failure nor the end of a row of them.
                Outcome::Skipped | Outcome::Missed | Outcome::Refused => failures,
                Outcome::Failed | Outcome::TimedOut | Outcome::Cancelled | Outcome::Lost => failures + 1,
            },
            last_reason: record.reason.clone(),
            skips_in_a_row: match record.outcome {
                Outcome::Skipped => skips.saturating_add(record.span.map_or(1, |span| span.count)),
                Outcome::Missed | Outcome::Refused => skips,
                _ => 0,
            },
        }
    }
}

/// A value of `requests/`: that a job be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    v: u32,
    /// `user@host`, as a claim, not as proof; or the fire whose end has set it off.
    pub by: String,
    pub at: Timestamp,
    /// It runs beside another fire of its lane, whatever its job says of that.
    #[serde(default, skip_serializing_if = "is_false")]
    pub force: bool,
}

impl Request {
    pub fn new(by: String, at: Timestamp) -> Request {
        Request { v: VERSION, by, at, force: false }
    }

    /// The same, to run beside another fire of the lane.
    pub fn forced(self, force: bool) -> Request {
        Request { force, ..self }
    }
}

/// A value of `queue/`: a task that waits. The same form tells in locks and records what the task was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskForm {
    v: u32,
    by: String,
    due: Timestamp,
    job: Box<JobForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl TaskForm {
    pub fn of(task: &Task) -> TaskForm {
        TaskForm {
            v: VERSION,
            by: task.by.clone(),
            due: task.due,
            job: Box::new(JobForm::of(&task.job)),
            of: task.of.as_ref().map(JobName::to_string),
            queue: task.queue.as_ref().map(MutexName::to_string),
            key: task.key.clone(),
        }
    }

    fn into_task(self, id: ulid::Ulid) -> Result<Task, String> {
        let name = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        Ok(Task {
            id,
            job: self.job.into_job(JobName::of_tasks())?,
            of: self.of.map(|of| of.parse().map_err(|error| name("of", &error))).transpose()?,
            due: self.due,
            by: self.by,
            queue: self
                .queue
                .map(|queue| queue.parse().map_err(|error| name("queue", &error)))
                .transpose()?,
            key: self.key,
        })
    }

    /// Reads a value of `queue/`, whose key names the task.
    pub fn decode(key: &str, value: &[u8]) -> Result<Task, Unreadable> {
        let unreadable = |why: String| Unreadable { key: key.to_owned(), why };
        let place = super::keys::task_in_queue(key).ok_or_else(|| unreadable("it is no task".to_owned()))?;
        decode::<TaskForm>(key, value)?.into_task(place.id).map_err(unreadable)
    }
}

/// A value of `task-keys/`: the task that was submitted with a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskKey {
    v: u32,
    pub key: String,
    /// The id of its fire.
    pub task: String,
    /// Until when the key stands for it.
    pub until: Timestamp,
}

impl TaskKey {
    pub fn new(key: String, task: String, until: Timestamp) -> TaskKey {
        TaskKey { v: VERSION, key, task, until }
    }
}

/// A value of `mutexes/<mutex>/<number>`, the fire that has it, and of `mutexes/<mutex>/wait-…`, one that waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MutexHolder {
    v: u32,
    /// As people read it: `job/fire`.
    pub fire: String,
    #[serde(with = "as_text")]
    pub node: NodeName,
}

impl MutexHolder {
    pub fn new(fire: &Fire, node: NodeName) -> MutexHolder {
        MutexHolder { v: VERSION, fire: fire.to_string(), node }
    }
}

/// A value of `limits/<mutex>/<source>`: how many may have it at once, as that source says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MutexLimit {
    v: u32,
    pub slots: u32,
}

impl MutexLimit {
    pub fn new(slots: u32) -> MutexLimit {
        MutexLimit { v: VERSION, slots }
    }
}

/// A value of `chains/<job>`: which of the jobs it comes after have ended as it wants, since its own last run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainState {
    v: u32,
    /// By job, the fire that did.
    pub ended: BTreeMap<String, String>,
}

impl ChainState {
    pub fn new(ended: BTreeMap<String, String>) -> ChainState {
        ChainState { v: VERSION, ended }
    }
}

/// A value of `requests/`: that a fire be stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    v: u32,
    /// Another fire, or `user@host` as a claim, not as proof.
    pub by: String,
    pub at: Timestamp,
    /// What the record is to say.
    pub reason: String,
}

impl CancelRequest {
    pub fn new(by: String, at: Timestamp, reason: String) -> CancelRequest {
        CancelRequest { v: VERSION, by, at, reason }
    }
}

/// A value of `paused/` and `drained/`: that somebody holds claims back. That the key is there is what counts; this tells
/// people why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldBack {
    v: u32,
    /// `user@host`, as a claim, not as proof.
    pub by: String,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl HoldBack {
    pub fn new(by: String, at: Timestamp, reason: Option<String>, until: Option<Timestamp>) -> HoldBack {
        HoldBack { v: VERSION, by, at, reason, until }
    }

    /// What remains of it when it has ended: see [`super::keys::ended_pause`].
    pub fn ended(self, at: Timestamp) -> HoldBack {
        HoldBack { until: Some(at), ..self }
    }
}

/// A value of `acts/`: what an operator asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    v: u32,
    /// `user@host`, as a claim, not as proof.
    pub by: String,
    pub at: Timestamp,
    /// The name of the command.
    pub what: String,
    /// A job, a fire, a node or a source; `--all` for all jobs.
    pub subject: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Act {
    pub fn new(by: String, at: Timestamp, what: &str, subject: String, detail: Option<String>) -> Act {
        Act { v: VERSION, by, at, what: what.to_owned(), subject, detail }
    }
}

#[derive(Serialize, Deserialize)]
struct RecordForm {
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    span: Option<SpanForm>,
    outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<RunForm>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    past: Vec<PastForm>,
    written_by: WriterForm,
    written_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tail: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<Box<TaskForm>>,
    /// As people read them: `job/fire`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    set_off: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct SpanForm {
    last: Timestamp,
    count: u64,
}

#[derive(Serialize, Deserialize)]
struct RunForm {
    #[serde(with = "as_text")]
    node: NodeName,
    #[serde(with = "as_text")]
    node_start: NodeStart,
    attempt: u32,
    fencing_token: i64,
    claimed_at: Timestamp,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    #[serde(default)]
    output_bytes: u64,
    #[serde(default)]
    output_left_out: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WriterForm {
    Node {
        #[serde(with = "as_text")]
        node: NodeName,
        #[serde(with = "as_text")]
        node_start: NodeStart,
    },
    Operator {
        operator: String,
    },
}

impl From<&Writer> for WriterForm {
    fn from(writer: &Writer) -> WriterForm {
        match writer.clone() {
            Writer::Node { node, node_start } => WriterForm::Node { node, node_start },
            Writer::Operator(operator) => WriterForm::Operator { operator },
        }
    }
}

impl From<WriterForm> for Writer {
    fn from(form: WriterForm) -> Writer {
        match form {
            WriterForm::Node { node, node_start } => Writer::Node { node, node_start },
            WriterForm::Operator { operator } => Writer::Operator(operator),
        }
    }
}

/// The stored form of a record; its fire is in the key.
pub fn encode_record(record: &Record) -> Vec<u8> {
    encode(&RecordForm {
        v: VERSION,
        span: record.span.map(|Span { last, count }| SpanForm { last, count }),
        outcome: record.outcome.to_string(),
        reason: record.reason.clone(),
        run: record.run.as_ref().map(|run| RunForm {
            node: run.node.clone(),
            node_start: run.node_start,
            attempt: run.attempt,
            fencing_token: run.fencing_token,
            claimed_at: run.claimed_at,
            started_at: run.started_at,
            ended_at: run.ended_at,
            exit_code: run.exit_code,
            signal: run.signal,
            output_bytes: run.output_bytes,
            output_left_out: run.output_left_out,
            usage: run.usage,
        }),
        past: record.past.iter().map(PastForm::from).collect(),
        written_by: (&record.writer).into(),
        written_at: record.written_at,
        tail: record.tail.clone(),
        task: record.task.as_ref().map(|task| Box::new(TaskForm::of(task))),
        set_off: record.set_off.iter().map(Fire::to_string).collect(),
    })
}

/// How far a record reaches, where it stands for many fires. Also of one that is else unreadable.
pub fn span_of(value: &[u8]) -> Option<Span> {
    #[derive(Deserialize)]
    struct Reaching {
        #[serde(default)]
        span: Option<SpanForm>,
    }
    let Reaching { span } = serde_json::from_slice(value).ok()?;
    span.map(|SpanForm { last, count }| Span { last, count })
}

/// Reads the record of `fire`.
pub fn decode_record(fire: Fire, key: &str, value: &[u8]) -> Result<Record, Unreadable> {
    let form: RecordForm = decode(key, value)?;
    let outcome = form.outcome.parse().map_err(|why| Unreadable { key: key.to_owned(), why })?;
    // Only told, never acted on: one that a later release has written otherwise is left out.
    let task = match fire.id {
        FireId::Task(id) => form.task.and_then(|task| task.into_task(id).ok()).map(Box::new),
        _ => None,
    };
    Ok(Record {
        fire,
        span: form.span.map(|SpanForm { last, count }| Span { last, count }),
        outcome,
        reason: form.reason,
        run: form.run.map(|run| RunFacts {
            node: run.node,
            node_start: run.node_start,
            attempt: run.attempt,
            fencing_token: run.fencing_token,
            claimed_at: run.claimed_at,
            started_at: run.started_at,
            ended_at: run.ended_at,
            exit_code: run.exit_code,
            signal: run.signal,
            output_bytes: run.output_bytes,
            output_left_out: run.output_left_out,
            usage: run.usage,
        }),
        past: form.past.iter().map(Past::from).collect(),
        writer: form.written_by.into(),
        written_at: form.written_at,
        tail: form.tail,
        task,
        set_off: form.set_off.iter().filter_map(|text| fire_of_text(text)).collect(),
    })
}

/// A fire of a one-node job as it is shown: `job/fire`.
fn fire_of_text(text: &str) -> Option<Fire> {
    let (job, id) = text.split_once('/')?;
    Some(Fire::new(job.parse().ok()?, id.parse().ok()?))
}

/// A value as JSON.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("stored forms have only text keys")
}

/// A value from JSON. A later version is refused, not guessed at.
pub fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, Unreadable> {
    #[derive(Deserialize)]
    struct Versioned {
        v: u32,
    }
    let unreadable = |why: String| Unreadable { key: key.to_owned(), why };
    let Versioned { v } = serde_json::from_slice(value).map_err(|error| unreadable(error.to_string()))?;
    if v != VERSION {
        return Err(unreadable(format!("its form has version {v}, this release knows {VERSION}")));
    }
    serde_json::from_slice(value).map_err(|error| unreadable(error.to_string()))
}

fn instant(at: Timestamp) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
