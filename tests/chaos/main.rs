//! A fleet that is ill-treated: three real etcd members and five real nodes, each on a network of its own, with
//! everything done to them that machines, networks and operators do; then what really ran is held against the promises,
//! and `fleetcron audit` against what really ran.
//!
//! `make chaos` runs it for half an hour, `CHAOS_SECONDS=120 make chaos` for two minutes, `CHAOS_SEED=7` with the faults
//! of that seed, `CHAOS_ETCD=3.4` on another etcd. One seed gives the same faults at the same times; what they meet
//! differs from run to run.
//!
//! All of it lives in namespaces of processes, mounts and networks that end with it, however it ends: nothing of the
//! machine is changed.

mod history;
mod jobs;
mod plan;
mod play;
mod relay;
mod world;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

/// Set by `make chaos`: that it cannot be shown here is then a failure.
const MUST: &str = "FLEETCRON_CHAOS_MUST";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["relay", ref ways @ ..] => relay::relay(ways),
        ["first-process"] => first_process(),
        ["play"] => play(),
        _ => alone(),
    }
}

/// Begins again in namespaces of its own.
fn alone() -> ExitCode {
    if let Some(why) = what_is_missing() {
        println!("chaos: not shown: {why}");
        let must = std::env::var(MUST).is_ok_and(|must| must == "1");
        return if must { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let error = apart().arg(std::env::current_exe().expect("it has a path")).arg("first-process").exec();
    eprintln!("chaos: cannot run unshare: {error}");
    ExitCode::FAILURE
}

/// `unshare` with all that this needs. Who ends it ends all that is in it.
fn apart() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    command
}

/// Why there can be no such fleet here.
fn what_is_missing() -> Option<String> {
    // All that is done later, once.
    const TRY: &str = "mount -t tmpfs none /run && ip netns add try && ip link add bridge type bridge && \
                       ip link add one type veth peer name two netns try && nft list ruleset";
    let tried = apart().args(["sh", "-c", TRY]).stdin(Stdio::null()).output();
    let said = match tried {
        Ok(tried) if tried.status.success() => return None,
        Ok(tried) => String::from_utf8_lossy(&tried.stderr).trim().to_owned(),
        Err(error) => format!("unshare: {error}"),
    };
    Some(format!("namespaces, bridges and nft are not to be had here ({said})"))
}

/// The first process of a namespace adopts every orphan, so it does what `init` does, and the play is another one.
fn first_process() -> ExitCode {
    let own = std::env::current_exe().expect("it has a path");
    let mut play = Command::new(own).arg("play").spawn().expect("it runs again");
    loop {
        // The play is seen to by its own handle; all others are only cleared away.
        if let Ok(Some(ended)) = play.try_wait() {
            return ended.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8));
        }
        reap_orphans(Pid::from_raw(play.id() as i32));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn reap_orphans(but: Pid) {
    let children = std::fs::read_to_string("/proc/self/task/1/children").unwrap_or_default();
    let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw);
    for pid in pids.filter(|pid| *pid != but) {
        let flags = Some(nix::sys::wait::WaitPidFlag::WNOHANG);
        match waitpid(pid, flags) {
            Ok(_) | Err(Errno::ECHILD | Errno::EINTR) => {}
            Err(error) => eprintln!("chaos: an orphan is left: {}", io::Error::from(error)),
        }
    }
}

fn play() -> ExitCode {
    let seconds = number("CHAOS_SECONDS").unwrap_or(1800);
    let seed = number("CHAOS_SEED").unwrap_or_else(rand::random::<u32>);
    println!("chaos: seed {seed}, {seconds} s, etcd {}", world::etcd_version());
    match play::play(seed, Duration::from_secs(seconds.into())) {
        Ok(came) => {
            println!("chaos: clean: seed {seed}: {came}");
            ExitCode::SUCCESS
        }
        Err(failed) => {
            println!(
                "chaos: FAILED: {}\nchaos: seed {seed}; logs, journals and history are in {}",
                failed.why, failed.kept
            );
            ExitCode::FAILURE
        }
    }
}

fn number(variable: &str) -> Option<u32> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")))
}
