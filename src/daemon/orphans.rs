//! The orphans of the fleet: locks of lost nodes, of which this node sees to its share.
//!
//! They are found by their state and not by an event: at the start, whenever the set of nodes changes and every few
//! minutes the top rank for a lost node's name reads the locks. So one that dies while it waits is followed by another.

use std::collections::{BTreeMap, HashSet, VecDeque};

use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::Daemon;
use super::pursuit::Step;
use crate::fire::Fire;
use crate::job::DEFAULT_KILL_AFTER;
use crate::node::{NodeName, NodeStart};
use crate::placement;
use crate::race::{self, Found, Orphan};
use crate::run::{self, Order};
use crate::store::StoreError;
use crate::store::values::LockState;

/// How many of what the small tasks tell may wait.
const WAITING: usize = 64;

/// What this node does about orphans.
pub(super) struct Orphans {
    /// The nodes that are registered, as last seen.
    pub living: BTreeMap<NodeName, NodeStart>,
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
    /// These may be orphans that are this node's to see to.
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
            living: BTreeMap::new(),
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
        let (store, mut living) = (self.place.store.clone(), self.orphans.living.clone());
        let (me, own, tell) = (self.standing.me.clone(), self.state.clone(), self.orphans.tell.clone());
        self.chores.spawn(self.options.clock.bind(async move {
            let looked = async {
                let drained = race::drained(&store).await?;
                let found = race::orphans(&store, &living, &drained, &me).await?;
                Ok::<_, StoreError>((found, drained))
            };
            let found = match looked.await {
                Ok((found, drained)) => {
                    living.retain(|node, _| !drained.contains(node));
                    found
                }
                Err(error) => {
                    // The nodes are listed again when the store is back, and every few minutes.
                    warn!(%error, "the locks of lost nodes could not be looked for");
                    Vec::new()
                }
            };
            let is_for_me = |found: &Found| {
                let lock = &found.lock;
                let is_own = lock.node == me.name && own.is_own(lock.node_start);
                // One that runs is in this node's hands. One that waits was left there while this node was drained.
                let in_hands = is_own && lock.state == LockState::Held;
                let by = match lock.hold {
                    // Nobody but the name's new owner may touch it.
                    None if living.contains_key(&lock.node) => Some(&lock.node),
                    _ if is_own && living.contains_key(&lock.node) => Some(&lock.node),
                    _ => placement::top(living.keys(), lock.node.as_str()),
                };
                !in_hands && by == Some(&me.name)
            };
            let _ = tell.send(Told::Found(found.into_iter().filter(is_for_me).collect())).await;
        }));
    }

    pub(super) fn told_of_orphans(&mut self, told: Told) {
        match told {
            Told::Found(found) => {
                self.orphans.looking = false;
                for found in found {
                    self.wait_for_holder(found);
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
        let job = self.planner.get(&fire.job).map(|planned| planned.job.clone());
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
