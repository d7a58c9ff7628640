//! What the meters say of a window together.

use super::line::{CPU, MEMORY, MeteredBy, PARTS};
use super::meter::{Fault, Span};
use crate::job::QualityKind;

/// All of the machine in a window.
pub(super) struct Whole {
    /// The meter of all of the machine.
    pub outer: Option<Outer>,
    /// What meters counted before this window, which is in no window.
    pub caught_up_uj: u64,
    pub cpu: Inner,
    pub memory: Inner,
    /// What GPUs claim in it.
    pub gpus_uj: u64,
    /// No meter says more than one that it is a part of.
    pub agrees: bool,
    pub source: MeteredBy,
    pub kind: QualityKind,
    pub fault: Fault,
    pub metered: [bool; PARTS],
    /// All meters that were used: idle power is learned for each set of them.
    pub meters: String,
}

/// What the meter of all of the machine says.
pub(super) struct Outer {
    /// Its position among the meters.
    pub index: usize,
    pub energy_uj: u64,
    /// Of that, what cannot be charged.
    pub lost_uj: u64,
    /// Readings of its power are missing, and what it shows is a line between the others.
    pub is_guess: bool,
    /// What others have shown beyond what it has counted by the end of this window.
    pub ahead_uj: u64,
    pub with_gpus: bool,
}

/// What several meters of one scope say together of a window.
#[derive(Clone, Copy, Default)]
pub(super) struct Inner {
    pub energy_uj: Option<u64>,
    pub lost_uj: u64,
    /// Counted before the window, while others were not read.
    pub caught_up_uj: u64,
    pub fault: Fault,
    pub is_estimated: bool,
    /// One of them was not read all the while: there is more than this.
    pub is_lacking: bool,
}

impl Inner {
    pub fn add(&mut self, span: Span) {
        self.energy_uj = Some(self.energy_uj.unwrap_or(0).saturating_add(span.energy_uj));
        self.lost_uj += span.lost_uj;
        self.fault = self.fault.max(span.fault);
    }

    pub fn complete(self) -> Inner {
        if self.is_lacking { Inner::default() } else { self }
    }

    pub fn shown_uj(&self) -> u64 {
        self.energy_uj.unwrap_or(0)
    }

    /// What can be charged.
    pub fn shared_uj(&self) -> u64 {
        self.shown_uj().saturating_sub(self.lost_uj)
    }
}

impl Whole {
    /// Of a machine without a meter for all of it. Where one of the others is missing it is more than this.
    pub fn of_inner(cpu: Inner, memory: Inner, is_away: bool) -> Option<Whole> {
        let source = if cpu.energy_uj.is_some() { MeteredBy::Processors } else { MeteredBy::Memory };
        cpu.energy_uj.or(memory.energy_uj)?;
        let caught_up_uj = cpu.caught_up_uj + memory.caught_up_uj;
        let fault = cpu.fault.max(memory.fault).max(if caught_up_uj > 0 { Fault::Lost } else { Fault::None });
        let is_lacking = cpu.energy_uj.is_none() || cpu.is_lacking || memory.is_lacking || is_away;
        let kind = match is_lacking || fault == Fault::Unknown {
            true => QualityKind::LowerBound,
            false if cpu.is_estimated || memory.is_estimated => QualityKind::Estimated,
            false => QualityKind::Measured,
        };
        Some(Whole {
            outer: None,
            caught_up_uj,
            metered: [cpu.energy_uj.is_some(), memory.energy_uj.is_some(), true, false],
            cpu,
            memory,
            gpus_uj: 0,
            agrees: true,
            source,
            kind,
            fault,
            meters: String::new(),
        })
    }

    /// How much of the claims the meter may show in later windows, if it was behind by `backlog_uj` before this one.
    pub fn shown_later_uj(&self, backlog_uj: u64) -> u64 {
        match self.fault {
            // What a meter did not count it does not show later, either.
            Fault::Unknown => 0,
            // Nor the power that was not read. One that lags is still behind by as much as before.
            _ if self.outer.as_ref().is_some_and(|outer| outer.is_guess) => backlog_uj,
            _ => u64::MAX,
        }
    }

    fn inner_uj(&self) -> u64 {
        let host_uj = self.cpu.shared_uj().saturating_add(self.memory.shared_uj());
        host_uj.saturating_add(self.gpus_uj)
    }

    /// By part, without GPUs, if the meters agree.
    pub fn host_uj(&self) -> [u64; PARTS] {
        let rest_uj = self.outer_uj().map_or(0, |outer_uj| outer_uj.saturating_sub(self.inner_uj()));
        [self.cpu.shared_uj(), self.memory.shared_uj(), 0, rest_uj]
    }

    /// GPUs are within a meter that sees them, and beside any other.
    pub fn add_gpus(&mut self, gpus_uj: u64) {
        self.gpus_uj = gpus_uj;
        if let Some(outer) = self.outer.as_mut().filter(|outer| !outer.with_gpus) {
            outer.energy_uj = outer.energy_uj.saturating_add(gpus_uj);
        }
        self.agrees = self.outer_uj().is_none_or(|outer_uj| self.inner_uj() <= outer_uj);
        self.meters = self.set_of_meters(self.metered);
    }

    /// Its meters as a person would name them, if those of these parts were read.
    pub fn set_of_meters(&self, metered: [bool; PARTS]) -> String {
        let outer = match &self.source {
            MeteredBy::Node(name) => Some(name.as_str()),
            MeteredBy::None | MeteredBy::Processors | MeteredBy::Memory => None,
        };
        // GPUs that are not read are in the rest of the node's meter.
        let has_gpus = self.has_gpus_inside() && self.gpus_uj > 0;
        let inner = [("processors", metered[CPU]), ("memory", metered[MEMORY]), ("cards", has_gpus)];
        let inner = inner.into_iter().filter(|(_, is_read)| *is_read).map(|(name, _)| name);
        outer.into_iter().chain(inner).collect::<Vec<_>>().join(", ")
    }

    pub fn outer_uj(&self) -> Option<u64> {
        self.outer.as_ref().map(|outer| outer.energy_uj)
    }

    /// Whether GPUs are in what the meter of the machine shows.
    pub fn has_gpus_inside(&self) -> bool {
        self.outer.as_ref().is_some_and(|outer| outer.with_gpus)
    }
}
