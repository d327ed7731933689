//! SQLite's own: several processes, kill -9, files that are not ours.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use fleetcron::store::*;
use tokio::time::timeout;

use crate::etcd::SOON;

pub async fn open(path: &Path) -> Store {
    try_open(path, true).await.unwrap()
}

async fn try_open(path: &Path, create: bool) -> Result<Store, StoreError> {
    let access = Access { create, ..Access::default() };
    Store::open(&Address::Sqlite(path.to_owned()), &access).await
}

fn put(key: &str, value: &str) -> Txn {
    Txn::new().then([Op::put(key, value)])
}

#[tokio::test]
async fn what_was_written_is_there_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/folder/store.db");
    let store = open(&path).await;
    let reply = store.txn(put("k", "v")).await.unwrap();
    drop(store);
    let store = open(&path).await;
    let entry = store.get("k").await.unwrap().unwrap();
    assert_eq!((entry.value.as_slice(), entry.mod_revision), (&b"v"[..], reply.revision));
}

#[tokio::test]
async fn nobody_else_may_read_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine/store.db");
    let store = open(&path).await;
    store.txn(put("k", "v")).await.unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    for file in std::fs::read_dir(path.parent().unwrap()).unwrap() {
        let file = file.unwrap().path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[tokio::test]
async fn one_who_only_looks_makes_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("there/store.db");
    let missing = try_open(&path, false).await.err().unwrap();
    assert!(matches!(missing, StoreError::Missing(_)), "{missing}");
    assert!(!path.parent().unwrap().exists());
}

#[tokio::test]
async fn a_file_that_is_not_ours_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let garbage = folder.path().join("garbage.db");
    std::fs::write(&garbage, "this is no database at all".repeat(100)).unwrap();
    refused(&garbage, "not an SQLite file").await;

    let foreign = folder.path().join("foreign.db");
    let other = rusqlite::Connection::open(&foreign).unwrap();
    other.execute_batch("CREATE TABLE theirs (x)").unwrap();
    refused(&foreign, "of another program").await;

    let later = folder.path().join("later.db");
    drop(open(&later).await);
    let other = rusqlite::Connection::open(&later).unwrap();
    other.pragma_update(None, "user_version", 99).unwrap();
    refused(&later, "a later fleetcron wrote it").await;

    refused(folder.path(), "is not a file").await;
}

async fn refused(path: &Path, why: &str) {
    let error = try_open(path, true).await.err().unwrap();
    assert!(matches!(error, StoreError::Unusable { .. }), "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

#[tokio::test]
async fn a_lease_of_another_boot_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open(&path).await;
    let lease = store.grant(Duration::from_secs(600)).await.unwrap();
    let leased = Op::put_on("k", "v", lease.id);
    store.txn(Txn::new().then([leased])).await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute("UPDATE lease SET deadline_ms = 5, boot = 'another'", []).unwrap();
    assert!(store.get("k").await.unwrap().is_some());
    // Of this boot the same deadline has passed.
    other.execute("UPDATE lease SET deadline_ms = 5", []).unwrap();
    assert!(store.get("k").await.unwrap().is_none());
    assert_eq!(store.renew(lease.id).await, Err(StoreError::LeaseGone));
}

#[tokio::test]
async fn two_processes_write_to_one_file_and_see_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = open(&path).await;
    let mut follow = store.follow(KeyRange::prefix("count"));
    let (mut child, _lines) = start_child("count", &path);
    for _ in 0..200 {
        add_one(&store).await;
    }
    child.wait().unwrap();
    let expected = b"400".to_vec();
    assert_eq!(store.get("count").await.unwrap().unwrap().value, expected);
    // The other process's changes wake the watch of this one.
    let sees_all = async {
        loop {
            if let Seen::Changes { events, .. } = follow.next().await
                && let Some(Event::Put(entry)) = events.last()
                && entry.value == expected
            {
                return;
            }
        }
    };
    timeout(SOON, sees_all).await.unwrap();
}

/// Adds one to a number that others add to as well.
async fn add_one(store: &Store) {
    loop {
        let old = store.get("count").await.unwrap();
        let number: u32 = old.as_ref().map_or(0, |old| String::from_utf8_lossy(&old.value).parse().unwrap());
        let unchanged = Compare::mod_revision("count", old.map_or(Revision(0), |old| old.mod_revision));
        let more = Op::put("count", (number + 1).to_string());
        if store.txn(Txn::when([unchanged]).then([more])).await.unwrap().succeeded {
            return;
        }
    }
}

#[tokio::test]
async fn every_acknowledged_change_is_there_after_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let mut last = None;
    for round in 0..5 {
        let (mut child, mut lines) = start_child("write", &path);
        // Further into the work each time.
        let mut acknowledged = Vec::new();
        for _ in 0..20 + 37 * round {
            acknowledged.push(lines.next().unwrap().unwrap());
        }
        child.kill().unwrap();
        acknowledged.extend(lines.map_while(Result::ok));
        child.wait().unwrap();
        let store = open(&path).await;
        let there = store.list(KeyRange::prefix("n/")).await.unwrap();
        let there: std::collections::BTreeSet<_> = there.entries.into_iter().map(|entry| entry.key).collect();
        for key in acknowledged.iter().filter(|line| line.starts_with("n/")) {
            assert!(there.contains(key), "{key} was acknowledged");
        }
        assert!(last.replace(there.len()).is_none_or(|before| before < there.len()));
    }
}

/// Runs this very test binary as another process, which does one of the things below.
fn start_child(what: &str, path: &Path) -> (Child, std::io::Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::sqlite::the_other_process", "--nocapture"])
        .env("FLEETCRON_TEST_CHILD", what)
        .env("FLEETCRON_TEST_FILE", path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// Not a test by itself: what the child of the tests above does.
#[tokio::test]
async fn the_other_process() {
    let Ok(what) = std::env::var("FLEETCRON_TEST_CHILD") else {
        return;
    };
    let store = open(Path::new(&std::env::var_os("FLEETCRON_TEST_FILE").unwrap())).await;
    match what.as_str() {
        "count" => {
            for _ in 0..200 {
                add_one(&store).await;
            }
        }
        "write" => {
            let life = std::process::id();
            for n in 0.. {
                let key = format!("n/{life}/{n}");
                store.txn(put(&key, "")).await.unwrap();
                println!("{key}");
            }
        }
        other => panic!("{other}?"),
    }
}
