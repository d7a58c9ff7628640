//! Reads power and use in the ticking thread, at a quarter of the cost of waking up another one. Only for a
//! thread with a watchdog: a driver that does not answer blocks the thread, and another must replace it.

use std::sync::Arc;

use met_host::clock;

use super::figures::SlowGpu;
use super::library::Lender;
use super::reading::{ASK_EVERY_NS, Answer, GpuGuard, Unknown, read_all};

pub(super) struct Direct {
    lender: Lender,
    unknown: Unknown,
}

impl Direct {
    pub fn new(lender: Lender) -> Direct {
        Direct { lender, unknown: Unknown::new() }
    }

    /// Queries every GPU, if there can be something new, except those that block the slow thread.
    pub fn read(&mut self, now_ns: i64, figures: &[SlowGpu], answer: &mut Answer) {
        if answer.at_ns != 0 && now_ns - answer.at_ns < ASK_EVERY_NS {
            return;
        }
        let loaded = self.lender.lent();
        read_all(loaded.as_ref(), &mut Others(figures), &mut self.unknown, answer);
        answer.at_ns = clock::boottime_ns();
    }
}

/// GPUs that are known to be silent are left to the thread that they keep.
struct Others<'a>(&'a [SlowGpu]);

impl GpuGuard for Others<'_> {
    fn enter(&mut self, gpu: usize, _: &Arc<str>, _: i64) -> bool {
        !self.0.get(gpu).is_some_and(|figures| figures.silent)
    }

    fn leave(&mut self, _: &Arc<str>) -> bool {
        true
    }
}
