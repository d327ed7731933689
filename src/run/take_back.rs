//! Taking back what is this node's: what an earlier life of it left, locks in the store and run files on the disk; and
//! locks that waited for their next attempt.

use tokio::sync::watch as channel;
use tracing::{info, warn};

use super::again::{self, Next};
use super::close::{clear, close};
use super::spec::no_spec;
use super::watch::{Watch, Watched};
use super::{Attempt, CameTo, End, Order, Place, run};
use crate::cgroup::Cgroup;
use crate::child;
use crate::fail_point;
use crate::guard::folder::{Found as FoundFolder, Started};
use crate::guard::{FolderName, Guards, RunFolder};
use crate::job::{Job, Promise};
use crate::mutant;
use crate::race::{Found, Me, Standing};
use crate::store::StoreError;
use crate::store::values::LockState;

/// Sees to one lock of this node that no task of this daemon has in hand.
///
/// What ended is recorded as it ended; what still runs is taken back; what never started, waits or was lost is tried
/// again, when it is time, if its job is still there and its promise allows it.
///
/// Errors: the store refuses.
pub async fn take_back(
    place: &Place,
    standing: &mut Standing,
    found: Found,
    job: Option<&Job>,
    mut orders: channel::Receiver<Order>,
) -> Result<CameTo, StoreError> {
    let _holding = standing.hold();
    let came_to = match found.lock.state {
        LockState::Waiting => {
            clear_what_is_over(place, &standing.me, &found);
            Attempt::Again(found)
        }
        LockState::Held => see_to(place, standing, found, &mut orders).await?,
    };
    let found = match came_to {
        Attempt::Over(written) => return Ok(CameTo::Over(Box::new(written))),
        Attempt::Parted => return Ok(CameTo::Parted),
        Attempt::Again(found) => found,
    };
    fail_point!("back.again");
    match (again::begin(place, standing, found, job, &mut orders).await?, job) {
        (Next::Claimed(claim), Some(job)) => {
            fail_point!("back.run");
            run(place, standing, claim, job, orders).await
        }
        (Next::Over(written), _) => Ok(CameTo::Over(Box::new(written))),
        (Next::Waits(found), _) => Ok(CameTo::Waits(Box::new(found))),
        (Next::Claimed(_) | Next::Left, _) => Ok(CameTo::Parted),
    }
}

/// Clears the files away of an attempt that the lock tells to be over: the daemon before this one may have come no
/// further than to say so.
fn clear_what_is_over(place: &Place, me: &Me, found: &Found) {
    let name = FolderName { fire: found.fire.clone(), attempt: found.lock.attempt };
    let Some(folder) = RunFolder::open(&place.runs, &name) else { return };
    if let Err(error) = clear(place, me, &folder, &name) {
        warn!(folder = %folder.path().display(), %error, "the run file could not be cleared away");
    }
}

/// Sees to the attempt that a lock speaks of.
async fn see_to(
    place: &Place,
    standing: &mut Standing,
    found: Found,
    orders: &mut channel::Receiver<Order>,
) -> Result<Attempt, StoreError> {
    let me = standing.me.clone();
    let name = FolderName { fire: found.fire.clone(), attempt: found.lock.attempt };
    let folder = RunFolder::open(&place.runs, &name);
    let spec = folder.as_ref().and_then(|folder| folder.read_spec().ok()).unwrap_or_else(no_spec);
    let earlier_boot = found.lock.node_start != me.start;
    let promise = found.lock.promise();
    // The locks were listed after the registration: what they show was this node's then.
    let mut claim = found.into_claim(standing.in_touch());
    let end = match folder.as_ref().map(RunFolder::look).transpose() {
        Ok(Some(FoundFolder::Ended(_))) if mutant!("result-not-looked-for") => {
            End::Lost { reason: "the guard was lost".to_owned(), started_at: None }
        }
        Ok(Some(FoundFolder::Ended(ended))) => End::Known(ended),
        Ok(Some(FoundFolder::Guarded)) => {
            let folder = folder.as_ref().expect("it was looked into");
            let watch = Watch { place, standing, claim: &mut claim, folder, spec: &spec, shown: None };
            fail_point!("back.connect");
            let guard = match place.guards.connect(folder).await {
                Ok(guard) => Ok(guard),
                // It went between the two looks, or has not begun to listen yet.
                Err(_) => watch.find_again().await,
            };
            match guard {
                Ok(guard) => {
                    info!(job = %name.fire.job, fire = %name.fire.id, node = %me.name, "taken back, it runs on");
                    fail_point!("back.watch");
                    match watch.until_the_end(guard, orders).await {
                        Watched::Ended(end) => end,
                        Watched::Parted => return Ok(Attempt::Parted),
                    }
                }
                Err(end) => end,
            }
        }
        Ok(Some(FoundFolder::Abandoned(started, _lock))) => {
            end_leftovers(place, &started);
            End::Lost { reason: "the guard was lost".to_owned(), started_at: Some(started.at) }
        }
        // Notes are not synced: after a boot their absence proves nothing.
        Ok(Some(FoundFolder::NeverStarted(_)) | None) if earlier_boot && promise == Promise::AtMostOnce => {
            let reason = "the machine went down, and it may have started".to_owned();
            End::Lost { reason, started_at: None }
        }
        Ok(Some(FoundFolder::NeverStarted(lock))) => match lock.void() {
            Ok(()) => End::NeverStarted,
            Err(error) => End::Lost { reason: format!("it never started: {error}"), started_at: None },
        },
        Ok(None) => End::NeverStarted,
        Err(error) => End::Lost { reason: format!("the run file cannot be read: {error}"), started_at: None },
    };
    fail_point!("back.close");
    close(place, standing, claim, folder, end, &spec).await
}

/// Ends what is left of a command whose guard is gone: its cgroup, where it had one, and its session are shown to be
/// empty before anybody may run again.
pub(super) fn end_leftovers(place: &Place, started: &Started) {
    if mutant!("leftovers-live-on") {
        return;
    }
    if let Guards::Simulated(host) = &place.guards {
        host.end_leftovers(started.guard);
        return;
    }
    // After a boot nothing of it can be left.
    if child::boot_id().ok().as_deref() != Some(&started.boot) {
        return;
    }
    // All that the command started, whatever session it made; what a run that ended left behind has another cgroup.
    if let Some(cgroup) = started.cgroup.clone()
        && let Err(error) = Cgroup::at(cgroup).end()
    {
        warn!(session = started.guard.pid, %error, "the cgroup of a lost run could not be emptied");
    }
    for _ in 0..100 {
        match child::session_members(started.guard.pid) {
            Ok(members) if members.is_empty() => return,
            Ok(members) => {
                for pid in members {
                    if let Err(error) = child::signal_one(pid, nix::sys::signal::Signal::SIGKILL) {
                        warn!(%pid, %error, "a process of a lost run could not be ended");
                    }
                }
            }
            Err(error) => {
                warn!(%error, "processes of a lost run could not be looked for");
                return;
            }
        }
        std::thread::yield_now();
    }
    warn!(session = started.guard.pid, "processes of a lost run do not end");
}
