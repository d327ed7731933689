//! Taking back what an earlier life of this node left: locks in the store, and run files on the disk.

use tokio::sync::watch;
use tracing::{info, warn};

use super::{End, Order, Place, close, run, watch_over};
use crate::cgroup::Cgroup;
use crate::child;
use crate::fail_point;
use crate::guard::folder::{Found as FoundFolder, Started, VERSION};
use crate::guard::{FolderName, Guard, RunFolder, Spec};
use crate::job::{Job, Keep};
use crate::race::{self, Claim, Found, Standing};
use crate::record::Outcome;
use crate::run::Written;
use crate::store::StoreError;
use crate::store::values::Promise;

/// Sees to one lock that an earlier life of this node left, to its record.
///
/// What ended is recorded as it ended; what still runs is taken back; what never started is started, if there is time
/// and its job is still there; of the rest nobody knows, so it is recorded as lost. `None`: somebody else has seen to it.
///
/// Errors: the store refuses.
pub async fn take_back(
    place: &Place,
    standing: &mut Standing,
    found: Found,
    job: Option<&Job>,
    orders: watch::Receiver<Order>,
) -> Result<Option<Written>, StoreError> {
    let me = standing.me.clone();
    let name = FolderName { fire: found.fire.clone(), attempt: found.lock.attempt };
    let folder = RunFolder::open(&place.runs, &name);
    let spec = folder.as_ref().and_then(|folder| folder.read_spec().ok()).unwrap_or_else(no_spec);
    let end = match folder.as_ref().map(RunFolder::look).transpose() {
        Ok(Some(FoundFolder::Ended(ended))) => End::Known(ended),
        Ok(Some(FoundFolder::Guarded)) => {
            let folder = folder.as_ref().expect("it was looked into");
            fail_point!("back.connect");
            match Guard::connect(folder).await {
                Ok(guard) => {
                    info!(job = %name.fire.job, fire = %name.fire.id, node = %me.name, "taken back, it runs on");
                    fail_point!("back.watch");
                    watch_over(folder, guard, orders).await
                }
                // It went between the two looks.
                Err(_) => super::gone(folder).await,
            }
        }
        Ok(Some(FoundFolder::Abandoned(started, _lock))) => {
            end_leftovers(&started);
            End::Lost { reason: "the guard was lost".to_owned(), started_at: Some(started.at) }
        }
        // Notes are not synced: after a boot their absence proves nothing.
        Ok(Some(FoundFolder::NeverStarted(_)) | None)
            if found.lock.node_start != me.start && found.lock.promise == Promise::AtMostOnce =>
        {
            End::Lost {
                reason: "the machine went down, and it may have started".to_owned(),
                started_at: None,
            }
        }
        Ok(Some(FoundFolder::NeverStarted(lock))) => {
            let folder = folder.as_ref().expect("it was looked into");
            match lock.void() {
                Ok(()) => {
                    fail_point!("back.again");
                    return start_after_all(place, standing, found, Some(folder), job, orders).await;
                }
                Err(error) => End::Lost { reason: format!("it never started: {error}"), started_at: None },
            }
        }
        Ok(None) => {
            fail_point!("back.fresh");
            return start_after_all(place, standing, found, None, job, orders).await;
        }
        Err(error) => End::Lost { reason: format!("the run file cannot be read: {error}"), started_at: None },
    };
    fail_point!("back.close");
    close(place, &me, found.into_claim(), folder, end, &spec).await.map(Some)
}

/// Starts what was claimed and never started, as the next attempt.
async fn start_after_all(
    place: &Place,
    standing: &mut Standing,
    found: Found,
    former: Option<&RunFolder>,
    job: Option<&Job>,
    orders: watch::Receiver<Order>,
) -> Result<Option<Written>, StoreError> {
    let me = standing.me.clone();
    let too_late = place.clock.now() > found.lock.last_start;
    let (Some(job), false) = (job, too_late) else {
        let reason = match job {
            None => "it never started, and its job is gone",
            Some(_) => "it never started, and now it is too late",
        };
        let end = End::Unstarted { outcome: Outcome::Missed, reason: reason.to_owned() };
        fail_point!("back.unstarted");
        return close(place, &me, found.into_claim(), former.cloned(), end, &no_spec()).await.map(Some);
    };
    info!(job = %found.fire.job, fire = %found.fire.id, node = %me.name, "it never started, starting it now");
    fail_point!("back.claim");
    let claim: Option<Claim> = race::begin_again(&place.store, standing, &place.clock, &found).await?;
    if let Some(folder) = former
        && let Err(error) = folder.remove()
    {
        warn!(folder = %folder.path().display(), %error, "the run file could not be cleared away");
    }
    let Some(claim) = claim else { return Ok(None) };
    fail_point!("back.run");
    run(place, &me, claim, job, orders).await.map(Some)
}

/// Ends what is left of a command whose guard is gone: its cgroup, where it had one, and its session are shown to be
/// empty before anybody may run again.
pub(super) fn end_leftovers(started: &Started) {
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

/// For a folder whose spec was never written: nothing ran.
fn no_spec() -> Spec {
    Spec { v: VERSION, output_cap: Keep::default().output, success_exit: [0].into(), ..Spec::default() }
}
