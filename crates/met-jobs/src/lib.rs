//! Finds the processes and cgroups of jobs on this machine, and reads what schedulers have recorded of jobs.

pub mod cgroup_layouts;
pub mod containers;
pub mod discover;
mod environ;
pub mod identity;
pub mod job_cgroup;
mod members;
pub mod perf_cgroup;
pub mod processes;
pub mod scheduler;
pub mod sessions;

pub use environ::find_by_marker;
pub use members::{JobSpec, Members};
