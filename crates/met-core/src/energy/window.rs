//! Whose the energy of a machine was between two readings of its meter.

use serde::{Deserialize, Serialize};

use super::{Closed, Line};
use crate::job::QualityKind;

/// The consumers of a meter's energy in a window: jobs + system + idle + unassigned == whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnergyWindow {
    /// Nanoseconds of CLOCK_BOOTTIME.
    pub begin_ns: i64,
    pub end_ns: i64,
    pub meter: String,
    pub kind: QualityKind,
    pub whole_uj: i64,
    pub jobs_uj: i64,
    pub system_uj: i64,
    pub idle_uj: i64,
    /// What the meter counted while its users were unknown.
    #[serde(default)]
    pub unassigned_uj: i64,
    /// Of the whole, what GPUs used.
    #[serde(default)]
    #[serde(rename = "cards_uj")]
    pub gpus_uj: i64,
    /// What is idle was estimated: the machine has not been seen at rest yet.
    #[serde(default)]
    pub idle_estimated: bool,
}

impl EnergyWindow {
    /// `shares_uj`: jobs, system, idle, unassigned.
    pub fn of(closed: &Closed, meter: &str, shares_uj: [i64; 4]) -> EnergyWindow {
        let [jobs_uj, system_uj, idle_uj, unassigned_uj] = shares_uj;
        EnergyWindow {
            begin_ns: closed.begin_ns,
            end_ns: closed.end_ns,
            meter: meter.to_owned(),
            kind: closed.kind,
            whole_uj: i64::try_from(closed.whole_uj).unwrap_or(i64::MAX),
            jobs_uj,
            system_uj,
            idle_uj,
            unassigned_uj,
            gpus_uj: closed.lines.values().map(Line::gpus_uj).sum(),
            idle_estimated: closed.idle_assumed,
        }
    }

    /// This one and the one right before it as one.
    pub fn after(self, before: &EnergyWindow) -> EnergyWindow {
        let rank = |kind: QualityKind| QualityKind::ALL.iter().position(|&known| known == kind);
        EnergyWindow {
            begin_ns: before.begin_ns,
            kind: if rank(before.kind) > rank(self.kind) { before.kind } else { self.kind },
            whole_uj: before.whole_uj + self.whole_uj,
            jobs_uj: before.jobs_uj + self.jobs_uj,
            system_uj: before.system_uj + self.system_uj,
            idle_uj: before.idle_uj + self.idle_uj,
            unassigned_uj: before.unassigned_uj + self.unassigned_uj,
            gpus_uj: before.gpus_uj + self.gpus_uj,
            idle_estimated: before.idle_estimated || self.idle_estimated,
            ..self
        }
    }

    /// Whether a share is negative: a GPU share given in an earlier window went to another job.
    pub fn corrects(&self) -> bool {
        [self.jobs_uj, self.system_uj, self.idle_uj, self.gpus_uj].into_iter().any(|uj| uj < 0)
    }

    /// Mean power in watts.
    pub fn watts(&self, energy_uj: i64) -> f64 {
        energy_uj as f64 * 1e3 / (self.end_ns - self.begin_ns).max(1) as f64
    }
}
