//! Nodes: their names, labels and lives.
//!
//! Plain values; nothing here looks at the machine.

mod selector;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use ulid::Ulid;

pub use selector::{BadSelector, Selector};

/// A node's name, safe as one segment of a store key: 1 to 253 of `a-z`, `0-9`, `.`, `_`, `-`, beginning
/// with a letter or digit. Host names in lower case are node names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

impl NodeName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no node name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadNodeName {
    #[error(
        "a node name has 1 to 253 of a-z, 0-9, '.', '_', '-' and begins with a letter or digit, not {0:?}"
    )]
    Spelling(String),
    /// Every machine is called so, hence two nodes would be taken for one.
    #[error("\"localhost\" names every machine; give this node a name of its own with --node NAME")]
    Localhost,
}

impl FromStr for NodeName {
    type Err = BadNodeName;

    fn from_str(text: &str) -> Result<NodeName, BadNodeName> {
        if text == "localhost" {
            return Err(BadNodeName::Localhost);
        }
        if text.len() > 253 || !is_key_segment(text) {
            return Err(BadNodeName::Spelling(text.to_owned()));
        }
        Ok(NodeName(text.to_owned()))
    }
}

/// Whether a text is not empty, begins with a letter or digit and has only `a-z`, `0-9`, `.`, `_`, `-`:
/// the rule that makes names safe as one segment of a store key and as one segment of a path.
pub(crate) fn is_key_segment(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.bytes().next().is_some_and(plain)
        && text.bytes().all(|c| plain(c) || matches!(c, b'.' | b'_' | b'-'))
}

/// One life of a node: made at its first start after a boot, kept over restarts of the daemon, never used
/// again. A claim of an earlier life is thereby told from one of this life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeStart(pub Ulid);

impl fmt::Display for NodeStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for NodeStart {
    type Err = ulid::DecodeError;

    fn from_str(text: &str) -> Result<NodeStart, ulid::DecodeError> {
        text.parse().map(NodeStart)
    }
}

/// A node's labels, `role=db`; every node has `node=NAME`, which is not in here.
pub type Labels = BTreeMap<String, String>;

/// The label that is the node's name.
const OWN_NAME: &str = "node";

fn is_label_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/')
}

/// One label as the command line takes it, `key=value`.
///
/// Errors: what a label may be, when it is none. The key `node` is the node's own name and cannot be set.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("a label is key=value, not {text:?}"))?;
    let word = |part: &str| !part.is_empty() && part.len() <= 63 && part.chars().all(is_label_char);
    if !word(key) || !(value.is_empty() || word(value)) {
        return Err(format!(
            "in a label, key and value have 1 to 63 of letters, digits, '.', '_', '-', '/', not {text:?}"
        ));
    }
    if key == OWN_NAME {
        return Err("the label \"node\" is the node's own name; set it with --node".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// For words of ours that are stored as their text: `#[serde(with = "as_text")]`.
pub mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<T: Display, S: Serializer>(word: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(word)
    }

    pub fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_in_lower_case_is_a_node_name() {
        for name in ["a", "db-1", "db-1.example.org", "0", "a_b"] {
            assert_eq!(name.parse::<NodeName>().map(|n| n.to_string()), Ok(name.to_owned()));
        }
    }

    #[test]
    fn what_is_no_safe_key_segment_is_no_node_name() {
        for name in ["", "A", "-a", ".", "..", "a/b", "a b", "ä", "~all", &"x".repeat(254)] {
            assert!(matches!(name.parse::<NodeName>(), Err(BadNodeName::Spelling(_))), "{name:?}");
        }
        assert_eq!("localhost".parse::<NodeName>(), Err(BadNodeName::Localhost));
    }

    #[test]
    fn a_label_is_key_and_value() {
        assert_eq!(parse_label("role=db"), Ok(("role".into(), "db".into())));
        assert_eq!(parse_label("spot="), Ok(("spot".into(), String::new())));
        for bad in ["role", "=db", "a b=c", "node=x", "k=v=w"] {
            assert!(parse_label(bad).is_err(), "{bad:?}");
        }
    }
}
