//! A series in a given number of equal spans, each with minimum, mean and maximum.

use met_core::Kind;
use met_core::series::{Gaps, Series};
use serde_json::{Map, Value, json};

use crate::json;
use crate::resample::{self, Bin};

/// What a series did in each of some equal spans. A counter is shown by its growth per second.
#[derive(Clone, Debug)]
pub struct Reduced {
    pub begin_ms: i64,
    pub end_ms: i64,
    /// By index in the table; a span without samples is `None`.
    pub columns: Vec<(usize, Vec<Option<Bin>>)>,
    pub points: usize,
}

/// Reduces these columns of a series. Columns that were never read are left out. The gap is the longest time between two
/// samples that is bridged.
pub fn reduced(
    series: &Series,
    columns: &[usize],
    (begin_ms, end_ms): (i64, i64),
    points: usize,
    gaps: impl Fn(usize) -> Gaps,
) -> Reduced {
    // Of no time, or without any sample, there is nothing to show.
    if end_ms < begin_ms || series.times_ms.is_empty() {
        return Reduced { begin_ms, end_ms: begin_ms, columns: Vec::new(), points: 0 };
    }
    let known = columns.iter().filter_map(|&column| {
        let scale = series.table.columns[column].scale;
        let bins = resample::between(series, column, begin_ms, end_ms, points, gaps(column));
        let is_known = bins.iter().any(Option::is_some);
        let scaled = |bin: Option<Bin>| bin.map(|bin| bin.map(|value| value * scale));
        is_known.then(|| (column, bins.into_iter().map(scaled).collect()))
    });
    Reduced { begin_ms, end_ms, columns: known.collect(), points }
}

impl Reduced {
    /// Where each span begins.
    pub fn times_ms(&self) -> impl Iterator<Item = i64> {
        let (begin_ms, points) = (self.begin_ms, self.points);
        let span_ms = i128::from(self.end_ms) - i128::from(begin_ms);
        (0..points).map(move |index| begin_ms + (span_ms * index as i128 / points.max(1) as i128) as i64)
    }

    /// `times` has where each span begins, `columns` the minimum, mean and maximum in each of them.
    pub fn object(&self, series: &Series) -> Map<String, Value> {
        let mut columns = Map::new();
        for (index, bins) in &self.columns {
            let column = &series.table.columns[*index];
            let of = |figure: fn(&Bin) -> f64| -> Vec<Option<f64>> {
                bins.iter().map(|bin| bin.as_ref().map(figure)).collect()
            };
            let figures = json!({
                "per_second": column.kind == Kind::Counter,
                "min": of(|bin| bin.min),
                "mean": of(|bin| bin.mean),
                "max": of(|bin| bin.max),
            });
            columns.insert(column.json_name(), figures);
        }
        let times = self.times_ms().map(|time_ms| Value::from(json::time(time_ms.saturating_mul(1_000_000))));
        let span_ms = self.end_ms.saturating_sub(self.begin_ms) as f64 / self.points.max(1) as f64;
        Map::from_iter([
            ("times".to_owned(), times.collect()),
            ("span_seconds".to_owned(), json!(span_ms / 1e3)),
            ("columns".to_owned(), columns.into()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use met_core::job_table::{CPU, MEMORY_NEEDED};
    use met_core::{JOB, MISSING};
    use proptest::prelude::*;

    use super::*;

    const GAP_MS: i64 = 10_000;

    /// Samples with CPU time and memory.
    fn series(samples: &[(i64, i64, i64)]) -> Series {
        let mut series = Series::new(&JOB);
        for &(time_ms, cpu, memory) in samples {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED]) = (cpu, memory);
            series.push(time_ms, &cells);
        }
        series
    }

    fn span(series: &Series) -> (i64, i64) {
        (series.times_ms[0], series.times_ms[series.len() - 1])
    }

    #[test]
    fn a_time_that_ends_before_it_begins_has_no_points() {
        let series = series(&[(5_000, 1, 5), (6_000, 2, 7)]);
        for (series, span) in [(&series, (9_000, 6_000)), (&Series::new(&JOB), (0, 0))] {
            let object = reduced(series, &[CPU], span, 3, |_| GAP_MS.into()).object(series);
            assert_eq!((&object["times"], &object["columns"]), (&json!([]), &json!({})));
            assert_eq!(object["span_seconds"], 0.0);
        }
    }

    #[test]
    fn a_gap_stays_a_gap_and_what_was_never_read_is_left_out() {
        let series =
            series(&[(0, MISSING, 5), (1000, MISSING, 7), (60_000, MISSING, 9), (61_000, MISSING, 9)]);
        let reduced = reduced(&series, &[CPU, MEMORY_NEEDED], span(&series), 61, |_| GAP_MS.into());
        let [(column, bins)] = &reduced.columns[..] else { panic!("{reduced:?}") };
        assert_eq!(*column, MEMORY_NEEDED);
        assert_eq!(bins.iter().flatten().count(), 2);
        assert_eq!((bins[0].unwrap().min, bins[0].unwrap().mean, bins[0].unwrap().max), (5.0, 6.0, 7.0));
        assert!(bins[1..60].iter().all(Option::is_none));
        let object = Value::Object(reduced.object(&series));
        assert_eq!(object["columns"]["memory_needed_bytes"]["max"][1], Value::Null);
        assert_eq!((&object["span_seconds"], object["times"].as_array().unwrap().len()), (&json!(1.0), 61));
    }

    #[test]
    fn a_counter_is_a_rate_in_its_unit() {
        let series =
            series(&[(0, 0, MISSING), (1000, 2_000_000_000, MISSING), (2000, 2_000_000_000, MISSING)]);
        let object = reduced(&series, &[CPU], span(&series), 2, |_| GAP_MS.into()).object(&series);
        let expected =
            json!({ "per_second": true, "min": [2.0, 0.0], "mean": [2.0, 0.0], "max": [2.0, 0.0] });
        assert_eq!(object["columns"]["cpu_seconds"], expected);
    }

    proptest! {
        #[test]
        fn extremes_stay_and_means_are_between_them(
            steps in prop::collection::vec((1i64..30_000, 0i64..1_000_000), 2..80),
            points in 1usize..300,
        ) {
            let mut time_ms = 1_700_000_000_000;
            let samples: Vec<_> = steps.iter().map(|&(elapsed_ms, memory)| {
                time_ms += elapsed_ms;
                (time_ms, MISSING, memory)
            }).collect();
            let series = series(&samples);
            let reduced = reduced(&series, &[MEMORY_NEEDED], span(&series), points, |_| GAP_MS.into());
            // Of what is between two samples that are no gap apart.
            let bridged: Vec<(i64, i64)> = samples.windows(2)
                .filter(|pair| pair[1].0 - pair[0].0 <= GAP_MS)
                .flat_map(|pair| [(pair[0].0, pair[0].2), (pair[1].0, pair[1].2)])
                .collect();
            let found: Vec<Bin> = reduced.columns.iter().flat_map(|(_, bins)| bins.iter().flatten().copied()).collect();
            prop_assert_eq!(found.is_empty(), bridged.is_empty());
            for bin in &found {
                prop_assert!(bin.min <= bin.mean + 1e-6 && bin.mean <= bin.max + 1e-6, "{:?}", bin);
            }
            if !bridged.is_empty() {
                let lowest = bridged.iter().map(|&(_, value)| value as f64).fold(f64::MAX, f64::min);
                let highest = bridged.iter().map(|&(_, value)| value as f64).fold(f64::MIN, f64::max);
                prop_assert_eq!(found.iter().map(|bin| bin.min).fold(f64::MAX, f64::min), lowest);
                prop_assert_eq!(found.iter().map(|bin| bin.max).fold(f64::MIN, f64::max), highest);
            }
        }

        #[test]
        fn a_span_without_samples_is_empty(gap_ms in 20_000i64..1_000_000, points in 1usize..200) {
            let series = series(&[(0, MISSING, 1), (1000, MISSING, 1), (1000 + gap_ms, MISSING, 1), (2000 + gap_ms, MISSING, 1)]);
            let reduced = reduced(&series, &[MEMORY_NEEDED], span(&series), points, |_| GAP_MS.into());
            let times: Vec<i64> = reduced.times_ms().chain([2000 + gap_ms]).collect();
            for (index, bin) in reduced.columns[0].1.iter().enumerate() {
                let is_in_gap = times[index] >= 1001 && times[index + 1] < 1000 + gap_ms;
                prop_assert!(!is_in_gap || bin.is_none(), "{} {:?}", index, bin);
            }
        }
    }
}
