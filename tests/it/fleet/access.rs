//! An etcd that asks who one is: users whose logins lapse, and certificates.

use std::os::unix::fs::OpenOptionsExt;

use super::*;
use crate::etcd::{SOON, make_certificates};

/// Edits a job and waits until a fire of the edited one has run.
async fn check_edit_and_fire(fleet: &Fleet, words: &str) {
    let command = quoted(&fleet.marking(&format!("echo {words}")));
    fleet.sync(&format!("[jobs.j]\nschedule = '@every 1s'\ncommand = {command}\n")).await;
    let edited = chrono::Utc::now();
    fleet
        .wait_until(&format!("a fire after the edit to {words:?}"), async || {
            fleet
                .records_of("j")
                .await
                .iter()
                .any(|record| record.outcome == Outcome::Succeeded && record.fire.scheduled_at() > edited)
        })
        .await;
    // And then it is quiet again.
    fleet.sync("[jobs.j]\nschedule = '0 0 1 1 *'\ncommand = 'true'\n").await;
}

#[tokio::test]
async fn a_login_that_lapses_or_grows_old_is_made_again() {
    for version in [Version::V34, Version::V36] {
        let etcd = Etcd::start_with(version, &["--auth-token-ttl", "5"]).await;
        for line in [
            "user add root:root",
            "user grant-role root root",
            "role add cron",
            "role grant-permission cron --prefix=true readwrite /fleet/",
            "user add cron:secret",
            "user grant-role cron cron",
            "auth enable",
        ] {
            etcd.ctl(&line.split(' ').collect::<Vec<_>>());
        }
        let passwords = tempfile::tempdir().unwrap();
        let file = passwords.path().join("password");
        let mut secret = File::options().write(true).create_new(true).mode(0o600).open(&file).unwrap();
        std::io::Write::write_all(&mut secret, b"secret\n").unwrap();
        let access =
            Access { user: Some("cron".into()), password: Some("secret".into()), ..Access::default() };
        let settings = format!("user = 'cron'\npassword_file = '{}'", file.display());
        let fleet = Fleet::on_guarded(etcd, access, &settings).await;
        let mut nodes = [fleet.node("a").ready().await, fleet.node("b").ready().await];
        check_edit_and_fire(&fleet, "first").await;
        // Idle for longer than a login lasts: that is the condition here.
        tokio::time::sleep(seconds(12, 60)).await;
        check_edit_and_fire(&fleet, "second").await;
        for change in ["user add x:x", "user delete x", "role add other"] {
            let etcd = fleet.etcd.as_ref().unwrap();
            etcd.ctl(&[vec!["--user", "root:root"], change.split(' ').collect()].concat());
            check_edit_and_fire(&fleet, "third").await;
        }
        for node in &mut nodes {
            assert!(node.status().is_none());
            node.stop(&fleet).await;
        }
        let books = fleet.check_books(Gaps::Allowed).await;
        println!("{version:?} with users, idle past the login: {books}");
    }
}

#[tokio::test]
async fn a_fire_runs_over_tls_with_a_client_certificate() {
    for version in [Version::V34, Version::V36] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        make_certificates(folder);
        let etcd = Etcd::start_tls(version, folder);
        let access = Access {
            ca_file: Some(folder.join("ca.pem")),
            cert_file: Some(folder.join("client.pem")),
            key_file: Some(folder.join("client.key")),
            ..Access::default()
        };
        let until = Instant::now() + SOON;
        while let Err(error) = Store::open(&etcd.address("fleet"), &access).await {
            assert!(Instant::now() < until, "{error}");
        }
        let path = |name: &str| folder.join(name).display().to_string();
        let settings = format!(
            "ca_file = '{}'\ncert_file = '{}'\nkey_file = '{}'",
            path("ca.pem"),
            path("client.pem"),
            path("client.key")
        );
        let fleet = Fleet::on_guarded(etcd, access, &settings).await;
        let mut node = fleet.node("a").ready().await;
        check_edit_and_fire(&fleet, "hello").await;
        node.stop(&fleet).await;
        fleet.check_books(Gaps::Allowed).await;
    }
}
