//! The jobs a daemon knows, and what happens when one starts, ends or is lost.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use met_core::belief::is_known_end;
use met_core::bounds;
use met_core::job::{CgroupPaths, JobKey, Origin, Record, State};
use met_host::Host;
use met_jobs::enclosure::{self, Enable, Enclosure};
use met_jobs::layouts::Layouts;
use met_sinks::Bus;
use met_store::Writer;
use met_store::inbox::{self, JobDir};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::board::Board;
use super::charging::Emitting;
use super::claims::{self, Made};
use super::finding::Finding;
use super::found::{Directory, Gone};
use super::housekeeping::Housekeeping;
use super::identifying::Asking;
use super::nesting::Outer;
use super::permissions::Access;
use super::plain::{self, Groups};
use super::repairs::Repairs;
use super::reservations::Reservations;
use super::sampling::Sampling;
use super::schedulers::Schedulers;
use super::shadows::Shadows;
use super::sinks;
use super::socket::Peer;
use super::spare::Spare;
use super::standing::Standing;
use super::supervisors::Watch;
use super::told;
use super::unwritten::Unwritten;
use crate::emissions;
use crate::idle_power::IdleFile;
use met_config::Failure;
use met_config::Place;
use met_config::{Config, Presence, Scope};
use met_host::users;
use met_query::jobs;
use met_query::protocol::Reply;
use met_query::setting::Setting;

pub struct Keeping {
    pub(super) host: Host,
    /// As it holds: the file's, and live changes.
    pub(super) config: Config,
    pub(super) standing: Standing,
    pub(super) place: Place,
    pub(super) writer: Writer,
    pub(super) repairs: Repairs,
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
    pub(super) made: Made,
    pub(super) housekeeping: Housekeeping,
    pub(super) reservations: Reservations,
    /// What users announced since the last retention.
    pub(super) announced_bytes: u64,
    /// For reading ends when no descriptors are left.
    pub(super) spare: Spare,
    pub(super) schedulers: Schedulers,
    pub(super) unwritten: Unwritten,
    /// Jobs that are over, and whose last share of energy is not known yet.
    pub(super) owed: HashSet<JobKey>,
    pub(super) emitting: Emitting,
    pub(super) idle_power: IdleFile,
    /// Where events of jobs are counted that have no v2 cgroup.
    pub(super) shadows: Shadows,
    /// Where others read of it, if somebody listens.
    pub(super) board: Option<Arc<Board>>,
    /// Where jobs and samples go, beside the store.
    pub(super) bus: Bus,
}

pub(super) struct Kept {
    pub(super) record: Record,
    pub(super) watch: Watch,
    /// What it did in directories that are gone, while it has others.
    pub(super) gone: Vec<Gone>,
}

impl Keeping {
    pub fn open(setting: &Setting, place: &Place, board: Option<Arc<Board>>) -> Result<Keeping> {
        let writer = jobs::open_writer(&place.state).map_err(|error| Failure::usage(error.to_string()))?;
        let before = |manager: &str| told::before(&writer, manager);
        let asked = &setting.config.schedulers;
        let schedulers = Schedulers::start(&setting.host, asked, place.system, Scope::Node, before)?;
        let bus = sinks::open(setting, place, board.as_deref());
        let ticker = bus.ticker();
        let mut keeping = Keeping {
            host: setting.host.clone(),
            config: setting.config.clone(),
            standing: Standing::of(setting),
            place: place.clone(),
            writer,
            repairs: Repairs::default(),
            sampling: Sampling::start(setting.host.clone(), &setting.config, board.clone(), ticker)?,
            finding: None,
            jobs: HashMap::new(),
            found: HashMap::new(),
            outers: HashMap::new(),
            layouts: setting.layouts(),
            resumable: Vec::new(),
            asking: Vec::new(),
            groups: Groups::of(&setting.host, &setting.config.jobs, place, discovers(&setting.config, place)),
            made: Made::default(),
            housekeeping: Housekeeping::begin(),
            reservations: Reservations::begin(met_host::clock::realtime_ns()),
            announced_bytes: 0,
            spare: Spare::hold(),
            schedulers,
            unwritten: Unwritten::default(),
            owed: HashSet::new(),
            emitting: Emitting::default(),
            idle_power: IdleFile::open(&place.state, &setting.host),
            shadows: Shadows::default(),
            board,
            bus,
        };
        if let Some(group) =
            setting.config.daemon.operators.as_deref().filter(|group| !users::is_group(group))
        {
            tracing::warn!("daemon.operators: there is no group {group:?}; nobody is an operator");
        }
        keeping.remove_old_shadows();
        keeping.emitting.told = keeping.writer.factors().unwrap_or_default();
        keeping.emitting.asking = emissions::Asking::start(&setting.config.emissions, keeping.told_ns())?;
        keeping.import();
        keeping.remove_earlier_cgroups();
        keeping.brief_sampling();
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
            // Of a job in a terminal its user's own commands tell the end. Who is lost is found out as later on.
            if !in_terminal {
                self.watch(record);
            } else if record.state == State::Lost && self.writer.has_no_pending_end(&record.key) {
                self.close_lost(record);
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

    /// Makes a cgroup inside the caller's own slice and moves his waiting child into it.
    pub(super) fn enclose(&mut self, name: &str, pid: u32, peer: Peer) -> Result<CgroupPaths> {
        if !enclosure::is_valid_name(name) {
            bail!("{name:?} is not a name for a job's cgroup");
        }
        if peer.pid == 0 {
            bail!("the caller is in another pid namespace");
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
        claims::vouch_start(&self.host, &self.made, &mut record, known.as_ref(), peer)?;
        self.check_quota(&record, peer)?;
        record.state = State::Running;
        self.place_inside(&mut record, known.as_ref(), peer);
        self.count_announced(&record);
        self.writer.put(&record)?;
        // From now on the store knows whose it is.
        if let Ok(id) = record.key.id.parse() {
            self.reservations.used(id);
        }
        self.note_inner(&record);
        self.publish_start(&record);
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

    /// Samples a running job and waits for its supervisor, or for the discovery to see its end.
    pub(super) fn watch(&mut self, record: Record) {
        if self.jobs.contains_key(&record.key) {
            return;
        }
        self.note_other_job(&record);
        let before = self.writer.course(&record.key).ok().filter(|course| !course.is_empty());
        self.sampling.add(&record, before);
        self.on_board(|board| board.runs(&record));
        let key = record.key.clone();
        let is_found = Keeping::is_found(&record);
        self.jobs.insert(key.clone(), Kept { record, watch: Watch::new(), gone: Vec::new() });
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
        if self.place.system && self.writer.get(&record.key)?.is_some_and(|kept| is_known_end(&kept)) {
            return Ok(Reply::Done);
        }
        claims::vouch_end(&self.made, &mut record, known.as_ref(), peer);
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
            || self.reservations.owner(id).is_some_and(|uid| access.covers(peer, Some(uid)))
            || self.may_be_of_earlier(id, record)
    }

    /// Ends a job for good. What cannot be written is kept and tried again, and that it is not on disk is said.
    pub(super) fn close_job(&mut self, mut record: Record) -> Result<()> {
        let sampled = self.take_sampled(&record);
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
        match written {
            Ok(()) => self.publish_end(&record),
            Err(_) => self.unwritten.keep_end(record.clone()),
        }
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
        self.made.forget(&cgroup);
        if self.place.system
            && let Ok(id) = record.key.id.parse()
        {
            self.reservations.used(id);
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
        if let Some(finding) = self.finding.take() {
            finding.stop();
        }
        self.sampling.stop();
        self.bus.close();
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
