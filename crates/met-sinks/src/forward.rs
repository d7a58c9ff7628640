//! Sends records and series to a server and loses nothing on the way.
//!
//! The thread of the sink makes batches: every record that changed, and the series that were published since. They are
//! on disk before anything else happens to them. Another one sends the oldest until the server acknowledges it.
//! Producers wait for neither, and neither does who wants to know how it goes.

mod held;
mod interims;
mod monitor;
pub(crate) mod sender;
pub mod server_watch;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use met_core::job::Record;
use met_core::node_health::NodeHealth;
use met_core::table::{NANO, ONE};
use met_core::{Column, Table, Unit, columns};
use met_wire::batch::{Header, NodeBatch, SAMPLES_MAX};
use serde::Serialize;

use held::{Held, Packed};
use interims::Interims;
pub use monitor::{Monitor, Status};

use crate::clock::now_ns;
use crate::event::{Event, Kind};
use crate::link::{Address, Link};
use crate::sink::{Interest, Opened, Options, Report, Sink, SinkError, SinkSpec};
use crate::spool::{Limits, Spool};

/// Events that were published and not taken over yet; one for each job and flush.
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
/// A batch that is due waits for what is queued, and no longer than this.
const GATHERS: Duration = Duration::from_secs(1);
/// The series of the machine is sent this often: with one sample of each part its names are most of it.
const NODE_EVERY: Duration = Duration::from_secs(60);
/// At the end of the process what is held is synced to disk, which may be busy then.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);
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
    has_section: true,
    interest,
    open,
};

/// The option that allows plain HTTP.
pub const ALLOW_PLAIN: &str = "forward.plain: yes in met.yaml";

pub type Prepared = Result<(Plan, Box<dyn Outbox>), SinkError>;

/// What a daemon hands to the forwarder that it opens, as its context.
pub struct Uplink {
    /// A batch holds what came in this time.
    pub every: Duration,
    pub monitor: Monitor,
    /// Called each time it is opened.
    pub prepare: Box<dyn Fn() -> Prepared + Send + Sync>,
}

/// What a forwarder needs to know.
#[derive(Clone)]
pub struct Plan {
    pub address: Address,
    pub folder: PathBuf,
    pub limits: Limits,
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

fn interest(options: &Options) -> Interest {
    let kinds = vec![Kind::Started, Kind::Ended, Kind::Interim, Kind::Samples, Kind::Health];
    let within = options.context.get().map(|uplink: &Uplink| uplink.every);
    Interest {
        kinds,
        tables: Vec::new(),
        within,
        queue: QUEUE,
        is_timed: true,
        has_records: true,
        close_within: CLOSE_WITHIN,
    }
}

fn open(options: &Options) -> Opened {
    let uplink: Option<&Uplink> = options.context.get();
    let uplink = uplink.ok_or_else(|| SinkError::Failed("there is no server to send to".to_owned()))?;
    // Settings that were right once may be again.
    let later = |error| match error {
        SinkError::Failed(why) if uplink.monitor.was_opened() => SinkError::Retry(why),
        error => error,
    };
    let opened = Forward::open(uplink).map_err(later).inspect_err(|error| uplink.monitor.not_opened(error));
    Ok(Box::new(opened?))
}

/// What the two threads share.
struct Shared {
    /// Held while files are written and read: no other thread may wait for it.
    inner: Mutex<Inner>,
    /// Rung when there is something to send, or nothing more to do.
    changed: Condvar,
    monitor: Monitor,
}

struct Inner {
    spool: Spool,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Sending,
    /// The process ends: nothing more is begun.
    Closing,
    /// Something went wrong, and the folder is opened again: its files belong to the next spool.
    Abandoned,
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut Spool) -> T) -> T {
        let mut inner = self.lock();
        let result = change(&mut inner.spool);
        self.monitor.spool_is(&inner.spool);
        result
    }

    fn end(&self, phase: Phase) {
        self.lock().phase = phase;
        self.changed.notify_all();
    }

    // A thread that panicked holding it leaves a spool that is right: the files are.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Forward {
    shared: Arc<Shared>,
    outbox: Box<dyn Outbox>,
    limits: Limits,
    every: Duration,
    quiet: Duration,
    /// When something last was. The first batch says that we are here.
    spooled: Option<Instant>,
    /// Of the last batch, as far as it does not change with every one.
    header: Header,
    /// As it was last published.
    health: NodeHealth,
    held: Held,
    interims: Interims,
    /// When batches were last made, and are to be made again.
    made: Instant,
    due: Instant,
}

impl Forward {
    fn open(uplink: &Uplink) -> Result<Forward, SinkError> {
        let later = |error: io::Error, what: &str| SinkError::Retry(format!("{what}: {error}"));
        let Uplink { every, monitor, prepare } = uplink;
        let (plan, outbox) = prepare()?;
        let link = Link::open(&plan.address)
            .map_err(|error| SinkError::Failed(format!("forward: {}", error.message(ALLOW_PLAIN))))?;
        let mut spool =
            Spool::open(&plan.folder).map_err(|error| later(error, &plan.folder.display().to_string()))?;
        let own = Header { run: spool.id().to_owned(), ..plan.header.clone() };
        monitor.opened(link.url(), &plan.folder, &mut spool);
        let inner = Mutex::new(Inner { spool, phase: Phase::Sending });
        let shared = Arc::new(Shared { inner, changed: Condvar::new(), monitor: monitor.clone() });
        let (sending, url) = (Arc::clone(&shared), link.url().to_owned());
        let builder = std::thread::Builder::new().name("forward-send".to_owned()).stack_size(STACK_BYTES);
        // It is not joined at the end: it may be waiting for a server.
        builder
            .spawn(move || sender::work(&link, &sending, &own))
            .map_err(|error| later(error, "no thread can be started"))?;
        tracing::info!("sending to {url}");
        let now = Instant::now();
        Ok(Forward {
            shared,
            outbox,
            limits: plan.limits,
            every: *every,
            quiet: plan.quiet,
            spooled: None,
            header: plan.header,
            health: NodeHealth::default(),
            held: Held::new(now),
            interims: Interims::default(),
            made: now,
            due: now,
        })
    }
}

impl Sink for Forward {
    /// Records are read from the catalogue, so that none is lost with this process.
    fn take(&mut self, event: &Event) -> Result<(), SinkError> {
        let now = Instant::now();
        match event {
            Event::Started(_) | Event::Ended(_) => self.due = self.due.min(now + END_WITHIN),
            Event::Samples(samples) if !samples.series.is_empty() => {
                self.held.add(samples);
                let pace = &self.shared.monitor.watch.pace;
                self.due = pace.next(self.due, self.made, now, END_WITHIN);
            }
            Event::Interim(interim) => self.interims.hold(interim, now),
            // The next batch says so.
            Event::Health(health) => self.health = NodeHealth::clone(health),
            Event::Samples(_) | Event::Tick(_) | Event::Colmet(_) | Event::Sampling(_) => {}
        }
        if self.held.is_full() {
            self.held.hurry_node(now);
            self.make_all();
        } else if now > self.due + GATHERS {
            self.make_all();
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), SinkError> {
        if Instant::now() >= self.due {
            self.make_all();
        }
        Ok(())
    }

    /// The next batch says so to the server.
    fn missed(&mut self, samples: u64) {
        self.shared.change(|spool| spool.count_dropped(samples));
    }

    fn report(&mut self) -> Option<Report> {
        Some(self.shared.monitor.report(self.due))
    }

    /// Spools what there is. What is not sent waits for the next one.
    fn close(mut self: Box<Self>) {
        self.held.hurry_node(Instant::now());
        self.make_all();
        let lost = self.held.samples();
        if lost > 0 {
            self.shared.change(|spool| spool.count_dropped(lost));
            tracing::warn!("the spool cannot be written: {lost} values of samples are lost");
        }
        self.shared.end(Phase::Closing);
    }
}

impl Drop for Forward {
    /// Without having been closed, it has panicked: what it held is lost.
    fn drop(&mut self) {
        if self.shared.lock().phase == Phase::Sending {
            self.shared.change(|spool| spool.count_dropped(self.held.samples()));
            self.shared.monitor.interrupted();
            self.shared.end(Phase::Abandoned);
        }
    }
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

impl Forward {
    /// What was held is on disk, or given up.
    fn let_go(&mut self) {
        self.held.let_go();
        self.interims.let_go(Instant::now());
    }

    /// Batches until no record is left that was not sent.
    fn make_all(&mut self) {
        self.held.add_node(Instant::now());
        let mut made = None;
        loop {
            let mark = self.shared.change(Spool::mark);
            let changed = match self.outbox.changed_after(mark, RECORDS_PER_BATCH) {
                Ok(changed) => changed,
                Err(error) => {
                    tracing::warn!("what changed is not known, and is sent later: {error}");
                    Changed { mark, ..Changed::default() }
                }
            };
            let more = changed.more;
            let nothing = changed.mark == mark && self.held.is_empty();
            if nothing && !self.is_sign_due() {
                break;
            }
            let one = self.make_one(changed);
            let goes_on = one.is_ok() && more;
            made = Some(one);
            if !goes_on {
                break;
            }
        }
        let has_room = self.shared.change(|spool| spool.make_room(&self.limits, SystemTime::now()));
        // Where nothing was made, nothing is new.
        if made.is_some() || has_room.is_err() {
            self.note_spooled(made.unwrap_or(Ok(())).and(has_room));
        }
        self.shared.monitor.made();
        self.made = Instant::now();
        self.due = self.made + self.every;
    }

    /// One line in the log for each change.
    fn note_spooled(&self, result: io::Result<()>) {
        let error = result.err().map(|error| error.to_string());
        match (self.shared.monitor.spooled(error.clone()), error) {
            (false, _) => {}
            (true, None) => tracing::info!("batches can be spooled again"),
            (true, Some(error)) => {
                tracing::error!(
                    "nothing can be spooled; records wait in the store, samples in memory: {error}"
                );
            }
        }
    }

    /// Whether a batch is due without anything to send: a server reports a silent node as late, and shows how it is. An
    /// unreachable server is not contacted more often.
    fn is_sign_due(&self) -> bool {
        let is_quiet = self.spooled.is_none_or(|spooled| spooled.elapsed() >= self.quiet);
        (is_quiet || self.health != self.header.health) && self.shared.lock().spool.batches() == 0
    }

    /// It is on disk when this returns.
    fn make_one(&mut self, Changed { records, mark, .. }: Changed) -> io::Result<()> {
        let mut groups = groups(records);
        let last = groups.pop().unwrap_or_default();
        groups.into_iter().try_for_each(|records| self.make_records(records))?;
        self.make_last(last, mark)
    }

    /// Records that are too much for one batch with all the others. Should they not get further than this, they are
    /// sent again: the mark stays.
    fn make_records(&mut self, records: Vec<Record>) -> io::Result<()> {
        let columns = self.held.columns(true);
        self.header.health = self.health.clone();
        let header = Header { made_ns: now_ns(), columns, ..self.header.clone() };
        let mut batch = NodeBatch { header, records, ..NodeBatch::default() };
        let spooled = self.shared.change(|spool| {
            batch.header.mark = spool.spooled_mark();
            spool.put(&mut batch, 0)
        });
        self.shared.changed.notify_all();
        spooled
    }

    fn make_last(&mut self, records: Vec<Record>, mark: i64) -> io::Result<()> {
        let Packed { pieces, samples, surplus } = self.held.pieces();
        let interims = self.interims.held();
        let columns = self.held.columns(!records.is_empty() || !interims.is_empty());
        self.header.health = self.health.clone();
        let header = Header { mark, made_ns: now_ns(), columns, ..self.header.clone() };
        let mut batch = NodeBatch { header, records, interims, pieces };
        let spooled = self.shared.change(|spool| {
            // With a surplus it is full, and all of it is let go in any case.
            spool.count_dropped(surplus);
            spool.put(&mut batch, samples)
        });
        if spooled.is_ok() {
            self.spooled = Some(Instant::now());
            self.let_go();
            self.shared.changed.notify_all();
        } else if self.held.is_full() {
            // Records are still in the catalogue. Samples have no other place.
            self.shared.change(|spool| spool.count_dropped(samples));
            self.let_go();
        }
        spooled
    }
}

#[cfg(test)]
#[path = "forward/tests.rs"]
mod tests;
