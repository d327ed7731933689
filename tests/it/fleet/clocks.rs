//! Clocks that are wrong, or are set while a node runs.

use super::*;

/// Two jobs that leave marks, one that is due often and one that is not.
async fn with_jobs(fleet: Fleet) -> Fleet {
    let command = quoted(&fleet.marking("true"));
    let text = format!(
        "[jobs.tick]\nschedule = '@every 5s'\ncommand = {command}\n\
         [jobs.minutely]\nschedule = '* * * * *'\ncommand = {command}\n"
    );
    fleet.sync(&text).await;
    fleet
}

fn minutes(count: i64) -> chrono::TimeDelta {
    chrono::TimeDelta::minutes(count)
}

impl Fleet {
    /// The instants of a job that were started, oldest first.
    fn started(&self, job: &str) -> Vec<Timestamp> {
        let marks = self.marks().into_iter().filter(|(of, _, _)| of == job);
        let mut all: Vec<_> = marks.map(|(_, fire, _)| fire.parse::<FireId>().unwrap().instant()).collect();
        all.sort();
        all
    }

    async fn clock_word(&self, node: &str) -> Option<String> {
        Some(self.presence(node).await?.clock?.says)
    }

    async fn floor_of(&self, job: &str) -> Option<Timestamp> {
        let key = keys::floor(&name(job), &fleetcron::fire::Lane::OneNode);
        fleetcron::warden::read_floor(&self.store.get(&key).await.ok()??).map(|(floor, _)| floor)
    }
}

/// C15 and C17 begin alike: one node, so that there is none to agree with.
async fn one_node(shift: &str) -> (Fleet, ClockFile, Node) {
    let fleet = with_jobs(Fleet::on_sqlite().await).await;
    let clock = ClockFile::new(&fleet, "a");
    clock.set(shift);
    let node = fleet.node("a").clock_file(&clock).ready().await;
    (fleet, clock, node)
}

/// C15.
#[tokio::test]
async fn a_clock_set_an_hour_ahead_makes_up_for_one_fire_of_a_job_and_no_more() {
    let (fleet, clock, mut node) = one_node("+0s").await;
    fleet.wait_for_records("tick", 1).await;
    let before = chrono::Utc::now();
    clock.set("+1h");
    let after = before + minutes(60);
    fleet
        .wait_until("ticks by the new time", async || {
            fleet.started("tick").into_iter().filter(|at| *at > after).count() >= 2
        })
        .await;
    // What was in between is covered, so each is settled.
    for job in ["tick", "minutely"] {
        fleet
            .wait_until(&format!("a span of {job}"), async || {
                fleet.records_of(job).await.iter().any(|record| record.span.is_some())
            })
            .await;
        // By the first look at the new time all of that hour was missed, and the newest of it is run.
        let between = fleet.started(job).into_iter().filter(|at| *at > before && *at <= after);
        let between: Vec<_> = between.filter(|at| *at > before + minutes(1)).collect();
        assert!(between.len() <= 1, "{job}: {between:?}\n{}", fleet.logs());
    }
    assert!(node.says("the clock was set") && !node.says("CLOCK IS OFF"), "it is the only one");
    fleet
        .wait_until("all to be settled", async || fleet.gap(chrono::TimeDelta::seconds(3)).await.is_none())
        .await;
    node.stop(&fleet).await;
    fleet.check_books(Gaps::Allowed).await;
}

/// C17.
#[tokio::test]
async fn a_clock_that_was_years_ahead_at_the_start_is_put_right_and_jobs_run_by_the_present() {
    let (fleet, clock, mut node) = one_node("+26280h").await;
    let ahead = chrono::Utc::now() + minutes(60 * 24 * 365);
    fleet
        .wait_until("the floor to be ahead", async || {
            fleet.floor_of("tick").await.is_some_and(|floor| floor > ahead)
        })
        .await;
    let right = chrono::Utc::now();
    clock.set("+0s");
    for job in ["tick", "minutely"] {
        fleet
            .wait_until("the floor to be put back", async || {
                fleet.floor_of(job).await.is_some_and(|floor| floor < chrono::Utc::now() + minutes(1))
            })
            .await;
    }
    fleet
        .wait_until("ticks by the present", async || {
            let started = fleet.started("tick");
            started.into_iter().filter(|at| *at > right && *at < right + minutes(5)).count() >= 3
        })
        .await;
    assert!(node.says("the mark is put back to now"), "{}", fleet.logs());
    // What the node shows of itself is right too.
    let shown = fleet.presence("a").await.unwrap();
    assert!((shown.at - right).abs() < minutes(5), "{shown:?}");
    node.stop(&fleet).await;
}

/// S10.
#[tokio::test]
async fn a_node_whose_clock_is_set_an_hour_ahead_claims_nothing_until_it_agrees_again() {
    let fleet = with_jobs(Fleet::on_etcd(Version::V36).await).await;
    let clock = ClockFile::new(&fleet, "c");
    let mut nodes = [fleet.node("a").ready().await, fleet.node("b").ready().await];
    let mut c = fleet.node("c").clock_file(&clock).ready().await;
    let on =
        |record: &Record, node: &str| record.run.as_ref().is_some_and(|run| run.node.to_string() == node);
    fleet
        .wait_until("c to run something", async || {
            fleet.records_of("tick").await.iter().any(|record| on(record, "c"))
        })
        .await;
    clock.set("+1h");
    c.wait_until_it_says(&fleet, "CLOCK IS OFF").await;
    fleet
        .wait_until("its word to be shown", async || {
            fleet.clock_word("c").await.is_some_and(|word| word.contains("3600 s") || word.contains("3599 s"))
        })
        .await;
    let off = chrono::Utc::now();
    let later = |record: &Record| record.fire.scheduled_at() > off + chrono::TimeDelta::seconds(2);
    fleet
        .wait_until("the others to go on", async || {
            fleet.records_of("tick").await.iter().filter(|record| later(record)).count() >= 3
        })
        .await;
    let records = fleet.records().await;
    let odd =
        |record: &&Record| later(record) && on(record, "c") || record.fire.scheduled_at() > off + minutes(30);
    assert_eq!(records.iter().find(odd), None, "{}", fleet.logs());
    assert!(fleet.floor_of("tick").await.unwrap() < off + minutes(30));
    clock.set("+0s");
    c.wait_until_it_says(&fleet, "the clock agrees again").await;
    let right = chrono::Utc::now();
    fleet
        .wait_until("c to run again", async || {
            let records = fleet.records_of("tick").await;
            records.iter().any(|record| record.fire.scheduled_at() > right && on(record, "c"))
        })
        .await;
    assert_eq!(fleet.clock_word("c").await, None);
    c.stop(&fleet).await;
    for node in &mut nodes {
        node.stop(&fleet).await;
    }
    fleet.check_books(Gaps::None).await;
}

#[tokio::test]
async fn a_node_that_comes_with_a_wrong_clock_hears_of_it_from_the_others_before_it_claims() {
    let fleet = with_jobs(Fleet::on_etcd(Version::V36).await).await;
    let mut nodes = [fleet.node("a").clock("+1s").ready().await, fleet.node("b").clock("-1s").ready().await];
    let mut wrong = fleet.node("c").clock("+26280h").ready().await;
    wrong.wait_until_it_says(&fleet, "CLOCK IS OFF").await;
    let now = chrono::Utc::now();
    fleet
        .wait_until("the others to go on", async || {
            fleet.started("tick").into_iter().filter(|at| *at > now).count() >= 3
        })
        .await;
    let records = fleet.records().await;
    assert!(records.iter().all(|record| record.fire.scheduled_at() < now + minutes(30)), "{}", fleet.logs());
    assert!(nodes.iter().all(|node| !node.says("CLOCK IS OFF")), "{}", fleet.logs());
    let doctor = Command::new(env!("CARGO_BIN_EXE_fleetcron"))
        .args(["doctor", "--node", "c", "--store", &fleet.address.to_string()])
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(shown.contains("off: 946") && shown.contains("s ahead"), "{shown}");
    wrong.stop(&fleet).await;
    for node in &mut nodes {
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn a_node_that_requires_a_synchronised_clock_waits_for_one() {
    let fleet = with_jobs(Fleet::on_sqlite().await).await;
    let clock = ClockFile::new(&fleet, "a");
    clock.set("+0s unsynced");
    let mut node = fleet.node("a").clock_file(&clock).settings("require_synced_clock = true\n").ready().await;
    node.wait_until_it_says(&fleet, "CLOCK IS OFF").await;
    assert_eq!(fleet.clock_word("a").await.as_deref(), Some("not synchronised"));
    // A request is not for an instant: it runs.
    let asked = fleet.ask("tick").await;
    fleet.wait_for_record(&asked).await;
    assert_eq!(fleet.records().await.len(), 1, "{}", fleet.logs());
    clock.set("+0s");
    fleet.wait_for_records("tick", 2).await;
    clock.set("+0s unsynced");
    node.stop(&fleet).await;
    // Without the setting it is told, and no more.
    let mut node = fleet.node("a").clock_file(&clock).ready().await;
    let now = chrono::Utc::now();
    fleet.wait_until("a tick", async || fleet.started("tick").into_iter().any(|at| at > now)).await;
    assert_eq!(fleet.clock_word("a").await.as_deref(), Some("not synchronised"));
    node.stop(&fleet).await;
}
