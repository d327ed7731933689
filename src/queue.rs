//! The queue from outside: tasks are put into it, and taken out of it before anybody has run them.
//!
//! A task has its id before it is sent, and its transaction compares that nothing is known of that id: so sending again,
//! after an answer that did not come or a crash, puts it in once.

use std::collections::HashSet;

use chrono::TimeDelta;
use sha2::{Digest, Sha256};

use crate::fire::Fire;
use crate::record::{Outcome, Record, Writer};
use crate::schedule::Timestamp;
use crate::store::values::{self, TaskForm, TaskKey};
use crate::store::{Compare, Op, PageSpec, Revision, Store, StoreError, Txn, TxnReply, keys};
use crate::task::{self, InQueue, Task};

/// How long a key stands for its task.
pub const KEY_STANDS_FOR: TimeDelta = TimeDelta::hours(24);
/// The longest key, in bytes.
pub const LONGEST_KEY: usize = 256;
/// The largest task, in bytes as it is stored: a look into the queue brings many at once.
pub const LARGEST_TASK: usize = 64 * 1024;
/// How many go in one transaction: each is nested in it.
const AT_ONCE: usize = 60;
/// How many bytes go in one: etcd takes 1.5 MiB.
const BYTES_AT_ONCE: usize = 512 * 1024;

/// What became of a task that was submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// It is in the queue, or was put there before by the same id.
    Queued(Fire),
    /// Its key stands for this one, so it was not put in.
    Known(Fire),
}

impl Submitted {
    /// The task that runs.
    pub fn fire(&self) -> &Fire {
        match self {
            Submitted::Queued(fire) | Submitted::Known(fire) => fire,
        }
    }
}

/// The size of a task as it is stored, in bytes.
pub fn size(task: &Task) -> usize {
    values::encode(&TaskForm::of(task)).len()
}

/// Parts tasks so that each part fits into one transaction.
pub fn batches(tasks: &[Task]) -> impl Iterator<Item = &[Task]> {
    let mut left = tasks;
    std::iter::from_fn(move || {
        let (mut bytes, mut keys) = (0, HashSet::new());
        let fits = left.iter().take(AT_ONCE).take_while(|task| {
            bytes += size(task);
            // All compares are judged before the first write, so two of one key must not go together.
            bytes <= BYTES_AT_ONCE && task.key.as_ref().is_none_or(|key| keys.insert(key))
        });
        let (some, rest) = left.split_at(fits.count().max(1).min(left.len()));
        left = rest;
        (!some.is_empty()).then_some(some)
    })
}

/// Puts the tasks of one [batch](batches) into the queue, with the note of the act. All or none of what is new.
///
/// Errors: with [`StoreError::NoAnswer`] they may be in it, and sending the same again is safe.
pub async fn submit(
    store: &Store,
    tasks: &[Task],
    note: Option<Op>,
    now: Timestamp,
) -> Result<Vec<Submitted>, StoreError> {
    let mut submitted = Vec::with_capacity(tasks.len());
    let reply =
        store.txn(Txn::new().then(tasks.iter().map(|task| put(task, None, now).into()).chain(note))).await?;
    for (index, task) in tasks.iter().enumerate() {
        submitted.push(settle(store, task, reply.nested(index), now).await?);
    }
    Ok(submitted)
}

/// Puts one task in. `expired`: a key of the same name stands for another task no longer.
///
/// Safe when two do it at once: of one key, and of one id, the first has it.
fn put(task: &Task, expired: Option<Revision>, now: Timestamp) -> Txn {
    let (fire, queued) = (task.fire(), keys::queued(&InQueue::of(task)));
    let known = [keys::lock(&fire), keys::record(&fire), queued.clone()];
    let mut compare: Vec<Compare> = known.iter().map(|key| Compare::absent(key.as_str())).collect();
    let mut then = vec![Op::put(queued, values::encode(&TaskForm::of(task)))];
    let mut otherwise: Vec<Op> = known.iter().map(|key| Op::get(key.as_str())).collect();
    if let Some(key) = &task.key {
        let stored = task_key(key);
        compare.push(match expired {
            Some(revision) => Compare::mod_revision(stored.as_str(), revision),
            None => Compare::absent(stored.as_str()),
        });
        let value = TaskKey::new(key.clone(), fire.id.to_string(), now + KEY_STANDS_FOR);
        then.push(Op::put(stored.as_str(), values::encode(&value)));
        otherwise.push(Op::get(stored));
    }
    Txn::when(compare).then(then).otherwise(otherwise)
}

/// What an answer says of one task; one whose key has expired is sent again.
async fn settle(
    store: &Store,
    task: &Task,
    reply: &TxnReply,
    now: Timestamp,
) -> Result<Submitted, StoreError> {
    let mut reply = reply.clone();
    loop {
        let is_known = !reply.succeeded && (0..3).any(|index| !reply.got(index).is_empty());
        if reply.succeeded || is_known {
            return Ok(Submitted::Queued(task.fire()));
        }
        let expired = match reply.got(3).first() {
            Some(entry) => {
                let stands = values::decode::<TaskKey>(&entry.key, &entry.value)
                    .map_err(|error| StoreError::Rejected(error.to_string()))?;
                let fire = stands.task.parse().map(|id| Fire::new(task.fire().job, id));
                match fire {
                    Ok(fire) if stands.until > now => return Ok(Submitted::Known(fire)),
                    _ => Some(entry.mod_revision),
                }
            }
            // It went in this very moment.
            None => None,
        };
        reply = store.txn(put(task, expired, now)).await?;
    }
}

/// The key under which a task's own key stands.
fn task_key(key: &str) -> String {
    let digest = Sha256::digest(key);
    keys::task_key(&digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// The place of a task that waits in the queue, from its id alone; none if it does not.
pub async fn find(store: &Store, fire: &Fire) -> Result<Option<(Task, String)>, StoreError> {
    let crate::fire::FireId::Task(id) = fire.id else { return Ok(None) };
    for priority in crate::job::Priority::all() {
        let mut spec = PageSpec { keys_only: true, ..PageSpec::default() };
        loop {
            let page = store.page(keys::queue_of(task::shard(id), priority), spec.clone()).await?;
            let found = page
                .entries
                .iter()
                .find(|entry| keys::task_in_queue(&entry.key).is_some_and(|place| place.id == id));
            if let Some(found) = found {
                let Some(entry) = store.get(&found.key).await? else { return Ok(None) };
                let task = TaskForm::decode(&entry.key, &entry.value)
                    .map_err(|error| StoreError::Rejected(error.to_string()))?;
                return Ok(Some((task, entry.key)));
            }
            if !page.more {
                break;
            }
            spec.after = page.entries.last().map(|entry| entry.key.clone());
        }
    }
    Ok(None)
}

/// What takes something out that nobody has begun, `asked_by` being the key that asks for it: it is recorded as
/// cancelled by `by`. It succeeds for one of all who take it, be it to run it or to cancel it.
pub fn cancel_unbegun(
    fire: &Fire,
    task: Option<Task>,
    asked_by: &str,
    by: &str,
    now: Timestamp,
    note: Op,
) -> Txn {
    let record = Record {
        task: task.map(Box::new),
        ..Record::unrun(
            fire.clone(),
            Outcome::Cancelled,
            format!("cancelled by {by} before it began"),
            Writer::Operator(by.to_owned()),
            now,
        )
    };
    let absent = [keys::lock(fire), keys::record(fire)].map(Compare::absent);
    Txn::when([Compare::present(asked_by)].into_iter().chain(absent)).then([
        Op::delete(asked_by),
        Op::put(keys::record(fire), values::encode_record(&record)),
        note,
    ])
}
