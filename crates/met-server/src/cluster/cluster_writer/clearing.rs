//! Retention: old jobs and samples, and with a job the records of its nodes.

use std::time::{Duration, Instant};

use met_core::job::JobKey;
use met_query::jobs;
use met_store::cluster::{Log, NodeJobKey};
use met_store::{Retention, StoreError, Thinning};

use super::wholes::{key_of_whole, node_job_key, series_of, whole_key};
use super::{Latest, Wholes, series_key};

/// Longer than anything is on its way; what is sent again later is recognised by its content.
const SPOOLS_FOR: Duration = Duration::from_secs(60 * 86_400);
/// Of the twenty seconds between two looks.
const THIN_FOR: Duration = Duration::from_millis(500);
const SUM_FOR: Duration = Duration::from_millis(500);
/// Rows examined per pass: other work waits meanwhile.
const LEFT_BEHIND_ROWS: usize = 20_000;

/// Removes what is old from the store, and from what nodes reported.
#[derive(Default)]
pub(super) struct Clearing {
    /// How far it was looked for what is left of jobs that were removed.
    looked_for_old: Option<NodeJobKey>,
    /// Some samples may be old enough to be thinned.
    thins: bool,
    /// The node whose samples were added to the sums of use last.
    summed: String,
}

impl Clearing {
    pub(super) fn retain(
        &mut self,
        wholes: &mut Wholes,
        retention: &Retention,
        now_ns: i64,
    ) -> Result<(), StoreError> {
        wholes.writer.look_after()?;
        wholes.restore()?;
        let (log, latest) = (&mut wholes.log, &wholes.latest);
        let goes = &mut |removed: &[JobKey]| forget_removed(log, latest, removed);
        let retained = wholes.writer.retain_with(retention, now_ns, goes)?;
        retained.lines().iter().for_each(|line| tracing::info!("{line}"));
        if retained.jobs_removed > 0 {
            jobs::forget_reactions(&mut wholes.writer, now_ns)?;
        }
        if let Some(max_age_ns) = retention.max_age_ns {
            self.forget_left_behind(wholes, now_ns.saturating_sub(max_age_ns), LEFT_BEHIND_ROWS)?;
        }
        wholes.log.forget_spools(now_ns.saturating_sub(SPOOLS_FOR.as_nanos() as i64)).map(drop)
    }

    pub(super) fn begin_thinning(&mut self) {
        self.thins = true;
    }

    /// Thins some of the old samples: batches wait meanwhile.
    pub(super) fn thin(
        &mut self,
        wholes: &mut Wholes,
        rules: &[Thinning],
        now_ns: i64,
    ) -> Result<(), StoreError> {
        if self.thins {
            self.thins = false;
            self.thins =
                met_store::thin(&mut wholes.writer, rules, &met_sources::catalogue(), now_ns, THIN_FOR)?;
        }
        Ok(())
    }

    /// Adds some of what is new to the sums of use: jobs, and what nodes measured of themselves, in turn.
    pub(super) fn sum(&mut self, wholes: &mut Wholes, now_ms: i64) -> Result<(), StoreError> {
        if jobs::sum_jobs(&mut wholes.writer, SUM_FOR)? {
            return Ok(());
        }
        let begin = Instant::now();
        let names: Vec<String> = wholes.log.nodes()?.into_iter().map(|node| node.name).collect();
        let behind = names.partition_point(|name| *name <= self.summed);
        for name in names[behind..].iter().chain(&names[..behind]) {
            jobs::sum_machine(&mut wholes.writer, name, name, now_ms)?;
            self.summed.clone_from(name);
            if begin.elapsed() >= SUM_FOR {
                break;
            }
        }
        Ok(())
    }

    /// What was reported of jobs that went without it, as they did in earlier versions, goes when it is old itself.
    pub(super) fn forget_left_behind(
        &mut self,
        wholes: &mut Wholes,
        before_ns: i64,
        rows: usize,
    ) -> Result<(), StoreError> {
        let (old, last) = wholes.log.old_node_jobs(before_ns, self.looked_for_old.as_ref(), rows)?;
        let mut left = Vec::new();
        for key in old {
            if wholes.writer.get(&key_of_whole(&key))?.is_none() {
                wholes.latest.forget(&series_of(&key));
                left.push(key);
            }
        }
        wholes.log.forget_node_jobs(&left)?;
        self.looked_for_old = last;
        Ok(())
    }
}

/// Removes the node records of jobs that the retention removes, and of no others: that a job is not in the catalogue may
/// also mean that the catalogue was lost, and then this is all there is. A part that lives stays, and its job with it
/// comes back.
fn forget_removed(log: &mut Log, latest: &Latest, removed: &[JobKey]) -> Result<(), StoreError> {
    let mut old = Vec::new();
    for key in removed {
        let mut jobs = log.node_jobs(&key.manager, &key.id)?;
        jobs.retain(|job| whole_key(job) == *key && (job.given_up || !job.record.state.is_live()));
        for job in &jobs {
            latest.forget(&series_key(&job.node, &job.record.key));
            old.push(node_job_key(job));
        }
    }
    log.forget_node_jobs(&old)
}
