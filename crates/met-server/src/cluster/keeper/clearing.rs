//! What is old goes: jobs and samples by the retention, and with a job what its nodes told of it.

use std::time::Duration;

use met_core::job::JobKey;
use met_store::StoreError;
use met_store::cluster::Log;

use super::wholes::{told_key, whole_key};
use super::{Latest, Work, series_key};

/// Longer than anything is on its way; what is sent again later is recognised by its content.
const SPOOLS_FOR: Duration = Duration::from_secs(60 * 86_400);

impl Work {
    pub(super) fn retain(&mut self, now_ns: i64) -> Result<(), StoreError> {
        let (log, latest) = (&mut self.log, &self.latest);
        let goes = &mut |removed: &[JobKey]| forget_removed(log, latest, removed);
        self.writer.retain_telling(&self.plan.retention, now_ns, goes)?;
        self.log.forget_spools(now_ns.saturating_sub(SPOOLS_FOR.as_nanos() as i64)).map(drop)
    }
}

/// Forgets what was told of jobs that the retention removes, and of no others: that a job is not in the catalogue may
/// also mean that the catalogue was lost, and then this is all there is. A part that lives stays, and its job with it
/// comes back.
fn forget_removed(log: &mut Log, latest: &Latest, removed: &[JobKey]) -> Result<(), StoreError> {
    let mut old = Vec::new();
    for key in removed {
        let mut told = log.told(&key.manager, &key.id)?;
        told.retain(|told| whole_key(told) == *key && (told.given_up || !told.record.state.is_live()));
        for told in &told {
            latest.forget(&series_key(&told.node, &told.record.key));
            old.push(told_key(told));
        }
    }
    log.forget_told(&old)
}
