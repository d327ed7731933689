//! Single values of a job file: the type that was expected, the rule it keeps, or a mistake with its place.

use std::collections::BTreeSet;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::found::{At, Found, Spot};
use super::remark::quoted;
use crate::job::Thousandths;

/// A value under its key, `timeout = "2h"`.
pub(super) struct Field<'v> {
    pub name: &'v str,
    pub value: &'v DeValue<'v>,
    pub spot: Spot,
}

/// The longest time-out and the like that is taken for meant.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

const DURATION_HINT: &str = "write a duration like \"90s\" or \"2h 30m\"";
const SIZE_HINT: &str = "write a size like \"10MiB\", \"10 MB\" or a whole number of bytes";

/// What the kernel takes as one argument or one variable at most, with the NUL that ends it (`MAX_ARG_STRLEN`).
pub(super) const LONGEST_ARGUMENT: usize = 128 * 1024 - 1;

impl<'v> Field<'v> {
    pub(super) fn new(file: usize, name: &'v str, value: &'v Spanned<DeValue<'v>>) -> Field<'v> {
        Field { name, value: value.get_ref(), spot: Spot::new(file, value.span()) }
    }

    fn at<T>(&self, value: T) -> At<T> {
        At { value, spot: self.spot.clone() }
    }

    pub(super) fn wrong_type<T>(&self, expected: &str, found: &mut Found, hint: Option<&str>) -> Option<T> {
        let message = format!("{} must be {expected}, not {}", self.name, kind(self.value));
        found.mistake(&self.spot, message, hint);
        None
    }

    /// A text that is not empty and has no NUL.
    pub(super) fn text(&self, found: &mut Found) -> Option<At<String>> {
        let DeValue::String(text) = self.value else {
            let quote_it = "put it in quotes".to_owned();
            let hint = match self.value {
                DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {
                    Some(quote_it.as_str())
                }
                _ => None,
            };
            return self.wrong_type("text", found, hint);
        };
        self.checked_text(text, found)
    }

    fn checked_text(&self, text: &str, found: &mut Found) -> Option<At<String>> {
        if text.trim().is_empty() {
            found.mistake(&self.spot, format!("{} is empty", self.name), "leave the field out or fill it");
            return None;
        }
        if text.contains('\0') {
            found.mistake(&self.spot, format!("{} has a NUL character in it", self.name), None);
            return None;
        }
        Some(self.at(text.to_owned()))
    }

    /// One line to be read by people.
    pub(super) fn prose(&self, most: usize, found: &mut Found) -> Option<At<String>> {
        let text = self.text(found)?;
        let length = text.value.chars().count();
        if length > most {
            found.mistake(
                &self.spot,
                format!("{} has {length} characters, more than {most}", self.name),
                None,
            );
            return None;
        }
        if text.value.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
            found.mistake(&self.spot, format!("{} has control characters in it", self.name), None);
            return None;
        }
        Some(text)
    }

    /// One text or a list of texts, each with its own spot; never empty.
    pub(super) fn texts(&self, found: &mut Found) -> Option<At<Vec<At<String>>>> {
        let items = self.items("text or a list of texts", found)?;
        let texts: Vec<_> = items.iter().map(|item| item.text(found)).collect();
        Some(self.at(texts.into_iter().collect::<Option<_>>()?))
    }

    /// An instant or a day, or a list of them, as text: quoted or as TOML's own dates.
    pub(super) fn dates(&self, found: &mut Found) -> Option<At<Vec<At<String>>>> {
        let items = self.items("a date or a list of dates", found)?;
        let dates: Vec<_> = items.iter().map(|item| item.date(found)).collect();
        Some(self.at(dates.into_iter().collect::<Option<_>>()?))
    }

    pub(super) fn date(&self, found: &mut Found) -> Option<At<String>> {
        match self.value {
            DeValue::Datetime(date) => Some(self.at(date.to_string())),
            DeValue::String(text) => self.checked_text(text, found),
            _ => self.wrong_type("a date", found, None),
        }
    }

    /// The value itself, or the items of a list that is not empty.
    pub(super) fn items(&self, expected: &str, found: &mut Found) -> Option<Vec<Field<'v>>> {
        match self.value {
            DeValue::Array(items) if items.is_empty() => {
                found.mistake(&self.spot, format!("{} is an empty list", self.name), None);
                None
            }
            DeValue::Array(items) => {
                Some(items.iter().map(|item| Field::new(self.spot.file, self.name, item)).collect())
            }
            DeValue::Table(_) => self.wrong_type(expected, found, None),
            value => Some(vec![Field { name: self.name, value, spot: self.spot.clone() }]),
        }
    }

    /// A program with its arguments, which may be empty texts but for the first.
    pub(super) fn argv(&self, found: &mut Found) -> Option<Vec<String>> {
        let mut argv = Vec::new();
        let mut good = true;
        for item in self.items("text or a list of texts", found)? {
            match item.value {
                // What follows the program may be empty: `["grep", ""]` is a command.
                DeValue::String(text) if text.is_empty() && !argv.is_empty() => argv.push(String::new()),
                _ => match item.text(found) {
                    Some(text) => argv.push(text.value),
                    None => {
                        good = false;
                        argv.push(String::new());
                    }
                },
            }
        }
        good.then_some(argv)
    }

    pub(super) fn flag(&self, found: &mut Found) -> Option<At<bool>> {
        match self.value {
            DeValue::Boolean(flag) => Some(self.at(*flag)),
            _ => self.wrong_type("true or false", found, None),
        }
    }

    pub(super) fn table(&self, found: &mut Found) -> Option<&'v DeTable<'v>> {
        match self.value {
            DeValue::Table(table) => Some(table),
            _ => self.wrong_type("a table", found, None),
        }
    }

    /// A whole number within `least..=most`.
    pub(super) fn number(&self, least: u64, most: u64, found: &mut Found) -> Option<At<u64>> {
        let DeValue::Integer(digits) = self.value else {
            return self.wrong_type("a whole number", found, None);
        };
        match i128::from_str_radix(digits.as_str(), digits.radix()).ok().and_then(|n| u64::try_from(n).ok()) {
            Some(number) if (least..=most).contains(&number) => Some(self.at(number)),
            _ => {
                let message = format!("{} must be {least} to {most}, not {digits}", self.name);
                found.mistake(&self.spot, message, None);
                None
            }
        }
    }

    /// A number within `least..=most`, of at most three decimals.
    pub(super) fn decimal(
        &self,
        least: Thousandths,
        most: Thousandths,
        found: &mut Found,
    ) -> Option<Thousandths> {
        let digits = match self.value {
            DeValue::Integer(digits) if digits.radix() == 10 => digits.as_str(),
            DeValue::Float(digits) => digits.as_str(),
            _ => return self.wrong_type("a number", found, None),
        };
        // What is too large for it is none of the numbers that are looked for.
        let parts = digits.parse().unwrap_or(f64::NAN) * 1000.0;
        if !(f64::from(least.0)..=f64::from(most.0)).contains(&parts) {
            let message = format!("{} must be {least} to {most}, not {}", self.name, kind(self.value));
            found.mistake(&self.spot, message, None);
            return None;
        }
        if (parts - parts.round()).abs() > 1e-6 {
            found.mistake(&self.spot, format!("{} has more than three decimals", self.name), None);
            return None;
        }
        Some(Thousandths(parts.round() as u32))
    }

    /// The exit codes that count as success.
    pub(super) fn exit_codes(&self, found: &mut Found) -> Option<At<BTreeSet<u8>>> {
        let DeValue::Array(_) = self.value else {
            return self.wrong_type("a list of exit codes", found, Some("write a list like [0, 24]"));
        };
        let codes: Vec<_> =
            self.items("a list", found)?.iter().map(|item| item.number(0, 255, found)).collect();
        let codes = codes.into_iter().map(|code| code.and_then(|code| u8::try_from(code.value).ok()));
        Some(self.at(codes.collect::<Option<_>>()?))
    }

    /// More than nothing, at most a year.
    pub(super) fn duration(&self, found: &mut Found) -> Option<At<Duration>> {
        match self.value {
            DeValue::String(text) => match parse_duration(text) {
                Ok(duration) => Some(self.at(duration)),
                Err(why) => {
                    let message = format!("bad {} {}: {why}", self.name, quoted(text));
                    found.mistake(&self.spot, message, DURATION_HINT);
                    None
                }
            },
            DeValue::Integer(number) => {
                let hint = format!("say the unit: {} = \"{number}s\"", self.name);
                self.wrong_type("a duration", found, Some(&hint))
            }
            _ => self.wrong_type("a duration", found, Some(DURATION_HINT)),
        }
    }

    pub(super) fn size(&self, most: u64, found: &mut Found) -> Option<At<u64>> {
        let text = match self.value {
            DeValue::String(text) => text,
            DeValue::Integer(_) => return self.number(0, most, found),
            _ => return self.wrong_type("a size", found, Some(SIZE_HINT)),
        };
        match parse_size(text) {
            Ok(size) if size <= most => Some(self.at(size)),
            Ok(_) => {
                let message = format!("{} is more than {}", self.name, show_size(most));
                found.mistake(&self.spot, message, None);
                None
            }
            Err(why) => {
                found.mistake(&self.spot, format!("bad {} {}: {why}", self.name, quoted(text)), SIZE_HINT);
                None
            }
        }
    }

    /// An absolute path.
    pub(super) fn path(&self, found: &mut Found) -> Option<At<String>> {
        let path = self.text(found)?;
        if !path.value.starts_with('/') {
            let message = format!("{} must be an absolute path, not {}", self.name, quoted(&path.value));
            let hint = match path.value.starts_with(['~', '$']) {
                true => "neither ~ nor variables are expanded here; write the path out, from / on",
                false => "write the path out, from / on: nodes have no common current folder",
            };
            found.mistake(&self.spot, message, hint);
            return None;
        }
        if path.value.len() > 4095 {
            found.mistake(&self.spot, format!("{} is longer than a path may be", self.name), None);
            return None;
        }
        Some(path)
    }
}

/// A value's type, as people call it, with the value where it is short.
fn kind(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text {}", quoted(text)),
        DeValue::Integer(number) if number.as_str().len() <= 20 => format!("the number {number}"),
        DeValue::Integer(_) => "a number".to_owned(),
        DeValue::Float(number) if number.as_str().len() <= 20 => format!("the number {number}"),
        DeValue::Float(_) => "a number".to_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(date) => format!("the date {date}"),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    use humantime::DurationError;
    // One letter apart: humantime reads "30M" as two and a half years.
    if text.contains('M') {
        return Err("\"M\" would be months; minutes are \"m\"".to_owned());
    }
    if text.trim_start().starts_with('-') {
        return Err("it is negative".to_owned());
    }
    let duration = humantime::parse_duration(text).map_err(|error| match error {
        DurationError::InvalidCharacter(at) | DurationError::NumberExpected(at) => {
            format!("a number was expected at character {}", text[..at.min(text.len())].chars().count() + 1)
        }
        DurationError::UnknownUnit { unit, .. } if unit.is_empty() => "a unit is missing".to_owned(),
        DurationError::UnknownUnit { unit, .. } => format!("there is no unit {}", quoted(&unit)),
        DurationError::NumberOverflow => "the number is too large or too fine".to_owned(),
        DurationError::Empty => "it is empty".to_owned(),
    })?;
    match duration {
        Duration::ZERO => Err("it is no time at all".to_owned()),
        // Nothing here is kept finer, and half a microsecond is a slip of the pen.
        short if short < Duration::from_millis(1) => Err("it is shorter than a millisecond".to_owned()),
        long if long > LONGEST => Err("it is longer than a year".to_owned()),
        _ => Ok(duration),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = unit.trim();
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1000 * 1000,
        "gb" => 1000 * 1000 * 1000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "k" | "m" | "g" => {
            return Err(format!("{unit:?} can be 1000 or 1024; write \"{unit}B\" or \"{unit}iB\""));
        }
        _ if digits.is_empty() => return Err("it does not begin with a number".to_owned()),
        _ if unit.starts_with(['.', ',', '_']) => return Err("only whole numbers".to_owned()),
        _ => return Err(format!("there is no unit {}", quoted(unit))),
    };
    if digits.is_empty() {
        return Err("it does not begin with a number".to_owned());
    }
    digits.parse().ok().and_then(|n: u64| n.checked_mul(factor)).ok_or("it is too large".to_owned())
}

/// A size as it can be written in a job file.
pub(super) fn show_size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_numbers_with_units() {
        for (text, seconds) in
            [("90s", 90), ("2h 30m", 9000), ("1d", 86_400), ("1h30m", 5400), (" 5 min ", 300)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text:?}");
        }
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn what_is_no_sensible_duration_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "empty"),
            ("  ", "empty"),
            ("0s", "no time at all"),
            ("-5s", "negative"),
            ("90", "unit is missing"),
            ("5 parsecs", "no unit \"parsecs\""),
            ("30M", "minutes are \"m\""),
            ("400d", "longer than a year"),
            ("1us", "shorter than a millisecond"),
            ("99999999999999999999s", "too large"),
            ("5s,", "character 3"),
            ("soon", "character 1"),
        ] {
            let refused = parse_duration(text).unwrap_err();
            assert!(refused.contains(why), "{text:?}: {refused}");
        }
    }

    #[test]
    fn a_size_is_bytes_or_a_number_with_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("10MiB", 10 << 20),
            ("10 MB", 10_000_000),
            ("1 kib", 1024),
            ("3GB", 3_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text:?}");
        }
        for text in
            ["", "MiB", "10M", "-1", "1.5MiB", "10 apples", "99999999999999999999", "18446744073709551615GiB"]
        {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_size_is_shown_as_it_can_be_written() {
        for bytes in [0, 1, 1023, 1024, 1500, 10 << 20, 3 << 30] {
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }
        assert_eq!(show_size(10 << 20), "10MiB");
    }
}
