//! Energy: what meters say, what a machine without one probably uses, and whose it is.

mod carry;
pub mod emission;
pub mod estimate;
pub mod idle;
pub mod ledger;
mod meter;

pub use ledger::{Closed, Ledger, Line, Policy, Weights, Who};
pub use meter::{Fault, Scope};
