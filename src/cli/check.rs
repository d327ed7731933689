//! `fleetcron check`: whether job files are right, without a store.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::failure::{Failure, say, show};
use super::out::GiveUp::{All, OneLine};
use super::out::{Out, Table, or_dash};
use super::{Door, time};
use crate::files::{self, FilesFound};
use crate::jobfile::{self, JobFile, SourceFile};
use crate::schedule::Timestamp;

/// Check job files: every mistake, every doubt, and when each job runs next
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs no store. A file named is read whatever its name; in a folder only *.toml not starting with a dot counts, and \
every other entry is named with the reason. Files that are checked together are one source, as with `sync`.

Mistakes and warnings go to stderr, with file, line and column. Exit code 2: there is a mistake; 0: there is none.

The table shows NEXT by the clock of the job's own zone; IN counts to the start, which with `splay` is later. JSON has \
one object a line: job, file, line, column, next, next_starts_at (both RFC 3339 in UTC, null when disabled).

Examples:
  fleetcron check jobs.toml
  fleetcron check /etc/fleetcron/jobs.d && fleetcron sync /etc/fleetcron/jobs.d")]
pub struct Args {
    /// Job files, and folders of them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub fn check(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let now = door.now();
    let checked = read(&args.paths, now)?;
    if !checked.whole {
        say(
            "warning: not all of these could be read as job files; `sync` would remove no job because of them",
        );
    }
    list(&checked, now, &mut door.out)?;
    Ok(ExitCode::SUCCESS)
}

/// Job files without a mistake.
pub struct Checked {
    pub jobs: JobFile,
    /// How many jobs each file has.
    files: Vec<(String, usize)>,
    /// Whether every entry that could be a job file was read: see [`FilesFound::are_whole`].
    pub whole: bool,
}

/// Reads and checks files, and says all that is to be said of them. Mistakes end it.
pub fn read(paths: &[PathBuf], now: Timestamp) -> Result<Checked, Failure> {
    let found = files::read(paths);
    for ignored in &found.ignored {
        say(ignored);
    }
    for problem in &found.problems {
        show(format_args!("{problem}\n"));
    }
    let texts = texts(&found);
    let parsed = jobfile::parse(&texts);
    let jobs = match parsed {
        // The mistakes of the files that could be read are worth knowing all the same.
        Err(mistakes) => {
            show(mistakes);
            return Err(Failure::Said(2));
        }
        Ok(_) if !found.problems.is_empty() => {
            show("nothing is applied, because not all files could be read");
            return Err(Failure::Said(2));
        }
        Ok(_) if found.files.is_empty() => {
            let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            return Err(Failure::Usage(format!("no job file in {}", paths.join(", "))));
        }
        Ok(jobs) => jobs,
    };
    for warning in jobs.warnings.iter().chain(&jobfile::schedule_warnings(&jobs, &texts, now)) {
        show(format_args!("{warning}\n"));
    }
    let count = |path: &str| jobs.places.values().filter(|place| &*place.path == path).count();
    let files = found.files.iter().map(|file| (file.path.clone(), count(&file.path))).collect();
    Ok(Checked { files, whole: found.are_whole(), jobs })
}

fn texts(found: &FilesFound) -> Vec<SourceFile<'_>> {
    found.files.iter().map(|file| SourceFile { path: &file.path, text: &file.text }).collect()
}

fn list(checked: &Checked, now: Timestamp, out: &mut Out) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Row<'j> {
        job: &'j str,
        file: &'j str,
        line: usize,
        column: usize,
        next: Option<String>,
        next_starts_at: Option<String>,
    }
    for (path, jobs) in &checked.files {
        let jobs = if *jobs == 1 { "1 job".to_owned() } else { format!("{jobs} jobs") };
        say(format_args!("{}: {jobs}", path.escape_debug()));
    }
    let give_up = &[All("ZONE"), OneLine("NEXT"), All("SCHEDULE")];
    let mut table = Table::new(&["JOB", "SCHEDULE", "ZONE", "NEXT", "IN"], give_up);
    for job in &checked.jobs.jobs {
        let schedule = &job.schedule;
        let delay = job.delay();
        let after = time::due_after(now, delay, Timestamp::MIN_UTC);
        let next = job.enabled.then(|| schedule.next_after(after)).flatten();
        let place = &checked.jobs.places[&job.name];
        let row = Row {
            job: job.name.as_str(),
            file: &place.path,
            line: place.line,
            column: place.column,
            next: next.map(time::utc),
            next_starts_at: next.map(|at| time::utc(time::start(at, delay))),
        };
        let disabled = || if job.enabled { "never again" } else { "disabled" }.to_owned();
        let cells = || {
            vec![
                job.name.to_string(),
                schedule.texts().join(", "),
                schedule.zone().to_string(),
                next.map_or_else(disabled, |at| time::due(at, delay, schedule.zone())),
                or_dash(next.map(|at| time::wait(now, time::start(at, delay)))),
            ]
        };
        match out.is_json() {
            true => out.json(&row)?,
            false => table.row(out, cells())?,
        }
    }
    table.end(out)
}
