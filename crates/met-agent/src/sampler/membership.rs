//! Which processes and cgroups belong to which job.

use met_core::attribute::JobMap;
use met_host::{Host, Targets};
use met_jobs::Members;
use met_jobs::containers::is_client_name;

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

    pub(super) fn list(&mut self, host: &Host, now_ns: i64) {
        // A /proc that cannot be listed leaves the members as they were.
        let _ = self.members.refresh(host);
        self.forget();
        self.listed_ns = now_ns;
        self.members.fill(&mut self.targets, &mut self.map);
    }

    /// Closes what is held open of members.
    pub(super) fn forget(&mut self) {
        self.targets.clear();
        self.map.clear();
        self.listed_ns = i64::MIN;
    }

    pub(super) fn target_count(&self) -> usize {
        self.targets.tasks.len() + self.targets.cgroups.len()
    }
}

fn every_ns(config: &Config) -> i64 {
    config.sampling.membership_interval.map_or(0, |every| every.as_nanos() as i64)
}
