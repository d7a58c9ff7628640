//! What sinks receive.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use met_core::bounds;
use met_core::job::{JobKey, Record};
use met_core::node_health::NodeHealth;
use met_core::series::Series;
use met_core::{MISSING, Table};
use met_wire::batch::{Interim, Subject};
use met_wire::colmet;

#[derive(Clone, Debug)]
pub enum Event {
    /// A new job, after the store has it.
    Started(Arc<Record>),
    /// A job that ended, after the commit. Published again when its record changes afterwards: the last one counts.
    Ended(Arc<Record>),
    /// The figures of a running job.
    Interim(Arc<Interim>),
    /// Samples that were flushed together.
    Samples(Arc<Samples>),
    /// Rows of one table, as the sampler has just read them.
    Tick(Arc<Tick>),
    /// Records that nodes of Colmet sent to this server, as they came.
    Colmet(Arc<Vec<colmet::Record>>),
    /// How a daemon samples from now on.
    Sampling(Arc<Sampling>),
    /// How the machine is, when that has changed.
    Health(Arc<NodeHealth>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Started,
    Ended,
    Interim,
    Samples,
    Tick,
    Colmet,
    Sampling,
    Health,
}

/// What holds for all jobs of a daemon, by its file or changed live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampling {
    pub interval: Duration,
    /// Of perf, in the order in which they were given.
    pub events: Vec<String>,
}

/// Samples of one table about one subject.
#[derive(Clone, Debug)]
pub struct Samples {
    /// On a server: the node that sent them.
    pub node: Option<String>,
    pub subject: Subject,
    pub series: Series,
}

/// Rows of one table at one tick.
#[derive(Clone, Debug)]
pub struct Tick {
    /// Unix nanoseconds.
    pub time_ns: i64,
    pub table: &'static Table,
    rows: Vec<TickRow>,
    cells: Vec<i64>,
}

#[derive(Clone, Debug)]
pub struct TickRow {
    /// The job that the row belongs to, if any.
    pub job: Option<JobKey>,
    /// The owner of that job, if known.
    pub user: Option<Arc<str>>,
    /// One for each label of the table; empty if unknown.
    pub labels: Vec<String>,
}

impl Tick {
    pub fn new(time_ns: i64, table: &'static Table) -> Tick {
        Tick { time_ns, table, rows: Vec::new(), cells: Vec::new() }
    }

    pub fn push(&mut self, row: TickRow, cells: &[i64]) {
        debug_assert_eq!(cells.len(), self.table.columns.len());
        self.rows.push(row);
        self.cells.extend_from_slice(cells);
    }

    pub fn rows(&self) -> impl Iterator<Item = (&TickRow, &[i64])> {
        self.rows.iter().zip(self.cells.chunks_exact(self.table.columns.len()))
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl Event {
    pub fn kind(&self) -> Kind {
        match self {
            Event::Started(_) => Kind::Started,
            Event::Ended(_) => Kind::Ended,
            Event::Interim(_) => Kind::Interim,
            Event::Samples(_) => Kind::Samples,
            Event::Tick(_) => Kind::Tick,
            Event::Colmet(_) => Kind::Colmet,
            Event::Sampling(_) => Kind::Sampling,
            Event::Health(_) => Kind::Health,
        }
    }

    /// How many samples there are in it.
    pub(crate) fn samples(&self) -> u64 {
        match self {
            Event::Samples(samples) => samples_in(&samples.series, 0..samples.series.len()),
            _ => 0,
        }
    }

    /// About how much memory it holds.
    pub(crate) fn bytes(&self) -> usize {
        const SMALL: usize = 1024;
        let of_cells = |cells: usize| SMALL + cells * size_of::<i64>();
        match self {
            Event::Started(record) | Event::Ended(record) => size_of::<Record>() + bounds::bytes(record),
            Event::Interim(_) => 8 * SMALL,
            Event::Sampling(_) | Event::Health(_) => SMALL,
            Event::Samples(samples) => of_cells(samples.series.len() * (samples.series.columns.len() + 1)),
            Event::Colmet(records) => {
                records.iter().map(|record| of_cells(record.backend.layout().counters.len())).sum()
            }
            Event::Tick(tick) => of_cells(tick.cells.len() + tick.rows.len() * size_of::<[i64; 16]>()),
        }
    }
}

/// A sample is one known cell at one time.
pub(crate) fn samples_in(series: &Series, range: Range<usize>) -> u64 {
    let known =
        |cells: &Vec<i64>| cells[range.clone()].iter().filter(|&&cell| cell != MISSING).count() as u64;
    series.columns.iter().map(known).sum()
}
