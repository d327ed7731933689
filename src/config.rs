//! Settings: what the command line, the environment and the settings file say, in this order, and what holds
//! where none of them does.
//!
//! The command line hands over what it was given (flags, and variables such as `FLEETCRON_STORE`); each getter of
//! [`Settings`] takes that first, then the file, then the default. Passwords come from a file of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use crate::node::{Labels, NodeName, parse_label};
use crate::store::{Access, Address};

/// The settings file that is read when none is named. It need not be there.
pub const DEFAULT_FILE: &str = "/etc/fleetcron/fleetcron.toml";
/// How long commands may go on without a daemon after an orderly stop, unless said otherwise.
pub const DEFAULT_STOP_HOLD: Duration = Duration::from_secs(15 * 60);

/// What a settings file says; all of it optional.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The file, with its text for the places of mistakes.
    path: PathBuf,
    text: String,
    said: Said,
}

/// The settings file as it is written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Said {
    store: Option<Spanned<String>>,
    node: Option<Spanned<String>>,
    labels: BTreeMap<String, Spanned<String>>,
    slots: Option<Spanned<u32>>,
    state: Option<PathBuf>,
    jobs: Option<Vec<PathBuf>>,
    log_format: Option<LogFormat>,
    stop_hold: Option<Spanned<String>>,
    allow_users: Option<Vec<String>>,
    allow_root: Option<bool>,
    require_synced_clock: Option<bool>,
    etcd: Etcd,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Etcd {
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    user: Option<String>,
    password_file: Option<PathBuf>,
}

/// Whose commands this node runs, whatever the store says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// None: everybody's.
    pub users: Option<BTreeSet<String>>,
    pub root: bool,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<LogFormat, &'static str> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("a log format is text or json"),
        }
    }
}

/// What is wrong with the settings, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError(String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsError {}

impl Settings {
    /// Reads the file that is named, or the default one if it is there.
    pub fn load(named: Option<&Path>) -> Result<Settings, SettingsError> {
        let path = named.unwrap_or(Path::new(DEFAULT_FILE));
        match fs::read_to_string(path) {
            Ok(text) => Settings::parse(path, text),
            Err(error) if named.is_none() && is_absent(&error) => Ok(Settings::default()),
            Err(error) => Err(unreadable("settings file", path, &error)),
        }
    }

    fn parse(path: &Path, text: String) -> Result<Settings, SettingsError> {
        let path = path.to_owned();
        match toml::from_str(&text) {
            Ok(said) => Ok(Settings { path, text, said }),
            Err(error) => {
                let settings = Settings { path, text, said: Said::default() };
                let start = error.span().map_or(0, |span| span.start);
                Err(settings.wrong_at(start, error.message()))
            }
        }
    }

    /// Where the store is.
    pub fn store(&self, given: Option<&str>) -> Result<Address, SettingsError> {
        if let Some(given) = given {
            return given.parse().map_err(|error| SettingsError(format!("store: {error}")));
        }
        let Some(said) = &self.said.store else {
            return Ok(Address::Sqlite(default_place()?.join("fleetcron.db")));
        };
        match said.get_ref().parse() {
            Ok(Address::Sqlite(path)) => Ok(Address::Sqlite(self.beside(&path))),
            Ok(address) => Ok(address),
            Err(error) => Err(self.wrong(said, &format!("store: {error}"))),
        }
    }

    /// With what one enters the store at `address`.
    pub fn access(&self, address: &Address, create: bool) -> Result<Access, SettingsError> {
        let Address::Etcd(_) = address else { return Ok(Access { create, ..Access::default() }) };
        let etcd = &self.said.etcd;
        if etcd.cert_file.is_some() != etcd.key_file.is_some() {
            return Err(self.about("[etcd] needs both cert_file and key_file, or none of them"));
        }
        if etcd.user.is_some() != etcd.password_file.is_some() {
            return Err(self.about("[etcd] needs both user and password_file, or none of them"));
        }
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| self.beside(path));
        Ok(Access {
            ca_file: file(&etcd.ca_file),
            cert_file: file(&etcd.cert_file),
            key_file: file(&etcd.key_file),
            user: etcd.user.clone(),
            password: file(&etcd.password_file).map(|path| read_password(&path)).transpose()?,
            create,
        })
    }

    /// The node's name: the host's, in lower case, unless it is given.
    pub fn node(&self, given: Option<&str>) -> Result<NodeName, SettingsError> {
        if let Some(given) = given {
            return given.parse().map_err(|error| SettingsError(format!("node: {error}")));
        }
        if let Some(said) = &self.said.node {
            return said.get_ref().parse().map_err(|error| self.wrong(said, &format!("node: {error}")));
        }
        let host = nix::unistd::gethostname()
            .map_err(|error| SettingsError(format!("the host's name cannot be read: {}", error.desc())))?;
        host_as_node(&host.to_string_lossy())
    }

    /// The labels of the file, and those given in their place.
    pub fn labels(&self, given: &[(String, String)]) -> Result<Labels, SettingsError> {
        let mut labels = Labels::new();
        for (key, value) in &self.said.labels {
            let (key, text) = parse_label(&format!("{key}={}", value.get_ref()))
                .map_err(|error| self.wrong(value, &error))?;
            labels.insert(key, text);
        }
        labels.extend(given.iter().cloned());
        Ok(labels)
    }

    /// How many runs at once: by default 16 for each core, and at least 64.
    pub fn slots(&self, given: Option<u32>) -> Result<u32, SettingsError> {
        if let Some(said) = &self.said.slots
            && *said.get_ref() == 0
            && given.is_none()
        {
            return Err(self.wrong(said, "slots: a node needs at least one"));
        }
        Ok(given.or(self.said.slots.as_ref().map(|said| *said.get_ref())).unwrap_or_else(default_slots))
    }

    /// The state folder of the node called `node`.
    pub fn state(&self, given: Option<&Path>, node: &NodeName) -> Result<PathBuf, SettingsError> {
        match (given, &self.said.state) {
            (Some(given), _) => Ok(given.to_owned()),
            (None, Some(said)) => Ok(self.beside(said)),
            (None, None) => Ok(default_place()?.join("nodes").join(node.as_str())),
        }
    }

    /// Job files and folders that `run` keeps the store in step with.
    pub fn jobs(&self, given: &[PathBuf]) -> Vec<PathBuf> {
        match (given, &self.said.jobs) {
            ([], Some(said)) => said.iter().map(|path| self.beside(path)).collect(),
            (given, _) => given.to_vec(),
        }
    }

    pub fn log_format(&self, given: Option<LogFormat>) -> LogFormat {
        given.or(self.said.log_format).unwrap_or(LogFormat::Text)
    }

    pub fn policy(&self) -> Policy {
        let users = self.said.allow_users.as_ref().map(|users| users.iter().cloned().collect());
        Policy { users, root: self.said.allow_root.unwrap_or(true) }
    }

    /// Whether a node whose kernel does not say that its clock is kept right is to run nothing by it.
    pub fn require_synced_clock(&self) -> bool {
        self.said.require_synced_clock.unwrap_or(false)
    }

    pub fn stop_hold(&self, given: Option<Duration>) -> Result<Duration, SettingsError> {
        match (given, &self.said.stop_hold) {
            (Some(given), _) => Ok(given),
            (None, None) => Ok(DEFAULT_STOP_HOLD),
            (None, Some(said)) => humantime::parse_duration(said.get_ref()).map_err(|error| {
                let error = format!("stop_hold: {:?} is not a duration: {error}", said.get_ref());
                self.wrong(said, &error)
            }),
        }
    }

    /// A path of the file, which counts from the file's own folder.
    fn beside(&self, path: &Path) -> PathBuf {
        self.path.parent().map_or_else(|| path.to_owned(), |folder| folder.join(path))
    }

    fn wrong<T>(&self, at: &Spanned<T>, what: &str) -> SettingsError {
        self.wrong_at(at.span().start, what)
    }

    fn wrong_at(&self, offset: usize, what: &str) -> SettingsError {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        // What the parser says may take several lines.
        let what = what.lines().map(str::trim).collect::<Vec<_>>().join("; ");
        SettingsError(format!("{}:{line}:{column}: {what}", self.path.display()))
    }

    fn about(&self, what: &str) -> SettingsError {
        SettingsError(format!("{}: {what}", self.path.display()))
    }
}

fn host_as_node(host: &str) -> Result<NodeName, SettingsError> {
    host.to_lowercase().parse().map_err(|error| {
        SettingsError(format!(
            "the host's name is no name for a node: {error}; set one with --node NAME, FLEETCRON_NODE or node in {DEFAULT_FILE}"
        ))
    })
}

/// A node's state folder, as far as others than its daemon look into it.
#[derive(Debug, Clone)]
pub struct StateFolder(PathBuf);

impl StateFolder {
    pub fn at(path: PathBuf) -> StateFolder {
        StateFolder(path)
    }

    /// Where the run files are, while there is something to do about a run.
    pub fn runs(&self) -> PathBuf {
        self.0.join("runs")
    }

    /// Where the output is of runs that have their record.
    pub fn outputs(&self) -> PathBuf {
        self.0.join("output")
    }

    /// Where the node writes down what it ran.
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }
}

fn default_slots() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(cores * 16).unwrap_or(u32::MAX).max(64)
}

/// Where store and state lie unless said otherwise.
fn default_place() -> Result<PathBuf, SettingsError> {
    if nix::unistd::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/fleetcron"));
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    state.map(|state| state.join("fleetcron")).ok_or_else(|| {
        SettingsError(
            "neither XDG_STATE_HOME nor HOME is set: say where the store is with --store sqlite:PATH"
                .to_owned(),
        )
    })
}

/// The password in a file, without the line's end. A file that everybody may read holds no secret, so it is refused.
fn read_password(path: &Path) -> Result<String, SettingsError> {
    const OTHERS_READ: u32 = 0o004;
    let failed = |error: io::Error| unreadable("password file", path, &error);
    let is = fs::metadata(path).map_err(failed)?;
    if is.mode() & OTHERS_READ != 0 {
        return Err(SettingsError(format!(
            "everybody may read the password file {path} (mode {mode:o}): chmod o= {path}",
            path = path.display(),
            mode = is.permissions().mode() & 0o7777
        )));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    match password.is_empty() {
        true => Err(SettingsError(format!("the password file {} is empty", path.display()))),
        false => Ok(password.to_owned()),
    }
}

fn unreadable(what: &str, path: &Path, error: &io::Error) -> SettingsError {
    let text = error.to_string();
    let why = text.split(" (os error").next().unwrap_or(&text).to_lowercase();
    SettingsError(format!("the {what} {} cannot be read: {why}", path.display()))
}

/// A folder on the way may be missing, or be a file.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        Settings::parse(Path::new("/etc/f/f.toml"), text.to_owned()).unwrap()
    }

    #[track_caller]
    fn check_refused(error: Result<impl fmt::Debug, SettingsError>, begins: &str) {
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(begins) && !error.contains('\n'), "{error}");
    }

    #[test]
    fn what_is_given_comes_before_the_file_and_the_file_before_the_default() {
        let file = settings(
            "store = 'sqlite:x.db'\nnode = 'db-1'\nslots = 3\nstate = 's'\njobs = ['a', '/b']\n\
             log_format = 'json'\nstop_hold = '5m'\n[labels]\nrole = 'db'\nzone = 'eu'\n",
        );
        let none = Settings::default();
        assert_eq!(file.store(None).unwrap().to_string(), "sqlite:/etc/f/x.db");
        assert_eq!(file.store(Some("etcd://h")).unwrap().to_string(), "etcd://h:2379/fleetcron");
        assert_eq!(file.node(None).unwrap().as_str(), "db-1");
        assert_eq!(file.node(Some("web")).unwrap().as_str(), "web");
        assert_eq!((file.slots(None), file.slots(Some(9))), (Ok(3), Ok(9)));
        assert!(none.slots(None).unwrap() >= 64);
        let node = "n".parse().unwrap();
        assert_eq!(file.state(None, &node).unwrap(), Path::new("/etc/f/s"));
        assert_eq!(file.state(Some(Path::new("t")), &node).unwrap(), Path::new("t"));
        assert!(none.state(None, &node).unwrap().ends_with("nodes/n"));
        assert_eq!(file.jobs(&[]), [Path::new("/etc/f/a"), Path::new("/b")]);
        assert_eq!(file.jobs(&["c".into()]), [Path::new("c")]);
        assert_eq!(file.log_format(None), LogFormat::Json);
        assert_eq!(file.log_format(Some(LogFormat::Text)), LogFormat::Text);
        assert_eq!(file.stop_hold(None), Ok(Duration::from_secs(300)));
        assert_eq!(none.stop_hold(None), Ok(DEFAULT_STOP_HOLD));
        assert_eq!(none.policy(), Policy { users: None, root: true });
        let strict = settings("allow_users = ['www', 'backup']\nallow_root = false\n").policy();
        assert_eq!(strict, Policy { users: Some(["www", "backup"].map(str::to_owned).into()), root: false });
        let labels = file.labels(&[("role".into(), "web".into())]).unwrap();
        assert_eq!(format!("{labels:?}"), r#"{"role": "web", "zone": "eu"}"#);
    }

    #[test]
    fn a_mistake_in_the_file_is_told_with_its_place() {
        let parsed = |text: &str| Settings::parse(Path::new("f.toml"), text.to_owned());
        check_refused(parsed("node = 'a'\n  stroe = 'x'\n"), "f.toml:2:3: unknown field `stroe`");
        check_refused(parsed("slots = 'many'\n"), "f.toml:1:9: invalid type: string");
        check_refused(parsed("slots = -1\n"), "f.toml:1:9: ");
        check_refused(parsed("[etcd]\npassword = 'x'\n"), "f.toml:2:1: unknown field `password`");
        check_refused(parsed("node = \n"), "f.toml:1:");
        check_refused(parsed("log_format = 'xml'\n"), "f.toml:1:14: unknown variant `xml`");
        check_refused(
            settings("\nstore = 'redis://x'\n").store(None),
            "/etc/f/f.toml:2:9: store: 'redis://x'",
        );
        check_refused(settings("node = 'localhost'").node(None), "/etc/f/f.toml:1:8: node: \"localhost\"");
        check_refused(settings("[labels]\nnode = 'x'").labels(&[]), "/etc/f/f.toml:2:8: the label \"node\"");
        check_refused(settings("slots = 0").slots(None), "/etc/f/f.toml:1:9: slots");
        check_refused(settings("stop_hold = 'soon'").stop_hold(None), "/etc/f/f.toml:1:13: stop_hold");
    }

    #[test]
    fn only_the_default_file_may_be_missing() {
        let there_is_none = Path::new("/nonexistent/fleetcron.toml");
        check_refused(Settings::load(Some(there_is_none)), "the settings file /nonexistent/fleetcron.toml");
    }

    #[test]
    fn a_host_called_localhost_is_told_how_to_get_a_name() {
        assert_eq!(host_as_node("DB-1.Example.org").unwrap().as_str(), "db-1.example.org");
        let error = host_as_node("LocalHost").unwrap_err().to_string();
        assert!(error.contains("--node NAME"), "{error}");
    }

    #[test]
    fn a_password_is_read_from_a_file_that_not_everybody_may_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let etcd: Address = "etcd://h".parse().unwrap();
        let text = format!("[etcd]\nuser = 'ann'\npassword_file = '{}'\n", path.display());
        let access = || settings(&text).access(&etcd, false);
        check_refused(access(), "the password file");
        fs::write(&path, "hunter2 \n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        check_refused(access(), "everybody may read the password file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(access().unwrap().password.as_deref(), Some("hunter2 "));
        check_refused(
            settings("[etcd]\nuser = 'ann'").access(&etcd, false),
            "/etc/f/f.toml: [etcd] needs both user",
        );
        check_refused(
            settings("[etcd]\nkey_file = 'k'").access(&etcd, false),
            "/etc/f/f.toml: [etcd] needs both cert",
        );
        // On one machine there is nobody to log in to.
        assert!(settings("[etcd]\nuser = 'ann'").access(&Address::Sqlite("x".into()), true).unwrap().create);
    }
}
