use met_core::job::QualityKind;

use super::*;
use crate::report::Machine;
use crate::sample;
use crate::series_tests::made;

const LENGTH: i32 = 1200;
const GIB_BYTES: i64 = 1 << 30;

fn run(needed: i64, asked: i64) -> Record {
    let mut record = sample::scheduled();
    record.requested.memory_bytes = Some(asked);
    record.allocated.memory_bytes = Some(asked);
    record.requested.tasks = Some(1);
    (record.start_ns, record.end_ns) = (made(LENGTH).record.start_ns, made(LENGTH).record.end_ns);
    record.totals.set(column::WALL, i64::from(LENGTH) * 1_000_000_000, QualityKind::Measured, "slurm");
    record.totals.set(column::MEMORY_NEEDED_PEAK, needed, QualityKind::Sampled, "cgroup");
    // Cache is no need.
    record.totals.set(column::MEMORY_PEAK, asked, QualityKind::Measured, "cgroup");
    record
}

/// What is asked for a resource, of a job with samples to its end.
fn asked(resource: &str, record: &Record, earlier: &[&Record], cpus: u32) -> Vec<String> {
    let sampled = made(LENGTH).level(column::MEMORY_NEEDED, |_| 1.0);
    let job = Job::new(record, Machine { cpus: Some(cpus) }, sample::NOW_NS).after(earlier);
    let found = directives(&job.sampled(sampled.samples())).into_iter();
    found.filter(|directive| directive.resource == resource).map(|directive| directive.text).collect()
}

fn reported(record: &Record, earlier: &[&Record], cpus: u32) -> Vec<String> {
    asked("memory", record, earlier, cpus)
}

#[test]
fn a_run_that_failed_or_was_not_measured_is_no_measure_of_the_next() {
    let mut typo = run(100 << 20, 64 * GIB_BYTES);
    assert_eq!(reported(&typo, &[], 64), ["#SBATCH --mem=256M"]);
    typo.state = State::Failed;
    assert_eq!(reported(&typo, &[], 64), [""; 0]);
    assert_eq!(reported(&typo, &[&run(5 * GIB_BYTES, 64 * GIB_BYTES)], 64), ["#SBATCH --mem=6G"]);
    typo.state = State::Timeout;
    assert_eq!(reported(&typo, &[], 64), [""; 0], "it may have needed more later");
    let mut short = run(100 << 20, 64 * GIB_BYTES);
    short.totals.set(column::WALL, 2_000_000_000, QualityKind::Measured, "slurm");
    short.end_ns = short.start_ns.map(|start_ns| start_ns + 2_000_000_000);
    let unsampled = Job::new(&short, Machine { cpus: Some(64) }, sample::NOW_NS);
    assert_eq!(directives(&unsampled), []);
    let unsampled = run(5 * GIB_BYTES, 64 * GIB_BYTES);
    let unsampled = Job::new(&unsampled, Machine { cpus: Some(64) }, sample::NOW_NS);
    assert!(directives(&unsampled).iter().all(|it| it.resource != "memory"), "its peak was not looked for");
    let mut bound = run(5 * GIB_BYTES, 64 * GIB_BYTES);
    bound.totals.set(column::MEMORY_NEEDED_PEAK, 5 * GIB_BYTES, QualityKind::LowerBound, "cgroup");
    assert_eq!(reported(&bound, &[], 64), [""; 0], "the kernel saw more");
}

#[test]
fn cores_are_asked_for_by_task_only_where_there_is_one() {
    let mut job = run(5 * GIB_BYTES, 6 * GIB_BYTES);
    (job.requested.cpus, job.requested.gpus, job.allocated.gpus) = (Some(16), None, None);
    job.totals.set(column::CORES_PEAK, 6_000, QualityKind::Sampled, "cgroup");
    assert_eq!(asked("cpus", &job, &[], 64), ["#SBATCH --cpus-per-task=6"]);
    job.requested.tasks = Some(16);
    assert_eq!(asked("cpus", &job, &[], 64), [""; 0], "16 tasks would get 96 cores");
    job.requested.tasks = None;
    assert_eq!(asked("cpus", &job, &[], 64), [""; 0]);
}

#[test]
fn no_job_is_advised_to_ask_for_no_gpu() {
    let mut job = run(5 * GIB_BYTES, 6 * GIB_BYTES);
    let gpu = |used_ns| met_core::job::GpuUse {
        used_ns,
        utilization: Some(if used_ns > 0 { 0.5 } else { 0.0 }),
        known_ns: Some(i64::from(LENGTH) * 1_000_000_000),
        ..sample::gpu()
    };
    job.gpus = vec![gpu(0), gpu(1)];
    assert_eq!(asked("gpus", &job, &[], 64), ["#SBATCH --gres=gpu:1"]);
    job.gpus = vec![gpu(0), gpu(0)];
    assert_eq!(asked("gpus", &job, &[], 64), [""; 0]);
    job.gpus = vec![met_core::job::GpuUse { memory_total_bytes: None, ..gpu(0) }, gpu(1)];
    assert_eq!(asked("gpus", &job, &[], 64), [""; 0], "what it holds is not known");
}

#[test]
fn memory_of_a_whole_job_is_asked_for_on_one_node_only() {
    let mut job = run(5 * GIB_BYTES, 64 * GIB_BYTES);
    job.key.manager = "pbs".to_owned();
    assert_eq!(reported(&job, &[], 64), ["#PBS -l mem=6144mb"]);
    job.allocated.nodes = Some(2);
    let part = |node: &str| {
        let mut part = met_core::job::Part { node: node.to_owned(), ..met_core::job::Part::default() };
        part.totals.set(column::MEMORY_NEEDED_PEAK, 5 * GIB_BYTES, QualityKind::Sampled, "cgroup");
        part
    };
    job.parts = vec![part("n1"), part("n2")];
    assert_eq!(reported(&job, &[], 128), [""; 0]);
}

#[test]
fn memory_is_the_highest_need_of_five_runs_with_room_and_without_cache() {
    let job = run(5 * GIB_BYTES, 64 * GIB_BYTES);
    assert_eq!(reported(&job, &[], 64), ["#SBATCH --mem=6G"]);
    let (high, old) = (run(10 * GIB_BYTES, 64 * GIB_BYTES), run(50 * GIB_BYTES, 64 * GIB_BYTES));
    assert_eq!(reported(&job, &[&job, &high, &job], 64), ["#SBATCH --mem=12G"]);
    assert_eq!(
        reported(&job, &[&job, &job, &job, &job, &old], 64),
        ["#SBATCH --mem=6G"],
        "the sixth is too old"
    );
    assert_eq!(reported(&run(100 << 20, 64 * GIB_BYTES), &[], 64), ["#SBATCH --mem=256M"]);
}

#[test]
fn after_a_job_was_killed_for_memory_it_is_more_than_it_was() {
    let mut job = run(8 * GIB_BYTES, 8 * GIB_BYTES);
    job.state = State::OutOfMemory;
    assert_eq!(reported(&job, &[], 64), ["#SBATCH --mem=12G"]);
}

#[test]
fn who_must_take_the_whole_node_is_not_advised_to_save_its_memory() {
    let mut job = run(5 * GIB_BYTES, 64 * GIB_BYTES);
    job.allocated.cpus = Some(60);
    assert_eq!(reported(&job, &[], 64), [""; 0]);
    job.allocated.cpus = Some(4);
    let unknown = Job::new(&job, Machine::default(), sample::NOW_NS);
    assert!(
        directives(&unknown).iter().all(|directive| directive.resource != "memory"),
        "its node is not known"
    );
}

#[test]
fn memory_of_several_nodes_is_that_of_the_one_that_needs_most() {
    let mut job = run(9 * GIB_BYTES, 128 * GIB_BYTES);
    job.allocated.nodes = Some(2);
    job.nodes = vec!["n1".to_owned(), "n2".to_owned()];
    let part = |node: &str, needed: i64| {
        let mut part = met_core::job::Part { node: node.to_owned(), ..met_core::job::Part::default() };
        part.totals.set(column::MEMORY_NEEDED_PEAK, needed, QualityKind::Sampled, "cgroup");
        part
    };
    job.parts = vec![part("n1", 2 * GIB_BYTES), part("n2", 7 * GIB_BYTES)];
    assert_eq!(reported(&job, &[], 128), ["#SBATCH --mem=9G"]);
    job.parts.pop();
    assert_eq!(reported(&job, &[], 128), [""; 0], "one node is not all");
}

#[test]
fn a_time_limit_needs_three_runs() {
    let mut job = run(5 * GIB_BYTES, 6 * GIB_BYTES);
    job.requested.time_limit_ns = Some(24 * 3_600_000_000_000);
    job.totals.set(column::WALL, 3_600_000_000_000, QualityKind::Measured, "supervisor");
    let reported = |earlier: &[&Record]| {
        let job = Job::new(&job, Machine { cpus: Some(64) }, sample::NOW_NS).after(earlier);
        directives(&job).into_iter().filter(|it| it.resource == "time").map(|it| it.text).collect::<Vec<_>>()
    };
    assert_eq!(reported(&[&job]), [""; 0]);
    assert_eq!(reported(&[&job, &job]), ["#SBATCH --time=1:15:00"]);
}
