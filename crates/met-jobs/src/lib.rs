//! Finds the processes and cgroups of jobs on this machine.

pub mod enclosure;
mod environ;
pub mod layouts;
mod members;
pub mod shadow;

pub use environ::find_by_marker;
pub use members::{JobSpec, Members};
