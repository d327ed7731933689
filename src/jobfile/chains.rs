//! Jobs that come after others: none may come after itself, however long the way round.

use std::collections::{BTreeMap, BTreeSet};

use super::found::{Found, Spot};
use super::remark::quoted;
use crate::job::{Job, JobName, RunOn};

/// Refuses circles, each shown whole and once, and predecessors that run on every node. One that is not among these
/// jobs may be another source's.
pub(super) fn check(jobs: &[Job], spots: &BTreeMap<JobName, Spot>, found: &mut Found) {
    let by_name: BTreeMap<&JobName, &Job> = jobs.iter().map(|job| (&job.name, job)).collect();
    let mut done = BTreeSet::new();
    for job in jobs {
        let Some(spot) = spots.get(&job.name) else { continue };
        for before in job.after.iter().flat_map(|after| &after.jobs) {
            match by_name.get(before) {
                Some(before) if before.run_on == RunOn::EveryNode => {
                    let message =
                        format!("after names {}, which runs on every node", quoted(before.name.as_str()));
                    found.mistake(spot, message, "only the end of a run on one node sets others off");
                }
                Some(_) => {}
                None => {
                    let message =
                        format!("after names {}, which is not in these files", quoted(before.as_str()));
                    found.warning(spot, message, "it is waited for if another source has it");
                }
            }
        }
        if let Some(circle) = circle_from(&job.name, &by_name, &mut done) {
            let names: Vec<_> = circle.iter().map(|name| name.as_str()).collect();
            let message = format!("a circle of jobs that come after each other: {}", names.join(" after "));
            let spot = circle.iter().find_map(|name| spots.get(*name)).unwrap_or(spot);
            found.mistake(spot, message, "each would wait for itself; leave one of them out of an after");
        }
    }
}

/// The first circle that is met from a job on, its first one again at its end. `done`: jobs that have been seen to.
fn circle_from<'j>(
    job: &'j JobName,
    jobs: &BTreeMap<&'j JobName, &'j Job>,
    done: &mut BTreeSet<&'j JobName>,
) -> Option<Vec<&'j JobName>> {
    let before = |job: &JobName| {
        let after = jobs.get(job).and_then(|job| job.after.as_ref());
        after.into_iter().flat_map(|after| &after.jobs)
    };
    // Each job on the way with those before it that are not looked at yet. Not by recursion: a file may have a hundred
    // thousand jobs, one after the other.
    let mut way = Vec::new();
    if done.insert(job) {
        way.push((job, before(job)));
    }
    while let Some((_, left)) = way.last_mut() {
        let Some(next) = left.next() else {
            way.pop();
            continue;
        };
        if let Some(start) = way.iter().position(|(job, _)| *job == next) {
            return Some(way[start..].iter().map(|(job, _)| *job).chain([next]).collect());
        }
        if let Some((next, _)) = jobs.get_key_value(next)
            && done.insert(next)
        {
            way.push((next, before(next)));
        }
    }
    None
}
