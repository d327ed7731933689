//! `fleetcron nodes`: who is there.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use serde::Serialize;

use super::failure::{Failure, say};
use super::out::GiveUp::{All, OneLine};
use super::out::{Table, harmless};
use super::read::{self, HeldBack, Pages, UnderWay, say_unreadable};
use super::{Door, time};
use crate::daemon::health::Health;
use crate::schedule::tzdata_version;
use crate::store::values::{self, HoldBack, Presence, SourceState};
use crate::store::{Store, keys};

/// List the nodes that are registered
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A node is listed while it is registered: one that is lost disappears within seconds, so each that is listed was seen \
within the last ones. RUNS is how many it runs now. DRIFT names the sources of whose job files the node has another \
version than the store; `fleetcron sync` makes the store equal to files. CLOCK is what the node knows to be wrong with its \
clock; with one that is ahead, behind or was set it claims no scheduled fire until that is put right.

JSON has one object a line: node, node_start, version, tzdata, labels, slots, running, \
registered_at, drift, drained, drained_by, drained_reason, clock, files; and last_contact and last_decision, which only the \
node of this machine tells (null for others).

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
    running: usize,
    registered_at: String,
    drift: Vec<&'p str>,
    drained: bool,
    drained_by: Option<&'p str>,
    drained_reason: Option<&'p str>,
    clock: Option<&'p str>,
    last_contact: Option<String>,
    last_decision: Option<String>,
    files: &'p BTreeMap<String, String>,
}

pub async fn nodes(mut door: Door) -> Result<ExitCode, Failure> {
    let store = door.store().await?;
    let digests = digests(&store).await?;
    let drains = HeldBack::read(&store, keys::drains()).await?;
    let running = running(&store).await?;
    let own = Own::here(&door);
    let mut away: BTreeSet<&str> = drains.names().collect();
    let out = &mut door.out;
    // Most of the time no node is drained, and its column would crowd out another.
    let any_drained = !away.is_empty();
    let give_up: &[_] = match any_drained {
        true => &[
            OneLine("LABELS"),
            OneLine("DRIFT"),
            OneLine("CLOCK"),
            OneLine("DRAINED"),
            All("REGISTERED"),
            All("SLOTS"),
            All("TZDATA"),
        ],
        false => &[
            OneLine("LABELS"),
            OneLine("DRIFT"),
            OneLine("CLOCK"),
            All("REGISTERED"),
            All("SLOTS"),
            All("TZDATA"),
        ],
    };
    let header =
        ["NODE", "VERSION", "TZDATA", "RUNS", "SLOTS", "REGISTERED", "LABELS", "DRIFT", "CLOCK", "DRAINED"];
    let columns = if any_drained { header.len() } else { header.len() - 1 };
    let mut table = Table::new(&header[..columns], give_up);
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
            let name = keys::name_of(&entry.key);
            away.remove(name);
            let health = own.as_ref().filter(|own| own.is(name, &presence)).map(|own| &own.health);
            let runs = running.get(name).copied().unwrap_or_default();
            let row = Row { running: runs, ..row(name, &presence, &digests, drains.drain(name), health) };
            match out.is_json() {
                true => out.json(&row)?,
                false => table.row(out, cells(&row).into_iter().take(columns).collect())?,
            }
        }
    }
    table.end(out)?;
    if !away.is_empty() {
        let names: Vec<_> = away.into_iter().map(harmless).collect();
        say(format_args!("drained and not registered: {}", names.join(", ")));
    }
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

/// How many runs each node has, by its locks.
async fn running(store: &Store) -> Result<BTreeMap<String, usize>, Failure> {
    let mut running = BTreeMap::new();
    let locks = Pages::new(store, [keys::locks()]);
    locks
        .each(|entry| {
            if let Some(run) = read::lock_of(&entry).filter(UnderWay::is_running) {
                *running.entry(run.lock.node.to_string()).or_default() += 1;
            }
        })
        .await?;
    Ok(running)
}

/// The node of this machine, where there is one.
struct Own {
    health: Health,
}

impl Own {
    /// What cannot be found out here is not shown: it is a matter of `doctor`.
    fn here(door: &Door) -> Option<Own> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let node = door.settings.node(set("FLEETCRON_NODE").as_deref()).ok()?;
        let state = set("FLEETCRON_STATE").map(std::path::PathBuf::from);
        let state = door.settings.state(state.as_deref(), &node).ok()?;
        Some(Own { health: Health::read(&state).ok()?? })
    }

    fn is(&self, name: &str, presence: &Presence) -> bool {
        self.health.node == name && self.health.node_start == presence.node_start
    }
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

fn row<'p>(
    name: &'p str,
    presence: &'p Presence,
    digests: &BTreeMap<String, String>,
    drain: Option<Option<&'p HoldBack>>,
    health: Option<&Health>,
) -> Row<'p> {
    let drifts = |(source, digest): &(&String, &String)| digests.get(*source) != Some(*digest);
    Row {
        node: name,
        node_start: presence.node_start.to_string(),
        version: &presence.version,
        tzdata: &presence.tzdata,
        labels: &presence.labels,
        slots: presence.slots,
        running: 0,
        registered_at: time::utc(presence.at),
        drift: presence.files.iter().filter(drifts).map(|(source, _)| source.as_str()).collect(),
        drained: drain.is_some(),
        drained_by: drain.flatten().map(|drain| drain.by.as_str()),
        drained_reason: drain.flatten().and_then(|drain| drain.reason.as_deref()),
        clock: presence.clock.as_ref().map(|clock| clock.says.as_str()),
        last_contact: health.map(|health| time::utc(health.contact.at)),
        last_decision: health.and_then(|health| Some(time::utc(health.decision?.at))),
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
        row.running.to_string(),
        row.slots.to_string(),
        row.registered_at.split('.').next().unwrap_or_default().trim_end_matches('Z').to_owned() + "Z",
        or_dash(labels.join(", ")),
        or_dash(row.drift.join(", ")),
        or_dash(row.clock.unwrap_or_default().to_owned()),
        match (row.drained, row.drained_reason) {
            (false, _) => "-".to_owned(),
            (true, None) => "drained".to_owned(),
            (true, Some(reason)) => format!("drained ({reason})"),
        },
    ]
}
