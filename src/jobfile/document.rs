//! From a file's text to its tree of values, or to the places where it is no TOML.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::SourceFile;
use super::found::{Found, Spot};
use super::remark::quoted;

/// One slip is often met again in the lines after it, so of each file only the first few are said.
const MOST_SAID: usize = 5;

/// Past this size only the first error is looked for, because the others would cost more than they tell.
const MOST_RECOVERED: usize = 256 * 1024;

/// What the parser says of a key or table that is there already.
const DUPLICATE: &str = "duplicate key";

/// The tree of the file, when it is TOML throughout.
pub(super) fn read<'a>(file: usize, source: &SourceFile<'a>, found: &mut Found<'a>) -> Option<DeTable<'a>> {
    let first = match DeTable::parse(source.text) {
        Ok(table) => return Some(table.into_inner()),
        Err(first) => first,
    };
    let (tree, errors) = match source.text.len() {
        0..=MOST_RECOVERED => {
            let (tree, errors) = DeTable::parse_recoverable(source.text);
            (Some(tree.into_inner()), errors)
        }
        _ => (None, vec![first]),
    };
    let mut last_line = 0;
    let mut said = 0;
    let mut spotted: Vec<_> =
        errors.iter().map(|error| (spot_of(file, source.text, error), error.message())).collect();
    spotted.sort_by_key(|(spot, _)| spot.start);
    // Of a table that is there twice every key is, which need not be said.
    let mut end_of_twin = 0;
    for (spot, message) in spotted {
        let line = found.place(&spot).line;
        let is_twin = message == DUPLICATE;
        if line == last_line || said == MOST_SAID || (is_twin && spot.start < end_of_twin) {
            continue;
        }
        (last_line, said) = (line, said + 1);
        say(&spot, message, source.text, tree.as_ref(), found);
        if is_twin && header_at(&spot, source.text).is_some() {
            end_of_twin =
                source.text[spot.start..].find("\n[").map_or(source.text.len(), |at| spot.start + at);
        }
    }
    None
}

fn spot_of(file: usize, text: &str, error: &toml::de::Error) -> Spot {
    let span = error.span().unwrap_or_else(|| {
        // Only a key of too many parts comes without a place.
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
        let dotted = line_starts.clone().zip(text.lines()).find(|(_, line)| line.matches('.').count() >= 80);
        dotted.map_or(0..0, |(start, line)| start..start + line.len())
    });
    // An error "at the end" may stand past it.
    Spot::new(file, span.start.min(text.len())..span.end.min(text.len()))
}

fn say(spot: &Spot, message: &str, text: &str, tree: Option<&DeTable<'_>>, found: &mut Found<'_>) {
    if message != DUPLICATE {
        found.mistake(spot, format!("this is not TOML: {message}"), None);
        return;
    }
    let key = found.written(spot);
    let first = first_of_header(spot, text).or_else(|| tree.and_then(|tree| first_of_key(spot, key, tree)));
    let message = format!("{} is written twice", quoted(key));
    match first.map(|start| found.place(&Spot::new(spot.file, start..start))) {
        Some(first) => found.mistake(spot, message, format!("the first one is at {first}").as_str()),
        None => found.mistake(spot, message, "the same key or table may stand in a file once"),
    }
}

/// The `[table]` header that the spot is in, if it is in one, and the start of its line.
fn header_at<'t>(spot: &Spot, text: &'t str) -> Option<(usize, &'t str)> {
    let line_start = text[..spot.start].rfind('\n').map_or(0, |at| at + 1);
    let line = text[line_start..].lines().next().unwrap_or_default().trim();
    line.starts_with('[').then_some((line_start, line))
}

/// Where an earlier line has the same header as the line of the spot.
fn first_of_header(spot: &Spot, text: &str) -> Option<usize> {
    let (line_start, header) = header_at(spot, text)?;
    let mut start = 0;
    for line in text[..line_start].split_inclusive('\n') {
        if line.trim() == header {
            return Some(start + line.len() - line.trim_start().len());
        }
        start += line.len();
    }
    None
}

/// Where the key stands before the spot: of several, the nearest, for a table's lines stand together.
fn first_of_key(spot: &Spot, key: &str, table: &DeTable<'_>) -> Option<usize> {
    let entry = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let own = Some(name.span().start).filter(|start| name.get_ref() == key && *start < spot.start);
        own.max(value.get_ref().as_table().and_then(|inner| first_of_key(spot, key, inner)))
    };
    table.iter().filter_map(entry).max()
}
