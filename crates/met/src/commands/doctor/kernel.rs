//! What the kernel allows: cgroups, counters of tasks, pressure, open files.

use std::path::Path;

use met_host::cgroup::{Hierarchies, Kind};
use met_jobs::job_cgroup::{Enable, JobCgroup};

use super::{Finding, Health};
use met_agent::supervise::perf_allowed;
use met_query::setting::Setting;

pub(super) fn cgroups(setting: &Setting) -> Finding {
    let kind = Hierarchies::read(&setting.host).map_or(Kind::None, |hierarchies| hierarchies.kind());
    let (health, detail) = match kind {
        Kind::V2 => (Health::Good, "cgroup v2"),
        Kind::Hybrid => (Health::Good, "cgroup v1 with a v2 hierarchy beside it"),
        Kind::V1 => (Health::Less, "cgroup v1 only: no pressure figures"),
        Kind::None => {
            (Health::Denied, "no cgroup file system is mounted: jobs are followed by their process tree")
        }
    };
    let remedy = (kind == Kind::None).then(|| "mount -t cgroup2 none /sys/fs/cgroup".to_owned());
    Finding { remedy, ..Finding::new("cgroups", health, detail) }
}

/// Tried for real: whether it works depends on who asks from where.
pub(super) fn job_cgroup(setting: &Setting) -> Finding {
    let name = format!("met-doctor-{}", std::process::id());
    let tried = JobCgroup::create(&setting.host, std::process::id(), &name, Enable::No);
    let (paths, counts_cpu) = (tried.paths.clone(), tried.counts_cpu());
    drop(tried);
    let memory = paths.memory.is_some()
        || paths.unified.as_ref().and_then(|path| path.parent()).is_some_and(|parent| {
            std::fs::read_to_string(parent.join("cgroup.subtree_control"))
                .is_ok_and(|text| text.contains("memory"))
        });
    let system = setting.system_daemon().is_some();
    let (health, detail) = match (counts_cpu, memory) {
        (true, true) => (Health::Good, "a job gets a cgroup of its own: CPU, memory and pressure are exact"),
        (true, false) => {
            (Health::Less, "a job gets a cgroup without the memory controller: memory is estimated")
        }
        _ if system => (Health::Good, "the system daemon creates a cgroup for each job of met run"),
        _ => (
            Health::Less,
            "no cgroup can be created here: CPU stays exact by other means, memory is \
                estimated",
        ),
    };
    let remedy =
        (health == Health::Less && !counts_cpu).then(|| "sudo met daemon    (serves all users)".to_owned());
    Finding { remedy, ..Finding::new("job cgroup", health, detail) }
}

pub(super) fn perf() -> Finding {
    let finding = |health, detail: &str| Finding::new("task clock", health, detail);
    if perf_allowed() {
        return finding(Health::Good, "CPU of every descendant, also where there is no cgroup");
    }
    let detail = "perf events are not allowed: without a cgroup, CPU of unreaped children is missed";
    finding(Health::Less, detail).remedied_by("sudo sysctl kernel.perf_event_paranoid=2")
}

pub(super) fn pressure() -> Finding {
    let finding = |health, detail: &str| Finding::new("pressure", health, detail);
    if Path::new("/proc/pressure/cpu").exists() {
        return finding(Health::Good, "time lost waiting for CPU, memory and I/O");
    }
    finding(Health::Denied, "the kernel does not account pressure")
        .remedied_by("boot with psi=1 on the kernel command line")
}

pub(super) fn open_files() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let detail = limit.map_or("unlimited".to_owned(), |limit| {
        let kept = met_host::percent::KEPT;
        format!("at most {limit}; {kept} % of it for files kept open, above that they are reopened for each reading")
    });
    match limit.is_none_or(|limit| limit >= 8192) {
        true => Finding::new("open files", Health::Good, detail),
        false => Finding::new("open files", Health::Less, detail)
            .remedied_by("ulimit -Hn 65536    (as root, or in /etc/security/limits.conf)"),
    }
}
