//! The machine itself, beside its jobs.

use std::time::Duration;

use met_core::node::{Freshness, NodeRow, NodeRows};
use met_core::series::Course;
use met_host::clock;
use met_query::machine_now::MachineNow;
use met_sources::Runner;

use crate::node_series::{NodeCourse, NodeSeries};
use met_config::Node;

/// What is known of the machine, and its series if they are stored.
#[derive(Default)]
pub struct Machine {
    rows: NodeRows,
    series: Option<NodeSeries>,
    /// How often a sample is stored.
    pub(super) intervals: Node,
}

impl Machine {
    pub(super) fn new(intervals: Node) -> Machine {
        Machine { intervals, ..Machine::default() }
    }

    /// Whether the series of the machine are collected from now on.
    pub fn keep_series(&mut self, keep: bool) {
        self.series = keep.then(|| self.series.take().unwrap_or_default());
    }

    /// The samples taken since the last call.
    pub fn drain(&mut self) -> Vec<NodeCourse> {
        self.series.as_mut().map(NodeSeries::drain).unwrap_or_default()
    }

    /// The samples that are not drained yet, by label.
    pub fn undrained(&self) -> impl Iterator<Item = (&str, &Course)> {
        self.series.iter().flat_map(NodeSeries::undrained)
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
        let row = self.rows().find(|(row, _)| std::ptr::eq(row.table, &met_sources::node::TABLE));
        row.map(|(row, _)| MachineNow::of_readings(row)).unwrap_or_default()
    }

    /// What is known of the machine at this moment, and how fresh it is.
    pub fn rows(&self) -> impl Iterator<Item = (&NodeRow, Freshness)> {
        self.rows.known(clock::boottime_ns())
    }
}
