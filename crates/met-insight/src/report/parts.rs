//! Steps and tasks.

use met_core::JOB;
use met_core::job::Part;
use met_core::job_table as column;

use super::reader::{Reader, measured};
use super::{Amount, Measure, PartLine};

pub(super) fn parts(job: &Reader<'_>) -> Vec<PartLine> {
    let line = |part: &Part| {
        let figure = |index: usize, measure| {
            let figure = part.totals.figure(index)?;
            Some(Amount { value: JOB.columns[index].scaled(figure.value), measure, quality: figure.kind })
        };
        let peak = [column::MEMORY_NEEDED_PEAK, column::MEMORY_PEAK];
        let running = part.end_ns.is_none() && job.record.state.is_live();
        let end_ns = part.end_ns.or(running.then_some(job.now_ns));
        let seconds = || Some((end_ns? - part.start_ns?).max(0) as f64 / 1e9);
        PartLine {
            node: part.node.clone(),
            step: part.step.clone(),
            task: part.task.clone(),
            name: part.name.clone(),
            cpu: figure(column::CPU, Measure::Seconds),
            memory: peak.into_iter().find_map(|index| figure(index, Measure::Bytes)),
            duration: seconds().map(|seconds| measured(seconds, Measure::Seconds)),
            exit_code: part.exit_code,
            folded: part.folded,
        }
    };
    // All of a job on its only node is the job.
    let several = job.record.parts.iter().any(|part| !part.step.is_empty() || part.node != node(job));
    let shown = job.record.parts.iter().filter(|_| several);
    let mut lines: Vec<PartLine> = shown.map(line).collect();
    lines.sort_by(|left, right| part_order(left).cmp(&part_order(right)));
    lines
}

fn node<'r>(job: &Reader<'r>) -> &'r str {
    job.record.nodes.first().map_or("", String::as_str)
}

/// Steps by number, those with a name before them, and tasks after their step.
fn part_order(line: &PartLine) -> (&str, Option<u64>, &str, Option<u64>, Option<&str>) {
    let task = line.task.as_deref();
    (&line.node, line.step.parse().ok(), &line.step, task.and_then(|task| task.parse().ok()), task)
}
