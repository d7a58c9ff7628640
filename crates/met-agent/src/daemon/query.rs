//! The daemon as a [`Query`]: what is stored, what is not written yet, and the last known figures of running jobs. A
//! reply waits for no tick and for no disk that is written to; but a series waits for the sampling thread, 100 ms at most,
//! if that is in a tick: only the thread has the samples that are not written yet.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use met_core::annotation::Annotation;
use met_core::belief;
use met_core::grouping::{Membership, Sum, SumSpan};
use met_core::job::{JobKey, Record};
use met_core::job_table::CPU;
use met_core::listing::{self, Cursor};
use met_core::node_health::Spool;
use met_core::queue::Queue;
use met_core::reaction::Reaction;
use met_core::series::Series;
use met_core::usage::{Usage, UsageAsk};
use met_core::{JOB, Table, gpu};
use met_store::{Filter, NodePart, Page};

use super::found_jobs;
use super::registry::is_found;
use super::service::Service;
use super::unflushed_samples::{self, Wanted};
use met_query::jobs::{self, JobRef, JobsFilter};
use met_query::live;
use met_query::protocol::NodeStatus;
use met_query::query::{self, PAGE_SAMPLES, Query};
use met_query::queues;
use met_query::react;
use met_query::viewer::Viewer;

/// The daemon as a [`Query`] for the time of one answer. Its connection to the store is of one thread, so threads that
/// share a `DaemonQuery` take turns.
pub(super) struct DaemonQuery<'a>(Mutex<&'a mut Service>);

impl<'a> DaemonQuery<'a> {
    pub(super) fn of(service: &'a mut Service) -> DaemonQuery<'a> {
        DaemonQuery(Mutex::new(service))
    }

    fn service(&self) -> MutexGuard<'_, &'a mut Service> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Query for DaemonQuery<'_> {
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<(Page, Vec<String>)> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(query::nothing()) };
        let service = self.service();
        let stored = filter.to_store_for_reply();
        let mut page = service.recorder.writer.page_with(&stored, |running| add_live(&service, running))?;
        let warnings = damage(&service, viewer);
        add_unwritten(&service, &stored, &mut page);
        if !stored.needs_figures() {
            add_live(&service, &mut page.jobs);
        }
        filter.retain_states(&mut page.jobs);
        Ok((page, warnings))
    }

    fn find(&self, viewer: &Viewer, job: &JobRef, after: Option<&Cursor>) -> Result<Page> {
        let service = self.service();
        let mut found = query::find_in(&service.recorder.writer, viewer, job)?;
        add_unwritten_meant(&service, viewer, job, &mut found);
        let (mut jobs, next) = jobs::page_of(found, after);
        add_live(&service, &mut jobs);
        Ok(Page { jobs, next })
    }

    fn series(&self, viewer: &Viewer, key: &JobKey, after_ms: i64) -> Result<Series> {
        let service = self.service();
        let store = &service.recorder.writer;
        if !sees(&service, viewer, key)? {
            return Ok(Series::new(&JOB));
        }
        let window = after(after_ms);
        let unflushed =
            service.registry.jobs.contains_key(key).then(|| Wanted::Job(key.clone(), &JOB, String::new()));
        Ok(page(&service, store.series_of_job_between(key, window.0, window.1)?, unflushed, window))
    }

    fn job_series(
        &self,
        viewer: &Viewer,
        key: &JobKey,
        table: &'static Table,
        part: &str,
        after_ms: i64,
    ) -> Result<Series> {
        let service = self.service();
        let store = &service.recorder.writer;
        if !sees(&service, viewer, key)? {
            return Ok(Series::new(table));
        }
        let window = after(after_ms);
        let unflushed = service.registry.jobs.contains_key(key);
        let unflushed = unflushed.then(|| Wanted::Job(key.clone(), table, part.to_owned()));
        Ok(page(&service, store.job_series_between(key, table, part, window.0, window.1)?, unflushed, window))
    }

    fn gpu_series(&self, viewer: &Viewer, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Series> {
        let service = self.service();
        let store = &service.recorder.writer;
        let window = match sees(&service, viewer, key)? {
            true => held(&service, key, uuid, after_ms)?,
            false => None,
        };
        let Some(window) = window else { return Ok(Series::new(&gpu::device::TABLE)) };
        let unflushed = service.registry.jobs.contains_key(key).then(|| Wanted::Gpu(uuid.to_owned()));
        Ok(page(&service, store.device_series(uuid, window.0, window.1)?, unflushed, window))
    }

    fn memberships(&self, viewer: &Viewer, filter: &JobsFilter) -> Result<Vec<Membership>> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(Vec::new()) };
        let service = self.service();
        Ok(service.recorder.writer.memberships(&filter.to_store_whole())?)
    }

    fn sums(&self, viewer: &Viewer, filter: &JobsFilter, span: &SumSpan) -> Result<Vec<Sum>> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(Vec::new()) };
        let service = self.service();
        Ok(service.recorder.writer.sums(&filter.to_store_whole(), span)?)
    }

    fn usage(&self, viewer: &Viewer, ask: &UsageAsk) -> Result<Usage> {
        let live = query::every_job(self, viewer, &query::running())?;
        let service = self.service();
        query::usage_in(&service.recorder.writer, viewer, ask, &live)
    }

    fn reactions(&self, viewer: &Viewer) -> Result<Vec<Reaction>> {
        let service = self.service();
        Ok(react::seen(viewer, met_store::reactions(&service.recorder.writer)?))
    }

    fn queues(&self, viewer: &Viewer) -> Result<Vec<Queue>> {
        let service = self.service();
        Ok(queues::seen(viewer, &service.recorder.writer)?)
    }

    /// This machine, as a server would list it.
    fn nodes(&self, viewer: &Viewer) -> Result<Vec<NodeStatus>> {
        // Also those of `met time`, which it does not sample; not those of other nodes that a scheduler named.
        let running = query::every_job(self, viewer, &query::running())?;
        let service = self.service();
        let facts = service.host.facts();
        let forward = service.outputs.forward_status();
        let spool = forward
            .as_ref()
            .map(|forward| Spool { batches: forward.batches_waiting, bytes: forward.bytes_waiting });
        let dropped = forward.as_ref().map_or(0, |forward| forward.dropped_samples);
        Ok(vec![NodeStatus {
            spool,
            clock_offset_ns: forward.and_then(|forward| forward.clock_offset_ns),
            dropped_samples: i64::try_from(dropped).unwrap_or(i64::MAX),
            health: service.sampling.health(),
            now: service.sampling.machine_now(),
            name: facts.hostname.clone(),
            jobs: running.iter().filter(|record| record.local.is_some()).count(),
            seen_ns: Some(jobs::now_ns()),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            cpus: Some(i64::from(facts.cpu_count)),
            memory_bytes: facts.memory_total_bytes,
            ..NodeStatus::default()
        }])
    }

    fn node_parts(&self, since_ms: i64) -> Result<Option<Vec<NodePart>>> {
        let service = self.service();
        let mut parts = service.recorder.writer.node_parts_between(since_ms, i64::MAX)?;
        parts.extend(service.sampling.peek_parts(since_ms));
        parts.sort_unstable();
        parts.dedup();
        Ok(Some(parts))
    }

    fn node_part_series(&self, table: &'static Table, part: &str, after_ms: i64) -> Result<Option<Series>> {
        let service = self.service();
        let window = after(after_ms);
        let stored = service.recorder.writer.node_part_series(table, part, window.0, window.1)?;
        let unflushed = Wanted::Part(NodePart { table: table.name.to_owned(), part: part.to_owned() });
        Ok(Some(page(&service, stored, Some(unflushed), window)))
    }
}

/// Whether the viewer sees a job that is stored or waits to be.
fn sees(service: &Service, viewer: &Viewer, key: &JobKey) -> Result<bool> {
    match service.recorder.unwritten.record_of(key) {
        Some(record) => Ok(viewer.sees(record)),
        None => Ok(query::sees(&service.recorder.writer, viewer, key)?),
    }
}

fn after(after_ms: i64) -> (i64, i64) {
    (after_ms.saturating_add(1), i64::MAX)
}

/// A page of stored samples, and, unless these fill it, of those that are not written yet.
fn page(service: &Service, mut series: Series, unflushed: Option<Wanted>, window: (i64, i64)) -> Series {
    if let Some(wanted) = unflushed.filter(|_| series.len() <= PAGE_SAMPLES) {
        unflushed_samples::append(&mut series, &service.sampling.peek(wanted), window);
    }
    series.truncate(PAGE_SAMPLES);
    series
}

/// When the job held a GPU, after a time, in unix milliseconds; `None` if it never did.
fn held(service: &Service, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Option<(i64, i64)>> {
    if let Some(window) = jobs::held(&service.recorder.writer, key, uuid, after_ms)? {
        return Ok(Some(window));
    }
    // The store learns of a GPU at the next flush.
    let Some(kept) = service.registry.jobs.get(key) else { return Ok(None) };
    service.sampling.look_at_jobs();
    let live = service.sampling.last_known(key);
    let held = live.into_iter().flat_map(|live| live.gpus).find(|gpu| gpu.uuid == uuid);
    // Earlier samples may be of another user's job.
    let begin_ns = held.and_then(|gpu| gpu.held_since_ns.or(kept.record.start_ns));
    Ok(begin_ns.map(|begin_ns| ((begin_ns / 1_000_000).max(after_ms.saturating_add(1)), i64::MAX)))
}

/// Warnings about jobs that are missing from lists. Only users who may see all jobs get their ids.
fn damage(service: &Service, viewer: &Viewer) -> Vec<String> {
    let Service { recorder, registry, .. } = service;
    let names = recorder.writer.unreadable();
    let salvage = recorder.writer.last_salvage().map(|salvage| registry.without_kept(salvage));
    let lost = salvage.map(|salvage| match (viewer.sees_all(), salvage.lost_count()) {
        (true, _) => salvage.sentence(),
        (false, 0) => "the store was damaged; no job is known to be lost".to_owned(),
        (false, 1) => "the store was damaged; 1 job was lost, of all users'".to_owned(),
        (false, count) => format!("the store was damaged; {count} jobs were lost, of all users'"),
    });
    query::warn_unreadable(viewer, &names).into_iter().chain(lost).collect()
}

/// Adds jobs that are not written yet and that a reference may mean.
fn add_unwritten_meant(service: &Service, viewer: &Viewer, job: &JobRef, found: &mut Vec<Record>) {
    let unwritten = service.recorder.unwritten.records.iter();
    let meant = unwritten.filter(|record| viewer.sees(record) && job.may_mean(record));
    let missing: Vec<Record> =
        meant.filter(|record| found.iter().all(|job| job.key != record.key)).cloned().collect();
    if missing.is_empty() {
        return;
    }
    found.extend(missing);
    listing::sort(found);
    if !matches!(job, JobRef::Id { .. }) {
        // The newest of the name, or of all.
        found.truncate(1);
    }
}

/// Adds jobs that the store does not have yet, or still has as running if it was asked for those that are over.
fn add_unwritten(service: &Service, filter: &Filter, page: &mut Page) {
    let Page { jobs, next } = page;
    let order = filter.order();
    let is_here = |record: &Record| next.as_ref().is_none_or(|next| !order.is_behind(record, next));
    let unwritten = service.recorder.unwritten.records.iter();
    let fitting = unwritten.filter(|record| filter.accepts(record) && is_here(record));
    let missing: Vec<Record> =
        fitting.filter(|record| jobs.iter().all(|job| job.key != record.key)).cloned().collect();
    if !missing.is_empty() {
        jobs.extend(missing);
        order.sort(jobs);
    }
}

/// Brings jobs up to date with starts and ends that are not written yet and with figures of those that run.
fn add_live(service: &Service, jobs: &mut [Record]) {
    let Service { host, recorder, registry, sampling, .. } = service;
    for record in &mut *jobs {
        if let Some(unwritten) = recorder.unwritten.record_of(&record.key) {
            let annotation = Annotation::later(&unwritten.annotation, &record.annotation).clone();
            *record = Record { annotation, ..unwritten.clone() };
        }
    }
    let mut is_current = None;
    for record in jobs.iter_mut().filter(|record| record.state.is_live()) {
        let is_current = *is_current.get_or_insert_with(|| sampling.look_at_jobs());
        jobs::settle_or_end(host, &recorder.writer, record);
        // Its directory is gone, and the discovery is about to report its end.
        let kept = registry.jobs.get(&record.key).map(|kept| &kept.record);
        let kept = kept.filter(|_| is_found(record));
        if let Some(kept) = kept {
            // What the scheduler said of its steps is in the store alone.
            found_jobs::put_parts(&mut record.parts, kept.parts.clone());
            belief::live::add_registered(record, &kept.totals);
        }
        if !record.state.is_live() {
            continue;
        }
        let sampled = sampling.last_known(&record.key).filter(|live| live.totals.get(CPU).is_some());
        match sampled {
            Some(live) => belief::overlay(record, live),
            // A job in a terminal is sampled there, and one that has just begun not yet.
            None if is_current => belief::overlay(record, live::now(host, record)),
            // What keeps the sampling thread would keep this one, too.
            None => {}
        }
        if let Some(kept) = kept {
            belief::live::raise_to_registered(record, &kept.totals);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use met_core::cadence::WANTED_JOBS_MAX;
    use met_core::job::{Origin, State};

    use super::super::write_retries::tests::service;
    use super::*;
    use met_query::sample_more::SamplesMore;

    #[test]
    fn rules_may_want_more_samples_of_running_jobs_that_their_viewer_sees() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        let boot_id = service.host.facts().boot_id.clone();
        let mut keys: Vec<JobKey> = [(1, 7, boot_id.as_str()), (2, 8, &boot_id), (3, 8, "of another boot")]
            .map(|(id, uid, boot_id)| {
                let mut record = met_core::sample::full(id, "x");
                (record.state, record.end_ns, record.inside) = (State::Running, None, None);
                record.uid = Some(uid);
                if let Some(local) = &mut record.local {
                    (local.origin, local.supervisor) = (Origin::Found, None);
                    local.boot_id = boot_id.to_owned();
                }
                service.recorder.writer.put(&record).unwrap();
                service.watch(record.clone());
                record.key
            })
            .into();
        let unsampled = keys.pop();
        // The thread has opened its sources and knows the jobs.
        assert_eq!(service.sampling.live().len(), 2);
        let watched = |viewer: &Viewer, keys: &[JobKey]| {
            service.sample_more(viewer, keys, Duration::from_secs(60)).unwrap()
        };
        assert_eq!(watched(&Viewer::Everything, &keys), keys);
        assert_eq!(watched(&Viewer::Uid(8), &keys), keys[1..]);
        assert!(watched(&Viewer::Uid(9), &keys).is_empty());
        assert!(
            watched(&Viewer::Everything, unsampled.as_slice()).is_empty(),
            "it is known, but not sampled"
        );
        let unknown = JobKey { id: "77".to_owned(), ..keys[0].clone() };
        assert!(watched(&Viewer::Everything, &[unknown]).is_empty());
        let many = vec![keys[0].clone(); 1000];
        assert_eq!(watched(&Viewer::Everything, &many).len(), WANTED_JOBS_MAX);
        service.close();
    }
}
