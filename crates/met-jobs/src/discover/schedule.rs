//! When the discovery does what no notice calls for.

/// Parts are read this often.
const PARTS_EVERY_NS: i64 = 10_000_000_000;
/// The counters of all jobs: what was used since is divided by estimate when several go at once.
const JOBS_EVERY_NS: i64 = 30_000_000_000;
/// What may go wrong between two rescans: places with too many notices, processes beside the jobs.
pub(super) const UPKEEP_EVERY_NS: i64 = 60_000_000_000;
/// The safety net: from so soon after a rescan that found what no notice had reported, to so late after several that
/// found nothing.
pub(super) const RESCAN_EVERY_NS: i64 = 60_000_000_000;
const RESCAN_EVERY_MAX_NS: i64 = 8 * RESCAN_EVERY_NS;
/// Where the kernel grants no watches, rescans are all there is.
const UNWATCHED_RESCAN_EVERY_NS: i64 = 1_000_000_000;

/// The next time of each periodic task, in nanoseconds since the boot.
pub(super) struct Schedule {
    pub(super) parts_ns: i64,
    pub(super) jobs_ns: i64,
    pub(super) upkeep_ns: i64,
    pub(super) rescan_ns: i64,
    rescan_every_ns: i64,
}

impl Schedule {
    pub(super) fn new(now_ns: i64) -> Schedule {
        Schedule {
            parts_ns: now_ns + PARTS_EVERY_NS,
            jobs_ns: now_ns + JOBS_EVERY_NS,
            upkeep_ns: now_ns + UPKEEP_EVERY_NS,
            rescan_ns: now_ns + RESCAN_EVERY_NS,
            rescan_every_ns: RESCAN_EVERY_NS,
        }
    }

    /// Whether parts are to be read now; then the next time is set. Likewise the following two.
    pub(super) fn take_parts(&mut self, now_ns: i64) -> bool {
        take(&mut self.parts_ns, PARTS_EVERY_NS, now_ns)
    }

    pub(super) fn take_jobs(&mut self, now_ns: i64) -> bool {
        take(&mut self.jobs_ns, JOBS_EVERY_NS, now_ns)
    }

    pub(super) fn take_upkeep(&mut self, now_ns: i64) -> bool {
        take(&mut self.upkeep_ns, UPKEEP_EVERY_NS, now_ns)
    }

    /// Brings the next rescan forward where some directories are not watched, or not followed for lack of room.
    pub(super) fn is_rescan_due(&mut self, is_unwatched: bool, is_crowded: bool, now_ns: i64) -> bool {
        let within_ns = match (is_unwatched, is_crowded) {
            (true, _) => UNWATCHED_RESCAN_EVERY_NS,
            (false, true) => RESCAN_EVERY_NS,
            (false, false) => i64::MAX,
        };
        self.rescan_ns = self.rescan_ns.min(now_ns.saturating_add(within_ns));
        now_ns >= self.rescan_ns
    }

    /// A rescan was done; `has_found`: what no notice had reported.
    pub(super) fn rescanned(&mut self, is_unwatched: bool, has_found: bool, now_ns: i64) {
        self.rescan_every_ns = match (is_unwatched, has_found) {
            (true, _) => UNWATCHED_RESCAN_EVERY_NS,
            (false, true) => RESCAN_EVERY_NS,
            (false, false) => (2 * self.rescan_every_ns).clamp(RESCAN_EVERY_NS, RESCAN_EVERY_MAX_NS),
        };
        self.rescan_ns = now_ns + self.rescan_every_ns;
    }
}

fn take(next_ns: &mut i64, every_ns: i64, now_ns: i64) -> bool {
    let is_due = now_ns >= *next_ns;
    if is_due {
        *next_ns = now_ns + every_ns;
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rescans_that_find_nothing_become_rare() {
        let mut schedule = Schedule::new(0);
        let mut minutes = |is_unwatched: bool, has_found: bool| {
            schedule.rescanned(is_unwatched, has_found, 0);
            schedule.rescan_ns as f64 / RESCAN_EVERY_NS as f64
        };
        assert_eq!([(); 4].map(|()| minutes(false, false)), [2.0, 4.0, 8.0, 8.0]);
        assert_eq!((minutes(false, true), minutes(false, false)), (1.0, 2.0));
        assert_eq!((minutes(true, false) * 60.0).round(), 1.0, "nothing else finds jobs");
    }

    #[test]
    fn a_rescan_is_brought_forward_and_never_put_off() {
        let mut schedule = Schedule::new(0);
        schedule.rescanned(false, false, 0);
        assert!(!schedule.is_rescan_due(false, true, 0));
        assert!(!schedule.is_rescan_due(false, true, RESCAN_EVERY_NS - 1), "a minute after the first call");
        assert!(schedule.is_rescan_due(false, false, RESCAN_EVERY_NS));
    }

    #[test]
    fn a_periodic_task_is_due_once_in_each_period() {
        let mut schedule = Schedule::new(0);
        let due =
            [0, PARTS_EVERY_NS, PARTS_EVERY_NS + 1, 2 * PARTS_EVERY_NS].map(|now| schedule.take_parts(now));
        assert_eq!(due, [false, true, false, true]);
    }
}
