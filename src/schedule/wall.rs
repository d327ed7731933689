//! Wall-clock time as a number: the seconds since 1970-01-01 00:00 on a clock that never jumps.

use chrono::{DateTime, NaiveDate, NaiveDateTime};

/// A day on the wall, in seconds.
pub const DAY: i64 = 86_400;
/// A day on the wall, in minutes.
pub const DAY_MINUTES: i64 = 1_440;

/// The instants that schedules can have, in seconds since 1970: years 1 to 9999, less a margin of two days
/// so that the date is within them in every zone. RFC 3339 can write no others.
pub const FIRST: i64 = -62_135_596_800 + 2 * DAY;
pub const LAST: i64 = 253_402_300_799 - 2 * DAY;

pub fn from_seconds(wall: i64) -> NaiveDateTime {
    DateTime::from_timestamp(wall, 0).map_or(NaiveDateTime::default(), |at| at.naive_utc())
}

/// The days from 1970-01-01 to `date`.
pub fn day(date: NaiveDate) -> i64 {
    i64::from(date.to_epoch_days())
}

/// The date that many days after 1970-01-01. `day` lies in the years 0 to 10000.
pub fn date(day: i64) -> NaiveDate {
    i32::try_from(day).ok().and_then(NaiveDate::from_epoch_days).unwrap_or_default()
}

/// A month of a year, with what decides which of its days a rule picks.
#[derive(Clone, Copy)]
pub struct Month {
    pub year: i32,
    /// 1 to 12.
    pub month: u32,
    /// The day number of its first day.
    pub first_day: i64,
    /// 28 to 31.
    pub length: u32,
}

impl Month {
    pub fn of(year: i32, month: u32) -> Option<Month> {
        let first = NaiveDate::from_ymd_opt(year, month, 1)?;
        let length = match month {
            2 if first.leap_year() => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        Some(Month { year, month, first_day: day(first), length })
    }

    /// The weekday of its first day, 0 for Sunday.
    pub fn first_weekday(&self) -> u32 {
        // 1970-01-01 was a Thursday.
        u32::try_from((self.first_day + 4).rem_euclid(7)).expect("below 7")
    }
}

#[cfg(test)]
pub fn day_of(year: i32, month: u32, date: u32) -> i64 {
    day(NaiveDate::from_ymd_opt(year, month, date).unwrap())
}
