//! Several nodes on one store: each fire has one record, and runs once.

use super::*;

/// Ten jobs that fire every second, on nodes with these clocks.
async fn check(fleet: Fleet, clocks: &[&str], goes_on_for: Duration) {
    fleet.sync(&ten_jobs(&fleet)).await;
    let mut nodes = Vec::new();
    for (number, clock) in clocks.iter().enumerate() {
        let setup = fleet.node(&format!("node-{number}"));
        nodes.push(if clock.is_empty() { setup } else { setup.clock(clock) }.start());
    }
    for node in &mut nodes {
        node.wait_until_ready(&fleet).await;
    }
    let at_first = fleet.records_of("job-0").await.len();
    for more in 1..=goes_on_for.as_secs() as usize {
        fleet.wait_for_records("job-0", at_first + more).await;
    }
    let settled = async || fleet.gap(chrono::TimeDelta::seconds(8)).await.is_none();
    fleet.wait_until("every fire to have its record", settled).await;
    for node in &nodes {
        node.signal(Signal::SIGTERM);
    }
    for node in &mut nodes {
        assert!(node.wait_for_end(&fleet).await.success(), "{}", fleet.logs());
    }
    // By how they are set, the clocks differ by ten seconds.
    let lanes = audit::clean(&fleet, &nodes.iter().collect::<Vec<_>>(), "11s");
    assert_eq!(lanes.len(), 10, "{lanes:#?}");
    let books = fleet.check_books(Gaps::None).await;
    println!("{} nodes, clocks {clocks:?}: {books}", nodes.len());
    assert!(books.starts > 0);
}

fn ten_jobs(fleet: &Fleet) -> String {
    let command = quoted(&fleet.marking("true"));
    let job = |number| format!("[jobs.job-{number}]\nschedule = '@every 1s'\ncommand = {command}\n");
    (0..10).map(job).collect()
}

#[tokio::test]
async fn three_nodes_on_etcd_run_each_fire_once() {
    for version in [Version::V34, Version::V36] {
        check(Fleet::on_etcd(version).await, &["", "", ""], seconds(10, 120)).await;
    }
}

#[tokio::test]
async fn a_slow_clock_and_a_fast_one_make_no_fire_run_twice() {
    for version in [Version::V34, Version::V36] {
        check(Fleet::on_etcd(version).await, &["-4s", "", "+4s"], seconds(10, 120)).await;
    }
}

#[tokio::test]
async fn three_nodes_on_one_sqlite_file_run_each_fire_once() {
    check(Fleet::on_sqlite().await, &["", "-4s", "+4s"], seconds(10, 120)).await;
}
