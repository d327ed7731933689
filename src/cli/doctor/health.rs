//! `fleetcron doctor --health`: whether this machine's node goes on, for service managers and probes.
//!
//! Looks only at the node's state folder, so it answers also while the store is away, and at once.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use crate::child;
use crate::cli::Door;
use crate::cli::failure::{Failure, say};
use crate::cli::time;
use crate::clock::since_boot;
use crate::daemon::health::Health;
use crate::daemon::state;
use crate::race::LEASE;

/// A node looks at what is due every two seconds, or more often.
const STALE_AFTER: Duration = Duration::from_secs(10);
/// A lease's time, and what the file may be late to tell of a contact.
const OUT_OF_TOUCH_AFTER: Duration = Duration::from_secs(LEASE.as_secs() + 3);
const _: () = assert!(OUT_OF_TOUCH_AFTER.as_secs() <= STALE_AFTER.as_secs());

/// There is no node here.
const NO_NODE: u8 = 3;

/// Names once released do not change.
#[derive(Debug, Serialize)]
struct Row {
    healthy: bool,
    /// What is wrong.
    why: Option<String>,
    node: Option<String>,
    runs: Option<usize>,
    /// How old the last look at what is due is, the last contact with the store and the last decision about a fire.
    pass_seconds: Option<f64>,
    contact_seconds: Option<f64>,
    decision_seconds: Option<f64>,
}

pub fn health(mut door: Door, state: &Path) -> Result<ExitCode, Failure> {
    let unreadable =
        |error| Failure::Asked(format!("the state folder {} cannot be read: {error}", state.display()));
    let Some(is_in_use) = state::is_in_use(state).map_err(unreadable)? else {
        say(format_args!("no node was ever started with the state folder {}", state.display()));
        return Err(Failure::Said(NO_NODE));
    };
    let health = Health::read(state).map_err(unreadable)?;
    let boot = child::boot_id().map_err(|error| Failure::Asked(format!("the boot id: {error}")))?;
    let why = complaint(is_in_use, health.as_ref(), &boot, since_boot());
    let age = |moment: crate::daemon::health::Moment| moment.age(since_boot());
    // Of another boot nothing can be counted.
    let health = health.filter(|health| health.boot == boot);
    if door.out.is_json() {
        let seconds = |moment| (age(moment).as_secs_f64() * 1000.0).round() / 1000.0;
        let health = health.as_ref();
        door.out.json(&Row {
            healthy: why.is_none(),
            why: why.clone(),
            node: health.map(|health| health.node.clone()),
            runs: health.map(|health| health.runs),
            pass_seconds: health.map(|health| seconds(health.pass)),
            contact_seconds: health.map(|health| seconds(health.contact)),
            decision_seconds: health.and_then(|health| health.decision).map(seconds),
        })?;
        door.out.flush()?;
        return if why.is_none() { Ok(ExitCode::SUCCESS) } else { Err(Failure::Said(1)) };
    }
    match (why, health) {
        (Some(why), _) => Err(Failure::Asked(why)),
        (None, Some(health)) => {
            let decision = health.decision.map(|decision| format!("{} ago", time::length(age(decision))));
            door.out.line(format_args!(
                "{} is healthy: looked at what is due {} ago, in contact with the store {} ago, last decision {}, {} in hand",
                health.node,
                time::length(age(health.pass)),
                time::length(age(health.contact)),
                decision.as_deref().unwrap_or("none yet"),
                health.runs,
            ))?;
            door.out.flush()?;
            Ok(ExitCode::SUCCESS)
        }
        (None, None) => Err(Failure::Asked("nothing is known of this node".to_owned())),
    }
}

/// What is wrong, in one line.
fn complaint(is_in_use: bool, health: Option<&Health>, boot: &str, now: Duration) -> Option<String> {
    let Some(health) = health.filter(|health| health.boot == boot) else {
        return Some(match is_in_use {
            true => "the node has not begun yet: it waits for its store, or for its name".to_owned(),
            false => "no daemon runs: the node is stopped".to_owned(),
        });
    };
    let node = &health.node;
    let (pass, contact) = (health.pass.age(now), health.contact.age(now));
    let ages = format!(
        "it looked at what is due {} ago, and was in contact with the store {} ago",
        time::length(pass),
        time::length(contact)
    );
    match () {
        () if !is_in_use || !Path::new(&format!("/proc/{}", health.pid)).exists() => {
            Some(format!("no daemon runs: {node} is stopped; {ages}"))
        }
        () if pass > STALE_AFTER => Some(format!("{node} stands still: {ages}")),
        () if contact > OUT_OF_TOUCH_AFTER => Some(format!("{node} is out of touch with the store: {ages}")),
        () => health.clock.as_ref().map(|clock| {
            format!("{node} decides nothing by its clock, which is off ({clock}); put the clock right")
        }),
    }
}
