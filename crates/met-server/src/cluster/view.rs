//! What a server knows, for those who ask: the store, what nodes sent since, and how running jobs stand.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use met_core::cluster_job::together;
use met_core::job::{JobKey, Record};
use met_core::series::Series;
use met_core::{JOB, Table, event, gpu};
use met_query::viewer::Viewer;
use met_store::cluster::{Log, Node};
use met_store::{Backends, Filter, LiveFigures, LiveJobs, Page, Reader, RunningJobs, StoreError, device_on};
use met_wire::batch::Subject;

use super::cluster_writer::{add_waiting, part_keys, part_series, series_key};
use super::incompatible::Incompatible;
use super::latest::Latest;
use super::open_files::OpenFiles;
use super::watching::Watching;

#[derive(Clone)]
pub struct ClusterView {
    pub state: PathBuf,
    pub backends: Backends,
    pub latest: Latest,
    pub incompatible: Incompatible,
    pub gap_ms: i64,
    pub lists: Arc<Lists>,
    pub watching: Watching,
}

/// What lists share.
#[derive(Default)]
pub struct Lists {
    files: OpenFiles,
    running: RunningJobs,
}

impl Lists {
    /// Before the writer stops: it leaves no logs behind if it is the last to close its files.
    pub fn close_files(&self) {
        self.files.close();
    }
}

/// Jobs that run, as nodes last said of them.
struct LiveView<'v> {
    log: &'v Log,
    latest: &'v Latest,
}

impl LiveJobs for LiveView<'_> {
    fn parts(&self, job: &JobKey) -> Result<Vec<JobKey>, StoreError> {
        part_series(self.log, job)
    }

    fn figures(&self, parts: &[JobKey]) -> LiveFigures {
        self.latest.figures(parts)
    }

    fn complete(&self, parts: &[JobKey], record: &mut Record) {
        self.latest.complete(parts, record);
    }
}

impl ClusterView {
    pub fn known_nodes(&self) -> Result<Vec<Node>, StoreError> {
        Log::open_for_reading(&self.state)?.nodes()
    }

    /// Whether there may be something of this node.
    pub fn knows_node(&self, node: &str) -> Result<bool, StoreError> {
        Log::open_for_reading(&self.state)?.knows_node(node)
    }

    pub fn all_jobs(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        self.with_figures(self.ask(|store| store.jobs(filter))?)
    }

    /// Some jobs of a list, and what could not be read of it.
    pub fn page(&self, filter: &Filter) -> Result<(Page, Vec<String>), StoreError> {
        self.lists.files.with_store(self, |reader| {
            let of_running = self.page_of_running(reader, filter)?;
            let mut page = match of_running {
                Some(page) => page,
                None => self.page_of_records(reader, filter)?,
            };
            if !filter.needs_figures() {
                page.jobs = self.with_figures(page.jobs)?;
            }
            Ok((page, reader.take_unreadable()))
        })
    }

    /// A page by values that change, without the records of jobs that are not on it.
    fn page_of_running(&self, reader: &Reader, filter: &Filter) -> Result<Option<Page>, StoreError> {
        if filter.page.sort.is_none() && !filter.needs_figures() {
            return Ok(None);
        }
        self.lists.files.with_log(self, |log| {
            self.lists.running.page(reader, filter, &LiveView { log, latest: &self.latest })
        })
    }

    fn page_of_records(&self, reader: &Reader, filter: &Filter) -> Result<Page, StoreError> {
        let mut failed = None;
        let page = reader.page_with(filter, |running| match self.with_figures(std::mem::take(running)) {
            Ok(jobs) => *running = jobs,
            Err(error) => failed = Some(error),
        })?;
        failed.map_or(Ok(page), Err)
    }

    /// Asks the store something about jobs.
    pub fn ask<T>(&self, question: impl FnOnce(&Reader) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.lists.files.with_store(self, question)
    }

    /// Adds to jobs that run what was last seen of them.
    pub fn with_figures(&self, mut jobs: Vec<Record>) -> Result<Vec<Record>, StoreError> {
        if jobs.iter().any(|record| record.state.is_live()) {
            self.lists.files.with_log(self, |log| {
                let live = LiveView { log, latest: &self.latest };
                log.in_snapshot(|| {
                    for record in jobs.iter_mut().filter(|record| record.state.is_live()) {
                        live.complete(&live.parts(&record.key)?, record);
                    }
                    Ok(())
                })
            })?;
        }
        Ok(jobs)
    }

    /// A viewer asks for these jobs, which it sees: nodes learn of those that it watches.
    pub(super) fn note_interest<'r>(&self, viewer: &Viewer, jobs: impl IntoIterator<Item = &'r Record>) {
        let now = Instant::now();
        let live = jobs.into_iter().filter(|record| record.state.is_live()).map(|record| &record.key);
        for key in live.filter(|key| self.watching.ask(viewer, key, now)) {
            // Where they cannot be read, the next request looks them up again.
            if let Ok(parts) = self.parts_of(key) {
                self.watching.watch(viewer, &parts, now);
            }
        }
    }

    /// The keys of the series of a job, which have the names of its nodes.
    pub(super) fn parts_of(&self, key: &JobKey) -> Result<Vec<JobKey>, StoreError> {
        self.lists.files.with_log(self, |log| part_series(log, key))
    }

    /// The series of a job, of all its nodes together, after a time.
    pub fn series_of_job_after(&self, key: &JobKey, after_ms: i64) -> Result<Series, StoreError> {
        self.series_after(key, &JOB, "", after_ms)
    }

    /// The same of a further series: the details of a job, or the event that is the `part`.
    pub fn series_after(
        &self,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        after_ms: i64,
    ) -> Result<Series, StoreError> {
        let of_all = |_: &str| true;
        let all_series = self.series_of_nodes(key, table, part, of_all)?;
        if all_series.is_empty() {
            return Ok(Series::new(table));
        }
        Ok(between(&together(&all_series, self.gap_ms), after_ms.saturating_add(1), i64::MAX))
    }

    /// The series of a job on one of its nodes.
    pub fn series_on_node(&self, key: &JobKey, node: &str, after_ms: i64) -> Result<Series, StoreError> {
        let all_series = self.series_of_nodes(key, &JOB, "", |known| known == node)?;
        let series = all_series.into_iter().next().unwrap_or_else(|| Series::new(&JOB));
        Ok(between(&series, after_ms.saturating_add(1), i64::MAX))
    }

    fn series_of_nodes(
        &self,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<Series>, StoreError> {
        let (log, store) =
            (Log::open_for_reading(&self.state)?, Reader::open_without_space(&self.state, &self.backends)?);
        let mut all_series = Vec::new();
        for (node, key) in part_keys(&log, key)?.into_iter().filter(|(node, _)| is_wanted(node)) {
            // What waits first: what is moved between the two is then in both and not in neither.
            let waiting = log.waiting(&node)?;
            let of_node = series_key(&node, &key);
            let mut series = store.job_series_between(&of_node, table, part, i64::MIN, i64::MAX)?;
            for (_, data) in waiting {
                add_waiting(&data, &Subject::Job(event::series_key(&key, part)), &mut series);
            }
            all_series.push(series);
        }
        Ok(all_series)
    }

    /// The series of a GPU, from and to these times.
    pub fn series_of_gpu(
        &self,
        nodes: &[String],
        uuid: &str,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Series, StoreError> {
        let (log, store) =
            (Log::open_for_reading(&self.state)?, Reader::open_without_space(&self.state, &self.backends)?);
        let mut waiting = Vec::new();
        for node in nodes {
            waiting.extend(log.waiting(node)?);
        }
        let mut series = Series::new(&gpu::device::TABLE);
        for node in nodes {
            series.append(&store.series_between(
                &device_on(node, uuid),
                &gpu::device::TABLE,
                begin_ms,
                end_ms,
            )?);
        }
        for (_, data) in waiting {
            add_waiting(&data, &Subject::Device(uuid.to_owned()), &mut series);
        }
        Ok(between(&series, begin_ms, end_ms))
    }
}

/// From and to these times.
pub(super) fn between(series: &Series, begin_ms: i64, end_ms: i64) -> Series {
    let begin = series.times_ms.partition_point(|&time| time < begin_ms);
    let end = series.times_ms.partition_point(|&time| time <= end_ms).max(begin);
    series.part(begin, end)
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
