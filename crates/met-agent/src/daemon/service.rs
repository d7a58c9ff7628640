//! What a daemon does when a job starts, ends or is lost, and when something else concerns several of its parts.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use met_core::job::{JobKey, Origin, Record, State};
use met_host::Host;
use met_jobs::discover::{Event, Found};
use met_store::{Queries, inbox};
use met_wire::batch::Subject;

use super::admission::Admission;
use super::discovery_thread::Finder;
use super::forwarding;
use super::found_jobs::{self, Discovery};
use super::housekeeping::{Housekeeping, IMPORT_FOR};
use super::identifying::Asked;
use super::last_tick::MetricsCache;
use super::live_settings::LiveSettings;
use super::process_groups::{self, News};
use super::recorder::Recorder;
use super::registry::{Late, Registry, is_found};
use super::sampler_thread::{Sampling, Stuck};
use super::scheduler_answers;
use super::schedulers::{SchedulerClient, Schedulers};
use super::sinks::{self, Outputs};
use super::supervisors::LOOK_FOR;
use crate::idle_power_file::IdleFile;
use crate::sampler::Known;
use met_config::{Config, Failure, Place};
use met_host::users;
use met_query::jobs;
use met_query::setting::Setting;

/// What a killed daemon loses of the machine's history without jobs.
const FLUSH_AT_REST: Duration = Duration::from_secs(300);

/// For samples of an end that the sampler did not answer in time: it is replaced sooner if it hangs.
const LATE_FOR: Duration = Duration::from_secs(60);
const LATE_EVERY: Duration = Duration::from_millis(500);

/// The parts of a daemon. Each owns what it knows; what concerns several of them is done here, in its order.
pub struct Service {
    pub(super) host: Host,
    pub(super) place: Place,
    pub(super) settings: LiveSettings,
    pub(super) registry: Registry,
    pub(super) recorder: Recorder,
    pub(super) sampling: Sampling,
    pub(super) discovery: Discovery,
    pub(super) admission: Admission,
    pub(super) housekeeping: Housekeeping,
    pub(super) schedulers: Schedulers,
    pub(super) outputs: Outputs,
}

/// The end of a job that the store has.
pub(super) struct Ended<'a> {
    /// Complete, as it was written.
    pub(super) record: &'a Record,
    /// Joins the record with what is known from elsewhere.
    pub(super) store: &'a Queries,
    pub(super) place: &'a Place,
}

/// A job runs no more, whether or not its end could be written.
pub(super) struct Left<'a> {
    pub(super) record: &'a Record,
    pub(super) host: &'a Host,
    pub(super) recorder: &'a mut Recorder,
    pub(super) follows: Follows,
}

/// What follows for several parts when a job has left.
#[derive(Default)]
pub(super) struct Follows {
    /// Settings that held until its end do not hold any more.
    pub(super) settings_reverted: bool,
    /// No other job runs.
    pub(super) none_runs: bool,
}

/// A part of a daemon that reacts to the end of a job.
pub(super) trait OnEnd {
    /// The end is stored, at once or after retries. This is not called for one that could not be written: what a part
    /// removes or reports could not be restored.
    fn job_ended(&mut self, _ended: &Ended<'_>) {}

    /// The job runs no more: called once, also if its end is not written yet.
    fn job_left(&mut self, _left: &mut Left<'_>) {}
}

fn client(config: &Config, place: &Place) -> SchedulerClient {
    SchedulerClient::Daemon { system: place.system, forwards: forwarding::is_set_up(config, place) }
}

impl Service {
    pub fn open(
        setting: &Setting,
        place: &Place,
        metrics_cache: Option<Arc<MetricsCache>>,
    ) -> Result<Service> {
        let writer = jobs::open_writer(&place.state).map_err(|error| Failure::usage(error.to_string()))?;
        let before = |manager: &str| scheduler_answers::before(&writer, manager);
        let asked = &setting.config.schedulers;
        let client = client(&setting.config, place);
        let schedulers = Schedulers::start(&setting.host, asked, client, before)?;
        let outputs = Outputs::open(setting, place, metrics_cache);
        let (metrics_cache, ticker) = (outputs.metrics_cache.clone(), outputs.bus.ticker());
        let mut service = Service {
            host: setting.host.clone(),
            place: place.clone(),
            settings: LiveSettings::of(setting),
            registry: Registry::default(),
            recorder: Recorder::new(writer, IdleFile::open(&place.state, &setting.host)),
            sampling: Sampling::start(setting.host.clone(), &setting.config, metrics_cache, ticker)?,
            discovery: Discovery::of(setting, place),
            admission: Admission::begin(),
            housekeeping: Housekeeping::begin(),
            schedulers,
            outputs,
        };
        if let Some(group) =
            setting.config.daemon.operators.as_deref().filter(|group| !users::is_group(group))
        {
            tracing::warn!("daemon.operators: there is no group {group:?}; there are no operators");
        }
        service.outputs.publish_sampling(service.settings.for_sinks());
        service.discovery.perf_cgroups.remove_old(&mut service.recorder.writer);
        service.recorder.emitting.reported = service.recorder.writer.factors().unwrap_or_default();
        service.recorder.emitting.ask(&setting.config)?;
        service.import(None);
        service.housekeeping.remove_earlier_cgroups(&service.host, &service.recorder.writer);
        service.brief_sampling();
        service.take_up_running()?;
        if found_jobs::discovers(&setting.config, place) {
            service.discovery.finding = Some(Finder::start(&setting.host, &setting.config.jobs)?);
        } else {
            service.close_vanished();
        }
        service.outputs.wait_opened();
        Ok(service)
    }

    /// Jobs that began before this daemon did: sampled on if they still run, lost if no supervisor waits for them.
    fn take_up_running(&mut self) -> Result<()> {
        let live = jobs::JobsFilter { states: vec![State::Running, State::Suspended], ..Default::default() };
        let live = self.recorder.writer.jobs(&live.to_store())?;
        // What only a scheduler reports runs elsewhere.
        for mut record in live.into_iter().filter(|record| record.local.is_some()) {
            if process_groups::is_plain(&record) {
                match &mut self.discovery.groups {
                    Some(groups) => groups.resume(record),
                    // Without a look at processes they are over.
                    None => self.close_as_last_known(record),
                }
                continue;
            }
            if is_found(&record) {
                self.registry.resumable.push(record);
                continue;
            }
            jobs::settle(&self.host, &mut record);
            let in_terminal = record.local.as_ref().is_some_and(|local| local.origin == Origin::Time);
            // The end of a job in a terminal is reported by its user's own commands. Lost jobs are found as later on.
            if !in_terminal {
                self.watch(record);
            } else if record.state == State::Lost && self.recorder.writer.has_no_pending_end(&record.key) {
                self.close_lost(record);
            }
        }
        Ok(())
    }

    pub fn job_count(&self) -> usize {
        self.registry.jobs.len()
    }

    /// Samples a running job and waits for its supervisor, or for the discovery to see its end.
    pub(super) fn watch(&mut self, record: Record) {
        if self.registry.jobs.contains_key(&record.key) {
            return;
        }
        if let Some(groups) = &mut self.discovery.groups {
            groups.note_other_job(&record);
        }
        self.sampling.add(&record, self.recorder.series_before(&record.key));
        self.outputs.on_metrics_cache(|metrics_cache| metrics_cache.runs(&record));
        self.schedulers.job_started(&record.key);
        let (key, is_found) = (record.key.clone(), is_found(&record));
        self.registry.insert(record);
        if !is_found {
            self.look_at_supervisor(&key);
        }
    }

    /// Ends a job for good. What cannot be written is kept and tried again, and that it is not on disk is said.
    ///
    /// The order matters: the sampler is asked before the record is completed, and parts react after the commit.
    pub(super) fn close_job(&mut self, mut record: Record) -> Result<()> {
        let known = Known::of(&record);
        let sampled = self.ask_sampling(|sampling| sampling.remove(&record.key, known));
        if sampled.is_err() {
            let now = Instant::now();
            self.registry.late = Some(Late { until: now + LATE_FOR, next: now });
        }
        let sampled = sampled.ok().flatten();
        if sampled.is_some() {
            self.registry.owed.insert(record.key.clone());
        }
        let interval = self.settings.config.sampling.shortest();
        self.recorder.complete(&mut record, sampled.unwrap_or_default(), interval, &mut self.outputs);
        let written = self.recorder.commit_end(&record);
        if let Some(kept) =
            self.registry.jobs.get(&record.key).filter(|_| self.outputs.is_withheld(&record.key))
        {
            self.outputs.publish_unnamed(&kept.record, self.recorder.series_before(&record.key));
        }
        match &written {
            Ok(()) => self.end_stored(&record),
            // It does not run any more, and its last figures are shown when the store has them.
            Err(_) => self.outputs.on_metrics_cache(|metrics_cache| metrics_cache.forget(&record.key)),
        }
        self.job_left(&record);
        written?;
        // The end is stored: jobs that could not be removed are tried again at the next end.
        if let Err(error) = self.recorder.limit_count(&self.settings.config.storage) {
            tracing::warn!("jobs above storage.size could not be removed: {error:#}");
        }
        Ok(())
    }

    /// The store has the end of a job, at once or after retries: the parts react.
    fn end_stored(&mut self, record: &Record) {
        let Service { place, recorder, outputs, admission, schedulers, .. } = self;
        let ended = Ended { record, store: &recorder.writer, place };
        let parts: [&mut dyn OnEnd; 3] = [outputs, admission, schedulers];
        parts.into_iter().for_each(|part| part.job_ended(&ended));
    }

    /// A job runs no more, whether or not its end could be written: the parts react.
    fn job_left(&mut self, record: &Record) {
        let Service { host, recorder, registry, settings, discovery, housekeeping, .. } = self;
        let mut left = Left { record, host, recorder, follows: Follows::default() };
        let parts: [&mut dyn OnEnd; 4] = [registry, settings, &mut discovery.perf_cgroups, housekeeping];
        parts.into_iter().for_each(|part| part.job_left(&mut left));
        let follows = left.follows;
        if follows.settings_reverted {
            self.apply_overrides();
        }
        if follows.none_runs {
            // Nothing else writes the last samples of the GPUs.
            self.flush();
        }
    }

    fn close_lost(&mut self, mut record: Record) {
        record.state = State::Lost;
        if let Err(error) = self.close_job(record) {
            tracing::error!("cannot store a lost job: {error:#}");
        }
    }

    /// Looks at the supervisors that hold no connection, where that is due.
    pub fn look_at_supervisors(&mut self) {
        let now = Instant::now();
        for key in self.registry.due_supervisors(now) {
            // Each end is a write: who waits for an answer does not wait for hundreds. The others are still due.
            if now.elapsed() > LOOK_FOR {
                break;
            }
            self.look_at_supervisor(&key);
        }
    }

    /// Ends the job if its supervisor is proven to be gone.
    pub(super) fn look_at_supervisor(&mut self, key: &JobKey) {
        // While the sampler is not ready it is still due.
        if !self.registry.is_orphan(key, &self.host) || !self.sampling.is_ready() {
            return;
        }
        let Some(left) = self.registry.left_by(key, &self.place, &mut self.admission.spare) else { return };
        match self.close_job(left.record) {
            Ok(()) => drop(left.folder.map(|folder| folder.remove())),
            // It stays in the inbox, where every reader finds it.
            Err(error) if left.is_end => {
                tracing::error!("cannot store the end of job {}: {error:#}", key.id);
            }
            Err(error) => tracing::error!("cannot store a lost job: {error:#}"),
        }
    }

    /// Takes note of what the discovery has seen since the last call.
    pub fn discovered(&mut self) {
        // A job that ended takes its samples with it.
        if self.discovery.finding.is_none() || !self.sampling.is_ready() {
            return;
        }
        for event in self.discovery.take() {
            match event {
                Event::Found(found) => self.found(*found),
                Event::Inhabited(job) => self.identify(job),
                Event::Named(job, id) => self.rename(job, &id),
                Event::Parts(job, parts) => self.discovery.put_parts(job, parts, &mut self.registry),
                Event::Ended(ended) => {
                    let record = self.discovery.leave(*ended, &mut self.registry, &self.sampling);
                    record.into_iter().for_each(|record| self.close_found(record));
                }
                Event::Looked => self.close_vanished(),
            }
        }
    }

    pub(super) fn found(&mut self, found: Found) {
        if let Some(record) = self.discovery.follow_another_node(&found, &mut self.registry) {
            self.recorder.keep(record);
            self.sampling.add_cgroup(&record.key, found.cgroup);
            return;
        }
        let resumable = &mut self.registry.resumable;
        let continued = resumable.iter().position(|record| found_jobs::is_same(&self.host, record, &found));
        let record = match continued.map(|index| resumable.swap_remove(index)) {
            Some(record) => {
                self.recorder.keep(&record);
                record
            }
            None => {
                let record =
                    found_jobs::new_record(&self.host, &self.registry, &self.recorder.writer, &found);
                self.recorder.adopt(&record, &mut self.outputs);
                record
            }
        };
        self.discovery.follow(&found, &record);
        let key = record.key.clone();
        self.watch(record);
        self.follow_allocation(&key);
        // An earlier daemon may have known it by another name.
        if found.captures.sluid.as_ref() != Some(&found.id) {
            self.rename(found.job, &found.id);
        }
        // A process that is in it already is not reported again.
        if !found.pids.is_empty() {
            self.identify(found.job);
        }
    }

    /// What its scheduler had reported of a job before it was found, and what its own record does not say.
    fn follow_allocation(&self, key: &JobKey) {
        if let Ok(Some(known)) = self.recorder.writer.get(key) {
            self.sampling.allocate(&known);
        }
    }

    /// Moves a job that was found under another name to what its manager calls it.
    pub(super) fn rename(&mut self, job: u64, id: &str) {
        let Some(old) = self.discovery.other_name(job, id) else { return };
        // What was sampled under its old name goes with it.
        self.flush();
        let Some(mut kept) = self.registry.jobs.remove(&old) else { return };
        let new = JobKey { id: id.to_owned(), ..old.clone() };
        let new = self.registry.free_key(&self.recorder.writer, new);
        // Also events that are not counted any more have series.
        let live = self.sampling.live().remove(&old).unwrap_or_default();
        let counted = live.events.into_iter().map(|event| event.name);
        let events = counted.chain(self.settings.config.perf.events.iter().cloned()).collect();
        self.sampling.rename(&old, &new);
        self.recorder.rename(&old, &new, &events);
        kept.record.name = if kept.record.name == old.id { id.to_owned() } else { kept.record.name };
        kept.record.key = new.clone();
        self.recorder.adopt(&kept.record, &mut self.outputs);
        let was_withheld = self.outputs.stop_withholding(&old);
        if let Some(series) = self.recorder.series_before(&new).filter(|_| was_withheld) {
            sinks::publish_samples(&mut self.outputs.bus, Subject::Job(new.clone()), series);
        }
        self.outputs.on_metrics_cache(|metrics_cache| {
            metrics_cache.forget(&old);
            metrics_cache.runs(&kept.record);
        });
        self.registry.jobs.insert(new.clone(), kept);
        self.schedulers.job_started(&new);
        self.follow_allocation(&new);
        self.registry.nesting.rename(&old, &new, &mut self.registry.jobs, &mut self.recorder);
        self.discovery.rename(&old, &new);
        self.identify(job);
    }

    /// Jobs that an earlier daemon followed and that are gone since: as last known.
    fn close_vanished(&mut self) {
        for record in std::mem::take(&mut self.registry.resumable) {
            self.close_as_last_known(record);
        }
    }

    fn close_as_last_known(&mut self, mut record: Record) {
        self.recorder.fill_as_last_known(&mut record);
        self.close_found(record);
    }

    pub(super) fn close_found(&mut self, mut record: Record) {
        found_jobs::end(&mut record);
        if let Err(error) = self.close_job(record) {
            tracing::error!("cannot store the end of a job: {error:#}");
        }
    }

    /// The job has a process now, which can be asked what it is.
    pub(super) fn identify(&mut self, job: u64) {
        self.discovery.identify(job);
        self.ask_who_is_due();
        self.follow_perf_cgroups();
    }

    pub fn ask_who_is_due(&mut self) {
        let Service { host, registry, recorder, sampling, outputs, .. } = self;
        self.discovery.ask_who_is_due(&mut Asked { host, registry, recorder, sampling, outputs });
    }

    pub fn look_at_groups_if_due(&mut self) {
        let Some(groups) = &self.discovery.groups else { return };
        if groups.next_look() > Instant::now() || !self.sampling.is_ready() {
            return;
        }
        if let Some(admits) = groups.admits(self.discovery.has_resource_manager()) {
            self.look_at_groups(admits);
        }
        let gone = self.discovery.groups.as_mut().map(|groups| groups.looked());
        gone.into_iter().flatten().for_each(|record| self.close_as_last_known(record));
    }

    /// `admits`: whether groups that are no jobs yet may become some.
    pub(super) fn look_at_groups(&mut self, admits: bool) {
        let Some(groups) = &mut self.discovery.groups else { return };
        for news in groups.follow(&self.host, &self.registry, &self.recorder.writer, admits) {
            match news {
                News::Began { record, is_new, roots } => {
                    if let Err(error) = self.recorder.writer.put(&record) {
                        tracing::warn!("job {}: {error}", record.key.id);
                    } else if is_new {
                        self.outputs.publish_start(&record);
                    }
                    let key = record.key.clone();
                    self.watch(*record);
                    roots.into_iter().for_each(|root| self.sampling.add_root(&key, root));
                }
                News::Joined(key, process) => self.sampling.add_root(&key, process),
            }
        }
        let ended = self.discovery.groups.as_mut().map(|groups| groups.take_ended(&mut self.registry));
        ended.into_iter().flatten().for_each(|record| self.close_found(record));
    }

    /// Brings the directories in line with the jobs that are there and the events that are asked for.
    fn follow_perf_cgroups(&mut self) {
        let writer = &mut self.recorder.writer;
        self.discovery.perf_cgroups.follow(
            &self.host,
            &self.settings,
            &self.registry,
            &self.sampling,
            writer,
        );
    }

    /// Readable when a scheduler has replied, unless an earlier reply waits to be written.
    pub fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.schedulers.ready_fd().filter(|_| self.recorder.unwritten.reported.is_none())
    }

    /// Writes a piece of what schedulers reported: some dozens of jobs at a time, others have their turn in between.
    pub fn take_scheduler_records(&mut self) {
        for record in self.recorder.take_scheduler_records(&mut self.schedulers, &mut self.outputs) {
            if self.registry.jobs.contains_key(&record.key) {
                self.sampling.allocate(&record);
            }
        }
    }

    /// Tries again to write the starts and ends of jobs.
    pub(super) fn write_records(&mut self) {
        let written = self.recorder.write_records();
        written.iter().filter(|record| !record.state.is_live()).for_each(|record| self.end_stored(record));
    }

    /// Tries again what could not be written.
    fn write_again(&mut self) {
        self.write_records();
        if self.recorder.unwritten.reported.is_some() {
            self.take_scheduler_records();
        }
    }

    pub fn has_to_flush(&self) -> bool {
        let keeps_node = self.settings.keeps_node(self.place.system);
        !self.registry.jobs.is_empty() || !self.recorder.unwritten.is_empty() || keeps_node
    }

    pub fn flush_every(&self) -> Duration {
        let within = self.outputs.within();
        let every = self.settings.flush_every(within);
        match self.registry.jobs.is_empty() && self.recorder.unwritten.is_empty() {
            // Nothing comes in between that others wait for.
            true if within.is_some() => every.max(self.settings.config.node.idle()),
            true => every.max(FLUSH_AT_REST),
            false => every,
        }
    }

    pub fn flush(&mut self) {
        self.write_again();
        self.follow_perf_cgroups();
        let interval = self.settings.config.sampling.shortest();
        let late = self.recorder.write_samples(&self.sampling, &self.registry, interval, &mut self.outputs);
        // The sampler was asked for all of them before these samples. If they are no longer waited for, their energy may
        // have been settled already.
        if !late.is_empty() && self.registry.late.take().is_some() {
            self.registry.owed.extend(late);
        }
        for key in self.outputs.withheld_for_long() {
            match self.registry.jobs.get(&key) {
                Some(kept) => self.outputs.publish_unnamed(&kept.record, self.recorder.series_before(&key)),
                None => drop(self.outputs.stop_withholding(&key)),
            }
        }
    }

    /// Writes what was sampled of jobs whose end the sampler did not answer in time.
    fn complete_late(&mut self) {
        let now = Instant::now();
        let Some(late) = self.registry.late.filter(|late| now >= late.next) else { return };
        self.registry.late = (now < late.until).then(|| Late { next: now + LATE_EVERY, ..late });
        if self.sampling.is_ready() {
            self.flush();
        }
    }

    /// Adds to jobs that are over what their last window of energy came to.
    pub fn settle_energy(&mut self) {
        self.complete_late();
        // What was sampled of a job that ended comes before its last share of energy.
        if self.registry.late.is_none() && self.is_owed() && self.sampling.is_ready() {
            let settled = self.sampling.settled();
            for (key, _) in &settled {
                self.registry.owed.remove(key);
            }
            self.recorder.put_energy(settled, &mut self.outputs);
        }
    }

    pub fn is_owed(&self) -> bool {
        !self.registry.owed.is_empty() || self.registry.late.is_some()
    }

    /// Takes up what a provider of emission factors said.
    pub fn take_factors(&mut self) {
        let Recorder { emitting, writer, .. } = &mut self.recorder;
        emitting.take_factors(writer, &self.settings.config, &self.sampling);
    }

    /// Sends the sampler the factor that holds now, if that is another one.
    pub fn follow_factor(&mut self) {
        self.recorder.emitting.follow(&self.settings.config, &self.sampling);
    }

    /// What is due by now.
    pub fn tidy(&mut self, now: Instant) {
        self.housekeeping.remove_cgroups(now);
        self.housekeeping.upgrade(now, &mut self.recorder.writer);
        self.housekeeping.thin(now, &mut self.recorder.writer, &self.settings.config.storage);
        self.housekeeping.sum(now, &mut self.recorder.writer, &self.host.facts().hostname);
        if self.recorder.repairs.begin(now) {
            self.recorder.look_after_store(&self.registry);
        }
        if self.housekeeping.look(now, &self.host, &self.place, &self.recorder.writer, &self.registry) {
            self.import(Some(IMPORT_FOR));
        }
    }

    /// Imports what others left, for so long. The end of a job that is followed comes from its supervisor, or is found when
    /// that is gone.
    pub(super) fn import(&mut self, within: Option<Duration>) {
        let Service { host, place, housekeeping, recorder, registry, .. } = self;
        for record in housekeeping.import(host, place, &mut recorder.writer, registry, within) {
            self.outputs.publish_stored_end(&recorder.writer, &record);
        }
    }

    /// Removes what supervisors left that died before they announced their job.
    pub fn sweep(&mut self) {
        let Service { host, registry, .. } = self;
        self.housekeeping.leave(self.admission.sweep(host, registry));
    }

    /// Whether so much was announced since the last retention that the next one cannot wait.
    pub fn is_retention_due(&self) -> bool {
        self.admission.announced.is_retention_due(self.settings.config.storage.max_bytes)
    }

    pub fn retain(&mut self) {
        self.admission.announced = Default::default();
        if let Err(error) = inbox::clean(&self.place.state) {
            tracing::warn!("{}: {error}", self.place.state.display());
        }
        self.sweep();
        self.recorder.look_after_store(&self.registry);
        self.recorder.retain(&self.settings.config.storage);
        self.housekeeping.begin_thinning(Instant::now());
    }

    /// When to look after the sampling thread, while it ticks.
    pub fn next_care(&self) -> Option<Instant> {
        self.sampling.next_care(!self.registry.jobs.is_empty() || self.outputs.metrics_cache.is_some())
    }

    /// Goes on with another sampling thread if this one is kept.
    pub fn look_after_sampling(&mut self) {
        if self.sampling.is_kept() {
            self.replace_sampling();
        }
        self.sampling.take_up_answered(&self.settings.config);
    }

    /// Asks the sampling thread, and if something keeps it the next one.
    pub(super) fn ask_sampling<T>(
        &mut self,
        ask: impl Fn(&Sampling) -> Result<T, Stuck>,
    ) -> Result<T, Stuck> {
        let answer = ask(&self.sampling);
        if answer.is_err() && self.sampling.is_kept() && self.replace_sampling() {
            return ask(&self.sampling);
        }
        answer
    }

    /// Whether another thread goes on.
    pub(super) fn replace_sampling(&mut self) -> bool {
        if !self.sampling.replace(&self.host, &self.settings.config, &self.outputs) {
            return false;
        }
        self.brief_sampling();
        self.settings.send_events(&self.sampling);
        // Who was owed a last share of energy has what he was charged until his end.
        self.registry.owed.clear();
        self.registry.late = None;
        self.registry.jobs.values().for_each(|kept| self.sampling.send_job(&kept.record, &self.recorder));
        let Service { host, registry, recorder, sampling, outputs, .. } = self;
        self.discovery.ask_those_who_are_left(&mut Asked { host, registry, recorder, sampling, outputs });
        if let Some(groups) = &self.discovery.groups {
            groups.send_to(&self.sampling);
        }
        self.discovery.perf_cgroups.send_to(&self.sampling);
        true
    }

    fn brief_sampling(&mut self) {
        let keeps_node = self.settings.keeps_node(self.place.system);
        self.recorder.brief(&self.sampling, &self.settings.config, keeps_node);
        self.outputs.tell_watched(&self.sampling);
    }

    /// Brings the sampler in line; says what cannot be counted.
    pub(super) fn apply_overrides(&mut self) -> Option<String> {
        self.settings.settle(&self.sampling);
        self.follow_perf_cgroups();
        self.outputs.publish_sampling(self.settings.for_sinks());
        self.settings.set_events(&self.sampling)
    }

    /// Reads the file again. A bad one changes nothing.
    pub fn reread(&mut self) {
        let Some((name, before)) = self.settings.reread(&self.sampling) else { return };
        self.sampling.forgive_sources(&self.settings.config);
        self.sampling.keep_node(self.settings.keeps_node(self.place.system));
        let uncounted = self.apply_overrides().filter(|_| before.perf != self.settings.config.perf);
        if let Some(words) = uncounted {
            tracing::warn!("{name}: perf.events: {words}");
        }
        if let Err(error) = self.take_up(&before) {
            tracing::error!("{name}: {error:#}");
        }
        tracing::info!("configuration read again: {name}");
    }

    /// What threads of their own do.
    fn take_up(&mut self, before: &Config) -> Result<()> {
        let config = &self.settings.config;
        if before.emissions != config.emissions {
            self.recorder.emitting.ask(config)?;
            self.recorder.emitting.follow(config, &self.sampling);
        }
        if before.schedulers != config.schedulers {
            let known = |manager: &str| scheduler_answers::before(&self.recorder.writer, manager);
            let client = client(config, &self.place);
            self.schedulers = Schedulers::start(&self.host, &config.schedulers, client, known)?;
            self.registry.jobs.keys().for_each(|key| self.schedulers.job_started(key));
        }
        Ok(())
    }

    pub fn close(mut self) {
        // The next daemon does not know of cgroups whose jobs were never announced.
        self.sweep();
        // Those that are left are tried by the next daemon.
        self.housekeeping.remove_cgroups_now();
        // A job that runs on may end before another daemon comes.
        self.recorder.keep_charged(self.sampling.live().into_iter(), &self.registry);
        // Whatever the meters show now is all that will be known.
        let settled = self.sampling.settle_now();
        self.recorder.put_energy(settled, &mut self.outputs);
        self.write_again();
        if let Some(finding) = self.discovery.finding.take() {
            finding.stop();
        }
        self.sampling.stop();
        self.outputs.bus.close();
    }
}
