//! A run: one claim, from its start to its record.
//!
//! [`run`] starts the guard of a claim and sees it to its end; [`take_back`] does the same for what an earlier life of
//! this node left behind. Both end in [`finish`], and only a finished run's folder is cleared away, so a result that
//! cannot be written now is written by the next life.

mod finish;
mod take_back;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::User;
use tokio::sync::watch;
use tracing::{info, warn};

pub use finish::{Written, finish};
pub use take_back::take_back;

use crate::child::plain;
use crate::clock::Clock;
use crate::config::Policy;
use crate::fail_point;
use crate::fire::Fire;
use crate::guard::folder::{Credential, Found, VERSION};
use crate::guard::link::Request;
use crate::guard::{Ended, FolderName, Guard, Heard, How, RunFolder, Spec};
use crate::job::{Command, Job};
use crate::output;
use crate::race::{Claim, Me};
use crate::record::{Outcome, Record, RunFacts, TAIL, Writer};
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
    /// The guard's executable.
    pub guard: PathBuf,
    /// The folder of the runs' cgroups, where this node may make some.
    pub cgroups: Option<PathBuf>,
    pub account: Account,
    pub policy: Policy,
}

/// What the environment tells of the user that commands run as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub home: String,
    pub shell: String,
    pub is_root: bool,
}

impl Account {
    /// Why this daemon does not run a job as `user`, if it does not.
    fn refuses(&self, policy: &Policy, user: Option<&str>) -> Option<String> {
        let name = user.unwrap_or(&self.name);
        if !self.is_root && name != self.name {
            return Some(format!("this node runs as {} and cannot run commands as {name}", self.name));
        }
        if policy.users.as_ref().is_some_and(|users| !users.contains(name)) {
            return Some(format!("the settings of this node do not allow commands of {name} (allow_users)"));
        }
        if policy.root {
            return None;
        }
        // Another name may have root's number. Who is unknown cannot start anyway.
        let is_root = match User::from_name(name) {
            Ok(user) => user.is_some_and(|user| user.uid.is_root()),
            Err(error) => {
                return Some(format!("whether {name} is root cannot be found out: {}", error.desc()));
            }
        };
        is_root.then(|| "the settings of this node do not allow commands of root (allow_root)".to_owned())
    }

    /// The daemon's own user, from the user database.
    pub fn own() -> io::Result<Account> {
        let uid = nix::unistd::geteuid();
        let user = User::from_uid(uid)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no user has the id {uid}")))?;
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        Ok(Account { name: user.name, home: text(user.dir), shell: text(user.shell), is_root: uid.is_root() })
    }
}

/// What the daemon wants of a run under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    GoOn,
    /// Ask it to stop, insist after its `kill_after`.
    Cancel(String),
    /// End it at once.
    Kill(String),
}

/// Runs a claim to its end and writes the record.
///
/// Errors: the result could not be written; it is kept in the run file for the next life of this node.
pub async fn run(
    place: &Place,
    me: &Me,
    claim: Claim,
    job: &Job,
    orders: watch::Receiver<Order>,
) -> Result<Written, StoreError> {
    let name = FolderName { fire: claim.fire().clone(), attempt: claim.lock().attempt };
    let spec = spec_of(place, me, &claim, &name, job);
    if let Some(reason) = refusal(place, job).await {
        let end = End::Unstarted { outcome: Outcome::Refused, reason };
        return close(place, me, claim, None, end, &spec).await;
    }
    fail_point!("run.begin");
    let (folder, ended) = match begin(place, &name, &spec).await {
        Ok((folder, guard)) => {
            info!(job = %name.fire.job, fire = %name.fire.id, node = %me.name, attempt = name.attempt,
                  token = claim.token(), "started");
            let ended = watch_over(&folder, guard, orders).await;
            (Some(folder), ended)
        }
        Err(error) => {
            warn!(job = %name.fire.job, fire = %name.fire.id, %error, "the guard could not be started");
            let reason = format!("could not start: {error}");
            (RunFolder::open(&place.runs, &name), End::Unstarted { outcome: Outcome::Failed, reason })
        }
    };
    close(place, me, claim, folder, ended, &spec).await
}

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

/// Makes the folder and spawns the guard.
async fn begin(place: &Place, name: &FolderName, spec: &Spec) -> io::Result<(RunFolder, Guard)> {
    let (folder, lock) = RunFolder::create(&place.runs, name)
        // Without its path one would look for the fault in the command.
        .map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {}", place.runs.display(), plain(&error)))
        })?;
    fail_point!("run.spawn");
    let guard = Guard::spawn(&place.guard, &folder, lock, spec).await?;
    Ok((folder, guard))
}

/// How a run is known to have ended.
enum End {
    Known(Ended),
    /// The guard is gone without a word: what became of the command, nobody saw.
    Lost {
        reason: String,
        started_at: Option<Timestamp>,
    },
    /// It is certain that nothing was started.
    Unstarted {
        outcome: Outcome,
        reason: String,
    },
}

/// Hears the guard out, and passes orders on.
async fn watch_over(folder: &RunFolder, mut guard: Guard, mut orders: watch::Receiver<Order>) -> End {
    let mut obeyed = Order::GoOn;
    let ended = loop {
        let order = orders.borrow_and_update().clone();
        if order != obeyed {
            let request = match &order {
                Order::GoOn => None,
                Order::Cancel(reason) => Some(Request::Cancel { reason: reason.clone() }),
                Order::Kill(reason) => Some(Request::Kill { reason: reason.clone() }),
            };
            obeyed = order;
            if let Some(request) = request {
                fail_point!("run.order");
                guard.ask(&request).await;
            }
        }
        fail_point!("run.hear");
        tokio::select! {
            heard = guard.hear() => match heard {
                Heard::Started(_) | Heard::Holds(_) => {}
                Heard::Ended(ended) => break End::Known(ended),
                Heard::Gone => break gone(folder).await,
            },
            // Without a daemon to give orders there is nothing left to hear of it.
            Ok(()) = orders.changed() => {}
        }
    };
    fail_point!("run.reap");
    guard.reap().await;
    ended
}

/// What a folder shows whose guard does not answer any more.
async fn gone(folder: &RunFolder) -> End {
    let mut looks = 0;
    let found = loop {
        match folder.look() {
            // Its socket is closed a moment before its lock is free.
            Ok(Found::Guarded) if looks < 100 => {
                looks += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            found => break found,
        }
    };
    match found {
        Ok(Found::Ended(ended)) => End::Known(ended),
        Ok(Found::NeverStarted(lock)) => {
            let reason = match lock.void() {
                Ok(()) => "the guard ended before it started the command".to_owned(),
                Err(error) => format!("the guard ended before it started the command: {error}"),
            };
            End::Unstarted { outcome: Outcome::Failed, reason: format!("could not start: {reason}") }
        }
        Ok(Found::Abandoned(started, _lock)) => {
            // Before the record says that the job may run again.
            take_back::end_leftovers(&started);
            End::Lost { reason: "the guard was lost".to_owned(), started_at: Some(started.at) }
        }
        Ok(Found::Guarded) => End::Lost { reason: "the guard does not answer".to_owned(), started_at: None },
        Err(error) => End::Lost { reason: format!("the guard was lost: {error}"), started_at: None },
    }
}

/// Writes the record of an ended run, and then clears its folder away.
async fn close(
    place: &Place,
    me: &Me,
    claim: Claim,
    folder: Option<RunFolder>,
    end: End,
    spec: &Spec,
) -> Result<Written, StoreError> {
    let record = record_of(place, me, &claim, folder.as_ref(), end, spec);
    let attempt = claim.lock().attempt;
    fail_point!("run.finish");
    let written = finish(&place.together, claim, record).await?;
    let record = written.record();
    info!(job = %record.fire.job, fire = %record.fire.id, node = %me.name, outcome = %record.outcome,
          reason = record.reason, late = matches!(written, Written::Late(_)), "ended");
    if let Some(folder) = folder
        && let Err(error) = clear(place, &folder, &record.fire, attempt)
    {
        warn!(folder = %folder.path().display(), %error, "the run file could not be cleared away");
    }
    Ok(written)
}

fn record_of(
    place: &Place,
    me: &Me,
    claim: &Claim,
    folder: Option<&RunFolder>,
    end: End,
    spec: &Spec,
) -> Record {
    let lock = claim.lock();
    let mut facts = RunFacts {
        node: lock.node.clone(),
        node_start: lock.node_start,
        attempt: lock.attempt,
        fencing_token: claim.token(),
        claimed_at: lock.claimed_at,
        started_at: None,
        ended_at: None,
        exit_code: None,
        signal: None,
        output_bytes: 0,
        output_left_out: 0,
        usage: None,
    };
    let (outcome, reason) = match end {
        End::Lost { reason, started_at } => {
            facts.started_at = started_at;
            (Outcome::Lost, Some(reason))
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
        fire: claim.fire().clone(),
        outcome,
        reason,
        run: Some(facts),
        writer: Writer { node: me.name.clone(), node_start: me.start },
        written_at: place.clock.now(),
        tail,
    }
}

fn outcome_of(ended: &Ended, spec: &Spec) -> Outcome {
    match ended.how {
        How::TimedOut => Outcome::TimedOut,
        How::Cancelled => Outcome::Cancelled,
        How::CouldNotStart => Outcome::Failed,
        // Its node was lost to the others, as far as they could know.
        How::OutOfTouch => Outcome::Lost,
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
pub fn kept_output(outputs: &std::path::Path, fire: &Fire, attempt: u32) -> PathBuf {
    outputs.join(fire.job.as_str()).join(format!("{},{},{attempt}", fire.lane, fire.id))
}

fn clear(place: &Place, folder: &RunFolder, fire: &Fire, attempt: u32) -> io::Result<()> {
    let from = folder.output();
    // A run that wrote nothing leaves no file.
    if output::written(&from).is_ok_and(|bytes| bytes > 0) {
        let to = kept_output(&place.outputs, fire, attempt);
        let keep = || std::fs::rename(&from, &to);
        keep().or_else(|_| {
            std::fs::create_dir_all(to.parent().expect("a job's folder is above"))?;
            keep()
        })?;
    }
    folder.remove()
}

/// Clears away the files of a run whose fire has no lock of this node: its record is written, or its claim never was made.
/// A guard that is still there is told to end its command: nobody allows it any more.
pub fn clear_orphan(place: &Place, name: &FolderName, folder: &RunFolder) -> io::Result<()> {
    match folder.look()? {
        Found::Guarded => {
            let request = Request::Kill { reason: "no lock allows it any more".to_owned() };
            warn!(job = %name.fire.job, fire = %name.fire.id, "a command runs without a lock, ending it");
            crate::guard::link::ask_at_once(folder, &request)
        }
        Found::Abandoned(started, _lock) => {
            take_back::end_leftovers(&started);
            folder.remove()
        }
        Found::Ended(_) | Found::NeverStarted(_) => clear(place, folder, &name.fire, name.attempt),
    }
}

/// What the guard is told: the job's command with all that is around it.
fn spec_of(place: &Place, me: &Me, claim: &Claim, name: &FolderName, job: &Job) -> Spec {
    let argv = match &job.command {
        Command::Shell(text) => vec![job.shell.clone(), "-c".to_owned(), text.clone()],
        Command::Argv(words) => words.clone(),
    };
    let home = &place.account.home;
    let terms = &job.terms;
    let workdir = match &job.workdir {
        Some(workdir) => workdir.clone(),
        // The user's own, which the guard finds out.
        None if terms.user.is_some() => String::new(),
        None if std::path::Path::new(home).is_dir() => home.clone(),
        None => "/".to_owned(),
    };
    Spec {
        v: VERSION,
        argv,
        env: environment(place, me, claim, job),
        workdir,
        timeout: job.timeout.map(|timeout| timeout.as_millis() as u64),
        kill_after: job.kill_after.as_millis() as u64,
        output_cap: job.keep.output,
        success_exit: job.success_exit.clone(),
        kill_leftovers: terms.kill_leftovers,
        contact: None,
        user: terms.user.clone(),
        group: terms.group.clone(),
        umask: terms.umask,
        nice: terms.nice,
        ionice: terms.ionice.map(|ionice| ionice.to_string()),
        limits: terms.limits.iter().map(|(limit, most)| (limit.word().to_owned(), *most)).collect(),
        stdin: terms.stdin.clone(),
        no_new_privs: terms.no_new_privs,
        env_file: terms.env_file.clone(),
        credential: terms.credential.clone().map(|name| Credential { name, folder: credentials() }),
        redact: terms.redact.clone(),
        timestamps: terms.timestamps,
        cgroup: place.cgroups.as_ref().map(|cgroups| cgroups.join(name.to_string())),
    }
}

/// Where systemd put what it was told to give to this service alone.
fn credentials() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from)
}

/// Small and fixed: nothing of the daemon's own environment reaches a command.
fn environment(place: &Place, me: &Me, claim: &Claim, job: &Job) -> BTreeMap<String, String> {
    const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let fire = claim.fire();
    let account = &place.account;
    let of_account = [
        ("HOME", &account.home),
        ("LOGNAME", &account.name),
        ("USER", &account.name),
        ("SHELL", &account.shell),
    ];
    let of_all = [
        ("PATH", PATH),
        ("LANG", "C.UTF-8"),
        // So that `date` agrees with the schedule.
        ("TZ", job.schedule.zone().name()),
    ];
    let mut env: BTreeMap<String, String> =
        of_all.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    // Those of another user the guard finds out.
    if job.terms.user.is_none() {
        env.extend(of_account.map(|(name, value)| (name.to_owned(), value.clone())));
    }
    env.extend(job.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    env.extend(
        [
            ("FLEETCRON_JOB", fire.job.to_string()),
            ("FLEETCRON_FIRE", fire.id.to_string()),
            ("FLEETCRON_SCHEDULED_AT", rfc3339(fire.scheduled_at())),
            ("FLEETCRON_ATTEMPT", claim.lock().attempt.to_string()),
            ("FLEETCRON_NODE", me.name.to_string()),
            ("FLEETCRON_FENCING_TOKEN", claim.token().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    env
}

fn rfc3339(at: Timestamp) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_refuses_what_it_cannot_or_may_not_run() {
        let policy = |users: Option<&[&str]>, root| Policy {
            users: users.map(|users| users.iter().map(|user| user.to_string()).collect()),
            root,
        };
        let account = |name: &str| Account {
            name: name.to_owned(),
            home: "/".to_owned(),
            shell: "/bin/sh".to_owned(),
            is_root: name == "root",
        };
        for (own, policy, user, why) in [
            ("root", policy(None, true), None, None),
            ("root", policy(None, true), Some("nobody"), None),
            // The guard finds that out, and nothing starts.
            ("root", policy(None, false), Some("nosuch"), None),
            ("www", policy(None, true), Some("www"), None),
            (
                "www",
                policy(None, true),
                Some("root"),
                Some("this node runs as www and cannot run commands as root"),
            ),
            ("root", policy(Some(&["www"]), true), Some("www"), None),
            ("root", policy(Some(&["www"]), true), Some("nobody"), Some("allow_users")),
            ("root", policy(Some(&["www"]), true), None, Some("do not allow commands of root (allow_users)")),
            ("root", policy(Some(&[]), true), None, Some("allow_users")),
            ("root", policy(None, false), None, Some("allow_root")),
            ("root", policy(None, false), Some("root"), Some("allow_root")),
            ("root", policy(None, false), Some("nobody"), None),
        ] {
            let refused = account(own).refuses(&policy, user);
            let as_expected = match (&refused, why) {
                (Some(refused), Some(why)) => refused.contains(why),
                (refused, why) => refused.is_none() && why.is_none(),
            };
            assert!(as_expected, "{own} {policy:?} {user:?}: {refused:?}");
        }
    }
}
