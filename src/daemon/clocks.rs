//! This node's clock and the others': what is told to [`Agreement`](super::agreement::Agreement), and what it tells.

use chrono::TimeDelta;
use tracing::{error, info, warn};

use super::Daemon;
use super::agreement::{FAR, Look, Says, Shown, UNSYNCED};
use crate::clock::Clock;
use crate::node::NodeName;
use crate::schedule::Timestamp;
use crate::store::values::{self, ClockWord, Presence};
use crate::store::{Event, Seen, keys};

/// What the first registration says of the clock.
pub(super) fn first_word(clock: &Clock) -> Option<ClockWord> {
    (!clock.is_synced()).then(|| ClockWord { says: UNSYNCED.to_owned(), asked: 0 })
}

impl Daemon {
    /// Looks whether the clock is one to go by, tells when that has changed, and has the others see it.
    pub(super) fn look_at_own_clock(&mut self, now: Timestamp) {
        let clock = self.options.clock;
        // One that a test lets run fast agrees with none.
        if clock.pace() != 1 {
            return;
        }
        let look = Look {
            wall: now,
            since_boot: clock.since_boot(),
            is_synced: clock.is_synced(),
            others: self.fleet.others(),
        };
        let Shown { set_by, show, says } = self.agreement.look(look);
        let node = &self.options.node;
        if let Some(set_by) = set_by {
            warn!(%node, %now, seconds = set_by.num_seconds(), "the clock was set");
            // When this daemon began, as the clock has it now.
            self.began += set_by;
        }
        match says {
            Some(Says::Off(word)) => error!(
                %node, %now, clock = word,
                "THIS NODE'S CLOCK IS OFF: it claims no scheduled fire and settles none until the clock is put right, \
                 or agrees with the other nodes'; what runs goes on"
            ),
            Some(Says::Unsynced) => warn!(
                %node,
                "nothing keeps this machine's clock right, the kernel says; run an NTP daemon, or set require_synced_clock \
                 to have such a node run nothing by it"
            ),
            Some(Says::Agrees) => info!(%node, %now, "the clock agrees again"),
            None => {}
        }
        if let Some(word) = show
            && !self.standing.show_clock(word, set_by.unwrap_or(TimeDelta::zero()))
        {
            warn!(%node, "the others were not told of this node's clock");
        }
    }

    /// Takes in what others' clocks show as they register.
    pub(super) fn hear_clocks(&mut self, seen: &Seen) {
        let clock = self.options.clock;
        let now = (clock.now(), clock.since_boot());
        match seen {
            Seen::All { entries, .. } => {
                let names: Vec<NodeName> =
                    entries.iter().filter_map(|entry| self.other(&entry.key)).collect();
                self.agreement.listed(names.iter(), now.1);
                // However old a reading is, one that is later than the present is of a clock that is ahead.
                let mut is_news = false;
                for entry in entries {
                    let Some(name) = self.other(&entry.key).filter(|name| !self.agreement.knows(name)) else {
                        continue;
                    };
                    let presence = values::decode::<Presence>(&entry.key, &entry.value).ok();
                    let ahead =
                        presence.and_then(|presence| presence.clock_at).filter(|shows| *shows > now.0 + FAR);
                    if let Some(shows) = ahead {
                        self.agreement.hear(&name, shows, None, now);
                        is_news = true;
                    }
                }
                if is_news {
                    self.look_at_own_clock(now.0);
                }
            }
            Seen::OutOfTouch { .. } => self.agreement.out_of_touch(),
            Seen::Changes { events, .. } => {
                let mut is_news = false;
                let is_fresh = self.agreement.may_hear(now.1.saturating_sub(self.standing.renewed()));
                for event in events {
                    let Some(name) = self.other(event.key()) else { continue };
                    is_news = true;
                    match event {
                        Event::Delete { .. } => self.agreement.gone(&name),
                        Event::Put(entry) if is_fresh => {
                            // One that cannot be read is told of elsewhere.
                            let Ok(presence) = values::decode::<Presence>(&entry.key, &entry.value) else {
                                continue;
                            };
                            if let Some(shows) = presence.clock_at {
                                self.agreement.hear(&name, shows, presence.clock.as_ref(), now);
                            }
                        }
                        Event::Put(_) => {}
                    }
                }
                // Who asks is not kept waiting for the next look.
                if is_news {
                    self.look_at_own_clock(now.0);
                }
            }
        }
    }

    fn other(&self, key: &str) -> Option<NodeName> {
        keys::name_of(key).parse().ok().filter(|name| *name != self.options.node)
    }
}
