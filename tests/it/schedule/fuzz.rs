//! Garbage in: no panic, no search past its bound, never an instant that is not later than the question.
//!
//! `FLEETCRON_TEST_SECONDS` says for how long; 3 by default, ten minutes with `FLEETCRON_TEST_LONG=1`.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use fleetcron::schedule::{Calendar, CalendarText, Dates, Schedule, Timestamp, Zone};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

#[test]
fn no_text_and_no_instant_makes_it_panic_or_search_without_end() {
    let seconds = super::size("FLEETCRON_TEST_SECONDS", 3, 600);
    let until = Instant::now() + Duration::from_secs(seconds as u64);
    let zones: Vec<Zone> = Zone::all().collect();
    let mut runner = TestRunner::default();
    let (mut texts, mut schedules, mut most) = (0, 0, 0);
    while Instant::now() < until {
        let draw = (garbage(), any::<prop::sample::Index>(), any_instant(), "[0-9.-]{0,24}");
        let (text, zone, after, dates) = draw.new_tree(&mut runner).unwrap().current();
        let zone = zones[zone.index(zones.len())];
        texts += 1;
        let _ = dates.parse::<Dates>();
        match Schedule::parse(&[&text], &zone, "job") {
            Err(errors) => {
                for (_, error) in errors {
                    assert!(error.text.get(error.at.clone()).is_some(), "{error:?}");
                    assert!(!error.to_string().contains('\n'), "{error:?}");
                    assert_eq!(error.pointer().lines().count().max(2), 2, "{error:?}");
                }
            }
            Ok(schedule) => {
                schedules += 1;
                most = most.max(look_at(&schedule, after));
            }
        }
    }
    println!("{texts} texts, {schedules} of them schedules; at most {most} steps");
    assert!(schedules > 0);
}

/// Asks everything; gives the steps of the longest search.
fn look_at(schedule: &Schedule, after: Timestamp) -> u32 {
    let search = schedule.search(after);
    assert!(search.steps <= Schedule::MAX_STEPS, "{schedule:?} after {after}: {search:?}");
    if let Some(next) = search.next {
        assert!(next > after && schedule.contains(next), "{schedule:?} after {after}");
        assert!(schedule.excluded(next).is_none());
    }
    assert!(search.next.is_none() || !schedule.never_fires());
    let mut last = after;
    for one in schedule.upcoming(after).take(5) {
        assert!(one.at >= last, "{schedule:?} after {after}");
        assert!(!one.runs() || schedule.contains(one.at), "{schedule:?}: {one:?}");
        last = one.at;
    }
    assert!(!schedule.describe().contains('\n'));
    let _ = schedule.zone().local(after).to_string();
    if after.timestamp().abs() < 200_000_000_000 {
        let _ = schedule.warnings(after);
    }
    let days = ["2026-12-24..2026-12-26".to_owned(), "2100-02-28".to_owned()];
    let text = CalendarText { skip_dates: &days, only_dates: Some(&days), ..Default::default() };
    let within = schedule.clone().within(Calendar::parse(text).unwrap());
    assert_eq!(within.next_after(after), None);
    search.steps
}

fn garbage() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => super::laws::text(),
        2 => "[0-9*,/HLW#a-z@ \t()-]{0,30}",
        1 => "\\PC{0,20}",
        1 => prop::collection::vec(any::<u8>(), 0..40)
            .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        // A valid one with a byte changed.
        2 => (super::laws::text(), any::<prop::sample::Index>(), any::<char>()).prop_map(
            |(text, at, new)| {
                let at = at.index(text.chars().count());
                text.chars().enumerate().map(|(n, c)| if n == at { new } else { c }).collect()
            }
        ),
    ]
}

fn any_instant() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        6 => (-2_300_000_000..4_200_000_000_i64, 0..1_000_000_000_u32)
            .prop_map(|(second, nanos)| Timestamp::from_timestamp(second, nanos).unwrap()),
        1 => (-70_000_000_000..260_000_000_000_i64)
            .prop_map(|second| Timestamp::from_timestamp(second, 0).unwrap()),
        1 => prop::sample::select(vec![
            Timestamp::MIN_UTC,
            Timestamp::MAX_UTC,
            Timestamp::MIN_UTC + TimeDelta::seconds(1),
            Timestamp::MAX_UTC - TimeDelta::seconds(1),
            Timestamp::UNIX_EPOCH,
        ]),
    ]
}
