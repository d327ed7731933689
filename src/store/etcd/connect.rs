//! One endpoint of the cluster and the client for it.

use std::path::Path;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::trouble::Trouble;
use crate::store::{Access, EtcdAddress, StoreError};

/// How long a refused login is taken for granted: each one costs the server 50 ms of bcrypt.
const NO_LOGIN_AGAIN: Duration = Duration::from_secs(2);

/// An endpoint, with its client from the first use on.
pub(super) struct Endpoint {
    url: String,
    options: Options,
    client: Mutex<Slot>,
}

#[derive(Clone)]
pub(super) struct Options {
    connect: ConnectOptions,
    has_user: bool,
}

enum Slot {
    Empty,
    Ready(Box<Client>),
    Refused { error: StoreError, until: Instant },
}

/// What every client is made with; `etcd-behaviour.md` tells what each option was measured to do.
pub(super) fn options(address: &EtcdAddress, access: &Access) -> Result<Options, StoreError> {
    let mut connect = ConnectOptions::new()
        // Without it an address that drops packets hangs for ever.
        .with_connect_timeout(Duration::from_secs(1))
        // The second guard behind our own deadlines.
        .with_timeout(Duration::from_secs(3))
        // etcd ends connections that ping more often than every 5 s.
        .with_keep_alive(Duration::from_secs(10), Duration::from_secs(3))
        .with_keep_alive_while_idle(false)
        // A member that has lost its cluster says so instead of being silent.
        .with_require_leader(true);
    let settings = |why: String| StoreError::Denied { store: address.to_string(), why };
    match (&access.user, &access.password) {
        (Some(user), Some(password)) => {
            connect = connect.with_user(user, password).with_auto_token_refresh(true);
        }
        (None, None) => {}
        _ => {
            let why = "the settings give only one of user and password_file".to_owned();
            return Err(settings(why));
        }
    }
    if address.tls {
        connect = connect.with_tls(tls(access).map_err(settings)?);
    } else if access.ca_file.is_some() || access.cert_file.is_some() {
        let why = "the settings name certificates, but the address is without TLS: write etcds://";
        return Err(settings(why.to_owned()));
    }
    Ok(Options { connect, has_user: access.user.is_some() })
}

fn tls(access: &Access) -> Result<TlsOptions, String> {
    let Some(ca_file) = &access.ca_file else {
        return Err("etcds:// needs ca_file in the settings".to_owned());
    };
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca_file)?));
    match (&access.cert_file, &access.key_file) {
        (Some(cert), Some(key)) => {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        (None, None) => {}
        _ => return Err("the settings give only one of cert_file and key_file".to_owned()),
    }
    Ok(tls)
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

impl Endpoint {
    pub fn new(url: String, options: Options) -> Endpoint {
        Endpoint { url, options, client: Mutex::new(Slot::Empty) }
    }

    pub fn host(&self) -> &str {
        self.url.split_once("://").map_or(&self.url, |(_, host)| host)
    }

    pub fn has_user(&self) -> bool {
        self.options.has_user
    }

    /// The client; the first use makes it, which with a user means to log in.
    pub async fn client(&self) -> Result<Client, Trouble> {
        let mut slot = self.client.lock().await;
        match &*slot {
            Slot::Ready(client) => return Ok(Client::clone(client)),
            Slot::Refused { error, until } if Instant::now() < *until => {
                return Err(Trouble::Final(error.clone()));
            }
            Slot::Empty | Slot::Refused { .. } => {}
        }
        let made = Client::connect([&self.url], Some(self.options.connect.clone())).await;
        match made.map_err(|error| Trouble::of_connecting(error).at(self.host())) {
            Ok(client) => {
                *slot = Slot::Ready(Box::new(client.clone()));
                Ok(client)
            }
            Err(trouble) => Err(note_refusal(&mut slot, trouble)),
        }
    }

    /// For a token that has run out, where etcd-client does not notice it.
    pub async fn log_in_again(&self) -> Result<(), Trouble> {
        let client = self.client().await?;
        let Err(error) = client.refresh_token().await else {
            return Ok(());
        };
        let trouble = Trouble::of_connecting(error).at(self.host());
        Err(note_refusal(&mut *self.client.lock().await, trouble))
    }
}

fn note_refusal(slot: &mut Slot, trouble: Trouble) -> Trouble {
    if let Trouble::Final(error) = &trouble {
        *slot = Slot::Refused { error: error.clone(), until: Instant::now() + NO_LOGIN_AGAIN };
    }
    trouble
}
