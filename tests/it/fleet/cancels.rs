//! `cancel`: at whatever moment it comes, the record is the right one.

use super::*;

async fn with_job(fleet: &Fleet, fields: &str, command: &str) {
    let command = quoted(&fleet.marking(command));
    fleet
        .sync(&format!(
            "[jobs.a]\nschedule = '0 0 1 1 *'\ncommand = {command}\nkill_after = '1s'\n{fields}\n"
        ))
        .await;
}

fn cancel(fleet: &Fleet, fire: &Fire) -> (i32, String) {
    let named = if fire.job.is_of_tasks() { fire.id.to_string() } else { fire.to_string() };
    fleet.answer(&["cancel", &named])
}

#[tokio::test]
async fn what_runs_is_stopped_with_all_it_started_and_the_record_says_who_asked() {
    for fleet in [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V36).await] {
        let pid = fleet.path("pid");
        with_job(
            &fleet,
            "retry = { attempts = 3, delay = '1s' }",
            &format!("sleep 1000 & echo $! > {}; wait", pid.display()),
        )
        .await;
        let mut node = fleet.node("n").ready().await;
        let fire = fleet.ask("a").await;
        fleet
            .wait_until("it to run", async || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')))
            .await;
        assert_eq!(cancel(&fleet, &fire).0, 0);
        let record = fleet.wait_for_record(&fire).await;
        let reason = record.reason.as_deref().unwrap_or_default();
        assert_eq!(record.outcome, Outcome::Cancelled, "{record:?}");
        assert!(reason.contains("cancelled by") && reason.contains('@'), "{reason}");
        let child: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        fleet.wait_until("all of it to be gone", async || is_gone(child)).await;
        assert_eq!(fleet.marks().len(), 1, "it is not tried again");
        // After the end, and twice.
        for _ in 0..2 {
            let (code, said) = cancel(&fleet, &fire);
            assert!(code == 1 && said.contains("has ended already: cancelled"), "{code} {said}");
        }
        assert_eq!(fleet.wait_for_record(&fire).await, record);
        assert!(fleet.told(&["acts"]).contains("cancel"));
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn what_waits_for_its_next_attempt_gets_none() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    with_job(&fleet, "retry = { attempts = 3, delay = '10m' }", "exit 5").await;
    let mut node = fleet.node("n").ready().await;
    let fire = fleet.ask("a").await;
    fleet
        .wait_until("it to wait", async || fleet.lock(&fire).await.is_some_and(|lock| lock.due.is_some()))
        .await;
    let (first, second) = (cancel(&fleet, &fire), cancel(&fleet, &fire));
    assert_eq!(first.0, 0, "{first:?}");
    assert!([0, 1].contains(&second.0), "{second:?}");
    let record = fleet.wait_for_record(&fire).await;
    assert_eq!((record.outcome, fleet.marks().len()), (Outcome::Cancelled, 1));
    assert!(record.past.iter().any(|past| past.exit_code == Some(5)), "{record:?}");
    node.stop(&fleet).await;
}

#[tokio::test]
async fn a_request_and_a_task_that_nobody_has_begun_are_taken_back() {
    let fleet = Fleet::on_etcd(Version::V34).await;
    with_job(&fleet, "", "true").await;
    let fire = fleet.ask("a").await;
    let told = fleet.told(&["submit", "--priority", "3", "--", "true"]);
    let task = Fire::new("~task".parse().unwrap(), told.trim().parse().unwrap());
    for fire in [&fire, &task] {
        assert_eq!(cancel(&fleet, fire).0, 0);
        let record = fleet.wait_for_record(fire).await;
        assert_eq!((record.outcome, record.run), (Outcome::Cancelled, None));
        assert_eq!(cancel(&fleet, fire).0, 1);
    }
    let mut node = fleet.node("n").ready().await;
    let other = fleet.ask("a").await;
    fleet.wait_for_record(&other).await;
    assert_eq!(fleet.marks().len(), 1, "only the other one ran");
    node.stop(&fleet).await;
    let (code, said) = fleet.answer(&["cancel", "a/m-01ARZ3NDEKTSV4RRFFQ69G5FAV"]);
    assert!(code == 1 && said.contains("nothing is known"), "{code} {said}");
    let (code, said) = fleet.answer(&["cancel", "a"]);
    assert!(code == 2 && said.contains("JOB/FIRE"), "{code} {said}");
}

#[tokio::test]
async fn a_cancel_during_the_start_is_obeyed() {
    let fleet = Fleet::on_sqlite().await;
    with_job(&fleet, "", "sleep 1000").await;
    let mut node = fleet.node("n").fail_at("run.begin=wait").start();
    let fire = fleet.ask("a").await;
    fleet.wait_until("it to be claimed", async || fleet.lock(&fire).await.is_some()).await;
    fleet.wait_until("it to wait", async || fleet.waiting_path().exists()).await;
    assert_eq!(cancel(&fleet, &fire).0, 0);
    fs::remove_file(fleet.waiting_path()).unwrap();
    let record = fleet.wait_for_record(&fire).await;
    assert_eq!(record.outcome, Outcome::Cancelled, "{record:?}\n{}", fleet.logs());
    node.stop(&fleet).await;
}

#[tokio::test]
async fn start_by_force_runs_beside_what_runs() {
    let fleet = Fleet::on_sqlite().await;
    with_job(&fleet, "", "sleep 1000").await;
    let mut node = fleet.node("n").ready().await;
    let first = fleet.ask("a").await;
    fleet.wait_until("it to run", async || fleet.marks().len() == 1).await;
    let told = fleet.told(&["start", "a", "--force"]);
    let second = Fire::new(name("a"), told.trim().parse().unwrap());
    fleet.wait_until("both to run", async || fleet.marks().len() == 2).await;
    for fire in [&first, &second] {
        cancel(&fleet, fire);
        fleet.wait_for_record(fire).await;
    }
    node.stop(&fleet).await;
}
