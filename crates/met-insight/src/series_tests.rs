//! Made-up samples of a job: each column as a function of the second.

use std::ops::Range;

use met_core::job::{QualityKind, Record};
use met_core::job_table as column;
use met_core::series::Series;
use met_core::{JOB, Kind, MISSING};

use crate::answers::Samples;
use crate::sample;

pub struct Made {
    pub record: Record,
    pub series: Series,
    pub gpus: Vec<(String, Series)>,
}

/// A job of so many seconds, sampled every second, of which nothing else is known.
pub fn made(seconds: i32) -> Made {
    let mut record = sample::finished();
    (record.totals, record.summaries) = Default::default();
    record.totals.set(column::WALL, i64::from(seconds) * 1_000_000_000, QualityKind::Measured, "supervisor");
    record.end_ns = record.start_ns.map(|start_ns| start_ns + i64::from(seconds) * 1_000_000_000);
    record.node_memory_bytes = Some(64 << 30);
    let mut series = Series::new(&JOB);
    let cells = vec![MISSING; JOB.columns.len()];
    for second in 0..=seconds {
        series.push(sample::START_NS / 1_000_000 + i64::from(second) * 1000, &cells);
    }
    Made { record, series, gpus: Vec::new() }
}

impl Made {
    pub fn now_ns(&self) -> i64 {
        self.record.end_ns.unwrap_or(sample::NOW_NS)
    }

    pub fn samples(&self) -> Samples<'_> {
        Samples { series: &self.series, gap_ms: 5000, gpus: &self.gpus }
    }

    pub fn cores(self, cores: impl Fn(i32) -> f64) -> Made {
        self.rate(column::CPU, cores)
    }

    /// The same of a job that is known not to wait for storage.
    pub fn computing(self, cores: impl Fn(i32) -> f64) -> Made {
        self.cores(cores).rate(column::PRESSURE_IO, |_| 0.0)
    }

    /// A counter by its growth per second, in its unit; its total is measured.
    pub fn rate(mut self, index: usize, rate: impl Fn(i32) -> f64) -> Made {
        assert_eq!(JOB.columns[index].kind, Kind::Counter);
        let mut sum = 0.0;
        for row in 0..self.series.len() {
            self.series.columns[index][row] = JOB.columns[index].unscaled(sum).unwrap();
            sum += if row + 1 < self.series.len() { rate(row as i32) } else { 0.0 };
        }
        let total = JOB.columns[index].unscaled(sum).unwrap();
        self.record.totals.set(index, total, QualityKind::Measured, "cgroup");
        self.record.summaries = self.series.summaries(5000);
        self
    }

    pub fn level(mut self, index: usize, level: impl Fn(i32) -> f64) -> Made {
        assert_eq!(JOB.columns[index].kind, Kind::Gauge);
        for row in 0..self.series.len() {
            self.series.columns[index][row] = JOB.columns[index].unscaled(level(row as i32)).unwrap();
        }
        if index == column::MEMORY_NEEDED {
            let most = self.series.maximum(index).unwrap();
            self.record.totals.set(column::MEMORY_NEEDED_PEAK, most, QualityKind::Sampled, "cgroup");
        }
        self.record.summaries = self.series.summaries(5000);
        self
    }

    pub fn without(mut self, seconds: Range<usize>) -> Made {
        let mut later = self.series.part(seconds.end, self.series.len());
        self.series.truncate(seconds.start + 1);
        std::mem::swap(&mut self.series, &mut later);
        let mut whole = later;
        whole.append(&self.series);
        self.series = whole;
        self
    }
}
