//! What a machine itself had and did, from its own counters: a time in which it was not measured is not idle.

use std::collections::BTreeMap;

use super::machine_figure::*;
use super::{BUCKET_NS, DayRow, bucket_of, day_of};
use crate::rate::{Step, step};

/// A longer time between two samples is unknown, although counters went on: nothing says when in it the machine worked.
const GAP_MAX_MS: i64 = 2 * BUCKET_NS / 1_000_000;

/// No machine has more: its sums stay far from overflow.
const GPUS_MAX: i64 = 4096;

/// Counters of a machine at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineSample {
    pub time_ms: i64,
    pub uptime_ms: Option<i64>,
    /// Time of all CPUs since the start of the machine, and the part of it in which they worked.
    pub cpu_ns: Option<i64>,
    pub busy_ns: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub memory_available_bytes: Option<i64>,
    /// GPUs that jobs could be given. 0: it certainly had none.
    pub gpus: Option<i64>,
}

/// Sums of a machine, by day.
#[derive(Debug, Default)]
pub struct Machine {
    last: Option<MachineSample>,
    pub days: BTreeMap<i64, DayRow>,
}

impl Machine {
    pub fn take(&mut self, sample: MachineSample) {
        let Some(last) = self.last.replace(sample) else { return };
        let (from_ms, to_ms) = (last.time_ms, sample.time_ms);
        if to_ms <= from_ms {
            return;
        }
        let booted_ms =
            sample.uptime_ms.map(|uptime_ms| to_ms - uptime_ms).filter(|&boot_ms| boot_ms > from_ms);
        if let Some(boot_ms) = booted_ms {
            self.spread(DOWN_MS, (from_ms, boot_ms), boot_ms - from_ms);
            // Its counters began with it.
            let begin = MachineSample { time_ms: boot_ms, cpu_ns: Some(0), busy_ns: Some(0), ..sample };
            self.between(&begin, &sample);
        } else {
            self.between(&last, &sample);
        }
    }

    fn between(&mut self, last: &MachineSample, sample: &MachineSample) {
        let span = (last.time_ms, sample.time_ms);
        let length_ms = span.1 - span.0;
        if !(1..=GAP_MAX_MS).contains(&length_ms) {
            return;
        }
        let grown = |before: Option<i64>, now: Option<i64>| match step(before?, now?) {
            Step::Delta(grown) => Some(grown),
            Step::Restarted | Step::Gap => None,
        };
        let Some(capacity) = grown(last.cpu_ns, sample.cpu_ns) else { return };
        self.spread(MEASURED_MS, span, length_ms);
        self.spread(CPU_CAPACITY_NS, span, capacity);
        self.spread(CPU_BUSY_NS, span, grown(last.busy_ns, sample.busy_ns).unwrap_or(0).min(capacity));
        let kib_ms = |bytes: i64| (bytes / 1024).saturating_mul(length_ms);
        if let Some((whole, available)) = sample.memory_bytes.zip(sample.memory_available_bytes) {
            self.spread(MEMORY_CAPACITY, span, kib_ms(whole));
            self.spread(MEMORY_USED, span, kib_ms((whole - available).max(0)));
        }
        let possible = |gpus: &i64| (0..=GPUS_MAX).contains(gpus);
        // A daemon that has just started has not counted them yet.
        if let Some(gpus) = sample.gpus.filter(possible).or(last.gpus.filter(possible)) {
            self.spread(GPUS_KNOWN_MS, span, length_ms);
            self.spread(GPU_CAPACITY_NS, span, gpus * length_ms * 1_000_000);
        }
    }

    /// Divides an amount evenly over a time.
    fn spread(&mut self, figure: usize, (from_ms, to_ms): (i64, i64), amount: i64) {
        let bucket_ms = BUCKET_NS / 1_000_000;
        let (first, last) = (bucket_of(from_ms * 1_000_000), bucket_of((to_ms - 1) * 1_000_000));
        let mut given = 0;
        for bucket in first..=last {
            let until_ms = ((bucket + 1) * bucket_ms).min(to_ms) - from_ms;
            let upto = i128::from(amount) * i128::from(until_ms) / i128::from((to_ms - from_ms).max(1));
            let upto = i64::try_from(upto).unwrap_or(amount);
            let (day, place) = day_of(bucket);
            self.days.entry(day).or_default().buckets[place][figure] += upto - given;
            given = upto;
        }
    }
}
