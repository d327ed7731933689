//! fleetcron: cron for a fleet of servers.
//!
//! The life of a job, one module a step:
//!
//! ```text
//! job file ──▶ store ──▶ planner ──▶ race ──▶ run ──▶ record
//! jobfile.rs   store.rs  planner.rs  race.rs  run.rs  record.rs
//! ```
//!
//! The modules stand in the order of their layers: a module may use those of its own layer that stand
//! before it and all layers above it, as the table in `tests/it/layers.rs` checks.

// Words: plain values, no I/O.
pub mod schedule;
pub mod node;
pub mod job;
pub mod fire;
pub mod task;
pub mod record;

// Thought: pure functions.
pub mod jobfile;
pub mod planner;
pub mod placement;
pub mod audit;

// Hands: one piece of the world each.
pub mod fail_point;
pub mod mutant;
pub mod clock;
pub mod latest;
pub mod files;
pub mod store;
pub mod config;
pub mod child;
pub mod cgroup;
pub mod output;
pub mod guard;
pub mod journal;

// Deeds: one step of the flow each.
pub mod race;
pub mod run;
pub mod warden;
pub mod queue;
pub mod act;
pub mod sync;

// Doors: where people come in.
pub mod daemon;
pub mod cli;
