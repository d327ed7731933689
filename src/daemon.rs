//! The daemon: one node, from its start to its leave.
//!
//! One loop waits for everything that can happen ([`Wake`]) and acts on it; what takes time is a task of its own that
//! ends in a [`Step`]. The daemon owns the planner, the slots and the list of what is in its hands; nobody else does.

mod agreement;
mod clocks;
mod cancels;
mod due;
mod fleet;
pub mod health;
mod held_back;
mod leave;
mod mutexes;
mod orphans;
mod publish;
mod pursuit;
mod queued;
mod retries;
pub mod signals;
pub mod state;
pub mod sweep;
mod tasks;
mod waiting;
mod wards;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use chrono::TimeDelta;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use ulid::Ulid;

use self::agreement::Agreement;
pub use self::agreement::UNSYNCED;
use self::cancels::Cancels;
use self::due::{CatchingUp, Looks};
use self::fleet::Fleet;
use self::health::{Beat, Moment, Whose};
use self::held_back::{HeldBack, Way};
use self::mutexes::Mutexes;
use self::orphans::{Orphans, Told};
use self::publish::Files;
use self::pursuit::{Pursuit, Step};
use self::queued::Queued;
use self::retries::Retries;
use self::signals::{Signal, Signals};
use self::state::{Life, State};
use self::tasks::{Heard, Tasks};
use self::waiting::Waiting;
use self::wards::{Looked, Wards};
use crate::cgroup::Delegated;
use crate::clock::Clock;
use crate::config::Policy;
use crate::fire::{Fire, FireId, Lane};
use crate::guard::{Guards, RunFolder};
use crate::job::{DEFAULT_KILL_AFTER, Job, JobName, Overlap, Priority, RunOn};
use crate::node::{Labels, NodeName};
use crate::planner::{Planned, Planner};
use crate::race::{self, Basis, Candidate, Chains, Found, Me, Standing, Unrun};
use crate::record::Outcome;
use crate::run::{self, Account, Order, Place};
use crate::schedule::Timestamp;
use crate::store::values::{self, Definition, Facts, LockPolicy, Presence, Request};
use crate::store::{
    Access, Address, Entry, Event, Follow, Revision, Seen, Store, StoreError, Together, keys,
};
use crate::warden;

/// How a node is to run.
#[derive(Debug, Clone)]
pub struct Options {
    pub store: Address,
    pub access: Access,
    pub node: NodeName,
    pub labels: Labels,
    /// How many runs at once.
    pub slots: u32,
    /// The node's state folder.
    pub state: PathBuf,
    /// Job files and folders to keep the store in step with.
    pub jobs: Vec<PathBuf>,
    /// How long commands may go on without a daemon after an orderly stop, at least.
    pub stop_hold: Duration,
    /// Whose commands this node runs.
    pub policy: Policy,
    /// Nothing is run by a clock that nothing keeps right.
    pub require_synced_clock: bool,
    pub clock: Clock,
}

/// Runs the node until it is told to stop.
///
/// Errors: it could not start, or another node has its name.
pub async fn daemon(options: Options) -> anyhow::Result<()> {
    // Signals first: one that comes while we start must not be lost.
    let signals = Signals::of_process()?;
    let life = Life::here()?;
    let boot = life.boot.clone();
    let state = State::open(&options.state, options.node.as_str(), life)?;
    let store = Store::open(&options.store, &options.access).await?;
    let place = Place {
        store: store.clone(),
        together: Together::new(store),
        clock: options.clock,
        runs: state.runs(),
        outputs: state.outputs(),
        journal: state.journal(),
        guards: Guards::Program(guard_program()?),
        cgroups: cgroups(&options.state),
        account: Account::own().context("the user database cannot be read")?,
        policy: options.policy.clone(),
        chains: Chains::default(),
    };
    let gone = CancellationToken::new();
    let mut services = JoinSet::new();
    services.spawn(sweep::keep_swept(place.clone(), gone.clone()));
    let (pulse, beats) = watch::channel(None);
    let whose = Whose { node: options.node.to_string(), node_start: state.start, boot };
    services.spawn(health::keep(options.state.clone(), whose, beats, gone.clone()));
    node(options, Parts { signals, state, place, instance: Ulid::generate(), services, gone, pulse }).await
}

/// What a node is made of: of a process and its machine, or of simulated ones.
pub struct Parts {
    pub signals: Signals,
    pub state: State,
    pub place: Place,
    /// Another for every daemon.
    pub instance: Ulid,
    /// What goes on beside the node, for as long as it does.
    pub services: JoinSet<anyhow::Result<()>>,
    /// Cancelled when the registration is to be given back.
    pub gone: CancellationToken,
    /// Where the loop tells that it goes on.
    pub pulse: watch::Sender<Option<Beat>>,
}

/// Runs a node of these parts until it is told to stop.
///
/// Errors: another node has its name.
pub async fn node(options: Options, parts: Parts) -> anyhow::Result<()> {
    let Parts { signals, state, place, instance, mut services, gone, pulse } = parts;
    let (state, store, clock) = (Arc::new(state), place.store.clone(), options.clock);
    let me = Me { name: options.node.clone(), start: state.start, instance: instance.to_string() };
    let mut presence = Presence::new(Facts {
        node_start: state.start,
        labels: &options.labels,
        slots: options.slots,
        files: BTreeMap::new(),
        at: options.clock.now(),
    });
    presence.clock = clocks::first_word(&clock);
    info!(node = %me.name, store = %store.describe(), version = env!("CARGO_PKG_VERSION"),
          tzdata = crate::schedule::tzdata_version(), slots = options.slots, "starting");
    let registered = race::register_and_stay(store.clone(), options.clock, me, presence, gone.clone());
    let (standing, staying) = tokio::select! {
        biased;
        registered = registered => registered?,
        // Nothing is held yet, so nothing is to be given back.
        () = signals.stop() => return Ok(()),
    };
    services.spawn(clock.bind(async move { staying.await.map_err(anyhow::Error::from) }));
    let reload = Arc::new(Notify::new());
    if !options.jobs.is_empty() {
        let files = Files {
            store: store.clone(),
            clock: options.clock,
            paths: options.jobs.clone(),
            state: state.clone(),
            standing: standing.clone(),
            reload: reload.clone(),
        };
        let gone = gone.clone();
        services.spawn(clock.bind(async move {
            tokio::select! {
                biased;
                () = gone.cancelled() => Ok(()),
                () = files.keep_published() => Ok(()),
            }
        }));
    }
    let daemon =
        Daemon::take_up(options, place, standing, &state, signals, services, reload, gone, pulse).await?;
    daemon.live().await
}

/// Where the cgroups of this node's runs are to be, if it may make any.
fn cgroups(state: &std::path::Path) -> Option<PathBuf> {
    match Delegated::find() {
        Ok(delegated) => {
            info!(below = %delegated.base().display(), "each run has a cgroup of its own");
            Some(delegated.take_up(state))
        }
        Err(why) => {
            info!(why, "runs have no cgroups of their own; their processes are found by session and descent");
            None
        }
    }
}

/// The guard that belongs to this release: beside the daemon's own executable, or where packages put it.
pub fn guard_program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("the path of the running program is not known")?;
    let folder = own.parent().context("the running program lies in no folder")?;
    let places = [folder.join("fleetcron-guard"), folder.join("../lib/fleetcron/fleetcron-guard")];
    let there = places.iter().find(|path| path.is_file());
    there.cloned().with_context(|| format!("there is no fleetcron-guard beside {}", own.display()))
}

struct Daemon {
    options: Options,
    place: Place,
    standing: Standing,
    planner: Planner,
    /// There was a first look at what is due.
    has_planned: bool,
    /// When the clock was last looked at, since boot.
    looked: Duration,
    /// What the clock showed when this daemon had registered.
    began: Timestamp,
    /// The floors as they were then: all up to there is decided. And those of lanes that this node has made since.
    floors: HashMap<(JobName, Lane), Timestamp>,
    /// Fires to be looked at in a moment.
    looks: Looks,
    catching_up: CatchingUp,
    wards: Wards,
    /// Jobs whose definitions this release cannot read.
    unreadable: BTreeSet<JobName>,
    fleet: Fleet,
    /// Since boot: since when the store tells that this node is not there.
    missing_since: Option<Duration>,
    /// What small tasks tell.
    news: (mpsc::Sender<News>, mpsc::Receiver<News>),
    jobs: Follow,
    requests: Follow,
    nodes: Follow,
    pauses: Follow,
    drains: Follow,
    held_back: HeldBack,
    agreement: Agreement,
    /// A request was held back by what this node has not seen, or has seen the end of.
    ask_again: bool,
    orphans: Orphans,
    state: Arc<State>,
    /// Requests that are not dealt with yet, by key, with when they were made.
    asked: BTreeMap<String, Asked>,
    /// Fires that wait for a slot.
    waiting: Waiting,
    /// Fires that wait for their lane.
    queued: Queued,
    /// Who has what jobs and tasks share, and fires that wait for that.
    mutexes: Mutexes,
    /// Tasks that this node may run.
    queue: Tasks,
    /// Fires that are to be cancelled.
    cancels: Cancels,
    /// Fires that wait for the instant of their next attempt.
    retries: Retries,
    /// Fires that were superseded while they waited, and have no record yet.
    unrun: VecDeque<(Fire, Unrun)>,
    /// Fires whose definition was not the present one when they were raced for.
    outdated: Vec<(Fire, Revision)>,
    /// Fires in this node's hands: each has a task that races for it or runs it.
    hands: BTreeMap<Fire, Hand>,
    tasks: JoinSet<(Fire, Step)>,
    /// Where the tasks tell that they won.
    won: (mpsc::Sender<Fire>, mpsc::Receiver<Fire>),
    services: JoinSet<anyhow::Result<()>>,
    /// Small tasks that nobody waits for.
    chores: JoinSet<()>,
    signals: Signals,
    reload: Arc<Notify>,
    /// Cancelled when nothing more is to be claimed.
    leaving: CancellationToken,
    /// Cancelled when the registration is to be given back.
    gone: CancellationToken,
    /// Where this loop tells that it goes on, and when it last decided something.
    pulse: watch::Sender<Option<Beat>>,
    decided: Option<Moment>,
    /// The store has told its jobs at least once.
    knows_jobs: bool,
}

/// How far apart the clocks of two nodes may be without a word.
const FROM_THE_FUTURE: TimeDelta = TimeDelta::minutes(1);

/// What is due and cannot be dealt with must not keep the loop from all else.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// What is due while the store is away is looked at again after this.
const LOOK_FOR_STORE_EVERY: Duration = Duration::from_millis(250);

/// How many tellings of small tasks may wait.
const WAITING_NEWS: usize = 64;

/// Less than the planner takes for a gap.
const LOOK_AT_CLOCK_EVERY: Duration = Duration::from_secs(2);

/// How many superseded fires may wait for the store to come back before some are let go of.
const MOST_UNRUN: usize = 10_000;

/// A fire in hand.
struct Hand {
    task: tokio::task::AbortHandle,
    orders: watch::Sender<Order>,
    /// Its lock is this node's, as far as is known.
    held: bool,
    kill_after: Duration,
}

/// A request to start a job.
struct Asked {
    fire: Fire,
    /// When it was made.
    at: Timestamp,
    /// It runs beside another fire of its lane.
    force: bool,
}

/// Everything that can wake the daemon. The list is closed on purpose.
enum Wake {
    Jobs(Seen),
    Requests(Seen),
    Nodes(Seen),
    Pauses(Seen),
    Drains(Seen),
    Mutexes(mutexes::Seen),
    Queue(Heard),
    /// It is time to look at the clock.
    Time,
    LaneFree(Result<Fire, JoinError>),
    Won(Fire),
    Ended(Result<(Fire, Step), JoinError>),
    ChoreEnded(Result<(), JoinError>),
    Orphans(Told),
    News(News),
    ServiceEnded(Result<anyhow::Result<()>, JoinError>),
    Signal(Signal),
}

/// What a small task tells.
enum News {
    /// Nobody has decided these fires yet.
    Undecided(Vec<Fire>),
    Wards(Looked),
    /// This node's lane of a job is there, with this floor.
    Lane(JobName, Timestamp),
    /// What a look into the queue has shown. None: it could not be looked into.
    Tasks(Option<tasks::Found>),
}

impl Daemon {
    /// Takes back what an earlier life left, and begins to follow the store.
    #[expect(clippy::too_many_arguments, reason = "called once, with the parts that the start has made")]
    async fn take_up(
        options: Options,
        place: Place,
        standing: Standing,
        state: &Arc<State>,
        signals: Signals,
        services: JoinSet<anyhow::Result<()>>,
        reload: Arc<Notify>,
        gone: CancellationToken,
        pulse: watch::Sender<Option<Beat>>,
    ) -> anyhow::Result<Daemon> {
        let store = place.store.clone();
        // After the registration: what an earlier daemon sent can no longer commit, so this list is whole.
        let left = race::mine(&store, &standing.me).await?;
        let floors = floors(&store).await?;
        let most_at_once = options.slots as usize;
        let clock = options.clock;
        let (now, pace) = (clock.now(), clock.pace());
        let mut daemon = Daemon {
            jobs: store.follow(keys::jobs()),
            requests: store.follow(keys::requests()),
            nodes: store.follow(keys::nodes()),
            pauses: store.follow(keys::pauses()),
            drains: store.follow(keys::drains()),
            held_back: HeldBack::default(),
            agreement: Agreement::new(options.require_synced_clock, clocks::first_word(&options.clock)),
            ask_again: false,
            orphans: Orphans::new(),
            state: state.clone(),
            fleet: Fleet::new(options.node.clone()),
            options,
            place,
            standing,
            planner: Planner::new(now).at_pace(pace),
            has_planned: false,
            looked: clock.since_boot(),
            began: now,
            floors,
            looks: Looks::default(),
            catching_up: CatchingUp::default(),
            wards: Wards::new(now),
            unreadable: BTreeSet::new(),
            missing_since: None,
            news: mpsc::channel(WAITING_NEWS),
            asked: BTreeMap::new(),
            waiting: Waiting::default(),
            queued: Queued::default(),
            mutexes: Mutexes::follow(&store),
            queue: Tasks::follow(&store, clock),
            cancels: Cancels::default(),
            retries: Retries::default(),
            unrun: VecDeque::new(),
            outdated: Vec::new(),
            hands: BTreeMap::new(),
            tasks: JoinSet::new(),
            // Each fire in hand tells it once.
            won: mpsc::channel(most_at_once),
            services,
            chores: JoinSet::new(),
            signals,
            reload,
            leaving: CancellationToken::new(),
            gone,
            pulse,
            decided: None,
            knows_jobs: false,
        };
        daemon.clear_orphan_folders(&left);
        for found in left {
            if state.is_own(found.lock.node_start) {
                let job = match found.lock.task(&found.fire) {
                    Some(task) => Some(Arc::new(task.job)),
                    None => job_now(&daemon.place.store, &found.fire.job).await?,
                };
                daemon.take_back(found, job, Order::GoOn);
            }
            // Of a former owner of the name: an orphan like others.
        }
        Ok(daemon)
    }

    /// Lives until told to stop, then leaves.
    async fn live(mut self) -> anyhow::Result<()> {
        let end = loop {
            match self.next_wake().await {
                Wake::Jobs(seen) => self.jobs_seen(seen),
                Wake::Requests(seen) => self.requests_seen(seen),
                Wake::Nodes(seen) => self.nodes_seen(seen),
                Wake::Pauses(seen) => {
                    self.held_back.pauses_seen(seen);
                    self.queue.look_again();
                    self.go_on_where_free();
                }
                Wake::Drains(seen) => {
                    // Also what this node left to others while it was drained, or they to it.
                    if self.fleet.drains_seen(seen) {
                        self.fleet_changed();
                        self.use_free_slots();
                    }
                }
                Wake::Mutexes(seen) => self.mutexes_seen(seen),
                Wake::Queue(heard) => self.queue_heard(heard),
                Wake::Time => {
                    self.look_at_time();
                    self.use_free_slots();
                    self.tell_pulse();
                }
                Wake::LaneFree(waited) => self.lane_is_free(waited),
                Wake::News(news) => self.hear_news(news),
                Wake::Won(fire) => self.hold(&fire),
                Wake::Ended(ended) => self.ended(ended),
                Wake::Orphans(told) => self.told_of_orphans(told),
                Wake::ChoreEnded(ended) => {
                    if let Err(error) = ended {
                        error!(%error, "a small task panicked");
                    }
                }
                Wake::ServiceEnded(ended) => {
                    let end = service_end(ended);
                    if let Err(error) = &end {
                        error!(node = %self.options.node, "this node cannot go on: {error:#}");
                    }
                    // Without a registration no claim of ours can be sent or settled any more.
                    self.let_go_of_races();
                    break end;
                }
                Wake::Signal(Signal::Reload) => {
                    info!("reloading the job files");
                    self.reload.notify_one();
                }
                Wake::Signal(Signal::Stop) => break Ok(()),
            }
        };
        self.leave().await;
        end
    }

    /// Waits. Every branch is safe to cancel; which of them is ready says nothing about what is done.
    async fn next_wake(&mut self) -> Wake {
        let until_due = self.until_due();
        tokio::select! {
            // Always in this order, so that a simulation can be repeated. What comes seldom comes first, so that nothing
            // has to wait behind a flood of it.
            biased;
            signal = self.signals.next() => Wake::Signal(signal),
            Some(ended) = self.services.join_next() => Wake::ServiceEnded(ended),
            () = tokio::time::sleep(until_due) => Wake::Time,
            seen = self.drains.next() => Wake::Drains(seen),
            seen = self.pauses.next() => Wake::Pauses(seen),
            seen = self.nodes.next() => Wake::Nodes(seen),
            seen = self.jobs.next() => Wake::Jobs(seen),
            told = self.orphans.next() => Wake::Orphans(told),
            Some(news) = self.news.1.recv() => Wake::News(news),
            Some(fire) = self.won.1.recv() => Wake::Won(fire),
            Some(waited) = self.queued.next() => Wake::LaneFree(waited),
            Some(ended) = self.tasks.join_next() => Wake::Ended(ended),
            seen = self.requests.next() => Wake::Requests(seen),
            seen = self.mutexes.next() => Wake::Mutexes(seen),
            heard = self.queue.next() => Wake::Queue(heard),
            Some(ended) = self.chores.join_next() => Wake::ChoreEnded(ended),
        }
    }

    /// How long to sleep: never so long that a stepped clock goes unnoticed, however much else wakes this loop.
    fn until_due(&self) -> Duration {
        let clock = &self.options.clock;
        let longest = LOOK_AT_CLOCK_EVERY.saturating_sub(clock.since_boot().saturating_sub(self.looked));
        if !self.can_plan() {
            return longest.min(LOOK_FOR_STORE_EVERY);
        }
        let by_clock = [
            self.planner.next_due(),
            self.held_back.next_end(clock.now()),
            // Who knows of no node, not even of this one, settles nothing.
            self.wards.next().filter(|_| self.fleet.up_since().is_some()),
            self.next_retry(),
            self.queue.next_due(),
            self.mutexes.next_end(),
        ];
        let by_boot = [self.looks.next(), self.next_task()];
        let by_boot = by_boot.into_iter().flatten().map(|at| at.saturating_sub(clock.since_boot()));
        let all = by_clock.into_iter().flatten().map(|at| clock.until(at)).chain(by_boot);
        all.fold(longest, Duration::min).max(SHORTEST_SLEEP)
    }

    fn hear_news(&mut self, news: News) {
        match news {
            News::Undecided(fires) => {
                for fire in fires {
                    // One that waits for its mutex is in somebody's hands.
                    if !self.waits_for_mutex(&fire) {
                        self.race_for(fire);
                    }
                }
            }
            News::Wards(looked) => self.wards_looked_at(looked),
            News::Lane(job, floor) => self.lane_is_there(job, floor),
            News::Tasks(found) => self.tasks_found(found),
        }
    }

    fn jobs_seen(&mut self, seen: Seen) {
        match seen {
            Seen::All { entries, .. } => {
                let there: std::collections::HashSet<_> =
                    entries.iter().map(|entry| keys::name_of(&entry.key).to_owned()).collect();
                let removed: Vec<JobName> =
                    self.planner.names().filter(|name| !there.contains(name.as_str())).cloned().collect();
                for name in removed {
                    self.forget(&name);
                }
                for entry in entries {
                    self.define(entry);
                }
                self.place.chains.are_known();
                if !std::mem::replace(&mut self.knows_jobs, true) {
                    info!(node = %self.options.node, jobs = self.planner.len(), "ready");
                    self.choose_wards();
                }
            }
            Seen::Changes { events, .. } => {
                for event in events {
                    match event {
                        Event::Put(entry) => self.define(entry),
                        Event::Delete { key, .. } => {
                            if let Ok(name) = keys::name_of(&key).parse() {
                                self.forget(&name);
                            }
                        }
                    }
                }
            }
            Seen::OutOfTouch { error } => {
                warn!(node = %self.options.node, %error, "the store is out of touch, trying on");
            }
        }
        self.race_again_for_outdated();
        self.race_for_requests();
    }

    fn define(&mut self, entry: Entry) {
        let definition = entry.mod_revision;
        match Definition::decode(&entry.key, &entry.value) {
            Ok(Definition { job, since, .. }) => {
                if self.planner.get(&job.name).is_some_and(|known| known.definition == definition.0) {
                    return;
                }
                self.unreadable.remove(&job.name);
                self.place.chains.put(&job, definition);
                debug!(job = %job.name, %definition, "job defined");
                if since > self.options.clock.now() + FROM_THE_FUTURE {
                    warn!(job = %job.name, %since,
                          "the job is defined by a clock that is ahead of this one, and is not due before that");
                }
                for (_, error) in job.schedule.impossible() {
                    warn!(job = %job.name, %error, "this schedule never fires");
                }
                self.plan(Planned {
                    lane: self.lane_of(&job),
                    job: Arc::new(job),
                    definition: definition.0,
                    since,
                });
            }
            Err(error) => {
                warn!(%error, "a job is passed over, the others go on");
                // What it was before is no longer what is wanted.
                if let Ok(name) = keys::name_of(&entry.key).parse() {
                    self.place.chains.remove(&name);
                    self.planner.remove(&name);
                    self.unreadable.insert(name.clone());
                    self.choose_ward(&name);
                }
            }
        }
    }

    fn forget(&mut self, name: &JobName) {
        debug!(job = %name, "job removed");
        self.unreadable.remove(name);
        self.planner.remove(name);
        self.place.chains.remove(name);
        self.waiting.forget(name);
        self.queued.forget(name);
        self.stop_waiting_for_mutexes(name);
        self.catching_up.remove(name);
        self.choose_ward(name);
    }

    /// Where this node has scheduled fires of a job, if it has any.
    fn lane_of(&self, job: &Job) -> Option<Lane> {
        let (node, labels) = (&self.options.node, &self.options.labels);
        match job.run_on {
            RunOn::OneNode => Some(Lane::OneNode),
            RunOn::EveryNode => {
                let is_picked = job.nodes.as_ref().is_none_or(|nodes| nodes.matches(node, labels));
                is_picked.then(|| Lane::Node(node.clone()))
            }
        }
    }

    /// Has the planner know a job. A lane of this node is made first, where it is not there yet.
    fn plan(&mut self, planned: Planned) {
        let name = planned.job.name.clone();
        let lane = planned.lane.clone().unwrap_or(Lane::OneNode);
        let floor = self.floors.get(&(name.clone(), lane.clone())).copied();
        let is_new = self.planner.get(&name).is_none_or(|known| known.lane != planned.lane);
        match (lane, floor) {
            (Lane::Node(_), None) => {
                self.open_lane(name.clone(), planned.since);
                self.planner.put(Planned { lane: None, ..planned }, self.began);
            }
            (_, floor) => {
                if is_new {
                    // Planned by another lane's time, it would begin where that one was.
                    self.planner.remove(&name);
                }
                // One that is ahead is of a clock that was wrong; its warden puts it right.
                let decided = floor.unwrap_or(planned.since).min(self.began);
                self.planner.put(planned, decided);
            }
        }
        self.choose_ward(&name);
        self.race_for_boot(&name);
    }

    /// Makes this node's lane of a job, in a small task. A lane that is new has missed nothing.
    fn open_lane(&mut self, job: JobName, since: Timestamp) {
        let (store, tell) = (self.place.store.clone(), self.news.0.clone());
        let lane = Lane::Node(self.options.node.clone());
        let floor = since.max(self.options.clock.now());
        self.chores.spawn(self.options.clock.bind(async move {
            let floor = warden::open_lane(&store, &job, &lane, floor).await;
            let _ = tell.send(News::Lane(job, floor)).await;
        }));
    }

    fn lane_is_there(&mut self, job: JobName, floor: Timestamp) {
        self.floors.insert((job.clone(), Lane::Node(self.options.node.clone())), floor);
        let Some(planned) = self.planner.get(&job) else { return };
        let planned = Planned { lane: self.lane_of(&planned.job), ..planned.clone() };
        self.plan(planned);
    }

    /// Of a job that also runs when its machine starts: once in this life of the node, if it was defined before.
    fn race_for_boot(&mut self, job: &JobName) {
        let Some(planned) = self.planner.get(job) else { return };
        let fire = |lane| Fire { job: job.clone(), lane, id: FireId::Boot(self.state.start) };
        let Some(fire @ Fire { lane: Lane::Node(_), .. }) = planned.lane.clone().map(fire) else { return };
        let is_due = planned.job.enabled && planned.job.schedule.has_reboot();
        if is_due && planned.since < fire.scheduled_at() {
            self.race_for(fire);
        }
    }

    fn requests_seen(&mut self, seen: Seen) {
        match seen {
            Seen::All { entries, .. } => {
                self.asked.clear();
                self.cancels.clear();
                for entry in entries {
                    self.request_seen(entry);
                }
            }
            Seen::Changes { events, .. } => {
                for event in events {
                    match event {
                        Event::Put(entry) => self.request_seen(entry),
                        Event::Delete { key, .. } => {
                            self.asked.remove(&key);
                            self.cancels.remove(&key);
                        }
                    }
                }
            }
            // The jobs' own says it.
            Seen::OutOfTouch { .. } => {}
        }
        self.race_for_requests();
    }

    fn request_seen(&mut self, entry: Entry) {
        match self.cancels.put(&entry) {
            Some(fire) => self.obey(&fire),
            None => self.asked.extend(requested(entry)),
        }
    }

    fn nodes_seen(&mut self, seen: Seen) {
        let is_list = matches!(seen, Seen::All { .. });
        self.hear_clocks(&seen);
        if self.fleet.nodes_seen(seen) {
            self.fleet_changed();
        } else if is_list {
            // Every few minutes, by what is there and not by what was told.
            self.look_for_orphans();
        }
    }

    /// Takes pauses that are over out of the store, and asks again where a pause was not seen.
    fn end_pauses(&mut self, now: Timestamp) {
        let clock = self.options.clock;
        // By a clock that is off it may be early for that.
        let over = match self.agreement.is_given() {
            true => self.held_back.over(now, clock.since_boot()),
            false => Vec::new(),
        };
        for over in over {
            self.chores.spawn(clock.bind(held_back::take_out(self.place.store.clone(), over)));
        }
        if std::mem::take(&mut self.ask_again) {
            self.race_for_requests();
        }
    }

    /// Something that held back may be gone: what waited for that is looked at again.
    fn go_on_where_free(&mut self) {
        for fire in self.held_back.kept() {
            self.see_to(fire);
        }
        self.race_for_requests();
    }

    /// Sees to the requests that are there. One for a job that this node does not know yet, or that is gone, waits.
    fn race_for_requests(&mut self) {
        if !self.knows_jobs || !self.fleet.is_known() {
            return;
        }
        let asked =
            self.asked.values().map(|asked| &asked.fire).filter(|fire| !self.hands.contains_key(fire));
        for fire in asked.cloned().collect::<Vec<_>>() {
            self.see_to(fire);
        }
    }

    fn race_again_for_outdated(&mut self) {
        let now_known = |planner: &Planner, fire: &Fire, definition: Revision| {
            planner.get(&fire.job).is_none_or(|known| known.definition != definition.0)
        };
        let (again, keep): (Vec<_>, Vec<_>) = std::mem::take(&mut self.outdated)
            .into_iter()
            .partition(|(fire, definition)| now_known(&self.planner, fire, *definition));
        self.outdated = keep;
        for (fire, _) in again {
            self.race_for(fire);
        }
    }

    /// Races for a fire, or has it wait for a slot.
    fn race_for(&mut self, fire: Fire) {
        let waits = self.retries.has(&fire) || self.queued.has(&fire) || self.mutexes.has(&fire);
        if waits || self.hands.contains_key(&fire) {
            return;
        }
        let is_scheduled = matches!(fire.id, FireId::Scheduled(_));
        match self.held_back.way(&fire, self.options.clock.now()) {
            Way::Free => {}
            Way::Held(why) => {
                debug!(job = %fire.job, fire = %fire.id, why, "not raced for");
                return;
            }
            // A request is there to be asked for again.
            Way::UntilPauseIsGone if fire.id.is_asked_for() => return,
            Way::UntilPauseIsGone => return self.held_back.keep(fire),
        }
        if is_scheduled && !self.agreement.is_given() {
            debug!(job = %fire.job, fire = %fire.id, "not raced for: this node's clock is off");
            return;
        }
        if self.fleet.is_drained() {
            debug!(job = %fire.job, fire = %fire.id, "not raced for: this node is drained");
            return;
        }
        if !self.has_slot() {
            self.wait_for_slot(fire);
            return;
        }
        let Some(planned) = self.planner.get(&fire.job) else {
            info!(job = %fire.job, fire = %fire.id, "not run: the job is gone");
            return;
        };
        let at = fire.scheduled_at();
        if is_scheduled && !planned.owes(at) {
            // Its warden writes that down.
            info!(job = %fire.job, fire = %fire.id, "not run: the job changed, and it is not due any more");
            return;
        }
        let asked = self.asked.get(&keys::request(&fire));
        let (asked_at, is_forced) = (asked.map(|asked| asked.at), asked.is_some_and(|asked| asked.force));
        let mutex = planned.job.mutex.clone();
        let candidate = Candidate {
            fire: fire.clone(),
            basis: Basis::Definition(Revision(planned.definition)),
            overlap: if is_forced { Overlap::Allow } else { planned.job.overlap },
            mutex: mutex.map(|mutex| (mutex.clone(), self.mutexes.places(&mutex))),
            restarts_chain: planned.job.after.as_ref().is_some_and(|after| after.all),
            was: planned.job.was.clone(),
            policy: LockPolicy {
                promise: planned.job.promise,
                // A request may be for an instant that was missed long ago.
                last_start: planned.last_start(asked_at.unwrap_or(at)),
                hold: run::hold_of(&planned.job, &fire.lane),
                retry: planned.job.retry.clone(),
                slot: None,
                task: None,
            },
        };
        let job = planned.job.clone();
        self.pursue(candidate, job, self.place.clone());
    }

    /// Races for a fire in a task of its own, and runs it when the race is won.
    fn pursue(&mut self, candidate: Candidate, job: Arc<Job>, place: Place) {
        let (fire, kill_after) = (candidate.fire.clone(), job.kill_after);
        let (orders, hear) = watch::channel(Order::GoOn);
        let pursuit = Pursuit {
            place,
            standing: self.standing.clone(),
            candidate,
            job,
            orders: hear,
            won: self.won.0.clone(),
            leaving: self.leaving.clone(),
        };
        self.take_in_hand(fire, kill_after, orders, pursuit.pursue());
    }

    /// Gives a fire a task of its own.
    fn take_in_hand(
        &mut self,
        fire: Fire,
        kill_after: Duration,
        orders: watch::Sender<Order>,
        task: impl Future<Output = Step> + Send + 'static,
    ) {
        let of = fire.clone();
        let task = self.tasks.spawn(self.options.clock.bind(async move { (of, task.await) }));
        self.hands.insert(fire.clone(), Hand { task, orders, held: false, kill_after });
        self.obey(&fire);
    }

    fn has_slot(&self) -> bool {
        self.hands.len() < self.options.slots as usize
    }

    /// The job of a fire whose lock is this one: that of a task lies in the lock.
    fn job_of(&self, found: &Found) -> Option<Arc<Job>> {
        match found.lock.task(&found.fire) {
            Some(task) => Some(Arc::new(task.job)),
            None => self.planner.get(&found.fire.job).map(|planned| planned.job.clone()),
        }
    }

    /// Puts a fire into the queue for a slot. A scheduled fire of the same job that waits there is superseded.
    fn wait_for_slot(&mut self, fire: Fire) {
        let by = fire.id;
        let priority =
            self.planner.get(&fire.job).map_or(Priority::default(), |planned| planned.job.priority);
        if let Some(older) = self.waiting.push(fire, priority) {
            self.supersede(older, by, "a slot");
        }
    }

    /// Has a fire recorded that another one has overtaken.
    fn supersede(&mut self, older: Fire, by: FireId, waited_for: &str) {
        info!(job = %older.job, fire = %older.id, %by, waited_for, "superseded while it waited");
        if self.unrun.len() >= MOST_UNRUN {
            warn!(job = %older.job, fire = %older.id, "too many fires wait for the store, this one gets no record");
            return;
        }
        let reason = format!("superseded by {by} while it waited for {waited_for}");
        let unrun = Unrun::new(Outcome::Skipped, reason);
        let job = older.job.clone();
        self.unrun.push_back((older, unrun));
        self.go_on_catching_up(&job);
        self.use_free_slots();
    }

    /// Goes on with what waited for a slot.
    fn use_free_slots(&mut self) {
        while self.has_slot() {
            let goes_on = self.take_over_next() || self.try_again_next() || self.start_next();
            if !goes_on {
                return;
            }
        }
    }

    /// Takes what comes first of the fires that wait for a slot and the tasks; false where there is none.
    fn start_next(&mut self) -> bool {
        if let Some(first) = self.waiting.first_priority() {
            if !self.take_task_before(Some(first))
                && let Some(fire) = self.waiting.pop()
            {
                self.race_for(fire);
            }
            return true;
        }
        if let Some((fire, unrun)) = self.unrun.pop_front() {
            self.decide(fire, unrun);
            return true;
        }
        self.take_task_before(None)
    }

    /// Records a fire as not run, in a task of its own.
    fn decide(&mut self, fire: Fire, unrun: Unrun) {
        let (place, standing, of) = (self.place.clone(), self.standing.clone(), fire.clone());
        let (orders, _) = watch::channel(Order::GoOn);
        self.take_in_hand(fire, Duration::ZERO, orders, async move {
            let decided = pursuit::decide(&place, &standing, &of, &unrun).await;
            decided.map_or_else(Step::Refused, |_| Step::Done)
        });
    }

    /// Takes a lock of this node back, in a task of its own.
    fn take_back(&mut self, found: Found, job: Option<Arc<Job>>, order: Order) {
        let (orders, hear) = watch::channel(order);
        let kill_after = job.as_ref().map_or(DEFAULT_KILL_AFTER, |job| job.kill_after);
        let (fire, place, mut standing) = (found.fire.clone(), self.place.clone(), self.standing.clone());
        self.take_in_hand(fire.clone(), kill_after, orders, async move {
            Step::after(run::take_back(&place, &mut standing, found, job.as_deref(), hear).await)
        });
        self.hold(&fire);
    }

    fn moment(&self) -> Moment {
        Moment::new(self.options.clock.now(), self.options.clock.since_boot())
    }

    fn tell_pulse(&self) {
        let now = self.moment();
        let renewed = self.standing.renewed();
        let ago = TimeDelta::from_std(self.options.clock.since_boot().saturating_sub(renewed));
        let contact = Moment::new(now.at - ago.unwrap_or(TimeDelta::zero()), renewed);
        let (decision, runs, clock) = (self.decided, self.hands.len(), self.agreement.objection());
        // Nobody may be listening.
        self.pulse.send_replace(Some(Beat { pass: now, contact, decision, runs, clock }));
    }

    fn hear_of_wins(&mut self) {
        while let Ok(fire) = self.won.1.try_recv() {
            self.hold(&fire);
        }
    }

    fn hold(&mut self, fire: &Fire) {
        if let Some(hand) = self.hands.get_mut(fire) {
            hand.held = true;
            self.decided = Some(self.moment());
        }
    }

    fn ended(&mut self, ended: Result<(Fire, Step), JoinError>) {
        let (fire, step) = match ended {
            Ok(ended) => ended,
            Err(panicked) => {
                // Its lock, if there is one, is closed at the next start.
                let of = self
                    .hands
                    .iter()
                    .find(|(_, hand)| hand.task.id() == panicked.id())
                    .map(|(fire, _)| fire.clone());
                error!(fire = ?of.as_ref().map(Fire::to_string), error = %panicked, "a task about a fire panicked");
                let Some(of) = of else { return };
                (of, Step::Done)
            }
        };
        self.hands.remove(&fire);
        self.go_on_catching_up(&fire.job);
        self.step(fire, step);
        self.use_free_slots();
    }

    /// Goes on with a fire as its task has left it.
    fn step(&mut self, fire: Fire, step: Step) {
        let of = fire.clone();
        match step {
            Step::Done => self.decided = Some(self.moment()),
            Step::Busy(busy) => self.wait_for_lane(*busy),
            Step::NoSlot(wait) => self.wait_for_mutex(fire.clone(), wait),
            Step::Waits(found) => {
                self.retries.push(*found);
                self.obey(&fire);
            }
            // Only a request waits on. It may be that the end of the pause was seen before this.
            Step::HeldBack => {
                self.ask_again = true;
                self.queue.look_again();
            }
            Step::Refused(error) => {
                error!(job = %fire.job, fire = %fire.id, %error, "the store refuses; nothing more is done about this fire now");
            }
            Step::Outdated { definition } => {
                debug!(job = %fire.job, fire = %fire.id, %definition, "planned by a former definition");
                self.outdated.push((fire, definition));
                self.race_again_for_outdated();
            }
        }
        self.leave_mutex_alone(&of);
    }

    /// Gives up what is not known to be held. What was claimed all the same is closed at the next start.
    fn let_go_of_races(&mut self) {
        self.hear_of_wins();
        self.hands.retain(|_, hand| {
            if !hand.held {
                hand.task.abort();
            }
            hand.held
        });
    }

    /// Run folders without a lock: their record is written, or their claim never was. Nothing may start there any more.
    fn clear_orphan_folders(&mut self, left: &[Found]) {
        let folders = match RunFolder::list(&self.place.runs) {
            Ok(folders) => folders,
            Err(error) => {
                warn!(%error, "the run files cannot be listed");
                return;
            }
        };
        for (name, folder) in folders {
            let locked =
                left.iter().any(|found| found.fire == name.fire && found.lock.attempt == name.attempt);
            if locked {
                continue;
            }
            let (place, me) = (self.place.clone(), self.standing.me.clone());
            self.chores.spawn(self.options.clock.bind(async move {
                if let Err(error) = run::clear_orphan(&place, &me, &name, &folder).await {
                    warn!(folder = %folder.path().display(), %error, "a run file could not be cleared away");
                }
            }));
        }
    }
}

/// A request to start a job, from its entry, with when it was made.
fn requested(entry: Entry) -> Option<(String, Asked)> {
    let fire = keys::fire_requested(&entry.key)?;
    let request = values::decode::<Request>(&entry.key, &entry.value);
    let (at, force) =
        request.map_or_else(|_| (fire.scheduled_at(), false), |request| (request.at, request.force));
    Some((entry.key, Asked { fire, at, force }))
}

/// The floors of all lanes.
async fn floors(store: &Store) -> Result<HashMap<(JobName, Lane), Timestamp>, StoreError> {
    let listing = store.list(keys::floors()).await?;
    let read = |entry: Entry| Some((keys::lane_of(&entry.key)?, warden::read_floor(&entry)?.0));
    Ok(listing.entries.into_iter().filter_map(read).collect())
}

/// The job as it is defined now, if it is.
async fn job_now(store: &Store, name: &JobName) -> Result<Option<Arc<Job>>, StoreError> {
    let entry = store.get(&keys::job(name)).await?;
    Ok(entry
        .and_then(|entry| Definition::decode(&entry.key, &entry.value).ok())
        .map(|found| Arc::new(found.job)))
}

fn service_end(ended: Result<anyhow::Result<()>, JoinError>) -> anyhow::Result<()> {
    match ended {
        Ok(ended) => ended,
        Err(panicked) => Err(anyhow::Error::from(panicked).context("a part of the daemon panicked")),
    }
}
