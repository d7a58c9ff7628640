//! What held a job up, with its evidence. What the evidence does not show is not said.

use met_core::job_table as column;
use met_core::units;

use super::{Job, Phase, PhaseKind};
use crate::{allocation, average, gpu};

/// The share of its time that a job must have lost to something before that is what limits it.
const SHARE: f64 = 0.3;
const MEMORY_SHARE: f64 = 0.2;
const QUOTA_SHARE: f64 = 0.1;
/// Of a core: busy.
const BUSY: f64 = 0.8;
/// Of all its cores: full, as `gpu_waits_for_cpu` has it.
const FULL: f64 = 0.9;
/// Of the time with at most one core busy, from which a job is serial.
const SERIAL_SHARE: f64 = 0.8;
/// Of the time in phases of one kind: that is what it mostly did.
const MOST: f64 = 0.5;
/// Below this many cores and this share of waiting nothing kept the job busy.
const QUIET: f64 = 0.2;
/// So many threads that wait for a CPU are a queue.
const QUEUE: f64 = 0.1;
/// A shorter job is mostly its own start.
const SECONDS_MIN: f64 = 1.0;
const STORAGE_BYTES_PER_SECOND: f64 = 20.0 * 1_048_576.0;
/// As of storage: how long tasks waited for the network is not counted by the kernel.
const NETWORK_BYTES_PER_SECOND: f64 = 20.0 * 1_048_576.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Memory,
    Quota,
    Gpu,
    Cpu,
    /// One core of several.
    OneCore,
    /// Less than half of its cores: no more threads had work. For programs it is `cpu`.
    SomeCores,
    Io,
    Network,
    Waiting,
    /// None of them for most of the time.
    None,
}

impl Limit {
    pub fn name(self) -> &'static str {
        match self {
            Limit::Memory => "memory",
            Limit::Quota => "quota",
            Limit::Gpu => "gpu",
            Limit::Cpu | Limit::SomeCores => "cpu",
            Limit::OneCore => "one_core",
            Limit::Io => "io",
            Limit::Network => "network",
            Limit::Waiting => "waiting",
            Limit::None => "none",
        }
    }

    /// As the end of "limited by …", where it is a limit.
    pub fn words(self) -> &'static str {
        match self {
            Limit::Memory => "memory: it waited for swap or reclaim",
            Limit::Quota => "its CPU quota",
            Limit::Gpu => "the GPU",
            Limit::Cpu => "the CPU",
            Limit::OneCore => "one core",
            Limit::SomeCores => "too few busy threads",
            Limit::Io => "I/O",
            Limit::Network => "the network",
            Limit::Waiting => "waiting: no CPU, storage or GPU was busy",
            Limit::None => "nothing for most of the time",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Bottleneck {
    pub limit: Limit,
    /// The figures that show it, in words.
    pub evidence: Vec<String>,
}

/// The figures that are weighed. All are averages over the job's time.
struct Figures {
    cores: f64,
    /// Cores that the job could have used: given, or those of the machine.
    of_cores: Option<f64>,
    /// Threads that ran or waited for a CPU.
    runnable: f64,
    waited_for_cpu: Option<f64>,
    /// Most of the time at most one core was busy.
    is_serial: bool,
    storage: Storage,
    /// Received and sent, of a job with a network of its own: what a machine transfers is that of all its jobs.
    network_bytes: Option<f64>,
    memory: Option<f64>,
    throttled: Option<f64>,
    /// Busy, and held; `None` without GPUs.
    gpus: Option<(f64, f64)>,
    /// The use of all its GPUs is known, or it has none.
    knows_gpus: bool,
}

struct Storage {
    /// The share of the time in which it waited, and in phases of which that was the most of it.
    wait: Option<f64>,
    phases: f64,
    /// Per second, from and to it.
    bytes: Option<f64>,
}

impl Storage {
    fn of(job: &Job<'_>) -> Storage {
        let rate = |index: usize| average::per_second(job.record, index, job.now_ns);
        Storage {
            wait: average::waited(job.record, column::PRESSURE_IO, column::DELAY_IO, job.now_ns),
            phases: io_phases(job),
            bytes: rate(column::READ).zip(rate(column::WRITTEN)).map(|(one, other)| one + other),
        }
    }
}

impl Figures {
    fn of(job: &Job<'_>) -> Option<Figures> {
        let record = job.record;
        if (average::wall_ns(record, job.now_ns)? as f64) < SECONDS_MIN * 1e9 {
            return None;
        }
        let rate = |index: usize| average::per_second(record, index, job.now_ns);
        // On one node of several the figures are of a part.
        if !job.is_whole() {
            return None;
        }
        let cores = rate(column::CPU)?;
        let knows_gpus = gpu::all_known(record);
        let waited_for_cpu = rate(column::RUN_QUEUE_WAIT);
        let throttled = rate(column::THROTTLED);
        // A job that its quota stopped was not waiting for others.
        let queue = waited_for_cpu.unwrap_or(0.0) - throttled.unwrap_or(0.0);
        Some(Figures {
            cores,
            of_cores: allocation::usable_cpus(record, job.machine, job.now_ns),
            runnable: cores + queue.max(0.0),
            waited_for_cpu,
            is_serial: is_serial(job, cores),
            storage: Storage::of(job),
            network_bytes: rate(column::NETWORK_RECEIVED)
                .zip(rate(column::NETWORK_SENT))
                .map(|(one, other)| one + other),
            memory: average::waited(record, column::PRESSURE_MEMORY, column::DELAY_MEMORY, job.now_ns),
            throttled,
            gpus: gpu::computing(record).filter(|_| knows_gpus).map(|used| (used, gpu::gpus(record))),
            knows_gpus,
        })
    }

    fn quota_share(&self) -> Option<f64> {
        let throttled = self.throttled?;
        Some(throttled / (throttled + self.cores).max(1e-9))
    }

    /// `None` where what is not known could be the limit.
    fn limit(&self) -> Option<Limit> {
        let is_full = self.of_cores.is_some_and(|of| self.cores >= FULL * of);
        let reads = self.storage.bytes.is_some_and(|bytes| bytes >= STORAGE_BYTES_PER_SECOND);
        // Where the time that tasks waited is not known, bytes and an idle CPU are the evidence.
        let waits = self.storage.wait.map_or(reads && self.runnable < 0.7, |share| share >= SHARE);
        Some(if self.memory.is_some_and(|share| share >= MEMORY_SHARE) {
            Limit::Memory
        } else if self.quota_share().is_some_and(|share| share >= QUOTA_SHARE) {
            Limit::Quota
        } else if self.gpus.is_some_and(|(used, held)| used >= 0.7 * held) {
            Limit::Gpu
        } else if is_full {
            Limit::Cpu
        } else if waits && (self.runnable < 0.9 || self.storage.phases >= MOST) {
            // A burst on many cores hides in the mean that none was busy for most of the time.
            Limit::Io
        } else if !self.knows_gpus {
            // A core that waits for a GPU is busy, too.
            return None;
        } else if self.runnable >= BUSY {
            self.limit_of_cores()
        } else if self.storage.wait.is_none() && self.storage.bytes.is_none() {
            return None;
        } else if self.is_network_busy() {
            Limit::Network
        } else if self.cores < QUIET
            && self.storage.wait.is_none_or(|io| io < QUIET)
            && !reads
            && self.is_gpu_quiet()
        {
            Limit::Waiting
        } else {
            Limit::None
        })
    }

    /// Of a job that computed without filling its cores.
    fn limit_of_cores(&self) -> Limit {
        let is_crowded = self.waited_for_cpu.is_some_and(|wait| wait > 0.5 * self.cores);
        match self.of_cores {
            _ if is_crowded => Limit::Cpu,
            Some(of) if self.is_serial && of >= 1.5 => Limit::OneCore,
            // Two hardware threads may share a core, which one of them fills. Threads that wait beside free cores are bound to some.
            Some(of) if self.runnable < FULL / 2.0 * of && !self.has_queue() => Limit::SomeCores,
            _ => Limit::Cpu,
        }
    }

    /// Bytes while nothing else was busy, as of storage whose waits are not known.
    fn is_network_busy(&self) -> bool {
        self.network_bytes.is_some_and(|bytes| bytes >= NETWORK_BYTES_PER_SECOND)
            && self.runnable < 0.7
            && self.storage.wait.is_none_or(|io| io < QUIET)
            && self.is_gpu_quiet()
    }

    fn has_queue(&self) -> bool {
        self.waited_for_cpu.is_some_and(|wait| wait >= QUEUE)
    }

    fn is_gpu_quiet(&self) -> bool {
        self.gpus.is_none_or(|(used, _)| used < QUIET)
    }

    fn evidence(&self, limit: Limit) -> Vec<String> {
        let percent = |share: f64| units::percent(share);
        let cores = match self.of_cores {
            Some(of) => format!("{} of {} cores busy", units::cores(self.cores), units::cores(of)),
            None => format!("{} cores busy", units::cores(self.cores)),
        };
        let queue = self.waited_for_cpu.filter(|_| self.has_queue());
        let queue = queue.map(|wait| format!("{} threads waiting for a CPU", units::cores(wait)));
        let io = match (self.storage.wait, self.storage.bytes) {
            (Some(share), _) => Some(format!("waited for storage {} of the time", percent(share))),
            (None, Some(bytes)) => Some(format!("{} from and to storage", units::bytes_per_second(bytes))),
            (None, None) => None,
        };
        let gpus = self.gpus.map(|(used, held)| {
            let word = if held == 1.0 { "GPU" } else { "GPUs" };
            format!("{} of {} {word} busy", units::cores(used), units::cores(held))
        });
        let network =
            self.network_bytes.map(|bytes| format!("{} received and sent", units::bytes_per_second(bytes)));
        let memory = self.memory.map(|share| format!("waited for memory {} of the time", percent(share)));
        let quota = self
            .quota_share()
            .map(|share| format!("throttled for {} of the CPU time it could have used", percent(share)));
        let chosen: Vec<Option<String>> = match limit {
            Limit::Memory => vec![memory, Some(cores)],
            Limit::Quota => vec![quota, Some(cores)],
            Limit::Gpu => vec![gpus, Some(cores)],
            // On a crowded machine the queue is the evidence.
            Limit::Cpu if self.waited_for_cpu.is_some_and(|wait| wait > self.cores) => {
                vec![queue, Some(cores)]
            }
            Limit::Cpu | Limit::OneCore | Limit::SomeCores => vec![Some(cores), queue],
            Limit::Io => vec![io, Some(cores)],
            Limit::Network => vec![network, Some(cores), io],
            Limit::Waiting | Limit::None => vec![Some(cores), io, gpus],
        };
        chosen.into_iter().flatten().collect()
    }
}

/// By samples, where there are some; else by the highest rate that was seen.
fn is_serial(job: &Job<'_>, cores: f64) -> bool {
    let peak = job.record.totals.get(column::CORES_PEAK).map(|thousandths| thousandths as f64 / 1e3);
    match job.profile().and_then(|profile| profile.serial_share()) {
        Some(share) => share >= SERIAL_SHARE,
        None => cores < 1.2 && peak.is_none_or(|peak| peak < 1.4),
    }
}

fn io_phases(job: &Job<'_>) -> f64 {
    let phases = job.profile().map(|profile| profile.phases()).unwrap_or_default();
    let all: f64 = phases.iter().map(Phase::seconds).sum();
    let waits = phases.iter().filter(|phase| phase.kind == PhaseKind::IoWait);
    waits.map(Phase::seconds).sum::<f64>() / all.max(1e-9)
}

/// What limited the job. Unknown for one that has not run, or of which too little is known.
pub fn bottleneck(job: &Job<'_>) -> Option<Bottleneck> {
    let figures = Figures::of(job)?;
    let limit = figures.limit()?;
    Some(Bottleneck { limit, evidence: figures.evidence(limit) })
}

#[cfg(test)]
mod tests {
    use met_core::job::GpuUse;

    use super::*;
    use crate::report::Machine;
    use crate::sample;
    use crate::series_tests::{Made, made};

    fn reported(made: &Made, cpus: u32) -> String {
        let job = Job::new(&made.record, Machine { cpus: Some(cpus) }, made.now_ns());
        let found = bottleneck(&job).unwrap();
        format!("{}: {}", found.limit.name(), found.evidence.join("; "))
    }

    #[test]
    fn nothing_is_said_of_a_job_that_ended_at_once() {
        let mut short = made(100).cores(|_| 7.6);
        let millisecond_ns = 1_000_000;
        short.record.totals.set(column::WALL, millisecond_ns, met_core::job::QualityKind::Measured, "clock");
        short.record.end_ns = short.record.start_ns.map(|start_ns| start_ns + millisecond_ns);
        assert!(bottleneck(&Job::new(&short.record, Machine { cpus: Some(8) }, short.now_ns())).is_none());
    }

    #[test]
    fn each_limit_has_its_evidence() {
        assert_eq!(reported(&made(100).cores(|_| 7.6), 8), "cpu: 7.60 of 8 cores busy");
        assert_eq!(reported(&made(100).cores(|_| 0.99), 8), "one_core: 0.99 of 8 cores busy");
        let io = made(100).cores(|_| 0.2).rate(column::PRESSURE_IO, |_| 0.7);
        assert_eq!(reported(&io, 8), "io: waited for storage 70% of the time; 0.20 of 8 cores busy");
        let sleeps = made(100).cores(|_| 0.01).rate(column::PRESSURE_IO, |_| 0.0);
        assert_eq!(reported(&sleeps, 8), "waiting: 0.01 of 8 cores busy; waited for storage 0% of the time");
        let swap = made(100).cores(|_| 0.5).rate(column::PRESSURE_MEMORY, |_| 0.5);
        assert_eq!(reported(&swap, 8), "memory: waited for memory 50% of the time; 0.50 of 8 cores busy");
        let quota = made(100).cores(|_| 0.5).rate(column::THROTTLED, |_| 0.5);
        let words = "quota: throttled for 50% of the CPU time it could have used; 0.50 of 8 cores busy";
        assert_eq!(reported(&quota, 8), words);
    }

    #[test]
    fn a_job_that_leaves_most_of_its_cores_free_is_limited_by_its_threads() {
        let limit = |made: &Made| {
            let job = Job::new(&made.record, Machine { cpus: Some(32) }, made.now_ns());
            bottleneck(&job).unwrap().limit
        };
        let eight = made(100).cores(|_| 8.0);
        assert_eq!(limit(&eight), Limit::SomeCores);
        assert_eq!(reported(&eight, 32), "cpu: 8 of 32 cores busy", "the word for programs");
        assert_eq!(limit(&made(100).cores(|_| 16.0)), Limit::Cpu, "half of 32 may be 16 cores, all full");
        let crowded = made(100).cores(|_| 4.0).rate(column::RUN_QUEUE_WAIT, |_| 4.0);
        assert_eq!(limit(&crowded), Limit::Cpu, "more threads would wait, too");
        let pinned = made(100).cores(|_| 8.0).rate(column::RUN_QUEUE_WAIT, |_| 3.0);
        assert_eq!(limit(&pinned), Limit::Cpu, "bound to some of the cores");
    }

    #[test]
    fn what_is_not_known_may_be_what_it_waits_for() {
        let limit = |made: &Made| {
            let job = Job::new(&made.record, Machine { cpus: Some(8) }, made.now_ns());
            bottleneck(&job).map(|found| found.limit)
        };
        assert_eq!(limit(&made(100).cores(|_| 0.01)), None, "nothing is known of its storage");
        let mut quiet = made(100).cores(|_| 0.01).rate(column::PRESSURE_IO, |_| 0.0);
        assert_eq!(limit(&quiet), Some(Limit::Waiting));
        quiet.record.allocated.gpus = Some(1);
        assert_eq!(limit(&quiet), None, "nothing is known of its GPU");
        quiet.record.gpus = vec![GpuUse { utilization: Some(0.0), ..sample::gpu() }];
        assert_eq!(limit(&quiet), Some(Limit::Waiting));
        let mut spins = made(100).cores(|_| 1.0).rate(column::PRESSURE_IO, |_| 0.0);
        assert_eq!(limit(&spins), Some(Limit::OneCore));
        let busy = GpuUse { utilization: Some(1.0), ..sample::gpu() };
        spins.record.gpus = vec![busy, GpuUse { utilization: None, ..sample::gpu() }];
        assert_eq!(limit(&spins), None, "one of two GPUs is not known");
    }

    #[test]
    fn all_cores_are_full_from_nine_tenths_on() {
        let limit = |cores: f64| {
            let mut made = made(100).cores(move |_| cores);
            made.record.allocated.gpus = Some(1);
            let job = Job::new(&made.record, Machine { cpus: Some(8) }, made.now_ns());
            bottleneck(&job).map(|found| found.limit)
        };
        assert_eq!(limit(7.3), Some(Limit::Cpu));
        assert_eq!(limit(7.1), None, "its GPU was not read, and it may have waited for it");
    }

    #[test]
    fn the_network_is_named_where_the_job_has_counters_of_its_own() {
        let transfers = |bytes: f64, cores: f64| {
            let made = made(100).cores(move |_| cores).rate(column::PRESSURE_IO, |_| 0.01);
            made.rate(column::NETWORK_RECEIVED, move |_| bytes).rate(column::NETWORK_SENT, |_| 0.0)
        };
        let words = "network: 95.4 MiB/s received and sent; 0.10 of 8 cores busy; waited for storage 1.0% of the time";
        assert_eq!(reported(&transfers(1e8, 0.1), 8), words);
        assert!(
            reported(&transfers(1e6, 0.1), 8).starts_with("waiting: "),
            "a little traffic limits nothing"
        );
        assert!(reported(&transfers(1e8, 0.95), 8).starts_with("one_core: "), "a core was busy with it");
        let mut shared = transfers(1e8, 0.1);
        shared.record.totals.remove(column::NETWORK_RECEIVED);
        assert!(reported(&shared, 8).starts_with("waiting: "), "without a network of its own");
        let stored = transfers(1e8, 0.1).rate(column::PRESSURE_IO, |_| 0.5);
        assert!(reported(&stored, 8).starts_with("io: "), "it waited for storage");
    }

    #[test]
    fn a_crowded_machine_is_no_reason_to_blame_the_program() {
        let crowded = made(100).cores(|_| 0.5).rate(column::RUN_QUEUE_WAIT, |_| 0.5);
        assert_eq!(reported(&crowded, 2), "cpu: 0.50 of 2 cores busy; 0.50 threads waiting for a CPU");
    }

    #[test]
    fn bytes_are_evidence_only_where_waiting_is_not_known() {
        let reads = |made: Made| made.rate(column::READ, |_| 1e8).rate(column::WRITTEN, |_| 0.0);
        let unknown = reads(made(100).cores(|_| 0.3));
        assert_eq!(reported(&unknown, 8), "io: 95.4 MiB/s from and to storage; 0.30 of 8 cores busy");
        let fast = reads(made(100).cores(|_| 0.3).rate(column::PRESSURE_IO, |_| 0.01));
        assert!(reported(&fast, 8).starts_with("none: "), "{}", reported(&fast, 8));
    }

    #[test]
    fn one_node_of_several_says_nothing_of_the_job() {
        let mut made = made(100).cores(|_| 1.0);
        made.record.allocated.nodes = Some(2);
        made.record.allocated.cpus = Some(8);
        // The manager's own account is of all nodes; what was measured is not.
        made.record.scheduling.cpu_ns = Some(800_000_000_000);
        let job = Job::new(&made.record, Machine::default(), made.now_ns());
        assert_eq!(bottleneck(&job), None);
    }
}
