//! How many files may stay open. Beyond that they are opened for each reading: slower, but never wrong.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A part of the limit stays free for the store, sockets and files that are opened for a moment.
const KEPT_PERCENT: u64 = 80;
/// Where a limit is infinite, as in some containers: more files than any machine has processes.
const UNLIMITED: u64 = 1 << 20;

/// Raises the limit on open files from soft to hard, and returns what it is now.
pub fn raise_open_file_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED))
}

/// Which files stay open when there is not room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Read at every tick.
    First,
    /// Read at every tenth: these may use half of the budget, so that they never push out the others.
    Second,
}

#[derive(Debug)]
pub struct Budget {
    limit: usize,
    kept: AtomicUsize,
}

impl Budget {
    /// From the limit on open files as it is now: raise it first.
    pub fn of_process() -> Arc<Budget> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED).min(UNLIMITED);
        Budget::of(usize::try_from(limit * KEPT_PERCENT / 100).unwrap_or(usize::MAX))
    }

    pub fn of(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { limit, kept: AtomicUsize::new(0) })
    }

    pub fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self, share: Share) -> bool {
        let limit = match share {
            Share::First => self.limit,
            Share::Second => self.limit / 2,
        };
        let room = |kept: usize| (kept < limit).then_some(kept + 1);
        self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    pub(crate) fn give_back(&self) {
        let before = self.kept.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "only what was taken is given back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_read_rarely_leave_room_for_those_read_always() {
        let budget = Budget::of(4);
        assert!(budget.take(Share::Second) && budget.take(Share::Second));
        assert!(!budget.take(Share::Second));
        assert!(budget.take(Share::First) && budget.take(Share::First));
        assert!(!budget.take(Share::First));
        budget.give_back();
        assert_eq!(budget.kept(), 3);
    }

    #[test]
    fn the_limit_is_raised_to_the_hard_one() {
        let raised = raise_open_file_limit().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).maximum.unwrap_or(UNLIMITED), raised);
    }
}
