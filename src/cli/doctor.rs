//! `fleetcron doctor`: whether this machine has what a node needs, and what is in force here.

mod health;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use nix::unistd::{AccessFlags, User, geteuid};
use serde::Serialize;

use super::Door;
use super::failure::Failure;
use super::out::GiveUp::OneLine;
use super::out::{Table, or_dash};
use crate::cgroup::Delegated;
use crate::child::plain;
use crate::config::Policy;
use crate::daemon;
use crate::job::Limit;
use crate::run::Account;
use crate::schedule::tzdata_version;
use crate::store::values::{self, Presence};
use crate::store::{Access, Address, Store, StoreError, keys};

/// Check this machine: the store, the state folder, the guard, and what is in force here
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Looks as whoever calls it: call it as the user that the node runs as, with the same settings, and from the same service \
where cgroups matter. Changes nothing and makes no store.

RESULT is ok, warn (a node runs, with less than it could have) or fail (it cannot run, or not well). Exit codes: 0 \
nothing failed, 1 something did, 3 the store was not reached.

JSON has one object a line: check, result, found, advice (null where there is nothing to do). The checks are store, \
state, guard, cgroup, limits, user, policy, clock, tzdata.

With --health only the node that runs here is looked at, without its store, for probes and service managers. Exit codes: \
0 it looked at what is due within the last 10 s, is in contact with the store, and goes by its clock; 1 it does not, and \
one line says what is stale; 3 there never was a node here. JSON has one object: healthy, why, node, runs, pass_seconds, \
contact_seconds, decision_seconds (how long ago).

Examples:
  fleetcron doctor
  fleetcron doctor --health
  fleetcron doctor --output json | jq -r 'select(.result != \"ok\").advice'
  systemd-run --pipe --property=User=fleetcron --property=Delegate=yes fleetcron doctor")]
pub struct Args {
    /// The node's name, for its state folder [default: the host's name in lower case]
    #[arg(long, value_name = "NAME", env = "FLEETCRON_NODE", hide_env_values = true)]
    node: Option<String>,
    /// The node's state folder, if it is not at its default place
    #[arg(long, value_name = "DIR", env = "FLEETCRON_STATE", hide_env_values = true)]
    state: Option<PathBuf>,
    /// Only whether the node that runs here goes on
    #[arg(long)]
    health: bool,
}

/// What one look came to. Names and words once released do not change.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    check: &'static str,
    result: Verdict,
    found: String,
    advice: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        }
    }
}

impl Check {
    fn ok(check: &'static str, found: impl Into<String>) -> Check {
        Check { check, result: Verdict::Ok, found: found.into(), advice: None }
    }

    fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { check, result: Verdict::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { check, result: Verdict::Fail, found: found.into(), advice: Some(advice.into()) }
    }
}

pub async fn doctor(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    if args.health {
        let state = state_folder(&door, args)?;
        return health::health(door, &state);
    }
    let address = door.address()?;
    let access = door.settings.access(&address, false)?;
    let state = state_folder(&door, args)?;
    let store = store(&address, &access).await;
    let reached = store.result != Verdict::Fail;
    let said = match reached {
        true => clock_word(&address, &access, &door, args).await,
        false => None,
    };
    let delegated = Delegated::find();
    let policy = door.settings.policy();
    let checks = [
        store,
        state_check(&state),
        guard(),
        cgroup(&delegated),
        limits(delegated.as_ref().map_or(Vec::new(), Delegated::limits)),
        user(&Account::own(), &policy),
        self::policy(&policy),
        clock(door.clock.is_synced(), door.settings.require_synced_clock(), said.as_deref()),
        Check::ok("tzdata", format!("{}, built in; it must be the same on all nodes", tzdata_version())),
    ];
    let failed = checks.iter().any(|check| check.result == Verdict::Fail);
    let out = &mut door.out;
    let mut table =
        Table::new(&["CHECK", "RESULT", "FOUND", "ADVICE"], &[OneLine("FOUND"), OneLine("ADVICE")]);
    for Check { check, result, found, advice } in &checks {
        match out.is_json() {
            true => {
                out.json(&Check { check, result: *result, found: found.clone(), advice: advice.clone() })?
            }
            false => {
                let cells = [check, result.word(), found].map(str::to_owned);
                table.row(out, [cells.to_vec(), vec![or_dash(advice.as_ref())]].concat())?;
            }
        }
    }
    table.end(out)?;
    match (reached, failed) {
        (false, _) => Err(Failure::Said(3)),
        (true, true) => Err(Failure::Said(1)),
        (true, false) => Ok(ExitCode::SUCCESS),
    }
}

async fn store(address: &Address, access: &Access) -> Check {
    let name = "store";
    let begun = Instant::now();
    let look = async {
        let store = Store::open(address, access).await?;
        // Opening makes a connection; this is what one question costs.
        let begun = Instant::now();
        let status = store.status().await?;
        Ok::<_, StoreError>((store.describe(), status, begun.elapsed()))
    };
    match look.await {
        Ok((place, status, took)) => {
            let found = format!("{place}: {}, answers in {:.1} ms", status.version, took.as_secs_f64() * 1e3);
            match status.complaints.is_empty() {
                true => Check::ok(name, found),
                false => Check::warn(
                    name,
                    format!("{found}; it complains: {}", status.complaints.join(", ")),
                    "ask etcd: `etcdctl alarm list`, `etcdctl endpoint status`",
                ),
            }
        }
        Err(error) => {
            let took = begun.elapsed().as_secs_f64();
            let (found, advice) = match &error {
                StoreError::Missing(place) => (
                    format!("there is no store at {place}"),
                    "make it: `fleetcron sync PATH` or `fleetcron run`; or say where it is with --store",
                ),
                StoreError::Denied { .. } => (
                    error.to_string(),
                    "look at user, password_file and certificates in [etcd] of the settings",
                ),
                StoreError::Unusable { .. } => {
                    (error.to_string(), "look at the file's owner and rights, and at --store")
                }
                _ => (
                    format!("{error} (after {took:.1} s)"),
                    "look at the address, the network, and whether etcd is up",
                ),
            };
            Check::fail(name, found, advice)
        }
    }
}

fn state_folder(door: &Door, args: &Args) -> Result<PathBuf, Failure> {
    let node = args.node.as_deref().filter(|node| !node.is_empty());
    match (&args.state, node) {
        // The node's name does not matter then, and a host may have none that is good for a node.
        (Some(state), None) => Ok(state.clone()),
        (state, node) => Ok(door.settings.state(state.as_deref(), &door.settings.node(node)?)?),
    }
}

fn state_check(state: &Path) -> Check {
    const OTHERS: u32 = 0o077;
    let (name, shown) = ("state", state.display());
    let is = match std::fs::metadata(state) {
        Ok(is) => is,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return not_yet(name, state),
        Err(error) => {
            return Check::fail(
                name,
                format!("{shown}: {}", plain(&error)),
                "look at its rights, or set --state",
            );
        }
    };
    let mode = is.mode() & 0o7777;
    if !is.is_dir() {
        return Check::fail(
            name,
            format!("{shown} is no folder"),
            "set another with --state or state in the settings",
        );
    }
    if let Err(errno) = nix::unistd::access(state, AccessFlags::W_OK | AccessFlags::X_OK) {
        let advice = "call this as the node's user, or give the folder to it";
        return Check::fail(name, format!("{shown}: {}", errno.desc().to_lowercase()), advice);
    }
    if is.uid() != geteuid().as_raw() {
        let advice = "call this as the node's user; a node must own its folder";
        return Check::warn(name, format!("{shown} belongs to {}", user_name(is.uid())), advice);
    }
    match mode & OTHERS {
        0 => Check::ok(name, format!("{shown}, mode {mode:04o}")),
        _ => Check::warn(
            name,
            format!("{shown} is open to others (mode {mode:04o}); kept output may hold secrets"),
            format!("chmod go= {shown}"),
        ),
    }
}

/// A folder that a node's first start makes, if it may.
fn not_yet(name: &'static str, state: &Path) -> Check {
    let there = state.ancestors().skip(1).find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    match nix::unistd::access(there, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Check::ok(name, format!("{} is not there yet; `fleetcron run` makes it", state.display())),
        Err(errno) => Check::fail(
            name,
            format!(
                "{} is not there, and {}: {}",
                state.display(),
                there.display(),
                errno.desc().to_lowercase()
            ),
            "make it and give it to the node's user, or set --state",
        ),
    }
}

fn guard() -> Check {
    let name = "guard";
    let program = match daemon::guard_program() {
        Ok(program) => program,
        Err(error) => {
            return Check::fail(
                name,
                format!("{error:#}"),
                "install it beside fleetcron, of the same release",
            );
        }
    };
    let shown = program.display();
    let said = match Command::new(&program).arg("--version").output() {
        Ok(said) => said,
        Err(error) => return Check::fail(name, format!("{shown}: {}", plain(&error)), "install it anew"),
    };
    let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    match version.rsplit(' ').next() == Some(env!("CARGO_PKG_VERSION")) {
        true => Check::ok(name, format!("{shown}, {version}")),
        false => Check::fail(
            name,
            format!("{shown} is of another release than this program ({})", env!("CARGO_PKG_VERSION")),
            "install both of one release",
        ),
    }
}

fn cgroup(delegated: &Result<Delegated, String>) -> Check {
    let name = "cgroup";
    match delegated {
        Ok(delegated) if delegated.has_kill() => Check::ok(
            name,
            format!("each run has its own below {}, with cgroup.kill", delegated.base().display()),
        ),
        Ok(delegated) => Check::ok(
            name,
            format!(
                "each run has its own below {}; this kernel has no cgroup.kill, so processes are ended one by one",
                delegated.base().display()
            ),
        ),
        Err(why) => Check::warn(
            name,
            format!("{why}; the processes of a run are found by session and descent"),
            "under systemd: Delegate=yes",
        ),
    }
}

fn limits(taken: Vec<Limit>) -> Check {
    let words = |limits: &[Limit]| limits.iter().map(|limit| limit.word()).collect::<Vec<_>>().join(", ");
    let rest: Vec<Limit> = Limit::ALL.into_iter().filter(|limit| !taken.contains(limit)).collect();
    Check::ok(
        "limits",
        match taken.is_empty() {
            true => format!("by rlimit, for each process: {}", words(&rest)),
            false => {
                format!(
                    "by cgroup, for a run as a whole: {}; by rlimit, for each process: {}",
                    words(&taken),
                    words(&rest)
                )
            }
        },
    )
}

fn user(account: &io::Result<Account>, policy: &Policy) -> Check {
    let name = "user";
    match account {
        Err(error) => Check::fail(name, plain(error), "a node needs a user that the user database knows"),
        Ok(account) if !account.is_root => Check::ok(
            name,
            format!(
                "{}, not root: only jobs of {} and jobs without a user run here",
                account.name, account.name
            ),
        ),
        Ok(account) if policy.root => Check::ok(
            name,
            format!("{0}: jobs of every user run here, and those without a user as {0}", account.name),
        ),
        Ok(account) => {
            Check::ok(name, format!("{0}: jobs of every user but {0} run here, by allow_root", account.name))
        }
    }
}

fn policy(policy: &Policy) -> Check {
    let name = "policy";
    let root = if policy.root { "allow_root = true" } else { "allow_root = false" };
    let Some(users) = &policy.users else {
        return Check::ok(name, format!("allow_users is not set: no user's jobs are refused for it; {root}"));
    };
    let list = users.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let found = format!("allow_users = [{list}]; {root}");
    let unknown: Vec<_> = users.iter().filter(|user| matches!(User::from_name(user), Ok(None))).collect();
    match unknown[..] {
        [] => Check::ok(name, found),
        [first, ..] => Check::warn(
            name,
            found,
            format!("this machine has no user {first}: correct allow_users in the settings"),
        ),
    }
}

/// What the node that is registered says of its clock, as far as that can be found out.
async fn clock_word(address: &Address, access: &Access, door: &Door, args: &Args) -> Option<String> {
    let node = door.settings.node(args.node.as_deref().filter(|node| !node.is_empty())).ok()?;
    let store = Store::open(address, access).await.ok()?;
    let entry = store.get(&keys::node(&node)).await.ok()??;
    Some(values::decode::<Presence>(&entry.key, &entry.value).ok()?.clock?.says)
}

/// `said`: what the registered node of this machine has found out by the others' clocks.
fn clock(is_synced: bool, must_be: bool, said: Option<&str>) -> Check {
    let name = "clock";
    let kernel = match is_synced {
        true => "kept right, the kernel says",
        false => "not synchronised, the kernel says",
    };
    let ntp = "run an NTP daemon (chronyd, systemd-timesyncd)";
    match said.filter(|said| is_synced || *said != daemon::UNSYNCED) {
        Some(said) => Check::fail(
            name,
            format!("off: {said}, the node says; {kernel}"),
            "put the clock right; until then the node claims no scheduled fire",
        ),
        None if is_synced => Check::ok(name, kernel),
        None if must_be => {
            Check::fail(name, format!("{kernel}; by require_synced_clock nothing runs by it"), ntp)
        }
        None => Check::warn(name, kernel, ntp),
    }
}

fn user_name(uid: u32) -> String {
    let found = User::from_uid(uid.into()).ok().flatten();
    found.map_or_else(|| format!("user {uid}"), |user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_apart_by_what_enforces_them() {
        assert_eq!(
            limits(Vec::new()).found,
            "by rlimit, for each process: core, cpu, data, fsize, memlock, memory, nofile, nproc, stack"
        );
        assert_eq!(
            limits(vec![Limit::Memory, Limit::Nproc]).found,
            "by cgroup, for a run as a whole: memory, nproc; by rlimit, for each process: core, cpu, data, fsize, \
             memlock, nofile, stack"
        );
    }

    #[test]
    fn a_clock_that_is_off_is_told_with_what_says_so() {
        let result = |is_synced, must_be, said| clock(is_synced, must_be, said).result;
        assert_eq!(result(true, true, None), Verdict::Ok);
        assert_eq!(result(false, false, Some(daemon::UNSYNCED)), Verdict::Warn);
        assert_eq!(result(false, true, None), Verdict::Fail);
        assert_eq!(result(true, false, Some("3612 s ahead")), Verdict::Fail);
        assert!(clock(false, false, Some("3612 s ahead")).found.starts_with("off: 3612 s ahead"));
    }

    #[test]
    fn who_may_run_what_is_told() {
        let account = |name: &str, is_root| {
            Ok(Account { name: name.to_owned(), home: "/".to_owned(), shell: "/bin/sh".to_owned(), is_root })
        };
        let open = Policy { users: None, root: true };
        let closed =
            Policy { users: Some(["root".to_owned(), "no such user".to_owned()].into()), root: false };
        assert!(user(&account("www", false), &open).found.starts_with("www, not root: only jobs of www"));
        assert!(user(&account("root", true), &open).found.ends_with("those without a user as root"));
        assert!(user(&account("root", true), &closed).found.contains("every user but root"));
        let nobody = Err(io::Error::new(io::ErrorKind::NotFound, "no user has the id 7"));
        assert_eq!(user(&nobody, &open).found, "no user has the id 7");
        assert_eq!(policy(&open).result, Verdict::Ok);
        let closed = policy(&closed);
        assert_eq!(closed.found, "allow_users = [no such user, root]; allow_root = false");
        assert!(closed.advice.unwrap().starts_with("this machine has no user no such user"));
    }
}
