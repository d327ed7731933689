//! Following a range of keys for as long as one likes, whatever happens to the store meanwhile.
//!
//! A list, then a watch from behind it; on any failure the watch is made again from where it was, and where
//! the store has forgotten what lies between, the list is read again. Every few minutes it is read again
//! in any case: the net under everything that a watch might miss.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Entry, Event, KeyRange, Revision, Store, StoreError};

/// How often the whole list is read again, though nothing seems wrong; up to a fifth is taken off at
/// random, so that a fleet does not do it in step.
const LIST_AGAIN: Duration = Duration::from_secs(300);
/// Between two tries, at random up to this much, which doubles up to the most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Where only a person can help there is no hurry, and every try costs the server a password check.
const PAUSE_WHEN_HELPLESS: Duration = Duration::from_secs(10);
/// How many steps may wait for a consumer that is busy.
const WAITING: usize = 64;

/// What one learns by following.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The whole range, which replaces all that was seen before. Comes first, and again now and then.
    All { entries: Vec<Entry>, revision: Revision },
    /// What happened since. No events at all means: in touch again, and what was missed comes next.
    Changes { events: Vec<Event>, revision: Revision },
    /// The store is lost from sight; said once, and followed by one of the others when it is back.
    OutOfTouch { error: StoreError },
}

/// A range being followed, until this is dropped.
pub struct Follow {
    seen: mpsc::Receiver<Seen>,
    contact: Contact,
    task: JoinHandle<()>,
}

impl Follow {
    pub(super) fn start(store: Store, range: KeyRange) -> Follow {
        let (send, seen) = mpsc::channel(WAITING);
        let contact = Contact(Arc::new(Mutex::new(Instant::now())));
        let clock = store.clock();
        let follower = Follower { store, range, send, contact: contact.clone(), position: None, lost: false };
        let task = tokio::spawn(clock.bind(follower.run()));
        Follow { seen, contact, task }
    }

    /// The next thing to know. Safe to cancel: nothing is lost.
    pub async fn next(&mut self) -> Seen {
        match self.seen.recv().await {
            Some(seen) => seen,
            None => match (&mut self.task).await {
                Err(panicked) if panicked.is_panic() => std::panic::resume_unwind(panicked.into_panic()),
                // The task ends only with its receiver, and the runtime with both.
                _ => std::future::pending().await,
            },
        }
    }

    /// How long ago the store was last heard of; counted from the start if never. A quiet store is heard
    /// of every ten seconds or so.
    pub fn since_contact(&self) -> Duration {
        self.contact.0.lock().expect("nobody panics holding a time").elapsed()
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct Contact(Arc<Mutex<Instant>>);

impl Contact {
    fn now(&self) {
        *self.0.lock().expect("nobody panics holding a time") = Instant::now();
    }
}

/// The task behind a [`Follow`].
struct Follower {
    store: Store,
    range: KeyRange,
    send: mpsc::Sender<Seen>,
    contact: Contact,
    /// Where the next watch starts; none when the list has to be read first.
    position: Option<Revision>,
    /// Whether `OutOfTouch` was said and nothing since.
    lost: bool,
}

/// The consumer has dropped its end.
struct NobodyListens;

/// Why a watch has come to its end.
enum Ended {
    /// It is time to list again.
    Time,
    /// It was never there, or for less than a moment.
    Failed(StoreError),
    /// It was there and is no more: it is made again before one speaks of a loss.
    Broke,
}

impl Follower {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.attempt().await {
                Ok(Ok(())) => pause = FIRST_PAUSE,
                Ok(Err(error)) => {
                    let longest = if error.passes() { pause } else { PAUSE_WHEN_HELPLESS };
                    if self.report_loss(error).await.is_err() {
                        return;
                    }
                    sleep(longest.mul_f64(self.store.random())).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(NobodyListens) => return,
            }
        }
    }

    /// Lists if need be, then watches until that ends. An error means that not even this could begin.
    async fn attempt(&mut self) -> Result<Result<(), StoreError>, NobodyListens> {
        let from = match self.position {
            Some(position) => position,
            None => match self.list().await? {
                Ok(position) => position,
                Err(error) => return Ok(Err(error)),
            },
        };
        match self.watch(from).await? {
            Ended::Time | Ended::Failed(StoreError::Compacted(_)) => self.position = None,
            Ended::Broke => {}
            Ended::Failed(error) => return Ok(Err(error)),
        }
        Ok(Ok(()))
    }

    async fn list(&mut self) -> Result<Result<Revision, StoreError>, NobodyListens> {
        let listing = match self.store.list(self.range.clone()).await {
            Ok(listing) => listing,
            Err(error) => return Ok(Err(error)),
        };
        let next = listing.revision.next();
        self.contact.now();
        self.tell(Seen::All { entries: listing.entries, revision: listing.revision }).await?;
        self.position = Some(next);
        Ok(Ok(next))
    }

    async fn watch(&mut self, from: Revision) -> Result<Ended, NobodyListens> {
        let until = Instant::now() + LIST_AGAIN.mul_f64(1.0 - 0.2 * self.store.random());
        let mut watch = match self.store.watch(self.range.clone(), from).await {
            Ok(watch) => watch,
            Err(error) => return Ok(Ended::Failed(error)),
        };
        self.contact.now();
        if self.lost {
            let (events, revision) = (Vec::new(), Revision(from.0 - 1));
            self.tell(Seen::Changes { events, revision }).await?;
        }
        let began = Instant::now();
        loop {
            let seen = match timeout_at(until, watch.next()).await {
                Ok(Ok(seen)) => seen,
                Ok(Err(error)) if error.passes() && began.elapsed() > LONGEST_PAUSE => {
                    return Ok(Ended::Broke);
                }
                Ok(Err(error)) => return Ok(Ended::Failed(error)),
                Err(_) => return Ok(Ended::Time),
            };
            self.contact.now();
            if !seen.events.is_empty() {
                self.tell(Seen::Changes { events: seen.events, revision: seen.revision }).await?;
            }
            self.position = Some(seen.revision.next());
        }
    }

    async fn tell(&mut self, seen: Seen) -> Result<(), NobodyListens> {
        self.send.send(seen).await.map_err(|_| NobodyListens)?;
        self.lost = false;
        Ok(())
    }

    async fn report_loss(&mut self, error: StoreError) -> Result<(), NobodyListens> {
        if self.lost {
            return Ok(());
        }
        tracing::warn!(store = %self.store.describe(), range = ?self.range, %error, "out of touch");
        self.tell(Seen::OutOfTouch { error }).await?;
        self.lost = true;
        Ok(())
    }
}
