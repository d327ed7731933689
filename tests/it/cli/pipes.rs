//! Where stdout goes: a reader who has seen enough, a disk that is full.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use fleetcron::record::Outcome;

use super::*;

const LISTINGS: [&[&str]; 9] = [
    &["jobs"],
    &["jobs", "--output", "json"],
    &["runs"],
    &["runs", "--output", "json"],
    &["next"],
    &["next", "--until", "48h", "--output", "json"],
    &["logs", "job-000"],
    &["check", "jobs.toml"],
    &["--help"],
];

fn desk() -> Desk {
    let desk = Desk::with_jobs(&many_jobs(500));
    let mut failed = record(fire("job-000", "20261128T010000Z"), Outcome::Failed, Some(1), None);
    let lines = "a line of output\n".repeat(200);
    failed.run.as_mut().unwrap().output_bytes = lines.len() as u64;
    failed.tail = Some(lines);
    desk.put_record(&failed);
    desk
}

#[test]
fn who_has_seen_enough_closes_the_pipe_and_hears_nothing() {
    let desk = desk();
    for args in LISTINGS {
        let mut child = desk.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(!first.is_empty(), "{args:?}");
        quiet(args, Said::of(child.wait_with_output().unwrap()));
        // Nobody at all listens.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        quiet(args, Said::of(desk.command(args).stdout(writer).output().unwrap()));
    }
}

#[track_caller]
fn quiet(args: &[&str], said: Said) {
    assert_eq!(said.code, 0, "{args:?}: {said:?}");
    // `check` says what it read, `next --until` how much it showed.
    let words = |line: &&str| !line.contains(": 500 jobs") && !line.contains(" fires until ");
    let complaints: Vec<_> = said.err.lines().filter(words).collect();
    assert_eq!(complaints, [] as [&str; 0], "{args:?}");
}

#[test]
fn the_first_of_500_jobs_is_one_line_and_no_complaint() {
    let desk = desk();
    let program = env!("CARGO_BIN_EXE_fleetcron");
    for args in ["jobs", "jobs --output json", "runs", "next --until 48h"] {
        let line = format!("{program} {args} | head -1; exit ${{PIPESTATUS[0]}}");
        let mut command = Command::new("bash");
        for (name, value) in desk.command(&[]).get_envs() {
            command.envs(value.map(|value| (name, value)));
        }
        let said = Said::of(command.args(["-c", &line]).output().unwrap());
        assert!(matches!(said.code, 0 | 141), "{args}: {said:?}");
        assert_eq!(said.out.lines().count(), 1, "{args}: {said:?}");
    }
}

#[test]
fn a_full_disk_is_told_and_is_a_failure() {
    let desk = desk();
    for args in
        LISTINGS.into_iter().chain([&["--version"][..], &["start", "job-000"], &["sync", "jobs.toml"]])
    {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let said = Said::of(desk.command(args).stdout(full).output().unwrap());
        assert_eq!(said.code, 1, "{args:?}: {said:?}");
        assert!(said.err.contains("stdout cannot be written: "), "{args:?}: {said:?}");
    }
}

#[test]
fn nothing_is_coloured_on_a_pipe() {
    let desk = desk();
    for args in LISTINGS {
        let said = desk.run(args);
        assert!(!said.out.contains('\u{1b}') && !said.err.contains('\u{1b}'), "{args:?}");
    }
}

#[test]
fn words_that_nobody_can_hear_are_no_panic() {
    let desk = Desk::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = desk.command(&["jobs"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(3));
}
