//! The wards of this node: the lanes that it looks after, so that each fire that nobody runs is settled.
//!
//! Nothing hangs on its being done soon or by one node alone; it is done in batches, some time after the fires.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::{Daemon, News};
use crate::fire::{Fire, FireId, Lane};
use crate::job::{JobName, Keep};
use crate::planner::RIPE_AFTER;
use crate::schedule::Timestamp;
use crate::store::StoreError;
use crate::warden::{self, LANES_AT_ONCE, Settled, Ward};

/// A lane is looked at so often at the most, so that many fires share the cost of a look.
const LOOK_EVERY: TimeDelta = TimeDelta::seconds(30);
/// Where a fire is open that may still be run.
const LOOK_AT_OPEN_EVERY: TimeDelta = TimeDelta::seconds(60);
/// A lane is looked at so often at the least, also when it has no fires: its records grow old.
const LOOK_AT_LEAST_EVERY: TimeDelta = TimeDelta::days(1);
/// After a look that came to nothing.
const LOOK_AGAIN: TimeDelta = TimeDelta::seconds(5);

/// The lanes that this node looks after, one for each job.
#[derive(Debug, Default)]
pub(super) struct Wards {
    wards: BTreeMap<JobName, Known>,
    due: BTreeSet<(Timestamp, JobName)>,
    under_way: bool,
    prune_rest_at: Timestamp,
    prune_tasks_at: Timestamp,
}

/// After a daemon's start.
const PRUNE_REST_AFTER: TimeDelta = TimeDelta::minutes(10);

/// There may be thousands of them in an hour.
const PRUNE_TASKS_EVERY: TimeDelta = TimeDelta::minutes(10);

/// How what is left of the past is called when it is shared out; no job's name.
const PAST: &str = "~past";

#[derive(Debug)]
struct Known {
    lane: Lane,
    floor: Timestamp,
    /// None: a look is under way.
    look_at: Option<Timestamp>,
    /// Its job is.
    is_gone: bool,
    pruning: Pruning,
}

/// When the lane's past is to be looked through.
#[derive(Debug, Clone, Copy)]
struct Pruning {
    /// How many records have come since it was.
    unpruned: usize,
    /// The next time, whatever has come.
    at: Timestamp,
}

impl Pruning {
    /// As many records as a quarter of those that are kept are worth a look through all of them.
    fn is_due(&self, keep: &Keep, now: Timestamp) -> bool {
        self.unpruned >= (keep.records as usize / 4).max(10) || now >= self.at
    }
}

/// What became of a look.
pub(super) type Looked = Vec<(Ward, Result<Settled, StoreError>)>;

impl Wards {
    pub fn new(now: Timestamp) -> Wards {
        Wards {
            prune_rest_at: now + PRUNE_REST_AFTER,
            prune_tasks_at: now + PRUNE_TASKS_EVERY,
            ..Wards::default()
        }
    }

    /// The next look.
    pub fn next(&self) -> Option<Timestamp> {
        self.due.first().filter(|_| !self.under_way).map(|(at, _)| *at)
    }

    fn put(&mut self, job: JobName, known: Known) {
        self.remove(&job);
        self.due.extend(known.look_at.map(|at| (at, job.clone())));
        self.wards.insert(job, known);
    }

    fn remove(&mut self, job: &JobName) -> Option<Known> {
        let known = self.wards.remove(job)?;
        if let Some(at) = known.look_at {
            self.due.remove(&(at, job.clone()));
        }
        Some(known)
    }

    /// The clock was wrong: all that is known of floors is asked for again.
    pub fn look_at_all(&mut self, now: Timestamp) {
        self.due = self.wards.keys().map(|job| (now, job.clone())).collect();
        for known in self.wards.values_mut() {
            (known.look_at, known.floor) = (Some(now), now);
        }
    }

    /// Something of this job was missed: it is looked at as soon as that can be settled, and not before, or the newest
    /// would not have been claimed yet.
    pub fn look_soon(&mut self, job: &JobName, now: Timestamp) {
        let at = now + RIPE_AFTER + TimeDelta::seconds(1);
        // One that is under way is put back by its end.
        if self.wards.get(job).is_some_and(|known| known.look_at.is_some())
            && let Some(known) = self.remove(job)
        {
            self.put(job.clone(), Known { look_at: Some(at), ..known });
        }
    }

    fn take_due(&mut self, now: Timestamp) -> Vec<(JobName, Lane, Timestamp)> {
        let mut taken = Vec::new();
        while taken.len() < LANES_AT_ONCE && self.due.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, job)) = self.due.pop_first() else { break };
            if let Some(known) = self.wards.get_mut(&job) {
                known.look_at = None;
                taken.push((job, known.lane.clone(), known.floor));
            }
        }
        taken
    }
}

impl Daemon {
    /// Works out anew which lanes this node looks after.
    pub(super) fn choose_wards(&mut self) {
        if !self.knows_jobs {
            // All would seem to be gone.
            return;
        }
        // Also those that were removed while nobody was up.
        let own = Lane::Node(self.options.node.clone());
        let left = self.floors.keys().filter(|(_, lane)| *lane == Lane::OneNode || *lane == own);
        let known = left.map(|(name, _)| name).chain(self.wards.wards.keys());
        let names: BTreeSet<JobName> = self.planner.names().chain(known).cloned().collect();
        for name in names {
            self.choose_ward(&name);
        }
    }

    /// The same for one job, which may be gone: what was due before its removal is to be settled too.
    pub(super) fn choose_ward(&mut self, name: &JobName) {
        if !self.knows_jobs {
            // They are chosen all at once when the last one is told.
            return;
        }
        let now = self.options.clock.now();
        let planned = self.planner.get(name);
        let own = Lane::Node(self.options.node.clone());
        let lane = match planned {
            Some(planned) => planned.lane.clone(),
            // It is somebody's, who can read it.
            None if self.unreadable.contains(name) => None,
            None if self.floors.contains_key(&(name.clone(), own.clone())) => Some(own),
            None => Some(Lane::OneNode),
        };
        let is_mine = match &lane {
            Some(Lane::Node(_)) => true,
            Some(Lane::OneNode) => self.fleet.is_warden(name.as_str(), planned.map(|planned| &*planned.job)),
            None => false,
        };
        let Some(lane) = lane.filter(|_| is_mine) else {
            self.wards.remove(name);
            return;
        };
        let known = self.wards.wards.get(name).filter(|known| known.lane == lane);
        // Of one that has just gone, the last fires are to be settled soon.
        let is_known = known.is_some_and(|known| planned.is_some() || known.is_gone);
        if is_known {
            return;
        }
        let is_gone = planned.is_none();
        // Where it is not known, one look more finds out: see `warden::settle`.
        let floor = self.floors.get(&(name.clone(), lane.clone())).copied().unwrap_or(now);
        let first = planned.and_then(|planned| planned.next_start(floor)).map(|starts| starts + RIPE_AFTER);
        let look_at = match first {
            // Of what the floor was at the start, nothing is due yet.
            Some(first) if first > now && floor < now => first,
            // All that came due while this node was away is settled at once, in one span.
            _ => now.max(self.began + RIPE_AFTER + TimeDelta::seconds(1)),
        };
        // Spread over a day, since a node may have a hundred thousand.
        let soon = LOOK_AT_LEAST_EVERY.as_seconds_f64() * self.place.store.random();
        let pruning = Pruning { unpruned: 0, at: now + TimeDelta::seconds(soon as i64) };
        let known = Known { lane, floor, look_at: Some(look_at), is_gone, pruning };
        self.wards.put(name.clone(), known);
    }

    /// Begins to look at the lanes whose time has come, in a small task, one batch after the other.
    pub(super) fn look_at_wards(&mut self, now: Timestamp) {
        let Some(up_since) = self.fleet.up_since() else { return };
        if self.wards.under_way || !self.agreement.is_given() {
            return;
        }
        let due = self.wards.take_due(now);
        if due.is_empty() {
            return;
        }
        let mut wards = Vec::with_capacity(due.len());
        for (job, lane, floor) in due {
            let planned = self.planner.get(&job).cloned();
            let is_runnable = planned.as_ref().is_none_or(|planned| self.fleet.is_runnable(&planned.job));
            let up_since = match lane {
                Lane::OneNode => up_since,
                Lane::Node(_) => self.began,
            };
            let pauses = self.held_back.pauses_of(&job);
            wards.push(Ward { job, lane, floor, planned, pauses, up_since, is_runnable });
        }
        self.wards.under_way = true;
        let (place, me, tell) = (self.place.clone(), self.standing.me.clone(), self.news.0.clone());
        let clock = self.options.clock;
        self.chores.spawn(clock.bind(async move {
            let looked = match warden::look(&place.store, &place.clock, &wards).await {
                Ok(seen) => {
                    // Each in a task, so that what they write goes together.
                    let mut settling = JoinSet::new();
                    for (ward, seen) in wards.into_iter().zip(seen) {
                        let (place, me) = (place.clone(), me.clone());
                        settling.spawn(clock.bind(async move {
                            let settled =
                                warden::settle(&place.together, &me, &place.clock, &ward, seen).await;
                            (ward, settled)
                        }));
                    }
                    settling.join_all().await
                }
                Err(error) => wards.into_iter().map(|ward| (ward, Err(error.clone()))).collect(),
            };
            let _ = tell.send(News::Wards(looked)).await;
        }));
    }

    pub(super) fn wards_looked_at(&mut self, looked: Looked) {
        self.wards.under_way = false;
        let now = self.options.clock.now();
        for (ward, settled) in looked {
            let Ward { job, lane, floor, .. } = ward;
            let known = self.wards.wards.get(&job);
            let is_this = known.is_some_and(|known| known.lane == lane && known.look_at.is_none());
            // Else it is somebody else's by now.
            let Some(mut known) = is_this.then(|| self.wards.remove(&job)).flatten() else { continue };
            let planned = self.planner.get(&job);
            if let Ok(Settled::Upto { passed, .. }) = &settled {
                known.pruning.unpruned += passed;
            }
            let mut still_open = None;
            let (floor, look_at) = match settled {
                Ok(Settled::Upto { floor, open, more: true, .. }) => {
                    still_open = open;
                    (floor, now)
                }
                Ok(Settled::Upto { floor, open: Some(open), .. }) => {
                    still_open = Some(open);
                    let every = now + LOOK_AT_OPEN_EVERY;
                    let until = planned.map(|planned| {
                        let too_late = planned.last_start(open) + TimeDelta::seconds(1);
                        let superseded = planned.next_start(open).map(|starts| starts + RIPE_AFTER);
                        superseded.map_or(too_late, |superseded| superseded.min(too_late))
                    });
                    (floor, until.map_or(every, |until| until.min(every)).max(now + LOOK_AGAIN))
                }
                Ok(Settled::Upto { floor, .. }) => {
                    match planned.and_then(|planned| planned.next_start(floor)) {
                        Some(starts) => (floor, (starts + RIPE_AFTER).max(now + LOOK_EVERY)),
                        // Of a job that is gone there may be more to settle.
                        None if planned.is_none() => (floor, now + LOOK_EVERY),
                        // Never due again.
                        None => (floor, now + LOOK_AT_OPEN_EVERY * 10),
                    }
                }
                Ok(Settled::Closed) => {
                    self.floors.remove(&(job.clone(), lane.clone()));
                    if lane != Lane::OneNode {
                        // A job may have had both kinds of lanes.
                        self.choose_ward(&job);
                    }
                    continue;
                }
                Ok(Settled::Overtaken) => (floor, now + LOOK_AGAIN),
                Err(error) if error.passes() => {
                    debug!(%job, %error, "a lane could not be looked at");
                    (floor, now + LOOK_AGAIN)
                }
                Err(error) => {
                    warn!(%job, %error, "a lane could not be settled");
                    (floor, now + LOOK_EVERY)
                }
            };
            let keep = planned.map(|planned| planned.job.keep);
            if let Some(open) = still_open {
                self.see_to_open(&job, &lane, open);
            }
            if let Some(keep) = keep.filter(|keep| known.pruning.is_due(keep, now)) {
                known.pruning = Pruning { unpruned: 0, at: now + LOOK_AT_LEAST_EVERY };
                self.prune(job.clone(), lane, keep);
            }
            let look_at = Some(look_at.min(now + LOOK_AT_LEAST_EVERY));
            self.wards.put(job, Known { floor, look_at, ..known });
        }
        self.look_at_wards(now);
    }

    /// Removes what is too old or too much of a lane's past, in a small task.
    fn prune(&mut self, job: JobName, lane: Lane, keep: Keep) {
        let (store, clock) = (self.place.store.clone(), self.options.clock);
        self.chores.spawn(clock.bind(async move {
            if let Err(error) = warden::prune(&store, &job, &lane, &keep, clock.now()).await {
                debug!(%job, %lane, %error, "old records are not removed yet");
            }
        }));
    }

    /// Removes, now and then, what is left of the past beside records, if it is this node that does.
    pub(super) fn prune_rest(&mut self, now: Timestamp) {
        if now >= self.wards.prune_tasks_at {
            self.wards.prune_tasks_at = now + PRUNE_TASKS_EVERY;
            self.prune_tasks(now);
        }
        if now < self.wards.prune_rest_at {
            return;
        }
        self.wards.prune_rest_at = now + LOOK_AT_LEAST_EVERY;
        if !self.fleet.is_warden(PAST, None) {
            return;
        }
        let (store, clock) = (self.place.store.clone(), self.options.clock);
        self.chores.spawn(clock.bind(async move {
            if let Err(error) = warden::prune_rest(&store, now).await {
                debug!(%error, "what is left of the past is not removed yet");
            }
        }));
    }

    /// The same of tasks.
    fn prune_tasks(&mut self, now: Timestamp) {
        if !self.fleet.is_warden(JobName::of_tasks().as_str(), None) {
            return;
        }
        let (store, clock) = (self.place.store.clone(), self.options.clock);
        self.chores.spawn(clock.bind(async move {
            if let Err(error) = warden::prune_tasks(&store, now).await {
                debug!(%error, "old tasks are not removed yet");
            }
        }));
    }

    /// Nobody whose turn it was has claimed this fire: the warden does, where it can.
    fn see_to_open(&mut self, job: &JobName, lane: &Lane, open: Timestamp) {
        let Some(planned) = self.planner.get(job) else { return };
        let fire = Fire { job: job.clone(), lane: lane.clone(), id: FireId::scheduled(open) };
        let can_run = planned.owes(open) && self.fleet.can_run(&planned.job) && !self.waits_for_mutex(&fire);
        if can_run && self.hands.len() < self.options.slots as usize {
            debug!(%job, fire = %fire.id, "nobody has claimed it, its warden does");
            self.race_for(fire);
        }
    }
}
