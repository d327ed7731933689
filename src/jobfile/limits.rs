//! `[limits]`: how many may have a mutex at once, or run of a named queue.

use std::collections::BTreeMap;

use toml::de::DeTable;

use super::found::{At, Found, Spot};
use super::names::name_hint;
use super::remark::quoted;
use super::value::Field;
use crate::job::MutexName;

/// More at once is no limit.
const MOST: u64 = 1000;

/// What the files of a source say, one of them or several.
#[derive(Default)]
pub(super) struct Limits(BTreeMap<MutexName, At<u64>>);

impl Limits {
    /// Reads the table of one file.
    pub(super) fn read(&mut self, file: usize, table: &DeTable<'_>, found: &mut Found) {
        for (key, value) in table {
            let (spot, text) = (Spot::new(file, key.span()), &**key.get_ref());
            let Ok(name) = text.parse::<MutexName>() else {
                found.mistake(&spot, format!("bad name of a mutex: {}", quoted(text)), &*name_hint(text));
                continue;
            };
            let Some(limit) = Field::new(file, text, value).number(1, MOST, found) else { continue };
            match self.0.get(&name) {
                Some(first) if first.value != limit.value => {
                    let message = format!(
                        "the limit of {name} is {} here and {} at {}",
                        limit.value,
                        first.value,
                        found.place(&first.spot)
                    );
                    found.mistake(&limit.spot, message, "say it once");
                }
                Some(_) => {}
                None => _ = self.0.insert(name, limit),
            }
        }
    }

    pub(super) fn end(self) -> BTreeMap<MutexName, u32> {
        let small = |limit: At<u64>| u32::try_from(limit.value).expect("limits are capped");
        self.0.into_iter().map(|(name, limit)| (name, small(limit))).collect()
    }
}
