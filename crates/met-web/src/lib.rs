//! What daemon and server show over HTTP: the listener, the API over one way to ask, and bounds on answers.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`listener`] | sockets, TLS, passwords, limits of connections and time; the peer of a request |
//! | [`login`] | logins, sessions and OpenID; the guard around all routes; the audit log |
//! | [`api`] | `/api/v1`: endpoints, writes, parameters, OpenAPI, the live stream; the viewer of a request |
//! | [`pages`] | one file per page; charts and assets |
//! | [`personal`] | the listener of `met web`, for one person |
//! | [`scrape`] | requests of Prometheus |
//! | [`problem`] | errors as problem details |
//! | [`answers`], `in_turn`, `looks`, `samples` | limits: replies not read yet; long work in turns; looks at processes; whole series |
//!
//! A function of an endpoint or page gets an `api::Visible`, which holds the viewer and no other way to the jobs: without
//! a viewer it cannot be called. The guard of [`login`] treats a path that it does not know as a page that needs a login.

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
