//! Nodes, tasks and GPUs of one job that did unequal work.

use std::collections::BTreeMap;

use met_core::job::{Part, Record};
use met_core::job_table as column;
use met_core::units;

/// The busiest did at least this much more than the mean before it is worth a line.
const EXCESS: f64 = 0.3;
/// GPUs whose use differs by less are equal.
const GPU_DIFFERENCE: f64 = 0.3;

/// Work by node or by task: which had least and most, and the share of its time that the mean one was idle while the
/// busiest worked.
#[derive(Clone, Debug, PartialEq)]
pub struct Imbalance {
    pub least: (String, f64),
    pub most: (String, f64),
    pub mean: f64,
}

impl Imbalance {
    /// 0 if all did the same; 1 − 1/n if one of n did all.
    pub fn ratio(&self) -> f64 {
        if self.most.1 <= 0.0 { 0.0 } else { 1.0 - self.mean / self.most.1 }
    }

    fn of(by_name: BTreeMap<String, f64>) -> Option<Imbalance> {
        if by_name.len() < 2 {
            return None;
        }
        let mean = by_name.values().sum::<f64>() / by_name.len() as f64;
        let compare = |one: &(String, f64), other: &(String, f64)| one.1.total_cmp(&other.1);
        let least = by_name.clone().into_iter().min_by(compare)?;
        let most = by_name.into_iter().rev().max_by(compare)?;
        Some(Imbalance { least, most, mean })
    }
}

/// CPU time by node; `None` unless every part of every node is known.
pub fn nodes(record: &Record) -> Option<Imbalance> {
    let mut by_node: BTreeMap<String, f64> = BTreeMap::new();
    let has_whole = |node: &str| record.parts.iter().any(|part| part.node == node && part.step.is_empty());
    for part in record.parts.iter().filter(|part| part.task.is_none()) {
        // The line of the whole node contains its steps.
        if part.step.is_empty() || !has_whole(&part.node) {
            *by_node.entry(part.node.clone()).or_default() += cpu_s(part)?;
        }
    }
    Imbalance::of(by_node).filter(|imbalance| imbalance.mean > 0.0 && record.covers_all_nodes())
}

/// CPU time by task of the step that has most of them.
pub fn tasks(record: &Record) -> Option<Imbalance> {
    let mut steps: BTreeMap<&str, BTreeMap<String, f64>> = BTreeMap::new();
    let tasks = record.parts.iter().filter(|part| part.folded.is_none());
    for part in tasks {
        if let Some(task) = &part.task {
            let name = format!("task {task}");
            *steps.entry(&part.step).or_default().entry(name).or_default() += cpu_s(part)?;
        }
    }
    let largest = steps.into_values().max_by_key(BTreeMap::len)?;
    Imbalance::of(largest).filter(|imbalance| imbalance.mean > 0.0)
}

/// Use by GPU, of those whose use is known.
pub fn gpus(record: &Record) -> Option<Imbalance> {
    let known = record.gpus.iter().filter(|gpu| gpu.lost_since_ns.is_none());
    let use_of = |gpu: &met_core::job::GpuUse| Some((gpu.label(), gpu.utilization?));
    Imbalance::of(known.map(use_of).collect::<Option<BTreeMap<_, _>>>()?)
}

fn cpu_s(part: &Part) -> Option<f64> {
    part.totals.get(column::CPU).map(|ns| ns as f64 / 1e9)
}

pub fn words(record: &Record) -> Vec<String> {
    let mut words = Vec::new();
    for imbalance in [nodes(record), tasks(record)].into_iter().flatten() {
        if imbalance.most.1 >= (1.0 + EXCESS) * imbalance.mean {
            words.push(format!(
                "{} used {} of CPU time, {} {}",
                imbalance.most.0,
                units::duration_long(imbalance.most.1),
                imbalance.least.0,
                units::duration_long(imbalance.least.1)
            ));
        }
    }
    if let Some(imbalance) = gpus(record).filter(|it| it.most.1 - it.least.1 >= GPU_DIFFERENCE) {
        words.push(format!(
            "{} was {} busy, {} {}",
            imbalance.most.0,
            units::percent(imbalance.most.1),
            imbalance.least.0,
            units::percent(imbalance.least.1)
        ));
    }
    words
}

#[cfg(test)]
mod tests {
    use met_core::job::{GpuUse, QualityKind};

    use super::*;
    use crate::sample;

    fn part(node: &str, task: Option<&str>, cpu_s: i64) -> Part {
        let mut part = Part { node: node.to_owned(), task: task.map(str::to_owned), ..Part::default() };
        part.step = task.map_or("", |_| "0").to_owned();
        part.totals.set(column::CPU, cpu_s * 1_000_000_000, QualityKind::Measured, "cgroup");
        part
    }

    #[test]
    fn the_straggler_is_named() {
        let mut record = sample::finished();
        record.parts = vec![part("n1", None, 100), part("n2", None, 40), part("n3", None, 40)];
        assert_eq!(words(&record), ["n1 used 1m40s of CPU time, n2 40s"]);
        record.parts = vec![part("n1", Some("0"), 10), part("n1", Some("1"), 100)];
        assert_eq!(words(&record), ["task 1 used 1m40s of CPU time, task 0 10s"]);
    }

    #[test]
    fn equal_work_needs_no_word_and_an_unknown_part_makes_no_straggler() {
        let mut record = sample::finished();
        record.parts = vec![part("n1", None, 100), part("n2", None, 95)];
        assert_eq!(words(&record), [""; 0]);
        record.parts[1].totals = met_core::job::Totals::default();
        assert_eq!(nodes(&record), None, "steps with empty CPU time are not idle");
    }

    #[test]
    fn unequal_gpus_are_named_unless_one_is_unknown() {
        let mut record = sample::finished();
        let gpu = |index: &str, utilization| GpuUse { index: index.to_owned(), utilization, ..sample::gpu() };
        record.gpus = vec![gpu("0", Some(0.9)), gpu("1", Some(0.0))];
        assert_eq!(words(&record), ["GPU 0 was 90% busy, GPU 1 0%"]);
        record.gpus[1].utilization = None;
        assert_eq!(words(&record), [""; 0]);
    }

    #[test]
    fn gpus_of_two_nodes_with_one_number_are_two() {
        let mut record = sample::finished();
        let gpu = |node: &str, utilization| GpuUse {
            node: Some(node.to_owned()),
            index: "0".to_owned(),
            utilization,
            ..sample::gpu()
        };
        record.gpus = vec![gpu("n1", Some(0.9)), gpu("n2", Some(0.0))];
        assert_eq!(words(&record), ["GPU 0 on n1 was 90% busy, GPU 0 on n2 0%"]);
    }
}
