//! `fleetcron next`: what will run.

mod merge;

use std::process::ExitCode;
use std::time::Duration;

use chrono::TimeDelta;
use serde::Serialize;

use self::merge::{Coming, Merge, Source};
use super::failure::{Failure, say};
use super::jobs::Texts;
use super::out::GiveUp::{All, OneLine};
use super::out::{Out, Table};
use super::read::{self, Scope};
use super::time::{self, Toward, due_after};
use super::{Door, batch};
use crate::schedule::{Mark, Schedule, Timestamp, Upcoming, Zone};

/// Show what will run next, in the order of the starts
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without JOB the next fire of each job is shown, with JOB its next five; -n says how many of each, and --until shows \
all up to a time. Disabled jobs have no fires.

The table shows the time by the clock of the job's own zone, with weekday and offset, the same in UTC, and how long \
it is until the start. NOTE tells of splay, and what a change of the clock or the calendar does: such lines without a \
fire do not count as one of the -n, and of many times that are excluded for one reason the first stands for all.

A job with `splay` starts later than its fire is due, always by the same time. The fire keeps its instant, but \
everything here goes by the start: the order, --after, --until and IN.

A TIME is RFC 3339 (2026-11-30T02:00:00Z), a date, a time of day (06:00, the next one), or how long from now (8h). \
Dates and times of day are those of --timezone, which is UTC unless given: never the host's.

JSON has one object for each fire: {\"job\":…, \"at\": RFC 3339 with the zone's offset, \"utc\":…, \"starts_at\": in UTC}. With --explain: job, \
schedule, timezone, explanation.

--batch reads lines {\"expr\":…, \"tz\":…, \"after\":…, \"n\":…} and answers each with a line {\"next\": […]}, which is empty \
when it never fires, or {\"error\":…}. Left out, tz is UTC, after is now, n is 1.

Examples:
  fleetcron next --until 06:00       what will run tonight
  fleetcron next backup -n 10
  fleetcron next --explain           what the schedules mean, in words
  fleetcron next --schedule '30 2 * * mon-fri' --timezone Europe/Berlin -n 5
  fleetcron next --schedule '0 4 L * *' --explain
  echo '{\"expr\":\"@daily\",\"tz\":\"Asia/Tokyo\",\"n\":2}' | fleetcron next --batch")]
pub struct Args {
    /// Only these jobs; with --schedule the name that H takes its value from
    #[arg(value_name = "JOB")]
    names: Vec<String>,
    /// All fires that start up to this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Say in words what the schedules mean
    #[arg(long)]
    explain: bool,
    /// A schedule to look at, in place of the store's jobs; given again, both count
    #[arg(long, value_name = "EXPR")]
    schedule: Vec<String>,
    /// The zone of --schedule, and of times given without an offset [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Only fires that start after this time [default: now]
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// How many fires of each job
    #[arg(short = 'n', value_name = "N")]
    count: Option<usize>,
    /// Answer JSON lines on stdin
    #[arg(long, conflicts_with_all = ["names", "until", "explain", "schedule", "timezone", "after", "count"])]
    batch: bool,
}

pub async fn next(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let now = door.now();
    if args.batch {
        batch::answer(std::io::stdin().lock(), &mut door.out, now)?;
        return Ok(ExitCode::SUCCESS);
    }
    let asked = Asked::read(args, now)?;
    let jobs = match args.schedule.is_empty() {
        true => {
            let Some(jobs) = stored(&door, args, &asked).await? else { return Ok(ExitCode::from(1)) };
            jobs
        }
        false => vec![given(args, &asked)?],
    };
    match args.explain {
        true => explain(&jobs, now, &mut door.out)?,
        false => show(&jobs, &asked, &mut door.out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// From when, until when, how many.
struct Asked {
    now: Timestamp,
    zone: Zone,
    after: Timestamp,
    until: Option<Timestamp>,
    /// Of each job; none: no limit.
    count: Option<usize>,
}

impl Asked {
    fn read(args: &Args, now: Timestamp) -> Result<Asked, Failure> {
        let zone = args.timezone.as_deref().map_or(Ok(Zone::utc()), str::parse).map_err(Failure::usage)?;
        let instant = |text: &Option<String>, flag: &str, from: Timestamp| {
            let read = text.as_deref().map(|text| time::instant(text, from, &zone, Toward::Future));
            read.transpose().map_err(|error| Failure::Usage(format!("{flag}: {error}")))
        };
        let after = instant(&args.after, "--after", now)?.unwrap_or(now);
        let until = instant(&args.until, "--until", after)?;
        let default = match (until, args.names.is_empty() && args.schedule.is_empty()) {
            (Some(_), _) => None,
            (None, true) => Some(1),
            (None, false) => Some(5),
        };
        Ok(Asked { now, zone, after, until, count: args.count.or(default) })
    }

    /// As much of a job's future as is asked for.
    fn of<I: Iterator<Item = Upcoming>>(&self, job: &Job, future: I) -> Source<I> {
        let delay = TimeDelta::from_std(job.delay).unwrap_or(TimeDelta::MAX);
        Source::of(future, delay, self.count, self.until)
    }
}

/// A job as far as its time is concerned.
struct Job {
    name: Option<String>,
    schedule: Schedule,
    /// How much later than it is due a fire starts.
    delay: Duration,
    /// What is due until then does not count.
    after: Timestamp,
}

async fn stored(door: &Door, args: &Args, asked: &Asked) -> Result<Option<Vec<Job>>, Failure> {
    let scope = Scope::of(&args.names)?;
    let store = door.store().await?;
    let mut jobs = Vec::new();
    let unreadable = read::each_definition(&store, &scope, |definition| {
        let job = definition.job;
        match job.enabled || args.explain {
            true => jobs.push(Job {
                name: Some(job.name.to_string()),
                delay: job.delay(),
                after: due_after(asked.after, job.delay(), definition.since),
                schedule: job.schedule,
            }),
            false if !scope.is_all() => {
                say(format_args!("{} is disabled: it runs only when started by hand", job.name))
            }
            false => {}
        }
        Ok(())
    })
    .await?;
    // What cannot be read might be the very next thing to run, so nothing is shown as if that were all.
    Ok((unreadable == 0).then_some(jobs))
}

fn given(args: &Args, asked: &Asked) -> Result<Job, Failure> {
    let name = match args.names.as_slice() {
        [] => None,
        [one] => Some(read::job_name(one)?.to_string()),
        _ => return Err(Failure::usage("with --schedule there can be one name, for H")),
    };
    let schedule = Schedule::parse(&args.schedule, &asked.zone, name.as_deref().unwrap_or_default());
    match schedule {
        Ok(schedule) => Ok(Job { name, schedule, delay: Duration::ZERO, after: asked.after }),
        Err(errors) => {
            let told: Vec<_> = errors
                .iter()
                .map(|(_, error)| {
                    let pointer = error.pointer().replace('\n', "\n  ");
                    format!("bad schedule: {error}\n  {pointer}")
                })
                .collect();
            Err(Failure::Usage(told.join("\n")))
        }
    }
}

fn explain(jobs: &[Job], now: Timestamp, out: &mut Out) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Row<'j> {
        job: Option<&'j str>,
        schedule: Texts<'j>,
        timezone: &'j str,
        explanation: String,
    }
    for Job { name, schedule, delay, .. } in jobs {
        let mut explanation = schedule.describe();
        if !delay.is_zero() {
            explanation += &format!("; {}", splayed(*delay));
        }
        let name = name.as_deref();
        match (out.is_json(), name) {
            (true, job) => {
                let (schedule, timezone) = (Texts::of(schedule.texts()), schedule.zone().name());
                out.json(&Row { job, schedule, timezone, explanation })?;
            }
            (false, Some(name)) => out.line(format_args!("{name}: {explanation}"))?,
            (false, None) => out.line(explanation)?,
        }
        for warning in schedule.warnings(now) {
            match name {
                Some(name) => say(format_args!("warning: {name}: {warning}")),
                None => say(format_args!("warning: {warning}")),
            }
        }
    }
    out.flush()
}

fn show(jobs: &[Job], asked: &Asked, out: &mut Out) -> Result<(), Failure> {
    let shown = match out.is_json() {
        true => show_json(jobs, asked, out)?,
        false => show_table(jobs, asked, out)?,
    };
    if let Some(until) = asked.until {
        say(format_args!("{shown} fires until {}", time::utc(until)));
    } else if let ([job], 0) = (jobs, shown) {
        let never = if job.schedule.never_fires() {
            "never fires: no date of any year matches"
        } else {
            "never fires again"
        };
        say(format_args!("{} {never}", job.name.as_deref().unwrap_or("this schedule")));
    }
    Ok(())
}

fn show_json(jobs: &[Job], asked: &Asked, out: &mut Out) -> Result<usize, Failure> {
    #[derive(Serialize)]
    struct Row<'j> {
        job: Option<&'j str>,
        at: String,
        utc: String,
        starts_at: String,
    }
    let fires = |job| asked.of(job, fires(job).map(|at| Upcoming { at, mark: Mark::Ordinary }));
    let fires = jobs.iter().map(fires);
    let mut shown = 0;
    for (index, Coming { one, starts_at }) in Merge::new(fires) {
        let job = &jobs[index];
        let at = job.schedule.zone().local(one.at).to_string();
        let job = job.name.as_deref();
        out.json(&Row { job, at, utc: time::utc(one.at), starts_at: time::utc(starts_at) })?;
        shown += 1;
    }
    out.flush()?;
    Ok(shown)
}

fn fires(job: &Job) -> impl Iterator<Item = Timestamp> {
    let mut from = job.after;
    std::iter::from_fn(move || {
        from = job.schedule.next_after(from)?;
        Some(from)
    })
}

fn show_table(jobs: &[Job], asked: &Asked, out: &mut Out) -> Result<usize, Failure> {
    let upcoming = jobs.iter().map(|job| asked.of(job, merge::without_repeats(&job.schedule, job.after)));
    let give_up = &[All("UTC"), OneLine("NOTE"), OneLine("LOCAL TIME")];
    let mut table = Table::new(&["JOB", "LOCAL TIME", "UTC", "IN", "NOTE"], give_up);
    let mut shown = 0;
    for (index, Coming { one, starts_at }) in Merge::new(upcoming) {
        let job = &jobs[index];
        let runs = one.runs();
        shown += usize::from(runs);
        let cells = vec![
            job.name.clone().unwrap_or_else(|| "-".to_owned()),
            time::local(one.at, job.schedule.zone()),
            time::utc_seconds(one.at),
            if runs { time::wait(asked.now, starts_at) } else { "-".to_owned() },
            notes(job, &one),
        ];
        table.row(out, cells)?;
    }
    table.end(out)?;
    Ok(shown)
}

/// What there is to know of a fire beside its time.
fn notes(job: &Job, one: &Upcoming) -> String {
    let splayed = (one.runs() && !job.delay.is_zero()).then(|| splayed(job.delay));
    let notes: Vec<_> = splayed.into_iter().chain(note(&one.mark)).collect();
    notes.join("; ")
}

fn splayed(delay: Duration) -> String {
    format!("starts {} later (splay)", time::length(delay))
}

/// What a change of the clock or the calendar does to a fire, in words.
fn note(mark: &Mark) -> Option<String> {
    let clock = |at: &chrono::NaiveDateTime| at.format("%H:%M").to_string();
    Some(match mark {
        Mark::Ordinary => return None,
        Mark::Moved { from } => format!("moved from {}, which the clock jumps over", clock(from)),
        Mark::FirstPass { again: true } => "the clock shows this time twice; it runs both times".to_owned(),
        Mark::FirstPass { again: false } => "the clock shows this time twice; it runs only now".to_owned(),
        Mark::SecondPass => "the clock shows this time for the second time; it runs again".to_owned(),
        Mark::Missing { first, last } if first == last => {
            format!("does not run: the clock jumps over {}", clock(first))
        }
        Mark::Missing { first, last } => {
            format!("does not run: the clock jumps over {} to {}", clock(first), clock(last))
        }
        Mark::NotRepeated => "does not run again: the clock shows this time for the second time".to_owned(),
        Mark::Excluded(excluded) => format!("excluded: {excluded}"),
    })
}
