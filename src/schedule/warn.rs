//! Where people go wrong: schedules that are valid and probably not what was meant.

use std::collections::HashMap;
use std::fmt;

use super::eval::{Clock, Rule, Steps};
use super::wall::{self, DAY};
use super::{Schedule, Timestamp, explain, timestamp};

/// A doubt about one schedule. `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Which of the schedule's texts.
    pub index: usize,
    pub kind: WarningKind,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WarningKind {
    /// Both day fields are set, which is read as "either", or as "both" where one is starred.
    BothDayFields,
    /// The minute field is `*` while the hour is not.
    EveryMinuteOfAnHour,
    /// Only 29 February matches.
    OnlyInLeapYears,
    /// Within a year a clock change moves a fire or takes it away.
    ClockChange,
}

/// Many jobs that are due in the same minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crowd {
    /// When the minute begins.
    pub at: Timestamp,
    /// In order of name.
    pub jobs: Vec<String>,
}

pub fn warnings(schedule: &Schedule, now: i64) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for (index, (rule, text)) in schedule.rules.iter().zip(schedule.texts.iter()).enumerate() {
        let Rule::Clock(clock) = rule else { continue };
        let found = [
            both_day_fields(clock),
            every_minute(clock, text),
            only_in_leap_years(clock),
            clock_change(schedule, clock, now),
        ];
        let found = found.into_iter().flatten();
        warnings.extend(found.map(|(kind, message)| Warning { index, kind, message }));
    }
    warnings
}

/// The minute within a day after `now` at which most of `jobs` are due, if that is at least `many` of them.
/// Jobs that run all the time are left out, because moving them changes nothing.
pub fn crowded<'a>(
    jobs: impl IntoIterator<Item = (&'a str, &'a Schedule)>,
    now: Timestamp,
    many: usize,
) -> Option<Crowd> {
    /// More fires a day than this and a job runs all the time: every half hour.
    const OFTEN: usize = 48;
    let until = now.timestamp() + DAY;
    let mut due: HashMap<i64, Vec<&str>> = HashMap::new();
    for (name, schedule) in jobs {
        let mut fires = Vec::new();
        let mut from = now.timestamp();
        while let Some(at) = schedule.next_after(timestamp(from)).map(|at| at.timestamp())
            && at <= until
            && fires.len() <= OFTEN
        {
            fires.push(at);
            from = at;
        }
        if fires.len() <= OFTEN {
            let mut minutes: Vec<i64> = fires.into_iter().map(|at| at - at.rem_euclid(60)).collect();
            minutes.dedup();
            minutes.into_iter().for_each(|minute| due.entry(minute).or_default().push(name));
        }
    }
    let most = due.into_iter().max_by_key(|(at, jobs)| (jobs.len(), std::cmp::Reverse(*at)));
    let (at, jobs) = most.filter(|(_, jobs)| jobs.len() >= many.max(2))?;
    let mut jobs: Vec<String> = jobs.into_iter().map(str::to_owned).collect();
    jobs.sort();
    Some(Crowd { at: timestamp(at), jobs })
}

type Found = Option<(WarningKind, String)>;

fn both_day_fields(clock: &Clock) -> Found {
    let (dates, weekdays) = (explain::dates(&clock.days)?, explain::weekdays(&clock.days)?);
    let message = if clock.days.both {
        format!(
            "day of month and day of week are both set and one begins with `*`, so it runs only on days \
             that match both: those of {dates} that fall on {weekdays}"
        )
    } else {
        format!(
            "day of month and day of week are both set, and either is enough: it runs on {dates}, and also \
             on {weekdays} whatever the date"
        )
    };
    Some((WarningKind::BothDayFields, message))
}

fn every_minute(clock: &Clock, text: &str) -> Found {
    let (minutes, hours) = (clock.times.minutes(), clock.times.hours());
    if minutes.len() < 60 || hours.len() == 24 {
        return None;
    }
    let runs = 60 * hours.len();
    let rest = text.split_once(' ').map_or("", |(_, rest)| rest);
    let once = if hours.len() == 1 { "once" } else { "once an hour" };
    let message = format!(
        "it runs {runs} times on each day that it is due, {}; to run {once} write `0 {rest}`",
        explain::times(&clock.times)
    );
    Some((WarningKind::EveryMinuteOfAnHour, message))
}

fn only_in_leap_years(clock: &Clock) -> Found {
    const FEBRUARY: u16 = 1 << 2;
    if clock.days.months != FEBRUARY || clock.days.are_none() {
        return None;
    }
    // These years hold every kind of year without a leap day.
    let ordinary = (2001..=2028).filter(|year| year % 4 != 0).filter_map(|year| {
        let february = wall::Month::of(year, 2)?;
        let next = clock.days.next(february.first_day, &mut Steps::default())?;
        (next < february.first_day + 28).then_some(())
    });
    let message = "it runs on 29 February only, so in leap years only".to_owned();
    (ordinary.count() == 0).then_some((WarningKind::OnlyInLeapYears, message))
}

/// The first time within a year that a gap swallows something.
fn clock_change(schedule: &Schedule, clock: &Clock, now: i64) -> Found {
    // A job that runs in every hour anyway misses nothing worth telling.
    if !clock.fixed && clock.times.hours().len() == 24 {
        return None;
    }
    let zone = &schedule.zone;
    let mut stretch = zone.stretch_at(now);
    while stretch.end <= now + 366 * DAY {
        stretch = zone.stretch_at(stretch.end);
        let Some((first, _)) = clock.picked_in_gap(&stretch) else {
            continue;
        };
        if schedule.excluded_second(stretch.start).is_some() {
            continue;
        }
        let shown = |wall: i64| wall::from_seconds(wall).format("%H:%M").to_string();
        let first = shown(first);
        let before = stretch.start + i64::from(stretch.before);
        let day = wall::from_seconds(before).format("%Y-%m-%d");
        let resumes = shown(stretch.start + stretch.offset_i64());
        let consequence = match clock.makes_good(&stretch) {
            true => format!("it runs once at {resumes} instead"),
            false => "what falls into the gap does not run".to_owned(),
        };
        let message = format!(
            "on {day} the clock of {zone} jumps from {} to {resumes}, so there is no {first} that day: \
             {consequence}",
            shown(before)
        );
        return Some((WarningKind::ClockChange, message));
    }
    None
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        let (shown, rest) = self.jobs.split_at(self.jobs.len().min(SHOWN));
        write!(
            f,
            "{} jobs are due in the minute from {}: {}",
            self.jobs.len(),
            self.at.format("%Y-%m-%dT%H:%MZ"),
            shown.join(", ")
        )?;
        if !rest.is_empty() {
            write!(f, " and {} more", rest.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Zone;
    use super::*;

    #[track_caller]
    fn check(text: &str, zone: &str, expected: &[&str]) {
        let zone: Zone = zone.parse().unwrap();
        let schedule = Schedule::parse(&[text], &zone, "job").unwrap();
        let warnings = schedule.warnings("2026-11-30T00:00:00Z".parse().unwrap());
        let lines: Vec<String> = warnings.iter().map(Warning::to_string).collect();
        assert_eq!(lines, expected, "{text}");
    }

    #[test]
    fn what_is_probably_meant_otherwise_is_told() {
        check(
            "0 0 13 * 5",
            "UTC",
            &[
                "day of month and day of week are both set, and either is enough: it runs on the 13th, and also \
             on Friday whatever the date",
            ],
        );
        check(
            "0 0 */2 * 1-5",
            "UTC",
            &[
                "day of month and day of week are both set and one begins with `*`, so it runs only on days that \
             match both: those of the 1st, 3rd, 5th, 7th, 9th, 11th, 13th, 15th, 17th, 19th, 21st, 23rd, \
             25th, 27th, 29th and 31st that fall on Monday to Friday",
            ],
        );
        check(
            "* 2 * * *",
            "UTC",
            &["it runs 60 times on each day that it is due, every minute from 02:00 to 02:59; to run once \
             write `0 2 * * *`"],
        );
        check("0 0 29 2 *", "UTC", &["it runs on 29 February only, so in leap years only"]);
        check("0 0 L-28 2 *", "UTC", &["it runs on 29 February only, so in leap years only"]);
    }

    #[test]
    fn a_coming_clock_change_is_told_to_jobs_that_it_touches() {
        check(
            "30 2 * * *",
            "Europe/Berlin",
            &[
                "on 2027-03-28 the clock of Europe/Berlin jumps from 02:00 to 03:00, so there is no 02:30 that \
             day: it runs once at 03:00 instead",
            ],
        );
        check(
            "*/15 2 * * *",
            "Europe/Berlin",
            &[
                "on 2027-03-28 the clock of Europe/Berlin jumps from 02:00 to 03:00, so there is no 02:00 that \
             day: what falls into the gap does not run",
            ],
        );
        check("30 2 * 5 *", "Europe/Berlin", &[]);
        check("*/15 * * * *", "Europe/Berlin", &[]);
        check("30 2 * * *", "UTC", &[]);
    }

    #[test]
    fn what_is_plain_is_not_warned_about() {
        for text in ["0 0 * * *", "* * * * *", "0 0 1 * *", "0 0 28-29 2 *", "0 0 30 2 *", "@every 5s"] {
            check(text, "UTC", &[]);
        }
    }

    #[test]
    fn many_jobs_at_one_instant_are_named() {
        let schedule = |text: &str| Schedule::parse(&[text], &Zone::utc(), "job").unwrap();
        let (two, three, often) = (schedule("0 2 * * *"), schedule("0 3 * * *"), schedule("* * * * *"));
        let jobs = [("c", &two), ("a", &two), ("b", &two), ("x", &three), ("y", &often)];
        let now = "2026-11-30T00:00:00Z".parse().unwrap();
        let crowd = crowded(jobs, now, 3).unwrap();
        assert_eq!(crowd.to_string(), "3 jobs are due in the minute from 2026-11-30T02:00Z: a, b, c");
        assert_eq!(crowded(jobs, now, 4), None);
    }
}
