//! Distributes events to sinks. Publishing never waits: each sink has a bounded queue and a thread, and what does not
//! fit is dropped and counted. A sink that fails, panics or hangs affects only itself.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use met_core::table::ONE;
use met_core::{Column, Table, Unit};
use serde::{Deserialize, Serialize};

use crate::event::{Event, Kind, Tick};
use crate::live::Hub;
use crate::sink::{Configured, Interest, Opened, Sink, SinkError};
use crate::snapshot::Rows;

/// Of the events that wait for one sink.
const QUEUE_BYTES_MAX: usize = 32 << 20;
/// The part of it that only starts and ends of jobs and news of the machine may use: samples do not displace them.
const RESERVED: usize = 4;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Then an event that a sink cannot take gives way to the next one.
const ATTEMPTS_MAX: u32 = 8;
/// Jobs whose dropped ends are named.
const NAMED_MAX: usize = 8;
const STACK_BYTES: usize = 512 << 10;

pub static SINK: Table = Table {
    name: "sink",
    subject: "a sink that events are delivered to",
    labels: &["sink"],
    columns: &[
        Column::counter("delivered", Unit::Count, ONE, "events that the sink took, since the process began")
            .usual(),
        Column::counter(
            "dropped",
            Unit::Count,
            ONE,
            "events that the sink did not get: its queue was full, or it failed",
        )
        .usual(),
        Column::counter(
            "failed",
            Unit::Count,
            ONE,
            "attempts to open the sink or to deliver an event that failed",
        )
        .usual(),
        Column::gauge("queued", Unit::Count, ONE, "events that wait for the sink").usual(),
    ],
};

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
    /// Events; `forward` counts samples that it dropped, too, and `hdf5` rows.
    pub delivered: u64,
    pub queued: u64,
    pub dropped: u64,
    /// Attempts to open it or to deliver an event that ended in an error or a panic.
    #[serde(default)]
    pub failed: u64,
    /// Ends of jobs among the dropped events, and the last of these jobs.
    #[serde(default)]
    pub dropped_ends: u64,
    #[serde(default)]
    pub dropped_jobs: Vec<String>,
    #[serde(default)]
    pub last_error: Option<String>,
}

impl Status {
    pub fn new(name: &str) -> Status {
        Status { name: name.to_owned(), ..Status::default() }
    }

    /// Nothing is logged here: the log may be the pipe that is full.
    fn lose(&mut self, event: &Event) {
        self.dropped += 1;
        if let Event::Ended(record) = event {
            self.dropped_ends += 1;
            if self.dropped_jobs.len() == NAMED_MAX {
                self.dropped_jobs.remove(0);
            }
            self.dropped_jobs.push(format!("{}:{}", record.key.manager, record.key.id));
        }
    }
}

/// What publishers and the thread of a sink share. It is held only to push, pop and count.
struct Shared {
    inner: Mutex<Inner>,
    /// There is an event, or nothing more to wait for.
    ready: Condvar,
}

struct Inner {
    status: Status,
    events: VecDeque<Event>,
    /// How many events may wait.
    queue: usize,
    /// Whether starts and ends are no loss.
    has_records: bool,
    bytes: usize,
    /// Samples in lost events that were not reported to the sink yet.
    missed_samples: u64,
    closing: bool,
}

impl Inner {
    fn new(name: &str, &Interest { queue, has_records, .. }: &Interest) -> Inner {
        let (status, events) = (Status::new(name), VecDeque::new());
        Inner { status, events, queue, has_records, bytes: 0, missed_samples: 0, closing: false }
    }

    fn lose(&mut self, event: &Event) {
        if self.has_records && matches!(event.kind(), Kind::Started | Kind::Ended) {
            return;
        }
        self.status.lose(event);
        self.missed_samples += event.samples();
    }

    fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.bytes -= event.bytes();
        Some(event)
    }

    /// Drops what is queued, and says how many events are lost by that.
    fn lose_rest(&mut self) -> u64 {
        let before = self.status.dropped;
        while let Some(event) = self.pop() {
            self.lose(&event);
        }
        self.status.dropped - before
    }

    fn push(&mut self, event: Event) {
        let is_rare = matches!(event.kind(), Kind::Started | Kind::Ended | Kind::Health);
        let room = |all: usize| if is_rare { all } else { all - all / RESERVED };
        let bytes = self.bytes + event.bytes();
        let fits = self.events.len() < room(self.queue) && bytes <= room(QUEUE_BYTES_MAX);
        if fits && self.status.state != State::Failed {
            self.bytes = bytes;
            self.events.push_back(event);
        } else {
            self.lose(&event);
        }
    }
}

impl Shared {
    fn new(name: &str, interest: &Interest) -> Arc<Shared> {
        Arc::new(Shared { inner: Mutex::new(Inner::new(name, interest)), ready: Condvar::new() })
    }

    fn tell_missed(&self, sink: &mut dyn Sink) {
        let samples = std::mem::take(&mut self.lock().missed_samples);
        if samples > 0 {
            sink.missed(samples);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offer(&self, event: Event) {
        self.lock().push(event);
        self.ready.notify_one();
    }

    /// Returns the state before.
    fn put_state(&self, state: State, error: Option<&SinkError>) -> State {
        let status = &mut self.lock().status;
        status.failed += u64::from(error.is_some());
        status.last_error = error.map(SinkError::to_string).or(status.last_error.take());
        std::mem::replace(&mut status.state, state)
    }

    /// One line in the log for each change.
    fn set_state(&self, state: State, error: Option<&SinkError>) {
        let (before, name) = (self.put_state(state, error), self.lock().status.name.clone());
        let error = error.map(SinkError::to_string).unwrap_or_default();
        match state {
            _ if before == state => {}
            State::Running => tracing::info!("sink {name}: works again"),
            State::Retrying => tracing::warn!("sink {name}: {error}; retrying"),
            State::Failed => tracing::error!("sink {name}: {error}; disabled until restart"),
        }
    }

    fn status(&self) -> Status {
        let inner = self.lock();
        Status { queued: inner.events.len() as u64, ..inner.status.clone() }
    }
}

struct Lane {
    interest: Interest,
    shared: Arc<Shared>,
    /// `None` if it could not be started.
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    /// Whether a sink that works is behind: an eighth of its queue is full. More would only take more memory.
    fn is_behind(&self) -> bool {
        let inner = self.shared.lock();
        let is_behind = inner.events.len() > inner.queue / 8 || inner.bytes > QUEUE_BYTES_MAX / 8;
        is_behind && inner.status.state == State::Running && self.thread.is_some()
    }

    fn has_failed(&self) -> bool {
        self.shared.lock().status.state == State::Failed
    }

    /// Whether events are published to it. What a failed sink misses is counted, unless it is not lost with it.
    fn is_offered(&self) -> bool {
        !(self.interest.has_records && self.has_failed())
    }

    /// Waits until its sink is closed, and no longer than this.
    fn finish(self, deadline: Instant) {
        let Some(thread) = self.thread else { return };
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut inner = self.shared.lock();
        let lost = inner.lose_rest();
        let name = &inner.status.name;
        if lost > 0 {
            tracing::warn!("sink {name}: {lost} events are dropped; it did not take them in time");
        } else if !thread.is_finished() {
            tracing::warn!("sink {name}: not closed in time");
        }
    }
}

/// All sinks of a process. Without any it does nothing and holds nothing.
#[derive(Default)]
pub struct Bus {
    lanes: Vec<Lane>,
    /// For those who watch live.
    hub: Option<Arc<Hub>>,
}

/// Publishes rows at the sampler's pace.
#[derive(Clone)]
pub struct Ticker {
    queues: Vec<(Interest, Arc<Shared>)>,
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
    /// Opens what the configuration names, for the daemon of a node or for a server. Files of sinks are in `state`.
    pub fn open(configured: &[Configured], node: Option<&str>, state: &Path) -> Bus {
        let mut bus = Bus::default();
        for &Configured { spec, ref options } in configured {
            let mut options = options.clone();
            options.node = node.map(str::to_owned);
            options.folder = Some(state.join("sinks").join(spec.name));
            bus.add(spec.name, (spec.interest)(&options), move || (spec.open)(&options));
        }
        bus
    }

    /// Adds a sink with a queue and a thread, in which it is opened, and opened again after an error.
    pub fn add(&mut self, name: &str, interest: Interest, open: impl Fn() -> Opened + Send + 'static) {
        let shared = Shared::new(name, &interest);
        let worker = Worker {
            shared: Arc::clone(&shared),
            open: Box::new(open),
            is_timed: interest.is_timed,
            sink: None,
            health: None,
            pause: PAUSE_MIN,
            wake: None,
            logged: 0,
        };
        let builder = std::thread::Builder::new().name(format!("sink-{name}")).stack_size(STACK_BYTES);
        let thread = match builder.spawn(move || worker.run()) {
            Ok(thread) => Some(thread),
            Err(error) => {
                shared.set_state(State::Failed, Some(&SinkError::Failed(error.to_string())));
                None
            }
        };
        self.lanes.push(Lane { interest, shared, thread });
    }

    /// Starts and ends go there, too, while there is a listener.
    pub fn attach(&mut self, hub: Arc<Hub>) {
        self.hub = Some(hub);
    }

    /// Whether an event of this kind is worth being made.
    pub fn wants(&self, kind: Kind) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.wants(kind))
            || self.lanes.iter().any(|lane| lane.interest.kinds.contains(&kind) && lane.is_offered())
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// How soon sinks that take any want samples.
    pub fn within(&self) -> Option<Duration> {
        self.lanes.iter().filter(|lane| !lane.has_failed()).filter_map(|lane| lane.interest.within).min()
    }

    /// For the sampling thread; `None` if no sink wants rows of ticks.
    pub fn ticker(&self) -> Option<Ticker> {
        let wanting = self.lanes.iter().filter(|lane| !lane.interest.tables.is_empty());
        let queues: Vec<_> = wanting.map(|lane| (lane.interest.clone(), Arc::clone(&lane.shared))).collect();
        (!queues.is_empty()).then_some(Ticker { queues })
    }

    /// Whether a publisher that can wait should: a sink that works is behind.
    pub fn is_crowded(&self) -> bool {
        self.lanes.iter().any(Lane::is_behind)
    }

    pub fn publish(&mut self, event: &Event) {
        if let Some(hub) = &self.hub {
            hub.publish(event);
        }
        for lane in self.lanes.iter().filter(|lane| lane.interest.wants(event) && lane.is_offered()) {
            lane.shared.offer(event.clone());
        }
    }

    /// The state of each sink, in the order of the configuration.
    pub fn status(&self) -> Vec<Status> {
        self.lanes.iter().map(|lane| lane.shared.status()).collect()
    }

    /// The same for a page, also when this is gone.
    pub fn watch(&self) -> impl Fn() -> Rows + Send + Sync + use<> {
        let lanes: Vec<_> = self.lanes.iter().map(|lane| Arc::clone(&lane.shared)).collect();
        move || rows(&lanes.iter().map(|shared| shared.status()).collect::<Vec<_>>())
    }

    /// Delivers what is queued, as far as each sink takes it in its time.
    pub fn close(self) {
        self.close_each(|interest| interest.close_within);
    }

    /// The same in a time of the caller's: a sink that works until then is left.
    pub fn close_within(self, within: Duration) {
        self.close_each(|_| within);
    }

    fn close_each(self, within: impl Fn(&Interest) -> Duration) {
        self.hub.iter().for_each(|hub| hub.close());
        for lane in &self.lanes {
            lane.shared.lock().closing = true;
            lane.shared.ready.notify_all();
        }
        let begin = Instant::now();
        for lane in self.lanes {
            let deadline = begin + within(&lane.interest);
            lane.finish(deadline);
        }
    }
}

/// The figures of sinks for a page.
pub fn rows(sinks: &[Status]) -> Rows {
    let mut rows = Rows::new(&SINK);
    for status in sinks {
        let figures = [status.delivered, status.dropped, status.failed, status.queued];
        let cells = figures.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        rows.push(std::slice::from_ref(&status.name), &cells);
    }
    rows
}

/// A panic is an error of the sink that panicked.
fn catch<T>(call: impl FnOnce() -> Result<T, SinkError>) -> Result<T, SinkError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(SinkError::Lost(format!("panicked: {text}")))
    })
}

/// What the thread of a sink does next.
enum Next {
    Take(Event),
    Open,
    Close,
}

/// The thread of one sink.
struct Worker {
    shared: Arc<Shared>,
    open: Box<dyn Fn() -> Opened + Send>,
    is_timed: bool,
    /// `None` while it has to be opened again.
    sink: Option<Box<dyn Sink>>,
    /// How the machine was last: published when it changes, so a sink that is opened again hears of it.
    health: Option<Event>,
    pause: Duration,
    /// When the sink has something to do without an event.
    wake: Option<Instant>,
    /// How many drops are in the log.
    logged: u64,
}

impl Worker {
    fn run(mut self) {
        let mut ready = self.opened().map(drop);
        loop {
            match ready {
                Err(error @ SinkError::Failed(_)) => return self.fail(&error),
                // It is tried again with the next event, or without one.
                Err(error) => self.reopen_later(&error),
                Ok(()) => {}
            }
            ready = match self.next() {
                Next::Take(event) => self.take(&event),
                Next::Open => self.opened().map(drop),
                Next::Close => break,
            };
        }
        if let Some(mut sink) = self.sink.take() {
            self.shared.tell_missed(&mut *sink);
            sink.close();
        }
    }

    fn take(&mut self, event: &Event) -> Result<(), SinkError> {
        let taken = self.deliver(event);
        if event.kind() == Kind::Health {
            self.health = Some(event.clone());
        }
        let mut inner = self.shared.lock();
        match taken {
            Ok(()) => inner.status.delivered += 1,
            Err(_) => inner.lose(event),
        }
        taken
    }

    fn opened(&mut self) -> Result<&mut Box<dyn Sink>, SinkError> {
        let open = || {
            catch(|| {
                let mut sink = (self.open)()?;
                self.health.iter().try_for_each(|health| sink.take(health))?;
                Ok(sink)
            })
        };
        let sink = self.sink.take().map_or_else(open, Ok)?;
        Ok(self.sink.insert(sink))
    }

    /// It takes nothing any more.
    fn fail(self, error: &SinkError) {
        self.shared.set_state(State::Failed, Some(error));
        self.shared.lock().lose_rest();
    }

    /// Waits for an event, or until a sink without one has something to do.
    fn next(&mut self) -> Next {
        loop {
            let (event, closing) = {
                let mut inner = self.shared.lock();
                (inner.pop(), inner.closing)
            };
            if let Some(event) = event {
                return Next::Take(event);
            }
            if self.sink.is_none() && self.is_timed && !closing {
                return Next::Open;
            }
            let shared = &self.shared;
            let idle = |sink: &mut Box<dyn Sink>| {
                catch(|| {
                    shared.tell_missed(&mut **sink);
                    sink.idle()
                })
            };
            match self.sink.as_mut().map(idle) {
                Some(Err(error)) => self.reopen_later(&error),
                Some(Ok(())) => drop(self.note_report()),
                None => {}
            }
            self.log_dropped();
            let waits = |inner: &mut Inner| inner.events.is_empty() && !inner.closing;
            // Without a sink there is none to wake.
            let wake = match &self.sink {
                Some(_) => self.wake,
                None => self.is_timed.then(Instant::now),
            };
            let within = wake.map_or(Duration::MAX, |wake| wake.saturating_duration_since(Instant::now()));
            let waited = self.shared.ready.wait_timeout_while(self.shared.lock(), within, waits);
            let mut inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !inner.events.is_empty() || inner.closing {
                return inner.pop().map_or(Next::Close, Next::Take);
            }
        }
    }

    fn log_dropped(&mut self) {
        let (dropped, name) = {
            let status = &self.shared.lock().status;
            (status.dropped, status.name.clone())
        };
        if dropped > self.logged {
            tracing::warn!("sink {name}: {} events dropped", dropped - self.logged);
            self.logged = dropped;
        }
    }

    /// Takes over what a sink with retries of its own reports; `None` if it is not one.
    fn note_report(&mut self) -> Option<()> {
        let report = self.sink.as_mut()?.report()?;
        self.wake = report.wake;
        self.shared.lock().status.dropped += report.dropped;
        let state = if report.is_retrying { State::Retrying } else { State::Running };
        let failure = report.failure.map(SinkError::Lost);
        if report.is_logged {
            self.shared.put_state(state, failure.as_ref());
        } else {
            self.shared.set_state(state, failure.as_ref());
        }
        Some(())
    }

    /// An error means that the event is lost.
    fn deliver(&mut self, event: &Event) -> Result<(), SinkError> {
        for attempt in 1.. {
            let shared = Arc::clone(&self.shared);
            let taken = self.opened().and_then(|sink| {
                catch(|| {
                    shared.tell_missed(&mut **sink);
                    sink.take(event)
                })
            });
            let Err(error) = taken else { break };
            let again = matches!(error, SinkError::Retry(_)) && attempt < ATTEMPTS_MAX;
            if !again || self.shared.lock().closing {
                return Err(error);
            }
            self.reopen_later(&error);
        }
        if self.note_report().is_none() {
            self.shared.set_state(State::Running, None);
        }
        self.pause = PAUSE_MIN;
        Ok(())
    }

    /// Closes the sink and waits, each time longer. The pause ends when the process does.
    fn reopen_later(&mut self, error: &SinkError) {
        self.sink = None;
        self.shared.set_state(State::Retrying, Some(error));
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        drop(self.shared.ready.wait_timeout_while(self.shared.lock(), pause, |inner| !inner.closing));
    }
}

#[cfg(test)]
#[path = "bus_tests.rs"]
mod tests;
