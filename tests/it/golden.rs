//! Every stored form that a release wrote: a sample of each lies in `golden/`, must be read for ever, and is what this
//! release still writes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fleetcron::fire::Fire;
use fleetcron::guard::folder::{Found, Started};
use fleetcron::guard::link::{Answer, Request as Ask};
use fleetcron::guard::{Ended, RunFolder, Spec};
use fleetcron::journal::Line;
use fleetcron::store::values::{
    self, Act, CancelRequest, ChainState, Definition, Epoch, HoldBack, Lock, MutexHolder, MutexLimit,
    Presence, Request, SourceState, Status, TaskForm, TaskKey, decode_record, encode_record,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn sample(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(format!("{name}.json"));
    let mut text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text.pop(), Some(b'\n'), "{name} ends its line");
    text
}

/// Reads a sample by `read` and compares what `write` makes of it.
#[track_caller]
fn check<T>(name: &str, read: impl Fn(&[u8]) -> T, write: impl Fn(&T) -> Vec<u8>) {
    let text = sample(name);
    let written = write(&read(&text));
    assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(&text), "{name}");
}

#[track_caller]
fn check_value<T: DeserializeOwned + Serialize>(name: &str) {
    check::<T>(name, |text| values::decode(name, text).unwrap(), |value| values::encode(value));
}

#[track_caller]
fn check_json<T: DeserializeOwned + Serialize>(name: &str) {
    check::<T>(
        name,
        |text| serde_json::from_slice(text).unwrap(),
        |value| serde_json::to_vec(value).unwrap(),
    );
}

const ULID: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

#[test]
fn every_value_of_the_store_reads_back_as_it_was_written() {
    for name in [
        "definition-1",
        "definition-1-least",
        "definition-1-terms",
        "definition-1-fleet",
        "definition-1-chain",
    ] {
        check(name, |text| Definition::decode("jobs/nightly-db-backup", text).unwrap(), Definition::encode);
    }
    for name in ["record-1", "record-1-unrun", "record-1-usage", "record-1-forgotten", "record-1-chain"] {
        let fire = Fire::new("backup".parse().unwrap(), "20261130T020000Z".parse().unwrap());
        check(name, |text| decode_record(fire.clone(), name, text).unwrap(), encode_record);
    }
    let task = Fire::task(ULID.parse().unwrap());
    check("record-1-task", |text| decode_record(task.clone(), "k", text).unwrap(), encode_record);
    let read = |text: &[u8]| {
        let place = format!(
            "queue/{}/9/20261130T020000.123Z-{}",
            fleetcron::task::shard(ULID.parse().unwrap()),
            task.id
        );
        TaskForm::decode(&place, text).unwrap()
    };
    check("task-1", read, |task| values::encode(&TaskForm::of(task)));
    check_value::<TaskKey>("task-key-1");
    check_value::<MutexHolder>("mutex-1");
    check_value::<MutexLimit>("limit-1");
    check_value::<ChainState>("chain-1");
    check_value::<Lock>("lock-1-task");
    check_value::<Request>("request-1-forced");
    check_value::<SourceState>("source-1");
    check_value::<Presence>("presence-1");
    check_value::<Presence>("presence-1-clock");
    check_value::<Epoch>("epoch-1");
    check_value::<Lock>("lock-1");
    check_value::<Lock>("lock-1-waiting");
    check_value::<Status>("status-1");
    check_value::<Status>("status-1-skips");
    check_value::<Request>("request-1");
    check_value::<CancelRequest>("cancel-request-1");
    check_value::<HoldBack>("hold-back-1");
    check_value::<HoldBack>("hold-back-1-least");
    check_value::<Act>("act-1");
}

#[test]
fn what_a_guard_of_any_release_writes_and_says_is_understood() {
    check_json::<Spec>("spec-1");
    check_json::<Spec>("spec-1-more");
    check_json::<Spec>("spec-1-cgroup");
    check_json::<Started>("started-1");
    check_json::<Started>("started-1-cgroup");
    check_json::<Ended>("ended-1");
    check_json::<Ended>("ended-1-usage");
    check_json::<Ask>("ask-1");
    check_json::<Ask>("ask-1-contact");
    check_json::<Answer>("say-1");
    check_json::<Answer>("say-1-holds");
}

#[test]
fn a_line_of_a_journal_of_any_release_is_understood() {
    check_json::<Line>("journal-1");
}

#[test]
fn a_run_file_of_any_release_is_understood() {
    let folder = tempfile::tempdir().unwrap();
    let name = "backup,-,20261130T020000Z,1";
    fs::write(folder.path().join(format!("{name}.run")), [sample("run-1"), b"\n".to_vec()].concat()).unwrap();
    let run = RunFolder::open(folder.path(), &name.parse().unwrap()).unwrap();
    assert_eq!(serde_json::to_vec(&run.read_spec().unwrap()).unwrap(), sample("spec-1"));
    let Found::Ended(ended) = run.look().unwrap() else { panic!("it ended") };
    assert_eq!(serde_json::to_vec(&ended).unwrap(), sample("ended-1"));
}

#[test]
fn a_later_version_is_refused_and_a_field_more_is_passed_over() {
    let text = String::from_utf8(sample("lock-1")).unwrap();
    let later = text.replace(r#""v":1"#, r#""v":2"#);
    let refused = values::decode::<Lock>("locks/a/-/x", later.as_bytes()).unwrap_err().to_string();
    assert!(refused.contains("locks/a/-/x") && refused.contains("version 2"), "{refused}");
    let more = text.replace(r#""v":1"#, r#""v":1,"colour":"red""#);
    assert!(values::decode::<Lock>("locks/a/-/x", more.as_bytes()).is_ok());
    for odd in ["", "{}", "[]", "null", r#"{"v":"1"}"#, r#"{"v":1}"#] {
        assert!(values::decode::<Lock>("k", odd.as_bytes()).is_err(), "{odd}");
    }
}

#[test]
fn the_digest_of_a_source_is_the_same_in_every_release() {
    let jobs = ["definition-1", "definition-1-least"]
        .map(|name| Definition::decode(&format!("jobs/{name}"), &sample(name)).unwrap().job);
    let digest = values::digest(&jobs, &BTreeMap::new());
    assert_eq!(
        digest,
        values::digest(jobs.iter().rev(), &BTreeMap::new()),
        "the order of the files does not count"
    );
    assert_eq!(digest, "29a983ff70760faefd2989f78e06c3711815337e097fd49e81b6414f43827f16");
}
