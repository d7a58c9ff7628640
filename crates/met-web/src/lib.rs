//! What daemon and server show over HTTP: the listener, the API over one way to ask, and bounds on answers.

pub mod answers;
pub mod api;
mod in_turn;
pub mod listener;
pub mod login;
mod looks;
pub mod pages;
pub mod personal;
pub mod problem;
mod samples;
pub mod scrape;
