//! `fleetcron pause`: jobs are held back, until `fleetcron resume` or a time that was set.

use std::process::ExitCode;

use super::failure::{Failure, say};
use super::read::{self, Scope};
use super::time::{self, FORMS, Toward};
use super::{Door, act_on};
use crate::act::{self, who};
use crate::schedule::{Timestamp, Zone};
use crate::store::values::{self, HoldBack};
use crate::store::{Compare, Op, Txn, keys};

/// Hold jobs back: their fires pass without a run until they are resumed
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What runs goes on. From the moment the command has ended well no node claims a fire of the job any more. Fires that \
pass meanwhile are made up for only by `resume --catch-up`. A job that is started by hand waits until the pause is over.

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

/// How an act on all jobs is written down.
pub const ALL: &str = "--all";

/// So many jobs go into one transaction: a key and an act for each.
pub const JOBS_AT_ONCE: usize = 50;

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
