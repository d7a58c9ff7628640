//! Jobs nested in each other are read in the same way: the sums of the outer one are over processes of all.

use std::collections::HashMap;

use met_core::attribute::JobMap;
use met_host::Look;

use super::tracked::Jobs;

/// Reads all of a family as the one of it that is read most, and nothing of it only in part.
pub(super) fn read_together(map: &JobMap, jobs: &mut Jobs) {
    if !map.has_nested() {
        return;
    }
    let outermost = |slot: u32| std::iter::successors(Some(slot), |&inner| map.outer(inner)).last();
    let mut families: HashMap<u32, Look> = jobs
        .keys()
        .filter(|&&slot| map.outer(slot).is_some())
        .filter_map(|&slot| Some((outermost(slot)?, Look::No)))
        .collect();
    for (&slot, job) in jobs.iter() {
        if let Some(look) = outermost(slot).and_then(|outer| families.get_mut(&outer)) {
            *look = (*look).max(job.age.pacing.look);
        }
    }
    for (&slot, job) in jobs.iter_mut() {
        if let Some(&look) = outermost(slot).and_then(|outer| families.get(&outer)) {
            job.age.pacing.look = if look == Look::Cheap { Look::Whole } else { look };
        }
    }
}
