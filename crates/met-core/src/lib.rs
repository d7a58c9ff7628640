//! What is measured and what it means. Pure: no I/O, no clock, no global state.
//!
//! A [`Table`] is the one schema: its columns name a Prometheus family, a JSON key, a stored series and
//! a line of the metric reference. Sources fill [`Batch`]es of integers, [`attribute`] folds them into
//! one row per job, and everything behind that reads the [`JOB`] table only.

pub mod annotation;
pub mod apportion;
pub mod attribute;
pub mod backoff;
mod batch;
pub mod belief;
pub mod bounds;
pub mod by_threads;
pub mod cadence;
pub mod chart;
pub mod cluster_job;
pub mod conditions;
pub mod detail_table;
pub mod energy;
pub mod event;
pub mod evidence;
pub mod gpu;
pub mod gpu_holding;
pub mod gpu_idle_power;
pub mod gpu_ledger;
pub mod gpu_use;
pub mod gpus;
pub mod grouping;
pub mod hostlist;
pub mod job;
pub mod job_processes;
pub mod job_table;
pub mod listing;
pub mod lossless_path;
pub mod managers;
pub mod member;
pub mod meter_checks;
pub mod node;
pub mod node_block;
pub mod node_health;
pub mod process_exits;
pub mod provenance;
pub mod queue;
pub mod rate;
pub mod reaction;
pub mod running;
#[cfg(any(test, feature = "tests"))]
#[path = "tests/sample.rs"]
#[allow(clippy::unwrap_used, reason = "a made-up job that cannot be made fails its test")]
pub mod sample;
pub mod sampled;
pub mod series;
#[cfg(any(test, feature = "tests"))]
#[path = "tests/skipped.rs"]
pub mod skipped;
pub mod table;
pub mod text;
pub mod units;
pub mod usage;
pub mod varint;
pub mod watched;
pub mod work;

/// For numbers that the kernel gives out, looked up many times for each job and tick. No user chooses them, so that a
/// hash that resists collisions on purpose is not needed.
pub type FastMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

pub use batch::{Batch, MISSING, Row, Subject, Unparsed, Window};
pub use detail_table::DETAIL;
pub use job_table::JOB;
pub use table::{Across, Column, Kind, Selection, Table, Unit};
