//! What stored samples know of a job whose end no daemon saw.

use std::time::Duration;

use met_core::belief::CHARGED;
use met_core::belief::at_end::{self, Closing, Ends};
use met_core::job::{QualityKind, Record};
use met_core::job_table::{MEMORY_CACHE, MEMORY_PEAK};
use met_core::provenance::{Account, Caveat};
use met_core::running::Running;
use met_core::sampled::Profile;
use met_core::series::Series;
use met_core::watched::Watched;
use met_insight::resample::gap_ms_of;
use met_jobs::{containers, job_cgroup};

use crate::live::{Live, PEAK_SPAN_MS};

/// Completes the record of a job that is over by what an earlier daemon sampled of it. What its supervisor counted is
/// exact, and stays.
pub fn complete_by_samples(record: &mut Record, series: &Series) {
    let Some(local) = &record.local else { return };
    let gap_ms = gap_ms_of(series, Duration::from_secs(1));
    let end_ms = record.end_ns.map(|end_ns| end_ns / 1_000_000);
    let last_ms = series.times_ms.last().copied().unwrap_or(0);
    let start_ms = record.start_ns.map(|start_ns| start_ns / 1_000_000);
    let watched = Watched::of(series, start_ms, end_ms.unwrap_or(last_ms).max(last_ms), gap_ms);
    let profile = job_cgroup::profile(local);
    // Its cgroup may be gone.
    let of_cgroup =
        |column| record.totals.figure(column).map(|figure| figure.source.account == Account::Cgroup);
    let counts_memory = of_cgroup(MEMORY_PEAK).unwrap_or(profile.counts_memory);
    let missed = watched.missed_ms > 0 || end_ms.is_none();
    let mut running = Running::new(gap_ms, PEAK_SPAN_MS);
    series.each_row(|time_ms, cells| running.push(time_ms, cells));
    running.recall_thinned(series);
    let live = Live::of(&running, Profile { counts_memory, missed, ..profile });
    let mut seen = live.totals;
    for column in CHARGED {
        // The ledger charged the rest after the last stored sample.
        if let Some((value, source)) = seen.figure(column).map(|figure| (figure.value, figure.source.clone()))
        {
            seen.set(column, value, QualityKind::LowerBound, source);
        }
    }
    let closing = Closing {
        seen: &seen,
        ends: Ends::default(),
        missed,
        cache_bytes: series.maximum(MEMORY_CACHE),
        uncounted: containers::is_client(record).then_some(Caveat::NoContainers),
    };
    at_end::close(&mut record.totals, &closing);
    record.summaries = series.summaries(gap_ms);
}

#[cfg(test)]
mod tests {
    use met_core::job_table::{COST, CPU, EMISSIONS, ENERGY, MEMORY_NEEDED, MEMORY_NEEDED_PEAK};
    use met_core::{JOB, MISSING};

    use super::*;

    /// A job of a minute with one sample a second until `until_s`.
    fn completed(until_s: i64) -> Record {
        let mut record = met_core::sample::full(1, "train");
        let start_ns = record.start_ns.unwrap();
        record.end_ns = Some(start_ns + 60_000_000_000);
        record.totals = met_core::job::Totals::default();
        record.totals.set(CPU, 50_000_000_000, QualityKind::Measured, Account::Cgroup);
        record.totals.set(MEMORY_PEAK, 9_000, QualityKind::Measured, Account::Cgroup);
        let mut series = Series::new(&JOB);
        for second in 0..=until_s {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[ENERGY], cells[MEMORY_NEEDED]) =
                (second * 900_000_000, second * 40, 500 * second);
            (cells[EMISSIONS], cells[COST]) = (second, second);
            series.push(start_ns / 1_000_000 + second * 1000, &cells);
        }
        complete_by_samples(&mut record, &series);
        record
    }

    #[test]
    fn figures_of_stored_samples_are_lower_bounds_and_those_of_the_end_stay() {
        let record = completed(10);
        let figure = |column| record.totals.figure(column).cloned().unwrap();
        assert_eq!((figure(CPU).value, figure(CPU).kind), (50_000_000_000, QualityKind::Measured));
        for (column, value) in [(ENERGY, 400), (MEMORY_NEEDED_PEAK, 5_000)] {
            let figure = figure(column);
            assert_eq!((figure.value, figure.kind), (value, QualityKind::LowerBound));
            assert!(figure.source.has(Caveat::NotWatched), "{figure:?}");
        }
        assert_eq!(figure(MEMORY_NEEDED_PEAK).source.account, Account::Cgroup, "its cgroup is gone");
        assert!(record.summaries.get(MEMORY_NEEDED).is_some());
        // What they were computed with is in no sample.
        assert_eq!((record.totals.get(EMISSIONS), record.totals.get(COST)), (None, None));
    }

    #[test]
    fn what_a_daemon_wrote_when_it_left_is_better_than_samples_from_before() {
        let mut record = completed(10);
        record.totals.set(ENERGY, 410, QualityKind::LowerBound, "RAPL, by CPU time");
        let mut series = Series::new(&JOB);
        let mut cells = vec![MISSING; JOB.columns.len()];
        cells[ENERGY] = 410;
        series.push(record.start_ns.unwrap() / 1_000_000, &cells);
        complete_by_samples(&mut record, &series);
        assert_eq!(
            record.totals.figure(ENERGY).unwrap().source,
            "RAPL, by CPU time, not watched all the time"
        );
    }
}
