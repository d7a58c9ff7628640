//! The series of a node, a page at a time: the cost of a page depends on its samples, not on the time they span.

use std::collections::{BTreeMap, HashMap};

use met_core::Table;
use met_core::series::Series;
use met_query::query::NodeSpan;
use met_store::cluster::Log;
use met_store::{NodePart, Reader, StoreError, node_on};
use met_wire::batch::{NodeBatch, Subject};

use super::cluster_writer::gather;
use super::view::{ClusterView, between};

/// The span read first; it doubles as long as the page has room, since the density of samples is unknown.
const SPAN_MS: i64 = 900_000;
const SPAN_MS_MAX: i64 = 86_400_000;

/// What a node has, moved and not yet moved.
struct Kept<'v> {
    node: &'v str,
    tables: &'v [&'static Table],
    store: Reader,
    waiting: BTreeMap<NodePart, Series>,
}

/// The series of all parts of a node, from and to these times: the first `samples_max` of them, and more only if
/// they are of one moment.
pub(super) fn node_page(
    view: &ClusterView,
    node: &str,
    tables: &[&'static Table],
    (begin_ms, end_ms): (i64, i64),
    samples_max: usize,
) -> Result<NodeSpan, StoreError> {
    // What waits first: what is moved between the two is then in both and not in neither.
    let waiting = waiting(&Log::open_for_reading(&view.state)?, node, tables)?;
    let store = Reader::open_without_space(&view.state, &view.backends)?;
    let kept = Kept { node, tables, store, waiting };
    let mut all_series: BTreeMap<NodePart, Series> = BTreeMap::new();
    let (mut from_ms, mut span_ms) = (begin_ms, SPAN_MS);
    let mut before = 0;
    while from_ms <= end_ms {
        let to_ms = end_ms.min(from_ms.saturating_add(span_ms - 1));
        kept.add(from_ms, to_ms, &mut all_series)?;
        let samples = all_series.values().map(Series::len).sum();
        if samples >= samples_max {
            return Ok(cut(all_series, samples_max, to_ms));
        }
        let next_ms = to_ms.saturating_add(1);
        // Where there was nothing there may be nothing for years.
        let first_ms = if samples == before { kept.first_ms(next_ms, end_ms)? } else { Some(next_ms) };
        let Some(first_ms) = first_ms.filter(|_| to_ms < end_ms) else { break };
        (from_ms, span_ms, before) = (first_ms, SPAN_MS_MAX.min(span_ms * 2), samples);
    }
    Ok(NodeSpan { all_series: all_series.into_iter().collect(), until_ms: None })
}

fn waiting(
    log: &Log,
    node: &str,
    tables: &[&'static Table],
) -> Result<BTreeMap<NodePart, Series>, StoreError> {
    let named = |name: &str| tables.iter().find(|table| table.name == name).copied();
    let mut found = HashMap::new();
    for (_, data) in log.waiting(node)? {
        let Ok(mut batch) = NodeBatch::unpack(&data) else { continue };
        batch.pieces.retain(|piece| matches!(piece.subject, Subject::Node(_)));
        gather(batch.pieces, named, &mut found);
    }
    let part = |((subject, table), series): ((Subject, &str), Series)| match subject {
        Subject::Node(part) => Some((NodePart { table: table.to_owned(), part }, series)),
        _ => None,
    };
    Ok(found.into_iter().filter_map(part).collect())
}

impl Kept<'_> {
    /// From when on there may be samples, if there are any.
    fn first_ms(&self, begin_ms: i64, end_ms: i64) -> Result<Option<i64>, StoreError> {
        let stored = self.store.node_begin_on(self.node, self.tables, begin_ms, end_ms)?;
        let later = |series: &Series| {
            let at = series.times_ms.partition_point(|&time| time < begin_ms);
            series.times_ms.get(at).copied().filter(|&time| time <= end_ms)
        };
        Ok(self.waiting.values().filter_map(later).chain(stored).min())
    }

    /// Adds what there is from and to these times, which are later than what is there.
    fn add(
        &self,
        begin_ms: i64,
        end_ms: i64,
        all_series: &mut BTreeMap<NodePart, Series>,
    ) -> Result<(), StoreError> {
        let mut add = |part: NodePart, more: Series| {
            if !more.is_empty() {
                all_series.entry(part).or_insert_with(|| Series::new(more.table)).append(&more);
            }
        };
        for part in self.store.node_parts_on(self.node, self.tables, begin_ms, end_ms)? {
            let Some(table) = self.tables.iter().find(|table| table.name == part.table) else { continue };
            let series =
                self.store.series_between(&node_on(self.node, &part.part), table, begin_ms, end_ms)?;
            add(part, series);
        }
        for (part, series) in &self.waiting {
            add(part.clone(), between(series, begin_ms, end_ms));
        }
        Ok(())
    }
}

/// The first samples, all of a moment or none; these series are whole up to `whole_ms`.
fn cut(all_series: BTreeMap<NodePart, Series>, samples_max: usize, whole_ms: i64) -> NodeSpan {
    let mut times_ms: Vec<i64> = all_series.values().flat_map(|series| &series.times_ms).copied().collect();
    times_ms.sort_unstable();
    let until_ms = match (times_ms.first(), times_ms.get(samples_max)) {
        (Some(first_ms), Some(beyond_ms)) => (beyond_ms - 1).max(*first_ms),
        _ => whole_ms,
    };
    let first = |(part, series): (NodePart, Series)| (part, between(&series, i64::MIN, until_ms));
    let all_series = all_series.into_iter().map(first).filter(|(_, series)| !series.is_empty()).collect();
    NodeSpan { all_series, until_ms: Some(until_ms) }
}
