//! The server of a cluster: what nodes send is kept, and jobs of several nodes are made one.

pub mod cluster;
pub mod colmet;
pub mod metrics_page;
pub mod status_file;
