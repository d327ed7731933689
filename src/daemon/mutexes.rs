//! Mutexes: who has what jobs and tasks share, and fires of this node that wait for it.
//!
//! A fire that waits has a key in the store, on its node's lease, and these keys sort by the instants of the fires: the
//! claim of one compares that none comes before it, so whoever has waited longest comes next, on whichever node. It
//! takes no slot of its node meanwhile. Tasks wait in their queue, and none of them comes before a fire that waits.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tracing::{debug, info, warn};

use super::Daemon;
use crate::fire::{Fire, FireId};
use crate::job::{JobName, MutexName, SourceName};
use crate::schedule::Timestamp;
use crate::store::values::{self, MutexHolder, MutexLimit};
use crate::store::{Compare, Entry, Event, Follow, Op, Store, Txn, keys};

/// A fire that found no place of the mutex that it needs.
pub(super) struct Wait {
    pub mutex: MutexName,
    /// When it is too late for it.
    pub last_start: Timestamp,
    /// Of those that have it, the first, as people read it.
    pub with: Option<String>,
}

/// What the store tells.
pub(super) enum Seen {
    Mutexes(crate::store::Seen),
    Limits(crate::store::Seen),
}

pub(super) struct Mutexes {
    mutexes: Follow,
    limits: Follow,
    /// By mutex, the places that are taken and the keys of those who wait.
    known: HashMap<MutexName, Known>,
    places: HashMap<MutexName, BTreeMap<SourceName, u32>>,
    waiting: BTreeMap<Fire, Wait>,
    /// Fires that were let go of while they waited, and are raced for now: their keys go if they do not get it.
    tried: BTreeMap<Fire, MutexName>,
    /// The store has told all of it.
    told: (bool, bool),
}

#[derive(Default)]
struct Known {
    taken: BTreeSet<u32>,
    waits: BTreeSet<String>,
}

impl Mutexes {
    pub fn follow(store: &Store) -> Mutexes {
        Mutexes {
            mutexes: store.follow(keys::mutexes()),
            limits: store.follow(keys::limits()),
            known: HashMap::new(),
            places: HashMap::new(),
            waiting: BTreeMap::new(),
            tried: BTreeMap::new(),
            told: (false, false),
        }
    }

    /// What is seen next. Safe to drop while it waits.
    pub async fn next(&mut self) -> Seen {
        tokio::select! {
            biased;
            seen = self.limits.next() => Seen::Limits(seen),
            seen = self.mutexes.next() => Seen::Mutexes(seen),
        }
    }

    pub fn has(&self, fire: &Fire) -> bool {
        self.waiting.contains_key(fire)
    }

    /// How many may have it at once: what the sources say that is least; one, where none says anything.
    pub fn places(&self, mutex: &MutexName) -> u32 {
        self.limit(mutex).unwrap_or(1)
    }

    /// The same; none where nobody has said it.
    pub fn limit(&self, mutex: &MutexName) -> Option<u32> {
        self.places.get(mutex).and_then(|said| said.values().min().copied())
    }

    /// Whether the store has told how many may have what.
    pub fn knows_limits(&self) -> bool {
        self.told.1
    }

    /// Whether a task could have it now, as far as the store has told.
    pub fn is_free_for_task(&self, mutex: &MutexName) -> bool {
        let places = self.places(mutex) as usize;
        self.known.get(mutex).is_none_or(|known| known.waits.is_empty() && known.taken.len() < places)
    }

    /// When a fire that waits is too late.
    pub fn next_end(&self) -> Option<Timestamp> {
        let ends = self.waiting.values().map(|wait| wait.last_start);
        // A moment more, so that the instant has passed and not only come.
        ends.min().map(|end| end + chrono::TimeDelta::milliseconds(1))
    }

    fn take_in(&mut self, seen: Seen) {
        match seen {
            Seen::Mutexes(seen) => {
                if let crate::store::Seen::All { .. } = seen {
                    self.known.clear();
                    self.told.0 = true;
                }
                for (key, is_there) in told(seen).into_iter().map(|(key, entry)| (key, entry.is_some())) {
                    let Some((mutex, number)) = keys::mutex_of(&key) else { continue };
                    let known = self.known.entry(mutex.clone()).or_default();
                    match (number, is_there) {
                        (Some(number), true) => _ = known.taken.insert(number),
                        (Some(number), false) => _ = known.taken.remove(&number),
                        (None, true) => _ = known.waits.insert(key),
                        (None, false) => _ = known.waits.remove(&key),
                    }
                    if known.taken.is_empty() && known.waits.is_empty() {
                        self.known.remove(&mutex);
                    }
                }
            }
            Seen::Limits(seen) => {
                if let crate::store::Seen::All { .. } = seen {
                    self.places.clear();
                    self.told.1 = true;
                }
                for (key, entry) in told(seen) {
                    let Some((mutex, source)) = keys::limit_of(&key) else { continue };
                    let limit = entry.map(|entry| values::decode::<MutexLimit>(&entry.key, &entry.value));
                    match limit {
                        Some(Ok(limit)) => {
                            _ = self.places.entry(mutex).or_default().insert(source, limit.slots)
                        }
                        Some(Err(error)) => warn!(%error, "a limit is passed over"),
                        None => _ = self.places.get_mut(&mutex).map(|said| said.remove(&source)),
                    }
                }
            }
        }
    }

    /// Whether a fire that waits comes next: as many places are free as wait before it, and one more.
    fn is_next(&self, fire: &Fire, wait: &Wait) -> bool {
        let Some(known) = self.known.get(&wait.mutex) else { return true };
        let free = (self.places(&wait.mutex) as usize).saturating_sub(known.taken.len());
        let own = keys::mutex_wait(&wait.mutex, fire);
        known.waits.range(..own).count() < free
    }

    fn has_key(&self, mutex: &MutexName, fire: &Fire) -> bool {
        let known = self.known.get(mutex);
        known.is_some_and(|known| known.waits.contains(&keys::mutex_wait(mutex, fire)))
    }
}

/// What is told, by key: there, or gone.
fn told(seen: crate::store::Seen) -> Vec<(String, Option<Entry>)> {
    let there = |entry: Entry| (entry.key.clone(), Some(entry));
    match seen {
        crate::store::Seen::All { entries, .. } => entries.into_iter().map(there).collect(),
        crate::store::Seen::Changes { events, .. } => events
            .into_iter()
            .map(|event| match event {
                Event::Put(entry) => there(entry),
                Event::Delete { key, .. } => (key, None),
            })
            .collect(),
        // The jobs' own says it.
        crate::store::Seen::OutOfTouch { .. } => Vec::new(),
    }
}

impl Daemon {
    pub(super) fn mutexes_seen(&mut self, seen: Seen) {
        self.mutexes.take_in(seen);
        self.go_on_with_mutexes();
        // A task may have waited for it.
        self.use_free_slots();
    }

    /// Has a fire wait for its mutex. A task waits in its queue.
    pub(super) fn wait_for_mutex(&mut self, fire: Fire, wait: Wait) {
        self.mutexes.tried.remove(&fire);
        if let FireId::Task(_) = fire.id {
            self.queue.look_again();
            return;
        }
        info!(job = %fire.job, fire = %fire.id, mutex = %wait.mutex, with = wait.with, "waits for its mutex");
        let older = self.mutexes.waiting.keys().find(|older| {
            let are_scheduled = [&fire, *older].iter().all(|fire| matches!(fire.id, FireId::Scheduled(_)));
            are_scheduled && older.job == fire.job && older.lane == fire.lane
        });
        if let Some(older) = older.cloned() {
            let (older, by) = match older.scheduled_at() < fire.scheduled_at() {
                true => (older, fire.clone()),
                false => (fire.clone(), older),
            };
            let is_this = older == fire;
            self.give_mutex_up(&older);
            self.supersede(older, by.id, "its mutex");
            if is_this {
                return;
            }
        }
        if !self.mutexes.has_key(&wait.mutex, &fire) {
            self.put_wait(&wait.mutex, &fire);
        }
        self.mutexes.waiting.insert(fire, wait);
        // It may have become free in between.
        self.go_on_with_mutexes();
    }

    /// Puts the key by which others see that a fire waits, in a small task.
    fn put_wait(&mut self, mutex: &MutexName, fire: &Fire) {
        let (store, mut standing, clock) =
            (self.place.store.clone(), self.standing.clone(), self.options.clock);
        let (key, record) = (keys::mutex_wait(mutex, fire), keys::record(fire));
        let lock = keys::lock(fire);
        let value = values::encode(&MutexHolder::new(fire, self.options.node.clone()));
        self.chores.spawn(clock.bind(async move {
            let registration = standing.registration().await;
            // Not of a fire that is decided: nobody would take it out before this node's lease ends.
            let put = Txn::when([Compare::absent(record), Compare::absent(lock)]).then([Op::put_on(
                key,
                value,
                registration.lease(),
            )]);
            if let Err(error) = store.txn(put).await {
                // It is put again when it is looked at next; until then the fire has no place among those who wait.
                debug!(%error, "a wait for a mutex could not be told");
            }
        }));
    }

    /// Races for what comes next for its mutex, and for what it is too late for.
    pub(super) fn go_on_with_mutexes(&mut self) {
        if self.mutexes.waiting.is_empty() || !self.mutexes.told.0 {
            return;
        }
        let now = self.options.clock.now();
        let (mutexes, mut next) = (&self.mutexes, Vec::new());
        for (fire, wait) in &mutexes.waiting {
            let has_key = mutexes.has_key(&wait.mutex, fire);
            if now > wait.last_start || (has_key && mutexes.is_next(fire, wait)) {
                next.push(fire.clone());
            }
        }
        for fire in next {
            if let Some(wait) = self.mutexes.waiting.remove(&fire) {
                self.mutexes.tried.insert(fire.clone(), wait.mutex);
                self.race_for(fire.clone());
                if !self.hands.contains_key(&fire) {
                    // It is held back, or waits for a slot: others come before it meanwhile.
                    self.leave_mutex_alone(&fire);
                }
            }
        }
    }

    /// Tells again what the store does not show, every now and then.
    pub(super) fn renew_waits(&mut self) {
        let lost: Vec<(MutexName, Fire)> = self
            .mutexes
            .waiting
            .iter()
            .filter(|(fire, wait)| self.mutexes.told.0 && !self.mutexes.has_key(&wait.mutex, fire))
            .map(|(fire, wait)| (wait.mutex.clone(), fire.clone()))
            .collect();
        for (mutex, fire) in lost {
            self.put_wait(&mutex, &fire);
        }
    }

    /// Of a fire that was raced for and does not wait any more, the key goes. A claim has taken it out itself.
    pub(super) fn leave_mutex_alone(&mut self, fire: &Fire) {
        if self.mutexes.waiting.contains_key(fire) {
            return;
        }
        if let Some(mutex) = self.mutexes.tried.remove(fire) {
            self.take_wait_out(&mutex, fire);
        }
    }

    fn give_mutex_up(&mut self, fire: &Fire) {
        if let Some(wait) = self.mutexes.waiting.remove(fire) {
            self.take_wait_out(&wait.mutex, fire);
        }
    }

    fn take_wait_out(&mut self, mutex: &MutexName, fire: &Fire) {
        let (store, key) = (self.place.store.clone(), keys::mutex_wait(mutex, fire));
        self.chores.spawn(self.options.clock.bind(async move {
            // It also goes with this node's lease, and whoever comes behind it waits for that long at the most.
            if let Err(error) = store.txn(Txn::new().then([Op::delete(key)])).await {
                debug!(%error, "a wait for a mutex could not be taken back");
            }
        }));
    }

    /// Lets go of a job's fires.
    pub(super) fn stop_waiting_for_mutexes(&mut self, job: &JobName) {
        let theirs: Vec<Fire> =
            self.mutexes.waiting.keys().filter(|fire| fire.job == *job).cloned().collect();
        for fire in theirs {
            self.give_mutex_up(&fire);
        }
    }

    /// Whether a fire is known to wait for its mutex, on whichever node.
    pub(super) fn waits_for_mutex(&self, fire: &Fire) -> bool {
        let planned = self.planner.get(&fire.job);
        let mutex = planned.and_then(|planned| planned.job.mutex.as_ref());
        mutex.is_some_and(|mutex| self.mutexes.has_key(mutex, fire))
    }
}
