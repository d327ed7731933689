//! Schedules in English.

use super::Schedule;
use super::days::Days;
use super::eval::{Clock, Rule};
use super::times::Times;
use super::timestamp;

/// `at 02:00 on Monday to Friday, Europe/Berlin time`
pub fn sentence(schedule: &Schedule) -> String {
    if schedule.is_none() {
        return "never by itself".to_owned();
    }
    let parts: Vec<String> = schedule.rules.iter().map(rule).collect();
    let clock = schedule.rules.iter().any(|rule| matches!(rule, Rule::Clock(_)));
    let zone = if clock { format!(", {} time", schedule.zone) } else { String::new() };
    format!("{}{zone}", parts.join("; and "))
}

/// The days that the day of month field picks, `the 1st to 7th and the last day of the month`; nothing if it
/// picks all.
pub fn dates(days: &Days) -> Option<String> {
    let numbers: Vec<u32> = (1..=31).filter(|day| days.dates & 1 << day != 0).collect();
    if numbers.len() == 31 {
        return None;
    }
    let mut parts = Vec::new();
    if !numbers.is_empty() {
        parts.push(format!("the {}", listed(&numbers, |&day| ordinal(day))));
    }
    for back in (0..=30).filter(|back| days.from_end & 1 << back != 0) {
        parts.push(match back {
            0 => "the last day of the month".to_owned(),
            1 => "the day before the last day of the month".to_owned(),
            _ => format!("{back} days before the last day of the month"),
        });
    }
    for day in (1..=31).filter(|day| days.near & 1 << day != 0) {
        parts.push(format!("the working day nearest to the {}", ordinal(day)));
    }
    if days.last_working {
        parts.push("the last working day of the month".to_owned());
    }
    Some(joined(&parts))
}

/// The days that the day of week field picks, `Monday to Friday and the last Sunday of the month`; nothing if
/// it picks all.
pub fn weekdays(days: &Days) -> Option<String> {
    const NTH: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];
    if days.weekdays == 0x7f {
        return None;
    }
    // A week is told from Monday.
    let order = |set: u8| [1, 2, 3, 4, 5, 6, 0].into_iter().filter(move |day| set & 1 << day != 0);
    let mut parts = Vec::new();
    let weekly: Vec<u32> = order(days.weekdays).map(|day| (day + 6) % 7).collect();
    if !weekly.is_empty() {
        parts.push(listed(&weekly, |&day| WEEKDAYS[((day + 1) % 7) as usize].to_owned()));
    }
    for (nth, &set) in NTH.iter().zip(&days.nth) {
        let named = order(set).map(|day| format!("the {nth} {}", WEEKDAYS[day as usize]));
        parts.extend(named.map(|part| part + " of the month"));
    }
    let last = order(days.last).map(|day| format!("the last {}", WEEKDAYS[day as usize]));
    parts.extend(last.map(|part| part + " of the month"));
    Some(joined(&parts))
}

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

fn rule(rule: &Rule) -> String {
    match rule {
        Rule::Clock(clock) => clock_times(clock),
        Rule::Every(seconds) => format!(
            "every {}, counted from 1970-01-01T00:00:00Z",
            humantime::format_duration(std::time::Duration::from_secs(seconds.unsigned_abs()))
        ),
        Rule::At(at) => format!("once, at {}", timestamp(*at).format("%Y-%m-%dT%H:%M:%SZ")),
        Rule::Reboot => "when the machine starts".to_owned(),
    }
}

fn clock_times(clock: &Clock) -> String {
    let months: Vec<u32> = (1..=12).filter(|month| clock.days.months & 1 << month != 0).collect();
    let in_months = match months.len() {
        12 => String::new(),
        _ => format!(" in {}", listed(&months, |&m| MONTHS[m as usize - 1].to_owned())),
    };
    let all_day = clock.times.hours().len() == 24;
    format!("{}{}{in_months}", times(&clock.times), days(&clock.days, all_day))
}

/// `every 15 minutes`, `at 02:00 and 14:00`, `at minutes 5 and 35 of hours 9 to 17`
pub fn times(times: &Times) -> String {
    let (minutes, hours) = (times.minutes(), times.hours());
    if hours.len() == 24 {
        return match minutes[..] {
            [minute] => format!("at minute {minute} of every hour"),
            _ => match even_step(&minutes) {
                Some(1) => "every minute".to_owned(),
                Some(step) => format!("every {step} minutes"),
                None => format!("at minutes {} of every hour", listed(&minutes, u32::to_string)),
            },
        };
    }
    if minutes.len() * hours.len() <= 6 {
        let all =
            hours.iter().flat_map(|hour| minutes.iter().map(move |minute| format!("{hour:02}:{minute:02}")));
        return format!("at {}", joined(&all.collect::<Vec<_>>()));
    }
    let unbroken = hours.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    let step = even_step(&minutes);
    if let (true, Some(step)) = (unbroken, step) {
        let every = if step == 1 { "minute".to_owned() } else { format!("{step} minutes") };
        let last = hours[hours.len() - 1];
        let until = minutes[minutes.len() - 1];
        return format!("every {every} from {:02}:00 to {last:02}:{until:02}", hours[0]);
    }
    let minutes = match (&minutes[..], step) {
        (_, Some(1)) => "every minute".to_owned(),
        (_, Some(step)) => format!("every {step} minutes"),
        ([minute], None) => format!("at minute {minute}"),
        (_, None) => format!("at minutes {}", listed(&minutes, u32::to_string)),
    };
    format!("{minutes} of hours {}", listed(&hours, u32::to_string))
}

/// `all_day`: the times are told as if there were but one day.
fn days(days: &Days, all_day: bool) -> String {
    let every_day = if all_day { "" } else { " every day" };
    match (dates(days), weekdays(days)) {
        (None, None) => every_day.to_owned(),
        // Where either is enough, one that picks all days decides.
        (None, _) | (_, None) if !days.both => every_day.to_owned(),
        (None, Some(weekday)) if days.is_one_weekday() && !all_day => format!(" every {weekday}"),
        (None, Some(weekdays)) => format!(" on {weekdays}"),
        (Some(dates), None) => format!(" on {dates}"),
        (Some(dates), Some(weekdays)) if days.both => {
            format!(" on those of {dates} that fall on {weekdays}")
        }
        (Some(dates), Some(weekdays)) => {
            format!(" on {dates}, and also on {weekdays} whatever the date")
        }
    }
}

impl Days {
    fn is_one_weekday(&self) -> bool {
        self.weekdays.is_power_of_two() && self.last == 0 && self.nth == [0; 5]
    }
}

/// The step of minutes that part the hour evenly from 0.
fn even_step(minutes: &[u32]) -> Option<u32> {
    let step = minutes.get(1)?;
    let even = 60 % step == 0 && minutes.len() == (60 / step) as usize;
    (even && (0..).step_by(*step as usize).zip(minutes).all(|(at, &minute)| at == minute)).then_some(*step)
}

/// `1, 3 to 6 and 9`: three neighbours or more are told by their ends. `numbers` are in order.
fn listed(numbers: &[u32], name: impl Fn(&u32) -> String) -> String {
    let mut parts = Vec::new();
    for run in numbers.chunk_by(|one, next| one + 1 == *next) {
        match run {
            [first, _, .., last] => parts.push(format!("{} to {}", name(first), name(last))),
            _ => parts.extend(run.iter().map(&name)),
        }
    }
    joined(&parts)
}

fn joined(parts: &[String]) -> String {
    match parts {
        [] => "no day".to_owned(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

fn ordinal(day: u32) -> String {
    let ending = match day {
        1 | 21 | 31 => "st",
        2 | 22 => "nd",
        3 | 23 => "rd",
        _ => "th",
    };
    format!("{day}{ending}")
}

#[cfg(test)]
mod tests {
    use super::super::{Schedule, Zone};

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let schedule = Schedule::parse(&[text], &Zone::utc(), "backup").unwrap();
        assert_eq!(schedule.describe(), expected, "{text}");
    }

    #[test]
    fn a_time_of_day_is_told_as_people_say_it() {
        check("* * * * *", "every minute, UTC time");
        check("*/15 * * * *", "every 15 minutes, UTC time");
        check("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour, UTC time");
        check("* * * * 0,6", "every minute on Saturday and Sunday, UTC time");
        check("0 * * * 1", "at minute 0 of every hour on Monday, UTC time");
        check("@hourly", "at minute 0 of every hour, UTC time");
        check("H * * * *", "at minute 51 of every hour, UTC time");
        check("30 2 * * *", "at 02:30 every day, UTC time");
        check("0,30 2,14 * * *", "at 02:00, 02:30, 14:00 and 14:30 every day, UTC time");
        check("* 2 * * *", "every minute from 02:00 to 02:59 every day, UTC time");
        check("*/5 9-17 * * *", "every 5 minutes from 09:00 to 17:55 every day, UTC time");
        check("10 */3 * * *", "at minute 10 of hours 0, 3, 6, 9, 12, 15, 18 and 21 every day, UTC time");
    }

    #[test]
    fn days_are_told_by_the_rule_that_holds() {
        check("0 0 1 1 *", "at 00:00 on the 1st in January, UTC time");
        check("0 2 * * 1-5", "at 02:00 on Monday to Friday, UTC time");
        check("0 0 * * 0", "at 00:00 every Sunday, UTC time");
        check("0 0 13 * 5", "at 00:00 on the 13th, and also on Friday whatever the date, UTC time");
        check("0 0 1-7,15 * *", "at 00:00 on the 1st to 7th and 15th, UTC time");
        check(
            "0 0 */10 * 1",
            "at 00:00 on those of the 1st, 11th, 21st and 31st that fall on Monday, UTC time",
        );
        check(
            "0 0 L,15W * *",
            "at 00:00 on the last day of the month and the working day nearest to the 15th, UTC time",
        );
        check("0 0 * 3,6 5L", "at 00:00 on the last Friday of the month in March and June, UTC time");
        check("0 0 * * 1#1,sun", "at 00:00 on Sunday and the first Monday of the month, UTC time");
        check("0 0 1-31 * 5", "at 00:00 every day, UTC time");
    }

    #[test]
    fn what_is_no_clock_time_has_no_zone() {
        check("@every 90s", "every 1m 30s, counted from 1970-01-01T00:00:00Z");
        check("@at 2027-01-01T00:00:00+01:00", "once, at 2026-12-31T23:00:00Z");
        check("@reboot", "when the machine starts");
    }
}
