//! The one writer of a store.

use std::cell::OnceCell;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use met_core::course::Course;
use met_core::job::{JobKey, LOCAL, Record};
use rusqlite::Connection;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::day;
use crate::error::StoreError;
use crate::inbox::{self, JobDir};
use crate::query::{CATALOGUE_FILE, Queries, live_states};
use crate::record::{self, Terms};
use crate::schema::{Access, CATALOGUE, SERIES, beside, move_aside, open_for_writing};
use crate::series;

const LOCK_FILE: &str = "store.lock";
/// Beside a database in which something was found damaged: the next open looks through all of it.
const SUSPECT: &str = ".suspect";
/// Jobs run over midnight, and the day before may still get samples.
const OPEN_DAYS_MAX: usize = 2;
/// Jobs deleted in one transaction: other statements get their turn in between.
const REMOVE_CHUNK: usize = 500;

/// Writes a store. There is one at a time for each state directory.
pub struct Writer {
    pub(crate) queries: Queries,
    /// A damaged database that was renamed; take it and tell somebody.
    pub moved_aside: Option<PathBuf>,
    terms: Terms,
    // Held while it is open; the file stays.
    _lock: File,
}

/// What [`Writer::import`] found in the inbox.
#[derive(Debug, Default)]
pub struct Imported {
    /// Jobs that ended and are in the database now.
    pub ended: Vec<Record>,
    /// Jobs that started and did not write an end. Whether they live is not known here.
    pub live: Vec<Record>,
    /// Entries that could not be used, and why; they are left as they are.
    pub problems: Vec<String>,
}

/// How long and how much to keep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retention {
    pub max_age_ns: Option<i64>,
    pub max_bytes: Option<u64>,
}

/// What [`Writer::retain`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    pub jobs_removed: u64,
    pub days_removed: u64,
}

impl Deref for Writer {
    type Target = Queries;

    fn deref(&self) -> &Queries {
        &self.queries
    }
}

impl Writer {
    /// Takes the lock without waiting, and opens or creates the store.
    ///
    /// The catalogue is looked through (`quick_check`) only where there is a reason: its log was left
    /// behind by a process that did not close it, or damage was met before.
    pub fn open(state: &Path) -> Result<Writer, StoreError> {
        inbox::private_dir(state).map_err(StoreError::io(state))?;
        let lock = take_lock(&state.join(LOCK_FILE))?;
        let folder = state.join(series::FOLDER);
        inbox::private_dir(&folder).map_err(StoreError::io(&folder))?;
        let path = state.join(CATALOGUE_FILE);
        let mut queries = Queries::new(state, OnceCell::new());
        let (connection, moved_aside) = open_or_begin_again(&path, queries.is_network)?;
        queries.catalogue = OnceCell::from(connection);
        Ok(Writer { queries, moved_aside, terms: Terms::new(), _lock: lock })
    }

    /// Writes what is known of a job. Durable when this returns if the job has ended.
    pub fn put(&mut self, record: &Record) -> Result<(), StoreError> {
        self.put_all(std::slice::from_ref(record))
    }

    /// As [`Writer::put`], all in one transaction.
    pub fn put_all(&mut self, records: &[Record]) -> Result<(), StoreError> {
        self.put_instead(records, &[])
    }

    /// As [`Writer::put_all`], in the place of records that have no samples.
    pub fn put_instead(&mut self, records: &[Record], instead_of: &[JobKey]) -> Result<(), StoreError> {
        let path = self.queries.catalogue_path();
        let durable = records.iter().any(|record| !record.state.is_live());
        let terms = &mut self.terms;
        let Some(connection) = self.queries.catalogue.get_mut() else { return Ok(()) };
        let result = in_transaction(connection, durable, |connection| {
            for key in instead_of {
                record::delete(connection, key)?;
            }
            records.iter().try_for_each(|record| record::write(connection, terms, record))
        });
        result.map_err(|error| {
            self.terms.clear();
            let error = StoreError::database(&path)(error);
            if let StoreError::Damaged { .. } = error {
                // Without the mark the damage is met again, so an error here costs nothing.
                let _ = inbox::create(&beside(&path, SUSPECT));
            }
            error
        })
    }

    /// Writes to the catalogue, in one transaction that a crash may undo.
    pub(crate) fn in_catalogue(
        &mut self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let path = self.queries.catalogue_path();
        let Some(connection) = self.queries.catalogue.get_mut() else { return Ok(()) };
        in_transaction(connection, false, work).map_err(StoreError::database(&path))
    }

    /// Adds samples that are later than those stored; the others are there already.
    pub fn append_course(&mut self, key: &JobKey, course: &Course) -> Result<(), StoreError> {
        self.append(key, course, false)
    }

    fn append(&mut self, key: &JobKey, course: &Course, durable: bool) -> Result<(), StoreError> {
        let mut begin = 0;
        while begin < course.len() {
            let day = day::of_ms(course.times_ms[begin]);
            match self.append_day(key, course, day, durable) {
                Err(StoreError::Damaged { path, .. }) => {
                    self.queries.open_days.get_mut().retain(|(open, _)| *open != day);
                    self.moved_aside = Some(move_aside(&path).map_err(StoreError::io(&path))?);
                    self.append_day(key, course, day, durable)?;
                }
                result => result?,
            }
            begin = course.times_ms.partition_point(|&time| day::of_ms(time) <= day).max(begin + 1);
        }
        Ok(())
    }

    fn append_day(
        &mut self,
        key: &JobKey,
        course: &Course,
        day: i64,
        durable: bool,
    ) -> Result<(), StoreError> {
        let path = series::path_of(&self.queries.state, day);
        let exclusive = self.queries.is_network;
        let open_days = self.queries.open_days.get_mut();
        let at = match open_days.iter().position(|(open, _)| *open == day) {
            Some(at) => at,
            None => {
                let connection = open_for_writing(&path, &SERIES, Access { exclusive, check: false })?;
                if open_days.len() == OPEN_DAYS_MAX {
                    open_days.remove(0);
                }
                open_days.push((day, connection));
                open_days.len() - 1
            }
        };
        in_transaction(&mut open_days[at].1, durable, |connection| {
            series::append(connection, key, course, day)
        })
        .map_err(StoreError::database(&path))
    }

    /// Takes ended jobs from the inbox into the database, each durably before its files go.
    pub fn import(&mut self) -> Result<Imported, StoreError> {
        let state = self.queries.state.clone();
        let mut imported = Imported::default();
        for dir in inbox::pending(&state).map_err(StoreError::io(&state))? {
            self.import_one(&dir, &mut imported)?;
        }
        if let Err(error) = inbox::clean(&state) {
            imported.problems.push(format!("{}: {error}", state.display()));
        }
        Ok(imported)
    }

    fn import_one(&mut self, dir: &JobDir, imported: &mut Imported) -> Result<(), StoreError> {
        let entry = dir.read();
        let Some(end) = entry.end else {
            // With an end that cannot be read the job is not live, and not to be called lost either.
            if entry.problems.is_empty() {
                imported.live.extend(entry.start);
            }
            imported.problems.extend(entry.problems);
            return Ok(());
        };
        if end.state.is_live() {
            let what = format!("{}: its end says that it is {}", dir.path().display(), end.state.name());
            imported.problems.push(what);
            return Ok(());
        }
        let (course, problem) = dir.read_course();
        imported.problems.extend(problem);
        if let Some(course) = course {
            self.append(&end.key, &course, true)?;
        }
        self.put(&end)?;
        imported.ended.push(end);
        if let Err(error) = dir.remove() {
            imported.problems.push(format!("{}: {error}", dir.path().display()));
        }
        Ok(())
    }

    /// Removes a job with its samples, here and in the inbox.
    pub fn remove(&mut self, key: &JobKey) -> Result<(), StoreError> {
        let state = self.queries.state.clone();
        for day in series::days(&state).map_err(StoreError::io(&state))? {
            self.remove_from_day(key, day)?;
        }
        let dir = key.id.parse().ok().filter(|_| key.manager == LOCAL).map(|id| JobDir::open(&state, id));
        if let Some(dir) = dir
            && dir.read().into_record().is_some_and(|record| record.key == *key)
        {
            dir.remove().map_err(StoreError::io(dir.path()))?;
        }
        let path = self.queries.catalogue_path();
        let Some(connection) = self.queries.catalogue.get_mut() else { return Ok(()) };
        in_transaction(connection, true, |connection| record::delete(connection, key))
            .map_err(StoreError::database(&path))?;
        Ok(())
    }

    /// Remembers something that belongs to no job.
    pub fn set_meta(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        let path = self.queries.catalogue_path();
        let Some(connection) = self.queries.catalogue.get_mut() else { return Ok(()) };
        in_transaction(connection, false, |connection| {
            let sql = "INSERT INTO meta (name, value) VALUES (?1, ?2)
                       ON CONFLICT (name) DO UPDATE SET value = excluded.value";
            connection.execute(sql, [name, value])
        })
        .map_err(StoreError::database(&path))?;
        Ok(())
    }

    fn remove_from_day(&mut self, key: &JobKey, day: i64) -> Result<(), StoreError> {
        let path = series::path_of(&self.queries.state, day);
        let exclusive = self.queries.is_network;
        let open_days = self.queries.open_days.get_mut();
        let mut opened = None;
        let connection = match open_days.iter_mut().find(|(open, _)| *open == day) {
            Some((_, connection)) => connection,
            None => match open_for_writing(&path, &SERIES, Access { exclusive, check: false }) {
                Ok(connection) => opened.insert(connection),
                // Nothing can be read from a damaged day, so nothing is left to remove.
                Err(StoreError::Damaged { .. }) => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        in_transaction(connection, false, |connection| series::remove(connection, key))
            .map_err(StoreError::database(&path))
    }

    /// Removes what is too old, then the oldest until the rest fits. Jobs that live stay.
    pub fn retain(&mut self, retention: &Retention, now_ns: i64) -> Result<Retained, StoreError> {
        let mut retained = Retained::default();
        let state = self.queries.state.clone();
        if let Some(max_age_ns) = retention.max_age_ns {
            let oldest_ns = now_ns.saturating_sub(max_age_ns);
            while let removed @ 1.. = self.remove_oldest(oldest_ns)? {
                retained.jobs_removed += removed;
            }
            self.forget_factors(oldest_ns)?;
            let oldest_day = day::of_ns(oldest_ns);
            for day in series::days(&state).map_err(StoreError::io(&state))? {
                if day < oldest_day {
                    self.unlink_day(day)?;
                    retained.days_removed += 1;
                }
            }
        }
        if let Some(max_bytes) = retention.max_bytes {
            self.shrink(max_bytes, now_ns, &mut retained)?;
        }
        if retained.jobs_removed > 0 {
            self.give_back_pages()?;
        }
        Ok(retained)
    }

    /// Samples go before totals: they are larger, and a job without its course is still a job.
    fn shrink(&mut self, max_bytes: u64, now_ns: i64, retained: &mut Retained) -> Result<(), StoreError> {
        let state = self.queries.state.clone();
        let days = series::days(&state).map_err(StoreError::io(&state))?;
        let mut series_bytes: u64 =
            days.iter().map(|&day| series::bytes_of(&series::path_of(&state, day))).sum();
        for day in days {
            if series_bytes + self.catalogue_bytes()? <= max_bytes || day >= day::of_ns(now_ns) {
                break;
            }
            series_bytes = series_bytes.saturating_sub(series::bytes_of(&series::path_of(&state, day)));
            self.unlink_day(day)?;
            retained.days_removed += 1;
        }
        while series_bytes + self.catalogue_bytes()? > max_bytes {
            match self.remove_oldest(i64::MAX)? {
                0 => break,
                removed => retained.jobs_removed += removed,
            }
        }
        Ok(())
    }

    /// Removes some of the jobs that ended before `before_ns`, oldest first, and says how many.
    fn remove_oldest(&mut self, before_ns: i64) -> Result<u64, StoreError> {
        let path = self.queries.catalogue_path();
        let Some(connection) = self.queries.catalogue.get_mut() else { return Ok(0) };
        let sql = format!(
            "DELETE FROM job WHERE key IN (SELECT key FROM job WHERE sort_ns < ?1 AND state NOT IN ({})
             AND coalesce(end_ns, sort_ns) < ?1 ORDER BY sort_ns LIMIT {REMOVE_CHUNK})",
            live_states()
        );
        let removed = in_transaction(connection, false, |connection| connection.execute(&sql, [before_ns]))
            .map_err(StoreError::database(&path))?;
        Ok(removed as u64)
    }

    fn unlink_day(&mut self, day: i64) -> Result<(), StoreError> {
        self.queries.open_days.get_mut().retain(|(open, _)| *open != day);
        let path = series::path_of(&self.queries.state, day);
        series::unlink(&path).map_err(StoreError::io(&path))
    }

    /// The pages in use: those given free are reused before the file grows.
    fn catalogue_bytes(&self) -> Result<u64, StoreError> {
        let Some(connection) = self.queries.catalogue.get() else { return Ok(0) };
        let sql = "SELECT (page_count - freelist_count) * page_size
                   FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
        let bytes: i64 = connection
            .query_row(sql, [], |row| row.get(0))
            .map_err(StoreError::database(&self.queries.catalogue_path()))?;
        Ok(bytes.max(0) as u64)
    }

    fn give_back_pages(&self) -> Result<(), StoreError> {
        let Some(connection) = self.queries.catalogue.get() else { return Ok(()) };
        connection
            .execute_batch("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
            .map_err(StoreError::database(&self.queries.catalogue_path()))
    }
}

fn take_lock(path: &Path) -> Result<File, StoreError> {
    let file = inbox::create(path).map_err(StoreError::io(path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(StoreError::Locked { path: path.to_path_buf() }),
        Err(error) => Err(StoreError::Io { path: path.to_path_buf(), error: error.into() }),
    }
}

fn open_or_begin_again(path: &Path, exclusive: bool) -> Result<(Connection, Option<PathBuf>), StoreError> {
    let suspect = beside(path, SUSPECT);
    let left_open = fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0);
    let check = left_open || suspect.exists();
    let opened = match open_for_writing(path, &CATALOGUE, Access { exclusive, check }) {
        Ok(connection) => (connection, None),
        Err(StoreError::Damaged { .. }) => {
            let aside = move_aside(path).map_err(StoreError::io(path))?;
            (open_for_writing(path, &CATALOGUE, Access { exclusive, check: false })?, Some(aside))
        }
        Err(error) => return Err(error),
    };
    match fs::remove_file(&suspect) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io(&suspect)(error)),
        _ => Ok(opened),
    }
}

/// Runs `work` in one transaction, on disk when this returns if it is to be durable.
pub(crate) fn in_transaction<T>(
    connection: &mut Connection,
    durable: bool,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let level = if durable { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
    connection.execute_batch(level)?;
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
