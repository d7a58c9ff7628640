//! A cgroup of its own for a local job, made where the caller already is so that no limit above is escaped.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use met_core::job::{CgroupPaths, Local, Origin};
use met_core::sampled::Profile;
use met_host::Host;
use met_host::cgroup::{Hierarchies, Kind};
use rustix::fs::{Mode, OFlags};

use crate::cgroup_layouts;

/// The directories made for one job, open for the child to enter. Whatever could not be made is absent.
#[derive(Debug, Default)]
pub struct Enclosure {
    pub paths: CgroupPaths,
    unified: Option<OwnedFd>,
    procs: Vec<OwnedFd>,
}

impl Enclosure {
    /// Makes what may be made beside or below the cgroup of `caller`. Inside a resource manager's job
    /// nothing is: a directory left behind would block its clean-up.
    pub fn create(host: &Host, caller: u32, name: &str, enable: Enable) -> Enclosure {
        let mut enclosure = Enclosure::default();
        let hierarchies = host.hierarchies();
        let Ok(home) = hierarchies.of_process(host, caller) else { return enclosure };
        if !matches!(cgroup_layouts::resource_manager_of(host, caller), Ok(None)) {
            return enclosure;
        }
        if let (Some(home), Some(mount)) = (&home.unified, &hierarchies.unified) {
            enclosure.make_unified(&parent_for_job(home, &mount.point, enable), name);
        }
        match hierarchies.kind() {
            // The v2 directory counts CPU and pressure without any controller; only memory is missing.
            Kind::Hybrid => enclosure.paths.memory = enclosure.make_v1(home.memory.as_deref(), name),
            Kind::V1 => {
                enclosure.paths.memory = enclosure.make_v1(home.memory.as_deref(), name);
                enclosure.paths.cpuacct = enclosure.make_v1(home.cpuacct.as_deref(), name);
            }
            Kind::V2 | Kind::None => {}
        }
        enclosure
    }

    fn make_unified(&mut self, parent: &Path, name: &str) {
        let path = parent.join(name);
        if fs::create_dir(&path).is_err() {
            return;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(dir) => {
                self.unified = Some(dir);
                self.paths.unified = Some(path);
            }
            Err(_) => drop(fs::remove_dir(&path)),
        }
    }

    fn make_v1(&mut self, home: Option<&Path>, name: &str) -> Option<PathBuf> {
        let path = home?.join(name);
        fs::create_dir(&path).ok()?;
        match rustix::fs::open(path.join("cgroup.procs"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(procs) => {
                self.procs.push(procs);
                Some(path)
            }
            Err(_) => {
                let _ = fs::remove_dir(&path);
                None
            }
        }
    }

    /// For clone3: the child is born inside.
    pub fn unified(&self) -> Option<&OwnedFd> {
        self.unified.as_ref()
    }

    /// Where the child writes itself to before its exec; each costs 6 to 26 ms, several in a row cost once.
    pub fn procs(&self) -> &[OwnedFd] {
        &self.procs
    }

    /// The child was not allowed into the unified directory.
    pub fn give_up_unified(&mut self) {
        self.unified = None;
        remove_dir(self.paths.unified.take());
    }

    /// The child was not allowed into a v1 directory.
    pub fn give_up_v1(&mut self) {
        self.procs.clear();
        remove_dir(self.paths.memory.take());
        remove_dir(self.paths.cpuacct.take());
    }

    /// Moves a process that already runs in, as a system daemon does for a user who may not.
    pub fn move_in(&self, pid: u32) -> io::Result<()> {
        let text = pid.to_string();
        if let Some(unified) = &self.unified {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let procs = rustix::fs::openat(unified, "cgroup.procs", flags, Mode::empty())?;
            rustix::io::write(&procs, text.as_bytes())?;
        }
        for procs in &self.procs {
            rustix::io::write(procs, text.as_bytes())?;
        }
        Ok(())
    }

    /// Whether the job's CPU time is counted here.
    pub fn counts_cpu(&self) -> bool {
        counts_cpu(&self.paths)
    }

    /// Keeps the directories when this is dropped; another process removes them.
    pub fn keep(mut self) -> CgroupPaths {
        std::mem::take(&mut self.paths)
    }
}

/// Removes empty directories; those with processes left stay.
impl Drop for Enclosure {
    fn drop(&mut self) {
        remove(&self.paths);
    }
}

/// Whether the memory controller may be switched on where it is off: for a job, not for a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enable {
    Yes,
    No,
}

pub fn counts_cpu(paths: &CgroupPaths) -> bool {
    paths.unified.is_some() || paths.cpuacct.is_some()
}

/// Removes the directories of a job; those that are still in use stay. Whether none is left.
pub fn remove(paths: &CgroupPaths) -> bool {
    let paths = [&paths.unified, &paths.memory, &paths.cpuacct];
    // All of them, though one stays.
    paths.into_iter().flatten().filter(|path| !is_removed(path)).count() == 0
}

fn is_removed(path: &Path) -> bool {
    let in_use = [io::ErrorKind::ResourceBusy, io::ErrorKind::DirectoryNotEmpty];
    // What may not be removed at all is not tried again.
    !fs::remove_dir(path).is_err_and(|error| in_use.contains(&error.kind()))
}

fn remove_dir(path: Option<PathBuf>) {
    if let Some(path) = path {
        let _ = fs::remove_dir(path);
    }
}

/// Takes a process out of the cgroups of the job it was started in: a daemon is not part of it.
pub fn leave(host: &Host, pid: u32) {
    let Ok(home) = Hierarchies::read(host).and_then(|hierarchies| hierarchies.of_process(host, pid)) else {
        return;
    };
    for path in [home.unified, home.memory, home.cpuacct].into_iter().flatten() {
        if is_job_dir(&path)
            && let Some(outside) = path.ancestors().find(|ancestor| !is_job_dir(ancestor))
        {
            // Where that is refused the job keeps a process more; its totals stay right.
            let _ = fs::write(outside.join("cgroup.procs"), pid.to_string());
        }
    }
}

fn is_job_dir(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(is_valid_name)
}

/// A name that a user hands to a system daemon must be one of ours and no path.
pub fn is_valid_name(name: &str) -> bool {
    name.starts_with("met-")
        && name.len() <= 80
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Where in the unified hierarchy the job's directory goes: below the nearest ancestor that hands the
/// memory controller down, if nothing between here and there sets a limit; else right below `home`,
/// where CPU and pressure are counted all the same.
fn parent_for_job(home: &Path, mount_point: &Path, enable: Enable) -> PathBuf {
    // A job inside a job is counted with the outer one: it goes below it, wherever that is.
    if is_job_dir(home) {
        return home.to_path_buf();
    }
    let mut candidate = home;
    loop {
        if has_word(&candidate.join("cgroup.subtree_control"), "memory")
            || enables_memory(candidate, mount_point, enable)
        {
            return candidate.to_path_buf();
        }
        if candidate == mount_point || is_limited(candidate) {
            return home.to_path_buf();
        }
        match candidate.parent() {
            Some(parent) => candidate = parent,
            None => return home.to_path_buf(),
        }
    }
}

/// At the root of the hierarchy processes and controllers may coexist: there, switching the controller
/// on for the children is all that is needed. Refused wherever it is not ours to decide.
fn enables_memory(cgroup: &Path, mount_point: &Path, enable: Enable) -> bool {
    cgroup == mount_point
        && has_word(&cgroup.join("cgroup.controllers"), "memory")
        && (enable == Enable::No || fs::write(cgroup.join("cgroup.subtree_control"), "+memory +pids").is_ok())
}

fn is_limited(cgroup: &Path) -> bool {
    ["memory.max", "memory.high", "memory.swap.max", "cpu.max", "pids.max", "io.max", "cpuset.cpus"]
        .iter()
        .any(|file| {
            let limit = fs::read_to_string(cgroup.join(file)).unwrap_or_default();
            !limit.trim().is_empty() && !limit.starts_with("max")
        })
}

fn has_word(file: &Path, word: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|found| found == word))
}

/// What decides how good the samples of a job are.
pub fn profile(local: &Local) -> Profile {
    let has_controller = |unified: &PathBuf| unified.join("memory.stat").exists();
    Profile {
        attached: local.origin == Origin::Attach,
        counts_cpu: counts_cpu(&local.cgroup),
        counts_memory: local.cgroup.memory.is_some()
            || local.cgroup.unified.as_ref().is_some_and(has_controller),
        kept: matches!(local.origin, Origin::Run | Origin::Time),
        hides_io: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_job_goes_where_memory_is_counted_and_no_limit_is_escaped() {
        let slice = "user.slice/user-7.slice";
        let tree = tree(&[
            ("cgroup.subtree_control", "cpu memory pids"),
            ("user.slice/cgroup.subtree_control", "cpu memory pids"),
            ("user.slice/user-7.slice/cgroup.subtree_control", "memory pids"),
            ("user.slice/user-7.slice/session-3.scope/cgroup.subtree_control", ""),
            ("user.slice/user-7.slice/session-3.scope/memory.max", "max"),
            ("user.slice/user-7.slice/session-4.scope/cgroup.subtree_control", ""),
            ("user.slice/user-7.slice/session-4.scope/memory.max", "1073741824"),
        ]);
        let slice = tree.path().join(slice);
        let free = slice.join("session-3.scope");
        assert_eq!(parent_for_job(&free, tree.path(), Enable::Yes), slice);
        let limited = slice.join("session-4.scope");
        assert_eq!(parent_for_job(&limited, tree.path(), Enable::Yes), limited);
    }

    #[test]
    fn without_a_memory_controller_the_job_stays_below_its_caller() {
        let tree = tree(&[("a/b/cgroup.subtree_control", ""), ("cgroup.controllers", "")]);
        let home = tree.path().join("a/b");
        assert_eq!(parent_for_job(&home, tree.path(), Enable::Yes), home);
    }

    #[test]
    fn names_from_users_are_no_paths() {
        assert!(is_valid_name("met-12-3f"));
        for bad in ["", "met-", "met-../x", "x-1", "met-A", "met-1/2", "met-\n"] {
            assert!(!is_valid_name(bad) || bad == "met-", "{bad:?}");
        }
    }
}
