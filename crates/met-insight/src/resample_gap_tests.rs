//! Plots of jobs on the default ladder of sampling: what is sampled less often with age is no gap, and a time in which
//! the daemon was away is one.

use std::time::Duration;

use met_core::gpu::device;
use met_core::job_table::{CPU, GPU_UTILIZATION};
use met_core::series::Series;
use met_core::{JOB, MISSING, Table, cadence, event};

use super::{bins, gaps, gpu_gaps};

const START_MS: i64 = 1_700_000_000_000;
const MINUTE_MS: i64 = 60_000;
const AGES_MS: [i64; 3] = [8 * MINUTE_MS, 70 * MINUTE_MS, 25 * 60 * MINUTE_MS];
const BINS: usize = 67;

/// Samples of a table at the pace of the ladder, or at least every ten seconds, but not within `away_ms`.
fn sampled(table: &'static Table, age_ms: i64, longest_ms: i64, away_ms: (i64, i64)) -> Series {
    let mut series = Series::new(table);
    let mut at_ms = 0;
    while at_ms <= age_ms {
        if !(away_ms.0..away_ms.1).contains(&at_ms) {
            // Ticks are a little late now and then.
            let late_ms = if at_ms % 7 == 0 { 40 } else { 0 };
            let cells: Vec<i64> = table.columns.iter().map(|_| at_ms).collect();
            series.push(START_MS + at_ms + late_ms, &cells);
        }
        at_ms += cadence::default_ms(at_ms).min(longest_ms);
    }
    series
}

/// A job, its use of GPUs, a GPU and an event, each with the columns that are drawn.
fn drawn(age_ms: i64, away_ms: (i64, i64)) -> [(&'static str, Vec<bool>); 4] {
    let together_ms = cadence::TOGETHER_NS / 1_000_000;
    let mut job = sampled(&JOB, age_ms, together_ms, away_ms);
    // Of an old job, GPUs are read when it is due.
    let due = sampled(&JOB, age_ms, i64::MAX, away_ms);
    for (time_ms, cell) in job.times_ms.iter().zip(&mut job.columns[GPU_UTILIZATION]) {
        *cell = if due.times_ms.binary_search(time_ms).is_ok() { 1 } else { MISSING };
    }
    let gpu = sampled(&device::TABLE, age_ms, together_ms, away_ms);
    let counted = sampled(&event::TABLE, age_ms, i64::MAX, away_ms);
    let of = |series: &Series| gaps(series, Duration::from_secs(1), Some(START_MS));
    let has = |series: &Series, column, gaps| {
        bins(series, column, BINS, gaps).iter().map(Option::is_some).collect::<Vec<bool>>()
    };
    [
        ("job", has(&job, CPU, of(&job))),
        ("GPU use of the job", has(&job, GPU_UTILIZATION, gpu_gaps(of(&job)))),
        ("GPU", has(&gpu, device::UTILIZATION, of(&gpu))),
        ("event", has(&counted, event::COUNT, of(&counted))),
    ]
}

#[test]
fn samples_that_become_rarer_with_age_are_no_gaps() {
    for age_ms in AGES_MS.into_iter().chain([5 * MINUTE_MS + 10_000, 61 * MINUTE_MS]) {
        for (what, is_drawn) in drawn(age_ms, (0, 0)) {
            assert_eq!(is_drawn, [true; BINS], "{what} of {} s", age_ms / 1000);
        }
    }
}

#[test]
fn while_the_daemon_is_away_there_is_a_gap() {
    for age_ms in AGES_MS {
        // Before the middle and at the end, for minutes: in the steps of one and ten seconds, and in the last.
        let long_ms = (age_ms / 12).max(3 * MINUTE_MS);
        for begin_ms in [age_ms / 3, age_ms - long_ms - age_ms / 20] {
            let away_ms = (begin_ms, begin_ms + long_ms);
            for (what, is_drawn) in drawn(age_ms, away_ms) {
                let middle = ((begin_ms + long_ms / 2) * BINS as i64 / age_ms) as usize;
                assert!(
                    !is_drawn[middle],
                    "{what} of {} s, away from {begin_ms}: {is_drawn:?}",
                    age_ms / 1000
                );
                assert!(is_drawn[0] && is_drawn[BINS - 1], "{what} of {} s: {is_drawn:?}", age_ms / 1000);
            }
        }
    }
}

#[test]
fn a_short_absence_in_the_first_minutes_of_a_long_job_is_a_gap() {
    // Two minutes would be one missed sample a day later.
    let (age_ms, away_ms) = (AGES_MS[2], (MINUTE_MS, 3 * MINUTE_MS));
    let counted = sampled(&event::TABLE, age_ms, i64::MAX, away_ms);
    let of_event = gaps(&counted, Duration::from_secs(1), Some(START_MS));
    let first = counted.intervals(event::COUNT, of_event).find(|one| one.end_ms - one.begin_ms > 90_000);
    assert_eq!(first, None);
}

#[test]
fn events_of_an_old_job_are_drawn_from_the_third_sample_on() {
    for (age_ms, span_ms) in [(2 * 60 * MINUTE_MS, 30_000), (30 * 60 * MINUTE_MS, 60_000)] {
        let mut series = Series::new(&event::TABLE);
        for sample in 0..3 {
            let cells: Vec<i64> = event::TABLE.columns.iter().map(|_| sample).collect();
            series.push(START_MS + age_ms + sample * span_ms, &cells);
        }
        let gaps = gaps(&series, Duration::from_secs(1), Some(START_MS));
        assert!(bins(&series, event::COUNT, BINS, gaps).iter().all(Option::is_some), "{span_ms} ms apart");
    }
}
