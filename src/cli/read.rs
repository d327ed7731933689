//! What commands read of the store: ranges in pages at one revision, and jobs by their names.
//!
//! Never one request for each job: with ten thousand of them that is the difference between a moment and minutes.

use std::collections::{BTreeMap, BTreeSet};

use super::failure::{Failure, say};
use super::out::harmless;
use crate::fire::{Fire, FireId};
use crate::job::{JobName, MutexName};
use crate::node::NodeName;
use crate::store::values::{self, Definition, HoldBack, Lock, LockState, MutexHolder, Status, Unreadable};
use crate::store::{Entry, KeyRange, PageSpec, Revision, Store, StoreError, keys};

/// Reads ranges page by page, so that a listing of any length takes little memory.
pub struct Pages<'s> {
    store: &'s Store,
    /// Those not begun yet, the next one last.
    ranges: Vec<KeyRange>,
    current: Option<(KeyRange, PageSpec)>,
    /// All pages show the store at the revision of the first one.
    at: Option<Revision>,
    moved: bool,
}

impl<'s> Pages<'s> {
    pub fn new(store: &'s Store, ranges: impl IntoIterator<Item = KeyRange>) -> Pages<'s> {
        let mut ranges: Vec<KeyRange> = ranges.into_iter().collect();
        ranges.reverse();
        Pages { store, ranges, current: None, at: None, moved: false }
    }

    /// The next page; none when all is read.
    pub async fn next(&mut self) -> Result<Option<Vec<Entry>>, StoreError> {
        loop {
            let (range, mut spec) = match self.current.take() {
                Some(current) => current,
                None => match self.ranges.pop() {
                    Some(range) => (range, PageSpec::default()),
                    None => return Ok(None),
                },
            };
            spec.at = self.at;
            let page = match self.store.page(range.clone(), spec.clone()).await {
                // The store has forgotten the revision meanwhile: what is left is shown as it is now.
                Err(StoreError::Compacted(_)) if self.at.is_some() => {
                    self.at = None;
                    self.moved = true;
                    self.current = Some((range, spec));
                    continue;
                }
                page => page?,
            };
            self.at = Some(page.revision);
            if page.more {
                spec.after = page.entries.last().map(|entry| entry.key.clone());
                self.current = Some((range, spec));
            }
            if !page.entries.is_empty() {
                return Ok(Some(page.entries));
            }
        }
    }

    /// Whether the pages do not all show the same revision.
    pub fn have_moved(&self) -> bool {
        self.moved
    }

    /// Everything, one after the other.
    pub async fn each(mut self, mut take: impl FnMut(Entry)) -> Result<(), StoreError> {
        while let Some(entries) = self.next().await? {
            entries.into_iter().for_each(&mut take);
        }
        Ok(())
    }
}

/// The fire that a text names: `JOB/FIRE`, `JOB/LANE/FIRE`, or a task by its id alone. None: it names a job.
pub fn fire(text: &str) -> Result<Option<Fire>, Failure> {
    if let Ok(FireId::Task(id)) = text.parse() {
        return Ok(Some(Fire::task(id)));
    }
    let Some((job, fire)) = text.split_once('/') else { return Ok(None) };
    let job = job_name(job)?;
    Ok(Some(match fire.split_once('/') {
        Some((lane, id)) => {
            Fire { job, lane: lane.parse().map_err(Failure::usage)?, id: id.parse().map_err(Failure::usage)? }
        }
        None => Fire::new(job, fire.parse().map_err(Failure::usage)?),
    }))
}

/// Which jobs are asked about: those named, or all.
pub struct Scope(Vec<JobName>);

impl Scope {
    pub fn of(names: &[String]) -> Result<Scope, Failure> {
        names.iter().map(|name| job_name(name)).collect::<Result<_, _>>().map(Scope)
    }

    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    pub fn names(&self) -> &[JobName] {
        &self.0
    }

    pub fn definitions(&self) -> Vec<KeyRange> {
        self.ranges(keys::jobs(), |name| keys::job(name).into())
    }

    pub fn statuses(&self) -> Vec<KeyRange> {
        self.ranges(keys::statuses(), keys::statuses_of)
    }

    pub fn locks(&self) -> Vec<KeyRange> {
        self.ranges(keys::locks(), keys::locks_of)
    }

    /// Of all jobs, or of each of those named.
    pub fn ranges(&self, all: KeyRange, of: impl Fn(&JobName) -> KeyRange) -> Vec<KeyRange> {
        match self.is_all() {
            true => vec![all],
            false => self.0.iter().map(of).collect(),
        }
    }
}

/// A job's name from the command line. A bad one is no job's name, which is all there is to say.
pub fn job_name(text: &str) -> Result<JobName, Failure> {
    text.parse().map_err(Failure::usage)
}

/// Shows each definition in scope to `take`, in order of name, as it is read. One that cannot be read is said, and the
/// others are shown all the same. Returns how many could not be read.
///
/// Errors: a job that was named is not there.
pub async fn each_definition(
    store: &Store,
    scope: &Scope,
    mut take: impl FnMut(Definition) -> Result<(), Failure>,
) -> Result<usize, Failure> {
    let mut there = BTreeSet::new();
    let mut unreadable = 0;
    let mut pages = Pages::new(store, scope.definitions());
    while let Some(entries) = pages.next().await? {
        for entry in entries {
            if !scope.is_all() {
                there.insert(keys::name_of(&entry.key).to_owned());
            }
            match Definition::decode(&entry.key, &entry.value) {
                Ok(definition) => take(definition)?,
                Err(error) => {
                    say_unreadable(&error);
                    unreadable += 1;
                }
            }
        }
    }
    match scope.names().iter().find(|name| !there.contains(name.as_str())) {
        Some(missing) => Err(no_such_job(store, missing).await?),
        None => Ok(unreadable),
    }
}

/// What a listing ends with when some of it could not be read, which is said already.
pub fn ended_with(unreadable: usize) -> Result<(), Failure> {
    match unreadable {
        0 => Ok(()),
        _ => Err(Failure::Said(1)),
    }
}

pub fn say_unreadable(error: &Unreadable) {
    say(harmless(&error.to_string()));
}

/// That there is no such job, with the one that was probably meant.
pub async fn no_such_job(store: &Store, missing: &JobName) -> Result<Failure, Failure> {
    let mut names = Vec::new();
    let jobs = Pages::new(store, [keys::jobs()]);
    jobs.each(|entry| names.push(keys::name_of(&entry.key).to_owned())).await?;
    let hint = match nearest(missing.as_str(), names.iter().map(String::as_str)) {
        Some(name) => format!("did you mean {name}?"),
        None if names.is_empty() => {
            "the store has no job at all; `fleetcron sync PATH` brings some".to_owned()
        }
        None => "`fleetcron jobs` lists them".to_owned(),
    };
    Ok(Failure::Asked(format!("no job is called {missing}; {hint}")))
}

/// The name that was probably meant.
pub fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let by_distance = known.map(|known| (strsim::damerau_levenshtein(name, known), known));
    by_distance.filter(|(distance, known)| *distance <= 1 + known.len() / 5).min().map(|(_, known)| known)
}

/// The last status of each job: of all its lanes, the newest.
pub async fn statuses(store: &Store, scope: &Scope) -> Result<BTreeMap<String, Status>, Failure> {
    let mut statuses = BTreeMap::<String, Status>::new();
    let pages = Pages::new(store, scope.statuses());
    pages
        .each(|entry| {
            let Some(job) = segment(&entry.key, 1) else { return };
            match values::decode::<Status>(&entry.key, &entry.value) {
                Ok(status) => match statuses.get_mut(job) {
                    Some(known) if known.last_at >= status.last_at => {}
                    Some(known) => *known = status,
                    None => _ = statuses.insert(job.to_owned(), status),
                },
                Err(error) => say_unreadable(&error),
            }
        })
        .await?;
    Ok(statuses)
}

/// A fire that is being dealt with.
pub struct UnderWay {
    pub fire: Fire,
    pub lock: Lock,
    /// The revision of the claim, which is its fencing token.
    pub token: Revision,
}

impl UnderWay {
    pub fn is_running(&self) -> bool {
        self.lock.state == LockState::Held
    }
}

/// A fire that waits for its mutex.
pub struct MutexWait {
    pub fire: Fire,
    pub node: NodeName,
    pub mutex: MutexName,
    /// Who has it, as people read it.
    pub held_by: Vec<String>,
}

impl MutexWait {
    pub fn reason(&self) -> String {
        let with: Vec<_> = self.held_by.iter().map(|fire| harmless(fire)).collect();
        match with.is_empty() {
            true => format!("waits for mutex {}", self.mutex),
            false => format!("waits for mutex {}, which {} has", self.mutex, with.join(", ")),
        }
    }
}

/// All fires that wait for a mutex.
pub async fn mutex_waits(store: &Store) -> Result<Vec<MutexWait>, Failure> {
    let (mut waits, mut holders) = (Vec::new(), BTreeMap::<MutexName, Vec<String>>::new());
    let pages = Pages::new(store, [keys::mutexes()]);
    pages
        .each(|entry| {
            let Some((mutex, number)) = keys::mutex_of(&entry.key) else { return };
            let Ok(there) = values::decode::<MutexHolder>(&entry.key, &entry.value) else { return };
            match number {
                Some(_) => holders.entry(mutex).or_default().push(there.fire),
                None => {
                    if let Ok(Some(fire)) = fire(&there.fire) {
                        waits.push(MutexWait { fire, node: there.node, mutex, held_by: Vec::new() });
                    }
                }
            }
        })
        .await?;
    for wait in &mut waits {
        wait.held_by = holders.get(&wait.mutex).cloned().unwrap_or_default();
    }
    Ok(waits)
}

/// The locks in some ranges.
pub async fn under_way(store: &Store, ranges: Vec<KeyRange>) -> Result<Vec<UnderWay>, Failure> {
    let mut found = Vec::new();
    Pages::new(store, ranges).each(|entry| found.extend(lock_of(&entry))).await?;
    Ok(found)
}

/// The lock in an entry of `locks/`.
pub fn lock_of(entry: &Entry) -> Option<UnderWay> {
    let fire = keys::fire_of(&entry.key)?;
    match values::decode(&entry.key, &entry.value) {
        Ok(lock) => Some(UnderWay { fire, lock, token: entry.mod_revision }),
        Err(error) => {
            say_unreadable(&error);
            None
        }
    }
}

/// What a job does at the moment.
#[derive(Debug, Default)]
pub struct Now {
    /// The nodes that run it.
    pub on: BTreeSet<NodeName>,
    /// The highest attempt of those runs.
    pub attempt: Option<u32>,
    /// A fire of it is between two attempts.
    pub waits: bool,
}

/// What each job does at the moment, if anything.
pub async fn running(store: &Store, scope: &Scope) -> Result<BTreeMap<JobName, Now>, Failure> {
    let mut running = BTreeMap::<JobName, Now>::new();
    for one in under_way(store, scope.locks()).await? {
        let is_running = one.is_running();
        let now = running.entry(one.fire.job).or_default();
        if is_running {
            now.attempt = now.attempt.max(Some(one.lock.attempt));
            now.on.insert(one.lock.node);
        } else {
            now.waits = true;
        }
    }
    Ok(running)
}

/// Which jobs are paused, or which nodes are drained: who did it, when, why and until when, where that can be read.
pub struct HeldBack(BTreeMap<String, Option<HoldBack>>);

impl HeldBack {
    /// Those of `paused/` or of `drained/`. They are few: each was made by a hand.
    pub async fn read(store: &Store, range: KeyRange) -> Result<HeldBack, Failure> {
        let mut there = BTreeMap::new();
        let pages = Pages::new(store, [range]);
        pages
            .each(|entry| _ = there.insert(entry.key.clone(), values::decode(&entry.key, &entry.value).ok()))
            .await?;
        Ok(HeldBack(there))
    }

    /// What holds a job back: a pause of its own counts before that of all.
    pub fn pause(&self, job: &JobName) -> Option<Option<&HoldBack>> {
        let found = self.0.get(&keys::paused(job)).or_else(|| self.0.get(&keys::all_paused()));
        found.map(Option::as_ref)
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub fn drain(&self, node: &str) -> Option<Option<&HoldBack>> {
        let mut all = self.0.iter();
        all.find(|(key, _)| keys::name_of(key) == node).map(|(_, hold)| hold.as_ref())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|key| keys::name_of(key))
    }
}

fn segment(key: &str, index: usize) -> Option<&str> {
    key.split('/').nth(index)
}
