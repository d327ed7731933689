//! `fleetcron submit`: work that is to be done once, on whichever node has room for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use chrono::{SubsecRound, TimeDelta};
use serde::{Deserialize, Serialize};
use ulid::{Generator, Ulid};

use super::failure::{Failure, say};
use super::time::{self, FORMS, Toward};
use super::{Door, read, start};
use crate::act::{self, who};
use crate::fire::FireId;
use crate::job::{
    CatchUp, Command, DEFAULT_HOLD, DEFAULT_KILL_AFTER, DEFAULT_RETRY_DELAY, DEFAULT_RETRY_FACTOR,
    DEFAULT_RETRY_JITTER, DEFAULT_RETRY_MAX_DELAY, DEFAULT_SHELL, Job, JobName, Keep, MutexName, Overlap,
    Priority, Promise, Retry, RunOn, Terms,
};
use crate::node::Selector;
use crate::queue::{self, LARGEST_TASK, LONGEST_KEY, Submitted};
use crate::schedule::{Schedule, Timestamp, Zone};
use crate::store::values::{self, Definition};
use crate::store::{Store, StoreError, keys};
use crate::task::Task;

/// Put a task into the queue: a command, or a job with its own arguments, to be run once
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A task waits in the store until a node has a slot for it: the highest priority first, then what has been due longest. One \
node runs it, once; should that node be lost, another runs it again, unless --at-most-once. Its id is printed; \
`fleetcron tasks` lists tasks, `fleetcron logs ID` shows the output, `fleetcron cancel ID` stops it.

Words after -- are the command and its arguments, run as they are; a single word with blanks in it is given to the \
shell. With --job they are arguments of that job's command, $1 and so on for a shell text.

With --key, submitting again within 24 hours starts nothing and prints the first task's id. With --queue, so many tasks of \
that queue run at once in the fleet as the job files say under [limits].

--batch reads JSON lines on stdin, one task each: command (a text or a list) or job, and args, env, at, in, priority, nodes, \
timeout, retry, queue, mutex, key, user, stdin. All lines are checked first: if one is bad, which is said, nothing is \
submitted. With --batch-id the same batch can be sent again after a crash: what is in the queue already is not put there twice.

With --wait the record is printed instead, and the exit code is the command's, or 128 + N if signal N ended it. 125: it could \
not be found out how it ended. JSON has one object a task: task, known (its key stood for an earlier one).

Examples:
  fleetcron submit -- /usr/local/bin/send-mail 4711
  fleetcron submit --in 10m --priority 9 -- 'reindex --all > /var/log/reindex'
  fleetcron submit --job backup --env DB=shop --wait
  fleetcron submit --queue mail --key order-4711 -- send-mail 4711
  fleetcron submit --batch --batch-id import-7 < tasks.jsonl
  fleetcron submit --again t-01ARZ3NDEKTSV4RRFFQ69G5FAV")]
pub struct Args {
    /// Not before this time: RFC 3339, a date, a time of day, or a duration from now
    #[arg(long, value_name = "TIME", conflicts_with = "in_")]
    at: Option<String>,
    /// Not before so long from now
    #[arg(long = "in", value_name = "DURATION")]
    in_: Option<String>,
    /// What comes first of what waits: 9 before 0
    ///
    /// By default that of the job, else 5.
    #[arg(long, value_name = "0-9")]
    priority: Option<Priority>,
    /// The nodes that may run it, as a job's `nodes`
    #[arg(long, value_name = "SELECTOR")]
    nodes: Option<String>,
    /// Stop it after so long
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// Attempts in all, and after a comma the delay before the second: 3,30s
    #[arg(long, value_name = "ATTEMPTS[,DELAY]")]
    retry: Option<String>,
    /// Should its node be lost, record it as lost and do not run it again
    #[arg(long)]
    at_most_once: bool,
    /// Submit it once: a second time, the first task's id is printed
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The queue it waits in; [limits] in the job files says how many of one run at once
    #[arg(long, value_name = "NAME")]
    queue: Option<MutexName>,
    /// What it shares with jobs and other tasks, as a job's `mutex`
    #[arg(long, value_name = "NAME", conflicts_with = "queue")]
    mutex: Option<MutexName>,
    /// The command's input: a file, or - for this command's own
    #[arg(long, value_name = "FILE")]
    stdin: Option<PathBuf>,
    /// Whose account it runs in
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Run this job's definition
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Set a variable; may be said several times
    #[arg(long, value_name = "K=V")]
    env: Vec<String>,
    /// Wait for the end, and exit as the command did
    #[arg(long)]
    wait: bool,
    /// Read tasks as JSON lines on stdin
    #[arg(long, conflicts_with_all = ["job", "stdin", "wait", "again", "command"])]
    batch: bool,
    /// What names this batch, so that sending it again puts nothing in twice
    #[arg(long, value_name = "NAME", requires = "batch")]
    batch_id: Option<String>,
    /// Submit a task that has ended once more, as it was
    #[arg(long, value_name = "TASK", conflicts_with_all = ["job", "command", "stdin"])]
    again: Option<String>,
    /// The command, or the job's arguments
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,
}

pub async fn submit(mut door: Door, args: Args) -> Result<ExitCode, Failure> {
    let now = door.now();
    if args.batch {
        return batch(&mut door, &args).await;
    }
    let wait = args.wait;
    if let Some(again) = args.again.clone() {
        let store = door.store().await?;
        let task = again_of(&store, &again, now).await?;
        return put_one(&mut door, &store, task, wait).await;
    }
    let stdin = args.stdin.as_deref().map(read_input).transpose()?;
    let command = match (args.command.as_slice(), &args.job) {
        (words, Some(_)) => (None, words.to_vec()),
        ([], None) => {
            return Err(Failure::usage("there is no command: write it after --, or name a job with --job"));
        }
        // As `ssh` and `sh -c` are given one.
        ([text], None) if text.contains(char::is_whitespace) => {
            (Some(OneOrMany::One(text.clone())), Vec::new())
        }
        (words, None) => (Some(OneOrMany::Many(words.to_vec())), Vec::new()),
    };
    let written = Written {
        command: command.0,
        args: command.1,
        job: args.job,
        env: variables(&args.env)?,
        at: args.at,
        in_: args.in_,
        priority: args.priority.map(|priority| priority.get().into()),
        nodes: args.nodes,
        timeout: args.timeout,
        retry: args.retry,
        at_most_once: args.at_most_once,
        queue: args.queue.map(|queue| queue.to_string()),
        mutex: args.mutex.map(|mutex| mutex.to_string()),
        key: args.key,
        user: args.user,
        stdin,
    };
    // What can be said without the store is said without it.
    let checked = written.check(now).map_err(Failure::Usage)?;
    let store = door.store().await?;
    let mut jobs = BTreeMap::new();
    let task = checked.task(&store, &mut jobs, new_id(&mut Generator::new(), now)?, &who()).await?;
    put_one(&mut door, &store, task, wait).await
}

async fn put_one(door: &mut Door, store: &Store, task: Task, wait: bool) -> Result<ExitCode, Failure> {
    let now = door.now();
    let note = act::note(&task.by, now, "submit", task.fire().id, None);
    let submitted = put(store, &[task], Some(note), now).await?.remove(0);
    act::prune(store, now).await;
    start::warn_if_nobody_is_there(store).await?;
    if wait {
        return start::wait_and_tell(door, store, submitted.fire()).await;
    }
    show(door, &submitted)?;
    door.out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn show(door: &mut Door, submitted: &Submitted) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Row {
        task: String,
        /// Its key stood for this one, which was submitted before.
        known: bool,
    }
    let (task, known) = (submitted.fire().id.to_string(), matches!(submitted, Submitted::Known(_)));
    match door.out.is_json() {
        true => door.out.json(&Row { task, known }),
        false => door.out.line(task),
    }
}

/// Sends until the outcome is known: what was put in by an earlier try is seen by the next.
async fn put(
    store: &Store,
    tasks: &[Task],
    note: Option<crate::store::Op>,
    now: Timestamp,
) -> Result<Vec<Submitted>, Failure> {
    /// With the store's own deadline this is about ten seconds.
    const TRIES: u32 = 3;
    let mut tries = 0;
    loop {
        tries += 1;
        match queue::submit(store, tasks, note.clone(), now).await {
            Ok(submitted) => return Ok(submitted),
            Err(StoreError::NoAnswer { .. }) if tries < TRIES => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A whole batch: read, checked, and put in piece by piece.
async fn batch(door: &mut Door, args: &Args) -> Result<ExitCode, Failure> {
    let now = door.now();
    let mut checked = Vec::new();
    for (index, line) in BufReader::new(std::io::stdin().lock()).split(b'\n').enumerate() {
        let number = index + 1;
        let bad = |why: &dyn std::fmt::Display| {
            Failure::usage(format!("line {number} of the batch: {why}; nothing was submitted"))
        };
        let line = line.map_err(|error| bad(&error))?;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let mut written: Written = serde_json::from_slice(&line).map_err(|error| bad(&error))?;
        if let (Some(batch), None) = (&args.batch_id, &written.key) {
            written.key = Some(format!("{batch}#{number}"));
        }
        checked.push((number, written.check(now).map_err(|why| bad(&why))?));
    }
    if checked.is_empty() {
        return Err(Failure::usage("the batch has no lines"));
    }
    let store = door.store().await?;
    let (by, mut ids, mut jobs) = (who(), Generator::new(), BTreeMap::new());
    let mut tasks = Vec::with_capacity(checked.len());
    for (number, checked) in checked {
        let task = checked.task(&store, &mut jobs, new_id(&mut ids, now)?, &by).await;
        tasks.push(task.map_err(|failure| match failure {
            Failure::Usage(why) | Failure::Asked(why) => {
                Failure::Usage(format!("line {number} of the batch: {why}; nothing was submitted"))
            }
            other => other,
        })?);
    }
    let mut note =
        Some(act::note(&by, now, "submit", format!("{} tasks", tasks.len()), args.batch_id.clone()));
    let (mut put_in, all) = (0, tasks.len());
    for some in queue::batches(&tasks) {
        let submitted = match put(&store, some, note.take(), now).await {
            Ok(submitted) => submitted,
            Err(failure) => {
                door.out.flush()?;
                let again = match &args.batch_id {
                    Some(id) => format!("send it again with --batch-id {id}: nothing is put in twice"),
                    None => {
                        "those printed are in the queue; with --batch-id it could be sent again".to_owned()
                    }
                };
                say(format_args!("{put_in} of {all} tasks were submitted; {again}"));
                return Err(failure);
            }
        };
        put_in += submitted.len();
        for one in &submitted {
            show(door, one)?;
        }
    }
    door.out.flush()?;
    act::prune(&store, now).await;
    start::warn_if_nobody_is_there(&store).await?;
    Ok(ExitCode::SUCCESS)
}

/// In the order in which they are made, so that of two of one priority and instant the first comes first.
fn new_id(ids: &mut Generator, now: Timestamp) -> Result<Ulid, Failure> {
    ids.generate_from_datetime(now.into()).map_err(|error| Failure::asked(format!("no id is left: {error}")))
}

/// A task that has ended, as a new one.
async fn again_of(store: &Store, text: &str, now: Timestamp) -> Result<Task, Failure> {
    let fire = read::fire(text)?.filter(|fire| matches!(fire.id, FireId::Task(_)));
    let Some(fire) = fire else {
        return Err(Failure::usage(format!(
            "{text} is no task: they are named t-<ULID>, `fleetcron tasks` lists them"
        )));
    };
    let Some(entry) = store.get(&keys::record(&fire)).await? else {
        let is_there =
            store.get(&keys::lock(&fire)).await?.is_some() || queue::find(store, &fire).await?.is_some();
        return Err(Failure::Asked(match is_there {
            true => format!("{} has not ended yet", fire.id),
            false => format!("nothing is known of {}", fire.id),
        }));
    };
    let record = values::decode_record(fire.clone(), &entry.key, &entry.value)?;
    let Some(task) = record.task else {
        return Err(Failure::Asked(format!("the record of {} does not tell what it was", fire.id)));
    };
    let id = new_id(&mut Generator::new(), now)?;
    Ok(Task { id, due: now.trunc_subsecs(3), by: who(), key: None, ..*task })
}

fn variables(pairs: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let split = |pair: &String| {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("--env {pair}: write it NAME=VALUE")))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    pairs.iter().map(split).collect()
}

/// A file, or this command's own input.
fn read_input(path: &Path) -> Result<String, Failure> {
    let bad = |why: &dyn std::fmt::Display| Failure::usage(format!("--stdin {}: {why}", path.display()));
    let mut bytes = Vec::new();
    // One more than may be, to see that it is too much without reading all of it.
    let most = LARGEST_TASK as u64 + 1;
    match path == Path::new("-") {
        true => std::io::stdin().lock().take(most).read_to_end(&mut bytes),
        false => std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    }
    .map_err(|error| bad(&error))?;
    if bytes.len() > LARGEST_TASK {
        let hint = "put it into a file that the nodes can read";
        return Err(bad(&format!("it has more than the {LARGEST_TASK} bytes that a task may have: {hint}")));
    }
    String::from_utf8(bytes).map_err(|_| bad(&"it is not UTF-8 text"))
}

/// A task as it is written: a line of a batch, or the options of one.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    command: Option<OneOrMany>,
    job: Option<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    at: Option<String>,
    #[serde(rename = "in")]
    in_: Option<String>,
    priority: Option<u64>,
    nodes: Option<String>,
    timeout: Option<String>,
    retry: Option<String>,
    at_most_once: bool,
    queue: Option<String>,
    mutex: Option<String>,
    key: Option<String>,
    user: Option<String>,
    stdin: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// The same, with all checked that the store need not be asked about.
struct Checked {
    command: Option<Command>,
    job: Option<JobName>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    due: Timestamp,
    priority: Option<Priority>,
    nodes: Option<Selector>,
    timeout: Option<Duration>,
    retry: Option<Retry>,
    at_most_once: bool,
    queue: Option<MutexName>,
    mutex: Option<MutexName>,
    key: Option<String>,
    user: Option<String>,
    stdin: Option<String>,
}

impl Written {
    fn check(self, now: Timestamp) -> Result<Checked, String> {
        let command = match (self.command, &self.job) {
            (Some(_), Some(_)) => return Err("it has both a command and a job".to_owned()),
            (None, None) => return Err("it has neither a command nor a job".to_owned()),
            (None, Some(_)) => None,
            (Some(OneOrMany::One(text)), None) if text.trim().is_empty() => {
                return Err("its command is empty".to_owned());
            }
            (Some(OneOrMany::One(text)), None) if self.args.is_empty() => Some(Command::Shell(text)),
            // A program with its arguments.
            (Some(OneOrMany::One(program)), None) => {
                Some(Command::Argv([program].into_iter().chain(self.args.iter().cloned()).collect()))
            }
            (Some(OneOrMany::Many(words)), None) if words.first().is_none_or(String::is_empty) => {
                return Err("its command is empty".to_owned());
            }
            (Some(OneOrMany::Many(words)), None) => {
                Some(Command::Argv(words.into_iter().chain(self.args.iter().cloned()).collect()))
            }
        };
        let texts = [&self.key, &self.user, &self.stdin].into_iter().flatten().chain(&self.args);
        let of_command = match &command {
            Some(Command::Shell(text)) => std::slice::from_ref(text),
            Some(Command::Argv(words)) => words.as_slice(),
            None => &[],
        };
        if texts.chain(of_command).chain(self.env.values()).any(|text| text.contains('\0')) {
            return Err("it has a NUL character in it".to_owned());
        }
        for name in self.env.keys() {
            let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
            if !is_name || name.starts_with("FLEETCRON_") {
                return Err(format!("env: {name:?} is no name of a variable that may be set"));
            }
        }
        if let Some(key) = &self.key
            && (key.is_empty() || key.len() > LONGEST_KEY)
        {
            return Err(format!("key: it has {} bytes, and may have 1 to {LONGEST_KEY}", key.len()));
        }
        if self.queue.is_some() && self.mutex.is_some() {
            return Err("it has both a queue and a mutex".to_owned());
        }
        let name = |what: &str, text: Option<String>| {
            text.map(|text| text.parse::<MutexName>().map_err(|error| format!("{what}: {error}"))).transpose()
        };
        let duration = |what: &str, text: &str| {
            humantime::parse_duration(text)
                .ok()
                .filter(|duration| !duration.is_zero())
                .ok_or_else(|| format!("{what}: {text:?} is no duration like 90s or 2h"))
        };
        Ok(Checked {
            command,
            job: self.job.map(|job| job.parse().map_err(|error| format!("job: {error}"))).transpose()?,
            args: self.args,
            env: self.env,
            due: due(self.at.as_deref(), self.in_.as_deref(), now)?,
            priority: self.priority.map(Priority::try_from).transpose()?,
            nodes: self
                .nodes
                .map(|nodes| nodes.parse().map_err(|error| format!("nodes: {error}")))
                .transpose()?,
            timeout: self.timeout.map(|text| duration("timeout", &text)).transpose()?,
            retry: self.retry.map(|text| retry(&text)).transpose()?,
            at_most_once: self.at_most_once,
            queue: name("queue", self.queue)?,
            mutex: name("mutex", self.mutex)?,
            key: self.key,
            user: self.user,
            stdin: self.stdin,
        })
    }
}

/// When it may run, at the earliest.
fn due(at: Option<&str>, in_: Option<&str>, now: Timestamp) -> Result<Timestamp, String> {
    /// The queue's order is told in four digits of a year.
    const FARTHEST: TimeDelta = TimeDelta::days(3650);
    let due = match (at, in_) {
        (Some(_), Some(_)) => return Err("it has both at and in".to_owned()),
        (None, None) => return Ok(now.trunc_subsecs(3)),
        (Some(text), None) => {
            time::instant(text, now, &Zone::utc(), Toward::Future).map_err(|why| format!("at: {why}"))?
        }
        (None, Some(text)) => humantime::parse_duration(text)
            .ok()
            .and_then(|duration| now.checked_add_signed(TimeDelta::from_std(duration).ok()?))
            .ok_or_else(|| format!("in: {text:?} is no duration like 90s or 2h"))?,
    };
    if due > now + FARTHEST {
        return Err(format!("it is due more than ten years from now; a time is {FORMS}"));
    }
    // What is due is due, since when does not matter.
    Ok(due.max(now).trunc_subsecs(3))
}

/// `3`, or `3,30s`.
fn retry(text: &str) -> Result<Retry, String> {
    let bad = || format!("retry: {text:?} is not like 3 or 3,30s");
    let (attempts, delay) = text.split_once(',').map_or((text, None), |(n, delay)| (n, Some(delay)));
    let attempts: u32 = attempts.trim().parse().ok().filter(|n| (1..=100).contains(n)).ok_or_else(bad)?;
    let delay = delay
        .map(|delay| humantime::parse_duration(delay.trim()).map_err(|_| bad()))
        .transpose()?
        .unwrap_or(DEFAULT_RETRY_DELAY);
    Ok(Retry {
        attempts,
        delay,
        factor: DEFAULT_RETRY_FACTOR,
        max_delay: DEFAULT_RETRY_MAX_DELAY.max(delay),
        jitter: DEFAULT_RETRY_JITTER,
        on: None,
    })
}

/// A task waits for its turn, however long that takes: the farthest that a job file can say, and more.
const START_WITHIN: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

impl Checked {
    /// The task. `jobs`: those that were asked for already.
    async fn task(
        self,
        store: &Store,
        jobs: &mut BTreeMap<JobName, Job>,
        id: Ulid,
        by: &str,
    ) -> Result<Task, Failure> {
        let mut job = match (&self.job, self.command) {
            (Some(name), _) => with_arguments(definition(store, jobs, name).await?, &self.args),
            (None, command) => plain(command.expect("it has a command, having no job")),
        };
        job.env.extend(self.env);
        job.priority = self.priority.unwrap_or(job.priority);
        job.nodes = self.nodes.or(job.nodes);
        job.timeout = self.timeout.or(job.timeout);
        job.retry = self.retry.or(job.retry);
        job.mutex = self.mutex.or(job.mutex);
        job.terms.user = self.user.or(job.terms.user);
        job.terms.stdin = self.stdin.or(job.terms.stdin);
        if self.at_most_once {
            job.promise = Promise::AtMostOnce;
        }
        let task = Task {
            id,
            job,
            of: self.job,
            due: self.due,
            by: by.to_owned(),
            queue: self.queue,
            key: self.key,
        };
        let size = queue::size(&task);
        if size > LARGEST_TASK {
            let hint = "put what is large into a file that the nodes can read";
            return Err(Failure::usage(format!("it has {size} bytes, more than {LARGEST_TASK}: {hint}")));
        }
        Ok(task)
    }
}

/// The job as it is defined now.
async fn definition(
    store: &Store,
    jobs: &mut BTreeMap<JobName, Job>,
    name: &JobName,
) -> Result<Job, Failure> {
    if let Some(job) = jobs.get(name) {
        return Ok(job.clone());
    }
    let Some(entry) = store.get(&keys::job(name)).await? else {
        return Err(read::no_such_job(store, name).await?);
    };
    let job = Definition::decode(&entry.key, &entry.value)?.job;
    jobs.insert(name.clone(), job.clone());
    Ok(job)
}

/// A job's definition as a task's: it is due when it was asked for, and excludes nothing.
fn with_arguments(job: Job, args: &[String]) -> Job {
    let command = match (&job.command, args) {
        (command, []) => command.clone(),
        (Command::Argv(words), args) => Command::Argv(words.iter().chain(args).cloned().collect()),
        // `$0` is the job's name, `$1` the first argument.
        (Command::Shell(text), args) => {
            let shell = [job.shell.clone(), "-c".to_owned(), text.clone(), job.name.to_string()];
            Command::Argv(shell.iter().chain(args).cloned().collect())
        }
    };
    Job {
        name: JobName::of_tasks(),
        schedule: Schedule::none(job.schedule.zone()),
        splay: Duration::ZERO,
        command,
        enabled: true,
        overlap: Overlap::Allow,
        run_on: RunOn::OneNode,
        catch_up: CatchUp::None,
        start_within: START_WITHIN,
        after: None,
        was: None,
        ..job
    }
}

fn plain(command: Command) -> Job {
    Job {
        name: JobName::of_tasks(),
        description: None,
        owner: None,
        schedule: Schedule::none(&Zone::utc()),
        splay: Duration::ZERO,
        command,
        enabled: true,
        env: BTreeMap::new(),
        workdir: None,
        shell: DEFAULT_SHELL.to_owned(),
        timeout: None,
        kill_after: DEFAULT_KILL_AFTER,
        hold: DEFAULT_HOLD,
        overlap: Overlap::Allow,
        promise: Promise::AtLeastOnce,
        nodes: None,
        run_on: RunOn::OneNode,
        catch_up: CatchUp::None,
        start_within: START_WITHIN,
        retry: None,
        mutex: None,
        priority: Priority::default(),
        after: None,
        success_exit: BTreeSet::from([0]),
        keep: Keep::default(),
        terms: Terms::default(),
        was: None,
    }
}
