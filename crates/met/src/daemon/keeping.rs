//! The jobs a daemon knows: who may ask for which, what happens when one starts, ends or is lost.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use met_core::course::Course;
use met_core::energy::emission::Factor;
use met_core::job::{CgroupPaths, JobKey, LOCAL, Origin, QualityKind, Record, State};
use met_core::job_table::{CPU, GPU_ENERGY, GPU_ENERGY_IDLE};
use met_host::Host;
use met_jobs::enclosure::{self, Enable, Enclosure};
use met_jobs::layouts::Layouts;
use met_sinks::forward::{self, Forward};
use met_store::inbox::{self, JobDir};
use met_store::{Device, Writer};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::board::Board;
use super::claims::{self, Made};
use super::finding::Finding;
use super::forwarding;
use super::found::{self, Directory, Gone};
use super::identifying::Asking;
use super::nesting::Outer;
use super::plain::{self, Groups};
use super::sampling::Sampling;
use super::schedulers::Schedulers;
use super::shadows::Shadows;
use super::socket::Peer;
use super::standing::Standing;
use super::told;
use super::unwritten::Unwritten;
use crate::config::{Config, Presence, Scope};
use crate::emissions;
use crate::failure::Failure;
use crate::jobs;
use crate::node_energy::Charged;
use crate::paths::Place;
use crate::protocol::{DiscoveryStatus, Reply, Request, Status, WireCourse};
use crate::sampler::{Known, Live};
use crate::setting::Setting;
use crate::users;

/// Samples in one reply: some ten megabytes.
const PAGE_SAMPLES: usize = 50_000;
/// How far a user's own ids may be ahead of everybody's.
const ID_LEAP_MAX: u64 = 1_000_000;

pub struct Keeping {
    pub(super) host: Host,
    /// As it holds: the file's, and live changes.
    pub(super) config: Config,
    pub(super) standing: Standing,
    pub(super) place: Place,
    pub(super) writer: Writer,
    pub(super) sampling: Sampling,
    pub(super) finding: Option<Finding>,
    pub(super) jobs: HashMap<JobKey, Kept>,
    /// The jobs that the discovery follows, by its numbers for them.
    pub(super) found: HashMap<u64, Directory>,
    /// Jobs of ours inside jobs that the discovery follows.
    pub(super) outers: HashMap<JobKey, Outer>,
    pub(super) layouts: Layouts,
    /// Those that an earlier daemon followed, until they are found again or known to be gone.
    pub(super) resumable: Vec<Record>,
    /// Those of which it is not known yet who they are.
    pub(super) asking: Vec<Asking>,
    /// Groups of processes, where there is no batch system.
    pub(super) groups: Option<Groups>,
    made: Made,
    /// Ids that were reserved and have no end yet, and for whom.
    given: HashMap<u64, u32>,
    pub(super) schedulers: Schedulers,
    pub(super) unwritten: Unwritten,
    /// Jobs that are over, and whose last share of energy is not known yet.
    owed: HashSet<JobKey>,
    pub(super) emitting: Emitting,
    /// Where events of jobs are counted that have no v2 cgroup.
    pub(super) shadows: Shadows,
    /// Where others read of it, if somebody listens.
    pub(super) board: Option<Arc<Board>>,
    /// To the server of the cluster, where there is one.
    forward: Option<Forward>,
    /// Why there is none, though one was asked for.
    not_sending: Option<Box<forward::Status>>,
}

/// What a kilowatt hour emits.
#[derive(Default)]
pub(super) struct Emitting {
    pub(super) asking: Option<emissions::Asking>,
    told: Vec<Factor>,
    holds: Option<Factor>,
}

pub(super) struct Kept {
    pub(super) record: Record,
    /// Readable when the supervisor is gone; `None` where the kernel has no pidfd.
    supervisor: Option<OwnedFd>,
    /// What it did in directories that are gone, while it has others.
    pub(super) gone: Vec<Gone>,
}

impl Keeping {
    pub fn open(setting: &Setting, place: &Place, board: Option<Arc<Board>>) -> Result<Keeping> {
        let writer = jobs::open_writer(&place.state).map_err(|error| Failure::usage(error.to_string()))?;
        let before = |manager: &str| told::before(&writer, manager);
        let asked = &setting.config.schedulers;
        let schedulers = Schedulers::start(&setting.host, asked, place.system, Scope::Node, before)?;
        let (forward, not_sending) = match forwarding::start(&setting.host, &setting.config, place) {
            Ok(forward) => (forward, None),
            Err(status) => (None, Some(status)),
        };
        let mut keeping = Keeping {
            host: setting.host.clone(),
            config: setting.config.clone(),
            standing: Standing::of(setting),
            place: place.clone(),
            writer,
            sampling: Sampling::start(setting.host.clone(), &setting.config, board.clone())?,
            finding: None,
            jobs: HashMap::new(),
            found: HashMap::new(),
            outers: HashMap::new(),
            layouts: setting.layouts(),
            resumable: Vec::new(),
            asking: Vec::new(),
            groups: Groups::of(&setting.host, &setting.config.jobs, place, discovers(&setting.config, place)),
            made: Made::default(),
            given: HashMap::new(),
            schedulers,
            unwritten: Unwritten::default(),
            owed: HashSet::new(),
            emitting: Emitting::default(),
            shadows: Shadows::default(),
            board,
            forward,
            not_sending,
        };
        if let (Some(board), Some(forward)) = (&keeping.board, &keeping.forward) {
            board.watch_spool(forward.watch());
        }
        keeping.remove_old_shadows();
        keeping.emitting.told = keeping.writer.factors().unwrap_or_default();
        keeping.emitting.asking = emissions::Asking::start(&setting.config.emissions, keeping.told_ns())?;
        keeping.follow_factor();
        // What cannot be imported now (a full disk) stays in the inbox, where every reader finds it.
        if let Err(error) = jobs::import(&mut keeping.writer, &place.state, &keeping.host) {
            tracing::warn!("{error:#}");
        }
        match keeping.writer.devices() {
            Ok(devices) => keeping.sampling.recall_devices(devices),
            Err(error) => tracing::warn!("what was learned about cards is not known: {error}"),
        }
        keeping.sampling.keep_node(keeping.keeps_node());
        keeping.take_up_running()?;
        if discovers(&setting.config, place) {
            keeping.finding = Some(Finding::start(&setting.host, &setting.config.jobs)?);
        } else {
            keeping.close_vanished();
        }
        Ok(keeping)
    }

    /// Jobs that began before this daemon did: sampled on if they still run, lost if nobody waits for them.
    fn take_up_running(&mut self) -> Result<()> {
        let live = jobs::JobsFilter { states: vec![State::Running, State::Suspended], ..Default::default() };
        let live = self.writer.jobs(&live.to_store())?;
        // What only a scheduler tells of runs elsewhere.
        for mut record in live.into_iter().filter(|record| record.local.is_some()) {
            if plain::is_plain(&record) {
                self.resume_plain(record);
                continue;
            }
            if Keeping::is_found(&record) {
                self.resumable.push(record);
                continue;
            }
            jobs::settle(&self.host, &mut record);
            let in_terminal =
                record.local.as_ref().is_some_and(|local| local.origin == met_core::job::Origin::Time);
            if record.state == State::Lost {
                self.close_lost(record);
            } else if !in_terminal {
                self.watch(record);
            }
        }
        Ok(())
    }

    pub(super) fn on_board(&self, tell: impl FnOnce(&Board)) {
        if let Some(board) = &self.board {
            tell(board);
        }
    }

    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    pub fn supervisors(&self) -> impl Iterator<Item = (JobKey, &OwnedFd)> {
        self.jobs.iter().filter_map(|(key, kept)| Some((key.clone(), kept.supervisor.as_ref()?)))
    }

    pub fn may_stop(&self, peer: Peer) -> bool {
        peer.uid == 0 || peer.uid == rustix::process::getuid().as_raw()
    }

    pub(super) fn sees_all(&self, peer: Peer) -> bool {
        let operators = self.config.daemon.operators.as_deref();
        self.may_stop(peer) || operators.is_some_and(|group| users::is_in_group(peer.uid, group))
    }

    pub fn answer(&mut self, request: Request, peer: Peer) -> Result<Reply> {
        if !self.place.system && !self.may_stop(peer) {
            bail!("this daemon serves another user");
        }
        match request {
            Request::Reserve { at_least } => self.reserve(at_least, peer),
            Request::Enclose { name, pid } => self.enclose(&name, pid, peer).map(Reply::Enclosed),
            Request::Started(record) => self.started(*record, peer),
            Request::Ended(record) => self.ended(*record, peer),
            Request::Jobs(mut filter) => {
                if !self.sees_all(peer) {
                    filter.uid = Some(peer.uid);
                }
                self.refresh();
                self.discovered();
                let found = self.writer.jobs(&filter.to_store())?;
                let mut found = self.with_live(found);
                filter.retain(&mut found);
                Ok(Reply::Jobs(found))
            }
            Request::Find(job) => {
                self.refresh();
                self.discovered();
                let mut found = jobs::find(&self.writer, &job)?;
                let sees_all = self.sees_all(peer);
                if !sees_all && !found.iter().any(|record| record.uid == Some(peer.uid)) {
                    found = self.find_own(&job, peer)?;
                }
                found.retain(|record| sees_all || record.uid == Some(peer.uid));
                Ok(Reply::Jobs(self.with_live(found)))
            }
            Request::Course { key, after_ms } => self.course(&key, after_ms, peer),
            Request::CardCourse { key, uuid, after_ms } => self.card_course(&key, &uuid, after_ms, peer),
            Request::Remove(key) => self.remove(&key, peer),
            Request::NodeParts { since_ms } => self.node_parts(since_ms),
            Request::NodeCourse { table, part, after_ms } => self.node_course(&table, &part, after_ms),
            Request::Factors => Ok(Reply::Factors(self.writer.factors()?)),
            Request::Correct(correction) if self.may_stop(peer) => {
                let jobs = correction.apply(&mut self.writer, &self.config)?;
                self.emitting.told = self.writer.factors()?;
                self.follow_factor();
                Ok(Reply::Corrected { jobs })
            }
            Request::Energy => Ok(Reply::Energy(self.sampling.energy_window())),
            Request::Correct(_) => bail!("only root may change the factors of the system daemon"),
            Request::InForce => Ok(self.in_force(peer)),
            Request::Configure(change) => self.configure(&change, peer),
            Request::Status => Ok(Reply::Status(Box::new(self.status()?))),
            Request::Hello { .. } | Request::Stop | Request::Nodes | Request::NodeCourses { .. } => {
                bail!("not a question about jobs")
            }
        }
    }

    /// The newest job of a user that fits, where the newest of all is somebody else's.
    fn find_own(&mut self, job: &jobs::JobRef, peer: Peer) -> Result<Vec<Record>> {
        let name = match job {
            jobs::JobRef::Id { .. } => return Ok(Vec::new()),
            jobs::JobRef::Name(name) => Some(name.clone()),
            jobs::JobRef::Last => None,
        };
        let filter = jobs::JobsFilter { uid: Some(peer.uid), limit: Some(1), name, ..Default::default() };
        Ok(self.writer.jobs(&filter.to_store())?)
    }

    fn reserve(&mut self, at_least: u64, peer: Peer) -> Result<Reply> {
        let next = self.writer.next_local_id()?;
        // A user's own ids are not far from everybody's, unless he means to use them all up.
        if at_least > next + ID_LEAP_MAX {
            bail!("job ids are at {next}; {at_least} is too far ahead");
        }
        let (id, _) = JobDir::reserve(&self.place.state, at_least.max(next))?;
        self.given.insert(id, peer.uid);
        Ok(Reply::Reserved { id })
    }

    /// Makes a cgroup inside the caller's own slice and moves his waiting child into it.
    fn enclose(&mut self, name: &str, pid: u32, peer: Peer) -> Result<CgroupPaths> {
        if !enclosure::is_valid_name(name) {
            bail!("{name:?} is no name for a job's cgroup");
        }
        if self.made.has_one(peer) {
            bail!("this supervisor has a cgroup for its job already");
        }
        let child = Pid::from_raw(pid as i32).context("no such process")?;
        // While the pidfd shows it alive, the pid cannot have become somebody else's.
        let pidfd = pidfd_open(child, PidfdFlags::empty()).context("no such process")?;
        let (parent, uid) = claims::parent_and_user(&self.host, pid)?;
        if parent != peer.pid || uid != peer.uid {
            bail!("process {pid} is not a child of the caller");
        }
        let made = Enclosure::create(&self.host, pid, name, Enable::Yes);
        if made.move_in(pid).is_err() || made.paths.is_empty() || !alive(&pidfd) {
            bail!("no cgroup could be made");
        }
        let paths = made.keep();
        self.made.insert(name, peer, &paths);
        Ok(paths)
    }

    fn started(&mut self, mut record: Record, peer: Peer) -> Result<Reply> {
        if record.key.manager != LOCAL {
            bail!("only local jobs are announced");
        }
        let known = self.known(&record.key)?;
        match &known {
            Some(known) => self.check_owner(known, peer)?,
            None if self.place.system && !self.gave_away(&record, peer) => bail!("no such job"),
            None => {}
        }
        // An announcement that was overtaken by the end is old news.
        if known.as_ref().is_some_and(|known| !known.state.is_live() && known.state != State::Lost) {
            return Ok(Reply::Done);
        }
        claims::vouch_start(&self.host, &self.made, &mut record, known.as_ref(), peer)?;
        record.state = State::Running;
        self.place_inside(&mut record, known.as_ref(), peer);
        self.writer.put(&record)?;
        self.note_inner(&record);
        self.watch(record);
        Ok(Reply::Done)
    }

    fn known(&mut self, key: &JobKey) -> Result<Option<Record>> {
        if let Some(end) = self.unwritten.end_of(key) {
            return Ok(Some(end.clone()));
        }
        match self.jobs.get(key) {
            Some(kept) => Ok(Some(kept.record.clone())),
            None => Ok(self.writer.get(key)?),
        }
    }

    fn check_owner(&self, record: &Record, peer: Peer) -> Result<()> {
        if !self.may_stop(peer) && record.uid != Some(peer.uid) {
            bail!("no such job");
        }
        Ok(())
    }

    /// Samples a running job and waits for its supervisor, or for the discovery to see its end.
    pub(super) fn watch(&mut self, record: Record) {
        if self.jobs.contains_key(&record.key) {
            return;
        }
        self.note_other_job(&record);
        let supervisor = record.local.as_ref().and_then(|local| local.supervisor);
        let pidfd = supervisor
            .and_then(|supervisor| Pid::from_raw(supervisor.pid as i32))
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let before = self.writer.course(&record.key).ok().filter(|course| !course.is_empty());
        let waited_for =
            pidfd.is_some() && supervisor.is_some_and(|supervisor| self.host.is_alive(supervisor));
        self.sampling.add(&record, before);
        self.on_board(|board| board.runs(&record));
        let key = record.key.clone();
        let waited_for = waited_for || Keeping::is_found(&record);
        self.jobs.insert(key.clone(), Kept { record, supervisor: pidfd, gone: Vec::new() });
        self.hurry();
        if !waited_for {
            self.supervisor_gone(&key);
        }
    }

    /// Keeps the end of a job; it is on disk when this returns.
    fn ended(&mut self, mut record: Record, peer: Peer) -> Result<Reply> {
        if record.state.is_live() {
            bail!("the job has not ended");
        }
        if record.key.manager != LOCAL {
            bail!("only local jobs tell their end");
        }
        // A job may end before its start was told. A system daemon then knows it by the id it gave away;
        // other jobs are kept by their owners.
        let known = self.known(&record.key)?;
        match &known {
            Some(known) => self.check_owner(known, peer)?,
            None if self.place.system && !self.gave_away(&record, peer) => bail!("no such job"),
            None => {}
        }
        claims::vouch_end(&self.made, &mut record, known.as_ref(), peer);
        self.place_inside(&mut record, known.as_ref(), peer);
        self.close_job(record)?;
        Ok(Reply::Done)
    }

    fn gave_away(&self, record: &Record, peer: Peer) -> bool {
        let given = record.key.id.parse().ok().and_then(|id: u64| self.given.get(&id));
        given.is_some_and(|&uid| uid == peer.uid || self.may_stop(peer))
    }

    /// Ends a job for good. What cannot be written is kept and tried again, and that it is not on disk is said.
    pub(super) fn close_job(&mut self, mut record: Record) -> Result<()> {
        let sampled = self.sampling.remove(&record.key, Known::of(&record));
        if sampled.is_some() {
            self.owed.insert(record.key.clone());
        }
        let mut sampled = sampled.unwrap_or_default();
        sampled.close_course(&record);
        self.keep_course(&record.key, &sampled.course);
        let course = self.writer.course(&record.key).unwrap_or(sampled.course.clone());
        sampled.complete(&mut record, &course, self.config.sampling.interval);
        self.on_board(|board| board.ended(&record));
        let written = self.writer.put(&record);
        if written.is_err() {
            self.unwritten.keep_end(record.clone());
        }
        self.hurry();
        self.note_inner(&record);
        self.outers.remove(&record.key);
        self.jobs.remove(&record.key);
        self.revert_with(&record.key);
        self.follow_shadows();
        self.forget_cgroup(&record);
        if self.jobs.is_empty() {
            // Nobody wakes up again to write the last samples of the cards.
            self.flush();
        }
        self.schedulers.nudge(&record.key.manager);
        written?;
        self.limit_count()
    }

    fn keep_course(&mut self, key: &JobKey, course: &Course) {
        if course.is_empty() {
            return;
        }
        forwarding::offer_job(self.forward.as_ref(), key, course);
        if let Err(error) = self.writer.append_course(key, course) {
            tracing::warn!("job {}: {} samples are lost: {error}", key.id, course.len());
        }
    }

    /// The server hears soon of a job that began or ended.
    fn hurry(&self) {
        if let Some(forward) = &self.forward {
            forward.hurry();
        }
    }

    pub fn is_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Adds to jobs that are over what their last window of energy came to.
    pub fn settle_energy(&mut self) {
        if self.is_owed() {
            let settled = self.sampling.settled();
            self.put_energy(settled);
        }
    }

    fn put_energy(&mut self, settled: Vec<(JobKey, Charged)>) {
        for (key, charged) in settled {
            self.owed.remove(&key);
            if let Some(end) = self.unwritten.end_of(&key) {
                charged.put(&mut end.totals);
                end.emission = charged.emission();
                continue;
            }
            let Ok(Some(mut record)) = self.writer.get(&key) else { continue };
            charged.put(&mut record.totals);
            record.emission = charged.emission();
            if let Err(error) = self.writer.put(&record) {
                tracing::warn!("job {}: its last share of energy is lost: {error}", key.id);
            }
            self.on_board(|board| board.knows(&record));
        }
    }

    /// Takes up what a provider said.
    pub fn hear_provider(&mut self) {
        let answers = self.emitting.asking.as_ref().map(emissions::Asking::answers).unwrap_or_default();
        for answer in answers {
            match answer {
                Ok(factors) => self.take_factors(factors),
                Err(error) => tracing::warn!("no emission factor: {error}"),
            }
        }
    }

    fn take_factors(&mut self, factors: Vec<Factor>) {
        if factors.len() > 1 {
            let count = factors.len();
            tracing::info!(
                "{count} emission factors of the past; `met emissions recompute` applies them to jobs"
            );
        }
        for factor in factors {
            if let Err(error) = self.writer.put_factor(&factor) {
                tracing::warn!("an emission factor is not kept: {error}");
            }
            // A provider says the same until it has measured again, and may correct itself.
            self.emitting.told.retain(|told| told.since_ns != factor.since_ns);
            self.emitting.told.push(factor);
        }
        self.emitting.told.sort_by_key(|told| told.since_ns);
        self.follow_factor();
    }

    /// The time of the newest factor that a provider told.
    pub(super) fn told_ns(&self) -> Option<i64> {
        let by_provider = self.emitting.told.iter().filter(|told| told.source != emissions::BY_HAND);
        by_provider.map(|told| told.since_ns).max()
    }

    /// Tells the sampler which factor holds now.
    pub fn follow_factor(&mut self) {
        let factors = emissions::course(&self.config.emissions, &self.emitting.told);
        let holds = factors.at(jobs::now_ns()).cloned();
        if let Some(factor) = holds.clone().filter(|_| holds != self.emitting.holds) {
            self.sampling.set_factor(factor);
            self.emitting.holds = holds;
        }
    }

    fn close_lost(&mut self, mut record: Record) {
        record.state = State::Lost;
        if let Err(error) = self.close_job(record) {
            tracing::error!("cannot keep a lost job: {error:#}");
        }
    }

    fn forget_cgroup(&mut self, record: &Record) {
        // What is a manager's is his to remove.
        let Some(local) = record.local.as_ref().filter(|local| local.origin != Origin::Found) else { return };
        enclosure::remove(&local.cgroup);
        self.made.forget(&local.cgroup);
        if self.place.system
            && let Ok(id) = record.key.id.parse()
        {
            self.given.remove(&id);
            let _ = JobDir::open(&self.place.state, id).remove();
        }
    }

    /// The supervisor of a job is gone: it left the end behind, or the job is lost.
    pub fn supervisor_gone(&mut self, key: &JobKey) {
        let Some(kept) = self.jobs.get(key) else { return };
        let record = kept.record.clone();
        let folder =
            key.id.parse().ok().filter(|_| !self.place.system).map(|id| JobDir::open(&self.place.state, id));
        let end = folder.as_ref().and_then(|folder| folder.read().end).filter(|end| end.key == *key);
        match end {
            Some(end) => match self.close_job(end) {
                Ok(()) => drop(folder.map(|folder| folder.remove())),
                // It stays in the inbox, where every reader finds it.
                Err(error) => {
                    tracing::error!("cannot keep the end of job {}: {error:#}", key.id);
                    self.jobs.remove(key);
                    self.on_board(|board| board.forget(key));
                    self.revert_with(key);
                }
            },
            None => {
                tracing::warn!("job {}: its supervisor was killed", key.id);
                self.close_lost(record);
                drop(folder.map(|folder| folder.remove()));
            }
        }
    }

    /// What cannot be imported, on a full disk, is read where it lies.
    fn refresh(&mut self) {
        if !self.place.system
            && let Err(error) = jobs::import(&mut self.writer, &self.place.state, &self.host)
        {
            tracing::warn!("{error:#}");
        }
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

    fn visible(&mut self, key: &JobKey, peer: Peer) -> Result<Record> {
        let record =
            self.writer.get(key)?.filter(|record| self.sees_all(peer) || record.uid == Some(peer.uid));
        record.context("no such job")
    }

    fn course(&mut self, key: &JobKey, after_ms: i64, peer: Peer) -> Result<Reply> {
        // Whoever keeps the job has its course; here is none.
        if self.visible(key, peer).is_err() {
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
    fn card_course(&mut self, key: &JobKey, uuid: &str, after_ms: i64, peer: Peer) -> Result<Reply> {
        if self.visible(key, peer).is_err() {
            return Ok(Reply::Course(WireCourse::default()));
        }
        if self.jobs.contains_key(key) && after_ms == i64::MIN {
            self.flush();
        }
        let mut course = jobs::card_course(&self.writer, key, uuid, after_ms)?;
        course.truncate(PAGE_SAMPLES);
        Ok(Reply::Course(WireCourse::of(&course)))
    }

    fn remove(&mut self, key: &JobKey, peer: Peer) -> Result<Reply> {
        match self.visible(key, peer) {
            Ok(record) => self.check_owner(&record, peer)?,
            // Removed is removed, whoever kept it.
            Err(_) => return Ok(Reply::Done),
        }
        if self.jobs.contains_key(key) {
            bail!("the job still runs; `met cancel` ends it");
        }
        self.writer.remove(key)?;
        Ok(Reply::Done)
    }

    fn status(&self) -> Result<Status> {
        Ok(Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            system: self.place.system,
            jobs: self.jobs.len(),
            interval_ms: self.config.sampling.interval.as_millis() as i64,
            state: self.place.state.clone(),
            sources: self.sampling.costs()?,
            schedulers: self.schedulers.status(),
            discovery: self.finding.as_ref().map(|finding| DiscoveryStatus {
                shadows: self.shadows.count(),
                shadows_refused: self.shadows.refused().cloned(),
                ..finding.health().into()
            }),
            forward: match &self.forward {
                Some(forward) => Some(forward.status()),
                None => self.not_sending.as_deref().cloned(),
            },
        })
    }

    /// Samples go to disk this often: a killed daemon loses no more.
    pub fn flush_every(&self) -> Duration {
        let buffered = self.config.sampling.buffer_samples;
        let by_size =
            buffered.map(|samples| self.config.sampling.interval.saturating_mul(samples.min(100_000) as u32));
        let every = match &self.forward {
            Some(_) => self.config.storage.flush_interval.min(self.config.forward.interval),
            None => self.config.storage.flush_interval,
        };
        by_size.map_or(every, |by_size| every.min(by_size)).max(Duration::from_millis(100))
    }

    pub fn has_to_flush(&self) -> bool {
        !self.jobs.is_empty() || !self.unwritten.is_empty()
    }

    /// Tries again what could not be written.
    fn write_again(&mut self) {
        let writer = &mut self.writer;
        self.unwritten.write_ends(|record| writer.put(record));
        if self.unwritten.told.is_some() {
            self.hear();
        }
    }

    pub fn flush(&mut self) {
        self.write_again();
        self.follow_shadows();
        let drained = self.sampling.drain();
        for (key, course) in drained.jobs {
            self.keep_course(&key, &course);
        }
        for (uuid, course) in drained.cards {
            forwarding::offer_card(self.forward.as_ref(), &uuid, &course);
            if let Err(error) = self.writer.append_device(&uuid, &course) {
                tracing::warn!("card {uuid}: {} samples are lost: {error}", course.len());
            }
        }
        for (table, part, course) in drained.node {
            forwarding::offer_node(self.forward.as_ref(), &part, &course);
            if let Err(error) = self.writer.append_node(&part, &course) {
                tracing::warn!("{} {part}: {} samples are lost: {error}", table.name, course.len());
            }
        }
        if !drained.devices.is_empty() {
            self.keep_cards(&drained.devices);
        }
    }

    /// Whether the course of the machine is kept.
    pub(super) fn keeps_node(&self) -> bool {
        match self.config.storage.node_series {
            Presence::Auto => self.place.system,
            Presence::Yes => true,
            Presence::No => false,
        }
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

    /// What running jobs did with cards so far, and what was learned about these: for the next daemon.
    fn keep_cards(&mut self, devices: &[Device]) {
        let live = self.sampling.live();
        let records: Vec<Record> = live
            .into_iter()
            .filter(|(_, live)| !live.gpus.is_empty())
            .filter_map(|(key, live)| {
                let mut record = Record { gpus: live.gpus, ..self.jobs.get(&key)?.record.clone() };
                for column in [GPU_ENERGY, GPU_ENERGY_IDLE] {
                    // Should nobody see the end of it, this is what is known.
                    if let Some(figure) = live.totals.figure(column) {
                        record.totals.set(
                            column,
                            figure.value,
                            QualityKind::LowerBound,
                            figure.source.clone(),
                        );
                    }
                }
                Some(record)
            })
            .collect();
        let result = self.writer.put_devices(devices).and_then(|()| self.writer.put_all(&records));
        if let Err(error) = result {
            tracing::warn!("what jobs did with cards is not written: {error}");
        }
    }

    /// Removes what supervisors left that died before they announced their job.
    pub fn sweep(&mut self) {
        let in_use = |paths: &CgroupPaths| {
            self.jobs
                .values()
                .any(|kept| kept.record.local.as_ref().is_some_and(|local| local.cgroup == *paths))
        };
        let abandoned = self.made.abandoned(|pid| self.host.process(pid).is_err(), in_use);
        for paths in abandoned {
            enclosure::remove(&paths);
            self.made.forget(&paths);
        }
    }

    pub fn retain(&mut self) {
        if let Err(error) = inbox::clean(&self.place.state) {
            tracing::warn!("{}: {error}", self.place.state.display());
        }
        self.sweep();
        let retention = jobs::retention(&self.config.storage);
        if let Err(error) = self.writer.retain(&retention, jobs::now_ns()) {
            tracing::warn!("old jobs could not be removed: {error}");
        }
    }

    /// `storage.size`: at most so many finished jobs.
    fn limit_count(&mut self) -> Result<()> {
        let Some(most) = self.config.storage.jobs_max else { return Ok(()) };
        let all = self.writer.jobs(&jobs::JobsFilter::default().to_store())?;
        for record in all.iter().filter(|record| !record.state.is_live()).skip(most as usize) {
            self.writer.remove(&record.key)?;
        }
        Ok(())
    }

    pub fn close(mut self) {
        // Whatever the meters show now is all that will be known.
        let settled = self.sampling.settle_now();
        self.put_energy(settled);
        self.write_again();
        if let Some(finding) = self.finding.take() {
            finding.stop();
        }
        self.sampling.stop();
        if let Some(forward) = self.forward.take() {
            forward.stop();
        }
    }
}

/// A daemon for everybody sees everybody's jobs; a user's own sees what he started, unless told otherwise.
fn discovers(config: &Config, place: &Place) -> bool {
    match config.jobs.discover {
        Presence::Auto => place.system,
        Presence::Yes => true,
        Presence::No => false,
    }
}

fn alive(pidfd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(0))
}
