//! The leave: the only description of an orderly stop.

use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use super::Daemon;
use super::signals::Signal;
use crate::run::Order;

/// Beyond its `kill_after`, how long a run that was told to stop may take to end and to be recorded.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// How far the leave has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hurry {
    /// Runs end by themselves.
    Wait,
    /// They were asked to stop.
    Asked,
    /// They were told to.
    Told,
}

impl Daemon {
    /// Plans nothing more, lets runs end, writes their records, gives the lease back, goes.
    ///
    /// A second signal asks the runs to stop at once, a third ends them.
    pub(super) async fn leave(mut self) {
        self.leaving.cancel();
        self.waiting.clear();
        let mut hurry = Hurry::Wait;
        let mut until = Instant::now() + self.options.drain_timeout;
        // A race is over in a moment, unless the store does not answer: then nobody knows when.
        let races_until = Instant::now() + LAST_WORDS;
        if !self.tasks.is_empty() {
            info!(runs = self.hands.len(), timeout = ?self.options.drain_timeout,
                  "stopping: waiting for what runs; another signal ends it");
        }
        while !self.tasks.is_empty() {
            self.hear_of_wins();
            let races = self.hands.values().any(|hand| !hand.held);
            let next = async {
                tokio::select! {
                    ended = self.tasks.join_next() => {
                        if let Some(Ok((fire, _))) = &ended {
                            self.hands.remove(fire);
                        }
                        None
                    }
                    signal = self.signals.next() => Some(signal),
                }
            };
            let hurries = match timeout_at(if races { until.min(races_until) } else { until }, next).await {
                Err(_) if races && Instant::now() < until => {
                    warn!(
                        "the store does not answer: races for fires and records of what was not run are given up"
                    );
                    self.let_go_of_races();
                    false
                }
                Ok(None | Some(Signal::Reload)) => false,
                Ok(Some(Signal::Stop)) | Err(_) => true,
            };
            if !hurries {
                continue;
            }
            hurry = match hurry {
                Hurry::Wait => {
                    self.order(Order::Cancel("shutdown".to_owned()));
                    let slowest = self.hands.values().map(|hand| hand.kill_after).max().unwrap_or_default();
                    until = Instant::now() + slowest + LAST_WORDS;
                    Hurry::Asked
                }
                Hurry::Asked => {
                    self.order(Order::Kill("shutdown".to_owned()));
                    until = Instant::now() + LAST_WORDS;
                    Hurry::Told
                }
                Hurry::Told => {
                    warn!(
                        runs = self.hands.len(),
                        "not all records could be written; the next start of this node writes them"
                    );
                    self.tasks.abort_all();
                    break;
                }
            };
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

    fn order(&self, order: Order) {
        info!(runs = self.hands.len(), ?order, "stopping what runs");
        for hand in self.hands.values() {
            hand.orders.send_replace(order.clone());
        }
    }
}
