//! What a sync would change, as people read it.

use std::collections::BTreeMap;
use std::fmt;

use super::policies;
use super::remark::printable;
use super::terms;
use super::value::show_size;
use super::when;
use crate::job::{Command, Job, JobName, MutexName};

/// The difference between the jobs of a source in the store and in the files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Sorted by name, as all of these.
    pub added: Vec<Job>,
    pub changed: Vec<Change>,
    pub removed: Vec<JobName>,
    pub unchanged: usize,
    /// Limits that are others: before and after.
    pub limits: Vec<(MutexName, Option<u32>, Option<u32>)>,
}

/// A job that stays and becomes another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub job: Job,
    pub fields: Vec<FieldChange>,
}

/// A field's text before and after; `None` where the field is not said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldChange {
    pub name: &'static str,
    pub old: Option<String>,
    pub new: Option<String>,
}

/// Compares what is in the store with what is in the files.
pub fn plan(old: &BTreeMap<JobName, Job>, new: &[Job]) -> Plan {
    let mut plan = Plan::default();
    let new: BTreeMap<&JobName, &Job> = new.iter().map(|job| (&job.name, job)).collect();
    for (name, job) in &new {
        match old.get(*name) {
            None => plan.added.push((*job).clone()),
            Some(old) if old == *job => plan.unchanged += 1,
            Some(old) => plan.changed.push(Change { job: (*job).clone(), fields: changed_fields(old, job) }),
        }
    }
    plan.removed = old.keys().filter(|name| !new.contains_key(name)).cloned().collect();
    plan
}

impl Plan {
    /// The same with the limits that the store has and that the files say.
    pub fn with_limits(mut self, old: &BTreeMap<MutexName, u32>, new: &BTreeMap<MutexName, u32>) -> Plan {
        let names: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
        let changed =
            names.into_iter().map(|name| (name.clone(), old.get(name).copied(), new.get(name).copied()));
        self.limits = changed.filter(|(_, old, new)| old != new).collect();
        self
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let jobs = self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty();
        jobs && self.limits.is_empty()
    }
}

/// The fields of a job that it says or that are not their defaults, in the order people read them, each as it
/// can be written in a job file.
pub fn fields(job: &Job) -> Vec<(&'static str, String)> {
    let text = |text: &str| format!("{text:?}");
    let duration = |duration| text(&humantime::format_duration(duration).to_string());
    let mut fields = Vec::new();
    fields.extend(job.description.as_deref().map(|description| ("description", text(description))));
    fields.extend(job.owner.as_deref().map(|owner| ("owner", text(owner))));
    fields.extend(when::fields(&job.schedule));
    if !job.splay.is_zero() {
        fields.push(("splay", duration(job.splay)));
    }
    fields.push(("command", command(&job.command)));
    if !job.enabled {
        fields.push(("enabled", "false".to_owned()));
    }
    if !job.env.is_empty() {
        let pairs: Vec<_> = job.env.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
        fields.push(("env", format!("{{ {} }}", pairs.join(", "))));
    }
    fields.extend(job.workdir.as_deref().map(|workdir| ("workdir", text(workdir))));
    fields.push(("shell", text(&job.shell)));
    fields.extend(job.timeout.map(|timeout| ("timeout", duration(timeout))));
    fields.push(("kill_after", duration(job.kill_after)));
    fields.push(("hold", duration(job.hold)));
    fields.extend(policies::fields(job));
    let codes: Vec<_> = job.success_exit.iter().map(u8::to_string).collect();
    fields.push(("success_exit", format!("[{}]", codes.join(", "))));
    let keep = job.keep;
    let output = show_size(keep.output);
    fields.push((
        "keep",
        format!("{{ records = {}, days = {}, output = \"{output}\" }}", keep.records, keep.days),
    ));
    fields.extend(terms::fields(&job.terms));
    fields.extend(job.was.as_ref().map(|was| ("was", text(was.as_str()))));
    fields
}

fn command(command: &Command) -> String {
    match command {
        Command::Shell(text) => format!("{text:?}"),
        Command::Argv(argv) => format!("{argv:?}"),
    }
}

fn changed_fields(old: &Job, new: &Job) -> Vec<FieldChange> {
    let (mut old, new) = (fields(old).into_iter().collect::<BTreeMap<_, _>>(), fields(new));
    let mut changed = Vec::new();
    for (name, new) in new {
        let old = old.remove(name);
        if old.as_ref() != Some(&new) {
            changed.push(FieldChange { name, old, new: Some(new) });
        }
    }
    changed.extend(old.into_iter().map(|(name, old)| FieldChange { name, old: Some(old), new: None }));
    changed
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            self.added.iter().chain(self.changed.iter().map(|change| &change.job)).map(|job| &job.name);
        let width = names.map(|name| name.as_str().len()).max().unwrap_or(0).min(WIDEST);
        for job in &self.added {
            let line = format!("+ {:width$}   {}", job.name.as_str(), schedule(job));
            writeln!(f, "{}", line.trim_end())?;
        }
        for Change { job, fields } in &self.changed {
            let fields: Vec<_> = fields.iter().map(FieldChange::to_string).collect();
            writeln!(f, "~ {:width$}   {}", job.name.as_str(), fields.join(", "))?;
        }
        for name in &self.removed {
            writeln!(f, "- {name}")?;
        }
        for (mutex, old, new) in &self.limits {
            let show = |limit: &Option<u32>| limit.map_or("-".to_owned(), |limit| limit.to_string());
            writeln!(f, "  [limits] {mutex}   {} -> {}", show(old), show(new))?;
        }
        let (added, changed, removed) = (self.added.len(), self.changed.len(), self.removed.len());
        write!(f, "{added} to add, {changed} to change, {removed} to remove, {} unchanged", self.unchanged)
    }
}

/// Longer names push their line to the right, so that one does not move all others.
const WIDEST: usize = 40;

/// When the job is due, in a few words: `0 2 * * * Europe/Berlin`.
fn schedule(job: &Job) -> String {
    let fields = when::fields(&job.schedule);
    let words = fields.iter().filter(|(name, _)| matches!(*name, "schedule" | "timezone"));
    let words: Vec<_> = words.map(|(_, text)| text.trim_matches('"')).collect();
    printable(&words.join(" "))
}

/// `schedule: "0 3 * * *" → "0 4 * * *"`, or only the name where the texts are long or nobody's business on a
/// screen: commands and variables can carry what was meant for one node.
impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 40;
        let shown = |text: &Option<String>| text.as_deref().map_or("none".to_owned(), printable);
        let (old, new) = (shown(&self.old), shown(&self.new));
        let long = old.chars().count() > LONGEST || new.chars().count() > LONGEST;
        if long || matches!(self.name, "command" | "env" | "stdin" | "description") {
            return f.write_str(self.name);
        }
        write!(f, "{}: {old} → {new}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SourceFile, parse};
    use super::*;

    fn jobs(text: &str) -> Vec<Job> {
        parse(&[SourceFile { path: "jobs.toml", text }]).unwrap_or_else(|mistakes| panic!("{mistakes}")).jobs
    }

    #[track_caller]
    fn check(old: &str, new: &str, shown: &str) {
        let old = jobs(old).into_iter().map(|job| (job.name.clone(), job)).collect();
        let plan = plan(&old, &jobs(new));
        let lines: Vec<_> = shown.lines().map(str::trim).collect();
        assert_eq!(plan.to_string(), lines.join("\n"));
        let nothing = lines.last().is_some_and(|last| last.starts_with("0 to add, 0 to change, 0 to remove"));
        assert_eq!(plan.is_empty(), nothing);
    }

    const ROTATE: &str = "[jobs.rotate-logs]\nschedule = '0 3 * * *'\ncommand = 'rotate'\n";

    #[test]
    fn a_plan_shows_what_is_added_changed_and_removed() {
        let old = format!(
            "{ROTATE}[jobs.old]\nschedule = '@daily'\ncommand = 'x'\n[jobs.same]\nschedule = '@daily'\ncommand = 'x'\n"
        );
        let new = "
            [defaults]
            timezone = 'UTC'
            [jobs.same]
            schedule = '@daily'
            command = 'x'
            [jobs.nightly-db-backup]
            schedule = '0 2 * * *'
            timezone = 'Europe/Berlin'
            command = 'dump'
            [jobs.rotate-logs]
            schedule = '0 4 * * *'
            command = 'rotate all'
            timeout = '1h 30m'
        ";
        check(
            &old,
            new,
            "+ nightly-db-backup   0 2 * * * Europe/Berlin
             ~ rotate-logs         schedule: \"0 3 * * *\" → \"0 4 * * *\", command, timeout: none → \"1h 30m\"
             - old
             1 to add, 1 to change, 1 to remove, 1 unchanged",
        );
    }

    #[test]
    fn what_is_there_already_changes_nothing() {
        check(ROTATE, ROTATE, "0 to add, 0 to change, 0 to remove, 1 unchanged");
        let spelt_otherwise = "jobs = { rotate-logs = { command = \"rotate\", schedule = [\"0  3 * * *\"], timezone = 'UTC' } }";
        check(ROTATE, spelt_otherwise, "0 to add, 0 to change, 0 to remove, 1 unchanged");
    }

    #[test]
    fn values_of_variables_are_not_shown() {
        let new = format!("{ROTATE}env = {{ A = 'secret' }}\n");
        check(ROTATE, &new, "~ rotate-logs   env\n0 to add, 1 to change, 0 to remove, 0 unchanged");
    }

    /// Every field of a job is among `fields`, or two jobs that differ would show no difference.
    #[test]
    fn a_change_of_any_field_has_a_name() {
        for line in [
            "description = 'x'",
            "owner = 'x'",
            "timezone = 'Asia/Tokyo'",
            "start_at = 2026-01-01T00:00:00Z",
            "end_at = 2030-01-01T00:00:00Z",
            "skip_dates = '2026-01-01'",
            "only_dates = '2026-01-01'",
            "enabled = false",
            "env = { A = '1' }",
            "workdir = '/'",
            "shell = '/bin/bash'",
            "timeout = '5s'",
            "kill_after = '5s'",
            "hold = '2m'",
            "overlap = 'allow'",
            "promise = 'at-most-once'",
            "nodes = 'role=db'",
            "run_on = 'every-node'",
            "catch_up = 'all'",
            "start_within = '2h'",
            "retry = { attempts = 3 }",
            "success_exit = [1]",
            "keep = { output = 5 }",
            "user = 'www'",
            "group = 'www'",
            "umask = '027'",
            "nice = 5",
            "ionice = 'idle'",
            "limits = { nofile = 99 }",
            "stdin = 'x'",
            "no_new_privs = true",
            "kill_leftovers = true",
            "env_file = '/etc/default/x'",
            "env_from = 'credentials:x'",
            "redact = ['X']",
            "timestamps = true",
            "was = 'x'",
        ] {
            let old = jobs(ROTATE).into_iter().map(|job| (job.name.clone(), job)).collect();
            let plan = plan(&old, &jobs(&format!("{ROTATE}{line}\n")));
            assert_eq!(plan.changed.len(), 1, "{line}");
            assert_eq!(plan.changed[0].fields.len(), 1, "{line}: {:?}", plan.changed[0].fields);
        }
    }

    #[test]
    fn the_fields_of_a_job_can_be_written_into_a_job_file() {
        let job = &jobs(&format!(
            "{ROTATE}timeout = '2h 30m'\nenv = {{ A = 'x y' }}\nkeep = {{ output = '1 MB' }}\n\
             user = 'www'\ngroup = 'adm'\numask = '7'\nnice = -5\nionice = 'realtime:1'\nstdin = 'a\\nb'\n\
             limits = {{ nofile = 99, memory = '1 GB', cpu = '90s', core = 'unlimited' }}\n\
             no_new_privs = true\nkill_leftovers = true\ntimestamps = true\nredact = ['A', 'B']\n\
             env_file = '/etc/x'\nenv_from = 'credentials:x'\nnodes = 'a in (b,c),!d'\nrun_on = 'every-node'\n\
             catch_up = 'none'\nstart_within = '90m'\noverlap = 'queue'\n\
             retry = {{ attempts = 3, delay = '1s', factor = 1.5, jitter = 0, on = [75, 'timeout'] }}\n"
        ))[0];
        let lines: Vec<_> =
            fields(job).into_iter().map(|(name, text)| format!("{name} = {text}\n")).collect();
        assert_eq!(&jobs(&format!("[jobs.rotate-logs]\n{}", lines.concat()))[0], job);
    }
}
