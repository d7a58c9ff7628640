//! One way to ask for jobs and their series: from the files of a user, from a daemon, from a server.

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
