//! Coverage: each due fire against the locks, records and spans that there are.
//!
//! One pass over what covers, in order of time; fires are only counted between.

use chrono::TimeDelta;

use super::{Books, Counts, Finding, Kind, Report, before, is_near, said};
use crate::fire::{Fire, FireId};
use crate::record::{Record, Span};
use crate::schedule::Timestamp;

/// So long after its last start nobody can say any more that a fire is only waited for: wardens look every minute.
const GRACE: TimeDelta = TimeDelta::minutes(3);

/// What covers some fires.
struct Covering<'a> {
    first: Timestamp,
    last: Timestamp,
    by: By<'a>,
}

#[derive(Clone, Copy)]
enum By<'a> {
    Record(&'a Record),
    Lock { is_running: bool },
    Unreadable,
}

pub(super) fn judge(books: &Books, report: &mut Report) {
    let after = before(books.since);
    let end = before(books.until).min(books.now);
    let known = books.unknown_until().clamp(after, end.max(after));
    report.counts.due = books.dues.count(after, end);
    report.counts.asked = asked(books);
    // Up to here all is accounted for.
    let mut reached = after;
    for covering in coverings(books) {
        if covering.last <= after || covering.first > end {
            continue;
        }
        // One that began before the time asked about is told of where it meets another in it.
        match reached > after && covering.first <= reached {
            true => report.findings.push(double(&covering, reached)),
            false => uncovered(books, report, reached, before(covering.first), known),
        }
        covered(books, report, &covering, reached, end);
        reached = reached.max(covering.last);
    }
    uncovered(books, report, reached, end, known);
}

fn coverings<'a>(books: &Books<'a>) -> Vec<Covering<'a>> {
    let scheduled = |fire: &Fire| match fire.id {
        FireId::Scheduled(at) => Some(at),
        FireId::Manual(_) | FireId::Chain(_) | FireId::Task(_) | FireId::Boot(_) => None,
    };
    let records = books.records.iter().filter_map(|record| {
        let first = scheduled(&record.fire)?;
        let last = record.span.map_or(first, |span| span.last);
        Some(Covering { first, last, by: By::Record(record) })
    });
    let locks = books.locks.iter().filter_map(|held| {
        let at = scheduled(&held.fire)?;
        Some(Covering { first: at, last: at, by: By::Lock { is_running: held.is_running } })
    });
    let unreadable = books.unreadable.iter();
    let unreadable =
        unreadable.map(|(first, last)| Covering { first: *first, last: *last, by: By::Unreadable });
    let mut all: Vec<_> = records.chain(locks).chain(unreadable).collect();
    all.sort_by_key(|covering| (covering.first, covering.last));
    all
}

/// Fires that no schedule asked for.
fn asked(books: &Books) -> u64 {
    let fires =
        books.records.iter().map(|record| &record.fire).chain(books.locks.iter().map(|held| &held.fire));
    let asked = |fire: &&Fire| !matches!(fire.id, FireId::Scheduled(_)) && books.asks_about(fire);
    fires.filter(asked).count() as u64
}

fn double(covering: &Covering, reached: Timestamp) -> Finding {
    let last = covering.last.min(reached);
    let what = match covering.by {
        By::Record(Record { span: Some(_), .. }) => "a span",
        By::Record(_) => "a record",
        By::Lock { .. } => "a lock",
        By::Unreadable => "a record that cannot be read",
    };
    Finding {
        last: (last > covering.first).then_some(last),
        ..Finding::about(
            Kind::Double,
            FireId::scheduled(covering.first),
            format!("{what} stands where something else covers it already"),
        )
    }
}

/// Counts what is covered behind `reached`, and looks at whether it was due.
fn covered(books: &Books, report: &mut Report, covering: &Covering, reached: Timestamp, end: Timestamp) {
    let Covering { first, last, by } = *covering;
    match by {
        By::Record(Record { span: Some(span), .. }) => {
            report.findings.extend(wrong_span(books, first, span));
        }
        _ if first == last && is_out_of_order(books, first) => {
            let detail = "no definition had a fire then, unless the time zone data were others (`fleetcron --version`)";
            report.findings.push(Finding::about(Kind::NotDue, FireId::scheduled(first), detail));
        }
        _ => {}
    }
    let fires = books.dues.count(before(first).max(reached), last.min(end));
    if fires == 0 {
        return;
    }
    let counts = &mut report.counts;
    *match by {
        By::Record(record) => counts.outcomes.entry(record.outcome).or_default(),
        By::Lock { is_running: true } => &mut counts.running,
        By::Lock { is_running: false } => &mut counts.waiting,
        By::Unreadable => &mut counts.unreadable,
    } += fires;
}

/// Whether a fire was not due, as far as the definitions of its time are known.
fn is_out_of_order(books: &Books, at: Timestamp) -> bool {
    let reigns = books.dues.reigns();
    let is_known = books.dues_are_known && reigns.first().is_some_and(|first| at > first.since);
    is_known
        && !reigns
            .iter()
            .any(|reign| reign.job.enabled && is_near(reign, at) && reign.job.schedule.contains(at))
}

fn wrong_span(books: &Books, first: Timestamp, span: &Span) -> Option<Finding> {
    let is_known =
        books.dues_are_known && books.dues.reigns().first().is_some_and(|reign| first > reign.since);
    if !is_known {
        return None;
    }
    let due = books.dues.count(before(first), span.last);
    let detail = match is_out_of_order(books, first) || is_out_of_order(books, span.last) {
        true => "it begins or ends where no fire was due".to_owned(),
        false if due != span.count => format!("it says {} fires, and {due} were due in it", span.count),
        false => return None,
    };
    let about = Finding::about(Kind::Span, FireId::scheduled(first), detail);
    Some(Finding { last: Some(span.last), count: span.count, ..about })
}

/// Judges the fires in `(after, until]`, which nothing covers.
fn uncovered(books: &Books, report: &mut Report, after: Timestamp, until: Timestamp, known: Timestamp) {
    report.counts.unknown += books.dues.count(after, until.min(known).max(after));
    let after = after.max(known);
    if after >= until {
        return;
    }
    let in_force = books.dues.reigns().last().is_some_and(|reign| reign.until.is_none());
    let floor = match books.floor {
        Some(floor) => floor,
        // Taken out by somebody: it is made anew.
        None if in_force => Timestamp::MIN_UTC,
        // The lane was closed, for which all of it had to be decided.
        None => Timestamp::MAX_UTC,
    };
    gap(books, report, after, until.min(floor), "under the floor");
    let after = after.max(floor);
    if !books.is_attended {
        report.counts.open += books.dues.count(after, until.max(after));
        return;
    }
    for reign in books.dues.reigns() {
        let from = after.max(reign.since);
        let to = reign.until.map_or(until, |end| end.min(until));
        if from >= to {
            continue;
        }
        let late = TimeDelta::from_std(reign.job.delay() + reign.job.start_within).unwrap_or(TimeDelta::MAX);
        let late = books.now.checked_sub_signed(GRACE).and_then(|now| now.checked_sub_signed(late));
        let late = late.unwrap_or(Timestamp::MIN_UTC).clamp(from, to);
        gap(books, report, from, late, "too late to be started");
        report.counts.open += books.dues.count(late, to);
    }
}

fn gap(books: &Books, report: &mut Report, after: Timestamp, until: Timestamp, why: &str) {
    if after >= until {
        return;
    }
    let Some(first) = books.dues.next_after(after).filter(|first| *first <= until) else { return };
    let last = books.dues.last_in(after, until).unwrap_or(first);
    let count = books.dues.count(after, until);
    report.counts.gaps += count;
    let detail = match count {
        1 => format!("nothing says what became of it, and it is {why}"),
        _ => format!("nothing says what became of {count} fires up to {}, and they are {why}", said(last)),
    };
    let about = Finding::about(Kind::Gap, FireId::scheduled(first), detail);
    report.findings.push(Finding { last: (count > 1).then_some(last), count, ..about });
}

impl Counts {
    /// How many of the due fires are told of: all of them, unless fires that were not due are covered.
    #[cfg(test)]
    pub fn told(&self) -> u64 {
        let Counts { due: _, outcomes, running, waiting, open, gaps, unknown, unreadable, asked: _ } = self;
        outcomes.values().sum::<u64>() + running + waiting + open + gaps + unknown + unreadable
    }
}
