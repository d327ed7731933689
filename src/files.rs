//! Job files on the disk: which count, their texts, and a cheap sign that they have changed.
//!
//! Nothing but a regular file is ever opened, so no FIFO or device can make the daemon wait; and nothing is
//! passed over in silence, because a file that does not count by mistake is a job that does not run.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Larger files are refused: they are something else, and reading them takes memory.
pub const LARGEST: u64 = 8 << 20;

/// What the PATHs of a command line hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilesFound {
    /// In the order of the PATHs, in a folder sorted by name.
    pub files: Vec<TextFile>,
    /// Entries of folders that do not count, each with the reason.
    pub ignored: Vec<Ignored>,
    /// Why what was asked for could not be read. If there is any, the files are not the whole and must not
    /// be used.
    pub problems: Vec<Problem>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFile {
    pub path: String,
    pub text: String,
}

/// An entry of a folder that does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    pub path: String,
    pub reason: String,
    /// Whether its name is that of a job file, as with an empty file or a dangling link. It may have had jobs
    /// before something went wrong, so nothing may be removed on the strength of its silence.
    pub named_like_one: bool,
}

/// Why something that counts could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub path: String,
    /// Line and column, counted from 1, where the problem has a place.
    pub place: Option<(usize, usize)>,
    pub reason: String,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is ignored: {}", self.path.escape_debug(), self.reason)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\n  --> {}", self.reason, self.path.escape_debug())?;
        match self.place {
            Some((line, column)) => write!(f, ":{line}:{column}"),
            None => Ok(()),
        }
    }
}

impl FilesFound {
    /// Whether every entry that could be a job file was read: only then may what is not in the files be taken
    /// for removed.
    pub fn are_whole(&self) -> bool {
        self.problems.is_empty() && !self.ignored.iter().any(|ignored| ignored.named_like_one)
    }
}

/// Reads what counts: a file named directly whatever its name, of a folder each `*.toml`.
pub fn read(paths: &[PathBuf]) -> FilesFound {
    let mut found = FilesFound::default();
    let mut seen = BTreeMap::new();
    for path in paths {
        match fs::metadata(path) {
            Ok(is) if is.is_dir() => read_folder(path, &mut found, &mut seen),
            Ok(is) if is.is_file() => read_named(path, &is, &mut found, &mut seen),
            Ok(is) => found.problem(path, format!("neither a file nor a folder but {}", kind(&is))),
            Err(error) => found.problem(path, plain(&error)),
        }
    }
    found
}

/// Which file was read under which path, so that the same one is not read twice.
type Seen = BTreeMap<(u64, u64), String>;

impl FilesFound {
    fn problem(&mut self, path: &Path, reason: String) {
        self.problems.push(Problem { path: shown(path), place: None, reason });
    }

    fn ignore(&mut self, path: &Path, named_like_one: bool, reason: impl Into<String>) {
        self.ignored.push(Ignored { path: shown(path), reason: reason.into(), named_like_one });
    }
}

fn read_named(path: &Path, is: &Metadata, found: &mut FilesFound, seen: &mut Seen) {
    if seen.contains_key(&(is.dev(), is.ino())) {
        return;
    }
    match read_text(path) {
        Ok((_, text)) if text.trim().is_empty() => found.problem(path, "the file is empty".to_owned()),
        Ok((is, text)) => {
            seen.insert((is.dev(), is.ino()), shown(path));
            found.files.push(TextFile { path: shown(path), text });
        }
        Err(problem) => found.problems.push(problem),
    }
}

fn read_folder(folder: &Path, found: &mut FilesFound, seen: &mut Seen) {
    let mut entries = match list(folder) {
        Ok(entries) => entries,
        Err(error) => return found.problem(folder, plain(&error)),
    };
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if name.starts_with(b".") {
            found.ignore(&path, false, "its name begins with a dot");
        } else if !name.ends_with(b".toml") {
            found.ignore(&path, false, "its name does not end in .toml");
        } else {
            read_entry(&path, found, seen);
        }
    }
}

/// Reads an entry of a folder that has the name of a job file.
fn read_entry(path: &Path, found: &mut FilesFound, seen: &mut Seen) {
    let is = match fs::metadata(path) {
        Ok(is) => is,
        Err(error) if fs::symlink_metadata(path).is_ok_and(|is| is.is_symlink()) => {
            return found.ignore(path, true, format!("a link that leads nowhere ({})", plain(&error)));
        }
        Err(error) => return found.problem(path, plain(&error)),
    };
    if !is.is_file() {
        return found.ignore(path, true, format!("not a file but {}", kind(&is)));
    }
    if let Some(first) = seen.get(&(is.dev(), is.ino())) {
        return found.ignore(path, false, format!("the same file as {}", first.escape_debug()));
    }
    match read_text(path) {
        Ok((_, text)) if text.trim().is_empty() => found.ignore(path, true, "the file is empty"),
        Ok((is, text)) => {
            seen.insert((is.dev(), is.ino()), shown(path));
            found.files.push(TextFile { path: shown(path), text });
        }
        Err(problem) => found.problems.push(problem),
    }
}

fn read_text(path: &Path) -> Result<(Metadata, String), Problem> {
    let problem = |place, reason| Problem { path: shown(path), place, reason };
    let (is, bytes) = read_bytes(path).map_err(|error| problem(None, plain(&error)))?;
    if bytes.len() as u64 > LARGEST {
        return Err(problem(None, format!("the file is larger than {} MiB", LARGEST >> 20)));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok((is, text)),
        Err(error) => {
            let good = error.utf8_error().valid_up_to();
            let before = std::str::from_utf8(&error.as_bytes()[..good]).expect("valid up to here");
            let line = before.rsplit('\n').next().unwrap_or_default();
            let place = (before.matches('\n').count() + 1, line.chars().count() + 1);
            let byte = error.as_bytes()[good];
            Err(problem(Some(place), format!("the file is not UTF-8 text: byte 0x{byte:02x}")))
        }
    }
}

fn read_bytes(path: &Path) -> io::Result<(Metadata, Vec<u8>)> {
    // It was a regular file a moment ago. Should it be a FIFO by now, opening it must not wait for a writer.
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let is = file.metadata()?;
    if !is.is_file() {
        return Err(io::Error::other("it is no file any more"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok((is, bytes))
}

fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn kind(is: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let is = is.file_type();
    match () {
        _ if is.is_dir() => "a folder",
        _ if is.is_fifo() => "a FIFO",
        _ if is.is_socket() => "a socket",
        _ => "a device",
    }
}

/// The system's words without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    words.to_lowercase()
}

/// What can be seen of the PATHs without reading a file: equal signatures mean that nothing changed, by edit,
/// rename or swap of a link. A file that is just being written has changed again at the next look, so who acts
/// only on two equal ones in a row reads no half file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature(Vec<(PathBuf, Seal)>);

/// The state of one entry, links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seal {
    There { device: u64, inode: u64, size: u64, modified: (i64, i64), changed: (i64, i64) },
    Missing(io::ErrorKind),
}

impl Signature {
    pub fn of(paths: &[PathBuf]) -> Signature {
        let mut seals = Vec::new();
        for path in paths {
            seals.push((path.clone(), Seal::of(path)));
            let mut entries = list(path).unwrap_or_default();
            entries.sort();
            seals.extend(entries.into_iter().map(|entry| {
                let seal = Seal::of(&entry);
                (entry, seal)
            }));
        }
        Signature(seals)
    }
}

impl Seal {
    fn of(path: &Path) -> Seal {
        match fs::metadata(path) {
            Ok(is) => Seal::There {
                device: is.dev(),
                inode: is.ino(),
                size: is.size(),
                modified: (is.mtime(), is.mtime_nsec()),
                changed: (is.ctime(), is.ctime_nsec()),
            },
            Err(error) => Seal::Missing(error.kind()),
        }
    }
}
