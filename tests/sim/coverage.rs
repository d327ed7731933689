//! How much has gone wrong: a search that finds nothing proves nothing where nothing happened.

use std::collections::BTreeMap;
use std::fmt;

use crate::faults::Kind;
use crate::seed::Came;

/// What all seeds together have seen.
#[derive(Debug, Default)]
pub struct Coverage {
    pub seeds: u64,
    fires: u64,
    starts: u64,
    counts: BTreeMap<String, u64>,
    take_overs: u64,
    fenced: u64,
    /// Seeds with too few fires or faults.
    poor: Vec<String>,
}

/// For each 2,000 seeds.
const LEAST_OF_EACH_FAULT: u64 = 1_000;
const LEAST_TAKE_OVERS: u64 = 5_000;
const LEAST_FENCED: u64 = 1_000;
const FOR_SEEDS: u64 = 2_000;
/// For each seed.
const LEAST_FIRES: u64 = 100;
const LEAST_FAULTS: u64 = 20;

impl Coverage {
    pub fn add(&mut self, came: &Came) {
        self.seeds += 1;
        self.fires += came.fires;
        self.starts += came.starts;
        self.take_overs += came.take_overs;
        self.fenced += came.fenced;
        let mut faults = 0;
        for (kind, count) in &came.weather.count {
            faults += count;
            *self.counts.entry(format!("{kind:?}")).or_default() += count;
        }
        let by_the_side = [
            ("RequestLost", came.calls.lost_requests),
            ("ReplyLost", came.calls.lost_replies),
            ("Late", came.calls.late),
            ("GuardSlow", came.scripted.slow_guards),
            ("HoldOutlived", came.scripted.outlive_hold),
            ("TermIgnored", came.scripted.obstinate),
        ];
        for (name, count) in by_the_side {
            *self.counts.entry(name.to_owned()).or_default() += count;
        }
        if came.fires < LEAST_FIRES || faults < LEAST_FAULTS {
            self.poor.push(format!("seed {} has {} fires and {faults} faults", came.seed, came.fires));
        }
    }

    /// What there was too little of. Few seeds need not have seen everything.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = self.poor.clone();
        if self.seeds < FOR_SEEDS {
            return missing;
        }
        let mut want = |name: &str, count: u64, least: u64| {
            if count * FOR_SEEDS < least * self.seeds {
                missing.push(format!("{name}: {count}"));
            }
        };
        for kind in Kind::ALL {
            let name = format!("{kind:?}");
            want(&name, self.counts.get(&name).copied().unwrap_or(0), LEAST_OF_EACH_FAULT);
        }
        for (name, count) in &self.counts {
            want(name, *count, LEAST_OF_EACH_FAULT);
        }
        want("take-overs", self.take_overs, LEAST_TAKE_OVERS);
        want("fenced finishes", self.fenced, LEAST_FENCED);
        missing
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coverage { seeds, fires, starts, take_overs, fenced, counts, poor: _ } = self;
        write!(
            f,
            "{seeds} seeds: {fires} fires, {starts} starts, {take_overs} take-overs, {fenced} fenced finishes"
        )?;
        for (name, count) in counts {
            write!(f, "\n{count:>9} {name}")?;
        }
        Ok(())
    }
}
