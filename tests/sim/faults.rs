//! What goes wrong in a simulated fleet, when, and for how long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::TimeDelta;
use fleetcron::store::keys;
use fleetcron::store::sim::{Fault, Faults};
use rand::RngExt;

use crate::fleet::Fleet;
use crate::jobs::KINDS;

/// Every kind of fault that is drawn. Those of single calls and of scripts happen by the side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    CutOff,
    AllLeasesGone,
    OneLeaseGone,
    Compaction,
    StoreStands,
    DaemonKilled,
    DaemonStopped,
    PowerFails,
    /// The machine comes back with an empty disk. Drawn with some failures of the power.
    Reimaged,
    DaemonFrozen,
    HostFrozen,
    ClockStepped,
    ClockDrifts,
    JobEdited,
    JobRemoved,
    JobPaused,
    AllPaused,
    Drained,
    GuardKilled,
    StormOfLosses,
    /// The daemon is killed while requests of it are on their way, and started again before they arrive.
    KilledBeforeItsRequests,
    /// The lease goes, and nothing is heard of the node.
    LostAndCutOff,
    /// The lease goes, and the node goes on renewing it with a leader that was.
    LedAstray,
    /// The daemon is told to stop, and cannot tell the store.
    StoppedInSilence,
    /// The daemon stops in order, and the next one is killed as soon as it has begun.
    KilledAtItsStart,
}

impl Kind {
    pub const ALL: [Kind; WEIGHTS.len()] = {
        let mut all = [Kind::CutOff; WEIGHTS.len()];
        let mut number = 0;
        while number < WEIGHTS.len() {
            all[number] = WEIGHTS[number].0;
            number += 1;
        }
        all
    };
}

/// How often each is drawn, in the mix of all and in the one that protocol.md asks for beside it.
const WEIGHTS: &[(Kind, u32, u32)] = &[
    (Kind::CutOff, 10, 0),
    (Kind::AllLeasesGone, 4, 10),
    (Kind::OneLeaseGone, 8, 20),
    (Kind::Compaction, 4, 0),
    (Kind::StoreStands, 4, 0),
    (Kind::DaemonKilled, 10, 0),
    (Kind::DaemonStopped, 6, 0),
    (Kind::PowerFails, 6, 0),
    (Kind::Reimaged, 0, 0),
    (Kind::DaemonFrozen, 8, 20),
    (Kind::HostFrozen, 6, 20),
    (Kind::ClockStepped, 4, 0),
    (Kind::ClockDrifts, 4, 0),
    (Kind::JobEdited, 5, 0),
    (Kind::JobRemoved, 4, 0),
    (Kind::JobPaused, 4, 0),
    (Kind::AllPaused, 2, 0),
    (Kind::Drained, 4, 0),
    (Kind::GuardKilled, 5, 0),
    (Kind::StormOfLosses, 6, 10),
    (Kind::KilledBeforeItsRequests, 6, 4),
    (Kind::LostAndCutOff, 5, 20),
    (Kind::LedAstray, 5, 10),
    (Kind::StoppedInSilence, 5, 4),
    (Kind::KilledAtItsStart, 5, 4),
];

/// Which faults there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    All,
    /// Only lost leases, late answers and freezes: what finds the rarest holes.
    Focused,
}

/// The end of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Heal(usize),
    ThawDaemon(usize),
    ThawHost(usize),
    Boot(usize),
    Start(usize),
    GoOn,
    JobBack(usize),
    LetGo(String),
    Calm,
    Kill(usize),
}

/// The faults of one seed.
pub struct Weather {
    mix: Mix,
    ends: Vec<(Duration, u64, End)>,
    next_number: u64,
    /// Nodes whose next daemon is killed as soon as it has begun.
    doomed: BTreeSet<usize>,
    pub count: BTreeMap<Kind, u64>,
}

impl Weather {
    pub fn new(mix: Mix) -> Weather {
        Weather { mix, ends: Vec::new(), next_number: 0, doomed: BTreeSet::new(), count: BTreeMap::new() }
    }

    /// Calls are lost and late a little at all times.
    pub fn begin(&self, fleet: &Fleet) {
        fleet.sim.set_faults(self.breeze());
    }

    fn breeze(&self) -> Faults {
        let share = match self.mix {
            Mix::All => 0.004,
            Mix::Focused => 0.0,
        };
        Faults {
            lose_request: share,
            lose_reply: share,
            delay: millis(1)..millis(20),
            late: share,
            lateness: millis(500)..millis(9_000),
        }
    }

    fn storm(&self) -> Faults {
        let share = match self.mix {
            Mix::All => 0.15,
            Mix::Focused => 0.0,
        };
        Faults {
            lose_request: share,
            lose_reply: share,
            delay: millis(1)..millis(200),
            late: 0.2,
            lateness: millis(500)..millis(15_000),
        }
    }

    /// The next moment at which a fault ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.ends.iter().map(|(at, _, _)| *at).min()
    }

    fn ends_in(&mut self, fleet: &Fleet, after: Duration, end: End) {
        self.next_number += 1;
        let at = fleet.truth.story().now() + after;
        self.ends.push((at, self.next_number, end));
    }

    /// Ends what is due to end.
    pub fn end(&mut self, fleet: &mut Fleet, now: Duration) {
        let (mut due, later) =
            std::mem::take(&mut self.ends).into_iter().partition::<Vec<_>, _>(|end| end.0 <= now);
        self.ends = later;
        due.sort_by_key(|(at, number, _)| (*at, *number));
        for (_, _, end) in due {
            self.bring_back(fleet, end);
        }
    }

    /// Ends everything at once: from here on nothing goes wrong any more.
    pub fn end_all(&mut self, fleet: &mut Fleet) {
        let mut all = std::mem::take(&mut self.ends);
        all.retain(|(_, _, end)| !matches!(end, End::Kill(_)));
        all.sort_by_key(|(at, number, _)| (*at, *number));
        for (_, _, end) in all {
            self.bring_back(fleet, end);
        }
        self.doomed.clear();
        // What the ends have put off: a start after a boot.
        self.end(fleet, Duration::MAX);
        fleet.sim.set_faults(Faults { delay: millis(1)..millis(20), ..Faults::default() });
        for number in 0..fleet.nodes.len() {
            fleet.set_clock_right(number);
        }
    }

    fn bring_back(&mut self, fleet: &mut Fleet, end: End) {
        match end {
            End::Heal(node) => fleet.heal(node),
            End::ThawDaemon(node) => fleet.thaw_daemon(node),
            End::ThawHost(node) => fleet.thaw_host(node),
            End::Boot(node) => {
                if fleet.nodes[node].host.is_none() {
                    fleet.boot(node);
                }
                self.ends_in(fleet, millis(1_500), End::Start(node));
            }
            End::Start(node) => {
                let there = &fleet.nodes[node];
                if there.frozen || there.killed_at == fleet.truth.story().now() {
                    self.ends_in(fleet, millis(1_000), End::Start(node));
                } else if there.host.is_some() && there.daemon.is_none() {
                    fleet.start(node);
                    if self.doomed.remove(&node) {
                        let soon = millis(fleet.random.random_range(20..5_000));
                        self.ends_in(fleet, soon, End::Kill(node));
                    }
                }
            }
            End::GoOn => {
                fleet.say("st", "answers again");
                fleet.sim.go_on();
            }
            End::JobBack(job) => {
                fleet.say("op", format!("{} is back", KINDS[job].name));
                fleet.jobs[job].there = true;
                fleet.sync();
            }
            End::LetGo(key) => fleet.let_go(key),
            End::Calm => fleet.sim.set_faults(self.breeze()),
            End::Kill(node) => {
                if fleet.nodes[node].daemon.is_some() {
                    fleet.crash(node);
                    self.restart(fleet, node);
                }
            }
        }
    }

    /// A daemon that has ended is started again by who watches over it.
    pub fn restart(&mut self, fleet: &mut Fleet, node: usize) {
        let after = millis(fleet.random.random_range(200..20_000));
        self.ends_in(fleet, after, End::Start(node));
    }

    /// Has something go wrong.
    pub fn strike(&mut self, fleet: &mut Fleet) {
        let kind = self.draw(fleet);
        if self.begin_fault(fleet, kind) {
            *self.count.entry(kind).or_default() += 1;
        }
    }

    fn draw(&self, fleet: &mut Fleet) -> Kind {
        let weight = |(_, all, focused): &(Kind, u32, u32)| match self.mix {
            Mix::All => *all,
            Mix::Focused => *focused,
        };
        let sum: u32 = WEIGHTS.iter().map(weight).sum();
        let mut drawn = fleet.random.random_range(0..sum);
        for entry in WEIGHTS {
            match drawn.checked_sub(weight(entry)) {
                Some(left) => drawn = left,
                None => return entry.0,
            }
        }
        unreachable!("the weights add up")
    }

    /// False: it cannot happen now.
    fn begin_fault(&mut self, fleet: &mut Fleet, kind: Kind) -> bool {
        let node = fleet.random.random_range(0..fleet.nodes.len());
        let job = fleet.random.random_range(0..KINDS.len());
        // Often about as long as a hold, sometimes much longer.
        let longest = [3_000, 20_000, 20_000, 100_000][fleet.random.random_range(0..4_usize)];
        let length = millis(fleet.random.random_range(500..longest));
        let is_up = fleet.nodes[node].daemon.as_ref().is_some_and(|daemon| !daemon.leaving && !daemon.frozen)
            && !fleet.nodes[node].frozen;
        match kind {
            Kind::CutOff => {
                // Any subset: at least this one.
                for other in 0..fleet.nodes.len() {
                    if (other == node || fleet.random.random_range(0..4) == 0) && !fleet.nodes[other].cut_off
                    {
                        fleet.cut_off(other);
                        self.ends_in(fleet, length, End::Heal(other));
                    }
                }
            }
            Kind::AllLeasesGone => {
                fleet.say("st", "all leases are gone");
                fleet.sim.revoke_all();
            }
            Kind::OneLeaseGone => {
                let key = keys::node(&fleet.nodes[node].name);
                let entries = fleet.sim.dump();
                let Some(lease) = entries.iter().find(|entry| entry.key == key).and_then(|entry| entry.lease)
                else {
                    return false;
                };
                fleet.say("st", format!("the lease of n{node} is gone"));
                fleet.sim.revoke(lease);
            }
            Kind::Compaction => {
                fleet.say("st", "is compacted");
                fleet.sim.compact();
            }
            Kind::StoreStands => {
                fleet.say("st", "answers nothing any more");
                fleet.sim.stop();
                self.ends_in(fleet, length, End::GoOn);
            }
            Kind::DaemonKilled if is_up => {
                fleet.crash(node);
                self.restart(fleet, node);
            }
            // Once it has ended it is started again.
            Kind::DaemonStopped if is_up => fleet.stop(node),
            Kind::PowerFails if fleet.nodes[node].host.is_some() => {
                fleet.power_off(node);
                if fleet.random.random_range(0..5) == 0 {
                    fleet.reimage(node);
                    *self.count.entry(Kind::Reimaged).or_default() += 1;
                }
                self.ends_in(fleet, length, End::Boot(node));
            }
            Kind::DaemonFrozen if is_up => {
                fleet.freeze_daemon(node);
                self.ends_in(fleet, length, End::ThawDaemon(node));
            }
            Kind::HostFrozen if fleet.nodes[node].host.is_some() && !fleet.nodes[node].frozen => {
                fleet.freeze_host(node);
                self.ends_in(fleet, length, End::ThawHost(node));
            }
            Kind::ClockStepped => {
                // After a large one a node plans nothing for long.
                let most = [10, 10, 60, 60, 60, 60, 60, 4_000][fleet.random.random_range(0..8_usize)];
                let by = fleet.random.random_range(-most..most);
                fleet.step_clock(node, TimeDelta::seconds(by));
            }
            Kind::ClockDrifts => {
                let millionths = fleet.random.random_range(-500..=500);
                fleet.drift(node, millionths);
            }
            Kind::JobEdited => {
                let hold = [6, 8, 10, 20, 60][fleet.random.random_range(0..5_usize)];
                let slower = fleet.random.random_range(0..20);
                (fleet.jobs[job].hold, fleet.jobs[job].slower) = (hold, slower);
                fleet.say("op", format!("edits {}: hold {hold} s", KINDS[job].name));
                fleet.sync();
            }
            Kind::JobRemoved if fleet.jobs[job].there => {
                fleet.say("op", format!("removes {}", KINDS[job].name));
                fleet.jobs[job].there = false;
                fleet.sync();
                self.ends_in(fleet, length, End::JobBack(job));
            }
            Kind::JobPaused => {
                let key = keys::paused(&KINDS[job].name.parse().expect("a job's name"));
                let until = (fleet.random.random_range(0..2) == 0).then(|| fleet.now() + length);
                fleet.hold_back(key.clone(), until);
                // One that ends by itself is taken out by a node.
                self.ends_in(fleet, length * 2, End::LetGo(key));
            }
            Kind::AllPaused => {
                fleet.hold_back(keys::all_paused(), None);
                self.ends_in(fleet, length, End::LetGo(keys::all_paused()));
            }
            Kind::Drained => {
                let key = keys::drained(&fleet.nodes[node].name);
                fleet.hold_back(key.clone(), None);
                self.ends_in(fleet, length, End::LetGo(key));
            }
            Kind::GuardKilled if is_up && watches_over_its_runs(fleet, node) => {
                let host = fleet.nodes[node].host.clone().expect("its daemon is up");
                let guards = host.guards();
                let Some(some) = guards.len().checked_sub(1) else { return false };
                let (pid, run) = &guards[fleet.random.random_range(0..=some)];
                let name = run.path().file_name().unwrap_or_default().to_string_lossy();
                fleet.say(fleet.nodes[node].name.as_str(), format!("the guard of {name} is killed"));
                host.kill_guard(*pid);
            }
            Kind::StormOfLosses => {
                fleet.sim.set_faults(self.storm());
                self.ends_in(fleet, length.max(millis(5_000)), End::Calm);
            }
            Kind::KilledBeforeItsRequests if is_up => {
                for _ in 0..6 {
                    let late = millis(fleet.random.random_range(500..8_000));
                    fleet.sim.at_next_change(fleet.nodes[node].name.as_str(), Fault::Delay(late));
                }
                let soon = millis(fleet.random.random_range(10..4_000));
                fleet.say(fleet.nodes[node].name.as_str(), "its next requests are late");
                self.ends_in(fleet, soon, End::Kill(node));
                self.ends_in(fleet, soon + millis(300), End::Start(node));
            }
            Kind::LostAndCutOff | Kind::LedAstray => {
                let key = keys::node(&fleet.nodes[node].name);
                let entries = fleet.sim.dump();
                let lease = entries.iter().find(|entry| entry.key == key).and_then(|entry| entry.lease);
                let Some(lease) = lease.filter(|_| !fleet.nodes[node].cut_off) else { return false };
                fleet.cut_off(node);
                if kind == Kind::LedAstray {
                    fleet.say("st", format!("a former leader answers n{node}"));
                    fleet.sim.heal(fleet.nodes[node].name.as_str());
                    fleet.sim.lead_astray(fleet.nodes[node].name.as_str());
                }
                fleet.say("st", format!("the lease of n{node} is gone"));
                fleet.sim.revoke(lease);
                self.ends_in(fleet, length.max(millis(10_000)), End::Heal(node));
            }
            Kind::StoppedInSilence if is_up && !fleet.nodes[node].cut_off => {
                fleet.cut_off(node);
                fleet.stop(node);
                let soon = millis(fleet.random.random_range(100..8_000));
                self.ends_in(fleet, soon, End::Kill(node));
                self.ends_in(fleet, length.max(soon + millis(10)), End::Heal(node));
            }
            Kind::KilledAtItsStart if is_up => {
                fleet.stop(node);
                self.doomed.insert(node);
                fleet.sim.set_faults(self.storm());
                self.ends_in(fleet, millis(30_000), End::Calm);
            }
            Kind::DaemonKilled
            | Kind::KilledBeforeItsRequests
            | Kind::StoppedInSilence
            | Kind::KilledAtItsStart
            | Kind::DaemonStopped
            | Kind::PowerFails
            | Kind::Reimaged
            | Kind::DaemonFrozen
            | Kind::HostFrozen
            | Kind::JobRemoved
            | Kind::GuardKilled => return false,
        }
        true
    }
}

/// A guard that is killed while no daemon watches leaves a command that nobody can stop: a limit that users are told.
fn watches_over_its_runs(fleet: &Fleet, node: usize) -> bool {
    let up_for = |daemon: &crate::fleet::Daemon| fleet.truth.story().now() - daemon.since;
    let long_enough =
        fleet.nodes[node].daemon.as_ref().is_some_and(|daemon| up_for(daemon) > Duration::from_secs(60));
    long_enough && !fleet.nodes[node].cut_off
}

pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
