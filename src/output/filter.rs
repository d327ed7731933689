//! What is done to output on its way into the file: values that nobody may read are replaced, lines get their time.

use chrono::SecondsFormat;

use crate::schedule::Timestamp;

/// What stands in place of a value.
pub const REDACTED: &[u8] = b"[redacted]";

/// Pure but for what it remembers: what it holds back of the bytes so far, and whether a line begins.
pub struct Filter {
    /// Longest first; never empty ones.
    values: Vec<Vec<u8>>,
    /// Bytes that may be the beginning of a value.
    held: Vec<u8>,
    timestamps: bool,
    line_begins: bool,
}

impl Filter {
    /// None: output stays as it is.
    pub fn new(mut values: Vec<Vec<u8>>, timestamps: bool) -> Option<Filter> {
        values.retain(|value| !value.is_empty());
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        let needed = timestamps || !values.is_empty();
        needed.then_some(Filter { values, held: Vec::new(), timestamps, line_begins: true })
    }

    /// What goes into the file for these bytes, which came at `now`. What could become a value with the next bytes is
    /// held back, and no more than that.
    pub fn pass(&mut self, bytes: &[u8], now: Timestamp) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        let passed = self.replace(true);
        self.stamp(passed, now)
    }

    /// The rest, when no more comes.
    pub fn end(&mut self, now: Timestamp) -> Vec<u8> {
        let rest = self.replace(false);
        self.stamp(rest, now)
    }

    fn replace(&mut self, more_may_come: bool) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.held);
        let mut passed = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let begins = |value: &Vec<u8>| value.len() > rest.len() && value.starts_with(rest);
            if more_may_come && self.values.iter().any(begins) {
                self.held = rest.to_vec();
                break;
            }
            match self.values.iter().find(|value| rest.starts_with(value)) {
                Some(value) => {
                    passed.extend_from_slice(REDACTED);
                    at += value.len();
                }
                None => {
                    passed.push(rest[0]);
                    at += 1;
                }
            }
        }
        passed
    }

    fn stamp(&mut self, bytes: Vec<u8>, now: Timestamp) -> Vec<u8> {
        if !self.timestamps {
            return bytes;
        }
        let stamp = format!("{} ", now.to_rfc3339_opts(SecondsFormat::Millis, true));
        let mut stamped = Vec::with_capacity(bytes.len() + stamp.len());
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.line_begins {
                stamped.extend_from_slice(stamp.as_bytes());
            }
            stamped.extend_from_slice(line);
            self.line_begins = line.ends_with(b"\n");
        }
        stamped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(values: &[&str], timestamps: bool, chunks: &[&[u8]]) -> String {
        let values = values.iter().map(|value| value.as_bytes().to_vec()).collect();
        let mut filter = Filter::new(values, timestamps).expect("there is something to do");
        let now = Timestamp::UNIX_EPOCH;
        let mut all: Vec<u8> = chunks.iter().flat_map(|chunk| filter.pass(chunk, now)).collect();
        all.extend(filter.end(now));
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn a_value_is_replaced_however_the_reads_cut_it() {
        for (values, text, expected) in [
            (
                &["hunter2"][..],
                "pw=hunter2\nhunter hunter2hunter2 hunte",
                "pw=[redacted]\nhunter [redacted][redacted] hunte",
            ),
            // Of two that begin alike the longer one.
            (&["abc", "abcdef"], "abcdef abcde abc", "[redacted] [redacted]de [redacted]"),
            (&["aab"], "aaab aaaab", "a[redacted] aa[redacted]"),
            (&["two\nlines"], "a\ntwo\nlines\nb", "a\n[redacted]\nb"),
            (&["ü€"], "xü€y ü", "x[redacted]y ü"),
        ] {
            for size in 1..=text.len() {
                let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
                assert_eq!(filtered(values, false, &chunks), expected, "{values:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn nothing_is_held_back_but_what_may_become_a_value() {
        let mut filter = Filter::new(vec![b"secret".to_vec()], false).unwrap();
        assert_eq!(filter.pass(b"question? s", Timestamp::UNIX_EPOCH), b"question? ");
        assert_eq!(filter.pass(b"o", Timestamp::UNIX_EPOCH), b"so");
    }

    #[test]
    fn every_line_gets_its_time_once() {
        const AT: &str = "1970-01-01T00:00:00.000Z ";
        for (chunks, expected) in [
            (&[&b"a\nb\n"[..]][..], format!("{AT}a\n{AT}b\n")),
            (&[b"a", b"b\n", b"\n", b"c"], format!("{AT}ab\n{AT}\n{AT}c")),
            (&[], String::new()),
        ] {
            assert_eq!(filtered(&[], true, chunks), expected);
        }
    }

    #[test]
    fn without_anything_to_do_there_is_no_filter() {
        assert!(Filter::new(vec![Vec::new()], false).is_none());
    }
}
