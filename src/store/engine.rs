//! How a transaction is checked, judged and done, for the two stores that have no etcd behind them.
//!
//! The rules are etcd's own, quirks included, because what one store accepts all must accept. They were
//! read from etcd 3.6's `checkTxnRequest`, `checkIntervals` and `applyCompare` and are compared with running
//! servers by the conformance suite.

use std::collections::BTreeSet;

use super::{Compare, Entry, KeyRange, LeaseId, Op, OpReply, Revision, StoreError, Test, Txn, TxnReply};

/// The most compares, steps or other steps that etcd takes in one transaction by default
/// (`--max-txn-ops`). A nested transaction may have only as many as its parent left over: 64 nested ones
/// may have 64 steps each.
pub const MOST_OPS: usize = 128;

/// The most bytes of keys and values in one transaction. etcd takes 1.5 MiB with everything around them.
pub const MOST_BYTES: usize = 1_400_000;

/// The keys of a store while one transaction works on them.
pub(super) trait Rows {
    fn range(&mut self, range: &KeyRange, limit: Option<usize>) -> Result<Vec<Entry>, StoreError>;
    fn put(&mut self, key: &str, value: &[u8], lease: Option<LeaseId>) -> Result<(), StoreError>;
    fn delete(&mut self, range: &KeyRange) -> Result<u64, StoreError>;
    fn lease_lives(&mut self, lease: LeaseId) -> Result<bool, StoreError>;
    /// The store's revision with what has been done so far: one more as soon as anything changed.
    fn revision(&self) -> Revision;
}

/// Refuses what no store may be asked, before it is sent anywhere.
pub(super) fn check_sizes(txn: &Txn) -> Result<(), StoreError> {
    let bytes = check_keys(txn)?;
    if bytes > MOST_BYTES {
        return Err(StoreError::TooLarge { bytes, most: MOST_BYTES });
    }
    Ok(())
}

/// Refuses what etcd refuses by itself.
pub(super) fn check(txn: &Txn) -> Result<(), StoreError> {
    check_counts(txn, MOST_OPS)?;
    check_duplicates(&txn.then)?;
    check_duplicates(&txn.otherwise)?;
    Ok(())
}

/// Refuses to compact what is compacted, and what has not happened yet.
pub(super) fn check_compaction(
    revision: Revision,
    compacted: Revision,
    now: Revision,
) -> Result<(), StoreError> {
    if revision <= compacted {
        return Err(StoreError::Compacted(compacted));
    }
    if revision > now {
        return Err(StoreError::Rejected(format!("revision {revision} is in the future")));
    }
    Ok(())
}

/// Does a checked transaction. An error means that nothing may be kept of it.
pub(super) fn apply(rows: &mut impl Rows, txn: &Txn) -> Result<TxnReply, StoreError> {
    let path = judge(rows, txn)?;
    check_leases(rows, &path)?;
    let mut reply = act(rows, &path)?;
    set_revision(&mut reply, rows.revision());
    Ok(reply)
}

/// The branches that a transaction takes, all judged before the first write.
struct Path<'a> {
    succeeded: bool,
    steps: Vec<Step<'a>>,
}

enum Step<'a> {
    Op(&'a Op),
    Nested(Path<'a>),
}

fn judge<'a>(rows: &mut impl Rows, txn: &'a Txn) -> Result<Path<'a>, StoreError> {
    let mut succeeded = true;
    for compare in &txn.compare {
        succeeded = succeeded && holds(rows, compare)?;
    }
    let branch = if succeeded { &txn.then } else { &txn.otherwise };
    let steps = branch.iter().map(|op| match op {
        Op::Txn(nested) => Ok(Step::Nested(judge(rows, nested)?)),
        op => Ok(Step::Op(op)),
    });
    let steps = steps.collect::<Result<_, StoreError>>()?;
    Ok(Path { succeeded, steps })
}

fn holds(rows: &mut impl Rows, compare: &Compare) -> Result<bool, StoreError> {
    let (range, test) = compare.general();
    let entries = rows.range(&range, None)?;
    if entries.is_empty() {
        return Ok(match test {
            Test::CreateRevision(is, given) | Test::ModRevision(is, given) => {
                is.holds(Revision(0).cmp(&given))
            }
            // A missing value is not the empty value, nor less or more than any.
            Test::Value(..) => false,
        });
    }
    Ok(entries.iter().all(|entry| match &test {
        Test::CreateRevision(is, given) => is.holds(entry.create_revision.cmp(given)),
        Test::ModRevision(is, given) => is.holds(entry.mod_revision.cmp(given)),
        Test::Value(is, given) => is.holds(entry.value.cmp(given)),
    }))
}

/// One put on a lease that is gone spoils the whole transaction, but only on the branches taken.
fn check_leases(rows: &mut impl Rows, path: &Path) -> Result<(), StoreError> {
    for step in &path.steps {
        match step {
            Step::Nested(nested) => check_leases(rows, nested)?,
            Step::Op(Op::Put { lease: Some(lease), .. }) if !rows.lease_lives(*lease)? => {
                return Err(StoreError::LeaseGone);
            }
            Step::Op(_) => {}
        }
    }
    Ok(())
}

fn act(rows: &mut impl Rows, path: &Path) -> Result<TxnReply, StoreError> {
    let mut results = Vec::with_capacity(path.steps.len());
    for step in &path.steps {
        results.push(match step {
            Step::Nested(nested) => OpReply::Txn(act(rows, nested)?),
            Step::Op(Op::Put { key, value, lease }) => {
                rows.put(key, value, *lease)?;
                OpReply::Put
            }
            Step::Op(Op::Delete(range)) => OpReply::Deleted(rows.delete(range)?),
            Step::Op(Op::Get { range, limit }) => OpReply::Got(rows.range(range, *limit)?),
            Step::Op(Op::Txn(_)) => unreachable!("judge makes a path of every nested transaction"),
        });
    }
    Ok(TxnReply { succeeded: path.succeeded, revision: Revision(0), results })
}

/// Gives a reply and all replies in it the revision of the whole.
pub(super) fn set_revision(reply: &mut TxnReply, revision: Revision) {
    reply.revision = revision;
    for result in &mut reply.results {
        if let OpReply::Txn(nested) = result {
            set_revision(nested, revision);
        }
    }
}

/// No key may be empty: relative to a prefix it would name the prefix itself. No range may end before it
/// begins: it is a mistake, and one that etcd's own check for duplicates does not expect. Returns the
/// bytes of all keys and values.
fn check_keys(txn: &Txn) -> Result<usize, StoreError> {
    let empty = || StoreError::Rejected("a key is empty".to_owned());
    let size_of = |range: &KeyRange| match range {
        KeyRange::Key(key) if key.is_empty() => Err(empty()),
        KeyRange::Key(key) => Ok(key.len()),
        KeyRange::Span { start, end: Some(end) } if end <= start => {
            Err(StoreError::Rejected(format!("the range from {start} to before {end} holds no keys")))
        }
        KeyRange::Span { start, end } => Ok(start.len() + end.as_ref().map_or(0, String::len)),
    };
    let mut bytes = 0;
    for compare in &txn.compare {
        let (range, test) = compare.general();
        bytes += size_of(&range)?;
        if let Test::Value(_, value) = test {
            bytes += value.len();
        }
    }
    for op in txn.then.iter().chain(&txn.otherwise) {
        bytes += match op {
            Op::Put { key, .. } if key.is_empty() => return Err(empty()),
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete(range) | Op::Get { range, .. } => size_of(range)?,
            Op::Txn(nested) => check_keys(nested)?,
        };
    }
    Ok(bytes)
}

fn check_counts(txn: &Txn, most: usize) -> Result<(), StoreError> {
    let count = txn.compare.len().max(txn.then.len()).max(txn.otherwise.len());
    if count > most {
        return Err(StoreError::Rejected(format!(
            "too many operations in one transaction: {count}, where {most} are allowed"
        )));
    }
    for op in txn.then.iter().chain(&txn.otherwise) {
        if let Op::Txn(nested) = op {
            check_counts(nested, most - count)?;
        }
    }
    Ok(())
}

/// What a list of steps may put and delete.
#[derive(Default)]
struct Touched {
    puts: BTreeSet<String>,
    deletes: Vec<KeyRange>,
}

impl Touched {
    fn add_put(&mut self, key: &str) -> Result<(), StoreError> {
        if self.deletes.iter().any(|range| range.contains(key)) || !self.puts.insert(key.to_owned()) {
            return Err(StoreError::Rejected(format!("the key {key} is changed twice in one transaction")));
        }
        Ok(())
    }
}

/// No key may be put twice or be both deleted and put.
///
/// The order of the checks is etcd's, and with it one gap: a nested transaction may delete what an
/// *earlier* nested one puts, though not the other way round.
fn check_duplicates(ops: &[Op]) -> Result<Touched, StoreError> {
    let mut touched = Touched::default();
    for op in ops {
        if let Op::Delete(range) = op {
            touched.deletes.push(range.clone());
        }
    }
    for op in ops {
        if let Op::Txn(nested) = op {
            let then = check_duplicates(&nested.then)?;
            let otherwise = check_duplicates(&nested.otherwise)?;
            for key in &then.puts {
                touched.add_put(key)?;
            }
            // Only one of the branches is taken, so both may put the same key.
            for key in otherwise.puts.difference(&then.puts) {
                touched.add_put(key)?;
            }
            touched.deletes.extend(then.deletes);
            touched.deletes.extend(otherwise.deletes);
        }
    }
    for op in ops {
        if let Op::Put { key, .. } = op {
            touched.add_put(key)?;
        }
    }
    Ok(touched)
}
