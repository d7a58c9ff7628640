//! Thinning: of each column the last sample of every step stays, and what was removed is summed up as the lowest,
//! mean and highest value until then.
//!
//! The samples that stay are real ones, so the growth of a counter between two of them is exact. The first sample, and
//! those before and after a gap or a restart of a counter, stay as well: nothing is bridged that was not bridged
//! before. Thinning again what is thinned adds up the sums.

use std::collections::BTreeMap;

use super::{Interval, RATE_MIN_MS, Series, charged, interval};
use crate::{Kind, MISSING, Table};

/// Sums are stored in thousandths of the column's sub-unit: a mean of whole numbers is not whole.
const PARTS: f64 = 1000.0;
/// Farther apart than anything that fits into a cell.
const SUM_MAX: f64 = 9.2e18;
/// No reader takes a shorter time for a gap.
const GAP_MIN_MS: i64 = 5_000;

/// A column between two samples that thinning left. Of a counter: its growth per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub low: f64,
    /// None of a counter: its samples say it.
    pub mean: Option<f64>,
    pub high: f64,
}

/// What of a spread is stored, by the order in [`Spreads::cells`].
pub const SPREAD_NAMES: [&str; 3] = ["min", "mean", "max"];
const LOW: usize = 0;
const MEAN: usize = 1;
const HIGH: usize = 2;

/// The spreads of a series: like its columns, for each of [`SPREAD_NAMES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spreads {
    pub cells: [Vec<Vec<i64>>; SPREAD_NAMES.len()],
}

impl Spreads {
    pub fn new(table: &Table) -> Spreads {
        Spreads { cells: std::array::from_fn(|_| vec![Vec::new(); table.columns.len()]) }
    }

    pub fn get(&self, column: usize, index: usize) -> Option<Spread> {
        let value = |which: usize| {
            let cell = self.cells[which][column].get(index).copied().filter(|&cell| cell != MISSING);
            cell.map(|cell| cell as f64 / PARTS)
        };
        let (low, high) = (value(LOW)?, value(HIGH)?);
        Some(Spread { low, mean: value(MEAN), high })
    }

    pub fn set(&mut self, column: usize, index: usize, spread: Spread) {
        let Spread { low, mean, high } = spread;
        for (cells, value) in self.cells.iter_mut().zip([Some(low), mean, Some(high)]) {
            let cells = &mut cells[column];
            cells.resize(cells.len().max(index + 1), MISSING);
            let part = |value: f64| (value * PARTS).round().clamp(-SUM_MAX, SUM_MAX) as i64;
            cells[index] = value.map_or(MISSING, part);
        }
    }

    /// For so many samples; new ones have none.
    pub fn resize(&mut self, count: usize) {
        self.cells.iter_mut().flatten().for_each(|cells| cells.resize(count, MISSING));
    }

    pub(super) fn remove_first(&mut self, count: usize) {
        for cells in self.cells.iter_mut().flatten() {
            cells.drain(..count.min(cells.len()));
        }
    }

    pub fn highest(&self, column: usize) -> Option<f64> {
        let known = self.cells[HIGH][column].iter().filter(|&&cell| cell != MISSING);
        known.max().map(|&cell| cell as f64 / PARTS)
    }

    /// Whether any column has one at this sample.
    pub fn has_any(&self, index: usize) -> bool {
        self.cells[HIGH].iter().any(|cells| cells.get(index).is_some_and(|&cell| cell != MISSING))
    }

    pub(super) fn part(&self, begin: usize, end: usize) -> Spreads {
        let part = |which: usize| {
            self.cells[which].iter().map(|cells| cells[begin..end.min(cells.len())].to_vec()).collect()
        };
        Spreads { cells: std::array::from_fn(part) }
    }

    /// Behind the `count` samples that there are, those of `later` from `skip` on.
    pub(super) fn append(&mut self, count: usize, later: &Series, skip: usize) {
        self.resize(count);
        if let Some(spreads) = &later.spreads {
            for (all, more) in self.cells.iter_mut().flatten().zip(spreads.cells.iter().flatten()) {
                all.extend_from_slice(more.get(skip..).unwrap_or_default());
            }
        }
        self.resize(count + later.len() - skip);
    }
}

/// Thins a series that comes in pieces, in order.
pub struct Thinner {
    step_ms: i64,
    kinds: Vec<Kind>,
    tracks: Vec<Track>,
    /// The step of the samples that may still be replaced by later ones.
    step: i64,
    /// What stays of that step, by time.
    kept: BTreeMap<i64, Vec<Point>>,
    out: Series,
}

/// A cell that stays.
struct Point {
    column: usize,
    cell: i64,
    spread: Option<Spread>,
}

/// A column on its way.
#[derive(Default)]
struct Track {
    /// The last known sample, and whether it stays.
    last: Option<(i64, i64)>,
    is_kept: bool,
    run: Run,
    gap_ms: i64,
    /// A counter that was read twice in a moment has no peak there.
    least_ms: i64,
}

/// The intervals since the last sample that stays.
#[derive(Default)]
struct Run {
    count: usize,
    is_thinned: bool,
    covered_ms: i64,
    weighted: f64,
    low: Option<f64>,
    high: Option<f64>,
}

impl Run {
    fn add(&mut self, interval: &Interval, least_ms: i64) {
        let covered_ms = interval.end_ms - interval.begin_ms;
        self.count += 1;
        self.is_thinned |= interval.is_thinned;
        self.covered_ms += covered_ms;
        self.weighted += interval.value * covered_ms as f64;
        if interval.is_thinned || covered_ms >= least_ms {
            self.low = self.low.into_iter().chain([interval.low]).reduce(f64::min);
            self.high = self.high.into_iter().chain([interval.peak]).reduce(f64::max);
        }
    }

    /// Where nothing was removed, the samples say it all.
    fn take(&mut self, kind: Kind) -> Option<Spread> {
        let run = std::mem::take(self);
        if run.count == 0 || (run.count == 1 && !run.is_thinned) {
            return None;
        }
        let mean = run.weighted / run.covered_ms as f64;
        let (low, high) = (run.low.unwrap_or(mean), run.high.unwrap_or(mean));
        Some(Spread { low, mean: (kind == Kind::Gauge).then_some(mean), high })
    }
}

impl Thinner {
    pub fn new(table: &'static Table, step_ms: i64) -> Thinner {
        Thinner {
            step_ms: step_ms.max(1),
            kinds: table.columns.iter().map(|column| column.kind).collect(),
            tracks: table.columns.iter().map(|_| Track::default()).collect(),
            step: i64::MIN,
            kept: BTreeMap::new(),
            out: Series::new(table),
        }
    }

    /// Takes the next samples.
    pub fn push(&mut self, series: &Series) {
        let mut pending = Vec::new();
        for (column, track) in self.tracks.iter_mut().enumerate() {
            let cells = charged::pending(series, column, track.last.map(|(_, cell)| cell));
            (track.gap_ms, track.least_ms) = usual(series, column, &cells);
            pending.push(cells);
        }
        for (index, &time_ms) in series.times_ms.iter().enumerate() {
            let step = time_ms.div_euclid(self.step_ms);
            if step != self.step {
                self.close_step();
                self.step = step;
            }
            for (column, pending) in pending.iter().enumerate() {
                let cell = series.columns[column][index];
                if cell != MISSING && !pending.get(index).copied().unwrap_or(false) {
                    self.take(column, (time_ms, cell), series.spread(column, index));
                }
            }
        }
    }

    fn take(&mut self, column: usize, now: (i64, i64), spread: Option<Spread>) {
        let (kind, track) = (self.kinds[column], &mut self.tracks[column]);
        let before = track.last.filter(|last| last.0 < now.0);
        let interval = before.and_then(|before| interval(kind, before, now, spread, track.gap_ms));
        match interval {
            Some(interval) => {
                track.run.add(&interval, if kind == Kind::Counter { track.least_ms } else { 0 });
                (track.last, track.is_kept) = (Some(now), false);
            }
            None => {
                self.keep_last(column);
                let track = &mut self.tracks[column];
                (track.last, track.is_kept) = (Some(now), true);
                self.kept.entry(now.0).or_default().push(Point { column, cell: now.1, spread: None });
            }
        }
    }

    /// The last sample of a column stays.
    fn keep_last(&mut self, column: usize) {
        let track = &mut self.tracks[column];
        if let Some((time_ms, cell)) = track.last.filter(|_| !track.is_kept) {
            track.is_kept = true;
            let spread = track.run.take(self.kinds[column]);
            self.kept.entry(time_ms).or_default().push(Point { column, cell, spread });
        }
    }

    /// No more samples come for this step.
    fn close_step(&mut self) {
        (0..self.tracks.len()).for_each(|column| self.keep_last(column));
        let mut cells = vec![MISSING; self.tracks.len()];
        for (time_ms, points) in std::mem::take(&mut self.kept) {
            cells.fill(MISSING);
            points.iter().for_each(|point| cells[point.column] = point.cell);
            self.out.push(time_ms, &cells);
            let (count, table) = (self.out.len(), self.out.table);
            for Point { column, spread, .. } in points {
                if let Some(spread) = spread {
                    let spreads = self.out.spreads.get_or_insert_with(|| {
                        let mut spreads = Spreads::new(table);
                        spreads.resize(count);
                        Box::new(spreads)
                    });
                    spreads.set(column, count - 1, spread);
                }
            }
        }
    }

    /// What is thinned so far and will not change.
    pub fn take_out(&mut self) -> Series {
        let table = self.out.table;
        std::mem::replace(&mut self.out, Series::new(table))
    }

    pub fn out_len(&self) -> usize {
        self.out.len()
    }

    /// The rest.
    pub fn finish(mut self) -> Series {
        self.close_step();
        self.out
    }
}

/// A whole series as [`Thinner`] thins it, several times as fast: column by column, since what stays of one does not
/// depend on the others.
pub(super) fn thinned(series: &Series, step_ms: i64) -> Series {
    let step_ms = step_ms.max(1);
    if !series.times_ms.is_sorted_by(|before, after| before < after) {
        let mut thinner = Thinner::new(series.table, step_ms);
        thinner.push(series);
        return thinner.finish();
    }
    let steps: Vec<i64> = series.times_ms.iter().map(|time_ms| time_ms.div_euclid(step_ms)).collect();
    let kept: Vec<Vec<(usize, Option<Spread>)>> =
        (0..series.columns.len()).map(|column| kept_cells(series, column, &steps)).collect();
    // Which row of the result a sample becomes.
    let mut rows: Vec<Option<usize>> = vec![None; series.len()];
    kept.iter().flatten().for_each(|&(index, _)| rows[index] = Some(0));
    let mut out = Series::new(series.table);
    for (row, time_ms) in rows.iter_mut().zip(&series.times_ms).filter(|(row, _)| row.is_some()) {
        *row = Some(out.times_ms.len());
        out.times_ms.push(*time_ms);
    }
    let count = out.len();
    out.columns.iter_mut().for_each(|cells| cells.resize(count, MISSING));
    let has_spreads = kept.iter().flatten().any(|(_, spread)| spread.is_some());
    let mut spreads = has_spreads.then(|| Box::new(Spreads::new(series.table)));
    spreads.iter_mut().for_each(|spreads| spreads.resize(count));
    for (column, kept) in kept.iter().enumerate() {
        for &(index, spread) in kept {
            let Some(row) = rows[index] else { continue };
            out.columns[column][row] = series.columns[column][index];
            if let Some((spreads, spread)) = spreads.as_mut().zip(spread) {
                spreads.set(column, row, spread);
            }
        }
    }
    out.spreads = spreads;
    out
}

/// The samples of a column that stay, by their place, with the spread of what was removed before each.
fn kept_cells(series: &Series, column: usize, steps: &[i64]) -> Vec<(usize, Option<Spread>)> {
    let (kind, cells) = (series.table.columns[column].kind, &series.columns[column]);
    let mut kept = Vec::new();
    if cells.iter().all(|&cell| cell == MISSING) {
        return kept;
    }
    let pending = charged::pending(series, column, None);
    let (gap_ms, least_ms) = usual(series, column, &pending);
    let least_ms = if kind == Kind::Counter { least_ms } else { 0 };
    let mut run = Run::default();
    // The last known sample, while it is not certain that it stays.
    let (mut last, mut open): (Option<usize>, Option<usize>) = (None, None);
    for (index, &cell) in cells.iter().enumerate() {
        if cell == MISSING || pending.get(index).copied().unwrap_or(false) {
            continue;
        }
        if let Some(before) = open.filter(|&before| steps[before] != steps[index]) {
            kept.push((before, run.take(kind)));
            open = None;
        }
        let now = (series.times_ms[index], cell);
        let spread = series.spread(column, index);
        let interval = last
            .and_then(|before| interval(kind, (series.times_ms[before], cells[before]), now, spread, gap_ms));
        match interval {
            Some(interval) => {
                run.add(&interval, least_ms);
                open = Some(index);
            }
            None => {
                kept.extend(open.take().map(|before| (before, run.take(kind))));
                kept.push((index, None));
            }
        }
        last = Some(index);
    }
    kept.extend(open.map(|before| (before, run.take(kind))));
    kept
}

/// So many samples at least are left of a series: one of each step of a column that was read every time, and its first.
pub(super) fn least_left(series: &Series, step_ms: i64) -> usize {
    let is_whole = |column: &usize| {
        !charged::is_charged(series.table, *column)
            && !series.columns[*column].is_empty()
            && series.columns[*column].iter().all(|&cell| cell != MISSING)
    };
    if !(0..series.columns.len()).any(|column| is_whole(&column)) {
        return 0;
    }
    let step = |time_ms: &i64| time_ms.div_euclid(step_ms.max(1));
    let changes = series.times_ms.windows(2).filter(|pair| step(&pair[0]) < step(&pair[1])).count();
    let is_with_first =
        |second: &i64| series.times_ms[0] < *second && step(&series.times_ms[0]) == step(second);
    let has_two = series.times_ms.get(1).is_some_and(is_with_first);
    changes + 1 + usize::from(has_two)
}

/// The longest time between two known cells of a column that is no gap, by most of them, and the shortest over which a
/// counter's growth may be a peak.
fn usual(series: &Series, column: usize, pending: &[bool]) -> (i64, i64) {
    let cells = series.times_ms.iter().zip(&series.columns[column]).enumerate();
    let is_pending = |index: usize| pending.get(index).copied().unwrap_or(false);
    let known = cells
        .filter(|&(index, (_, &cell))| cell != MISSING && !is_pending(index))
        .map(|(index, (&time_ms, _))| (index, time_ms));
    let (mut spans, mut thinned) = (Vec::new(), 0);
    let mut before = None;
    for (index, time_ms) in known {
        match series.spread(column, index) {
            Some(_) => thinned += 1,
            None => spans.extend(before.map(|before| time_ms - before)),
        }
        before = Some(time_ms);
    }
    let count = spans.len();
    let mut ranked = |at: usize| if count == 0 { 0 } else { *spans.select_nth_unstable(at).1 };
    let (usual_ms, middle_ms) = (ranked(count * 9 / 10), ranked(count / 2));
    // Where most are thinned, the others may be the gaps between them.
    let usual_ms = if thinned > count { 0 } else { usual_ms };
    (GAP_MIN_MS.max(usual_ms.saturating_mul(3)), (middle_ms / 2).min(RATE_MIN_MS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JOB;
    use crate::job_table::{CPU, ENERGY, MEMORY_NEEDED};
    use proptest::prelude::*;

    const GAP_MS: i64 = 25_000;

    /// Growing, starting again, standing still, or missing.
    fn cell() -> impl Strategy<Value = i64> {
        prop_oneof![Just(MISSING), 0i64..4, 0i64..1_000_000]
    }

    fn series(samples: &[(i64, i64, i64)]) -> Series {
        let mut series = Series::new(&JOB);
        for &(time_ms, cpu, memory) in samples {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED]) = (cpu, memory);
            series.push(time_ms, &cells);
        }
        series
    }

    fn thin(series: &Series, step_ms: i64) -> Series {
        let mut thinner = Thinner::new(series.table, step_ms);
        // In pieces, as it is read from a file.
        for begin in (0..series.len()).step_by(100) {
            thinner.push(&series.part(begin, series.len().min(begin + 100)));
        }
        let mut all = thinner.take_out();
        all.append(&thinner.finish());
        all
    }

    /// Covered time, mean, lowest and highest of a column.
    fn figures(series: &Series, column: usize) -> (i64, f64, f64, f64) {
        let intervals: Vec<Interval> = series.intervals(column, GAP_MS).collect();
        let covered: i64 = intervals.iter().map(|span| span.end_ms - span.begin_ms).sum();
        let weighted: f64 =
            intervals.iter().map(|span| span.value * (span.end_ms - span.begin_ms) as f64).sum();
        let low = intervals.iter().map(|span| span.low).fold(f64::INFINITY, f64::min);
        let high = intervals.iter().map(|span| span.peak).fold(f64::NEG_INFINITY, f64::max);
        (covered, weighted / covered as f64, low, high)
    }

    /// An hour of seconds with a peak of one second and a pause.
    fn hour() -> Series {
        let busy = |second: i64| if second == 1234 { 8 } else { 1 };
        let mut cpu = 0;
        let samples: Vec<(i64, i64, i64)> = (0..3600)
            .map(|second| {
                cpu += busy(second) * 1_000_000_000;
                (second * 1000, cpu, if second == 2000 { 900 } else { 100 + second % 7 })
            })
            .filter(|sample| !(2_500_000..2_700_000).contains(&sample.0))
            .collect();
        series(&samples)
    }

    #[test]
    fn mean_peak_and_gap_are_what_they_were() {
        let hour = hour();
        for step_ms in [60_000, 600_000] {
            let thinned = thin(&hour, step_ms);
            assert!(thinned.len() as i64 <= 3_600_000 / step_ms + 4, "{} samples", thinned.len());
            for column in [CPU, MEMORY_NEEDED] {
                let (before, after) = (figures(&hour, column), figures(&thinned, column));
                assert_eq!(after.0, before.0, "the pause stays a pause");
                assert!((after.1 / before.1 - 1.0).abs() < 1e-5, "{before:?} {after:?}");
                assert_eq!((after.2, after.3), (before.2, before.3));
            }
            assert_eq!(thinned.maximum(MEMORY_NEEDED), Some(900));
            assert_eq!(thinned.columns[CPU].last(), hour.columns[CPU].last());
        }
    }

    #[test]
    fn thinning_again_adds_up_the_sums_and_once_more_changes_nothing() {
        let minutes = thin(&hour(), 60_000);
        let (at_once, in_two) = (thin(&hour(), 600_000), thin(&minutes, 600_000));
        assert_eq!(in_two.times_ms, at_once.times_ms);
        assert_eq!(in_two.columns, at_once.columns);
        assert_eq!(figures(&in_two, MEMORY_NEEDED).3, 900.0);
        assert!((figures(&in_two, MEMORY_NEEDED).1 - figures(&hour(), MEMORY_NEEDED).1).abs() < 0.01);
        let again = thin(&minutes, 60_000);
        assert_eq!(
            (&again.times_ms, &again.columns, &again.spreads),
            (&minutes.times_ms, &minutes.columns, &minutes.spreads)
        );
    }

    #[test]
    fn columns_of_another_pace_keep_their_own_last_sample() {
        let memory = |second: i64| if second % 10 == 3 { second } else { MISSING };
        let samples: Vec<_> = (0..120).map(|second| (second * 1000, second, memory(second))).collect();
        let thinned = thin(&series(&samples), 60_000);
        assert_eq!(thinned.times_ms, [0, 3000, 53_000, 59_000, 113_000, 119_000]);
        assert_eq!(thinned.columns[MEMORY_NEEDED], [MISSING, 3, 53, MISSING, 113, MISSING]);
        assert_eq!(figures(&thinned, MEMORY_NEEDED).0, 110_000);
    }

    #[test]
    fn a_counter_that_begins_again_is_not_bridged() {
        let samples: Vec<_> = (0..60)
            .map(|second| (second * 1000, if second < 30 { 1000 + second } else { second }, 1))
            .collect();
        let thinned = thin(&series(&samples), 60_000);
        let cpu: Vec<i64> = thinned.columns[CPU].iter().copied().filter(|&cell| cell != MISSING).collect();
        assert_eq!(cpu, [1000, 1029, 30, 59]);
        assert_eq!(figures(&thinned, CPU).0, 58_000);
    }

    #[test]
    fn what_is_sampled_once_in_a_step_stays_as_it_is() {
        let samples: Vec<_> = (0..50).map(|minute| (minute * 60_000 + 7, minute, minute)).collect();
        let thinned = thin(&series(&samples), 60_000);
        assert_eq!((thinned.len(), thinned.spreads), (50, None));
    }

    proptest! {
        #[test]
        fn a_series_is_thinned_at_once_as_it_is_in_order(
            samples in prop::collection::vec(
                (prop_oneof![0i64..3, 1i64..3000, 1i64..90_000], cell(), cell(), cell()), 0..200),
            step_ms in 1i64..200_000,
            again_ms in 1i64..200_000,
        ) {
            let mut series = Series::new(&JOB);
            let mut time_ms = -5_000;
            for (elapsed_ms, cpu, memory, energy) in samples {
                time_ms += elapsed_ms;
                let mut cells = vec![MISSING; JOB.columns.len()];
                (cells[CPU], cells[MEMORY_NEEDED], cells[ENERGY]) = (cpu, memory, energy);
                series.push(time_ms, &cells);
            }
            let in_order = |series: &Series, step_ms: i64| {
                let mut thinner = Thinner::new(&JOB, step_ms);
                thinner.push(series);
                thinner.finish()
            };
            // Of what is thinned already, too.
            let once = in_order(&series, step_ms);
            for (series, step_ms) in [(&series, step_ms), (&once, again_ms)] {
                let (at_once, expected) = (thinned(series, step_ms), in_order(series, step_ms));
                prop_assert_eq!(&at_once.times_ms, &expected.times_ms);
                prop_assert_eq!(&at_once.columns, &expected.columns);
                prop_assert_eq!(&at_once.spreads, &expected.spreads);
                prop_assert!(least_left(series, step_ms) <= expected.len());
            }
        }

        #[test]
        fn no_growth_is_lost_and_no_time_is_gained(
            steps in prop::collection::vec((prop_oneof![1i64..3000, 1i64..90_000], -50i64..1_000_000, 0i64..500), 2..300),
            step_ms in 1_000i64..200_000,
        ) {
            let (mut time_ms, mut cpu) = (0, 0);
            let mut samples = Vec::new();
            for (elapsed_ms, growth, memory) in steps {
                (time_ms, cpu) = (time_ms + elapsed_ms, (cpu + growth).max(0));
                samples.push((time_ms, cpu, memory));
            }
            let series = series(&samples);
            let mut thinner = Thinner::new(&JOB, step_ms);
            thinner.push(&series);
            let gap_ms = thinner.tracks[CPU].gap_ms;
            let thinned = thinner.finish();
            let growth = |series: &Series| -> f64 {
                let rates = series.intervals(CPU, gap_ms);
                rates.map(|span| span.value * (span.end_ms - span.begin_ms) as f64).sum()
            };
            prop_assert!((growth(&series) - growth(&thinned)).abs() <= 1e-6 * growth(&series).max(1.0));
            let covered = |series: &Series| -> i64 {
                series.intervals(MEMORY_NEEDED, gap_ms).map(|span| span.end_ms - span.begin_ms).sum()
            };
            prop_assert_eq!(covered(&series), covered(&thinned));
            prop_assert_eq!(series.maximum(MEMORY_NEEDED), thinned.maximum(MEMORY_NEEDED));
        }
    }
}
