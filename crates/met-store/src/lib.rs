//! Keeps jobs, totals and series.
//!
//! ```text
//! <state>/store.lock           held by the one writer
//! <state>/store.db             jobs, totals, summaries, devices and who had them, sums of use, reactions to findings
//! <state>/series/2026-11-15.db samples of one UTC day, as blocks
//! <state>/cluster.db           of a server: its nodes, and what they sent
//! <state>/jobs/<id>/           the inbox: jobs that run, or ended and are not imported yet
//! ```
//! Supervisors write to the [`inbox`] and never open a database. One [`Writer`] imports from there. Every
//! reader shows the database and the inbox as one.
//!
//! | module | purpose |
//! | --- | --- |
//! | `store`, `query` | the one writer; what can be read |
//! | [`inbox`] | jobs that no database has yet |
//! | `filter`, `paging`, `listed`, `running`, `running_pages`, `brief` | lists of jobs: filters, pages, narrow rows, running jobs in memory, packed records |
//! | `record`, `reading`, `sums`, `check`, `salvage`, `sqlite_pages` | records as rows; checksums; damaged files |
//! | `series`, `days`, `day`, `read_days`, `written_day`, `engine`, `promql` | series in files of days, or in a Prometheus-compatible engine |
//! | `device`, `node`, `factors`, `reactions`, `usage` | GPUs and their jobs; series of the machine; emission factors; reactions to findings; use over time |
//! | `retention`, `thinning` | what is removed, and what is thinned |
//! | `sql`, `sqlite`, `postgresql`, `schema`, `backends` | one SQL for two databases; tables and their versions |
//! | [`cluster`] | nodes, tokens and batches of a server |
//! | `error`, `file_id`, `network` | errors by reaction; replaced files; network file systems |

mod backends;
mod brief;
mod check;
pub mod cluster;
mod day;
mod days;
mod device;
mod engine;
mod error;
mod factors;
mod file_id;
mod filter;
pub mod inbox;
mod listed;
mod network;
mod node;
mod paging;
mod postgresql;
mod promql;
mod query;
mod reactions;
mod read_days;
mod reading;
mod record;
mod retention;
mod running;
mod running_pages;
mod salvage;
#[cfg(test)]
#[path = "samples_tests.rs"]
mod samples;
mod schema;
mod series;
mod sql;
mod sqlite;
mod sqlite_pages;
mod store;
mod sums;
mod thinning;
mod usage;
mod written_day;

pub use backends::{Backends, Credentials, Engine, PostgresServer, Secret};
pub use check::{Checked, check};
pub use days::{damaged_days, unreadable_days};
pub use device::{Allocation, Device, device_on};
pub use error::StoreError;
pub use filter::{Filter, JobOwner, JobTimes, PageBounds};
pub use met_wire::{block, column};
pub use network::is_network;
pub use node::{NodePart, node_on};
pub use paging::{PROCESS_ROWS, Page};
pub use query::{Queries, Reader, has_catalogue};
pub use reactions::{REACTIONS_PER_USER, clear_reactions, put_reactions, reactions, remove_reactions};
pub use retention::{Goes, Removed, Retained, Retention};
pub use running::{LiveFigures, LiveJobs, RunningJobs};
pub use salvage::Salvage;
pub use store::{Import, Imported, Writer};
pub use thinning::{Thinning, thin};
pub use usage::{
    Sees, answer as usage, is_usage_behind, joined as joined_usage, machine_mark, put_machine, sum_usage,
};
