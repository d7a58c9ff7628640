//! Batches that wait on disk for a server.
//!
//! ```text
//! <spool>/<sequence>-<records>-<samples>.batch   waits
//! <spool>/….sent                                 the newest, if the server has it: it knows how far we are
//! <spool>/….refused                              what a server will never take; for a person to look at
//! ```
//! `records` is where the part ends that is never given up. There is no other state: what is numbered next
//! is what the newest file says. Bodies for other servers than ours wait in the same way, in folders of their own;
//! they have no such part.
//!
//! Each start draws an id of its own, and a batch carries that of the start it was made after. So a folder that
//! went back in time, as with a restored snapshot, gives a number that the server has seen only under a new id.
//! Numbers go on over all of them: they are the order of the files, and a server asks only that they grow.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use met_wire::batch::{self, NodeBatch};

const WAITS: &str = "batch";
const SENT: &str = "sent";
const REFUSED: &str = "refused";
const UNFINISHED: &str = "unfinished";
/// What a file takes on disk is counted in these.
const BLOCK_BYTES: u64 = 4096;
/// More of them add nothing.
const REFUSED_MAX: usize = 1000;
const ID_BYTES: usize = 16;

/// How much may wait, and how long. Records of jobs wait without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub bytes_max: u64,
    pub age_max: Duration,
}

pub struct Spool {
    folder: PathBuf,
    id: String,
    /// Of the newest batch; 0 before the first.
    sequence: u64,
    mark: i64,
    /// Records after this one are to be sent again, because what held them is gone.
    again_after: Option<i64>,
    waiting: Queue,
    /// Quarantined, the oldest first.
    refused: VecDeque<Waiting>,
    /// Of these, how many are no longer there.
    refused_removed: u64,
    /// The newest batch that the server has, until there is a newer one.
    sent: Option<PathBuf>,
    /// One that could not be removed is reported once.
    sent_stays: bool,
    dropped_samples: u64,
}

/// The batch to send next.
#[derive(Debug)]
pub struct Oldest {
    pub sequence: u64,
    pub bytes: Vec<u8>,
    /// Where its records end.
    pub records_end: usize,
    /// It was made since the spool was opened.
    pub is_of_this_start: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    sequence: u64,
    records_end: u64,
    samples: u64,
    bytes: u64,
    made: SystemTime,
    /// It holds what changed after this mark; known of what was made since the start.
    begin_mark: Option<i64>,
    /// Whether there is more in it than a header and series, once read.
    has_records: Option<bool>,
    path: PathBuf,
}

/// Batches by their numbers, with the sum of what they take on disk: an attempt to send walks none of them.
#[derive(Default)]
struct Queue {
    batches: VecDeque<Waiting>,
    disk_bytes: u64,
}

impl Deref for Queue {
    type Target = VecDeque<Waiting>;

    fn deref(&self) -> &VecDeque<Waiting> {
        &self.batches
    }
}

impl Queue {
    fn push_back(&mut self, waiting: Waiting) {
        self.disk_bytes += waiting.disk_bytes();
        self.batches.push_back(waiting);
    }

    fn pop_front(&mut self) -> Option<Waiting> {
        let oldest = self.batches.pop_front()?;
        self.disk_bytes -= oldest.disk_bytes();
        Some(oldest)
    }

    /// The newest, unless there are only so many.
    fn pop_back_beyond(&mut self, count: usize) -> Option<Waiting> {
        if self.batches.len() <= count {
            return None;
        }
        let newest = self.batches.pop_back()?;
        self.disk_bytes -= newest.disk_bytes();
        Some(newest)
    }

    /// After batches were shrunk.
    fn settle(&mut self) {
        self.batches.retain(|waiting| waiting.bytes > 0);
        self.disk_bytes = self.batches.iter().map(Waiting::disk_bytes).sum();
    }
}

impl Waiting {
    fn has_series(&self) -> bool {
        self.bytes > self.records_end
    }

    fn disk_bytes(&self) -> u64 {
        on_disk(self.bytes)
    }

    /// An unreadable one is assumed to have some.
    fn has_records(&mut self) -> bool {
        let (path, records_end) = (&self.path, self.records_end);
        *self.has_records.get_or_insert_with(|| {
            let mut bytes = Vec::new();
            let read = File::open(path).and_then(|file| file.take(records_end).read_to_end(&mut bytes));
            let batch = read.ok().and_then(|_| NodeBatch::unpack(&bytes).ok());
            batch.is_none_or(|batch| !batch.records.is_empty())
        })
    }

    /// Gives up its series, and all of it if nothing is left then and it `may_go`. Returns the samples.
    fn shrink(&mut self, may_go: bool, too_old: bool) -> io::Result<u64> {
        let samples = if self.has_series() { self.samples } else { 0 };
        if may_go && !self.has_records() {
            remove(&self.path)?;
            self.bytes = 0;
            return Ok(samples);
        }
        // Where no block becomes free nothing is won by it.
        if self.has_series() && (too_old || on_disk(self.records_end) < self.disk_bytes()) {
            // Takes no room by itself, so it works on a full disk.
            OpenOptions::new().write(true).open(&self.path)?.set_len(self.records_end)?;
            self.bytes = self.records_end;
            return Ok(samples);
        }
        Ok(0)
    }

    fn is_too_old(&self, limits: &Limits, now: SystemTime) -> bool {
        now.duration_since(self.made).is_ok_and(|age| age > limits.age_max)
    }
}

impl Spool {
    pub fn open(folder: &Path) -> io::Result<Spool> {
        make(folder)?;
        let mut spool = Spool {
            folder: folder.to_path_buf(),
            id: random_text()?,
            sequence: 0,
            mark: 0,
            again_after: None,
            waiting: Queue::default(),
            refused: VecDeque::new(),
            refused_removed: 0,
            sent: None,
            sent_stays: false,
            dropped_samples: 0,
        };
        let mut all = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            match parse(&path) {
                Some(found) => all.push(found),
                // A half-written one was never used.
                None if path.extension().is_some_and(|ending| ending == UNFINISHED) => {
                    let _ = fs::remove_file(&path);
                }
                None => {}
            }
        }
        all.sort_unstable_by_key(|(found, _)| found.sequence);
        spool.take_up(&all);
        for (found, ending) in all {
            match ending {
                WAITS => spool.waiting.push_back(found),
                // Older ones are left where one could not be removed.
                REFUSED => spool.refused.push_back(found),
                SENT => spool.sent.replace(found.path).map_or((), |older| spool.forget_sent(&older)),
                _ => {}
            }
        }
        Ok(spool)
    }

    /// Goes on where the newest batch ended.
    fn take_up(&mut self, all: &[(Waiting, &str)]) {
        let readable = |(found, _): &(Waiting, &str)| batch::header(&fs::read(&found.path).ok()?).ok();
        let mut newest_first = all.iter().rev().filter(|(found, _)| found.records_end > 0);
        if let Some(header) = newest_first.find_map(readable) {
            self.mark = header.mark;
            self.dropped_samples = header.dropped_samples;
        }
        self.sequence = all.last().map_or(0, |(newest, _)| newest.sequence);
    }

    /// Every record up to here is in a batch. Less than before if a batch is gone: its records are in the
    /// catalogue and are read once more; the server recognises those it has.
    pub fn mark(&mut self) -> i64 {
        if let Some(again_after) = self.again_after.take() {
            self.mark = self.mark.min(again_after);
        }
        self.mark
    }

    /// The same as the newest batch says it.
    pub fn spooled_mark(&self) -> i64 {
        self.mark
    }

    /// Drawn when it was opened.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Batches that a server will never take, and that are kept for a person to look at.
    pub fn quarantined(&self) -> usize {
        self.refused.len()
    }

    pub fn dropped_samples(&self) -> u64 {
        self.dropped_samples
    }

    /// Samples that could not be stored.
    pub fn count_dropped(&mut self, samples: u64) {
        self.dropped_samples += samples;
    }

    pub fn batches(&self) -> usize {
        self.waiting.len()
    }

    /// When the oldest batch was made.
    pub fn oldest_made(&self) -> Option<SystemTime> {
        self.waiting.front().map(|oldest| oldest.made)
    }

    /// What waits, as it is on disk.
    pub fn bytes(&self) -> u64 {
        self.waiting.disk_bytes
    }

    /// What waits besides the batch with this number.
    pub fn behind(&self, sequence: u64) -> met_core::node_health::Spool {
        let at = self.waiting.binary_search_by_key(&sequence, |waiting| waiting.sequence);
        let besides = at.ok().map(|at| &self.waiting[at]);
        met_core::node_health::Spool {
            batches: self.waiting.len() as u64 - u64::from(besides.is_some()),
            bytes: self.waiting.disk_bytes - besides.map_or(0, Waiting::disk_bytes),
        }
    }

    /// Numbers a batch and keeps it: durable when this returns. After an error only its number is used up:
    /// should its file be there after all, the server recognises it.
    pub fn put(&mut self, batch: &mut NodeBatch, samples: u64) -> io::Result<()> {
        self.sequence += 1;
        batch.header.spool.clone_from(&self.id);
        batch.header.run.clone_from(&self.id);
        batch.header.sequence = self.sequence;
        batch.header.dropped_samples = self.dropped_samples;
        // Something was found gone since the records were asked for.
        batch.header.mark = self.again_after.unwrap_or(i64::MAX).min(batch.header.mark);
        let packed = batch.pack()?;
        let mut waiting = self.write(&packed.bytes, packed.records_end as u64, samples)?;
        // A mark that went back belongs to a new catalogue.
        waiting.begin_mark = Some(if batch.header.mark < self.mark { 0 } else { self.mark });
        waiting.has_records = Some(!batch.records.is_empty());
        self.mark = batch.header.mark;
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Keeps a body that is not a batch of ours, and may be given up as a whole: durable when this returns.
    pub fn put_body(&mut self, body: &[u8], samples: u64) -> io::Result<()> {
        self.sequence += 1;
        let waiting = self.write(body, 0, samples)?;
        self.waiting.push_back(waiting);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], records_end: u64, samples: u64) -> io::Result<Waiting> {
        let sequence = self.sequence;
        let name = format!("{sequence:016}-{records_end}-{samples}.{WAITS}");
        write_again_in(&self.folder, &name, bytes)?;
        if let Some(sent) = self.sent.take() {
            self.forget_sent(&sent);
        }
        let (bytes, path, made) = (bytes.len() as u64, self.folder.join(name), SystemTime::now());
        let has_records = (records_end == 0).then_some(false);
        Ok(Waiting { sequence, records_end, samples, bytes, made, begin_mark: None, has_records, path })
    }

    /// One that stays does no harm; the next start tries again.
    fn forget_sent(&mut self, sent: &Path) {
        if let Err(error) = remove(sent)
            && !std::mem::replace(&mut self.sent_stays, true)
        {
            tracing::warn!("{}, which was sent, cannot be removed: {error}", sent.display());
        }
    }

    /// The batch to send next. A missing or unreadable one is skipped.
    pub fn oldest(&mut self) -> io::Result<Option<Oldest>> {
        while let Some(oldest) = self.waiting.front() {
            let mut bytes = Vec::with_capacity(oldest.bytes as usize);
            match File::open(&oldest.path).and_then(|mut file| file.read_to_end(&mut bytes)) {
                Ok(_) => {
                    return Ok(Some(Oldest {
                        sequence: oldest.sequence,
                        records_end: usize::try_from(oldest.records_end).unwrap_or(usize::MAX),
                        is_of_this_start: oldest.begin_mark.is_some(),
                        bytes,
                    }));
                }
                Err(error) if is_of_this_file(&error) => self.give_up_oldest(&error)?,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Its records are sent again from the catalogue; its samples are lost, unless a person can read the file.
    fn give_up_oldest(&mut self, why: &io::Error) -> io::Result<()> {
        let Some(oldest) = self.waiting.front() else { return Ok(()) };
        let aside = oldest.path.with_extension(REFUSED);
        match fs::rename(&oldest.path, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        tracing::error!("{}: {why}; its records are sent again", oldest.path.display());
        let again_after = oldest.begin_mark.unwrap_or(0);
        self.again_after = Some(self.again_after.map_or(again_after, |before| before.min(again_after)));
        self.dropped_samples += oldest.samples;
        self.waiting.pop_front();
        Ok(())
    }

    /// The server has it.
    pub fn acknowledge(&mut self, sequence: u64) -> io::Result<()> {
        while self.waiting.front().is_some_and(|oldest| oldest.sequence <= sequence) {
            let Some(oldest) = self.waiting.pop_front() else { break };
            if oldest.sequence == self.sequence {
                let sent = oldest.path.with_extension(SENT);
                // Should this be undone by a crash it is sent once more, and recognised.
                match fs::rename(&oldest.path, &sent) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    renamed => renamed.map(|()| self.sent = Some(sent))?,
                }
            } else {
                remove(&oldest.path)?;
            }
        }
        Ok(())
    }

    /// The server will never take this one. `None` if it does not wait any more.
    pub fn refuse(&mut self, sequence: u64) -> io::Result<Option<PathBuf>> {
        if self.waiting.front().is_none_or(|oldest| oldest.sequence != sequence) {
            return Ok(None);
        }
        let Some(oldest) = self.waiting.pop_front() else { return Ok(None) };
        let path = oldest.path.with_extension(REFUSED);
        fs::rename(&oldest.path, &path)?;
        self.refused.push_back(Waiting { path: path.clone(), ..oldest });
        Ok(Some(path))
    }

    /// Puts smaller batches in the place of one that the server will not take. They go to the end, and all of them are
    /// durable before it is removed. False if it does not wait any more.
    pub fn divide(&mut self, sequence: u64, parts: Vec<NodeBatch>) -> io::Result<bool> {
        let Some(oldest) = self.waiting.front().filter(|oldest| oldest.sequence == sequence).cloned() else {
            return Ok(false);
        };
        let before = self.waiting.len();
        for mut part in parts {
            let samples = if part.pieces.is_empty() { 0 } else { oldest.samples };
            part.header.mark = self.mark;
            if let Err(error) = self.put(&mut part, samples) {
                while let Some(part) = self.waiting.pop_back_beyond(before) {
                    let _ = remove(&part.path);
                }
                return Err(error);
            }
        }
        self.waiting.pop_front();
        remove(&oldest.path)?;
        Ok(true)
    }

    /// Drops the oldest series until the rest is within its limits, quarantined ones first. A file that cannot be
    /// cut is left, and the first error returned at the end.
    pub fn make_room(&mut self, limits: &Limits, now: SystemTime) -> io::Result<()> {
        let mut result = self.remove_refused();
        let mut bytes = self.bytes() + self.refused.iter().map(Waiting::disk_bytes).sum::<u64>();
        for waiting in self.refused.iter_mut().chain(&mut self.waiting.batches) {
            let too_old = waiting.is_too_old(limits, now);
            if bytes <= limits.bytes_max && !too_old {
                continue;
            }
            let before = waiting.disk_bytes();
            // Only the newest has to say how far we are.
            match waiting.shrink(waiting.sequence != self.sequence, too_old) {
                Ok(samples) => self.dropped_samples += samples,
                // The sender finds that it is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => result = result.and(Err(error)),
            }
            bytes -= before - waiting.disk_bytes();
        }
        self.refused.retain(|refused| refused.bytes > 0);
        self.waiting.settle();
        result
    }

    fn remove_refused(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        let removed_before = self.refused_removed;
        while self.refused.len() > REFUSED_MAX {
            let Some(oldest) = self.refused.pop_front() else { break };
            self.dropped_samples += if oldest.has_series() { oldest.samples } else { 0 };
            self.refused_removed += 1;
            result = result.and(remove(&oldest.path));
        }
        if self.refused_removed > removed_before {
            let removed = self.refused_removed;
            tracing::warn!(
                "more than {REFUSED_MAX} refused batches: {removed} of the oldest are removed since the start"
            );
        }
        result
    }
}

fn on_disk(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}

fn parse(path: &Path) -> Option<(Waiting, &'static str)> {
    let ending = path.extension()?.to_str()?;
    let ending = [WAITS, SENT, REFUSED].into_iter().find(|known| *known == ending)?;
    let mut numbers = path.file_stem()?.to_str()?.split('-').map(|number| number.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (sequence, records_end, samples) = (next()?, next()?, next()?);
    let metadata = fs::metadata(path).ok()?;
    let made = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let (bytes, path) = (metadata.len(), path.to_path_buf());
    let has_records = (records_end == 0).then_some(false);
    Some((
        Waiting { sequence, records_end, samples, bytes, made, begin_mark: None, has_records, path },
        ending,
    ))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The file will not be better later; another one may be. Not so where descriptors or memory are short.
fn is_of_this_file(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied};
    const INPUT_OUTPUT: i32 = 5;
    const UNCLEAN: i32 = 117;
    matches!(error.kind(), NotFound | PermissionDenied | IsADirectory | NotADirectory)
        || matches!(error.raw_os_error(), Some(INPUT_OUTPUT | UNCLEAN))
}

/// The folder may have been removed meanwhile.
fn write_again_in(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let sync = |folder: &Path| File::open(folder)?.sync_all();
    match write_durably(folder, name, bytes, sync) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(folder)?;
            write_durably(folder, name, bytes, sync)
        }
        written => written,
    }
}

fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn write_durably(
    folder: &Path,
    name: &str,
    bytes: &[u8],
    sync: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let finished = folder.join(name);
    let unfinished = finished.with_extension(UNFINISHED);
    let written = (|| {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, &finished)?;
        sync(folder)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
        // It is written again with another number; the old one must not come back at the next start.
        let _ = fs::remove_file(&finished);
    }
    written
}

/// Unpredictable letters.
pub fn random_text() -> io::Result<String> {
    let mut bytes = [0; ID_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
#[path = "spool_tests.rs"]
mod tests;
