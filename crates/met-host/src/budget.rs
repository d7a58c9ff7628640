//! How many files may stay open. Beyond that they are opened for each reading: slower, but never wrong.
//!
//! The limit is divided once for all ([`percent`]), and a part is left for the store and whatever is opened for a
//! moment. So a machine full of jobs never takes the descriptors with which the end of a job is read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How the limit is divided.
pub mod percent {
    /// Files and directories that are read again and again.
    pub const KEPT: u64 = 40;
    /// Connections of supervisors, one for each job.
    pub const SUPERVISORS: u64 = 25;
    /// Connections of commands.
    pub const CLIENTS: u64 = 10;
    /// Counters that supervisors pass to a daemon.
    pub const COUNTERS: u64 = 10;
    /// Connections to a daemon's listener.
    pub const LISTENER: u64 = 5;
    const _: () = assert!(KEPT + SUPERVISORS + CLIENTS + COUNTERS + LISTENER <= 90);
}
/// Where a limit is infinite, as in some containers: more files than any machine has processes.
const UNLIMITED: u64 = 1 << 20;

/// Raises the limit on open files from soft to hard, and returns what it is now.
pub fn raise_open_file_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(open_file_limit())
}

/// The present limit on open files.
pub fn open_file_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED)
}

/// Which files stay open when there is not room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Read at every tick.
    First,
    /// Read at every tenth: these may use three quarters of the budget, as a process has three of them, so that they
    /// never push out the others.
    Second,
}

#[derive(Debug)]
pub struct Budget {
    limit: AtomicUsize,
    kept: AtomicUsize,
}

impl Budget {
    /// From the limit on open files as it is now.
    pub fn of_process() -> Arc<Budget> {
        Budget::of(share_of_limit())
    }

    pub fn of(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { limit: AtomicUsize::new(limit), kept: AtomicUsize::new(0) })
    }

    /// Follows a limit on open files that was raised since.
    pub fn follow_limit(&self) {
        self.limit.store(share_of_limit(), Ordering::Relaxed);
    }

    pub fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self, share: Share) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let limit = match share {
            Share::First => limit,
            Share::Second => limit / 4 * 3,
        };
        let room = |kept: usize| (kept < limit).then_some(kept + 1);
        self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    pub(crate) fn give_back(&self) {
        let before = self.kept.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "only what was taken is given back");
    }
}

fn share_of_limit() -> usize {
    usize::try_from(open_file_limit().min(UNLIMITED) * percent::KEPT / 100).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_read_rarely_leave_room_for_those_read_always() {
        let budget = Budget::of(8);
        assert!((0..6).all(|_| budget.take(Share::Second)));
        assert!(!budget.take(Share::Second));
        assert!(budget.take(Share::First) && budget.take(Share::First));
        assert!(!budget.take(Share::First));
        budget.give_back();
        assert_eq!(budget.kept(), 7);
    }

    #[test]
    fn the_limit_is_raised_to_the_hard_one() {
        let raised = raise_open_file_limit().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).maximum.unwrap_or(UNLIMITED), raised);
    }
}
