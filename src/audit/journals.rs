//! Journals: what nodes wrote down themselves, against what the store says of them.

use std::collections::HashMap;

use super::{Books, Finding, Kind, Report, said};
use crate::fire::FireId;
use crate::node::{NodeName, NodeStart};
use crate::record::{JournalEntry, Past, Record, RunFacts};
use crate::schedule::Timestamp;

/// Which journals were read, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journals {
    /// By the lives of nodes that they are of.
    pub lives: HashMap<(NodeName, NodeStart), Reach>,
    /// Before the store was.
    pub read_at: Timestamp,
}

/// How far a journal reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Before this nothing is kept. None: nothing is.
    pub since: Option<Timestamp>,
    /// Up to here it is whole, where a crash of the machine may have taken its end. None: nothing was taken.
    pub whole_until: Option<Timestamp>,
}

pub(super) fn judge(books: &Books, report: &mut Report) {
    let Some(journals) = books.journals else { return };
    let ours =
        books.entries.iter().filter(|entry| books.asks_about(&entry.fire) && entry.started_at.is_some());
    for entry in ours {
        match told_of(books, entry) {
            Told::Nowhere if books.is_pruned(&entry.fire) => {}
            Told::Nowhere => report.findings.push(unrecorded(entry)),
            Told::ByLock => {}
            Told::ByRun(run) => {
                report.findings.extend(differs(entry, run.exit_code, run.signal, run.ended_at))
            }
            Told::ByPast(past) => {
                report.findings.extend(differs(entry, past.exit_code, past.signal, past.ended_at));
            }
        }
    }
    for record in books.records.iter().filter(|record| books.asks_about(&record.fire)) {
        report.findings.extend(unjournaled(books, journals, record));
    }
}

/// What the store tells of a start.
enum Told<'a> {
    ByRun(&'a RunFacts),
    ByPast(&'a Past),
    ByLock,
    Nowhere,
}

fn told_of<'a>(books: &Books<'a>, entry: &JournalEntry) -> Told<'a> {
    let is_run = |run: &&RunFacts| {
        run.node == entry.node
            && run.node_start == entry.node_start
            && run.attempt == entry.attempt
            && run.fencing_token == entry.fencing_token
    };
    let is_past = |past: &&Past| past.node == entry.node && past.attempt == entry.attempt;
    let of = |record: &&Record| record.fire.id == entry.fire.id;
    // A late result is the true one.
    let results = books.late.iter().chain(books.records).filter(of);
    if let Some(run) = results.clone().filter_map(|record| record.run.as_ref()).find(is_run) {
        return Told::ByRun(run);
    }
    let locks = books.locks.iter().filter(|held| held.fire.id == entry.fire.id);
    let past = results.flat_map(|record| &record.past).chain(locks.clone().flat_map(|held| &held.past));
    if let Some(past) = past.into_iter().find(is_past) {
        return Told::ByPast(past);
    }
    match locks.map(|held| &held.claim).any(|claim| is_run(&claim)) {
        true => Told::ByLock,
        false => Told::Nowhere,
    }
}

fn unrecorded(entry: &JournalEntry) -> Finding {
    let at = entry.started_at.map(|at| format!(" at {}", said(at)));
    let detail = format!(
        "by its journal {} started attempt {} with token {}{}, and no record, lock or late result tells of that",
        entry.node,
        entry.attempt,
        entry.fencing_token,
        at.unwrap_or_default()
    );
    Finding::about(Kind::Unrecorded, entry.fire.id, detail)
}

/// Whether the two say another end, where both saw one.
fn differs(
    entry: &JournalEntry,
    exit_code: Option<i32>,
    signal: Option<i32>,
    ended_at: Option<Timestamp>,
) -> Option<Finding> {
    let both_saw_it = entry.ended_at.is_some() && ended_at.is_some();
    let ended = |code: Option<i32>, signal: Option<i32>| match (code, signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "neither exit code nor signal".to_owned(),
    };
    (both_saw_it && (entry.exit_code, entry.signal) != (exit_code, signal)).then(|| {
        let detail = format!(
            "attempt {} on {} ended with {} by its journal, and with {} by the record",
            entry.attempt,
            entry.node,
            ended(entry.exit_code, entry.signal),
            ended(exit_code, signal)
        );
        Finding::about(Kind::Differs, entry.fire.id, detail)
    })
}

/// Runs of a record that the journal of their node should tell of and does not.
fn unjournaled(books: &Books, journals: &Journals, record: &Record) -> Vec<Finding> {
    let id = record.fire.id;
    let is_in = |node: &NodeName, attempt: u32| {
        let mut entries = books.entries.iter();
        entries.any(|entry| entry.fire.id == id && entry.node == *node && entry.attempt == attempt)
    };
    let mut found = Vec::new();
    if let Some(run) = &record.run
        && let Some(started) = run.started_at
        && let Some(reach) = journals.lives.get(&(run.node.clone(), run.node_start))
        && record.written_at < journals.read_at
        && !is_in(&run.node, run.attempt)
    {
        found.extend(missing(reach, id, &run.node, run.attempt, started));
    }
    for past in &record.past {
        // Which life of the node it was is not told.
        let mut lives =
            journals.lives.iter().filter(|((node, _), _)| *node == past.node).map(|(_, reach)| reach);
        if let (Some(started), Some(reach), None) = (past.started_at, lives.next(), lives.next())
            && record.written_at < journals.read_at
            && !is_in(&past.node, past.attempt)
        {
            found.extend(missing(reach, id, &past.node, past.attempt, started));
        }
    }
    found
}

fn missing(reach: &Reach, id: FireId, node: &NodeName, attempt: u32, started: Timestamp) -> Option<Finding> {
    // What is older has been pruned, or is from before there was a journal.
    reach.since.filter(|since| started > *since)?;
    let (kind, why) = match reach.whole_until.is_some_and(|whole| started > whole) {
        true => (Kind::Unsynced, "; the machine went down after that, which may have taken it"),
        false => (Kind::Unjournaled, ""),
    };
    let detail =
        format!("attempt {attempt} ran on {node}, and the journal of {node} knows nothing of it{why}");
    Some(Finding::about(kind, id, detail))
}
