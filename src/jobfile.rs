//! The job file: from the texts of TOML files to checked jobs, or to every mistake in them at once.
//!
//! Pure: the texts come from `files`, the jobs go to the store or to the planner. A set of files is taken whole
//! or not at all, so one mistake anywhere means that there are no jobs.
//!
//! `[defaults]` are for the jobs of their own file: what a job does can be read in one file, and a file put
//! beside it changes nothing.

mod chains;
mod document;
mod fields;
mod found;
mod names;
mod plan;
mod limits;
mod policies;
mod remark;
mod terms;
mod value;
mod when;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use self::fields::{FIELDS, Written};
use self::found::{At, Found, Spot};
use self::limits::Limits;
use self::names::{name_hint, nearest};
pub use self::plan::{Change, FieldChange, Plan, fields, plan};
use self::remark::quoted;
pub use self::remark::{Mistake, Place, Remark, Warning};
use self::value::Field;
use crate::job::{Job, JobName, MutexName, SourceName};
use crate::schedule::Timestamp;

/// One file, as it was read.
#[derive(Debug, Clone, Copy)]
pub struct SourceFile<'a> {
    /// As people know it; it is only shown.
    pub path: &'a str,
    pub text: &'a str,
}

/// What a set of files without a mistake says. It may have no job at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFile {
    pub source: SourceName,
    /// Whether a file says the source, or it is the default one.
    pub source_named: bool,
    /// Sorted by name.
    pub jobs: Vec<Job>,
    /// How many may have a mutex, or run of a queue, at once.
    pub limits: BTreeMap<MutexName, u32>,
    /// Where each job's name is written.
    pub places: BTreeMap<JobName, Place>,
    /// Sorted by file and place.
    pub warnings: Vec<Warning>,
    /// Where the texts of each job's schedule are written.
    schedule_spots: BTreeMap<JobName, Vec<Spot>>,
}

/// Every mistake of a set of files, sorted by file and place; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes {
    pub shown: Vec<Mistake>,
    /// How many more there are: of thousands only the first are shown.
    pub left_out: usize,
}

impl std::error::Error for Mistakes {}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mistake in &self.shown {
            writeln!(f, "{mistake}\n")?;
        }
        match self.shown.len() + self.left_out {
            1 => f.write_str("1 mistake; nothing is applied"),
            all if self.left_out == 0 => write!(f, "{all} mistakes; nothing is applied"),
            all => write!(f, "{all} mistakes, {} of them not shown; nothing is applied", self.left_out),
        }
    }
}

/// Reads and checks the files of one source.
pub fn parse(files: &[SourceFile<'_>]) -> Result<JobFile, Mistakes> {
    let mut found = Found::new(files);
    let documents: Vec<_> = files
        .iter()
        .enumerate()
        .filter_map(|(file, source)| Some((file, document::read(file, source, &mut found)?)))
        .collect();

    let mut sources = Vec::new();
    let mut drafts = Vec::new();
    let mut limits = Limits::default();
    for (file, document) in &documents {
        read_document(*file, document, &mut sources, &mut limits, &mut drafts, &mut found);
    }
    let source = agreed_source(sources, &mut found);
    let drafts = without_clashes(drafts, &mut found);
    check_former_names(&drafts, &mut found);
    let after_spots =
        drafts.iter().filter_map(|(name, draft)| Some((name.clone(), draft.written.after_spot()?))).collect();

    let mut jobs = Vec::new();
    let mut places = BTreeMap::new();
    let mut schedule_spots = BTreeMap::new();
    let mut without_zone = Vec::new();
    for (name, draft) in drafts {
        places.insert(name.clone(), found.place(&draft.spot));
        if let Some(checked) = draft.written.check(&name, &draft.spot, &draft.defaults, &mut found) {
            if checked.takes_utc {
                without_zone.push((draft.spot, name.clone()));
            }
            schedule_spots.insert(name, checked.schedule_spots);
            jobs.push(checked.job);
        }
    }
    warn_of_utc(without_zone, &mut found);
    chains::check(&jobs, &after_spots, &mut found);

    let warnings = found.end()?;
    let source_named = source.is_some();
    Ok(JobFile {
        source: source.unwrap_or_default(),
        source_named,
        jobs,
        limits: limits.end(),
        places,
        warnings,
        schedule_spots,
    })
}

/// What is valid in the schedules and probably not meant, as seen at `now`. It looks a year ahead for each job,
/// so it is for those who check files and not for those who load them. `files` are those that were parsed.
pub fn schedule_warnings(parsed: &JobFile, files: &[SourceFile<'_>], now: Timestamp) -> Vec<Warning> {
    let mut found = Found::new(files);
    let jobs = parsed.jobs.iter().filter(|job| job.enabled);
    let jobs = jobs.filter_map(|job| Some((job, parsed.schedule_spots.get(&job.name)?.as_slice())));
    when::warn(jobs, now, &mut found);
    found.end().unwrap_or_default()
}

/// A job as one file writes it.
struct Draft {
    name: At<JobName>,
    written: Written,
    defaults: Rc<Written>,
}

/// The same, under its name.
struct Named {
    spot: Spot,
    written: Written,
    defaults: Rc<Written>,
}

const TABLES: [&str; 4] = ["source", "defaults", "limits", "jobs"];

/// The top of one file: `[source]`, `[defaults]`, `[limits]` and `[jobs.NAME]`.
fn read_document(
    file: usize,
    document: &DeTable<'_>,
    sources: &mut Vec<At<SourceName>>,
    limits: &mut Limits,
    drafts: &mut Vec<Draft>,
    found: &mut Found<'_>,
) {
    let mut defaults = Written::default();
    let mut jobs = None;
    for (key, value) in document {
        let spot = Spot::new(file, key.span());
        let field = Field::new(file, key.get_ref(), value);
        match field.name {
            "source" => sources.extend(field.table(found).and_then(|table| source_name(file, table, found))),
            "defaults" => {
                if let Some(table) = field.table(found) {
                    defaults = Written::defaults(file, table, found);
                }
            }
            "jobs" => jobs = jobs_table(&spot, &field, found),
            "limits" => {
                if let Some(table) = field.table(found) {
                    limits.read(file, table, found);
                }
            }
            name => refuse_at_top(&spot, name, &field, found),
        }
    }
    let defaults = Rc::new(defaults);
    for (key, value) in jobs.into_iter().flatten() {
        let Some((name, spot, written)) = read_job(file, key, value, found) else { continue };
        match name {
            Some(value) => {
                let defaults = defaults.clone();
                drafts.push(Draft { name: At { value, spot }, written, defaults });
            }
            // Checked also when the name is bad, so that all that is wrong is said in one go.
            None => {
                let nameless = "nameless".parse().expect("a good name");
                written.check(&nameless, &spot, &defaults, found);
            }
        }
    }
}

fn source_name(file: usize, table: &DeTable<'_>, found: &mut Found<'_>) -> Option<At<SourceName>> {
    let mut source = None;
    for (key, value) in table {
        let field = Field::new(file, key.get_ref(), value);
        if field.name != "name" {
            let message = format!("unknown key {} in [source]", quoted(field.name));
            found.mistake(&Spot::new(file, key.span()), message, "[source] has one key, name");
            continue;
        }
        let Some(text) = field.text(found) else { continue };
        match text.value.parse::<SourceName>() {
            Ok(value) => source = Some(At { value, spot: text.spot }),
            Err(_) => {
                let message = format!("bad name of a source: {}", quoted(&text.value));
                found.mistake(&text.spot, message, &*name_hint(&text.value));
            }
        }
    }
    source
}

fn jobs_table<'v>(key: &Spot, jobs: &Field<'v>, found: &mut Found<'_>) -> Option<&'v DeTable<'v>> {
    if let DeValue::Array(_) = jobs.value {
        let hint = "each job has a table of its own with its name: [jobs.NAME]";
        found.mistake(key, "jobs must be tables, not a list", hint);
        return None;
    }
    jobs.table(found)
}

fn refuse_at_top(key: &Spot, name: &str, field: &Field<'_>, found: &mut Found<'_>) {
    let hint = match field.value {
        _ if found.is_full() => None,
        DeValue::Table(_) => nearest(name, TABLES.into_iter())
            .or(Some("a job's table is [jobs.NAME]; other tables are [source] and [defaults]".to_owned())),
        _ if FIELDS.contains(&name) => Some("a job's fields stand below its header, [jobs.NAME]".to_owned()),
        _ => nearest(name, TABLES.into_iter()),
    };
    let what = if let DeValue::Table(_) = field.value { "table" } else { "key" };
    found.mistake(key, format!("unknown {what} {}", quoted(name)), hint.as_deref());
}

fn read_job(
    file: usize,
    key: &Spanned<toml::de::DeString<'_>>,
    value: &Spanned<DeValue<'_>>,
    found: &mut Found<'_>,
) -> Option<(Option<JobName>, Spot, Written)> {
    let spot = Spot::new(file, key.span());
    let text: &str = key.get_ref();
    let name = text.parse::<JobName>().ok().filter(|name| !name.is_of_tasks());
    if name.is_none() {
        found.mistake(&spot, format!("bad job name: {}", quoted(text)), &*name_hint(text));
    }
    let DeValue::Table(table) = value.get_ref() else {
        let message = format!("{} must be a table", fields::header(text));
        let hint = match FIELDS.contains(&text) {
            true => "a job's fields stand below its own header, [jobs.NAME]",
            false => "a job is a table with a schedule and a command",
        };
        found.mistake(&spot, message, hint);
        return None;
    };
    let written = Written::job(file, text, &spot, table, found);
    Some((name, spot, written))
}

/// The name that all files which give one agree on.
fn agreed_source(sources: Vec<At<SourceName>>, found: &mut Found<'_>) -> Option<SourceName> {
    let mut sources = sources.into_iter();
    let first = sources.next()?;
    for other in sources.filter(|other| other.value != first.value) {
        let message = format!(
            "the source is called {} here and {} at {}",
            other.value,
            first.value,
            found.place(&first.spot)
        );
        found.mistake(&other.spot, message, "files that are read together are one source; sync others apart");
    }
    Some(first.value)
}

fn without_clashes(drafts: Vec<Draft>, found: &mut Found<'_>) -> BTreeMap<JobName, Named> {
    let mut named: BTreeMap<JobName, Named> = BTreeMap::new();
    for Draft { name, written, defaults } in drafts {
        if let Some(first) = named.get(&name.value) {
            let message = format!("job {} is already defined at {}", name.value, found.place(&first.spot));
            found.mistake(&name.spot, message, "give one of them another name");
            written.check(&name.value, &name.spot, &defaults, found);
            continue;
        }
        named.insert(name.value, Named { spot: name.spot, written, defaults });
    }
    named
}

/// A former name belongs to one job and is no job any more; else two would share one history.
fn check_former_names(jobs: &BTreeMap<JobName, Named>, found: &mut Found<'_>) {
    let mut taken: BTreeMap<&JobName, &Spot> = BTreeMap::new();
    for (name, job) in jobs {
        let Some(was) = &job.written.was else { continue };
        if was.value == *name {
            found.mistake(&was.spot, "was names the job itself", "it is for the name the job had before");
        } else if let Some(other) = jobs.get(&was.value) {
            let message =
                format!("was names a job that exists: {} at {}", was.value, found.place(&other.spot));
            found.mistake(&was.spot, message, "remove that job, or leave was out");
        } else if let Some(first) = taken.insert(&was.value, &was.spot) {
            let message =
                format!("{} was named as a former name at {} already", was.value, found.place(first));
            found.mistake(&was.spot, message, "one job goes on with a history");
        }
    }
}

/// Said once for all files, because it is one decision.
fn warn_of_utc(mut jobs: Vec<(Spot, JobName)>, found: &mut Found<'_>) {
    jobs.sort();
    let Some((first, name)) = jobs.first() else { return };
    let message = match jobs.len() {
        1 => format!("job {name} has no timezone and runs by UTC"),
        many => format!("{many} jobs have no timezone and run by UTC, the first is {name}"),
    };
    let hint =
        "put timezone = \"Europe/Berlin\" or the like into [defaults]; timezone = \"UTC\" ends this warning";
    found.warning(first, message, hint);
}
