//! Sends records and series to a server and loses nothing on the way.
//!
//! One thread makes batches: every record that changed, and the series that were offered since. They are on
//! disk before anything else happens to them. Another one sends the oldest until the server acknowledges it.
//! Producers never wait for either.

mod held;
mod interims;
pub(crate) mod sender;
pub mod server_watch;

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use met_core::job::Record;
use met_core::node_health::NodeHealth;
use met_core::series::Series;
use met_core::table::{NANO, ONE};
use met_core::{Column, MISSING, Table, Unit, columns};
use met_wire::batch::{Header, Interim, NodeBatch, SAMPLES_MAX};
use serde::{Deserialize, Serialize};

use held::{Held, Packed};
use interims::Interims;
use server_watch::ServerWatch;

use crate::bus::{self, State};
use crate::clock::now_ns;
use crate::event::{Event, Kind, Samples};
use crate::link::{Address, BadAddress, Link};
use crate::sink::{Interest, Sink, SinkError, SinkSpec};
use crate::snapshot::Rows;
use crate::spool::{Limits, Spool};

/// Series that were offered and not taken over yet; one for each job and flush.
const QUEUE: usize = 4096;
/// Samples held in memory before they become a batch early, or, on a full disk, are given up.
const CELLS_MAX: usize = 400_000;
/// The same of their times. A server takes twice as many in a batch, and what comes last is of any length.
const TIMES_MAX: usize = SAMPLES_MAX / 2;
/// Of any length: a job with hundreds of steps has a long one.
const RECORDS_PER_BATCH: usize = 100;
/// Bytes of the records in one batch, of which a server takes 8 MiB in all; a longer record is alone.
const RECORD_BYTES_PER_BATCH: usize = 2 << 20;
/// The same of the series: more than all the cells that are held can take.
const SERIES_BYTES_PER_BATCH: usize = 4 << 20;
/// An end is sent this soon, together with ends right after it.
const END_WITHIN: Duration = Duration::from_millis(300);
/// The series of the machine is sent this often: with one sample of each part its names are most of it.
const NODE_EVERY: Duration = Duration::from_secs(60);
const STACK_BYTES: usize = 512 << 10;

columns! { COLUMNS:
    WAITING = Column::gauge("waiting", Unit::Bytes, ONE, "what waits on disk for the server").usual(),
    BATCHES = Column::gauge("batches", Unit::Count, ONE, "batches that wait for the server").usual(),
    OLDEST = Column::gauge("oldest", Unit::Seconds, NANO, "how long the oldest batch has waited for the server").usual(),
    DROPPED = Column::counter("dropped", Unit::Count, ONE, "samples that were given up, because there was no room").minimal(),
    REFUSED = Column::counter("refused", Unit::Count, ONE, "batches that the server will never take, since the daemon began").usual(),
    ACKNOWLEDGED = Column::gauge("acknowledged_time", Unit::Seconds, NANO, "when the server last had everything of a batch, in unix time").usual(),
    CLOCK = Column::gauge("clock_offset", Unit::Seconds, NANO, "how far this clock is behind the server's"),
}

pub static SPOOL: Table = Table {
    name: "spool",
    subject: "what waits for the server of the cluster",
    labels: &[],
    columns: COLUMNS,
};

pub static SPEC: SinkSpec = SinkSpec {
    name: "forward",
    help: "sends records and series to the server of a cluster; it has a section of its own, `forward`",
    options: &[],
    interest: |_| Interest::default(),
    open: None,
};

/// What a forwarder needs to know.
pub struct Plan {
    pub address: Address,
    pub folder: PathBuf,
    pub limits: Limits,
    /// A batch holds what came in this time.
    pub every: Duration,
    /// When nothing happened in this time, an empty batch says that we are here.
    pub quiet: Duration,
    /// The sender; the spool fills in its own fields.
    pub header: Header,
}

/// Records that changed after a mark, in the order of change.
#[derive(Debug, Default)]
pub struct Changed {
    pub records: Vec<Record>,
    /// Up to here they are all there, also those that are not to be sent.
    pub mark: i64,
    pub more: bool,
}

/// Where they come from: the catalogue of the node.
pub trait Outbox: Send {
    fn changed_after(&mut self, mark: i64, limit: usize) -> io::Result<Changed>;
}

/// How it goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub url: String,
    pub batches_waiting: u64,
    pub bytes_waiting: u64,
    /// How long the oldest of them has waited.
    #[serde(default)]
    pub oldest_ns: Option<i64>,
    pub dropped_samples: u64,
    pub refused_batches: u64,
    /// Batches in the spool that are not sent, also those of earlier daemons.
    #[serde(default)]
    pub quarantined_batches: u64,
    #[serde(default)]
    pub spool: Option<PathBuf>,
    /// Unix time of the last answer; `None` before the first.
    pub acknowledged_ns: Option<i64>,
    /// How far this clock is behind the server's.
    pub clock_offset_ns: Option<i64>,
    /// Since the last answer.
    pub last_error: Option<String>,
    /// Why nothing can be spooled.
    pub spool_error: Option<String>,
}

enum Message {
    Samples(Arc<Samples>),
    Interim(Arc<Interim>),
    /// A job ended, or began.
    Hurry,
    Stop,
}

pub struct Forward {
    queue: SyncSender<Message>,
    shared: Arc<Shared>,
    maker: Option<JoinHandle<()>>,
    every: Duration,
}

struct Shared {
    inner: Mutex<Inner>,
    /// Rung when there is something to send, or nothing more to do.
    changed: Condvar,
    /// What the server says of jobs that are watched.
    watch: ServerWatch,
}

struct Inner {
    spool: Spool,
    status: Status,
    lost_in_queue: u64,
    /// As it was last published.
    health: NodeHealth,
    stopping: bool,
}

impl Shared {
    fn rows(&self) -> Rows {
        let status = self.status();
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let mut cells = [MISSING; COLUMNS.len()];
        cells[WAITING] = count(status.bytes_waiting);
        cells[BATCHES] = count(status.batches_waiting);
        // Nothing waits for no time at all.
        cells[OLDEST] = status.oldest_ns.unwrap_or(0);
        cells[DROPPED] = count(status.dropped_samples);
        cells[REFUSED] = count(status.refused_batches);
        cells[ACKNOWLEDGED] = status.acknowledged_ns.unwrap_or(MISSING);
        cells[CLOCK] = status.clock_offset_ns.unwrap_or(MISSING);
        let mut rows = Rows::new(&SPOOL);
        rows.push(&[], &cells);
        rows
    }

    fn status(&self) -> Status {
        let inner = self.lock();
        Status {
            batches_waiting: inner.spool.batches() as u64,
            bytes_waiting: inner.spool.bytes(),
            quarantined_batches: inner.spool.quarantined() as u64,
            oldest_ns: inner.spool.oldest_age().and_then(|age| i64::try_from(age.as_nanos()).ok()),
            dropped_samples: inner.spool.dropped_samples() + inner.lost_in_queue,
            ..inner.status.clone()
        }
    }

    // A thread that panicked holding it leaves a spool that is right: the files are.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CannotForward {
    #[error(transparent)]
    Address(#[from] BadAddress),
    #[error("{path}: {error}", path = .path.display())]
    Spool { path: PathBuf, error: io::Error },
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
}

impl Forward {
    pub fn start(plan: Plan, outbox: Box<dyn Outbox>) -> Result<Forward, CannotForward> {
        let link = Link::open(&plan.address)?;
        let spool = Spool::open(&plan.folder)
            .map_err(|error| CannotForward::Spool { path: plan.folder.clone(), error })?;
        let status =
            Status { url: link.url().to_owned(), spool: Some(plan.folder.clone()), ..Status::default() };
        let own = Header { run: spool.id().to_owned(), ..plan.header.clone() };
        let inner = Inner { spool, status, lost_in_queue: 0, health: NodeHealth::default(), stopping: false };
        let (inner, watch) = (Mutex::new(inner), ServerWatch::default());
        let shared = Arc::new(Shared { inner, changed: Condvar::new(), watch });
        let (queue, offered) = mpsc::sync_channel(QUEUE);
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
            builder.spawn(work).map_err(CannotForward::Thread)
        };
        let sending = Arc::clone(&shared);
        // It is not joined at the end: it may be waiting for a server.
        spawn("forward-send", Box::new(move || sender::work(&link, &sending, &own)))?;
        let every = plan.every;
        let mut maker = Maker {
            shared: Arc::clone(&shared),
            outbox,
            limits: plan.limits,
            every: plan.every,
            quiet: plan.quiet,
            spooled: None,
            header: plan.header,
            held: Held::new(Instant::now()),
            interims: Interims::default(),
        };
        let maker = spawn("forward-make", Box::new(move || maker.work(&offered)))?;
        Ok(Forward { queue, shared, maker: Some(maker), every })
    }

    pub fn interest(&self) -> Interest {
        let kinds = vec![Kind::Started, Kind::Ended, Kind::Interim, Kind::Samples, Kind::Health];
        Interest { kinds, tables: Vec::new(), within: Some(self.every) }
    }

    /// Jobs that are watched at the server.
    pub fn server_watch(&self) -> ServerWatch {
        self.shared.watch.clone()
    }

    /// Queues samples. Samples not taken in time are dropped, and counted.
    fn offer(&self, samples: &Arc<Samples>) -> Result<(), SinkError> {
        let series = &samples.series;
        if !series.is_empty()
            && let Err(TrySendError::Full(_)) = self.queue.try_send(Message::Samples(Arc::clone(samples)))
        {
            self.shared.lock().lost_in_queue += samples_in(series, 0..series.len());
            return Err(SinkError::Lost("its queue is full".to_owned()));
        }
        Ok(())
    }

    /// There is a record that people wait for.
    fn hurry(&self) {
        // A full queue is worked on anyway.
        let _ = self.queue.try_send(Message::Hurry);
    }

    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// The same for a page, also when this is gone.
    pub fn watch(&self) -> impl Fn() -> Rows + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.rows()
    }

    /// What its status says beside the events that it took.
    pub fn details(&self) -> bus::Details {
        let shared = Arc::clone(&self.shared);
        Arc::new(move |status| status.add_forward(shared.status()))
    }

    /// Spools what there is. What is not sent waits for the next one.
    pub fn stop(mut self) {
        let _ = self.queue.send(Message::Stop);
        if let Some(maker) = self.maker.take() {
            let _ = maker.join();
        }
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
    }
}

impl Sink for Forward {
    /// Records are read from the catalogue, so that none is lost with this process.
    fn take(&mut self, event: &Event) -> Result<(), SinkError> {
        match event {
            Event::Started(_) | Event::Ended(_) => self.hurry(),
            Event::Samples(samples) => return self.offer(samples),
            // One that finds no room comes again.
            Event::Interim(interim) => drop(self.queue.try_send(Message::Interim(Arc::clone(interim)))),
            // The next batch says so.
            Event::Health(health) => self.shared.lock().health = NodeHealth::clone(health),
            Event::Tick(_) | Event::Colmet(_) | Event::Sampling(_) => {}
        }
        Ok(())
    }

    fn close(self: Box<Self>) {
        self.stop();
    }
}

impl bus::Status {
    /// Of a sink that sends, or that could not be started.
    pub fn add_forward(&mut self, forward: Status) {
        self.state = if forward.last_error.is_some() { State::Retrying } else { self.state };
        self.dropped += forward.dropped_samples;
        self.last_error = forward.last_error.clone().or_else(|| forward.spool_error.clone());
        self.forward = Some(Box::new(forward));
    }
}

/// A sample is one known cell at one time.
fn samples_in(series: &Series, range: Range<usize>) -> u64 {
    let known =
        |cells: &Vec<i64>| cells[range.clone()].iter().filter(|&&cell| cell != MISSING).count() as u64;
    series.columns.iter().map(known).sum()
}

/// Records in groups that fit in a batch; the last has room for series.
fn groups(records: Vec<Record>) -> Vec<Vec<Record>> {
    let (mut groups, mut group, mut bytes) = (Vec::new(), Vec::new(), 0);
    for record in records {
        let length = json_bytes(&record);
        if bytes + length > RECORD_BYTES_PER_BATCH && !group.is_empty() {
            groups.push(std::mem::take(&mut group));
            bytes = 0;
        }
        group.push(record);
        bytes += length;
    }
    if bytes > RECORD_BYTES_PER_BATCH {
        groups.push(std::mem::take(&mut group));
    }
    groups.push(group);
    groups
}

/// How long it is as JSON.
fn json_bytes(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be written is found out when it is.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

struct Maker {
    shared: Arc<Shared>,
    outbox: Box<dyn Outbox>,
    limits: Limits,
    every: Duration,
    quiet: Duration,
    /// When something last was. The first batch says that we are here.
    spooled: Option<Instant>,
    /// Of the last batch, as far as it does not change with every one.
    header: Header,
    held: Held,
    interims: Interims,
}

impl Maker {
    fn work(&mut self, offered: &Receiver<Message>) {
        let (mut due, mut made) = (Instant::now(), Instant::now());
        loop {
            match offered.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Message::Samples(samples)) => {
                    self.held.add(&samples);
                    due = self.shared.watch.pace.next(due, made, Instant::now(), END_WITHIN);
                }
                Ok(Message::Interim(interim)) => {
                    self.interims.hold(Arc::unwrap_or_clone(interim), Instant::now());
                }
                Ok(Message::Hurry) => due = due.min(Instant::now() + END_WITHIN),
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    self.held.hurry_node(Instant::now());
                    self.make_all();
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.make_all();
                    made = Instant::now();
                    due = made + self.every;
                }
            }
            if self.held.is_full() {
                self.held.hurry_node(Instant::now());
                self.make_all();
                made = Instant::now();
                due = made + self.every;
            }
        }
    }

    /// What was held is on disk, or given up.
    fn let_go(&mut self) {
        self.held.let_go();
        self.interims.let_go(Instant::now());
    }

    /// Batches until no record is left that was not sent.
    fn make_all(&mut self) {
        self.count_lost();
        self.held.add_node(Instant::now());
        loop {
            let mark = self.shared.lock().spool.mark();
            let changed = match self.outbox.changed_after(mark, RECORDS_PER_BATCH) {
                Ok(changed) => changed,
                Err(error) => {
                    tracing::warn!("what changed is not known, and is sent later: {error}");
                    Changed { mark, ..Changed::default() }
                }
            };
            let more = changed.more;
            let nothing = changed.mark == mark && self.held.is_empty();
            if nothing && !self.is_sign_due() || !self.make_one(changed) || !more {
                break;
            }
        }
        let mut inner = self.shared.lock();
        if let Err(error) = inner.spool.make_room(&self.limits, SystemTime::now()) {
            inner.status.spool_error = Some(error.to_string());
        }
    }

    /// Drops of the queue are reported with the next batch.
    fn count_lost(&self) {
        let mut inner = self.shared.lock();
        let lost = std::mem::take(&mut inner.lost_in_queue);
        inner.spool.count_dropped(lost);
    }

    /// Whether a batch is due without anything to send: a server reports a silent node as late, and shows how it is. An
    /// unreachable server is not contacted more often.
    fn is_sign_due(&self) -> bool {
        let inner = self.shared.lock();
        let is_quiet = self.spooled.is_none_or(|spooled| spooled.elapsed() >= self.quiet);
        (is_quiet || inner.health != self.header.health) && inner.spool.batches() == 0
    }

    /// True if it is on disk now.
    fn make_one(&mut self, Changed { records, mark, .. }: Changed) -> bool {
        let mut groups = groups(records);
        let last = groups.pop().unwrap_or_default();
        groups.into_iter().all(|records| self.make_records(records)) && self.make_last(last, mark)
    }

    /// Records that are too much for one batch with all the others. Should they not get further than this, they are
    /// sent again: the mark stays.
    fn make_records(&mut self, records: Vec<Record>) -> bool {
        let mut inner = self.shared.lock();
        let (mark, columns) = (inner.spool.spooled_mark(), self.held.columns(true));
        self.header.health = inner.health.clone();
        let header = Header { mark, made_ns: now_ns(), columns, ..self.header.clone() };
        let spooled = inner.spool.put(&mut NodeBatch { header, records, ..NodeBatch::default() }, 0);
        let is_spooled = spooled.is_ok();
        inner.status.spool_error = spooled.err().map(|error| error.to_string());
        drop(inner);
        self.shared.changed.notify_all();
        is_spooled
    }

    fn make_last(&mut self, records: Vec<Record>, mark: i64) -> bool {
        let Packed { pieces, samples, surplus } = self.held.pieces();
        let interims = self.interims.held();
        let columns = self.held.columns(!records.is_empty() || !interims.is_empty());
        self.header.health = self.shared.lock().health.clone();
        let header = Header { mark, made_ns: now_ns(), columns, ..self.header.clone() };
        let mut batch = NodeBatch { header, records, interims, pieces };
        let mut inner = self.shared.lock();
        // With a surplus it is full, and all of it is let go in any case.
        inner.spool.count_dropped(surplus);
        match inner.spool.put(&mut batch, samples) {
            Ok(()) => {
                inner.status.spool_error = None;
                drop(inner);
                self.spooled = Some(Instant::now());
                self.let_go();
                self.shared.changed.notify_all();
                true
            }
            Err(error) => {
                if inner.status.spool_error.is_none() {
                    tracing::error!(
                        "nothing can be spooled; records wait in the store, samples in memory: {error}"
                    );
                }
                inner.status.spool_error = Some(error.to_string());
                // Records are still in the catalogue. Samples have no other place.
                if self.held.is_full() {
                    inner.spool.count_dropped(samples);
                    drop(inner);
                    self.let_go();
                }
                false
            }
        }
    }
}

#[cfg(test)]
#[path = "forward/tests.rs"]
mod tests;
