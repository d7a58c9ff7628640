//! Names of the files in which cgroups count and limit: the two versions have a name of their own for each.

/// The names of one version.
#[derive(Debug)]
pub struct CgroupFiles {
    /// CPU time.
    pub cpu_usage: &'static str,
    /// In v2 the period follows in the same file; in v1 it is in [`CPU_PERIOD_V1`].
    pub cpu_quota: &'static str,
    /// Throttling by the quota; in v2 also the CPU time.
    pub cpu_stat: &'static str,
    pub memory_current: &'static str,
    pub memory_limit: &'static str,
    pub memory_peak: &'static str,
    pub memory_stat: &'static str,
    /// Out-of-memory kills.
    pub memory_kills: &'static str,
}

pub const V1: CgroupFiles = CgroupFiles {
    cpu_usage: "cpuacct.usage",
    cpu_quota: "cpu.cfs_quota_us",
    cpu_stat: "cpu.stat",
    memory_current: "memory.usage_in_bytes",
    memory_limit: "memory.limit_in_bytes",
    memory_peak: "memory.max_usage_in_bytes",
    memory_stat: "memory.stat",
    memory_kills: "memory.oom_control",
};

pub const V2: CgroupFiles = CgroupFiles {
    cpu_usage: "cpu.stat",
    cpu_quota: "cpu.max",
    cpu_stat: "cpu.stat",
    memory_current: "memory.current",
    memory_limit: "memory.max",
    memory_peak: "memory.peak",
    memory_stat: "memory.stat",
    memory_kills: "memory.events",
};

pub const CPU_PERIOD_V1: &str = "cpu.cfs_period_us";

/// A v1 cgroup without a memory limit shows the largest number of pages there is.
pub const UNLIMITED_BYTES: i64 = 1 << 60;

/// The names of the version that a hierarchy has.
pub const fn of(is_v1: bool) -> &'static CgroupFiles {
    if is_v1 { &V1 } else { &V2 }
}
