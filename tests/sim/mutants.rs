//! Every mutant, and whether the simulation catches it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use fleetcron::mutant::MUTANT;

/// Within how many seeds each has to be caught, unless fewer are asked for.
const SEEDS: u64 = 2_000;

/// Those that are let go, and why.
const HARMLESS: &[(&str, &str)] = &[
    ("contact-without-verify", "a deadline that has passed is final, so a contact too late extends nothing"),
    ("deadline-not-final", "no guard gets a contact for a lock that was not looked at since"),
    (
        "begin-without-registration",
        "the lock's revision is compared, and a taker counts anew from what it is after that",
    ),
];

#[test]
#[ignore = "takes long; `make mutants` runs it"]
fn every_planted_fault_is_caught() {
    let all = planted();
    assert!(all.len() >= 18, "{all:?}");
    let one = std::env::var(MUTANT).ok().filter(|one| !one.is_empty());
    let seeds = crate::number("FLEETCRON_SIM_SEEDS").unwrap_or(SEEDS);
    let mut uncaught = Vec::new();
    for name in all.iter().filter(|name| one.as_ref().is_none_or(|one| one == *name)) {
        let began = Instant::now();
        let caught = try_out(name, seeds);
        let seconds = began.elapsed().as_secs();
        println!("{name:<32} {:>4} s  {}", seconds, caught.as_deref().unwrap_or("NOT CAUGHT"));
        let is_let_go = HARMLESS.iter().any(|(harmless, _)| harmless == name);
        if caught.is_none() && !is_let_go {
            uncaught.push(name);
        }
    }
    assert!(uncaught.is_empty(), "not caught within {seeds} seeds: {uncaught:?}");
}

/// The first violation that it makes. A process of its own, since a fault is planted in a whole process.
fn try_out(name: &str, seeds: u64) -> Option<String> {
    let own = std::env::current_exe().expect("this program");
    let output = Command::new(own)
        .args(["--exact", "no_promise_is_broken_whatever_goes_wrong"])
        .env(MUTANT, name)
        .env("FLEETCRON_SIM_SEEDS", seeds.to_string())
        .env_remove("FLEETCRON_SIM_SEED")
        .env("RUST_BACKTRACE", "0")
        .stderr(Stdio::null())
        .output()
        .expect("it can be run again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let violation =
        text.lines().skip_while(|line| !line.starts_with("VIOLATED ")).take(2).collect::<Vec<_>>();
    (!violation.is_empty()).then(|| violation.join(" ").replace("VIOLATED ", ""))
}

/// The names in the code.
fn planted() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the source").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            let names = text.split("mutant!(\"").skip(1).filter_map(|rest| rest.split('"').next());
            found.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    found
}
