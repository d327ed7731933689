//! The queue for a slot: fires that this node would race for if it could run them.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::fire::{Fire, FireId};
use crate::job::JobName;

/// Fires in the order in which they came. Of the scheduled fires of one job only the newest waits.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// May also hold fires that do not wait any more: those are passed over.
    queue: VecDeque<Fire>,
    there: HashSet<Fire>,
    scheduled: HashMap<JobName, Fire>,
}

/// How many fires that do not wait any more the queue may hold, beyond as many as those that do.
const MOST_STALE: usize = 64;

impl Waiting {
    /// Puts a fire at the end, if it does not wait already. Returns the fire that it supersedes.
    pub fn push(&mut self, fire: Fire) -> Option<Fire> {
        if !self.there.insert(fire.clone()) {
            return None;
        }
        if self.queue.len() > 2 * self.there.len() + MOST_STALE {
            // Else it would grow for as long as no slot is free.
            self.queue.retain(|fire| self.there.contains(fire));
        }
        self.queue.push_back(fire.clone());
        let FireId::Scheduled(_) = fire.id else { return None };
        let older = self.scheduled.insert(fire.job.clone(), fire)?;
        self.there.remove(&older);
        Some(older)
    }

    /// Lets go of an older scheduled fire of the same job, which another node may have the newer one of. Returns it.
    pub fn supersede(&mut self, by: &Fire) -> Option<Fire> {
        let older = self.scheduled.get(&by.job).filter(|older| older.scheduled_at() < by.scheduled_at())?;
        let older = older.clone();
        self.scheduled.remove(&by.job);
        self.there.remove(&older);
        Some(older)
    }

    /// Takes the first one off.
    pub fn pop(&mut self) -> Option<Fire> {
        loop {
            let fire = self.queue.pop_front()?;
            if self.there.remove(&fire) {
                if self.scheduled.get(&fire.job) == Some(&fire) {
                    self.scheduled.remove(&fire.job);
                }
                return Some(fire);
            }
        }
    }

    /// Lets go of a job's fires.
    pub fn forget(&mut self, job: &JobName) {
        self.there.retain(|fire| fire.job != *job);
        self.scheduled.remove(job);
    }

    pub fn clear(&mut self) {
        *self = Waiting::default();
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

    #[test]
    fn fires_come_out_in_the_order_they_came_and_each_once() {
        let mut waiting = Waiting::default();
        for text in [ONE, OTHER, ASKED, ONE, ASKED] {
            assert_eq!(waiting.push(fire(text)), None);
        }
        assert_eq!(all(waiting), [ONE, OTHER, ASKED]);
    }

    #[test]
    fn a_jobs_next_fire_supersedes_the_one_that_waits_and_no_request() {
        let mut waiting = Waiting::default();
        for text in [ONE, ASKED, OTHER] {
            waiting.push(fire(text));
        }
        assert_eq!(waiting.push(fire(TWO)), Some(fire(ONE)));
        assert_eq!(all(waiting), [ASKED, OTHER, TWO]);
    }

    #[test]
    fn a_queue_that_nobody_takes_from_does_not_grow() {
        let mut waiting = Waiting::default();
        let first: crate::schedule::Timestamp = "2026-11-30T00:00:00Z".parse().unwrap();
        for second in 0..10_000 {
            for job in ["a", "b"] {
                let at = first + chrono::TimeDelta::seconds(second);
                waiting.push(Fire::new(job.parse().unwrap(), FireId::scheduled(at)));
            }
        }
        assert!(waiting.queue.len() <= 2 * 2 + MOST_STALE + 1, "{}", waiting.queue.len());
        assert_eq!(all(waiting), ["a/20261130T024639Z", "b/20261130T024639Z"]);
    }

    #[test]
    fn one_that_was_taken_off_is_superseded_by_none() {
        let mut waiting = Waiting::default();
        waiting.push(fire(ONE));
        assert_eq!(waiting.pop(), Some(fire(ONE)));
        assert_eq!(waiting.push(fire(TWO)), None);
        assert_eq!(waiting.push(fire(ONE)), Some(fire(TWO)));
    }

    #[test]
    fn the_fires_of_a_job_that_is_gone_are_let_go_of() {
        let mut waiting = Waiting::default();
        for text in [ONE, OTHER, ASKED] {
            waiting.push(fire(text));
        }
        waiting.forget(&"a".parse().unwrap());
        assert_eq!(waiting.push(fire(TWO)), None);
        assert_eq!(all(waiting), [OTHER, TWO]);
    }
}
