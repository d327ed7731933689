//! What nobody ran: each fire of it has a record or lies in a span, with the reason; and what is still run of it.

use fleetcron::fire::Lane;

use super::*;

/// Records of a lane that tell why nothing ran, as `OUTCOME REASON`, the oldest first.
fn told(records: &[Record]) -> Vec<String> {
    let unrun = records.iter().filter(|record| record.run.is_none());
    unrun
        .map(|record| format!("{} {}", record.outcome, record.reason.as_deref().unwrap_or_default()))
        .collect()
}

fn in_lane(records: Vec<Record>, lane: &str) -> Vec<Record> {
    let lane: Lane = lane.parse().unwrap();
    let mut records: Vec<_> = records.into_iter().filter(|record| record.fire.lane == lane).collect();
    records.sort_by_key(|record| record.fire.scheduled_at());
    records
}

impl Fleet {
    async fn with_job(self, name: &str, fields: &str) -> Fleet {
        let command = quoted(&self.marking("true"));
        self.sync(&format!("[jobs.{name}]\ncommand = {command}\n{fields}\n")).await;
        self
    }

    /// Waits until a job has a record that says so.
    async fn wait_until_told(&self, job: &str, what: &str) -> Record {
        self.wait_for(&format!("a record of {job} that says {what}"), async || {
            let records = self.records_of(job).await;
            records
                .into_iter()
                .find(|record| told(std::slice::from_ref(record)).iter().any(|told| told == what))
        })
        .await
    }
}

#[tokio::test]
async fn a_fleet_that_was_down_runs_the_newest_fire_and_covers_the_rest_with_one_span() {
    for fleet in [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V34).await] {
        let fleet = fleet.with_job("tick", "schedule = '@every 2s'").await;
        let mut first = fleet.node("a").ready().await;
        fleet.wait_for_records("tick", 1).await;
        first.stop(&fleet).await;
        let stopped = chrono::Utc::now();
        let night = stopped + chrono::TimeDelta::seconds(14);
        fleet.wait_until("the night to pass", async || chrono::Utc::now() > night).await;
        let began = chrono::Utc::now();
        let mut nodes = [fleet.node("a").ready().await, fleet.node("b").ready().await];
        let span = fleet.wait_until_told("tick", "missed no node was up").await;
        let (first, last) = (span.fire.scheduled_at(), span.span.expect("many fires").last);
        assert!(first >= stopped - chrono::TimeDelta::seconds(4) && last <= began, "{span:?}");
        assert!(span.span.unwrap().count >= 4, "{span:?}");
        // The newest of them was run.
        let records = fleet.records_of("tick").await;
        let caught_up = records.iter().filter(|record| {
            let at = record.fire.scheduled_at();
            record.run.is_some() && at > stopped && at < began
        });
        assert!(caught_up.count() <= 1, "{}", fleet.logs());
        assert_eq!(fleet.gap(chrono::TimeDelta::seconds(15)).await, None, "{}", fleet.logs());
        for node in &mut nodes {
            node.stop(&fleet).await;
        }
    }
}

#[tokio::test]
async fn each_job_says_what_is_caught_up_with() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    let job = |name: &str, fields: &str| {
        let command = quoted(&fleet.marking("true"));
        format!("[jobs.{name}]\ncommand = {command}\nschedule = '@every 3s'\n{fields}\n")
    };
    let jobs = [job("all", "catch_up = 'all'"), job("none", "catch_up = 'none'"), job("latest", "")];
    fleet.sync(&jobs.concat()).await;
    let synced = chrono::Utc::now();
    let night = synced + chrono::TimeDelta::seconds(16);
    fleet.wait_until("the night to pass", async || chrono::Utc::now() > night).await;
    let began = chrono::Utc::now();
    let mut nodes =
        [fleet.node("a").ready().await, fleet.node("b").ready().await, fleet.node("c").ready().await];
    fleet.wait_until_told("none", "missed no node was up").await;
    fleet.wait_until_told("latest", "missed no node was up").await;
    let missed = |records: Vec<Record>| -> Vec<Timestamp> {
        let ran =
            records.iter().filter(|record| record.run.is_some()).map(|record| record.fire.scheduled_at());
        let mut missed: Vec<_> = ran.filter(|at| *at <= began - chrono::TimeDelta::seconds(3)).collect();
        missed.sort();
        missed
    };
    let of = async |job: &str| missed(fleet.records_of(job).await);
    fleet.wait_until("all of it to run", async || of("all").await.len() >= 4).await;
    assert!(of("none").await.is_empty(), "{}", fleet.logs());
    assert!(of("latest").await.len() <= 1, "{}", fleet.logs());
    // In their order, one after the other.
    let mut records = fleet.records_of("all").await;
    records.retain(|record| record.run.is_some() && record.fire.scheduled_at() < began);
    records.sort_by_key(|record| record.run.as_ref().unwrap().fencing_token);
    assert!(records.is_sorted_by_key(|record| record.fire.scheduled_at()), "{}", fleet.logs());
    for node in &mut nodes {
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn what_no_node_can_run_is_missed_for_that_and_a_label_brings_it_back() {
    let fields = "schedule = '@every 3s'\nnodes = 'role=db'\nstart_within = '3s'";
    let fleet = Fleet::on_etcd(Version::V36).await.with_job("dump", fields).await;
    let mut web = fleet.node("web").ready().await;
    fleet.wait_until_told("dump", "missed no node could run it").await;
    assert!(fleet.marks().is_empty());
    let mut db = fleet.node("db").with(&["--label", "role=db"]).ready().await;
    fleet.wait_until("it to run on the one that may", async || fleet.marks().len() >= 2).await;
    let ran: BTreeSet<_> = fleet
        .records_of("dump")
        .await
        .into_iter()
        .filter_map(|record| record.run.map(|run| run.node.to_string()))
        .collect();
    assert!(ran.iter().all(|node| node == "db"), "{ran:?}");
    web.stop(&fleet).await;
    db.stop(&fleet).await;
}

#[tokio::test]
async fn what_comes_due_in_a_pause_is_one_span_for_that() {
    let fleet = Fleet::on_sqlite().await.with_job("tick", "schedule = '@every 1s'").await;
    let mut node = fleet.node("a").ready().await;
    fleet.wait_for_records("tick", 2).await;
    let pause = values::HoldBack::new("ann@laptop".into(), chrono::Utc::now(), None, None);
    let put = Op::put(keys::paused(&name("tick")), values::encode(&pause));
    fleet.store.txn(Txn::new().then([put])).await.unwrap();
    let span = fleet.wait_until_told("tick", "missed paused").await;
    assert!(span.fire.scheduled_at() >= pause.at - chrono::TimeDelta::seconds(1), "{span:?}");
    assert!(span.span.expect("many fires").count > 3, "{span:?}");
    node.stop(&fleet).await;
}

#[tokio::test]
async fn an_every_node_job_has_a_lane_on_each_node_and_a_node_that_was_away_has_one_span() {
    let fields = "schedule = '@every 2s'\nrun_on = 'every-node'\ncatch_up = 'none'";
    let fleet = Fleet::on_etcd(Version::V36).await.with_job("tidy", fields).await;
    let mut a = fleet.node("a").ready().await;
    let mut b = fleet.node("b").ready().await;
    let ran = async |lane: &str| {
        let records = in_lane(fleet.records_of("tidy").await, lane);
        records.into_iter().filter(|record| record.run.is_some()).count()
    };
    fleet.wait_until("both to run it", async || ran("@a").await >= 3 && ran("@b").await >= 3).await;
    b.stop(&fleet).await;
    let there = ran("@a").await;
    fleet.wait_until("the other to go on", async || ran("@a").await >= there + 7).await;
    // One that comes new has missed nothing.
    let mut c = fleet.node("c").ready().await;
    let mut b = fleet.node("b").ready().await;
    let span = fleet.wait_until_told("tidy", "missed this node was away").await;
    assert_eq!(span.fire.lane.to_string(), "@b");
    assert!(span.span.expect("many fires").count >= 5, "{span:?}");
    fleet.wait_until("the new one to run it", async || ran("@c").await >= 2).await;
    let of_c = in_lane(fleet.records_of("tidy").await, "@c");
    assert_eq!(told(&of_c), [""; 0], "{}", fleet.logs());
    for node in [&mut a, &mut b, &mut c] {
        node.stop(&fleet).await;
    }
    // Each node ran its own, and none of another's.
    for record in fleet.records_of("tidy").await {
        if let Some(run) = record.run {
            assert_eq!(record.fire.lane.to_string(), format!("@{}", run.node));
        }
    }
}

#[tokio::test]
async fn a_job_of_a_machines_start_runs_once_for_each_boot() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    let fields = "schedule = ['@reboot', '0 0 1 1 *']\nrun_on = 'every-node'";
    let mut before = fleet.node("a").ready().await;
    let fleet_job = format!("[jobs.warm]\ncommand = {}\n{fields}\n", quoted(&fleet.marking("true")));
    fleet.sync(&fleet_job).await;
    // It was defined after this node's start: it has missed nothing.
    let mut b = fleet.node("b").ready().await;
    fleet.wait_until("the new machine to run it", async || fleet.marks().len() == 1).await;
    b.stop(&fleet).await;
    // Another daemon in the same life of the machine.
    let mut b = fleet.node("b").ready().await;
    b.wait_until_it_says(&fleet, "race lost").await;
    assert_eq!(fleet.marks().len(), 1, "{}", fleet.logs());
    let records = fleet.records_of("warm").await;
    assert_eq!(records.len(), 1, "{records:?}");
    assert!(records[0].fire.to_string().starts_with("warm/@b/boot-"), "{}", records[0].fire);
    before.stop(&fleet).await;
    b.stop(&fleet).await;
}

#[tokio::test]
async fn what_a_node_has_no_slot_for_another_one_runs() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    let long = "[jobs.long]\nschedule = '0 0 1 1 *'\ncommand = 'exec sleep 300'\nnodes = 'node=a'\n";
    // Its next fire would supersede one that waits for a slot before the other node has looked.
    let tick = format!("[jobs.tick]\nschedule = '@every 3s'\ncommand = {}\n", quoted(&fleet.marking("true")));
    fleet.sync(&format!("{long}{tick}")).await;
    let mut a = fleet.node("a").with(&["--slots", "1"]).ready().await;
    let full = fleet.ask("long").await;
    fleet.wait_until("its slot to be taken", async || fleet.lock(&full).await.is_some()).await;
    let mut b = fleet.node("b").with(&["--slots", "1"]).ready().await;
    let began = chrono::Utc::now();
    // Half of the fires are the full node's to run.
    let ran_by_b = async || {
        let records = fleet.records_of("tick").await;
        let after = records.iter().filter(|record| record.fire.scheduled_at() > began);
        after.filter(|record| record.run.as_ref().is_some_and(|run| run.node.as_str() == "b")).count()
    };
    fleet.wait_until("the other to run them all", async || ran_by_b().await >= 7).await;
    assert_eq!(fleet.gap(chrono::TimeDelta::seconds(5)).await, None, "{}", fleet.logs());
    b.stop(&fleet).await;
    a.stop(&fleet).await;
}
