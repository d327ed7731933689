//! `next`: what will run.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use super::*;

/// Answers to lines on stdin.
fn batch(desk: &Desk, lines: &[u8]) -> Vec<Value> {
    let mut command = desk.command(&["next", "--batch"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(move || stdin.write_all(lines).unwrap());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    })
}

fn oracle(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_batch_answers_as_the_oracle_does() {
    let (vectors, invalid) = (oracle("schedule-vectors.jsonl"), oracle("invalid.jsonl"));
    let valid = vectors.iter().map(|vector| {
        let n = vector["next"].as_array().unwrap().len().max(1);
        json!({"expr": vector["expr"], "tz": vector["tz"], "after": vector["after"], "n": n})
    });
    let questions = valid.chain(invalid.iter().map(|one| json!({"expr": one["expr"]})));
    let lines: String = questions.map(|question| format!("{question}\n")).collect();
    let answers = batch(&Desk::new(), lines.as_bytes());
    assert_eq!(answers.len(), vectors.len() + invalid.len());
    let (right, refused) = answers.split_at(vectors.len());
    for (vector, answer) in vectors.iter().zip(right) {
        assert_eq!(*answer, json!({"next": vector["next"]}), "{vector}");
    }
    for (one, answer) in invalid.iter().zip(refused) {
        assert!(answer["error"].is_string(), "{one}: {answer}");
    }
}

#[test]
fn a_bad_line_is_answered_and_the_next_one_too() {
    let desk = Desk::new();
    let mut lines = b"\n{\nnull\n[]\n{\"expr\":1}\n{}\n\xff\xfe\n".to_vec();
    lines.extend_from_slice(br#"{"expr":"@daily","tz":"Mars/Base"}"#);
    lines.extend_from_slice(b"\n");
    lines.extend_from_slice(br#"{"expr":"@daily","after":"noon"}"#);
    lines.extend_from_slice(b"\n");
    lines.extend_from_slice(br#"{"expr":"@daily","n":99999999}"#);
    lines.extend_from_slice(b"\n");
    lines.extend_from_slice(&vec![b'x'; 3 << 20]);
    lines.extend_from_slice(b"\n");
    // The last line may lack its end.
    lines.extend_from_slice(br#"{"expr":"0 0 30 2 *"}"#);
    let answers = batch(&desk, &lines);
    assert_eq!(answers.len(), 12);
    assert!(answers[..11].iter().all(|answer| answer["error"].is_string()), "{answers:?}");
    assert_eq!(answers[11], json!({"next": []}));
}

#[test]
fn a_question_is_answered_before_the_next_is_asked() {
    use std::io::{BufRead, BufReader};
    let desk = Desk::new();
    let mut child =
        desk.command(&["next", "--batch"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut ask, mut hear) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    for _ in 0..3 {
        ask.write_all(b"{\"expr\":\"@daily\",\"after\":\"2026-01-01T00:00:00Z\"}\n").unwrap();
        let mut line = String::new();
        hear.read_line(&mut line).unwrap();
        assert_eq!(line, "{\"next\":[\"2026-01-02T00:00:00+00:00\"]}\n");
    }
    drop(ask);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_schedule_is_looked_at_without_a_store() {
    let desk = Desk::new();
    let args = [
        "next",
        "--schedule",
        "30 2 * * *",
        "--timezone",
        "Europe/Berlin",
        "--after",
        "2026-03-28",
        "-n",
        "2",
    ];
    assert_eq!(
        desk.json(&args),
        [
            json!({"job": null, "at": "2026-03-28T02:30:00+01:00", "utc": "2026-03-28T01:30:00Z",
                "starts_at": "2026-03-28T01:30:00Z"}),
            json!({"job": null, "at": "2026-03-29T03:00:00+02:00", "utc": "2026-03-29T01:00:00Z",
                "starts_at": "2026-03-29T01:00:00Z"}),
        ]
    );
    let table = desk.run(&args).ended_with(0).out;
    assert!(
        table.contains("Sun 2026-03-29 03:00:00 +02:00")
            && table.contains("moved from 02:30, which the clock jumps over"),
        "{table}"
    );
    let never = desk.run(&["next", "--schedule", "0 0 30 2 *", "--output", "json"]).ended_with(0);
    assert_eq!(never.out, "");
    assert!(never.err.contains("never fires"), "{never:?}");
    let said = desk.run(&["next", "--schedule", "0 2 * * mon-fri", "--explain"]).ended_with(0);
    assert!(said.out.starts_with("at 02:00") && said.out.ends_with(", UTC time\n"), "{said:?}");
    let said = desk.run(&["next", "--schedule", "75 2 * * *"]).ended_with(2);
    assert!(said.err.contains("bad schedule: ") && said.err.contains("^^"), "{said:?}");
    desk.run(&["next", "--schedule", "@daily", "--timezone", "Europe/Berln"]).refused_with(2, "did you mean");
    desk.run(&["next", "--schedule", "@daily", "--until", "soon"])
        .refused_with(2, "--until: \"soon\" is not a time");
    assert!(is_empty(&desk.path("store")));
}

#[test]
fn what_runs_tonight_is_listed_in_order_of_time_over_all_jobs() {
    let desk = Desk::with_jobs(
        "[defaults]\ntimezone = 'UTC'\n[jobs.b]\nschedule = '0 */2 * * *'\ncommand = 'x'\n\
         [jobs.a]\nschedule = '0 3 * * *'\ntimezone = 'Asia/Tokyo'\ncommand = 'x'\n\
         [jobs.off]\nschedule = '* * * * *'\ncommand = 'x'\nenabled = false\n",
    );
    // Later than the sync, so that all of it counts.
    let from = "2100-01-01T17:00:00Z";
    let rows = desk.json(&["next", "--after", from, "--until", "06:00"]);
    let told: Vec<_> =
        rows.iter().map(|row| (row["job"].as_str().unwrap(), row["utc"].as_str().unwrap())).collect();
    assert_eq!(told[..2], [("a", "2100-01-01T18:00:00Z"), ("b", "2100-01-01T18:00:00Z")]);
    assert_eq!(told.len(), 8);
    assert_eq!(rows[0]["at"], "2100-01-02T03:00:00+09:00");
    assert!(told.is_sorted_by_key(|(_, at)| *at));
    assert_eq!(desk.json(&["next", "--after", from]).len(), 2);
    assert_eq!(desk.json(&["next", "b", "--after", from]).len(), 5);
    assert_eq!(desk.json(&["next", "-n", "3", "--after", from]).len(), 6);
    let said = desk.run(&["next", "off"]).ended_with(0);
    assert!(said.err.contains("off is disabled"), "{said:?}");
    let said = desk.run(&["next", "--explain"]).ended_with(0);
    assert!(said.out.starts_with("a: at 03:00") && said.out.contains(", Asia/Tokyo time\nb: "), "{said:?}");
}

#[test]
fn a_fire_keeps_its_instant_and_shows_when_it_starts() {
    // Of "backup" and half an hour the delay is 2 min 41.145 s.
    const JOBS: &str = "[defaults]\ntimezone = 'Europe/Berlin'\n\
         [jobs.backup]\nschedule = '0 3 * * *'\nsplay = '30m'\ncommand = 'x'\n\
         [jobs.at-once]\nschedule = '1 3 * * *'\ncommand = 'x'\n";
    let desk = Desk::with_jobs(JOBS);
    // Both are in order of when they start, which is what --until and --after go by.
    let rows = desk.json(&["next", "--after", "2100-01-01T00:00:00Z", "--until", "2100-01-01T02:02:41.145Z"]);
    assert_eq!(
        rows,
        [
            json!({"job": "at-once", "at": "2100-01-01T03:01:00+01:00", "utc": "2100-01-01T02:01:00Z",
                "starts_at": "2100-01-01T02:01:00Z"}),
            json!({"job": "backup", "at": "2100-01-01T03:00:00+01:00", "utc": "2100-01-01T02:00:00Z",
                "starts_at": "2100-01-01T02:02:41.145Z"}),
        ]
    );
    let until = ["next", "--after", "2100-01-01T02:01:00Z", "--until", "2100-01-01T02:02:41.144Z"];
    assert_eq!(desk.json(&until), [] as [Value; 0]);
    // Due and not started: it is still to come, and the wait is for the start.
    for args in [&["next", "backup", "-n", "1"][..], &["check", "jobs.toml"], &["jobs"]] {
        let said = desk.run_at("2100-01-01T02:01:41Z", args);
        let line = said.out.lines().find(|line| line.starts_with("backup ")).unwrap();
        assert!(line.contains("Fri 2100-01-01 03:00:00 +01:00"), "{args:?}: {line}");
        assert!(line.contains("starts 2 min 41 s later"), "{args:?}: {line}");
        let waits = line.contains("  1 min  ") || line.ends_with("  1 min");
        assert!(waits || args[0] == "jobs", "{args:?}: {line}");
    }
    for args in [["check", "jobs.toml"].as_slice(), &["jobs"]] {
        let said = desk.run_at("2100-01-01T02:01:41Z", &[args, &["--output", "json"]].concat());
        let rows: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let row = rows.iter().find(|row| row["job"] == "backup").unwrap();
        assert_eq!(row["next"], "2100-01-01T02:00:00Z", "{args:?}");
        assert_eq!(row["next_starts_at"], "2100-01-01T02:02:41.145Z", "{args:?}");
    }
    let said = desk.run(&["next", "--explain", "backup"]).ended_with(0);
    assert_eq!(said.out, "backup: at 03:00 every day, Europe/Berlin time; starts 2 min 41 s later (splay)\n");
}

/// The rows of a table of `next`: day and time with offset, and the note.
fn notes(table: &str) -> Vec<String> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
        let note = words.get(4).map_or(String::new(), |note| format!(" {note}"));
        // Without weekday, year, month and seconds.
        format!("{}{}{note}", &words[1][12..20], &words[1][23..])
    };
    table.lines().skip(1).map(row).collect()
}

#[track_caller]
fn check_notes(expr: &str, zone: &str, after: &str, n: &str, shown: &[&str]) {
    let said = Desk::new().run(&["next", "--schedule", expr, "--timezone", zone, "--after", after, "-n", n]);
    let table = said.ended_with(0).out;
    assert_eq!(notes(&table), shown, "{expr} {zone}\n{table}");
}

#[test]
fn next_tells_what_a_change_of_the_clock_does() {
    let (berlin, spring, autumn) = ("Europe/Berlin", "2027-03-28", "2027-10-31");
    check_notes(
        "30 2 * * *",
        berlin,
        spring,
        "2",
        &["28 03:00 +02:00 moved from 02:30, which the clock jumps over", "29 02:30 +02:00"],
    );
    check_notes(
        "*/20 2 * * *",
        berlin,
        spring,
        "1",
        &["28 03:00 +02:00 does not run: the clock jumps over 02:00 to 02:40", "29 02:00 +02:00"],
    );
    // Minutes of every hour go on as if nothing had happened.
    check_notes("0 * * * *", berlin, spring, "3", &["28 01:00 +01:00", "28 03:00 +02:00", "28 04:00 +02:00"]);
    check_notes(
        "30 2 * * *",
        berlin,
        autumn,
        "2",
        &[
            "31 02:30 +02:00 the clock shows this time twice; it runs only now",
            "31 02:30 +01:00 does not run again: the clock shows this time for the second time",
            "01 02:30 +01:00",
        ],
    );
    check_notes(
        "0 * * * *",
        berlin,
        "2027-10-31T01:00:00+02:00",
        "2",
        &[
            "31 02:00 +02:00 the clock shows this time twice; it runs both times",
            "31 02:00 +01:00 the clock shows this time for the second time; it runs again",
        ],
    );
    check_notes(
        "30 2 * * *",
        "America/New_York",
        "2027-03-14T05:00:00Z",
        "1",
        &["14 03:00 -04:00 moved from 02:30, which the clock jumps over"],
    );
    check_notes(
        "15 1 * * *",
        "America/New_York",
        "2026-11-01T04:00:00Z",
        "2",
        &[
            "01 01:15 -04:00 the clock shows this time twice; it runs only now",
            "01 01:15 -05:00 does not run again: the clock shows this time for the second time",
            "02 01:15 -05:00",
        ],
    );
    // Half an hour, so not every minute of the hour is touched.
    check_notes(
        "15,45 2 * * *",
        "Australia/Lord_Howe",
        "2026-10-03T12:00:00Z",
        "2",
        &["04 02:30 +11:00 moved from 02:15, which the clock jumps over", "04 02:45 +11:00"],
    );
    check_notes(
        "*/15 1 * * *",
        "Australia/Lord_Howe",
        "2027-04-03T14:05:00Z",
        "5",
        &[
            "04 01:15 +11:00",
            "04 01:30 +11:00 the clock shows this time twice; it runs both times",
            "04 01:45 +11:00 the clock shows this time twice; it runs both times",
            "04 01:30 +10:30 the clock shows this time for the second time; it runs again",
            "04 01:45 +10:30 the clock shows this time for the second time; it runs again",
        ],
    );
}

#[test]
fn next_tells_what_the_calendar_excludes() {
    let desk = Desk::with_jobs(
        "[defaults]\ntimezone = 'Europe/Berlin'\n\
         [jobs.holidays]\nschedule = '30 2 * * *'\ncommand = 'x'\n\
         skip_dates = ['2101-03-27', '2101-03-29..2101-04-02']\n\
         [jobs.season]\nschedule = '0 */12 * * *'\ncommand = 'x'\nonly_dates = ['2101-03-28..2101-03-29']\n\
         [jobs.window]\nschedule = '0 12 * * *'\ncommand = 'x'\n\
         start_at = '2101-03-29T00:00:00+02:00'\nend_at = '2101-03-30T12:00:00+02:00'\n",
    );
    #[track_caller]
    fn check(desk: &Desk, job: &str, shown: &[&str]) {
        // The clock is put forward on 27 March, so a fire that moved is among those excluded.
        let table = desk.run(&["next", job, "--after", "2101-03-26T12:00:00Z", "-n", "3"]).ended_with(0).out;
        assert_eq!(notes(&table), shown, "{job}\n{table}");
    }
    check(
        &desk,
        "holidays",
        &[
            "27 03:00 +02:00 excluded: skip_dates has 2101-03-27",
            "28 02:30 +02:00",
            "29 02:30 +02:00 excluded: skip_dates has 2101-03-29..2101-04-02",
            "03 02:30 +02:00",
            "04 02:30 +02:00",
        ],
    );
    check(
        &desk,
        "season",
        &[
            "27 00:00 +01:00 excluded: not in only_dates, whose next is 2101-03-28..2101-03-29",
            "28 00:00 +02:00",
            "28 12:00 +02:00",
            "29 00:00 +02:00",
        ],
    );
    check(
        &desk,
        "window",
        &[
            "27 12:00 +02:00 excluded: before start_at 2101-03-28T22:00:00Z",
            "29 12:00 +02:00",
            "30 12:00 +02:00 excluded: end_at 2101-03-30T10:00:00Z has come",
        ],
    );
}

#[test]
fn where_a_node_stands_changes_nothing_of_what_it_answers() {
    let jobs = "[jobs.backup]\nschedule = 'H 2 * * mon-fri'\ntimezone = 'Europe/Berlin'\nsplay = '10m'\n\
         command = 'x'\n[jobs.report]\nschedule = ['30 2 * * *', '@every 7h']\ncommand = 'x'\n\
         skip_dates = '2100-04-01'\n";
    let desk = Desk::with_jobs(jobs);
    let asked: [&[&str]; 10] = [
        &["next", "--until", "06:00"],
        &["next", "--after", "2100-03-27", "--until", "2100-04-02"],
        &["next", "backup", "-n", "20", "--output", "json"],
        &["next", "--explain"],
        &["next", "--schedule", "15 2 * * sun", "--timezone", "Australia/Lord_Howe", "--after", "2100-10-01"],
        &["check", "jobs.toml"],
        &["check", "jobs.toml", "--output", "json"],
        &["jobs"],
        &["jobs", "--output", "json"],
        &["runs", "--since", "2100-01-01"],
    ];
    // Where nothing is said, where all is said otherwise, and where it is nonsense.
    let places: [&[(&str, &str)]; 4] = [
        &[],
        &[("TZ", "Pacific/Kiritimati"), ("LC_ALL", "de_DE.UTF-8"), ("LANG", "de_DE.UTF-8")],
        &[
            ("TZ", "America/New_York"),
            ("LC_ALL", "tr_TR.UTF-8"),
            ("LC_TIME", "ja_JP.UTF-8"),
            ("LANGUAGE", "ja"),
        ],
        &[("TZ", ":/nowhere"), ("LC_ALL", "C"), ("LANG", "\u{fffd}")],
    ];
    for args in asked {
        let answers = places.map(|place| {
            let mut command = desk.command(args);
            let now = command.env("FLEETCRON_TEST_CLOCK", "2100-03-27T12:00:00Z*0");
            let said = Said::of(now.envs(place.iter().copied()).output().unwrap()).ended_with(0);
            (said.out, said.err)
        });
        assert!(!answers[0].0.is_empty(), "{args:?}");
        for (place, answer) in places.iter().zip(&answers) {
            assert_eq!(*answer, answers[0], "{args:?} {place:?}");
        }
    }
}
