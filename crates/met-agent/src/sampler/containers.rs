//! Containers that a supervised job starts with an engine without a service: their processes are below the job's
//! supervisor, and in cgroups of their own.

use std::path::Path;

use met_core::job::CgroupPaths;
use met_host::Host;

use met_jobs::{Members, processes};

/// The process that waits for a container of Podman or CRI-O; it has left the tree of the process that started it.
const MONITOR: &[u8] = b"conmon";
/// In the name of every cgroup of a container of these engines.
const OF_CONTAINER: &str = "libpod-";
/// Of one job at once.
const CONTAINERS_MAX: usize = 64;

/// Containers that a job started.
#[derive(Default)]
pub(super) struct Containers {
    /// The cgroups of those that are still there.
    known: Vec<CgroupPaths>,
    /// There were more at once than are followed.
    pub(super) are_too_many: bool,
}

impl Containers {
    /// Begins to read the cgroups of containers that were started since the last look.
    pub(super) fn follow(&mut self, host: &Host, members: &mut Members, slot: u32) {
        let Some(supervisor) = members.supervisor(slot) else { return };
        let has_name = |&pid: &u32| {
            let name = host.process(pid).ok().and_then(|process| host.process_name(process));
            name.is_some_and(|name| name.as_bytes() == MONITOR)
        };
        let monitors = processes::children_of(host, supervisor.pid).into_iter().filter(has_name);
        for pid in monitors.flat_map(|monitor| processes::children_of(host, monitor)) {
            let Some(paths) = container_of(host, pid) else { continue };
            // A daemon that finds jobs of others may have it as a job of its own.
            if members.has_cgroup(&paths) {
                continue;
            }
            if self.known.len() >= CONTAINERS_MAX {
                self.are_too_many = true;
                break;
            }
            members.add_cgroup(slot, paths.clone());
            self.known.push(paths);
        }
    }

    /// The cgroups that are gone since the last look.
    pub(super) fn take_gone(&mut self, host: &Host) -> Vec<CgroupPaths> {
        let is_gone =
            |paths: &mut CgroupPaths| main_dir(paths).is_some_and(|dir| host.cgroup_dir(dir).is_err());
        self.known.extract_if(.., is_gone).collect()
    }
}

/// The directories of the container that a process is in. In a hierarchy that the engine does not use, the process
/// is where many others are.
fn container_of(host: &Host, pid: u32) -> Option<CgroupPaths> {
    let of_container = |path: &Path| {
        let mut names = path.components().filter_map(|part| part.as_os_str().to_str());
        names.any(|name| name.starts_with(OF_CONTAINER))
    };
    let found = host.hierarchies().of_process(host, pid).ok()?;
    let paths = CgroupPaths {
        unified: found.unified.filter(|path| of_container(path)),
        memory: found.memory.filter(|path| of_container(path)),
        cpuacct: found.cpuacct.filter(|path| of_container(path)),
    };
    (!paths.is_empty()).then_some(paths)
}

fn main_dir(paths: &CgroupPaths) -> Option<&Path> {
    paths.unified.as_deref().or(paths.memory.as_deref()).or(paths.cpuacct.as_deref())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use met_core::job::{ProcessId, QualityKind};
    use met_core::job_table::CPU;
    use met_core::provenance::{Caveat, Provenance};

    use super::*;
    use crate::sampler::{Known, Sampler};
    use met_config::Config;
    use met_core::sample;

    const SUPERVISOR: u32 = 100;
    const CONMON: u32 = 101;

    /// The CPU time of a job that runs so many containers at once, each of which has used a millisecond.
    fn cpu_of_job_with(containers: usize) -> (i64, QualityKind, Provenance) {
        let root = tempfile::tempdir().unwrap();
        let put = |path: String, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let cgroup = |path: &str, usec: u32| {
            let usage = format!("usage_usec {usec}\nuser_usec {usec}\nsystem_usec 0\n");
            put(format!("sys/fs/cgroup/{path}/cpu.stat"), &usage);
            put(format!("sys/fs/cgroup/{path}/cgroup.procs"), "");
        };
        let process = |pid: u32, name: &str, path: &str, children: &str| {
            let zeros = "0 ".repeat(17);
            put(format!("proc/{pid}/stat"), &format!("{pid} ({name}) S 1 {zeros}5 0 0\n"));
            put(format!("proc/{pid}/comm"), &format!("{name}\n"));
            put(format!("proc/{pid}/cgroup"), &format!("0::/{path}\n"));
            put(format!("proc/{pid}/task/{pid}/children"), children);
        };
        put("proc/self/mountinfo".to_owned(), "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        cgroup("job", 1000);
        let pids: Vec<u32> = (1000..).take(containers).collect();
        for pid in &pids {
            let path = format!("machine.slice/libpod-{pid}.scope");
            cgroup(&path, 1000);
            process(*pid, "sleep", &path, "");
        }
        process(SUPERVISOR, "met-supervisor", "job", &CONMON.to_string());
        let children: Vec<String> = pids.iter().map(u32::to_string).collect();
        process(CONMON, "conmon", "job", &children.join(" "));

        let host = Host::at(root.path()).unwrap();
        let mut record = sample::bare(1, "x");
        let local = record.local.as_mut().unwrap();
        local.boot_id.clone_from(&host.facts().boot_id);
        (local.supervisor, local.main) = (Some(ProcessId { pid: SUPERVISOR, start_ticks: 5 }), None);
        local.cgroup = CgroupPaths { unified: Some("/sys/fs/cgroup/job".into()), ..CgroupPaths::default() };
        let mut sampler = Sampler::of_node(host, Duration::from_secs(1), &Config::default());
        let slot = sampler.add(&record).unwrap();
        sampler.jobs.get_mut(&slot).unwrap().profile.counts_cpu = true;
        // What is found at the first look is read at the next.
        (0..3).for_each(|_| sampler.look());
        let sampled = sampler.remove(slot, Known::of(&record)).unwrap();
        let series = sampled.series.clone();
        sampled.complete(&mut record, &series, Duration::from_secs(1));
        let figure = record.totals.figure(CPU).unwrap();
        (figure.value, figure.kind, figure.source.clone())
    }

    #[test]
    fn what_containers_beyond_the_bound_did_is_said_to_be_missing() {
        let (cpu_ns, _, source) = cpu_of_job_with(CONTAINERS_MAX);
        assert_eq!(cpu_ns, (CONTAINERS_MAX as i64 + 1) * 1_000_000);
        assert!(!source.has(Caveat::SomeContainers), "{source}");
        let (cpu_ns, kind, source) = cpu_of_job_with(CONTAINERS_MAX + 1);
        assert_eq!((cpu_ns, kind), ((CONTAINERS_MAX as i64 + 1) * 1_000_000, QualityKind::LowerBound));
        assert!(source.has(Caveat::SomeContainers), "{source}");
    }
}
