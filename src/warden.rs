//! The warden's work: it looks at lanes, settles what nobody is going to run, and moves floors.
//!
//! Any node can do it, and two at once do no harm: every write compares the floor as it was read, and that no lock and
//! no record lies where a span is written. It never makes this node the holder of anything.

mod prune;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::fail_point;
use crate::fire::{Fire, FireId, Lane};
use crate::job::JobName;
use crate::planner::{self, Dues, MOST_STRETCHES, Planned, Reign, Sight, Stretch};
use crate::race::Me;
use crate::record::{Record, Span, Writer};
use crate::schedule::Timestamp;
use crate::store::values::{self, Definition, Former, Status};
use crate::store::{
    Compare, Entry, MOST_OPS, Op, Order, PageSpec, Revision, Store, StoreError, Together, Txn, TxnReply, keys,
};

pub use self::prune::{TASKS_KEPT, prune, prune_rest, prune_tasks};

/// A lane to be looked at, with what its warden knows of its job.
#[derive(Debug, Clone)]
pub struct Ward {
    pub job: JobName,
    pub lane: Lane,
    /// Where its floor was when last seen, or lower. Nobody but wardens moves it, and hardly ever back.
    pub floor: Timestamp,
    /// The job as it is now; none when it was removed.
    pub planned: Option<Planned>,
    /// The times in which it was paused: from the first instant to before the second.
    pub pauses: Vec<(Timestamp, Timestamp)>,
    /// Nobody was there to run what was due up to this instant.
    pub up_since: Timestamp,
    pub is_runnable: bool,
}

/// What a look at one lane has shown.
#[derive(Debug)]
pub struct Seen {
    /// None: there is none.
    floor: Option<(Timestamp, Revision)>,
    /// Fires with a lock or a record, each with the last instant that it stands for.
    decided: BTreeMap<Timestamp, Timestamp>,
    /// Nothing is known of what lies behind.
    until: Timestamp,
    /// There was more than one look takes in.
    is_cut: bool,
    status: Option<Status>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    Upto {
        floor: Timestamp,
        /// The first fire behind it that is undecided and may still be run.
        open: Option<Timestamp>,
        /// There is more to be looked at right away.
        more: bool,
        /// How many records and locks of fires lie between the floor before and this one.
        passed: usize,
    },
    /// The job is gone, and the lane with it.
    Closed,
    /// Somebody else wrote meanwhile: look again.
    Overtaken,
}

/// So many lanes are looked at in one round trip.
pub const LANES_AT_ONCE: usize = 16;
/// So many fires of a lane are looked at in one: a record may be some 5 KiB large, a reply 4 MiB.
const FIRES_AT_ONCE: usize = 40;
/// Per lane: floor, locks, records, status.
const READS: usize = 4;
const _: () = assert!(LANES_AT_ONCE * READS <= MOST_OPS);

/// Looks at up to [`LANES_AT_ONCE`] lanes in one read.
pub async fn look(store: &Store, clock: &Clock, wards: &[Ward]) -> Result<Vec<Seen>, StoreError> {
    let now = clock.now();
    let reads = wards.iter().flat_map(|Ward { job, lane, floor, .. }| {
        // Stores refuse a range that can hold nothing.
        let until = now.max(*floor + TimeDelta::seconds(1));
        [
            Op::get(keys::floor(job, lane)),
            Op::get_first(keys::locks_between(job, lane, *floor, until), FIRES_AT_ONCE),
            Op::get_first(keys::records_between(job, lane, *floor, until), FIRES_AT_ONCE),
            Op::get(keys::status(job, lane)),
        ]
    });
    fail_point!("warden.look");
    let reply = store.txn(Txn::new().then(reads)).await?;
    Ok((0..wards.len()).map(|index| seen(&reply, index * READS, now)).collect())
}

/// What one lane's reads have brought, of which the first is at this position.
fn seen(reply: &TxnReply, at: usize, now: Timestamp) -> Seen {
    let (mut decided, mut until, mut is_cut) = (BTreeMap::new(), now, false);
    for entries in [reply.got(at + 1), reply.got(at + 2)] {
        let mut last = None;
        for entry in entries {
            // A late result lies under its record.
            let Some(Fire { id: FireId::Scheduled(first), .. }) = keys::fire_of(&entry.key) else { continue };
            let reaches = values::span_of(&entry.value).map_or(first, |span| span.last);
            let known = decided.entry(first).or_insert(reaches);
            *known = reaches.max(*known);
            last = Some(first);
        }
        if let (true, Some(last)) = (entries.len() == FIRES_AT_ONCE, last) {
            (until, is_cut) = (until.min(last), true);
        }
    }
    let status = reply.got(at + 3).first();
    Seen {
        floor: reply.got(at).first().and_then(read_floor),
        decided,
        until,
        is_cut,
        status: status.and_then(|entry| values::decode(&entry.key, &entry.value).ok()),
    }
}

/// The instant that a floor names, and at which revision.
pub fn read_floor(entry: &Entry) -> Option<(Timestamp, Revision)> {
    let FireId::Scheduled(at) = std::str::from_utf8(&entry.value).ok()?.parse().ok()? else { return None };
    Some((at, entry.mod_revision))
}

/// Writes what a look at a lane asks for.
pub async fn settle(
    together: &Together,
    me: &Me,
    clock: &Clock,
    ward: &Ward,
    seen: Seen,
) -> Result<Settled, StoreError> {
    let now = clock.now();
    let Some((floor, revision)) = seen.floor else {
        return match ward.planned {
            Some(_) => make_floor(together, ward, now).await,
            None => Ok(Settled::Closed),
        };
    };
    if floor < ward.floor {
        // What lies between the two was not looked at.
        return Ok(Settled::Upto { floor, open: None, more: true, passed: 0 });
    }
    if floor > now + AHEAD {
        return lower_floor(together, ward, floor, revision, now).await;
    }
    let dues = dues(together.store(), ward, floor).await?;
    let cover = planner::cover(&Sight {
        planned: ward.planned.as_ref(),
        dues: &dues,
        floor,
        decided: &seen.decided,
        until: seen.until,
        now,
        pauses: &ward.pauses,
        up_since: ward.up_since,
        away: match ward.lane {
            Lane::OneNode => "no node was up",
            Lane::Node(_) => "this node was away",
        },
        is_runnable: ward.is_runnable,
    });
    let floor_key = keys::floor(&ward.job, &ward.lane);
    let nothing_left = cover.open.is_none() && dues.next_after(cover.floor).is_none();
    // A floor that a clock has moved ahead stays for its time: a job of this name may come again before that.
    let is_closed = ward.planned.is_none() && nothing_left && cover.floor <= now;
    let passed = seen.decided.range(floor..=cover.floor).count() + cover.stretches.len();
    let more = seen.is_cut || cover.stretches.len() == MOST_STRETCHES;
    if cover.floor == floor && cover.stretches.is_empty() && !is_closed {
        return Ok(Settled::Upto { floor, open: cover.open, more: false, passed: 0 });
    }
    let mut compare = vec![Compare::mod_revision(floor_key.as_str(), revision)];
    let mut then = Vec::new();
    let mut status = seen.status;
    for stretch in &cover.stretches {
        let before = stretch.first - TimeDelta::seconds(1);
        let ranges = [keys::locks_between, keys::records_between];
        compare
            .extend(ranges.map(|range| Compare::absent(range(&ward.job, &ward.lane, before, stretch.last))));
        let record = record(ward, me, stretch, now);
        then.push(Op::put(keys::record(&record.fire), values::encode_record(&record)));
        status = Some(Status::after(status.as_ref(), &record));
    }
    match is_closed {
        // A job of this name that was made meanwhile goes on from this floor.
        true => {
            compare.push(Compare::absent(keys::job(&ward.job)));
            then.push(Op::delete(floor_key.as_str()));
        }
        false => then.push(Op::put(floor_key.as_str(), FireId::scheduled(cover.floor).to_string())),
    }
    if let (Some(status), false, false) = (status, is_closed, cover.stretches.is_empty()) {
        then.push(Op::put(keys::status(&ward.job, &ward.lane), values::encode(&status)));
    }
    // Safe when two do it at once: the floor is at the revision read for one of them only. Safe however late it comes
    // in: a claim, which makes a lock where a span is to be, is seen by the compare, or sees the floor.
    fail_point!("warden.settle");
    let reply = together.txn([ward.job.as_str()], Txn::when(compare).then(then)).await?;
    if !reply.succeeded {
        return Ok(Settled::Overtaken);
    }
    for Stretch { first, last, count, outcome, reason } in &cover.stretches {
        info!(job = %ward.job, lane = %ward.lane, %first, %last, count, %outcome, reason, "not run");
    }
    Ok(match is_closed {
        true => Settled::Closed,
        false => Settled::Upto { floor: cover.floor, open: cover.open, more, passed },
    })
}

fn record(ward: &Ward, me: &Me, stretch: &Stretch, now: Timestamp) -> Record {
    let fire = Fire { job: ward.job.clone(), lane: ward.lane.clone(), id: FireId::scheduled(stretch.first) };
    let writer = Writer::Node { node: me.name.clone(), node_start: me.start };
    let span = (stretch.count > 1).then_some(Span { last: stretch.last, count: stretch.count });
    Record { span, ..Record::unrun(fire, stretch.outcome, stretch.reason, writer, now) }
}

/// A floor that is further ahead of the clock than this was moved by a clock that was wrong.
const AHEAD: TimeDelta = TimeDelta::hours(1);

/// Puts a floor back that a wrong clock has moved into a time to come: else nothing would be due before that. What the
/// same clock has said of fires that nobody ran, and that are still to come, is taken back.
///
/// What has a lock, or a record of a run, stays decided by that.
async fn lower_floor(
    together: &Together,
    ward: &Ward,
    floor: Timestamp,
    revision: Revision,
    now: Timestamp,
) -> Result<Settled, StoreError> {
    warn!(job = %ward.job, lane = %ward.lane, %floor, %now,
          "all up to an instant to come is marked as decided, by a clock that was ahead; the mark is put back to now");
    let key = keys::floor(&ward.job, &ward.lane);
    let lower = FireId::scheduled(now);
    let newest = PageSpec { order: Order::Descending, limit: Some(NEWEST), ..PageSpec::default() };
    fail_point!("warden.ahead");
    let scheduled = keys::records_between(&ward.job, &ward.lane, Timestamp::UNIX_EPOCH, floor);
    let page = together.store().page(scheduled, newest).await?;
    let (mut compare, mut then) = (Vec::new(), Vec::new());
    for entry in &page.entries {
        let Some(op) = taken_back(entry, ward, lower.instant()) else { continue };
        compare.push(Compare::mod_revision(entry.key.as_str(), entry.mod_revision));
        then.push(op);
    }
    // Safe when two do it at once: the floor is at the revision read for one of them only.
    compare.push(Compare::mod_revision(key.as_str(), revision));
    then.push(Op::put(key, lower.to_string()));
    fail_point!("warden.lower");
    let reply = together.txn([ward.job.as_str()], Txn::when(compare).then(then)).await?;
    Ok(match reply.succeeded {
        true => Settled::Upto { floor: lower.instant(), open: None, more: true, passed: 0 },
        false => Settled::Overtaken,
    })
}

/// So many of the newest records are looked through for what is to be taken back.
const NEWEST: usize = 50;
const _: () = assert!(NEWEST < MOST_OPS);

/// What becomes of a record that speaks of fires to come that nobody ran: it goes, or ends now.
fn taken_back(entry: &Entry, ward: &Ward, now: Timestamp) -> Option<Op> {
    let record = values::decode_record(keys::fire_of(&entry.key)?, &entry.key, &entry.value).ok()?;
    let first = record.fire.scheduled_at();
    let last = record.span.map_or(first, |span| span.last);
    if record.run.is_some() || last <= now {
        return None;
    }
    if first > now {
        return Some(Op::delete(entry.key.as_str()));
    }
    // By the definition in force: of a former one nothing is due after now.
    let schedule = ward.planned.as_ref().map(|planned| &planned.job.schedule);
    let before = first - TimeDelta::seconds(1);
    let count = schedule.map_or(1, |schedule| schedule.count(before, now)).max(1);
    let span = (count > 1).then_some(Span { last: now, count });
    Some(Op::put(entry.key.as_str(), values::encode_record(&Record { span, ..record })))
}

/// A floor from now on, where there is none: of a lane that is new, or somebody has taken it out.
async fn make_floor(together: &Together, ward: &Ward, now: Timestamp) -> Result<Settled, StoreError> {
    if ward.lane == Lane::OneNode {
        warn!(job = %ward.job, "its floor is missing from the store, it is made anew; nothing before counts as missed");
    }
    let floor = FireId::scheduled(now);
    let key = keys::floor(&ward.job, &ward.lane);
    // Safe when two do it at once: it is absent for one of them only.
    let txn = Txn::when([Compare::absent(key.as_str()), Compare::present(keys::job(&ward.job))]);
    fail_point!("warden.floor");
    let reply = together.txn([ward.job.as_str()], txn.then([Op::put(key, floor.to_string())])).await?;
    Ok(match reply.succeeded {
        true => Settled::Upto { floor: floor.instant(), open: None, more: false, passed: 0 },
        false => Settled::Overtaken,
    })
}

/// Makes sure that a lane has a floor, this one if it has none yet. Returns the one it has.
pub async fn open_lane(store: &Store, job: &JobName, lane: &Lane, floor: Timestamp) -> Timestamp {
    let key = keys::floor(job, lane);
    let new = FireId::scheduled(floor);
    loop {
        // Safe when two do it at once, and done twice: it is absent for one of them only.
        let txn = Txn::when([Compare::absent(key.as_str())]).then([Op::put(key.as_str(), new.to_string())]);
        fail_point!("warden.lane");
        match store.txn(txn.otherwise([Op::get(key.as_str())])).await {
            Ok(reply) if reply.succeeded => return new.instant(),
            Ok(reply) => return reply.got(0).first().and_then(read_floor).map_or(floor, |(floor, _)| floor),
            Err(error) => {
                debug!(%job, %lane, %error, "the lane is not made yet, trying on");
                fail_point!("warden.lane.pause");
                sleep(LANE_AGAIN.mul_f64(0.5 + store.random())).await;
            }
        }
    }
}

/// Between two tries to make a lane.
const LANE_AGAIN: Duration = Duration::from_secs(1);

/// What was due in a lane since its floor. Former definitions are only asked for where the floor lies in their time.
async fn dues(store: &Store, ward: &Ward, floor: Timestamp) -> Result<Dues, StoreError> {
    let in_force = ward.planned.as_ref().map(Reign::from);
    if ward.planned.as_ref().is_some_and(|planned| planned.since <= floor) {
        return Ok(Dues::new(in_force));
    }
    fail_point!("warden.former");
    let former = store.list(keys::jobs_before(&ward.job)).await?;
    let former = former.entries.into_iter().filter_map(|entry| reign(&entry));
    Ok(Dues::new(former.filter(|reign| reign.until.is_some_and(|until| until > floor)).chain(in_force)))
}

fn reign(entry: &Entry) -> Option<Reign> {
    match Former::decode(&entry.key, &entry.value) {
        Ok(former) => Some(former.into()),
        Err(error) => {
            warn!(%error, "a former definition is passed over");
            None
        }
    }
}

impl From<Definition> for Reign {
    fn from(Definition { job, since, .. }: Definition) -> Reign {
        Reign { job: Arc::new(job), since, until: None, removed: false }
    }
}

impl From<Former> for Reign {
    fn from(Former { definition, until, removed }: Former) -> Reign {
        Reign { until: Some(until), removed, ..definition.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::jobfile;
    use crate::node::NodeStart;
    use crate::store::sim::Sim;
    use crate::sync::{self, Wanted};

    const ME: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

    /// A store with the job `a`, and its warden.
    struct Desk {
        store: Store,
        together: Together,
        clock: Clock,
        /// A whole second, so that seconds before it are instants of `@every 1s`.
        now: Timestamp,
    }

    fn job(fields: &str) -> Job {
        let text = format!("[jobs.a]\ncommand = 'true'\n{fields}\n");
        let files = [jobfile::SourceFile { path: "jobs.toml", text: &text }];
        jobfile::parse(&files).unwrap().jobs.remove(0)
    }

    fn me() -> Me {
        let start: NodeStart = ME.parse().unwrap();
        Me { name: "db-1".parse().unwrap(), start, instance: "i".to_owned() }
    }

    impl Desk {
        /// The job was synced so many seconds ago.
        async fn new(fields: &str, ago: i64) -> Desk {
            let store = Sim::new(1).client("a");
            let clock = Clock::system();
            let now = FireId::scheduled(clock.now()).instant();
            let desk = Desk { together: Together::new(store.clone()), store, clock, now };
            desk.sync(&[job(fields)], ago).await;
            desk
        }

        async fn sync(&self, jobs: &[Job], ago: i64) {
            let wanted =
                Wanted { source: "s".parse().unwrap(), jobs: jobs.to_vec(), limits: BTreeMap::new() };
            let outlook = sync::look(&self.store, &wanted).await.unwrap();
            sync::apply(&self.store, &wanted, outlook, "ann@laptop", self.ago(ago)).await.unwrap();
        }

        fn ago(&self, seconds: i64) -> Timestamp {
            self.now - TimeDelta::seconds(seconds)
        }

        fn fire(&self, ago: i64) -> Fire {
            Fire::new("a".parse().unwrap(), FireId::scheduled(self.ago(ago)))
        }

        async fn put(&self, key: String, value: &str) {
            self.store.txn(Txn::new().then([Op::put(key, value)])).await.unwrap();
        }

        async fn ward(&self) -> Ward {
            let job: JobName = "a".parse().unwrap();
            let entry = self.store.get(&keys::job(&job)).await.unwrap();
            let planned = entry.map(|entry| {
                let Definition { job, since, .. } = Definition::decode(&entry.key, &entry.value).unwrap();
                let definition = entry.mod_revision.0;
                Planned { job: Arc::new(job), definition, since, lane: Some(Lane::OneNode) }
            });
            Ward {
                job,
                lane: Lane::OneNode,
                floor: self.ago(100_000),
                planned,
                pauses: Vec::new(),
                up_since: self.ago(20),
                is_runnable: true,
            }
        }

        async fn look(&self, ward: &Ward) -> Seen {
            look(&self.store, &self.clock, std::slice::from_ref(ward)).await.unwrap().remove(0)
        }

        async fn settle(&self, ward: &Ward, seen: Seen) -> Settled {
            settle(&self.together, &me(), &self.clock, ward, seen).await.unwrap()
        }

        async fn look_and_settle(&self) -> Settled {
            let ward = self.ward().await;
            let seen = self.look(&ward).await;
            self.settle(&ward, seen).await
        }

        /// `FIRST..LAST OUTCOME REASON` of each record, in seconds ago.
        async fn records(&self) -> Vec<String> {
            let entries = self.store.list(keys::records()).await.unwrap().entries;
            let text = |entry: &Entry| {
                let fire = keys::fire_of(&entry.key).unwrap();
                let Ok(record) = values::decode_record(fire, &entry.key, &entry.value) else {
                    return "ran".to_owned();
                };
                let first = record.fire.scheduled_at();
                let last = record.span.map_or(first, |span| span.last);
                let ago = |at: Timestamp| (self.now - at).num_seconds();
                format!("{}..{} {} {}", ago(first), ago(last), record.outcome, record.reason.unwrap())
            };
            entries.iter().map(text).collect()
        }

        async fn floor(&self) -> Option<i64> {
            let key = keys::floor(&"a".parse().unwrap(), &Lane::OneNode);
            let entry = self.store.get(&key).await.unwrap()?;
            Some((self.now - read_floor(&entry).unwrap().0).num_seconds())
        }
    }

    const SECONDS: &str = "schedule = '@every 1s'";

    #[tokio::test]
    async fn what_nobody_ran_while_nobody_was_up_is_one_span() {
        let desk = Desk::new(SECONDS, 60).await;
        let settled = desk.look_and_settle().await;
        assert!(matches!(settled, Settled::Upto { open: Some(_), more: false, .. }), "{settled:?}");
        let records = desk.records().await;
        assert_eq!(records[0], "59..20 missed no node was up");
        assert!(records[1].contains("skipped superseded by a later one"), "{records:?}");
        assert!(matches!(desk.floor().await, Some(10..=12)), "{:?}", desk.floor().await);
        // Nothing more to say about it.
        let again = desk.look_and_settle().await;
        assert!(matches!(again, Settled::Upto { more: false, .. }), "{again:?}");
    }

    /// H1: a claim that commits between a warden's look and its write, and one that comes after it.
    #[tokio::test]
    async fn a_fire_is_never_both_missed_and_run() {
        let desk = Desk::new(SECONDS, 60).await;
        let ward = desk.ward().await;
        let seen = desk.look(&ward).await;
        desk.put(keys::lock(&desk.fire(30)), "{}").await;
        assert_eq!(desk.settle(&ward, seen).await, Settled::Overtaken);
        assert_eq!((desk.records().await, desk.floor().await), (vec![], Some(60)));
        // The same with a record, which is what the lock becomes.
        let seen = desk.look(&ward).await;
        let (lock, record) = (keys::lock(&desk.fire(31)), keys::record(&desk.fire(31)));
        desk.put(record, "{\"v\":1}").await;
        assert_eq!(desk.settle(&ward, seen).await, Settled::Overtaken);
        desk.look_and_settle().await;
        let records = desk.records().await;
        assert_eq!(records[..3], ["59..32 missed no node was up", "ran", "29..20 missed no node was up"]);
        // A claim of what the span covers compares the floor.
        let floor = keys::floor(&"a".parse().unwrap(), &Lane::OneNode);
        let late = Compare::value(floor, crate::store::Is::Less, desk.fire(40).id.to_string());
        let claim = Txn::when([Compare::absent(lock), late]);
        assert!(!desk.store.txn(claim).await.unwrap().succeeded);
    }

    /// H1: two wardens with spans from different looks.
    #[tokio::test]
    async fn of_two_wardens_at_once_one_writes() {
        let desk = Desk::new(SECONDS, 60).await;
        let ward = desk.ward().await;
        let (one, other) = (desk.look(&ward).await, desk.look(&ward).await);
        assert!(matches!(desk.settle(&ward, one).await, Settled::Upto { .. }));
        assert_eq!(desk.settle(&ward, other).await, Settled::Overtaken);
    }

    /// H3: a fire that nobody claimed lies before one that ran and was recorded.
    #[tokio::test]
    async fn a_gap_before_a_later_record_is_found() {
        let desk = Desk::new(SECONDS, 60).await;
        for ago in (21..60).filter(|ago| *ago != 45) {
            desk.put(keys::record(&desk.fire(ago)), "{\"v\":1}").await;
        }
        while matches!(desk.look_and_settle().await, Settled::Upto { more: true, .. }) {}
        let told: Vec<_> = desk.records().await.into_iter().filter(|record| record != "ran").collect();
        assert_eq!(told[0], "45..45 missed no node was up");
    }

    #[tokio::test]
    async fn a_fire_that_is_locked_is_decided_and_one_that_may_still_run_is_not() {
        let desk = Desk::new("schedule = '@every 20s'\ncatch_up = 'all'", 90).await;
        let first = job("schedule = '@every 20s'").schedule.next_after(desk.ago(90)).unwrap();
        let lock = Fire::new("a".parse().unwrap(), FireId::scheduled(first));
        desk.put(keys::lock(&lock), "{}").await;
        let settled = desk.look_and_settle().await;
        let open = Some(first + TimeDelta::seconds(20));
        assert_eq!(settled, Settled::Upto { floor: first, open, more: false, passed: 1 });
        assert_eq!(desk.records().await, [""; 0]);
    }

    /// S14: a schedule changed while a fire of the former one was undecided.
    #[tokio::test]
    async fn what_a_former_definition_owed_has_its_record() {
        let desk = Desk::new("schedule = '@every 10s'", 60).await;
        desk.sync(&[job("schedule = '0 0 1 1 *'")], 15).await;
        let settled = desk.look_and_settle().await;
        assert!(matches!(settled, Settled::Upto { open: None, .. }), "{settled:?}");
        let records = desk.records().await;
        assert!(records[0].ends_with("missed the job was changed"), "{records:?}");
        assert_eq!(records.len(), 1);
    }

    #[tokio::test]
    async fn a_removed_jobs_last_fires_are_settled_and_then_its_floor_goes() {
        let desk = Desk::new("schedule = '@every 10s'", 60).await;
        desk.sync(&[], 15).await;
        while matches!(desk.look_and_settle().await, Settled::Upto { .. }) {}
        let records = desk.records().await;
        assert!(records[0].ends_with("missed the job was removed"), "{records:?}");
        assert_eq!(desk.floor().await, None);
        assert_eq!(desk.look_and_settle().await, Settled::Closed);
    }

    #[tokio::test]
    async fn a_job_made_anew_before_its_last_fires_were_settled_leaves_no_gap() {
        let desk = Desk::new("schedule = '@every 10s'", 60).await;
        desk.sync(&[], 40).await;
        desk.sync(&[job(SECONDS)], 13).await;
        assert_eq!(desk.floor().await, Some(60));
        while matches!(desk.look_and_settle().await, Settled::Upto { more: true, .. }) {}
        let records = desk.records().await;
        assert!(records[0].ends_with("missed the job was removed"), "{records:?}");
        // Nothing of the time in which there was none.
        assert!(records[1].starts_with("12.."), "{records:?}");
    }

    #[tokio::test]
    async fn a_floor_that_is_missing_or_far_ahead_is_put_right() {
        let desk = Desk::new(SECONDS, 60).await;
        let key = keys::floor(&"a".parse().unwrap(), &Lane::OneNode);
        desk.put(key.clone(), &FireId::scheduled(desk.ago(-100_000)).to_string()).await;
        let lowered = desk.look_and_settle().await;
        assert!(matches!(lowered, Settled::Upto { more: true, .. }), "{lowered:?}");
        assert!(matches!(desk.floor().await, Some(-2..=0)));
        desk.store.txn(Txn::new().then([Op::delete(key)])).await.unwrap();
        desk.look_and_settle().await;
        assert!(matches!(desk.floor().await, Some(-2..=0)));
    }

    #[tokio::test]
    async fn a_lane_is_made_once() {
        let desk = Desk::new(SECONDS, 60).await;
        let (job, lane): (JobName, Lane) = ("a".parse().unwrap(), "@web-1".parse().unwrap());
        assert_eq!(open_lane(&desk.store, &job, &lane, desk.ago(50)).await, desk.ago(50));
        assert_eq!(open_lane(&desk.store, &job, &lane, desk.ago(5)).await, desk.ago(50));
    }
}
