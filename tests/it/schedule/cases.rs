//! Faults that people met in other schedulers, and the right behaviour.

use fleetcron::schedule::{Calendar, CalendarText, Mark, Schedule, Timestamp, Zone};

use super::{fires, instant, schedule, zone};

#[track_caller]
fn check(expr: &str, zone_name: &str, after: &str, expected: &[&str]) {
    let schedule = schedule(expr, &zone(zone_name));
    let found: Vec<Timestamp> =
        fires(&schedule, instant(after), expected.len()).iter().map(|at| instant(at)).collect();
    let expected: Vec<Timestamp> = expected.iter().map(|at| instant(at)).collect();
    assert_eq!(found, expected, "{expr} {zone_name} after {after}");
}

#[test]
fn c01_a_daily_job_in_the_missing_hour_runs_once_when_the_gap_is_over() {
    let after = "2027-03-13T00:00:00Z";
    check(
        "30 2 * * *",
        "America/New_York",
        after,
        &["2027-03-13T07:30:00Z", "2027-03-14T07:00:00Z", "2027-03-15T06:30:00Z"],
    );
    check(
        "0,30 2 * * *",
        "America/New_York",
        "2027-03-14T00:00:00Z",
        &["2027-03-14T07:00:00Z", "2027-03-15T06:00:00Z"],
    );
    let nightly = schedule("30 2 * * *", &zone("America/New_York"));
    let marks: Vec<Mark> = nightly.upcoming(instant(after)).take(3).map(|one| one.mark).collect();
    assert_eq!(marks[0], Mark::Ordinary);
    assert_eq!(marks[1], Mark::Moved { from: "2027-03-14T02:30:00".parse().unwrap() });
    assert_eq!(marks[2], Mark::Ordinary);
}

#[test]
fn c03_a_job_of_every_quarter_runs_in_both_passes_of_the_repeated_hour() {
    check(
        "*/15 * * * *",
        "Europe/Berlin",
        "2027-10-30T23:59:59Z",
        &[
            "2027-10-31T00:00:00Z",
            "2027-10-31T00:15:00Z",
            "2027-10-31T00:30:00Z",
            "2027-10-31T00:45:00Z",
            "2027-10-31T01:00:00Z",
            "2027-10-31T01:15:00Z",
            "2027-10-31T01:30:00Z",
            "2027-10-31T01:45:00Z",
            "2027-10-31T02:00:00Z",
        ],
    );
    check(
        "0 * * * *",
        "Europe/Berlin",
        "2027-10-30T23:59:59Z",
        &["2027-10-31T00:00:00Z", "2027-10-31T01:00:00Z", "2027-10-31T02:00:00Z"],
    );
}

#[test]
fn c05_an_impossible_date_is_an_error_that_names_its_field() {
    for (expr, message) in [
        ("0 0 30 2 *", "day of month: `30` never comes in month `2`"),
        ("0  0 31 4,6,9,11 *", "day of month: `31` never comes in month `4,6,9,11`"),
        ("0 0 31 feb */2", "day of month: `31` never comes in month `feb` on day of week `*/2`"),
    ] {
        let impossible = schedule(expr, &Zone::utc()).impossible();
        let [(0, error)] = &impossible[..] else { panic!("{expr}: {impossible:?}") };
        assert_eq!(error.to_string(), message);
        assert!(error.pointer().ends_with(&format!("\n    {}", "^".repeat(2))), "{}", error.pointer());
    }
    assert_eq!(schedule("0 0 29 2 *", &Zone::utc()).impossible(), []);
}

#[test]
fn c05_an_impossible_date_is_found_out_at_once_and_a_rare_one_is_not_missed() {
    for expr in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 L-29 2 *", "0 0 31W 2 *"] {
        let schedule = schedule(expr, &Zone::utc());
        assert!(schedule.never_fires(), "{expr}");
        assert_eq!(schedule.next_after(instant("2027-01-01T00:00:00Z")), None, "{expr}");
    }
    check(
        "30 1 28 3 *",
        "Europe/Lisbon",
        "2027-01-01T00:00:00Z",
        &["2027-03-28T01:00:00Z", "2028-03-28T00:30:00Z"],
    );
    check("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", &["2104-02-29T00:00:00Z"]);
    // Each of these times lies in the missing hour, so there is none; the search ends all the same.
    let swallowed = schedule("*/15 2 * 3 0#2", &zone("America/New_York"));
    let search = swallowed.search(instant("2027-01-01T00:00:00Z"));
    assert_eq!(search.next, None);
    assert!(search.steps <= Schedule::MAX_STEPS, "{}", search.steps);
}

#[test]
fn c05_no_search_known_to_be_long_goes_past_its_bound() {
    let mut most = 0;
    for (expr, zone_name) in [
        ("*/15 2 * 3 0#2", "America/New_York"),
        ("*/15 2 * * 0#2", "America/New_York"),
        ("*/5 2 * 3 0L", "Europe/Berlin"),
        ("*/15 2 * 10 0#1", "Australia/Lord_Howe"),
        ("*/15 2 29 2 1", "Africa/Casablanca"),
        ("0 0 29 2 1", "UTC"),
        ("0 0 31 2,4,6,9,11 *", "Europe/Berlin"),
        // No such day in any of twelve months.
        ("0 0 */30 * 1#1", "Europe/Berlin"),
        ("0 0 */9 * 7#5", "Africa/Casablanca"),
    ] {
        let schedule = schedule(expr, &zone(zone_name));
        for year in (1..10_000).step_by(13) {
            let after = instant(&format!("{year:04}-03-01T00:00:00Z"));
            most = most.max(schedule.search(after).steps);
        }
    }
    assert!(most > 400, "these were long once: {most}");
    assert!(most <= Schedule::MAX_STEPS, "{most}");
    println!("at most {most} steps");
}

#[test]
fn c07_either_day_field_is_enough_when_neither_is_starred() {
    check(
        "0 0 13 * 5",
        "UTC",
        "2027-08-01T00:00:00Z",
        &[
            "2027-08-06T00:00:00Z",
            "2027-08-13T00:00:00Z",
            "2027-08-20T00:00:00Z",
            "2027-08-27T00:00:00Z",
            "2027-09-03T00:00:00Z",
        ],
    );
    let both = schedule("0 0 13 * 5", &Zone::utc());
    assert_eq!(both.describe(), "at 00:00 on the 13th, and also on Friday whatever the date, UTC time");
}

#[test]
fn c09_weekdays_have_the_numbers_that_cron_gives_them() {
    for sunday in ["0 0 * * 0", "0 0 * * 7", "0 0 * * Sun"] {
        check(sunday, "UTC", "2027-01-01T00:00:00Z", &["2027-01-03T00:00:00Z"]);
    }
    check("0 0 * * 1", "UTC", "2027-01-01T00:00:00Z", &["2027-01-04T00:00:00Z"]);
    check(
        "0 0 * * 5-7",
        "UTC",
        "2026-12-31T12:00:00Z",
        &["2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z", "2027-01-03T00:00:00Z", "2027-01-08T00:00:00Z"],
    );
    for daily in ["0 0 * * 0-6", "0 0 * * 0-7"] {
        check(
            daily,
            "UTC",
            "2027-01-01T00:00:00Z",
            &["2027-01-02T00:00:00Z", "2027-01-03T00:00:00Z", "2027-01-04T00:00:00Z"],
        );
    }
    let errors = Schedule::parse(&["0 0 * * 8"], &Zone::utc(), "job").unwrap_err();
    assert_eq!(errors[0].1.to_string(), "day of week: 8 is not within 0-7 or sun-sat");
    assert_eq!(errors[0].1.at, 8..9);
}

#[test]
fn c12_a_schedule_counts_from_the_moment_it_is_asked_about() {
    check("0 9 * * *", "UTC", "2027-01-01T10:00:00Z", &["2027-01-02T09:00:00Z"]);
    check("0 9 * * *", "UTC", "2027-01-01T09:00:00Z", &["2027-01-02T09:00:00Z"]);
}

#[test]
fn c14_the_zone_of_a_job_is_the_one_it_names() {
    check("30 1 * * *", "UTC", "2027-10-31T00:55:00Z", &["2027-10-31T01:30:00Z", "2027-11-01T01:30:00Z"]);
    for name in ["Local", "localtime", "LOCAL", "CET-1CEST", ":/etc/localtime", "", "Factory"] {
        assert!(name.parse::<Zone>().is_err(), "{name}");
    }
}

#[test]
fn a_calendar_of_the_past_ends_the_search_at_once() {
    let past = ["2020-01-01..2020-12-31".to_owned()];
    let calendar = Calendar::parse(CalendarText { only_dates: Some(&past), ..Default::default() });
    let schedule = schedule("* * * * *", &zone("Europe/Berlin")).within(calendar.unwrap());
    let search = schedule.search(instant("2027-01-01T00:00:00Z"));
    assert_eq!(search.next, None);
    assert!(search.steps < 10, "{}", search.steps);
    assert_eq!(schedule.upcoming(instant("2027-01-01T00:00:00Z")).count(), 1);
}
