//! A command in a cgroup of its own. Where the machine lets nobody make one there is only the way without to be shown.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::*;

#[tokio::test]
async fn a_command_is_in_a_cgroup_of_its_own_and_its_guard_is_not() {
    let Some(runs) = Runs::with_cgroups() else { return };
    let looks = "cat /proc/self/cgroup; echo of the guard; cat /proc/$PPID/cgroup";
    let (run, ended) = runs.run(&shell(looks)).await;
    assert_eq!(end(&ended), (Some(0), None), "{ended:?}");
    let noted = run.cgroup().expect("it could be made");
    let name = noted.file_name().unwrap().to_str().unwrap();
    let text = run.text();
    let (command, guard) = text.split_once("of the guard\n").unwrap();
    let own = |text: &str| text.lines().find(|line| line.starts_with("0::")).unwrap().to_owned();
    assert!(own(command).ends_with(&format!("/{name}")), "{text}");
    assert!(!own(guard).contains(name), "{text}");
    assert!(!noted.exists(), "it goes with the run");
}

#[tokio::test]
async fn where_no_cgroup_can_be_made_a_command_runs_without() {
    let runs = Runs::new();
    // A folder of a common file system has none of a cgroup's files.
    let path = runs.path("no-cgroup/at-all");
    let nowhere = PathBuf::from("/nonexistent/of/a/cgroup");
    let (run, ended) = runs.run(&Spec { cgroup: Some(nowhere), ..shell("exit 3") }).await;
    assert_eq!((end(&ended), run.cgroup()), ((Some(3), None), None));
    let (_, ended) = runs.run(&Spec { cgroup: Some(path), ..shell("exit 3") }).await;
    assert_eq!(ended.how, How::CouldNotStart, "never outside of the one it noted: {ended:?}");
    assert_eq!(ended.reason.as_deref(), Some("cgroup: no such file or directory"));
}

#[tokio::test]
async fn a_stop_reaches_what_is_in_the_cgroup_and_not_the_guards_to_reap() {
    let Some(runs) = Runs::with_cgroups() else { return };
    let mut run = runs.start(&shell("exec sleep 300")).await;
    let cgroup = wait_for("the command", || {
        let cgroup = run.folder.read_started().unwrap()?.cgroup.unwrap();
        (!Cgroup::at(cgroup.clone()).is_empty().unwrap()).then_some(cgroup)
    })
    .await;
    let mut stranger = Command::new("sleep").arg("300").stdin(Stdio::null()).spawn().unwrap();
    fs::write(cgroup.join("cgroup.procs"), stranger.id().to_string()).unwrap();
    run.ask(&Request::Kill { reason: "now".to_owned() }).await;
    let ended = run.ended().await;
    assert_eq!((ended.how, end(&ended)), (How::Cancelled, (None, Some("KILL".to_owned()))));
    assert!(!cgroup.exists(), "over means over");
    assert_eq!(stranger.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
}

#[tokio::test]
async fn what_a_lost_guard_leaves_is_found_in_its_cgroup_whatever_session_it_made() {
    let Some(runs) = Runs::with_cgroups() else { return };
    // Twice forked, in a session of its own: without the guard nothing else tells whose it is.
    let script = runs.path("script");
    fs::write(&script, format!("echo $$ >> {}\nexec sleep 300\n", runs.path("pids").display())).unwrap();
    let hides = format!("(setsid sh {0} &) & setsid sh {0} & exec sh {0}", script.display());
    let mut run = runs.start(&shell(&hides)).await;
    let pids = runs.pids("pids", 3).await;
    let guard = run.guard_pid();
    kill(Pid::from_raw(guard), Signal::SIGKILL).unwrap();
    let heard = run.guard().hear().await;
    assert!(matches!(heard, Heard::Started(_) | Heard::Gone), "{heard:?}");
    run.guard.take().unwrap().reap().await;
    assert!(pids.iter().all(|pid| lives(*pid)));
    assert_eq!(session_members(guard).unwrap().len(), 1, "two have left the session");
    let cgroup = run.cgroup().unwrap();
    Cgroup::at(cgroup.clone()).end().unwrap();
    assert!(!pids.iter().any(|pid| lives(*pid)));
    assert!(!cgroup.exists());
}

#[tokio::test]
async fn what_a_command_leaves_behind_keeps_its_cgroup_until_it_ends() {
    let Some(runs) = Runs::with_cgroups() else { return };
    let pids = runs.path("pids");
    let leaves = format!(
        "setsid sh -c 'echo $$ >> {pids}; exec sleep 300' & until [ -s {pids} ]; do sleep 0.02; done; exit 4",
        pids = pids.display()
    );
    let (run, ended) = runs.run(&shell(&leaves)).await;
    assert_eq!(end(&ended), (Some(4), None));
    let pid = runs.pids("pids", 1).await[0];
    let cgroup = Cgroup::at(run.cgroup().unwrap());
    assert!(lives(pid) && !cgroup.is_empty().unwrap());
    // A sweep leaves alone what lives, and what has only just been made.
    fleetcron::cgroup::sweep(runs.cgroups.as_deref().unwrap());
    assert!(cgroup.path().exists() && cgroup.remove().is_err() && lives(pid));
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    wait_for("it to end", || cgroup.is_empty().unwrap().then_some(())).await;
    cgroup.remove().unwrap();
    assert!(!cgroup.path().exists());
}

#[tokio::test]
async fn cgroups_that_a_command_made_for_itself_end_with_it() {
    let Some(runs) = Runs::with_cgroups() else { return };
    let mark = runs.path("mark");
    let cgroups = runs.cgroups.clone().unwrap();
    let makes = format!(
        "own={}/$(sed -n 's,^0::.*/,,p' /proc/self/cgroup); mkdir -p $own/a/b && sleep 300 & sleep 0.1; \
         echo $! > $own/a/b/cgroup.procs; touch {}; wait",
        cgroups.display(),
        mark.display()
    );
    let mut run = runs.start(&Spec { kill_after: 100, ..shell(&makes) }).await;
    wait_for("the command's own cgroup", || mark.exists().then_some(())).await;
    let ended = run.cancel().await;
    assert_eq!(ended.how, How::Cancelled, "{} {ended:?}", run.text());
    assert!(!run.cgroup().unwrap().exists(), "{}", run.text());
}

#[tokio::test]
async fn limits_are_in_force_by_the_cgroup_or_by_rlimits() {
    let Some(runs) = Runs::with_cgroups() else { return };
    let limits = [("memory", 1u64 << 30), ("nproc", 4000)].map(|(name, most)| (name.to_owned(), Some(most)));
    let looks = format!(
        "cd {}/$(sed -n 's,^0::.*/,,p' /proc/self/cgroup); cat memory.max pids.max; ulimit -v; ulimit -u",
        runs.cgroups.as_ref().unwrap().display()
    );
    let spec = Spec {
        argv: ["/bin/bash", "-c", &looks].map(str::to_owned).to_vec(),
        limits: limits.into(),
        ..shell("")
    };
    let (run, _) = runs.run(&spec).await;
    let text = run.text();
    let taken = Delegated::find().unwrap().limits();
    println!("limits by cgroup: {taken:?}");
    let expected = match taken.len() {
        0 => "1048576\n4000\n",
        2 => "1073741824\n4000\nunlimited\n",
        _ => return println!("not shown: only one of the two controllers is there"),
    };
    assert!(text.contains(expected), "{text}");
}
