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
use crate::store::values::{self, Epoch, Former, Lock, TaskKey};
use crate::store::{Compare, Entry, KeyRange, Op, PageSpec, Revision, Store, StoreError, Txn, keys};

/// So many go in one transaction.
const AT_ONCE: usize = 100;

/// Former definitions and pauses that are over are kept for as long at least: nobody waits so long to settle a fire.
const KEPT_FOR: TimeDelta = TimeDelta::days(40);

/// What is kept of tasks that have ended: their records, and their output on the nodes.
pub const TASKS_KEPT: Keep = Keep { records: 10_000, days: 30, output: u64::MAX };

/// A request for a job that is not there waits for so long that it may come back.
const ASKED_IN_VAIN_FOR: TimeDelta = TimeDelta::days(7);

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

/// Removes the records of tasks that are more, or older, than are kept, and the keys that stand for a task no longer.
/// One node does it now and then for all.
pub async fn prune_tasks(store: &Store, now: Timestamp) -> Result<(), StoreError> {
    prune(store, &JobName::of_tasks(), &Lane::OneNode, &TASKS_KEPT, now).await?;
    let mut spec = PageSpec::default();
    loop {
        let page = store.page(keys::task_keys(), spec.clone()).await?;
        spec.after = page.entries.last().map(|entry| entry.key.clone());
        let expired = page.entries.iter().filter(|entry| {
            values::decode::<TaskKey>(&entry.key, &entry.value).is_ok_and(|key| key.until <= now)
        });
        // Safe when somebody submits with it at the same time: then it is at another revision, and stays.
        let deletes = expired.map(|entry| {
            let as_seen = Compare::mod_revision(entry.key.as_str(), entry.mod_revision);
            Op::from(Txn::when([as_seen]).then([Op::delete(entry.key.as_str())]))
        });
        let deletes: Vec<Op> = deletes.collect();
        for some in deletes.chunks(NESTED_AT_ONCE) {
            store.txn(Txn::new().then(some.to_vec())).await?;
        }
        if !page.more {
            return Ok(());
        }
    }
}

/// etcd counts what is nested too.
const NESTED_AT_ONCE: usize = 50;

/// Removes requests that nobody will use up: of fires that are decided, of jobs that have long been gone, and to stop
/// what has ended; and how far chains had come of jobs that are gone.
async fn prune_requests(store: &Store, now: Timestamp) -> Result<(), StoreError> {
    let requests = names(store, keys::requests()).await?;
    let chains = names(store, keys::chains()).await?;
    let mut deletes: Vec<Op> = Vec::new();
    // Each safe when the request is used up, or made, at the same time: what makes it useless is compared.
    let mut delete_when = |compare: Vec<Compare>, key: &str| {
        deletes.push(Txn::when(compare).then([Op::delete(key)]).into());
    };
    for key in &requests {
        if let Some(fire) = keys::fire_to_cancel(key) {
            delete_when(vec![Compare::absent(keys::lock(&fire))], key);
        } else if let Some(fire) = keys::fire_requested(key) {
            delete_when(vec![Compare::present(keys::record(&fire))], key);
            if fire.scheduled_at() < now - ASKED_IN_VAIN_FOR {
                delete_when(
                    vec![Compare::absent(keys::job(&fire.job)), Compare::absent(keys::lock(&fire))],
                    key,
                );
            }
        }
    }
    for key in &chains {
        if let Ok(job) = keys::name_of(key).parse::<JobName>() {
            delete_when(vec![Compare::absent(keys::job(&job))], key);
        }
    }
    for delete in deletes {
        // One by one: two of them may be about one key, and there are few.
        store.txn(Txn::new().then([delete])).await?;
    }
    Ok(())
}

/// Removes the epochs of nodes that are gone for good: not registered, without locks, and begun longer ago than anything
/// of that time is kept. `forget` does it at once.
async fn prune_epochs(store: &Store, now: Timestamp) -> Result<(), StoreError> {
    let epochs = store.list(keys::epochs()).await?.entries;
    let registered: HashSet<String> =
        names(store, keys::nodes()).await?.iter().map(|key| keys::name_of(key).to_owned()).collect();
    let locks = store.list(keys::locks()).await?.entries;
    // One that cannot be read may be anybody's.
    let holders: Result<HashSet<String>, _> = locks
        .iter()
        .map(|entry| values::decode::<Lock>(&entry.key, &entry.value).map(|lock| lock.node.to_string()))
        .collect();
    let Ok(holders) = holders else { return Ok(()) };
    for entry in epochs {
        let name = keys::name_of(&entry.key);
        let Ok(epoch) = values::decode::<Epoch>(&entry.key, &entry.value) else { continue };
        let begun: Timestamp = epoch.node_start.0.datetime().into();
        if begun > now - KEPT_FOR || registered.contains(name) || holders.contains(name) {
            continue;
        }
        // Safe when the node comes back at the same time: that moves its epoch, and only who is registered gets locks.
        let as_seen = Compare::mod_revision(entry.key.as_str(), entry.mod_revision);
        let is_gone = Compare::absent(format!("nodes/{name}"));
        let gone = store.txn(Txn::when([as_seen, is_gone]).then([Op::delete(entry.key.as_str())])).await?;
        if gone.succeeded {
            info!(node = name, "a node that has long been gone is forgotten");
        }
    }
    Ok(())
}

/// Removes what is left of the past beside records: former definitions, what remains of jobs and nodes that are gone, and
/// pauses that have long been over. One node does it now and then for all.
pub async fn prune_rest(store: &Store, now: Timestamp) -> Result<(), StoreError> {
    prune_requests(store, now).await?;
    prune_epochs(store, now).await?;
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
    async fn keys_of_tasks_go_when_they_have_expired_and_records_behind_the_newest() {
        let store = Sim::new(1).client("a");
        let key = |until| values::encode(&TaskKey::new("k".to_owned(), "t-x".to_owned(), until));
        let minute = TimeDelta::minutes(1);
        let puts = [("task-keys/1", key(now() - minute)), ("task-keys/2", key(now() + minute))];
        store.txn(Txn::new().then(puts.map(|(key, value)| Op::put(key, value)))).await.unwrap();
        let old = |ago: i64| Fire::task(ulid::Ulid::from_datetime((now() - TimeDelta::days(ago)).into()));
        let (stays, goes) = (keys::record(&old(29)), keys::record(&old(31)));
        store.txn(Txn::new().then([&stays, &goes].map(|key| Op::put(key.as_str(), "{}")))).await.unwrap();
        prune_tasks(&store, now()).await.unwrap();
        let left = names(&store, KeyRange::prefix("")).await.unwrap();
        assert_eq!(left, [stays, "task-keys/2".to_owned()]);
    }

    #[tokio::test]
    async fn requests_that_nobody_uses_up_go_and_others_stay() {
        let store = Sim::new(1).client("a");
        let asked = |job: &str, ago: i64| {
            let id = ulid::Ulid::from_datetime((now() - TimeDelta::days(ago)).into());
            Fire::new(job.parse().unwrap(), FireId::Manual(id))
        };
        let (waits, decided) = (asked("a", 20), asked("a", 1));
        let (in_vain, may_come) = (asked("gone", 8), asked("gone", 6));
        let (runs, ended) = (asked("a", 2), asked("a", 3));
        let keys_put = [
            "jobs/a".to_owned(),
            keys::request(&waits),
            keys::request(&decided),
            keys::record(&decided),
            keys::request(&in_vain),
            keys::request(&may_come),
            keys::lock(&runs),
            keys::cancel_request(&runs),
            keys::cancel_request(&ended),
            "chains/a".to_owned(),
            "chains/gone".to_owned(),
        ];
        store.txn(Txn::new().then(keys_put.map(|key| Op::put(key, "{}")))).await.unwrap();
        prune_requests(&store, now()).await.unwrap();
        let left = names(&store, KeyRange::prefix("")).await.unwrap();
        let mut expected = [
            "jobs/a".to_owned(),
            keys::request(&waits),
            keys::record(&decided),
            keys::request(&may_come),
            keys::lock(&runs),
            keys::cancel_request(&runs),
            "chains/a".to_owned(),
        ];
        expected.sort();
        assert_eq!(left, expected);
    }

    #[tokio::test]
    async fn the_epoch_of_a_node_goes_when_nothing_of_its_time_is_left() {
        let store = Sim::new(1).client("a");
        let start = |ago: i64| {
            crate::node::NodeStart(ulid::Ulid::from_datetime((now() - TimeDelta::days(ago)).into()))
        };
        let epoch = |ago: i64| values::encode(&Epoch::new(start(ago), 1, "i".to_owned()));
        let policy = crate::store::values::LockPolicy {
            promise: crate::job::Promise::AtLeastOnce,
            last_start: now(),
            hold: None,
            retry: None,
            slot: None,
            task: None,
        };
        let lock = Lock::held("holds".parse().unwrap(), start(90), 1, now(), policy);
        let ops = [
            Op::put("epochs/gone", epoch(50)),
            Op::put("epochs/young", epoch(30)),
            Op::put("epochs/there", epoch(90)),
            Op::put("nodes/there", "{}"),
            Op::put("epochs/holds", epoch(90)),
            Op::put("locks/a/-/20261130T020000Z", values::encode(&lock)),
        ];
        store.txn(Txn::new().then(ops)).await.unwrap();
        prune_epochs(&store, now()).await.unwrap();
        let left = names(&store, keys::epochs()).await.unwrap();
        assert_eq!(left, ["epochs/holds", "epochs/there", "epochs/young"]);
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
