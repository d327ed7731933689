//! Placement: which of several nodes sees to a thing, without their talking to each other.
//!
//! Rendezvous hashing: every node has a score for every thing, and the highest one has it. A node that comes or goes
//! moves only what is its own (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998).

use sha2::{Digest, Sha256};

use crate::node::NodeName;

/// The one of these nodes that sees to `thing`; none where there are none. The same on every node, in every release
/// and whatever order they come in.
pub fn top<'n>(nodes: impl IntoIterator<Item = &'n NodeName>, thing: &str) -> Option<&'n NodeName> {
    nodes.into_iter().max_by_key(|node| (score(node, thing), *node))
}

fn score(node: &NodeName, thing: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(node.as_str());
    // No name holds one, so no two pairs are the same text.
    hash.update([0]);
    hash.update(thing);
    let digest = hash.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("it has 32 bytes"))
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
}
