//! The running jobs of a store in memory, as far as lists filter and sort by them: a list by a figure that grows would
//! otherwise read the records of all jobs that run.
//!
//! Rows follow the catalogue by the numbers of its changes, so a start, an end or another owner is seen as soon as it is
//! committed. Only figures of jobs that run may be [`FIGURES_AGE`] old.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use met_core::belief::First;
use met_core::job::{JobKey, Record, State};
use met_core::listing::{self, FIGURES, Listed};
use met_core::{FastMap, MISSING};

use crate::error::StoreError;
use crate::file_id::FileId;
use crate::filter::Filter;
use crate::reading::{Parts, Stored, rows, select};
use crate::record::newest_change;
use crate::sql::{self, Sql};

type Result<T> = std::result::Result<T, StoreError>;

/// A list by figures of running jobs may be as old as this; the records in it are not.
const FIGURES_AGE: Duration = Duration::from_secs(1);
/// Some 85 MB; 10,000 rows take 10 MB. With more running jobs than these, lists are read from the store.
const ROWS_MAX: usize = 100_000;
/// Records that are read at once.
const PIECE: usize = 500;

/// What is known of running jobs besides their records.
pub trait LiveJobs {
    /// The keys under which samples of a job's parts are known.
    fn parts(&self, job: &JobKey) -> Result<Vec<JobKey>>;
    /// The figures of a job with these parts.
    fn figures(&self, parts: &[JobKey]) -> LiveFigures;
    /// Adds all figures to the record of such a job.
    fn complete(&self, parts: &[JobKey], record: &mut Record);
}

/// Figures of a running job by which lists are filtered and sorted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LiveFigures {
    /// [`FIGURES`], each of them [`MISSING`] if unknown.
    pub totals: [i64; FIGURES.len()],
    pub gpu_utilization: Option<f64>,
    /// Up to when they go.
    pub as_of_ns: Option<i64>,
}

impl LiveFigures {
    fn of(record: &Record) -> LiveFigures {
        LiveFigures {
            totals: FIGURES.map(|column| record.totals.get(column).unwrap_or(MISSING)),
            gpu_utilization: record.gpu_utilization(),
            as_of_ns: record.as_of_ns,
        }
    }

    /// These totals, and others where there are none.
    fn totals_or(&self, others: &LiveFigures) -> [i64; FIGURES.len()] {
        let mut totals = self.totals;
        for (total, other) in totals.iter_mut().zip(others.totals) {
            if *total == MISSING {
                *total = other;
            }
        }
        totals
    }
}

/// What lists need of a running job.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Its key in the catalogue.
    pub job: i64,
    key: JobKey,
    /// Empty if the job is its only part.
    parts: Box<[JobKey]>,
    name: Box<str>,
    partition: Option<Box<str>>,
    owner: Owner,
    state: State,
    start_ns: Option<i64>,
    end_ns: Option<i64>,
    given: Given,
    stored: LiveFigures,
    now: LiveFigures,
}

#[derive(Clone, Debug)]
struct Owner {
    user: Option<Box<str>>,
    uid: Option<u32>,
    account: Option<Box<str>>,
}

/// What does not change before the job's record does.
#[derive(Clone, Copy, Debug)]
struct Given {
    cpus: Option<i64>,
    nodes: Option<i64>,
    gpus_seen: Option<i64>,
    gpus_allocated: Option<i64>,
    scheduler_cpu_ns: Option<i64>,
    submit_ns: Option<i64>,
    covers_all_nodes: bool,
    first: First,
}

impl Row {
    fn new(stored: &Stored, live: &dyn LiveJobs) -> Result<Row> {
        let record = &stored.record;
        let text = |text: &Option<String>| text.as_deref().map(Box::from);
        let mut parts = live.parts(&record.key)?;
        if let [only] = &parts[..]
            && *only == record.key
        {
            parts.clear();
        }
        let figures = LiveFigures::of(record);
        let gpus_seen = i64::try_from(record.gpus.len()).ok().filter(|&count| count > 0);
        let mut row = Row {
            job: stored.key,
            key: record.key.clone(),
            parts: parts.into(),
            name: record.name.as_str().into(),
            partition: text(&record.scheduling.partition),
            owner: Owner { user: text(&record.user), uid: record.uid, account: text(&record.account) },
            state: record.state,
            start_ns: record.start_ns,
            end_ns: record.end_ns,
            given: Given {
                cpus: listing::cpus(record),
                nodes: listing::nodes(record),
                gpus_seen,
                gpus_allocated: record.allocated.gpus,
                scheduler_cpu_ns: record.scheduling.cpu_ns,
                submit_ns: record.scheduling.submit_ns,
                covers_all_nodes: record.covers_all_nodes(),
                first: First::of(record),
            },
            stored: figures,
            now: figures,
        };
        row.refresh(live);
        Ok(row)
    }

    /// The keys under which samples of its parts are known.
    pub fn parts(&self) -> &[JobKey] {
        if self.parts.is_empty() { std::slice::from_ref(&self.key) } else { &self.parts }
    }

    /// As [`met_core::belief::add_sample`] does it with the record.
    fn refresh(&mut self, live: &dyn LiveJobs) {
        let sample = live.figures(self.parts());
        let (first, other) = self.given.first.order(self.stored, sample);
        // A sample adds only totals to a record of the end.
        let other_utilization = other.gpu_utilization.filter(|_| self.given.first == First::Sample);
        self.now = LiveFigures {
            totals: first.totals_or(&other),
            gpu_utilization: first.gpu_utilization.or(other_utilization),
            as_of_ns: sample.as_of_ns,
        };
    }
}

impl Listed for Row {
    fn key(&self) -> &JobKey {
        &self.key
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn user(&self) -> Option<&str> {
        self.owner.user.as_deref()
    }
    fn uid(&self) -> Option<u32> {
        self.owner.uid
    }
    fn account(&self) -> Option<&str> {
        self.owner.account.as_deref()
    }
    fn partition(&self) -> Option<&str> {
        self.partition.as_deref()
    }
    fn state(&self) -> State {
        self.state
    }
    fn start_ns(&self) -> Option<i64> {
        self.start_ns
    }
    fn end_ns(&self) -> Option<i64> {
        self.end_ns
    }
    fn as_of_ns(&self) -> Option<i64> {
        self.now.as_of_ns
    }
    /// The wall time is of jobs that are over.
    fn total(&self, column: usize) -> Option<i64> {
        let at = FIGURES.iter().position(|&known| known == column)?;
        Some(self.now.totals[at]).filter(|&total| total != MISSING)
    }
    fn gpu_utilization(&self) -> Option<f64> {
        self.now.gpu_utilization
    }
    fn cpu_count(&self) -> Option<i64> {
        self.given.cpus
    }
    fn node_count(&self) -> Option<i64> {
        self.given.nodes
    }
    fn gpu_count(&self) -> Option<i64> {
        self.given.gpus_seen.or_else(|| self.total(met_core::job_table::GPUS)).or(self.given.gpus_allocated)
    }
    fn covers_all_nodes(&self) -> bool {
        self.given.covers_all_nodes
    }
    fn scheduler_cpu_ns(&self) -> Option<i64> {
        self.given.scheduler_cpu_ns
    }
    fn submit_ns(&self) -> Option<i64> {
        self.given.submit_ns
    }
    /// It runs.
    fn exit_status(&self) -> Option<i64> {
        None
    }
    fn tags(&self) -> Option<String> {
        None
    }
    fn command(&self) -> Option<String> {
        None
    }
}

/// The running jobs of one store, shared by all who ask for lists.
pub struct RunningJobs {
    rows: Mutex<Rows>,
    figures_age: Duration,
    rows_max: usize,
}

impl Default for RunningJobs {
    fn default() -> RunningJobs {
        RunningJobs::with_age(FIGURES_AGE)
    }
}

impl RunningJobs {
    /// With figures that are no older than this.
    pub fn with_age(figures_age: Duration) -> RunningJobs {
        RunningJobs { rows: Mutex::default(), figures_age, rows_max: ROWS_MAX }
    }

    /// With rows of no more jobs than these.
    pub fn with_rows_max(self, rows_max: usize) -> RunningJobs {
        RunningJobs { rows_max, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all of them again when they are asked for next.
    pub(crate) fn forget(&self) {
        *self.lock() = Rows::default();
    }

    /// The first of them in the order of a list, as many as fit its page and one more. `None` if there are too many to
    /// hold, or some that cannot be read. The first query of a snapshot must be this one: what others made of the rows is not later then.
    pub(crate) fn first(
        &self,
        sql: &dyn Sql,
        file: Option<FileId>,
        filter: &Filter,
        live: &dyn LiveJobs,
    ) -> Result<Option<Vec<Row>>> {
        let mut rows = self.lock();
        let followed = rows.follow(sql, file, live, self.rows_max);
        if !matches!(followed, Ok(true)) {
            *rows = Rows::default();
            return followed.map(|_| None);
        }
        if rows.refreshed.is_none_or(|refreshed| refreshed.elapsed() >= self.figures_age) {
            rows.jobs.values_mut().for_each(|row| row.refresh(live));
            rows.refreshed = Some(Instant::now());
        }
        let count = filter.page.limit.unwrap_or(usize::MAX).saturating_add(1);
        let fitting = rows.jobs.values().filter(|&row| filter.accepts_listed(row));
        Ok(Some(filter.order().first_running(fitting, count).into_iter().cloned().collect()))
    }
}

#[derive(Default)]
struct Rows {
    /// Of which file these are, and which of its changes are in them; `None` before the first.
    file: Option<FileId>,
    mark: Option<i64>,
    /// By their keys in the catalogue.
    jobs: FastMap<i64, Row>,
    refreshed: Option<Instant>,
}

const RUNNING: [State; 2] = [State::Running, State::Suspended];

fn running() -> Filter {
    Filter { states: RUNNING.to_vec(), ..Filter::default() }
}

impl Rows {
    /// Brings them up to date with the catalogue. False if they are not all jobs that run there.
    fn follow(
        &mut self,
        sql: &dyn Sql,
        file: Option<FileId>,
        live: &dyn LiveJobs,
        rows_max: usize,
    ) -> Result<bool> {
        let newest = newest_change(sql)?;
        let count = count(sql)?;
        // Some of them would be taken for all when others have ended.
        if count > rows_max {
            return Ok(false);
        }
        match self.mark.filter(|&mark| self.file == file && mark <= newest) {
            None => {
                *self = Rows { file, ..Rows::default() };
                self.read_all(sql, live)?;
            }
            Some(mark) => {
                if mark < newest {
                    self.read_changed(sql, mark, live)?;
                }
                if self.jobs.len() != count {
                    self.drop_deleted(sql)?;
                }
            }
        }
        self.mark = Some(newest);
        Ok(self.jobs.len() == count)
    }

    fn read_all(&mut self, sql: &dyn Sql, live: &dyn LiveJobs) -> Result<()> {
        let (all, mut after) = (running(), None);
        loop {
            let (condition, values) = all.sql(sql.dialect(), after.as_ref());
            let selected = select(sql, &condition, &values, Some(PIECE), Parts::ALL)?;
            for stored in &selected.found {
                self.jobs.insert(stored.key, Row::new(stored, live)?);
            }
            if selected.rows < PIECE {
                return Ok(());
            }
            let unordered = || sql.damaged("row has unreadable sort keys");
            after = Some(selected.last.ok_or_else(unordered)?);
        }
    }

    fn read_changed(&mut self, sql: &dyn Sql, mut mark: i64, live: &dyn LiveJobs) -> Result<()> {
        loop {
            let behind = "WHERE changed > ?1 ORDER BY changed";
            let selected = rows(sql, behind, &[mark.into()], Some(PIECE), Parts::ALL)?;
            for stored in &selected.found {
                match RUNNING.contains(&stored.record.state) {
                    true => self.jobs.insert(stored.key, Row::new(stored, live)?),
                    false => self.jobs.remove(&stored.key),
                };
            }
            if selected.rows < PIECE || selected.last_changed <= mark {
                return Ok(());
            }
            mark = selected.last_changed;
        }
    }

    /// A removed job takes its number with it, so its row is known by there being one too many.
    fn drop_deleted(&mut self, sql: &dyn Sql) -> Result<()> {
        let all = running();
        let (condition, values) = all.sql(sql.dialect(), None);
        let keys = format!("SELECT key FROM job WHERE {condition}");
        let keys = sql::all(sql, &keys, &values, |row| row.get(0).integer())?;
        let keys: FastMap<i64, ()> = keys.into_iter().map(|key| (key, ())).collect();
        self.jobs.retain(|job, _| keys.contains_key(job));
        Ok(())
    }
}

/// How many jobs run, those included that cannot be read. An index counts them.
fn count(sql: &dyn Sql) -> Result<usize> {
    let all = running();
    let (condition, values) = all.sql(sql.dialect(), None);
    let count = format!("SELECT count(*) FROM job WHERE {condition}");
    let count = sql::first(sql, &count, &values, |row| row.get(0).integer())?;
    count.and_then(|count| usize::try_from(count).ok()).ok_or_else(|| sql.damaged("jobs cannot be counted"))
}

#[cfg(test)]
#[path = "running_tests.rs"]
mod tests;
