//! `fleetcron start`: a job is asked for by hand.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep_until, timeout};
use ulid::Ulid;

use super::Door;
use super::failure::{Failure, say};
use super::read;
use super::runs::{self, Entry};
use crate::act::{self, who};
use crate::fire::{Fire, FireId};
use crate::queue;
use crate::record::{Outcome, Record};
use crate::store::values::{self, Request};
use crate::store::{Compare, Event, Op, PageSpec, Seen, Store, StoreError, Txn, keys};

/// Start a job now, once, on one of the nodes that may run it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A request is put into the store and used up by the node that claims it, so one request starts the job once. It obeys \
the job's overlap rule and leaves its schedule alone. The fire's id is printed; `fleetcron logs JOB/FIRE` shows the \
output.

With --wait the record is printed instead, and the exit code is the command's, or 128 + N if signal N ended it. 1: it \
exited with 0 and yet was no success, such as a command that ended well after its timeout. 125: it did not run, or it \
could not be found out how it ended.

With --id the same request can be sent again safely: it starts nothing that it has started before.

JSON has one object: job, fire; with --wait the fields of `fleetcron runs`.

Examples:
  fleetcron start backup
  fleetcron start backup --wait || echo 'it failed'
  fleetcron start backup --id 01ARZ3NDEKTSV4RRFFQ69G5FAV")]
pub struct Args {
    /// The job
    #[arg(value_name = "JOB")]
    job: String,
    /// Wait for the end of the run, and exit as its command did
    #[arg(long)]
    wait: bool,
    /// Run beside a run of the job that is under way, whatever its overlap rule says
    #[arg(long)]
    force: bool,
    /// The request's own id, a ULID [default: a new one]
    #[arg(long, value_name = "ULID", value_parser = request_id)]
    id: Option<Ulid>,
}

fn request_id(text: &str) -> Result<Ulid, String> {
    text.strip_prefix("m-")
        .unwrap_or(text)
        .parse()
        .map_err(|_| "it is not a ULID, 26 letters and digits".to_owned())
}

/// The exit code for "it could not be found out".
const NOT_FOUND_OUT: u8 = 125;

pub async fn start(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let job = read::job_name(&args.job)?;
    let store = door.store().await?;
    let id = args.id.unwrap_or_else(|| Ulid::from_datetime(door.now().into()));
    let fire = Fire::new(job, FireId::Manual(id));
    let asked = Request::new(who(), door.now()).forced(args.force);
    request(&store, &fire, &asked).await?;
    warn_if_nobody_is_there(&store).await?;
    if !args.wait {
        say_started(&mut door, &fire)?;
        return Ok(ExitCode::SUCCESS);
    }
    wait_and_tell(&mut door, &store, &fire).await
}

/// Waits for the end of a fire, prints its record, and exits as its command did.
pub(super) async fn wait_and_tell(door: &mut Door, store: &Store, fire: &Fire) -> Result<ExitCode, Failure> {
    match wait(store, fire).await {
        Ok(record) => {
            let code = exit_code(&record);
            print(door, record)?;
            Ok(ExitCode::from(code))
        }
        Err(why) => {
            say(format_args!("how {fire} ended could not be found out: {why}"));
            Err(Failure::Said(NOT_FOUND_OUT))
        }
    }
}

/// Puts the request, unless it was put before.
async fn request(store: &Store, fire: &Fire, request: &Request) -> Result<(), Failure> {
    /// With the store's own deadline this is about ten seconds.
    const TRIES: u32 = 3;
    let key = keys::request(fire);
    // Safe to repeat: what a claim has used up has left a lock, or a record.
    let known = [key.clone(), keys::lock(fire), keys::record(fire)];
    let absent = known.iter().map(|key| Compare::absent(key.as_str()));
    let txn = Txn::when([Compare::present(keys::job(&fire.job))].into_iter().chain(absent))
        .then([
            Op::put(key, values::encode(request)),
            act::note(&request.by, request.at, "start", fire, request.force.then(|| "--force".to_owned())),
        ])
        .otherwise([Op::get(keys::job(&fire.job))]);
    let mut tries = 0;
    loop {
        tries += 1;
        match store.txn(txn.clone()).await {
            Ok(reply) if reply.succeeded => {
                act::prune(store, request.at).await;
                return Ok(());
            }
            Ok(reply) if reply.got(0).is_empty() => return Err(read::no_such_job(store, &fire.job).await?),
            Ok(_) => {
                // Ours, if an answer did not come; else somebody's, who sent the same.
                if tries == 1 {
                    say(format_args!("{fire} was asked for before; nothing is started again"));
                }
                return Ok(());
            }
            // Whether it was done is seen when it is sent again.
            Err(StoreError::NoAnswer { .. }) if tries < TRIES => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(super) async fn warn_if_nobody_is_there(store: &Store) -> Result<(), Failure> {
    let one = PageSpec { limit: Some(1), ..PageSpec::default() };
    if store.page(keys::nodes(), one).await?.entries.is_empty() {
        say("warning: no node is registered, so nothing runs until one is: `fleetcron run` runs one");
    }
    Ok(())
}

fn say_started(door: &mut Door, fire: &Fire) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Row {
        job: String,
        fire: String,
    }
    match door.out.is_json() {
        true => door.out.json(&Row { job: fire.job.to_string(), fire: fire.id.to_string() })?,
        false => door.out.line(fire.id)?,
    }
    door.out.flush()
}

/// Waits for the record of a fire that was asked for.
///
/// Errors: why it will not be known how it ended.
async fn wait(store: &Store, fire: &Fire) -> Result<Record, String> {
    /// A store that is away so long is not waited for.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// Requests and locks are looked at so often: a request that was dropped leaves nothing to wait for.
    const LOOK_EVERY: Duration = Duration::from_secs(5);
    let mut follow = store.follow(keys::record(fire));
    let mut lost: Option<Instant> = None;
    loop {
        let seen = match lost {
            Some(since) => tokio::select! {
                seen = follow.next() => seen,
                () = sleep_until(since + PATIENCE) => return Err("the store is away".to_owned()),
            },
            None => match timeout(LOOK_EVERY, follow.next()).await {
                Ok(seen) => seen,
                Err(_) => {
                    see_that_it_is_still_to_come(store, fire).await?;
                    continue;
                }
            },
        };
        let found = match seen {
            Seen::All { entries, .. } => entries.into_iter().next(),
            Seen::Changes { events, .. } => events.into_iter().rev().find_map(|event| match event {
                Event::Put(entry) => Some(entry),
                Event::Delete { .. } => None,
            }),
            Seen::OutOfTouch { error } => {
                say(format_args!("waiting for the store: {error}"));
                lost = Some(Instant::now());
                continue;
            }
        };
        lost = None;
        if let Some(entry) = found {
            return values::decode_record(fire.clone(), &entry.key, &entry.value)
                .map_err(|error| error.to_string());
        }
    }
}

/// Errors: there is neither request nor lock nor record.
async fn see_that_it_is_still_to_come(store: &Store, fire: &Fire) -> Result<(), String> {
    let keys = [keys::request(fire), keys::lock(fire), keys::record(fire)];
    let any = Txn::new().then(keys.into_iter().map(Op::get));
    match store.txn(any).await {
        Ok(reply) if (0..3).all(|index| reply.got(index).is_empty()) => {
            // A task waits in the queue.
            match queue::find(store, fire).await {
                Ok(None) => Err("the request is gone, and nothing ran for it".to_owned()),
                Ok(Some(_)) | Err(_) => Ok(()),
            }
        }
        // What goes wrong here goes wrong for who follows as well, and is told there.
        _ => Ok(()),
    }
}

fn print(door: &mut Door, record: Record) -> Result<(), Failure> {
    let entry = Entry::Decided { record, late: false };
    let row = runs::Row::of(&entry);
    if door.out.is_json() {
        door.out.json(&row)?;
        return door.out.flush();
    }
    let mut table = runs::table();
    table.row(&mut door.out, row.cells())?;
    table.end(&mut door.out)
}

/// The command's own code where it has one.
fn exit_code(record: &Record) -> u8 {
    let run = record.run.as_ref();
    let signal = run.and_then(|run| run.signal).map(|signal| 128 + signal);
    let code = run.and_then(|run| run.exit_code).or(signal).and_then(|code| u8::try_from(code).ok());
    match code {
        // It ended well, and still it was stopped at its time-out, or its job counts only other codes as success.
        Some(0) if record.outcome != Outcome::Succeeded => 1,
        Some(code) => code,
        None => NOT_FOUND_OUT,
    }
}
