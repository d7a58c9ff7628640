//! What a reader of sources is doing, for its watchdog: a file system or a driver may never answer. The reader
//! only writes a few words of memory.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use met_host::clock;

use crate::SOURCES;

#[derive(Debug, Default)]
pub struct Heartbeat {
    /// By CLOCK_MONOTONIC, which stops while the machine sleeps; 0 while there is nothing to do.
    since_ns: AtomicI64,
    /// Counts beginnings and ends.
    steps: AtomicU64,
    /// The position of a source in `SOURCES`, from 1 on.
    source: AtomicUsize,
    given_up: AtomicBool,
}

/// What the reader is doing. The same at two looks: it made no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub since_ns: i64,
    pub source: Option<&'static str>,
    steps: u64,
}

impl Heartbeat {
    /// The reader has something to do.
    pub fn begin(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.since_ns.store(clock::monotonic_ns(), Ordering::Release);
    }

    /// He has nothing to do.
    pub fn rest(&self) {
        self.since_ns.store(0, Ordering::Release);
    }

    /// He opens or reads a source, by its position.
    pub(crate) fn enter(&self, part: u32) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.source.store(part as usize + 1, Ordering::Release);
    }

    pub(crate) fn leave(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.source.store(0, Ordering::Release);
    }

    /// Where it is; `None` while it has nothing to do.
    pub fn at(&self) -> Option<At> {
        let since_ns = Some(self.since_ns.load(Ordering::Acquire)).filter(|&since_ns| since_ns != 0)?;
        let position = self.source.load(Ordering::Acquire).checked_sub(1);
        let source = position.and_then(|position| SOURCES.get(position)).map(|spec| spec.name);
        Some(At { since_ns, source, steps: self.steps.load(Ordering::Relaxed) })
    }

    /// Another thread replaced it.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Whether it was replaced and must exit without changing anything.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_reader_is_distinguished_from_a_stuck_one() {
        let heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.at(), None);
        heartbeat.begin();
        heartbeat.enter(0);
        let at = heartbeat.at();
        assert_eq!(at.and_then(|at| at.source), Some(SOURCES[0].name));
        assert_eq!(heartbeat.at(), at, "he is where he was");
        heartbeat.leave();
        heartbeat.enter(0);
        assert_ne!(heartbeat.at(), at, "the same source, and another reading of it");
        heartbeat.leave();
        assert_eq!(heartbeat.at().and_then(|at| at.source), None);
        heartbeat.rest();
        assert_eq!(heartbeat.at(), None);
    }
}
