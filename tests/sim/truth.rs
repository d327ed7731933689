//! What truly happened, by true time: more than any node of the fleet can know.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fleetcron::fire::Fire;
use fleetcron::guard::sim::{Happened, Script, Stage};
use fleetcron::guard::{FolderName, RunFolder, Spec};
use fleetcron::node::NodeStart;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use crate::jobs;

/// The true story of a fleet. Clones are the same.
#[derive(Clone)]
pub struct Truth(Arc<Mutex<Story>>);

pub struct Story {
    began: Instant,
    random: StdRng,
    /// In the order in which their commands started.
    pub runs: Vec<Run>,
    /// The command of each run file that has not ended: the node's number and the file's name.
    running: BTreeMap<(usize, String), usize>,
    /// Since when nodes stand still.
    still: BTreeMap<usize, Duration>,
    pub scripted: Scripted,
    /// What happened, to be read by a person.
    lines: Vec<String>,
    hash: DefaultHasher,
}

/// What of the scripts is a fault.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scripted {
    pub slow_guards: u64,
    pub outlive_hold: u64,
    pub obstinate: u64,
}

/// One command, from its start to its end.
#[derive(Debug, Clone)]
pub struct Run {
    pub node: usize,
    pub node_start: NodeStart,
    pub fire: Fire,
    pub attempt: u32,
    pub token: i64,
    pub began: Duration,
    /// None: it still runs.
    pub ended: Option<Duration>,
    /// How it ended is on a disk that lives.
    pub noted: bool,
    /// When it stood still with its machine.
    pub still: Vec<(Duration, Duration)>,
}

impl Truth {
    pub fn new(seed: u64) -> Truth {
        let story = Story {
            began: Instant::now(),
            // Not the numbers of the store, nor those of the faults.
            random: StdRng::seed_from_u64(seed ^ 0x5C21_9700),
            runs: Vec::new(),
            running: BTreeMap::new(),
            still: BTreeMap::new(),
            scripted: Scripted::default(),
            lines: Vec::new(),
            hash: DefaultHasher::new(),
        };
        Truth(Arc::new(Mutex::new(story)))
    }

    /// The part of one node's machine in it.
    pub fn stage(&self, node: usize) -> Arc<dyn Stage> {
        Arc::new(OfNode { node, truth: self.clone() })
    }

    pub fn story(&self) -> MutexGuard<'_, Story> {
        self.0.lock().expect("no check panics while it holds the story")
    }

    pub fn say(&self, who: &str, what: impl std::fmt::Display) {
        self.story().say(who, what);
    }

    /// All commands of this node stand still from now on.
    pub fn freeze(&self, node: usize) {
        let mut story = self.story();
        let now = story.now();
        story.still.insert(node, now);
    }

    pub fn thaw(&self, node: usize) {
        let mut story = self.story();
        let now = story.now();
        let Some(since) = story.still.remove(&node) else { return };
        let running: Vec<usize> = story
            .running
            .range((node, String::new())..(node + 1, String::new()))
            .map(|(_, run)| *run)
            .collect();
        for run in running {
            story.runs[run].still.push((since, now));
        }
    }
}

impl Story {
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn say(&mut self, who: &str, what: impl std::fmt::Display) {
        let at = self.now();
        let line = format!("{:>5}.{:03} {who:<3} {what}", at.as_secs(), at.subsec_millis());
        line.hash(&mut self.hash);
        self.lines.push(line);
    }

    /// What a log line of the code itself says. It is no part of the hash.
    pub fn log(&mut self, text: &str) {
        let at = self.now();
        self.lines.push(format!("{:>5}.{:03}     {text}", at.as_secs(), at.subsec_millis()));
    }

    /// What was noted on that node's disk need not be known any more.
    pub fn disk_is_gone(&mut self, node: usize) {
        for run in self.runs.iter_mut().filter(|run| run.node == node) {
            run.noted = false;
        }
    }

    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The same for two runs of one seed.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// A part of the story that is not told line by line.
    pub fn also(&mut self, part: impl Hash) {
        part.hash(&mut self.hash);
    }

    fn started(&mut self, node: usize, name: String, spec: &Spec) {
        let FolderName { fire, attempt } = name.parse().expect("a run file's name");
        let owner = spec.owner.as_ref().expect("every run of this release says whose it is");
        self.say(&format!("n{node}"), format!("{fire} attempt {attempt} starts, token {}", owner.token));
        let run = Run {
            node,
            node_start: owner.node_start,
            fire,
            attempt,
            token: owner.token,
            began: self.now(),
            ended: None,
            noted: false,
            still: Vec::new(),
        };
        self.running.insert((node, name), self.runs.len());
        self.runs.push(run);
    }

    fn ended(&mut self, node: usize, name: String) {
        let Some(run) = self.running.remove(&(node, name)) else { return };
        let now = self.now();
        // One that ends in its sleep ends where it fell asleep.
        if let Some(since) = self.still.get(&node) {
            self.runs[run].still.push((*since, now));
        }
        self.runs[run].ended = Some(now);
        let what = format!("{} attempt {} is over", self.runs[run].fire, self.runs[run].attempt);
        self.say(&format!("n{node}"), what);
    }
}

struct OfNode {
    node: usize,
    truth: Truth,
}

impl Stage for OfNode {
    fn script(&self, run: &RunFolder) -> Script {
        let name: FolderName = name_of(run).parse().expect("a run file's name");
        let mut story = self.truth.story();
        let story = &mut *story;
        let random = &mut story.random;
        let kind = jobs::kind_of(&name.fire.job);
        let slow_start = match random.random_range(0..100) {
            0..90 => millis(random, 1, 50),
            90..98 => millis(random, 1_000, 6_000),
            _ => millis(random, 6_000, 90_000),
        };
        let length = millis(random, kind.length.0, kind.length.1);
        let heeds_term = (random.random_range(0..10) < 7).then(|| millis(random, 1, 3_000));
        let exit_code = i32::from(random.random_range(0..5) == 0);
        story.scripted.slow_guards += u64::from(slow_start > Duration::from_secs(1));
        story.scripted.outlive_hold += u64::from(length > kind.hold);
        story.scripted.obstinate += u64::from(heeds_term.is_none());
        Script { slow_start, length, exit_code, heeds_term }
    }

    fn happened(&self, run: &RunFolder, what: Happened) {
        let name = name_of(run);
        let mut story = self.truth.story();
        match what {
            Happened::Started(spec) => story.started(self.node, name, &spec),
            Happened::Ended => story.ended(self.node, name),
            Happened::Noted => {
                let FolderName { fire, attempt } = name.parse().expect("a run file's name");
                let node = self.node;
                let newest = story
                    .runs
                    .iter_mut()
                    .rev()
                    .find(|run| run.node == node && run.fire == fire && run.attempt == attempt);
                // Of one that never started there is nothing to lose.
                if let Some(run) = newest {
                    run.noted = true;
                }
            }
        }
    }
}

fn name_of(run: &RunFolder) -> String {
    run.path().file_name().and_then(|name| name.to_str()).expect("run files have names").to_owned()
}

fn millis(random: &mut StdRng, least: u64, most: u64) -> Duration {
    Duration::from_millis(random.random_range(least..most))
}
