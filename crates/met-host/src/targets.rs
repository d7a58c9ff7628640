//! What the sources should read: the cgroups and processes of the jobs, without the jobs.

use std::sync::Arc;

use crate::Dir;
use crate::cgroup::CgroupDirs;

/// The caller owns it and refills it at each tick.
#[derive(Debug, Default)]
pub struct Targets {
    pub cgroups: Vec<CgroupTarget>,
    pub tasks: Vec<TaskTarget>,
}

impl Targets {
    pub fn clear(&mut self) {
        self.cgroups.clear();
        self.tasks.clear();
    }
}

#[derive(Clone, Debug)]
pub struct CgroupTarget {
    pub dirs: Arc<CgroupDirs>,
    /// A supervisor counts events in it.
    pub counted: bool,
    /// A v2 directory with the same processes in which events are counted, where its own is none.
    pub counted_in: Option<Arc<Dir>>,
    /// Events that the reader should count in it.
    pub events: Option<Arc<[String]>>,
    /// Read what is otherwise read at slow ticks only: a short job has none.
    pub young: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskTarget {
    pub pid: u32,
    pub start_ticks: u64,
    pub role: TaskRole,
    /// As for a cgroup. The processes of one job are young together: a sum of some would look like a total.
    pub young: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRole {
    /// A process of a job: all it did counts.
    Member,
    /// A job's supervisor: only what it reaped counts, not what it does itself.
    Keeper,
}
