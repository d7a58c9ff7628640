//! Details of jobs: read with what is read anyway, shown as last read, and kept as series only if configured.

use met_core::attribute::{Fold, JobMap};
use met_core::gpus::Gpus;
use met_core::process_exits::{Gone, OWN_DETAILS};
use met_core::series::PackedSamples;
use met_core::{Batch, DETAIL, JOB, Kind, MISSING, Subject, Table};
use met_host::Look;

use super::tracked::Jobs;
use crate::exits::OwnFigures;

/// Samples of what is stored besides the job table are at least so far apart, but for a tick that is a little early,
const APART_MS: i64 = 10_000;
const EARLY_MS: i64 = 500;
/// and so many are held: a day without a flush.
const SAMPLES_MAX: usize = 8640;

/// The rows of jobs at the last tick.
pub(super) struct JobRows {
    pub(super) jobs: Batch,
    /// None where the tick read no details.
    pub(super) details: Batch,
    fold: Fold,
    fold_details: Fold,
    /// Whether samples of details are stored.
    pub(super) keep_details: bool,
    /// Samples of jobs for which there was no room.
    pub(super) dropped_samples: u64,
}

impl JobRows {
    pub(super) fn new(keep_details: bool) -> JobRows {
        JobRows {
            jobs: Batch::new(&JOB),
            details: Batch::new(&DETAIL),
            fold: Fold::new(),
            fold_details: Fold::of_details(),
            keep_details,
            dropped_samples: 0,
        }
    }

    /// The rows of the jobs that were read, and the details of those that were read in full.
    pub(super) fn fold(&mut self, batches: &[Batch], map: &JobMap, slow: bool, jobs: &Jobs) {
        let is_read = |slot: u32| jobs.get(&slot).is_some_and(|job| job.age.pacing.look != Look::No);
        self.fold.some_jobs(batches, map, is_read, &mut self.jobs);
        let is_whole = |slot: u32| jobs.get(&slot).is_some_and(|job| job.is_read_whole(slow));
        match jobs.values().any(|job| job.is_read_whole(slow)) {
            true => self.fold_details.some_jobs(batches, map, is_whole, &mut self.details),
            false => self.details.clear(),
        }
    }

    /// Completes the details by what GPUs show and ended processes did. `reported`: the kernel reports the ends of processes.
    pub(super) fn follow_details<'g>(
        &mut self,
        batches: &[Batch],
        map: &JobMap,
        jobs: &mut Jobs,
        gpus: &Gpus,
        reported: bool,
        gone: impl Fn(u32) -> Option<&'g Gone>,
    ) {
        if self.details.is_empty() {
            return;
        }
        for batch in batches {
            see_own(batch, map, jobs);
        }
        for (row, cells) in self.details.rows_mut() {
            let Subject::Job(slot) = row.owner else { continue };
            let Some(job) = jobs.get_mut(&slot) else { continue };
            let details = &mut job.counts.details;
            details.own.depart(reported, |subject| map.owner(subject).is_some());
            gpus.fill_details(slot, cells);
            details.complete(cells, gone(slot));
        }
    }
}

/// Notes the figures of each process that end with it.
fn see_own(batch: &Batch, map: &JobMap, jobs: &mut Jobs) {
    let own = |(from, column): (usize, &met_core::Column)| {
        let index = OWN_DETAILS.iter().position(|&own| column.details == Some(own))?;
        Some((from, index))
    };
    let sources: Vec<(usize, usize)> = batch.table.columns.iter().enumerate().filter_map(own).collect();
    for (row, cells) in batch.rows().filter(|_| !sources.is_empty()) {
        let Subject::Task { pid, start_ticks } = row.owner else { continue };
        for slot in map.owners(row.owner) {
            let Some(job) = jobs.get_mut(&slot) else { continue };
            for &(from, index) in &sources {
                job.counts.details.own.see(pid, start_ticks, index, cells[from]);
            }
        }
    }
}

/// The details of one job.
pub(super) struct Details {
    pub(super) own: OwnFigures<{ OWN_DETAILS.len() }>,
    /// As last read; empty before.
    cells: Vec<i64>,
    pub(super) series: Spaced,
}

impl Default for Details {
    fn default() -> Details {
        Details { own: OwnFigures::default(), cells: Vec::new(), series: Spaced::new(&DETAIL) }
    }
}

impl Details {
    /// Adds what no living process shows. No counter falls.
    fn complete(&mut self, cells: &mut [i64], gone: Option<&Gone>) {
        for (index, &column) in OWN_DETAILS.iter().enumerate() {
            let ended = gone.map_or(0, |gone| gone.details[index]);
            if cells[column] != MISSING || ended > 0 {
                cells[column] = self.own.total(index).saturating_add(ended);
            }
        }
        self.cells.resize(cells.len(), MISSING);
        for ((last, cell), column) in self.cells.iter_mut().zip(cells).zip(DETAIL.columns) {
            if column.kind == Kind::Counter && *last != MISSING {
                *cell = (*cell).max(*last);
            }
            *last = *cell;
        }
    }

    /// As last read; empty before the first reading.
    pub(super) fn cells(&self) -> &[i64] {
        &self.cells
    }

    pub(super) fn sample(&mut self, time_ms: i64) {
        if !self.cells.is_empty() {
            self.series.push(time_ms, &self.cells);
        }
    }
}

/// Whether a sample is due so long after the last one.
pub(super) fn are_apart(last_ms: Option<i64>, time_ms: i64) -> bool {
    last_ms.is_none_or(|last_ms| time_ms.saturating_sub(APART_MS - EARLY_MS) >= last_ms)
}

/// A series whose samples are some seconds apart, however often it is read.
pub(super) struct Spaced {
    samples: PackedSamples,
    last_ms: i64,
}

impl Spaced {
    pub(super) fn new(table: &'static Table) -> Spaced {
        Spaced { samples: PackedSamples::new(table), last_ms: i64::MIN }
    }

    pub(super) fn push(&mut self, time_ms: i64, cells: &[i64]) {
        if are_apart(Some(self.last_ms), time_ms) {
            self.push_last(time_ms, cells);
        }
    }

    /// The last sample may follow the one before at once.
    pub(super) fn push_last(&mut self, time_ms: i64, cells: &[i64]) {
        if time_ms > self.last_ms && self.samples.len() < SAMPLES_MAX {
            self.samples.push(time_ms, cells);
            self.last_ms = time_ms;
        }
    }

    pub(super) fn samples(&self) -> &PackedSamples {
        &self.samples
    }

    /// The samples since the last call, if there are any.
    pub(super) fn take(&mut self) -> Option<PackedSamples> {
        (!self.samples.is_empty()).then(|| self.samples.take())
    }
}

#[cfg(test)]
mod tests {
    use met_core::detail_table::{CPU_RUNS, IO_WAITS, MEMORY_DIRTY, MEMORY_TIME};

    use super::*;

    fn cells(values: &[(usize, i64)]) -> Vec<i64> {
        let mut cells = vec![MISSING; DETAIL.columns.len()];
        values.iter().for_each(|&(column, value)| cells[column] = value);
        cells
    }

    #[test]
    fn details_of_ended_processes_stay_and_what_is_not_accounted_is_missing() {
        let mut details = Details::default();
        let index = OWN_DETAILS.iter().position(|&column| column == CPU_RUNS).unwrap();
        let ended = OWN_DETAILS.iter().position(|&column| column == MEMORY_TIME).unwrap();
        details.own.see(7, 1, index, 40);
        let mut gone = Gone::default();
        (gone.details[index], gone.details[ended]) = (2, 9);
        let mut row = cells(&[(CPU_RUNS, 40), (MEMORY_DIRTY, 100)]);
        details.complete(&mut row, Some(&gone));
        assert_eq!([CPU_RUNS, MEMORY_TIME, MEMORY_DIRTY].map(|column| row[column]), [42, 9, 100]);
        assert_eq!(row[IO_WAITS], MISSING, "the kernel does not account delays");
        // A level falls, a counter does not.
        let mut later = cells(&[(MEMORY_DIRTY, 10)]);
        details.complete(&mut later, None);
        assert_eq!([CPU_RUNS, MEMORY_DIRTY].map(|column| later[column]), [42, 10]);
    }

    #[test]
    fn samples_are_ten_seconds_apart_and_bounded() {
        let mut series = Spaced::new(&DETAIL);
        let row = cells(&[(MEMORY_DIRTY, 1)]);
        (0..31).for_each(|second| series.push(second * 1000 - i64::from(second == 10), &row));
        assert_eq!(series.samples().unpack().times_ms, [0, 9_999, 20_000, 30_000]);
        series.push_last(30_500, &row);
        series.push_last(30_500, &row);
        assert_eq!(series.take().map(|samples| samples.len()), Some(5));
        assert!(series.take().is_none());
        (4..SAMPLES_MAX as i64 + 100).for_each(|at| series.push(at * 10_000, &row));
        assert_eq!(series.samples().len(), SAMPLES_MAX);
    }
}
