//! Keeps a waiting supervisor small.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};

use crate::file_pages;

/// Who has had nothing to do for so long will have nothing to do for a while.
const QUIET: Duration = Duration::from_secs(1);

/// Waits until one of `fds` is ready or `timeout` is over. Who is `settled`, with nothing to do but to wait, waits
/// small. A signal that interrupts this is found in the next round.
pub fn wait(fds: &mut [PollFd], timeout: Option<Duration>, settled: bool) {
    let mut wait = |timeout: Option<Duration>| {
        let timespec = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        poll(fds, timespec.as_ref())
    };
    let may_be_long = settled && timeout.is_none_or(|timeout| timeout > QUIET);
    if !may_be_long {
        let _ = wait(timeout);
    } else if wait(Some(QUIET)) == Ok(0) {
        // Right before the wait: whatever is touched in between is back.
        file_pages::give_back();
        let _ = wait(timeout.map(|timeout| timeout - QUIET));
    }
}
