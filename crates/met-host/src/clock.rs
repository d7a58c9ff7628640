//! The clocks: ticks and windows use CLOCK_BOOTTIME, which does not jump; people read unix time.

use rustix::time::{ClockId, Timespec, clock_gettime};

pub fn boottime_ns() -> i64 {
    nanoseconds(clock_gettime(ClockId::Boottime))
}

/// Does not advance while the machine sleeps; the kernel counts by it for how long a process lived.
pub fn monotonic_ns() -> i64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

pub fn realtime_ns() -> i64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

/// CPU time of the calling thread: the cost of a reading, whatever else the machine does.
pub fn thread_cpu_ns() -> i64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// What must be added to a boot time to make it unix time. It changes when the clock is set.
pub fn unix_offset_ns() -> i64 {
    realtime_ns() - boottime_ns()
}

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_time_plus_the_offset_is_unix_time() {
        let through_offset = boottime_ns() + unix_offset_ns();
        assert!((through_offset - realtime_ns()).abs() < 1_000_000_000);
        assert!(boottime_ns() <= boottime_ns());
    }
}
