//! `fleetcron drain` and `fleetcron undrain`: a node claims nothing more, and may claim again.

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::failure::{Failure, say};
use super::read::{self, Pages};
use super::{Door, act_on};
use crate::act::{self, who};
use crate::node::NodeName;
use crate::store::values::{self, HoldBack, LockState};
use crate::store::{Compare, Op, Store, StoreError, Txn, keys};

/// Have a node claim nothing more; what it runs goes on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
From the moment the command has ended well the node claims no fire any more; other nodes run them. It stays so, over \
restarts and reboots, until `fleetcron undrain`. With --wait the command ends when the node runs nothing any more.

Examples:
  fleetcron drain --wait && reboot
  fleetcron drain db-1 --reason 'new disks'")]
pub struct Args {
    /// The node [default: the one that `fleetcron run` would be here]
    #[arg(value_name = "NODE")]
    node: Option<String>,
    /// Why, for the others
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Wait until the last of its runs has ended
    #[arg(long)]
    wait: bool,
}

/// Let a drained node claim again
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  fleetcron undrain db-1")]
pub struct UndrainArgs {
    /// The node [default: the one that `fleetcron run` would be here]
    #[arg(value_name = "NODE")]
    node: Option<String>,
}

pub async fn drain(door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let node = node(&door, args.node.as_deref())?;
    let now = door.now();
    let store = door.store().await?;
    let hold = HoldBack::new(who(), now, args.reason.clone(), None);
    let note = act::note(&hold.by, now, "drain", &node, args.reason.clone());
    // Safe when two do it at once: the later one's word counts.
    let txn = Txn::new().then([
        Op::put(keys::drained(&node), values::encode(&hold)),
        note,
        Op::get(keys::node(&node)),
        Op::get(keys::epoch(&node)),
    ]);
    let reply = act_on(&store, now, txn).await?;
    if reply.got(2).is_empty() && reply.got(3).is_empty() {
        say(format_args!(
            "warning: no node called {node} was ever registered; one that comes will be drained"
        ));
    }
    say(format_args!("{node} is drained: it claims nothing more until `fleetcron undrain {node}`"));
    if args.wait {
        wait(&store, &node).await?;
        say(format_args!("{node} runs nothing any more"));
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn undrain(door: Door, args: &UndrainArgs) -> Result<ExitCode, Failure> {
    let node = node(&door, args.node.as_deref())?;
    let now = door.now();
    let store = door.store().await?;
    let key = keys::drained(&node);
    // Safe when two do it at once: for one of them the key is there.
    let txn = Txn::when([Compare::present(key.as_str())])
        .then([Op::delete(key.as_str()), act::note(&who(), now, "undrain", &node, None)]);
    match act_on(&store, now, txn).await?.succeeded {
        true => say(format_args!("{node} may claim again")),
        false => say(format_args!("{node} is not drained, so nothing is changed")),
    }
    Ok(ExitCode::SUCCESS)
}

fn node(door: &Door, given: Option<&str>) -> Result<NodeName, Failure> {
    // As `run` chooses it: the variable counts more than the settings.
    let set = std::env::var("FLEETCRON_NODE").ok().filter(|node| !node.is_empty());
    Ok(door.settings.node(given.or(set.as_deref()))?)
}

/// Waits until no lock says that the node runs something. One that waits for its next attempt is no run: nothing of it
/// begins on a drained node.
///
/// The locks are listed once and then each is looked at, because no new one can come.
async fn wait(store: &Store, node: &NodeName) -> Result<(), Failure> {
    const LOOK_EVERY: Duration = Duration::from_millis(300);
    /// A store that is away so long is not waited for.
    const PATIENCE: Duration = Duration::from_secs(60);
    let (mut said, mut away) = (None, None::<Instant>);
    loop {
        match runs_of(store, node).await {
            Ok(runs) if runs.is_empty() => return Ok(()),
            Ok(mut runs) => {
                away = None;
                while !runs.is_empty() {
                    if said != Some(runs.len()) {
                        say(format_args!("{node} still runs {}", few(&runs)));
                        said = Some(runs.len());
                    }
                    sleep(LOOK_EVERY).await;
                    match still_there(store, node, &runs).await {
                        Ok(left) => runs = left,
                        Err(error) if error.passes() => break,
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Err(error) if error.passes() => {
                if away.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    return Err(error.into());
                }
                sleep(LOOK_EVERY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The keys of the locks under which a node runs something.
async fn runs_of(store: &Store, node: &NodeName) -> Result<Vec<String>, StoreError> {
    let mut found = Vec::new();
    let pages = Pages::new(store, [keys::locks()]);
    pages.each(|entry| found.extend(is_run(&entry, node).then_some(entry.key))).await?;
    Ok(found)
}

async fn still_there(store: &Store, node: &NodeName, runs: &[String]) -> Result<Vec<String>, StoreError> {
    const AT_ONCE: usize = 100;
    let mut left = Vec::new();
    for some in runs.chunks(AT_ONCE) {
        let reply = store.txn(Txn::new().then(some.iter().map(|key| Op::get(key.as_str())))).await?;
        let there = (0..some.len()).filter_map(|index| reply.got(index).first());
        left.extend(there.filter(|entry| is_run(entry, node)).map(|entry| entry.key.clone()));
    }
    Ok(left)
}

fn is_run(entry: &crate::store::Entry, node: &NodeName) -> bool {
    read::lock_of(entry).is_some_and(|one| one.lock.node == *node && one.lock.state == LockState::Held)
}

/// Some of them by name.
fn few(runs: &[String]) -> String {
    const SHOWN: usize = 3;
    let fires = runs.iter().take(SHOWN).filter_map(|key| keys::fire_of(key)).map(|fire| fire.to_string());
    let names = fires.collect::<Vec<_>>().join(", ");
    match runs.len() {
        ..=SHOWN => names,
        many => format!("{names} and {} more", many - SHOWN),
    }
}
