//! The jobs a daemon knows, and what happens when one starts, ends or is lost.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use met_core::belief::is_known_end;
use met_core::bounds;
use met_core::job::{CgroupPaths, JobKey, Origin, Record, State};
use met_host::Host;
use met_jobs::enclosure::{self, Enable, Enclosure};
use met_store::inbox::{self, JobDir};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::admission::Admission;
use super::board::Board;
use super::claims;
use super::finding::Finding;
use super::found::{Discovery, discovers};
use super::housekeeping::Housekeeping;
use super::permissions::Access;
use super::plain;
use super::recorder::Recorder;
use super::registry::{Kept, Registry};
use super::sampling::Sampling;
use super::schedulers::Schedulers;
use super::sinks::Outputs;
use super::socket::Peer;
use super::standing::Standing;
use super::supervisors::Watch;
use super::told;
use crate::emissions;
use crate::idle_power::IdleFile;
use met_config::Failure;
use met_config::Place;
use met_config::Scope;
use met_host::users;
use met_query::jobs;
use met_query::protocol::Reply;
use met_query::setting::Setting;

/// The parts of a daemon. Each owns what it knows; what concerns several of them is done here, in its order.
pub struct Keeping {
    pub(super) host: Host,
    pub(super) place: Place,
    pub(super) standing: Standing,
    pub(super) registry: Registry,
    pub(super) recorder: Recorder,
    pub(super) sampling: Sampling,
    pub(super) discovery: Discovery,
    pub(super) admission: Admission,
    pub(super) housekeeping: Housekeeping,
    pub(super) schedulers: Schedulers,
    pub(super) outputs: Outputs,
}

impl Keeping {
    pub fn open(setting: &Setting, place: &Place, board: Option<Arc<Board>>) -> Result<Keeping> {
        let writer = jobs::open_writer(&place.state).map_err(|error| Failure::usage(error.to_string()))?;
        let before = |manager: &str| told::before(&writer, manager);
        let asked = &setting.config.schedulers;
        let schedulers = Schedulers::start(&setting.host, asked, place.system, Scope::Node, before)?;
        let outputs = Outputs::open(setting, place, board);
        let (board, ticker) = (outputs.board.clone(), outputs.bus.ticker());
        let mut keeping = Keeping {
            host: setting.host.clone(),
            place: place.clone(),
            standing: Standing::of(setting),
            registry: Registry::default(),
            recorder: Recorder::new(writer, IdleFile::open(&place.state, &setting.host)),
            sampling: Sampling::start(setting.host.clone(), &setting.config, board, ticker)?,
            discovery: Discovery::of(setting, place),
            admission: Admission::begin(),
            housekeeping: Housekeeping::begin(),
            schedulers,
            outputs,
        };
        if let Some(group) =
            setting.config.daemon.operators.as_deref().filter(|group| !users::is_group(group))
        {
            tracing::warn!("daemon.operators: there is no group {group:?}; nobody is an operator");
        }
        keeping.remove_old_shadows();
        keeping.recorder.emitting.told = keeping.recorder.writer.factors().unwrap_or_default();
        keeping.recorder.emitting.asking =
            emissions::Asking::start(&setting.config.emissions, keeping.told_ns())?;
        keeping.import();
        keeping.remove_earlier_cgroups();
        keeping.brief_sampling();
        keeping.take_up_running()?;
        if discovers(&setting.config, place) {
            keeping.discovery.finding = Some(Finding::start(&setting.host, &setting.config.jobs)?);
        } else {
            keeping.close_vanished();
        }
        Ok(keeping)
    }

    /// Jobs that began before this daemon did: sampled on if they still run, lost if nobody waits for them.
    fn take_up_running(&mut self) -> Result<()> {
        let live = jobs::JobsFilter { states: vec![State::Running, State::Suspended], ..Default::default() };
        let live = self.recorder.writer.jobs(&live.to_store())?;
        // What only a scheduler tells of runs elsewhere.
        for mut record in live.into_iter().filter(|record| record.local.is_some()) {
            if plain::is_plain(&record) {
                self.resume_plain(record);
                continue;
            }
            if Keeping::is_found(&record) {
                self.registry.resumable.push(record);
                continue;
            }
            jobs::settle(&self.host, &mut record);
            let in_terminal =
                record.local.as_ref().is_some_and(|local| local.origin == met_core::job::Origin::Time);
            // Of a job in a terminal its user's own commands tell the end. Who is lost is found out as later on.
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

    /// Makes a cgroup inside the caller's own slice and moves his waiting child into it.
    pub(super) fn enclose(&mut self, name: &str, pid: u32, peer: Peer) -> Result<CgroupPaths> {
        if !enclosure::is_valid_name(name) {
            bail!("{name:?} is not a name for a job's cgroup");
        }
        if peer.pid == 0 {
            bail!("the caller is in another pid namespace");
        }
        if self.admission.made.has_one(peer) {
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
        self.admission.made.insert(name, peer, &paths);
        Ok(paths)
    }

    pub(super) fn started(&mut self, mut record: Record, peer: Peer, access: Access) -> Result<Reply> {
        claims::check_kind(&record)?;
        bounds::bound(&mut record);
        let known = self.known(&record.key)?;
        match &known {
            Some(known) if !access.covers(peer, known.uid) => bail!("no such job"),
            None if self.place.system && !self.gave_away(&record, peer, access) => bail!("no such job"),
            _ => {}
        }
        // An announcement that was overtaken by the end is old news.
        if known.as_ref().is_some_and(is_known_end) {
            return Ok(Reply::Done);
        }
        claims::vouch_start(&self.host, &self.admission.made, &mut record, known.as_ref(), peer)?;
        self.check_quota(&record, peer)?;
        record.state = State::Running;
        self.place_inside(&mut record, known.as_ref(), peer);
        self.count_announced(&record);
        self.recorder.writer.put(&record)?;
        // From now on the store knows whose it is.
        if let Ok(id) = record.key.id.parse() {
            self.admission.reservations.used(id);
        }
        self.note_inner(&record);
        self.outputs.publish_start(&record);
        self.watch(record);
        Ok(Reply::Done)
    }

    fn known(&mut self, key: &JobKey) -> Result<Option<Record>> {
        if let Some(end) = self.recorder.unwritten.end_of(key) {
            return Ok(Some(end.clone()));
        }
        match self.registry.jobs.get(key) {
            Some(kept) => Ok(Some(kept.record.clone())),
            None => Ok(self.recorder.writer.get(key)?),
        }
    }

    /// Samples a running job and waits for its supervisor, or for the discovery to see its end.
    pub(super) fn watch(&mut self, record: Record) {
        if self.registry.jobs.contains_key(&record.key) {
            return;
        }
        self.note_other_job(&record);
        let before = self.recorder.writer.course(&record.key).ok().filter(|course| !course.is_empty());
        self.sampling.add(&record, before);
        self.outputs.on_board(|board| board.runs(&record));
        let key = record.key.clone();
        let is_found = Keeping::is_found(&record);
        self.registry.jobs.insert(key.clone(), Kept { record, watch: Watch::new(), gone: Vec::new() });
        if !is_found {
            self.look_at_supervisor(&key);
        }
    }

    /// Keeps the end of a job; it is on disk when this returns.
    pub(super) fn ended(&mut self, mut record: Record, peer: Peer, access: Access) -> Result<Reply> {
        if record.state.is_live() {
            bail!("the job has not ended");
        }
        claims::check_kind(&record)?;
        bounds::bound(&mut record);
        // A job may end before its start was told. A system daemon then knows it by the id it gave away;
        // other jobs are kept by their owners.
        let known = self.known(&record.key)?;
        match &known {
            Some(known) if !access.covers(peer, known.uid) => bail!("no such job"),
            None if self.place.system && !self.gave_away(&record, peer, access) => bail!("no such job"),
            _ => {}
        }
        // Told twice, by who waited for it and by who found it in his files: what was kept knows more by now. (A
        // user's own daemon finds the very end that it is told of in the inbox.)
        if self.place.system && self.recorder.writer.get(&record.key)?.is_some_and(|kept| is_known_end(&kept))
        {
            return Ok(Reply::Done);
        }
        claims::vouch_end(&self.admission.made, &mut record, known.as_ref(), peer);
        self.place_inside(&mut record, known.as_ref(), peer);
        self.count_announced(&record);
        self.close_job(record)?;
        Ok(Reply::Done)
    }

    /// Whether the id was given to this user, or is out of the range that only he gives out.
    fn gave_away(&self, record: &Record, peer: Peer, access: Access) -> bool {
        let id = record.key.id.parse().ok().filter(|id: &u64| id.to_string() == record.key.id);
        let Some(id) = id else { return false };
        inbox::own_ids(peer.uid).contains(&id)
            || self.admission.reservations.owner(id).is_some_and(|uid| access.covers(peer, Some(uid)))
            || self.may_be_of_earlier(id, record)
    }

    /// Ends a job for good. What cannot be written is kept and tried again, and that it is not on disk is said.
    pub(super) fn close_job(&mut self, mut record: Record) -> Result<()> {
        let sampled = self.take_sampled(&record);
        if sampled.is_some() {
            self.registry.owed.insert(record.key.clone());
        }
        let mut sampled = sampled.unwrap_or_default();
        sampled.close_course(&record);
        self.keep_course(&record.key, &sampled.course);
        let course = self.recorder.writer.course(&record.key).unwrap_or(sampled.course.clone());
        sampled.complete(&mut record, &course, self.standing.config.sampling.interval);
        self.outputs.on_board(|board| board.ended(&record));
        let written = self.recorder.writer.put(&record);
        match written {
            Ok(()) => self.outputs.publish_end(&record),
            Err(_) => self.recorder.unwritten.keep_end(record.clone()),
        }
        self.note_inner(&record);
        self.registry.outers.remove(&record.key);
        self.registry.jobs.remove(&record.key);
        self.revert_with(&record.key);
        self.follow_shadows();
        self.forget_cgroup(&record);
        if self.registry.jobs.is_empty() {
            // Nobody wakes up again to write the last samples of the cards.
            self.flush();
        }
        self.schedulers.nudge(&record.key.manager);
        written?;
        self.limit_count()
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
        let cgroup = local.cgroup.clone();
        self.remove_cgroup(record);
        self.admission.made.forget(&cgroup);
        if self.place.system
            && let Ok(id) = record.key.id.parse()
        {
            self.admission.reservations.used(id);
            let _ = JobDir::open(&self.place.state, id).remove();
        }
    }

    pub fn close(mut self) {
        // Those that are left are tried by the next daemon.
        self.housekeeping.remove_cgroups_now();
        // Whatever the meters show now is all that will be known.
        let settled = self.sampling.settle_now();
        self.put_energy(settled);
        self.write_again();
        if let Some(finding) = self.discovery.finding.take() {
            finding.stop();
        }
        self.sampling.stop();
        self.outputs.bus.close();
    }
}

fn alive(pidfd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(0))
}
