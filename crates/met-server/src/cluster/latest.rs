//! The newest sample of every job that runs: what lists and scrapes show of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use met_core::course::Course;
use met_core::job::{JobKey, QualityKind, Record};
use met_core::job_table::{
    GPU_MEMORY, GPU_MEMORY_PEAK, MEMORY_NEEDED, MEMORY_NEEDED_PEAK, PROCESSES_PEAK, PROCESSES_RUNNING,
    THREADS_PEAK, THREADS_RUNNING,
};
use met_core::{JOB, Kind, MISSING};

/// Beyond this nobody's cluster runs jobs at once; those that come later have no figures until they end.
const JOBS_MAX: usize = 400_000;

/// What has no samples of its own: the highest of another figure so far.
const PEAKS: [(usize, usize); 4] = [
    (MEMORY_NEEDED_PEAK, MEMORY_NEEDED),
    (PROCESSES_PEAK, PROCESSES_RUNNING),
    (THREADS_PEAK, THREADS_RUNNING),
    (GPU_MEMORY_PEAK, GPU_MEMORY),
];

/// By the key under which a node's series are kept.
#[derive(Clone, Default)]
pub struct Latest {
    jobs: Arc<Mutex<HashMap<JobKey, Sample>>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub time_ms: i64,
    pub cells: Box<[i64]>,
}

impl Latest {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Sample>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up the last sample of a course. A figure that is read now and then stays until the next reading.
    pub fn learn(&self, key: &JobKey, course: &Course) {
        let Some((&time_ms, last)) = course.times_ms.last().zip(course.len().checked_sub(1)) else { return };
        let mut jobs = self.lock();
        let highest = |of: usize| course.maximum(of).unwrap_or(MISSING);
        if let Some(known) = jobs.get_mut(key) {
            if known.time_ms <= time_ms {
                known.time_ms = time_ms;
                for (cell, column) in known.cells.iter_mut().zip(&course.columns) {
                    let newest = column.iter().rev().copied().find(|&cell| cell != MISSING);
                    *cell = newest.unwrap_or(*cell);
                }
                for (peak, of) in PEAKS {
                    // What is missing is lower than anything.
                    known.cells[peak] = known.cells[peak].max(highest(of));
                }
            }
            return;
        }
        if jobs.len() < JOBS_MAX {
            let mut cells: Box<[i64]> = course.columns.iter().map(|column| column[last]).collect();
            PEAKS.into_iter().for_each(|(peak, of)| cells[peak] = cells[peak].max(highest(of)));
            jobs.insert(key.clone(), Sample { time_ms, cells });
        }
    }

    pub fn forget(&self, key: &JobKey) {
        self.lock().remove(key);
    }

    pub fn get(&self, key: &JobKey) -> Option<Sample> {
        self.lock().get(key).cloned()
    }

    /// Puts what was last seen of a running job into its totals.
    pub fn complete(&self, keys: &[JobKey], record: &mut Record) {
        let all = 0..JOB.columns.len();
        self.put(keys, record, all, QualityKind::Sampled);
        let jobs = self.lock();
        record.as_of_ns = mean_time_ns(keys.iter().filter_map(|key| jobs.get(key)));
    }

    /// The same of a part of a job that is seen no more: it used at least so much. What it held at the time is no
    /// total of it.
    pub fn leave(&self, key: &JobKey, record: &mut Record) {
        let is_peak = |column: usize| PEAKS.iter().any(|&(peak, _)| peak == column);
        let is_total = |&column: &usize| JOB.columns[column].kind == Kind::Counter || is_peak(column);
        let totals = (0..JOB.columns.len()).filter(is_total);
        self.put(std::slice::from_ref(key), record, totals, QualityKind::LowerBound);
    }

    fn put(
        &self,
        keys: &[JobKey],
        record: &mut Record,
        columns: impl Iterator<Item = usize>,
        kind: QualityKind,
    ) {
        let jobs = self.lock();
        let samples: Vec<&Sample> = keys.iter().filter_map(|key| jobs.get(key)).collect();
        for column in columns {
            let known = samples.iter().map(|sample| sample.cells[column]).filter(|&cell| cell != MISSING);
            let value = match JOB.columns[column].across {
                met_core::Across::Max => known.max(),
                _ => known.reduce(i64::saturating_add),
            };
            if let Some(value) = value {
                record.totals.set(column, value, kind, "last sample");
            }
        }
    }
}

/// Nodes send at different times: what they used together, over the mean of these times, is what they use at once.
fn mean_time_ns<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<i64> {
    let add = |(sum_ms, count), sample: &Sample| (sum_ms + i128::from(sample.time_ms), count + 1);
    let (sum_ms, count) = samples.fold((0_i128, 0_i128), add);
    i64::try_from(sum_ms.checked_div(count)?).ok()?.checked_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use met_core::job_table::CPU;

    use super::*;

    fn course(samples: &[(i64, i64, i64)]) -> Course {
        let mut course = Course::new(&JOB);
        for &(time_ms, cpu, memory) in samples {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED]) = (cpu, memory);
            course.push(time_ms, &cells);
        }
        course
    }

    #[test]
    fn the_newest_known_figure_stands_and_old_news_change_nothing() {
        let latest = Latest::default();
        let key =
            JobKey { cluster: Some("n1".into()), manager: "local".into(), id: "1".into(), incarnation: 1 };
        latest.learn(&key, &course(&[(1000, 1, 50), (2000, 2, MISSING)]));
        latest.learn(&key, &course(&[(3000, 3, 60), (4000, 4, MISSING)]));
        latest.learn(&key, &course(&[(500, 0, 10)]));
        latest.learn(&key, &course(&[]));
        let sample = latest.get(&key).unwrap();
        assert_eq!((sample.time_ms, sample.cells[CPU], sample.cells[MEMORY_NEEDED]), (4000, 4, 60));
        assert_eq!((sample.cells[MEMORY_NEEDED_PEAK], sample.cells[GPU_MEMORY_PEAK]), (60, MISSING));
        latest.forget(&key);
        assert_eq!(latest.get(&key), None);
    }

    #[test]
    fn totals_of_nodes_that_sent_at_different_times_are_of_the_time_between() {
        let latest = Latest::default();
        let keys = ["n1", "n2", "n3"].map(|node| JobKey {
            cluster: Some(node.into()),
            manager: "slurm".into(),
            id: "1".into(),
            incarnation: 1,
        });
        latest.learn(&keys[0], &course(&[(95_000, 95, 1)]));
        latest.learn(&keys[1], &course(&[(101_000, 101, 1)]));
        let mut record = crate::cluster::keeper::tests::record("slurm", "1", 0, met_core::job::State::Running, 0);
        latest.complete(&keys, &mut record);
        assert_eq!((record.totals.get(CPU), record.as_of_ns), (Some(196), Some(98_000_000_000)));
        latest.complete(&keys[2..], &mut record);
        assert_eq!(record.as_of_ns, None, "nothing is known of it");
    }
}
