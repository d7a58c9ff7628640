//! The runs before each of many jobs. What was read for one of them serves the next ones of its user.

use std::collections::HashMap;

use anyhow::Result;
use met_core::job::Record;
use met_core::listing::sort_ns;
use met_insight::lineage;

use super::filter::LINEAGE_CANDIDATES;
use super::{AllJobs, JobsFilter};

/// What is read more than needed, if jobs of a user are asked for again: lists are mostly by time.
const AHEAD: usize = 3 * LINEAGE_CANDIDATES;
/// Records that are held, of all users together.
const HELD_MAX: usize = 20 * LINEAGE_CANDIDATES;

#[derive(Default)]
pub struct EarlierRuns {
    /// By user and manager.
    read: HashMap<(String, String), Read>,
}

/// The newest jobs of a user and manager that began before a time, newest first.
struct Read {
    until_ns: Option<i64>,
    jobs: Vec<Record>,
    /// There are no others.
    is_all: bool,
}

impl Read {
    /// Those among which the runs before a job are looked for, if all of them were read.
    fn before(&self, start_ns: Option<i64>) -> Option<&[Record]> {
        let is_covered = match (self.until_ns, start_ns) {
            (None, _) => true,
            (Some(until_ns), Some(start_ns)) => start_ns <= until_ns,
            (Some(_), None) => false,
        };
        let begin =
            self.jobs.partition_point(|job| start_ns.is_some_and(|start_ns| sort_ns(job) >= start_ns));
        let before = self.jobs.get(begin..).filter(|_| is_covered)?;
        let is_enough = self.is_all || before.len() >= LINEAGE_CANDIDATES;
        is_enough.then(|| &before[..before.len().min(LINEAGE_CANDIDATES)])
    }
}

impl EarlierRuns {
    /// As [`AllJobs::earlier_runs`].
    pub fn of(&mut self, all: &mut AllJobs, record: &Record) -> Result<Vec<&Record>> {
        let Some(filter) = JobsFilter::perhaps_of_lineage(record, record.start_ns) else {
            return Ok(Vec::new());
        };
        let owner = met_insight::rules::user::owner(record).unwrap_or_default();
        let key = (owner, record.key.manager.clone());
        let known = self.read.get(&key);
        if known.and_then(|known| known.before(record.start_ns)).is_none() {
            let ahead = if known.is_some() { AHEAD } else { 0 };
            let read = read(all, filter, LINEAGE_CANDIDATES + ahead)?;
            self.hold(key.clone(), read);
        }
        let before = self.read.get(&key).and_then(|known| known.before(record.start_ns));
        Ok(lineage::earlier(record, before.unwrap_or_default()))
    }

    fn hold(&mut self, key: (String, String), read: Read) {
        self.read.remove(&key);
        if self.held() + read.jobs.len() > HELD_MAX {
            self.read.clear();
        }
        self.read.insert(key, read);
    }

    fn held(&self) -> usize {
        self.read.values().map(|read| read.jobs.len()).sum()
    }
}

fn read(all: &mut AllJobs, mut filter: JobsFilter, count: usize) -> Result<Read> {
    filter.page.limit = Some(count);
    let jobs = all.jobs(&filter)?;
    Ok(Read { until_ns: filter.times.until_ns, is_all: jobs.len() < count, jobs })
}

#[cfg(test)]
#[path = "earlier_runs_tests.rs"]
mod tests;
