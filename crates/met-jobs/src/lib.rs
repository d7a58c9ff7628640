//! Finds the processes and cgroups of jobs on this machine, and reads what schedulers have recorded of jobs.

pub mod containers;
pub mod discover;
pub mod enclosure;
mod environ;
pub mod identity;
pub mod layouts;
mod members;
pub mod processes;
pub mod scheduler;
pub mod sessions;
pub mod shadow;

pub use environ::find_by_marker;
pub use members::{JobSpec, Members};
