//! Jobs side by side: the figures that are compared, for a terminal, pages and programs.

use met_core::job::{QualityKind, Record};
use met_core::job_table as column;
use met_core::{JOB, units};
use serde_json::{Value, json};

use crate::report::words::mark;
use crate::{average, gpu};

/// More do not fit side by side.
pub const JOBS_MAX: usize = 8;
/// One job alone is compared with so many of its earlier runs.
pub const EARLIER: usize = 3;

type Figure = fn(&Record, i64) -> Option<f64>;
type Words = fn(f64) -> String;

/// Name, name for programs, value, the total whose quality it has, and its words.
const FIGURES: [(&str, &str, Figure, usize, Words); 9] = [
    (
        "duration",
        "wall_seconds",
        |record, now_ns| Some(average::wall_ns(record, now_ns)? as f64 / 1e9),
        column::WALL,
        units::duration,
    ),
    ("CPU time", "cpu_seconds", |record, _| total(record, column::CPU), column::CPU, units::duration),
    ("cores", "cores", average::cores, column::CPU, units::cores),
    (
        "memory needed",
        "memory_needed_peak_bytes",
        |record, _| total(record, column::MEMORY_NEEDED_PEAK),
        column::MEMORY_NEEDED_PEAK,
        units::bytes,
    ),
    ("read", "read_bytes", |record, _| total(record, column::READ), column::READ, units::bytes),
    ("written", "written_bytes", |record, _| total(record, column::WRITTEN), column::WRITTEN, units::bytes),
    ("GPU use", "gpu_ratio", |record, _| gpu::ratio(record), column::GPU_UTILIZATION, units::percent),
    ("energy", "energy_joules", |record, _| total(record, column::ENERGY), column::ENERGY, units::watt_hours),
    (
        "emissions",
        "emissions_grams",
        |record, _| total(record, column::EMISSIONS),
        column::EMISSIONS,
        units::grams,
    ),
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
    /// How each is known; `None` where no total says it.
    qualities: Vec<Option<QualityKind>>,
    words: Words,
}

impl Row {
    /// In words, with the sign of its quality; what the others are of the first.
    pub fn words(&self, index: usize) -> Option<(String, Option<f64>)> {
        let value = self.values[index]?;
        let first = self.values[0].filter(|&first| index > 0 && first > 0.0);
        let sign = self.qualities[index].and_then(mark).map_or("", |(sign, _)| sign);
        Some((units::marked(sign, &(self.words)(value)), first.map(|first| value / first)))
    }
}

/// The signs that are used, in words.
pub fn legend(rows: &[Row]) -> Vec<String> {
    let used: Vec<QualityKind> =
        rows.iter().flat_map(|row| row.qualities.iter().flatten()).copied().collect();
    let kinds = QualityKind::ALL.into_iter().filter(|kind| used.contains(kind));
    kinds.filter_map(mark).map(|(sign, words)| format!("{sign} {words}")).collect()
}

/// The figures that are known of one of the jobs at least.
pub fn rows<'a>(jobs: impl Iterator<Item = &'a Record> + Clone, now_ns: i64) -> Vec<Row> {
    let row = |(label, key, figure, total, words): (&'static str, &'static str, Figure, usize, Words)| {
        let values: Vec<Option<f64>> = jobs.clone().map(|record| figure(record, now_ns)).collect();
        let kind = |record: &Record| record.totals.figure(total).map(|figure| figure.kind);
        let qualities = jobs.clone().map(kind).collect();
        values.iter().any(Option::is_some).then_some(Row { label, key, values, qualities, words })
    };
    FIGURES.into_iter().filter_map(row).collect()
}

/// The same for programs.
pub fn object(rows: &[Row]) -> Value {
    let row = |row: &Row| json!({ "metric": row.key, "values": row.values });
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn every_figure_has_the_sign_of_its_quality_and_a_legend_explains_it() {
        let (mut one, other) = (sample::finished(), sample::finished());
        one.totals.set(column::ENERGY, 36_000_000, QualityKind::Estimated, "model");
        let rows = rows([&one, &other].into_iter(), sample::NOW_NS);
        let words = |key: &str, index: usize| rows.iter().find(|row| row.key == key).unwrap().words(index);
        assert_eq!(words("energy_joules", 0), Some(("~10.0 mWh".to_owned(), None)));
        assert_eq!(words("energy_joules", 1), None);
        assert_eq!(words("read_bytes", 1), Some(("≥4.00 KiB".to_owned(), Some(1.0))));
        assert_eq!(words("cpu_seconds", 1).unwrap().0, "5s");
        assert_eq!(legend(&rows), ["~ estimated", "≥ at least this much"]);
    }
}
