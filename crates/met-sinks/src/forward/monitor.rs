//! How forwarding goes: written by its threads, read by status and pages, which never wait for a disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use met_core::MISSING;
use serde::{Deserialize, Serialize};

use super::server_watch::ServerWatch;
use super::{ACKNOWLEDGED, BATCHES, CLOCK, COLUMNS, DROPPED, OLDEST, REFUSED, SPOOL, WAITING};
use crate::sink::{Report, SinkError};
use crate::snapshot::Rows;
use crate::spool::Spool;

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

/// Exists before the forwarder is opened, and after it is closed.
#[derive(Clone, Default)]
pub struct Monitor {
    shared: Arc<(Mutex<Progress>, Condvar)>,
    /// What the server says of jobs that are watched.
    pub watch: ServerWatch,
}

#[derive(Default)]
struct Progress {
    status: Status,
    /// Whether it was opened, or is known not to be.
    is_tried: bool,
    oldest_made: Option<SystemTime>,
    /// Since the last report.
    failure: Option<String>,
    /// It panicked, and has not made batches since.
    is_interrupted: bool,
    /// Dropped samples of earlier reports.
    reported_dropped: u64,
}

impl Monitor {
    pub fn new(url: String) -> Monitor {
        let monitor = Monitor::default();
        monitor.lock().status.url = url;
        monitor
    }

    pub fn status(&self) -> Status {
        let progress = self.lock();
        let age = progress.oldest_made.map(|made| made.elapsed().unwrap_or_default());
        let oldest_ns = age.and_then(|age| i64::try_from(age.as_nanos()).ok());
        Status { oldest_ns, ..progress.status.clone() }
    }

    /// Waits until the first attempt to open it is over, so that its status says more than where it sends to.
    pub fn wait_opened(&self, within: Duration) {
        drop(self.shared.1.wait_timeout_while(self.lock(), within, |progress| !progress.is_tried));
    }

    /// The same for a page; none before there is a spool.
    pub fn rows(&self) -> Rows {
        let (mut rows, status) = (Rows::new(&SPOOL), self.status());
        if status.spool.is_none() {
            return rows;
        }
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
        rows.push(&[], &cells);
        rows
    }

    pub(super) fn report(&self, wake: Instant) -> Report {
        let mut progress = self.lock();
        let dropped = progress.status.dropped_samples.saturating_sub(progress.reported_dropped);
        progress.reported_dropped += dropped;
        let Progress { status, is_interrupted, .. } = &*progress;
        let is_retrying = *is_interrupted || status.last_error.is_some() || status.spool_error.is_some();
        Report { dropped, failure: progress.failure.take(), is_retrying, is_logged: true, wake: Some(wake) }
    }

    /// The spool restores the drops up to its newest batch: at the first opening those of earlier daemons, which are not
    /// reported again; later this daemon knows of more.
    pub(super) fn opened(&self, url: &str, folder: &Path, spool: &mut Spool) {
        if self.was_opened() {
            let dropped = self.lock().status.dropped_samples;
            spool.count_dropped(dropped.saturating_sub(spool.dropped_samples()));
        } else {
            self.lock().reported_dropped = spool.dropped_samples();
        }
        self.spool_is(spool);
        let mut progress = self.lock();
        let status = &mut progress.status;
        (status.url, status.spool) = (url.to_owned(), Some(folder.to_path_buf()));
        (status.last_error, status.spool_error) = (None, None);
        progress.is_tried = true;
        self.shared.1.notify_all();
    }

    pub(super) fn was_opened(&self) -> bool {
        self.lock().status.spool.is_some()
    }

    pub(super) fn not_opened(&self, error: &SinkError) {
        let mut progress = self.lock();
        let status = &mut progress.status;
        (status.last_error, status.spool_error) = match error {
            SinkError::Failed(why) => {
                (Some(format!("nothing is sent until the daemon is restarted: {why}")), None)
            }
            SinkError::Lost(why) | SinkError::Retry(why) => (None, Some(why.clone())),
        };
        progress.is_tried = true;
        self.shared.1.notify_all();
    }

    /// It panicked and will be opened again. Until it has made batches its lane shows the panic.
    pub(super) fn interrupted(&self) {
        self.lock().is_interrupted = true;
    }

    /// What was due is on disk, or the error of the spool says why not.
    pub(super) fn made(&self) {
        self.lock().is_interrupted = false;
    }

    /// After every change of the spool.
    pub(super) fn spool_is(&self, spool: &Spool) {
        let mut progress = self.lock();
        let Progress { status, oldest_made, .. } = &mut *progress;
        status.batches_waiting = spool.batches() as u64;
        status.bytes_waiting = spool.bytes();
        status.quarantined_batches = spool.quarantined() as u64;
        status.dropped_samples = spool.dropped_samples();
        *oldest_made = spool.oldest_made();
    }

    /// Whether the spool works, other than before.
    pub(super) fn spooled(&self, error: Option<String>) -> bool {
        let mut progress = self.lock();
        progress.failure = error.clone().or(progress.failure.take());
        let is_working = error.is_none();
        let before = std::mem::replace(&mut progress.status.spool_error, error);
        is_working != before.is_none()
    }

    pub(super) fn acknowledged(&self, at_ns: i64, clock_offset_ns: i64) {
        let status = &mut self.lock().status;
        (status.acknowledged_ns, status.clock_offset_ns) = (Some(at_ns), Some(clock_offset_ns));
        status.last_error = None;
    }

    pub(super) fn clock_offset_ns(&self) -> Option<i64> {
        self.lock().status.clock_offset_ns
    }

    pub(super) fn refused(&self) {
        self.lock().status.refused_batches += 1;
    }

    /// Whether it is another reason than before.
    pub(super) fn failed(&self, reason: &str) -> bool {
        let mut progress = self.lock();
        progress.failure = Some(reason.to_owned());
        let before = progress.status.last_error.replace(reason.to_owned());
        before.as_deref() != Some(reason)
    }

    // No thread can leave it half changed.
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
