//! Questions to the store. Database and inbox are answered from as one.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use met_core::course::Course;
use met_core::job::{JobKey, LOCAL, Record, State};
use met_core::{JOB, Table};

use crate::backends::Backends;
use crate::day;
use crate::error::StoreError;
use crate::inbox::{self, JobDir};
use crate::postgresql::Postgres;
use crate::record::{
    self, Parts, exact, id_number, is_unsettled, select, sort_ns, supersedes, with_what_was_known,
};
use crate::schema::{CATALOGUE, open_for_reading, open_frozen};
use crate::series::{self, Series};
use crate::sql::{self, Sql, Value};
use crate::sqlite::Sqlite;

pub(crate) const CATALOGUE_FILE: &str = "store.db";
/// From which version on the catalogue knows aliases, and remembers what belongs to no job.
const ALIAS_VERSION: i64 = 2;
/// From which version on it knows devices, and what a kilowatt hour emitted.
pub(crate) const DEVICE_VERSION: i64 = 2;
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

    fn sql(&self, dialect: &sql::Dialect) -> (String, Vec<Value<'_>>) {
        let mut conditions = vec!["TRUE".to_string()];
        let mut values: Vec<Value<'_>> = Vec::new();
        let known: [(&str, Value<'_>); 7] = [
            ("sort_ns >=", self.since_ns.into()),
            ("sort_ns <", self.until_ns.into()),
            ("uid =", self.uid.into()),
            ("\"user\" =", self.user.as_ref().into()),
            ("name =", self.name.as_ref().into()),
            ("manager =", self.manager.as_ref().into()),
            ("account =", self.account.as_ref().into()),
        ];
        for (condition, value) in known.into_iter().filter(|(_, value)| *value != Value::Null) {
            values.push(value);
            conditions.push(format!("{condition} ?{}", values.len()));
        }
        if self.with_cards {
            // By the record itself, which every version has.
            conditions.push(format!("(state IN ({}) OR {})", live_states(), dialect.has_cards));
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
    backends: Backends,
    /// Empty until there is a database.
    pub(crate) catalogue: OnceCell<Box<dyn Sql>>,
    pub(crate) series: Box<dyn Series>,
    pub(crate) is_network: bool,
}

/// Reads the store of a state directory, also while it is written and before there is one.
pub struct Reader {
    queries: Queries,
}

impl Reader {
    pub fn open(state: &Path) -> Result<Reader, StoreError> {
        Reader::open_with(state, &Backends::default())
    }

    /// As [`Reader::open`], where catalogue or series lie elsewhere.
    pub fn open_with(state: &Path, backends: &Backends) -> Result<Reader, StoreError> {
        let queries = Queries::new(state, backends)?;
        queries.catalogue()?;
        Ok(Reader { queries })
    }

    /// As [`Reader::open_with`] for one question, also where there is no space for what SQLite needs to read.
    pub fn open_without_space(state: &Path, backends: &Backends) -> Result<Reader, StoreError> {
        let queries = Queries::new(state, backends)?;
        match queries.catalogue() {
            Err(error) if error.is_no_space() => {
                let path = state.join(CATALOGUE_FILE);
                let catalogue = Sqlite::new(open_frozen(&path)?, &path);
                Ok(Reader {
                    queries: Queries {
                        catalogue: OnceCell::from(Box::new(catalogue) as Box<dyn Sql>),
                        ..queries
                    },
                })
            }
            opened => opened.map(drop).map(|()| Reader { queries }),
        }
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
        let is_network = crate::network::is_network(state);
        Ok(Queries {
            state: state.to_path_buf(),
            catalogue: OnceCell::new(),
            series: series::open(state, is_network, backends)?,
            backends: backends.clone(),
            is_network,
        })
    }

    /// Whether there is a database that can be read; without one nothing is known but the inbox.
    pub fn has_database(&self) -> bool {
        matches!(self.catalogue(), Ok(Some(_)))
    }

    /// Whether the state is on a file system where only one process can open the database.
    pub fn is_network(&self) -> bool {
        self.is_network
    }

    /// Samples that the engine of series refused since this was opened, and that are lost.
    pub fn samples_refused(&self) -> u64 {
        self.series.refused()
    }

    pub(crate) fn catalogue_path(&self) -> PathBuf {
        self.state.join(CATALOGUE_FILE)
    }

    pub(crate) fn catalogue(&self) -> Result<Option<&dyn Sql>, StoreError> {
        if self.catalogue.get().is_none() {
            let path = self.catalogue_path();
            let opened: Option<Box<dyn Sql>> = match &self.backends.catalogue {
                Some(server) => Postgres::for_reading(server)?.map(|server| Box::new(server) as _),
                None => open_for_reading(&path, &CATALOGUE)?
                    .map(|connection| Box::new(Sqlite::new(connection, &path)) as _),
            };
            if let Some(opened) = opened {
                let _ = self.catalogue.set(opened);
            }
        }
        Ok(self.catalogue.get().map(|catalogue| &**catalogue))
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

    /// The jobs that pass `filter`, newest first by start, then by number.
    pub fn jobs(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        // The inbox first: a job that is imported between the two is then in both and not in neither.
        let mut pending = self.inbox();
        let parts = Parts { totals: true, summaries: filter.with_summaries };
        let mut jobs = Vec::new();
        if let Some(catalogue) = self.catalogue()? {
            settle(catalogue, &mut pending)?;
            let (condition, values) = filter.sql(catalogue.dialect());
            let limit = filter.limit.map(|limit| limit.saturating_add(pending.len()));
            let stored = select(catalogue, &condition, &values, limit, parts)?;
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
            settle(catalogue, &mut pending)?;
            // A reader may meet a file that no writer of this version has opened yet.
            let condition = match catalogue.version()? >= ALIAS_VERSION {
                true => "(id = ?1 OR alias = ?1)",
                false => "id = ?1",
            };
            let stored = select(catalogue, condition, &[id.into()], None, Parts::ALL)?;
            jobs.extend(stored.into_iter().map(|stored| stored.record));
            jobs.retain(|record| is_asked(&record.key) && !pending.contains_key(&record.key));
        }
        jobs.extend(pending.into_values());
        jobs.sort_by_key(|record| std::cmp::Reverse(sort_ns(record)));
        Ok(jobs)
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
        self.ask(CHANGE_VERSION, |catalogue| record::changed_after(catalogue, mark, since_ns, limit))
    }

    /// The number of the change that was made last, 0 before the first.
    pub fn newest_change(&self) -> Result<i64, StoreError> {
        self.ask(CHANGE_VERSION, record::newest_change)
    }

    /// The job with exactly this key.
    pub fn get(&self, key: &JobKey) -> Result<Option<Record>, StoreError> {
        let pending = self.inbox_of(&key.id).remove(key);
        let stored = match self.catalogue()? {
            Some(catalogue) => exact(catalogue, key, Parts::ALL)?.map(|stored| stored.record),
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
        let statement = "SELECT max(id_number) FROM job WHERE manager = 'local'";
        let highest =
            sql::first(catalogue, statement, &[], |row| row.get(0).known().map(Value::integer).transpose())?;
        Ok(highest.flatten().map_or(1, |highest| highest.max(0) as u64 + 1))
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
        let mut course = self.series.between(key, &JOB, (begin_ms, end_ms), days)?;
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
        let mut course = self.series.between(key, table, (begin_ms, end_ms), days)?;
        trim(&mut course, begin_ms, end_ms);
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
fn settle(catalogue: &dyn Sql, pending: &mut HashMap<JobKey, Record>) -> Result<(), StoreError> {
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
