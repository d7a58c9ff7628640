//! The thread that reads what changes all the time, power and use, whenever a tick asks.
//!
//! It answers within a tenth of a millisecond, and the tick waits for that. A driver that does not answer
//! keeps this thread and nobody else: the next ticks do not wait and take what there is.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use met_core::MISSING;
use met_core::gpu::card;
use met_host::clock;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::library::Loaded;
use super::slow::lock;
use super::{is_lost, is_unsupported, needs_reload};

/// A tick waits no longer for an answer. Cards that are idle or cores that are busy make it late.
const TICK_PATIENCE: Duration = Duration::from_millis(2);
/// What a card says it does not know is asked for again: during a reset it says so of everything.
const ASK_AGAIN_NS: i64 = if cfg!(test) { 100_000_000 } else { 60_000_000_000 };

/// What a card showed when it was last asked.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    power: i64,
    utilization: i64,
    utilization_memory: i64,
    pub trouble: Option<Trouble>,
}

#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub text: String,
    /// The whole card is out of reach.
    pub lost: bool,
    /// The library must be loaded anew.
    pub reload: bool,
}

impl Reading {
    const NOTHING: Reading =
        Reading { power: MISSING, utilization: MISSING, utilization_memory: MISSING, trouble: None };

    pub fn fill(&self, cells: &mut [i64]) {
        cells[card::POWER] = self.power;
        cells[card::UTILIZATION] = self.utilization;
        cells[card::UTILIZATION_MEMORY] = self.utilization_memory;
    }
}

/// One answer of the thread: a reading of each card.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// Of which loading of the library the cards are.
    pub loading: u64,
    pub at_ns: i64,
    pub cards: Vec<Reading>,
}

#[derive(Default)]
struct State {
    /// Lent by the thread that loads it.
    loaded: Option<Loaded>,
    asked: u64,
    answered: u64,
    /// When the first question was put that has no answer yet.
    waiting_since_ns: Option<i64>,
    answer: Answer,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
    cpu_ns: AtomicI64,
}

/// Where the library is lent to the thread.
#[derive(Clone)]
pub(super) struct Lender(Arc<Shared>);

impl Lender {
    /// Lends the library, or takes it back. The thread may still be at work with it.
    pub fn lend(&self, loaded: Option<Loaded>) {
        let before = std::mem::replace(&mut lock(&self.0.state).loaded, loaded);
        // Not under the lock: the last one to let go shuts the library down.
        drop(before);
    }
}

/// A tick's end of the thread.
pub(super) struct Fast {
    shared: Arc<Shared>,
}

impl Fast {
    pub fn start() -> io::Result<Fast> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new().name("nvml-now".to_owned()).spawn(move || work(&theirs))?;
        Ok(Fast { shared })
    }

    pub fn lender(&self) -> Lender {
        Lender(Arc::clone(&self.shared))
    }

    /// Asks, and takes over the newest answer there is.
    pub fn ask(&self, now_ns: i64, into: &mut Answer) {
        self.ask_for(now_ns, TICK_PATIENCE, into);
    }

    pub fn ask_for(&self, now_ns: i64, patience: Duration, into: &mut Answer) {
        let begin = Instant::now();
        let Ok(mut state) = self.shared.state.try_lock() else { return };
        // Who is late is not waited for twice.
        let prompt = state.answered == state.asked;
        state.asked += 1;
        state.waiting_since_ns.get_or_insert(now_ns);
        self.shared.wake.notify_one();
        while prompt
            && state.answered < state.asked
            && let Some(left) = patience.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())
        {
            state = self.shared.done.wait_timeout(state, left).unwrap_or_else(|broken| broken.into_inner()).0;
        }
        into.clone_from(&state.answer);
    }

    /// Since when a question has no answer.
    pub fn waiting_since_ns(&self) -> Option<i64> {
        self.shared.state.try_lock().ok()?.waiting_since_ns
    }

    pub fn cpu_ns(&self) -> i64 {
        self.shared.cpu_ns.load(Ordering::Relaxed)
    }
}

impl Drop for Fast {
    /// The thread is not waited for: it may be inside a driver that does not answer.
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.wake.notify_one();
    }
}

fn work(shared: &Shared) {
    let mut answer = Answer::default();
    let mut unknown: Vec<[i64; 2]> = Vec::new();
    loop {
        let (loaded, asked) = {
            let mut state = lock(&shared.state);
            while state.answered == state.asked && !state.stop {
                state = shared.wake.wait(state).unwrap_or_else(|broken| broken.into_inner());
            }
            if state.stop {
                let ours = state.loaded.take();
                drop(state);
                drop(ours);
                return;
            }
            (state.loaded.clone(), state.asked)
        };
        answer.cards.clear();
        let loading = loaded.as_ref().map_or(0, |loaded| loaded.number);
        if answer.loading != loading {
            answer.loading = loading;
            unknown.clear();
        }
        if let Some(loaded) = &loaded {
            unknown.resize(loaded.cards.len(), [0; 2]);
            let each = loaded.cards.iter().zip(&mut unknown);
            answer.cards.extend(each.map(|(facts, unknown)| read(&facts.device(&loaded.nvml), unknown)));
        }
        drop(loaded);
        answer.at_ns = clock::boottime_ns();
        shared.cpu_ns.store(clock::thread_cpu_ns(), Ordering::Relaxed);
        {
            let mut state = lock(&shared.state);
            std::mem::swap(&mut state.answer, &mut answer);
            answer.loading = state.answer.loading;
            state.answered = asked;
            state.waiting_since_ns = (state.asked > asked).then_some(state.answer.at_ns);
        }
        shared.done.notify_one();
    }
}

/// `unknown`: until when power and use are not asked for, because the card does not know them.
fn read(device: &Device<'_>, unknown: &mut [i64; 2]) -> Reading {
    let mut reading = Reading::NOTHING;
    let now_ns = clock::boottime_ns();
    let trouble = |error: &NvmlError| Trouble {
        text: error.to_string(),
        lost: is_lost(error),
        reload: needs_reload(error),
    };
    if unknown[0] <= now_ns {
        match device.power_usage() {
            Ok(mw) => reading.power = i64::from(mw),
            Err(error) if is_unsupported(&error) => unknown[0] = now_ns + ASK_AGAIN_NS,
            Err(error) => reading.trouble = Some(trouble(&error)),
        }
    }
    // A card that is lost keeps every caller waiting: one call is enough to know.
    if unknown[1] <= now_ns && !reading.trouble.as_ref().is_some_and(|trouble| trouble.lost) {
        match device.utilization_rates() {
            Ok(rates) => {
                reading.utilization = i64::from(rates.gpu) * 10;
                reading.utilization_memory = i64::from(rates.memory) * 10;
            }
            Err(error) if is_unsupported(&error) => unknown[1] = now_ns + ASK_AGAIN_NS,
            Err(error) => reading.trouble = Some(trouble(&error)),
        }
    }
    reading
}
