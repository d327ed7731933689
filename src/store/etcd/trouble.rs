//! What an error of etcd or its client means for us.
//!
//! By message rather than by code, because codes differ between versions and between the ways an error takes.

use std::error::Error as _;

use etcd_client::Error;

use crate::store::{Revision, StoreError};

/// What to do about a try that failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It was not done: try elsewhere.
    NotReached(String),
    /// It may have been done, or may yet be.
    Unknown(String),
    /// Our login is not, or no longer, good enough: log in again, once.
    Login(String),
    /// An answer, though not a good one.
    Final(StoreError),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        match error {
            Error::GRpcStatus(status) => {
                let why = chain(status.message().to_owned(), status.source());
                of_status(&format!("{:?}", status.code()), why)
            }
            Error::LeaseKeepAliveError(why) if why.contains("lease not found") => {
                Trouble::Final(StoreError::LeaseGone)
            }
            other => Trouble::Unknown(other.to_string()),
        }
    }
}

impl Trouble {
    /// Of an error while a client was made, or while it logged in: nothing of ours was sent.
    pub fn of_connecting(error: Error) -> Trouble {
        match error {
            Error::InvalidUri(_) | Error::InvalidArgs(_) | Error::TransportError(_) => {
                let why = match &error {
                    Error::TransportError(transport) => {
                        format!(
                            "certificates or key are not usable: {}",
                            chain(transport.to_string(), transport.source())
                        )
                    }
                    other => other.to_string(),
                };
                Trouble::Final(denied(why))
            }
            other => match Trouble::from(other) {
                Trouble::Unknown(why) => Trouble::NotReached(why),
                Trouble::Login(why) => Trouble::Final(denied(why)),
                trouble => trouble,
            },
        }
    }

    /// Says at which endpoint.
    pub fn at(self, host: &str) -> Trouble {
        let at = |why: String| format!("{host}: {why}");
        match self {
            Trouble::NotReached(why) => Trouble::NotReached(at(why)),
            Trouble::Unknown(why) => Trouble::Unknown(at(why)),
            Trouble::Login(why) => Trouble::Login(why),
            Trouble::Final(error) => Trouble::Final(error),
        }
    }

    pub fn why(self) -> String {
        match self {
            Trouble::NotReached(why) | Trouble::Unknown(why) | Trouble::Login(why) => why,
            Trouble::Final(error) => error.to_string(),
        }
    }

    /// Of the reason with which etcd ends a watch.
    pub fn of_cancel(reason: &str) -> Trouble {
        let login = ["auth", "permission denied", "user name"];
        match login.iter().any(|word| reason.contains(word)) {
            true => Trouble::Login(reason.to_owned()),
            false => Trouble::Unknown(format!("the watch was ended: {reason}")),
        }
    }
}

fn of_status(code: &str, why: String) -> Trouble {
    let says = |part: &str| why.contains(part);
    if let Some(why) = tls_trouble(&why) {
        return Trouble::Final(denied(why));
    }
    if code == "Unimplemented" && says("grpc-status header missing") {
        return Trouble::Final(StoreError::Unusable {
            store: String::new(),
            why: "what answers there is not an etcd".to_owned(),
        });
    }
    if says("tls handshake eof") {
        return Trouble::NotReached("it broke off the TLS handshake; does it speak TLS?".to_owned());
    }
    // What follows says that it was done nowhere.
    if says("no leader") || says("too many requests") || says("tcp connect error") || says("dns error") {
        return Trouble::NotReached(why);
    }
    if says("requested lease not found") {
        return Trouble::Final(StoreError::LeaseGone);
    }
    if says("database space exceeded") {
        return Trouble::Final(StoreError::Full {
            store: String::new(),
            why: "its space quota is used up; compact, defragment and disarm its alarm".to_owned(),
        });
    }
    if says("required revision has been compacted") {
        return Trouble::Final(StoreError::Compacted(Revision(0)));
    }
    if says("request is too large") || says("larger than max") {
        return Trouble::Final(StoreError::Rejected(why));
    }
    if says("authentication failed") {
        return Trouble::Final(denied("wrong user or password".to_owned()));
    }
    if says("authentication is not enabled") {
        return Trouble::Final(denied(
            "it has no users, but the settings give one: enable its authentication, or take user out"
                .to_owned(),
        ));
    }
    if says("invalid auth token") || says("revision of auth store is old") || code == "Unauthenticated" {
        return Trouble::Login(why);
    }
    if says("user name is empty") {
        return Trouble::Login("it asks for a user and a password".to_owned());
    }
    match code {
        "PermissionDenied" => Trouble::Login("the user may not do this under our prefix".to_owned()),
        "InvalidArgument" | "OutOfRange" | "FailedPrecondition" | "NotFound" | "Unimplemented" => {
            Trouble::Final(StoreError::Rejected(why))
        }
        // Timeouts, connections that broke, changes of leader, and what we have not met yet.
        _ => Trouble::Unknown(why),
    }
}

/// What TLS did not like, in words that say what to look at.
fn tls_trouble(why: &str) -> Option<String> {
    let says = |part: &str| why.contains(part);
    if says("UnknownIssuer") || says("BadSignature") {
        return Some("TLS: its certificate is not signed by the one in ca_file".to_owned());
    }
    if says("NotValidForName") {
        return Some("TLS: its certificate is for another host name".to_owned());
    }
    if says("CertificateRequired") {
        return Some("TLS: it asks for a client certificate: set cert_file and key_file".to_owned());
    }
    let other = says("certificate") || says("HandshakeFailure") || says("received fatal alert");
    other.then(|| format!("TLS: {why}"))
}

fn denied(why: String) -> StoreError {
    StoreError::Denied { store: String::new(), why }
}

/// A message and the causes behind it, such as what TLS did not like, without what repeats itself.
fn chain(mut text: String, mut cause: Option<&(dyn std::error::Error + 'static)>) -> String {
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = inner.source();
    }
    text
}
