//! `fleetcron pause` and `fleetcron resume`: jobs are held back, and let go on.

use std::process::ExitCode;

use super::failure::{Failure, say};
use super::out::harmless;
use super::read::{self, Scope};
use super::time::{self, FORMS, Toward};
use super::{Door, act_on};
use crate::act::{self, who};
use crate::schedule::{Timestamp, Zone};
use crate::store::values::{self, HoldBack};
use crate::store::{Compare, Op, Revision, Store, Txn, TxnReply, keys};

/// Hold jobs back: their fires pass without a run until they are resumed
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What runs goes on. From the moment the command has ended well no node claims a fire of the job any more. Fires that \
pass meanwhile are not made up for. A job that is started by hand waits until the pause is over.

With --until the pause ends by itself: TIME is RFC 3339 (2026-11-30T02:00:00Z), a date, a time of day (06:00), or a \
duration from now (8h); dates and times of day are UTC. To pause again replaces reason and end.

--all holds back all jobs, also those that are defined later; it is a pause of its own beside those of single jobs.

Examples:
  fleetcron pause backup --reason 'the disk is being replaced'
  fleetcron pause --all --until 2h")]
pub struct Args {
    /// The jobs
    #[arg(value_name = "JOB", required_unless_present = "all", conflicts_with = "all")]
    jobs: Vec<String>,
    /// All jobs, also those that are yet to come
    #[arg(long)]
    all: bool,
    /// When the pause ends by itself [default: never]
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Why, for the others
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Let paused jobs go on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nothing is made up for: the next fire that comes due runs. What was started by hand meanwhile runs now.

--all ends the pause of all jobs that `pause --all` made; jobs that were paused by name stay so, and are named.

Examples:
  fleetcron resume backup
  fleetcron resume --all")]
pub struct ResumeArgs {
    /// The jobs
    #[arg(value_name = "JOB", required_unless_present = "all", conflicts_with = "all")]
    jobs: Vec<String>,
    /// End the pause of all jobs
    #[arg(long)]
    all: bool,
}

/// How an act on all jobs is written down.
const ALL: &str = "--all";

/// So many jobs go into one transaction: a key and an act for each.
const JOBS_AT_ONCE: usize = 50;

pub async fn pause(door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let scope = Scope::of(&args.jobs)?;
    let now = door.now();
    let until = args.until.as_deref().map(|text| until(text, now)).transpose()?;
    let store = door.store().await?;
    let hold = HoldBack::new(who(), now, args.reason.clone(), until);
    let value = values::encode(&hold);
    let note = |subject: &str| act::note(&hold.by, now, "pause", subject, detail(&hold));
    // Safe when two do it at once, here and below: the later one's word counts.
    if args.all {
        act_on(&store, now, Txn::new().then([Op::put(keys::all_paused(), value), note(ALL)])).await?;
        say_until("all jobs are paused", until);
        return Ok(ExitCode::SUCCESS);
    }
    // All are known before the first is paused.
    read::each_definition(&store, &scope, |_| Ok(())).await?;
    for jobs in scope.names().chunks(JOBS_AT_ONCE) {
        let there = jobs.iter().map(|job| Compare::present(keys::job(job)));
        let puts = jobs.iter().map(|job| Op::put(keys::paused(job), value.as_slice()));
        let look = jobs.iter().map(|job| Op::get(keys::job(job)));
        let txn =
            Txn::when(there).then(puts.chain(jobs.iter().map(|job| note(job.as_str())))).otherwise(look);
        let reply = act_on(&store, now, txn).await?;
        if !reply.succeeded {
            let gone = (0..jobs.len()).find(|index| reply.got(*index).is_empty()).unwrap_or_default();
            return Err(read::no_such_job(&store, &jobs[gone]).await?);
        }
        for job in jobs {
            say_until(&format!("{job} is paused"), until);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn until(text: &str, now: Timestamp) -> Result<Timestamp, Failure> {
    let at = time::instant(text, now, &Zone::utc(), Toward::Future)
        .map_err(|error| Failure::Usage(format!("--until: {error}")))?;
    match at > now {
        true => Ok(at),
        false => Err(Failure::Usage(format!("--until: {} is not to come; write {FORMS}", time::utc(at)))),
    }
}

fn say_until(what: &str, until: Option<Timestamp>) {
    match until {
        Some(until) => say(format_args!("{what} until {}", time::utc(until))),
        None => say(format_args!("{what} until resumed")),
    }
}

/// Until when and why, where that was said.
fn detail(hold: &HoldBack) -> Option<String> {
    let until = hold.until.map(|until| format!("until {}", time::utc(until)));
    let words: Vec<_> = until.into_iter().chain(hold.reason.clone()).collect();
    (!words.is_empty()).then(|| words.join(": "))
}

pub async fn resume(door: Door, args: &ResumeArgs) -> Result<ExitCode, Failure> {
    let scope = Scope::of(&args.jobs)?;
    let now = door.now();
    let store = door.store().await?;
    let by = who();
    if args.all {
        let reply = end(&store, now, &by, &keys::all_paused(), ALL).await?;
        match reply.succeeded {
            true => say("all jobs go on"),
            false => say("all jobs are not paused, so nothing is changed"),
        }
        let by_name = reply.got(GOT_PAUSES).iter().filter(|entry| keys::pause_ended(&entry.key).is_none());
        let names: Vec<_> = by_name.map(|entry| harmless(keys::name_of(&entry.key)).to_string()).collect();
        if !names.is_empty() {
            say(format_args!("still paused by name: {}", names.join(", ")));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut all_paused = false;
    for job in scope.names() {
        let key = keys::paused(job);
        let reply = end(&store, now, &by, &key, job.as_str()).await?;
        // A pause outlives its job, so the job need not be there.
        if !reply.succeeded && store.get(&keys::job(job)).await?.is_none() {
            return Err(read::no_such_job(&store, job).await?);
        }
        match reply.succeeded {
            true => say(format_args!("{job} goes on")),
            false => say(format_args!("{job} is not paused by name, so nothing is changed")),
        }
        all_paused |= reply.got(GOT_PAUSES).iter().any(|entry| entry.key == keys::all_paused());
    }
    if all_paused {
        say("warning: all jobs are paused, so nothing runs yet; `fleetcron resume --all` ends that");
    }
    Ok(ExitCode::SUCCESS)
}

/// Position of the pauses that are left, in the reply of [`end`].
const GOT_PAUSES: usize = 0;

/// Ends a pause, if there is one, and keeps that there was: what came due in it is not caught up with.
async fn end(store: &Store, now: Timestamp, by: &str, key: &str, subject: &str) -> Result<TxnReply, Failure> {
    loop {
        let there = store.get(key).await?;
        let revision = there.as_ref().map_or(Revision(0), |entry| entry.mod_revision);
        let mut then = vec![Op::delete(key), act::note(by, now, "resume", subject, None)];
        // One that cannot be read tells nothing of its time.
        let value = there.as_ref().and_then(|entry| values::decode::<HoldBack>(key, &entry.value).ok());
        if let Some(value) = value {
            then.push(Op::put(keys::ended_pause(key, now), values::encode(&value.ended(now))));
        }
        // Safe when two do it at once: the pause is at this revision for one of them only.
        let as_seen = Compare::mod_revision(key, revision);
        let txn = match there {
            Some(_) => Txn::when([as_seen]).then([Op::get(keys::pauses())]).then(then),
            None => Txn::when([Compare::present(key)]).otherwise([Op::get(keys::pauses())]),
        };
        let was_there = there.is_some();
        let reply = act_on(store, now, txn).await?;
        // Else it was made, made longer or ended meanwhile.
        if reply.succeeded == was_there {
            return Ok(reply);
        }
    }
}
