//! etcd's own: what happens when servers, networks, certificates and logins fail.

use std::time::Duration;

use fleetcron::store::*;
use tokio::time::timeout;

use crate::etcd::{Etcd, SOON, Version, free_port, make_certificates};

fn put(key: &str, value: &str) -> Txn {
    Txn::new().then([Op::put(key, value)])
}

async fn open(address: &Address, access: &Access) -> Result<Store, StoreError> {
    timeout(SOON, Store::open(address, access)).await.expect("opening comes to an end")
}

async fn why_not(address: &Address, access: &Access) -> StoreError {
    open(address, access).await.err().expect("this must not open")
}

#[track_caller]
fn says(error: &StoreError, parts: &[&str]) {
    let text = error.to_string();
    println!("{text}");
    for part in parts {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
    assert!(!text.contains('\n'), "one line: {text}");
}

#[tokio::test]
async fn a_wrong_address_is_one_clear_line() {
    let port = free_port();
    let nobody = format!("etcd://127.0.0.1:{port}").parse().unwrap();
    let error = why_not(&nobody, &Access::default()).await;
    assert!(matches!(error, StoreError::NotReached { .. }), "{error}");
    says(&error, &[&port.to_string(), "cannot be reached", "connect"]);

    let unknown = "etcd://no-such-host.invalid:2379".parse().unwrap();
    let error = why_not(&unknown, &Access::default()).await;
    assert!(matches!(error, StoreError::NotReached { .. }), "{error}");
    says(&error, &["no-such-host.invalid"]);
}

#[tokio::test]
async fn a_server_that_hangs_is_an_error_and_works_again_by_itself() {
    let etcd = Etcd::start(Version::V36).await;
    let store = etcd.open("hang").await;
    store.txn(put("k", "before")).await.unwrap();
    etcd.freeze();
    let error = why_not(&etcd.address("hang"), &Access::default()).await;
    assert!(matches!(error, StoreError::NotReached { .. }), "{error}");
    says(&error, &[&etcd.host(), "no answer"]);
    let change = timeout(SOON, store.txn(put("k", "during"))).await.unwrap();
    assert!(matches!(change, Err(StoreError::NoAnswer { .. })), "{change:?}");
    let read = timeout(SOON, store.get("k")).await.unwrap();
    assert!(matches!(read, Err(StoreError::NotReached { .. })), "{read:?}");
    etcd.thaw();
    let write = async { while store.txn(put("k", "after")).await.is_err() {} };
    timeout(SOON, write).await.unwrap();
    // What got no answer may be done late, even after what was sent and acknowledged later.
    let value = store.get("k").await.unwrap().unwrap().value;
    assert!(value == b"after" || value == b"during", "{value:?}");
}

#[tokio::test]
async fn a_fleet_goes_on_when_one_member_of_three_is_killed_or_hangs() {
    let mut members = Etcd::start_three(Version::V34).await;
    let hosts: Vec<_> = members.iter().map(Etcd::host).collect();
    let address: Address = format!("etcd://{}/three", hosts.join(",")).parse().unwrap();
    let store = open(&address, &Access::default()).await.unwrap();
    let mut follow = store.follow(KeyRange::prefix("n/"));
    assert!(matches!(follow.next().await, Seen::All { .. }));
    let mut number = 0;
    for broken in 0..3 {
        // The last one is killed, the others hang; the leader is among them.
        match broken {
            2 => members[broken].kill(),
            _ => members[broken].freeze(),
        }
        for _ in 0..5 {
            number += 1;
            timeout(SOON, until_done(&store, &format!("n/{number}"))).await.unwrap();
        }
        match broken {
            2 => members[broken].restart().await,
            _ => members[broken].thaw(),
        }
        // All three must be well before the next one breaks.
        for member in &members {
            timeout(SOON, until_done(&member.open("three").await, "well")).await.unwrap();
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    let sees_all = async {
        while seen.len() < number {
            match follow.next().await {
                Seen::All { entries, .. } => seen.extend(entries.into_iter().map(|entry| entry.key)),
                Seen::Changes { events, .. } => {
                    seen.extend(events.iter().map(|event| event.key().to_owned()))
                }
                Seen::OutOfTouch { .. } => {}
            }
        }
    };
    timeout(SOON, sees_all).await.unwrap();
}

/// Puts a key, and after "no answer" finds out by reading it back.
async fn until_done(store: &Store, key: &str) {
    loop {
        match store.txn(put(key, "")).await {
            Ok(_) => return,
            Err(StoreError::NoAnswer { .. }) if matches!(store.get(key).await, Ok(Some(_))) => {
                return;
            }
            Err(error) => assert!(error.passes(), "{error}"),
        }
    }
}

#[tokio::test]
async fn following_survives_a_restart_and_a_compaction() {
    let mut etcd = Etcd::start(Version::V34).await;
    let store = etcd.open("restart").await;
    store.txn(put("k", "0")).await.unwrap();
    let mut follow = store.follow(KeyRange::prefix(""));
    assert!(matches!(follow.next().await, Seen::All { .. }));
    etcd.restart().await;
    until_done(&store, "k").await;
    let sees =
        async { while !matches!(follow.next().await, Seen::Changes { events, .. } if !events.is_empty()) {} };
    timeout(SOON, sees).await.expect("the watch was made again");

    etcd.kill();
    let lost = async { while !matches!(follow.next().await, Seen::OutOfTouch { .. }) {} };
    timeout(SOON, lost).await.expect("it says that it is out of touch");
    etcd.restart().await;
    let last = etcd.open("restart").await.txn(put("k", "last")).await.unwrap();
    let sees_last = async {
        loop {
            let values: Vec<_> = match follow.next().await {
                Seen::All { entries, .. } => entries.into_iter().map(|entry| entry.value).collect(),
                Seen::Changes { events, .. } => events
                    .into_iter()
                    .filter_map(|event| match event {
                        Event::Put(entry) => Some(entry.value),
                        Event::Delete { .. } => None,
                    })
                    .collect(),
                Seen::OutOfTouch { .. } => continue,
            };
            if values.contains(&b"last".to_vec()) {
                return;
            }
        }
    };
    timeout(SOON, sees_last).await.expect("nothing was missed");

    store.txn(put("k", "even later")).await.unwrap();
    store.compact(last.revision.next()).await.unwrap();
    let mut watch = store.watch(KeyRange::prefix(""), last.revision).await.unwrap();
    let compacted = timeout(SOON, watch.next()).await.unwrap();
    assert_eq!(compacted, Err(StoreError::Compacted(last.revision.next())));
}

#[tokio::test]
async fn a_watch_of_an_idle_etcd_gives_signs_of_life() {
    for version in [Version::V34, Version::V36] {
        let etcd = Etcd::start(version).await;
        let store = etcd.open("idle").await;
        let list = store.list(KeyRange::prefix("")).await.unwrap();
        let mut watch = store.watch(KeyRange::prefix(""), list.revision.next()).await.unwrap();
        // A watch without them would end in an error instead.
        let sign = timeout(SOON, watch.next()).await.unwrap().unwrap();
        assert_eq!((sign.events, sign.revision), (Vec::new(), list.revision));
        store.txn(put("k", "v")).await.unwrap();
        assert_eq!(timeout(SOON, watch.next()).await.unwrap().unwrap().events.len(), 1);
    }
}

#[tokio::test]
async fn a_replay_of_many_megabytes_comes_through() {
    for version in [Version::V34, Version::V36] {
        let etcd = Etcd::start(version).await;
        let store = etcd.open("large").await;
        let first = store.txn(put("start", "")).await.unwrap().revision;
        let large = "x".repeat(400_000);
        for n in 0..20 {
            // Two in one transaction: their events must come together.
            let both = [Op::put(format!("a/{n}"), large.as_str()), Op::put(format!("b/{n}"), large.as_str())];
            store.txn(Txn::new().then(both)).await.unwrap();
        }
        let mut watch = store.watch(KeyRange::prefix(""), first.next()).await.unwrap();
        let mut keys = Vec::new();
        let replay = async {
            while keys.len() < 40 {
                let events = watch.next().await.unwrap().events;
                assert_eq!(events.len() % 2, 0);
                keys.extend(events.iter().map(|event| event.key().to_owned()));
            }
        };
        timeout(SOON, replay).await.unwrap();
        assert_eq!((keys[0].as_str(), keys[39].as_str()), ("a/0", "b/19"));
        assert_eq!(store.list(KeyRange::prefix("")).await.unwrap().entries.len(), 41);
    }
}

#[tokio::test]
async fn a_full_etcd_says_so_and_still_deletes() {
    let etcd = Etcd::start_with(Version::V34, &["--quota-backend-bytes", "16777216"]).await;
    let store = etcd.open("full").await;
    let large = "x".repeat(1_000_000);
    let fill = async {
        let mut n = 0;
        loop {
            n += 1;
            match store.txn(put(&format!("large/{n}"), &large)).await {
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    };
    let error = timeout(SOON, fill).await.unwrap();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    store.txn(Txn::new().then([Op::delete(KeyRange::prefix("large/"))])).await.unwrap();
    assert!(!store.status().await.unwrap().complaints.is_empty());
    let lease = store.grant(Duration::from_secs(5)).await;
    assert!(matches!(lease, Err(StoreError::Full { .. })), "{lease:?}");
}

#[tokio::test]
async fn a_transaction_that_is_too_large_is_refused_before_it_is_sent() {
    let etcd = Etcd::start(Version::V36).await;
    let store = etcd.open("size").await;
    let most = "x".repeat(MOST_BYTES - 1);
    store.txn(put("k", &most)).await.unwrap();
    let error = store.txn(put("key", &most)).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
}

/// An etcd with root, and with a user who may do everything under one prefix.
async fn start_with_users(version: Version) -> Etcd {
    let etcd = Etcd::start_with(version, &["--auth-token-ttl", "3"]).await;
    etcd.ctl(&["user", "add", "root:root"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["role", "add", "cron"]);
    etcd.ctl(&["role", "grant-permission", "cron", "--prefix=true", "readwrite", "/mine/"]);
    etcd.ctl(&["user", "add", "ann:secret"]);
    etcd.ctl(&["user", "grant-role", "ann", "cron"]);
    etcd.ctl(&["auth", "enable"]);
    etcd
}

fn ann(password: &str) -> Access {
    Access { user: Some("ann".into()), password: Some(password.into()), ..Access::default() }
}

#[tokio::test]
async fn a_login_that_is_refused_says_why() {
    let etcd = start_with_users(Version::V34).await;
    let mine = etcd.address("mine");
    let error = why_not(&mine, &ann("wrong")).await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    says(&error, &[&etcd.host(), "wrong user or password"]);
    assert!(!error.to_string().contains("secret"));
    let error = why_not(&mine, &Access::default()).await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    says(&error, &["asks for a user"]);
    let error = why_not(&etcd.address("theirs"), &ann("secret")).await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    says(&error, &["may not"]);
    let half = Access { password: None, ..ann("secret") };
    says(&why_not(&mine, &half).await, &["only one of user and password"]);

    let without_users = Etcd::start(Version::V36).await;
    let error = why_not(&without_users.address("mine"), &ann("secret")).await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    says(&error, &["has no users"]);
}

#[tokio::test]
async fn a_login_is_renewed_when_its_token_lapses() {
    for version in [Version::V34, Version::V36] {
        let mut etcd = start_with_users(version).await;
        let store = open(&etcd.address("mine"), &ann("secret")).await.unwrap();
        let first = store.txn(put("k", "1")).await.unwrap().revision;
        let lease = store.grant(Duration::from_secs(60)).await.unwrap();
        // The one thing that is waited for by the clock: the token's own life of 3 s, looked at once a second.
        tokio::time::sleep(Duration::from_secs(5)).await;
        // A watch with a token that has run out is not refused, it is cancelled in an ordinary message.
        let mut watch = store.watch(KeyRange::prefix(""), first).await.unwrap();
        assert_eq!(timeout(SOON, watch.next()).await.unwrap().unwrap().events.len(), 1);
        tokio::time::sleep(Duration::from_secs(5)).await;
        store.txn(put("k", "2")).await.unwrap();
        store.renew(lease.id).await.unwrap();
        // Others change users and roles: the revision of all logins changes.
        etcd.ctl(&["--user=root:root", "user", "add", "bob:bob"]);
        store.txn(put("k", "3")).await.unwrap();
        store.watch(KeyRange::prefix(""), first).await.unwrap();
        // The server has forgotten all tokens.
        etcd.kill();
        etcd.restart().await;
        until_done(&store, "k").await;
        // Somebody changes the password under us.
        etcd.ctl(&["--user=root:root", "role", "revoke-permission", "cron", "--prefix=true", "/mine/"]);
        let error = store.get("k").await.unwrap_err();
        assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    }
}

#[tokio::test]
async fn tls_works_with_the_right_certificates_and_says_what_is_wrong_with_others() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make_certificates(folder);
    let mut etcd = Etcd::start_tls(Version::V36, folder);
    let address = etcd.address("tls");
    let right = Access {
        ca_file: Some(folder.join("ca.pem")),
        cert_file: Some(folder.join("client.pem")),
        key_file: Some(folder.join("client.key")),
        ..Access::default()
    };
    let store = async {
        loop {
            match open(&address, &right).await {
                Ok(store) => return store,
                Err(error) => assert!(error.passes(), "{error}"),
            }
        }
    };
    let store = timeout(SOON, store).await.unwrap();
    store.txn(put("k", "v")).await.unwrap();
    assert!(store.get("k").await.unwrap().is_some());

    let strange_ca = Access { ca_file: Some(folder.join("other-ca.pem")), ..right.clone() };
    let error = why_not(&address, &strange_ca).await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    says(&error, &["certificate"]);
    let no_certificate = Access { cert_file: None, key_file: None, ..right.clone() };
    let error = why_not(&address, &no_certificate).await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error}");
    says(&error, &["certificate"]);
    says(&why_not(&address, &Access::default()).await, &["needs ca_file"]);
    let gone = Access { ca_file: Some(folder.join("nowhere.pem")), ..right.clone() };
    says(&why_not(&address, &gone).await, &["cannot read", "nowhere.pem"]);
    let without_tls = Etcd::start(Version::V34).await;
    let address = format!("etcds://{}", without_tls.host()).parse().unwrap();
    let error = why_not(&address, &right).await;
    assert!(matches!(error, StoreError::NotReached { .. }), "{error}");
    says(&error, &["does it speak TLS?"]);
    let plain: Address = format!("etcd://{}/tls", etcd.host()).parse().unwrap();
    let error = why_not(&plain, &Access::default()).await;
    assert!(matches!(error, StoreError::NotReached { .. }), "{error}");
    says(&error, &["cannot be reached"]);
    says(&why_not(&plain, &right).await, &["etcds://"]);
    etcd.kill();
}
