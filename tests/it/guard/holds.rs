//! A command does not outlive its hold.

use fleetcron::clock::since_boot;

use super::*;

fn now() -> u64 {
    since_boot().as_millis() as u64
}

/// Would run for long; leaves a mark when it is asked to stop.
fn long(runs: &Runs) -> String {
    format!("echo $$ > {}; exec sleep 300", runs.path("pids").display())
}

#[tokio::test]
async fn without_a_contact_the_command_is_stopped_in_time_and_it_says_why() {
    let runs = Runs::new();
    // So old a contact that TERM is due at once and KILL soon.
    let contact = Some(Contact { at: now() - 3_000, hold: 6_000 });
    let start = since_boot();
    let (_, ended) = runs.run(&Spec { contact, ..shell(&long(&runs)) }).await;
    assert_eq!((ended.how, end(&ended)), (How::OutOfTouch, (None, Some("TERM".to_owned()))));
    assert!(since_boot() - start >= Duration::from_millis(900), "not before it must");
    // It does not heed TERM: KILL comes within the hold, however long `kill_after` is.
    let contact = Contact { at: now() - 3_500, hold: 6_000 };
    let deaf = "trap '' TERM; while :; do sleep 300; done";
    let (_, ended) = runs.run(&Spec { contact: Some(contact), ..shell(deaf) }).await;
    assert_eq!((ended.how, end(&ended)), (How::OutOfTouch, (None, Some("KILL".to_owned()))));
}

#[tokio::test]
async fn a_claim_that_has_grown_stale_is_not_started() {
    let runs = Runs::new();
    for age in [5_000, 6_000, 60_000] {
        let contact = Some(Contact { at: now().saturating_sub(age), hold: 6_000 });
        let (_, ended) = runs.run(&Spec { contact, ..shell(&long(&runs)) }).await;
        assert_eq!((ended.how, ended.started_at), (How::OutOfTouch, None));
        assert!(!runs.path("pids").exists());
    }
}

#[tokio::test]
async fn contacts_keep_the_command_alive_and_change_its_hold() {
    let runs = Runs::new();
    let go = runs.path("go");
    let waits = format!("until [ -e {} ]; do sleep 0.02; done; exit 7", go.display());
    let first = Contact { at: now() - 2_000, hold: 6_000 };
    let mut run = runs.start(&Spec { kill_after: 1_000, contact: Some(first), ..shell(&waits) }).await;
    // Lengthened, as when the daemon stops; the guard says so.
    let longer = Contact { at: now(), hold: 900_000 };
    run.guard().keep(longer).await;
    assert_eq!(next_holds(&mut run).await, longer);
    // An older contact changes nothing but what it says of the hold.
    run.guard().keep(Contact { at: longer.at - 1_000, hold: 900_000 }).await;
    assert_eq!(next_holds(&mut run).await, longer);
    // Lowered again, which is in force once it is said.
    let shorter = Contact { at: now(), hold: 60_000 };
    run.guard().keep(shorter).await;
    assert_eq!(next_holds(&mut run).await, shorter);
    // What would put the end into the past is refused, and that is said.
    let stale = Contact { at: shorter.at, hold: 0 };
    run.guard().keep(stale).await;
    assert_eq!(next_holds(&mut run).await, shorter);
    // Beyond the first hold it runs on.
    wait_for("the first hold to be over", || (now() > first.at + first.hold).then_some(())).await;
    fs::write(&go, "").unwrap();
    assert_eq!(end(&run.ended().await), (Some(7), None));
}

#[tokio::test]
async fn a_contact_that_comes_after_the_deadline_does_not_revive_the_command() {
    let runs = Runs::new();
    let deaf =
        format!("trap '' TERM; echo $$ > {}; while :; do sleep 300; done", runs.path("pids").display());
    let contact = Contact { at: now() - 2_000, hold: 6_000 };
    let mut run = runs.start(&Spec { contact: Some(contact), ..shell(&deaf) }).await;
    runs.pids("pids", 1).await;
    // The guard is held up over its deadline, as on a machine that froze; meanwhile a contact comes.
    let guard = Pid::from_raw(run.guard_pid());
    kill(guard, Signal::SIGSTOP).unwrap();
    run.guard().keep(Contact { at: now(), hold: 900_000 }).await;
    wait_for("the deadline to pass", || (now() > contact.at + 4_000).then_some(())).await;
    kill(guard, Signal::SIGCONT).unwrap();
    let ended = run.ended().await;
    assert_eq!((ended.how, end(&ended)), (How::OutOfTouch, (None, Some("KILL".to_owned()))));
}

#[tokio::test]
async fn without_a_hold_no_silence_ends_a_command() {
    let runs = Runs::new();
    let go = runs.path("go");
    let waits = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
    let mut run = runs.start(&shell(&waits)).await;
    run.guard().keep(Contact { at: 0, hold: 6_000 }).await;
    run.guard().keep(Contact { at: now() - 5_000, hold: 6_000 }).await;
    let from = now();
    wait_for("what would be a hold", || (now() > from + 1_500).then_some(())).await;
    fs::write(&go, "").unwrap();
    assert_eq!((run.ended().await).how, How::Exited);
}

async fn next_holds(run: &mut Run) -> Contact {
    loop {
        match tokio::time::timeout(LONG_ENOUGH, run.guard().hear()).await.expect("an answer in time") {
            Heard::Started(_) => {}
            Heard::Holds(contact) => return contact,
            other => panic!("{other:?}"),
        }
    }
}
