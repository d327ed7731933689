//! `fleetcron logs`: what a run wrote.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use super::Door;
use super::failure::{Failure, say};
use super::out::{Out, harmless};
use super::read::{self, lock_of};
use super::runs::{Entry, Filter, History, With, newest};
use crate::config::StateFolder;
use crate::fire::Fire;
use crate::guard::{FolderName, RunFolder};
use crate::node::NodeName;
use crate::output::{self, Kept};
use crate::record::TAIL;
use crate::run::kept_output;
use crate::store::{Store, keys, values};

/// Show what a run wrote
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without a fire it is the newest run of the job: the one under way, or the last one that has its record. A fire is \
named as `fleetcron runs` shows it: backup/20261130T020000Z, or backup/@db-1/20261130T020000Z for one node's lane. A task \
is named by its id: t-01ARZ3NDEKTSV4RRFFQ69G5FAV.

Output lies on the node that ran the command. On that node all that was kept is shown; elsewhere the record's tail of a \
run that did not succeed, with the name of the node that has the rest.

JSON has one object: job, lane, fire, attempt, node, output, complete.

Examples:
  fleetcron logs backup
  fleetcron logs -f backup
  fleetcron logs backup/20261130T020000Z --attempt 1")]
pub struct Args {
    /// A job, or one of its fires
    #[arg(value_name = "JOB[/FIRE]")]
    of: String,
    /// Go on while the run goes on
    #[arg(long, short)]
    follow: bool,
    /// An earlier attempt of the fire [default: the last one]
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// The node's state folder, if it is not at its default place
    #[arg(long, value_name = "DIR", env = "FLEETCRON_STATE", hide_env_values = true)]
    state: Option<PathBuf>,
}

pub async fn logs(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    if args.follow && door.out.is_json() {
        return Err(Failure::usage("--follow writes what the command writes: leave --output json out"));
    }
    let store = door.store().await?;
    let run = Run::find(&store, args).await?;
    let files = Files::of(&door, args, &run)?;
    if run.under_way && args.follow && !files.is_over() {
        follow(&files, &mut door.out).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let (text, complete) = match files.read()? {
        Some(kept) => (kept.bytes(), true),
        None => {
            let tail = run.tail(args)?;
            let complete = run.wrote() == Some(tail.len() as u64);
            (tail, complete)
        }
    };
    match door.out.is_json() {
        true => door.out.json(&run.row(&text, complete))?,
        false => door.out.bytes(&text)?,
    }
    door.out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The run whose output is asked for.
struct Run {
    entry: Entry,
    under_way: bool,
    attempt: u32,
    /// Where the output is.
    node: NodeName,
}

impl Run {
    async fn find(store: &Store, args: &Args) -> Result<Run, Failure> {
        let entry = match read::fire(&args.of)? {
            Some(fire) => one_fire(store, &fire).await?,
            None => newest_run(store, &args.of).await?,
        };
        let (under_way, last) = match &entry {
            Entry::UnderWay(run) => (run.is_running(), run.lock.attempt),
            Entry::Waits(_) => (false, 0),
            Entry::Decided { record, .. } => (false, record.run.as_ref().map_or(0, |run| run.attempt)),
        };
        let attempt = args.attempt.unwrap_or(last);
        if attempt == 0 || attempt > last {
            let fire = entry.fire();
            return Err(Failure::Asked(match last {
                0 => format!("{fire} did not run: {}", why_not(&entry)),
                last => format!("{fire} has no attempt {attempt}; its last one is {last}"),
            }));
        }
        let node = entry.node().expect("what has an attempt has its node").clone();
        Ok(Run { under_way: under_way && attempt == last, entry, attempt, node })
    }

    /// What the record has, where the output itself is not here; says where that is.
    fn tail(&self, args: &Args) -> Result<Vec<u8>, Failure> {
        let (fire, node) = (self.entry.fire(), &self.node);
        let Entry::Decided { record, .. } = &self.entry else {
            return Err(Failure::Asked(match self.under_way {
                true => format!(
                    "{fire} runs on node {node}; its output is there: run `fleetcron logs {}` on it",
                    args.of
                ),
                false => format!("{fire} waits for its next attempt; its output is on node {node}"),
            }));
        };
        if self.wrote() == Some(0) {
            say(format_args!("{fire} wrote nothing"));
            return Ok(Vec::new());
        }
        let Some(tail) = record.tail.as_ref().filter(|_| self.wrote().is_some()) else {
            return Err(Failure::Asked(format!(
                "the output of {fire}, attempt {}, is on node {node}, if it is still kept: run `fleetcron logs` there",
                self.attempt
            )));
        };
        if self.wrote().is_some_and(|bytes| bytes > tail.len() as u64) {
            say(format_args!(
                "this is the end of the output (at most {TAIL} bytes), from the record; all that is kept of it is on node {node}"
            ));
        }
        Ok(tail.clone().into_bytes())
    }

    /// How many bytes the record says that this attempt wrote; it knows only of the last one.
    fn wrote(&self) -> Option<u64> {
        match &self.entry {
            Entry::Decided { record, .. } => {
                record.run.as_ref().filter(|run| run.attempt == self.attempt).map(|run| run.output_bytes)
            }
            Entry::UnderWay(_) | Entry::Waits(_) => None,
        }
    }

    fn row(&self, text: &[u8], complete: bool) -> impl Serialize {
        #[derive(Serialize)]
        struct Row {
            job: String,
            lane: String,
            fire: String,
            attempt: u32,
            node: String,
            output: String,
            /// Whether this is all that was kept.
            complete: bool,
        }
        let fire = self.entry.fire();
        Row {
            job: fire.job.to_string(),
            lane: fire.lane.to_string(),
            fire: fire.id.to_string(),
            attempt: self.attempt,
            node: self.node.to_string(),
            output: String::from_utf8_lossy(text).into_owned(),
            complete,
        }
    }
}

fn why_not(entry: &Entry) -> String {
    match entry {
        Entry::Decided { record, .. } => match &record.reason {
            Some(reason) => format!("{} ({})", record.outcome, harmless(reason)),
            None => record.outcome.to_string(),
        },
        Entry::UnderWay(_) => "it is not begun".to_owned(),
        Entry::Waits(wait) => wait.reason(),
    }
}

async fn one_fire(store: &Store, fire: &Fire) -> Result<Entry, Failure> {
    let record_key = keys::record(fire);
    if let Some(run) = store.get(&keys::lock(fire)).await?.as_ref().and_then(lock_of) {
        return Ok(Entry::UnderWay(run));
    }
    match store.get(&record_key).await? {
        Some(found) => {
            let record = values::decode_record(fire.clone(), &found.key, &found.value)?;
            Ok(Entry::Decided { record, late: false })
        }
        None => Err(Failure::Asked(format!(
            "nothing is known of {fire}; `fleetcron runs {}` lists what is",
            fire.job
        ))),
    }
}

async fn newest_run(store: &Store, job: &str) -> Result<Entry, Failure> {
    let history = History::of(store, Some(job)).await?;
    let filter = Filter { since: None, until: None, outcomes: Vec::new(), node: None, with: With::Run };
    let found = newest(store, &history, &filter, 1).await?;
    found.entries.into_iter().next().ok_or_else(|| Failure::Asked(format!("{job} has not run yet")))
}

/// Where the output may be on this machine.
struct Files {
    /// Of the run, which are there until it has its record.
    run: RunFolder,
    /// While the command runs, once it has written something.
    running: PathBuf,
    /// Afterwards.
    kept: PathBuf,
}

impl Files {
    fn of(door: &Door, args: &Args, run: &Run) -> Result<Files, Failure> {
        let state = StateFolder::at(door.settings.state(args.state.as_deref(), &run.node)?);
        let name = FolderName { fire: run.entry.fire().clone(), attempt: run.attempt };
        let folder = RunFolder::at(state.runs().join(name.to_string()));
        Ok(Files {
            running: folder.output(),
            run: folder,
            kept: kept_output(&state.outputs(), run.entry.fire(), run.attempt),
        })
    }

    /// The file that is there now.
    fn current(&self) -> Option<&Path> {
        // In this order: it moves from the one to the other while we look.
        [&self.running, &self.kept, &self.running]
            .into_iter()
            .find(|path| path.exists())
            .map(PathBuf::as_path)
    }

    fn read(&self) -> Result<Option<Kept>, Failure> {
        for _ in 0..3 {
            // A command that runs here and has written nothing yet.
            let Some(path) = self.current() else { return Ok((!self.is_over()).then(Kept::default)) };
            match output::read(path) {
                Ok(kept) => return Ok(Some(kept)),
                // It has just moved.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(Failure::Asked(format!("{} cannot be read: {error}", path.display())));
                }
            }
        }
        Ok(None)
    }

    fn is_over(&self) -> bool {
        !self.run.is_there()
    }
}

/// Writes what comes until the run is over and its output has been put away.
async fn follow(files: &Files, out: &mut Out) -> Result<(), Failure> {
    /// Often enough for eyes.
    const LOOK_EVERY: Duration = Duration::from_millis(200);
    let mut seen = 0;
    loop {
        // Before reading: what is written until then is read then.
        let over = files.is_over();
        if let Some(kept) = files.read()? {
            out.bytes(&kept.bytes_from(seen))?;
            out.flush()?;
            seen = seen.max(kept.length());
        }
        if over {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
