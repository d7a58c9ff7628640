//! The cgroups of jobs, and who is in them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use met_core::job::CgroupPaths;
use met_host::cgroup::CgroupDirs;
use met_host::{Dir, FileType, Host, KeptFile, Share, parse};

const PROCS: &[u8] = b"cgroup.procs";

pub(super) struct Cgroup {
    pub(super) dirs: Arc<CgroupDirs>,
    procs: KeptFile,
}

impl Cgroup {
    pub(super) fn open(host: &Host, paths: &CgroupPaths) -> io::Result<Cgroup> {
        let dirs = Arc::new(CgroupDirs::open(host, paths)?);
        let dir = dirs.unified.as_ref().or(dirs.memory.as_ref()).or(dirs.cpuacct.as_ref());
        let procs = dir.ok_or(io::ErrorKind::NotFound)?.open_kept(PROCS, host.budget(), Share::First)?;
        Ok(Cgroup { dirs, procs })
    }

    /// The processes in it and below.
    pub(super) fn list(&self, buffer: &mut Vec<u8>, pids: &mut Vec<u32>) {
        let dirs = &self.dirs;
        let dir = dirs.unified.as_ref().or(dirs.memory.as_ref()).or(dirs.cpuacct.as_ref());
        let Some(dir) = dir else { return };
        if self.procs.read_list(dir, PROCS, buffer).is_ok() {
            push_pids(buffer, pids);
        }
        list_below(dir, 0, buffer, pids);
    }
}

/// The processes of the cgroups below `dir`. One that is removed meanwhile has none.
fn list_below(dir: &Dir, depth: usize, buffer: &mut Vec<u8>, pids: &mut Vec<u32>) {
    const CGROUP_DEPTH_LIMIT: usize = 64;
    if depth == CGROUP_DEPTH_LIMIT || !dir.may_have_dirs().unwrap_or(false) {
        return;
    }
    let mut names = Vec::new();
    let listing = dir.list(buffer, |name, _, kind| {
        if kind == FileType::Directory {
            names.push(OsString::from(OsStr::from_bytes(name)));
        }
    });
    if listing.is_err() {
        return;
    }
    for name in names {
        let Ok(below) = dir.open_dir(&name) else { continue };
        if below.read(OsStr::from_bytes(PROCS), buffer).is_ok() {
            push_pids(buffer, pids);
        }
        list_below(&below, depth + 1, buffer, pids);
    }
}

fn push_pids(text: &[u8], pids: &mut Vec<u32>) {
    // 0 stands for a process outside this pid namespace.
    pids.extend(parse::lines(text).filter_map(parse::u32).filter(|&pid| pid != 0));
}

/// The directory by which a cgroup goes.
pub(super) fn main_path(paths: &CgroupPaths) -> Option<&Path> {
    paths.unified.as_deref().or(paths.memory.as_deref()).or(paths.cpuacct.as_deref())
}
