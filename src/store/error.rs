//! What can go wrong with a store: one variant for each thing that a caller does about it.

use super::Revision;

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed: it is safe to ask for anything again.
    #[error("{store} cannot be reached: {why}")]
    NotReached { store: String, why: String },
    /// A transaction that writes was sent, and nobody knows whether it was done: read it back.
    #[error("{store} gave no answer, so the change may or may not have been made: {why}")]
    NoAnswer { store: String, why: String },
    /// The lease has run out or was revoked, and its keys are gone.
    #[error("the lease has run out")]
    LeaseGone,
    /// The store no longer knows what happened up to this revision: list again.
    #[error("the store's history up to revision {0} has been compacted")]
    Compacted(Revision),
    /// User, password, certificate or permission: a person must act.
    #[error("{store} refuses us: {why}")]
    Denied { store: String, why: String },
    /// Nothing new fits in; deletes and reads still work.
    #[error("{store} is full: {why}")]
    Full { store: String, why: String },
    #[error("a transaction of {bytes} bytes is too large; the most is {most}")]
    TooLarge { bytes: usize, most: usize },
    /// There is no store, and this command does not make one.
    #[error("there is no store at {0}; `fleetcron run` and `fleetcron sync` make one")]
    Missing(String),
    /// The store is there and is not one of ours, is broken, or is from a later version: a person must act.
    #[error("{store} cannot be used: {why}")]
    Unusable { store: String, why: String },
    /// Asked for something that no store does: a mistake of ours.
    #[error("the store rejects the request: {0}")]
    Rejected(String),
}

impl StoreError {
    /// Whether time or another try may cure it, without anybody's help.
    pub fn passes(&self) -> bool {
        matches!(self, StoreError::NotReached { .. } | StoreError::NoAnswer { .. })
    }

    /// Whether a person can cure it while this program runs: waited for without hurry.
    pub fn needs_help(&self) -> bool {
        matches!(self, StoreError::Denied { .. } | StoreError::Full { .. } | StoreError::Unusable { .. })
    }
}
