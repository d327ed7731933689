//! `fleetcron nodes`: who is there.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use serde::Serialize;

use super::failure::{Failure, say};
use super::out::GiveUp::{All, OneLine};
use super::out::Table;
use super::read::{self, Pages, say_unreadable};
use super::{Door, time};
use crate::schedule::tzdata_version;
use crate::store::values::{self, Presence, SourceState};
use crate::store::{Store, keys};

/// List the nodes that are registered
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A node is listed while it is registered: one that is lost disappears within seconds. DRIFT names the sources of \
whose job files the node has another version than the store; `fleetcron sync` makes the store equal to files.

JSON has one object a line: node, node_start, version, tzdata, labels, slots, registered_at, drift, files.

Examples:
  fleetcron nodes
  fleetcron nodes --output json | jq -r 'select(.drift != []).node'")]
pub struct Args {}

#[derive(Serialize)]
struct Row<'p> {
    node: &'p str,
    node_start: String,
    version: &'p str,
    tzdata: &'p str,
    labels: &'p BTreeMap<String, String>,
    slots: u32,
    registered_at: String,
    drift: Vec<&'p str>,
    files: &'p BTreeMap<String, String>,
}

pub async fn nodes(mut door: Door) -> Result<ExitCode, Failure> {
    let store = door.store().await?;
    let digests = digests(&store).await?;
    let out = &mut door.out;
    let give_up = &[OneLine("LABELS"), OneLine("DRIFT"), All("REGISTERED"), All("SLOTS"), All("TZDATA")];
    let header = ["NODE", "VERSION", "TZDATA", "SLOTS", "REGISTERED", "LABELS", "DRIFT"];
    let mut table = Table::new(&header, give_up);
    let (mut unreadable, mut zones) = (0, BTreeSet::from([tzdata_version().to_owned()]));
    let mut pages = Pages::new(&store, [keys::nodes()]);
    while let Some(entries) = pages.next().await? {
        for entry in entries {
            let presence: Presence = match values::decode(&entry.key, &entry.value) {
                Ok(presence) => presence,
                Err(error) => {
                    say_unreadable(&error);
                    unreadable += 1;
                    continue;
                }
            };
            zones.insert(presence.tzdata.clone());
            let row = row(keys::name_of(&entry.key), &presence, &digests);
            match out.is_json() {
                true => out.json(&row)?,
                false => table.row(out, cells(&row))?,
            }
        }
    }
    table.end(out)?;
    if zones.len() > 1 {
        let versions: Vec<_> = zones.into_iter().collect();
        say(format_args!(
            "warning: not all have the same time zone data ({}; here {}), so they may disagree about when a job is due",
            versions.join(", "),
            tzdata_version()
        ));
    }
    read::ended_with(unreadable)?;
    Ok(ExitCode::SUCCESS)
}

/// The digest of each source, as the store has it.
async fn digests(store: &Store) -> Result<BTreeMap<String, String>, Failure> {
    let mut digests = BTreeMap::new();
    let sources = Pages::new(store, [keys::sources()]);
    sources
        .each(|entry| match values::decode::<SourceState>(&entry.key, &entry.value) {
            Ok(state) => _ = digests.insert(keys::name_of(&entry.key).to_owned(), state.digest),
            Err(error) => say_unreadable(&error),
        })
        .await?;
    Ok(digests)
}

fn row<'p>(name: &'p str, presence: &'p Presence, digests: &BTreeMap<String, String>) -> Row<'p> {
    let drifts = |(source, digest): &(&String, &String)| digests.get(*source) != Some(*digest);
    Row {
        node: name,
        node_start: presence.node_start.to_string(),
        version: &presence.version,
        tzdata: &presence.tzdata,
        labels: &presence.labels,
        slots: presence.slots,
        registered_at: time::utc(presence.at),
        drift: presence.files.iter().filter(drifts).map(|(source, _)| source.as_str()).collect(),
        files: &presence.files,
    }
}

fn cells(row: &Row<'_>) -> Vec<String> {
    let labels: Vec<_> = row.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let or_dash = |words: String| if words.is_empty() { "-".to_owned() } else { words };
    vec![
        row.node.to_owned(),
        row.version.to_owned(),
        row.tzdata.to_owned(),
        row.slots.to_string(),
        row.registered_at.split('.').next().unwrap_or_default().trim_end_matches('Z').to_owned() + "Z",
        or_dash(labels.join(", ")),
        or_dash(row.drift.join(", ")),
    ]
}
