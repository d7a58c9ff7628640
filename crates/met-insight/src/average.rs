//! What a job used per second of its life.

use met_core::JOB;
use met_core::job::{Figure, QualityKind, Record, State};
use met_core::job_table::{
    CORES_PEAK, CPU, GPU_MEMORY, GPU_UTILIZATION, MEMORY_NEEDED, MEMORY_NEEDED_PEAK, MEMORY_PEAK, WALL,
};

use met_core::provenance::Account;

use crate::gpu;

/// How long the job ran, or has been running. Unknown for one that has not begun, and for one that was
/// lost: its end was not observed.
pub fn wall_ns(record: &Record, now_ns: i64) -> Option<i64> {
    if record.state == State::Pending {
        return None;
    }
    if record.state.is_live() && record.end_ns.is_none() {
        return record.wall_ns(now_ns);
    }
    record.totals.get(WALL).or_else(|| Some((record.end_ns? - record.start_ns?).max(0)))
}

/// How long the job had run when its totals were as they are here.
pub fn counted_ns(record: &Record, now_ns: i64) -> Option<i64> {
    let until_ns = record.as_of_ns.filter(|_| record.state.is_live());
    wall_ns(record, until_ns.unwrap_or(now_ns))
}

/// The total of a counter over the time in which it grew, in the column's unit per second.
pub fn per_second(record: &Record, column: usize, now_ns: i64) -> Option<f64> {
    let counted_ns = counted_ns(record, now_ns).filter(|&counted_ns| counted_ns > 0)?;
    Some(JOB.columns[column].scaled(record.totals.get(column)?) / (counted_ns as f64 / 1e9))
}

/// The share of its time in which tasks of a job waited for something: by pressure, or else by the delays of its threads.
/// Of several nodes it is the mean of theirs, as totals are sums.
pub fn waited(record: &Record, pressure: usize, delay: usize, now_ns: i64) -> Option<f64> {
    let rate = per_second(record, pressure, now_ns).or_else(|| per_second(record, delay, now_ns))?;
    Some((rate / record.nodes.len().max(1) as f64).min(1.0))
}

/// The most cores that were busy for half a second at least. One that is written as 0 is too young to have lasted.
pub fn cores_peak(record: &Record) -> Option<f64> {
    let thousandths = record.totals.get(CORES_PEAK).filter(|&peak| peak > 0)?;
    Some(thousandths as f64 / 1e3)
}

/// The most memory that it could not do without, in bytes.
pub fn memory_needed_peak(record: &Record) -> Option<f64> {
    record.totals.get(MEMORY_NEEDED_PEAK).map(|bytes| bytes as f64)
}

/// Cores busy on average.
pub fn cores(record: &Record, now_ns: i64) -> Option<f64> {
    per_second(record, CPU, now_ns)
}

/// The mean of a level over time, in the column's unit. Of a part of that time it says nothing of the whole, not even
/// a bound.
pub fn level(record: &Record, column: usize) -> Option<f64> {
    if record.totals.figure(WALL).is_some_and(|wall| wall.source.account == Account::Cancel) {
        return None;
    }
    Some(record.summaries.get(column)?.mean * JOB.columns[column].scale)
}

/// GPUs computing on average. What is known GPU by GPU is the mean of the times in which each was seen; samples of
/// all together lack a GPU that was lost.
pub fn gpus(record: &Record) -> Option<f64> {
    gpu::computing(record).or_else(|| level(record, GPU_UTILIZATION))
}

/// Memory of all GPUs together, the same way.
pub fn gpu_memory_bytes(record: &Record) -> Option<f64> {
    gpu::memory_bytes(record).or_else(|| level(record, GPU_MEMORY))
}

/// How well a mean is known. Needed memory that was added up by process is an estimate at its peak and on average; that
/// of a cgroup lacks processes that left it.
pub fn level_kind(record: &Record, column: usize) -> QualityKind {
    let figure = |index: usize| record.totals.figure(index).filter(|_| column == MEMORY_NEEDED);
    let by_process =
        |peak: &Figure| peak.kind == QualityKind::Estimated || peak.source.account == Account::Statm;
    let left = |peak: &Figure| peak.kind == QualityKind::LowerBound && peak.source.account == Account::Cgroup;
    if figure(MEMORY_NEEDED_PEAK).is_some_and(by_process) {
        QualityKind::Estimated
    } else if figure(MEMORY_PEAK).is_some_and(left) {
        QualityKind::LowerBound
    } else {
        QualityKind::Sampled
    }
}

/// The needed memory as a share of what the machine has: 0.5 is half of it.
pub fn memory_ratio(record: &Record) -> Option<f64> {
    let whole_bytes = record.node_memory_bytes.filter(|&bytes| bytes > 0)?;
    Some(level(record, MEMORY_NEEDED)? / whole_bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_mean_of_memory_is_marked_like_what_it_is_made_of() {
        let kind = |needed: (QualityKind, Account), peak: QualityKind| {
            let mut record = sample::finished();
            record.totals.set(MEMORY_NEEDED_PEAK, 5, needed.0, needed.1);
            record.totals.set(MEMORY_PEAK, 6, peak, Account::Cgroup);
            level_kind(&record, MEMORY_NEEDED)
        };
        use QualityKind::{Estimated, LowerBound, Measured, Sampled};
        assert_eq!(kind((Sampled, Account::Cgroup), Measured), Sampled);
        // A peak between two samples says nothing against the mean.
        assert_eq!(kind((LowerBound, Account::Cgroup), Measured), Sampled);
        assert_eq!(kind((Estimated, Account::Statm), Measured), Estimated);
        assert_eq!(kind((LowerBound, Account::Statm), Measured), Estimated);
        assert_eq!(kind((Sampled, Account::Cgroup), LowerBound), LowerBound);
    }
}
