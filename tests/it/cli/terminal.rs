//! What a person at a terminal sees, and is asked.

use std::fs::File;
use std::io::{Read, Write};

use fleetcron::record::Outcome;
use fleetcron::store::{keys, values};
use nix::pty::{Winsize, openpty};

use super::*;

/// Runs the program on a terminal of this width. When it asks, it gets this answer.
fn on_terminal(desk: &Desk, width: u16, args: &[&str], answer: &str) -> Said {
    let size = Winsize { ws_row: 24, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(&size, None).unwrap();
    let mut command = desk.command(args);
    let end = || terminal.slave.try_clone().unwrap();
    command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
    let mut child = command.spawn().unwrap();
    // Now only the program has it open, so that its end is seen.
    drop((command, terminal.slave));
    let mut person = File::from(terminal.master);
    let (mut seen, mut piece, mut asked) = (Vec::new(), [0; 4096], false);
    // A terminal that nobody has open any more is an error to read.
    while let Ok(length @ 1..) = person.read(&mut piece) {
        seen.extend_from_slice(&piece[..length]);
        if !asked && seen.ends_with(b"apply? [y/N] ") {
            asked = true;
            person.write_all(answer.as_bytes()).unwrap();
        }
    }
    let out = String::from_utf8(seen).unwrap().replace("\r\n", "\n");
    Said { code: child.wait().unwrap().code().unwrap(), out, err: String::new() }
}

fn jobs(names: &[&str]) -> String {
    let job = |name: &&str| {
        format!("[jobs.{name}]\nschedule = '0 2 * * *'\ntimezone = 'Europe/Berlin'\ncommand = 'true'\n")
    };
    names.iter().map(job).collect()
}

#[test]
fn sync_asks_and_does_as_it_is_told() {
    let desk = Desk::with_jobs(&jobs(&["a", "b", "c"]));
    let names = || -> Vec<String> {
        desk.json(&["jobs"]).iter().map(|row| row["job"].as_str().unwrap().to_owned()).collect()
    };
    desk.write("jobs.toml", jobs(&["a", "d"]));
    // An end of input (a ^D on a line of its own) is no yes.
    for answer in ["n\n", "\n", "yeah\n", "\u{4}"] {
        let said = on_terminal(&desk, 80, &["sync", "jobs.toml"], answer).ended_with(1);
        assert!(said.out.contains("+ d") && said.out.contains("- b"), "{said:#?}");
        assert!(said.out.contains("note: 2 of the 3 jobs of source default will be removed"), "{said:#?}");
        assert!(said.out.contains("apply? [y/N] ") && said.out.contains("nothing is applied"), "{said:#?}");
        assert_eq!(names(), ["a", "b", "c"], "{answer:?}");
    }
    // There is nothing to ask, or nobody wants to be asked.
    for args in [&["sync", "jobs.toml", "--dry-run"][..], &["sync", "jobs.toml", "--yes", "--prune"]] {
        let said = on_terminal(&desk, 80, args, "").ended_with(0);
        assert!(!said.out.contains("apply?"), "{said:#?}");
    }
    assert_eq!(names(), ["a", "d"]);
    desk.write("jobs.toml", jobs(&["a", "e"]));
    for answer in ["y\n", "YES\n"] {
        desk.write("jobs.toml", jobs(&["a", answer.trim().to_lowercase().as_str()]));
        on_terminal(&desk, 80, &["sync", "jobs.toml"], answer).ended_with(0);
    }
    assert_eq!(names(), ["a", "yes"]);
    let said = on_terminal(&desk, 80, &["sync", "jobs.toml"], "").ended_with(0);
    assert!(!said.out.contains("apply?") && said.out.contains("the store has this already"), "{said:#?}");
}

/// Every line fits, and no word of the table on a wide terminal is broken on a narrow one.
#[track_caller]
fn check_table(desk: &Desk, args: &[&str], gone: &[&str]) {
    let [wide, narrow] = [250, 80].map(|width| {
        let said = on_terminal(desk, width, args, "").ended_with(0).out;
        // What is said before the table is no part of it.
        said[said.find("JOB ").or(said.find("NODE ")).unwrap()..].to_owned()
    });
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{args:?}\n{narrow}");
    let words: Vec<&str> = wide.split_whitespace().collect();
    let broken = narrow.split_whitespace().find(|word| !words.contains(word));
    assert_eq!(broken, None, "{args:?}\n{narrow}");
    let (all, left) = (wide.lines().next().unwrap(), narrow.lines().next().unwrap());
    let out: Vec<&str> = all.split("  ").map(str::trim).filter(|name| !left.contains(name)).collect();
    assert_eq!(out, gone, "{args:?}\n{narrow}");
}

#[test]
fn a_table_fits_a_narrow_terminal_without_a_broken_word() {
    let desk = Desk::with_jobs(&format!(
        "{}[jobs.certificates]\nschedule = ['17 3 * * mon-fri', '@every 12h']\ntimezone = 'UTC'\nsplay = '30m'\n\
         command = 'x'\n",
        jobs(&["nightly-db-backup"])
    ));
    let of = fire("nightly-db-backup", "20261129T010000Z");
    desk.put_record(&record(of, Outcome::Failed, Some(137), None));
    let reason = "another run of the job was not over, and it does not allow a second one";
    desk.put_record(&unrun(fire("certificates", "20261130T030000Z"), Outcome::Skipped, reason));
    let by_hand = fire("nightly-db-backup", "m-01ARZ3NDEKTSV4RRFFQ69G5FAV");
    desk.put([(keys::lock(&by_hand), lock(at("2016-07-30T23:54:10Z")))]);
    let labels = [("role", "db"), ("zone", "eu-central-1"), ("rack", "b17"), ("os", "debian-13")];
    let here = presence(&labels, &[("default", "other")], at("2026-11-30T09:00:00Z"));
    desk.put([(keys::node(&node()), values::encode(&here))]);
    // So long a reason has the wide one give up the zone already.
    check_table(&desk, &["jobs"], &["SCHEDULE"]);
    check_table(&desk, &["runs"], &["DUE", "TOOK", "CPU", "MEMORY", "OUTPUT"]);
    check_table(&desk, &["nodes"], &["REGISTERED"]);
    check_table(&desk, &["next", "-n", "2", "--after", "2100-03-27"], &["UTC"]);
    check_table(&desk, &["check", "jobs.toml"], &["ZONE"]);
}
