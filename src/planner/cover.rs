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
pub const MOST_STRETCHES: usize = 30;

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
        let while_same =
            |until: Timestamp| before_pause(if was_away { until.min(self.up_since) } else { until });
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
                let caught_up =
                    was_away.then(|| self.dues.newest(at - SECOND, self.up_since, MOST_CAUGHT_UP))?;
                let oldest = caught_up.first().filter(|oldest| **oldest > at)?;
                missed("too many were missed", while_same(*oldest - SECOND))
            }
            CatchUp::Latest | CatchUp::None => {
                let newest = self.dues.last_in(at, ripe);
                // One that is not ripe may be decided all the same: no older one is run after it.
                let is_passed = self.decided.range(newest.unwrap_or(at) + SECOND..).next().is_some();
                let until = match is_passed {
                    true => newest.unwrap_or(at),
                    false => newest? - SECOND,
                };
                match was_away {
                    true => missed(self.away, while_same(until)),
                    false => Some(Reason {
                        outcome: Outcome::Skipped,
                        reason: "superseded by a later one",
                        until: while_same(until),
                    }),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fire::Lane;
    use crate::jobfile;
    use crate::planner::Reign;

    fn at(text: &str) -> Timestamp {
        format!("2026-11-30T{text}Z").parse().unwrap()
    }

    /// A lane to be settled, as of 12:00:00.
    struct Case {
        planned: Option<Planned>,
        former: Vec<Reign>,
        floor: &'static str,
        decided: Vec<(&'static str, &'static str)>,
        pauses: Vec<(&'static str, &'static str)>,
        up_since: &'static str,
        is_runnable: bool,
        until: &'static str,
    }

    fn planned(fields: &str) -> Planned {
        let text = format!("[jobs.a]\ncommand = 'true'\n{fields}\n");
        let files = [jobfile::SourceFile { path: "jobs.toml", text: &text }];
        let job = Arc::new(jobfile::parse(&files).unwrap().jobs.remove(0));
        Planned { job, definition: 1, since: at("00:00:00"), lane: Some(Lane::OneNode) }
    }

    fn case(fields: &str, floor: &'static str) -> Case {
        Case {
            planned: Some(planned(fields)),
            former: Vec::new(),
            floor,
            decided: Vec::new(),
            pauses: Vec::new(),
            up_since: "00:00:00",
            is_runnable: true,
            until: "12:00:00",
        }
    }

    /// `FIRST..LAST xCOUNT OUTCOME REASON` for each stretch, then the floor, then what is open.
    #[track_caller]
    fn check(case: Case, stretches: &[&str], floor: &str, open: Option<&str>) {
        let now = at("12:00:00");
        let pair = |(one, other): &(&str, &str)| (at(one), at(other));
        let in_force = case.planned.as_ref().map(|planned| Reign {
            job: planned.job.clone(),
            since: planned.since,
            until: None,
            removed: false,
        });
        let cover = cover(&Sight {
            planned: case.planned.as_ref(),
            dues: &Dues::new(case.former.into_iter().chain(in_force)),
            floor: at(case.floor),
            decided: &case.decided.iter().map(pair).collect(),
            until: at(case.until),
            now,
            pauses: &case.pauses.iter().map(pair).collect::<Vec<_>>(),
            up_since: at(case.up_since),
            away: "away",
            is_runnable: case.is_runnable,
        });
        let time = |at: Timestamp| at.format("%H:%M:%S").to_string();
        let texts: Vec<_> = cover
            .stretches
            .iter()
            .map(|stretch| {
                let Stretch { first, last, count, outcome, reason } = stretch;
                format!("{}..{} x{count} {outcome} {reason}", time(*first), time(*last))
            })
            .collect();
        assert_eq!(texts, stretches);
        assert_eq!((time(cover.floor).as_str(), cover.open.map(time).as_deref()), (floor, open));
    }

    const TENTHS: &str = "schedule = '*/10 * * * *'";
    const SECONDS: &str = "schedule = '@every 1s'";

    #[test]
    fn the_floor_moves_over_what_is_decided_and_stops_at_what_may_still_run() {
        let decided = vec![("11:10:00", "11:10:00"), ("11:20:00", "11:30:00"), ("11:50:00", "11:50:00")];
        check(
            Case { decided: decided.clone(), ..case(TENTHS, "11:00:00") },
            &["11:40:00..11:40:00 x1 skipped superseded by a later one"],
            "11:50:00",
            None,
        );
        let all = "schedule = '*/10 * * * *'\ncatch_up = 'all'";
        check(Case { decided, ..case(all, "11:00:00") }, &[], "11:30:00", Some("11:40:00"));
        // The last ten seconds are left to those who race.
        let to_now = vec![("11:59:49", "11:59:49")];
        check(
            Case { decided: to_now.clone(), ..case(SECONDS, "11:59:48") },
            &[],
            "11:59:49",
            Some("11:59:50"),
        );
        check(
            Case { until: "11:59:49", decided: to_now, ..case(SECONDS, "11:59:48") },
            &[],
            "11:59:49",
            None,
        );
    }

    #[test]
    fn a_night_without_nodes_is_one_stretch_and_the_newest_fire_is_open() {
        let night = || Case { up_since: "11:58:00", ..case(SECONDS, "01:00:00") };
        let first = "01:00:01..11:58:00 x39480 missed away";
        // The newest that is ripe supersedes all before it.
        check(
            night(),
            &[first, "11:58:01..11:59:49 x109 skipped superseded by a later one"],
            "11:59:49",
            Some("11:59:50"),
        );
        // One that ran in the middle parts it.
        let decided = vec![("05:00:00", "05:00:00")];
        let parts = [
            "01:00:01..04:59:59 x14399 missed away",
            "05:00:01..11:58:00 x25080 missed away",
            "11:58:01..11:59:49 x109 skipped superseded by a later one",
        ];
        check(Case { decided, ..night() }, &parts, "11:59:49", Some("11:59:50"));
    }

    #[test]
    fn each_policy_leaves_open_what_it_says() {
        let away = |fields: &str| Case { up_since: "11:55:00", ..case(fields, "09:00:00") };
        check(away(TENTHS), &["09:10:00..11:40:00 x16 missed away"], "11:40:00", Some("11:50:00"));
        let all = "schedule = '*/10 * * * *'\ncatch_up = 'all'";
        check(away(all), &["09:10:00..10:50:00 x11 missed away"], "10:50:00", Some("11:00:00"));
        let none = "schedule = '*/10 * * * *'\ncatch_up = 'none'";
        check(away(none), &["09:10:00..11:50:00 x17 missed away"], "11:50:00", None);
        let within = "schedule = '*/10 * * * *'\nstart_within = '5m'";
        check(away(within), &["09:10:00..11:50:00 x17 missed away"], "11:50:00", None);
        let many = "schedule = '@every 1s'\ncatch_up = 'all'";
        check(
            Case { up_since: "11:55:00", ..case(many, "11:50:00") },
            &["11:50:01..11:53:20 x200 missed too many were missed"],
            "11:53:20",
            Some("11:53:21"),
        );
    }

    #[test]
    fn what_nobody_could_run_in_time_is_missed() {
        let within = "schedule = '*/10 * * * *'\nstart_within = '15m'";
        check(
            case(within, "11:00:00"),
            &["11:10:00..11:40:00 x4 missed too late"],
            "11:40:00",
            Some("11:50:00"),
        );
        check(
            Case { is_runnable: false, ..case(within, "11:00:00") },
            &["11:10:00..11:40:00 x4 missed no node could run it"],
            "11:40:00",
            Some("11:50:00"),
        );
    }

    #[test]
    fn none_is_open_behind_which_a_later_one_is_decided() {
        let decided = vec![("11:59:55", "11:59:55")];
        let stretch = "11:59:41..11:59:50 x10 skipped superseded by a later one";
        check(Case { decided, ..case(SECONDS, "11:59:40") }, &[stretch], "11:59:50", None);
    }

    #[test]
    fn what_came_due_in_a_pause_is_missed_for_that() {
        let pauses = vec![("11:15:00", "11:40:00"), ("11:45:00", "12:30:00")];
        check(
            Case { pauses, ..case(TENTHS, "11:00:00") },
            &[
                "11:10:00..11:10:00 x1 skipped superseded by a later one",
                "11:20:00..11:30:00 x2 missed paused",
                "11:40:00..11:40:00 x1 skipped superseded by a later one",
                "11:50:00..11:50:00 x1 missed paused",
            ],
            "11:50:00",
            None,
        );
    }

    #[test]
    fn what_a_former_definition_owed_is_settled_up_to_its_end() {
        let hourly = |until: &str, removed| Reign {
            job: planned("schedule = '0 * * * *'").job,
            since: at("00:00:00"),
            until: Some(at(until)),
            removed,
        };
        let mut now = planned(TENTHS);
        now.since = at("11:35:00");
        let changed =
            Case { planned: Some(now), former: vec![hourly("11:35:00", false)], ..case(TENTHS, "09:00:00") };
        check(
            changed,
            &[
                "10:00:00..11:00:00 x2 missed the job was changed",
                "11:40:00..11:40:00 x1 skipped superseded by a later one",
            ],
            "11:40:00",
            Some("11:50:00"),
        );
        let gone = Case { planned: None, former: vec![hourly("11:35:00", true)], ..case(TENTHS, "09:00:00") };
        check(gone, &["10:00:00..11:00:00 x2 missed the job was removed"], "11:00:00", None);
        // Only its command was changed: the fire is still owed.
        let edited =
            Case { former: vec![hourly("11:35:00", false)], ..case("schedule = '0 * * * *'", "10:00:00") };
        check(edited, &[], "10:00:00", Some("11:00:00"));
    }
}
