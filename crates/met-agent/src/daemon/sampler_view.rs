//! What readers are shown of the sampling thread: it publishes a copy, so that a reply waits for no tick.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use met_core::energy::idle::LearnedIdle;
use met_core::energy::{Balance, EnergyWindow};
use met_core::job::JobKey;
use met_host::clock;
use met_query::live::Live;
use met_query::machine_now::MachineNow;
use met_query::protocol::SourceStatus;

/// So long after the last reader each tick is published.
const READERS_FOR_NS: i64 = 10_000_000_000;
/// Without readers few ticks are: a copy costs something, and the next reader may come during a tick.
const PUBLISH_EVERY_NS: i64 = 5_000_000_000;

/// The state between two ticks.
#[derive(Default)]
pub(super) struct View {
    pub live: HashMap<JobKey, Live>,
    pub sources: Vec<SourceStatus>,
    pub gpus: Option<i64>,
    /// What the machine did at the last tick.
    pub machine: MachineNow,
    /// Whose the node's energy was in the last window.
    pub energy: Option<EnergyWindow>,
    /// What the machine uses when idle, as far as it is known.
    pub idle: Vec<LearnedIdle>,
    /// Whether all energy that meters counted is booked.
    pub balance: Option<Balance>,
    /// Samples that were dropped because they were not taken out in time; `None` before the first view.
    pub dropped_samples: Option<u64>,
}

/// The last view, shared by the sampling thread and readers.
#[derive(Default)]
pub(super) struct Published {
    view: Mutex<Arc<View>>,
    /// Until when there are readers, by the monotonic clock.
    wanted_until_ns: AtomicI64,
    /// When the view was published, by the same clock.
    published_ns: AtomicI64,
}

impl Published {
    /// For another thread, which shows what the one before it knew until it knows more.
    pub(super) fn before(view: Arc<View>) -> Arc<Published> {
        Arc::new(Published { view: Mutex::new(view), ..Published::default() })
    }

    /// There is a reader: the next ticks are published, too.
    pub(super) fn want(&self) {
        self.wanted_until_ns.store(clock::monotonic_ns() + READERS_FOR_NS, Ordering::Relaxed);
    }

    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// False before the first view of the first thread.
    pub(super) fn has_view(&self) -> bool {
        self.view().dropped_samples.is_some()
    }

    /// Of the sampling thread, which does not wait: a reader holds the view for as long as it takes to copy a pointer.
    pub(super) fn publish(&self, view: View) {
        if let Ok(mut held) = self.view.try_lock() {
            *held = Arc::new(view);
            self.published_ns.store(clock::monotonic_ns(), Ordering::Relaxed);
        }
    }

    /// Of the sampling thread, after a tick.
    pub(super) fn ticked(&self, view: impl FnOnce() -> View) {
        let now_ns = clock::monotonic_ns();
        let is_wanted = now_ns < self.wanted_until_ns.load(Ordering::Relaxed);
        if is_wanted || now_ns - self.published_ns.load(Ordering::Relaxed) >= PUBLISH_EVERY_NS {
            self.publish(view());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(samples: u64) -> View {
        View { dropped_samples: Some(samples), ..View::default() }
    }

    #[test]
    fn each_tick_is_published_for_readers_and_few_without() {
        let published = Published::default();
        published.publish(dropped(1));
        published.ticked(|| panic!("there is no reader, and a view"));
        published.want();
        published.ticked(|| dropped(7));
        assert_eq!(published.view().dropped_samples, Some(7));
        published.wanted_until_ns.store(0, Ordering::Relaxed);
        published.ticked(|| panic!("the reader is gone"));
        published.published_ns.fetch_sub(PUBLISH_EVERY_NS, Ordering::Relaxed);
        published.ticked(|| dropped(8));
        assert_eq!(published.view().dropped_samples, Some(8), "the next reader gets no old view");
    }

    #[test]
    fn a_tick_waits_for_no_reader() {
        let published = Published::default();
        let reading = published.view.lock().unwrap();
        published.publish(dropped(7));
        assert!(reading.dropped_samples.is_none());
        drop(reading);
        assert!(!published.has_view());
    }
}
