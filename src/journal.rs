//! A node's own journal: what it started and how that ended, one line of JSON for each, whatever the store says.
//!
//! It lies in the state folder, a file for each day, and goes by age. It is there to be held against the records: see
//! [`crate::audit`]. Nothing the node does ever hangs on it. A run has its line before its run file goes, so what is in
//! no line is in a run file, also while the disk is full; after a crash a line may be there twice, and readers drop the
//! second one. Lines are not synced: when the machine goes down, the last of them may be lost.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use chrono::{Days, NaiveDate};
use serde::{Deserialize, Serialize};

use crate::fail_point;
use crate::fire::{Fire, FireId, Lane};
use crate::guard::folder::Notes;
use crate::guard::{FolderName, RunFolder};
use crate::job::JobName;
use crate::node::{NodeName, NodeStart, as_text};
use crate::record::JournalEntry;
use crate::schedule::Timestamp;

/// The version that this release writes of a line.
const VERSION: u32 = 1;

/// So long lines are kept.
const KEEP: Days = Days::new(30);

/// The journal in a node's state folder.
#[derive(Debug, Clone)]
pub struct Journal {
    folder: PathBuf,
    /// Runs whose line could not be written yet; their run files stay until it is. Who writes has the lock.
    late: Arc<Mutex<Vec<Late>>>,
}

#[derive(Debug)]
struct Late {
    node: NodeName,
    name: FolderName,
    run: RunFolder,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    v: u32,
    #[serde(with = "as_text")]
    job: JobName,
    #[serde(with = "as_text")]
    lane: Lane,
    #[serde(with = "as_text")]
    fire: FireId,
    attempt: u32,
    fencing_token: i64,
    #[serde(with = "as_text")]
    node: NodeName,
    #[serde(with = "as_text")]
    node_start: NodeStart,
    guard: Option<i32>,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    lost: bool,
}

impl From<JournalEntry> for Line {
    fn from(entry: JournalEntry) -> Line {
        let Fire { job, lane, id: fire } = entry.fire;
        Line {
            v: VERSION,
            job,
            lane,
            fire,
            attempt: entry.attempt,
            fencing_token: entry.fencing_token,
            node: entry.node,
            node_start: entry.node_start,
            guard: entry.guard,
            started_at: entry.started_at,
            ended_at: entry.ended_at,
            exit_code: entry.exit_code,
            signal: entry.signal,
            lost: entry.lost,
        }
    }
}

impl From<Line> for JournalEntry {
    fn from(line: Line) -> JournalEntry {
        JournalEntry {
            fire: Fire { job: line.job, lane: line.lane, id: line.fire },
            attempt: line.attempt,
            fencing_token: line.fencing_token,
            node: line.node,
            node_start: line.node_start,
            guard: line.guard,
            started_at: line.started_at,
            ended_at: line.ended_at,
            exit_code: line.exit_code,
            signal: line.signal,
            lost: line.lost,
        }
    }
}

/// What a journal holds, with what is still in run files.
#[derive(Debug, Default)]
pub struct Told {
    /// Each attempt once, in the order in which they were closed; those in run files last.
    pub entries: Vec<JournalEntry>,
    /// The end of the first run that has a line: what began later has one too.
    pub since: Option<Timestamp>,
    /// The last end that a line tells of, by life of the node.
    pub last_ends: HashMap<NodeStart, Timestamp>,
    /// Lines that are torn or of a later release.
    pub unreadable: usize,
}

impl Journal {
    pub fn at(folder: PathBuf) -> Journal {
        Journal { folder, late: Arc::default() }
    }

    /// Writes down what the files of a run tell, if it was ever started, and removes the run file.
    ///
    /// Errors: the line could not be written, and the run file is still there. It goes with one of the next, or at the
    /// node's next start.
    pub fn take_up(
        &self,
        node: &NodeName,
        name: &FolderName,
        run: &RunFolder,
        now: Timestamp,
    ) -> io::Result<()> {
        let mut late = self.late.lock().expect("nothing panics while it holds this");
        if let Err(error) = self.note(node, name, run, now) {
            late.push(Late { node: node.clone(), name: name.clone(), run: run.clone() });
            return Err(error);
        }
        fail_point!("run.clear");
        run.remove()?;
        late.retain(|late| {
            let noted = self.note(&late.node, &late.name, &late.run, now);
            noted.and_then(|()| late.run.remove()).is_err()
        });
        Ok(())
    }

    fn note(&self, node: &NodeName, name: &FolderName, run: &RunFolder, now: Timestamp) -> io::Result<()> {
        let notes = match run.notes() {
            // What is gone has its line.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            notes => notes?,
        };
        let Some(entry) = entry_of(node, name, notes) else { return Ok(()) };
        let mut line = serde_json::to_vec(&Line::from(entry))?;
        line.push(b'\n');
        let path = self.folder.join(format!("{}{SUFFIX}", now.date_naive()));
        let open = || OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        let mut file = open().or_else(|_| {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
            open()
        })?;
        let end = file.metadata()?.len();
        file.write_all(&line).inspect_err(|_| {
            // A part of a line would spoil the next one as well.
            let _ = file.set_len(end);
        })
    }

    /// Removes the days that are too old. Returns how many.
    ///
    /// Errors: the folder cannot be read. One that is not there has no days.
    pub fn prune(&self, now: Timestamp) -> io::Result<usize> {
        let today = now.date_naive();
        let old = |(day, _): &(NaiveDate, PathBuf)| day.checked_add_days(KEEP).is_some_and(|end| end < today);
        let days = self.days()?;
        let removed = days.into_iter().filter(old).filter(|(_, path)| fs::remove_file(path).is_ok());
        Ok(removed.count())
    }

    /// Reads it, with the run files in `runs`.
    ///
    /// Errors: something of it cannot be read.
    pub fn read(&self, node: &NodeName, runs: &Path) -> io::Result<Told> {
        // The run files first: one that goes meanwhile has its line by then.
        let mut open = Vec::new();
        for (name, folder) in list(runs)? {
            match folder.notes() {
                Ok(notes) => open.extend(entry_of(node, &name, notes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let mut told = Told::default();
        let mut known = HashMap::<(Fire, u32, i64), usize>::new();
        for (_, path) in self.days()? {
            for line in BufReader::new(File::open(path)?).split(b'\n') {
                match serde_json::from_slice::<Line>(&line?) {
                    Ok(line) if line.v == VERSION => {
                        let entry = JournalEntry::from(line);
                        let ended = entry.ended_at.or(entry.started_at);
                        told.since = told.since.or(ended);
                        if let Some(ended) = ended {
                            let last = told.last_ends.entry(entry.node_start).or_insert(ended);
                            *last = ended.max(*last);
                        }
                        told.add(&mut known, entry);
                    }
                    _ => told.unreadable += 1,
                }
            }
        }
        for entry in open {
            told.add(&mut known, entry);
        }
        Ok(told)
    }

    /// The days' files, the oldest first.
    fn days(&self) -> io::Result<Vec<(NaiveDate, PathBuf)>> {
        let listed = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed?,
        };
        let mut days = Vec::new();
        for entry in listed {
            let entry = entry?;
            let name = entry.file_name();
            let day = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok());
            days.extend(day.map(|day| (day, entry.path())));
        }
        days.sort();
        Ok(days)
    }
}

const SUFFIX: &str = ".jsonl";

impl Told {
    fn add(&mut self, known: &mut HashMap<(Fire, u32, i64), usize>, entry: JournalEntry) {
        let key = (entry.fire.clone(), entry.attempt, entry.fencing_token);
        match known.get(&key).and_then(|index| self.entries.get_mut(*index)) {
            None => {
                known.insert(key, self.entries.len());
                self.entries.push(entry);
            }
            // Who saw it end knows more.
            Some(first) if first.ended_at.is_none() => *first = entry,
            Some(_) => {}
        }
    }
}

fn list(runs: &Path) -> io::Result<Vec<(FolderName, RunFolder)>> {
    match RunFolder::list(runs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}

/// What a run file tells. None: nothing was started, or it is from a release that did not say whose run it is.
fn entry_of(node: &NodeName, name: &FolderName, notes: Notes) -> Option<JournalEntry> {
    let Notes { spec, started, ended } = notes;
    let owner = spec?.owner?;
    let (started, ended) = match (started, ended) {
        (None, None) => return None,
        notes => notes,
    };
    let began = started.as_ref().map(|started| started.at);
    Some(JournalEntry {
        fire: name.fire.clone(),
        attempt: name.attempt,
        fencing_token: owner.token,
        node: node.clone(),
        node_start: owner.node_start,
        guard: started.map(|started| started.guard.pid),
        // The guard's note comes before the command; only its end tells whether that began.
        started_at: ended.as_ref().map_or(began, |ended| ended.started_at),
        ended_at: ended.as_ref().map(|ended| ended.ended_at),
        exit_code: ended.as_ref().and_then(|ended| ended.exit_code),
        signal: ended.as_ref().and_then(|ended| ended.signal),
        lost: ended.is_none(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::ProcessId;
    use crate::guard::folder::{Owner, Started};
    use crate::guard::{Ended, How, Spec};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn node() -> NodeName {
        "a".parse().unwrap()
    }

    /// A folder for the run files and the journal, with a run in it that has come so far.
    fn a_run(name: &str, started: bool, ended: bool) -> (tempfile::TempDir, FolderName, RunFolder) {
        let dir = tempfile::tempdir().unwrap();
        let name: FolderName = name.parse().unwrap();
        let (folder, lock) = RunFolder::create(dir.path(), &name).unwrap();
        let node_start = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        let owner = Owner { node_start, token: 7, claimed_at: at("2026-11-30T02:00:00Z") };
        lock.write_spec(&Spec { v: 1, owner: Some(owner), ..Spec::default() }).unwrap();
        if started {
            let guard = ProcessId { pid: 4711, started: 815 };
            let note =
                Started { v: 1, boot: "b".into(), guard, at: at("2026-11-30T02:00:01Z"), cgroup: None };
            let end = lock.note_started(&note).unwrap();
            let how = Ended {
                v: 1,
                how: How::Exited,
                exit_code: Some(3),
                signal: None,
                reason: None,
                started_at: Some(at("2026-11-30T02:00:02Z")),
                ended_at: at("2026-11-30T02:00:09Z"),
                output_bytes: 0,
                output_left_out: 0,
                output_failed: None,
                usage: None,
            };
            if ended {
                lock.note_ended(&end, &how).unwrap();
            }
        }
        (dir, name, folder)
    }

    const NAME: &str = "backup,-,20261130T020000Z,1";

    #[test]
    fn what_is_in_a_run_file_goes_into_the_journal_and_is_told_once() {
        for (ended, exit_code, started) in
            [(true, Some(3), "2026-11-30T02:00:02Z"), (false, None, "2026-11-30T02:00:01Z")]
        {
            let (dir, name, run) = a_run(NAME, true, ended);
            let journal = Journal::at(dir.path().join("journal"));
            let before = journal.read(&node(), dir.path()).unwrap();
            assert_eq!((before.entries.len(), before.since), (1, None), "it is in the run file");
            for _ in 0..2 {
                journal.note(&node(), &name, &run, at("2026-11-30T02:00:10Z")).unwrap();
            }
            run.remove().unwrap();
            let told = journal.read(&node(), dir.path()).unwrap();
            assert_eq!(told.entries, before.entries);
            let entry = &told.entries[0];
            assert_eq!((entry.fencing_token, entry.guard, entry.exit_code), (7, Some(4711), exit_code));
            assert_eq!((entry.started_at, entry.lost), (Some(at(started)), !ended));
            let since = if ended { "2026-11-30T02:00:09Z" } else { "2026-11-30T02:00:01Z" };
            assert_eq!(told.since, Some(at(since)));
            assert_eq!(told.last_ends[&entry.node_start], at(since));
        }
    }

    #[test]
    fn what_never_started_is_not_told() {
        let (dir, name, run) = a_run(NAME, false, false);
        let journal = Journal::at(dir.path().join("journal"));
        journal.note(&node(), &name, &run, at("2026-11-30T02:00:10Z")).unwrap();
        assert!(journal.read(&node(), dir.path()).unwrap().entries.is_empty());
    }

    #[test]
    fn a_run_whose_line_cannot_be_written_keeps_its_run_file_until_it_can() {
        let (dir, name, run) = a_run(NAME, true, true);
        let (journal, now) = (Journal::at(dir.path().join("journal")), at("2026-11-30T02:00:10Z"));
        fs::write(dir.path().join("journal"), "in the way").unwrap();
        journal.take_up(&node(), &name, &run, now).unwrap_err();
        assert!(run.is_there());
        fs::remove_file(dir.path().join("journal")).unwrap();
        let (_other_dir, other_name, other) = a_run("other,-,20261130T020000Z,1", true, true);
        journal.take_up(&node(), &other_name, &other, now).unwrap();
        assert!(!other.is_there() && !run.is_there());
        assert_eq!(journal.read(&node(), dir.path()).unwrap().entries.len(), 2);
    }

    #[test]
    fn a_torn_line_is_counted_and_the_others_are_read() {
        let (dir, name, run) = a_run(NAME, true, true);
        let journal = Journal::at(dir.path().join("journal"));
        journal.note(&node(), &name, &run, at("2026-11-30T02:00:10Z")).unwrap();
        let path = dir.path().join("journal/2026-11-30.jsonl");
        let whole = fs::read(&path).unwrap();
        let later = String::from_utf8(whole.clone()).unwrap().replace("\"v\":1", "\"v\":2").into_bytes();
        fs::write(&path, [&whole[..20], b"\n", &later, &whole].concat()).unwrap();
        let told = journal.read(&node(), dir.path()).unwrap();
        assert_eq!((told.entries.len(), told.unreadable), (1, 2));
    }

    #[test]
    fn days_go_by_age_and_strangers_stay() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::at(dir.path().join("journal"));
        assert_eq!(journal.prune(at("2026-11-30T12:00:00Z")).unwrap(), 0, "there is none yet");
        fs::create_dir(dir.path().join("journal")).unwrap();
        for name in ["2026-10-30.jsonl", "2026-10-31.jsonl", "2026-11-30.jsonl", "notes", "2026-10-01"] {
            fs::write(dir.path().join("journal").join(name), "").unwrap();
        }
        assert_eq!(journal.prune(at("2026-11-30T12:00:00Z")).unwrap(), 1);
        assert_eq!(fs::read_dir(dir.path().join("journal")).unwrap().count(), 4);
    }
}
