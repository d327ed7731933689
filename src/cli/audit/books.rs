//! The books: what the store holds of each lane, read once through at one revision, and judged lane by lane.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Question;
use super::journals::Shelf;
use crate::audit::{self, Held, Report};
use crate::cli::failure::Failure;
use crate::cli::read::{self, Pages, lock_of, say_unreadable};
use crate::cli::runs::recorded;
use crate::fire::{Fire, FireId, Lane};
use crate::job::{JobName, RunOn};
use crate::node::NodeName;
use crate::planner::{Dues, Reign};
use crate::record::Record;
use crate::schedule::Timestamp;
use crate::store::values::{self, Definition, Former, Unreadable};
use crate::store::{Entry, KeyRange, Store, keys};
use crate::warden;

/// All lanes that were judged.
#[derive(Default)]
pub struct Lanes {
    pub reports: BTreeMap<(JobName, Lane), Report>,
    /// How many values could not be read, which was said.
    pub unreadable: usize,
}

/// So often the store is read anew when it forgets the revision at which it is read.
const TRIES: usize = 3;

/// Judges all lanes in question.
///
/// Errors: the store does not answer; or nothing is known of a job that was named.
pub async fn judge(store: &Store, question: &Question, shelf: Option<&Shelf>) -> Result<Lanes, Failure> {
    for _ in 0..TRIES {
        let Some(lanes) = read_through(store, question, shelf).await? else { continue };
        let known: BTreeSet<&JobName> = lanes.reports.keys().map(|(job, _)| job).collect();
        return match question.scope.names().iter().find(|name| !known.contains(name)) {
            Some(missing) if lanes.unreadable == 0 => Err(read::no_such_job(store, missing).await?),
            _ => Ok(lanes),
        };
    }
    Err(Failure::asked("the store forgets its revisions faster than they can be read: ask for fewer jobs"))
}

/// None: not all was read at one revision, so locks and records may not fit together.
async fn read_through(
    store: &Store,
    question: &Question,
    shelf: Option<&Shelf>,
) -> Result<Option<Lanes>, Failure> {
    let scope = &question.scope;
    let ranges = [
        scope.definitions(),
        scope.ranges(keys::all_jobs_before(), keys::jobs_before),
        scope.ranges(keys::floors(), keys::floors_of),
        vec![keys::nodes()],
        scope.locks(),
        // Last, so that each lane can be judged as soon as its records are read.
        scope.ranges(keys::records(), keys::records_of),
    ];
    let mut books = Books::new(question, shelf);
    let mut pages = Pages::new(store, ranges.concat::<KeyRange>());
    while let Some(entries) = pages.next().await? {
        if pages.have_moved() {
            return Ok(None);
        }
        entries.into_iter().for_each(|entry| books.take(entry));
    }
    Ok(Some(books.close()))
}

/// What was read so far.
struct Books<'q> {
    question: &'q Question,
    shelf: Option<&'q Shelf>,
    jobs: HashMap<JobName, Definitions>,
    floors: HashMap<(JobName, Lane), Timestamp>,
    nodes: BTreeSet<NodeName>,
    locks: HashMap<(JobName, Lane), Vec<Held>>,
    /// The lane whose records are being read.
    open: Option<((JobName, Lane), History)>,
    lanes: Lanes,
}

/// A job's definitions, the oldest first.
#[derive(Default)]
struct Definitions {
    reigns: Vec<Reign>,
    in_force: Option<Reign>,
    has_unreadable: bool,
}

/// The records of a lane, as far as they matter.
#[derive(Default)]
struct History {
    /// By the schedule, and asked for.
    oldest: [Option<Timestamp>; 2],
    records: Vec<Record>,
    late: Vec<Record>,
    unreadable: Vec<(Timestamp, Timestamp)>,
    /// The newest of before the time asked about: it may reach into it. Of the schedule, and of requests.
    before: [Option<Entry>; 2],
}

impl<'q> Books<'q> {
    fn new(question: &'q Question, shelf: Option<&'q Shelf>) -> Books<'q> {
        Books {
            question,
            shelf,
            jobs: HashMap::new(),
            floors: HashMap::new(),
            nodes: BTreeSet::new(),
            locks: HashMap::new(),
            open: None,
            lanes: Lanes::default(),
        }
    }

    fn take(&mut self, entry: Entry) {
        match entry.key.split('/').next() {
            Some("jobs") => self.definition(&entry),
            Some("jobs-before") => self.former(&entry),
            Some("decided") => self.floor(&entry),
            Some("nodes") => self.nodes.extend(keys::name_of(&entry.key).parse::<NodeName>()),
            Some("locks") => self.lock(&entry),
            Some("history") => self.record(entry),
            _ => {}
        }
    }

    fn definition(&mut self, entry: &Entry) {
        let Ok(name) = keys::name_of(&entry.key).parse::<JobName>() else { return };
        let found = Definition::decode(&entry.key, &entry.value);
        let found = self.readable(found);
        let of_job = self.jobs.entry(name).or_default();
        match found {
            Some(definition) => of_job.in_force = Some(definition.into()),
            None => of_job.has_unreadable = true,
        }
    }

    fn former(&mut self, entry: &Entry) {
        let Some(name) = keys::former_job(&entry.key) else { return };
        let found = Former::decode(&entry.key, &entry.value);
        let found = self.readable(found);
        let of_job = self.jobs.entry(name).or_default();
        match found {
            Some(former) => of_job.reigns.push(former.into()),
            None => of_job.has_unreadable = true,
        }
    }

    fn floor(&mut self, entry: &Entry) {
        let Some(lane) = keys::lane_of(&entry.key) else { return };
        let floor = warden::read_floor(entry).map(|(floor, _)| floor);
        let why = || Unreadable { key: entry.key.clone(), why: "it is no scheduled fire's id".to_owned() };
        let floor = floor.ok_or_else(why);
        if let Some(floor) = self.readable(floor) {
            self.floors.insert(lane, floor);
        }
    }

    fn lock(&mut self, entry: &Entry) {
        let Some(fire) = keys::fire_of(&entry.key) else { return };
        let Some(found) = lock_of(entry) else {
            self.lanes.unreadable += 1;
            return;
        };
        let held = Held {
            is_running: found.is_running(),
            claim: found.lock.facts(found.token),
            past: found.lock.past(),
            fire: fire.clone(),
        };
        self.locks.entry((fire.job, fire.lane)).or_default().push(held);
    }

    fn record(&mut self, entry: Entry) {
        let Some((fire, late)) = recorded(&entry.key) else { return };
        let lane = (fire.job.clone(), fire.lane.clone());
        if self.open.as_ref().is_none_or(|(open, _)| *open != lane)
            && let Some((lane, history)) = self.open.replace((lane, History::default()))
        {
            self.judge(lane, history);
        }
        let Some((_, history)) = &mut self.open else { return };
        let at = fire.scheduled_at();
        if !late {
            let oldest = &mut history.oldest[kind(&fire)];
            *oldest = Some(oldest.map_or(at, |oldest| oldest.min(at)));
        }
        if at >= self.question.until {
            return;
        }
        if at < self.question.since {
            if !late {
                history.keep_before(&fire, entry);
            }
            return;
        }
        self.lanes.unreadable += history.decode(fire, late, &entry);
    }

    fn close(mut self) -> Lanes {
        if let Some((lane, history)) = self.open.take() {
            self.judge(lane, history);
        }
        // Those without a record.
        let one_node = |(name, definitions): (&JobName, &Definitions)| {
            let is_one = |reign: &Reign| reign.job.run_on == RunOn::OneNode;
            let is_one = definitions.in_force.as_ref().is_none_or(is_one);
            (is_one && (definitions.in_force.is_some() || definitions.has_unreadable))
                .then(|| (name.clone(), Lane::OneNode))
        };
        let told = self.shelf.into_iter().flat_map(|shelf| shelf.entries.keys());
        let told =
            told.filter(|(job, _)| self.question.scope.is_all() || self.question.scope.names().contains(job));
        let all = self.floors.keys().chain(self.locks.keys()).chain(told).cloned();
        let all: BTreeSet<_> = all.chain(self.jobs.iter().filter_map(one_node)).collect();
        for lane in all {
            if !self.lanes.reports.contains_key(&lane) {
                self.judge(lane, History::default());
            }
        }
        self.lanes
    }

    fn judge(&mut self, lane: (JobName, Lane), mut history: History) {
        self.lanes.unreadable += history.decode_before();
        let definitions = self.jobs.get(&lane.0);
        let dues = definitions.map(|definitions| definitions.dues(&lane.1)).unwrap_or_default();
        let report = audit::judge(&audit::Books {
            dues: &dues,
            dues_are_known: definitions.is_none_or(|definitions| !definitions.has_unreadable),
            floor: self.floors.get(&lane).copied(),
            is_attended: match &lane.1 {
                Lane::OneNode => true,
                Lane::Node(node) => self.nodes.contains(node),
            },
            oldest: history.oldest[0],
            oldest_asked: history.oldest[1],
            records: &history.records,
            late: &history.late,
            locks: self.locks.get(&lane).map_or(&[], Vec::as_slice),
            unreadable: &history.unreadable,
            journals: self.shelf.map(|shelf| &shelf.journals),
            entries: self.shelf.and_then(|shelf| shelf.entries.get(&lane)).map_or(&[], Vec::as_slice),
            since: self.question.since,
            until: self.question.until,
            now: self.question.now,
            skew: self.question.skew,
        });
        self.lanes.reports.insert(lane, report);
    }

    fn readable<T>(&mut self, read: Result<T, Unreadable>) -> Option<T> {
        read.inspect_err(|error| {
            say_unreadable(error);
            self.lanes.unreadable += 1;
        })
        .ok()
    }
}

impl Definitions {
    /// What was due in a lane: only the definitions that have such a lane count in it.
    fn dues(&self, lane: &Lane) -> Dues {
        let has_lane = |reign: &&Reign| match lane {
            Lane::OneNode => reign.job.run_on == RunOn::OneNode,
            Lane::Node(_) => reign.job.run_on == RunOn::EveryNode,
        };
        // Cut by all of them first.
        let all = Dues::new(self.reigns.iter().chain(&self.in_force).cloned());
        Dues::new(all.reigns().iter().filter(has_lane).cloned())
    }
}

/// 0 for fires of a schedule, 1 for those that were asked for.
fn kind(fire: &Fire) -> usize {
    usize::from(!matches!(fire.id, FireId::Scheduled(_)))
}

impl History {
    /// Keys come in the order of time, so the last one is the newest.
    fn keep_before(&mut self, fire: &Fire, entry: Entry) {
        self.before[kind(fire)] = Some(entry);
    }

    fn decode_before(&mut self) -> usize {
        let before = std::mem::take(&mut self.before);
        let decode =
            |entry: Entry| keys::fire_of(&entry.key).map_or(0, |fire| self.decode(fire, false, &entry));
        before.into_iter().flatten().map(decode).sum()
    }

    /// Returns how many could not be read.
    fn decode(&mut self, fire: Fire, late: bool, entry: &Entry) -> usize {
        let id = fire.id;
        match values::decode_record(fire, &entry.key, &entry.value) {
            Ok(record) => {
                let records = if late { &mut self.late } else { &mut self.records };
                records.push(record);
                0
            }
            Err(error) => {
                say_unreadable(&error);
                if let (FireId::Scheduled(at), false) = (id, late) {
                    let last = values::span_of(&entry.value).map_or(at, |span| span.last);
                    self.unreadable.push((at, last));
                }
                1
            }
        }
    }
}
