//! Contact and hold: what a node out of touch does to its commands, and what it does not.

use std::os::unix::fs::PermissionsExt;

use fleetcron::store::values::Epoch;

use super::*;

/// Jobs `one` to `many` that go on until the file `release` is there, each with these fields.
async fn with_patient_jobs(fleet: &Fleet, many: usize, fields: &str) {
    let release = fleet.path("release");
    let more = format!(
        "echo $$ > {}/pid-$FLEETCRON_JOB; until [ -e {} ]; do sleep 0.2; done",
        fleet.path("").display(),
        release.display()
    );
    let command = quoted(&fleet.marking(&more));
    let jobs = (0..many)
        .map(|number| format!("[jobs.j{number}]\nschedule = '0 0 1 1 *'\ncommand = {command}\n{fields}\n"));
    fleet.sync(&jobs.collect::<String>()).await;
}

async fn pid_of(fleet: &Fleet, job: &str) -> i32 {
    let path = fleet.path(&format!("pid-{job}"));
    fleet.wait_for("the command to begin", async || fs::read_to_string(&path).ok()?.trim().parse().ok()).await
}

fn release(fleet: &Fleet) {
    fs::write(fleet.path("release"), "").unwrap();
}

#[tokio::test]
async fn a_daemon_frozen_for_longer_than_the_hold_loses_its_command_in_time_and_runs_it_again() {
    for fleet in [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V34).await] {
        with_patient_jobs(&fleet, 1, "hold = '6s'\nkill_after = '1s'").await;
        let mut node = fleet.node("a").ready().await;
        let fire = fleet.ask("j0").await;
        let pid = pid_of(&fleet, "j0").await;
        node.signal(Signal::SIGSTOP);
        // Its guard counts by itself.
        fleet.wait_until("the command to be stopped", async || is_gone(pid)).await;
        release(&fleet);
        node.signal(Signal::SIGCONT);
        let record = fleet.wait_for_record(&fire).await;
        let run = record.run.as_ref().unwrap();
        assert_eq!((record.outcome, run.attempt), (Outcome::Succeeded, 2), "{}", fleet.logs());
        let [past] = &record.past[..] else { panic!("one attempt before: {record:?}") };
        assert_eq!((past.outcome, past.signal), (Outcome::Lost, Some(15)));
        assert!(past.reason.as_deref().unwrap().contains("out of touch"), "{past:?}");
        let lasted = past.ended_at.unwrap() - past.started_at.unwrap();
        assert!(lasted < chrono::TimeDelta::seconds(6 + 2), "within its hold: {lasted}");
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn with_a_longer_hold_a_frozen_daemon_finds_its_command_untouched() {
    for fleet in [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V36).await] {
        with_patient_jobs(&fleet, 1, "hold = '2m'").await;
        let mut node = fleet.node("a").ready().await;
        let fire = fleet.ask("j0").await;
        let pid = pid_of(&fleet, "j0").await;
        node.signal(Signal::SIGSTOP);
        // Its lease is gone long before its hold.
        fleet.wait_until("its lease to be lost", async || fleet.presence("a").await.is_none()).await;
        node.signal(Signal::SIGCONT);
        node.wait_until_it_says(&fleet, "registered again").await;
        assert!(!is_gone(pid));
        release(&fleet);
        let record = fleet.wait_for_record(&fire).await;
        assert_eq!((record.outcome, record.run.unwrap().attempt), (Outcome::Succeeded, 1));
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn when_all_leases_are_revoked_no_command_is_touched() {
    const MANY: usize = 20;
    for version in [Version::V34, Version::V36] {
        let fleet = Fleet::on_etcd(version).await;
        with_patient_jobs(&fleet, MANY, "hold = '10s'\nkill_after = '1s'").await;
        let mut node = fleet.node("a").ready().await;
        let mut fires = Vec::new();
        let mut pids = Vec::new();
        for number in 0..MANY {
            fires.push(fleet.ask(&format!("j{number}")).await);
            pids.push(pid_of(&fleet, &format!("j{number}")).await);
        }
        let entry = fleet.store.get(&keys::node(&"a".parse().unwrap())).await.unwrap().unwrap();
        fleet.store.revoke(entry.lease.unwrap()).await.unwrap();
        node.wait_until_it_says(&fleet, "registered again").await;
        // Beyond what the contacts before it were good for.
        let since = Instant::now();
        fleet.wait_until("the hold to pass", async || since.elapsed() > Duration::from_secs(12)).await;
        for pid in &pids {
            assert!(!is_gone(*pid), "{}", fleet.logs());
        }
        release(&fleet);
        for fire in &fires {
            let record = fleet.wait_for_record(fire).await;
            assert_eq!((record.outcome, record.run.unwrap().attempt), (Outcome::Succeeded, 1));
        }
        node.stop(&fleet).await;
    }
}

#[tokio::test]
async fn what_is_somebody_elses_when_a_node_is_back_is_stopped_at_once_and_its_result_kept() {
    let fleet = Fleet::on_etcd(Version::V36).await;
    with_patient_jobs(&fleet, 2, "").await;
    let mut node = fleet.node("a").ready().await;
    let (taken, kept) = (fleet.ask("j0").await, fleet.ask("j1").await);
    let (pid, other) = (pid_of(&fleet, "j0").await, pid_of(&fleet, "j1").await);
    // While the node is away another takes one of its fires over.
    node.signal(Signal::SIGSTOP);
    fleet.wait_until("its lease to be lost", async || fleet.presence("a").await.is_none()).await;
    let lock = fleet.lock(&taken).await.unwrap();
    let by = lock.next_attempt(&"b".parse().unwrap(), lock.node_start, chrono::Utc::now(), None);
    fleet.store.txn(Txn::new().then([Op::put(keys::lock(&taken), values::encode(&by))])).await.unwrap();
    node.signal(Signal::SIGCONT);
    fleet.wait_until("the command to be stopped", async || is_gone(pid)).await;
    assert!(!is_gone(other), "the other is still its own");
    let late = keys::late_record(&taken, lock.node_start, 1);
    let entry = fleet.wait_for("its result", async || fleet.store.get(&late).await.unwrap()).await;
    let record = values::decode_record(taken.clone(), &entry.key, &entry.value).unwrap();
    assert_eq!((record.outcome, record.reason.as_deref()), (Outcome::Cancelled, Some("the lock was lost")));
    assert_eq!(fleet.lock(&taken).await, Some(by), "nothing is done to the lock of another");
    release(&fleet);
    assert_eq!(fleet.wait_for_record(&kept).await.outcome, Outcome::Succeeded);
    node.stop(&fleet).await;
}

#[tokio::test]
async fn a_node_whose_identity_another_daemon_uses_says_so_and_goes() {
    let fleet = Fleet::on_etcd(Version::V34).await;
    with_patient_jobs(&fleet, 1, "").await;
    let mut node = fleet.node("a").ready().await;
    fleet.ask("j0").await;
    let pid = pid_of(&fleet, "j0").await;
    // What a clone of the machine, with all its memory, does when it registers.
    let presence = fleet.presence("a").await.unwrap();
    let clone = Epoch::new(presence.node_start, 1000, "clone".to_owned());
    let epoch = keys::epoch(&"a".parse().unwrap());
    fleet.store.txn(Txn::new().then([Op::put(epoch, values::encode(&clone))])).await.unwrap();
    let status = node.wait_for_end(&fleet).await;
    assert_eq!(status.code(), Some(1));
    assert!(node.says("another daemon acts as this very node"), "{}", fleet.logs());
    assert!(!is_gone(pid), "whose it is, its hold decides");
}

#[tokio::test]
async fn a_command_that_stops_its_own_guard_does_not_block_its_job() {
    let fleet = Fleet::on_sqlite().await;
    fleet.sync("[jobs.once]\nschedule = '0 0 1 1 *'\ncommand = 'kill -STOP $PPID; exit 4'\n").await;
    let mut node = fleet.node("a").ready().await;
    let fire = fleet.ask("once").await;
    let record = fleet.wait_for_record(&fire).await;
    assert_eq!((record.outcome, record.run.unwrap().exit_code), (Outcome::Failed, Some(4)));
    node.stop(&fleet).await;
}

#[tokio::test]
async fn c20_a_run_that_outlasts_every_lease_is_never_doubled_on_three_nodes() {
    let (lasts, rounds) = if long() { (60, 4) } else { (12, 2) };
    let fleet = Fleet::on_etcd(Version::V34).await;
    let steps = fleet.path("steps").display().to_string();
    let more = format!("echo begin >> {steps}; sleep {lasts}; echo end >> {steps}");
    let command = quoted(&fleet.marking(&more));
    fleet.sync(&format!("[jobs.long]\nschedule = '@every 1s'\ncommand = {command}\nhold = '6s'\n")).await;
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(fleet.node(name).ready().await);
    }
    let ends = || fs::read_to_string(&steps).unwrap_or_default().matches("end").count();
    for round in 1..=rounds {
        let since = Instant::now();
        fleet
            .wait_until("the run to end", async || {
                assert!(since.elapsed() < LONG_ENOUGH, "{}", fleet.logs());
                ends() >= round
            })
            .await;
    }
    for node in &mut nodes {
        node.stop(&fleet).await;
    }
    let text = fs::read_to_string(&steps).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.chunks(2).all(|pair| matches!(pair, ["begin", "end"] | ["begin"])),
        "two at once: {lines:?}"
    );
    println!("{} runs of {lasts} s under leases of 5 s, never two at once", lines.len().div_ceil(2));
}

/// Commands of different lengths, and a daemon that is killed again and again meanwhile: none of them notices.
#[tokio::test]
async fn commands_outlive_any_number_of_daemons_and_each_is_recorded_as_it_ended() {
    let (many, longest, kills) = if long() { (100, 60, 10) } else { (20, 8, 4) };
    let fleet = Fleet::on_etcd(Version::V36).await;
    // Notes its pid and start time at its beginning and at its end: they must be the same process.
    let script = fleet.path("work.sh");
    let text = "#!/bin/sh\n\
        me() { cut -d' ' -f1,22 /proc/$$/stat; }\n\
        was=$(me); echo \"begun $was\"; sleep $1; i=0\n\
        while [ $i -lt 100 ]; do echo \"line $i of $2\"; i=$((i+1)); done\n\
        [ \"$was\" = \"$(me)\" ] && echo \"whole $2\"; exit $2\n";
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let jobs = (0..many).map(|number| {
        let seconds = 1 + number * (longest - 1) / (many - 1);
        let command = quoted(&fleet.marking(&format!("exec {} {seconds} {number}", script.display())));
        // Recorded as a failure, so that the record carries its output.
        format!("[jobs.j{number}]\nschedule = '0 0 1 1 *'\ncommand = {command}\nsuccess_exit = [255]\n")
    });
    fleet.sync(&jobs.collect::<String>()).await;
    let slots = many.to_string();
    let mut node = fleet.node("a").with(&["--slots", &slots]).ready().await;
    let mut fires = Vec::new();
    for number in 0..many {
        fires.push(fleet.ask(&format!("j{number}")).await);
    }
    fleet.wait_until("all to begin", async || fleet.marks().len() == many).await;
    let mut former = Vec::new();
    for round in 0..kills {
        let ended = fleet.records().await.len();
        node.kill();
        // Its drop would end what it started.
        former.push(std::mem::replace(&mut node, fleet.node("a").with(&["--slots", &slots]).ready().await));
        let next = (ended + 1).max(many * (round + 1) / (kills + 1));
        fleet.wait_until("some to end", async || fleet.records().await.len() >= next.min(many)).await;
    }
    for (number, fire) in fires.iter().enumerate() {
        let record = fleet.wait_for_record(fire).await;
        let run = record.run.as_ref().unwrap();
        assert_eq!((run.exit_code, run.attempt), (Some(number as i32), 1), "{record:?}");
        let output = record.tail.as_deref().unwrap();
        assert!(output.ends_with(&format!("line 99 of {number}\nwhole {number}\n")), "{output}");
        assert_eq!(output.lines().count(), 102, "all of it: {output}");
    }
    node.stop(&fleet).await;
    let books = fleet.check_books(Gaps::Allowed).await;
    println!("{many} commands of 1 to {longest} s, {kills} kills: {books}");
    assert_eq!((books.records, books.starts), (many, many));
}
