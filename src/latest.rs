//! The latest value of something, for many tasks that wait for it to change.
//!
//! As tokio's `watch`, but for one thing: who waits is woken in the order in which the waiting began. There it is at
//! random, and a simulation could not be repeated. Never keeps what came between.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

/// Tells the latest value. What waits hears of it when this is dropped.
pub struct Sender<T>(Arc<Shared<T>>);

/// Hears of the latest value. Clones hear of it each for themselves.
#[derive(Clone)]
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// The sender is gone: nothing comes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

struct Shared<T> {
    now: Mutex<Now<T>>,
    news: Notify,
}

struct Now<T> {
    value: T,
    /// Counts the values.
    number: u64,
    closed: bool,
}

pub fn channel<T: Clone>(value: T) -> (Sender<T>, Receiver<T>) {
    let shared =
        Arc::new(Shared { now: Mutex::new(Now { value, number: 0, closed: false }), news: Notify::new() });
    (Sender(shared.clone()), Receiver { shared, seen: 0 })
}

impl<T: Clone> Sender<T> {
    pub fn send(&self, value: T) {
        let mut now = self.0.now();
        now.value = value;
        now.number += 1;
        drop(now);
        self.0.news.notify_waiters();
    }

    /// One more who hears of what comes from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        let seen = self.0.now().number;
        Receiver { shared: self.0.clone(), seen }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.now().closed = true;
        self.0.news.notify_waiters();
    }
}

impl<T: Clone> Receiver<T> {
    pub fn get(&self) -> T {
        self.shared.now().value.clone()
    }

    /// The same, and from here on only what comes after it is a change.
    pub fn take_in(&mut self) -> T {
        let now = self.shared.now();
        self.seen = now.number;
        now.value.clone()
    }

    /// Waits for a value after the one last taken in or waited for. Safe to drop while it waits.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            // Before the look, so that nothing comes between the two.
            let news = self.shared.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            {
                let now = self.shared.now();
                if now.number != self.seen {
                    self.seen = now.number;
                    return Ok(());
                }
                if now.closed {
                    return Err(Closed);
                }
            }
            news.await;
        }
    }
}

impl<T> Shared<T> {
    fn now(&self) -> MutexGuard<'_, Now<T>> {
        self.now.lock().expect("nobody panics while it copies a value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_latest_is_heard_of_once_by_each_and_the_end_too() {
        let (tell, mut one) = channel(1);
        let mut two = one.clone();
        tell.send(2);
        tell.send(3);
        assert_eq!((one.changed().await, one.get()), (Ok(()), 3));
        assert_eq!(two.take_in(), 3);
        let mut three = tell.subscribe();
        let waiting =
            tokio::spawn(async move { (three.changed().await, three.get(), three.changed().await) });
        tokio::task::yield_now().await;
        tell.send(4);
        tokio::task::yield_now().await;
        assert_eq!(two.changed().await, Ok(()));
        drop(tell);
        assert_eq!(waiting.await.unwrap(), (Ok(()), 4, Err(Closed)));
        assert_eq!(two.changed().await, Err(Closed));
        // What came before the end is heard of all the same.
        assert_eq!((one.changed().await, one.get(), one.changed().await), (Ok(()), 4, Err(Closed)));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_waits_is_woken_in_the_order_in_which_the_waiting_began() {
        let (tell, hear) = channel(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..20 {
            let (mut hear, woken) = (hear.clone(), woken.clone());
            tasks.spawn(async move {
                hear.changed().await.unwrap();
                woken.lock().unwrap().push(number);
            });
        }
        tokio::task::yield_now().await;
        tell.send(1);
        tasks.join_all().await;
        assert_eq!(*woken.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }
}
