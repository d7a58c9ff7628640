//! Writes measurements out, one file per output. A sink does not know where a number came from.

pub mod forward;
