//! Which days a schedule's day and month fields pick.
//!
//! These rules are our own. The `cron` crate demands both day fields where crontab takes either, has no
//! `L`, `W` and `#`, knows no year before 1970 or after 2100, and its search cannot be counted.
//!
//! The picked days of a month depend on its length and on the weekday of its first day alone. There are 28
//! such kinds of month, and every kind that a month of the year can have comes within 40 years (29 February
//! on a given weekday, across a century that is no leap year). So a search through 41 years is complete.

use chrono::Datelike;

use super::Steps;
use super::wall::{self, Month};

/// The years after which a day that has not come never will.
pub const YEARS: i32 = 41;

/// The day of month, month and day of week fields together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Days {
    /// Bit n: day n of the month.
    pub dates: u32,
    /// Bit n: n days before the month's last day.
    pub from_end: u32,
    /// Bit n: the weekday nearest to day n.
    pub near: u32,
    /// The last Monday to Friday of the month.
    pub last_working: bool,
    /// Bit n: month n.
    pub months: u16,
    /// Bit n: weekday n, 0 for Sunday.
    pub weekdays: u8,
    /// Bit n: the last weekday n of the month.
    pub last: u8,
    /// Bit n of element k: the (k+1)-th weekday n of the month.
    pub nth: [u8; 5],
    /// A day counts only if both day fields pick it, because at least one of them is starred.
    pub both: bool,
}

impl Days {
    /// The first picked day at or after `day`, or none if there will never be one.
    pub fn next(&self, day: i64, steps: &mut Steps) -> Option<i64> {
        let start = wall::date(day);
        let mut month = Month::of(start.year(), start.month())?;
        let passed = (1 << start.day()) - 1;
        steps.count();
        if self.has_month(month.month) {
            let left = self.in_month(&month) & !passed;
            if left != 0 {
                return Some(month.first_day + i64::from(left.trailing_zeros()) - 1);
            }
        }
        loop {
            month = self.month_after(&month)?;
            if month.year > start.year() + YEARS {
                return None;
            }
            steps.count();
            let picked = self.in_month(&month);
            if picked != 0 {
                return Some(month.first_day + i64::from(picked.trailing_zeros()) - 1);
            }
        }
    }

    /// Whether `day` is picked.
    pub fn contains(&self, day: i64) -> bool {
        let date = wall::date(day);
        self.has_month(date.month())
            && Month::of(date.year(), date.month())
                .is_some_and(|month| self.in_month(&month) & (1 << date.day()) != 0)
    }

    /// Whether no day of any year is picked.
    pub fn are_none(&self) -> bool {
        // Any start will do: 41 years hold every kind of month.
        self.next(0, &mut Steps::default()).is_none()
    }

    fn has_month(&self, month: u32) -> bool {
        self.months & (1 << month) != 0
    }

    fn month_after(&self, month: &Month) -> Option<Month> {
        let later = u32::from(self.months) & !((2 << month.month) - 1);
        match later {
            0 => Month::of(month.year + 1, self.months.trailing_zeros()),
            _ => Month::of(month.year, later.trailing_zeros()),
        }
    }

    /// The picked days of a month, bit n for day n.
    fn in_month(&self, month: &Month) -> u32 {
        let by_date = self.by_date(month);
        let by_weekday = self.by_weekday(month);
        if self.both { by_date & by_weekday } else { by_date | by_weekday }
    }

    fn by_date(&self, month: &Month) -> u32 {
        let mut days = self.dates & all_days(month);
        for n in bits(self.from_end) {
            if n < month.length {
                days |= 1 << (month.length - n);
            }
        }
        for n in bits(self.near) {
            if n <= month.length {
                days |= 1 << nearest_working(month, n);
            }
        }
        if self.last_working {
            days |= 1 << nearest_working(month, month.length);
        }
        days
    }

    fn by_weekday(&self, month: &Month) -> u32 {
        let mut days = weekly(month, self.weekdays) & all_days(month);
        if self.last != 0 {
            let last_week = all_days(month) & !((2 << (month.length - 7)) - 1);
            days |= weekly(month, self.last) & last_week;
        }
        for (week, &weekdays) in (0..).zip(&self.nth) {
            let of_week = 0b1111_1110_u64 << (7 * week);
            let of_week = u32::try_from(of_week & u64::from(u32::MAX)).expect("masked");
            days |= weekly(month, weekdays) & of_week & all_days(month);
        }
        days
    }
}

/// Bits 1 to the length of the month.
fn all_days(month: &Month) -> u32 {
    u32::try_from((2_u64 << month.length) - 2).expect("31 days fit")
}

/// The days of `month`, and some beyond its end, that fall on one of `weekdays`.
fn weekly(month: &Month, weekdays: u8) -> u32 {
    let week = u64::from(weekdays);
    let first = month.first_weekday();
    // Turned so that bit 0 is the weekday of the first day.
    let turned = ((week >> first) | (week << (7 - first))) & 0x7f;
    let repeated = turned | turned << 7 | turned << 14 | turned << 21 | turned << 28;
    u32::try_from(repeated << 1 & u64::from(u32::MAX)).expect("masked")
}

/// The Monday to Friday of the month that is nearest to its day `n`.
fn nearest_working(month: &Month, n: u32) -> u32 {
    match (month.first_weekday() + n - 1) % 7 {
        6 if n == 1 => 3,
        6 => n - 1,
        0 if n == month.length => n - 2,
        0 => n + 1,
        _ => n,
    }
}

fn bits(mut set: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros())?;
        set &= set - 1;
        Some(lowest)
    })
}

#[cfg(test)]
mod tests {
    use super::super::eval::Rule;
    use super::super::parse::parse;
    use super::*;

    /// The days that the day fields of `fields` pick in 2027, as `month-day`.
    #[track_caller]
    fn check(fields: &str, expected: &[&str]) {
        let Ok((Rule::Clock(clock), _)) = parse(&format!("0 0 {fields}"), "job") else {
            panic!("{fields} is no schedule of five fields")
        };
        let (first, last) = (wall::day_of(2027, 1, 1), wall::day_of(2027, 12, 31));
        let by_walk: Vec<i64> = (first..=last).filter(|&day| clock.days.contains(day)).collect();
        let mut by_search = Vec::new();
        let mut from = first;
        while let Some(day) = clock.days.next(from, &mut Steps::default())
            && day <= last
        {
            by_search.push(day);
            from = day + 1;
        }
        assert_eq!(by_search, by_walk, "{fields}");
        let shown = by_walk.iter().map(|&day| wall::date(day).format("%m-%d").to_string());
        assert_eq!(shown.collect::<Vec<_>>(), expected, "{fields}");
    }

    #[test]
    fn l_counts_from_the_end_of_the_month() {
        check("L 1-4 *", &["01-31", "02-28", "03-31", "04-30"]);
        check("L-1,L 2 *", &["02-27", "02-28"]);
        check("L-30 1-4 *", &["01-01", "03-01"]);
        check("L-29 1,2,4 *", &["01-02", "04-01"]);
    }

    #[test]
    fn w_is_the_nearest_working_day_within_the_month() {
        // In 2027: 15 May is a Saturday, 15 August a Sunday, 1 May a Saturday, 31 January a Sunday.
        check("15W 5,8,9 *", &["05-14", "08-16", "09-15"]);
        check("1W 5,6,8 *", &["05-03", "06-01", "08-02"]);
        check("31W 1,4,7 *", &["01-29", "07-30"]);
        check("LW 1-3,10 *", &["01-29", "02-26", "03-31", "10-29"]);
    }

    #[test]
    fn a_weekday_can_be_the_nth_or_the_last_of_the_month() {
        check("* 1-3 fri#2", &["01-08", "02-12", "03-12"]);
        check("* 1-6 5#5", &["01-29", "04-30"]);
        check("* 1-3 0L", &["01-31", "02-28", "03-28"]);
        check("* 2 sunL,1#1", &["02-01", "02-28"]);
        check("* 3 7#1", &["03-07"]);
    }

    #[test]
    fn both_day_fields_must_match_if_one_is_starred_and_one_is_enough_otherwise() {
        check(
            "13 1-3 5",
            &[
                "01-01", "01-08", "01-13", "01-15", "01-22", "01-29", "02-05", "02-12", "02-13", "02-19",
                "02-26", "03-05", "03-12", "03-13", "03-19", "03-26",
            ],
        );
        check("*/2 1 1", &["01-11", "01-25"]);
        check("L 1-2 1L", &["01-25", "01-31", "02-22", "02-28"]);
        check("13 2 *", &["02-13"]);
    }

    #[test]
    fn days_of_no_year_are_known_to_be_none() {
        for (fields, none) in [
            ("30 2 *", true),
            ("31 2,4,6,9,11 *", true),
            ("L-29 2 *", true),
            ("30W 2 *", true),
            ("29 2 *", false),
            ("29 2 1", false),
            ("*/28 2 1", false),
            ("L-28 2 *", false),
            ("30 2 1", false),
        ] {
            let Ok((rule, _)) = parse(&format!("0 0 {fields}"), "job") else { panic!("{fields}") };
            assert_eq!(rule.never_fires(), none, "{fields}");
        }
    }
}
