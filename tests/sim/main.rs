//! The simulation: fleets of real nodes, with their planners, races, runs and take-overs, on a simulated store and in
//! simulated time. Only processes are replaced, by timers. Everything that can go wrong does, and then the promises are
//! checked with the true time, which no node knows.
//!
//! One seed is one story, the same every time. `make sim SEEDS=2000` runs many; `FLEETCRON_SIM_SEED=7` tells one.

mod check;
mod faults;
mod fleet;
mod jobs;
mod seed;
mod truth;

use faults::Mix;
use seed::Came;

#[test]
fn the_same_seed_is_the_same_story_twice() {
    seed::catch_panics();
    for seed in [1, 2] {
        let (one, two) = (seed::run(seed, Mix::All, false), seed::run(seed, Mix::All, false));
        let differs = one.lines.iter().zip(&two.lines).find(|(one, two)| one != two);
        assert_eq!(one.hash, two.hash, "{differs:?}");
        tell(&one);
    }
}

fn tell(came: &Came) {
    println!(
        "seed {}: {} fires, {} starts, {} take-overs, {} fenced, faults {:?}, {:?}, {:?}",
        came.seed,
        came.fires,
        came.starts,
        came.take_overs,
        came.fenced,
        came.weather.count,
        came.calls,
        came.scripted
    );
    for violation in &came.violations {
        println!("  {violation}");
    }
}

#[test]
fn one_seed_that_is_asked_for() {
    let Ok(seed) = std::env::var("FLEETCRON_SIM_SEED") else { return };
    seed::catch_panics();
    let came = seed::run(seed.parse().expect("a number"), Mix::All, true);
    for line in &came.lines {
        println!("{line}");
    }
    tell(&came);
}
