//! Requests to a daemon: their permissions, and those that change something or concern the daemon itself. Jobs
//! and series are read in `query.rs`.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use met_core::JOB;
use met_core::annotation::AnnotationChange;
use met_core::belief::is_known_end;
use met_core::bounds;
use met_core::cadence::WANTED_JOBS_MAX;
use met_core::job::{JobKey, Record, State};
use met_core::reaction::{ReactionChange, ReactionTarget};
use met_core::series::Series;

use super::claims;
use super::live_messages::LiveMessages;
use super::live_settings::Reach;
use super::permissions::{self, Access, Caller, Role};
use super::query::DaemonQuery;
use super::quotas;
use super::service::Service;
use super::socket::Peer;
use met_config::Failure;
use met_host::{clock, users};
use met_query::annotate;
use met_query::jobs::{self, JobRef};
use met_query::protocol::{Change, DiscoveryStatus, InForce, Reply, Request, Status};
use met_query::query;
use met_query::react::{self, Actor};
use met_query::sample_more::SamplesMore;
use met_query::viewer::Viewer;

/// A list of so many jobs fits a screen that a person watches. A longer one is read by a program, or counted.
const WATCHED_JOBS_MAX: usize = 100;

/// Users whose jobs may have the same id and time.
const SAME_KEYS_MAX: usize = 16;

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

    pub(super) fn started(&mut self, mut record: Record, peer: Peer, access: Access) -> Result<Reply> {
        let known = self.admit(&mut record, peer, access)?;
        // An announcement that was overtaken by the end is old news.
        if known.as_ref().is_some_and(is_known_end) {
            return Ok(Reply::Done);
        }
        claims::verify_start(&self.host, &self.admission.made, &mut record, known.as_ref(), peer)?;
        if self.place.system {
            quotas::check(&self.host, &self.registry, &record, peer)?;
        }
        record.state = State::Running;
        self.take_announced(&mut record, known.as_ref(), peer);
        // Its supervisor announces a job again to a daemon that is restarted.
        let was_published = known.is_some() && self.recorder.writer.is_stored(&record.key)?;
        self.recorder.commit_start(&record)?;
        self.admission.number_used(&record.key);
        self.registry.nesting.note(&record, &mut self.registry.jobs, &mut self.recorder);
        if !was_published {
            self.outputs.publish_start(&record);
        }
        self.watch(record);
        Ok(Reply::Done)
    }

    /// What is known of a job that is announced; an error where it is none of this caller's.
    fn admit(&mut self, record: &mut Record, peer: Peer, access: Access) -> Result<Option<Record>> {
        claims::check_kind(record)?;
        bounds::bound(record);
        let known = self.recorder.known(&record.key, &self.registry)?;
        // A job may end before its start was reported. A system daemon then knows it by the id it gave away;
        // other jobs are kept by their owners.
        let is_his = match &known {
            Some(known) => access.covers(peer, known.uid) && !self.is_anothers(known, record, peer),
            None if self.place.system => {
                self.admission.gave_away(record, peer, access, &self.recorder.writer, &self.place)
            }
            None => true,
        };
        if !is_his {
            self.admission.note_refused(record, peer);
            bail!("no such job");
        }
        Ok(known)
    }

    /// Whether a known job is another user's than the one that is announced.
    fn is_anothers(&self, known: &Record, record: &Record, peer: Peer) -> bool {
        let owners = known.uid.zip(claims::owner(record, peer));
        self.place.system && owners.is_some_and(|(known, announced)| known != announced)
    }

    /// Another user's job may have the key of one that ended, from a version that counted in seconds: the record gets
    /// the next one, and is found there if it is reported again.
    fn pass_over_others(&mut self, record: &mut Record, peer: Peer) -> Result<()> {
        for _ in 0..SAME_KEYS_MAX {
            let known = self.recorder.known(&record.key, &self.registry)?;
            if !known.is_some_and(|known| self.is_anothers(&known, record, peer)) {
                break;
            }
            record.key.incarnation = record.key.incarnation.saturating_add(1);
        }
        Ok(())
    }

    fn take_announced(&mut self, record: &mut Record, known: Option<&Record>, peer: Peer) {
        self.registry.nesting.place(&self.host, &self.discovery, record, known, peer);
        claims::verify_events(&self.host, &self.settings.all_events(), record, peer);
        claims::verify_place(&self.host, record, peer);
        if self.place.system {
            self.admission.announced.count(record);
        }
    }

    /// Keeps the end of a job, and what `met time` sampled of it; it is on disk when this returns.
    pub(super) fn ended(
        &mut self,
        mut record: Record,
        sampled: Option<Series>,
        peer: Peer,
        access: Access,
    ) -> Result<Reply> {
        if record.state.is_live() {
            bail!("the job has not ended");
        }
        if sampled.is_some() && !claims::is_timed(&record) {
            bail!("only `met time` sends samples of its job");
        }
        self.pass_over_others(&mut record, peer)?;
        let known = self.admit(&mut record, peer, access)?;
        // Reported twice, by its supervisor and by a command that found it in the user's files: what was stored knows
        // more by now. (A user's own daemon finds the very end that is reported in the inbox.)
        let stored = || self.recorder.writer.get(&record.key);
        if self.place.system && stored()?.is_some_and(|kept| is_known_end(&kept)) {
            return Ok(Reply::Done);
        }
        claims::verify_end(&self.admission.made, &mut record, known.as_ref(), peer, sampled.is_some());
        self.take_announced(&mut record, known.as_ref(), peer);
        if let Some(series) = sampled.filter(|_| known.is_none()) {
            let series = claims::verify_samples(series, &record, self.admission.reserved_ns(&record.key));
            self.admission.announced.count_samples(&series);
            self.recorder.keep_series(&record.key, &series, &mut self.outputs);
        }
        self.admission.number_used(&record.key);
        self.close_job(record)?;
        Ok(Reply::Done)
    }

    /// Changes what it is asked to, or nothing.
    pub(super) fn configure(&mut self, change: &Change) -> Result<Reply> {
        let interval = change.period.as_deref().map(met_config::interval).transpose().context("--period")?;
        let events = change.perf.as_deref().map(met_config::events_in).transpose().context("--perf")?;
        let job = change.job.as_ref().map(|job| self.running_job(job)).transpose()?;
        if change.reset {
            self.settings.revert(job.as_ref());
        }
        let reach = match job {
            Some(key) => Reach::Job(key),
            None if change.until_a_job_ends => Reach::NextEnd,
            None => Reach::Daemon,
        };
        self.settings.hold(&reach, interval, events);
        let note = self.apply_overrides().filter(|_| change.perf.is_some());
        let held = self.settings.in_force(true);
        tracing::info!("configured live: sampled every {:?}", self.settings.config.sampling.shortest());
        Ok(Reply::InForce(Box::new(InForce { note, ..held })))
    }

    fn running_job(&mut self, job: &jobs::JobRef) -> Result<JobKey> {
        self.discovered();
        let found = jobs::find(&self.recorder.writer, job, &met_store::Filter::default())?;
        let mut keys = found.into_iter().map(|record| record.key);
        keys.find(|key| self.registry.jobs.contains_key(key)).context("--job: no such job runs here")
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

    fn status(&self) -> Result<Status> {
        let sources = self.sampling.costs()?;
        let sampler = self.sampling.view();
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
            forward: self.outputs.forward_status(),
            sinks: self.outputs.bus.status(),
            http: self.outputs.http.clone(),
            configure: self.outputs.configure.as_ref().map(LiveMessages::status),
            samples_refused: self.recorder.writer.samples_refused(),
        })
    }
}

impl SamplesMore for Service {
    fn sample_more(&self, viewer: &Viewer, keys: &[JobKey], wanted_for: Duration) -> Result<Vec<JobKey>> {
        let is_meant =
            |key: &&JobKey| self.registry.jobs.get(*key).is_some_and(|kept| viewer.sees(&kept.record));
        let meant: Vec<JobKey> = keys.iter().take(WANTED_JOBS_MAX).filter(is_meant).cloned().collect();
        Ok(self.sampling.watch(meant, wanted_for))
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
