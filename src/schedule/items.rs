//! The items of one field: lists, ranges, steps, names, and the forms beyond crontab.

use std::fmt;
use std::ops::Range;

use super::field::{FIELDS, Field, hashed};
use super::parse::ScheduleError;

/// What the field at `at` in `text` picks in a schedule of `job`.
pub fn read(text: &str, at: Range<usize>, field: Field, job: &str) -> Result<FieldSet, ScheduleError> {
    let starred = text[at.clone()].starts_with('*');
    let mut set = FieldSet { starred, ..FieldSet::default() };
    let mut items = Items { text, job, field, at: at.start, end: at.end };
    loop {
        items.item(&mut set)?;
        if items.at == at.end {
            return Ok(set);
        }
        if !items.eat(',') {
            return Err(items.unexpected());
        }
    }
}

/// What one field picks. The names are those of `Days`.
#[derive(Clone, Copy, Default)]
pub struct FieldSet {
    /// Bit n: value n.
    pub values: u64,
    pub starred: bool,
    pub from_end: u32,
    pub near: u32,
    pub last_working: bool,
    pub last: u8,
    pub nth: [u8; 5],
}

impl FieldSet {
    pub fn low_bits(&self) -> u32 {
        u32::try_from(self.values).expect("only minutes have more than 32 values")
    }

    fn add(&mut self, low: u32, high: u32, step: u32) {
        let mut value = low;
        while value <= high {
            self.values |= 1 << value;
            value = value.saturating_add(step);
        }
    }
}

/// Reads the items of one field; `at` is the next byte to read.
struct Items<'a> {
    text: &'a str,
    job: &'a str,
    field: Field,
    at: usize,
    end: usize,
}

impl<'a> Items<'a> {
    fn item(&mut self, set: &mut FieldSet) -> Result<(), ScheduleError> {
        if matches!(self.peek(), None | Some(',')) {
            return Err(self.error(self.at..self.at, "a list has an empty item"));
        }
        if self.eat('*') {
            let step = self.step()?;
            set.add(self.field.min(), self.field.max(), step.unwrap_or(1));
            return Ok(());
        }
        let (word, at) = self.word();
        if word == "H" {
            return self.hash(set);
        }
        if self.special(word, &at, set)? {
            return Ok(());
        }
        let low = self.value(word, at.clone())?;
        if self.peek() == Some('#') && self.field == Field::DayOfWeek {
            self.at += 1;
            let week = self.number(1, 5, "the week after `#`")?;
            set.nth[week as usize - 1] |= 1 << (low % 7);
            return Ok(());
        }
        if !self.eat('-') {
            if self.peek() == Some('/') {
                let error = self.error(self.char(), "a step needs `*` or a range before it");
                return Err(error.hint(format!("`{word}-{}/…` starts at {word}", self.field.max())));
            }
            set.values |= 1 << low;
            return Ok(());
        }
        let (low, high) = self.range_from(low, at.start)?;
        let step = self.step()?;
        set.add(low, high, step.unwrap_or(1));
        Ok(())
    }

    /// `H`, `H(a-b)`, either with a step; the `H` has been read.
    fn hash(&mut self, set: &mut FieldSet) -> Result<(), ScheduleError> {
        let (mut low, mut high) = (self.field.min(), self.field.hash_max());
        if self.eat('(') {
            let (word, at) = self.word();
            let first = self.value(word, at.clone())?;
            if !self.eat('-') {
                return Err(self.expected("`-` and the end of the range of `H`"));
            }
            (low, high) = self.range_from(first, at.start)?;
            if self.field == Field::DayOfMonth && high > self.field.hash_max() {
                let message = format!("`H` stays within 1-28, not {low}-{high}");
                return Err(self.error(at.start..self.at, message));
            }
            if !self.eat(')') {
                return Err(self.expected("`)` after the range of `H`"));
            }
        }
        let (job, field) = (self.job, self.field);
        match self.step()? {
            None => set.values |= 1 << hashed(job, field, low, high),
            Some(step) => {
                let last_first = high.min(low.saturating_add(step - 1));
                set.add(hashed(job, field, low, last_first), high, step);
            }
        }
        Ok(())
    }

    /// `L`, `L-n`, `LW`, `nW` in days of month and `dL` in days of week. Says whether the word was one.
    fn special(&mut self, word: &str, at: &Range<usize>, set: &mut FieldSet) -> Result<bool, ScheduleError> {
        match (self.field, word) {
            (Field::DayOfMonth, "L") => {
                let back = match self.eat('-') {
                    true => self.number(1, 30, "the days before `L`")?,
                    false => 0,
                };
                set.from_end |= 1 << back;
            }
            (Field::DayOfMonth, "LW") => set.last_working = true,
            (Field::DayOfMonth, _) if word.ends_with('W') && word.len() > 1 => {
                let digits = &word[..word.len() - 1];
                let day = self.value(digits, at.start..at.end - 1)?;
                set.near |= 1 << day;
            }
            (Field::DayOfWeek, "L") => {
                let error = self.error(at.clone(), "`L` needs a weekday before it");
                return Err(error.hint("such as `5L` for the last Friday of the month"));
            }
            (Field::DayOfWeek, _) if word.ends_with('L') && word.len() > 1 => {
                let day = self.value(&word[..word.len() - 1], at.start..at.end - 1)?;
                set.last |= 1 << (day % 7);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The end of a range whose start and `-` have been read; `start` is where it begins.
    fn range_from(&mut self, low: u32, start: usize) -> Result<(u32, u32), ScheduleError> {
        let (word, at) = self.word();
        if word.is_empty() && matches!(self.peek(), None | Some(',' | '/' | '-' | ')')) {
            return Err(self.error(start..self.at, "a range needs a value after `-`"));
        }
        let mut high = self.value(word, at)?;
        if self.field == Field::DayOfWeek && high == 0 && low > 0 {
            high = 7;
        }
        if high < low {
            let range = &self.text[start..self.at];
            let error = self.error(start..self.at, format!("the range {range} runs backwards"));
            let (max, min) = (self.field.max(), self.field.min());
            return Err(error.hint(format!("write it in two parts, `{low}-{max},{min}-{high}`")));
        }
        Ok((low, high))
    }

    /// `/n` if it is there.
    fn step(&mut self) -> Result<Option<u32>, ScheduleError> {
        if !self.eat('/') {
            return Ok(None);
        }
        let (word, at) = self.word();
        match number(word) {
            Some(step @ 1..) => Ok(Some(step)),
            _ if word.is_empty() => Err(self.expected("a step, a whole number from 1 up,")),
            _ => Err(self.error(at, format!("the step {word} is not a whole number from 1 up"))),
        }
    }

    /// A number that is no value of the field.
    fn number(&mut self, low: u32, high: u32, what: &str) -> Result<u32, ScheduleError> {
        let (word, at) = self.word();
        match number(word) {
            Some(number) if (low..=high).contains(&number) => Ok(number),
            _ if word.is_empty() => Err(self.expected(&format!("{what}, {low}-{high},"))),
            _ => Err(self.error(at, format!("{what}, {word}, is not within {low}-{high}"))),
        }
    }

    /// The value of the field that `word` stands for.
    fn value(&self, word: &str, at: Range<usize>) -> Result<u32, ScheduleError> {
        let field = self.field;
        if word.is_empty() {
            return Err(self.unexpected());
        }
        if let Some(value) = number(word) {
            return match (field.min()..=field.max()).contains(&value) {
                true => Ok(value),
                false => {
                    let shown = if word.len() > 20 { "the number" } else { word };
                    let message = format!("{shown} is not within {}", field.allowed());
                    Err(self.error(at, message))
                }
            };
        }
        if let Some(value) = field.named(word) {
            return Ok(value);
        }
        // `mon.` or `lün`: the culprit is what comes after the letters.
        if self.peek().is_some_and(|next| !",-/#()".contains(next)) {
            return Err(self.unexpected());
        }
        let shown = word.chars().take(20).collect::<String>();
        let error = self.error(at, format!("`{shown}` is not within {}", field.allowed()));
        Err(match (FIELDS.iter().find(|other| other.named(word).is_some()), field) {
            (Some(other), _) => error.hint(format!("that name belongs to the {other} field")),
            (None, Field::Month | Field::DayOfWeek) => {
                error.hint("names are the first three letters in English")
            }
            _ if ["h", "l", "w", "lw"].contains(&word) => {
                error.hint(format!("written `{}`", word.to_ascii_uppercase()))
            }
            _ => error,
        })
    }

    /// The letters and digits that come next, perhaps none.
    fn word(&mut self) -> (&'a str, Range<usize>) {
        let rest = &self.text[self.at..self.end];
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let at = self.at..self.at + length;
        self.at += length;
        (&rest[..length], at)
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..self.end].chars().next()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    /// The place of the next character.
    fn char(&self) -> Range<usize> {
        self.at..self.at + self.peek().map_or(0, char::len_utf8)
    }

    fn expected(&self, what: &str) -> ScheduleError {
        match self.peek() {
            Some(found) => {
                let message = format!("{what} must stand here, not {}", quoted(found));
                self.error(self.char(), message)
            }
            None => self.error(self.char(), format!("{what} is missing")),
        }
    }

    /// The next character can be nothing that may stand there.
    fn unexpected(&self) -> ScheduleError {
        let Some(found) = self.peek() else {
            return self.error(self.char(), "a value is missing");
        };
        let error = self.error(self.char(), format!("`{}` cannot stand here", found.escape_debug()));
        let allowed = self.field.allowed();
        match found {
            '?' => error.hint("`?` is Quartz's; write `*`"),
            '*' => error.hint("`*` stands alone or before a step"),
            '/' => error.hint("an item has one step, after `*` or a range"),
            '-' => error.hint(format!("values are {allowed} without a sign; a range has two ends")),
            '#' => error.hint("`#` stands after one day of the week, as in `fri#2`"),
            '~' => error.hint("for a time that differs from job to job write `H`"),
            _ if found.is_whitespace() => error.hint("only blanks and tabs part the fields"),
            _ => error.hint(format!("allowed are {allowed}, `*`, `,`, `-` and `/`")),
        }
    }

    fn error(&self, at: Range<usize>, message: impl fmt::Display) -> ScheduleError {
        let message = format!("{}: {message}", self.field);
        ScheduleError { field: Some(self.field), ..ScheduleError::new(self.text, at, message) }
    }
}

/// What digits stand for; more than fits counts as the largest number.
fn number(word: &str) -> Option<u32> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| word.parse().unwrap_or(u32::MAX))
}

fn quoted(found: char) -> String {
    if found.is_control() || found.is_whitespace() {
        return format!("the character U+{:04X}", u32::from(found));
    }
    format!("`{found}`")
}
