//! Real etcd servers for tests: each test starts its own, on free ports and in a folder of their own.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fleetcron::store::{Access, Address, Store, StoreError};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// For anything that takes a moment: how long until the test gives up.
pub const SOON: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V34,
    V36,
}

impl Version {
    fn binary(self) -> PathBuf {
        let (variable, usual) = match self {
            Version::V34 => ("FLEETCRON_ETCD_34", PathBuf::from("etcd")),
            Version::V36 => {
                let root = Path::new(env!("CARGO_MANIFEST_DIR"));
                ("FLEETCRON_ETCD_36", root.join(".cache/etcd-3.6/etcd"))
            }
        };
        std::env::var_os(variable).map_or(usual, PathBuf::from)
    }
}

/// One member, running until it is dropped.
pub struct Etcd {
    version: Version,
    arguments: Vec<String>,
    folder: TempDir,
    scheme: &'static str,
    port: u16,
    process: Option<Child>,
}

impl Etcd {
    /// A cluster of one, which answers.
    pub async fn start(version: Version) -> Etcd {
        Etcd::start_with(version, &[]).await
    }

    pub async fn start_with(version: Version, more: &[&str]) -> Etcd {
        let mut etcd = Etcd::new(version, "http", free_port());
        let peer = format!("http://127.0.0.1:{}", free_port());
        etcd.join_cluster("one", &peer, &format!("one={peer}"));
        etcd.arguments.extend(more.iter().map(|argument| argument.to_string()));
        etcd.run();
        etcd.wait_until_it_answers().await;
        etcd
    }

    /// One that serves its clients over TLS and asks them for a certificate.
    pub fn start_tls(version: Version, certificates: &Path) -> Etcd {
        let mut etcd = Etcd::new(version, "https", free_port());
        let peer = format!("http://127.0.0.1:{}", free_port());
        etcd.join_cluster("one", &peer, &format!("one={peer}"));
        let file = |name: &str| certificates.join(name).display().to_string();
        for (option, name) in
            [("--cert-file", "server.pem"), ("--key-file", "server.key"), ("--trusted-ca-file", "ca.pem")]
        {
            etcd.arguments.extend([option.to_owned(), file(name)]);
        }
        etcd.arguments.push("--client-cert-auth".to_owned());
        etcd.run();
        etcd
    }

    /// Three members of one cluster.
    pub async fn start_three(version: Version) -> Vec<Etcd> {
        let names = ["one", "two", "three"];
        let peers = names.map(|_| format!("http://127.0.0.1:{}", free_port()));
        let all: Vec<_> = names.iter().zip(&peers).map(|(n, peer)| format!("{n}={peer}")).collect();
        let mut members: Vec<Etcd> = Vec::new();
        for (name, peer) in names.iter().zip(&peers) {
            let mut etcd = Etcd::new(version, "http", free_port());
            etcd.join_cluster(name, peer, &all.join(","));
            etcd.run();
            members.push(etcd);
        }
        for member in &members {
            member.wait_until_it_answers().await;
        }
        members
    }

    fn new(version: Version, scheme: &'static str, port: u16) -> Etcd {
        Etcd {
            version,
            arguments: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
            scheme,
            port,
            process: None,
        }
    }

    fn join_cluster(&mut self, name: &str, peer: &str, all: &str) {
        let client = format!("{}://127.0.0.1:{}", self.scheme, self.port);
        let data = self.folder.path().join("data").display().to_string();
        let options = [
            ("--name", name),
            ("--data-dir", &data),
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", peer),
            ("--initial-advertise-peer-urls", peer),
            ("--initial-cluster", all),
        ];
        for (option, value) in options {
            self.arguments.extend([option.to_owned(), value.to_owned()]);
        }
    }

    fn run(&mut self) {
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let binary = self.version.binary();
        let process = Command::new(&binary)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let process = process.unwrap_or_else(|error| {
            panic!("cannot run {}: {error}; run `tests/setup-etcd` first", binary.display())
        });
        self.process = Some(process);
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    async fn wait_until_it_answers(&self) {
        let until = Instant::now() + SOON;
        loop {
            match Store::open(&self.address("wait"), &Access::default()).await {
                Ok(_) | Err(StoreError::Denied { .. }) => return,
                Err(error) if Instant::now() > until => {
                    let log = std::fs::read_to_string(self.log()).unwrap_or_default();
                    panic!("etcd does not answer: {error}\n{log}");
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn address(&self, prefix: &str) -> Address {
        let scheme = if self.scheme == "https" { "etcds" } else { "etcd" };
        format!("{scheme}://{}/{prefix}", self.host()).parse().unwrap()
    }

    pub async fn open(&self, prefix: &str) -> Store {
        Store::open(&self.address(prefix), &Access::default()).await.unwrap()
    }

    /// Like a power failure of the machine.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // A stopped process dies of this one too.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// In order, as a service manager stops it.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        if let Some(mut process) = self.process.take() {
            let _ = process.wait();
        }
    }

    /// Like a machine that hangs: connections stay open and nothing answers. On a busy machine its threads stop some
    /// time after the signal; when this returns, all have.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
        let until = Instant::now() + SOON;
        while !self.is_stopped() {
            assert!(Instant::now() < until, "etcd does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_stopped(&self) -> bool {
        let process = self.process.as_ref().expect("it runs").id();
        let mut threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it is there").flatten();
        threads.all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    }

    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("it runs");
        kill(Pid::from_raw(process.id() as i32), signal).unwrap();
    }

    /// Starts it again, with the same data.
    pub async fn restart(&mut self) {
        self.kill();
        self.run();
        self.wait_until_it_answers().await;
    }

    /// Runs etcdctl against this member.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let done = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", self.host()))
            .args(arguments)
            .output()
            .unwrap_or_else(|error| panic!("cannot run etcdctl: {error}; run `tests/setup-etcd` first"));
        assert!(done.status.success(), "etcdctl {arguments:?}: {done:?}");
        String::from_utf8(done.stdout).expect("etcdctl speaks UTF-8")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that nobody listens on, and that no other test of this process gets.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if GIVEN.lock().unwrap().insert(port) {
            return port;
        }
    }
}

/// A CA with certificates for a server and a client, and a CA of somebody else.
pub fn make_certificates(folder: &Path) {
    let openssl = |line: &str| {
        let done = Command::new("openssl").args(line.split(' ')).current_dir(folder).output().unwrap();
        assert!(done.status.success(), "openssl {line}: {done:?}");
    };
    for ca in ["ca", "other-ca"] {
        openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={ca} -keyout {ca}.key -out {ca}.pem"
        ));
    }
    std::fs::write(
        folder.join("extensions"),
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n",
    )
    .unwrap();
    for name in ["server", "client"] {
        openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ));
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out {name}.pem"
        ));
    }
}
