//! Requests to cancel: who has the fire in hand obeys them.
//!
//! A request is there for as long as the fire's lock is, so whoever has the fire next obeys it as well.

use std::collections::HashMap;

use tracing::{info, warn};

use super::Daemon;
use crate::fire::Fire;
use crate::run::Order;
use crate::store::values::{self, CancelRequest};
use crate::store::{Entry, keys};

/// What is asked for now, by fire: the reason that its record will have.
#[derive(Default)]
pub(super) struct Cancels(HashMap<Fire, String>);

impl Cancels {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes a request in. None: it is not one of this kind.
    pub fn put(&mut self, entry: &Entry) -> Option<Fire> {
        let fire = keys::fire_to_cancel(&entry.key)?;
        let reason = match values::decode::<CancelRequest>(&entry.key, &entry.value) {
            Ok(request) => request.reason,
            Err(error) => {
                warn!(%error, "what is to be cancelled is, though nobody can tell why");
                "cancelled".to_owned()
            }
        };
        self.0.insert(fire.clone(), reason);
        Some(fire)
    }

    pub fn remove(&mut self, key: &str) {
        if let Some(fire) = keys::fire_to_cancel(key) {
            self.0.remove(&fire);
        }
    }

    pub fn order(&self, fire: &Fire) -> Option<Order> {
        self.0.get(fire).cloned().map(Order::Cancel)
    }
}

impl Daemon {
    /// Has a fire stopped that is to be cancelled, if this node has it in hand.
    pub(super) fn obey(&mut self, fire: &Fire) {
        let Some(order) = self.cancels.order(fire) else { return };
        if let Some(hand) = self.hands.get(fire) {
            let is_new = hand.orders.send_if_modified(|last| {
                let is_new = *last == Order::GoOn;
                if is_new {
                    *last = order.clone();
                }
                is_new
            });
            if is_new {
                info!(job = %fire.job, fire = %fire.id, ?order, "to be cancelled");
            }
        } else if let Some(found) = self.retries.take(fire) {
            info!(job = %fire.job, fire = %fire.id, ?order, "to be cancelled, while it waits for its next attempt");
            let job = self.job_of(&found);
            self.take_back(found, job, order);
        }
    }
}
