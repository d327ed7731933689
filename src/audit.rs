//! The audit: was every due fire of a lane dealt with exactly once, and did no two runs meet that must not?
//!
//! Pure: it is told what the store holds of a lane and, where they are at hand, what the nodes' own journals say. What
//! was due is worked out anew from the definitions, so nothing that a node has decided is taken on trust. Its work goes
//! with records and spans, not with fires. It never changes anything.

mod coverage;
mod journals;
mod starts;

use std::collections::BTreeMap;
use std::fmt;

use chrono::{SecondsFormat, TimeDelta};

pub use self::journals::{Journals, Reach};
use crate::fire::{Fire, FireId};
use crate::job::{Job, Overlap, Promise};
use crate::planner::{Dues, Reign};
use crate::record::{JournalEntry, Outcome, Past, Record, RunFacts};
use crate::schedule::Timestamp;

/// What there is of a lane.
#[derive(Debug, Clone, Copy)]
pub struct Books<'a> {
    pub dues: &'a Dues,
    /// Not where a definition could not be read.
    pub dues_are_known: bool,
    /// None: the lane is closed, or somebody has taken its floor out.
    pub floor: Option<Timestamp>,
    /// Somebody is there whose business its fires are: of a node's lane, that node.
    pub is_attended: bool,
    /// The instant of the oldest record that is kept of a scheduled fire. What was before is not known.
    pub oldest: Option<Timestamp>,
    /// The same of fires that no schedule asked for.
    pub oldest_asked: Option<Timestamp>,
    /// Of the time asked about; that the one before it may reach into it, it comes too.
    pub records: &'a [Record],
    /// True results that came after somebody else had closed the fire.
    pub late: &'a [Record],
    pub locks: &'a [Held],
    /// The fires of records that cannot be read, with the last one that each stands for.
    pub unreadable: &'a [(Timestamp, Timestamp)],
    pub journals: Option<&'a Journals>,
    /// What the journals say of the lane.
    pub entries: &'a [JournalEntry],
    /// The time asked about: from here on …
    pub since: Timestamp,
    /// … to before this.
    pub until: Timestamp,
    pub now: Timestamp,
    /// How far the clocks of two nodes may be apart.
    pub skew: TimeDelta,
}

/// A fire that is being dealt with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub fire: Fire,
    /// Else it waits for its next attempt.
    pub is_running: bool,
    pub claim: RunFacts,
    pub past: Vec<Past>,
}

/// What the audit of a lane has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub counts: Counts,
    /// In the order of the fires that they are about.
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        !self.findings.iter().any(|finding| finding.kind.is_fault())
    }
}

/// The due fires of a lane by what became of them. All but `due` and `asked` add up to `due`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub due: u64,
    pub outcomes: BTreeMap<Outcome, u64>,
    pub running: u64,
    pub waiting: u64,
    /// Undecided, and may still be run.
    pub open: u64,
    /// Undecided, and nobody is going to run them.
    pub gaps: u64,
    /// Older than all that is kept.
    pub unknown: u64,
    pub unreadable: u64,
    /// Fires that no schedule asked for, which are not due: by hand, at a boot.
    pub asked: u64,
}

/// One thing that is worth to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub kind: Kind,
    /// The fire that it is about, or the first of them.
    pub fire: FireId,
    /// The last of them, where they are more.
    pub last: Option<Timestamp>,
    pub count: u64,
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Due, and neither locked, recorded nor in a span.
    Gap,
    /// Covered twice, or one attempt started twice.
    Double,
    /// Two runs at one time that exclude each other.
    Overlap,
    /// Recorded, and not due by any definition.
    NotDue,
    /// A span that does not stand for the fires that were due in it.
    Span,
    /// An at-most-once fire that was started again.
    Restarted,
    /// A fencing token that is not above the one before.
    Token,
    /// Started, says a journal, and the store knows nothing of it.
    Unrecorded,
    /// Recorded as run on a node whose journal knows nothing of it.
    Unjournaled,
    /// Journal and record do not say the same.
    Differs,
    /// Looks like an overlap, by less than clocks may be apart.
    Clocks,
    /// A result that came after the fire was decided.
    Late,
    /// May be missing from a journal since the machine went down before it was on the disk.
    Unsynced,
}

impl Kind {
    pub const ALL: [Kind; 13] = [
        Kind::Gap,
        Kind::Double,
        Kind::Overlap,
        Kind::NotDue,
        Kind::Span,
        Kind::Restarted,
        Kind::Token,
        Kind::Unrecorded,
        Kind::Unjournaled,
        Kind::Differs,
        Kind::Clocks,
        Kind::Late,
        Kind::Unsynced,
    ];

    /// The word that stands for it in JSON and tables. Once released, it does not change.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Gap => "gap",
            Kind::Double => "double",
            Kind::Overlap => "overlap",
            Kind::NotDue => "not-due",
            Kind::Span => "span",
            Kind::Restarted => "restarted",
            Kind::Token => "token",
            Kind::Unrecorded => "unrecorded",
            Kind::Unjournaled => "unjournaled",
            Kind::Differs => "differs",
            Kind::Clocks => "clocks",
            Kind::Late => "late",
            Kind::Unsynced => "unsynced",
        }
    }

    /// Else it is only a note.
    pub fn is_fault(self) -> bool {
        !matches!(self, Kind::Clocks | Kind::Late | Kind::Unsynced)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Judges one lane.
pub fn judge(books: &Books) -> Report {
    let mut report = Report::default();
    coverage::judge(books, &mut report);
    starts::judge(books, &mut report);
    journals::judge(books, &mut report);
    report.findings.extend(books.late.iter().filter(|late| books.asks_about(&late.fire)).map(late));
    let rank = |finding: &Finding| (finding.fire.instant(), finding.kind);
    report
        .findings
        .sort_by(|one, other| rank(one).cmp(&rank(other)).then_with(|| one.detail.cmp(&other.detail)));
    report
}

fn late(record: &Record) -> Finding {
    let of = record.run.as_ref().map(|run| format!(" of attempt {} on {}", run.attempt, run.node));
    let detail =
        format!("a result{} came after the fire was decided: {}", of.unwrap_or_default(), record.outcome);
    Finding::about(Kind::Late, record.fire.id, detail)
}

impl Finding {
    fn about(kind: Kind, fire: FireId, detail: impl Into<String>) -> Finding {
        Finding { kind, fire, last: None, count: 1, detail: detail.into() }
    }
}

impl Books<'_> {
    fn asks_about(&self, fire: &Fire) -> bool {
        (self.since..self.until).contains(&fire.scheduled_at())
    }

    /// What became of the fires up to this instant is not known.
    fn unknown_until(&self) -> Timestamp {
        match self.dues_are_known {
            true => self.pruned_until(),
            false => Timestamp::MAX_UTC,
        }
    }

    /// Whether a fire may have had a record that is gone.
    fn is_pruned(&self, fire: &Fire) -> bool {
        let at = fire.scheduled_at();
        match fire.id {
            FireId::Scheduled(_) => at <= self.pruned_until(),
            FireId::Manual(_) | FireId::Chain(_) | FireId::Task(_) | FireId::Boot(_) => {
                self.oldest_asked.is_none_or(|oldest| at < oldest)
            }
        }
    }

    /// Up to this instant records of scheduled fires may be gone.
    fn pruned_until(&self) -> Timestamp {
        // What lies behind the floor has never been pruned.
        let floor = self.floor.unwrap_or(Timestamp::MAX_UTC);
        self.oldest.map_or(floor, |oldest| before(oldest).min(floor))
    }

    /// The definition by which a fire of this instant was planned.
    fn job_at(&self, at: Timestamp) -> Option<&Job> {
        let reigns = self.dues.reigns();
        let reign = self.dues.reign_at(at).or_else(|| reigns.iter().find(|reign| is_near(reign, at)));
        reign.map(|reign| &*reign.job)
    }

    /// Whether a run that began at `began` of a fire of the instant `at` excludes all others of the lane: by both of the
    /// definitions that it may have been claimed under.
    fn excludes(&self, at: Timestamp, began: Timestamp) -> bool {
        let excludes = |at| self.job_at(at).is_some_and(|job| job.overlap != Overlap::Allow);
        excludes(at) && excludes(began)
    }

    fn is_at_most_once(&self, at: Timestamp) -> bool {
        self.job_at(at).is_some_and(|job| job.promise == Promise::AtMostOnce)
    }
}

/// So far the clock of who changed a definition may have been from that of the nodes: a node further off does not race.
const CLOCKS_APART: TimeDelta = TimeDelta::seconds(5);

/// Whether a definition was in force at an instant by some clock that was good enough.
fn is_near(reign: &Reign, at: Timestamp) -> bool {
    at > reign.since - CLOCKS_APART && reign.until.is_none_or(|until| at <= until + CLOCKS_APART)
}

/// Just before an instant.
fn before(at: Timestamp) -> Timestamp {
    at.checked_sub_signed(TimeDelta::nanoseconds(1)).unwrap_or(at)
}

/// An instant in a sentence.
fn said(at: Timestamp) -> String {
    at.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

#[cfg(test)]
mod tests;
