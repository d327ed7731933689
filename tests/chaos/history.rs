//! What really ran, as the commands themselves wrote it down, held against the promises.
//!
//! A line is written while the command lives, so what lies between the first and the last line of a run it did live.
//! Two runs of which that overlaps were alive together; the other way round nothing follows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::jobs::Kind;

/// One start of a command.
#[derive(Debug)]
struct Run {
    job: String,
    fire: String,
    attempt: u32,
    token: i64,
    node: String,
    /// Seconds since boot.
    first: f64,
    last: f64,
    ended: bool,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { job, fire, attempt, token, node, first, last, ended } = self;
        let end = if *ended { "" } else { " or later" };
        write!(f, "{job}/{fire} attempt {attempt} token {token} on {node} from {first:.2} to {last:.2}{end}")
    }
}

pub struct Checked {
    pub starts: usize,
    pub second_attempts: usize,
    pub cut_short: usize,
    pub violations: Vec<String>,
}

/// Checks all runs of these kinds. What a job allows never changes while it is ill-treated.
pub fn check(text: &str, kinds: &[&Kind]) -> Checked {
    let kinds: BTreeMap<&str, &Kind> = kinds.iter().map(|kind| (kind.name.as_str(), *kind)).collect();
    let mut violations = Vec::new();
    let runs = read(text, &mut violations);
    let mut lanes: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    let mut fires: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    for run in &runs {
        let lane = lane(run, kinds[run.job.as_str()]);
        fires.entry(format!("{lane}/{}", run.fire)).or_default().push(run);
        lanes.entry(lane).or_default().push(run);
    }
    for runs in fires.values() {
        one_at_a_time(runs, &mut violations);
        let attempts: BTreeSet<u32> = runs.iter().map(|run| run.attempt).collect();
        if attempts.len() < runs.len() {
            violations.push(format!("an attempt started twice: {}", told(runs)));
        }
        if kinds[runs[0].job.as_str()].at_most_once && runs.len() > 1 {
            violations.push(format!("at most once, and it started again: {}", told(runs)));
        }
    }
    for runs in lanes.values().filter(|runs| !kinds[runs[0].job.as_str()].allow) {
        one_at_a_time(runs, &mut violations);
    }
    Checked {
        starts: runs.len(),
        second_attempts: runs.iter().filter(|run| run.attempt > 1).count(),
        cut_short: runs.iter().filter(|run| !run.ended).count(),
        violations,
    }
}

fn lane(run: &Run, kind: &Kind) -> String {
    match kind.everywhere {
        true => format!("{}/@{}", run.job, run.node),
        false => run.job.clone(),
    }
}

/// No two overlap, and the tokens grow with the starts.
fn one_at_a_time(runs: &[&Run], violations: &mut Vec<String>) {
    let mut runs = runs.to_vec();
    runs.sort_by(|one, two| one.first.total_cmp(&two.first).then(one.token.cmp(&two.token)));
    // The one that lived longest of all before.
    let mut longest: Option<&Run> = None;
    for run in runs {
        if let Some(before) = longest {
            if run.first < before.last {
                violations.push(format!("two ran at once: {}", told(&[before, run])));
            }
            if run.token <= before.token {
                violations.push(format!("a token does not grow: {}", told(&[before, run])));
            }
        }
        if longest.is_none_or(|before| run.last > before.last) {
            longest = Some(run);
        }
    }
}

fn told(runs: &[&Run]) -> String {
    runs.iter().map(|run| run.to_string()).collect::<Vec<_>>().join("; ")
}

fn read(text: &str, violations: &mut Vec<String>) -> Vec<Run> {
    let mut runs: BTreeMap<(String, i64), Run> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [word, job, fire, attempt, token, node, at] = words[..] else {
            violations.push(format!("a torn line: {line:?}"));
            continue;
        };
        let (Ok(attempt), Ok(token), Ok(at)) = (attempt.parse(), token.parse(), at.parse()) else {
            violations.push(format!("a line without its numbers: {line:?}"));
            continue;
        };
        let key = (format!("{job}/{fire}/{node}"), token);
        if let Some(run) = runs.get_mut(&key) {
            if word == "start" {
                violations.push(format!("started twice with one token: {line:?}, {run}"));
            }
            run.last = at;
            run.ended |= word == "end";
            continue;
        }
        let [job, fire, node] = [job, fire, node].map(str::to_owned);
        runs.insert(key, Run { job, fire, attempt, token, node, first: at, last: at, ended: false });
    }
    runs.into_values().collect()
}
