//! What is old goes: jobs and samples by the retention, and with a job what its nodes told of it.

use std::collections::HashSet;
use std::time::Duration;

use met_core::job::JobKey;
use met_store::StoreError;

use super::Work;
use super::wholes::{key_of_whole, series_of};

/// What was told of so many parts of jobs is looked at in one go: others have their turn in between.
const SWEEP: usize = 500;
/// Longer than anything is on its way; what is sent again later is recognised by its content.
const SPOOLS_FOR: Duration = Duration::from_secs(60 * 86_400);

impl Work {
    pub(super) fn retain(&mut self, now_ns: i64) -> Result<(), StoreError> {
        self.writer.retain(&self.plan.retention, now_ns)?;
        self.log.forget_spools(now_ns.saturating_sub(SPOOLS_FOR.as_nanos() as i64)).map(drop)
    }

    /// Forgets what was told of jobs that are over and that the catalogue does not have any more, some at a time.
    /// A part that ended stays as long as its job does.
    pub(super) fn forget_removed(&mut self) -> Result<(), StoreError> {
        // What waits to be applied is not in the catalogue either.
        if self.behind {
            return Ok(());
        }
        let some = self.log.over_after(self.swept.as_ref(), SWEEP)?;
        self.swept = some.last().filter(|_| some.len() == SWEEP).cloned();
        let keys: HashSet<JobKey> = some.iter().map(key_of_whole).collect();
        let mut removed: HashSet<JobKey> = HashSet::new();
        for key in keys {
            if self.writer.get(&key)?.is_none() {
                removed.insert(key);
            }
        }
        let old: Vec<_> = some.into_iter().filter(|told| removed.contains(&key_of_whole(told))).collect();
        for told in &old {
            self.latest.forget(&series_of(told));
        }
        self.log.forget_told(&old)
    }
}
