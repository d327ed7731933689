//! Orphans: locks whose holder is gone. They are looked at, waited for, and taken over or closed.
//!
//! Whoever takes one over has waited for as long as the lock says since the *answer* of a look that showed the holder
//! gone; the holder's last contact was sent before that, so its run has stopped by its own clock. A holder that comes
//! back moves its epoch, and every taker that waited starts over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::chain::Chains;
use super::claim::{Claim, Found, all_locks, cancel_reason, pause_after, put_status};
use super::registration::{InTouch, Me, Registration, Standing};
use crate::clock::Clock;
use crate::fail_point;
use crate::fire::{Fire, Lane};
use crate::mutant;
use crate::node::{NodeName, NodeStart};
use crate::record::{Outcome, Past, Record};
use crate::store::values::{self, Lock, LockState, Presence, Status};
use crate::store::{Compare, Op, Revision, Store, StoreError, Txn, keys};

/// A lock whose holder is gone, as one look has shown it.
#[derive(Debug, PartialEq, Eq)]
pub struct Orphan {
    pub found: Found,
    /// The holder's epoch, seen together with its absence. None: there was none.
    epoch: Option<Revision>,
    /// Since boot: when the answer was there.
    seen_at: Duration,
}

impl Orphan {
    /// Since boot: when it may be taken over. None: never, since nobody else may touch a lock without a hold.
    pub fn free_at(&self) -> Option<Duration> {
        let hold = match self.found.lock.state {
            // Nothing runs.
            LockState::Waiting => 0,
            LockState::Held if mutant!("taker-does-not-wait") => 0,
            LockState::Held => self.found.lock.hold?,
        };
        Some(self.seen_at + Duration::from_millis(hold))
    }

    /// That nothing has changed since it was looked at: a holder that registers again moves its epoch.
    fn compares(&self) -> [Compare; 2] {
        let holder = keys::epoch(&self.found.lock.node);
        let epoch = match self.epoch {
            Some(revision) => Compare::mod_revision(holder, revision),
            None => Compare::absent(holder),
        };
        let lock = Compare::mod_revision(keys::lock(&self.found.fire), self.found.revision);
        match () {
            () if mutant!("take-over-without-lock") => [epoch.clone(), epoch],
            () if mutant!("take-over-without-epoch") => [lock.clone(), lock],
            () => [lock, epoch],
        }
    }
}

/// The locks whose holder is not among the living, and those between two attempts whose holder is drained, as a list
/// shows them to `me`; each still has to be [looked at](look). What lies in another node's lane is that node's alone: it
/// stays for its next life, whether it runs or waits.
pub async fn orphans(
    store: &Store,
    me: &NodeName,
    living: &BTreeMap<NodeName, NodeStart>,
    drained: &BTreeSet<NodeName>,
) -> Result<Vec<Found>, StoreError> {
    fail_point!("orphans.list");
    let found = all_locks(store).await?;
    let is_orphan = |Found { fire, lock, .. }: &Found| {
        if matches!(&fire.lane, Lane::Node(node) if node != me) && !mutant!("lanes-of-others") {
            return false;
        }
        let is_left = lock.state == LockState::Waiting && drained.contains(&lock.node);
        let is_gone = match mutant!("gone-is-absent") {
            true => !living.contains_key(&lock.node),
            false => living.get(&lock.node) != Some(&lock.node_start),
        };
        is_left || is_gone
    };
    Ok(found.into_iter().filter(is_orphan).collect())
}

/// Looks at a lock and its holder in one read. None: the holder is there and not drained, or the lock is another by
/// now.
pub async fn look(store: &Store, clock: &Clock, found: &Found) -> Result<Option<Orphan>, StoreError> {
    let holder = &found.lock.node;
    let read = Txn::new().then([
        Op::get(keys::lock(&found.fire)),
        Op::get(keys::node(holder)),
        Op::get(keys::epoch(holder)),
        Op::get(keys::drained(holder)),
    ]);
    let before = clock.since_boot();
    fail_point!("orphan.look");
    let reply = store.txn(read).await?;
    // After the answer: the holder may have been in touch until it was made.
    let seen_at = if mutant!("wait-from-before-look") { before } else { clock.since_boot() };
    let Some(entry) = reply.got(0).first() else { return Ok(None) };
    let Ok(mut lock) = values::decode::<Lock>(&entry.key, &entry.value) else { return Ok(None) };
    if mutant!("hold-from-job") {
        lock.hold = now_of_job(store, &found.fire).await?.or(lock.hold);
    }
    let is_there = reply.got(1).first().is_some_and(|entry| {
        // One that cannot be read may be the holder's.
        values::decode::<Presence>(&entry.key, &entry.value)
            .map_or(true, |presence| presence.node_start == lock.node_start)
    });
    // Nothing runs under it, and a drained node begins nothing.
    let is_left = lock.state == LockState::Waiting && !reply.got(3).is_empty();
    if (is_there && !is_left) || lock.node != *holder {
        return Ok(None);
    }
    let epoch = reply.got(2).first().map(|entry| entry.mod_revision);
    let found = Found { fire: found.fire.clone(), lock, revision: entry.mod_revision };
    Ok(Some(Orphan { found, epoch, seen_at }))
}

/// For a mutant: the hold of the job as it is now.
async fn now_of_job(store: &Store, fire: &Fire) -> Result<Option<u64>, StoreError> {
    let entry = store.get(&keys::job(&fire.job)).await?;
    let job = entry.and_then(|entry| values::Definition::decode(&entry.key, &entry.value).ok());
    Ok(job.map(|definition| definition.job.hold.as_millis() as u64))
}

/// What became of an attempt to take over.
#[derive(Debug)]
pub enum Taken {
    /// It is this node's now, and the next attempt may start.
    Over(Box<Claim>),
    /// It is this node's now, and it is too early for the next attempt.
    Waits(Box<Found>),
    /// Lock or holder changed meanwhile.
    Changed,
    /// Its job is gone, so it cannot be run: close it.
    JobGone,
    /// It is to be cancelled, for this reason: close it.
    Cancelled(String),
}

/// Makes this node the holder of an orphan whose time has come: as its next attempt, or between two where it is too
/// early for that.
///
/// `hold`: that of the job as it is now.
pub async fn take_over(
    store: &Store,
    standing: &mut Standing,
    clock: &Clock,
    orphan: &Orphan,
    hold: Option<Duration>,
) -> Result<Taken, StoreError> {
    let me = standing.me.clone();
    let Orphan { found, .. } = orphan;
    let key = keys::lock(&found.fire);
    let cancel_key = keys::cancel_request(&found.fire);
    let former = match found.lock.state {
        LockState::Waiting => found.lock.clone(),
        LockState::Held => found.lock.waiting(&lost(&found.lock), None),
    };
    let mut first_sent = None;
    loop {
        fail_point!("over.registration");
        let registration = standing.registration().await;
        let now = clock.now();
        let lock = match former.is_early(now) {
            true => former.passed_on(&me.name, me.start),
            false => former.next_attempt(&me.name, me.start, now, hold),
        };
        // Safe when two do it at once: the lock is at the revision seen for one of them only, and a holder that came
        // back has moved its epoch.
        let mut compare = orphan.compares().to_vec();
        if !found.fire.job.is_of_tasks() {
            compare.push(Compare::present(keys::job(&found.fire.job)));
        }
        compare.push(Compare::absent(keys::drained(&me.name)));
        compare.push(Compare::absent(cancel_key.as_str()));
        if !mutant!("take-over-without-registration") {
            compare.extend(registration.compares());
        }
        let txn = Txn::when(compare)
            .then([
                Op::put(key.as_str(), values::encode(&lock)),
                Op::get(keys::status(&found.fire.job, &found.fire.lane)),
            ])
            .otherwise([
                Op::get(key.as_str()),
                Op::get(keys::job(&found.fire.job)),
                Op::get(keys::epoch(&me.name)),
                Op::get(keys::node(&me.name)),
                Op::get(cancel_key.as_str()),
            ]);
        let now = InTouch { at: clock.since_boot(), losses: registration.losses() };
        let in_touch = *first_sent.get_or_insert(now);
        fail_point!("over.send");
        match store.txn(txn).await {
            Ok(reply) if reply.succeeded => {
                let status = reply.got(1).first();
                let status = status.and_then(|entry| values::decode(&entry.key, &entry.value).ok());
                return Ok(taken(&found.fire, lock, reply.revision, in_touch, status));
            }
            Ok(reply) => {
                let Some(entry) = reply.got(0).first() else { return Ok(Taken::Changed) };
                if entry.mod_revision != found.revision {
                    // Ours, if an answer did not come; nobody else writes this node's name.
                    let there = values::decode::<Lock>(&entry.key, &entry.value).ok();
                    let attempts = former.attempt..=former.attempt + 1;
                    let ours = there.filter(|there| {
                        attempts.contains(&there.attempt) && there.is_of(&me.name, me.start, there.attempt)
                    });
                    return Ok(ours.map_or(Taken::Changed, |lock| {
                        taken(&found.fire, lock, entry.mod_revision, in_touch, None)
                    }));
                }
                if reply.got(1).is_empty() && !found.fire.job.is_of_tasks() {
                    return Ok(Taken::JobGone);
                }
                if let Some(request) = reply.got(4).first() {
                    return Ok(Taken::Cancelled(cancel_reason(request)));
                }
                if is_registered(&reply, &registration) {
                    debug!(job = %found.fire.job, fire = %found.fire.id, "not taken over: its holder is back");
                    return Ok(Taken::Changed);
                }
                fail_point!("over.fence");
                standing.fence(&registration).await;
                first_sent = None;
            }
            Err(error) => pause(store, error).await?,
        }
    }
}

/// What this node has by the lock that it wrote.
fn taken(fire: &Fire, lock: Lock, revision: Revision, in_touch: InTouch, status: Option<Status>) -> Taken {
    let fire = fire.clone();
    match lock.state {
        LockState::Waiting => Taken::Waits(Box::new(Found { fire, lock, revision })),
        LockState::Held => Taken::Over(Box::new(Claim::taken_over(fire, lock, revision, in_touch, status))),
    }
}

fn is_registered(reply: &crate::store::TxnReply, registration: &Registration) -> bool {
    let epoch = reply.got(2).first().map(|entry| entry.mod_revision);
    epoch == Some(registration.epoch()) && !reply.got(3).is_empty()
}

/// The attempt of a holder that is gone.
fn lost(lock: &Lock) -> Past {
    Past {
        attempt: lock.attempt,
        node: lock.node.clone(),
        outcome: Outcome::Lost,
        reason: Some("its node was lost".to_owned()),
        exit_code: None,
        signal: None,
        started_at: None,
        ended_at: None,
    }
}

/// Closes an orphan whose time has come, with this record. False: lock or holder changed meanwhile.
pub async fn close_orphan(
    store: &Store,
    standing: &mut Standing,
    chains: &Chains,
    orphan: &Orphan,
    record: &mut Record,
) -> Result<bool, StoreError> {
    let fire = &orphan.found.fire;
    let (slot, mut links) = (orphan.found.lock.slot(), chains.links(record).await);
    let (lock_key, record_key) = (keys::lock(fire), keys::record(fire));
    let status_key = keys::status(&fire.job, &fire.lane);
    loop {
        fail_point!("lost.status");
        let before = match store.get(&status_key).await {
            Ok(entry) => entry.and_then(|entry| values::decode::<Status>(&entry.key, &entry.value).ok()),
            Err(error) => {
                pause(store, error).await?;
                continue;
            }
        };
        if let Err(error) = links.read(store).await {
            pause(store, error).await?;
            continue;
        }
        record.set_off = links.set_off();
        let registration = standing.registration().await;
        let mut compare = orphan.compares().to_vec();
        compare.extend(registration.compares());
        compare.extend(links.compares());
        let mut then = vec![
            Op::delete(lock_key.as_str()),
            Op::delete(keys::cancel_request(fire)),
            Op::put(record_key.as_str(), values::encode_record(record)),
        ];
        then.extend(put_status(before.as_ref(), record));
        then.extend(slot.as_ref().map(|slot| Op::delete(keys::mutex_slot(slot))));
        then.extend(links.writes());
        let mut seen = vec![
            Op::get(lock_key.as_str()),
            Op::get(record_key.as_str()),
            Op::get(keys::epoch(&standing.me.name)),
            Op::get(keys::node(&standing.me.name)),
            Op::get(keys::epoch(&orphan.found.lock.node)),
        ];
        seen.extend(links.gets());
        // Safe when two do it at once, or when it is done twice: the lock is at the revision seen for one of them.
        let txn = Txn::when(compare).then(then).otherwise(seen);
        fail_point!("lost.send");
        match store.txn(txn).await {
            Ok(reply) if reply.succeeded => return Ok(true),
            Ok(reply) => {
                let as_seen =
                    reply.got(0).first().is_some_and(|entry| entry.mod_revision == orphan.found.revision);
                if !as_seen {
                    return Ok(reply.got(1).first().is_some_and(|entry| is_by(&entry.value, record)));
                }
                if !is_registered(&reply, &registration) {
                    fail_point!("lost.fence");
                    standing.fence(&registration).await;
                    continue;
                }
                let holder = reply.got(4).first().map(|entry| entry.mod_revision);
                if holder != orphan.epoch || links.is_empty() {
                    return Ok(false);
                }
                // So it is what comes after that is not as it was.
                links.take_in(&reply, 5);
            }
            Err(error) => pause(store, error).await?,
        }
    }
}

/// Whether a stored record is this very one.
fn is_by(stored: &[u8], record: &Record) -> bool {
    stored == values::encode_record(record)
}

async fn pause(store: &Store, error: StoreError) -> Result<(), StoreError> {
    let pause = pause_after(store, &error).ok_or(error)?;
    fail_point!("over.pause");
    sleep(pause).await;
    Ok(())
}

/// Whether nobody but `me` has to close a lock without a hold: the name's former owner left it, and will never be back.
pub fn is_mine_to_close(orphan: &Orphan, me: &Me) -> bool {
    orphan.found.lock.node == me.name
}
