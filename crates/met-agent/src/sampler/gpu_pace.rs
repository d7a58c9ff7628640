//! When GPUs are read, where they have a period of their own.

use std::time::Duration;

use met_host::clock;

/// GPUs are read at multiples of their own period, between the ticks or not at each of them. Without one they are
/// read at every tick.
#[derive(Default)]
pub(super) struct GpuPace {
    own: Option<Own>,
}

struct Own {
    interval_ns: i64,
    next_ns: i64,
}

impl GpuPace {
    pub(super) fn new(interval: Option<Duration>) -> GpuPace {
        let own = interval.map(|interval| Own { interval_ns: interval.as_nanos() as i64, next_ns: 0 });
        GpuPace { own }
    }

    pub(super) fn is_due(&self, now_ns: i64) -> bool {
        self.own.as_ref().is_none_or(|own| own.next_ns <= now_ns)
    }

    /// When they are read next; `None` with the next tick.
    pub(super) fn next_ns(&self) -> Option<i64> {
        self.own.as_ref().map(|own| own.next_ns)
    }

    /// They are read with the next tick, whenever that is.
    pub(super) fn hurry(&mut self) {
        if let Some(own) = &mut self.own {
            own.next_ns = 0;
        }
    }

    /// After a reading, at the next multiple, as ticks are.
    pub(super) fn plan_next(&mut self) {
        if let Some(own) = &mut self.own {
            own.next_ns = (clock::boottime_ns() / own.interval_ns + 1) * own.interval_ns;
        }
    }

    /// The time between two readings, where ticks come so often.
    pub(super) fn interval_ns(&self, tick_ns: i64) -> i64 {
        self.own.as_ref().map_or(tick_ns, |own| own.interval_ns)
    }
}
