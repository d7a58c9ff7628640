//! Sends what waits on disk, oldest first, until the server has it.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use met_core::backoff::jittered;

use super::bulk::{self, CONTENT_TYPE, Document, Fate, PATH, Verdict};
use super::indices::Indices;
use super::quarantine::Quarantine;
use crate::link::Link;
use crate::spool::{Limits, Oldest, Spool};

const ANSWER_BYTES_MAX: u64 = 8 << 20;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Attempts for a document that fails while others are taken.
const ATTEMPTS_MAX: u32 = 10;
/// Documents in one request; fewer while a server finds that too many.
pub const GROUP_MAX: usize = 5000;

/// What the sink and its sending thread share.
pub struct Handover {
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    spool: Spool,
    state: Progress,
    stopping: bool,
}

/// How it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Documents that were given up or quarantined.
    pub dropped: u64,
    /// Since it was last asked.
    pub failure: Option<String>,
    pub is_retrying: bool,
    pub waiting: usize,
}

impl Handover {
    pub fn new(spool: Spool) -> Arc<Handover> {
        let inner = Inner { spool, state: Progress::default(), stopping: false };
        Arc::new(Handover { inner: Mutex::new(inner), changed: Condvar::new() })
    }

    // A thread that panicked holding it leaves a spool that is right: the files are.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a body on disk; false if that is not possible.
    pub fn put(&self, body: &[u8], documents: u64, limits: &Limits) -> bool {
        let mut inner = self.lock();
        let dropped_before = inner.spool.dropped_samples();
        let put = inner.spool.put_body(body, documents);
        let put = put.and_then(|()| inner.spool.make_room(limits, SystemTime::now()));
        let dropped = inner.spool.dropped_samples() - dropped_before;
        inner.state.dropped += dropped;
        if dropped > 0 {
            inner.state.failure =
                Some(format!("the spool is full: {dropped} of the oldest documents dropped"));
        }
        if let Err(error) = &put {
            inner.state.failure = Some(format!("cannot write to the spool: {error}"));
        }
        drop(inner);
        self.changed.notify_all();
        put.is_ok()
    }

    pub fn give_up(&self, documents: u64) {
        self.lock().state.dropped += documents;
    }

    pub fn progress(&self) -> Progress {
        let mut inner = self.lock();
        let waiting = inner.spool.batches();
        Progress { waiting, failure: inner.state.failure.take(), ..inner.state.clone() }
    }

    /// Ends the thread, which gets this long for what waits if the server takes it.
    pub fn stop(&self, within: Duration) {
        let is_busy = |inner: &mut Inner| inner.spool.batches() > 0 && !inner.state.is_retrying;
        let waited = self.changed.wait_timeout_while(self.lock(), within, is_busy);
        waited.unwrap_or_else(PoisonError::into_inner).0.stopping = true;
        self.changed.notify_all();
    }
}

/// A body that is being sent.
struct Batch {
    bytes: Vec<u8>,
    pending: Vec<Pending>,
}

struct Pending {
    document: Document,
    attempts: u32,
}

pub struct Sender {
    pub link: Link,
    pub headers: Vec<(String, String)>,
    pub shared: Arc<Handover>,
    pub indices: Indices,
    pub quarantine: Quarantine,
    pub group_max: usize,
}

impl Sender {
    pub fn work(mut self) {
        while let Some(oldest) = self.next() {
            let pending = bulk::documents(&oldest.bytes).into_iter();
            let pending = pending.map(|document| Pending { document, attempts: 0 }).collect();
            let mut batch = Batch { bytes: oldest.bytes, pending };
            let mut pause = PAUSE_MIN;
            while !batch.pending.is_empty() {
                match self.attempt(&mut batch) {
                    Ok(()) => {
                        pause = PAUSE_MIN;
                        self.shared.lock().state.is_retrying = false;
                    }
                    Err(why) => {
                        if !self.wait(why, pause) {
                            return;
                        }
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
            }
            // One that cannot be removed is sent once more, and recognised by its ids.
            if let Err(error) = self.shared.lock().spool.acknowledge(oldest.sequence) {
                tracing::warn!("sink elasticsearch: a body that was sent cannot be removed: {error}");
            }
            self.shared.changed.notify_all();
        }
    }

    /// Waits for a body. `None` when there will be none.
    fn next(&self) -> Option<Oldest> {
        let mut inner = self.shared.lock();
        loop {
            if inner.stopping {
                return None;
            }
            inner = match inner.spool.oldest() {
                Ok(Some(oldest)) => return Some(oldest),
                Ok(None) => self.shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Err(error) => {
                    inner.state.failure = Some(format!("cannot read the spool: {error}"));
                    let waited = self.shared.changed.wait_timeout(inner, PAUSE_MIN);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Pauses after a failure; false if it is time to end.
    fn wait(&self, why: String, pause: Duration) -> bool {
        let mut inner = self.shared.lock();
        (inner.state.failure, inner.state.is_retrying) = (Some(why), true);
        self.shared.changed.notify_all();
        let waited = self.shared.changed.wait_timeout_while(inner, jittered(pause), |inner| !inner.stopping);
        !waited.unwrap_or_else(PoisonError::into_inner).0.stopping
    }

    /// Sends a group of documents. An error says why some of them have to be sent later.
    fn attempt(&mut self, batch: &mut Batch) -> Result<(), String> {
        let count = batch.pending.len().min(self.group_max);
        for pending in &batch.pending[..count] {
            self.indices.prepare(&self.link, &self.headers, &pending.document.index)?;
        }
        let group = || batch.pending[..count].iter().map(|one| &batch.bytes[one.document.lines.clone()]);
        let body: Cow<'_, [u8]> = match spans(&batch.bytes, &batch.pending[..count]) {
            true => Cow::Borrowed(&batch.bytes),
            false => Cow::Owned(group().collect::<Vec<_>>().concat()),
        };
        let mut headers: Vec<_> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        headers.push(("Content-Type", CONTENT_TYPE));
        let verdict = match self.link.post(PATH, &headers, &body, ANSWER_BYTES_MAX) {
            Ok(answer) => bulk::judge(answer.status, &answer.body, count),
            Err(error) => {
                // It may be the answer that is too long, or the work that takes too long.
                self.group_max = (self.group_max / 2).max(1);
                return Err(error.to_string());
            }
        };
        match verdict {
            Verdict::Each(fates) => self.settle(batch, fates),
            Verdict::Divide(why) if count == 1 => self.settle(batch, vec![Fate::Refused(why)]),
            Verdict::Divide(_) => {
                self.group_max = (count / 2).max(1);
                Ok(())
            }
            Verdict::Later(why) => Err(why),
        }
    }

    /// Takes over what the server said of the first documents.
    fn settle(&mut self, batch: &mut Batch, fates: Vec<Fate>) -> Result<(), String> {
        let (mut later, mut all) = (None, std::mem::take(&mut batch.pending).into_iter());
        for fate in fates {
            let Some(mut pending) = all.next() else { break };
            match fate {
                Fate::Taken => continue,
                Fate::Refused(why) => {
                    self.lay_aside(&batch.bytes[pending.document.lines], &why);
                    continue;
                }
                Fate::Later { why, is_own_fault } => {
                    pending.attempts += u32::from(is_own_fault);
                    if pending.attempts >= ATTEMPTS_MAX {
                        self.lay_aside(&batch.bytes[pending.document.lines], &why);
                        continue;
                    }
                    later = Some(why);
                }
            }
            batch.pending.push(pending);
        }
        batch.pending.extend(all);
        self.group_max = (self.group_max * 2).min(GROUP_MAX);
        match later {
            Some(why) => {
                // One of them may have been removed.
                self.indices.forget();
                Err(why)
            }
            None => Ok(()),
        }
    }

    fn lay_aside(&self, lines: &[u8], why: &str) {
        let path: PathBuf = self.quarantine.path().to_path_buf();
        let said = match self.quarantine.add(lines, why) {
            Ok(()) => format!("a document was refused, see {}: {why}", path.display()),
            Err(error) => {
                format!("a document was refused: {why}; and {} cannot be written: {error}", path.display())
            }
        };
        let mut inner = self.shared.lock();
        inner.state.dropped += 1;
        inner.state.failure = Some(said);
    }
}

/// Whether these are all documents of the body.
fn spans(bytes: &[u8], pending: &[Pending]) -> bool {
    pending.iter().map(|one| one.document.lines.len()).sum::<usize>() == bytes.len()
}
