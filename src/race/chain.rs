//! Chains: the end of one job's run sets others off.
//!
//! The transaction that turns a lock into a record also puts the requests of the jobs that come after, so a run that
//! ends sets each of them off once, whoever writes its record and however often that is sent.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use sha2::{Digest, Sha256};
use tokio::sync::watch;
use ulid::Ulid;

use crate::fail_point;
use crate::fire::{Fire, FireId};
use crate::job::{After, EndsIn, Job, JobName};
use crate::record::{Outcome, Record};
use crate::store::values::{self, ChainState, Definition, Request};
use crate::store::{Compare, Entry, Op, Revision, Store, StoreError, Txn, TxnReply, keys};

/// The jobs that come after others, as this node knows them. Clones share it: the daemon keeps it, and what ends looks
/// into it.
#[derive(Clone)]
pub struct Chains {
    jobs: Arc<RwLock<BTreeMap<JobName, (Revision, After)>>>,
    /// The store has told its jobs at least once.
    are_known: Arc<watch::Sender<bool>>,
}

impl Default for Chains {
    fn default() -> Chains {
        Chains { jobs: Arc::default(), are_known: Arc::new(watch::Sender::new(false)) }
    }
}

impl Chains {
    /// All that the store has are taken in.
    pub fn are_known(&self) {
        self.are_known.send_replace(true);
    }

    /// Takes a definition in.
    pub fn put(&self, job: &Job, definition: Revision) {
        let mut known = self.jobs.write().expect("nobody panics holding it");
        match job.after.clone().filter(|_| job.enabled) {
            Some(after) => _ = known.insert(job.name.clone(), (definition, after)),
            None => _ = known.remove(&job.name),
        }
    }

    pub fn remove(&self, job: &JobName) {
        self.jobs.write().expect("nobody panics holding it").remove(job);
    }

    /// What the end that a record tells of sets off, or brings nearer. Waits until the store has told its jobs: what a
    /// node finds ended at its start sets others off too.
    pub async fn links(&self, record: &Record) -> Links {
        // The sender lives as long as this.
        _ = self.are_known.subscribe().wait_for(|are_known| *are_known).await;
        let known = self.jobs.read().expect("nobody panics holding it");
        let links: Vec<Link> = known
            .iter()
            .filter(|(_, (_, after))| counts(after, record))
            .map(|(follower, (definition, after))| Link {
                follower: follower.clone(),
                definition: *definition,
                after: after.clone(),
                state: None,
            })
            .collect();
        Links { fire: record.fire.clone(), record: record.clone(), links }
    }
}

/// Whether a record is an end that `after` waits for.
fn counts(after: &After, record: &Record) -> bool {
    use Outcome::{Cancelled, Failed, Lost, Succeeded, TimedOut};
    let is_meant = match after.on {
        EndsIn::Success => record.outcome == Succeeded,
        EndsIn::Failure => matches!(record.outcome, Failed | TimedOut | Lost),
        EndsIn::Any => matches!(record.outcome, Succeeded | Failed | TimedOut | Lost | Cancelled),
    };
    is_meant && after.jobs.contains(&record.fire.job)
}

/// What one end does to the jobs that come after.
pub struct Links {
    fire: Fire,
    record: Record,
    links: Vec<Link>,
}

struct Link {
    follower: JobName,
    definition: Revision,
    after: After,
    /// What else has ended since its own last run, where all have to. None: not read yet.
    state: Option<(Option<Revision>, BTreeMap<String, String>)>,
}

impl Link {
    /// Whether it runs now.
    fn is_complete(&self, by: &JobName) -> bool {
        let ended = self.state.as_ref().map(|(_, ended)| ended);
        let has_ended = |job: &&JobName| ended.is_some_and(|ended| ended.contains_key(job.as_str()));
        !self.after.all || self.after.jobs.iter().filter(|job| *job != by).all(|job| has_ended(&job))
    }
}

impl Links {
    /// Whether nothing comes after.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Whether something has to be read before the first try: see [`Links::read`].
    fn is_unread(&self) -> bool {
        self.links.iter().any(|link| link.after.all && link.state.is_none())
    }

    /// Reads how far the jobs have come, where that matters.
    pub async fn read(&mut self, store: &Store) -> Result<(), StoreError> {
        if !self.is_unread() {
            return Ok(());
        }
        fail_point!("chain.read");
        let reply = store.txn(Txn::new().then(self.gets())).await?;
        self.take_in(&reply, 0);
        Ok(())
    }

    /// What is to be read again when a try comes to nothing.
    pub fn gets(&self) -> Vec<Op> {
        let both = |link: &Link| [Op::get(keys::job(&link.follower)), Op::get(keys::chain(&link.follower))];
        self.links.iter().flat_map(both).collect()
    }

    /// Takes in what [`Links::gets`] has brought, from this position of the reply on. A job that is another by now may
    /// come after others, or after none.
    pub fn take_in(&mut self, reply: &TxnReply, first: usize) {
        let (record, mut index) = (&self.record, first);
        self.links.retain_mut(|link| {
            let (job, chain) = (reply.got(index).first(), reply.got(index + 1).first());
            index += 2;
            let definition = job.and_then(|entry| {
                let found = Definition::decode(&entry.key, &entry.value).ok()?;
                Some((entry.mod_revision, found.job.after.filter(|_| found.job.enabled)?))
            });
            let Some((revision, after)) = definition else { return false };
            (link.definition, link.after) = (revision, after);
            link.state = Some((chain.map(|entry| entry.mod_revision), ended(chain)));
            counts(&link.after, record)
        });
    }

    /// That nothing has changed of what this rests on.
    pub fn compares(&self) -> Vec<Compare> {
        let of = |link: &Link| {
            let chain = link.after.all.then(|| {
                let key = keys::chain(&link.follower);
                match link.state.as_ref().and_then(|(revision, _)| *revision) {
                    Some(revision) => Compare::mod_revision(key, revision),
                    None => Compare::absent(key),
                }
            });
            [Some(Compare::mod_revision(keys::job(&link.follower), link.definition)), chain]
        };
        self.links.iter().flat_map(of).flatten().collect()
    }

    /// The requests of those that run now; of the others, what they have come to.
    pub fn writes(&self) -> Vec<Op> {
        let mut ops = Vec::new();
        for link in &self.links {
            let chain = keys::chain(&link.follower);
            if link.is_complete(&self.fire.job) {
                let request = Request::new(self.fire.to_string(), self.record.written_at);
                ops.push(Op::put(keys::request(&self.set_off_of(link)), values::encode(&request)));
                if link.after.all {
                    ops.push(Op::delete(chain));
                }
            } else {
                let mut ended = link.state.as_ref().map(|(_, ended)| ended.clone()).unwrap_or_default();
                ended.insert(self.fire.job.to_string(), self.fire.id.to_string());
                ops.push(Op::put(chain, values::encode(&ChainState::new(ended))));
            }
        }
        ops
    }

    /// The fires that are set off.
    pub fn set_off(&self) -> Vec<Fire> {
        let complete = self.links.iter().filter(|link| link.is_complete(&self.fire.job));
        complete.map(|link| self.set_off_of(link)).collect()
    }

    /// The names of what a transaction with this in it is about, beside the fire's own: see [`crate::store::Together`].
    pub fn about(&self) -> impl Iterator<Item = String> {
        self.links.iter().map(|link| link.follower.to_string())
    }

    /// Its id tells when it was set off; the rest of it is of this end and no other, so sending twice is asking once.
    fn set_off_of(&self, link: &Link) -> Fire {
        let digest = Sha256::digest(format!("{} {}", self.fire, link.follower));
        let random = u128::from_be_bytes(digest[..16].try_into().expect("it has 32 bytes"));
        let at = u64::try_from(self.record.written_at.timestamp_millis()).unwrap_or(0);
        Fire::new(link.follower.clone(), FireId::Chain(Ulid::from_parts(at, random)))
    }
}

fn ended(entry: Option<&Entry>) -> BTreeMap<String, String> {
    let state = entry.and_then(|entry| values::decode::<ChainState>(&entry.key, &entry.value).ok());
    // One that cannot be read is begun anew: a chain that waits once more harms less than one that runs too soon.
    state.unwrap_or_default().ended
}
