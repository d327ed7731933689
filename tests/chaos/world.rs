//! The machines of the fleet: a network namespace each, on one bridge, with an etcd member or a node in it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub const MEMBERS: usize = 3;
pub const NODES: usize = 5;
/// The nodes from here on reach etcd through relays that can be slow.
const FIRST_BEHIND_RELAYS: usize = 3;
/// What a node's state folder has room for.
const DISK: &str = "64m";
/// The operator's own machine.
const DESK: &str = "desk";

/// One of the machines that have a network to lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    Member(usize),
    Node(usize),
}

impl Host {
    pub fn name(self) -> String {
        match self {
            Host::Member(number) => format!("e{}", number + 1),
            Host::Node(number) => node_name(number),
        }
    }

    fn address(self) -> String {
        match self {
            Host::Member(number) => format!("10.77.0.{}", 1 + number),
            Host::Node(number) => format!("10.77.0.{}", 11 + number),
        }
    }
}

pub fn node_name(number: usize) -> String {
    format!("n{}", number + 1)
}

pub fn etcd_version() -> String {
    std::env::var("CHAOS_ETCD").ok().filter(|version| !version.is_empty()).unwrap_or("3.6".to_owned())
}

fn etcd_binary() -> PathBuf {
    let from = |variable: &str, usual: PathBuf| std::env::var_os(variable).map_or(usual, PathBuf::from);
    match &*etcd_version() {
        "3.4" => from("FLEETCRON_ETCD_34", "etcd".into()),
        "3.6" => {
            from("FLEETCRON_ETCD_36", Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/etcd-3.6/etcd"))
        }
        other => panic!("CHAOS_ETCD is 3.4 or 3.6, not {other}"),
    }
}

pub struct World {
    pub folder: PathBuf,
    pub members: Vec<Member>,
    pub nodes: Vec<Node>,
    cuts: BTreeSet<(Host, Host)>,
}

impl World {
    /// All machines, and nothing that runs on them yet.
    pub fn make(folder: PathBuf) -> World {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        make_network();
        for build in ["build-a", "build-b"] {
            copy_build(&folder.join(build));
        }
        let members = (0..MEMBERS).map(|number| Member { number, folder: folder.clone(), process: None });
        let nodes = (0..NODES).map(|number| Node::make(number, &folder));
        World { members: members.collect(), nodes: nodes.collect(), folder, cuts: BTreeSet::new() }
    }

    /// The operator's `fleetcron`, on a machine that nothing happens to.
    pub fn fleetcron(&self, arguments: &[&str]) -> Command {
        let mut command = on(DESK, env!("CARGO_BIN_EXE_fleetcron"));
        command.args(["--store", &store(&clients(0..MEMBERS))]).args(arguments);
        command
    }

    /// etcd's own tool, with these members or all.
    pub fn etcdctl(&self, members: &[usize], arguments: &[&str]) -> Command {
        let mut command = on(DESK, "timeout");
        command.args(["10", "etcdctl", "--command-timeout=4s", "--endpoints"]);
        command.arg(clients(members.iter().copied()).join(",")).args(arguments).env("ETCDCTL_API", "3");
        command
    }

    /// The member that leads at the moment, if one that answers says that it does.
    pub fn leader(&self) -> Option<usize> {
        let mut answers = (0..MEMBERS).filter(|number| {
            let status = self.etcdctl(&[*number], &["endpoint", "status", "-w", "fields"]).output();
            let text =
                status.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
            let field = |name: &str| {
                let line = text.lines().find(|line| line.starts_with(&format!("\"{name}\"")))?;
                Some(line.rsplit_once(' ')?.1.to_owned())
            };
            field("MemberID").is_some_and(|own| field("Leader") == Some(own))
        });
        answers.next_back()
    }

    /// Has what one machine sends to another no longer arrive, or arrive again.
    pub fn cut(&mut self, from: Host, to: Host, cut: bool) {
        match cut {
            true => self.cuts.insert((from, to)),
            false => self.cuts.remove(&(from, to)),
        };
        self.write_cuts(to);
    }

    pub fn mend_all_links(&mut self) {
        let receivers: BTreeSet<Host> =
            std::mem::take(&mut self.cuts).into_iter().map(|(_, to)| to).collect();
        receivers.into_iter().for_each(|to| self.write_cuts(to));
    }

    /// What is dropped is dropped where it arrives, so that the sender cannot know.
    fn write_cuts(&self, to: Host) {
        let drops = self.cuts.iter().filter(|(_, receiver)| *receiver == to);
        let drops: String =
            drops.map(|(from, _)| format!("    ip saddr {} drop\n", from.address())).collect();
        let rules = format!(
            "flush ruleset\ntable inet cuts {{\n  chain input {{\n    type filter hook input priority 0;\n{drops}  }}\n}}\n"
        );
        let mut nft = on(&to.name(), "nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft");
        nft.stdin.take().expect("it is piped").write_all(rules.as_bytes()).expect("nft reads");
        assert!(nft.wait().expect("nft ends").success(), "nft refuses {rules}");
    }

    /// Keeps what tells of the run, of which a part is in memory only.
    pub fn keep(&self) {
        for node in &self.nodes {
            let to = self.folder.join(format!("kept-{}", node_name(node.number)));
            let _ = Command::new("cp").arg("-a").arg(&node.state).arg(to).status();
        }
    }
}

/// Where these members listen for clients.
fn clients(members: impl IntoIterator<Item = usize>) -> Vec<String> {
    members.into_iter().map(|number| format!("{}:2379", Host::Member(number).address())).collect()
}

fn store(clients: &[String]) -> String {
    format!("etcd://{}/chaos", clients.join(","))
}

/// A command in the network of a machine.
fn on(machine: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", machine, program]).stdin(Stdio::null());
    command
}

fn make_network() {
    // The names of networks lie there, and these are to go with this one.
    run("mount", &["-t", "tmpfs", "none", "/run"]);
    run("ip", &["link", "add", "bridge", "type", "bridge"]);
    run("ip", &["link", "set", "bridge", "up"]);
    let members = (0..MEMBERS).map(Host::Member);
    let nodes = (0..NODES).map(Host::Node);
    let all = members.chain(nodes).map(|host| (host.name(), host.address()));
    for (name, address) in all.chain([(DESK.to_owned(), "10.77.0.100".to_owned())]) {
        let outside = format!("to-{name}");
        run("ip", &["netns", "add", &name]);
        run("ip", &["link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns", &name]);
        run("ip", &["link", "set", &outside, "master", "bridge", "up"]);
        run("ip", &["-n", &name, "addr", "add", &format!("{address}/24"), "dev", "eth0"]);
        run("ip", &["-n", &name, "link", "set", "eth0", "up"]);
        run("ip", &["-n", &name, "link", "set", "lo", "up"]);
    }
}

fn run(program: &str, arguments: &[&str]) {
    let done =
        Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Another build of the daemon, as far as anybody can tell by its place.
fn copy_build(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    let built = Path::new(env!("CARGO_BIN_EXE_fleetcron")).parent().expect("it lies in a folder");
    for binary in ["fleetcron", "fleetcron-guard"] {
        fs::copy(built.join(binary), folder.join(binary)).expect("a copy");
    }
}

fn log_to(path: &Path) -> File {
    File::options().create(true).append(true).open(path).expect("a log")
}

/// One member of the etcd cluster.
pub struct Member {
    number: usize,
    folder: PathBuf,
    process: Option<Child>,
}

impl Member {
    pub fn start(&mut self) {
        let host = Host::Member(self.number);
        let peer = |host: Host| format!("http://{}:2380", host.address());
        let client = format!("http://{}:2379", host.address());
        let all: Vec<String> =
            (0..MEMBERS).map(Host::Member).map(|host| format!("{}={}", host.name(), peer(host))).collect();
        let data = self.folder.join(host.name());
        let mut command = on(&host.name(), etcd_binary().to_str().expect("a path in UTF-8"));
        command.args(["--name", &host.name(), "--data-dir"]).arg(data);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer(host), "--initial-advertise-peer-urls", &peer(host)]);
        command.args(["--initial-cluster", &all.join(",")]);
        command.stdout(Stdio::null()).stderr(log_to(&self.folder.join(format!("{}.log", host.name()))));
        self.process = Some(command.spawn().expect("etcd"));
    }

    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            let _ = kill(Pid::from_raw(process.id() as i32), signal);
        }
    }
}

/// One node: its daemon, which can be down, and all that it left running.
pub struct Node {
    pub number: usize,
    pub state: PathBuf,
    folder: PathBuf,
    build: &'static str,
    daemon: Option<Child>,
    relay: Option<Child>,
}

impl Node {
    fn make(number: usize, folder: &Path) -> Node {
        let state = folder.join(format!("state-{}", node_name(number)));
        fs::create_dir(&state).expect("a folder");
        run(
            "mount",
            &["-t", "tmpfs", "-o", &format!("size={DISK},mode=700"), "none", state.to_str().expect("a path")],
        );
        let mut node =
            Node { number, state, folder: folder.to_owned(), build: "build-a", daemon: None, relay: None };
        if number >= FIRST_BEHIND_RELAYS {
            node.relay = Some(node.start_relay());
        }
        node
    }

    pub fn has_relay(number: usize) -> bool {
        number >= FIRST_BEHIND_RELAYS
    }

    fn name(&self) -> String {
        node_name(self.number)
    }

    fn start_relay(&self) -> Child {
        let own = std::env::current_exe().expect("it has a path");
        let mut command = on(&self.name(), own.to_str().expect("a path in UTF-8"));
        command.arg("relay").stdin(Stdio::piped());
        for (member, port) in relay_ports() {
            command.arg(format!("{port}={}:2379", Host::Member(member).address()));
        }
        command.spawn().expect("a relay")
    }

    /// Has the relay be so slow, in milliseconds, or `reset`.
    pub fn tell_relay(&mut self, word: &str) {
        let relay = self.relay.as_mut().and_then(|relay| relay.stdin.as_mut()).expect("it has a relay");
        writeln!(relay, "{word}").expect("the relay lives");
    }

    pub fn start(&mut self) {
        let name = self.name();
        let reached = match Node::has_relay(self.number) {
            true => relay_ports().map(|(_, port)| format!("127.0.0.1:{port}")).collect(),
            false => clients(0..MEMBERS),
        };
        let binary = self.folder.join(self.build).join("fleetcron");
        let mut command = on(&name, binary.to_str().expect("a path in UTF-8"));
        command.args(["run", "--store", &store(&reached), "--node", &name, "--slots", "40", "--state"]);
        command.arg(&self.state);
        let role = if self.number < 2 { "role=db" } else { "role=web" };
        let zone = format!("zone={}", ["a", "b", "c"][self.number % 3]);
        command.args(["--label", role, "--label", &zone]);
        command.env("FLEETCRON_LOG", "debug,h2=info,tower=info,hyper=info").env("RUST_BACKTRACE", "1");
        command.stdout(Stdio::null()).stderr(log_to(&self.log()));
        self.daemon = Some(command.spawn().expect("a daemon"));
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name()))
    }

    /// Whether its daemon is there, frozen or not.
    pub fn is_up(&self) -> bool {
        self.daemon.is_some()
    }

    /// How its daemon ended, once, when it did so by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.daemon.as_mut()?.try_wait().expect("it can be waited for")?;
        self.daemon = None;
        Some(status)
    }

    /// The other build, from the next start on.
    pub fn replace(&mut self) {
        self.build = if self.build == "build-a" { "build-b" } else { "build-a" };
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(daemon) = &self.daemon {
            let _ = kill(Pid::from_raw(daemon.id() as i32), signal);
        }
    }

    /// Kills the daemon, and nothing else.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    /// Kills everything, as when the machine is gone. What forks meanwhile is killed as well.
    pub fn kill_host(&mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let all = self.processes();
            if all.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "{} has processes that cannot be killed", self.name());
            all.iter().for_each(|process| process.signal(Signal::SIGKILL));
            // Its own children are only gone when they are waited for.
            self.kill();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops everything, the guards before their commands, so that none of these outlives its guard's attention.
    pub fn freeze_host(&self) {
        for _ in 0..3 {
            let (commands, own): (Vec<_>, Vec<_>) =
                self.processes().into_iter().partition(Process::is_command);
            own.iter().chain(&commands).for_each(|process| process.signal(Signal::SIGSTOP));
        }
    }

    /// Lets daemon and guards go on; the commands only after [`Node::thaw_commands`]. A machine that wakes up wakes all
    /// at once, and then a command may run some instructions before its guard ends it. That is known and told; here it
    /// would hide what is not.
    pub fn thaw_own(&self) {
        let own = self.processes().into_iter().filter(|process| !process.is_command());
        own.for_each(|process| process.signal(Signal::SIGCONT));
    }

    pub fn thaw_commands(&self) {
        self.processes().iter().for_each(|process| process.signal(Signal::SIGCONT));
    }

    /// The guards that live, each with the processes of its session.
    pub fn runs(&self) -> Vec<GuardedRun> {
        let all = self.processes();
        let guards = all.iter().filter(|process| process.is_guard());
        let run = |guard: &Process| GuardedRun {
            guard: guard.clone(),
            commands: all
                .iter()
                .filter(|other| other.session == guard.pid && other.pid != guard.pid)
                .cloned()
                .collect(),
        };
        guards.map(run).collect()
    }

    /// All that runs in its network but the relay. Zombies do not run.
    fn processes(&self) -> Vec<Process> {
        let network = fs::metadata(Path::new("/run/netns").join(self.name())).expect("its network").ino();
        let relay = self.relay.as_ref().map(|relay| relay.id() as i32);
        let pids = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| Some(*pid) != relay)
            .filter(|pid| fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|its| its.ino() == network))
            .filter_map(Process::read)
            .collect()
    }

    /// Once nothing of it runs.
    pub fn give_disk_back(&self) {
        let _ = Command::new("umount").arg(&self.state).status();
    }

    /// Fills its disk, or makes room again.
    pub fn fill_disk(&self, fill: bool) {
        let path = self.state.join("filling");
        if !fill {
            let _ = fs::remove_file(path);
            return;
        }
        let mut file = File::create(path).expect("the disk takes a name");
        let piece = [0; 4096];
        while file.write_all(&piece).is_ok() {}
    }
}

fn relay_ports() -> impl Iterator<Item = (usize, u16)> {
    (0..MEMBERS).map(|member| (member, 23790 + member as u16))
}

/// A guard and what it watches.
pub struct GuardedRun {
    pub guard: Process,
    pub commands: Vec<Process>,
}

#[derive(Debug, Clone)]
pub struct Process {
    pid: i32,
    session: i32,
    program: String,
}

impl Process {
    fn read(pid: i32) -> Option<Process> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let session = fields.nth(2)?.parse().ok()?;
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let program = program.file_name()?.to_string_lossy().into_owned();
        (state != "Z").then_some(Process { pid, session, program })
    }

    fn is_guard(&self) -> bool {
        self.program.starts_with("fleetcron-guard") && self.session == self.pid
    }

    fn is_command(&self) -> bool {
        !self.program.starts_with("fleetcron")
    }

    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid), signal);
    }
}

/// A file that everybody may write to: commands run as other users, too.
pub fn make_for_all(path: &Path, text: &str) {
    fs::write(path, text).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("its owner may");
}
