//! When ticks are due.

use std::time::Duration;

use met_host::clock;

/// A job younger than this is read more often than the period: a short one would not be seen at all.
const EARLY_MS: [i64; 6] = [20, 50, 100, 200, 400, 800];
/// What is expensive to read is read at every tenth tick.
const SLOW_EVERY: u64 = 10;

/// The regular ticks.
pub(super) struct Schedule {
    pub(super) interval_ns: i64,
    pub(super) next_ns: i64,
    pub(super) ticks: u64,
    /// Ticks also without jobs: the machine itself is watched.
    pub(super) watches_node: bool,
    /// When the largest processes are looked for again.
    pub(super) list_ns: i64,
}

impl Schedule {
    pub(super) fn new(interval: Duration) -> Schedule {
        let mut schedule = Schedule { interval_ns: 0, next_ns: 0, ticks: 0, watches_node: false, list_ns: 0 };
        schedule.set_interval(interval);
        schedule
    }

    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval_ns = interval.as_nanos() as i64;
        self.plan_next();
    }

    /// At the next multiple of the interval: ticks do not drift, and nodes tick together.
    pub(super) fn plan_next(&mut self) {
        self.next_ns = (clock::boottime_ns() / self.interval_ns + 1) * self.interval_ns;
    }

    /// Whether the next regular tick reads all that is expensive.
    pub(super) fn is_slow_due(&self) -> bool {
        self.ticks.is_multiple_of(SLOW_EVERY)
    }

    /// Whether a job of this age has had a slow tick.
    pub(super) fn is_old(&self, age: &Age, now_ns: i64) -> bool {
        now_ns - age.born_ns > self.interval_ns * SLOW_EVERY as i64
    }
}

/// When a job began, and which of its early ticks it had.
pub(super) struct Age {
    pub(super) born_ns: i64,
    early_taken: usize,
    /// Unix time minus boot time when the job began: its samples stay in line if the clock is set.
    unix_offset_ns: i64,
}

impl Age {
    pub(super) fn new(born_ns: i64) -> Age {
        Age { born_ns, early_taken: 0, unix_offset_ns: clock::realtime_ns() - born_ns }
    }

    /// When its next early tick is due.
    pub(super) fn early_ns(&self) -> Option<i64> {
        EARLY_MS.get(self.early_taken).map(|ms| self.born_ns + ms * 1_000_000)
    }

    pub(super) fn pass_early(&mut self, now_ns: i64) {
        while self.early_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.early_taken += 1;
        }
    }

    /// The time of a sample.
    pub(super) fn unix_ms(&self, now_ns: i64) -> i64 {
        (now_ns + self.unix_offset_ns) / 1_000_000
    }
}
