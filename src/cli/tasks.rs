//! `fleetcron tasks`: what waits in the queue, what runs of it, and how the last ones ended.

use std::process::ExitCode;

use serde::Serialize;

use super::failure::Failure;
use super::out::{GiveUp, Table, or_dash};
use super::{Door, read, time};
use crate::fire::{Fire, FireId};
use crate::job::{Command, JobName, MutexName};
use crate::record::{Outcome, Record};
use crate::schedule::Timestamp;
use crate::store::values::{self, Lock, LockState, TaskForm};
use crate::store::{KeyRange, Order, PageSpec, Store, keys};
use crate::task::Task;

/// List tasks: those that wait, in their order, those that run, and the last ones that ended
#[derive(Debug, clap::Args)]
#[command(after_help = "\
States: pending (in the queue, or between two attempts), running, succeeded, failed, cancelled, lost. `dead` are those that \
ended without success and were not cancelled: `fleetcron submit --again ID` puts one in once more.

JSON has one object a line: task, state, dead, priority, due, queue, job, command, by, key, node, attempt, reason, exit_code, \
started_at, ended_at.

Examples:
  fleetcron tasks
  fleetcron tasks --state dead
  fleetcron tasks --queue mail --state pending --limit 0")]
pub struct Args {
    /// Only those in this state; may be said several times
    #[arg(long, value_name = "STATE")]
    state: Vec<State>,
    /// Only those of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<MutexName>,
    /// How many of each kind, at most; 0: all
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum State {
    Pending,
    Running,
    Succeeded,
    Failed,
    Cancelled,
    Lost,
    /// All that ended without success and were not cancelled
    Dead,
}

impl State {
    fn of(outcome: Outcome) -> State {
        match outcome {
            Outcome::Succeeded => State::Succeeded,
            Outcome::Cancelled => State::Cancelled,
            Outcome::Lost => State::Lost,
            Outcome::Failed | Outcome::TimedOut | Outcome::Missed | Outcome::Skipped | Outcome::Refused => {
                State::Failed
            }
        }
    }

    fn word(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Running => "running",
            State::Succeeded => "succeeded",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
            State::Lost => "lost",
            State::Dead => "dead",
        }
    }
}

/// One task, as it is listed.
#[derive(Serialize)]
struct Row {
    task: String,
    state: &'static str,
    /// It ended without success, and there is no other attempt.
    dead: bool,
    priority: Option<u8>,
    due: Option<String>,
    queue: Option<String>,
    job: Option<String>,
    command: Option<String>,
    by: Option<String>,
    key: Option<String>,
    node: Option<String>,
    attempt: Option<u32>,
    reason: Option<String>,
    exit_code: Option<i32>,
    started_at: Option<String>,
    ended_at: Option<String>,
    #[serde(skip)]
    queued_in: Option<MutexName>,
}

const COLUMNS: [&str; 9] = ["TASK", "STATE", "PRIO", "DUE", "QUEUE", "NODE", "ATTEMPT", "COMMAND", "REASON"];
const GIVE_UP: [GiveUp; 7] = [
    GiveUp::OneLine("REASON"),
    GiveUp::OneLine("COMMAND"),
    GiveUp::All("QUEUE"),
    GiveUp::All("ATTEMPT"),
    GiveUp::All("PRIO"),
    GiveUp::All("DUE"),
    GiveUp::All("COMMAND"),
];

pub async fn tasks(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let store = door.store().await?;
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    let wants = |state: State| {
        let is_dead = matches!(state, State::Failed | State::Lost);
        args.state.is_empty() || args.state.contains(&state) || (is_dead && args.state.contains(&State::Dead))
    };
    let is_of_queue = |row: &Row| args.queue.is_none() || row.queued_in == args.queue;
    let mut rows = Vec::new();
    if wants(State::Running) || wants(State::Pending) {
        let begun = begun(&store).await?;
        rows.extend(
            begun.into_iter().filter(|(state, row)| wants(*state) && is_of_queue(row)).map(|(_, row)| row),
        );
    }
    if wants(State::Pending) {
        let mut waiting = waiting(&store, limit, is_of_queue).await?;
        rows.append(&mut waiting);
    }
    let mut ended = ended(&store, limit, |state, row| wants(state) && is_of_queue(row)).await?;
    rows.append(&mut ended);
    if door.out.is_json() {
        for row in &rows {
            door.out.json(row)?;
        }
        door.out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&COLUMNS, &GIVE_UP);
    for row in rows {
        let cells = vec![
            row.task,
            row.state.to_owned(),
            or_dash(row.priority),
            or_dash(row.due),
            or_dash(row.queue),
            or_dash(row.node),
            or_dash(row.attempt),
            or_dash(row.command),
            or_dash(row.reason),
        ];
        table.row(&mut door.out, cells)?;
    }
    table.end(&mut door.out)?;
    Ok(ExitCode::SUCCESS)
}

/// The tasks that have a lock.
async fn begun(store: &Store) -> Result<Vec<(State, Row)>, Failure> {
    let mut rows = Vec::new();
    let locks = read::Pages::new(store, [keys::locks_of(&JobName::of_tasks())]);
    locks
        .each(|entry| {
            let Some(fire) = keys::fire_of(&entry.key) else { return };
            let Ok(lock) = values::decode::<Lock>(&entry.key, &entry.value) else { return };
            let state = match lock.state {
                LockState::Held => State::Running,
                LockState::Waiting => State::Pending,
            };
            let task = lock.task(&fire);
            let mut row = row(&fire, state, task.as_ref());
            row.node = Some(lock.node.to_string());
            row.attempt = Some(lock.attempt);
            if state == State::Pending {
                row.due = lock.due.map(time::utc);
                row.reason = lock.past().last().map(|past| {
                    let why = past.reason.clone().unwrap_or_else(|| past.outcome.to_string());
                    format!("attempt {}: {why}", past.attempt)
                });
            }
            rows.push((state, row));
        })
        .await?;
    Ok(rows)
}

/// The tasks in the queue, in the order in which they are taken.
async fn waiting(store: &Store, limit: usize, keep: impl Fn(&Row) -> bool) -> Result<Vec<Row>, Failure> {
    let mut all: Vec<(u8, Timestamp, Row)> = Vec::new();
    for part in keys::queue_parts() {
        let mut from_here = 0;
        let mut pages = read::Pages::new(store, [part]);
        'part: while let Some(entries) = pages.next().await? {
            for entry in entries {
                let Ok(task) = TaskForm::decode(&entry.key, &entry.value) else { continue };
                let row = row(&task.fire(), State::Pending, Some(&task));
                if !keep(&row) {
                    continue;
                }
                all.push((task.priority().get(), task.due, row));
                from_here += 1;
                if from_here >= limit {
                    break 'part;
                }
            }
        }
    }
    all.sort_by(|one, other| {
        other.0.cmp(&one.0).then(one.1.cmp(&other.1)).then_with(|| one.2.task.cmp(&other.2.task))
    });
    all.truncate(limit);
    Ok(all.into_iter().map(|(_, _, row)| row).collect())
}

/// The last tasks that have ended, the newest first.
async fn ended(store: &Store, limit: usize, keep: impl Fn(State, &Row) -> bool) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let range = KeyRange::prefix("history/~task/");
    let mut spec = PageSpec { order: Order::Descending, ..PageSpec::default() };
    loop {
        let page = store.page(range.clone(), spec.clone()).await?;
        spec.after = page.entries.last().map(|entry| entry.key.clone());
        for entry in page.entries {
            let Some(fire) = keys::fire_of(&entry.key) else { continue };
            let Ok(record) = values::decode_record(fire, &entry.key, &entry.value) else { continue };
            let state = State::of(record.outcome);
            let row = row_of_record(state, &record);
            if keep(state, &row) {
                rows.push(row);
            }
            if rows.len() >= limit {
                return Ok(rows);
            }
        }
        if !page.more {
            return Ok(rows);
        }
    }
}

fn row_of_record(state: State, record: &Record) -> Row {
    let mut row = row(&record.fire, state, record.task.as_deref());
    row.reason = record.reason.clone();
    if let Some(run) = &record.run {
        row.node = Some(run.node.to_string());
        row.attempt = Some(run.attempt);
        row.exit_code = run.exit_code;
        row.started_at = run.started_at.map(time::utc);
        row.ended_at = run.ended_at.map(time::utc);
    }
    row
}

fn row(fire: &Fire, state: State, task: Option<&Task>) -> Row {
    debug_assert!(matches!(fire.id, FireId::Task(_)));
    Row {
        task: fire.id.to_string(),
        state: state.word(),
        dead: matches!(state, State::Failed | State::Lost),
        priority: task.map(|task| task.priority().get()),
        due: task.map(|task| time::utc(task.due)),
        queue: task.and_then(|task| task.queue.as_ref()).map(MutexName::to_string),
        job: task.and_then(|task| task.of.as_ref()).map(JobName::to_string),
        command: task.map(|task| match &task.job.command {
            Command::Shell(text) => text.clone(),
            Command::Argv(words) => words.join(" "),
        }),
        by: task.map(|task| task.by.clone()),
        key: task.and_then(|task| task.key.clone()),
        node: None,
        attempt: None,
        reason: None,
        exit_code: None,
        started_at: None,
        ended_at: None,
        queued_in: task.and_then(|task| task.queue.clone()),
    }
}
