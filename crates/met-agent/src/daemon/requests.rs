//! Requests to a daemon: their permissions, and those that change something or concern the daemon itself. Jobs
//! and series are read in `query.rs`.

use std::time::Duration;

use anyhow::{Result, bail};
use met_core::JOB;
use met_core::annotation::AnnotationChange;
use met_core::job::JobKey;
use met_core::reaction::{ReactionChange, ReactionTarget};

use super::live_messages::LiveMessages;
use super::permissions::{self, Access, Caller, Role};
use super::query::DaemonQuery;
use super::sampler_thread::Sampling;
use super::service::Service;
use super::socket::Peer;
use met_config::Failure;
use met_host::{clock, users};
use met_query::annotate;
use met_query::jobs::JobRef;
use met_query::protocol::{DiscoveryStatus, InForce, Reply, Request, Status};
use met_query::query;
use met_query::react::{self, Actor};
use met_query::sample_more::SamplesMore;
use met_query::viewer::Viewer;

/// A list of so many jobs fits a screen that somebody watches. A longer one is read by a program, or counted.
const WATCHED_JOBS_MAX: usize = 100;

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

    /// Whether this is the user's own daemon.
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
        let read = query::answer(&DaemonQuery::of(self), &access.viewer(peer), &request);
        if !self.recorder.writer.take_unreadable().is_empty() {
            self.recorder.repairs.want();
        }
        if let Some(reply) = read? {
            let keys = self.shown_live(&access.viewer(peer), &request, &reply);
            if !keys.is_empty() {
                self.sampling.note_interest(keys);
            }
            if let (Request::Find(_), Reply::Jobs(shown)) = (&request, &reply) {
                self.schedulers.jobs_shown(shown);
            }
            return Ok(reply);
        }
        match request {
            Request::Reserve { at_least, timed } => {
                let Service { recorder, registry, admission, place, .. } = self;
                let reservations = &mut admission.reservations;
                let id = reservations.reserve(at_least, timed, peer.uid, recorder, registry, &place.state)?;
                Ok(Reply::Reserved { id })
            }
            Request::Enclose { name, pid } => {
                self.admission.enclose(&self.host, &name, pid, peer).map(Reply::Enclosed)
            }
            Request::Started(record) => self.started(*record, peer, access),
            Request::Ended(record) => self.ended(*record, None, peer, access),
            Request::Timed { record, series } => {
                self.ended(*record, Some(series.into_series(&JOB)), peer, access)
            }
            Request::Watch { jobs, seconds } => {
                let wanted_for = Duration::from_secs(seconds);
                Ok(Reply::Watched(self.sample_more(&access.viewer(peer), &jobs, wanted_for)?))
            }
            Request::Remove(key) => self.remove(&key, caller, access),
            Request::Annotate { key, change } => self.annotate(&key, &change, peer, access),
            Request::Reactions { change: Some(change) } => self.react(&change, peer, access),
            Request::Factors => Ok(Reply::Factors(self.recorder.writer.factors()?)),
            Request::Correct(correction) => {
                let corrected =
                    crate::emissions::correct(&correction, &mut self.recorder.writer, &self.settings.config)?;
                self.recorder.emitting.reported = self.recorder.writer.factors()?;
                self.follow_factor();
                Ok(Reply::Corrected(corrected))
            }
            Request::Energy => Ok(Reply::Energy(self.sampling.energy_window())),
            Request::InForce => Ok(Reply::InForce(Box::new(self.in_force(peer, access)))),
            Request::Configure(change) => self.configure(&change),
            Request::Status => Ok(Reply::Status(Box::new(self.status()?))),
            _ => bail!("a daemon does not answer this request"),
        }
    }

    /// The running jobs that a reply shows: those that are requested again and again are sampled more often.
    fn shown_live(&self, viewer: &Viewer, request: &Request, reply: &Reply) -> Vec<JobKey> {
        let (Reply::Jobs(shown) | Reply::JobsPage { jobs: shown, .. }) = reply else {
            let sees =
                |key: &&JobKey| self.registry.jobs.get(*key).is_some_and(|kept| viewer.sees(&kept.record));
            return match request {
                Request::Series { key, .. } | Request::JobSeries { key, .. } => {
                    Some(key).filter(sees).into_iter().cloned().collect()
                }
                _ => Vec::new(),
            };
        };
        match request {
            Request::Jobs(filter) if filter.page.limit.is_none_or(|limit| limit > WATCHED_JOBS_MAX) => {
                Vec::new()
            }
            _ => shown.iter().filter(|job| job.state.is_live()).map(|job| job.key.clone()).collect(),
        }
    }

    fn in_force(&self, peer: Peer, access: Access) -> InForce {
        let is_trusted = peer.uid == 0 || peer.uid == rustix::process::getuid().as_raw();
        let may_read = is_trusted || self.settings.is_file_public();
        InForce {
            file: may_read.then(|| self.settings.file()),
            file_refused: self.settings.refused().filter(|_| may_read),
            http_refused: self.outputs.http.as_ref().and_then(|http| http.refused.clone()),
            factor: self.recorder.emitting.factor_at(&self.settings.config, clock::realtime_ns()),
            ..self.settings.in_force(access.others)
        }
    }

    /// Whether a request waits for the sampling thread.
    pub fn needs_sampler(request: &Request) -> bool {
        matches!(
            request,
            Request::Ended(_) | Request::Timed { .. } | Request::Counters { .. } | Request::Configure(_)
        )
    }

    fn remove(&mut self, key: &JobKey, caller: &Caller, access: Access) -> Result<Reply> {
        // Removed counts, whichever process stored it.
        let record = match self.recorder.unwritten.record_of(key) {
            Some(record) => Some(record.clone()),
            None => self.recorder.writer.get(key)?,
        };
        let Some(record) = record else { return Ok(Reply::Done) };
        if !access.viewer(caller.peer).sees(&record) {
            let reading = self.access(&Request::Find(JobRef::Last), caller)?;
            if reading.viewer(caller.peer).sees(&record) {
                bail!("only its owner or root may remove this job");
            }
            return Ok(Reply::Done);
        }
        if self.registry.jobs.contains_key(key) {
            bail!("the job still runs; `met cancel` ends it");
        }
        self.recorder.writer.remove(key)?;
        self.recorder.unwritten.forget(key);
        self.housekeeping.remove_cgroup(&self.host, &record);
        Ok(Reply::Done)
    }

    fn annotate(
        &mut self,
        key: &JobKey,
        change: &AnnotationChange,
        peer: Peer,
        access: Access,
    ) -> Result<Reply> {
        // What could not be written when the job started may be written now.
        self.write_records();
        let known = self.recorder.known(key, &self.registry)?;
        annotate::permit(&access.viewer(peer), known.as_ref())?;
        if self.recorder.unwritten.record_of(key).is_some() {
            bail!("the store cannot be written now; try again later");
        }
        match self.recorder.writer.annotate(key, change, clock::realtime_ns())? {
            Some(Ok(annotation)) => Ok(Reply::Annotated(annotation)),
            Some(Err(message)) => Err(Failure::usage(message)),
            None => Err(annotate::no_such_job()),
        }
    }

    fn react(&mut self, change: &ReactionChange, peer: Peer, access: Access) -> Result<Reply> {
        let known = match &change.target {
            ReactionTarget::Job(key) => self.recorder.known(key, &self.registry)?,
            ReactionTarget::User(_) => None,
        };
        let name = users::name_of(peer.uid).unwrap_or_else(|| peer.uid.to_string());
        let actor = Actor { viewer: access.viewer(peer), name, now_ns: clock::realtime_ns() };
        react::react(&mut self.recorder.writer, &actor, known.as_ref(), change)?;
        Ok(Reply::Reactions(react::seen(&actor.viewer, met_store::reactions(&self.recorder.writer)?)))
    }

    fn status(&mut self) -> Result<Status> {
        let sources = self.ask_sampling(Sampling::costs)?;
        let sampler = self.sampling.view();
        let sinks = self.outputs.bus.status();
        Ok(Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            system: self.place.system,
            jobs: self.registry.jobs.len(),
            interval_ms: self.settings.config.sampling.shortest().as_millis() as i64,
            ladder: Some(self.settings.config.sampling.cadence().ladder())
                .filter(|ladder| !ladder.is_fixed())
                .map(ToString::to_string),
            state: self.place.state.clone(),
            sources,
            dropped_samples: sampler.dropped_samples.map(|dropped| dropped + self.recorder.lost_samples),
            schedulers: self.schedulers.status(),
            idle: sampler.idle.clone(),
            ledger: sampler.balance,
            discovery: self.discovery.finding.as_ref().map(|finding| DiscoveryStatus {
                perf_cgroups: self.discovery.perf_cgroups.count(),
                perf_cgroups_refused: self.discovery.perf_cgroups.refused().cloned(),
                ..finding.health().into()
            }),
            forward: sinks.iter().find_map(|sink| sink.forward.as_deref().cloned()),
            sinks,
            http: self.outputs.http.clone(),
            configure: self.outputs.configure.as_ref().map(LiveMessages::status),
            samples_refused: self.recorder.writer.samples_refused(),
        })
    }
}

#[cfg(test)]
mod tests {
    use met_core::job::State;
    use met_query::jobs::{JobsFilter, PageAsk};
    use met_query::protocol::WireSeries;

    use super::super::write_retries::tests::service;
    use super::*;

    #[test]
    fn jobs_on_a_screen_and_series_that_their_viewer_sees_are_of_interest() {
        let root = tempfile::tempdir().unwrap();
        let mut service = service(root.path());
        let record = |id: u32, state: State| {
            let mut record = met_core::sample::full(id, "x");
            (record.state, record.uid) = (state, Some(7));
            record
        };
        let running = record(1, State::Running);
        service.registry.insert(running.clone());
        let own = running.key.clone();
        let shown = Reply::Jobs(vec![running.clone(), record(2, State::Finished)]);
        let list = |limit| {
            Request::Jobs(JobsFilter {
                page: PageAsk { limit, ..PageAsk::default() },
                ..JobsFilter::default()
            })
        };
        let interest = |request: &Request, uid: u32, reply: &Reply| {
            service.shown_live(&Viewer::Uid(uid), request, reply)
        };
        assert_eq!(interest(&list(Some(100)), 7, &shown), std::slice::from_ref(&own));
        assert_eq!(interest(&Request::Find(JobRef::Last), 7, &shown), std::slice::from_ref(&own));
        assert!(
            interest(&list(Some(101)), 7, &shown).is_empty() && interest(&list(None), 7, &shown).is_empty()
        );
        let (series, nothing) =
            (Request::Series { key: running.key.clone(), after_ms: 0 }, Reply::Series(WireSeries::default()));
        assert_eq!(interest(&series, 7, &nothing), std::slice::from_ref(&own), "also without a new sample");
        assert!(interest(&series, 8, &nothing).is_empty(), "it is another user's");
        service.close();
    }
}
