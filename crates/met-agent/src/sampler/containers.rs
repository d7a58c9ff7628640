//! Containers that a supervised job starts with an engine without a service: their processes are below the job's
//! supervisor, and in cgroups of their own.

use std::path::Path;

use met_core::job::CgroupPaths;
use met_host::Host;

use super::Sampler;
use met_jobs::processes;

/// The process that waits for a container of Podman or CRI-O; it has left the tree of whoever started it.
const MONITOR: &[u8] = b"conmon";
/// In the name of every cgroup of a container of these engines.
const OF_CONTAINER: &str = "libpod-";
/// Of one job at once.
const CONTAINERS_MAX: usize = 64;

impl Sampler {
    /// Begins to read the cgroups of containers that were started since the last look.
    pub(super) fn follow_containers(&mut self) {
        let Sampler { host, members, jobs, .. } = self;
        for (&slot, job) in jobs.iter_mut().filter(|(_, job)| job.profile.kept && job.profile.counts_cpu) {
            let Some(keeper) = members.keeper(slot) else { continue };
            let has_name = |&pid: &u32| {
                let name = host.process(pid).ok().and_then(|process| host.process_name(process));
                name.is_some_and(|name| name.as_bytes() == MONITOR)
            };
            let monitors = processes::children_of(host, keeper.pid).into_iter().filter(has_name);
            for pid in monitors.flat_map(|monitor| processes::children_of(host, monitor)) {
                let Some(paths) = container_of(host, pid) else { continue };
                // A daemon that finds jobs of others may have it as a job of its own.
                if job.containers.len() < CONTAINERS_MAX && !members.has_cgroup(&paths) {
                    members.add_cgroup(slot, paths.clone());
                    job.containers.push(paths);
                }
            }
        }
    }

    /// Keeps what was counted in cgroups of containers that are gone.
    pub(super) fn leave_containers(&mut self) {
        let is_gone =
            |paths: &CgroupPaths| main_dir(paths).is_some_and(|dir| self.host.cgroup_dir(dir).is_err());
        let mut gone = Vec::new();
        for (&slot, job) in &self.jobs {
            gone.extend(
                job.containers.iter().filter(|paths| is_gone(paths)).map(|paths| (slot, paths.clone())),
            );
        }
        for (slot, paths) in gone {
            self.leave_cgroup(slot, &paths, None);
            self.members.drop_cgroup(slot, &paths);
            if let Some(job) = self.jobs.get_mut(&slot) {
                job.containers.retain(|known| *known != paths);
            }
        }
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
