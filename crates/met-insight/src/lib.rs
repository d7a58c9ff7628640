//! Answers from stored data. Pure: no I/O, no clock; the caller says what time it is.

// An object of JSON with many keys.
#![recursion_limit = "256"]

pub mod allocation;
pub mod answers;
pub mod average;
pub mod check;
pub mod comparison;
pub mod csv;
pub mod events;
pub mod finding;
pub mod gpu;
pub mod handled;
pub mod impact;
pub mod job_columns;
pub mod job_object;
pub mod json;
pub mod lineage;
pub mod messages;
#[cfg(test)]
mod month_tests;
pub mod neighbours;
pub mod reduced;
pub mod report;
pub mod resample;
pub mod rules;
#[cfg(test)]
#[path = "sample_tests.rs"]
mod sample;
pub mod scale;
#[cfg(test)]
mod series_tests;
pub mod usage;
pub mod work;
