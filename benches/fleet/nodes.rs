//! Real nodes on a real etcd, each a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fleetcron::child::session_members;
use fleetcron::clock::Clock;
use fleetcron::fire::{Fire, FireId};
use fleetcron::guard::RunFolder;
use fleetcron::job::SourceName;
use fleetcron::record::Record;
use fleetcron::schedule::Timestamp;
use fleetcron::store::values::{self, Request};
use fleetcron::store::{Op, Store, Txn, keys};
use fleetcron::sync::{self, Wanted};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use ulid::Ulid;

use crate::etcd::{Etcd, Version};

/// Long runs of what takes long.
pub fn long() -> bool {
    std::env::var("FLEETCRON_BENCH_LONG").is_ok_and(|value| value == "1")
}

/// An etcd, and the nodes that are on it.
pub struct Fleet {
    pub etcd: Etcd,
    pub store: Store,
    pub nodes: Vec<Node>,
    folder: TempDir,
    prefix: String,
}

impl Fleet {
    pub async fn start(nodes: usize, slots: usize) -> Fleet {
        let etcd = Etcd::start(Version::V36).await;
        let store = etcd.open("/bench").await;
        let mut fleet = Fleet {
            etcd,
            store,
            nodes: Vec::new(),
            folder: tempfile::tempdir().expect("a folder"),
            prefix: "bench".to_owned(),
        };
        fleet.grow(nodes, slots).await;
        fleet
    }

    /// Starts more nodes, until there are so many, and waits until all are registered.
    pub async fn grow(&mut self, nodes: usize, slots: usize) {
        for number in self.nodes.len()..nodes {
            let node = Node::start(&self.address(), self.folder.path(), number, slots);
            self.nodes.push(node);
            // All at once would only fight for the cores.
            if number % 4 == 3 {
                self.wait_until_registered(number + 1).await;
            }
        }
        self.wait_until_registered(nodes).await;
    }

    pub async fn wait_until_registered(&self, nodes: usize) {
        while self.store.list(keys::nodes()).await.expect("nodes").entries.len() < nodes {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub fn address(&self) -> String {
        format!("etcd://{}/{}", self.etcd.host(), self.prefix)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes the store's jobs equal to these.
    pub async fn sync(&self, text: &str) {
        let wanted =
            Wanted { source: SourceName::default(), jobs: crate::jobs(text), limits: Default::default() };
        let outlook = sync::look(&self.store, &wanted).await.expect("a look");
        sync::apply(&self.store, &wanted, outlook, "bench", Clock::system().now()).await.expect("a sync");
    }

    /// Asks for a run, as `fleetcron start` does.
    pub async fn ask(&self, job: &str) -> Fire {
        let fire = Fire::new(job.parse().expect("a name"), FireId::Manual(Ulid::generate()));
        let request = values::encode(&Request::new("bench".to_owned(), Clock::system().now()));
        self.store
            .txn(Txn::new().then([Op::put(keys::request(&fire), request)]))
            .await
            .expect("etcd answers");
        fire
    }

    /// All records of scheduled fires that were due in this span.
    pub async fn records(&self, from: Timestamp, to: Timestamp) -> Vec<Record> {
        let entries = self.store.list(keys::records()).await.expect("records").entries;
        let read = |entry: &fleetcron::store::Entry| {
            let fire = keys::fire_of(&entry.key)?;
            values::decode_record(fire, &entry.key, &entry.value).ok()
        };
        let due = |record: &Record| {
            let at = record.fire.scheduled_at();
            matches!(record.fire.id, FireId::Scheduled(_)) && at >= from && at < to
        };
        entries.iter().filter_map(read).filter(due).collect()
    }

    /// Forgets all records, so that the next figure does not pay for them.
    pub async fn forget_records(&self) {
        for entries in self.store.list(keys::records()).await.expect("records").entries.chunks(128) {
            let deletes = entries.iter().map(|entry| Op::delete(entry.key.as_str()));
            self.store.txn(Txn::new().then(deletes)).await.expect("etcd answers");
        }
    }

    /// The figure of one counter of etcd's, summed over its labels that have this in them.
    pub fn counter(&self, name: &str, label: &str) -> f64 {
        let text = self.metrics();
        let lines = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
        lines
            .filter(|line| line.contains(label))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }

    fn metrics(&self) -> String {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(self.etcd.host()).expect("etcd listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        text
    }
}

/// How late a run started, in seconds.
pub fn lateness(record: &Record) -> Option<f64> {
    let started = record.run.as_ref()?.started_at?;
    Some((started - record.fire.scheduled_at()).as_seconds_f64())
}

pub async fn sleep_until(at: Timestamp) {
    let left = at - Clock::system().now();
    tokio::time::sleep(left.to_std().unwrap_or_default()).await;
}

/// A daemon on etcd. Dropped, it is ended with all it started.
pub struct Node {
    pub name: String,
    state: PathBuf,
    address: String,
    slots: usize,
    child: Child,
}

impl Node {
    fn start(address: &str, folder: &Path, number: usize, slots: usize) -> Node {
        let name = format!("n{number}");
        let state = folder.join(format!("state-{name}"));
        let child = spawn(address, &name, &state, slots);
        Node { name, state, address: address.to_owned(), slots, child }
    }

    /// Kills all that runs of it, as when its machine is gone.
    pub fn kill_host(&mut self) {
        let folders = RunFolder::list(&self.state.join("runs")).unwrap_or_default();
        let started = folders.iter().filter_map(|(_, folder)| folder.read_started().ok()?);
        let guards: Vec<i32> = started.map(|started| started.guard.pid).collect();
        let _ = self.child.kill();
        for guard in guards {
            let members = session_members(guard).unwrap_or_default();
            for pid in members.into_iter().chain([Pid::from_raw(guard)]) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
        let _ = self.child.wait();
    }

    pub fn start_again(&mut self) {
        self.child = spawn(&self.address, &self.name, &self.state, self.slots);
    }

    pub fn resident_mb(&self) -> f64 {
        crate::mb_of(&crate::proc(&self.child, "status"), "VmRSS:")
    }

    /// Seconds of CPU time so far.
    pub fn cpu(&self) -> f64 {
        crate::cpu(&self.child)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill_host();
    }
}

fn spawn(address: &str, name: &str, state: &Path, slots: usize) -> Child {
    Command::new(env!("CARGO_BIN_EXE_fleetcron"))
        .args(["run", "--store", address, "--node", name, "--slots", &slots.to_string(), "--state"])
        .arg(state)
        .env("FLEETCRON_LOG", "error")
        .stdin(Stdio::null())
        .spawn()
        .expect("a daemon")
}
