//! The store of a fleet: an etcd cluster, of which all keys under one prefix are ours.
//!
//! There is one client for each endpoint, and the rotation between them is our own: a client with several
//! endpoints keeps sending calls to dead ones (grpc-rust issue 2839). Every await has a deadline, because
//! etcd-client has none. The types of etcd-client stay in this folder.

mod connect;
mod convert;
mod trouble;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, CompactionOptions, GetOptions, LeaseGrantOptions, SortOrder, SortTarget};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Access, EtcdAddress, KeyRange, Lease, LeaseId, Order, Page, PageSpec, Revision, SHORTEST_LEASE, Status,
    StoreError, Txn, TxnReply,
};
use connect::Endpoint;
use convert::Keys;
use trouble::Trouble;
pub(super) use watch::EtcdWatch;

/// For one try at one endpoint. A healthy cluster answers within milliseconds.
const TRY: Duration = Duration::from_millis(1500);
/// For one operation with all its tries, so that a store that cannot be reached is an error within 5 s.
const PATIENCE: Duration = Duration::from_secs(4);
/// After a round in which every endpoint failed, at random up to this much, which doubles up to the most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// 500 keys of a page may be large. etcd itself would send more than any limit that one sets.
const LARGEST_REPLY: usize = 512 << 20;

/// Members of these versions can come to differ from each other when one is killed (etcd issue 13766).
const KNOWN_BAD: [&str; 3] = ["3.5.0", "3.5.1", "3.5.2"];

/// A connection to an etcd cluster.
#[derive(Clone)]
pub(super) struct EtcdStore(Arc<Shared>);

struct Shared {
    name: String,
    keys: Keys,
    endpoints: Vec<Endpoint>,
    /// Which endpoint is used; whoever finds it failing moves on to the next one.
    current: AtomicUsize,
}

/// What may be done after a try whose outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// To do it twice is to do it once: try again.
    Repeatable,
    /// Only the caller knows how to find out.
    Change,
}

impl EtcdStore {
    /// Makes the clients, and makes sure that the cluster answers and lets us read our prefix.
    pub async fn open(address: &EtcdAddress, access: &Access) -> Result<EtcdStore, StoreError> {
        let name = address.to_string();
        let options = connect::options(address, access)?;
        let scheme = if address.tls { "https" } else { "http" };
        let urls = address.endpoints.iter().map(|endpoint| format!("{scheme}://{endpoint}"));
        let store = EtcdStore(Arc::new(Shared {
            name,
            keys: Keys::under(&address.prefix),
            endpoints: urls.map(|url| Endpoint::new(url, options.clone())).collect(),
            current: AtomicUsize::new(0),
        }));
        let one = PageSpec { limit: Some(1), ..PageSpec::default() };
        store.page(KeyRange::prefix(""), one).await?;
        // Only for warnings, so it may not take what is left of the 5 s.
        let _ = timeout(Duration::from_millis(500), store.warn_of_bad_versions()).await;
        Ok(store)
    }

    pub fn describe(&self) -> String {
        self.0.name.clone()
    }

    pub async fn page(&self, range: KeyRange, spec: PageSpec) -> Result<Page, StoreError> {
        let (key, end) = self.0.keys.bounds(&spec.rest_of(&range));
        let mut options = GetOptions::new().with_range(end).with_limit(spec.limit() as i64);
        if let Some(at) = spec.at {
            options = options.with_revision(at.0);
        }
        if spec.keys_only {
            options = options.with_keys_only();
        }
        if spec.order == Order::Descending {
            options = options.with_sort(SortTarget::Key, SortOrder::Descend);
        }
        let get = |client: Client| {
            let (key, options) = (key.clone(), options.clone());
            let mut kv = client.kv_client().max_decoding_message_size(LARGEST_REPLY);
            async move { Ok(kv.get(key, Some(options)).await?) }
        };
        let reply = self.call(Kind::Repeatable, get).await.map_err(|error| match (error, spec.at) {
            // etcd does not say up to where it has forgotten, only that it was later than this.
            (StoreError::Compacted(_), Some(at)) => StoreError::Compacted(at),
            (error, _) => error,
        })?;
        let now = reply.header().map_or(Revision(0), |header| Revision(header.revision()));
        Ok(Page {
            entries: self.0.keys.entries(reply.kvs()).map_err(|why| self.unusable(why))?,
            revision: spec.at.unwrap_or(now),
            more: reply.more(),
        })
    }

    pub async fn txn(&self, txn: Txn) -> Result<TxnReply, StoreError> {
        let kind = if txn.may_write() { Kind::Change } else { Kind::Repeatable };
        let request = self.0.keys.txn(&txn);
        let send = |client: Client| {
            let request = request.clone();
            let mut kv = client.kv_client().max_decoding_message_size(LARGEST_REPLY);
            async move { Ok(kv.txn(request).await?) }
        };
        let reply = self.call(kind, send).await?;
        self.0.keys.reply(&reply).map_err(|why| self.unusable(why))
    }

    pub async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        let seconds = (ttl.as_secs_f64().ceil() as i64).max(SHORTEST_LEASE.as_secs() as i64);
        // An id of our own choice makes the grant repeatable.
        let id = rand::random_range(1..i64::MAX);
        let grant = |mut client: Client| async move {
            let options = LeaseGrantOptions::new().with_id(id);
            Ok(client.lease_grant(seconds, Some(options)).await?.ttl())
        };
        let ttl = match self.call(Kind::Repeatable, grant).await {
            Ok(ttl) => Duration::from_secs(ttl.max(0) as u64),
            // An earlier try was done after all.
            Err(StoreError::Rejected(why)) if why.contains("lease already exists") => {
                self.renew(LeaseId(id)).await?
            }
            Err(error) => return Err(error),
        };
        let id = LeaseId(id);
        Ok(Lease { id, ttl })
    }

    pub async fn renew(&self, lease: LeaseId) -> Result<Duration, StoreError> {
        let renew = |mut client: Client| async move {
            // Opening the stream renews once already, but keeps the TTL to itself.
            let (mut keeper, mut replies) = client.lease_keep_alive(lease.0).await?;
            keeper.keep_alive().await?;
            match replies.message().await? {
                Some(reply) if reply.ttl() > 0 => Ok(Duration::from_secs(reply.ttl() as u64)),
                Some(_) => Err(Trouble::Final(StoreError::LeaseGone)),
                None => Err(Trouble::Unknown("the renewal's stream has ended".to_owned())),
            }
        };
        self.call(Kind::Repeatable, renew).await
    }

    pub async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let revoke = |mut client: Client| async move { Ok(client.lease_revoke(lease.0).await?) };
        match self.call(Kind::Repeatable, revoke).await {
            Ok(_) | Err(StoreError::LeaseGone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let compact = |mut client: Client| async move {
            // Physical: it is really gone when this returns.
            let options = CompactionOptions::new().with_physical();
            Ok(client.compact(revision.0, Some(options)).await?)
        };
        self.call(Kind::Repeatable, compact).await.map(drop)
    }

    pub async fn status(&self) -> Result<Status, StoreError> {
        let status = |mut client: Client| async move { Ok(client.status().await?) };
        let status = self.call(Kind::Repeatable, status).await?;
        Ok(Status {
            version: format!("etcd {}", status.version()),
            revision: status.header().map_or(Revision(0), |header| Revision(header.revision())),
            complaints: status.errors().to_vec(),
        })
    }

    pub async fn watch(&self, range: KeyRange, from: Revision) -> Result<EtcdWatch, StoreError> {
        let open = |client: Client| EtcdWatch::open(client, self.clone(), range.clone(), from);
        self.call(Kind::Repeatable, open).await
    }

    async fn warn_of_bad_versions(&self) {
        let Ok(status) = self.status().await else {
            return; // It was only for this warning.
        };
        let version = status.version.trim_start_matches("etcd ").to_owned();
        if KNOWN_BAD.contains(&version.as_str()) {
            tracing::warn!(
                store = %self.0.name, version,
                "this etcd can lose its members' agreement when one is killed; upgrade it to 3.5.6 or later"
            );
        }
        for complaint in status.complaints {
            tracing::warn!(store = %self.0.name, complaint, "etcd complains");
        }
    }

    /// Tries one endpoint after the other, until one gives an answer or patience is at its end.
    async fn call<T, Fut>(&self, kind: Kind, request: impl Fn(Client) -> Fut) -> Result<T, StoreError>
    where
        Fut: Future<Output = Result<T, Trouble>>,
    {
        let until = Instant::now() + PATIENCE;
        let mut failures = 0;
        let mut logged_in_again = false;
        loop {
            let index = self.0.current.load(Ordering::Relaxed) % self.0.endpoints.len();
            let why = match self.attempt(index, until, &request).await {
                Ok(reply) => return Ok(reply),
                Err(Trouble::Final(error)) => return Err(self.named(error)),
                Err(Trouble::Login(why)) => {
                    if logged_in_again || !self.0.endpoints[index].has_user() {
                        return Err(self.denied(why));
                    }
                    logged_in_again = true;
                    match self.log_in_again(index, until).await {
                        Ok(()) => continue,
                        Err(Trouble::Final(error)) => return Err(self.named(error)),
                        Err(trouble) => trouble.why(),
                    }
                }
                Err(Trouble::Unknown(why)) if kind == Kind::Change => {
                    self.rotate(index);
                    let store = self.0.name.clone();
                    return Err(StoreError::NoAnswer { store, why });
                }
                Err(Trouble::Unknown(why) | Trouble::NotReached(why)) => why,
            };
            self.rotate(index);
            failures += 1;
            if failures % self.0.endpoints.len() == 0 {
                let round = (failures / self.0.endpoints.len()).min(10) as u32;
                let pause = (FIRST_PAUSE * 2_u32.pow(round)).min(LONGEST_PAUSE);
                sleep(pause.mul_f64(rand::random()).min(until - Instant::now().min(until))).await;
            }
            if Instant::now() >= until {
                let store = self.0.name.clone();
                return Err(StoreError::NotReached { store, why });
            }
        }
    }

    async fn attempt<T, Fut>(
        &self,
        index: usize,
        until: Instant,
        request: impl Fn(Client) -> Fut,
    ) -> Result<T, Trouble>
    where
        Fut: Future<Output = Result<T, Trouble>>,
    {
        let endpoint = &self.0.endpoints[index];
        let left = || TRY.min(until - Instant::now().min(until));
        let at = |why: &str| format!("{}: {why}", endpoint.host());
        // Nothing has been sent before there is a client.
        let client = timeout(left(), endpoint.client()).await;
        let client = client.map_err(|_| Trouble::NotReached(at("no answer to the login")))??;
        match timeout(left(), request(client)).await {
            Ok(done) => done.map_err(|trouble| trouble.at(endpoint.host())),
            Err(_) => Err(Trouble::Unknown(at(&format!("no answer within {TRY:?}")))),
        }
    }

    async fn log_in_again(&self, index: usize, until: Instant) -> Result<(), Trouble> {
        let endpoint = &self.0.endpoints[index];
        let left = TRY.min(until - Instant::now().min(until));
        let done = timeout(left, endpoint.log_in_again()).await;
        done.unwrap_or_else(|_| Err(Trouble::NotReached("no answer to the login".to_owned())))
    }

    /// Moves on from a failing endpoint; many that find it failing at once move on only by one.
    fn rotate(&self, from: usize) {
        let next = (from + 1) % self.0.endpoints.len();
        let _ = self.0.current.compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Errors are made where the store's name is not known.
    fn named(&self, error: StoreError) -> StoreError {
        let name = || self.0.name.clone();
        match error {
            StoreError::Denied { why, .. } => StoreError::Denied { store: name(), why },
            StoreError::Full { why, .. } => StoreError::Full { store: name(), why },
            StoreError::Unusable { why, .. } => StoreError::Unusable { store: name(), why },
            other => other,
        }
    }

    fn denied(&self, why: String) -> StoreError {
        let store = self.0.name.clone();
        StoreError::Denied { store, why }
    }

    fn unusable(&self, why: String) -> StoreError {
        let store = self.0.name.clone();
        StoreError::Unusable { store, why }
    }
}
