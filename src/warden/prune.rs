//! Retention: what the store keeps of a lane's past goes when its time has come.
//!
//! Only records at or under the floor go: the floor says that those fires are decided when their records no longer do.
//! Deletes alone are sent, which etcd takes also when its space has run out.

use std::cmp::Reverse;
use std::collections::HashSet;

use chrono::TimeDelta;
use tracing::{debug, info};

use crate::fire::{Fire, FireId, Lane};
use crate::job::{JobName, Keep};
use crate::schedule::Timestamp;
use crate::store::values::Former;
use crate::store::{Compare, Entry, KeyRange, Op, PageSpec, Revision, Store, StoreError, Txn, keys};

/// So many go in one transaction.
const AT_ONCE: usize = 100;

/// Former definitions and pauses that are over are kept for as long at least: nobody waits so long to settle a fire.
const KEPT_FOR: TimeDelta = TimeDelta::days(40);

/// The floors of a job that is gone are settled and go long before this.
const LANES_KEPT_FOR: TimeDelta = TimeDelta::days(7);

/// Removes the records of a lane that are more, or older, than its job keeps. Returns how many.
pub async fn prune(
    store: &Store,
    job: &JobName,
    lane: &Lane,
    keep: &Keep,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let floor = store.get(&keys::floor(job, lane)).await?;
    let (at, revision) = match floor.as_ref().map(super::read_floor) {
        Some(Some((at, revision))) => (at, revision),
        // One that cannot be read says nothing.
        Some(None) => return Ok(0),
        // The job is gone, and all that was due is settled.
        None => (Timestamp::MAX_UTC, Revision(0)),
    };
    let found = names(store, keys::records_in(job, lane)).await?;
    let surplus = surplus(&found, keep, at, now);
    for some in surplus.chunks(AT_ONCE) {
        // Safe when two do it at once, and done twice: what is deleted stays decided by the floor, which is as it was
        // when what lies under it was worked out.
        let as_seen = Compare::mod_revision(keys::floor(job, lane), revision);
        let reply =
            store.txn(Txn::when([as_seen]).then(some.iter().map(|key| Op::delete(key.as_str())))).await?;
        if !reply.succeeded {
            debug!(%job, %lane, "the floor has moved, the rest goes another time");
            return Ok(0);
        }
    }
    if !surplus.is_empty() {
        debug!(%job, %lane, removed = surplus.len(), "old records are removed");
    }
    Ok(surplus.len())
}

/// Of the keys of a lane's records and late results, those that go.
///
/// The newest fires stay, as many as the job keeps and as long as it keeps them. What lies above the floor stays, and
/// so does the newest fire of a boot, since no floor tells that it is decided.
fn surplus(found: &[String], keep: &Keep, floor: Timestamp, now: Timestamp) -> Vec<String> {
    let mut fires: Vec<(Fire, &String)> =
        found.iter().filter_map(|key| Some((keys::fire_with_record(key)?, key))).collect();
    fires.sort_by_key(|(fire, _)| Reverse((fire.scheduled_at(), fire.id.to_string())));
    let newest_boot = fires.iter().map(|(fire, _)| fire.id).find(|id| matches!(id, FireId::Boot(_)));
    let oldest = now - TimeDelta::days(i64::from(keep.days));
    let mut seen = HashSet::new();
    let goes = |fire: &Fire, seen: &mut HashSet<FireId>| {
        seen.insert(fire.id);
        let is_surplus = seen.len() > keep.records as usize || fire.scheduled_at() < oldest;
        let is_decided = match fire.id {
            FireId::Scheduled(at) => at <= floor,
            // Its request is used up, or its place in the queue.
            FireId::Manual(_) | FireId::Chain(_) | FireId::Task(_) => true,
            FireId::Boot(_) => Some(fire.id) != newest_boot,
        };
        is_surplus && is_decided
    };
    let gone = fires.into_iter().filter(|(fire, _)| goes(fire, &mut seen));
    gone.map(|(_, key)| key.clone()).collect()
}

/// The keys of a range, without what they hold.
async fn names(store: &Store, range: KeyRange) -> Result<Vec<String>, StoreError> {
    let (mut names, mut spec) = (Vec::new(), PageSpec { keys_only: true, ..PageSpec::default() });
    loop {
        let page = store.page(range.clone(), spec.clone()).await?;
        spec.after = page.entries.last().map(|entry| entry.key.clone());
        names.extend(page.entries.into_iter().map(|entry| entry.key));
        if !page.more {
            return Ok(names);
        }
    }
}

/// Removes what is left of the past beside records: former definitions, what remains of jobs that are gone, and pauses
/// that have long been over. One node does it now and then for all.
pub async fn prune_rest(store: &Store, now: Timestamp) -> Result<(), StoreError> {
    let mut old = Vec::new();
    let mut spec = PageSpec::default();
    loop {
        let page = store.page(keys::all_jobs_before(), spec.clone()).await?;
        spec.after = page.entries.last().map(|entry| entry.key.clone());
        for entry in &page.entries {
            if is_outlived(store, entry, now).await? {
                old.push(entry.key.clone());
            }
        }
        if !page.more {
            break;
        }
    }
    let pauses = store.list(keys::pauses()).await?.entries;
    old.extend(pauses.into_iter().map(|entry| entry.key).filter(|key| {
        keys::pause_ended(key).is_some() && keys::ended_at(key).is_some_and(|at| at < now - KEPT_FOR)
    }));
    for some in old.chunks(AT_ONCE) {
        // Safe when two do it at once: none of these keys is ever used again.
        store.txn(Txn::new().then(some.iter().map(|key| Op::delete(key.as_str())))).await?;
    }
    if !old.is_empty() {
        info!(removed = old.len(), "former definitions and pauses that are long over are removed");
    }
    Ok(())
}

/// Whether a former definition is older than all that its job keeps. Those of a job that is gone go with its records,
/// which are kept as by default.
async fn is_outlived(store: &Store, entry: &Entry, now: Timestamp) -> Result<bool, StoreError> {
    let Ok(Former { definition, until, removed }) = Former::decode(&entry.key, &entry.value) else {
        // A later release's: not ours to remove.
        return Ok(false);
    };
    let kept = TimeDelta::days(i64::from(definition.job.keep.days)).max(KEPT_FOR);
    if !removed {
        return Ok(until < now - kept);
    }
    let job = &definition.job.name;
    if store.get(&keys::job(job)).await?.is_some() {
        return Ok(until < now - kept);
    }
    if until < now - LANES_KEPT_FOR {
        // Of nodes that were away and never came back: what is left there was not due on them.
        let gone = Txn::when([Compare::absent(keys::job(job))]);
        store.txn(gone.then([Op::delete(keys::floors_of(job))])).await?;
    }
    let left = names(store, keys::records_of(job)).await?;
    let lanes: HashSet<Lane> =
        left.iter().filter_map(|key| keys::fire_with_record(key)).map(|fire| fire.lane).collect();
    let mut lanes: Vec<Lane> = lanes.into_iter().collect();
    lanes.sort();
    for lane in lanes {
        prune(store, job, &lane, &Keep::default(), now).await?;
    }
    Ok(left.is_empty() && until < now - KEPT_FOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sim::Sim;

    const NOW: &str = "2026-11-30T12:00:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn keep(records: u32, days: u32) -> Keep {
        Keep { records, days, output: 1 }
    }

    #[track_caller]
    fn check(keep: Keep, floor: &str, found: &[&str], go: &[&str]) {
        let found: Vec<String> = found.iter().map(|text| format!("history/a/-/{text}")).collect();
        let gone = surplus(&found, &keep, floor.parse().unwrap(), now());
        let gone: Vec<&str> = gone.iter().map(|key| key.strip_prefix("history/a/-/").unwrap()).collect();
        assert_eq!(gone, go);
    }

    const A: &str = "20261130T100000Z";
    const B: &str = "20261129T100000Z";
    const C: &str = "20261128T100000Z";
    const D: &str = "20261020T100000Z";

    #[test]
    fn records_go_with_age_and_behind_the_newest() {
        check(keep(100, 30), NOW, &[A, B, C, D], &[D]);
        check(keep(100, 365), NOW, &[A, B, C, D], &[]);
        check(keep(2, 365), NOW, &[A, B, C, D], &[C, D]);
        check(keep(0, 365), NOW, &[A, B], &[A, B]);
        check(keep(2, 365), NOW, &[A, B, "m-01ARZ3NDEKTSV4RRFFQ69G5FAV"], &["m-01ARZ3NDEKTSV4RRFFQ69G5FAV"]);
    }

    /// H2: a record that no floor covers is all that tells that its fire is decided.
    #[test]
    fn what_lies_above_the_floor_stays_whatever_its_age() {
        check(keep(1, 1), "2026-11-28T10:00:00Z", &[A, B, C, D], &[C, D]);
        check(keep(1, 1), "2026-10-01T00:00:00Z", &[A, B, C, D], &[]);
    }

    #[test]
    fn the_newest_boot_stays_and_late_results_go_with_their_records() {
        let (old, new) = ("boot-01ARZ3NDEKTSV4RRFFQ69G5FAV", "boot-01BX5ZZKBKACTAV9WEVGEMMVRZ");
        check(keep(0, 30), NOW, &[old, new], &[old]);
        let late = format!("{D}/late-01ARZ3NDEKTSV4RRFFQ69G5FAV-1");
        check(keep(100, 30), NOW, &[A, D, &late], &[D, &late]);
        // Two keys of one fire count once.
        check(keep(1, 365), NOW, &[A, &format!("{A}/late-01ARZ3NDEKTSV4RRFFQ69G5FAV-1")], &[]);
    }

    #[tokio::test]
    async fn a_lane_is_pruned_to_what_its_job_keeps_and_only_while_its_floor_stands() {
        let store = Sim::new(1).client("a");
        let (job, lane): (JobName, Lane) = ("a".parse().unwrap(), Lane::OneNode);
        let at = |minute: i64| now() - TimeDelta::minutes(minute);
        let fire = |minute| Fire::new(job.clone(), FireId::scheduled(at(minute)));
        for minute in 0..250 {
            store.txn(Txn::new().then([Op::put(keys::record(&fire(minute)), "{}")])).await.unwrap();
        }
        let floor = FireId::scheduled(at(20)).to_string();
        store.txn(Txn::new().then([Op::put(keys::floor(&job, &lane), floor)])).await.unwrap();
        let before = store.list(keys::records()).await.unwrap().entries.len();
        assert_eq!(prune(&store, &job, &lane, &keep(10, 30), now()).await.unwrap(), 230);
        let left = store.list(keys::records()).await.unwrap().entries;
        assert_eq!((before, left.len()), (250, 20));
        // Another lane is another's.
        assert_eq!(prune(&store, &job, &"@b".parse().unwrap(), &keep(0, 0), now()).await.unwrap(), 0);
        assert_eq!(prune(&store, &job, &lane, &keep(10, 30), now()).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn what_is_left_of_jobs_that_are_gone_goes_in_the_end() {
        use crate::store::values::Definition;
        let store = Sim::new(1).client("a");
        let files = [crate::jobfile::SourceFile {
            path: "jobs.toml",
            text: "[jobs.a]\ncommand = 'true'\nschedule = '@daily'\n",
        }];
        let job = crate::jobfile::parse(&files).unwrap().jobs.remove(0);
        let name = job.name.clone();
        let definition = Definition { job, source: "s".parse().unwrap(), since: now() };
        let former = |until: Timestamp, removed| Former { definition: definition.clone(), until, removed };
        let day = TimeDelta::days(1);
        let put = |key: String, value: Vec<u8>| Op::put(key, value);
        let record = |ago: i32| keys::record(&Fire::new(name.clone(), FireId::scheduled(now() - day * ago)));
        let ops = [
            put(keys::job_before(&name, Revision(3)), former(now() - day * 90, false).encode()),
            put(keys::job_before(&name, Revision(5)), former(now() - day * 20, false).encode()),
            put(keys::job_before(&name, Revision(7)), former(now() - day * 20, true).encode()),
            put(record(90), b"{}".to_vec()),
            put(record(21), b"{}".to_vec()),
            put(keys::ended_pause("paused/a", now() - day * 50), b"{}".to_vec()),
            put(keys::ended_pause("paused/a", now() - day), b"{}".to_vec()),
            put("paused/a".to_owned(), b"{}".to_vec()),
        ];
        store.txn(Txn::new().then(ops)).await.unwrap();
        prune_rest(&store, now()).await.unwrap();
        let left = names(&store, KeyRange::prefix("")).await.unwrap();
        let expected = [
            record(21),
            keys::job_before(&name, Revision(5)),
            keys::job_before(&name, Revision(7)),
            "paused/a".to_owned(),
            keys::ended_pause("paused/a", now() - day),
        ];
        assert_eq!(left, expected);
        let later = now() + day * 40;
        prune_rest(&store, later).await.unwrap();
        prune_rest(&store, later).await.unwrap();
        let left = names(&store, KeyRange::prefix("")).await.unwrap();
        assert_eq!(left, ["paused/a"]);
    }
}
