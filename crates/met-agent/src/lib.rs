//! The node: what samples jobs and shares out energy, what starts a job and waits for it, and the daemon that does so for
//! all jobs.

pub mod daemon;
pub mod earlier_output;
pub mod emissions;
mod exits;
mod file_pages;
pub mod idle_power_file;
pub mod launch;
pub mod marking;
pub mod node_energy;
mod node_series;
mod passed_counters;
mod passing;
pub mod sampler;
pub mod standby;
pub mod supervise;
pub mod timeout;
