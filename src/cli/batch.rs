//! `fleetcron next --batch`: schedules in, instants out, a line for each line.

use std::io::{BufRead, BufReader, Read};

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::out::Out;
use crate::schedule::{Schedule, Timestamp, Zone};

/// What one line asks.
#[derive(Deserialize)]
struct Question {
    expr: String,
    #[serde(default)]
    tz: Option<String>,
    #[serde(default)]
    after: Option<String>,
    #[serde(default)]
    n: Option<usize>,
    /// The name that `H` takes its value from.
    #[serde(default)]
    job: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Next(Vec<String>),
    Error(String),
}

/// Longer lines are no question of anybody's.
const LONGEST_LINE: u64 = 1 << 20;
/// More instants are not asked for in one line.
const MOST: usize = 100_000;

/// Answers every line, in order, and never stops at a bad one. What was answered is seen before more is waited for.
pub fn answer(input: impl Read, out: &mut Out, now: Timestamp) -> Result<(), Failure> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    let mut line = Vec::new();
    loop {
        if input.buffer().is_empty() {
            out.flush()?;
        }
        line.clear();
        let read = input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
        if read.map_err(|error| Failure::Asked(format!("stdin cannot be read: {error}")))? == 0 {
            return out.flush();
        }
        let answer = match line.len() as u64 == LONGEST_LINE && !line.ends_with(b"\n") {
            true => {
                input
                    .skip_until(b'\n')
                    .map_err(|error| Failure::Asked(format!("stdin cannot be read: {error}")))?;
                Err(format!("the line is longer than {LONGEST_LINE} bytes"))
            }
            false => instants(&line, now),
        };
        out.json(&answer.map_or_else(Answer::Error, Answer::Next))?;
    }
}

fn instants(line: &[u8], now: Timestamp) -> Result<Vec<String>, String> {
    let question: Question = serde_json::from_slice(line).map_err(|error| match error.is_eof() {
        true if line.trim_ascii().is_empty() => "the line is empty".to_owned(),
        _ => format!("not a question such as {{\"expr\":\"0 2 * * *\",\"tz\":\"UTC\",\"n\":1}}: {error}"),
    })?;
    let zone: Zone =
        question.tz.as_deref().unwrap_or("UTC").parse().map_err(|error| format!("tz: {error}"))?;
    let after = match &question.after {
        None => now,
        Some(text) => chrono::DateTime::parse_from_rfc3339(text)
            .map_err(|error| format!("after: {text:?} is not an RFC 3339 instant: {error}"))?
            .to_utc(),
    };
    let n = question.n.unwrap_or(1);
    if n > MOST {
        return Err(format!("n: at most {MOST}, not {n}"));
    }
    let schedule = Schedule::parse(&[&question.expr], &zone, question.job.as_deref().unwrap_or_default())
        .map_err(|errors| {
            errors.into_iter().map(|(_, error)| error.to_string()).collect::<Vec<_>>().join("; ")
        })?;
    let mut from = after;
    let fires = std::iter::from_fn(|| {
        from = schedule.next_after(from)?;
        Some(zone.local(from).to_string())
    });
    Ok(fires.take(n).collect())
}
