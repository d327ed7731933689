//! Watching over a run: its guard is heard out, contacts are passed on to it, and orders too.
//!
//! A guard is given contact only for a lock that this node was shown as its own. After a loss of the lease it gets none
//! until the lock has been looked at again together with the new registration; a lock that is no longer ours ends the
//! command at once.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch as channel;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::spec::contact;
use super::{End, Order, Place, take_back};
use crate::fail_point;
use crate::guard::folder::Found;
use crate::guard::link::Request;
use crate::guard::{Guard, Heard, RunFolder, Spec};
use crate::mutant;
use crate::race::{self, Claim, InTouch, Standing, Verified};
use crate::record::Outcome;
use crate::store::StoreError;

/// A run that is watched over.
pub(super) struct Watch<'a> {
    pub place: &'a Place,
    pub standing: &'a mut Standing,
    pub claim: &'a mut Claim,
    pub folder: &'a RunFolder,
    /// What the guard was told.
    pub spec: &'a Spec,
    /// The contact by which the lock was last shown as this node's.
    pub shown: Option<InTouch>,
}

/// What became of the watch.
pub(super) enum Watched {
    Ended(End),
    /// The command goes on, and this daemon goes.
    Parted,
}

/// How long a guard may take to say that it has heard of a longer hold.
const ANSWER: Duration = Duration::from_secs(2);
/// Contacts are passed on so many times within a hold, but not more often than they are made.
const TIMES_WITHIN_HOLD: u64 = 12;
const LONGEST_SILENCE: Duration = Duration::from_secs(5);
/// Between two looks at a guard that holds its lock and cannot be spoken to.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// All that can happen during a watch.
enum Event {
    Heard(Heard),
    Ordered,
    Contact(InTouch),
    Verified(Result<Verified, StoreError>),
}

/// A look at the lock that is under way.
type Verifying = Pin<Box<dyn Future<Output = Result<Verified, StoreError>> + Send>>;

impl Watch<'_> {
    /// Watches until the command has ended and all of it is known, or until this daemon has to go.
    pub async fn until_the_end(mut self, mut guard: Guard, orders: &mut channel::Receiver<Order>) -> Watched {
        let mut obeyed = Order::GoOn;
        let mut passed_on = self.shown.map_or(Duration::ZERO, |shown| shown.at);
        let mut verifying = self.shown.is_none().then(|| self.verify());
        let ended = loop {
            let order = orders.borrow_and_update().clone();
            if order != obeyed {
                obeyed = order.clone();
                fail_point!("run.order");
                match order {
                    Order::GoOn => {}
                    Order::Cancel(reason) => guard.ask(&Request::Cancel { reason }).await,
                    Order::Shutdown => guard.ask(&Request::Shutdown).await,
                    Order::Part { stop_hold } => match self.part(&mut guard, stop_hold).await {
                        None => return Watched::Parted,
                        Some(end) => break end,
                    },
                }
            }
            fail_point!("run.hear");
            // In this order, so that a simulation can be repeated: the end first, which makes all else needless.
            let event = tokio::select! {
                biased;
                heard = guard.hear() => Event::Heard(heard),
                // Without a daemon to give orders there is nothing left to hear of it.
                Ok(()) = orders.changed() => Event::Ordered,
                contact = self.standing.next_contact() => Event::Contact(contact),
                verified = async { verifying.as_mut().expect("there is one").await }, if verifying.is_some() => {
                    Event::Verified(verified)
                }
            };
            match event {
                Event::Ordered | Event::Heard(Heard::Started(_)) => {}
                Event::Heard(Heard::Holds(holds)) => self.lower(holds.hold).await,
                Event::Heard(Heard::Ended(ended)) => break End::Known(ended),
                Event::Heard(Heard::Gone) => match self.find_again().await {
                    Ok(found) => guard = found,
                    Err(end) => break end,
                },
                Event::Contact(contact) => {
                    let is_shown = self.shown.is_some_and(|shown| shown.losses == contact.losses)
                        || mutant!("contact-without-verify");
                    if !is_shown {
                        verifying = verifying.or_else(|| Some(self.verify()));
                    } else if contact.at >= passed_on + self.silence() {
                        passed_on = contact.at;
                        guard.wake(self.folder);
                        self.pass_on(&mut guard, contact).await;
                    }
                }
                Event::Verified(verified) => {
                    verifying = None;
                    match verified {
                        Ok(Verified::Mine(contact)) => {
                            (self.shown, passed_on) = (Some(contact), contact.at);
                            if mutant!("lock-lowered-first") {
                                self.lower(self.hold().unwrap_or_default()).await;
                            }
                            self.pass_on(&mut guard, contact).await;
                        }
                        Ok(Verified::Lost) => {
                            let fire = self.claim.fire();
                            warn!(job = %fire.job, fire = %fire.id, "no longer this node's, stopping it at once");
                            guard.ask(&Request::Kill { reason: "the lock was lost".to_owned() }).await;
                        }
                        // The next contact asks again; until then the guard goes by the last one.
                        Err(error) => warn!(%error, "a lock could not be looked at"),
                    }
                }
            }
        };
        fail_point!("run.reap");
        guard.reap().await;
        Watched::Ended(ended)
    }

    fn verify(&self) -> Verifying {
        let (together, clock) = (self.place.together.clone(), self.place.clock);
        let mut standing = self.standing.clone();
        let (fire, lock) = (self.claim.fire().clone(), self.claim.lock().clone());
        Box::pin(async move { race::verify(&together, &mut standing, &clock, &fire, &lock).await })
    }

    /// The hold that the guard is to keep: the one it was started with.
    fn hold(&self) -> Option<u64> {
        self.spec.contact.map(|contact| contact.hold)
    }

    fn silence(&self) -> Duration {
        let hold = Duration::from_millis(self.hold().unwrap_or(u64::MAX));
        (hold / TIMES_WITHIN_HOLD as u32).min(LONGEST_SILENCE)
    }

    async fn pass_on(&self, guard: &mut Guard, in_touch: InTouch) {
        if let Some(hold) = self.hold() {
            guard.keep(contact(in_touch, hold)).await;
        }
    }

    /// The guard keeps this hold now: the lock need not say a longer one any more. Only in that order, so that the
    /// lock's hold is never the shorter one.
    async fn lower(&mut self, in_force: u64) {
        let said = self.claim.lock().hold;
        if self.hold() != Some(in_force) || said.is_none_or(|said| said <= in_force) {
            return;
        }
        let form = self.claim.lock().with_hold(in_force, self.claim.token());
        let registration = self.standing.registration().await;
        fail_point!("run.lower");
        // If it cannot be done now, the answer to the next contact comes here again.
        let _ = race::rewrite(&self.place.together, self.claim, form, Some(&registration)).await;
    }

    /// Has the command go on without this daemon for at least `stop_hold`: first the lock says so, then the guard.
    ///
    /// `Some`: it ended instead.
    async fn part(&mut self, guard: &mut Guard, stop_hold: Duration) -> Option<End> {
        let fire = self.claim.fire().clone();
        let stop_hold = u64::try_from(stop_hold.as_millis()).unwrap_or(u64::MAX);
        let longer = self.hold().map(|hold| hold.max(stop_hold));
        // Never shown as ours, it gets no contact from us.
        let (Some(longer), Some(shown)) = (longer, self.shown) else {
            info!(job = %fire.job, fire = %fire.id, "it goes on without this daemon");
            return None;
        };
        if mutant!("guard-told-first") {
            guard.keep(contact(self.standing.in_touch(), longer)).await;
        }
        if self.claim.lock().hold.is_some_and(|hold| hold < longer) {
            let form = self.claim.lock().with_hold(longer, self.claim.token());
            fail_point!("run.part");
            loop {
                match race::rewrite(&self.place.together, self.claim, form.clone(), None).await {
                    Ok(true) => break,
                    Ok(false) => {
                        guard.ask(&Request::Kill { reason: "the lock was lost".to_owned() }).await;
                        break;
                    }
                    Err(error) if error.passes() => {
                        fail_point!("run.part.pause");
                        sleep(Duration::from_millis(100)).await;
                    }
                    Err(error) => {
                        warn!(job = %fire.job, fire = %fire.id, %error, "its hold could not be lengthened");
                        return None;
                    }
                }
            }
        }
        let newest = self.standing.in_touch();
        let at = if newest.losses == shown.losses { newest } else { shown };
        guard.keep(contact(at, longer)).await;
        let answered = async {
            loop {
                match guard.hear().await {
                    Heard::Started(_) => {}
                    Heard::Holds(holds) if holds.hold < longer => {}
                    Heard::Holds(_) | Heard::Gone => return None,
                    Heard::Ended(ended) => return Some(End::Known(ended)),
                }
            }
        };
        let ended = timeout(ANSWER, answered).await.ok().flatten();
        if ended.is_none() {
            info!(job = %fire.job, fire = %fire.id, hold = ?Duration::from_millis(longer),
                  "it goes on without this daemon");
        }
        ended
    }

    /// Speaks to a guard again that closed its link and holds its lock; or tells what its file shows.
    pub async fn find_again(&self) -> Result<Guard, End> {
        let mut pause = FIRST_LOOK;
        loop {
            match self.folder.look() {
                // Its socket is closed a moment before its lock is free.
                Ok(Found::Guarded) => {}
                Ok(Found::Ended(ended)) => return Err(End::Known(ended)),
                Ok(Found::NeverStarted(lock)) => {
                    let reason = match lock.void() {
                        Ok(()) => "the guard ended before it started the command".to_owned(),
                        Err(error) => format!("the guard ended before it started the command: {error}"),
                    };
                    let reason = format!("could not start: {reason}");
                    return Err(End::Unstarted { outcome: Outcome::Failed, reason });
                }
                Ok(Found::Abandoned(started, _lock)) => {
                    // Before the record says that the job may run again.
                    take_back::end_leftovers(self.place, &started);
                    let started_at = Some(started.at);
                    return Err(End::Lost { reason: "the guard was lost".to_owned(), started_at });
                }
                Err(error) => {
                    return Err(End::Lost {
                        reason: format!("the guard was lost: {error}"),
                        started_at: None,
                    });
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
            if let Ok(guard) = self.place.guards.connect(self.folder).await {
                return Ok(guard);
            }
        }
    }
}
