//! The keys of the store, as the table in the design has them. Nobody else spells one.

use crate::fire::{Fire, FireId, Lane};
use crate::job::{JobName, MutexName, Priority, Slot, SourceName};
use crate::node::NodeName;
use crate::schedule::Timestamp;
use crate::task::{self, InQueue};

use ulid::Ulid;

use super::{KeyRange, Revision};

/// The definition in force.
pub fn job(name: &JobName) -> String {
    format!("jobs/{name}")
}

pub fn jobs() -> KeyRange {
    KeyRange::prefix("jobs/")
}

/// A definition that was in force, under the revision at which it was put.
pub fn job_before(name: &JobName, revision: Revision) -> String {
    // As long as any revision, so that they sort.
    format!("jobs-before/{name}/{:019}", revision.0)
}

/// The former definitions of a job, the oldest first.
pub fn jobs_before(name: &JobName) -> KeyRange {
    KeyRange::prefix(format!("jobs-before/{name}/"))
}

pub fn all_jobs_before() -> KeyRange {
    KeyRange::prefix("jobs-before/")
}

/// The job whose former definition a key of `jobs-before/` holds.
pub fn former_job(key: &str) -> Option<JobName> {
    key.strip_prefix("jobs-before/")?.split_once('/')?.0.parse().ok()
}

pub fn source(name: &SourceName) -> String {
    format!("sources/{name}")
}

pub fn sources() -> KeyRange {
    KeyRange::prefix("sources/")
}

/// The floor of a lane: every scheduled fire up to it is decided.
pub fn floor(job: &JobName, lane: &Lane) -> String {
    format!("decided/{job}/{lane}")
}

pub fn floors() -> KeyRange {
    KeyRange::prefix("decided/")
}

/// The lane whose floor a key of `decided/` holds.
pub fn lane_of(key: &str) -> Option<(JobName, Lane)> {
    let (job, lane) = key.strip_prefix("decided/")?.split_once('/')?;
    Some((job.parse().ok()?, lane.parse().ok()?))
}

/// The floors of all lanes of a job.
pub fn floors_of(job: &JobName) -> KeyRange {
    KeyRange::prefix(format!("decided/{job}/"))
}

pub fn status(job: &JobName, lane: &Lane) -> String {
    format!("status/{job}/{lane}")
}

pub fn statuses_of(job: &JobName) -> KeyRange {
    KeyRange::prefix(format!("status/{job}/"))
}

pub fn statuses() -> KeyRange {
    KeyRange::prefix("status/")
}

pub fn node(name: &NodeName) -> String {
    format!("nodes/{name}")
}

pub fn nodes() -> KeyRange {
    KeyRange::prefix("nodes/")
}

pub fn epoch(name: &NodeName) -> String {
    format!("epochs/{name}")
}

/// The lock of a fire that is being dealt with.
pub fn lock(fire: &Fire) -> String {
    format!("locks/{}", path(fire))
}

pub fn locks() -> KeyRange {
    KeyRange::prefix("locks/")
}

/// The locks of a lane's scheduled fires after `after`, up to `until`.
pub fn locks_between(job: &JobName, lane: &Lane, after: Timestamp, until: Timestamp) -> KeyRange {
    between("locks", job, lane, after, until)
}

/// The records of a lane's scheduled fires after `after`, up to `until`.
pub fn records_between(job: &JobName, lane: &Lane, after: Timestamp, until: Timestamp) -> KeyRange {
    between("history", job, lane, after, until)
}

fn between(what: &str, job: &JobName, lane: &Lane, after: Timestamp, until: Timestamp) -> KeyRange {
    let key = |at| format!("{what}/{job}/{lane}/{}", FireId::scheduled(at));
    // What lies under the first one's key, a late result, comes before the end of it.
    let begin = key(after) + AFTER_ALL_BELOW;
    // A range without a key is refused. No fire has this one, so where there is none in between none is found.
    let end = (key(until) + "\0").max(format!("{begin}\0"));
    KeyRange::between(begin, end)
}

/// Comes after `/`, so behind all that lies under a key.
const AFTER_ALL_BELOW: &str = "0";

/// All locks of a lane.
pub fn locks_in(job: &JobName, lane: &Lane) -> KeyRange {
    KeyRange::prefix(format!("locks/{job}/{lane}/"))
}

/// All records of a lane.
pub fn records_in(job: &JobName, lane: &Lane) -> KeyRange {
    KeyRange::prefix(format!("history/{job}/{lane}/"))
}

/// All locks of a job, in every lane: the trailing slash keeps `a` apart from `a-b`.
pub fn locks_of(job: &JobName) -> KeyRange {
    KeyRange::prefix(format!("locks/{job}/"))
}

/// The record of a fire.
pub fn record(fire: &Fire) -> String {
    format!("history/{}", path(fire))
}

pub fn records() -> KeyRange {
    KeyRange::prefix("history/")
}

pub fn records_of(job: &JobName) -> KeyRange {
    KeyRange::prefix(format!("history/{job}/"))
}

/// A true result that came after somebody else had closed the fire.
pub fn late_record(fire: &Fire, node_start: impl std::fmt::Display, attempt: u32) -> String {
    format!("history/{}/late-{node_start}-{attempt}", path(fire))
}

pub fn paused(job: &JobName) -> String {
    format!("paused/{job}")
}

/// A pause that is over, of what this key holds back: kept under it for a while, since fires that came due in it are not
/// to be caught up with.
pub fn ended_pause(paused: &str, until: Timestamp) -> String {
    format!("{paused}/{}", act_time(until))
}

/// When the pause ended of which a key of [`ended_pause`] tells.
pub fn ended_at(key: &str) -> Option<Timestamp> {
    let (_, at) = key.rsplit_once('/')?;
    Some(chrono::NaiveDateTime::parse_from_str(at, ACT_TIME).ok()?.and_utc())
}

/// What a key under a pause's own was about: the key of the pause.
pub fn pause_ended(key: &str) -> Option<&str> {
    let (paused, _) = key.rsplit_once('/')?;
    paused.contains('/').then_some(paused)
}

/// All pauses, also that of all jobs, and those that are over.
pub fn pauses() -> KeyRange {
    KeyRange::prefix("paused/")
}

/// A job's name cannot begin with a tilde.
pub fn all_paused() -> String {
    "paused/~all".to_owned()
}

pub fn drained(node: &NodeName) -> String {
    format!("drained/{node}")
}

/// All drained nodes.
pub fn drains() -> KeyRange {
    KeyRange::prefix("drained/")
}

pub fn epochs() -> KeyRange {
    KeyRange::prefix("epochs/")
}

/// An act of an operator. The keys sort by time; the id keeps those of one instant apart.
pub fn act(at: Timestamp, id: Ulid) -> String {
    format!("acts/{}-{id}", act_time(at))
}

pub fn acts() -> KeyRange {
    KeyRange::prefix("acts/")
}

/// The acts from an instant on.
pub fn acts_since(at: Timestamp) -> KeyRange {
    let KeyRange::Span { end: Some(end), .. } = acts() else { return acts() };
    KeyRange::between(format!("acts/{}", act_time(at)), end)
}

/// The acts before an instant.
pub fn acts_before(at: Timestamp) -> KeyRange {
    KeyRange::between("acts/", format!("acts/{}", act_time(at)))
}

/// In milliseconds, so that as texts they sort by time.
fn act_time(at: Timestamp) -> impl std::fmt::Display {
    at.format(ACT_TIME)
}

const ACT_TIME: &str = "%Y%m%dT%H%M%S%.3fZ";

/// A request to start a job, named by the id of the fire it asks for.
pub fn request(fire: &Fire) -> String {
    format!("requests/{}/{}", fire.job, fire.id)
}

/// A request to stop a fire. It is there only while the fire has a lock.
pub fn cancel_request(fire: &Fire) -> String {
    match &fire.lane {
        Lane::OneNode => format!("requests/{}/{CANCEL}{}", fire.job, fire.id),
        lane @ Lane::Node(_) => format!("requests/{}/{CANCEL}{}{lane}", fire.job, fire.id),
    }
}

const CANCEL: &str = "cancel-";

/// A task that waits: `queue/<shard>/<priority>/<due>-<id>`, so that those of one priority lie in the order in which they
/// are due.
pub fn queued(place: &InQueue) -> String {
    let InQueue { priority, due, id } = place;
    format!("queue/{}/{priority}/{}-t-{id}", place.shard(), act_time(*due))
}

pub fn queue() -> KeyRange {
    KeyRange::prefix("queue/")
}

/// The tasks of a part of the queue with one priority, in the order in which they are due.
pub fn queue_of(shard: u8, priority: Priority) -> KeyRange {
    KeyRange::prefix(format!("queue/{shard}/{priority}/"))
}

/// All parts of the queue, the higher priorities first.
pub fn queue_parts() -> impl Iterator<Item = KeyRange> {
    Priority::all().flat_map(|priority| (0..task::SHARDS).map(move |shard| queue_of(shard, priority)))
}

/// The place that a key of `queue/` names.
pub fn task_in_queue(key: &str) -> Option<InQueue> {
    let mut parts = key.strip_prefix("queue/")?.split('/');
    let (Some(_), Some(priority), Some(last), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let (due, id) = last.split_once("-t-")?;
    let due = chrono::NaiveDateTime::parse_from_str(due, ACT_TIME).ok()?.and_utc();
    let place = InQueue { priority: priority.parse().ok()?, due, id: id.parse().ok()? };
    // One spelling for each.
    (queued(&place) == key).then_some(place)
}

/// The task that was submitted with a key. Keys are free texts, so their digest stands for them.
pub fn task_key(digest: &str) -> String {
    format!("task-keys/{digest}")
}

pub fn task_keys() -> KeyRange {
    KeyRange::prefix("task-keys/")
}

/// A place of a mutex.
pub fn mutex_slot(slot: &Slot) -> String {
    format!("mutexes/{slot}")
}

/// The places of a mutex that are taken.
pub fn mutex_slots(mutex: &MutexName) -> KeyRange {
    // Numbers, and not who waits.
    KeyRange::between(format!("mutexes/{mutex}/0"), format!("mutexes/{mutex}/:"))
}

/// That a fire waits for a mutex: these sort by the instants of the fires, which is the order in which they get it.
pub fn mutex_wait(mutex: &MutexName, fire: &Fire) -> String {
    let Fire { job, lane, id } = fire;
    format!("mutexes/{mutex}/{WAIT}{}-{job},{lane},{id}", act_time(fire.scheduled_at()))
}

const WAIT: &str = "wait-";

/// The fires that wait for a mutex before this one.
pub fn mutex_waits_before(mutex: &MutexName, fire: &Fire) -> KeyRange {
    KeyRange::between(format!("mutexes/{mutex}/{WAIT}"), mutex_wait(mutex, fire))
}

/// All that wait for a mutex.
pub fn mutex_waits(mutex: &MutexName) -> KeyRange {
    KeyRange::prefix(format!("mutexes/{mutex}/{WAIT}"))
}

pub fn mutexes() -> KeyRange {
    KeyRange::prefix("mutexes/")
}

/// What a key of `mutexes/` names: the mutex, and one of its places or, with none, somebody who waits.
pub fn mutex_of(key: &str) -> Option<(MutexName, Option<u32>)> {
    let (mutex, rest) = key.strip_prefix("mutexes/")?.split_once('/')?;
    let number = match rest.starts_with(WAIT) {
        true => None,
        false => Some(rest.parse().ok()?),
    };
    Some((mutex.parse().ok()?, number))
}

/// How many may have a mutex at once, as a source says.
pub fn limit(mutex: &MutexName, source: &SourceName) -> String {
    format!("limits/{mutex}/{source}")
}

pub fn limits() -> KeyRange {
    KeyRange::prefix("limits/")
}

/// The mutex and the source of a key of `limits/`.
pub fn limit_of(key: &str) -> Option<(MutexName, SourceName)> {
    let (mutex, source) = key.strip_prefix("limits/")?.split_once('/')?;
    Some((mutex.parse().ok()?, source.parse().ok()?))
}

/// How far the jobs that a job comes after have come since its own last run.
pub fn chain(job: &JobName) -> String {
    format!("chains/{job}")
}

pub fn chains() -> KeyRange {
    KeyRange::prefix("chains/")
}

pub fn requests() -> KeyRange {
    KeyRange::prefix("requests/")
}

/// The fire that a key of `locks/` or `history/` is about; none for keys that are about something else.
pub fn fire_of(key: &str) -> Option<Fire> {
    let mut parts = key.split('/');
    let (Some("locks" | "history"), Some(job), Some(lane), Some(id), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    Some(Fire { job: job.parse().ok()?, lane: lane.parse().ok()?, id: id.parse().ok()? })
}

/// The fire that a key of `history/` is about, be it its record or a late result.
pub fn fire_with_record(key: &str) -> Option<Fire> {
    let path = key.strip_prefix("history/")?;
    let end = path.match_indices('/').nth(2).map_or(path.len(), |(index, _)| index);
    fire_of(&format!("history/{}", &path[..end]))
}

/// The fire that a key of `requests/` asks for; none for requests of another kind.
pub fn fire_requested(key: &str) -> Option<Fire> {
    let (job, id) = key.strip_prefix("requests/")?.split_once('/')?;
    // A scheduled fire is never asked for: it would run before its time.
    let id: FireId = id.parse().ok()?;
    id.is_asked_for().then_some(Fire::new(job.parse().ok()?, id))
}

/// The fire that a key of `requests/` asks to stop; none for requests of another kind.
pub fn fire_to_cancel(key: &str) -> Option<Fire> {
    let (job, rest) = key.strip_prefix("requests/")?.split_once('/')?;
    let rest = rest.strip_prefix(CANCEL)?;
    let (id, lane) = rest.split_at(rest.find('@').unwrap_or(rest.len()));
    let lane = if lane.is_empty() { Lane::OneNode } else { lane.parse().ok()? };
    Some(Fire { job: job.parse().ok()?, lane, id: id.parse().ok()? })
}

/// What a key of `jobs/`, `nodes/` or `sources/` names: all behind the first segment, so that a key that somebody put
/// deeper than ours lie does not pass for another's.
pub fn name_of(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}

fn path(fire: &Fire) -> String {
    format!("{}/{}/{}", fire.job, fire.lane, fire.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fire_is_read_back_from_its_keys() {
        for (lane, id) in [("-", "20261130T020000Z"), ("@db-1", "m-01ARZ3NDEKTSV4RRFFQ69G5FAV")] {
            let fire =
                Fire { job: "a.b".parse().unwrap(), lane: lane.parse().unwrap(), id: id.parse().unwrap() };
            assert_eq!(fire_of(&lock(&fire)), Some(fire.clone()));
            assert_eq!(fire_of(&record(&fire)), Some(fire.clone()));
            assert_eq!(fire_of(&late_record(&fire, "x", 1)), None);
            assert_eq!(fire_to_cancel(&cancel_request(&fire)), Some(fire.clone()));
            assert_eq!(fire_requested(&cancel_request(&fire)), None);
            assert_eq!(fire_to_cancel(&request(&fire)), None);
        }
        for key in
            ["", "locks/a", "jobs/a/-/20261130T020000Z", "locks/a/-/nonsense", "locks/A/-/20261130T020000Z"]
        {
            assert_eq!(fire_of(key), None, "{key}");
        }
        let asked = Fire::new("a".parse().unwrap(), "m-01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap());
        assert_eq!(fire_requested(&request(&asked)), Some(asked));
        assert_eq!(fire_requested("requests/a/cancel-20261130T020000Z"), None);
        assert_eq!(fire_requested("requests/a/20261130T020000Z"), None);
    }

    #[test]
    fn nothing_lies_between_an_instant_and_itself_or_an_earlier_one() {
        let (job, at) = ("a".parse().unwrap(), |text: &str| text.parse::<Timestamp>().unwrap());
        let last = at("2026-11-30T02:00:00Z");
        for until in ["2026-11-30T02:00:00.9Z", "2026-11-30T01:00:00Z"] {
            let range = locks_between(&job, &Lane::OneNode, last, at(until));
            let (begin, end) = range.bounds();
            assert!(Some(begin.as_str()) < end.as_deref(), "{range:?}");
            for fire in ["20261130T015959Z", "20261130T020000Z", "20261130T020001Z"] {
                assert!(!range.contains(&lock(&Fire::new(job.clone(), fire.parse().unwrap()))), "{fire}");
            }
        }
    }

    #[test]
    fn a_key_that_lies_too_deep_names_nothing() {
        assert_eq!(name_of(&job(&"a.b".parse().unwrap())), "a.b");
        assert!(name_of("jobs/deep/er").parse::<JobName>().is_err());
    }

    #[test]
    fn the_locks_of_a_job_are_not_those_of_a_longer_name() {
        let of = |job: &str| lock(&Fire::new(job.parse().unwrap(), "20261130T020000Z".parse().unwrap()));
        let range = locks_of(&"a".parse().unwrap());
        assert!(range.contains(&of("a")));
        assert!(!range.contains(&of("a-b")) && !range.contains(&of("a.b")) && !range.contains(&of("ab")));
    }
}
