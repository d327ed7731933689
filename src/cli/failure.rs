//! How a command fails, and what is said of it: one clear line, and one of a few exit codes.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::config::SettingsError;
use crate::store::StoreError;
use crate::store::values::Unreadable;
use crate::sync::SyncError;

/// Why a command did not end well, by what its caller is to make of it.
#[derive(Debug)]
pub enum Failure {
    /// 1: the thing asked about failed.
    Asked(String),
    /// 2: wrong usage, or a wrong file.
    Usage(String),
    /// 3: the store was not reached, or does not let us in.
    Store(String),
    /// stdout takes no more. A closed pipe is a reader who has seen enough: that is no failure.
    Output(io::Error),
    /// All is said.
    Said(u8),
}

impl Failure {
    pub fn asked(why: impl Display) -> Failure {
        Failure::Asked(why.to_string())
    }

    pub fn usage(why: impl Display) -> Failure {
        Failure::Usage(why.to_string())
    }

    /// Says why, and gives the exit code.
    pub fn tell(self) -> ExitCode {
        let code = match &self {
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Failure::Output(_) | Failure::Asked(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Store(_) => 3,
            Failure::Said(code) => *code,
        };
        match self {
            Failure::Asked(why) | Failure::Usage(why) | Failure::Store(why) => say(why),
            Failure::Output(error) if code != 0 => say(format_args!("stdout cannot be written: {error}")),
            Failure::Output(_) | Failure::Said(_) => {}
        }
        ExitCode::from(code)
    }
}

/// Words go to stderr. When nobody can hear them there is nobody to tell so.
pub fn say(words: impl Display) {
    _ = writeln!(io::stderr(), "fleetcron: {words}");
}

/// Words of several lines that speak for themselves, such as a mistake with its place.
pub fn show(words: impl Display) {
    _ = writeln!(io::stderr(), "{words}");
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Failure {
        Failure::Usage(error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        match error {
            StoreError::NotReached { .. }
            | StoreError::NoAnswer { .. }
            | StoreError::Denied { .. }
            | StoreError::Missing(_)
            | StoreError::Unusable { .. } => Failure::Store(error.to_string()),
            StoreError::LeaseGone
            | StoreError::Compacted(_)
            | StoreError::Full { .. }
            | StoreError::TooLarge { .. }
            | StoreError::Rejected(_) => Failure::Asked(error.to_string()),
        }
    }
}

impl From<Unreadable> for Failure {
    fn from(error: Unreadable) -> Failure {
        Failure::Asked(error.to_string())
    }
}

impl From<SyncError> for Failure {
    fn from(error: SyncError) -> Failure {
        match error {
            SyncError::Store(error) => error.into(),
            error => Failure::Asked(error.to_string()),
        }
    }
}
