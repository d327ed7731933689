//! What people are shown of a schedule's future: the fires, and what was done to them.

use std::collections::VecDeque;

use chrono::NaiveDateTime;

use super::calendar::Excluded;
use super::eval::{Clock, Rule, Steps};
use super::zone::Stretch;
use super::{Schedule, Timestamp, timestamp, wall};

/// A fire, or a time at which there is none because of a clock change or the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upcoming {
    pub at: Timestamp,
    pub mark: Mark,
}

/// What a clock change or the calendar has to do with a fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Ordinary,
    /// The clock jumps over the scheduled time, of which `from` is the first; it runs once, as soon as the
    /// gap is over.
    Moved { from: NaiveDateTime },
    /// The clock will show this time again; `again` says whether the job runs then as well.
    FirstPass { again: bool },
    /// The clock shows this time for the second time, and the job ran at the first, too.
    SecondPass,
    /// No fire: the clock jumps over the times from `first` to `last`, and nothing stands in for them. The
    /// instant is that of the jump.
    Missing { first: NaiveDateTime, last: NaiveDateTime },
    /// No fire: the clock shows the scheduled time for the second time, and the job ran at the first. One
    /// stands for all that the same change took away.
    NotRepeated,
    /// No fire: the calendar excludes the instant.
    Excluded(Excluded),
}

impl Upcoming {
    /// Whether the job is due.
    pub fn runs(&self) -> bool {
        !matches!(self.mark, Mark::Missing { .. } | Mark::NotRepeated | Mark::Excluded(_))
    }
}

/// Iterates over a schedule's future.
pub struct Walk<'a> {
    schedule: &'a Schedule,
    after: Option<i64>,
    ready: VecDeque<Upcoming>,
}

impl<'a> Walk<'a> {
    pub fn new(schedule: &'a Schedule, after: i64) -> Walk<'a> {
        Walk { schedule, after: Some(after), ready: VecDeque::new() }
    }

    /// Looks as far as the next instant of the texts.
    fn advance(&mut self, after: i64) -> Option<i64> {
        let schedule = self.schedule;
        let at = schedule.next_of_texts(after, &mut Steps::default())?;
        let mut taken = taken_away(schedule, after, at);
        taken.retain(|one| schedule.excluded(one.at).is_none());
        self.ready.extend(taken);
        let excluded = schedule.excluded_second(at);
        let mark = excluded.map_or_else(|| mark(schedule, at), Mark::Excluded);
        self.ready.push_back(Upcoming { at: timestamp(at), mark });
        match excluded {
            // Skipped dates are few and their fires are shown one by one.
            None | Some(Excluded::Skipped(_)) => Some(at),
            Some(excluded) => excluded.ends(&schedule.zone, at).map(|end| end - 1),
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Upcoming;

    fn next(&mut self) -> Option<Upcoming> {
        if self.ready.is_empty() {
            self.after = self.after.and_then(|after| self.advance(after));
        }
        self.ready.pop_front()
    }
}

/// How a change of the clock bears on the fire at `at`, in seconds.
fn mark(schedule: &Schedule, at: i64) -> Mark {
    let stretch = schedule.zone.stretch_at(at);
    let marks = clocks(schedule).filter_map(|clock| mark_of_text(clock, &stretch, at));
    let both = |one: Mark, other: Mark| match (one, other) {
        (Mark::FirstPass { again: one }, Mark::FirstPass { again: other }) => {
            Mark::FirstPass { again: one || other }
        }
        // It would run without the gap, too.
        (Mark::Moved { .. }, other) => other,
        (one, _) => one,
    };
    marks.reduce(both).unwrap_or(Mark::Ordinary)
}

/// The mark of the fire at `at` as far as it is one of `clock`.
fn mark_of_text(clock: &Clock, stretch: &Stretch, at: i64) -> Option<Mark> {
    let shown = at + stretch.offset_i64();
    if !clock.picks(shown) {
        let (first, _) = clock.picked_in_gap(stretch).filter(|_| clock.makes_good(stretch))?;
        return (at == stretch.start).then_some(Mark::Moved { from: wall::from_seconds(first) });
    }
    let shown_before = shown < stretch.start.saturating_add(stretch.before.into());
    if shown_before && stretch.jump() < 0 {
        return (!clock.runs_once(stretch.jump())).then_some(Mark::SecondPass);
    }
    let next_jump = stretch.next_jump();
    if next_jump < 0 && shown >= stretch.end + i64::from(stretch.after) {
        return Some(Mark::FirstPass { again: !clock.runs_once(next_jump) });
    }
    Some(Mark::Ordinary)
}

/// What clock changes take away in `(after, until]`, in order.
fn taken_away(schedule: &Schedule, after: i64, until: i64) -> Vec<Upcoming> {
    let mut taken = Vec::new();
    if clocks(schedule).next().is_none() {
        return taken;
    }
    let mut stretch = schedule.zone.stretch_at(after);
    loop {
        taken.extend(clocks(schedule).filter_map(|clock| taken_at_start(clock, &stretch)));
        if stretch.end > until {
            break;
        }
        stretch = schedule.zone.stretch_at(stretch.end);
    }
    taken.retain(|one| {
        let at = one.at.timestamp();
        let another_runs = || schedule.next_of_texts(at - 1, &mut Steps::default()) == Some(at);
        after < at && at <= until && (one.mark != Mark::NotRepeated || !another_runs())
    });
    taken.sort_by_key(|one| one.at);
    taken
}

/// What the change at the start of `stretch` takes away from `clock`.
fn taken_at_start(clock: &Clock, stretch: &Stretch) -> Option<Upcoming> {
    if let Some((first, last)) = clock.picked_in_gap(stretch) {
        let (first, last) = (wall::from_seconds(first), wall::from_seconds(last));
        let lost = !clock.makes_good(stretch) && !goes_on(clock, stretch);
        return lost
            .then_some(Upcoming { at: timestamp(stretch.start), mark: Mark::Missing { first, last } });
    }
    if clock.runs_once(stretch.jump()) {
        let again = clock.picked_between(
            stretch.start + stretch.offset_i64(),
            stretch.start + i64::from(stretch.before),
        )?;
        let at = again - stretch.offset_i64();
        let mark = Mark::NotRepeated;
        return (at < stretch.end).then_some(Upcoming { at: timestamp(at), mark });
    }
    None
}

/// Whether a gap is not felt: minutes of every hour go on as if the clock had not been touched.
fn goes_on(clock: &Clock, stretch: &Stretch) -> bool {
    let whole_hours = stretch.jump() % 3600 == 0 && stretch.jump() < wall::DAY;
    whole_hours && clock.times.hours().len() == 24
}

fn clocks(schedule: &Schedule) -> impl Iterator<Item = &Clock> {
    schedule.rules.iter().filter_map(|rule| match rule {
        Rule::Clock(clock) => Some(&**clock),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown in the half day around a clock change in New York: time, offset and mark.
    #[track_caller]
    fn check(texts: &[&str], after: &str, expected: &[&str]) {
        let schedule = Schedule::parse(texts, &"America/New_York".parse().unwrap(), "job").unwrap();
        let after: Timestamp = after.parse().unwrap();
        let near = schedule.upcoming(after).take_while(|one| one.at - after < chrono::TimeDelta::hours(6));
        let shown = near.map(|one| {
            let local = schedule.zone.local(one.at).to_string();
            let (time, offset) = (&local[11..16], &local[19..]);
            let mark = match one.mark {
                Mark::Ordinary => String::new(),
                Mark::Moved { from } => format!(" moved from {}", from.format("%H:%M")),
                Mark::FirstPass { again } => {
                    format!(" first{}", if again { ", again" } else { "" })
                }
                Mark::SecondPass => " second".to_owned(),
                Mark::Missing { first, last } => {
                    format!(" missing {}-{}", first.format("%H:%M"), last.format("%H:%M"))
                }
                Mark::NotRepeated => " not repeated".to_owned(),
                Mark::Excluded(_) => " excluded".to_owned(),
            };
            assert_eq!(one.runs(), schedule.contains(one.at) && !mark.starts_with(" missing"));
            format!("{time}{offset}{mark}")
        });
        assert_eq!(shown.collect::<Vec<_>>(), expected, "{texts:?}");
    }

    const SPRING: &str = "2024-03-10T05:00:00Z";
    const AUTUMN: &str = "2024-11-03T04:00:00Z";

    #[test]
    fn a_gap_moves_fixed_times_and_takes_others_away() {
        check(&["30 2 * * *"], SPRING, &["03:00-04:00 moved from 02:30"]);
        check(&["0,30 2,3 * * *"], SPRING, &["03:00-04:00", "03:30-04:00"]);
        check(&["*/20 2 * * *"], SPRING, &["03:00-04:00 missing 02:00-02:40"]);
        check(
            &["0 * * * *"],
            "2024-03-10T06:30:00Z",
            &["03:00-04:00", "04:00-04:00", "05:00-04:00", "06:00-04:00", "07:00-04:00", "08:00-04:00"],
        );
        check(
            &["*/20 2 * * *", "45 2 * * *"],
            SPRING,
            &["03:00-04:00 missing 02:00-02:40", "03:00-04:00 moved from 02:45"],
        );
        check(&["15 2 * * *", "0 3 * * *"], SPRING, &["03:00-04:00"]);
    }

    #[test]
    fn a_repeat_runs_wall_clock_jobs_twice_and_fixed_times_once() {
        check(&["30 1 * * *"], AUTUMN, &["01:30-04:00 first", "01:30-05:00 not repeated"]);
        check(
            &["*/30 1 * * *"],
            AUTUMN,
            &[
                "01:00-04:00 first, again",
                "01:30-04:00 first, again",
                "01:00-05:00 second",
                "01:30-05:00 second",
            ],
        );
        check(
            &["30 1 * * *", "*/30 1 * * *"],
            "2024-11-03T05:10:00Z",
            &["01:30-04:00 first, again", "01:00-05:00 second", "01:30-05:00 second"],
        );
        check(
            &["30 1 * * *", "0 2 * * *"],
            "2024-11-03T06:10:00Z",
            &["01:30-05:00 not repeated", "02:00-05:00"],
        );
    }
}
