//! Energy by consumer and by part of the machine.

use std::collections::BTreeMap;

use super::meter::Fault;
use crate::apportion::apportion;
use crate::job::QualityKind;

/// The parts of a machine that use energy.
pub const PARTS: usize = 4;
pub const CPU: usize = 0;
pub const MEMORY: usize = 1;
pub const GPUS: usize = 2;
pub const REST: usize = 3;

/// Whose energy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    Job(u32),
    /// Processes of no job.
    System,
    /// What the machine uses doing nothing, as far as no job is charged for it.
    Idle,
    /// What a meter counted while its users were unknown.
    Unassigned,
}

/// Energy in microjoules by part of the machine. In a window a part of GPUs may be negative: a provisional share
/// went to another job. Windows one after the other never add up to less than 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub active_uj: [i64; PARTS],
    pub idle_uj: [i64; PARTS],
}

impl Line {
    pub fn total_uj(&self) -> i64 {
        self.active_uj.iter().chain(&self.idle_uj).sum()
    }

    pub fn idle_total_uj(&self) -> i64 {
        self.idle_uj.iter().sum()
    }

    pub fn gpus_uj(&self) -> i64 {
        self.active_uj[GPUS] + self.idle_uj[GPUS]
    }

    pub(super) fn take(&mut self, other: &Line) {
        for (sum, less) in self.active_uj.iter_mut().zip(other.active_uj) {
            *sum -= less;
        }
        for (sum, less) in self.idle_uj.iter_mut().zip(other.idle_uj) {
            *sum -= less;
        }
    }

    pub fn add(&mut self, other: &Line) {
        for (sum, more) in self.active_uj.iter_mut().zip(other.active_uj) {
            *sum += more;
        }
        for (sum, more) in self.idle_uj.iter_mut().zip(other.idle_uj) {
            *sum += more;
        }
    }
}

/// Who is charged for the idle power of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleTo {
    /// Jobs, by the CPUs they hold; unheld CPUs are unassigned.
    Holders,
    Unassigned,
}

#[derive(Clone, Copy, Debug)]
pub struct Policy {
    pub idle_to: IdleTo,
    /// Of the whole machine without its GPUs, where it is known; else it is learned.
    pub idle_mw: Option<u64>,
}

/// What a job did since the last weighing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// CPU time, or instructions: whatever is the same for all.
    pub cpu: u64,
    /// Memory held, times time.
    pub memory: u64,
    /// CPUs held, times time.
    pub held: u64,
}

impl Weights {
    pub(super) fn add(&mut self, other: Weights) {
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.memory = self.memory.saturating_add(other.memory);
        self.held = self.held.saturating_add(other.held);
    }

    /// How much of its CPUs a machine used, in thousandths.
    pub(super) fn load_permille(&self) -> Option<u64> {
        let permille = (u128::from(self.cpu) * 1000).checked_div(u128::from(self.held))?;
        Some(permille.min(1000) as u64)
    }

    pub(super) fn above(self, sum: Weights) -> Weights {
        Weights {
            cpu: self.cpu.saturating_sub(sum.cpu),
            memory: self.memory.saturating_sub(sum.memory),
            held: self.held.saturating_sub(sum.held),
        }
    }
}

/// The meters that a whole was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeteredBy {
    None,
    /// Those of processors, and of memory where there are such.
    Processors,
    /// Those of memory alone.
    Memory,
    /// The meter of the node, by name.
    Node(String),
}

/// A window that was closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    pub begin_ns: i64,
    pub end_ns: i64,
    /// What the meter says: the sum of all lines.
    pub whole_uj: u64,
    /// The growth of the meter's own counter since the last window that was made of it: the same as the whole, or
    /// something was charged twice or not at all. Where other meters were read in between there is only the whole.
    pub counted_uj: u64,
    pub source: MeteredBy,
    /// A lower bound where a meter is missing that the whole is made of.
    pub kind: QualityKind,
    /// By part, whether a meter measured it separately.
    pub metered: [bool; PARTS],
    /// The idle power of the machine is unknown: it was estimated.
    pub idle_assumed: bool,
    /// Faults of the meters in it: they affect the figures of every job that ran in it.
    pub fault: Fault,
    pub lines: BTreeMap<Who, Line>,
    /// What is missing in a line for good: its part was counted, and the meter of the node never showed it.
    pub short_uj: BTreeMap<Who, u64>,
    /// Jobs that ended in it or before, and are settled now.
    pub settled: Vec<u32>,
}

impl Closed {
    /// Nothing was measured in all this time.
    pub(super) fn unmeasured(begin_ns: i64, end_ns: i64, settled: Vec<u32>) -> Closed {
        Closed {
            begin_ns,
            end_ns,
            whole_uj: 0,
            counted_uj: 0,
            source: MeteredBy::None,
            kind: QualityKind::LowerBound,
            metered: [false; PARTS],
            idle_assumed: false,
            fault: Fault::Unknown,
            lines: BTreeMap::new(),
            short_uj: BTreeMap::new(),
            settled,
        }
    }

    /// Whether any meter was read in it.
    pub fn is_measured(&self) -> bool {
        self.source != MeteredBy::None
    }
}

pub(super) type Lines = BTreeMap<Who, Line>;

pub(super) fn put(lines: &mut Lines, who: Who, cell: impl Fn(&mut Line) -> &mut i64, energy_uj: u64) {
    if energy_uj > 0 {
        *cell(lines.entry(who).or_default()) += energy_uj as i64;
    }
}

pub(super) fn share(
    whole_uj: u64,
    weights: &[u64],
    everybody: &[Who],
    cell: impl Fn(&mut Line) -> &mut i64,
    lines: &mut Lines,
) {
    let mut parts = Vec::new();
    apportion(whole_uj, weights, &mut parts);
    for (&who, part_uj) in everybody.iter().zip(parts) {
        put(lines, who, &cell, part_uj);
    }
}
