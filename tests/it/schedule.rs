//! What schedules mean: against the oracle, against laws, against a second implementation, against garbage.

use fleetcron::schedule::{Schedule, Timestamp, Zone};

pub mod brute;
mod cases;
mod fuzz;
mod laws;
mod oracle;

fn zone(name: &str) -> Zone {
    name.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn schedule(expr: &str, zone: &Zone) -> Schedule {
    Schedule::parse(&[expr], zone, "job").unwrap_or_else(|errors| panic!("{expr:?}: {errors:?}"))
}

fn instant(text: &str) -> Timestamp {
    chrono::DateTime::parse_from_rfc3339(text).unwrap().to_utc()
}

/// The first `n` fires after `after`, as RFC 3339 with the zone's offset.
fn fires(schedule: &Schedule, after: Timestamp, n: usize) -> Vec<String> {
    let mut from = after;
    std::iter::from_fn(|| {
        from = schedule.next_after(from)?;
        Some(schedule.zone().local(from).to_string())
    })
    .take(n)
    .collect()
}

/// How much a test does: what the environment variable says, or one of two defaults.
fn size(variable: &str, short: usize, long: usize) -> usize {
    match std::env::var(variable) {
        Ok(number) => number.parse().unwrap_or_else(|_| panic!("{variable} is no number")),
        Err(_) if std::env::var_os("FLEETCRON_TEST_LONG").is_some_and(|long| long == "1") => long,
        Err(_) => short,
    }
}
