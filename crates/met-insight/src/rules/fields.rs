//! What conditions can ask of a job besides the metrics of the catalogue.

use met_core::job::{QualityKind, State};
use met_core::job_table as column;

use super::condition::{Dim, Stat};
use super::evaluate::Subject;
use super::outlook::{self, Needs, Possible};
use super::user::UserSum;
use crate::answers::{self, Job, directives, imbalance};
use crate::report::Measure;
use crate::{allocation, average, gpu};

/// A number with how it came to be known, and how much of the window it covers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fact {
    pub value: f64,
    pub quality: QualityKind,
    /// `None`: of no time, such as a request.
    pub coverage: Option<f64>,
}

impl Fact {
    pub fn of_request(value: f64) -> Fact {
        Fact { value, quality: QualityKind::Measured, coverage: None }
    }

    fn measured(value: f64) -> Fact {
        Fact { value, quality: QualityKind::Measured, coverage: Some(1.0) }
    }

    fn sampled(value: f64, coverage: f64) -> Fact {
        Fact { value, quality: QualityKind::Sampled, coverage: Some(coverage.min(1.0)) }
    }
}

/// How a number is written, which says its dimension, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown(pub Measure);

impl Shown {
    pub fn dim(self) -> Dim {
        match self.0 {
            Measure::Seconds => Dim::SECONDS,
            Measure::Bytes => Dim::BYTES,
            Measure::BytesPerSecond => Dim::BYTES.per_second(),
            Measure::Joules => Dim::JOULES,
            Measure::Watts => Dim::JOULES.per_second(),
            Measure::Hertz => Dim::ONE.per_second(),
            _ => Dim::ONE,
        }
    }
}

#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub shown: Shown,
    pub help: &'static str,
    /// A share of a whole, or yes or no: never above 1.
    pub is_at_most_one: bool,
    read: Read,
}

/// How long a job ran.
pub const WALL: &str = "wall";

#[derive(Debug)]
enum Read {
    /// Samples say at most how much of its time that covers.
    Job(fn(&Job<'_>) -> Option<Fact>, Needs),
    /// From more than the record.
    Later(fn(&Job<'_>) -> Option<Fact>, Needs, Outlook),
    User(fn(&UserSum) -> Option<Fact>),
}

/// What a field of a job may be when everything is read, where samples cover at least this share of its window.
type Outlook = fn(&Job<'_>, f64) -> Possible;

impl PartialEq for Field {
    fn eq(&self, other: &Field) -> bool {
        self.name == other.name
    }
}

impl Field {
    pub fn of_job(&self, job: &Job<'_>) -> Option<Fact> {
        match self.read {
            Read::Job(read, _) | Read::Later(read, ..) => read(job).filter(|fact| fact.value.is_finite()),
            Read::User(_) => None,
        }
    }

    /// What it may be when everything is read, of a job of which only records were.
    pub fn possible(&self, job: &Job<'_>, coverage: f64) -> Possible {
        match self.read {
            // Samples of one node of several are not used.
            Read::Later(_, needs, outlook) if job.is_whole() || !needs.samples => outlook(job, coverage),
            _ => Possible::exactly(self.of_job(job).map(|fact| fact.value)),
        }
    }

    pub fn needs(&self) -> Needs {
        match self.read {
            Read::Job(_, needs) | Read::Later(_, needs, _) => needs,
            Read::User(_) => Needs::NONE,
        }
    }

    pub fn of_user(&self, user: &UserSum) -> Option<Fact> {
        match self.read {
            Read::Job(..) | Read::Later(..) => None,
            Read::User(read) => read(user).filter(|fact| fact.value.is_finite()),
        }
    }

    /// Yes or no, as 1 or 0.
    const fn yes_or_no(self) -> Field {
        Field { is_at_most_one: true, ..self }
    }

    /// A share that may be above 1.
    const fn above_one(self) -> Field {
        Field { is_at_most_one: false, ..self }
    }

    pub fn is_of_users(&self) -> bool {
        matches!(self.read, Read::User(_))
    }
}

pub fn find(name: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.name == name)
}

/// Of a whole, which it cannot exceed.
const fn is_share(measure: Measure) -> bool {
    matches!(measure, Measure::Share)
}

const fn job(
    name: &'static str,
    measure: Measure,
    help: &'static str,
    read: fn(&Job<'_>) -> Option<Fact>,
) -> Field {
    covered_by(name, measure, help, &[], read)
}

/// Of the record, as far as samples of these columns cover its time.
const fn covered_by(
    name: &'static str,
    measure: Measure,
    help: &'static str,
    columns: &[usize],
    read: fn(&Job<'_>) -> Option<Fact>,
) -> Field {
    Field {
        name,
        shown: Shown(measure),
        help,
        is_at_most_one: is_share(measure),
        read: Read::Job(read, Needs::if_sampled(columns)),
    }
}

const fn later(
    name: &'static str,
    measure: Measure,
    help: &'static str,
    (needs, outlook): (Needs, Outlook),
    read: fn(&Job<'_>) -> Option<Fact>,
) -> Field {
    Field {
        name,
        shown: Shown(measure),
        help,
        is_at_most_one: is_share(measure),
        read: Read::Later(read, needs, outlook),
    }
}

/// Of samples of a column, and not below 0.
const fn sampled(column: usize) -> (Needs, Outlook) {
    (Needs::samples(&[column]), |_, _| Possible::within(0.0, f64::INFINITY))
}

const SERIAL_SHARE: (Needs, Outlook) = (Needs::samples(&[column::CPU]), |_, _| Possible::within(0.0, 1.0));

const fn user(
    name: &'static str,
    measure: Measure,
    help: &'static str,
    read: fn(&UserSum) -> Option<Fact>,
) -> Field {
    Field { name, shown: Shown(measure), help, is_at_most_one: is_share(measure), read: Read::User(read) }
}

pub static FIELDS: &[Field] = &[
    job(WALL, Measure::Seconds, "how long the job ran, or has been running", |job| {
        let wall_ns = average::wall_ns(job.record, job.now_ns)?;
        Some(Fact::measured(wall_ns as f64 / 1e9))
    }),
    job("is_running", Measure::Count, "1 while it runs, else 0", |job| {
        Some(Fact::of_request(f64::from(u8::from(job.record.state == State::Running))))
    })
    .yes_or_no(),
    job(
        "cpus",
        Measure::Cores,
        "CPUs that the job was given, on all nodes; their average over time, if that changed",
        |job| Some(Fact::of_request(allocation::held_cpus(job.record, job.now_ns)?)),
    ),
    job("cpus_usable", Measure::Cores, "CPUs that it was given, or else shared CPUs it may run on", |job| {
        Some(Fact::of_request(allocation::usable_cpus(job.record, job.machine, job.now_ns)?))
    }),
    job("threads_per_task", Measure::Count, "threads that each of its tasks has CPUs for", |job| {
        let tasks = job.record.allocated.tasks.or(job.record.requested.tasks).filter(|&tasks| tasks > 0)?;
        let cpus = allocation::usable_cpus(job.record, job.machine, job.now_ns)?;
        Some(Fact::of_request((cpus / tasks as f64).floor().max(1.0)))
    }),
    job("nodes", Measure::Count, "nodes that it was given", |job| {
        Some(Fact::of_request(job.record.allocated.nodes.unwrap_or(job.record.nodes.len() as i64) as f64))
    }),
    job("exclusive", Measure::Count, "1 if its scheduler gave it whole nodes, 0 if it shared them", |job| {
        Some(Fact::of_request(f64::from(u8::from(job.record.scheduling.exclusive?))))
    })
    .yes_or_no(),
    job("node_cpus", Measure::Cores, "CPUs of its nodes", |job| {
        Some(Fact::of_request(f64::from(job.machine.cpus?)))
    }),
    later("node_gpus", Measure::Gpus, "GPUs of its node that some job was seen with", NODE_GPUS, node_gpus),
    later(
        "neighbours_pressure",
        Measure::Share,
        "time in which jobs of others on its node waited for a CPU that others had",
        (Needs::NEIGHBOURS, |_, _| Possible::within(0.0, 1.0)),
        |job| Some(Fact::of_request(job.beside?.pressure?)),
    ),
    later(
        "neighbours_cores",
        Measure::Cores,
        "cores that all other jobs on its node used while it ran",
        (Needs::NEIGHBOURS, |_, _| Possible::within(0.0, f64::INFINITY)),
        |job| Some(Fact::of_request(job.beside?.cores?)),
    ),
    job("node_memory", Measure::Bytes, "memory of its node", |job| {
        Some(Fact::of_request(job.record.node_memory_bytes? as f64))
    }),
    later("cores", Measure::Cores, "cores busy on average, after the warm-up", CORES, cores),
    later(
        "cores_p95",
        Measure::Cores,
        "cores busy, exceeded for 5 % of the time",
        sampled(column::CPU),
        |job| super::evaluate::of_samples(job, Stat::P95, column::CPU).filter(|_| !is_bound(job)),
    ),
    later(
        "cores_sustained",
        Measure::Cores,
        "cores busy at least for 5 minutes in all, or 5 % of a shorter job; the warm-up counts",
        sampled(column::CPU),
        |job| Some(Fact::sampled(job.profile()?.cores_sustained()?, job.coverage(column::CPU)?)),
    ),
    later(
        "storage_wait",
        Measure::Share,
        "time in which it waited for storage: by pressure, or else by delays of its threads",
        STORAGE_WAIT,
        storage_wait,
    ),
    later(
        "serial_share",
        Measure::Share,
        "share of time in which at most one core was busy",
        SERIAL_SHARE,
        |job| {
            let share = job.profile().filter(|_| !is_bound(job))?.serial_share()?;
            Some(Fact::sampled(share, job.coverage(column::CPU)?))
        },
    ),
    later("idle_tail", Measure::Seconds, "time without work at its end, or until now", IDLE_TAIL, |job| {
        Some(Fact::sampled(job.profile()?.idle_tail_s()?, job.coverage(column::CPU)?))
    }),
    later(
        "processes_left",
        Measure::Count,
        "processes alive in its last sample",
        sampled(column::PROCESSES_RUNNING),
        |job| {
            let counts = &job.samples()?.series.columns[column::PROCESSES_RUNNING];
            let last = counts.iter().rev().find(|&&count| count != met_core::MISSING)?;
            Some(Fact::sampled(*last as f64, sampled_coverage(job, column::PROCESSES_RUNNING)?))
        },
    ),
    job("memory_held", Measure::Bytes, "memory that it was given, on each node", |job| {
        let bytes = job.record.allocated.memory_bytes.or(job.record.requested.memory_bytes)?;
        Some(Fact::of_request(bytes as f64 / job.record.allocated.nodes.unwrap_or(1).max(1) as f64))
    }),
    later(
        "memory_needed",
        Measure::Bytes,
        "most that this and the four runs before it needed, on one node",
        MEMORY_NEEDED,
        memory_needed,
    ),
    covered_by(
        "memory_peak",
        Measure::Bytes,
        "most that this run needed so far, on one node",
        &[column::MEMORY_NEEDED],
        memory_peak,
    ),
    later(
        "memory_growth",
        Measure::BytesPerSecond,
        "growth of needed memory to the end; unknown unless steady",
        sampled(column::MEMORY_NEEDED),
        |job| {
            let growth = job.profile()?.memory_growth()?;
            Some(Fact::sampled(growth, sampled_coverage(job, column::MEMORY_NEEDED)?))
        },
    ),
    job("time_limit", Measure::Seconds, "its time limit", |job| {
        let ns = job.record.requested.time_limit_ns.or(job.record.allocated.time_limit_ns)?;
        Some(Fact::of_request(ns as f64 / 1e9))
    }),
    job(
        "longest_run",
        Measure::Seconds,
        "longest of this and the four runs before it that finished; of three at least",
        longest_run,
    ),
    job("gpus", Measure::Gpus, "GPUs that it was given, or used", |job| {
        Some(Fact::of_request(gpu::count(job.record) as f64))
    }),
    job("gpus_computing", Measure::Gpus, "GPUs that it computed on at all", |job| {
        let known = gpu_known(job)?;
        let count = job.record.gpus.iter().filter(|gpu| gpu.used_ns > 0).count();
        Some(Fact::sampled(count as f64, known))
    }),
    job("gpus_holding", Measure::Gpus, "GPUs that it did not compute on, whose memory it filled", |job| {
        let known = gpu_known(job)?;
        let quiet = job.record.gpus.iter().filter(|gpu| gpu.used_ns == 0);
        let shares: Vec<f64> = quiet.map(gpu::memory_share).collect::<Option<_>>()?;
        let count = shares.into_iter().filter(|&share| share > gpu::MEMORY_FULL).count();
        Some(Fact::sampled(count as f64, known))
    }),
    job("gpu_ratio", Measure::Share, "use of the GPUs that it held, on average", |job| {
        Some(Fact::sampled(gpu::ratio(job.record)?, gpu_known(job)?))
    }),
    job("gpu_memory_ratio", Measure::Share, "peak use of GPU memory, of the fullest", |job| {
        let shares: Option<Vec<f64>> = job.record.gpus.iter().map(gpu::memory_share).collect();
        let most = shares?.into_iter().reduce(f64::max)?;
        Some(Fact::sampled(most, gpu_known(job)?))
    }),
    later(
        "gpu_power_ratio",
        Measure::Share,
        "power of its GPUs, as a share of their limits",
        GPU_POWER_RATIO,
        gpu_power_ratio,
    )
    // Power may be above its limit for a moment.
    .above_one(),
    job("gpu_sm_ratio", Measure::Share, "compute units (SMs) that had work, of its GPUs", |job| {
        let known: Option<Vec<f64>> = job.record.gpus.iter().map(|gpu| gpu.sm_activity).collect();
        let known = known.filter(|known| !known.is_empty())?;
        Some(Fact::sampled(known.iter().sum::<f64>() / known.len() as f64, gpu_known(job)?))
    }),
    job(
        "gpu_part_fitting",
        Measure::Share,
        "smallest part of its GPUs (MIG) with the memory and compute units that it used; 1: all of each",
        |job| Some(Fact::sampled(gpu::smallest_part(job.record)?.share(), gpu_known(job)?)),
    ),
    job("gpu_parts", Measure::Count, "how many of its GPUs are parts of one (MIG)", |job| {
        Some(Fact::of_request(job.record.gpus.iter().filter(|gpu| gpu.parent.is_some()).count() as f64))
    }),
    covered_by(
        "quota_ratio",
        Measure::Share,
        "CPU time that a quota took, of what it could have used",
        &[column::THROTTLED, column::CPU],
        |job| {
            let (throttled, cpu) = (total(job, column::THROTTLED)?, total(job, column::CPU)?);
            Some(Fact { value: throttled.value / (throttled.value + cpu.value), ..throttled })
        },
    ),
    job("node_imbalance", Measure::Share, "idle share of the mean node while the busiest worked", |job| {
        let imbalance = imbalance::nodes(job.record).filter(|_| job.is_whole())?;
        Some(Fact::measured(imbalance.ratio()))
    }),
    job("runs", Measure::Count, "earlier runs of its lineage that are known", |job| {
        Some(Fact::of_request(job.earlier.len() as f64))
    }),
    user("jobs", Measure::Count, "jobs of the user in the window", |user| {
        Some(Fact::measured(user.jobs as f64))
    }),
    user("tiny_jobs", Measure::Count, "jobs shorter than a minute", |user| {
        Some(Fact::measured(user.tiny_jobs as f64))
    }),
    user("core_time", Measure::Seconds, "core-seconds held", |user| Some(Fact::measured(user.core_seconds))),
    user("core_time_used", Measure::Seconds, "core-seconds used, of core_time_known", |user| {
        (user.core_seconds_known > 0.0).then_some(Fact::measured(user.core_seconds_used))
    }),
    user(
        "core_time_known",
        Measure::Seconds,
        "core-seconds held by jobs whose use is known, without those beside GPUs, for their memory, on exclusive nodes or waiting for storage",
        |user| Some(Fact::measured(user.core_seconds_known)),
    ),
    user("cpu_time", Measure::Seconds, "CPU time of the user's jobs that were measured", |user| {
        Some(Fact::measured(user.cpu_seconds))
    }),
    user("gpu_time", Measure::Seconds, "GPU-seconds held", |user| Some(Fact::measured(user.gpu_seconds))),
    user(
        "gpu_time_used",
        Measure::Seconds,
        "GPU-seconds computed, of those held by jobs whose use is known",
        |user| (user.gpu_seconds_known > 0.0).then_some(Fact::measured(user.gpu_seconds_used)),
    ),
    user("gpu_time_known", Measure::Seconds, "GPU-seconds held by jobs whose use is known", |user| {
        Some(Fact::measured(user.gpu_seconds_known))
    }),
    user("share_of_all", Measure::Share, "CPU time of the user, of that of all users", |user| {
        Some(Fact { coverage: Some(user.all_known), ..Fact::measured(user.share_of_all?) })
    }),
    user(
        "others_pressure",
        Measure::Share,
        "share of time in which jobs of others waited for a CPU",
        |user| Some(Fact::measured(user.others_pressure?)),
    ),
    user(
        "others_queued",
        Measure::Count,
        "jobs of others that wait for resources in a partition of the user",
        |user| {
            let quality =
                if user.is_queue_estimated { QualityKind::Estimated } else { QualityKind::Measured };
            Some(Fact { quality, ..Fact::measured(user.others_queued? as f64) })
        },
    ),
];

/// A total with its coverage: a counter of the whole job covers it, a lower bound or one node of several does not.
pub fn total(job: &Job<'_>, index: usize) -> Option<Fact> {
    let figure = job.record.totals.figure(index)?;
    let coverage = match figure.kind {
        QualityKind::LowerBound => 0.0,
        _ if !job.is_whole() => 0.0,
        QualityKind::Sampled => sampled_coverage(job, sampled_as(index)).unwrap_or(0.0),
        _ => 1.0,
    };
    let value = met_core::JOB.columns[index].scaled(figure.value);
    Some(Fact { value, quality: figure.kind, coverage: Some(coverage) })
}

/// The column whose samples a peak is of.
pub fn sampled_as(index: usize) -> usize {
    match index {
        column::MEMORY_NEEDED_PEAK => column::MEMORY_NEEDED,
        column::GPU_MEMORY_PEAK => column::GPU_MEMORY,
        column::CORES_PEAK => column::CPU,
        column::THREADS_PEAK => column::THREADS_RUNNING,
        column::PROCESSES_PEAK => column::PROCESSES_RUNNING,
        index => index,
    }
}

/// The share of the window that samples of a column cover; unknown without samples.
fn sampled_coverage(job: &Job<'_>, index: usize) -> Option<f64> {
    Some(job.coverage(index)?.min(1.0))
}

const CORES: (Needs, Outlook) = (Needs::samples(&[column::CPU]), |job, coverage| {
    outlook::growth(job, column::CPU, coverage).or(cores(job).map(|fact| fact.value))
});
/// Known before samples are read, if other jobs are looked at.
const NODE_GPUS: (Needs, Outlook) = (Needs::NEIGHBOURS, |job, _| match job.beside {
    Some(_) => Possible::exactly(node_gpus(job).map(|fact| fact.value)),
    None => Possible::within(0.0, f64::INFINITY),
});
const STORAGE_WAIT: (Needs, Outlook) =
    (Needs::if_sampled(&[column::PRESSURE_IO, column::DELAY_IO]), |_, _| Possible::within(0.0, 1.0));
const IDLE_TAIL: (Needs, Outlook) = (Needs::samples(answers::PHASE_COLUMNS), |job, _| {
    let span_ms = answers::span_of(job.record, job.now_ns);
    Possible::within(0.0, span_ms.map_or(0.0, |(begin_ms, end_ms)| (end_ms - begin_ms) as f64 / 1e3))
});
/// Samples say only whether a short run counts.
const MEMORY_NEEDED: (Needs, Outlook) = (Needs::samples(&[column::MEMORY_NEEDED]), |job, _| {
    let needed = memory_needed(job).map(|fact| fact.value);
    match directives::is_long(job.record, job.now_ns) {
        true => Possible::exactly(needed),
        false => Possible::within(0.0, f64::INFINITY),
    }
});
const GPU_POWER_RATIO: (Needs, Outlook) = (Needs::GPU_SAMPLES, |job, _| match job.record.gpus.is_empty() {
    true => Possible::exactly(None),
    false => Possible::within(0.0, f64::INFINITY),
});

fn node_gpus(job: &Job<'_>) -> Option<Fact> {
    Some(Fact::of_request(f64::from(job.beside?.gpus?)))
}

/// Measured on all nodes, or not known. Samples leave out the warm-up.
/// Whether its CPU time is only known to be at least so much: that it used little cannot be said, by samples neither.
fn is_bound(job: &Job<'_>) -> bool {
    job.record.totals.figure(column::CPU).is_some_and(|figure| figure.kind == QualityKind::LowerBound)
}

fn cores(job: &Job<'_>) -> Option<Fact> {
    if !job.is_whole() || is_bound(job) {
        return None;
    }
    if let Some(sampled) = super::evaluate::of_samples(job, Stat::Mean, column::CPU) {
        return Some(sampled);
    }
    let figure = job.record.totals.figure(column::CPU)?;
    let value = average::cores(job.record, job.now_ns)?;
    Some(Fact { value, quality: figure.kind, coverage: Some(1.0) })
}

/// Samples leave out the warm-up; the totals of several nodes are sums.
fn storage_wait(job: &Job<'_>) -> Option<Fact> {
    let nodes = job.record.nodes.len().max(1) as f64;
    let rate = |index: usize| Subject::Job(job).metric(Stat::Rate, index);
    let fact = rate(column::PRESSURE_IO).or_else(|| rate(column::DELAY_IO))?;
    Some(Fact { value: (fact.value / nodes).min(1.0), ..fact })
}

fn memory_needed(job: &Job<'_>) -> Option<Fact> {
    let (bytes, _) = directives::memory_bytes(job)?;
    let figure = job.record.totals.figure(column::MEMORY_NEEDED_PEAK)?;
    let coverage = sampled_coverage(job, column::MEMORY_NEEDED).unwrap_or(0.0);
    Some(Fact { value: bytes, quality: figure.kind, coverage: Some(coverage) })
}

fn memory_peak(job: &Job<'_>) -> Option<Fact> {
    let value = directives::peak_bytes(job.record)?;
    let kind = job.record.totals.figure(column::MEMORY_NEEDED_PEAK)?.kind;
    let coverage = match kind {
        QualityKind::LowerBound => 0.0,
        _ => sampled_coverage(job, column::MEMORY_NEEDED).unwrap_or(0.0),
    };
    Some(Fact { value, quality: kind, coverage: Some(coverage) })
}

fn longest_run(job: &Job<'_>) -> Option<Fact> {
    let runs = [job.record].into_iter().chain(job.earlier.iter().copied()).take(directives::RUNS);
    let finished = runs.filter(|run| run.state == State::Finished);
    let walls: Vec<i64> = finished.filter_map(|run| average::wall_ns(run, job.now_ns)).collect();
    let longest = walls.iter().max().filter(|_| walls.len() >= 3)?;
    Some(Fact::measured(*longest as f64 / 1e9))
}

/// The share of the job's time in which the use of all its GPUs was read, of the one read least.
fn gpu_known(job: &Job<'_>) -> Option<f64> {
    let wall_ns = average::wall_ns(job.record, job.now_ns).filter(|&ns| ns > 0)?;
    if !job.is_whole() || !gpu::all_known(job.record) {
        return None;
    }
    let known: Option<Vec<i64>> = job.record.gpus.iter().map(|gpu| gpu.known_ns).collect();
    Some(known?.into_iter().min()? as f64 / wall_ns as f64)
}

fn gpu_power_ratio(job: &Job<'_>) -> Option<Fact> {
    use met_core::gpu::device;
    let samples = job.samples()?;
    let mut shares = Vec::new();
    for gpu in &job.record.gpus {
        let (_, series) = samples.gpus.iter().find(|(uuid, _)| *uuid == gpu.uuid)?;
        let mean = |index: usize| series.mean(index, samples.gap_ms);
        shares.push(mean(device::POWER)? / mean(device::POWER_LIMIT).filter(|&limit| limit > 0.0)?);
    }
    let count = shares.len() as f64;
    (count > 0.0).then_some(())?;
    Some(Fact::sampled(shares.iter().sum::<f64>() / count, gpu_known(job)?))
}
