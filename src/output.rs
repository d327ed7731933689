//! The output of a run, in a file on the node that ran it.
//!
//! A file holds at most its cap of output: the first half as it came (the head) and, once more was written, the
//! last half as a ring (the tail). Memory is bounded whatever the command writes, bytes are kept as they are, and
//! the file can be read while it grows: its first line says how much was written.
//!
//! Never decodes on writing: what is text is decided by who reads.

mod filter;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub use filter::{Filter, REDACTED};

/// Writes one run's output. Where the disk fails it stops writing and goes on counting, so that the command is
/// never held up.
///
/// There is no file before the first byte: most commands write nothing, and to make and remove a file is a good part of
/// what their run costs.
pub struct Writer {
    path: PathBuf,
    file: Option<File>,
    layout: Layout,
    /// Bytes that are in the file, or were and have been overwritten.
    written: u64,
    /// Bytes that came, written or not.
    seen: u64,
    noted: u64,
    failed: Option<io::Error>,
}

impl Writer {
    /// For at most `cap` bytes of output in a file that must not be there.
    pub fn new(path: PathBuf, cap: u64) -> Writer {
        Writer { path, file: None, layout: Layout::of_cap(cap), written: 0, seen: 0, noted: 0, failed: None }
    }

    /// Takes what the command wrote. Never fails: see [`Writer::failure`].
    pub fn write(&mut self, mut bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        while !bytes.is_empty() && self.failed.is_none() {
            let (at, room) = self.layout.place(self.written);
            if room == 0 {
                // A cap of nothing: all is left out.
                self.written += bytes.len() as u64;
                return;
            }
            let now = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            match self.file().and_then(|file| file.write_all_at(&bytes[..now], at)) {
                Ok(()) => self.written += now as u64,
                Err(error) => self.failed = Some(error),
            }
            bytes = &bytes[now..];
        }
    }

    fn file(&mut self) -> io::Result<&File> {
        if self.file.is_none() {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create_new(true).mode(0o600).open(&self.path)?;
            // Whoever reads it meanwhile finds no half of a line.
            file.write_all_at(self.layout.first_line(0).as_bytes(), 0)?;
            self.file = Some(file);
        }
        Ok(self.file.as_ref().expect("it was opened"))
    }

    /// Brings the file's first line up to date, for whoever reads it meanwhile.
    pub fn note(&mut self) -> io::Result<()> {
        if self.noted != self.written {
            let line = self.layout.first_line(self.written);
            self.file()?.write_all_at(line.as_bytes(), 0)?;
            self.noted = self.written;
        }
        Ok(())
    }

    /// Bytes that came, kept or not.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Bytes of those that are not in the file.
    pub fn left_out(&self) -> u64 {
        self.seen - self.written.min(self.layout.cap())
    }

    /// Why output was lost beyond what the cap leaves out, if it was.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }
}

/// What can be read of one run's output at this moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub head: Vec<u8>,
    /// Bytes between head and tail that are not kept.
    pub left_out: u64,
    /// Empty unless something was left out.
    pub tail: Vec<u8>,
}

impl Kept {
    /// How much the command wrote, kept or not.
    pub fn length(&self) -> u64 {
        self.head.len() as u64 + self.left_out + self.tail.len() as u64
    }

    /// All of it, with a line that says how much was left out.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_from(0)
    }

    /// All of it as text. What is no UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// What follows the first `seen` bytes, with a line that says how much of it is not kept.
    pub fn bytes_from(&self, seen: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let head = self.head.len() as u64;
        bytes.extend_from_slice(&self.head[index(seen.min(head))..]);
        let tail_from = head + self.left_out;
        if seen.max(head) < tail_from {
            if !bytes.is_empty() && !bytes.ends_with(b"\n") {
                bytes.push(b'\n');
            }
            bytes.extend_from_slice(left_out_line(tail_from - seen.max(head)).as_bytes());
        }
        let seen_of_tail = seen.saturating_sub(tail_from).min(self.tail.len() as u64);
        bytes.extend_from_slice(&self.tail[index(seen_of_tail)..]);
        bytes
    }

    /// The last of it as text, at most `max` bytes, beginning at a character.
    pub fn last(&self, max: usize) -> String {
        let mut bytes = if self.tail.len() >= max || self.left_out > 0 {
            self.tail.clone()
        } else {
            [self.head.as_slice(), self.tail.as_slice()].concat()
        };
        let from = bytes.len().saturating_sub(max);
        bytes.drain(..from);
        if from > 0 {
            cut_front(&mut bytes);
        }
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        // A replacement mark is longer than the byte it stands for.
        while text.len() > max {
            text.remove(0);
        }
        text
    }
}

/// An offset into something that lies in memory.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("it is at most the length of a slice")
}

/// The line that stands for what was left out.
fn left_out_line(bytes: u64) -> String {
    format!("[fleetcron: {bytes} bytes left out]\n")
}

/// Reads what a file holds now. The cuts at the cap are at character borders where the output is UTF-8.
///
/// Errors: the file cannot be read, or is none of ours.
pub fn read(path: &Path) -> io::Result<Kept> {
    let mut file = File::open(path)?;
    let (layout, written) = read_first_line(&mut file)?;
    let head_len = written.min(layout.head);
    let mut head = vec![0; usize::try_from(head_len).map_err(io::Error::other)?];
    file.read_exact_at(&mut head, FIRST_LINE)?;
    let beyond = written - head_len;
    let ring_len = beyond.min(layout.ring);
    let mut ring = vec![0; usize::try_from(ring_len).map_err(io::Error::other)?];
    file.read_exact_at(&mut ring, FIRST_LINE + layout.head)?;
    if beyond <= layout.ring {
        head.append(&mut ring);
        return Ok(Kept { head, left_out: 0, tail: Vec::new() });
    }
    // Written on while we read: the ring may then hold some newer bytes at its seam, never more than it holds.
    let seam = beyond.checked_rem(layout.ring).unwrap_or(0);
    ring.rotate_left(usize::try_from(seam).map_err(io::Error::other)?);
    let mut left_out = beyond - layout.ring;
    left_out += cut_back(&mut head) + cut_front(&mut ring);
    Ok(Kept { head, left_out, tail: ring })
}

/// Bytes written to the file so far, in or out of what it keeps: how a follower sees that there is more.
pub fn written(path: &Path) -> io::Result<u64> {
    read_first_line(&mut File::open(path)?).map(|(_, written)| written)
}

/// Where in the file a byte of the output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    head: u64,
    ring: u64,
}

/// The length of the first line in bytes; the output begins behind it.
const FIRST_LINE: u64 = 100;

impl Layout {
    fn of_cap(cap: u64) -> Layout {
        Layout { head: cap.div_ceil(2), ring: cap / 2 }
    }

    fn cap(&self) -> u64 {
        self.head + self.ring
    }

    /// The offset in the file of the byte that comes after `written` others, and how many fit there in one piece.
    fn place(&self, written: u64) -> (u64, u64) {
        match written.checked_sub(self.head) {
            None => (FIRST_LINE + written, self.head - written),
            Some(_) if self.ring == 0 => (FIRST_LINE + self.head, 0),
            Some(beyond) => {
                let at = beyond % self.ring;
                (FIRST_LINE + self.head + at, self.ring - at)
            }
        }
    }

    /// Plain text of a fixed length, so that it can be written anew in place.
    fn first_line(&self, written: u64) -> String {
        let line =
            format!("fleetcron output 1 head {:>20} ring {:>20} written {written:>20}", self.head, self.ring);
        format!("{line:<width$}\n", width = FIRST_LINE as usize - 1)
    }
}

fn read_first_line(file: &mut File) -> io::Result<(Layout, u64)> {
    let mut line = String::new();
    file.seek(SeekFrom::Start(0))?;
    file.by_ref().take(FIRST_LINE).read_to_string(&mut line)?;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |text: &str| text.parse::<u64>().ok();
    let parsed = match words[..] {
        ["fleetcron", "output", "1", "head", head, "ring", ring, "written", written] => {
            number(head).zip(number(ring)).zip(number(written))
        }
        _ => None,
    };
    let ((head, ring), written) = parsed
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an output file of fleetcron"))?;
    Ok((Layout { head, ring }, written))
}

/// Takes a character that was cut in the middle off the end; says how many bytes that were.
fn cut_back(bytes: &mut Vec<u8>) -> u64 {
    let from = bytes.len().saturating_sub(3);
    let Some(start) = (from..bytes.len()).rev().find(|&at| bytes[at] & 0xC0 != 0x80) else { return 0 };
    let whole = match bytes[start] {
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF7 => 4,
        _ => 1,
    };
    let there = bytes.len() - start;
    if there < whole {
        bytes.truncate(start);
        return there as u64;
    }
    0
}

/// Takes the rest of a character that was cut in the middle off the front; says how many bytes that were.
fn cut_front(bytes: &mut Vec<u8>) -> u64 {
    let rest = bytes.iter().take(3).take_while(|&&byte| byte & 0xC0 == 0x80).count();
    // Three and more in a row are no rest of a character: not UTF-8, so nothing to keep whole.
    let rest = if bytes.get(rest).is_some_and(|&byte| byte & 0xC0 == 0x80) { 0 } else { rest };
    bytes.drain(..rest);
    rest as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `chunks` with the given cap and reads the file back.
    fn written_with(cap: u64, chunks: &[&[u8]]) -> (Kept, u64, u64) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        let mut writer = Writer::new(path.clone(), cap);
        for chunk in chunks {
            writer.write(chunk);
        }
        writer.note().unwrap();
        let size = std::fs::metadata(&path).unwrap().len();
        assert!(size <= FIRST_LINE + cap, "{size} bytes for a cap of {cap}");
        (read(&path).unwrap(), writer.seen(), writer.left_out())
    }

    #[test]
    fn output_within_the_cap_is_kept_as_it_is() {
        let (kept, seen, left_out) = written_with(10, &[b"0123", b"456\xff89"]);
        assert_eq!(kept, Kept { head: b"0123456\xff89".to_vec(), left_out: 0, tail: vec![] });
        assert_eq!((seen, left_out), (10, 0));
    }

    #[test]
    fn beyond_the_cap_head_and_tail_are_kept() {
        for cap in [4, 5, 10, 64] {
            for len in [11usize, 12, 27, 100, 1000] {
                let all: Vec<u8> = (0..len).map(|i| b'a' + (i % 26) as u8).collect();
                for chunk in [1, 3, 7, len] {
                    let chunks: Vec<&[u8]> = all.chunks(chunk).collect();
                    let (kept, seen, left_out) = written_with(cap, &chunks);
                    let kept_bytes = kept.head.len() + kept.tail.len();
                    assert_eq!(seen, len as u64);
                    assert_eq!(left_out, (len as u64).saturating_sub(cap));
                    assert_eq!(kept.left_out, left_out);
                    assert_eq!(kept_bytes as u64, cap.min(len as u64));
                    assert!(all.starts_with(&kept.head) && all.ends_with(&kept.tail));
                }
            }
        }
    }

    #[test]
    fn a_cap_of_nothing_keeps_nothing() {
        let (kept, seen, left_out) = written_with(0, &[b"abc"]);
        assert_eq!((kept.head.len(), kept.tail.len()), (0, 0));
        assert_eq!((seen, left_out, kept.left_out), (3, 3, 3));
    }

    #[test]
    fn the_cap_cuts_at_a_character() {
        let euros = "€".repeat(1000);
        for cap in [100, 101, 102, 103, 104, 105] {
            let (kept, _, _) = written_with(cap, &[euros.as_bytes()]);
            let text = kept.text();
            assert!(!text.contains('\u{FFFD}'), "{text}");
            let kept_bytes = (kept.head.len() + kept.tail.len()) as u64;
            assert_eq!(kept_bytes + kept.left_out, 3000);
            assert!(text.contains(&format!("[fleetcron: {} bytes left out]", kept.left_out)));
        }
    }

    #[test]
    fn a_follower_is_shown_each_byte_once_and_told_what_it_missed() {
        #[track_caller]
        fn check(kept: &Kept, seen: u64, shown: &str) {
            assert_eq!(String::from_utf8_lossy(&kept.bytes_from(seen)), shown, "{seen}");
        }
        let whole = Kept { head: b"one\ntwo\n".to_vec(), left_out: 0, tail: Vec::new() };
        check(&whole, 0, "one\ntwo\n");
        check(&whole, 4, "two\n");
        check(&whole, 8, "");
        let cut = Kept { head: b"one".to_vec(), left_out: 10, tail: b"end\n".to_vec() };
        assert_eq!(cut.length(), 17);
        check(&cut, 0, "one\n[fleetcron: 10 bytes left out]\nend\n");
        check(&cut, 5, "[fleetcron: 8 bytes left out]\nend\n");
        check(&cut, 13, "end\n");
        check(&cut, 15, "d\n");
        check(&cut, 17, "");
        check(&cut, 99, "");
    }

    #[test]
    fn the_last_of_it_begins_at_a_character_and_keeps_to_its_length() {
        let (kept, _, _) = written_with(10_000, &["€".repeat(1000).as_bytes()]);
        let last = kept.last(100);
        assert_eq!(last, "€".repeat(33));
        let (kept, _, _) = written_with(10_000, &[&[0xff; 500]]);
        assert!(kept.last(100).len() <= 100);
    }

    #[test]
    fn a_file_that_is_none_of_ours_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        for content in ["", "hello", "fleetcron output 2 head 1 ring 1 written 1"] {
            std::fs::write(&path, content).unwrap();
            assert!(read(&path).is_err(), "{content:?}");
        }
    }
}
