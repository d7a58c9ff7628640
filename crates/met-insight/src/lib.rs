//! Answers from stored data. Pure: no I/O, no clock; the caller says what time it is.

// An object of JSON with many keys.
#![recursion_limit = "256"]

pub mod allocation;
pub mod average;
pub mod csv;
pub mod events;
pub mod gpu;
pub mod job_columns;
pub mod json;
pub mod reduced;
pub mod report;
pub mod resample;
#[cfg(test)]
#[path = "sample_tests.rs"]
mod sample;
