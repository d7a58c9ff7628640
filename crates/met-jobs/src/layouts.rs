//! How the names of cgroups tell who made them: one table of layouts.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use met_host::{Host, parse};

/// How the cgroups of one manager are recognised.
struct Layout {
    manager: &'static str,
    /// A resource manager, which cleans up after its jobs: no cgroup of ours may be made inside.
    managed: bool,
    /// Patterns for consecutive parts of the path, in any place of it. `*` stands for any characters.
    parts: &'static [&'static str],
}

const fn layout(manager: &'static str, parts: &'static [&'static str]) -> Layout {
    Layout { manager, managed: false, parts }
}

const fn managed(manager: &'static str, parts: &'static [&'static str]) -> Layout {
    Layout { manager, managed: true, parts }
}

/// The most specific first: a container inside a Slurm job is still in the Slurm job.
static LAYOUTS: &[Layout] = &[
    managed("slurm", &["slurm*", "uid_#", "job_#"]),
    managed("slurm", &["*slurmstepd.scope", "job_#"]),
    // From Slurm 26.05 on a job is named by its SLUID.
    managed("slurm", &["*slurmstepd.scope", "s%"]),
    managed("oar", &["oar", "*_#"]),
    managed("pbs", &["pbs*.service", "jobid", "*"]),
    managed("pbs", &["pbs*.service", "jobs", "*"]),
    managed("pbs", &["pbs*.slice", "pbs*-*.slice"]),
    managed("lsf", &["lsf", "*", "job.*"]),
    managed("condor", &["htcondor*", "condor*slot*"]),
    managed("condor", &["condor.service", "*slot*"]),
    layout("kubernetes", &["kubepods*"]),
    layout("docker", &["docker", "^"]),
    layout("docker", &["docker-^.scope"]),
    layout("podman", &["libpod-^.scope"]),
    layout("podman", &["libpod-^"]),
    layout("systemd", &["user.slice", "user-#.slice", "session-*.scope"]),
    layout("systemd", &["user@#.service", "app.slice", "*"]),
    layout("systemd", &["system.slice", "*.service"]),
];

/// Who made the cgroup with this path, with or without its mount point, if the path tells.
pub fn manager_of(path: &Path) -> Option<&'static str> {
    layout_of(path).map(|layout| layout.manager)
}

/// Whether the path lies inside a job of a resource manager.
pub fn is_managed(path: &Path) -> bool {
    layout_of(path).is_some_and(|layout| layout.managed)
}

/// The resource manager in whose job a process runs. Every hierarchy is asked: some managers use few.
pub fn resource_manager_of(host: &Host, pid: u32) -> io::Result<Option<&'static str>> {
    let mut text = Vec::new();
    host.read_small(format!("/proc/{pid}/cgroup"), &mut text)?;
    let paths = parse::lines(&text).filter_map(|line| line.splitn(3, |&byte| byte == b':').nth(2));
    let mut layouts = paths.filter_map(|path| layout_of(Path::new(OsStr::from_bytes(path))));
    Ok(layouts.find(|layout| layout.managed).map(|layout| layout.manager))
}

fn layout_of(path: &Path) -> Option<&'static Layout> {
    let parts: Vec<&[u8]> = path.components().map(|part| part.as_os_str().as_encoded_bytes()).collect();
    LAYOUTS.iter().find(|layout| {
        parts.windows(layout.parts.len()).any(|window| {
            window.iter().zip(layout.parts).all(|(part, pattern)| matches(part, pattern.as_bytes()))
        })
    })
}

/// `*` any characters, `#` digits, `^` 64 hexadecimal digits, `%` 13 Crockford base-32 characters.
fn matches(text: &[u8], pattern: &[u8]) -> bool {
    let Some((&first, rest)) = pattern.split_first() else { return text.is_empty() };
    match first {
        b'*' => (0..=text.len()).any(|skip| matches(&text[skip..], rest)),
        b'#' => {
            let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
            digits > 0 && matches(&text[digits..], rest)
        }
        b'^' => matches_run(text, 64, u8::is_ascii_hexdigit, rest),
        b'%' => matches_run(text, 13, u8::is_ascii_alphanumeric, rest),
        letter => text.split_first().is_some_and(|(&head, tail)| head == letter && matches(tail, rest)),
    }
}

fn matches_run(text: &[u8], count: usize, is_of_it: fn(&u8) -> bool, rest: &[u8]) -> bool {
    text.split_at_checked(count).is_some_and(|(run, tail)| run.iter().all(is_of_it) && matches(tail, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::fmt::Write;

    const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    const PATHS: &[&str] = &[
        "/sys/fs/cgroup/memory/slurm/uid_1000/job_42/step_0/task_0",
        "/slurm_node7/uid_1000/job_42",
        "/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0",
        "/system.slice/node7_slurmstepd.scope/job_42",
        "/system.slice/slurmstepd.scope/s7XK2M9PQ4RTVW/step_0",
        "/system.slice/slurmstepd.scope/system",
        "/system.slice/slurmd.service",
        "/slurm",
        "/oar/first_last_1234",
        "/oar/first_last_1234/0",
        "/oar",
        "/pbs_jobs.service/jobid/17.server",
        "/pbs_jobs.service/jobs/17[3].server",
        "/pbspro.service/jobid/17.server",
        "/pbspro.slice/pbspro-17.server.slice",
        "/lsf/cluster1/job.99.1234.1700000000",
        "/lsf/cluster1/job.99.3.1234.1700000000",
        "/htcondor/condor_var_lib_condor_execute_slot1_2@node",
        "/system.slice/condor.service/condor_slot1@node",
        "/system.slice/condor.service",
        "/kubepods/besteffort/pod1234/CONTAINER",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/cri-containerd-CONTAINER.scope",
        "/docker/CONTAINER",
        "/docker/1234",
        "/system.slice/docker-CONTAINER.scope",
        "/machine.slice/libpod-CONTAINER.scope",
        "/slurm/uid_0/job_1/docker/CONTAINER",
        "/user.slice/user-1000.slice/session-3.scope",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/met.service",
        "/system.slice/cron.service",
        "/",
    ];

    #[test]
    fn each_manager_is_known_by_its_paths() {
        let mut text = String::new();
        for path in PATHS {
            let full = path.replace("CONTAINER", CONTAINER);
            let manager = manager_of(Path::new(&full)).unwrap_or("-");
            let managed = if is_managed(Path::new(&full)) { "managed" } else { "" };
            writeln!(text, "{manager:<10} {managed:<7} {path}").unwrap();
        }
        expect![[r#"
            slurm      managed /sys/fs/cgroup/memory/slurm/uid_1000/job_42/step_0/task_0
            slurm      managed /slurm_node7/uid_1000/job_42
            slurm      managed /system.slice/slurmstepd.scope/job_42/step_batch/user/task_0
            slurm      managed /system.slice/node7_slurmstepd.scope/job_42
            slurm      managed /system.slice/slurmstepd.scope/s7XK2M9PQ4RTVW/step_0
            -                  /system.slice/slurmstepd.scope/system
            systemd            /system.slice/slurmd.service
            -                  /slurm
            oar        managed /oar/first_last_1234
            oar        managed /oar/first_last_1234/0
            -                  /oar
            pbs        managed /pbs_jobs.service/jobid/17.server
            pbs        managed /pbs_jobs.service/jobs/17[3].server
            pbs        managed /pbspro.service/jobid/17.server
            pbs        managed /pbspro.slice/pbspro-17.server.slice
            lsf        managed /lsf/cluster1/job.99.1234.1700000000
            lsf        managed /lsf/cluster1/job.99.3.1234.1700000000
            condor     managed /htcondor/condor_var_lib_condor_execute_slot1_2@node
            condor     managed /system.slice/condor.service/condor_slot1@node
            systemd            /system.slice/condor.service
            kubernetes         /kubepods/besteffort/pod1234/CONTAINER
            kubernetes         /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice/cri-containerd-CONTAINER.scope
            docker             /docker/CONTAINER
            -                  /docker/1234
            docker             /system.slice/docker-CONTAINER.scope
            podman             /machine.slice/libpod-CONTAINER.scope
            slurm      managed /slurm/uid_0/job_1/docker/CONTAINER
            systemd            /user.slice/user-1000.slice/session-3.scope
            systemd            /user.slice/user-1000.slice/user@1000.service/app.slice/met.service
            systemd            /system.slice/cron.service
            -                  /
        "#]].assert_eq(&text);
    }

    #[test]
    fn a_job_is_recognised_in_any_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/7")).unwrap();
        let text = "5:freezer:/slurm/uid_0/job_3\n4:memory:/\n0::/user.slice/user-0.slice/session-1.scope\n";
        std::fs::write(root.path().join("proc/7/cgroup"), text).unwrap();
        let host = Host::at(root.path()).unwrap();
        assert_eq!(resource_manager_of(&host, 7).unwrap(), Some("slurm"));
        assert!(resource_manager_of(&host, 8).is_err());
    }
}
