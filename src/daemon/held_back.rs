//! What holds this node back from claiming: pauses of jobs, and that it is drained.
//!
//! Only a view, which spares races that cannot be won: the claim itself compares the keys. A pause whose end has come
//! is taken out of the store by whoever sees it.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{debug, info, warn};

use crate::fire::Fire;
use crate::job::JobName;
use crate::node::NodeName;
use crate::schedule::Timestamp;
use crate::store::values::{self, HoldBack};
use crate::store::{Compare, Entry, Event, Op, Revision, Seen, Store, Txn, keys};

/// What the store last told of pauses and of this node.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    /// By key.
    pauses: BTreeMap<String, Pause>,
    drained: bool,
    /// The newest fire of each job that came due at or after the end of a pause that is still in the store.
    after_pause: BTreeMap<JobName, Fire>,
}

#[derive(Debug)]
struct Pause {
    revision: Revision,
    /// None: until somebody ends it, or nobody knows when.
    until: Option<Timestamp>,
    /// Since boot: when this node last tried to take it out.
    tried: Option<Duration>,
}

impl Pause {
    fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// What is to become of a fire.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    Free,
    /// It passes; a request stays in the store.
    Held(&'static str),
    /// The pause is over and still in the store.
    UntilPauseIsGone,
}

/// Between two tries to take a pause out.
const TRY_AGAIN: Duration = Duration::from_secs(1);

impl HeldBack {
    pub fn way(&self, fire: &Fire, now: Timestamp) -> Way {
        if self.drained {
            return Way::Held("this node is drained");
        }
        let own = keys::paused(&fire.job);
        let all = keys::all_paused();
        let mut there = [own, all].into_iter().filter_map(|key| self.pauses.get(&key)).peekable();
        match () {
            () if there.peek().is_none() => Way::Free,
            // What was due before the end of its pause passes, however late it is looked at.
            () if there
                .all(|pause| pause.until.is_some_and(|end| end <= now && end <= fire.scheduled_at())) =>
            {
                Way::UntilPauseIsGone
            }
            () => Way::Held("paused"),
        }
    }

    /// Keeps a fire until the pause that is over has gone from the store.
    pub fn keep(&mut self, fire: Fire) {
        self.after_pause.insert(fire.job.clone(), fire);
    }

    /// Takes what was kept: to be looked at again.
    pub fn kept(&mut self) -> Vec<Fire> {
        std::mem::take(&mut self.after_pause).into_values().collect()
    }

    pub fn pauses_seen(&mut self, seen: Seen) {
        match seen {
            Seen::All { entries, .. } => {
                let there = entries.into_iter().map(|entry| self.read(entry)).collect();
                self.pauses = there;
            }
            Seen::Changes { events, .. } => {
                for event in events {
                    match event {
                        Event::Put(entry) => {
                            let (key, pause) = self.read(entry);
                            info!(what = keys::name_of(&key), until = ?pause.until, "paused");
                            self.pauses.insert(key, pause);
                        }
                        Event::Delete { key, .. } => {
                            info!(what = keys::name_of(&key), "resumed");
                            self.pauses.remove(&key);
                        }
                    }
                }
            }
            // The jobs' own says it.
            Seen::OutOfTouch { .. } => {}
        }
    }

    /// One that cannot be read holds back all the same.
    fn read(&self, entry: Entry) -> (String, Pause) {
        let until = match values::decode::<HoldBack>(&entry.key, &entry.value) {
            Ok(pause) => pause.until,
            Err(error) => {
                warn!(%error, "a pause that cannot be read holds until it is resumed");
                None
            }
        };
        let before = self.pauses.get(&entry.key).filter(|before| before.revision == entry.mod_revision);
        let tried = before.and_then(|before| before.tried);
        (entry.key, Pause { revision: entry.mod_revision, until, tried })
    }

    pub fn drain_seen(&mut self, node: &NodeName, seen: Seen) {
        let last = match seen {
            Seen::All { entries, .. } => entries.into_iter().next(),
            Seen::Changes { events, .. } => match events.into_iter().next_back() {
                Some(Event::Put(entry)) => Some(entry),
                Some(Event::Delete { .. }) => None,
                None => return,
            },
            Seen::OutOfTouch { .. } => return,
        };
        let before = std::mem::replace(&mut self.drained, last.is_some());
        match last {
            Some(entry) if !before => {
                let why = values::decode::<HoldBack>(&entry.key, &entry.value).ok();
                let (by, reason) = why.map_or((None, None), |why| (Some(why.by), why.reason));
                info!(%node, ?by, ?reason, "drained: nothing more is claimed, what runs goes on");
            }
            None if before => info!(%node, "undrained: claims again"),
            _ => {}
        }
    }

    /// The next end of a pause.
    pub fn next_end(&self, now: Timestamp) -> Option<Timestamp> {
        self.pauses.values().filter_map(|pause| pause.until).filter(|until| *until > now).min()
    }

    /// The pauses to be taken out now: key and revision.
    pub fn over(&mut self, now: Timestamp, since_boot: Duration) -> Vec<(String, Revision)> {
        let due = |pause: &Pause| {
            pause.is_over(now) && pause.tried.is_none_or(|tried| since_boot >= tried + TRY_AGAIN)
        };
        let mut over = Vec::new();
        for (key, pause) in self.pauses.iter_mut().filter(|(_, pause)| due(pause)) {
            pause.tried = Some(since_boot);
            over.push((key.clone(), pause.revision));
        }
        over
    }
}

/// Takes a pause that is over out of the store. When that fails it is tried again at a later look.
pub(super) async fn take_out(store: Store, key: String, revision: Revision) {
    // Safe when several do it at once: the key is at this revision for one of them only, and a pause that was made
    // longer meanwhile has another.
    let txn = Txn::when([Compare::mod_revision(key.as_str(), revision)]).then([Op::delete(key.as_str())]);
    match store.txn(txn).await {
        Ok(reply) if reply.succeeded => info!(what = keys::name_of(&key), "the pause is over"),
        Ok(_) => {}
        Err(error) => debug!(what = keys::name_of(&key), %error, "the pause is not taken out yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn seen(pauses: &[(&str, Option<&str>)]) -> HeldBack {
        let entry = |(key, until): &(&str, Option<&str>)| {
            let value = HoldBack::new("ann@laptop".into(), Timestamp::UNIX_EPOCH, None, until.map(at));
            Event::Put(Entry {
                key: (*key).to_owned(),
                value: values::encode(&value),
                create_revision: Revision(7),
                mod_revision: Revision(7),
                lease: None,
            })
        };
        let mut held_back = HeldBack::default();
        let events = pauses.iter().map(entry).collect();
        held_back.pauses_seen(Seen::Changes { events, revision: Revision(7) });
        held_back
    }

    #[track_caller]
    fn check(pauses: &[(&str, Option<&str>)], now: &str, way: Way) {
        let fire = Fire::new("a".parse().unwrap(), "20261130T060000Z".parse().unwrap());
        assert_eq!(seen(pauses).way(&fire, at(now)), way, "{pauses:?} {now}");
    }

    #[test]
    fn a_fire_is_held_by_its_own_pause_and_by_that_of_all() {
        let now = "2026-11-30T06:00:00Z";
        check(&[], now, Way::Free);
        check(&[("paused/b", None)], now, Way::Free);
        check(&[("paused/a", None)], now, Way::Held("paused"));
        check(&[("paused/~all", None)], now, Way::Held("paused"));
        check(&[("paused/a", Some("2026-11-30T06:00:01Z"))], now, Way::Held("paused"));
        check(&[("paused/a", Some(now)), ("paused/~all", None)], now, Way::Held("paused"));
    }

    #[test]
    fn a_fire_that_is_due_as_its_pause_ends_waits_for_that() {
        let end = "2026-11-30T06:00:00Z";
        check(&[("paused/a", Some(end))], end, Way::UntilPauseIsGone);
        check(&[("paused/a", Some(end)), ("paused/~all", Some(end))], end, Way::UntilPauseIsGone);
        // Due before the end, looked at after it.
        check(&[("paused/a", Some("2026-11-30T06:00:01Z"))], "2026-11-30T06:00:02Z", Way::Held("paused"));
    }

    #[test]
    fn an_end_is_waited_for_and_then_seen_to_once_in_a_while() {
        let end = "2026-11-30T06:00:00Z";
        let mut held_back = seen(&[("paused/a", Some(end)), ("paused/b", None)]);
        assert_eq!(held_back.next_end(at("2026-11-30T05:00:00Z")), Some(at(end)));
        let second = Duration::from_secs;
        assert_eq!(held_back.over(at("2026-11-30T05:00:00Z"), second(1)), []);
        assert_eq!(held_back.over(at(end), second(3600)), [("paused/a".to_owned(), Revision(7))]);
        assert_eq!(held_back.over(at(end), second(3600)), []);
        assert_eq!(held_back.over(at(end), second(3601)), [("paused/a".to_owned(), Revision(7))]);
        assert_eq!(held_back.next_end(at(end)), None);
    }
}
