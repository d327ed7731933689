//! Fires: one job at one instant, or one request, or one task.
//!
//! A fire's identity never depends on who looks or when, so every node names it alike and the store can tell
//! that it is decided.

use std::fmt;
use std::str::FromStr;

use chrono::{NaiveDateTime, SubsecRound, Timelike};
use ulid::Ulid;

use crate::job::JobName;
use crate::node::{NodeName, NodeStart};
use crate::schedule::Timestamp;

/// One job at one scheduled UTC instant, or one request of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fire {
    pub job: JobName,
    pub lane: Lane,
    pub id: FireId,
}

impl Fire {
    /// A fire of a one-node job.
    pub fn new(job: JobName, id: FireId) -> Fire {
        Fire { job, lane: Lane::OneNode, id }
    }

    /// A task.
    pub fn task(id: Ulid) -> Fire {
        Fire::new(JobName::of_tasks(), FireId::Task(id))
    }

    /// The instant it stands for: the scheduled one, or when it was asked for.
    pub fn scheduled_at(&self) -> Timestamp {
        self.id.instant()
    }
}

impl fmt::Display for Fire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lane {
            Lane::OneNode => write!(f, "{}/{}", self.job, self.id),
            lane => write!(f, "{}/{lane}/{}", self.job, self.id),
        }
    }
}

/// What makes a fire of a job that one and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FireId {
    /// Of a schedule: `20261130T020000Z`. As texts these sort by time, which the floor's compare needs.
    Scheduled(Timestamp),
    /// Asked for by hand: `m-<ulid>`, the ulid being made when it was asked for, or of the missed instant that it
    /// makes good.
    Manual(Ulid),
    /// Set off by the end of another job's fire: `c-<ulid>`, the ulid being of the instant at which that one ended.
    Chain(Ulid),
    /// Of `@reboot`: `boot-<node start>`, which is made at a node's first start after a boot.
    Boot(NodeStart),
    /// A task: `t-<ulid>`, the ulid being made when it was submitted.
    Task(Ulid),
}

impl FireId {
    /// A scheduled fire's id. Fires are due at whole seconds; a fraction is cut off.
    pub fn scheduled(at: Timestamp) -> FireId {
        FireId::Scheduled(at.trunc_subsecs(0))
    }

    /// The instant it stands for, in whole seconds for a schedule and milliseconds for all else.
    pub fn instant(&self) -> Timestamp {
        match self {
            FireId::Scheduled(at) => *at,
            FireId::Manual(id) | FireId::Chain(id) | FireId::Task(id) | FireId::Boot(NodeStart(id)) => {
                id.datetime().into()
            }
        }
    }

    /// Whether it is there because of a request in the store, which its claim uses up.
    pub fn is_asked_for(&self) -> bool {
        matches!(self, FireId::Manual(_) | FireId::Chain(_))
    }
}

const SCHEDULED: &str = "%Y%m%dT%H%M%SZ";

impl fmt::Display for FireId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FireId::Scheduled(at) => write!(f, "{}", at.format(SCHEDULED)),
            FireId::Manual(id) => write!(f, "m-{id}"),
            FireId::Chain(id) => write!(f, "c-{id}"),
            FireId::Task(id) => write!(f, "t-{id}"),
            FireId::Boot(start) => write!(f, "boot-{start}"),
        }
    }
}

/// Why a text is no fire id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a fire is named like 20261130T020000Z or m-01ARZ3NDEKTSV4RRFFQ69G5FAV, not {0:?}")]
pub struct BadFireId(pub String);

impl FromStr for FireId {
    type Err = BadFireId;

    fn from_str(text: &str) -> Result<FireId, BadFireId> {
        let id = match text.split_once('-') {
            Some(("m", ulid)) => ulid.parse().ok().map(FireId::Manual),
            Some(("c", ulid)) => ulid.parse().ok().map(FireId::Chain),
            Some(("t", ulid)) => ulid.parse().ok().map(FireId::Task),
            Some(("boot", start)) => start.parse().ok().map(FireId::Boot),
            _ => {
                NaiveDateTime::parse_from_str(text, SCHEDULED)
                    .ok()
                    // A leap second is no instant that a schedule names.
                    .filter(|at| at.nanosecond() == 0)
                    .map(|at| FireId::Scheduled(at.and_utc()))
            }
        };
        // One spelling for each id: two keys of one fire would be two fires.
        id.filter(|id| id.to_string() == text).ok_or_else(|| BadFireId(text.to_owned()))
    }
}

/// Where a job's fires exclude each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// `-`: the one lane of a one-node job.
    OneNode,
    /// `@<node>`: this node's lane of an every-node job.
    Node(NodeName),
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lane::OneNode => f.write_str("-"),
            Lane::Node(name) => write!(f, "@{name}"),
        }
    }
}

/// Why a text is no lane.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a lane is \"-\" or \"@NODE\", not {0:?}")]
pub struct BadLane(pub String);

impl FromStr for Lane {
    type Err = BadLane;

    fn from_str(text: &str) -> Result<Lane, BadLane> {
        let bad = || BadLane(text.to_owned());
        match text.strip_prefix('@') {
            None if text == "-" => Ok(Lane::OneNode),
            None => Err(bad()),
            Some(name) => name.parse().map(Lane::Node).map_err(|_| bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fire_id_reads_back_and_has_one_spelling() {
        let ulids =
            ["m-01ARZ3NDEKTSV4RRFFQ69G5FAV", "c-01ARZ3NDEKTSV4RRFFQ69G5FAV", "t-01ARZ3NDEKTSV4RRFFQ69G5FAV"];
        for text in ["20261130T020000Z", "19991231T235959Z"].into_iter().chain(ulids) {
            assert_eq!(text.parse::<FireId>().map(|id| id.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "20261130T0200Z",
            "20261330T020000Z",
            "m-",
            "m-01arz3ndektsv4rrffq69g5fav",
            "20261130T020000",
            " 20261130T020000Z",
            "20261130T020060Z",
        ] {
            assert_eq!(text.parse::<FireId>(), Err(BadFireId(text.to_owned())), "{text:?}");
        }
    }

    #[test]
    fn scheduled_ids_sort_by_time_as_texts() {
        let mut ids: Vec<String> = [1_000_000_000, 1_700_000_000, 1_700_000_001, 4_000_000_000]
            .map(|s| FireId::scheduled(Timestamp::from_timestamp(s, 0).unwrap()).to_string())
            .to_vec();
        let in_time = ids.clone();
        ids.sort();
        assert_eq!(ids, in_time);
    }

    #[test]
    fn a_lane_reads_back() {
        for text in ["-", "@db-1"] {
            assert_eq!(text.parse::<Lane>().map(|l| l.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "@", "db-1", "@A"] {
            assert!(text.parse::<Lane>().is_err(), "{text:?}");
        }
    }
}
