//! Many schedules' futures as one, in the order in which their fires start, with one instant of each in memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use chrono::{NaiveTime, TimeDelta};

use crate::schedule::{Excluded, Mark, Schedule, Timestamp, Upcoming};

/// One of a schedule's future, with the instant at which it starts: later than it is due by the job's splay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coming {
    pub one: Upcoming,
    pub starts_at: Timestamp,
}

/// One schedule's future, as far as it is asked for.
pub struct Source<I> {
    future: I,
    delay: TimeDelta,
    fires_left: Option<usize>,
    until: Option<Timestamp>,
}

impl<I: Iterator<Item = Upcoming>> Source<I> {
    /// Fires that start `delay` later than they are due: at most `count`, and none that starts after `until`.
    pub fn of(future: I, delay: TimeDelta, count: Option<usize>, until: Option<Timestamp>) -> Source<I> {
        Source { future, delay, fires_left: count, until }
    }
}

impl<I: Iterator<Item = Upcoming>> Iterator for Source<I> {
    type Item = Coming;

    fn next(&mut self) -> Option<Coming> {
        if self.fires_left == Some(0) {
            return None;
        }
        let one = self.future.next()?;
        let starts_at = one.at.checked_add_signed(self.delay)?;
        if self.until.is_some_and(|until| starts_at > until) {
            return None;
        }
        if one.runs() {
            self.fires_left = self.fires_left.map(|left| left - 1);
        }
        Some(Coming { one, starts_at })
    }
}

/// The futures of many, each item with the index of whose it is; of one instant in the order they were given.
pub struct Merge<I> {
    sources: Vec<I>,
    /// The next of each source that has one.
    heads: BinaryHeap<Reverse<Head>>,
}

struct Head {
    source: usize,
    coming: Coming,
}

impl Head {
    fn rank(&self) -> (Timestamp, usize) {
        (self.coming.starts_at, self.source)
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Head) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl<I: Iterator<Item = Coming>> Merge<I> {
    pub fn new(sources: impl Iterator<Item = I>) -> Merge<I> {
        let mut merge = Merge { sources: sources.collect(), heads: BinaryHeap::new() };
        (0..merge.sources.len()).for_each(|source| merge.advance(source));
        merge
    }

    fn advance(&mut self, source: usize) {
        let head = self.sources[source].next();
        self.heads.extend(head.map(|coming| Reverse(Head { source, coming })));
    }
}

impl<I: Iterator<Item = Coming>> Iterator for Merge<I> {
    type Item = (usize, Coming);

    fn next(&mut self) -> Option<(usize, Coming)> {
        let Reverse(Head { source, coming }) = self.heads.pop()?;
        self.advance(source);
        Some((source, coming))
    }
}

/// A schedule's future in which the first of many instants that the calendar excludes for one reason stands for all.
pub fn without_repeats(schedule: &Schedule, after: Timestamp) -> impl Iterator<Item = Upcoming> {
    let mut future = Box::new(schedule.upcoming(after)) as Box<dyn Iterator<Item = Upcoming>>;
    let mut excluded: Option<Mark> = None;
    std::iter::from_fn(move || {
        loop {
            let one = future.next()?;
            if excluded == Some(one.mark) {
                continue;
            }
            excluded = None;
            if let Mark::Excluded(why) = one.mark {
                excluded = Some(one.mark);
                // A skipped year of a job that runs each second is not walked through second by second.
                if let Excluded::Skipped(dates) = why {
                    let end = dates.last().and_time(NaiveTime::MIN).and_utc();
                    // The last of the days has not begun yet in any zone.
                    let before_last = end - TimeDelta::hours(15);
                    if before_last > one.at {
                        future = Box::new(schedule.upcoming(before_last));
                    }
                }
            }
            return Some(one);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Calendar, CalendarText, Zone};

    fn at(text: &str) -> Timestamp {
        chrono::DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    fn schedule(text: &str) -> Schedule {
        Schedule::parse(&[text], &Zone::utc(), "job").unwrap()
    }

    #[test]
    fn futures_are_merged_in_order_of_time() {
        let after = at("2026-01-01T00:00:00Z");
        let schedules =
            [schedule("0 2 * * *"), schedule("30 1 * * *"), schedule("0 0 30 2 *"), schedule("0 2 * * *")];
        let source =
            |one, count, until| Source::of(Schedule::upcoming(one, after), TimeDelta::zero(), count, until);
        let until = Some(at("2026-01-02T02:00:00Z"));
        let sources = schedules.iter().map(|one| source(one, None, until));
        let order: Vec<_> = Merge::new(sources).map(|(index, coming)| (index, coming.one.at)).collect();
        assert_eq!(order.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 0, 3, 1, 0, 3]);
        assert!(order.is_sorted_by_key(|(_, at)| *at));
        let sources = schedules.iter().map(|one| source(one, Some(1), None));
        assert_eq!(Merge::new(sources).count(), 3);
    }

    #[test]
    fn what_is_delayed_has_its_place_where_it_starts() {
        let (hourly, daily) = (schedule("0 * * * *"), schedule("30 0 * * *"));
        let after = at("2026-01-01T00:00:00Z");
        let until = Some(at("2026-01-01T02:10:00Z"));
        let sources = [(&hourly, 40), (&daily, 0)]
            .map(|(one, minutes)| Source::of(one.upcoming(after), TimeDelta::minutes(minutes), None, until));
        let order: Vec<_> = Merge::new(sources.into_iter())
            .map(|(_, coming)| [coming.one.at, coming.starts_at].map(|at| at.format("%H:%M").to_string()))
            .collect();
        assert_eq!(order, [["00:30", "00:30"], ["01:00", "01:40"]]);
    }

    #[test]
    fn a_skipped_year_is_one_line_and_does_not_count_as_a_fire() {
        let dates = ["2026-01-02..2026-12-31".to_owned()];
        let text = CalendarText { skip_dates: &dates, ..CalendarText::default() };
        let schedule = schedule("@every 1s").within(Calendar::parse(text).unwrap());
        let future = without_repeats(&schedule, at("2026-01-01T23:59:58Z"));
        let shown: Vec<_> = Source::of(future, TimeDelta::zero(), Some(2), None)
            .map(|coming| (coming.one.at.to_rfc3339(), coming.one.runs()))
            .collect();
        let expected = [
            ("2026-01-01T23:59:59+00:00".to_owned(), true),
            ("2026-01-02T00:00:00+00:00".to_owned(), false),
            ("2027-01-01T00:00:00+00:00".to_owned(), true),
        ];
        assert_eq!(shown, expected);
    }
}
