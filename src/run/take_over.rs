//! Taking over what a lost node left, once its time has come.

use tokio::sync::watch as channel;
use tracing::info;

use super::again::{JOB_GONE, TOO_LATE, unrun_outcome, with_last_failure};
use super::{CameTo, Order, Place, Written, may_run_again, run};
use crate::fail_point;
use crate::job::Job;
use crate::race::{self, Orphan, Standing, Taken};
use crate::record::{Outcome, Record, Writer};
use crate::store::StoreError;
use crate::store::values::LockState;

/// What a record says of a run that nobody saw end.
const LOST: &str = "its node was lost";

/// Runs an orphan's fire again where that was promised, or goes on to wait for its next attempt; else records it.
///
/// Errors: the store refuses.
pub async fn take_over(
    place: &Place,
    standing: &mut Standing,
    orphan: Orphan,
    job: Option<&Job>,
    orders: channel::Receiver<Order>,
) -> Result<CameTo, StoreError> {
    let lock = &orphan.found.lock;
    let fire = orphan.found.fire.clone();
    let held = lock.state == LockState::Held;
    let again = job.filter(|_| may_run_again(lock, held, place.clock.now()));
    let mut cancelled = None;
    if let Some(job) = again {
        let hold = super::hold_of(job, &fire.lane);
        fail_point!("over.begin");
        let taken = race::take_over(&place.store, standing, &place.clock, &orphan, hold).await?;
        match taken {
            Taken::Over(claim) => {
                info!(job = %fire.job, fire = %fire.id, node = %standing.me.name, from = %lock.node,
                      attempt = claim.lock().attempt, token = claim.token(), "taken over");
                fail_point!("over.run");
                return run(place, standing, *claim, job, orders).await;
            }
            Taken::Waits(found) => {
                info!(job = %fire.job, fire = %fire.id, node = %standing.me.name, from = %lock.node,
                      attempt = lock.attempt, due = found.lock.due.map(tracing::field::display),
                      "taken over between two attempts");
                return Ok(CameTo::Waits(found));
            }
            Taken::Changed => return Ok(CameTo::Parted),
            Taken::JobGone => {}
            Taken::Cancelled(reason) => cancelled = Some(reason),
        }
    }
    let (outcome, reason) = match (lock.state, cancelled) {
        (LockState::Held, None) => (Outcome::Lost, LOST.to_owned()),
        // Whether it obeyed, nobody saw.
        (LockState::Held, Some(reason)) => (Outcome::Lost, format!("{LOST}; not run again: {reason}")),
        (LockState::Waiting, Some(reason)) => (Outcome::Cancelled, reason),
        (LockState::Waiting, None) => {
            (unrun_outcome(lock), if job.is_some() { TOO_LATE } else { JOB_GONE }.to_owned())
        }
    };
    let mut record = unrun_record(place, standing, &orphan, outcome, reason);
    fail_point!("over.close");
    if !race::close_orphan(&place.store, standing, &place.chains, &orphan, &mut record).await? {
        return Ok(CameTo::Parted);
    }
    info!(job = %fire.job, fire = %fire.id, node = %standing.me.name, from = %lock.node,
          outcome = %record.outcome, reason = record.reason, "closed for a lost node");
    Ok(CameTo::Over(Box::new(Written::Record(record))))
}

/// What is known of a fire that is not run again. Written by who closes it, so that its holder, should it be back,
/// keeps its true result beside it.
fn unrun_record(
    place: &Place,
    standing: &Standing,
    orphan: &Orphan,
    outcome: Outcome,
    reason: String,
) -> Record {
    let lock = &orphan.found.lock;
    with_last_failure(Record {
        span: None,
        fire: orphan.found.fire.clone(),
        outcome,
        reason: Some(reason),
        run: Some(lock.facts(orphan.found.revision)),
        past: lock.past(),
        writer: Writer::Node { node: standing.me.name.clone(), node_start: standing.me.start },
        written_at: place.clock.now(),
        tail: None,
        task: lock.task(&orphan.found.fire).map(Box::new),
        set_off: Vec::new(),
    })
}
