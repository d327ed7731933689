//! When what is due for a run, of a real guard and of a simulated one alike.
//!
//! Pure. Instants are durations since boot (CLOCK_BOOTTIME).

use std::time::Duration;

use super::hold::{Contact, Deadlines};
use super::life::Event;

/// What a run's clock waits for.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub time_up: Option<Duration>,
    pub grace_up: Option<Duration>,
    hold_wanes: Option<Duration>,
    hold_passed: Option<Duration>,
}

impl Due {
    /// Counts the hold from this contact.
    pub fn count_from(&mut self, contact: Contact, kill_after: Duration) {
        let Deadlines { ask, kill } = contact.deadlines(kill_after);
        (self.hold_wanes, self.hold_passed) = (Some(ask), Some(kill));
    }

    /// What has come by `now` and was not taken yet. The sooner one first, where a machine slept through several.
    pub fn take(&mut self, now: Duration) -> Option<Event> {
        let is_due = |due: &mut Option<Duration>| due.take_if(|at| now >= *at).is_some();
        match () {
            () if is_due(&mut self.time_up) => Some(Event::TimeUp),
            () if is_due(&mut self.hold_wanes) => Some(Event::HoldWanes),
            () if is_due(&mut self.grace_up) => Some(Event::GraceUp),
            () if is_due(&mut self.hold_passed) => Some(Event::HoldPassed),
            () => None,
        }
    }

    pub fn next(&self) -> Option<Duration> {
        let Due { time_up, grace_up, hold_wanes, hold_passed } = self;
        [time_up, grace_up, hold_wanes, hold_passed].into_iter().flatten().min().copied()
    }
}
