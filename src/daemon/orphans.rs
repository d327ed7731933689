//! The orphans of the fleet: locks of lost nodes, of which this node sees to its share.
//!
//! They are found by their state and not by an event: at the start, whenever the set of nodes changes and every few
//! minutes the top rank for a lost node's name reads the locks. So one that dies while it waits is followed by another.

use std::collections::{HashSet, VecDeque};

use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::Daemon;
use super::pursuit::Step;
use crate::fire::{Fire, Lane};
use crate::job::DEFAULT_KILL_AFTER;
use crate::race::{self, Found, Orphan};
use crate::run::{self, Order};

/// How many of what the small tasks tell may wait.
const WAITING: usize = 64;

/// What this node does about orphans.
pub(super) struct Orphans {
    /// Fires whose holder's time is waited for, or that wait for a slot.
    waited_for: HashSet<Fire>,
    /// Those whose time has come.
    free: VecDeque<Orphan>,
    /// A look through all locks is under way.
    looking: bool,
    /// The nodes changed while it was.
    look_again: bool,
    tell: mpsc::Sender<Told>,
    told: mpsc::Receiver<Told>,
}

/// What a small task about orphans tells.
pub(super) enum Told {
    /// These may be orphans.
    Found(Vec<Found>),
    /// The time of this one has come.
    Free(Box<Orphan>),
    /// Its holder is there, or somebody has seen to it.
    Settled(Fire),
}

impl Orphans {
    pub fn new() -> Orphans {
        let (tell, told) = mpsc::channel(WAITING);
        Orphans {
            waited_for: HashSet::new(),
            free: VecDeque::new(),
            looking: false,
            look_again: false,
            tell,
            told,
        }
    }

    /// What is told next. Safe to drop while it waits.
    pub async fn next(&mut self) -> Told {
        self.told.recv().await.expect("a sender is kept")
    }
}

impl Daemon {
    /// Looks through all locks for orphans that are this node's to see to.
    pub(super) fn look_for_orphans(&mut self) {
        if std::mem::replace(&mut self.orphans.looking, true) {
            self.orphans.look_again = true;
            return;
        }
        let living = self.fleet.living().iter().map(|(name, peer)| (name.clone(), peer.start)).collect();
        let drained = self.fleet.drained().clone();
        let (store, tell) = (self.place.store.clone(), self.orphans.tell.clone());
        let me = self.options.node.clone();
        self.chores.spawn(self.options.clock.bind(async move {
            let found = race::orphans(&store, &me, &living, &drained).await.unwrap_or_else(|error| {
                // The nodes are listed again when the store is back, and every few minutes.
                warn!(%error, "the locks of lost nodes could not be looked for");
                Vec::new()
            });
            let _ = tell.send(Told::Found(found)).await;
        }));
    }

    pub(super) fn told_of_orphans(&mut self, told: Told) {
        match told {
            Told::Found(found) => {
                self.orphans.looking = false;
                for found in found {
                    if self.is_to_see_to(&found) {
                        self.wait_for_holder(found);
                    }
                }
                if std::mem::take(&mut self.orphans.look_again) {
                    self.look_for_orphans();
                }
            }
            Told::Free(orphan) => {
                self.orphans.free.push_back(*orphan);
                self.use_free_slots();
            }
            Told::Settled(fire) => _ = self.orphans.waited_for.remove(&fire),
        }
    }

    /// Whether this node sees to what is an orphan by the look of it; what an earlier life of its own held, its start
    /// has taken back.
    fn is_to_see_to(&mut self, found: &Found) -> bool {
        let lock = &found.lock;
        let earlier_life = lock.node == self.standing.me.name && self.state.is_own(lock.node_start);
        let job = self.job_of(found);
        let is_late = self.options.clock.now() > lock.last_start;
        let is_for_me = match lock.hold {
            // It lies in this node's own lane, and what had its name before is gone.
            _ if found.fire.lane != Lane::OneNode => true,
            // Nobody but the name's new owner may touch it.
            None if self.fleet.living().contains_key(&lock.node) => lock.node == self.standing.me.name,
            _ => self.fleet.inherits_from(&lock.node, job.as_deref(), is_late),
        };
        !earlier_life && is_for_me
    }

    /// Waits in a task of its own until the holder's run has stopped for certain.
    fn wait_for_holder(&mut self, found: Found) {
        let fire = found.fire.clone();
        if self.hands.contains_key(&fire) || !self.orphans.waited_for.insert(fire.clone()) {
            return;
        }
        let (store, clock, me) = (self.place.store.clone(), self.options.clock, self.standing.me.clone());
        let tell = self.orphans.tell.clone();
        self.chores.spawn(clock.bind(async move {
            let looked = race::look(&store, &clock, &found).await;
            let told = match looked {
                Ok(Some(orphan)) => {
                    let at = match orphan.free_at() {
                        // Its name's new owner closes it at once; else `forget` does.
                        None => race::is_mine_to_close(&orphan, &me).then(|| clock.since_boot()),
                        at => at,
                    };
                    if let Some(at) = at {
                        let wait = at.saturating_sub(clock.since_boot());
                        info!(job = %fire.job, fire = %fire.id, node = %found.lock.node, ?wait,
                              "its node is lost; it is seen to when its run has stopped for certain");
                        clock.sleep_until(at).await;
                        Told::Free(Box::new(orphan))
                    } else {
                        info!(job = %fire.job, fire = %fire.id, node = %found.lock.node,
                              "its node is lost, and nobody else may touch it; `fleetcron forget` closes it");
                        Told::Settled(fire)
                    }
                }
                Ok(None) => Told::Settled(fire),
                Err(error) => {
                    warn!(job = %fire.job, fire = %fire.id, %error, "a lost node's lock could not be looked at");
                    Told::Settled(fire)
                }
            };
            let _ = tell.send(told).await;
        }));
    }

    /// Takes over what waits for a slot; false where nothing does.
    pub(super) fn take_over_next(&mut self) -> bool {
        let Some(orphan) = self.orphans.free.pop_front() else { return false };
        let fire = orphan.found.fire.clone();
        self.orphans.waited_for.remove(&fire);
        if self.hands.contains_key(&fire) {
            return true;
        }
        let job = self.job_of(&orphan.found);
        let kill_after = job.as_ref().map_or(DEFAULT_KILL_AFTER, |job| job.kill_after);
        let (orders, hear) = watch::channel(Order::GoOn);
        let (place, mut standing) = (self.place.clone(), self.standing.clone());
        self.take_in_hand(fire.clone(), kill_after, orders, async move {
            Step::after(run::take_over(&place, &mut standing, orphan, job.as_deref(), hear).await)
        });
        // From here on it may have become this node's at any moment.
        self.hold(&fire);
        true
    }
}
