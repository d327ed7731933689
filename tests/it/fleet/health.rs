//! `doctor --health`: what a probe is told of a node that runs, stands still, is out of touch or is gone.

use super::*;

/// The exit code, and what was said, data and words.
fn health(state: &Path, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetcron"));
    command.args(["doctor", "--health", "--state"]).arg(state).args(args).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout) + &text(output.stderr))
}

impl Fleet {
    async fn wait_for_health(&self, state: &Path, code: i32, part: &str) {
        self.wait_until(
            &format!("exit code {code} with {part:?}, not {:?}", health(state, &[])),
            async || {
                let (is, said) = health(state, &[]);
                is == code && said.contains(part) && said.lines().count() == 1
            },
        )
        .await;
    }
}

#[tokio::test]
async fn a_node_that_goes_on_is_healthy_and_one_that_is_frozen_or_killed_is_not() {
    let fleet = Fleet::on_sqlite().await;
    let command = quoted(&fleet.marking("true"));
    fleet.sync(&format!("[jobs.tick]\nschedule = '@every 1s'\ncommand = {command}\n")).await;
    let never = fleet.path("state-a");
    let (code, said) = health(&never, &[]);
    assert!(code == 3 && said.contains("no node was ever started"), "{code} {said}");
    let mut node = fleet.node("a").ready().await;
    fleet.wait_for_records("tick", 1).await;
    fleet.wait_for_health(&node.state, 0, "a is healthy: looked at what is due").await;
    fleet
        .wait_until("a decision", async || {
            let (code, said) = health(&node.state, &["--output", "json"]);
            let row: serde_json::Value = serde_json::from_str(&said).unwrap();
            code == 0 && row["healthy"] == true && row["decision_seconds"].is_number()
        })
        .await;
    node.signal(Signal::SIGSTOP);
    fleet.wait_for_health(&node.state, 1, "a stands still: it looked at what is due").await;
    node.signal(Signal::SIGCONT);
    fleet.wait_for_health(&node.state, 0, "a is healthy").await;
    node.kill();
    fleet.wait_for_health(&node.state, 1, "no daemon runs: a is stopped").await;
    let (_, said) = health(&node.state, &["--output", "json"]);
    assert!(said.contains("\"healthy\":false"), "{said}");
    let mut node = fleet.node("a").ready().await;
    fleet.wait_for_health(&node.state, 0, "a is healthy").await;
    node.stop(&fleet).await;
    fleet.wait_for_health(&node.state, 1, "no daemon runs").await;
}

#[tokio::test]
async fn a_node_whose_store_is_away_is_not_healthy_until_it_is_back() {
    let mut fleet = Fleet::on_etcd(Version::V36).await;
    let mut node = fleet.node("a").ready().await;
    fleet.wait_for_health(&node.state, 0, "a is healthy").await;
    fleet.etcd().freeze();
    fleet.wait_for_health(&node.state, 1, "a is out of touch with the store: it looked at what is due").await;
    fleet.etcd().thaw();
    fleet.wait_for_health(&node.state, 0, "a is healthy").await;
    node.stop(&fleet).await;
}

#[tokio::test]
async fn a_node_whose_clock_is_off_decides_nothing_and_is_not_healthy() {
    let fleet = Fleet::on_sqlite().await;
    let clock = ClockFile::new(&fleet, "a");
    clock.set("+0s unsynced");
    let mut node = fleet.node("a").clock_file(&clock).settings("require_synced_clock = true\n").ready().await;
    fleet
        .wait_for_health(&node.state, 1, "a decides nothing by its clock, which is off (not synchronised)")
        .await;
    clock.set("+0s");
    fleet.wait_for_health(&node.state, 0, "a is healthy").await;
    node.stop(&fleet).await;
}
