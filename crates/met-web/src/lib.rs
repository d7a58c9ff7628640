//! HTTP for daemon and server: the listener with its TLS and logins, and who is asking.

pub mod listener;
