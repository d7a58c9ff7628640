//! Questions to a daemon: who may ask for which jobs, and what he is told.

use anyhow::{Context, Result, bail};
use met_core::course::Course;
use met_core::job::{JobKey, Record, State};
use met_core::job_table::CPU;
use met_core::listing::Cursor;
use met_store::{NodePart, Page};

use super::found;
use super::permissions::{self, Access, Caller, Role};
use super::registry::is_found;
use super::sampling::Sampling;
use super::service::Service;
use super::socket::Peer;
use super::unflushed::{self, Wanted};
use met_host::users;
use met_query::jobs::{self, JobRef};
use met_query::live::Live;
use met_query::protocol::{DiscoveryStatus, NodeStatus, Reply, Request, Status, WireCourse};
use met_query::query::{self, PAGE_SAMPLES};
use met_query::viewer::Viewer;

impl Service {
    /// What this caller may do by this request; an error if nothing.
    pub fn access(&self, request: &Request, caller: &Caller) -> Result<Access> {
        let row = permissions::row(request);
        let access = row.access(self.place.system, || caller.role(|peer| self.role(peer)));
        if !access.is_any() {
            bail!("{}", row.refusal(self.place.system));
        }
        Ok(access)
    }

    /// Whether this is a user's daemon, and his.
    pub fn is_owner(&self, peer: Peer) -> bool {
        !self.place.system && peer.uid == rustix::process::getuid().as_raw()
    }

    fn role(&self, peer: Peer) -> Role {
        let operators = self.settings.config.daemon.operators.as_deref();
        if self.is_owner(peer) {
            Role::Owner
        } else if peer.uid == 0 {
            Role::Root
        } else if operators.is_some_and(|group| users::is_in_group(peer.uid, group)) {
            Role::Operator
        } else {
            Role::User
        }
    }

    pub fn answer(&mut self, request: Request, caller: &Caller) -> Result<Reply> {
        let access = self.access(&request, caller)?;
        let peer = caller.peer;
        let viewer = access.viewer(peer);
        match request {
            Request::Reserve { at_least } => {
                let (writer, state) = (&mut self.recorder.writer, &self.place.state);
                self.admission.reservations.reserve(at_least, peer.uid, writer, state)
            }
            Request::Enclose { name, pid } => {
                self.admission.enclose(&self.host, &name, pid, peer).map(Reply::Enclosed)
            }
            Request::Started(record) => self.started(*record, peer, access),
            Request::Ended(record) => self.ended(*record, peer, access),
            Request::Jobs(filter) => {
                let filter = viewer.restrict(&filter);
                let mut page = self.recorder.writer.page(&filter.to_store_for_reply())?;
                let warnings = self.damage_met(&viewer);
                page.jobs = self.with_live(page.jobs);
                Ok(filter.reply(page, warnings))
            }
            Request::Find(job) => self.find(&job, None, &viewer),
            Request::FindAfter { job, after } => self.find(&job, Some(&after), &viewer),
            Request::Course { key, after_ms } => self.course(&key, after_ms, &viewer),
            Request::CardCourse { key, uuid, after_ms } => self.card_course(&key, &uuid, after_ms, &viewer),
            Request::Remove(key) => self.remove(&key, caller, access),
            Request::NodeParts { since_ms } => self.node_parts(since_ms),
            Request::NodeCourse { table, part, after_ms } => self.node_course(&table, &part, after_ms),
            Request::Factors => Ok(Reply::Factors(self.recorder.writer.factors()?)),
            Request::Correct(correction) => {
                let corrected =
                    crate::emissions::correct(&correction, &mut self.recorder.writer, &self.settings.config)?;
                self.recorder.emitting.told = self.recorder.writer.factors()?;
                self.follow_factor();
                Ok(Reply::Corrected(corrected))
            }
            Request::Energy => Ok(Reply::Energy(self.sampling.energy_window())),
            Request::InForce => Ok(Reply::InForce(Box::new(self.settings.in_force(access.others)))),
            Request::Configure(change) => self.configure(&change),
            Request::Status => Ok(Reply::Status(Box::new(self.status()?))),
            Request::Nodes => Ok(Reply::Nodes(vec![self.this_node()])),
            Request::Hello { .. } | Request::Stop | Request::NodeCourses { .. } => {
                bail!("not a request about jobs")
            }
        }
    }

    /// Whether a request is answered with the help of the sampling thread.
    pub fn needs_sampler(&self, request: &Request) -> bool {
        match request {
            Request::Ended(_)
            | Request::NodeParts { .. }
            | Request::NodeCourse { .. }
            | Request::Energy
            | Request::Configure(_)
            | Request::Status => true,
            Request::Jobs(_)
            | Request::Find(_)
            | Request::FindAfter { .. }
            | Request::Course { .. }
            | Request::CardCourse { .. } => !self.registry.jobs.is_empty(),
            Request::Hello { .. }
            | Request::Reserve { .. }
            | Request::Enclose { .. }
            | Request::Started(_)
            | Request::Remove(_)
            | Request::Factors
            | Request::Correct(_)
            | Request::InForce
            | Request::Stop
            | Request::Nodes
            | Request::NodeCourses { .. } => false,
        }
    }

    fn find(&mut self, job: &JobRef, after: Option<&Cursor>, viewer: &Viewer) -> Result<Reply> {
        let found = query::find_in(&self.recorder.writer, viewer, job)?;
        let (found, next) = jobs::page_of(found, after);
        Ok(query::found(Page { jobs: self.with_live(found), next }))
    }

    /// Warnings about jobs that are missing from lists. Only users who may see all jobs get their ids.
    fn damage_met(&mut self, viewer: &Viewer) -> Vec<String> {
        let names = self.recorder.writer.take_unreadable();
        if !names.is_empty() {
            self.recorder.repairs.wanted = true;
        }
        let sees_all = viewer.sees_all();
        let lost =
            self.recorder.writer.last_salvage().map(|salvage| self.registry.without_kept(salvage)).map(
                |salvage| match (sees_all, salvage.lost_count()) {
                    (true, _) => salvage.sentence(),
                    (false, 0) => "the store was damaged; no job is known to be lost".to_owned(),
                    (false, 1) => "the store was damaged; 1 job was lost, of all users'".to_owned(),
                    (false, count) => format!("the store was damaged; {count} jobs were lost, of all users'"),
                },
            );
        query::warn_unreadable(viewer, &names).into_iter().chain(lost).collect()
    }

    fn with_live(&mut self, mut found: Vec<Record>) -> Vec<Record> {
        for record in &mut found {
            if let Some(end) = self.recorder.unwritten.end_of(&record.key) {
                record.clone_from(end);
            }
        }
        if found.iter().any(|record| record.state.is_live()) {
            let mut live = self.sampling.live();
            for record in found.iter_mut().filter(|record| record.state.is_live()) {
                jobs::settle_or_end(&self.host, &self.recorder.writer, record);
                // Its directory is gone, and the discovery is about to tell what became of it.
                if let Some(kept) = self.registry.jobs.get(&record.key).filter(|_| is_found(record)) {
                    // What the scheduler told of its steps is in the store alone.
                    found::put_parts(&mut record.parts, kept.record.parts.clone());
                    record.totals = kept.record.totals.clone();
                    record.state = if record.state == State::Lost { State::Running } else { record.state };
                }
                if !record.state.is_live() {
                    continue;
                }
                // A job in a terminal is sampled there, and one that has just begun not yet.
                let sampled = live.remove(&record.key).filter(|live| live.totals.get(CPU).is_some());
                let live = sampled.unwrap_or_else(|| Live::now(&self.host, record));
                jobs::overlay(record, live);
            }
        }
        found
    }

    fn visible(&mut self, key: &JobKey, viewer: &Viewer) -> Result<Record> {
        let record = self.recorder.writer.get(key)?.filter(|record| viewer.sees(record));
        record.context("no such job")
    }

    fn course(&mut self, key: &JobKey, after_ms: i64, viewer: &Viewer) -> Result<Reply> {
        // Whoever keeps the job has its course; here is none.
        if self.visible(key, viewer).is_err() {
            return Ok(Reply::Course(WireCourse::default()));
        }
        let mut course = self.recorder.writer.course_between(key, after_ms.saturating_add(1), i64::MAX)?;
        if self.registry.jobs.contains_key(key) {
            let window = (after_ms.saturating_add(1), i64::MAX);
            self.add_unflushed(&mut course, Wanted::Job(key.clone()), window);
        }
        course.truncate(PAGE_SAMPLES);
        Ok(Reply::Course(WireCourse::of(&course)))
    }

    /// Adds the samples that are not written yet, unless the page is full without them.
    fn add_unflushed(&self, course: &mut Course, wanted: Wanted, window: (i64, i64)) {
        if course.len() <= PAGE_SAMPLES {
            unflushed::append(course, &self.sampling.peek(wanted), window);
        }
    }

    /// When the job held a GPU, after a time, in unix milliseconds; `None` if it never did.
    fn held(&self, key: &JobKey, uuid: &str, after_ms: i64) -> Result<Option<(i64, i64)>> {
        if let Some(window) = jobs::held(&self.recorder.writer, key, uuid, after_ms)? {
            return Ok(Some(window));
        }
        // The store learns of a GPU at the next flush.
        let live = self.registry.jobs.contains_key(key).then(|| self.sampling.live().remove(key)).flatten();
        let held = live.into_iter().flat_map(|live| live.gpus).find(|gpu| gpu.uuid == uuid);
        let start_ns = self.registry.jobs.get(key).and_then(|kept| kept.record.start_ns);
        // Earlier samples may be of another user's job.
        let begin_ns = held.and_then(|gpu| gpu.held_since_ns.or(start_ns));
        Ok(begin_ns.map(|begin_ns| ((begin_ns / 1_000_000).max(after_ms.saturating_add(1)), i64::MAX)))
    }

    /// The course of a card while the job had it. Nobody is told of a card that was never his.
    fn card_course(&mut self, key: &JobKey, uuid: &str, after_ms: i64, viewer: &Viewer) -> Result<Reply> {
        if self.visible(key, viewer).is_err() {
            return Ok(Reply::Course(WireCourse::default()));
        }
        let Some(window) = self.held(key, uuid, after_ms)? else {
            return Ok(Reply::Course(WireCourse::default()));
        };
        let mut course = self.recorder.writer.device_course(uuid, window.0, window.1)?;
        if self.registry.jobs.contains_key(key) {
            self.add_unflushed(&mut course, Wanted::Card(uuid.to_owned()), window);
        }
        course.truncate(PAGE_SAMPLES);
        Ok(Reply::Course(WireCourse::of(&course)))
    }

    /// A part of the machine over time, which is nobody's secret.
    fn node_course(&mut self, table: &str, part: &str, after_ms: i64) -> Result<Reply> {
        let known = met_sources::catalogue().into_iter().find(|known| known.name == table);
        let Some(table) = known else { return Ok(Reply::Course(WireCourse::default())) };
        let window = (after_ms.saturating_add(1), i64::MAX);
        let mut course = self.recorder.writer.node_course(table, part, window.0, window.1)?;
        let part = NodePart { table: table.name.to_owned(), part: part.to_owned() };
        self.add_unflushed(&mut course, Wanted::Part(part), window);
        course.truncate(PAGE_SAMPLES);
        Ok(Reply::Course(WireCourse::of(&course)))
    }

    fn node_parts(&mut self, since_ms: i64) -> Result<Reply> {
        let mut parts = self.recorder.writer.node_parts_between(since_ms, i64::MAX)?;
        parts.extend(self.sampling.peek_parts(since_ms));
        parts.sort_unstable();
        parts.dedup();
        Ok(Reply::NodeParts(parts.into_iter().map(|part| (part.table, part.part)).collect()))
    }

    fn remove(&mut self, key: &JobKey, caller: &Caller, access: Access) -> Result<Reply> {
        if self.visible(key, &access.viewer(caller.peer)).is_err() {
            let seen = self.access(&Request::Find(JobRef::Last), caller)?;
            if self.visible(key, &seen.viewer(caller.peer)).is_ok() {
                bail!("only its owner or root may remove this job");
            }
            // Removed is removed, whoever kept it.
            return Ok(Reply::Done);
        }
        if self.registry.jobs.contains_key(key) {
            bail!("the job still runs; `met cancel` ends it");
        }
        let record = self.recorder.writer.get(key)?;
        self.recorder.writer.remove(key)?;
        if let Some(record) = record {
            self.housekeeping.remove_cgroup(&self.host, &record);
        }
        Ok(Reply::Done)
    }

    /// This machine, as a server would list it.
    fn this_node(&self) -> NodeStatus {
        let facts = self.host.facts();
        NodeStatus {
            name: facts.hostname.clone(),
            jobs: self.registry.jobs.len(),
            seen_ns: Some(jobs::now_ns()),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            cpus: Some(i64::from(facts.cpu_count)),
            memory_bytes: facts.memory_total_bytes,
            ..NodeStatus::default()
        }
    }

    fn status(&mut self) -> Result<Status> {
        let sources = self.ask_sampling(Sampling::costs)?;
        let sinks = self.outputs.bus.status();
        Ok(Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            system: self.place.system,
            jobs: self.registry.jobs.len(),
            interval_ms: self.settings.config.sampling.interval.as_millis() as i64,
            state: self.place.state.clone(),
            sources,
            schedulers: self.schedulers.status(),
            idle: self.sampling.learned_idle(),
            ledger: self.sampling.balance(),
            discovery: self.discovery.finding.as_ref().map(|finding| DiscoveryStatus {
                shadows: self.discovery.shadows.count(),
                shadows_refused: self.discovery.shadows.refused().cloned(),
                ..finding.health().into()
            }),
            forward: sinks.iter().find_map(|sink| sink.forward.as_deref().cloned()),
            sinks,
        })
    }
}
