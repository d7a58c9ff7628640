//! Whole series for charts and answers: read page by page and thinned meanwhile, so that none needs much memory.

use std::collections::BTreeMap;
use std::time::Duration;

use met_core::job::Record;
use met_core::series::Series;
use met_core::{JOB, Table, gpu};
use met_insight::answers::GPUS_MAX;
use met_query::query::Query;
use met_store::NodePart;

use crate::api::Visible;
use crate::problem::Problem;

/// Values of all series of a node in one answer: columns by points.
pub(crate) const NODE_VALUES_MAX: usize = 1_000_000;

/// Samples of a series of a job that are held; a longer one is thinned.
const JOB_SAMPLES_KEPT: usize = 20_000;
/// The least period of samples, for what is a gap.
pub(crate) const SAMPLED_EVERY: Duration = Duration::from_secs(1);

pub(crate) type Parts = BTreeMap<NodePart, Series>;

/// All samples within a time, and one after it. More than twice `keep` are thinned to as many, which preserves means and
/// peaks.
pub(crate) fn whole<E>(
    table: &'static Table,
    (begin_ms, end_ms): (i64, i64),
    keep: usize,
    page: impl Fn(i64) -> Result<Series, E>,
) -> Result<Series, E> {
    let mut all = Series::new(table);
    let mut after_ms = begin_ms.saturating_sub(1);
    loop {
        let mut more = page(after_ms)?;
        let Some(&last_ms) = more.times_ms.last().filter(|&&last_ms| last_ms > after_ms) else {
            return Ok(all);
        };
        after_ms = last_ms;
        // One sample after the end: the time before it is part of the last span.
        let count = more.times_ms.partition_point(|&time_ms| time_ms < end_ms);
        more.truncate((count + 1).min(more.len()));
        // Mostly the first page has all of them, which are not copied.
        all = if all.is_empty() { thinned(more, keep) } else { grown(all, &more, keep) };
        if last_ms >= end_ms {
            return Ok(all);
        }
    }
}

fn grown(mut all: Series, more: &Series, keep: usize) -> Series {
    all.append(more);
    thinned(all, keep)
}

fn thinned(all: Series, keep: usize) -> Series {
    if all.len() > keep.saturating_mul(2) { all.at_most(keep) } else { all }
}

/// A series of a job within a time, as far as the viewer sees the job.
pub(crate) fn of_job(
    visible: &Visible<'_>,
    record: &Record,
    table: &'static Table,
    part: &str,
    window_ms: (i64, i64),
) -> anyhow::Result<Series> {
    let (query, viewer, key) = (visible.query, visible.viewer, &record.key);
    let is_gpu = table.name == gpu::device::TABLE.name;
    // All GPUs together are held.
    let of_gpus = JOB_SAMPLES_KEPT / record.gpus.len().clamp(1, GPUS_MAX);
    let kept = if is_gpu { of_gpus } else { JOB_SAMPLES_KEPT };
    whole(table, window_ms, kept, |after_ms| match table.name {
        name if name == JOB.name && part.is_empty() => query.series(viewer, key, after_ms),
        _ if is_gpu => query.gpu_series(viewer, key, part, after_ms),
        _ => query.job_series(viewer, key, table, part, after_ms),
    })
}

/// The series of a node within a time: of a daemon its own, of a server those of this name. `is_wanted` is asked before
/// any sample of a part is kept.
pub(crate) fn of_node(
    query: &dyn Query,
    node: &str,
    window_ms: (i64, i64),
    keep: usize,
    mut is_wanted: impl FnMut(&NodePart, &'static Table) -> Result<bool, Problem>,
) -> Result<Parts, Problem> {
    if let Some(own) = own(query, window_ms, keep, &mut is_wanted)? {
        return Ok(own);
    }
    let (begin_ms, end_ms) = window_ms;
    let mut parts = Parts::new();
    let mut after_ms = begin_ms.saturating_sub(1);
    while let Some(span) = query.node_series(node, after_ms).map_err(|error| Problem::failed(&error))? {
        for (part, series) in span.all_series {
            let before = match parts.remove(&part) {
                Some(before) => before,
                None if is_wanted(&part, series.table)? => Series::new(series.table),
                None => continue,
            };
            parts.insert(part, grown(before, &series, keep));
        }
        match span.until_ms {
            Some(until_ms) if until_ms > after_ms && until_ms < end_ms => after_ms = until_ms,
            _ => break,
        }
    }
    Ok(parts)
}

/// The series of the machine that answers; `None` from a server.
pub(crate) fn own(
    query: &dyn Query,
    window_ms: (i64, i64),
    keep: usize,
    mut is_wanted: impl FnMut(&NodePart, &'static Table) -> Result<bool, Problem>,
) -> Result<Option<Parts>, Problem> {
    let failed = |error: anyhow::Error| Problem::failed(&error);
    let Some(known) = query.node_parts(window_ms.0).map_err(failed)? else { return Ok(None) };
    let mut parts = Parts::new();
    for part in known {
        // What a newer or older program measured has no name here.
        let Some(table) = met_sources::table(&part.table) else { continue };
        if is_wanted(&part, table)? {
            let page = |after_ms| {
                let series = query.node_part_series(table, &part.part, after_ms).map_err(failed)?;
                Ok(series.unwrap_or_else(|| Series::new(table)))
            };
            let series = whole(table, window_ms, keep, page)?;
            parts.insert(part, series);
        }
    }
    Ok(Some(parts))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use met_core::job_table::{CPU, MEMORY_NEEDED};
    use met_core::{JOB, MISSING};
    use met_insight::resample;

    use super::*;

    const PAGE: i64 = 5_000;

    /// A page of a job that is sampled every second for a week.
    fn week(after_ms: i64) -> Series {
        let mut series = Series::new(&JOB);
        let first = after_ms.max(-1).div_euclid(1000) + 1;
        for second in (first..604_800).take(PAGE as usize) {
            let mut cells = vec![MISSING; JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED]) = (second * 2_000_000_000, second);
            series.push(second * 1000, &cells);
        }
        series
    }

    #[test]
    fn a_week_of_seconds_is_held_thinned_and_to_its_end() {
        let series =
            whole(&JOB, (i64::MIN, i64::MAX), 2_000, |after_ms| Ok::<_, Infallible>(week(after_ms))).unwrap();
        assert!(series.len() <= 4_000 + PAGE as usize, "{}", series.len());
        assert_eq!(series.times_ms.last(), Some(&604_799_000));
        let bins = resample::bins(&series, CPU, 7, 25_000);
        assert!(
            bins.iter().all(|bin| bin.is_some_and(|bin| (bin.mean / 2e9 - 1.0).abs() < 0.01)),
            "{bins:?}"
        );
    }

    #[test]
    fn reading_begins_and_ends_with_the_window() {
        let pages = Cell::new(0);
        let page = |after_ms| {
            pages.set(pages.get() + 1);
            Ok::<_, Infallible>(week(after_ms))
        };
        let series = whole(&JOB, (600_000_000, 600_010_000), 2_000, page).unwrap();
        assert_eq!((series.times_ms[0], series.times_ms.last().copied()), (600_000_000, Some(600_010_000)));
        assert_eq!(pages.get(), 1);
    }
}
