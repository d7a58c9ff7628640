//! Distributes events to sinks. Publishing never waits: each sink has a bounded queue and a thread, and what does not
//! fit is dropped and counted. A sink that fails, panics or hangs affects only itself.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use met_core::Table;
use serde::{Deserialize, Serialize};

use crate::event::{Event, Kind, Tick};
use crate::forward;
use crate::sink::{Configured, Interest, Sink, SinkError};

/// Events and bytes that wait for one sink.
const QUEUE: usize = 1024;
const QUEUE_BYTES_MAX: usize = 32 << 20;
/// Room that only starts and ends of jobs may use: samples do not displace them.
const RESERVED: usize = QUEUE / 4;
const RESERVED_BYTES: usize = QUEUE_BYTES_MAX / 4;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Then an event that a sink cannot take gives way to the next one.
const ATTEMPTS_MAX: u32 = 8;
/// Jobs whose dropped ends are named.
const NAMED_MAX: usize = 8;
/// A sink that hangs is not waited for any longer at the end.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
const STACK_BYTES: usize = 512 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    #[default]
    Running,
    /// It failed and is opened again.
    Retrying,
    /// It takes nothing until the process is restarted.
    Failed,
}

/// The state of one sink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub name: String,
    pub state: State,
    /// Events.
    pub delivered: u64,
    pub queued: u64,
    pub dropped: u64,
    /// Ends of jobs among the dropped events, and the last of these jobs.
    #[serde(default)]
    pub dropped_ends: u64,
    #[serde(default)]
    pub dropped_jobs: Vec<String>,
    #[serde(default)]
    pub last_error: Option<String>,
    /// Of `forward`, which has a place of its own in replies.
    #[serde(skip)]
    pub forward: Option<Box<forward::Status>>,
}

struct Shared {
    name: String,
    delivered: AtomicU64,
    dropped: AtomicU64,
    queued: AtomicUsize,
    queued_bytes: AtomicUsize,
    closing: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    state: State,
    last_error: Option<String>,
    dropped_ends: u64,
    dropped_jobs: VecDeque<String>,
}

impl Shared {
    fn new(name: &str) -> Arc<Shared> {
        Arc::new(Shared {
            name: name.to_owned(),
            delivered: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            queued: AtomicUsize::new(0),
            queued_bytes: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            inner: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Nothing is logged here: the log may be the pipe that is full.
    fn lose(&self, event: &Event) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        if let Event::Ended(record) = event {
            let mut inner = self.lock();
            inner.dropped_ends += 1;
            if inner.dropped_jobs.len() == NAMED_MAX {
                inner.dropped_jobs.pop_front();
            }
            inner.dropped_jobs.push_back(format!("{}:{}", record.key.manager, record.key.id));
        }
    }

    /// Takes room in the queue, if there is some.
    fn reserve(&self, event: &Event) -> bool {
        let (count_max, bytes_max) = match event.kind() {
            Kind::Started | Kind::Ended => (QUEUE, QUEUE_BYTES_MAX),
            Kind::Interim | Kind::Samples | Kind::Tick => {
                (QUEUE - RESERVED, QUEUE_BYTES_MAX - RESERVED_BYTES)
            }
        };
        let count = self.queued.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = event.bytes();
        let bytes = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = count <= count_max && bytes <= bytes_max;
        if !fits {
            self.release(event);
        }
        fits
    }

    fn release(&self, event: &Event) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
        self.queued_bytes.fetch_sub(event.bytes(), Ordering::Relaxed);
    }

    /// One line in the log for each change.
    fn set_state(&self, state: State, error: Option<&str>) {
        let before = {
            let mut inner = self.lock();
            if let Some(error) = error {
                inner.last_error = Some(error.to_owned());
            }
            std::mem::replace(&mut inner.state, state)
        };
        let (name, error) = (&self.name, error.unwrap_or_default());
        match state {
            _ if before == state => {}
            State::Running => tracing::info!("sink {name}: works again"),
            State::Retrying => tracing::warn!("sink {name}: {error}; retrying"),
            State::Failed => tracing::error!("sink {name}: {error}; disabled until restart"),
        }
    }

    fn status(&self) -> Status {
        let inner = self.lock();
        Status {
            name: self.name.clone(),
            state: inner.state,
            delivered: self.delivered.load(Ordering::Relaxed),
            queued: self.queued.load(Ordering::Relaxed) as u64,
            dropped: self.dropped.load(Ordering::Relaxed),
            dropped_ends: inner.dropped_ends,
            dropped_jobs: inner.dropped_jobs.iter().cloned().collect(),
            last_error: inner.last_error.clone(),
            forward: None,
        }
    }
}

/// The publisher's end of a queue; `None` in it wakes the sink's thread.
#[derive(Clone)]
struct Queue {
    shared: Arc<Shared>,
    sender: SyncSender<Option<Event>>,
}

impl Queue {
    fn offer(&self, event: Event) {
        if !self.shared.reserve(&event) {
            self.shared.lose(&event);
        } else if let Err(error) = self.sender.try_send(Some(event))
            && let mpsc::TrySendError::Full(Some(event)) | mpsc::TrySendError::Disconnected(Some(event)) =
                error
        {
            self.shared.release(&event);
            self.shared.lose(&event);
        }
    }
}

enum Outlet {
    /// It has a queue and threads of its own, and never waits.
    Direct(Box<dyn Sink>),
    Queued(Queue, JoinHandle<()>),
    /// It could not be opened.
    None(Box<Status>),
}

struct Lane {
    interest: Interest,
    shared: Arc<Shared>,
    outlet: Outlet,
}

/// All sinks of a process. Without any it does nothing and holds nothing.
#[derive(Default)]
pub struct Bus {
    lanes: Vec<Lane>,
}

/// Publishes rows at the sampler's pace.
#[derive(Clone)]
pub struct Ticker {
    queues: Vec<(Interest, Queue)>,
}

impl Ticker {
    pub fn wants(&self, table: &Table) -> bool {
        self.queues.iter().any(|(interest, _)| interest.wants_table(table.name))
    }

    pub fn publish(&self, tick: Tick) {
        if tick.is_empty() {
            return;
        }
        let event = Event::Tick(Arc::new(tick));
        let queues = self.queues.iter().filter(|(interest, _)| interest.wants(&event));
        queues.for_each(|(_, queue)| queue.offer(event.clone()));
    }
}

impl Bus {
    /// Opens what the configuration names. One that cannot be opened is disabled, and its status says why.
    pub fn open(configured: &[Configured]) -> Bus {
        let mut bus = Bus::default();
        for Configured { spec, options } in configured {
            let Some(open) = spec.open else { continue };
            let options = options.clone();
            bus.add(spec.name, move || open(&options));
        }
        bus
    }

    /// Adds a sink with a queue and a thread; it is opened again by the same function.
    pub fn add(&mut self, name: &str, open: impl Fn() -> Result<Box<dyn Sink>, SinkError> + Send + 'static) {
        let shared = Shared::new(name);
        let (sender, events) = mpsc::sync_channel(QUEUE);
        let started = open().and_then(|sink| {
            let interest = sink.interest();
            let worker = Worker {
                shared: Arc::clone(&shared),
                events,
                open: Box::new(open),
                sink: Some(sink),
                pause: PAUSE_MIN,
                dropped: 0,
            };
            let builder = std::thread::Builder::new().name(format!("sink-{name}")).stack_size(STACK_BYTES);
            let thread = builder.spawn(move || worker.run());
            thread.map(|thread| (interest, thread)).map_err(|error| SinkError::Failed(error.to_string()))
        });
        let (interest, outlet) = match started {
            Ok((interest, thread)) => {
                (interest, Outlet::Queued(Queue { shared: Arc::clone(&shared), sender }, thread))
            }
            Err(error) => {
                shared.set_state(State::Failed, Some(&error.to_string()));
                (Interest::default(), Outlet::None(Box::new(shared.status())))
            }
        };
        self.lanes.push(Lane { interest, shared, outlet });
    }

    /// Adds a sink that has a queue of its own: events are handed to it directly.
    pub fn add_direct(&mut self, name: &str, sink: Box<dyn Sink>) {
        let (interest, shared) = (sink.interest(), Shared::new(name));
        self.lanes.push(Lane { interest, shared, outlet: Outlet::Direct(sink) });
    }

    /// Adds a sink that could not be opened, so that its status says why.
    pub fn add_failed(&mut self, status: Status) {
        let shared = Shared::new(&status.name);
        self.lanes.push(Lane {
            interest: Interest::default(),
            shared,
            outlet: Outlet::None(Box::new(status)),
        });
    }

    /// Whether an event of this kind is worth being made.
    pub fn wants(&self, kind: Kind) -> bool {
        self.lanes.iter().any(|lane| lane.interest.kinds.contains(&kind))
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// How soon sinks want samples.
    pub fn within(&self) -> Option<Duration> {
        self.lanes.iter().filter_map(|lane| lane.interest.within).min()
    }

    /// For the sampling thread; `None` if no sink wants rows of ticks.
    pub fn ticker(&self) -> Option<Ticker> {
        let with_tables = self.lanes.iter().filter(|lane| !lane.interest.tables.is_empty());
        let queues = with_tables.filter_map(|lane| match &lane.outlet {
            Outlet::Queued(queue, _) => Some((lane.interest.clone(), queue.clone())),
            _ => None,
        });
        let queues: Vec<_> = queues.collect();
        (!queues.is_empty()).then_some(Ticker { queues })
    }

    pub fn publish(&mut self, event: &Event) {
        for Lane { interest, shared, outlet } in &mut self.lanes {
            if !interest.wants(event) {
                continue;
            }
            match outlet {
                Outlet::Queued(queue, _) => queue.offer(event.clone()),
                Outlet::Direct(sink) => match catch(|| sink.take(event)) {
                    Ok(()) => drop(shared.delivered.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => {
                        shared.lose(event);
                        shared.lock().last_error = Some(error.to_string());
                    }
                },
                Outlet::None(_) => {}
            }
        }
    }

    /// The state of each sink, in the order of the configuration.
    pub fn status(&self) -> Vec<Status> {
        let status = |lane: &Lane| match &lane.outlet {
            Outlet::Direct(sink) => {
                let mut status = lane.shared.status();
                sink.status(&mut status);
                status
            }
            Outlet::Queued(..) => lane.shared.status(),
            Outlet::None(status) => (**status).clone(),
        };
        self.lanes.iter().map(status).collect()
    }

    /// Delivers what is queued, as far as sinks take it in time.
    pub fn close(self) {
        let queued = |lane: &Lane| match &lane.outlet {
            Outlet::Queued(queue, _) => {
                queue.shared.closing.store(true, Ordering::Release);
                // A thread with a full queue looks by itself.
                let _ = queue.sender.try_send(None);
            }
            _ => {}
        };
        self.lanes.iter().for_each(queued);
        let deadline = Instant::now() + CLOSE_WITHIN;
        for lane in self.lanes {
            match lane.outlet {
                Outlet::Direct(sink) => sink.close(),
                Outlet::Queued(_, thread) => {
                    thread.thread().unpark();
                    while !thread.is_finished() && Instant::now() < deadline {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
                Outlet::None(_) => {}
            }
        }
    }
}

/// A panic is an error of the sink that panicked.
fn catch<T>(call: impl FnOnce() -> Result<T, SinkError>) -> Result<T, SinkError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
}

fn panicked(panic: &(dyn Any + Send)) -> SinkError {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    SinkError::Lost(format!("panicked: {text}"))
}

/// The thread of one sink.
struct Worker {
    shared: Arc<Shared>,
    events: Receiver<Option<Event>>,
    open: Box<dyn Fn() -> Result<Box<dyn Sink>, SinkError> + Send>,
    /// `None` while it has to be opened again.
    sink: Option<Box<dyn Sink>>,
    pause: Duration,
    /// How many drops are in the log.
    dropped: u64,
}

impl Worker {
    fn run(mut self) {
        loop {
            let event = match self.events.try_recv() {
                Ok(event) => event,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    self.idle();
                    if self.shared.is_closing() {
                        break;
                    }
                    let Ok(event) = self.events.recv() else { break };
                    event
                }
            };
            let Some(event) = event else { continue };
            let delivered = self.deliver(&event);
            self.shared.release(&event);
            if let Err(error) = delivered {
                self.shared.lose(&event);
                if let SinkError::Failed(why) = &error {
                    self.shared.set_state(State::Failed, Some(why));
                    break;
                }
            }
        }
        for event in self.events.try_iter().flatten() {
            self.shared.release(&event);
            self.shared.lose(&event);
        }
        if let Some(sink) = self.sink.take() {
            let _ = catch(|| {
                sink.close();
                Ok(())
            });
        }
    }

    fn idle(&mut self) {
        if let Some(sink) = &mut self.sink
            && let Err(error) = catch(|| {
                sink.idle();
                Ok(())
            })
        {
            self.reopen_later(&error);
        }
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        if dropped > self.dropped {
            tracing::warn!("sink {}: {} events dropped", self.shared.name, dropped - self.dropped);
            self.dropped = dropped;
        }
    }

    /// An error means that the event is lost.
    fn deliver(&mut self, event: &Event) -> Result<(), SinkError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let taken = catch(|| {
                let sink = match self.sink.take() {
                    Some(sink) => sink,
                    None => (self.open)()?,
                };
                self.sink.insert(sink).take(event)
            });
            match taken {
                Ok(()) => {
                    self.shared.delivered.fetch_add(1, Ordering::Relaxed);
                    self.shared.set_state(State::Running, None);
                    self.pause = PAUSE_MIN;
                    return Ok(());
                }
                Err(error @ SinkError::Failed(_)) => return Err(error),
                Err(error @ SinkError::Lost(_)) => {
                    self.reopen_later(&error);
                    return Err(error);
                }
                Err(error @ SinkError::Retry(_)) => {
                    self.reopen_later(&error);
                    if attempt == ATTEMPTS_MAX || self.shared.is_closing() {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Closes the sink and waits, each time longer. The pause ends when the process does.
    fn reopen_later(&mut self, error: &SinkError) {
        self.sink = None;
        self.shared.set_state(State::Retrying, Some(&error.to_string()));
        let deadline = Instant::now() + self.pause;
        while !self.shared.is_closing() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
#[path = "bus_tests.rs"]
mod tests;
