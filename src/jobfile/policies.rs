//! The fields that say where and how often a fire runs, each checked by itself.

use std::collections::BTreeSet;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::found::{At, Found, Spot};
use super::names::{name_hint, nearest};
use super::remark::quoted;
use super::value::Field;
use super::when::{inside, is_short};
use crate::job::{
    After, CatchUp, DEFAULT_RETRY_DELAY, DEFAULT_RETRY_FACTOR, DEFAULT_RETRY_JITTER, DEFAULT_RETRY_MAX_DELAY,
    DEFAULT_START_WITHIN, EndsIn, Job, JobName, MutexName, Overlap, Priority, Promise, Retry, RetryOn, RunOn,
    Thousandths,
};
use crate::node::Selector;

const OVERLAPS: [(&str, Overlap); 4] = [
    ("skip", Overlap::Skip),
    ("allow", Overlap::Allow),
    ("queue", Overlap::Queue),
    ("replace", Overlap::Replace),
];
const PROMISES: [(&str, Promise); 2] =
    [("at-least-once", Promise::AtLeastOnce), ("at-most-once", Promise::AtMostOnce)];
const RUNS_ON: [(&str, RunOn); 2] = [("one-node", RunOn::OneNode), ("every-node", RunOn::EveryNode)];
const CATCHES_UP: [(&str, CatchUp); 3] =
    [("latest", CatchUp::Latest), ("all", CatchUp::All), ("none", CatchUp::None)];

const ENDS_IN: [(&str, EndsIn); 3] =
    [("success", EndsIn::Success), ("failure", EndsIn::Failure), ("any", EndsIn::Any)];

/// The word of `retry.on` that is no exit code.
const TIMEOUT: &str = "timeout";

const MOST_ATTEMPTS: u64 = 100;
/// More is a slip of the pen.
const LARGEST_FACTOR: Thousandths = Thousandths(100_000);

/// What a table says of these fields.
#[derive(Clone, Default)]
pub(super) struct Written {
    overlap: Option<Overlap>,
    promise: Option<Promise>,
    nodes: Option<Selector>,
    run_on: Option<RunOn>,
    catch_up: Option<CatchUp>,
    start_within: Option<At<Duration>>,
    retry: WrittenRetry,
    mutex: Option<MutexName>,
    priority: Option<Priority>,
    pub after: Option<At<After>>,
}

#[derive(Clone, Default)]
struct WrittenRetry {
    /// Where the table is.
    spot: Option<Spot>,
    /// Something of it is wrong, and was said.
    is_wrong: bool,
    attempts: Option<At<u64>>,
    delay: Option<At<Duration>>,
    factor: Option<Thousandths>,
    max_delay: Option<At<Duration>>,
    jitter: Option<Thousandths>,
    on: Option<RetryOn>,
}

/// These fields, checked.
pub(super) struct Policies {
    pub overlap: Overlap,
    pub promise: Promise,
    pub nodes: Option<Selector>,
    pub run_on: RunOn,
    pub catch_up: CatchUp,
    pub start_within: Duration,
    pub retry: Option<Retry>,
    pub mutex: Option<MutexName>,
    pub priority: Priority,
    pub after: Option<After>,
}

impl Written {
    /// Reads a field if it is one of these.
    pub(super) fn read(&mut self, name: &str, field: &Field<'_>, found: &mut Found) -> bool {
        match name {
            "overlap" => self.overlap = one_of(&OVERLAPS, field, found),
            "promise" => self.promise = one_of(&PROMISES, field, found),
            "nodes" => self.nodes = selector(field, found),
            "run_on" => self.run_on = one_of(&RUNS_ON, field, found),
            "catch_up" => self.catch_up = one_of(&CATCHES_UP, field, found),
            "start_within" => self.start_within = field.duration(found),
            "retry" => self.retry = WrittenRetry::read(field, found),
            "mutex" => self.mutex = mutex(field, found),
            "priority" => self.priority = priority(field, found),
            "after" => self.after = after(field, found),
            _ => return false,
        }
        true
    }

    /// What the job says, and where it is silent what the defaults say. `retry` is merged key by key.
    pub(super) fn or(self, defaults: Written) -> Written {
        Written {
            overlap: self.overlap.or(defaults.overlap),
            promise: self.promise.or(defaults.promise),
            nodes: self.nodes.or(defaults.nodes),
            run_on: self.run_on.or(defaults.run_on),
            catch_up: self.catch_up.or(defaults.catch_up),
            start_within: self.start_within.or(defaults.start_within),
            retry: self.retry.or(defaults.retry),
            mutex: self.mutex.or(defaults.mutex),
            priority: self.priority.or(defaults.priority),
            after: self.after,
        }
    }

    pub(super) fn check(self, found: &mut Found) -> Policies {
        Policies {
            overlap: self.overlap.unwrap_or(Overlap::Skip),
            promise: self.promise.unwrap_or(Promise::AtLeastOnce),
            nodes: self.nodes,
            run_on: self.run_on.unwrap_or_default(),
            catch_up: self.catch_up.unwrap_or_default(),
            start_within: self.start_within.map_or(DEFAULT_START_WITHIN, |within| within.value),
            retry: self.retry.check(found),
            mutex: self.mutex,
            priority: self.priority.unwrap_or_default(),
            after: self.after.map(|after| after.value),
        }
    }
}

impl WrittenRetry {
    fn read(retry: &Field<'_>, found: &mut Found) -> WrittenRetry {
        let mut written = WrittenRetry::default();
        let Some(table) = retry.table(found) else { return written };
        written.spot = Some(retry.spot.clone());
        written.read_keys(retry, table, found);
        written
    }

    fn read_keys(&mut self, retry: &Field<'_>, table: &DeTable<'_>, found: &mut Found) {
        for (key, value) in table {
            let field = |name| Field::new(retry.spot.file, name, value);
            let is_good = match &**key.get_ref() {
                "attempts" => {
                    self.attempts = field("retry.attempts").number(1, MOST_ATTEMPTS, found);
                    self.attempts.is_some()
                }
                "delay" => {
                    self.delay = field("retry.delay").duration(found);
                    self.delay.is_some()
                }
                "factor" => {
                    let (least, most) = (Thousandths(1000), LARGEST_FACTOR);
                    self.factor = field("retry.factor").decimal(least, most, found);
                    self.factor.is_some()
                }
                "max_delay" => {
                    self.max_delay = field("retry.max_delay").duration(found);
                    self.max_delay.is_some()
                }
                "jitter" => {
                    let (least, most) = (Thousandths(0), Thousandths(1000));
                    self.jitter = field("retry.jitter").decimal(least, most, found);
                    self.jitter.is_some()
                }
                "on" => {
                    self.on = retry_on(&field("retry.on"), found);
                    self.on.is_some()
                }
                name => {
                    let spot = Spot::new(retry.spot.file, key.span());
                    let hint = "retry has attempts, delay, factor, max_delay, jitter and on";
                    found.mistake(&spot, format!("unknown key {} in retry", quoted(name)), hint);
                    false
                }
            };
            self.is_wrong |= !is_good;
        }
    }

    fn or(self, defaults: WrittenRetry) -> WrittenRetry {
        WrittenRetry {
            spot: self.spot.or(defaults.spot),
            is_wrong: self.is_wrong || defaults.is_wrong,
            attempts: self.attempts.or(defaults.attempts),
            delay: self.delay.or(defaults.delay),
            factor: self.factor.or(defaults.factor),
            max_delay: self.max_delay.or(defaults.max_delay),
            jitter: self.jitter.or(defaults.jitter),
            on: self.on.or(defaults.on),
        }
    }

    fn check(self, found: &mut Found) -> Option<Retry> {
        let spot = self.spot?;
        let Some(attempts) = self.attempts else {
            // A misspelt one is not missing as well.
            if !self.is_wrong {
                let hint = "add how many attempts there are in all, like attempts = 3";
                found.mistake(&spot, "retry has no attempts", hint);
            }
            return None;
        };
        let delay = self.delay.map_or(DEFAULT_RETRY_DELAY, |delay| delay.value);
        if let Some(max_delay) = self.max_delay.as_ref().filter(|max_delay| max_delay.value < delay) {
            let show = humantime::format_duration;
            found.mistake(
                &max_delay.spot,
                format!("retry.max_delay ({}) is less than delay ({})", show(max_delay.value), show(delay)),
                None,
            );
        }
        Some(Retry {
            attempts: u32::try_from(attempts.value).expect("attempts are capped"),
            delay,
            factor: self.factor.unwrap_or(DEFAULT_RETRY_FACTOR),
            // Who says a longer delay means it.
            max_delay: self.max_delay.map_or(DEFAULT_RETRY_MAX_DELAY.max(delay), |most| most.value),
            jitter: self.jitter.unwrap_or(DEFAULT_RETRY_JITTER),
            on: self.on,
        })
    }
}

/// The fields of a job, as they can be written in a job file.
pub(super) fn fields(job: &Job) -> Vec<(&'static str, String)> {
    let text = |text: &str| format!("{text:?}");
    let duration = |duration| text(&humantime::format_duration(duration).to_string());
    let mut fields = vec![
        ("overlap", text(word_of(&OVERLAPS, job.overlap))),
        ("promise", text(word_of(&PROMISES, job.promise))),
    ];
    fields.extend(job.nodes.as_ref().map(|nodes| ("nodes", text(&nodes.to_string()))));
    fields.push(("run_on", text(word_of(&RUNS_ON, job.run_on))));
    fields.push(("catch_up", text(word_of(&CATCHES_UP, job.catch_up))));
    fields.push(("start_within", duration(job.start_within)));
    fields.extend(job.retry.as_ref().map(|retry| {
        let on = retry.on.as_ref().map_or(String::new(), |on| {
            let codes = on.exit_codes.iter().map(u8::to_string);
            let items: Vec<_> = codes.chain(on.timeout.then(|| text(TIMEOUT))).collect();
            format!(", on = [{}]", items.join(", "))
        });
        let Retry { attempts, delay, factor, max_delay, jitter, .. } = retry;
        let (delay, max_delay) = (duration(*delay), duration(*max_delay));
        let shown = format!(
            "{{ attempts = {attempts}, delay = {delay}, factor = {factor}, max_delay = {max_delay}, \
             jitter = {jitter}{on} }}"
        );
        ("retry", shown)
    }));
    fields.extend(job.mutex.as_ref().map(|mutex| ("mutex", text(mutex.as_str()))));
    if job.priority != Priority::default() {
        fields.push(("priority", job.priority.to_string()));
    }
    fields.extend(job.after.as_ref().map(|after| ("after", show_after(after))));
    fields
}

/// As it can be written in a job file: a list where it can be one.
fn show_after(after: &After) -> String {
    let jobs: Vec<_> = after.jobs.iter().map(|job| format!("{:?}", job.as_str())).collect();
    let jobs = format!("[{}]", jobs.join(", "));
    match (after.all, after.on) {
        (true, EndsIn::Success) => jobs,
        (all, on) => {
            let which = if all { "all" } else { "any" };
            format!("{{ {which} = {jobs}, on = {:?} }}", word_of(&ENDS_IN, on))
        }
    }
}

fn word_of<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, of)| *of == value).expect("each value has its word").0
}

/// What one of these words stands for.
fn one_of<T: Copy>(words: &[(&'static str, T)], field: &Field<'_>, found: &mut Found) -> Option<T> {
    let text = field.text(found)?;
    let known = words.iter().find(|(word, _)| *word == text.value);
    if known.is_none() {
        let all: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        let (last, others) = all.split_last().expect("there are words");
        let message =
            format!("{} must be {} or {last}, not {}", field.name, others.join(", "), quoted(&text.value));
        let hint = nearest(&text.value, words.iter().map(|(word, _)| *word));
        found.mistake(&field.spot, message, hint.as_deref());
    }
    known.map(|(_, value)| *value)
}

fn mutex(field: &Field<'_>, found: &mut Found) -> Option<MutexName> {
    let text = field.text(found)?;
    let mutex = text.value.parse().ok();
    if mutex.is_none() {
        let message = format!("bad name of a mutex: {}", quoted(&text.value));
        found.mistake(&text.spot, message, &*name_hint(&text.value));
    }
    mutex
}

fn priority(field: &Field<'_>, found: &mut Found) -> Option<Priority> {
    let number = field.number(0, Priority::HIGHEST.get().into(), found)?;
    Priority::try_from(number.value).ok()
}

/// A list of jobs, all of which must succeed; or a table with `all` or `any`, and `on`.
fn after(field: &Field<'_>, found: &mut Found) -> Option<At<After>> {
    const HINT: &str = "write after = [\"a\", \"b\"], or after = { any = [\"a\"], on = \"failure\" }";
    let at = |value| Some(At { value, spot: field.spot.clone() });
    let DeValue::Table(table) = field.value else {
        let jobs = job_names(field, found)?;
        return at(After { jobs, all: true, on: EndsIn::Success });
    };
    let (mut all, mut any, mut on, mut is_good) = (None, None, None, true);
    for (key, value) in table {
        let inner = |name| Field::new(field.spot.file, name, value);
        match &**key.get_ref() {
            "all" => {
                all = job_names(&inner("after.all"), found);
                is_good &= all.is_some();
            }
            "any" => {
                any = job_names(&inner("after.any"), found);
                is_good &= any.is_some();
            }
            "on" => {
                on = one_of(&ENDS_IN, &inner("after.on"), found);
                is_good &= on.is_some();
            }
            name => {
                let spot = Spot::new(field.spot.file, key.span());
                found.mistake(
                    &spot,
                    format!("unknown key {} in after", quoted(name)),
                    "after has all or any, and on",
                );
                is_good = false;
            }
        }
    }
    let (jobs, all) = match (all, any) {
        _ if !is_good => return None,
        (Some(jobs), None) => (jobs, true),
        (None, Some(jobs)) => (jobs, false),
        (Some(_), Some(_)) => {
            found.mistake(&field.spot, "after has both all and any", HINT);
            return None;
        }
        (None, None) => {
            found.mistake(&field.spot, "after names no jobs", HINT);
            return None;
        }
    };
    at(After { jobs, all, on: on.unwrap_or_default() })
}

fn job_names(field: &Field<'_>, found: &mut Found) -> Option<BTreeSet<JobName>> {
    let texts = field.texts(found)?;
    let mut names = BTreeSet::new();
    for text in &texts.value {
        match text.value.parse::<JobName>() {
            Ok(name) if !name.is_of_tasks() => _ = names.insert(name),
            _ => {
                found.mistake(
                    &text.spot,
                    format!("bad job name: {}", quoted(&text.value)),
                    &*name_hint(&text.value),
                );
            }
        }
    }
    (!names.is_empty()).then_some(names)
}

fn selector(field: &Field<'_>, found: &mut Found) -> Option<Selector> {
    const HINT: &str =
        "write it like \"role=db, zone notin (eu-west, eu-north), !spot\"; without it any node will do";
    if matches!(field.value, DeValue::String(text) if text.trim().is_empty()) {
        found.mistake(&field.spot, "nodes is empty", HINT);
        return None;
    }
    let text = field.text(found)?;
    if !is_short(&text, found) {
        return None;
    }
    match text.value.parse() {
        Ok(selector) => Some(selector),
        Err(error) => {
            // Behind the last letter there is still the quote to point at.
            let spot = inside(&text, error.at.start..error.at.end.max(error.at.start + 1), found);
            found.mistake(&spot, format!("bad nodes: {error}"), HINT);
            None
        }
    }
}

fn retry_on(field: &Field<'_>, found: &mut Found) -> Option<RetryOn> {
    const HINT: &str = "write a list of exit codes, and \"timeout\" for a time-out, like [75, \"timeout\"]";
    let DeValue::Array(_) = field.value else {
        return field.wrong_type("a list of exit codes", found, Some(HINT));
    };
    let mut on = RetryOn { exit_codes: BTreeSet::new(), timeout: false };
    let mut good = true;
    for item in field.items("a list", found)? {
        match item.value {
            DeValue::String(text) if text == TIMEOUT => on.timeout = true,
            DeValue::String(text) => {
                let message = format!("{} has exit codes and \"timeout\", not {}", field.name, quoted(text));
                found.mistake(&item.spot, message, HINT);
                good = false;
            }
            _ => match item.number(0, 255, found).and_then(|code| u8::try_from(code.value).ok()) {
                Some(code) => _ = on.exit_codes.insert(code),
                None => good = false,
            },
        }
    }
    good.then_some(on)
}
