//! The thread for everything that takes milliseconds: loads the library, finds the GPUs, takes the expensive
//! readings. It works only while ticks request readings, and as often as its cost allows.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use met_host::clock;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::{Device, EventSet};

use super::activity::Monitor;
use super::duty::Duty;
use super::figures::{
    ACTIVITY_EVERY_MAX_NS, EVERY_MAX_NS, PERIODS_MAX, SlowGpu, USE_EVERY_MAX_NS, pass, read_activity,
    read_levels, read_pcie, read_use,
};
use super::library::{GpuFacts, Lender, Loaded, Shown, is_changed, load, lock};

/// One part in this many of a core may be spent: on levels and process lists, on use by process, on the energy
/// counter and what comes with it, on PCIe. Use by process is a sample, so most is spent on having many.
const LEVELS_COST_INVERSE: i64 = 5000;
const USE_COST_INVERSE: i64 = 2500;
const PASS_COST_INVERSE: i64 = 5000;
const PCIE_COST_INVERSE: i64 = 20_000;
const ACTIVITY_COST_INVERSE: i64 = 10_000;
/// A little less than a second: a tick per second finds new figures every time.
const EVERY_MIN_NS: i64 = 900_000_000;
const LEVELS_EVERY_MAX_NS: i64 = 5_000_000_000;
const PCIE_EVERY_MIN_NS: i64 = if cfg!(test) { 100_000_000 } else { 10_000_000_000 };
const PCIE_EVERY_MAX_NS: i64 = 300_000_000_000;
/// GPUs are partitioned, merged, lost and found again while they are read.
const LAYOUT_EVERY_NS: i64 = if cfg!(test) { 100_000_000 } else { 30_000_000_000 };
/// A missing driver is searched for this often.
const RELOAD_EVERY: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_millis(50);
/// While the library is loaded no GPU can be reset and no driver reloaded: it is unloaded when no readings are
/// requested.
const UNLOAD_AFTER_NS: i64 = if cfg!(test) { 1_500_000_000 } else { 180_000_000_000 };
/// A thread that has been at one GPU for longer is replaced. Some GPUs take a second to wake up.
const KEPT_AFTER_NS: i64 = if cfg!(test) { 500_000_000 } else { 5_000_000_000 };

#[derive(Default)]
pub(super) struct State {
    pub shown: Option<Shown>,
    /// Why nothing is loaded, once that was tried.
    pub failure: Option<String>,
    /// While the library is being loaded: since when.
    pub loading_since_ns: Option<i64>,
    pub figures: Vec<SlowGpu>,
    /// Counts passes.
    pub number: u64,
    /// When more is to be read.
    due_ns: i64,
    duty: Duty,
    asked: bool,
    /// When figures were asked for that are not there yet.
    pub asked_since_ns: Option<i64>,
    /// When a reading was last requested.
    looked_ns: i64,
    reload: bool,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
    cpu_ns: AtomicI64,
}

/// Our end of the thread.
pub(super) struct Slow {
    shared: Arc<Shared>,
    worker: Worker,
}

/// What the thread works with.
#[derive(Clone)]
struct Worker {
    shared: Arc<Shared>,
    library: Option<PathBuf>,
    lender: Lender,
    /// Between two looks, as far as that is known.
    interval_ns: i64,
    /// Whose turn it is: another one's if a GPU keeps this thread.
    crew: u64,
    /// What of its CPU time is counted.
    noted_cpu_ns: Arc<AtomicI64>,
}

/// A kind of reading: when it is due again, by what it cost.
struct Kind {
    cost_inverse: i64,
    longest_ns: i64,
    due_ns: i64,
    begin_cpu_ns: i64,
}

impl Kind {
    fn new(cost_inverse: i64, longest_ns: i64) -> Kind {
        Kind { cost_inverse, longest_ns, due_ns: 0, begin_cpu_ns: 0 }
    }

    fn is_due(&self) -> bool {
        clock::boottime_ns() >= self.due_ns
    }

    fn begin(&mut self) {
        self.begin_cpu_ns = clock::thread_cpu_ns();
    }

    /// Says after which time it may be read again.
    fn end(&mut self) -> i64 {
        let cost_ns = clock::thread_cpu_ns() - self.begin_cpu_ns;
        let every_ns = (cost_ns * self.cost_inverse).clamp(EVERY_MIN_NS, self.longest_ns);
        self.due_ns = clock::boottime_ns() + every_ns;
        every_ns
    }
}

/// Event sets for critical errors, by GPU number; `None` where the driver refused. One for each GPU: a
/// refusal does not affect the others, and a lost GPU need not be queried for its identity.
type Faults<'a> = BTreeMap<u32, Option<EventSet<'a>>>;

/// What is read of the GPUs of one loading, and when.
struct Rounds<'a> {
    figures: Vec<SlowGpu>,
    faults: Faults<'a>,
    levels: Kind,
    usage: Kind,
    pass: Kind,
    activity: Kind,
    monitors: BTreeMap<u32, Monitor<'a>>,
    pcie_due_ns: i64,
    layout_due_ns: i64,
}

impl Rounds<'_> {
    fn new(figures: Vec<SlowGpu>) -> Self {
        Rounds {
            figures,
            faults: Faults::new(),
            levels: Kind::new(LEVELS_COST_INVERSE, LEVELS_EVERY_MAX_NS),
            usage: Kind::new(USE_COST_INVERSE, USE_EVERY_MAX_NS),
            pass: Kind::new(PASS_COST_INVERSE, EVERY_MAX_NS),
            activity: Kind::new(ACTIVITY_COST_INVERSE, ACTIVITY_EVERY_MAX_NS),
            monitors: BTreeMap::new(),
            pcie_due_ns: 0,
            layout_due_ns: clock::boottime_ns() + LAYOUT_EVERY_NS,
        }
    }
}

/// Why the library is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stop,
    Reload,
    /// No readings are requested.
    Unused,
    /// Another thread goes on with it.
    Relieved,
}

impl Slow {
    pub fn start(library: Option<PathBuf>, lender: Lender, interval: Duration) -> io::Result<Slow> {
        let shared = Arc::new(Shared::default());
        lock(&shared.state).loading_since_ns = Some(clock::boottime_ns());
        let interval_ns = i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX / 16);
        let worker = Worker {
            shared: Arc::clone(&shared),
            library,
            lender,
            interval_ns,
            crew: 0,
            noted_cpu_ns: Arc::default(),
        };
        worker.clone().begin()?;
        Ok(Slow { shared, worker })
    }

    /// Waits until `enough` and says whether that came in time.
    pub fn wait_until(&self, timeout: Duration, enough: impl Fn(&State) -> bool) -> bool {
        let begin = Instant::now();
        let mut state = lock(&self.shared.state);
        while !enough(&state) {
            let Some(left) = timeout.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else {
                return false;
            };
            state = self.shared.done.wait_timeout(state, left).unwrap_or_else(|broken| broken.into_inner()).0;
        }
        true
    }

    /// Why there is nothing to be read, if that is known.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.state).failure.clone()
    }

    /// Takes the current figures and requests more if they are due. `None`: the thread is just writing.
    pub fn glance(&self, now_ns: i64) -> Option<MutexGuard<'_, State>> {
        let mut state = self.shared.state.try_lock().ok()?;
        state.looked_ns = now_ns;
        if now_ns >= state.due_ns {
            self.ask(&mut state, now_ns);
        }
        if let Some(crew) = state.duty.relief(now_ns, KEPT_AFTER_NS)
            && (Worker { crew, noted_cpu_ns: Arc::default(), ..self.worker.clone() }).begin().is_err()
        {
            state.duty.no_relief(now_ns);
        }
        Some(state)
    }

    fn ask(&self, state: &mut State, now_ns: i64) {
        if !state.asked {
            state.asked = true;
            state.asked_since_ns.get_or_insert(now_ns);
            self.shared.wake.notify_one();
        }
    }

    /// Asks for more though it is not time yet; false if the thread is at it, with what it has read already.
    pub fn hurry(&self, now_ns: i64) -> bool {
        let Ok(mut state) = self.shared.state.try_lock() else { return false };
        let is_free = !state.asked;
        self.ask(&mut state, now_ns);
        is_free
    }

    pub fn reload(&self) {
        if let Ok(mut state) = self.shared.state.try_lock() {
            state.reload = true;
            self.shared.wake.notify_one();
        }
    }

    pub fn cpu_ns(&self) -> i64 {
        self.shared.cpu_ns.load(Ordering::Relaxed)
    }
}

impl Drop for Slow {
    /// The thread is not waited for: it may be inside a driver that does not answer.
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.wake.notify_all();
    }
}

impl Worker {
    fn begin(self) -> io::Result<()> {
        std::thread::Builder::new().name("nvml".to_owned()).spawn(move || self.work())?;
        Ok(())
    }

    fn work(&self) {
        // A replacement takes over what the blocked thread has loaded.
        let mut lent = self.lender.lent().filter(|_| self.crew > 0);
        let mut number = lent.as_ref().map_or(0, |loaded| loaded.number);
        loop {
            let loaded = lent.take().or_else(|| {
                number += 1;
                self.load(number)
            });
            let end = match &loaded {
                Some(loaded) => self.serve(loaded),
                None if self.pause(RELOAD_EVERY) => End::Stop,
                None => End::Reload,
            };
            if end != End::Relieved {
                self.lender.lend(None);
            }
            // Never under a lock: this may shut the library down.
            drop(loaded);
            let stop = match end {
                End::Stop | End::Relieved => true,
                // Users of the old library release it meanwhile: only then it is reloaded.
                End::Reload => self.pause(SETTLE),
                End::Unused => self.pause(Duration::ZERO),
            };
            if stop {
                return;
            }
        }
    }

    fn load(&self, number: u64) -> Option<Loaded> {
        lock(&self.shared.state).loading_since_ns = Some(clock::boottime_ns());
        let opened = load(self.library.as_deref(), number);
        self.lender.lend(opened.as_ref().ok().cloned());
        let mut state = lock(&self.shared.state);
        let shown = |loaded: &Loaded| Shown {
            number,
            gpus: Arc::clone(&loaded.gpus),
            lost: Arc::clone(&loaded.lost),
        };
        state.shown = opened.as_ref().ok().map(shown);
        state.failure = opened.as_ref().err().cloned();
        (state.reload, state.loading_since_ns, state.asked_since_ns) = (false, None, None);
        (state.due_ns, state.figures) = (0, Vec::new());
        state.looked_ns = clock::boottime_ns();
        drop(state);
        self.note_cost();
        self.shared.done.notify_all();
        opened.ok()
    }

    fn note_cost(&self) {
        let spent_ns = clock::thread_cpu_ns();
        let before_ns = self.noted_cpu_ns.swap(spent_ns, Ordering::Relaxed);
        self.shared.cpu_ns.fetch_add(spent_ns - before_ns, Ordering::Relaxed);
    }

    /// Waits until it is time to try again; true when asked to stop.
    fn pause(&self, time: Duration) -> bool {
        let begin = Instant::now();
        let mut state = lock(&self.shared.state);
        // Without requests there is no hurry.
        while !state.stop && (begin.elapsed() < time || !state.asked) {
            let left = time.saturating_sub(begin.elapsed()).max(Duration::from_millis(10));
            let wake = &self.shared.wake;
            state = match state.asked {
                true => wake.wait_timeout(state, left).unwrap_or_else(|broken| broken.into_inner()).0,
                false => wake.wait(state).unwrap_or_else(|broken| broken.into_inner()),
            };
        }
        state.asked = false;
        state.stop
    }

    /// Sleeps until figures are requested, or there is a reason to unload the library.
    fn wait_for_order(&self) -> Option<End> {
        let unload_after_ns = UNLOAD_AFTER_NS.max(PERIODS_MAX * self.interval_ns);
        let mut state = lock(&self.shared.state);
        while !(state.asked || state.stop || state.reload) {
            let unused_ns = clock::boottime_ns() - state.looked_ns;
            let Some(left_ns) = u64::try_from(unload_after_ns - unused_ns).ok().filter(|&left| left > 0)
            else {
                (state.shown, state.due_ns) = (None, 0);
                return Some(End::Unused);
            };
            let left = Duration::from_nanos(left_ns);
            state = self.shared.wake.wait_timeout(state, left).unwrap_or_else(|broken| broken.into_inner()).0;
        }
        if state.stop || state.reload {
            (state.shown, state.asked, state.due_ns) = (None, false, 0);
            return Some(if state.stop { End::Stop } else { End::Reload });
        }
        None
    }

    /// Takes the expensive readings on request, until there is a reason to unload the library.
    fn serve(&self, loaded: &Loaded) -> End {
        let known = lock(&self.shared.state).figures.clone();
        let figures = match known.len() == loaded.gpus.len() {
            true => known,
            false => loaded.gpus.iter().map(|_| SlowGpu::default()).collect(),
        };
        let mut rounds = Rounds::new(figures);
        loop {
            if let Some(end) = self.wait_for_order() {
                return end;
            }
            if self.round(loaded, &mut rounds).is_err() {
                return End::Relieved;
            }
        }
    }

    /// Makes a driver call that normally does not block. `Err`: it took so long that another thread is on duty.
    fn ask<T>(&self, what: &Arc<str>, question: impl FnOnce() -> T) -> Result<Option<T>, Relieved> {
        if !lock(&self.shared.state).duty.enter(what, clock::boottime_ns()) {
            return Ok(None);
        }
        let answer = question();
        match lock(&self.shared.state).duty.leave(what, self.crew) {
            true => Ok(Some(answer)),
            false => Err(Relieved),
        }
    }

    /// Queries each GPU that blocks no thread.
    fn each(
        &self,
        loaded: &Loaded,
        figures: &mut [SlowGpu],
        mut question: impl FnMut(&GpuFacts, &Device<'_>, &mut SlowGpu),
    ) -> Result<(), Relieved> {
        for (facts, figures) in loaded.gpus.iter().zip(figures) {
            let answer =
                self.ask(&facts.id, || question(facts, &facts.device(&loaded.nvml), &mut *figures))?;
            figures.silent = answer.is_none();
        }
        Ok(())
    }

    /// Whether there are other GPUs or parts of GPUs by now.
    fn has_changed(&self, loaded: &Loaded, figures: &mut [SlowGpu]) -> Result<bool, Relieved> {
        let count = self.ask(&"the driver".into(), || loaded.nvml.device_count().unwrap_or(0))?;
        let mut changed = loaded.has_answered();
        for index in loaded.unread(count.unwrap_or(0)) {
            changed |= self.ask(&format!("GPU {index}").into(), || loaded.may_be_read(index))? == Some(true);
        }
        self.each(loaded, figures, |facts, _, _| changed |= is_changed(loaded, facts))?;
        Ok(changed)
    }

    /// Reads what is due.
    fn round<'a>(&self, loaded: &'a Loaded, rounds: &mut Rounds<'a>) -> Result<(), Relieved> {
        let Rounds {
            figures,
            faults,
            levels,
            usage,
            pass: passes,
            activity,
            monitors,
            pcie_due_ns,
            layout_due_ns,
        } = rounds;
        if clock::boottime_ns() >= *layout_due_ns {
            *layout_due_ns = clock::boottime_ns() + LAYOUT_EVERY_NS;
            let changed = self.has_changed(loaded, figures)?;
            lock(&self.shared.state).reload |= changed;
            // Found before the next round.
            return Ok(());
        }
        self.listen(loaded, figures, faults)?;
        let mut buffer = Vec::new();
        levels.begin();
        self.each(loaded, figures, |facts, device, figures| {
            read_levels(facts, device, &mut buffer, figures);
        })?;
        let levels_every_ns = levels.end();
        let passed = passes.is_due();
        // Use is read with the counter: the reading that ends a window says who computed in it.
        if usage.is_due() || passed {
            usage.begin();
            self.each(loaded, figures, |_, device, figures| read_use(device, figures))?;
            usage.end();
        }
        if passed {
            passes.begin();
            self.each(loaded, figures, |facts, device, figures| {
                pass(device, figures);
                take_faults(faults.get(&facts.index), figures);
            })?;
            passes.end();
        } else if figures.iter().any(|figures| figures.levels.is_lost) {
            // A job does not outlive the loss of its GPU for long: the cause is read at once.
            self.each(loaded, figures, |facts, _, figures| {
                take_faults(faults.get(&facts.index).filter(|_| figures.levels.is_lost), figures);
            })?;
        }
        if activity.is_due() {
            activity.begin();
            self.each(loaded, figures, |facts, _, figures| {
                read_activity(facts, &loaded.nvml, monitors.entry(facts.index).or_default(), figures);
            })?;
            activity.end();
        }
        self.publish(figures, levels_every_ns);
        // The first pass is for waiting callers; what takes 20 ms and more comes with a later one.
        let now_ns = clock::boottime_ns();
        if now_ns < *pcie_due_ns {
            return Ok(());
        }
        if *pcie_due_ns == 0 {
            *pcie_due_ns = now_ns + PCIE_EVERY_MIN_NS;
            return Ok(());
        }
        let begin_ns = clock::thread_cpu_ns();
        self.each(loaded, figures, |_, device, figures| read_pcie(device, figures))?;
        let cost_ns = clock::thread_cpu_ns() - begin_ns;
        *pcie_due_ns = now_ns + (cost_ns * PCIE_COST_INVERSE).clamp(PCIE_EVERY_MIN_NS, PCIE_EVERY_MAX_NS);
        Ok(())
    }

    /// Hands the figures over and says when more may be read.
    fn publish(&self, figures: &mut [SlowGpu], levels_every_ns: i64) {
        for gpu in figures.iter_mut() {
            // A tick takes over what the tick before has asked for.
            gpu.levels.age_max_ns = PERIODS_MAX * levels_every_ns.max(self.interval_ns);
        }
        let mut state = lock(&self.shared.state);
        state.figures.clear();
        state.figures.extend_from_slice(figures);
        state.number += 1;
        state.due_ns = clock::boottime_ns() + levels_every_ns;
        (state.asked, state.asked_since_ns) = (false, None);
        drop(state);
        self.note_cost();
        self.shared.done.notify_all();
    }

    /// Subscribes to critical errors of each GPU not yet subscribed to.
    fn listen<'a>(
        &self,
        loaded: &'a Loaded,
        figures: &mut [SlowGpu],
        faults: &mut Faults<'a>,
    ) -> Result<(), Relieved> {
        if faults.len() == loaded.gpus.len() {
            return Ok(());
        }
        self.each(loaded, figures, |facts, _, figures| {
            faults.entry(facts.index).or_insert_with(|| {
                let set = loaded.nvml.create_event_set().ok()?;
                let device = facts.device(&loaded.nvml);
                let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()?;
                figures.faults.count.get_or_insert(0);
                Some(set)
            });
        })
    }
}

/// Another thread is on duty.
struct Relieved;

fn take_faults(faults: Option<&Option<EventSet<'_>>>, figures: &mut SlowGpu) {
    const EVENTS_MAX: usize = 64;
    let Some(Some(faults)) = faults else { return };
    for _ in 0..EVENTS_MAX {
        let Ok(event) = faults.wait(0) else { return };
        *figures.faults.count.get_or_insert(0) += 1;
        if let Some(XidError::Value(number)) = event.event_data {
            figures.faults.last = i64::try_from(number).ok();
        }
    }
}
