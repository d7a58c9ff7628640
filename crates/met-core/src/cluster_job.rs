//! One job of what several nodes measured of it.

mod thinned;

use std::collections::BTreeMap;

use crate::belief;
use crate::job::{EventCount, Figure, GpuUse, JobKey, Part, QualityKind, Record, Totals};
use crate::job_processes;
use crate::managers::spans_nodes;
use crate::series::{SPARSE_MS, Series, is_charged};
use crate::{Across, Column, JOB, Kind, MISSING};
use thinned::Thinned;

/// Nodes begin the same run of a job this close to each other; a run after a requeue begins later.
const SAME_RUN_NS: u64 = 120_000_000_000;

/// How far apart two nodes' records with one id begin, if they can be of one run: both ran at the same time, or
/// began close to each other.
pub fn distance_ns(one: &Record, other: &Record) -> Option<u64> {
    let (Some(one_ns), Some(other_ns)) = (one.start_ns, other.start_ns) else {
        return (one.key.incarnation == other.key.incarnation).then_some(0);
    };
    let far_ns = one_ns.abs_diff(other_ns);
    let (earlier, later_ns) = if one_ns <= other_ns { (one, other_ns) } else { (other, one_ns) };
    let overlap = earlier.end_ns.is_none_or(|end_ns| later_ns <= end_ns);
    (overlap || far_ns <= SAME_RUN_NS).then_some(far_ns)
}

/// The job that these nodes each had a part of; `None` without any. The order of the nodes does not matter.
pub fn whole(key: JobKey, parts: &[(String, Record)]) -> Option<Record> {
    let mut reported: Vec<&(String, Record)> = parts.iter().collect();
    reported.sort_by(|one, other| one.0.cmp(&other.0));
    let mut whole = belief::of_nodes(key, &reported)?;
    if reported.len() == 1 {
        // That it was seen is said also of one that has no figures yet: a scheduler's word does not replace it.
        if spans_nodes(&whole.key.manager) && !whole.parts.iter().any(|part| part.step.is_empty()) {
            whole.parts.splice(0..0, reported.iter().map(|(node, record)| on_node(node, record)));
        }
        return Some(whole);
    }
    whole.summaries = Default::default();
    whole.totals = totals(reported.iter().map(|(_, record)| &record.totals));
    let on_node = |node: &str, gpu: &GpuUse| GpuUse { node: Some(node.to_owned()), ..gpu.clone() };
    whole.gpus =
        reported.iter().flat_map(|(node, record)| record.gpus.iter().map(|gpu| on_node(node, gpu))).collect();
    whole.events = events(reported.iter().flat_map(|(_, record)| &record.events));
    whole.uncounted_events = Vec::new();
    for uncounted in reported.iter().flat_map(|(_, record)| &record.uncounted_events) {
        // Counted on some nodes only.
        let counted = whole.events.iter_mut().filter(|event| event.name == uncounted.name);
        counted.for_each(|event| event.kind = QualityKind::LowerBound);
        belief::fill_events(&mut whole, &[], std::slice::from_ref(uncounted));
    }
    whole.processes = job_processes::of_nodes(reported.iter().map(|(node, record)| (node, record)));
    whole.parts = reported.iter().flat_map(|(node, record)| self::parts(node, record)).collect();
    Some(whole)
}

fn totals<'a>(reported: impl Iterator<Item = &'a Totals> + Clone) -> Totals {
    let mut all = Totals::default();
    for (column, definition) in JOB.columns.iter().enumerate() {
        let known: Vec<&Figure> = reported.clone().filter_map(|totals| totals.figure(column)).collect();
        let Some(first) = known.first() else { continue };
        let values = known.iter().map(|figure| figure.value);
        let value = match definition.across {
            Across::Sum => values.fold(0_i64, i64::saturating_add),
            Across::Max => values.max().unwrap_or(first.value),
            Across::Mean => values.clone().fold(0_i64, i64::saturating_add) / known.len() as i64,
        };
        let all_know = known.len() == reported.clone().count();
        let kind = match definition.across {
            // Who does not know his part may have used any amount.
            Across::Sum if !all_know => QualityKind::LowerBound,
            // The peaks of nodes are not of one moment, so their sum is not measured as such.
            Across::Sum if definition.kind == Kind::Gauge => worst(&known).max(QualityKind::Estimated),
            _ => worst(&known),
        };
        let same = known.iter().all(|figure| figure.source == first.source);
        let source = if same { first.source.clone() } else { "several nodes".into() };
        all.set(column, value, kind, source);
    }
    all
}

fn worst(figures: &[&Figure]) -> QualityKind {
    figures.iter().map(|figure| figure.kind).max().unwrap_or(QualityKind::Measured)
}

fn events<'a>(reported: impl Iterator<Item = &'a EventCount>) -> Vec<EventCount> {
    let mut all: BTreeMap<&str, EventCount> = BTreeMap::new();
    for event in reported {
        let sum = all.entry(&event.name).or_insert_with(|| EventCount { count: 0, ..event.clone() });
        sum.count = sum.count.saturating_add(event.count);
        sum.counted = sum.counted.min(event.counted);
        sum.kind = sum.kind.max(event.kind);
    }
    all.into_values().collect()
}

fn on_node(node: &str, record: &Record) -> Part {
    Part {
        node: node.to_owned(),
        start_ns: record.start_ns,
        end_ns: record.end_ns,
        exit_code: record.exit_code,
        totals: record.totals.clone(),
        ..Part::default()
    }
}

/// What the job did on a node, and the steps that it had there.
fn parts(node: &str, record: &Record) -> Vec<Part> {
    let steps = record.parts.iter().filter(|part| !part.step.is_empty());
    let steps = steps.map(|part| Part { node: node.to_owned(), ..part.clone() });
    std::iter::once(on_node(node, record)).chain(steps).collect()
}

/// The series of a job from those of its nodes: at every time that one of them has, what they had together.
///
/// What a counter showed last it still shows; a level holds until its node's next sample, for `gap_ms` at most. What a
/// node had counted before its first sample is no growth of the job at that time: it counts from the beginning.
pub fn together(all_series: &[Series], gap_ms: i64) -> Series {
    let Some(first) = all_series.first() else { return Series::new(&JOB) };
    if all_series.len() == 1 {
        return first.clone();
    }
    let mut times: Vec<i64> = all_series.iter().flat_map(|series| series.times_ms.iter().copied()).collect();
    times.sort_unstable();
    times.dedup();
    let mut all = Series::new(first.table);
    let are_thinned = all_series.iter().any(|series| series.spreads.is_some());
    for (column, definition) in first.table.columns.iter().enumerate() {
        // Nodes charge energy at different times: the sum grows between them, too.
        let is_between = are_thinned || is_charged(first.table, column);
        let mut held: Vec<(Held, Option<Thinned<'_>>)> = all_series
            .iter()
            .map(|series| {
                (Held::new(series, column), is_between.then(|| Thinned::new(series, column, gap_ms)))
            })
            .collect();
        let cells = times.iter().map(|&time_ms| {
            let mut known = Vec::new();
            for (series, (held, thinned)) in all_series.iter().zip(&mut held) {
                held.advance(series, column, time_ms);
                let between = thinned.as_mut().and_then(|thinned| thinned.value(time_ms));
                known.extend(between.or_else(|| held.value(time_ms, definition, gap_ms)));
            }
            combined(definition.across, &known)
        });
        all.columns[column] = cells.collect();
    }
    all.times_ms = times;
    if are_thinned {
        thinned::spreads(all_series, &mut all, gap_ms);
    }
    all
}

/// What one node last showed.
struct Held {
    next: usize,
    /// Its first value of all.
    first: Option<i64>,
    /// Its last sample, whatever that has.
    seen_ms: i64,
    last: Option<(i64, i64)>,
}

impl Held {
    fn new(series: &Series, column: usize) -> Held {
        let first = series.columns[column].iter().copied().find(|&cell| cell != MISSING);
        Held { next: 0, first, seen_ms: 0, last: None }
    }

    fn advance(&mut self, series: &Series, column: usize, time_ms: i64) {
        while series.times_ms.get(self.next).is_some_and(|&at_ms| at_ms <= time_ms) {
            let cell = series.columns[column][self.next];
            self.seen_ms = series.times_ms[self.next];
            if cell != MISSING {
                self.last = Some((series.times_ms[self.next], cell));
            }
            self.next += 1;
        }
    }

    fn value(&self, time_ms: i64, column: &Column, gap_ms: i64) -> Option<i64> {
        let Some((at_ms, cell)) = self.last else {
            let is_summed = column.kind == Kind::Counter && column.across != Across::Max;
            return self.first.filter(|_| is_summed);
        };
        // Not every sample has every column.
        let is_level = time_ms - self.seen_ms <= gap_ms && time_ms - at_ms <= gap_ms.max(SPARSE_MS);
        (column.kind == Kind::Counter || is_level).then_some(cell)
    }
}

fn combined(across: Across, known: &[i64]) -> i64 {
    if known.is_empty() {
        return MISSING;
    }
    match across {
        Across::Sum => known.iter().fold(0_i64, |sum, &cell| sum.saturating_add(cell)),
        Across::Max => known.iter().copied().max().unwrap_or(MISSING),
        Across::Mean => known.iter().fold(0_i64, |sum, &cell| sum.saturating_add(cell)) / known.len() as i64,
    }
}

#[cfg(test)]
#[path = "cluster_job_tests.rs"]
mod tests;
