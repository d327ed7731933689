//! The parts of a job's calendar that take instants away: `start_at`, `end_at`, `skip_dates`, `only_dates`.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, NaiveDate};

use super::wall::{self, DAY};
use super::zone::Zone;
use super::{Timestamp, timestamp};

/// Which instants count. The default lets all count.
///
/// Dates are those on the clock of the schedule's zone at the instant itself: a fire that a gap moved past
/// midnight has the later date.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calendar {
    /// Instants before it do not count.
    start_at: Option<Timestamp>,
    /// Instants at or after it do not count.
    end_at: Option<Timestamp>,
    /// In order, none touching the next.
    skip: Vec<Dates>,
    /// The same. `None` is every date.
    only: Option<Vec<Dates>>,
}

/// A date or a range of dates, both ends included: `2026-12-24` or `2026-12-24..2026-12-26`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dates {
    first: NaiveDate,
    last: NaiveDate,
}

/// The calendar as a job file has it: texts, not yet looked at. `only_dates` may be left out; if it is there
/// and empty, no date counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct CalendarText<'a> {
    /// RFC 3339.
    pub start_at: Option<&'a str>,
    /// RFC 3339.
    pub end_at: Option<&'a str>,
    /// As [`Dates`].
    pub skip_dates: &'a [String],
    /// As [`Dates`].
    pub only_dates: Option<&'a [String]>,
}

/// What is wrong with a calendar. `Display` is one line and names field and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarError {
    /// `start_at`, `end_at`, `skip_dates` or `only_dates`.
    pub field: &'static str,
    /// Which text of a list.
    pub index: usize,
    pub message: String,
}

/// Why an instant does not count. `Display` goes on from "excluded: ".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excluded {
    BeforeStart(Timestamp),
    AfterEnd(Timestamp),
    /// By this part of `skip_dates`.
    Skipped(Dates),
    /// Not in `only_dates`, whose next part is this.
    NotAmong(Option<Dates>),
}

impl Calendar {
    /// Checks all four; every mistake is told.
    pub fn parse(text: CalendarText<'_>) -> Result<Calendar, Vec<CalendarError>> {
        let mut errors = Vec::new();
        let start_at = instant("start_at", text.start_at, &mut errors);
        let end_at = instant("end_at", text.end_at, &mut errors);
        let skip = dates("skip_dates", text.skip_dates, &mut errors);
        let only = text.only_dates.map(|texts| dates("only_dates", texts, &mut errors));
        if let (Some(start), Some(end)) = (start_at, end_at)
            && end <= start
        {
            let message = "is not after start_at, so no instant would count".to_owned();
            errors.push(CalendarError { field: "end_at", index: 0, message });
        }
        if errors.is_empty() { Ok(Calendar { start_at, end_at, skip, only }) } else { Err(errors) }
    }

    pub fn start_at(&self) -> Option<Timestamp> {
        self.start_at
    }

    pub fn end_at(&self) -> Option<Timestamp> {
        self.end_at
    }

    /// In order, none touching the next, as those of `only_dates`.
    pub fn skip_dates(&self) -> &[Dates] {
        &self.skip
    }

    /// `None` is every date.
    pub fn only_dates(&self) -> Option<&[Dates]> {
        self.only.as_deref()
    }

    /// Why the instant `at`, in seconds, does not count.
    pub(super) fn excludes(&self, zone: &Zone, at: i64) -> Option<Excluded> {
        if let Some(end) = self.end_at.filter(|end| timestamp(at) >= *end) {
            return Some(Excluded::AfterEnd(end));
        }
        if let Some(start) = self.start_at.filter(|start| timestamp(at) < *start) {
            return Some(Excluded::BeforeStart(start));
        }
        let date = wall::date((at + zone.stretch_at(at).offset_i64()).div_euclid(DAY));
        if let Some(only) = &self.only {
            let next = next_part(only, date);
            if next.is_none_or(|dates| dates.first > date) {
                return Some(Excluded::NotAmong(next));
            }
        }
        next_part(&self.skip, date).filter(|dates| dates.first <= date).map(Excluded::Skipped)
    }
}

impl Excluded {
    /// The first second, after the excluded one `at`, to which this reason may not apply.
    pub(super) fn ends(&self, zone: &Zone, at: i64) -> Option<i64> {
        let midnight = |date: NaiveDate| wall::day(date) * DAY;
        match self {
            Excluded::AfterEnd(_) | Excluded::NotAmong(None) => None,
            Excluded::BeforeStart(start) => {
                let fraction = i64::from(start.timestamp_subsec_nanos() > 0);
                Some(start.timestamp() + fraction)
            }
            Excluded::Skipped(dates) => Some(zone.first_at_or_past(midnight(dates.last) + DAY, at + 1)),
            Excluded::NotAmong(Some(next)) => Some(zone.first_at_or_past(midnight(next.first), at + 1)),
        }
    }
}

impl Dates {
    /// `first..=last`, or none if they are the wrong way round or not in the years 1 to 9999.
    pub fn new(first: NaiveDate, last: NaiveDate) -> Option<Dates> {
        let years = wall::date(wall::FIRST.div_euclid(DAY))..=wall::date(wall::LAST.div_euclid(DAY));
        let sound = first <= last && years.contains(&first) && years.contains(&last);
        sound.then_some(Dates { first, last })
    }

    pub fn first(&self) -> NaiveDate {
        self.first
    }

    pub fn last(&self) -> NaiveDate {
        self.last
    }
}

impl FromStr for Dates {
    type Err = String;

    fn from_str(text: &str) -> Result<Dates, String> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let (first, last) = (date(first)?, date(last)?);
        if last < first {
            return Err(format!("`{text}` ends before it begins"));
        }
        Dates::new(first, last).ok_or_else(|| format!("`{text}` is not within the years 1 to 9999"))
    }
}

fn date(text: &str) -> Result<NaiveDate, String> {
    let shape = text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    if !shape {
        let shown = text.escape_debug();
        return Err(format!("`{shown}` is not a date; write `2026-12-24` or `2026-12-24..2026-12-26`"));
    }
    NaiveDate::parse_from_str(text, "%Y-%m-%d").map_err(|_| format!("there is no day {text}"))
}

fn dates(field: &'static str, texts: &[String], errors: &mut Vec<CalendarError>) -> Vec<Dates> {
    let mut ranges = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        match text.parse::<Dates>() {
            Ok(dates) => ranges.push(dates),
            Err(message) => errors.push(CalendarError { field, index, message }),
        }
    }
    joined(ranges)
}

/// The same dates, in order, with ranges that overlap or touch made one.
fn joined(mut ranges: Vec<Dates>) -> Vec<Dates> {
    ranges.sort();
    let mut joined: Vec<Dates> = Vec::with_capacity(ranges.len());
    for next in ranges {
        match joined.last_mut() {
            Some(last) if wall::day(next.first) <= wall::day(last.last) + 1 => {
                last.last = last.last.max(next.last);
            }
            _ => joined.push(next),
        }
    }
    joined
}

/// The part that holds `date` or is the next after it.
fn next_part(parts: &[Dates], date: NaiveDate) -> Option<Dates> {
    parts.get(parts.partition_point(|dates| dates.last < date)).copied()
}

fn instant(field: &'static str, text: Option<&str>, errors: &mut Vec<CalendarError>) -> Option<Timestamp> {
    let text = text?;
    match DateTime::parse_from_rfc3339(text) {
        Ok(instant) => Some(instant.to_utc()),
        Err(_) => {
            let message = format!(
                "`{}` is not an RFC 3339 instant, such as `2026-12-24T18:00:00+01:00`",
                text.escape_debug()
            );
            errors.push(CalendarError { field, index: 0, message });
            None
        }
    }
}

impl fmt::Display for Dates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}..{}", self.first, self.last),
        }
    }
}

impl fmt::Display for CalendarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for CalendarError {}

impl fmt::Display for Excluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = |at: &Timestamp| at.format("%Y-%m-%dT%H:%M:%SZ").to_string();
        match self {
            Excluded::BeforeStart(start) => write!(f, "before start_at {}", written(start)),
            Excluded::AfterEnd(end) => write!(f, "end_at {} has come", written(end)),
            Excluded::Skipped(dates) => write!(f, "skip_dates has {dates}"),
            Excluded::NotAmong(Some(next)) => write!(f, "not in only_dates, whose next is {next}"),
            Excluded::NotAmong(None) => write!(f, "after the last of only_dates"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Schedule;
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    /// The first fires after noon UTC on 2026-12-23, and what `upcoming` says about all it shows.
    #[track_caller]
    fn check(expr: &str, skip: &[&str], only: Option<&[&str]>, fires: &[&str], shown: &[&str]) {
        let (skip, only) = (texts(skip), only.map(texts));
        let text = CalendarText {
            start_at: Some("2026-12-24T00:00:00+01:00"),
            end_at: Some("2027-01-03T00:00:00+01:00"),
            skip_dates: &skip,
            only_dates: only.as_deref(),
        };
        let zone: Zone = "Europe/Berlin".parse().unwrap();
        let schedule = Schedule::parse(&[expr], &zone, "job").unwrap();
        let schedule = schedule.within(Calendar::parse(text).unwrap());
        let after: Timestamp = "2026-12-23T12:00:00Z".parse().unwrap();
        let mut from = after;
        let found = std::iter::from_fn(|| {
            from = schedule.next_after(from)?;
            Some(zone.local(from).wall().format("%m-%d %H:%M").to_string())
        });
        assert_eq!(found.collect::<Vec<_>>(), fires);
        let marks = schedule.upcoming(after).map(|one| {
            let wall = zone.local(one.at).wall().format("%d %H:%M").to_string();
            match one.mark {
                super::super::Mark::Excluded(why) => format!("{wall} {why}"),
                _ => wall,
            }
        });
        assert_eq!(marks.collect::<Vec<_>>(), shown);
    }

    #[test]
    fn excluded_dates_have_no_fires_and_are_shown() {
        check(
            "0 18 * * *",
            &["2026-12-25..2026-12-30", "2026-12-31", "2027-01-01"],
            None,
            &["12-24 18:00", "01-02 18:00"],
            &[
                "23 18:00 before start_at 2026-12-23T23:00:00Z",
                "24 18:00",
                "25 18:00 skip_dates has 2026-12-25..2027-01-01",
                "26 18:00 skip_dates has 2026-12-25..2027-01-01",
                "27 18:00 skip_dates has 2026-12-25..2027-01-01",
                "28 18:00 skip_dates has 2026-12-25..2027-01-01",
                "29 18:00 skip_dates has 2026-12-25..2027-01-01",
                "30 18:00 skip_dates has 2026-12-25..2027-01-01",
                "31 18:00 skip_dates has 2026-12-25..2027-01-01",
                "01 18:00 skip_dates has 2026-12-25..2027-01-01",
                "02 18:00",
                "03 18:00 end_at 2027-01-02T23:00:00Z has come",
            ],
        );
    }

    #[test]
    fn between_the_only_dates_one_instant_stands_for_all() {
        check(
            "0 */12 * * *",
            &["2026-12-29"],
            Some(&["2026-12-28..2026-12-29"]),
            &["12-28 00:00", "12-28 12:00"],
            &[
                "24 00:00 not in only_dates, whose next is 2026-12-28..2026-12-29",
                "28 00:00",
                "28 12:00",
                "29 00:00 skip_dates has 2026-12-29",
                "29 12:00 skip_dates has 2026-12-29",
                "30 00:00 after the last of only_dates",
            ],
        );
        check(
            "@hourly",
            &[],
            Some(&[]),
            &[],
            &["23 14:00 before start_at 2026-12-23T23:00:00Z", "24 00:00 after the last of only_dates"],
        );
    }

    #[test]
    fn a_mistake_names_its_field_and_value() {
        let skip = texts(&["2026-02-29", "24.12.2026", "2026-12-26..2026-12-24", "2026-12-24"]);
        let errors = Calendar::parse(CalendarText {
            start_at: Some("tomorrow"),
            skip_dates: &skip,
            ..Default::default()
        });
        let lines: Vec<String> =
            errors.unwrap_err().iter().map(|error| format!("{} {error}", error.index)).collect();
        assert_eq!(
            lines,
            [
                "0 start_at: `tomorrow` is not an RFC 3339 instant, such as `2026-12-24T18:00:00+01:00`",
                "0 skip_dates: there is no day 2026-02-29",
                "1 skip_dates: `24.12.2026` is not a date; write `2026-12-24` or `2026-12-24..2026-12-26`",
                "2 skip_dates: `2026-12-26..2026-12-24` ends before it begins",
            ]
        );
    }
}
