//! Commands that look.

use std::os::unix::fs::symlink;

use fleetcron::output;
use fleetcron::record::{Outcome, Usage};
use fleetcron::run::kept_output;
use fleetcron::store::{keys, values};
use serde_json::{Value, json};

use super::*;

const BACKUP: &str = "
[jobs.backup]
description = 'Dump the shop'
schedule = '0 2 * * *'
timezone = 'Europe/Berlin'
command = 'true'
";

#[test]
fn a_command_that_looks_never_makes_a_store() {
    let desk = Desk::new();
    let looks: [&[&str]; 9] = [
        &["jobs"],
        &["audit"],
        &["next"],
        &["runs"],
        &["runs", "a"],
        &["logs", "a"],
        &["nodes"],
        &["start", "a"],
        &["next", "--explain"],
    ];
    for args in looks {
        desk.run(args).refused_with(3, "there is no store at sqlite:");
    }
    assert!(is_empty(&desk.path("store")));
    desk.write("jobs.toml", BACKUP);
    desk.run(&["check", "jobs.toml"]).ended_with(0);
    let said = desk.run(&["sync", "jobs.toml", "--dry-run"]).ended_with(0);
    assert!(said.out.starts_with("+ backup"), "{said:?}");
    assert!(is_empty(&desk.path("store")));
}

#[test]
fn a_store_that_cannot_be_used_is_one_line_and_exit_code_3() {
    let desk = Desk::new();
    desk.write(
        "store/fleetcron.db",
        "this is no database, but a text that is long enough to be looked at twice",
    );
    desk.run(&["jobs"]).refused_with(3, "fleetcron.db");
}

#[test]
fn a_store_that_is_not_reached_is_one_line_and_exit_code_3() {
    let desk = Desk::new();
    // A port that was free a moment ago, and one where nobody says a word.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    desk.write("jobs.toml", BACKUP);
    for store in [format!("etcd://{closed}"), format!("etcd://{}", silent.local_addr().unwrap())] {
        desk.run(&["jobs", "--store", &store]).refused_with(3, &store[7..]);
    }
    desk.run(&["sync", "jobs.toml", "--store", &format!("etcd://{closed}")]).ended_with(3);
}

#[test]
fn jobs_tells_what_is_defined_and_how_it_went() {
    let desk = Desk::with_jobs(&format!(
        "{BACKUP}[jobs.off]\nschedule = ['@daily', '30 6 * * *']\ntimezone = 'UTC'\ncommand = 'x'\nenabled = false\n"
    ));
    desk.put_record(&record(fire("backup", "20261130T010000Z"), Outcome::Failed, Some(3), None));
    desk.put([(
        keys::lock(&fire("backup", "m-01ARZ3NDEKTSV4RRFFQ69G5FAV")),
        lock(at("2026-11-30T09:00:00Z")),
    )]);
    desk.put([(keys::paused(&"off".parse().unwrap()), b"{}".to_vec())]);
    let rows = desk.json(&["jobs"]);
    let next = rows[0]["next"].clone();
    assert!(next.as_str().unwrap().ends_with(":00:00Z"), "{next}");
    assert_eq!(
        rows,
        [
            json!({
                "job": "backup", "schedule": "0 2 * * *", "timezone": "Europe/Berlin", "next": next,
                "next_starts_at": next,
                "last_outcome": "failed", "last_fire": "20261130T010000Z", "paused": false, "paused_by": null,
                "paused_reason": null, "paused_until": null, "running": true,
                "enabled": true, "running_on": ["db-1"], "attempt": 2, "waiting": false,
                "failures_in_a_row": 1, "skips_in_a_row": 0, "stuck": false, "last_reason": null,
                "after": [], "mutex": null, "priority": 5, "waits_for": [],
                "source": "default",
                "description": "Dump the shop", "owner": null,
            }),
            json!({
                "job": "off", "schedule": ["@daily", "30 6 * * *"], "timezone": "UTC", "next": null,
                "next_starts_at": null,
                "last_outcome": null, "last_fire": null, "paused": true, "paused_by": null,
                "paused_reason": null, "paused_until": null, "running": false,
                "enabled": false, "running_on": [], "attempt": null, "waiting": false,
                "failures_in_a_row": 0, "skips_in_a_row": 0, "stuck": false, "last_reason": null,
                "after": [], "mutex": null, "priority": 5, "waits_for": [],
                "source": "default",
                "description": null, "owner": null,
            }),
        ]
    );
    let table = desk.run(&["jobs", "backup"]).ended_with(0).out;
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(
        table.contains("running on db-1 (attempt 2)") && table.contains("failed 2026-11-30T01:01:01Z"),
        "{table}"
    );
    let said = desk.run(&["jobs", "off", "bakup"]).ended_with(1);
    assert!(
        said.err.contains("no job is called bakup; did you mean backup?") && said.out.contains("off"),
        "{said:?}"
    );
}

#[test]
fn a_definition_that_cannot_be_read_is_said_and_the_others_are_listed() {
    let desk = Desk::with_jobs(BACKUP);
    desk.put([
        ("jobs/later".to_owned(), br#"{"v":9}"#.to_vec()),
        ("jobs/odd".to_owned(), b"\x1b[31m".to_vec()),
    ]);
    let said = desk.run(&["jobs", "--output", "json"]).ended_with(1);
    assert_eq!(said.out.lines().count(), 1);
    assert!(said.err.contains("jobs/later cannot be read") && said.err.contains("jobs/odd"), "{said:?}");
    // What will run next is not known then.
    desk.run(&["next"]).ended_with(1);
}

#[test]
fn runs_are_listed_newest_first_with_exit_code_and_signal_apart() {
    let desk = Desk::with_jobs(BACKUP);
    let records = [
        record(fire("backup", "20261127T010000Z"), Outcome::Succeeded, Some(0), None),
        record(fire("backup", "20261128T010000Z"), Outcome::Failed, None, Some(9)),
        record(fire("backup", "20261129T010000Z"), Outcome::Failed, Some(137), None),
        unrun(fire("backup", "20261130T010000Z"), Outcome::Skipped, "overlap"),
        record(fire("gone", "20261129T120000Z"), Outcome::TimedOut, None, Some(15)),
    ];
    records.iter().for_each(|record| desk.put_record(record));
    let manual = fire("backup", "m-01ARZ3NDEKTSV4RRFFQ69G5FAV");
    desk.put([(keys::lock(&manual), lock(at("2016-07-30T23:54:10Z")))]);

    let rows = desk.json(&["runs"]);
    let told: Vec<_> = rows.iter().map(|row| (&row["fire"], &row["outcome"])).collect();
    let told = serde_json::to_value(told).unwrap();
    assert_eq!(
        told,
        json!([
            ["20261130T010000Z", "skipped"],
            ["20261129T120000Z", "timed-out"],
            ["20261129T010000Z", "failed"],
            ["20261128T010000Z", "failed"],
            ["20261127T010000Z", "succeeded"],
            ["m-01ARZ3NDEKTSV4RRFFQ69G5FAV", "running"],
        ])
    );
    assert_eq!(
        rows[3],
        json!({
            "job": "backup", "lane": "-", "fire": "20261128T010000Z", "scheduled_at": "2026-11-28T01:00:00Z",
            "outcome": "failed", "reason": null, "node": "db-1", "attempt": 1,
            "started_at": "2026-11-28T01:00:01Z", "ended_at": "2026-11-28T01:01:01Z", "exit_code": null,
            "signal": "KILL", "fencing_token": 7, "late": false, "last": null, "count": 1,
            "next_attempt_at": null, "set_off": [], "past": [], "claimed_at": "2026-11-28T01:00:00Z",
            "output_bytes": 0, "output_left_out": 0, "cpu_seconds": null, "peak_memory_bytes": null,
        })
    );
    let (skipped, running) = (&rows[0], &rows[5]);
    assert_eq!(
        [&skipped["reason"], &skipped["node"], &skipped["attempt"]],
        [&json!("overlap"), &Value::Null, &Value::Null]
    );
    assert_eq!(
        [&running["node"], &running["attempt"], &running["ended_at"]],
        [&json!("db-1"), &json!(2), &Value::Null]
    );

    let fires = |args: &[&str]| -> Vec<String> {
        let rows = desk.json(&[&["runs"], args].concat());
        rows.iter().map(|row| row["fire"].as_str().unwrap()[..8].to_owned()).collect()
    };
    assert_eq!(fires(&["--limit", "2"]), ["20261130", "20261129"]);
    assert_eq!(fires(&["gone"]), ["20261129"]);
    assert_eq!(fires(&["--since", "2026-11-28", "--until", "2026-11-29T01:00:00Z"]), ["20261128"]);
    assert_eq!(fires(&["--outcome", "skipped", "--outcome", "succeeded"]), ["20261130", "20261127"]);
    assert_eq!(fires(&["--outcome", "running"]), ["m-01ARZ3"]);
    assert_eq!(fires(&["--node", "db-2"]), [] as [&str; 0]);
    assert_eq!(fires(&["backup", "--node", "db-1", "-n", "1"]), ["20261129"]);
    desk.run(&["runs", "bakup"]).refused_with(1, "did you mean backup?");
    let table = desk.run(&["runs"]).ended_with(0).out;
    assert!(
        table.lines().nth(4).unwrap().contains("KILL") && table.lines().nth(3).unwrap().contains("137"),
        "{table}"
    );
}

#[test]
fn what_a_run_used_and_wrote_is_told() {
    let desk = Desk::with_jobs(BACKUP);
    let mut worked = record(fire("backup", "20261128T010000Z"), Outcome::Succeeded, Some(0), None);
    let run = worked.run.as_mut().unwrap();
    (run.output_bytes, run.output_left_out) = (1_500_000, 500_000);
    run.usage = Some(Usage { cpu: 1234, peak_memory: 100 << 20 });
    desk.put_record(&worked);
    let row = &desk.json(&["runs"])[0];
    assert_eq!(
        [&row["cpu_seconds"], &row["peak_memory_bytes"], &row["output_bytes"], &row["output_left_out"],],
        [&json!(1.234), &json!(100 << 20), &json!(1_500_000), &json!(500_000)]
    );
    let table = desk.run(&["runs"]).ended_with(0).out;
    assert!(table.lines().nth(1).unwrap().contains("1 min 0 s  1.234 s  100 MiB  1.4 MiB"), "{table}");
}

#[test]
fn the_history_of_a_renamed_job_is_shown_under_both_names() {
    let desk = Desk::with_jobs(&format!("{BACKUP}was = 'dump'\n"));
    desk.put_record(&record(fire("dump", "20261127T010000Z"), Outcome::Succeeded, Some(0), None));
    desk.put_record(&record(fire("backup", "20261128T010000Z"), Outcome::Succeeded, Some(0), None));
    for name in ["dump", "backup"] {
        assert_eq!(desk.json(&["runs", name]).len(), 2, "{name}");
    }
}

#[test]
fn a_late_result_is_shown_beside_the_record_it_came_after() {
    let desk = Desk::with_jobs(BACKUP);
    let of = fire("backup", "20261128T010000Z");
    desk.put_record(&unrun(of.clone(), Outcome::Lost, "node lost"));
    let late = record(of.clone(), Outcome::Succeeded, Some(0), None);
    desk.put([(keys::late_record(&of, node_start(), 1), values::encode_record(&late))]);
    let rows = desk.json(&["runs", "backup"]);
    let told: Vec<_> = rows.iter().map(|row| (row["outcome"].clone(), row["late"].clone())).collect();
    assert_eq!(told, [(json!("lost"), json!(false)), (json!("succeeded"), json!(true))]);
}

#[test]
fn six_thousand_jobs_are_all_listed() {
    let desk = Desk::with_jobs(BACKUP);
    let value = desk.in_store(async |store| store.get("jobs/backup").await.unwrap().unwrap().value);
    // A kilobyte each, so that no single reply could hold them all.
    let text = String::from_utf8(value).unwrap().replace("Dump the shop", &"x".repeat(1000));
    desk.put((0..6000).map(|n| (format!("jobs/j{n:04}"), text.clone().into_bytes())));
    assert_eq!(desk.json(&["jobs"]).len(), 6001);
    assert_eq!(desk.json(&["next"]).len(), 6001);
    assert_eq!(desk.run(&["jobs"]).ended_with(0).out.lines().count(), 6002);
}

#[test]
fn nodes_tells_who_is_there_and_whose_files_differ() {
    let desk = Desk::with_jobs(BACKUP);
    let here =
        presence(&[("role", "db")], &[("default", "other"), ("shop", "x")], at("2026-11-30T09:00:00Z"));
    desk.put([(keys::node(&node()), values::encode(&here))]);
    let tzdata = fleetcron::schedule::tzdata_version();
    assert_eq!(
        desk.json(&["nodes"]),
        [json!({
            "node": "db-1", "node_start": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "version": env!("CARGO_PKG_VERSION"),
            "tzdata": tzdata, "labels": {"role": "db"}, "slots": 64, "running": 0, "registered_at": "2026-11-30T09:00:00Z",
            "drift": ["default", "shop"], "drained": false, "drained_by": null, "drained_reason": null,
            "clock": null, "last_contact": null, "last_decision": null, "files": {"default": "other", "shop": "x"},
        })]
    );
    let said = desk.run(&["nodes"]).ended_with(0);
    assert!(said.out.contains("default, shop") && said.err.is_empty(), "{said:?}");

    let older = String::from_utf8(values::encode(&here)).unwrap().replace(tzdata, "2019a");
    desk.put([("nodes/old".to_owned(), older.into_bytes())]);
    let said = desk.run(&["nodes"]).ended_with(0);
    assert!(said.err.contains("warning: not all have the same time zone data (2019a, "), "{said:?}");
}

#[test]
fn nodes_tells_what_each_runs_and_what_is_wrong_with_its_clock() {
    let desk = Desk::with_jobs(BACKUP);
    let clock = Some(values::ClockWord { says: "3612 s ahead".to_owned(), asked: 1 });
    let mut here = presence(&[], &[], at("2026-11-30T09:00:00Z"));
    here.clock = clock;
    let running = keys::lock(&fire("backup", "m-01ARZ3NDEKTSV4RRFFQ69G5FAV"));
    desk.put([(keys::node(&node()), values::encode(&here)), (running, lock(at("2026-11-30T09:00:00Z")))]);
    let row = &desk.json(&["nodes"])[0];
    assert_eq!((&row["running"], &row["clock"]), (&json!(1), &json!("3612 s ahead")));
    let table = desk.run(&["nodes"]).ended_with(0).out;
    assert!(table.contains("CLOCK") && table.contains("3612 s ahead"), "{table}");
}

#[test]
fn a_job_whose_fires_are_skipped_again_and_again_is_stuck_until_one_runs() {
    let desk = Desk::with_jobs(BACKUP);
    let mut status = None;
    let mut put = |record: Record| {
        status = Some(Status::after(status.as_ref(), &record));
        desk.put([(
            keys::status(&record.fire.job, &record.fire.lane),
            values::encode(status.as_ref().unwrap()),
        )]);
        desk.json(&["jobs"])[0].clone()
    };
    let skipped = |day: u32| {
        let of = fire("backup", &format!("202611{day}T010000Z"));
        unrun(of, Outcome::Skipped, "overlap: 20261110T010000Z is still running")
    };
    assert_eq!([11, 12].map(|day| put(skipped(day))["stuck"].clone()), [json!(false), json!(false)]);
    // What was missed says nothing of the run that does not end.
    put(unrun(fire("backup", "20261113T010000Z"), Outcome::Missed, "paused"));
    let row = put(skipped(14));
    assert_eq!((&row["stuck"], &row["skips_in_a_row"]), (&json!(true), &json!(3)));
    assert_eq!(row["last_reason"], "overlap: 20261110T010000Z is still running");
    let table = desk.run(&["jobs"]).ended_with(0).out;
    let last = "skipped 2026-11-14T01:01:02Z (overlap: 20261110T010000Z is still running)";
    assert!(table.contains("stuck (3 skips in a row)") && table.contains(last), "{table}");
    let row = put(record(fire("backup", "20261115T010000Z"), Outcome::Failed, Some(1), None));
    assert_eq!((&row["stuck"], &row["skips_in_a_row"]), (&json!(false), &json!(0)));
}

#[test]
fn a_span_is_one_line_with_its_first_and_last_fire_and_how_many_there_are() {
    let desk = Desk::with_jobs(BACKUP);
    let span = Some(fleetcron::record::Span { last: at("2026-11-28T03:00:00Z"), count: 7201 });
    let first = fire("backup", "20261128T010000Z");
    desk.put_record(&Record { span, ..unrun(first, Outcome::Missed, "no node was up") });
    let row = &desk.json(&["runs"])[0];
    assert_eq!((&row["last"], &row["count"]), (&json!("2026-11-28T03:00:00Z"), &json!(7201)));
    let table = desk.run(&["runs"]).ended_with(0).out;
    assert!(table.contains("20261128T010000Z..20261128T030000Z (7201)  "), "{table}");
    assert_eq!(desk.json(&["runs", "--since", "2026-11-28T02:00:00Z"]).len(), 1, "it reaches into that");
    assert_eq!(desk.json(&["runs", "--since", "2026-11-28T03:00:01Z"]).len(), 0);
}

#[test]
fn logs_shows_the_output_that_is_kept_here_and_else_the_tail_of_the_record() {
    let desk = Desk::with_jobs(BACKUP);
    let of = fire("backup", "20261128T010000Z");
    let mut failed = record(of.clone(), Outcome::Failed, Some(1), None);
    failed.run.as_mut().unwrap().output_bytes = 9000;
    failed.tail = Some("the end\n".to_owned());
    desk.put_record(&failed);

    let said = desk.run(&["logs", "backup"]).ended_with(0);
    assert_eq!(said.out, "the end\n");
    assert!(said.err.contains("all that is kept of it is on node db-1"), "{said:?}");

    let kept = kept_output(&desk.path("state/output"), &of, 1);
    std::fs::create_dir_all(kept.parent().unwrap()).unwrap();
    let mut writer = output::Writer::new(kept.clone(), 100);
    writer.write(b"all of \xff it\n");
    writer.note().unwrap();
    let raw = desk.command(&["logs", "-f", "backup/20261128T010000Z"]).output().unwrap();
    assert_eq!((raw.stdout.as_slice(), raw.stderr.as_slice()), (&b"all of \xff it\n"[..], &b""[..]));
    let row = &desk.json(&["logs", "backup"])[0];
    assert_eq!((&row["output"], &row["complete"]), (&json!("all of \u{fffd} it\n"), &json!(true)));

    desk.run(&["logs", "backup", "--attempt", "2"]).refused_with(1, "its last one is 1");
    desk.run(&["logs", "backup/20261129T010000Z"]).refused_with(1, "nothing is known of");
    desk.run(&["logs", "backup/yesterday"]).refused_with(2, "a fire is named like");
    desk.put_record(&unrun(fire("backup", "20261129T010000Z"), Outcome::Missed, "nobody was up"));
    desk.run(&["logs", "backup/20261129T010000Z"]).refused_with(1, "did not run: missed (nobody was up)");
    // The newest that ran.
    assert_eq!(desk.json(&["logs", "backup"])[0]["fire"], "20261128T010000Z");
}

#[test]
fn check_names_every_file_that_does_not_count_with_the_reason() {
    let desk = Desk::new();
    let job =
        |name: &str| format!("[jobs.{name}]\nschedule = '0 2 * * *'\ntimezone = 'UTC'\ncommand = 'true'");
    for (name, text) in [
        ("d/a.toml", job("a")),
        ("d/b.toml~", job("b")),
        ("d/.c.toml.swp", job("c")),
        ("d/d.toml.dpkg-old", job("d")),
        ("d/e.toml.rpmsave", job("e")),
        ("d/f.TOML", job("f")),
        ("d/g.toml", job("g")),
        ("d/h.toml", String::new()),
        ("d/j.toml/k.toml", job("k")),
    ] {
        desk.write(name, text);
    }
    symlink("nowhere", desk.path("d/i.toml")).unwrap();
    let said = desk.run(&["check", "d", "--output", "json"]).ended_with(0);
    let names: Vec<Value> =
        said.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["job"].clone()).collect();
    assert_eq!(names, ["a", "g"]);
    for name in [
        "b.toml~",
        ".c.toml.swp",
        "d.toml.dpkg-old",
        "e.toml.rpmsave",
        "f.TOML",
        "h.toml",
        "i.toml",
        "j.toml",
    ] {
        let line = format!("d/{name} is ignored: ");
        assert_eq!(said.err.matches(&line).count(), 1, "{name}: {said:#?}");
    }
}

#[test]
fn check_reports_every_mistake_and_shows_when_each_job_runs() {
    let desk = Desk::new();
    desk.write("jobs.toml", "[jobs.a]\nschedule = '61 2 * * *'\ncomand = 'true'\n");
    let said = desk.run(&["check", "jobs.toml", "missing.toml"]).ended_with(2);
    for part in ["jobs.toml:2:13", "jobs.toml:3:1", "missing.toml", "did you mean \"command\"?"] {
        assert!(said.err.contains(part), "{part}: {said:#?}");
    }
    assert_eq!(said.out, "");
    desk.write("jobs.toml", format!("{BACKUP}[jobs.b]\nschedule = '* 2 * * *'\ncommand = 'true'\n"));
    let said = desk.run(&["check", "jobs.toml"]).ended_with(0);
    assert!(said.err.contains("runs by UTC") && said.err.contains("60 times"), "{said:#?}");
    let line = said.out.lines().find(|line| line.starts_with("backup ")).unwrap();
    assert!(line.contains("0 2 * * *  Europe/Berlin") && line.contains(" 02:00:00 +0"), "{line}");
    std::fs::create_dir(desk.path("empty")).unwrap();
    desk.run(&["check", "empty"]).refused_with(2, "no job file in empty");
}
