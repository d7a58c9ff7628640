//! A made-up job that the tests share.

use met_core::job::{
    JobKey, LOCAL, Part, QualityKind, Record, Resources, Scheduling, State, Summaries, Summary, Totals,
};
use met_core::job_table as column;

/// 2026-01-14 16:40:44.5 UTC.
pub const START_NS: i64 = 1_768_408_844_500_000_000;
pub const NOW_NS: i64 = START_NS + 10_000_000_000;

/// Ran for four seconds and used five of CPU.
pub fn finished() -> Record {
    let mut totals = Totals::default();
    totals.set(column::WALL, 4_000_000_000, QualityKind::Measured, "supervisor");
    totals.set(column::CPU, 5_000_000_000, QualityKind::Measured, "rusage");
    totals.set(column::CPU_USER, 3_750_000_000, QualityKind::Measured, "rusage");
    totals.set(column::CORES_PEAK, 1_875, QualityKind::Sampled, "proc");
    totals.set(column::MEMORY_NEEDED_PEAK, 3 << 20, QualityKind::Estimated, "proc");
    totals.set(column::READ, 4096, QualityKind::LowerBound, "proc");
    totals.set(column::PROCESSES, 3, QualityKind::Measured, "proc");
    let mut summaries = Summaries::default();
    let mean = f64::from(1 << 21);
    let summary = Summary { mean, min: 0.0, max: mean, p50: Some(mean), p95: Some(mean) };
    summaries.set(column::MEMORY_NEEDED, summary);
    Record {
        user: Some("alice".to_owned()),
        uid: Some(1000),
        command: vec!["sh".to_owned(), "-c".to_owned(), "echo \"a b\"".to_owned()],
        exit_code: Some(0),
        start_ns: Some(START_NS),
        end_ns: Some(START_NS + 4_000_000_000),
        nodes: vec!["n1".to_owned()],
        node_memory_bytes: Some(1 << 30),
        totals,
        summaries,
        ..Record::new(
            JobKey { cluster: None, manager: LOCAL.to_owned(), id: "42".to_owned(), incarnation: 7 },
            "sum",
            State::Finished,
        )
    }
}

/// The same as element 7 of a Slurm array, with a batch step and one of two tasks.
pub fn scheduled() -> Record {
    let mut record = finished();
    record.key = JobKey {
        cluster: Some("tux".to_owned()),
        manager: "slurm".to_owned(),
        id: "1240".to_owned(),
        incarnation: 0,
    };
    record.account = Some("physics".to_owned());
    record.manager_state = Some("COMPLETED".to_owned());
    record.requested = Resources {
        cpus: Some(4),
        memory_bytes: Some(512 << 20),
        gpus: Some(2),
        time_limit_ns: Some(3_600_000_000_000),
        ..Resources::default()
    };
    record.allocated = Resources {
        nodes: Some(1),
        cpus: Some(4),
        memory_bytes: Some(512 << 20),
        gpus: Some(2),
        other: [("billing".to_owned(), "4".to_owned())].into(),
        ..Resources::default()
    };
    record.scheduling = Scheduling {
        alias: Some("1234_7".to_owned()),
        array_id: Some("1234".to_owned()),
        array_index: Some(7),
        restarts: Some(1),
        partition: Some("batch".to_owned()),
        qos: Some("normal".to_owned()),
        reason: Some("Resources".to_owned()),
        submit_ns: Some(START_NS - 90_000_000_000),
        asked_ns: Some(NOW_NS),
        ..Scheduling::default()
    };
    let task = |index: &str| Some(index.to_owned());
    record.parts = vec![
        part("batch", None, 1_000_000_000, 0),
        part("0", None, 4_000_000_000, 3),
        part("0", task("0"), 1_900_000_000, 0),
        part("0", task("1"), 2_000_000_000, 3),
    ];
    record
}

fn part(step: &str, task: Option<String>, cpu_ns: i64, exit_code: i32) -> Part {
    let mut totals = Totals::default();
    totals.set(column::CPU, cpu_ns, QualityKind::Measured, "cgroup");
    totals.set(column::MEMORY_PEAK, 2 << 20, QualityKind::Measured, "cgroup");
    Part {
        node: "n1".to_owned(),
        step: step.to_owned(),
        task,
        name: (step == "0").then(|| "solve".to_owned()),
        start_ns: Some(START_NS),
        end_ns: Some(START_NS + 3_000_000_000),
        exit_code: Some(exit_code),
        folded: None,
        totals,
    }
}

/// A GPU used for ten seconds at 60 %, by a job that shared it.
#[cfg(test)]
pub fn gpu() -> met_core::job::GpuUse {
    met_core::job::GpuUse {
        uuid: "GPU-a".to_owned(),
        index: "0".to_owned(),
        name: "Fake H200".to_owned(),
        vendor: "nvidia".to_owned(),
        held_by: met_core::job::HeldBy::Given("CUDA_VISIBLE_DEVICES".into()),
        held_since_ns: Some(START_NS),
        held_ns: 10_000_000_000,
        used_ns: 9_000_000_000,
        known_ns: Some(10_000_000_000),
        utilization: Some(0.6),
        gpu_utilization: Some(0.9),
        memory_mean_bytes: Some(1e9),
        memory_peak_bytes: Some(2_000_000_000),
        memory_total_bytes: Some(150_000_000_000),
        energy_active_uj: 2_000_000_000,
        energy_idle_uj: 400_000_000,
        energy_kind: Some(QualityKind::Attributed),
        energy_source: Some(met_core::job::EnergySource::Counter),
        gpu_power_mw: Some(300_000.0),
        temperature_max_mc: Some(61_000),
        clock_mean_mhz: Some(1_900.0),
        clock_max_mhz: Some(1_980),
        throttled: vec!["power cap".to_owned()],
        throttled_ns: Some(2_000_000_000),
        processes: 1,
        ..met_core::job::GpuUse::default()
    }
}
