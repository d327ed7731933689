//! What the walk through the files has found so far: mistakes and warnings, each with its spot.

use std::collections::BTreeSet;
use std::ops::Range;

use super::remark::{Mistake, Place, Text, Warning};
use super::{Mistakes, SourceFile};

/// Where something was written: the file's index and the bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub file: usize,
    pub start: usize,
    pub end: usize,
}

impl Spot {
    pub(super) fn new(file: usize, span: Range<usize>) -> Spot {
        Spot { file, start: span.start, end: span.end }
    }

    pub(super) fn span(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// A value with the spot it was written at.
#[derive(Debug, Clone)]
pub(super) struct At<T> {
    pub value: T,
    pub spot: Spot,
}

/// One remark before it is shown. The order is that of the files, and what is said twice is kept once: a wrong
/// default is met again in every job that takes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Raw {
    spot: Spot,
    message: String,
    hint: Option<String>,
}

/// More mistakes than this are counted and not shown: a megabyte of garbage is not worth ten of answers.
const MOST_SHOWN: usize = 1000;

pub(super) struct Found<'a> {
    texts: Vec<Text<'a>>,
    mistakes: BTreeSet<Raw>,
    left_out: usize,
    warnings: BTreeSet<Raw>,
}

impl<'a> Found<'a> {
    pub(super) fn new(files: &[SourceFile<'a>]) -> Found<'a> {
        let texts = files.iter().map(|file| Text::new(file.path, file.text)).collect();
        Found { texts, mistakes: BTreeSet::new(), left_out: 0, warnings: BTreeSet::new() }
    }

    pub(super) fn mistake<'h>(
        &mut self,
        spot: &Spot,
        message: impl Into<String>,
        hint: impl Into<Option<&'h str>>,
    ) {
        if self.is_full() {
            self.left_out += 1;
            return;
        }
        let hint = hint.into().map(str::to_owned);
        self.mistakes.insert(Raw { spot: spot.clone(), message: message.into(), hint });
    }

    pub(super) fn warning<'h>(
        &mut self,
        spot: &Spot,
        message: impl Into<String>,
        hint: impl Into<Option<&'h str>>,
    ) {
        let hint = hint.into().map(str::to_owned);
        if self.warnings.len() < MOST_SHOWN {
            self.warnings.insert(Raw { spot: spot.clone(), message: message.into(), hint });
        }
    }

    /// Whether further mistakes are only counted, so that nothing costly is done for their sake.
    pub(super) fn is_full(&self) -> bool {
        self.mistakes.len() >= MOST_SHOWN
    }

    pub(super) fn place(&self, spot: &Spot) -> Place {
        self.texts[spot.file].place(spot.start)
    }

    /// What is written at the spot, letter for letter.
    pub(super) fn written(&self, spot: &Spot) -> &'a str {
        self.texts[spot.file].slice(&spot.span())
    }

    /// The warnings, when there is no mistake.
    pub(super) fn end(self) -> Result<Vec<Warning>, Mistakes> {
        let Found { texts, mistakes, left_out, warnings } = self;
        let show = |raw: Raw| texts[raw.spot.file].remark(&raw.spot.span(), raw.message, raw.hint);
        if mistakes.is_empty() {
            return Ok(warnings.into_iter().map(|raw| Warning(show(raw))).collect());
        }
        Err(Mistakes { shown: mistakes.into_iter().map(|raw| Mistake(show(raw))).collect(), left_out })
    }
}
