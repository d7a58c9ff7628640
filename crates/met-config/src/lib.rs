//! What people set, and where things are kept: the configuration file, the folders of a user and of the system, and how
//! a command fails that was used wrongly.

pub mod address;
mod config;
pub mod failure;
pub mod mistyped;
pub mod paths;

pub use config::*;
pub use failure::Failure;
pub use paths::Place;
