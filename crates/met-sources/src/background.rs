//! Reads a source on a thread of its own, so that a tick waits neither for a controller that takes four
//! seconds nor for a driver that takes two milliseconds.
//!
//! The thread works only while ticks request readings. A tick takes a finished reading with the window in which
//! it was made, once: a reading is never handed over twice as if it were new.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use met_core::{Batch, Window};
use met_host::{Targets, clock};

use crate::{ReadError, Shortfall, Source, SourceSpec, TickInfo};

pub(crate) struct Background {
    shared: Arc<Shared>,
    labels: Vec<Vec<String>>,
    shortfall: Option<Shortfall>,
    taken: u64,
    /// The last tick took a reading over.
    has_read: bool,
    cpu_ns: i64,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    batches: Vec<Batch>,
    labels: Vec<Vec<String>>,
    shortfall: Option<Shortfall>,
    error: Option<ReadError>,
    /// Counts finished readings.
    number: u64,
    asked: bool,
    stop: bool,
    cpu_ns: i64,
}

impl Background {
    pub(crate) fn start(
        source: Box<dyn Source>,
        spec: &'static SourceSpec,
        period: Duration,
    ) -> io::Result<Background> {
        let batches = || spec.tables.iter().copied().map(Batch::new).collect::<Vec<_>>();
        let state = State { batches: batches(), ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (theirs, mut own) = (Arc::clone(&shared), batches());
        std::thread::Builder::new()
            .name(spec.name.to_owned())
            .spawn(move || work(source, &theirs, &mut own, period))?;
        Ok(Background { shared, labels: Vec::new(), shortfall: None, taken: 0, has_read: false, cpu_ns: 0 })
    }
}

impl Source for Background {
    fn read(&mut self, _: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        self.has_read = false;
        // Held for a moment only; if it is just now, the reading is taken over at the next tick.
        let mut state = match self.shared.state.try_lock() {
            Ok(state) => state,
            Err(std::sync::TryLockError::WouldBlock) => return Ok(()),
            Err(std::sync::TryLockError::Poisoned(_)) => {
                self.has_read = true;
                return Err(ReadError::Gone { why: "its thread ended".to_owned() });
            }
        };
        state.asked = true;
        self.shared.changed.notify_all();
        if state.number == self.taken {
            return Ok(());
        }
        (self.taken, self.has_read) = (state.number, true);
        self.cpu_ns = state.cpu_ns;
        self.shortfall.clone_from(&state.shortfall);
        self.labels.extend_from_slice(state.labels.get(self.labels.len()..).unwrap_or_default());
        for (theirs, ours) in state.batches.iter_mut().zip(out) {
            std::mem::swap(theirs, ours);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    fn has_read(&self) -> bool {
        self.has_read
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }

    fn shortfall(&self) -> Option<Shortfall> {
        self.shortfall.clone()
    }

    fn wait(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asked = true;
        self.shared.changed.notify_all();
        while state.number == self.taken {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn background_cpu_ns(&self) -> i64 {
        self.cpu_ns
    }
}

impl Drop for Background {
    /// Does not wait for the thread, which may wait for a controller.
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.shared.changed.notify_all();
    }
}

fn work(mut source: Box<dyn Source>, shared: &Shared, batches: &mut [Batch], period: Duration) {
    let tick = TickInfo::of(true);
    loop {
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.asked && !state.stop {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop {
            return;
        }
        state.asked = false;
        drop(state);
        let (begin, begin_ns) = (Instant::now(), clock::boottime_ns());
        for batch in &mut *batches {
            batch.clear();
        }
        let result = source.read(&Targets::default(), &tick, batches);
        let window = Window { begin_ns, end_ns: clock::boottime_ns() };
        let gone = matches!(result, Err(ReadError::Gone { .. }));
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (theirs, ours) in state.batches.iter_mut().zip(&mut *batches) {
            ours.window = window;
            std::mem::swap(theirs, ours);
        }
        let known = state.labels.len();
        state.labels.extend_from_slice(source.labels().get(known..).unwrap_or_default());
        state.shortfall = source.shortfall();
        state.error = result.err();
        state.number += 1;
        state.cpu_ns = clock::thread_cpu_ns();
        shared.changed.notify_all();
        // One that takes longer than its period still rests for a moment.
        let due = (begin + period).max(Instant::now() + period / 10);
        while !state.stop && !gone && Instant::now() < due {
            let left = due.saturating_duration_since(Instant::now());
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.stop || gone {
            return;
        }
    }
}
