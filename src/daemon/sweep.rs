//! The sweep: what this node keeps of runs goes when its time has come, at the daemon's start and hourly.
//!
//! Output that is kept goes with its record, and by the job's `keep`; the journal's days go by age; a cgroup goes when nothing lives in it any more.
//! Its cost is in proportion to what lies here, not to the history in the store. Never removes a record.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use chrono::TimeDelta;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cgroup;
use crate::fire::Fire;
use crate::guard::FolderName;
use crate::job::{JobName, Keep};
use crate::run::Place;
use crate::schedule::Timestamp;
use crate::store::values::Definition;
use crate::store::{MOST_OPS, Op, Store, Txn, keys};
use crate::warden;

const EVERY: Duration = Duration::from_secs(3600);

/// Sweeps now and then until it is told to end.
pub async fn keep_swept(place: Place, gone: CancellationToken) -> anyhow::Result<()> {
    loop {
        match sweep_outputs(&place.store, &place.outputs, place.clock.now()).await {
            Ok(0) => {}
            Ok(removed) => {
                info!(removed, "kept output that had outlived its record or its job's `keep` is removed")
            }
            // What is there next time is removed then.
            Err(error) => warn!("kept output could not be looked through: {error:#}"),
        }
        if let Err(error) = place.journal.prune(place.clock.now()) {
            warn!(%error, "the journal's old days could not be removed");
        }
        if let Some(cgroups) = &place.cgroups {
            cgroup::sweep(cgroups);
        }
        tokio::select! {
            () = gone.cancelled() => {
                place.cgroups.as_deref().map(cgroup::give_back);
                return Ok(());
            }
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Removes the output of runs that nobody is to see any more. Returns how many files that were.
///
/// Errors: the store does not answer, or the folder cannot be read; what was found before is removed.
pub async fn sweep_outputs(store: &Store, outputs: &Path, now: Timestamp) -> anyhow::Result<usize> {
    let folder = outputs.to_owned();
    // The files first: each was put here after its record was written, so a record that is not there then is gone.
    let found = tokio::task::spawn_blocking(move || list(&folder)).await?;
    let found = found.with_context(|| outputs.display().to_string())?;
    let mut removed = 0;
    for (job, files) in found {
        let Some(keep) = keep_of(store, &job).await? else { continue };
        let fires: HashSet<Fire> = files.iter().map(|file| file.name.fire.clone()).collect();
        let known = known(store, fires.into_iter().collect()).await?;
        let stay = staying(known, &keep, now);
        let go = files.into_iter().filter(|file| !stay.contains(&file.name.fire));
        let paths = go.map(|file| file.path).collect();
        let folder = outputs.join(job.as_str());
        removed += tokio::task::spawn_blocking(move || remove(paths, &folder)).await?;
    }
    Ok(removed)
}

/// Whose output stays of a job's fires, of which the store knows something: not what is too old, nor what is behind the
/// newest. All attempts of a fire go with it.
fn staying(mut fires: Vec<Fire>, keep: &Keep, now: Timestamp) -> HashSet<Fire> {
    let oldest = now - TimeDelta::days(i64::from(keep.days));
    fires.retain(|fire| fire.scheduled_at() >= oldest);
    fires.sort_by_key(|fire| std::cmp::Reverse((fire.scheduled_at(), fire.lane.clone())));
    fires.truncate(keep.records as usize);
    fires.into_iter().collect()
}

/// A kept output.
struct Kept {
    name: FolderName,
    path: PathBuf,
}

/// All that is kept, by job. What has no name of ours is left alone.
fn list(outputs: &Path) -> io::Result<BTreeMap<JobName, Vec<Kept>>> {
    let mut found = BTreeMap::<JobName, Vec<Kept>>::new();
    for folder in fs::read_dir(outputs)? {
        let folder = folder?;
        let Some(job) = folder.file_name().to_str().and_then(|name| name.parse::<JobName>().ok()) else {
            continue;
        };
        for file in fs::read_dir(folder.path())? {
            let file = file?;
            // As `kept_output` names it.
            let name = file.file_name().to_str().and_then(|name| format!("{job},{name}").parse().ok());
            let kept = name.map(|name| Kept { name, path: file.path() });
            found.entry(job.clone()).or_default().extend(kept);
        }
    }
    Ok(found)
}

/// How long the job's outputs are kept; a job that is gone has no say any more, and its records go as by default.
/// None: what it says cannot be read, so nothing of it goes.
async fn keep_of(store: &Store, job: &JobName) -> anyhow::Result<Option<Keep>> {
    if job.is_of_tasks() {
        return Ok(Some(warden::TASKS_KEPT));
    }
    Ok(match store.get(&keys::job(job)).await? {
        Some(entry) => Definition::decode(&entry.key, &entry.value).ok().map(|found| found.job.keep),
        None => Some(Keep::default()),
    })
}

/// Those of the fires that have a record or a lock: between two attempts there is only a lock.
async fn known(store: &Store, fires: Vec<Fire>) -> anyhow::Result<Vec<Fire>> {
    let mut known = Vec::new();
    for some in fires.chunks(MOST_OPS / 2) {
        let gets = some.iter().flat_map(|fire| [keys::lock(fire), keys::record(fire)]).map(Op::get);
        let reply = store.txn(Txn::new().then(gets)).await?;
        let there =
            |number: usize| !reply.got(2 * number).is_empty() || !reply.got(2 * number + 1).is_empty();
        known.extend(
            some.iter().enumerate().filter(|(number, _)| there(*number)).map(|(_, fire)| fire.clone()),
        );
    }
    Ok(known)
}

fn remove(paths: Vec<PathBuf>, folder: &Path) -> usize {
    let removed = paths.iter().filter(|path| fs::remove_file(path).is_ok()).count();
    if removed > 0 {
        // Refused as long as something is in it.
        let _ = fs::remove_dir(folder);
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sim::Sim;

    const NOW: &str = "2026-11-30T12:00:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    /// `LANE/FIRE` of the job `a`, and those of them that go.
    #[track_caller]
    fn check(records: u32, days: u32, kept: &[&str], go: &[&str]) {
        let fire = |text: &&str| keys::fire_of(&format!("history/a/{text}")).unwrap();
        let stay = staying(kept.iter().map(fire).collect(), &Keep { records, days, output: 1 }, now());
        let gone: Vec<&str> = kept.iter().copied().filter(|text| !stay.contains(&fire(text))).collect();
        assert_eq!(gone, go);
    }

    #[test]
    fn output_goes_with_age_and_behind_the_newest() {
        let kept = ["-/20261130T100000Z", "-/20261127T100000Z", "-/20261128T100000Z", "-/20261020T100000Z"];
        check(100, 30, &kept, &["-/20261020T100000Z"]);
        check(100, 365, &kept, &[]);
        check(2, 365, &kept, &["-/20261127T100000Z", "-/20261020T100000Z"]);
        check(0, 365, &kept, &kept);
        check(100, 1, &["-/20261129T120000Z", "-/20261129T115959Z"], &["-/20261129T115959Z"]);
        // Of two lanes, and by hand.
        let by_hand = "-/m-01ARZ3NDEKTSV4RRFFQ69G5FAV";
        check(2, 36_500, &["@b/20261130T100000Z", by_hand, "@a/20261130T100000Z"], &[by_hand]);
        check(2, 30, &[], &[]);
    }

    #[tokio::test]
    async fn files_of_which_the_store_knows_nothing_are_removed_and_strangers_are_not() {
        let store = Sim::new(1).client("a");
        let outputs = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = outputs.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let recorded = file("a/-,20261130T100000Z,1");
        let locked = file("a/-,20261130T110000Z,1");
        let unknown = file("a/-,20261130T090000Z,1");
        let stranger = file("a/notes.txt");
        let last = file("gone/-,20261130T100000Z,1");
        let unreadable = file("odd/-,20261130T100000Z,1");
        let many: Vec<_> =
            (0..150).map(|n| file(&format!("b/-,20261130T{:02}{:02}00Z,1", n / 60, n % 60))).collect();
        let put = ["history/a/-/20261130T100000Z", "locks/a/-/20261130T110000Z", "jobs/odd"];
        store.txn(Txn::new().then(put.map(|key| Op::put(key, "{}")))).await.unwrap();
        let removed = sweep_outputs(&store, outputs.path(), now()).await.unwrap();
        let there = |path: &PathBuf| path.exists();
        assert!([recorded, locked, stranger, unreadable].iter().all(there));
        assert!(![unknown, last].iter().chain(&many).any(there));
        assert_eq!(removed, 2 + many.len());
        assert!(!outputs.path().join("gone").exists() && outputs.path().join("a").exists());
        assert!(sweep_outputs(&store, &outputs.path().join("none"), now()).await.is_err());
    }
}
