//! What a guard is told: the job's command with all that is around it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Place;
use crate::guard::folder::{Credential, Owner, VERSION};
use crate::guard::{Contact, FolderName, Spec};
use crate::job::{Command, Job, Keep};
use crate::race::{Claim, InTouch, Me};
use crate::schedule::Timestamp;

pub(super) fn spec_of(place: &Place, me: &Me, claim: &Claim, name: &FolderName, job: &Job) -> Spec {
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
        None if Path::new(home).is_dir() => home.clone(),
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
        contact: claim.lock().hold.map(|hold| contact(claim.in_touch(), hold)),
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
        owner: Some(Owner {
            node_start: claim.lock().node_start,
            token: claim.token(),
            claimed_at: claim.lock().claimed_at,
        }),
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

/// A contact as guards count it, with a hold in milliseconds.
pub(super) fn contact(in_touch: InTouch, hold: u64) -> Contact {
    Contact { at: millis(in_touch.at), hold }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Of a run whose spec was never written: nothing ran.
pub(super) fn no_spec() -> Spec {
    Spec { v: VERSION, output_cap: Keep::default().output, success_exit: [0].into(), ..Spec::default() }
}
