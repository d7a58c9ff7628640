//! Everything that a source has, page by page.

use std::collections::BTreeMap;

use anyhow::Result;
use met_core::Table;
use met_core::job::Record;
use met_core::series::Series;
use met_store::{NodePart, PROCESS_ROWS, Page};

use super::{CALLER, JobRef, JobsFilter, PROCESS_JOBS, PageAsk, Source, filter, now_ns};
use crate::query::{PAGE_SAMPLES, Query};
use crate::viewer::Viewer;

/// All jobs that fit, page by page.
pub(super) fn every_page(
    source: &dyn Source,
    filter: &JobsFilter,
    warnings: &mut Vec<String>,
) -> Result<Vec<Record>> {
    Ok(pages(source, filter, warnings)?.into_iter().reduce(joined).unwrap_or_default())
}

/// The same page by page.
pub(super) fn pages(
    source: &dyn Source,
    filter: &JobsFilter,
    warnings: &mut Vec<String>,
) -> Result<Vec<Vec<Record>>> {
    let wanted = filter.page.limit.unwrap_or(usize::MAX);
    let mut page = JobsFilter { page: PageAsk { paged: true, ..filter.page.clone() }, ..filter.clone() };
    let (mut pages, mut count) = (Vec::new(), 0);
    loop {
        page.page.limit = filter.page.limit.map(|limit| limit - count);
        let (Page { jobs, next }, said) = source.jobs(CALLER, &page)?;
        count += jobs.len();
        pages.push(jobs);
        warnings.extend(said);
        match next {
            // One that does not get on is not asked for ever.
            Some(next) if count < wanted && page.continues_at(&next) => page.page.after = Some(next),
            _ => return Ok(pages),
        }
    }
}

/// Records are large: where there is one list, none is moved.
pub(super) fn joined<T>(mut jobs: Vec<T>, more: Vec<T>) -> Vec<T> {
    if jobs.is_empty() {
        return more;
    }
    jobs.extend(more);
    jobs
}

/// The newest job of a process that is meant, if one of [`PROCESS_JOBS`] is.
pub(super) fn newest_of_process(
    source: &dyn Source,
    pid: u32,
    is_meant: impl Fn(&Record) -> bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<Record>> {
    let limit = Some(filter::PAGE_JOBS);
    let mut page = JobsFilter {
        pid: Some(pid),
        page: PageAsk { limit, paged: true, ..PageAsk::default() },
        ..JobsFilter::default()
    };
    for _ in 0..PROCESS_JOBS / PROCESS_ROWS {
        let (Page { jobs, next }, said) = source.jobs(CALLER, &page)?;
        warnings.extend(said);
        let found = jobs.into_iter().find(&is_meant);
        if found.is_some() || next.is_none() {
            return Ok(found.into_iter().collect());
        }
        page.page.after = next;
    }
    Ok(Vec::new())
}

/// All jobs that a reference may mean, page by page.
pub fn every_found<Q: Query + ?Sized>(source: &Q, viewer: &Viewer, job: &JobRef) -> Result<Vec<Record>> {
    let mut page = source.find(viewer, job, None)?;
    let mut found = Vec::new();
    loop {
        let gets_on = !page.jobs.is_empty();
        found.append(&mut page.jobs);
        match page.next.filter(|_| gets_on) {
            Some(after) => page = source.find(viewer, job, Some(&after))?,
            None => return Ok(found),
        }
    }
}

/// All samples after a time, page by page, up to those of about now: of a job that runs there are always newer ones.
pub(super) fn every_sample(
    table: &'static Table,
    mut after_ms: i64,
    page: impl Fn(i64) -> Result<Series>,
) -> Result<Series> {
    let asked_ms = now_ns() / 1_000_000;
    let mut whole = Series::new(table);
    loop {
        let series = page(after_ms)?;
        // A source that does not get on is not asked for ever.
        let Some(&last_ms) = series.times_ms.last().filter(|&&last_ms| last_ms > after_ms) else { break };
        let count = series.len();
        // Mostly the first page has all of them, which are not copied.
        if whole.is_empty() {
            whole = series;
        } else {
            whole.append(&series);
        }
        // The clock of another machine may be ahead: a full page is followed by another one.
        if last_ms >= asked_ms && count < PAGE_SAMPLES {
            break;
        }
        after_ms = last_ms;
    }
    Ok(whole)
}

pub(super) fn every_span(
    source: &dyn Source,
    node: &str,
    after_ms: i64,
) -> Result<BTreeMap<NodePart, Series>> {
    let mut all_series: BTreeMap<NodePart, Series> = BTreeMap::new();
    let mut next_ms = Some(after_ms);
    while let Some(after_ms) = next_ms {
        let Some(span) = source.node_series(node, after_ms)? else { break };
        for (part, series) in span.all_series {
            all_series.entry(part).or_insert_with(|| Series::new(series.table)).append(&series);
        }
        // A server that does not get on is not asked for ever.
        next_ms = span.until_ms.filter(|&until_ms| until_ms > after_ms);
    }
    Ok(all_series)
}

/// The machine of a daemon or of the files.
pub(super) fn own_series(source: &dyn Source, after_ms: i64) -> Result<BTreeMap<NodePart, Series>> {
    let mut all_series = BTreeMap::new();
    for part in source.node_parts(after_ms.saturating_add(1))?.unwrap_or_default() {
        // What a newer or older program measured has no name here.
        let Some(table) = met_sources::table(&part.table) else { continue };
        let page = |after_ms| {
            Ok(source.node_part_series(table, &part.part, after_ms)?.unwrap_or_else(|| Series::new(table)))
        };
        let series = every_sample(table, after_ms, page)?;
        all_series.insert(part, series);
    }
    Ok(all_series)
}
