//! Which processes and cgroups belong to which job.

use met_core::Subject;
use met_core::attribute::JobMap;
use met_host::{Host, Look, Targets};
use met_jobs::Members;
use met_jobs::containers::is_client_name;

use super::tracked::Jobs;
use met_config::Config;

/// The members of jobs as last listed: what is read, and whose it is.
pub(super) struct Membership {
    pub(super) members: Members,
    pub(super) targets: Targets,
    pub(super) map: JobMap,
    pub(super) next_slot: u32,
    /// How long a listing holds.
    pub(super) every_ns: i64,
    /// The time of the last listing; `i64::MIN` if it is out of date.
    pub(super) listed_ns: i64,
    /// Not all members are read as the tick says.
    pub(super) is_marked: bool,
}

impl Membership {
    pub(super) fn new(config: &Config) -> Membership {
        Membership {
            members: Members::looking_for(is_client_name),
            targets: Targets::default(),
            map: JobMap::default(),
            next_slot: 0,
            every_ns: every_ns(config),
            listed_ns: i64::MIN,
            is_marked: false,
        }
    }

    pub(super) fn reconfigure(&mut self, config: &Config) {
        self.every_ns = every_ns(config);
    }

    /// The members, to be listed again before the next reading.
    pub(super) fn change(&mut self) -> &mut Members {
        self.listed_ns = i64::MIN;
        &mut self.members
    }

    pub(super) fn is_due(&self, now_ns: i64) -> bool {
        now_ns - self.every_ns >= self.listed_ns
    }

    /// Lists the members of the jobs that are due; the others keep theirs.
    pub(super) fn list_some(&mut self, host: &Host, now_ns: i64, is_due: impl Fn(u32) -> bool) {
        // A /proc that cannot be listed leaves the members as they were.
        let _ = self.members.refresh_some(host, is_due);
        self.forget();
        self.listed_ns = now_ns;
        self.members.fill(&mut self.targets, &mut self.map);
    }

    /// Reads each member as its job is read.
    pub(super) fn mark(&mut self, jobs: &Jobs) {
        let is_usual = jobs.values().all(|job| job.age.pacing.look == Look::Usual);
        if is_usual && !self.is_marked {
            return;
        }
        self.is_marked = !is_usual;
        let Membership { targets, map, .. } = self;
        let job_of = |subject: Subject| map.owner(subject).and_then(|slot| jobs.get(&slot));
        for target in &mut targets.cgroups {
            let job = job_of(Subject::Cgroup(target.dirs.id));
            target.look = job.map_or(Look::Usual, |job| job.age.pacing.look);
        }
        for target in &mut targets.tasks {
            let subject = Subject::Task { pid: target.pid, start_ticks: target.start_ticks };
            let job = job_of(subject);
            target.look = job.map_or(Look::Usual, |job| job.age.pacing.look);
            target.is_counted = job.is_some_and(|job| job.profile.counts_cpu && job.profile.counts_memory);
        }
    }

    /// Reads all members in the same way.
    pub(super) fn mark_all(&mut self, jobs: &Jobs, look: Look) {
        let Membership { targets, map, .. } = self;
        targets.cgroups.iter_mut().for_each(|target| target.look = look);
        for target in &mut targets.tasks {
            let subject = Subject::Task { pid: target.pid, start_ticks: target.start_ticks };
            let job = map.owner(subject).and_then(|slot| jobs.get(&slot));
            target.look = look;
            target.is_counted = job.is_some_and(|job| job.profile.counts_cpu && job.profile.counts_memory);
        }
    }

    /// Reads all members as the tick says: outside of a tick it is not known what is due.
    pub(super) fn unmark(&mut self) {
        self.targets.cgroups.iter_mut().for_each(|target| target.look = Look::Usual);
        self.targets.tasks.iter_mut().for_each(|target| target.look = Look::Usual);
        self.is_marked = false;
    }

    /// Closes what is held open of members.
    pub(super) fn forget(&mut self) {
        self.targets.clear();
        self.map.clear();
        (self.listed_ns, self.is_marked) = (i64::MIN, false);
    }

    pub(super) fn target_count(&self) -> usize {
        self.targets.tasks.len() + self.targets.cgroups.len()
    }
}

fn every_ns(config: &Config) -> i64 {
    config.sampling.membership_interval.map_or(0, |every| every.as_nanos() as i64)
}
