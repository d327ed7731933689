//! As whom, within which limits and with what to read a command runs. What needs root is skipped without it.

use super::*;

pub fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("not shown: this needs root");
    }
    root
}

#[tokio::test]
async fn a_user_has_exactly_its_own_ids_and_groups_and_no_capability() {
    if !is_root() {
        return;
    }
    let runs = Runs::new();
    let looks =
        "id -u; id -g; id -G; id -un; grep -E '^(Uid|Gid|Groups|Cap(Inh|Prm|Eff|Amb))' /proc/self/status";
    let spec = Spec { user: Some("nobody".to_owned()), workdir: String::new(), ..shell(looks) };
    let (run, ended) = runs.run(&spec).await;
    assert_eq!(ended.how, How::Exited, "{ended:?}");
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let (uid, gid) = (nobody.uid, nobody.gid);
    let none = "0000000000000000";
    let expected = format!(
        "{uid}\n{gid}\n{gid}\nnobody\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{gid}\t{gid}\t{gid}\t{gid}\n\
         Groups:\t{gid} \nCapInh:\t{none}\nCapPrm:\t{none}\nCapEff:\t{none}\nCapAmb:\t{none}\n"
    );
    assert_eq!(run.text(), expected);
    // Its names and home, unless the job says otherwise.
    let mut spec = Spec { user: Some("daemon".to_owned()), workdir: String::new(), ..shell("exec env") };
    spec.env.insert("SHELL".to_owned(), "/bin/zsh".to_owned());
    let (run, _) = runs.run(&spec).await;
    let daemon = nix::unistd::User::from_name("daemon").unwrap().unwrap();
    let home = daemon.dir.display();
    for line in
        [format!("HOME={home}"), "LOGNAME=daemon".into(), "USER=daemon".into(), "SHELL=/bin/zsh".into()]
    {
        assert!(run.text().lines().any(|said| said == line), "{line}: {}", run.text());
    }
    let (run, _) = runs.run(&Spec { argv: vec!["pwd".to_owned()], ..spec }).await;
    assert_eq!(run.text(), format!("{home}\n"));
}

#[tokio::test]
async fn a_group_takes_the_place_of_the_users_own() {
    if !is_root() {
        return;
    }
    let runs = Runs::new();
    let group = |name: &str| nix::unistd::Group::from_name(name).unwrap().unwrap().gid;
    let looks =
        Spec { user: Some("nobody".into()), group: Some("daemon".into()), ..shell("id -u; id -g; id -G") };
    let (run, _) = runs.run(&looks).await;
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    assert_eq!(run.text(), format!("{}\n{gid}\n{gid}\n", nobody.uid, gid = group("daemon")));
}

#[tokio::test]
async fn whoever_is_unknown_is_nobody_else_and_the_step_is_told() {
    let runs = Runs::new();
    let mark = runs.path("mark");
    let touch = format!("touch {}", mark.display());
    let user = |name: &str| Spec { user: Some(name.to_owned()), ..shell(&touch) };
    let group = |name: &str| Spec { group: Some(name.to_owned()), ..shell(&touch) };
    for (spec, why) in [
        (user("nosuchuser"), "user nosuchuser: there is no such user"),
        (user(""), "user : there is no such user"),
        (user("0"), "user 0: there is no such user"),
        (group("nosuchgroup"), "group nosuchgroup: there is no such group"),
        (group("0"), "group 0: there is no such group"),
    ] {
        let (_, ended) = runs.run(&spec).await;
        assert_eq!((ended.how, ended.started_at), (How::CouldNotStart, None));
        assert_eq!(ended.reason.as_deref(), Some(why));
        assert!(!mark.exists(), "{why}");
    }
}

#[tokio::test]
async fn who_may_not_enter_the_folder_does_not_start() {
    if !is_root() {
        return;
    }
    let runs = Runs::new();
    let closed = runs.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let workdir = closed.display().to_string();
    let spec = Spec { user: Some("nobody".into()), workdir: workdir.clone(), ..shell("true") };
    let (_, ended) = runs.run(&spec).await;
    let why = format!("working folder {workdir}: permission denied");
    assert_eq!((ended.how, ended.reason), (How::CouldNotStart, Some(why)));
}

#[tokio::test]
async fn limits_and_the_rest_are_seen_from_inside() {
    let runs = Runs::new();
    let looks = "umask; nice; ionice -p $$; grep NoNewPrivs /proc/self/status; cat /proc/self/limits";
    let limits: BTreeMap<String, Option<u64>> = [
        ("core", 0),
        ("cpu", 61),
        ("data", 1 << 30),
        ("fsize", 123_456),
        ("memlock", 4096),
        ("memory", 1 << 31),
        ("nofile", 77),
        ("nproc", 4321),
        ("stack", 1 << 22),
    ]
    .map(|(name, most)| (name.to_owned(), Some(most)))
    .into();
    let bound = Spec {
        umask: Some(0o027),
        nice: Some(7),
        ionice: Some("best-effort:6".to_owned()),
        no_new_privs: true,
        limits: limits.clone(),
        ..shell(looks)
    };
    let (run, ended) = runs.run(&bound).await;
    assert_eq!(ended.how, How::Exited, "{ended:?}");
    let text = run.text();
    let lines: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[..4], ["0027", "7", "best-effort: prio 6", "NoNewPrivs: 1"], "{text}");
    for line in [
        "Max core file size 0 0 bytes",
        "Max cpu time 61 61 seconds",
        "Max data size 1073741824 1073741824 bytes",
        "Max file size 123456 123456 bytes",
        "Max locked memory 4096 4096 bytes",
        "Max address space 2147483648 2147483648 bytes",
        "Max open files 77 77 files",
        "Max processes 4321 4321 processes",
        "Max stack size 4194304 4194304 bytes",
    ] {
        assert!(lines.iter().any(|said| said == line), "{line}: {text}");
    }
    // Off by default: jobs call sudo.
    let (run, _) = runs.run(&shell("grep NoNewPrivs /proc/self/status")).await;
    assert_eq!(run.text(), "NoNewPrivs:\t0\n");
}

#[tokio::test]
async fn a_limit_ends_a_command_as_the_kernel_does_it() {
    let runs = Runs::new();
    let limit = |name: &str, most| BTreeMap::from([(name.to_owned(), Some(most))]);
    let path = runs.path("large").display().to_string();
    let writes = format!("exec head -c 100000 /dev/zero > {path}");
    let (_, ended) = runs.run(&Spec { limits: limit("fsize", 1000), ..shell(&writes) }).await;
    assert_eq!(end(&ended), (None, Some("XFSZ".to_owned())));
    let (_, ended) = runs.run(&Spec { limits: limit("cpu", 1), ..shell("while :; do :; done") }).await;
    // Both limits are the same, so the kernel does not ask first.
    assert!(matches!(ended.signal, Some(9 | 24)), "{ended:?}");
    let (_, ended) =
        runs.run(&Spec { nice: Some(-5), user: Some("nosuchuser".into()), ..shell("true") }).await;
    assert_eq!(ended.how, How::CouldNotStart);
}

#[tokio::test]
async fn a_command_reads_what_its_job_says_and_else_nothing() {
    let runs = Runs::new();
    let large = "0123456789abcde\n".repeat(20_000);
    for stdin in ["yes\n", "", "two\nlines without an end", &large] {
        let (run, ended) = runs.run(&Spec { stdin: Some(stdin.to_owned()), ..shell("exec cat") }).await;
        assert_eq!((end(&ended), run.text().as_str()), ((Some(0), None), stdin));
    }
    let (run, _) = runs.run(&shell("cat; readlink /proc/self/fd/0; ls /proc/self/fd | wc -l")).await;
    assert_eq!(run.text(), "/dev/null\n4\n");
}
