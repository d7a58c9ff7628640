//! A copy of the last tick: the sampling thread puts its figures there, the daemon the names of jobs, and the page for
//! Prometheus is written from both. A reader keeps no tick waiting.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use met_core::job::{EventCount, JobKey, Record};
use met_core::job_table::WALL;
use met_core::table::{NANO, ONE};
use met_core::{Column, DETAIL, JOB, MISSING, Table, Unit, columns};
use met_host::clock;
use met_sinks::live::Hub;
use met_sinks::prometheus;
use met_sinks::shown_jobs::{Contents, ShownCounters};
use met_sinks::snapshot::{About, HeldGpu, Job, Rows, Snapshot, cells_of};
use met_web::scrape::Wanted;

use crate::sampler::{JobNow, NodeNow};

columns! { COLUMNS:
    CPU = Column::counter("cpu", Unit::Seconds, NANO, "CPU time of the daemon itself").minimal(),
    MEMORY = Column::gauge("memory", Unit::Bytes, ONE, "resident memory of the daemon itself").usual(),
    OPEN_FILES = Column::gauge("open_files", Unit::Count, ONE, "files that the daemon has open"),
    START_TIME = Column::gauge("start_time", Unit::Seconds, NANO, "when the daemon began, in unix time").usual(),
    SAMPLE_TIME = Column::gauge("sample_time", Unit::Seconds, NANO, "when the samples on this page were taken, in unix time").usual(),
    INTERVAL = Column::gauge("interval", Unit::Seconds, NANO, "time between two samples").usual(),
    TICKS = Column::counter("ticks", Unit::Count, ONE, "ticks of the sampler").usual(),
    JOBS = Column::gauge("jobs", Unit::Count, ONE, "jobs that run").minimal(),
}

pub static DAEMON: Table =
    Table { name: "daemon", subject: "the daemon that wrote the page", labels: &[], columns: COLUMNS };

/// Ended jobs that are remembered for a scraper; the oldest leave first.
const ENDED_MAX: usize = 10_000;
/// Samples older than this, or than so many periods, are not what is: something in the machine hangs.
const OLD_AFTER: Duration = Duration::from_secs(30);
const OLD_PERIODS: i64 = 3;

/// So long a scrape waits for figures that are read for it.
const ASK_FOR: Duration = Duration::from_millis(250);
/// After so long without an answer they are asked for again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The samples are too old to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing was sampled for {} s: a source is blocked", OLD_AFTER.as_secs())]
pub struct Old;

pub struct MetricsCache {
    now: Mutex<Arc<NodeNow>>,
    jobs: Mutex<Jobs>,
    pages: Mutex<Pages>,
    contents: Contents,
    keep_ended: Duration,
    began_ns: i64,
    /// Further tables, such as what waits for a server.
    watched: Mutex<Vec<Box<dyn Fn() -> Rows + Send + Sync>>>,
    asking: Asking,
    /// For those who watch jobs live.
    pub hub: Arc<Hub>,
}

/// How scrapes get figures that are not too old.
struct Asking {
    max_age: Duration,
    /// Has the sampling thread read all jobs for a page.
    ask: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    /// Since when an answer is awaited.
    since: Mutex<Option<Instant>>,
    answered: Condvar,
    /// The last tick, in unix nanoseconds, and whether there was one since figures were last posted.
    ticked_ns: AtomicI64,
    is_behind: AtomicBool,
}

#[derive(Default)]
struct Jobs {
    running: HashMap<JobKey, Arc<About>>,
    /// The last one is the newest.
    ended: VecDeque<Ended>,
    /// Counts changes.
    version: u64,
}

struct Ended {
    at: Instant,
    about: Arc<About>,
    cells: Vec<i64>,
    events: Vec<EventCount>,
}

/// Pages as last written: several scrapers, or one that comes too often, cost one page per tick.
#[derive(Default)]
struct Pages {
    of: (i64, u64),
    shown: ShownCounters,
    written: Vec<(Wanted, Arc<[u8]>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MetricsCache {
    pub fn new(contents: Contents, keep_ended: Duration) -> MetricsCache {
        MetricsCache {
            now: Mutex::default(),
            jobs: Mutex::default(),
            pages: Mutex::default(),
            contents,
            keep_ended,
            began_ns: clock::realtime_ns(),
            watched: Mutex::default(),
            asking: Asking {
                max_age: Duration::MAX,
                ask: Mutex::default(),
                since: Mutex::default(),
                answered: Condvar::new(),
                ticked_ns: AtomicI64::new(0),
                is_behind: AtomicBool::new(false),
            },
            hub: Arc::default(),
        }
    }

    /// Whether its page has the details of jobs.
    pub fn shows_details(&self) -> bool {
        DETAIL.columns.iter().any(|column| self.contents.metrics.has(column))
    }

    pub fn no_older_than(mut self, max_age: Duration) -> MetricsCache {
        self.asking.max_age = max_age;
        self
    }

    /// What has the sampling thread post figures that were read for a page.
    pub fn ask_with(&self, ask: impl Fn() + Send + Sync + 'static) {
        *lock(&self.asking.ask) = Some(Box::new(ask));
    }

    /// Of the sampling thread, after a tick. Nothing is copied until a scrape asks for it.
    pub fn ticked(&self) {
        self.asking.ticked_ns.store(clock::realtime_ns(), Ordering::Relaxed);
        self.asking.is_behind.store(true, Ordering::Relaxed);
    }

    /// Whether figures of this time are as new as those of a page have to be.
    pub fn is_recent(&self, time_ns: i64) -> bool {
        let age_ns = u64::try_from(clock::realtime_ns() - time_ns).unwrap_or(0);
        Duration::from_nanos(age_ns) <= self.asking.max_age
    }

    /// Whether there are newer figures than those posted, or these are older than a page may be. Before the first tick
    /// there are none.
    pub fn is_stale(&self) -> bool {
        let (time_ns, ticks) = {
            let now = lock(&self.now);
            (now.time_ns, now.ticks)
        };
        self.asking.is_behind.load(Ordering::Relaxed) || ticks > 0 && !self.is_recent(time_ns)
    }

    /// Has them posted, and read again if need be, once for all who wait, and waits a moment. It blocks.
    pub fn refresh(&self) {
        if !self.is_stale() {
            return;
        }
        let mut since = lock(&self.asking.since);
        // They may have come since it was found that they are missing.
        if !self.is_stale() {
            return;
        }
        if since.is_none_or(|since| since.elapsed() > ASK_AGAIN_AFTER) {
            *since = Some(Instant::now());
            if let Some(ask) = &*lock(&self.asking.ask) {
                ask();
            }
        }
        let answered = &self.asking.answered;
        drop(answered.wait_timeout_while(since, ASK_FOR, |since| since.is_some()));
    }

    /// Shows a further table from now on.
    pub fn watch(&self, rows: impl Fn() -> Rows + Send + Sync + 'static) {
        lock(&self.watched).push(Box::new(rows));
    }

    /// Of the sampling thread, which does not wait: a reader holds this for as long as it takes to copy a pointer.
    pub fn post(&self, now: NodeNow) {
        if let Ok(mut held) = self.now.try_lock() {
            *held = Arc::new(now);
            self.asking.is_behind.store(false, Ordering::Relaxed);
        }
        *lock(&self.asking.since) = None;
        self.asking.answered.notify_all();
    }

    /// A job runs, or more is known of it.
    pub fn runs(&self, record: &Record) {
        let mut jobs = lock(&self.jobs);
        jobs.running.insert(record.key.clone(), Arc::new(About::of(record)));
        jobs.version += 1;
    }

    /// More is known of a job that may have ended.
    pub fn knows(&self, record: &Record) {
        let mut jobs = lock(&self.jobs);
        if let Some(known) = jobs.running.get_mut(&record.key) {
            *known = Arc::new(About::of(record));
        } else if let Some(ended) = jobs.ended.iter_mut().find(|ended| ended.about.key == record.key) {
            (ended.about, ended.cells) = (Arc::new(About::of(record)), cells_of(&record.totals));
            ended.events.clone_from(&record.events);
        } else {
            return;
        }
        jobs.version += 1;
    }

    /// A job is over: its last figures are shown for a while, so that a scraper sees them.
    pub fn ended(&self, record: &Record) {
        let mut jobs = lock(&self.jobs);
        jobs.running.remove(&record.key);
        jobs.ended.retain(|ended| ended.about.key != record.key);
        let ended = Ended {
            at: Instant::now(),
            about: Arc::new(About::of(record)),
            cells: cells_of(&record.totals),
            events: record.events.clone(),
        };
        jobs.ended.push_back(ended);
        if jobs.ended.len() > ENDED_MAX {
            jobs.ended.pop_front();
        }
        jobs.version += 1;
    }

    pub fn forget(&self, key: &JobKey) {
        let mut jobs = lock(&self.jobs);
        jobs.running.remove(key);
        jobs.version += 1;
    }

    /// The page, written if no client has asked for it since the last tick.
    pub fn page(&self, wanted: Wanted) -> Result<Arc<[u8]>, Old> {
        let now = Arc::clone(&lock(&self.now));
        // Before the first tick there is nothing to be old.
        let seen_ns = now.time_ns.max(self.asking.ticked_ns.load(Ordering::Relaxed));
        if now.ticks > 0 && clock::realtime_ns() - seen_ns > old_ns(now.together_ns) {
            return Err(Old);
        }
        let version = self.forget_old();
        let mut pages = lock(&self.pages);
        if pages.of != (now.time_ns, version) {
            pages.of = (now.time_ns, version);
            pages.written.clear();
        }
        if let Some((_, page)) = pages.written.iter().find(|(known, _)| *known == wanted) {
            return Ok(Arc::clone(page));
        }
        let mut page = Vec::new();
        let mut snapshot = self.snapshot(&now);
        pages.shown.fill(&mut snapshot.jobs, self.contents.metrics);
        prometheus::page(&snapshot, wanted.format, &self.contents, wanted.people, &mut page);
        let page: Arc<[u8]> = match wanted.gzip {
            // Nothing that is written to memory fails.
            true => prometheus::gzip(&page).unwrap_or_default().into(),
            false => page.into(),
        };
        pages.written.push((wanted, Arc::clone(&page)));
        Ok(page)
    }

    fn forget_old(&self) -> u64 {
        let mut jobs = lock(&self.jobs);
        let before = jobs.ended.len();
        while jobs.ended.front().is_some_and(|ended| ended.at.elapsed() > self.keep_ended) {
            jobs.ended.pop_front();
        }
        jobs.version += u64::from(jobs.ended.len() != before);
        jobs.version
    }

    /// Running jobs first, the oldest before the others: a cap on series takes them from the newest.
    fn snapshot(&self, now: &NodeNow) -> Snapshot {
        let jobs = lock(&self.jobs);
        let mut gpus: HashMap<&JobKey, Vec<HeldGpu>> = HashMap::new();
        for (key, gpu) in &now.gpus {
            gpus.entry(key).or_default().push(gpu.clone());
        }
        let mut running: Vec<&Arc<About>> = jobs.running.values().collect();
        running.sort_by(|one, other| (one.start_ns, &one.key).cmp(&(other.start_ns, &other.key)));
        let mut shown = Vec::with_capacity(running.len() + jobs.ended.len());
        for about in running {
            let JobNow { mut cells, details, events } = now.jobs.get(&about.key).cloned().unwrap_or_default();
            cells.resize(JOB.columns.len(), MISSING);
            cells[WALL] = about.start_ns.map_or(MISSING, |start_ns| (now.time_ns - start_ns).max(0));
            let gpus = gpus.remove(&about.key).unwrap_or_default();
            shown.push(Job { about: Arc::clone(about), cells, details, events, gpus });
        }
        for ended in jobs.ended.iter().rev() {
            shown.push(Job {
                about: Arc::clone(&ended.about),
                cells: ended.cells.clone(),
                details: Vec::new(),
                events: ended.events.clone(),
                gpus: Vec::new(),
            });
        }
        let mut tables = now.tables.clone();
        tables.push(self.own_row(now, jobs.running.len()));
        tables.extend(lock(&self.watched).iter().map(|rows| rows()));
        Snapshot { tables, jobs: shown }
    }

    fn own_row(&self, now: &NodeNow, jobs: usize) -> Rows {
        let mut cells = [MISSING; COLUMNS.len()];
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        cells[CPU] = spent.tv_sec * 1_000_000_000 + spent.tv_nsec;
        cells[MEMORY] = resident_bytes().unwrap_or(MISSING);
        cells[OPEN_FILES] = open_files().unwrap_or(MISSING);
        cells[START_TIME] = self.began_ns;
        if now.time_ns > 0 {
            (cells[SAMPLE_TIME], cells[INTERVAL]) = (now.time_ns, now.interval_ns);
        }
        cells[TICKS] = i64::try_from(now.ticks).unwrap_or(i64::MAX);
        cells[JOBS] = jobs as i64;
        let mut rows = Rows::new(&DAEMON);
        rows.push(&[], &cells);
        rows
    }
}

fn old_ns(interval_ns: i64) -> i64 {
    (OLD_AFTER.as_nanos() as i64).max(interval_ns.saturating_mul(OLD_PERIODS))
}

/// From Linux 6.2 on the size of their directory is their number: with hundreds of jobs thousands would be listed.
fn open_files() -> Option<i64> {
    const FOLDER: &str = "/proc/self/fd";
    let known = std::fs::metadata(FOLDER).ok().map(|folder| folder.len()).filter(|&count| count > 0);
    let listed = || std::fs::read_dir(FOLDER).ok().map(|files| files.count() as u64 - 1);
    i64::try_from(known.or_else(listed)?).ok()
}

fn resident_bytes() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: i64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * i64::try_from(rustix::param::page_size()).ok()?)
}

#[cfg(test)]
#[path = "last_tick_tests.rs"]
mod tests;
