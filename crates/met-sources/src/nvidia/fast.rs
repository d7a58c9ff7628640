//! The thread that reads what changes all the time: power and use.
//!
//! A tick asks when it begins and takes the answer when all else is read: by then it is there, and nobody has
//! waited. The thread has no timer of its own, whose setting alone costs a virtual machine 50 µs. A driver that
//! does not answer keeps this thread and nobody else: the next ticks do not wait and take what there is.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use met_core::MISSING;
use met_core::gpu::card;
use met_host::clock;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::duty::Duty;
use super::library::Loaded;
use super::slow::lock;
use super::{NO_ANSWER, is_lost, is_unsupported, needs_reload};

/// A tick waits no longer for an answer. Cards that are idle or cores that are busy make it late.
pub(super) const TICK_PATIENCE: Duration = Duration::from_millis(2);
/// Nothing new is told by who is asked sooner: a card's power is its mean of a second, its use that of 0.2 to 1 s.
const ASK_EVERY_NS: i64 = if cfg!(test) { 0 } else { 450_000_000 };
/// Who has been at one card for longer is relieved.
const KEPT_AFTER_NS: i64 = 500_000_000;
/// What a card says it does not know is asked for again: during a reset it says so of everything.
const ASK_AGAIN_NS: i64 = if cfg!(test) { 100_000_000 } else { 60_000_000_000 };

/// What a card showed when it was last asked.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub at_ns: i64,
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

impl Trouble {
    pub fn of_silent() -> Trouble {
        Trouble { text: NO_ANSWER.to_owned(), lost: false, reload: false }
    }
}

impl Reading {
    const NOTHING: Reading = Reading {
        at_ns: 0,
        power: MISSING,
        utilization: MISSING,
        utilization_memory: MISSING,
        trouble: None,
    };

    /// Of a card that keeps whoever asks it.
    fn of_silent(at_ns: i64) -> Reading {
        Reading { at_ns, trouble: Some(Trouble::of_silent()), ..Reading::NOTHING }
    }

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
    /// Somebody waits for the answer: waking nobody costs a call, too.
    waited_for: bool,
    duty: Duty,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
    cpu_ns: AtomicI64,
}

/// What is to be expected of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Soon,
    /// The thread is kept by a card, or by what it was asked before.
    InVain,
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

    /// What is lent now.
    pub fn lent(&self) -> Option<Loaded> {
        lock(&self.0.state).loaded.clone()
    }
}

/// A tick's end of the thread.
pub(super) struct Fast {
    shared: Arc<Shared>,
}

impl Fast {
    pub fn start() -> io::Result<Fast> {
        let fast = Fast { shared: Arc::new(Shared::default()) };
        fast.begin(0)?;
        Ok(fast)
    }

    fn begin(&self, crew: u64) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new().name("nvml-now".to_owned()).spawn(move || work(&shared, crew))?;
        Ok(())
    }

    pub fn lender(&self) -> Lender {
        Lender(Arc::clone(&self.shared))
    }

    /// Asks for a reading of every card, if there can be something new.
    pub fn ask(&self, now_ns: i64) -> Asked {
        let Ok(mut state) = self.shared.state.try_lock() else { return Asked::InVain };
        if state.answered == state.asked && now_ns - state.answer.at_ns < ASK_EVERY_NS {
            return Asked::Soon;
        }
        if let Some(crew) = state.duty.relief(now_ns, KEPT_AFTER_NS) {
            drop(state);
            if self.begin(crew).is_err() {
                lock(&self.shared.state).duty.no_relief();
            }
            return Asked::InVain;
        }
        let is_free = state.answered == state.asked;
        state.asked += 1;
        state.waiting_since_ns.get_or_insert(now_ns);
        drop(state);
        self.shared.wake.notify_one();
        // Who is late is not waited for twice.
        if is_free { Asked::Soon } else { Asked::InVain }
    }

    /// Takes the answer; waits for it if it is to come soon.
    pub fn take(&self, asked: Asked, patience: Duration, into: &mut Answer) {
        let begin = Instant::now();
        let Ok(mut state) = self.shared.state.try_lock() else { return };
        while asked == Asked::Soon
            && state.answered < state.asked
            && let Some(left) = patience.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())
        {
            state.waited_for = true;
            state = self.shared.done.wait_timeout(state, left).unwrap_or_else(|broken| broken.into_inner()).0;
            state.waited_for = false;
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
        self.shared.wake.notify_all();
    }
}

fn work(shared: &Shared, crew: u64) {
    let mut answer = Answer::default();
    let mut unknown: Vec<[i64; 2]> = Vec::new();
    let mut counted_ns = 0;
    while let Some((loaded, asked)) = wait_for_order(shared, crew) {
        let loading = loaded.as_ref().map_or(0, |loaded| loaded.number);
        if answer.loading != loading {
            answer.loading = loading;
            unknown.clear();
        }
        let is_on_duty = read_all(shared, crew, loaded.as_ref(), &mut unknown, &mut answer);
        // Never under the lock: the last one to let go shuts the library down.
        drop(loaded);
        let spent_ns = clock::thread_cpu_ns();
        shared.cpu_ns.fetch_add(spent_ns - counted_ns, Ordering::Relaxed);
        counted_ns = spent_ns;
        let mut state = lock(&shared.state);
        if !is_on_duty || state.duty.crew != crew {
            return;
        }
        answer.at_ns = clock::boottime_ns();
        std::mem::swap(&mut state.answer, &mut answer);
        answer.loading = state.answer.loading;
        let waited_for = state.waited_for;
        state.answered = asked;
        state.waiting_since_ns = (state.asked > asked).then_some(state.answer.at_ns);
        drop(state);
        if waited_for {
            shared.done.notify_one();
        }
    }
}

/// Waits until a tick asks; the number of the question, and what to ask. `None`: to stop.
fn wait_for_order(shared: &Shared, crew: u64) -> Option<(Option<Loaded>, u64)> {
    loop {
        let mut state = lock(&shared.state);
        if state.stop || state.duty.crew != crew {
            let ours = if state.stop { state.loaded.take() } else { None };
            drop(state);
            drop(ours);
            return None;
        }
        if state.answered < state.asked {
            return Some((state.loaded.clone(), state.asked));
        }
        drop(shared.wake.wait(state));
    }
}

/// Reads every card. False: one of them took so long that somebody else has gone on.
fn read_all(
    shared: &Shared,
    crew: u64,
    loaded: Option<&Loaded>,
    unknown: &mut Vec<[i64; 2]>,
    answer: &mut Answer,
) -> bool {
    answer.cards.clear();
    let Some(loaded) = loaded else { return true };
    unknown.resize(loaded.cards.len(), [0; 2]);
    for (facts, unknown) in loaded.cards.iter().zip(unknown) {
        let now_ns = clock::boottime_ns();
        if !lock(&shared.state).duty.enter(&facts.id, now_ns) {
            answer.cards.push(Reading::of_silent(now_ns));
            continue;
        }
        let reading = read(&facts.device(&loaded.nvml), unknown);
        if !lock(&shared.state).duty.leave(&facts.id, crew) {
            return false;
        }
        answer.cards.push(reading);
    }
    true
}

/// `unknown`: until when power and use are not asked for, because the card does not know them.
fn read(device: &Device<'_>, unknown: &mut [i64; 2]) -> Reading {
    let now_ns = clock::boottime_ns();
    let mut reading = Reading { at_ns: now_ns, ..Reading::NOTHING };
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
