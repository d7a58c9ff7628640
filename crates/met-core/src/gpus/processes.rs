//! Processes on GPUs, and whose they are.

use std::collections::HashMap;

use super::REMEMBERED_NS;
use crate::Subject;
use crate::attribute::JobMap;

/// Use is read more often: a process without a reading for longer does not report its use.
const YOUNG_NS: i64 = 30_000_000_000;

#[derive(Default)]
pub(super) struct Processes {
    /// Those that were on a GPU in the last minutes: the expensive figures may name one that has ended.
    known: HashMap<Subject, Known>,
    /// Those of jobs that left: their last figures may still be read, and are of no job.
    ended: HashMap<Subject, i64>,
}

/// A process that is or was on a GPU.
#[derive(Clone, Copy, Debug)]
struct Known {
    slot: Option<u32>,
    first_ns: i64,
    seen_ns: i64,
}

/// A process on a GPU at a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Presence {
    pub subject: Subject,
    pub slot: Option<u32>,
    /// It may be newer than the last expensive reading.
    pub young: bool,
    pub cells: [i64; 7],
}

impl Processes {
    /// A process that is on a GPU now; nothing if its job has left.
    pub fn meet(&mut self, owner: Subject, cells: &[i64], map: &JobMap, at_ns: i64) -> Option<Presence> {
        let subject = self.identify(owner);
        let slot = match map.owner(subject) {
            Some(slot) => Some(slot),
            None if self.ended.contains_key(&subject) => return None,
            None => self.known.get(&subject).and_then(|known| known.slot),
        };
        let known = self.known.entry(subject).or_insert(Known { slot, first_ns: at_ns, seen_ns: at_ns });
        (known.slot, known.seen_ns) = (slot, at_ns);
        let young = at_ns - known.first_ns <= YOUNG_NS;
        Some(Presence { subject, slot, young, cells: cells.try_into().ok()? })
    }

    /// A driver names processes for a while after they ended; then it is unknown when they began. They are
    /// those that had their number last.
    fn identify(&self, named: Subject) -> Subject {
        let Subject::Task { pid, start_ticks: 0 } = named else { return named };
        let is_it = |known: &&Subject| matches!(known, Subject::Task { pid: known, start_ticks } if *known == pid && *start_ticks != 0);
        let last = self.known.iter().filter(|(known, _)| is_it(known)).max_by_key(|(_, known)| known.seen_ns);
        let ended = || self.ended.keys().find(is_it);
        last.map(|(known, _)| *known).or_else(|| ended().copied()).unwrap_or(named)
    }

    pub fn forget_old(&mut self, at_ns: i64) {
        self.known.retain(|_, known| at_ns - known.seen_ns < REMEMBERED_NS);
        self.ended.retain(|_, seen_ns| at_ns - *seen_ns < REMEMBERED_NS);
    }

    /// Whether one of a job was last seen in this time.
    pub fn has_lost(&self, slot: Option<u32>, since_ns: i64, until_ns: i64) -> bool {
        let mut own = self.known.values().filter(|known| known.slot == slot);
        own.any(|known| known.seen_ns >= since_ns && known.seen_ns < until_ns)
    }

    /// The job has left.
    pub fn leave(&mut self, slot: u32) {
        for (&subject, known) in self.known.iter().filter(|(_, known)| known.slot == Some(slot)) {
            self.ended.insert(subject, known.seen_ns);
        }
        self.known.retain(|_, known| known.slot != Some(slot));
    }
}
