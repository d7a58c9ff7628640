//! The one writer of a store.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use met_core::annotation::{Annotation, AnnotationChange};
use met_core::belief::{believe, is_known_end};
use met_core::energy::emission::Factor;
use met_core::job::{JobKey, LOCAL, Record, State};
use met_core::series::Series;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::backends::Backends;
use crate::brief;
use crate::check;
use crate::device::{self, Device};
use crate::error::StoreError;
use crate::factors;
use crate::inbox::{self, JobDir};
use crate::listed;
use crate::node;
use crate::postgresql::Postgres;
use crate::query::{CATALOGUE_FILE, Queries};
use crate::reading::{self, Parts};
use crate::record::{self, Terms};
use crate::salvage::{self, Salvage};
use crate::schema::{CATALOGUE, beside, open_for_writing};
use crate::series;
use crate::sql::{Sql, in_transaction};
use crate::sqlite::{SUSPECT, Sqlite};
use crate::thinning::Position;
use crate::usage;

pub(crate) const LOCK_FILE: &str = "store.lock";
/// A catalogue of up to this size is looked through whenever it is opened: it takes some milliseconds.
const SMALL_BYTES: u64 = 4 << 20;
/// A larger one once in this time.
const CHECK_EVERY: Duration = Duration::from_secs(86_400);
/// Beside a database: when it was last found to be whole.
const CHECKED: &str = ".checked";
/// How long packed records are compared in one go: all of a small store, a part of a large one.
const COMPARE_FOR: Duration = Duration::from_millis(500);
/// The same where a user waits for the store.
const COMPARE_AT_START_FOR: Duration = Duration::from_millis(20);
/// Jobs that a warning names.
const NAMES_LOGGED: usize = 10;

/// Writes a store. There is one at a time for each state directory.
pub struct Writer {
    pub(crate) queries: Queries,
    /// A damaged database that was renamed; take it and report it.
    pub moved_aside: Option<PathBuf>,
    /// What became of a damaged catalogue; likewise.
    pub salvaged: Option<Salvage>,
    /// Also of jobs that live nothing may be undone by a crash; those that ended are always durable.
    pub always_durable: bool,
    terms: Terms,
    pub(crate) thinning: Option<Position>,
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
    /// The time was over before all were looked at.
    pub has_more: bool,
    /// Ends with samples wait for the engine of the series.
    is_unreachable: bool,
}

/// How jobs are taken from the inbox.
pub struct Import<'a> {
    /// Completes an end that has samples and no means of them, by these, before it is written.
    pub complete: &'a dyn Fn(&mut Record, &Series),
    /// Jobs whose ends come another way, by their numbers.
    pub followed: &'a HashSet<u64>,
    /// From then on no further end is taken. Each is a write to the disk that is waited for.
    pub until: Option<Instant>,
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
        Writer::open_with(state, &Backends::default())
    }

    /// As [`Writer::open`], where catalogue or series lie elsewhere. Lock and inbox are the state directory's
    /// in any case.
    pub fn open_with(state: &Path, backends: &Backends) -> Result<Writer, StoreError> {
        inbox::private_dir(state).map_err(StoreError::io(state))?;
        let lock = take_lock(&state.join(LOCK_FILE))?;
        let mut queries = Queries::new(state, backends)?;
        let mut salvaged: Option<Salvage> = None;
        let catalogue: Box<dyn Sql> = match &backends.catalogue {
            Some(server) => {
                let sql = Postgres::for_writing(server)?;
                complete(&sql, Instant::now())?;
                Box::new(sql)
            }
            None => {
                let path = state.join(CATALOGUE_FILE);
                let (sql, salvage) = open_or_salvage(&path, queries.is_network)?;
                salvaged = salvage;
                Box::new(sql)
            }
        };
        if backends.series.is_none() {
            let folder = state.join(series::FOLDER);
            inbox::private_dir(&folder).map_err(StoreError::io(&folder))?;
        }
        queries.catalogue = OnceCell::from(catalogue);
        queries.is_writers = true;
        let moved_aside = salvaged.as_ref().map(|salvage| salvage.aside.clone());
        Ok(Writer {
            queries,
            moved_aside,
            salvaged,
            always_durable: false,
            terms: Terms::new(),
            thinning: None,
            _lock: lock,
        })
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
        match self.try_put(records, instead_of) {
            Err(StoreError::Damaged { what, .. }) => {
                self.repair(&what)?;
                self.try_put(records, instead_of)
            }
            result => result,
        }
    }

    fn try_put(&mut self, records: &[Record], instead_of: &[JobKey]) -> Result<(), StoreError> {
        let durable = self.always_durable || records.iter().any(|record| !record.state.is_live());
        self.reopen()?;
        let terms = &mut self.terms;
        let sql = self.queries.opened()?;
        let result = in_transaction(sql, durable, || {
            let mut notes = Vec::new();
            for key in instead_of {
                notes.extend(record::annotation_of(sql, key)?.map(|annotation| (key, annotation)));
                usage::withdraw(sql, key)?;
                record::delete(sql, key)?;
            }
            records.iter().try_for_each(|record| {
                // What people said of a job goes over to the record in its place.
                let of_job = |key: &JobKey| {
                    let JobKey { cluster, manager, id, .. } = &record.key;
                    (&key.cluster, &key.manager, &key.id) == (cluster, manager, id)
                };
                match notes.iter().find(|(key, _)| of_job(key)) {
                    Some((_, said)) => {
                        let annotation = Annotation::later(said, &record.annotation).clone();
                        record::write(sql, terms, &Record { annotation, ..record.clone() })
                    }
                    None => record::write(sql, terms, record),
                }
            })
        });
        if result.is_err() {
            self.terms.clear();
        }
        result
    }

    /// Changes tags and note of a job, durably. `None` if there is no such job; an error of the change itself is a
    /// message for who wrote it.
    pub fn annotate(
        &mut self,
        key: &JobKey,
        change: &AnnotationChange,
        now_ns: i64,
    ) -> Result<Option<Result<Annotation, String>>, StoreError> {
        let Some(record) = self.annotated(key)? else { return Ok(None) };
        let annotation = match change.apply(&record.annotation, now_ns) {
            Ok(annotation) => annotation,
            Err(message) => return Ok(Some(Err(message))),
        };
        let before = std::mem::replace(&mut self.always_durable, true);
        let written = self.put(&Record { annotation: annotation.clone(), ..record });
        self.always_durable = before;
        written.map(|()| Some(Ok(annotation)))
    }

    /// The record that an annotation is written on. An end that waits in the inbox stays there: if it were in the
    /// catalogue, its import would take the job for known and discard its samples.
    fn annotated(&mut self, key: &JobKey) -> Result<Option<Record>, StoreError> {
        let stored = match self.stored(key) {
            Err(StoreError::Damaged { what, .. }) => {
                self.repair(&what)?;
                self.stored(key)?
            }
            stored => stored?,
        };
        if stored.is_some() || key.manager != LOCAL {
            return Ok(stored);
        }
        let Ok(id) = key.id.parse() else { return Ok(None) };
        let entry = JobDir::open(&self.queries.state, id).read();
        let begun = entry.start.or_else(|| entry.end.map(without_end));
        Ok(begun.filter(|record| record.key == *key))
    }

    fn stored(&mut self, key: &JobKey) -> Result<Option<Record>, StoreError> {
        self.reopen()?;
        let stored = reading::exact(self.queries.opened()?, key, Parts::ALL)?;
        Ok(stored.map(|stored| stored.record))
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
    pub(crate) fn in_catalogue<T>(
        &mut self,
        work: impl FnOnce(&dyn Sql) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let opened = self.reopen().and_then(|()| self.queries.opened());
        let done = opened.and_then(|sql| in_transaction(sql, false, || work(sql)));
        if let Err(StoreError::Damaged { what, .. }) = &done {
            // The same again goes to the new one.
            self.repair(what)?;
        }
        done
    }

    /// Adds samples that are later than those stored; the others are there already. After an error the same
    /// samples may be given again.
    pub fn append_series(&mut self, key: &JobKey, series: &Series) -> Result<(), StoreError> {
        self.append(&[(key, series)], false)
    }

    /// As [`Writer::append_series`], for many at once: all of them or none.
    pub fn append_together(&mut self, all_series: &[(&JobKey, &Series)]) -> Result<(), StoreError> {
        self.append(all_series, false)
    }

    /// As [`Writer::append_series`], for many at once, and durable when this returns: an engine gets them in few
    /// requests.
    pub fn append_all(&mut self, all_series: &[(&JobKey, &Series)]) -> Result<(), StoreError> {
        self.append(all_series, true)
    }

    fn append(&mut self, all_series: &[(&JobKey, &Series)], durable: bool) -> Result<(), StoreError> {
        if let Some(aside) = self.queries.series.append(all_series, durable)? {
            self.moved_aside = Some(aside);
        }
        Ok(())
    }

    /// Takes ended jobs from the inbox into the database, each durably before its files go.
    pub fn import(&mut self) -> Result<Imported, StoreError> {
        self.import_with(&Import { complete: &|_, _| {}, followed: &HashSet::new(), until: None })
    }

    /// The same for some of them: at least one, if there is any.
    pub fn import_with(&mut self, how: &Import<'_>) -> Result<Imported, StoreError> {
        let state = self.queries.state.clone();
        let mut imported = Imported::default();
        let pending = inbox::pending(&state).map_err(StoreError::io(&state))?;
        for dir in pending.iter().filter(|dir| !how.followed.contains(&dir.id())) {
            let is_taken = self.import_one(dir, how.complete, &mut imported)?;
            if is_taken && how.until.is_some_and(|until| Instant::now() >= until) {
                imported.has_more = true;
                return Ok(imported);
            }
        }
        if let Err(error) = inbox::clean(&state) {
            imported.problems.push(format!("{}: {error}", state.display()));
        }
        Ok(imported)
    }

    /// Whether the end of the job was taken.
    fn import_one(
        &mut self,
        dir: &JobDir,
        complete: &dyn Fn(&mut Record, &Series),
        imported: &mut Imported,
    ) -> Result<bool, StoreError> {
        let entry = dir.read();
        let Some(mut end) = entry.end else {
            // With an end that cannot be read the job is not live, and not to be called lost either.
            if entry.problems.is_empty() {
                imported.live.extend(entry.start);
            }
            imported.problems.extend(entry.problems);
            return Ok(false);
        };
        if end.state.is_live() {
            let what = format!("{}: its end says that it is {}", dir.path().display(), end.state.name());
            imported.problems.push(what);
            return Ok(false);
        }
        if self.knows_end(&end.key)? {
            discard(dir, imported);
            return Ok(true);
        }
        let (series, problem) = dir.read_series();
        imported.problems.extend(problem);
        if let Some(series) = series {
            // An engine that cannot be reached takes seconds to say so: it is asked once.
            if imported.is_unreachable {
                return Ok(false);
            }
            match self.append(&[(&end.key, &series)], true) {
                // It waits where it is, and readers show it from there.
                Err(error @ StoreError::Unreachable { .. }) => {
                    imported.problems.push(error.to_string());
                    imported.is_unreachable = true;
                    return Ok(false);
                }
                result => result?,
            }
        }
        if end.summaries.is_empty()
            && let Ok(series) = self.series(&end.key)
            && !series.is_empty()
        {
            // What a daemon wrote when it left is better known.
            if let Ok(Some(known)) = self.stored(&end.key) {
                end = believe(&known, &end);
            }
            complete(&mut end, &series);
        }
        self.put(&end)?;
        imported.ended.push(end);
        discard(dir, imported);
        Ok(true)
    }

    /// Whether the end of a job is stored already, with what was sampled of it: its supervisor has just been sent the
    /// acknowledgement and has not yet removed its own file.
    fn knows_end(&self, key: &JobKey) -> Result<bool, StoreError> {
        // Not what is in the inbox: that is the very end that is asked about.
        let Some(sql) = self.queries.catalogue.get() else { return Ok(false) };
        let known = reading::exact(&**sql, key, Parts::NONE)?;
        Ok(known.is_some_and(|known| is_known_end(&known.record)))
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
        self.reopen()?;
        let sql = self.queries.opened()?;
        in_transaction(sql, true, || record::delete(sql, key).map(drop))
    }

    /// Keeps what is known of devices. What is not known leaves what was.
    pub fn put_devices(&mut self, devices: &[Device]) -> Result<(), StoreError> {
        self.in_catalogue(|sql| devices.iter().try_for_each(|device| device::put(sql, device).map(drop)))
    }

    /// Adds samples of a device that are later than those stored.
    pub fn append_device(&mut self, uuid: &str, series: &Series) -> Result<(), StoreError> {
        self.append_series(&device::series_key(uuid), series)
    }

    /// Adds samples of a part of the machine that are later than those stored.
    pub fn append_node(&mut self, part: &str, series: &Series) -> Result<(), StoreError> {
        self.append_series(&node::series_key(part), series)
    }

    /// Puts emission factors in the place of those between two times.
    pub fn put_factors(&mut self, from_ns: i64, to_ns: i64, new: &[Factor]) -> Result<(), StoreError> {
        self.in_catalogue(|sql| factors::put(sql, from_ns, to_ns, new))
    }

    pub fn put_factor(&mut self, factor: &Factor) -> Result<(), StoreError> {
        self.put_factors(factor.since_ns, factor.since_ns, std::slice::from_ref(factor))
    }

    /// Remembers something that belongs to no job.
    pub fn set_meta(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        let statement = "INSERT INTO meta (name, value) VALUES (?1, ?2)
                         ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        self.in_catalogue(|sql| sql.execute(statement, &[name.into(), value.into()]).map(drop))
    }

    /// Goes on with the upgrade of a store whose jobs an earlier version wrote, for so long. True when it is done; until
    /// then lists are right and slower.
    pub fn complete_lists(&mut self, within: Duration) -> Result<bool, StoreError> {
        complete(self.queries.opened()?, Instant::now() + within)
    }

    /// Looks through the catalogue where there is a reason to, and saves what can be read of a damaged one.
    pub fn look_after(&mut self) -> Result<(), StoreError> {
        if self.queries.is_elsewhere() {
            return Ok(());
        }
        if !is_check_due(&self.queries.catalogue_path()) {
            return self.queries.opened().map_or(Ok(()), |sql| compare_packed(sql, COMPARE_FOR));
        }
        let opened = self.reopen().and_then(|()| self.queries.opened());
        let looked = opened.and_then(|sql| {
            look(sql, &self.queries.catalogue_path())?;
            compare_packed(sql, COMPARE_FOR)
        });
        match looked {
            Err(StoreError::Damaged { what, .. }) => self.repair(&what),
            result => result,
        }
    }

    /// Puts a new catalogue with what can be read into the place of a damaged one.
    fn repair(&mut self, why: &str) -> Result<(), StoreError> {
        if self.queries.is_elsewhere() {
            return Ok(());
        }
        let path = self.queries.catalogue_path();
        drop(self.queries.catalogue.take());
        self.terms.clear();
        let salvage = salvage::replace(&path, why);
        // Without the new one the old one is better than none.
        let opened = self.reopen();
        let salvage = salvage?;
        let _ = fs::remove_file(beside(&path, SUSPECT));
        self.moved_aside = Some(salvage.aside.clone());
        self.salvaged = Some(salvage);
        opened
    }

    /// Opens the catalogue again where a repair could not: nothing is accepted before there is one.
    fn reopen(&mut self) -> Result<(), StoreError> {
        if self.queries.catalogue.get().is_some() {
            return Ok(());
        }
        let path = self.queries.catalogue_path();
        // Else an empty file would be created beside a salvaged one.
        salvage::take_over(&path)?;
        let sql = open_checked(&path, self.queries.is_network, false)?;
        self.queries.catalogue = OnceCell::from(Box::new(sql) as Box<dyn Sql>);
        Ok(())
    }
}

/// A job as it was before it ended. What was measured of it comes with its end.
fn without_end(end: Record) -> Record {
    Record {
        user: end.user,
        uid: end.uid,
        account: end.account,
        command: end.command,
        start_ns: end.start_ns,
        nodes: end.nodes,
        inside: end.inside,
        annotation: end.annotation,
        local: end.local,
        ..Record::new(end.key, end.name, State::Running)
    }
}

/// What the database has is not read from the inbox any more.
fn discard(dir: &JobDir, imported: &mut Imported) {
    if let Err(error) = dir.remove() {
        imported.problems.push(format!("{}: {error}", dir.path().display()));
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

fn open_or_salvage(path: &Path, exclusive: bool) -> Result<(Sqlite, Option<Salvage>), StoreError> {
    salvage::take_over(path)?;
    let left_open = fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0);
    let opened = match open_checked(path, exclusive, left_open || is_check_due(path)) {
        Err(StoreError::Damaged { what, .. }) => {
            let salvage = salvage::replace(path, &what)?;
            (open_checked(path, exclusive, false)?, Some(salvage))
        }
        opened => (opened?, None),
    };
    let suspect = beside(path, SUSPECT);
    match fs::remove_file(&suspect) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io(&suspect)(error)),
        _ => Ok(opened),
    }
}

fn open_checked(path: &Path, exclusive: bool, check: bool) -> Result<Sqlite, StoreError> {
    let connection = open_for_writing(path, &CATALOGUE, exclusive)?;
    let sql = Sqlite::new(connection, path);
    if check {
        look(&sql, path)?;
        // Of a large one this is left to housekeeping: every record is read for it.
        if is_small(path) {
            compare_packed(&sql, COMPARE_AT_START_FOR)?;
        }
    }
    // Of a new store this is all; the rest of an old one is for housekeeping.
    complete(&sql, Instant::now())?;
    Ok(sql)
}

/// Writes what is computed from jobs that an earlier version wrote: a piece at least, and more until this time. True when
/// nothing is left.
fn complete(sql: &dyn Sql, until: Instant) -> Result<bool, StoreError> {
    let is_listed = listed::complete(sql, until)?;
    Ok(brief::complete(sql, until)? && is_listed)
}

/// Compares packed records with their records, from where this ended last time, and writes those again that differ.
fn compare_packed(sql: &dyn Sql, within: Duration) -> Result<(), StoreError> {
    let differing = match brief::compare_some(sql, Instant::now() + within) {
        // What cannot be read is found by others. A disk that is full is no reason to leave out the rest.
        Err(StoreError::Damaged { .. }) => return Ok(()),
        Err(error) => {
            tracing::warn!("packed records are compared later: {error}");
            return Ok(());
        }
        Ok(differing) => differing,
    };
    if differing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = differing.iter().take(NAMES_LOGGED).map(|(_, name)| name.as_str()).collect();
    let count = differing.len();
    tracing::warn!("{count} packed records are written again from their records: {}", names.join(", "));
    brief::complete(sql, Instant::now() + within).map(drop)
}

/// Looks through all of a catalogue.
fn look(sql: &dyn Sql, path: &Path) -> Result<(), StoreError> {
    let checked = check::look(sql)?;
    match checked.problems.first() {
        Some(first) => {
            let more = checked.problems.len() - 1;
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            Err(sql.damaged(&format!("{first}{more}")))
        }
        None => {
            if !is_small(path) {
                let _ = inbox::create(&beside(path, CHECKED))
                    .and_then(|mark| mark.set_modified(SystemTime::now()));
            }
            Ok(())
        }
    }
}

/// Whether all of it is to be looked through: damage was met, it takes a moment only, or it was not done for a day.
pub(crate) fn is_check_due(path: &Path) -> bool {
    let checked = fs::metadata(beside(path, CHECKED)).and_then(|mark| mark.modified()).ok();
    let age = checked.and_then(|checked| checked.elapsed().ok());
    beside(path, SUSPECT).exists() || is_small(path) || age.is_none_or(|age| age > CHECK_EVERY)
}

fn is_small(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.len() <= SMALL_BYTES)
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
