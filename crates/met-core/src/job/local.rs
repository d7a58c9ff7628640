//! Where a job is on its machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Part, ProcessId};
use crate::lossless_path;

/// Where a local job's processes, files and supervisor are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Local {
    /// Pids and start times mean something within one boot only.
    pub boot_id: String,
    pub origin: Origin,
    /// The process that waits for the job and writes its end; `None` before it is up.
    pub supervisor: Option<ProcessId>,
    pub main: Option<ProcessId>,
    /// When the main process ended, in unix nanoseconds; others may have gone on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_end_ns: Option<i64>,
    /// The job's cgroup directories, if it has any.
    pub cgroup: CgroupPaths,
    /// Those of its other nodes, where these are the same machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_cgroups: Vec<CgroupPaths>,
    /// Parts without a line of their own that have ended: who follows the job next sees the others himself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folded: Vec<Part>,
    #[serde(with = "lossless_path")]
    pub cwd: PathBuf,
    #[serde(default, with = "lossless_path::option")]
    pub stdout: Option<PathBuf>,
    #[serde(default, with = "lossless_path::option")]
    pub stderr: Option<PathBuf>,
    /// Which files these were when the job began: one that was renamed is still the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_file: Option<FileId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_file: Option<FileId>,
    /// Processes that were still alive when a `met time` job was closed.
    #[serde(default)]
    pub left_over: Vec<LeftOver>,
    /// What it may hold at most, where that is less than the machine has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<MemoryLimit>,
    /// CPUs on which its first process might run before its command began, at most as many as a quota allowed. It
    /// shares them with others: none is given to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_usable: Option<u32>,
    /// The command ran before it was moved into its v1 cgroups: what it allocated until then is not counted there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub entered_late: bool,
}

/// A file, whatever it is called. The birth distinguishes it from a later one with the same number, where the file system
/// keeps it; device numbers change when a network file system is mounted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileId {
    pub inode: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub birth_ns: Option<i64>,
}

/// A limit of memory that a job inherited when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    pub bytes: i64,
    pub kind: LimitKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Of all processes in a cgroup around the job together.
    Cgroup,
    /// The address space of each process.
    Process,
}

impl Local {
    /// Before anything is known of its processes.
    pub fn new(boot_id: impl Into<String>, origin: Origin, cwd: impl Into<PathBuf>) -> Local {
        Local {
            boot_id: boot_id.into(),
            origin,
            supervisor: None,
            main: None,
            main_end_ns: None,
            cgroup: CgroupPaths::default(),
            more_cgroups: Vec::new(),
            folded: Vec::new(),
            cwd: cwd.into(),
            stdout: None,
            stderr: None,
            stdout_file: None,
            stderr_file: None,
            left_over: Vec::new(),
            memory_limit: None,
            cpus_usable: None,
            entered_late: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    Run,
    Time,
    Attach,
    /// A job started by another program, discovered on this machine.
    Found,
}

/// Directories below the mount points, on cgroup v1 one for each hierarchy that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPaths {
    #[serde(default, with = "lossless_path::option")]
    pub unified: Option<PathBuf>,
    #[serde(default, with = "lossless_path::option")]
    pub memory: Option<PathBuf>,
    #[serde(default, with = "lossless_path::option")]
    pub cpuacct: Option<PathBuf>,
}

impl CgroupPaths {
    pub fn is_empty(&self) -> bool {
        self.unified.is_none() && self.memory.is_none() && self.cpuacct.is_none()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOver {
    pub pid: u32,
    pub name: String,
}
