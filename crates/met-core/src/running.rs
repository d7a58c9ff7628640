//! The figures of a job that still runs, kept up to date sample by sample in constant memory.

use crate::job::{Summaries, Summary};
use crate::job_table::{CPU, GPU_MEMORY, MEMORY_NEEDED, PROCESSES, PROCESSES_RUNNING, THREADS_RUNNING};
use crate::series::{Interval, SPARSE_MS, Series};
use crate::{JOB, Kind, MISSING, rate};

/// Columns whose peaks are known from samples alone.
const RESOLVED: [usize; 5] = [CPU, MEMORY_NEEDED, PROCESSES_RUNNING, THREADS_RUNNING, GPU_MEMORY];

/// What all samples so far sum up to.
pub struct Running {
    gap_ms: i64,
    peak_span_ms: i64,
    /// Those that were ever known, and where each column of the table is among them: most of a job are not.
    columns: Vec<Column>,
    places: Vec<u8>,
    /// The longest times between two samples, by `RESOLVED`.
    apart_ms: [i64; RESOLVED.len()],
    /// The last sample, and the first one after the last gap.
    pushed_ms: Option<i64>,
    since_ms: i64,
    /// Where the present span of the peak began: time and CPU time.
    span: Option<(i64, i64)>,
    peak_cores: Option<f64>,
}

/// Columns become known a few at a time: with twice the room, many jobs would hold much that stays empty.
const COLUMNS_MORE: usize = 4;

/// A column that is not known yet.
const NOWHERE: u8 = u8::MAX;

#[derive(Clone, Copy)]
struct Column {
    first: i64,
    /// With its time.
    last: (i64, i64),
    minimum: i64,
    maximum: i64,
    /// Sum of level × milliseconds.
    weighted: f64,
    covered_ms: i64,
}

impl Running {
    pub fn new(gap_ms: i64, peak_span_ms: i64) -> Running {
        Running {
            gap_ms,
            peak_span_ms,
            columns: Vec::new(),
            places: vec![NOWHERE; JOB.columns.len()],
            apart_ms: [0; RESOLVED.len()],
            pushed_ms: None,
            since_ms: i64::MIN,
            span: None,
            peak_cores: None,
        }
    }

    fn column(&self, index: usize) -> Option<&Column> {
        self.columns.get(usize::from(*self.places.get(index)?))
    }

    /// The known columns, in the order of the table.
    fn known(&self) -> impl Iterator<Item = (usize, &Column)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(index, &place)| Some((index, self.columns.get(usize::from(place))?)))
    }

    /// The period changed: samples of the longer one are no gap, before it or after.
    pub fn widen_gap(&mut self, gap_ms: i64) {
        self.gap_ms = self.gap_ms.max(gap_ms);
    }

    pub fn gap_ms(&self) -> i64 {
        self.gap_ms
    }

    /// The longest time for which a level holds while other columns are read.
    pub fn sparse_ms(&self) -> i64 {
        self.gap_ms.max(SPARSE_MS)
    }

    pub fn push(&mut self, time_ms: i64, cells: &[i64]) {
        let before_ms = self.pushed_ms.replace(time_ms);
        if before_ms.is_some_and(|before_ms| time_ms - before_ms > self.gap_ms) {
            self.since_ms = time_ms;
        }
        self.follow_spans(time_ms, cells);
        let sparse_ms = self.sparse_ms();
        for (place, &cell) in self.places.iter_mut().zip(cells).filter(|(_, cell)| **cell != MISSING) {
            match self.columns.get_mut(usize::from(*place)) {
                Some(column) => column.push(time_ms, cell, self.since_ms, sparse_ms),
                None => {
                    if self.columns.len() == self.columns.capacity() {
                        self.columns.reserve_exact(COLUMNS_MORE);
                    }
                    *place = self.columns.len() as u8;
                    self.columns.push(Column::new(time_ms, cell));
                }
            }
        }
        self.follow_peak(time_ms, cells[CPU]);
    }

    fn follow_spans(&mut self, time_ms: i64, cells: &[i64]) {
        for (apart_ms, column) in self.apart_ms.iter_mut().zip(RESOLVED) {
            let place = self.places[column];
            let before = self.columns.get(usize::from(place)).filter(|_| cells[column] != MISSING);
            if let Some(before) = before.filter(|before| before.last.0 >= self.since_ms) {
                *apart_ms = (*apart_ms).max(time_ms - before.last.0);
            }
        }
    }

    /// The longest time between two samples of a column, gaps left out: a shorter peak may not be in its maximum.
    pub fn apart_ms(&self, column: usize) -> i64 {
        RESOLVED.iter().position(|&known| known == column).map_or(0, |index| self.apart_ms[index])
    }

    /// Takes over what thinning left of the samples of an earlier daemon, after these.
    pub fn recall_thinned(&mut self, series: &Series) {
        for (index, &place) in self.places.iter().enumerate().filter(|_| series.spreads.is_some()) {
            let Some(column) = self.columns.get_mut(usize::from(place)) else { continue };
            for span in series.intervals(index, 0).filter(|span| span.is_thinned) {
                match JOB.columns[index].kind {
                    Kind::Gauge => column.add_thinned(&span, self.gap_ms),
                    Kind::Counter if index == CPU => {
                        self.peak_cores =
                            self.peak_cores.into_iter().chain([span.peak / 1e9]).reduce(f64::max);
                    }
                    Kind::Counter => {}
                }
            }
        }
    }

    fn follow_peak(&mut self, time_ms: i64, cpu_ns: i64) {
        let Some((begin_ms, before_ns)) = self.span else {
            self.span = (cpu_ns != MISSING).then_some((time_ms, cpu_ns));
            return;
        };
        let elapsed_ms = time_ms - begin_ms;
        if elapsed_ms < self.peak_span_ms || cpu_ns == MISSING {
            return;
        }
        if elapsed_ms <= self.gap_ms
            && let Some(rate) = rate::per_second(before_ns, cpu_ns, elapsed_ms * 1_000_000)
        {
            let cores = rate / 1e9;
            self.peak_cores = Some(self.peak_cores.map_or(cores, |peak| peak.max(cores)));
        }
        self.span = Some((time_ms, cpu_ns));
    }

    /// The counters as last read; for a job that was attached to, what they grew since.
    pub fn counters(&self, since_first: bool) -> impl Iterator<Item = (usize, i64)> {
        let known = move |(index, column): (usize, &Column)| {
            let ((_, last), first) = (column.last, column.first);
            // Processes are counted from the attaching on, those of the first look included.
            let value = if since_first && index != PROCESSES { last - first } else { last };
            (JOB.columns[index].kind == Kind::Counter && value >= 0).then_some((index, value))
        };
        self.known().filter_map(known)
    }

    /// The levels as last read, if that was not before `since_ms`.
    pub fn levels(&self, since_ms: i64) -> impl Iterator<Item = (usize, i64)> {
        let known = move |(index, column): (usize, &Column)| {
            let (time_ms, last) = column.last;
            (JOB.columns[index].kind == Kind::Gauge && time_ms >= since_ms).then_some((index, last))
        };
        self.known().filter_map(known)
    }

    /// When CPU time was last read: the instant that the counters are of.
    pub fn counted_until_ms(&self) -> Option<i64> {
        self.column(CPU).map(|column| column.last.0)
    }

    pub fn maximum(&self, column: usize) -> Option<i64> {
        self.column(column).map(|column| column.maximum)
    }

    pub fn peak_cores(&self) -> Option<f64> {
        self.peak_cores
    }

    /// Of the levels, as far as they are known without storing every sample.
    pub fn summaries(&self) -> Summaries {
        let mut summaries = Summaries::default();
        for (index, column) in self.known().filter(|&(index, _)| JOB.columns[index].kind == Kind::Gauge) {
            summaries.set(index, column.summary());
        }
        summaries
    }
}

impl Column {
    fn new(time_ms: i64, cell: i64) -> Column {
        let (minimum, maximum, last) = (cell, cell, (time_ms, cell));
        Column { first: cell, last, minimum, maximum, weighted: 0.0, covered_ms: 0 }
    }

    /// `since_ms`: there was a gap before it.
    fn push(&mut self, time_ms: i64, cell: i64, since_ms: i64, sparse_ms: i64) {
        let (before_ms, before) = self.last;
        let elapsed_ms = time_ms - before_ms;
        if elapsed_ms > 0 && elapsed_ms <= sparse_ms && before_ms >= since_ms {
            self.weighted += (before as f64 + cell as f64) / 2.0 * elapsed_ms as f64;
            self.covered_ms += elapsed_ms;
        }
        (self.minimum, self.maximum) = (self.minimum.min(cell), self.maximum.max(cell));
        self.last = (time_ms, cell);
    }

    /// A span that was too long to be bridged when its ends were pushed.
    fn add_thinned(&mut self, span: &Interval, gap_ms: i64) {
        let covered_ms = span.end_ms - span.begin_ms;
        if covered_ms > gap_ms {
            self.weighted += span.value * covered_ms as f64;
            self.covered_ms += covered_ms;
        }
        self.minimum = self.minimum.min(span.low.round() as i64);
        self.maximum = self.maximum.max(span.peak.round() as i64);
    }

    fn summary(&self) -> Summary {
        let (_, last) = self.last;
        let mean = if self.covered_ms > 0 { self.weighted / self.covered_ms as f64 } else { last as f64 };
        Summary { mean, min: self.minimum as f64, max: self.maximum as f64, p50: None, p95: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_thinning_removed_is_recalled() {
        let mut series = Series::new(&JOB);
        for second in 0..120 {
            let mut cells = vec![MISSING; JOB.columns.len()];
            let busy = if second > 70 { 3_000_000_000 } else { 0 };
            cells[CPU] = second * 1_000_000_000 + busy;
            cells[MEMORY_NEEDED] = if second == 30 { 900 } else { 100 };
            series.push(second * 1000, &cells);
        }
        let mut thinner = crate::series::Thinner::new(&JOB, 60_000);
        thinner.push(&series);
        let thinned = thinner.finish();
        let mut running = Running::new(25_000, 1000);
        thinned.each_row(|time_ms, cells| running.push(time_ms, cells));
        assert_eq!(
            running.maximum(MEMORY_NEEDED),
            Some(100),
            "the peak is not among the samples that are left"
        );
        running.recall_thinned(&thinned);
        assert_eq!((running.maximum(MEMORY_NEEDED), running.peak_cores()), (Some(900), Some(4.0)));
        let mean = running.summaries().get(MEMORY_NEEDED).unwrap().mean;
        assert!((106.0..108.0).contains(&mean), "{mean}");
    }

    #[test]
    fn samples_of_a_longer_period_are_no_gap_after_a_change() {
        let mut running = Running::new(1_000, 500);
        running.push(0, &cells(0, 10));
        running.widen_gap(10_000);
        running.push(5_000, &cells(0, 20));
        running.widen_gap(1_000);
        running.push(9_000, &cells(0, 20));
        assert_eq!(running.gap_ms(), 10_000);
        let mean = running.summaries().get(MEMORY_NEEDED).unwrap().mean;
        assert!((mean - (15.0 * 5.0 + 20.0 * 4.0) / 9.0).abs() < 1e-9, "{mean}");
    }

    fn cells(cpu: i64, memory: i64) -> Vec<i64> {
        let mut cells = vec![MISSING; JOB.columns.len()];
        (cells[CPU], cells[MEMORY_NEEDED]) = (cpu, memory);
        cells
    }

    #[test]
    fn a_process_that_was_attached_to_is_one_that_was_seen() {
        let mut running = Running::new(1_000, 500);
        let mut first = cells(7_000, 10);
        first[PROCESSES] = 1;
        running.push(0, &first);
        let mut last = cells(9_000, 10);
        last[PROCESSES] = 3;
        running.push(1_000, &last);
        assert_eq!(running.counters(true).collect::<Vec<_>>(), [(CPU, 2_000), (PROCESSES, 3)]);
    }

    #[test]
    fn a_gap_counts_for_nothing_and_peaks_are_rates_over_a_span() {
        let mut running = Running::new(10_000, 500);
        running.push(0, &cells(0, 100));
        running.push(1_000, &cells(2_000_000_000, 100));
        running.push(100_000, &cells(90_000_000_000, MISSING));
        running.push(101_000, &cells(91_000_000_000, 500));
        assert_eq!(running.peak_cores(), Some(2.0));
        assert_eq!(running.summaries().get(MEMORY_NEEDED).unwrap().mean, 100.0);
        assert_eq!(running.maximum(MEMORY_NEEDED), Some(500));
        assert_eq!(running.counters(false).find(|(column, _)| *column == CPU), Some((CPU, 91_000_000_000)));
    }

    #[test]
    fn peaks_ignore_spans_that_are_too_short() {
        let mut running = Running::new(60_000, 500);
        for (time_ms, cpu_ns) in [(0, 0), (10, 10_000_000), (600, 100_000_000), (1600, 1_100_000_000)] {
            running.push(time_ms, &cells(cpu_ns, 0));
        }
        assert_eq!(running.peak_cores(), Some(1.0));
    }

    #[test]
    fn a_level_that_is_read_less_often_is_bridged_and_a_gap_is_not() {
        let mut running = Running::new(25_000, 500);
        // Memory once a minute, CPU time every ten seconds, and nothing for 100 s after two minutes.
        for second in (0..=12).map(|index| index * 10).chain([220, 230, 240]) {
            let memory = if second % 60 == 0 { if second > 200 { 900 } else { 100 } } else { MISSING };
            running.push(second * 1000, &cells(0, memory));
        }
        assert_eq!(running.summaries().get(MEMORY_NEEDED).unwrap().mean, 100.0);
        assert_eq!(
            running.levels(200_000).find(|(column, _)| *column == MEMORY_NEEDED),
            Some((MEMORY_NEEDED, 900))
        );
    }
}
