//! Real backups: databases are dumped by jobs that fire from their schedule on a fleet, and the dumps restored.

use std::os::unix::fs::{MetadataExt, chown};

use super::*;
use crate::etcd::free_port;

/// A PostgreSQL of the test's own, on loopback.
struct Postgres {
    folder: TempDir,
    port: u16,
    process: Child,
    /// Neither the database nor its tools run as root.
    user: nix::unistd::User,
}

impl Postgres {
    fn start() -> Postgres {
        let user = ["postgres", "nobody"].iter().find_map(|name| nix::unistd::User::from_name(name).unwrap());
        let user = user.expect("there is a user nobody");
        let folder = tempfile::tempdir().unwrap();
        let is_root = nix::unistd::geteuid().is_root();
        if is_root {
            chown(folder.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        }
        let port = free_port();
        let data = folder.path().join("data");
        let mut make = Command::new(Postgres::program("initdb"));
        make.args(["--auth=trust", "--username=shop", "--encoding=UTF8", "--no-sync", "--pgdata"]).arg(&data);
        done(as_user(&mut make, &user));
        let mut server = Command::new(Postgres::program("postgres"));
        server
            .arg("-D")
            .arg(&data)
            .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k"])
            .arg(folder.path());
        let log = File::create(folder.path().join("log")).unwrap();
        as_user(&mut server, &user).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = server.spawn().unwrap();
        let server = Postgres { folder, port, process, user };
        let until = Instant::now() + LONG_ENOUGH;
        while !server.tool("psql").args(["-c", "select 1", "postgres"]).output().unwrap().status.success() {
            let log = || fs::read_to_string(server.folder.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "PostgreSQL does not answer\n{}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
        server
    }

    fn program(name: &str) -> PathBuf {
        let versions = fs::read_dir("/usr/lib/postgresql").unwrap_or_else(|error| {
            panic!("no PostgreSQL ({error}); run `tests/setup-databases` first");
        });
        let programs = versions.map(|version| version.unwrap().path().join("bin").join(name));
        programs.filter(|path| path.exists()).max().expect("run `tests/setup-databases` first")
    }

    /// One of the client's tools, told where the server is.
    fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(Postgres::program(name));
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "shop"]);
        as_user(&mut command, &self.user);
        command
    }

    /// What a query answers, in plain rows.
    fn query(&self, database: &str, sql: &str) -> String {
        done(self.tool("psql").args(["-X", "-v", "ON_ERROR_STOP=1", "-At", "-d", database, "-c", sql]))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Fast shutdown; its children go with it.
        let _ = kill(Pid::from_raw(self.process.id() as i32), Signal::SIGINT);
        let _ = self.process.wait();
    }
}

fn as_user<'a>(command: &'a mut Command, user: &nix::unistd::User) -> &'a mut Command {
    use std::os::unix::process::CommandExt;
    command.env("LC_ALL", "C.UTF-8").current_dir("/");
    match nix::unistd::geteuid().is_root() {
        true => command.uid(user.uid.as_raw()).gid(user.gid.as_raw()),
        false => command,
    }
}

/// What a command that must succeed wrote.
#[track_caller]
fn done(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

const TABLES: &str = "create table customers(id integer primary key, name text not null);
    create table orders(id integer primary key, customer integer references customers(id), words text, cents bigint);";

/// Rows and a checksum over everything in them.
const COUNT: &str = "select (select count(*) from customers), (select count(*) from orders), \
    (select sum(cents) from orders), (select md5(string_agg(o::text || c::text, '|' order by o.id)) \
    from orders o join customers c on c.id = o.customer)";

#[tokio::test]
async fn a_postgresql_and_an_sqlite_file_are_backed_up_from_their_schedule_and_restored() {
    let postgres = Postgres::start();
    postgres.query("postgres", "create database shop");
    postgres.query("shop", TABLES);
    postgres.query(
        "shop",
        "insert into customers select i, 'Kundin Nr. ' || i || ' – äöü €' from generate_series(1, 500) i;
         insert into orders select i, 1 + i % 500, md5(i::text) || E'\\n\\t''\"', i * 7919 from generate_series(1, 20000) i",
    );
    let fleet = Fleet::on_etcd(Version::V36).await;
    let small = fleet.path("shop.db");
    fill_sqlite(&small);
    let dumps = fleet.path("dumps");
    fs::create_dir(&dumps).unwrap();
    let shown = dumps.display();
    // Each dump is whole or not there: written aside, then renamed.
    let dump = format!(
        "pg_dump -h 127.0.0.1 -p {} -U shop -Fc -f {shown}/pg.$FLEETCRON_FIRE.new shop && \
         mv {shown}/pg.$FLEETCRON_FIRE.new {shown}/pg.$FLEETCRON_FIRE && echo pg >> {shown}/log",
        postgres.port
    );
    let copy = format!(
        "sqlite3 {} \".backup {shown}/lite.$FLEETCRON_FIRE.new\" && \
         mv {shown}/lite.$FLEETCRON_FIRE.new {shown}/lite.$FLEETCRON_FIRE && echo lite >> {shown}/log",
        small.display()
    );
    let jobs = fleet.path("jobs.toml");
    let text = format!(
        "[jobs.pg]\nschedule = '@every 2s'\ntimeout = '1m'\ncommand = {}\n\
         [jobs.lite]\nschedule = '@every 2s'\ntimeout = '1m'\ncommand = {}\n",
        quoted(&dump),
        quoted(&copy)
    );
    fs::write(&jobs, text).unwrap();
    let mut nodes: Vec<Node> = ["a", "b", "c"].map(|name| fleet.node(name).jobs(&jobs).start()).into();
    for node in &mut nodes {
        node.wait_until_ready(&fleet).await;
    }
    fleet.wait_for_records("pg", 3).await;
    fleet.wait_for_records("lite", 3).await;
    for node in &mut nodes {
        node.stop(&fleet).await;
    }
    let records = fleet.records().await;
    for record in &records {
        let fine = matches!(record.outcome, Outcome::Succeeded | Outcome::Skipped);
        assert!(fine, "{record:?}\n{}", fleet.logs());
    }
    let succeeded = records.iter().filter(|record| record.outcome == Outcome::Succeeded).count();
    assert_eq!(
        fs::read_to_string(dumps.join("log")).unwrap().lines().count(),
        succeeded,
        "one dump for each fire"
    );

    let newest = |job: &str| {
        let mut of = records
            .iter()
            .filter(|record| record.fire.job.as_str() == job && record.outcome == Outcome::Succeeded);
        let fire = &of.next_back().expect("one succeeded").fire;
        dumps.join(format!("{job}.{}", fire.id))
    };
    postgres.query("postgres", "create database restored");
    let dump = newest("pg");
    fs::set_permissions(&dump, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let restored =
        done(postgres.tool("pg_restore").stdin(File::open(&dump).unwrap()).args(["-d", "restored"]));
    assert_eq!(restored, "");
    let (before, after) = (postgres.query("shop", COUNT), postgres.query("restored", COUNT));
    assert_eq!(before, after);
    assert!(before.starts_with("500|20000|"), "{before}");
    let lite = newest("lite");
    assert_eq!(count_sqlite(&lite), count_sqlite(&small));
    println!(
        "{succeeded} backups by three nodes; PostgreSQL {} bytes, restored {}; SQLite {} bytes, restored {:?}",
        fs::metadata(&dump).unwrap().size(),
        after.trim(),
        fs::metadata(&lite).unwrap().size(),
        count_sqlite(&lite)
    );
}

fn fill_sqlite(path: &Path) {
    let sql = format!(
        "{TABLES} with recursive n(i) as (select 1 union all select i + 1 from n where i < 500)
           insert into customers select i, 'Kundin ' || i || ' äöü €' from n;
         with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
           insert into orders select i, 1 + i % 500, hex(i * 31) || char(10), i * 7919 from n;"
    );
    done(Command::new("sqlite3").arg(path).arg(sql));
}

/// Rows, a sum, and a fingerprint of all the text in it.
fn count_sqlite(path: &Path) -> (String, u64) {
    let counts =
        "pragma integrity_check; select count(*), sum(cents) from orders; select count(*) from customers";
    let counts = done(Command::new("sqlite3").arg(path).arg(counts));
    let dump = done(Command::new("sqlite3").arg(path).arg(".dump"));
    let fingerprint = dump.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |so_far, byte| {
        (so_far ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (counts.replace('\n', " ").trim().to_owned(), fingerprint)
}
