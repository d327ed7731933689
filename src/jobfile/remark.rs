//! Mistakes and warnings: what is said about a place in a file, and how it is shown.
//!
//! What is shown may have been written by anyone, so nothing of it reaches a terminal unescaped, and a line of
//! megabytes is shown as the piece around the place.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use unicode_width::UnicodeWidthChar;

/// Where something stands; line and column count from 1, the column in characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub path: Arc<str>,
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", printable(&self.path), self.line, self.column)
    }
}

/// What is said about one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    pub place: Place,
    pub message: String,
    /// What to do next, where we know it.
    pub hint: Option<String>,
    excerpt: Excerpt,
}

/// Why the files cannot be used; shown like a compiler's error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake(pub Remark);

/// What is allowed and often not meant; shown like a compiler's warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning(pub Remark);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.0)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warning: {}", self.0)
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.place.line.to_string();
        let margin = " ".repeat(number.len());
        let Excerpt { line, indent, width } = &self.excerpt;
        writeln!(f, "{}", self.message)?;
        writeln!(f, " {margin}--> {}", self.place)?;
        writeln!(f, " {margin} |")?;
        writeln!(f, " {number} | {line}")?;
        write!(f, " {margin} | {}{}", " ".repeat(*indent), "^".repeat(*width))?;
        if let Some(hint) = &self.hint {
            write!(f, "\n {margin} = hint: {hint}")?;
        }
        Ok(())
    }
}

/// The piece of the line that is shown, and where it is underlined, in columns of a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Excerpt {
    line: String,
    indent: usize,
    width: usize,
}

/// How many characters are shown before the place and from it on.
const BEFORE: usize = 60;
const AFTER: usize = 60;

/// A file's text with the places of its lines, to turn offsets into places.
pub(super) struct Text<'a> {
    path: Arc<str>,
    text: &'a str,
    line_starts: Vec<usize>,
    /// How many characters begin before each block, so that a place in a line of megabytes is found at once.
    before_blocks: Vec<usize>,
}

const BLOCK: usize = 4096;

impl<'a> Text<'a> {
    pub(super) fn new(path: &str, text: &'a str) -> Text<'a> {
        let after_breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(after_breaks).collect();
        let mut before = 0;
        let before_blocks = text.as_bytes().chunks(BLOCK).map(|block| {
            let here = before;
            before += characters(block);
            here
        });
        let before_blocks = before_blocks.collect();
        Text { path: path.into(), text, line_starts, before_blocks }
    }

    /// What stands at `span`.
    pub(super) fn slice(&self, span: &Range<usize>) -> &'a str {
        self.text.get(span.clone()).unwrap_or_default()
    }

    pub(super) fn place(&self, offset: usize) -> Place {
        let offset = self.boundary(offset);
        let line = self.line_of(offset);
        let column = self.characters_before(offset) - self.characters_before(self.line_starts[line]);
        Place { path: self.path.clone(), line: line + 1, column: column + 1 }
    }

    pub(super) fn remark(&self, span: &Range<usize>, message: String, hint: Option<String>) -> Remark {
        Remark { place: self.place(span.start), message, hint, excerpt: self.excerpt(span) }
    }

    fn characters_before(&self, offset: usize) -> usize {
        // The end of the text can lie on the border of a block that there is not.
        let block = (offset / BLOCK).min(self.before_blocks.len().saturating_sub(1));
        let in_block = &self.text.as_bytes()[block * BLOCK..offset];
        self.before_blocks.get(block).map_or(0, |before| before + characters(in_block))
    }

    /// The offset itself, or the nearest one before it where a character begins or the text ends.
    fn boundary(&self, offset: usize) -> usize {
        (0..=offset.min(self.text.len())).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }

    /// The line's index, counted from 0.
    fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset) - 1
    }

    fn excerpt(&self, span: &Range<usize>) -> Excerpt {
        let start = self.boundary(span.start);
        let line_start = self.line_starts[self.line_of(start)];
        let rest = &self.text[start..];
        let rest = rest.split_once('\n').map_or(rest, |(line, _)| line);
        let rest = rest.strip_suffix('\r').unwrap_or(rest);
        let before = &self.text[line_start..start];

        let shown_before =
            before.char_indices().rev().take(BEFORE).last().map_or("", |(at, _)| &before[at..]);
        let shown_rest = rest.char_indices().nth(AFTER).map_or(rest, |(at, _)| &rest[..at]);
        let marked_end = self.boundary(span.end).saturating_sub(start).min(shown_rest.len());
        let (marked, unmarked) = shown_rest.split_at(marked_end);

        let cut_before = if shown_before.len() < before.len() { "…" } else { "" };
        let cut_after = if shown_rest.len() < rest.len() { "…" } else { "" };
        let [lead, marked, tail] = [shown_before, marked, unmarked].map(printable);
        Excerpt {
            indent: columns(cut_before) + columns(&lead),
            width: columns(&marked).max(1),
            line: format!("{cut_before}{lead}{marked}{tail}{cut_after}"),
        }
    }
}

/// Text that a terminal shows as it is: a tab becomes four spaces, what would move the cursor, change colours
/// or turn the direction of writing is escaped.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => shown.push_str("    "),
            c if c.is_control() || is_invisible(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
}

/// A text of the file in a message: quoted, escaped and cut.
pub(super) fn quoted(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("\"{}…\"", text[..at].escape_debug()),
        None => format!("{text:?}"),
    }
}

/// How many characters begin in a piece of UTF-8.
fn characters(piece: &[u8]) -> usize {
    piece.iter().filter(|byte| **byte & 0xC0 != 0x80).count()
}

fn columns(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, span: Range<usize>, shown: &str) {
        let remark = Text::new("jobs.toml", text).remark(&span, "here".to_owned(), None);
        let lines: Vec<String> = Mistake(remark).to_string().lines().map(str::to_owned).collect();
        assert_eq!(lines[1..].join("\n"), shown.trim_matches('\n'), "{text:?} {span:?}");
    }

    #[test]
    fn the_line_is_shown_with_the_place_underlined() {
        check(
            "[jobs.a]\ncomand = 1\n",
            9..15,
            "
  --> jobs.toml:2:1
   |
 2 | comand = 1
   | ^^^^^^",
        );
    }

    #[test]
    fn the_caret_stays_below_its_word_after_tabs_and_wide_letters() {
        check(
            "\tü漢 = 1\r\n",
            9..10,
            "
  --> jobs.toml:1:7
   |
 1 |     ü漢 = 1
   |           ^",
        );
    }

    #[test]
    fn an_escape_sequence_never_reaches_the_terminal() {
        check(
            "a = \"\u{1b}[31m\u{202e}\"",
            4..5,
            r#"
  --> jobs.toml:1:5
   |
 1 | a = "\u{1b}[31m\u{202e}"
   |     ^"#,
        );
    }

    #[test]
    fn a_place_at_the_end_or_past_it_is_a_place_in_the_file() {
        check("a", 1..1, "  --> jobs.toml:1:2\n   |\n 1 | a\n   |  ^");
        check("a\n", 2..9, "  --> jobs.toml:2:1\n   |\n 2 | \n   | ^");
        check("", 7..9, "  --> jobs.toml:1:1\n   |\n 1 | \n   | ^");
        check("é", 1..2, "  --> jobs.toml:1:1\n   |\n 1 | é\n   | ^");
    }

    #[test]
    fn a_line_of_megabytes_is_cut_around_the_place() {
        let text = "x".repeat(1 << 20);
        let shown = Text::new("jobs.toml", &text).remark(&(5000..9000), "here".to_owned(), None).to_string();
        assert!(shown.lines().all(|line| line.chars().count() < 140), "{shown}");
        assert!(shown.contains("jobs.toml:1:5001"), "{shown}");
    }

    #[test]
    fn a_column_counts_characters_however_far_on_it_is() {
        for text in ["é".repeat(10_000), format!("\n{}", "x".repeat(BLOCK - 1)), "漢\n".repeat(5000)] {
            let shown = Text::new("jobs.toml", &text);
            for (at, _) in text.char_indices().step_by(97).chain([(text.len(), ' ')]) {
                let line = text[..at].rsplit('\n').next().unwrap();
                assert_eq!(shown.place(at).column, line.chars().count() + 1, "{at}");
            }
        }
    }

    #[test]
    fn what_is_quoted_is_escaped_and_cut() {
        assert_eq!(quoted("a\"\u{1b}"), r#""a\"\u{1b}""#);
        assert_eq!(quoted(&"x".repeat(99)), format!("\"{}…\"", "x".repeat(60)));
    }
}
