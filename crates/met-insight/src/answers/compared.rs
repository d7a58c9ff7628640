//! How a run differs from the earlier ones of its lineage. Medians and median deviations: a few odd runs move neither.

use met_core::job::{QualityKind, Record, State};
use met_core::job_table as column;

use super::profile::median;
use crate::average;
use crate::report::Measure;

/// Runs that are compared with, the newest.
pub(super) const RUNS_MAX: usize = 20;
/// Fewer do not say what is usual.
const RUNS_MIN: usize = 3;
/// No difference below this share of the median is one.
const LEAST: f64 = 0.1;

#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub what: &'static str,
    pub key: &'static str,
    pub measure: Measure,
    pub value: f64,
    pub median: f64,
    /// The normal range.
    pub low: f64,
    pub high: f64,
    /// Earlier runs that it is of.
    pub runs: usize,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Normal,
    /// This run alone.
    Outlier,
    /// Every run since this one, by label and start.
    Since(String, Option<i64>),
}

type Read = fn(&Record, i64) -> Option<f64>;

struct Metric {
    what: &'static str,
    key: &'static str,
    measure: Measure,
    /// A smaller difference is none, however alike the runs are.
    least: f64,
    read: Read,
}

const METRICS: [Metric; 5] = [
    Metric {
        what: "duration",
        key: "wall_seconds",
        measure: Measure::Seconds,
        least: 1.0,
        read: |run, now_ns| {
            Some(average::wall_ns(run, now_ns).filter(|_| !run.state.is_live())? as f64 / 1e9)
        },
    },
    Metric {
        what: "CPU time",
        key: "cpu_seconds",
        measure: Measure::Seconds,
        least: 1.0,
        read: |run, _| Some(exact(run, column::CPU)? / 1e9),
    },
    Metric {
        what: "memory needed",
        key: "memory_needed_peak_bytes",
        measure: Measure::Bytes,
        least: 16.0 * MIB,
        read: |run, _| exact(run, column::MEMORY_NEEDED_PEAK),
    },
    Metric {
        what: "energy",
        key: "energy_joules",
        measure: Measure::Joules,
        least: 3600.0,
        read: |run, _| Some(exact(run, column::ENERGY)? / 1e6),
    },
    Metric {
        what: "read and written",
        key: "io_bytes",
        measure: Measure::Bytes,
        least: 16.0 * MIB,
        read: |run, _| Some(exact(run, column::READ)? + exact(run, column::WRITTEN)?),
    },
];

const MIB: f64 = 1_048_576.0;

/// A total of the whole job: of a lower bound there is no telling how it compares.
fn exact(run: &Record, index: usize) -> Option<f64> {
    let figure = run.totals.figure(index).filter(|_| run.covers_all_nodes())?;
    (figure.kind != QualityKind::LowerBound).then_some(figure.value as f64)
}

/// Only runs of the same size that finished are compared, and only a run that finished has its like.
pub fn differences(record: &Record, earlier: &[&Record], now_ns: i64) -> Vec<Difference> {
    if record.state != State::Finished {
        return Vec::new();
    }
    let alike = earlier.iter().filter(|run| is_alike(run, record));
    let runs: Vec<&Record> = alike.take(RUNS_MAX).copied().collect();
    METRICS.iter().filter_map(|metric| difference(record, &runs, now_ns, metric)).collect()
}

/// Whether a run says what is usual for another one.
pub(super) fn is_alike(run: &Record, record: &Record) -> bool {
    run.state == State::Finished
        && run.allocated.cpus == record.allocated.cpus
        && run.allocated.nodes == record.allocated.nodes
        && run.allocated.gpus == record.allocated.gpus
}

fn difference(
    record: &Record,
    earlier: &[&Record],
    now_ns: i64,
    &Metric { what, key, measure, least, read }: &Metric,
) -> Option<Difference> {
    let value = read(record, now_ns)?;
    let known: Vec<(f64, &Record)> =
        earlier.iter().filter_map(|&run| Some((read(run, now_ns)?, run))).collect();
    let values: Vec<f64> = [value].into_iter().chain(known.iter().map(|(value, _)| *value)).collect();
    let usual = Usual::of(&values[1..], least)?;
    // The longest series of newest runs that are all beyond what was usual before them, on the same side.
    let beyond = |changed: usize| {
        let before = Usual::of(&values[changed..], least)?;
        let side = before.side(value);
        let is_beyond = side != 0 && values[..changed].iter().all(|&one| before.side(one) == side);
        is_beyond.then_some((changed, before))
    };
    let (kind, usual) = match (1..=known.len()).rev().find_map(beyond) {
        None => (Kind::Normal, usual),
        Some((1, usual)) => (Kind::Outlier, usual),
        Some((changed, usual)) => {
            let first = known[changed - 2].1;
            (Kind::Since(first.label(), first.start_ns), usual)
        }
    };
    let Usual { median, low, high, runs } = usual;
    Some(Difference { what, key, measure, value, median, low, high, runs, kind })
}

struct Usual {
    median: f64,
    low: f64,
    high: f64,
    runs: usize,
}

impl Usual {
    fn of(values: &[f64], least: f64) -> Option<Usual> {
        if values.len() < RUNS_MIN {
            return None;
        }
        let middle = median(&mut values.to_vec())?;
        let mut deviations: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
        // As the standard deviation of normal values; a few runs know their own spread badly.
        let spread = 1.4826 * median(&mut deviations)?;
        let width = (3.0 * spread * (1.0 + 2.0 / values.len() as f64)).max(LEAST * middle.abs()).max(least);
        Some(Usual { median: middle, low: middle - width, high: middle + width, runs: values.len() })
    }

    fn side(&self, value: f64) -> i8 {
        match () {
            () if value > self.high => 1,
            () if value < self.low => -1,
            () => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    /// Newest first, as they are given.
    fn reported(seconds: &[i64]) -> Vec<String> {
        let run = |(index, &seconds): (usize, &i64)| {
            let mut run = sample::finished();
            (run.key.id, run.totals) = (format!("{}", 100 - index), Default::default());
            run.totals.set(column::WALL, seconds * 1_000_000_000, QualityKind::Measured, "supervisor");
            run
        };
        let runs: Vec<Record> = seconds.iter().enumerate().map(run).collect();
        let earlier: Vec<&Record> = runs[1..].iter().collect();
        let words = |difference: Difference| match difference.kind {
            Kind::Normal => format!("{} normal", difference.what),
            Kind::Outlier => {
                format!("{} {} instead of {}", difference.what, difference.value, difference.median)
            }
            Kind::Since(label, _) => format!("{} since {label}, was {}", difference.what, difference.median),
        };
        differences(&runs[0], &earlier, sample::NOW_NS).into_iter().map(words).collect()
    }

    #[test]
    fn few_runs_say_nothing_and_more_say_what_is_usual() {
        assert_eq!(reported(&[100, 10]), [""; 0]);
        assert_eq!(reported(&[100, 99, 101, 100]), ["duration normal"]);
        assert_eq!(reported(&[200, 99, 101, 100]), ["duration 200 instead of 100"]);
        assert_eq!(reported(&[105, 100, 100, 100, 100]), ["duration normal"], "a twentieth is no difference");
    }

    #[test]
    fn a_little_is_no_difference_and_a_lower_bound_is_not_compared() {
        assert_eq!(reported(&[3, 2, 2, 2]), ["duration normal"], "a second");
        let run = |read: i64, kind| {
            let mut run = sample::finished();
            run.totals = Default::default();
            run.totals.set(column::READ, read, kind, "proc");
            run.totals.set(column::WRITTEN, 0, QualityKind::Measured, "proc");
            run
        };
        let cached = run(0, QualityKind::Measured);
        let kinds = |job: &Record| {
            let found = differences(job, &[&cached; 3], sample::NOW_NS).into_iter();
            found.filter(|it| it.key == "io_bytes").map(|it| it.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&run(4096, QualityKind::Measured)), [Kind::Normal]);
        assert_eq!(kinds(&run(1 << 30, QualityKind::Measured)), [Kind::Outlier]);
        assert_eq!(kinds(&run(1 << 30, QualityKind::LowerBound)), []);
    }

    #[test]
    fn one_odd_run_among_the_earlier_does_not_widen_what_is_usual() {
        assert_eq!(reported(&[200, 99, 101, 5000, 100, 100]), ["duration 200 instead of 100"]);
    }

    #[test]
    fn a_regression_has_a_first_run() {
        assert_eq!(reported(&[200, 202, 198, 100, 101, 99, 100]), ["duration since 98, was 100"]);
        assert_eq!(
            reported(&[100, 200, 202, 100, 101, 99, 100]),
            ["duration normal"],
            "it is as before again"
        );
    }
}
