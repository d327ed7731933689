//! The queue for a slot: fires that this node would race for if it could run them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::fire::{Fire, FireId};
use crate::job::{JobName, Priority};

/// Fires by priority, and of one priority in the order in which they came. Of the scheduled fires of one job only the
/// newest waits.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: BTreeMap<Place, Fire>,
    there: HashMap<Fire, Place>,
    scheduled: HashMap<JobName, Fire>,
    came: u64,
}

/// The highest priority first, then who came first.
type Place = (Reverse<Priority>, u64);

impl Waiting {
    /// Puts a fire behind those of its priority, if it does not wait already. Returns the fire that it supersedes.
    pub fn push(&mut self, fire: Fire, priority: Priority) -> Option<Fire> {
        if self.there.contains_key(&fire) {
            return None;
        }
        self.came += 1;
        let place = (Reverse(priority), self.came);
        self.queue.insert(place, fire.clone());
        self.there.insert(fire.clone(), place);
        let FireId::Scheduled(_) = fire.id else { return None };
        let older = self.scheduled.insert(fire.job.clone(), fire)?;
        self.take(&older);
        Some(older)
    }

    /// Lets go of an older scheduled fire of the same job, which another node may have the newer one of. Returns it.
    pub fn supersede(&mut self, by: &Fire) -> Option<Fire> {
        let older = self.scheduled.get(&by.job).filter(|older| older.scheduled_at() < by.scheduled_at())?;
        let older = older.clone();
        self.scheduled.remove(&by.job);
        self.take(&older);
        Some(older)
    }

    /// The priority of the one that comes first.
    pub fn first_priority(&self) -> Option<Priority> {
        self.queue.first_key_value().map(|((Reverse(priority), _), _)| *priority)
    }

    /// Takes the first one off.
    pub fn pop(&mut self) -> Option<Fire> {
        let (_, fire) = self.queue.pop_first()?;
        self.there.remove(&fire);
        if self.scheduled.get(&fire.job) == Some(&fire) {
            self.scheduled.remove(&fire.job);
        }
        Some(fire)
    }

    /// Lets go of a job's fires.
    pub fn forget(&mut self, job: &JobName) {
        self.queue.retain(|_, fire| fire.job != *job);
        self.there.retain(|fire, _| fire.job != *job);
        self.scheduled.remove(job);
    }

    pub fn clear(&mut self) {
        *self = Waiting::default();
    }

    fn take(&mut self, fire: &Fire) {
        if let Some(place) = self.there.remove(fire) {
            self.queue.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fire(text: &str) -> Fire {
        let (job, id) = text.split_once('/').unwrap();
        Fire::new(job.parse().unwrap(), id.parse().unwrap())
    }

    const ONE: &str = "a/20261130T020000Z";
    const TWO: &str = "a/20261130T030000Z";
    const OTHER: &str = "b/20261130T020000Z";
    const ASKED: &str = "a/m-01ARZ3NDEKTSV4RRFFQ69G5FAV";

    fn all(mut waiting: Waiting) -> Vec<String> {
        std::iter::from_fn(|| waiting.pop()).map(|fire| fire.to_string()).collect()
    }

    fn push(waiting: &mut Waiting, text: &str) -> Option<Fire> {
        waiting.push(fire(text), Priority::default())
    }

    #[test]
    fn a_higher_priority_comes_first_and_of_one_who_came_first() {
        let mut waiting = Waiting::default();
        for (text, priority) in [(ONE, 5), (OTHER, 9), (ASKED, 9)] {
            waiting.push(fire(text), Priority::try_from(priority).unwrap());
        }
        assert_eq!(waiting.first_priority(), Some(Priority::HIGHEST));
        assert_eq!(all(waiting), [OTHER, ASKED, ONE]);
    }

    #[test]
    fn fires_come_out_in_the_order_they_came_and_each_once() {
        let mut waiting = Waiting::default();
        for text in [ONE, OTHER, ASKED, ONE, ASKED] {
            assert_eq!(push(&mut waiting, text), None);
        }
        assert_eq!(all(waiting), [ONE, OTHER, ASKED]);
    }

    #[test]
    fn a_jobs_next_fire_supersedes_the_one_that_waits_and_no_request() {
        let mut waiting = Waiting::default();
        for text in [ONE, ASKED, OTHER] {
            push(&mut waiting, text);
        }
        assert_eq!(push(&mut waiting, TWO), Some(fire(ONE)));
        assert_eq!(all(waiting), [ASKED, OTHER, TWO]);
    }

    #[test]
    fn a_queue_that_nobody_takes_from_does_not_grow() {
        let mut waiting = Waiting::default();
        let first: crate::schedule::Timestamp = "2026-11-30T00:00:00Z".parse().unwrap();
        for second in 0..10_000 {
            for job in ["a", "b"] {
                let at = first + chrono::TimeDelta::seconds(second);
                let fire = Fire::new(job.parse().unwrap(), FireId::scheduled(at));
                waiting.push(fire, Priority::default());
            }
        }
        assert_eq!((waiting.queue.len(), waiting.there.len()), (2, 2));
        assert_eq!(all(waiting), ["a/20261130T024639Z", "b/20261130T024639Z"]);
    }

    #[test]
    fn one_that_was_taken_off_is_superseded_by_none() {
        let mut waiting = Waiting::default();
        push(&mut waiting, ONE);
        assert_eq!(waiting.pop(), Some(fire(ONE)));
        assert_eq!(push(&mut waiting, TWO), None);
        assert_eq!(push(&mut waiting, ONE), Some(fire(TWO)));
    }

    #[test]
    fn the_fires_of_a_job_that_is_gone_are_let_go_of() {
        let mut waiting = Waiting::default();
        for text in [ONE, OTHER, ASKED] {
            push(&mut waiting, text);
        }
        waiting.forget(&"a".parse().unwrap());
        assert_eq!(push(&mut waiting, TWO), None);
        assert_eq!(all(waiting), [OTHER, TWO]);
    }
}
