//! The leave: the only description of an orderly stop.
//!
//! A stop for an upgrade or a restart touches no command: each goes on under its guard, for at least `stop_hold`, and
//! the next daemon takes it back. When the machine goes down, commands are asked to stop and their fires handed back.

use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use super::Daemon;
use super::signals::Signal;
use crate::run::Order;

/// How long the store is waited for at the end, beyond what commands may take.
const LAST_WORDS: Duration = Duration::from_secs(10);

impl Daemon {
    /// Plans nothing more, parts from what runs, writes the records of what has ended, gives the lease back, goes.
    ///
    /// A second signal does not wait for the store any more.
    pub(super) async fn leave(mut self) {
        self.leaving.cancel();
        self.waiting.clear();
        self.queued.clear();
        let going_down = self.signals.machine_goes_down().await;
        self.hear_of_wins();
        let (order, patience) = match going_down {
            true => {
                let slowest = self.hands.values().map(|hand| hand.kill_after).max().unwrap_or_default();
                info!(runs = self.hands.len(), "the machine goes down: what runs is stopped and handed back");
                (Order::Shutdown, slowest + LAST_WORDS)
            }
            false => {
                let stop_hold = self.options.stop_hold;
                info!(runs = self.hands.len(), ?stop_hold, "stopping: what runs goes on without this daemon");
                (Order::Part { stop_hold }, LAST_WORDS)
            }
        };
        for hand in self.hands.values() {
            hand.orders.send_replace(order.clone());
        }
        let until = Instant::now() + patience;
        while !self.tasks.is_empty() {
            let next = async {
                tokio::select! {
                    biased;
                    ended = self.tasks.join_next() => {
                        if let Some(Ok((fire, _))) = &ended {
                            self.hands.remove(fire);
                        }
                        false
                    }
                    signal = self.signals.next() => signal == Signal::Stop,
                }
            };
            let hurry = timeout_at(until, next).await;
            if hurry != Ok(false) {
                // Each goes on as long as its lock says; what has ended is on disk.
                warn!(
                    left = self.hands.len(),
                    "the store does not answer: not everything could be written; the \
                      next start of this node sees to it"
                );
                self.tasks.abort_all();
                break;
            }
        }
        // Deregistered last: until the records are written, other nodes must still see this one alive.
        self.gone.cancel();
        while let Ok(Some(ended)) = timeout(LAST_WORDS, self.services.join_next()).await {
            if let Err(error) = super::service_end(ended) {
                warn!(%error, "while leaving");
            }
        }
        info!(node = %self.options.node, "stopped");
    }
}
