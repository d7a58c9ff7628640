//! What answers about a job are made of, read together: its samples and those of its GPUs.

use std::sync::Arc;
use std::time::Duration;

use met_core::gpu::device;
use met_core::job::Record;
use met_core::series::{Columns, Interval, Series};
use met_core::{JOB, Table};

use super::{Answers, Beside, Job, Samples, answers, follow_up};
use crate::report::Machine;
use crate::rules::{self, Needs, Rules};
use crate::scale::System;
use crate::{lineage, resample};

/// GPUs whose samples are read.
pub const GPUS_MAX: usize = 16;

/// Gives the samples of a run, a table and a part. Columns that are not wanted may be empty.
pub type ReadRun<'s, E> = dyn FnMut(&Record, &'static Table, &str, Columns) -> Result<Series, E> + 's;

pub struct Known {
    pub series: Series,
    pub gpus: Vec<(String, Series)>,
    gap_ms: i64,
    machine: Machine,
    beside: Option<Beside>,
    systems: Arc<[System]>,
    /// Samples of the run before, if they were read.
    before: Option<Box<Known>>,
}

impl Known {
    /// Reads the samples; `series` gives those of a table and part. A job is sampled at most at this interval.
    pub fn read<E>(
        interval: Duration,
        record: &Record,
        machine: Machine,
        series: &mut dyn FnMut(&'static Table, &str) -> Result<Series, E>,
    ) -> Result<Known, E> {
        Known::read_needed(Needs::ALL, interval, record, machine, &mut |table, part, _| series(table, part))
    }

    /// The same of what rules need.
    pub fn read_needed<E>(
        needs: Needs,
        interval: Duration,
        record: &Record,
        machine: Machine,
        read: &mut dyn FnMut(&'static Table, &str, Columns) -> Result<Series, E>,
    ) -> Result<Known, E> {
        let series = if needs.samples { read(&JOB, "", needs.columns)? } else { Series::new(&JOB) };
        let mut gpus = Vec::new();
        for gpu in record.gpus.iter().take(if needs.gpu_samples { GPUS_MAX } else { 0 }) {
            gpus.push((gpu.uuid.clone(), read(&device::TABLE, &gpu.uuid, Columns::ALL)?));
        }
        let gap_ms = resample::gap_ms_of(&series, interval);
        Ok(Known { series, gpus, gap_ms, machine, beside: None, systems: Arc::default(), before: None })
    }

    pub fn beside(self, beside: impl Into<Option<Beside>>) -> Known {
        Known { beside: beside.into(), ..self }
    }

    /// Among machines that it could move to.
    pub fn among(self, systems: &Arc<[System]>) -> Known {
        Known { systems: Arc::clone(systems), ..self }
    }

    /// With the samples of the run before, if rules that need them may have found something there. Without them less is
    /// said of it: that they cannot be read is no error.
    pub fn after<E>(
        self,
        interval: Duration,
        record: &Record,
        earlier: &[Record],
        now_ns: i64,
        series: &mut ReadRun<'_, E>,
    ) -> Known {
        let earlier = lineage::earlier(record, earlier);
        let job = Job::new(record, self.machine, now_ns).after(&earlier).among(&self.systems);
        let read = |before: Job<'_>| {
            let (_, needs) = rules::candidates(Rules::built_in(), &before);
            let mut of_run = |table: &'static Table, part: &str, wanted: Columns| {
                series(before.record, table, part, wanted)
            };
            let is_read = needs.samples || needs.gpu_samples;
            is_read.then(|| Known::read_needed(needs, interval, before.record, before.machine, &mut of_run))
        };
        let before = follow_up::judged_again(&job).and_then(read).and_then(Result::ok);
        Known { before: before.map(Box::new), ..self }
    }

    fn samples(&self) -> Samples<'_> {
        Samples { series: &self.series, gap_ms: self.gap_ms, gpus: &self.gpus }
    }

    /// What samples say of a column of the job, in its sub-unit.
    pub fn intervals(&self, column: usize) -> Vec<Interval> {
        self.series.intervals(column, self.gap_ms).collect()
    }

    /// The samples of a table and part, if they were read.
    pub fn series(&self, table: &'static Table, part: &str) -> Option<&Series> {
        match table.name {
            name if name == JOB.name && part.is_empty() => Some(&self.series),
            name if name == device::TABLE.name => {
                self.gpus.iter().find(|(uuid, _)| uuid == part).map(|(_, series)| series)
            }
            _ => None,
        }
    }

    /// The same to keep; each can be had once.
    pub fn take(&mut self, table: &'static Table, part: &str) -> Option<Series> {
        let known = match table.name {
            name if name == JOB.name && part.is_empty() => &mut self.series,
            name if name == device::TABLE.name => {
                self.gpus.iter_mut().find(|(uuid, _)| uuid == part).map(|(_, series)| series)?
            }
            _ => return None,
        };
        Some(std::mem::replace(known, Series::new(table)))
    }

    /// Calls `with` with the job and all that is known around it. Earlier runs are of its lineage, newest first.
    pub fn with_job<T>(
        &self,
        record: &Record,
        earlier: &[&Record],
        now_ns: i64,
        with: impl FnOnce(&Job<'_>) -> T,
    ) -> T {
        let job = Job::new(record, self.machine, now_ns).after(earlier).among(&self.systems);
        let before = self.before.as_ref().map(|before| before.samples());
        with(&Job { beside: self.beside, samples_before: before, ..job }.sampled(self.samples()))
    }

    /// Earlier runs may be of other lineages.
    pub fn answers(&self, record: &Record, earlier: &[Record], now_ns: i64) -> Answers {
        let earlier = lineage::earlier(record, earlier);
        self.with_job(record, &earlier, now_ns, |job| answers(job, Rules::built_in()))
    }
}
