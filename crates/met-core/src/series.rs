//! The series of a job over time: samples of the job table, and what they sum up to.

mod charged;
mod gaps;
mod intervals;
mod packed;
mod thinning;
mod wanted;

use crate::job::{Summaries, Summary};
use crate::rate;
use crate::{Kind, MISSING, Table};
pub(crate) use charged::is_charged;
pub use gaps::Gaps;
pub use intervals::Intervals;
pub use packed::PackedSamples;
pub use thinning::{SPREAD_NAMES, Spread, Spreads, Thinner};
pub use wanted::Columns;

/// Samples of an old job have most columns once a minute: a column that was not read for so long is sparse, while a time
/// without any sample is a gap.
pub const SPARSE_MS: i64 = 150_000;
/// A counter that was read twice in a shorter time has no peak there: it may have been counted late.
pub const RATE_MIN_MS: i64 = 500;

/// Samples of one table for one subject, column by column. Times are unix milliseconds, ascending.
#[derive(Clone, Debug)]
pub struct Series {
    pub table: &'static Table,
    pub times_ms: Vec<i64>,
    /// One per column of the table, each as long as `times_ms`; empty if it was not to be read.
    pub columns: Vec<Vec<i64>>,
    /// What happened between the samples that thinning left; `None` while none were removed.
    pub spreads: Option<Box<Spreads>>,
}

impl Series {
    pub fn new(table: &'static Table) -> Series {
        Series { table, times_ms: Vec::new(), columns: vec![Vec::new(); table.columns.len()], spreads: None }
    }

    pub fn push(&mut self, time_ms: i64, cells: &[i64]) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.times_ms.push(time_ms);
        for (column, &cell) in self.columns.iter_mut().zip(cells) {
            column.push(cell);
        }
        if let Some(spreads) = &mut self.spreads {
            spreads.resize(self.times_ms.len());
        }
    }

    /// The samples from `begin` to before `end`.
    pub fn part(&self, begin: usize, end: usize) -> Series {
        Series {
            table: self.table,
            times_ms: self.times_ms[begin..end].to_vec(),
            columns: self.columns.iter().map(|cells| cells[begin..end].to_vec()).collect(),
            spreads: self.spreads.as_ref().map(|spreads| Box::new(spreads.part(begin, end))),
        }
    }

    /// The spread of a column in the time before a sample, where samples were removed there.
    pub fn spread(&self, column: usize, index: usize) -> Option<Spread> {
        self.spreads.as_ref()?.get(column, index)
    }

    /// The times between neighbouring samples as they were taken, without those that thinning left.
    pub fn spans_ms(&self) -> Vec<i64> {
        let spans = self.times_ms.windows(2).zip(1..).filter(|&(_, index)| !self.is_thinned(index));
        spans.map(|(pair, _)| pair[1] - pair[0]).collect()
    }

    /// Whether samples were removed before this one.
    fn is_thinned(&self, index: usize) -> bool {
        self.spreads.as_ref().is_some_and(|spreads| spreads.has_any(index))
    }

    /// Whether there is a gap between two samples.
    fn has_gap(&self, first: usize, last: usize, gaps: Gaps) -> bool {
        (first + 1..=last).any(|index| gaps.has_before(self, index) && !self.is_thinned(index))
    }

    /// Calls `each` with a copy of every sample.
    pub fn each_row(&self, mut each: impl FnMut(i64, &mut [i64])) {
        let mut cells = vec![MISSING; self.columns.len()];
        for (index, &time_ms) in self.times_ms.iter().enumerate() {
            for (cell, column) in cells.iter_mut().zip(&self.columns) {
                *cell = column[index];
            }
            each(time_ms, &mut cells);
        }
    }

    /// Keeps the first `count` samples.
    pub fn truncate(&mut self, count: usize) {
        self.times_ms.truncate(count);
        for column in &mut self.columns {
            column.truncate(count);
        }
        if let Some(spreads) = &mut self.spreads {
            spreads.resize(self.times_ms.len());
        }
    }

    /// Removes the first `count` samples.
    pub fn remove_first(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        self.times_ms.drain(..count);
        for column in &mut self.columns {
            column.drain(..count);
        }
        if let Some(spreads) = &mut self.spreads {
            spreads.remove_first(count);
        }
    }

    /// At most so many samples: a longer series is thinned, so that its means and peaks stay.
    pub fn at_most(self, most: usize) -> Series {
        let (Some(first), Some(last)) = (self.times_ms.first(), self.times_ms.last()) else { return self };
        let mut step_ms = (last - first) / most.max(1) as i64 + 1;
        let mut series = None;
        while series.as_ref().unwrap_or(&self).len() > most && step_ms < i64::MAX / 2 {
            // Mostly the first step leaves one too many, which need not be tried.
            let is_last = step_ms >= i64::MAX / 4;
            if is_last || thinning::least_left(&self, step_ms) <= most {
                series = Some(thinning::thinned(&self, step_ms));
            }
            step_ms *= 2;
        }
        series.unwrap_or(self)
    }

    pub fn len(&self) -> usize {
        self.times_ms.len()
    }

    pub fn is_empty(&self) -> bool {
        self.times_ms.is_empty()
    }

    /// Adds the samples of `later`, which begin after these end; an overlap (a block read twice) is skipped.
    pub fn append(&mut self, later: &Series) {
        let last = self.times_ms.last().copied().unwrap_or(i64::MIN);
        let skip = later.times_ms.partition_point(|&time| time <= last);
        if self.spreads.is_some() || later.spreads.is_some() {
            let spreads = self.spreads.get_or_insert_with(|| Box::new(Spreads::new(self.table)));
            spreads.append(self.times_ms.len(), later, skip);
        }
        self.times_ms.extend_from_slice(&later.times_ms[skip..]);
        for (column, more) in self.columns.iter_mut().zip(&later.columns) {
            column.extend_from_slice(&more[skip..]);
        }
    }

    /// The intervals between neighbouring known cells of a column: a level, or a growth per second, that
    /// held from one time to another. A gap is not bridged, unless samples were removed from it; other columns may have
    /// been read in between. Energy that was not charged yet is not known.
    pub fn intervals(&self, column: usize, gaps: impl Into<Gaps>) -> Intervals<'_> {
        Intervals::of(self, column, gaps.into())
    }

    pub fn maximum(&self, column: usize) -> Option<i64> {
        let kept = self.columns[column].iter().copied().filter(|&cell| cell != MISSING).max();
        let is_gauge = self.table.columns[column].kind == Kind::Gauge;
        let removed = self.spreads.as_ref().filter(|_| is_gauge).and_then(|spreads| spreads.highest(column));
        kept.max(removed.map(|highest| highest.round() as i64).filter(|_| kept.is_some()))
    }

    pub fn summaries(&self, gaps: impl Into<Gaps>) -> Summaries {
        let gaps = gaps.into();
        let mut summaries = Summaries::default();
        for column in 0..self.columns.len() {
            if let Some(summary) = self.summary(column, gaps) {
                summaries.set(column, summary);
            }
        }
        summaries
    }

    /// The mean of [`Series::summary`] alone. Sums of levels are exact, so that they need no order, unless they are very
    /// large.
    pub fn mean(&self, column: usize, gaps: impl Into<Gaps>) -> Option<f64> {
        const EXACT_MAX: f64 = (1_u64 << 51) as f64;
        let gaps = gaps.into();
        let (mut sum, mut most, mut covered_ms) = (0.0, 0.0, 0);
        for span in self.intervals(column, gaps) {
            let length_ms = span.end_ms - span.begin_ms;
            sum += span.value * length_ms as f64;
            most += span.low.abs().max(span.peak.abs()) * length_ms as f64;
            covered_ms += length_ms;
        }
        let is_level = self.table.columns[column].kind == Kind::Gauge && self.spreads.is_none();
        match is_level && most < EXACT_MAX && covered_ms > 0 {
            true => Some(sum / covered_ms as f64),
            false => self.summary(column, gaps).map(|summary| summary.mean),
        }
    }

    pub fn summary(&self, column: usize, gaps: impl Into<Gaps>) -> Option<Summary> {
        let mut spans: Vec<(f64, i64)> =
            self.intervals(column, gaps).map(|span| (span.value, span.end_ms - span.begin_ms)).collect();
        if spans.is_empty() {
            // One sample of a level is still a level; of a counter it is nothing.
            let only = self.maximum(column).filter(|_| self.table.columns[column].kind == Kind::Gauge)?;
            spans.push((only as f64, 1));
        }
        spans.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
        let covered_ms: i64 = spans.iter().map(|&(_, length)| length).sum();
        let mean =
            spans.iter().map(|&(value, length)| value * length as f64).sum::<f64>() / covered_ms as f64;
        let quantile = |share: f64| {
            let mut left = share * covered_ms as f64;
            for &(value, length) in &spans {
                left -= length as f64;
                if left <= 0.0 {
                    return value;
                }
            }
            spans[spans.len() - 1].0
        };
        let (min, max) = (spans[0].0, spans[spans.len() - 1].0);
        Some(Summary { mean, min, max, p50: Some(quantile(0.5)), p95: Some(quantile(0.95)) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub begin_ms: i64,
    pub end_ms: i64,
    /// The mean.
    pub value: f64,
    /// The lowest and the highest known: of a level, those at one of the two ends.
    pub low: f64,
    pub peak: f64,
    /// Samples were removed from it.
    pub is_thinned: bool,
}

/// What is known of the time between two samples; nothing across a gap or where a counter began again.
#[inline]
fn interval(
    kind: Kind,
    (begin_ms, before): (i64, i64),
    (end_ms, now): (i64, i64),
    spread: Option<Spread>,
    gap_ms: i64,
) -> Option<Interval> {
    if end_ms <= begin_ms || (spread.is_none() && end_ms - begin_ms > gap_ms) {
        return None;
    }
    let (mean, low, peak) = match kind {
        Kind::Gauge => ((before as f64 + now as f64) / 2.0, before.min(now) as f64, before.max(now) as f64),
        Kind::Counter => {
            let rate = rate::per_second(before, now, (end_ms - begin_ms) * 1_000_000)?;
            (rate, rate, rate)
        }
    };
    let Some(spread) = spread else {
        return Some(Interval { begin_ms, end_ms, value: mean, low, peak, is_thinned: false });
    };
    let value = spread.mean.unwrap_or(mean);
    Some(Interval { begin_ms, end_ms, value, low: spread.low, peak: spread.high, is_thinned: true })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::JOB;
    use crate::job_table::{CPU, MEMORY_NEEDED};

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
    fn a_long_series_that_is_cut_down_keeps_its_ends_and_its_peak() {
        let mut series = Series::new(&crate::JOB);
        for time_ms in 0..1001 {
            let mut cells = vec![MISSING; crate::JOB.columns.len()];
            cells[CPU] = time_ms * 2;
            cells[MEMORY_NEEDED] = if time_ms == 333 { 900 } else { 100 };
            series.push(time_ms * 1000, &cells);
        }
        let few = series.clone().at_most(50);
        assert!((20..=50).contains(&few.len()), "{}", few.len());
        assert_eq!((few.times_ms[0], few.times_ms.last()), (0, Some(&1_000_000)));
        let highest =
            (0..few.len()).filter_map(|index| few.spread(MEMORY_NEEDED, index)).map(|spread| spread.high);
        assert_eq!(highest.fold(0.0, f64::max), 900.0);
        assert_eq!(few.columns[CPU].last(), Some(&2000), "a counter ends where it ended");
        assert_eq!(series.clone().at_most(1001).times_ms, series.times_ms);
    }

    #[test]
    fn the_mean_is_weighted_by_time() {
        let summaries = series(&[(0, 0, 10), (1000, 0, 10), (10_000, 0, 30)]).summaries(60_000);
        assert_eq!(summaries.get(MEMORY_NEEDED).unwrap().mean, 19.0);
        assert_eq!(summaries.get(MEMORY_NEEDED).unwrap().max, 20.0);
    }

    #[test]
    fn a_gap_is_not_bridged_and_a_missing_cell_is_not_zero() {
        let summaries = series(&[(0, 0, 10), (1000, MISSING, 10), (900_000, MISSING, 90), (901_000, 5, 90)]);
        let summaries = summaries.summaries(60_000);
        assert_eq!(summaries.get(MEMORY_NEEDED).unwrap().mean, 50.0);
        assert_eq!(summaries.get(CPU), None);
    }

    #[test]
    fn one_sample_of_memory_is_a_mean_and_one_of_cpu_is_not() {
        let summaries = series(&[(5, 7, 10)]).summaries(60_000);
        assert_eq!(summaries.get(MEMORY_NEEDED).unwrap().mean, 10.0);
        assert_eq!(summaries.get(CPU), None);
    }

    #[test]
    fn appending_skips_what_is_there_already() {
        let mut whole = series(&[(0, 0, 1), (1000, 1, 1)]);
        whole.append(&series(&[(1000, 1, 1), (2000, 2, 2)]));
        assert_eq!(whole.times_ms, [0, 1000, 2000]);
        assert_eq!(whole.columns[CPU], [0, 1, 2]);
    }

    #[test]
    fn a_column_that_is_read_less_often_is_sparse_and_a_time_without_samples_is_a_gap() {
        // CPU time every 10 s, memory every 60 s; then nothing for 50 s.
        let sample = |second: i64| (second * 1000, second, if second % 60 == 0 { 10 } else { MISSING });
        let times: Vec<_> = (0..=12).map(|index| sample(index * 10)).collect();
        let bridged_ms = |series: &Series| {
            series.intervals(MEMORY_NEEDED, 25_000).map(|span| span.end_ms - span.begin_ms).sum::<i64>()
        };
        assert_eq!(bridged_ms(&series(&times)), 120_000);
        let gap: Vec<_> =
            times.into_iter().filter(|(time_ms, ..)| !(70_000..110_000).contains(time_ms)).collect();
        assert_eq!(bridged_ms(&series(&gap)), 60_000, "nothing is known of the second minute");
        let mut old = series(&[(0, 0, 10)]);
        (1..40).for_each(|index| old.append(&series(&[(index * 10_000, 0, MISSING)])));
        old.append(&series(&[(400_000, 0, 10)]));
        assert_eq!(bridged_ms(&old), 0, "too long ago");
    }

    proptest! {
        #[test]
        fn intervals_are_between_neighbouring_known_cells(
            samples in prop::collection::vec((1_i64..40_000, prop::option::of(0_i64..9), prop::option::of(0_i64..9)), 0..60),
        ) {
            let mut time_ms = 0;
            let mut series = Series::new(&JOB);
            for (span_ms, cpu, memory) in samples {
                time_ms += span_ms;
                let mut cells = vec![MISSING; JOB.columns.len()];
                (cells[CPU], cells[MEMORY_NEEDED]) = (cpu.unwrap_or(MISSING), memory.unwrap_or(MISSING));
                series.push(time_ms, &cells);
            }
            for (column, kind) in [(CPU, Kind::Counter), (MEMORY_NEEDED, Kind::Gauge)] {
                let cells = &series.columns[column];
                let known: Vec<usize> = (0..cells.len()).filter(|&index| cells[index] != MISSING).collect();
                let is_long = |index: usize| series.times_ms[index] - series.times_ms[index - 1] > 25_000;
                let between = |pair: &[usize]| {
                    let [before, now] = [pair[0], pair[1]].map(|index| (series.times_ms[index], cells[index]));
                    let is_gap = now.0 - before.0 > SPARSE_MS || (pair[0] + 1..=pair[1]).any(is_long);
                    interval(kind, before, now, None, i64::MAX).filter(|_| !is_gap)
                };
                let expected: Vec<Interval> = known.windows(2).filter_map(between).collect();
                prop_assert_eq!(series.intervals(column, 25_000).collect::<Vec<_>>(), expected);
            }
        }
    }
}
