//! One run as it is shown: the columns of the table and the fields of the JSON.

use chrono::TimeDelta;
use serde::Serialize;

use super::history::Entry;
use crate::cli::out::GiveUp::{All, OneLine};
use crate::cli::out::{Table, or_dash};
use crate::cli::read::UnderWay;
use crate::cli::time::{utc, utc_seconds};
use crate::fire::FireId;
use crate::record::{Past, Span};

/// The outcomes of what has none yet.
pub const RUNNING: &str = "running";
pub const WAITING: &str = "waiting";

pub fn table() -> Table {
    // The fire's name tells when it was due.
    let give_up = &[
        All("DUE"),
        All("OUTPUT"),
        All("MEMORY"),
        All("CPU"),
        OneLine("REASON"),
        All("TOOK"),
        OneLine("OUTCOME"),
    ];
    let header =
        ["JOB", "FIRE", "DUE", "OUTCOME", "EXIT", "NODE", "TOOK", "CPU", "MEMORY", "OUTPUT", "REASON"];
    Table::new(&header, give_up)
}

/// A fire and what became of it. Names once released do not change.
#[derive(Debug, Serialize)]
pub struct Row<'e> {
    job: &'e str,
    lane: String,
    fire: String,
    scheduled_at: String,
    outcome: &'static str,
    reason: Option<std::borrow::Cow<'e, str>>,
    node: Option<&'e str>,
    attempt: Option<u32>,
    started_at: Option<String>,
    ended_at: Option<String>,
    exit_code: Option<i32>,
    signal: Option<String>,
    fencing_token: Option<i64>,
    late: bool,
    /// Of a span, the instant of its last fire.
    last: Option<String>,
    /// For how many fires this stands.
    count: u64,
    /// When the next attempt is to begin.
    next_attempt_at: Option<String>,
    /// The fires of other jobs that its end has set off.
    set_off: Vec<String>,
    /// The attempts before, the oldest first.
    past: Vec<PastRow>,
    claimed_at: Option<String>,
    output_bytes: Option<u64>,
    /// Of those, how many are not kept because of the cap.
    output_left_out: Option<u64>,
    /// Processor time of the command and all that ended with it.
    cpu_seconds: Option<f64>,
    /// The most that one of its processes had at once.
    peak_memory_bytes: Option<u64>,
    #[serde(skip)]
    shown: Shown,
}

/// An attempt that is over.
#[derive(Debug, Serialize)]
pub struct PastRow {
    attempt: u32,
    node: String,
    outcome: &'static str,
    reason: Option<String>,
    exit_code: Option<i32>,
    signal: Option<String>,
    started_at: Option<String>,
    ended_at: Option<String>,
}

impl PastRow {
    fn of(past: Past) -> PastRow {
        PastRow {
            attempt: past.attempt,
            node: past.node.to_string(),
            outcome: past.outcome.word(),
            reason: past.reason,
            exit_code: past.exit_code,
            signal: past.signal.map(signal_name),
            started_at: past.started_at.map(utc),
            ended_at: past.ended_at.map(utc),
        }
    }
}

/// What only the table shows.
#[derive(Debug)]
struct Shown {
    due: String,
    took: Option<String>,
    /// The id of a span's last fire.
    last: Option<String>,
}

pub fn outcome_of_lock(run: &UnderWay) -> &'static str {
    if run.is_running() { RUNNING } else { WAITING }
}

impl<'e> Row<'e> {
    pub fn of(entry: &'e Entry) -> Row<'e> {
        let fire = entry.fire();
        let due = fire.scheduled_at();
        let mut row = Row {
            job: fire.job.as_str(),
            lane: fire.lane.to_string(),
            fire: fire.id.to_string(),
            scheduled_at: utc(due),
            outcome: "",
            reason: None,
            node: entry.node().map(|node| node.as_str()),
            attempt: None,
            started_at: None,
            ended_at: None,
            exit_code: None,
            signal: None,
            fencing_token: None,
            late: false,
            last: None,
            count: 1,
            next_attempt_at: None,
            set_off: Vec::new(),
            past: Vec::new(),
            claimed_at: None,
            output_bytes: None,
            output_left_out: None,
            cpu_seconds: None,
            peak_memory_bytes: None,
            shown: Shown { due: utc_seconds(due), took: None, last: None },
        };
        match entry {
            Entry::UnderWay(run) => {
                row.outcome = outcome_of_lock(run);
                row.attempt = Some(run.lock.attempt);
                row.fencing_token = Some(run.token.0);
                row.claimed_at = Some(utc(run.lock.claimed_at));
                row.next_attempt_at = run.lock.due.map(utc);
                row.past = run.lock.past().into_iter().map(PastRow::of).collect();
            }
            Entry::Waits(wait) => {
                row.outcome = WAITING;
                row.reason = Some(wait.reason().into());
            }
            Entry::Decided { record, late } => {
                row.outcome = record.outcome.word();
                row.reason = record.reason.as_deref().map(Into::into);
                row.set_off = record.set_off.iter().map(ToString::to_string).collect();
                row.late = *late;
                row.past = record.past.iter().cloned().map(PastRow::of).collect();
                if let Some(Span { last, count }) = record.span {
                    (row.last, row.count) = (Some(utc(last)), count);
                    row.shown.last = Some(FireId::scheduled(last).to_string());
                }
                if let Some(run) = &record.run {
                    row.attempt = Some(run.attempt);
                    row.started_at = run.started_at.map(utc);
                    row.ended_at = run.ended_at.map(utc);
                    row.exit_code = run.exit_code;
                    row.signal = run.signal.map(signal_name);
                    row.fencing_token = Some(run.fencing_token);
                    row.claimed_at = Some(utc(run.claimed_at));
                    row.output_bytes = Some(run.output_bytes);
                    row.output_left_out = Some(run.output_left_out);
                    row.cpu_seconds = run.usage.map(|usage| usage.cpu as f64 / 1000.0);
                    row.peak_memory_bytes = run.usage.map(|usage| usage.peak_memory);
                    row.shown.took = run.started_at.zip(run.ended_at).map(|(from, to)| took(to - from));
                }
            }
        }
        row
    }

    pub fn cells(&self) -> Vec<String> {
        let late = if self.late { " (late)" } else { "" };
        let attempt = self.attempt.filter(|attempt| *attempt > 1).map(|attempt| format!("attempt {attempt}"));
        let next = self.next_attempt_at.as_ref().map(|at| format!("next attempt at {at}"));
        let set_off = (!self.set_off.is_empty()).then(|| format!("set off {}", self.set_off.join(", ")));
        let reason = self.reason.as_deref().map(str::to_owned);
        let notes: Vec<_> = reason.into_iter().chain(attempt).chain(next).chain(set_off).collect();
        let fire = match &self.shown.last {
            Some(last) => format!("{}..{last} ({})", self.fire, self.count),
            None => self.fire.clone(),
        };
        vec![
            self.job.to_owned(),
            match self.lane.as_str() {
                "-" => fire,
                lane => format!("{lane}/{fire}"),
            },
            self.shown.due.clone(),
            format!("{}{late}", self.outcome),
            or_dash(self.signal.clone().or(self.exit_code.map(|code| code.to_string()))),
            or_dash(self.node),
            or_dash(self.shown.took.as_ref()),
            or_dash(self.cpu_seconds.map(|seconds| took(TimeDelta::milliseconds((seconds * 1000.0) as i64)))),
            or_dash(self.peak_memory_bytes.map(size)),
            or_dash(self.output_bytes.map(size)),
            notes.join("; "),
        ]
    }
}

/// `KILL` for 9; the number where there is no name.
pub fn signal_name(number: i32) -> String {
    match nix::sys::signal::Signal::try_from(number) {
        Ok(signal) => signal.as_str().trim_start_matches("SIG").to_owned(),
        Err(_) => number.to_string(),
    }
}

/// In the largest unit of which there is one, with three digits or four.
fn size(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes < 10 * unit => format!("{:.1} {name}", bytes as f64 / unit as f64),
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

fn took(duration: TimeDelta) -> String {
    let millis = duration.num_milliseconds().max(0);
    match millis {
        0..60_000 => format!("{}.{:03} s", millis / 1000, millis % 1000),
        _ => {
            let seconds = millis / 1000;
            let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            match hours {
                0 => format!("{minutes} min {seconds} s"),
                hours => format!("{hours} h {minutes} min"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_called_by_its_name() {
        let names = [9, 15, 11, 40].map(signal_name);
        assert_eq!(names, ["KILL", "TERM", "SEGV", "40"]);
    }

    #[test]
    fn a_size_is_short() {
        let shown = [0, 1023, 1024, 1_500_000, 20 << 20, 3 << 30, u64::MAX].map(size);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.4 MiB", "20 MiB", "3.0 GiB", "16777215 TiB"]);
    }

    #[test]
    fn how_long_it_took_is_short() {
        let shown = [0, 1_234, 61_000, 3_725_000].map(|ms| took(TimeDelta::milliseconds(ms)));
        assert_eq!(shown, ["0.000 s", "1.234 s", "1 min 1 s", "1 h 2 min"]);
    }
}
