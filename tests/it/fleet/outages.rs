//! The store away, stopped, or ending leases: nodes go on by themselves, and nothing runs twice.

use super::*;

/// Ten jobs that fire every second, and one whose command takes a while, on three nodes.
async fn three_busy_nodes(version: Version) -> (Fleet, Vec<Node>) {
    let fleet = Fleet::on_etcd(version).await;
    let (short, slow) = (quoted(&fleet.marking("true")), quoted(&fleet.marking("sleep 4")));
    let mut jobs: String = (0..10)
        .map(|number| format!("[jobs.job-{number}]\nschedule = '@every 1s'\ncommand = {short}\n"))
        .collect();
    jobs.push_str(&format!("[jobs.slow]\nschedule = '@every 5s'\ncommand = {slow}\n"));
    fleet.sync(&jobs).await;
    let mut nodes: Vec<Node> = ["a", "b", "c"].map(|name| fleet.node(name).start()).into();
    for node in &mut nodes {
        node.wait_until_ready(&fleet).await;
    }
    fleet.wait_for_records("job-0", 2).await;
    (fleet, nodes)
}

/// The daemons are the same, and after a while under load all is in order.
async fn check_they_go_on(fleet: &Fleet, nodes: &mut [Node]) -> Books {
    let there = fleet.records_of("job-0").await.len();
    fleet.wait_for_records("job-0", there + 3).await;
    // What came due meanwhile is decided late, and all of it.
    let mut gap = None;
    let settled = async || {
        gap = fleet.gap(chrono::TimeDelta::seconds(3)).await;
        gap.is_none()
    };
    fleet.wait_until("every fire to have its record", settled).await;
    for node in nodes.iter_mut() {
        assert!(node.status().is_none(), "{} ended\n{}", node.name, fleet.logs());
        node.signal(Signal::SIGTERM);
    }
    for node in nodes.iter_mut() {
        assert!(node.wait_for_end(fleet).await.success());
    }
    fleet.check_books(Gaps::None).await
}

#[tokio::test]
async fn nodes_go_on_when_etcd_was_stopped_and_started_again() {
    for version in [Version::V34, Version::V36] {
        let (mut fleet, mut nodes) = three_busy_nodes(version).await;
        fleet.etcd().stop();
        // The outage itself is the condition here: longer than a lease, with fires due all the while.
        tokio::time::sleep(seconds(8, 20)).await;
        fleet.etcd().restart().await;
        let books = check_they_go_on(&fleet, &mut nodes).await;
        println!("etcd {version:?} stopped for {:?}: {books}", seconds(8, 20));
    }
}

#[tokio::test]
async fn nodes_go_on_when_etcd_was_frozen() {
    for version in [Version::V34, Version::V36] {
        let (mut fleet, mut nodes) = three_busy_nodes(version).await;
        fleet.etcd().freeze();
        tokio::time::sleep(seconds(8, 20)).await;
        fleet.etcd().thaw();
        let books = check_they_go_on(&fleet, &mut nodes).await;
        println!("etcd {version:?} frozen for {:?}: {books}", seconds(8, 20));
    }
}

#[tokio::test]
async fn nodes_go_on_when_etcd_dies_again_and_again() {
    let (mut fleet, mut nodes) = three_busy_nodes(Version::V36).await;
    for _ in 0..if long() { 20 } else { 3 } {
        fleet.etcd().restart().await;
        let there = fleet.records_of("job-1").await.len();
        fleet.wait_for_records("job-1", there + 1).await;
    }
    let books = check_they_go_on(&fleet, &mut nodes).await;
    println!("etcd killed: {books}");
}

#[tokio::test]
async fn a_frozen_node_is_replaced_for_new_fires_and_runs_none_of_them_again() {
    let (fleet, mut nodes) = three_busy_nodes(Version::V34).await;
    nodes[0].signal(Signal::SIGSTOP);
    // Longer than its lease: the others see it gone.
    fleet.wait_until("a to be gone", async || fleet.presence("a").await.is_none()).await;
    let there = fleet.records_of("job-2").await.len();
    fleet.wait_for_records("job-2", there + 2).await;
    nodes[0].signal(Signal::SIGCONT);
    fleet.wait_until("a to be back", async || fleet.presence("a").await.is_some()).await;
    let books = check_they_go_on(&fleet, &mut nodes).await;
    println!("a node frozen: {books}");
}

#[tokio::test]
async fn a_revoked_lease_ends_neither_the_daemon_nor_the_command() {
    for version in [Version::V34, Version::V36] {
        let fleet = Fleet::on_etcd(version).await;
        let release = fleet.path("release");
        let more = format!("until [ -e {} ]; do sleep 0.1; done; exit 3", release.display());
        let command = quoted(&fleet.marking(&more));
        fleet.sync(&format!("[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = {command}\n")).await;
        let mut node = fleet.node("a").ready().await;
        let pid = node.pid();
        let fire = fleet.ask("once").await;
        fleet.wait_until("the command to begin", async || fleet.marks().len() == 1).await;
        for round in 1..=3 {
            let lease = fleet.store.get("nodes/a").await.unwrap().unwrap().lease.unwrap();
            let etcd = fleet.etcd.as_ref().unwrap();
            etcd.ctl(&["lease", "revoke", &format!("{:x}", lease.0)]);
            fleet
                .wait_until("the node to be registered again", async || {
                    let entry = fleet.store.get("nodes/a").await.unwrap();
                    entry.is_some_and(|entry| entry.lease.is_some_and(|now| now != lease))
                })
                .await;
            let again = async || node.log().matches("registered again").count() == round;
            fleet.wait_until("the node to say so", again).await;
        }
        let next = fleet.ask("once").await;
        assert_eq!(fleet.wait_for_record(&next).await.outcome, Outcome::Skipped, "the first still runs");
        fs::write(&release, "").unwrap();
        let record = fleet.wait_for_record(&fire).await;
        let run = record.run.unwrap();
        assert_eq!((record.outcome, run.exit_code, run.attempt), (Outcome::Failed, Some(3), 1));
        assert_eq!((node.status(), node.pid()), (None, pid));
        node.stop(&fleet).await;
        fleet.check_books(Gaps::Allowed).await;
    }
}
