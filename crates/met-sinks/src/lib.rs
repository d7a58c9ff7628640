//! Writes measurements out, one file per output. A sink does not know where a number came from.

mod decimal;
pub mod forward;
pub mod prometheus;
pub mod service_discovery;
pub mod snapshot;
