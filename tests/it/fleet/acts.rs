//! Operators act on a fleet that runs: pauses, and nodes that are drained.

use super::*;

impl Fleet {
    /// The program on this fleet's store.
    pub(super) fn operator(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleetcron"));
        // Before all else: behind `--` it would be an argument of a task.
        command.args(["--store", &self.address.to_string()]).args(args).stdin(Stdio::null());
        command
    }

    #[track_caller]
    pub(super) fn act(&self, args: &[&str]) -> String {
        let output = self.operator(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {said}\n{}", self.logs());
        said
    }

    /// A job that is due every second and leaves a mark.
    async fn with_tick(self) -> Fleet {
        let command = quoted(&self.marking("true"));
        self.sync(&format!("[jobs.tick]\nschedule = '@every 1s'\ncommand = {command}\n")).await;
        self
    }

    /// The instants of `tick` that were ever claimed, oldest first.
    async fn ticks(&self) -> Vec<Timestamp> {
        let records = self.records_of("tick").await;
        let claimed = records.iter().filter(|record| record.outcome != Outcome::Missed);
        let mut all: BTreeSet<_> = claimed.map(|record| record.fire.scheduled_at()).collect();
        let locks = self.list(keys::locks_of(&name("tick"))).await.entries;
        all.extend(
            locks.iter().filter_map(|entry| keys::fire_of(&entry.key)).map(|fire| fire.scheduled_at()),
        );
        all.into_iter().collect()
    }

    async fn wait_for_tick_after(&self, after: Timestamp) -> Timestamp {
        self.wait_for(&format!("a tick after {after}"), async || {
            self.ticks().await.into_iter().find(|at| *at > after)
        })
        .await
    }

    /// Waits until the clock shows more than this.
    async fn wait_for_time(&self, at: Timestamp) {
        self.wait_until(&format!("{at}"), async || chrono::Utc::now() > at).await;
    }
}

#[tokio::test]
async fn a_pause_stops_new_fires_on_all_nodes_and_resume_goes_on() {
    let fleet = Fleet::on_etcd(Version::V36).await.with_tick().await;
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(fleet.node(name).ready().await);
    }
    fleet.wait_for_records("tick", 2).await;
    fleet.act(&["pause", "tick", "--reason", "a look at it"]);
    let paused = chrono::Utc::now();
    for node in &nodes {
        node.wait_until_it_says(&fleet, "paused").await;
    }
    let asked = fleet.ask("tick").await;
    fleet.wait_for_time(paused + chrono::TimeDelta::seconds(4)).await;
    assert!(fleet.ticks().await.into_iter().all(|at| at <= paused), "{}", fleet.logs());
    assert!(fleet.store.get(&keys::request(&asked)).await.unwrap().is_some(), "a request waits");
    let resuming = chrono::Utc::now();
    fleet.act(&["resume", "tick"]);
    fleet.wait_for_record(&asked).await;
    fleet.wait_for_tick_after(resuming).await;
    // The newest fire may still be owed when the pause ends; those before it are not made up for.
    let between = |at: &Timestamp| *at > paused && *at < resuming && *at != asked.scheduled_at();
    let made_up = fleet.ticks().await.into_iter().filter(between).count();
    assert!(made_up <= 1, "nothing is made up for\n{}", fleet.logs());
    for node in &mut nodes {
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn resume_with_catch_up_makes_good_once_for_the_newest_instant_of_the_pause() {
    let fleet = Fleet::on_etcd(Version::V36).await.with_tick().await;
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(fleet.node(name).ready().await);
    }
    fleet.wait_for_records("tick", 2).await;
    fleet.act(&["pause", "tick"]);
    let paused = chrono::Utc::now();
    fleet.wait_for_time(paused + chrono::TimeDelta::seconds(4)).await;
    let resuming = chrono::Utc::now();
    let said = fleet.act(&["resume", "tick", "--catch-up"]);
    let id = said.split_once("(m-").unwrap_or_else(|| panic!("{said}")).1.split_once(')').unwrap().0;
    let made_good = Fire::new(name("tick"), format!("m-{id}").parse().unwrap());
    let due = made_good.scheduled_at();
    // Of the pause, and of its last seconds.
    assert!(due > paused && due > resuming - chrono::TimeDelta::seconds(2), "{due} {paused} {resuming}");
    assert_eq!(fleet.wait_for_record(&made_good).await.outcome, Outcome::Succeeded);
    fleet.wait_for_tick_after(resuming + chrono::TimeDelta::seconds(2)).await;
    let marks = fleet.marks();
    let starts = |fire: &FireId| marks.iter().filter(|(_, mark, _)| *mark == fire.to_string()).count();
    assert_eq!(starts(&made_good.id), 1);
    assert_eq!(starts(&FireId::scheduled(due)), 0, "it is made good for, and does not run beside that");
    for node in &mut nodes {
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn a_pause_with_an_end_ends_by_itself() {
    for fleet in [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V36).await] {
        let fleet = fleet.with_tick().await;
        let mut nodes = [fleet.node("a").ready().await, fleet.node("b").ready().await];
        fleet.wait_for_records("tick", 1).await;
        fleet.act(&["pause", "--all", "--until", "4s"]);
        let paused = chrono::Utc::now();
        let entry = fleet.store.get(&keys::all_paused()).await.unwrap().unwrap();
        let until = values::decode::<values::HoldBack>(&entry.key, &entry.value).unwrap().until.unwrap();
        fleet
            .wait_until("the pause to go", async || {
                matches!(fleet.store.get(&keys::all_paused()).await, Ok(None))
            })
            .await;
        assert!(chrono::Utc::now() >= until);
        let first = fleet.wait_for_tick_after(paused).await;
        assert!(first >= until, "{first} {until}\n{}", fleet.logs());
        for node in &mut nodes {
            node.stop(&fleet).await;
        }
    }
}

#[tokio::test]
async fn a_drained_node_keeps_its_run_and_others_take_its_fires_also_after_its_restart() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    let release = fleet.path("release");
    let command = quoted(&format!("until [ -e {} ]; do sleep 0.1; done", release.display()));
    fleet.sync(&format!("[jobs.long]\nschedule = '0 0 1 1 *'\ncommand = {command}\n")).await;
    let mut a = fleet.node("a").ready().await;
    let fire = fleet.ask("long").await;
    fleet.wait_until("the command to begin", async || !a.guards().is_empty()).await;
    let mut waiting = fleet.operator(&["drain", "a", "--wait"]).stderr(Stdio::null()).spawn().unwrap();
    a.wait_until_it_says(&fleet, "drained: nothing more is claimed").await;
    let drained = chrono::Utc::now();
    let tick = quoted(&fleet.marking("true"));
    fleet
        .sync(&format!(
            "[jobs.long]\nschedule = '0 0 1 1 *'\ncommand = {command}\n\
             [jobs.tick]\nschedule = '@every 1s'\ncommand = {tick}\n"
        ))
        .await;
    let mut b = fleet.node("b").ready().await;
    // It restarts with its command running, and stays drained.
    a.stop(&fleet).await;
    let mut a = fleet.node("a").ready().await;
    a.wait_until_it_says(&fleet, "drained: nothing more is claimed").await;
    fleet.wait_for_records("tick", 3).await;
    assert!(fleet.lock(&fire).await.is_some() && waiting.try_wait().unwrap().is_none(), "its run goes on");
    fs::write(&release, "").unwrap();
    assert_eq!(fleet.wait_for_record(&fire).await.outcome, Outcome::Succeeded);
    let status = fleet.wait_for("the drain to be over", async || waiting.try_wait().unwrap()).await;
    assert!(status.success());
    // What came due before there was another node has a record, and no run.
    let on = |record: &Record| record.run.as_ref().map(|run| run.node.to_string());
    let ticks = fleet.records_of("tick").await;
    let after = ticks.iter().filter(|record| record.fire.scheduled_at() > drained);
    assert!(after.filter_map(on).all(|node| node == "b"));
    fleet.act(&["drain", "b"]);
    fleet.act(&["undrain", "a"]);
    fleet
        .wait_until("a to run again", async || {
            fleet.records_of("tick").await.iter().filter_map(on).any(|node| node == "a")
        })
        .await;
    a.stop(&fleet).await;
    b.stop(&fleet).await;
}
