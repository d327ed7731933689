//! Job files from the disk: which count, which are refused and where, and that nothing makes the reader fall.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fleetcron::files::{self, FilesFound, Signature};
use fleetcron::job::{
    CatchUp, Command, IoNice, Job, Keep, Limit, Overlap, Priority, Promise, Retry, RetryOn, RunOn, Terms,
    Thousandths,
};
use fleetcron::jobfile::{self, JobFile, Mistakes, SourceFile};
use fleetcron::node::Selector;
use fleetcron::schedule::{Calendar, CalendarText, Schedule, Zone};
use proptest::prelude::*;

fn parse(files: &[(&str, &str)]) -> Result<JobFile, Mistakes> {
    let files: Vec<_> = files.iter().map(|(path, text)| SourceFile { path, text }).collect();
    jobfile::parse(&files)
}

/// A file in `broken` says at its end what is wrong with it: `#! LINE:COLUMN words => words of the hint`, a
/// column `*` where the place in the line is of no matter. There is exactly one such line for each mistake.
#[test]
fn each_broken_file_is_refused_with_every_place_and_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/broken");
    let found = files::read(&[folder]);
    assert_eq!((&found.ignored, &found.problems), (&vec![], &vec![]));
    assert!(found.files.len() >= 45, "{}", found.files.len());
    let mut wrong = Vec::new();
    for file in &found.files {
        let name = file.path.rsplit('/').next().unwrap();
        let expected: Vec<_> = file.text.lines().filter_map(|line| line.strip_prefix("#! ")).collect();
        let shown = match parse(&[(name, &file.text)]) {
            Ok(_) => Vec::new(),
            Err(mistakes) => mistakes.shown,
        };
        let as_expected = |(expected, shown): (&&str, &jobfile::Mistake)| {
            let (place, words) = expected.split_once(' ').unwrap();
            let (words, hint) = words.split_once(" => ").unwrap_or((words, ""));
            let said = shown.to_string();
            let at = format!("--> {name}:{}", place.trim_end_matches('*'));
            said.contains(&at) && shown.0.message.contains(words) && said.contains(hint)
        };
        if shown.len() != expected.len() || !expected.iter().zip(&shown).all(as_expected) {
            let shown: String = shown.iter().map(|mistake| format!("\n{mistake}")).collect();
            wrong.push(format!("{name}, expected {expected:#?}, got{shown}\n"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_mistake_looks_like_a_compilers() {
    let mistakes = parse(&[("jobs.toml", "[jobs.backup]\nschedule = \"0 2 * * *\"\ncomand = \"true\"\n")]);
    let expected = "\
error: unknown key \"comand\" in [jobs.backup]
  --> jobs.toml:3:1
   |
 3 | comand = \"true\"
   | ^^^^^^
   = hint: did you mean \"command\"?

1 mistake; nothing is applied";
    assert_eq!(mistakes.unwrap_err().to_string(), expected);
}

const EVERY_FIELD: &str = r#"
[source]
name = "shop"

[defaults]
timezone = "Europe/Berlin"
env = { LANG = "C", PGHOST = "db" }
keep = { days = 7 }
timeout = "1h"
nice = 5
limits = { nofile = 99 }
nodes = "role=db"
retry = { attempts = 2, delay = "1m", on = [75] }

[jobs.nightly-db-backup]
description = "Dump the shop database"
owner = "ops@example.org"
schedule = ["0 2 * * *", "@every 90s"]
timezone = "America/New_York"
start_at = 2026-01-01T00:00:00+01:00
end_at = "2027-01-01T00:00:00Z"
skip_dates = [2026-12-24, "2026-12-31..2027-01-01"]
only_dates = "2026-01-01..2026-12-31"
command = "pg_dump -Fc shop > /var/backups/shop-$(date +%F).dump"
enabled = false
env = { PGHOST = "", PGPORT = "5433" }
workdir = "/var/backups"
shell = "/bin/bash"
timeout = "2h 30m"
splay = "10m"
kill_after = "500ms"
hold = "2m"
overlap = "allow"
promise = "at-most-once"
nodes = "role in (db, standby), zone!=eu-west"
run_on = "every-node"
catch_up = "none"
start_within = "3h"
retry = { attempts = 5, factor = 1.5, max_delay = "1h", jitter = 0, on = [1, 75, "timeout"] }
success_exit = [0, 24]
keep = { records = 5, output = "1 MB" }
user = "postgres"
group = "backup"
umask = "027"
nice = 10
ionice = "best-effort:7"
limits = { cpu = "10m", memory = "1GiB", nofile = 256, core = "unlimited" }
stdin = "yes\n"
no_new_privs = true
kill_leftovers = true
env_file = "/etc/default/backup"
env_from = "credentials:backup.env"
redact = "PGPASSWORD"
timestamps = true
was = "backup"

[jobs.plain]
schedule = "@daily"
command = ["echo", "", "%"]
"#;

#[test]
fn a_file_with_every_field_becomes_exactly_these_jobs() {
    let parsed = parse(&[("jobs.toml", EVERY_FIELD)]).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    let calendar = Calendar::parse(CalendarText {
        start_at: Some("2025-12-31T23:00:00Z"),
        end_at: Some("2027-01-01T00:00:00Z"),
        skip_dates: &["2026-12-24".to_owned(), "2026-12-31..2027-01-01".to_owned()],
        only_dates: Some(&["2026-01-01..2026-12-31".to_owned()]),
    });
    let schedule = |texts: &[&str], zone: &str, name: &str| {
        Schedule::parse(texts, &zone.parse::<Zone>().unwrap(), name).unwrap()
    };
    let backup = Job {
        name: "nightly-db-backup".parse().unwrap(),
        description: Some("Dump the shop database".into()),
        owner: Some("ops@example.org".into()),
        schedule: schedule(&["0 2 * * *", "@every 90s"], "America/New_York", "nightly-db-backup")
            .within(calendar.unwrap()),
        splay: Duration::from_secs(600),
        command: Command::Shell("pg_dump -Fc shop > /var/backups/shop-$(date +%F).dump".into()),
        enabled: false,
        env: pairs(&[("LANG", "C"), ("PGHOST", ""), ("PGPORT", "5433")]),
        workdir: Some("/var/backups".into()),
        shell: "/bin/bash".into(),
        timeout: Some(Duration::from_secs(9000)),
        kill_after: Duration::from_millis(500),
        hold: Duration::from_secs(120),
        overlap: Overlap::Allow,
        promise: Promise::AtMostOnce,
        nodes: Some("role in (standby, db), zone != eu-west".parse::<Selector>().unwrap()),
        run_on: RunOn::EveryNode,
        catch_up: CatchUp::None,
        start_within: Duration::from_secs(3 * 3600),
        retry: Some(Retry {
            attempts: 5,
            delay: Duration::from_secs(60),
            factor: Thousandths(1500),
            max_delay: Duration::from_secs(3600),
            jitter: Thousandths(0),
            on: Some(RetryOn { exit_codes: BTreeSet::from([1, 75]), timeout: true }),
        }),
        mutex: None,
        priority: Priority::default(),
        after: None,
        success_exit: BTreeSet::from([0, 24]),
        keep: Keep { records: 5, days: 7, output: 1_000_000 },
        terms: Terms {
            user: Some("postgres".into()),
            group: Some("backup".into()),
            umask: Some(0o027),
            nice: Some(10),
            ionice: Some(IoNice::BestEffort(7)),
            limits: [
                (Limit::Core, None),
                (Limit::Cpu, Some(600)),
                (Limit::Memory, Some(1 << 30)),
                (Limit::Nofile, Some(256)),
            ]
            .into(),
            stdin: Some("yes\n".into()),
            no_new_privs: true,
            kill_leftovers: true,
            env_file: Some("/etc/default/backup".into()),
            credential: Some("backup.env".into()),
            redact: ["PGPASSWORD".to_owned()].into(),
            timestamps: true,
        },
        was: Some("backup".parse().unwrap()),
    };
    let plain = Job {
        name: "plain".parse().unwrap(),
        description: None,
        owner: None,
        schedule: schedule(&["@daily"], "Europe/Berlin", "plain"),
        splay: Duration::ZERO,
        command: Command::Argv(vec!["echo".into(), String::new(), "%".into()]),
        enabled: true,
        env: pairs(&[("LANG", "C"), ("PGHOST", "db")]),
        workdir: None,
        shell: "/bin/sh".into(),
        timeout: Some(Duration::from_secs(3600)),
        kill_after: Duration::from_secs(10),
        hold: Duration::from_secs(60),
        overlap: Overlap::Skip,
        promise: Promise::AtLeastOnce,
        nodes: Some("role=db".parse().unwrap()),
        run_on: RunOn::OneNode,
        catch_up: CatchUp::Latest,
        start_within: Duration::from_secs(3600),
        retry: Some(Retry {
            attempts: 2,
            delay: Duration::from_secs(60),
            factor: Thousandths(2000),
            max_delay: Duration::from_secs(600),
            jitter: Thousandths(200),
            on: Some(RetryOn { exit_codes: BTreeSet::from([75]), timeout: false }),
        }),
        mutex: None,
        priority: Priority::default(),
        after: None,
        success_exit: BTreeSet::from([0]),
        keep: Keep { records: 100, days: 7, output: 10 << 20 },
        terms: Terms { nice: Some(5), limits: [(Limit::Nofile, Some(99))].into(), ..Terms::default() },
        was: None,
    };
    assert_eq!(parsed.jobs, [backup, plain]);
    assert_eq!((parsed.source.as_str(), parsed.source_named), ("shop", true));
    assert_eq!(parsed.places[&"plain".parse().unwrap()].to_string(), "jobs.toml:57:7");
    assert_eq!(parsed.warnings, []);
}

#[test]
fn files_of_one_source_are_checked_together() {
    let job = |name: &str| format!("[jobs.{name}]\nschedule = \"@daily\"\ncommand = \"true\"\n");
    let (a, b) = (format!("[source]\nname = \"shop\"\n{}", job("x")), job("x"));
    let clash = parse(&[("a.toml", &a), ("b.toml", &b)]).unwrap_err();
    let said = clash.shown[0].to_string();
    assert!(said.contains("b.toml:1:7") && said.contains("already defined at a.toml:3:7"), "{said}");

    let other = format!("[source]\nname = \"lab\"\n{}", job("y"));
    let quarrel = parse(&[("a.toml", &a), ("b.toml", &other)]).unwrap_err();
    let said = quarrel.shown[0].to_string();
    assert!(said.contains("called lab here and shop at a.toml:2:8") && said.contains("b.toml:2:8"), "{said}");

    let silent = parse(&[("a.toml", &a), ("b.toml", &job("y"))]).unwrap();
    assert_eq!((silent.source.as_str(), silent.jobs.len()), ("shop", 2));
    let warnings: Vec<_> = silent.warnings.iter().map(|warning| warning.to_string()).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("warning: 2 jobs have no timezone and run by UTC"), "{}", warnings[0]);

    let half = parse(&[("a.toml", "[jobs\n"), ("b.toml", "x = 1\n"), ("c.toml", &job("z"))]).unwrap_err();
    let places: Vec<_> = half.shown.iter().map(|mistake| mistake.0.place.to_string()).collect();
    assert_eq!(places, ["a.toml:1:6", "b.toml:1:1"]);
    assert_eq!(parse(&[]).map(|none| none.jobs.len()), Ok(0));
}

#[test]
fn what_looks_like_a_secret_is_warned_about() {
    let text =
        "[jobs.a]\nschedule = \"@every 5s\"\ncommand = \"true\"\nenv = { PGPASSWORD = \"x\", A = \"\" }\n";
    let parsed = parse(&[("jobs.toml", text)]).unwrap();
    let warnings: Vec<_> = parsed.warnings.iter().map(|warning| warning.to_string()).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("jobs.toml:4:9") && warnings[0].contains("env.PGPASSWORD"),
        "{}",
        warnings[0]
    );
}

#[test]
fn doubts_about_schedules_are_told_with_their_places() {
    let mut text = "[defaults]\ntimezone = \"UTC\"\n".to_owned();
    for n in 0..30 {
        text += &format!("[jobs.j{n:02}]\nschedule = \"0 2 * * *\"\ncommand = \"true\"\n");
    }
    text += "[jobs.z]\nschedule = [\"5 5 * * *\", \"* 2 * * *\"]\ncommand = \"true\"\n";
    let files = [SourceFile { path: "jobs.toml", text: &text }];
    let parsed = jobfile::parse(&files).unwrap();
    let now = "2026-12-01T00:00:00Z".parse().unwrap();
    let warnings = jobfile::schedule_warnings(&parsed, &files, now);
    let said: Vec<_> = warnings.iter().map(|warning| warning.to_string()).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("30 jobs are due in the minute from 2026-12-01T02:00Z: j00, j01"),
        "{}",
        said[0]
    );
    assert!(said[0].contains("jobs.toml:4:12"), "{}", said[0]);
    assert!(said[1].contains("jobs.toml:94:26"), "{}", said[1]);
}

/// Megabytes of nonsense end within seconds, in a place of the file.
#[track_caller]
fn check_garbage(text: &str) {
    let started = Instant::now();
    let mistakes = parse(&[("garbage.toml", text)]).expect_err("garbage is refused");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let said = mistakes.to_string();
    assert!(said.len() < 2_000_000, "{}", said.len());
    for mistake in mistakes.shown {
        let place = mistake.0.place;
        let line = text.split('\n').nth(place.line - 1).expect("the line is in the file");
        assert!(place.column <= line.chars().count() + 1, "{place}");
    }
}

#[test]
fn ten_megabytes_of_garbage_end_quickly_with_a_place() {
    const SIZE: usize = 10 << 20;
    let fill = |piece: &str| piece.repeat(SIZE / piece.len());
    check_garbage(&fill("\u{1}\u{2}ÿ"));
    check_garbage(&fill("[[[[{{{{"));
    check_garbage(&fill("x"));
    check_garbage(&fill("\n").replacen('\n', "[", 1));
    check_garbage(&fill("=\n"));
    check_garbage(&fill("\"\"\"'"));
    let keys: String = (0..300_000).map(|n| format!("comand{n} = {n}\n")).collect();
    check_garbage(&keys);
    check_garbage(&format!("[jobs.a]\n{keys}"));
    let jobs: Vec<_> = (0..100_000).map(|n| format!("j{n} = {{ comand = 1 }}")).collect();
    check_garbage(&format!("jobs = {{ {} }}", jobs.join(", ")));
}

#[test]
fn deep_nesting_is_refused_with_a_place_and_no_overflow() {
    for (open, close) in [("[", "]"), ("{ a = ", " }")] {
        for depth in [70, 90, 100_000] {
            check_garbage(&format!("x = {}{}\n", open.repeat(depth), close.repeat(depth)));
        }
        check_garbage(&format!("[jobs.a]\ncommand = {}", open.repeat(1_000_000)));
    }
    let dotted = format!("# first\na{} = 1\n", ".a".repeat(100_000));
    check_garbage(&dotted);
    assert!(parse(&[("a.toml", &dotted)]).unwrap_err().to_string().contains("a.toml:2:1"));
    check_garbage(&format!("[a{}]\n", ".a".repeat(1000)));
}

#[test]
fn ten_thousand_jobs_are_read_within_seconds() {
    let mut text = "\u{feff}[defaults]\ntimezone = \"Europe/Berlin\"\n".to_owned();
    for n in 0..10_000 {
        let padding = "x".repeat(700);
        text += &format!("[jobs.j{n}]\nschedule = \"H {} * * *\"\ncommand = \"echo {padding}\"\n", n % 24);
    }
    let started = Instant::now();
    let parsed = parse(&[("jobs.toml", &text)]).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!((parsed.jobs.len(), parsed.warnings.len()), (10_000, 0));
    assert_eq!(parsed.places[&"j0".parse().unwrap()].to_string(), "jobs.toml:3:7");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn a_text_of_megabytes_in_a_field_is_not_said_again_whole() {
    let long = "5".repeat(1 << 20);
    for field in [
        "description",
        "schedule",
        "timezone",
        "command",
        "workdir",
        "timeout",
        "overlap",
        "nodes",
        "retry",
        "was",
        "start_at",
        "skip_dates",
        "keep",
    ] {
        let text = format!("[jobs.a]\n{field} = \"{long}\"\n");
        let mistakes = parse(&[("jobs.toml", &text)]).expect_err(field);
        for mistake in mistakes.shown {
            let said = mistake.to_string();
            assert!(said.len() < 1500, "{field}: {} bytes: {}", said.len(), &said[..1000]);
        }
    }
}

proptest! {
    #[test]
    fn any_text_ends_in_jobs_or_a_place(text in "(?s).{0,200}") {
        if let Err(mistakes) = parse(&[("any.toml", &text)]) {
            prop_assert!(!mistakes.shown.is_empty());
            check_garbage(&text);
        }
    }

    #[test]
    fn any_words_of_toml_end_in_jobs_or_a_place(words in proptest::collection::vec(
        proptest::sample::select(vec!["[", "]", "[[", "]]", "jobs", "a", ".", "=", "{", "}", "\n", " ", "\"",
            "'''", "1", "true", "defaults", "schedule", "command", ",", "\"0 2 * * *\"", "#", "\r\n", "é"]),
        0..60,
    )) {
        let text = words.concat();
        if parse(&[("any.toml", &text)]).is_err() {
            check_garbage(&text);
        }
    }

    #[test]
    fn a_good_file_with_some_bytes_changed_ends_in_jobs_or_a_place(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>(), any::<bool>()), 1..6)
    ) {
        let mut bytes = EVERY_FIELD.as_bytes().to_vec();
        for (at, byte, insert) in changes {
            let at = at.index(bytes.len());
            if insert { bytes.insert(at, byte) } else { bytes[at] = byte }
        }
        let text = String::from_utf8_lossy(&bytes);
        if parse(&[("any.toml", &text)]).is_err() {
            check_garbage(&text);
        }
    }
}

fn names(found: &FilesFound) -> Vec<&str> {
    found.files.iter().map(|file| file.path.rsplit('/').next().unwrap()).collect()
}

const ONE_JOB: &str = "[jobs.NAME]\nschedule = \"@daily\"\ncommand = \"true\"";

#[test]
fn c35_only_toml_files_count_and_every_other_entry_is_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["a.toml", "b.toml~", ".c.toml.swp", "d.toml.dpkg-old", "e.toml.rpmsave", "f.TOML", "g.toml"]
    {
        let end = if name == "g.toml" { "" } else { "\n" };
        fs::write(at(name), ONE_JOB.replace("NAME", &name[..1].replace('.', "c")) + end).unwrap();
    }
    fs::write(at("h.toml"), "").unwrap();
    symlink("nowhere", at("i.toml")).unwrap();
    fs::create_dir(at("j.toml")).unwrap();

    let found = files::read(&[folder.path().to_owned()]);
    assert_eq!(names(&found), ["a.toml", "g.toml"]);
    assert_eq!(found.problems, []);
    let ignored: Vec<_> = found
        .ignored
        .iter()
        .map(|entry| (entry.path.rsplit('/').next().unwrap(), entry.reason.as_str(), entry.named_like_one))
        .collect();
    let expected = [
        (".c.toml.swp", "its name begins with a dot", false),
        ("b.toml~", "its name does not end in .toml", false),
        ("d.toml.dpkg-old", "its name does not end in .toml", false),
        ("e.toml.rpmsave", "its name does not end in .toml", false),
        ("f.TOML", "its name does not end in .toml", false),
        ("h.toml", "the file is empty", true),
        ("i.toml", "a link that leads nowhere (no such file or directory)", true),
        ("j.toml", "not a file but a folder", true),
    ];
    assert_eq!(ignored, expected);
    assert!(!found.are_whole(), "an empty file must not remove the jobs it had");

    let texts: Vec<_> = found.files.iter().map(|file| (&*file.path, &*file.text)).collect();
    let parsed = parse(&texts).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let jobs: Vec<_> = parsed.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(jobs, ["a", "g"]);
}

#[test]
fn what_is_named_and_cannot_be_read_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("empty.toml"), " \n").unwrap();
    fs::write(at("latin1.toml"), b"# one\n# \xc3\xa9t\xe9\n").unwrap();
    fs::write(at("large.toml"), vec![b'#'; (8 << 20) + 1]).unwrap();
    fs::write(at("jobs.conf"), ONE_JOB).unwrap();
    nix::unistd::mkfifo(&at("fifo.toml"), nix::sys::stat::Mode::S_IRWXU).unwrap();

    #[track_caller]
    fn check(path: PathBuf, said: &str) {
        let found = files::read(&[path]);
        assert_eq!((found.files.len(), found.problems.len()), (0, 1), "{found:?}");
        assert!(found.problems[0].to_string().contains(said), "{}", found.problems[0]);
        assert!(!found.are_whole());
    }
    check(at("missing.toml"), "no such file or directory\n  --> ");
    check(at("empty.toml"), "the file is empty");
    check(at("latin1.toml"), "byte 0xe9\n  --> ");
    check(at("latin1.toml"), "latin1.toml:2:5");
    check(at("large.toml"), "larger than 8 MiB");
    check(at("fifo.toml"), "neither a file nor a folder but a FIFO");
    check(PathBuf::from("/dev/null"), "a device");
    assert_eq!(names(&files::read(&[at("jobs.conf"), at("jobs.conf")])), ["jobs.conf"]);

    let found = files::read(&[folder.path().to_owned()]);
    let problems: Vec<_> = found.problems.iter().map(|p| p.path.rsplit('/').next().unwrap()).collect();
    assert_eq!(problems, ["large.toml", "latin1.toml"]);
    let ignored: Vec<_> = found.ignored.iter().map(|i| i.path.rsplit('/').next().unwrap()).collect();
    assert_eq!(ignored, ["empty.toml", "fifo.toml", "jobs.conf"]);
}

#[test]
fn a_signature_changes_with_edits_renames_and_swapped_links() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let paths = [folder.path().to_owned()];
    for (version, text) in [("..v1", "a = 1"), ("..v2", "a = 2")] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("a.toml"), text).unwrap();
    }
    symlink("..v1", at("..data")).unwrap();
    symlink("..data/a.toml", at("a.toml")).unwrap();

    let mut last = Signature::of(&paths);
    assert_eq!(last, Signature::of(&paths));
    assert_eq!(files::read(&paths).files[0].text, "a = 1");
    let mut changed = |what: &str, paths: &[PathBuf]| {
        let now = Signature::of(paths);
        assert_ne!(now, last, "{what}");
        last = now;
    };
    symlink("..v2", at("..new")).unwrap();
    fs::rename(at("..new"), at("..data")).unwrap();
    changed("a swapped link", &paths);
    assert_eq!(files::read(&paths).files[0].text, "a = 2");
    fs::write(at("..v2/a.toml"), "a = 30").unwrap();
    changed("an edit behind a link", &paths);
    fs::write(at("b.toml"), "b = 1").unwrap();
    changed("a new file", &paths);
    fs::rename(at("b.toml"), at("c.toml")).unwrap();
    changed("a rename", &paths);
    fs::remove_file(at("c.toml")).unwrap();
    changed("a removal", &paths);
    fs::remove_dir_all(folder.path()).unwrap();
    changed("the folder is gone", &paths);
}
