//! What sampling costs.

use std::time::Duration;

use met_core::Unparsed;
use met_sources::{Runner, self_cost};

use crate::exits::Departures;

/// The price of one source.
#[derive(Clone, Debug)]
pub struct Cost {
    pub source: &'static str,
    pub read_ns: i64,
    /// By its own threads.
    pub background_ns: i64,
    pub errors: i64,
    pub readings: i64,
    pub rows: i64,
    pub unparsed: Unparsed,
    /// `None`: it is read at every tick.
    pub period: Option<Duration>,
}

impl Cost {
    /// What each source has cost so far.
    pub(super) fn all(runner: &Runner, departures: &Departures) -> Vec<Cost> {
        let period_of = |source: &str| {
            runner.periods().find(|(spec, _)| spec.name == source).and_then(|(_, period)| period)
        };
        let unparsed_of = |source: &str| {
            let found = runner.unparsed().find(|(name, _)| *name == source);
            found.map(|(_, unparsed)| unparsed.clone()).unwrap_or_default()
        };
        let cost = |(source, cells): (&'static str, &[i64])| {
            // A thread of their own receives exit records, and ticks enter them.
            let (received_ns, entered_ns) = match source {
                "taskstats" => (departures.listening_cpu_ns(), departures.cpu_ns()),
                _ => (0, 0),
            };
            Cost {
                source,
                read_ns: cells[self_cost::READ_CPU] + entered_ns,
                background_ns: cells[self_cost::BACKGROUND_CPU] + received_ns,
                errors: cells[self_cost::ERRORS],
                readings: cells[self_cost::READINGS],
                rows: cells[self_cost::ROWS],
                unparsed: unparsed_of(source),
                period: period_of(source),
            }
        };
        runner.named_costs().map(cost).collect()
    }
}
