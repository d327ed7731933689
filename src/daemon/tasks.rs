//! The queue: tasks that this node may run, and which of them it takes when it has a slot.
//!
//! The order is strict: priority, then when it is due, then when it was submitted. Nodes take as many as they have
//! slots, so load spreads by itself; that not all of them reach for the same one, each takes of one priority those first
//! that rank it first, and others only when they have waited for a while.
//!
//! Only the best few are kept in memory: the rest is in the store, and is looked up when these are done. A hundred
//! thousand that are due tomorrow are one instant here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use chrono::TimeDelta;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{debug, info, warn};
use ulid::Ulid;

use super::{Daemon, News};
use crate::clock::Clock;
use crate::fire::Fire;
use crate::job::{JobName, Priority};
use crate::race::{Basis, Candidate};
use crate::run;
use crate::schedule::Timestamp;
use crate::store::values::{LockPolicy, TaskForm};
use crate::store::{Entry, Event, KeyRange, Op, PageSpec, Store, StoreError, Txn, keys};
use crate::task::{InQueue, Task};

/// How many tasks are kept in memory.
const MOST_READY: usize = 512;
/// How many of each part of the queue one look brings.
const OF_EACH_PART: usize = 32;
/// Of one priority, a task that another node ranks first comes so much later here.
const OTHERS_COME_LATER: TimeDelta = TimeDelta::seconds(2);
/// A task is left to the node that ranks it first for so long.
const LEFT_TO_OTHERS: Duration = Duration::from_millis(300);
/// Nothing is missed for longer than this, whatever a watch has not told.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// After a look that came to nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// What is heard and not dealt with yet.
const WAITING: usize = 256;

/// What is heard of the queue.
pub(super) enum Heard {
    /// There may be anything in it.
    Anything,
    Put(Entry),
    Gone(String),
}

/// What a look has shown.
pub(super) struct Found {
    due: Vec<Entry>,
    /// There is more that is due.
    more: bool,
    /// The next instant at which something is due that is not yet.
    next: Option<Timestamp>,
}

pub(super) struct Tasks {
    heard: mpsc::Receiver<Heard>,
    listener: JoinHandle<()>,
    /// The best of those that are due.
    ready: BTreeMap<Order, Ready>,
    by_id: HashMap<Ulid, Order>,
    /// When the next one is due that is not yet.
    next: Option<Timestamp>,
    /// There is more in the store that is due.
    more: bool,
    /// Since boot: not looked into before.
    look_at: Duration,
    looking: bool,
}

/// The order in which this node takes tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Order {
    priority: Reverse<Priority>,
    /// Later than it is due where another node ranks it first.
    due: Timestamp,
    id: Ulid,
}

struct Ready {
    task: Task,
    key: String,
    /// Since boot: left to others until then.
    from: Duration,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Tasks {
    pub fn follow(store: &Store, clock: Clock) -> Tasks {
        let (tell, heard) = mpsc::channel(WAITING);
        let listener = tokio::spawn(clock.bind(listen(store.clone(), tell)));
        Tasks {
            heard,
            listener,
            ready: BTreeMap::new(),
            by_id: HashMap::new(),
            next: None,
            more: false,
            look_at: Duration::ZERO,
            looking: false,
        }
    }

    /// What is heard next. Safe to drop while it waits.
    pub async fn next(&mut self) -> Heard {
        match self.heard.recv().await {
            Some(heard) => heard,
            // The listener ends with the daemon.
            None => std::future::pending().await,
        }
    }

    /// When something is due that is not yet.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.next
    }

    /// There may be more in the store than is known here.
    pub fn look_again(&mut self) {
        self.more = true;
    }

    fn put(&mut self, order: Order, ready: Ready) {
        if let Some(former) = self.by_id.insert(order.id, order) {
            self.ready.remove(&former);
        }
        self.ready.insert(order, ready);
        if self.ready.len() > MOST_READY
            && let Some((last, _)) = self.ready.pop_last()
        {
            self.by_id.remove(&last.id);
            self.more = true;
        }
    }

    fn remove(&mut self, id: Ulid) -> Option<Ready> {
        self.ready.remove(&self.by_id.remove(&id)?)
    }

    fn clear(&mut self) {
        self.ready.clear();
        self.by_id.clear();
        self.more = true;
    }
}

/// Hears of the queue for as long as somebody listens. Does not keep what it holds.
async fn listen(store: Store, tell: mpsc::Sender<Heard>) {
    loop {
        let ended = hear(&store, &tell).await;
        match ended {
            Ok(()) => return,
            Err(error) => debug!(%error, "the queue is out of touch, trying on"),
        }
        sleep(LOOK_AGAIN.mul_f64(0.5 + store.random())).await;
    }
}

/// From a list that nobody reads to the first failure of the watch behind it. Ok: nobody listens any more.
async fn hear(store: &Store, tell: &mpsc::Sender<Heard>) -> Result<(), StoreError> {
    let nothing = PageSpec { limit: Some(1), keys_only: true, ..PageSpec::default() };
    let from = store.page(keys::queue(), nothing).await?.revision.next();
    let mut watch = store.watch(keys::queue(), from).await?;
    // What was there before is looked up.
    if tell.send(Heard::Anything).await.is_err() {
        return Ok(());
    }
    loop {
        for event in watch.next().await?.events {
            let heard = match event {
                Event::Put(entry) => Heard::Put(entry),
                Event::Delete { key, .. } => Heard::Gone(key),
            };
            if tell.send(heard).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Looks what is due: of each part of the queue the first ones.
async fn look(store: &Store, now: Timestamp) -> Result<Found, StoreError> {
    let parts: Vec<KeyRange> = keys::queue_parts().collect();
    let mut limit = OF_EACH_PART;
    let (reply, limit) = loop {
        let look = Txn::new().then(parts.iter().map(|part| Op::get_first(part, limit)));
        match store.txn(look).await {
            Ok(reply) => break (reply, limit),
            // Large ones may be more than an answer holds.
            Err(StoreError::Rejected(why)) if limit > 1 => {
                debug!(why, "fewer tasks at a time are looked at");
                limit /= 4;
            }
            Err(error) => return Err(error),
        }
    };
    let mut found = Found { due: Vec::new(), more: false, next: None };
    for index in 0..parts.len() {
        let entries = reply.got(index);
        let is_full = entries.len() >= limit;
        let mut is_all_due = true;
        for entry in entries {
            let Some(place) = keys::task_in_queue(&entry.key) else { continue };
            if place.due <= now {
                found.due.push(entry.clone());
            } else {
                is_all_due = false;
                found.next = Some(found.next.map_or(place.due, |next| next.min(place.due)));
                break;
            }
        }
        found.more |= is_full && is_all_due;
    }
    Ok(found)
}

impl Daemon {
    pub(super) fn queue_heard(&mut self, heard: Heard) {
        match heard {
            Heard::Anything => {
                self.queue.clear();
                self.queue.look_at = Duration::ZERO;
            }
            Heard::Put(entry) => self.task_seen(entry),
            Heard::Gone(key) => {
                if let Some(place) = keys::task_in_queue(&key) {
                    self.queue.remove(place.id);
                }
            }
        }
        self.look_into_queue();
        self.use_free_slots();
    }

    /// Takes in a task that waits, if this node may run it.
    fn task_seen(&mut self, entry: Entry) {
        let Some(InQueue { priority, due, id }) = keys::task_in_queue(&entry.key) else { return };
        if self.hands.contains_key(&Fire::task(id)) {
            return;
        }
        if due > self.options.clock.now() {
            let next = self.queue.next.map_or(due, |next| next.min(due));
            self.queue.next = Some(next);
            return;
        }
        let order = |due| Order { priority: Reverse(priority), due, id };
        let is_full = self.queue.ready.len() >= MOST_READY;
        if is_full && self.queue.ready.last_key_value().is_some_and(|(last, _)| *last < order(due)) {
            self.queue.more = true;
            return;
        }
        let task = match TaskForm::decode(&entry.key, &entry.value) {
            Ok(task) => task,
            Err(error) => {
                warn!(%error, "a task is passed over");
                return;
            }
        };
        let Some(rank) = self.fleet.rank(&task.job, &task.fire()) else { return };
        let since_boot = self.options.clock.since_boot();
        let is_late = self.options.clock.now() - due > OTHERS_COME_LATER;
        let (order, from) = match rank {
            0 => (order(due), since_boot),
            // Whoever ranks it first had no slot for it.
            _ if is_late => (order(due + OTHERS_COME_LATER), since_boot),
            rank => (order(due + OTHERS_COME_LATER), since_boot + LEFT_TO_OTHERS * rank.min(3) as u32),
        };
        self.queue.put(order, Ready { task, key: entry.key, from });
    }

    /// Looks into the queue when there may be something that is not known here, in a small task.
    pub(super) fn look_into_queue(&mut self) {
        let since_boot = self.options.clock.since_boot();
        let now = self.options.clock.now();
        let is_due = self.queue.next.is_some_and(|next| next <= now);
        let is_wanted = is_due || since_boot >= self.queue.look_at || (self.queue.more && self.wants_more());
        if self.queue.looking || !is_wanted || !self.fleet.is_known() || !self.may_take_tasks() {
            return;
        }
        self.queue.looking = true;
        self.queue.more = false;
        self.queue.look_at = since_boot + LOOK_EVERY;
        // What is due by then is in what is found.
        self.queue.next = self.queue.next.filter(|next| *next > now);
        let (store, tell, clock) = (self.place.store.clone(), self.news.0.clone(), self.options.clock);
        self.chores.spawn(clock.bind(async move {
            let found =
                look(&store, now).await.map_err(|error| debug!(%error, "the queue could not be looked into"));
            let _ = tell.send(News::Tasks(found.ok())).await;
        }));
    }

    /// Few enough are left here that can be taken, and there is a slot for more.
    fn wants_more(&self) -> bool {
        self.has_slot() && self.first_task(self.options.clock.since_boot()).is_none()
    }

    pub(super) fn tasks_found(&mut self, found: Option<Found>) {
        self.queue.looking = false;
        let Some(Found { due, more, next }) = found else {
            self.queue.look_at = self.options.clock.since_boot() + LOOK_AGAIN;
            return;
        };
        self.queue.more |= more;
        self.queue.next = [self.queue.next, next].into_iter().flatten().min();
        for entry in due {
            self.task_seen(entry);
        }
        self.use_free_slots();
    }

    /// Drained or paused, a node takes none: the others have them.
    fn may_take_tasks(&self) -> bool {
        let is_paused = self.held_back.holds(&JobName::of_tasks());
        !self.fleet.is_drained() && !is_paused && self.mutexes.knows_limits() && !self.leaving.is_cancelled()
    }

    /// The task that comes first of those that can be taken.
    fn first_task(&self, since_boot: Duration) -> Option<Order> {
        if self.queue.ready.is_empty() || !self.may_take_tasks() {
            return None;
        }
        let is_free = |ready: &Ready| match ready.task.mutex() {
            // A named queue without a limit has none.
            Some(mutex) if ready.task.queue.is_none() || self.mutexes.limit(mutex).is_some() => {
                self.mutexes.is_free_for_task(mutex)
            }
            _ => true,
        };
        let mut tasks = self.queue.ready.iter();
        tasks.find(|(_, ready)| ready.from <= since_boot && is_free(ready)).map(|(order, _)| *order)
    }

    /// Since boot: when a task is to be looked at that is left to others until then.
    pub(super) fn next_task(&self) -> Option<Duration> {
        if !self.has_slot() || !self.may_take_tasks() {
            return None;
        }
        let since_boot = self.options.clock.since_boot();
        let left = self.queue.ready.values().map(|ready| ready.from).filter(|from| *from > since_boot).min();
        let look = (!self.queue.looking).then_some(self.queue.look_at);
        left.into_iter().chain(look).min()
    }

    /// Takes the first task, if it comes before a fire of this priority that waits for a slot. False: there is none.
    pub(super) fn take_task_before(&mut self, waiting: Option<Priority>) -> bool {
        let first = self.first_task(self.options.clock.since_boot());
        let Some(order) = first.filter(|order| waiting.is_none_or(|waiting| order.priority.0 > waiting))
        else {
            if waiting.is_none() {
                self.look_into_queue();
            }
            return false;
        };
        let Some(Ready { task, key, .. }) = self.queue.remove(order.id) else { return false };
        self.run_task(task, key);
        true
    }

    fn run_task(&mut self, task: Task, key: String) {
        let fire = task.fire();
        if self.hands.contains_key(&fire) {
            return;
        }
        debug!(job = %fire.job, fire = %fire.id, priority = %task.priority(), "a task is taken");
        let mutex = task.mutex().and_then(|mutex| match (self.mutexes.limit(mutex), &task.queue) {
            (None, Some(_)) => None,
            (limit, _) => Some((mutex.clone(), limit.unwrap_or(1))),
        });
        let job = std::sync::Arc::new(task.job.clone());
        let candidate = Candidate {
            fire: fire.clone(),
            basis: Basis::Queued(key),
            overlap: job.overlap,
            was: None,
            mutex,
            restarts_chain: false,
            policy: LockPolicy {
                promise: job.promise,
                last_start: task.last_start(),
                hold: run::hold_of(&job, &fire.lane),
                retry: job.retry.clone(),
                slot: None,
                task: Some(Box::new(task)),
            },
        };
        self.pursue(candidate, job, self.place.clone());
    }

    /// Others rank a task first than before.
    pub(super) fn rank_tasks_anew(&mut self) {
        if !self.queue.ready.is_empty() {
            info!(tasks = self.queue.ready.len(), "the nodes changed, the queue is looked into again");
        }
        self.queue.clear();
        self.queue.look_at = Duration::ZERO;
        self.look_into_queue();
    }
}
