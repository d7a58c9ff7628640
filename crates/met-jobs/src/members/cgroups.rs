//! The cgroups of jobs, and their processes.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use met_core::job::CgroupPaths;
use met_host::cgroup::CgroupDirs;
use met_host::{Dir, FileType, Host, KeptFile, Share, parse};

const PROCS: &[u8] = b"cgroup.procs";
/// Deeper cgroups are a fault of ours.
const DEPTH_MAX: usize = 64;

pub(super) struct Cgroup {
    pub(super) dirs: Arc<CgroupDirs>,
    procs: KeptFile,
}

impl Cgroup {
    pub(super) fn open(host: &Host, paths: &CgroupPaths) -> io::Result<Cgroup> {
        let dirs = Arc::new(CgroupDirs::open(host, paths)?);
        let procs =
            main_dir(&dirs).ok_or(io::ErrorKind::NotFound)?.open_kept(PROCS, host.budget(), Share::First)?;
        Ok(Cgroup { dirs, procs })
    }

    /// The processes in it and below.
    pub(super) fn list(&self, buffer: &mut Vec<u8>, pids: &mut Vec<u32>) {
        let Some(dir) = main_dir(&self.dirs) else { return };
        if self.procs.read_list(dir, PROCS, buffer).is_ok() {
            push_pids(buffer, pids);
        }
        list_below(dir, DEPTH_MAX, usize::MAX, buffer, pids);
    }
}

fn main_dir(dirs: &CgroupDirs) -> Option<&Dir> {
    dirs.unified.as_ref().or(dirs.memory.as_ref()).or(dirs.cpuacct.as_ref())
}

/// The processes in the cgroup of a directory, without those below.
pub(crate) fn list_in(dir: &Dir, buffer: &mut Vec<u8>, pids: &mut Vec<u32>) {
    if dir.read(OsStr::from_bytes(PROCS), buffer).is_ok() {
        push_pids(buffer, pids);
    }
}

/// The processes of the cgroups below `dir`, down to the given depth, until there are `pids_max`. A cgroup that
/// is removed meanwhile has none.
pub(crate) fn list_below(
    dir: &Dir,
    levels: usize,
    pids_max: usize,
    buffer: &mut Vec<u8>,
    pids: &mut Vec<u32>,
) {
    if levels == 0 || pids.len() >= pids_max || !dir.may_have_dirs().unwrap_or(false) {
        return;
    }
    let mut names = Vec::new();
    let listing = dir.list(buffer, |name, _, kind| {
        if kind == FileType::Directory {
            names.push(OsString::from(OsStr::from_bytes(name)));
        }
    });
    for name in names.iter().filter(|_| listing.is_ok()) {
        let Ok(below) = dir.open_dir(name) else { continue };
        list_in(&below, buffer, pids);
        list_below(&below, levels - 1, pids_max, buffer, pids);
    }
}

fn push_pids(text: &[u8], pids: &mut Vec<u32>) {
    // 0 means a process outside this pid namespace.
    pids.extend(parse::lines(text).filter_map(parse::u32).filter(|&pid| pid != 0));
}

/// The directory by which a cgroup goes.
pub(super) fn main_path(paths: &CgroupPaths) -> Option<&Path> {
    paths.unified.as_deref().or(paths.memory.as_deref()).or(paths.cpuacct.as_deref())
}
