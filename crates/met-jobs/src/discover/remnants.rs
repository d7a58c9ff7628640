//! Directories of jobs that have ended. A manager removes those of a job in one hierarchy after the other: when
//! the followed one is gone, the next one is followed, and what is still in it must not pass for a new job.

use std::collections::VecDeque;
use std::path::PathBuf;

use super::files::Files;
use super::tree::Node;

/// By then a manager has removed all directories of a job, as a rule; those that were seen at its end are
/// recognized for longer.
const REMOVED_AFTER_NS: i64 = 10_000_000_000;
const ENDED_MAX: usize = 1 << 12;

/// Jobs that ended, oldest first: their managers may still be removing their other directories.
#[derive(Default)]
pub(super) struct Remnants {
    pub(super) ended: VecDeque<EndedJob>,
}

pub(super) struct EndedJob {
    pub(super) end_ns: i64,
    /// In which it was followed.
    hierarchy: usize,
    path: PathBuf,
    /// Hierarchy and inode of the directories that were left at its end.
    left: Vec<(usize, u64)>,
}

impl Remnants {
    pub(super) fn remember(&mut self, files: &Files, node: &Node, now_ns: i64) {
        let (hierarchy, path) = (node.hierarchy, node.path.clone());
        // Only the hierarchies after this one are followed next.
        let worse = hierarchy + 1..files.hierarchies.len();
        if worse.is_empty() {
            return;
        }
        let inode = |at: usize| Some((at, files.look_at(at, &path).ok()?.0));
        let left = worse.filter_map(inode).collect();
        self.forget_old(files, now_ns);
        self.ended.push_back(EndedJob { end_ns: now_ns, hierarchy, path, left });
    }

    fn forget_old(&mut self, files: &Files, now_ns: i64) {
        while let Some(EndedJob { end_ns, path, left, .. }) = self.ended.front() {
            let is_there =
                |&(at, inode): &(usize, u64)| files.look_at(at, path).is_ok_and(|it| it.0 == inode);
            let is_recent = now_ns - end_ns < REMOVED_AFTER_NS;
            if self.ended.len() < ENDED_MAX && (is_recent || left.iter().any(is_there)) {
                return;
            }
            self.ended.pop_front();
        }
    }

    /// Whether a directory belonged to a job that has ended in a better hierarchy. The directory itself may be
    /// gone already: the kernel reports its removal even if no listing has ever shown it.
    pub(super) fn is_one(&self, node: &Node, now_ns: i64) -> bool {
        self.ended.iter().any(|ended| {
            let was_left = || ended.left.contains(&(node.hierarchy, node.inode));
            let is_recent = now_ns - ended.end_ns < REMOVED_AFTER_NS;
            ended.hierarchy < node.hierarchy && ended.path == node.path && (is_recent || was_left())
        })
    }
}
