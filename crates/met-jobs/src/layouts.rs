//! How the names of cgroups tell who made them: one table of layouts.

use std::path::Path;

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
    layout("docker", &["docker", "@"]),
    layout("docker", &["docker-@.scope"]),
    layout("podman", &["libpod-@.scope"]),
    layout("podman", &["libpod-@"]),
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

fn layout_of(path: &Path) -> Option<&'static Layout> {
    let parts: Vec<&[u8]> = path.components().map(|part| part.as_os_str().as_encoded_bytes()).collect();
    LAYOUTS.iter().find(|layout| {
        parts.windows(layout.parts.len()).any(|window| {
            window.iter().zip(layout.parts).all(|(part, pattern)| matches(part, pattern.as_bytes()))
        })
    })
}

/// `*` any characters, `#` digits, `@` 64 hexadecimal digits, `%` 13 Crockford base-32 characters.
fn matches(text: &[u8], pattern: &[u8]) -> bool {
    let Some((&first, rest)) = pattern.split_first() else { return text.is_empty() };
    match first {
        b'*' => (0..=text.len()).any(|skip| matches(&text[skip..], rest)),
        b'#' => {
            let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
            digits > 0 && matches(&text[digits..], rest)
        }
        b'@' => matches_run(text, 64, u8::is_ascii_hexdigit, rest),
        b'%' => matches_run(text, 13, u8::is_ascii_alphanumeric, rest),
        letter => text.split_first().is_some_and(|(&head, tail)| head == letter && matches(tail, rest)),
    }
}

fn matches_run(text: &[u8], count: usize, is_of_it: fn(&u8) -> bool, rest: &[u8]) -> bool {
    text.split_at_checked(count).is_some_and(|(run, tail)| run.iter().all(is_of_it) && matches(tail, rest))
}
