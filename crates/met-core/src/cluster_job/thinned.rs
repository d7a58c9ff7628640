//! Nodes whose samples were thinned: between two that are left, a counter grew evenly and a level was its mean.

use std::iter::Peekable;

use super::combined;
use crate::series::{Interval, Series, Spread, Spreads, is_charged};
use crate::{Across, Kind, MISSING};

/// A column of one node, followed through time.
pub(super) struct Thinned<'c> {
    series: &'c Series,
    column: usize,
    intervals: Peekable<Box<dyn Iterator<Item = Interval> + 'c>>,
    is_charged: bool,
}

impl<'c> Thinned<'c> {
    pub(super) fn new(series: &'c Series, column: usize, gap_ms: i64) -> Thinned<'c> {
        let intervals: Box<dyn Iterator<Item = Interval>> = Box::new(series.intervals(column, gap_ms));
        let is_charged = is_charged(series.table, column);
        Thinned { series, column, intervals: intervals.peekable(), is_charged }
    }

    /// The interval that ends at this time or holds it; times come in order.
    fn at(&mut self, time_ms: i64) -> Option<Interval> {
        while self.intervals.peek().is_some_and(|interval| interval.end_ms < time_ms) {
            self.intervals.next();
        }
        self.intervals.peek().copied().filter(|interval| interval.begin_ms < time_ms)
    }

    /// What it had at a time between two samples that thinning left, or between two charges.
    pub(super) fn value(&mut self, time_ms: i64) -> Option<i64> {
        let is_charged = self.is_charged;
        let is_even = |interval: &Interval| interval.is_thinned || is_charged;
        let interval = self.at(time_ms).filter(|interval| is_even(interval) && interval.end_ms > time_ms)?;
        match self.series.table.columns[self.column].kind {
            Kind::Gauge => Some(interval.value.round() as i64),
            Kind::Counter => {
                let at = self.series.times_ms.partition_point(|&at_ms| at_ms < interval.begin_ms);
                let before = *self.series.columns[self.column].get(at)?;
                let grown = interval.value * (time_ms - interval.begin_ms) as f64 / 1000.0;
                Some(before.saturating_add(grown as i64))
            }
        }
    }
}

/// The spreads of the sum at each time where one of the nodes has one.
pub(super) fn spreads(all_series: &[Series], all: &mut Series, gap_ms: i64) {
    let mut spreads = Spreads::new(all.table);
    spreads.resize(all.len());
    for (column, definition) in all.table.columns.iter().enumerate() {
        let mut nodes: Vec<Thinned<'_>> =
            all_series.iter().map(|series| Thinned::new(series, column, gap_ms)).collect();
        for (index, &time_ms) in all.times_ms.iter().enumerate() {
            let known: Vec<Interval> = nodes.iter_mut().filter_map(|node| node.at(time_ms)).collect();
            let is_thinned = known.iter().any(|interval| interval.is_thinned);
            if is_thinned && all.columns[column][index] != MISSING {
                let mut spread = together(definition.across, &known);
                spread.mean = spread.mean.filter(|_| definition.kind == Kind::Gauge);
                spreads.set(column, index, spread);
            }
        }
    }
    all.spreads = Some(Box::new(spreads));
}

/// Of a sum: the lowest and the highest that there was for certain, when one node had its own and the others their
/// means.
fn together(across: Across, known: &[Interval]) -> Spread {
    let combine = |values: &dyn Fn(&Interval) -> f64| -> f64 {
        // In thousandths, as they are stored.
        let cells: Vec<i64> = known.iter().map(|interval| (values(interval) * 1000.0) as i64).collect();
        combined(across, &cells) as f64 / 1000.0
    };
    let mean = combine(&|interval| interval.value);
    if across == Across::Max {
        let (low, high) = (combine(&|interval| interval.low), combine(&|interval| interval.peak));
        return Spread { low, mean: Some(mean), high };
    }
    let share = if across == Across::Mean { 1.0 / known.len() as f64 } else { 1.0 };
    let ends = known.iter().flat_map(|one| [one.low, one.peak].map(|end| mean + (end - one.value) * share));
    let (low, high) = ends.fold((mean, mean), |(low, high), end| (low.min(end), high.max(end)));
    Spread { low, mean: Some(mean), high }
}
