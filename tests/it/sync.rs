//! Syncs: what they write, two at once, and with answers lost and crashes in the middle. On the simulated store, whose
//! seed decides what is lost and when.

use std::collections::BTreeMap;
use std::time::Duration;

use fleetcron::fire::{FireId, Lane};
use fleetcron::job::{JobName, SourceName};
use fleetcron::jobfile::{self, SourceFile};
use fleetcron::schedule::Timestamp;
use fleetcron::store::sim::{Fault, Faults, Sim};
use fleetcron::store::values::Definition;
use fleetcron::store::{Store, keys};
use fleetcron::sync::{self, SyncError, Wanted, apply, look};

fn wanted(text: &str) -> Wanted {
    let files = jobfile::parse(&[SourceFile { path: "jobs.toml", text }]).unwrap_or_else(|e| panic!("{e}"));
    Wanted { source: files.source, jobs: files.jobs, limits: files.limits }
}

/// So many jobs, all with this command: enough for several transactions.
fn many(jobs: usize, command: &str) -> Wanted {
    let job = |number| format!("[jobs.job-{number:03}]\nschedule = '0 2 * * *'\ncommand = '{command}'\n");
    wanted(&(0..jobs).map(job).collect::<String>())
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn noon() -> Timestamp {
    at("2026-11-30T12:00:00Z")
}

async fn sync_at(store: &Store, wanted: &Wanted, now: Timestamp) -> Result<usize, SyncError> {
    let outlook = look(store, wanted).await?;
    apply(store, wanted, outlook, "test@here", now).await
}

async fn definitions(store: &Store) -> BTreeMap<JobName, Definition> {
    let entries = store.list(keys::jobs()).await.unwrap().entries;
    entries
        .iter()
        .map(|entry| Definition::decode(&entry.key, &entry.value).unwrap())
        .map(|definition| (definition.job.name.clone(), definition))
        .collect()
}

/// Whether the store has just these jobs, each with its floor, and says so.
async fn holds(store: &Store, wanted: &Wanted) -> bool {
    let there = definitions(store).await;
    let jobs: Vec<_> = there.into_values().map(|definition| definition.job).collect();
    let state = sync::state(store, &wanted.source).await.unwrap();
    let complete = state.is_some_and(|state| state.complete && state.digest == wanted.digest());
    let floors = store.list(fleetcron::store::KeyRange::prefix("decided/")).await.unwrap().entries.len();
    jobs == wanted.jobs && complete && floors == wanted.jobs.len()
}

#[tokio::test(start_paused = true)]
async fn a_sync_puts_the_jobs_there_and_a_second_one_writes_nothing() {
    let sim = Sim::new(1);
    let store = sim.client("a");
    let wanted = many(300, "true");
    assert_eq!(sync_at(&store, &wanted, noon()).await.unwrap(), 300);
    assert!(holds(&store, &wanted).await);
    let revision = sim.revision();
    assert_eq!(sync_at(&store, &wanted, noon()).await.unwrap(), 0);
    assert_eq!(sim.revision(), revision);
}

#[tokio::test(start_paused = true)]
async fn only_what_differs_is_written() {
    let sim = Sim::new(1);
    let store = sim.client("a");
    sync_at(&store, &many(3, "true"), noon()).await.unwrap();
    let before = store.list(keys::jobs()).await.unwrap().entries;
    let mut changed = many(3, "true");
    changed.jobs[1] = many(3, "false").jobs.remove(1);
    assert_eq!(sync_at(&store, &changed, noon()).await.unwrap(), 1);
    let after = store.list(keys::jobs()).await.unwrap().entries;
    let same: Vec<bool> = before.iter().zip(&after).map(|(old, new)| old == new).collect();
    assert_eq!(same, [true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_schedule_changes_counts_from_then_and_any_other_change_keeps_its_time() {
    let sim = Sim::new(1);
    let store = sim.client("a");
    let name: JobName = "daily".parse().unwrap();
    let since = async |text: &str, now: &str| {
        sync_at(&store, &wanted(&format!("[jobs.daily]\n{text}")), at(now)).await.unwrap();
        definitions(&store).await[&name].since
    };
    let (nine, ten, eleven) = ("2026-11-30T09:00:00Z", "2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z");
    assert_eq!(since("schedule = '0 12 * * *'\ncommand = 'true'", nine).await, at(nine));
    assert_eq!(since("schedule = '0 12 * * *'\ncommand = 'false'", ten).await, at(nine));
    assert_eq!(since("schedule = '0 9 * * *'\ncommand = 'false'", ten).await, at(ten));
    assert_eq!(since("schedule = '0 9 * * *'\ncommand = 'false'\nenabled = false", eleven).await, at(eleven));
    // The floor is made with the job and moved by no sync.
    let floor = store.get(&keys::floor(&name, &Lane::OneNode)).await.unwrap().unwrap();
    assert_eq!(floor.value, FireId::scheduled(at(nine)).to_string().into_bytes());
}

#[tokio::test(start_paused = true)]
async fn another_sources_job_is_named_and_taken_only_by_who_asks_for_it() {
    let sim = Sim::new(1);
    let store = sim.client("a");
    sync_at(
        &store,
        &wanted("[source]\nname = 'shop'\n[jobs.a]\nschedule = '@daily'\ncommand = 'true'"),
        noon(),
    )
    .await
    .unwrap();
    let ours = wanted("[jobs.a]\nschedule = '@daily'\ncommand = 'true'");
    let outlook = look(&store, &ours).await.unwrap();
    let shop: SourceName = "shop".parse().unwrap();
    assert_eq!(outlook.foreign, [("a".parse().unwrap(), shop.clone())]);
    assert!(!outlook.is_done(&ours));
    // Applied all the same: adopted.
    assert_eq!(apply(&store, &ours, outlook, "test@here", noon()).await.unwrap(), 1);
    assert_eq!(definitions(&store).await[&"a".parse::<JobName>().unwrap()].source, SourceName::default());
}

#[tokio::test(start_paused = true)]
async fn two_syncs_at_once_end_in_one_of_the_two_results() {
    let (mut first, mut second, mut stopped) = (0, 0, 0);
    for seed in 0..60 {
        let sim = Sim::new(seed);
        let (one, two) = (many(300, "one"), many(260, "two"));
        sim.set_faults(Faults { delay: Duration::ZERO..Duration::from_millis(20), ..Faults::default() });
        let (a, b) = (sim.client("a"), sim.client("b"));
        let ended = tokio::join!(sync_at(&a, &one, noon()), sync_at(&b, &two, noon()));
        let (is_one, is_two) = (holds(&a, &one).await, holds(&a, &two).await);
        assert!(is_one != is_two, "seed {seed}: {ended:?}");
        // Who was told that all is well has what it wanted, or was followed by the other.
        assert!(ended.0.is_ok() || ended.1.is_ok(), "seed {seed}: {ended:?}");
        assert!(ended.0.is_ok() || is_two, "seed {seed}: {ended:?}");
        assert!(ended.1.is_ok() || is_one, "seed {seed}: {ended:?}");
        first += usize::from(is_one);
        second += usize::from(is_two);
        stopped += usize::from(matches!(
            ended,
            (Err(SyncError::Displaced { .. }), _) | (_, Err(SyncError::Displaced { .. }))
        ));
    }
    println!("{first} ended as the first, {second} as the second; {stopped} were stopped in the middle");
    assert!(first > 0 && second > 0, "both results are seen");
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_or_answer_changes_no_result() {
    for seed in 0..40 {
        let sim = Sim::new(seed);
        let store = sim.client("a");
        let wanted = many(300, "true");
        sim.set_faults(Faults { lose_request: 0.15, lose_reply: 0.15, ..Faults::default() });
        let ended = sync_at(&store, &wanted, noon()).await;
        sim.set_faults(Faults::default());
        // So much may be lost that the store counts as away; then it is just done again.
        if ended.is_err() {
            assert!(matches!(ended, Err(SyncError::Store(_))), "seed {seed}: {ended:?}");
            sync_at(&store, &wanted, noon()).await.unwrap();
        }
        assert!(holds(&store, &wanted).await, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sync_that_died_after_any_of_its_transactions_is_completed_by_the_next() {
    let wanted = many(300, "true");
    for survived in 1.. {
        let sim = Sim::new(7);
        let store = sim.client("a");
        for _ in 0..survived {
            // Each change takes a moment, so that the death can come between two of them.
            sim.at_next_change("a", Fault::Delay(Duration::from_secs(1)));
        }
        let died = tokio::time::timeout(
            Duration::from_millis(1000 * survived - 500),
            sync_at(&store, &wanted, noon()),
        );
        if died.await.is_ok() {
            println!("a sync of {} changes was interrupted at {} places", wanted.jobs.len(), survived - 1);
            assert!(survived > 4, "there are several places");
            return;
        }
        sync_at(&store, &wanted, noon()).await.unwrap_or_else(|error| panic!("after {survived}: {error}"));
        assert!(holds(&store, &wanted).await, "after {survived}");
    }
}
