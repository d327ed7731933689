//! Many fires at once: a thousand in one second, a hundred every second, and a hundred thousand jobs.

use std::process::Stdio;
use std::time::{Duration, Instant};

use chrono::{DurationRound, TimeDelta};
use fleetcron::clock::Clock;
use fleetcron::schedule::Timestamp;
use fleetcron::store::keys;

use crate::median;
use crate::nodes::{Fleet, lateness, sleep_until};

/// A thousand jobs due at one instant on three nodes: when the last of them starts.
pub async fn thousand(floor: f64) {
    const JOBS: usize = 1000;
    const EVERY: i64 = 20;
    let fleet = Fleet::start(3, 64).await;
    fleet.sync(&crate::job_texts(JOBS, &format!("schedule = '@every {EVERY}s'\ncommand = 'true'"))).await;
    let mut last = Vec::new();
    while last.len() < 3 {
        let at = next(EVERY);
        sleep_until(at + TimeDelta::seconds(EVERY - 2)).await;
        let late: Vec<f64> =
            fleet.records(at, at + TimeDelta::seconds(1)).await.iter().filter_map(lateness).collect();
        // The first one may have come while the jobs were synced.
        if late.len() == JOBS {
            last.push(late.into_iter().fold(0.0, f64::max));
        }
        fleet.forget_records().await;
    }
    let last = median(last);
    println!("{JOBS} jobs due in one second, three nodes, one etcd: the last starts after {last:.2} s");
    println!("last start / ({JOBS} ÷ floor): {:.2} (wanted: at most 2.5)", last / (JOBS as f64 / floor));
}

/// The next instant of `@every`, if that is not too near.
fn next(every: i64) -> Timestamp {
    let soon = Clock::system().now() + TimeDelta::seconds(1);
    soon.duration_trunc(TimeDelta::seconds(every)).expect("a whole second") + TimeDelta::seconds(every)
}

/// A hundred jobs due every second on one node, beside a loop that only waits and spawns.
pub async fn late() {
    const JOBS: usize = 100;
    const SECONDS: i64 = 15;
    let mut bare = Vec::new();
    for _ in 0..SECONDS {
        let at = next(1);
        sleep_until(at).await;
        let mut children = Vec::new();
        for _ in 0..JOBS {
            let child = tokio::process::Command::new("/bin/sh")
                .args(["-c", "true"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn();
            bare.push((Clock::system().now() - at).as_seconds_f64() * 1e3);
            children.push(child.expect("sh"));
        }
        for mut child in children {
            child.wait().await.expect("sh ends");
        }
    }
    let fleet = Fleet::start(1, 128).await;
    fleet.sync(&crate::job_texts(JOBS, "schedule = '@every 1s'\ncommand = 'true'")).await;
    let from = next(1) + TimeDelta::seconds(4);
    let to = from + TimeDelta::seconds(SECONDS);
    sleep_until(to + TimeDelta::seconds(3)).await;
    let records = fleet.records(from, to).await;
    let late: Vec<f64> = records.iter().filter_map(lateness).map(|seconds| seconds * 1e3).collect();
    let unrun = records.len() - late.len();
    let (p50, p99) = (part(&late, 0.5), part(&late, 0.99));
    let (bare50, bare99) = (part(&bare, 0.5), part(&bare, 0.99));
    println!(
        "{JOBS} fires a second, {} starts, {unrun} not run: {p50:.1} ms late at p50, {p99:.1} ms at p99",
        late.len()
    );
    println!("a bare timer and spawn: {bare50:.1} ms at p50, {bare99:.1} ms at p99");
    println!("p99 over the bare one: {:.1} ms (wanted: at most 20)", p99 - bare99);
}

fn part(figures: &[f64], share: f64) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    figures[((figures.len() - 1) as f64 * share) as usize]
}

/// A hundred thousand jobs: how soon a node that starts runs its first, what it holds, and what it does meanwhile.
pub async fn many_jobs() {
    const JOBS: usize = 100_000;
    let mut fleet = Fleet::start(0, 64).await;
    fleet.sync(&crate::job_texts(JOBS, "schedule = '0 2 1 1 *'\ncommand = 'true'")).await;
    let mut listed = Vec::new();
    for _ in 0..3 {
        let begun = Instant::now();
        assert_eq!(fleet.store.list(keys::jobs()).await.expect("a list").entries.len(), JOBS);
        listed.push(begun.elapsed().as_secs_f64());
    }
    let listed = median(listed);
    // Asked for beforehand, so that no whole second is waited for.
    let fire = fleet.ask("job-50000").await;
    let begun = Instant::now();
    fleet.grow(1, 64).await;
    let first = loop {
        if fleet.store.get(&keys::record(&fire)).await.expect("etcd answers").is_some() {
            break begun.elapsed().as_secs_f64();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    println!("{JOBS} jobs: a node's first run is recorded {first:.2} s after its start");
    println!("first run / bare paged list ({listed:.2} s): {:.1} (wanted: at most 3)", first / listed);
    tokio::time::sleep(Duration::from_secs(15)).await;
    let node = &fleet.nodes[0];
    println!("{JOBS} jobs: {:.0} MB resident (wanted: at most 200)", node.resident_mb());
    let (before, begun) = (node.cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let share = (node.cpu() - before) / begun.elapsed().as_secs_f64();
    println!("{JOBS} jobs, nothing due: {:.2} % of a core (wanted: at most 2)", share * 100.0);
}
