//! HTTP: the listener that a daemon and a server share, in one thread of its own; and the server of a cluster.

pub mod cluster;
pub mod http;
