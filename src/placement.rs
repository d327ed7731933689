//! Placement: which of several nodes sees to a thing, without their talking to each other.
//!
//! Rendezvous hashing: every node has a score for every thing, and the highest one has it. A node that comes or goes
//! moves only what is its own (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998).

use std::cmp::Ordering;

use sha2::{Digest, Sha256};

use crate::node::NodeName;

/// The one of these nodes that sees to `thing`; none where there are none. The same on every node, in every release
/// and whatever order they come in.
pub fn top<'n>(nodes: impl IntoIterator<Item = &'n NodeName>, thing: &str) -> Option<&'n NodeName> {
    nodes.into_iter().max_by_key(|node| (score(node, thing), *node))
}

/// Nodes in the order in which they come for things, each for a share of them that goes with its weight.
///
/// The weighted form of the same hashing: of `weight / -ln(hash)` the greatest comes first, so a change of one weight,
/// too, moves only what it has to (Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005). Two builds
/// whose logarithms differ in the last bit may disagree about one thing in 2^50, which the race then settles.
#[derive(Debug, Clone, Default)]
pub struct Ranking {
    nodes: Vec<Ranked>,
}

#[derive(Debug, Clone)]
struct Ranked {
    name: NodeName,
    hash: u64,
    weight: f64,
}

impl Ranking {
    /// `nodes` with their weights; one without any is never ranked.
    pub fn new<'n>(nodes: impl IntoIterator<Item = (&'n NodeName, u32)>) -> Ranking {
        let ranked = |(name, weight): (&NodeName, u32)| Ranked {
            name: name.clone(),
            hash: first_eight(Sha256::digest(name.as_str())),
            weight: weight.into(),
        };
        Ranking { nodes: nodes.into_iter().filter(|(_, weight)| *weight > 0).map(ranked).collect() }
    }

    /// How many nodes come before this one for `thing`; none if it is not among them.
    pub fn rank(&self, node: &NodeName, thing: &str) -> Option<usize> {
        let hash = first_eight(Sha256::digest(thing));
        let mine = self.nodes.iter().find(|ranked| ranked.name == *node)?;
        Some(self.nodes.iter().filter(|other| order(other, mine, hash).is_gt()).count())
    }

    /// The one that comes first for `thing`.
    pub fn first(&self, thing: &str) -> Option<&NodeName> {
        let hash = first_eight(Sha256::digest(thing));
        self.nodes.iter().max_by(|one, other| order(one, other, hash)).map(|ranked| &ranked.name)
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// The greater one comes first for the thing; of equals the name decides.
fn order(one: &Ranked, other: &Ranked, thing: u64) -> Ordering {
    one.claim_on(thing).total_cmp(&other.claim_on(thing)).then_with(|| one.name.cmp(&other.name))
}

impl Ranked {
    /// The node with the greatest one has the thing.
    fn claim_on(&self, thing: u64) -> f64 {
        // In (0, 1): 53 bits are what a number of this kind holds.
        let share = ((mixed(self.hash ^ thing.rotate_left(32)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        self.weight / -share.ln()
    }
}

/// All bits of a number mixed with each other: the finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014). Thousands of fires a second are ranked among hundreds of nodes.
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn first_eight(digest: impl AsRef<[u8]>) -> u64 {
    u64::from_be_bytes(digest.as_ref()[..8].try_into().expect("it has 32 bytes"))
}

fn score(node: &NodeName, thing: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(node.as_str());
    // No name holds one, so no two pairs are the same text.
    hash.update([0]);
    hash.update(thing);
    first_eight(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<NodeName> {
        (0..count).map(|number| format!("node-{number}").parse().unwrap()).collect()
    }

    #[test]
    fn all_agree_whatever_order_they_know_each_other_in() {
        let mut nodes = nodes(7);
        let before = top(&nodes, "backup").cloned();
        nodes.reverse();
        assert_eq!(top(&nodes, "backup").cloned(), before);
        assert_eq!(top([], "backup"), None);
    }

    #[test]
    fn a_node_that_goes_moves_only_what_was_its_own() {
        let all = nodes(5);
        for thing in (0..200).map(|number| format!("thing-{number}")) {
            let before = top(&all, &thing).unwrap();
            let left: Vec<_> = all.iter().filter(|node| *node != &all[2]).cloned().collect();
            let after = top(&left, &thing).unwrap();
            assert!(before == &all[2] || before == after, "{thing}");
        }
    }

    #[test]
    fn each_has_about_its_share() {
        let all = nodes(4);
        let mut counts = [0; 4];
        for thing in (0..4000).map(|number| format!("thing-{number}")) {
            let top = top(&all, &thing).unwrap();
            counts[all.iter().position(|node| node == top).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    /// Nodes of different releases must agree.
    #[test]
    fn who_it_is_never_changes() {
        let all = nodes(5);
        let tops = THINGS.map(|thing| top(&all, thing).unwrap().as_str());
        assert_eq!(tops, GOLDEN);
    }

    const THINGS: [&str; 5] = ["a", "backup", "rotate-logs", "db-3", "web-1.example.org"];
    const GOLDEN: [&str; 5] = ["node-1", "node-1", "node-2", "node-3", "node-2"];

    #[test]
    fn every_node_has_one_rank_and_the_first_has_none_before_it() {
        let nodes = nodes(6);
        let ranking = Ranking::new(nodes.iter().map(|node| (node, 8)));
        for thing in (0..100).map(|number| format!("job/{number}")) {
            let mut ranks: Vec<_> = nodes.iter().map(|node| ranking.rank(node, &thing).unwrap()).collect();
            let first = nodes.iter().find(|node| ranking.rank(node, &thing) == Some(0));
            assert_eq!(first, ranking.first(&thing));
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4, 5]);
        }
        assert_eq!(ranking.rank(&"stranger".parse().unwrap(), "job/1"), None);
        assert_eq!(Ranking::default().first("job/1"), None);
    }

    #[test]
    fn shares_go_with_the_weights_and_a_new_weight_moves_little() {
        let nodes = nodes(3);
        let things: Vec<_> = (0..6000).map(|number| format!("job/{number}")).collect();
        let firsts = |weights: [u32; 3]| {
            let ranking = Ranking::new(nodes.iter().zip(weights));
            things.iter().map(|thing| ranking.first(thing).unwrap().clone()).collect::<Vec<_>>()
        };
        let even = firsts([10, 10, 10]);
        let counts = |firsts: &[NodeName]| {
            nodes.iter().map(|node| firsts.iter().filter(|first| *first == node).count()).collect::<Vec<_>>()
        };
        assert!(counts(&even).iter().all(|count| (1800..2200).contains(count)), "{:?}", counts(&even));
        let doubled = firsts([20, 10, 10]);
        let [large, small, other] = counts(&doubled)[..] else { panic!() };
        assert!((2800..3200).contains(&large) && small.abs_diff(other) < 200, "{large} {small} {other}");
        // Only towards the one that weighs more now.
        assert!(even.iter().zip(&doubled).all(|(before, after)| before == after || *after == nodes[0]));
        assert_eq!(firsts([10, 0, 0]).iter().filter(|first| **first != nodes[0]).count(), 0);
    }

    /// Nodes of different releases must agree.
    #[test]
    fn ranks_never_change() {
        let nodes = nodes(5);
        let ranking = Ranking::new(nodes.iter().zip([1, 2, 4, 8, 16]));
        let ranks = THINGS.map(|thing| {
            nodes.iter().map(|node| ranking.rank(node, thing).unwrap().to_string()).collect::<String>()
        });
        assert_eq!(ranks, GOLDEN_RANKS);
    }

    const GOLDEN_RANKS: [&str; 5] = ["34012", "14230", "42130", "24310", "43021"];
}
