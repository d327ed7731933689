//! The hold as a guard keeps it: how long its command may go on after the last contact.
//!
//! Pure. Instants are durations since boot (CLOCK_BOOTTIME), so a suspended machine's time passes too.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::mutant;

/// The last contact and the hold that counts from it, in milliseconds; of a spec, of a message and of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// By CLOCK_BOOTTIME: before what proved the contact was sent.
    pub at: u64,
    pub hold: u64,
}

/// When the command must be asked and when it must be told to stop, unless a contact comes before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    pub ask: Duration,
    pub kill: Duration,
}

impl Contact {
    pub fn deadlines(self, kill_after: Duration) -> Deadlines {
        let (at, hold) = (Duration::from_millis(self.at), Duration::from_millis(self.hold));
        // Two clocks may each run wrong by 500 ppm.
        let margin = (hold / 500).max(LEAST_MARGIN);
        let kill = hold.saturating_sub(margin);
        let ask = kill.saturating_sub(kill_after).max(LEAST_PATIENCE).min(kill);
        Deadlines { ask: at.saturating_add(ask), kill: at.saturating_add(kill) }
    }

    /// What is in force after a message at `now`. The caller takes the message in first and looks at the clock then.
    ///
    /// A deadline that has passed is final: whoever waited for it may act on it already. A message that would put the
    /// deadline into the past is passed over, and so is an older contact than the one that is known.
    pub fn renewed(self, by: Contact, now: Duration, kill_after: Duration) -> Contact {
        let renewed = Contact { at: by.at.max(self.at), hold: by.hold };
        let passed = |contact: Contact| now >= contact.deadlines(kill_after).ask;
        let is_over = passed(self) && !mutant!("deadline-not-final");
        if is_over || passed(renewed) { self } else { renewed }
    }
}

/// Before the hold's end by which nothing may live any more, at least.
const LEAST_MARGIN: Duration = Duration::from_millis(500);
/// A shorter silence than this never stops a command.
const LEAST_PATIENCE: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    fn contact(at: u64, hold: u64) -> Contact {
        Contact { at, hold }
    }

    #[test]
    fn term_comes_kill_after_before_the_end_but_not_before_four_seconds() {
        // Hold and kill_after; when TERM and when KILL, all in milliseconds from the contact.
        for (hold, kill_after, ask, kill) in [
            (60_000, 10_000, 49_500, 59_500),
            (60_000, 1, 59_499, 59_500),
            (60_000, 55_500, 4_000, 59_500),
            (60_000, 3_600_000, 4_000, 59_500),
            (6_000, 10_000, 4_000, 5_500),
            (6_000, 1_000, 4_500, 5_500),
            // Fifteen minutes: the margin is 1.8 s.
            (900_000, 10_000, 888_200, 898_200),
            // Shorter than any that can be set.
            (3_000, 1_000, 2_500, 2_500),
            (0, 0, 0, 0),
        ] {
            let deadlines = contact(100_000, hold).deadlines(Duration::from_millis(kill_after));
            let from_contact = |at: Duration| at.as_millis() - 100_000;
            assert_eq!(
                (from_contact(deadlines.ask), from_contact(deadlines.kill)),
                (ask, kill),
                "hold {hold}, kill_after {kill_after}"
            );
        }
    }

    #[test]
    fn the_command_is_gone_before_the_hold_is_over_by_any_clock() {
        for hold in [6_000, 10_000, 60_000, 250_000, 900_000, 86_400_000] {
            let kill = contact(0, hold).deadlines(Duration::from_secs(10)).kill.as_millis() as u64;
            // Ours 500 ppm slow, theirs 500 ppm fast.
            assert!(kill + kill / 1000 < hold, "{hold}: {kill}");
        }
    }

    #[test]
    fn a_contact_in_time_extends_and_one_too_late_never_does() {
        const KILL_AFTER: Duration = Duration::from_secs(10);
        let old = contact(100_000, 60_000);
        // When the message is looked at, what it says, what is in force then.
        for (now, by, then) in [
            (101_000, contact(101_000, 60_000), contact(101_000, 60_000)),
            (149_499, contact(149_000, 60_000), contact(149_000, 60_000)),
            (149_500, contact(149_000, 60_000), old),
            (200_000, contact(200_000, 900_000), old),
            // Longer and shorter holds.
            (101_000, contact(101_000, 900_000), contact(101_000, 900_000)),
            (101_000, contact(101_000, 10_000), contact(101_000, 10_000)),
            // From a node that was frozen between its contact and its message.
            (140_000, contact(101_000, 10_000), old),
            // From one that goes while the next is in contact already.
            (102_000, contact(90_000, 60_000), old),
            (102_000, contact(90_000, 900_000), contact(100_000, 900_000)),
        ] {
            assert_eq!(old.renewed(by, Duration::from_millis(now), KILL_AFTER), then, "at {now}: {by:?}");
        }
    }
}
