//! What a server knows, for those who ask: the store, what nodes sent since, and how running jobs stand.

use std::path::PathBuf;

use met_core::cluster_job::together;
use met_core::job::{JobKey, Record};
use met_core::series::Course;
use met_core::{JOB, Table, event, gpu};
use met_store::cluster::{Log, Node};
use met_store::{Backends, Filter, Page, Reader, StoreError, device_on};
use met_wire::batch::Subject;

use super::incompatible::Incompatible;
use super::keeper::{add_waiting, part_keys, series_key};
use super::latest::Latest;

/// Opens the files for each question: a server that writes is not disturbed.
#[derive(Clone)]
pub struct ClusterView {
    pub state: PathBuf,
    pub backends: Backends,
    pub latest: Latest,
    pub incompatible: Incompatible,
    pub gap_ms: i64,
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
        self.with_figures(Reader::open_without_space(&self.state, &self.backends)?.jobs(filter)?)
    }

    /// Some jobs of a list, and what could not be read of it.
    pub fn page(&self, filter: &Filter) -> Result<(Page, Vec<String>), StoreError> {
        let reader = Reader::open_without_space(&self.state, &self.backends)?;
        let mut failed = None;
        let mut page =
            reader.page_with(filter, |running| match self.with_figures(std::mem::take(running)) {
                Ok(jobs) => *running = jobs,
                Err(error) => failed = Some(error),
            })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if !filter.needs_figures() {
            page.jobs = self.with_figures(page.jobs)?;
        }
        Ok((page, reader.take_unreadable()))
    }

    /// Asks the store something about jobs.
    pub fn ask<T>(&self, question: impl FnOnce(&Reader) -> Result<T, StoreError>) -> Result<T, StoreError> {
        question(&Reader::open_without_space(&self.state, &self.backends)?)
    }

    /// Adds to jobs that run what was last seen of them.
    pub fn with_figures(&self, mut jobs: Vec<Record>) -> Result<Vec<Record>, StoreError> {
        if jobs.iter().any(|record| record.state.is_live()) {
            let log = Log::open_for_reading(&self.state)?;
            for record in jobs.iter_mut().filter(|record| record.state.is_live()) {
                let parts = part_keys(&log, &record.key)?;
                let keys: Vec<JobKey> = parts.iter().map(|(node, key)| series_key(node, key)).collect();
                self.latest.complete(&keys, record);
            }
        }
        Ok(jobs)
    }

    /// The course of a job, of all its nodes together, after a time.
    pub fn course_after(&self, key: &JobKey, after_ms: i64) -> Result<Course, StoreError> {
        self.series_after(key, &JOB, "", after_ms)
    }

    /// The same of a further series: the details of a job, or the event that is the `part`.
    pub fn series_after(
        &self,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        after_ms: i64,
    ) -> Result<Course, StoreError> {
        let of_all = |_: &str| true;
        let courses = self.courses_of_nodes(key, table, part, of_all)?;
        if courses.is_empty() {
            return Ok(Course::new(table));
        }
        Ok(between(&together(&courses, self.gap_ms), after_ms.saturating_add(1), i64::MAX))
    }

    /// The course of a job on one of its nodes.
    pub fn course_on_node(&self, key: &JobKey, node: &str, after_ms: i64) -> Result<Course, StoreError> {
        let courses = self.courses_of_nodes(key, &JOB, "", |known| known == node)?;
        let course = courses.into_iter().next().unwrap_or_else(|| Course::new(&JOB));
        Ok(between(&course, after_ms.saturating_add(1), i64::MAX))
    }

    fn courses_of_nodes(
        &self,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<Course>, StoreError> {
        let (log, store) =
            (Log::open_for_reading(&self.state)?, Reader::open_without_space(&self.state, &self.backends)?);
        let mut courses = Vec::new();
        for (node, key) in part_keys(&log, key)?.into_iter().filter(|(node, _)| is_wanted(node)) {
            // What waits first: what is moved between the two is then in both and not in neither.
            let waiting = log.waiting(&node)?;
            let of_node = series_key(&node, &key);
            let mut course = store.job_series_between(&of_node, table, part, i64::MIN, i64::MAX)?;
            for (_, data) in waiting {
                add_waiting(&data, &Subject::Job(event::series_key(&key, part)), &mut course);
            }
            courses.push(course);
        }
        Ok(courses)
    }

    /// The course of a card, from and to these times.
    pub fn course_of_card(
        &self,
        nodes: &[String],
        uuid: &str,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Course, StoreError> {
        let (log, store) =
            (Log::open_for_reading(&self.state)?, Reader::open_without_space(&self.state, &self.backends)?);
        let mut waiting = Vec::new();
        for node in nodes {
            waiting.extend(log.waiting(node)?);
        }
        let mut course = Course::new(&gpu::card::TABLE);
        for node in nodes {
            course.append(&store.series_between(
                &device_on(node, uuid),
                &gpu::card::TABLE,
                begin_ms,
                end_ms,
            )?);
        }
        for (_, data) in waiting {
            add_waiting(&data, &Subject::Device(uuid.to_owned()), &mut course);
        }
        Ok(between(&course, begin_ms, end_ms))
    }
}

/// From and to these times.
pub(super) fn between(course: &Course, begin_ms: i64, end_ms: i64) -> Course {
    let begin = course.times_ms.partition_point(|&time| time < begin_ms);
    let end = course.times_ms.partition_point(|&time| time <= end_ms).max(begin);
    course.part(begin, end)
}
