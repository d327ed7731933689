//! The words in which one speaks to a store: entries, ranges, compares, transactions and their replies.
//!
//! They mean what etcd means by them; where etcd has a surprise, it is told at the word. Keys are relative
//! to the store's own prefix (`jobs/backup`), so that nothing above `store` knows where the store lies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment in the life of a store: every transaction that changes something makes the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub i64);

impl Revision {
    /// The revision after this one: where a watch starts that follows a list.
    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a lease; it is never used for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub i64);

/// A lease as granted. The TTL is the store's, which may be longer than the one asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    pub ttl: Duration,
}

/// The shortest lease that any store grants; etcd's own lower bound with its default election timeout.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// One key as it stands in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// When the key was made; a key that was deleted and put again is a new one.
    pub create_revision: Revision,
    /// When it was last put, even if with the same value.
    pub mod_revision: Revision,
    pub lease: Option<LeaseId>,
}

/// Which keys: one, or all from a first to before an end, in the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyRange {
    Key(String),
    /// From `start` to before `end`; no end means all keys from `start` on. Empty when `end <= start`.
    Span {
        start: String,
        end: Option<String>,
    },
}

impl KeyRange {
    pub fn key(key: impl Into<String>) -> KeyRange {
        KeyRange::Key(key.into())
    }

    /// All keys that begin with `prefix`; with an empty one, all keys.
    pub fn prefix(prefix: impl Into<String>) -> KeyRange {
        let start = prefix.into();
        let end = after_all_with_prefix(&start);
        KeyRange::Span { start, end }
    }

    /// All keys in `[start, end)`.
    pub fn between(start: impl Into<String>, end: impl Into<String>) -> KeyRange {
        KeyRange::Span { start: start.into(), end: Some(end.into()) }
    }

    /// All keys in `[first, last]`.
    pub fn between_inclusive(first: impl Into<String>, last: impl Into<String>) -> KeyRange {
        // Nothing lies between a key and the same key with a zero byte behind it.
        KeyRange::between(first, last.into() + "\0")
    }

    pub fn contains(&self, key: &str) -> bool {
        match self {
            KeyRange::Key(one) => key == one,
            KeyRange::Span { start, end } => {
                start.as_str() <= key && end.as_deref().is_none_or(|end| key < end)
            }
        }
    }

    /// The same keys as `[start, end)`.
    pub fn bounds(&self) -> (String, Option<String>) {
        match self {
            KeyRange::Key(key) => (key.clone(), Some(key.clone() + "\0")),
            KeyRange::Span { start, end } => (start.clone(), end.clone()),
        }
    }
}

impl From<&str> for KeyRange {
    fn from(key: &str) -> KeyRange {
        KeyRange::key(key)
    }
}

impl From<String> for KeyRange {
    fn from(key: String) -> KeyRange {
        KeyRange::Key(key)
    }
}

impl From<&KeyRange> for KeyRange {
    fn from(range: &KeyRange) -> KeyRange {
        range.clone()
    }
}

/// The least text that is greater than all texts with this prefix, in the order of bytes, which for
/// UTF-8 is the order of characters; none if there is no such text.
pub(super) fn after_all_with_prefix(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // A range of characters steps over the surrogates, which no text contains.
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// How a compare relates what is there to what is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    Equal,
    NotEqual,
    Less,
    Greater,
}

impl Is {
    pub(super) fn holds(self, there_to_given: std::cmp::Ordering) -> bool {
        match self {
            Is::Equal => there_to_given.is_eq(),
            Is::NotEqual => there_to_given.is_ne(),
            Is::Less => there_to_given.is_lt(),
            Is::Greater => there_to_given.is_gt(),
        }
    }
}

/// A condition of a transaction.
///
/// Over a range it must hold for each key in it. Where no key is, revisions count as 0 and a compare of
/// values is *false*, whichever way it compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// No key of the range is there.
    Absent(KeyRange),
    Present(String),
    CreateRevision {
        key: String,
        revision: Revision,
    },
    ModRevision {
        key: String,
        revision: Revision,
    },
    Value {
        key: String,
        is: Is,
        bytes: Vec<u8>,
    },
    /// Every key of the range passes the test. An empty range passes tests of revision 0.
    Each {
        range: KeyRange,
        test: Test,
    },
}

/// What `Compare::Each` asks of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    CreateRevision(Is, Revision),
    ModRevision(Is, Revision),
    Value(Is, Vec<u8>),
}

impl Compare {
    pub fn absent(range: impl Into<KeyRange>) -> Compare {
        Compare::Absent(range.into())
    }

    pub fn present(key: impl Into<String>) -> Compare {
        Compare::Present(key.into())
    }

    pub fn mod_revision(key: impl Into<String>, revision: Revision) -> Compare {
        Compare::ModRevision { key: key.into(), revision }
    }

    pub fn create_revision(key: impl Into<String>, revision: Revision) -> Compare {
        Compare::CreateRevision { key: key.into(), revision }
    }

    pub fn value(key: impl Into<String>, is: Is, bytes: impl Into<Vec<u8>>) -> Compare {
        Compare::Value { key: key.into(), is, bytes: bytes.into() }
    }

    /// Every form as the general one, which is all that a backend has to know.
    pub(super) fn general(&self) -> (KeyRange, Test) {
        let none = Revision(0);
        match self.clone() {
            Compare::Absent(range) => (range, Test::CreateRevision(Is::Equal, none)),
            Compare::Present(key) => (key.into(), Test::CreateRevision(Is::Greater, none)),
            Compare::CreateRevision { key, revision } => {
                (key.into(), Test::CreateRevision(Is::Equal, revision))
            }
            Compare::ModRevision { key, revision } => (key.into(), Test::ModRevision(Is::Equal, revision)),
            Compare::Value { key, is, bytes } => (key.into(), Test::Value(is, bytes)),
            Compare::Each { range, test } => (range, test),
        }
    }
}

/// One step of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Put {
        key: String,
        value: Vec<u8>,
        /// The key goes when the lease does. `None` also takes the key off a lease it was on.
        lease: Option<LeaseId>,
    },
    Delete(KeyRange),
    /// Sees what earlier steps of the same transaction have done.
    Get {
        range: KeyRange,
        limit: Option<usize>,
    },
    Txn(Box<Txn>),
}

impl Op {
    pub fn put(key: impl Into<String>, value: impl Into<Vec<u8>>) -> Op {
        Op::put_on(key, value, None)
    }

    /// Puts a key that lives as long as the lease, when there is one.
    pub fn put_on(
        key: impl Into<String>,
        value: impl Into<Vec<u8>>,
        lease: impl Into<Option<LeaseId>>,
    ) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: lease.into() }
    }

    pub fn delete(range: impl Into<KeyRange>) -> Op {
        Op::Delete(range.into())
    }

    pub fn get(range: impl Into<KeyRange>) -> Op {
        Op::Get { range: range.into(), limit: None }
    }

    pub fn get_first(range: impl Into<KeyRange>, limit: usize) -> Op {
        Op::Get { range: range.into(), limit: Some(limit) }
    }
}

impl From<Txn> for Op {
    fn from(txn: Txn) -> Op {
        Op::Txn(Box::new(txn))
    }
}

/// If every compare holds then some steps, otherwise others; all of it at once.
///
/// All compares, also those of nested transactions, are judged before the first step is done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Txn {
    pub compare: Vec<Compare>,
    pub then: Vec<Op>,
    pub otherwise: Vec<Op>,
}

impl Txn {
    pub fn new() -> Txn {
        Txn::default()
    }

    pub fn when(compare: impl IntoIterator<Item = Compare>) -> Txn {
        Txn { compare: compare.into_iter().collect(), ..Txn::default() }
    }

    pub fn then(mut self, ops: impl IntoIterator<Item = Op>) -> Txn {
        self.then.extend(ops);
        self
    }

    pub fn otherwise(mut self, ops: impl IntoIterator<Item = Op>) -> Txn {
        self.otherwise.extend(ops);
        self
    }

    /// Whether doing this may change something, so that doing it twice is not doing it once.
    pub fn may_write(&self) -> bool {
        self.then.iter().chain(&self.otherwise).any(|op| match op {
            Op::Put { .. } | Op::Delete(_) => true,
            Op::Get { .. } => false,
            Op::Txn(nested) => nested.may_write(),
        })
    }
}

/// What became of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxnReply {
    /// Whether all compares held.
    pub succeeded: bool,
    /// The store's revision afterwards: the transaction's own if it changed anything. A nested reply has
    /// that of the whole.
    pub revision: Revision,
    /// One for each step of the branch taken.
    pub results: Vec<OpReply>,
}

impl TxnReply {
    /// The entries that step `index` of the branch taken has read.
    ///
    /// # Panics
    /// If that step is not a get: the caller wrote the transaction.
    pub fn got(&self, index: usize) -> &[Entry] {
        match &self.results[index] {
            OpReply::Got(entries) => entries,
            other => panic!("step {index} of the transaction is not a get: {other:?}"),
        }
    }

    /// The reply of the transaction nested as step `index` of the branch taken.
    ///
    /// # Panics
    /// If that step is none: the caller wrote the transaction.
    pub fn nested(&self, index: usize) -> &TxnReply {
        match &self.results[index] {
            OpReply::Txn(reply) => reply,
            other => panic!("step {index} of the transaction is no transaction: {other:?}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpReply {
    Put,
    /// How many keys there were to delete.
    Deleted(u64),
    Got(Vec<Entry>),
    Txn(TxnReply),
}

/// A whole range at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub revision: Revision,
}

/// The most keys that one page holds. etcd replies of 4 MiB and more need this kept small.
pub const PAGE: usize = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    Ascending,
    /// For newest-first lists. etcd sorts the *whole* range for each such page, so keep it narrow.
    Descending,
}

/// Which part of a range to read.
#[derive(Debug, Clone, Default)]
pub struct PageSpec {
    /// Only keys that come after this one, in the order asked for.
    pub after: Option<String>,
    /// How many; `None` or more than `PAGE` means `PAGE`.
    pub limit: Option<usize>,
    /// As it was then. The first page tells its revision; ask for the others at that one.
    pub at: Option<Revision>,
    pub order: Order,
    /// Entries come without their values.
    pub keys_only: bool,
}

impl PageSpec {
    pub(super) fn limit(&self) -> usize {
        self.limit.unwrap_or(PAGE).clamp(1, PAGE)
    }

    /// What is left of a range for this page, as `[start, end)`.
    pub(super) fn rest_of(&self, range: &KeyRange) -> KeyRange {
        let (mut start, mut end) = range.bounds();
        if let Some(after) = &self.after {
            match self.order {
                Order::Ascending => start = start.max(after.clone() + "\0"),
                Order::Descending => end = Some(end.map_or(after.clone(), |end| end.min(after.clone()))),
            }
        }
        KeyRange::Span { start, end }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub entries: Vec<Entry>,
    /// At which the page was read.
    pub revision: Revision,
    /// Whether there are keys behind the last one.
    pub more: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Put(Entry),
    Delete { key: String, mod_revision: Revision },
}

impl Event {
    pub fn key(&self) -> &str {
        match self {
            Event::Put(entry) => &entry.key,
            Event::Delete { key, .. } => key,
        }
    }

    pub fn revision(&self) -> Revision {
        match self {
            Event::Put(entry) => entry.mod_revision,
            Event::Delete { mod_revision, .. } => *mod_revision,
        }
    }
}

/// What a watch has seen, in the order it happened. The events of one revision always come together.
/// No events at all is a sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events {
    /// Everything in the range up to here has been seen: go on from the next one.
    pub revision: Revision,
    pub events: Vec<Event>,
}

/// What a store says of itself, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Such as `etcd 3.6.14` or `SQLite 3.54.1`.
    pub version: String,
    pub revision: Revision,
    /// What the store complains of, such as etcd's alarm that it is full.
    pub complaints: Vec<String>,
}
