//! The earlier runs that answers about a job read, and of each no more than they read: a file of the job holds these.

use std::collections::BTreeSet;

use met_core::annotation::Annotation;
use met_core::job::{GpuUse, Part, Record, Scheduling, State, Totals};
use met_core::job_table as column;

use super::{compared, directives};
use crate::lineage;

/// Runs at most: those that differences are of, those that requests are made from, and the newest.
pub const EVIDENCE_MAX: usize = compared::RUNS_MAX + 2 * directives::RUNS;

/// The totals of an earlier run that are read.
const TOTALS: [usize; 8] = [
    column::WALL,
    column::CPU,
    column::CORES_PEAK,
    column::MEMORY_NEEDED_PEAK,
    column::ENERGY,
    column::READ,
    column::WRITTEN,
    column::OOM_KILLS,
];

/// Of the earlier runs of a job's lineage, newest first, those that its answers read: the run before as it is, of the others
/// what is read of them. With these alone the answers are the same.
pub fn evidence(record: &Record, earlier: &[&Record], now_ns: i64) -> Vec<Record> {
    let (mut alike, mut requests) = (0, 0);
    let mut chosen = Vec::new();
    for (at, &run) in earlier.iter().enumerate() {
        let is_alike = record.state == State::Finished && compared::is_alike(run, record);
        let is_request = directives::is_evidence_by_record(run, now_ns);
        let is_read = is_alike && alike < compared::RUNS_MAX || is_request && requests < directives::RUNS;
        alike += usize::from(is_alike);
        requests += usize::from(is_request);
        if at == 0 {
            chosen.push(judged_again(run));
        } else if is_read || at < directives::RUNS {
            chosen.push(brief(run));
        }
    }
    chosen
}

/// The run before: rules may ask for any of its figures.
fn judged_again(run: &Record) -> Record {
    Record {
        annotation: lineage_tags(run),
        emission: None,
        events: Vec::new(),
        uncounted_events: Vec::new(),
        work: Vec::new(),
        processes: Vec::new(),
        ..run.clone()
    }
}

fn lineage_tags(run: &Record) -> Annotation {
    let tags = run.annotation.tags.iter().filter(|tag| tag.starts_with(lineage::TAG));
    Annotation { tags: tags.cloned().collect(), ..Annotation::default() }
}

/// A run with what answers about a later one read of it.
fn brief(run: &Record) -> Record {
    let scheduling = &run.scheduling;
    Record {
        user: run.user.clone(),
        uid: run.uid,
        command: lineage::telling_words(run),
        start_ns: run.start_ns,
        end_ns: run.end_ns,
        nodes: run.nodes.clone(),
        totals: brief_totals(&run.totals, &TOTALS),
        gpus: run.gpus.iter().map(brief_gpu).collect(),
        requested: run.requested.clone(),
        allocated: run.allocated.clone(),
        scheduling: Scheduling {
            alias: scheduling.alias.clone(),
            cluster: scheduling.cluster.clone(),
            partition: scheduling.partition.clone(),
            folder: scheduling.folder.clone(),
            lineage: scheduling.lineage.clone(),
            ..Scheduling::default()
        },
        parts: brief_parts(&run.parts),
        annotation: lineage_tags(run),
        local: run.local.clone(),
        ..Record::new(run.key.clone(), &*run.name, run.state)
    }
}

fn brief_totals(totals: &Totals, read: &[usize]) -> Totals {
    let mut brief = Totals::default();
    for &index in read {
        if let Some(figure) = totals.figure(index) {
            brief.set(index, figure.value, figure.kind, figure.source.clone());
        }
    }
    brief
}

fn brief_gpu(gpu: &GpuUse) -> GpuUse {
    GpuUse {
        uuid: gpu.uuid.clone(),
        lost_since_ns: gpu.lost_since_ns,
        used_ns: gpu.used_ns,
        known_ns: gpu.known_ns,
        utilization: gpu.utilization,
        memory_peak_bytes: gpu.memory_peak_bytes,
        memory_total_bytes: gpu.memory_total_bytes,
        ..GpuUse::default()
    }
}

/// What it did on each node; of steps and tasks only that a node has figures, or that one of them is a lower bound.
fn brief_parts(parts: &[Part]) -> Vec<Part> {
    let (mut measured, mut has_bound) = (BTreeSet::new(), false);
    let mut chosen = Vec::new();
    for part in parts {
        let is_first = !part.totals.is_empty() && measured.insert(part.node.as_str());
        let is_first_bound = directives::is_bound(&part.totals) && !std::mem::replace(&mut has_bound, true);
        if !directives::is_of_node(part) && !is_first && !is_first_bound {
            continue;
        }
        let mut totals = brief_totals(&part.totals, &[column::MEMORY_NEEDED_PEAK]);
        if totals.is_empty() {
            // Whether a node has figures is read, too: one of them is enough.
            let first: Vec<usize> = part.totals.iter().map(|(index, _)| index).take(1).collect();
            totals = brief_totals(&part.totals, &first);
        }
        let (node, step, task) = (part.node.clone(), part.step.clone(), part.task.clone());
        chosen.push(Part { node, step, task, totals, ..Part::default() });
    }
    chosen
}

#[cfg(test)]
mod tests {
    use met_core::job::QualityKind;
    use proptest::prelude::*;

    use super::*;
    use crate::answers::{Job, answers};
    use crate::report::Machine;
    use crate::rules::Rules;
    use crate::sample;

    const HOUR_NS: i64 = 3_600_000_000_000;
    const GIB: i64 = 1 << 30;

    /// A run by a few numbers: most finished, of two sizes, some on two nodes, some with GPUs.
    fn run(at: usize, seed: u64) -> Record {
        let pick = |shift: u32, of: u64| (seed >> shift) % of;
        let mut record = sample::scheduled();
        (record.key.id, record.name) = (format!("{}", at + 1), "train".to_owned());
        record.command = vec!["/bin/train".to_owned(), "-v".to_owned(), "a.yaml".to_owned(), "x".to_owned()];
        record.state = match pick(0, 8) {
            0 => State::Failed,
            1 => State::Timeout,
            2 => State::OutOfMemory,
            _ => State::Finished,
        };
        let start_ns = (at as i64 + 1) * 100 * HOUR_NS;
        let wall_ns = HOUR_NS * (1 + pick(3, 30) as i64) / 12;
        (record.start_ns, record.end_ns) = (Some(start_ns), Some(start_ns + wall_ns));
        let nodes = 1 + i64::from(pick(8, 10) == 0);
        record.nodes = (0..nodes).map(|node| format!("n{node}")).collect();
        for resources in [&mut record.requested, &mut record.allocated] {
            *resources = Default::default();
            resources.cpus = Some(if pick(12, 4) == 0 { 8 } else { 16 });
            (resources.memory_bytes, resources.time_limit_ns) = (Some(64 * GIB), Some(24 * HOUR_NS));
            (resources.tasks, resources.nodes) = (Some(1), Some(nodes));
            resources.gpus = (pick(14, 3) == 0).then_some(2);
        }
        let kind = if pick(16, 9) == 0 { QualityKind::LowerBound } else { QualityKind::Measured };
        let totals = &mut record.totals;
        totals.set(column::WALL, wall_ns, QualityKind::Measured, "slurm");
        totals.set(column::CPU, wall_ns * (1 + pick(20, 4) as i64), QualityKind::Measured, "cgroup");
        totals.set(column::CORES_PEAK, 2_000 + pick(22, 3) as i64 * 1000, QualityKind::Sampled, "cgroup");
        totals.set(column::MEMORY_NEEDED_PEAK, GIB * (1 + pick(24, 9) as i64), kind, "cgroup");
        totals.set(column::ENERGY, wall_ns / 10_000, QualityKind::Attributed, "rapl");
        let step =
            Part { node: "n0".to_owned(), step: "0".to_owned(), totals: totals.clone(), ..Part::default() };
        let of_node =
            |node: &String| Part { node: node.clone(), totals: step.totals.clone(), ..Part::default() };
        record.parts = record.nodes.iter().map(of_node).chain([step.clone()]).collect();
        record.gpus = match record.allocated.gpus {
            Some(_) => vec![GpuUse { known_ns: Some(wall_ns), ..sample::gpu() }; 2],
            None => Vec::new(),
        };
        record
    }

    proptest! {
        #[test]
        fn answers_from_the_evidence_are_those_from_all_runs(seeds in prop::collection::vec(any::<u64>(), 1..60)) {
            let runs: Vec<Record> = seeds.iter().enumerate().map(|(at, &seed)| run(at, seed)).collect();
            let (record, earlier) = runs.split_last().unwrap();
            let all = lineage::earlier(record, earlier);
            prop_assert_eq!(all.len(), earlier.len());
            let now_ns = i64::MAX / 2;
            let chosen = evidence(record, &all, now_ns);
            prop_assert!(chosen.len() <= EVIDENCE_MAX);
            let of = |earlier: &[Record]| {
                let earlier = lineage::earlier(record, earlier);
                let job = Job::new(record, Machine { cpus: Some(64) }, now_ns).after(&earlier);
                answers(&job, Rules::built_in())
            };
            prop_assert_eq!(of(&chosen), of(earlier));
        }
    }

    #[test]
    fn a_run_of_the_evidence_is_small() {
        let bytes = |record: &Record| serde_json::to_vec(record).unwrap().len();
        let run = run(1, 5);
        let brief = evidence(&run, &[&run, &run], HOUR_NS).remove(1);
        assert_eq!(brief.command, ["/bin/train", "a.yaml"]);
        let parts: Vec<usize> = brief.parts.iter().map(|part| part.totals.iter().count()).collect();
        assert_eq!(parts, [1, 1], "of nodes their memory is read");
        // Most of it are fields of GPUs without a value, which a file leaves out.
        assert!(bytes(&brief) < 3500 && bytes(&brief) < bytes(&run), "{}", bytes(&brief));
    }
}
