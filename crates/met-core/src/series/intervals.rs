//! The intervals between neighbouring known cells of a column, one after the other.

use super::{Gaps, Interval, SPARSE_MS, Series, charged, interval};
use crate::{Kind, MISSING};

/// See [`Series::intervals`]. A series has tens of thousands of them, and every answer about a job looks at those of several
/// columns.
pub struct Intervals<'a> {
    series: &'a Series,
    column: usize,
    kind: Kind,
    gaps: Gaps,
    /// Every longer time is a gap, and no samples were removed: most series are so.
    longest_ms: Option<i64>,
    cells: &'a [i64],
    /// Cells that only repeat the one before; empty where there are none.
    pending: Vec<bool>,
    /// The known cell before the next one.
    before: Option<usize>,
    next: usize,
}

impl<'a> Intervals<'a> {
    pub(super) fn of(series: &'a Series, column: usize, gaps: Gaps) -> Intervals<'a> {
        let kind = series.table.columns[column].kind;
        let longest_ms = gaps.longest_ms().filter(|_| series.spreads.is_none());
        let pending = charged::pending(series, column, None);
        let cells = &series.columns[column];
        // One that was not read has none.
        let cells = &cells[..cells.len().min(series.len())];
        Intervals { series, column, kind, gaps, longest_ms, cells, pending, before: None, next: 0 }
    }

    /// The interval between two known cells, unless there is a gap.
    fn between(&self, first: usize, last: usize) -> Option<Interval> {
        let series = self.series;
        let (begin_ms, end_ms) = (series.times_ms[first], series.times_ms[last]);
        let spread = series.spread(self.column, last);
        let is_bridged = match last == first + 1 {
            _ if spread.is_some() => true,
            true => !self.gaps.has_before(series, last),
            false => {
                end_ms - begin_ms <= self.gaps.least_ms().max(SPARSE_MS)
                    && !series.has_gap(first, last, self.gaps)
            }
        };
        let ends = ((begin_ms, self.cells[first]), (end_ms, self.cells[last]));
        is_bridged.then(|| interval(self.kind, ends.0, ends.1, spread, i64::MAX))?
    }
}

impl Iterator for Intervals<'_> {
    type Item = Interval;

    #[inline]
    fn next(&mut self) -> Option<Interval> {
        let (cells, times_ms) = (self.cells, &self.series.times_ms[..self.cells.len()]);
        while self.next < cells.len() {
            let index = self.next;
            self.next += 1;
            let is_pending = self.pending.get(index).copied().unwrap_or(false);
            if cells[index] == MISSING || is_pending {
                continue;
            }
            let found = match (self.before.replace(index), self.longest_ms) {
                (None, _) => None,
                (Some(before), Some(longest_ms)) if before + 1 == index => {
                    let ends = ((times_ms[before], cells[before]), (times_ms[index], cells[index]));
                    interval(self.kind, ends.0, ends.1, None, longest_ms)
                }
                (Some(before), _) => self.between(before, index),
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::JOB;
    use crate::job_table::{CPU, ENERGY, MEMORY_NEEDED};
    use crate::series::Thinner;

    /// As they are defined: pairs of neighbours among the known cells.
    fn by_pairs(series: &Series, column: usize, gaps: Gaps) -> Vec<Interval> {
        let pending = charged::pending(series, column, None);
        let cells = &series.columns[column];
        let is_known = |&index: &usize| cells[index] != MISSING && !pending.get(index).is_some_and(|&it| it);
        let known: Vec<usize> = (0..cells.len()).filter(is_known).collect();
        let of_pair = |pair: &[usize]| {
            let [first, last] = [pair[0], pair[1]].map(|index| (series.times_ms[index], cells[index]));
            let spread = series.spread(column, pair[1]);
            let is_near = last.0 - first.0 <= gaps.least_ms().max(SPARSE_MS);
            let is_bridged = match pair[1] == pair[0] + 1 {
                _ if spread.is_some() => true,
                true => !gaps.has_before(series, pair[1]),
                false => is_near && !series.has_gap(pair[0], pair[1], gaps),
            };
            is_bridged.then(|| interval(series.table.columns[column].kind, first, last, spread, i64::MAX))?
        };
        known.windows(2).filter_map(of_pair).collect()
    }

    fn cell() -> impl Strategy<Value = i64> {
        prop_oneof![6 => 0..40i64, 2 => Just(MISSING), 1 => -(1i64 << 60)..1 << 60]
    }

    proptest! {
        #[test]
        fn they_are_between_neighbours_among_the_known_cells(
            samples in prop::collection::vec((1i64..90_000, cell(), cell(), cell()), 0..80),
            gap_ms in 0i64..60_000, is_paced in any::<bool>(), is_thinned in any::<bool>(),
        ) {
            let (mut series, mut time_ms) = (Series::new(&JOB), 1_700_000_000_000);
            for (elapsed_ms, cpu, memory, energy) in samples {
                let mut cells = vec![MISSING; JOB.columns.len()];
                (cells[CPU], cells[MEMORY_NEEDED], cells[ENERGY]) = (cpu, memory, energy);
                time_ms += elapsed_ms;
                series.push(time_ms, &cells);
            }
            if is_thinned {
                let mut thinner = Thinner::new(&JOB, 60_000);
                thinner.push(&series);
                series = thinner.finish();
            }
            let gaps = if is_paced { Gaps::paced(gap_ms, None) } else { gap_ms.into() };
            for column in [CPU, MEMORY_NEEDED, ENERGY] {
                let found: Vec<Interval> = series.intervals(column, gaps).collect();
                prop_assert_eq!(found, by_pairs(&series, column, gaps));
                let mean = series.summary(column, gaps).map(|summary| summary.mean);
                prop_assert_eq!(series.mean(column, gaps), mean);
            }
        }
    }
}
