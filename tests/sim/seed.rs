//! One seed: a fleet, half an hour of faults, a calm, and the promises checked.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleetcron::guard::FolderName;
use fleetcron::store::keys;
use fleetcron::store::sim::Counts;
use fleetcron::store::values::{self, Lock, LockState, Presence};
use rand::RngExt;
use tokio::time::sleep;

use crate::check::{self, Violation};
use crate::faults::{Mix, Weather, millis};
use crate::fleet::Fleet;
use crate::fleet::at_first;
use crate::jobs::KINDS;
use crate::truth::{Scripted, Truth};

/// How long things go wrong: so long, and until there was something to go wrong.
const STORMY: Duration = Duration::from_secs(30 * 60);
const LONGEST_STORM: Duration = Duration::from_secs(60 * 60);
const ENOUGH_STARTS: usize = 110;
/// How long everything may take to be done once nothing goes wrong any more: a command of five minutes, the longer hold
/// of a daemon that stopped, and the rounds in which orphans are looked for.
const CALM: Duration = Duration::from_secs(25 * 60);

/// What came of a seed.
pub struct Came {
    pub seed: u64,
    pub violations: Vec<Violation>,
    pub hash: u64,
    /// The story, if anything was violated or it was to be told.
    pub lines: Vec<String>,
    pub weather: Weather,
    pub calls: Counts,
    pub scripted: Scripted,
    /// Fires that are decided.
    pub fires: u64,
    pub starts: u64,
    pub take_overs: u64,
    /// Results kept beside the record of somebody else.
    pub fenced: u64,
}

thread_local! {
    /// The story of the seed that this thread is at, for what the code logs; and the panics of its tasks.
    static TELLING: RefCell<Option<Truth>> = const { RefCell::new(None) };
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// What a task's panic says is a violation, wherever it is caught.
pub fn catch_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            before(panic);
        }));
    });
}

/// Runs a seed. `told`: with what the code logs in its story.
pub fn run(seed: u64, mix: Mix, told: bool) -> Came {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without any I/O");
    PANICS.take();
    let came = match told {
        true => tracing::subscriber::with_default(logs(), || runtime.block_on(seed_of(seed, mix))),
        false => runtime.block_on(seed_of(seed, mix)),
    };
    TELLING.take();
    came
}

fn logs() -> impl tracing::Subscriber + Send + Sync {
    struct Lines;
    impl std::io::Write for Lines {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            TELLING.with_borrow(|truth| {
                // What is logged while the story is being told comes from the telling.
                if let Some(truth) = truth {
                    truth.story().log(String::from_utf8_lossy(text).trim_end());
                }
            });
            Ok(text.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .without_time()
        .with_ansi(false)
        .with_writer(|| Lines)
        .finish()
}

async fn seed_of(seed: u64, mix: Mix) -> Came {
    let nodes = 3 + (seed % 3) as usize;
    let mut fleet = Fleet::new(seed, nodes);
    TELLING.set(Some(fleet.truth.clone()));
    let mut weather = Weather::new(mix);
    let mut violations = Vec::new();
    fleet.sync();
    fleet.acts_done().await;
    for number in 0..nodes {
        fleet.boot(number);
        fleet.start(number);
    }
    sleep(Duration::from_secs(5)).await;
    weather.begin(&fleet);
    stormy(&mut fleet, &mut weather, &mut violations).await;
    calm(&mut fleet, &mut weather, &mut violations).await;
    judge(seed, fleet, weather, violations)
}

/// Something goes wrong every now and then, and fires are asked for by hand.
async fn stormy(fleet: &mut Fleet, weather: &mut Weather, violations: &mut Vec<Violation>) {
    let mut next_fault = Duration::from_secs(10);
    let mut next_ask = Duration::from_secs(20);
    let (mut next_look, mut unaware) = (LOOK_AT_LOCKS_EVERY, Unaware::default());
    loop {
        let now = fleet.truth.story().now();
        let is_enough = fleet.truth.story().runs.len() >= ENOUGH_STARTS;
        if now >= if is_enough { STORMY } else { LONGEST_STORM } {
            return;
        }
        weather.end(fleet, now);
        if now >= next_fault {
            weather.strike(fleet);
            next_fault = now + millis(fleet.random.random_range(3_000..45_000));
        }
        if now >= next_ask {
            let any = KINDS[fleet.random.random_range(0..KINDS.len())].name;
            let job = if fleet.random.random_range(0..3) == 0 { any } else { "hand" };
            fleet.ask(job);
            next_ask = now + millis(fleet.random.random_range(5_000..60_000));
        }
        watch_daemons(fleet, weather, violations).await;
        if now >= next_look {
            next_look = now + LOOK_AT_LOCKS_EVERY;
            violations.extend(unaware.look(fleet, now));
        }
        let mut until = next_fault.min(next_ask).min(now + Duration::from_secs(1));
        until = weather.next_end().map_or(until, |end| until.min(end));
        sleep(until.saturating_sub(now).max(millis(1))).await;
    }
}

/// Locks of nodes that work and seem to know nothing of them: nobody else would ever see to those.
#[derive(Default)]
struct Unaware {
    /// By key and revision.
    since: BTreeMap<(String, i64), Duration>,
}

const LOOK_AT_LOCKS_EVERY: Duration = Duration::from_secs(10);
/// How long a claim may take to be started, with all that can be in its way.
const LONGEST_WAY: Duration = Duration::from_secs(180);

impl Unaware {
    fn look(&mut self, fleet: &Fleet, now: Duration) -> Vec<Violation> {
        let files: BTreeSet<String> = fleet
            .nodes
            .iter()
            .flat_map(|node| {
                fleet.run_files_of(node).into_iter().map(move |file| format!("{}:{file}", node.name))
            })
            .collect();
        let store = fleet.sim.dump();
        let lives = |lock: &Lock| {
            let presence = store.iter().find(|entry| entry.key == keys::node(&lock.node));
            let presence =
                presence.and_then(|entry| values::decode::<Presence>(&entry.key, &entry.value).ok());
            presence.is_some_and(|presence| presence.node_start == lock.node_start)
        };
        let mut there = BTreeMap::new();
        for entry in store.iter().filter(|entry| entry.key.starts_with("locks/")) {
            let lock = values::decode::<Lock>(&entry.key, &entry.value);
            let (Some(fire), Ok(lock)) = (keys::fire_of(&entry.key), lock) else { continue };
            if !lives(&lock) {
                continue;
            }
            let name = FolderName { fire, attempt: lock.attempt };
            let holder = fleet.nodes.iter().find(|node| node.name == lock.node);
            let works = holder.is_some_and(|node| node.works());
            if works && lock.state == LockState::Held && !files.contains(&format!("{}:{name}.run", lock.node))
            {
                let key = (entry.key.clone(), entry.mod_revision.0);
                let since = self.since.get(&key).copied().unwrap_or(now);
                there.insert(key, since);
            }
        }
        self.since = there;
        let long = self.since.iter().filter(|(_, since)| now - **since >= LONGEST_WAY);
        long.map(|((key, _), _)| format!("{key} is not seen to by its holder")).collect()
    }
}

/// No daemon may end but by what is done to it.
async fn watch_daemons(fleet: &mut Fleet, weather: &mut Weather, violations: &mut Vec<Violation>) {
    for ended in fleet.reap().await {
        let node = match ended {
            Ok(node) => node,
            // Whoever watches over a daemon starts it again when it could not read what it has to begin with.
            Err((node, why)) if why.contains("no answer within") => node,
            Err((node, why)) => {
                violations.push(format!("the daemon of n{node} could not go on: {why}"));
                node
            }
        };
        weather.restart(fleet, node);
    }
}

/// Everything works again. What was begun is brought to its end, and nothing new begins.
async fn calm(fleet: &mut Fleet, weather: &mut Weather, violations: &mut Vec<Violation>) {
    fleet.say("", "nothing goes wrong any more");
    weather.end_all(fleet);
    for job in &mut fleet.jobs {
        job.there = true;
    }
    fleet.acts_done().await;
    fleet.sync();
    // What the operator put came later than its end, here and there.
    for entry in fleet.sim.dump() {
        if entry.key.starts_with("paused/") || entry.key.starts_with("drained/") {
            fleet.let_go(entry.key);
        }
    }
    fleet.acts_done().await;
    let until = fleet.truth.story().now() + CALM;
    let mut paused = false;
    loop {
        let now = fleet.truth.story().now();
        weather.end(fleet, now);
        watch_daemons(fleet, weather, violations).await;
        let there = fleet.sim.dump();
        let any = |prefix: &str| there.iter().any(|entry| entry.key.starts_with(prefix));
        let back = fleet.nodes.iter().all(|node| node.daemon.is_some() && any(&keys::node(&node.name)));
        // A little while of normal work, in which all that was asked for is done.
        let done = now + CALM >= until + Duration::from_secs(90) && !any("requests/");
        if !paused && back && (done || now + CALM >= until + CALM / 2) {
            fleet.hold_back(keys::all_paused(), None);
            paused = true;
        }
        if paused && !any("locks/") && !any("requests/") && fleet.run_files().is_empty() {
            return;
        }
        if now >= until {
            for left in there.iter().filter(|entry| entry.key.starts_with("requests/")) {
                violations.push(format!("{} is left", left.key));
            }
            for file in fleet.run_files() {
                violations.push(format!("{} is left", file.file_name().unwrap_or_default().display()));
            }
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
}

fn judge(seed: u64, fleet: Fleet, weather: Weather, mut violations: Vec<Violation>) -> Came {
    let there = fleet.sim.dump();
    let mut story = fleet.truth.story();
    violations.extend(check::check(&story.runs, &there, at_first() + story.now(), fleet.was_ahead));
    violations.extend(PANICS.take().into_iter().map(|panic| format!("a task panicked: {panic}")));
    for entry in there.iter().filter(|entry| is_told(&entry.key)) {
        story.also((&entry.key, &entry.value, entry.create_revision.0, entry.mod_revision.0));
    }
    let moved = |run: &crate::truth::Run| {
        story
            .runs
            .iter()
            .any(|other| other.fire == run.fire && other.attempt < run.attempt && other.node != run.node)
    };
    let started_over = story.runs.iter().filter(|run| moved(run)).count();
    let late = there.iter().filter(|entry| entry.key.contains("/late-")).count();
    let fires = there.iter().filter(|entry| keys::fire_of(&entry.key).is_some()).count();
    Came {
        seed,
        hash: story.hash(),
        lines: story.lines().to_vec(),
        calls: fleet.sim.counts(),
        scripted: story.scripted,
        fires: fires as u64,
        starts: story.runs.len() as u64,
        take_overs: started_over as u64,
        fenced: late as u64,
        weather,
        violations,
    }
}

/// What every run of a seed has alike. Acts and sources have ids that are new every time.
fn is_told(key: &str) -> bool {
    !key.starts_with("acts/") && !key.starts_with("sources/")
}
