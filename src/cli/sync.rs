//! `fleetcron sync`: the store is made equal to job files.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::Door;
use super::check::{self, Checked};
use super::failure::{Failure, say, show};
use super::out::{Out, harmless};
use crate::act;
use crate::jobfile::{self, Plan};
use crate::store::{Store, StoreError};
use crate::sync::{self, Outlook, SyncError, Wanted};

/// Make the store's jobs of one source equal to job files
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Checks the files as `check` does, shows what would change, asks when it is on a terminal, and applies it. Only jobs of \
the same source (`[source] name` in the files, \"default\" if there is none) are changed or removed; a job that belongs \
to another source is refused and named, unless --adopt moves it.

Elsewhere than on a terminal, and with --yes, removing more than half of a source's jobs needs --prune. Files that are \
missing, empty or cannot be read never remove anything.

Exit codes: 0 the store has the files' jobs, 1 it was not applied, 2 the files are wrong, 3 the store was not reached. \
With --output json the plan is one object a line: job, change (add, change, remove), fields.

Examples:
  fleetcron sync jobs.toml --dry-run
  fleetcron sync /etc/fleetcron/jobs.d --yes")]
pub struct Args {
    /// Job files, and folders of them; together they are the whole of their source
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Show the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Allow more than half of the source's jobs to be removed
    #[arg(long)]
    prune: bool,
    /// Take over jobs that belong to another source
    #[arg(long)]
    adopt: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub async fn sync(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let now = door.now();
    let checked = check::read(&args.paths, now)?;
    refuse_silence(&checked)?;
    let Checked { jobs: files, whole, .. } = checked;
    let wanted = Wanted { source: files.source, jobs: files.jobs, limits: files.limits };
    let store = match door.open_store(!args.dry_run).await {
        Ok(store) => store,
        Err(Failure::Store(_)) if args.dry_run && is_missing(&door).await => {
            say("there is no store yet; it would be made");
            show_plan(&jobfile::plan(&BTreeMap::new(), &wanted.jobs), &mut door.out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(failure) => return Err(failure),
    };
    let sync = Sync { args, store, wanted, whole };
    sync.carry_out(&mut door).await
}

/// Whether there is no store, rather than one that does not answer.
async fn is_missing(door: &Door) -> bool {
    let Ok(address) = door.address() else { return false };
    let Ok(access) = door.settings.access(&address, false) else { return false };
    matches!(Store::open(&address, &access).await, Err(StoreError::Missing(_)))
}

/// Files without a job may be what is left of a mishap: only a source that is named can be meant to be empty.
fn refuse_silence(checked: &Checked) -> Result<(), Failure> {
    match checked.jobs.jobs.is_empty() && !checked.jobs.source_named {
        true => Err(Failure::usage(
            "these files have no job, so nothing is changed; to remove all jobs of a source, name it: [source] name = \"default\"",
        )),
        false => Ok(()),
    }
}

struct Sync<'a> {
    args: &'a Args,
    store: Store,
    wanted: Wanted,
    /// Whether the files are all there is, so that what is not in them may be removed.
    whole: bool,
}

impl Sync<'_> {
    async fn carry_out(&self, door: &mut Door) -> Result<ExitCode, Failure> {
        /// How often somebody else may come between.
        const TRIES: u32 = 3;
        let mut agreed: Option<Plan> = None;
        let mut tries = 0;
        loop {
            let outlook = sync::look(&self.store, &self.wanted).await?;
            if agreed.as_ref() != Some(&outlook.plan) {
                for unreadable in &outlook.unreadable {
                    say(harmless(&unreadable.to_string()));
                }
                show_plan(&outlook.plan, &mut door.out)?;
                self.check(&outlook)?;
                if outlook.is_done(&self.wanted) {
                    say(format_args!("the store has this already (source {})", self.wanted.source));
                    return Ok(ExitCode::SUCCESS);
                }
                if self.args.dry_run {
                    return Ok(ExitCode::SUCCESS);
                }
                self.agree(&outlook)?;
                agreed = Some(outlook.plan.clone());
            }
            tries += 1;
            match sync::apply(&self.store, &self.wanted, outlook, &act::who(), door.now()).await {
                Ok(changes) => {
                    say(format_args!("applied: {changes} jobs of source {}", self.wanted.source));
                    return Ok(ExitCode::SUCCESS);
                }
                Err(SyncError::Overtaken { by, .. }) if tries < TRIES => {
                    say(format_args!("another sync by {} came between; looking again", harmless(&by)));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What must not be done, whoever agrees.
    fn check(&self, outlook: &Outlook) -> Result<(), Failure> {
        if !outlook.plan.removed.is_empty() && !self.whole {
            return Err(Failure::usage(
                "some of what could be a job file was not read (see above), so no job is removed, and nothing is applied",
            ));
        }
        if outlook.foreign.is_empty() {
            return Ok(());
        }
        for (job, source) in &outlook.foreign {
            match self.args.adopt {
                true => say(format_args!("{job} is taken over from source {source}")),
                false => say(format_args!("{job} belongs to source {source}")),
            }
        }
        match self.args.adopt {
            true => Ok(()),
            false => Err(Failure::asked("nothing is applied; to take these jobs over, say --adopt")),
        }
    }

    /// Asks a person, where there is one.
    fn agree(&self, outlook: &Outlook) -> Result<(), Failure> {
        let more_than_half = outlook.removes_more_than_half() && !outlook.plan.removed.is_empty();
        let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
        let (removed, there) = (outlook.plan.removed.len(), outlook.there);
        if self.args.yes || !can_ask {
            return match more_than_half && !self.args.prune {
                true => Err(Failure::Asked(format!(
                    "{removed} of the {there} jobs of source {} would be removed; nothing is applied; if that is meant, say --prune",
                    self.wanted.source
                ))),
                false => Ok(()),
            };
        }
        if more_than_half {
            say(format_args!(
                "note: {removed} of the {there} jobs of source {} will be removed",
                self.wanted.source
            ));
        }
        match ask("apply? [y/N] ") {
            true => Ok(()),
            false => Err(Failure::asked("nothing is applied")),
        }
    }
}

fn ask(question: &str) -> bool {
    let mut to = io::stderr();
    _ = to.write_all(question.as_bytes()).and_then(|()| to.flush());
    let mut answer = String::new();
    _ = io::stdin().lock().read_line(&mut answer);
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

fn show_plan(plan: &Plan, out: &mut Out) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Row<'p> {
        job: &'p str,
        change: &'static str,
        fields: Vec<&'p str>,
    }
    if !out.is_json() {
        out.line(plan)?;
        return out.flush();
    }
    let row = |job, change, fields| Row { job, change, fields };
    for job in &plan.added {
        out.json(&row(job.name.as_str(), "add", Vec::new()))?;
    }
    for change in &plan.changed {
        let fields = change.fields.iter().map(|field| field.name).collect();
        out.json(&row(change.job.name.as_str(), "change", fields))?;
    }
    for name in &plan.removed {
        out.json(&row(name.as_str(), "remove", Vec::new()))?;
    }
    out.flush()?;
    show(format_args!(
        "{} to add, {} to change, {} to remove, {} unchanged",
        plan.added.len(),
        plan.changed.len(),
        plan.removed.len(),
        plan.unchanged
    ));
    Ok(())
}
