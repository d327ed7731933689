//! From a schedule's text to its rule, with errors that point at the character.
//!
//! The grammar of the five fields and aliases is crontab's, strictly; `H`, `L`, `W`, `#`, `@every` and `@at`
//! are forms that no crontab line means otherwise.

use std::fmt;
use std::ops::Range;

use chrono::DateTime;

use super::days::Days;
use super::eval::{Clock, Rule};
use super::field::{FIELDS, Field};
use super::items::{self, FieldSet};
use super::times::Times;
use super::wall;

/// Why a text is no schedule.
///
/// `Display` is one line, `minute: 75 is not within 0-59`; `pointer` shows the place as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleError {
    /// The text as it was given.
    pub text: String,
    /// The bytes of `text` that are wrong. They start and end between characters; the range is empty where
    /// something is missing.
    pub at: Range<usize>,
    /// The field that is wrong, unless it is the text as a whole.
    pub field: Option<Field>,
    pub message: String,
    /// What was probably meant, or what to write instead.
    pub hint: Option<String>,
}

impl ScheduleError {
    pub(super) fn new(text: &str, at: Range<usize>, message: String) -> ScheduleError {
        ScheduleError { text: text.to_owned(), at, field: None, message, hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> ScheduleError {
        self.hint = Some(hint.into());
        self
    }

    /// The text and below it a line of `^` under what is wrong.
    pub fn pointer(&self) -> String {
        let shown = |text: &str| text.replace(|c: char| c.is_control(), " ");
        let before = shown(&self.text[..self.at.start]).chars().count();
        let width = self.text[self.at.clone()].chars().count().max(1);
        format!("{}\n{}{}", shown(&self.text), " ".repeat(before), "^".repeat(width))
    }
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ScheduleError {}

/// The rule that `text` stands for in a schedule of `job`, and the text with its blanks put in order.
pub fn parse(text: &str, job: &str) -> Result<(Rule, String), ScheduleError> {
    let parser = Parser { text, job };
    let words = parser.words();
    let tidy = words.iter().map(|word| &text[word.clone()]).collect::<Vec<_>>().join(" ");
    let rule = match words.first() {
        None => {
            return Err(parser.error(0..text.len(), "the schedule is empty").hint(FIVE));
        }
        Some(first) if text[first.clone()].starts_with('@') => parser.special(&words)?,
        Some(_) => parser.five_fields(&words)?,
    };
    Ok((rule, tidy))
}

const FIVE: &str = "write five fields: minute, hour, day of month, month, day of week";

struct Parser<'a> {
    text: &'a str,
    job: &'a str,
}

impl Parser<'_> {
    /// The places of what stands between blanks and tabs.
    fn words(&self) -> Vec<Range<usize>> {
        let mut words = Vec::new();
        let mut start = 0;
        for part in self.text.split([' ', '\t']) {
            if !part.is_empty() {
                words.push(start..start + part.len());
            }
            start += part.len() + 1;
        }
        words
    }

    fn special(&self, words: &[Range<usize>]) -> Result<Rule, ScheduleError> {
        let first = words[0].clone();
        let word = &self.text[first.clone()];
        let rest = first.end..words[words.len() - 1].end;
        match word {
            "@every" => return self.every(rest),
            "@at" => return self.at(rest),
            _ => {}
        }
        let fields = match word {
            "@yearly" | "@annually" => Some("0 0 1 1 *"),
            "@monthly" => Some("0 0 1 * *"),
            "@weekly" => Some("0 0 * * 0"),
            "@daily" | "@midnight" => Some("0 0 * * *"),
            "@hourly" => Some("0 * * * *"),
            "@reboot" => None,
            _ => return Err(self.unknown_word(first)),
        };
        if let Some(extra) = words.get(1) {
            let message = format!("`{word}` stands alone");
            return Err(self.error(extra.start..rest.end, message));
        }
        match fields {
            Some(fields) => {
                let parser = Parser { text: fields, job: self.job };
                parser.five_fields(&parser.words())
            }
            None => Ok(Rule::Reboot),
        }
    }

    fn unknown_word(&self, at: Range<usize>) -> ScheduleError {
        const KNOWN: [&str; 10] = [
            "@yearly",
            "@annually",
            "@monthly",
            "@weekly",
            "@daily",
            "@midnight",
            "@hourly",
            "@reboot",
            "@every",
            "@at",
        ];
        let word = &self.text[at.clone()];
        let lower = word.to_ascii_lowercase();
        let nearest = KNOWN
            .into_iter()
            .map(|known| (strsim::osa_distance(known, &lower), known))
            .min()
            .filter(|&(distance, _)| distance <= 2);
        let hint = match nearest {
            Some((_, known)) => format!("did you mean `{known}`"),
            None => format!("known are {}", KNOWN.join(", ")),
        };
        self.error(at, format!("`{}` is not known", word.escape_debug())).hint(hint)
    }

    /// `@every DURATION`; `rest` is what follows the word.
    fn every(&self, rest: Range<usize>) -> Result<Rule, ScheduleError> {
        const LONGEST: u64 = 36_525 * 86_400;
        let at = self.without_blanks(rest);
        let duration = &self.text[at.clone()];
        if duration.is_empty() {
            let error = self.error(at, "`@every` needs a duration");
            return Err(error.hint("such as `@every 90s` or `@every 1h 30m`"));
        }
        let wrong = |at, message: String| self.error(at, format!("@every: {message}"));
        // The duration's own parser would take any kind of blank.
        let foreign = |c: char| c != ' ' && c != '\t' && (c.is_whitespace() || c.is_control());
        if let Some(place) = duration.find(foreign) {
            let place = self.char_at(at.start + place);
            return Err(wrong(place, "only blanks and tabs part a duration".to_owned()));
        }
        if let Some(unit) = calendar_unit(duration) {
            let unit = at.start + unit.start..at.start + unit.end;
            return Err(wrong(unit, "months and years have no fixed length".to_owned())
                .hint("use days, or `@monthly` or `@yearly`"));
        }
        let parsed = humantime::parse_duration(duration).map_err(|error| {
            use humantime::DurationError::{InvalidCharacter, NumberExpected, UnknownUnit};
            let place = match error {
                InvalidCharacter(place) | NumberExpected(place) => self.char_at(at.start + place),
                UnknownUnit { start, end, .. } => at.start + start..at.start + end,
                _ => at.clone(),
            };
            wrong(place, format!("`{}` is not a duration", duration.escape_debug()))
                .hint("write numbers with s, m, h, d or w, such as `90s` or `1h 30m`")
        })?;
        let seconds = parsed.as_secs();
        if parsed.subsec_nanos() != 0 || seconds == 0 || seconds > LONGEST {
            let message = format!("`{duration}` is not a number of whole seconds from 1s to 36525d");
            return Err(wrong(at, message));
        }
        Ok(Rule::Every(i64::try_from(seconds).expect("a century fits")))
    }

    /// `@at RFC3339`; `rest` is what follows the word.
    fn at(&self, rest: Range<usize>) -> Result<Rule, ScheduleError> {
        let at = self.without_blanks(rest);
        let instant = &self.text[at.clone()];
        match DateTime::parse_from_rfc3339(instant) {
            Ok(time)
                if time.timestamp_subsec_nanos() == 0
                    && (wall::FIRST..=wall::LAST).contains(&time.timestamp()) =>
            {
                Ok(Rule::At(time.timestamp()))
            }
            Ok(_) => Err(self.error(at, "@at: the instant must be a whole second of years 1 to 9999")),
            Err(_) => {
                let message = format!("@at: `{}` is not an RFC 3339 instant", instant.escape_debug());
                Err(self.error(at, message).hint("such as `@at 2026-12-24T18:00:00+01:00`"))
            }
        }
    }

    /// `at` without the blanks and tabs that it begins with.
    fn without_blanks(&self, at: Range<usize>) -> Range<usize> {
        at.end - self.text[at.clone()].trim_start_matches([' ', '\t']).len()..at.end
    }

    fn five_fields(&self, words: &[Range<usize>]) -> Result<Rule, ScheduleError> {
        if words.len() != 5 {
            return Err(self.field_count(words));
        }
        let mut sets = [FieldSet::default(); 5];
        for ((set, field), word) in sets.iter_mut().zip(FIELDS).zip(words) {
            *set = items::read(self.text, word.clone(), field, self.job)?;
        }
        let [minute, hour, date, month, weekday] = sets;
        let sundays = u8::from(weekday.values & 1 << 7 != 0);
        let days = Days {
            dates: date.low_bits(),
            from_end: date.from_end,
            near: date.near,
            last_working: date.last_working,
            months: u16::try_from(month.values).expect("13 bits"),
            weekdays: u8::try_from(weekday.values & 0x7f).expect("7 bits") | sundays,
            last: weekday.last,
            nth: weekday.nth,
            both: date.starred || weekday.starred,
        };
        Ok(Rule::Clock(Box::new(Clock {
            times: Times::new(minute.values, hour.low_bits()),
            days,
            fixed: !minute.starred && !hour.starred,
        })))
    }

    fn field_count(&self, words: &[Range<usize>]) -> ScheduleError {
        let count = words.len();
        let end = words[count - 1].end;
        let other_blank = self.text.find(|c: char| c != '\t' && c != ' ' && c.is_whitespace());
        let at = match (other_blank, words.get(5)) {
            (Some(blank), _) => self.char_at(blank),
            (None, Some(extra)) => extra.start..end,
            (None, None) => end..end,
        };
        let plural = if count == 1 { "" } else { "s" };
        let error = self.error(at, format!("{count} field{plural} where a schedule has five"));
        let first = &self.text[words[0].clone()];
        if let Some((name, _)) = first.split_once('=') {
            let hint = format!("`{}` is not part of it: see `timezone` and `env`", name.escape_debug());
            return error.hint(hint);
        }
        let extra = words.get(5).map_or("", |extra| &self.text[extra.clone()]);
        let torn = |word: &Range<usize>| {
            let word = &self.text[word.clone()];
            word.starts_with([',', '-', '/']) || word.ends_with([',', '-', '/'])
        };
        match count {
            _ if other_blank.is_some() => error.hint("only blanks and tabs part the fields"),
            _ if words.iter().any(torn) => error.hint("there are no blanks inside a field"),
            _ if extra.starts_with('#') => error.hint("comments are not part of it"),
            6 | 7 => error.hint(
                "there is no field for seconds (use `@every 30s`) and none for years: \
                 minute, hour, day of month, month, day of week",
            ),
            _ => error.hint(FIVE),
        }
    }

    fn error(&self, at: Range<usize>, message: impl Into<String>) -> ScheduleError {
        ScheduleError::new(self.text, at, message.into())
    }

    /// The place of the character at a byte.
    fn char_at(&self, at: usize) -> Range<usize> {
        at..at + self.text.get(at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8)
    }
}

/// The place of a unit in `duration` that means months or years.
fn calendar_unit(duration: &str) -> Option<Range<usize>> {
    let mut start = 0;
    for part in duration.split(|c: char| !c.is_ascii_alphabetic()) {
        if ["M", "month", "months", "y", "yr", "yrs", "year", "years"].contains(&part) {
            return Some(start..start + part.len());
        }
        start += part.len();
        start += duration[start..].chars().next().map_or(0, char::len_utf8);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `marked` has `^` below what is wrong.
    #[track_caller]
    fn check(text: &str, marked: &str, message: &str) {
        let error = parse(text, "job").map(|(_, tidy)| tidy).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(error.pointer(), format!("{text}\n{marked}"));
    }

    #[test]
    fn an_error_names_the_field_the_value_and_what_is_allowed() {
        check("75 * * * *", "^^", "minute: 75 is not within 0-59");
        check("0 9-24 * * *", "    ^^", "hour: 24 is not within 0-23");
        check("0 0 * 13 *", "      ^^", "month: 13 is not within 1-12 or jan-dec");
        check("0 0 0 * *", "    ^", "day of month: 0 is not within 1-31");
        check("0 0 * * 1,,2", "          ^", "day of week: a list has an empty item");
        check(
            "0 0 * * Monday",
            "        ^^^^^^",
            "day of week: `Monday` is not within 0-7 or sun-sat; \
             names are the first three letters in English",
        );
    }

    #[test]
    fn an_error_says_what_to_write_instead() {
        check(
            "0 22-4 * * *",
            "  ^^^^",
            "hour: the range 22-4 runs backwards; write it in two parts, `22-23,0-4`",
        );
        check("5/10 * * * *", " ^", "minute: a step needs `*` or a range before it; `5-59/…` starts at 5");
        check("0 0 ? * 1", "    ^", "day of month: `?` cannot stand here; `?` is Quartz's; write `*`");
        check(
            "0 0 2 * * *",
            "          ^",
            "6 fields where a schedule has five; there is no field for seconds (use `@every 30s`) and none \
             for years: minute, hour, day of month, month, day of week",
        );
        check("@Daily", "^^^^^^", "`@Daily` is not known; did you mean `@daily`");
        check("@every 0s", "       ^^", "@every: `0s` is not a number of whole seconds from 1s to 36525d");
        check(
            "@every 1month",
            "        ^^^^^",
            "@every: months and years have no fixed length; use days, or `@monthly` or `@yearly`",
        );
        check(
            "@every 5 parsecs",
            "         ^^^^^^^",
            "@every: `5 parsecs` is not a duration; write numbers with s, m, h, d or w, such as `90s` or \
             `1h 30m`",
        );
        check("@every 1h\u{a0}30m", "         ^", "@every: only blanks and tabs part a duration");
        check(
            "@at tomorrow",
            "    ^^^^^^^^",
            "@at: `tomorrow` is not an RFC 3339 instant; such as `@at 2026-12-24T18:00:00+01:00`",
        );
    }

    #[test]
    fn the_forms_beyond_crontab_are_as_strict() {
        for text in [
            "0 0 L-31 * *",
            "0 0 L-0 * *",
            "0 0 32W * *",
            "0 0 W * *",
            "0 0 * * 8L",
            "0 0 * * L",
            "0 0 * * 1#6",
            "0 0 * * 1#0",
            "0 0 * * #1",
            "H(5-70) * * * *",
            "H(5 * * * *",
            "H(9-3) * * * *",
            "0 0 H(1-31) * *",
            "H/0 * * * *",
            "h * * * *",
            "0 L * * *",
            "0 0 1-L * *",
            "0 0 L/2 * *",
            "H-5 * * * *",
            "0 0 15W-20 * *",
            "HH * * * *",
            "@every",
            "@every -5s",
            "@every 1.5s",
            "@at",
            "@at 2026-12-24",
            "@reboot now",
            "@every 1s500ms",
            "@every \n90s",
            "0 0 * * 1#2-3",
        ] {
            assert!(parse(text, "job").is_err(), "{text}");
        }
    }

    #[test]
    fn h_is_a_value_of_the_job_within_its_range_and_never_a_star() {
        let minutes = |text: &str| match parse(&format!("{text} 5 * * *"), "backup") {
            Ok((Rule::Clock(clock), _)) => (clock.times.minutes(), clock.fixed),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(minutes("H"), (vec![51], true));
        assert_eq!(minutes("H(0-29)"), (vec![21], true));
        assert_eq!(minutes("H/15"), (vec![6, 21, 36, 51], true));
        assert_eq!(minutes("H/100"), (vec![51], true));
        assert_eq!(minutes("7,H"), (vec![7, 51], true));
        assert!(!minutes("*,H").1);
    }
}
