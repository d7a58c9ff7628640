//! Questions to a server, answered from the store, from what waits, and from how running jobs stand.

use std::time::{Duration, Instant};

use anyhow::Result;
use met_core::cadence::WANTED_JOBS_MAX;
use met_core::grouping::{Membership, Sum, SumSpan};
use met_core::job::{JobKey, Record, State};
use met_core::listing::Cursor;
use met_core::queue::Queue;
use met_core::reaction::Reaction;
use met_core::series::Series;
use met_core::usage::{Usage, UsageAsk};
use met_core::{JOB, Table, gpu};
use met_query::jobs::{self, JobRef, JobsFilter};
use met_query::machine_now::MachineNow;
use met_query::protocol::NodeStatus;
use met_query::query::{
    NodeSpan, PAGE_SAMPLES, Query, every_job, find_in, nothing, on_node, running, usage_in, warn_unreadable,
};
use met_query::queues;
use met_query::react;
use met_query::sample_more::SamplesMore;
use met_query::viewer::Viewer;
use met_store::cluster::Node;
use met_store::{Page, StoreError};

use super::cluster_writer::now_ns;
use super::node_series::node_page;
use super::view::ClusterView;

/// A node that sent nothing for this long is late.
const LATE_NS: i64 = 180_000_000_000;
/// Of all parts of a node together, which have fewer columns than a job.
const NODE_PAGE_SAMPLES: usize = 100_000;
/// A list of so many jobs fits a screen that a user watches. A longer one is read by a program, or counted.
const WATCHED_JOBS_MAX: usize = 100;
/// By how much the clock of a node may be ahead of this one.
const AHEAD_MS: i64 = 6 * 3_600_000;

impl ClusterView {
    fn visible(&self, viewer: &Viewer, key: &JobKey) -> Result<Option<Record>, StoreError> {
        Ok(self.ask(|store| store.get(key))?.filter(|record| viewer.sees(record)))
    }
}

impl Query for ClusterView {
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<(Page, Vec<String>)> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(nothing()) };
        let (mut page, unreadable) = self.page(&filter.to_store_for_reply())?;
        filter.retain_states(&mut page.jobs);
        if filter.page.limit.is_some_and(|limit| limit <= WATCHED_JOBS_MAX) {
            self.note_interest(viewer, &page.jobs);
        }
        Ok((page, warn_unreadable(viewer, &unreadable)))
    }

    fn find(&self, viewer: &Viewer, job: &JobRef, after: Option<&Cursor>) -> Result<Page> {
        let found = self.ask(|store| find_in(store, viewer, job))?;
        let (found, next) = jobs::page_of(found, after);
        self.note_interest(viewer, &found);
        Ok(Page { jobs: self.with_figures(found)?, next })
    }

    fn series(&self, viewer: &Viewer, key: &JobKey, after_ms: i64) -> Result<Series> {
        let Some(record) = self.visible(viewer, key)? else { return Ok(Series::new(&JOB)) };
        self.note_interest(viewer, [&record]);
        let mut series = self.series_of_job_after(key, after_ms)?;
        series.truncate(PAGE_SAMPLES);
        Ok(series)
    }

    fn job_series(
        &self,
        viewer: &Viewer,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        after_ms: i64,
    ) -> Result<Series> {
        let Some(record) = self.visible(viewer, key)? else { return Ok(Series::new(table)) };
        self.note_interest(viewer, [&record]);
        let mut series = match table.name == JOB.name {
            true => self.series_on_node(key, part, after_ms)?,
            false => self.series_after(key, table, part, after_ms)?,
        };
        series.truncate(PAGE_SAMPLES);
        Ok(series)
    }

    fn gpu_series(&self, viewer: &Viewer, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Series> {
        let nothing = Series::new(&gpu::device::TABLE);
        let Some(record) = self.visible(viewer, key)? else { return Ok(nothing) };
        let held = self.ask(|store| jobs::held(store, key, uuid, after_ms))?;
        let Some((begin_ms, end_ms)) = held else { return Ok(nothing) };
        let mut series = self.series_of_gpu(&record.nodes, uuid, begin_ms, end_ms)?;
        series.truncate(PAGE_SAMPLES);
        Ok(series)
    }

    fn memberships(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<Vec<Membership>> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(Vec::new()) };
        Ok(self.ask(|store| store.memberships(&filter.to_store_whole()))?)
    }

    fn sums(&self, viewer: &Viewer, filter: &JobsFilter, span: &SumSpan) -> Result<Vec<Sum>> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(Vec::new()) };
        Ok(self.ask(|store| store.sums(&filter.to_store_whole(), span))?)
    }

    fn usage(&self, viewer: &Viewer, ask: &UsageAsk) -> Result<Usage> {
        let live = every_job(self, viewer, &running())?;
        let mut usage = None;
        self.ask(|store| {
            usage = Some(usage_in(store, viewer, ask, &live));
            Ok(())
        })?;
        usage.unwrap_or_else(|| Ok(Usage::default()))
    }

    fn reactions(&self, viewer: &Viewer) -> Result<Vec<Reaction>> {
        Ok(react::seen(viewer, self.ask(|store| met_store::reactions(store))?))
    }

    fn queues(&self, viewer: &Viewer) -> Result<Vec<Queue>> {
        Ok(self.ask(|store| queues::seen(viewer, store))?)
    }

    fn nodes(&self, viewer: &Viewer) -> Result<Vec<NodeStatus>> {
        let running = JobsFilter { states: vec![State::Running], ..JobsFilter::default() };
        let running = match viewer.restrict(&running) {
            Some(running) => self.ask(|store| store.jobs(&running.to_store()))?,
            None => Vec::new(),
        };
        let now_ns = now_ns();
        let is_late = |node: &Node| node.seen_ns.is_none_or(|seen_ns| now_ns - seen_ns > LATE_NS);
        let status = |node: Node| NodeStatus {
            jobs: on_node(&running, &node.name),
            late: is_late(&node),
            now: if is_late(&node) {
                MachineNow::default()
            } else {
                self.latest.machine(&node.name, now_ns / 1_000_000)
            },
            spool: self.latest.spool(&node.name).filter(|_| !is_late(&node)),
            problem: self.incompatible.of(&node.name),
            health: self.latest.health(&node.name),
            name: node.name,
            seen_ns: node.seen_ns,
            version: node.version,
            cpus: node.cpus,
            memory_bytes: node.memory_bytes,
            clock_offset_ns: node.clock_offset_ns,
            dropped_samples: node.dropped_samples,
            free: Default::default(),
        };
        Ok(self.known_nodes()?.into_iter().map(status).collect())
    }

    fn node_series(&self, node: &str, after_ms: i64) -> Result<Option<NodeSpan>> {
        if !self.knows_node(node)? {
            return Ok(None);
        }
        let span_ms = (after_ms.saturating_add(1).max(0), (now_ns() / 1_000_000).saturating_add(AHEAD_MS));
        Ok(Some(node_page(self, node, &met_sources::catalogue(), span_ms, NODE_PAGE_SAMPLES)?))
    }
}

impl SamplesMore for ClusterView {
    fn sample_more(&self, viewer: &Viewer, keys: &[JobKey], wanted_for: Duration) -> Result<Vec<JobKey>> {
        let mut watched = Vec::new();
        for key in keys.iter().take(WANTED_JOBS_MAX) {
            if self.visible(viewer, key)?.is_some_and(|record| record.state.is_live()) {
                let parts = self.parts_of(key)?;
                let is_taken = self.watching.watch_for(viewer, &parts, wanted_for, Instant::now());
                watched.extend(is_taken.then(|| key.clone()));
            }
        }
        Ok(watched)
    }
}
