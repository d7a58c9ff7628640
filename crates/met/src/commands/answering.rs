//! What answers about a job are made of, read together: its samples, its GPUs', its earlier runs.

use anyhow::Result;
use met_agent::sampler;
use met_core::gpu::card;
use met_core::job::Record;
use met_core::series::Course;
use met_core::{JOB, Table};
use met_insight::answers::{Answers, Job, Samples, answers};
use met_insight::lineage;
use met_insight::report::Machine;
use met_insight::rules::Rules;
use met_query::jobs::{AllJobs, JobsFilter};
use met_query::setting::Setting;

/// Jobs of the same name and user among which earlier runs are looked for.
const CANDIDATES: usize = 60;
/// GPUs whose samples are read.
const GPUS_MAX: usize = 16;

pub struct Known {
    pub course: Course,
    pub gpus: Vec<(String, Course)>,
    gap_ms: i64,
    machine: Machine,
    earlier: Vec<Record>,
}

impl Known {
    /// Reads the samples; `series` gives those of a table and part.
    pub fn read(
        setting: &Setting,
        record: &Record,
        machine: Machine,
        earlier: Vec<Record>,
        series: &mut dyn FnMut(&'static Table, &str) -> Result<Course>,
    ) -> Result<Known> {
        let course = series(&JOB, "")?;
        let mut gpus = Vec::new();
        for gpu in record.gpus.iter().take(GPUS_MAX) {
            gpus.push((gpu.uuid.clone(), series(&card::TABLE, &gpu.uuid)?));
        }
        let gap_ms = sampler::gap_ms_of(&course, setting.config.sampling.shortest());
        Ok(Known { course, gpus, gap_ms, machine, earlier })
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

    /// Calls `with` with the job and all that is known around it.
    pub fn with_job<T>(&self, record: &Record, now_ns: i64, with: impl FnOnce(&Job<'_>) -> T) -> T {
        let earlier = lineage::earlier(record, &self.earlier);
        let samples = Samples { course: &self.course, gap_ms: self.gap_ms, gpus: &self.gpus };
        with(&Job::new(record, self.machine, now_ns).after(&earlier).sampled(samples))
    }

    pub fn answers(&self, record: &Record, now_ns: i64) -> Answers {
        self.with_job(record, now_ns, |job| answers(job, Rules::built_in()))
    }
}

/// Earlier runs of a job's lineage, as far as they are known here.
pub fn earlier(all: &mut AllJobs, record: &Record) -> Result<Vec<Record>> {
    let filter =
        JobsFilter { name: Some(record.name.clone()), limit: Some(CANDIDATES), ..JobsFilter::default() };
    let mut jobs = all.jobs(&filter.of_user(record.user.as_deref()))?;
    let of = lineage::lineage(record);
    jobs.retain(|job| lineage::lineage(job) == of);
    Ok(jobs)
}
