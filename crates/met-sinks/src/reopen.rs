//! A hang-up asks sinks that write files to begin new ones.

use std::sync::atomic::{AtomicU64, Ordering};

static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// Called by the process on SIGHUP.
pub fn request() {
    REQUESTS.fetch_add(1, Ordering::Relaxed);
}

/// How many requests there were; a sink compares it with what it saw last.
pub(crate) fn requests() -> u64 {
    REQUESTS.load(Ordering::Relaxed)
}
