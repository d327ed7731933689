//! Mutexes: what jobs and tasks share is had by one of them, and all get it in their turn.

use super::*;

/// A command that fails when another one is inside at the same time.
fn alone(fleet: &Fleet, more: &str) -> String {
    let inside = fleet.path("inside").display().to_string();
    fleet.marking(&format!("mkdir {inside} || exit 99; {more}; rmdir {inside}"))
}

#[tokio::test]
async fn jobs_and_tasks_that_share_a_mutex_never_run_together_and_all_run() {
    for fleet in
        [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V34).await, Fleet::on_etcd(Version::V36).await]
    {
        let command = quoted(&alone(&fleet, "sleep 0.05"));
        let mut text = String::from("[defaults]\nmutex = 'db1'\noverlap = 'allow'\n");
        for job in 0..5 {
            text += &format!("[jobs.job-{job}]\nschedule = '0 0 1 1 *'\ncommand = {command}\n");
        }
        fleet.sync(&text).await;
        let mut nodes = Vec::new();
        let count = if long() { 10 } else { 3 };
        for number in 0..count {
            nodes.push(fleet.node(&format!("n{number}")).ready().await);
        }
        let (mut fires, each) = (Vec::new(), if long() { 100 } else { 8 });
        for _ in 0..each {
            for job in 0..5 {
                fires.push(fleet.ask(&format!("job-{job}")).await);
            }
        }
        let told = fleet.told(&["submit", "--mutex", "db1", "--", &alone(&fleet, "true")]);
        let task = Fire::new("~task".parse().unwrap(), told.trim().parse().unwrap());
        for fire in fires.iter().chain([&task]) {
            let record = fleet.wait_for_record(fire).await;
            assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}\n{}", fleet.logs());
        }
        fleet
            .wait_until("nothing to be left", async || fleet.list(keys::mutexes()).await.entries.is_empty())
            .await;
        for node in &mut nodes {
            node.stop(&fleet).await;
        }
        fleet.check_books(Gaps::None).await;
    }
}

#[tokio::test]
async fn what_waits_says_for_whom_and_who_asked_first_comes_next() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    let hold = fleet.path("hold");
    fs::write(&hold, "").unwrap();
    let wait = format!("while [ -e {} ]; do sleep 0.02; done", hold.display());
    let text = format!(
        "[defaults]\nmutex = 'db1'\nschedule_is = 0\n[jobs.first]\nschedule = '0 0 1 1 *'\ncommand = {}\n\
         [jobs.second]\nschedule = '0 0 1 1 *'\ncommand = {}\n[jobs.third]\nschedule = '0 0 1 1 *'\ncommand = {}\n",
        quoted(&fleet.marking(&wait)),
        quoted(&fleet.marking("true")),
        quoted(&fleet.marking("true")),
    )
    .replace("schedule_is = 0\n", "");
    fleet.sync(&text).await;
    let (mut one, mut two) = (fleet.node("a").ready().await, fleet.node("b").ready().await);
    let first = fleet.ask("first").await;
    fleet.wait_until("the first to run", async || fleet.marks().len() == 1).await;
    let mut waits = Vec::new();
    for job in ["third", "second"] {
        waits.push(fleet.ask(job).await);
        fleet
            .wait_until("it to wait", async || {
                fleet.list(keys::mutex_waits(&"db1".parse().unwrap())).await.entries.len() == waits.len()
            })
            .await;
    }
    let told = fleet.told(&["jobs", "second"]);
    assert!(told.contains(&format!("waits for mutex db1, which {first} has")), "{told}");
    let told = fleet.told(&["runs", "third"]);
    assert!(told.contains("waiting") && told.contains(&first.to_string()), "{told}");
    fs::remove_file(&hold).unwrap();
    for fire in &waits {
        assert_eq!(fleet.wait_for_record(fire).await.outcome, Outcome::Succeeded);
    }
    let order: Vec<_> = fleet.marks().into_iter().map(|(job, _, _)| job).collect();
    assert_eq!(order, ["first", "third", "second"]);
    one.stop(&fleet).await;
    two.stop(&fleet).await;
}

#[tokio::test]
async fn the_mutex_of_a_lost_node_is_free_when_its_hold_is_over() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    let text = format!(
        "[defaults]\nmutex = 'db1'\nhold = '6s'\nkill_after = '1s'\npromise = 'at-most-once'\n\
         [jobs.long]\nschedule = '0 0 1 1 *'\ncommand = {}\n[jobs.next]\nschedule = '0 0 1 1 *'\ncommand = {}\n",
        quoted(&alone(
            &fleet,
            &format!(
                "trap 'rmdir {}; exit 1' TERM; while :; do sleep 0.05; done",
                fleet.path("inside").display()
            )
        )),
        quoted(&alone(&fleet, "true")),
    );
    fleet.sync(&text).await;
    let mut lost = fleet.node("a").ready().await;
    let long = fleet.ask("long").await;
    fleet.wait_until("it to run", async || fleet.marks().len() == 1).await;
    let mut other = fleet.node("b").ready().await;
    let next = fleet.ask("next").await;
    // The daemon alone: its command is ended by its guard, within the hold.
    lost.kill();
    let record = fleet.wait_for_record(&next).await;
    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}\n{}", fleet.logs());
    assert_eq!(fleet.wait_for_record(&long).await.outcome, Outcome::Lost);
    other.stop(&fleet).await;
}

#[tokio::test]
async fn what_gets_no_mutex_within_start_within_is_missed_and_holds_up_nobody() {
    let fleet = Fleet::on_sqlite().await;
    let hold = fleet.path("hold");
    fs::write(&hold, "").unwrap();
    let wait = format!("while [ -e {} ]; do sleep 0.02; done", hold.display());
    let text = format!(
        "[defaults]\nmutex = 'db1'\n[jobs.long]\nschedule = '0 0 1 1 *'\ncommand = {}\n\
         [jobs.hasty]\nschedule = '0 0 1 1 *'\nstart_within = '1s'\ncommand = 'true'\n\
         [jobs.patient]\nschedule = '0 0 1 1 *'\ncommand = 'true'\n",
        quoted(&fleet.marking(&wait)),
    );
    fleet.sync(&text).await;
    let mut node = fleet.node("a").ready().await;
    fleet.ask("long").await;
    fleet.wait_until("it to run", async || fleet.marks().len() == 1).await;
    let (hasty, patient) = (fleet.ask("hasty").await, fleet.ask("patient").await);
    let record = fleet.wait_for_record(&hasty).await;
    assert_eq!((record.outcome, record.reason.as_deref()), (Outcome::Missed, Some("too late")));
    fs::remove_file(&hold).unwrap();
    assert_eq!(fleet.wait_for_record(&patient).await.outcome, Outcome::Succeeded);
    node.stop(&fleet).await;
}
