//! What comes due: this node's part of it is raced for at once, looked at a moment later, or caught up with in order.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use chrono::TimeDelta;
use tracing::{debug, info, warn};

use super::fleet::Turn;
use super::{Daemon, News};
use crate::fire::{Fire, FireId};
use crate::job::JobName;
use crate::race;
use crate::schedule::Timestamp;

/// So long after the first node could have claimed a fire, the second looks whether it has.
const SECOND_LOOKS_AFTER: Duration = Duration::from_secs(1);

/// So many fires are looked at in one round trip, each by its lock and its record.
const FIRES_AT_ONCE: usize = 60;

/// A longer time without a renewal of the lease, and nothing is planned: what comes due meanwhile is a gap.
const OUT_OF_TOUCH: Duration = Duration::from_secs(4);

/// A loss of the lease is seen by the registration itself, in less than this.
const MISSING_FOR: Duration = Duration::from_secs(5);

/// A clock that is set back by less than this is not worth a word.
const CLOCK_WAVERS: TimeDelta = TimeDelta::seconds(5);

/// Fires that this node looks at when others have had their turn.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<Duration, Vec<Fire>>);

impl Looks {
    /// `at` counts from boot.
    pub fn add(&mut self, at: Duration, fire: Fire) {
        self.0.entry(at).or_default().push(fire);
    }

    pub fn next(&self) -> Option<Duration> {
        self.0.keys().next().copied()
    }

    fn due(&mut self, now: Duration) -> Vec<Fire> {
        let later = self.0.split_off(&(now + Duration::from_nanos(1)));
        std::mem::replace(&mut self.0, later).into_values().flatten().collect()
    }
}

/// What was missed and is still to be run, by job, in order; one at a time is in hand.
pub(super) type CatchingUp = BTreeMap<JobName, VecDeque<Fire>>;

impl Daemon {
    /// Sees to all whose time has come since the last look.
    pub(super) fn look_at_time(&mut self) {
        self.looked = self.options.clock.since_boot();
        let now = self.options.clock.now();
        self.look_at_own_clock(now);
        self.end_pauses(now);
        self.look_at_registration();
        if !self.can_plan() {
            return;
        }
        self.look_at_clock(now);
        let due = self.planner.due(now);
        for fire in due.now {
            // Whoever is to run it: one of its job that waits here for a slot has had its time.
            self.pass_over_older(&fire);
            self.see_to(fire);
        }
        for (job, fires) in due.missed {
            self.wards.look_soon(&job, now);
            self.catch_up(job, fires);
        }
        self.look_at_due();
        self.look_into_queue();
        self.go_on_with_mutexes();
        self.renew_waits();
        self.look_at_wards(now);
        self.prune_rest(now);
    }

    /// Registers anew when the store has told for a while that this node is not there: somebody has taken the key out,
    /// and its lease is as it was, so nothing else would tell.
    fn look_at_registration(&mut self) {
        let now = self.options.clock.since_boot();
        if !self.fleet.is_known() || self.fleet.knows_me() {
            self.missing_since = None;
            return;
        }
        if now < *self.missing_since.get_or_insert(now) + MISSING_FOR {
            return;
        }
        self.missing_since = None;
        warn!(node = %self.options.node, "this node is not in the store any more, registering anew");
        let mut standing = self.standing.clone();
        self.chores.spawn(self.options.clock.bind(async move {
            let registration = standing.registration().await;
            standing.fence(&registration).await;
        }));
    }

    /// Whether the store has told what has to be known, and gives signs of life.
    pub(super) fn can_plan(&self) -> bool {
        let is_late = self.standing.renewed() + OUT_OF_TOUCH < self.options.clock.since_boot();
        let agrees =
            self.agreement.is_given() && self.agreement.has_listened(self.options.clock.since_boot());
        self.knows_jobs && self.fleet.is_known() && !is_late && agrees
    }

    /// Races for a fire if it is this node's turn, or looks at it a moment later.
    pub(super) fn see_to(&mut self, fire: Fire) {
        let Some(planned) = self.planner.get(&fire.job) else { return };
        match self.fleet.turn(&planned.job, &fire) {
            Turn::First => self.race_for(fire),
            Turn::Second => {
                let at = self.options.clock.since_boot() + SECOND_LOOKS_AFTER;
                self.looks.add(at, fire);
            }
            Turn::None => {}
        }
    }

    /// Begins with what was missed of a job, if it is this node that does.
    fn catch_up(&mut self, job: JobName, fires: Vec<Fire>) {
        let (Some(planned), Some(first)) = (self.planner.get(&job), fires.first()) else { return };
        if !self.fleet.catches_up(&planned.job, &first.lane) {
            return;
        }
        let fires: VecDeque<Fire> =
            fires.into_iter().filter(|fire| !self.held_back.was_paused(fire)).collect();
        info!(%job, fires = fires.len(), first = ?fires.front().map(|fire| fire.id.to_string()), "missed, catching up");
        self.catching_up.insert(job.clone(), fires);
        self.go_on_catching_up(&job);
    }

    /// Takes the next one of what was missed of a job in hand, if none is.
    pub(super) fn go_on_catching_up(&mut self, job: &JobName) {
        let Some(fires) = self.catching_up.get_mut(job) else { return };
        let next = fires.pop_front();
        if fires.is_empty() {
            self.catching_up.remove(job);
        }
        if let Some(fire) = next {
            self.race_for(fire);
        }
    }

    /// Looks, in small tasks, at the fires whose first node has had its time.
    fn look_at_due(&mut self) {
        let fires = self.looks.due(self.options.clock.since_boot());
        self.look_at(fires);
    }

    /// Looks at fires in small tasks, and races for those that nobody has decided.
    fn look_at(&mut self, fires: Vec<Fire>) {
        let fires: Vec<Fire> = fires.into_iter().filter(|fire| !self.hands.contains_key(fire)).collect();
        for some in fires.chunks(FIRES_AT_ONCE) {
            let (store, some, tell) = (self.place.store.clone(), some.to_vec(), self.news.0.clone());
            self.chores.spawn(self.options.clock.bind(async move {
                match race::undecided(&store, &some).await {
                    Ok(undecided) if undecided.is_empty() => {}
                    Ok(undecided) => _ = tell.send(News::Undecided(undecided)).await,
                    // The warden's look is the net for these.
                    Err(error) => debug!(%error, "fires could not be looked at"),
                }
            }));
        }
    }

    /// Others are there, or able, than before: what has become this node's turn is looked at, at once.
    pub(super) fn fleet_changed(&mut self) {
        let now = self.options.clock.now();
        let fleet = &mut self.fleet;
        let newest = self.planner.jobs().filter_map(|(planned, last)| {
            let fire = last.filter(|fire| now <= planned.last_start(fire.scheduled_at()))?;
            fleet.is_new_turn(&planned.job, &fire).then_some(fire)
        });
        let newest: Vec<Fire> = newest.collect();
        self.look_at(newest);
        self.race_for_requests();
        self.choose_wards();
        self.look_for_orphans();
        self.rank_tasks_anew();
    }

    /// Says so where the clock is why fires are left out.
    fn look_at_clock(&mut self, now: Timestamp) {
        let (node, until) = (&self.options.node, self.planner.planned_until());
        if now + CLOCK_WAVERS < until {
            warn!(%node, %now, %until, "the clock was set back; what came due meanwhile is decided and is not run again");
            self.planner.set_back(now);
            self.wards.look_at_all(now);
        } else if self.has_planned && self.planner.is_gap(now) {
            warn!(%node, from = %until, to = %now,
                  "the clock was set forward, this machine stood still, or the store was away; what was due in between \
                   was missed, and is caught up with as each job says");
        }
        // What came due before the first look was due while this node was away.
        self.has_planned = true;
    }

    /// Lets go of scheduled fires of the same lane that wait here for a slot or for the lane: they are superseded by
    /// this one, whoever is to run it.
    fn pass_over_older(&mut self, by: &Fire) {
        let FireId::Scheduled(_) = by.id else { return };
        if let Some(older) = self.waiting.supersede(by) {
            self.supersede(older, by.id, "a slot");
        }
        if let Some(older) = self.queued.supersede(by) {
            self.supersede(older, by.id, "its lane");
        }
    }
}
