//! A run: one fire in this node's hands, from its claim to its record, over as many attempts as it takes.
//!
//! [`run`] starts the guard of a claim and sees it to its end; [`take_back`] does the same for what an earlier life of
//! this node left behind. Each attempt ends in one of three ways: its result is the fire's [record](finish); the fire
//! is [tried again](again); or this daemon parts from a command that goes on without it. Only when the store knows are
//! the run's files cleared away, so a result that cannot be written now is written by the next life.

mod account;
mod again;
mod close;
mod finish;
mod spec;
mod take_back;
mod take_over;
mod watch;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch as channel;
use tracing::{info, warn};

pub use account::Account;
pub use again::may_run_again;
pub use close::{clear_orphan, kept_output};
pub use finish::{Written, finish};
pub use take_back::take_back;
pub use take_over::take_over;

use self::again::Next;
use self::spec::spec_of;
use self::watch::{Watch, Watched};
use crate::child::plain;
use crate::clock::Clock;
use crate::config::Policy;
use crate::fail_point;
use crate::fire::Lane;
use crate::guard::{Ended, FolderName, Guard, Guards, RunFolder, Spec};
use crate::job::{Job, Overlap, Promise};
use crate::journal::Journal;
use crate::race::{self, Chains, Claim, InTouch, Standing, Verified};
use crate::record::Outcome;
use crate::schedule::Timestamp;
use crate::store::{Store, StoreError, Together};

/// Where this node runs commands.
#[derive(Clone)]
pub struct Place {
    pub store: Store,
    /// The same store, for what is sent in company.
    pub together: Together,
    pub clock: Clock,
    /// The folder of the run files.
    pub runs: PathBuf,
    /// The folder of the output that is kept: see [`kept_output`].
    pub outputs: PathBuf,
    /// What this node writes down of what it ran.
    pub journal: Journal,
    pub guards: Guards,
    /// The folder of the runs' cgroups, where this node may make some.
    pub cgroups: Option<PathBuf>,
    pub account: Account,
    pub policy: Policy,
    /// What the end of a run sets off.
    pub chains: Chains,
}

/// What the daemon wants of a run under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    GoOn,
    /// Ask it to stop, insist after its `kill_after`.
    Cancel(String),
    /// The daemon goes: the command may go on for so long without one.
    Part {
        stop_hold: Duration,
    },
    /// The machine goes down: ask it to stop, insist after its `kill_after`, and let others have the fire.
    Shutdown,
}

/// How a run is known to have ended.
enum End {
    Known(Ended),
    /// The guard is gone without a word: what became of the command, nobody saw.
    Lost {
        reason: String,
        started_at: Option<Timestamp>,
    },
    /// Claimed, and then its daemon was gone: it is certain that nothing was started.
    NeverStarted,
    /// The same, for a reason that stands.
    Unstarted {
        outcome: Outcome,
        reason: String,
    },
}

/// What a fire that was in this node's hands came to.
#[derive(Debug)]
pub enum CameTo {
    /// It has its record.
    Over(Box<Written>),
    /// Its lock waits for the instant of its next attempt, to be [taken back](take_back) then.
    Waits(Box<race::Found>),
    /// It goes on without this daemon, or is somebody else's.
    Parted,
}

/// Runs a claim to its record, or until it waits for its next attempt.
///
/// Errors: the result could not be written; it is kept in the run file for the next life of this node.
pub async fn run(
    place: &Place,
    standing: &mut Standing,
    mut claim: Claim,
    job: &Job,
    mut orders: channel::Receiver<Order>,
) -> Result<CameTo, StoreError> {
    let _holding = standing.hold();
    loop {
        match attempt(place, standing, claim, job, &mut orders).await? {
            Attempt::Over(written) => return Ok(CameTo::Over(Box::new(written))),
            Attempt::Parted => return Ok(CameTo::Parted),
            Attempt::Again(found) => {
                fail_point!("run.again");
                match again::begin(place, standing, found, Some(job), &mut orders).await? {
                    Next::Claimed(next) => claim = next,
                    Next::Over(written) => return Ok(CameTo::Over(Box::new(written))),
                    Next::Waits(found) => return Ok(CameTo::Waits(Box::new(found))),
                    Next::Left => return Ok(CameTo::Parted),
                }
            }
        }
    }
}

/// What one attempt came to.
enum Attempt {
    /// The fire has its record.
    Over(Written),
    /// It goes on without this daemon, or is somebody else's.
    Parted,
    /// Its lock waits, for this node or another to begin the next one.
    Again(race::Found),
}

/// One attempt, from its claim.
async fn attempt(
    place: &Place,
    standing: &mut Standing,
    mut claim: Claim,
    job: &Job,
    orders: &mut channel::Receiver<Order>,
) -> Result<Attempt, StoreError> {
    let me = standing.me.clone();
    if let Some(reason) = refusal(place, job).await {
        let end = End::Unstarted { outcome: Outcome::Refused, reason };
        return close::close(place, standing, claim, None, end, &spec::no_spec()).await;
    }
    fail_point!("run.begin");
    match still_fresh(place, standing, &claim).await? {
        Fresh::Yes(in_touch) => claim.confirmed(in_touch),
        Fresh::Lost => {
            info!(job = %claim.fire().job, fire = %claim.fire().id, "somebody else has it now, not started");
            return Ok(Attempt::Parted);
        }
        Fresh::TooLate => {
            let reason = "too late: the store was away".to_owned();
            let end = End::Unstarted { outcome: Outcome::Missed, reason };
            return close::close(place, standing, claim, None, end, &spec::no_spec()).await;
        }
    }
    let name = FolderName { fire: claim.fire().clone(), attempt: claim.lock().attempt };
    let mut spec = spec_of(place, &me, &claim, &name, job);
    let (folder, ended) = match start(place, &name, &spec).await {
        Ok((folder, guard)) => {
            // The guard has it now; a node may have a thousand runs.
            (spec.argv, spec.env) = Default::default();
            info!(job = %name.fire.job, fire = %name.fire.id, node = %me.name, attempt = name.attempt,
                  token = claim.token(), "started");
            let shown = Some(claim.in_touch());
            let watch = Watch { place, standing, claim: &mut claim, folder: &folder, spec: &spec, shown };
            let watched = watch.until_the_end(guard, orders).await;
            let Watched::Ended(end) = watched else { return Ok(Attempt::Parted) };
            (Some(folder), end)
        }
        Err(error) => {
            warn!(job = %name.fire.job, fire = %name.fire.id, %error, "the guard could not be started");
            let reason = format!("could not start: {error}");
            (RunFolder::open(&place.runs, &name), End::Unstarted { outcome: Outcome::Failed, reason })
        }
    };
    close::close(place, standing, claim, folder, ended, &spec).await
}

/// Whether a claim may still be started.
enum Fresh {
    Yes(InTouch),
    Lost,
    TooLate,
}

/// A claim that has grown stale, or that is from before a loss of the lease, is looked at again before it is used: it
/// may be somebody else's by now.
async fn still_fresh(place: &Place, standing: &mut Standing, claim: &Claim) -> Result<Fresh, StoreError> {
    let in_touch = claim.in_touch();
    let losses = standing.registration().await.losses();
    let age = place.clock.since_boot().saturating_sub(in_touch.at);
    if in_touch.losses == losses && age < STALE {
        return Ok(Fresh::Yes(in_touch));
    }
    fail_point!("run.verify");
    let verified = race::verify(&place.together, standing, &place.clock, claim.fire(), claim.lock()).await?;
    Ok(match verified {
        Verified::Lost => Fresh::Lost,
        Verified::Mine(_) if place.clock.now() > claim.lock().last_start => Fresh::TooLate,
        Verified::Mine(in_touch) => Fresh::Yes(in_touch),
    })
}

/// The hold of the locks of a job's fires in a lane. None where nobody else may run them: then nothing has to end them
/// in time.
pub fn hold_of(job: &Job, lane: &Lane) -> Option<Duration> {
    let unshared = job.overlap == Overlap::Allow && job.promise == Promise::AtMostOnce;
    let nobody_else = unshared || *lane != Lane::OneNode;
    (!nobody_else).then_some(job.hold)
}

/// A claim of this age is looked at again. Less than any guard waits for before it stops a command.
const STALE: Duration = Duration::from_secs(3);

/// Why this node does not run such a job, if it does not.
async fn refusal(place: &Place, job: &Job) -> Option<String> {
    let (account, policy, user) = (place.account.clone(), place.policy.clone(), job.terms.user.clone());
    let refuses = move || account.refuses(&policy, user.as_deref());
    if place.policy.root {
        return refuses();
    }
    // The user database may be far away.
    let looked_up = tokio::task::spawn_blocking(refuses).await;
    looked_up.unwrap_or_else(|error| Some(format!("the user could not be looked up: {error}")))
}

/// Makes the run file and spawns the guard.
async fn start(place: &Place, name: &FolderName, spec: &Spec) -> io::Result<(RunFolder, Guard)> {
    let (folder, lock) = RunFolder::create(&place.runs, name)
        // Without its path one would look for the fault in the command.
        .map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {}", place.runs.display(), plain(&error)))
        })?;
    fail_point!("run.spawn");
    let guard = place.guards.spawn(&folder, lock, spec).await?;
    Ok((folder, guard))
}
