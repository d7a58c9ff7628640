//! Keeps jobs, totals and series.

mod bits;
pub mod block;
pub mod column;
mod huffman;
