//! Questions to the store. Database and inbox are answered from as one.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::ops::{Deref, Range};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use met_core::belief::believe;
use met_core::energy::emission::Factor;
use met_core::job::{JobKey, LOCAL, Record};
use met_core::listing::{self, id_number};
use met_core::series::{Columns, Series};
use met_core::{JOB, Table, event, gpu};
use rustix::fs::{FlockOperation, OFlags};

use crate::backends::Backends;
use crate::check;
use crate::day;
use crate::device::{self, Allocation, Device};
use crate::error::StoreError;
use crate::factors;
use crate::file_id::{FileId, file_at};
use crate::filter::{Filter, PageBounds};
use crate::inbox::{self, JobDir};
use crate::node::{self, NodePart};
use crate::postgresql::Postgres;
use crate::reading::{self, Parts, exact, select};
use crate::record;
use crate::salvage::{self, Salvage};
use crate::schema::{CATALOGUE, Sharing, open_frozen, open_shared_or_alone};
use crate::series::{self, SeriesStore};
use crate::sql::{self, Noted, Sql, Value};
use crate::sqlite::Sqlite;
use crate::store::{LOCK_FILE, is_check_due};

pub(crate) const CATALOGUE_FILE: &str = "store.db";

/// Whether this directory has a catalogue; false also where the caller may not look.
pub fn has_catalogue(state: &Path) -> bool {
    state.join(CATALOGUE_FILE).exists()
}
/// From which version on the catalogue knows aliases, and remembers what belongs to no job.
const ALIAS_VERSION: i64 = 2;
/// From which version on it knows devices, and what a kilowatt hour emitted.
const DEVICE_VERSION: i64 = 2;
/// From which version on jobs have a number that says when they were written.
const CHANGE_VERSION: i64 = 3;

/// The questions that both [`Reader`] and [`crate::Writer`] answer.
pub struct Queries {
    pub(crate) state: PathBuf,
    backends: Backends,
    sharing: Sharing,
    /// Empty until there is a database.
    pub(crate) catalogue: OnceCell<Box<dyn Sql>>,
    pub(crate) series: Box<dyn SeriesStore>,
    pub(crate) is_network: bool,
    /// A writer opens its catalogue itself: a connection that only reads would take the place of the one that it needs.
    pub(crate) is_writers: bool,
    /// What could not be read where the catalogue itself cannot be asked.
    pub(crate) noted: RefCell<Noted>,
    /// Why the catalogue is not to be asked, but looked through.
    distrusted: Option<String>,
}

/// Reads the store of a state directory, also while it is written and before there is one.
pub struct Reader {
    queries: Queries,
    /// The file that it began with, if it was there.
    file: Option<FileId>,
    /// It shows the file as it was when this was opened.
    is_frozen: bool,
    /// Without a writer: keeps others from becoming one.
    _guard: Option<File>,
}

/// A shared lock on what a writer locks for itself; `None` where one writes, or where that is unknown.
pub(crate) fn keep_writers_away(state: &Path) -> Option<File> {
    // Without NONBLOCK a FIFO in its place would block the reader.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let lock = OpenOptions::new().read(true).custom_flags(flags).open(state.join(LOCK_FILE)).ok()?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).ok()?;
    Some(lock)
}

impl Reader {
    pub fn open(state: &Path) -> Result<Reader, StoreError> {
        Reader::open_with(state, &Backends::default())
    }

    /// As [`Reader::open`], where catalogue or series lie elsewhere.
    pub fn open_with(state: &Path, backends: &Backends) -> Result<Reader, StoreError> {
        Reader::of(Queries::new(state, backends)?)
    }

    fn of(queries: Queries) -> Result<Reader, StoreError> {
        // Before it is opened: of a file that is replaced in between it is then said once too often.
        let file = queries.file();
        match queries.catalogue() {
            // What can be read of it is.
            Ok(_) | Err(StoreError::Damaged { .. }) => {
                Ok(Reader { queries, file, is_frozen: false, _guard: None })
            }
            Err(error) => Err(error),
        }
    }

    /// For a command that only reads: without a writer, nothing at all is written, and no writer begins before this is
    /// dropped. Looks through all of it where there is a reason to: a damaged index hides jobs.
    pub fn open_checked(state: &Path) -> Result<Reader, StoreError> {
        let mut reader = Reader::open_guarded(state)?;
        if is_check_due(&reader.queries.catalogue_path())
            && let Ok(Some(catalogue)) = reader.queries.catalogue()
        {
            let problem = check::look(catalogue)?.problems.into_iter().next();
            reader.queries.distrusted = problem;
        }
        Ok(reader)
    }

    /// Another one of the same files for another thread. What this one found in them is not looked for again.
    pub fn another(&self) -> Result<Reader, StoreError> {
        let mut reader = Reader::open_guarded(&self.queries.state)?;
        reader.queries.distrusted.clone_from(&self.queries.distrusted);
        Ok(reader)
    }

    fn open_guarded(state: &Path) -> Result<Reader, StoreError> {
        let guard = keep_writers_away(state);
        let sharing = if guard.is_some() { Sharing::Alone } else { Sharing::Shared };
        let reader = Reader::of(Queries::shared_or_alone(state, &Backends::default(), sharing)?)?;
        Ok(Reader { _guard: guard, ..reader })
    }

    /// As [`Reader::open_with`] for one question, also where there is no space for what SQLite needs to read.
    pub fn open_without_space(state: &Path, backends: &Backends) -> Result<Reader, StoreError> {
        let queries = Queries::new(state, backends)?;
        let is_frozen = queries.catalogue().is_err_and(|error| error.is_no_space());
        if is_frozen {
            let path = state.join(CATALOGUE_FILE);
            let _ = queries.catalogue.set(Box::new(Sqlite::new(open_frozen(&path)?, &path)));
        }
        Ok(Reader { is_frozen, ..Reader::of(queries)? })
    }

    /// Whether it answers the next question as one that is opened for it: its file is there and whole, and it sees what
    /// is written. A connection to another machine may be closed by that.
    pub fn is_current(&self) -> bool {
        !self.is_frozen
            && !self.queries.is_elsewhere()
            && !self.queries.met_damage()
            && self.file.is_some()
            && self.queries.file() == self.file
    }

    /// Whether another file has taken the place of the one that this reads, as after a repair: open a new reader.
    pub fn is_replaced(&self) -> bool {
        // Between its two renames there is none, and the old one is better.
        self.queries.file().is_some_and(|file| Some(file) != self.file)
    }
}

impl Deref for Reader {
    type Target = Queries;

    fn deref(&self) -> &Queries {
        &self.queries
    }
}

impl Queries {
    pub(crate) fn new(state: &Path, backends: &Backends) -> Result<Queries, StoreError> {
        Queries::shared_or_alone(state, backends, Sharing::Shared)
    }

    fn shared_or_alone(state: &Path, backends: &Backends, sharing: Sharing) -> Result<Queries, StoreError> {
        let is_network = crate::network::is_network(state);
        Ok(Queries {
            state: state.to_path_buf(),
            catalogue: OnceCell::new(),
            series: series::open(state, is_network, backends, sharing)?,
            sharing,
            backends: backends.clone(),
            is_network,
            is_writers: false,
            noted: RefCell::default(),
            distrusted: None,
        })
    }

    /// Whether the state is on a file system where only one process can open the database.
    pub fn is_network(&self) -> bool {
        self.is_network
    }

    /// Closes the files that the last questions left open for the next one.
    pub fn close_files(&self) {
        self.series.close_files();
    }

    /// Samples that the series database rejected since this was opened, and that are lost.
    pub fn samples_refused(&self) -> u64 {
        self.series.refused()
    }

    /// Whether the catalogue is not a file of ours.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.backends.catalogue.is_some()
    }

    pub(crate) fn catalogue_path(&self) -> PathBuf {
        self.state.join(CATALOGUE_FILE)
    }

    pub(crate) fn file(&self) -> Option<FileId> {
        if self.is_elsewhere() { None } else { file_at(&self.catalogue_path()).ok().flatten() }
    }

    pub(crate) fn catalogue(&self) -> Result<Option<&dyn Sql>, StoreError> {
        if self.is_writers {
            return self.opened().map(Some);
        }
        if self.catalogue.get().is_none() {
            let path = self.catalogue_path();
            let opened: Option<Box<dyn Sql>> = match &self.backends.catalogue {
                Some(server) => Postgres::for_reading(server)?.map(|server| Box::new(server) as _),
                None => open_shared_or_alone(&path, &CATALOGUE, self.sharing)?
                    .map(|connection| Box::new(Sqlite::new(connection, &path)) as _),
            };
            if let Some(opened) = opened {
                let _ = self.catalogue.set(opened);
            }
        }
        Ok(self.catalogue.get().map(|catalogue| &**catalogue))
    }

    /// The catalogue of a writer, which is missing only while it is damaged and cannot be opened.
    pub(crate) fn opened(&self) -> Result<&dyn Sql, StoreError> {
        let what = || "it could not be opened again after damage was found".to_owned();
        let missing = || StoreError::Damaged { path: self.catalogue_path(), what: what() };
        self.catalogue.get().map(|catalogue| &**catalogue).ok_or_else(missing)
    }

    /// The catalogue, unless it was found to be damaged.
    pub(crate) fn trusted(&self) -> Result<Option<&dyn Sql>, StoreError> {
        match &self.distrusted {
            Some(what) => Err(StoreError::Damaged { path: self.catalogue_path(), what: what.clone() }),
            None => self.catalogue(),
        }
    }

    /// Asks the catalogue what it knows from a version on: a file that no writer of this version has opened
    /// yet knows nothing of it.
    pub(crate) fn ask<T: Default>(
        &self,
        since_version: i64,
        ask: impl FnOnce(&dyn Sql) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.catalogue()? {
            Some(catalogue) if catalogue.version()? >= since_version => ask(catalogue),
            _ => Ok(T::default()),
        }
    }

    /// The jobs that pass `filter`, newest first.
    pub fn jobs(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        Ok(self.page(filter)?.jobs)
    }

    /// Whether something could not be read since that was last asked.
    pub(crate) fn met_damage(&self) -> bool {
        let is_noted = |catalogue: &dyn Sql| !catalogue.noted().borrow().is_empty();
        !self.is_elsewhere() && self.catalogue.get().is_some_and(|catalogue| is_noted(&**catalogue))
    }

    /// All jobs that can still be read of a damaged catalogue.
    pub(crate) fn rest(&self, error: StoreError) -> Result<Vec<Record>, StoreError> {
        if self.backends.catalogue.is_some() {
            return Err(error);
        }
        let path = self.catalogue_path();
        let found = salvage::scan(&path).map_err(StoreError::io(&path))?;
        let mut noted = self.noted.borrow_mut();
        if found.lost.is_empty() && found.incomplete.is_empty() && !self.met_damage() {
            noted.note(&format!("parts of {error}"));
        }
        found.lost.iter().for_each(|key| noted.note(&reading::label(&key.manager, &key.id)));
        found.incomplete.iter().for_each(|name| noted.note(name));
        Ok(found.records)
    }

    /// What could not be read since it was last taken: jobs by their ids, or parts of the store. They are missing from
    /// the answers.
    pub fn unreadable(&self) -> Vec<String> {
        let own = self.noted.borrow().names();
        let met = self.catalogue.get().map(|catalogue| catalogue.noted().borrow().names());
        let names: BTreeSet<String> = own.into_iter().chain(met.into_iter().flatten()).collect();
        names.into_iter().collect()
    }

    /// The same, which is forgotten.
    pub fn take_unreadable(&self) -> Vec<String> {
        let names = self.unreadable();
        self.noted.borrow_mut().take();
        if let Some(catalogue) = self.catalogue.get() {
            catalogue.noted().borrow_mut().take();
        }
        names
    }

    /// What became of a damaged store whose file was kept; nothing once that file is removed.
    pub fn last_salvage(&self) -> Option<Salvage> {
        let reported = self.meta(salvage::META).ok().flatten()?;
        let mut salvage: Salvage = serde_json::from_str(&reported).ok()?;
        if !salvage.aside.exists() {
            return None;
        }
        for lost in salvage.lost_keys.clone() {
            // Written again since, or in the inbox.
            let found = self.find(Some(&lost.manager), &lost.id).unwrap_or_default();
            if found.iter().any(|record| record.key == lost) {
                salvage.found_again(&lost);
            }
        }
        Some(salvage)
    }

    /// Every job with this id or alias, newest first: ids are given again by schedulers, and by several of them.
    pub fn find(&self, manager: Option<&str>, id: &str) -> Result<Vec<Record>, StoreError> {
        self.find_of(manager, id, &Filter::default())
    }

    /// The same, of those that the uid and the member of a filter own. The records of others are not read: the time that
    /// it takes would reveal that there are some.
    pub fn find_of(
        &self,
        manager: Option<&str>,
        id: &str,
        whose: &Filter,
    ) -> Result<Vec<Record>, StoreError> {
        let is_asked = |key: &JobKey| manager.is_none_or(|manager| key.manager == manager);
        let mut pending = self.inbox_of(id);
        pending.retain(|key, _| key.id == id && is_asked(key));
        let mut jobs = match self.find_stored(id, whose, &mut pending) {
            Err(error @ StoreError::Damaged { .. }) => {
                let mut rest = self.rest(error)?;
                rest.retain(|record| record.key.id == id || record.scheduling.alias.as_deref() == Some(id));
                rest
            }
            stored => stored?,
        };
        jobs.retain(|record| is_asked(&record.key) && !pending.contains_key(&record.key));
        jobs.extend(pending.into_values());
        jobs.retain(|record| whose.owner.may_see(record));
        listing::sort(&mut jobs);
        Ok(jobs)
    }

    fn find_stored(
        &self,
        id: &str,
        whose: &Filter,
        pending: &mut HashMap<JobKey, Record>,
    ) -> Result<Vec<Record>, StoreError> {
        let Some(catalogue) = self.trusted()? else { return Ok(Vec::new()) };
        settle(catalogue, pending)?;
        // A reader may meet a file that no writer of this version has opened yet.
        let condition = match catalogue.version()? >= ALIAS_VERSION {
            true => "(id = ?1 OR alias = ?1)",
            false => "id = ?1",
        };
        let mut values = vec![id.into()];
        let condition = match whose.owner.sql_of_seen(&mut values) {
            None => condition.to_owned(),
            // In a form for which no index is used: that of the id finds the few jobs that it may mean.
            Some(owners) => format!("{condition} AND CASE WHEN {owners} THEN 1 ELSE 0 END = 1"),
        };
        let selected = select(catalogue, &condition, &values, None, Parts::ALL)?;
        Ok(selected.found.into_iter().map(|stored| stored.record).collect())
    }

    /// What was remembered with [`crate::Writer::set_meta`].
    pub fn meta(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.ask(ALIAS_VERSION, |sql| {
            let statement = "SELECT value FROM meta WHERE name = ?1";
            sql::first(sql, statement, &[name.into()], |row| Ok(row.get(0).text()?.to_owned()))
        })
    }

    /// Jobs of the database (those of the inbox once they are imported) that were written after the change
    /// `mark`, in the order of their writing, each with its number. A job that is written again moves to the
    /// end: who begins after the last number that he took misses no last word on any job. Numbers are those of
    /// one database file; a mark is best kept in it, with [`crate::Writer::set_meta`].
    pub fn changed_after(&self, mark: i64, limit: usize) -> Result<Vec<(i64, Record)>, StoreError> {
        self.changed_since(mark, None, limit)
    }

    /// The same of those that started then or later, and of those of which that is not known.
    pub fn changed_since(
        &self,
        mark: i64,
        since_ns: Option<i64>,
        limit: usize,
    ) -> Result<Vec<(i64, Record)>, StoreError> {
        self.ask(CHANGE_VERSION, |catalogue| reading::changed_after(catalogue, mark, since_ns, limit))
    }

    /// The number of the change that was made last, 0 before the first.
    pub fn newest_change(&self) -> Result<i64, StoreError> {
        self.ask(CHANGE_VERSION, record::newest_change)
    }

    /// Whether a job is in the catalogue: one that only waits in the inbox is not.
    pub fn is_stored(&self, key: &JobKey) -> Result<bool, StoreError> {
        let catalogue = self.trusted()?;
        Ok(catalogue.map_or(Ok(None), |catalogue| exact(catalogue, key, Parts::NONE))?.is_some())
    }

    /// The job with exactly this key.
    pub fn get(&self, key: &JobKey) -> Result<Option<Record>, StoreError> {
        let pending = self.inbox_of(&key.id).remove(key);
        let exact = |catalogue: &dyn Sql| Ok(exact(catalogue, key, Parts::ALL)?.map(|stored| stored.record));
        let asked = self.trusted().and_then(|catalogue| catalogue.map_or(Ok(None), exact));
        let stored = match asked {
            Err(error @ StoreError::Damaged { .. }) => {
                self.rest(error)?.into_iter().find(|record| record.key == *key)
            }
            asked => asked?,
        };
        Ok(match (pending, stored) {
            // What was imported is later than what waits in the inbox.
            (Some(pending), Some(stored)) => Some(believe(&pending, &stored)),
            (pending, stored) => pending.or(stored),
        })
    }

    pub fn newest(&self) -> Result<Option<Record>, StoreError> {
        let filter = Filter { with_summaries: true, page: PageBounds::first(1), ..Filter::default() };
        Ok(self.jobs(&filter)?.pop())
    }

    /// A number above that of every local job in the database; the inbox knows those of its own.
    pub fn next_local_id(&self) -> Result<u64, StoreError> {
        // Users' own ids are not to be followed.
        let statement = format!(
            "SELECT max(id_number) FROM job WHERE manager = 'local' AND id_number < {}",
            inbox::SHARED_IDS_END
        );
        let highest = |catalogue: &dyn Sql| {
            sql::first(catalogue, &statement, &[], |row| row.get(0).known().map(Value::integer).transpose())
        };
        let asked = self.catalogue().and_then(|catalogue| catalogue.map_or(Ok(None), highest));
        let highest = match asked {
            Err(error @ StoreError::Damaged { .. }) => {
                let local = self.rest(error)?.into_iter().filter(|record| record.key.manager == LOCAL);
                let shared = |number: &i64| *number < inbox::SHARED_IDS_END as i64;
                local.map(|record| id_number(&record.key.id)).filter(shared).max()
            }
            asked => asked?.flatten(),
        };
        Ok(highest.map_or(1, |highest| highest.max(0) as u64 + 1))
    }

    /// The numbers of the local jobs in this range that the database has.
    pub fn local_ids(&self, range: Range<u64>) -> Result<BTreeSet<u64>, StoreError> {
        let (start, end) = (range.start, range.end.min(i64::MAX as u64));
        let statement = format!(
            "SELECT id_number FROM job WHERE manager = 'local' AND id_number >= {start} AND id_number < {end}"
        );
        let listed = |catalogue: &dyn Sql| sql::all(catalogue, &statement, &[], |row| row.get(0).integer());
        let numbers = match self.ask(1, listed) {
            Err(error @ StoreError::Damaged { .. }) => {
                let local = self.rest(error)?.into_iter().filter(|record| record.key.manager == LOCAL);
                local.map(|record| id_number(&record.key.id)).collect()
            }
            asked => asked?,
        };
        let numbers = numbers.into_iter().filter_map(|number| u64::try_from(number).ok());
        Ok(numbers.filter(|number| range.contains(number)).collect())
    }

    /// All samples of a job.
    pub fn series(&self, key: &JobKey) -> Result<Series, StoreError> {
        self.series_of_job_between(key, i64::MIN, i64::MAX)
    }

    /// The same of a job whose record is known.
    pub fn series_of(&self, record: &Record, wanted: Columns) -> Result<Series, StoreError> {
        let (key, days) = (&record.key, days_between(record.start_ns, record.end_ns));
        // Samples of other jobs are never there.
        let is_pending = key.manager == LOCAL && self.inbox_of(&key.id).contains_key(key);
        match is_pending {
            true => self.series_on(key, is_pending, (i64::MIN, i64::MAX), days),
            false => self.series.columns_between(key, &JOB, wanted, (i64::MIN, i64::MAX), days),
        }
    }

    /// The samples from `begin_ms` to `end_ms`, both included. A damaged block or day is a gap.
    pub fn series_of_job_between(
        &self,
        key: &JobKey,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Series, StoreError> {
        let is_pending = self.inbox_of(&key.id).contains_key(key);
        let days = self.days_of(key, is_pending, begin_ms, end_ms)?;
        self.series_on(key, is_pending, (begin_ms, end_ms), days)
    }

    fn series_on(
        &self,
        key: &JobKey,
        is_pending: bool,
        (begin_ms, end_ms): (i64, i64),
        days: (i64, i64),
    ) -> Result<Series, StoreError> {
        // The samples of the inbox first, for the same reason as in `jobs`.
        let pending = if is_pending { self.inbox_series(key) } else { None };
        let mut series = self.series.between(key, &JOB, (begin_ms, end_ms), days)?;
        if let Some(pending) = pending {
            series.append(&pending);
        }
        trim(&mut series, begin_ms, end_ms);
        Ok(series)
    }

    /// The samples of a further series of a job: its details, or the event that is the `part`.
    pub fn job_series_between(
        &self,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Series, StoreError> {
        let is_pending = self.inbox_of(&key.id).contains_key(key);
        let days = self.days_of(key, is_pending, begin_ms, end_ms)?;
        let mut series =
            self.series.between(&event::series_key(key, part), table, (begin_ms, end_ms), days)?;
        trim(&mut series, begin_ms, end_ms);
        Ok(series)
    }

    /// The samples of anything that has a series, such as a GPU ([`crate::device_on`]) or a node's part
    /// ([`crate::node_on`]) on a server.
    pub fn series_between(
        &self,
        key: &JobKey,
        table: &'static Table,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Series, StoreError> {
        let days = (day::of_ms(begin_ms), day::of_ms(end_ms));
        let mut series = self.series.between(key, table, (begin_ms, end_ms), days)?;
        trim(&mut series, begin_ms, end_ms);
        Ok(series)
    }

    /// The samples of a GPU from `begin_ms` to `end_ms`, both included.
    pub fn device_series(&self, uuid: &str, begin_ms: i64, end_ms: i64) -> Result<Series, StoreError> {
        self.series_between(&device::series_key(uuid), &gpu::device::TABLE, begin_ms, end_ms)
    }

    /// The same of a part of the machine.
    pub fn node_part_series(
        &self,
        table: &'static Table,
        part: &str,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Series, StoreError> {
        self.series_between(&node::series_key(part), table, begin_ms, end_ms)
    }

    /// Everything of the machine that has samples between two times, to the day.
    pub fn node_parts_between(&self, begin_ms: i64, end_ms: i64) -> Result<Vec<NodePart>, StoreError> {
        self.node_parts_on("", &[], begin_ms, end_ms)
    }

    /// The same on a server, of one of its nodes. An engine is queried for these tables alone.
    pub fn node_parts_on(
        &self,
        node: &str,
        tables: &[&'static Table],
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Vec<NodePart>, StoreError> {
        let days = (day::of_ms(begin_ms), day::of_ms(end_ms));
        let found = self.series.node_parts(node, tables, days)?;
        Ok(found.into_iter().map(|(table, part)| NodePart { table, part }).collect())
    }

    /// From when on a node of a server may have samples, if it has any from `begin_ms` to `end_ms`; to the day.
    pub fn node_begin_on(
        &self,
        node: &str,
        tables: &[&'static Table],
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Option<i64>, StoreError> {
        let days = (day::of_ms(begin_ms), day::of_ms(end_ms));
        let first = self.series.first_node_day(node, tables, days)?;
        Ok(first.map(|day| day::begin_ms(day).max(begin_ms)))
    }

    /// What is known of all devices.
    pub fn devices(&self) -> Result<Vec<Device>, StoreError> {
        self.ask(DEVICE_VERSION, device::all)
    }

    /// The devices that a job had.
    pub fn allocations(&self, key: &JobKey) -> Result<Vec<Allocation>, StoreError> {
        self.ask(DEVICE_VERSION, |sql| device::allocations(sql, key))
    }

    /// All emission factors, in the order of time.
    pub fn factors(&self) -> Result<Vec<Factor>, StoreError> {
        self.ask(DEVICE_VERSION, factors::all)
    }

    /// The days of a span in which a job can have samples.
    fn days_of(
        &self,
        key: &JobKey,
        is_pending: bool,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<(i64, i64), StoreError> {
        let by_row = match self.trusted() {
            Ok(Some(catalogue)) if !is_pending => reading::span(catalogue, key).ok().flatten(),
            _ => None,
        };
        let (start_ns, end_ns) = match by_row {
            Some(span) => span,
            None => self.get(key)?.map_or((None, None), |record| (record.start_ns, record.end_ns)),
        };
        let (first, last) = days_between(start_ns, end_ns);
        Ok((first.max(day::of_ms(begin_ms)), last.min(day::of_ms(end_ms))))
    }

    /// What the inbox says, by job.
    pub(crate) fn inbox(&self) -> Result<HashMap<JobKey, Record>, StoreError> {
        Ok(by_key(inbox::pending(&self.state).map_err(StoreError::io(&self.state))?))
    }

    /// Whether the inbox certainly holds no end of a job. One that cannot be read may be there.
    pub fn has_no_pending_end(&self, key: &JobKey) -> bool {
        let id = key.id.parse().ok().filter(|_| key.manager == LOCAL);
        id.is_none_or(|id| JobDir::open(&self.state, id).read().end_is_absent)
    }

    fn inbox_of(&self, id: &str) -> HashMap<JobKey, Record> {
        by_key(id.parse().ok().map(|id| JobDir::open(&self.state, id)))
    }

    fn inbox_series(&self, key: &JobKey) -> Option<Series> {
        if key.manager != LOCAL {
            return None;
        }
        JobDir::open(&self.state, key.id.parse().ok()?).read_series().0
    }
}

/// The days of a job, with one more at each end for clocks that were set.
fn days_between(start_ns: Option<i64>, end_ns: Option<i64>) -> (i64, i64) {
    let first = start_ns.map_or(i64::MIN, |start_ns| day::of_ns(start_ns) - 1);
    (first, end_ns.map_or(i64::MAX, |end_ns| day::of_ns(end_ns) + 1))
}

fn by_key(dirs: impl IntoIterator<Item = JobDir>) -> HashMap<JobKey, Record> {
    let records = dirs.into_iter().filter_map(|dir| dir.read().into_record());
    records.map(|record| (record.key.clone(), record)).collect()
}

/// Replaces what the inbox says of each job by what inbox and catalogue say together.
pub(crate) fn settle(catalogue: &dyn Sql, pending: &mut HashMap<JobKey, Record>) -> Result<(), StoreError> {
    for record in pending.values_mut() {
        if let Some(stored) = exact(catalogue, &record.key, Parts::ALL)? {
            *record = believe(record, &stored.record);
        }
    }
    Ok(())
}

fn trim(series: &mut Series, begin_ms: i64, end_ms: i64) {
    let end = series.times_ms.partition_point(|&time| time <= end_ms);
    let begin = series.times_ms.partition_point(|&time| time < begin_ms).min(end);
    series.truncate(end);
    series.remove_first(begin);
}
