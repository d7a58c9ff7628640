//! Energy: what meters say, what a machine without one probably uses, and whose it is.

mod balance;
mod carry;
pub mod emission;
pub mod estimate;
pub mod idle;
mod ledger;
pub mod line;
mod machine_idle;
mod meter;
mod meters;
mod ticks;
mod whole;
mod window;

pub use balance::Balance;
pub use ledger::EnergyLedger;
pub use line::{Closed, IdleTo, Line, MeteredBy, Policy, Weights, Who};
pub use meter::{Fault, Scope};
pub use window::EnergyWindow;

use crate::job_table as column;

/// The columns of the job table that the energy of the machine fills.
pub const COLUMNS: [usize; 7] = [
    column::ENERGY,
    column::ENERGY_CPU,
    column::ENERGY_MEMORY,
    column::ENERGY_REST,
    column::ENERGY_IDLE,
    column::EMISSIONS,
    column::COST,
];
