//! The simulation: fleets of real nodes, with their planners, races, runs and take-overs, on a simulated store and in
//! simulated time. Only processes are replaced, by timers. Everything that can go wrong does, and then the promises are
//! checked with the true time, which no node knows.
//!
//! One seed is one story, the same every time. `make sim SEEDS=2000` runs many; `make sim SEED=7` tells one.

mod check;
mod coverage;
mod faults;
mod fleet;
mod jobs;
mod mutants;
mod seed;
mod truth;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use coverage::Coverage;
use faults::Mix;
use seed::Came;

/// What `make test` runs.
const FEW: u64 = 100;
/// How much of a story is shown: what led to a violation is near its end, or near where its fire is named.
const LAST_LINES: usize = 120;

#[test]
fn the_same_seed_is_the_same_story_twice() {
    seed::catch_panics();
    for mix in [Mix::All, Mix::Focused] {
        let (one, two) = (seed::run(1, mix, false), seed::run(1, mix, false));
        let differs = one.lines.iter().zip(&two.lines).find(|(one, two)| one != two);
        assert_eq!(one.hash, two.hash, "{differs:?}");
    }
}

/// Every third seed has the focused mix.
#[test]
fn no_promise_is_broken_whatever_goes_wrong() {
    let seeds = match number("FLEETCRON_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FLEETCRON_SIM_SEEDS").unwrap_or(FEW),
    };
    let began = Instant::now();
    let (coverage, failed) = run_all(seeds);
    println!("{coverage}\n{:.2} s a seed", began.elapsed().as_secs_f64() / coverage.seeds.max(1) as f64);
    if let Some(came) = failed {
        // Once more, with what the code has logged.
        let told = seed::run(came.seed, mix_of(came.seed), true);
        tell(&told);
        panic!("seed {}: {}", came.seed, came.violations.join("\n"));
    }
    let missing = coverage.missing();
    assert!(missing.is_empty(), "not enough has gone wrong: {missing:?}");
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")))
}

fn mix_of(seed: u64) -> Mix {
    if seed % 3 == 2 { Mix::Focused } else { Mix::All }
}

/// Runs the seeds on all cores, up to the first that fails.
fn run_all(seeds: Range<u64>) -> (Coverage, Option<Came>) {
    seed::catch_panics();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let came = Mutex::new((Coverage::default(), BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let one = seed::run(seed, mix_of(seed), false);
                    let mut came = came.lock().expect("no thread panics while it counts");
                    came.0.add(&one);
                    if !one.violations.is_empty() {
                        stop.store(true, Ordering::Relaxed);
                        came.1.insert(seed, one);
                    }
                }
            });
        }
    });
    let (coverage, mut failed) = came.into_inner().expect("all threads have ended");
    (coverage, failed.pop_first().map(|(_, came)| came))
}

/// Prints the end of a story, and what of it names a fire that a violation names.
fn tell(came: &Came) {
    let named: Vec<&str> = came
        .violations
        .iter()
        .flat_map(|violation| violation.split(|c: char| !(c.is_alphanumeric() || "/-".contains(c))))
        .filter(|word| word.contains("/20") || word.contains("m-01"))
        .map(|word| word.rsplit('/').next().unwrap_or(word))
        .collect();
    let end = came.lines.len().saturating_sub(LAST_LINES);
    let whole = number("FLEETCRON_SIM_SEED").is_some();
    for (number, line) in came.lines.iter().enumerate() {
        if whole || number >= end || named.iter().any(|name| line.contains(name)) {
            println!("{line}");
        }
    }
    println!("VIOLATED by seed {}:", came.seed);
    for violation in &came.violations {
        println!("  {violation}");
    }
}
