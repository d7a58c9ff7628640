//! What other jobs on the nodes of a job say of them: which GPUs they have, and who waited for a CPU meanwhile.

use std::collections::{BTreeSet, HashMap};

use met_core::job::Record;
use met_core::job_table as column;

use crate::answers::Beside;
use crate::average;
use crate::rules::user;

/// Of the CPUs that a job was given: who had so many waited for its own threads, not for others.
const SHARE_HAD: f64 = 0.9;
/// Of its time: who was stopped by its quota for longer waited for that.
const THROTTLED: f64 = 0.01;

/// Jobs on one node that are looked at, the latest before the end of the job.
const LOOKED_AT: usize = 2000;

pub struct Neighbours<'a> {
    /// By start.
    by_node: HashMap<&'a str, Vec<&'a Record>>,
    /// Whole GPUs that some job had.
    gpus: HashMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Neighbours<'a> {
    pub fn of(records: &'a [Record]) -> Neighbours<'a> {
        let mut by_node: HashMap<&str, Vec<&Record>> = HashMap::new();
        let mut gpus: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for record in records.iter().filter(|record| record.start_ns.is_some()) {
            // On which of several nodes a GPU is, is not known.
            if let [node] = record.nodes.as_slice() {
                let whole = record.gpus.iter().map(|gpu| gpu.parent.as_deref().unwrap_or(&gpu.uuid));
                gpus.entry(node).or_default().extend(whole);
                by_node.entry(node).or_default().push(record);
            }
        }
        by_node.values_mut().for_each(|jobs| jobs.sort_by_key(|job| (job.start_ns, &job.key)));
        Neighbours { by_node, gpus }
    }

    /// GPUs of the job's node that some job was seen with; unknown where none was.
    pub fn gpus(&self, record: &Record) -> Option<u32> {
        let [node] = record.nodes.as_slice() else { return None };
        u32::try_from(self.gpus.get(node.as_str())?.len()).ok().filter(|&count| count > 0)
    }

    /// What other jobs on its node did while it ran.
    pub fn beside(&self, record: &Record, now_ns: i64) -> Beside {
        let gpus = self.gpus(record);
        let (pressure, cores) = self.load(record, now_ns).unwrap_or_default();
        Beside { gpus, pressure, cores }
    }

    /// The share of the time in which jobs of others waited for a CPU that others had, weighted by how long they ran
    /// beside it; and the cores that all other jobs used of its time, on average, each by its own mean.
    fn load(&self, record: &Record, now_ns: i64) -> Option<(Option<f64>, Option<f64>)> {
        let [node] = record.nodes.as_slice() else { return None };
        let (begin_ns, end_ns) = (record.start_ns?, record.end_ns.unwrap_or(now_ns));
        let jobs = self.by_node.get(node.as_str())?;
        let until = jobs.partition_point(|job| job.start_ns < Some(end_ns));
        let (mut waited, mut beside, mut used) = (0.0, 0.0, None);
        for job in jobs[..until].iter().rev().take(LOOKED_AT) {
            let last_ns = job.end_ns.unwrap_or(now_ns).min(end_ns);
            let both_ns = (last_ns - job.start_ns.unwrap_or(last_ns).max(begin_ns)).max(0) as f64;
            if job.inside.is_some() || job.key == record.key {
                continue;
            }
            if let Some(cores) = average::per_second(job, column::CPU, now_ns) {
                *used.get_or_insert(0.0) += cores * both_ns;
            }
            let is_other = user::owner(job) != user::owner(record);
            if let Some(share) = average::per_second(job, column::PRESSURE_CPU, now_ns).filter(|_| is_other) {
                waited += if waits_for_itself(job, now_ns) { 0.0 } else { share.min(1.0) * both_ns };
                beside += both_ns;
            }
        }
        let of_time = |sum: f64| sum / (end_ns - begin_ns).max(1) as f64;
        // The work of a job inside another is in the sum already.
        let used = used.filter(|_| record.inside.is_none()).map(of_time);
        Some(((beside > 0.0).then(|| waited / beside), used))
    }
}

/// Whether a job had the CPUs that it was given, or as many as a quota allowed: its threads waited for each other.
fn waits_for_itself(job: &Record, now_ns: i64) -> bool {
    let given = job.allocated.cpus.or(job.requested.cpus);
    let had = average::per_second(job, column::CPU, now_ns);
    let has_share = given.zip(had).is_some_and(|(given, had)| had >= SHARE_HAD * given as f64);
    has_share || average::per_second(job, column::THROTTLED, now_ns).is_some_and(|share| share > THROTTLED)
}

#[cfg(test)]
mod tests {
    use met_core::job::QualityKind;

    use super::*;
    use crate::sample;

    #[test]
    fn the_pressure_of_others_is_not_its_own() {
        let job = |id: &str, user: &str, waited_s: i64| {
            let mut record = sample::finished();
            (record.key.id, record.user) = (id.to_owned(), Some(user.to_owned()));
            record.totals.set(
                column::PRESSURE_CPU,
                waited_s * 1_000_000_000,
                QualityKind::Measured,
                "cgroup",
            );
            record
        };
        let mut elsewhere = job("3", "cyd", 4);
        elsewhere.nodes = vec!["n2".to_owned()];
        let hog = job("1", "alice", 4);
        let mut jobs = vec![hog.clone(), job("2", "alice", 4), elsewhere];
        let of = |jobs: &[Record]| Neighbours::of(jobs).beside(&hog, sample::NOW_NS).pressure;
        assert_eq!(of(&jobs), None, "nobody else is on its node");
        jobs.push(job("4", "bob", 2));
        assert_eq!(of(&jobs), Some(0.5));
        let mut later = job("5", "dan", 4);
        later.start_ns = hog.end_ns;
        later.end_ns = hog.end_ns.map(|end_ns| end_ns + 1_000_000_000);
        jobs.push(later);
        assert_eq!(of(&jobs), Some(0.5), "it came when the job was over");
        assert_eq!(Neighbours::of(&jobs).gpus(&hog), None);
        let mut full = jobs[3].clone();
        let wall_ns = full.end_ns.unwrap() - full.start_ns.unwrap();
        full.allocated.cpus = Some(2);
        full.totals.set(column::CPU, 2 * wall_ns, QualityKind::Measured, "cgroup");
        assert_eq!(of(&[hog.clone(), full.clone()]), Some(0.0), "it had all of its CPUs");
        full.totals.set(column::CPU, wall_ns, QualityKind::Measured, "cgroup");
        assert_eq!(of(&[hog.clone(), full.clone()]), Some(0.5), "it had half of them");
        let cores = |jobs: &[Record]| Neighbours::of(jobs).beside(&hog, sample::NOW_NS).cores;
        assert_eq!(cores(&[hog.clone(), full.clone()]), Some(1.0), "without its own");
        assert_eq!(cores(std::slice::from_ref(&hog)), None);
        full.totals.set(column::THROTTLED, wall_ns, QualityKind::Measured, "cgroup");
        assert_eq!(of(&[hog.clone(), full]), Some(0.0), "its quota stopped it");
        jobs[3].gpus = vec![sample::gpu()];
        assert_eq!(Neighbours::of(&jobs).gpus(&hog), Some(1));
    }
}
