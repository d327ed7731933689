//! Definitions: how a change of job files reaches a fleet, what cannot be read, and very many of them.

use std::os::unix::fs::symlink;

use fleetcron::store::values::SourceState;
use fleetcron::store::{Event, Revision};

use super::*;

/// The revisions at which each definition was last written, with what it says.
async fn definitions(fleet: &Fleet) -> BTreeMap<String, (i64, String)> {
    let entries = fleet.list(keys::jobs()).await.entries;
    let read = |entry: &fleetcron::store::Entry| {
        let definition = Definition::decode(&entry.key, &entry.value).unwrap();
        (
            definition.job.name.to_string(),
            (entry.mod_revision.0, definition.job.description.unwrap_or_default()),
        )
    };
    entries.iter().map(read).collect()
}

/// Every write of a definition since a revision: the job and its description.
async fn writes_since(fleet: &Fleet, from: Revision) -> Vec<(String, String)> {
    let until = fleet.store.list(keys::jobs()).await.unwrap().revision;
    let mut watch = fleet.store.watch(keys::jobs(), from.next()).await.unwrap();
    // A mark behind all that is asked about, so that the watch has an end.
    let mark = "jobs/zzz-mark";
    fleet.store.txn(Txn::new().then([Op::put(mark, "")])).await.unwrap();
    let mut writes = Vec::new();
    loop {
        for event in watch.next().await.unwrap().events {
            if event.key() == mark {
                fleet.store.txn(Txn::new().then([Op::delete(mark)])).await.unwrap();
                return writes;
            }
            let Event::Put(entry) = event else { continue };
            assert!(entry.mod_revision <= until);
            if let Ok(definition) = Definition::decode(&entry.key, &entry.value) {
                writes
                    .push((definition.job.name.to_string(), definition.job.description.unwrap_or_default()));
            }
        }
    }
}

/// Twelve jobs, all of which differ from one version to the next.
fn version(number: u32) -> String {
    (0..12)
        .map(|job| {
            format!(
                "[jobs.job-{job}]\nschedule = '0 0 1 1 *'\ncommand = 'true'\ndescription = 'version {number}'\n"
            )
        })
        .collect()
}

#[tokio::test]
async fn a_floor_that_is_missing_is_told_and_made_anew_and_holds_up_no_other() {
    let fleet = Fleet::on_sqlite().await;
    let jobs =
        ["spoilt", "well"].map(|job| format!("[jobs.{job}]\nschedule = '@every 1s'\ncommand = 'true'\n"));
    fleet.sync(&jobs.concat()).await;
    fleet.store.txn(Txn::new().then([Op::delete(keys::floors_of(&name("spoilt")))])).await.unwrap();
    let mut node = fleet.node("a").ready().await;
    node.wait_until_it_says(&fleet, "its floor is missing from the store, it is made anew").await;
    fleet.wait_for_records("well", 3).await;
    fleet.wait_for_records("spoilt", 3).await;
    assert!(!node.says("fenced"), "{}", node.log());
    node.stop(&fleet).await;
}

/// Puts a file in place as deployment tools do.
fn put_by_rename(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// Puts files in place as Kubernetes does: `jobs.toml` links to `..data/jobs.toml`, and `..data` to a folder that is
/// swapped for another.
fn put_by_link_swap(folder: &Path, number: u32) {
    let data = folder.join(format!("..version-{number}"));
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("jobs.toml"), version(number)).unwrap();
    let new = folder.join("..data_tmp");
    symlink(data.file_name().unwrap(), &new).unwrap();
    fs::rename(new, folder.join("..data")).unwrap();
    if !folder.join("jobs.toml").exists() {
        symlink("..data/jobs.toml", folder.join("jobs.toml")).unwrap();
    }
}

async fn wait_for_version(fleet: &Fleet, number: u32) {
    let wanted = format!("version {number}");
    fleet
        .wait_until(&format!("version {number} to be in the store"), async || {
            let state = fleet.store.get("sources/default").await.unwrap();
            let complete = state.is_some_and(|entry| {
                values::decode::<SourceState>(&entry.key, &entry.value).unwrap().complete
            });
            let there = definitions(fleet).await;
            complete && there.len() == 12 && there.values().all(|(_, description)| *description == wanted)
        })
        .await;
}

/// The digests that a node shows of its files, and the one in the store.
async fn digests(fleet: &Fleet, node: &str) -> (Option<String>, String) {
    let shown = fleet.presence(node).await.and_then(|presence| presence.files.get("default").cloned());
    let entry = fleet.store.get("sources/default").await.unwrap().unwrap();
    (shown, values::decode::<SourceState>(&entry.key, &entry.value).unwrap().digest)
}

async fn wait_for_drift(fleet: &Fleet, node: &Node) {
    fleet
        .wait_until(&format!("{} to show drift", node.name), async || {
            let (shown, store) = digests(fleet, &node.name).await;
            shown.is_some_and(|shown| shown != store)
        })
        .await;
    node.wait_until_it_says(fleet, "drift: the job files here").await;
    assert_eq!(node.log().matches("drift: the job files here").count(), 1, "it is said once");
}

async fn wait_for_agreement(fleet: &Fleet, node: &Node) {
    fleet
        .wait_until(&format!("{} to show the store's digest", node.name), async || {
            let (shown, store) = digests(fleet, &node.name).await;
            shown.is_some_and(|shown| shown == store)
        })
        .await;
}

#[tokio::test]
async fn a_rolling_deploy_changes_each_definition_once_and_nothing_reverts() {
    for etcd in [Version::V34, Version::V36] {
        let fleet = Fleet::on_etcd(etcd).await;
        let files = ["a", "b", "c", "d"].map(|node| fleet.path(&format!("jobs-{node}.toml")));
        for file in &files {
            fs::write(file, version(1)).unwrap();
        }
        let start = |number: usize, name: &str| fleet.node(name).jobs(&files[number]).start();
        let mut a = start(0, "a");
        a.wait_until_ready(&fleet).await;
        wait_for_version(&fleet, 1).await;
        let (mut b, c, mut d) = (start(1, "b"), start(2, "c"), start(3, "d"));
        for node in [&b, &c, &d] {
            wait_for_agreement(&fleet, node).await;
        }
        let from = fleet.store.list(keys::jobs()).await.unwrap().revision;
        // d is down for the next two versions.
        d.stop(&fleet).await;

        put_by_rename(&files[0], &version(2));
        wait_for_version(&fleet, 2).await;
        // b lags, and is restarted in between: it has only version 1.
        b.stop(&fleet).await;
        let mut b = start(1, "b");
        wait_for_drift(&fleet, &b).await;
        put_by_rename(&files[2], &version(2));
        wait_for_agreement(&fleet, &c).await;

        // The third version comes to a and c, while b steps through the second.
        put_by_rename(&files[2], &version(3));
        wait_for_version(&fleet, 3).await;
        put_by_rename(&files[1], &version(2));
        b.wait_until_it_says(&fleet, "drift").await;
        put_by_rename(&files[0], &version(3));
        wait_for_agreement(&fleet, &a).await;
        // And d comes back with the first.
        let d = start(3, "d");
        wait_for_drift(&fleet, &d).await;
        put_by_rename(&files[1], &version(3));
        wait_for_agreement(&fleet, &b).await;
        put_by_rename(&files[3], &version(2));
        put_by_rename(&files[3], &version(3));
        wait_for_agreement(&fleet, &d).await;

        for node in [&mut a, &mut b] {
            node.stop(&fleet).await;
        }
        let writes = writes_since(&fleet, from).await;
        let mut times = BTreeMap::new();
        for write in &writes {
            *times.entry(write.clone()).or_insert(0) += 1;
        }
        assert_eq!(writes.len(), 24, "twelve definitions, two new versions: {writes:?}");
        assert!(times.values().all(|times| *times == 1), "{times:?}");
        let of =
            |number: u32| writes.iter().filter(move |(_, is)| *is == format!("version {number}")).count();
        assert_eq!((of(2), of(3)), (12, 12));
        println!("{etcd:?}: {} writes of 12 definitions over two new versions", writes.len());
    }
}

#[tokio::test]
async fn a_change_by_link_swap_is_noticed() {
    let fleet = Fleet::on_sqlite().await;
    let folder = fleet.path("config");
    put_by_link_swap(&folder, 1);
    let mut node = fleet.node("a").jobs(&folder).ready().await;
    wait_for_version(&fleet, 1).await;
    for number in 2..=4 {
        put_by_link_swap(&folder, number);
        wait_for_version(&fleet, number).await;
    }
    node.stop(&fleet).await;
}

#[tokio::test]
async fn of_a_folder_only_toml_counts_and_each_other_file_is_named_once() {
    let fleet = Fleet::on_sqlite().await;
    let folder = fleet.path("jobs.d");
    fs::create_dir(&folder).unwrap();
    let job = |name: &str| format!("[jobs.{name}]\nschedule = '0 0 1 1 *'\ncommand = 'true'\n");
    for (file, name) in [
        ("one.toml", "one"),
        ("with.dots.in.name.toml", "dots"),
        (".hidden.toml", "hidden"),
        ("one.toml~", "backup"),
        ("one.toml.dpkg-old", "old"),
        ("#one.toml#", "auto-save"),
    ] {
        fs::write(folder.join(file), job(name)).unwrap();
    }
    let mut node = fleet.node("a").jobs(&folder).ready().await;
    node.wait_until_it_says(&fleet, "in the store now").await;
    let there: Vec<String> = definitions(&fleet).await.into_keys().collect();
    assert_eq!(there, ["dots", "one"]);
    node.stop(&fleet).await;
    let log = node.log();
    for file in [".hidden.toml", "one.toml~", "one.toml.dpkg-old", "#one.toml#"] {
        let path = format!("/{file} is ignored");
        assert_eq!(log.matches(&path).count(), 1, "{file}: {log}");
    }
}

#[tokio::test]
async fn an_edit_swaps_the_timer_and_a_removal_lets_the_run_under_way_end() {
    for fleet in [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V36).await] {
        let job = |schedule: &str, fields: &str, more: &str| {
            let command = quoted(&fleet.marking(more));
            format!("[jobs.j]\nschedule = '{schedule}'\ncommand = {command}\n{fields}\n")
        };
        let mut nodes = vec![fleet.node("a").ready().await, fleet.node("b").ready().await];
        fleet.sync(&job("@every 1s", "", "true")).await;
        fleet.wait_for_records("j", 2).await;
        // Edited ten times: one timer, not eleven.
        for number in 0..10 {
            fleet.sync(&job("@every 2s", &format!("description = '{number}'"), "true")).await;
        }
        let edited = chrono::Utc::now();
        let there = fleet.records_of("j").await.len();
        let records = fleet.wait_for_records("j", there + 3).await;
        let late = |record: &&Record| record.fire.scheduled_at() > edited;
        for record in records.iter().filter(late) {
            assert_eq!(record.fire.scheduled_at().timestamp() % 2, 0, "a fire of the former schedule");
        }
        // Disabled, and enabled again: nothing fires in between.
        fleet.sync(&job("@every 1s", "enabled = false", "true")).await;
        let disabled = chrono::Utc::now();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let none =
            fleet.records_of("j").await.into_iter().filter(|r| r.fire.scheduled_at() > disabled).count();
        assert_eq!(none, 0, "{}", fleet.logs());
        // Removed while it runs: that run has its record.
        fleet.sync(&job("0 0 1 1 *", "", "sleep 2; exit 3")).await;
        let fire = fleet.ask("j").await;
        let id = fire.id.to_string();
        let begun = async || fleet.marks().iter().any(|(_, fire, _)| *fire == id);
        fleet.wait_until("the command to begin", begun).await;
        fleet.sync("[source]\nname = 'default'\n[jobs]\n").await;
        let record = fleet.wait_for_record(&fire).await;
        assert_eq!((record.outcome, record.run.unwrap().exit_code), (Outcome::Failed, Some(3)));
        for node in &mut nodes {
            node.stop(&fleet).await;
        }
        fleet.check_books(Gaps::Allowed).await;
    }
}

#[tokio::test]
async fn a_definition_that_cannot_be_read_or_never_fires_stops_no_other() {
    for fleet in [Fleet::on_sqlite().await, Fleet::on_etcd(Version::V34).await] {
        let command = quoted(&fleet.marking("true"));
        fleet.sync(&format!("[jobs.good]\nschedule = '@every 1s'\ncommand = {command}\n")).await;
        let good = fleet.store.get("jobs/good").await.unwrap().unwrap().value;
        let good = String::from_utf8(good).unwrap();
        let mut node = fleet.node("a").ready().await;
        let bad = [
            ("jobs/impossible", good.replace("@every 1s", "0 0 30 2 *")),
            ("jobs/april", good.replace("@every 1s", "0 0 31 4,6,9,11 *")),
            ("jobs/nonsense", "{".to_owned()),
            ("jobs/empty", String::new()),
            ("jobs/later-version", good.replacen("\"v\":1", "\"v\":99", 1)),
            ("jobs/bad-zone", good.replace("UTC", "Mars/Olympus")),
            ("jobs/BAD NAME", good.clone()),
            ("jobs/deep/er", good.clone()),
        ];
        for (key, value) in &bad {
            fleet.store.txn(Txn::new().then([Op::put(*key, value.as_str())])).await.unwrap();
        }
        for (key, _) in &bad[..2] {
            node.wait_until_it_says(&fleet, &format!("this schedule never fires job={}", &key[5..])).await;
        }
        for (key, _) in &bad[2..] {
            node.wait_until_it_says(&fleet, &format!("the others go on error={key} cannot be read")).await;
        }
        let there = fleet.records_of("good").await.len();
        fleet.wait_for_records("good", there + 2).await;
        // The same at the start.
        node.stop(&fleet).await;
        let mut node = fleet.node("a").ready().await;
        let there = fleet.records_of("good").await.len();
        fleet.wait_for_records("good", there + 2).await;
        node.stop(&fleet).await;
        let fired: BTreeSet<String> = fleet.records().await.iter().map(|r| r.fire.job.to_string()).collect();
        assert_eq!(fired, ["good".to_owned()].into(), "nothing else fired");
    }
}

/// How many jobs of about 1 KB: together more than one message of etcd may hold.
const MANY: usize = 6000;

#[tokio::test]
async fn six_thousand_jobs_and_bursts_of_changes_reach_every_node() {
    let fleet = Fleet::on_etcd(Version::V34).await;
    let command = quoted(&fleet.marking("true"));
    fleet
        .sync(&format!("[jobs.good]\nschedule = '0 0 1 1 *'\ncommand = {command}\ndescription = 'first'\n"))
        .await;
    let good = String::from_utf8(fleet.store.get("jobs/good").await.unwrap().unwrap().value).unwrap();
    let padding = "x".repeat(1000 - good.len().min(500));
    let value = |words: &str| good.replace("\"first\"", &format!("\"{words} {padding}\""));
    put_all(&fleet, &value("one")).await;
    let mut node = fleet.node("a").start();
    node.wait_until_ready(&fleet).await;
    node.wait_until_it_says(&fleet, &format!("jobs={}", MANY + 1)).await;
    // One edit is seen.
    let edit = Txn::new().then([Op::put("jobs/job-0042", value("edited"))]);
    let revision = fleet.store.txn(edit).await.unwrap().revision;
    node.wait_until_it_says(&fleet, &format!("job defined job=job-0042 definition={revision}")).await;
    // A burst of changes, and each is seen.
    put_all(&fleet, &value("two")).await;
    let last: BTreeMap<String, i64> = fleet
        .list(keys::jobs())
        .await
        .entries
        .iter()
        .map(|e| (e.key[5..].to_owned(), e.mod_revision.0))
        .collect();
    fleet
        .wait_until("every change of the burst to be seen", async || {
            let log = node.log();
            let seen: BTreeSet<&str> =
                log.lines().filter_map(|line| line.split("job defined ").nth(1)).map(str::trim).collect();
            last.iter().all(|(job, at)| seen.contains(format!("job={job} definition={at}").as_str()))
        })
        .await;
    // And it works: the one that is asked for runs.
    let fire = fleet.ask("good").await;
    assert_eq!(fleet.wait_for_record(&fire).await.outcome, Outcome::Succeeded);
    node.stop(&fleet).await;
    println!(
        "{MANY} jobs of {} bytes: known at the start, one edit and a burst of {MANY} seen",
        value("one").len()
    );
}

async fn put_all(fleet: &Fleet, value: &str) {
    let keys: Vec<String> = (0..MANY).map(|number| format!("jobs/job-{number:04}")).collect();
    for some in keys.chunks(100) {
        let puts = some.iter().map(|key| Op::put(key.as_str(), value));
        fleet.store.txn(Txn::new().then(puts)).await.unwrap();
    }
}
