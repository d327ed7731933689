//! Where a store is and with what one may enter.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a store is: `etcd://host:2379,host2:2379/prefix`, `etcds://…` over TLS, or `sqlite:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Etcd(EtcdAddress),
    Sqlite(PathBuf),
}

/// An etcd cluster, and the part of it that is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    pub tls: bool,
    /// `host:port`, IPv6 addresses in brackets; at least one.
    pub endpoints: Vec<String>,
    /// With a slash at the front and none at the end; all our keys lie under it.
    pub prefix: String,
}

/// With what one enters a store, and whether one may make it. Secrets are read from their files by the caller.
#[derive(Clone, Default)]
pub struct Access {
    /// The certificates that etcd's own must be signed by, in PEM.
    pub ca_file: Option<PathBuf>,
    /// Our certificate and its key, in PEM; both or none.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub user: Option<String>,
    pub password: Option<String>,
    /// Whether a store that is not there is made. Commands that only look do not.
    pub create: bool,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("ca_file", &self.ca_file)
            .field("cert_file", &self.cert_file)
            .field("key_file", &self.key_file)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .field("create", &self.create)
            .finish()
    }
}

const DEFAULT_PREFIX: &str = "/fleetcron";
const DEFAULT_PORT: u16 = 2379;

/// What is wrong with an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("'{0}' is not a store: write sqlite:PATH, etcd://HOST:2379/prefix or etcds://HOST:2379/prefix")]
    Scheme(String),
    #[error("the store's address names no host: write etcd://HOST:2379/prefix")]
    NoHost,
    #[error("'{0}' is not a host and port, such as etcd1:2379, 10.0.0.1:2379 or [fd00::1]:2379")]
    Host(String),
    // The address itself is not shown: there may be a password in it.
    #[error(
        "the store's address must not hold a user or a password: put them in the settings as user and password_file"
    )]
    Login,
    #[error("'{0}' is not a prefix: write segments of letters, digits, '.', '_' and '-', such as /fleetcron")]
    Prefix(String),
    #[error("the store's address names no file: write sqlite:PATH")]
    NoPath,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            return sqlite(path);
        }
        match text.split_once("://") {
            Some(("etcd", rest)) => etcd(false, rest),
            Some(("etcds", rest)) => etcd(true, rest),
            Some((_, rest)) if rest.contains('@') => Err(AddressError::Login),
            _ => Err(AddressError::Scheme(text.to_owned())),
        }
    }
}

fn sqlite(path: &str) -> Result<Address, AddressError> {
    // `sqlite:///var/x` is what other programs write for an absolute path.
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() {
        return Err(AddressError::NoPath);
    }
    Ok(Address::Sqlite(PathBuf::from(path)))
}

fn etcd(tls: bool, rest: &str) -> Result<Address, AddressError> {
    if rest.contains('@') {
        return Err(AddressError::Login);
    }
    let (hosts, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, ""),
    };
    if hosts.is_empty() {
        return Err(AddressError::NoHost);
    }
    let endpoints = hosts.split(',').map(endpoint).collect::<Result<_, _>>()?;
    let prefix = prefix(path)?;
    Ok(Address::Etcd(EtcdAddress { tls, endpoints, prefix }))
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`; the port is 2379 unless said.
fn endpoint(text: &str) -> Result<String, AddressError> {
    let wrong = || AddressError::Host(text.to_owned());
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, behind) = rest.split_once(']').ok_or_else(wrong)?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            let port = match behind {
                "" => None,
                behind => Some(behind.strip_prefix(':').ok_or_else(wrong)?),
            };
            (format!("[{address}]"), port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        },
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    if host.is_empty() || !host.chars().all(allowed) {
        return Err(wrong());
    }
    let port = match port {
        Some(port) => port.parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(wrong)?,
        None => DEFAULT_PORT,
    };
    Ok(format!("{host}:{port}"))
}

fn prefix(path: &str) -> Result<String, AddressError> {
    let inner = path.trim_matches('/');
    if inner.is_empty() {
        return Ok(DEFAULT_PREFIX.to_owned());
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let good = |segment: &str| !segment.is_empty() && segment.chars().all(allowed);
    if !inner.split('/').all(good) {
        return Err(AddressError::Prefix(path.to_owned()));
    }
    Ok(format!("/{inner}"))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Etcd(etcd) => etcd.fmt(f),
            Address::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}{}", self.endpoints.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, reads_as: Result<&str, &str>) {
        let read = text.parse::<Address>();
        let read = read.map(|a| a.to_string()).map_err(|e| e.to_string());
        match (read, reads_as) {
            (Ok(read), Ok(expected)) => assert_eq!(read, expected),
            (Err(read), Err(part)) => assert!(read.contains(part), "{read}"),
            (read, expected) => panic!("{text}: {read:?}, not {expected:?}"),
        }
    }

    #[test]
    fn an_address_is_read_as_it_is_written() {
        check("etcd://one", Ok("etcd://one:2379/fleetcron"));
        check("etcds://one:1,two:2/a/b/", Ok("etcds://one:1,two:2/a/b"));
        check("etcd://[fd00::1]:99,[::1]/x", Ok("etcd://[fd00::1]:99,[::1]:2379/x"));
        check("sqlite:/var/lib/x.db", Ok("sqlite:/var/lib/x.db"));
        check("sqlite:///var/lib/x.db", Ok("sqlite:/var/lib/x.db"));
        check("sqlite:rel/x.db", Ok("sqlite:rel/x.db"));
    }

    #[test]
    fn a_wrong_address_is_told_what_is_wrong_with_it() {
        check("etcd://ann:secret@one:2379", Err("user or a password"));
        check("https://ann:secret@one:2379", Err("user or a password"));
        check("etcd://", Err("names no host"));
        check("etcd://one,,two", Err("'' is not a host"));
        check("etcd://one:0", Err("'one:0' is not a host"));
        check("etcd://one:70000", Err("'one:70000'"));
        check("etcd://fd00::1", Err("'fd00::1'"));
        check("etcd://[fd00::x]:1", Err("is not a host"));
        check("etcd://one/a//b", Err("is not a prefix"));
        check("etcd://one/a?b=c", Err("is not a prefix"));
        check("sqlite:", Err("names no file"));
        check("/var/lib/x.db", Err("is not a store"));
        check("redis://one", Err("is not a store"));
    }

    #[test]
    fn a_password_shows_nowhere() {
        let access = Access { password: Some("hunter2".into()), ..Access::default() };
        assert!(!format!("{access:?}").contains("hunter2"));
        let error = "etcd://ann:hunter2@one".parse::<Address>().unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
