//! The runs of a job's lineage.

use anyhow::Result;
use met_core::job::Record;
use met_insight::lineage;

use super::{AllJobs, JobsFilter};

impl AllJobs {
    /// The runs of a job's lineage before it, newest first, as far as they are known here. Later jobs do not change
    /// them.
    pub fn earlier_runs(&mut self, record: &Record) -> Result<Vec<Record>> {
        let candidates = self.runs_of_lineage(record, record.start_ns)?;
        Ok(lineage::earlier(record, &candidates).into_iter().cloned().collect())
    }

    /// The runs of a job's lineage, those that began before a time.
    pub fn runs_of_lineage(&mut self, record: &Record, until_ns: Option<i64>) -> Result<Vec<Record>> {
        let Some(filter) = JobsFilter::perhaps_of_lineage(record, until_ns) else { return Ok(Vec::new()) };
        let mut jobs = self.jobs(&filter)?;
        let of = lineage::lineage(record);
        jobs.retain(|job| lineage::lineage(job) == of);
        Ok(jobs)
    }
}
