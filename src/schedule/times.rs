//! Which times of day a schedule's minute and hour fields pick.
//!
//! The `cron` crate holds and iterates these two sets. It is given canonical lists of numbers made here,
//! never a user's text, and is asked about one reference day in UTC, never in a zone: so its faults around
//! clock changes and its limits of years do not matter, and each question costs it a few steps at most.

use std::fmt::Write;
use std::str::FromStr;

use chrono::{DateTime, Timelike, Utc};
use cron::TimeUnitSpec;

use super::wall;

/// A set of times of day, in minutes since midnight on the wall. Never empty.
#[derive(Clone, Debug)]
pub struct Times {
    set: cron::Schedule,
    first: i64,
}

impl Times {
    /// Every minute in `minutes` (bit n: minute n) of every hour in `hours` (bit n: hour n). Neither is empty.
    pub fn new(minutes: u64, hours: u32) -> Times {
        let text = format!("0 {} {} * * *", list(minutes, 60), list(hours.into(), 24));
        let set = cron::Schedule::from_str(&text).expect("canonical lists are valid");
        let first = i64::from(hours.trailing_zeros() * 60 + minutes.trailing_zeros());
        Times { set, first }
    }

    pub fn first(&self) -> i64 {
        self.first
    }

    /// The first picked time of day at or after `minute` of the day.
    pub fn next(&self, minute: i64) -> Option<i64> {
        let before = DateTime::<Utc>::from_timestamp(minute * 60 - 1, 0)?;
        let next = self.set.after(&before).next()?.timestamp() / 60;
        (next < wall::DAY_MINUTES).then_some(next)
    }

    pub fn contains(&self, minute: i64) -> bool {
        DateTime::<Utc>::from_timestamp(minute * 60, 0).is_some_and(|at| {
            self.set.minutes().includes(at.minute()) && self.set.hours().includes(at.hour())
        })
    }

    pub fn minutes(&self) -> Vec<u32> {
        self.set.minutes().iter().collect()
    }

    pub fn hours(&self) -> Vec<u32> {
        self.set.hours().iter().collect()
    }
}

impl PartialEq for Times {
    fn eq(&self, other: &Times) -> bool {
        self.set.timeunitspec_eq(&other.set)
    }
}

impl Eq for Times {}

fn list(set: u64, size: u32) -> String {
    if set.count_ones() == size {
        return "*".to_owned();
    }
    let mut list = String::new();
    for value in (0..size).filter(|value| set & (1 << value) != 0) {
        let comma = if list.is_empty() { "" } else { "," };
        write!(list, "{comma}{value}").expect("a string takes all");
    }
    list
}
