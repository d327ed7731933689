//! Usage, settings and help.

use super::*;

#[test]
fn run_with_a_job_says_how_to_start_one() {
    let desk = Desk::new();
    desk.run(&["run", "backup"]).refused_with(2, "to start a job, use `fleetcron start backup`");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let desk = Desk::new();
    for args in [
        &[][..],
        &["nonsense"],
        &["jobs", "--nonsense"],
        &["jobs", "--output", "xml"],
        &["jobs", "Bad!"],
        &["check"],
        &["runs", "--limit", "many"],
        &["runs", "--outcome", "well"],
        &["run", "--slots", "0"],
        &["run", "--label", "x"],
        &["run", "--node", "localhost"],
        &["run", "--stop-hold", "soon"],
        &["jobs", "--store", "redis://x"],
        &["logs", "a", "-f", "--output", "json"],
        &["next", "--batch", "--explain"],
    ] {
        let said = desk.run(args).ended_with(2);
        assert!(!said.err.is_empty() && said.out.is_empty(), "{args:?}: {said:?}");
    }
}

#[test]
fn a_settings_file_that_is_there_and_wrong_is_an_error() {
    let desk = Desk::new();
    desk.write("fleetcron.toml", "node = 'db-1'\n\nstroe = 'x'\n");
    desk.run(&["jobs"]).refused_with(2, "fleetcron.toml:3:1: unknown field `stroe`");
    desk.run(&["jobs", "--config", "missing.toml"]).refused_with(2, "missing.toml cannot be read");
    desk.write("fleetcron.toml", [0xff, 0xfe]);
    desk.run(&["jobs"]).refused_with(2, "cannot be read");
}

#[test]
fn a_flag_comes_before_the_environment_and_that_before_the_file() {
    let desk = Desk::new();
    desk.write("fleetcron.toml", "store = 'sqlite:of-file.db'\n");
    let none = |command: &mut Command, part: &str| Said::of(command.output().unwrap()).refused_with(3, part);
    none(desk.command(&["jobs"]).env("FLEETCRON_STORE", ""), "of-file.db");
    none(desk.command(&["jobs"]).env("FLEETCRON_STORE", "sqlite:of-environment.db"), "of-environment.db");
    none(&mut desk.command(&["jobs", "--store", "sqlite:of-flag.db"]), "of-flag.db");
    // Without any of them a store in the user's own place.
    desk.write("fleetcron.toml", "");
    if !nix::unistd::geteuid().is_root() {
        let mut command = desk.command(&["jobs"]);
        none(
            command.env_remove("FLEETCRON_STORE").env("XDG_STATE_HOME", desk.path("xdg")),
            "xdg/fleetcron/fleetcron.db",
        );
    }
}

#[test]
fn a_clock_that_is_set_is_told() {
    let desk = Desk::new();
    let mut command = desk.command(&["next", "--schedule", "@daily", "--output", "json"]);
    let said = Said::of(command.env("FLEETCRON_TEST_CLOCK", "2026-10-25T00:55:00Z*1").output().unwrap());
    assert!(said.err.contains("FLEETCRON_TEST_CLOCK is set"), "{said:?}");
    assert!(said.out.contains("2026-10-26T00:00:00Z"), "{said:?}");
}

#[test]
fn help_teaches() {
    let desk = Desk::new();
    let help = desk.run(&["--help"]).ended_with(0).out;
    for part in ["Exit codes:", "fleetcron next --until 06:00", "Words:", "FLEETCRON_STORE"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    for command in ["run", "check", "sync", "jobs", "next", "runs", "logs", "nodes", "start"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}");
        let help = desk.run(&[command, "--help"]).ended_with(0).out;
        assert!(help.contains("Examples:") && help.contains(&format!("fleetcron {command}")), "{help}");
    }
    let version = desk.run(&["--version"]).ended_with(0).out;
    let tzdata = fleetcron::schedule::tzdata_version();
    assert_eq!(version, format!("fleetcron {} (time zone data {tzdata})\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_reads_well_on_any_terminal() {
    let desk = Desk::new();
    for width in [80, 100] {
        for name in ["", "run", "check", "sync", "jobs", "next", "runs", "logs", "nodes", "start"] {
            let args: Vec<&str> = [name, "--help"].into_iter().filter(|arg| !arg.is_empty()).collect();
            let mut command = desk.command(&args);
            let said = Said::of(command.env("COLUMNS", width.to_string()).output().unwrap()).ended_with(0);
            for (line, next) in said.out.lines().zip(said.out.lines().skip(1)) {
                let length = line.chars().count();
                assert!(length <= width, "{name}: {line}");
                // A paragraph is broken only where the next word has no room.
                let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
                let word = next.split(' ').next().unwrap().chars().count();
                let ragged = is_text(line) && is_text(next) && length + 1 + word <= width;
                assert!(!ragged, "{name} at {width}: {line}\n{next}");
            }
            // Lists and examples are never broken.
            let list = said.out.lines().skip_while(|line| *line != "Examples:").skip(1);
            let broken =
                list.take_while(|line| line.starts_with("  ")).any(|line| !line.contains("fleetcron"));
            assert!(!broken, "{name} at {width}: {}", said.out);
        }
    }
}
