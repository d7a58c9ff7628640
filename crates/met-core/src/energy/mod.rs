//! Energy: what meters say, what a machine without one probably uses, and whose it is.

mod balance;
mod carry;
pub mod emission;
pub mod estimate;
pub mod idle;
pub mod ledger;
mod meter;
mod ticks;

pub use balance::Balance;
pub use ledger::{Closed, Ledger, Line, Policy, Weights, Who};
pub use meter::{Fault, Scope};
