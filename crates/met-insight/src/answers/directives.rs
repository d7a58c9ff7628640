//! Requests that would have been enough for the last runs of a lineage, as a scheduler reads them.

use met_core::job::{GpuUse, Part, QualityKind, Record, State, Totals};
use met_core::job_table as column;
use met_core::managers::{self, Need};

use super::Job;
use crate::{average, gpu};

/// Runs that a request is made from, the job included.
pub const RUNS: usize = 5;
/// Room above the highest need seen.
const MEMORY_ROOM: f64 = 1.2;
/// After the job was killed for memory: its need is not known, only that the limit was too low.
const AFTER_OOM: f64 = 1.5;
const TIME_ROOM: f64 = 1.25;
/// As for findings.
const COVERAGE: f64 = 0.95;
const LENGTH_NS: i64 = 600_000_000_000;
const SAMPLES: usize = 20;
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
    let found = [memory(job).filter(|_| is_covered(job)), cpus(job), time(job), gpus(job)];
    found.into_iter().flatten().filter(differs).collect()
}

/// The same of an earlier run whose samples are not at hand.
pub(super) fn by_records(job: &Job<'_>) -> Vec<Directive> {
    let found = [memory(job), cpus(job), time(job), gpus(job)];
    found.into_iter().flatten().filter(differs).collect()
}

/// What a job requested, in the unit of its [`Directive`].
pub(super) fn asked(record: &Record, resource: &str) -> Option<f64> {
    let (requested, allocated) = (&record.requested, &record.allocated);
    let value = match resource {
        "memory" => requested.memory_bytes.or(allocated.memory_bytes)? as f64 / nodes(record) as f64,
        "cpus" => requested.cpus.or(allocated.cpus)? as f64,
        "time" => requested.time_limit_ns.or(allocated.time_limit_ns)? as f64 / 1e9,
        "gpus" => requested.gpus.or(allocated.gpus)? as f64,
        _ => return None,
    };
    Some(value)
}

fn differs(directive: &Directive) -> bool {
    directive.asked.is_none_or(|asked| asked > 0.0 && !(0.8..=1.25).contains(&(directive.value / asked)))
}

/// The runs that a request may be made from: they did their work, or ended at a limit that was too low. None unless
/// one of them says what is enough.
fn runs<'a>(job: &'a Job<'_>) -> impl Iterator<Item = &'a Record> {
    let run = |at: usize| if at == 0 { job.record } else { job.earlier[at - 1] };
    let found = job.memo.runs.get_or_init(|| {
        let runs = (0..=job.earlier.len()).filter(|&at| is_evidence(job, run(at))).take(RUNS);
        let runs: Vec<usize> = runs.collect();
        let is_enough = |&at: &usize| run(at).state == State::Finished || is_killed(run(at));
        if runs.iter().any(is_enough) { runs } else { Vec::new() }
    });
    found.iter().map(move |&at| run(at))
}

/// A run that failed at once says nothing of what the next one needs.
fn is_evidence(job: &Job<'_>, run: &Record) -> bool {
    // How often an earlier run was sampled is not at hand.
    let is_sampled =
        || run.key == job.record.key && job.profile().is_some_and(|profile| profile.count() >= SAMPLES);
    is_evidence_by_record(run, job.now_ns) || has_worked(run) && is_sampled()
}

/// The same of a run whose samples are not at hand.
pub(super) fn is_evidence_by_record(run: &Record, now_ns: i64) -> bool {
    is_killed(run) || has_worked(run) && is_long(run, now_ns)
}

fn has_worked(run: &Record) -> bool {
    matches!(run.state, State::Finished | State::Timeout)
}

/// Long enough to say what it needs, however often it was sampled.
pub fn is_long(run: &Record, now_ns: i64) -> bool {
    average::wall_ns(run, now_ns).is_some_and(|wall_ns| wall_ns >= LENGTH_NS)
}

fn is_killed(run: &Record) -> bool {
    let killed = run.totals.get(column::OOM_KILLS).is_some_and(|kills| kills > 0);
    run.state == State::OutOfMemory || killed && !run.state.is_live()
}

/// As the job's manager reads it; `None` where there is no such line for its scripts.
fn written(job: &Job<'_>, need: Need) -> Option<String> {
    managers::find(&job.record.key.manager)?.directive?(need)
}

/// Whether the job held so much of its node that what it leaves is of no use to others.
pub fn is_whole_node(job: &Job<'_>) -> Option<bool> {
    if job.record.scheduling.exclusive == Some(true) {
        return Some(true);
    }
    let held = job.record.allocated.cpus? as f64;
    Some(held >= WHOLE_NODE * f64::from(job.machine.cpus?))
}

/// Needed memory of the last runs, on the node that needed most; never page cache.
pub fn memory_bytes(job: &Job<'_>) -> Option<(f64, usize)> {
    let mut most: Option<f64> = None;
    let mut count = 0;
    for run in runs(job) {
        let need = need_bytes(run);
        most = Some(most.unwrap_or(0.0).max(need?));
        count += 1;
    }
    Some((most?, count))
}

fn need_bytes(run: &Record) -> Option<f64> {
    let given = run.allocated.memory_bytes.or(run.requested.memory_bytes).map(|bytes| bytes as f64);
    if is_killed(run) {
        return Some(AFTER_OOM / MEMORY_ROOM * given? / nodes(run) as f64);
    }
    let is_exact = !is_bound(&run.totals) && !run.parts.iter().any(|part| is_bound(&part.totals));
    peak_bytes(run).filter(|_| is_exact)
}

/// The kernel saw more than was sampled: how much of it was needed is not known.
pub(super) fn is_bound(totals: &Totals) -> bool {
    totals.figure(column::MEMORY_NEEDED_PEAK).is_some_and(|peak| peak.kind == QualityKind::LowerBound)
}

/// Whether a part is all of a job on one node.
pub(super) fn is_of_node(part: &Part) -> bool {
    part.step.is_empty() && part.task.is_none()
}

/// Of a run, one at least.
pub(super) fn nodes(run: &Record) -> i64 {
    run.allocated.nodes.or(run.requested.nodes).unwrap_or(1).max(run.nodes.len() as i64).max(1)
}

/// The most memory that a run needed on one node: requests are by node, and the largest is what counts.
pub fn peak_bytes(run: &Record) -> Option<f64> {
    let peak = |totals: &Totals| totals.get(column::MEMORY_NEEDED_PEAK).map(|bytes| bytes as f64);
    let nodes = nodes(run);
    if nodes == 1 {
        return peak(&run.totals);
    }
    let by_node = run.parts.iter().filter(|part| is_of_node(part));
    let peaks: Option<Vec<f64>> = by_node.map(|part| peak(&part.totals)).collect();
    let peaks = peaks.filter(|peaks| peaks.len() as i64 == nodes && run.covers_all_nodes())?;
    Some(peaks.into_iter().fold(0.0, f64::max))
}

/// A peak between samples that were not taken may have been higher.
fn is_covered(job: &Job<'_>) -> bool {
    let is_used = runs(job).any(|run| run.key == job.record.key && !is_killed(run));
    !is_used || job.coverage(column::MEMORY_NEEDED).is_some_and(|covered| covered >= COVERAGE)
}

fn memory(job: &Job<'_>) -> Option<Directive> {
    if is_whole_node(job) != Some(false) {
        return None;
    }
    let (needed, runs) = memory_bytes(job)?;
    let asked = asked(job.record, "memory")?;
    let value = rounded_bytes(needed * MEMORY_ROOM);
    let text = written(job, Need::Memory { bytes_per_node: value as i64, nodes: nodes(job.record) })?;
    Some(Directive { resource: "memory", text, value, asked: Some(asked), runs })
}

/// Whole GiB from 4 GiB on, else multiples of 256 MiB.
fn rounded_bytes(bytes: f64) -> f64 {
    let step = if bytes >= 4.0 * GIB { GIB } else { 256.0 * MIB };
    (bytes / step).ceil().max(1.0) * step
}

/// The most cores that the last runs had busy at once, where that was sustained.
fn cpus(job: &Job<'_>) -> Option<Directive> {
    let asked = job.record.requested.cpus.or(job.record.allocated.cpus)?;
    // With several nodes or tasks or beside a GPU the number of cores is a matter of layout.
    let is_one_task = job.record.requested.tasks.or(job.record.allocated.tasks) == Some(1);
    let is_exclusive = job.record.scheduling.exclusive == Some(true);
    if nodes(job.record) > 1 || asked < 2 || gpu::count(job.record) > 0 || !is_one_task || is_exclusive {
        return None;
    }
    let mut most = 0.0_f64;
    let mut count = 0;
    for run in runs(job) {
        let peak = exact(run, column::CORES_PEAK).map(|thousandths| thousandths as f64 / 1e3);
        exact(run, column::CPU)?;
        most = most.max(peak?.max(average::cores(run, job.now_ns)?));
        count += 1;
    }
    let value = (most - 0.1).ceil().max(1.0);
    if count == 0 || value >= asked as f64 {
        return None;
    }
    let text = written(job, Need::Cpus(value as i64))?;
    Some(Directive { resource: "cpus", text, value, asked: Some(asked as f64), runs: count })
}

fn exact(run: &Record, index: usize) -> Option<i64> {
    let figure = run.totals.figure(index).filter(|figure| figure.kind != QualityKind::LowerBound)?;
    Some(figure.value)
}

fn time(job: &Job<'_>) -> Option<Directive> {
    let limit_ns = job.record.requested.time_limit_ns.or(job.record.allocated.time_limit_ns)?;
    let finished = runs(job).filter(|run| run.state == State::Finished);
    let walls: Vec<f64> =
        finished.filter_map(|run| average::wall_ns(run, job.now_ns)).map(|ns| ns as f64 / 1e9).collect();
    // One that did not get to its end needs more, and fewer runs say too little of how long the next one takes.
    if walls.len() < 3 || runs(job).any(|run| run.state == State::Timeout) {
        return None;
    }
    let minutes = (walls.iter().copied().fold(0.0, f64::max) * TIME_ROOM / 60.0).ceil();
    // Steps of five minutes, and of a quarter of an hour from two hours on.
    let step = if minutes > 120.0 { 15.0 } else { 5.0 };
    let minutes = (minutes / step).ceil() * step;
    let text = written(job, Need::TimeMinutes(minutes as i64))?;
    let asked = Some(limit_ns as f64 / 1e9);
    Some(Directive { resource: "time", text, value: minutes * 60.0, asked, runs: walls.len() })
}

/// The GPUs that the last runs computed on. Parts of GPUs are counted as the scheduler counts them.
fn gpus(job: &Job<'_>) -> Option<Directive> {
    let asked = job.record.requested.gpus.or(job.record.allocated.gpus).filter(|&gpus| gpus > 1)?;
    let mut most = 0;
    let mut count = 0;
    for run in runs(job) {
        if nodes(job.record) > 1 || !is_gpu_use_known(job, run) {
            return None;
        }
        let holds = |gpu: &GpuUse| match gpu.used_ns {
            0 => gpu::memory_share(gpu).map(|share| share > gpu::MEMORY_FULL),
            _ => Some(true),
        };
        let held: Vec<bool> = run.gpus.iter().map(holds).collect::<Option<_>>()?;
        most = most.max(held.into_iter().filter(|&holds| holds).count());
        count += 1;
    }
    // A job that used none may have failed to find them; that is said in other words.
    if count == 0 || most == 0 || most as i64 >= asked {
        return None;
    }
    let text = written(job, Need::Gpus(most as i64))?;
    Some(Directive { resource: "gpus", text, value: most as f64, asked: Some(asked as f64), runs: count })
}

/// All GPUs of a run, for nearly all of its time.
fn is_gpu_use_known(job: &Job<'_>, run: &Record) -> bool {
    let wall_ns = average::wall_ns(run, job.now_ns).unwrap_or(i64::MAX) as f64;
    let is_read = |gpu: &GpuUse| gpu.known_ns.is_some_and(|ns| ns as f64 >= COVERAGE * wall_ns);
    gpu::all_known(run) && run.gpus.iter().all(is_read)
}

#[cfg(test)]
#[path = "directives_tests.rs"]
mod tests;
