//! What other jobs on the nodes of a job say of them: which GPUs they have, and who waited for a CPU meanwhile.

use std::collections::{BTreeSet, HashMap};

use met_core::job::{JobKey, Record};
use met_core::job_table as column;

use crate::answers::Beside;
use crate::average;
use crate::rules::user;

/// Of the CPUs that a job was given: who had so many waited for its own threads, not for others.
const SHARE_HAD: f64 = 0.9;
/// Of its time: who was stopped by its quota for longer waited for that.
const THROTTLED: f64 = 0.01;

/// Jobs that ran beside a job that are looked at, those that began last.
pub const LOOKED_AT: usize = 2000;
/// Runs in a row of which the last end is known: most of many jobs were over when another began.
const ROW: usize = 64;

pub struct Neighbours<'a> {
    now_ns: i64,
    by_node: HashMap<&'a str, Node<'a>>,
    /// Whole GPUs that some job had.
    gpus: HashMap<&'a str, BTreeSet<&'a str>>,
    owners: HashMap<Option<String>, usize>,
}

/// The jobs of one node.
#[derive(Default)]
struct Node<'a> {
    /// By start.
    runs: Vec<Run<'a>>,
    /// The last end in each [`ROW`] of them.
    row_ends_ns: Vec<i64>,
    /// The first two whose CPU time was counted, so that one of them is another than the job.
    counted: Vec<(i64, &'a JobKey)>,
}

impl<'a> Node<'a> {
    fn sort(&mut self) {
        self.runs.sort_by(|one, other| (one.begin_ns, one.key()).cmp(&(other.begin_ns, other.key())));
        let last_end_ns = |row: &[Run<'a>]| row.iter().map(|run| run.end_ns).max().unwrap_or(i64::MIN);
        self.row_ends_ns = self.runs.chunks(ROW).map(last_end_ns).collect();
        let counted = self.runs.iter().filter(|run| run.cores.is_some() && !run.is_inside);
        self.counted = counted.map(|run| (run.begin_ns, run.key())).take(2).collect();
    }

    /// Those that ran in a time, the latest first.
    fn between(&self, begin_ns: i64, end_ns: i64) -> impl Iterator<Item = &Run<'a>> {
        let until = self.runs.partition_point(|run| run.begin_ns < end_ns);
        let rows = self.runs[..until].chunks(ROW).zip(&self.row_ends_ns).rev();
        let rows = rows.filter(move |(_, last_end_ns)| **last_end_ns > begin_ns);
        rows.flat_map(|(row, _)| row.iter().rev()).filter(move |run| run.end_ns > begin_ns)
    }

    /// Whether CPU time of another job than this was ever counted before a time: without one, that nothing else used a
    /// core is not known.
    fn counts_others(&self, key: &JobKey, end_ns: i64) -> bool {
        self.counted.iter().any(|(begin_ns, other)| *begin_ns < end_ns && *other != key)
    }
}

/// What is asked of a job on a node, again and again: each job is compared with up to [`LOOKED_AT`] others.
struct Run<'a> {
    record: &'a Record,
    begin_ns: i64,
    end_ns: i64,
    owner: usize,
    /// Its work is in that of another job.
    is_inside: bool,
    cores: Option<f64>,
    /// The share of its time in which it waited for a CPU that others had.
    waited: Option<f64>,
}

impl<'a> Run<'a> {
    fn key(&self) -> &'a JobKey {
        &self.record.key
    }

    fn of(record: &'a Record, owner: usize, now_ns: i64) -> Option<Run<'a>> {
        let share = average::per_second(record, column::PRESSURE_CPU, now_ns);
        let of_others = |share: f64| if waits_for_itself(record, now_ns) { 0.0 } else { share.min(1.0) };
        Some(Run {
            record,
            begin_ns: record.start_ns?,
            end_ns: record.end_ns.unwrap_or(now_ns),
            owner,
            is_inside: record.inside.is_some(),
            cores: average::per_second(record, column::CPU, now_ns),
            waited: share.map(of_others),
        })
    }
}

impl<'a> Neighbours<'a> {
    pub fn of(records: &'a [Record], now_ns: i64) -> Neighbours<'a> {
        let mut by_node: HashMap<&str, Node<'_>> = HashMap::new();
        let mut gpus: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        let mut owners = HashMap::new();
        for record in records {
            // On which of several nodes a GPU is, is not known.
            let ([node], Some(_)) = (record.nodes.as_slice(), record.start_ns) else { continue };
            let whole = record.gpus.iter().map(|gpu| gpu.parent.as_deref().unwrap_or(&gpu.uuid));
            gpus.entry(node).or_default().extend(whole);
            let next = owners.len();
            let owner = *owners.entry(user::owner(record)).or_insert(next);
            by_node.entry(node).or_default().runs.extend(Run::of(record, owner, now_ns));
        }
        by_node.values_mut().for_each(Node::sort);
        Neighbours { now_ns, by_node, gpus, owners }
    }

    /// GPUs of the job's node that some job was seen with; unknown where none was.
    pub fn gpus(&self, record: &Record) -> Option<u32> {
        let [node] = record.nodes.as_slice() else { return None };
        u32::try_from(self.gpus.get(node.as_str())?.len()).ok().filter(|&count| count > 0)
    }

    /// What other jobs on its node did while it ran.
    pub fn beside(&self, record: &Record) -> Beside {
        let gpus = self.gpus(record);
        let (pressure, cores) = self.load(record).unwrap_or_default();
        Beside { gpus, pressure, cores }
    }

    /// The share of the time in which jobs of others waited for a CPU that others had, weighted by how long they ran
    /// beside it; and the cores that all other jobs used of its time, on average, each by its own mean.
    fn load(&self, record: &Record) -> Option<(Option<f64>, Option<f64>)> {
        let [node] = record.nodes.as_slice() else { return None };
        let (begin_ns, end_ns) = (record.start_ns?, record.end_ns.unwrap_or(self.now_ns));
        let owner = self.owners.get(&user::owner(record));
        let node = self.by_node.get(node.as_str())?;
        let (mut waited, mut beside, mut used) = (0.0, 0.0, 0.0);
        for run in node.between(begin_ns, end_ns).take(LOOKED_AT) {
            if run.is_inside || *run.key() == record.key {
                continue;
            }
            let both_ns = (run.end_ns.min(end_ns) - run.begin_ns.max(begin_ns)).max(0) as f64;
            used += run.cores.unwrap_or(0.0) * both_ns;
            if let Some(share) = run.waited.filter(|_| Some(&run.owner) != owner) {
                waited += share * both_ns;
                beside += both_ns;
            }
        }
        let of_time = |sum: f64| sum / (end_ns - begin_ns).max(1) as f64;
        // The work of a job inside another is in the sum already.
        let is_known = record.inside.is_none() && node.counts_others(&record.key, end_ns);
        Some(((beside > 0.0).then(|| waited / beside), is_known.then(|| of_time(used))))
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
        let of = |jobs: &[Record]| Neighbours::of(jobs, sample::NOW_NS).beside(&hog).pressure;
        assert_eq!(of(&jobs), None, "nobody else is on its node");
        jobs.push(job("4", "bob", 2));
        assert_eq!(of(&jobs), Some(0.5));
        let mut later = job("5", "dan", 4);
        later.start_ns = hog.end_ns;
        later.end_ns = hog.end_ns.map(|end_ns| end_ns + 1_000_000_000);
        jobs.push(later);
        assert_eq!(of(&jobs), Some(0.5), "it came when the job was over");
        assert_eq!(Neighbours::of(&jobs, sample::NOW_NS).gpus(&hog), None);
        let mut full = jobs[3].clone();
        let wall_ns = full.end_ns.unwrap() - full.start_ns.unwrap();
        full.allocated.cpus = Some(2);
        full.totals.set(column::CPU, 2 * wall_ns, QualityKind::Measured, "cgroup");
        assert_eq!(of(&[hog.clone(), full.clone()]), Some(0.0), "it had all of its CPUs");
        full.totals.set(column::CPU, wall_ns, QualityKind::Measured, "cgroup");
        assert_eq!(of(&[hog.clone(), full.clone()]), Some(0.5), "it had half of them");
        let cores = |jobs: &[Record]| Neighbours::of(jobs, sample::NOW_NS).beside(&hog).cores;
        assert_eq!(cores(&[hog.clone(), full.clone()]), Some(1.0), "without its own");
        assert_eq!(cores(std::slice::from_ref(&hog)), None);
        full.totals.set(column::THROTTLED, wall_ns, QualityKind::Measured, "cgroup");
        assert_eq!(of(&[hog.clone(), full]), Some(0.0), "its quota stopped it");
        jobs[3].gpus = vec![sample::gpu()];
        assert_eq!(Neighbours::of(&jobs, sample::NOW_NS).gpus(&hog), Some(1));
    }
}
