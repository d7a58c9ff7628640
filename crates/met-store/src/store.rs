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

use crate::backends::Backends;
use crate::day;
use crate::error::StoreError;
use crate::inbox::{self, JobDir};
use crate::postgresql::Postgres;
use crate::query::{CATALOGUE_FILE, Queries, live_states};
use crate::record::{self, Parts, Terms};
use crate::schema::{Access, CATALOGUE, beside, move_aside, open_for_writing};
use crate::series;
use crate::sql::{Sql, in_transaction};
use crate::sqlite::{SUSPECT, Sqlite};

const LOCK_FILE: &str = "store.lock";
/// Jobs deleted in one transaction: other statements get their turn in between.
const REMOVE_CHUNK: usize = 500;

/// Writes a store. There is one at a time for each state directory.
pub struct Writer {
    pub(crate) queries: Queries,
    /// A damaged database that was renamed; take it and tell somebody.
    pub moved_aside: Option<PathBuf>,
    /// Also of jobs that live nothing may be undone by a crash; those that ended are always durable.
    pub always_durable: bool,
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

/// Who is told which jobs go.
pub type Goes<'g> = &'g mut dyn FnMut(&[JobKey]) -> Result<(), StoreError>;

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
        Writer::open_with(state, &Backends::default())
    }

    /// As [`Writer::open`], where catalogue or series lie elsewhere. Lock and inbox are the state directory's
    /// in any case.
    pub fn open_with(state: &Path, backends: &Backends) -> Result<Writer, StoreError> {
        inbox::private_dir(state).map_err(StoreError::io(state))?;
        let lock = take_lock(&state.join(LOCK_FILE))?;
        let mut queries = Queries::new(state, backends)?;
        let mut moved_aside = None;
        let catalogue: Box<dyn Sql> = match &backends.catalogue {
            Some(server) => Box::new(Postgres::for_writing(server)?),
            None => {
                let path = state.join(CATALOGUE_FILE);
                let (connection, aside) = open_or_begin_again(&path, queries.is_network)?;
                moved_aside = aside;
                Box::new(Sqlite::new(connection, &path))
            }
        };
        if backends.series.is_none() {
            let folder = state.join(series::FOLDER);
            inbox::private_dir(&folder).map_err(StoreError::io(&folder))?;
        }
        queries.catalogue = OnceCell::from(catalogue);
        Ok(Writer { queries, moved_aside, always_durable: false, terms: Terms::new(), _lock: lock })
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
        let durable = self.always_durable || records.iter().any(|record| !record.state.is_live());
        let terms = &mut self.terms;
        let Some(sql) = self.queries.catalogue.get() else { return Ok(()) };
        let result = in_transaction(&**sql, durable, || {
            for key in instead_of {
                record::delete(&**sql, key)?;
            }
            records.iter().try_for_each(|record| record::write(&**sql, terms, record))
        });
        if result.is_err() {
            self.terms.clear();
        }
        result
    }

    /// As [`Writer::put_instead`], where some were only believed to be over and live: of these that is taken back,
    /// unless a scheduler said it.
    pub fn put_revived(
        &mut self,
        records: &[Record],
        instead_of: &[JobKey],
        revived: &[JobKey],
    ) -> Result<(), StoreError> {
        self.in_catalogue(|sql| revived.iter().try_for_each(|key| record::revive(sql, key)))?;
        self.put_instead(records, instead_of)
    }

    /// Writes to the catalogue, in one transaction that a crash may undo.
    pub(crate) fn in_catalogue<T: Default>(
        &mut self,
        work: impl FnOnce(&dyn Sql) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Some(sql) = self.queries.catalogue.get() else { return Ok(T::default()) };
        in_transaction(&**sql, false, || work(&**sql))
    }

    /// Adds samples that are later than those stored; the others are there already. After an error the same
    /// samples may be given again.
    pub fn append_course(&mut self, key: &JobKey, course: &Course) -> Result<(), StoreError> {
        self.append(&[(key, course)], false)
    }

    /// As [`Writer::append_course`], for many at once, and durable when this returns: an engine gets them in few
    /// requests.
    pub fn append_courses(&mut self, courses: &[(&JobKey, &Course)]) -> Result<(), StoreError> {
        self.append(courses, true)
    }

    fn append(&mut self, courses: &[(&JobKey, &Course)], durable: bool) -> Result<(), StoreError> {
        if let Some(aside) = self.queries.series.append(courses, durable)? {
            self.moved_aside = Some(aside);
        }
        Ok(())
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
        if self.knows_end(&end.key)? {
            return self.discard(dir, imported);
        }
        let (course, problem) = dir.read_course();
        imported.problems.extend(problem);
        if let Some(course) = course {
            match self.append(&[(&end.key, &course)], true) {
                // It waits where it is, and readers show it from there.
                Err(error @ StoreError::Unreachable { .. }) => {
                    imported.problems.push(error.to_string());
                    return Ok(());
                }
                result => result?,
            }
        }
        self.put(&end)?;
        imported.ended.push(end);
        self.discard(dir, imported)
    }

    /// Whether a job has ended here already, with what was sampled of it: its supervisor, who was told so a moment
    /// ago, has not yet taken away what he wrote down himself.
    fn knows_end(&self, key: &JobKey) -> Result<bool, StoreError> {
        // Not what is in the inbox: that is the very end that is asked about.
        let Some(sql) = self.queries.catalogue.get() else { return Ok(false) };
        let known = record::exact(&**sql, key, Parts::NONE)?;
        Ok(known.is_some_and(|known| !record::is_unsettled(&known.record)))
    }

    fn discard(&self, dir: &JobDir, imported: &mut Imported) -> Result<(), StoreError> {
        if let Err(error) = dir.remove() {
            imported.problems.push(format!("{}: {error}", dir.path().display()));
        }
        Ok(())
    }

    /// Removes a job with its samples, here and in the inbox.
    pub fn remove(&mut self, key: &JobKey) -> Result<(), StoreError> {
        let state = self.queries.state.clone();
        self.queries.series.remove(key)?;
        let dir = key.id.parse().ok().filter(|_| key.manager == LOCAL).map(|id| JobDir::open(&state, id));
        if let Some(dir) = dir
            && dir.read().into_record().is_some_and(|record| record.key == *key)
        {
            dir.remove().map_err(StoreError::io(dir.path()))?;
        }
        let Some(sql) = self.queries.catalogue.get() else { return Ok(()) };
        in_transaction(&**sql, true, || record::delete(&**sql, key).map(drop))
    }

    /// Remembers something that belongs to no job.
    pub fn set_meta(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        let statement = "INSERT INTO meta (name, value) VALUES (?1, ?2)
                         ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        self.in_catalogue(|sql| sql.execute(statement, &[name.into(), value.into()]).map(drop))
    }

    /// Removes what is too old, then the oldest until the rest fits. Jobs that live stay.
    pub fn retain(&mut self, retention: &Retention, now_ns: i64) -> Result<Retained, StoreError> {
        self.retain_telling(retention, now_ns, &mut |_| Ok(()))
    }

    /// As [`Writer::retain`], and tells which jobs go, some at a time, before they do: those of which that fails stay.
    pub fn retain_telling(
        &mut self,
        retention: &Retention,
        now_ns: i64,
        goes: Goes<'_>,
    ) -> Result<Retained, StoreError> {
        let mut retained = Retained::default();
        if let Some(max_age_ns) = retention.max_age_ns {
            let oldest_ns = now_ns.saturating_sub(max_age_ns);
            while let removed @ 1.. = self.remove_oldest(oldest_ns, goes)? {
                retained.jobs_removed += removed;
            }
            self.forget_factors(oldest_ns)?;
            let oldest_day = day::of_ns(oldest_ns);
            for (day, _) in self.queries.series.days()? {
                if day < oldest_day {
                    self.queries.series.remove_day(day)?;
                    retained.days_removed += 1;
                }
            }
        }
        if let Some(max_bytes) = retention.max_bytes {
            self.shrink(max_bytes, now_ns, goes, &mut retained)?;
        }
        if retained.jobs_removed > 0
            && let Some(sql) = self.queries.catalogue.get()
        {
            sql.give_back()?;
        }
        Ok(retained)
    }

    /// Samples go before totals: they are larger, and a job without its course is still a job.
    fn shrink(
        &mut self,
        max_bytes: u64,
        now_ns: i64,
        goes: Goes<'_>,
        retained: &mut Retained,
    ) -> Result<(), StoreError> {
        let days = self.queries.series.days()?;
        let mut series_bytes: u64 = days.iter().map(|(_, bytes)| bytes).sum();
        for (day, bytes) in days {
            let used_bytes = series_bytes + self.catalogue_bytes()?.unwrap_or(0);
            if used_bytes <= max_bytes || day >= day::of_ns(now_ns) {
                break;
            }
            series_bytes = series_bytes.saturating_sub(bytes);
            self.queries.series.remove_day(day)?;
            retained.days_removed += 1;
        }
        while let Some(bytes) = self.catalogue_bytes()?
            && series_bytes + bytes > max_bytes
        {
            match self.remove_oldest(i64::MAX, goes)? {
                0 => break,
                removed => retained.jobs_removed += removed,
            }
        }
        Ok(())
    }

    /// Removes some of the jobs that ended before `before_ns`, oldest first, and says how many.
    fn remove_oldest(&mut self, before_ns: i64, goes: Goes<'_>) -> Result<u64, StoreError> {
        let statement = format!(
            "DELETE FROM job WHERE key IN (SELECT key FROM job WHERE sort_ns < ?1 AND state NOT IN ({})
             AND coalesce(end_ns, sort_ns) < ?1 ORDER BY sort_ns LIMIT {REMOVE_CHUNK})
             RETURNING cluster, manager, id, incarnation",
            live_states()
        );
        self.in_catalogue(|sql| {
            let mut removed = Vec::new();
            sql.query(&statement, &[before_ns.into()], &mut |row| {
                let [cluster, manager, id] = [row.get(0).text()?, row.get(1).text()?, row.get(2).text()?];
                let cluster = Some(cluster.to_owned()).filter(|cluster| !cluster.is_empty());
                let (manager, id, incarnation) = (manager.to_owned(), id.to_owned(), row.get(3).integer()?);
                removed.push(JobKey { cluster, manager, id, incarnation });
                Ok(())
            })?;
            goes(&removed)?;
            Ok(removed.len() as u64)
        })
    }

    fn catalogue_bytes(&self) -> Result<Option<u64>, StoreError> {
        self.queries.catalogue.get().map_or(Ok(None), |sql| sql.bytes())
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

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
