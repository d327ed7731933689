//! What goes wrong, and when: worked out beforehand, from a seed alone.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::jobs::JOBS;
use crate::world::{Host, MEMBERS, NODES, Node};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9` of the daemon; it is started again at the end.
    KillDaemon(usize),
    /// All that runs on a node's machine is killed.
    KillHost(usize),
    /// The daemon stands still; its guards do not.
    FreezeDaemon(usize),
    /// Everything stands still, as when a machine is suspended.
    FreezeHost(usize),
    /// A guard is killed, and its daemon lives. `pick` says which.
    KillGuard {
        node: usize,
        pick: usize,
    },
    /// A guard and its command stand still.
    FreezeRun {
        node: usize,
        pick: usize,
    },
    /// An orderly stop, and a start later on.
    StopDaemon(usize),
    /// An orderly stop, and at once a start of another build.
    Upgrade(usize),
    FillDisk(usize),
    KillMember(usize),
    FreezeMember(usize),
    /// Whichever leads at that time, for eight seconds: when it wakes it revokes leases.
    FreezeLeader,
    /// What one sends to the other does not arrive; with `both` neither does the answer.
    Cut {
        from: Host,
        to: Host,
        both: bool,
    },
    /// A node and all of etcd.
    CutOff {
        node: usize,
        both: bool,
    },
    SlowLinks {
        node: usize,
        millis: u32,
    },
    /// Connections break, and are made again.
    ResetLinks(usize),
    Compact,
    Defragment(usize),
    Pause {
        job: usize,
    },
    PauseAll,
    Drain(usize),
    /// How often it comes, or its hold.
    EditJob {
        job: usize,
        slower: u32,
        hold: u32,
    },
    DisableJob(usize),
    RemoveJob(usize),
    /// So many jobs are asked for by hand.
    Start {
        first: usize,
        jobs: usize,
    },
}

/// A fault, and from when to when it is there.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub from: Duration,
    pub to: Duration,
    pub fault: Fault,
}

/// What a fault needs for itself while it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Daemon(usize),
    Member(usize),
    Link(Host, Host),
    Relay(usize),
    Disk(usize),
    Job(usize),
    AllJobs,
    Drain(usize),
}

/// How many kinds there are to be dealt.
const KINDS: usize = 25;

/// Faults up to this time. Every kind is dealt before one is dealt again.
pub fn plan(seed: u32, length: Duration) -> Vec<Step> {
    let mut random = StdRng::seed_from_u64(seed.into());
    let mut taken: BTreeMap<Place, Duration> = BTreeMap::new();
    let mut deck = Vec::new();
    let mut steps = Vec::new();
    let mut now = Duration::from_secs(5);
    while now < length {
        let kind = match deck.pop() {
            Some(kind) => kind,
            None => {
                deck = shuffled(&mut random);
                continue;
            }
        };
        let (fault, lasts) = draw(kind, &mut random);
        let places = places(fault);
        if places.iter().all(|place| taken.get(place).is_none_or(|until| *until < now)) {
            let to = now + lasts;
            places.into_iter().for_each(|place| _ = taken.insert(place, to + Duration::from_secs(1)));
            steps.push(Step { from: now, to, fault });
        }
        now += millis(&mut random, 300, 3_500);
    }
    steps
}

fn shuffled(random: &mut StdRng) -> Vec<usize> {
    let mut deck: Vec<usize> = (0..KINDS).collect();
    for last in (1..KINDS).rev() {
        deck.swap(last, random.random_range(0..=last));
    }
    deck
}

fn millis(random: &mut StdRng, least: u64, most: u64) -> Duration {
    Duration::from_millis(random.random_range(least..most))
}

/// A time for something to be away: shorter than the lease, about as long as it, or longer than short holds.
fn away(random: &mut StdRng) -> Duration {
    match random.random_range(0..4) {
        0 | 1 => millis(random, 300, 4_000),
        2 => millis(random, 4_000, 9_000),
        _ => millis(random, 9_000, 25_000),
    }
}

fn draw(kind: usize, random: &mut StdRng) -> (Fault, Duration) {
    let node = random.random_range(0..NODES);
    let member = random.random_range(0..MEMBERS);
    let job = random.random_range(0..JOBS);
    let both = random.random_range(0..2) == 0;
    let pick = random.random_range(0..1000);
    let away = away(random);
    let at_once = Duration::ZERO;
    match kind {
        0 => (Fault::KillDaemon(node), away),
        1 => (Fault::KillHost(node), away),
        2 => (Fault::FreezeDaemon(node), away),
        3 => (Fault::FreezeHost(node), away),
        4 => (Fault::KillGuard { node, pick }, at_once),
        5 => (Fault::FreezeRun { node, pick }, away),
        6 => (Fault::StopDaemon(node), away),
        7 => (Fault::Upgrade(node), Duration::from_secs(3)),
        8 => (Fault::FillDisk(node), away),
        9 => (Fault::KillMember(member), away),
        10 => (Fault::FreezeMember(member), away),
        11 => (Fault::FreezeLeader, Duration::from_secs(8)),
        12 => (Fault::Cut { from: Host::Node(node), to: Host::Member(member), both }, away),
        13 => (Fault::Cut { from: Host::Member(member), to: Host::Node(node), both: false }, away),
        14 => {
            let other = (member + 1 + pick % (MEMBERS - 1)) % MEMBERS;
            (Fault::Cut { from: Host::Member(member), to: Host::Member(other), both }, away)
        }
        15 => (Fault::CutOff { node, both }, away),
        16 => {
            let behind: Vec<usize> = (0..NODES).filter(|node| Node::has_relay(*node)).collect();
            let millis = [80, 300, 900, 2_500][pick % 4];
            (Fault::SlowLinks { node: behind[node % behind.len()], millis }, away)
        }
        17 => {
            let behind: Vec<usize> = (0..NODES).filter(|node| Node::has_relay(*node)).collect();
            (Fault::ResetLinks(behind[node % behind.len()]), at_once)
        }
        18 => (if both { Fault::Compact } else { Fault::Defragment(member) }, at_once),
        19 => (if pick % 4 == 0 { Fault::PauseAll } else { Fault::Pause { job } }, away),
        20 => (Fault::Drain(node), away),
        21 => {
            let (slower, hold) = (random.random_range(0..8), [6, 10, 20][pick % 3]);
            (Fault::EditJob { job, slower, hold }, at_once)
        }
        22 => (Fault::DisableJob(job), away),
        23 => (Fault::RemoveJob(job), away),
        _ => (Fault::Start { first: job, jobs: 1 + pick % 6 }, at_once),
    }
}

fn places(fault: Fault) -> Vec<Place> {
    match fault {
        Fault::KillDaemon(node)
        | Fault::KillHost(node)
        | Fault::FreezeDaemon(node)
        | Fault::FreezeHost(node)
        | Fault::FreezeRun { node, .. }
        | Fault::KillGuard { node, .. }
        | Fault::StopDaemon(node)
        | Fault::Upgrade(node) => vec![Place::Daemon(node)],
        Fault::FillDisk(node) => vec![Place::Disk(node)],
        Fault::KillMember(member) | Fault::FreezeMember(member) | Fault::Defragment(member) => {
            vec![Place::Member(member)]
        }
        Fault::FreezeLeader => (0..MEMBERS).map(Place::Member).collect(),
        Fault::Cut { from, to, both } => {
            let there = Place::Link(from, to);
            if both { vec![there, Place::Link(to, from)] } else { vec![there] }
        }
        Fault::CutOff { node, both } => {
            let cut = |member| Fault::Cut { from: Host::Node(node), to: Host::Member(member), both };
            (0..MEMBERS).flat_map(|member| places(cut(member))).collect()
        }
        Fault::SlowLinks { node, .. } | Fault::ResetLinks(node) => vec![Place::Relay(node)],
        Fault::Compact => Vec::new(),
        Fault::Pause { job }
        | Fault::EditJob { job, .. }
        | Fault::DisableJob(job)
        | Fault::RemoveJob(job) => {
            vec![Place::Job(job)]
        }
        Fault::PauseAll => vec![Place::AllJobs],
        Fault::Drain(node) => vec![Place::Drain(node)],
        Fault::Start { .. } => Vec::new(),
    }
}

impl Fault {
    /// The kind, for the count of what was done.
    pub fn kind(self) -> String {
        let text = format!("{self:?}");
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:7.2}..{:7.2} {:?}", self.from.as_secs_f64(), self.to.as_secs_f64(), self.fault)
    }
}
