use met_core::job::{GpuUse, Part, QualityKind, Record, State};
use met_core::job_table as column;
use met_core::queue::Queue;
use met_core::series::Columns;

use proptest::prelude::*;

use super::*;
use crate::answers::Beside;
use crate::report::Machine;
use crate::sample;
use crate::series_tests::{Made, made};

pub(super) const HOUR: i32 = 3600;
pub(super) const GIB: i64 = 1 << 30;

/// A job of a scheduler with so many CPUs, on a node of 64.
pub(super) fn given(made: Made, cpus: i64) -> Made {
    let mut made = made;
    let scheduled = sample::scheduled();
    (made.record.key, made.record.scheduling) = (scheduled.key, scheduled.scheduling);
    made.record.allocated.cpus = Some(cpus);
    made.record.allocated.nodes = Some(1);
    made
}

fn found_of(made: &Made) -> Vec<Finding> {
    let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns()).sampled(made.samples());
    let all = judge_all(Rules::built_in().about(Scope::Job), &job);
    let (candidates, needs) = candidates(Rules::built_in(), &job.unread());
    assert_eq!(judge_all(candidates, &job), all, "a rule was left out that speaks");
    assert!(needs.samples || all.is_empty() || !job.is_whole());
    assert_eq!(findings(Rules::built_in(), &job), all);
    all
}

/// On a machine with four GPUs.
fn near(pressure: Option<f64>) -> Beside {
    Beside { gpus: Some(4), pressure, cores: None }
}

/// What is read before the rules are judged.
fn needs_of(made: &Made) -> Needs {
    let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns());
    candidates(Rules::built_in(), &job.beside(Beside::default())).1
}

fn names(made: &Made) -> Vec<String> {
    found_of(made).into_iter().map(|finding| finding.rule).collect()
}

pub(super) fn gpu(used: Option<f64>, held_s: i32) -> GpuUse {
    GpuUse {
        utilization: used,
        used_ns: if used == Some(0.0) { 0 } else { i64::from(held_s) * 1_000_000_000 },
        held_ns: i64::from(held_s) * 1_000_000_000,
        known_ns: Some(i64::from(held_s) * 1_000_000_000),
        memory_peak_bytes: Some(10 * GIB),
        memory_total_bytes: Some(140 * GIB),
        ..sample::gpu()
    }
}

pub(super) fn with_gpus(seconds: i32, gpus: Vec<GpuUse>) -> Made {
    let mut made = given(made(seconds).computing(|_| 0.5), 1);
    made.record.allocated.gpus = Some(gpus.len() as i64);
    made.record.gpus = gpus;
    made
}

fn none() -> Vec<String> {
    Vec::new()
}

#[test]
fn the_built_in_rules_are_valid() {
    assert!(Rules::built_in().rules.len() >= 20);
}

#[test]
fn an_hour_of_a_gpu_weighs_the_same_everywhere() {
    let weight = |core_hours, gpu_hours| Saving { core_hours, gpu_hours, ..Saving::default() }.weight();
    assert_eq!(weight(None, Some(1.0)), weight(Some(finding::GPU_HOUR), None));
    let gates = Gates::default();
    assert_eq!(gates.gpu_hours * finding::GPU_HOUR, gates.core_hours);
    let held = with_gpus(HOUR, vec![gpu(Some(0.0), HOUR)]);
    assert_eq!(found_of(&held)[0].held_core_hours, Some(1.0 + finding::GPU_HOUR));
}

#[test]
fn a_finding_has_its_numbers_its_remedy_and_its_saving() {
    let serial = given(made(2 * HOUR).computing(|_| 1.0), 16);
    let found = found_of(&serial);
    assert_eq!(found.len(), 1, "the general rule is silent beside the special one: {found:?}");
    assert_eq!((found[0].rule.as_str(), found[0].severity), ("serial_on_many", Severity::High));
    assert_eq!(found[0].what, "it computed on one of the 16 cores that it held");
    assert_eq!(found[0].saving.core_hours, Some(30.0));
    let why: Vec<&str> = found[0].why.iter().map(|evidence| evidence.name).collect();
    let numbers = ["cpus", "nodes", "cores", "cores_p95", "gpus", "storage_wait", "cores_sustained", "wall"];
    assert_eq!(why, numbers);
    assert!(found[0].coverage > 0.99);
    let json = finding::object(&found[0]);
    assert_eq!(json["saving"], serde_json::json!({"core_hours": 30.0}));
    assert_eq!(json["why"][2]["quality"], "sampled");
}

/// A plain `met run`: no scheduler gave it anything.
pub(super) fn plain(usable: Option<u32>, cores: f64, waiting: f64) -> Made {
    let mut made = made(2 * HOUR).computing(move |_| cores).rate(column::RUN_QUEUE_WAIT, move |_| waiting);
    let local = met_core::job::Local::new("", met_core::job::Origin::Run, "/");
    made.record.local = Some(met_core::job::Local { cpus_usable: usable, ..local });
    made
}

#[test]
fn an_end_that_was_not_completed_is_judged_by_its_samples() {
    let mut crowded = plain(Some(2), 2.0, 14.0);
    crowded.record.totals.remove(column::RUN_QUEUE_WAIT);
    crowded.record.summaries = Default::default();
    assert_eq!(names(&crowded), ["oversubscribed"]);
}

#[test]
fn who_was_given_no_cpus_can_have_too_many_threads_and_leaves_none_unused() {
    assert_eq!(names(&plain(Some(64), 1.0, 0.0)), none(), "one of the cores of an idle machine");
    assert_eq!(names(&plain(Some(64), 0.01, 0.0)), none(), "it slept");
    assert_eq!(names(&plain(Some(2), 2.0, 14.0)), ["oversubscribed"]);
    assert_eq!(found_of(&plain(Some(2), 2.0, 14.0))[0].what, "16 threads were runnable, on 2 cores");
    let how = |made: &Made| found_of(made)[0].how.clone();
    assert!(how(&plain(Some(2), 2.0, 14.0)).ends_with(": OMP_NUM_THREADS=2 if it is one"));
    let mut ranks = given(plain(None, 16.0, 48.0), 16);
    ranks.record.allocated.tasks = Some(4);
    assert_eq!(how(&ranks), "start as many threads as cores: OMP_NUM_THREADS=4 in each task");
    assert_eq!(names(&plain(None, 2.0, 14.0)), none(), "without a mask, on a machine of 64");
    assert_eq!(names(&plain(Some(4), 2.0, 14.0)), none(), "others have half of its cores");
    assert_eq!(names(&given(plain(Some(2), 2.0, 14.0), 16)), none(), "what it was given counts");
}

#[test]
fn samples_are_read_of_jobs_that_a_rule_may_speak_of() {
    let nothing = Needs::default();
    let needs_of = |made: &Made| Needs { columns: Columns::NONE, ..needs_of(made) };
    let busy = |seconds: i32, cpus: i64| given(made(seconds).computing(move |_| cpus as f64), cpus);
    assert_eq!(needs_of(&busy(599, 64)), nothing, "too short for every rule");
    assert_eq!(needs_of(&busy(700, 4)), nothing, "nothing to save");
    assert_eq!(needs_of(&busy(2 * HOUR, 16)), Needs::samples(&[]), "its cores may have been idle in the end");
    let mut running = busy(700, 1);
    assert_eq!(needs_of(&running), nothing, "no total says that it waited or read");
    running.record.state = State::Running;
    assert_eq!(needs_of(&running), Needs::samples(&[]), "its totals may be older than its samples");
    let swapping = |share: f64| busy(700, 1).rate(column::PRESSURE_MEMORY, move |_| share);
    assert_eq!(needs_of(&swapping(0.01)), nothing);
    assert_eq!(needs_of(&swapping(0.3)), Needs::samples(&[]));
    let mut unread = swapping(0.3);
    unread.record.totals = Default::default();
    (unread.record.end_ns, unread.record.start_ns) = (Some(700_000_000_000), Some(0));
    assert_eq!(needs_of(&unread), Needs::samples(&[]), "totals that cannot be read bound nothing");
    let mut in_part = busy(2 * HOUR, 16);
    in_part.record.allocated.nodes = Some(2);
    assert!(!needs_of(&in_part).samples, "samples of one node of two are not used");
    let with_gpu = |ratio: f64| with_gpus(2 * HOUR, vec![gpu(Some(ratio), 2 * HOUR)]);
    assert!(needs_of(&with_gpu(0.9)).gpu_samples);
    assert!(!needs_of(&with_gpu(0.5)).gpu_samples, "it was not busy enough to look at its power");
}

/// A share of the cases that PROPTEST_CASES asks for: each of these takes long.
pub(super) fn one_case_in(share: u32) -> ProptestConfig {
    ProptestConfig::with_cases((ProptestConfig::default().cases / share).max(2))
}

#[test]
fn other_jobs_on_its_node_are_looked_for_where_a_rule_asks_for_them() {
    let asks = |made: &Made| {
        let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns());
        ask_neighbours(Rules::built_in(), &job)
    };
    let used = |cores: f64, cpus: i64| given(made(2 * HOUR).computing(move |_| cores), cpus);
    assert!(asks(&used(60.0, 60)), "its node may have GPUs");
    assert!(asks(&used(4.0, 1)), "it used more than it was given");
    assert!(!asks(&used(2.0, 2)), "it took nothing from others");
    let mut with_gpu = with_gpus(2 * HOUR, vec![gpu(Some(0.9), 2 * HOUR)]);
    with_gpu.record.allocated.cpus = Some(32);
    assert!(asks(&with_gpu), "there may be GPUs that need its cores");
}

proptest! {
    #![proptest_config(one_case_in(10))]

    #[test]
    fn a_rule_that_is_left_out_without_samples_would_not_have_spoken_with_them(
        (seconds, cpus, gap) in (60..2 * HOUR, prop::option::of(1_i64..64), prop::option::of(0.1_f64..0.9)),
        (first, second) in (0.0_f64..64.0, 0.0_f64..64.0),
        (waiting, pressure, calls, children) in (0.0_f64..100.0, 0.0_f64..1.0, 0.0_f64..20_000.0, 0.0_f64..150.0),
        (memory_gib, growth, held_gib, gpus) in (0.0_f64..8.0, 0.0_f64..4.0, 1_i64..64, 0..3_usize),
    ) {
        let half = seconds / 2;
        let mut made = made(seconds)
            .computing(move |second_of| if second_of < half { first } else { second })
            .rate(column::RUN_QUEUE_WAIT, move |_| waiting)
            .rate(column::PRESSURE_MEMORY, move |_| pressure)
            .rate(column::READ_CALLS, move |_| calls)
            .rate(column::WRITE_CALLS, |_| 1.0)
            .rate(column::READ_CALL, |_| 1000.0)
            .rate(column::WRITE_CALL, |_| 1000.0)
            .rate(column::PROCESSES, move |_| children)
            .level(column::MEMORY_NEEDED, move |second| {
                (memory_gib + growth * f64::from(second) / f64::from(seconds)) * GIB as f64
            });
        if let Some(gap) = gap {
            let begin = (f64::from(seconds) * gap) as usize;
            made = made.without(begin..begin + 3);
        }
        if let Some(cpus) = cpus {
            made = given(made, cpus);
            made.record.allocated.memory_bytes = Some(held_gib * GIB);
        }
        made.record.gpus = (0..gpus).map(|index| gpu(Some(0.4 * index as f64), seconds)).collect();
        found_of(&made);
    }
}

#[test]
fn nothing_is_said_below_a_gate() {
    let cores = |_: i32| 1.0;
    assert_eq!(names(&given(made(599).computing(cores), 64)), none(), "shorter than ten minutes");
    assert_eq!(names(&given(made(650).computing(cores), 4)), none(), "half a core-hour");
    assert_eq!(names(&given(made(650).computing(cores), 16)), ["serial_on_many"]);
    let gap = given(made(2 * HOUR).computing(cores), 16).without(3000..4000);
    assert_eq!(names(&gap), none(), "86 % are covered");
    let mut bound = given(made(2 * HOUR).computing(cores), 16);
    bound.record.totals.set(column::CPU, 7200 * 1_000_000_000, QualityKind::LowerBound, "cgroup");
    let job = Job::new(&bound.record, Machine { cpus: Some(64) }, bound.now_ns());
    assert_eq!(findings(Rules::built_in(), &job), [], "without samples a lower bound covers nothing");
}

#[test]
fn without_exit_records_the_rate_of_processes_is_a_lower_bound() {
    let reported = |rate: f64, kind: QualityKind, when: &str| {
        let mut made = made(HOUR).computing(|_| 1.0).rate(column::PROCESSES, move |_| rate);
        let seen = made.record.totals.get(column::PROCESSES).unwrap();
        made.record.totals.set(column::PROCESSES, seen, kind, "/proc");
        let yaml = format!(
            "rules: [{{name: children, severity: low, when: {when:?}, what: \"{{rate(processes)}} a second\", how: x}}]"
        );
        let rules = parse(&yaml).unwrap();
        let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns()).sampled(made.samples());
        let explanation = explain(&rules.rules[0], &job);
        let [evidence] = &explanation.evidence[..] else { panic!("{explanation:?}") };
        (explanation.steps[0].passed, evidence.quality, explanation.finding.map(|finding| finding.what))
    };
    let (counted, bound) = (QualityKind::Measured, QualityKind::LowerBound);
    let many = "rate(processes) > 50 / 1s";
    assert_eq!(
        reported(51.0, counted, many),
        (Some(true), QualityKind::Sampled, Some("51 a second".to_owned()))
    );
    assert_eq!(reported(49.0, counted, many), (Some(false), QualityKind::Sampled, None));
    // It started so many at least, and may have started any number.
    assert_eq!(reported(51.0, bound, many), (Some(true), bound, Some("≥51 a second".to_owned())));
    assert_eq!(reported(49.0, bound, many), (None, bound, None));
    let few = "10 / 1s > rate(processes) * 2";
    assert_eq!(reported(4.0, counted, few).0, Some(true));
    assert_eq!(reported(4.0, bound, few), (None, bound, None), "nothing is said of what was not counted");
    assert_eq!(reported(6.0, bound, few), (Some(false), bound, None));
    assert_eq!(reported(4.0, bound, "not rate(processes) > 5 / 1s"), (None, bound, None));
}

#[test]
fn a_warm_up_is_left_out() {
    // Loading for nine minutes on one core, then busy on all.
    let slow_start = given(made(3 * HOUR).computing(|second| if second < 500 { 0.5 } else { 8.0 }), 8);
    assert_eq!(names(&slow_start), none());
    let job = Job::new(&slow_start.record, Machine { cpus: Some(64) }, slow_start.now_ns());
    let job = job.sampled(slow_start.samples());
    let rule = Rules::built_in().get("cpu_low").unwrap();
    let cores = explain(rule, &job).evidence.into_iter().find(|evidence| evidence.name == "cores").unwrap();
    assert!((cores.value - 8.0).abs() < 0.01, "{cores:?}");
}

#[test]
fn an_explanation_shows_what_was_asked_and_why_it_is_silent() {
    let short = given(made(300).computing(|_| 1.0), 64);
    let job = Job::new(&short.record, Machine { cpus: Some(64) }, short.now_ns()).sampled(short.samples());
    let explanation = explain(Rules::built_in().get("cpu_low").unwrap(), &job);
    assert_eq!(explanation.finding, None);
    let failed: Vec<&Step> = explanation.steps.iter().filter(|step| step.passed != Some(true)).collect();
    assert_eq!(failed[0].asked, "it ran for at least 10m0s");
    let gpu = explain(Rules::built_in().get("gpu_idle").unwrap(), &job);
    assert_eq!((gpu.steps[0].passed, gpu.unknown), (Some(false), vec!["gpu_ratio"]));
    let terms: Vec<_> = gpu.steps.iter().map(|step| (step.asked.as_str(), step.passed)).collect();
    assert_eq!(terms, [("gpus >= 1", Some(false)), ("gpu_ratio < 5%", None)], "what is false comes first");
}

// What users of other systems complain about, one test each.

#[test]
fn corrupt_or_missing_gpu_data_is_no_idle_gpu() {
    assert_eq!(names(&with_gpus(HOUR, vec![gpu(Some(0.0), HOUR)])), ["gpu_idle"], "a real one is found");
    assert_eq!(names(&with_gpus(HOUR, vec![gpu(None, HOUR)])), none(), "no data");
    assert_eq!(names(&with_gpus(HOUR, vec![gpu(Some(f64::NAN), HOUR)])), none(), "not a number");
    assert_eq!(names(&with_gpus(HOUR, vec![gpu(Some(-0.3), HOUR)])), none(), "less than nothing");
    assert_eq!(names(&with_gpus(HOUR, vec![gpu(Some(0.0), HOUR / 2)])), none(), "seen half of the time");
    let minute = GpuUse { known_ns: Some(60_000_000_000), ..gpu(Some(0.0), HOUR) };
    assert_eq!(names(&with_gpus(HOUR, vec![minute])), none(), "held for an hour, its use read for a minute");
    let old = GpuUse { known_ns: None, ..gpu(Some(0.0), HOUR) };
    assert_eq!(names(&with_gpus(HOUR, vec![old])), none(), "for how long it was read is not known");
    let lost = GpuUse { lost_since_ns: Some(1), ..gpu(Some(0.0), HOUR) };
    assert_eq!(names(&with_gpus(HOUR, vec![lost])), none(), "it fell off the bus");
    let mut unseen = with_gpus(HOUR, Vec::new());
    unseen.record.allocated.gpus = Some(4);
    assert_eq!(names(&unseen), none(), "given, and never seen");
}

#[test]
fn few_cores_beside_a_gpu_of_unknown_use_are_not_blamed() {
    let beside = |cores: fn(i32) -> f64, gpu: GpuUse| {
        let mut made = given(made(3 * HOUR).computing(cores), 16);
        (made.record.allocated.gpus, made.record.gpus) = (Some(1), vec![gpu]);
        made
    };
    let lost = || GpuUse { lost_since_ns: Some(1), ..gpu(Some(0.0), 3 * HOUR) };
    assert_eq!(names(&beside(|_| 1.0, lost())), none(), "its GPU fell off the bus");
    assert_eq!(names(&beside(|_| 1.0, gpu(None, 3 * HOUR))), none(), "its GPU was not read");
    // A program that sleeps while its GPU computes.
    let quiet = |second: i32| if second < 600 { 2.0 } else { 0.001 };
    assert_eq!(names(&beside(quiet, gpu(None, 3 * HOUR))), none());
    let mut running = beside(quiet, gpu(None, 3 * HOUR));
    running.record.state = State::Running;
    assert_eq!(names(&running), none());
    let read = gpu(Some(0.1), 3 * HOUR);
    assert!(names(&beside(|_| 1.0, read)).contains(&"serial_on_many".to_owned()), "a quiet GPU is known");
}

#[test]
fn a_gpu_that_holds_a_model_beside_one_that_computes_is_not_unused() {
    let holds = GpuUse { memory_peak_bytes: Some(126 * GIB), ..gpu(Some(0.0), HOUR) };
    let pair = |other: GpuUse| {
        let made = with_gpus(HOUR, vec![gpu(Some(0.9), HOUR), GpuUse { uuid: "GPU-b".to_owned(), ..other }]);
        names(&made).contains(&"gpus_unused".to_owned())
    };
    assert!(pair(gpu(Some(0.0), HOUR)));
    assert!(!pair(holds.clone()), "its memory is full");
    assert!(!pair(GpuUse { memory_peak_bytes: None, ..holds }), "what it holds is not known");
}

#[test]
fn a_smaller_gpu_must_have_the_memory_and_the_compute_units() {
    let of = |busy: f64, sm: f64, gib: i64| {
        let memory_peak_bytes = Some(gib * GIB);
        let gpu = GpuUse { sm_activity: Some(sm), memory_peak_bytes, ..gpu(Some(busy), HOUR) };
        names(&with_gpus(HOUR, vec![gpu])).contains(&"gpu_too_large".to_owned())
    };
    assert!(of(0.5, 0.05, 10));
    assert!(of(0.5, 0.05, 50), "three slices have half of its memory");
    assert!(!of(0.5, 0.05, 60), "with room it needs more than that");
    assert!(!of(0.5, 0.2, 10), "with room it needs more than three of seven slices");
    assert!(!of(0.1, 0.1, 10), "it is busy seldom, with all its compute units");
}

#[test]
fn full_gpu_memory_at_no_use_holds_a_model() {
    let full = GpuUse { memory_peak_bytes: Some(120 * GIB), ..gpu(Some(0.0), HOUR) };
    assert_eq!(names(&with_gpus(HOUR, vec![full.clone()])), none());
    let unknown = GpuUse { memory_peak_bytes: None, ..full };
    assert_eq!(names(&with_gpus(HOUR, vec![unknown])), none(), "unknown counter-evidence silences, too");
}

#[test]
fn a_part_of_a_gpu_is_judged_by_itself() {
    let part =
        |used| GpuUse { parent: Some("GPU-whole".to_owned()), index: "0.1".to_owned(), ..gpu(used, HOUR) };
    assert_eq!(names(&with_gpus(HOUR, vec![part(None)])), none(), "MIG instances have no utilization");
    assert_eq!(names(&with_gpus(HOUR, vec![part(Some(0.9))])), none());
    let small = GpuUse { sm_activity: Some(0.05), ..gpu(Some(0.5), HOUR) };
    let found = found_of(&with_gpus(HOUR, vec![small.clone()]));
    assert_eq!(
        found[0].how,
        "less would do: a MIG instance 1g (1 of 7 slices, 17.5 GiB); or give it more at once: larger batches, CUDA graphs"
    );
    assert_eq!(found[0].saving.gpu_hours.map(|hours| hours.round()), Some(1.0), "six sevenths of it");
    let whole = GpuUse { name: "NVIDIA L40S".to_owned(), ..small.clone() };
    assert_eq!(
        found_of(&with_gpus(HOUR, vec![whole]))[0].how,
        "a smaller GPU would do; or give it more at once: larger batches, CUDA graphs"
    );
    let small_part = GpuUse { parent: Some("GPU-whole".to_owned()), ..small };
    assert_eq!(names(&with_gpus(HOUR, vec![small_part])), none(), "it is small already");
}

#[test]
fn a_whole_node_is_not_advised_to_save_memory() {
    let memory = |cpus: i64| {
        let mut made = given(made(HOUR).computing(move |_| cpus as f64), cpus);
        made = made.level(column::MEMORY_NEEDED, |_| 2.0 * GIB as f64);
        made.record.allocated.memory_bytes = Some(64 * GIB);
        made.record.totals.set(column::OOM_KILLS, 0, QualityKind::Measured, "cgroup");
        made
    };
    let found = found_of(&memory(16));
    assert_eq!((found[0].rule.as_str(), found[0].how.as_str()), ("memory_excess", "#SBATCH --mem=2560M"));
    assert_eq!(names(&memory(60)), none(), "60 of 64 cores: nobody else can use it");
}

#[test]
fn a_job_that_took_its_node_whole_is_not_advised_to_save_memory() {
    let memory = |exclusive: Option<bool>| {
        let mut made = given(made(HOUR).computing(|_| 4.0), 4);
        made = made.level(column::MEMORY_NEEDED, |_| 2.0 * GIB as f64);
        made.record.allocated.memory_bytes = Some(64 * GIB);
        made.record.totals.set(column::OOM_KILLS, 0, QualityKind::Measured, "cgroup");
        made.record.scheduling.exclusive = exclusive;
        made
    };
    let requests = |made: &Made| {
        let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns()).sampled(made.samples());
        crate::answers::directives::directives(&job)
            .iter()
            .filter(|request| request.resource == "memory")
            .count()
    };
    let whole = memory(Some(true));
    assert_eq!((names(&whole), requests(&whole)), (none(), 0), "four of 64 cores, and the node for itself");
    for shared in [memory(None), memory(Some(false))] {
        assert_eq!((names(&shared), requests(&shared)), (vec!["memory_excess".to_owned()], 1));
    }
    let job = Job::new(&whole.record, Machine { cpus: Some(64) }, whole.now_ns()).sampled(whole.samples());
    let steps = explain(Rules::built_in().get("memory_excess").unwrap(), &job).steps;
    let failed = steps.iter().find(|step| step.passed == Some(false)).unwrap();
    assert!(failed.asked.ends_with(": its nodes are exclusive"), "{failed:?}");
}

#[test]
fn a_job_that_took_its_node_whole_is_not_advised_to_hold_fewer_cores() {
    let of = |cores: fn(i32) -> f64, exclusive: Option<bool>| {
        let mut made = given(made(3 * HOUR).computing(cores), 16);
        made.record.scheduling.exclusive = exclusive;
        (made.record.requested.tasks, made.record.requested.cpus) = (Some(1), Some(16));
        let peak = (cores(0) * 1e3) as i64;
        made.record.totals.set(column::CORES_PEAK, peak, QualityKind::Sampled, "cgroup");
        made
    };
    let requests = |made: &Made| {
        let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns()).sampled(made.samples());
        crate::answers::directives::directives(&job).iter().filter(|it| it.resource == "cpus").count()
    };
    for (cores, rule) in [((|_| 1.0) as fn(i32) -> f64, "serial_on_many"), (|_| 4.0, "cpu_low")] {
        for shared in [of(cores, None), of(cores, Some(false))] {
            assert_eq!((names(&shared), requests(&shared)), (vec![rule.to_owned()], 1));
        }
        let whole = of(cores, Some(true));
        assert_eq!((names(&whole), requests(&whole)), (none(), 0), "{rule}");
    }
    let quiet_end = |second: i32| if second < HOUR { 16.0 } else { 0.0 };
    assert_eq!(names(&of(quiet_end, Some(true))), ["idle_tail"], "a shorter time frees the node");
    let mut gpu_idle = with_gpus(HOUR, vec![gpu(Some(0.0), HOUR)]);
    gpu_idle.record.scheduling.exclusive = Some(true);
    assert_eq!(names(&gpu_idle), ["gpu_idle"], "a node without GPUs would do");
    let mut beside = with_gpus(2 * HOUR, vec![gpu(Some(0.9), 2 * HOUR)]);
    beside.record.allocated.cpus = Some(32);
    let of_four = |made: &Made| {
        let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns()).beside(near(None));
        findings(Rules::built_in(), &job.sampled(made.samples())).len()
    };
    assert_eq!(of_four(&beside), 1, "32 of 64 cores beside one of four GPUs");
    beside.record.scheduling.exclusive = Some(true);
    assert_eq!(of_four(&beside), 0);
}

#[test]
fn cpu_time_that_is_a_lower_bound_proves_no_low_use() {
    for (cores, rule) in [(1.0, "serial_on_many"), (4.0, "cpu_low")] {
        let mut made = given(made(3 * HOUR).computing(move |_| cores), 16);
        assert_eq!(names(&made), [rule]);
        let cpu_ns = made.record.totals.get(column::CPU).unwrap();
        made.record.totals.set(column::CPU, cpu_ns, QualityKind::LowerBound, "cgroup");
        assert_eq!(names(&made), none());
    }
}

/// The job of an adversary: 16 cores for ten minutes, all of them within the warm-up, then a core that waits for storage.
fn burst_then(waits: f64, cores_after: f64) -> Made {
    let made = made(12_000).cores(move |second| if second < 600 { 16.0 } else { cores_after });
    given(made.rate(column::PRESSURE_IO, move |second| if second < 600 { 0.0 } else { waits }), 16)
}

#[test]
fn a_job_that_waits_for_storage_is_not_told_to_hold_fewer_cores() {
    let waits = |cores: f64, share: f64| {
        given(made(2 * HOUR).cores(move |_| cores).rate(column::PRESSURE_IO, move |_| share), 16)
    };
    assert_eq!(names(&waits(0.9, 0.1)), ["serial_on_many"]);
    assert_eq!(names(&waits(0.9, 0.5)), none());
    assert_eq!(names(&waits(3.0, 0.1)), ["cpu_low"]);
    assert_eq!(names(&waits(3.0, 0.5)), none());
    let delays = |share: f64| given(made(2 * HOUR).cores(|_| 3.0).rate(column::DELAY_IO, move |_| share), 16);
    assert_eq!(names(&delays(0.1)), ["cpu_low"]);
    assert_eq!(names(&delays(8.0)), none(), "eight threads waited, where there is no pressure");
}

#[test]
fn a_job_whose_waiting_is_not_known_is_judged_by_the_bytes_it_moved() {
    let moves = |bytes: f64| {
        let made = made(2 * HOUR).cores(|_| 3.0).rate(column::READ, move |_| bytes);
        given(made.rate(column::WRITTEN, |_| 0.0), 16)
    };
    assert_eq!(names(&moves(1e5)), ["cpu_low"]);
    assert_eq!(names(&moves(1e7)), none(), "it may have waited for each of them");
    assert_eq!(names(&given(made(2 * HOUR).cores(|_| 3.0), 16)), none(), "nothing is known of storage");
}

#[test]
fn a_job_that_once_used_its_cores_is_not_serial() {
    assert_eq!(names(&burst_then(0.8, 0.6)), none());
    assert_eq!(names(&burst_then(0.0, 0.6)), none(), "it waited for nothing, and had used 16");
    let job = burst_then(0.0, 0.6);
    let job = Job::new(&job.record, Machine { cpus: Some(64) }, job.now_ns()).sampled(job.samples());
    let steps = explain(Rules::built_in().get("serial_on_many").unwrap(), &job).steps;
    let failed: Vec<&Step> = steps.iter().filter(|step| step.passed == Some(false)).collect();
    assert!(failed[0].asked.ends_with("it used more cores for a while"), "{failed:?}");
    let short = made(12_000).computing(|second| if second < 60 { 16.0 } else { 0.9 });
    assert_eq!(names(&given(short, 16)), ["serial_on_many"], "a minute of three hours");
    let half = made(12_000).computing(|second| if second < 600 { 8.0 } else { 0.6 });
    assert_eq!(names(&given(half, 16)), ["cpu_low"], "half of its cores would have been enough");
}

#[test]
fn the_verdict_on_a_burst_before_waiting_for_storage_is_storage() {
    use crate::answers::{Limit, answers};
    let limit = |made: &Made| {
        let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns()).sampled(made.samples());
        answers(&job, Rules::built_in()).bottleneck.unwrap().limit
    };
    assert_eq!(limit(&burst_then(0.8, 0.6)), Limit::Io);
    assert_eq!(limit(&burst_then(0.1, 0.95)), Limit::OneCore);
}

#[test]
fn a_job_that_copies_slowly_in_the_end_has_no_idle_tail() {
    let tail = |bytes: f64, waits: f64| {
        let later = move |share: f64| move |second: i32| if second < HOUR { 0.0 } else { share };
        let made = made(3 * HOUR).cores(|second| if second < HOUR { 16.0 } else { 0.01 });
        let made = made.rate(column::PRESSURE_IO, later(waits)).rate(column::READ, later(bytes));
        given(made.rate(column::WRITTEN, later(bytes)), 16)
    };
    assert_eq!(names(&tail(0.0, 0.0)), ["idle_tail"]);
    assert_eq!(names(&tail(5e5, 0.0)), none(), "half a megabyte a second");
    assert_eq!(names(&tail(0.0, 0.1)), none(), "it waits for storage now and then");
    let mut running = tail(5e5, 0.0);
    running.record.state = State::Running;
    assert_eq!(names(&running), none(), "nor is it deadweight");
    let unknown = given(made(3 * HOUR).cores(|second| if second < HOUR { 16.0 } else { 0.01 }), 16);
    assert_eq!(names(&unknown), none(), "what it waited for is not known");
}

#[test]
fn page_cache_is_no_memory_need() {
    let mut made = given(made(HOUR).computing(|_| 4.0), 4);
    made = made.level(column::MEMORY_NEEDED, |_| 30.0 * GIB as f64);
    made.record.allocated.memory_bytes = Some(64 * GIB);
    made.record.totals.set(column::OOM_KILLS, 0, QualityKind::Measured, "cgroup");
    made.record.totals.set(column::MEMORY_PEAK, 64 * GIB, QualityKind::Measured, "cgroup");
    assert_eq!(names(&made), none(), "it needs 36 of 64 with room");
}

#[test]
fn one_node_of_several_is_not_judged_as_the_whole() {
    let mut made = given(self::made(2 * HOUR).computing(|_| 16.0), 32);
    made.record.allocated.nodes = Some(2);
    made.record.nodes = vec!["n1".to_owned(), "n2".to_owned()];
    assert_eq!(names(&made), none(), "the other node was not measured");
    made.record.scheduling.cpu_ns = Some(2 * 3_600_000_000_000 * 32);
    assert_eq!(names(&made), none(), "what the manager says of all nodes is not what was sampled on one");
    made.record.parts = ["n1", "n2"].map(|node| Part { node: node.to_owned(), ..Part::default() }).into();
    assert_eq!(names(&made), none(), "its steps are named, and were not measured");
    made.record.scheduling.cpu_ns = None;
    let mut idle = given(self::made(8 * HOUR).computing(|second| if second < HOUR { 16.0 } else { 0.0 }), 64);
    idle.record.allocated.nodes = Some(4);
    assert_eq!(names(&idle), none(), "one idle node of four is no idle tail of the job");
    let part = |node: &str, cpu_s: i64| {
        let mut part = Part { node: node.to_owned(), ..Part::default() };
        part.totals.set(column::CPU, cpu_s * 1_000_000_000, QualityKind::Measured, "cgroup");
        part
    };
    made.record.parts = vec![part("n1", 16 * 7200), part("n2", 0)];
    assert_eq!(names(&made), ["node_imbalance"]);
}

#[test]
fn memory_of_several_tasks_is_that_of_their_node() {
    // Eight tasks of 4 GiB on one node: 32 GiB, and not 4 or 8 × 32.
    let mut made =
        given(made(HOUR).computing(|_| 8.0), 8).level(column::MEMORY_NEEDED, |_| 32.0 * GIB as f64);
    made.record.allocated.memory_bytes = Some(40 * GIB);
    made.record.totals.set(column::OOM_KILLS, 0, QualityKind::Measured, "cgroup");
    let task = |index: usize| {
        let mut part = Part { node: "n1".to_owned(), step: "0".to_owned(), ..Part::default() };
        part.task = Some(index.to_string());
        part.totals.set(column::MEMORY_NEEDED_PEAK, 4 * GIB, QualityKind::Sampled, "cgroup");
        part.totals.set(column::CPU, 3_600_000_000_000, QualityKind::Measured, "cgroup");
        part
    };
    made.record.parts = (0..8).map(task).collect();
    assert_eq!(names(&made), none());
}

#[test]
fn steps_with_empty_cpu_time_are_not_idle() {
    let mut made = given(made(2 * HOUR), 16);
    made.record.parts = vec![Part { node: "n1".to_owned(), step: "0".to_owned(), ..Part::default() }];
    assert_eq!(names(&made), none());
    made.record.scheduling.cpu_ns = Some(0);
    assert_eq!(names(&made), none(), "a scheduler that reports nothing reports 0");
}

#[test]
fn few_cores_beside_a_busy_gpu_are_fine() {
    let mut made = with_gpus(2 * HOUR, vec![gpu(Some(0.9), 2 * HOUR)]);
    made.record.allocated.cpus = Some(32);
    assert_eq!(names(&made), none());
}

#[test]
fn a_job_on_an_idle_machine_does_not_hog_it() {
    let busy = |own_pressure: f64| {
        let made = made(2 * HOUR).computing(|_| 60.0).rate(column::PRESSURE_CPU, move |_| own_pressure);
        let mut made = given(made, 60);
        made.record.gpus = Vec::new();
        made
    };
    let hogs = |made: &Made, pressure: Option<f64>| {
        let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns()).beside(near(pressure));
        let job = job.sampled(made.samples());
        findings(Rules::built_in(), &job).into_iter().any(|finding| finding.rule == "cpu_hog_on_gpu_node")
    };
    assert!(hogs(&busy(0.5), Some(0.5)));
    assert!(!hogs(&busy(0.5), Some(0.0)), "its own threads waited for each other");
    assert!(!hogs(&busy(0.5), None), "it was alone");
}

#[test]
fn a_remedy_names_a_configured_system_that_fits() {
    let made = made(2 * HOUR).computing(|_| 60.0).level(column::MEMORY_NEEDED, |_| 4.0 * GIB as f64);
    let made = given(made, 60);
    let how = |cores: u64| {
        let fox = crate::scale::System {
            name: "fox".to_owned(),
            cores,
            memory_bytes: Some(256 << 30),
            ..crate::scale::System::default()
        };
        let systems = [fox];
        let job = Job::new(&made.record, Machine { cpus: Some(64) }, made.now_ns()).beside(near(Some(0.5)));
        findings(Rules::built_in(), &job.among(&systems).sampled(made.samples()))[0].how.clone()
    };
    assert_eq!(how(128), "move it to fox");
    assert_eq!(how(32), "move it to a machine without GPUs", "it has too few cores");
}

#[test]
fn a_local_job_holds_nothing_and_is_not_blamed() {
    assert_eq!(names(&made(5 * HOUR).computing(|_| 1.0)), none());
    assert_eq!(names(&made(5 * HOUR).computing(|_| 0.0)), none());
}

#[test]
fn mistakes_in_a_file_have_their_line_and_key() {
    let complaint = |yaml: &str| parse(yaml).unwrap_err().to_string();
    let rule = "rules:\n  - name: x\n    severity: low\n    when: cpus > 1\n    what: a\n    how: b\n";
    assert_eq!(parse(rule).unwrap().rules.len(), 1);
    assert_eq!(
        complaint(&rule.replace("cpus > 1", "cpus > 1s")),
        "line 4: when: cannot compare a plain number with seconds"
    );
    assert_eq!(
        complaint(&rule.replace("what: a", "what: \"{cpu}\"")),
        "line 5: what: unknown field \"cpu\"; `met check --fields` lists them"
    );
    assert!(
        complaint(&rule.replace("how: b", "how: b\n    howe: c")).starts_with("line 7: unknown field `howe`")
    );
    assert!(
        complaint(&rule.replace("severity: low", "severity: bad"))
            .starts_with("line 3: unknown variant `bad`")
    );
    assert!(complaint("rules: [").starts_with("line 1:"));
    assert!(
        complaint(&format!("{rule}{}", rule.replace("rules:\n", ""))).contains("a second rule named \"x\"")
    );
    let gated = rule.replace("what: a", "gates: {coverage: 2min}\n    what: a");
    assert_eq!(complaint(&gated), "line 5: gates.coverage: \"2min\" is seconds, not a plain number");
}

#[test]
fn a_rule_that_could_never_speak_is_refused_with_its_line() {
    let rule = "rules:\n  - name: x\n    severity: low\n    when: cpus > 1\n    what: a\n    how: b\n";
    let complaint = |from: &str, to: &str| parse(&rule.replace(from, to)).unwrap_err().to_string();
    assert_eq!(
        complaint("cpus > 1", "cpus > 8 and cpus < 4"),
        "line 4: when: never holds: cpus cannot be below 4 where it is above 8; correct or remove it"
    );
    assert!(
        complaint("how: b", "how: b\n    watch: {when: cpus < 0, for: 1min}").contains("line 7: watch.when")
    );
    let gate = |gates: &str| complaint("what: a", &format!("gates: {{{gates}}}\n    what: a"));
    assert_eq!(
        gate("coverage: 150%"),
        "line 5: gates.coverage: \"150%\" is more than all of its time; at most 100%"
    );
    assert_eq!(
        gate("length: 9999d"),
        "line 5: gates.length: \"9999d\" is longer than any job; at most 3650d"
    );
    assert_eq!(gate("samples: 5000000"), "line 5: gates.samples: 5000000 is above 1000000");
    for hours in ["-1", ".nan", ".inf", "1e300"] {
        let refused = gate(&format!("core_hours: {hours}"));
        assert!(refused.starts_with("line 5: gates.core_hours: "), "{refused}");
        assert!(refused.ends_with(" is not between 0 and 1000000000"), "{refused}");
    }
    assert!(gate("gpu_hours: -0.5").contains("gates.gpu_hours: -0.5 is not between"));
    assert!(complaint("cpus > 1", &format!("cpus > {}", "9".repeat(300))).contains("larger than anything"));
}

#[test]
fn a_sum_of_small_jobs_is_seen() {
    let tiny = |index: usize| -> Record {
        let mut record = given(made(30).computing(|_| 0.1), 4).record;
        (record.key.id, record.state) = (index.to_string(), State::Finished);
        record
    };
    let jobs: Vec<Record> = (0..600).map(tiny).collect();
    let reported = |jobs: &[Record]| {
        let sums = user::sums(jobs, &[], sample::NOW_NS);
        findings_of_user(Rules::built_in(), &sums[0]).into_iter().map(|it| it.rule).collect::<Vec<_>>()
    };
    assert_eq!(reported(&jobs), ["many_tiny_jobs"]);
    assert_eq!(reported(&jobs[..400]), none());
    let mut reversed = jobs.clone();
    reversed.reverse();
    assert_eq!(user::sums(&jobs, &[], sample::NOW_NS), user::sums(&reversed, &[], sample::NOW_NS));
}

/// The rules that speak of the sums of these jobs, with their users.
fn of_sums(jobs: &[Record]) -> Vec<String> {
    let sums = user::sums(jobs, &[], sample::NOW_NS);
    let of = |sum: &user::UserSum| findings_of_user(Rules::built_in(), sum);
    sums.iter().flat_map(of).map(|found| format!("{} {}", found.subject, found.rule)).collect()
}

#[test]
fn what_is_not_known_of_a_job_is_not_unused_in_a_sum() {
    let mut part = given(made(10 * HOUR).computing(|_| 32.0), 128).record;
    assert_eq!(of_sums(std::slice::from_ref(&part)), ["alice cores_unused"]);
    (part.allocated.nodes, part.nodes) = (Some(4), vec!["n1".to_owned()]);
    assert_eq!(of_sums(std::slice::from_ref(&part)), none(), "measured on one node of four");
    let mut bound = given(made(10 * HOUR).computing(|_| 1.0), 128).record;
    bound.totals.set(column::CPU, 1_000_000_000, QualityKind::LowerBound, "cgroup");
    assert_eq!(of_sums(&[bound]), none(), "measured to a time before its end");
    let gpus = |unknown: usize| {
        let of = |index: usize| gpu(Some(0.0).filter(|_| index >= unknown), 10 * HOUR);
        let mut made = with_gpus(10 * HOUR, (0..4).map(of).collect());
        made.record.user = Some("bob".to_owned());
        made.record
    };
    assert_eq!(of_sums(&[gpus(0)]), ["bob gpus_idle"]);
    assert_eq!(of_sums(&[gpus(3)]), none(), "of three GPUs nothing is known");
}

#[test]
fn sums_are_of_a_week() {
    let week_ns = user::WEEK_NS;
    let job = |index: i64| {
        let mut record = given(made(10 * HOUR).computing(|_| 0.5), 8).record;
        record.key.id = index.to_string();
        for time in [&mut record.start_ns, &mut record.end_ns] {
            *time = time.map(|ns| ns - index * week_ns);
        }
        record
    };
    let spread: Vec<Record> = (0..4).map(job).collect();
    assert_eq!(of_sums(&spread), none(), "75 core-hours a week");
    let one_week: Vec<Record> = spread.iter().map(|run| Record { key: run.key.clone(), ..job(0) }).collect();
    assert_eq!(of_sums(&one_week), ["alice cores_unused"]);
}

#[test]
fn who_sees_one_user_alone_knows_no_share_of_all() {
    let job = |user: &str| {
        let mut record = given(made(10 * HOUR).computing(|_| 3.0), 8).record;
        (record.key.id, record.user) = (user.to_owned(), Some(user.to_owned()));
        record
    };
    let of_alice = |jobs: &[Record]| {
        let sums = user::sums(jobs, &[], sample::NOW_NS);
        (sums[0].share_of_all, sums[0].others_queued)
    };
    assert_eq!(of_alice(&[job("alice")]), (None, None));
    assert_eq!(of_alice(&[job("alice"), job("bob")]), (Some(0.5), Some(0)));
}

#[test]
fn who_uses_all_alone_does_not_hog() {
    let job = |user: &str, id: &str, state, cores: f64| {
        let mut record = given(made(10 * HOUR).computing(move |_| cores), 64).record;
        (record.key.id, record.state, record.user) = (id.to_owned(), state, Some(user.to_owned()));
        record
    };
    let hogs = |jobs: &[Record]| {
        let sums = user::sums(jobs, &[], sample::NOW_NS);
        let of = |user| findings_of_user(Rules::built_in(), user).into_iter().any(|it| it.rule == "hog");
        sums.iter().filter(|user| of(user)).map(|user| user.user.clone()).collect::<Vec<_>>()
    };
    let mut jobs = vec![job("alice", "1", State::Finished, 60.0), job("bob", "2", State::Finished, 1.0)];
    assert_eq!(hogs(&jobs), none());
    let mut pending = job("bob", "3", State::Pending, 0.0);
    pending.scheduling.reason = Some("Dependency".to_owned());
    jobs.push(pending.clone());
    assert_eq!(hogs(&jobs), none(), "it waits for another job");
    pending.scheduling.reason = Some("Resources".to_owned());
    pending.scheduling.partition = Some("gpu".to_owned());
    jobs[2] = pending.clone();
    assert_eq!(hogs(&jobs), none(), "it waits for other machines");
    pending.scheduling.partition = Some("batch".to_owned());
    jobs[2] = pending;
    assert_eq!(hogs(&jobs), ["alice"]);
    let fox = crate::scale::System { name: "fox".to_owned(), cores: 128, ..Default::default() };
    let fox = crate::scale::System { memory_bytes: Some(256 << 30), ..fox };
    jobs[0].totals.set(column::MEMORY_NEEDED_PEAK, 4 * GIB, QualityKind::Sampled, "cgroup");
    let how = |systems: &[crate::scale::System]| {
        let rules = Rules { systems: systems.into(), ..Rules::built_in().clone() };
        let found = findings_of_user(&rules, &user::sums(&jobs, &[], sample::NOW_NS)[0]);
        found.into_iter().find(|found| found.rule == "hog").unwrap().how
    };
    assert_eq!(how(&[fox]), "run less at once, or move to fox");
    assert_eq!(how(&[]), "run less at once, or move to a larger system");
    let mut unknown = job("cyd", "4", State::Finished, 1.0);
    unknown.allocated.nodes = Some(2);
    jobs.push(unknown);
    assert_eq!(hogs(&jobs), none(), "what a third of the core time was used for is not known");
}

/// What a scheduler counts at the time of the tests.
fn counted(partitions: &[(&str, u64)], users: &[(&str, u64)]) -> Queue {
    let counts =
        |counts: &[(&str, u64)]| counts.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
    Queue {
        manager: "slurm".to_owned(),
        read_ns: sample::NOW_NS,
        valid_until_ns: sample::NOW_NS + 180_000_000_000,
        partitions: counts(partitions),
        users: counts(users),
    }
}

/// A job of alice, who runs until now, and one of bob.
fn two_users() -> Vec<Record> {
    let job = |user: &str, cores: f64| {
        let mut record = given(made(10 * HOUR).computing(move |_| cores), 64).record;
        (record.key.id, record.user) = (user.to_owned(), Some(user.to_owned()));
        record.key.manager = "slurm".to_owned();
        record.scheduling.partition = Some("batch".to_owned());
        let lived_ns = record.end_ns.unwrap() - record.start_ns.unwrap();
        (record.start_ns, record.end_ns) = (Some(sample::NOW_NS - lived_ns), Some(sample::NOW_NS));
        record
    };
    vec![job("alice", 60.0), job("bob", 1.0)]
}

fn pending_of(user: &str, id: usize, reason: &str) -> Record {
    let mut record = two_users().remove(1);
    (record.key.id, record.user) = (format!("p{id}"), Some(user.to_owned()));
    (record.state, record.start_ns, record.end_ns) = (State::Pending, None, None);
    record.scheduling.reason = Some(reason.to_owned());
    record.scheduling.eligible_ns = Some(sample::NOW_NS - 3_600_000_000_000);
    record
}

#[test]
fn a_scheduler_that_counts_its_queue_knows_who_waits() {
    let of_alice = |jobs: &[Record], queue: &Queue| {
        let sums = user::sums(jobs, std::slice::from_ref(queue), sample::NOW_NS);
        let alice = sums.into_iter().find(|sum| sum.user == "alice").unwrap();
        let hogs = findings_of_user(Rules::built_in(), &alice).iter().any(|found| found.rule == "hog");
        assert_eq!(hogs, alice.others_queued.unwrap() > 0);
        (alice.others_queued.unwrap(), alice.is_queue_estimated)
    };
    let jobs = two_users();
    assert_eq!(of_alice(&jobs, &counted(&[("batch", 5)], &[("bob", 5)])), (5, true));
    assert_eq!(of_alice(&jobs, &counted(&[("batch", 5)], &[("alice", 3), ("bob", 2)])), (2, true));
    assert_eq!(of_alice(&jobs, &counted(&[("batch", 5)], &[("alice", 5)])), (0, false), "all her own");
    assert_eq!(
        of_alice(&jobs, &counted(&[("batch", 0), ("gpu", 9)], &[])),
        (0, false),
        "in another partition"
    );
    assert_eq!(
        of_alice(&jobs, &counted(&[("gpu", 9)], &[])),
        (0, false),
        "of her partition nothing is counted"
    );
    let other = Queue { manager: "oar".to_owned(), ..counted(&[("batch", 5)], &[]) };
    assert_eq!(of_alice(&jobs, &other), (0, false), "a queue of the same name");
    let old = Queue { valid_until_ns: sample::NOW_NS - 1, ..counted(&[("batch", 5)], &[]) };
    assert_eq!(of_alice(&jobs, &old), (0, false), "it was like that once");
    let mut earlier = two_users();
    let alice = &mut earlier[0];
    for time in [&mut alice.start_ns, &mut alice.end_ns] {
        *time = time.map(|ns| ns - 3_600_000_000_000);
    }
    assert_eq!(of_alice(&earlier, &counted(&[("batch", 5)], &[])), (0, false), "her jobs are over");
}

#[test]
fn why_jobs_wait_is_known_from_their_records_only() {
    let of_alice = |pending: &[Record], queue: &[Queue]| {
        let jobs: Vec<Record> = two_users().into_iter().chain(pending.iter().cloned()).collect();
        let sums = user::sums(&jobs, queue, sample::NOW_NS);
        sums.iter().find(|sum| sum.user == "alice").unwrap().others_queued.unwrap()
    };
    let many = || [counted(&[("batch", 8)], &[("bob", 8)])];
    let dependent = pending_of("bob", 1, "Dependency");
    assert_eq!(of_alice(std::slice::from_ref(&dependent), &many()), 0, "it waits for another job");
    let waiting = pending_of("bob", 2, "Priority");
    assert_eq!(
        of_alice(&[dependent.clone(), waiting.clone()], &many()),
        1,
        "why the others wait is known, too"
    );
    // Her own jobs wait elsewhere, and bob's is known to wait here.
    let own = [counted(&[("batch", 2)], &[("alice", 100), ("bob", 1)])];
    assert_eq!(of_alice(std::slice::from_ref(&waiting), &own), 1);
    let mine = pending_of("alice", 3, "Dependency");
    assert_eq!(of_alice(&[mine], &many()), 8, "why her own wait says nothing of others");
    let empty = [counted(&[("batch", 0)], &[])];
    assert_eq!(of_alice(std::slice::from_ref(&waiting), &empty), 0, "it has begun since");
    assert_eq!(of_alice(&[waiting], &[counted(&[], &[])]), 1, "the scheduler did not answer: as recorded");
}
