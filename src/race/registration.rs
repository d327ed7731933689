//! Registration: that a node is there, and the mark by which its transactions are known to be current.
//!
//! One task owns it ([`register_and_stay`]): it registers, renews the lease, registers again when the lease is lost,
//! and moves the epoch when a fence is asked for. While this node holds a lock it also reads its own registration once
//! a second: that is its contact with the store, and a reply to a renewal is not, since a stalled former leader may
//! answer one for a lease that is gone. Everybody else holds a [`Standing`], through which the present registration
//! and the last contact are read and fences are asked for.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chrono::TimeDelta;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::fail_point;
use crate::latest;
use crate::mutant;
use crate::node::{NodeName, NodeStart};
use crate::store::values::{self, ClockWord, Epoch};
use crate::store::{Compare, Entry, LeaseId, Op, Revision, Store, StoreError, Txn, TxnReply, keys};

/// How long a node is thought alive without a renewal.
pub const LEASE: Duration = Duration::from_secs(5);
const RENEW_EVERY: Duration = Duration::from_secs(1);
// Three renewals may be lost before the lease runs out.
const _: () = assert!(RENEW_EVERY.as_millis() * 4 < LEASE.as_millis());
/// How long another holder of our name may go without a renewal before it counts as gone: the store may be late in
/// seeing a lease run out.
const NAME_IS_FREE_AFTER: Duration = Duration::from_secs(LEASE.as_secs() + 2);
/// Between two looks at a name that is taken, and between tries when the store is away.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Who this node is: its name, this life of it, and this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Me {
    pub name: NodeName,
    pub start: NodeStart,
    /// Differs for every start of a daemon.
    pub instance: String,
}

/// What others see of a node while it is registered.
pub type Presence = values::Presence;

/// A registration as this node made it: `nodes/<me>` is there, and `epochs/<me>` is at the revision last written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    name: NodeName,
    epoch: Revision,
    counter: u64,
    lease: LeaseId,
    /// How often the lease was lost before: another number says that others may have seen this node gone.
    losses: u32,
}

impl Registration {
    /// The revision at which this node's epoch was last written.
    pub(super) fn epoch(&self) -> Revision {
        self.epoch
    }

    /// What keys of this node's are put on that are to go with it.
    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    /// How often the lease had been lost when this was made.
    pub fn losses(&self) -> u32 {
        self.losses
    }

    /// That it is still the one this node made. A transaction that has these compares can no longer commit once
    /// the epoch has moved or the lease is gone.
    pub fn compares(&self) -> [Compare; 2] {
        [Compare::present(keys::node(&self.name)), Compare::mod_revision(keys::epoch(&self.name), self.epoch)]
    }
}

/// Why a node may not register.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error(
        "another node is registered as {name} and is alive (node start {other}); give this one a name of its own \
         with --node, or stop the other"
    )]
    NameTaken { name: NodeName, other: NodeStart },
    #[error(
        "another daemon acts as this very node, {name}: its state folder or its machine was copied while it ran; give \
         the copy a state folder and a name of its own"
    )]
    Doubled { name: NodeName },
    #[error(transparent)]
    Unreadable(#[from] values::Unreadable),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How the rest of the node sees its registration. Cheap to clone.
#[derive(Clone)]
pub struct Standing {
    pub me: Arc<Me>,
    current: latest::Receiver<Registered>,
    in_touch: latest::Receiver<InTouch>,
    renewed: latest::Receiver<Duration>,
    /// How many [`Holding`]s there are.
    holding: Arc<AtomicUsize>,
    asks: mpsc::Sender<Ask>,
}

/// The registration at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Registered {
    Yes(Registration),
    /// The lease is lost, and a new registration is not made yet.
    NotNow,
}

/// A moment at which the store still had this node's registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InTouch {
    /// Since boot: before what proved it was sent.
    pub at: Duration,
    /// How often the lease had been lost until then: it says nothing of locks that were last seen before a loss.
    pub losses: u32,
}

/// For as long as it lives, this node keeps in touch with the store.
#[derive(Debug)]
pub struct Holding(Arc<AtomicUsize>);

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the owner of the registration is asked for.
enum Ask {
    /// Move the epoch on from this revision.
    Fence { from: Revision, done: oneshot::Sender<()> },
    /// Show these digests of job files, by source.
    Files(BTreeMap<String, String>),
    /// Show what the clock shows now, and this word of it. It was set by so much since it was last shown.
    Clock { word: Option<ClockWord>, set_by: TimeDelta },
}

impl Standing {
    /// The present registration, waiting for one if there is none.
    pub async fn registration(&mut self) -> Registration {
        loop {
            if let Registered::Yes(registration) = self.current.take_in() {
                return registration;
            }
            if self.current.changed().await.is_err() {
                // The owner is gone: the node is leaving and claims nothing more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// From here on the node keeps in touch, until what is returned is dropped.
    pub fn hold(&self) -> Holding {
        self.holding.fetch_add(1, Ordering::Relaxed);
        Holding(self.holding.clone())
    }

    /// The last contact.
    pub fn in_touch(&self) -> InTouch {
        self.in_touch.get()
    }

    /// Since boot: before the last renewal of the lease that was answered, or the registration, was sent. A sign of
    /// life of the store, and no more.
    pub fn renewed(&self) -> Duration {
        self.renewed.get()
    }

    /// Waits for the next contact. Safe to drop while it waits.
    pub async fn next_contact(&mut self) -> InTouch {
        if self.in_touch.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.in_touch.take_in()
    }

    /// Makes sure that nothing sent under `old` can commit any more. When this returns, the registration is another.
    pub async fn fence(&mut self, old: &Registration) {
        let (done, fenced) = oneshot::channel();
        let sent = self.asks.send(Ask::Fence { from: old.epoch, done }).await;
        if sent.is_err() || fenced.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Shows others what this node's own job files are.
    pub async fn show_files(&self, files: BTreeMap<String, String>) {
        // A node that is leaving shows nothing any more.
        let _ = self.asks.send(Ask::Files(files)).await;
    }

    /// Has others see what this node's clock shows, and what it says of it. False: not now, so it is to be asked again.
    pub fn show_clock(&self, word: Option<ClockWord>, set_by: TimeDelta) -> bool {
        self.asks.try_send(Ask::Clock { word, set_by }).is_ok()
    }
}

/// Registers, and returns once that is done; a task then keeps it up until `stop`, and gives the lease back.
///
/// The store may be away for as long as it likes; what is refused is a name that somebody else has.
pub async fn register_and_stay(
    store: Store,
    clock: Clock,
    me: Me,
    presence: Presence,
    stop: CancellationToken,
) -> Result<(Standing, impl Future<Output = Result<(), Refused>>), Refused> {
    let began = clock.since_boot();
    let holding = Arc::new(AtomicUsize::new(0));
    let mut owner =
        Owner { store, clock, me: me.clone(), presence, lease: None, losses: 0, holding: holding.clone() };
    let registration = owner.register().await?;
    info!(node = %me.name, start = %me.start, epoch = %registration.epoch, "registered");
    let (tell, current) = latest::channel(Registered::Yes(registration.clone()));
    // Only a claim or a look at a lock makes use of it, and each of those is a contact of its own.
    let (tell_contact, in_touch) = latest::channel(InTouch { at: began, losses: registration.losses });
    let (tell_renewed, renewed) = latest::channel(clock.since_boot());
    let (asks, asked) = mpsc::channel(64);
    let standing = Standing { me: Arc::new(me), current, in_touch, renewed, holding, asks };
    let tell = Tell { registered: tell, in_touch: tell_contact, renewed: tell_renewed };
    Ok((standing, owner.stay(registration, tell, asked, stop)))
}

/// Where the owner tells what it knows.
struct Tell {
    registered: latest::Sender<Registered>,
    in_touch: latest::Sender<InTouch>,
    renewed: latest::Sender<Duration>,
}

struct Owner {
    store: Store,
    clock: Clock,
    me: Me,
    presence: Presence,
    /// The lease of the last registration.
    lease: Option<LeaseId>,
    losses: u32,
    holding: Arc<AtomicUsize>,
}

/// A look at this node's own registration that is under way.
type Look = Pin<Box<dyn Future<Output = Looked> + Send>>;

struct Looked {
    /// Before it was sent, since boot.
    at: Duration,
    /// The epoch of the registration at that time.
    epoch: Revision,
    reply: Result<TxnReply, StoreError>,
}

/// Whether one way of asking the store works, to be told when that changes.
#[derive(Default)]
struct Contact {
    lost: bool,
}

impl Contact {
    fn made(&mut self, node: &NodeName) {
        if std::mem::take(&mut self.lost) {
            info!(%node, "in touch with the store again");
        }
    }

    fn failed(&mut self, node: &NodeName, error: &StoreError) {
        if !std::mem::replace(&mut self.lost, true) {
            warn!(%node, %error, "out of touch with the store, trying on");
        }
    }
}

/// What a look at this node's own registration says.
#[derive(Debug, PartialEq, Eq)]
enum Sight {
    Mine,
    /// It is gone, and may be made again.
    Gone,
    /// Another daemon has written it, in this node start's name.
    Anothers,
}

/// What can wake the owner.
enum Wake {
    Renew,
    Looked(Looked),
    Asked(Ask),
    Stop,
}

impl Owner {
    /// Keeps the registration up. Ends when told to stop, or when another daemon has this node's identity.
    async fn stay(
        mut self,
        mut registration: Registration,
        tell: Tell,
        mut asked: mpsc::Receiver<Ask>,
        stop: CancellationToken,
    ) -> Result<(), Refused> {
        let mut ticks = interval(RENEW_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut renewing, mut looking) = (Contact::default(), Contact::default());
        // Beside the renewals: a store that answers those and no reads must not keep us from renewing.
        let mut look: Option<Look> = None;
        loop {
            let wake = tokio::select! {
                biased;
                () = stop.cancelled() => Wake::Stop,
                Some(ask) = asked.recv() => Wake::Asked(ask),
                looked = async { look.as_mut().expect("there is one").await }, if look.is_some() => Wake::Looked(looked),
                _ = ticks.tick() => Wake::Renew,
            };
            match wake {
                Wake::Stop => break,
                Wake::Asked(Ask::Files(files)) => {
                    if self.presence.files != files {
                        self.presence.files = files;
                        registration = self.register_again(&tell).await?;
                    }
                }
                Wake::Asked(Ask::Clock { word, set_by }) => {
                    // When it registered, as the clock has it now.
                    self.presence.at += set_by;
                    (self.presence.clock, self.presence.clock_at) = (word, Some(self.clock.now()));
                    registration = self.register_again(&tell).await?;
                }
                Wake::Asked(Ask::Fence { from, done }) => {
                    // Many tasks may ask at once for what one fence gives them all.
                    if from == registration.epoch {
                        registration = self.register_again(&tell).await?;
                        debug!(node = %self.me.name, epoch = %registration.epoch, "fenced");
                    }
                    // Who asked may have gone.
                    let _ = done.send(());
                }
                Wake::Looked(looked) => {
                    look = None;
                    match looked.reply {
                        // It is about a registration that was.
                        _ if looked.epoch != registration.epoch => {}
                        Ok(reply) => match self.sight(&registration, &reply) {
                            Sight::Mine => {
                                let losses = registration.losses;
                                tell.in_touch.send(InTouch { at: looked.at, losses });
                                looking.made(&self.me.name);
                            }
                            Sight::Gone => registration = self.register_after_loss(&tell).await?,
                            Sight::Anothers => return Err(Refused::Doubled { name: self.me.name.clone() }),
                        },
                        Err(error) => looking.failed(&self.me.name, &error),
                    }
                }
                Wake::Renew => {
                    if look.is_none() && self.holding.load(Ordering::Relaxed) > 0 {
                        look = Some(self.look(&registration));
                    }
                    let sent = self.clock.since_boot();
                    match self.renew(&registration).await {
                        Ok(_) => {
                            tell.renewed.send(sent);
                            renewing.made(&self.me.name);
                            if mutant!("renewal-is-contact") {
                                tell.in_touch.send(InTouch { at: sent, losses: registration.losses });
                            }
                        }
                        Err(StoreError::LeaseGone) => registration = self.register_after_loss(&tell).await?,
                        Err(error) => renewing.failed(&self.me.name, &error),
                    }
                }
            }
        }
        // Deregistered last: until its records are written, others must still see this node alive.
        fail_point!("register.revoke");
        if let Err(error) = self.store.revoke(registration.lease).await {
            warn!(node = %self.me.name, %error, "the lease could not be given back; it runs out by itself");
        }
        Ok(())
    }

    /// Begins to read this node's own registration: one read for both keys, so that they are seen together.
    fn look(&self, registration: &Registration) -> Look {
        let (store, clock, epoch) = (self.store.clone(), self.clock, registration.epoch);
        let read = Txn::new().then([Op::get(keys::node(&self.me.name)), Op::get(keys::epoch(&self.me.name))]);
        Box::pin(async move {
            // Before it is sent: the answer may take its time.
            let at = clock.since_boot();
            fail_point!("register.look");
            let reply = store.txn(read).await;
            let at = if mutant!("contact-from-answer") { clock.since_boot() } else { at };
            Looked { at, epoch, reply }
        })
    }

    fn sight(&self, registration: &Registration, reply: &TxnReply) -> Sight {
        let (node, epoch) = (reply.got(0).first(), reply.got(1).first());
        match (node, epoch) {
            (Some(_), Some(epoch)) if epoch.mod_revision == registration.epoch => Sight::Mine,
            (_, Some(epoch)) if epoch.mod_revision != registration.epoch => {
                // Every write of ours has been answered, or was undone by a later one.
                match values::decode::<Epoch>(&epoch.key, &epoch.value) {
                    Ok(other) if other.node_start == self.me.start => Sight::Anothers,
                    // The name's new owner, or a later release: registering finds out.
                    _ => Sight::Gone,
                }
            }
            _ => Sight::Gone,
        }
    }

    async fn register_again(&mut self, tell: &Tell) -> Result<Registration, Refused> {
        let registration = self.register().await?;
        tell.renewed.send(self.clock.since_boot());
        tell.registered.send(Registered::Yes(registration.clone()));
        Ok(registration)
    }

    async fn register_after_loss(&mut self, tell: &Tell) -> Result<Registration, Refused> {
        warn!(node = %self.me.name, "the lease was lost, registering again");
        tell.registered.send(Registered::NotNow);
        let registration = self.register_again(tell).await?;
        info!(node = %self.me.name, epoch = %registration.epoch, "registered again");
        Ok(registration)
    }

    async fn renew(&self, registration: &Registration) -> Result<Duration, StoreError> {
        fail_point!("register.renew");
        self.store.renew(registration.lease).await
    }

    /// Registers, trying for as long as the store is away.
    async fn register(&mut self) -> Result<Registration, Refused> {
        let mut pause = LOOK_AGAIN;
        let mut taken_since = None;
        let mut told = false;
        loop {
            match self.try_register(&mut taken_since).await {
                Ok(Some(registration)) => return Ok(registration),
                Ok(None) => pause = LOOK_AGAIN,
                Err(Refused::Store(error)) if error.passes() || matches!(error, StoreError::LeaseGone) => {
                    if !std::mem::replace(&mut told, true) {
                        warn!(node = %self.me.name, %error, "not registered yet, trying on");
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(Refused::Store(error)) if error.needs_help() => {
                    warn!(node = %self.me.name, %error, "cannot register, trying on");
                    pause = LONGEST_PAUSE * 5;
                }
                Err(refused) => return Err(refused),
            }
            fail_point!("register.pause");
            sleep(pause.mul_f64(0.5 + self.store.random() / 2.0)).await;
        }
    }

    /// One try. `None`: somebody else wrote meanwhile, or the name is not free yet; look again.
    async fn try_register(
        &mut self,
        taken_since: &mut Option<(Revision, Instant)>,
    ) -> Result<Option<Registration>, Refused> {
        let (node, epoch) = (keys::node(&self.me.name), keys::epoch(&self.me.name));
        fail_point!("register.read");
        let seen = self.store.txn(Txn::new().then([Op::get(node.as_str()), Op::get(epoch.as_str())])).await?;
        let (there, before) = (seen.got(0).first(), seen.got(1).first());
        let counter = match before {
            Some(entry) => values::decode::<Epoch>(&entry.key, &entry.value)?.counter,
            None => 0,
        };
        let lease = match there {
            None => None,
            Some(entry) => {
                let presence: Presence = values::decode(&entry.key, &entry.value)?;
                if presence.node_start != self.me.start {
                    return self.wait_for_name(entry, &presence, taken_since);
                }
                // Ours of a moment ago, or of the daemon before this one: the lease goes on.
                match entry.lease {
                    Some(lease) => {
                        fail_point!("register.lease");
                        match self.store.renew(lease).await {
                            Ok(_) => Some((lease, entry)),
                            Err(StoreError::LeaseGone) => return Ok(None),
                            Err(error) => return Err(error.into()),
                        }
                    }
                    None => None,
                }
            }
        };
        let at = |entry: Option<&Entry>| entry.map_or(Revision(0), |entry| entry.mod_revision);
        let unchanged = [
            Compare::mod_revision(node.as_str(), at(there)),
            Compare::mod_revision(epoch.as_str(), at(before)),
        ];
        let next = values::encode(&Epoch::new(self.me.start, counter + 1, self.me.instance.clone()));
        let kept = before.filter(|_| mutant!("epoch-not-moved"));
        let mut writes = match kept {
            Some(_) => Vec::new(),
            None => vec![Op::put(epoch.as_str(), next)],
        };
        // What is not written anew keeps its time.
        let is_shown =
            lease.is_some() && there.is_some_and(|entry| entry.value == values::encode(&self.presence));
        if !is_shown {
            self.presence.clock_at = Some(self.clock.now());
        }
        let shown = values::encode(&self.presence);
        let lease = match lease {
            // Nobody watches epochs: a restart or a fence wakes nobody.
            Some((lease, entry)) if entry.value == shown => lease,
            Some((lease, _)) => {
                writes.push(Op::put_on(node.as_str(), shown, lease));
                lease
            }
            None => {
                fail_point!("register.grant");
                let lease = self.store.grant(LEASE).await?.id;
                writes.push(Op::put_on(node.as_str(), shown, lease));
                lease
            }
        };
        // Safe when two do it at once: both keys must be as they were read. When no answer comes, reading again
        // and moving the epoch once more is as good.
        fail_point!("register.write");
        let reply = self.store.txn(Txn::when(unchanged).then(writes)).await?;
        if !reply.succeeded {
            return Ok(None);
        }
        if self.lease.replace(lease).is_some_and(|before| before != lease) {
            self.losses += 1;
        }
        Ok(Some(Registration {
            name: self.me.name.clone(),
            epoch: kept.map_or(reply.revision, |kept| kept.mod_revision),
            counter: counter + 1,
            lease,
            losses: self.losses,
        }))
    }

    /// The name belongs to another node start: its lease is given time to run out. A key that is still there then
    /// has been renewed.
    fn wait_for_name(
        &self,
        entry: &Entry,
        presence: &Presence,
        taken_since: &mut Option<(Revision, Instant)>,
    ) -> Result<Option<Registration>, Refused> {
        match taken_since {
            Some((revision, since)) if *revision == entry.create_revision => {
                if since.elapsed() > NAME_IS_FREE_AFTER {
                    return Err(Refused::NameTaken {
                        name: self.me.name.clone(),
                        other: presence.node_start,
                    });
                }
            }
            _ => {
                info!(node = %self.me.name, other = %presence.node_start,
                      "the name is another node's or an earlier life's, waiting for its lease to run out");
                *taken_since = Some((entry.create_revision, Instant::now()));
            }
        }
        Ok(None)
    }
}
