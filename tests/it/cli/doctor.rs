//! `doctor`: what it says of a machine, and how it ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::*;
use crate::etcd::{Etcd, Version};

const CHECKS: [&str; 9] =
    ["store", "state", "guard", "cgroup", "limits", "user", "policy", "clock", "tzdata"];

/// What the checks said, in their order.
fn checks(said: &Said) -> Vec<Value> {
    let rows: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["check"].as_str().unwrap()).collect::<Vec<_>>(), CHECKS);
    rows
}

/// Runs it, and looks at one check: its result, and a part of what it found or advises.
#[track_caller]
fn check(desk: &Desk, args: &[&str], code: i32, (name, result, part): (&str, &str, &str)) {
    let said = desk.run(&[&["doctor", "--output", "json"], args].concat()).ended_with(code);
    assert_eq!(said.err, "");
    let row = checks(&said).into_iter().find(|row| row["check"] == name).unwrap();
    assert_eq!(row["result"], result, "{row}");
    assert!(format!("{} {}", row["found"], row["advice"]).contains(part), "{row}");
    // What is not well comes with what to do.
    assert_eq!(row["advice"].is_null(), result == "ok", "{row}");
}

#[test]
fn a_machine_that_has_what_a_node_needs_is_told_so_line_by_line() {
    let desk = Desk::with_jobs("[jobs.a]\nschedule = '@daily'\ncommand = 'true'\n");
    let said = desk.run(&["doctor", "--output", "json"]).ended_with(0);
    assert!(checks(&said).iter().all(|row| row["result"] != "fail"), "{said:#?}");
    check(&desk, &[], 0, ("store", "ok", "fleetcron.db: SQLite 3."));
    check(&desk, &[], 0, ("state", "ok", "is not there yet"));
    check(&desk, &[], 0, ("guard", "ok", concat!("fleetcron-guard ", env!("CARGO_PKG_VERSION"))));
    check(&desk, &[], 0, ("limits", "ok", "by rlimit, for each process: core, cpu, data"));
    check(&desk, &[], 0, ("tzdata", "ok", fleetcron::schedule::tzdata_version()));
    let cgroup = match fleetcron::cgroup::Delegated::find() {
        Ok(_) => ("cgroup", "ok", "each run has its own below"),
        Err(_) => ("cgroup", "warn", "Delegate=yes"),
    };
    check(&desk, &[], 0, cgroup);
    let user =
        if nix::unistd::geteuid().is_root() { "jobs of every user" } else { ", not root: only jobs of" };
    check(&desk, &[], 0, ("user", "ok", user));
    let said = desk.run(&["doctor"]).ended_with(0);
    assert_eq!(said.out.lines().count(), 1 + CHECKS.len(), "{said:#?}");
    assert!(!desk.path("state").exists(), "it only looks");
}

#[test]
fn a_store_that_is_not_reached_does_not_keep_the_rest_from_being_told() {
    let desk = Desk::new();
    check(&desk, &[], 3, ("store", "fail", "there is no store at sqlite:"));
    assert!(is_empty(&desk.path("store")));
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    check(&desk, &["--store", &format!("etcd://{closed}")], 3, ("store", "fail", "whether etcd is up"));
    desk.run(&["doctor", "--store", "redis://x"]).refused_with(2, "redis://x");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_of_etcd_is_told() {
    let etcd = Etcd::start(Version::V34).await;
    let desk = Desk::new();
    let store = etcd.address("/doctor").to_string();
    tokio::task::block_in_place(|| check(&desk, &["--store", &store], 0, ("store", "ok", ": etcd 3.4.")));
}

#[test]
fn a_state_folder_that_is_not_as_it_should_be_is_told_with_what_to_do() {
    let desk = Desk::with_jobs("[jobs.a]\nschedule = '@daily'\ncommand = 'true'\n");
    let state = desk.path("state");
    fs::create_dir(&state).unwrap();
    let mode = |mode| fs::set_permissions(&state, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o700);
    check(&desk, &[], 0, ("state", "ok", "mode 0700"));
    mode(0o750);
    check(&desk, &[], 0, ("state", "warn", "chmod go= "));
    mode(0o500);
    if !nix::unistd::geteuid().is_root() {
        check(&desk, &[], 1, ("state", "fail", "permission denied"));
    }
    mode(0o700);
    if nix::unistd::geteuid().is_root() {
        let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
        std::os::unix::fs::chown(&state, Some(nobody.uid.as_raw()), None).unwrap();
        check(&desk, &[], 0, ("state", "warn", "belongs to nobody"));
    }
    desk.write("file", "");
    let file = desk.path("file").display().to_string();
    check(&desk, &["--state", &file], 1, ("state", "fail", "is no folder"));
    check(&desk, &["--state", &format!("{file}/below")], 1, ("state", "fail", "not a directory"));
}

#[test]
fn a_guard_of_another_release_is_a_failure_and_so_is_none() {
    let desk = Desk::with_jobs("[jobs.a]\nschedule = '@daily'\ncommand = 'true'\n");
    desk.write("bin/x", "");
    let program = desk.path("bin/fleetcron");
    // As an upgrade does that went only half way.
    fs::copy(env!("CARGO_BIN_EXE_fleetcron"), &program).unwrap();
    let run = || {
        let here = desk.command(&[]);
        let mut copy = Command::new(&program);
        copy.args(["doctor", "--output", "json"]).env_clear().stdin(Stdio::null());
        copy.envs(here.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let said = Said::of(copy.current_dir(desk.path("")).output().unwrap()).ended_with(1);
        checks(&said)[2].clone()
    };
    assert_eq!(
        (&run()["result"], run()["found"].as_str().unwrap().contains("there is no")),
        (&"fail".into(), true)
    );
    let guard = desk.path("bin/fleetcron-guard");
    fs::write(&guard, "#!/bin/sh\necho fleetcron-guard 0.0.1\n").unwrap();
    fs::set_permissions(&guard, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(run()["found"].as_str().unwrap().contains("is of another release"), "{}", run());
}

#[test]
fn the_nodes_own_policy_is_told() {
    let desk = Desk::with_jobs("[jobs.a]\nschedule = '@daily'\ncommand = 'true'\n");
    check(&desk, &[], 0, ("policy", "ok", "allow_users is not set"));
    desk.write("fleetcron.toml", "allow_users = ['root', 'nosuchuser']\nallow_root = false\n");
    check(&desk, &[], 0, ("policy", "warn", "no user nosuchuser"));
    check(&desk, &[], 0, ("policy", "warn", "allow_users = [nosuchuser, root]; allow_root = false"));
}
