//! CPU quotas on the cgroups around a job: how long they held it back.

use std::path::{Path, PathBuf};

use met_core::MISSING;
use met_core::job::QualityKind::Attributed;
use met_core::job::Totals;
use met_core::job_table::{THROTTLED, THROTTLES};
use met_host::cgroup_files::{self, CPU_PERIOD_V1};
use met_host::{Host, parse};

/// Deeper hierarchies are not searched.
const DEPTH_MAX: usize = 16;

/// The cgroups with a quota that a process is in. A job's own cgroup shows how much the job itself was throttled.
pub struct Quota {
    host: Host,
    limited: Vec<Limited>,
    /// What the tightest of them allows; a part of a CPU counts as one.
    pub cpus: u32,
}

struct Limited {
    stat: PathBuf,
    is_v1: bool,
    before: Throttled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Throttled {
    ns: i64,
    periods: i64,
}

impl Quota {
    /// `None` where nothing is limited, which is the usual case.
    pub fn of(host: &Host, pid: u32) -> Option<Quota> {
        let (dir, top, is_v1) = host.hierarchies().cpu_of_process(host, pid)?;
        let mut text = Vec::new();
        let (mut limited, mut cpus) = (Vec::new(), u32::MAX);
        for dir in dir.ancestors().take(DEPTH_MAX).take_while(|dir| dir.starts_with(&top)) {
            if let Some(quota) = quota_cpus(host, dir, is_v1, &mut text) {
                cpus = cpus.min(quota);
                let mut found = Limited {
                    stat: dir.join(cgroup_files::of(is_v1).cpu_stat),
                    is_v1,
                    before: Throttled::default(),
                };
                found.before = found.throttled(host)?;
                limited.push(found);
            }
        }
        (!limited.is_empty()).then(|| Quota { host: host.clone(), limited, cpus })
    }

    /// Adds how long the most severe of them held back the processes in it since the job began.
    pub fn tell(&self, totals: &mut Totals) {
        let grown = |limited: &Limited| {
            let (now, before) = (limited.throttled(&self.host)?, limited.before);
            Some(((now.ns - before.ns).max(0), (now.periods - before.periods).max(0)))
        };
        let Some((throttled_ns, periods)) = self.limited.iter().filter_map(grown).max() else { return };
        if totals.get(THROTTLED).is_none_or(|own_ns| own_ns < throttled_ns) {
            // Others may be in the same cgroup.
            for (column, value) in [(THROTTLED, throttled_ns), (THROTTLES, periods)] {
                totals.set(column, value, Attributed, "cpu.stat of a cgroup around it");
            }
        }
    }
}

impl Limited {
    fn throttled(&self, host: &Host) -> Option<Throttled> {
        let mut text = Vec::new();
        host.read_small(&self.stat, &mut text).ok()?;
        let ns = match self.is_v1 {
            true => parse::value_of(&text, "throttled_time"),
            false => parse::scaled(parse::value_of(&text, "throttled_usec"), 1000),
        };
        let periods = parse::value_of(&text, "nr_throttled");
        (ns != MISSING && periods != MISSING).then_some(Throttled { ns, periods })
    }
}

fn quota_cpus(host: &Host, dir: &Path, is_v1: bool, text: &mut Vec<u8>) -> Option<u32> {
    let mut numbers = |name: &str| {
        // `-1` and `max` are no limit; the file is missing at the root and where the controller is off.
        host.read_small(dir.join(name), text).ok()?;
        let mut fields = parse::fields(text).map(|field| parse::u64(field).filter(|&us| us > 0));
        Some((fields.next()??, fields.next().flatten()))
    };
    let (quota_us, period_us) = numbers(cgroup_files::of(is_v1).cpu_quota)?;
    let period_us = if is_v1 { numbers(CPU_PERIOD_V1).map(|(us, _)| us) } else { period_us };
    // A quota whose period is unknown still throttles.
    let cpus = period_us.map_or(u64::MAX, |period_us| quota_us.div_ceil(period_us));
    Some(u32::try_from(cpus).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_growth_of_the_nearest_and_of_outer_quotas_is_reported() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("proc/7/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/cpu.max", "50000 100000\n");
        write("sys/fs/cgroup/a/cpu.stat", "usage_usec 9\nnr_throttled 1\nthrottled_usec 1000\n");
        write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        let host = Host::at(root.path()).unwrap();
        let quota = Quota::of(&host, 7).unwrap();
        assert_eq!((quota.limited.len(), quota.cpus), (1, 1), "max is no limit; half a CPU is a CPU");
        write("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
        assert_eq!(Quota::of(&host, 7).unwrap().cpus, 3);
        write("sys/fs/cgroup/a/cpu.stat", "usage_usec 9\nnr_throttled 9\nthrottled_usec 3000\n");
        let mut totals = Totals::default();
        quota.tell(&mut totals);
        assert_eq!((totals.get(THROTTLED), totals.get(THROTTLES)), (Some(2_000_000), Some(8)));
        write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
        assert!(Quota::of(&host, 7).is_none());
    }

    #[test]
    fn a_v1_quota_is_in_the_hierarchy_of_the_cpu_controller() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let mounts = "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        write("proc/self/mountinfo", mounts);
        write("proc/7/cgroup", "1:cpu:/q\n0::/\n");
        write("sys/fs/cgroup/cpu/q/cpu.cfs_quota_us", "200000\n");
        write("sys/fs/cgroup/cpu/q/cpu.cfs_period_us", "100000\n");
        write("sys/fs/cgroup/cpu/q/cpu.stat", "nr_periods 1\nnr_throttled 1\nthrottled_time 5\n");
        let quota = Quota::of(&Host::at(root.path()).unwrap(), 7).unwrap();
        assert_eq!((quota.limited[0].before.ns, quota.limited[0].is_v1, quota.cpus), (5, true, 2));
        write("sys/fs/cgroup/cpu/q/cpu.cfs_quota_us", "-1\n");
        assert!(Quota::of(&Host::at(root.path()).unwrap(), 7).is_none());
    }
}
