//! What a machine showed at its last tick: made once per tick, read by all that ask, at no cost to the tick.

use std::sync::Arc;

use met_core::job::{EventCount, JobKey, Record, Resources, Totals};
use met_core::table::{NANO, ONE};
use met_core::{Across, Column, JOB, MISSING, Table, Unit, columns};

columns! { COLUMNS:
    CPUS = Column::gauge("cpus", Unit::Count, ONE, "CPUs that the job was given, in all").usual(),
    MEMORY = Column::gauge("memory", Unit::Bytes, ONE, "memory that the job was given, in all").usual(),
    GPUS = Column::gauge("gpus", Unit::Count, ONE, "GPUs that the job was given").usual(),
    NODES = Column::gauge("nodes", Unit::Count, ONE, "machines that the job was given"),
    TIME_LIMIT = Column::gauge("time_limit", Unit::Seconds, NANO, "how long the job may run"),
}

/// What a resource manager says that a job may use. A job without one has none.
pub static ALLOCATED: Table = Table {
    name: "job_allocated",
    subject: "a job, and what its resource manager gave to it",
    labels: JOB.labels,
    columns: COLUMNS,
};

/// A row of `ALLOCATED`.
pub fn allocated(resources: &Resources) -> [i64; COLUMNS.len()] {
    let cell = |known: Option<i64>| known.unwrap_or(MISSING);
    let mut cells = [MISSING; COLUMNS.len()];
    cells[CPUS] = cell(resources.cpus);
    cells[MEMORY] = cell(resources.memory_bytes);
    cells[GPUS] = cell(resources.gpus);
    cells[NODES] = cell(resources.nodes);
    cells[TIME_LIMIT] = cell(resources.time_limit_ns);
    cells
}

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

    pub fn iter(&self) -> impl Iterator<Item = (&[String], &[i64])> {
        self.labels.iter().map(AsRef::as_ref).zip(self.cells.chunks_exact(self.table.columns.len()))
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// A job as it is now, or as it ended a moment ago.
#[derive(Clone, Debug)]
pub struct Job {
    pub about: Arc<About>,
    /// A row of the job table.
    pub cells: Vec<i64>,
    /// A row of the table of details; empty where none was read.
    pub details: Vec<i64>,
    /// How often each event happened.
    pub events: Vec<EventCount>,
    pub gpus: Vec<HeldGpu>,
}

/// What is said of a job once, and not with each of its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    pub key: JobKey,
    /// As people name it to its manager.
    pub shown_id: String,
    pub state: &'static str,
    pub partition: String,
    /// The job that this one is a part of, and in whose figures it is, too.
    pub inside: String,
    pub start_ns: Option<i64>,
    pub end_ns: Option<i64>,
    /// A row of `ALLOCATED`.
    pub allocated: [i64; COLUMNS.len()],
    pub person: Person,
}

impl About {
    pub fn of(record: &Record) -> About {
        let mut given = record.allocated.clone();
        given.fill_from(&record.requested);
        About {
            key: record.key.clone(),
            shown_id: record.shown_id().to_owned(),
            state: record.state.name(),
            partition: record.scheduling.partition.clone().unwrap_or_default(),
            inside: record.inside.clone().unwrap_or_default(),
            start_ns: record.start_ns,
            end_ns: record.end_ns,
            allocated: allocated(&given),
            person: Person {
                name: record.name.clone(),
                user: record.user.clone().unwrap_or_default(),
                account: record.account.clone().unwrap_or_default(),
            },
        }
    }
}

/// A row of the job table with what a record says.
pub fn cells_of(totals: &Totals) -> Vec<i64> {
    let mut cells = vec![MISSING; JOB.columns.len()];
    for (column, figure) in totals.iter() {
        cells[column] = figure.value;
    }
    cells
}

/// What is shown to logged-in users alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Person {
    pub name: String,
    pub user: String,
    pub account: String,
}

/// A GPU that a job holds, by the names that other exporters have for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldGpu {
    pub index: String,
    pub uuid: String,
    /// The uuid of the GPU that this is a part of.
    pub parent: String,
    pub vendor: String,
    /// GPU instance and compute instance of a part: `1/0`.
    pub mig: String,
}

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub tables: Vec<Rows>,
    pub jobs: Vec<Job>,
}

/// Jobs beyond a cap on series, added up.
#[derive(Clone, Debug)]
pub struct Rest {
    pub jobs: usize,
    pub cells: Vec<i64>,
}

impl Rest {
    /// Nothing where there are none.
    pub fn of<'a>(jobs: impl Iterator<Item = &'a Job>) -> Option<Rest> {
        let mut rest = Rest { jobs: 0, cells: vec![MISSING; JOB.columns.len()] };
        for job in jobs {
            rest.jobs += 1;
            for ((sum, &cell), column) in rest.cells.iter_mut().zip(&job.cells).zip(JOB.columns) {
                *sum = match (*sum, cell) {
                    (sum, MISSING) => sum,
                    (MISSING, cell) => cell,
                    (sum, cell) if column.across == Across::Max => sum.max(cell),
                    (sum, cell) => sum.saturating_add(cell),
                };
            }
        }
        (rest.jobs > 0).then_some(rest)
    }
}
