//! Every built-in rule speaks of one case, and is silent about the nearest one: the two differ in one number. What rules
//! ask for besides has a pair of its own.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

use met_core::gpu::device;
use met_core::job::{GpuUse, Part, QualityKind, Record, State};
use met_core::job_table as column;
use met_core::series::{Columns, Series};
use proptest::prelude::*;

use super::tests::{GIB, HOUR, given, gpu, one_case_in, plain, with_gpus};
use super::*;
use crate::answers::{Beside, Samples};
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
    /// Cores that the neighbour used.
    cores: Option<f64>,
}

impl Around {
    fn beside(&self) -> Beside {
        Beside { gpus: self.node_gpus, pressure: self.pressure, cores: self.cores }
    }
}

/// A rule, the case by its number, the numbers of which it speaks and does not speak, and the most waste of this kind.
type Pair = (&'static str, fn(f64) -> Case, f64, f64, f64);

const PAIRS: &[Pair] = &[
    ("out_of_memory", out_of_memory, 1.0, 0.0, 50.0),
    ("gpu_idle", gpu_use, 0.04, 0.06, 0.0),
    ("gpus_unused", second_gpu_use, 0.0, 0.01, 0.0),
    ("gpu_waits_for_cpu", gpu_use_beside_busy_cores, 0.59, 0.61, 0.05),
    ("gpu_waits_for_cpu", busy_cores_beside_a_gpu, 7.3, 7.1, 8.0),
    ("gpu_low", gpu_use, 0.24, 0.26, 0.05),
    ("gpu_too_large", gpu_compute_units, 0.17, 0.19, 0.01),
    ("gpu_too_large", small_use_of_gpus, 1.0, 2.0, 1.0),
    ("gpus_too_many", units_of_two_gpus, 0.17, 0.19, 0.01),
    ("gpus_too_many", small_use_of_gpus, 2.0, 1.0, 8.0),
    ("gpu_small_kernels", gpu_power, 0.29, 0.31, 0.01),
    ("cores_per_gpu", cores_beside_a_gpu, 25.0, 23.0, 60.0),
    ("cores_per_gpu", loading_on_32_cores, 0.03, 0.2, 0.0),
    ("cores_per_gpu", quota_beside_a_gpu, 0.19, 0.21, 0.0),
    ("cores_per_gpu", waiting_beside_a_gpu, 1.9, 2.1, 0.0),
    ("cores_per_gpu", storage_beside_a_gpu, 0.19, 0.21, 0.0),
    ("cores_per_gpu", seconds_of_all_beside_a_gpu, 290.0, 310.0, 0.0),
    ("serial_on_many", busy_of_16, 1.05, 1.15, 0.5),
    ("serial_on_many", storage_of_one_core, 0.19, 0.21, 0.0),
    ("serial_on_many", seconds_of_all_cores, 290.0, 310.0, 0.0),
    ("cpu_low", busy_of_16, 6.3, 6.5, 0.1),
    ("cpu_low", storage_of_three_cores, 0.19, 0.21, 0.0),
    ("cpu_low", cores_for_six_minutes, 12.7, 12.9, 2.0),
    ("oversubscribed", waiting_threads, 2.1, 1.9, 100.0),
    ("throttled", throttled, 0.21, 0.19, 0.95),
    ("memory_excess", needed_of_64_gib, 26.0, 27.0, 0.1),
    ("memory_pressure", memory_pressure, 0.21, 0.19, 1.0),
    ("memory_leak", growth_gib, 1.1, 0.9, 30.0),
    ("time_limit_excess", limit_in_runs, 4.1, 3.9, 100.0),
    ("idle_tail", idle_share_at_the_end, 0.22, 0.17, 0.8),
    ("deadweight", idle_hours_while_running, 2.1, 1.9, 4.9),
    ("left_processes", processes_left, 3.0, 5.0, 1.0),
    ("left_processes", few_processes_idle_hours, 2.1, 1.9, 4.8),
    ("small_io", calls, 5100.0, 4900.0, 1e6),
    ("kernel_calls", kernel_share, 0.51, 0.49, 1.0),
    ("many_children", children, 51.0, 49.0, 5000.0),
    ("node_imbalance", second_node, 0.39, 0.41, 0.0),
    ("node_imbalance", storage_of_two_nodes, 0.19, 0.21, 0.0),
    ("cpu_hog_on_gpu_node", pressure_of_others, 0.11, 0.09, 1.0),
    ("crowds_others", cores_of_a_shared_machine, 40.0, 38.0, 64.0),
    ("crowds_others", times_its_share, 2.1, 1.9, 2.6),
    ("crowds_others", cores_of_the_others, 23.0, 21.0, 38.0),
    ("many_tiny_jobs", tiny_jobs, 500.0, 499.0, 900.0),
    ("cores_unused", use_of_a_week, 0.29, 0.31, 0.01),
    ("gpus_idle", gpu_use_of_a_week, 0.14, 0.16, 0.0),
    ("hog", cpu_time_of_all, 0.76, 0.74, 1.0),
];

fn job(made: Made) -> Case {
    Case::Job(Box::new(made), Around::default())
}

fn out_of_memory(kills: f64) -> Case {
    let mut made = given(made(30).computing(|_| 1.0), 1);
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

/// A GPU beside eight cores.
fn cores_and_gpu_use(cores: f64, used: f64) -> Case {
    let mut made = given(made(2 * HOUR).computing(move |_| cores), 8);
    (made.record.allocated.gpus, made.record.gpus) = (Some(1), vec![gpu(Some(used), 2 * HOUR)]);
    job(made)
}

fn gpu_use_beside_busy_cores(used: f64) -> Case {
    cores_and_gpu_use(7.9, used)
}

fn busy_cores_beside_a_gpu(cores: f64) -> Case {
    cores_and_gpu_use(cores, 0.5)
}

fn gpu_compute_units(share: f64) -> Case {
    job(with_gpus(2 * HOUR, vec![GpuUse { sm_activity: Some(share), ..gpu(Some(0.5), 2 * HOUR) }]))
}

fn of_gpus(count: usize, units: f64) -> Case {
    let gpu = |index: usize| GpuUse {
        uuid: format!("GPU-{index}"),
        sm_activity: Some(units),
        ..gpu(Some(0.5), 2 * HOUR)
    };
    job(with_gpus(2 * HOUR, (0..count).map(gpu).collect()))
}

fn units_of_two_gpus(share: f64) -> Case {
    of_gpus(2, share)
}

/// A part of one GPU is advised where there is one.
fn small_use_of_gpus(count: f64) -> Case {
    of_gpus(count as usize, 0.05)
}

fn gpu_power(share: f64) -> Case {
    let mut made = with_gpus(2 * HOUR, vec![gpu(Some(0.9), 2 * HOUR)]);
    let mut series = Series::new(&device::TABLE);
    for time_ms in &made.series.times_ms {
        let mut cells = vec![met_core::MISSING; device::TABLE.columns.len()];
        for (index, watts) in [(device::POWER, 700.0 * share), (device::POWER_LIMIT, 700.0)] {
            cells[index] = device::TABLE.columns[index].unscaled(watts).unwrap();
        }
        series.push(*time_ms, &cells);
    }
    made.gpus = vec![(made.record.gpus[0].uuid.clone(), series)];
    job(made)
}

fn busy_of_16(cores: f64) -> Case {
    job(given(made(2 * HOUR).computing(move |_| cores), 16))
}

fn waiting_for_storage(cores: f64, share: f64) -> Made {
    made(2 * HOUR).cores(move |_| cores).rate(column::PRESSURE_IO, move |_| share)
}

fn storage_of_one_core(share: f64) -> Case {
    job(given(waiting_for_storage(0.9, share), 16))
}

fn storage_of_three_cores(share: f64) -> Case {
    job(given(waiting_for_storage(3.0, share), 16))
}

fn storage_beside_a_gpu(share: f64) -> Case {
    beside_a_gpu(waiting_for_storage(4.0, share), 32)
}

/// On all cores for so many seconds of its warm-up, then on few.
fn burst(seconds: f64, all: f64, few: f64) -> Made {
    made(12_000).computing(move |second| if f64::from(second) < seconds { all } else { few })
}

fn seconds_of_all_cores(seconds: f64) -> Case {
    job(given(burst(seconds, 16.0, 0.9), 16))
}

fn cores_for_six_minutes(cores: f64) -> Case {
    job(given(burst(360.0, cores, 2.0), 16))
}

fn seconds_of_all_beside_a_gpu(seconds: f64) -> Case {
    let mut made = given(burst(seconds, 32.0, 4.0), 32);
    (made.record.allocated.gpus, made.record.gpus) = (Some(1), vec![gpu(Some(0.9), 12_000)]);
    Case::Job(Box::new(made), Around { node_gpus: Some(4), ..Around::default() })
}

fn waiting_threads(waiting: f64) -> Case {
    job(plain(Some(2), 2.0, waiting))
}

fn throttled(share: f64) -> Case {
    let taken = 0.8 * share / (1.0 - share);
    job(made(90).computing(|_| 0.8).rate(column::THROTTLED, move |_| taken))
}

fn needed_of_64_gib(gib: f64) -> Case {
    let mut made = given(made(HOUR).computing(|_| 4.0), 4);
    made = made.level(column::MEMORY_NEEDED, move |_| gib * GIB as f64);
    made.record.allocated.memory_bytes = Some(64 * GIB);
    made.record.totals.set(column::OOM_KILLS, 0, QualityKind::Measured, "cgroup");
    job(made)
}

fn memory_pressure(share: f64) -> Case {
    job(made(HOUR).computing(|_| 0.5).rate(column::PRESSURE_MEMORY, move |_| share))
}

fn growth_gib(gib: f64) -> Case {
    let level = move |second: i32| (1.0 + gib * f64::from(second) / f64::from(2 * HOUR)) * GIB as f64;
    job(made(2 * HOUR).computing(|_| 1.0).level(column::MEMORY_NEEDED, level))
}

fn limit_in_runs(times: f64) -> Case {
    let mut made = given(made(HOUR).computing(|_| 1.0), 1);
    made.record.requested.time_limit_ns = Some((times * 3.6e12) as i64);
    let earlier = vec![made.record.clone(), made.record.clone()];
    Case::Job(Box::new(made), Around { earlier, ..Around::default() })
}

fn idle_share_at_the_end(share: f64) -> Case {
    let begin = (f64::from(3 * HOUR) * (1.0 - share)) as i32;
    job(given(made(3 * HOUR).computing(move |second| if second < begin { 8.0 } else { 0.0 }), 8))
}

fn idle_hours_while_running(hours: f64) -> Case {
    let begin = 5 * HOUR - (hours * f64::from(HOUR)) as i32;
    let mut made = given(made(5 * HOUR).computing(move |second| if second < begin { 8.0 } else { 0.0 }), 8);
    made.record.state = State::Running;
    job(made)
}

/// Of nine processes some are left, and nothing runs in the last hours.
fn left_behind(hours: f64, count: f64) -> Case {
    let begin = 5 * HOUR - (hours * f64::from(HOUR)) as i32;
    let made = made(5 * HOUR).computing(move |second| if second < begin { 8.0 } else { 0.0 });
    let running = move |second: i32| if second < begin { 9.0 } else { count };
    let mut made = given(made.level(column::PROCESSES_RUNNING, running), 8);
    made.record.state = State::Running;
    job(made)
}

fn processes_left(count: f64) -> Case {
    left_behind(2.5, count)
}

/// A shell after `make`, a notebook, a manager of a workflow: for a while they wait for their user or for other jobs.
fn few_processes_idle_hours(hours: f64) -> Case {
    left_behind(hours, 1.0)
}

fn kernel_share(share: f64) -> Case {
    let mut made = made(HOUR).computing(|_| 1.0).rate(column::CPU_SYSTEM, move |_| share);
    for index in [column::READ_CALLS, column::WRITE_CALLS, column::READ_CALL, column::WRITE_CALL] {
        made = made.rate(index, |_| 10.0);
    }
    for index in [column::PAGE_FAULTS_MINOR, column::SWITCHES_VOLUNTARY] {
        made = made.rate(index, |_| 1.0);
    }
    job(made)
}

/// One of four GPUs of a node with 64 cores.
fn beside_a_gpu(made: Made, cpus: i64) -> Case {
    let mut made = given(made, cpus);
    (made.record.allocated.gpus, made.record.gpus) = (Some(1), vec![gpu(Some(0.9), 2 * HOUR)]);
    Case::Job(Box::new(made), Around { node_gpus: Some(4), ..Around::default() })
}

fn cores_beside_a_gpu(cpus: f64) -> Case {
    beside_a_gpu(made(2 * HOUR).computing(|_| 4.0), cpus as i64)
}

/// A data loader that needs all its cores for this share of every 100 seconds.
fn loading_on_32_cores(share: f64) -> Case {
    let loads = move |second: i32| f64::from(second % 100) < 100.0 * share;
    beside_a_gpu(made(2 * HOUR).computing(move |second| if loads(second) { 32.0 } else { 2.0 }), 32)
}

fn quota_beside_a_gpu(share: f64) -> Case {
    let taken = 4.0 * share / (1.0 - share);
    beside_a_gpu(made(2 * HOUR).computing(|_| 4.0).rate(column::THROTTLED, move |_| taken), 32)
}

fn waiting_beside_a_gpu(waiting: f64) -> Case {
    beside_a_gpu(made(2 * HOUR).computing(|_| 4.0).rate(column::RUN_QUEUE_WAIT, move |_| waiting), 32)
}

/// Beside a job that waited for a CPU.
fn beside_another(made: Made, others: f64) -> Case {
    let around = Around { pressure: Some(0.3), cores: Some(others), ..Around::default() };
    Case::Job(Box::new(made), around)
}

fn cores_of_a_shared_machine(cores: f64) -> Case {
    beside_another(made(2 * HOUR).computing(move |_| cores), 24.0)
}

/// Both threads of each core that it was given are not more than it was given.
fn times_its_share(times: f64) -> Case {
    beside_another(given(made(2 * HOUR).computing(move |_| 20.0 * times), 20), 24.0)
}

/// What others used of 64 cores, of which it used 36 instead of 16: CPUs were idle, or not.
fn cores_of_the_others(others: f64) -> Case {
    beside_another(given(made(2 * HOUR).computing(|_| 36.0), 16), others)
}

fn calls(per_second: f64) -> Case {
    let made = made(HOUR).computing(|_| 1.0);
    let made = made.rate(column::READ_CALLS, move |_| per_second).rate(column::WRITE_CALLS, |_| 0.0);
    job(made.rate(column::READ_CALL, |_| 1e5).rate(column::WRITE_CALL, |_| 0.0))
}

fn children(per_second: f64) -> Case {
    job(made(HOUR).computing(|_| 1.0).rate(column::PROCESSES, move |_| per_second))
}

fn second_node(work: f64) -> Case {
    let mut made = given(made(2 * HOUR).computing(move |_| 16.0 * (1.0 + work)), 64);
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

/// A fifth of the work on the second node, both waiting for storage for this share of the time.
fn storage_of_two_nodes(share: f64) -> Case {
    let Case::Job(made, around) = second_node(0.2) else { unreachable!("one job") };
    let made = made.rate(column::PRESSURE_IO, move |_| 2.0 * share);
    Case::Job(Box::new(made), around)
}

fn pressure_of_others(share: f64) -> Case {
    let made = given(made(2 * HOUR).computing(|_| 60.0), 60);
    Case::Job(Box::new(made), Around { node_gpus: Some(4), pressure: Some(share), ..Around::default() })
}

fn of_user(user: &str, id: usize, made: Made) -> Record {
    let mut record = made.record;
    (record.user, record.key.id) = (Some(user.to_owned()), id.to_string());
    record
}

/// Ten hours of what was made for ten minutes: sums are of records.
fn ten_hours(made: Made) -> Made {
    let mut made = made;
    let end_ns = made.record.start_ns.map(|start_ns| start_ns + 36_000_000_000_000);
    for index in [column::WALL, column::CPU, column::PRESSURE_CPU] {
        if let Some(total) = made.record.totals.get(index) {
            made.record.totals.set(index, 60 * total, QualityKind::Measured, "cgroup");
        }
    }
    made.record.end_ns = end_ns;
    made
}

fn tiny_jobs(count: f64) -> Case {
    let tiny = |id| of_user("alice", id, given(made(30).computing(|_| 1.0), 1));
    Case::Users((0..count as usize).map(tiny).collect())
}

fn use_of_a_week(share: f64) -> Case {
    Case::Users(vec![of_user("alice", 1, ten_hours(given(made(600).computing(move |_| 64.0 * share), 64)))])
}

fn gpu_use_of_a_week(share: f64) -> Case {
    let gpus = |index: usize| GpuUse { uuid: format!("GPU-{index}"), ..gpu(Some(share), 10 * HOUR) };
    Case::Users(vec![of_user("alice", 1, ten_hours(with_gpus(600, (0..4).map(gpus).collect())))])
}

fn cpu_time_of_all(share: f64) -> Case {
    let of = |user, id, share: f64| {
        let made = made(600).computing(move |_| 64.0 * share).rate(column::PRESSURE_CPU, |_| 0.5);
        of_user(user, id, ten_hours(given(made, 64)))
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
                let unread = job.beside(Beside { gpus: around.node_gpus, ..Beside::default() });
                let (candidates, needs) = candidates(rules, &unread);
                let mut needed = made.series.clone();
                let columns = needed.columns.iter_mut().enumerate();
                columns.filter(|(index, _)| !needs.columns.has(*index)).for_each(|(_, cells)| cells.clear());
                let job = unread.beside(around.beside()).sampled(made.samples());
                let all = judge_all(rules.about(Scope::Job), &job);
                assert_eq!(judge_all(candidates.clone(), &job), all, "a rule was left out that speaks");
                let with_needed = job.unread().sampled(Samples { series: &needed, ..made.samples() });
                let found = judge_all(candidates, &with_needed);
                assert_eq!(found, all, "columns were left out that change what is said");
                all
            }
            Case::Users(records) => {
                let sums = user::sums(records, &[], sample::NOW_NS + 40 * 3_600_000_000_000);
                sums.iter().flat_map(|sum| findings_of_user(rules, sum)).collect()
            }
        }
    }
}

#[test]
fn every_built_in_rule_speaks_of_its_case_and_not_of_the_nearest_one() {
    for (rule, case, speaks, silent, _) in PAIRS {
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
    let mut with_pair: Vec<&str> = PAIRS.iter().map(|(rule, ..)| *rule).collect();
    with_pair.dedup();
    let built_in: Vec<&str> = Rules::built_in().rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(with_pair, built_in, "each rule has its pairs, in the order of the rules");
}

#[test]
fn every_sentence_of_a_built_in_rule_is_written_for_its_case() {
    for (rule, case, speaks, ..) in PAIRS {
        let found = case(*speaks).findings().into_iter().find(|finding| finding.rule == *rule).unwrap();
        for words in [&found.what, &found.how] {
            assert!(!words.is_empty() && !words.contains(['{', '}']), "{rule}: {words}");
        }
        assert!(!found.why.is_empty(), "{rule} has no numbers");
    }
}

proptest! {
    #![proptest_config(one_case_in(100))]

    #[test]
    fn more_waste_never_removes_a_finding(share in 0.0_f64..=1.0) {
        for (rule, case, speaks, _, most) in PAIRS {
            let more = speaks + share * (most - speaks);
            let (before, after) = (case(*speaks).findings(), case(more).findings());
            let tells = |found: &Finding| {
                let by = Rules::built_in().get(&found.rule).unwrap();
                found.rule == *rule || by.replaces.iter().any(|replaced| replaced == rule)
            };
            let reported = after.iter().find(|found| tells(found));
            prop_assert!(reported.is_some(), "{rule} is silent at {more}: {after:?}");
            let saved = |found: &[Finding]| {
                found.iter().filter(|found| tells(found)).map(|found| found.saving.weight()).fold(0.0, f64::max)
            };
            prop_assert!(saved(&after) >= saved(&before) - 1e-9, "{rule} saves less at {more}");
        }
    }

    #[test]
    fn nothing_is_said_below_any_gate(above in 1.001_f64..10.0) {
        for (name, case, speaks, ..) in PAIRS {
            let Case::Job(made, around) = case(*speaks) else { continue };
            let earlier: Vec<&Record> = around.earlier.iter().collect();
            let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns()).after(&earlier);
            let job = job.beside(around.beside()).sampled(made.samples());
            let rule = Rules::built_in().get(name).unwrap();
            let gates = rule.gates;
            let says = |gates: Gates| judged(&Rule { gates, ..rule.clone() }, Subject::Job(&job), false).finding;
            let found = says(gates).unwrap();
            let (length_s, samples) = (gates.length_s.max(f64::from(10 * HOUR)) * above, made.series.len());
            prop_assert_eq!(says(Gates { length_s, ..gates }), None, "{} is too short", name);
            prop_assert_eq!(says(Gates { samples: samples + 1, ..gates }), None, "{} has too few samples", name);
            let coverage = found.coverage * above;
            prop_assert_eq!(says(Gates { coverage, ..gates }), None, "{} is not covered", name);
            let Saving { core_hours, gpu_hours, .. } = found.saving;
            let least = Gates {
                core_hours: core_hours.unwrap_or(0.0) * above,
                gpu_hours: gpu_hours.unwrap_or(0.0) * above,
                ..gates
            };
            let saves = core_hours.is_some() || gpu_hours.is_some();
            prop_assert_eq!(says(least).is_none(), saves, "{} saves too little", name);
            let just = Gates { core_hours: core_hours.unwrap_or(0.0), gpu_hours: gpu_hours.unwrap_or(0.0), ..gates };
            prop_assert!(says(just).is_some(), "{name} saves just enough");
        }
    }
}

/// Everything that a policy run sees: jobs with their samples.
#[derive(Default)]
struct Month {
    records: Vec<Record>,
    samples: HashMap<String, Series>,
    gpus: HashMap<(String, String), Series>,
}

impl Month {
    fn add(&mut self, record: Record) -> String {
        let id = self.records.len().to_string();
        let key = met_core::job::JobKey { id: id.clone(), ..record.key.clone() };
        self.records.push(Record {
            key,
            scheduling: met_core::job::Scheduling { alias: None, ..record.scheduling.clone() },
            ..record
        });
        id
    }

    /// A job of a user and node of its own; what is around it is made of other jobs there.
    fn plant(&mut self, user: &str, made: Made, around: Around) {
        let node = format!("node-{user}");
        let of = |record: Record, user: &str| Record {
            user: Some(user.to_owned()),
            nodes: if record.nodes.len() == 1 { vec![node.clone()] } else { record.nodes },
            ..record
        };
        let record = of(made.record.clone(), user);
        for (before, run) in (1..).zip(around.earlier) {
            let earlier = |time: Option<i64>| time.map(|ns| ns - before * 86_400_000_000_000);
            let (start_ns, end_ns) = (earlier(run.start_ns), earlier(run.end_ns));
            self.add(Record { start_ns, end_ns, ..of(run, user) });
        }
        if around.node_gpus.is_some() || around.pressure.is_some() {
            let mut other = of(super::tests::given(crate::series_tests::made(60), 1).record, "neighbour");
            (other.start_ns, other.end_ns) = (record.start_ns, record.end_ns);
            let known = (around.node_gpus.unwrap_or(0) as usize).saturating_sub(record.gpus.len());
            let gpu = |index| GpuUse { uuid: format!("{node}-{index}"), utilization: None, ..sample::gpu() };
            other.gpus = (0..known).map(gpu).collect();
            let wall_ns = other.end_ns.zip(other.start_ns).map_or(0, |(end, start)| end - start);
            other.totals.set(column::WALL, wall_ns, QualityKind::Measured, "slurm");
            if let Some(share) = around.pressure {
                let waited_ns = (share * wall_ns as f64) as i64;
                other.totals.set(column::PRESSURE_CPU, waited_ns, QualityKind::Measured, "cgroup");
                other.allocated.cpus = None;
            }
            if let Some(cores) = around.cores {
                let cpu_ns = (cores * wall_ns as f64) as i64;
                other.totals.set(column::CPU, cpu_ns, QualityKind::Measured, "cgroup");
            }
            self.add(other);
        }
        let id = self.add(record);
        for (uuid, series) in made.gpus {
            self.gpus.insert((id.clone(), uuid), series);
        }
        self.samples.insert(id, made.series);
    }

    /// All findings, the most worthwhile first.
    fn findings(&self) -> Vec<Finding> {
        let now_ns = sample::START_NS + 40 * 3_600_000_000_000;
        let look = crate::check::Look {
            rules: Rules::built_in(),
            is_wanted: &|_| true,
            machine: &|_| Machine { cpus: Some(64) },
            shortest_ns: 60_000_000_000,
            interval: std::time::Duration::from_secs(1),
            now_ns,
        };
        let mut read = |record: &Record, table: &'static met_core::Table, part: &str, _: Columns| {
            let id = record.key.id.clone();
            let series = match part {
                "" => self.samples.get(&id),
                uuid => self.gpus.get(&(id, uuid.to_owned())),
            };
            Ok::<_, std::convert::Infallible>(series.cloned().unwrap_or_else(|| Series::new(table)))
        };
        let Ok((mut found, _)) = crate::check::of_jobs(&look, &self.records, &mut [&mut read]);
        for sum in user::sums(&self.records, &[], now_ns) {
            found.extend(findings_of_user(Rules::built_in(), &sum));
        }
        finding::rank(&mut found);
        found
    }
}

/// Every case of which a rule speaks, and the nearest of which it does not, each by a user of its own. Sums of users are
/// compared within a week: each such case has one.
fn month() -> (Month, BTreeMap<String, Vec<String>>) {
    let (mut month, mut expected) = (Month::default(), BTreeMap::new());
    let mut weeks = 0;
    for (place, (rule, case, speaks, silent, _)) in PAIRS.iter().enumerate() {
        for (kind, number) in [("bad", speaks), ("good", silent)] {
            let user = format!("{kind}{place}-{rule}");
            let case = case(*number);
            let of_user = case.findings().into_iter().filter(|found| found.user.as_deref() == Some("alice"));
            let mut reported: Vec<String> = of_user.map(|found| found.rule).collect();
            reported.sort();
            assert_eq!(reported.iter().any(|name| name == rule), kind == "bad");
            expected.insert(user.clone(), reported);
            match case {
                Case::Job(made, around) => month.plant(&user, *made, around),
                Case::Users(records) => {
                    weeks += 1;
                    for mut record in records {
                        let is_first = record.user.as_deref() == Some("alice");
                        record.user = Some(if is_first { user.clone() } else { format!("beside-{user}") });
                        for time in [&mut record.start_ns, &mut record.end_ns] {
                            *time = time.map(|ns| ns - weeks * user::WEEK_NS);
                        }
                        month.add(record);
                    }
                }
            }
        }
    }
    (month, expected)
}

#[test]
fn a_month_with_an_offender_for_every_rule_has_their_findings_and_no_others() {
    let (month, expected) = month();
    let is_of_user = |rule: &str| Rules::built_in().get(rule).unwrap().scope == Scope::User;
    let found = month.findings();
    let mut reported: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for finding in &found {
        reported.entry(finding.user.clone().unwrap()).or_default().push(finding.rule.clone());
    }
    for (user, mut rules) in expected {
        let mut of_user = reported.remove(&user).unwrap_or_default();
        // Jobs behind the sums of a user are judged by themselves as well.
        if is_of_user(user.split_once('-').unwrap().1) {
            of_user.retain(|rule| is_of_user(rule));
        }
        of_user.sort();
        rules.dedup();
        of_user.dedup();
        assert_eq!(of_user, rules, "{user}");
    }
    reported.retain(|user, _| !user.starts_with("beside-"));
    assert_eq!(reported, BTreeMap::new(), "nobody else is blamed");
}

proptest! {
    #![proptest_config(one_case_in(100))]

    #[test]
    fn the_order_of_jobs_is_irrelevant(seed in any::<u64>()) {
        static SHARED: std::sync::Mutex<Option<(Month, Vec<Finding>)>> = std::sync::Mutex::new(None);
        let mut shared = SHARED.lock().unwrap();
        let (month, found) = shared.get_or_insert_with(|| {
            let month = month().0;
            let found = month.findings();
            (month, found)
        });
        let place = |record: &Record| {
            let mut hasher = std::hash::DefaultHasher::new();
            (seed, &record.key.id).hash(&mut hasher);
            hasher.finish()
        };
        month.records.sort_by_cached_key(place);
        prop_assert_eq!(&month.findings(), found);
    }
}

/// A complaint about other systems: the figures of an array, or of another element, are taken for those of each.
#[test]
fn an_element_of_an_array_is_judged_by_its_own_use() {
    let used = [16.0, 16.0, 1.0, 16.0, 15.0, 4.0, 16.0, 14.0];
    let mut month = Month::default();
    for (index, cores) in used.into_iter().enumerate() {
        let made = made(2 * HOUR).computing(move |_| cores);
        let mut made = given(made, 16).level(column::MEMORY_NEEDED, |_| 40.0 * GIB as f64);
        made.record.allocated.memory_bytes = Some(64 * GIB);
        made.record.totals.set(column::OOM_KILLS, 0, QualityKind::Measured, "cgroup");
        made.record.nodes = vec![format!("n{index}")];
        let scheduling = &mut made.record.scheduling;
        (scheduling.array_id, scheduling.array_index) = (Some("1234".to_owned()), Some(index as i64));
        // What accounting says of one that has its id is of all of them.
        scheduling.cpu_ns = Some((used.iter().sum::<f64>() * 7.2e12) as i64);
        let id = month.add(made.record);
        month.samples.insert(id, made.series);
    }
    let mut found = month.findings();
    found.sort_by_key(|found| found.subject.clone());
    let reported: Vec<(&str, f64)> =
        found.iter().map(|found| (found.rule.as_str(), found.saving.core_hours.unwrap().round())).collect();
    assert_eq!(reported, [("serial_on_many", 30.0), ("cpu_low", 24.0)], "{found:?}");
    let jobs: Vec<&str> = found.iter().map(|found| found.subject.as_str()).collect();
    assert_eq!(jobs, ["slurm:2", "slurm:5"], "the two that leave their cores unused");
    assert!(found[0].what.contains("16"), "{}", found[0].what);
}
