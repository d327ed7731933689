//! How a daemon goes, in order or not, and what the next one makes of it.

use fleetcron::cgroup::Delegated;

use fleetcron::store::values::LockState;

use super::*;

/// A fleet with a job `once` that leaves its mark and then does `more`; the command's pid is in the file `pid`.
async fn with_job(fleet: Fleet, more: &str, fields: &str) -> Fleet {
    let pid = fleet.path("pid");
    let command = quoted(&fleet.marking(&format!("echo $$ > {}; {more}", pid.display())));
    fleet.sync(&format!("[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = {command}\n{fields}\n")).await;
    fleet
}

/// Asks for `once` and waits until its command runs. Returns the fire, and the pid of the command.
async fn running(fleet: &Fleet) -> (Fire, i32) {
    let fire = fleet.ask("once").await;
    let pid = fleet
        .wait_for("the command to begin", async || {
            fs::read_to_string(fleet.path("pid")).ok()?.trim().parse().ok()
        })
        .await;
    (fire, pid)
}

async fn each_store() -> Vec<Fleet> {
    vec![Fleet::on_sqlite().await, Fleet::on_etcd(Version::V36).await]
}

/// The one run of a record.
fn run(record: &Record) -> &fleetcron::record::RunFacts {
    record.run.as_ref().expect("it was run")
}

#[tokio::test]
async fn term_touches_no_command_and_the_next_daemon_takes_it_back() {
    for fleet in each_store().await {
        let release = fleet.path("release");
        let more = format!("until [ -e {} ]; do sleep 0.1; done; exit 5", release.display());
        let fleet = with_job(fleet, &more, "").await;
        let mut node = fleet.node("a").ready().await;
        let (fire, pid) = running(&fleet).await;
        node.stop(&fleet).await;
        assert!(fleet.presence("a").await.is_none(), "its key goes with it");
        assert!(!is_gone(pid), "the command does not notice");
        assert_eq!(hold_of(&fleet, &fire).await, Some(900_000), "it may go on for a quarter of an hour");
        let mut next = fleet.node("a").ready().await;
        fleet
            .wait_until("the hold to be the job's again", async || {
                hold_of(&fleet, &fire).await == Some(60_000)
            })
            .await;
        assert!(!is_gone(pid));
        fs::write(&release, "").unwrap();
        let record = fleet.wait_for_record(&fire).await;
        assert_eq!((record.outcome, run(&record).exit_code), (Outcome::Failed, Some(5)));
        let token = fleet.token(&fire);
        assert_eq!(Some(run(&record).fencing_token), token, "the one that the command was told");
        next.stop(&fleet).await;
        fleet.check_books(Gaps::Allowed).await;
    }
}

#[tokio::test]
async fn stopped_for_longer_than_the_hold_a_node_finds_its_commands_untouched() {
    for fleet in each_store().await {
        let release = fleet.path("release");
        let more = format!("until [ -e {} ]; do sleep 0.1; done", release.display());
        let fleet = with_job(fleet, &more, "hold = '6s'\nkill_after = '1s'").await;
        // A second job, with a time-out that it keeps.
        let (lasts, gap) = if long() { (20, 120) } else { (4, 8) };
        let timed = format!(
            "[source]\nname = 'timed'\n[jobs.timed]\nschedule = '0 0 1 1 *'\ntimeout = '30s'\n\
            command = 'sleep {lasts}; exit 6'\nhold = '6s'\nkill_after = '1s'\n"
        );
        fleet.sync(&timed).await;
        let mut node = fleet.node("a").ready().await;
        let timed = fleet.ask("timed").await;
        let (fire, pid) = running(&fleet).await;
        fleet.wait_until("both to run", async || node.guards().len() == 2).await;
        node.stop(&fleet).await;
        let stopped = Instant::now();
        fleet.wait_until("a while to pass", async || stopped.elapsed() > Duration::from_secs(gap)).await;
        assert!(!is_gone(pid));
        let mut next = fleet.node("a").ready().await;
        next.wait_until_it_says(&fleet, "taken back").await;
        let record = fleet.wait_for_record(&timed).await;
        assert_eq!((run(&record).exit_code, run(&record).attempt), (Some(6), 1));
        let lasted = run(&record).ended_at.unwrap() - run(&record).started_at.unwrap();
        assert!(lasted >= chrono::TimeDelta::seconds(lasts), "it was not cut short: {lasted}");
        assert!(!is_gone(pid));
        fs::write(&release, "").unwrap();
        assert_eq!(fleet.wait_for_record(&fire).await.outcome, Outcome::Succeeded);
        next.stop(&fleet).await;
    }
}

#[tokio::test]
async fn what_ends_while_no_daemon_is_there_is_recorded_as_it_ended() {
    for fleet in each_store().await {
        let release = fleet.path("release");
        let more = format!("until [ -e {} ]; do sleep 0.1; done; exit 9", release.display());
        let fleet = with_job(fleet, &more, "").await;
        let mut node = fleet.node("a").ready().await;
        let (fire, pid) = running(&fleet).await;
        node.stop(&fleet).await;
        fs::write(&release, "").unwrap();
        fleet.wait_until("the command to end", async || is_gone(pid)).await;
        let mut next = fleet.node("a").ready().await;
        let record = fleet.wait_for_record(&fire).await;
        assert_eq!((run(&record).exit_code, run(&record).attempt), (Some(9), 1));
        next.stop(&fleet).await;
    }
}

#[tokio::test]
async fn a_machine_that_goes_down_stops_its_commands_and_hands_them_back() {
    for fleet in each_store().await {
        let fleet = with_job(fleet, "trap 'exit 3' TERM; while :; do sleep 0.1; done", "").await;
        let mut node = fleet.node("a").going_down().ready().await;
        let (fire, pid) = running(&fleet).await;
        node.stop(&fleet).await;
        assert!(is_gone(pid), "it is gone before its node is");
        let lock = fleet.lock(&fire).await.expect("handed back, not deleted");
        assert_eq!((lock.state, lock.hold), (LockState::Waiting, Some(0)));
        let past = &lock.past()[0];
        assert_eq!((past.outcome, past.reason.as_deref()), (Outcome::Lost, Some("shutdown")));
        // The next start runs it again.
        fleet.sync("[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = 'exit 0'\n").await;
        let mut next = fleet.node("a").ready().await;
        let record = fleet.wait_for_record(&fire).await;
        assert_eq!((record.outcome, run(&record).attempt), (Outcome::Succeeded, 2));
        assert_eq!(record.past.len(), 1);
        assert_eq!((record.past[0].exit_code, record.past[0].signal), (Some(3), None));
        next.stop(&fleet).await;
    }
}

#[tokio::test]
async fn a_second_term_does_not_wait_for_the_store() {
    let mut fleet = with_job(Fleet::on_etcd(Version::V36).await, "exec sleep 300", "").await;
    let mut node = fleet.node("a").ready().await;
    let (_, pid) = running(&fleet).await;
    fleet.etcd().freeze();
    node.signal(Signal::SIGTERM);
    node.wait_until_it_says(&fleet, "goes on without this daemon").await;
    node.signal(Signal::SIGTERM);
    node.wait_until_it_says(&fleet, "not everything could be written").await;
    assert!(!is_gone(pid), "the command goes on for as long as its lock says");
    fleet.etcd().thaw();
    assert!(node.wait_for_end(&fleet).await.success());
}

/// It was lost with its guard once, and then succeeded.
fn was_lost_and_run_again(record: &Record) {
    assert_eq!((record.outcome, run(record).attempt), (Outcome::Succeeded, 2));
    let [past] = &record.past[..] else { panic!("one attempt before: {record:?}") };
    assert_eq!((past.outcome, past.reason.as_deref()), (Outcome::Lost, Some("the guard was lost")));
}

async fn hold_of(fleet: &Fleet, fire: &Fire) -> Option<u64> {
    fleet.lock(fire).await.and_then(|lock| lock.hold)
}

#[tokio::test]
async fn hup_reads_the_job_files_again_and_ends_nothing() {
    let fleet = with_job(Fleet::on_sqlite().await, "sleep 1", "").await;
    let jobs = fleet.path("more.toml");
    let text = |minute: u32| {
        format!("[source]\nname = 'more'\n[jobs.b]\nschedule = '{minute} 0 1 1 *'\ncommand = 'true'\n")
    };
    fs::write(&jobs, text(1)).unwrap();
    let mut node = fleet.node("a").jobs(&jobs).ready().await;
    node.wait_until_it_says(&fleet, "in the store now").await;
    let (fire, _) = running(&fleet).await;
    fs::write(&jobs, text(2)).unwrap();
    node.signal(Signal::SIGHUP);
    node.wait_until_it_says(&fleet, "reloading the job files").await;
    fleet
        .wait_until("the change to be in the store", async || {
            let entry = fleet.store.get("jobs/b").await.unwrap().unwrap();
            Definition::decode(&entry.key, &entry.value).unwrap().job.schedule.texts() == ["2 0 1 1 *"]
        })
        .await;
    assert_eq!(fleet.wait_for_record(&fire).await.outcome, Outcome::Succeeded);
    assert!(node.status().is_none());
    node.stop(&fleet).await;
}

#[tokio::test]
async fn a_command_goes_on_when_its_daemon_is_killed_and_the_next_one_takes_it_back() {
    for fleet in each_store().await {
        let release = fleet.path("release");
        let more = format!("until [ -e {} ]; do sleep 0.1; done; exit 7", release.display());
        let fleet = with_job(fleet, &more, "").await;
        let mut first = fleet.node("a").ready().await;
        let (fire, pid) = running(&fleet).await;
        first.kill();
        let mut second = fleet.node("a").ready().await;
        second.wait_until_it_says(&fleet, "taken back").await;
        assert!(!is_gone(pid), "the same command runs on");
        fs::write(&release, "").unwrap();
        let record = fleet.wait_for_record(&fire).await;
        assert_eq!(
            (record.outcome, run(&record).exit_code, run(&record).attempt),
            (Outcome::Failed, Some(7), 1)
        );
        second.stop(&fleet).await;
        fleet.check_books(Gaps::Allowed).await;
    }
}

#[tokio::test]
async fn with_its_guard_killed_too_a_run_is_lost_its_leftovers_end_and_the_next_fire_runs() {
    for fleet in each_store().await {
        // One in another process group of the same session, and one that does not heed TERM.
        let more = "bash -c 'set -m; sleep 300 & wait' & (trap '' TERM; sleep 300) & sleep 300";
        let fleet = with_job(fleet, more, "").await;
        let mut first = fleet.node("a").ready().await;
        let (fire, pid) = running(&fleet).await;
        let [guard] = first.guards()[..] else { panic!("one guard, please") };
        first.kill();
        kill(Pid::from_raw(guard), Signal::SIGKILL).unwrap();
        assert!(!is_gone(pid), "nobody ended the command yet");
        fleet.sync("[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = 'true'\n").await;
        let mut second = fleet.node("a").ready().await;
        let record = fleet.wait_for_record(&fire).await;
        was_lost_and_run_again(&record);
        assert!(is_gone(pid), "its leftovers end before its record is written");
        assert!(session_members(guard).unwrap().is_empty());
        let next = fleet.ask("once").await;
        assert_eq!(fleet.wait_for_record(&next).await.outcome, Outcome::Succeeded);
        second.stop(&fleet).await;
    }
}

#[tokio::test]
async fn under_a_living_daemon_too_the_leftovers_of_a_lost_guard_end_before_the_job_may_run_again() {
    for fleet in each_store().await {
        // One that has left the session: only a cgroup tells whose it is.
        let escaped = fleet.path("escaped");
        let more = format!(
            "[ $FLEETCRON_ATTEMPT = 1 ] || exit 0; \
             (trap '' TERM; sleep 300) & (setsid sh -c 'echo $$ > {0}; exec sleep 300' &); \
             until [ -s {0} ]; do sleep 0.02; done; sleep 300",
            escaped.display()
        );
        let fleet = with_job(fleet, &more, "").await;
        let mut node = fleet.node("a").ready().await;
        let (fire, pid) = running(&fleet).await;
        fleet
            .wait_until("the escape", async || {
                fs::read_to_string(&escaped).is_ok_and(|text| text.ends_with('\n'))
            })
            .await;
        let escaped: i32 = fs::read_to_string(&escaped).unwrap().trim().parse().unwrap();
        let [guard] = node.guards()[..] else { panic!("one guard, please") };
        kill(Pid::from_raw(guard), Signal::SIGKILL).unwrap();
        let record = fleet.wait_for_record(&fire).await;
        was_lost_and_run_again(&record);
        assert!(is_gone(pid), "its leftovers end before it is run again");
        assert!(session_members(guard).unwrap().is_empty());
        match Delegated::find() {
            Ok(_) => assert!(is_gone(escaped), "nor does what left the session live on"),
            Err(why) => {
                println!("not shown: {why}");
                kill(Pid::from_raw(escaped), Signal::SIGKILL).unwrap();
            }
        }
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn a_node_that_cannot_register_any_more_says_why_and_goes_without_waiting_for_races() {
    let fleet = with_job(Fleet::on_etcd(Version::V34).await, "true", "").await;
    let mut node = fleet.node("a").ready().await;
    let name = "a".parse().unwrap();
    let spoilt = [Op::put(keys::epoch(&name), "no epoch"), Op::delete(keys::node(&name))];
    fleet.store.txn(Txn::new().then(spoilt)).await.unwrap();
    let began = Instant::now();
    let fire = fleet.ask("once").await;
    let status = node.wait_for_end(&fleet).await;
    assert_eq!(status.code(), Some(1));
    assert!(began.elapsed() < Duration::from_secs(30), "it waited for {fire}");
    assert!(node.says("this node cannot go on: epochs/a cannot be read"), "{}", node.log());
}

#[tokio::test]
async fn a_second_daemon_on_the_same_state_folder_is_refused_in_one_line() {
    let fleet = with_job(Fleet::on_sqlite().await, "true", "").await;
    let mut first = fleet.node("a").ready().await;
    let mut second = fleet.node("a").start();
    let status = second.wait_for_end(&fleet).await;
    assert_eq!(status.code(), Some(1));
    let log = second.log();
    let said: Vec<&str> = log.lines().filter(|line| line.contains("in use by another daemon")).collect();
    assert_eq!(said.len(), 1, "{log}");
    assert!(first.status().is_none());
    // Its drop would end what runs in the folder.
    drop(second);
    first.stop(&fleet).await;
}

#[tokio::test]
async fn a_name_belongs_to_one_node_while_it_lives() {
    for fleet in each_store().await {
        let fleet = with_job(fleet, "true", "").await;
        let mut first = fleet.node("a").ready().await;
        let mut other = fleet.node("a").state("other").start();
        let status = other.wait_for_end(&fleet).await;
        assert_eq!(status.code(), Some(1));
        assert!(other.says("another node is registered as a and is alive"), "{}", fleet.logs());
        // Killed, it is thought alive until its lease runs out: the other waits for that.
        first.kill();
        let mut other = fleet.node("a").state("other").ready().await;
        let fire = fleet.ask("once").await;
        assert_eq!(fleet.wait_for_record(&fire).await.outcome, Outcome::Succeeded);
        other.stop(&fleet).await;
    }
}
