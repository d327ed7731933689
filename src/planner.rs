//! The planner: which fires are due. It never asks the clock; time is an argument.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use chrono::TimeDelta;

use crate::fire::{Fire, FireId};
use crate::job::{Job, JobName};
use crate::schedule::Timestamp;

/// How far back a node looks at its start for fires that it has not seen.
pub const START_WITHIN: TimeDelta = TimeDelta::hours(1);

/// A longer time without a look at the clock is a gap: the machine slept, or its clock was set. Of the fires in a gap
/// only the newest of each job may still start.
const GAP: TimeDelta = TimeDelta::seconds(5);

/// A job as it is planned: its definition, which revision of it, and since when its schedule counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    pub job: Arc<Job>,
    /// Which one it is, as the store tells it.
    pub definition: i64,
    /// Nothing at or before this instant is due.
    pub since: Timestamp,
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

    fn next_after(&self, after: Timestamp) -> Option<Next> {
        let at = self.job.schedule.next_after(after)?;
        Some(Next { starts: at.checked_add_signed(self.delay())?, at })
    }
}

/// A job's next fire. In the order of their starts, which its `splay` puts later than its instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    starts: Timestamp,
    at: Timestamp,
}

/// Computes the fires of all jobs, each once.
#[derive(Debug)]
pub struct Planner {
    jobs: HashMap<JobName, (Planned, Option<Next>)>,
    /// The next fire of every job that has one, soonest first.
    next: BTreeSet<(Next, JobName)>,
    planned_until: Timestamp,
    gap: TimeDelta,
}

impl Planner {
    /// A planner that returns fires after `from`. A job put later begins at its own `since`, if that is later.
    pub fn new(from: Timestamp) -> Planner {
        Planner { jobs: HashMap::new(), next: BTreeSet::new(), planned_until: from, gap: GAP }
    }

    /// The same for a clock that runs so many times as fast as real time, as in tests.
    pub fn at_pace(mut self, times: u32) -> Planner {
        self.gap = GAP * i32::try_from(times).unwrap_or(i32::MAX);
        self
    }

    /// Takes a definition in, in place of the one of the same name.
    pub fn put(&mut self, planned: Planned) {
        let name = planned.job.name.clone();
        self.remove(&name);
        // What started up to `planned_until` was due so much earlier.
        let from = self.planned_until.checked_sub_signed(planned.delay()).unwrap_or(self.planned_until);
        let next = planned.job.enabled.then(|| planned.next_after(from.max(planned.since))).flatten();
        self.next.extend(next.map(|next| (next, name.clone())));
        self.jobs.insert(name, (planned, next));
    }

    /// Forgets a job.
    pub fn remove(&mut self, name: &JobName) {
        if let Some((_, Some(next))) = self.jobs.remove(name) {
            self.next.remove(&(next, name.clone()));
        }
    }

    pub fn get(&self, name: &JobName) -> Option<&Planned> {
        self.jobs.get(name).map(|(planned, _)| planned)
    }

    pub fn names(&self) -> impl Iterator<Item = &JobName> {
        self.jobs.keys()
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

    /// The fires that are to start in `(planned_until, now]`, oldest first. No fire is returned twice, so a clock
    /// stepped back repeats none. After a gap only the newest fire of each job is returned, if it may still start.
    pub fn due(&mut self, now: Timestamp) -> Vec<Fire> {
        if now <= self.planned_until {
            return Vec::new();
        }
        let gap = self.is_gap(now);
        self.planned_until = now;
        let mut due = Vec::new();
        while self.next.first().is_some_and(|(next, _)| next.starts <= now)
            && let Some((Next { at, .. }, name)) = self.next.pop_first()
        {
            let (planned, next) = self.jobs.get_mut(&name).expect("a job that has a next fire is there");
            let schedule = &planned.job.schedule;
            let at = match gap {
                true => newest(at, now - planned.delay(), |after| schedule.next_after(after)),
                false => at,
            };
            *next = planned.next_after(at);
            self.next.extend(next.map(|next| (next, name.clone())));
            if !gap || now <= planned.last_start(at) {
                due.push(Fire::new(name, FireId::scheduled(at)));
            }
        }
        due.sort_by_key(Fire::scheduled_at);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobfile;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn job(name: &str, fields: &str) -> Planned {
        let text = format!("[jobs.{name}]\ncommand = 'true'\n{fields}\n");
        let files = [jobfile::SourceFile { path: "jobs.toml", text: &text }];
        let job = jobfile::parse(&files).unwrap().jobs.remove(0);
        Planned { job: Arc::new(job), definition: 1, since: at("2026-11-30T00:00:00Z") }
    }

    fn fires(due: Vec<Fire>) -> Vec<String> {
        due.iter().map(Fire::to_string).collect()
    }

    #[test]
    fn each_fire_is_due_once_and_in_order() {
        let mut planner = Planner::new(at("2026-11-30T11:59:58Z"));
        planner.put(job("tick", "schedule = '@every 2s'"));
        planner.put(job("noon", "schedule = '0 12 * * *'"));
        assert_eq!(planner.next_due(), Some(at("2026-11-30T12:00:00Z")));
        assert_eq!(fires(planner.due(at("2026-11-30T11:59:59.9Z"))), [""; 0]);
        let due = fires(planner.due(at("2026-11-30T12:00:02.5Z")));
        assert_eq!(due, ["noon/20261130T120000Z", "tick/20261130T120000Z", "tick/20261130T120002Z"]);
        assert_eq!(fires(planner.due(at("2026-11-30T12:00:02.5Z"))), [""; 0]);
    }

    #[test]
    fn a_clock_stepped_back_repeats_nothing() {
        let mut planner = Planner::new(at("2026-11-30T12:00:00Z"));
        planner.put(job("tick", "schedule = '@every 1s'"));
        assert_eq!(planner.due(at("2026-11-30T12:00:03Z")).len(), 3);
        assert_eq!(planner.due(at("2026-11-30T11:00:00Z")).len(), 0);
        assert_eq!(fires(planner.due(at("2026-11-30T12:00:04Z"))), ["tick/20261130T120004Z"]);
    }

    #[test]
    fn after_a_gap_the_newest_fire_of_each_job_is_due_if_it_may_still_start() {
        let mut planner = Planner::new(at("2026-11-30T12:00:00Z"));
        planner.put(job("tick", "schedule = '@every 1s'"));
        planner.put(job("often", "schedule = '*/10 * * * *'"));
        planner.put(job("once", "schedule = '30 12 * * *'"));
        let due = fires(planner.due(at("2026-11-30T14:05:00.5Z")));
        // 12:30 is more than an hour ago.
        assert_eq!(due, ["often/20261130T140000Z", "tick/20261130T140500Z"]);
        assert_eq!(fires(planner.due(at("2026-11-30T14:05:01Z"))), ["tick/20261130T140501Z"]);
    }

    #[test]
    fn a_weekend_of_seconds_is_passed_over_at_once() {
        let mut planner = Planner::new(at("2026-01-01T00:00:00Z"));
        planner.put(job("tick", "schedule = '@every 1s'"));
        let due = fires(planner.due(at("2036-01-01T00:00:00Z")));
        assert_eq!(due, ["tick/20360101T000000Z"]);
    }

    #[test]
    fn a_new_or_changed_job_has_missed_nothing() {
        let mut planner = Planner::new(at("2026-11-30T10:00:00Z"));
        let mut changed = job("daily", "schedule = '0 9 * * *'");
        changed.since = at("2026-11-30T10:00:00Z");
        planner.put(changed);
        assert_eq!(planner.next_due(), Some(at("2026-12-01T09:00:00Z")));
    }

    #[test]
    fn splay_starts_a_fire_later_and_leaves_its_instant_as_it_is() {
        let mut planner = Planner::new(at("2026-11-30T11:30:00Z"));
        planner.put(job("backup", "schedule = '0 * * * *'\nsplay = '10m'"));
        let delay = planner.get(&"backup".parse().unwrap()).unwrap().delay();
        assert!(delay > TimeDelta::zero() && delay < TimeDelta::minutes(10), "{delay}");
        let starts = at("2026-11-30T12:00:00Z") + delay;
        assert_eq!(planner.next_due(), Some(starts));
        assert_eq!(fires(planner.due(starts - TimeDelta::milliseconds(1))), [""; 0]);
        // Defined anew between instant and start: still due.
        planner.put(job("backup", "schedule = '0 * * * *'\nsplay = '10m'\nenabled = true"));
        assert_eq!(fires(planner.due(starts)), ["backup/20261130T120000Z"]);
        // Neither a gap nor a look back takes a fire before its start.
        let mut planner = Planner::new(at("2026-11-30T10:30:00Z"));
        planner.put(job("backup", "schedule = '0 * * * *'\nsplay = '10m'"));
        assert_eq!(fires(planner.due(at("2026-11-30T12:00:00Z"))), ["backup/20261130T110000Z"]);
    }

    #[test]
    fn a_definition_replaces_the_one_before_it_and_a_removed_job_is_never_due() {
        let mut planner = Planner::new(at("2026-11-30T12:00:00Z"));
        planner.put(job("tick", "schedule = '@every 1s'"));
        planner.put(job("tick", "schedule = '@every 10s'"));
        assert_eq!(fires(planner.due(at("2026-11-30T12:00:04Z"))), [""; 0]);
        planner.put(job("tick", "schedule = '@every 1s'\nenabled = false"));
        assert_eq!(planner.next_due(), None);
        planner.put(job("tick", "schedule = '@every 1s'"));
        planner.remove(&"tick".parse().unwrap());
        assert_eq!(fires(planner.due(at("2026-11-30T12:00:09Z"))), [""; 0]);
        assert!(planner.is_empty());
    }
}
