//! One job whose directory is there: how far it is known, and its parts.

use std::collections::HashMap;
use std::path::Path;

use met_core::MISSING;
use met_core::job::{CgroupPaths, Figure, Part, QualityKind};

use super::files::{Files, Memory};
use super::oom_events::Bell;
use crate::cgroup_layouts::Captures;

/// When a job is read that was found a moment ago: one that ends soon is known by these readings.
const EARLY_MS: [i64; 5] = [50, 100, 200, 400, 800];
/// A manager makes the directories of a job one after the other: how long to wait for the rest of them.
const COMPLETE_AFTER_NS: i64 = 100_000_000;
const LOOK_AGAIN_NS: i64 = 20_000_000;
/// One look in this many is a full one, as long as nothing ran in a job.
const FULL_LOOKS: u32 = 16;
/// A job whose id is not known yet is read again this often.
const NAMELESS_NS: i64 = 1_000_000_000;

/// So many parts of a job have a line of their own, the first ones; the others have one together.
pub(super) const LINES_MAX: usize = 256;

pub(super) struct Job {
    pub(super) number: u64,
    pub(super) route: usize,
    /// With the name of its node.
    pub(super) captures: Captures,
    /// As they were, or would have been, when it was found.
    pub(super) cgroup: CgroupPaths,
    pub(super) progress: Progress,
    pub(super) memory: Memory,
    /// Whether the last reading of it was after its last process.
    pub(super) deserted: bool,
    /// Rings when it runs out of memory; on v2 its own files report that.
    pub(super) bell: Option<Bell>,
    pub(super) out_of_memory: bool,
    pub(super) cpu_ns: Option<u64>,
    pub(super) parts: Parts,
}

impl Job {
    /// How many processes were killed for lack of memory; at least one if there was an alarm.
    pub(super) fn oom_kills(&self) -> Option<Figure> {
        match self.memory.oom_kills {
            MISSING | 0 if self.out_of_memory => Some(figure(1, QualityKind::LowerBound, "cgroup")),
            MISSING => None,
            kills => Some(figure(kills, QualityKind::Measured, "cgroup")),
        }
    }

    pub(super) fn end_part(&mut self, id: u32, part: Part) {
        if self.parts.end(id, part)
            && let Some(bell) = &mut self.bell
        {
            bell.take_down(id);
        }
    }

    /// Lets a cgroup of the job ring its bell, once it is there.
    pub(super) fn hang_bell(&mut self, files: &Files, id: u32, path: &Path) {
        if let Some(bell) = self.bell.as_mut().filter(|bell| !bell.hung.contains_key(&id))
            && files.alarm_at_oom(path, bell.fd())
        {
            bell.hung.insert(id, path.to_path_buf());
        }
    }

    pub(super) fn take_alarm(&mut self, files: &Files) {
        let bell = self.bell.as_mut();
        self.out_of_memory |= bell.is_some_and(|bell| bell.is_alarm(|path| files.has_memory_of(path)));
    }
}

/// How far a job is known, which says when to look at it again.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) found_ns: i64,
    pub(super) existed: bool,
    /// A job at the same path has ended in a better hierarchy: without processes this is what remains of it.
    pub(super) is_remnant: bool,
    pub(super) announced: bool,
    /// Announced by the name of its directory, which is not what its manager calls it.
    pub(super) nameless: bool,
    pub(super) inhabited: bool,
    early_taken: usize,
    /// Looks for a first process since then.
    looks: u32,
}

impl Progress {
    pub(super) fn new(found_ns: i64, existed: bool, is_remnant: bool) -> Progress {
        Progress { found_ns, existed, is_remnant, ..Progress::default() }
    }

    fn is_young(&self, now_ns: i64) -> bool {
        now_ns - self.found_ns < COMPLETE_AFTER_NS
    }

    /// Whether its manager may still be making directories of it, or starting processes that know its id.
    pub(super) fn may_be_incomplete(&self, now_ns: i64) -> bool {
        !self.existed && self.is_young(now_ns)
    }

    /// There is nothing to read yet of one that was made this very moment.
    pub(super) fn is_readable(&self, now_ns: i64) -> bool {
        self.existed || self.announced || self.found_ns < now_ns
    }

    /// Whether it was read often without seeing a process: then reading its counter is enough, except for a
    /// full look now and then.
    pub(super) fn counter_suffices(&mut self) -> bool {
        let is_early = self.early_taken < EARLY_MS.len();
        let is_waiting = self.announced && !self.inhabited && !self.nameless && !is_early;
        self.looks += u32::from(is_waiting);
        is_waiting && !self.looks.is_multiple_of(FULL_LOOKS)
    }

    /// When to look at it again. `reports_processes`: the kernel says when the first process enters it.
    pub(super) fn next_due_ns(&mut self, reports_processes: bool, now_ns: i64) -> Option<i64> {
        let at_ns = |ms: &i64| self.found_ns + ms * 1_000_000;
        let taken = EARLY_MS.iter().filter(|ms| at_ns(ms) <= now_ns).count();
        self.early_taken = self.early_taken.max(taken);
        let early = EARLY_MS.get(self.early_taken).map(at_ns);
        let is_young = self.is_young(now_ns);
        match (self.announced && self.inhabited && !self.nameless, early) {
            (true, early) => early,
            (false, Some(early)) if self.announced || !is_young => Some(early),
            (false, _) if is_young => Some(now_ns + LOOK_AGAIN_NS),
            (false, _) if reports_processes && self.announced && !self.nameless => None,
            // It is empty, maybe for hours: it is read ever more rarely.
            (false, _) => Some(now_ns + (now_ns - self.found_ns).max(NAMELESS_NS)),
        }
    }
}

/// A part that is there.
#[derive(Clone, Copy)]
pub(super) struct Living {
    pub(super) start_ns: i64,
    /// The highest.
    pub(super) memory: Memory,
    has_line: bool,
}

/// The steps and tasks of a job.
#[derive(Default)]
pub(super) struct Parts {
    /// By node.
    pub(super) living: HashMap<u32, Living>,
    /// Those that had a line of their own.
    ended: Vec<Part>,
    /// Those without one that have ended.
    others: Others,
    /// Lines given so far.
    lines: usize,
    /// Something changed since they were last reported.
    pub(super) has_news: bool,
}

impl Parts {
    pub(super) fn add(&mut self, id: u32, start_ns: i64) {
        let has_line = self.lines < LINES_MAX;
        self.lines += usize::from(has_line);
        self.has_news = true;
        self.living.insert(id, Living { start_ns, memory: Memory::UNKNOWN, has_line });
    }

    /// Returns false for what was not a part.
    fn end(&mut self, id: u32, part: Part) -> bool {
        let Some(living) = self.living.remove(&id) else { return false };
        self.has_news = true;
        match living.has_line {
            true => self.ended.push(part),
            false => self.others.add(&part),
        }
        true
    }

    /// Whether the memory of a part was read.
    pub(super) fn is_read(&self, id: u32) -> bool {
        self.living.get(&id).is_some_and(|living| living.memory != Memory::UNKNOWN)
    }

    /// Whether something changed since the last call.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Parts that have ended and those that are there, each with its own line or among the others of its kind:
    /// those that have ended have an end.
    pub(super) fn so_far(&self, part_of: impl Fn(u32) -> Option<Part>) -> Vec<Part> {
        let mut parts = self.ended.clone();
        parts.extend(self.others.clone().into_lines());
        let mut others = Others::default();
        for (&id, living) in &self.living {
            let Some(part) = part_of(id) else { continue };
            match living.has_line {
                true => parts.push(part),
                false => others.add(&part),
            }
        }
        parts.extend(others.into_lines());
        parts
    }

    pub(super) fn into_ended(self) -> Vec<Part> {
        self.ended.into_iter().chain(self.others.into_lines()).collect()
    }
}

/// The sums of parts without lines of their own.
#[derive(Clone, Default)]
struct Others {
    steps: Option<Part>,
    tasks: Option<Part>,
}

impl Others {
    fn add(&mut self, part: &Part) {
        let others = if part.task.is_some() { &mut self.tasks } else { &mut self.steps };
        others.get_or_insert_with(|| Part::others(part.node.clone(), part.task.is_some())).take_in(part);
    }

    fn into_lines(self) -> impl Iterator<Item = Part> {
        self.steps.into_iter().chain(self.tasks)
    }
}

pub(super) fn figure(value: i64, kind: QualityKind, source: &'static str) -> Figure {
    Figure { value, kind, source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_young_job_is_read_often_and_an_empty_one_ever_more_rarely() {
        let second_ns = 1_000_000_000;
        let mut progress = Progress::new(0, false, false);
        assert_eq!(progress.next_due_ns(false, 0), Some(LOOK_AGAIN_NS), "it is not complete yet");
        progress.announced = true;
        assert_eq!(progress.next_due_ns(false, 0), Some(50_000_000));
        assert_eq!(progress.next_due_ns(false, 150_000_000), Some(200_000_000));
        assert_eq!(progress.next_due_ns(false, second_ns), Some(2 * second_ns));
        assert_eq!(progress.next_due_ns(false, 100 * second_ns), Some(200 * second_ns));
        assert_eq!(progress.next_due_ns(true, 100 * second_ns), None, "the kernel reports the first process");
        let full = (0..2 * FULL_LOOKS).filter(|_| !progress.counter_suffices()).count();
        assert_eq!(full, 2);
        progress.inhabited = true;
        assert_eq!(progress.next_due_ns(false, 100 * second_ns), None);
    }

    #[test]
    fn parts_beyond_the_lines_are_summed() {
        let part = |_: u32| Some(Part { node: "n1".to_owned(), ..Part::default() });
        let mut parts = Parts::default();
        for id in 0..LINES_MAX as u32 + 3 {
            parts.add(id, 0);
        }
        let beyond = LINES_MAX as u32;
        assert!(parts.take_news() && !parts.take_news());
        assert_eq!(parts.so_far(part).len(), LINES_MAX + 1);
        let ended = |id: u32| Part { node: "n1".to_owned(), end_ns: Some(i64::from(id)), ..Part::default() };
        assert!(parts.end(beyond, ended(beyond)) && parts.end(0, ended(0)));
        assert!(!parts.end(0, ended(0)), "it has ended already");
        assert!(parts.take_news());
        assert_eq!(parts.so_far(part).len(), LINES_MAX + 2, "those that have ended have a line of their own");
        let ended: Vec<Option<u64>> = parts.into_ended().iter().map(|part| part.folded).collect();
        assert_eq!(ended, [None, Some(1)]);
    }
}
