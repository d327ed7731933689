//! Times as people write them on the command line, and as they are shown to them.

use std::time::Duration;

use chrono::{NaiveDate, NaiveTime, SecondsFormat, SubsecRound, TimeDelta};

use crate::schedule::{Schedule, Timestamp, Zone};

/// Which way a duration or a time of day counts from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    Past,
    Future,
}

/// What may stand for a time, for help texts.
pub const FORMS: &str = "RFC 3339 (2026-11-30T02:00:00Z), a date, a time of day (06:00), or a duration (8h)";

/// Reads a time. Dates and times of day are those of `zone`.
pub fn instant(text: &str, now: Timestamp, zone: &Zone, toward: Toward) -> Result<Timestamp, String> {
    if let Ok(at) = chrono::DateTime::parse_from_rfc3339(text) {
        return Ok(at.to_utc());
    }
    if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        return start_of_day(date, zone).ok_or_else(|| format!("{text:?} is too far away"));
    }
    if let Ok(time) = NaiveTime::parse_from_str(text, "%H:%M") {
        return time_of_day(time, now, zone, toward).ok_or_else(|| format!("{text:?} is too far away"));
    }
    let far = || format!("{text:?} is too far away");
    match humantime::parse_duration(text) {
        Ok(duration) => {
            let duration = TimeDelta::from_std(duration).map_err(|_| far())?;
            match toward {
                Toward::Past => now.checked_sub_signed(duration),
                Toward::Future => now.checked_add_signed(duration),
            }
            .ok_or_else(far)
        }
        Err(_) => Err(format!("{text:?} is not a time: write {FORMS}")),
    }
}

/// When the day begins, whatever its clock does in that night.
fn start_of_day(date: NaiveDate, zone: &Zone) -> Option<Timestamp> {
    let midnight = date.and_time(NaiveTime::MIN).and_utc();
    let offset = |at: Timestamp| TimeDelta::seconds(zone.local(at).offset_seconds().into());
    // What the clock is off from UTC at midnight is not known before midnight is: the second guess is good.
    let guess = midnight.checked_sub_signed(offset(midnight))?;
    midnight.checked_sub_signed(offset(guess))
}

/// The last or the next instant at which the zone's clock shows this time, today if it can be.
fn time_of_day(time: NaiveTime, now: Timestamp, zone: &Zone, toward: Toward) -> Option<Timestamp> {
    let daily = Schedule::parse(&[time.format("%M %H * * *").to_string()], zone, "").ok()?;
    match toward {
        Toward::Future => daily.next_after(now),
        Toward::Past => {
            let mut last = None;
            let mut from = now - TimeDelta::hours(50);
            while let Some(at) = daily.next_after(from).filter(|at| *at <= now) {
                last = Some(at);
                from = at;
            }
            last
        }
    }
}

/// RFC 3339 in UTC, to the millisecond: how every instant stands in JSON.
pub fn utc(at: Timestamp) -> String {
    at.trunc_subsecs(3).to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

/// UTC in whole seconds, for tables about what was.
pub fn utc_seconds(at: Timestamp) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// The clock on the wall of a zone with weekday and offset, for tables about what is to come.
pub fn local(at: Timestamp, zone: &Zone) -> String {
    let local = zone.local(at);
    let text = local.to_string();
    let (clock, offset) = text.split_at(text.len().min(19));
    format!("{} {} {offset}", local.weekday(), clock.replace('T', " "))
}

/// The instant that a job's fires must be due after, so as to start after `after`: those that are due and have not
/// started yet are still to come. `since` is when the job's schedule began to count.
pub fn due_after(after: Timestamp, delay: Duration, since: Timestamp) -> Timestamp {
    let delay = TimeDelta::from_std(delay).unwrap_or(TimeDelta::MAX);
    after.checked_sub_signed(delay).unwrap_or(Timestamp::MIN_UTC).max(since)
}

/// When a fire starts that is due at `at`.
pub fn start(at: Timestamp, delay: Duration) -> Timestamp {
    TimeDelta::from_std(delay)
        .ok()
        .and_then(|delay| at.checked_add_signed(delay))
        .unwrap_or(Timestamp::MAX_UTC)
}

/// When a fire is due, as [`local`], and how much later it starts, if it does.
pub fn due(at: Timestamp, delay: Duration, zone: &Zone) -> String {
    match delay.is_zero() {
        true => local(at, zone),
        false => format!("{}, starts {} later", local(at, zone), length(delay)),
    }
}

/// How long until an instant, or how long ago it was, in two units at most.
pub fn wait(now: Timestamp, at: Timestamp) -> String {
    match (at - now).num_seconds() {
        past @ ..0 => format!("{} ago", in_units(-past)),
        seconds => in_units(seconds),
    }
}

/// A stretch of time, in two units at most.
pub fn length(length: Duration) -> String {
    match length.as_secs() {
        0 => format!("{} ms", length.as_millis()),
        seconds => in_units(i64::try_from(seconds).unwrap_or(i64::MAX)),
    }
}

fn in_units(seconds: i64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let first = units.iter().position(|(size, _)| seconds >= *size).unwrap_or(units.len() - 1);
    let mut left = seconds;
    let mut words = Vec::new();
    for (size, unit) in &units[first..units.len().min(first + 2)] {
        if left >= *size || words.is_empty() {
            words.push(format!("{} {unit}", left / size));
        }
        left %= size;
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        chrono::DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    #[track_caller]
    fn check(text: &str, zone: &str, toward: Toward, expected: &str) {
        let now = at("2026-10-24T12:00:00Z");
        let read = instant(text, now, &zone.parse().unwrap(), toward);
        assert_eq!(read.map(utc), Ok(expected.to_owned()), "{text}");
    }

    #[test]
    fn a_time_is_read_in_each_of_its_forms() {
        use Toward::{Future, Past};
        check("2026-01-02T03:04:05+01:00", "UTC", Past, "2026-01-02T02:04:05Z");
        check("2026-10-26", "Europe/Berlin", Past, "2026-10-25T23:00:00Z");
        check("2026-10-25", "Europe/Berlin", Past, "2026-10-24T22:00:00Z");
        check("2026-10-25", "UTC", Past, "2026-10-25T00:00:00Z");
        check("06:00", "UTC", Future, "2026-10-25T06:00:00Z");
        check("06:00", "UTC", Past, "2026-10-24T06:00:00Z");
        check("13:00", "UTC", Future, "2026-10-24T13:00:00Z");
        check("13:00", "UTC", Past, "2026-10-23T13:00:00Z");
        check("06:00", "Europe/Berlin", Future, "2026-10-25T05:00:00Z");
        check("8h", "UTC", Future, "2026-10-24T20:00:00Z");
        check("2days 1h", "UTC", Past, "2026-10-22T11:00:00Z");
    }

    #[test]
    fn what_is_no_time_is_told_what_one_looks_like() {
        for text in ["", "soon", "25:00", "2026-13-01", "8", "99999999999y"] {
            let error = instant(text, Timestamp::UNIX_EPOCH, &Zone::utc(), Toward::Past).unwrap_err();
            assert!(error.contains("is not a time") || error.contains("too far away"), "{error}");
        }
    }

    #[test]
    fn a_wait_has_two_units_at_most() {
        let now = at("2026-10-24T12:00:00Z");
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min 1 s"),
            (3600, "1 h"),
            (3661, "1 h 1 min"),
            (176_400, "2 d 1 h"),
            (-61, "1 min 1 s ago"),
        ] {
            assert_eq!(wait(now, now + TimeDelta::seconds(seconds)), text);
        }
    }

    #[test]
    fn a_local_time_has_weekday_and_offset() {
        let zone = "Europe/Berlin".parse().unwrap();
        assert_eq!(local(at("2026-10-25T00:30:00Z"), &zone), "Sun 2026-10-25 02:30:00 +02:00");
        assert_eq!(local(at("2026-10-25T01:30:00Z"), &zone), "Sun 2026-10-25 02:30:00 +01:00");
    }
}
