//! The five fields, and the values that `H` picks in them.

use std::fmt;

use sha2::{Digest, Sha256};

/// One of the five fields, in the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    Minute,
    Hour,
    DayOfMonth,
    Month,
    DayOfWeek,
}

pub const FIELDS: [Field; 5] =
    [Field::Minute, Field::Hour, Field::DayOfMonth, Field::Month, Field::DayOfWeek];

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Field {
    pub fn min(self) -> u32 {
        match self {
            Field::Minute | Field::Hour | Field::DayOfWeek => 0,
            Field::DayOfMonth | Field::Month => 1,
        }
    }

    pub fn max(self) -> u32 {
        match self {
            Field::Minute => 59,
            Field::Hour => 23,
            Field::DayOfMonth => 31,
            Field::Month => 12,
            Field::DayOfWeek => 7,
        }
    }

    /// The highest value that `H` may pick: one that every month has, and one Sunday only.
    pub fn hash_max(self) -> u32 {
        match self {
            Field::DayOfMonth => 28,
            Field::DayOfWeek => 6,
            _ => self.max(),
        }
    }

    /// The value that an English three-letter name, in any case, stands for.
    pub fn named(self, name: &str) -> Option<u32> {
        let at = self.names().iter().position(|known| known.eq_ignore_ascii_case(name))?;
        u32::try_from(at).ok().map(|at| at + self.min())
    }

    /// What may stand in the field, for messages.
    pub fn allowed(self) -> &'static str {
        match self {
            Field::Minute => "0-59",
            Field::Hour => "0-23",
            Field::DayOfMonth => "1-31",
            Field::Month => "1-12 or jan-dec",
            Field::DayOfWeek => "0-7 or sun-sat",
        }
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Field::Month => &MONTHS,
            Field::DayOfWeek => &WEEKDAYS,
            _ => &[],
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::Minute => "minute",
            Field::Hour => "hour",
            Field::DayOfMonth => "day of month",
            Field::Month => "month",
            Field::DayOfWeek => "day of week",
        })
    }
}

/// The value in `low..=high` that `H` stands for in `field` of `job`'s schedules: the same on every node and
/// in every release, which is why the recipe must never change.
pub fn hashed(job: &str, field: Field, low: u32, high: u32) -> u32 {
    let size = u64::from(high - low) + 1;
    let place = number(&format!("H\0{field}\0{job}")) % size;
    low + u32::try_from(place).expect("less than the field's size")
}

/// The first eight bytes of the SHA-256 of `text`, most significant first.
pub fn number(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out with another program. A change here moves jobs on every node that is upgraded.
    #[test]
    fn what_h_stands_for_is_the_same_in_every_release() {
        for (job, values) in [
            ("backup", [51, 11, 3, 5, 1]),
            ("nightly-db-backup", [41, 14, 12, 2, 1]),
            ("a", [28, 3, 14, 3, 0]),
        ] {
            let picked = FIELDS.map(|field| hashed(job, field, field.min(), field.hash_max()));
            assert_eq!(picked, values, "{job}");
        }
    }
}
