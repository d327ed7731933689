//! The command line, as a person or a script meets it: the real program, against SQLite stores in folders of their own.
//!
//! What would come of a daemon is put into the store by hand, so these tests need none and wait for nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fleetcron::clock::TEST_CLOCK;
use fleetcron::fire::Fire;
use fleetcron::job::Promise;
use fleetcron::node::{NodeName, NodeStart};
use fleetcron::record::{Outcome, Record, RunFacts, Writer};
use fleetcron::schedule::Timestamp;
use fleetcron::store::values::{self, Facts, Lock, LockPolicy, Presence, Status};
use fleetcron::store::{Access, Address, Op, Store, Txn, keys};

mod acting;
mod acts;
mod audit;
mod doctor;
mod looking;
mod pipes;
mod schedules;
mod settings;
mod terminal;
mod warnings;

/// A folder with a store, and the program to be run on it.
struct Desk {
    folder: tempfile::TempDir,
}

/// What a command said and how it ended.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("fleetcron.toml"), "").unwrap();
        Desk { folder }
    }

    /// A desk whose store has the jobs of this file.
    #[track_caller]
    fn with_jobs(text: &str) -> Desk {
        let desk = Desk::new();
        desk.write("jobs.toml", text);
        desk.run(&["sync", "jobs.toml"]).ended_with(0);
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The program with nothing of the surroundings of the test.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleetcron"));
        command
            .args(args)
            .env_clear()
            .env("FLEETCRON_CONFIG", self.path("fleetcron.toml"))
            .env("FLEETCRON_STORE", format!("sqlite:{}", self.path("store/fleetcron.db").display()))
            .env("FLEETCRON_STATE", self.path("state"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        Said::of(self.command(args).output().unwrap())
    }

    /// The same with the clock standing still at an instant.
    #[track_caller]
    fn run_at(&self, now: &str, args: &[&str]) -> Said {
        let mut command = self.command(args);
        let said = Said::of(command.env(TEST_CLOCK, format!("{now}*0")).output().unwrap());
        // That the clock is set is said first.
        let err = said.err.split_once('\n').map_or("", |(_, rest)| rest).to_owned();
        Said { err, ..said }
    }

    /// Each line of the answer as JSON.
    #[track_caller]
    fn json(&self, args: &[&str]) -> Vec<serde_json::Value> {
        let said = self.run(&[args, &["--output", "json"]].concat()).ended_with(0);
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Does something with the store itself.
    fn in_store<T>(&self, deed: impl AsyncFnOnce(Store) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let address = Address::Sqlite(self.path("store/fleetcron.db"));
            let access = Access { create: true, ..Access::default() };
            deed(Store::open(&address, &access).await.unwrap()).await
        })
    }

    /// Puts keys as a daemon would.
    fn put(&self, entries: impl IntoIterator<Item = (String, Vec<u8>)>) {
        let ops: Vec<_> = entries.into_iter().map(|(key, value)| Op::put(key, value)).collect();
        self.in_store(async |store| {
            for ops in ops.chunks(100) {
                assert!(store.txn(Txn::new().then(ops.to_vec())).await.unwrap().succeeded);
            }
        });
    }

    fn put_record(&self, record: &Record) {
        let status = values::encode(&Status::after(None, record));
        self.put([
            (keys::record(&record.fire), values::encode_record(record)),
            (keys::status(&record.fire.job, &record.fire.lane), status),
        ]);
    }
}

impl Said {
    fn of(output: Output) -> Said {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    #[track_caller]
    fn ended_with(self, code: i32) -> Said {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// One line on stderr, with this in it, and nothing on stdout.
    #[track_caller]
    fn refused_with(self, code: i32, part: &str) {
        let said = self.ended_with(code);
        assert!(said.err.contains(part), "{said:#?}");
        assert!(said.err.starts_with("fleetcron: ") && said.err.lines().count() == 1, "{said:#?}");
        assert_eq!(said.out, "", "{said:#?}");
    }
}

fn at(text: &str) -> Timestamp {
    chrono::DateTime::parse_from_rfc3339(text).unwrap().to_utc()
}

fn fire(job: &str, id: &str) -> Fire {
    Fire::new(job.parse().unwrap(), id.parse().unwrap())
}

fn node() -> NodeName {
    "db-1".parse().unwrap()
}

fn node_start() -> NodeStart {
    "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap()
}

/// A run on db-1 that began a second after its instant and took a minute.
fn record(fire: Fire, outcome: Outcome, exit_code: Option<i32>, signal: Option<i32>) -> Record {
    let due = fire.scheduled_at();
    let after = |seconds| due + chrono::TimeDelta::seconds(seconds);
    let run = RunFacts {
        node: node(),
        node_start: node_start(),
        attempt: 1,
        fencing_token: 7,
        claimed_at: due,
        started_at: Some(after(1)),
        ended_at: Some(after(61)),
        exit_code,
        signal,
        output_bytes: 0,
        output_left_out: 0,
        usage: None,
    };
    Record {
        span: None,
        fire,
        outcome,
        reason: None,
        run: Some(run),
        writer: Writer::Node { node: node(), node_start: node_start() },
        written_at: after(62),
        tail: None,
        task: None,
        set_off: Vec::new(),
        past: Vec::new(),
    }
}

/// A fire that nobody ran.
fn unrun(fire: Fire, outcome: Outcome, reason: &str) -> Record {
    let reason = Some(reason.to_owned());
    Record { reason, run: None, ..record(fire, outcome, None, None) }
}

fn lock(at: Timestamp) -> Vec<u8> {
    let policy = LockPolicy {
        promise: Promise::AtLeastOnce,
        last_start: at,
        hold: None,
        retry: None,
        slot: None,
        task: None,
    };
    values::encode(&Lock::held(node(), node_start(), 2, at, policy))
}

fn presence(labels: &[(&str, &str)], files: &[(&str, &str)], at: Timestamp) -> Presence {
    let map =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Presence::new(Facts { node_start: node_start(), labels: &map(labels), slots: 64, files: map(files), at })
}

/// Jobs `job-000` and so on.
fn many_jobs(count: usize) -> String {
    let job = |n| format!("[jobs.job-{n:03}]\nschedule = 'H 2 * * *'\ntimezone = 'UTC'\ncommand = 'true'\n");
    (0..count).map(job).collect()
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}
