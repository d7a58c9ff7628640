//! A month of many users, with planted offenders: all of them are found, and no other user.

use met_core::job::{GpuUse, QualityKind, Record, State};
use met_core::job_table as column;

use crate::answers::Job;
use crate::check::{groups, worthwhile};
use crate::finding::Finding;
use crate::report::Machine;
use crate::rules::{self, Rules, user};
use crate::sample;

const HOUR_NS: i64 = 3_600_000_000_000;

struct Of {
    user: &'static str,
    cpus: i64,
    /// Of the CPUs that it was given.
    busy: f64,
    wall_ns: i64,
    gpu: Option<f64>,
}

fn job(index: usize, of: &Of) -> Record {
    let mut record = sample::scheduled();
    (record.totals, record.summaries, record.parts) = Default::default();
    record.key.id = index.to_string();
    (record.user, record.state) = (Some(of.user.to_owned()), State::Finished);
    (record.name, record.scheduling.alias) = (format!("{}-{}", of.user, of.cpus), None);
    (record.requested, record.allocated) = Default::default();
    (record.allocated.cpus, record.allocated.nodes) = (Some(of.cpus), Some(1));
    record.start_ns = Some(sample::START_NS + index as i64 % 28 * 24 * HOUR_NS);
    record.end_ns = record.start_ns.map(|start_ns| start_ns + of.wall_ns);
    record.totals.set(column::WALL, of.wall_ns, QualityKind::Measured, "slurm");
    if of.user == "fuller" {
        record.allocated.memory_bytes = Some(64 << 30);
        record.totals.set(column::MEMORY_NEEDED_PEAK, 60 << 30, QualityKind::Sampled, "cgroup");
    }
    let cpu_ns = (of.busy * of.cpus as f64 * of.wall_ns as f64) as i64;
    record.totals.set(column::CPU, cpu_ns, QualityKind::Measured, "cgroup");
    storage(&mut record, of);
    record.scheduling.exclusive = (of.user == "whole").then_some(true);
    if let Some(used) = of.gpu {
        record.allocated.gpus = Some(1);
        let used_ns = if used > 0.0 { of.wall_ns } else { 0 };
        record.gpus = vec![GpuUse {
            utilization: Some(used),
            held_ns: of.wall_ns,
            known_ns: Some(of.wall_ns),
            used_ns,
            memory_peak_bytes: Some(20 << 30),
            memory_total_bytes: Some(80 << 30),
            ..sample::gpu()
        }];
    }
    record
}

/// What is known of its storage.
fn storage(record: &mut Record, of: &Of) {
    use QualityKind::{Measured, Sampled};
    let mib_per_second = |rate: i64| (rate << 20) * (of.wall_ns / 1_000_000_000);
    let mut set = |index: usize, value: i64, kind| record.totals.set(index, value, kind, "cgroup");
    match of.user {
        "reader" => set(column::PRESSURE_IO, of.wall_ns / 2, Measured),
        // As of a job that was found, not started.
        "found_reader" => set(column::PRESSURE_IO, of.wall_ns / 10 * 9, Sampled),
        "thread_reader" => set(column::DELAY_IO, of.wall_ns / 2, Sampled),
        "found_idler" => set(column::PRESSURE_IO, 0, Sampled),
        "mover" => {
            set(column::READ, mib_per_second(2), Measured);
            set(column::WRITTEN, 0, Measured);
        }
        "still_idler" => {
            set(column::READ, mib_per_second(1) / 4, Measured);
            set(column::WRITTEN, mib_per_second(1) / 4, Measured);
        }
        "unknown" => (),
        "half_known" => set(column::READ, 0, Measured),
        _ => set(column::PRESSURE_IO, 0, Measured),
    }
}

fn month() -> Vec<Record> {
    const HONEST: [&str; 6] = ["ada", "bob", "cyd", "dan", "eve", "fay"];
    let mut all: Vec<Of> = Vec::new();
    for index in 0..600 {
        let user = HONEST[index % HONEST.len()];
        let gpu = (index % 3 == 0).then_some(0.5 + 0.05 * (index % 10) as f64);
        let wall_ns = HOUR_NS * (1 + index as i64 % 12);
        all.push(Of { user, cpus: 1 << (index % 6), busy: 0.7 + 0.03 * (index % 10) as f64, wall_ns, gpu });
    }
    let offender = |user, cpus, busy, hours, gpu| Of { user, cpus, busy, wall_ns: hours * HOUR_NS, gpu };
    all.extend((0..8).map(|_| offender("idler", 32, 0.05, 20, None)));
    all.extend((0..6).map(|_| offender("holder", 4, 0.5, 12, Some(0.0))));
    // Below the gates of a cluster: a saving too small to notice.
    all.extend((0..2).map(|_| offender("beginner", 4, 0.25, 2, None)));
    // Few cores beside a busy GPU are fine, in the sum, too; so are cores that come with the memory.
    all.extend((0..10).map(|_| offender("trainer", 16, 0.125, 24, Some(0.95))));
    all.extend((0..10).map(|_| offender("fuller", 16, 0.125, 24, None)));
    // So are cores of a node that is taken whole, and of a job that storage holds back.
    all.extend((0..10).map(|_| offender("whole", 16, 0.125, 24, None)));
    for reader in ["reader", "found_reader", "thread_reader", "mover", "unknown"] {
        all.extend((0..10).map(|_| offender(reader, 16, 0.125, 24, None)));
    }
    all.extend((0..2400).map(|_| Of {
        user: "swarm",
        cpus: 1,
        busy: 0.9,
        wall_ns: HOUR_NS / 120,
        gpu: None,
    }));
    all.iter().enumerate().map(|(index, of)| job(index, of)).collect()
}

fn findings(jobs: &[Record]) -> Vec<Finding> {
    let (rules, now_ns) = (Rules::built_in(), sample::START_NS + 30 * 24 * HOUR_NS);
    let machine = Machine { cpus: Some(64) };
    let mut found: Vec<Finding> =
        jobs.iter().flat_map(|record| rules::findings(rules, &Job::new(record, machine, now_ns))).collect();
    for sum in user::sums(jobs, &[], now_ns) {
        found.extend(rules::findings_of_user(rules, &sum));
    }
    found
}

#[test]
fn a_sum_exempts_who_waited_for_storage_or_may_have() {
    let users = [
        ("reader", false),
        ("found_reader", false),
        ("thread_reader", false),
        ("mover", false),
        ("unknown", false),
        ("half_known", false),
        ("idler", true),
        ("found_idler", true),
        ("still_idler", true),
    ];
    for (user, is_blamed) in users {
        let of = Of { user, cpus: 32, busy: 0.05, wall_ns: 20 * HOUR_NS, gpu: None };
        let jobs: Vec<Record> = (0..8).map(|index| job(index, &of)).collect();
        let sums = user::sums(&jobs, &[], sample::START_NS + 30 * 24 * HOUR_NS);
        let found: Vec<Finding> =
            sums.iter().flat_map(|sum| rules::findings_of_user(Rules::built_in(), sum)).collect();
        let is_found = found.iter().any(|finding| finding.rule == "cores_unused");
        assert_eq!(is_found, is_blamed, "{user}: {found:#?}");
    }
}

#[test]
fn planted_offenders_are_found_and_nobody_else() {
    let jobs = month();
    let reported = |jobs: &[Record]| {
        let groups = groups(&worthwhile(findings(jobs), true));
        let line = |group: &crate::check::Group| {
            format!("{} {} {}", group.user.as_deref().unwrap_or("-"), group.rule, group.count)
        };
        groups.iter().map(line).collect::<Vec<_>>()
    };
    // Sums are of weeks, and four begin in the month.
    let expected = [
        "idler cores_unused 2",
        "idler cpu_low 8",
        "holder gpu_idle 6",
        "holder gpus_idle 2",
        "swarm many_tiny_jobs 4",
    ];
    assert_eq!(reported(&jobs), expected);
    let mut turned = jobs;
    turned.rotate_left(777);
    assert_eq!(reported(&turned), expected, "the order of jobs does not matter");
}
