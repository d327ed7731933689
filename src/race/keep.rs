//! Keeping what was claimed: a holder looks whether a lock is still its own, and rewrites it.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use super::claim::Claim;
use super::registration::{InTouch, Registration, Standing};
use crate::clock::Clock;
use crate::fail_point;
use crate::fire::Fire;
use crate::store::values::{self, Lock};
use crate::store::{Compare, Entry, Op, Revision, StoreError, Together, Txn, keys};

/// What a look at a claim's lock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verified {
    /// It is this claim's, as is the registration: a contact, also for a claim that had grown stale.
    Mine(InTouch),
    /// It is gone, or somebody else's. Final: nobody gives a lock back.
    Lost,
}

const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Reads this node's registration and the lock of a fire together, for as long as it takes.
///
/// Errors: the store refuses.
pub async fn verify(
    together: &Together,
    standing: &mut Standing,
    clock: &Clock,
    fire: &Fire,
    ours: &Lock,
) -> Result<Verified, StoreError> {
    let me = standing.me.clone();
    let key = keys::lock(fire);
    let mut pause = PAUSE;
    loop {
        let registration = standing.registration().await;
        let in_touch = InTouch { at: clock.since_boot(), losses: registration.losses() };
        let read = Txn::when(registration.compares())
            .then([Op::get(key.as_str())])
            .otherwise([Op::get(key.as_str())]);
        fail_point!("verify.read");
        match together.txn([fire.job.as_str()], read).await {
            Ok(reply) => {
                let is_mine = reply.got(0).first().and_then(read_lock).is_some_and(|lock| {
                    lock.is_of(&me.name, ours.node_start, ours.attempt) && lock.state == ours.state
                });
                match (is_mine, reply.succeeded) {
                    (false, _) => return Ok(Verified::Lost),
                    (true, true) => return Ok(Verified::Mine(in_touch)),
                    (true, false) => {
                        fail_point!("verify.fence");
                        standing.fence(&registration).await;
                    }
                }
            }
            Err(error) if error.passes() || error.needs_help() => {
                fail_point!("verify.pause");
                sleep(pause.mul_f64(0.5 + together.store().random() / 2.0)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Writes a claim's lock anew, in another form. False: the lock is no longer this claim's.
///
/// Not tried again when the store does not answer: the caller has other things to see to. If such a write was made all
/// the same, the next one finds it.
///
/// `registration`: that the write counts under, where a node that others may think gone must not do it.
pub async fn rewrite(
    together: &Together,
    claim: &mut Claim,
    form: Lock,
    registration: Option<&Registration>,
) -> Result<bool, StoreError> {
    let key = keys::lock(claim.fire());
    let mut revision = claim.revision();
    loop {
        // Safe when two do it at once, a take-over among them: the lock is at this revision for one of them only.
        let mut compare = vec![Compare::mod_revision(key.as_str(), revision)];
        compare.extend(registration.into_iter().flat_map(Registration::compares));
        let txn = Txn::when(compare)
            .then([Op::put(key.as_str(), values::encode(&form))])
            .otherwise([Op::get(key.as_str())]);
        fail_point!("rewrite.send");
        let reply = together.txn([claim.fire().job.as_str()], txn).await?;
        if reply.succeeded {
            claim.rewritten(form, reply.revision);
            return Ok(true);
        }
        let Some(entry) = reply.got(0).first() else { return Ok(false) };
        match newer_of(claim, entry, revision) {
            Some(newer) => revision = newer,
            None if entry.mod_revision == revision => {
                let why = "this node's registration has moved".to_owned();
                return Err(StoreError::NoAnswer { store: together.store().describe(), why });
            }
            None => {
                warn!(job = %claim.fire().job, fire = %claim.fire().id, "the lock is no longer this node's");
                return Ok(false);
            }
        }
    }
}

/// The revision of a rewrite of ours whose answer never came.
fn newer_of(claim: &Claim, entry: &Entry, revision: Revision) -> Option<Revision> {
    let ours = claim.lock();
    let found = read_lock(entry)?;
    let is_ours = found.is_of(&ours.node, ours.node_start, ours.attempt);
    (is_ours && entry.mod_revision != revision).then_some(entry.mod_revision)
}

fn read_lock(entry: &Entry) -> Option<Lock> {
    values::decode(&entry.key, &entry.value).ok()
}
