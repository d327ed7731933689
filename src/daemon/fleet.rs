//! The fleet as this node sees it: who is registered, who is drained, and whose turn it is.
//!
//! Only a view, which spares races and looks that are somebody else's: two nodes that see it differently do no harm,
//! since every claim and every span is judged by the store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tracing::{info, warn};

use crate::fire::{Fire, Lane};
use crate::job::Job;
use crate::node::{Labels, NodeName, NodeStart, Selector};
use crate::placement::{self, Ranking};
use crate::schedule::Timestamp;
use crate::store::values::{self, HoldBack, Presence};
use crate::store::{Event, Seen, keys};

/// A node that is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub start: NodeStart,
    labels: Labels,
    slots: u32,
    /// Its wall clock when it registered.
    pub at: Timestamp,
}

#[derive(Debug)]
pub(super) struct Fleet {
    me: NodeName,
    now: View,
    /// Before the last change.
    before: View,
    /// Nodes whose time zone data were said to differ from ours.
    strangers: BTreeSet<NodeName>,
    /// All who are registered, drained or not.
    wardens: Arc<Ranking>,
    /// The store has told its nodes, and who of them is drained.
    knows: (bool, bool),
}

/// Who is there, and who of them comes first for what.
#[derive(Debug, Default)]
struct View {
    living: BTreeMap<NodeName, Peer>,
    drained: BTreeSet<NodeName>,
    /// Of the nodes that a selector picks; none picks all.
    rankings: HashMap<Option<Selector>, Arc<Ranking>>,
}

/// What this node has to do about a fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is the first for it: it claims at once.
    First,
    /// The second: it looks whether the first has, a moment later.
    Second,
    /// Others see to it.
    None,
}

impl Fleet {
    pub fn new(me: NodeName) -> Fleet {
        Fleet {
            me,
            now: View::default(),
            before: View::default(),
            strangers: BTreeSet::new(),
            wardens: Arc::default(),
            knows: (false, false),
        }
    }

    /// Whether the store has told all of it.
    pub fn is_known(&self) -> bool {
        self.knows == (true, true)
    }

    /// The nodes that are registered.
    pub fn living(&self) -> &BTreeMap<NodeName, Peer> {
        &self.now.living
    }

    pub fn drained(&self) -> &BTreeSet<NodeName> {
        &self.now.drained
    }

    pub fn is_drained(&self) -> bool {
        self.now.drained.contains(&self.me)
    }

    /// Takes in what the store tells of nodes. True: others are there than before.
    pub fn nodes_seen(&mut self, seen: Seen) -> bool {
        let mut living = match &seen {
            Seen::All { .. } => BTreeMap::new(),
            Seen::Changes { .. } | Seen::OutOfTouch { .. } => self.now.living.clone(),
        };
        // The first list may say nothing new, and much has waited for it.
        let is_first = matches!(seen, Seen::All { .. }) && !std::mem::replace(&mut self.knows.0, true);
        for event in events(seen) {
            match event {
                Event::Put(entry) => {
                    let Ok(name) = keys::name_of(&entry.key).parse::<NodeName>() else { continue };
                    match values::decode::<Presence>(&entry.key, &entry.value) {
                        Ok(presence) => {
                            self.compare_zones(&name, &presence);
                            let Presence { node_start, labels, slots, at, .. } = presence;
                            living.insert(name, Peer { start: node_start, labels, slots, at });
                        }
                        Err(error) => warn!(%error, "a node is passed over"),
                    }
                }
                Event::Delete { key, .. } => {
                    if let Ok(name) = keys::name_of(&key).parse::<NodeName>() {
                        living.remove(&name);
                    }
                }
            }
        }
        let changed = living != self.now.living;
        if changed {
            self.change(living, self.now.drained.clone());
        }
        changed || is_first
    }

    /// Takes in what the store tells of drained nodes. True: others are than before.
    pub fn drains_seen(&mut self, seen: Seen) -> bool {
        let mut drained = match &seen {
            Seen::All { .. } => BTreeSet::new(),
            Seen::Changes { .. } | Seen::OutOfTouch { .. } => self.now.drained.clone(),
        };
        let is_first = matches!(seen, Seen::All { .. }) && !std::mem::replace(&mut self.knows.1, true);
        for event in events(seen) {
            let (key, entry) = match event {
                Event::Put(entry) => (entry.key.clone(), Some(entry)),
                Event::Delete { key, .. } => (key, None),
            };
            let Ok(name) = keys::name_of(&key).parse::<NodeName>() else { continue };
            match entry {
                Some(entry) => {
                    if name == self.me && !self.is_drained() {
                        let why = values::decode::<HoldBack>(&entry.key, &entry.value).ok();
                        let (by, reason) = why.map_or((None, None), |why| (Some(why.by), why.reason));
                        info!(node = %name, ?by, ?reason, "drained: nothing more is claimed, what runs goes on");
                    }
                    drained.insert(name);
                }
                None => _ = drained.remove(&name),
            }
        }
        if self.is_drained() && !drained.contains(&self.me) {
            info!(node = %self.me, "undrained: claims again");
        }
        let changed = drained != self.now.drained;
        if changed {
            self.change(self.now.living.clone(), drained);
        }
        changed || is_first
    }

    fn change(&mut self, living: BTreeMap<NodeName, Peer>, drained: BTreeSet<NodeName>) {
        let now = View { living, drained, rankings: HashMap::new() };
        self.before = std::mem::replace(&mut self.now, now);
        self.wardens = Arc::new(Ranking::new(self.now.living.keys().map(|name| (name, 1))));
    }

    /// Nodes with other time zone data than ours may work out other fires: that is said, once for each.
    fn compare_zones(&mut self, other: &NodeName, presence: &Presence) {
        let ours = crate::schedule::tzdata_version();
        if presence.tzdata == ours {
            self.strangers.remove(other);
        } else if self.strangers.insert(other.clone()) {
            warn!(node = %self.me, %other, ours, theirs = presence.tzdata,
                  "another node has other time zone data, so the two may disagree on when a job is due; \
                   bring both to the same release");
        }
    }

    /// Whether some node can run this job now.
    pub fn is_runnable(&mut self, job: &Job) -> bool {
        !self.now.ranking(job).is_empty()
    }

    /// What this node has to do about a fire that is due.
    pub fn turn(&mut self, job: &Job, fire: &Fire) -> Turn {
        self.now.turn(&self.me, job, fire)
    }

    /// How many nodes come before this one for a fire; none if it cannot run it.
    pub fn rank(&mut self, job: &Job, fire: &Fire) -> Option<usize> {
        self.now.ranking(job).rank(&self.me, &fire.to_string())
    }

    /// Whether it is this node's turn to claim a fire since the last change, and was not before.
    pub fn is_new_turn(&mut self, job: &Job, fire: &Fire) -> bool {
        let is_mine = |view: &mut View| view.turn(&self.me, job, fire) == Turn::First;
        is_mine(&mut self.now) && !is_mine(&mut self.before)
    }

    /// Whether this node can run a job.
    pub fn can_run(&mut self, job: &Job) -> bool {
        self.now.ranking(job).rank(&self.me, "").is_some()
    }

    /// Whether this node runs what was missed of a job: all of it one node, so that it goes in order.
    pub fn catches_up(&mut self, job: &Job, lane: &Lane) -> bool {
        match lane {
            Lane::Node(node) => *node == self.me,
            Lane::OneNode => self.now.ranking(job).first(job.name.as_str()) == Some(&self.me),
        }
    }

    /// Whether this node is the job's warden: one that can run it where there is one.
    pub fn is_warden(&mut self, name: &str, job: Option<&Job>) -> bool {
        let ranking = match job.map(|job| self.now.ranking(job)) {
            Some(ranking) if !ranking.is_empty() => ranking,
            _ => self.wardens.clone(),
        };
        ranking.first(name) == Some(&self.me)
    }

    /// Whether this node sees to a lock that a lost one held: one that can run the job. Where none can, any node does
    /// when it is too late to run it, or the job is gone.
    pub fn inherits_from(&mut self, lost: &NodeName, job: Option<&Job>, is_late: bool) -> bool {
        if let Some(job) = job {
            let ranking = self.now.ranking(job);
            if !ranking.is_empty() || !is_late {
                return ranking.first(lost.as_str()) == Some(&self.me);
            }
        }
        let able = self.now.living.keys().filter(|node| !self.now.drained.contains(*node));
        placement::top(able, lost.as_str()) == Some(&self.me)
    }

    /// Whether this node is registered, as far as the store has told.
    pub fn knows_me(&self) -> bool {
        self.now.living.contains_key(&self.me)
    }

    /// How many others are registered.
    pub fn others(&self) -> usize {
        self.now.living.keys().filter(|name| **name != self.me).count()
    }

    /// Since when somebody of those who are there now has been there.
    pub fn up_since(&self) -> Option<Timestamp> {
        self.now.living.values().map(|peer| peer.at).min()
    }
}

impl View {
    /// The nodes that a job's fires can run on, each for a share of them that goes with its slots.
    fn ranking(&mut self, job: &Job) -> Arc<Ranking> {
        if let Some(ranking) = self.rankings.get(&job.nodes) {
            return ranking.clone();
        }
        let picked = |(name, peer): &(&NodeName, &Peer)| {
            let is_picked = job.nodes.as_ref().is_none_or(|nodes| nodes.matches(name, &peer.labels));
            is_picked && !self.drained.contains(*name)
        };
        let nodes = self.living.iter().filter(picked).map(|(name, peer)| (name, peer.slots));
        let ranking = Arc::new(Ranking::new(nodes));
        self.rankings.insert(job.nodes.clone(), ranking.clone());
        ranking
    }

    fn turn(&mut self, me: &NodeName, job: &Job, fire: &Fire) -> Turn {
        match &fire.lane {
            Lane::Node(node) if node == me => return Turn::First,
            Lane::Node(_) => return Turn::None,
            Lane::OneNode => {}
        }
        match self.ranking(job).rank(me, &fire.to_string()) {
            Some(0) => Turn::First,
            Some(1) => Turn::Second,
            _ => Turn::None,
        }
    }
}

/// What is told, as events: a whole list is all puts.
fn events(seen: Seen) -> Vec<Event> {
    match seen {
        Seen::All { entries, .. } => entries.into_iter().map(Event::Put).collect(),
        Seen::Changes { events, .. } => events,
        // The jobs' own says it.
        Seen::OutOfTouch { .. } => Vec::new(),
    }
}
