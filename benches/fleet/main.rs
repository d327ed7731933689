//! What the whole costs: guards, fires, claims, syncs, take-overs and idle daemons, each beside a bare loop in the same run.
//!
//! `cargo bench --bench fleet`, or with the names of some of its parts: `cargo bench --bench fleet -- guards fired`. On a
//! busy machine only the ratios mean much; medians are quoted.

#[path = "../../tests/it/etcd.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod etcd;

mod crowd;
mod nodes;
mod requests;
mod takeover;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fleetcron::cgroup::{Delegated, give_back};
use fleetcron::clock::Clock;
use fleetcron::fire::{Fire, FireId};
use fleetcron::guard::{FolderName, Guard, Heard, RunFolder, Spec};
use fleetcron::job::{Job, Overlap, Promise, SourceName};
use fleetcron::jobfile::{self, SourceFile};
use fleetcron::node::NodeStart;
use fleetcron::race::{self, Candidate, Me, Presence, Raced};
use fleetcron::schedule::Timestamp;
use fleetcron::store::values::{Facts, LockPolicy};
use fleetcron::store::{Access, Compare, Op, Revision, Store, Together, Txn, keys};
use fleetcron::sync::{self, Wanted};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

const ROUNDS: usize = 5;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
        let wanted = |part: &str| asked.is_empty() || asked.iter().any(|word| word == part);
        if ["guards", "fired", "thousand"].into_iter().any(wanted) {
            let floor = guards().await;
            if wanted("fired") {
                fired(floor).await;
            }
            if wanted("thousand") {
                crowd::thousand(floor).await;
            }
        }
        if wanted("start") {
            start().await;
        }
        if wanted("many") {
            many().await;
        }
        if wanted("claims") {
            claims().await;
        }
        if wanted("syncs") {
            syncs().await;
        }
        if wanted("idle") {
            idle().await;
        }
        if wanted("takeover") {
            takeover::takeover().await;
        }
        if wanted("drained") {
            takeover::drained().await;
        }
        if wanted("requests") {
            requests::requests().await;
        }
        if wanted("late") {
            crowd::late().await;
        }
        if wanted("jobs") {
            crowd::many_jobs().await;
        }
    });
}

/// The guard alone, eight at a time: the floor under everything that runs a command.
async fn guards() -> f64 {
    const RUNS: usize = 400;
    let (mut bare, mut guarded) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(
            rate(RUNS, 8, |_| async {
                let mut child = tokio::process::Command::new("/bin/sh")
                    .args(["-c", "true"])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .spawn()
                    .expect("sh");
                child.wait().await.expect("sh ends");
            })
            .await,
        );
        let folder = tempfile::tempdir().expect("a folder");
        let runs = Arc::new(folder.path().to_owned());
        guarded.push(rate(RUNS, 8, move |number| one_guard(runs.clone(), number)).await);
        cgroups().inspect(|below| give_back(below));
    }
    let (bare, floor) = (median(bare), median(guarded));
    println!("floor: guards with `true`, 8 at a time: {floor:.0}/s");
    println!("floor / bare `sh -c true` ({bare:.0}/s): {:.2} (wanted: at least 0.5)", floor / bare);
    floor
}

async fn one_guard(runs: Arc<PathBuf>, number: usize) {
    let (folder, mut guard) = spawn_guard(&runs, number, "true").await;
    loop {
        match guard.hear().await {
            Heard::Started(_) | Heard::Holds(_) => {}
            Heard::Ended(ended) => {
                assert_eq!(ended.exit_code, Some(0));
                break;
            }
            Heard::Gone => panic!("a guard was lost"),
        }
    }
    guard.reap().await;
    folder.remove().expect("the folder goes");
}

async fn spawn_guard(runs: &Path, number: usize, command: &str) -> (RunFolder, Guard) {
    let name = FolderName {
        fire: Fire::new("bench".parse().expect("a name"), FireId::Manual(Ulid::from_parts(number as u64, 0))),
        attempt: 1,
    };
    let (folder, lock) = RunFolder::create(runs, &name).expect("a run file");
    let spec = Spec {
        v: 1,
        argv: ["/bin/sh", "-c", command].map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        workdir: "/".to_owned(),
        timeout: None,
        kill_after: 1000,
        output_cap: 1 << 20,
        success_exit: [0].into(),
        // As a daemon has it: where cgroups can be made, each run has one.
        cgroup: cgroups().map(|cgroups| cgroups.join(name.to_string())),
        ..Spec::default()
    };
    let program = Path::new(env!("CARGO_BIN_EXE_fleetcron-guard"));
    let guard = Guard::spawn(program, &folder, lock, &spec).await.expect("a guard");
    (folder, guard)
}

/// Where a node has its runs' cgroups, if it may make any.
fn cgroups() -> Option<&'static Path> {
    static BELOW: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || Some(Delegated::find().ok()?.take_up(Path::new("bench")));
    BELOW.get_or_init(find).as_deref()
}

/// How long a command takes to begin, one in flight: by a guard, from before its run file is made, and by a bare spawn.
/// It tells by opening a pipe.
async fn start() {
    const RUNS: usize = 200;
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("begun");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let command = format!("echo > {}", pipe.display());
    let begun = || {
        let pipe = pipe.clone();
        tokio::task::spawn_blocking(move || std::fs::read(pipe).map(|_| Instant::now()).expect("a pipe"))
    };
    let (mut bare, mut guarded) = (Vec::new(), Vec::new());
    for number in 0..RUNS {
        let (listening, from) = (begun(), Instant::now());
        let mut child = tokio::process::Command::new("/bin/sh")
            .args(["-c", &command])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("sh");
        bare.push((listening.await.expect("no panic") - from).as_secs_f64() * 1e3);
        child.wait().await.expect("sh ends");

        let (listening, from) = (begun(), Instant::now());
        let (folder, guard) = spawn_guard(folder.path(), number, &command).await;
        guarded.push((listening.await.expect("no panic") - from).as_secs_f64() * 1e3);
        guard.reap().await;
        folder.remove().expect("the files go");
    }
    let (bare, guarded) = (median(bare), median(guarded));
    println!("start of a command by a guard, one in flight: {guarded:.2} ms");
    println!("start over a bare spawn ({bare:.2} ms): {:.2} ms more (wanted: at most 3)", guarded - bare);
}

/// A daemon with 1,000 commands at once: its memory and that of each guard.
async fn many() {
    const RUNS: usize = 1000;
    let folder = tempfile::tempdir().expect("a folder");
    let text = job_texts(RUNS, "schedule = '@every 30s'\ncommand = 'exec sleep 3600'");
    let daemon = Daemon::start(folder.path(), &text, RUNS);
    let guards = loop {
        let guards = daemon.guards();
        // A command is there: its guard has done all that it does at the start.
        if guards.len() == RUNS && guards.iter().all(|guard| !children(*guard).is_empty()) {
            break guards;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    // What was needed to start them may go.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let rollups = guards.iter().map(|guard| std::fs::read_to_string(format!("/proc/{guard}/smaps_rollup")));
    let rollups: Vec<String> = rollups.collect::<Result<_, _>>().expect("the guards live");
    let each = |line: &str| median(rollups.iter().map(|text| mb_of(text, line)).collect());
    let (dirty, pss) = (each("Private_Dirty:"), each("Pss:"));
    println!("{RUNS} guards at once: {dirty:.2} MB private dirty each (wanted: at most 1)");
    println!("{RUNS} guards at once: {pss:.2} MB PSS each (wanted: at most 3)");
    println!("daemon with {RUNS} runs: {:.1} MB resident (wanted: at most 60)", daemon.resident_mb());
    drop(daemon);
    for guard in guards {
        let pid = nix::unistd::Pid::from_raw(guard);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
    }
}

/// The processes that this one has started.
fn children(of: i32) -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{of}/task")) else { return Vec::new() };
    let lists = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("children")));
    lists
        .flatten()
        .flat_map(|text| text.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect()
}

/// A figure in KB of a file in `/proc`.
fn mb_of(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(name)).expect("a figure");
    line.split_ascii_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).expect("a number") / 1024.0
}

/// Jobs that all fire at one instant, on the SQLite store, by a real daemon: from the instant to the last record.
async fn fired(floor: f64) {
    const JOBS: usize = 400;
    const EVERY: i64 = 6;
    let folder = tempfile::tempdir().expect("a folder");
    let text = job_texts(JOBS, &format!("schedule = '@every {EVERY}s'\ncommand = 'true'"));
    let daemon = Daemon::start(folder.path(), &text, 64);
    let store = daemon.store().await;
    let mut rates = Vec::new();
    let mut last = None;
    while rates.len() < ROUNDS {
        let records = records_of_one_instant(&store, JOBS, last).await;
        last = Some(records.instant);
        rates.push(JOBS as f64 / records.took.as_secs_f64());
    }
    drop(daemon);
    let fired = median(rates);
    println!("fired `true` on SQLite, {JOBS} at one instant: {fired:.0}/s");
    println!("fired / floor: {:.2} (wanted: at least 0.7)", fired / floor);
}

struct OneInstant {
    instant: Timestamp,
    took: Duration,
}

/// Waits for the next instant after `after` whose fires all have their record.
async fn records_of_one_instant(store: &Store, jobs: usize, after: Option<Timestamp>) -> OneInstant {
    loop {
        let listing = store.list(keys::records()).await.expect("records");
        let mut by_instant: BTreeMap<Timestamp, Vec<Timestamp>> = BTreeMap::new();
        for entry in listing.entries {
            let fire = keys::fire_of(&entry.key).expect("a record's key");
            let record =
                fleetcron::store::values::decode_record(fire, &entry.key, &entry.value).expect("a record");
            by_instant.entry(record.fire.scheduled_at()).or_default().push(record.written_at);
        }
        let whole = by_instant
            .into_iter()
            .find(|(instant, written)| written.len() == jobs && after.is_none_or(|after| *instant > after));
        if let Some((instant, written)) = whole {
            let took = (*written.iter().max().expect("there are some") - instant)
                .to_std()
                .expect("after the instant");
            return OneInstant { instant, took };
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Claims on one etcd, 64 in flight, beside a bare create-if-absent loop with the same client.
async fn claims() {
    const CLAIMS: usize = 4000;
    let etcd = etcd::Etcd::start(etcd::Version::V34).await;
    let store = etcd.open("/bench").await;
    let me = Me {
        name: "bench".parse().expect("a name"),
        start: NodeStart(Ulid::generate()),
        instance: "bench".to_owned(),
    };
    let presence = Presence::new(Facts {
        node_start: me.start,
        labels: &BTreeMap::new(),
        slots: 64,
        files: BTreeMap::new(),
        at: Timestamp::from(std::time::SystemTime::now()),
    });
    let stop = CancellationToken::new();
    let (standing, staying) =
        race::register_and_stay(store.clone(), Clock::system(), me, presence, stop.clone())
            .await
            .expect("a registration");
    let staying = tokio::spawn(staying);
    let jobs = jobs(&job_texts(CLAIMS, "schedule = '@every 1s'\ncommand = 'true'"));
    let wanted = Wanted { source: SourceName::default(), jobs, limits: Default::default() };
    let clock = Clock::system();
    let outlook = sync::look(&store, &wanted).await.expect("a look");
    sync::apply(&store, &wanted, outlook, "bench", clock.now()).await.expect("a sync");
    let definitions: Arc<Vec<Revision>> = Arc::new(
        store
            .list(keys::jobs())
            .await
            .expect("jobs")
            .entries
            .iter()
            .map(|entry| entry.mod_revision)
            .collect(),
    );
    let names: Arc<Vec<_>> = Arc::new(wanted.jobs.iter().map(|job| job.name.clone()).collect());
    let (mut bare, mut claimed) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let bare_store = store.clone();
        bare.push(
            rate(CLAIMS, 64, move |number| {
                let store = bare_store.clone();
                async move {
                    let key = format!("bare/{round}/{number}");
                    let txn = Txn::when([Compare::absent(key.as_str())])
                        .then([Op::put(key.as_str(), vec![b'x'; 250])])
                        .otherwise([Op::get(key.as_str())]);
                    assert!(store.txn(txn).await.expect("etcd answers").succeeded);
                }
            })
            .await,
        );
        let at = clock.now() + chrono::TimeDelta::hours(1 + round as i64);
        let (together, standing) = (Together::new(store.clone()), standing.clone());
        let (names, definitions) = (names.clone(), definitions.clone());
        claimed.push(
            rate(CLAIMS, 64, move |number| {
                let (together, mut standing) = (together.clone(), standing.clone());
                let candidate = Candidate {
                    fire: Fire::new(names[number].clone(), FireId::scheduled(at)),
                    basis: fleetcron::race::Basis::Definition(definitions[number]),
                    mutex: None,
                    restarts_chain: false,
                    overlap: Overlap::Allow,
                    was: None,
                    policy: LockPolicy {
                        promise: Promise::AtLeastOnce,
                        last_start: at,
                        hold: None,
                        retry: None,
                        slot: None,
                        task: None,
                    },
                };
                async move {
                    let raced =
                        race::claim(&together, &mut standing, &clock, &candidate, &CancellationToken::new())
                            .await
                            .expect("etcd answers");
                    assert!(matches!(raced, Raced::Won(_)));
                }
            })
            .await,
        );
    }
    let (bare, claimed) = (median(bare), median(claimed));
    println!("claims on one etcd, 64 in flight: {claimed:.0}/s");
    println!("claims / bare create-if-absent ({bare:.0}/s): {:.2} (wanted: at least 0.8)", claimed / bare);
    stop.cancel();
    staying.await.expect("no panic").expect("given back");
}

/// 10,000 jobs into etcd beside a bare loop of transactions of 128 puts; then `jobs` beside a bare paged list.
async fn syncs() {
    const JOBS: usize = 10_000;
    let etcd = etcd::Etcd::start(etcd::Version::V34).await;
    let wanted = Wanted {
        source: SourceName::default(),
        jobs: jobs(&job_texts(JOBS, "schedule = '0 2 * * *'\ncommand = 'true'")),
        limits: Default::default(),
    };
    let (mut bare, mut synced) = (Vec::new(), Vec::new());
    let mut store = etcd.open("/sync").await;
    for round in 0..ROUNDS {
        store = etcd.open(&format!("/sync{round}")).await;
        let begun = Instant::now();
        let outlook = sync::look(&store, &wanted).await.expect("a look");
        sync::apply(&store, &wanted, outlook, "bench", Clock::system().now()).await.expect("a sync");
        synced.push(begun.elapsed().as_secs_f64());
        let puts: Vec<Op> = store
            .list(fleetcron::store::KeyRange::prefix(""))
            .await
            .expect("a list")
            .entries
            .into_iter()
            .map(|entry| Op::put(format!("bare/{}", entry.key), entry.value))
            .collect();
        let begun = Instant::now();
        for some in puts.chunks(128) {
            store.txn(Txn::new().then(some.to_vec())).await.expect("etcd answers");
        }
        bare.push(begun.elapsed().as_secs_f64());
    }
    let (bare, synced) = (median(bare), median(synced));
    println!("sync of {JOBS} jobs to etcd: {synced:.2} s");
    println!("bare loop / sync: {:.2} (wanted: at least 0.5)", bare / synced);

    let (mut listed, mut answered) = (Vec::new(), Vec::new());
    let address = etcd.address(&format!("/sync{}", ROUNDS - 1)).to_string();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        assert_eq!(store.list(keys::jobs()).await.expect("a list").entries.len(), JOBS);
        listed.push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        let output = Command::new(env!("CARGO_BIN_EXE_fleetcron"))
            .args(["--store", &address, "jobs", "--output", "json"])
            .output()
            .expect("jobs runs");
        answered.push(begun.elapsed().as_secs_f64());
        assert_eq!(output.stdout.iter().filter(|&&byte| byte == b'\n').count(), JOBS);
    }
    let (listed, answered) = (median(listed), median(answered));
    println!("`jobs` of {JOBS}: {answered:.2} s");
    println!("`jobs` / bare paged list ({listed:.2} s): {:.1} (wanted: at most 5)", answered / listed);
}

/// A daemon with 100 jobs that are not due: memory and CPU time over ten seconds.
async fn idle() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon =
        Daemon::start(folder.path(), &job_texts(100, "schedule = '0 0 1 1 *'\ncommand = 'true'"), 64);
    let store = daemon.store().await;
    while store.list(keys::jobs()).await.expect("jobs").entries.len() < 100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = daemon.cpu();
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let share = (daemon.cpu() - before) / begun.elapsed().as_secs_f64();
    println!("idle daemon, 100 jobs, SQLite: {:.1} MB resident (wanted: at most 20)", daemon.resident_mb());
    println!("idle daemon: {:.2} % of a core (wanted: less than 1)", share * 100.0);
}

/// A real daemon on an SQLite store in a folder.
struct Daemon {
    child: std::process::Child,
    store: PathBuf,
}

impl Daemon {
    fn start(folder: &Path, jobs: &str, slots: usize) -> Daemon {
        let file = folder.join("jobs.toml");
        std::fs::write(&file, jobs).expect("a job file");
        let store = folder.join("store").join("fleetcron.db");
        let child = Command::new(env!("CARGO_BIN_EXE_fleetcron"))
            .args(["run", "--node", "bench", "--slots", &slots.to_string()])
            .arg("--store")
            .arg(format!("sqlite:{}", store.display()))
            .arg("--state")
            .arg(folder.join("state"))
            .arg("--jobs")
            .arg(&file)
            .env("FLEETCRON_LOG", "warn")
            .stdin(Stdio::null())
            .spawn()
            .expect("a daemon");
        Daemon { child, store }
    }

    async fn store(&self) -> Store {
        let address = format!("sqlite:{}", self.store.display()).parse().expect("an address");
        loop {
            match Store::open(&address, &Access::default()).await {
                Ok(store) => return store,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    fn resident_mb(&self) -> f64 {
        mb_of(&proc(&self.child, "status"), "VmRSS:")
    }

    fn guards(&self) -> Vec<i32> {
        // They are all forked off one child of the daemon.
        children(self.child.id() as i32).into_iter().flat_map(children).collect()
    }

    fn cpu(&self) -> f64 {
        cpu(&self.child)
    }
}

fn proc(child: &std::process::Child, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).expect("the daemon lives")
}

/// Seconds of CPU time so far.
fn cpu(child: &std::process::Child) -> f64 {
    let stat = proc(child, "stat");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_ascii_whitespace().collect();
    let ticks: f64 = [11, 12].iter().map(|&at| fields[at].parse::<f64>().expect("a number")).sum();
    ticks / 100.0
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

fn job_texts(jobs: usize, fields: &str) -> String {
    (0..jobs).map(|number| format!("[jobs.job-{number:05}]\n{fields}\n")).collect()
}

fn jobs(text: &str) -> Vec<Job> {
    jobfile::parse(&[SourceFile { path: "bench.toml", text }]).expect("good jobs").jobs
}

/// How many a second, with so many in flight.
async fn rate<F: Future<Output = ()> + Send + 'static>(
    all: usize,
    in_flight: usize,
    task: impl Fn(usize) -> F,
) -> f64 {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..all {
        if tasks.len() == in_flight {
            tasks.join_next().await.expect("there are some").expect("no panic");
        }
        tasks.spawn(task(number));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    all as f64 / begun.elapsed().as_secs_f64()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
