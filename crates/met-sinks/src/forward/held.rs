//! Series that wait for the next batch.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use met_core::series::Series;
use met_core::{JOB, MISSING, Table};
use met_wire::batch::{Piece, SAMPLES_MAX, Subject};
use met_wire::block::{self, BLOCK_SAMPLES_MAX};
use met_wire::schema;

use super::{CELLS_MAX, NODE_EVERY, SERIES_BYTES_PER_BATCH, TIMES_MAX};
use crate::event::{Samples, samples_in};

/// The series of a batch.
#[derive(Default)]
pub(super) struct Packed {
    pub(super) pieces: Vec<Piece>,
    pub(super) samples: u64,
    /// Samples for which there is no room in it.
    pub(super) surplus: u64,
}

type SeriesBySubject = HashMap<(Subject, &'static str), Series>;

/// What was offered since the last batch.
pub(super) struct Held {
    series: SeriesBySubject,
    /// Of the machine: many parts with a sample now and then, which are small only when some are sent together.
    of_node: SeriesBySubject,
    node_due: Instant,
    cells: usize,
    times: usize,
}

impl Held {
    pub(super) fn new(now: Instant) -> Held {
        let (series, of_node) = (HashMap::new(), HashMap::new());
        Held { series, of_node, node_due: now + NODE_EVERY, cells: 0, times: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.cells > CELLS_MAX || self.times > TIMES_MAX
    }

    pub(super) fn samples(&self) -> u64 {
        let all = self.series.values().chain(self.of_node.values());
        all.map(|series| samples_in(series, 0..series.len())).sum()
    }

    pub(super) fn add(&mut self, Samples { subject, series, .. }: &Samples) {
        self.cells += series.len() * series.columns.len();
        self.times += series.len();
        let held = if matches!(subject, Subject::Node(_)) { &mut self.of_node } else { &mut self.series };
        let held =
            held.entry((subject.clone(), series.table.name)).or_insert_with(|| Series::new(series.table));
        held.append(series);
    }

    /// What was held is on disk, or given up.
    pub(super) fn let_go(&mut self) {
        self.series.clear();
        self.cells = self.of_node.values().map(|series| series.len() * series.columns.len()).sum();
        self.times = self.of_node.values().map(Series::len).sum();
    }

    /// The machine's own series go with the very next batch.
    pub(super) fn hurry_node(&mut self, now: Instant) {
        self.node_due = now;
    }

    /// The machine's own series go with the next batch if it is time.
    pub(super) fn add_node(&mut self, now: Instant) {
        if now >= self.node_due {
            self.node_due = now + NODE_EVERY;
            for (whose, series) in self.of_node.drain() {
                // Some may have found no room on disk before.
                self.series.entry(whose).or_insert_with(|| Series::new(series.table)).append(&series);
            }
        }
    }

    /// What is meant by the columns in a batch; totals, too, are named as the columns of jobs are.
    pub(super) fn columns(&self, with_totals: bool) -> BTreeMap<String, String> {
        let mut occurring: BTreeMap<&str, (&Table, Vec<bool>)> = BTreeMap::new();
        if with_totals {
            occurring.insert(JOB.name, (&JOB, vec![true; JOB.columns.len()]));
        }
        for series in self.series.values() {
            let none = || (series.table, vec![false; series.table.columns.len()]);
            let (_, occurs) = occurring.entry(series.table.name).or_insert_with(none);
            for (occurs, cells) in occurs.iter_mut().zip(&series.columns) {
                *occurs = *occurs || cells.iter().any(|&cell| cell != MISSING);
            }
        }
        let describe = |(name, (table, occurs)): (&str, (&Table, Vec<bool>))| {
            (name.to_owned(), schema::describe_some(table, |column| occurs[column]))
        };
        occurring.into_iter().map(describe).collect()
    }

    /// A server would refuse a batch with more than it takes, and the records in it.
    pub(super) fn pieces(&self) -> Packed {
        let mut packed = Packed::default();
        let (mut times, mut bytes) = (0, 0);
        for ((subject, table), series) in &self.series {
            for begin in (0..series.len()).step_by(BLOCK_SAMPLES_MAX) {
                let range = begin..series.len().min(begin + BLOCK_SAMPLES_MAX);
                let samples = samples_in(series, range.clone());
                if times + range.len() > SAMPLES_MAX {
                    packed.surplus += samples;
                    continue;
                }
                let mut block = Vec::new();
                block::encode(series, range.clone(), &mut block);
                if bytes + block.len() > SERIES_BYTES_PER_BATCH {
                    packed.surplus += samples;
                    continue;
                }
                times += range.len();
                bytes += block.len();
                packed.samples += samples;
                packed.pieces.push(Piece { subject: subject.clone(), table: (*table).to_owned(), block });
            }
        }
        packed
    }
}
