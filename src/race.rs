//! The race: a node registers, and claims fires.
//!
//! Every transaction of `protocol.md` that makes this node the holder of a lock is here, and nothing else makes a
//! [`Claim`]; what becomes of a claim is `run`'s.
//!
//! Two rules carry the rest. A claim compares keys that outlive the run (lock, record, floor), so a node that comes
//! late finds the fire decided however late it is. And it compares this node's own registration, so by moving that
//! registration (a *fence*) all that this node sent before and got no answer to can no longer happen.

mod chain;
mod claim;
mod keep;
mod lane;
mod orphan;
mod registration;

pub use chain::{Chains, Links};
pub use claim::{
    Basis, Begun, Candidate, Claim, Decided, Found, Raced, Unrun, about, about_mutex, begin_again, claim,
    decide_unrun, mine, put_status, undecided,
};
pub use keep::{Verified, rewrite, verify};
pub use lane::{ask_to_stop, until_gone};
pub use orphan::{Orphan, Taken, close_orphan, is_mine_to_close, look, orphans, take_over};
pub use registration::{
    Holding, InTouch, LEASE, Me, Presence, Refused, Registration, Standing, register_and_stay,
};
