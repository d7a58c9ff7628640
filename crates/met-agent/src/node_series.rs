//! The series of the machine itself: what its sources read anyway, until it is written.

use std::collections::BTreeMap;
use std::time::Duration;

use met_core::series::Series;
use met_core::text::prefix;
use met_core::{Batch, Subject, Table};

/// Bounds what a daemon that cannot write holds of each part: more than an hour.
const SAMPLES_MAX: usize = 512;
/// Disks, ports, mounts, meters and sensors together.
const PARTS_MAX: usize = 512;
const LABEL_BYTES_MAX: usize = 200;

/// A part of the machine by its table and label, and its samples.
pub type NodePartSeries = (&'static Table, String, Series);

#[derive(Debug, Default)]
pub struct UnwrittenSeries {
    parts: BTreeMap<(&'static str, u32), Kept>,
    /// The time of the last sample, which outlives the samples.
    taken_ms: BTreeMap<(&'static str, u32), i64>,
}

#[derive(Debug)]
struct Kept {
    label: String,
    series: Series,
}

impl UnwrittenSeries {
    /// Keeps what a source has just read, if that is so long after the last sample. Counters lose nothing in between.
    pub fn take(&mut self, batch: &Batch, labels: &[Vec<String>], unix_offset_ns: i64, interval: Duration) {
        // A tick that is early by a moment is not left out.
        let least_ms = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX) / 100 * 95;
        let time_ms = (batch.window.end_ns + unix_offset_ns) / 1_000_000;
        for (row, cells) in batch.rows().filter(|(row, _)| row.owner == Subject::Node) {
            let key = (batch.table.name, row.part);
            let is_new = !self.taken_ms.contains_key(&key);
            if is_new && self.taken_ms.len() >= PARTS_MAX {
                continue;
            }
            let taken_ms = self.taken_ms.entry(key).or_insert(i64::MIN);
            // A clock that was set back waits for its own past: samples only ever follow each other.
            if time_ms.saturating_sub(least_ms) < *taken_ms {
                continue;
            }
            let kept = self.parts.entry(key).or_insert_with(|| Kept {
                label: label_of(batch.table, row.part, labels),
                series: Series::new(batch.table),
            });
            if kept.series.len() < SAMPLES_MAX {
                kept.series.push(time_ms, cells);
                *taken_ms = time_ms;
            }
        }
    }

    /// The samples since the last [`NodeSeries::drain`], by label.
    pub fn undrained(&self) -> impl Iterator<Item = (&str, &Series)> {
        self.parts.values().map(|kept| (kept.label.as_str(), &kept.series))
    }

    /// The samples since the last call.
    pub fn drain(&mut self) -> Vec<NodePartSeries> {
        let parts = std::mem::take(&mut self.parts).into_values();
        parts.map(|Kept { label, series }| (series.table, label, series)).collect()
    }
}

/// The labels of a part in one text; none where a table has one row.
fn label_of(table: &Table, part: u32, labels: &[Vec<String>]) -> String {
    let known = labels.get(part as usize).filter(|_| !table.labels.is_empty());
    let label = known.map(|labels| labels.join(" ")).unwrap_or_default();
    prefix(&label, LABEL_BYTES_MAX).to_owned()
}

#[cfg(test)]
mod tests {
    use met_core::Window;

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn read(series: &mut UnwrittenSeries, at_s: i64, parts: u32) {
        let table = met_sources::catalogue().into_iter().find(|table| table.name == "thermal").unwrap();
        let mut batch = Batch::new(table);
        for part in 0..parts {
            batch.push_part(Subject::Node, part)[0] = at_s;
        }
        batch.window = Window { begin_ns: 0, end_ns: at_s * SECOND };
        let labels: Vec<Vec<String>> =
            (0..parts).map(|part| vec![part.to_string(), "acpi".to_owned()]).collect();
        series.take(&batch, &labels, 1_000 * SECOND, Duration::from_secs(10));
    }

    #[test]
    fn one_sample_in_ten_seconds_is_kept_and_handed_out_once() {
        let mut series = UnwrittenSeries::default();
        (0..31).for_each(|second| read(&mut series, second, 2));
        let drained = series.drain();
        let names: Vec<_> = drained.iter().map(|(table, label, _)| (table.name, label.as_str())).collect();
        assert_eq!(names, [("thermal", "0 acpi"), ("thermal", "1 acpi")]);
        assert_eq!(drained[0].2.times_ms, [1_000_000, 1_010_000, 1_020_000, 1_030_000]);
        assert_eq!(drained[0].2.columns[0], [0, 10, 20, 30]);
        // What was handed out still decides when it is time again; a clock that was set back adds nothing.
        read(&mut series, 35, 2);
        read(&mut series, 5, 2);
        assert!(series.drain().is_empty());
        read(&mut series, 40, 2);
        assert_eq!(series.drain()[1].2.times_ms, [1_040_000]);
    }

    #[test]
    fn what_nobody_takes_is_bounded() {
        let mut series = UnwrittenSeries::default();
        (0..SAMPLES_MAX as i64 + 50).for_each(|sample| read(&mut series, sample * 10, 1));
        assert_eq!(series.drain()[0].2.len(), SAMPLES_MAX);
        let mut series = UnwrittenSeries::default();
        read(&mut series, 0, PARTS_MAX as u32 + 9);
        assert_eq!(series.drain().len(), PARTS_MAX);
        let long = vec![vec!["ä".repeat(LABEL_BYTES_MAX)]];
        let table = met_sources::catalogue().into_iter().find(|table| table.name == "nfs").unwrap();
        assert_eq!(label_of(table, 0, &long).len(), LABEL_BYTES_MAX);
    }
}
