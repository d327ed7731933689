//! What holds this node back from claiming: pauses of jobs.
//!
//! Only a view, which spares races that cannot be won: the claim itself compares the keys. A pause whose end has come
//! is taken out of the store by whoever sees it. That there was one stays in the store for a while, because fires that
//! came due in it are not caught up with.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{debug, info, warn};

use crate::fire::{Fire, FireId};
use crate::job::JobName;
use crate::schedule::Timestamp;
use crate::store::values::{self, HoldBack};
use crate::store::{Compare, Entry, Event, KeyRange, Op, Revision, Seen, Store, Txn, keys};

/// What the store last told of pauses and of this node.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    /// By key.
    pauses: BTreeMap<String, Pause>,
    /// Those that are over, by key: from the first instant to before the second.
    ended: BTreeMap<String, (Timestamp, Timestamp)>,
    /// The newest fire of each job that came due at or after the end of a pause that is still in the store.
    after_pause: BTreeMap<JobName, Fire>,
}

#[derive(Debug)]
struct Pause {
    revision: Revision,
    /// None: it cannot be read, and holds until it is resumed.
    value: Option<HoldBack>,
    /// Since boot: when this node last tried to take it out.
    tried: Option<Duration>,
}

impl Pause {
    /// None: until somebody ends it, or nobody knows when.
    fn until(&self) -> Option<Timestamp> {
        self.value.as_ref()?.until
    }

    fn is_over(&self, now: Timestamp) -> bool {
        self.until().is_some_and(|until| until <= now)
    }
}

/// A pause to be taken out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Over {
    key: String,
    revision: Revision,
    value: HoldBack,
    until: Timestamp,
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
        let own = keys::paused(&fire.job);
        let all = keys::all_paused();
        let mut there = [own, all].into_iter().filter_map(|key| self.pauses.get(&key)).peekable();
        match () {
            () if there.peek().is_none() => match fire.id {
                FireId::Scheduled(_) if self.was_paused(fire) => Way::Held("it came due in a pause"),
                _ => Way::Free,
            },
            // What was due before the end of its pause passes, however late it is looked at.
            () if there
                .all(|pause| pause.until().is_some_and(|end| end <= now && end <= fire.scheduled_at())) =>
            {
                Way::UntilPauseIsGone
            }
            () => Way::Held("paused"),
        }
    }

    /// Whether what is asked for of a job is held back.
    pub fn holds(&self, job: &JobName) -> bool {
        // One that is over and still in the store holds back all the same, since a claim would see it.
        [keys::paused(job), keys::all_paused()].iter().any(|key| self.pauses.contains_key(key))
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
                let before = std::mem::take(&mut self.pauses);
                self.ended.clear();
                for entry in entries {
                    self.take_in(entry, &before);
                }
            }
            Seen::Changes { events, .. } => {
                for event in events {
                    match event {
                        Event::Put(entry) => self.take_in(entry, &BTreeMap::new()),
                        Event::Delete { key, .. } => {
                            self.ended.remove(&key);
                            if self.pauses.remove(&key).is_some() {
                                info!(what = keys::name_of(&key), "resumed");
                            }
                        }
                    }
                }
            }
            // The jobs' own says it.
            Seen::OutOfTouch { .. } => {}
        }
    }

    /// One that cannot be read holds back all the same.
    fn take_in(&mut self, entry: Entry, before: &BTreeMap<String, Pause>) {
        let value = values::decode::<HoldBack>(&entry.key, &entry.value);
        if keys::pause_ended(&entry.key).is_some() {
            if let Ok(HoldBack { at, until: Some(until), .. }) = value {
                self.ended.insert(entry.key, (at, until));
            }
            return;
        }
        if let Err(error) = &value {
            warn!(%error, "a pause that cannot be read holds until it is resumed");
        }
        let before = before.get(&entry.key).filter(|before| before.revision == entry.mod_revision);
        if before.is_none() {
            let until = value.as_ref().ok().and_then(|value| value.until);
            info!(what = keys::name_of(&entry.key), ?until, "paused");
        }
        let tried = before.and_then(|before| before.tried);
        self.pauses.insert(entry.key, Pause { revision: entry.mod_revision, value: value.ok(), tried });
    }

    /// The times in which a job was paused, as far as is remembered: from the first instant to before the second.
    pub fn pauses_of(&self, job: &JobName) -> Vec<(Timestamp, Timestamp)> {
        let whats = [keys::paused(job), keys::all_paused()];
        let open = whats.iter().filter_map(|key| {
            let Pause { value, .. } = self.pauses.get(key)?;
            let value = value.as_ref()?;
            Some((value.at, value.until.unwrap_or(Timestamp::MAX_UTC)))
        });
        let ended = whats.iter().flat_map(|key| {
            let below = KeyRange::prefix(format!("{key}/"));
            let (first, _) = below.bounds();
            self.ended
                .range(first..)
                .take_while(move |(ended, _)| below.contains(ended))
                .map(|(_, time)| *time)
        });
        open.chain(ended).collect()
    }

    /// Whether a fire came due in a pause, also in one that is over.
    pub fn was_paused(&self, fire: &Fire) -> bool {
        let at = fire.scheduled_at();
        self.pauses_of(&fire.job).iter().any(|(begin, end)| (*begin..*end).contains(&at))
    }

    /// The next end of a pause.
    pub fn next_end(&self, now: Timestamp) -> Option<Timestamp> {
        self.pauses.values().filter_map(Pause::until).filter(|until| *until > now).min()
    }

    /// The pauses to be taken out now.
    pub fn over(&mut self, now: Timestamp, since_boot: Duration) -> Vec<Over> {
        let due = |pause: &Pause| {
            pause.is_over(now) && pause.tried.is_none_or(|tried| since_boot >= tried + TRY_AGAIN)
        };
        let mut over = Vec::new();
        for (key, pause) in self.pauses.iter_mut().filter(|(_, pause)| due(pause)) {
            pause.tried = Some(since_boot);
            if let Some((value, until)) =
                pause.value.clone().and_then(|value| Some((value.clone(), value.until?)))
            {
                over.push(Over { key: key.clone(), revision: pause.revision, value, until });
            }
        }
        over
    }
}

/// Takes a pause that is over out of the store. When that fails it is tried again at a later look.
pub(super) async fn take_out(store: Store, over: Over) {
    let Over { key, revision, value, until } = over;
    let ended = keys::ended_pause(&key, until);
    // Safe when several do it at once: the key is at this revision for one of them only, and a pause that was made
    // longer meanwhile has another.
    let txn = Txn::when([Compare::mod_revision(key.as_str(), revision)])
        .then([Op::delete(key.as_str()), Op::put(ended, values::encode(&value.ended(until)))]);
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
        let mut over = |now: &str, since_boot: u64| -> Vec<_> {
            let over = held_back.over(at(now), Duration::from_secs(since_boot));
            over.into_iter().map(|over| (over.key, over.revision)).collect()
        };
        let a = [("paused/a".to_owned(), Revision(7))];
        assert_eq!(over("2026-11-30T05:00:00Z", 1), []);
        assert_eq!(over(end, 3600), a);
        assert_eq!(over(end, 3600), []);
        assert_eq!(over(end, 3601), a);
        assert_eq!(held_back.next_end(at(end)), None);
    }

    #[test]
    fn what_came_due_in_a_pause_is_known_when_it_is_over() {
        let ended = keys::ended_pause("paused/a", at("2026-11-30T06:00:00Z"));
        assert_eq!(keys::pause_ended(&ended), Some("paused/a"));
        assert_eq!(keys::pause_ended("paused/a"), None);
        let held_back = seen(&[(&ended, Some("2026-11-30T06:00:00Z")), ("paused/a-b", None)]);
        let was_paused = |job: &str, fire: &str| {
            held_back.was_paused(&Fire::new(job.parse().unwrap(), fire.parse().unwrap()))
        };
        assert!(was_paused("a", "20261130T055959Z") && !was_paused("a", "20261130T060000Z"));
        assert!(!was_paused("b", "20261130T055959Z") && was_paused("a-b", "20261130T060000Z"));
        // It does not hold anything any more.
        let fire = Fire::new("a".parse().unwrap(), "20261130T060000Z".parse().unwrap());
        assert_eq!(held_back.way(&fire, at("2026-11-30T06:00:00Z")), Way::Free);
    }
}
