//! What other jobs on the nodes of a job say of them: which GPUs they have, and who waited for a CPU meanwhile.

use std::collections::{BTreeSet, HashMap};

use met_core::job::Record;
use met_core::job_table as column;

use crate::average;
use crate::rules::user;

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

    /// The share of the time in which jobs of others on its node waited for a CPU while it ran, weighted by how long
    /// they ran beside it.
    pub fn pressure(&self, record: &Record, now_ns: i64) -> Option<f64> {
        let [node] = record.nodes.as_slice() else { return None };
        let (begin_ns, end_ns) = (record.start_ns?, record.end_ns.unwrap_or(now_ns));
        let jobs = self.by_node.get(node.as_str())?;
        let until = jobs.partition_point(|job| job.start_ns < Some(end_ns));
        let (mut waited, mut beside) = (0.0, 0.0);
        for job in jobs[..until].iter().rev().take(LOOKED_AT) {
            let last_ns = job.end_ns.unwrap_or(now_ns).min(end_ns);
            let both_ns = (last_ns - job.start_ns.unwrap_or(last_ns).max(begin_ns)).max(0) as f64;
            let is_other = user::owner(job) != user::owner(record) && job.inside.is_none();
            if let Some(share) = average::per_second(job, column::PRESSURE_CPU, now_ns).filter(|_| is_other) {
                waited += share.min(1.0) * both_ns;
                beside += both_ns;
            }
        }
        (beside > 0.0).then(|| waited / beside)
    }
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
        let of = |jobs: &[Record]| Neighbours::of(jobs).pressure(&hog, sample::NOW_NS);
        assert_eq!(of(&jobs), None, "nobody else is on its node");
        jobs.push(job("4", "bob", 2));
        assert_eq!(of(&jobs), Some(0.5));
        let mut later = job("5", "dan", 4);
        later.start_ns = hog.end_ns;
        later.end_ns = hog.end_ns.map(|end_ns| end_ns + 1_000_000_000);
        jobs.push(later);
        assert_eq!(of(&jobs), Some(0.5), "it came when the job was over");
        assert_eq!(Neighbours::of(&jobs).gpus(&hog), None);
        jobs[3].gpus = vec![sample::gpu()];
        assert_eq!(Neighbours::of(&jobs).gpus(&hog), Some(1));
    }
}
