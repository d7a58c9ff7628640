//! Jobs side by side: the figures that are compared, for a terminal, pages and programs.

use met_core::job::Record;
use met_core::job_table as column;
use met_core::{JOB, units};
use serde_json::{Value, json};

use crate::{average, gpu};

/// More do not fit side by side.
pub const JOBS_MAX: usize = 8;
/// One job alone is compared with so many of its earlier runs.
pub const EARLIER: usize = 3;

type Figure = fn(&Record, i64) -> Option<f64>;
type Words = fn(f64) -> String;

/// Name, name for programs, value and its words.
const FIGURES: [(&str, &str, Figure, Words); 9] = [
    (
        "duration",
        "wall_seconds",
        |record, now_ns| Some(average::wall_ns(record, now_ns)? as f64 / 1e9),
        units::duration,
    ),
    ("CPU time", "cpu_seconds", |record, _| total(record, column::CPU), units::duration),
    ("cores", "cores", average::cores, units::cores),
    (
        "memory needed",
        "memory_needed_peak_bytes",
        |record, _| total(record, column::MEMORY_NEEDED_PEAK),
        units::bytes,
    ),
    ("read", "read_bytes", |record, _| total(record, column::READ), units::bytes),
    ("written", "written_bytes", |record, _| total(record, column::WRITTEN), units::bytes),
    ("GPU use", "gpu_ratio", |record, _| gpu::ratio(record), units::percent),
    ("energy", "energy_joules", |record, _| total(record, column::ENERGY), units::watt_hours),
    ("emissions", "emissions_grams", |record, _| total(record, column::EMISSIONS), units::grams),
];

/// A total in its unit.
pub fn total(record: &Record, index: usize) -> Option<f64> {
    Some(JOB.columns[index].scaled(record.totals.get(index)?))
}

/// One figure of all jobs.
pub struct Row {
    pub label: &'static str,
    pub key: &'static str,
    pub values: Vec<Option<f64>>,
    words: Words,
}

impl Row {
    /// In words; what the others are of the first.
    pub fn words(&self, index: usize) -> Option<(String, Option<f64>)> {
        let value = self.values[index]?;
        let first = self.values[0].filter(|&first| index > 0 && first > 0.0);
        Some(((self.words)(value), first.map(|first| value / first)))
    }
}

/// The figures that are known of one of the jobs at least.
pub fn rows<'a>(jobs: impl Iterator<Item = &'a Record> + Clone, now_ns: i64) -> Vec<Row> {
    let row = |(label, key, figure, words): (&'static str, &'static str, Figure, Words)| {
        let values: Vec<Option<f64>> = jobs.clone().map(|record| figure(record, now_ns)).collect();
        values.iter().any(Option::is_some).then_some(Row { label, key, values, words })
    };
    FIGURES.into_iter().filter_map(row).collect()
}

/// The same for programs.
pub fn object(rows: &[Row]) -> Value {
    let row = |row: &Row| json!({ "metric": row.key, "values": row.values });
    rows.iter().map(row).collect()
}
