//! The server of a cluster: receives batches from nodes, stores them, and joins the parts of each job.
//!
//! Batches come in by [`api`], are made durable by the [`cluster_writer`] before they are acknowledged, and become
//! records and series of the store behind it.

pub mod access;
pub mod accounts;
pub mod api;
mod cluster_writer;
mod incompatible;
mod latest;
mod node_series;
mod open_files;
pub mod people;
mod query;
mod receive_memory;
mod view;
mod watching;

pub use cluster_writer::{Busy, ClusterWriter, Denied, Plan, Refusal, SinksFile};
pub use incompatible::Incompatible;
pub use latest::Latest;
pub use view::{ClusterView, Lists};
pub use watching::Watching;
