//! Requests that would have been enough for the last runs of a lineage, as a scheduler reads them.

use met_core::job::{Record, State};
use met_core::job_table as column;

use super::Job;
use crate::allocation::{self, Resource};
use crate::average;

/// Runs that a request is made from, the job included.
pub const RUNS: usize = 5;
/// Room above the highest need seen.
const MEMORY_ROOM: f64 = 1.2;
/// After the job was killed for memory: its need is not known, only that the limit was too low.
const AFTER_OOM: f64 = 1.5;
const TIME_ROOM: f64 = 1.25;
/// As for findings.
const COVERAGE: f64 = 0.95;
const GIB: f64 = 1_073_741_824.0;
const MIB: f64 = 1_048_576.0;
/// From this share of the node's CPUs on the job has the node for itself.
const WHOLE_NODE: f64 = 0.8;

#[derive(Clone, Debug, PartialEq)]
pub struct Directive {
    /// Which request: `memory`, `cpus`, `time`, `gpus`.
    pub resource: &'static str,
    /// As it is written for the job's scheduler.
    pub text: String,
    pub value: f64,
    /// What it was.
    pub asked: Option<f64>,
    pub runs: usize,
}

/// Only of a job that a scheduler started, and only what differs clearly from its request.
pub fn directives(job: &Job<'_>) -> Vec<Directive> {
    let found = [memory(job), cpus(job), time(job), gpus(job)];
    found.into_iter().flatten().filter(differs).collect()
}

fn differs(directive: &Directive) -> bool {
    directive.asked.is_none_or(|asked| asked > 0.0 && !(0.8..=1.25).contains(&(directive.value / asked)))
}

/// The job and its earlier runs, if they have ended.
fn runs<'a>(job: &'a Job<'_>) -> impl Iterator<Item = &'a Record> {
    [job.record].into_iter().chain(job.earlier.iter().copied()).filter(|run| !run.state.is_live()).take(RUNS)
}

fn written(job: &Job<'_>, slurm: String, others: impl Fn(&str) -> Option<String>) -> Option<String> {
    match job.record.key.manager.as_str() {
        "slurm" => Some(slurm),
        manager => others(manager),
    }
}

/// Whether the job held so much of its node that what it leaves is of no use to others.
pub fn is_whole_node(job: &Job<'_>) -> Option<bool> {
    let held = job.record.allocated.cpus? as f64;
    Some(held >= WHOLE_NODE * f64::from(job.machine.cpus?))
}

/// Needed memory of the last runs, on the node that needed most; never page cache.
pub fn memory_bytes(job: &Job<'_>) -> Option<(f64, usize)> {
    let mut most: Option<f64> = None;
    let mut count = 0;
    for run in runs(job) {
        let need = need_bytes(run, job.now_ns);
        most = Some(most.unwrap_or(0.0).max(need?));
        count += 1;
    }
    Some((most?, count))
}

fn need_bytes(run: &Record, now_ns: i64) -> Option<f64> {
    let nodes = run.allocated.nodes.or(run.requested.nodes).unwrap_or(1).max(run.nodes.len() as i64).max(1);
    let given = run.allocated.memory_bytes.or(run.requested.memory_bytes).map(|bytes| bytes as f64);
    let killed =
        run.state == State::OutOfMemory || run.totals.get(column::OOM_KILLS).is_some_and(|kills| kills > 0);
    if killed {
        return Some(AFTER_OOM / MEMORY_ROOM * given? / nodes as f64);
    }
    let needed = run.totals.get(column::MEMORY_NEEDED_PEAK).map(|bytes| bytes as f64);
    if nodes == 1 {
        return needed;
    }
    // The sum over nodes is known if all were measured; requests are by node, and the largest is what counts.
    let shares = allocation::shares(run, now_ns);
    shares.iter().find(|share| share.resource == Resource::Memory)?.used?;
    let by_node = run.parts.iter().filter(|part| part.step.is_empty() && part.task.is_none());
    let peaks: Option<Vec<f64>> =
        by_node.map(|part| part.totals.get(column::MEMORY_NEEDED_PEAK).map(|bytes| bytes as f64)).collect();
    peaks.filter(|peaks| peaks.len() as i64 == nodes).map(|peaks| peaks.into_iter().fold(0.0, f64::max))
}

fn memory(job: &Job<'_>) -> Option<Directive> {
    // A peak between samples that were not taken may have been higher.
    let is_covered = job.samples().zip(job.profile()).is_none_or(|(samples, profile)| {
        profile.coverage(samples.course, column::MEMORY_NEEDED, samples.gap_ms) >= COVERAGE
    });
    if is_whole_node(job) != Some(false) || !is_covered {
        return None;
    }
    let (needed, runs) = memory_bytes(job)?;
    let nodes = job.record.allocated.nodes.unwrap_or(1).max(1) as f64;
    let asked = job.record.requested.memory_bytes.or(job.record.allocated.memory_bytes)? as f64 / nodes;
    let value = rounded_bytes(needed * MEMORY_ROOM);
    let text = written(job, format!("#SBATCH --mem={}", slurm_bytes(value)), |manager| match manager {
        "pbs" => Some(format!("#PBS -l mem={}mb", (value / MIB) as i64)),
        "lsf" => Some(format!("#BSUB -M {}MB", (value / MIB) as i64)),
        _ => None,
    })?;
    Some(Directive { resource: "memory", text, value, asked: Some(asked), runs })
}

/// Whole GiB from 4 GiB on, else multiples of 256 MiB.
fn rounded_bytes(bytes: f64) -> f64 {
    let step = if bytes >= 4.0 * GIB { GIB } else { 256.0 * MIB };
    (bytes / step).ceil().max(1.0) * step
}

fn slurm_bytes(bytes: f64) -> String {
    match bytes % GIB == 0.0 {
        true => format!("{}G", (bytes / GIB) as i64),
        false => format!("{}M", (bytes / MIB) as i64),
    }
}

/// The most cores that the last runs had busy at once, where that was sustained.
fn cpus(job: &Job<'_>) -> Option<Directive> {
    let asked = job.record.requested.cpus.or(job.record.allocated.cpus)?;
    let nodes = job.record.allocated.nodes.or(job.record.requested.nodes).unwrap_or(1);
    // With several nodes or beside a GPU the number of cores is a matter of layout.
    if nodes > 1 || asked < 2 || job.record.allocated.gpus.is_some_and(|gpus| gpus > 0) {
        return None;
    }
    let mut most = 0.0_f64;
    let mut count = 0;
    for run in runs(job) {
        let peak = run.totals.get(column::CORES_PEAK).map(|thousandths| thousandths as f64 / 1e3);
        most = most.max(peak?.max(average::cores(run, job.now_ns)?));
        count += 1;
    }
    let value = (most - 0.1).ceil().max(1.0);
    if count == 0 || value >= asked as f64 {
        return None;
    }
    let text = written(job, format!("#SBATCH --cpus-per-task={value}"), |_| None)?;
    Some(Directive { resource: "cpus", text, value, asked: Some(asked as f64), runs: count })
}

fn time(job: &Job<'_>) -> Option<Directive> {
    let limit_ns = job.record.requested.time_limit_ns.or(job.record.allocated.time_limit_ns)?;
    let finished = runs(job).filter(|run| run.state == State::Finished);
    let walls: Vec<f64> =
        finished.filter_map(|run| average::wall_ns(run, job.now_ns)).map(|ns| ns as f64 / 1e9).collect();
    // Fewer runs say too little of how long the next one takes.
    if walls.len() < 3 {
        return None;
    }
    let minutes = (walls.iter().copied().fold(0.0, f64::max) * TIME_ROOM / 60.0).ceil();
    // Steps of five minutes, and of a quarter of an hour from two hours on.
    let step = if minutes > 120.0 { 15.0 } else { 5.0 };
    let minutes = (minutes / step).ceil() * step;
    let text = written(
        job,
        format!("#SBATCH --time={}:{:02}:00", minutes as i64 / 60, minutes as i64 % 60),
        |_| None,
    )?;
    let asked = Some(limit_ns as f64 / 1e9);
    Some(Directive { resource: "time", text, value: minutes * 60.0, asked, runs: walls.len() })
}

/// The GPUs that the last runs computed on. Parts of GPUs are counted as the scheduler counts them.
fn gpus(job: &Job<'_>) -> Option<Directive> {
    let asked = job.record.requested.gpus.or(job.record.allocated.gpus).filter(|&gpus| gpus > 1)?;
    let nodes = job.record.allocated.nodes.unwrap_or(1);
    let mut most = 0;
    let mut count = 0;
    for run in runs(job) {
        let known = run.gpus.iter().all(|gpu| gpu.utilization.is_some() && gpu.lost_since_ns.is_none());
        if nodes > 1 || !known || (run.gpus.len() as i64) < run.allocated.gpus.unwrap_or(asked) {
            return None;
        }
        let holds = |gpu: &&met_core::job::GpuUse| {
            gpu.used_ns > 0
                || gpu.memory_peak_bytes.unwrap_or(0) as f64
                    > 0.7 * gpu.memory_total_bytes.unwrap_or(1) as f64
        };
        most = most.max(run.gpus.iter().filter(holds).count());
        count += 1;
    }
    if count == 0 || most as i64 >= asked {
        return None;
    }
    let text = written(job, format!("#SBATCH --gres=gpu:{most}"), |_| None)?;
    Some(Directive { resource: "gpus", text, value: most as f64, asked: Some(asked as f64), runs: count })
}

#[cfg(test)]
#[path = "directives_tests.rs"]
mod tests;
