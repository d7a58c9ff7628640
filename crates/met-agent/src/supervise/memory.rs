//! Keeps a waiting supervisor small.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};

use crate::file_pages;

/// Who has had nothing to do for so long will have nothing to do for a while.
const QUIET: Duration = Duration::from_secs(1);

/// Waits until one of `fds` is ready or `patience` is over. Who is `settled`, with nothing to do but to wait, waits
/// small. A signal that interrupts this is found in the next round.
pub fn wait(fds: &mut [PollFd], patience: Option<Duration>, settled: bool) {
    let mut wait = |patience: Option<Duration>| {
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        poll(fds, timeout.as_ref())
    };
    let may_be_long = settled && patience.is_none_or(|patience| patience > QUIET);
    if !may_be_long {
        let _ = wait(patience);
    } else if wait(Some(QUIET)) == Ok(0) {
        // Right before the wait: whatever is touched in between is back.
        file_pages::give_back();
        let _ = wait(patience.map(|patience| patience - QUIET));
    }
}
