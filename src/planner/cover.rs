//! Settling a lane: how far it is decided, and which fires in it nobody is going to run.
//!
//! Pure: it is told what a look at the store has shown. Its work goes with the stretches that lie between decided fires
//! and with the reasons, not with the fires, so a weekend of `@every 1s` is one stretch.

use std::collections::BTreeMap;

use chrono::TimeDelta;

use super::{Dues, MOST_CAUGHT_UP, Planned};
use crate::job::CatchUp;
use crate::record::Outcome;
use crate::schedule::Timestamp;

/// So long after its start a fire is left to those who race for it.
pub const RIPE_AFTER: TimeDelta = TimeDelta::seconds(10);

/// What a look at a lane has shown.
#[derive(Debug)]
pub struct Sight<'a> {
    /// The job as it is now; none when it was removed.
    pub planned: Option<&'a Planned>,
    /// What was due, by the definitions since the floor.
    pub dues: &'a Dues,
    /// All up to here is decided.
    pub floor: Timestamp,
    /// The fires with a lock or a record, each with the last instant that its record stands for.
    pub decided: &'a BTreeMap<Timestamp, Timestamp>,
    /// Nothing is known of what lies behind.
    pub until: Timestamp,
    pub now: Timestamp,
    /// The times in which the job was paused: from the first instant to before the second.
    pub pauses: &'a [(Timestamp, Timestamp)],
    /// Nobody was there to run what was due up to this instant.
    pub up_since: Timestamp,
    /// How that is said.
    pub away: &'static str,
    /// Some node can run it.
    pub is_runnable: bool,
}

/// Fires that nobody is going to run, for one reason, with nothing decided between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: u64,
    pub outcome: Outcome,
    pub reason: &'static str,
}

/// What is to be written about a lane, and what is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cover {
    pub stretches: Vec<Stretch>,
    /// With these written, all up to here is decided.
    pub floor: Timestamp,
    /// The first fire behind the floor that is undecided and may still be run.
    pub open: Option<Timestamp>,
}

/// The most stretches of one transaction: each needs three of the 128 operations that there may be.
const MOST_STRETCHES: usize = 30;

/// How far a lane is decided, or can be.
pub fn cover(sight: &Sight) -> Cover {
    let ripe = sight.ripe();
    let mut cover = Cover { stretches: Vec::new(), floor: sight.floor, open: None };
    while cover.stretches.len() < MOST_STRETCHES {
        let Some(first) = sight.dues.next_after(cover.floor).filter(|first| *first <= ripe) else { break };
        if let Some(last) = sight.decided.get(&first) {
            cover.floor = first.max(*last);
            continue;
        }
        let Some(Reason { outcome, reason, until }) = sight.reason(first, ripe) else {
            cover.open = Some(first);
            break;
        };
        let decided = sight.decided.range(first..).next().map(|(next, _)| *next - SECOND);
        let until = decided.map_or(until, |decided| decided.min(until)).min(ripe);
        let last = sight.dues.last_in(first - SECOND, until).unwrap_or(first);
        let count = sight.dues.count(first - SECOND, last);
        match cover.stretches.last_mut() {
            // For the same reason, by another definition.
            Some(before) if before.last == cover.floor && before.reason == reason => {
                (before.last, before.count) = (last, before.count + count);
            }
            _ => cover.stretches.push(Stretch { first, last, count, outcome, reason }),
        }
        cover.floor = last;
    }
    cover
}

const SECOND: TimeDelta = TimeDelta::seconds(1);

/// Why a fire is not going to be run, and up to which instant that holds.
struct Reason {
    outcome: Outcome,
    reason: &'static str,
    until: Timestamp,
}

impl Sight<'_> {
    /// The last instant whose fires are not left to those who race for them any more.
    fn ripe(&self) -> Timestamp {
        let delay = self.planned.map_or(TimeDelta::zero(), Planned::delay);
        self.until.min(self.now - RIPE_AFTER - delay)
    }

    /// None: it may still be run.
    fn reason(&self, at: Timestamp, ripe: Timestamp) -> Option<Reason> {
        let missed = |reason, until| Some(Reason { outcome: Outcome::Missed, reason, until });
        if let Some((_, end)) = self.pauses.iter().find(|(begin, end)| (*begin..*end).contains(&at)) {
            // Up to the last whole second before it.
            return missed("paused", *end - TimeDelta::nanoseconds(1));
        }
        let before_pause = |until: Timestamp| {
            let begins = self.pauses.iter().map(|(begin, _)| *begin - TimeDelta::nanoseconds(1));
            begins.filter(|begin| *begin >= at).fold(until, Timestamp::min)
        };
        let Some(planned) = self.planned.filter(|planned| at > planned.since) else {
            let ended = self.dues.reign_at(at).filter(|reign| reign.until.is_some());
            let until = ended.and_then(|reign| reign.until).unwrap_or(at);
            return match ended.is_some_and(|reign| reign.removed) {
                true => missed("the job was removed", before_pause(until)),
                false => missed("the job was changed", before_pause(until)),
            };
        };
        let was_away = at <= self.up_since;
        // While nobody was up, and again after that, the same holds for all.
        let while_same = |until: Timestamp| before_pause(if was_away { until.min(self.up_since) } else { until });
        if self.now > planned.last_start(at) {
            let behind = planned.last_start(at) - at;
            let reason = match () {
                () if was_away => self.away,
                () if !self.is_runnable => "no node could run it",
                () => "too late",
            };
            return missed(reason, while_same(self.now - behind - TimeDelta::nanoseconds(1)));
        }
        match planned.job.catch_up {
            CatchUp::None if was_away => missed(self.away, while_same(ripe)),
            CatchUp::All => {
                let caught_up = was_away.then(|| self.dues.newest(at - SECOND, self.up_since, MOST_CAUGHT_UP))?;
                let oldest = caught_up.first().filter(|oldest| **oldest > at)?;
                missed("too many were missed", while_same(*oldest - SECOND))
            }
            CatchUp::Latest | CatchUp::None => {
                let newest = self.dues.last_in(at, ripe)?;
                match was_away {
                    true => missed(self.away, while_same(newest - SECOND)),
                    false => Some(Reason {
                        outcome: Outcome::Skipped,
                        reason: "superseded by a later one",
                        until: while_same(newest - SECOND),
                    }),
                }
            }
        }
    }
}
