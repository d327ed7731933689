//! The next attempt: when a fire is owed one, how its lock waits for it, and how it begins.
//!
//! A lock that waits proves that nothing runs: whoever begins the next attempt, on this node or on another, waits for
//! nobody.

use tokio::sync::watch as channel;
use tracing::{info, warn};

use super::close::record_of;
use super::finish::{FIRST_PAUSE, Written, finish, wait_or_give_up};
use super::spec::no_spec;
use super::{End, Order, Place};
use crate::fail_point;
use crate::guard::How;
use crate::job::{Job, Promise};
use crate::mutant;
use crate::race::{self, Claim, Found, Standing};
use crate::record::{Outcome, Past, Record};
use crate::schedule::Timestamp;
use crate::store::StoreError;
use crate::store::values::Lock;

/// How often a fire may be lost before it is left at that: one that takes its guard or its node down with it each time
/// must not go round the fleet for ever.
const MOST_LOST: usize = 5;

/// Whether an attempt that ended so is to be followed by another.
pub(super) fn next_is_owed(end: &End, lock: &Lock, now: Timestamp) -> bool {
    let started = match end {
        End::Lost { .. } => true,
        End::Known(ended) if matches!(ended.how, How::OutOfTouch | How::Shutdown) => {
            ended.started_at.is_some()
        }
        End::NeverStarted => false,
        End::Known(_) | End::Unstarted { .. } => return false,
    };
    may_run_again(lock, started, now)
}

/// Whether a fire may be run again whose last attempt, as far as anybody knows, has `started` and was lost.
pub fn may_run_again(lock: &Lock, started: bool, now: Timestamp) -> bool {
    let promised = lock.promise() == Promise::AtLeastOnce || !started || mutant!("promise-forgotten");
    let lost = lock.past().iter().filter(|past| past.outcome == Outcome::Lost).count();
    promised && now <= lock.last_start && lost + 1 < MOST_LOST
}

/// Rewrites the lock of an attempt that is over as waiting, for as long as it takes.
///
/// `None`: the lock is no longer this claim's.
pub(super) async fn give_back(
    place: &Place,
    claim: &mut Claim,
    record: &Record,
) -> Result<Option<Found>, StoreError> {
    let run = record.run.as_ref();
    let past = Past {
        attempt: claim.lock().attempt,
        node: claim.lock().node.clone(),
        outcome: record.outcome,
        reason: record.reason.clone(),
        exit_code: run.and_then(|run| run.exit_code),
        signal: run.and_then(|run| run.signal),
        started_at: run.and_then(|run| run.started_at),
        ended_at: run.and_then(|run| run.ended_at),
    };
    let form = claim.lock().waiting(&past);
    let mut pause = FIRST_PAUSE;
    loop {
        match race::rewrite(&place.together, claim, form.clone(), None).await {
            Ok(true) => {
                info!(job = %record.fire.job, fire = %record.fire.id, attempt = past.attempt,
                      outcome = %past.outcome, reason = past.reason, "an attempt is over, another may follow");
                return Ok(Some(Found::of(claim)));
            }
            Ok(false) => return Ok(None),
            Err(error) => wait_or_give_up(&place.store, record, error, &mut pause).await?,
        }
    }
}

/// What became of a lock that waits.
pub(super) enum Next {
    Claimed(Claim),
    Over(Written),
    /// It is left waiting, or is somebody else's.
    Left,
}

/// Begins the next attempt of a fire whose lock waits, unless it is too late or its job is gone: then it is recorded.
pub(super) async fn begin(
    place: &Place,
    standing: &mut Standing,
    found: Found,
    job: Option<&Job>,
    orders: &mut channel::Receiver<Order>,
) -> Result<Next, StoreError> {
    let fire = found.fire.clone();
    let order = orders.borrow_and_update().clone();
    let (outcome, reason) = match (order, job) {
        // Others may have it, and the next life of this node looks.
        (Order::Part { .. } | Order::Shutdown, _) => return Ok(Next::Left),
        (Order::Cancel(reason), _) => (Outcome::Cancelled, reason),
        (Order::GoOn, None) => (unrun_outcome(&found), "its job is gone".to_owned()),
        (Order::GoOn, Some(_)) if place.clock.now() > found.lock.last_start => {
            (unrun_outcome(&found), "it is too late for another attempt".to_owned())
        }
        (Order::GoOn, Some(job)) => {
            info!(job = %fire.job, fire = %fire.id, node = %standing.me.name,
                  attempt = found.lock.attempt + 1, "trying again");
            let hold = super::hold_of(job);
            fail_point!("again.begin");
            let begun = race::begin_again(&place.store, standing, &place.clock, &found, hold).await?;
            return Ok(begun.map_or(Next::Left, Next::Claimed));
        }
    };
    warn!(job = %fire.job, fire = %fire.id, reason, "not tried again");
    let claim = found.into_claim(standing.in_touch());
    let end = End::Unstarted { outcome, reason };
    let record = record_of(place, &standing.me, &claim, None, end, &no_spec());
    fail_point!("again.finish");
    Ok(Next::Over(finish(&place.together, claim, record).await?))
}

/// What a fire has come to whose last attempt is not made.
fn unrun_outcome(found: &Found) -> Outcome {
    match found.lock.past().iter().any(|past| past.started_at.is_some()) {
        true => Outcome::Lost,
        false => Outcome::Missed,
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::guard::Ended;
    use crate::store::values::LockPolicy;

    fn at(minute: i64) -> Timestamp {
        "2026-11-30T02:00:00Z".parse::<Timestamp>().unwrap() + TimeDelta::minutes(minute)
    }

    fn lock(promise: Promise, lost: usize) -> Lock {
        let policy = LockPolicy { promise, last_start: at(60), hold: None };
        let lock = Lock::held(
            "a".parse().unwrap(),
            ulid::Ulid::nil().to_string().parse().unwrap(),
            1,
            at(0),
            policy,
        );
        let past = Past {
            attempt: 1,
            node: "a".parse().unwrap(),
            outcome: Outcome::Lost,
            reason: None,
            exit_code: None,
            signal: None,
            started_at: Some(at(0)),
            ended_at: None,
        };
        (0..lost).fold(lock, |lock, _| lock.waiting(&past))
    }

    fn known(how: How, started: bool) -> End {
        End::Known(Ended {
            v: 1,
            how,
            exit_code: None,
            signal: Some(15),
            reason: None,
            started_at: started.then(|| at(0)),
            ended_at: at(1),
            output_bytes: 0,
            output_left_out: 0,
            output_failed: None,
            usage: None,
        })
    }

    #[test]
    fn a_lost_attempt_is_followed_by_another_where_that_was_promised() {
        use Promise::{AtLeastOnce, AtMostOnce};
        let lost = || End::Lost { reason: String::new(), started_at: None };
        for (end, promise, before, minute, owed) in [
            (lost(), AtLeastOnce, 0, 1, true),
            (lost(), AtMostOnce, 0, 1, false),
            (known(How::Shutdown, true), AtLeastOnce, 0, 1, true),
            (known(How::Shutdown, true), AtMostOnce, 0, 1, false),
            // What certainly never started may start.
            (known(How::Shutdown, false), AtMostOnce, 0, 1, true),
            (known(How::OutOfTouch, true), AtLeastOnce, 0, 1, true),
            (known(How::OutOfTouch, false), AtMostOnce, 0, 1, true),
            // Too late, or too often.
            (lost(), AtLeastOnce, 0, 61, false),
            (lost(), AtLeastOnce, MOST_LOST - 2, 1, true),
            (lost(), AtLeastOnce, MOST_LOST - 1, 1, false),
            // What has a result has a record.
            (known(How::Exited, true), AtLeastOnce, 0, 1, false),
            (known(How::TimedOut, true), AtLeastOnce, 0, 1, false),
            (known(How::Cancelled, true), AtLeastOnce, 0, 1, false),
            (known(How::CouldNotStart, false), AtLeastOnce, 0, 1, false),
        ] {
            let lock = lock(promise, before);
            assert_eq!(next_is_owed(&end, &lock, at(minute)), owed, "{promise:?} {before} {minute}");
        }
    }
}
