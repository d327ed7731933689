//! Reading histories: the newest entries of one job or of all, in memory for no more than is asked for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::row::{WAITING, outcome_of_lock};
use crate::cli::failure::Failure;
use crate::cli::read::{self, MutexWait, Pages, UnderWay, lock_of, say_unreadable};
use crate::fire::Fire;
use crate::job::JobName;
use crate::node::NodeName;
use crate::record::Record;
use crate::schedule::Timestamp;
use crate::store::values::{self, Definition};
use crate::store::{self, KeyRange, Store, keys};

/// What is known of a fire.
pub enum Entry {
    UnderWay(UnderWay),
    /// It waits for its mutex.
    Waits(MutexWait),
    Decided {
        record: Record,
        /// Whether it came after the fire had another record.
        late: bool,
    },
}

impl Entry {
    pub fn fire(&self) -> &Fire {
        match self {
            Entry::UnderWay(run) => &run.fire,
            Entry::Waits(wait) => &wait.fire,
            Entry::Decided { record, .. } => &record.fire,
        }
    }

    pub fn node(&self) -> Option<&NodeName> {
        match self {
            Entry::UnderWay(run) => Some(&run.lock.node),
            Entry::Waits(wait) => Some(&wait.node),
            Entry::Decided { record, .. } => record.run.as_ref().map(|run| &run.node),
        }
    }

    fn outcome(&self) -> &'static str {
        match self {
            Entry::UnderWay(run) => outcome_of_lock(run),
            Entry::Waits(_) => WAITING,
            Entry::Decided { record, .. } => record.outcome.word(),
        }
    }
}

/// Whose history: all jobs', or one's under all the names it had.
pub struct History(Option<BTreeSet<JobName>>);

impl History {
    /// The history of the job of this name, also when it is gone.
    ///
    /// Errors: there never was such a job, as far as anything is left of it.
    pub async fn of(store: &Store, job: Option<&str>) -> Result<History, Failure> {
        let Some(job) = job else { return Ok(History(None)) };
        let job = read::job_name(job)?;
        let former = former_names(store).await?;
        let mut names = BTreeSet::from([job.clone()]);
        // Both ways, so that either name tells the whole story.
        let mut grows = true;
        while grows {
            let before = names.len();
            for (now, was) in &former.pairs {
                if names.contains(now) || names.contains(was) {
                    names.extend([now.clone(), was.clone()]);
                }
            }
            grows = names.len() > before;
        }
        let history = History(Some(names));
        if !former.defined.contains(&job) && !history.has_anything(store).await? {
            return Err(read::no_such_job(store, &job).await?);
        }
        Ok(history)
    }

    async fn has_anything(&self, store: &Store) -> Result<bool, Failure> {
        let mut pages = Pages::new(store, self.locks().into_iter().chain(self.records()));
        Ok(pages.next().await?.is_some())
    }

    fn has(&self, job: &JobName) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(job))
    }

    fn locks(&self) -> Vec<KeyRange> {
        self.ranges(keys::locks(), keys::locks_of)
    }

    fn records(&self) -> Vec<KeyRange> {
        self.ranges(keys::records(), keys::records_of)
    }

    fn ranges(&self, all: KeyRange, of: impl Fn(&JobName) -> KeyRange) -> Vec<KeyRange> {
        match &self.0 {
            None => vec![all],
            Some(names) => names.iter().map(of).collect(),
        }
    }
}

struct FormerNames {
    defined: BTreeSet<JobName>,
    /// A job's name and the one it had before.
    pairs: Vec<(JobName, JobName)>,
}

async fn former_names(store: &Store) -> Result<FormerNames, Failure> {
    let mut names = FormerNames { defined: BTreeSet::new(), pairs: Vec::new() };
    let jobs = Pages::new(store, [keys::jobs()]);
    jobs.each(|entry| {
        // What cannot be read is a matter of `jobs`; its history can be shown all the same.
        if let Ok(name) = keys::name_of(&entry.key).parse::<JobName>() {
            let was = Definition::decode(&entry.key, &entry.value).ok().and_then(|found| found.job.was);
            names.pairs.extend(was.map(|was| (name.clone(), was)));
            names.defined.insert(name);
        }
    })
    .await?;
    Ok(names)
}

/// Which entries count.
pub struct Filter {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// None at all: any.
    pub outcomes: Vec<String>,
    pub node: Option<NodeName>,
    pub with: With,
}

/// What an entry must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum With {
    Anything,
    /// A run, so that there may be output.
    Run,
}

impl Filter {
    fn takes(&self, entry: &Entry) -> bool {
        let at = entry.fire().scheduled_at();
        let last = match entry {
            Entry::Decided { record, .. } => record.span.map_or(at, |span| span.last),
            Entry::UnderWay(_) | Entry::Waits(_) => at,
        };
        self.since.is_none_or(|since| last >= since)
            && self.until.is_none_or(|until| at < until)
            && (self.outcomes.is_empty() || self.outcomes.iter().any(|word| word == entry.outcome()))
            && self.node.as_ref().is_none_or(|node| entry.node() == Some(node))
            && (self.with == With::Anything || (entry.node().is_some() && !matches!(entry, Entry::Waits(_))))
    }
}

/// The newest entries, newest first.
pub struct Newest {
    pub entries: Vec<Entry>,
    /// How many could not be read, which was said.
    pub unreadable: usize,
}

/// Reads through a history and keeps the newest `limit` entries that the filter takes.
pub async fn newest(
    store: &Store,
    history: &History,
    filter: &Filter,
    limit: usize,
) -> Result<Newest, Failure> {
    let mut kept = Kept { limit, filter, entries: BTreeMap::new(), unreadable: 0, count: 0 };
    let waits = read::mutex_waits(store).await?;
    waits
        .into_iter()
        .filter(|wait| history.has(&wait.fire.job))
        .for_each(|wait| kept.take(Some(Entry::Waits(wait))));
    // Locks first: a run that ends between the two is then seen twice rather than not at all, and its record counts.
    Pages::new(store, history.locks()).each(|entry| kept.take(lock_of(&entry).map(Entry::UnderWay))).await?;
    let records = Pages::new(store, history.records());
    records.each(|entry| kept.record(&entry)).await?;
    Ok(Newest { entries: kept.entries.into_values().collect(), unreadable: kept.unreadable })
}

/// Newest first; of the same instant by job, lane and fire, a late result behind the record it came after.
type Rank = (Reverse<Timestamp>, String, bool, u64);

struct Kept<'f> {
    limit: usize,
    filter: &'f Filter,
    entries: BTreeMap<Rank, Entry>,
    unreadable: usize,
    count: u64,
}

impl Kept<'_> {
    fn record(&mut self, entry: &store::Entry) {
        let Some((fire, late)) = recorded(&entry.key) else { return };
        // What is older than all that is kept need not be looked into.
        if self.is_full()
            && self.entries.last_key_value().is_some_and(|(rank, _)| rank.0.0 > fire.scheduled_at())
        {
            return;
        }
        match values::decode_record(fire, &entry.key, &entry.value) {
            Ok(record) => self.take(Some(Entry::Decided { record, late })),
            Err(error) => {
                say_unreadable(&error);
                self.unreadable += 1;
            }
        }
    }

    fn take(&mut self, entry: Option<Entry>) {
        let Some(entry) = entry.filter(|entry| self.filter.takes(entry)) else { return };
        let fire = entry.fire();
        let late = matches!(entry, Entry::Decided { late: true, .. });
        // Late results of one fire are told apart; a lock and a record of it are the same thing at two moments.
        let number = if late { self.count + 1 } else { 0 };
        self.count += 1;
        let rank =
            (Reverse(fire.scheduled_at()), format!("{}/{}/{}", fire.job, fire.lane, fire.id), late, number);
        self.entries.insert(rank, entry);
        if self.entries.len() > self.limit {
            self.entries.pop_last();
        }
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= self.limit
    }
}

/// The fire that a key of `history/` is about, and whether it is a late result.
pub fn recorded(key: &str) -> Option<(Fire, bool)> {
    match key.rsplit_once('/') {
        Some((fire, last)) if last.starts_with("late-") => Some((keys::fire_of(fire)?, true)),
        _ => Some((keys::fire_of(key)?, false)),
    }
}
