//! All that a command started ends with it when it is stopped, and lives on when it ends by itself.

use fleetcron::guard::stem;

use super::*;

/// Writes its number into the file `pids` and sleeps; `how` begins the line.
fn sleeper(runs: &Runs, how: &str) -> String {
    format!("{how} sh -c 'echo $$ >> {}; exec sleep 300'", runs.path("pids").display())
}

fn killed() -> (Option<i32>, Option<String>) {
    (None, Some("KILL".to_owned()))
}

fn terminated() -> (Option<i32>, Option<String>) {
    (None, Some("TERM".to_owned()))
}

#[tokio::test]
async fn a_stop_reaches_all_that_the_command_started_however_it_hid() {
    for (runs, (hiding, processes)) in [
        ("SLEEPER & SLEEPER & wait", 2),
        // Another session, another group.
        ("setsid SLEEPER & sleep 300", 1),
        ("set -m; SLEEPER & sleep 300", 1),
        // A parent that is gone: twice forked, in a session of its own.
        ("(setsid SLEEPER &) & sleep 300", 1),
        ("setsid sh -c '(setsid SLEEPER2 &) & sleep 0.01' & sleep 300", 1),
    ]
    .into_iter()
    .flat_map(|hidden| Runs::both_ways().into_iter().map(move |runs| (runs, hidden)))
    {
        let script = runs.path("sleeper");
        fs::write(&script, format!("echo $$ >> {}\nexec sleep 300\n", runs.path("pids").display())).unwrap();
        let sleeper = format!("sh {}", script.display());
        let hiding = hiding.replace("SLEEPER2", &sleeper).replace("SLEEPER", &sleeper);
        let mut run = runs.start(&shell(&hiding)).await;
        let pids = runs.pids("pids", processes).await;
        let ended = run.cancel().await;
        assert_eq!((ended.how, end(&ended)), (How::Cancelled, terminated()), "{hiding}");
        // Over means over: nothing is waited for here.
        for pid in pids {
            assert!(!lives(pid), "{hiding}: {pid} lives");
        }
        assert_eq!(session_members(run.guard_pid()).unwrap(), [], "{hiding}");
    }
}

#[tokio::test]
async fn what_does_not_heed_term_is_killed_after_a_while_wherever_it_is() {
    for runs in Runs::both_ways() {
        // Only a grandchild in a session of its own is deaf: the run goes on until that one is gone.
        let deaf = format!(
            "setsid sh -c 'trap \"\" TERM; echo $$ >> {}; while :; do sleep 300; done' & sleep 300",
            runs.path("pids").display()
        );
        let mut run = runs.start(&Spec { kill_after: 300, ..shell(&deaf) }).await;
        let pids = runs.pids("pids", 1).await;
        let ended = run.cancel().await;
        // The command itself did heed it.
        assert_eq!((ended.how, end(&ended)), (How::Cancelled, terminated()));
        assert!(!lives(pids[0]));
        // The command is deaf as well.
        let deaf = "trap '' TERM; while :; do sleep 300; done";
        let (_, ended) = runs.run(&Spec { timeout: Some(300), kill_after: 300, ..shell(deaf) }).await;
        assert_eq!((ended.how, end(&ended)), (How::TimedOut, killed()));
    }
}

#[tokio::test]
async fn a_command_that_is_told_to_end_at_once_ends_with_all_its_children() {
    for runs in Runs::both_ways() {
        let command = format!("trap '' TERM; {} & wait", sleeper(&runs, "setsid"));
        let mut run = runs.start(&shell(&command)).await;
        let pids = runs.pids("pids", 1).await;
        run.ask(&Request::Kill { reason: "now".to_owned() }).await;
        let ended = run.ended().await;
        assert_eq!((ended.how, end(&ended)), (How::Cancelled, killed()));
        assert_eq!(ended.reason.as_deref(), Some("now"));
        assert!(!lives(pids[0]));
    }
}

#[tokio::test]
async fn a_stopped_command_can_still_be_stopped() {
    let runs = Runs::new();
    let path = runs.path("pids");
    let mut run = runs.start(&shell(&format!("echo $$ > {}; kill -STOP $$", path.display()))).await;
    let pid = runs.pids("pids", 1).await[0];
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.contains(") T ").then_some(());
    wait_for("it to be stopped", state).await;
    let ended = run.cancel().await;
    assert_eq!((ended.how, end(&ended)), (How::Cancelled, terminated()));
}

#[tokio::test]
async fn two_thousand_children_and_those_who_fork_on_are_all_ended() {
    for runs in Runs::both_ways() {
        let path = runs.path("ready");
        let many = format!(
            "i=0; while [ $i -lt 2000 ]; do sleep 300 & i=$((i+1)); done; touch {}; wait",
            path.display()
        );
        let mut run = runs.start(&Spec { kill_after: 100, ..shell(&many) }).await;
        wait_for("its children", || path.exists().then_some(())).await;
        let ended = run.cancel().await;
        assert_eq!((ended.how, end(&ended)), (How::Cancelled, terminated()));
        assert_eq!(session_members(run.guard_pid()).unwrap().len(), 0);
        // Ever new ones, each in a session of its own, none of which heeds TERM.
        let script = runs.path("spreads");
        let spreads = format!("trap '' TERM\nsleep 0.01\nsetsid sh {} &\n", script.display());
        fs::write(&script, spreads).unwrap();
        let command =
            format!("trap '' TERM; for i in 1 2 3 4 5; do sh {} & done; sleep 300", script.display());
        let mut run = runs.start(&Spec { kill_after: 100, ..shell(&command) }).await;
        let ended = run.cancel().await;
        assert_eq!(ended.how, How::Cancelled);
        let left =
            std::process::Command::new("pgrep").args(["-f", script.to_str().unwrap()]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&left.stdout), "");
    }
}

#[tokio::test]
async fn what_a_command_leaves_behind_lives_on_and_can_go_on_writing() {
    let runs = Runs::new();
    let (pids, go, mark) = (runs.path("pids"), runs.path("go"), runs.path("mark"));
    let leaves = format!(
        "(echo $(exec sh -c 'echo $PPID') >> {}; until [ -e {go} ]; do sleep 0.02; done; \
         head -c 1000000 /dev/zero && echo more && echo alive > {}) & until [ -s {} ]; do sleep 0.02; done; echo done",
        pids.display(),
        mark.display(),
        pids.display(),
        go = go.display(),
    );
    let (run, ended) = runs.run(&shell(&leaves)).await;
    assert_eq!((ended.how, end(&ended)), (How::Exited, (Some(0), None)));
    let pid = runs.pids("pids", 1).await[0];
    assert!(lives(pid));
    fs::write(&go, "").unwrap();
    wait_for("what was left to write", || mark.exists().then_some(())).await;
    // What comes after the end is read and thrown away, and its reader goes with the last writer.
    assert_eq!(run.text(), "done\n");
    let session = run.guard_pid();
    wait_for("all to be gone", || session_members(session).unwrap().is_empty().then_some(())).await;
}

#[tokio::test]
async fn what_a_command_leaves_behind_ends_with_it_where_the_job_wants_that() {
    for runs in Runs::both_ways() {
        for (number, how) in ["", "setsid", "trap '' TERM; setsid"].into_iter().enumerate() {
            let leaves = format!(
                "{} & until [ $(cat {} 2>/dev/null | wc -l) -gt {number} ]; do sleep 0.02; done; exit 5",
                sleeper(&runs, how),
                runs.path("pids").display()
            );
            let spec = Spec { kill_leftovers: true, kill_after: 300, ..shell(&leaves) };
            let (_, ended) = runs.run(&spec).await;
            assert_eq!((ended.how, end(&ended)), (How::Exited, (Some(5), None)), "{how}");
            let pids = runs.pids("pids", number + 1).await;
            assert!(!lives(pids[number]), "{how}");
        }
    }
}

#[tokio::test]
async fn closed_outputs_do_not_end_a_command_and_its_end_is_seen() {
    let runs = Runs::new();
    let (run, ended) = runs.run(&shell("echo before; exec >&- 2>&-; sleep 0.2; exit 6")).await;
    assert_eq!((end(&ended), run.text().as_str()), ((Some(6), None), "before\n"));
}

#[tokio::test]
async fn a_guard_that_is_signalled_ends_its_command_in_order_and_notes_it() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let runs = Runs::new();
        let mut run = runs.start(&shell(&sleeper(&runs, "exec"))).await;
        let pids = runs.pids("pids", 1).await;
        // These it does not heed: without it nobody would keep its promise.
        for deaf in [Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGPIPE] {
            kill(Pid::from_raw(run.guard_pid()), deaf).unwrap();
        }
        kill(Pid::from_raw(run.guard_pid()), signal).unwrap();
        let ended = run.ended().await;
        assert_eq!((ended.how, end(&ended)), (How::Cancelled, terminated()));
        assert_eq!(ended.reason.as_deref(), Some("its guard was told to end by a signal"));
        assert!(!lives(pids[0]));
    }
}

#[tokio::test]
async fn every_exit_code_and_every_signal_is_told_as_it_was() {
    let runs = Runs::new();
    for code in 0..=255 {
        let (_, ended) = runs.run(&shell(&format!("exit {code}"))).await;
        assert_eq!((ended.how, end(&ended)), (How::Exited, (Some(code), None)));
    }
    for signal in Signal::iterator() {
        // Those that do not end a process by themselves.
        let harmless = [
            Signal::SIGCHLD,
            Signal::SIGCONT,
            Signal::SIGSTOP,
            Signal::SIGTSTP,
            Signal::SIGTTIN,
            Signal::SIGTTOU,
            Signal::SIGURG,
            Signal::SIGWINCH,
        ];
        if !harmless.contains(&signal) {
            let (_, ended) = runs.run(&shell(&format!("kill -{} $$", signal as i32))).await;
            assert_eq!(ended.signal, Some(signal as i32), "{signal}");
        }
    }
}

#[tokio::test]
async fn signals_without_a_name_are_told_by_their_numbers() {
    let runs = Runs::new();
    for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        let (_, ended) = runs.run(&shell(&format!("kill -{signal} $$"))).await;
        assert_eq!((ended.exit_code, ended.signal), (None, Some(signal)), "{ended:?}");
    }
}

#[tokio::test]
async fn a_command_that_is_killed_from_outside_or_dumps_core_has_its_signal_and_nothing_is_left_over() {
    for runs in Runs::both_ways() {
        let mut run = runs.start(&shell(&sleeper(&runs, "exec"))).await;
        let pid = runs.pids("pids", 1).await[0];
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let ended = run.ended().await;
        assert_eq!((ended.how, end(&ended)), (How::Exited, killed()));
        // With and without room for the dump: where that goes is the machine's affair.
        for core in [0, 1 << 30] {
            let limits = BTreeMap::from([("core".to_owned(), Some(core))]);
            let workdir = runs.path("").display().to_string();
            let spec = Spec { limits, workdir, ..shell("kill -SEGV $$") };
            let (run, ended) = runs.run(&spec).await;
            if ended.how == How::CouldNotStart {
                println!("not shown: {ended:?}");
                continue;
            }
            assert_eq!((ended.how, end(&ended)), (How::Exited, (None, Some("SEGV".to_owned()))));
            assert_eq!(session_members(run.guard_pid()).unwrap(), []);
            assert!(run.cgroup().is_none_or(|cgroup| !cgroup.exists()));
        }
    }
}

#[tokio::test]
async fn a_command_begins_with_no_signal_blocked_or_ignored() {
    let runs = Runs::new();
    let (run, _) = runs.run(&shell("exec grep -E '^Sig(Blk|Ign)' /proc/self/status")).await;
    assert_eq!(run.text(), "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

#[tokio::test]
async fn a_guard_goes_on_without_a_daemon_and_is_found_again() {
    let runs = Runs::new();
    let go = runs.path("go");
    let waits = format!("until [ -e {} ]; do sleep 0.02; done; exit 7", go.display());
    let mut run = runs.start(&shell(&waits)).await;
    for _ in 0..5 {
        // The connection is dropped, the guard's process is not: as when a daemon dies.
        run.guard = None;
        run.guard = Some(Guard::connect(&run.folder).await.unwrap());
    }
    let Heard::Started(Some(_)) = run.guard().hear().await else { panic!("it greets") };
    fs::write(&go, "").unwrap();
    assert_eq!(end(&run.ended().await), (Some(7), None));
}

#[tokio::test]
async fn a_guard_whose_daemon_was_gone_before_it_began_is_found_all_the_same() {
    let runs = Runs::new();
    let go = runs.path("go");
    let spec = shell(&format!("until [ -e {} ]; do sleep 0.02; done; exit 7", go.display()));
    let (folder, lock) = runs.claim();
    lock.write_spec(&spec).unwrap();
    let (ours, its) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(ours);
    // What is in the socket's place for now stands for a disk that is full for a while.
    let (_open, control) = folder.control().unwrap();
    fs::create_dir(&control).unwrap();
    stem::spawn(Path::new(env!("CARGO_BIN_EXE_fleetcron-guard")), &folder, lock, its).await.unwrap();
    let looking = tokio::spawn({
        let folder = folder.clone();
        async move { Guard::connect(&folder).await }
    });
    wait_for("the command to begin", || folder.read_started().unwrap()).await;
    fs::remove_dir(control).unwrap();
    let guard = tokio::time::timeout(LONG_ENOUGH, looking).await.expect("it is found").unwrap().unwrap();
    let mut run = Run { folder, guard: Some(guard) };
    fs::write(&go, "").unwrap();
    assert_eq!(end(&run.ended().await), (Some(7), None));
}

#[tokio::test]
async fn who_looks_for_a_guard_that_is_gone_does_not_wait_for_it() {
    let runs = Runs::new();
    let (run, _) = runs.run(&shell("true")).await;
    assert!(Guard::connect(&run.folder).await.is_err());
}

#[tokio::test]
async fn guards_outlive_the_stem_they_were_forked_off_and_the_next_one_has_another() {
    let runs = Runs::new();
    let go = runs.path("go");
    // A name of its own, so that no other test's guards come of the same stem.
    let program = runs.path("guard");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_fleetcron-guard"), &program).unwrap();
    let spec = shell(&format!("until [ -e {} ]; do sleep 0.02; done; exit 7", go.display()));
    let mut all = Vec::new();
    for _ in 0..3 {
        let (folder, lock) = runs.claim();
        let guard = Guard::spawn(&program, &folder, lock, &spec).await.unwrap();
        wait_for("the command to begin", || folder.read_started().unwrap()).await;
        let run = Run { folder, guard: Some(guard) };
        let stem = parent(run.guard_pid());
        kill(Pid::from_raw(stem), Signal::SIGKILL).unwrap();
        wait_for("the stem to end", || (!lives(stem)).then_some(())).await;
        all.push(run);
    }
    fs::write(&go, "").unwrap();
    for mut run in all {
        assert_eq!(end(&run.ended().await), (Some(7), None));
    }
}

fn parent(pid: i32) -> i32 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    text.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}
