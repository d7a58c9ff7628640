//! Energy of a job grows when a window of the ledger is charged, some seconds at once. Until then its counter does not
//! move, which says nothing of its power: power is what a window charged over the time since the last one.

use super::Series;
use crate::{JOB, MISSING, Table, Unit};

/// Windows are ten seconds long, and longer where a meter is slow or did not reply for a while. A counter that stands
/// still for longer than the longest of them is one of no power.
const WINDOW_MAX_MS: i64 = 60_000;

/// Whether a column is charged by windows: energy, and what is computed from it.
pub(crate) fn is_charged(table: &Table, column: usize) -> bool {
    let has_window = |unit: Unit| matches!(unit, Unit::Joules | Unit::Grams | Unit::Money);
    table.name == JOB.name && table.columns.get(column).is_some_and(|column| has_window(column.unit))
}

/// Which cells of a column only repeat the one before, while the next charge is awaited; empty where nothing is
/// charged. `before` is the last cell of an earlier piece of the same series.
pub(super) fn pending(series: &Series, column: usize, before: Option<i64>) -> Vec<bool> {
    if !is_charged(series.table, column) {
        return Vec::new();
    }
    let window_ms = longest_window_ms(series, column, before);
    let cells = &series.columns[column];
    let mut pending = vec![false; cells.len()];
    // What comes after the last sample is not known.
    let mut next_ms = series.times_ms.last().copied().unwrap_or(0);
    let mut known = (0..cells.len()).rev().filter(|&index| cells[index] != MISSING).peekable();
    while let Some(index) = known.next() {
        let earlier = known.peek().map(|&earlier| cells[earlier]).or(before);
        let is_repeated = earlier == Some(cells[index]) && series.spread(column, index).is_none();
        if !is_repeated {
            next_ms = series.times_ms[index];
        }
        pending[index] = is_repeated && next_ms - series.times_ms[index] < window_ms;
    }
    pending
}

/// How far apart the charges of a column are at most, as far as that may be a window.
fn longest_window_ms(series: &Series, column: usize, before: Option<i64>) -> i64 {
    let (mut last, mut charged_ms, mut longest_ms) = (before, None, None);
    for (&time_ms, &cell) in series.times_ms.iter().zip(&series.columns[column]) {
        if cell == MISSING {
            continue;
        }
        if last.is_some_and(|last| last != cell) {
            let window_ms = charged_ms.map(|charged_ms| time_ms - charged_ms);
            longest_ms = longest_ms.max(window_ms.filter(|&window_ms| window_ms <= WINDOW_MAX_MS));
            charged_ms = Some(time_ms);
        }
        last = Some(cell);
    }
    longest_ms.unwrap_or(WINDOW_MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_table::{CPU, ENERGY, ENERGY_CPU};
    use crate::series::Thinner;

    /// A sample every second of a job that is charged `watts` at the seconds that `closes`.
    fn charged(seconds: i64, watts: impl Fn(i64) -> i64, closes: impl Fn(i64) -> bool) -> Series {
        let mut series = Series::new(&JOB);
        let (mut owed, mut charged) = (0, 0);
        for second in 0..=seconds {
            owed += if second > 0 { watts(second) * 1_000_000 } else { 0 };
            if closes(second) {
                charged += std::mem::take(&mut owed);
            }
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[ENERGY], cells[ENERGY_CPU]) = (second * 260_000_000, charged, charged);
            series.push(second * 1000, &cells);
        }
        series
    }

    fn watts(series: &Series, column: usize) -> Vec<(i64, i64, i64)> {
        let spans = series.intervals(column, 25_000);
        spans
            .map(|span| (span.begin_ms / 1000, span.end_ms / 1000, (span.peak / 1e6).round() as i64))
            .collect()
    }

    #[test]
    fn power_is_what_a_window_charged_over_its_time() {
        let series = charged(47, |_| 5, |second| second % 10 == 0);
        let expected = [(0, 10, 5), (10, 20, 5), (20, 30, 5), (30, 40, 5)];
        assert_eq!(watts(&series, ENERGY), expected, "of the last seconds nothing is known yet");
        assert_eq!(watts(&series, ENERGY_CPU), expected);
        assert_eq!(series.intervals(CPU, 25_000).count(), 47, "CPU time is counted all the time");
        let summary = series.summaries(25_000);
        assert_eq!(summary.get(ENERGY).map(|energy| (energy.min, energy.max)), Some((5e6, 5e6)));
    }

    #[test]
    fn windows_may_become_shorter() {
        let series = charged(24, |_| 5, |second| second == 10 || second >= 20);
        assert_eq!(watts(&series, ENERGY)[..3], [(0, 10, 5), (10, 20, 5), (20, 21, 5)]);
        assert_eq!(watts(&series, ENERGY).len(), 6);
    }

    #[test]
    fn a_job_that_used_no_energy_for_long_has_no_power() {
        let series = charged(300, |second| if second > 240 { 6 } else { 0 }, |second| second % 10 == 0);
        let drawn = watts(&series, ENERGY);
        assert!(drawn.iter().filter(|span| span.1 <= 240).all(|span| span.2 == 0), "{drawn:?}");
        assert!(drawn.iter().filter(|span| span.0 >= 240).all(|span| span.2 == 6), "{drawn:?}");
        assert_eq!(drawn.iter().map(|span| span.2).max(), Some(6));
        let none = watts(&charged(300, |_| 0, |_| true), ENERGY);
        assert!(none.len() > 200 && none.iter().all(|span| span.2 == 0), "{none:?}");
    }

    #[test]
    fn thinned_samples_have_no_other_peak() {
        let series = charged(3600, |_| 5, |second| second % 10 == 7);
        let mut thinner = Thinner::new(&JOB, 60_000);
        for begin in (0..series.len()).step_by(101) {
            thinner.push(&series.part(begin, series.len().min(begin + 101)));
        }
        let thinned = thinner.finish();
        assert!(thinned.len() < 200, "{}", thinned.len());
        // The first window is shorter than the others.
        assert!(watts(&thinned, ENERGY).iter().all(|span| span.2 == 5), "{:?}", watts(&thinned, ENERGY));
    }
}
