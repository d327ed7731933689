//! When a job is due: crontab's schedules, meaning exactly what they mean to cron, in every zone and on every
//! night.
//!
//! A [`Schedule`] is one or more texts, checked, with the zone whose clock they speak of. It is a set of
//! instants, whole seconds, that depends on the texts, the zone, the job's name (for `H`) and its
//! [`Calendar`] alone: not on who asks, when, how often, or where. This module reads no clock, no file, no
//! environment.
//!
//! | part | knows |
//! |---|---|
//! | `parse`, `items` | the grammar, and where a text is wrong |
//! | `field`, `days`, `times` | which days and which times of day the fields pick |
//! | `zone` | which zones there are and when their clocks change |
//! | `eval` | how picked wall-clock times become instants, also when a clock changes |
//! | `upcoming` | what `next` shows: fires, and what clock changes and the calendar did to them |
//! | `calendar` | `start_at`, `end_at`, `skip_dates`, `only_dates` |
//! | `explain`, `warn` | English |
//!
//! # Forms
//!
//! `minute hour day-of-month month day-of-week` with crontab's lists, ranges, steps and names, and crontab's
//! rule for two day fields; `@yearly` to `@hourly`; and beyond crontab `H`, `L`, `W`, `#`,
//! `@every DURATION` (a grid of whole seconds from 1970-01-01T00:00:00Z), `@at INSTANT` (once) and `@reboot`.
//!
//! # Limits
//!
//! Instants lie in the years 1 to 9999, which is what RFC 3339 can write. (The `cron` crate inside ends at
//! 2100; it is only asked about times of day, so that limit does not show.) Changes of clocks are those of
//! the built-in time zone data, [`tzdata_version`].

use std::sync::Arc;

mod calendar;
mod days;
mod eval;
mod explain;
mod field;
mod items;
mod parse;
mod splay;
mod times;
mod upcoming;
mod wall;
mod warn;
mod zone;

use eval::{Rule, Steps};

pub use calendar::{Calendar, CalendarError, CalendarText, Dates, Excluded};
pub use field::Field;
pub use parse::ScheduleError;
pub use splay::splay;
pub use upcoming::{Mark, Upcoming};
pub use warn::{Crowd, Warning, WarningKind, crowded};
pub use zone::{LocalTime, Zone, ZoneError, tzdata_version};

/// An instant. Those of schedules are whole seconds.
pub type Timestamp = chrono::DateTime<chrono::Utc>;

/// One or more checked schedule texts, their zone and their calendar: the set of instants at which a job is
/// due. Cloning shares all but a few pointers.
///
/// Two schedules are equal if their texts, zone, calendar and what `H` stands for are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// As many as `texts`. None: it has no instants.
    rules: Arc<[Rule]>,
    texts: Arc<[String]>,
    zone: Zone,
    calendar: Option<Arc<Calendar>>,
}

/// What [`Schedule::search`] found, and how much it looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    pub next: Option<Timestamp>,
    /// Months of the calendar and stretches between clock changes that were looked at.
    pub steps: u32,
}

impl Schedule {
    /// No search looks at more months and stretches than this, for each text and each range of dates in the
    /// calendar. (About 500, twelve months of 41 years, is the most that was ever met; the rest is room for
    /// rules that a zone's clock changes swallow each time.)
    pub const MAX_STEPS: u32 = 4_000;

    /// Checks `texts`, of which there must be at least one. All that is wrong is told, each mistake with the
    /// index of its text. `job` decides what `H` stands for.
    pub fn parse(
        texts: &[impl AsRef<str>],
        zone: &Zone,
        job: &str,
    ) -> Result<Schedule, Vec<(usize, ScheduleError)>> {
        let mut rules = Vec::with_capacity(texts.len());
        let mut tidy = Vec::with_capacity(texts.len());
        let mut errors = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            match parse::parse(text.as_ref(), job) {
                Ok((rule, text)) => {
                    rules.push(rule);
                    tidy.push(text);
                }
                Err(error) => errors.push((index, error)),
            }
        }
        if texts.is_empty() {
            errors.push((0, ScheduleError::empty_list()));
        }
        match errors.is_empty() {
            true => Ok(Schedule { rules: rules.into(), texts: tidy.into(), zone: *zone, calendar: None }),
            false => Err(errors),
        }
    }

    /// Of what is never due by itself.
    pub fn none(zone: &Zone) -> Schedule {
        Schedule { rules: Arc::new([]), texts: Arc::new([]), zone: *zone, calendar: None }
    }

    /// Whether it is [`Schedule::none`].
    pub fn is_none(&self) -> bool {
        self.rules.is_empty()
    }

    /// The same schedule without the instants that `calendar` excludes.
    pub fn within(mut self, calendar: Calendar) -> Schedule {
        self.calendar = (calendar != Calendar::default()).then(|| Arc::new(calendar));
        self
    }

    /// The first instant strictly after `after` at which the job is due, or none if it never is again.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.search(after).next
    }

    /// How many instants are due in `(after, until]`.
    ///
    /// Of `@every` alone that is a division; of five fields, half a million a year are walked through.
    pub fn count(&self, after: Timestamp, until: Timestamp) -> u64 {
        let (from, to) = (after.timestamp(), until.timestamp());
        if let ([Rule::Every(period)], None) = (&*self.rules, &self.calendar) {
            return (to.max(from).div_euclid(*period) - from.div_euclid(*period)).unsigned_abs();
        }
        let next = |after: &Timestamp| self.next_after(*after).filter(|next| *next <= until);
        std::iter::successors(next(&after), next).count() as u64
    }

    /// [`Schedule::next_after`], telling how much it looked at.
    pub fn search(&self, after: Timestamp) -> Search {
        let mut steps = Steps::default();
        let mut from = after.timestamp();
        let next = loop {
            let Some(at) = self.next_of_texts(from, &mut steps) else {
                break None;
            };
            let Some(excluded) = self.excluded_second(at) else {
                break Some(at);
            };
            match excluded.ends(&self.zone, at) {
                // An exclusion ends after what it excludes, so this goes forward.
                Some(end) => from = end - 1,
                None => break None,
            }
        };
        Search { next: next.map(timestamp), steps: steps.0 }
    }

    /// What happens after `after`, in order of time, for people to look at: every fire, marked if a change of
    /// the clock has to do with it, and the times that a change of the clock or the calendar took away.
    ///
    /// Fires are exactly those of [`Schedule::next_after`], found by [`Upcoming::runs`]. Of instants before
    /// `start_at` or between `only_dates` the first stands for all.
    pub fn upcoming(&self, after: Timestamp) -> impl Iterator<Item = Upcoming> {
        upcoming::Walk::new(self, after.timestamp())
    }

    /// Whether the job is due at exactly `at`.
    pub fn contains(&self, at: Timestamp) -> bool {
        let second = at.timestamp();
        at.timestamp_subsec_nanos() == 0
            && self.excluded_second(second).is_none()
            && self.next_of_texts(second - 1, &mut Steps::default()) == Some(second)
    }

    /// Why the calendar excludes the instant `at`, whether the texts have it or not.
    pub fn excluded(&self, at: Timestamp) -> Option<Excluded> {
        self.excluded_second(at.timestamp())
    }

    /// The texts, fields parted by one blank. Parsed again they are the same schedule.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    pub fn calendar(&self) -> Option<&Calendar> {
        self.calendar.as_deref()
    }

    /// The schedule in an English sentence: `at 02:00 on Monday to Friday, Europe/Berlin time`.
    pub fn describe(&self) -> String {
        explain::sentence(self)
    }

    /// What people often get wrong, as far as it applies here. `now` bounds the search for clock changes: a
    /// year from it.
    pub fn warnings(&self, now: Timestamp) -> Vec<Warning> {
        warn::warnings(self, now.timestamp())
    }

    /// Whether no date of any year matches, as with 30 February. (What `next_after` says depends on the
    /// instant as well: an `@at` that has passed is not due again, but it is no mistake.)
    pub fn never_fires(&self) -> bool {
        self.rules.iter().all(Rule::never_fires)
    }

    /// Each text that matches no date of any year, with its index, as an error about its day of month.
    pub fn impossible(&self) -> Vec<(usize, ScheduleError)> {
        let texts = self.rules.iter().zip(self.texts.iter()).enumerate();
        texts
            .filter(|(_, (rule, _))| rule.never_fires())
            .map(|(index, (_, text))| (index, ScheduleError::impossible(text)))
            .collect()
    }

    /// Whether `@reboot` is among the texts. It has no instants; the job also runs when its machine starts.
    pub fn has_reboot(&self) -> bool {
        self.rules.contains(&Rule::Reboot)
    }

    /// The first instant after `after` that any text has, in seconds, whatever the calendar says.
    fn next_of_texts(&self, after: i64, steps: &mut Steps) -> Option<i64> {
        self.rules.iter().filter_map(|rule| rule.next_after(&self.zone, after, steps)).min()
    }

    fn excluded_second(&self, at: i64) -> Option<Excluded> {
        self.calendar.as_ref()?.excludes(&self.zone, at)
    }
}

impl ScheduleError {
    /// `text` is five fields parted by one blank, and no day matches.
    fn impossible(text: &str) -> ScheduleError {
        let fields: Vec<&str> = text.split(' ').collect();
        let [minute, hour, date, month, weekday] = fields[..] else {
            unreachable!("aliases stand for days that there are")
        };
        let start = minute.len() + hour.len() + 2;
        let on = match weekday.starts_with('*') && !weekday.contains('/') {
            true => String::new(),
            false => format!(" on day of week `{weekday}`"),
        };
        let message = format!("day of month: `{date}` never comes in month `{month}`{on}");
        ScheduleError {
            field: Some(Field::DayOfMonth),
            ..ScheduleError::new(text, start..start + date.len(), message)
        }
    }

    fn empty_list() -> ScheduleError {
        ScheduleError::new("", 0..0, "the list of schedules is empty".to_owned())
    }
}

/// The instant of a second that lies in the years 0 to 10000.
fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_timestamp(second, 0).unwrap_or_default()
}

// Planners and doors hand schedules from thread to thread.
const _: fn() = || {
    fn shareable<T: Send + Sync>() {}
    shareable::<Schedule>();
};
