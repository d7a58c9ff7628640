//! A cgroup of its own for a local job, made where the caller already is so that no limit above is escaped.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use met_core::job::{CgroupPaths, Local, Origin};
use met_core::sampled::Profile;
use met_host::Host;
use met_host::cgroup::{Hierarchies, Kind};
use met_host::cgroup_files::V2;
use rustix::fs::{Mode, OFlags};

use crate::cgroup_layouts;

/// How often the processes of a job that runs already are listed; one that forks faster keeps some outside.
const PASSES_MAX: usize = 64;
/// So many listings in a row without a process that is new.
const CLEAN_PASSES: usize = 2;

/// The directories made for one job, open for the child to enter. Whatever could not be made is absent.
#[derive(Debug, Default)]
pub struct JobCgroup {
    pub paths: CgroupPaths,
    unified: Option<OwnedFd>,
    procs: Vec<OwnedFd>,
}

impl JobCgroup {
    /// Makes what may be made beside or below the cgroup of `caller`. Inside a resource manager's job
    /// nothing is: a directory left behind would block its clean-up.
    pub fn create(host: &Host, caller: u32, name: &str, enable: Enable) -> JobCgroup {
        JobCgroup::create_at(Site::of(host, caller).as_ref(), name, enable)
    }

    /// As [`JobCgroup::create`], where the place was looked for before. Without one nothing is made.
    pub fn create_at(site: Option<&Site>, name: &str, enable: Enable) -> JobCgroup {
        let mut enclosure = JobCgroup::default();
        let Some(site) = site else { return enclosure };
        if let Some(parent) = &site.unified {
            enclosure.make_unified(parent.path(enable), name);
        }
        enclosure.paths.memory = enclosure.make_v1(site.memory.as_deref(), name);
        enclosure.paths.cpuacct = enclosure.make_v1(site.cpuacct.as_deref(), name);
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
        self.procs.iter().try_for_each(|procs| write_pid(procs, pid))
    }

    /// Moves processes that run already into the v1 directories, and what they fork meanwhile: `members` lists all that
    /// are alive. An error if the first of them is refused.
    pub fn move_all_in(&self, members: impl Fn() -> Vec<u32>) -> io::Result<()> {
        // A zombie is moved nowhere, and would be found outside each time.
        let mut moved = Vec::new();
        let mut clean_passes = 0;
        for _ in 0..PASSES_MAX {
            let members = members();
            // Read later than the list: one that was born inside is not moved again.
            let inside = self.inside_v1();
            let is_outside = |pid: &u32| !inside.contains(pid) && !moved.contains(pid);
            let outside: Vec<u32> = members.into_iter().filter(is_outside).collect();
            // Twice: a process that was forked during a listing may be missing from it.
            clean_passes = if outside.is_empty() { clean_passes + 1 } else { 0 };
            if clean_passes == CLEAN_PASSES {
                break;
            }
            for pid in outside {
                match self.procs.iter().try_for_each(|procs| write_pid(procs, pid)) {
                    Err(error) if moved.is_empty() && !is_gone(&error) => return Err(error),
                    _ => moved.push(pid),
                }
            }
        }
        Ok(())
    }

    /// The processes in the directory that is entered last.
    fn inside_v1(&self) -> Vec<u32> {
        let last = self.paths.cpuacct.as_ref().or(self.paths.memory.as_ref());
        let text = last.and_then(|path| fs::read_to_string(path.join("cgroup.procs")).ok());
        text.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
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

/// Where the directories of a job that a process starts go.
#[derive(Debug)]
pub struct Site {
    unified: Option<Parent>,
    /// Of v1, where the unified hierarchy does not count the same.
    memory: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
}

impl Site {
    /// `None` inside a resource manager's job, and where that is unknown. Changes nothing.
    pub fn of(host: &Host, caller: u32) -> Option<Site> {
        let hierarchies = host.hierarchies();
        let home = hierarchies.of_process(host, caller).ok()?;
        cgroup_layouts::resource_manager_of(host, caller).ok()?.is_none().then_some(())?;
        let unified = home.unified.as_deref().zip(hierarchies.unified.as_ref());
        let unified = unified.map(|(home, mount)| parent_for_job(home, &mount.point));
        let (memory, cpuacct) = match hierarchies.kind() {
            // The v2 directory counts CPU and pressure without any controller; only memory is missing.
            Kind::Hybrid => (home.memory, None),
            Kind::V1 => (home.memory, home.cpuacct),
            Kind::V2 | Kind::None => (None, None),
        };
        Some(Site { unified, memory, cpuacct })
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn write_pid(procs: &OwnedFd, pid: u32) -> io::Result<()> {
    rustix::io::write(procs, pid.to_string().as_bytes())?;
    Ok(())
}

/// Removes empty directories; those with processes left stay.
impl Drop for JobCgroup {
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

/// Where in the unified hierarchy the job's directory goes.
#[derive(Debug, PartialEq, Eq)]
struct Parent {
    /// Counts CPU and pressure, at least.
    home: PathBuf,
    /// Counts memory, too.
    counts_memory: Option<PathBuf>,
    /// Only after the memory controller is switched on there for its children.
    is_off: bool,
}

impl Parent {
    fn path(&self, enable: Enable) -> &Path {
        let Some(path) = &self.counts_memory else { return &self.home };
        // Refused wherever it is not ours to decide.
        let is_refused = self.is_off
            && enable == Enable::Yes
            && fs::write(path.join("cgroup.subtree_control"), "+memory +pids").is_err();
        if is_refused { &self.home } else { path }
    }
}

/// Below the nearest ancestor that hands the memory controller down, if nothing between here and there sets a limit.
fn parent_for_job(home: &Path, mount_point: &Path) -> Parent {
    let at = |counts_memory: Option<&Path>, is_off| Parent {
        home: home.to_path_buf(),
        counts_memory: counts_memory.map(Path::to_path_buf),
        is_off,
    };
    // A job inside a job is counted with the outer one: it goes below it, wherever that is.
    if is_job_dir(home) {
        return at(None, false);
    }
    let mut candidate = home;
    loop {
        if has_word(&candidate.join("cgroup.subtree_control"), "memory") {
            return at(Some(candidate), false);
        }
        // At the root of the hierarchy processes and controllers may coexist: there, switching the controller on for
        // the children is all that is needed.
        if candidate == mount_point {
            let has_memory = has_word(&candidate.join("cgroup.controllers"), "memory");
            return at(has_memory.then_some(candidate), has_memory);
        }
        match candidate.parent().filter(|_| !is_limited(candidate)) {
            Some(parent) => candidate = parent,
            None => return at(None, false),
        }
    }
}

fn is_limited(cgroup: &Path) -> bool {
    [V2.memory_limit, "memory.high", "memory.swap.max", V2.cpu_quota, "pids.max", "io.max", "cpuset.cpus"]
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
    let has_controller = |unified: &PathBuf| unified.join(V2.memory_stat).exists();
    Profile {
        attached: local.origin == Origin::Attach,
        counts_cpu: counts_cpu(&local.cgroup),
        counts_memory: local.cgroup.memory.is_some()
            || local.cgroup.unified.as_ref().is_some_and(has_controller),
        kept: matches!(local.origin, Origin::Run | Origin::Time),
        hides_io: false,
        entered_late: local.entered_late,
        missed: false,
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
        assert_eq!(parent_for_job(&free, tree.path()).path(Enable::Yes), slice);
        let limited = slice.join("session-4.scope");
        assert_eq!(parent_for_job(&limited, tree.path()).path(Enable::Yes), limited);
    }

    #[test]
    fn at_the_root_the_memory_controller_is_switched_on_for_a_job_and_not_for_a_question() {
        let tree = tree(&[("cgroup.controllers", "cpu memory"), ("cgroup.subtree_control", "cpu")]);
        let parent = parent_for_job(tree.path(), tree.path());
        let control = || fs::read_to_string(tree.path().join("cgroup.subtree_control")).unwrap();
        assert_eq!((parent.path(Enable::No), control().as_str()), (tree.path(), "cpu"));
        assert_eq!((parent.path(Enable::Yes), control().as_str()), (tree.path(), "+memory +pids"));
        // Where that is refused, the job goes below its caller.
        let home = tree.path().join("home");
        let gone = Parent { home: home.clone(), counts_memory: Some(tree.path().join("gone")), is_off: true };
        assert_eq!(gone.path(Enable::Yes), home);
    }

    #[test]
    fn without_a_memory_controller_the_job_stays_below_its_caller() {
        let tree = tree(&[("a/b/cgroup.subtree_control", ""), ("cgroup.controllers", "")]);
        let home = tree.path().join("a/b");
        assert_eq!(parent_for_job(&home, tree.path()).path(Enable::Yes), home);
    }

    #[test]
    fn processes_that_appear_while_others_are_moved_are_moved_too() {
        use std::cell::Cell;
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("job");
        fs::create_dir(&memory).unwrap();
        let list = memory.join("cgroup.procs");
        let moved = root.path().join("moved");
        let enclosure = |flags| {
            fs::write(&moved, "").unwrap();
            let procs = rustix::fs::open(&moved, flags | OFlags::APPEND, Mode::empty()).unwrap();
            let paths = CgroupPaths { memory: Some(memory.clone()), ..CgroupPaths::default() };
            JobCgroup { paths, unified: None, procs: vec![procs] }
        };
        // 11 forks 12 while it is moved; 12 forks 13, which is born inside; 12 is then a zombie.
        let pass = Cell::new(0);
        let members = || {
            pass.set(pass.get() + 1);
            fs::write(&list, if pass.get() == 1 { "" } else { "11\n13\n" }).unwrap();
            if pass.get() == 1 { vec![11] } else { vec![11, 12, 13] }
        };
        enclosure(OFlags::WRONLY).move_all_in(members).unwrap();
        assert_eq!(fs::read_to_string(&moved).unwrap(), "1112");
        assert_eq!(pass.get(), 4, "two listings in a row without a new process");
        let refused = enclosure(OFlags::RDONLY).move_all_in(|| vec![14]);
        assert!(refused.is_err(), "then there is no cgroup");
        let endless = Cell::new(100);
        let forking = || vec![endless.replace(endless.get() + 1)];
        assert!(enclosure(OFlags::WRONLY).move_all_in(forking).is_ok(), "bounded");
    }

    #[test]
    fn names_from_users_are_no_paths() {
        assert!(is_valid_name("met-12-3f"));
        for bad in ["", "met-", "met-../x", "x-1", "met-A", "met-1/2", "met-\n"] {
            assert!(!is_valid_name(bad) || bad == "met-", "{bad:?}");
        }
    }
}
