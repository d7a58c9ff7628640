//! A series in as many steps as a plot has columns.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use met_core::gpu::device;
use met_core::series::{Gaps, Interval, RATE_MIN_MS, Series, Spread, Spreads};
use met_core::{JOB, Kind, MISSING};

/// What a column did in one step of the plot, in the column's sub-unit; counters: their growth per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// Weighted by time, over the part of the bin that was covered by samples.
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

impl Bin {
    /// With all its figures changed in the same way.
    pub fn map(self, change: impl Fn(f64) -> f64) -> Bin {
        Bin { mean: change(self.mean), min: change(self.min), max: change(self.max) }
    }
}

/// The span of a series cut into equal bins. A bin that no sample covers is `None`: a gap stays a gap.
pub fn bins(series: &Series, column: usize, count: usize, gaps: impl Into<Gaps>) -> Vec<Option<Bin>> {
    let (Some(&first_ms), Some(&last_ms)) = (series.times_ms.first(), series.times_ms.last()) else {
        return vec![None; count];
    };
    between(series, column, first_ms, last_ms, count, gaps)
}

/// The same over a span that the caller chooses, so that several series share an axis.
pub fn between(
    series: &Series,
    column: usize,
    begin_ms: i64,
    end_ms: i64,
    count: usize,
    gaps: impl Into<Gaps>,
) -> Vec<Option<Bin>> {
    let mut bins = Bins::new(begin_ms, end_ms, count);
    rates(series, column, gaps).iter().for_each(|interval| bins.add(interval));
    bins.finish()
}

/// The bins of a span, filled with one interval after the other.
pub struct Bins {
    begin_ms: i64,
    end_ms: i64,
    bin_ms: f64,
    sums: Vec<Sum>,
    /// Where the last one ended: most are in the same bin.
    within: Within,
}

impl Bins {
    pub fn new(begin_ms: i64, end_ms: i64, count: usize) -> Bins {
        let bin_ms = end_ms.saturating_sub(begin_ms) as f64 / count as f64;
        Bins { begin_ms, end_ms, bin_ms, sums: vec![Sum::default(); count], within: Within::default() }
    }

    #[inline]
    pub fn add(&mut self, interval: &Interval) {
        let Bins { begin_ms, end_ms, bin_ms, .. } = *self;
        let from = (interval.begin_ms.max(begin_ms) - begin_ms) as f64;
        let to = (interval.end_ms.min(end_ms) - begin_ms) as f64;
        if to <= from || self.sums.is_empty() {
            return;
        }
        if from >= self.within.from && to <= self.within.to {
            self.sums[self.within.index].add(interval, to - from);
            return;
        }
        let count = self.sums.len();
        let first = ((from / bin_ms) as usize).min(count - 1);
        let last = ((to / bin_ms).ceil() as usize).clamp(first + 1, count);
        for (index, sum) in self.sums.iter_mut().enumerate().take(last).skip(first) {
            let covered_ms = to.min((index + 1) as f64 * bin_ms) - from.max(index as f64 * bin_ms);
            sum.add(interval, covered_ms);
        }
        self.within = Within::of(last - 1, bin_ms);
    }

    pub fn finish(self) -> Vec<Option<Bin>> {
        self.sums.into_iter().map(Sum::bin).collect()
    }
}

/// What is in one bin for certain, however its ends are rounded.
#[derive(Default)]
struct Within {
    index: usize,
    from: f64,
    to: f64,
}

impl Within {
    /// More than rounding takes of shorter times.
    const MARGIN_MS: f64 = 0.5;
    const LONGEST_MS: f64 = (1_i64 << 49) as f64;

    fn of(index: usize, bin_ms: f64) -> Within {
        let (from, to) = (index as f64 * bin_ms, (index + 1) as f64 * bin_ms);
        match to < Within::LONGEST_MS {
            true => Within { index, from: from + Within::MARGIN_MS, to: to - Within::MARGIN_MS },
            false => Within::default(),
        }
    }
}

/// The intervals that are drawn. A counter that was read twice in a moment grew by what was counted late: such an
/// interval is one with its neighbour, so that bars and peaks are made of the same rates in any number of bins.
pub fn rates(series: &Series, column: usize, gaps: impl Into<Gaps>) -> Vec<Interval> {
    let mut all = Vec::with_capacity(series.len());
    all.extend(series.intervals(column, gaps.into()));
    let is_shorter = |one: &Interval, than_ms: i64| !one.is_thinned && one.end_ms - one.begin_ms < than_ms;
    // No median is needed for that.
    if !all.iter().any(|one| is_shorter(one, RATE_MIN_MS)) {
        return all;
    }
    let least_ms = shortest_of_rates(series, column, &all);
    let is_short = |one: &Interval| is_shorter(one, least_ms);
    // Mostly the samples are as far apart as usual.
    if !all.iter().any(is_short) {
        return all;
    }
    let mut merged: Vec<Interval> = Vec::with_capacity(all.len());
    for next in all {
        match merged.last_mut().filter(|last| is_short(last) && is_joined(last, &next)) {
            Some(last) => *last = together(last, &next),
            None => merged.push(next),
        }
    }
    // The last one has no neighbour but that before it.
    if let [.., before, last] = merged[..]
        && is_short(&last)
        && is_joined(&before, &last)
    {
        merged.truncate(merged.len() - 2);
        merged.push(together(&before, &last));
    }
    merged
}

/// The [`rates`] of the columns of a series.
pub struct Rates<'a> {
    series: &'a Series,
    gap_ms: i64,
    /// No two samples are so near each other that rates may be joined.
    is_even: bool,
    /// Those that were kept.
    known: RefCell<Vec<(usize, Rc<Vec<Interval>>)>>,
}

impl<'a> Rates<'a> {
    pub fn new(series: &'a Series, gap_ms: i64) -> Rates<'a> {
        let is_even = series.times_ms.windows(2).all(|pair| pair[1].saturating_sub(pair[0]) >= RATE_MIN_MS);
        Rates { series, gap_ms, is_even, known: RefCell::default() }
    }

    pub fn series(&self) -> &'a Series {
        self.series
    }

    /// Those of a column, kept for the next time.
    pub fn of(&self, column: usize) -> Rc<Vec<Interval>> {
        self.kept(column).unwrap_or_else(|| {
            let found = Rc::new(rates(self.series, column, self.gap_ms));
            self.known.borrow_mut().push((column, Rc::clone(&found)));
            found
        })
    }

    /// Calls `each` with those of a column. They are not kept: of a long series they take megabytes.
    pub fn each(&self, column: usize, mut each: impl FnMut(&Interval)) {
        debug_assert_eq!(
            self.series.columns[column].len(),
            self.series.len(),
            "column {column} was not read"
        );
        match self.kept(column) {
            None if self.is_even => {
                self.series.intervals(column, self.gap_ms).for_each(|interval| each(&interval));
            }
            None => self.of(column).iter().for_each(each),
            Some(known) => known.iter().for_each(each),
        }
    }

    fn kept(&self, column: usize) -> Option<Rc<Vec<Interval>>> {
        let known = self.known.borrow();
        known.iter().find(|(of, _)| *of == column).map(|(_, rates)| Rc::clone(rates))
    }
}

fn is_joined(one: &Interval, next: &Interval) -> bool {
    one.end_ms == next.begin_ms && !one.is_thinned && !next.is_thinned
}

fn together(one: &Interval, next: &Interval) -> Interval {
    let [first_ms, second_ms] = [one, next].map(|of| (of.end_ms - of.begin_ms) as f64);
    let value = (one.value * first_ms + next.value * second_ms) / (first_ms + second_ms);
    Interval { end_ms: next.end_ms, value, low: value, peak: value, ..*one }
}

/// A series whose only column, `plus[0]`, holds the sum of several, sample by sample, without `minus`: the peaks of the
/// parts are not at the same time, and their sum is not a peak. A column that was never read counts nothing; a
/// sample that lacks one of the others has no sum.
pub fn combined(series: &Series, plus: &[usize], minus: Option<usize>) -> Series {
    let is_known = |column: &&usize| series.columns[**column].iter().any(|&cell| cell != MISSING);
    let plus_known: Vec<usize> = plus.iter().filter(is_known).copied().collect();
    let sum = |row: usize| {
        let cell = |column: usize| Some(series.columns[column][row]).filter(|&cell| cell != MISSING);
        let whole = plus_known.iter().map(|&column| cell(column)).sum::<Option<i64>>()?;
        minus.map_or(Some(whole), |minus| Some(whole - cell(minus)?))
    };
    let mut combined = Series::new(series.table);
    combined.times_ms.clone_from(&series.times_ms);
    if let Some(&first) = plus.first() {
        combined.columns[first] = match plus_known.is_empty() {
            true => vec![MISSING; series.len()],
            false => (0..series.len()).map(|row| sum(row).unwrap_or(MISSING)).collect(),
        };
        if series.spreads.is_some() && !plus_known.is_empty() {
            let signed =
                plus_known.iter().map(|&column| (column, 1.0)).chain(minus.map(|minus| (minus, -1.0)));
            spread_of_sum(series, &signed.collect::<Vec<_>>(), first, &mut combined);
        }
    }
    combined
}

/// Where samples were removed: the lowest and the highest that the sum had for certain, when one part had its own and
/// the others their means.
fn spread_of_sum(series: &Series, parts: &[(usize, f64)], into: usize, combined: &mut Series) {
    let by_end = |&(column, _): &(usize, f64)| -> HashMap<i64, Interval> {
        let removed = series.intervals(column, 0).filter(|interval| interval.is_thinned);
        removed.map(|interval| (interval.end_ms, interval)).collect()
    };
    let intervals: Vec<HashMap<i64, Interval>> = parts.iter().map(by_end).collect();
    let mut spreads = Spreads::new(series.table);
    spreads.resize(series.len());
    for (row, time_ms) in series.times_ms.iter().enumerate() {
        let all: Option<Vec<&Interval>> = intervals.iter().map(|of_part| of_part.get(time_ms)).collect();
        let Some(all) = all.filter(|all| all.iter().all(|one| one.begin_ms == all[0].begin_ms)) else {
            continue;
        };
        let signed = all.iter().zip(parts).map(|(one, &(_, sign))| (one, sign));
        let mean: f64 = signed.clone().map(|(one, sign)| one.value * sign).sum();
        let ends =
            signed.flat_map(|(one, sign)| [one.low, one.peak].map(|end| mean + (end - one.value) * sign));
        let (low, high) = ends.fold((mean, mean), |(low, high), end| (low.min(end), high.max(end)));
        let is_gauge = series.table.columns[into].kind == Kind::Gauge;
        spreads.set(into, row, Spread { low, mean: is_gauge.then_some(mean), high });
    }
    combined.spreads = Some(Box::new(spreads));
}

/// Half of the usual interval, and no more than that of a moment; a level is as good after any time.
fn shortest_of_rates(series: &Series, column: usize, intervals: &[Interval]) -> i64 {
    if series.table.columns[column].kind == Kind::Gauge {
        return 0;
    }
    let read = intervals.iter().filter(|interval| !interval.is_thinned);
    let mut lengths: Vec<i64> = read.map(|interval| interval.end_ms - interval.begin_ms).collect();
    let middle = lengths.len() / 2;
    if lengths.is_empty() { 0 } else { (*lengths.select_nth_unstable(middle).1 / 2).min(RATE_MIN_MS) }
}

/// The longest time between two samples over which a level is still believed: slow ticks are ten periods apart.
pub fn gap_ms(interval: Duration) -> i64 {
    (interval.as_millis() as i64 * 25).max(25_000)
}

/// The same for a series whose period may have been changed meanwhile: what many of its spans are is no gap.
pub fn gap_ms_of(series: &Series, interval: Duration) -> i64 {
    const SPANS_MIN: usize = 20;
    let mut spans = series.spans_ms();
    let place = spans.len() * 9 / 10;
    let usual_ms = (spans.len() >= SPANS_MIN).then(|| *spans.select_nth_unstable(place).1);
    gap_ms(interval).max(usual_ms.map_or(0, |usual_ms| usual_ms.saturating_mul(3)))
}

/// A longer time between two readings is a gap: at least so much, and more where most readings are further apart.
pub fn look_gap_ms(mut spans: Vec<i64>, least_ms: i64) -> i64 {
    spans.sort_unstable();
    let usual_ms = spans.get(spans.len() * 9 / 10).copied().unwrap_or(0);
    least_ms.max(usual_ms.saturating_mul(3))
}

/// Which times between samples are drawn as gaps. A job may be sampled every `interval` and less often with its age;
/// events are then as far apart as that, while all jobs and GPUs are read at least every ten seconds.
pub fn gaps(series: &Series, interval: Duration, start_ms: Option<i64>) -> Gaps {
    let gaps = Gaps::paced(gap_ms(interval), start_ms);
    match series.table.name {
        name if name == device::TABLE.name => gpu_gaps(gaps.read_together()),
        name if name == JOB.name => gaps.read_together(),
        _ => gaps,
    }
}

/// The same for what a job did on GPUs. They are read in every tick, and no counter covers the time in between: a
/// shorter pause is a gap.
pub fn gpu_gaps(gaps: Gaps) -> Gaps {
    const LEAST_MS: i64 = 5000;
    // Ten times as often as what is read in slow ticks.
    gaps.from_ms((gaps.least_ms() / 10).max(LEAST_MS))
}

/// The samples up to the end of the job, and the first one after it.
pub fn until(mut series: Cow<'_, Series>, end_ms: Option<i64>) -> Cow<'_, Series> {
    if let Some(end_ms) =
        end_ms.filter(|&end_ms| series.times_ms.last().is_some_and(|&last_ms| last_ms > end_ms))
    {
        let count = series.times_ms.partition_point(|&time_ms| time_ms <= end_ms);
        let series = series.to_mut();
        series.truncate((count + 1).min(series.len()));
        if let Some(last_ms) = series.times_ms.last_mut() {
            // That one was taken a moment later, when nothing changed any more.
            *last_ms = (*last_ms).min(end_ms);
        }
    }
    series
}

/// The next round number above, in the unit it will be written in.
pub fn nice_above(value: f64, step: f64) -> f64 {
    const ROUND: [f64; 9] = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    if value <= 0.0 {
        return 1.0;
    }
    let mut unit = 1.0;
    while value / unit >= step {
        unit *= step;
    }
    let in_unit = value / unit;
    let decade = 10f64.powf(in_unit.log10().floor());
    // Means of a share that is always 1 add up to a little more.
    let least = in_unit * (1.0 - 1e-6);
    let round = ROUND.into_iter().find(|&round| round * decade >= least).unwrap_or(10.0);
    // A thousand KiB are written as 0.98 MiB: one MiB is rounder.
    unit * if round * decade < 1000.0 { round * decade } else { step }
}

#[derive(Clone, Copy, Default)]
struct Sum {
    weighted: f64,
    covered_ms: f64,
    ends: Option<(f64, f64)>,
}

impl Sum {
    fn add(&mut self, interval: &Interval, covered_ms: f64) {
        // Rounding may leave a sliver of a bin that the interval only touches.
        if covered_ms <= 0.0 {
            return;
        }
        let (low, high) = self.ends.unwrap_or((interval.low, interval.peak));
        self.ends = Some((low.min(interval.low), high.max(interval.peak)));
        self.weighted += interval.value * covered_ms;
        self.covered_ms += covered_ms;
    }

    fn bin(self) -> Option<Bin> {
        let mean = self.weighted / self.covered_ms;
        self.ends.filter(|_| self.covered_ms > 0.0).map(|(min, max)| Bin { mean, min, max })
    }
}

#[cfg(test)]
#[path = "resample_gap_tests.rs"]
mod gap_tests;

#[cfg(test)]
mod tests {
    use met_core::JOB;
    use met_core::job_table::{CPU, MEMORY_NEEDED, READ, READ_CALL, WRITTEN};
    use proptest::prelude::*;

    use super::*;

    fn series(samples: &[(i64, i64, i64)]) -> Series {
        let mut series = Series::new(&JOB);
        for &(time_ms, cpu, memory) in samples {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED]) = (cpu, memory);
            series.push(time_ms, &cells);
        }
        series
    }

    #[test]
    fn peaks_at_different_times_are_not_added() {
        // Sixty MB are read, then sixty written.
        let mut series = Series::new(&JOB);
        for (second, read, written) in [(0, 0, 0), (1, 60, 0), (2, 60, 60), (3, MISSING, 60)] {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[READ], cells[WRITTEN], cells[MEMORY_NEEDED]) = (read, written, 100 - second);
            series.push(second * 1000, &cells);
        }
        let both = combined(&series, &[READ, WRITTEN, READ_CALL], None);
        assert_eq!(both.columns[READ], [0, 60, 120, MISSING]);
        assert_eq!(bins(&both, READ, 1, 5000)[0].map(|bin| bin.max), Some(60.0));
        assert_eq!(combined(&series, &[WRITTEN], Some(READ)).columns[WRITTEN], [0, -60, 0, MISSING]);
        let unknown = combined(&series, &[READ_CALL], None);
        assert_eq!(unknown.columns[READ_CALL], series.columns[READ_CALL], "nothing is known of it");
    }

    #[test]
    fn a_plot_of_thinned_samples_has_the_peaks_and_means_of_before() {
        let mut series = Series::new(&JOB);
        let (mut read, mut written) = (0, 0);
        for second in 0..3600 {
            read += if second == 700 { 5_000_000 } else { 1000 };
            written += 500;
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[READ], cells[WRITTEN], cells[MEMORY_NEEDED]) = (read, written, 100 + second % 50);
            series.push(second * 1000, &cells);
        }
        let mut thinner = met_core::series::Thinner::new(&JOB, 600_000);
        thinner.push(&series);
        let thinned = thinner.finish();
        assert!(thinned.len() < 10);
        let figures = |series: &Series| {
            let io = combined(series, &[READ, WRITTEN], None);
            let io = bins(&io, READ, 6, 25_000);
            let memory = bins(series, MEMORY_NEEDED, 1, 25_000)[0].unwrap();
            let mean = io.iter().flatten().map(|bin| bin.mean).sum::<f64>();
            let peak = io.iter().flatten().map(|bin| bin.max).fold(0.0, f64::max);
            [mean, peak, memory.mean, memory.max]
        };
        for (before, after) in figures(&series).into_iter().zip(figures(&thinned)) {
            assert!((after / before - 1.0).abs() < 0.01, "{before} {after}");
        }
    }

    #[test]
    fn a_counter_that_is_read_twice_in_a_moment_has_no_peak_there() {
        // Half a core all the time; 5 ms of it are counted within 2 ms.
        let mut samples: Vec<(i64, i64, i64)> = (0..10).map(|s| (s * 1000, s * 500_000_000, 0)).collect();
        samples.insert(6, (5002, 2_505_000_000, 0));
        let series = series(&samples);
        let peak = bins(&series, CPU, 20, 2000).iter().flatten().map(|bin| bin.max).fold(0.0, f64::max);
        assert!((peak / 0.5e9 - 1.0).abs() < 0.01, "{peak}");
    }

    #[test]
    fn the_peak_is_the_same_in_any_number_of_bins() {
        // The last reading is a moment after the one before, and much was counted late.
        let mut samples: Vec<(i64, i64, i64)> = (0..10).map(|s| (s * 1000, s * 500_000_000, 0)).collect();
        samples.push((9100, 4_800_000_000, 0));
        let series = series(&samples);
        for count in [1, 7, 47, 67, 107, 1000] {
            let bins = bins(&series, CPU, count, 2000);
            let highest = |of: fn(&Bin) -> f64| bins.iter().flatten().map(of).fold(0.0, f64::max);
            let (peak, bar) = (highest(|bin| bin.max), highest(|bin| bin.mean));
            // What was counted late is spread over the second before it.
            assert!((peak / (0.8e9 / 1.1) - 1.0).abs() < 1e-9, "{count} bins: {peak}");
            assert!(bar <= peak * (1.0 + 1e-9), "{count} bins: a bar of {bar} above the peak {peak}");
        }
    }

    #[test]
    fn a_gap_stays_a_gap() {
        let series = series(&[(0, 0, 10), (1000, 0, 10), (9000, 0, 30), (10_000, 0, 30)]);
        let means: Vec<Option<f64>> =
            bins(&series, MEMORY_NEEDED, 10, 2000).iter().map(|bin| bin.map(|bin| bin.mean)).collect();
        assert_eq!(means[0], Some(10.0));
        assert_eq!(means[1..9], [None; 8]);
        assert_eq!(means[9], Some(30.0));
    }

    #[test]
    fn a_bin_has_the_mean_by_time_and_the_largest() {
        let series = series(&[(0, 0, 8), (1000, 0, 8), (4000, 0, 8), (4500, 0, 40), (5000, 0, 40)]);
        let bin = bins(&series, MEMORY_NEEDED, 1, 60_000)[0].unwrap();
        assert_eq!(bin.max, 40.0);
        assert!((bin.mean - (8.0 * 4.0 + 24.0 * 0.5 + 40.0 * 0.5) / 5.0).abs() < 1e-9, "{bin:?}");
    }

    #[test]
    fn a_counter_is_shown_by_its_growth() {
        let series =
            series(&[(0, 0, MISSING), (1000, 2_000_000_000, MISSING), (2000, 2_000_000_000, MISSING)]);
        let rates: Vec<f64> = bins(&series, CPU, 2, 60_000).iter().map(|bin| bin.unwrap().mean).collect();
        assert_eq!(rates, [2e9, 0.0]);
        assert_eq!(bins(&series, MEMORY_NEEDED, 2, 60_000), [None, None]);
    }

    #[test]
    fn nothing_in_is_nothing_out() {
        assert_eq!(bins(&Series::new(&JOB), CPU, 3, 1000), [None; 3]);
        assert_eq!(bins(&series(&[(5, 1, 1)]), CPU, 3, 1000), [None; 3]);
        assert_eq!(bins(&series(&[(5, 1, 1), (9, 2, 2)]), CPU, 0, 1000), []);
    }

    /// As they are defined: each interval in every bin that it touches.
    fn in_all_bins(rates: &[Interval], begin_ms: i64, end_ms: i64, count: usize) -> Vec<Option<Bin>> {
        let mut sums = vec![Sum::default(); count];
        let bin_ms = (end_ms - begin_ms) as f64 / count as f64;
        for interval in rates {
            let from = (interval.begin_ms.max(begin_ms) - begin_ms) as f64;
            let to = (interval.end_ms.min(end_ms) - begin_ms) as f64;
            for (index, sum) in sums.iter_mut().enumerate().filter(|_| to > from) {
                let covered_ms = to.min((index + 1) as f64 * bin_ms) - from.max(index as f64 * bin_ms);
                sum.add(interval, covered_ms);
            }
        }
        sums.into_iter().map(Sum::bin).collect()
    }

    proptest! {
        #[test]
        fn bins_are_the_same_whether_intervals_are_kept_or_not(
            steps in prop::collection::vec((prop_oneof![1i64..2000, 1i64..40_000], 0i64..9), 2..200),
            is_even in any::<bool>(), count in 1usize..130, cut_ms in -9999i64..9999)
        {
            let (mut samples, mut time_ms, mut cpu) = (Vec::new(), 1_700_000_000_000, 0);
            for (elapsed_ms, value) in steps {
                time_ms += if is_even { elapsed_ms.max(RATE_MIN_MS) } else { elapsed_ms };
                cpu += value * 1_000_000;
                samples.push((time_ms, if value == 7 { MISSING } else { cpu }, if value == 3 { MISSING } else { value }));
            }
            let series = series(&samples);
            let (begin_ms, end_ms) = (samples[0].0 + cut_ms, (time_ms - cut_ms).max(samples[0].0 + cut_ms));
            for column in [CPU, MEMORY_NEEDED] {
                let drawn = rates(&series, column, 25_000);
                let expected = match end_ms > begin_ms {
                    true => in_all_bins(&drawn, begin_ms, end_ms, count),
                    false => vec![None; count],
                };
                let all = Rates::new(&series, 25_000);
                for _ in 0..2 {
                    let (mut bins, mut seen) = (Bins::new(begin_ms, end_ms, count), Vec::new());
                    all.each(column, |interval| {
                        bins.add(interval);
                        seen.push(*interval);
                    });
                    prop_assert_eq!(&bins.finish(), &expected);
                    prop_assert_eq!(&seen, &drawn);
                    prop_assert_eq!(&*all.of(column), &drawn);
                }
            }
        }

        #[test]
        fn growth_is_neither_lost_nor_made(
            steps in prop::collection::vec((1i64..5000, 0i64..1_000_000), 1..60),
            count in 1usize..200,
        ) {
            let (mut time_ms, mut cpu) = (0, 0);
            let mut samples = vec![(0, 0, 0)];
            for (elapsed_ms, growth) in steps {
                (time_ms, cpu) = (time_ms + elapsed_ms, cpu + growth);
                samples.push((time_ms, cpu, 0));
            }
            let bin_seconds = time_ms as f64 / count as f64 / 1000.0;
            let bins = bins(&series(&samples), CPU, count, i64::MAX);
            let sum: f64 = bins.iter().map(|bin| bin.unwrap().mean * bin_seconds).sum();
            prop_assert!((sum - cpu as f64).abs() <= 1e-6 * (cpu as f64 + 1.0), "{} {}", sum, cpu);
        }
    }
}
