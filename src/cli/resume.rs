//! `fleetcron resume`: paused jobs go on, and make good for what came due in the pause when that is asked for.

use std::process::ExitCode;

use chrono::TimeDelta;
use sha2::{Digest, Sha256};
use ulid::Ulid;

use super::failure::{Failure, say};
use super::out::harmless;
use super::pause::{ALL, JOBS_AT_ONCE};
use super::read::{self, HeldBack, Pages, Scope, say_unreadable};
use super::{Door, act_on, time};
use crate::act::{self, who};
use crate::fire::{Fire, FireId};
use crate::job::RunOn;
use crate::planner;
use crate::record::Outcome;
use crate::schedule::Timestamp;
use crate::store::values::{self, Definition, HoldBack, Request};
use crate::store::{Compare, Entry, Op, Revision, Store, StoreError, Txn, TxnReply, keys};

/// Let paused jobs go on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nothing is made up for: the next fire that comes due runs. What was started by hand meanwhile runs now.

With --catch-up each job that goes on is also asked to run once, for the newest instant that came due in the pause by \
its present schedule, if there was one; `runs` shows that as a fire m-… due at that instant. It is a request like that of \
`start`: it runs once, on one node, also where the job runs on every node.

--all ends the pause of all jobs that `pause --all` made; jobs that were paused by name stay so, and are named.

Examples:
  fleetcron resume backup
  fleetcron resume backup --catch-up
  fleetcron resume --all")]
pub struct Args {
    /// The jobs
    #[arg(value_name = "JOB", required_unless_present = "all", conflicts_with = "all")]
    jobs: Vec<String>,
    /// End the pause of all jobs
    #[arg(long)]
    all: bool,
    /// Run each job once for the newest instant that it missed in the pause
    #[arg(long)]
    catch_up: bool,
}

pub async fn resume(door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let scope = Scope::of(&args.jobs)?;
    let store = door.store().await?;
    let resuming = Resuming { store: &store, now: door.now(), by: who(), catch_up: args.catch_up };
    match args.all {
        true => resuming.all().await?,
        false => resuming.each(&scope).await?,
    }
    Ok(ExitCode::SUCCESS)
}

struct Resuming<'s> {
    store: &'s Store,
    now: Timestamp,
    by: String,
    catch_up: bool,
}

/// A job that is to make good for an instant.
struct Owed {
    /// The request for it.
    fire: Fire,
    run_on: RunOn,
    /// Which definition says so.
    definition: Revision,
}

impl Owed {
    /// Safe to send twice: the request's name is the same as long as the pause is.
    fn ask(&self, resuming: &Resuming<'_>) -> Op {
        let request = Request::new(resuming.by.clone(), resuming.now);
        Op::put(keys::request(&self.fire), values::encode(&request))
    }

    fn as_seen(&self) -> Compare {
        Compare::mod_revision(keys::job(&self.fire.job), self.definition)
    }
}

impl Resuming<'_> {
    async fn each(&self, scope: &Scope) -> Result<(), Failure> {
        let mut all_paused = false;
        for job in scope.names() {
            let key = keys::paused(job);
            let only = Scope::of(&[job.to_string()])?;
            let (reply, owed) = self.end(&key, job.as_str(), &only).await?;
            // A pause outlives its job, so the job need not be there.
            if !reply.succeeded && self.store.get(&keys::job(job)).await?.is_none() {
                return Err(read::no_such_job(self.store, job).await?);
            }
            match (reply.succeeded, owed.first()) {
                (true, Some(owed)) => {
                    say(format_args!("{job} goes on, and makes good for {}", due_and_fire(&owed.fire)))
                }
                (true, None) if self.catch_up => {
                    say(format_args!("{job} goes on; it has nothing to make good for"))
                }
                (true, None) => say(format_args!("{job} goes on")),
                (false, _) => say(format_args!("{job} is not paused by name, so nothing is changed")),
            }
            say_where_it_runs(&owed);
            all_paused |= reply.got(GOT_PAUSES).iter().any(|entry| entry.key == keys::all_paused());
        }
        if all_paused {
            say("warning: all jobs are paused, so nothing runs yet; `fleetcron resume --all` ends that");
        }
        Ok(())
    }

    async fn all(&self) -> Result<(), Failure> {
        let (reply, owed) = self.end(&keys::all_paused(), ALL, &Scope::of(&[])?).await?;
        match (reply.succeeded, self.catch_up) {
            (true, true) => say(format_args!("all jobs go on, and {} of them make good", owed.len())),
            (true, false) => say("all jobs go on"),
            (false, _) => say("all jobs are not paused, so nothing is changed"),
        }
        say_where_it_runs(&owed);
        let is_by_name = |key: &str| keys::pause_ended(key).is_none() && key != keys::all_paused();
        let by_name = reply.got(GOT_PAUSES).iter().filter(|entry| is_by_name(&entry.key));
        let names: Vec<_> = by_name.map(|entry| harmless(keys::name_of(&entry.key)).to_string()).collect();
        if !names.is_empty() {
            say(format_args!("still paused by name: {}", names.join(", ")));
        }
        Ok(())
    }

    /// Ends a pause, if there is one, and keeps that there was: what came due in it is not caught up with. What its jobs
    /// owe is asked for in the same transaction, so that neither is done without the other.
    async fn end(&self, key: &str, subject: &str, scope: &Scope) -> Result<(TxnReply, Vec<Owed>), Failure> {
        loop {
            let Some(there) = self.store.get(key).await? else {
                let txn = Txn::when([Compare::present(key)]).otherwise([Op::get(keys::pauses())]);
                match act_on(self.store, self.now, txn).await? {
                    // It was made meanwhile.
                    reply if reply.succeeded => continue,
                    reply => return Ok((reply, Vec::new())),
                }
            };
            // One that cannot be read tells nothing of its time.
            let pause = values::decode::<HoldBack>(key, &there.value).ok();
            let owed = match &pause {
                Some(pause) if self.catch_up => self.owed(&there, pause, scope).await?,
                _ => Vec::new(),
            };
            // Safe when two do it at once: the pause is at this revision for one of them only.
            let as_seen = Compare::mod_revision(key, there.mod_revision);
            let Some(last) = self.ask_for_most(&as_seen, &owed).await? else { continue };
            let detail = self.catch_up.then(|| format!("with catch-up of {}", count(owed.len())));
            let mut then = vec![
                Op::get(keys::pauses()),
                Op::delete(key),
                act::note(&self.by, self.now, "resume", subject, detail),
            ];
            if let Some(pause) = pause {
                let ended = keys::ended_pause(key, self.now);
                then.push(Op::put(ended, values::encode(&pause.ended(self.now))));
            }
            let compare = [as_seen].into_iter().chain(last.iter().map(Owed::as_seen));
            then.extend(last.iter().map(|owed| owed.ask(self)));
            let reply = act_on(self.store, self.now, Txn::when(compare).then(then)).await?;
            // Else it was made longer or ended meanwhile, or a job was changed.
            if reply.succeeded {
                return Ok((reply, owed));
            }
        }
    }

    /// Asks for all but the last of what is owed, while the pause goes on: requests wait for its end, so what is
    /// interrupted here runs when the pause ends, and asking again asks for nothing twice. None: something is not as it
    /// was seen.
    async fn ask_for_most<'o>(
        &self,
        as_seen: &Compare,
        owed: &'o [Owed],
    ) -> Result<Option<&'o [Owed]>, Failure> {
        let mut left = owed;
        while left.len() > JOBS_AT_ONCE {
            let (some, rest) = left.split_at(JOBS_AT_ONCE);
            let compare = [as_seen.clone()].into_iter().chain(some.iter().map(Owed::as_seen));
            let txn = Txn::when(compare).then(some.iter().map(|owed| owed.ask(self)));
            if !act_on(self.store, self.now, txn).await?.succeeded {
                return Ok(None);
            }
            left = rest;
        }
        Ok(Some(left))
    }

    /// What the jobs in scope that nothing else holds back have to make good for.
    async fn owed(&self, there: &Entry, pause: &HoldBack, scope: &Scope) -> Result<Vec<Owed>, Failure> {
        let until = pause.until.map_or(self.now, |until| until.min(self.now));
        let by_name = HeldBack::read(self.store, keys::pauses()).await?;
        let mut passed = Vec::new();
        let definitions = Pages::new(self.store, scope.definitions());
        definitions
            .each(|entry| match Definition::decode(&entry.key, &entry.value) {
                Ok(found) => {
                    let is_held = scope.is_all() && by_name.has(&keys::paused(&found.job.name));
                    if let Some(at) = passed_in(&found, pause.at, until).filter(|_| !is_held) {
                        passed.push((found.job.name, found.job.run_on, entry.mod_revision, at));
                    }
                }
                Err(error) => say_unreadable(&error),
            })
            .await?;
        let mut owed = Vec::with_capacity(passed.len());
        for some in passed.chunks(JOBS_AT_ONCE) {
            let fires = some.iter().map(|(job, _, _, at)| Fire::new(job.clone(), FireId::scheduled(*at)));
            let decided = decided(self.store, &fires.collect::<Vec<_>>()).await?;
            for ((job, run_on, definition, at), decided) in some.iter().zip(decided) {
                // By a clock that differs from the one that made the pause, or just before it was there.
                if !decided {
                    let id = request_id(there, job.as_str(), *at);
                    let fire = Fire::new(job.clone(), FireId::Manual(id));
                    owed.push(Owed { fire, run_on: *run_on, definition: *definition });
                }
            }
        }
        Ok(owed)
    }
}

/// The newest instant that came due from `begin` to before `end`, by the schedule in force.
fn passed_in(definition: &Definition, begin: Timestamp, end: Timestamp) -> Option<Timestamp> {
    const LEAST: TimeDelta = TimeDelta::nanoseconds(1);
    let after = (begin - LEAST).max(definition.since);
    let job = &definition.job;
    job.enabled.then(|| planner::newest_between(&job.schedule, after, end - LEAST)).flatten()
}

/// Which of these fires are dealt with, or were decided in another way than by a pause.
async fn decided(store: &Store, fires: &[Fire]) -> Result<Vec<bool>, StoreError> {
    let reads = fires.iter().flat_map(|fire| [Op::get(keys::lock(fire)), Op::get(keys::record(fire))]);
    let reply = store.txn(Txn::new().then(reads)).await?;
    let is_decided = |(index, fire): (usize, &Fire)| {
        let record = reply.got(2 * index + 1).first();
        let record = record.map(|entry| values::decode_record(fire.clone(), &entry.key, &entry.value));
        let passed = record.is_none_or(|record| record.is_ok_and(|record| record.outcome == Outcome::Missed));
        !reply.got(2 * index).is_empty() || !passed
    };
    Ok(fires.iter().enumerate().map(is_decided).collect())
}

/// The id of the request that makes good for an instant: of that time, and always the same for one pause.
fn request_id(pause: &Entry, job: &str, at: Timestamp) -> Ulid {
    let digest = Sha256::digest(format!("{} {} {job}", pause.key, pause.mod_revision));
    let random = digest.iter().take(10).fold(0, |sum, byte| (sum << 8) | u128::from(*byte));
    Ulid::from_parts(u64::try_from(at.timestamp_millis()).unwrap_or_default(), random)
}

fn due_and_fire(fire: &Fire) -> String {
    format!("{} ({})", time::utc_seconds(fire.scheduled_at()), fire.id)
}

fn count(jobs: usize) -> String {
    format!("{jobs} job{}", if jobs == 1 { "" } else { "s" })
}

/// A request is for one run.
fn say_where_it_runs(owed: &[Owed]) {
    let every = owed.iter().filter(|owed| owed.run_on == RunOn::EveryNode);
    let names: Vec<_> = every.map(|owed| owed.fire.job.as_str()).collect();
    if !names.is_empty() {
        say(format_args!("what makes good runs once, on one node, also for {}", names.join(", ")));
    }
}

/// Position of the pauses, with the one that is ended, in the reply of [`Resuming::end`].
const GOT_PAUSES: usize = 0;
