//! Label selectors in Kubernetes' grammar: `role=db, zone notin (eu-west, eu-north), !spot`.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::{Labels, NodeName, OWN_NAME, is_label_char};

/// Which nodes something is for: those that meet every requirement; never empty.
///
/// Two that mean the same are equal and are shown alike, but for the order of their requirements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selector(Vec<Requirement>);

/// What is demanded of one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Test {
    /// `k=v`, `k in (v, w)`. Never empty.
    In(BTreeSet<String>),
    /// `k!=v`, `k notin (v, w)`. Never empty. Also met where the label is not there.
    NotIn(BTreeSet<String>),
    /// `k`
    Present,
    /// `!k`
    Absent,
}

impl Selector {
    /// Whether a node is selected. Each has its labels and `node=NAME`.
    pub fn matches(&self, node: &NodeName, labels: &Labels) -> bool {
        self.0.iter().all(|Requirement { key, test }| {
            let value = match key.as_str() {
                OWN_NAME => Some(node.as_str()),
                key => labels.get(key).map(String::as_str),
            };
            match test {
                Test::In(values) => value.is_some_and(|value| values.contains(value)),
                Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Test::Present => value.is_some(),
                Test::Absent => value.is_none(),
            }
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, test }) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            let only = |values: &BTreeSet<String>| values.first().filter(|_| values.len() == 1).cloned();
            let list = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(", ");
            match test {
                Test::In(values) => match only(values) {
                    Some(value) => write!(f, "{key}={value}")?,
                    None => write!(f, "{key} in ({})", list(values))?,
                },
                Test::NotIn(values) => match only(values) {
                    Some(value) => write!(f, "{key}!={value}")?,
                    None => write!(f, "{key} notin ({})", list(values))?,
                },
                Test::Present => f.write_str(key)?,
                Test::Absent => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

/// Why a text is no selector, and which of its bytes say so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadSelector {
    pub at: Range<usize>,
    pub message: String,
}

impl FromStr for Selector {
    type Err = BadSelector;

    fn from_str(text: &str) -> Result<Selector, BadSelector> {
        let mut reader = Reader { text, at: 0 };
        let mut requirements = Vec::new();
        loop {
            requirements.push(reader.requirement()?);
            match reader.next() {
                (Token::End, _) => return Ok(Selector(requirements)),
                (Token::Comma, _) => {}
                (_, at) => return Err(reader.expected("a comma or the end", at)),
            }
        }
    }
}

/// What a label's value may have. A node's name can be longer.
const LONGEST: usize = 63;
const LONGEST_NAME: usize = 253;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Word,
    Comma,
    Open,
    Close,
    Equal,
    NotEqual,
    Not,
    End,
    /// Nothing that a selector has in it.
    Other,
}

/// Reads a selector from left to right.
struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn requirement(&mut self) -> Result<Requirement, BadSelector> {
        let (first, at) = self.next();
        if first == Token::Not {
            let (token, at) = self.next();
            return Ok(Requirement { key: self.key(token, at)?, test: Test::Absent });
        }
        let key = self.key(first, at)?;
        let (operator, at) = self.peek();
        let one = |value: String| BTreeSet::from([value]);
        let test = match (operator, &self.text[at.clone()]) {
            (Token::End | Token::Comma, _) => return Ok(Requirement { key, test: Test::Present }),
            (Token::Equal, _) => Test::In(one(self.value_after(at, &key)?)),
            (Token::NotEqual, _) => Test::NotIn(one(self.value_after(at, &key)?)),
            (Token::Word, "in") => Test::In(self.values_after(at, &key)?),
            (Token::Word, "notin") => Test::NotIn(self.values_after(at, &key)?),
            _ => return Err(self.expected("=, !=, in, notin or a comma", at)),
        };
        Ok(Requirement { key, test })
    }

    fn key(&self, token: Token, at: Range<usize>) -> Result<String, BadSelector> {
        match token {
            Token::Word => self.word(at, LONGEST),
            _ => Err(self.expected("the key of a label", at)),
        }
    }

    /// The one value behind an operator. It may be empty: `spot=`.
    fn value_after(&mut self, operator: Range<usize>, key: &str) -> Result<String, BadSelector> {
        self.at = operator.end;
        self.value(key)
    }

    /// `(a, b)`. As in Kubernetes each may be empty.
    fn values_after(&mut self, operator: Range<usize>, key: &str) -> Result<BTreeSet<String>, BadSelector> {
        self.at = operator.end;
        let (token, at) = self.next();
        if token != Token::Open {
            return Err(self.expected("a list like (a, b)", at));
        }
        let mut values = BTreeSet::new();
        loop {
            values.insert(self.value(key)?);
            match self.next() {
                (Token::Close, _) => return Ok(values),
                (Token::Comma, _) => {}
                (_, at) => return Err(self.expected("a comma or )", at)),
            }
        }
    }

    fn value(&mut self, key: &str) -> Result<String, BadSelector> {
        let (Token::Word, at) = self.peek() else { return Ok(String::new()) };
        self.at = at.end;
        self.word(at, if key == OWN_NAME { LONGEST_NAME } else { LONGEST })
    }

    fn word(&self, at: Range<usize>, longest: usize) -> Result<String, BadSelector> {
        match at.len() <= longest {
            true => Ok(self.text[at].to_owned()),
            false => {
                Err(BadSelector { message: format!("longer than the {longest} letters of a label"), at })
            }
        }
    }

    fn next(&mut self) -> (Token, Range<usize>) {
        let (token, at) = self.peek();
        self.at = at.end;
        (token, at)
    }

    fn peek(&self) -> (Token, Range<usize>) {
        let rest = &self.text[self.at..];
        let start = self.at + (rest.len() - rest.trim_start().len());
        let rest = &self.text[start..];
        let word = rest.find(|c: char| !is_label_char(c)).unwrap_or(rest.len());
        let (token, length) = match rest.as_bytes() {
            [] => (Token::End, 0),
            [b',', ..] => (Token::Comma, 1),
            [b'(', ..] => (Token::Open, 1),
            [b')', ..] => (Token::Close, 1),
            [b'=', b'=', ..] => (Token::Equal, 2),
            [b'=', ..] => (Token::Equal, 1),
            [b'!', b'=', ..] => (Token::NotEqual, 2),
            [b'!', ..] => (Token::Not, 1),
            _ if word > 0 => (Token::Word, word),
            _ => (Token::Other, rest.chars().next().map_or(0, char::len_utf8)),
        };
        (token, start..start + length)
    }

    fn expected(&self, what: &str, at: Range<usize>) -> BadSelector {
        let place = self.text[..at.start].chars().count() + 1;
        let found = match &self.text[at.clone()] {
            "" => "at its end".to_owned(),
            word => {
                let shown: String = word.chars().take(LONGEST).collect();
                format!("at character {place}, not {shown:?}")
            }
        };
        BadSelector { message: format!("{what} was expected {found}"), at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    /// On the node `db-1` with `role=db`, `zone=eu-1` and the empty `spot`.
    #[track_caller]
    fn check(selector: &str, matches: bool) {
        let labels = labels(&[("role", "db"), ("zone", "eu-1"), ("spot", "")]);
        let read: Selector = selector.parse().unwrap_or_else(|error| panic!("{selector:?}: {error}"));
        assert_eq!(read.matches(&"db-1".parse().unwrap(), &labels), matches, "{selector:?}");
    }

    #[test]
    fn a_node_is_selected_by_its_labels() {
        for (selector, matches) in [
            ("role=db", true),
            ("role==db", true),
            ("role = web", false),
            ("role!=web", true),
            ("role!=db", false),
            ("role in (web, db)", true),
            ("role in (web)", false),
            ("role notin (web,cache)", true),
            ("role notin (web,db)", false),
            ("role", true),
            ("!role", false),
            ("rack", false),
            ("! rack", true),
            ("role=db, zone!=eu-west", true),
            ("role=db,zone=eu-west", false),
            ("in in (in)", false),
            ("!in", true),
        ] {
            check(selector, matches);
        }
    }

    #[test]
    fn what_is_to_be_different_may_be_absent() {
        check("rack!=7", true);
        check("rack notin (7, 8)", true);
        check("rack=7", false);
        check("rack in (7, 8)", false);
    }

    #[test]
    fn an_empty_value_is_a_value() {
        check("spot=", true);
        check("spot=, role=db", true);
        check("spot!=", false);
        check("role=", false);
        check("spot in (yes,)", true);
        check("spot in ()", true);
        check("rack=", false);
    }

    #[test]
    fn every_node_has_its_name_as_a_label() {
        check("node=db-1", true);
        check("node in (db-1, db-2)", true);
        check("node!=db-1", false);
        check("node", true);
        check("!node", false);
        let long = "n".repeat(200);
        assert!(format!("node={long}").parse::<Selector>().is_ok());
        assert!(format!("host={long}").parse::<Selector>().is_err());
    }

    #[test]
    fn selectors_that_mean_the_same_have_one_text() {
        for (text, shown) in [
            ("role==db", "role=db"),
            ("role in (db)", "role=db"),
            (" role\tin ( db,\nweb ,db)", "role in (db, web)"),
            ("role notin (db)", "role!=db"),
            ("a notin (2,1),! b ,c", "a notin (1, 2), !b, c"),
            ("a=,b in (x,)", "a=, b in (, x)"),
            ("example.org/role=db", "example.org/role=db"),
        ] {
            let read: Selector = text.parse().unwrap();
            assert_eq!(read.to_string(), shown);
            assert_eq!(shown.parse(), Ok(read));
        }
    }

    #[test]
    fn what_is_no_selector_is_refused_with_the_place() {
        for (text, at, why) in [
            ("", 0..0, "the key of a label was expected at its end"),
            ("  ", 2..2, "at its end"),
            ("=db", 0..1, "the key of a label was expected at character 1, not \"=\""),
            ("role=db,", 8..8, "the key of a label was expected at its end"),
            ("role=db,,zone", 8..9, "at character 9, not \",\""),
            ("role db", 5..7, "=, !=, in, notin or a comma was expected at character 6, not \"db\""),
            ("role=db zone=a", 8..12, "a comma or the end was expected at character 9, not \"zone\""),
            ("role in db", 8..10, "a list like (a, b) was expected at character 9"),
            ("role in (db", 11..11, "a comma or ) was expected at its end"),
            ("role in (db web)", 12..15, "a comma or ) was expected"),
            ("cores>4", 5..6, "=, !=, in, notin or a comma was expected at character 6, not \">\""),
            ("!role=db", 5..6, "a comma or the end was expected"),
            ("a==b==c", 4..6, "a comma or the end was expected at character 5, not \"==\""),
            ("a=b||c=d", 3..4, "at character 4, not \"|\""),
            ("rôle=db", 1..3, "at character 2, not \"ô\""),
        ] {
            let refused = text.parse::<Selector>().unwrap_err();
            assert_eq!(refused.at, at, "{text:?}: {refused}");
            assert!(refused.message.contains(why), "{text:?}: {refused}");
        }
    }
}
