//! Everything that is tested from outside, in one binary.

mod cli;
mod etcd;
mod guard;
mod jobfile;
mod schedule;
mod store;
mod sync;
