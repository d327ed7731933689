//! The pursuit of one fire by this node: the race, and when it is won the run.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::mutexes::Wait;
use super::queued::Busy;
use crate::fire::Fire;
use crate::job::{Job, Overlap};
use crate::race::{self, Basis, Candidate, Found, Raced, Standing, Unrun};
use crate::record::Outcome;
use crate::run::{self, CameTo, Order, Place};
use crate::store::{Revision, StoreError};

/// All that it takes to pursue a fire.
pub(super) struct Pursuit {
    pub place: Place,
    pub standing: Standing,
    pub candidate: Candidate,
    pub job: Arc<Job>,
    pub orders: watch::Receiver<Order>,
    /// Told when the race is won.
    pub won: mpsc::Sender<Fire>,
    /// Cancelled when nothing more is to be claimed.
    pub leaving: CancellationToken,
}

/// What a task about a fire came to.
pub(super) enum Step {
    /// Nothing more is to be done about it by this node.
    Done,
    /// The definition was not this revision any more.
    Outdated { definition: Revision },
    /// Held back for now; a request waits on.
    HeldBack,
    /// Another fire has its lane, and it waits for that.
    Busy(Box<Busy>),
    /// Others have the mutex that it needs, and it waits for that.
    NoSlot(Wait),
    /// Its lock waits for the instant of its next attempt.
    Waits(Box<Found>),
    /// The store refused, in a way that no other try cures.
    Refused(StoreError),
}

impl Step {
    /// What a task came to that had a fire in hand.
    pub fn after(seen_to: Result<CameTo, StoreError>) -> Step {
        seen_to.map_or_else(Step::Refused, Step::of)
    }

    fn of(came_to: CameTo) -> Step {
        match came_to {
            CameTo::Waits(found) => Step::Waits(found),
            CameTo::Over(_) | CameTo::Parted => Step::Done,
        }
    }
}

impl Pursuit {
    pub async fn pursue(mut self) -> Step {
        let fire = self.candidate.fire.clone();
        loop {
            match self.race_and_run().await {
                Ok(Ok(step)) => return step,
                Ok(Err(unrun)) => match decide(&self.place, &self.standing, &fire, &unrun).await {
                    Ok(true) => return Step::Done,
                    // The lane is free again: race once more.
                    Ok(false) => {}
                    Err(error) => return Step::Refused(error),
                },
                Err(error) => return Step::Refused(error),
            }
        }
    }

    /// One race, and the run if it is won. Else why the fire is not to be run.
    async fn race_and_run(&mut self) -> Result<Result<Step, Unrun>, StoreError> {
        let Pursuit { place, standing, candidate, job, orders, won, leaving } = self;
        let (fire, me) = (&candidate.fire, standing.me.clone());
        let raced = race::claim(&place.together, standing, &place.clock, candidate, leaving).await?;
        Ok(match raced {
            Raced::Won(claim) => {
                info!(job = %fire.job, fire = %fire.id, node = %me.name, token = claim.token(), "claimed");
                // A daemon that is leaving does not listen any more.
                let _ = won.try_send(fire.clone());
                Ok(Step::of(run::run(place, standing, *claim, job, orders.clone()).await?))
            }
            Raced::Decided(by) => {
                debug!(job = %fire.job, fire = %fire.id, node = %me.name, ?by, "race lost");
                Ok(Step::Done)
            }
            Raced::Changed => match candidate.basis {
                Basis::Definition(definition) => Ok(Step::Outdated { definition }),
                // A task is judged by nothing that changes.
                Basis::Queued(_) => Ok(Step::Done),
            },
            Raced::NoSlot { mutex, with } => {
                let last_start = candidate.policy.last_start;
                Ok(Step::NoSlot(Wait { mutex, last_start, with }))
            }
            Raced::HeldBack => {
                info!(job = %fire.job, fire = %fire.id, node = %me.name, "held back: paused or drained");
                Ok(Step::HeldBack)
            }
            // Others race for it, or this node's next start does.
            Raced::Leaving => Ok(Step::Done),
            Raced::Busy { with, lock, revision } => {
                let waits = matches!(candidate.overlap, Overlap::Queue | Overlap::Replace);
                // One that would stop a newer one, or come after it, has been overtaken.
                let is_overtaken = with.job == fire.job && with.scheduled_at() > fire.scheduled_at();
                if waits && !is_overtaken {
                    let (fire, last_start) = (fire.clone(), candidate.policy.last_start);
                    let overlap = candidate.overlap;
                    return Ok(Ok(Step::Busy(Box::new(Busy { fire, overlap, with, last_start }))));
                }
                Err(Unrun {
                    outcome: Outcome::Skipped,
                    reason: match with.job == fire.job {
                        true if waits => format!("superseded by {}", with.id),
                        true => format!("overlap: {} is still running", with.id),
                        false => format!("overlap: {with}, under the job's former name, is still running"),
                    },
                    because_of: Some((lock, revision)),
                    task: None,
                })
            }
            Raced::TooLate => {
                let task = match (&candidate.basis, &candidate.policy.task) {
                    (Basis::Queued(key), Some(task)) => Some((task.clone(), key.clone())),
                    _ => None,
                };
                Err(Unrun { task, ..Unrun::new(Outcome::Missed, "too late") })
            }
        })
    }
}

/// Records that a fire is not run. False: the reason no longer holds.
pub(super) async fn decide(
    place: &Place,
    standing: &Standing,
    fire: &Fire,
    unrun: &Unrun,
) -> Result<bool, StoreError> {
    let decided = race::decide_unrun(&place.together, &standing.me, &place.clock, fire, unrun).await?;
    if decided {
        info!(job = %fire.job, fire = %fire.id, outcome = %unrun.outcome, reason = unrun.reason, "not run");
    }
    Ok(decided)
}
