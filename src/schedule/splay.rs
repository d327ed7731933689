//! Spreading jobs that are due together.

use std::time::Duration;

use super::field::number;

/// The delay of a job whose `splay` is given: in `[0, splay)`, whole milliseconds, and the same on every node,
/// every day and in every release. The fire keeps its scheduled instant.
pub fn splay(job: &str, splay: Duration) -> Duration {
    let range = splay.as_millis();
    if range == 0 {
        return Duration::ZERO;
    }
    // Scaled, not the remainder, so that a longer splay spreads the same jobs in the same order.
    let delay = (u128::from(number(&format!("splay\0{job}"))) * range) >> 64;
    Duration::from_millis(u64::try_from(delay).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out with another program.
    #[test]
    fn a_job_is_delayed_by_the_same_time_in_every_release() {
        for (job, minute, hour) in
            [("backup", 5_371, 322_291), ("nightly-db-backup", 58_973, 3_538_387), ("a", 19_119, 1_147_180)]
        {
            assert_eq!(splay(job, Duration::from_secs(60)), Duration::from_millis(minute), "{job}");
            assert_eq!(splay(job, Duration::from_secs(3600)), Duration::from_millis(hour), "{job}");
        }
        assert_eq!(splay("a", Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn no_job_is_delayed_by_the_whole_splay() {
        for job in 0..1_000 {
            let delay = splay(&format!("job-{job}"), Duration::from_millis(3));
            assert!(delay < Duration::from_millis(3));
        }
    }
}
