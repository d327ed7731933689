//! How long a fire waits for another node when its own is gone, or is drained.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use chrono::TimeDelta;
use fleetcron::clock::{Clock, since_boot};
use rand::RngExt;

use crate::median;
use crate::nodes::{Fleet, lateness, long};

/// From the death of all that runs of a node to the start of the next attempt on another.
pub async fn takeover() {
    let rounds = if long() { 20 } else { 5 };
    for (hold, wanted) in [(6, (12, 14)), (10, (16, 18))] {
        let mut fleet = Fleet::start(2, 64).await;
        let marks = fleet.path("marks");
        let over = fleet.path("over");
        let command = format!(
            "read -r up rest </proc/uptime; echo $FLEETCRON_FIRE $FLEETCRON_ATTEMPT $FLEETCRON_NODE $up >>{}; \
             until [ -e {}-$FLEETCRON_FIRE ]; do sleep 0.2; done",
            marks.display(),
            over.display()
        );
        fleet.sync(&format!("[jobs.held]\nschedule = '@yearly'\nhold = '{hold}s'\nkill_after = '1s'\ncommand = '{command}'\noverlap = 'allow'\n")).await;
        let mut took = Vec::new();
        for _ in 0..rounds {
            let fire = fleet.ask("held").await.id.to_string();
            let (node, _) = mark(&marks, &fire, 1).await;
            // Anywhere between two contacts.
            let pause = rand::rng().random_range(1_000..2_500);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let lost = fleet.nodes.iter_mut().find(|one| one.name == node).expect("it is ours");
            let killed = since_boot().as_secs_f64();
            lost.kill_host();
            let (other, at) = mark(&marks, &fire, 2).await;
            assert_ne!(node, other, "it was killed");
            took.push(at - killed);
            std::fs::write(format!("{}-{fire}", over.display()), "").expect("a file");
            fleet.nodes.iter_mut().find(|one| one.name == node).expect("it is ours").start_again();
            fleet.wait_until_registered(2).await;
        }
        let most = took.iter().copied().fold(0.0, f64::max);
        println!(
            "take-over, hold {hold} s, {rounds} times: median {:.1} s (wanted: at most {}), longest {most:.1} s (wanted: at most {})",
            median(took),
            wanted.0,
            wanted.1
        );
        let text = std::fs::read_to_string(&marks).expect("marks");
        assert_eq!(text.lines().count(), 2 * rounds, "something ran twice: {text}");
    }
}

/// Waits until an attempt has begun. Where, and when since boot, to a hundredth.
async fn mark(marks: &Path, fire: &str, attempt: u32) -> (String, f64) {
    loop {
        let text = std::fs::read_to_string(marks).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(&format!("{fire} {attempt} ")));
        if let Some(line) = line {
            let words: Vec<&str> = line.split(' ').collect();
            return (words[2].to_owned(), words[3].parse().expect("a time"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Fires that come due after `drain` was answered, and would have been the drained node's: how late the latest starts.
pub async fn drained() {
    const JOBS: usize = 20;
    let rounds = if long() { 20 } else { 5 };
    let fleet = Fleet::start(3, 64).await;
    fleet.sync(&crate::job_texts(JOBS, "schedule = '@every 2s'\ncommand = 'true'")).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let operator = |words: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_fleetcron"))
            .args(["--store", &fleet.address()])
            .args(words)
            .output()
            .expect("it runs");
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let mut latest = Vec::new();
    for round in 0..rounds {
        let node = &fleet.nodes[round % 3].name;
        operator(&["drain", node]);
        let from = Clock::system().now();
        tokio::time::sleep(Duration::from_millis(4_500)).await;
        let records = fleet.records(from, from + TimeDelta::seconds(3)).await;
        assert!(records.len() >= JOBS, "all of an instant have run");
        let elsewhere = |record: &fleetcron::record::Record| {
            record.run.as_ref().is_none_or(|run| run.node.as_str() != node)
        };
        assert!(records.iter().all(elsewhere), "a drained node has run something");
        latest.push(records.iter().filter_map(lateness).fold(0.0, f64::max));
        operator(&["undrain", node]);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let most = latest.iter().copied().fold(0.0, f64::max);
    println!(
        "due after `drain` was answered, {JOBS} at once, {rounds} times: the latest starts {:.2} s after its instant, at most {most:.2} s (wanted: at most 0.5)",
        median(latest)
    );
}
