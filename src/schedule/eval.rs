//! From wall-clock rules to instants: the oracle's rules about gaps and repeats.
//!
//! The search walks a zone's stretches (`zone::Stretch`), in each of which the clock runs evenly. In a stretch
//! it asks for the first picked wall-clock minute at or after a *floor*, and the rules about clock changes
//! are nothing but where that floor lies:
//!
//! - ordinarily it is what the clock shows where the search stands;
//! - at the end of a short gap a fixed-time job looks from the first missing minute, and what it finds in the
//!   gap runs at the first instant after it;
//! - after a short repeat a fixed-time job looks from where the clock had been before.

use super::days::{self, Days};
use super::times::Times;
use super::wall::{self, DAY, DAY_MINUTES};
use super::zone::{Stretch, Zone};

/// One schedule text, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    Clock(Box<Clock>),
    /// Every so many seconds, counted from 1970-01-01T00:00:00Z.
    Every(i64),
    /// Once, at this second.
    At(i64),
    /// When a machine starts: at no instant that could be known.
    Reboot,
}

/// Five fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    pub times: Times,
    pub days: Days,
    /// A fixed-time job, not a wall-clock job: neither minute nor hour is starred.
    pub fixed: bool,
}

/// Counts what a search looks at: months of the calendar and stretches of a zone.
#[derive(Debug, Default)]
pub struct Steps(pub u32);

impl Steps {
    pub fn count(&mut self) {
        self.0 += 1;
    }
}

/// Gaps from here on, in seconds, are not made good.
const LONG_GAP: i64 = 3 * 3600;
/// In repeats above this length, in seconds, both passes count.
const LONGEST_REPEAT: i64 = 3 * 3600;
/// No change of a clock moves it by more, and no offset is larger.
const FAR: i64 = 2 * DAY;

impl Rule {
    /// The first instant after `after`, in seconds.
    pub fn next_after(&self, zone: &Zone, after: i64, steps: &mut Steps) -> Option<i64> {
        let from = after.saturating_add(1).max(wall::FIRST);
        let next = match self {
            Rule::Clock(clock) => clock.next(zone, from, steps),
            Rule::Every(period) => {
                let late = from.rem_euclid(*period);
                Some(if late == 0 { from } else { from + (period - late) })
            }
            Rule::At(at) => (*at >= from).then_some(*at),
            Rule::Reboot => None,
        };
        next.filter(|&next| next <= wall::LAST)
    }

    pub fn never_fires(&self) -> bool {
        matches!(self, Rule::Clock(clock) if clock.days.are_none())
    }
}

impl Clock {
    /// The first instant at or after `from`, in seconds.
    fn next(&self, zone: &Zone, from: i64, steps: &mut Steps) -> Option<i64> {
        if from > wall::LAST {
            return None;
        }
        // All kinds of years come within so many. What the yearly rule of a zone swallows in all of them,
        // as a gap can swallow `*/15 2 * 3 0#2`, it always will.
        let horizon = from.max(zone.last_irregular()) + i64::from(days::YEARS) * 366 * DAY;
        let mut from = from;
        let mut stretch = zone.stretch_at(from);
        loop {
            steps.count();
            let wall = self.next_wall(self.floor(&stretch, from), steps)?;
            // A missing minute runs at the end of its gap, which is where the search stands then.
            let at = (wall - stretch.offset_i64()).max(from);
            if at < stretch.end {
                return Some(at);
            }
            if stretch.end > horizon {
                return None;
            }
            // No minute is picked before `wall`: go there at once, unless a repeat near the start might
            // bring back times that `wall` has passed.
            let skip = if stretch.end - from >= FAR { wall - FAR } else { i64::MIN };
            from = stretch.end.max(skip);
            stretch = zone.stretch_at(from);
        }
    }

    /// The wall-clock time, in seconds, from which minutes count for a search that stands at `from`.
    fn floor(&self, stretch: &Stretch, from: i64) -> i64 {
        let shown = from + stretch.offset_i64();
        let before = stretch.start.saturating_add(stretch.before.into());
        if self.makes_good(stretch) && from == stretch.start {
            before
        } else if self.runs_once(stretch.jump()) {
            shown.max(before)
        } else {
            shown
        }
    }

    /// Whether what a gap at the start of `stretch` swallows runs at its end.
    pub fn makes_good(&self, stretch: &Stretch) -> bool {
        self.fixed && (1..LONG_GAP).contains(&stretch.jump())
    }

    /// Whether `jump` is a repeat in whose second pass nothing runs.
    pub fn runs_once(&self, jump: i64) -> bool {
        self.fixed && (-LONGEST_REPEAT..0).contains(&jump)
    }

    /// The first and the last of the picked minutes in the gap at the start of `stretch`, if there are any.
    pub fn picked_in_gap(&self, stretch: &Stretch) -> Option<(i64, i64)> {
        if stretch.jump() <= 0 {
            return None;
        }
        let gap = stretch.start + i64::from(stretch.before)..stretch.start + stretch.offset_i64();
        let first = self.picked_between(gap.start, gap.end)?;
        let mut last = first;
        while let Some(later) = self.picked_between(last + 60, gap.end) {
            last = later;
        }
        Some((first, last))
    }

    /// The first picked minute in `[wall, end)`.
    pub fn picked_between(&self, wall: i64, end: i64) -> Option<i64> {
        self.next_wall(wall, &mut Steps::default()).filter(|&picked| picked < end)
    }

    /// Whether the minute that begins at `wall` is picked.
    pub fn picks(&self, wall: i64) -> bool {
        let minute = wall.div_euclid(60);
        wall.rem_euclid(60) == 0
            && self.times.contains(minute.rem_euclid(DAY_MINUTES))
            && self.days.contains(minute.div_euclid(DAY_MINUTES))
    }

    /// The first picked minute at or after a wall-clock time, both in seconds.
    fn next_wall(&self, wall: i64, steps: &mut Steps) -> Option<i64> {
        let minute = (wall + 59).div_euclid(60);
        let today = minute.div_euclid(DAY_MINUTES);
        let day = self.days.next(today, steps)?;
        if day == today
            && let Some(time) = self.times.next(minute.rem_euclid(DAY_MINUTES))
        {
            return Some((day * DAY_MINUTES + time) * 60);
        }
        let day = if day == today { self.days.next(today + 1, steps)? } else { day };
        Some((day * DAY_MINUTES + self.times.first()) * 60)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Schedule, Timestamp};
    use super::*;

    #[track_caller]
    fn check(text: &str, after: &str, expected: &[&str]) {
        let schedule = Schedule::parse(&[text], &Zone::utc(), "job").unwrap();
        let mut from: Timestamp = after.parse().unwrap();
        let fires = std::iter::from_fn(|| {
            from = schedule.next_after(from)?;
            Some(from.format("%Y-%m-%dT%H:%M:%SZ").to_string())
        });
        assert_eq!(fires.take(expected.len().max(1)).collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn every_is_a_grid_from_the_epoch_whenever_one_asks() {
        check("@every 90s", "1969-12-31T23:58:00Z", &["1969-12-31T23:58:30Z", "1970-01-01T00:00:00Z"]);
        check("@every 90s", "1970-01-01T00:00:00.5Z", &["1970-01-01T00:01:30Z", "1970-01-01T00:03:00Z"]);
        check("@every 1s", "2026-11-30T00:00:00.999Z", &["2026-11-30T00:00:01Z", "2026-11-30T00:00:02Z"]);
        check("@every 1w", "2026-11-30T00:00:00Z", &["2026-12-03T00:00:00Z", "2026-12-10T00:00:00Z"]);
    }

    #[test]
    fn at_runs_once_and_reboot_at_no_known_instant() {
        check("@at 2027-01-01T00:00:00+01:00", "2026-01-01T00:00:00Z", &["2026-12-31T23:00:00Z"]);
        check("@at 2027-01-01T00:00:00+01:00", "2026-12-31T23:00:00Z", &[]);
        check("@reboot", "2026-01-01T00:00:00Z", &[]);
    }

    #[test]
    fn there_is_an_answer_for_every_instant_that_can_be_asked_about() {
        let schedule = Schedule::parse(&["0 0 1 1 *"], &Zone::utc(), "job").unwrap();
        let next = |after: Timestamp| schedule.next_after(after).map(|at| at.to_rfc3339());
        assert_eq!(next(Timestamp::MIN_UTC).as_deref(), Some("0002-01-01T00:00:00+00:00"));
        assert_eq!(next(Timestamp::MAX_UTC), None);
        check("0 0 1 1 *", "9998-06-01T00:00:00Z", &["9999-01-01T00:00:00Z"]);
        check("0 0 1 1 *", "9999-01-01T00:00:00Z", &[]);
        check("0 12 31 12 *", "1899-01-01T00:00:00Z", &["1899-12-31T12:00:00Z", "1900-12-31T12:00:00Z"]);
    }
}
