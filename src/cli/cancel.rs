//! `fleetcron cancel`: a fire or a task is stopped, or taken back before it began.

use std::process::ExitCode;

use serde::Serialize;

use super::failure::{Failure, say};
use super::{Door, act_on, read, start};
use crate::act::{self, who};
use crate::fire::Fire;
use crate::queue;
use crate::store::values::{self, CancelRequest};
use crate::store::{Compare, Op, Store, Txn, keys};
use crate::task::Task;

/// Stop a run, or take back what was asked for and has not begun
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What runs gets TERM, all of it, and after its kill_after KILL; what waits for its next attempt gets none; a request or a \
task that nobody has begun is taken back. The record says cancelled, and who asked. What has ended stays as it ended: \
that is said, and the exit code is 1.

A fire is named as `fleetcron runs` shows it, a task by its id. With --wait the record is printed when it has ended.

JSON has one object: job, fire, state (cancelling, cancelled, ended).

Examples:
  fleetcron cancel backup/20261130T020000Z
  fleetcron cancel t-01ARZ3NDEKTSV4RRFFQ69G5FAV --wait")]
pub struct Args {
    /// A fire, or a task
    #[arg(value_name = "JOB/FIRE|TASK")]
    of: String,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Wait until it has ended
    #[arg(long)]
    wait: bool,
}

pub async fn cancel(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let Some(fire) = read::fire(&args.of)? else {
        let hint = "`fleetcron jobs` shows what of it runs, `fleetcron pause` keeps it from starting";
        return Err(Failure::usage(format!("{} is a job; name one of its fires, JOB/FIRE: {hint}", args.of)));
    };
    let store = door.store().await?;
    let now = door.now();
    let by = who();
    let reason = match &args.reason {
        Some(why) => format!("cancelled by {by}: {why}"),
        None => format!("cancelled by {by}"),
    };
    let request = CancelRequest::new(by, now, reason);
    let state = loop {
        match ask(&store, &fire, &request, args).await? {
            Asked::Done(state) => break state,
            // It began, or ended, in this very moment.
            Asked::Moved => {}
        }
    };
    match state {
        State::Cancelling if args.wait => {
            // How it ended is what is printed; that it was stopped is no failure of this command.
            start::wait_and_tell(&mut door, &store, &fire).await?;
            return Ok(ExitCode::SUCCESS);
        }
        State::Ended(ref how) => say(format_args!("{fire} has ended already: {how}")),
        State::Cancelling => say(format_args!("{fire} is asked to stop")),
        State::Cancelled => say(format_args!("{fire} is cancelled; it had not begun")),
    }
    if door.out.is_json() {
        #[derive(Serialize)]
        struct Row {
            job: String,
            fire: String,
            state: &'static str,
        }
        let row = Row { job: fire.job.to_string(), fire: fire.id.to_string(), state: state.word() };
        door.out.json(&row)?;
        door.out.flush()?;
    }
    Ok(match state {
        State::Ended(_) => ExitCode::from(1),
        State::Cancelling | State::Cancelled => ExitCode::SUCCESS,
    })
}

enum State {
    Cancelling,
    Cancelled,
    Ended(String),
}

impl State {
    fn word(&self) -> &'static str {
        match self {
            State::Cancelling => "cancelling",
            State::Cancelled => "cancelled",
            State::Ended(_) => "ended",
        }
    }
}

enum Asked {
    Done(State),
    /// What was seen is no longer so.
    Moved,
}

/// Looks where the fire is, and has it stopped or takes it out there.
async fn ask(store: &Store, fire: &Fire, request: &CancelRequest, args: &Args) -> Result<Asked, Failure> {
    let look = [keys::lock(fire), keys::record(fire), keys::request(fire)];
    let reply = store.txn(Txn::new().then(look.into_iter().map(Op::get))).await?;
    let note = || act::note(&request.by, request.at, "cancel", fire, args.reason.clone());
    if !reply.got(0).is_empty() {
        let key = keys::cancel_request(fire);
        // Safe when several ask: the first counts. And none is left behind: it is there only with the lock.
        let txn = Txn::when([Compare::present(keys::lock(fire))]).then([Txn::when([Compare::absent(
            key.as_str(),
        )])
        .then([Op::put(key.as_str(), values::encode(request)), note()])
        .into()]);
        let asked = act_on(store, request.at, txn).await?;
        return Ok(if asked.succeeded { Asked::Done(State::Cancelling) } else { Asked::Moved });
    }
    if let Some(entry) = reply.got(1).first() {
        let record = values::decode_record(fire.clone(), &entry.key, &entry.value)?;
        let reason = record.reason.map_or(String::new(), |reason| format!(" ({reason})"));
        return Ok(Asked::Done(State::Ended(format!("{}{reason}", record.outcome))));
    }
    let unbegun: Option<(Option<Task>, String)> = match reply.got(2).first() {
        Some(entry) => Some((None, entry.key.clone())),
        None => queue::find(store, fire).await?.map(|(task, key)| (Some(task), key)),
    };
    let Some((task, key)) = unbegun else {
        let more = match fire.job.is_of_tasks() {
            true => "`fleetcron tasks` lists what is".to_owned(),
            false => format!(
                "`fleetcron runs {}` lists what is; what is to come is held back with pause",
                fire.job
            ),
        };
        return Err(Failure::Asked(format!("nothing is known of {fire}: {more}")));
    };
    let txn = queue::cancel_unbegun(fire, task, &key, &request.by, request.at, note());
    let taken = act_on(store, request.at, txn).await?;
    Ok(if taken.succeeded { Asked::Done(State::Cancelled) } else { Asked::Moved })
}
