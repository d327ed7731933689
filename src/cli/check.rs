//! `fleetcron check`: whether job files are right, without a store.

use std::path::PathBuf;
use std::process::ExitCode;

use nix::unistd::geteuid;
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
    if geteuid().is_root()
        && let Some(warning) = root_warning(&jobs)
    {
        say(warning);
    }
    let count = |path: &str| jobs.places.values().filter(|place| &*place.path == path).count();
    let files = found.files.iter().map(|file| (file.path.clone(), count(&file.path))).collect();
    Ok(Checked { files, whole: found.are_whole(), jobs })
}

/// That jobs without a user may run as root. Only this command's own user is known: the daemons have theirs.
fn root_warning(file: &JobFile) -> Option<String> {
    const NAMED: usize = 3;
    let names: Vec<_> =
        file.jobs.iter().filter(|job| job.terms.user.is_none()).map(|job| &job.name).collect();
    let (named, more) = names.split_at(names.len().min(NAMED));
    let mut list = named.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    if !more.is_empty() {
        list = format!("{list} and {} more", more.len());
    }
    let begins = match names.len() {
        0 => return None,
        1 => format!("job {list} of source {} has no user and runs", file.source),
        many => format!("{many} jobs of source {} have no user ({list}) and run", file.source),
    };
    Some(format!(
        "warning: {begins} as root on every node whose daemon is root, as this command is; set user = \"NAME\" in \
         [defaults] or in the job (user = \"root\" if that is meant)"
    ))
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
        let disabled = || match (job.enabled, &job.after) {
            (false, _) => "disabled".to_owned(),
            (true, Some(_)) if schedule.is_none() => "when they have ended".to_owned(),
            (true, _) => "never again".to_owned(),
        };
        let cells = || {
            vec![
                job.name.to_string(),
                super::jobs::when(job),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_may_run_as_root_are_counted_once_and_some_are_named() {
        let job = |name: &str, user: &str| {
            format!("[jobs.{name}]\nschedule = '@daily'\ntimezone = 'UTC'\ncommand = 'true'\n{user}\n")
        };
        let warning =
            |text: &str| root_warning(&jobfile::parse(&[SourceFile { path: "jobs.toml", text }]).unwrap());
        let part = |text: &str| warning(text).unwrap().split(" as root").next().unwrap().to_owned();
        let user = "user = 'www'";
        assert_eq!(warning(&[job("a", user), job("b", "user = 'root'")].concat()), None);
        assert_eq!(warning(&["[defaults]\nuser = 'www'\n", &job("a", "")].concat()), None);
        assert_eq!(
            part(&[job("a", user), job("b", "")].concat()),
            "warning: job b of source default has no user and runs"
        );
        let many: String = ["a", "b", "c", "d", "e"].map(|name| job(name, "")).concat();
        assert_eq!(
            part(&format!("[source]\nname = 'shop'\n{many}")),
            "warning: 5 jobs of source shop have no user (a, b, c and 2 more) and run"
        );
    }
}
