//! The sampling thread: it ticks, and between ticks does what it is asked to. It never touches a disk.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use met_core::energy::Balance;
use met_core::energy::emission::Factor;
use met_core::energy::idle::LearnedIdle;
use met_core::event;
use met_core::gpu_holding::Holding;
use met_core::job::{CgroupPaths, JobKey, ProcessId, Record};
use met_core::ladder::Cadence;
use met_core::series::{Course, PackedSamples};
use met_host::{Host, clock};
use met_sinks::bus::Ticker;
use met_sources::{Options, Pulse};
use met_store::{Device, NodePart};

use super::idle_readings::Rest;
use super::last_tick::Board;
use super::memory_release;
use super::unflushed_samples::{self, Wanted};
use super::watchdog::{SURE_AFTER, Watchdog};
use crate::node_energy::Charged;
use crate::node_series::NodeCourse;
use crate::passed_counters::{Budget, PassedCounters};
use crate::sampler::{EventsAsked, Known, Sampled, Sampler};
use met_config::Config;
use met_core::energy::EnergyWindow;
use met_query::live::Live;
use met_query::protocol::{SourceStatus, source_problem};

/// The sampler answers between two ticks, which take milliseconds. Something in the machine may hang all the
/// same, a file system or a driver, and must not keep the daemon from answering and ending.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// One that did not answer is not waited for again until it does.
const ANSWER_WITHIN_WHEN_STUCK: Duration = Duration::from_millis(20);
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// So long the main thread waits for a tick to end. A client that starts a job waits for 200 ms.
const READY_WITHIN: Duration = Duration::from_millis(100);

/// Readings of a machine without jobs this far apart do not keep their code in memory.
const GIVE_BACK_FROM: Duration = Duration::from_secs(10);

const READY_LOOK: Duration = Duration::from_micros(500);

/// A tick that did not end in time: when it began, by the monotonic clock, and when that was noticed.
#[derive(Clone, Copy)]
struct Delay {
    since_ns: i64,
    noticed: Instant,
}

/// The sampling thread does not answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the sampling thread has not answered for {} s: a source is blocked", ANSWER_WITHIN.as_secs())]
pub struct Stuck;

/// What the sampling thread is to do between two ticks.
type Order = Box<dyn FnOnce(&mut Worker) + Send>;

/// What was sampled since it was last taken out.
#[derive(Default)]
pub struct Drained {
    pub jobs: Vec<(JobKey, PackedSamples)>,
    /// Cards by uuid, and what is known of each.
    pub cards: Vec<(String, Course)>,
    pub devices: Vec<Device>,
    /// Parts of the machine by their tables and labels.
    pub node: Vec<NodeCourse>,
    /// What the machine uses doing nothing.
    pub idle: Vec<LearnedIdle>,
}

/// What was taken out for somebody who had given up waiting: it is for the next one.
#[derive(Default)]
struct Undelivered {
    drained: Drained,
    settled: Vec<(JobKey, Charged)>,
}

impl Undelivered {
    fn hand_over(&mut self, fresh: Drained, to: &SyncSender<Drained>) {
        let mut all = std::mem::take(&mut self.drained);
        all.jobs.extend(fresh.jobs);
        all.cards.extend(fresh.cards);
        all.devices = fresh.devices;
        all.idle = fresh.idle;
        all.node.extend(fresh.node);
        if let Err(mpsc::SendError(kept)) = to.send(all) {
            self.drained = kept;
        }
    }

    /// The samples of a job that ends: a later drain would bring them behind those of its end.
    fn take_of(&mut self, key: &JobKey) -> Vec<(JobKey, PackedSamples)> {
        let is_of = |(of, _): &mut (JobKey, PackedSamples)| event::of_series_key(of).0.as_ref() == key;
        self.drained.jobs.extract_if(.., is_of).collect()
    }

    fn hand_over_settled(&mut self, fresh: Vec<(JobKey, Charged)>, to: &SyncSender<Vec<(JobKey, Charged)>>) {
        let mut all = std::mem::take(&mut self.settled);
        all.extend(fresh);
        if let Err(mpsc::SendError(kept)) = to.send(all) {
            self.settled = kept;
        }
    }
}

/// The other threads' end of the sampler.
pub struct Sampling {
    orders: Arc<Sender<Order>>,
    pub(super) thread: Option<JoinHandle<()>>,
    stuck: Cell<bool>,
    delay: Cell<Option<Delay>>,
    /// Its ticks take longer than the main thread waits.
    is_slow: Cell<bool>,
    /// The figures of jobs, as it last told them to a reader.
    live: RefCell<HashMap<JobKey, Live>>,
    pub(super) watchdog: Watchdog,
    /// Of counters that supervisors pass, also of those that a blocked thread holds.
    pub(super) counter_budget: Budget,
}

impl Sampling {
    /// Pins what it sees to the board and hands rows to the ticker, if there are any; then it watches the machine
    /// without jobs, too.
    pub fn start(
        host: Host,
        config: &Config,
        board: Option<Arc<Board>>,
        ticker: Option<Ticker>,
    ) -> io::Result<Sampling> {
        let orders = Arc::new(mpsc::channel().0);
        let watchdog = Watchdog::new(config.sampling.shortest());
        let (stuck, delay, is_slow) = (Cell::new(false), Cell::new(None), Cell::new(false));
        let live = RefCell::default();
        let counter_budget = Budget::of_process();
        let mut sampling =
            Sampling { orders, thread: None, stuck, delay, is_slow, live, watchdog, counter_budget };
        sampling.begin(host, config, board, ticker)?;
        Ok(sampling)
    }

    /// Starts the thread, or another one in its place: whoever takes orders from the channel of before is told
    /// nothing more. It opens the sources itself, since that may hang, too.
    pub(super) fn begin(
        &mut self,
        host: Host,
        config: &Config,
        board: Option<Arc<Board>>,
        ticker: Option<Ticker>,
    ) -> io::Result<()> {
        let (orders, receiver) = mpsc::channel();
        let (config, options) = (config.clone(), self.watchdog.options(config));
        self.orders = Arc::new(orders);
        if let Some(board) = &board {
            ask_for_pages(board, &self.orders);
        }
        self.stuck.set(false);
        self.delay.set(None);
        self.is_slow.set(false);
        let work = move || {
            options.pulse.begin();
            let mut sampler = Sampler::with(host, config.sampling.shortest(), &config, &options);
            sampler.set_cadence(config.sampling.cadence());
            if board.is_some() || ticker.is_some() {
                sampler.watch_node();
            }
            Worker::new(sampler).work(&receiver, board.as_deref(), ticker.as_ref(), &options.pulse);
        };
        self.thread = Some(std::thread::Builder::new().name("sampler".to_owned()).spawn(work)?);
        Ok(())
    }

    /// Begins to sample a job; `before` is what an earlier daemon saw of it.
    pub fn add(&self, record: &Record, before: Option<Course>) {
        let record = record.clone();
        self.order(move |worker| worker.add(&record, before.as_ref()));
    }

    /// Passes on what is known of GPUs, before the first job.
    pub fn recall_devices(&self, devices: Vec<Device>) {
        self.order(|worker| worker.sampler.gpus.recall(devices));
    }

    /// Passes on what was learned of idle power, before the first job.
    pub fn recall_idle(&self, learned: &[LearnedIdle]) {
        let learned = learned.to_vec();
        self.order(|worker| worker.sampler.energy().recall_idle(learned));
    }

    /// Adds a process to a job that is known by its processes.
    pub fn add_root(&self, key: &JobKey, process: ProcessId) {
        self.change(key, move |sampler, slot| sampler.add_root(slot, process));
    }

    /// Reads one more directory of a job.
    pub fn add_cgroup(&self, key: &JobKey, paths: CgroupPaths) {
        self.change(key, |sampler, slot| sampler.add_cgroup(slot, paths));
    }

    /// One of several directories of a job is gone; `cpu_ns` is what was used in it.
    pub fn leave_cgroup(&self, key: &JobKey, paths: CgroupPaths, cpu_ns: Option<i64>) {
        self.change(key, move |sampler, slot| sampler.leave_cgroup(slot, &paths, cpu_ns));
    }

    /// Sets what a job was given, which may be known only after it began.
    pub fn allocate(&self, record: &Record) {
        if record.allocated.cpus.or(record.requested.cpus).is_some() {
            let known = record.clone();
            self.change(&record.key, move |sampler, slot| sampler.energy().hold(slot, &known));
        }
    }

    /// Sets the first process of a job that was found before it had one, and the GPUs that this was given.
    pub fn set_main(&self, key: &JobKey, main: ProcessId, holdings: Vec<Holding>) {
        self.change(key, move |sampler, slot| sampler.set_main(slot, main, holdings));
    }

    /// Counts the events of a job in a directory that was made for that.
    pub fn count_in(&self, key: &JobKey, path: PathBuf) {
        self.change(key, move |sampler, slot| sampler.count_in(slot, &path));
    }

    /// Reads the counters that a supervisor has opened. What they count is the supervisor's claim, as all of its record.
    pub fn count_by(&self, key: &JobKey, passed: PassedCounters) {
        self.change(key, move |sampler, slot| sampler.count_by(slot, passed));
    }

    /// Continues a job under another name.
    pub fn rename(&self, old: &JobKey, new: &JobKey) {
        let (old, new) = (old.clone(), new.clone());
        self.order(move |worker| {
            if let Some(slot) = worker.slots.remove(&old) {
                worker.sampler.rename(slot, &new);
                worker.slots.insert(new, slot);
            }
        });
    }

    /// Ends a job.
    pub fn remove(&self, key: &JobKey, known: Known) -> Result<Option<Sampled>, Stuck> {
        self.live.borrow_mut().remove(key);
        let key = key.clone();
        self.ask(move |worker| {
            let mut sampled = worker.sampler.remove(worker.slots.remove(&key)?, known)?;
            sampled.put_before(worker.undelivered.take_of(&key));
            Some(sampled)
        })
    }

    /// Jobs that are over and whose energy is known since the last call.
    pub fn settled(&self) -> Vec<(JobKey, Charged)> {
        self.settle(Sampler::take_settled)
    }

    /// The same for all that are over, by the meters as they are read now.
    pub fn settle_now(&self) -> Vec<(JobKey, Charged)> {
        self.settle(Sampler::settle_now)
    }

    fn settle(&self, settled: fn(&mut Sampler) -> Vec<(JobKey, Charged)>) -> Vec<(JobKey, Charged)> {
        self.ask_for(move |worker, reply| {
            let fresh = settled(&mut worker.sampler);
            worker.undelivered.hand_over_settled(fresh, &reply);
        })
        .unwrap_or_default()
    }

    /// Whose the node's energy was in the last window.
    pub fn energy_window(&self) -> Option<EnergyWindow> {
        self.ask(|worker| worker.sampler.energy().now()).ok().flatten()
    }

    /// What the machine uses when idle, as far as it is known.
    pub fn learned_idle(&self) -> Vec<LearnedIdle> {
        self.ask(|worker| worker.sampler.energy().learned_idle()).unwrap_or_default()
    }

    /// Whether all energy that meters counted is booked.
    pub fn balance(&self) -> Option<Balance> {
        self.ask(|worker| worker.sampler.energy().balance()).ok().flatten()
    }

    /// What a kilowatt hour emits from now on.
    pub fn set_factor(&self, factor: Factor) {
        self.order(|worker| worker.sampler.energy().set_factor(factor));
    }

    /// Samples as often as this says from now on.
    pub fn set_cadence(&self, cadence: Cadence) {
        self.watchdog.set_interval(cadence.shortest());
        self.order(move |worker| worker.sampler.set_cadence(cadence));
    }

    /// Somebody asks for the figures of jobs.
    pub(super) fn note_interest(&self, keys: Vec<JobKey>) {
        self.order(move |worker| {
            for slot in keys.iter().filter_map(|key| worker.slots.get(key)) {
                worker.sampler.note_interest(*slot);
            }
        });
    }

    /// Counts other events from now on; says what cannot be counted.
    pub fn set_events(&self, asked: EventsAsked, options: Options) -> Option<String> {
        self.ask(move |worker| worker.sampler.set_events(asked, &options)).ok().flatten()
    }

    /// The same without waiting for what cannot be counted.
    pub fn tell_events(&self, asked: EventsAsked, options: Options) {
        self.order(move |worker| drop(worker.sampler.set_events(asked, &options)));
    }

    /// Reads a source again that was left out.
    pub fn reopen(&self, source: &'static str, options: Options) {
        self.order(move |worker| worker.sampler.reopen(source, &options));
    }

    /// Takes up what another file says, other than period and events.
    pub fn reconfigure(&self, before: Config, config: Config) {
        self.order(move |worker| worker.reconfigure(&before, &config));
    }

    /// Collects the series of the machine, or does not, from now on.
    pub fn keep_node(&self, keep: bool) {
        self.order(move |worker| worker.sampler.machine.keep_series(keep));
    }

    /// The samples since the last call.
    pub fn drain(&self) -> Drained {
        self.ask_for(|worker, reply| worker.drain(&reply)).unwrap_or_default()
    }

    /// Copies of the samples that the next [`Sampling::drain`] takes out.
    pub(super) fn peek(&self, wanted: Wanted) -> Vec<Course> {
        self.glance(move |worker| {
            unflushed_samples::peek(&wanted, &worker.sampler, &worker.slots, &worker.undelivered.drained)
        })
        .unwrap_or_default()
    }

    /// The parts of the machine of which there are such samples.
    pub(super) fn peek_parts(&self, since_ms: i64) -> Vec<NodePart> {
        self.glance(move |worker| {
            unflushed_samples::parts(since_ms, &worker.sampler, &worker.undelivered.drained)
        })
        .unwrap_or_default()
    }

    pub fn live(&self) -> HashMap<JobKey, Live> {
        self.ask(|worker| worker.sampler.live().into_iter().collect()).unwrap_or_default()
    }

    /// For replies: asks for the figures of all jobs. False if the thread is busy, and the last ones have to do.
    pub(super) fn look_at_jobs(&self) -> bool {
        let live = self.glance(|worker| worker.sampler.live().into_iter().collect());
        live.map(|live| self.live.replace(live)).is_some()
    }

    /// The figures of a job as of the last look.
    pub(super) fn last_known(&self, key: &JobKey) -> Option<Live> {
        self.live.borrow().get(key).cloned()
    }

    /// What each source costs, also of those that are left out.
    pub fn costs(&self) -> Result<Vec<SourceStatus>, Stuck> {
        let mut costs = self.ask(|worker| worker.costs())?;
        self.watchdog.add_kept_by(&mut costs);
        Ok(costs)
    }

    /// What is wrong with sources. No tick is waited for: of a busy thread only those are known that block.
    pub fn source_problem(&self) -> Option<String> {
        let mut sources = self.glance(|worker| worker.costs()).unwrap_or_default();
        self.watchdog.add_kept_by(&mut sources);
        source_problem(&sources)
    }

    /// Whether another thread can and must go on in the place of this one.
    pub(super) fn is_kept(&self) -> bool {
        let has_failed = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        has_failed && self.watchdog.may_replace() || self.watchdog.is_kept()
    }

    /// Whether the thread takes orders now or in a moment. If not, the main thread postpones what needs it and
    /// serves other requests: clients conclude after a second that a daemon is dead.
    pub fn is_ready(&self) -> bool {
        let Some(since_ns) = self.busy_since_ns() else {
            self.delay.set(None);
            self.is_slow.set(false);
            return true;
        };
        match self.delay.get() {
            _ if self.stuck.get() => true,
            Some(delay) if delay.since_ns != since_ns => {
                // It has taken orders meanwhile: it is slow, and not blocked.
                self.delay.set(None);
                self.is_slow.set(true);
                true
            }
            Some(delay) if delay.noticed.elapsed() < ANSWER_WITHIN => false,
            Some(_) => {
                // Nothing waits long for it any more.
                self.delay.set(None);
                self.set_stuck();
                true
            }
            None if self.ends_soon(since_ns) => true,
            None => {
                self.delay.set(Some(Delay { since_ns, noticed: Instant::now() }));
                false
            }
        }
    }

    /// Whether what it does now ends in a moment. One whose ticks are all long gets its orders at their beginning.
    fn ends_soon(&self, since_ns: i64) -> bool {
        let mut age_ns = clock::monotonic_ns() - since_ns;
        while age_ns < READY_WITHIN.as_nanos() as i64 {
            if self.is_slow.get() || self.busy_since_ns() != Some(since_ns) {
                return true;
            }
            std::thread::sleep(READY_LOOK);
            age_ns = clock::monotonic_ns() - since_ns;
        }
        false
    }

    fn busy_since_ns(&self) -> Option<i64> {
        self.watchdog.pulse.at().map(|at| at.since_ns)
    }

    /// Whether it was not ready, and is still at the same.
    pub fn is_blocked(&self) -> bool {
        self.delay.get().is_some_and(|delay| self.busy_since_ns() == Some(delay.since_ns))
    }

    fn set_stuck(&self) {
        if !self.stuck.replace(true) {
            tracing::error!("{Stuck}");
        }
    }

    /// An answer to a reader, who does not wait for a tick: `None` if the thread is busy.
    fn glance<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> Option<T> {
        if !self.is_ready() {
            return None;
        }
        let (reply, answer) = mpsc::sync_channel(1);
        self.order(move |worker| drop(reply.send(question(worker))));
        let patience = if self.stuck.get() { ANSWER_WITHIN_WHEN_STUCK } else { READY_WITHIN };
        answer.recv_timeout(patience).ok()
    }

    fn order(&self, order: impl FnOnce(&mut Worker) + Send + 'static) {
        let _ = self.orders.send(Box::new(order));
    }

    /// Changes what is read of a job, if that is sampled.
    fn change(&self, key: &JobKey, change: impl FnOnce(&mut Sampler, u32) + Send + 'static) {
        let key = key.clone();
        self.order(move |worker| {
            if let Some(&slot) = worker.slots.get(&key) {
                change(&mut worker.sampler, slot);
            }
        });
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        self.ask_for(|worker, reply| drop(reply.send(question(worker))))
    }

    fn ask_for<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Worker, SyncSender<T>) + Send + 'static,
    ) -> Result<T, Stuck> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.orders.send(Box::new(|worker| order(worker, reply))).map_err(|_| Stuck)?;
        self.wait_for(&answer)
    }

    /// Waits for an answer, but not for a thread in whose place another one can continue.
    fn wait_for<T>(&self, answer: &Receiver<T>) -> Result<T, Stuck> {
        let patience = if self.stuck.get() { ANSWER_WITHIN_WHEN_STUCK } else { ANSWER_WITHIN };
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match answer.recv_timeout(left.min(SURE_AFTER)) {
                Ok(answer) => {
                    self.stuck.set(false);
                    return Ok(answer);
                }
                Err(RecvTimeoutError::Timeout) if self.watchdog.is_kept() => return Err(Stuck),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Err(Stuck),
            }
        }
        self.set_stuck();
        Err(Stuck)
    }

    /// Ends the thread; what it holds must have been drained.
    pub fn stop(mut self) {
        let thread = self.thread.take();
        drop(self.orders);
        let Some(thread) = thread else { return };
        let begin = Instant::now();
        // A thread that hangs ends with the process.
        while !thread.is_finished() && begin.elapsed() < STOP_WITHIN {
            std::thread::sleep(Duration::from_millis(2));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

/// Lets scrapes have all jobs read, by the thread that takes these orders, as long as it does.
fn ask_for_pages(board: &Arc<Board>, orders: &Arc<Sender<Order>>) {
    let (orders, of) = (Arc::downgrade(orders), Arc::downgrade(board));
    board.ask_with(move || {
        let of = of.clone();
        let order: Order = Box::new(move |worker| {
            if let Some(board) = of.upgrade() {
                let sampler = &mut worker.sampler;
                let is_recent = board.is_recent(sampler.all_read_ns());
                board.post(if is_recent { sampler.now() } else { sampler.look_for_page() });
            }
        });
        if let Some(orders) = orders.upgrade() {
            let _ = orders.send(order);
        }
    });
}

/// What the sampling thread has.
struct Worker {
    sampler: Sampler,
    slots: HashMap<JobKey, u32>,
    last_errors: HashMap<&'static str, String>,
    undelivered: Undelivered,
    rest: Option<Rest>,
    /// When the machine without jobs is read for its series.
    next_node_ns: Option<i64>,
}

impl Worker {
    fn new(sampler: Sampler) -> Worker {
        let (slots, last_errors) = (HashMap::new(), HashMap::new());
        let undelivered = Undelivered::default();
        Worker { sampler, slots, last_errors, undelivered, rest: None, next_node_ns: None }
    }

    fn work(
        &mut self,
        orders: &Receiver<Order>,
        board: Option<&Board>,
        ticker: Option<&Ticker>,
        pulse: &Pulse,
    ) {
        // A thread that was given up does nothing more, whatever is left in its channel.
        while !pulse.is_given_up() {
            // Without jobs there is nothing to wake up for, but for a look at the machine now and then.
            let patience = self.patience();
            pulse.rest();
            let order = match patience {
                None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(patience) => orders.recv_timeout(patience.max(Duration::from_micros(1))),
            };
            pulse.begin();
            match order {
                Ok(order) => order(self),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if pulse.is_given_up() {
                return;
            }
            if self.sampler.is_at_work() && self.sampler.tick_if_due() {
                if pulse.is_given_up() {
                    return;
                }
                for error in self.sampler.take_new_errors() {
                    tracing::warn!("source {}: {}", error.source, error.message);
                    self.last_errors.insert(error.source, error.message);
                }
                if let Some(board) = board {
                    board.ticked();
                }
                if let Some(ticker) = ticker {
                    self.sampler.publish_tick(ticker);
                }
            } else {
                self.look_at_node();
                self.look_at_rest();
            }
        }
    }

    /// How long the thread may sleep; `None` until the next order.
    fn patience(&mut self) -> Option<Duration> {
        if self.sampler.is_at_work() {
            (self.rest, self.next_node_ns) = (None, None);
            return Some(self.sampler.until_next_tick());
        }
        let now_ns = clock::boottime_ns();
        let rest = self.rest.get_or_insert_with(|| Rest::begin(now_ns, self.sampler.slowest_meter()));
        let until_look = rest.until_next(now_ns);
        self.plan_node(now_ns);
        let until_node = self.next_node_ns.map(|next| Duration::from_nanos((next - now_ns).max(0) as u64));
        until_look.into_iter().chain(until_node).min()
    }

    /// The machine is read at multiples of the interval, as ticks are.
    fn plan_node(&mut self, now_ns: i64) {
        let next_ns = self.sampler.node_interval().map(|interval| {
            let interval_ns = i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX).max(1);
            (now_ns / interval_ns + 1).saturating_mul(interval_ns)
        });
        // A shorter interval holds at once, and so does that nothing is stored any more.
        self.next_node_ns =
            next_ns.map(|next_ns| self.next_node_ns.map_or(next_ns, |planned| planned.min(next_ns)));
    }

    /// Reads the machine without jobs if that is due.
    fn look_at_node(&mut self) {
        let now_ns = clock::boottime_ns();
        if self.next_node_ns.is_some_and(|next_ns| now_ns >= next_ns) && !self.sampler.is_at_work() {
            self.next_node_ns = None;
            self.sampler.look_at_node();
            // Between readings that are far apart nothing is held that the next one can get again.
            if self.sampler.node_interval() >= Some(GIVE_BACK_FROM) {
                memory_release::give_back_free();
                memory_release::give_back_code();
            }
        }
    }

    fn look_at_rest(&mut self) {
        let rest = self.rest.as_mut().filter(|rest| rest.is_due(clock::boottime_ns()));
        let Some(rest) = rest.filter(|_| !self.sampler.is_at_work()) else { return };
        self.sampler.look_at_rest(rest.is_first_look());
        let has_meters = !self.sampler.energy().meters().is_empty();
        if rest.took(clock::boottime_ns(), has_meters) {
            self.sampler.end_look_at_rest();
            memory_release::give_back_free();
            memory_release::give_back_code();
        }
    }

    fn add(&mut self, record: &Record, before: Option<&Course>) {
        if self.slots.contains_key(&record.key) {
            return;
        }
        if let Some(slot) = self.sampler.add(record) {
            self.slots.insert(record.key.clone(), slot);
            if let Some(before) = before {
                self.sampler.recall(slot, before);
            }
        }
    }

    fn reconfigure(&mut self, before: &Config, config: &Config) {
        self.sampler.reconfigure(before, config);
        // There may be a meter now that would not be read until a job has come and gone.
        let rest = self.rest.take();
        self.rest = rest.map(|rest| rest.again(clock::boottime_ns(), self.sampler.slowest_meter()));
    }

    fn drain(&mut self, reply: &SyncSender<Drained>) {
        let sampler = &mut self.sampler;
        let (jobs, cards, devices) = (sampler.drain(), sampler.gpus.drain(), sampler.gpus.devices());
        let (node, idle) = (sampler.machine.drain(), sampler.energy().learned_idle());
        self.undelivered.hand_over(Drained { jobs, cards, devices, node, idle }, reply);
    }

    fn costs(&self) -> Vec<SourceStatus> {
        let costs = self.sampler.costs().into_iter().map(|cost| SourceStatus {
            name: cost.source.to_owned(),
            read_ns: cost.read_ns,
            background_ns: cost.background_ns,
            errors: cost.errors,
            rows: cost.rows,
            unparsed: cost.unparsed.count,
            first_unparsed: cost.unparsed.first,
            last_error: self.last_errors.get(cost.source).cloned(),
            left_out: false,
        });
        let mut sources: Vec<SourceStatus> = costs.collect();
        // Without a job there may have been no tick yet.
        let read: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
        let is_unread = |name: &&str| !read.iter().any(|known| known == name);
        sources.extend(self.sampler.opened().filter(is_unread).map(SourceStatus::unread));
        sources
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waited_for_is_delivered_to_the_next_one() {
        let mut undelivered = Undelivered::default();
        let one = |id: &str| Drained {
            cards: vec![(id.to_owned(), Course::new(&met_core::JOB))],
            ..Drained::default()
        };
        let (gave_up, receiver) = mpsc::sync_channel(1);
        drop(receiver);
        undelivered.hand_over(one("a"), &gave_up);
        let (waits, receiver) = mpsc::sync_channel(1);
        undelivered.hand_over(one("b"), &waits);
        let cards: Vec<String> = receiver.recv().unwrap().cards.into_iter().map(|(id, _)| id).collect();
        assert_eq!(cards, ["a", "b"]);
        assert!(undelivered.drained.cards.is_empty());
    }

    #[test]
    fn samples_that_were_not_delivered_come_before_those_of_the_end() {
        let key = |id: &str| JobKey { id: id.to_owned(), ..met_core::sample::bare(1, "x").key };
        let samples_of = |table: &'static met_core::Table, time_ms: i64| {
            let mut samples = PackedSamples::new(table);
            samples.push(time_ms, &vec![met_core::MISSING; table.columns.len()]);
            samples
        };
        let samples = |time_ms: i64| samples_of(&met_core::JOB, time_ms);
        let mut undelivered = Undelivered::default();
        undelivered.drained.jobs = vec![
            (key("1"), samples(1000)),
            (key("2"), samples(1000)),
            (event::series_key(&key("1"), "faults"), samples_of(&event::TABLE, 1000)),
        ];
        let mut sampled = Sampled::default();
        sampled.course = samples(2000).unpack();
        sampled.put_before(undelivered.take_of(&key("1")));
        assert_eq!(sampled.course.times_ms, [1000, 2000]);
        let keys: Vec<&str> = sampled.more.iter().map(|(key, _)| event::of_series_key(key).1).collect();
        assert_eq!((keys, undelivered.drained.jobs.len()), (vec!["faults"], 1));
    }

    #[test]
    fn a_meter_that_is_switched_on_is_looked_at_without_any_job() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/stat", "cpu 0 0 0 0\n");
        put("proc/meminfo", "MemTotal: 8000000 kB\n");
        put("sys/class/powercap/intel-rapl:0/name", "package-0\n");
        put("sys/class/powercap/intel-rapl:0/energy_uj", "44444444444\n");
        put("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "65532610987\n");
        let config = |yaml| Config::parse(yaml, std::path::Path::new("met.yaml")).unwrap();
        let off = "sources: {rapl: off, ipmi: off, hwmon: off, cray: off}";
        let (without, with) = (config(off), config(&off.replace("rapl: off", "rapl: auto")));
        let host = Host::at(root.path()).unwrap();
        let mut worker = Worker::new(Sampler::of_node(host, Duration::from_secs(1), &without));
        assert_eq!(worker.patience(), None, "there is nothing to look at");
        worker.reconfigure(&without, &with);
        assert!(worker.patience().is_some());
        worker.reconfigure(&with, &without);
        assert_eq!(worker.patience(), None);
    }

    #[test]
    fn a_machine_without_jobs_is_read_for_its_series_and_else_not() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/stat"), "cpu 0 0 0 0\n").unwrap();
        std::fs::write(root.path().join("proc/meminfo"), "MemTotal: 8000000 kB\n").unwrap();
        let yaml = "node: {interval: 20ms}\nsources: {rapl: off, ipmi: off, hwmon: off, cray: off}";
        let config = Config::parse(yaml, std::path::Path::new("met.yaml")).unwrap();
        let host = Host::at(root.path()).unwrap();
        let mut worker = Worker::new(Sampler::of_node(host, Duration::from_secs(1), &config));
        assert_eq!(worker.patience(), None, "nothing is stored");
        worker.sampler.machine.keep_series(true);
        let mut samples = 0;
        while samples < 3 {
            let patience = worker.patience().unwrap();
            assert!(patience <= Duration::from_millis(20));
            std::thread::sleep(patience);
            worker.look_at_node();
            let node = worker.sampler.machine.drain().into_iter().find(|(table, ..)| table.name == "node");
            samples += node.map_or(0, |(.., course)| course.len());
        }
        worker.sampler.machine.keep_series(false);
        assert_eq!(worker.patience(), None);
    }

    #[test]
    fn an_allocation_that_is_known_is_told_and_none_is_not() {
        let (orders, received) = mpsc::channel();
        let orders = Arc::new(orders);
        let watchdog = Watchdog::new(Duration::from_secs(1));
        let (stuck, delay, is_slow) = (Cell::new(false), Cell::new(None), Cell::new(false));
        let (live, counter_budget) = (RefCell::default(), Budget::of_process());
        let sampling =
            Sampling { orders, thread: None, stuck, delay, is_slow, live, watchdog, counter_budget };
        let mut record = met_core::sample::bare(1, "x");
        sampling.allocate(&record);
        assert!(received.try_recv().is_err());
        record.requested.cpus = Some(2);
        sampling.allocate(&record);
        assert!(received.try_recv().is_ok());
    }

    #[test]
    fn a_sampler_whose_ticks_are_long_is_slow_and_one_that_stays_in_a_tick_blocked() {
        let (orders, _never_read) = mpsc::channel();
        let orders = Arc::new(orders);
        let (stuck, delay, is_slow) = (Cell::new(false), Cell::new(None), Cell::new(false));
        let watchdog = Watchdog::new(Duration::from_secs(1));
        let (live, counter_budget) = (RefCell::default(), Budget::of_process());
        let sampling =
            Sampling { orders, thread: None, stuck, delay, is_slow, live, watchdog, counter_budget };
        assert!(sampling.is_ready() && !sampling.is_blocked(), "it rests");
        let pulse = Arc::clone(&sampling.watchdog.pulse);
        pulse.begin();
        assert!(!sampling.is_ready() && sampling.is_blocked());
        assert!(!sampling.is_ready(), "nobody waits for the same tick twice");
        // The next tick.
        pulse.begin();
        assert!(!sampling.is_blocked() && sampling.is_ready());
        pulse.rest();
        assert!(sampling.is_ready());
        // Who never comes back is not waited for any more, as before.
        pulse.begin();
        assert!(!sampling.is_ready());
        let long_ago = Instant::now().checked_sub(ANSWER_WITHIN).unwrap();
        sampling.delay.set(sampling.delay.get().map(|delay| Delay { noticed: long_ago, ..delay }));
        assert!(sampling.is_ready() && sampling.stuck.get());
        sampling.stop();
    }

    #[test]
    fn a_sampler_that_does_not_answer_is_given_up() {
        // Nobody takes orders here, and the channel is open: as if a tick did not come to its end.
        let (orders, _never_read) = mpsc::channel();
        let orders = Arc::new(orders);
        let watchdog = Watchdog::new(Duration::from_secs(1));
        let (stuck, delay, is_slow) = (Cell::new(true), Cell::new(None), Cell::new(false));
        let (live, counter_budget) = (RefCell::default(), Budget::of_process());
        let sampling =
            Sampling { orders, thread: None, stuck, delay, is_slow, live, watchdog, counter_budget };
        assert!(sampling.costs().unwrap_err().to_string().contains("has not answered"));
        assert!(sampling.live().is_empty() && sampling.drain().jobs.is_empty());
        sampling.stop();
    }
}
