//! What a machine showed at its last tick: made once per tick, read by whoever asks, at no cost to the tick.

use met_core::job::JobKey;
use met_core::{Batch, JOB, MISSING, Table};

/// Rows of one table with the values of its labels.
#[derive(Clone, Debug)]
pub struct Rows {
    pub table: &'static Table,
    labels: Vec<Box<[String]>>,
    cells: Vec<i64>,
}

impl Rows {
    pub fn new(table: &'static Table) -> Rows {
        Rows { table, labels: Vec::new(), cells: Vec::new() }
    }

    /// Takes a row; labels that are not there are empty.
    pub fn push(&mut self, labels: &[String], cells: &[i64]) {
        let label = |index: usize| labels.get(index).cloned().unwrap_or_default();
        self.labels.push((0..self.table.labels.len()).map(label).collect());
        self.cells.extend_from_slice(&cells[..self.table.columns.len()]);
    }

    /// All rows of a batch by the labels of the source that filled it.
    pub fn extend(&mut self, batch: &Batch, labels: &[Vec<String>]) {
        for (row, cells) in batch.rows() {
            self.push(labels.get(row.part as usize).map_or(&[], Vec::as_slice), cells);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[String], &[i64])> {
        self.labels.iter().map(AsRef::as_ref).zip(self.cells.chunks_exact(self.table.columns.len()))
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// A job as it is now.
#[derive(Clone, Debug)]
pub struct Job {
    pub key: JobKey,
    pub info: JobInfo,
    /// A row of the job table.
    pub cells: Vec<i64>,
    pub cards: Vec<HeldCard>,
}

/// What names a job to people, and is nobody's business without a login.
#[derive(Clone, Debug, Default)]
pub struct JobInfo {
    pub shown_id: String,
    pub name: String,
    pub user: String,
    pub account: String,
    pub state: &'static str,
}

/// A card that a job holds, by the names that other exporters have for it.
#[derive(Clone, Debug, Default)]
pub struct HeldCard {
    pub index: String,
    pub uuid: String,
    pub parent: String,
    pub vendor: String,
}

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub node: String,
    /// Unix milliseconds.
    pub time_ms: i64,
    pub tables: Vec<Rows>,
    pub jobs: Vec<Job>,
}

impl Snapshot {
    /// Keeps the `most` jobs that used most CPU, and adds the others up into one row: a cap on series.
    pub fn cap_jobs(&mut self, most: usize) -> Option<Rest> {
        if self.jobs.len() <= most {
            return None;
        }
        let cpu = |job: &Job| job.cells[met_core::job_table::CPU];
        self.jobs.sort_by_key(|job| std::cmp::Reverse(cpu(job)));
        let others = self.jobs.split_off(most);
        let mut cells = vec![MISSING; JOB.columns.len()];
        for job in &others {
            for ((sum, &cell), column) in cells.iter_mut().zip(&job.cells).zip(JOB.columns) {
                *sum = match (*sum, cell) {
                    (sum, MISSING) => sum,
                    (MISSING, cell) => cell,
                    (sum, cell) if column.across == met_core::Across::Max => sum.max(cell),
                    (sum, cell) => sum.saturating_add(cell),
                };
            }
        }
        Some(Rest { jobs: others.len(), cells })
    }
}

/// Jobs beyond the cap, together.
#[derive(Clone, Debug)]
pub struct Rest {
    pub jobs: usize,
    pub cells: Vec<i64>,
}
