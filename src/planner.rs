//! The planner: which fires are due. It never asks the clock; time is an argument.

mod cover;
mod dues;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use chrono::TimeDelta;

pub use self::cover::{Cover, MOST_STRETCHES, RIPE_AFTER, Sight, Stretch, cover};
pub use self::dues::{Dues, Reign};
use crate::fire::{Fire, FireId, Lane};
use crate::job::{CatchUp, Job, JobName};
use crate::schedule::{Schedule, Timestamp};

/// A fire that is looked at so long after its start was missed, at least by this node: the machine slept, its clock was
/// set, the store was away, or nobody was up.
const GAP: TimeDelta = TimeDelta::seconds(5);

/// How many missed fires of a job are run at the most.
pub const MOST_CAUGHT_UP: usize = 100;

/// A job as it is planned: its definition, which revision of it, and since when its schedule counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    pub job: Arc<Job>,
    /// Which one it is, as the store tells it.
    pub definition: i64,
    /// Nothing at or before this instant is due.
    pub since: Timestamp,
    /// Where its scheduled fires exclude each other. None: it has none on this node.
    pub lane: Option<Lane>,
}

impl Planned {
    /// Whether the schedule of this definition has a fire at `at`.
    pub fn owes(&self, at: Timestamp) -> bool {
        self.job.enabled && at > self.since && self.job.schedule.contains(at)
    }

    /// How much later than its instant a fire of this job starts.
    pub fn delay(&self) -> TimeDelta {
        TimeDelta::from_std(self.job.delay()).unwrap_or(TimeDelta::MAX)
    }

    /// The last instant at which its fire of this instant may start, whatever delays it.
    pub fn last_start(&self, at: Timestamp) -> Timestamp {
        let within = TimeDelta::from_std(self.job.start_within).unwrap_or(TimeDelta::MAX);
        let starts = at.checked_add_signed(self.delay()).unwrap_or(at);
        starts.checked_add_signed(within).unwrap_or(Timestamp::MAX_UTC)
    }

    /// When the first fire after `after` is to start.
    pub fn next_start(&self, after: Timestamp) -> Option<Timestamp> {
        self.next_after(after).map(|next| next.starts)
    }

    fn next_after(&self, after: Timestamp) -> Option<Next> {
        if !self.job.enabled || self.lane.is_none() {
            return None;
        }
        let at = self.job.schedule.next_after(after.max(self.since))?;
        Some(Next { starts: at.checked_add_signed(self.delay())?, at })
    }

    /// Of the fires from `first` on that were to start by `now`, those that are still to be run, the oldest first.
    fn caught_up(&self, first: Timestamp, now: Timestamp) -> Vec<Timestamp> {
        let until = now.checked_sub_signed(self.delay()).unwrap_or(now);
        let after = |after| self.job.schedule.next_after(after);
        match self.job.catch_up {
            CatchUp::None => Vec::new(),
            CatchUp::Latest => {
                let newest = newest(first, until, after);
                (now <= self.last_start(newest)).then_some(newest).into_iter().collect()
            }
            CatchUp::All => {
                let within = self.last_start(first) - first;
                let from = now.checked_sub_signed(within).map_or(first, |from| from.max(first));
                let mut all = VecDeque::new();
                let first = self.job.schedule.next_after(from - TimeDelta::nanoseconds(1));
                let next = |at: &Timestamp| after(*at);
                for at in std::iter::successors(first, next).take_while(|at| *at <= until) {
                    all.push_back(at);
                    if all.len() > MOST_CAUGHT_UP {
                        all.pop_front();
                    }
                }
                all.into()
            }
        }
    }

    /// The fire of this instant.
    fn fire(&self, at: Timestamp) -> Fire {
        let lane = self.lane.clone().unwrap_or(Lane::OneNode);
        Fire { job: self.job.name.clone(), lane, id: FireId::scheduled(at) }
    }
}

/// A job's next fire. In the order of their starts, which its `splay` puts later than its instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    starts: Timestamp,
    at: Timestamp,
}

#[derive(Debug)]
struct Entry {
    planned: Planned,
    next: Option<Next>,
    /// The newest instant that was due.
    last: Option<Timestamp>,
}

/// What a look at the time has shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The fires that are to start now, oldest first.
    pub now: Vec<Fire>,
    /// What was missed, by job: those fires of each that are still to be run, oldest first, one after the other. Of
    /// most jobs that is one, or none.
    pub missed: Vec<(JobName, Vec<Fire>)>,
}

/// Computes the fires of all jobs, each once.
#[derive(Debug)]
pub struct Planner {
    jobs: BTreeMap<JobName, Entry>,
    /// The next fire of every job that has one, soonest first.
    next: BTreeSet<(Next, JobName)>,
    planned_until: Timestamp,
    gap: TimeDelta,
}

impl Planner {
    /// A planner whose first look comes after `from`.
    pub fn new(from: Timestamp) -> Planner {
        Planner { jobs: BTreeMap::new(), next: BTreeSet::new(), planned_until: from, gap: GAP }
    }

    /// The same for a clock that runs so many times as fast as real time, as in tests.
    pub fn at_pace(mut self, times: u32) -> Planner {
        self.gap = GAP * i32::try_from(times).unwrap_or(i32::MAX);
        self
    }

    /// Takes a definition in, in place of the one of the same name. Of a job that is new to the planner, what came due
    /// up to `decided` is dealt with.
    pub fn put(&mut self, planned: Planned, decided: Timestamp) {
        let name = planned.job.name.clone();
        // What started up to `planned_until` was due so much earlier.
        let looked = self.planned_until.checked_sub_signed(planned.delay()).unwrap_or(self.planned_until);
        let (from, last) = match self.take(&name) {
            // One that waits for the first look stays due.
            Some(Entry { last, next: Some(next), .. }) if next.starts <= self.planned_until => {
                (looked.min(next.at - TimeDelta::nanoseconds(1)), last)
            }
            Some(Entry { last, .. }) => (looked, last),
            None => (decided, None),
        };
        let next = planned.next_after(from);
        self.next.extend(next.map(|next| (next, name.clone())));
        self.jobs.insert(name, Entry { planned, next, last });
    }

    /// Forgets a job.
    pub fn remove(&mut self, name: &JobName) {
        self.take(name);
    }

    fn take(&mut self, name: &JobName) -> Option<Entry> {
        let entry = self.jobs.remove(name)?;
        if let Some(next) = entry.next {
            self.next.remove(&(next, name.clone()));
        }
        Some(entry)
    }

    pub fn get(&self, name: &JobName) -> Option<&Planned> {
        self.jobs.get(name).map(|entry| &entry.planned)
    }

    pub fn names(&self) -> impl Iterator<Item = &JobName> {
        self.jobs.keys()
    }

    /// All jobs, each with the newest fire that was due so far.
    pub fn jobs(&self) -> impl Iterator<Item = (&Planned, Option<Fire>)> {
        self.jobs.values().map(|Entry { planned, last, .. }| (planned, last.map(|at| planned.fire(at))))
    }

    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// When the next fire is to start, if any ever is.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.next.first().map(|(next, _)| next.starts)
    }

    /// Up to when all fires have been returned.
    pub fn planned_until(&self) -> Timestamp {
        self.planned_until
    }

    /// Whether a look at `now` comes after a gap.
    pub fn is_gap(&self, now: Timestamp) -> bool {
        now - self.planned_until > self.gap
    }

    /// Begins anew at `now`, which is earlier than what the clock showed before: nothing that was worked out under a
    /// clock that was wrong is kept. Fires that come again are decided in the store.
    pub fn set_back(&mut self, now: Timestamp) {
        self.planned_until = now;
        self.next.clear();
        for (name, Entry { planned, next, last }) in &mut self.jobs {
            *next = planned.next_after(now.checked_sub_signed(planned.delay()).unwrap_or(now));
            *last = last.filter(|last| *last <= now);
            self.next.extend(next.map(|next| (next, name.clone())));
        }
    }

    /// The fires that were to start since the last look and up to `now`. No fire is returned twice as long as the time
    /// goes forward.
    pub fn due(&mut self, now: Timestamp) -> Due {
        if now <= self.planned_until {
            return Due::default();
        }
        self.planned_until = now;
        let mut due = Due::default();
        while self.next.first().is_some_and(|(next, _)| next.starts <= now)
            && let Some((Next { at, starts }, name)) = self.next.pop_first()
        {
            let Entry { planned, next, last } =
                self.jobs.get_mut(&name).expect("a job that has a next fire is there");
            let newest = match now - starts > self.gap {
                true => {
                    let schedule = &planned.job.schedule;
                    let fires: Vec<Fire> =
                        planned.caught_up(at, now).into_iter().map(|at| planned.fire(at)).collect();
                    if !fires.is_empty() {
                        due.missed.push((name.clone(), fires));
                    }
                    newest(at, now - planned.delay(), |after| schedule.next_after(after))
                }
                false => {
                    due.now.push(planned.fire(at));
                    at
                }
            };
            *last = Some(newest);
            *next = planned.next_after(newest);
            self.next.extend(next.map(|next| (next, name)));
        }
        due.now.sort_by_key(Fire::scheduled_at);
        due
    }
}

/// The newest instant in `[first, now]`. `first` is one; looks at few of the others, however many there are.
fn newest(
    first: Timestamp,
    now: Timestamp,
    next_after: impl Fn(Timestamp) -> Option<Timestamp>,
) -> Timestamp {
    let within = |from: Timestamp| next_after(from).filter(|at| *at <= now);
    let mut newest = first;
    // Look back from now, twice as far each time, until something is there; then step on to the last one.
    let mut back = TimeDelta::seconds(1);
    while now - back > newest {
        if let Some(at) = within(now - back) {
            newest = at;
            break;
        }
        back = back * 2;
    }
    while let Some(at) = within(newest) {
        newest = at;
    }
    newest
}

/// The newest instant of a schedule after `after`, up to `until`.
pub fn newest_between(schedule: &Schedule, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
    let first = schedule.next_after(after).filter(|first| *first <= until)?;
    Some(newest(first, until, |after| schedule.next_after(after)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobfile;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    const MIDNIGHT: &str = "2026-11-30T00:00:00Z";

    fn job(name: &str, fields: &str) -> Planned {
        let text = format!("[jobs.{name}]\ncommand = 'true'\n{fields}\n");
        let files = [jobfile::SourceFile { path: "jobs.toml", text: &text }];
        let job = jobfile::parse(&files).unwrap().jobs.remove(0);
        Planned { job: Arc::new(job), definition: 1, since: at(MIDNIGHT), lane: Some(Lane::OneNode) }
    }

    /// A planner whose first look comes after `from`, up to which all is decided.
    fn planner(from: &str, jobs: &[(&str, &str)]) -> Planner {
        let mut planner = Planner::new(at(from));
        for (name, fields) in jobs {
            planner.put(job(name, fields), at(from));
        }
        planner
    }

    fn texts(fires: &[Fire]) -> Vec<String> {
        fires.iter().map(Fire::to_string).collect()
    }

    fn now(due: Due) -> Vec<String> {
        assert_eq!(due.missed, []);
        texts(&due.now)
    }

    fn missed(due: Due) -> Vec<String> {
        assert_eq!(due.now, []);
        due.missed.iter().flat_map(|(_, fires)| texts(fires)).collect()
    }

    #[test]
    fn each_fire_is_due_once_and_in_order() {
        let jobs = [("tick", "schedule = '@every 2s'"), ("noon", "schedule = '0 12 * * *'")];
        let mut planner = planner("2026-11-30T11:59:58Z", &jobs);
        assert_eq!(planner.next_due(), Some(at("2026-11-30T12:00:00Z")));
        assert_eq!(now(planner.due(at("2026-11-30T11:59:59.9Z"))), [""; 0]);
        let due = now(planner.due(at("2026-11-30T12:00:02.5Z")));
        assert_eq!(due, ["noon/20261130T120000Z", "tick/20261130T120000Z", "tick/20261130T120002Z"]);
        assert_eq!(now(planner.due(at("2026-11-30T12:00:02.5Z"))), [""; 0]);
    }

    #[test]
    fn a_clock_that_wavers_repeats_nothing() {
        let mut planner = planner("2026-11-30T12:00:00Z", &[("tick", "schedule = '@every 1s'")]);
        assert_eq!(now(planner.due(at("2026-11-30T12:00:03Z"))).len(), 3);
        assert_eq!(now(planner.due(at("2026-11-30T12:00:01Z"))).len(), 0);
        assert_eq!(now(planner.due(at("2026-11-30T12:00:04Z"))), ["tick/20261130T120004Z"]);
    }

    #[test]
    fn what_was_worked_out_by_a_wrong_clock_is_not_kept() {
        let mut planner = planner("2026-11-30T12:00:00Z", &[("tick", "schedule = '@every 1s'")]);
        assert_eq!(missed(planner.due(at("2036-01-01T00:00:00Z"))), ["tick/20360101T000000Z"]);
        planner.set_back(at("2026-11-30T12:00:10Z"));
        assert_eq!(planner.next_due(), Some(at("2026-11-30T12:00:11Z")));
        assert!(planner.jobs().all(|(_, last)| last.is_none()));
        assert_eq!(now(planner.due(at("2026-11-30T12:00:11Z"))), ["tick/20261130T120011Z"]);
    }

    #[test]
    fn of_what_was_missed_the_newest_fire_of_each_job_is_run_if_it_may_still_start() {
        let jobs = [
            ("tick", "schedule = '@every 1s'"),
            ("often", "schedule = '*/10 * * * *'"),
            ("once", "schedule = '30 12 * * *'"),
        ];
        let mut planner = planner("2026-11-30T12:00:00Z", &jobs);
        let mut due = missed(planner.due(at("2026-11-30T14:05:00.5Z")));
        due.sort();
        // 12:30 is more than an hour ago.
        assert_eq!(due, ["often/20261130T140000Z", "tick/20261130T140500Z"]);
        let newest = planner.jobs().filter_map(|(_, last)| last).map(|fire| fire.to_string());
        assert_eq!(
            newest.filter(|fire| fire.starts_with("once")).collect::<Vec<_>>(),
            ["once/20261130T123000Z"]
        );
        assert_eq!(now(planner.due(at("2026-11-30T14:05:01Z"))), ["tick/20261130T140501Z"]);
    }

    #[test]
    fn a_job_says_what_of_the_missed_is_run() {
        let jobs = [
            ("all", "schedule = '*/10 * * * *'\ncatch_up = 'all'\nstart_within = '35m'"),
            ("none", "schedule = '*/10 * * * *'\ncatch_up = 'none'"),
            ("late", "schedule = '*/10 * * * *'\nstart_within = '2m'"),
        ];
        let mut planner = planner("2026-11-30T12:00:00Z", &jobs);
        let due = missed(planner.due(at("2026-11-30T14:05:00Z")));
        assert_eq!(
            due,
            ["all/20261130T133000Z", "all/20261130T134000Z", "all/20261130T135000Z", "all/20261130T140000Z"]
        );
        let mut planner =
            self::planner("2026-11-30T12:00:00Z", &[("s", "schedule = '@every 1s'\ncatch_up = 'all'")]);
        let due = missed(planner.due(at("2026-11-30T12:10:00Z")));
        assert_eq!((due.len(), &*due[0], &*due[99]), (100, "s/20261130T120821Z", "s/20261130T121000Z"));
    }

    #[test]
    fn a_weekend_of_seconds_is_passed_over_at_once() {
        let mut planner = planner("2026-01-01T00:00:00Z", &[("tick", "schedule = '@every 1s'")]);
        let due = missed(planner.due(at("2036-01-01T00:00:00Z")));
        assert_eq!(due, ["tick/20360101T000000Z"]);
    }

    #[test]
    fn a_new_or_changed_job_has_missed_nothing() {
        let mut planner = Planner::new(at("2026-11-30T10:00:00Z"));
        let mut changed = job("daily", "schedule = '0 9 * * *'");
        changed.since = at("2026-11-30T10:00:00Z");
        planner.put(changed, at("2026-11-29T10:00:00Z"));
        assert_eq!(planner.next_due(), Some(at("2026-12-01T09:00:00Z")));
    }

    #[test]
    fn a_job_without_a_lane_here_has_no_fires_here() {
        let mut planner = Planner::new(at("2026-11-30T10:00:00Z"));
        let every_node = job("tidy", "schedule = '@every 1s'");
        planner.put(Planned { lane: None, ..every_node.clone() }, at(MIDNIGHT));
        assert_eq!((planner.next_due(), planner.len()), (None, 1));
        planner.remove(&"tidy".parse().unwrap());
        let lane = Some(Lane::Node("web-1".parse().unwrap()));
        planner.put(Planned { lane, ..every_node }, at("2026-11-30T10:00:00Z"));
        assert_eq!(now(planner.due(at("2026-11-30T10:00:01Z"))), ["tidy/@web-1/20261130T100001Z"]);
    }

    #[test]
    fn splay_starts_a_fire_later_and_leaves_its_instant_as_it_is() {
        let hourly = ("backup", "schedule = '0 * * * *'\nsplay = '10m'");
        let mut planner = planner("2026-11-30T11:30:00Z", &[hourly]);
        let delay = planner.get(&"backup".parse().unwrap()).unwrap().delay();
        assert!(delay > TimeDelta::zero() && delay < TimeDelta::minutes(10), "{delay}");
        let starts = at("2026-11-30T12:00:00Z") + delay;
        assert_eq!(planner.next_due(), Some(starts));
        planner.due(starts - TimeDelta::seconds(2));
        // Defined anew between instant and start: still due.
        planner.put(job("backup", "schedule = '0 * * * *'\nsplay = '10m'\nenabled = true"), at(MIDNIGHT));
        assert_eq!(now(planner.due(starts)), ["backup/20261130T120000Z"]);
        // Neither a gap nor a look back takes a fire before its start.
        let mut planner = self::planner("2026-11-30T10:30:00Z", &[hourly]);
        assert_eq!(missed(planner.due(at("2026-11-30T12:00:00Z"))), ["backup/20261130T110000Z"]);
    }

    #[test]
    fn a_definition_replaces_the_one_before_it_and_a_removed_job_is_never_due() {
        let mut planner = planner("2026-11-30T12:00:00Z", &[("tick", "schedule = '@every 1s'")]);
        let put = |planner: &mut Planner, fields: &str| planner.put(job("tick", fields), at(MIDNIGHT));
        put(&mut planner, "schedule = '@every 10s'");
        assert_eq!(now(planner.due(at("2026-11-30T12:00:04Z"))), [""; 0]);
        put(&mut planner, "schedule = '@every 1s'\nenabled = false");
        assert_eq!(planner.next_due(), None);
        put(&mut planner, "schedule = '@every 1s'");
        planner.remove(&"tick".parse().unwrap());
        assert_eq!(now(planner.due(at("2026-11-30T12:00:09Z"))), [""; 0]);
        assert!(planner.is_empty());
    }

    #[test]
    fn what_was_missed_stays_due_when_the_job_is_defined_anew_before_the_first_look() {
        let mut planner = Planner::new(at("2026-11-30T14:05:00Z"));
        planner.put(job("often", "schedule = '*/10 * * * *'"), at("2026-11-30T12:00:00Z"));
        planner.put(job("often", "schedule = '*/10 * * * *'\nenv = { A = 'b' }"), at(MIDNIGHT));
        assert_eq!(missed(planner.due(at("2026-11-30T14:05:01Z"))), ["often/20261130T140000Z"]);
    }
}
