//! The runs before each of many jobs. What was read for one of them serves the next ones of its user.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use met_core::job::Record;
use met_core::listing::sort_ns;
use met_insight::lineage;

use super::filter::LINEAGE_CANDIDATES;
use super::{AllJobs, JobsFilter};

/// What is read more than needed if older jobs of a user are asked for: lists are mostly by time, newest first.
const AHEAD: usize = 3 * LINEAGE_CANDIDATES;
/// Records that are held, of all users together.
const HELD_MAX: usize = 20 * LINEAGE_CANDIDATES;

/// By user, manager and the tag that names a lineage.
type Owner = (String, String, Option<String>);

#[derive(Default)]
pub struct EarlierRuns {
    read: HashMap<Owner, Read>,
    /// How many jobs were asked for.
    turn: u64,
    /// Owners of whom the newest jobs were read and were too few: jobs come oldest first, and there are many.
    rising: HashSet<Owner>,
    /// How many jobs each list was asked for.
    #[cfg(test)]
    lists: Vec<usize>,
}

/// The newest jobs of a user and manager that began before a time, newest first.
struct Read {
    until_ns: Option<i64>,
    jobs: Vec<Record>,
    /// There are no others.
    is_all: bool,
    /// When they were last used.
    turn: u64,
}

impl Read {
    /// Whether all jobs that began shortly before this time can be among them.
    fn reaches(&self, start_ns: Option<i64>) -> bool {
        match (self.until_ns, start_ns) {
            (None, _) => true,
            (Some(until_ns), Some(start_ns)) => start_ns <= until_ns,
            (Some(_), None) => false,
        }
    }

    /// Those among which the runs before a job are looked for, as far as they were read.
    fn before(&self, start_ns: Option<i64>) -> &[Record] {
        let is_later = |job: &Record| start_ns.is_some_and(|start_ns| sort_ns(job) >= start_ns);
        let before = &self.jobs[self.jobs.partition_point(is_later)..];
        &before[..before.len().min(LINEAGE_CANDIDATES)]
    }

    /// Whether all of them were read.
    fn has_all_before(&self, start_ns: Option<i64>) -> bool {
        self.reaches(start_ns) && (self.is_all || self.before(start_ns).len() >= LINEAGE_CANDIDATES)
    }
}

impl EarlierRuns {
    /// As [`AllJobs::earlier_runs`].
    pub fn of(&mut self, all: &mut AllJobs, record: &Record) -> Result<Vec<&Record>> {
        let owner = met_insight::rules::user::owner(record).unwrap_or_default();
        let owner = (owner, record.key.manager.clone(), lineage::tag(record).map(str::to_owned));
        self.turn += 1;
        let has_all = |read: &Read| read.has_all_before(record.start_ns);
        if !self.read.get(&owner).is_some_and(has_all) {
            let Some(read) = self.read_for(all, record, &owner)? else { return Ok(Vec::new()) };
            self.hold(owner.clone(), read);
        }
        let Some(read) = self.read.get_mut(&owner) else { return Ok(Vec::new()) };
        read.turn = self.turn;
        Ok(lineage::earlier(record, read.before(record.start_ns)))
    }

    /// Reads the runs before a job, and more if that will serve the next jobs of its user. `None` without a user.
    fn read_for(&mut self, all: &mut AllJobs, record: &Record, owner: &Owner) -> Result<Option<Read>> {
        let reaches = self.read.get(owner).map(|known| known.reaches(record.start_ns));
        let ahead = (HELD_MAX / self.read.len().max(1)).saturating_sub(LINEAGE_CANDIDATES).min(AHEAD);
        // A later job: the newest ones serve it and all others, if there are not too many.
        if reaches == Some(false) && !self.rising.contains(owner) {
            let Some(filter) = JobsFilter::perhaps_of_lineage(record, None) else { return Ok(None) };
            let read = self.list(all, filter, LINEAGE_CANDIDATES + ahead)?;
            if read.has_all_before(record.start_ns) {
                return Ok(Some(read));
            }
            self.rising.insert(owner.clone());
        }
        let ahead = if reaches == Some(true) { ahead } else { 0 };
        let Some(filter) = JobsFilter::perhaps_of_lineage(record, record.start_ns) else { return Ok(None) };
        self.list(all, filter, LINEAGE_CANDIDATES + ahead).map(Some)
    }

    fn list(&mut self, all: &mut AllJobs, mut filter: JobsFilter, count: usize) -> Result<Read> {
        #[cfg(test)]
        self.lists.push(count);
        filter.page.limit = Some(count);
        let jobs = all.jobs(&filter)?;
        Ok(Read { until_ns: filter.times.until_ns, is_all: jobs.len() < count, jobs, turn: self.turn })
    }

    /// Those that were not used for the longest time leave first.
    fn hold(&mut self, owner: Owner, read: Read) {
        self.read.remove(&owner);
        while self.held() + read.jobs.len() > HELD_MAX {
            let oldest = self.read.iter().min_by_key(|(_, read)| read.turn).map(|(owner, _)| owner.clone());
            let Some(oldest) = oldest else { break };
            self.read.remove(&oldest);
        }
        self.read.insert(owner, read);
    }

    fn held(&self) -> usize {
        self.read.values().map(|read| read.jobs.len()).sum()
    }
}

#[cfg(test)]
#[path = "earlier_runs_tests.rs"]
mod tests;
