//! All jobs of the caller as one [`Query`]: what the commands show, for pages.

use std::cmp::Ordering;

use anyhow::Result;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::listing::{Cursor, Order};
use met_core::queue::Queue;
use met_core::reaction::Reaction;
use met_core::series::Series;
use met_core::usage::{Usage, UsageAsk};
use met_core::{JOB, Table, belief, gpu};
use met_store::{NodePart, Page};

use super::{AllJobs, JobKey, JobRef, JobsFilter, Source, every_found, joint_usage, merge, now_ns};
use crate::annotate::{self, Annotates};
use crate::protocol::NodeStatus;
use crate::query::{NodeSpan, Query};
use crate::queues;
use crate::setting::Setting;
use crate::viewer::Viewer;

/// Each request goes to the daemons that run at that moment.
pub struct OwnJobs {
    setting: Setting,
}

impl OwnJobs {
    pub fn new(setting: Setting) -> OwnJobs {
        OwnJobs { setting }
    }

    fn sources(&self) -> Result<Vec<Box<dyn Source>>> {
        Ok(AllJobs::open(&self.setting)?.sources)
    }

    /// From the first source that has one.
    fn first(&self, table: &'static Table, ask: impl Fn(&dyn Source) -> Result<Series>) -> Result<Series> {
        for source in self.sources()? {
            let series = ask(source.as_ref())?;
            if !series.is_empty() {
                return Ok(series);
            }
        }
        Ok(Series::new(table))
    }
}

impl Query for OwnJobs {
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<(Page, Vec<String>)> {
        let (mut pages, mut warnings) = (Vec::new(), Vec::new());
        let sources = self.sources()?;
        for source in &sources {
            match source.jobs(viewer, filter) {
                Ok((page, said)) => {
                    pages.push(page);
                    warnings.extend(said);
                }
                // One that stops answering is left out, as long as there is another.
                Err(error) if sources.len() > 1 => warnings.push(format!("{error:#}; its jobs are missing")),
                Err(error) => return Err(error),
            }
        }
        let order = filter.order();
        Ok((joined(pages, order, filter), warnings))
    }

    fn find(&self, viewer: &Viewer, job: &JobRef, _: Option<&Cursor>) -> Result<Page> {
        let mut found = Vec::new();
        for source in self.sources()? {
            found.extend(every_found(source.as_ref(), viewer, job)?);
        }
        Ok(Page { jobs: merge(found), next: None })
    }

    fn series(&self, viewer: &Viewer, key: &JobKey, after_ms: i64) -> Result<Series> {
        self.first(&JOB, |source| source.series(viewer, key, after_ms))
    }

    fn job_series(
        &self,
        viewer: &Viewer,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        after_ms: i64,
    ) -> Result<Series> {
        self.first(table, |source| source.job_series(viewer, key, table, part, after_ms))
    }

    fn gpu_series(&self, viewer: &Viewer, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Series> {
        self.first(&gpu::device::TABLE, |source| source.gpu_series(viewer, key, uuid, after_ms))
    }

    fn usage(&self, viewer: &Viewer, ask: &UsageAsk) -> Result<Usage> {
        joint_usage::of(&self.sources()?, viewer, ask)
    }

    fn reactions(&self, viewer: &Viewer) -> Result<Vec<Reaction>> {
        let mut all = Vec::new();
        for source in self.sources()? {
            all.extend(source.reactions(viewer)?);
        }
        Ok(all)
    }

    fn queues(&self, viewer: &Viewer) -> Result<Vec<Queue>> {
        let mut all = Vec::new();
        for source in self.sources()? {
            // An earlier version has none.
            all.extend(source.queues(viewer).unwrap_or_default());
        }
        Ok(queues::newest(all))
    }

    /// The nodes of a server, or this machine.
    fn nodes(&self, viewer: &Viewer) -> Result<Vec<NodeStatus>> {
        let mut nodes = Vec::new();
        for source in self.sources()? {
            nodes = source.nodes(viewer)?;
        }
        if nodes.is_empty() && self.setting.server.is_none() {
            let facts = self.setting.host.facts();
            nodes.push(NodeStatus {
                name: facts.hostname.clone(),
                seen_ns: Some(now_ns()),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                cpus: Some(i64::from(facts.cpu_count)),
                memory_bytes: facts.memory_total_bytes,
                ..NodeStatus::default()
            });
        }
        Ok(nodes)
    }

    fn node_parts(&self, since_ms: i64) -> Result<Option<Vec<NodePart>>> {
        if self.setting.server.is_some() {
            return Ok(None);
        }
        let mut parts = Vec::new();
        for source in self.sources()? {
            parts.extend(source.node_parts(since_ms)?.unwrap_or_default());
        }
        parts.sort_unstable();
        parts.dedup();
        Ok(Some(parts))
    }

    /// What a system daemon kept is preferred: it is the last source.
    fn node_part_series(&self, table: &'static Table, part: &str, after_ms: i64) -> Result<Option<Series>> {
        for source in self.sources()?.iter().rev() {
            let series = source.node_part_series(table, part, after_ms)?;
            if series.as_ref().is_some_and(|series| !series.is_empty()) {
                return Ok(series);
            }
        }
        Ok(Some(Series::new(table)))
    }

    fn node_series(&self, node: &str, after_ms: i64) -> Result<Option<NodeSpan>> {
        for source in self.sources()? {
            if let Some(span) = source.node_series(node, after_ms)? {
                return Ok(Some(span));
            }
        }
        Ok(None)
    }
}

impl Annotates for OwnJobs {
    fn annotate(&self, viewer: &Viewer, key: &JobKey, change: &AnnotationChange) -> Result<Annotation> {
        let mut all = AllJobs::open(&self.setting)?;
        if !viewer.sees_all() {
            let job =
                JobRef::Id { manager: Some(key.manager.clone()), id: key.id.clone(), node: None, user: None };
            let found = self.find(viewer, &job, None)?.jobs.into_iter().find(|record| record.key == *key);
            annotate::permit(viewer, found.as_ref())?;
        }
        all.annotate(key, change)
    }
}

/// The jobs of several sources in one list. Behind the place where the first of them goes on, jobs of that one would be
/// missing.
fn joined(pages: Vec<Page>, order: Order, filter: &JobsFilter) -> Page {
    let nearer = |one: Cursor, other: Cursor| match order.compare(&one, &other) {
        Ordering::Greater => other,
        _ => one,
    };
    let mut next = pages.iter().filter_map(|page| page.next.clone()).reduce(nearer);
    let mut jobs = belief::believe_all(pages.into_iter().flat_map(|page| page.jobs).collect());
    order.sort(&mut jobs);
    if let Some(next) = &next {
        jobs.retain(|record| !order.is_behind(record, next));
    }
    let limit = filter.page.limit.unwrap_or(usize::MAX);
    if jobs.len() > limit {
        jobs.truncate(limit);
        next = order.next(filter.page.after.as_ref(), &jobs);
    } else {
        next = next.map(|next| order.begun(next, &jobs));
    }
    Page { jobs, next }
}

#[cfg(test)]
mod tests {
    use super::super::PageAsk;
    use super::*;

    fn page(ids: &[u32], has_more: bool) -> Page {
        let job = |&id: &u32| {
            let mut record = met_core::sample::full(id, "train");
            record.start_ns = Some(i64::from(id));
            record
        };
        let jobs: Vec<_> = ids.iter().map(job).collect();
        Page { next: jobs.last().filter(|_| has_more).map(Cursor::of), jobs }
    }

    fn ids(page: &Page) -> Vec<&str> {
        page.jobs.iter().map(|record| record.key.id.as_str()).collect()
    }

    fn limited(limit: Option<usize>) -> JobsFilter {
        JobsFilter { page: PageAsk { limit, ..PageAsk::default() }, ..JobsFilter::default() }
    }

    #[test]
    fn a_list_of_two_sources_has_no_holes() {
        let order = Order::default();
        let first = joined(vec![page(&[9, 7, 5], true), page(&[8, 2], false)], order, &limited(Some(10)));
        assert_eq!(ids(&first), ["9", "8", "7", "5"], "2 comes after what the first source has not said yet");
        assert_eq!(first.next, Some(Cursor::of(&page(&[5], false).jobs[0])));
        let short = joined(vec![page(&[9, 7, 5], false), page(&[8, 2], false)], order, &limited(Some(2)));
        assert_eq!(ids(&short), ["9", "8"]);
        assert_eq!(short.next, Some(Cursor::of(&page(&[8], false).jobs[0])));
        let whole = joined(vec![page(&[9], false), page(&[9, 2], false)], order, &limited(None));
        assert_eq!(ids(&whole), ["9", "2"], "a job that both have is one");
        assert!(whole.next.is_none());
    }
}
