//! What a store should do, written down in the plainest way: every revision is a whole copy.

use std::collections::{BTreeMap, BTreeSet};

use fleetcron::store::*;

type Keys = BTreeMap<String, Entry>;

/// Revisions count from 0, the moment before the first change.
pub struct Model {
    /// The keys at each revision.
    pub moments: Vec<Keys>,
    /// What changed, in order, with its revision.
    pub events: Vec<Event>,
    pub compacted: i64,
    pub leases: BTreeSet<i64>,
    pub granted: i64,
}

impl Model {
    pub fn new() -> Model {
        Model {
            moments: vec![Keys::new()],
            events: Vec::new(),
            compacted: -1,
            leases: BTreeSet::new(),
            granted: 0,
        }
    }

    pub fn revision(&self) -> i64 {
        self.moments.len() as i64 - 1
    }

    pub fn now(&self) -> &Keys {
        self.moments.last().unwrap()
    }

    pub fn txn(&mut self, txn: &Txn) -> Result<TxnReply, &'static str> {
        refuse_counts(txn, 128)?;
        touched(&txn.then)?;
        touched(&txn.otherwise)?;
        let judged = self.judge(txn);
        let mut making =
            Making { keys: self.now().clone(), events: Vec::new(), revision: self.revision() + 1 };
        let mut reply = making.act(&self.leases, txn, &judged)?;
        let events = making.events;
        if !events.is_empty() {
            self.moments.push(making.keys);
            self.events.extend(events);
        }
        stamp(&mut reply, Revision(self.revision()));
        Ok(reply)
    }

    /// Which branch each transaction takes, those inside included.
    fn judge(&self, txn: &Txn) -> Judged {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let branch = if succeeded { &txn.then } else { &txn.otherwise };
        let inner = branch.iter().filter_map(|op| match op {
            Op::Txn(inner) => Some(self.judge(inner)),
            _ => None,
        });
        let inner = inner.collect();
        Judged { succeeded, inner }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let keys = |range: &KeyRange| {
            let inside = self.now().values().filter(|entry| range.contains(&entry.key));
            inside.cloned().collect::<Vec<_>>()
        };
        let one = |key: &String| self.now().get(key);
        match compare {
            Compare::Absent(range) => keys(range).is_empty(),
            Compare::Present(key) => one(key).is_some(),
            Compare::CreateRevision { key, revision } => {
                one(key).map_or(Revision(0), |entry| entry.create_revision) == *revision
            }
            Compare::ModRevision { key, revision } => {
                one(key).map_or(Revision(0), |entry| entry.mod_revision) == *revision
            }
            Compare::Value { key, is, bytes } => {
                one(key).is_some_and(|entry| relation(*is, &entry.value, bytes))
            }
            Compare::Each { range, test } => match (&keys(range)[..], test) {
                ([], Test::Value(..)) => false,
                ([], Test::CreateRevision(is, given) | Test::ModRevision(is, given)) => {
                    relation(*is, &Revision(0), given)
                }
                (entries, test) => entries.iter().all(|entry| match test {
                    Test::CreateRevision(is, given) => relation(*is, &entry.create_revision, given),
                    Test::ModRevision(is, given) => relation(*is, &entry.mod_revision, given),
                    Test::Value(is, given) => relation(*is, &entry.value, given),
                }),
            },
        }
    }

    pub fn page(&self, range: &KeyRange, spec: &PageSpec) -> Result<Page, &'static str> {
        let at = spec.at.map_or(self.revision(), |at| at.0);
        if at < self.compacted {
            return Err("Compacted");
        }
        if at > self.revision() {
            return Err("Rejected");
        }
        let mut inside: Vec<_> = self.moments[at as usize].values().cloned().collect();
        inside.retain(|entry| range.contains(&entry.key));
        if spec.order == Order::Descending {
            inside.reverse();
        }
        if let Some(after) = &spec.after {
            inside.retain(|entry| match spec.order {
                Order::Ascending => entry.key > *after,
                Order::Descending => entry.key < *after,
            });
        }
        let limit = spec.limit.unwrap_or(500);
        let more = inside.len() > limit;
        inside.truncate(limit);
        if spec.keys_only {
            inside.iter_mut().for_each(|entry| entry.value.clear());
        }
        Ok(Page { entries: inside, revision: Revision(at), more })
    }

    pub fn events_from(&self, range: &KeyRange, from: i64) -> Vec<Event> {
        let inside = self.events.iter().filter(|event| event.revision().0 >= from);
        inside.filter(|event| range.contains(event.key())).cloned().collect()
    }

    pub fn revoke(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let on_it = self.now().values().filter(|entry| entry.lease == Some(LeaseId(lease)));
        let gone: Vec<_> = on_it.map(|entry| entry.key.clone()).collect();
        if gone.is_empty() {
            return;
        }
        let mut keys = self.now().clone();
        let mod_revision = Revision(self.revision() + 1);
        for key in gone {
            keys.remove(&key);
            self.events.push(Event::Delete { key, mod_revision });
        }
        self.moments.push(keys);
    }

    pub fn compact(&mut self, at: i64) -> Result<(), &'static str> {
        if at <= self.compacted {
            return Err("Compacted");
        }
        if at > self.revision() {
            return Err("Rejected");
        }
        self.compacted = at;
        Ok(())
    }
}

struct Judged {
    succeeded: bool,
    inner: Vec<Judged>,
}

struct Making {
    keys: Keys,
    events: Vec<Event>,
    revision: i64,
}

impl Making {
    fn act(&mut self, leases: &BTreeSet<i64>, txn: &Txn, judged: &Judged) -> Result<TxnReply, &'static str> {
        let branch = if judged.succeeded { &txn.then } else { &txn.otherwise };
        let mut inner = judged.inner.iter();
        let mut results = Vec::new();
        for op in branch {
            results.push(match op {
                Op::Put { key, value, lease } => {
                    if lease.is_some_and(|lease| !leases.contains(&lease.0)) {
                        return Err("LeaseGone");
                    }
                    let now = Revision(self.revision);
                    let entry = Entry {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision: self.keys.get(key).map_or(now, |old| old.create_revision),
                        mod_revision: now,
                        lease: *lease,
                    };
                    self.keys.insert(key.clone(), entry.clone());
                    self.events.push(Event::Put(entry));
                    OpReply::Put
                }
                Op::Delete(range) => {
                    let doomed: Vec<_> =
                        self.keys.keys().filter(|key| range.contains(key)).cloned().collect();
                    for key in &doomed {
                        self.keys.remove(key);
                        self.events
                            .push(Event::Delete { key: key.clone(), mod_revision: Revision(self.revision) });
                    }
                    OpReply::Deleted(doomed.len() as u64)
                }
                Op::Get { range, limit } => {
                    let inside = self.keys.values().filter(|entry| range.contains(&entry.key));
                    OpReply::Got(inside.take(limit.unwrap_or(usize::MAX)).cloned().collect())
                }
                Op::Txn(nested) => OpReply::Txn(self.act(leases, nested, inner.next().unwrap())?),
            });
        }
        Ok(TxnReply { succeeded: judged.succeeded, revision: Revision(0), results })
    }
}

fn relation<T: Ord>(is: Is, there: &T, given: &T) -> bool {
    match is {
        Is::Equal => there == given,
        Is::NotEqual => there != given,
        Is::Less => there < given,
        Is::Greater => there > given,
    }
}

fn stamp(reply: &mut TxnReply, revision: Revision) {
    reply.revision = revision;
    for result in &mut reply.results {
        if let OpReply::Txn(inner) = result {
            stamp(inner, revision);
        }
    }
}

fn refuse_counts(txn: &Txn, most: usize) -> Result<(), &'static str> {
    let longest = [txn.compare.len(), txn.then.len(), txn.otherwise.len()];
    let longest = longest.into_iter().max().unwrap();
    if longest > most {
        return Err("Rejected");
    }
    for op in txn.then.iter().chain(&txn.otherwise) {
        if let Op::Txn(inner) = op {
            refuse_counts(inner, most - longest)?;
        }
    }
    Ok(())
}

/// Puts and deletes of a list of steps; refused when a key is put twice, or put and deleted.
///
/// Not all of the latter: a delete inside a later nested transaction is not held against an earlier put.
fn touched(ops: &[Op]) -> Result<(BTreeSet<String>, Vec<KeyRange>), &'static str> {
    let mut puts = BTreeSet::new();
    let own = ops.iter().filter_map(|op| match op {
        Op::Delete(range) => Some(range.clone()),
        _ => None,
    });
    let mut deletes: Vec<KeyRange> = own.collect();
    for op in ops {
        let Op::Txn(inner) = op else { continue };
        let (then, then_deletes) = touched(&inner.then)?;
        let (otherwise, otherwise_deletes) = touched(&inner.otherwise)?;
        for key in then.union(&otherwise) {
            if deletes.iter().any(|range| range.contains(key)) || !puts.insert(key.clone()) {
                return Err("Rejected");
            }
        }
        deletes.extend(then_deletes);
        deletes.extend(otherwise_deletes);
    }
    for op in ops {
        let Op::Put { key, .. } = op else { continue };
        if deletes.iter().any(|range| range.contains(key)) || !puts.insert(key.clone()) {
            return Err("Rejected");
        }
    }
    Ok((puts, deletes))
}
