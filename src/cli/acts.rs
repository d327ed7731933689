//! `fleetcron acts`: who asked for what.

use std::process::ExitCode;

use serde::Serialize;

use super::Door;
use super::failure::Failure;
use super::out::GiveUp::OneLine;
use super::out::{Table, or_dash};
use super::read::{self, Pages, say_unreadable};
use super::time::{self, Toward};
use crate::schedule::Zone;
use crate::store::keys;
use crate::store::values::{self, Act};

/// List what operators asked for, the newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each start, pause, resume, drain, undrain, forget, and each sync that changed something is written down, with who asked \
(user@host, as that machine says: a claim, not a proof). Of the last 90 days up to 10,000 are kept.

A time is RFC 3339 (2026-11-30T02:00:00Z), a date, a time of day (06:00), or how long ago (8h); dates and times of day \
are UTC, as are all that are shown.

JSON has one object a line: at, by, what, subject (a job, a fire, a node, a source, or --all), detail.

Examples:
  fleetcron acts
  fleetcron acts --since 7days --output json | jq -r 'select(.what == \"pause\").by'")]
pub struct Args {
    /// Only acts at or after this time
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// How many lines at most
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: usize,
}

#[derive(Serialize)]
struct Row<'a> {
    at: String,
    by: &'a str,
    what: &'a str,
    subject: &'a str,
    detail: Option<&'a str>,
}

pub async fn acts(mut door: Door, args: &Args) -> Result<ExitCode, Failure> {
    let since = args.since.as_deref().map(|text| time::instant(text, door.now(), &Zone::utc(), Toward::Past));
    let since = since.transpose().map_err(|error| Failure::Usage(format!("--since: {error}")))?;
    let store = door.store().await?;
    let range = since.map_or_else(keys::acts, keys::acts_since);
    // Read from the oldest on, as the store gives them without sorting; of all that are kept only these stay in memory.
    let mut newest = std::collections::VecDeque::new();
    let mut unreadable = 0;
    let pages = Pages::new(&store, [range]);
    pages
        .each(|entry| match values::decode::<Act>(&entry.key, &entry.value) {
            Ok(act) => {
                newest.push_front(act);
                newest.truncate(args.limit);
            }
            Err(error) => {
                say_unreadable(&error);
                unreadable += 1;
            }
        })
        .await?;
    let out = &mut door.out;
    let header = ["AT", "BY", "WHAT", "SUBJECT", "DETAIL"];
    let mut table = Table::new(&header, &[OneLine("DETAIL"), OneLine("BY")]);
    for act in &newest {
        let row = Row {
            at: time::utc(act.at),
            by: &act.by,
            what: &act.what,
            subject: &act.subject,
            detail: act.detail.as_deref(),
        };
        match out.is_json() {
            true => out.json(&row)?,
            false => table.row(
                out,
                vec![
                    time::utc_seconds(act.at),
                    row.by.to_owned(),
                    row.what.to_owned(),
                    row.subject.to_owned(),
                    or_dash(row.detail),
                ],
            )?,
        }
    }
    table.end(out)?;
    read::ended_with(unreadable)?;
    Ok(ExitCode::SUCCESS)
}
