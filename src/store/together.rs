//! Transactions of many tasks in one round trip.
//!
//! At a busy instant hundreds of fires are claimed at once, and each transaction by itself costs the store a round
//! trip and a sync of its disk. So those that come while others are on their way are sent as one, nested in it: each
//! has its own compares, its own outcome and its own reply.
//!
//! All compares of such a transaction are judged before the first write, so two that are about one thing must not be
//! in the same one: each is handed in with the name of what it is about. And an error rejects the whole, so it is
//! then sent again in halves, until the one that is wrong is alone.

use std::collections::{HashSet, VecDeque};

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use super::{Op, OpReply, Store, StoreError, Txn, TxnReply};

/// How many go in one round trip. etcd allows 128 operations in a transaction, nested ones included by level.
const MOST: usize = 64;
/// How many round trips are under way at once: while one is, the next gathers.
const UNDER_WAY: usize = 2;
/// How many may wait before who hands in another has to.
const WAITING: usize = 1024;

/// Sends transactions together. Clones share the round trips.
#[derive(Clone)]
pub struct Together {
    store: Store,
    hand_in: mpsc::Sender<Part>,
    _sender: std::sync::Arc<Ended>,
}

/// Ends the sender with the last handle.
struct Ended(JoinHandle<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Part {
    about: Vec<String>,
    txn: Txn,
    reply: oneshot::Sender<Result<TxnReply, StoreError>>,
}

impl Together {
    pub fn new(store: Store) -> Together {
        let (hand_in, parts) = mpsc::channel(WAITING);
        let sender = tokio::spawn(store.clock().bind(send_all(store.clone(), parts)));
        Together { store, hand_in, _sender: std::sync::Arc::new(Ended(sender)) }
    }

    /// The store itself, for all that needs no company.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// As [`Store::txn`], in company. `about` names what it is about: of one name never two go together.
    pub async fn txn(
        &self,
        about: impl IntoIterator<Item = impl Into<String>>,
        txn: Txn,
    ) -> Result<TxnReply, StoreError> {
        let (reply, answer) = oneshot::channel();
        let part = Part { about: about.into_iter().map(Into::into).collect(), txn, reply };
        let gone = |why: &str| StoreError::NoAnswer { store: self.store.describe(), why: why.to_owned() };
        if self.hand_in.send(part).await.is_err() {
            return Err(gone("this process is ending"));
        }
        answer.await.unwrap_or_else(|_| Err(gone("this process is ending")))
    }
}

/// Gathers and sends, for as long as somebody may hand something in.
async fn send_all(store: Store, mut parts: mpsc::Receiver<Part>) {
    let mut waiting = VecDeque::new();
    let mut under_way: JoinSet<()> = JoinSet::new();
    loop {
        while under_way.len() < UNDER_WAY && !waiting.is_empty() {
            let batch = next_batch(&mut waiting);
            under_way.spawn(store.clock().bind(send(store.clone(), batch)));
        }
        tokio::select! {
            biased;
            Some(ended) = under_way.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
            part = parts.recv() => match part {
                Some(part) => {
                    waiting.push_back(part);
                    // All that came meanwhile goes along.
                    while let Ok(part) = parts.try_recv() {
                        waiting.push_back(part);
                    }
                }
                None => return,
            },
        }
    }
}

/// The longest waiting ones, no two about the same.
fn next_batch(waiting: &mut VecDeque<Part>) -> Vec<Part> {
    let mut about = HashSet::new();
    let (mut batch, mut later) = (Vec::new(), VecDeque::new());
    while batch.len() < MOST
        && let Some(part) = waiting.pop_front()
    {
        if part.about.iter().any(|name| about.contains(name)) {
            later.push_back(part);
        } else {
            about.extend(part.about.iter().cloned());
            batch.push(part);
        }
    }
    later.append(waiting);
    *waiting = later;
    batch
}

/// Sends a batch, in halves again if it is refused, and tells each its own outcome.
async fn send(store: Store, batch: Vec<Part>) {
    let mut batches = vec![batch];
    while let Some(mut batch) = batches.pop() {
        let result = match &batch[..] {
            [one] => store.txn(one.txn.clone()).await.map(|reply| vec![reply]),
            many => {
                let nested = many.iter().map(|part| Op::from(part.txn.clone()));
                store.txn(Txn::new().then(nested)).await.map(nested_replies)
            }
        };
        match result {
            Ok(replies) => {
                for (part, reply) in batch.into_iter().zip(replies) {
                    // Who asked may have gone.
                    let _ = part.reply.send(Ok(reply));
                }
            }
            // Nothing was done, and one of them may be why.
            Err(error) if batch.len() > 1 && !error.passes() => {
                let half = batch.split_off(batch.len() / 2);
                batches.extend([half, batch]);
            }
            Err(error) => {
                for part in batch {
                    let _ = part.reply.send(Err(error.clone()));
                }
            }
        }
    }
}

fn nested_replies(reply: TxnReply) -> Vec<TxnReply> {
    let nested = |result| match result {
        OpReply::Txn(reply) => reply,
        other => panic!("a nested transaction has a nested reply, not {other:?}"),
    };
    reply.results.into_iter().map(nested).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::sim::{Fault, Faults, Sim};
    use super::super::{Compare, KeyRange, Revision};
    use super::*;

    /// Creates a key, once.
    fn create(key: &str) -> Txn {
        Txn::when([Compare::absent(key)]).then([Op::put(key, "x")]).otherwise([Op::get(key)])
    }

    async fn all(together: &Together, txns: Vec<(String, Txn)>) -> Vec<Result<TxnReply, StoreError>> {
        let mut tasks = JoinSet::new();
        for (index, (about, txn)) in txns.into_iter().enumerate() {
            let together = together.clone();
            tasks.spawn(async move { (index, together.txn([about], txn).await) });
        }
        let mut replies = tasks.join_all().await;
        replies.sort_by_key(|(index, _)| *index);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    fn slow(sim: &Sim) {
        let delay = Duration::from_millis(1)..Duration::from_millis(2);
        sim.set_faults(Faults { delay, ..Faults::default() });
    }

    #[tokio::test(start_paused = true)]
    async fn each_has_its_own_outcome_and_few_round_trips_are_made() {
        let sim = Sim::new(1);
        slow(&sim);
        let together = Together::new(sim.client("a"));
        let txns =
            (0..200).map(|number| (number.to_string(), create(&format!("k/{}", number % 150)))).collect();
        let replies = all(&together, txns).await;
        for (number, reply) in replies.into_iter().enumerate() {
            assert_eq!(reply.unwrap().succeeded, number < 150, "{number}");
        }
        assert_eq!(sim.dump().len(), 150);
        // 200 transactions in a handful of revisions.
        assert!(sim.revision() <= Revision(10), "{}", sim.revision());
    }

    #[tokio::test(start_paused = true)]
    async fn two_about_the_same_never_go_together() {
        let sim = Sim::new(1);
        slow(&sim);
        let together = Together::new(sim.client("a"));
        // Together, both would find the range empty.
        let claim = |number: usize| {
            let key = format!("lane/{number}");
            let alone = Compare::absent(KeyRange::prefix("lane/"));
            ("lane".to_owned(), Txn::when([alone]).then([Op::put(key, "x")]))
        };
        let replies = all(&together, (0..50).map(claim).collect()).await;
        let won = replies.into_iter().filter(|reply| reply.as_ref().unwrap().succeeded).count();
        assert_eq!((won, sim.dump().len()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_refused_harms_no_other() {
        let sim = Sim::new(1);
        slow(&sim);
        let together = Together::new(sim.client("a"));
        let wrong = Txn::new().then([Op::put("w", "1"), Op::put("w", "2")]);
        let mut txns: Vec<_> =
            (0..40).map(|number| (number.to_string(), create(&format!("k/{number}")))).collect();
        txns.insert(17, ("wrong".to_owned(), wrong));
        let replies = all(&together, txns).await;
        for (index, reply) in replies.into_iter().enumerate() {
            match index {
                17 => assert!(matches!(reply, Err(StoreError::Rejected(_))), "{reply:?}"),
                _ => assert!(reply.unwrap().succeeded, "{index}"),
            }
        }
        assert_eq!(sim.dump().len(), 40);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_lost_is_lost_for_all_that_went_together() {
        let sim = Sim::new(1);
        let together = Together::new(sim.client("a"));
        sim.at_next_change("a", Fault::LoseReply);
        let txns = (0..20).map(|number| (number.to_string(), create(&format!("k/{number}")))).collect();
        let replies = all(&together, txns).await;
        assert!(replies.iter().any(|reply| matches!(reply, Err(StoreError::NoAnswer { .. }))));
        // Asked once more, each finds what it did.
        let txns = (0..20).map(|number| (number.to_string(), create(&format!("k/{number}")))).collect();
        for (before, now) in replies.iter().zip(all(&together, txns).await) {
            assert!(!now.unwrap().succeeded, "{before:?}");
        }
        assert_eq!(sim.dump().len(), 20);
    }
}
