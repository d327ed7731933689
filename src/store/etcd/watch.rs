//! A watch, which etcd lets die in silence unless one asks.

use std::time::Duration;

use etcd_client::{Client, EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::time::{Instant, timeout_at};

use super::trouble::Trouble;
use super::{EtcdStore, LARGEST_REPLY};
use crate::store::{Event, Events, KeyRange, Revision, StoreError};

/// After this much silence the server is asked for a sign of life…
const HEARTBEAT: Duration = Duration::from_secs(10);
/// …and if none comes within this time, the watch is dead.
const HEARTBEAT_PATIENCE: Duration = Duration::from_secs(3);

/// One watch on a stream of its own.
pub(crate) struct EtcdWatch {
    store: EtcdStore,
    stream: WatchStream,
    /// Nothing before this was asked for.
    from: Revision,
    /// Everything up to here has been returned. Only events move it: servers before 3.4.25 may answer for
    /// a revision before they have sent its events (etcd issue 15220).
    seen: Revision,
    /// The fragments so far of a message that is not complete.
    pending: Vec<Event>,
    /// When something last came.
    heard: Instant,
    /// When a sign of life was asked for that has not come.
    asked: Option<Instant>,
}

impl EtcdWatch {
    /// Opens the watch and waits until the server says that it has.
    pub(super) async fn open(
        client: Client,
        store: EtcdStore,
        range: KeyRange,
        from: Revision,
    ) -> Result<EtcdWatch, Trouble> {
        let (key, end) = store.0.keys.bounds(&range);
        // Without fragments a replay of more than 4 MiB ends the stream, each time again.
        // One revision early: etcd 3.5.8 and later give no sign of life to a watch that starts at a
        // revision still to come, which is where every watch behind a list starts.
        let start = (from.0 - 1).max(1);
        let options = WatchOptions::new().with_range(end).with_start_revision(start).with_fragment();
        let mut client = client.watch_client().max_decoding_message_size(LARGEST_REPLY);
        let mut stream = client.watch(key, Some(options)).await?;
        let Some(first) = stream.message().await? else {
            return Err(Trouble::Unknown("the watch has ended".to_owned()));
        };
        let mut watch = EtcdWatch {
            store,
            stream,
            from,
            seen: Revision(from.0 - 1),
            pending: Vec::new(),
            heard: Instant::now(),
            asked: None,
        };
        watch.take(first)?;
        Ok(watch)
    }

    /// Safe to cancel: what came in pieces is kept.
    pub async fn next(&mut self) -> Result<Events, StoreError> {
        loop {
            let until = match self.asked {
                Some(asked) => asked + HEARTBEAT_PATIENCE,
                None => self.heard + HEARTBEAT,
            };
            match timeout_at(until, self.stream.message()).await {
                Ok(Ok(Some(message))) => {
                    self.heard = Instant::now();
                    self.asked = None;
                    if let Some(events) = self.take(message).map_err(|trouble| self.ended(trouble))? {
                        return Ok(events);
                    }
                }
                Ok(Ok(None)) => return Err(self.lost("the watch has ended".to_owned())),
                Ok(Err(error)) => return Err(self.ended(error.into())),
                Err(_) if self.asked.is_some() => {
                    return Err(
                        self.lost(format!("the watch gave no sign of life in {HEARTBEAT_PATIENCE:?}"))
                    );
                }
                Err(_) => {
                    self.asked = Some(Instant::now());
                    let asked =
                        timeout_at(Instant::now() + HEARTBEAT_PATIENCE, self.stream.request_progress());
                    if !matches!(asked.await, Ok(Ok(()))) {
                        return Err(self.lost("the watch takes no requests".to_owned()));
                    }
                }
            }
        }
    }

    /// Makes events of a message; none for the one that only says that the watch is there.
    fn take(&mut self, message: WatchResponse) -> Result<Option<Events>, Trouble> {
        // A cancel comes as an ordinary message, and the stream stays open and silent after it.
        if message.compact_revision() > 0 {
            let compacted = Revision(message.compact_revision());
            return Err(Trouble::Final(StoreError::Compacted(compacted)));
        }
        if message.canceled() {
            return Err(Trouble::of_cancel(message.cancel_reason()));
        }
        if message.created() {
            return Ok(None);
        }
        for event in message.events() {
            let event = self.event(event)?;
            if event.revision() >= self.from {
                self.pending.push(event);
            }
        }
        if message.0.fragment {
            return Ok(None);
        }
        let events = std::mem::take(&mut self.pending);
        if let Some(last) = events.last() {
            self.seen = last.revision();
        }
        let revision = self.seen;
        Ok(Some(Events { revision, events }))
    }

    fn event(&self, event: &etcd_client::Event) -> Result<Event, Trouble> {
        let keys = &self.store.0.keys;
        let unusable = |why| Trouble::Final(self.store.unusable(why));
        let found = event.kv().ok_or_else(|| unusable("an event has no key".to_owned()))?;
        match event.event_type() {
            EventType::Put => keys.entry(found).map(Event::Put).map_err(unusable),
            EventType::Delete => Ok(Event::Delete {
                key: keys.relative(found).map_err(unusable)?,
                mod_revision: Revision(found.mod_revision()),
            }),
        }
    }

    fn ended(&self, trouble: Trouble) -> StoreError {
        match trouble {
            Trouble::Final(error) => self.store.named(error),
            // Opening it again finds out whether a new login helps.
            trouble => self.lost(trouble.why()),
        }
    }

    fn lost(&self, why: String) -> StoreError {
        let store = self.store.describe();
        StoreError::NotReached { store, why }
    }
}
