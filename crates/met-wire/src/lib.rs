//! Bytes that other programs read or write. Everything here is pure, and reads foreign bytes within bounds.

pub mod acknowledgement;
pub mod batch;
mod bits;
pub mod block;
pub mod colmet;
pub mod column;
pub mod hdf5;
mod huffman;
pub mod otlp;
mod protobuf;
pub mod remote_write;
pub mod schema;
pub mod zmtp;
