//! Jobs that run and of which rules want more samples.

use std::time::Duration;

use met_core::Table;
use met_core::job::{Record, State};
use met_core::series::Columns;
use serde_json::{Value, json};

use super::{Around, EARLIER, Look, ReadSeries};
use crate::answers::{Beside, Job, Known};
use crate::lineage::Lineages;
use crate::neighbours::Neighbours;
use crate::rules;

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted<'a> {
    pub record: &'a Record,
    /// The first of the rules that want them for so long.
    pub rule: &'a str,
    pub wanted_for: Duration,
}

impl Wanted<'_> {
    /// For a program.
    pub fn object(&self) -> Value {
        json!({ "job": self.record.label(), "rule": self.rule, "seconds": self.wanted_for.as_secs() })
    }
}

/// All of them. Nothing is read unless a rule asks for something.
pub fn wanted<'a, E>(
    look: &Look<'a>,
    records: &'a [Record],
    series: &mut ReadSeries<'_, E>,
) -> Result<Vec<Wanted<'a>>, E> {
    let mut all = Vec::new();
    if look.rules.rules.iter().all(|rule| rule.watch.is_none()) {
        return Ok(all);
    }
    let around =
        Around { records, lineages: Lineages::of(records), neighbours: Neighbours::of(records, look.now_ns) };
    for (index, record) in records.iter().enumerate() {
        if record.state == State::Running && (look.is_wanted)(record) && look.is_worth_reading(record) {
            all.extend(around.wanted(look, index, series)?);
        }
    }
    Ok(all)
}

impl<'a> Around<'a> {
    /// For the longest time that a rule wants.
    fn wanted<E>(
        &self,
        look: &Look<'a>,
        index: usize,
        series: &mut ReadSeries<'_, E>,
    ) -> Result<Option<Wanted<'a>>, E> {
        let record = &self.records[index];
        let earlier = self.lineages.before(index, EARLIER);
        let gpus = Beside { gpus: self.neighbours.gpus(record), ..Beside::default() };
        let machine = (look.machine)(record);
        let unread = Job::new(record, machine, look.now_ns).after(&earlier).beside(gpus);
        let (watchers, needs) = rules::watchers(look.rules, &unread);
        if watchers.is_empty() {
            return Ok(None);
        }
        let mut of_job =
            |table: &'static Table, part: &str, wanted: Columns| series(record, table, part, wanted);
        let known = Known::read_needed(needs, look.interval, record, machine, &mut of_job)?;
        let beside = if needs.neighbours { self.neighbours.beside(record) } else { gpus };
        let known = known.beside(beside).among(&look.rules.systems);
        Ok(known.with_job(record, &earlier, look.now_ns, |job| {
            let wanted = watchers.into_iter().filter_map(|rule| {
                let wanted_for = rules::wanted_for(rule, job)?;
                Some(Wanted { record, rule: &rule.name, wanted_for })
            });
            wanted.reduce(|one, other| if other.wanted_for > one.wanted_for { other } else { one })
        }))
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
