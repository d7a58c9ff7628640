//! What answers about a job are made of, read together: its samples, its GPUs', its earlier runs.

use anyhow::Result;
use met_agent::sampler;
use met_core::gpu::card;
use met_core::job::Record;
use met_core::series::Course;
use met_core::{JOB, Table};
use met_insight::answers::{Answers, Job, Samples, answers};
use met_insight::neighbours::Neighbours;
use met_insight::report::Machine;
use met_insight::rules::Rules;
use met_insight::{gpu, lineage};
use met_query::jobs::{AllJobs, JobsFilter};
use met_query::setting::Setting;

/// GPUs whose samples are read.
const GPUS_MAX: usize = 16;

pub struct Known {
    pub course: Course,
    pub gpus: Vec<(String, Course)>,
    gap_ms: i64,
    machine: Machine,
    /// GPUs of its machine, and the pressure that others felt there.
    beside: (Option<u32>, Option<f64>),
}

impl Known {
    /// Reads the samples; `series` gives those of a table and part.
    pub fn read(
        setting: &Setting,
        record: &Record,
        machine: Machine,
        series: &mut dyn FnMut(&'static Table, &str) -> Result<Course>,
    ) -> Result<Known> {
        let course = series(&JOB, "")?;
        let mut gpus = Vec::new();
        for gpu in record.gpus.iter().take(GPUS_MAX) {
            gpus.push((gpu.uuid.clone(), series(&card::TABLE, &gpu.uuid)?));
        }
        let gap_ms = sampler::gap_ms_of(&course, setting.config.sampling.shortest());
        Ok(Known { course, gpus, gap_ms, machine, beside: (None, None) })
    }

    pub fn beside(self, neighbours: &Neighbours<'_>, record: &Record, now_ns: i64) -> Known {
        // Who has a GPU itself is no matter for the others' sake.
        let node_gpus = neighbours.gpus(record).filter(|_| gpu::count(record) == 0);
        let pressure = node_gpus.and_then(|_| neighbours.pressure(record, now_ns));
        Known { beside: (node_gpus, pressure), ..self }
    }

    /// The samples of a table and part, if they were read.
    pub fn series(&self, table: &'static Table, part: &str) -> Option<&Course> {
        match table.name {
            name if name == JOB.name && part.is_empty() => Some(&self.course),
            name if name == card::TABLE.name => {
                self.gpus.iter().find(|(uuid, _)| uuid == part).map(|(_, course)| course)
            }
            _ => None,
        }
    }

    /// Calls `with` with the job and all that is known around it. Earlier runs are of its lineage, newest first.
    pub fn with_job<T>(
        &self,
        record: &Record,
        earlier: &[&Record],
        now_ns: i64,
        with: impl FnOnce(&Job<'_>) -> T,
    ) -> T {
        let samples = Samples { course: &self.course, gap_ms: self.gap_ms, gpus: &self.gpus };
        let (node_gpus, pressure) = self.beside;
        let job = Job::new(record, self.machine, now_ns).after(earlier).beside(node_gpus, pressure);
        with(&job.sampled(samples))
    }

    pub fn answers(&self, record: &Record, earlier: &[Record], now_ns: i64) -> Answers {
        let earlier: Vec<&Record> = earlier.iter().collect();
        self.with_job(record, &earlier, now_ns, |job| answers(job, Rules::built_in()))
    }
}

/// The runs of a job's lineage before it, newest first, as far as they are known here. Later jobs do not change them.
pub fn earlier(all: &mut AllJobs, record: &Record) -> Result<Vec<Record>> {
    let candidates = of_lineage(all, record, record.start_ns)?;
    Ok(lineage::earlier(record, &candidates).into_iter().cloned().collect())
}

/// The runs of a job's lineage, those that began before a time.
pub fn of_lineage(all: &mut AllJobs, record: &Record, until_ns: Option<i64>) -> Result<Vec<Record>> {
    let Some(filter) = JobsFilter::perhaps_of_lineage(record, until_ns) else { return Ok(Vec::new()) };
    let mut jobs = all.jobs(&filter)?;
    let of = lineage::lineage(record);
    jobs.retain(|job| lineage::lineage(job) == of);
    Ok(jobs)
}
