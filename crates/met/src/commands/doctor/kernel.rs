//! What the kernel allows: cgroups, counters of tasks, pressure, open files.

use std::path::Path;

use met_host::cgroup::{Hierarchies, Kind};
use met_jobs::enclosure::{Enable, Enclosure};

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
    Finding { what: "cgroups", health, detail: detail.to_owned(), remedy }
}

/// Tried for real: whether it works depends on who asks from where.
pub(super) fn job_cgroup(setting: &Setting) -> Finding {
    let name = format!("met-doctor-{}", std::process::id());
    let tried = Enclosure::create(&setting.host, std::process::id(), &name, Enable::No);
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
    Finding { what: "job cgroup", health, detail: detail.to_owned(), remedy }
}

pub(super) fn perf() -> Finding {
    if perf_allowed() {
        let detail = "CPU of every descendant, also where there is no cgroup";
        return Finding { what: "task clock", health: Health::Good, detail: detail.to_owned(), remedy: None };
    }
    Finding {
        what: "task clock",
        health: Health::Less,
        detail: "perf events are not allowed: without a cgroup, CPU of unreaped children is missed"
            .to_owned(),
        remedy: Some("sudo sysctl kernel.perf_event_paranoid=2".to_owned()),
    }
}

pub(super) fn pressure() -> Finding {
    if Path::new("/proc/pressure/cpu").exists() {
        return Finding {
            what: "pressure",
            health: Health::Good,
            detail: "time lost waiting for CPU, memory and I/O".to_owned(),
            remedy: None,
        };
    }
    Finding {
        what: "pressure",
        health: Health::Denied,
        detail: "the kernel does not account pressure".to_owned(),
        remedy: Some("boot with psi=1 on the kernel command line".to_owned()),
    }
}

pub(super) fn open_files() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let enough = limit.is_none_or(|limit| limit >= 8192);
    Finding {
        what: "open files",
        health: if enough { Health::Good } else { Health::Less },
        detail: match limit {
            None => "unlimited".to_owned(),
            Some(limit) => format!(
                "at most {limit}; a quarter of it for files kept open, above that they are reopened for each reading"
            ),
        },
        remedy: (!enough)
            .then(|| "ulimit -Hn 65536    (as root, or in /etc/security/limits.conf)".to_owned()),
    }
}
