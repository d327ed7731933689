//! Fires that wait for their lane: of each lane one, the newest. They take no slot until the lane is free.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinError, JoinSet};
use tracing::{error, info};

use super::Daemon;
use crate::clock::Clock;
use crate::fire::{Fire, FireId, Lane};
use crate::job::{JobName, Overlap};
use crate::race;
use crate::schedule::Timestamp;
use crate::store::Store;
use crate::store::values::CancelRequest;

/// A fire whose lane another one has.
pub(super) struct Busy {
    pub fire: Fire,
    pub overlap: Overlap,
    /// The other.
    pub with: Fire,
    /// When it is too late for it.
    pub last_start: Timestamp,
}

#[derive(Default)]
pub(super) struct Queued {
    lanes: HashMap<(JobName, Lane), (Fire, AbortHandle)>,
    /// Each waits for one fire's lane and ends when it may be claimed, or when it is too late for it.
    waits: JoinSet<Fire>,
}

impl Queued {
    pub fn has(&self, fire: &Fire) -> bool {
        self.lanes.get(&lane_of(fire)).is_some_and(|(queued, _)| queued == fire)
    }

    /// A fire that need not wait any longer. Safe to drop while it waits.
    pub async fn next(&mut self) -> Option<Result<Fire, JoinError>> {
        self.waits.join_next().await
    }

    /// Lets go of a job's fires.
    pub fn forget(&mut self, job: &JobName) {
        self.lanes.retain(|(of, _), (_, wait)| {
            if of == job {
                wait.abort();
            }
            of != job
        });
    }

    pub fn clear(&mut self) {
        self.lanes.clear();
        self.waits.abort_all();
    }

    /// Lets go of an older scheduled fire of the same lane, which another node may have the newer one of. Returns it.
    pub fn supersede(&mut self, by: &Fire) -> Option<Fire> {
        let is_older = |(queued, _): &(Fire, AbortHandle)| {
            matches!(queued.id, FireId::Scheduled(_)) && queued.scheduled_at() < by.scheduled_at()
        };
        self.lanes.get(&lane_of(by)).filter(|queued| is_older(queued))?;
        let (older, wait) = self.lanes.remove(&lane_of(by))?;
        wait.abort();
        Some(older)
    }

    /// Of two fires of a lane the newer one waits; returns the other.
    fn push(&mut self, store: Store, clock: Clock, busy: Busy) -> Option<Superseded> {
        let (lane, fire) = (lane_of(&busy.fire), busy.fire.clone());
        let age = |fire: &Fire| (fire.scheduled_at(), fire.id.to_string());
        let older = match self.lanes.get(&lane) {
            Some((queued, _)) if *queued == fire => return None,
            Some((queued, _)) if age(queued) > age(&fire) => {
                return Some(Superseded { fire, by: queued.clone() });
            }
            Some((queued, wait)) => {
                wait.abort();
                Some(queued.clone())
            }
            None => None,
        };
        info!(job = %fire.job, fire = %fire.id, with = %busy.with, overlap = ?busy.overlap,
              "waits until the other has ended");
        let wait = self.waits.spawn(clock.bind(wait(store, clock, busy)));
        self.lanes.insert(lane, (fire.clone(), wait));
        older.map(|older| Superseded { fire: older, by: fire })
    }
}

struct Superseded {
    fire: Fire,
    by: Fire,
}

fn lane_of(fire: &Fire) -> (JobName, Lane) {
    (fire.job.clone(), fire.lane.clone())
}

/// Nothing sleeps longer without a look at the clock.
const LOOK_AT_CLOCK_EVERY: Duration = Duration::from_secs(2);

/// Waits until the lane may be free, or until it is too late; asks the other to stop, where that is wanted.
async fn wait(store: Store, clock: Clock, busy: Busy) -> Fire {
    let Busy { fire, overlap, with, last_start } = busy;
    let free = async {
        if overlap == Overlap::Replace {
            let reason = format!("replaced by {}", fire.id);
            let request = CancelRequest::new(fire.to_string(), clock.now(), reason);
            if let Err(error) = race::ask_to_stop(&store, &with, &request).await {
                error!(job = %with.job, fire = %with.id, %error, "it could not be asked to stop");
            }
        }
        race::until_gone(&store, &with).await;
    };
    let too_late = async {
        while clock.now() <= last_start {
            // A millisecond more, so that the instant has passed and not only come.
            let left = clock.until(last_start) + Duration::from_millis(1);
            tokio::time::sleep(left.min(LOOK_AT_CLOCK_EVERY)).await;
        }
    };
    tokio::select! {
        // Always in this order, so that a simulation can be repeated.
        biased;
        () = free => {}
        () = too_late => {}
    }
    fire
}

impl Daemon {
    /// Has a fire wait for its lane. The one that waited there before it is superseded.
    pub(super) fn wait_for_lane(&mut self, busy: Busy) {
        let (store, clock) = (self.place.store.clone(), self.options.clock);
        if let Some(Superseded { fire, by }) = self.queued.push(store, clock, busy) {
            self.supersede(fire, by.id, "its lane");
        }
    }

    /// Races for a fire whose lane may be free, or for which it is too late: the claim tells.
    pub(super) fn lane_is_free(&mut self, waited: Result<Fire, JoinError>) {
        match waited {
            Ok(fire) => {
                // Else it was superseded in the same moment.
                if self.queued.has(&fire) {
                    self.queued.lanes.remove(&lane_of(&fire));
                    self.race_for(fire);
                }
            }
            Err(ended) if ended.is_cancelled() => {}
            Err(panicked) => error!(error = %panicked, "a wait for a lane panicked"),
        }
    }
}
