//! Every built-in rule speaks of one case, and is silent about the nearest one: the two differ in one number.

use met_core::gpu::card;
use met_core::job::{GpuUse, Part, QualityKind, Record, State};
use met_core::job_table as column;
use met_core::series::Course;

use super::tests::{GIB, HOUR, given, gpu, plain, with_gpus};
use super::*;
use crate::report::Machine;
use crate::sample;
use crate::series_tests::{Made, made};

/// What a rule is asked about.
enum Case {
    Job(Box<Made>, Around),
    /// All jobs of one week.
    Users(Vec<Record>),
}

/// What is known around a job.
#[derive(Default)]
struct Around {
    earlier: Vec<Record>,
    node_gpus: Option<u32>,
    pressure: Option<f64>,
}

/// A rule, the case by its number, and the numbers of which it speaks and does not speak.
type Pair = (&'static str, fn(f64) -> Case, f64, f64);

const PAIRS: &[Pair] = &[
    ("out_of_memory", out_of_memory, 1.0, 0.0),
    ("gpu_idle", gpu_use, 0.04, 0.06),
    ("gpus_unused", second_gpu_use, 0.0, 0.01),
    ("gpu_waits_for_cpu", gpu_use_beside_busy_cores, 0.59, 0.61),
    ("gpu_low", gpu_use, 0.24, 0.26),
    ("gpu_too_large", gpu_compute_units, 0.17, 0.19),
    ("gpu_small_kernels", gpu_power, 0.29, 0.31),
    ("cores_per_gpu", cores_beside_a_gpu, 25.0, 23.0),
    ("serial_on_many", busy_of_16, 1.05, 1.15),
    ("cpu_low", busy_of_16, 6.3, 6.5),
    ("oversubscribed", waiting_threads, 2.1, 1.9),
    ("throttled", throttled, 0.21, 0.19),
    ("memory_excess", needed_of_64_gib, 26.0, 27.0),
    ("memory_pressure", memory_pressure, 0.21, 0.19),
    ("memory_leak", growth_gib, 1.1, 0.9),
    ("time_limit_excess", limit_in_runs, 4.1, 3.9),
    ("idle_tail", idle_share_at_the_end, 0.22, 0.17),
    ("deadweight", idle_hours_while_running, 2.1, 1.9),
    ("zombies", processes_left, 3.0, 5.0),
    ("small_io", calls, 5100.0, 4900.0),
    ("kernel_calls", kernel_share, 0.51, 0.49),
    ("many_children", children, 51.0, 49.0),
    ("node_imbalance", second_node, 0.39, 0.41),
    ("cpu_hog_on_gpu_node", pressure_of_others, 0.11, 0.09),
    ("crowds_others", cores_of_a_shared_machine, 40.0, 38.0),
    ("many_tiny_jobs", tiny_jobs, 500.0, 499.0),
    ("cores_unused", use_of_a_week, 0.29, 0.31),
    ("gpus_idle", gpu_use_of_a_week, 0.14, 0.16),
    ("hog", cpu_time_of_all, 0.76, 0.74),
];

fn job(made: Made) -> Case {
    Case::Job(Box::new(made), Around::default())
}

fn out_of_memory(kills: f64) -> Case {
    let mut made = given(made(30).cores(|_| 1.0), 1);
    made.record.totals.set(column::OOM_KILLS, kills as i64, QualityKind::Measured, "cgroup");
    job(made)
}

fn gpu_use(used: f64) -> Case {
    job(with_gpus(2 * HOUR, vec![gpu(Some(used), 2 * HOUR)]))
}

fn second_gpu_use(used: f64) -> Case {
    let second = GpuUse { uuid: "GPU-b".to_owned(), ..gpu(Some(used), 2 * HOUR) };
    job(with_gpus(2 * HOUR, vec![gpu(Some(0.9), 2 * HOUR), second]))
}

fn gpu_use_beside_busy_cores(used: f64) -> Case {
    let mut made = given(made(2 * HOUR).cores(|_| 7.9), 8);
    (made.record.allocated.gpus, made.record.gpus) = (Some(1), vec![gpu(Some(used), 2 * HOUR)]);
    job(made)
}

fn gpu_compute_units(share: f64) -> Case {
    job(with_gpus(2 * HOUR, vec![GpuUse { sm_activity: Some(share), ..gpu(Some(0.5), 2 * HOUR) }]))
}

fn gpu_power(share: f64) -> Case {
    let mut made = with_gpus(2 * HOUR, vec![gpu(Some(0.9), 2 * HOUR)]);
    let mut course = Course::new(&card::TABLE);
    for time_ms in &made.course.times_ms {
        let mut cells = vec![met_core::MISSING; card::TABLE.columns.len()];
        for (index, watts) in [(card::POWER, 700.0 * share), (card::POWER_LIMIT, 700.0)] {
            cells[index] = card::TABLE.columns[index].unscaled(watts).unwrap();
        }
        course.push(*time_ms, &cells);
    }
    made.gpus = vec![(made.record.gpus[0].uuid.clone(), course)];
    job(made)
}

fn busy_of_16(cores: f64) -> Case {
    job(given(made(2 * HOUR).cores(move |_| cores), 16))
}

fn waiting_threads(waiting: f64) -> Case {
    job(plain(Some(2), 2.0, waiting))
}

fn throttled(share: f64) -> Case {
    let taken = 0.8 * share / (1.0 - share);
    job(made(90).cores(|_| 0.8).rate(column::THROTTLED, move |_| taken))
}

fn needed_of_64_gib(gib: f64) -> Case {
    let mut made = given(made(HOUR).cores(|_| 4.0), 4);
    made = made.level(column::MEMORY_NEEDED, move |_| gib * GIB as f64);
    made.record.allocated.memory_bytes = Some(64 * GIB);
    made.record.totals.set(column::OOM_KILLS, 0, QualityKind::Measured, "cgroup");
    job(made)
}

fn memory_pressure(share: f64) -> Case {
    job(made(HOUR).cores(|_| 0.5).rate(column::PRESSURE_MEMORY, move |_| share))
}

fn growth_gib(gib: f64) -> Case {
    let level = move |second: i32| (1.0 + gib * f64::from(second) / f64::from(2 * HOUR)) * GIB as f64;
    job(made(2 * HOUR).cores(|_| 1.0).level(column::MEMORY_NEEDED, level))
}

fn limit_in_runs(times: f64) -> Case {
    let mut made = given(made(HOUR).cores(|_| 1.0), 1);
    made.record.requested.time_limit_ns = Some((times * 3.6e12) as i64);
    let earlier = vec![made.record.clone(), made.record.clone()];
    Case::Job(Box::new(made), Around { earlier, ..Around::default() })
}

fn idle_share_at_the_end(share: f64) -> Case {
    let begin = (f64::from(3 * HOUR) * (1.0 - share)) as i32;
    job(given(made(3 * HOUR).cores(move |second| if second < begin { 8.0 } else { 0.0 }), 8))
}

fn idle_hours_while_running(hours: f64) -> Case {
    let begin = 5 * HOUR - (hours * f64::from(HOUR)) as i32;
    let mut made = given(made(5 * HOUR).cores(move |second| if second < begin { 8.0 } else { 0.0 }), 8);
    made.record.state = State::Running;
    job(made)
}

fn processes_left(count: f64) -> Case {
    let begin = 2 * HOUR;
    let made = made(3 * HOUR).cores(move |second| if second < begin { 8.0 } else { 0.0 });
    let running = move |second: i32| if second < begin { 9.0 } else { count };
    let mut made = given(made.level(column::PROCESSES_RUNNING, running), 8);
    made.record.state = State::Running;
    job(made)
}

fn kernel_share(share: f64) -> Case {
    let mut made = made(HOUR).cores(|_| 1.0).rate(column::CPU_SYSTEM, move |_| share);
    for index in [column::READ_CALLS, column::WRITE_CALLS, column::READ_CALL, column::WRITE_CALL] {
        made = made.rate(index, |_| 10.0);
    }
    for index in [column::PAGE_FAULTS_MINOR, column::SWITCHES_VOLUNTARY] {
        made = made.rate(index, |_| 1.0);
    }
    job(made)
}

/// One of four GPUs of a node with 64 cores.
fn cores_beside_a_gpu(cpus: f64) -> Case {
    let mut made = given(made(2 * HOUR).cores(|_| 4.0), cpus as i64);
    (made.record.allocated.gpus, made.record.gpus) = (Some(1), vec![gpu(Some(0.9), 2 * HOUR)]);
    Case::Job(Box::new(made), Around { node_gpus: Some(4), ..Around::default() })
}

fn cores_of_a_shared_machine(cores: f64) -> Case {
    let made = made(2 * HOUR).cores(move |_| cores);
    Case::Job(Box::new(made), Around { pressure: Some(0.3), ..Around::default() })
}

fn calls(per_second: f64) -> Case {
    let made = made(HOUR).cores(|_| 1.0);
    let made = made.rate(column::READ_CALLS, move |_| per_second).rate(column::WRITE_CALLS, |_| 0.0);
    job(made.rate(column::READ_CALL, |_| 1e5).rate(column::WRITE_CALL, |_| 0.0))
}

fn children(per_second: f64) -> Case {
    job(made(HOUR).cores(|_| 1.0).rate(column::PROCESSES, move |_| per_second))
}

fn second_node(work: f64) -> Case {
    let mut made = given(made(2 * HOUR).cores(move |_| 16.0 * (1.0 + work)), 64);
    made.record.allocated.nodes = Some(2);
    made.record.nodes = vec!["n1".to_owned(), "n2".to_owned()];
    let part = |node: &str, cores: f64| {
        let mut part = Part { node: node.to_owned(), ..Part::default() };
        let cpu_ns = (cores * f64::from(2 * HOUR) * 1e9) as i64;
        part.totals.set(column::CPU, cpu_ns, QualityKind::Measured, "cgroup");
        part
    };
    made.record.parts = vec![part("n1", 16.0), part("n2", 16.0 * work)];
    job(made)
}

fn pressure_of_others(share: f64) -> Case {
    let made = given(made(2 * HOUR).cores(|_| 60.0), 60);
    Case::Job(Box::new(made), Around { node_gpus: Some(4), pressure: Some(share), ..Around::default() })
}

fn of_user(user: &str, id: usize, made: Made) -> Record {
    let mut record = made.record;
    (record.user, record.key.id) = (Some(user.to_owned()), id.to_string());
    record
}

fn tiny_jobs(count: f64) -> Case {
    let tiny = |id| of_user("alice", id, given(made(30).cores(|_| 1.0), 1));
    Case::Users((0..count as usize).map(tiny).collect())
}

fn use_of_a_week(share: f64) -> Case {
    Case::Users(vec![of_user("alice", 1, given(made(10 * HOUR).cores(move |_| 64.0 * share), 64))])
}

fn gpu_use_of_a_week(share: f64) -> Case {
    let gpus = |index: usize| GpuUse { uuid: format!("GPU-{index}"), ..gpu(Some(share), 10 * HOUR) };
    Case::Users(vec![of_user("alice", 1, with_gpus(10 * HOUR, (0..4).map(gpus).collect()))])
}

fn cpu_time_of_all(share: f64) -> Case {
    let of = |user, id, share: f64| {
        let made = made(10 * HOUR).cores(move |_| 64.0 * share).rate(column::PRESSURE_CPU, |_| 0.5);
        of_user(user, id, given(made, 64))
    };
    Case::Users(vec![of("alice", 1, share), of("bob", 2, 1.0 - share)])
}

impl Case {
    /// All that is said, and by candidates alone the same.
    fn findings(&self) -> Vec<Finding> {
        let rules = Rules::built_in();
        match self {
            Case::Job(made, around) => {
                let earlier: Vec<&Record> = around.earlier.iter().collect();
                let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns()).after(&earlier);
                let unread = job.beside(around.node_gpus, None);
                let (candidates, _) = candidates(rules, &unread);
                let job = unread.beside(around.node_gpus, around.pressure).sampled(made.samples());
                let all = judge_all(rules.about(Scope::Job), &job);
                assert_eq!(judge_all(candidates, &job), all, "a rule was left out that speaks");
                all
            }
            Case::Users(records) => {
                let sums = user::sums(records, sample::NOW_NS + 40 * 3_600_000_000_000);
                sums.iter().flat_map(|sum| findings_of_user(rules, sum)).collect()
            }
        }
    }
}

#[test]
fn every_built_in_rule_speaks_of_its_case_and_not_of_the_nearest_one() {
    for (rule, case, speaks, silent) in PAIRS {
        let names = |number: f64| {
            let found = case(number).findings();
            found.into_iter().map(|finding| finding.rule).collect::<Vec<_>>()
        };
        assert!(names(*speaks).iter().any(|name| name == rule), "{rule} at {speaks}: {:?}", names(*speaks));
        assert!(!names(*silent).iter().any(|name| name == rule), "{rule} at {silent}: {:?}", names(*silent));
    }
}

#[test]
fn no_built_in_rule_is_without_a_pair() {
    let with_pair: Vec<&str> = PAIRS.iter().map(|(rule, ..)| *rule).collect();
    let built_in: Vec<&str> = Rules::built_in().rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(with_pair, built_in, "each rule has one pair, in the order of the rules");
}

#[test]
fn every_sentence_of_a_built_in_rule_is_written_for_its_case() {
    for (rule, case, speaks, _) in PAIRS {
        let found = case(*speaks).findings().into_iter().find(|finding| finding.rule == *rule).unwrap();
        for words in [&found.what, &found.how] {
            assert!(!words.is_empty() && !words.contains(['{', '}']), "{rule}: {words}");
        }
        assert!(!found.why.is_empty(), "{rule} has no numbers");
    }
}
