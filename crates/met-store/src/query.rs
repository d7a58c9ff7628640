//! Questions to the store. Database and inbox are answered from as one.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use met_core::course::Course;
use met_core::job::{JobKey, LOCAL, Record, State};
use met_core::{JOB, Table};
use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension};

use crate::day;
use crate::error::StoreError;
use crate::inbox::{self, JobDir};
use crate::record::{
    self, Parts, exact, id_number, is_unsettled, select, sort_ns, supersedes, with_what_was_known,
};
use crate::schema::{CATALOGUE, SERIES, open_for_reading, version_of};
use crate::series;
use met_wire::block;

pub(crate) const CATALOGUE_FILE: &str = "store.db";
/// From which version on the catalogue knows aliases, and remembers what belongs to no job.
const ALIAS_VERSION: i64 = 2;
/// From which version on jobs have a number that says when they were written.
const CHANGE_VERSION: i64 = 3;

/// Which jobs to list. The default is all of them.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Started then or later.
    pub since_ns: Option<i64>,
    /// Started before then.
    pub until_ns: Option<i64>,
    /// Any of these; none named means any at all.
    pub states: Vec<State>,
    pub uid: Option<u32>,
    pub user: Option<String>,
    pub name: Option<String>,
    pub manager: Option<String>,
    pub account: Option<String>,
    pub limit: Option<usize>,
    pub with_summaries: bool,
    /// Only jobs that had a card, or that live and may have got one since they were last written.
    pub with_cards: bool,
}

impl Filter {
    fn accepts(&self, record: &Record) -> bool {
        self.since_ns.is_none_or(|since_ns| sort_ns(record) >= since_ns)
            && self.until_ns.is_none_or(|until_ns| sort_ns(record) < until_ns)
            && (self.states.is_empty() || self.states.contains(&record.state))
            && self.uid.is_none_or(|uid| record.uid == Some(uid))
            && self.user.as_ref().is_none_or(|user| record.user.as_ref() == Some(user))
            && self.name.as_ref().is_none_or(|name| record.name == *name)
            && self.manager.as_ref().is_none_or(|manager| record.key.manager == *manager)
            && (!self.with_cards || record.state.is_live() || !record.gpus.is_empty())
            && self.account.as_ref().is_none_or(|account| record.account.as_ref() == Some(account))
    }

    fn sql(&self) -> (String, Vec<Box<dyn ToSql>>) {
        let mut conditions = vec!["TRUE".to_string()];
        let mut values: Vec<Box<dyn ToSql>> = Vec::new();
        let mut add = |condition: &str, value: Box<dyn ToSql>| {
            conditions.push(condition.to_string());
            values.push(value);
        };
        if let Some(since_ns) = self.since_ns {
            add("sort_ns >= ?", Box::new(since_ns));
        }
        if let Some(until_ns) = self.until_ns {
            add("sort_ns < ?", Box::new(until_ns));
        }
        if let Some(uid) = self.uid {
            add("uid = ?", Box::new(uid));
        }
        if let Some(user) = &self.user {
            add("user = ?", Box::new(user.clone()));
        }
        if let Some(name) = &self.name {
            add("name = ?", Box::new(name.clone()));
        }
        if let Some(manager) = &self.manager {
            add("manager = ?", Box::new(manager.clone()));
        }
        if let Some(account) = &self.account {
            add("account = ?", Box::new(account.clone()));
        }
        if self.with_cards {
            // By the record itself, which every version has; the text decides before the JSON is read.
            let has_cards = "detail LIKE '%\"gpus\":[{%' AND json_array_length(detail, '$.gpus') > 0";
            conditions.push(format!("(state IN ({}) OR {has_cards})", live_states()));
        }
        if !self.states.is_empty() {
            let names: Vec<String> = self.states.iter().map(|state| format!("'{}'", state.name())).collect();
            conditions.push(format!("state IN ({})", names.join(", ")));
            if !self.states.contains(&State::Finished) {
                // Said once more in the words of the index that holds only these.
                conditions.push("state <> 'finished'".to_string());
            }
        }
        (conditions.join(" AND "), values)
    }
}

/// The states of jobs that live, as SQL has them.
pub(crate) fn live_states() -> String {
    let live = State::ALL.into_iter().filter(|state| state.is_live());
    live.map(|state| format!("'{}'", state.name())).collect::<Vec<_>>().join(", ")
}

/// The questions that both [`Reader`] and [`crate::Writer`] answer.
pub struct Queries {
    pub(crate) state: PathBuf,
    /// Empty until there is a database.
    pub(crate) catalogue: OnceCell<Connection>,
    /// Days the writer has open: on a network file system no second connection gets in.
    pub(crate) open_days: RefCell<Vec<(i64, Connection)>>,
    pub(crate) is_network: bool,
}

/// Reads the store of a state directory, also while it is written and before there is one.
pub struct Reader {
    queries: Queries,
}

impl Reader {
    pub fn open(state: &Path) -> Result<Reader, StoreError> {
        let queries = Queries::new(state, OnceCell::new());
        queries.catalogue()?;
        Ok(Reader { queries })
    }
}

impl Deref for Reader {
    type Target = Queries;

    fn deref(&self) -> &Queries {
        &self.queries
    }
}

impl Queries {
    pub(crate) fn new(state: &Path, catalogue: OnceCell<Connection>) -> Queries {
        Queries {
            state: state.to_path_buf(),
            catalogue,
            open_days: RefCell::default(),
            is_network: crate::network::is_network(state),
        }
    }

    /// Whether the state is on a file system where only one process can open the database.
    pub fn is_network(&self) -> bool {
        self.is_network
    }

    pub(crate) fn catalogue_path(&self) -> PathBuf {
        self.state.join(CATALOGUE_FILE)
    }

    pub(crate) fn catalogue(&self) -> Result<Option<&Connection>, StoreError> {
        if self.catalogue.get().is_none()
            && let Some(connection) = open_for_reading(&self.catalogue_path(), &CATALOGUE)?
        {
            let _ = self.catalogue.set(connection);
        }
        Ok(self.catalogue.get())
    }

    /// Asks the catalogue about devices; a file of before there were any has none.
    pub(crate) fn ask_devices<T: Default>(
        &self,
        ask: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let Some(catalogue) = self.catalogue()? else { return Ok(T::default()) };
        let has_devices = catalogue.table_exists(None, "device");
        let answer = has_devices.and_then(|has| if has { ask(catalogue) } else { Ok(T::default()) });
        answer.map_err(StoreError::database(&self.catalogue_path()))
    }

    /// The jobs that pass `filter`, newest first by start, then by number.
    pub fn jobs(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        // The inbox first: a job that is imported between the two is then in both and not in neither.
        let mut pending = self.inbox();
        let parts = Parts { totals: true, summaries: filter.with_summaries };
        let mut jobs = Vec::new();
        if let Some(catalogue) = self.catalogue()? {
            let path = self.catalogue_path();
            let database = StoreError::database(&path);
            settle(catalogue, &mut pending).map_err(database)?;
            let (condition, values) = filter.sql();
            let values: Vec<&dyn ToSql> = values.iter().map(|value| &**value).collect();
            let limit = filter.limit.map_or(-1, |limit| limit.saturating_add(pending.len()) as i64);
            let stored = select(catalogue, &condition, &values, limit, parts).map_err(database)?;
            jobs.extend(stored.into_iter().map(|stored| stored.record));
            jobs.retain(|record| !pending.contains_key(&record.key));
        }
        jobs.extend(pending.into_values().filter(|record| filter.accepts(record)));
        jobs.sort_by_key(|record| std::cmp::Reverse((sort_ns(record), id_number(&record.key.id))));
        jobs.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(jobs)
    }

    /// Every job with this id or alias, newest first: ids are given again by schedulers, and by several of them.
    pub fn find(&self, manager: Option<&str>, id: &str) -> Result<Vec<Record>, StoreError> {
        let is_asked = |key: &JobKey| manager.is_none_or(|manager| key.manager == manager);
        let mut pending = self.inbox_of(id);
        pending.retain(|key, _| key.id == id && is_asked(key));
        let mut jobs = Vec::new();
        if let Some(catalogue) = self.catalogue()? {
            let path = self.catalogue_path();
            let database = StoreError::database(&path);
            settle(catalogue, &mut pending).map_err(database)?;
            // A reader may meet a file that no writer of this version has opened yet.
            let condition = match version_of(catalogue, &path)? >= ALIAS_VERSION {
                true => "(id = ?1 OR alias = ?1)",
                false => "id = ?1",
            };
            let stored = select(catalogue, condition, &[&id], -1, Parts::ALL).map_err(database)?;
            jobs.extend(stored.into_iter().map(|stored| stored.record));
            jobs.retain(|record| is_asked(&record.key) && !pending.contains_key(&record.key));
        }
        jobs.extend(pending.into_values());
        jobs.sort_by_key(|record| std::cmp::Reverse(sort_ns(record)));
        Ok(jobs)
    }

    /// What was remembered with [`crate::Writer::set_meta`].
    pub fn meta(&self, name: &str) -> Result<Option<String>, StoreError> {
        let path = self.catalogue_path();
        let Some(catalogue) = self.catalogue()? else { return Ok(None) };
        if version_of(catalogue, &path)? < ALIAS_VERSION {
            return Ok(None);
        }
        catalogue
            .query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get(0))
            .optional()
            .map_err(StoreError::database(&path))
    }

    /// Jobs of the database (those of the inbox once they are imported) that were written after the change
    /// `mark`, in the order of their writing, each with its number. A job that is written again moves to the
    /// end: who begins after the last number that he took misses no last word on any job. Numbers are those of
    /// one database file; a mark is best kept in it, with [`crate::Writer::set_meta`].
    pub fn changed_after(&self, mark: i64, limit: usize) -> Result<Vec<(i64, Record)>, StoreError> {
        self.ask_changes(|catalogue| record::changed_after(catalogue, mark, limit))
    }

    /// The number of the change that was made last, 0 before the first.
    pub fn newest_change(&self) -> Result<i64, StoreError> {
        self.ask_changes(record::newest_change)
    }

    /// A file of a version before numbers were given has none until a writer opens it.
    fn ask_changes<T: Default>(
        &self,
        ask: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let path = self.catalogue_path();
        let Some(catalogue) = self.catalogue()? else { return Ok(T::default()) };
        if version_of(catalogue, &path)? < CHANGE_VERSION {
            return Ok(T::default());
        }
        ask(catalogue).map_err(StoreError::database(&path))
    }

    /// The job with exactly this key.
    pub fn get(&self, key: &JobKey) -> Result<Option<Record>, StoreError> {
        let pending = self.inbox_of(&key.id).remove(key);
        let stored = match self.catalogue()? {
            Some(catalogue) => exact(catalogue, key, Parts::ALL)
                .map_err(StoreError::database(&self.catalogue_path()))?
                .map(|stored| stored.record),
            None => None,
        };
        Ok(match (pending, stored) {
            (Some(pending), Some(stored)) => Some(merge(&pending, stored)),
            (pending, stored) => pending.or(stored),
        })
    }

    pub fn newest_named(&self, name: &str) -> Result<Option<Record>, StoreError> {
        let filter =
            Filter { name: Some(name.into()), limit: Some(1), with_summaries: true, ..Filter::default() };
        Ok(self.jobs(&filter)?.pop())
    }

    pub fn newest(&self) -> Result<Option<Record>, StoreError> {
        let filter = Filter { limit: Some(1), with_summaries: true, ..Filter::default() };
        Ok(self.jobs(&filter)?.pop())
    }

    /// A number above that of every local job in the database; the inbox knows those of its own.
    pub fn next_local_id(&self) -> Result<u64, StoreError> {
        let Some(catalogue) = self.catalogue()? else { return Ok(1) };
        let highest: Option<i64> = catalogue
            .query_row("SELECT max(id_number) FROM job WHERE manager = 'local'", [], |row| row.get(0))
            .map_err(StoreError::database(&self.catalogue_path()))?;
        Ok(highest.map_or(1, |highest| highest.max(0) as u64 + 1))
    }

    /// All samples of a job.
    pub fn course(&self, key: &JobKey) -> Result<Course, StoreError> {
        self.course_between(key, i64::MIN, i64::MAX)
    }

    /// The samples from `begin_ms` to `end_ms`, both included. A damaged block or day is a gap.
    pub fn course_between(&self, key: &JobKey, begin_ms: i64, end_ms: i64) -> Result<Course, StoreError> {
        let (first_day, last_day) = self.days_of(key)?;
        let days = (first_day.max(day::of_ms(begin_ms)), last_day.min(day::of_ms(end_ms)));
        // The samples of the inbox first, for the same reason as in `jobs`.
        let pending = self.inbox_course(key);
        let mut course = self.stored_series(key, &JOB, (begin_ms, end_ms), days)?;
        if let Some(pending) = pending {
            course.append(&pending);
        }
        trim(&mut course, begin_ms, end_ms);
        Ok(course)
    }

    /// The samples of anything that has a series.
    pub(crate) fn series_between(
        &self,
        key: &JobKey,
        table: &'static Table,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Course, StoreError> {
        let days = (day::of_ms(begin_ms), day::of_ms(end_ms));
        let mut course = self.stored_series(key, table, (begin_ms, end_ms), days)?;
        trim(&mut course, begin_ms, end_ms);
        Ok(course)
    }

    /// Every block that overlaps the span, from the files of these days.
    fn stored_series(
        &self,
        key: &JobKey,
        table: &'static Table,
        span_ms: (i64, i64),
        (first_day, last_day): (i64, i64),
    ) -> Result<Course, StoreError> {
        let mut blocks = Vec::new();
        let days = series::days(&self.state).map_err(StoreError::io(&self.state))?;
        for day in days.into_iter().filter(|day| (first_day..=last_day).contains(day)) {
            self.blocks_of(day, key, table, span_ms, &mut blocks)?;
        }
        let mut course = Course::new(table);
        let samples = blocks.iter().map(|block| block.samples).sum();
        course.times_ms.reserve(samples);
        course.columns.iter_mut().for_each(|cells| cells.reserve(samples));
        for block in &blocks {
            if let Ok(part) = block::decode(&block.data, table) {
                course.append(&part);
            }
        }
        Ok(course)
    }

    /// The days a job can have samples in, with one more at each end for clocks that were set.
    fn days_of(&self, key: &JobKey) -> Result<(i64, i64), StoreError> {
        let record = self.get(key)?;
        let start_ns = record.as_ref().and_then(|record| record.start_ns);
        let end_ns = record.as_ref().and_then(|record| record.end_ns);
        let first = start_ns.map_or(i64::MIN, |start_ns| day::of_ns(start_ns) - 1);
        let last = end_ns.map_or(i64::MAX, |end_ns| day::of_ns(end_ns) + 1);
        Ok((first, last))
    }

    fn blocks_of(
        &self,
        day: i64,
        key: &JobKey,
        table: &'static Table,
        span_ms: (i64, i64),
        out: &mut Vec<series::Packed>,
    ) -> Result<(), StoreError> {
        let path = series::path_of(&self.state, day);
        let read = |connection: &Connection, out: &mut Vec<series::Packed>| {
            series::blocks(connection, key, table, span_ms, out).map_err(StoreError::database(&path))
        };
        let open_days = self.open_days.borrow();
        let result = match open_days.iter().find(|(open, _)| *open == day) {
            Some((_, connection)) => read(connection, out),
            None => match open_for_reading(&path, &SERIES) {
                Ok(Some(connection)) => read(&connection, out),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            },
        };
        match result {
            Err(StoreError::Damaged { .. }) => Ok(()),
            result => result,
        }
    }

    /// What the inbox says, by job.
    fn inbox(&self) -> HashMap<JobKey, Record> {
        let dirs = inbox::pending(&self.state).unwrap_or_default();
        by_key(dirs)
    }

    fn inbox_of(&self, id: &str) -> HashMap<JobKey, Record> {
        by_key(id.parse().ok().map(|id| JobDir::open(&self.state, id)))
    }

    fn inbox_course(&self, key: &JobKey) -> Option<Course> {
        if key.manager != LOCAL || !self.inbox_of(&key.id).contains_key(key) {
            return None;
        }
        JobDir::open(&self.state, key.id.parse().ok()?).read_course().0
    }
}

fn by_key(dirs: impl IntoIterator<Item = JobDir>) -> HashMap<JobKey, Record> {
    let records = dirs.into_iter().filter_map(|dir| dir.read().into_record());
    records.map(|record| (record.key.clone(), record)).collect()
}

/// Replaces what the inbox says of each job by what inbox and catalogue say together.
fn settle(catalogue: &Connection, pending: &mut HashMap<JobKey, Record>) -> rusqlite::Result<()> {
    for record in pending.values_mut() {
        if let Some(stored) = exact(catalogue, &record.key, Parts::ALL)? {
            *record = merge(record, stored.record);
        }
    }
    Ok(())
}

/// An end in the inbox is news to the catalogue; a start is not.
fn merge(pending: &Record, stored: Record) -> Record {
    if !pending.state.is_live() && supersedes(pending, &stored) && is_unsettled(&stored) {
        with_what_was_known(pending, &stored)
    } else {
        stored
    }
}

fn trim(course: &mut Course, begin_ms: i64, end_ms: i64) {
    let end = course.times_ms.partition_point(|&time| time <= end_ms);
    let begin = course.times_ms.partition_point(|&time| time < begin_ms).min(end);
    course.times_ms.truncate(end);
    course.times_ms.drain(..begin);
    for cells in &mut course.columns {
        cells.truncate(end);
        cells.drain(..begin);
    }
}
