//! The thread that reads power and use for callers that must not block.
//!
//! A tick sends its request when it begins and takes the answer after all other sources: by then it is there,
//! without waiting. The thread has no timer of its own, since setting one costs a virtual machine 50 µs. A
//! driver that does not answer blocks only this thread: the next ticks do not wait and take what there is.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use met_host::clock;

use super::duty::Duty;
use super::library::{Lender, Loaded, lock};
use super::reading::{ASK_EVERY_NS, Answer, GpuGuard, Unknown, read_all};

/// A tick waits no longer for an answer. GPUs that are idle or cores that are busy make it late.
pub(super) const TICK_TIMEOUT: Duration = Duration::from_millis(2);
/// A thread that has been at one GPU for longer is replaced.
const KEPT_AFTER_NS: i64 = 500_000_000;

#[derive(Default)]
struct State {
    asked: u64,
    answered: u64,
    /// When the first question was put that has no answer yet.
    waiting_since_ns: Option<i64>,
    answer: Answer,
    /// A caller waits for the answer: a needless wake-up costs a call, too.
    waited_for: bool,
    duty: Duty,
    stop: bool,
}

struct Shared {
    lender: Lender,
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
    cpu_ns: AtomicI64,
}

/// What is to be expected of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Soon,
    /// The thread is blocked by a GPU, or busy with an earlier request.
    InVain,
}

/// A tick's end of the thread.
pub(super) struct Fast {
    shared: Arc<Shared>,
}

impl Fast {
    pub fn start(lender: Lender) -> io::Result<Fast> {
        let shared = Shared {
            lender,
            state: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
            cpu_ns: AtomicI64::new(0),
        };
        let fast = Fast { shared: Arc::new(shared) };
        fast.begin(0)?;
        Ok(fast)
    }

    fn begin(&self, crew: u64) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new().name("nvml-now".to_owned()).spawn(move || work(&shared, crew))?;
        Ok(())
    }

    /// Asks for a reading of every GPU, if there can be something new.
    pub fn ask(&self, now_ns: i64) -> Asked {
        let Ok(mut state) = self.shared.state.try_lock() else { return Asked::InVain };
        if state.answered == state.asked && now_ns - state.answer.at_ns < ASK_EVERY_NS {
            return Asked::Soon;
        }
        if let Some(crew) = state.duty.relief(now_ns, KEPT_AFTER_NS) {
            if self.begin(crew).is_err() {
                state.duty.no_relief(now_ns);
            }
            return Asked::InVain;
        }
        let is_free = state.answered == state.asked;
        state.asked += 1;
        state.waiting_since_ns.get_or_insert(now_ns);
        drop(state);
        self.shared.wake.notify_one();
        // A late thread is not waited for twice.
        if is_free { Asked::Soon } else { Asked::InVain }
    }

    /// Takes the answer; waits for it if it is to come soon.
    pub fn take(&self, asked: Asked, timeout: Duration, into: &mut Answer) {
        let begin = Instant::now();
        let Ok(mut state) = self.shared.state.try_lock() else { return };
        while asked == Asked::Soon
            && state.answered < state.asked
            && let Some(left) = timeout.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())
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
    let mut unknown = Unknown::new();
    let mut counted_ns = 0;
    while let Some((loaded, asked)) = wait_for_order(shared, crew) {
        let is_on_duty = read_all(loaded.as_ref(), &mut OnDuty { shared, crew }, &mut unknown, &mut answer);
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
        let state = lock(&shared.state);
        if state.stop || state.duty.crew != crew {
            let stop = state.stop;
            drop(state);
            if stop {
                shared.lender.lend(None);
            }
            return None;
        }
        if state.answered < state.asked {
            let asked = state.asked;
            drop(state);
            return Some((shared.lender.lent(), asked));
        }
        drop(shared.wake.wait(state));
    }
}

/// The thread on duty notes at which GPU it is.
struct OnDuty<'a> {
    shared: &'a Shared,
    crew: u64,
}

impl GpuGuard for OnDuty<'_> {
    fn enter(&mut self, _: usize, id: &Arc<str>, now_ns: i64) -> bool {
        lock(&self.shared.state).duty.enter(id, now_ns)
    }

    fn leave(&mut self, id: &Arc<str>) -> bool {
        lock(&self.shared.state).duty.leave(id, self.crew)
    }
}
