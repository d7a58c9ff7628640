//! The server of a cluster: what nodes send is kept, and jobs of several nodes are made one.

pub mod cluster;
pub mod status_file;
