//! The sampling thread: it ticks, and between ticks does what it is asked to. It never touches a disk.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use met_core::cadence::{Cadence, WANTED_FOR_MAX, WATCHED_FOR_NS};
use met_core::energy::emission::Factor;
use met_core::energy::idle::LearnedIdle;
use met_core::gpu_holding::Holding;
use met_core::job::{CgroupPaths, JobKey, ProcessId, Record};
use met_core::node_health::NodeHealth;
use met_core::series::Series;
use met_host::{Host, clock};
use met_sinks::bus::Ticker;
use met_sources::Options;
use met_store::{Device, NodePart};

use super::last_tick::MetricsCache;
use super::orders::{self, Orders};
use super::sampler_view::{Published, View};
use super::sampler_worker::{Drained, Order, Worker};
use super::unflushed_samples::{self, Wanted};
use super::watchdog::{SURE_AFTER, Watchdog};
use crate::node_energy::Charged;
use crate::passed_counters::{Budget, PassedCounters};
use crate::sampler::{EventsAsked, Known, Sampled, Sampler};
use met_config::Config;
use met_core::energy::EnergyWindow;
use met_query::live::Live;
use met_query::machine_now::MachineNow;
use met_query::protocol::{SourceStatus, failing_sources};

/// The sampler answers between two ticks, which take milliseconds. Something in the machine may hang all the
/// same, a file system or a driver, and must not keep the daemon from answering and ending.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// One that did not answer is not waited for again until it does.
const ANSWER_WITHIN_WHEN_STUCK: Duration = Duration::from_millis(20);
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// So long the main thread waits for a tick to end before it writes what needs the sampler. Reads do not.
const READY_WITHIN: Duration = Duration::from_millis(10);
/// So long a read waits for a thread that rests, for the first view of all, and for samples that only the thread has. A
/// client that starts a job waits for 200 ms.
const VIEW_WITHIN: Duration = Duration::from_millis(100);
/// One that is at the same for so long may be blocked: what it reads is read by no other thread.
const BLOCKED_AFTER: Duration = Duration::from_millis(100);

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

/// The other threads' end of the sampler.
pub struct Sampling {
    orders: Arc<Orders>,
    pub(super) thread: Option<JoinHandle<()>>,
    stuck: Cell<bool>,
    delay: Cell<Option<Delay>>,
    /// Its ticks take longer than the main thread waits.
    is_slow: Cell<bool>,
    published: Arc<Published>,
    /// The machine is read without jobs, too: for a page or for sinks.
    pub(super) ticks_at_rest: bool,
    pub(super) watchdog: Watchdog,
    /// Of counters that supervisors pass, also of those that a blocked thread holds.
    pub(super) counter_budget: Budget,
}

impl Sampling {
    /// Puts its figures into the cache and hands rows to the ticker, if there are any; then it watches the machine
    /// without jobs, too.
    pub fn start(
        host: Host,
        config: &Config,
        metrics_cache: Option<Arc<MetricsCache>>,
        ticker: Option<Ticker>,
    ) -> io::Result<Sampling> {
        let (orders, published) = (orders::queue().0, Arc::default());
        let watchdog = Watchdog::new(config.sampling.shortest());
        let (stuck, delay, is_slow) = (Cell::new(false), Cell::new(None), Cell::new(false));
        let counter_budget = Budget::of_process();
        let mut sampling = Sampling {
            orders,
            thread: None,
            stuck,
            delay,
            is_slow,
            published,
            ticks_at_rest: false,
            watchdog,
            counter_budget,
        };
        sampling.begin(host, config, metrics_cache, ticker)?;
        Ok(sampling)
    }

    /// Starts the thread, or another one in its place: the earlier channel gets no more orders. It opens the sources
    /// itself, since that may hang, too.
    pub(super) fn begin(
        &mut self,
        host: Host,
        config: &Config,
        metrics_cache: Option<Arc<MetricsCache>>,
        ticker: Option<Ticker>,
    ) -> io::Result<()> {
        let (orders, taken) = orders::queue();
        let (config, options) = (config.clone(), self.watchdog.options(config));
        if self.orders.dropped() > 0 {
            tracing::warn!("{} requests to the sampling thread were dropped", self.orders.dropped());
        }
        self.orders = orders;
        self.published = Published::before(self.published.view());
        let published = Arc::clone(&self.published);
        if let Some(metrics_cache) = &metrics_cache {
            ask_for_pages(metrics_cache, &self.orders);
        }
        self.stuck.set(false);
        self.delay.set(None);
        self.is_slow.set(false);
        let ticks_at_rest = metrics_cache.is_some() || ticker.is_some();
        self.ticks_at_rest = ticks_at_rest;
        let work = move || {
            options.heartbeat.begin();
            let mut sampler = Sampler::with(host, config.sampling.shortest(), &config, &options);
            sampler.set_cadence(config.sampling.cadence());
            if ticks_at_rest {
                sampler.watch_node();
            }
            Worker::new(sampler, published).work(
                &taken,
                metrics_cache.as_deref(),
                ticker.as_ref(),
                &options.heartbeat,
            );
        };
        self.thread = Some(std::thread::Builder::new().name("sampler".to_owned()).spawn(work)?);
        Ok(())
    }

    /// Begins to sample a job; `before` is what an earlier daemon saw of it.
    pub fn add(&self, record: &Record, before: Option<Series>) {
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

    /// Ends a job. What comes too late is in the next [`Sampling::drain`].
    pub fn remove(&self, key: &JobKey, known: Known) -> Result<Option<Sampled>, Stuck> {
        let key = key.clone();
        self.command(move |worker, reply| {
            let sampled = worker.remove(&key, known);
            worker.undelivered.hand_over_end(key, sampled, &reply);
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
        self.look();
        self.view().energy.clone()
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

    /// A client asks for the figures of jobs.
    pub(super) fn note_interest(&self, keys: Vec<JobKey>) {
        self.orders.offer(Box::new(move |worker| {
            for slot in keys.iter().filter_map(|key| worker.slots.get(key)) {
                worker.sampler.note_interest(*slot);
            }
        }));
    }

    /// Samples jobs at the shortest interval for this long, within bounds. Returns those that are.
    pub(super) fn watch(&self, keys: Vec<JobKey>, wanted_for: Duration) -> Vec<JobKey> {
        let for_ns = wanted_for.min(WANTED_FOR_MAX).as_nanos() as i64;
        let sampled = self.view();
        let known = keys.iter().filter(|key| sampled.live.contains_key(key)).cloned().collect();
        // What it cannot say at once it does all the same.
        self.glance(move |worker| worker.watch(keys, for_ns)).unwrap_or(known)
    }

    /// The same for a thread that hears of watched jobs, as long as this one takes orders. Calls `known` if any of them is
    /// sampled here.
    pub(super) fn watcher<F: Fn() + Send + Sync + 'static>(
        &self,
        known: F,
    ) -> impl Fn(Vec<JobKey>) + Send + use<F> {
        let (orders, known) = (Arc::downgrade(&self.orders), Arc::new(known));
        move |keys| {
            let known = Arc::clone(&known);
            let order: Order = Box::new(move |worker| {
                if !worker.watch(keys, WATCHED_FOR_NS).is_empty() {
                    known();
                }
            });
            if let Some(orders) = orders.upgrade() {
                orders.offer(order);
            }
        }
    }

    /// Counts other events from now on; says what cannot be counted.
    pub fn set_events(&self, asked: EventsAsked, options: Options) -> Option<String> {
        let counted = self.command(move |worker, reply| {
            drop(reply.send(worker.sampler.set_events(asked, &options)));
        });
        counted.ok().flatten()
    }

    /// The same without waiting for what cannot be counted.
    pub fn send_events(&self, asked: EventsAsked, options: Options) {
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
    pub(super) fn peek(&self, wanted: Wanted) -> Vec<Series> {
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

    /// Brings the view of readers up to date. False if the thread may be blocked. A tick is not waited for: during one the
    /// last view has to do.
    fn look(&self) -> bool {
        self.published.want();
        match self.busy_since_ns() {
            Some(since_ns) if self.published.has_view() => {
                clock::monotonic_ns() - since_ns < BLOCKED_AFTER.as_nanos() as i64
            }
            _ => self.glance(Worker::publish).is_some(),
        }
    }

    /// The view as of the last look.
    pub(super) fn view(&self) -> Arc<View> {
        self.published.view()
    }

    /// For replies: the figures of all jobs are up to date after it. False as for [`Sampling::look`].
    pub(super) fn look_at_jobs(&self) -> bool {
        self.look()
    }

    /// The figures of a job as of the last look.
    pub(super) fn last_known(&self, key: &JobKey) -> Option<Live> {
        self.view().live.get(key).cloned()
    }

    /// What each source costs, also of those that are left out; an error if the thread has been blocked for long.
    pub fn costs(&self) -> Result<Vec<SourceStatus>, Stuck> {
        let is_long = |since_ns| clock::monotonic_ns() - since_ns >= ANSWER_WITHIN.as_nanos() as i64;
        if !self.look() && (self.stuck.get() || self.busy_since_ns().is_some_and(is_long)) {
            return Err(Stuck);
        }
        let mut costs = self.view().sources.clone();
        self.watchdog.add_kept_by(&mut costs);
        Ok(costs)
    }

    /// The machine's GPUs and failing sources, as last known.
    pub fn health(&self) -> NodeHealth {
        self.look();
        let view = self.view();
        let mut sources = view.sources.clone();
        self.watchdog.add_kept_by(&mut sources);
        NodeHealth { gpus: view.gpus, failing_sources: failing_sources(&sources) }.bounded()
    }

    /// What the machine did at the last tick; unknown while the thread is blocked.
    pub fn machine_now(&self) -> MachineNow {
        if self.look() { self.view().machine } else { MachineNow::default() }
    }

    /// Whether another thread can and must go on in the place of this one.
    pub(super) fn is_kept(&self) -> bool {
        let has_failed = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        (has_failed || self.orders.is_incomplete()) && self.watchdog.may_replace() || self.watchdog.is_kept()
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
        self.watchdog.heartbeat.at().map(|at| at.since_ns)
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

    /// An answer to a reader that only the thread can give. A tick is waited for once and not for long: `None` if the
    /// thread stays busy.
    fn glance<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = mpsc::sync_channel(1);
        let is_sent = self.orders.offer(Box::new(move |worker| drop(reply.send(question(worker)))));
        let timeout = match self.busy_since_ns() {
            _ if !is_sent => return None,
            _ if self.stuck.get() => ANSWER_WITHIN_WHEN_STUCK,
            // It was waited for, and is not a second time.
            Some(_) if self.is_blocked() || self.is_slow.get() => Duration::ZERO,
            _ => VIEW_WITHIN,
        };
        let answer = answer.recv_timeout(timeout).ok();
        if let Some(since_ns) =
            self.busy_since_ns().filter(|_| answer.is_none() && self.delay.get().is_none())
        {
            self.delay.set(Some(Delay { since_ns, noticed: Instant::now() }));
        }
        answer
    }

    fn order(&self, order: impl FnOnce(&mut Worker) + Send + 'static) {
        self.orders.order(Box::new(order));
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
        question: impl FnOnce(&mut Worker, SyncSender<T>) + Send + 'static,
    ) -> Result<T, Stuck> {
        // Without room of its own: an answer that came too late is not lost in it.
        let (reply, answer) = mpsc::sync_channel(0);
        match self.orders.offer(Box::new(|worker| question(worker, reply))) {
            true => self.wait_for(&answer),
            false => Err(Stuck),
        }
    }

    /// The same for what changes something, and must arrive though the answer may come too late.
    fn command<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Worker, SyncSender<T>) + Send + 'static,
    ) -> Result<T, Stuck> {
        let (reply, answer) = mpsc::sync_channel(0);
        match self.orders.order(Box::new(|worker| command(worker, reply))) {
            true => self.wait_for(&answer),
            false => Err(Stuck),
        }
    }

    /// Waits for an answer, but not for a thread in whose place another one can continue.
    fn wait_for<T>(&self, answer: &Receiver<T>) -> Result<T, Stuck> {
        let timeout = if self.stuck.get() { ANSWER_WITHIN_WHEN_STUCK } else { ANSWER_WITHIN };
        let deadline = Instant::now() + timeout;
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
fn ask_for_pages(metrics_cache: &Arc<MetricsCache>, orders: &Arc<Orders>) {
    let (orders, of) = (Arc::downgrade(orders), Arc::downgrade(metrics_cache));
    metrics_cache.ask_with(move || {
        let of = of.clone();
        let order: Order = Box::new(move |worker| {
            if let Some(metrics_cache) = of.upgrade() {
                let sampler = &mut worker.sampler;
                let is_recent = metrics_cache.is_recent(sampler.all_read_ns());
                let details = metrics_cache.shows_details();
                metrics_cache.post(if is_recent {
                    sampler.now(details)
                } else {
                    sampler.look_for_page(details)
                });
            }
        });
        if let Some(orders) = orders.upgrade() {
            orders.offer(order);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whose orders the test receives.
    fn without_thread(orders: Arc<Orders>) -> Sampling {
        Sampling {
            orders,
            thread: None,
            stuck: Cell::new(false),
            delay: Cell::new(None),
            is_slow: Cell::new(false),
            published: Arc::default(),
            ticks_at_rest: false,
            watchdog: Watchdog::new(Duration::from_secs(1)),
            counter_budget: Budget::of_process(),
        }
    }

    #[test]
    fn an_allocation_that_is_known_is_passed_on_and_none_is_not() {
        let (orders, received) = orders::queue();
        let sampling = without_thread(orders);
        let mut record = met_core::sample::bare(1, "x");
        sampling.allocate(&record);
        assert!(received.next(Some(Duration::ZERO)).is_err());
        record.requested.cpus = Some(2);
        sampling.allocate(&record);
        assert!(received.next(Some(Duration::ZERO)).is_ok());
    }

    #[test]
    fn watched_jobs_are_passed_on_as_long_as_there_is_who_takes_orders() {
        let (orders, received) = orders::queue();
        let sampling = without_thread(orders);
        let watcher = sampling.watcher(|| panic!("nobody has looked which jobs are known"));
        watcher(vec![met_core::sample::bare(1, "x").key]);
        assert!(received.next(Some(Duration::ZERO)).is_ok() && received.next(Some(Duration::ZERO)).is_err());
        sampling.stop();
        watcher(vec![met_core::sample::bare(1, "x").key]);
        assert!(received.next(Some(Duration::ZERO)).is_err());
    }

    #[test]
    fn a_sampler_whose_ticks_are_long_is_slow_and_one_that_stays_in_a_tick_blocked() {
        let (orders, _never_read) = orders::queue();
        let sampling = without_thread(orders);
        assert!(sampling.is_ready() && !sampling.is_blocked(), "it rests");
        let heartbeat = Arc::clone(&sampling.watchdog.heartbeat);
        heartbeat.begin();
        assert!(!sampling.is_ready() && sampling.is_blocked());
        assert!(!sampling.is_ready(), "nobody waits for the same tick twice");
        // The next tick.
        heartbeat.begin();
        assert!(!sampling.is_blocked() && sampling.is_ready());
        heartbeat.rest();
        assert!(sampling.is_ready());
        // Who never comes back is not waited for any more, as before.
        heartbeat.begin();
        assert!(!sampling.is_ready());
        let long_ago = Instant::now().checked_sub(ANSWER_WITHIN).unwrap();
        sampling.delay.set(sampling.delay.get().map(|delay| Delay { noticed: long_ago, ..delay }));
        assert!(sampling.is_ready() && sampling.stuck.get());
        sampling.stop();
    }

    #[test]
    fn readers_of_a_blocked_sampler_get_the_last_view_and_fill_no_queue() {
        let (orders, never_read) = orders::queue();
        let sampling = without_thread(orders);
        let key = met_core::sample::bare(1, "x").key;
        let view = View { live: HashMap::from([(key.clone(), Live::default())]), ..View::default() };
        sampling.published.publish(view);
        sampling.watchdog.heartbeat.begin();
        for _ in 0..5_000 {
            sampling.look_at_jobs();
            sampling.note_interest(vec![key.clone()]);
            assert!(sampling.last_known(&key).is_some() && sampling.energy_window().is_none());
        }
        assert!(sampling.orders.dropped() > 0);
        // What must arrive has room, and no more than this waits.
        sampling.add(&met_core::sample::bare(2, "x"), None);
        assert!(!sampling.orders.is_incomplete());
        let waiting = std::iter::from_fn(|| never_read.next(Some(Duration::ZERO)).ok()).count();
        assert!(waiting < 1_000, "{waiting} orders wait");
        sampling.stop();
    }

    #[test]
    fn a_thread_that_misses_an_order_is_replaced() {
        let (orders, _never_read) = orders::queue();
        let sampling = without_thread(orders);
        assert!(!sampling.is_kept());
        while sampling.orders.order(Box::new(|_| {})) {}
        assert!(sampling.is_kept());
    }

    #[test]
    fn a_sampler_that_does_not_answer_is_given_up() {
        // No thread takes orders here, and the channel is open: as if a tick did not come to its end.
        let (orders, _never_read) = orders::queue();
        let sampling = without_thread(orders);
        sampling.stuck.set(true);
        assert!(sampling.costs().unwrap_err().to_string().contains("has not answered"));
        assert!(sampling.live().is_empty() && sampling.drain().jobs.is_empty());
        sampling.stop();
    }
}
