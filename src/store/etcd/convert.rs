//! Our words in etcd's, and etcd's in ours. Keys get the prefix on the way out and lose it on the way in.

use etcd_client as etcd;
use etcd_client::{CompareOp, DeleteOptions, GetOptions, KeyValue, PutOptions, TxnOp, TxnOpResponse};

use crate::store::words::after_all_with_prefix;
use crate::store::{
    Compare, Entry, Is, KeyRange, LeaseId, Op, OpReply, Revision, Test, Txn, TxnReply, engine,
};

/// Where our keys lie.
pub(super) struct Keys {
    /// With a slash at the end.
    root: String,
    after_root: String,
}

impl Keys {
    pub fn under(prefix: &str) -> Keys {
        let root = format!("{prefix}/");
        let after_root = after_all_with_prefix(&root).expect("the root ends with a slash");
        Keys { root, after_root }
    }

    pub fn absolute(&self, key: &str) -> String {
        format!("{}{key}", self.root)
    }

    /// The range as `[key, end)`.
    pub fn bounds(&self, range: &KeyRange) -> (String, String) {
        let (start, end) = range.bounds();
        let end = end.map_or(self.after_root.clone(), |end| self.absolute(&end));
        (self.absolute(&start), end)
    }

    pub fn txn(&self, txn: &Txn) -> etcd::Txn {
        let compares: Vec<_> = txn.compare.iter().map(|compare| self.compare(compare)).collect();
        let then: Vec<_> = txn.then.iter().map(|op| self.op(op)).collect();
        let otherwise: Vec<_> = txn.otherwise.iter().map(|op| self.op(op)).collect();
        let mut request = etcd::Txn::new();
        // Each of these may be said once, and not at all when there is nothing to say.
        if !compares.is_empty() {
            request = request.when(compares);
        }
        if !then.is_empty() {
            request = request.and_then(then);
        }
        if !otherwise.is_empty() {
            request = request.or_else(otherwise);
        }
        request
    }

    fn compare(&self, compare: &Compare) -> etcd::Compare {
        let (range, test) = compare.general();
        let (key, end) = match &range {
            KeyRange::Key(key) => (self.absolute(key), None),
            span => {
                let (start, end) = self.bounds(span);
                (start, Some(end))
            }
        };
        let compare = match test {
            Test::CreateRevision(is, given) => etcd::Compare::create_revision(key, op_of(is), given.0),
            Test::ModRevision(is, given) => etcd::Compare::mod_revision(key, op_of(is), given.0),
            Test::Value(is, given) => etcd::Compare::value(key, op_of(is), given),
        };
        match end {
            Some(end) => compare.with_range(end),
            None => compare,
        }
    }

    fn op(&self, op: &Op) -> TxnOp {
        match op {
            Op::Put { key, value, lease } => {
                let on_lease = |lease: &LeaseId| PutOptions::new().with_lease(lease.0);
                TxnOp::put(self.absolute(key), value.clone(), lease.as_ref().map(on_lease))
            }
            Op::Delete(KeyRange::Key(key)) => TxnOp::delete(self.absolute(key), None),
            Op::Delete(span) => {
                let (start, end) = self.bounds(span);
                TxnOp::delete(start, Some(DeleteOptions::new().with_range(end)))
            }
            Op::Get { range, limit } => {
                let (start, end) = self.bounds(range);
                let limit = limit.map_or(0, |limit| limit as i64);
                TxnOp::get(start, Some(GetOptions::new().with_range(end).with_limit(limit)))
            }
            Op::Txn(nested) => TxnOp::txn(self.txn(nested)),
        }
    }

    /// The error is a key that is not text: somebody else writes under our prefix.
    pub fn reply(&self, reply: &etcd::TxnResponse) -> Result<TxnReply, String> {
        let revision = reply.header().map_or(Revision(0), |header| Revision(header.revision()));
        let mut reply = self.nested_reply(reply)?;
        engine::set_revision(&mut reply, revision);
        Ok(reply)
    }

    fn nested_reply(&self, reply: &etcd::TxnResponse) -> Result<TxnReply, String> {
        let results = reply.op_responses().into_iter().map(|result| {
            Ok(match result {
                TxnOpResponse::Put(_) => OpReply::Put,
                TxnOpResponse::Delete(deleted) => OpReply::Deleted(deleted.deleted() as u64),
                TxnOpResponse::Get(got) => OpReply::Got(self.entries(got.kvs())?),
                TxnOpResponse::Txn(nested) => OpReply::Txn(self.nested_reply(&nested)?),
            })
        });
        Ok(TxnReply {
            succeeded: reply.succeeded(),
            revision: Revision(0),
            results: results.collect::<Result<_, String>>()?,
        })
    }

    pub fn entries(&self, found: &[KeyValue]) -> Result<Vec<Entry>, String> {
        found.iter().map(|found| self.entry(found)).collect()
    }

    pub fn entry(&self, found: &KeyValue) -> Result<Entry, String> {
        Ok(Entry {
            key: self.relative(found)?,
            value: found.value().to_vec(),
            create_revision: Revision(found.create_revision()),
            mod_revision: Revision(found.mod_revision()),
            lease: Some(LeaseId(found.lease())).filter(|lease| lease.0 != 0),
        })
    }

    /// A key that is no text is nobody's of ours, and becomes one with replacement marks: names of ours have none, so
    /// it is passed over by whoever meets it, as any other strange key.
    pub fn relative(&self, found: &KeyValue) -> Result<String, String> {
        let key = String::from_utf8_lossy(found.key());
        let strange = || format!("the key {key} is not one of fleetcron's");
        key.strip_prefix(&self.root).map(str::to_owned).ok_or_else(strange)
    }
}

fn op_of(is: Is) -> CompareOp {
    match is {
        Is::Equal => CompareOp::Equal,
        Is::NotEqual => CompareOp::NotEqual,
        Is::Less => CompareOp::Less,
        Is::Greater => CompareOp::Greater,
    }
}
