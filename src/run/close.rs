//! The close: what an attempt came to is made known to the store, and its files are cleared away.

use std::io;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::again::{self, Follows, next_is_owed};
use super::finish::{Written, finish, keep_late};
use super::{Attempt, End, Place};
use crate::fail_point;
use crate::fire::Fire;
use crate::guard::folder::{Found, Owner};
use crate::guard::link::Request;
use crate::guard::{Ended, FolderName, Heard, How, RunFolder, Spec};
use crate::output;
use crate::race::{Claim, Me, Standing};
use crate::record::{Outcome, Record, RunFacts, TAIL, Writer};
use crate::store::StoreError;

/// Has the fire tried again where that is owed, else writes its record; then clears the files away.
pub(super) async fn close(
    place: &Place,
    standing: &Standing,
    mut claim: Claim,
    folder: Option<RunFolder>,
    end: End,
    spec: &Spec,
) -> Result<Attempt, StoreError> {
    let attempt = claim.lock().attempt;
    let now = place.clock.now();
    let is_owed = next_is_owed(&end, claim.lock(), now);
    let mut record = record_of(place, &standing.me, &claim, folder.as_ref(), end, spec);
    let follows = match is_owed {
        true => Follows::Another { due: None },
        false => again::retry(claim.lock(), &record, now, || place.store.random()),
    };
    if follows == Follows::TooLate {
        let why = record.reason.take().map_or(String::new(), |why| format!("{why}; "));
        record.reason = Some(format!("{why}{}", again::TOO_LATE));
    }
    let fire = record.fire.clone();
    let came_to = match follows {
        Follows::Another { due } => {
            fail_point!("run.give_back");
            match again::give_back(place, &mut claim, &record, due).await? {
                Some(found) => Attempt::Again(found),
                // Somebody has taken it over, so it is closed beside that one's record.
                None => {
                    fail_point!("run.fenced");
                    Attempt::Over(finish(&place.together, &place.chains, claim, record).await?)
                }
            }
        }
        Follows::Nothing | Follows::TooLate => {
            fail_point!("run.finish");
            Attempt::Over(finish(&place.together, &place.chains, claim, record).await?)
        }
    };
    if let Attempt::Over(written) = &came_to {
        let record = written.record();
        info!(job = %fire.job, fire = %fire.id, node = %standing.me.name, outcome = %record.outcome,
              reason = record.reason, late = matches!(written, Written::Late(_)), "ended");
    }
    let name = FolderName { fire, attempt };
    if let Some(folder) = folder
        && let Err(error) = clear(place, &standing.me, &folder, &name)
    {
        warn!(folder = %folder.path().display(), %error, "the run file could not be cleared away");
    }
    Ok(came_to)
}

pub(super) fn record_of(
    place: &Place,
    me: &Me,
    claim: &Claim,
    folder: Option<&RunFolder>,
    end: End,
    spec: &Spec,
) -> Record {
    let lock = claim.lock();
    let owner = Owner { node_start: lock.node_start, token: claim.token(), claimed_at: lock.claimed_at };
    let name = FolderName { fire: claim.fire().clone(), attempt: lock.attempt };
    let task = lock.task(claim.fire()).map(Box::new);
    Record { past: lock.past(), task, ..record_by(place, me, &name, owner, folder, end, spec) }
}

/// The record that a run's own node writes of it.
fn record_by(
    place: &Place,
    me: &Me,
    name: &FolderName,
    owner: Owner,
    folder: Option<&RunFolder>,
    end: End,
    spec: &Spec,
) -> Record {
    let Owner { node_start, token, claimed_at } = owner;
    let mut facts = RunFacts::claimed(me.name.clone(), node_start, name.attempt, token, claimed_at);
    let (outcome, reason) = match end {
        End::Lost { reason, started_at } => {
            facts.started_at = started_at;
            (Outcome::Lost, Some(reason))
        }
        End::NeverStarted => {
            (Outcome::Missed, Some("its daemon ended before the command was started".to_owned()))
        }
        End::Unstarted { outcome, reason } => (outcome, Some(reason)),
        End::Known(ended) => {
            facts.started_at = ended.started_at;
            facts.ended_at = Some(ended.ended_at);
            facts.exit_code = ended.exit_code;
            facts.signal = ended.signal;
            facts.output_bytes = ended.output_bytes;
            facts.output_left_out = ended.output_left_out;
            facts.usage = ended.usage;
            let outcome = outcome_of(&ended, spec);
            let lost_output = ended.output_failed.as_ref().map(|why| format!("output is incomplete: {why}"));
            let reason = match ended.how {
                How::CouldNotStart => ended.reason.map(|step| format!("could not start: {step}")),
                How::OutOfTouch => Some(out_of_touch(ended.started_at.is_some()).to_owned()),
                How::Shutdown => Some("shutdown".to_owned()),
                How::Exited | How::TimedOut | How::Cancelled => ended.reason,
            };
            (outcome, reason.or(lost_output))
        }
    };
    let tail = folder
        .filter(|_| outcome != Outcome::Succeeded)
        .and_then(|folder| output::read(&folder.output()).ok())
        .map(|kept| kept.last(TAIL))
        .filter(|tail| !tail.is_empty());
    Record {
        span: None,
        fire: name.fire.clone(),
        outcome,
        reason,
        run: Some(facts),
        past: Vec::new(),
        writer: Writer::Node { node: me.name.clone(), node_start: me.start },
        written_at: place.clock.now(),
        tail,
        task: None,
        set_off: Vec::new(),
    }
}

fn outcome_of(ended: &Ended, spec: &Spec) -> Outcome {
    match ended.how {
        How::TimedOut => Outcome::TimedOut,
        How::Cancelled => Outcome::Cancelled,
        How::CouldNotStart => Outcome::Failed,
        // Its node was lost to the others, as far as they could know.
        How::OutOfTouch | How::Shutdown => Outcome::Lost,
        // Only an exit code can be a success; a signal never is.
        How::Exited => match ended.exit_code.and_then(|code| u8::try_from(code).ok()) {
            Some(code) if spec.success_exit.contains(&code) => Outcome::Succeeded,
            _ => Outcome::Failed,
        },
    }
}

fn out_of_touch(started: bool) -> &'static str {
    match started {
        true => "stopped: the node was out of touch with the store for as long as the hold allows",
        false => "not started: the node was out of touch with the store for as long as the hold allows",
    }
}

/// Where the output of an attempt is kept once it has its record.
pub fn kept_output(outputs: &Path, fire: &Fire, attempt: u32) -> PathBuf {
    outputs.join(fire.job.as_str()).join(format!("{},{},{attempt}", fire.lane, fire.id))
}

/// Clears a run's files away: its output to where it is kept, what they tell into the node's journal.
pub(super) fn clear(place: &Place, me: &Me, folder: &RunFolder, name: &FolderName) -> io::Result<()> {
    let from = folder.output();
    // A run that wrote nothing leaves no file.
    if output::written(&from).is_ok_and(|bytes| bytes > 0) {
        let to = kept_output(&place.outputs, &name.fire, name.attempt);
        let keep = || std::fs::rename(&from, &to);
        keep().or_else(|_| {
            std::fs::create_dir_all(to.parent().expect("a job's folder is above"))?;
            keep()
        })?;
    }
    place.journal.take_up(&me.name, name, folder, place.clock.now())
}

/// Sees to the files of a run whose fire has no lock of this node: its record is written, its claim never was made, or
/// somebody else has closed it. What still runs is ended, since nothing allows it any more; a result that the store
/// does not know yet is kept beside the record of who closed the fire.
///
/// Errors: the files cannot be read; or the store refuses.
pub async fn clear_orphan(
    place: &Place,
    me: &Me,
    name: &FolderName,
    folder: &RunFolder,
) -> anyhow::Result<()> {
    let end = match folder.look()? {
        Found::Guarded => {
            warn!(job = %name.fire.job, fire = %name.fire.id, "a command runs without a lock, ending it");
            fail_point!("orphan.end");
            end_orphan(place, folder).await?
        }
        Found::Abandoned(started, _lock) => {
            super::take_back::end_leftovers(place, &started);
            None
        }
        Found::Ended(ended) => Some(ended),
        Found::NeverStarted(lock) => {
            // Whoever spawned here is gone, and nothing it sent may start any more.
            lock.void()?;
            None
        }
    };
    let spec = folder.read_spec().ok();
    if let (Some(ended), Some(spec)) = (end, spec)
        && let Some(owner) = &spec.owner
    {
        let record = record_by(place, me, name, owner.clone(), Some(folder), End::Known(ended), &spec);
        fail_point!("orphan.late");
        keep_late(place.together.store(), &record).await?;
    }
    Ok(clear(place, me, folder, name)?)
}

/// Ends a command that nothing allows, and waits until it is gone.
async fn end_orphan(place: &Place, folder: &RunFolder) -> io::Result<Option<Ended>> {
    let mut guard = place.guards.connect(folder).await?;
    guard.ask(&Request::Kill { reason: "no lock allows it any more".to_owned() }).await;
    loop {
        match guard.hear().await {
            Heard::Started(_) | Heard::Holds(_) => {}
            Heard::Ended(ended) => return Ok(Some(ended)),
            Heard::Gone => return Ok(None),
        }
    }
}
