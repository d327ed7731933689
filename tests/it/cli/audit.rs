//! `audit`: what it finds in a store, and how it says so.

use fleetcron::record::{Past, Span};
use fleetcron::store::values::Former;
use serde_json::{Value, json};

use super::*;

const HOURLY: &str = "
[jobs.hourly]
schedule = '0 * * * *'
timezone = 'UTC'
command = 'true'
";

/// When everybody asks.
const NOW: &str = "2026-11-30T12:30:00Z";

/// A store as of [`NOW`], whose job was defined long before, with records of `hours` and the floor at the last of them.
fn desk(fields: &str, hours: impl IntoIterator<Item = u32>) -> Desk {
    let desk = Desk::new();
    desk.write("jobs.toml", format!("{HOURLY}{fields}\n"));
    desk.run_at("2026-11-01T00:00:00Z", &["sync", "jobs.toml"]).ended_with(0);
    let mut last = None;
    for hour in hours {
        // Between two of them there is room for others.
        let token = i64::from(hour) * 10;
        let mut record = record(hourly(hour), Outcome::Succeeded, Some(0), None);
        record.run.as_mut().unwrap().fencing_token = token;
        desk.put_record(&record);
        last = Some(hour);
    }
    desk.put_floor(last.unwrap_or(0));
    desk
}

/// The fire of an hour of that day.
fn hourly(hour: u32) -> Fire {
    fire("hourly", &format!("20261130T{hour:02}0000Z"))
}

impl Desk {
    fn put_floor(&self, hour: u32) {
        let fire = hourly(hour);
        self.put([(keys::floor(&fire.job, &fire.lane), fire.id.to_string().into_bytes())]);
    }

    fn delete(&self, key: String) {
        self.in_store(async |store| store.txn(Txn::new().then([Op::delete(key)])).await.unwrap());
    }

    /// The whole day's audit, row by row.
    #[track_caller]
    fn audit(&self, code: i32, more: &[&str]) -> Vec<Value> {
        self.audit_since("2026-11-30", code, more)
    }

    #[track_caller]
    fn audit_since(&self, since: &str, code: i32, more: &[&str]) -> Vec<Value> {
        let args = [&["audit", "--since", since, "--output", "json"], more].concat();
        let said = self.run_at(NOW, &args).ended_with(code);
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Its findings, as `FINDING FIRE`.
    #[track_caller]
    fn finds(&self, findings: &[&str]) -> Vec<Value> {
        let rows = self.audit(i32::from(!findings.is_empty()), &[]);
        let of = |row: &&Value| row["row"] == "finding";
        let told =
            |row: &Value| format!("{} {}", row["finding"].as_str().unwrap(), row["fire"].as_str().unwrap());
        assert_eq!(rows.iter().filter(of).map(told).collect::<Vec<_>>(), findings, "{rows:#?}");
        rows
    }
}

#[test]
fn where_all_was_run_nothing_is_said_and_the_exit_code_is_0() {
    let desk = desk("", 0..=12);
    let rows = desk.audit(0, &[]);
    assert_eq!(
        rows,
        [json!({
            "row": "lane", "job": "hourly", "lane": "-", "since": "2026-11-30T00:00:00Z", "until": NOW, "due": 13,
            "succeeded": 13, "failed": 0, "timed_out": 0, "cancelled": 0, "lost": 0, "skipped": 0, "missed": 0,
            "refused": 0, "running": 0, "waiting": 0, "open": 0, "gaps": 0, "unknown": 0, "unreadable": 0, "asked": 0,
            "faults": 0,
        })]
    );
    let said = desk.run_at(NOW, &["audit", "--since", "2026-11-30"]).ended_with(0);
    assert_eq!(said.err, "");
    let lines: Vec<Vec<&str>> = said.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["JOB", "LANE", "DUE", "OPEN", "GAPS", "UNKNOWN", "FAULTS", "CAME", "TO"]);
    assert_eq!(lines[1..], [["hourly", "-", "13", "0", "0", "0", "0", "13", "succeeded"]]);
}

#[test]
fn a_record_that_is_gone_is_a_gap_and_the_exit_code_is_1() {
    let desk = desk("", 0..=12);
    for hour in [5, 6] {
        desk.delete(keys::record(&hourly(hour)));
    }
    let rows = desk.finds(&["gap 20261130T050000Z"]);
    assert_eq!(
        (&rows[0]["due"], &rows[0]["succeeded"], &rows[0]["gaps"]),
        (&json!(13), &json!(11), &json!(2))
    );
    assert_eq!(
        rows[1],
        json!({
            "row": "finding", "job": "hourly", "lane": "-", "finding": "gap", "fault": true,
            "fire": "20261130T050000Z", "last": "2026-11-30T06:00:00Z", "count": 2,
            "detail": "nothing says what became of 2 fires up to 2026-11-30T06:00:00Z, and they are under the floor",
        })
    );
    let said = desk.run_at(NOW, &["audit"]).ended_with(1);
    let last = said.out.lines().last().unwrap();
    assert!(last.starts_with("gap: hourly/20261130T050000Z..20261130T060000Z: nothing says"), "{said:#?}");
    assert!(said.err.contains("something is wrong: 1 finding(s)"), "{said:#?}");
    // Asked about another time, there is nothing wrong.
    desk.run_at(NOW, &["audit", "--since", "2026-11-30T07:00:00Z"]).ended_with(0);
    desk.run_at(NOW, &["audit", "--since", "2026-11-30", "--until", "05:00"]).ended_with(0);
    desk.run_at(NOW, &["audit", "hourly", "--since", "06:30"]).ended_with(0);
}

#[test]
fn what_is_covered_twice_is_a_double() {
    let desk = desk("", 0..=12);
    desk.put([(keys::lock(&hourly(12)), lock(at("2026-11-30T12:00:00Z")))]);
    desk.finds(&["double 20261130T120000Z"]);
    desk.delete(keys::lock(&hourly(12)));
    let mut span = unrun(hourly(3), Outcome::Missed, "no node was up");
    span.span = Some(Span { last: at("2026-11-30T05:00:00Z"), count: 3 });
    desk.put_record(&span);
    desk.finds(&["double 20261130T040000Z", "double 20261130T050000Z"]);
}

#[test]
fn a_span_stands_for_all_its_fires_also_of_before_the_time_asked_about() {
    let desk = desk("", 10..=12);
    let mut span = unrun(hourly(0), Outcome::Missed, "no node was up");
    span.span = Some(Span { last: at("2026-11-30T09:00:00Z"), count: 10 });
    desk.put_record(&span);
    let rows = desk.audit(0, &[]);
    assert_eq!((&rows[0]["missed"], &rows[0]["succeeded"]), (&json!(10), &json!(3)));
    let rows = desk.audit_since("08:00", 0, &[]);
    assert_eq!((&rows[0]["missed"], &rows[0]["succeeded"]), (&json!(2), &json!(3)));
    span.span = Some(Span { last: at("2026-11-30T09:00:00Z"), count: 11 });
    desk.put_record(&span);
    desk.finds(&["span 20261130T000000Z"]);
}

#[test]
fn runs_that_met_are_an_overlap_unless_the_job_allows_it() {
    for (fields, findings) in [("", &["overlap 20261130T050000Z"][..]), ("overlap = 'allow'", &[])] {
        let desk = desk(fields, 0..=12);
        let mut long = record(hourly(4), Outcome::Succeeded, Some(0), None);
        let run = long.run.as_mut().unwrap();
        run.fencing_token = 40;
        run.ended_at = Some(at("2026-11-30T05:00:30Z"));
        desk.put_record(&long);
        desk.finds(findings);
    }
}

#[test]
fn an_at_most_once_fire_that_was_started_again_is_told_of() {
    let desk = desk("promise = 'at-most-once'", 0..=12);
    let mut again = record(hourly(4), Outcome::Succeeded, Some(0), None);
    let run = again.run.as_mut().unwrap();
    (run.fencing_token, run.attempt) = (40, 2);
    let mut past = Past {
        attempt: 1,
        node: "db-2".parse().unwrap(),
        outcome: Outcome::Lost,
        reason: None,
        exit_code: None,
        signal: None,
        started_at: None,
        ended_at: None,
    };
    again.past = vec![past.clone()];
    desk.put_record(&again);
    desk.finds(&[]);
    past.started_at = Some(at("2026-11-30T04:00:00Z"));
    again.past = vec![past];
    desk.put_record(&again);
    desk.finds(&["restarted 20261130T040000Z"]);
}

#[test]
fn tokens_that_go_back_are_told_of() {
    let desk = desk("", 0..=12);
    let mut old = record(hourly(4), Outcome::Succeeded, Some(0), None);
    old.run.as_mut().unwrap().fencing_token = 1;
    desk.put_record(&old);
    desk.finds(&["token 20261130T040000Z"]);
}

#[test]
fn before_the_oldest_record_nothing_is_known() {
    let desk = desk("", 7..=12);
    let rows = desk.audit(0, &[]);
    assert_eq!((&rows[0]["unknown"], &rows[0]["gaps"]), (&json!(7), &json!(0)));
}

#[test]
fn what_may_still_be_run_is_open_and_what_is_dealt_with_is_running() {
    let desk = desk("", 0..=10);
    desk.put([(keys::lock(&hourly(11)), lock(at("2026-11-30T11:00:00Z")))]);
    let rows = desk.audit(0, &[]);
    assert_eq!((&rows[0]["running"], &rows[0]["open"], &rows[0]["due"]), (&json!(1), &json!(1), &json!(13)));
    desk.delete(keys::lock(&hourly(11)));
    // 11:00 could start until 12:00.
    desk.finds(&["gap 20261130T110000Z"]);
}

#[test]
fn what_nobody_asked_for_is_told_of() {
    let desk = desk("", 0..=12);
    desk.put_record(&unrun(fire("hourly", "20261130T043000Z"), Outcome::Skipped, "overlap"));
    let rows = desk.finds(&["not-due 20261130T043000Z"]);
    assert!(rows[1]["detail"].as_str().unwrap().contains("time zone data"), "{rows:#?}");
}

#[test]
fn a_late_result_is_a_note() {
    let desk = desk("", 0..=12);
    let mut again = record(hourly(4), Outcome::Succeeded, Some(0), None);
    let run = again.run.as_mut().unwrap();
    (run.fencing_token, run.attempt, run.started_at) = (40, 2, Some(at("2026-11-30T04:00:50Z")));
    desk.put_record(&again);
    let mut late = record(hourly(4), Outcome::Lost, None, Some(15));
    let run = late.run.as_mut().unwrap();
    (run.node, run.fencing_token) = ("db-2".parse().unwrap(), 35);
    run.ended_at = Some(at("2026-11-30T04:00:40Z"));
    desk.put([(keys::late_record(&late.fire, node_start(), 1), values::encode_record(&late))]);
    let rows = desk.audit(0, &[]);
    assert_eq!((&rows[1]["finding"], &rows[1]["fault"]), (&json!("late"), &json!(false)), "{rows:#?}");
    let table = desk.run_at(NOW, &["audit"]).ended_with(0).out;
    assert!(table.contains("late: hourly/20261130T040000Z: a result of attempt 1 on db-2"), "{table}");
    // It tells when the other attempt truly ended.
    late.run.as_mut().unwrap().ended_at = Some(at("2026-11-30T04:01:00Z"));
    desk.put([(keys::late_record(&late.fire, node_start(), 1), values::encode_record(&late))]);
    let rows = desk.audit(1, &[]);
    assert_eq!(rows[1]["finding"], "overlap", "{rows:#?}");
}

#[test]
fn a_job_that_is_gone_is_judged_by_what_it_was() {
    let desk = desk("", 0..=10);
    let key = keys::job(&"hourly".parse().unwrap());
    let entry = desk.in_store(async |store| store.get(&key).await.unwrap().unwrap());
    let definition = values::Definition::decode(&key, &entry.value).unwrap();
    let former = Former { definition, until: at("2026-11-30T10:30:00Z"), removed: true };
    desk.put([(keys::job_before(&"hourly".parse().unwrap(), entry.mod_revision), former.encode())]);
    desk.delete(key);
    let rows = desk.audit(0, &["hourly"]);
    assert_eq!((&rows[0]["due"], &rows[0]["succeeded"]), (&json!(11), &json!(11)));
    desk.delete(keys::record(&hourly(4)));
    desk.finds(&["gap 20261130T040000Z"]);
}

#[test]
fn what_cannot_be_read_is_said_and_stands_for_its_fire() {
    let desk = desk("", 0..=12);
    desk.put([(keys::record(&hourly(4)), br#"{"v":9}"#.to_vec())]);
    let said = desk.run_at(NOW, &["audit", "--since", "2026-11-30", "--output", "json"]).ended_with(1);
    let row: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&row["unreadable"], &row["succeeded"], &row["faults"]), (&json!(1), &json!(12), &json!(0)));
    assert!(said.err.contains("history/hourly/-/20261130T040000Z cannot be read"), "{said:#?}");
    // Of a definition that cannot be read nobody knows what was due.
    desk.put([("jobs/hourly".to_owned(), br#"{"v":9}"#.to_vec())]);
    let said = desk.run_at(NOW, &["audit", "--since", "2026-11-30"]).ended_with(1);
    assert!(said.err.contains("jobs/hourly cannot be read"), "{said:#?}");
    for (key, value) in [("decided/hourly/-", "yesterday"), ("locks/hourly/-/20261130T120000Z", "{}")] {
        desk.put([(key.to_owned(), value.as_bytes().to_vec())]);
        let said = desk.run_at(NOW, &["audit"]).ended_with(1);
        assert!(said.err.contains(&format!("{key} cannot be read")), "{said:#?}");
    }
}

#[test]
fn wrong_questions_are_refused() {
    let desk = desk("", 0..=12);
    desk.run(&["audit", "hourli"]).refused_with(1, "no job is called hourli; did you mean hourly?");
    desk.run(&["audit", "--since", "soon"]).refused_with(2, "--since");
    desk.run(&["audit", "--since", "1h", "--until", "2h"]).refused_with(2, "is not before --until");
    desk.run(&["audit", "--journals", "nowhere"]).refused_with(2, "is no state folder of a node");
    desk.run(&["audit", "--skew", "much"]).ended_with(2);
}

/// The state folder of db-1 with a journal that tells of the runs in the records of these hours.
fn journal(desk: &Desk, hours: impl IntoIterator<Item = u32>, change: impl Fn(u32, &mut Value)) {
    let start = node_start().to_string();
    let node = json!({"v": 1, "node": "db-1", "start": start, "boot": "b", "machine": "m", "earlier": []});
    desk.write("db-1/node", node.to_string());
    let line = |hour: u32| {
        let mut line = json!({
            "v": 1, "job": "hourly", "lane": "-", "fire": hourly(hour).id.to_string(), "attempt": 1,
            "fencing_token": hour * 10, "node": "db-1", "node_start": start, "guard": 7,
            "started_at": format!("2026-11-30T{hour:02}:00:01Z"), "ended_at": format!("2026-11-30T{hour:02}:01:01Z"),
            "exit_code": 0, "signal": null, "lost": false,
        });
        change(hour, &mut line);
        format!("{line}\n")
    };
    desk.write("db-1/journal/2026-11-30.jsonl", hours.into_iter().map(line).collect::<String>());
}

#[test]
fn journals_and_records_must_tell_the_same() {
    let desk = desk("", 0..=12);
    #[track_caller]
    fn check(desk: &Desk, findings: &[&str]) {
        let rows = desk.audit(i32::from(!findings.is_empty()), &["--journals", "db-1"]);
        let told: Vec<String> = rows
            .iter()
            .filter(|row| row["row"] == "finding")
            .map(|row| format!("{} {}", row["finding"].as_str().unwrap(), row["fire"].as_str().unwrap()))
            .collect();
        assert_eq!(told, findings, "{rows:#?}");
    }
    journal(&desk, 0..=12, |_, _| {});
    check(&desk, &[]);
    // Twice after a crash, and a line that was torn.
    journal(&desk, [0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12], |_, _| {});
    check(&desk, &[]);
    journal(&desk, (0..=12).filter(|hour| *hour != 5), |_, _| {});
    check(&desk, &["unjournaled 20261130T050000Z"]);
    // It began later.
    journal(&desk, 6..=12, |_, _| {});
    check(&desk, &[]);
    let token = |hour: u32, line: &mut Value| {
        if hour == 5 {
            line["fencing_token"] = json!(99);
        }
    };
    journal(&desk, 0..=12, token);
    check(&desk, &["unrecorded 20261130T050000Z", "token 20261130T060000Z"]);
    let code = |hour: u32, line: &mut Value| {
        if hour == 5 {
            line["exit_code"] = json!(1);
        }
    };
    journal(&desk, 0..=12, code);
    check(&desk, &["differs 20261130T050000Z"]);
    let long = |hour: u32, line: &mut Value| {
        if hour == 5 {
            line["ended_at"] = json!("2026-11-30T06:00:30Z");
        }
    };
    journal(&desk, 0..=12, long);
    check(&desk, &["overlap 20261130T060000Z"]);
}

#[test]
fn a_run_file_that_is_still_there_is_read_like_the_journal() {
    let desk = desk("", 0..=11);
    journal(&desk, 0..=11, |_, _| {});
    let start = node_start().to_string();
    let run = [
        json!({"spec": {"v": 1, "argv": [], "env": {}, "workdir": "", "timeout": null, "kill_after": 0, "output_cap": 0,
                        "success_exit": [0],
                        "owner": {"node_start": start, "token": 120, "claimed_at": "2026-11-30T12:00:00Z"}}}),
        json!({"started": {"v": 1, "boot": "b", "guard": {"pid": 7, "started": 8}, "at": "2026-11-30T12:00:01Z"}}),
    ];
    desk.write("db-1/runs/hourly,-,20261130T120000Z,1.run", run.map(|line| format!("{line}\n")).concat());
    let rows = desk.audit(1, &["--journals", "db-1"]);
    assert_eq!(rows[1]["finding"], "unrecorded", "{rows:#?}");
    let policy = LockPolicy {
        promise: Promise::AtLeastOnce,
        last_start: at(NOW),
        hold: None,
        retry: None,
        slot: None,
        task: None,
    };
    let lock = Lock::held(node(), node_start(), 1, at("2026-11-30T12:00:00Z"), policy).with_hold(60_000, 120);
    desk.put([(keys::lock(&hourly(12)), values::encode(&lock))]);
    let rows = desk.audit(0, &["--journals", "db-1"]);
    assert_eq!(rows[0]["running"], 1);
}
