//! Memory limits that a job inherits, and out-of-memory kills in the cgroup around it.

use std::path::{Path, PathBuf};

use met_core::MISSING;
use met_core::job::QualityKind::Attributed;
use met_core::job::{LimitKind, MemoryLimit, Totals};
use met_core::job_table::OOM_KILLS;
use met_host::cgroup_files::{self, UNLIMITED_BYTES};
use met_host::{Host, parse};

/// Deeper hierarchies are not searched.
const DEPTH_MAX: usize = 16;

/// The smallest limit that a process started by `pid` has, if it is below what the machine has.
pub fn inherited(host: &Host, pid: u32) -> Option<MemoryLimit> {
    let machine_bytes = machine_bytes(host);
    let of_cgroup = cgroup_limit(host, pid).map(|bytes| MemoryLimit { bytes, kind: LimitKind::Cgroup });
    let of_process = address_space(host, pid).map(|bytes| MemoryLimit { bytes, kind: LimitKind::Process });
    let limits = of_cgroup.into_iter().chain(of_process);
    limits.filter(|limit| limit.bytes < machine_bytes).min_by_key(|limit| limit.bytes)
}

fn machine_bytes(host: &Host) -> i64 {
    host.facts().memory_total_bytes.unwrap_or(i64::MAX)
}

fn cgroup_limit(host: &Host, pid: u32) -> Option<i64> {
    let (dir, top, is_v1) = host.hierarchies().memory_of_process(host, pid)?;
    let name = cgroup_files::of(is_v1).memory_limit;
    let mut text = Vec::new();
    let mut limit = |dir: &Path| {
        host.read_small(dir.join(name), &mut text).ok()?;
        // `max` is no limit.
        let bytes = parse::fields(&text).next().and_then(parse::u64)?;
        i64::try_from(bytes).ok().filter(|&bytes| bytes < UNLIMITED_BYTES)
    };
    within(&dir, &top).filter_map(&mut limit).min()
}

fn address_space(host: &Host, pid: u32) -> Option<i64> {
    let mut text = Vec::new();
    host.read_small(format!("/proc/{pid}/limits"), &mut text).ok()?;
    let mut lines = text.split(|&byte| byte == b'\n');
    let soft = lines.find_map(|line| line.strip_prefix(b"Max address space"))?;
    i64::try_from(parse::fields(soft).next().and_then(parse::u64)?).ok()
}

fn within<'d>(dir: &'d Path, top: &'d Path) -> impl Iterator<Item = &'d Path> {
    dir.ancestors().take(DEPTH_MAX).take_while(move |dir| dir.starts_with(top))
}

/// A count of kills that includes the job's, for a job whose own cgroup does not count them.
pub struct OomKills {
    host: Host,
    file: PathBuf,
    before: i64,
}

impl OomKills {
    /// Around a process that is about to start a job, in the nearest cgroup that counts them. `None` where no cgroup
    /// around it has a memory limit: kills by the whole machine being out of memory may be of any other process.
    pub fn around(host: &Host, pid: u32) -> Option<OomKills> {
        cgroup_limit(host, pid).filter(|&bytes| bytes < machine_bytes(host))?;
        let (dir, top, is_v1) = host.hierarchies().memory_of_process(host, pid)?;
        // A v1 cgroup counts its own processes only; one of v2 also those of cgroups inside it.
        let (name, depth) = (cgroup_files::of(is_v1).memory_kills, if is_v1 { 1 } else { DEPTH_MAX });
        let found = |file: PathBuf| Some((kills(host, &file)?, file));
        let (before, file) = within(&dir, &top).take(depth).find_map(|dir| found(dir.join(name)))?;
        Some(OomKills { host: host.clone(), file, before })
    }

    /// Adds the kills since the job began, unless a cgroup of its own has counted them.
    pub fn add_to(&self, totals: &mut Totals) {
        let grown = kills(&self.host, &self.file).map(|now| now - self.before);
        if let Some(grown) = grown.filter(|&grown| grown > 0 && totals.get(OOM_KILLS).is_none()) {
            // Others may be in the same cgroup.
            totals.set(OOM_KILLS, grown, Attributed, "memory events of a cgroup around it");
        }
    }
}

fn kills(host: &Host, file: &Path) -> Option<i64> {
    let mut text = Vec::new();
    host.read_small(file, &mut text).ok()?;
    Some(parse::value_of(&text, "oom_kill")).filter(|&kills| kills != MISSING)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        /// One cgroup inside another.
        fn new(mount: &str, cgroup: &str) -> Machine {
            let machine = Machine(tempfile::tempdir().unwrap());
            machine.write("proc/self/mountinfo", mount);
            machine.write("proc/7/cgroup", cgroup);
            machine
                .write("proc/7/limits", "Max address space         unlimited            unlimited  bytes\n");
            machine.write("proc/meminfo", "MemTotal: 1000000 kB\n");
            machine
        }

        fn v2() -> Machine {
            Machine::new("30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/a/b\n")
        }

        fn v1() -> Machine {
            let mount = "30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
            Machine::new(mount, "4:memory:/a/b\n")
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn host(&self) -> Host {
            Host::at(self.0.path()).unwrap()
        }

        fn limit(&self) -> Option<(i64, LimitKind)> {
            inherited(&self.host(), 7).map(|limit| (limit.bytes, limit.kind))
        }
    }

    #[test]
    fn the_smallest_limit_around_a_job_is_the_one_that_holds() {
        let machine = Machine::v2();
        machine.write("sys/fs/cgroup/a/memory.max", "500000\n");
        machine.write("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(machine.limit(), Some((500_000, LimitKind::Cgroup)));
        machine.write("sys/fs/cgroup/a/b/memory.max", "600000\n");
        assert_eq!(machine.limit(), Some((500_000, LimitKind::Cgroup)));
        machine.write("proc/7/limits", "Max address space         400000            unlimited  bytes\n");
        assert_eq!(machine.limit(), Some((400_000, LimitKind::Process)));
        let machine = Machine::v1();
        machine.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(machine.limit(), None);
        machine.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "700000\n");
        assert_eq!(machine.limit(), Some((700_000, LimitKind::Cgroup)));
        // More than there is limits nothing.
        machine.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "70000000000\n");
        assert_eq!(machine.limit(), None);
    }

    #[test]
    fn kills_are_counted_in_the_nearest_place_that_counts_them() {
        let killed = |machine: &Machine, file: &str| {
            machine.write(file, "oom 0\noom_kill 3\n");
            let kills = OomKills::around(&machine.host(), 7).unwrap();
            machine.write(file, "oom 0\noom_kill 5\n");
            let mut totals = Totals::default();
            kills.add_to(&mut totals);
            assert_eq!(totals.figure(OOM_KILLS).map(|figure| figure.kind), Some(Attributed), "{file}");
            let mut counted = Totals::default();
            counted.set(OOM_KILLS, 0, met_core::job::QualityKind::Measured, "cgroup");
            kills.add_to(&mut counted);
            assert_eq!(counted.get(OOM_KILLS), Some(0), "the job's own cgroup knows better");
            totals.get(OOM_KILLS)
        };
        let v2 = Machine::v2();
        v2.write("sys/fs/cgroup/a/memory.max", "500000\n");
        assert_eq!(killed(&v2, "sys/fs/cgroup/a/memory.events"), Some(2));
        v2.write("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(killed(&v2, "sys/fs/cgroup/a/b/memory.events"), Some(2));
        let v1 = Machine::v1();
        v1.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "500000\n");
        assert_eq!(killed(&v1, "sys/fs/cgroup/memory/a/b/memory.oom_control"), Some(2));
    }

    #[test]
    fn without_a_limit_around_the_job_no_kill_of_another_is_taken_for_one_of_it() {
        let is_counted = |machine: &Machine| OomKills::around(&machine.host(), 7).is_some();
        let v2 = Machine::v2();
        v2.write("proc/vmstat", "oom_kill 3\n");
        assert!(!is_counted(&v2), "of the whole machine");
        v2.write("sys/fs/cgroup/a/memory.events", "oom_kill 3\n");
        v2.write("sys/fs/cgroup/a/memory.max", "max\n");
        assert!(!is_counted(&v2));
        // More than there is limits nothing.
        v2.write("sys/fs/cgroup/a/memory.max", "70000000000\n");
        assert!(!is_counted(&v2));
        v2.write("sys/fs/cgroup/a/memory.max", "500000\n");
        assert!(is_counted(&v2));
        let v1 = Machine::v1();
        v1.write("sys/fs/cgroup/memory/a/b/memory.oom_control", "oom_kill 3\n");
        v1.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        assert!(!is_counted(&v1));
    }
}
