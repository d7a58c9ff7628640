//! The machine itself, beside its jobs.

use std::time::Duration;

use met_core::node::{Freshness, NodeRow, NodeRows};
use met_core::series::Series;
use met_core::{Batch, MISSING};
use met_host::clock;
use met_query::machine_now::MachineNow;
use met_sources::{Runner, node};

use crate::node_series::{NodePartSeries, UnwrittenSeries};
use met_config::Node;

/// What is known of the machine, and its series if they are stored.
#[derive(Default)]
pub struct Machine {
    rows: NodeRows,
    series: Option<UnwrittenSeries>,
    /// How often a sample is stored.
    pub(super) intervals: Node,
    /// What all disks had moved when they were last asked for it.
    moved_bytes: Option<i64>,
}

/// For all disks together, between two looks at jobs.
const LITTLE_BYTES: i64 = 40 << 20;

impl Machine {
    pub(super) fn new(intervals: Node) -> Machine {
        Machine { intervals, ..Machine::default() }
    }

    /// Whether the series of the machine are collected from now on.
    pub fn keep_series(&mut self, keep: bool) {
        self.series = keep.then(|| self.series.take().unwrap_or_default());
    }

    /// The samples taken since the last call.
    pub fn drain(&mut self) -> Vec<NodePartSeries> {
        self.series.as_mut().map(UnwrittenSeries::drain).unwrap_or_default()
    }

    /// The samples that are not drained yet, by label.
    pub fn undrained(&self) -> impl Iterator<Item = (&str, &Series)> {
        self.series.iter().flat_map(UnwrittenSeries::undrained)
    }

    pub fn keeps_series(&self) -> bool {
        self.series.is_some()
    }

    /// Takes what was read by a tick of this period; a sample is stored once in `series_interval`.
    pub(super) fn follow(
        &mut self,
        runner: &Runner,
        interval_ns: i64,
        now_ns: i64,
        series_interval: Duration,
    ) {
        let unix_offset_ns = clock::unix_offset_ns();
        for source in runner.node() {
            // What a tick reads is as old as the last tick, however short its own period.
            let period_ns = source.period_ns.max(interval_ns);
            for batch in source.batches {
                self.rows.take(source.name, batch, source.labels, period_ns);
                if let Some(series) = &mut self.series {
                    series.take(batch, source.labels, unix_offset_ns, series_interval);
                }
            }
        }
        self.rows.forget_old(now_ns);
    }

    /// Whether all disks together moved little since the last call. Not known is not little.
    pub(super) fn disks_moved_little(&mut self, batches: &[Batch]) -> bool {
        let mut of_node = batches.iter().filter(|batch| std::ptr::eq(batch.table, &node::TABLE));
        let row = of_node.find_map(|batch| batch.rows().next());
        let known = row.map(|(_, cells)| [cells[node::PAGED_IN], cells[node::PAGED_OUT]]);
        let Some([paged_in, paged_out]) = known.filter(|cells| !cells.contains(&MISSING)) else {
            return false;
        };
        let moved_bytes = paged_in.saturating_add(paged_out);
        let before_bytes = self.moved_bytes.replace(moved_bytes);
        before_bytes.is_some_and(|before_bytes| moved_bytes - before_bytes <= LITTLE_BYTES)
    }

    /// Takes what a source has just read, without a sample of it.
    pub(super) fn look(&mut self, runner: &Runner, name: &str, interval_ns: i64) {
        for source in runner.node().filter(|source| source.name == name) {
            for batch in source.batches {
                self.rows.take(source.name, batch, source.labels, source.period_ns.max(interval_ns));
            }
        }
    }

    /// What it did at the last reading.
    pub fn now(&self) -> MachineNow {
        let row = self.rows().find(|(row, _)| std::ptr::eq(row.table, &node::TABLE));
        row.map(|(row, _)| MachineNow::of_readings(row)).unwrap_or_default()
    }

    /// What is known of the machine at this moment, and how fresh it is.
    pub fn rows(&self) -> impl Iterator<Item = (&NodeRow, Freshness)> {
        self.rows.known(clock::boottime_ns())
    }
}

#[cfg(test)]
mod tests {
    use met_core::Subject;

    use super::*;

    #[test]
    fn what_disks_moved_is_little_only_if_it_is_known() {
        let mut machine = Machine::default();
        let mut little = |paged_in: i64, paged_out: i64| {
            let mut batch = Batch::new(&node::TABLE);
            let cells = batch.push(Subject::Node);
            (cells[node::PAGED_IN], cells[node::PAGED_OUT]) = (paged_in, paged_out);
            machine.disks_moved_little(&[batch])
        };
        assert!(!little(0, 0), "the first time");
        assert!(little(LITTLE_BYTES / 2, LITTLE_BYTES / 2));
        assert!(!little(LITTLE_BYTES, LITTLE_BYTES + 1));
        assert!(!little(MISSING, 0));
        assert!(!little(2 * LITTLE_BYTES, LITTLE_BYTES + 2), "since it was last known");
        assert!(!machine.disks_moved_little(&[]));
    }
}
