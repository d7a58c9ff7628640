//! What sampling costs.

use std::time::Duration;

use met_core::Unparsed;
use met_sources::{SOURCES, self_cost};

use super::Sampler;

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

impl Sampler {
    /// What each source has cost so far.
    pub fn costs(&self) -> Vec<Cost> {
        let period_of = |part: u32| {
            let name = SOURCES.get(part as usize).map(|spec| spec.name);
            self.runner.periods().find(|(spec, _)| Some(spec.name) == name).and_then(|(_, period)| period)
        };
        let unparsed_of = |source: &str| {
            let found = self.runner.unparsed().find(|(name, _)| *name == source);
            found.map(|(_, unparsed)| unparsed.clone()).unwrap_or_default()
        };
        let cost = |(row, cells): (met_core::Row, &[i64])| {
            let source = SOURCES.get(row.part as usize).map_or("?", |spec| spec.name);
            // Exit records are heard by a thread of their own, and entered at ticks.
            let (heard_ns, entered_ns) = match source {
                "taskstats" => (self.departures.listening_cpu_ns(), self.departures.cpu_ns()),
                _ => (0, 0),
            };
            Cost {
                source,
                read_ns: cells[self_cost::READ_CPU] + entered_ns,
                background_ns: cells[self_cost::BACKGROUND_CPU] + heard_ns,
                errors: cells[self_cost::ERRORS],
                readings: cells[self_cost::READINGS],
                rows: cells[self_cost::ROWS],
                unparsed: unparsed_of(source),
                period: period_of(row.part),
            }
        };
        self.runner.costs().rows().map(cost).collect()
    }
}
