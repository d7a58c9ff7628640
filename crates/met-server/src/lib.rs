//! HTTP: the listener that a daemon and a server share, in one thread of its own.

pub mod http;
