//! The inbox: one directory per local job that the database does not hold yet.
//!
//! `jobs/<id>/` is private to its owner. `start` and `end` are records as JSON, `course` holds the samples
//! of a job that had no daemon. The directory is the reservation of the id. Supervisors write here and
//! never open the database, so this file uses none of it.
//!
//! The space of the end record is reserved when the start is written: a disk that fills up while the
//! job runs cannot lose its end.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use met_core::JOB;
use met_core::bounds;
use met_core::job::Record;
use met_core::series::Series;
use met_core::work::{self, Work};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use met_wire::block::{self, BLOCK_SAMPLES_MAX};

const JOBS: &str = "jobs";
const START: &str = "start";
const END: &str = "end";
const END_RESERVED: &str = "end.tmp";
const SERIES: &str = "course";
const MARKS: &str = "marks";
/// Marks a directory that is kept for its number only.
const DONE: &str = "done";
/// A second copy of the end, for the system daemon, which does not know the job yet.
const UNREPORTED: &str = "unreported";
/// Marks a job whose id the system daemon gave, or that began while it could not be asked: its end must reach that
/// daemon even if another process imports it first.
const OF_SYSTEM: &str = "of-system";

/// Ids below this are given out by the system daemon, or by users on a machine without one. Above it every user has a
/// range of their own, for jobs that start while the system daemon cannot be asked. The ranges do not overlap.
pub const SHARED_IDS_END: u64 = 1_000_000_000;

/// What its processes and cgroups add to a record between its creation and its start: with room for them the
/// space is reserved once.
const START_GROWTH_BYTES: u64 = 8 << 10;
/// What totals and summaries may add to a record between its start and its end.
const END_GROWTH_BYTES: u64 = 64 << 10;
/// What `st_blocks` counts, whatever the blocks of the file system are.
const STAT_BLOCK_BYTES: u64 = 512;
/// Larger files were not written by this program.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// A reservation that old and still empty belongs to a process that did not live to use it.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// One with room for an end and without a start, too. Longer: a job in a terminal whose start could not be written
/// may run for days.
const UNSTARTED_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
const SERIES_MAGIC: &[u8; 8] = b"metjob\x01\n";

/// The directory of one job.
#[derive(Clone, Debug)]
pub struct JobDir {
    id: u64,
    path: PathBuf,
}

/// What a directory says of its job. A file that cannot be used is a problem.
#[derive(Debug, Default)]
pub struct Entry {
    pub start: Option<Record>,
    pub end: Option<Record>,
    /// There is certainly no end. One that cannot be read, for lack of descriptors or by a failing disk, may be read
    /// later.
    pub end_is_absent: bool,
    pub problems: Vec<String>,
}

impl Entry {
    /// The newest record of the job.
    pub fn into_record(self) -> Option<Record> {
        self.end.or(self.start)
    }
}

/// The ids that only this user gives out.
pub fn own_ids(uid: u32) -> Range<u64> {
    let first = (u64::from(uid) + 1) * SHARED_IDS_END;
    first..first + SHARED_IDS_END
}

impl JobDir {
    /// Reserves the next free id, `at_least` or higher. No two callers get the same one.
    pub fn reserve(state: &Path, at_least: u64) -> io::Result<(u64, JobDir)> {
        JobDir::reserve_in(state, at_least.max(1)..SHARED_IDS_END)
    }

    /// Reserves the next free id of a user's own range.
    pub fn reserve_own(state: &Path, uid: u32) -> io::Result<(u64, JobDir)> {
        let Range { start, end } = own_ids(uid);
        JobDir::reserve_in(state, start + 1..end)
    }

    fn reserve_in(state: &Path, range: Range<u64>) -> io::Result<(u64, JobDir)> {
        let jobs = private_dir(&state.join(JOBS))?;
        // Shared with other reservations, and against a cleaner that removes the number this is about to read.
        let lock = File::open(&jobs)?;
        lock_or_go_on(&lock, FlockOperation::LockShared)?;
        let highest = ids(&jobs)?.into_iter().filter(|&id| id < range.end).max().unwrap_or(0);
        let mut id = highest.saturating_add(1).max(range.start);
        loop {
            if id >= range.end {
                return Err(io::Error::other("no job id is left"));
            }
            match make_private_dir(&jobs.join(id.to_string())) {
                Ok(()) => return Ok((id, JobDir::open(state, id))),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    id += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The directory of `id`, whether it exists or not.
    pub fn open(state: &Path, id: u64) -> JobDir {
        JobDir { id, path: state.join(JOBS).join(id.to_string()) }
    }

    /// Makes the directory of exactly this id; `AlreadyExists` if the id is taken.
    pub fn claim(state: &Path, id: u64) -> io::Result<JobDir> {
        private_dir(&state.join(JOBS))?;
        let dir = JobDir::open(state, id);
        make_private_dir(&dir.path)?;
        Ok(dir)
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the id is of a user's own range.
    pub fn has_own_id(&self) -> bool {
        self.id >= SHARED_IDS_END
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds out before anything runs whether the end of this job could be kept.
    pub fn make_room(&self, record: &Record) -> io::Result<()> {
        self.reserve_end(serde_json::to_vec(record)?.len() as u64 + START_GROWTH_BYTES + END_GROWTH_BYTES)
    }

    /// Writes the start and reserves the space of the end; an error here means that the end could not be stored
    /// either. Nothing waits for the disk: a crash of the machine leaves a job without an end.
    pub fn write_start(&self, record: &Record) -> io::Result<()> {
        let json = serde_json::to_vec(record)?;
        self.reserve_end(json.len() as u64 + END_GROWTH_BYTES)?;
        let temporary = self.path.join(format!("{START}.tmp"));
        replace(&create(&temporary)?, &json)?;
        fs::rename(&temporary, self.path.join(START))
    }

    fn reserve_end(&self, bytes: u64) -> io::Result<()> {
        let file = create(&self.path.join(END_RESERVED))?;
        if file.metadata()?.blocks() * STAT_BLOCK_BYTES >= bytes {
            return Ok(());
        }
        // Not synced: a crash of the machine takes the reservation, and the job with it. Behind the end of the file:
        // what is written there needs no cutting, for which a file system may wait for its disk.
        for flags in [FallocateFlags::KEEP_SIZE, FallocateFlags::empty()] {
            match rustix::fs::fallocate(&file, flags, 0, bytes) {
                // NFS takes the second.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                result => return Ok(result?),
            }
        }
        // Zeros take space just as well, only slower.
        file.write_all_at(&vec![0; bytes as usize], 0)
    }

    /// Writes the end durably, into the space reserved for it.
    pub fn write_end(&self, record: &Record) -> io::Result<()> {
        let json = serde_json::to_vec(record)?;
        let reserved = self.path.join(END_RESERVED);
        let file = create(&reserved)?;
        replace(&file, &json)?;
        file.sync_all()?;
        if self.path.join(OF_SYSTEM).exists() {
            // Before the end is visible: the user's own store imports and removes it.
            let _ = self.keep_unreported(&reserved);
        }
        fs::rename(&reserved, self.path.join(END))?;
        File::open(&self.path)?.sync_all()
    }

    /// Keeps a second copy of an end until [`JobDir::reported`]: the system daemon, which could not be asked for an id,
    /// gets it later.
    fn keep_unreported(&self, end: &Path) -> io::Result<()> {
        let unreported = self.path.join(UNREPORTED);
        ignore_exists(fs::hard_link(end, &unreported).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Err(error),
            // A file system without links.
            _ => fs::copy(end, &unreported).map(drop),
        }))
    }

    /// Whether there is something for [`JobDir::read_unreported`] to read.
    pub fn may_be_unreported(&self) -> bool {
        [UNREPORTED, END].iter().any(|name| self.path.join(name).exists())
    }

    /// The end, if the system daemon does not have it or it was not imported at all.
    pub fn read_unreported(&self) -> Option<Record> {
        let mut problems = Vec::new();
        self.read_record(UNREPORTED, &mut problems).0.or_else(|| self.read_record(END, &mut problems).0)
    }

    /// The system daemon gave the id, or could not be asked: it is to know the end.
    pub fn mark_of_system(&self) {
        // Best effort: without it the end is reported unless another process imports it first.
        let _ = create(&self.path.join(OF_SYSTEM));
    }

    /// Whether the system daemon is to have the end, and does not have it yet.
    pub fn is_unreported(&self) -> bool {
        self.path.join(UNREPORTED).exists()
    }

    /// Gives up reporting it to the system daemon.
    pub fn forget_unreported(&self) -> io::Result<()> {
        ignore_unless(fs::remove_file(self.path.join(UNREPORTED)), io::ErrorKind::NotFound)
    }

    /// The system daemon has the end: removes all files of the job.
    pub fn reported(&self) -> io::Result<()> {
        self.remove()?;
        self.forget_unreported()
    }

    /// Whether the end was written, by whomever; the database may have taken it in since.
    pub fn has_end(&self) -> bool {
        // An unreadable one may be without it.
        let is_there = |path: &Path| path.try_exists().unwrap_or(false);
        let is_gone = |path: &Path| !path.try_exists().unwrap_or(true);
        [END, DONE].iter().any(|name| is_there(&self.path.join(name))) || is_gone(&self.path)
    }

    /// Gives back what the end did not need of the space reserved for it.
    pub fn give_back_room(&self) {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        // Where it fails the space is free when the database has taken the end in.
        let _ = options.open(self.path.join(END)).and_then(|end| end.set_len(end.metadata()?.len()));
    }

    /// Writes samples. Best effort: totals do not depend on them, so nothing waits for the disk.
    pub fn write_series(&self, series: &Series) -> io::Result<()> {
        let mut bytes = SERIES_MAGIC.to_vec();
        let mut block = Vec::new();
        for begin in (0..series.len()).step_by(BLOCK_SAMPLES_MAX) {
            block.clear();
            block::encode(series, begin..series.len().min(begin + BLOCK_SAMPLES_MAX), &mut block);
            bytes.extend_from_slice(&(block.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&block);
        }
        let temporary = self.path.join("course.tmp");
        replace(&create(&temporary)?, &bytes)?;
        fs::rename(&temporary, self.path.join(SERIES))
    }

    /// The records of the job, as far as they are there and whole.
    pub fn read(&self) -> Entry {
        let mut entry = Entry::default();
        (entry.start, _) = self.read_record(START, &mut entry.problems);
        (entry.end, entry.end_is_absent) = self.read_record(END, &mut entry.problems);
        entry
    }

    /// The record, and whether there is certainly no such file.
    fn read_record(&self, name: &str, problems: &mut Vec<String>) -> (Option<Record>, bool) {
        let path = self.path.join(name);
        let result = read_bounded(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        match result {
            Ok(mut record) => {
                bounds::bound(&mut record);
                (Some(record), false)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (None, true),
            Err(error) => {
                problems.push(format!("{}: {error}", path.display()));
                (None, false)
            }
        }
    }

    /// The samples up to the first damaged block, and what was wrong with that.
    pub fn read_series(&self) -> (Option<Series>, Option<String>) {
        let path = self.path.join(SERIES);
        match read_bounded(&path) {
            Ok(bytes) => {
                let (series, problem) = decode_series(&bytes);
                (Some(series), problem.map(|what| format!("{}: {what}", path.display())))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (None, None),
            Err(error) => (None, Some(format!("{}: {error}", path.display()))),
        }
    }

    /// The file of the job's marks.
    pub fn marks(&self) -> PathBuf {
        self.path.join(MARKS)
    }

    /// Creates that file, private to its user.
    pub fn create_marks(&self) -> io::Result<()> {
        create(&self.marks()).map(drop)
    }

    /// What the job marked; nothing where it marked nothing, or put something else in the place of the file.
    pub fn read_marks(&self) -> Vec<Work> {
        let path = self.marks();
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        let Ok(file) = opened else { return Vec::new() };
        let mut bytes = Vec::new();
        let is_file = file.metadata().is_ok_and(|known| known.is_file() && known.len() > 0);
        match is_file && file.take(work::MARKS_BYTES_MAX).read_to_end(&mut bytes).is_ok() {
            true => work::parse(&bytes),
            false => Vec::new(),
        }
    }

    /// Removes the job's files; [`clean`] removes the directory once it is not the highest id any more.
    pub fn remove(&self) -> io::Result<()> {
        // Without the mark it looks like a reservation that was never used, and goes a day later. First: a
        // reader that looks for an end in between must find that there was one.
        let marked = create(&self.path.join(DONE)).is_ok();
        // The end goes last: if this is interrupted, the job is imported again and not taken for a live one.
        for name in [START, "start.tmp", SERIES, "course.tmp", MARKS, OF_SYSTEM, END_RESERVED, END] {
            let path = self.path.join(name);
            match fs::remove_file(&path) {
                // The job may have put a folder in the place of its marks.
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => fs::remove_dir_all(&path)?,
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if !marked {
            let _ = create(&self.path.join(DONE));
        }
        Ok(())
    }
}

/// How many jobs have ended and are not imported yet, without those whose ends come another way.
pub fn pending_ends(state: &Path, followed: &HashSet<u64>) -> usize {
    let pending = pending(state).unwrap_or_default();
    pending.iter().filter(|dir| !followed.contains(&dir.id) && dir.path.join(END).exists()).count()
}

/// The directories of jobs not imported yet, by id.
pub fn pending(state: &Path) -> io::Result<Vec<JobDir>> {
    let mut ids = ids(&state.join(JOBS))?;
    ids.sort_unstable();
    Ok(ids.into_iter().map(|id| JobDir::open(state, id)).collect())
}

/// Removes directories that hold nothing more, except those with the highest id of each range: without them these
/// ids would be given again.
pub fn clean(state: &Path) -> io::Result<()> {
    let (mut shared, mut own): (Vec<JobDir>, Vec<JobDir>) =
        pending(state)?.into_iter().partition(|dir| dir.id < SHARED_IDS_END);
    shared.pop();
    own.pop();
    if shared.is_empty() && own.is_empty() {
        return Ok(());
    }
    let lock = File::open(state.join(JOBS))?;
    // While another process reserves an id, the directories are left for the next pass.
    if let Err(Errno::WOULDBLOCK) = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        return Ok(());
    }
    for dir in shared.into_iter().chain(own) {
        let done = dir.path.join(DONE);
        if done.exists() && !dir.path.join(END).exists() {
            fs::remove_file(&done)?;
            ignore_unless(fs::remove_dir(&dir.path), io::ErrorKind::DirectoryNotEmpty)?;
        } else if is_abandoned(&dir.path) {
            ignore_unless(fs::remove_file(dir.path.join(END_RESERVED)), io::ErrorKind::NotFound)?;
            ignore_unless(fs::remove_file(dir.path.join(OF_SYSTEM)), io::ErrorKind::NotFound)?;
            ignore_unless(fs::remove_dir(&dir.path), io::ErrorKind::DirectoryNotEmpty)?;
        }
    }
    Ok(())
}

fn ignore_unless(result: io::Result<()>, expected: io::ErrorKind) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != expected && error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether nothing was ever written into it but room for an end, long ago.
fn is_abandoned(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return false };
    let mut longest = ABANDONED_AFTER;
    for entry in entries {
        match entry {
            Ok(entry) if entry.file_name() == END_RESERVED => longest = UNSTARTED_AFTER,
            Ok(entry) if entry.file_name() == OF_SYSTEM => {}
            _ => return false,
        }
    }
    let changed = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    let age = changed.ok().and_then(|changed| SystemTime::now().duration_since(changed).ok());
    age.is_some_and(|age| age > longest)
}

fn decode_series(bytes: &[u8]) -> (Series, Option<String>) {
    let mut series = Series::new(&JOB);
    let Some(mut rest) = bytes.strip_prefix(SERIES_MAGIC) else {
        return (series, Some("not a series file of this version".into()));
    };
    while !rest.is_empty() {
        let block = rest
            .split_first_chunk::<4>()
            .and_then(|(length, behind)| behind.split_at_checked(u32::from_le_bytes(*length) as usize));
        let Some((block, behind)) = block else {
            return (series, Some("the file ends early".into()));
        };
        match block::decode(block, &JOB) {
            Ok(part) => series.append(&part),
            Err(error) => return (series, Some(error.to_string())),
        }
        rest = behind;
    }
    (series, None)
}

fn ids(jobs: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(jobs) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        // Only names this program writes: `007` and `+7` are not ours.
        let id = name.to_str().and_then(|text| text.parse::<u64>().ok().filter(|id| id.to_string() == text));
        ids.extend(id);
    }
    Ok(ids)
}

/// Makes a directory that only its owner can enter, whatever the umask.
pub(crate) fn make_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// As [`make_private_dir`], with its parents, and content if it is there already.
pub(crate) fn private_dir(path: &Path) -> io::Result<PathBuf> {
    match make_private_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                private_dir(parent)?;
            }
            ignore_exists(make_private_dir(path))?;
        }
        result => ignore_exists(result)?,
    }
    Ok(path.to_path_buf())
}

fn ignore_exists(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// Makes `bytes` all that is in the file. Truncating it first would give reserved space away.
fn replace(file: &File, bytes: &[u8]) -> io::Result<()> {
    file.write_all_at(bytes, 0)?;
    if file.metadata()?.len() > bytes.len() as u64 {
        file.set_len(bytes.len() as u64)?;
    }
    Ok(())
}

/// Opens for writing, without truncating; a new file is private whatever the umask.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)?;
    if file.metadata()?.permissions().mode() & 0o777 != 0o600 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    // Without NONBLOCK a pipe put in the place of the file would hold the reader for ever.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "file is larger than 16 MiB"));
    }
    Ok(bytes)
}

fn lock_or_go_on(file: &File, operation: FlockOperation) -> io::Result<()> {
    match rustix::fs::flock(file, operation) {
        Err(Errno::INTR) => lock_or_go_on(file, operation),
        // Some network file systems lock no directories. Then mkdir alone decides, which suffices
        // unless a clean-up falls into the same instant.
        Err(Errno::NOLCK | Errno::BADF | Errno::OPNOTSUPP | Errno::NOSYS) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[path = "inbox_tests.rs"]
mod tests;
