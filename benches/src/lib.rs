//! Shared pieces of the benchmark programs.
