//! What one job did with one card: sums, means and peaks over the looks at it.

use super::GpuUseSince;
use crate::MISSING;
use crate::card_ledger::Line;
use crate::gpu::{self, card};

/// A job that has not computed for so long idles.
const IDLE_AFTER_NS: i64 = 10_000_000_000;

/// What one job did with one card so far.
#[derive(Default)]
pub(super) struct Use {
    pub held_by: &'static str,
    pub since: GpuUseSince,
    /// Since when nothing was computed, for however short a time.
    pub quiet_since_ns: Option<i64>,
    pub last_ns: Option<i64>,
    pub held_ns: i64,
    /// For how long before it was first seen with the card the job is charged for it.
    pub paid_early_ns: i64,
    pub used_ns: i64,
    pub utilization: Mean,
    pub card_utilization: Mean,
    /// The same in the times of which the job's own use is known.
    pub card_utilization_beside: Mean,
    pub encoder: Mean,
    pub decoder: Mean,
    pub copy: Mean,
    pub memory: Mean,
    pub memory_peak: i64,
    pub power: Mean,
    pub clock: Mean,
    pub clock_max: i64,
    pub temperature_max: i64,
    pub throttle_bits: i64,
    pub throttled_ns: Option<i64>,
    pub pcie_received: Mean,
    pub pcie_sent: Mean,
    pub ecc_corrected: Growth,
    pub ecc_uncorrected: Growth,
    pub faults: Growth,
    pub fault_last: i64,
    pub processes: i64,
    /// What the job has of the card now.
    pub now_utilization: i64,
    pub now_memory: i64,
    pub now_power: i64,
    pub present: bool,
    /// The card was lost while the job had it.
    pub lost_it: bool,
    pub line: Option<Line>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Mean {
    pub weighted: f64,
    pub covered_ns: i64,
}

impl Mean {
    pub fn add(&mut self, cell: i64, span_ns: i64) {
        if cell != MISSING && span_ns > 0 {
            self.weighted += cell as f64 * span_ns as f64;
            self.covered_ns += span_ns;
        }
    }

    pub fn get(self) -> Option<f64> {
        (self.covered_ns > 0).then(|| self.weighted / self.covered_ns as f64)
    }
}

/// How far a counter of the card rose while the job had it.
#[derive(Clone, Copy, Default)]
pub(super) struct Growth {
    pub first: Option<i64>,
    pub last: i64,
}

impl Growth {
    pub fn add(&mut self, cell: i64) {
        if cell != MISSING {
            let first = *self.first.get_or_insert(cell);
            // The driver was loaded anew: what it counted before is over.
            if cell < self.last {
                self.first = Some(first - self.last);
            }
            self.last = cell;
        }
    }

    pub fn get(self) -> Option<i64> {
        Some(self.last - self.first?)
    }
}

/// What one job has of one card at a look.
pub(super) struct Seen {
    pub at_ns: i64,
    pub unix_ns: i64,
    pub utilization: i64,
    pub encoder: i64,
    pub decoder: i64,
    pub copy: i64,
    pub memory: i64,
    pub processes: i64,
}

impl Use {
    pub fn see(&mut self, seen: &Seen, cells: &[i64], gap_ns: i64) {
        let span_ns = self.last_ns.map_or(0, |last_ns| seen.at_ns - last_ns);
        let span_ns = if span_ns > gap_ns { 0 } else { span_ns };
        self.held_ns += span_ns;
        let works = seen.utilization > 0;
        self.used_ns += if works { span_ns } else { 0 };
        self.quiet_since_ns = match self.quiet_since_ns {
            _ if works || seen.utilization == MISSING => None,
            Some(since_ns) => Some(since_ns),
            None => Some(seen.unix_ns),
        };
        // A pause between two batches is not idleness, unless there was never anything but that.
        let lasts = |since_ns: &i64| self.used_ns == 0 || seen.unix_ns - since_ns >= IDLE_AFTER_NS;
        self.since.idle_ns = self.quiet_since_ns.filter(lasts);
        for (mean, cell) in [
            (&mut self.utilization, seen.utilization),
            (&mut self.card_utilization, cells[card::UTILIZATION]),
            (&mut self.encoder, seen.encoder),
            (&mut self.decoder, seen.decoder),
            (&mut self.copy, seen.copy),
            (&mut self.memory, seen.memory),
            (&mut self.power, cells[card::POWER]),
            (&mut self.clock, cells[card::CLOCK]),
            (&mut self.pcie_received, cells[card::PCIE_RECEIVED]),
            (&mut self.pcie_sent, cells[card::PCIE_SENT]),
        ] {
            mean.add(cell, span_ns);
        }
        if seen.utilization != MISSING {
            self.card_utilization_beside.add(cells[card::UTILIZATION], span_ns);
        }
        self.memory_peak = self.memory_peak.max(seen.memory);
        self.clock_max = self.clock_max.max(cells[card::CLOCK]);
        self.temperature_max = self.temperature_max.max(cells[card::TEMPERATURE]);
        let bits = cells[card::THROTTLE];
        if bits != MISSING {
            let throttled = !gpu::throttle_words(bits).is_empty();
            self.throttle_bits |= if throttled { bits } else { 0 };
            *self.throttled_ns.get_or_insert(0) += if throttled { span_ns } else { 0 };
        }
        self.ecc_corrected.add(cells[card::ECC_CORRECTED]);
        self.ecc_uncorrected.add(cells[card::ECC_UNCORRECTED]);
        self.count_faults(cells);
        self.processes = self.processes.max(seen.processes);
        (self.now_utilization, self.now_memory) = (seen.utilization, seen.memory);
        (self.present, self.lost_it, self.last_ns) = (true, false, Some(seen.at_ns));
    }

    pub fn count_faults(&mut self, cells: &[i64]) {
        self.faults.add(cells[card::FAULTS]);
        // The number of an error of before is not this job's; a driver that is loaded anew knows none.
        if self.faults.get().is_some_and(|faults| faults > 0) && cells[card::FAULT_LAST] != MISSING {
            self.fault_last = cells[card::FAULT_LAST];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_compared_with_its_card_in_the_times_in_which_both_are_known() {
        let mut usage = Use { memory_peak: MISSING, ..Use::default() };
        let mut cells = vec![MISSING; card::TABLE.columns.len()];
        let second_ns = 1_000_000_000;
        // Who computes is told two seconds later than that the card does.
        for (second, own, whole) in
            [(0, MISSING, 0), (1, MISSING, 0), (2, MISSING, 700), (3, 600, 700), (4, 600, 700)]
        {
            cells[card::UTILIZATION] = whole;
            let (at_ns, unknown) = (second * second_ns, MISSING);
            let seen = Seen {
                at_ns,
                unix_ns: at_ns,
                utilization: own,
                encoder: unknown,
                decoder: unknown,
                copy: unknown,
                memory: unknown,
                processes: 1,
            };
            usage.see(&seen, &cells, 10 * second_ns);
        }
        assert_eq!(usage.utilization.get(), Some(600.0));
        assert_eq!(usage.card_utilization.get(), Some(525.0));
        assert_eq!(usage.card_utilization_beside.get(), Some(700.0));
    }
}
