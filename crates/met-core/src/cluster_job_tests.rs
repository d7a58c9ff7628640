use proptest::prelude::*;

use super::*;
use crate::job::{State, UncountedEvent};
use crate::job_table::{CORES_PEAK, CPU, GPU_TEMPERATURE, MEMORY_NEEDED};

const SECOND_NS: i64 = 1_000_000_000;

fn key() -> JobKey {
    JobKey { cluster: None, manager: "slurm".into(), id: "7".into(), incarnation: 100 }
}

fn no_record() -> Record {
    Record::new(
        JobKey { cluster: None, manager: String::new(), id: String::new(), incarnation: 0 },
        String::new(),
        State::Lost,
    )
}

fn part_on(node: &str, start_s: i64, state: State, cpu_s: i64) -> (String, Record) {
    let mut record = Record {
        key: JobKey { incarnation: start_s, ..key() },
        state,
        exit_code: (state == State::Failed).then_some(3),
        start_ns: Some(start_s * SECOND_NS),
        end_ns: (!state.is_live()).then_some((start_s + 50) * SECOND_NS),
        ..no_record()
    };
    record.totals.set(CPU, cpu_s * SECOND_NS, QualityKind::Measured, "cgroup");
    (node.to_owned(), record)
}

#[test]
fn what_one_node_tells_is_the_job() {
    let (node, record) = part_on("n1", 100, State::Finished, 5);
    let parts = vec![on_node("n1", &record)];
    let whole = whole(key(), &[(node, record.clone())]).unwrap();
    assert_eq!(whole, Record { key: key(), nodes: vec!["n1".into()], parts, ..record });
}

#[test]
fn a_job_on_two_nodes_is_their_sum_and_has_a_part_on_each() {
    let mut one = part_on("n2", 101, State::Finished, 5);
    let mut other = part_on("n1", 100, State::Finished, 7);
    one.1.totals.set(CORES_PEAK, 2000, QualityKind::Sampled, "samples");
    other.1.totals.set(CORES_PEAK, 3000, QualityKind::Sampled, "samples");
    one.1.totals.set(GPU_TEMPERATURE, 70_000, QualityKind::Sampled, "nvml");
    other.1.totals.set(GPU_TEMPERATURE, 60_000, QualityKind::Sampled, "nvml");
    one.1.totals.set(MEMORY_NEEDED, 5, QualityKind::Measured, "cgroup");
    let whole = whole(key(), &[one, other]).unwrap();
    assert_eq!(whole.nodes, ["n1", "n2"]);
    assert_eq!((whole.start_ns, whole.end_ns), (Some(100 * SECOND_NS), Some(151 * SECOND_NS)));
    let figure = |column| whole.totals.figure(column).map(|figure| (figure.value, figure.kind)).unwrap();
    assert_eq!(figure(CPU), (12 * SECOND_NS, QualityKind::Measured));
    assert_eq!(figure(CORES_PEAK), (5000, QualityKind::Estimated), "the peaks need not be of one moment");
    assert_eq!(figure(GPU_TEMPERATURE), (70_000, QualityKind::Sampled), "the hottest");
    assert_eq!(figure(MEMORY_NEEDED), (5, QualityKind::LowerBound), "the other node does not know its part");
    let parts: Vec<_> =
        whole.parts.iter().map(|part| (part.node.as_str(), part.totals.get(CPU).unwrap())).collect();
    assert_eq!(parts, [("n1", 7 * SECOND_NS), ("n2", 5 * SECOND_NS)]);
}

#[test]
fn gpus_of_several_nodes_name_theirs_and_those_of_one_do_not() {
    let gpu = |uuid: &str| GpuUse { uuid: uuid.to_owned(), index: "0".to_owned(), ..GpuUse::default() };
    let (mut one, mut other) =
        (part_on("n1", 100, State::Finished, 5), part_on("n2", 100, State::Finished, 5));
    (one.1.gpus, other.1.gpus) = (vec![gpu("GPU-a")], vec![gpu("GPU-b")]);
    let labels = |parts: &[(String, Record)]| {
        let gpus = whole(key(), parts).unwrap().gpus;
        gpus.iter().map(|gpu| format!("{} {}", gpu.uuid, gpu.label())).collect::<Vec<_>>()
    };
    assert_eq!(labels(&[other, one.clone()]), ["GPU-a GPU 0 on n1", "GPU-b GPU 0 on n2"]);
    assert_eq!(labels(&[one.clone()]), ["GPU-a GPU 0"]);
    let text = serde_json::to_string(&whole(key(), &[one]).unwrap().gpus[0]).unwrap();
    assert!(!text.contains("node"), "a job of one node is stored as before: {text}");
}

#[test]
fn an_event_that_some_nodes_could_not_count_is_a_lower_bound() {
    let mut one = part_on("n1", 100, State::Finished, 5);
    let mut other = part_on("n2", 100, State::Finished, 5);
    let (kind, source) = (QualityKind::Measured, "perf, cgroup".to_owned());
    one.1.events = vec![EventCount { name: "instructions".into(), count: 7, counted: 1.0, kind, source }];
    let uncounted = |name: &str| UncountedEvent { name: name.into(), reason: "not allowed".into() };
    one.1.uncounted_events = vec![uncounted("cpu_cycles")];
    other.1.uncounted_events = vec![uncounted("instructions"), uncounted("cpu_cycles")];
    let whole = whole(key(), &[one, other]).unwrap();
    assert_eq!((whole.events[0].count, whole.events[0].kind), (7, QualityKind::LowerBound));
    assert_eq!(whole.uncounted_events, [uncounted("cpu_cycles")]);
}

#[test]
fn a_job_lives_while_a_part_does_and_ends_as_its_worst_part() {
    let state = |states: &[State]| {
        let reported: Vec<_> = states.iter().map(|&state| part_on("n", 100, state, 1)).collect();
        let whole = whole(key(), &reported).unwrap();
        (whole.state, whole.end_ns.is_some(), whole.exit_code)
    };
    assert_eq!(state(&[State::Finished, State::Running]), (State::Running, false, None));
    assert_eq!(state(&[State::Finished, State::Failed]), (State::Failed, true, Some(3)));
    assert_eq!(state(&[State::Lost, State::Finished]), (State::Lost, true, None));
}

#[test]
fn a_scheduler_speaks_for_all_nodes_and_its_later_answer_counts() {
    let mut asked = part_on("n1", 101, State::Running, 1);
    (asked.1.scheduling.asked_ns, asked.1.manager_state) = (Some(5), Some("RUNNING".into()));
    (asked.1.name, asked.1.scheduling.reason) = ("train".into(), Some("old".into()));
    let mut later = part_on("n2", 102, State::Timeout, 1);
    (later.1.scheduling.asked_ns, later.1.manager_state) = (Some(9), Some("TIMEOUT".into()));
    (later.1.name, later.1.scheduling.reason) = ("train 2".into(), Some("new".into()));
    let lost = part_on("n3", 100, State::Lost, 1);
    for reported in [[asked.clone(), later.clone(), lost.clone()], [lost, later.clone(), asked]] {
        let whole = whole(key(), &reported).unwrap();
        assert_eq!((whole.state, whole.manager_state.as_deref()), (State::Timeout, Some("TIMEOUT")));
        assert_eq!(whole.end_ns, later.1.end_ns);
        assert_eq!((whole.name.as_str(), whole.scheduling.reason.as_deref()), ("train 2", Some("new")));
    }
}

#[test]
fn a_node_that_proved_nothing_decides_nothing_of_a_job_that_others_have() {
    let mut proven = part_on("n2", 101, State::Finished, 5);
    (proven.1.user, proven.1.name) = (Some("ada".into()), "train".into());
    for state in [State::Running, State::Lost] {
        let mut unproven = part_on("n1", 40, state, 7);
        (unproven.1.unproven, unproven.1.name) = (true, "7".into());
        for reported in [[proven.clone(), unproven.clone()], [unproven, proven.clone()]] {
            let whole = whole(key(), &reported).unwrap();
            assert_eq!((whole.state, whole.user.as_deref()), (State::Finished, Some("ada")));
            assert_eq!((whole.start_ns, whole.end_ns), (proven.1.start_ns, proven.1.end_ns));
            assert_eq!((whole.name.as_str(), whole.unproven), ("train", false));
            assert_eq!(whole.totals.get(CPU), Some(12 * SECOND_NS), "its own part counts");
            assert_eq!(whole.nodes, ["n1", "n2"]);
        }
    }
}

#[test]
fn parts_of_one_run_overlap_or_begin_together() {
    let (_, first) = part_on("n1", 100, State::Finished, 1);
    let far_s = |start_s: i64| {
        distance_ns(&first, &part_on("n2", start_s, State::Running, 1).1).map(|ns| ns / 1_000_000_000)
    };
    assert_eq!(far_s(130), Some(30), "while it ran");
    assert_eq!(far_s(210), Some(110), "right after it");
    assert_eq!(far_s(400), None, "started again");
    let (_, long) = part_on("n1", 100, State::Running, 1);
    assert!(distance_ns(&long, &part_on("n2", 900, State::Running, 1).1).is_some(), "a step much later");
    assert!(distance_ns(&part_on("n2", 900, State::Running, 1).1, &long).is_some(), "whichever is first");
}

fn series(samples: &[(i64, i64, i64)]) -> Series {
    let mut series = Series::new(&JOB);
    for &(time_ms, cpu, memory) in samples {
        let mut cells = vec![MISSING; JOB.columns.len()];
        cells[CPU] = cpu;
        cells[MEMORY_NEEDED] = memory;
        series.push(time_ms, &cells);
    }
    series
}

#[test]
fn what_a_node_had_counted_before_its_first_sample_is_no_growth_at_that_time() {
    let early = series(&[(0, 100, 1), (1000, 101, 1), (2000, 102, 1)]);
    let late = series(&[(1500, 90_000, 1), (2500, 90_001, 1)]);
    let both = together(&[early, late], 2000);
    assert_eq!(both.times_ms, [0, 1000, 1500, 2000, 2500]);
    assert_eq!(both.columns[CPU], [90_100, 90_101, 90_101, 90_102, 90_103]);
}

#[test]
fn series_add_up_and_a_node_that_is_done_keeps_what_it_used() {
    let short = series(&[(0, 0, 10), (1000, 5, 10)]);
    let long = series(&[(500, 1, 100), (9000, 2, 100)]);
    let both = together(&[short, long], 2000);
    assert_eq!(both.times_ms, [0, 500, 1000, 9000]);
    assert_eq!(both.columns[CPU], [1, 1, 6, 7]);
    assert_eq!(both.columns[MEMORY_NEEDED], [10, 110, 110, 100], "its memory is free again");
}

#[test]
fn thinned_nodes_have_the_means_and_the_growth_that_they_had() {
    let node = |shift_ms: i64| {
        let samples: Vec<_> = (0..1200)
            .map(|second| (second * 1000 + shift_ms, second * 2_000_000_000, 100 + second % 20))
            .collect();
        series(&samples)
    };
    let thin = |series: &Series| {
        let mut thinner = crate::series::Thinner::new(&JOB, 60_000);
        thinner.push(series);
        thinner.finish()
    };
    let nodes = [node(0), node(300)];
    let (whole, thinned) = (together(&nodes, 25_000), together(&nodes.each_ref().map(thin), 25_000));
    assert!(thinned.len() < 60, "{}", thinned.len());
    let mean = |series: &Series, column| series.summaries(25_000).get(column).unwrap().mean;
    for column in [CPU, MEMORY_NEEDED] {
        let (before, after) = (mean(&whole, column), mean(&thinned, column));
        assert!((after / before - 1.0).abs() < 0.01, "{before} {after}");
    }
    let peak = thinned.intervals(CPU, 25_000).map(|interval| interval.peak).fold(0.0, f64::max);
    assert!((peak / 4e9 - 1.0).abs() < 0.01, "nobody's growth is shown at once: {peak}");
    let memory = thinned.intervals(MEMORY_NEEDED, 25_000).map(|interval| interval.peak).fold(0.0, f64::max);
    assert!((220.0..=238.0).contains(&memory), "{memory}");
    assert_eq!(thinned.columns[CPU].last(), whole.columns[CPU].last());
}

#[test]
fn nodes_that_charge_energy_at_different_times_have_even_power_together() {
    use crate::job_table::ENERGY;
    // Five watts on each of two nodes, charged every ten seconds.
    let node = |shift: i64| {
        let mut series = Series::new(&JOB);
        for second in 0..120 {
            let mut cells = vec![MISSING; JOB.columns.len()];
            cells[ENERGY] = (second + shift) / 10 * 50_000_000;
            series.push(second * 1000, &cells);
        }
        series
    };
    let both = together(&[node(0), node(4)], 25_000);
    // The windows in which the samples begin and end are not whole.
    let inner = both.intervals(ENERGY, 25_000).filter(|span| (10_000..=100_000).contains(&span.begin_ms));
    let watts: Vec<f64> = inner.map(|span| span.value / 1e6).collect();
    assert!(watts.len() > 50 && watts.iter().all(|watts| (watts - 10.0).abs() < 0.01), "{watts:?}");
}

proptest! {
    #[test]
    fn the_order_of_nodes_does_not_matter(
        parts in prop::collection::vec((0_i64..3, 0_usize..9, prop::option::of(0_i64..3), 0_i64..9), 1..5),
        turn in 0_usize..5,
    ) {
        let reported: Vec<(String, Record)> = parts.iter().enumerate().map(|(at, &(start_s, state, asked_ns, cpu_s))| {
            let mut part = part_on(&format!("n{at}"), start_s, State::ALL[state], cpu_s);
            part.1.scheduling.asked_ns = asked_ns;
            part.1.manager_state = asked_ns.map(|asked_ns| format!("{state} {asked_ns}"));
            part.1.requested.cpus = Some(cpu_s);
            part
        }).collect();
        let mut turned = reported.clone();
        turned.rotate_left(turn % reported.len());
        prop_assert_eq!(whole(key(), &turned), whole(key(), &reported));
        turned.reverse();
        prop_assert_eq!(whole(key(), &turned), whole(key(), &reported));
    }

    #[test]
    fn counters_of_a_job_never_fall_and_end_at_the_sum(
        nodes in prop::collection::vec(prop::collection::vec((1_i64..5000, 0_i64..1000), 1..30), 1..5),
    ) {
        let all_series: Vec<Series> = nodes.iter().map(|steps| {
            let (mut at_ms, mut cpu, mut samples) = (0, 0, Vec::new());
            for &(step_ms, growth) in steps {
                (at_ms, cpu) = (at_ms + step_ms, cpu + growth);
                samples.push((at_ms, cpu, MISSING));
            }
            series(&samples)
        }).collect();
        let all = together(&all_series, 1000);
        prop_assert!(all.columns[CPU].is_sorted());
        prop_assert!(all.times_ms.is_sorted_by(|left, right| left < right));
        let sum: i64 = all_series.iter().map(|series| *series.columns[CPU].last().unwrap()).sum();
        prop_assert_eq!(*all.columns[CPU].last().unwrap(), sum);
    }
}
