//! What is given to users before their jobs start, and what they may announce.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail};
use met_core::job::{CgroupPaths, JobKey, Record};
use met_host::Host;
use met_jobs::job_cgroup::{self, Enable, JobCgroup};
use met_store::Writer;
use met_store::inbox::{self, JobDir};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::claims::{self, Made};
use super::permissions::Access;
use super::quotas::Announced;
use super::registry::{Registry, is_found};
use super::reservations::Reservations;
use super::service::{Ended, OnEnd};
use super::socket::Peer;
use super::spare_descriptors::Spare;
use met_config::Place;

pub(super) struct Admission {
    pub(super) made: Made,
    pub(super) reservations: Reservations,
    pub(super) announced: Announced,
    /// For reading ends when no descriptors are left.
    pub(super) spare: Spare,
    /// Announcements that were refused: each is logged once.
    refused: HashSet<JobKey>,
}

/// Refused announcements that are logged.
const REFUSED_MAX: usize = 256;

impl Admission {
    pub(super) fn begin() -> Admission {
        Admission {
            made: Made::default(),
            reservations: Reservations::begin(met_host::clock::realtime_ns()),
            announced: Announced::default(),
            spare: Spare::hold(),
            refused: HashSet::new(),
        }
    }

    /// Makes a cgroup inside the caller's own slice and moves the caller's waiting child into it.
    pub(super) fn enclose(&mut self, host: &Host, name: &str, pid: u32, peer: Peer) -> Result<CgroupPaths> {
        if !job_cgroup::is_valid_name(name) {
            bail!("{name:?} is not a name for a job's cgroup");
        }
        if peer.pid == 0 {
            bail!("the caller is in another pid namespace");
        }
        if self.made.has_one(peer) {
            bail!("this supervisor has a cgroup for its job already");
        }
        let child = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no such process")?;
        // While the pidfd shows it alive, the pid cannot have been reused.
        let pidfd = pidfd_open(child, PidfdFlags::empty()).context("no such process")?;
        let (parent, uid) = claims::parent_and_user(host, pid)?;
        if parent != peer.pid || uid != peer.uid {
            bail!("process {pid} is not a child of the caller");
        }
        let made = JobCgroup::create(host, pid, name, Enable::Yes);
        if made.move_in(pid).is_err() || made.paths.is_empty() || !alive(&pidfd) {
            bail!("no cgroup could be made");
        }
        let paths = made.keep();
        self.made.insert(name, peer, &paths);
        Ok(paths)
    }

    /// Whether a system daemon gave the id to this user, or it is outside the range that only the daemon gives
    /// out.
    pub(super) fn gave_away(
        &self,
        record: &Record,
        peer: Peer,
        access: Access,
        writer: &Writer,
        place: &Place,
    ) -> bool {
        let id = record.key.id.parse().ok().filter(|id: &u64| id.to_string() == record.key.id);
        let Some(id) = id else { return false };
        inbox::own_ids(peer.uid).contains(&id)
            || self.reservations.owner(id).is_some_and(|uid| access.covers(peer, Some(uid)))
            || self.reservations.may_be_of_earlier(id, record, writer, &place.state)
    }

    /// The owner sends it again with each command.
    pub(super) fn note_refused(&mut self, record: &Record, peer: Peer) {
        let JobKey { id, .. } = &record.key;
        if self.refused.len() < REFUSED_MAX && self.refused.insert(record.key.clone()) {
            tracing::warn!("job {id:?} of uid {} is refused: the id was not given to this user", peer.uid);
        }
    }

    /// The store knows from now on whose it is.
    pub(super) fn number_used(&mut self, key: &JobKey) {
        if let Ok(id) = key.id.parse() {
            self.reservations.used(id);
        }
    }

    /// When the number of a job was given; `None` if an earlier daemon gave it, or the user's own range has it.
    pub(super) fn reserved_ns(&self, key: &JobKey) -> Option<i64> {
        self.reservations.reserved_ns(key.id.parse().ok()?)
    }

    /// Removes what supervisors left that died before they announced their job; those that are not empty are returned.
    pub(super) fn sweep(&mut self, host: &Host, registry: &Registry) -> Vec<CgroupPaths> {
        let is_of = |record: &Record, paths: &CgroupPaths| {
            record.local.as_ref().is_some_and(|local| local.cgroup == *paths)
        };
        let in_use = |paths: &CgroupPaths| registry.jobs.values().any(|kept| is_of(&kept.record, paths));
        let mut abandoned = self.made.abandoned(|pid| host.process(pid).is_err(), in_use);
        abandoned.iter().for_each(|paths| self.made.forget(paths));
        abandoned.retain(|paths| !job_cgroup::remove(paths));
        abandoned
    }
}

impl OnEnd for Admission {
    /// Forgets what was given to a job of ours.
    fn job_ended(&mut self, Ended { record, place, .. }: &Ended<'_>) {
        let Some(local) = record.local.as_ref().filter(|_| !is_found(record)) else { return };
        self.made.forget(&local.cgroup);
        if place.system
            && let Ok(id) = record.key.id.parse()
        {
            self.reservations.used(id);
            let _ = JobDir::open(&place.state, id).remove();
        }
    }
}

fn alive(pidfd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(0))
}
