//! Events by name, and figures derived from several of them.

use std::borrow::Cow;

use crate::job::{EventCount, JobKey};
use crate::table::{NANO, ONE};
use crate::{Column, Table, Unit, columns};

columns! { COLUMNS:
    COUNT = Column::counter("count", Unit::Count, ONE, "number of occurrences, scaled up if it was not counted all the time").usual(),
    ENABLED = Column::counter("enabled", Unit::Seconds, NANO, "time in which it was enabled, summed over CPUs"),
    RUNNING = Column::counter("running", Unit::Seconds, NANO, "time in which it was counted; less if counters are multiplexed"),
}

pub static TABLE: Table =
    Table { name: "event", subject: "an event in a job", labels: &["event"], columns: COLUMNS };

/// Separates the id of a job from the name of an event; occurs in neither.
const MARK: char = '\u{1f}';
/// The character that follows it.
const AFTER_MARK: char = ' ';

/// Under which key a series of a job is kept: one of its events if it has a part, else the job's own.
pub fn series_key(job: &JobKey, part: &str) -> JobKey {
    match part.is_empty() {
        true => job.clone(),
        false => JobKey { id: format!("{}{MARK}{part}", job.id), ..job.clone() },
    }
}

/// The job and the event of such a key; the event is empty where it is a job's own.
pub fn of_series_key(key: &JobKey) -> (Cow<'_, JobKey>, &str) {
    match key.id.split_once(MARK) {
        Some((id, part)) => (Cow::Owned(JobKey { id: id.to_owned(), ..key.clone() }), part),
        None => (Cow::Borrowed(key), ""),
    }
}

/// What the ids of the keys of all events of a job begin with.
pub fn series_prefix(job: &JobKey) -> String {
    format!("{}{MARK}", job.id)
}

/// The first text, byte by byte, behind all that begin with [`series_prefix`].
pub fn series_end(job: &JobKey) -> String {
    format!("{}{AFTER_MARK}", job.id)
}

/// What the processor fetches from memory at once.
const CACHE_LINE_BYTES: f64 = 64.0;

/// Instructions of floating-point arithmetic that a processor counts, and how many operations each does.
pub const FLOATING: [(&str, i64); 9] = [
    ("fp_scalar_single", 1),
    ("fp_scalar_double", 1),
    ("fp_128_single", 4),
    ("fp_128_double", 2),
    ("fp_256_single", 8),
    ("fp_256_double", 4),
    ("fp_512_single", 16),
    ("fp_512_double", 8),
    ("fp_operations", 1),
];

/// What events say together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Derived {
    pub name: &'static str,
    pub value: f64,
    pub unit: DerivedUnit,
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DerivedUnit {
    /// Of instructions, per cycle.
    PerCycle,
    /// A share of a whole.
    Ratio,
    PerSecond,
    BytesPerSecond,
}

/// Everything that can be derived from these counts of a job that ran for `wall_ns`.
pub fn derived(events: &[EventCount], wall_ns: Option<i64>) -> Vec<Derived> {
    let count = |name: &str| events.iter().find(|event| event.name == name).map(|event| event.count as f64);
    let ratio = |part: &str, whole: &str| {
        let whole = count(whole).filter(|&whole| whole > 0.0)?;
        Some(count(part)? / whole)
    };
    let seconds = wall_ns.filter(|&wall_ns| wall_ns > 0).map(|wall_ns| wall_ns as f64 / 1e9);
    let operations = |width: &str| {
        let counted = FLOATING.iter().filter(|(name, _)| name.contains(width));
        let known = counted.filter_map(|&(name, each)| Some(count(name)? * each as f64));
        known.reduce(|sum, more| sum + more)
    };
    let floating = operations("fp_");
    let of_width = floating.filter(|&all| all > 0.0).zip(operations("fp_512_"));
    let misses = count("cache_misses");
    let figures = [
        ("ipc", ratio("instructions", "cpu_cycles"), DerivedUnit::PerCycle, "instructions per cycle"),
        (
            "cache_miss_ratio",
            ratio("cache_misses", "cache_references"),
            DerivedUnit::Ratio,
            "share of cache references that missed",
        ),
        (
            "branch_miss_ratio",
            ratio("branch_misses", "branch_instructions"),
            DerivedUnit::Ratio,
            "share of branches mispredicted",
        ),
        (
            "floating_point_operations_per_second",
            floating.zip(seconds).map(|(all, seconds)| all / seconds),
            DerivedUnit::PerSecond,
            "floating-point operations per second of the job",
        ),
        (
            "avx512_ratio",
            of_width.map(|(all, wide)| wide / all),
            DerivedUnit::Ratio,
            "share of floating-point operations in 512-bit instructions",
        ),
        (
            "memory_bytes_per_second",
            misses.zip(seconds).map(|(misses, seconds)| misses * CACHE_LINE_BYTES / seconds),
            DerivedUnit::BytesPerSecond,
            "memory read because of cache misses, estimated",
        ),
    ];
    let known = figures
        .into_iter()
        .filter_map(|(name, value, unit, help)| Some(Derived { name, value: value?, unit, help }));
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::QualityKind;

    fn events(counts: &[(&str, i64)]) -> Vec<EventCount> {
        let event = |&(name, count): &(&str, i64)| EventCount {
            name: name.to_owned(),
            count,
            counted: 1.0,
            kind: QualityKind::Measured,
            source: String::new(),
        };
        counts.iter().map(event).collect()
    }

    fn values(counts: &[(&str, i64)]) -> Vec<(&'static str, f64)> {
        derived(&events(counts), Some(2_000_000_000)).iter().map(|one| (one.name, one.value)).collect()
    }

    #[test]
    fn what_belongs_together_is_divided() {
        assert_eq!(values(&[("instructions", 30), ("cpu_cycles", 20)]), [("ipc", 1.5)]);
        assert_eq!(values(&[("instructions", 30), ("cpu_cycles", 0)]), []);
        assert_eq!(values(&[("page_faults", 30)]), []);
    }

    #[test]
    fn wide_instructions_do_more_operations() {
        let found = values(&[("fp_scalar_double", 16), ("fp_512_double", 6)]);
        assert_eq!(found, [("floating_point_operations_per_second", 32.0), ("avx512_ratio", 0.75)]);
        assert_eq!(values(&[("fp_512_double", 0)]), [("floating_point_operations_per_second", 0.0)]);
    }

    #[test]
    fn memory_is_read_by_lines() {
        let found = values(&[("cache_misses", 100), ("cache_references", 400)]);
        assert_eq!(found, [("cache_miss_ratio", 0.25), ("memory_bytes_per_second", 3200.0)]);
    }
}
