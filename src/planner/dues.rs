//! What was due in a lane over time, by the definitions that were in force one after another.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Planned, newest};
use crate::job::Job;
use crate::schedule::Timestamp;

/// A definition for as long as it was in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reign {
    pub job: Arc<Job>,
    /// Nothing at or before this instant is due by it.
    pub since: Timestamp,
    /// Nothing after this instant is due by it. None: it is in force.
    pub until: Option<Timestamp>,
    /// It ended because the job was removed.
    pub removed: bool,
}

/// The definitions of one job, the oldest first, none of them in force at the same time as another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dues(Vec<Reign>);

impl Dues {
    /// From definitions in the order in which they were put. One whose schedule did not change counts since when the
    /// schedule does, so its time is cut where the one before it ended.
    pub fn new(reigns: impl IntoIterator<Item = Reign>) -> Dues {
        let mut dues: Vec<Reign> = Vec::new();
        for mut reign in reigns {
            if let Some(before) = dues.last().and_then(|before| before.until) {
                reign.since = reign.since.max(before);
            }
            if reign.until.is_none_or(|until| until > reign.since) {
                dues.push(reign);
            }
        }
        Dues(dues)
    }

    pub fn reigns(&self) -> &[Reign] {
        &self.0
    }

    /// Which definition was in force at an instant.
    pub fn reign_at(&self, at: Timestamp) -> Option<&Reign> {
        self.0.iter().find(|reign| at > reign.since && reign.until.is_none_or(|until| at <= until))
    }

    /// The first instant due after `after`.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.0.iter().find_map(|reign| {
            let next = reign.enabled()?.schedule.next_after(after.max(reign.since))?;
            reign.until.is_none_or(|until| next <= until).then_some(next)
        })
    }

    /// The last instant due in `(after, until]`. Looks at few of them, however many there are.
    pub fn last_in(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        self.0.iter().rev().find_map(|reign| {
            let schedule = &reign.enabled()?.schedule;
            let from = after.max(reign.since);
            let to = reign.until.map_or(until, |end| end.min(until));
            let first = schedule.next_after(from).filter(|first| *first <= to)?;
            Some(newest(first, to, |after| schedule.next_after(after)))
        })
    }

    /// The last instants due in `(after, until]`, at most so many, the oldest first.
    pub fn newest(&self, after: Timestamp, until: Timestamp, most: usize) -> Vec<Timestamp> {
        let mut newest = VecDeque::new();
        let next = |after: &Timestamp| self.next_after(*after).filter(|next| *next <= until);
        for at in std::iter::successors(next(&after), next) {
            newest.push_back(at);
            if newest.len() > most {
                newest.pop_front();
            }
        }
        newest.into()
    }

    /// How many instants are due in `(after, until]`.
    pub fn count(&self, after: Timestamp, until: Timestamp) -> u64 {
        let of = |reign: &Reign| {
            let to = reign.until.map_or(until, |end| end.min(until));
            reign.enabled().map_or(0, |job| job.schedule.count(after.max(reign.since), to))
        };
        self.0.iter().map(of).sum()
    }
}

impl From<&Planned> for Reign {
    fn from(planned: &Planned) -> Reign {
        Reign { job: planned.job.clone(), since: planned.since, until: None, removed: false }
    }
}

impl Reign {
    fn enabled(&self) -> Option<&Job> {
        self.job.enabled.then_some(&*self.job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobfile;

    fn at(text: &str) -> Timestamp {
        format!("2026-11-30T{text}:00Z").parse().unwrap()
    }

    fn reign(schedule: &str, since: &str, until: Option<&str>) -> Reign {
        let text = format!("[jobs.a]\ncommand = 'true'\nschedule = '{schedule}'\n");
        let files = [jobfile::SourceFile { path: "jobs.toml", text: &text }];
        let job = Arc::new(jobfile::parse(&files).unwrap().jobs.remove(0));
        Reign { job, since: at(since), until: until.map(at), removed: false }
    }

    fn all(dues: &Dues, after: &str, until: &str) -> Vec<String> {
        let next = |after: &Timestamp| dues.next_after(*after).filter(|next| *next <= at(until));
        let fires: Vec<_> = std::iter::successors(next(&at(after)), next).collect();
        assert_eq!(dues.count(at(after), at(until)), fires.len() as u64);
        assert_eq!(dues.last_in(at(after), at(until)), fires.last().copied());
        fires.iter().map(|fire| fire.format("%H:%M").to_string()).collect()
    }

    #[test]
    fn each_definition_counts_for_its_time() {
        let dues = Dues::new([
            reign("0 * * * *", "00:00", Some("02:30")),
            // Only the command changed: the schedule counts since before.
            reign("0 * * * *", "00:00", Some("04:00")),
            reign("30 * * * *", "04:00", None),
        ]);
        assert_eq!(all(&dues, "00:00", "06:00"), ["01:00", "02:00", "03:00", "04:00", "04:30", "05:30"]);
        assert_eq!(all(&dues, "03:00", "04:29"), ["04:00"]);
        assert_eq!(dues.reign_at(at("04:00")).unwrap().until, Some(at("04:00")));
        assert_eq!(dues.reign_at(at("00:00")), None);
    }

    #[test]
    fn between_a_removal_and_a_new_definition_nothing_is_due() {
        let dues = Dues::new([reign("0 * * * *", "00:00", Some("01:30")), reign("0 * * * *", "03:30", None)]);
        assert_eq!(all(&dues, "00:00", "05:00"), ["01:00", "04:00", "05:00"]);
    }
}
