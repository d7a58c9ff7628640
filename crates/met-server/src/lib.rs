//! The server of a cluster: what nodes send is kept, and jobs of several nodes are made one.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`cluster`] | batches of nodes (`cluster/cluster_writer.rs`), tokens and rights (`access.rs`, `people.rs`, `accounts.rs`), HTTP (`api.rs`), the server as a `Query` (`query.rs`, `view.rs`, `latest.rs`) |
//! | [`colmet`] | records of Colmet's nodes: who may send, import, and a collector for sinks alone |
//! | `foreign_columns` | checks columns that foreign formats name by text, when it is compiled |
//! | [`metrics_page`] | `/metrics` and the targets of Prometheus |
//! | [`status_file`] | state of a running server, for `met doctor` |

pub mod cluster;
pub mod colmet;
mod foreign_columns;
pub mod metrics_page;
pub mod status_file;
