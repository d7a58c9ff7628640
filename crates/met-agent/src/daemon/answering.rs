//! Questions to a daemon: who may ask for which jobs, and what he is told.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use met_core::job::{JobKey, Record, State};
use met_core::job_table::CPU;
use met_core::listing::Cursor;
use met_store::{Filter, Salvage};

use super::found;
use super::keeping::Keeping;
use super::permissions::{self, Access, Caller, Role};
use super::sampling::Sampling;
use super::socket::Peer;
use met_host::users;
use met_query::jobs::{self, JobRef};
use met_query::live::Live;
use met_query::protocol::{DiscoveryStatus, Reply, Request, Status, WireCourse};

/// Samples in one reply: some ten megabytes.
const PAGE_SAMPLES: usize = 50_000;

impl Keeping {
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
        let operators = self.config.daemon.operators.as_deref();
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
        match request {
            Request::Reserve { at_least } => self.reserve(at_least, peer),
            Request::Enclose { name, pid } => self.enclose(&name, pid, peer).map(Reply::Enclosed),
            Request::Started(record) => self.started(*record, peer, access),
            Request::Ended(record) => self.ended(*record, peer, access),
            Request::Jobs(mut filter) => {
                if !access.others {
                    filter.uid = Some(peer.uid);
                }
                self.refresh();
                self.discovered();
                let mut page = self.writer.page(&filter.to_store_for_reply())?;
                let warnings = self.damage_met(access);
                page.jobs = self.with_live(page.jobs);
                Ok(filter.reply(page, warnings))
            }
            Request::Find(job) => self.find(&job, None, peer, access),
            Request::FindAfter { job, after } => self.find(&job, Some(&after), peer, access),
            Request::Course { key, after_ms } => self.course(&key, after_ms, peer, access),
            Request::CardCourse { key, uuid, after_ms } => {
                self.card_course(&key, &uuid, after_ms, peer, access)
            }
            Request::Remove(key) => self.remove(&key, caller, access),
            Request::NodeParts { since_ms } => self.node_parts(since_ms),
            Request::NodeCourse { table, part, after_ms } => self.node_course(&table, &part, after_ms),
            Request::Factors => Ok(Reply::Factors(self.writer.factors()?)),
            Request::Correct(correction) => {
                let corrected = crate::emissions::correct(&correction, &mut self.writer, &self.config)?;
                self.emitting.told = self.writer.factors()?;
                self.follow_factor();
                Ok(Reply::Corrected(corrected))
            }
            Request::Energy => Ok(Reply::Energy(self.sampling.energy_window())),
            Request::InForce => Ok(self.in_force(access)),
            Request::Configure(change) => self.configure(&change),
            Request::Status => Ok(Reply::Status(Box::new(self.status()?))),
            Request::Hello { .. } | Request::Stop | Request::Nodes | Request::NodeCourses { .. } => {
                bail!("not a question about jobs")
            }
        }
    }

    /// Whether a request is answered with the help of the sampling thread.
    pub fn needs_sampler(&self, request: &Request) -> bool {
        match request {
            Request::Ended(_)
            | Request::NodeParts { .. }
            | Request::Energy
            | Request::Configure(_)
            | Request::Status => true,
            Request::Jobs(_)
            | Request::Find(_)
            | Request::FindAfter { .. }
            | Request::Course { .. }
            | Request::CardCourse { .. } => !self.jobs.is_empty(),
            Request::Hello { .. }
            | Request::Reserve { .. }
            | Request::Enclose { .. }
            | Request::Started(_)
            | Request::Remove(_)
            | Request::NodeCourse { .. }
            | Request::Factors
            | Request::Correct(_)
            | Request::InForce
            | Request::Stop
            | Request::Nodes
            | Request::NodeCourses { .. } => false,
        }
    }

    fn find(&mut self, job: &JobRef, after: Option<&Cursor>, peer: Peer, access: Access) -> Result<Reply> {
        self.refresh();
        self.discovered();
        let mut found = jobs::find(&self.writer, job)?;
        let sees_all = access.others;
        if !sees_all && !found.iter().any(|record| record.uid == Some(peer.uid)) {
            // The newest of all is somebody else's.
            let own = Filter { uid: Some(peer.uid), ..Filter::default() };
            found = jobs::newest_of(&self.writer, job, &own)?;
        }
        found.retain(|record| sees_all || record.uid == Some(peer.uid));
        let (found, next) = jobs::page_of(found, after);
        let jobs = self.with_live(found);
        Ok(match next {
            Some(_) => Reply::JobsPage { jobs, next, warnings: Vec::new() },
            None => Reply::Jobs(jobs),
        })
    }

    /// Warnings about jobs that are missing from lists. Only users who may see all jobs get their ids.
    fn damage_met(&mut self, access: Access) -> Vec<String> {
        let names = self.writer.take_unreadable();
        if !names.is_empty() && self.repairs.begin(Instant::now()) {
            // What can be saved is, so that it is met once.
            self.look_after_store();
        }
        let sees_all = access.others;
        let lost =
            self.writer.last_salvage().map(|salvage| self.without_kept(salvage)).map(|salvage| {
                match (sees_all, salvage.lost_count()) {
                    (true, _) => salvage.sentence(),
                    (false, 0) => "the store was damaged; no job is known to be lost".to_owned(),
                    (false, 1) => "the store was damaged; 1 job was lost, of all users'".to_owned(),
                    (false, count) => format!("the store was damaged; {count} jobs were lost, of all users'"),
                }
            });
        let unreadable = match sees_all {
            true => jobs::unreadable(&names),
            false => (!names.is_empty()).then(|| "the store is damaged; jobs may be missing".to_owned()),
        };
        unreadable.into_iter().chain(lost).collect()
    }

    /// The jobs that this daemon follows are not lost: they are written at their end.
    pub(super) fn without_kept(&self, mut salvage: Salvage) -> Salvage {
        self.jobs.keys().for_each(|key| salvage.found_again(key));
        salvage
    }

    fn with_live(&mut self, mut found: Vec<Record>) -> Vec<Record> {
        for record in &mut found {
            if let Some(end) = self.unwritten.end_of(&record.key) {
                record.clone_from(end);
            }
        }
        if found.iter().any(|record| record.state.is_live()) {
            let mut live = self.sampling.live();
            for record in found.iter_mut().filter(|record| record.state.is_live()) {
                jobs::settle_or_end(&self.host, &self.writer, record);
                // Its directory is gone, and the discovery is about to tell what became of it.
                if let Some(kept) = self.jobs.get(&record.key).filter(|_| Keeping::is_found(record)) {
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
        jobs::remove_empty_cgroups(&self.host, &found);
        found
    }

    fn visible(&mut self, key: &JobKey, peer: Peer, access: Access) -> Result<Record> {
        let record = self.writer.get(key)?.filter(|record| access.covers(peer, record.uid));
        record.context("no such job")
    }

    fn course(&mut self, key: &JobKey, after_ms: i64, peer: Peer, access: Access) -> Result<Reply> {
        // Whoever keeps the job has its course; here is none.
        if self.visible(key, peer, access).is_err() {
            return Ok(Reply::Course(WireCourse::default()));
        }
        if self.jobs.contains_key(key) && after_ms == i64::MIN {
            self.flush();
        }
        let mut course = self.writer.course_between(key, after_ms.saturating_add(1), i64::MAX)?;
        course.truncate(PAGE_SAMPLES);
        Ok(Reply::Course(WireCourse::of(&course)))
    }

    /// The course of a card while the job had it. Nobody is told of a card that was never his.
    fn card_course(
        &mut self,
        key: &JobKey,
        uuid: &str,
        after_ms: i64,
        peer: Peer,
        access: Access,
    ) -> Result<Reply> {
        if self.visible(key, peer, access).is_err() {
            return Ok(Reply::Course(WireCourse::default()));
        }
        if self.jobs.contains_key(key) && after_ms == i64::MIN {
            self.flush();
        }
        let mut course = jobs::card_course(&self.writer, key, uuid, after_ms)?;
        course.truncate(PAGE_SAMPLES);
        Ok(Reply::Course(WireCourse::of(&course)))
    }

    /// A part of the machine over time, which is nobody's secret.
    fn node_course(&mut self, table: &str, part: &str, after_ms: i64) -> Result<Reply> {
        let known = met_sources::catalogue().into_iter().find(|known| known.name == table);
        let Some(table) = known else { return Ok(Reply::Course(WireCourse::default())) };
        let mut course = self.writer.node_course(table, part, after_ms.saturating_add(1), i64::MAX)?;
        course.truncate(PAGE_SAMPLES);
        Ok(Reply::Course(WireCourse::of(&course)))
    }

    fn node_parts(&mut self, since_ms: i64) -> Result<Reply> {
        self.flush();
        let parts = self.writer.node_parts_between(since_ms, i64::MAX)?;
        Ok(Reply::NodeParts(parts.into_iter().map(|part| (part.table, part.part)).collect()))
    }

    fn remove(&mut self, key: &JobKey, caller: &Caller, access: Access) -> Result<Reply> {
        if self.visible(key, caller.peer, access).is_err() {
            let seen = self.access(&Request::Find(JobRef::Last), caller)?;
            if self.visible(key, caller.peer, seen).is_ok() {
                bail!("only its owner or root may remove this job");
            }
            // Removed is removed, whoever kept it.
            return Ok(Reply::Done);
        }
        if self.jobs.contains_key(key) {
            bail!("the job still runs; `met cancel` ends it");
        }
        self.writer.remove(key)?;
        Ok(Reply::Done)
    }

    fn status(&mut self) -> Result<Status> {
        let sources = self.ask_sampling(Sampling::costs)?;
        let sinks = self.bus.status();
        Ok(Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            system: self.place.system,
            jobs: self.jobs.len(),
            interval_ms: self.config.sampling.interval.as_millis() as i64,
            state: self.place.state.clone(),
            sources,
            schedulers: self.schedulers.status(),
            idle: self.sampling.learned_idle(),
            ledger: self.sampling.balance(),
            discovery: self.finding.as_ref().map(|finding| DiscoveryStatus {
                shadows: self.shadows.count(),
                shadows_refused: self.shadows.refused().cloned(),
                ..finding.health().into()
            }),
            forward: sinks.iter().find_map(|sink| sink.forward.as_deref().cloned()),
            sinks,
        })
    }
}
