//! The next attempt: when there is one, how its lock waits for it, and how it begins.
//!
//! A lock that waits proves that nothing runs: whoever begins the next attempt, on this node or on another, waits for
//! nobody.

use chrono::TimeDelta;
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
use crate::race::{self, Begun, Claim, Found, Standing};
use crate::record::{Outcome, Past, Record};
use crate::schedule::Timestamp;
use crate::store::StoreError;
use crate::store::values::Lock;

/// How often a fire may be lost before it is left at that: one that takes its guard or its node down with it each time
/// must not go round the fleet for ever.
const MOST_LOST: usize = 5;

/// What comes after an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Follows {
    Nothing,
    /// There would be another, but it could not start in time.
    TooLate,
    /// None: at once.
    Another {
        due: Option<Timestamp>,
    },
}

/// What comes after an attempt that has failed, as its lock says.
///
/// Only a failure that is known is followed by another attempt: what was cancelled or refused is meant to be so, and of
/// what was lost its promise decides. `random` is in `[0, 1)`.
pub(super) fn retry(lock: &Lock, record: &Record, now: Timestamp, random: impl FnOnce() -> f64) -> Follows {
    let Some(retry) = lock.retry() else { return Follows::Nothing };
    let exit_code = record.run.as_ref().and_then(|run| run.exit_code);
    let meant = match (&retry.on, record.outcome) {
        (None, Outcome::Failed | Outcome::TimedOut) => true,
        (Some(on), Outcome::Failed) => exit_code
            .and_then(|code| u8::try_from(code).ok())
            .is_some_and(|code| on.exit_codes.contains(&code)),
        (Some(on), Outcome::TimedOut) => on.timeout,
        _ => false,
    };
    // Those that were lost are counted apart.
    let before = lock.past().iter().filter(|past| is_failure(past.outcome)).count();
    let failures = u32::try_from(before + 1).unwrap_or(u32::MAX);
    if !meant || failures >= retry.attempts {
        return Follows::Nothing;
    }
    let delay = TimeDelta::from_std(retry.delay_after(failures, random())).unwrap_or(TimeDelta::MAX);
    match now.checked_add_signed(delay).filter(|due| *due <= lock.last_start) {
        Some(due) => Follows::Another { due: Some(due) },
        None => Follows::TooLate,
    }
}

fn is_failure(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Failed | Outcome::TimedOut)
}

/// Whether an attempt that ended so is to be followed by another, since it was lost.
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
    promised && now <= lock.last_start && lost + usize::from(started) < MOST_LOST
}

/// Rewrites the lock of an attempt that is over as waiting, for as long as it takes.
///
/// `None`: the lock is no longer this claim's.
pub(super) async fn give_back(
    place: &Place,
    claim: &mut Claim,
    record: &Record,
    due: Option<Timestamp>,
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
    let form = claim.lock().waiting(&past, due);
    let mut pause = FIRST_PAUSE;
    loop {
        match race::rewrite(&place.together, claim, form.clone(), None).await {
            Ok(true) => {
                info!(job = %record.fire.job, fire = %record.fire.id, attempt = past.attempt,
                      outcome = %past.outcome, reason = past.reason, due = due.map(tracing::field::display),
                      "an attempt is over, another may follow");
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
    /// It is too early.
    Waits(Found),
    /// It is left waiting, or is somebody else's.
    Left,
}

/// Begins the next attempt of a fire whose lock waits, when it is time; unless it is too late or its job is gone: then
/// it is recorded.
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
        (Order::GoOn, None) => (unrun_outcome(&found.lock), JOB_GONE.to_owned()),
        (Order::GoOn, Some(_)) if place.clock.now() > found.lock.last_start => {
            (unrun_outcome(&found.lock), TOO_LATE.to_owned())
        }
        (Order::GoOn, Some(_)) if found.lock.is_early(place.clock.now()) => return Ok(Next::Waits(found)),
        (Order::GoOn, Some(job)) => {
            info!(job = %fire.job, fire = %fire.id, node = %standing.me.name,
                  attempt = found.lock.attempt + 1, "trying again");
            let hold = super::hold_of(job, &found.fire.lane);
            fail_point!("again.begin");
            match race::begin_again(&place.store, standing, &place.clock, &found, hold).await? {
                Begun::Claimed(claim) => return Ok(Next::Claimed(*claim)),
                Begun::Drained => return Ok(Next::Waits(found)),
                Begun::Left => return Ok(Next::Left),
                Begun::Cancelled(reason) => (Outcome::Cancelled, reason),
            }
        }
    };
    warn!(job = %fire.job, fire = %fire.id, reason, "not tried again");
    let claim = found.into_claim(standing.in_touch());
    let end = End::Unstarted { outcome, reason };
    let record = with_last_failure(record_of(place, &standing.me, &claim, None, end, &no_spec()));
    fail_point!("again.finish");
    Ok(Next::Over(finish(&place.together, &place.chains, claim, record).await?))
}

pub(super) const TOO_LATE: &str = "it is too late for another attempt";
pub(super) const JOB_GONE: &str = "its job is gone";

/// What a fire has come to whose last attempt is not made.
pub(super) fn unrun_outcome(lock: &Lock) -> Outcome {
    let past = lock.past();
    match past.last() {
        Some(last) if is_failure(last.outcome) => last.outcome,
        _ if past.iter().any(|past| past.started_at.is_some()) => Outcome::Lost,
        _ => Outcome::Missed,
    }
}

/// Of a fire that ends with an attempt that failed and is followed by none, that attempt is the run. Unless its lock was
/// passed on since: then it stays among those of the past, with the node that made it.
pub(super) fn with_last_failure(mut record: Record) -> Record {
    let Some(run) = &mut record.run else { return record };
    if is_failure(record.outcome)
        && let Some(last) = record.past.pop_if(|last| last.attempt == run.attempt && last.node == run.node)
    {
        (run.started_at, run.ended_at) = (last.started_at, last.ended_at);
        (run.exit_code, run.signal) = (last.exit_code, last.signal);
    }
    record
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fire::{Fire, FireId};
    use crate::guard::Ended;
    use crate::job::{Retry, RetryOn, Thousandths};
    use crate::record::Writer;
    use crate::store::Revision;
    use crate::store::values::LockPolicy;

    fn at(minute: i64) -> Timestamp {
        "2026-11-30T02:00:00Z".parse::<Timestamp>().unwrap() + TimeDelta::minutes(minute)
    }

    fn lock(promise: Promise, lost: usize, retry: Option<Retry>) -> Lock {
        let policy = LockPolicy { promise, last_start: at(60), hold: None, retry, slot: None, task: None };
        let lock = Lock::held(
            "a".parse().unwrap(),
            ulid::Ulid::nil().to_string().parse().unwrap(),
            1,
            at(0),
            policy,
        );
        (0..lost).fold(lock, |lock, _| lock.waiting(&past(Outcome::Lost), None))
    }

    fn past(outcome: Outcome) -> Past {
        Past {
            attempt: 1,
            node: "a".parse().unwrap(),
            outcome,
            reason: None,
            exit_code: None,
            signal: None,
            started_at: Some(at(0)),
            ended_at: None,
        }
    }

    #[test]
    fn a_failure_is_followed_by_another_attempt_where_the_lock_says_so() {
        use Follows::{Nothing, TooLate};
        let after = |seconds| Follows::Another { due: Some(at(0) + TimeDelta::seconds(seconds)) };
        let all = None;
        let some = || Some(RetryOn { exit_codes: [75].into(), timeout: true });
        for (outcome, exit_code, on, failures, lost, follows) in [
            (Outcome::Failed, Some(1), all.clone(), 0, 0, after(60)),
            (Outcome::Failed, None, all.clone(), 0, 0, after(60)),
            (Outcome::TimedOut, None, all.clone(), 1, 0, after(600)),
            // Those that were lost are no failures.
            (Outcome::Failed, Some(1), all.clone(), 0, 4, after(60)),
            (Outcome::Failed, Some(1), all.clone(), 1, 4, after(600)),
            (Outcome::Failed, Some(1), all.clone(), 2, 0, TooLate),
            (Outcome::Failed, Some(1), all.clone(), 3, 0, Nothing),
            (Outcome::Failed, Some(75), some(), 0, 0, after(60)),
            (Outcome::Failed, Some(1), some(), 0, 0, Nothing),
            (Outcome::Failed, None, some(), 0, 0, Nothing),
            (Outcome::TimedOut, None, some(), 0, 0, after(60)),
            (Outcome::TimedOut, None, Some(RetryOn::default()), 0, 0, Nothing),
            (Outcome::Succeeded, Some(0), all.clone(), 0, 0, Nothing),
            (Outcome::Cancelled, Some(1), all.clone(), 0, 0, Nothing),
            (Outcome::Refused, None, all.clone(), 0, 0, Nothing),
            (Outcome::Lost, Some(1), all, 0, 0, Nothing),
        ] {
            let retry = Retry {
                attempts: 4,
                delay: Duration::from_secs(60),
                factor: Thousandths(10_000),
                max_delay: Duration::from_secs(24 * 3600),
                jitter: Thousandths(0),
                on,
            };
            let lock = (0..failures).fold(lock(Promise::AtLeastOnce, lost, Some(retry)), |lock, _| {
                lock.waiting(&past(Outcome::Failed), Some(at(0)))
            });
            let mut run = lock.facts(Revision(1));
            run.exit_code = exit_code;
            let record = Record {
                span: None,
                fire: Fire::new("a".parse().unwrap(), FireId::scheduled(at(0))),
                outcome,
                reason: None,
                run: Some(run),
                past: Vec::new(),
                writer: Writer::Operator("x".to_owned()),
                written_at: at(0),
                tail: None,
                task: None,
                set_off: Vec::new(),
            };
            let came = super::retry(&lock, &record, at(0), || 0.5);
            assert_eq!(came, follows, "{outcome} {exit_code:?} after {failures} failures, {lost} lost");
        }
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
            let lock = lock(promise, before, None);
            assert_eq!(next_is_owed(&end, &lock, at(minute)), owed, "{promise:?} {before} {minute}");
        }
    }
}
