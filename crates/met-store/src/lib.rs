//! Keeps jobs, totals and series.
//!
//! ```text
//! <state>/store.lock           held by the one writer
//! <state>/store.db             jobs, totals, summaries, devices and who had them
//! <state>/series/2026-11-15.db samples of one UTC day, as blocks
//! <state>/cluster.db           of a server: its nodes, and what they sent
//! <state>/jobs/<id>/           the inbox: jobs that run, or ended and are not imported yet
//! ```
//! Supervisors write to the [`inbox`] and never open a database. One [`Writer`] imports from there. Every
//! reader shows the database and the inbox as one.

pub use met_wire::{block, column};
pub mod cluster;
mod day;
mod device;
mod error;
mod factors;
pub mod inbox;
mod network;
mod query;
mod record;
#[cfg(test)]
mod samples;
mod schema;
mod series;
mod store;

pub use device::{Allocation, Device};
pub use error::StoreError;
pub use network::is_network;
pub use query::{Filter, Queries, Reader};
pub use store::{Imported, Retained, Retention, Writer};
