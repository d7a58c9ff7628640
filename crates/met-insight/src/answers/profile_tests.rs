use super::*;
use crate::series_tests::{Made, made};

fn profile_of(made: &Made) -> Option<Profile<'_>> {
    Profile::of(&made.record, made.samples(), made.now_ns())
}

fn reported(made: &Made) -> String {
    let profile = profile_of(made).unwrap();
    let words = |phase: &Phase| format!("{} {:.0}", phase.kind.name(), phase.seconds());
    profile.phases().iter().map(words).collect::<Vec<_>>().join(", ")
}

#[test]
fn phases_begin_where_the_level_changes() {
    assert_eq!(reported(&made(100).cores(|_| 1.0)), "compute 100");
    let steps = made(200).cores(|second| if second < 20 { 0.2 } else { 4.0 });
    assert_eq!(reported(&steps), "start-up 20, compute 180");
    let tail = made(200).computing(|second| if second < 120 { 2.0 } else { 0.001 });
    assert_eq!(reported(&tail), "compute 120, idle tail 80");
    let serial_begin = made(240).cores(|second| if second < 60 { 1.0 } else { 8.0 });
    assert_eq!(reported(&serial_begin), "start-up 60, compute 180");
}

#[test]
fn phases_of_a_lost_job_end_with_its_last_sample() {
    let mut lost = made(100).cores(|_| 1.0);
    let now_ns = lost.now_ns() + 86_400_000_000_000;
    (lost.record.state, lost.record.end_ns) = (met_core::job::State::Lost, None);
    let phases = Profile::of(&lost.record, lost.samples(), now_ns).unwrap().phases().to_vec();
    assert_eq!(
        phases.iter().map(|phase| (phase.kind, phase.seconds())).collect::<Vec<_>>(),
        [(PhaseKind::Compute, 100.0)]
    );
}

#[test]
fn a_quiet_cpu_is_not_idle_beside_a_gpu_that_was_not_read() {
    let mut tail = made(200).computing(|second| if second < 120 { 2.0 } else { 0.001 });
    tail.record.allocated.gpus = Some(1);
    assert_eq!(reported(&tail), "compute 120, unknown 80");
    let tail = tail.level(column::GPU_UTILIZATION, |_| 0.0);
    assert_eq!(reported(&tail), "compute 120, idle tail 80");
}

#[test]
fn a_quiet_cpu_is_not_idle_while_the_job_waits_or_transfers_data() {
    let tail = || made(200).computing(|second| if second < 120 { 2.0 } else { 0.001 });
    let later = |share: f64| move |second: i32| if second < 120 { 0.0 } else { share };
    assert_eq!(reported(&tail().rate(column::PRESSURE_MEMORY, later(0.9))), "compute 120, light work 80");
    assert_eq!(reported(&tail().rate(column::DELAY_MEMORY, later(0.9))), "compute 120, light work 80");
    assert_eq!(reported(&tail().rate(column::PRESSURE_IO, later(0.15))), "compute 120, light work 80");
    let network =
        |bytes: f64| tail().rate(column::NETWORK_RECEIVED, later(bytes)).rate(column::NETWORK_SENT, |_| 0.0);
    assert_eq!(reported(&network(1e6)), "compute 120, light work 80");
    assert_eq!(reported(&network(1e3)), "compute 120, idle tail 80", "heartbeats");
    assert_eq!(reported(&tail().rate(column::PRESSURE_MEMORY, |_| 0.0)), "compute 120, idle tail 80");
}

#[test]
fn a_quiet_cpu_is_not_idle_where_waiting_for_storage_is_not_known() {
    let tail = || made(200).cores(|second| if second < 120 { 2.0 } else { 0.001 });
    assert_eq!(reported(&tail()), "compute 120, unknown 80");
    assert_eq!(profile_of(&tail()).unwrap().idle_tail_s(), None, "and there is no idle tail to speak of");
    let moves = |bytes: f64| tail().rate(column::READ, move |_| bytes).rate(column::WRITTEN, |_| 0.0);
    assert_eq!(reported(&moves(0.0)), "compute 120, idle tail 80", "it is known that nothing moved");
    assert_eq!(reported(&tail().rate(column::DELAY_IO, |_| 0.0)), "compute 120, idle tail 80");
}

#[test]
fn waiting_for_storage_before_the_work_is_no_start_up() {
    let job = |waits: f64| {
        let made = made(200).computing(|second| if second < 60 { 0.1 } else { 8.0 });
        made.rate(column::PRESSURE_IO, move |second| if second < 60 { waits } else { 0.0 })
    };
    assert_eq!(reported(&job(0.9)), "I/O wait 60, compute 140");
    assert_eq!(reported(&job(0.0)), "start-up 60, compute 140");
}

#[test]
fn a_slow_copy_is_not_idle() {
    let tail = || made(200).computing(|second| if second < 120 { 2.0 } else { 0.01 });
    let later = |bytes: f64| move |second: i32| if second < 120 { 0.0 } else { bytes };
    let copy = |bytes: f64| tail().rate(column::READ, later(bytes)).rate(column::WRITTEN, later(bytes));
    assert_eq!(reported(&copy(2e5)), "compute 120, light work 80", "200 kB/s, without waiting");
    assert_eq!(reported(&copy(1e3)), "compute 120, idle tail 80", "a log");
    let calls = tail().rate(column::READ_CALL, later(2e5)).rate(column::WRITE_CALL, later(2e5));
    assert_eq!(reported(&calls), "compute 120, light work 80", "from the page cache to a socket");
    for one in [column::READ_CALL, column::WRITE_CALL, column::NETWORK_RECEIVED] {
        assert_eq!(
            reported(&tail().rate(one, later(2e5))),
            "compute 120, light work 80",
            "the other is unknown"
        );
        assert_eq!(reported(&tail().rate(one, later(1e3))), "compute 120, idle tail 80", "{one}");
    }
}

#[test]
fn cores_that_were_used_for_a_while_are_known_whenever_that_was() {
    let of = |seconds: i32, cores: fn(i32) -> f64| {
        let made = made(seconds).cores(cores);
        profile_of(&made).unwrap().cores_sustained().unwrap().round()
    };
    assert_eq!(of(12_000, |second| if second < 600 { 16.0 } else { 0.6 }), 16.0, "in the warm-up");
    assert_eq!(of(12_000, |second| if second < 200 { 16.0 } else { 1.0 }), 1.0, "for three minutes of 200");
    assert_eq!(of(600, |second| if second < 40 { 16.0 } else { 1.0 }), 16.0, "for 40 s of ten minutes");
    assert_eq!(of(7200, |second| if second % 20 == 0 { 4.0 } else { 1.0 }), 4.0, "now and then");
}

#[test]
fn sustained_cores_are_those_of_sorted_spans_and_worked_out_once() {
    for (seconds, high_s) in [(600, 29), (600, 30), (600, 31), (12_000, 299), (12_000, 300), (12_000, 301)] {
        let made = made(seconds).cores(|second| match second * 7919 % seconds {
            at if at < high_s => 16.0,
            at => 1.0 + f64::from(at % 13) / 20.0,
        });
        let profile = profile_of(&made).unwrap();
        assert_eq!(profile.cores_sustained.get(), None, "not before it is asked for");
        let mut rates: Vec<f64> = Vec::new();
        profile.rates.each(column::CPU, |span| {
            assert_eq!(span.end_ms - span.begin_ms, 1000);
            rates.push(span.value * met_core::JOB.columns[column::CPU].scale);
        });
        rates.sort_by(|one, other| other.total_cmp(one));
        let expected = rates[(seconds as usize / 20).min(300) - 1];
        assert_eq!(profile.cores_sustained(), Some(expected), "{seconds} s, {high_s} s of them on 16 cores");
        assert_eq!(expected > 15.0, high_s >= (seconds / 20).min(300));
        assert_eq!(profile.cores_sustained.get(), Some(&Some(expected)));
    }
}

#[test]
fn noise_makes_no_phases() {
    let noisy = made(300).cores(|second| 2.0 + 0.15 * f64::from(second * 7919 % 11 - 5) / 5.0);
    assert_eq!(reported(&noisy), "compute 300");
}

#[test]
fn waiting_for_storage_is_a_phase() {
    let io = made(200)
        .cores(|second| if second < 100 { 1.0 } else { 0.1 })
        .rate(column::PRESSURE_IO, |second| if second < 100 { 0.0 } else { 0.8 });
    assert_eq!(reported(&io), "compute 100, I/O wait 100");
}

#[test]
fn a_time_without_samples_is_no_idleness() {
    let gap = made(300).cores(|_| 1.0).without(100..200);
    assert_eq!(reported(&gap), "compute 100, no samples 100, compute 100");
    let profile = profile_of(&gap).unwrap();
    let coverage = profile.coverage(column::CPU);
    assert!((0.55..0.65).contains(&coverage), "{coverage}");
}

#[test]
fn a_leak_grows_to_the_end_and_a_table_fills() {
    let growth = |memory: fn(i32) -> f64| {
        let made = made(400).cores(|_| 1.0).level(column::MEMORY_NEEDED, memory);
        profile_of(&made).unwrap().memory_growth()
    };
    let leak = growth(|second| 1e8 + 1e6 * f64::from(second)).unwrap();
    assert!((leak - 1e6).abs() < 2e4, "{leak}");
    assert_eq!(growth(|_| 1e8), None);
    assert_eq!(growth(|second| 1e8 * f64::from(second.min(250))), None, "it stops growing");
    assert_eq!(growth(|second| 1e8 * f64::from(second / 100)), None, "a staircase");
}

#[test]
fn a_sample_of_processes_that_end_hides_no_leak() {
    let memory = |second: i32| if second >= 40 { 1e6 } else { 1e8 + 1e7 * f64::from(second) };
    let made = made(40).cores(|_| 1.0).level(column::MEMORY_NEEDED, memory);
    let profile = profile_of(&made).unwrap();
    let leak = profile.memory_growth().unwrap();
    assert!((leak - 1e7).abs() < 5e5, "{leak}");
}

#[test]
fn the_serial_part_is_the_time_with_one_core_busy() {
    let made = made(100).cores(|second| if second < 30 { 1.0 } else { 4.0 });
    let profile = profile_of(&made).unwrap();
    assert!((profile.serial_share().unwrap() - 0.3).abs() < 0.02);
}

#[test]
fn short_times_of_one_thread_alone_in_a_long_job_are_counted() {
    // Two seconds of each twenty, of two hours.
    let alone = |second: i32| second % 20 < 2;
    let of = |waiting: fn(i32) -> f64| {
        let made = made(7200).cores(move |second| if alone(second) { 1.0 } else { 4.0 });
        let made = made.rate(column::RUN_QUEUE_WAIT, waiting);
        profile_of(&made).unwrap().runnable_alone_share().unwrap()
    };
    assert_eq!(of(|_| 0.0), 0.1);
    assert_eq!(of(|second| if second < 3600 { 3.0 } else { 0.0 }), 0.05, "others waited meanwhile");
}

#[test]
fn runnable_threads_are_counted_where_both_columns_are_known() {
    let mut made = made(100).cores(|second| if second < 50 { 1.0 } else { 4.0 });
    made = made.rate(column::RUN_QUEUE_WAIT, |_| 0.0);
    // Waiting was read every other second, and not at all for the last 30.
    for row in 0..made.series.len() {
        if row % 2 == 1 || row > 70 {
            made.series.columns[column::RUN_QUEUE_WAIT][row] = met_core::MISSING;
        }
    }
    let share = profile_of(&made).unwrap().runnable_alone_share().unwrap();
    assert!((share - 50.0 / 70.0).abs() < 1e-9, "{share}");
    made.series.columns[column::RUN_QUEUE_WAIT].fill(met_core::MISSING);
    let profile = profile_of(&made).unwrap();
    assert_eq!(profile.runnable_alone_share(), profile.serial_share());
}
