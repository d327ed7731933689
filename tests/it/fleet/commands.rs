//! Commands, as a daemon and its guard run them: how they end, what they are given, and what is kept of their output.

use fleetcron::child::signal_name;
use fleetcron::output::{self, Kept};
use fleetcron::run::kept_output;

use super::*;

/// A node on SQLite, with jobs that are started one by one.
struct Bench {
    fleet: Fleet,
    node: Node,
}

/// What became of one command.
struct Ran {
    record: Record,
    /// The record as the store holds it, in bytes.
    stored: usize,
    kept: Option<Kept>,
}

impl Ran {
    fn text(&self) -> String {
        self.kept.as_ref().map(Kept::text).unwrap_or_default()
    }

    fn tail(&self) -> &str {
        self.record.tail.as_deref().unwrap_or_default()
    }

    fn reason(&self) -> &str {
        self.record.reason.as_deref().unwrap_or_default()
    }

    /// Exit code and the signal's name.
    fn end(&self) -> (Option<i32>, Option<String>) {
        let run = self.record.run.as_ref().expect("it was claimed");
        (run.exit_code, run.signal.map(signal_name))
    }
}

impl Bench {
    async fn new() -> Bench {
        let fleet = Fleet::on_sqlite().await;
        let node = fleet.node("a").ready().await;
        Bench { fleet, node }
    }

    /// Runs one job with these fields.
    async fn run_job(&self, fields: &str) -> Ran {
        let fire = self.start_job(fields).await;
        self.ran(&fire).await
    }

    async fn start_job(&self, fields: &str) -> Fire {
        self.fleet.sync(&format!("[jobs.once]\nschedule = '0 0 1 1 *'\n{fields}\n")).await;
        self.fleet.ask("once").await
    }

    async fn ran(&self, fire: &Fire) -> Ran {
        let record = self.fleet.wait_for_record(fire).await;
        let entry = self.fleet.store.get(&keys::record(fire)).await.unwrap().unwrap();
        // The output is put in its place right after the record is written.
        let folders = self.node.state.join("runs");
        let cleared = async || RunFolder::list(&folders).unwrap().iter().all(|(name, _)| name.fire != *fire);
        self.fleet.wait_until("the run folder to be cleared away", cleared).await;
        let kept = output::read(&kept_output(&self.node.state.join("output"), fire, 1)).ok();
        Ran { record, stored: entry.value.len(), kept }
    }

    async fn run(&self, command: &str) -> Ran {
        self.run_job(&format!("command = {}", quoted(command))).await
    }
}

#[tokio::test]
async fn exit_code_and_signal_are_facts_of_their_own() {
    let bench = Bench::new().await;
    for (command, outcome, code, signal) in [
        ("true", Outcome::Succeeded, Some(0), None),
        ("exit 3", Outcome::Failed, Some(3), None),
        ("exit 255", Outcome::Failed, Some(255), None),
        ("kill -9 $$", Outcome::Failed, None, Some("KILL")),
        ("kill -TERM $$", Outcome::Failed, None, Some("TERM")),
        ("kill -SEGV $$", Outcome::Failed, None, Some("SEGV")),
        // The shell's own words for a command that was killed in it.
        ("sh -c 'kill -9 $$'", Outcome::Failed, Some(137), None),
        ("nosuchcmd", Outcome::Failed, Some(127), None),
        ("/etc/passwd", Outcome::Failed, Some(126), None),
    ] {
        // The `exit` keeps a shell from giving its place to the last command.
        let command =
            if command.starts_with("sh -c") { format!("{command}; exit $?") } else { command.into() };
        let ran = bench.run(&command).await;
        assert_eq!(ran.record.outcome, outcome, "{command}");
        assert_eq!(ran.end(), (code, signal.map(str::to_owned)), "{command}");
    }
    let ran = bench.run("nosuchcmd").await;
    assert!(ran.tail().contains("nosuchcmd: not found"), "{:?}", ran.tail());
}

#[tokio::test]
async fn what_cannot_be_started_says_which_step_failed() {
    let bench = Bench::new().await;
    for (fields, why) in [
        (
            "command = 'true'\nworkdir = '/no/such/folder'",
            "could not start: working folder /no/such/folder: no such file",
        ),
        (
            "command = 'true'\nworkdir = '/etc/passwd'",
            "could not start: working folder /etc/passwd: not a directory",
        ),
        ("command = ['/no/such/program', '-x']", "could not start: /no/such/program: no such file"),
        ("command = ['nosuchprogram']", "could not start: nosuchprogram: no such file"),
        ("command = ['/etc/passwd']", "could not start: /etc/passwd: permission denied"),
        ("command = 'true'\nshell = '/no/such/shell'", "could not start: /no/such/shell: no such file"),
    ] {
        let ran = bench.run_job(fields).await;
        assert_eq!(ran.record.outcome, Outcome::Failed, "{fields}");
        assert_eq!(ran.end(), (None, None), "{fields}");
        assert!(ran.reason().starts_with(why), "{fields}: {:?}", ran.reason());
        assert_eq!(ran.record.run.unwrap().started_at, None, "{fields}");
    }
}

#[tokio::test]
async fn codes_that_a_job_calls_success_are_and_no_signal_ever_is() {
    let bench = Bench::new().await;
    for (command, outcome) in
        [("exit 24", Outcome::Succeeded), ("exit 0", Outcome::Failed), ("kill -9 $$", Outcome::Failed)]
    {
        let ran = bench.run_job(&format!("command = '{command}'\nsuccess_exit = [24, 137]")).await;
        assert_eq!(ran.record.outcome, outcome, "{command}");
    }
}

#[tokio::test]
async fn a_command_reads_nothing_and_has_three_descriptors_whatever_the_daemon_was_started_with() {
    let mut fleet = Fleet::on_sqlite().await;
    let program = env!("CARGO_BIN_EXE_fleetcron");
    // How a shell starts the daemon, whose command line is "$@".
    for (number, how) in [
        "exec \"$@\"",
        "exec \"$@\" <&-",
        "exec \"$@\" <&- >&-",
        "exec \"$@\" 7</etc/passwd 9>/dev/null",
        // A pipe in which nothing ever comes. The daemon is ended by its pid, the writer by its parent's end.
        "mkfifo $FIFO; exec \"$@\" <>$FIFO",
    ]
    .iter()
    .enumerate()
    {
        let name = format!("a{number}");
        let (command, _) = fleet.node(&name).command();
        let mut shell = Command::new("sh");
        shell.args(["-c", how, "sh", program]).args(command.get_args()).env("FIFO", fleet.path("fifo"));
        let mut node = fleet.node(&name).start_as(shell);
        node.wait_until_ready(&fleet).await;
        let bench = Bench { fleet, node };
        let ran = bench.run("cat; echo rc=$?; exec ls -l /proc/self/fd").await;
        let text = ran.text();
        assert_eq!(ran.record.outcome, Outcome::Succeeded, "{how}: {text}");
        assert!(text.starts_with("rc=0\n"), "{how}: {text}");
        let open: Vec<&str> = text.lines().filter(|line| line.contains(" -> ")).collect();
        assert!(open[0].ends_with("0 -> /dev/null"), "{how}: {text}");
        // The fourth is the folder that ls itself reads.
        let numbers: Vec<&str> =
            open.iter().map(|line| line.split(" -> ").next().unwrap().rsplit(' ').next().unwrap()).collect();
        assert_eq!(numbers, ["0", "1", "2", "3"], "{how}: {text}");
        let Bench { fleet: back, mut node } = bench;
        node.stop(&back).await;
        fleet = back;
    }
}

#[tokio::test]
async fn the_command_reaches_the_shell_byte_for_byte() {
    let bench = Bench::new().await;
    for (command, says) in [
        ("date +%Y >/dev/null; echo 100%; echo $((7 % 4))", "100%\n3\n"),
        (r#"echo "a 'b' \"c\"" '$HOME' \\"#, "a 'b' \"c\" $HOME \\\n"),
        ("cat <<'END'\n%d $x \\n \"q\" 'r'\n\ttab\nEND\n", "%d $x \\n \"q\" 'r'\n\ttab\n"),
        ("printf '%s|' \"$@\" one\\ two *.none", "one two|*.none|"),
        ("echo äöü € 日本 ; # a remark", "äöü € 日本\n"),
        ("x='a  b'; echo \"$x\"", "a  b\n"),
    ] {
        let ran = bench.run(command).await;
        assert_eq!(ran.text(), says, "{command}");
    }
    let ran = bench.run_job(r#"command = ["printf", "%s\n", "a b", "$HOME", "*", "", "100%"]"#).await;
    assert_eq!(ran.text(), "a b\n$HOME\n*\n\n100%\n");
}

#[tokio::test]
async fn the_environment_is_small_and_always_the_same() {
    let bench = Bench::new().await;
    let fields =
        "command = 'exec env'\ntimezone = 'Europe/Lisbon'\nenv = { GREETING = 'hello  you', LANG = 'C' }";
    let ran = bench.run_job(fields).await;
    let text = ran.text();
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("PWD=")).collect();
    lines.sort_unstable();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap();
    let run = ran.record.run.as_ref().unwrap();
    let fire = &ran.record.fire;
    let at = fire.scheduled_at().to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true);
    let mut expected = vec![
        "FLEETCRON_ATTEMPT=1".to_owned(),
        format!("FLEETCRON_FENCING_TOKEN={}", run.fencing_token),
        format!("FLEETCRON_FIRE={}", fire.id),
        "FLEETCRON_JOB=once".to_owned(),
        "FLEETCRON_NODE=a".to_owned(),
        format!("FLEETCRON_SCHEDULED_AT={at}"),
        "GREETING=hello  you".to_owned(),
        format!("HOME={}", user.dir.display()),
        "LANG=C".to_owned(),
        format!("LOGNAME={}", user.name),
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        format!("SHELL={}", user.shell.display()),
        "TZ=Europe/Lisbon".to_owned(),
        format!("USER={}", user.name),
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
    let ran = bench.run("pwd").await;
    assert_eq!(ran.text(), format!("{}\n", user.dir.display()));
}

#[tokio::test]
async fn out_of_time_a_command_is_asked_and_then_told_to_stop() {
    let bench = Bench::new().await;
    let ran = bench.run_job("command = 'exec sleep 300'\ntimeout = '1s'").await;
    assert_eq!((ran.record.outcome, ran.end()), (Outcome::TimedOut, (None, Some("TERM".to_owned()))));
    // It may tidy up, and its own exit code is kept.
    let tidy = quoted("trap 'echo bye; exit 9' TERM; while :; do sleep 0.1; done");
    let ran = bench.run_job(&format!("command = {tidy}\ntimeout = '1s'")).await;
    assert_eq!((ran.record.outcome, ran.end()), (Outcome::TimedOut, (Some(9), None)));
    assert!(ran.tail().contains("bye"));
    // It and all of its group, where it does not heed TERM.
    let pid = bench.fleet.path("pid");
    let stubborn =
        format!("trap '' TERM; sh -c 'echo $$ > {}; sleep 300' & while :; do sleep 1; done", pid.display());
    let fields = format!("command = {}\ntimeout = '1s'\nkill_after = '1s'", quoted(&stubborn));
    let ran = bench.run_job(&fields).await;
    assert_eq!((ran.record.outcome, ran.end()), (Outcome::TimedOut, (None, Some("KILL".to_owned()))));
    let pid: i32 = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    bench
        .fleet
        .wait_until("its child to be gone", async || process_state(pid).is_none_or(|is| is == 'Z'))
        .await;
}

#[tokio::test]
async fn closing_the_output_early_and_a_grandchild_that_keeps_it_open_change_nothing() {
    let bench = Bench::new().await;
    let ran = bench.run("echo before; exec >&- 2>&-; sleep 0.5; exit 6").await;
    assert_eq!((ran.text().as_str(), ran.end()), ("before\n", (Some(6), None)));
    let pid = bench.fleet.path("pid");
    let ran = bench.run(&format!("sleep 300 & echo $! > {}; echo done", pid.display())).await;
    assert_eq!((ran.record.outcome, ran.text().as_str()), (Outcome::Succeeded, "done\n"));
    let pid: i32 = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    assert!(process_state(pid).is_some(), "what a command leaves behind on purpose goes on");
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn large_output_is_cut_with_a_note_and_its_result_is_kept() {
    let bench = Bench::new().await;
    let ran = bench.run_job("command = 'seq 1000000; exit 4'\nkeep = { output = '1MiB' }").await;
    assert_eq!((ran.record.outcome, ran.end()), (Outcome::Failed, (Some(4), None)));
    let run = ran.record.run.as_ref().unwrap();
    let all = 6_888_896;
    assert_eq!((run.output_bytes, run.output_left_out), (all, all - (1 << 20)));
    let text = ran.text();
    let left_out = ran.kept.as_ref().unwrap().left_out;
    assert!(text.contains(&format!("[fleetcron: {left_out} bytes left out]\n")), "the cut is marked");
    assert!(text.starts_with("1\n2\n3\n") && text.ends_with("\n999999\n1000000\n"));
    assert!(ran.tail().ends_with("999999\n1000000\n") && ran.tail().len() <= 4096);
    assert!(ran.stored < 16 << 10, "{} bytes in the store", ran.stored);
    println!("seq 1000000: {all} bytes written, {left_out} left out, {} bytes in the store", ran.stored);
}

#[tokio::test]
async fn endless_lines_and_floods_are_drained_within_bounded_memory() {
    const BOUND: u64 = 30 << 10;
    let bench = Bench::new().await;
    let daemon_before = peak_kib(bench.node.pid());
    // Bytes.
    let flood: u64 = if long() { 5_000_000_000 } else { 200_000_000 };
    for (command, bytes) in [
        (format!("head -c {flood} /dev/zero | tr '\\0' x; echo; echo end"), flood + 5),
        ("yes | head -n 5000000; echo end".to_owned(), 10_000_004),
    ] {
        // The guard is looked at while its command waits at the end of its output.
        let (full, go) = (bench.fleet.path("full"), bench.fleet.path("go"));
        for file in [&full, &go] {
            let _ = fs::remove_file(file);
        }
        let wait = format!("touch {}; until [ -e {} ]; do sleep 0.05; done", full.display(), go.display());
        let fire = bench.start_job(&format!("command = {}", quoted(&format!("{command}; {wait}")))).await;
        bench.fleet.wait_until("the output to be written", async || full.exists()).await;
        let [guard] = bench.node.guards()[..] else { panic!("one guard, please") };
        let guard_peak = peak_kib(guard);
        fs::write(&go, "").unwrap();
        let ran = bench.ran(&fire).await;
        assert_eq!(ran.record.outcome, Outcome::Succeeded);
        assert_eq!(ran.record.run.as_ref().unwrap().output_bytes, bytes, "every byte was taken");
        let kept = ran.kept.as_ref().expect("there was output");
        assert!(kept.text().ends_with("\nend\n"), "the end is kept");
        let daemon_grew = peak_kib(bench.node.pid()) - daemon_before;
        println!(
            "{command:?}: guard's peak {guard_peak} KiB, daemon's grew by {daemon_grew} KiB, {} bytes left out",
            kept.left_out
        );
        assert!(guard_peak < BOUND, "the guard needed {guard_peak} KiB");
        assert!(daemon_grew < BOUND, "the daemon needed {daemon_grew} KiB more");
    }
}

/// The most memory that a process had at any time, in KiB.
fn peak_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a process has a peak");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn no_letter_is_torn_by_reads_or_by_the_cap() {
    let bench = Bench::new().await;
    let euros = "i=0; while [ $i -lt 40000 ]; do printf '\\342\\202\\254'; i=$((i+1)); done";
    let ran = bench.run(euros).await;
    assert_eq!(ran.text(), "€".repeat(40_000));
    for cap in ["10000B", "10001B", "10002B"] {
        let fields =
            format!("command = {}\nkeep = {{ output = '{cap}' }}", quoted(&format!("{euros}; exit 1")));
        let ran = bench.run_job(&fields).await;
        let text = ran.text();
        let left_out = ran.kept.as_ref().unwrap().left_out;
        let note = format!("\n[fleetcron: {left_out} bytes left out]\n");
        let signs = text.replace(&note, "");
        assert!(text.contains(&note) && signs.chars().all(|sign| sign == '€'), "{cap}: {text:.100}");
        assert_eq!(signs.len() as u64 + left_out, 120_000, "{cap}");
        assert!(ran.tail().chars().all(|sign| sign == '€') && !ran.tail().is_empty(), "{cap}");
    }
}

#[tokio::test]
async fn a_job_runs_as_its_user_and_one_that_is_unknown_or_not_allowed_does_not() {
    let bench = Bench::new().await;
    let ran = bench.run_job("command = 'true'\nuser = 'nosuchuser'").await;
    assert_eq!((ran.record.outcome, ran.end()), (Outcome::Failed, (None, None)));
    assert_eq!(ran.reason(), "could not start: user nosuchuser: there is no such user");
    let ran =
        bench.run_job("command = 'read line; echo $line'\nstdin = 'hello'\nlimits = { nofile = 99 }").await;
    assert_eq!(ran.text(), "hello\n");
    if nix::unistd::geteuid().is_root() {
        let ran = bench.run_job("command = 'id -un; pwd; umask'\nuser = 'daemon'\numask = '077'").await;
        let home = nix::unistd::User::from_name("daemon").unwrap().unwrap().dir;
        assert_eq!(ran.text(), format!("daemon\n{}\n0077\n", home.display()));
    }
    let Bench { fleet, mut node } = bench;
    node.stop(&fleet).await;
    let settings = fleet.path("strict.toml");
    fs::write(&settings, "allow_users = ['nobody']\n").unwrap();
    let node = fleet.node("b").with(&["--config", settings.to_str().unwrap()]).ready().await;
    let bench = Bench { fleet, node };
    for fields in ["command = 'true'", "command = 'true'\nuser = 'daemon'"] {
        let ran = bench.run_job(fields).await;
        assert_eq!((ran.record.outcome, ran.end()), (Outcome::Refused, (None, None)), "{fields}");
        assert!(ran.kept.is_none());
    }
}

#[tokio::test]
async fn a_daemon_that_is_not_root_refuses_the_jobs_of_others() {
    if !nix::unistd::geteuid().is_root() {
        println!("not shown: this needs root");
        return;
    }
    let fleet = Fleet::on_sqlite().await;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(fleet.path(""), open).unwrap();
    let setup = fleet.node("a");
    let (command, _) = setup.command();
    // Another store than the fleet's, which is closed to all but its owner.
    let place = fleet.path("of-nobody");
    let jobs = fleet.path("jobs.toml");
    let text = "[jobs.other]\nschedule = '@every 1s'\ncommand = 'true'\nuser = 'daemon'\n\
                [jobs.own]\nschedule = '@every 1s'\ncommand = 'exit 7'\nuser = 'nobody'\n";
    fs::write(&jobs, text).unwrap();
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
    nobody.arg(command.get_program()).args(["run", "--node", "a", "--store"]);
    nobody.arg(format!("sqlite:{}", place.join("store.db").display()));
    nobody.arg("--state").arg(place.join("state")).arg("--jobs").arg(&jobs);
    fs::create_dir(&place).unwrap();
    let ids = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    std::os::unix::fs::chown(&place, Some(ids.uid.as_raw()), Some(ids.gid.as_raw())).unwrap();
    let node = setup.start_as(nobody);
    let refused = "this node runs as nobody and cannot run commands as daemon";
    node.wait_until_it_says(&fleet, refused).await;
    fleet
        .wait_until("its own job to run", async || node.says("job=own") && node.says("outcome=failed"))
        .await;
}

#[tokio::test]
async fn kept_output_goes_with_its_record_at_the_next_start() {
    let bench = Bench::new().await;
    let (stays, goes) = (bench.run("echo one").await, bench.run("echo two").await);
    let Bench { fleet, mut node } = bench;
    node.stop(&fleet).await;
    let outputs = node.state.join("output");
    let kept = |ran: &Ran| kept_output(&outputs, &ran.record.fire, 1);
    assert!(kept(&stays).exists() && kept(&goes).exists());
    let record = keys::record(&goes.record.fire);
    fleet.store.txn(Txn::new().then([Op::delete(record.as_str())])).await.unwrap();
    let node = fleet.node("a").ready().await;
    fleet.wait_until("the output to be removed", async || !kept(&goes).exists()).await;
    assert!(kept(&stays).exists() && node.says("kept output that had outlived"));
}
