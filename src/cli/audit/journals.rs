//! The journals of the nodes whose state folders are at hand.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::audit::{Journals, Reach};
use crate::cli::failure::{Failure, say};
use crate::config::StateFolder;
use crate::daemon::state;
use crate::fire::Lane;
use crate::job::JobName;
use crate::journal::{Journal, Told};
use crate::node::{NodeName, NodeStart};
use crate::record::JournalEntry;
use crate::schedule::Timestamp;

/// All journals that were given.
pub struct Shelf {
    pub journals: Journals,
    pub entries: HashMap<(JobName, Lane), Vec<JournalEntry>>,
}

/// Reads them, as of `now`.
///
/// Errors: a folder is no node's, or cannot be read.
pub fn read(folders: &[PathBuf], now: Timestamp) -> Result<Shelf, Failure> {
    let journals = Journals { lives: HashMap::new(), read_at: now };
    let mut shelf = Shelf { journals, entries: HashMap::new() };
    for folder in folders {
        let unread = |error: &dyn std::fmt::Display| {
            Failure::Usage(format!("--journals {}: {error}", folder.display()))
        };
        let (node, life) = state::owner_of(folder).map_err(|error| unread(&format!("{error:#}")))?;
        let layout = StateFolder::at(folder.clone());
        let told =
            Journal::at(layout.journal()).read(&node, &layout.runs()).map_err(|error| unread(&error))?;
        shelf.put(folder, &node, life, told);
    }
    Ok(shelf)
}

impl Shelf {
    fn put(&mut self, folder: &Path, node: &NodeName, life: NodeStart, told: Told) {
        if told.unreadable > 0 {
            say(format_args!(
                "{}: {} lines of the journal cannot be read",
                folder.display(),
                told.unreadable
            ));
        }
        let since = told.since;
        let lives = &mut self.journals.lives;
        // What an earlier life wrote last may not have come to the disk.
        for (earlier, end) in told.last_ends.into_iter().filter(|(earlier, _)| *earlier != life) {
            lives.insert((node.clone(), earlier), Reach { since, whole_until: Some(end) });
        }
        lives.insert((node.clone(), life), Reach { since, whole_until: None });
        for entry in told.entries {
            let lane = (entry.fire.job.clone(), entry.fire.lane.clone());
            self.entries.entry(lane).or_default().push(entry);
        }
    }
}
