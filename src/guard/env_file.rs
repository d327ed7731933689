//! Files with variables: `NAME=value` lines, as systemd's `EnvironmentFile` has them in its simple form.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::child::{Identity, plain};

/// No file of variables is larger.
const LARGEST: u64 = 1 << 20;

/// Reads a file of the node for a command that runs as `reader` (None: as this process).
///
/// It must belong to root or to the command's user, and nobody else may write to it. The command's user must be allowed
/// to read it: a definition in the store must not get at more than its user could.
///
/// Errors: what is wrong, without a word of what is in the file.
pub fn read(path: &Path, reader: Option<&Identity>) -> Result<Vec<(String, String)>, String> {
    let failed = |error: io::Error| plain(&error);
    // A pipe without a writer would be waited for.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let is = file.metadata().map_err(failed)?;
    let own = nix::unistd::geteuid().as_raw();
    let uid = reader.map_or(own, |reader| reader.uid);
    if !is.is_file() {
        return Err("it is no regular file".to_owned());
    }
    if ![0, uid, own].contains(&is.uid()) {
        return Err(format!("it belongs to another user ({})", is.uid()));
    }
    if is.mode() & 0o022 != 0 {
        return Err(format!("others may write to it (mode {:04o})", is.mode() & 0o7777));
    }
    if let Some(reader) = reader.filter(|reader| reader.uid != 0 && reader.uid != own)
        && !may_read(reader, &is)
    {
        return Err("the job's user may not read it".to_owned());
    }
    if is.len() > LARGEST {
        return Err(format!("it is larger than {LARGEST} bytes"));
    }
    let mut text = String::new();
    file.by_ref().take(LARGEST).read_to_string(&mut text).map_err(|_| "it is no UTF-8 text".to_owned())?;
    parse(&text)
}

fn may_read(reader: &Identity, is: &std::fs::Metadata) -> bool {
    let groups = reader.groups.as_deref().unwrap_or_default();
    let bit = if is.uid() == reader.uid {
        0o400
    } else if is.gid() == reader.gid || groups.contains(&is.gid()) {
        0o040
    } else {
        0o004
    };
    is.mode() & bit != 0
}

/// Blank lines and those that begin with `#` or `;` are passed over. A value in quotes is what is between them; nothing
/// else is special in it.
fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut variables = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let odd = |why: &str| Err(format!("line {}: {why}", number + 1));
        let Some((name, value)) = line.split_once('=') else { return odd("it is not NAME=value") };
        let name = name.trim();
        let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins_well || !name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_') {
            return odd("that is no name of a variable");
        }
        if name.starts_with("FLEETCRON_") {
            return odd("names that begin with FLEETCRON_ are set by fleetcron");
        }
        if value.contains('\0') {
            return odd("there is a NUL character in it");
        }
        let value = value.trim();
        let unquoted = ['"', '\''].iter().find_map(|&quote| value.strip_prefix(quote)?.strip_suffix(quote));
        variables.push((name.to_owned(), unquoted.unwrap_or(value).to_owned()));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_lines_of_names_and_values() {
        let text =
            "# remark\n\nA=1\n B = two words \nC=\"in quotes \"\nD='$x \"y\"'\n; more\nE=\nF=a=b\nG=\"\n";
        let pairs = [
            ("A", "1"),
            ("B", "two words"),
            ("C", "in quotes "),
            ("D", "$x \"y\""),
            ("E", ""),
            ("F", "a=b"),
            ("G", "\""),
        ];
        let expected: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn a_mistake_is_told_by_its_line_and_never_by_what_is_in_it() {
        for (text, why) in [
            ("A=1\nhunter2\n", "line 2: it is not NAME=value"),
            ("1A=hunter2", "line 1: that is no name of a variable"),
            ("export A=hunter2", "line 1: that is no name of a variable"),
            ("FLEETCRON_JOB=hunter2", "line 1: names that begin with FLEETCRON_ are set by fleetcron"),
            ("A=hunter2\0", "line 1: there is a NUL character in it"),
        ] {
            assert_eq!(parse(text), Err(why.to_owned()), "{text:?}");
        }
    }
}
