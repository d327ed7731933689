//! A store in memory, for tests: deterministic under tokio's paused clock, with faults on demand.
//!
//! [`Sim`] is the hand of the test: it makes one client for each simulated node, breaks things, and looks
//! inside without going through the simulated network. The same seed and the same calls give the same
//! run: everything is ordered, and every random number comes from one generator.

mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{
    Entry, Events, KeyRange, Lease, LeaseId, Page, PageSpec, Revision, Status, Store, StoreError, Txn,
    TxnReply,
};
use crate::clock::Clock;
use crate::latest;
use table::Table;

/// For how long a client waits for an answer that does not come, as the etcd store does.
const PATIENCE: Duration = Duration::from_secs(4);
/// A watch that hears nothing gives a sign of life this often…
const HEARTBEAT: Duration = Duration::from_secs(10);
/// …and is given up when the store does not answer for this long after that.
const HEARTBEAT_PATIENCE: Duration = Duration::from_secs(3);

/// The simulated world: one store, its network, and what goes wrong.
#[derive(Clone)]
pub struct Sim(Arc<World>);

struct World {
    state: Mutex<State>,
    /// Tells of everything that a watch may want to know of.
    ticks: latest::Sender<()>,
}

struct State {
    table: Table,
    random: StdRng,
    faults: Faults,
    counts: Counts,
    /// What happens to the next changes that a client asks for, first come first served.
    next: BTreeMap<String, VecDeque<Fault>>,
    cut_off: BTreeSet<String>,
    stopped: bool,
    refusing: bool,
    /// Clients that only reach a former leader.
    at_former_leader: BTreeSet<String>,
}

/// What the network does to every call, at random. The default does nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Faults {
    /// The share of calls, 0 to 1, that never arrive.
    pub lose_request: f64,
    /// The share of calls, 0 to 1, that are done and whose reply never arrives.
    pub lose_reply: f64,
    /// How long each way takes; an event of a watch takes one way.
    pub delay: Range<Duration>,
    /// The share of ways, 0 to 1, that take so much longer.
    pub late: f64,
    pub lateness: Range<Duration>,
}

/// How often the network has done something to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub lost_requests: u64,
    pub lost_replies: u64,
    /// Ways that were late.
    pub late: u64,
}

/// What happens to one change that a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never arrives.
    LoseRequest,
    /// It is done, and the client never hears of it.
    LoseReply,
    /// It arrives later, maybe so late that the client has long given it up.
    Delay(Duration),
}

impl Sim {
    pub fn new(seed: u64) -> Sim {
        let state = State {
            table: Table::new(),
            random: StdRng::seed_from_u64(seed),
            faults: Faults::default(),
            counts: Counts::default(),
            next: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            stopped: false,
            refusing: false,
            at_former_leader: BTreeSet::new(),
        };
        Sim(Arc::new(World { state: Mutex::new(state), ticks: latest::channel(()).0 }))
    }

    /// The store as the node of this name sees it.
    pub fn client(&self, name: &str) -> Store {
        self.client_of(name, Clock::system())
    }

    /// The same, for a simulated process: its part in watches stands still with it.
    pub fn client_of(&self, name: &str, clock: Clock) -> Store {
        let client = SimStore { world: self.0.clone(), name: name.to_owned(), clock };
        Store::simulated(client)
    }

    /// From now on, for all clients.
    pub fn set_faults(&self, faults: Faults) {
        self.0.lock().faults = faults;
    }

    /// Of all faults at random until now.
    pub fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    /// For the next transaction with writes of that client; asked twice, for the next two.
    pub fn at_next_change(&self, client: &str, fault: Fault) {
        let mut state = self.0.lock();
        state.next.entry(client.to_owned()).or_default().push_back(fault);
    }

    /// Everything that the client sends or should get vanishes.
    pub fn cut_off(&self, client: &str) {
        self.0.lock().cut_off.insert(client.to_owned());
    }

    pub fn heal(&self, client: &str) {
        let mut state = self.0.lock();
        state.cut_off.remove(client);
        state.at_former_leader.remove(client);
        drop(state);
        self.0.tick();
    }

    /// The store takes everything in and answers nothing, like a stopped process. Leases run on.
    pub fn stop(&self) {
        self.0.lock().stopped = true;
    }

    /// The store refuses connections, like a process that is not there.
    pub fn refuse(&self) {
        self.0.lock().refusing = true;
        self.0.tick();
    }

    /// After `stop` or `refuse`.
    pub fn go_on(&self) {
        let mut state = self.0.lock();
        state.stopped = false;
        state.refusing = false;
        drop(state);
        self.0.tick();
    }

    pub fn revoke(&self, lease: LeaseId) {
        self.0.lock().table.revoke(lease);
        self.0.tick();
    }

    /// What a stalled leader of etcd does when it wakes up.
    pub fn revoke_all(&self) {
        let mut state = self.0.lock();
        for lease in state.table.leases() {
            state.table.revoke(lease);
        }
        drop(state);
        self.0.tick();
    }

    /// From now on the client only reaches a former leader that was stalled: it answers renewals, also of leases that are
    /// gone, and nothing else. Until it is healed.
    pub fn lead_astray(&self, client: &str) {
        self.0.lock().at_former_leader.insert(client.to_owned());
    }

    /// Forgets what happened up to now.
    pub fn compact(&self) {
        let mut state = self.0.lock();
        let now = state.table.revision();
        state.table.compact(now);
        drop(state);
        self.0.tick();
    }

    /// Everything in the store, without going through the network.
    pub fn dump(&self) -> Vec<Entry> {
        let mut state = self.0.lock();
        state.table.expire(Instant::now());
        state.table.list(&KeyRange::prefix(""))
    }

    pub fn revision(&self) -> Revision {
        self.0.lock().table.revision()
    }
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds the simulated store")
    }

    fn tick(&self) {
        self.ticks.send(());
    }
}

/// The simulated store as one client sees it.
#[derive(Clone)]
pub(super) struct SimStore {
    world: Arc<World>,
    name: String,
    /// Of the process that the client is part of.
    clock: Clock,
}

impl SimStore {
    pub fn describe(&self) -> String {
        format!("the simulated store of {}", self.name)
    }

    pub fn clock(&self) -> Clock {
        self.clock
    }

    pub async fn page(&self, range: KeyRange, spec: PageSpec) -> Result<Page, StoreError> {
        self.call(false, move |table| table.page(&range, &spec)).await
    }

    pub async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        self.call(txn.may_write(), move |table| table.txn(&txn)).await
    }

    pub async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        let grant = move |table: &mut Table| Ok(table.grant(ttl, Instant::now()));
        self.call(false, grant).await
    }

    pub async fn renew(&self, lease: LeaseId) -> Result<Duration, StoreError> {
        if self.world.lock().at_former_leader.contains(&self.name) {
            tokio::task::yield_now().await;
            return Ok(super::SHORTEST_LEASE);
        }
        self.call(false, move |table| table.renew(lease, Instant::now())).await
    }

    pub async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let revoke = move |table: &mut Table| {
            table.revoke(lease);
            Ok(())
        };
        self.call(false, revoke).await
    }

    pub async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.call(false, move |table| table.compact_at_wish(revision)).await
    }

    pub async fn status(&self) -> Result<Status, StoreError> {
        let status = |table: &mut Table| {
            Ok(Status { version: "simulated".to_owned(), revision: table.revision(), complaints: Vec::new() })
        };
        self.call(false, status).await
    }

    pub async fn watch(&self, range: KeyRange, from: Revision) -> Result<SimWatch, StoreError> {
        self.call(false, |_| Ok(())).await?;
        Ok(SimWatch {
            store: self.clone(),
            ticks: self.world.ticks.subscribe(),
            range,
            next: from,
            heard: Instant::now(),
        })
    }

    /// A number in `[0, 1)` from the one generator.
    pub fn random(&self) -> f64 {
        self.world.lock().random.random()
    }

    /// Sends one request through the simulated network and waits for its reply.
    async fn call<R: Send + 'static>(
        &self,
        changes: bool,
        act: impl FnOnce(&mut Table) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let journey = self.journey(changes)?;
        // Also without any delay other tasks get their turn, as they would on a network.
        tokio::task::yield_now().await;
        let (reply_to, reply) = oneshot::channel();
        let store = self.clone();
        let request = async move {
            travel(journey.there).await;
            if journey.request_lost || store.is_unreachable() {
                return std::future::pending().await;
            }
            let done = store.act(act);
            travel(journey.back).await;
            if journey.reply_lost || store.is_unreachable() {
                return std::future::pending().await;
            }
            // The client may be gone; what it asked for is done all the same.
            let _ = reply_to.send(done);
        };
        // A request that is on its way arrives even if its client gives up, so it has a task of its own.
        let request = tokio::spawn(timeout(journey.longest(), request));
        let answer = timeout(PATIENCE, reply).await;
        drop(request);
        match answer {
            Ok(Ok(done)) => done,
            Ok(Err(_)) | Err(_) => Err(self.silence(changes)),
        }
    }

    /// What the network will do to the next call, decided when it is sent.
    fn journey(&self, changes: bool) -> Result<Journey, StoreError> {
        let mut state = self.world.lock();
        if state.refusing && !state.cut_off.contains(&self.name) {
            return Err(StoreError::NotReached {
                store: self.describe(),
                why: "connection refused".to_owned(),
            });
        }
        let faults = state.faults.clone();
        let mut journey = Journey {
            there: state.some_delay(),
            back: state.some_delay(),
            request_lost: state.happens(faults.lose_request),
            reply_lost: state.happens(faults.lose_reply),
        };
        state.counts.lost_requests += u64::from(journey.request_lost);
        state.counts.lost_replies += u64::from(journey.reply_lost && !journey.request_lost);
        let next = state.next.get_mut(&self.name).filter(|_| changes);
        match next.and_then(VecDeque::pop_front) {
            Some(Fault::LoseRequest) => journey.request_lost = true,
            Some(Fault::LoseReply) => journey.reply_lost = true,
            Some(Fault::Delay(delay)) => journey.there += delay,
            None => {}
        }
        Ok(journey)
    }

    fn act<R>(&self, act: impl FnOnce(&mut Table) -> R) -> R {
        let mut state = self.world.lock();
        let before = state.table.news();
        state.table.expire(Instant::now());
        let done = act(&mut state.table);
        let changed = state.table.news() != before;
        drop(state);
        if changed {
            self.world.tick();
        }
        done
    }

    fn is_unreachable(&self) -> bool {
        let state = self.world.lock();
        state.stopped || state.cut_off.contains(&self.name) || state.at_former_leader.contains(&self.name)
    }

    fn silence(&self, changes: bool) -> StoreError {
        let (store, why) = (self.describe(), format!("no answer within {PATIENCE:?}"));
        match changes {
            true => StoreError::NoAnswer { store, why },
            false => StoreError::NotReached { store, why },
        }
    }
}

/// Takes no time when there is no delay; a sleep would take until the timer's next millisecond.
async fn travel(delay: Duration) {
    if !delay.is_zero() {
        sleep(delay).await;
    }
}

struct Journey {
    there: Duration,
    back: Duration,
    request_lost: bool,
    reply_lost: bool,
}

impl Journey {
    /// After this a request that is still on its way has been lost; its task need not wait for ever.
    fn longest(&self) -> Duration {
        self.there + self.back + PATIENCE
    }
}

impl State {
    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.random.random::<f64>() < share
    }

    fn some_delay(&mut self) -> Duration {
        let delay = self.within(self.faults.delay.clone());
        if !self.happens(self.faults.late) {
            return delay;
        }
        self.counts.late += 1;
        delay + self.within(self.faults.lateness.clone())
    }

    fn within(&mut self, range: Range<Duration>) -> Duration {
        match range.end > range.start {
            true => self.random.random_range(range),
            false => range.start,
        }
    }
}

/// A watch of the simulated store.
pub(super) struct SimWatch {
    store: SimStore,
    ticks: latest::Receiver<()>,
    range: KeyRange,
    next: Revision,
    /// When the store was last heard of.
    heard: Instant,
}

impl SimWatch {
    /// Safe to cancel: what is not returned is looked up again.
    pub async fn next(&mut self) -> Result<Events, StoreError> {
        loop {
            self.ticks.take_in();
            if !self.store.is_unreachable()
                && let Some(events) = self.look()?
            {
                return Ok(events);
            }
            let silent = self.heard + HEARTBEAT + HEARTBEAT_PATIENCE;
            if Instant::now() >= silent {
                return Err(self.store.silence(false));
            }
            self.sleep_until_news().await;
        }
    }

    /// What is there to be seen now, maybe only a sign of life.
    fn look(&mut self) -> Result<Option<Events>, StoreError> {
        let world = self.store.world.clone();
        let mut state = world.lock();
        if state.refusing {
            return Err(StoreError::NotReached {
                store: self.store.describe(),
                why: "the watch has ended".to_owned(),
            });
        }
        let expired = state.table.expire(Instant::now());
        let events = state.table.events(&self.range, self.next);
        let revision = state.table.revision();
        drop(state);
        if expired {
            world.tick();
        }
        let events = events?;
        if events.is_empty() && Instant::now() < self.heard + HEARTBEAT {
            return Ok(None);
        }
        self.heard = Instant::now();
        self.next = self.next.max(revision.next());
        Ok(Some(Events { revision, events }))
    }

    async fn sleep_until_news(&mut self) {
        let now = Instant::now();
        let heartbeat = self.heard + HEARTBEAT;
        let until = if now < heartbeat { heartbeat } else { heartbeat + HEARTBEAT_PATIENCE };
        // A lease that runs out makes an event though nobody does anything.
        let lease = self.store.world.lock().table.next_deadline();
        let until = lease.filter(|deadline| *deadline > now).map_or(until, |d| d.min(until));
        tokio::select! {
            biased;
            changed = self.ticks.changed() => {
                changed.expect("the watch itself keeps the world alive");
                let delay = {
                    let mut state = self.store.world.lock();
                    // What is of no interest to this watch takes no way.
                    let is_news = state.table.events(&self.range, self.next).map_or(true, |events| !events.is_empty());
                    if is_news || state.refusing { state.some_delay() } else { Duration::ZERO }
                };
                travel(delay).await;
            }
            () = sleep_until(until) => {}
        }
    }
}
