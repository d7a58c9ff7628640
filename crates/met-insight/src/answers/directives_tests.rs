use met_core::job::QualityKind;

use super::*;
use crate::report::Machine;
use crate::sample;

const GIB_BYTES: i64 = 1 << 30;

fn run(needed: i64, asked: i64) -> Record {
    let mut record = sample::scheduled();
    record.requested.memory_bytes = Some(asked);
    record.allocated.memory_bytes = Some(asked);
    record.totals.set(column::MEMORY_NEEDED_PEAK, needed, QualityKind::Sampled, "cgroup");
    // Cache is no need.
    record.totals.set(column::MEMORY_PEAK, asked, QualityKind::Measured, "cgroup");
    record
}

fn told(record: &Record, earlier: &[&Record], cpus: u32) -> Vec<String> {
    let job = Job::new(record, Machine { cpus: Some(cpus) }, sample::NOW_NS).after(earlier);
    let memory = directives(&job).into_iter().filter(|directive| directive.resource == "memory");
    memory.map(|directive| directive.text).collect()
}

#[test]
fn memory_is_the_highest_need_of_five_runs_with_room_and_without_cache() {
    let job = run(5 * GIB_BYTES, 64 * GIB_BYTES);
    assert_eq!(told(&job, &[], 64), ["#SBATCH --mem=6G"]);
    let (high, old) = (run(10 * GIB_BYTES, 64 * GIB_BYTES), run(50 * GIB_BYTES, 64 * GIB_BYTES));
    assert_eq!(told(&job, &[&job, &high, &job], 64), ["#SBATCH --mem=12G"]);
    assert_eq!(told(&job, &[&job, &job, &job, &job, &old], 64), ["#SBATCH --mem=6G"], "the sixth is too old");
    assert_eq!(told(&run(100 << 20, 64 * GIB_BYTES), &[], 64), ["#SBATCH --mem=256M"]);
}

#[test]
fn after_a_job_was_killed_for_memory_it_is_more_than_it_was() {
    let mut job = run(8 * GIB_BYTES, 8 * GIB_BYTES);
    job.state = State::OutOfMemory;
    assert_eq!(told(&job, &[], 64), ["#SBATCH --mem=12G"]);
}

#[test]
fn who_must_take_the_whole_node_is_not_advised_to_save_its_memory() {
    let mut job = run(5 * GIB_BYTES, 64 * GIB_BYTES);
    job.allocated.cpus = Some(60);
    assert_eq!(told(&job, &[], 64), [""; 0]);
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
    assert_eq!(told(&job, &[], 128), ["#SBATCH --mem=9G"]);
    job.parts.pop();
    assert_eq!(told(&job, &[], 128), [""; 0], "one node is not all");
}

#[test]
fn a_time_limit_needs_three_runs() {
    let mut job = run(5 * GIB_BYTES, 6 * GIB_BYTES);
    job.requested.time_limit_ns = Some(24 * 3_600_000_000_000);
    job.totals.set(column::WALL, 3_600_000_000_000, QualityKind::Measured, "supervisor");
    let told = |earlier: &[&Record]| {
        let job = Job::new(&job, Machine { cpus: Some(64) }, sample::NOW_NS).after(earlier);
        directives(&job).into_iter().filter(|it| it.resource == "time").map(|it| it.text).collect::<Vec<_>>()
    };
    assert_eq!(told(&[&job]), [""; 0]);
    assert_eq!(told(&[&job, &job]), ["#SBATCH --time=1:15:00"]);
}
