//! Fires between two attempts: their locks wait, and are no run, so they take no slot until the next one is to begin.

use std::collections::{BTreeMap, HashMap};

use super::Daemon;
use crate::fire::Fire;
use crate::race::Found;
use crate::run::Order;
use crate::schedule::Timestamp;

/// The locks of this node that wait, in the order of their instants.
#[derive(Default)]
pub(super) struct Retries {
    in_order: BTreeMap<(Timestamp, String), Found>,
    due: HashMap<Fire, Timestamp>,
}

impl Retries {
    pub fn push(&mut self, found: Found) {
        let due = found.lock.due.unwrap_or(Timestamp::MIN_UTC);
        self.due.insert(found.fire.clone(), due);
        self.in_order.insert((due, found.fire.to_string()), found);
    }

    pub fn has(&self, fire: &Fire) -> bool {
        self.due.contains_key(fire)
    }

    pub fn take(&mut self, fire: &Fire) -> Option<Found> {
        let due = self.due.remove(fire)?;
        self.in_order.remove(&(due, fire.to_string()))
    }

    fn next_due(&self) -> Option<Timestamp> {
        self.in_order.keys().next().map(|(due, _)| *due)
    }

    /// The first one whose instant has come.
    fn pop_due(&mut self, now: Timestamp) -> Option<Found> {
        let (_, found) = self.in_order.first_key_value().filter(|((due, _), _)| *due <= now)?;
        let fire = found.fire.clone();
        self.take(&fire)
    }
}

impl Daemon {
    /// When the next attempt is to begin for which there is a slot.
    pub(super) fn next_retry(&self) -> Option<Timestamp> {
        self.may_try_again().then(|| self.retries.next_due()).flatten()
    }

    /// A drained node leaves what waits to others; if they do not want it, it is there when the node is undrained.
    fn may_try_again(&self) -> bool {
        let has_slot = self.hands.len() < self.options.slots as usize;
        has_slot && self.knows_jobs && !self.fleet.is_drained()
    }

    /// Begins the next attempt of the first fire whose instant has come; false where there is none.
    pub(super) fn try_again_next(&mut self) -> bool {
        if !self.may_try_again() {
            return false;
        }
        let Some(found) = self.retries.pop_due(self.options.clock.now()) else { return false };
        let job = self.job_of(&found);
        self.take_back(found, job, Order::GoOn);
        true
    }
}
