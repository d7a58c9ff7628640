//! Made-up jobs that the tests of the views share.

use crate::job::{
    Emission, JobKey, LOCAL, LeftOver, Local, Origin, Part, ProcessId, QualityKind, Record, Resources,
    Scheduling, State, Summary, Totals,
};
use crate::job_table as column;
use crate::series::Series;
use crate::{JOB, MISSING};

/// 2026-01-14 16:40:44 UTC.
pub const START_NS: i64 = 1_768_408_844_000_000_000;
pub const SECOND_NS: i64 = 1_000_000_000;
pub const NOW_NS: i64 = START_NS + 3_600 * SECOND_NS;

/// A job that has just begun and has no figures.
pub fn bare(id: u32, name: &str) -> Record {
    Record {
        user: Some("alice".to_owned()),
        uid: Some(1000),
        command: vec![name.to_owned()],
        start_ns: Some(NOW_NS - 68 * SECOND_NS),
        nodes: vec!["n1".to_owned()],
        node_memory_bytes: Some(16 << 30),
        local: Some(Local {
            main: Some(ProcessId { pid: 3113, start_ticks: 7 }),
            ..Local::new("b", Origin::Run, "/home/alice")
        }),
        ..Record::new(
            JobKey {
                cluster: None,
                manager: LOCAL.to_owned(),
                id: id.to_string(),
                incarnation: START_NS / SECOND_NS,
            },
            name,
            State::Running,
        )
    }
}

/// A job that ran for 68.25 s and has all figures.
pub fn full(id: u32, name: &str) -> Record {
    let mut record = bare(id, name);
    record.command =
        ["python3", "train.py", "--epochs", "3", "--label", "first try"].map(str::to_owned).into();
    record.state = State::Finished;
    record.exit_code = Some(0);
    record.start_ns = Some(START_NS);
    record.end_ns = Some(START_NS + 68_250_000_000);
    let measured = [
        (column::WALL, 68_250_000_000),
        (column::CPU, 256_900_000_000),
        (column::CPU_USER, 243_800_000_000),
        (column::CPU_SYSTEM, 13_100_000_000),
        (column::READ, 3_456_789_012),
        (column::WRITTEN, 734_003_200),
        (column::READ_CALL, 9_876_543_210),
        (column::WRITE_CALL, 812_646_400),
        (column::READ_CALLS, 1_204_117),
        (column::WRITE_CALLS, 98_123),
        (column::PAGE_FAULTS_MINOR, 2_345_678),
        (column::PAGE_FAULTS_MAJOR, 312),
        (column::SWITCHES_VOLUNTARY, 45_210),
        (column::SWITCHES_INVOLUNTARY, 12_004),
        (column::RUN_QUEUE_WAIT, 4_180_000_000),
        (column::PROCESSES, 23),
        (column::PRESSURE_CPU, 6_900_000_000),
        (column::PRESSURE_MEMORY, 0),
        (column::PRESSURE_IO, 9_420_000_000),
        (column::PRESSURE_MEMORY_FULL, 0),
        (column::PRESSURE_IO_FULL, 2_110_000_000),
        (column::OOM_KILLS, 0),
    ];
    for (index, value) in measured {
        record.totals.set(index, value, QualityKind::Measured, "cgroup");
    }
    let sampled = [
        (column::CORES_PEAK, 7_912),
        (column::MEMORY_NEEDED_PEAK, 1_299_227_608),
        (column::MEMORY_PEAK, 5_046_586_572),
        (column::PROCESSES_PEAK, 9),
        (column::THREADS_PEAK, 41),
    ];
    for (index, value) in sampled {
        record.totals.set(index, value, QualityKind::Sampled, "cgroup");
    }
    for (index, mean) in [(column::MEMORY_NEEDED, 1.01e9), (column::MEMORY_CACHE, 2.9e9)] {
        let summary = Summary { mean, min: 0.0, max: mean * 1.3, p50: Some(mean), p95: Some(mean * 1.2) };
        record.summaries.set(index, summary);
    }
    record
}

/// Element 7 of a Slurm array, with a batch step and one of two tasks.
pub fn scheduled() -> Record {
    let mut record = full(1240, "train");
    record.key.manager = "slurm".to_owned();
    record.key.cluster = Some("tux".to_owned());
    record.account = Some("physics".to_owned());
    (record.state, record.exit_code) = (State::Timeout, None);
    record.manager_state = Some("TIMEOUT".to_owned());
    record.requested = Resources {
        cpus: Some(4),
        memory_bytes: Some(4 << 30),
        gpus: Some(1),
        time_limit_ns: Some(60 * SECOND_NS),
        ..Resources::default()
    };
    record.allocated = Resources { nodes: Some(1), cpus: Some(6), ..record.requested.clone() };
    record.scheduling = Scheduling {
        alias: Some("1234_7".to_owned()),
        array_id: Some("1234".to_owned()),
        array_index: Some(7),
        restarts: Some(1),
        partition: Some("batch".to_owned()),
        qos: Some("normal".to_owned()),
        reason: Some("TimeLimit".to_owned()),
        submit_ns: Some(START_NS - 5430 * SECOND_NS),
        ..Scheduling::default()
    };
    let part = |step: &str, task: Option<&str>, cpu_ns: i64, exit_code: Option<i32>| {
        let mut totals = Totals::default();
        totals.set(column::CPU, cpu_ns, QualityKind::Measured, "cgroup");
        totals.set(column::MEMORY_PEAK, cpu_ns / 200, QualityKind::Measured, "cgroup");
        Part {
            node: "n1".to_owned(),
            step: step.to_owned(),
            task: task.map(str::to_owned),
            name: (step == "0").then(|| "solve\x1b[2J".to_owned()),
            start_ns: Some(START_NS),
            end_ns: exit_code.map(|_| START_NS + 61 * SECOND_NS),
            exit_code,
            folded: None,
            totals,
        }
    };
    record.parts = vec![
        part("0", Some("0"), 120_000_000_000, Some(0)),
        part("0", Some("1"), 131_500_000_000, Some(143)),
        part("batch", None, 5_400_000_000, None),
        part("0", None, 251_500_000_000, Some(143)),
    ];
    record
}

/// Jobs of every kind that a list may hold.
/// A job that was charged energy, by a meter or by an estimate.
pub fn charged(id: u32, kind: QualityKind) -> Record {
    let mut record = full(id, "train");
    let source = "RAPL, by CPU time";
    for (index, joules) in [
        (column::ENERGY, 9000),
        (column::ENERGY_CPU, 7200),
        (column::ENERGY_MEMORY, 1080),
        (column::ENERGY_REST, 720),
        (column::ENERGY_IDLE, 1800),
    ] {
        record.totals.set(index, joules * 1_000_000, kind, source);
    }
    record.totals.set(column::EMISSIONS, 85_000, kind, "rte eco2mix");
    record.totals.set(column::COST, 525_000, kind, "EUR at 0.21 per kWh");
    record.emission = Some(Emission {
        factor_mg_per_kwh: 34_000,
        factor_source: "rte eco2mix".to_owned(),
        factor_time_ns: Some(START_NS),
        pue_millionths: None,
    });
    record
}

pub fn several() -> Vec<Record> {
    let mut running = bare(41, "some_job");
    running.totals.set(column::CPU, 255_958_800_000, QualityKind::Measured, "proc");
    running.summaries.set(
        column::MEMORY_NEEDED,
        Summary { mean: 1.7e6, min: 1e6, max: 2e6, p50: Some(1.7e6), p95: Some(2e6) },
    );
    let mut failed = full(43, "convert-the-whole-archive-to-parquet-2026");
    failed.state = State::Failed;
    failed.exit_code = Some(3);
    let mut killed = full(44, "evil\n\x1b[2J\u{202e}name");
    killed.state = State::OutOfMemory;
    killed.exit_code = None;
    killed.signal = Some(9);
    killed.end_ns = Some(START_NS + 350_000_000);
    killed.totals.set(column::WALL, 350_000_000, QualityKind::Measured, "clock");
    let mut lost = bare(45, "größe 大きい");
    lost.state = State::Lost;
    vec![running, full(42, "train"), failed, killed, lost]
}

/// A job that left processes behind, with few certain figures.
pub fn uncertain() -> Record {
    let mut record = full(7, "server");
    record.state = State::Failed;
    record.exit_code = None;
    record.signal = Some(11);
    for index in [column::CPU, column::CPU_USER, column::CPU_SYSTEM] {
        let value = record.totals.get(index).unwrap();
        record.totals.set(index, value, QualityKind::LowerBound, "proc");
    }
    let value = record.totals.get(column::MEMORY_NEEDED_PEAK).unwrap();
    record.totals.set(column::MEMORY_NEEDED_PEAK, value, QualityKind::Estimated, "proc");
    for index in [column::PRESSURE_CPU, column::PRESSURE_MEMORY, column::PRESSURE_IO, column::READ_CALLS] {
        record.totals.remove(index);
    }
    let local = record.local.as_mut().unwrap();
    local.left_over = vec![
        LeftOver { pid: 3120, name: "redis-server".to_owned() },
        LeftOver { pid: 3121, name: "tail\x1b[31m".to_owned() },
    ];
    record
}

/// Ten minutes, one sample a second, with a pause of two minutes in the middle.
pub fn series() -> Series {
    let mut series = Series::new(&JOB);
    let (mut cpu_ns, mut read_bytes, mut written_bytes) = (0.0, 0.0, 0.0);
    for second in 0..600i64 {
        let phase = second as f64 / 600.0;
        cpu_ns += (4.0 + 3.5 * (phase * 18.0).sin()) * 1e9;
        read_bytes += if second < 120 { 180e6 } else { 2e5 };
        written_bytes += if second % 150 > 135 { 90e6 } else { 0.0 };
        if (240..360).contains(&second) {
            continue;
        }
        let mut cells = vec![MISSING; JOB.columns.len()];
        cells[column::CPU] = cpu_ns as i64;
        cells[column::READ] = read_bytes as i64;
        cells[column::WRITTEN] = written_bytes as i64;
        cells[column::MEMORY_NEEDED] = (phase.sqrt() * 6e9) as i64;
        series.push(START_NS / 1_000_000 + second * 1000, &cells);
    }
    series
}
