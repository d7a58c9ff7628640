//! The files of cgroups that are read outside of sampling: counters, members, peaks.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use met_core::MISSING;
use met_core::job::CgroupPaths;
use met_host::cgroup::{Hierarchies, Mount};
use met_host::cgroup_files::{V1, V2};
use met_host::{Dir, FileType, Host, KeptFile, PidPath, Share, parse};
use rustix::io::Errno;

use super::ledger::Reading;
use crate::environ;
use crate::members::cgroups;

/// So many of a job's processes are enough to learn from.
const PIDS_MAX: usize = 64;
/// Jobs have no deeper cgroups that processes begin in.
const DEPTH_MAX: usize = 8;

/// A mounted hierarchy, best first: where CPU time is counted, a job's directory is followed.
pub(crate) struct Hierarchy {
    pub(crate) point: PathBuf,
    dir: Dir,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unified,
    Cpuacct,
    Memory,
    Other,
}

/// What only the memory files of a cgroup know, at its highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) peak_bytes: i64,
    pub(crate) oom_kills: i64,
}

impl Memory {
    pub(crate) const UNKNOWN: Memory = Memory { peak_bytes: MISSING, oom_kills: MISSING };

    pub(crate) fn raise(&mut self, other: Memory) {
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
        self.oom_kills = self.oom_kills.max(other.oom_kills);
    }
}

pub(crate) struct Files {
    host: Host,
    pub(crate) hierarchies: Vec<Hierarchy>,
    /// What was read last.
    buffer: RefCell<Vec<u8>>,
}

impl Files {
    pub(crate) fn open(host: &Host) -> io::Result<Files> {
        let mounts = Hierarchies::read(host)?;
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        let others = mounts.others.iter().map(|(_, mount)| (Kind::Other, Some(mount)));
        let counting = [
            (Kind::Unified, mounts.unified.as_ref()),
            (Kind::Cpuacct, mounts.cpuacct_v1.as_ref()),
            (Kind::Memory, mounts.memory_v1.as_ref()),
        ];
        for (kind, mount) in counting.into_iter().chain(others) {
            let Some(Mount { point, .. }) = mount else { continue };
            if hierarchies.iter().all(|known| known.point != *point)
                && let Ok(dir) = host.open_dir(point)
            {
                hierarchies.push(Hierarchy { point: point.clone(), dir, kind });
            }
        }
        Ok(Files { host: host.clone(), hierarchies, buffer: RefCell::default() })
    }

    /// The path as this program can open it.
    pub(crate) fn real_path(&self, hierarchy: usize, path: &Path) -> PathBuf {
        let point = &self.hierarchies[hierarchy].point;
        self.host.root().join(point.strip_prefix("/").unwrap_or(point)).join(path)
    }

    /// Inode number and link count of a cgroup's directory.
    pub(crate) fn look_at(&self, hierarchy: usize, path: &Path) -> io::Result<(u64, u64)> {
        self.hierarchies[hierarchy].dir.look_at(here(path))
    }

    pub(crate) fn list(&self, hierarchy: usize, path: &Path) -> io::Result<Vec<(OsString, u64)>> {
        let mut names = Vec::new();
        let dir = self.hierarchies[hierarchy].dir.open_dir(here(path))?;
        dir.list(&mut self.buffer.borrow_mut(), |name, inode, kind| {
            if kind == FileType::Directory {
                names.push((OsStr::from_bytes(name).to_owned(), inode));
            }
        })?;
        Ok(names)
    }

    /// The file that counts CPU time, if there is one in this hierarchy.
    pub(crate) fn open_counter(&self, hierarchy: usize, path: &Path) -> Option<KeptFile> {
        let name = self.counter_path(hierarchy, path)?;
        let dir = &self.hierarchies[hierarchy].dir;
        dir.open_kept(name.as_os_str().as_bytes(), self.host.budget(), Share::Second).ok()
    }

    /// Gone is what the kernel says is gone: then an open descriptor cannot be read either.
    pub(crate) fn read_counter(&self, hierarchy: usize, path: &Path, counter: &KeptFile) -> Reading {
        let buffer = &mut *self.buffer.borrow_mut();
        let dir = &self.hierarchies[hierarchy].dir;
        let name = match counter.is_open() {
            true => PathBuf::new(),
            false => match self.counter_path(hierarchy, path) {
                Some(name) => name,
                None => return Reading::Gone,
            },
        };
        if let Err(error) = counter.read(dir, name.as_os_str().as_bytes(), buffer) {
            return if is_gone(&error) { Reading::Gone } else { Reading::Failed };
        }
        let counter_ns = match self.hierarchies[hierarchy].kind {
            Kind::Unified => {
                u64::try_from(parse::value_of(buffer, "usage_usec")).ok().and_then(|us| us.checked_mul(1000))
            }
            _ => parse::u64(buffer.trim_ascii()),
        };
        counter_ns.map_or(Reading::Failed, Reading::At)
    }

    fn counter_path(&self, hierarchy: usize, path: &Path) -> Option<PathBuf> {
        match self.hierarchies[hierarchy].kind {
            Kind::Unified => Some(path.join(V2.cpu_usage)),
            Kind::Cpuacct => Some(path.join(V1.cpu_usage)),
            Kind::Memory | Kind::Other => None,
        }
    }

    pub(crate) fn is_unified(&self, hierarchy: usize) -> bool {
        self.hierarchies[hierarchy].kind == Kind::Unified
    }

    fn of_kind(&self, kind: Kind) -> Option<usize> {
        self.hierarchies.iter().position(|hierarchy| hierarchy.kind == kind)
    }

    /// The job's directories in the hierarchies that count, and whether more may still be made: a manager
    /// makes them one after the other.
    pub(crate) fn paths_of(&self, path: &Path) -> (CgroupPaths, bool) {
        let of_kind = |kind| {
            let hierarchy = self.of_kind(kind)?;
            self.look_at(hierarchy, path).ok().map(|_| self.hierarchies[hierarchy].point.join(path))
        };
        let unified = of_kind(Kind::Unified);
        let memory = of_kind(Kind::Memory);
        // The v2 directory counts CPU time already.
        let cpuacct = of_kind(Kind::Cpuacct).filter(|_| unified.is_none());
        let counts = unified.is_some() || cpuacct.is_some() || self.of_kind(Kind::Cpuacct).is_none();
        let complete =
            counts && (memory.is_some() || unified.is_some() || self.of_kind(Kind::Memory).is_none());
        (CgroupPaths { unified, memory, cpuacct }, complete)
    }

    /// The one directory in which a job is followed.
    pub(crate) fn path_in(&self, hierarchy: usize, path: &Path) -> CgroupPaths {
        let Hierarchy { point, kind, .. } = &self.hierarchies[hierarchy];
        let path = Some(point.join(path));
        match kind {
            Kind::Unified => CgroupPaths { unified: path, ..CgroupPaths::default() },
            Kind::Cpuacct => CgroupPaths { cpuacct: path, ..CgroupPaths::default() },
            Kind::Memory => CgroupPaths { memory: path, ..CgroupPaths::default() },
            Kind::Other => CgroupPaths::default(),
        }
    }

    /// The highest value in the memory files of a cgroup.
    pub(crate) fn memory_of(&self, path: &Path) -> Memory {
        let buffer = &mut *self.buffer.borrow_mut();
        let mut memory = Memory::UNKNOWN;
        let files = [(Kind::Unified, V2), (Kind::Memory, V1)];
        for (kind, names) in files {
            let Some(hierarchy) = self.of_kind(kind) else { continue };
            let dir = &self.hierarchies[hierarchy].dir;
            if dir.read(path.join(names.memory_peak), buffer).is_ok() {
                let peak_bytes = parse::cell(buffer.trim_ascii());
                let read = dir.read(path.join(names.memory_kills), buffer);
                let oom_kills = if read.is_ok() { parse::value_of(buffer, "oom_kill") } else { MISSING };
                memory.raise(Memory { peak_bytes, oom_kills });
            }
        }
        memory
    }

    pub(crate) fn has_memory_v1(&self) -> bool {
        self.of_kind(Kind::Memory).is_some()
    }

    /// Whether a cgroup is there where v1 counts memory.
    pub(crate) fn has_memory_of(&self, path: &Path) -> bool {
        self.of_kind(Kind::Memory).is_some_and(|hierarchy| self.look_at(hierarchy, path).is_ok())
    }

    /// Lets the kernel count on `alarm` when a cgroup of v1 runs out of memory. False if there is none.
    pub(crate) fn alarm_at_oom(&self, path: &Path, alarm: &OwnedFd) -> bool {
        let Some(hierarchy) = self.of_kind(Kind::Memory) else { return false };
        let real = self.real_path(hierarchy, path);
        let Ok(control) = File::open(real.join(V1.memory_kills)) else { return false };
        let order = format!("{} {}", alarm.as_raw_fd(), control.as_raw_fd());
        let event_control = OpenOptions::new().write(true).open(real.join("cgroup.event_control"));
        event_control.is_ok_and(|mut file| file.write_all(order.as_bytes()).is_ok())
    }

    /// Some of the processes in a cgroup and below it.
    pub(crate) fn pids(&self, hierarchy: usize, path: &Path) -> Vec<u32> {
        let mut pids = Vec::new();
        if let Ok(dir) = self.hierarchies[hierarchy].dir.open_dir(here(path)) {
            let buffer = &mut self.buffer.borrow_mut();
            cgroups::list_in(&dir, buffer, &mut pids);
            cgroups::list_below(&dir, DEPTH_MAX, PIDS_MAX, buffer, &mut pids);
        }
        pids
    }

    /// Whether processes are in the cgroup itself, those below it not counted.
    pub(crate) fn has_own_processes(&self, hierarchy: usize, path: &Path) -> bool {
        let (dir, buffer) = (&self.hierarchies[hierarchy].dir, &mut *self.buffer.borrow_mut());
        dir.read(path.join("cgroup.procs"), buffer).is_ok() && !buffer.is_empty()
    }

    /// Whether a process is left in a cgroup or below it; `None` if it is gone.
    pub(crate) fn is_populated(&self, hierarchy: usize, path: &Path) -> Option<bool> {
        if self.is_unified(hierarchy) {
            let (dir, buffer) = (&self.hierarchies[hierarchy].dir, &mut *self.buffer.borrow_mut());
            dir.read(path.join("cgroup.events"), buffer).ok()?;
            return Some(parse::value_of(buffer, "populated") == 1);
        }
        self.look_at(hierarchy, path).ok()?;
        Some(!self.pids(hierarchy, path).is_empty())
    }

    /// When the first of these processes began, in nanoseconds since the boot.
    pub(crate) fn earliest_start_ns(&self, pids: &[u32]) -> Option<i64> {
        let per_tick = 1_000_000_000 / self.host.facts().ticks_per_second;
        let starts = pids.iter().filter_map(|&pid| self.host.process(pid).ok());
        let first = starts.map(|process| process.start_ticks).min()?;
        i64::try_from(first).ok()?.checked_mul(per_tick)
    }

    /// A variable that one of these processes was started with, if it is a number: ids are. Only those of the
    /// first process's user are read, and those of root.
    pub(crate) fn number_in_environ(&self, pids: &[u32], variable: &str) -> Option<String> {
        let buffer = &mut *self.buffer.borrow_mut();
        let users: Vec<Option<u32>> = pids.iter().map(|&pid| self.user_of(pid, buffer)).collect();
        let first = (pids.iter().zip(&users))
            .filter(|(_, user)| user.is_some_and(|uid| uid != 0))
            .min_by_key(|&(&pid, _)| self.host.process(pid).map_or(u64::MAX, |process| process.start_ticks));
        let owner = first.and_then(|(_, user)| *user);
        let is_believed = |user: &Option<u32>| owner.is_none() || *user == owner || *user == Some(0);
        let mut believed = pids.iter().zip(&users).filter(|(_, user)| is_believed(user));
        believed.find_map(|(&pid, _)| environ::number(&self.host, pid, variable, buffer))
    }

    fn user_of(&self, pid: u32, buffer: &mut Vec<u8>) -> Option<u32> {
        self.host.proc_dir().read(PidPath::new(pid, "status").as_path(), buffer).ok()?;
        u32::try_from(parse::value_of(buffer, "Uid")).ok()
    }
}

/// What a removed cgroup answers, by its name and by a descriptor of it.
fn is_gone(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::NODEV].iter().any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}

fn here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_says_is_gone_is_gone() {
        let gone = |errno: Errno| is_gone(&io::Error::from_raw_os_error(errno.raw_os_error()));
        assert!(gone(Errno::NOENT) && gone(Errno::NODEV));
        assert!(![Errno::NOMEM, Errno::NFILE, Errno::MFILE, Errno::IO, Errno::ACCESS].into_iter().any(gone));
    }
}
