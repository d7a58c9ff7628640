//! The machine itself, beside its jobs.

use met_core::course::Course;
use met_core::node::{Freshness, NodeRow};
use met_host::clock;

use super::Sampler;
use crate::node_series::{NodeCourse, NodeSeries};

impl Sampler {
    /// Whether the course of the machine is kept from now on.
    pub fn keep_node(&mut self, keep: bool) {
        self.node_series =
            if keep { self.node_series.take().or_else(|| Some(NodeSeries::default())) } else { None };
    }

    /// The samples of the machine taken since the last call.
    pub fn drain_node(&mut self) -> Vec<NodeCourse> {
        self.node_series.as_mut().map(NodeSeries::drain).unwrap_or_default()
    }

    /// The samples of the machine that are not drained yet, by table and label.
    pub fn undrained_node(&self) -> impl Iterator<Item = (&str, &Course)> {
        self.node_series.iter().flat_map(NodeSeries::undrained)
    }

    pub(super) fn follow_node(&mut self, now_ns: i64) {
        let unix_offset_ns = clock::unix_offset_ns();
        for source in self.runner.node() {
            // What a tick reads is as old as the last tick, however short its own period.
            let period_ns = source.period_ns.max(self.interval_ns);
            for batch in source.batches {
                self.node.take(source.name, batch, source.labels, period_ns);
                if let Some(series) = &mut self.node_series {
                    series.take(batch, source.labels, unix_offset_ns);
                }
            }
        }
        self.node.forget_old(now_ns);
    }

    /// What is known of the machine at this moment, and how fresh it is.
    pub fn node_rows(&self) -> impl Iterator<Item = (&NodeRow, Freshness)> {
        self.node.known(clock::boottime_ns())
    }
}
