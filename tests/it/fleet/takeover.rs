//! What other nodes do with the fires of a node that is lost, and when.

use super::*;

async fn each_store() -> Vec<Fleet> {
    vec![Fleet::on_sqlite().await, Fleet::on_etcd(Version::V34).await, Fleet::on_etcd(Version::V36).await]
}

/// A job `once` whose first attempt goes on until it is stopped, and whose others succeed at once. Each attempt leaves
/// a line at its beginning, and the first one at its end.
async fn with_job(fleet: &Fleet, fields: &str) {
    let steps = fleet.path("steps").display().to_string();
    let more = format!(
        "echo begin $FLEETCRON_ATTEMPT $FLEETCRON_NODE >> {steps}; [ $FLEETCRON_ATTEMPT = 1 ] || exit 0; \
         trap 'echo end 1 >> {steps}; exit 1' TERM; while :; do sleep 0.05; done"
    );
    let command = quoted(&fleet.marking(&more));
    let text = format!(
        "[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = {command}\nhold = '6s'\nkill_after = '1s'\n{fields}\n"
    );
    fleet.sync(&text).await;
}

fn steps(fleet: &Fleet) -> Vec<String> {
    let text = fs::read_to_string(fleet.path("steps")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Asks for `once`, and waits until its first attempt runs on the only node there is.
async fn running(fleet: &Fleet) -> Fire {
    let fire = fleet.ask("once").await;
    fleet.wait_until("the command to begin", async || !steps(fleet).is_empty()).await;
    fire
}

#[tokio::test]
async fn a_fire_of_a_lost_node_is_run_again_by_another() {
    for fleet in each_store().await {
        with_job(&fleet, "").await;
        let mut lost = fleet.node("a").ready().await;
        let fire = running(&fleet).await;
        let mut other = fleet.node("b").ready().await;
        lost.lose_host();
        let record = fleet.wait_for_record(&fire).await;
        let run = record.run.as_ref().unwrap();
        assert_eq!((record.outcome, run.attempt, run.node.as_str()), (Outcome::Succeeded, 2, "b"));
        let [past] = &record.past[..] else { panic!("one attempt before: {record:?}") };
        assert_eq!((past.node.as_str(), past.outcome), ("a", Outcome::Lost));
        assert!(run.fencing_token > fleet.token(&fire).unwrap(), "tokens grow");
        assert_eq!(steps(&fleet), ["begin 1 a", "begin 2 b"]);
        other.stop(&fleet).await;
    }
}

#[tokio::test]
async fn what_runs_on_without_its_daemon_has_ended_before_another_node_begins() {
    for fleet in each_store().await {
        with_job(&fleet, "").await;
        let mut lost = fleet.node("a").ready().await;
        let fire = running(&fleet).await;
        let mut other = fleet.node("b").ready().await;
        // Its guard and its command live on.
        lost.kill();
        let record = fleet.wait_for_record(&fire).await;
        assert_eq!(steps(&fleet), ["begin 1 a", "end 1", "begin 2 b"], "{}", fleet.logs());
        assert_eq!((record.outcome, record.run.as_ref().unwrap().attempt), (Outcome::Succeeded, 2));
        // The one that was lost is back: its own result is kept beside the record.
        let mut back = fleet.node("a").ready().await;
        let late = keys::late_record(&fire, fleet.presence("a").await.unwrap().node_start, 1);
        let entry = fleet.wait_for("its result", async || fleet.store.get(&late).await.unwrap()).await;
        let kept = values::decode_record(fire.clone(), &entry.key, &entry.value).unwrap();
        assert_eq!((kept.outcome, kept.run.unwrap().exit_code), (Outcome::Lost, Some(1)));
        back.stop(&fleet).await;
        other.stop(&fleet).await;
    }
}

#[tokio::test]
async fn a_frozen_node_finds_its_fire_with_another_when_it_is_back() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    with_job(&fleet, "").await;
    let mut frozen = fleet.node("a").ready().await;
    let fire = running(&fleet).await;
    let mut other = fleet.node("b").ready().await;
    frozen.signal(Signal::SIGSTOP);
    let record = fleet.wait_for_record(&fire).await;
    assert_eq!(record.run.as_ref().unwrap().node.as_str(), "b");
    assert_eq!(steps(&fleet), ["begin 1 a", "end 1", "begin 2 b"]);
    frozen.signal(Signal::SIGCONT);
    frozen.wait_until_it_says(&fleet, "late=true").await;
    assert_eq!(fleet.wait_for_record(&fire).await, record, "it stays");
    frozen.stop(&fleet).await;
    other.stop(&fleet).await;
}

#[tokio::test]
async fn an_at_most_once_fire_of_a_lost_node_is_recorded_and_its_lane_is_free_again() {
    for fleet in each_store().await {
        with_job(&fleet, "promise = 'at-most-once'").await;
        let mut lost = fleet.node("a").ready().await;
        let fire = running(&fleet).await;
        let mut other = fleet.node("b").ready().await;
        lost.lose_host();
        let record = fleet.wait_for_record(&fire).await;
        assert_eq!((record.outcome, record.reason.as_deref()), (Outcome::Lost, Some("its node was lost")));
        assert_eq!((record.writer.node().unwrap().as_str(), record.run.unwrap().node.as_str()), ("b", "a"));
        assert_eq!(steps(&fleet), ["begin 1 a"]);
        fleet.sync("[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = 'true'\n").await;
        let next = fleet.ask("once").await;
        assert_eq!(fleet.wait_for_record(&next).await.outcome, Outcome::Succeeded);
        other.stop(&fleet).await;
    }
}

#[tokio::test]
async fn what_a_machine_that_goes_down_hands_back_waits_for_nobody() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    // Nobody could wait for so long a hold.
    with_job(&fleet, "").await;
    let mut down = fleet.node("a").going_down().ready().await;
    let fire = running(&fleet).await;
    let mut other = fleet.node("b").ready().await;
    down.stop(&fleet).await;
    let record = fleet.wait_for_record(&fire).await;
    let run = record.run.as_ref().unwrap();
    assert_eq!((record.outcome, run.node.as_str()), (Outcome::Succeeded, "b"));
    let [past] = &record.past[..] else { panic!("one attempt before: {record:?}") };
    assert_eq!((past.reason.as_deref(), past.exit_code), (Some("shutdown"), Some(1)));
    let waited = run.claimed_at - past.ended_at.unwrap();
    assert!(waited < chrono::TimeDelta::seconds(5), "less than any hold: {waited}");
    other.stop(&fleet).await;
}

#[tokio::test]
async fn a_host_made_anew_under_its_old_name_sees_to_what_the_old_one_left() {
    for fleet in each_store().await {
        with_job(&fleet, "").await;
        let mut lost = fleet.node("a").ready().await;
        let fire = running(&fleet).await;
        lost.lose_host();
        let mut anew = fleet.node("a").state("anew").ready().await;
        let record = fleet.wait_for_record(&fire).await;
        assert_eq!((record.outcome, record.run.unwrap().attempt), (Outcome::Succeeded, 2));
        anew.stop(&fleet).await;
    }
}

#[tokio::test]
async fn when_the_one_that_waits_is_lost_too_a_third_sees_to_both() {
    let fleet = Fleet::on_etcd(Version::V34).await;
    with_job(&fleet, "").await;
    let mut first = fleet.node("a").ready().await;
    let fire = running(&fleet).await;
    let mut second = fleet.node("b").ready().await;
    first.lose_host();
    second.wait_until_it_says(&fleet, "its node is lost").await;
    second.lose_host();
    let mut third = fleet.node("c").ready().await;
    let record = fleet.wait_for_record(&fire).await;
    let run = record.run.as_ref().unwrap();
    assert_eq!((record.outcome, run.attempt, run.node.as_str()), (Outcome::Succeeded, 2, "c"));
    third.stop(&fleet).await;
}
