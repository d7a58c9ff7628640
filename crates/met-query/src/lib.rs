//! One way to ask for jobs and their series: from the files of a user, from a daemon, from a server.
//!
//! | to ask | |
//! | --- | --- |
//! | [`query`] | the trait `Query`, and replies to requests that only read |
//! | [`viewer`] | which jobs a client may see |
//! | [`jobs`] | jobs for commands: references, filters, files, daemons and servers together; housekeeping of a user's files |
//! | [`protocol`], [`handshake`] | requests and replies of the socket and of a server; versions |
//! | [`client`], [`server_client`], [`unusable`] | connections to a daemon and to a server; daemons that hang |
//! | [`setting`] | machine, configuration and directories of a command |
//!
//! | what is asked for | |
//! | --- | --- |
//! | [`live`], [`counters`], [`hidden_io`] | figures of running jobs that no daemon samples; I/O that cannot be read |
//! | [`who`], [`free`], [`machine_now`] | users and processes now; what no job holds; load of a machine |
//! | [`machines`], [`systems`], [`queues`] | machines to compare with; other systems of the site; lengths of queues |
//! | [`annotate`], [`react`], [`sample_more`] | tags and notes; reactions to findings; jobs to sample more often |

pub mod annotate;
pub mod client;
pub mod counters;
pub mod free;
pub mod handshake;
pub mod hidden_io;
pub mod jobs;
pub mod live;
pub mod machine_now;
pub mod machines;
pub mod protocol;
pub mod query;
pub mod queues;
pub mod react;
pub mod sample_more;
pub mod server_client;
pub mod setting;
pub mod systems;
pub mod unusable;
pub mod viewer;
pub mod who;
