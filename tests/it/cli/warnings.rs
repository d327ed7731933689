//! What `check` and `sync` say of schedules that are valid and probably not meant, or that never fire.

use super::*;

const NOW: &str = "2026-11-30T12:00:00Z";

fn job(name: &str, schedule: &str, more: &str) -> String {
    format!("[jobs.{name}]\nschedule = \"{schedule}\"\ncommand = \"true\"\nuser = \"www\"\n{more}\n")
}

/// Checks a file with this one job, in Berlin, and both commands' warnings about it.
#[track_caller]
fn check(schedule: &str, warnings: &[&str]) {
    let desk = Desk::new();
    desk.write("jobs.toml", job("backup", schedule, "timezone = \"Europe/Berlin\""));
    for args in [&["check", "jobs.toml"][..], &["sync", "jobs.toml", "--dry-run"]] {
        let said = desk.run_at(NOW, args).ended_with(0);
        let told: Vec<_> = said.err.lines().filter_map(|line| line.strip_prefix("warning: ")).collect();
        assert_eq!(told, warnings, "{schedule} {args:?}");
        assert_eq!(said.err.matches("--> jobs.toml:2:12").count(), warnings.len(), "{said:#?}");
    }
}

#[test]
fn where_people_go_wrong_they_are_told_what_it_means() {
    check(
        "0 4 13 * fri",
        &[
            "day of month and day of week are both set, and either is enough: it runs on the 13th, and also on \
           Friday whatever the date",
        ],
    );
    check(
        "0 4 */2 * mon-fri",
        &[
            "day of month and day of week are both set and one begins with `*`, so it runs only on days that match \
           both: those of the 1st, 3rd, 5th, 7th, 9th, 11th, 13th, 15th, 17th, 19th, 21st, 23rd, 25th, 27th, 29th \
           and 31st that fall on Monday to Friday",
        ],
    );
    check(
        "* 4 * * *",
        &[
            "it runs 60 times on each day that it is due, every minute from 04:00 to 04:59; to run once write \
           `0 4 * * *`",
        ],
    );
    check("0 4 29 2 *", &["it runs on 29 February only, so in leap years only"]);
    check(
        "30 2 * * *",
        &[
            "on 2027-03-28 the clock of Europe/Berlin jumps from 02:00 to 03:00, so there is no 02:30 that day: it \
           runs once at 03:00 instead",
        ],
    );
    check("0 4 * * *", &[]);
    check("* * * * *", &[]);
}

#[test]
fn a_missing_time_zone_is_said_once_and_names_what_holds_instead() {
    let desk = Desk::new();
    desk.write("jobs.toml", ["a", "b", "c"].map(|name| job(name, "0 4 * * *", "")).concat());
    desk.write("more.toml", job("d", "0 4 * * *", ""));
    for args in [&["check", "jobs.toml", "more.toml"][..], &["sync", "jobs.toml", "more.toml", "--dry-run"]] {
        let said = desk.run_at(NOW, args).ended_with(0);
        assert_eq!(said.err.matches("warning: ").count(), 1, "{said:#?}");
        assert!(said.err.contains("4 jobs have no timezone and run by UTC, the first is a"), "{said:#?}");
    }
}

#[test]
fn many_jobs_in_one_minute_are_named() {
    let desk = Desk::new();
    let names: Vec<String> = (0..12).map(|n| format!("job-{n:02}")).collect();
    let zone = "timezone = \"UTC\"";
    let together: String = names.iter().map(|name| job(name, "0 4 * * *", zone)).collect();
    // None of these is one of them: another minute, all the time, spread.
    let others = [job("later", "1 4 * * *", zone), job("often", "* * * * *", zone)].concat();
    let spread = job("spread", "0 4 * * *", "timezone = \"UTC\"\nsplay = \"10m\"");
    desk.write("jobs.toml", [together, others, spread].concat());
    for args in [&["check", "jobs.toml"][..], &["sync", "jobs.toml", "--dry-run"]] {
        let said = desk.run_at(NOW, args).ended_with(0);
        let warning =
            format!("warning: 12 jobs are due in the minute from 2026-12-01T04:00Z: {}\n", names.join(", "));
        assert!(said.err.contains(&warning), "{said:#?}");
        assert!(said.err.contains("hint: H in place of a number"), "{said:#?}");
        assert_eq!(said.err.matches("warning: ").count(), 1, "{said:#?}");
    }
    // However many: there is nothing more that they could do.
    let spread = (0..500).map(|n| job(&format!("job-{n}"), "H 4 * * *", zone));
    desk.write("jobs.toml", spread.collect::<String>());
    let said = desk.run_at(NOW, &["check", "jobs.toml"]).ended_with(0);
    assert!(!said.err.contains("warning: "), "{said:#?}");
}

#[test]
fn a_schedule_that_never_fires_is_a_mistake_and_an_empty_list() {
    let desk = Desk::new();
    for (schedule, place, field) in [
        ("0 0 30 2 *", "2:17", "day of month: `30` never comes in month `2`"),
        ("0 0 31 4,6,9,11 *", "2:17", "day of month: `31` never comes in month `4,6,9,11`"),
        // The error is about the text as a whole where the place in it is not as it was written.
        ("0  0 30 2 *", "2:12", "day of month: `30` never comes in month `2`"),
    ] {
        desk.write("jobs.toml", job("backup", schedule, "timezone = \"UTC\""));
        for args in [&["check", "jobs.toml"][..], &["sync", "jobs.toml"], &["sync", "jobs.toml", "--dry-run"]]
        {
            let said = desk.run_at(NOW, args).ended_with(2);
            assert_eq!(said.out, "", "{said:#?}");
            for part in [" never fires: ", field, &format!("--> jobs.toml:{place}\n"), "nothing is applied"] {
                assert!(said.err.contains(part), "{part}: {said:#?}");
            }
        }
        assert_eq!(desk.json(&["next", "--schedule", schedule]), [] as [serde_json::Value; 0]);
        let said = desk.run(&["next", "--schedule", schedule]).ended_with(0);
        assert_eq!(said.out.lines().count(), 1, "{said:#?}");
        assert!(said.err.contains("never fires: no date of any year matches"), "{said:#?}");
    }
    assert!(is_empty(&desk.path("store")));
}

#[test]
fn dates_that_leave_no_instant_are_named() {
    let desk = Desk::new();
    desk.write(
        "jobs.toml",
        job("backup", "0 4 * * mon", "timezone = \"UTC\"\nonly_dates = [\"2026-12-01\"]"),
    );
    let said = desk.run_at(NOW, &["check", "jobs.toml"]).ended_with(2);
    assert!(said.err.contains("schedule never fires") && said.err.contains("only_dates"), "{said:#?}");
}

#[test]
fn jobs_that_run_as_root_where_the_daemon_is_root_are_said_once() {
    let desk = Desk::new();
    let names = ["a", "b", "c", "d"];
    let jobs = names.map(|name| job(name, "0 4 * * *", "timezone = \"UTC\"")).concat();
    desk.write("jobs.toml", jobs.replace("user = \"www\"\n", ""));
    let is_root = nix::unistd::geteuid().is_root();
    for args in [&["check", "jobs.toml"][..], &["sync", "jobs.toml", "--dry-run"]] {
        let said = desk.run_at(NOW, args).ended_with(0);
        let warning = "fleetcron: warning: 4 jobs of source default have no user (a, b, c and 1 more) and run as root \
                       on every node whose daemon is root, as this command is; set user = \"NAME\" in [defaults]";
        assert_eq!(said.err.matches("warning: ").count(), usize::from(is_root), "{said:#?}");
        assert_eq!(said.err.contains(warning), is_root, "{said:#?}");
    }
    desk.write("jobs.toml", format!("[defaults]\nuser = 'root'\n{}", jobs.replace("user = \"www\"\n", "")));
    let said = desk.run_at(NOW, &["check", "jobs.toml"]).ended_with(0);
    assert!(!said.err.contains("warning: "), "{said:#?}");
}
