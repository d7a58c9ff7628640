//! What a job asked for, was given and used, and what it consists of.

use std::collections::BTreeSet;

use met_core::belief::requests;
use met_core::job::{Part, QualityKind, Record, Resources, Totals};
use met_core::job_table::{CPU, MEMORY_NEEDED_PEAK, MEMORY_PEAK};
use met_core::{Across, JOB};

use crate::average;
use crate::report::Machine;

/// One resource: what was asked for, given and used.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    pub resource: Resource,
    pub requested: Option<f64>,
    pub allocated: Option<f64>,
    pub used: Option<f64>,
    /// How the used amount came to be known.
    pub quality: QualityKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Used: cores busy on average.
    Cpus,
    /// Used: the peak.
    Memory,
    /// Used: GPUs computing, on average.
    Gpus,
    Time,
    Nodes,
}

impl Share {
    /// What was used of what was given, or else of what was asked for.
    pub fn efficiency(&self) -> Option<f64> {
        let whole = self.allocated.or(self.requested).filter(|&whole| whole > 0.0)?;
        Some(self.used? / whole)
    }
}

/// The resources that were asked for or given; none for a job that asked for nothing.
pub fn shares(record: &Record, now_ns: i64) -> Vec<Share> {
    let (requested, allocated) = (&record.requested, &record.allocated);
    let number = |value: Option<i64>| value.map(|value| value as f64);
    let seconds = |value: Option<i64>| value.map(|ns| ns as f64 / 1e9);
    // What is used on average is a share of what was given on average.
    let given = |amount: fn(&Resources) -> Option<i64>| {
        amount(allocated).and_then(|_| requests::held(record, record.end_ns.unwrap_or(now_ns), amount))
    };
    let (cpus, cpu_quality) = used_cpus(record, now_ns);
    let (memory, memory_quality) = used_memory(record);
    let wall = seconds(average::wall_ns(record, now_ns));
    let gpus = average::gpus(record).filter(|_| record.covers_all_nodes());
    let limit = requested.time_limit_ns.or(allocated.time_limit_ns);
    let share = |resource, requested, allocated, used, quality| Share {
        resource,
        requested,
        allocated,
        used,
        quality,
    };
    let sampled = QualityKind::Sampled;
    [
        share(Resource::Nodes, number(requested.nodes), number(allocated.nodes), None, sampled),
        share(Resource::Cpus, number(requested.cpus), given(|one| one.cpus), cpus, cpu_quality),
        share(
            Resource::Memory,
            number(requested.memory_bytes),
            number(allocated.memory_bytes),
            memory,
            memory_quality,
        ),
        share(Resource::Gpus, number(requested.gpus), given(|one| one.gpus), gpus, sampled),
        share(Resource::Time, seconds(limit), None, wall, QualityKind::Measured),
    ]
    .into_iter()
    .filter(|share| share.requested.is_some() || share.allocated.is_some())
    // That a job has one node goes without saying.
    .filter(|share| share.resource != Resource::Nodes || share.requested.or(share.allocated) != Some(1.0))
    .collect()
}

/// Cores busy on average, as measured here, or else by the manager's own account.
fn used_cpus(record: &Record, now_ns: i64) -> (Option<f64>, QualityKind) {
    let figure = record.totals.figure(CPU).filter(|_| record.covers_all_nodes());
    if let (Some(figure), Some(cores)) = (figure, average::cores(record, now_ns)) {
        return (Some(cores), figure.kind);
    }
    let account = record.scheduling.cpu_ns.zip(average::wall_ns(record, now_ns).filter(|&wall| wall > 0));
    (account.map(|(cpu, wall)| cpu as f64 / wall as f64), QualityKind::Measured)
}

fn used_memory(record: &Record) -> (Option<f64>, QualityKind) {
    if !record.covers_all_nodes() {
        return (None, QualityKind::Sampled);
    }
    let figure =
        [MEMORY_NEEDED_PEAK, MEMORY_PEAK].into_iter().find_map(|column| record.totals.figure(column));
    match figure {
        Some(figure) => (Some(figure.value as f64), figure.kind),
        None => (record.scheduling.memory_peak_bytes.map(|bytes| bytes as f64), QualityKind::Sampled),
    }
}

/// CPUs that a job was given, or else asked for: on average, if that changed while it ran.
pub fn held_cpus(record: &Record, now_ns: i64) -> Option<f64> {
    requests::held(record, record.end_ns.unwrap_or(now_ns), |resources| resources.cpus)
}

/// Cores that a job can use: those that it was given, or else those that it shares with others, which it has not asked
/// for and cannot leave unused.
pub fn usable_cpus(record: &Record, machine: Machine, now_ns: i64) -> Option<f64> {
    let given = held_cpus(record, now_ns);
    let of_process = || record.local.as_ref()?.cpus_usable.filter(|&cpus| cpus > 0);
    given.or_else(|| of_process().or(machine.cpus).map(f64::from))
}

/// How long the job waited, or has been waiting, to begin.
pub fn queue_wait_ns(record: &Record, now_ns: i64) -> Option<i64> {
    let submit_ns = record.scheduling.submit_ns?;
    let until_ns = match record.start_ns {
        Some(start_ns) => start_ns,
        None if record.state == met_core::job::State::Pending => now_ns,
        // Cancelled in the queue.
        None => record.end_ns?,
    };
    Some((until_ns - submit_ns).max(0))
}

/// A step of a job as a job of its own; `None` if there is no such step.
pub fn step(record: &Record, name: &str) -> Option<Record> {
    let of_step: Vec<&Part> = record.parts.iter().filter(|part| part.step == name).collect();
    let whole: Vec<&Part> = of_step.iter().copied().filter(|part| part.task.is_none()).collect();
    // A step of which only the tasks are known is their sum.
    let summed = if whole.is_empty() { &of_step } else { &whole };
    let first = summed.first()?;
    let mut step = record.clone();
    step.scheduling.alias = Some(format!("{}.{name}", record.shown_id()));
    step.name = first.name.clone().unwrap_or_else(|| record.name.clone());
    step.start_ns = summed.iter().filter_map(|part| part.start_ns).min();
    let ended = summed.iter().all(|part| part.end_ns.is_some());
    step.end_ns = summed.iter().filter_map(|part| part.end_ns).max().filter(|_| ended);
    step.exit_code = summed.iter().filter_map(|part| part.exit_code).max();
    step.signal = None;
    step.state = match step.exit_code {
        Some(0) if ended => met_core::job::State::Finished,
        Some(_) if ended => met_core::job::State::Failed,
        _ => record.state,
    };
    step.manager_state = None;
    step.nodes = summed.iter().map(|part| part.node.clone()).collect::<BTreeSet<_>>().into_iter().collect();
    step.totals = add_up(summed);
    // What is known of the whole job only says nothing of one step.
    (step.summaries, step.gpus) = Default::default();
    (step.requested, step.allocated) = Default::default();
    (step.scheduling.cpu_ns, step.scheduling.memory_peak_bytes) = (None, None);
    step.parts = of_step.into_iter().filter(|part| part.task.is_some()).cloned().collect();
    Some(step)
}

/// Rows of one thing together, by the rule of each column. What one of them does not know is not known.
fn add_up(parts: &[&Part]) -> Totals {
    let mut totals = Totals::default();
    for (index, column) in JOB.columns.iter().enumerate() {
        let figures: Option<Vec<_>> = parts.iter().map(|part| part.totals.figure(index)).collect();
        let Some(figures) = figures.filter(|figures| !figures.is_empty()) else { continue };
        let values = figures.iter().map(|figure| figure.value);
        let value = match column.across {
            Across::Sum => values.fold(0, i64::saturating_add),
            Across::Max | Across::Mean => values.max().unwrap_or_default(),
        };
        let rank = |kind| QualityKind::ALL.iter().position(|&other| other == kind);
        if let Some(worst) = figures.iter().max_by_key(|figure| rank(figure.kind)) {
            totals.set(index, value, worst.kind, worst.source.clone());
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use met_core::job::State;

    #[test]
    fn efficiency_is_what_was_used_of_what_was_given() {
        let record = sample::scheduled();
        let shares = shares(&record, sample::NOW_NS);
        let of = |resource| shares.iter().find(|share| share.resource == resource).unwrap();
        assert_eq!(of(Resource::Cpus).efficiency(), Some(1.25 / 4.0));
        assert_eq!(of(Resource::Memory).efficiency(), Some(3.0 / 512.0));
        assert_eq!(of(Resource::Time).efficiency(), Some(4.0 / 3600.0));
        assert_eq!(of(Resource::Gpus).efficiency(), None, "its GPUs were not read");
        assert!(super::shares(&sample::finished(), sample::NOW_NS).is_empty());
    }

    #[test]
    fn one_node_of_several_is_not_the_job() {
        let mut record = sample::scheduled();
        record.allocated.nodes = Some(2);
        record.parts.clear();
        let cpus = |record: &Record| shares(record, sample::NOW_NS)[1].clone();
        assert_eq!(cpus(&record).used, None);
        record.scheduling.cpu_ns = Some(8_000_000_000);
        assert_eq!(cpus(&record).used, Some(2.0), "the manager's account is of all nodes");
        for node in ["n1", "n2"] {
            record.parts.push(Part { node: node.to_owned(), ..Part::default() });
        }
        assert_eq!(cpus(&record).used, Some(2.0), "a step that was not measured is no measured node");
        for part in &mut record.parts {
            part.totals.set(CPU, 2_500_000_000, QualityKind::Measured, "cgroup");
        }
        assert_eq!(cpus(&record).used, Some(1.25));
    }

    #[test]
    fn a_job_waits_until_it_begins_or_is_given_up() {
        let mut record = sample::scheduled();
        assert_eq!(queue_wait_ns(&record, sample::NOW_NS), Some(90_000_000_000));
        (record.start_ns, record.end_ns, record.state) = (None, None, State::Pending);
        assert_eq!(queue_wait_ns(&record, sample::NOW_NS), Some(100_000_000_000));
        (record.state, record.end_ns) = (State::Cancelled, Some(sample::START_NS - 80_000_000_000));
        assert_eq!(queue_wait_ns(&record, sample::NOW_NS), Some(10_000_000_000));
        record.scheduling.submit_ns = None;
        assert_eq!(queue_wait_ns(&record, sample::NOW_NS), None);
    }

    #[test]
    fn a_step_is_a_job_of_its_own() {
        let record = sample::scheduled();
        let step = step(&record, "0").unwrap();
        assert_eq!((step.label().as_str(), step.name.as_str()), ("slurm:1234_7.0", "solve"));
        assert_eq!((step.totals.get(CPU), step.parts.len()), (Some(4_000_000_000), 2));
        assert_eq!((step.state, step.exit_code), (State::Failed, Some(3)));
        assert!(super::step(&record, "7").is_none());
        let batch = super::step(&record, "batch").unwrap();
        assert_eq!((batch.state, batch.totals.get(CPU)), (State::Finished, Some(1_000_000_000)));
    }

    #[test]
    fn a_step_of_which_only_tasks_are_known_is_their_sum() {
        let mut record = sample::scheduled();
        record.parts.retain(|part| part.task.is_some());
        let step = step(&record, "0").unwrap();
        assert_eq!(step.totals.get(CPU), Some(3_900_000_000));
        record.parts[0].totals = Totals::default();
        assert_eq!(super::step(&record, "0").unwrap().totals.get(CPU), None, "a part is not the whole");
    }
}
