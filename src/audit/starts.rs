//! Starts: which commands ran when, and whether two of them met that exclude each other.

use std::collections::HashMap;

use super::{Books, Finding, Kind, Report, said};
use crate::fire::FireId;
use crate::node::NodeName;
use crate::record::{JournalEntry, Past, RunFacts};
use crate::schedule::Timestamp;

/// A command that was started.
#[derive(Debug, Clone)]
struct Start {
    fire: FireId,
    attempt: u32,
    node: NodeName,
    at: Timestamp,
    /// None: nobody saw it end.
    ended: Option<Timestamp>,
    token: Option<i64>,
}

pub(super) fn judge(books: &Books, report: &mut Report) {
    let starts = starts(books);
    report.findings.extend(overlaps(books, &starts));
    report.findings.extend(started_again(books, &starts));
    report.findings.extend(tokens(books, &starts));
}

/// All starts that anything tells of, each once, in their order. Where several tell of one, who saw it end counts.
fn starts(books: &Books) -> Vec<Start> {
    let mut starts = HashMap::<(FireId, u32, NodeName), Start>::new();
    let mut add = |start: Option<Start>| {
        let Some(start) = start else { return };
        let known =
            starts.entry((start.fire, start.attempt, start.node.clone())).or_insert_with(|| start.clone());
        let token = known.token.or(start.token);
        if known.ended.is_none() {
            *known = start;
        }
        known.token = token;
    };
    for entry in books.entries {
        add(Start::of_entry(entry));
    }
    for record in books.records.iter().chain(books.late) {
        let id = record.fire.id;
        record.past.iter().for_each(|past| add(Start::of_past(id, past)));
        add(record.run.as_ref().and_then(|run| Start::of_run(id, run)));
    }
    for held in books.locks {
        held.past.iter().for_each(|past| add(Start::of_past(held.fire.id, past)));
    }
    let mut starts: Vec<Start> = starts.into_values().collect();
    starts.sort_by_key(|start| (start.at, start.attempt, start.token));
    starts
}

impl Start {
    fn of_run(fire: FireId, run: &RunFacts) -> Option<Start> {
        let RunFacts { attempt, fencing_token, ended_at: ended, .. } = *run;
        let token = Some(fencing_token);
        Some(Start { fire, attempt, node: run.node.clone(), at: run.started_at?, ended, token })
    }

    fn of_past(fire: FireId, past: &Past) -> Option<Start> {
        let Past { attempt, ended_at: ended, .. } = *past;
        Some(Start { fire, attempt, node: past.node.clone(), at: past.started_at?, ended, token: None })
    }

    fn of_entry(entry: &JournalEntry) -> Option<Start> {
        let JournalEntry { attempt, ended_at: ended, .. } = *entry;
        let (fire, token) = (entry.fire.id, Some(entry.fencing_token));
        Some(Start { fire, attempt, node: entry.node.clone(), at: entry.started_at?, ended, token })
    }

    fn told(&self) -> String {
        format!("{} (attempt {}, on {})", self.fire, self.attempt, self.node)
    }

    fn is_asked_about(&self, books: &Books) -> bool {
        (books.since..books.until).contains(&self.fire.instant())
    }
}

/// Each start against that one before it which ended last, of those that it excludes.
fn overlaps(books: &Books, starts: &[Start]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut last_of_lane: Option<&Start> = None;
    let mut last_of_fire = HashMap::<FireId, &Start>::new();
    for start in starts {
        let alone = books.excludes(start.fire.instant(), start.at);
        let other = last_of_lane.filter(|_| alone).or(last_of_fire.get(&start.fire).copied());
        if start.is_asked_about(books)
            && let Some(other) = other
            && let Some(other_end) = other.ended.filter(|end| *end > start.at)
        {
            let both = start.ended.map_or(other_end, |end| end.min(other_end)) - start.at;
            let kind = match other.node != start.node && both < books.skew {
                true => Kind::Clocks,
                false => Kind::Overlap,
            };
            let detail = format!(
                "it started at {} on {}, while {} was running until {}",
                said(start.at),
                start.node,
                other.told(),
                said(other_end)
            );
            found.push(Finding::about(kind, start.fire, detail));
        }
        let later = |other: Option<&Start>| other.is_none_or(|other| other.ended < start.ended);
        if later(last_of_lane) {
            last_of_lane = Some(start);
        }
        if later(last_of_fire.get(&start.fire).copied()) {
            last_of_fire.insert(start.fire, start);
        }
    }
    found
}

/// Attempts that two nodes started, and at-most-once fires with more than one start.
fn started_again(books: &Books, starts: &[Start]) -> Vec<Finding> {
    let mut by_fire = HashMap::<FireId, Vec<&Start>>::new();
    for start in starts.iter().filter(|start| start.is_asked_about(books)) {
        by_fire.entry(start.fire).or_default().push(start);
    }
    let mut found = Vec::new();
    for (fire, mut starts) in by_fire {
        let told = |starts: &[&Start]| starts.iter().map(|start| start.told()).collect::<Vec<_>>().join(", ");
        starts.sort_by_key(|start| (start.attempt, start.at));
        for pair in starts.windows(2).filter(|pair| pair[0].attempt == pair[1].attempt) {
            found.push(Finding::about(
                Kind::Double,
                fire,
                format!("one attempt started twice: {}", told(pair)),
            ));
        }
        if starts.len() > 1 && books.is_at_most_once(fire.instant()) {
            let detail = format!("it promises at most one start: {}", told(&starts));
            found.push(Finding {
                count: starts.len() as u64,
                ..Finding::about(Kind::Restarted, fire, detail)
            });
        }
    }
    found
}

/// Tokens against those of the starts before, in the lane where overlap is excluded, else of the fire.
fn tokens(books: &Books, starts: &[Start]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut last_of_lane: Option<(&Start, i64)> = None;
    let mut last_of_fire = HashMap::<FireId, (&Start, i64)>::new();
    for start in starts {
        let Some(token) = start.token else { continue };
        let alone = books.excludes(start.fire.instant(), start.at);
        let before = last_of_lane.filter(|_| alone).or(last_of_fire.get(&start.fire).copied());
        if start.is_asked_about(books)
            && let Some((before, earlier)) = before
            && token <= earlier
            // Which of two nodes was first, their clocks cannot tell.
            && (before.node == start.node || start.at - before.at > books.skew)
        {
            let detail = format!(
                "its fencing token {token} is not above {earlier}, that of {} before it",
                before.told()
            );
            found.push(Finding::about(Kind::Token, start.fire, detail));
        }
        if alone {
            last_of_lane = Some((start, token));
        }
        last_of_fire.insert(start.fire, (start, token));
    }
    found
}
