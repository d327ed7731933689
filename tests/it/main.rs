//! Everything that is tested from outside, in one binary.

mod cli;
mod docs;
mod etcd;
mod fleet;
mod golden;
mod guard;
mod jobfile;
mod layers;
mod readme;
mod schedule;
mod store;
mod sync;
mod transitions;
