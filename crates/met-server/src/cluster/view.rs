//! What a server knows, for those who ask: the store, what nodes sent since, and how running jobs stand.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use met_core::course::Course;
use met_core::job::{JobKey, Record};
use met_core::whole::together;
use met_core::{Table, gpu};
use met_store::cluster::{Log, Node};
use met_store::{Backends, Filter, NodePart, Reader, StoreError};
use met_wire::batch::{Batch, Subject};

use super::keeper::{add_waiting, gather, part_keys, series_key};
use super::latest::Latest;
use super::misunderstood::Misunderstood;

/// Opens the files for each question: a server that writes is not disturbed.
#[derive(Clone)]
pub struct ClusterView {
    pub state: PathBuf,
    pub backends: Backends,
    pub latest: Latest,
    pub misunderstood: Misunderstood,
    pub gap_ms: i64,
}

impl ClusterView {
    pub fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        Log::open(&self.state)?.nodes()
    }

    pub fn jobs(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        self.with_figures(Reader::open_with(&self.state, &self.backends)?.jobs(filter)?)
    }

    /// Asks the store something about jobs.
    pub fn ask<T>(&self, question: impl FnOnce(&Reader) -> Result<T, StoreError>) -> Result<T, StoreError> {
        question(&Reader::open_with(&self.state, &self.backends)?)
    }

    /// Adds to jobs that run what was last seen of them.
    pub fn with_figures(&self, mut jobs: Vec<Record>) -> Result<Vec<Record>, StoreError> {
        if jobs.iter().any(|record| record.state.is_live()) {
            let log = Log::open(&self.state)?;
            for record in jobs.iter_mut().filter(|record| record.state.is_live()) {
                let parts = part_keys(&log, &record.key)?;
                let keys: Vec<JobKey> = parts.iter().map(|(node, key)| series_key(node, key)).collect();
                self.latest.complete(&keys, record);
            }
        }
        Ok(jobs)
    }

    /// The course of a job, of all its nodes together, after a time.
    pub fn course(&self, key: &JobKey, after_ms: i64) -> Result<Course, StoreError> {
        let (log, store) = (Log::open(&self.state)?, Reader::open_with(&self.state, &self.backends)?);
        let mut courses = Vec::new();
        for (node, key) in part_keys(&log, key)? {
            // What waits first: what is moved between the two is then in both and not in neither.
            let waiting = log.waiting(&node, i64::MAX)?;
            let mut course = store.course(&series_key(&node, &key))?;
            for (_, data) in waiting {
                add_waiting(&data, &Subject::Job(key.clone()), &mut course);
            }
            courses.push(course);
        }
        Ok(after(together(&courses, self.gap_ms), after_ms))
    }

    /// The course of a card, from and to these times.
    pub fn card_course(
        &self,
        nodes: &[String],
        uuid: &str,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Course, StoreError> {
        let (log, store) = (Log::open(&self.state)?, Reader::open_with(&self.state, &self.backends)?);
        let mut waiting = Vec::new();
        for node in nodes {
            waiting.extend(log.waiting(node, i64::MAX)?);
        }
        let mut course = Course::new(&gpu::card::TABLE);
        for node in nodes {
            course.append(&store.device_course_on(node, uuid, begin_ms, end_ms)?);
        }
        for (_, data) in waiting {
            add_waiting(&data, &Subject::Device(uuid.to_owned()), &mut course);
        }
        Ok(between(course, begin_ms, end_ms))
    }

    /// The courses of all parts of a node, from and to these times.
    pub fn node_courses(
        &self,
        node: &str,
        tables: &[&'static Table],
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<Vec<(NodePart, Course)>, StoreError> {
        let (log, store) = (Log::open(&self.state)?, Reader::open_with(&self.state, &self.backends)?);
        let named = |name: &str| tables.iter().find(|table| table.name == name).copied();
        let mut waiting = HashMap::new();
        for (_, data) in log.waiting(node, i64::MAX)? {
            let Ok(mut batch) = Batch::unpack(&data) else { continue };
            batch.pieces.retain(|piece| matches!(piece.subject, Subject::Node(_)));
            gather(batch.pieces, named, &mut waiting);
        }
        let mut courses: BTreeMap<NodePart, Course> = BTreeMap::new();
        for part in store.node_parts_on(node, tables, begin_ms, end_ms)? {
            let Some(table) = named(&part.table) else { continue };
            let course = store.node_course_on(node, table, &part.part, begin_ms, end_ms)?;
            courses.insert(part, course);
        }
        for ((subject, table), more) in waiting {
            let Subject::Node(part) = subject else { continue };
            let part = NodePart { table: table.to_owned(), part };
            courses.entry(part).or_insert_with(|| Course::new(more.table)).append(&more);
        }
        let cut = courses.into_iter().map(|(part, course)| (part, between(course, begin_ms, end_ms)));
        Ok(cut.filter(|(_, course)| !course.is_empty()).collect())
    }
}

/// From and to these times.
fn between(mut course: Course, begin_ms: i64, end_ms: i64) -> Course {
    let end = course.times_ms.partition_point(|&time| time <= end_ms);
    course.truncate(end);
    after(course, begin_ms.saturating_sub(1))
}

fn after(course: Course, after_ms: i64) -> Course {
    let begin = course.times_ms.partition_point(|&time| time <= after_ms);
    Course {
        table: course.table,
        times_ms: course.times_ms[begin..].to_vec(),
        columns: course.columns.iter().map(|cells| cells[begin..].to_vec()).collect(),
    }
}
