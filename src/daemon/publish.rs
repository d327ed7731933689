//! Keeping the store in step with this node's job files: `run --jobs`.
//!
//! On one machine (SQLite) the files are what counts, as with `sync`. In a fleet a node publishes only a change it has
//! seen: see [`sync::publish`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::state::State;
use crate::clock::Clock;
use crate::files::{self, Signature};
use crate::jobfile::{self, SourceFile};
use crate::race::Standing;
use crate::store::Store;
use crate::sync::{self, Publish, SyncError, Wanted};

/// How often the files' signature is looked at. Not inotify: that sees no swap of a link further up, and nothing on
/// network file systems.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often a node that differs from the store, or could not write, compares again.
const COMPARE_AGAIN: u32 = 15;

/// A node's job files.
pub struct Files {
    pub store: Store,
    pub clock: Clock,
    pub paths: Vec<PathBuf>,
    pub state: Arc<State>,
    pub standing: Standing,
    /// Woken to read everything again.
    pub reload: Arc<Notify>,
}

impl Files {
    /// Reads the files again whenever they change, and publishes what is to be published. Ends with the daemon.
    pub async fn keep_published(self) {
        let mut last_signature = None;
        let mut last_told = None;
        let mut rounds_since = 0;
        loop {
            let signature = self.signature().await;
            let changed = last_signature.as_ref() != Some(&signature);
            if changed && last_signature.is_some() {
                // Half-written files are not read: what is read has kept still for one look.
                self.settle(&signature).await;
            }
            if changed || rounds_since >= COMPARE_AGAIN {
                last_signature = Some(self.signature().await);
                rounds_since = 0;
                let told = self.look().await;
                // The same trouble is said once, not at every look.
                if last_told.as_ref() != Some(&told) {
                    told.say(&self.standing.me.name.to_string());
                    last_told = Some(told);
                }
            }
            rounds_since += 1;
            if timeout(LOOK_EVERY, self.reload.notified()).await.is_ok() {
                last_signature = None;
                last_told = None;
            }
        }
    }

    async fn signature(&self) -> Signature {
        let paths = self.paths.clone();
        tokio::task::spawn_blocking(move || Signature::of(&paths))
            .await
            .expect("looking at files does not panic")
    }

    /// Waits until two looks in a row see the same.
    async fn settle(&self, seen: &Signature) {
        let mut before = seen.clone();
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = self.signature().await;
            if now == before {
                return;
            }
            before = now;
        }
    }

    /// Reads, checks, compares, and writes if that is to be done.
    async fn look(&self) -> Told {
        let paths = self.paths.clone();
        let found = tokio::task::spawn_blocking(move || files::read(&paths))
            .await
            .expect("reading files does not panic");
        let ignored = found.ignored.iter().map(ToString::to_string).collect();
        if !found.problems.is_empty() {
            let problems = found.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            return Told::Unusable { ignored, why: problems };
        }
        let texts: Vec<_> =
            found.files.iter().map(|file| SourceFile { path: &file.path, text: &file.text }).collect();
        let (wanted, named) = match jobfile::parse(&texts) {
            Ok(files) => {
                (Wanted { source: files.source, jobs: files.jobs, limits: files.limits }, files.source_named)
            }
            Err(mistakes) => return Told::Unusable { ignored, why: mistakes.to_string() },
        };
        if !found.are_whole() || (wanted.jobs.is_empty() && !named) {
            let why =
                "not all of the job files could be read, or they have no job; nothing is removed or changed";
            return Told::Unusable { ignored, why: why.to_owned() };
        }
        let mut published = self.publish(&wanted).await;
        // In a rolling deploy several nodes see the same change at once: look what the other one made of it.
        for _ in 0..5 {
            let Err(error) = &published else { break };
            if !matches!(
                error.downcast_ref(),
                Some(SyncError::Overtaken { .. } | SyncError::Displaced { .. })
            ) {
                break;
            }
            published = self.publish(&wanted).await;
        }
        match published {
            Ok(done) => Told::Done { ignored, source: wanted.source.to_string(), done },
            Err(error) => Told::NotWritten { ignored, why: format!("{error:#}") },
        }
    }

    async fn publish(&self, wanted: &Wanted) -> anyhow::Result<Done> {
        let source = wanted.source.to_string();
        let now = wanted.digest();
        let mut seen = self.state.files_seen()?;
        self.standing.show_files(BTreeMap::from([(source.clone(), now.clone())])).await;
        let state = sync::state(&self.store, &wanted.source).await?;
        let publish = match self.store.is_shared() {
            true => sync::publish(seen.get(&source).map(String::as_str), &now, state.as_ref()),
            false => Publish::Write,
        };
        let done = match publish {
            Publish::Same => Done::Same,
            Publish::Drift => Done::Drift,
            Publish::Write => self.write(wanted).await?,
        };
        // After a refusal the step is not noted: who mends the files shall find the change still to be made.
        if !matches!(done, Done::Refused(_)) && seen.insert(source, now.clone()).as_ref() != Some(&now) {
            self.state.note_files_seen(&seen)?;
        }
        Ok(done)
    }

    async fn write(&self, wanted: &Wanted) -> anyhow::Result<Done> {
        let outlook = sync::look(&self.store, wanted).await?;
        if outlook.is_done(wanted) {
            return Ok(Done::Same);
        }
        if let Some((job, owner)) = outlook.foreign.first() {
            return Ok(Done::Refused(format!(
                "job {job} and {} others belong to another source ({owner}); move them with fleetcron sync --adopt",
                outlook.foreign.len() - 1
            )));
        }
        if outlook.removes_more_than_half() {
            return Ok(Done::Refused(format!(
                "{} of {} jobs would be removed; if that is meant, say fleetcron sync --prune",
                outlook.plan.removed.len(),
                outlook.there
            )));
        }
        let plan = outlook.plan.to_string();
        sync::apply(&self.store, wanted, outlook, &crate::act::who(), self.clock.now()).await?;
        Ok(Done::Written(plan))
    }
}

/// What came of a look at the files.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Unusable { ignored: Vec<String>, why: String },
    NotWritten { ignored: Vec<String>, why: String },
    Done { ignored: Vec<String>, source: String, done: Done },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Done {
    Same,
    Drift,
    Written(String),
    Refused(String),
}

impl Told {
    fn say(&self, node: &str) {
        let (Told::Unusable { ignored, .. } | Told::NotWritten { ignored, .. } | Told::Done { ignored, .. }) =
            self;
        for line in ignored {
            warn!(node, "{line}");
        }
        match self {
            Told::Unusable { why, .. } => error!(node, "the job files are not used: {why}"),
            Told::NotWritten { why, .. } => warn!(node, "the job files are not in the store yet: {why}"),
            Told::Done { source, done, .. } => match done {
                Done::Same => info!(node, source, "the store has the job files as they are here"),
                Done::Drift => warn!(
                    node,
                    source,
                    "drift: the job files here are not what the store has, and it is not known that they are newer; \
                     nothing is written (fleetcron sync makes the store equal to them)"
                ),
                Done::Written(plan) => info!(node, source, "the job files are in the store now:\n{plan}"),
                Done::Refused(why) => error!(node, source, "the job files are not put into the store: {why}"),
            },
        }
    }
}
