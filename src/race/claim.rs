//! Claims: the transactions by which this node becomes the holder of a fire, or decides one that nobody runs.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::registration::{InTouch, Me, Registration, Standing};
use crate::clock::Clock;
use crate::fail_point;
use crate::fire::{Fire, FireId, Lane};
use crate::job::{JobName, MutexName, Overlap, Slot};
use crate::mutant;
use crate::record::{Outcome, Record, Writer};
use crate::store::values::{
    self, CancelRequest, Lock, LockPolicy, LockState, MutexHolder, Status, Unreadable,
};
use crate::store::{
    Compare, Entry, Is, KeyRange, Op, Revision, Store, StoreError, Together, Txn, TxnReply, keys,
};
use crate::task::Task;

/// A fire that this node could run, with what of its job a claim depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub fire: Fire,
    pub basis: Basis,
    pub overlap: Overlap,
    /// The job's former name: while that one has a lock, the fire waits as if it were the job's own.
    pub was: Option<JobName>,
    pub policy: LockPolicy,
    /// What it shares with others, and how many may have that at once.
    pub mutex: Option<(MutexName, u32)>,
    /// What its job comes after is counted from this run on.
    pub restarts_chain: bool,
}

/// Why a fire may be claimed at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Basis {
    /// The revision of the definition it was planned by.
    Definition(Revision),
    /// The key of the queue under which it waits as a task.
    Queued(String),
}

impl Candidate {
    /// What the transactions about it must not have in common with others of one round trip.
    fn about(&self) -> Vec<String> {
        let names = [Some(about(&self.fire)), self.was.as_ref().map(JobName::to_string)];
        let mutex = self.mutex.as_ref().map(|(name, _)| about_mutex(name));
        names.into_iter().flatten().chain(mutex).collect()
    }

    /// The key that asks for it, which its claim uses up.
    fn asked_by(&self) -> Option<String> {
        match &self.basis {
            Basis::Queued(key) => Some(key.clone()),
            Basis::Definition(_) => self.fire.id.is_asked_for().then(|| keys::request(&self.fire)),
        }
    }
}

/// The name of what the transactions about a fire are about, as far as they keep others out of their round trip: its
/// job; tasks have nothing in common.
pub fn about(fire: &Fire) -> String {
    match fire.id {
        FireId::Task(_) => fire.to_string(),
        _ => fire.job.to_string(),
    }
}

/// No job's name.
pub fn about_mutex(mutex: &MutexName) -> String {
    format!("mutex {mutex}")
}

/// The proof of a won race: this node start, and nobody else, may run this attempt of this fire. Used up by the run.
#[derive(Debug, PartialEq, Eq)]
pub struct Claim {
    fire: Fire,
    lock: Lock,
    /// The revision at which the lock was last written by this node.
    revision: Revision,
    token: Revision,
    /// The contact that it is proof of.
    in_touch: InTouch,
    /// The job's status when the fire was claimed, for the one after it.
    status: Option<Status>,
}

impl Claim {
    pub fn fire(&self) -> &Fire {
        &self.fire
    }

    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// The revision that the lock must have for a write of ours.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The fencing token: the store revision of the claim.
    pub fn token(&self) -> i64 {
        self.token.0
    }

    /// The claim of who has taken a fire over from a lost node.
    pub(super) fn taken_over(
        fire: Fire,
        lock: Lock,
        revision: Revision,
        in_touch: InTouch,
        status: Option<Status>,
    ) -> Claim {
        Claim { fire, lock, revision, token: revision, in_touch, status }
    }

    /// A later look has shown that it is still this node's.
    pub fn confirmed(&mut self, in_touch: InTouch) {
        self.in_touch = in_touch;
    }

    pub fn in_touch(&self) -> InTouch {
        self.in_touch
    }

    /// A write of ours has given the lock this form.
    pub fn rewritten(&mut self, lock: Lock, revision: Revision) {
        (self.lock, self.revision) = (lock, revision);
    }

    pub fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }
}

/// What became of a race.
#[derive(Debug, PartialEq, Eq)]
pub enum Raced {
    Won(Box<Claim>),
    /// The fire is somebody's already, and stays decided.
    Decided(Decided),
    /// Another fire of the lane holds it, under this lock at this revision.
    Busy {
        with: Fire,
        lock: String,
        revision: Revision,
    },
    /// Others have, or come before it for, the mutex that it needs: the first of them that has it, as people read it.
    NoSlot {
        mutex: MutexName,
        with: Option<String>,
    },
    /// The definition is no longer the one it was planned by: look again when the change has been seen.
    Changed,
    /// The job or everything is paused, or this node is drained.
    HeldBack,
    /// `last_start` passed before the store could be asked.
    TooLate,
    /// This node is leaving and claims nothing more.
    Leaving,
}

/// By what a fire was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    Locked(Box<Lock>),
    Recorded,
    /// It lies at or under the floor.
    Settled,
    /// The request was used up or taken back.
    RequestGone,
}

/// Between two sends of one claim.
const PAUSE: Duration = Duration::from_millis(100);
/// The same, where only a person can help.
const PAUSE_FOR_HELP: Duration = Duration::from_secs(4);

/// Races for a fire: the first attempt at it.
///
/// Asks until it knows. A claim that may have been made without our hearing of it is not given up before a fence has
/// made sure that it was not and never will be.
pub async fn claim(
    together: &Together,
    standing: &mut Standing,
    clock: &Clock,
    candidate: &Candidate,
    leaving: &CancellationToken,
) -> Result<Raced, StoreError> {
    let me = standing.me.clone();
    let mut slot = candidate.mutex.as_ref().map(|(mutex, _)| Slot { mutex: mutex.clone(), number: 0 });
    let mut sent = Sent::Answered;
    let mut told = false;
    // Contact counts from before the first send: the lock may be as old as that.
    let mut first_sent = None;
    loop {
        fail_point!("claim.registration");
        let registration = standing.registration().await;
        let now = clock.now();
        if sent == Sent::Answered && leaving.is_cancelled() {
            return Ok(Raced::Leaving);
        }
        if sent == Sent::Answered && now > candidate.policy.last_start {
            return Ok(Raced::TooLate);
        }
        let policy = LockPolicy { slot: slot.clone(), ..candidate.policy.clone() };
        let lock = Lock::held(me.name.clone(), me.start, 1, now, policy);
        let txn = claim_txn(candidate, &registration, &me, &lock);
        let mut pause = PAUSE;
        let now = InTouch { at: clock.since_boot(), losses: registration.losses() };
        let mut in_touch = *first_sent.get_or_insert(now);
        if mutant!("contact-from-second-send") {
            in_touch = now;
        }
        fail_point!("claim.send");
        match together.txn(candidate.about(), txn).await {
            Ok(reply) => {
                fail_point!("claim.answered");
                match judge(candidate, reply, lock, &me, in_touch, sent) {
                    Ok(Verdict::Certain(raced)) => return Ok(raced),
                    Ok(Verdict::NotRegistered) => {
                        // By the time there is another registration, nothing sent under this one can commit.
                        debug!(job = %candidate.fire.job, fire = %candidate.fire.id, "claim refused: not registered");
                        fail_point!("claim.fence");
                        standing.fence(&registration).await;
                        sent = sent.fenced();
                        first_sent = first_sent.filter(|_| sent != Sent::Answered);
                    }
                    // Whichever of the two is on its way, the lock itself tells its place.
                    Ok(Verdict::AnotherSlot(free)) => slot = Some(free),
                    Ok(Verdict::ForNow(raced)) if sent != Sent::Unanswered => return Ok(raced),
                    Ok(Verdict::ForNow(_)) => {
                        // What we sent before may still be on its way: make sure that it no longer counts.
                        fail_point!("claim.settle");
                        standing.fence(&registration).await;
                        sent = match mutant!("settled-is-forgotten") {
                            true => Sent::Answered,
                            false => sent.fenced(),
                        };
                    }
                    Err(unreadable) => {
                        warn!(job = %candidate.fire.job, fire = %candidate.fire.id, error = %unreadable, "not claimed");
                        return Err(StoreError::Rejected(unreadable.to_string()));
                    }
                }
                continue;
            }
            Err(StoreError::NoAnswer { .. }) if mutant!("no-read-back") => return Ok(Raced::Leaving),
            Err(StoreError::NoAnswer { .. }) if mutant!("no-answer-is-won") => {
                let (fire, revision) = (candidate.fire.clone(), Revision(0));
                let claim = Claim { fire, lock, revision, token: revision, in_touch, status: None };
                return Ok(Raced::Won(Box::new(claim)));
            }
            Err(StoreError::NoAnswer { .. }) => sent = Sent::Unanswered,
            Err(StoreError::NotReached { .. }) => {}
            // A fire waits as long for a person as for a network.
            Err(error) if error.needs_help() => {
                if !std::mem::replace(&mut told, true) {
                    warn!(job = %candidate.fire.job, fire = %candidate.fire.id, %error, "not claimed yet, trying on");
                }
                pause = PAUSE_FOR_HELP;
            }
            // A refusal is an answer; but what was sent before it may still come in.
            Err(error) if sent == Sent::Answered => return Err(error),
            Err(_) => {}
        }
        fail_point!("claim.pause");
        let pause = sleep(pause.mul_f64(0.5 + together.store().random()));
        tokio::select! {
            biased;
            () = pause => {}
            () = leaving.cancelled(), if sent == Sent::Answered => {}
        }
    }
}

/// Those of the fires that have neither a lock nor a record. For a look that spares races; what it shows may be over
/// by the time of the answer.
pub async fn undecided(store: &Store, fires: &[Fire]) -> Result<Vec<Fire>, StoreError> {
    let reads = fires.iter().flat_map(|fire| [Op::get(keys::lock(fire)), Op::get(keys::record(fire))]);
    fail_point!("claim.look");
    let reply = store.txn(Txn::new().then(reads)).await?;
    let is_open = |index: usize| reply.got(2 * index).is_empty() && reply.got(2 * index + 1).is_empty();
    Ok(fires.iter().enumerate().filter(|(index, _)| is_open(*index)).map(|(_, fire)| fire.clone()).collect())
}

/// What is known of the claims of one fire that were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// Each was answered, and no.
    Answered,
    /// One was not: it may have made the lock, or may yet.
    Unanswered,
    /// One was not, and can come in no more: whether it has made the lock is still to be seen.
    Fenced,
}

impl Sent {
    fn fenced(self) -> Sent {
        match self {
            Sent::Answered => Sent::Answered,
            Sent::Unanswered | Sent::Fenced => Sent::Fenced,
        }
    }
}

/// Positions of the gets in the claim's other branch.
const GOT_LOCKS: usize = 0;
const GOT_OWN_LOCK: usize = 1;
const GOT_RECORD: usize = 2;
const GOT_FLOOR: usize = 3;
const GOT_JOB: usize = 4;
const GOT_PAUSES: usize = 5;
const GOT_DRAINED: usize = 7;
const GOT_REQUEST: usize = 8;
const GOT_STATUS: usize = 9;
const GOT_NODE: usize = 10;
const GOT_EPOCH: usize = 11;
const GOT_OTHERS: usize = 12;

/// The claim as one transaction.
///
/// Safe when two nodes do it at once: the lock's key is absent for one of them only; and safe however late it comes
/// in: lock, record or floor tell that the fire is decided, and none of the three goes before another is there.
fn claim_txn(candidate: &Candidate, registration: &Registration, me: &Me, lock: &Lock) -> Txn {
    let Candidate { fire, basis, overlap, .. } = candidate;
    let asked_by = candidate.asked_by();
    let (lock_key, status_key) = (keys::lock(fire), keys::status(&fire.job, &fire.lane));
    let lane = lane_range(fire, *overlap);
    let others = other_ranges(candidate);
    let mut compare = is_undecided(fire, asked_by.as_deref());
    match overlap {
        // The whole lane, and this fire's lock with it.
        Overlap::Skip | Overlap::Queue | Overlap::Replace if mutant!("no-lane-compare") => {
            compare.push(Compare::absent(lock_key.as_str()));
        }
        Overlap::Skip | Overlap::Queue | Overlap::Replace => {
            compare.push(Compare::absent(lane.clone()));
        }
        Overlap::Allow => compare.push(Compare::absent(lock_key.as_str())),
    }
    compare.extend(others.iter().map(Compare::absent));
    if let Basis::Definition(definition) = basis {
        compare.push(Compare::mod_revision(keys::job(&fire.job), *definition));
    }
    // Whose key comes first among those that wait has the first place that is free.
    let slot = candidate.mutex.as_ref().and_then(|(mutex, _)| Some((mutex, lock.slot()?)));
    let waits = slot.as_ref().map(|(mutex, _)| match fire.id {
        // Of tasks none waits in the order of the mutex: they wait in the queue.
        FireId::Task(_) => keys::mutex_waits(mutex),
        _ => keys::mutex_waits_before(mutex, fire),
    });
    if let Some((_, slot)) = slot.as_ref().filter(|_| !mutant!("no-mutex-compare")) {
        compare.push(Compare::absent(keys::mutex_slot(slot)));
        compare.extend(waits.as_ref().map(Compare::absent));
    }
    compare.extend([
        Compare::absent(keys::paused(&fire.job)),
        Compare::absent(keys::all_paused()),
        Compare::absent(keys::drained(&me.name)),
    ]);
    if !mutant!("claim-without-registration") {
        compare.extend(registration.compares());
    }
    let mut then = vec![Op::put(lock_key.as_str(), values::encode(lock)), Op::get(status_key.as_str())];
    then.extend(asked_by.as_deref().map(Op::delete));
    if let Some((mutex, slot)) = &slot {
        let holder = MutexHolder::new(fire, me.name.clone());
        then.push(Op::put(keys::mutex_slot(slot), values::encode(&holder)));
        then.push(Op::delete(keys::mutex_wait(mutex, fire)));
    }
    if candidate.restarts_chain {
        then.push(Op::delete(keys::chain(&fire.job)));
    }
    let mut otherwise = vec![
        Op::get_first(lane, 1),
        Op::get(lock_key.as_str()),
        Op::get(keys::record(fire)),
        Op::get(keys::floor(&fire.job, &fire.lane)),
        Op::get(keys::job(&fire.job)),
        Op::get(keys::paused(&fire.job)),
        Op::get(keys::all_paused()),
        Op::get(keys::drained(&me.name)),
        Op::get(asked_by.unwrap_or_else(|| keys::request(fire))),
        Op::get(status_key.as_str()),
        Op::get(keys::node(&me.name)),
        Op::get(keys::epoch(&me.name)),
    ];
    otherwise.extend(others.into_iter().map(|range| Op::get_first(range, 1)));
    if let (Some((mutex, _)), Some(waits)) = (&candidate.mutex, waits) {
        otherwise.extend([Op::get(keys::mutex_slots(mutex)), Op::get_first(waits, 1)]);
    }
    Txn::when(compare).then(then).otherwise(otherwise)
}

/// The locks that keep a fire from being claimed.
fn lane_range(fire: &Fire, overlap: Overlap) -> KeyRange {
    match overlap {
        Overlap::Skip | Overlap::Queue | Overlap::Replace => match fire.lane {
            Lane::OneNode => keys::locks_of(&fire.job),
            Lane::Node(_) => keys::locks_in(&fire.job, &fire.lane),
        },
        Overlap::Allow => KeyRange::key(keys::lock(fire)),
    }
}

/// Further locks that keep it from being claimed: those under the job's former name; and where each node has a lane of
/// its own, those of a run from before that was so, or of one that was asked for by hand.
fn other_ranges(candidate: &Candidate) -> Vec<KeyRange> {
    let Candidate { fire, overlap, was, .. } = candidate;
    let one_node = match (&fire.lane, overlap) {
        (Lane::OneNode, _) | (_, Overlap::Allow) => None,
        (Lane::Node(_), _) => Some(keys::locks_in(&fire.job, &Lane::OneNode)),
    };
    was.as_ref().map(keys::locks_of).into_iter().chain(one_node).collect()
}

/// That a fire is not decided, its lock apart: no record; above the floor, or what asks for it still there.
fn is_undecided(fire: &Fire, asked_by: Option<&str>) -> Vec<Compare> {
    let open = match fire.id {
        FireId::Scheduled(_) => {
            Some(Compare::value(keys::floor(&fire.job, &fire.lane), Is::Less, fire.id.to_string()))
        }
        FireId::Manual(_) | FireId::Chain(_) | FireId::Task(_) => asked_by.map(Compare::present),
        // It has no place in the order of time; its record is never pruned.
        FireId::Boot(_) => None,
    };
    let unrecorded = (!mutant!("claim-without-record")).then(|| Compare::absent(keys::record(fire)));
    unrecorded.into_iter().chain(open).collect()
}

enum Verdict {
    /// True for good.
    Certain(Raced),
    /// True of this moment; a transaction still on its way could make it otherwise.
    ForNow(Raced),
    /// Its place of the mutex is taken, and this one was free.
    AnotherSlot(Slot),
    NotRegistered,
}

/// What a reply says. A lock of ours that we see may be the doing of an earlier send that was not answered.
fn judge(
    candidate: &Candidate,
    reply: TxnReply,
    lock: Lock,
    me: &Me,
    in_touch: InTouch,
    sent: Sent,
) -> Result<Verdict, Unreadable> {
    let fire = &candidate.fire;
    let certain = |raced| Ok(Verdict::Certain(raced));
    if reply.succeeded {
        let status = reply.got(1).first().and_then(read_status);
        return certain(Raced::Won(Box::new(Claim {
            fire: fire.clone(),
            lock,
            revision: reply.revision,
            token: reply.revision,
            in_touch,
            status,
        })));
    }
    let first = |index: usize| reply.got(index).first();
    if let Some(entry) = first(GOT_OWN_LOCK) {
        let found: Lock = values::decode(&entry.key, &entry.value)?;
        let ours = found.is_of(&me.name, me.start, 1) && found.state == LockState::Held;
        return certain(match ours && sent != Sent::Answered {
            true => Raced::Won(Box::new(Claim {
                fire: fire.clone(),
                lock: found,
                revision: entry.mod_revision,
                token: entry.mod_revision,
                in_touch,
                status: first(GOT_STATUS).and_then(read_status),
            })),
            false => Raced::Decided(Decided::Locked(Box::new(found))),
        });
    }
    if first(GOT_RECORD).is_some() {
        return certain(Raced::Decided(Decided::Recorded));
    }
    match fire.id {
        FireId::Scheduled(_) => {
            if first(GOT_FLOOR).is_some_and(|floor| floor.value.as_slice() >= fire.id.to_string().as_bytes())
            {
                return certain(Raced::Decided(Decided::Settled));
            }
        }
        FireId::Manual(_) | FireId::Chain(_) | FireId::Task(_) if first(GOT_REQUEST).is_none() => {
            return certain(Raced::Decided(Decided::RequestGone));
        }
        FireId::Manual(_) | FireId::Chain(_) | FireId::Task(_) | FireId::Boot(_) => {}
    }
    if let Basis::Definition(definition) = candidate.basis
        && first(GOT_JOB).map(|job| job.mod_revision) != Some(definition)
    {
        return Ok(Verdict::ForNow(Raced::Changed));
    }
    // It came with the definition and goes with it. To ask again would not bring it back.
    if matches!(fire.id, FireId::Scheduled(_)) && first(GOT_FLOOR).is_none() {
        let why = "it is missing, though its job is there".to_owned();
        return Err(Unreadable { key: keys::floor(&fire.job, &fire.lane), why });
    }
    if [GOT_PAUSES, GOT_PAUSES + 1, GOT_DRAINED].into_iter().any(|index| first(index).is_some()) {
        return Ok(Verdict::ForNow(Raced::HeldBack));
    }
    let others = GOT_OTHERS..GOT_OTHERS + other_ranges(candidate).len();
    if let Some(entry) = first(GOT_LOCKS).or_else(|| others.into_iter().find_map(first)) {
        let with = keys::fire_of(&entry.key).ok_or_else(|| Unreadable {
            key: entry.key.clone(),
            why: "it is no lock of a fire".to_owned(),
        })?;
        return Ok(Verdict::ForNow(Raced::Busy {
            with,
            lock: entry.key.clone(),
            revision: entry.mod_revision,
        }));
    }
    let got_mutex = GOT_OTHERS + other_ranges(candidate).len();
    if let (Some((mutex, places)), Some(slot)) = (&candidate.mutex, lock.slot()) {
        let taken = reply.got(got_mutex);
        let numbers: Vec<u32> = taken
            .iter()
            .filter_map(|entry| keys::mutex_of(&entry.key).and_then(|(_, number)| number))
            .collect();
        let free = (0..*places).find(|number| !numbers.contains(number));
        match free.filter(|_| first(got_mutex + 1).is_none()) {
            Some(number) if number == slot.number => {}
            Some(number) => return Ok(Verdict::AnotherSlot(Slot { mutex: mutex.clone(), number })),
            None => {
                let with = taken.first().or_else(|| first(got_mutex + 1));
                let with = with
                    .and_then(|entry| values::decode::<MutexHolder>(&entry.key, &entry.value).ok())
                    .map(|holder| holder.fire);
                return Ok(Verdict::ForNow(Raced::NoSlot { mutex: mutex.clone(), with }));
            }
        }
    }
    debug!(node = first(GOT_NODE).is_some(), epoch = ?first(GOT_EPOCH).map(|e| e.mod_revision), "own registration");
    Ok(Verdict::NotRegistered)
}

fn read_status(entry: &Entry) -> Option<Status> {
    // For people only: one that cannot be read is begun anew.
    values::decode(&entry.key, &entry.value).ok()
}

/// Why a fire is decided without a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrun {
    pub outcome: Outcome,
    pub reason: String,
    /// The lock that is the reason, while it is at this revision.
    pub because_of: Option<(String, Revision)>,
    /// The task that it was, and the key of the queue under which it waits.
    pub task: Option<(Box<Task>, String)>,
}

impl Unrun {
    pub fn new(outcome: Outcome, reason: impl Into<String>) -> Unrun {
        Unrun { outcome, reason: reason.into(), because_of: None, task: None }
    }
}

/// Records that a fire is not run. True: it is decided now, by this or by somebody else. False: the reason no longer
/// holds, so look again.
///
/// Safe when several do it at once, and when it is done twice: the record's key is absent for one of them only.
pub async fn decide_unrun(
    together: &Together,
    me: &Me,
    clock: &Clock,
    fire: &Fire,
    unrun: &Unrun,
) -> Result<bool, StoreError> {
    let status_key = keys::status(&fire.job, &fire.lane);
    let asked_by = unrun.task.as_ref().map_or_else(|| keys::request(fire), |(_, key)| key.clone());
    let is_asked_for = fire.id.is_asked_for() || unrun.task.is_some();
    let mut known_status = None;
    let mut told = false;
    loop {
        let writer = Writer::Node { node: me.name.clone(), node_start: me.start };
        let record = Record {
            task: unrun.task.as_ref().map(|(task, _)| task.clone()),
            ..Record::unrun(fire.clone(), unrun.outcome, unrun.reason.as_str(), writer, clock.now())
        };
        let before: Option<Status> = match known_status.take() {
            Some(known) => known,
            None => {
                fail_point!("unrun.status");
                match together.store().get(&status_key).await {
                    Ok(entry) => entry.as_ref().and_then(read_status),
                    Err(error) => {
                        pause_before_deciding(together.store(), fire, error, &mut told).await?;
                        continue;
                    }
                }
            }
        };
        let mut compare = is_undecided(fire, Some(&asked_by));
        if !mutant!("unrun-without-lock") {
            compare.push(Compare::absent(keys::lock(fire)));
        }
        if let Some((lock, revision)) = &unrun.because_of {
            compare.push(Compare::mod_revision(lock.as_str(), *revision));
        }
        let mut then = vec![Op::put(keys::record(fire), values::encode_record(&record))];
        then.extend(put_status(before.as_ref(), &record));
        if is_asked_for {
            then.push(Op::delete(asked_by.as_str()));
        }
        let mut seen =
            vec![Op::get(keys::lock(fire)), Op::get(keys::record(fire)), Op::get(asked_by.as_str())];
        seen.extend(unrun.because_of.as_ref().map(|(lock, _)| Op::get(lock.as_str())));
        fail_point!("unrun.send");
        match together.txn([about(fire)], Txn::when(compare).then(then).otherwise(seen)).await {
            Ok(reply) if reply.succeeded => return Ok(true),
            Ok(reply) => {
                let there = |index: usize| !reply.got(index).is_empty();
                let decided = there(0) || there(1) || (is_asked_for && !there(2));
                let reason_stands = unrun.because_of.as_ref().is_none_or(|(_, revision)| {
                    reply.got(3).first().is_some_and(|entry| entry.mod_revision == *revision)
                });
                // Neither decided nor the reason gone: the fire lies under the floor.
                return Ok(decided || reason_stands);
            }
            Err(error) => {
                known_status = Some(before);
                pause_before_deciding(together.store(), fire, error, &mut told).await?;
            }
        }
    }
}

/// What tells people of a job's last fire. Tasks have nothing in common that could be told.
pub fn put_status(before: Option<&Status>, record: &Record) -> Option<Op> {
    let Fire { job, lane, id } = &record.fire;
    let put = || Op::put(keys::status(job, lane), values::encode(&Status::after(before, record)));
    (!matches!(id, FireId::Task(_))).then(put)
}

/// Waits, where another try may help.
async fn pause_before_deciding(
    store: &Store,
    fire: &Fire,
    error: StoreError,
    told: &mut bool,
) -> Result<(), StoreError> {
    let pause = pause_after(store, &error).ok_or_else(|| error.clone())?;
    if error.needs_help() && !std::mem::replace(told, true) {
        warn!(job = %fire.job, fire = %fire.id, %error, "not decided yet, trying on");
    }
    fail_point!("unrun.pause");
    sleep(pause).await;
    Ok(())
}

/// How long to wait after an error before another try; none where no other try helps.
pub(super) fn pause_after(store: &Store, error: &StoreError) -> Option<Duration> {
    let pause = match () {
        () if error.passes() => PAUSE,
        () if error.needs_help() => PAUSE_FOR_HELP,
        () => return None,
    };
    Some(pause.mul_f64(0.5 + store.random()))
}

/// A lock that names this node, and what it is to this life of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub fire: Fire,
    pub lock: Lock,
    pub revision: Revision,
}

impl Found {
    /// What a claim's lock is, as it was last written.
    pub fn of(claim: &Claim) -> Found {
        Found { fire: claim.fire.clone(), lock: claim.lock.clone(), revision: claim.revision }
    }

    /// The claim that the lock is the proof of. Only for locks of this node, read together with its registration or
    /// after it. `in_touch`: the contact that this was.
    pub fn into_claim(self, in_touch: InTouch) -> Claim {
        let token = Revision(self.lock.fencing_token(self.revision));
        Claim { fire: self.fire, lock: self.lock, revision: self.revision, token, in_touch, status: None }
    }
}

/// All locks that name this node, whichever life of it. Asked at the start of a daemon, after it has registered: no
/// claim of an earlier one can come in after that.
pub async fn mine(store: &Store, me: &Me) -> Result<Vec<Found>, StoreError> {
    fail_point!("mine.list");
    let found = all_locks(store).await?;
    Ok(found.into_iter().filter(|found| found.lock.node == me.name).collect())
}

/// All locks. One that cannot be read is passed over, with a word.
pub(super) async fn all_locks(store: &Store) -> Result<Vec<Found>, StoreError> {
    let read = |entry: Entry| {
        let fire = keys::fire_of(&entry.key)?;
        match values::decode(&entry.key, &entry.value) {
            Ok(lock) => Some(Found { fire, lock, revision: entry.mod_revision }),
            Err(error) => {
                warn!(%error, "a lock is passed over");
                None
            }
        }
    };
    Ok(store.list(keys::locks()).await?.entries.into_iter().filter_map(read).collect())
}

/// What became of an attempt to begin.
#[derive(Debug)]
pub enum Begun {
    Claimed(Box<Claim>),
    /// The fire is to be cancelled, for this reason.
    Cancelled(String),
    /// This node is drained: it is there when the node is undrained, if nobody else wants it.
    Drained,
    /// The lock is no longer as it was found.
    Left,
}

/// What the record of a fire is to say that is to be cancelled.
pub(super) fn cancel_reason(entry: &Entry) -> String {
    let request = values::decode::<CancelRequest>(&entry.key, &entry.value);
    request.map_or_else(|_| "cancelled".to_owned(), |request| request.reason)
}

/// Begins the next attempt of a fire whose lock is this node's: it waits, or its command never started and the caller
/// has made sure that it never will, or ended.
///
/// `hold`: that of the job as it is now.
pub async fn begin_again(
    store: &Store,
    standing: &mut Standing,
    clock: &Clock,
    found: &Found,
    hold: Option<Duration>,
) -> Result<Begun, StoreError> {
    let me = standing.me.clone();
    let key = keys::lock(&found.fire);
    let cancel_key = keys::cancel_request(&found.fire);
    let attempt = found.lock.attempt + 1;
    let mut told = false;
    let mut first_sent = None;
    loop {
        fail_point!("again.registration");
        let registration = standing.registration().await;
        let lock = found.lock.next_attempt(&me.name, me.start, clock.now(), hold);
        // Safe when two do it at once: the lock is at the revision seen for one of them only.
        let mut compare = vec![
            Compare::mod_revision(key.as_str(), found.revision),
            Compare::absent(keys::drained(&me.name)),
            Compare::absent(cancel_key.as_str()),
        ];
        if !mutant!("begin-without-registration") {
            compare.extend(registration.compares());
        }
        let txn = Txn::when(compare)
            .then([
                Op::put(key.as_str(), values::encode(&lock)),
                Op::get(keys::status(&found.fire.job, &found.fire.lane)),
            ])
            .otherwise([
                Op::get(key.as_str()),
                Op::get(keys::drained(&me.name)),
                Op::get(cancel_key.as_str()),
            ]);
        let now = InTouch { at: clock.since_boot(), losses: registration.losses() };
        let in_touch = *first_sent.get_or_insert(now);
        let won = |lock, revision, status| {
            let fire = found.fire.clone();
            Begun::Claimed(Box::new(Claim { fire, lock, revision, token: revision, in_touch, status }))
        };
        fail_point!("again.send");
        match store.txn(txn).await {
            Ok(reply) if reply.succeeded => {
                let status = reply.got(1).first().and_then(read_status);
                return Ok(won(lock, reply.revision, status));
            }
            Ok(reply) => match reply.got(0).first() {
                Some(entry) if entry.mod_revision == found.revision && !reply.got(2).is_empty() => {
                    return Ok(Begun::Cancelled(cancel_reason(&reply.got(2)[0])));
                }
                Some(entry) if entry.mod_revision == found.revision && !reply.got(1).is_empty() => {
                    debug!(job = %found.fire.job, fire = %found.fire.id, "not begun again: this node is drained");
                    return Ok(Begun::Drained);
                }
                Some(entry) if entry.mod_revision == found.revision => {
                    // As it was, so it is the registration that moved.
                    fail_point!("again.fence");
                    standing.fence(&registration).await;
                    first_sent = None;
                }
                Some(entry) => {
                    let there = values::decode::<Lock>(&entry.key, &entry.value).ok();
                    // An answer of ours that never came: nobody else writes our name.
                    return Ok(there
                        .filter(|there| there.is_of(&me.name, me.start, attempt))
                        .map_or(Begun::Left, |there| won(there, entry.mod_revision, None)));
                }
                None => return Ok(Begun::Left),
            },
            Err(error) => {
                let pause = pause_after(store, &error).ok_or_else(|| error.clone())?;
                if error.needs_help() && !std::mem::replace(&mut told, true) {
                    warn!(job = %found.fire.job, fire = %found.fire.id, %error, "not begun again yet, trying on");
                }
                fail_point!("again.pause");
                sleep(pause).await;
            }
        }
    }
}
