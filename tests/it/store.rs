//! The store: what all of them promise, and what each does when things go wrong.

mod conformance;
mod etcd;
mod leases;
mod model;
mod sim;
mod sqlite;
