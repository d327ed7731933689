//! `fleetcron forget`: a node that never comes back is put out of the store, and what it held is recorded as lost.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use super::failure::{Failure, say};
use super::read::{self, Pages, UnderWay};
use super::{Door, act_on, time};
use crate::act::{self, who};
use crate::fire::Fire;
use crate::node::NodeName;
use crate::race;
use crate::record::{Outcome, Record, Writer};
use crate::store::values::{self, Lock, Status};
use crate::store::{Compare, Entry, Op, Revision, Store, Txn, keys};

/// Put a node that never comes back out of the store
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What the node was running is recorded as lost, and its name is free. A node that is registered is refused: stop it \
first. Before a run is recorded as lost, its hold is waited for, because until then the command may go on where the \
node is cut off; --yes-it-is-dead leaves that out, and a command that still runs there is then not known of any more. \
Runs without a hold (jobs that allow overlap and are run at most once) are not waited for: be sure that the node is dead.

Examples:
  fleetcron forget db-1
  fleetcron forget db-1 --yes-it-is-dead")]
pub struct Args {
    /// The node
    #[arg(value_name = "NODE")]
    node: NodeName,
    /// The machine is known to be off: wait for no hold. Asks once more on a terminal
    #[arg(long)]
    yes_it_is_dead: bool,
}

pub async fn forget(door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let node = &args.node;
    let store = door.store().await?;
    let mut gone = look(&store, node).await?;
    let mut found = locks_of(&store, node).await?;
    if !gone.is_known && found.is_empty() {
        return Err(no_such_node(&store, node).await?);
    }
    agree(args)?;
    let forgetting = Forgetting { door: &door, store: &store, args, by: who() };
    let (mut lost, mut said) = (0, false);
    // Closed as they become due. Whatever is not as it was seen is looked at again, and its wait begins anew.
    while !found.is_empty() {
        let mut held = Vec::new();
        for fire in found {
            held.extend(forgetting.see(&fire).await?);
        }
        if !said && !held.is_empty() {
            forgetting.say_what_is_waited_for(&held);
            said = true;
        }
        held.sort_by_key(|held| held.due);
        for held in held {
            door.clock.sleep_until(held.due).await;
            lost += usize::from(forgetting.close(&held).await?);
        }
        // The epoch first: a life of the node that began after this, and may have claimed, has moved it.
        gone = look(&store, node).await?;
        found = locks_of(&store, node).await?;
    }
    forgetting.remove(&gone, lost).await?;
    say(format_args!("{node} is forgotten; {lost} of its runs are recorded as lost"));
    Ok(ExitCode::SUCCESS)
}

/// A node that is not registered.
struct Gone {
    /// 0 if there is none.
    epoch: Revision,
    /// Whether anything tells of it, locks apart.
    is_known: bool,
}

/// Errors: the node is registered.
async fn look(store: &Store, node: &NodeName) -> Result<Gone, Failure> {
    let all = [keys::node(node), keys::epoch(node), keys::drained(node)];
    let reply = store.txn(Txn::new().then(all.map(Op::get))).await?;
    if !reply.got(0).is_empty() {
        return Err(is_registered(node));
    }
    let is_known = !reply.got(1).is_empty() || !reply.got(2).is_empty();
    Ok(Gone { epoch: revision_of(reply.got(1)), is_known })
}

fn is_registered(node: &NodeName) -> Failure {
    Failure::Asked(format!(
        "{node} is registered, so it lives or did seconds ago; it is not forgotten. To take a node down, `fleetcron drain {node} --wait` and stop it"
    ))
}

fn revision_of(entries: &[Entry]) -> Revision {
    entries.first().map_or(Revision(0), |entry| entry.mod_revision)
}

async fn locks_of(store: &Store, node: &NodeName) -> Result<Vec<Fire>, Failure> {
    let mut found = Vec::new();
    let pages = Pages::new(store, [keys::locks()]);
    let of_node = |entry: &Entry| read::lock_of(entry).filter(|one| one.lock.node == *node);
    pages.each(|entry| found.extend(of_node(&entry).map(|one| one.fire))).await?;
    Ok(found)
}

async fn no_such_node(store: &Store, node: &NodeName) -> Result<Failure, Failure> {
    let mut names = Vec::new();
    let nodes = Pages::new(store, [keys::nodes(), keys::epochs()]);
    nodes.each(|entry| names.push(keys::name_of(&entry.key).to_owned())).await?;
    let hint = match read::nearest(node.as_str(), names.iter().map(String::as_str)) {
        Some(name) => format!("did you mean {name}?"),
        None => "`fleetcron nodes` lists those that are registered".to_owned(),
    };
    Ok(Failure::Asked(format!("the store knows no node called {node}; {hint}")))
}

/// Asks a person who wants to leave out the wait, where there is one.
fn agree(args: &Args) -> Result<(), Failure> {
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes_it_is_dead || !can_ask {
        return Ok(());
    }
    let mut to = io::stderr();
    let question = format!("is the machine of {} off, and nothing runs there any more? [y/N] ", args.node);
    _ = to.write_all(question.as_bytes()).and_then(|()| to.flush());
    let mut answer = String::new();
    _ = io::stdin().lock().read_line(&mut answer);
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::asked("nothing is forgotten")),
    }
}

struct Forgetting<'a> {
    door: &'a Door,
    store: &'a Store,
    args: &'a Args,
    by: String,
}

/// A lock as it was seen, its holder being gone.
struct Held {
    fire: Fire,
    lock: Lock,
    revision: Revision,
    epoch: Revision,
    status: Option<Status>,
    /// When it may be closed, by the time since the machine booted.
    due: Duration,
}

impl Forgetting<'_> {
    /// Sees a lock and that its holder is gone, in one transaction: from its answer on the hold is waited for. None: it
    /// is the node's no more.
    async fn see(&self, fire: &Fire) -> Result<Option<Held>, Failure> {
        let node = &self.args.node;
        let all =
            [keys::node(node), keys::epoch(node), keys::lock(fire), keys::status(&fire.job, &fire.lane)];
        let reply = self.store.txn(Txn::new().then(all.map(Op::get))).await?;
        let answered = self.door.clock.since_boot();
        if !reply.got(0).is_empty() {
            return Err(is_registered(node));
        }
        let Some(entry) = reply.got(2).first() else { return Ok(None) };
        let Some(UnderWay { fire, lock, .. }) = read::lock_of(entry).filter(|one| one.lock.node == *node)
        else {
            return Ok(None);
        };
        // Nothing runs under a lock that waits, and its hold is 0. One without a hold nobody else ever closes.
        let hold = match self.args.yes_it_is_dead {
            true => Duration::ZERO,
            false => Duration::from_millis(lock.hold.unwrap_or(0)),
        };
        let status = reply.got(3).first().and_then(|entry| values::decode(&entry.key, &entry.value).ok());
        let (revision, epoch) = (entry.mod_revision, revision_of(reply.got(1)));
        Ok(Some(Held { fire, lock, revision, epoch, status, due: answered + hold }))
    }

    fn say_what_is_waited_for(&self, held: &[Held]) {
        let longest = held.iter().map(|held| held.due).max().unwrap_or_default();
        let wait = longest.saturating_sub(self.door.clock.since_boot());
        match wait {
            Duration::ZERO => say(format_args!("{} held {} runs", self.args.node, held.len())),
            wait => say(format_args!(
                "{} held {} runs; waiting {} until none of them can go on",
                self.args.node,
                held.len(),
                time::length(wait)
            )),
        }
    }

    /// Records a run as lost. False: something is not as it was seen.
    async fn close(&self, held: &Held) -> Result<bool, Failure> {
        let node = &self.args.node;
        let record = self.record(held);
        let fire = &held.fire;
        // Safe when two do it at once, or a node takes the run over: the lock is at this revision for one of them only.
        // A holder that came back has moved its epoch, and one that comes back finds its lock gone.
        let txn = Txn::when([
            Compare::mod_revision(keys::lock(fire), held.revision),
            Compare::mod_revision(keys::epoch(node), held.epoch),
            Compare::absent(keys::node(node)),
        ])
        .then(
            [
                Op::delete(keys::lock(fire)),
                Op::delete(keys::cancel_request(fire)),
                Op::put(keys::record(fire), values::encode_record(&record)),
            ]
            .into_iter()
            .chain(race::put_status(held.status.as_ref(), &record))
            .chain(held.lock.slot().map(|slot| Op::delete(keys::mutex_slot(&slot)))),
        )
        .otherwise([Op::get(keys::record(fire))]);
        let reply = act_on(self.store, self.door.now(), txn).await?;
        let by_us = |entry: &Entry| {
            let there = values::decode_record(fire.clone(), &entry.key, &entry.value);
            there.is_ok_and(|there| there == record)
        };
        // An answer of ours that never came left our record.
        let closed = reply.succeeded || reply.got(0).first().is_some_and(by_us);
        if closed {
            say(format_args!("{fire} is recorded as lost"));
        }
        Ok(closed)
    }

    fn record(&self, held: &Held) -> Record {
        let Held { fire, lock, .. } = held;
        // The attempt of a lock that waits is among those that are over.
        let run = Some(lock.facts(held.revision))
            .filter(|_| lock.past().iter().all(|past| past.attempt != lock.attempt));
        Record {
            span: None,
            fire: fire.clone(),
            outcome: Outcome::Lost,
            reason: Some("node forgotten".to_owned()),
            run,
            past: lock.past(),
            writer: Writer::Operator(self.by.clone()),
            written_at: self.door.now(),
            tail: None,
            task: lock.task(fire).map(Box::new),
            set_off: Vec::new(),
        }
    }

    /// Removes what tells of the node, the epoch last: it is what the closings were compared with.
    async fn remove(&self, gone: &Gone, lost: usize) -> Result<(), Failure> {
        let (node, now) = (&self.args.node, self.door.now());
        let detail = match self.args.yes_it_is_dead {
            true => format!("{lost} runs lost, no hold waited for"),
            false => format!("{lost} runs lost"),
        };
        // Safe when two do it at once, and when the node comes back: either is seen by the epoch, which nobody has
        // moved since its locks were seen to be gone.
        let txn = Txn::when([
            Compare::absent(keys::node(node)),
            Compare::mod_revision(keys::epoch(node), gone.epoch),
        ])
        .then([
            Op::delete(keys::drained(node)),
            act::note(&self.by, now, "forget", node, Some(detail)),
            Op::delete(keys::epoch(node)),
        ])
        .otherwise([Op::get(keys::node(node)), Op::get(keys::epoch(node))]);
        let reply = act_on(self.store, now, txn).await?;
        match reply.succeeded || (reply.got(0).is_empty() && reply.got(1).is_empty()) {
            true => Ok(()),
            false => Err(is_registered(node)),
        }
    }
}
