//! A busy lane: the fire that has it is asked to stop, and is waited for.
//!
//! Nothing here decides who comes next: when the lane is free, whoever waited claims.

use tokio::time::sleep;

use super::claim::pause_after;
use crate::fail_point;
use crate::fire::Fire;
use crate::store::values::{self, CancelRequest};
use crate::store::{Compare, Event, KeyRange, Op, Seen, Store, StoreError, Txn, keys};

/// Asks the node that has a fire in hand to stop it, for as long as it takes to know that it was asked. Where the fire
/// has no lock any more, or was asked to stop before, nothing is done.
///
/// Errors: the store refuses.
pub async fn ask_to_stop(store: &Store, fire: &Fire, request: &CancelRequest) -> Result<(), StoreError> {
    let key = keys::cancel_request(fire);
    loop {
        // Safe when several do it at once: the first counts. And none is left behind, since it is only there with the
        // lock, and whoever deletes that deletes this.
        let txn = Txn::when([Compare::present(keys::lock(fire)), Compare::absent(key.as_str())])
            .then([Op::put(key.as_str(), values::encode(request))]);
        fail_point!("stop.send");
        match store.txn(txn).await {
            Ok(_) => return Ok(()),
            Err(error) => {
                let pause = pause_after(store, &error).ok_or(error)?;
                fail_point!("stop.pause");
                sleep(pause).await;
            }
        }
    }
}

/// Waits until a fire has no lock any more. Safe to drop while it waits.
pub async fn until_gone(store: &Store, fire: &Fire) {
    let mut lock = store.follow(KeyRange::key(keys::lock(fire)));
    loop {
        fail_point!("lane.wait");
        let is_gone = match lock.next().await {
            Seen::All { entries, .. } => entries.is_empty(),
            Seen::Changes { events, .. } => events.iter().any(|event| matches!(event, Event::Delete { .. })),
            Seen::OutOfTouch { .. } => false,
        };
        if is_gone {
            return;
        }
    }
}
