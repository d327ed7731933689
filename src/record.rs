//! Records: what became of a fire.

use std::fmt;

use crate::fire::Fire;
use crate::node::{NodeName, NodeStart};
use crate::schedule::Timestamp;
use crate::task::Task;

/// What became of a fire: one for each, kept after the lock is gone, so that it is never decided twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub fire: Fire,
    /// It stands for all fires of the lane from this one on, where nothing ran for one reason.
    pub span: Option<Span>,
    pub outcome: Outcome,
    /// Why, in a few words, where the outcome alone does not say it: `overlap`, `could not start: …`.
    pub reason: Option<String>,
    /// The run, where there was one: the last attempt at it.
    pub run: Option<RunFacts>,
    /// The attempts before that one, the oldest first.
    pub past: Vec<Past>,
    /// Who wrote this: of a `lost` record not the node that ran the command.
    pub writer: Writer,
    pub written_at: Timestamp,
    /// The last bytes of output of a run that did not succeed, at most [`TAIL`] bytes of text.
    pub tail: Option<String>,
    /// The task that it was, if it was one.
    pub task: Option<Box<Task>>,
    /// The fires of other jobs that this one's end has set off.
    pub set_off: Vec<Fire>,
}

/// How far a record of many fires reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The instant of the last of them.
    pub last: Timestamp,
    /// How many they are, the first and the last too.
    pub count: u64,
}

impl Record {
    /// Of a fire that nobody ran.
    pub fn unrun(
        fire: Fire,
        outcome: Outcome,
        reason: impl Into<String>,
        writer: Writer,
        at: Timestamp,
    ) -> Record {
        Record {
            fire,
            span: None,
            outcome,
            reason: Some(reason.into()),
            run: None,
            past: Vec::new(),
            writer,
            written_at: at,
            tail: None,
            task: None,
            set_off: Vec::new(),
        }
    }
}

/// How much output a record carries at most, in bytes; the rest is on the node that ran the command.
pub const TAIL: usize = 4096;

/// An attempt that another one followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    pub attempt: u32,
    pub node: NodeName,
    pub outcome: Outcome,
    pub reason: Option<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub started_at: Option<Timestamp>,
    /// None: nobody saw it end.
    pub ended_at: Option<Timestamp>,
}

/// One claim, from start to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFacts {
    pub node: NodeName,
    pub node_start: NodeStart,
    /// Counts from 1.
    pub attempt: u32,
    /// The store revision of the claim; grows with every claim.
    pub fencing_token: i64,
    pub claimed_at: Timestamp,
    /// None: the command was never started.
    pub started_at: Option<Timestamp>,
    /// None: nobody saw it end.
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    /// The number of the signal that ended the command.
    pub signal: Option<i32>,
    /// Bytes the command wrote, kept or not.
    pub output_bytes: u64,
    /// Bytes of those that were left out because of the cap.
    pub output_left_out: u64,
    pub usage: Option<Usage>,
}

impl RunFacts {
    /// Of a claim of whose run nothing is known yet, or ever.
    pub fn claimed(
        node: NodeName,
        node_start: NodeStart,
        attempt: u32,
        fencing_token: i64,
        claimed_at: Timestamp,
    ) -> RunFacts {
        RunFacts {
            node,
            node_start,
            attempt,
            fencing_token,
            claimed_at,
            started_at: None,
            ended_at: None,
            exit_code: None,
            signal: None,
            output_bytes: 0,
            output_left_out: 0,
            usage: None,
        }
    }
}

/// What a command used, with all it started that ended before it or with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Processor time in milliseconds.
    pub cpu: u64,
    /// The most memory that one of its processes had at once, in bytes.
    pub peak_memory: u64,
}

/// What a node wrote down itself about one command, whatever the store says: when it truly ran and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    pub fire: Fire,
    pub attempt: u32,
    pub fencing_token: i64,
    pub node: NodeName,
    pub node_start: NodeStart,
    /// The process that guarded the command.
    pub guard: Option<i32>,
    /// None: it could not be started.
    pub started_at: Option<Timestamp>,
    /// None: nobody saw it end, or it still runs.
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Its guard was gone without a word about the end.
    pub lost: bool,
}

/// Who wrote a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writer {
    Node {
        node: NodeName,
        node_start: NodeStart,
    },
    /// `user@host` of who forgot the node that held the fire. Not a node, so that it is never taken for the holder:
    /// a true result that the holder still brings is then kept beside this record.
    Operator(String),
}

impl Writer {
    /// The node that wrote it, if one did.
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            Writer::Node { node, .. } => Some(node),
            Writer::Operator(_) => None,
        }
    }
}

/// What became of a fire, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    Succeeded,
    Failed,
    TimedOut,
    Cancelled,
    /// Claimed, and the node was lost: nobody knows how far it came.
    Lost,
    /// Not run because of another fire of its lane.
    Skipped,
    /// Not run because nobody could in time.
    Missed,
    /// Not run because the node's own policy forbids it.
    Refused,
}

impl Outcome {
    pub const ALL: [Outcome; 8] = [
        Outcome::Succeeded,
        Outcome::Failed,
        Outcome::TimedOut,
        Outcome::Cancelled,
        Outcome::Lost,
        Outcome::Skipped,
        Outcome::Missed,
        Outcome::Refused,
    ];

    /// The word that stands for it in JSON, tables and flags. Once released, it does not change.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::TimedOut => "timed-out",
            Outcome::Cancelled => "cancelled",
            Outcome::Lost => "lost",
            Outcome::Skipped => "skipped",
            Outcome::Missed => "missed",
            Outcome::Refused => "refused",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl std::str::FromStr for Outcome {
    type Err = String;

    fn from_str(text: &str) -> Result<Outcome, String> {
        Outcome::ALL.into_iter().find(|outcome| outcome.word() == text).ok_or_else(|| {
            let words = Outcome::ALL.map(Outcome::word).join(", ");
            format!("an outcome is one of {words}, not {text:?}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_reads_back() {
        for outcome in Outcome::ALL {
            assert_eq!(outcome.word().parse(), Ok(outcome));
        }
        assert!("ok".parse::<Outcome>().is_err());
    }
}
