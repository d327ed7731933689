//! A job's fields: read from a table as they were written, merged with the defaults, checked into a [`Job`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::found::{At, Found, Spot};
use super::names::{meant, name_hint, nearest};
use super::policies;
use super::remark::quoted;
use super::terms;
use super::value::{Field, LONGEST_ARGUMENT};
use super::when::{self, When};
use crate::job::{
    Command, DEFAULT_HOLD, DEFAULT_KILL_AFTER, DEFAULT_SHELL, Job, JobName, Keep, LEAST_HOLD, RunOn,
};
use crate::schedule::{Schedule, Zone};

/// The fields of a job, in the order people read them.
pub(super) const FIELDS: [&str; 43] = [
    "description",
    "owner",
    "schedule",
    "timezone",
    "start_at",
    "end_at",
    "skip_dates",
    "only_dates",
    "splay",
    "command",
    "enabled",
    "env",
    "workdir",
    "shell",
    "timeout",
    "kill_after",
    "hold",
    "overlap",
    "promise",
    "nodes",
    "run_on",
    "catch_up",
    "start_within",
    "retry",
    "after",
    "mutex",
    "priority",
    "success_exit",
    "keep",
    "user",
    "group",
    "umask",
    "nice",
    "ionice",
    "limits",
    "stdin",
    "no_new_privs",
    "kill_leftovers",
    "env_file",
    "env_from",
    "redact",
    "timestamps",
    "was",
];

/// Fields that later versions will know. They are refused and not passed over, because a job that runs beside what
/// it must not is worse than one that does not run.
const LATER: [&str; 1] = ["notify"];

/// Fields that make sense for one job only.
const NOT_IN_DEFAULTS: [&str; 4] = ["schedule", "command", "after", "was"];

/// What a hold must have beyond `kill_after` for a command to get all of it: the guard is patient for four seconds
/// first, and keeps a margin of half a second.
const LEAST_NOTICE: Duration = Duration::from_millis(4_500);

const MOST_RECORDS: u64 = 100_000;
const MOST_DAYS: u64 = 3650;
const MOST_OUTPUT: u64 = 10 << 30;

/// A definition is one value in the store, and etcd takes no request of more than 1.5 MiB.
const LARGEST_JOB: usize = 1_000_000;

/// What a table says, each value checked by itself. What it does not say is `None`.
#[derive(Clone, Default)]
pub(super) struct Written {
    description: Option<At<String>>,
    owner: Option<At<String>>,
    schedule: Option<At<Vec<At<String>>>>,
    timezone: Option<Zone>,
    start_at: Option<At<String>>,
    end_at: Option<At<String>>,
    skip_dates: Option<At<Vec<At<String>>>>,
    only_dates: Option<At<Vec<At<String>>>>,
    command: Option<Command>,
    enabled: Option<At<bool>>,
    env: BTreeMap<String, At<String>>,
    workdir: Option<At<String>>,
    shell: Option<At<String>>,
    timeout: Option<At<Duration>>,
    kill_after: Option<At<Duration>>,
    hold: Option<At<Duration>>,
    splay: Option<At<Duration>>,
    policies: policies::Written,
    success_exit: Option<At<BTreeSet<u8>>>,
    records: Option<At<u64>>,
    days: Option<At<u64>>,
    output: Option<At<u64>>,
    terms: terms::Written,
    pub was: Option<At<JobName>>,
}

impl Written {
    /// Reads `[defaults]`.
    pub(super) fn defaults(file: usize, table: &DeTable<'_>, found: &mut Found) -> Written {
        let mut written = Written::default();
        for (key, value) in table {
            let spot = Spot::new(file, key.span());
            let name: &str = key.get_ref();
            if NOT_IN_DEFAULTS.contains(&name) {
                found.mistake(
                    &spot,
                    format!("{name} cannot stand in [defaults]"),
                    "it belongs to one job: write it in [jobs.NAME]",
                );
                continue;
            }
            written.read(&spot, &Field::new(file, name, value), "[defaults]", found);
        }
        written
    }

    /// Where it says what it comes after.
    pub(super) fn after_spot(&self) -> Option<Spot> {
        self.policies.after.as_ref().map(|after| after.spot.clone())
    }

    /// Reads `[jobs.NAME]`.
    pub(super) fn job(file: usize, name: &str, at: &Spot, table: &DeTable<'_>, found: &mut Found) -> Written {
        let mut written = Written::default();
        let header = header(name);
        for (key, value) in table {
            let spot = Spot::new(file, key.span());
            written.read(&spot, &Field::new(file, key.get_ref(), value), &header, found);
        }
        say_what_is_missing(&header, at, table, found);
        written
    }

    fn read(&mut self, key: &Spot, field: &Field<'_>, header: &str, found: &mut Found) {
        match field.name {
            "description" => self.description = field.prose(1000, found),
            "owner" => self.owner = field.prose(200, found),
            "schedule" => self.schedule = field.texts(found),
            "timezone" => self.timezone = field.text(found).and_then(|zone| when::zone_of(&zone, found)),
            "start_at" => self.start_at = field.date(found),
            "end_at" => self.end_at = field.date(found),
            "skip_dates" => self.skip_dates = field.dates(found),
            "only_dates" => self.only_dates = field.dates(found),
            "command" => self.command = command(field, found),
            "enabled" => self.enabled = field.flag(found),
            "env" => self.env = env(field, found),
            "workdir" => self.workdir = field.path(found),
            "shell" => self.shell = field.path(found),
            "timeout" => self.timeout = field.duration(found),
            "kill_after" => self.kill_after = field.duration(found),
            "hold" => self.hold = hold(field, found),
            "splay" => self.splay = field.duration(found),
            "success_exit" => self.success_exit = field.exit_codes(found),
            "keep" => self.read_keep(field, found),
            "was" => self.was = former_name(field, found),
            name if self.policies.read(name, field, found) || self.terms.read(name, field, found) => {}
            name if LATER.contains(&name) => refuse_as_not_yet(key, name, found),
            name => refuse_as_unknown(key, name, field, header, found),
        }
    }

    fn read_keep(&mut self, keep: &Field<'_>, found: &mut Found) {
        for (key, value) in keep.table(found).into_iter().flatten() {
            let field = |name| Field::new(keep.spot.file, name, value);
            match &**key.get_ref() {
                "records" => self.records = field("keep.records").number(1, MOST_RECORDS, found),
                "days" => self.days = field("keep.days").number(1, MOST_DAYS, found),
                "output" => self.output = field("keep.output").size(MOST_OUTPUT, found),
                name => {
                    let spot = Spot::new(keep.spot.file, key.span());
                    let hint = "keep has records, days and output";
                    found.mistake(&spot, format!("unknown key {} in keep", quoted(name)), hint);
                }
            }
        }
    }

    /// What the job says, and where it is silent what the defaults say. `env`, `keep` and the like are merged key by key.
    fn or(self, defaults: &Written) -> Written {
        let defaults = defaults.clone();
        let mut env = defaults.env;
        env.extend(self.env);
        Written {
            description: self.description.or(defaults.description),
            owner: self.owner.or(defaults.owner),
            schedule: self.schedule,
            timezone: self.timezone.or(defaults.timezone),
            start_at: self.start_at.or(defaults.start_at),
            end_at: self.end_at.or(defaults.end_at),
            skip_dates: self.skip_dates.or(defaults.skip_dates),
            only_dates: self.only_dates.or(defaults.only_dates),
            command: self.command,
            enabled: self.enabled.or(defaults.enabled),
            env,
            workdir: self.workdir.or(defaults.workdir),
            shell: self.shell.or(defaults.shell),
            timeout: self.timeout.or(defaults.timeout),
            kill_after: self.kill_after.or(defaults.kill_after),
            hold: self.hold.or(defaults.hold),
            splay: self.splay.or(defaults.splay),
            policies: self.policies.or(defaults.policies),
            success_exit: self.success_exit.or(defaults.success_exit),
            records: self.records.or(defaults.records),
            days: self.days.or(defaults.days),
            output: self.output.or(defaults.output),
            terms: self.terms.or(defaults.terms),
            was: self.was,
        }
    }

    /// The job, unless something of it is missing or wrong. `name_spot` is where what is missing is shown.
    pub(super) fn check(
        self,
        name: &JobName,
        name_spot: &Spot,
        defaults: &Written,
        found: &mut Found,
    ) -> Option<Checked> {
        let written = self.or(defaults);
        let schedule = match (&written.schedule, &written.policies.after) {
            // It runs when others have ended, and only then.
            (None, Some(_)) => Some(Schedule::none(&written.timezone.unwrap_or(Zone::utc()))),
            _ => written.schedule_of(name, found),
        };
        let after_spot = written.policies.after.as_ref().map(|after| after.spot.clone());
        let policies = written.policies.check(found);
        let spot = |at: &Option<At<Duration>>| at.as_ref().map(|at| at.spot.clone());
        let (hold_spot, kill_after_spot) = (spot(&written.hold), spot(&written.kill_after));
        let default_keep = Keep::default();
        let small = |number: Option<At<u64>>, default: u32| {
            number.map_or(default, |number| u32::try_from(number.value).expect("records and days are capped"))
        };
        let job = Job {
            name: name.clone(),
            description: value(written.description),
            owner: value(written.owner),
            schedule: schedule?,
            command: written.command?,
            enabled: value(written.enabled).unwrap_or(true),
            env: written.env.into_iter().map(|(name, text)| (name, text.value)).collect(),
            workdir: value(written.workdir),
            shell: value(written.shell).unwrap_or(DEFAULT_SHELL.to_owned()),
            timeout: value(written.timeout),
            kill_after: value(written.kill_after).unwrap_or(DEFAULT_KILL_AFTER),
            hold: value(written.hold).unwrap_or(DEFAULT_HOLD),
            splay: value(written.splay).unwrap_or_default(),
            overlap: policies.overlap,
            promise: policies.promise,
            nodes: policies.nodes,
            run_on: policies.run_on,
            catch_up: policies.catch_up,
            start_within: policies.start_within,
            retry: policies.retry,
            mutex: policies.mutex,
            priority: policies.priority,
            after: policies.after,
            success_exit: value(written.success_exit).unwrap_or(BTreeSet::from([0])),
            keep: Keep {
                records: small(written.records, default_keep.records),
                days: small(written.days, default_keep.days),
                output: value(written.output).unwrap_or(default_keep.output),
            },
            terms: written.terms.check(),
            was: value(written.was),
        };
        if let Some(spot) = hold_spot.or(kill_after_spot)
            && job.kill_after + LEAST_NOTICE > job.hold
        {
            let show = humantime::format_duration;
            found.warning(
                &spot,
                format!(
                    "kill_after ({}) does not fit into the hold ({}): a node out of touch with the store has to \
                     KILL the command before kill_after is over",
                    show(job.kill_after),
                    show(job.hold)
                ),
                "set a longer hold or a shorter kill_after",
            );
        }
        let size = size(&job);
        if size > LARGEST_JOB {
            found.mistake(
                name_spot,
                format!(
                    "command, env and stdin of {} have {size} bytes, more than {LARGEST_JOB}",
                    header(name.as_str())
                ),
                "put the script into a file on the nodes and run that",
            );
        }
        if let Some(spot) = after_spot
            && job.run_on == RunOn::EveryNode
        {
            let hint = "a run that is set off is one run; leave out after, or run_on";
            found.mistake(&spot, "after cannot be said of a job that runs on every node", hint);
        }
        let texts = written.schedule.map_or_else(Vec::new, |texts| texts.value);
        if let Some(text) = texts.iter().find(|text| text.value.trim() == "@reboot")
            && job.run_on == RunOn::OneNode
        {
            found.mistake(
                &text.spot,
                "@reboot is due when a machine starts, and this job runs on one node of all".to_owned(),
                "add run_on = \"every-node\", and nodes = \"node=NAME\" if it is one machine that is meant",
            );
        }
        Some(Checked {
            job,
            takes_utc: written.timezone.is_none() && uses_zone(&texts),
            schedule_spots: texts.into_iter().map(|text| text.spot).collect(),
        })
    }

    fn schedule_of(&self, job: &JobName, found: &mut Found) -> Option<Schedule> {
        let when = When {
            schedule: self.schedule.as_ref()?,
            timezone: self.timezone,
            start_at: self.start_at.as_ref(),
            end_at: self.end_at.as_ref(),
            skip_dates: self.skip_dates.as_ref(),
            only_dates: self.only_dates.as_ref(),
        };
        when::schedule_of(job, &when, found)
    }
}

/// A checked job, and what later warnings need.
pub(super) struct Checked {
    pub job: Job,
    /// Whether it takes UTC because nobody said a zone.
    pub takes_utc: bool,
    /// Of each text of its schedule.
    pub schedule_spots: Vec<Spot>,
}

/// A job's table as it is written in a file.
pub(super) fn header(name: &str) -> String {
    let bare =
        !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'));
    if bare { format!("[jobs.{name}]") } else { format!("[jobs.{}]", quoted(name)) }
}

pub(super) fn value<T>(at: Option<At<T>>) -> Option<T> {
    at.map(|at| at.value)
}

/// A grid and single instants are the same in every zone.
fn uses_zone(schedule: &[At<String>]) -> bool {
    let free =
        |text: &str| ["@every", "@at", "@reboot"].iter().any(|form| text.trim_start().starts_with(form));
    !schedule.iter().all(|text| free(&text.value)) && !schedule.is_empty()
}

fn size(job: &Job) -> usize {
    let command = match &job.command {
        Command::Shell(text) => text.len(),
        Command::Argv(argv) => argv.iter().map(|argument| argument.len() + 4).sum(),
    };
    let env = job.env.iter().map(|(name, text)| name.len() + text.len() + 8);
    let schedule = job.schedule.texts().iter().map(|text| text.len() + 4);
    let stdin = job.terms.stdin.as_ref().map_or(0, String::len);
    command + stdin + env.chain(schedule).sum::<usize>()
}

fn say_what_is_missing(header: &str, at: &Spot, table: &DeTable<'_>, found: &mut Found) {
    if found.is_full() {
        return;
    }
    // `[jobs.a.b]` is a slip in the name and not a job without all.
    let needed = [("schedule", "\"0 2 * * *\""), ("command", "\"/usr/local/bin/backup\"")];
    let needed = needed.into_iter().filter(|(name, _)| *name != "schedule" || !table.contains_key("after"));
    let needed: Vec<_> = needed.collect();
    if table.values().any(is_table) && !needed.iter().any(|(name, _)| table.contains_key(*name)) {
        return;
    }
    // A misspelt one is not missing as well.
    let meant: Vec<_> = table.keys().filter_map(|key| meant(key.get_ref(), known_fields())).collect();
    for (name, line) in needed {
        if !meant.contains(&name) {
            let hint = format!("add a line like {name} = {line}");
            found.mistake(at, format!("{header} has no {name}"), &*hint);
        }
    }
}

fn known_fields() -> impl Iterator<Item = &'static str> {
    FIELDS.into_iter().chain(LATER)
}

fn is_table(value: &toml::Spanned<DeValue<'_>>) -> bool {
    matches!(value.get_ref(), DeValue::Table(_))
}

fn refuse_as_not_yet(key: &Spot, name: &str, found: &mut Found) {
    found.mistake(
        key,
        format!("{name} is not supported yet"),
        "this version would not act on it; leave it out",
    );
}

fn refuse_as_unknown(key: &Spot, name: &str, field: &Field<'_>, header: &str, found: &mut Found) {
    let dotted_name = format!(
        "a job's name with a dot is quoted: [jobs.\"{}.{name}\"]",
        header.trim_start_matches("[jobs.").trim_end_matches(']').trim_matches('"')
    );
    let looks_like_job = field
        .value
        .as_table()
        .is_some_and(|inner| inner.is_empty() || inner.keys().any(|key| FIELDS.contains(&&**key.get_ref())));
    let hint = match field.value {
        DeValue::Table(_) if header != "[defaults]" && looks_like_job => Some(dotted_name),
        _ if found.is_full() => None,
        _ => nearest(name, known_fields()),
    };
    found.mistake(key, format!("unknown key {} in {header}", quoted(name)), hint.as_deref());
}

fn hold(field: &Field<'_>, found: &mut Found) -> Option<At<Duration>> {
    let hold = field.duration(found)?;
    if hold.value < LEAST_HOLD {
        let least = humantime::format_duration(LEAST_HOLD);
        let hint = "a run is stopped when its node has been out of touch with the store for so long";
        found.mistake(&hold.spot, format!("hold must be at least {least}"), hint);
        return None;
    }
    Some(hold)
}

fn command(field: &Field<'_>, found: &mut Found) -> Option<Command> {
    let command = match field.value {
        DeValue::String(_) => Command::Shell(field.text(found)?.value),
        _ => Command::Argv(field.argv(found)?),
    };
    let longest = match &command {
        Command::Shell(text) => text.len(),
        Command::Argv(argv) => argv.iter().map(String::len).max().unwrap_or(0),
    };
    if longest > LONGEST_ARGUMENT {
        found.mistake(
            &field.spot,
            format!(
                "command has a text of {longest} bytes, more than the {LONGEST_ARGUMENT} an argument may have"
            ),
            "put the script into a file on the nodes and run that",
        );
        return None;
    }
    Some(command)
}

fn former_name(field: &Field<'_>, found: &mut Found) -> Option<At<JobName>> {
    let text = field.text(found)?;
    match text.value.parse::<JobName>() {
        Ok(value) if !value.is_of_tasks() => Some(At { value, spot: text.spot }),
        _ => {
            let message = format!("bad job name: {}", quoted(&text.value));
            found.mistake(&field.spot, message, &*name_hint(&text.value));
            None
        }
    }
}

fn env(field: &Field<'_>, found: &mut Found) -> BTreeMap<String, At<String>> {
    let mut env = BTreeMap::new();
    for (key, value) in field.table(found).into_iter().flatten() {
        let name: &str = key.get_ref();
        let spot = Spot::new(field.spot.file, key.span());
        let value = Field::new(field.spot.file, name, value);
        if let Some(text) = variable(&spot, &value, found) {
            env.insert(name.to_owned(), text);
        }
    }
    env
}

fn variable(key: &Spot, field: &Field<'_>, found: &mut Found) -> Option<At<String>> {
    let name = field.name;
    if !is_variable(name) {
        let message = format!("bad name of a variable: {}", quoted(name));
        found.mistake(key, message, "it has letters, digits and '_', and does not begin with a digit");
        return None;
    }
    if name.starts_with("FLEETCRON_") {
        let hint = "names that begin with FLEETCRON_ are set by fleetcron";
        found.mistake(key, format!("env may not set {name}"), hint);
        return None;
    }
    let text = match field.value {
        // Unlike elsewhere an empty text says something: set, and empty.
        DeValue::String(text) if text.is_empty() => At { value: String::new(), spot: field.spot.clone() },
        DeValue::String(text) if text.trim().is_empty() => {
            At { value: text.to_string(), spot: field.spot.clone() }
        }
        _ => field.text(found)?,
    };
    if name.len() + 1 + text.value.len() > LONGEST_ARGUMENT {
        let message = format!("env.{name} is longer than the {LONGEST_ARGUMENT} bytes a variable may have");
        found.mistake(&field.spot, message, None);
        return None;
    }
    if looks_like_secret(name) && !text.value.is_empty() {
        let message = format!("env.{name} looks like a secret");
        let hint = "definitions can be read by everyone who can read the store; let the command read a file";
        found.warning(key, message, hint);
    }
    Some(text)
}

pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
}

fn looks_like_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let tells = ["PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "CREDENTIAL", "APIKEY"];
    let says_where = ["_FILE", "_PATH", "_DIR"].iter().any(|end| name.ends_with(end));
    !says_where && (tells.iter().any(|tell| name.contains(tell)) || name.split('_').any(|word| word == "KEY"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_told_by_its_name() {
        for name in ["PGPASSWORD", "API_KEY", "github_token", "AWS_SECRET_ACCESS_KEY", "DB_PASSWD"] {
            assert!(looks_like_secret(name), "{name}");
        }
        for name in ["PATH", "KEYBOARD", "MONKEY", "TLS_KEY_FILE", "PASSWORD_FILE", "LANG"] {
            assert!(!looks_like_secret(name), "{name}");
        }
    }

    #[test]
    fn a_header_is_shown_as_it_is_written() {
        assert_eq!(header("backup-1"), "[jobs.backup-1]");
        assert_eq!(header("a.b"), "[jobs.\"a.b\"]");
    }
}
