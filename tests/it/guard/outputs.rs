//! What is put into a command's environment from files, and what is kept of its output and its use of the machine.

use std::os::unix::fs::{PermissionsExt, chown};

use fleetcron::guard::folder::Credential;

use super::*;

/// A file of variables with this mode.
fn variables(runs: &Runs, name: &str, text: &str, mode: u32) -> String {
    let path = runs.path(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path.display().to_string()
}

#[tokio::test]
async fn variables_from_files_of_the_node_take_the_place_of_the_jobs() {
    let runs = Runs::new();
    let file = variables(&runs, "a.env", "A=file\nB='of the node'\n", 0o600);
    variables(&runs, "secret", "C=credential\n", 0o400);
    let mut spec = Spec {
        env_file: Some(file),
        credential: Some(Credential { name: "secret".to_owned(), folder: Some(runs.path("")) }),
        ..shell("echo $A, $B, $C, $D")
    };
    spec.env.extend([("A", "job"), ("D", "job")].map(|(name, value)| (name.to_owned(), value.to_owned())));
    let (run, ended) = runs.run(&spec).await;
    assert_eq!(ended.how, How::Exited, "{ended:?}");
    assert_eq!(run.text(), "file, of the node, credential, job\n");
}

#[tokio::test]
async fn a_file_of_variables_that_cannot_be_trusted_keeps_the_command_from_starting() {
    let runs = Runs::new();
    let root = nix::unistd::geteuid().is_root();
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap().uid.as_raw();
    let foreign = variables(&runs, "foreign", "A=1", 0o600);
    if root {
        chown(&foreign, Some(nobody), None).unwrap();
    }
    let open = variables(&runs, "open", "A=1", 0o622);
    let odd = variables(&runs, "odd", "A=1\nhunter2\n", 0o600);
    let own = variables(&runs, "own", "A=1", 0o600);
    let missing = runs.path("missing").display().to_string();
    let folder = runs.path("").display().to_string();
    let file = |path: &str| Spec { env_file: Some(path.to_owned()), ..shell("true") };
    let of_nobody = |path: &str| Spec { user: Some("nobody".into()), ..file(path) };
    let credential = |folder: Option<PathBuf>| Spec {
        credential: Some(Credential { name: "none".to_owned(), folder }),
        ..shell("true")
    };
    let mut cases = vec![
        (file(&open), format!("env_file {open}: others may write to it (mode 0622)")),
        (file(&odd), format!("env_file {odd}: line 2: it is not NAME=value")),
        (file(&missing), format!("env_file {missing}: no such file or directory")),
        (file(&folder), format!("env_file {folder}: it is no regular file")),
        (credential(None), "env_from: this node was started without credentials".to_owned()),
        (credential(Some(runs.path(""))), "env_from credentials:none: no such file or directory".to_owned()),
    ];
    if root {
        cases.extend([
            (file(&foreign), format!("env_file {foreign}: it belongs to another user ({nobody})")),
            // A definition in the store gets at no more than its user could.
            (of_nobody(&own), format!("env_file {own}: the job's user may not read it")),
        ]);
        assert_eq!(runs.run(&of_nobody(&foreign)).await.1.how, How::Exited, "its own file it may read");
    }
    for (spec, why) in cases {
        let (_, ended) = runs.run(&spec).await;
        assert_eq!((ended.how, ended.reason), (How::CouldNotStart, Some(why)));
    }
}

#[tokio::test]
async fn values_that_are_to_be_redacted_are_not_in_the_output() {
    let runs = Runs::new();
    let file = variables(&runs, "a.env", "PASSWORD=hunter2\nEMPTY=\n", 0o600);
    // The second one comes in two pieces, across two reads.
    let says =
        "echo pw=$PASSWORD; printf hun; sleep 0.1; echo ter2; echo hunter; printf $PASSWORD; printf hunt";
    let redact = ["PASSWORD", "EMPTY", "UNSET"].map(str::to_owned).into();
    let (run, _) = runs.run(&Spec { env_file: Some(file), redact, ..shell(says) }).await;
    assert_eq!(run.text(), "pw=[redacted]\n[redacted]\nhunter\n[redacted]hunt");
    // All of it, however much there is, and with the times of the lines.
    let mut spec = Spec {
        redact: ["PASSWORD".to_owned()].into(),
        timestamps: true,
        output_cap: 10 << 20,
        ..shell("yes x$PASSWORD | head -n 100000")
    };
    spec.env.insert("PASSWORD".to_owned(), "hunter2".to_owned());
    let (run, _) = runs.run(&spec).await;
    let text = run.text();
    assert_eq!(text.lines().count(), 100_000);
    for line in text.lines() {
        let (time, said) = line.split_once(' ').unwrap();
        assert!(chrono::DateTime::parse_from_rfc3339(time).is_ok() && said == "x[redacted]", "{line}");
    }
}

#[tokio::test]
async fn a_line_without_end_takes_no_memory_though_its_time_and_its_secrets_are_looked_for() {
    const BOUND: u64 = 30 << 10;
    let runs = Runs::new();
    let (full, go) = (runs.path("full"), runs.path("go"));
    let floods = format!(
        "head -c 100000000 /dev/zero | tr '\\0' h; touch {}; until [ -e {} ]; do sleep 0.05; done",
        full.display(),
        go.display()
    );
    let mut spec = Spec { redact: ["PASSWORD".to_owned()].into(), timestamps: true, ..shell(&floods) };
    spec.env.insert("PASSWORD".to_owned(), "hunter2".to_owned());
    let mut run = runs.start(&spec).await;
    wait_for("the output to be written", || full.exists().then_some(())).await;
    let status = fs::read_to_string(format!("/proc/{}/status", run.guard_pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < BOUND, "the guard needed {peak} KiB");
    fs::write(&go, "").unwrap();
    let ended = run.ended().await;
    // The line's time comes before it.
    assert_eq!(
        (end(&ended).0, ended.output_bytes),
        (Some(0), 100_000_000 + "2026-11-30T02:00:00.000Z ".len() as u64)
    );
}

#[tokio::test]
async fn a_full_disk_neither_stops_the_command_nor_loses_how_it_ended() {
    if !nix::unistd::geteuid().is_root() {
        println!("not shown: this needs root");
        return;
    }
    let runs = Runs::new();
    let small = Small::mount(&runs.path("runs"));
    let mark = runs.path("mark");
    let floods = format!("head -c 3000000 /dev/zero; touch {}; exit 9", mark.display());
    let spec = Spec { output_cap: 10 << 20, ..shell(&floods) };
    let (run, ended) = runs.run(&spec).await;
    assert_eq!((ended.how, end(&ended)), (How::Exited, (Some(9), None)));
    assert!(mark.exists(), "it was never held up");
    assert_eq!(ended.output_failed.as_deref(), Some("no space left on device"));
    assert_eq!(ended.output_bytes, 3_000_000);
    let kept = output::read(&run.folder.output()).unwrap();
    assert!(!kept.head.is_empty() && ended.output_left_out > 2_000_000, "what fits is kept");
    drop(run);
    drop(small);
}

/// A small disk, for as long as this is there.
struct Small {
    place: PathBuf,
}

impl Small {
    fn mount(place: &Path) -> Small {
        fs::create_dir_all(place).unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(place);
        assert!(mount.status().unwrap().success());
        Small { place: place.to_owned() }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.place).status();
    }
}

#[tokio::test]
async fn what_a_command_used_is_told_with_what_its_children_used() {
    let runs = Runs::new();
    let works = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; head -c 100000000 /dev/zero | tail -c 100000000 | wc -c";
    let (_, ended) = runs.run(&shell(works)).await;
    let usage = ended.usage.expect("it ran");
    assert!(usage.cpu > 10, "{usage:?}");
    // `tail` holds all of it.
    assert!((100_000_000..1_000_000_000).contains(&usage.peak_memory), "{usage:?}");
    let (_, ended) = runs.run(&Spec { workdir: "/no/such/folder".to_owned(), ..shell("true") }).await;
    assert_eq!(ended.usage, None, "it never ran");
}
