//! What stays the same in all series of a job: another start, or another owner, would be another series.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use met_core::job::JobKey;

/// Running jobs that are remembered; of more the oldest are forgotten.
const RUNNING_MAX: usize = 50_000;
/// Likewise of jobs that ended: an end may be published again, and rows may arrive after it.
const ENDED_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    pub start_ns: Option<i64>,
    pub user: Option<Arc<str>>,
}

#[derive(Default)]
pub(super) struct KnownJobs {
    /// Each with its number, in the order in which they became known.
    known: HashMap<JobKey, (u64, Known)>,
    running: BTreeMap<u64, JobKey>,
    ended: VecDeque<JobKey>,
    last_number: u64,
}

impl KnownJobs {
    /// What is known of a job, and stays as it first became known.
    pub fn learn(&mut self, key: &JobKey, start_ns: Option<i64>, user: Option<Arc<str>>) -> Known {
        if !self.known.contains_key(key) {
            self.last_number += 1;
            self.running.insert(self.last_number, key.clone());
            self.known.insert(key.clone(), (self.last_number, Known::default()));
            if self.running.len() > RUNNING_MAX
                && let Some((_, oldest)) = self.running.pop_first()
            {
                self.known.remove(&oldest);
            }
        }
        let Some((_, known)) = self.known.get_mut(key) else { return Known { start_ns, user } };
        known.start_ns = known.start_ns.or(start_ns);
        if known.user.is_none() {
            known.user = user;
        }
        known.clone()
    }

    /// The job has ended, perhaps not for the first time.
    pub fn end(&mut self, key: &JobKey) {
        let running = self.known.get(key).and_then(|(number, _)| self.running.remove(number));
        self.ended.extend(running);
        if self.ended.len() > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> JobKey {
        JobKey { id: number.to_string(), ..met_core::sample::full(1, "x").key }
    }

    #[test]
    fn of_too_many_jobs_the_oldest_are_forgotten_and_new_ones_remembered() {
        let mut jobs = KnownJobs::default();
        for number in 0..=RUNNING_MAX {
            jobs.learn(&key(number), Some(1), None);
        }
        assert_eq!(jobs.known.len(), RUNNING_MAX);
        assert_eq!(
            jobs.learn(&key(RUNNING_MAX), Some(2), None).start_ns,
            Some(1),
            "the newest is remembered"
        );
        for number in 0..=RUNNING_MAX {
            jobs.end(&key(number));
            jobs.end(&key(number));
        }
        assert_eq!((jobs.known.len(), jobs.running.len(), jobs.ended.len()), (ENDED_MAX, 0, ENDED_MAX));
    }
}
