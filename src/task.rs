//! Tasks: one-off pieces of work that wait in a queue and are run once, by whichever node has room.

use ulid::Ulid;

use crate::fire::Fire;
use crate::job::{Job, JobName, MutexName, Priority};
use crate::schedule::Timestamp;

/// A piece of work to be run once, at an instant or later. It goes from the queue into a lock and from there into a
/// record, whole, so that each tells what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub id: Ulid,
    /// What is run and by which policies, under the name of tasks. Its schedule has no instants.
    pub job: Job,
    /// The job that it was made from, if it was.
    pub of: Option<JobName>,
    /// When it may run, at the earliest.
    pub due: Timestamp,
    /// `user@host` of who submitted it, as a claim, not as proof.
    pub by: String,
    /// The queue that it waits in, where that has a name: so many of one run at once as `[limits]` says.
    pub queue: Option<MutexName>,
    /// Who submits another task with the same key gets this one.
    pub key: Option<String>,
}

impl Task {
    pub fn fire(&self) -> Fire {
        Fire::task(self.id)
    }

    pub fn priority(&self) -> Priority {
        self.job.priority
    }

    /// What it may have to wait for: its queue's limit or its mutex.
    pub fn mutex(&self) -> Option<&MutexName> {
        self.queue.as_ref().or(self.job.mutex.as_ref())
    }

    /// The last instant at which it may start.
    pub fn last_start(&self) -> Timestamp {
        let within = chrono::TimeDelta::from_std(self.job.start_within).unwrap_or(chrono::TimeDelta::MAX);
        self.due.checked_add_signed(within).unwrap_or(Timestamp::MAX_UTC)
    }
}

/// The place of a task in the queue: the order in which they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InQueue {
    pub priority: Priority,
    pub due: Timestamp,
    pub id: Ulid,
}

impl InQueue {
    pub fn of(task: &Task) -> InQueue {
        InQueue { priority: task.priority(), due: task.due, id: task.id }
    }

    /// The part of the queue that it lies in.
    pub fn shard(&self) -> u8 {
        shard(self.id)
    }
}

/// How many parts the queue has, so that no one key range has all of it.
pub const SHARDS: u8 = 8;

/// The part of the queue that a task lies in: of tasks submitted together about as many in each.
pub fn shard(id: Ulid) -> u8 {
    u8::try_from(id.0 % u128::from(SHARDS)).expect("it is less than the number of shards")
}
