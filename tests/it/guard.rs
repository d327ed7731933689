//! Guards without a daemon: what becomes of a command and of all that it started.

mod cgroups;
mod holds;
mod outputs;
mod rights;
mod terms;
mod trees;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fleetcron::cgroup::{Cgroup, Delegated};
use fleetcron::child::{session_members, signal_name};
use fleetcron::fire::{Fire, FireId};
use fleetcron::guard::folder::{FolderLock, Found};
use fleetcron::guard::link::Request;
use fleetcron::guard::{Contact, Ended, FolderName, Guard, Heard, How, RunFolder, Spec};
use fleetcron::output;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use ulid::Ulid;

/// How long a test waits for what must come. Only a net: nothing here is about speed.
const LONG_ENOUGH: Duration = Duration::from_secs(90);

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A folder of runs, in which commands also leave their marks.
struct Runs {
    folder: TempDir,
    /// The folder of the runs' cgroups, where they have some.
    cgroups: Option<PathBuf>,
    /// What is spawned as the guard.
    program: PathBuf,
}

/// One command with its guard. What still lives of it when it is dropped is ended.
struct Run {
    folder: RunFolder,
    guard: Option<Guard>,
}

fn shell(command: &str) -> Spec {
    Spec {
        v: 1,
        argv: ["/bin/sh", "-c", command].map(str::to_owned).to_vec(),
        env: BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]),
        workdir: "/".to_owned(),
        kill_after: 60_000,
        output_cap: 1 << 20,
        success_exit: [0].into(),
        ..Spec::default()
    }
}

impl Runs {
    fn new() -> Runs {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("runs")).unwrap();
        let program = PathBuf::from(env!("CARGO_BIN_EXE_fleetcron-guard"));
        Runs { folder, cgroups: None, program }
    }

    /// Whose guards are started by a line of shell, which ends in `exec … "$GUARD" "$1"`.
    fn started_by(line: &str) -> Runs {
        let mut runs = Runs::new();
        let script = runs.path("guard");
        let guard = runs.program.display();
        fs::write(&script, format!("#!/bin/sh\nPATH={PATH}\nGUARD={guard}\n{line}\n")).unwrap();
        fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        runs.program = script;
        runs
    }

    /// With cgroups, if this machine lets us make some; says so otherwise.
    fn with_cgroups() -> Option<Runs> {
        match Delegated::find() {
            Ok(delegated) => {
                let mut runs = Runs::new();
                let name = runs.folder.path().file_name().unwrap().to_string_lossy().replace('.', "");
                runs.cgroups = Some(delegated.base().join(format!("fleetcron-test-{name}")));
                Some(runs)
            }
            Err(why) => {
                println!("not shown with cgroups: {why}");
                None
            }
        }
    }

    /// Without cgroups, and with them where there can be some.
    fn both_ways() -> Vec<Runs> {
        [Some(Runs::new()), Runs::with_cgroups()].into_iter().flatten().collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn claim(&self) -> (RunFolder, FolderLock) {
        let job = "guarded".parse().unwrap();
        let name = FolderName { fire: Fire::new(job, FireId::Manual(Ulid::generate())), attempt: 1 };
        RunFolder::create(&self.path("runs"), &name).unwrap()
    }

    async fn start(&self, spec: &Spec) -> Run {
        let (folder, lock) = self.claim();
        let name = folder.path().file_name().unwrap().to_owned();
        let mut spec = spec.clone();
        spec.cgroup = spec.cgroup.or(self.cgroups.as_ref().map(|cgroups| cgroups.join(name)));
        let guard = Guard::spawn(&self.program, &folder, lock, &spec).await.unwrap();
        Run { folder, guard: Some(guard) }
    }

    async fn run(&self, spec: &Spec) -> (Run, Ended) {
        let mut run = self.start(spec).await;
        let ended = run.ended().await;
        (run, ended)
    }

    /// Waits for a file in which a command has left the numbers of so many processes.
    async fn pids(&self, name: &str, number: usize) -> Vec<i32> {
        let path = self.path(name);
        let read = || {
            let text = fs::read_to_string(&path).ok()?;
            let pids: Vec<i32> = text.lines().map(|line| line.trim().parse().unwrap()).collect();
            (pids.len() >= number && text.ends_with('\n')).then_some(pids)
        };
        wait_for(&format!("{number} pids in {name}"), read).await
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        let Some(cgroups) = &self.cgroups else { return };
        for run in fs::read_dir(cgroups).into_iter().flatten().flatten() {
            if run.path().is_dir() {
                let _ = Cgroup::at(run.path()).end();
            }
        }
        let _ = fs::remove_dir(cgroups);
    }
}

impl Run {
    /// The cgroup of the command, as the guard noted it.
    fn cgroup(&self) -> Option<PathBuf> {
        self.folder.read_started().unwrap().expect("it noted that it starts").cgroup
    }

    fn guard(&mut self) -> &mut Guard {
        self.guard.as_mut().expect("it is not over yet")
    }

    async fn ask(&mut self, request: &Request) {
        self.guard().ask(request).await;
    }

    async fn cancel(&mut self) -> Ended {
        self.ask(&Request::Cancel { reason: "asked".to_owned() }).await;
        self.ended().await
    }

    /// Hears the guard out, and waits until the process is gone.
    async fn ended(&mut self) -> Ended {
        let ended = loop {
            match tokio::time::timeout(LONG_ENOUGH, self.guard().hear()).await.expect("an end in time") {
                Heard::Started(_) | Heard::Holds(_) => {}
                Heard::Ended(ended) => break ended,
                Heard::Gone => panic!("a guard was lost"),
            }
        };
        self.guard.take().unwrap().reap().await;
        // What it said is what lies on the disk, and nobody holds the lock.
        let on_disk = self.folder.look().unwrap();
        assert!(matches!(&on_disk, Found::Ended(found) if *found == ended), "{on_disk:?}");
        ended
    }

    /// All that it wrote. Who writes nothing makes no file.
    fn text(&self) -> String {
        match output::read(&self.folder.output()) {
            Ok(kept) => kept.text(),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
                String::new()
            }
        }
    }

    /// The guard's process, which is also the number of its session.
    fn guard_pid(&self) -> i32 {
        self.folder.read_started().unwrap().expect("it noted that it starts").guard.pid
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let Ok(Some(started)) = self.folder.read_started() else { return };
        let guard = started.guard.pid;
        for process in session_members(guard).unwrap_or_default() {
            let _ = kill(process, Signal::SIGKILL);
        }
        if self.guard.is_some() {
            let _ = kill(Pid::from_raw(guard), Signal::SIGKILL);
        }
    }
}

async fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LONG_ENOUGH;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether a process is there and no zombie.
fn lives(pid: i32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Exit code and the signal's name.
fn end(ended: &Ended) -> (Option<i32>, Option<String>) {
    (ended.exit_code, ended.signal.map(signal_name))
}
