//! The finish: a lock becomes a record, in one transaction.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use crate::fail_point;
use crate::mutant;
use crate::race::{self, Chains, Claim};
use crate::record::Record;
use crate::store::values::{self, Lock, Status};
use crate::store::{Compare, Entry, Op, Store, StoreError, Together, Txn, keys};

/// What became of a result.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// It is the fire's record.
    Record(Record),
    /// Somebody else had closed the fire: it is kept beside that one's record.
    Late(Record),
}

impl Written {
    pub fn record(&self) -> &Record {
        match self {
            Written::Record(record) | Written::Late(record) => record,
        }
    }
}

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Writes the result of a claim, for as long as it takes: a store that is away or full is waited for.
///
/// This node's registration does not matter here: a true result is never lost.
///
/// Errors: the store refuses the write for good.
pub async fn finish(
    together: &Together,
    chains: &Chains,
    claim: Claim,
    mut record: Record,
) -> Result<Written, StoreError> {
    let (store, fire) = (together.store(), claim.fire().clone());
    let (lock_key, record_key) = (keys::lock(&fire), keys::record(&fire));
    let status_key = keys::status(&fire.job, &fire.lane);
    let mut revision = claim.revision();
    let status = match claim.status() {
        Some(status) => Some(status.clone()),
        None if fire.job.is_of_tasks() => None,
        None => {
            fail_point!("finish.status");
            let read = store.get(&status_key).await.ok().flatten();
            read.and_then(|entry| values::decode::<Status>(&entry.key, &entry.value).ok())
        }
    };
    let (slot, mut links) = (claim.lock().slot(), chains.links(&record).await);
    let mut pause = FIRST_PAUSE;
    loop {
        if let Err(error) = links.read(store).await {
            wait_or_give_up(store, &record, error, &mut pause).await?;
            continue;
        }
        record.set_off = links.set_off();
        // Safe when done twice, and when another takes the lock over at the same time: the lock is at this revision
        // for one of the writers only.
        let compare = match mutant!("finish-without-compare") {
            true => Compare::present(keys::job(&fire.job)),
            false => Compare::mod_revision(lock_key.as_str(), revision),
        };
        let mut then = vec![
            Op::delete(lock_key.as_str()),
            Op::delete(keys::cancel_request(&fire)),
            Op::put(record_key.as_str(), values::encode_record(&record)),
        ];
        then.extend(race::put_status(status.as_ref(), &record));
        then.extend(slot.as_ref().map(|slot| Op::delete(keys::mutex_slot(slot))));
        then.extend(links.writes());
        let mut seen = vec![Op::get(lock_key.as_str()), Op::get(record_key.as_str())];
        seen.extend(links.gets());
        let txn = Txn::when([compare].into_iter().chain(links.compares())).then(then).otherwise(seen);
        let about = [race::about(&fire)].into_iter().chain(links.about());
        fail_point!("finish.send");
        match together.txn(about.collect::<Vec<_>>(), txn).await {
            Ok(reply) if reply.succeeded => return Ok(Written::Record(record)),
            Ok(reply) => {
                let ours = claim.lock();
                let lock = reply.got(0).first();
                if let Some(entry) = lock
                    && let Ok(found) = values::decode::<Lock>(&entry.key, &entry.value)
                    && found.is_of(&ours.node, ours.node_start, ours.attempt)
                    && !mutant!("mine-by-revision")
                {
                    // A rewrite of ours whose answer never came; or what comes after is not as it was.
                    revision = entry.mod_revision;
                    links.take_in(&reply, 2);
                    continue;
                }
                if reply.got(1).first().is_some_and(|entry| says_the_same(entry, &record)) {
                    return Ok(Written::Record(record));
                }
                if mutant!("fenced-result-dropped") {
                    return Ok(Written::Late(record));
                }
                fail_point!("finish.late");
                return write_late(store, record).await;
            }
            Err(error) => wait_or_give_up(store, &record, error, &mut pause).await?,
        }
    }
}

/// Whether a record that is there already is this result: of the same claim, and written by its holder.
fn is_ours(there: &Record, ours: &Record) -> bool {
    let claim =
        |record: &Record| record.run.as_ref().map(|run| (run.node.clone(), run.node_start, run.attempt));
    // A later life of the holder writes as itself.
    claim(there) == claim(ours) && there.writer.node() == ours.writer.node()
}

/// Keeps a true result beside the record that somebody else wrote, for as long as it takes.
async fn write_late(store: &Store, record: Record) -> Result<Written, StoreError> {
    keep_late(store, &record).await?;
    Ok(Written::Late(record))
}

/// Keeps the result of a run whose lock is gone, unless it is the fire's record already. Safe to do twice: the key is
/// the claim's own.
///
/// Errors: the store refuses the write for good.
pub(super) async fn keep_late(store: &Store, record: &Record) -> Result<(), StoreError> {
    let Some(run) = &record.run else { return Ok(()) };
    let own = keys::record(&record.fire);
    let key = keys::late_record(&record.fire, run.node_start, run.attempt);
    let mut pause = FIRST_PAUSE;
    loop {
        fail_point!("late.look");
        let written = match store.get(&own).await {
            Ok(Some(entry)) if says_the_same(&entry, record) => return Ok(()),
            Ok(_) => {
                fail_point!("late.send");
                store.txn(Txn::new().then([Op::put(key.as_str(), values::encode_record(record))])).await
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(_) => return Ok(()),
            Err(error) => wait_or_give_up(store, record, error, &mut pause).await?,
        }
    }
}

fn says_the_same(entry: &Entry, ours: &Record) -> bool {
    values::decode_record(ours.fire.clone(), &entry.key, &entry.value)
        .is_ok_and(|there| is_ours(&there, ours))
}

/// Waits before the next try, where one may help.
pub(super) async fn wait_or_give_up(
    store: &Store,
    record: &Record,
    error: StoreError,
    pause: &mut Duration,
) -> Result<(), StoreError> {
    if !error.passes() && !error.needs_help() {
        return Err(error);
    }
    if *pause == FIRST_PAUSE {
        warn!(job = %record.fire.job, fire = %record.fire.id, %error, "the record is not written yet, trying on");
    }
    fail_point!("finish.pause");
    sleep(pause.mul_f64(0.5 + store.random() / 2.0)).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
    Ok(())
}
