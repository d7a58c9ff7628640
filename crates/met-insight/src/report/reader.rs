//! Amounts out of a record. What is not known is nothing.

use met_core::job::{Figure, LimitKind, MemoryLimit, QualityKind, Record};
use met_core::job_table as column;
use met_core::{JOB, Unit};

use super::{Amount, Detail, Machine, Measure};
use crate::average;

/// The reading side of one record: every method leaves out what is not known.
pub(super) struct Reader<'a> {
    pub(super) record: &'a Record,
    pub(super) machine: Machine,
    pub(super) now_ns: i64,
}

impl Reader<'_> {
    pub(super) fn figure(&self, index: usize) -> Option<&Figure> {
        self.record.totals.figure(index)
    }

    /// A total in its unit.
    pub(super) fn total(&self, index: usize) -> Option<Amount> {
        let figure = self.figure(index)?;
        let column = &JOB.columns[index];
        let measure = match column.unit {
            Unit::Bytes => Measure::Bytes,
            Unit::Seconds => Measure::Seconds,
            Unit::Joules => Measure::Joules,
            Unit::Grams => Measure::Grams,
            Unit::Money => Measure::Money,
            _ if index == column::CORES_PEAK => Measure::Cores,
            _ => Measure::Count,
        };
        Some(Amount { value: column.scaled(figure.value), measure, quality: figure.kind })
    }

    /// How short a peak may have been missed, where only samples know it.
    pub(super) fn resolution(&self, index: usize) -> Option<Detail> {
        let apart_s = self.figure(index)?.source.apart_s()?;
        Detail::text(Some(format!("sampled up to {apart_s} s apart")))
    }

    /// A total over the wall time; as good as the total.
    pub(super) fn rate(&self, index: usize, measure: Measure) -> Option<Amount> {
        let value = average::per_second(self.record, index, self.now_ns)?;
        Some(Amount { value, measure, quality: self.figure(index)?.kind })
    }

    pub(super) fn level(&self, index: usize, measure: Measure) -> Option<Amount> {
        let value = average::level(self.record, index)?;
        Some(Amount { value, measure, quality: average::level_kind(self.record, index) })
    }

    pub(super) fn wall(&self) -> Option<Amount> {
        let seconds = average::wall_ns(self.record, self.now_ns)? as f64 / 1e9;
        Some(Amount { value: seconds, measure: Measure::Seconds, quality: QualityKind::Measured })
    }

    pub(super) fn cpus(&self) -> Option<Amount> {
        let cpus = self.machine.cpus.filter(|&cpus| cpus > 0 && self.record.allocated.cpus.is_none())?;
        Some(Amount { value: cpus.into(), measure: Measure::Cores, quality: QualityKind::Measured })
    }

    /// What the job could hold at most. One that was given a part of the machine is compared with that part, among
    /// the shares.
    pub(super) fn memory_at_most(&self) -> Option<Amount> {
        let given = self.record.allocated.memory_bytes.is_some();
        let held_bytes = self.record.totals.get(column::MEMORY_NEEDED_PEAK).unwrap_or(0);
        // Of several processes each has the limit, and they may hold more together.
        let holds = |limit: &MemoryLimit| limit.kind == LimitKind::Cgroup || held_bytes <= limit.bytes;
        let limit = self.memory_limit().filter(holds).map(|limit| limit.bytes);
        let bytes = limit.or(self.record.node_memory_bytes).filter(|&bytes| bytes > 0 && !given)?;
        Some(Amount { value: bytes as f64, measure: Measure::Bytes, quality: QualityKind::Measured })
    }

    pub(super) fn memory_limit(&self) -> Option<MemoryLimit> {
        self.record.local.as_ref()?.memory_limit
    }
}

pub(super) fn measured(value: f64, measure: Measure) -> Amount {
    Amount { value, measure, quality: QualityKind::Measured }
}

/// Both parts together, no better known than the worse of them.
pub(super) fn sum(one: Option<Amount>, other: Option<Amount>) -> Option<Amount> {
    let (one, other) = (one?, other?);
    let rank = |quality| QualityKind::ALL.iter().position(|&kind| kind == quality);
    let quality = if rank(one.quality) >= rank(other.quality) { one.quality } else { other.quality };
    Some(Amount { value: one.value + other.value, quality, ..one })
}
