//! `fleetcron jobs`: what is defined, when it runs next, and how it went last.

use std::process::ExitCode;

use serde::Serialize;

use super::failure::{Failure, say};
use super::out::GiveUp::{All, OneLine};
use super::out::{Table, or_dash};
use super::read::{self, HeldBack, MutexWait, Now, Scope};
use super::{Door, time};
use crate::job::{Job, JobName, MutexName};
use crate::node::NodeName;
use crate::schedule::Timestamp;
use crate::store::keys;
use crate::store::values::{Definition, HoldBack, Status};

/// List jobs: when each runs next, and how its last fire ended
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The table shows NEXT by the clock of the job's own zone: the next fire that has not started. STATE is one of
  enabled    its fires run
  disabled   `enabled = false` in its file: it runs only when started by hand
  paused     its fires pass without a run until it is resumed; until when and why, where that was said
  running    it runs now, on the node named; and which attempt, where it is not the first
  waiting    it waits for its next attempt, or for its mutex, and who has that
  stuck      three fires in a row or more were skipped: most often the run before them does not end
LAST is the outcome of the last fire that has a record, and why nothing ran; `fleetcron runs JOB` tells more.

JSON has one object a line: job, schedule (a list when there are several), timezone, next, next_starts_at (later with \
`splay`), last_outcome, last_fire, paused, paused_by, paused_reason, paused_until, running, enabled, running_on, attempt, waiting, \
failures_in_a_row, skips_in_a_row, stuck, last_reason, after, mutex, priority, waits_for (who has its mutex), source, description, owner. Instants are \
RFC 3339 in UTC; next is null when the job is disabled or never runs again.

Examples:
  fleetcron jobs
  fleetcron jobs backup rotate-logs
  fleetcron jobs --output json | jq -r 'select(.last_outcome == \"failed\").job'")]
pub struct Args {
    /// Only these jobs
    #[arg(value_name = "JOB")]
    names: Vec<String>,
}

#[derive(Serialize)]
struct Row<'d> {
    job: &'d str,
    schedule: Texts<'d>,
    timezone: &'d str,
    next: Option<String>,
    next_starts_at: Option<String>,
    last_outcome: Option<&'d str>,
    last_fire: Option<&'d str>,
    paused: bool,
    paused_by: Option<&'d str>,
    paused_reason: Option<&'d str>,
    paused_until: Option<String>,
    running: bool,
    enabled: bool,
    running_on: Vec<&'d str>,
    attempt: Option<u32>,
    waiting: bool,
    failures_in_a_row: u32,
    skips_in_a_row: u64,
    stuck: bool,
    last_reason: Option<&'d str>,
    after: Vec<&'d str>,
    mutex: Option<&'d str>,
    priority: u8,
    /// Who has the mutex that it waits for.
    waits_for: Vec<&'d str>,
    source: &'d str,
    description: Option<&'d str>,
    owner: Option<&'d str>,
}

/// Most jobs have one schedule.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Texts<'d> {
    One(&'d str),
    Many(&'d [String]),
}

impl<'d> Texts<'d> {
    pub fn of(texts: &'d [String]) -> Texts<'d> {
        match texts {
            [one] => Texts::One(one),
            many => Texts::Many(many),
        }
    }
}

pub async fn jobs(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let scope = Scope::of(&args.names)?;
    let store = door.store().await?;
    let statuses = read::statuses(&store, &scope).await?;
    let running = read::running(&store, &scope).await?;
    let waits = read::mutex_waits(&store).await?;
    let paused = HeldBack::read(&store, keys::pauses()).await?;
    let now = door.now();
    let out = &mut door.out;
    let nowhere = Now::default();
    let give_up = &[All("ZONE"), OneLine("LAST"), OneLine("STATE"), OneLine("NEXT"), All("SCHEDULE")];
    let mut table = Table::new(&["JOB", "SCHEDULE", "ZONE", "NEXT", "STATE", "LAST"], give_up);
    let mut none = true;
    let show = |definition: Definition| {
        none = false;
        let name = &definition.job.name;
        let seen = Seen {
            definition: &definition,
            status: statuses.get(name.as_str()),
            paused: paused.pause(name),
            running: running.get(name).unwrap_or(&nowhere),
            wait: waits.iter().find(|wait| wait.fire.job == *name),
            next: next(&definition, now),
        };
        match out.is_json() {
            true => out.json(&seen.row()),
            false => table.row(out, seen.cells()),
        }
    };
    let listed = read::each_definition(&store, &scope, show).await;
    // What was found is shown, also when a name was not.
    if listed.is_ok() || !table.is_empty() {
        table.end(out)?;
    }
    read::ended_with(listed?)?;
    if none {
        say(format_args!("{} has no job yet; `fleetcron sync PATH` brings some", store.describe()));
    }
    Ok(ExitCode::SUCCESS)
}

/// So many skips in a row are more than a run that takes long once.
const STUCK_AFTER: u64 = 3;

/// What is known of one job.
struct Seen<'d> {
    definition: &'d Definition,
    status: Option<&'d Status>,
    /// And why, where that can be read.
    paused: Option<Option<&'d HoldBack>>,
    running: &'d Now,
    wait: Option<&'d MutexWait>,
    next: Option<Timestamp>,
}

impl<'d> Seen<'d> {
    fn row(&self) -> Row<'d> {
        let job = &self.definition.job;
        Row {
            job: job.name.as_str(),
            schedule: Texts::of(job.schedule.texts()),
            timezone: job.schedule.zone().name(),
            next: self.next.map(time::utc),
            next_starts_at: self.next.map(|at| time::utc(time::start(at, job.delay()))),
            last_outcome: self.status.map(|status| status.last_outcome.as_str()),
            last_fire: self.status.map(|status| status.last_fire.as_str()),
            paused: self.paused.is_some(),
            paused_by: self.pause().map(|pause| pause.by.as_str()),
            paused_reason: self.pause().and_then(|pause| pause.reason.as_deref()),
            paused_until: self.pause().and_then(|pause| pause.until).map(time::utc),
            running: !self.running.on.is_empty(),
            enabled: job.enabled,
            running_on: self.running.on.iter().map(NodeName::as_str).collect(),
            attempt: self.running.attempt,
            waiting: self.running.waits,
            failures_in_a_row: self.status.map_or(0, |status| status.failures_in_a_row),
            skips_in_a_row: self.skips(),
            stuck: self.skips() >= STUCK_AFTER,
            last_reason: self.status.and_then(|status| status.last_reason.as_deref()),
            after: job.after.iter().flat_map(|after| &after.jobs).map(JobName::as_str).collect(),
            mutex: job.mutex.as_ref().map(MutexName::as_str),
            priority: job.priority.get(),
            waits_for: self.wait.iter().flat_map(|wait| &wait.held_by).map(String::as_str).collect(),
            source: self.definition.source.as_str(),
            description: job.description.as_deref(),
            owner: job.owner.as_deref(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let job = &self.definition.job;
        vec![
            job.name.to_string(),
            when(job),
            job.schedule.zone().to_string(),
            or_dash(self.next.map(|at| time::due(at, job.delay(), job.schedule.zone()))),
            self.state(),
            or_dash(self.status.map(last)),
        ]
    }

    fn pause(&self) -> Option<&'d HoldBack> {
        self.paused.flatten()
    }

    fn skips(&self) -> u64 {
        self.status.map_or(0, |status| status.skips_in_a_row)
    }

    fn state(&self) -> String {
        let mut words = Vec::new();
        if !self.running.on.is_empty() {
            let nodes: Vec<_> = self.running.on.iter().map(NodeName::as_str).collect();
            let attempt = self.running.attempt.filter(|attempt| *attempt > 1);
            let attempt = attempt.map(|attempt| format!(" (attempt {attempt})")).unwrap_or_default();
            words.push(format!("running on {}{attempt}", nodes.join(", ")));
        }
        if self.running.waits {
            words.push("waiting for its next attempt".to_owned());
        }
        words.extend(self.wait.map(MutexWait::reason));
        if self.skips() >= STUCK_AFTER {
            words.push(format!("stuck ({} skips in a row)", self.skips()));
        }
        if self.paused.is_some() {
            let pause = self.pause();
            let until = pause.and_then(|pause| pause.until);
            let until = until.map(|at| format!(" until {}", time::utc_seconds(at))).unwrap_or_default();
            let reason = pause.and_then(|pause| pause.reason.as_ref());
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            words.push(format!("paused{until}{reason}"));
        }
        if !self.definition.job.enabled {
            words.push("disabled".to_owned());
        }
        if words.is_empty() {
            words.push("enabled".to_owned());
        }
        words.join(", ")
    }
}

/// What sets a job off, in a few words.
pub fn when(job: &Job) -> String {
    let texts = job.schedule.texts().iter().cloned();
    let after = job.after.as_ref().map(|after| {
        let jobs: Vec<_> = after.jobs.iter().map(JobName::as_str).collect();
        format!("after {}", jobs.join(if after.all { " and " } else { " or " }))
    });
    texts.chain(after).collect::<Vec<_>>().join(", ")
}

fn last(status: &Status) -> String {
    let at = time::utc_seconds(status.last_at);
    let has_run = !["skipped", "missed", "refused"].contains(&status.last_outcome.as_str());
    match status.failures_in_a_row {
        _ if !has_run => {
            let reason = status.last_reason.as_ref().map(|reason| format!(" ({reason})"));
            format!("{} {at}{}", status.last_outcome, reason.unwrap_or_default())
        }
        0 | 1 => format!("{} {at}", status.last_outcome),
        many => format!("{} {at} ({many} in a row)", status.last_outcome),
    }
}

/// The next fire that starts, unless the job is disabled.
fn next(definition: &Definition, now: Timestamp) -> Option<Timestamp> {
    let job = &definition.job;
    let after = time::due_after(now, job.delay(), definition.since);
    job.enabled.then(|| job.schedule.next_after(after)).flatten()
}
