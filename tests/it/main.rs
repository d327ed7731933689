//! Everything that is tested from outside, in one binary.

mod jobfile;
mod schedule;
