//! Sync: the store's definitions of one source are made equal to the job files'.
//!
//! Every transaction of a sync compares the source's key and rewrites it, so of two syncs at once one is refused as a
//! whole or stopped, and the end is one of the two results. Each can be repeated after a crash in the middle, because
//! what is there is always compared itself, never guessed from a digest.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::sleep;
use ulid::Ulid;

use crate::act;
use crate::fire::{FireId, Lane};
use crate::job::{Job, JobName, MutexName, SourceName};
use crate::jobfile::{self, Plan};
use crate::schedule::Timestamp;
use crate::store::values::{self, Definition, Former, MutexLimit, SourceState, Unreadable};
use crate::store::{Compare, Entry, MOST_OPS, Op, Revision, Store, StoreError, Txn, keys};

/// What a source is to hold.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub source: SourceName,
    pub jobs: Vec<Job>,
    pub limits: BTreeMap<MutexName, u32>,
}

impl Wanted {
    pub fn digest(&self) -> String {
        values::digest(&self.jobs, &self.limits)
    }
}

/// What the store holds, and what would change.
#[derive(Debug)]
pub struct Outlook {
    pub plan: Plan,
    /// Jobs that are in the files and belong to another source.
    pub foreign: Vec<(JobName, SourceName)>,
    /// Definitions that this release cannot read; a sync puts the files' in their place.
    pub unreadable: Vec<Unreadable>,
    /// How many jobs the source has in the store.
    pub there: usize,
    state: Option<SourceState>,
    state_revision: Revision,
    definitions: BTreeMap<JobName, Known>,
    /// The revisions of the limits that the source has in the store.
    limits: BTreeMap<MutexName, Revision>,
}

#[derive(Debug)]
struct Known {
    revision: Revision,
    /// `None`: unreadable.
    definition: Option<Definition>,
}

impl Outlook {
    /// Whether the store has all of it already, and says so.
    pub fn is_done(&self, wanted: &Wanted) -> bool {
        let says_so =
            self.state.as_ref().is_some_and(|state| state.complete && state.digest == wanted.digest());
        self.plan.is_empty() && self.foreign.is_empty() && says_so
    }

    /// Whether so much goes that a person should have said so.
    pub fn removes_more_than_half(&self) -> bool {
        self.plan.removed.len() * 2 > self.there
    }
}

/// Why a sync was not made, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error("another sync of source {of} by {by} came between; this one was not applied, run it again")]
    Overtaken { of: SourceName, by: String },
    #[error(
        "another sync of source {of} by {by} took over after {applied} of {all} changes of this one; \
         the store has, or will have, the other's jobs"
    )]
    Displaced { of: SourceName, by: String, applied: usize, all: usize },
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Compares the store with the files.
pub async fn look(store: &Store, wanted: &Wanted) -> Result<Outlook, SyncError> {
    // The source first: if anything is written after this, the first transaction finds it changed.
    let state = store.get(&keys::source(&wanted.source)).await?;
    let listing = store.list(keys::jobs()).await?;
    let limits = store.list(keys::limits()).await?;
    outlook(wanted, state, listing.entries, limits.entries)
}

fn outlook(
    wanted: &Wanted,
    state: Option<Entry>,
    entries: Vec<Entry>,
    limits: Vec<Entry>,
) -> Result<Outlook, SyncError> {
    let state_revision = state.as_ref().map_or(Revision(0), |entry| entry.mod_revision);
    let state = state.map(|entry| values::decode(&entry.key, &entry.value)).transpose()?;
    let wants: BTreeMap<&JobName, &Job> = wanted.jobs.iter().map(|job| (&job.name, job)).collect();
    let (mut ours, mut definitions) = (BTreeMap::new(), BTreeMap::new());
    let (mut foreign, mut unreadable) = (Vec::new(), Vec::new());
    for entry in entries {
        let revision = entry.mod_revision;
        match Definition::decode(&entry.key, &entry.value) {
            Ok(definition) => {
                let name = definition.job.name.clone();
                if definition.source == wanted.source {
                    ours.insert(name.clone(), definition.job.clone());
                } else if wants.contains_key(&name) {
                    foreign.push((name.clone(), definition.source.clone()));
                } else {
                    continue;
                }
                definitions.insert(name, Known { revision, definition: Some(definition) });
            }
            Err(error) => {
                // Whose it is cannot be told, so it is replaced when the files have it and else left alone.
                if let Ok(name) = keys::name_of(&entry.key).parse::<JobName>()
                    && wants.contains_key(&name)
                {
                    definitions.insert(name, Known { revision, definition: None });
                }
                unreadable.push(error);
            }
        }
    }
    let (mut said, mut revisions) = (BTreeMap::new(), BTreeMap::new());
    for entry in limits {
        let Some((mutex, source)) = keys::limit_of(&entry.key) else { continue };
        if source == wanted.source {
            let limit = values::decode::<MutexLimit>(&entry.key, &entry.value).ok();
            // One that cannot be read is another than any that is wanted.
            said.insert(mutex.clone(), limit.map_or(0, |limit| limit.slots));
            revisions.insert(mutex, entry.mod_revision);
        }
    }
    let plan = jobfile::plan(&ours, &wanted.jobs).with_limits(&said, &wanted.limits);
    let there = ours.len();
    Ok(Outlook { plan, foreign, unreadable, there, state, state_revision, definitions, limits: revisions })
}

/// Carries out what an outlook says, in transactions of at most 128 operations. Foreign jobs in the files become this
/// source's: who calls has asked.
///
/// Returns the number of jobs written or removed.
pub async fn apply(
    store: &Store,
    wanted: &Wanted,
    outlook: Outlook,
    by: &str,
    now: Timestamp,
) -> Result<usize, SyncError> {
    if outlook.is_done(wanted) {
        return Ok(0);
    }
    let changes = changes(wanted, &outlook, now);
    let all = changes.len();
    let steps = in_steps(changes);
    // One act, however many steps: it is written down where it begins.
    let mut note = (all > 0).then(|| act::note(by, now, "sync", &wanted.source, Some(summary(&outlook))));
    let source_key = keys::source(&wanted.source);
    let mut state = SourceState::new(wanted.digest(), by.to_owned(), now, Ulid::generate().to_string());
    let mut revision = outlook.state_revision;
    let mut applied = 0;
    let last = steps.len() - 1;
    for (step, changes) in steps.into_iter().enumerate() {
        state.step = step as u32;
        state.complete = step == last;
        // Safe when two sync at once: the source's key is at this revision for one of them only, and each
        // definition must be the one that was compared.
        let mut compare = vec![Compare::mod_revision(source_key.as_str(), revision)];
        let mut ops = vec![Op::put(source_key.as_str(), values::encode(&state))];
        ops.extend(note.take());
        let jobs = changes.len();
        for change in changes {
            compare.push(change.compare);
            ops.extend(change.ops);
        }
        let txn = Txn::when(compare).then(ops).otherwise([Op::get(source_key.as_str())]);
        match send(store, txn, &state).await? {
            Sent::Done(at) => revision = at,
            Sent::Refused(other) => {
                let by = other.map_or_else(|| "somebody".to_owned(), |other| other.by);
                let of = wanted.source.clone();
                return Err(match applied {
                    0 => SyncError::Overtaken { of, by },
                    _ => SyncError::Displaced { of, by, applied, all },
                });
            }
        }
        applied += jobs;
    }
    if all > 0 {
        act::prune(store, now).await;
    }
    Ok(applied)
}

/// What a sync does, in a few words.
fn summary(outlook: &Outlook) -> String {
    let Outlook { plan, foreign, .. } = outlook;
    let (added, changed) = (plan.added.len(), plan.changed.len());
    let words = format!("{added} added, {changed} changed, {} removed", plan.removed.len());
    match foreign.len() {
        0 => words,
        adopted => format!("{words}, {adopted} of other sources taken over"),
    }
}

/// One job's part of a sync.
struct JobChange {
    compare: Compare,
    ops: Vec<Op>,
}

fn changes(wanted: &Wanted, outlook: &Outlook, now: Timestamp) -> Vec<JobChange> {
    let foreign = outlook.foreign.iter().map(|(name, _)| name);
    let changed = outlook.plan.changed.iter().map(|change| &change.job.name);
    let touched: std::collections::BTreeSet<&JobName> =
        outlook.plan.added.iter().map(|job| &job.name).chain(changed).chain(foreign).collect();
    let mut changes: Vec<JobChange> = wanted
        .jobs
        .iter()
        .filter(|job| touched.contains(&job.name))
        .map(|job| put_change(wanted, job, outlook.definitions.get(&job.name), now))
        .collect();
    for name in &outlook.plan.removed {
        let known = &outlook.definitions[name];
        // Records stay: what was done is not undone by a removal. The floors go when all that was due before the
        // removal is settled: see `warden`.
        let mut ops = vec![Op::delete(keys::job(name)), Op::delete(keys::statuses_of(name))];
        ops.extend(former(name, known, now, true));
        changes.push(JobChange { compare: Compare::mod_revision(keys::job(name), known.revision), ops });
    }
    for (mutex, _, limit) in &outlook.plan.limits {
        let key = keys::limit(mutex, &wanted.source);
        let revision = outlook.limits.get(mutex).copied().unwrap_or(Revision(0));
        let op = match limit {
            Some(limit) => Op::put(key.as_str(), values::encode(&MutexLimit::new(*limit))),
            None => Op::delete(key.as_str()),
        };
        changes.push(JobChange { compare: Compare::mod_revision(key, revision), ops: vec![op] });
    }
    changes
}

fn put_change(wanted: &Wanted, job: &Job, known: Option<&Known>, now: Timestamp) -> JobChange {
    let before = known.and_then(|known| known.definition.as_ref());
    // A job that is new or whose schedule changed has missed nothing; any other change leaves its due fires due.
    let since = before
        .filter(|before| {
            let due_before = (&before.job.schedule, before.job.enabled, before.job.run_on);
            due_before == (&job.schedule, job.enabled, job.run_on)
        })
        .map_or(now, |before| before.since);
    let definition = Definition { job: job.clone(), source: wanted.source.clone(), since };
    let mut ops = vec![Op::put(keys::job(&job.name), definition.encode())];
    match known {
        Some(known) => ops.extend(former(&job.name, known, now, false)),
        None => {
            // Made with the job: a compare with a floor that is not there would never hold. One that is there yet
            // tells of a job of this name whose last fires are not settled.
            let floor = keys::floor(&job.name, &Lane::OneNode);
            let made = Op::put(floor.as_str(), FireId::scheduled(since).to_string());
            ops.push(Txn::when([Compare::absent(floor)]).then([made]).into());
        }
    }
    let revision = known.map_or(Revision(0), |known| known.revision);
    JobChange { compare: Compare::mod_revision(keys::job(&job.name), revision), ops }
}

/// Keeps what was in force: what was due by it may still have to be settled, and `audit` asks.
fn former(name: &JobName, known: &Known, now: Timestamp, removed: bool) -> Option<Op> {
    let definition = known.definition.clone()?;
    let former = Former { definition, until: now, removed };
    Some(Op::put(keys::job_before(name, known.revision), former.encode()))
}

/// Parts changes so that each part, with the source's own put and the act's, keeps to the limit. At least one part, which may be
/// empty: the source's key is written in any case.
fn in_steps(changes: Vec<JobChange>) -> Vec<Vec<JobChange>> {
    /// The source and the act; and what is nested takes one of what the whole leaves of the limit.
    const BESIDES: usize = 3;
    let mut steps = vec![Vec::new()];
    let mut ops = BESIDES;
    for change in changes {
        if ops + change.ops.len() > MOST_OPS {
            steps.push(Vec::new());
            ops = BESIDES;
        }
        ops += change.ops.len();
        steps.last_mut().expect("there is at least one").push(change);
    }
    steps
}

enum Sent {
    Done(Revision),
    /// The source's key or a definition is not as it was; with whose sync it is now.
    Refused(Option<SourceState>),
}

/// Sends one step until its outcome is known. A step is known by the source's value, which names it.
async fn send(store: &Store, txn: Txn, state: &SourceState) -> Result<Sent, SyncError> {
    /// With the store's own deadline this is about a minute.
    const MOST_TRIES: u32 = 12;
    let mut tries = 0;
    loop {
        match store.txn(txn.clone()).await {
            Ok(reply) if reply.succeeded => return Ok(Sent::Done(reply.revision)),
            Ok(reply) => {
                let Some(entry) = reply.got(0).first() else { return Ok(Sent::Refused(None)) };
                let there: SourceState = values::decode(&entry.key, &entry.value)?;
                return Ok(match there == *state {
                    // An answer of ours that never came.
                    true => Sent::Done(entry.mod_revision),
                    false => Sent::Refused(Some(there)),
                });
            }
            Err(error) if error.passes() && tries < MOST_TRIES => tries += 1,
            Err(error) => return Err(error.into()),
        }
        sleep(Duration::from_millis(200).mul_f64(0.5 + store.random())).await;
    }
}

/// What a node on a fleet does about its own job files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publish {
    /// It saw the change that leads from what the store has to what it has: it publishes it.
    Write,
    /// The store has the same.
    Same,
    /// The store has something else, and this node does not know that its own is newer: it writes nothing.
    Drift,
}

/// Whether a node publishes its files: only a *change it has seen*, from the content that the store still has. So a
/// rolling deploy changes each definition once, and a node that was away with old files changes nothing.
///
/// `last`: the digest of its files when it last looked; `now`: their digest now.
pub fn publish(last: Option<&str>, now: &str, store: Option<&SourceState>) -> Publish {
    match store {
        None => Publish::Write,
        Some(state) if state.digest == now => match state.complete {
            true => Publish::Same,
            // A sync to the very same content stopped in the middle: nobody is wronged by completing it.
            false => Publish::Write,
        },
        Some(state) if last != Some(now) && last == Some(state.digest.as_str()) => Publish::Write,
        Some(_) => Publish::Drift,
    }
}

/// What the store says of a source.
pub async fn state(store: &Store, source: &SourceName) -> Result<Option<SourceState>, SyncError> {
    let entry = store.get(&keys::source(source)).await?;
    Ok(entry.map(|entry| values::decode(&entry.key, &entry.value)).transpose()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(digest: &str, complete: bool) -> SourceState {
        let mut state = SourceState::new(digest.into(), "me".into(), Timestamp::UNIX_EPOCH, "s".into());
        state.complete = complete;
        state
    }

    #[test]
    fn only_a_change_that_was_seen_from_what_the_store_has_is_published() {
        let published = |last, now, store: Option<&str>| {
            publish(last, now, store.map(|digest| state(digest, true)).as_ref())
        };
        // A new source, whatever was seen before.
        assert_eq!(published(None, "v1", None), Publish::Write);
        assert_eq!(published(Some("v1"), "v1", Some("v1")), Publish::Same);
        // The first node of a rolling deploy, and the ones after it.
        assert_eq!(published(Some("v1"), "v2", Some("v1")), Publish::Write);
        assert_eq!(published(Some("v1"), "v2", Some("v2")), Publish::Same);
        // Back from a time away with old files; and stepping through old versions.
        assert_eq!(published(Some("v1"), "v1", Some("v3")), Publish::Drift);
        assert_eq!(published(Some("v1"), "v2", Some("v3")), Publish::Drift);
        assert_eq!(published(Some("v2"), "v3", Some("v3")), Publish::Same);
        // A node that was never seen with other files does not know which is newer.
        assert_eq!(published(None, "v2", Some("v1")), Publish::Drift);
    }

    #[test]
    fn a_sync_that_stopped_in_the_middle_is_completed_by_who_has_the_same_files() {
        assert_eq!(publish(None, "v2", Some(&state("v2", false))), Publish::Write);
        assert_eq!(publish(Some("v1"), "v1", Some(&state("v2", false))), Publish::Drift);
    }
}
