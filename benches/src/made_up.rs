//! A made-up site: jobs of every kind with the figures that real ones have, and their series. The same number gives
//! the same job.

use met_core::gpu::device;
use met_core::job::{
    Emission, GpuUse, JobKey, LOCAL, Part, QualityKind, Record, Resources, Scheduling, State, Summary, Totals,
};
use met_core::job_processes::JobProcess;
use met_core::job_table as column;
use met_core::node_health::{FailingSource, NodeHealth, Spool};
use met_core::series::Series;
use met_core::{JOB, MISSING};
use met_query::protocol::NodeStatus;
use met_sources::{node, rapl};

const SECOND_NS: i64 = 1_000_000_000;
const GIB: i64 = 1 << 30;
const USERS: [&str; 7] = ["ada", "bob", "chen", "dmitri", "elena", "farid", "grace"];
const NAMES: [&str; 10] = [
    "train-resnet",
    "preprocess",
    "md-water-512",
    "blast-nr",
    "notebook",
    "eval-llm-7b",
    "cfd-wing",
    "sweep",
    "render",
    "compile",
];
const FIRST_ID: u32 = 900_000;

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() * most as f64) as usize
    }
}

/// The job of this number, the newest first.
pub fn job(number: u32, now_ns: i64) -> Record {
    let mut dice = Dice::new(u64::from(number) + 1);
    let is_live = number < 12;
    let seconds = if is_live { 600.0 + dice.next() * 40_000.0 } else { 10f64.powf(0.3 + dice.next() * 4.5) };
    let age_s = if is_live { seconds as i64 } else { 60 + i64::from(number) * 97 + seconds as i64 };
    let start_ns = now_ns - age_s * SECOND_NS;
    let is_slurm = number % 5 != 3;
    let (manager, id) = match is_slurm {
        true => ("slurm", FIRST_ID - number),
        false => (LOCAL, 5_000_000 - number),
    };
    let key = JobKey {
        cluster: None,
        manager: manager.to_owned(),
        id: id.to_string(),
        incarnation: start_ns / SECOND_NS,
    };
    let mut record = Record::new(key, NAMES[dice.below(NAMES.len())], state(number, &mut dice));
    record.user = Some(USERS[dice.below(USERS.len())].to_owned());
    record.account = is_slurm.then(|| ["physics", "ml", "bio"][dice.below(3)].to_owned());
    record.command =
        ["python3", "train.py", "--epochs", "30", "--data", "/scratch/set a"].map(str::to_owned).into();
    record.node_memory_bytes = Some(512 * GIB);
    if number == 8 || number == 9 {
        (record.state, record.scheduling.submit_ns) = (State::Pending, Some(now_ns - 4_000 * SECOND_NS));
        record.scheduling.partition = Some("batch".to_owned());
        record.requested = Resources { cpus: Some(64), nodes: Some(2), ..Resources::default() };
        return record;
    }
    record.start_ns = Some(start_ns);
    record.end_ns = (!record.state.is_live()).then(|| start_ns + (seconds * 1e9) as i64);
    match record.state {
        State::Failed if number.is_multiple_of(2) => record.signal = Some(11),
        State::Failed => record.exit_code = Some(1),
        State::OutOfMemory => record.signal = Some(9),
        State::Finished => record.exit_code = Some(0),
        _ => {}
    }
    resources(&mut record, number, is_slurm, &mut dice);
    figures(&mut record, seconds, &mut dice);
    record
}

fn state(number: u32, dice: &mut Dice) -> State {
    if number < 12 {
        return State::Running;
    }
    match dice.below(20) {
        0 | 1 => State::Failed,
        2 => State::Timeout,
        3 => State::OutOfMemory,
        4 => State::Cancelled,
        _ => State::Finished,
    }
}

fn resources(record: &mut Record, number: u32, is_slurm: bool, dice: &mut Dice) {
    let nodes = if is_slurm && number.is_multiple_of(11) { 4 } else { 1 };
    let first = 1 + dice.below(90);
    record.nodes = (first..first + nodes).map(|node| format!("n{node}")).collect();
    if number.is_multiple_of(3) || number == 1 {
        let count = if is_slurm { 4 } else { 1 };
        record.gpus = (0..count).map(|index| gpu(number, index, dice)).collect();
    }
    if !is_slurm {
        return;
    }
    let cpus = [1, 4, 8, 16, 32, 64][dice.below(6)] * nodes as i64;
    record.requested = Resources {
        cpus: Some(cpus),
        memory_bytes: Some(cpus * 4 * GIB),
        nodes: Some(nodes as i64),
        gpus: Some(record.gpus.len() as i64).filter(|&gpus| gpus > 0),
        time_limit_ns: Some(24 * 3600 * SECOND_NS),
        ..Resources::default()
    };
    record.allocated = record.requested.clone();
    record.scheduling = Scheduling {
        partition: Some(if record.gpus.is_empty() { "batch" } else { "gpu" }.to_owned()),
        qos: Some("normal".to_owned()),
        submit_ns: record.start_ns.map(|start_ns| start_ns - 754 * SECOND_NS),
        ..Scheduling::default()
    };
}

fn gpu(number: u32, index: u32, dice: &mut Dice) -> GpuUse {
    let is_idle = number == 3 || index == 3 && number.is_multiple_of(2);
    let use_ = if is_idle { 0.0 } else { 0.3 + 0.65 * dice.next() };
    GpuUse {
        uuid: format!("GPU-{number}-{index}"),
        index: index.to_string(),
        name: "NVIDIA H200".to_owned(),
        vendor: "nvidia".to_owned(),
        held_by: "SLURM_JOB_GPUS".to_owned().into(),
        idle_since_ns: is_idle.then(|| met_host::clock::realtime_ns() - 5_400 * SECOND_NS),
        held_ns: 3_600 * SECOND_NS,
        used_ns: (use_ * 3.6e12) as i64,
        paid_ns: 3_600 * SECOND_NS,
        utilization: Some(use_),
        gpu_utilization: Some(use_),
        memory_mean_bytes: Some(use_ * 120e9),
        memory_peak_bytes: Some((use_ * 130e9) as i64),
        memory_total_bytes: Some(150_754_820_096),
        energy_active_uj: (use_ * 1.8e12) as i64,
        energy_idle_uj: 252_000_000_000,
        energy_kind: Some(QualityKind::Attributed),
        gpu_power_mw: Some(120_000.0 + use_ * 520_000.0),
        temperature_max_mc: Some(41_000 + (use_ * 30_000.0) as i64),
        clock_mean_mhz: Some(1_755.0),
        processes: 1,
        ..GpuUse::default()
    }
}

fn figures(record: &mut Record, seconds: f64, dice: &mut Dice) {
    let cpus = record.allocated.cpus.unwrap_or(8) as f64;
    let cores = cpus * (0.03 + 0.95 * dice.next());
    let peak = (cpus * 4.0 * GIB as f64 * (0.1 + 0.85 * dice.next())) as i64;
    let watts = 20.0 + cores * 6.0 + record.gpus.len() as f64 * 400.0;
    let cpu_ns = (cores * seconds * 1e9) as i64;
    let read = (seconds * 3.1e6 * dice.next()) as i64;
    let measured = [
        (column::WALL, (seconds * 1e9) as i64),
        (column::CPU, cpu_ns),
        (column::CPU_USER, cpu_ns * 9 / 10),
        (column::CPU_SYSTEM, cpu_ns / 10),
        (column::READ, read),
        (column::WRITTEN, read / 3),
        (column::READ_CALL, read * 4),
        (column::WRITE_CALL, read / 2),
        (column::READ_CALLS, read / 40_000),
        (column::WRITE_CALLS, read / 90_000),
        (column::PAGE_FAULTS_MINOR, read / 4096),
        (column::PAGE_FAULTS_MAJOR, 312),
        (column::SWITCHES_VOLUNTARY, 45_210),
        (column::SWITCHES_INVOLUNTARY, 12_004),
        (column::RUN_QUEUE_WAIT, cpu_ns / 90),
        (column::PROCESSES, 23),
        (column::PRESSURE_CPU, cpu_ns / 300),
        (column::PRESSURE_IO, cpu_ns / 150),
        (column::OOM_KILLS, i64::from(record.state == State::OutOfMemory)),
    ];
    for (index, value) in measured {
        record.totals.set(index, value, QualityKind::Measured, "cgroup");
    }
    let sampled = [
        (column::CORES_PEAK, (cores * 1200.0) as i64),
        (column::MEMORY_NEEDED_PEAK, peak),
        (column::MEMORY_PEAK, peak * 5 / 4),
        (column::PROCESSES_PEAK, 9),
        (column::THREADS_PEAK, 41),
    ];
    for (index, value) in sampled {
        record.totals.set(index, value, QualityKind::Sampled, "cgroup");
    }
    charged(record, watts * seconds, peak);
    parts(record, cpu_ns, peak);
}

/// Energy and emissions, and the memory that it needed on average.
fn charged(record: &mut Record, joules: f64, peak: i64) {
    for (index, share) in [
        (column::ENERGY, 1.0),
        (column::ENERGY_CPU, 0.3),
        (column::ENERGY_IDLE, 0.2),
        (column::GPU_ENERGY, 0.6),
    ] {
        if index != column::GPU_ENERGY || !record.gpus.is_empty() {
            record.totals.set(
                index,
                (joules * share * 1e6) as i64,
                QualityKind::Attributed,
                "RAPL, by CPU time",
            );
        }
    }
    record.totals.set(
        column::EMISSIONS,
        (joules / 3.6e6 * 34.0 * 1e6) as i64,
        QualityKind::Estimated,
        "rte eco2mix",
    );
    let factor_source = "rte eco2mix".to_owned();
    record.emission = Some(Emission {
        factor_mg_per_kwh: 34_000,
        factor_source,
        factor_time_ns: None,
        pue_millionths: Some(1_200_000),
    });
    let mean = peak as f64 * 0.8;
    let summary = Summary { mean, min: 0.0, max: mean * 1.25, p50: Some(mean), p95: Some(mean * 1.2) };
    record.summaries.set(column::MEMORY_NEEDED, summary);
}

fn parts(record: &mut Record, cpu_ns: i64, peak: i64) {
    let count = record.nodes.len() as i64;
    let part = |node: &str, step: &str, cpu_ns: i64| {
        let mut totals = Totals::default();
        totals.set(column::CPU, cpu_ns, QualityKind::Measured, "cgroup");
        totals.set(column::MEMORY_PEAK, peak / count, QualityKind::Measured, "cgroup");
        Part {
            node: node.to_owned(),
            step: step.to_owned(),
            start_ns: record.start_ns,
            end_ns: record.end_ns,
            exit_code: record.exit_code,
            totals,
            ..Part::default()
        }
    };
    let mut parts = Vec::new();
    for (index, node) in record.nodes.iter().enumerate() {
        let lag = if index == 2 { 4 } else { 1 };
        parts.push(part(node, "", cpu_ns / count / lag));
        if record.key.manager != LOCAL {
            parts.push(part(node, "0", cpu_ns / count / lag * 9 / 10));
        }
    }
    record.parts = if record.key.manager == LOCAL && count == 1 { Vec::new() } else { parts };
    if !record.state.is_live() {
        let process = |index: i64| JobProcess {
            pid: 3_100 + index as u32,
            command: "python3".to_owned(),
            command_line: ["python3", "train.py", "--rank"]
                .map(str::to_owned)
                .into_iter()
                .chain([index.to_string()])
                .collect(),
            start_ns: record.start_ns,
            end_ns: record.end_ns,
            cpu_ns: Some(cpu_ns / (index + 2)),
            memory_peak_bytes: Some(peak / (index + 2)),
            read_bytes: Some(peak / 9),
            written_bytes: Some(peak / 70),
            ..JobProcess::default()
        };
        record.processes = (0..6).map(process).collect();
    }
}

/// A walk between 0 and 1 that stays near a level for a while.
fn walk(dice: &mut Dice, now: f64, towards: f64) -> f64 {
    (now + (towards - now) * 0.15 + (dice.next() - 0.5) * 0.12).clamp(0.0, 1.0)
}

fn times(record: &Record, now_ns: i64, samples: i64) -> impl Iterator<Item = i64> {
    let begin_ms = record.start_ns.unwrap_or(now_ns) / 1_000_000;
    let end_ms = record.end_ns.unwrap_or(now_ns) / 1_000_000;
    (0..=samples).map(move |index| begin_ms + (end_ms - begin_ms) * index / samples)
}

/// The samples of a job, with a pause without readings.
pub fn series(record: &Record, now_ns: i64, samples: i64) -> Series {
    let mut dice = Dice::new(record.key.id.len() as u64 + record.key.incarnation as u64);
    let (mut series, mut level, mut before_ms) = (Series::new(&JOB), 0.2, 0);
    let mut sums = [0_f64; 6];
    let peak = record.totals.get(column::MEMORY_NEEDED_PEAK).unwrap_or(0) as f64;
    let cpus = record.totals.get(column::CORES_PEAK).unwrap_or(1000) as f64 / 1000.0;
    for (index, time_ms) in times(record, now_ns, samples).enumerate() {
        let phase = (index as f64 / samples as f64 * 7.0).sin().abs();
        level = walk(&mut dice, level, phase);
        let seconds = if before_ms == 0 { 0.0 } else { (time_ms - before_ms) as f64 / 1e3 };
        before_ms = time_ms;
        let rates = [
            level * cpus * 0.92e9,
            level * cpus * 0.08e9,
            level * 40e6 * dice.next(),
            9e6 * dice.next(),
            (60.0 + level * 300.0) * 1e6,
            level * 0.08e9,
        ];
        sums.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate * seconds);
        if (index as i64) > samples * 55 / 100 && (index as i64) < samples * 62 / 100 {
            continue;
        }
        let mut cells = vec![MISSING; JOB.columns.len()];
        let [user, system, read, written, energy, pressure] = sums.map(|sum| sum as i64);
        (cells[column::CPU], cells[column::CPU_USER], cells[column::CPU_SYSTEM]) =
            (user + system, user, system);
        (cells[column::READ], cells[column::WRITTEN], cells[column::ENERGY]) = (read, written, energy);
        (cells[column::PRESSURE_CPU], cells[column::PRESSURE_IO]) = (pressure, pressure / 3);
        cells[column::MEMORY_NEEDED] =
            (peak * (0.3 + 0.7 * (index as f64 / samples as f64).sqrt()) * (0.95 + 0.05 * level)) as i64;
        cells[column::MEMORY_CACHE] = (peak * 0.25 * level) as i64;
        if !record.gpus.is_empty() {
            let gpus = record.gpus.len() as f64;
            cells[column::GPU_UTILIZATION] = (level * gpus * 900.0) as i64;
            cells[column::GPU_MEMORY] = (gpus * 80e9 * (0.6 + 0.4 * phase)) as i64;
            cells[column::GPU_POWER] = ((120.0 + 500.0 * level) * gpus * 1e3) as i64;
        }
        series.push(time_ms, &cells);
    }
    series
}

pub fn gpu_samples(record: &Record, index: &str, now_ns: i64, samples: i64) -> Series {
    let mut dice =
        Dice::new(record.key.incarnation as u64 + index.len() as u64 * 7 + u64::from(index.as_bytes()[0]));
    let (mut series, mut level) = (Series::new(&device::TABLE), 0.5);
    for (number, time_ms) in times(record, now_ns, samples).enumerate() {
        level = walk(
            &mut dice,
            level,
            if index == "3" { 0.02 } else { 0.75 + 0.2 * (number as f64 / 30.0).sin() },
        );
        let mut cells = vec![MISSING; device::TABLE.columns.len()];
        cells[device::UTILIZATION] = (level * 1000.0) as i64;
        cells[device::MEMORY_USED] = (30e9 + level * 100e9) as i64;
        cells[device::POWER] = (120_000.0 + level * 520_000.0) as i64;
        cells[device::TEMPERATURE] = (38_000.0 + level * 32_000.0) as i64;
        series.push(time_ms, &cells);
    }
    series
}

/// The last two hours of a machine, by the name of its part.
pub fn machine(now_ns: i64) -> Vec<(String, Series)> {
    let now_ms = now_ns / 1_000_000;
    let (mut dice, mut level) = (Dice::new(7), 0.4);
    let (mut whole, mut meter) = (Series::new(&node::TABLE), Series::new(&rapl::TABLE));
    let (mut busy_ns, mut energy_uj) = (0_f64, 0_f64);
    for index in 0..720 {
        level = walk(&mut dice, level, 0.5 + 0.4 * (f64::from(index) / 90.0).sin());
        busy_ns += level * 128.0 * 10e9;
        energy_uj += (180.0 + level * 420.0) * 10e6;
        let time_ms = now_ms - 7_200_000 + i64::from(index) * 10_000;
        let mut cells = vec![MISSING; node::TABLE.columns.len()];
        (cells[node::CPU_USER], cells[node::CPU_SYSTEM]) = (busy_ns as i64, (busy_ns * 0.06) as i64);
        (cells[node::CPU_NICE], cells[node::CPU_INTERRUPT], cells[node::CPU_SOFT_INTERRUPT]) = (0, 0, 0);
        (cells[node::MEMORY_TOTAL], cells[node::MEMORY_AVAILABLE]) =
            (512 * GIB, ((1.0 - 0.7 * level) * 512.0) as i64 * GIB);
        cells[node::LOAD_1] = (level * 131_000.0) as i64;
        whole.push(time_ms, &cells);
        let mut cells = vec![MISSING; rapl::TABLE.columns.len()];
        cells[rapl::ENERGY] = energy_uj as i64;
        meter.push(time_ms, &cells);
    }
    vec![(String::new(), whole), ("package-0".to_owned(), meter)]
}

pub fn nodes(now_ns: i64, count: i64) -> Vec<NodeStatus> {
    let failing = || FailingSource {
        problem: "reading fails: /sys/class/powercap/intel-rapl:0/energy_uj: Input/output error".to_owned(),
        since_ns: Some(now_ns - 750 * SECOND_NS),
        ..FailingSource::of("rapl")
    };
    let node = |number: i64| NodeStatus {
        name: format!("n{number}"),
        jobs: ((number * 7) % 5).max(0) as usize,
        late: number == 17 || number == 52,
        seen_ns: Some(now_ns - if number == 17 { 7_400 * SECOND_NS } else { (number % 20) * SECOND_NS }),
        version: Some("0.1.0".to_owned()),
        cpus: Some(128),
        memory_bytes: Some(512 * GIB),
        clock_offset_ns: Some(if number == 31 { 4 * SECOND_NS } else { 1_200_000 * number }),
        dropped_samples: if number == 52 { 1_204 } else { 0 },
        problem: (number == 60).then(|| "two machines send under this name".to_owned()),
        health: NodeHealth {
            gpus: Some(4),
            failing_sources: (number == 44).then(failing).into_iter().collect(),
        },
        now: Default::default(),
        spool: Some(match number {
            44 => Spool { batches: 61, bytes: 3_400_000 },
            _ => Spool::default(),
        }),
        free: Default::default(),
    };
    (1..=count).map(node).collect()
}
