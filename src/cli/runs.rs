//! `fleetcron runs`: what ran, and what became of it.

mod history;
mod row;

use std::process::ExitCode;

pub use self::history::{Entry, Filter, History, With, newest, recorded};
pub use self::row::{Row, table};

use super::Door;
use super::failure::Failure;
use super::read;
use super::time::{self, Toward};
use crate::node::NodeName;
use crate::record::Outcome;
use crate::schedule::Zone;

/// List runs, the newest first, also those of jobs that are gone
#[derive(Debug, clap::Args)]
#[command(after_help = "\
One line for each fire that is being dealt with or has its record, newest first by the instant it was due. \
All times are UTC. OUTCOME is one of
  running    it runs now
  waiting    between two attempts
  succeeded  its exit code counts as success
  failed     any other exit code, a signal, or no start at all
  timed-out  it was stopped at its timeout
  cancelled  it was stopped on request
  lost       its node was lost
  skipped    another run of the job was not over
  missed     nobody could run it in time
  refused    the node's own policy forbids it
A line FIRST..LAST (COUNT) stands for as many fires, of which none ran, for one reason. A fire of a job that runs on \
every node stands as @NODE/FIRE: each node has its own. A mark (late) is a true result that came after the fire had been decided otherwise.

A time is RFC 3339 (2026-11-30T02:00:00Z), a date, a time of day (06:00), or how long ago (8h); dates and times \
of day are UTC. Of a job that had another name before (`was`), the history under both names is shown.

JSON has one object a line: job, lane, fire, scheduled_at, outcome, reason, node, attempt, started_at, ended_at, \
exit_code, signal (a name such as KILL), fencing_token, late, last (the instant of \
a span's last fire), count, next_attempt_at, set_off, past (the attempts before: attempt, node, outcome, reason, exit_code, signal, \
started_at, ended_at), claimed_at, output_bytes, output_left_out (bytes that \
`keep.output` had no room for), cpu_seconds, peak_memory_bytes. Instants are RFC 3339 in UTC; what is not known is null.

CPU is the processor time of the command with all that ended before or with it; MEMORY the most that one of its \
processes had at once; OUTPUT what it wrote, kept or not.

Examples:
  fleetcron runs
  fleetcron runs backup --since 7days --outcome failed --limit 100
  fleetcron runs --node db-1 --output json")]
pub struct Args {
    /// Only this job
    #[arg(value_name = "JOB")]
    job: Option<String>,
    /// Only fires due at or after this time
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only fires due before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only fires with this outcome; may be repeated
    #[arg(long, value_name = "OUTCOME", value_parser = outcome)]
    outcome: Vec<String>,
    /// Only runs on this node
    #[arg(long, value_name = "NODE")]
    node: Option<NodeName>,
    /// How many lines at most
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: usize,
}

/// Outcomes, and the two words for what has none yet.
fn outcome(text: &str) -> Result<String, String> {
    match text {
        row::RUNNING | row::WAITING => Ok(text.to_owned()),
        text => match text.parse::<Outcome>() {
            Ok(outcome) => Ok(outcome.to_string()),
            Err(error) => Err(error.replacen("one of ", "one of running, waiting, ", 1)),
        },
    }
}

pub async fn runs(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let now = door.now();
    let instant = |text: &Option<String>, flag: &str| {
        let read = text.as_deref().map(|text| time::instant(text, now, &Zone::utc(), Toward::Past));
        read.transpose().map_err(|error| Failure::Usage(format!("{flag}: {error}")))
    };
    let filter = Filter {
        since: instant(&args.since, "--since")?,
        until: instant(&args.until, "--until")?,
        outcomes: args.outcome.clone(),
        node: args.node.clone(),
        with: With::Anything,
    };
    let store = door.store().await?;
    let history = History::of(&store, args.job.as_deref()).await?;
    let found = newest(&store, &history, &filter, args.limit).await?;
    let out = &mut door.out;
    let mut table = table();
    for entry in &found.entries {
        let row = Row::of(entry);
        match out.is_json() {
            true => out.json(&row)?,
            false => table.row(out, row.cells())?,
        }
    }
    table.end(out)?;
    read::ended_with(found.unreadable)?;
    Ok(ExitCode::SUCCESS)
}
