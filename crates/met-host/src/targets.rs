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

/// How much of a target is read this time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// Nothing: what is known and open of it stays.
    No,
    /// What a job needs at least every ten seconds: CPU time, memory and I/O. Of a process in a cgroup that counts
    /// the others, I/O only.
    Cheap,
    /// As the tick says.
    #[default]
    Usual,
    /// Also what is otherwise read at slow ticks only.
    Whole,
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
    pub look: Look,
}

impl CgroupTarget {
    /// Whether what is expensive is read, too; `slow`: by this tick.
    pub fn is_whole(&self, slow: bool) -> bool {
        self.look == Look::Whole || self.look == Look::Usual && (slow || self.young)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskTarget {
    pub pid: u32,
    pub start_ticks: u64,
    pub role: TaskRole,
    /// As for a cgroup. The processes of one job are young together: a sum of some would look like a total.
    pub young: bool,
    pub look: Look,
    /// A cgroup counts its CPU time and memory.
    pub is_counted: bool,
}

impl TaskTarget {
    /// One that is read as the tick says.
    pub fn new(pid: u32, start_ticks: u64, role: TaskRole, young: bool) -> TaskTarget {
        TaskTarget { pid, start_ticks, role, young, look: Look::Usual, is_counted: false }
    }

    /// As for a cgroup.
    pub fn is_whole(&self, slow: bool) -> bool {
        self.look == Look::Whole || self.look == Look::Usual && (slow || self.young)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRole {
    /// A process of a job: all it did counts.
    Member,
    /// A job's supervisor: only what it reaped counts, not what it does itself.
    Supervisor,
}
