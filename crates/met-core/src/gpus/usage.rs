//! What one job did with one GPU: sums, means and peaks over the looks at it.

use std::collections::{BTreeMap, HashMap};

use super::GpuUseSince;
use super::devices::Devices;
use super::holders::Holders;
use crate::MISSING;
use crate::gpu::{self, device};
use crate::gpu_ledger::Line;
use crate::job::HeldBy;

/// A job that has not computed for this long is idle.
const IDLE_AFTER_NS: i64 = 10_000_000_000;

/// What each job did with each GPU so far: slot and GPU.
#[derive(Default)]
pub(super) struct Uses {
    pub all: BTreeMap<(u32, usize), Use>,
    /// What jobs that left were charged, for the job around them: slot and whole GPU.
    inherited: HashMap<(u32, usize), Line>,
}

impl Uses {
    pub fn of_slot(&self, slot: u32) -> impl Iterator<Item = (usize, &Use)> {
        self.all.range((slot, 0)..=(slot, usize::MAX)).map(|(&(_, index), usage)| (index, usage))
    }

    pub fn of_gpu(&mut self, index: usize) -> impl Iterator<Item = &mut Use> {
        self.all.iter_mut().filter(move |((_, used), _)| *used == index).map(|(_, usage)| usage)
    }

    pub fn is_first_present(&self, devices: &Devices, slot: u32, index: usize) -> bool {
        let whole = devices.whole(index);
        let mut own = self.of_slot(slot).filter(|(_, usage)| usage.present);
        own.find(|(other, _)| devices.whole(*other) == whole).is_some_and(|(first, _)| first == index)
    }

    /// What a job is charged for a GPU is reported once, with the first of what it has of it: the GPU, a part.
    pub fn owns_line(&self, devices: &Devices, slot: u32, index: usize) -> bool {
        let whole = devices.whole(index);
        let first = self.of_slot(slot).find(|(other, _)| devices.whole(*other) == whole);
        first.is_some_and(|(first, _)| first == index)
    }

    /// What the job, and the jobs inside it, were charged of a GPU, or of the GPU this is a part of.
    pub fn line(&self, devices: &Devices, holders: &Holders, slot: u32, index: usize) -> Line {
        let whole = devices.whole(index);
        let inherited = |slot: u32| self.inherited.get(&(slot, whole)).copied().unwrap_or_default();
        let left = self.all.get(&(slot, index)).and_then(|usage| usage.line);
        let mut line = left.unwrap_or_else(|| devices[whole].ledger.line(Some(slot)));
        for inner in holders.inside(slot) {
            line.add(&devices[whole].ledger.line(Some(inner)));
            line.add(&inherited(inner));
        }
        line.add(&inherited(slot));
        line
    }

    /// What a job that leaves was charged is final, and a part of what the job around it was.
    pub fn settle(&mut self, devices: &mut Devices, slot: u32, outer: Option<u32>) {
        for index in 0..devices.gpus.len() {
            if devices[index].parent.is_some() {
                continue;
            }
            let line = devices[index].ledger.leave(slot);
            if let Some(outer) = outer {
                let mut left = self.inherited.get(&(slot, index)).copied().unwrap_or_default();
                left.add(&line);
                self.inherited.entry((outer, index)).or_default().add(&left);
            }
            for (&(owner, gpu), usage) in &mut self.all {
                if owner == slot && devices.whole(gpu) == index {
                    usage.line = Some(line);
                }
            }
        }
    }

    pub fn forget(&mut self, slot: u32) {
        self.all.retain(|(owner, _), _| *owner != slot);
        self.inherited.retain(|(owner, _), _| *owner != slot);
    }
}

/// What one job did with one GPU so far.
#[derive(Default)]
pub(super) struct Use {
    pub held_by: HeldBy,
    pub time: Time,
    pub means: Means,
    pub most: Most,
    pub errors: Errors,
    pub processes: i64,
    /// What the job has of the GPU now.
    pub now_utilization: i64,
    pub now_memory: i64,
    pub now_power: i64,
    pub present: bool,
    /// The GPU was lost while the job had it.
    pub lost_it: bool,
    pub line: Option<Line>,
}

/// For how long a job held and used a GPU.
#[derive(Default)]
pub(super) struct Time {
    pub since: GpuUseSince,
    /// Since when nothing was computed, for however short a time.
    quiet_since_ns: Option<i64>,
    pub last_ns: Option<i64>,
    pub held_ns: i64,
    /// For how long before it was first seen with the GPU the job is charged for it.
    pub paid_early_ns: i64,
    pub used_ns: i64,
}

impl Time {
    /// Up to a look; how long it is since the last one, without gaps.
    fn pass(&mut self, seen: &Seen, gap_ns: i64) -> i64 {
        let span_ns = self.last_ns.replace(seen.at_ns).map_or(0, |last_ns| seen.at_ns - last_ns);
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
        span_ns
    }
}

#[derive(Default)]
pub(super) struct Means {
    pub utilization: Mean,
    pub gpu_utilization: Mean,
    /// The same for the times in which the job's own use is known.
    pub gpu_utilization_beside: Mean,
    pub encoder: Mean,
    pub decoder: Mean,
    pub copy: Mean,
    pub memory: Mean,
    pub power: Mean,
    pub clock: Mean,
    pub pcie_received: Mean,
    pub pcie_sent: Mean,
    pub units: UnitMeans,
}

/// How busy the units of the GPU were, by all users together.
#[derive(Default)]
pub(super) struct UnitMeans {
    pub sm_activity: Mean,
    pub tensor_activity: Mean,
    pub memory_bandwidth: Mean,
}

/// A reading of the units covers up to 20 s and is up to 20 s old. Before a job has had the GPU for so long, it may be
/// what another job did.
const UNITS_OWN_AFTER_NS: i64 = 40_000_000_000;

impl UnitMeans {
    fn add(&mut self, cells: &[i64], span_ns: i64) {
        self.sm_activity.add(cells[device::SM_ACTIVITY], span_ns);
        self.tensor_activity.add(cells[device::TENSOR_ACTIVITY], span_ns);
        self.memory_bandwidth.add(cells[device::MEMORY_BANDWIDTH], span_ns);
    }
}

impl Means {
    fn add(&mut self, seen: &Seen, cells: &[i64], span_ns: i64) {
        for (mean, cell) in [
            (&mut self.utilization, seen.utilization),
            (&mut self.gpu_utilization, cells[device::UTILIZATION]),
            (&mut self.encoder, seen.encoder),
            (&mut self.decoder, seen.decoder),
            (&mut self.copy, seen.copy),
            (&mut self.memory, seen.memory),
            (&mut self.power, cells[device::POWER]),
            (&mut self.clock, cells[device::CLOCK]),
            (&mut self.pcie_received, cells[device::PCIE_RECEIVED]),
            (&mut self.pcie_sent, cells[device::PCIE_SENT]),
        ] {
            mean.add(cell, span_ns);
        }
        if seen.utilization != MISSING {
            self.gpu_utilization_beside.add(cells[device::UTILIZATION], span_ns);
        }
    }
}

/// Peaks, and what held the GPU back.
#[derive(Default)]
pub(super) struct Most {
    pub memory: Option<i64>,
    pub clock: Option<i64>,
    pub temperature: Option<i64>,
    pub throttle_bits: i64,
    pub throttled_ns: Option<i64>,
}

impl Most {
    fn add(&mut self, memory: i64, cells: &[i64], span_ns: i64) {
        let known = |cell: i64| (cell != MISSING).then_some(cell);
        self.memory = self.memory.max(known(memory));
        self.clock = self.clock.max(known(cells[device::CLOCK]));
        self.temperature = self.temperature.max(known(cells[device::TEMPERATURE]));
        if let Some(bits) = known(cells[device::THROTTLE]) {
            let throttled = !gpu::throttle_words(bits).is_empty();
            self.throttle_bits |= if throttled { bits } else { 0 };
            *self.throttled_ns.get_or_insert(0) += if throttled { span_ns } else { 0 };
        }
    }
}

#[derive(Default)]
pub(super) struct Errors {
    pub ecc_corrected: Growth,
    pub ecc_uncorrected: Growth,
    pub faults: Growth,
    pub fault_last: Option<i64>,
}

impl Errors {
    pub fn count_faults(&mut self, cells: &[i64]) {
        self.faults.add(cells[device::FAULTS]);
        // The number of an error of before is not this job's; a driver that is loaded again knows none.
        if self.faults.get().is_some_and(|faults| faults > 0) && cells[device::FAULT_LAST] != MISSING {
            self.fault_last = Some(cells[device::FAULT_LAST]);
        }
    }
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

/// How far a counter of the GPU rose while the job had it.
#[derive(Clone, Copy, Default)]
pub(super) struct Growth {
    pub first: Option<i64>,
    pub last: i64,
}

impl Growth {
    pub fn add(&mut self, cell: i64) {
        if cell != MISSING {
            let first = *self.first.get_or_insert(cell);
            // The driver was reloaded: its earlier counts are void.
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

/// What one job has of one GPU at a look.
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
    pub fn new(unix_ns: i64, paid_early_ns: i64) -> Use {
        let since = GpuUseSince { held_ns: unix_ns, idle_ns: None };
        Use { time: Time { since, paid_early_ns, ..Time::default() }, ..Use::default() }
    }

    pub fn see(&mut self, seen: &Seen, cells: &[i64], gap_ns: i64) {
        let span_ns = self.time.pass(seen, gap_ns);
        self.means.add(seen, cells, span_ns);
        if self.time.held_ns >= UNITS_OWN_AFTER_NS {
            self.means.units.add(cells, span_ns);
        }
        self.most.add(seen.memory, cells, span_ns);
        self.errors.ecc_corrected.add(cells[device::ECC_CORRECTED]);
        self.errors.ecc_uncorrected.add(cells[device::ECC_UNCORRECTED]);
        self.errors.count_faults(cells);
        self.processes = self.processes.max(seen.processes);
        (self.now_utilization, self.now_memory) = (seen.utilization, seen.memory);
        (self.present, self.lost_it) = (true, false);
    }

    /// Nothing is known of it until the next look.
    pub fn pause(&mut self) {
        (self.present, self.time.last_ns) = (false, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(at_ns: i64, utilization: i64) -> Seen {
        Seen {
            at_ns,
            unix_ns: at_ns,
            utilization,
            encoder: MISSING,
            decoder: MISSING,
            copy: MISSING,
            memory: MISSING,
            processes: 1,
        }
    }

    #[test]
    fn units_that_another_job_may_have_kept_busy_are_not_counted() {
        let mut usage = Use::default();
        let mut cells = vec![MISSING; device::TABLE.columns.len()];
        let second_ns = 1_000_000_000;
        for second in 0..60 {
            // The reading of before is shown for 20 s, and the next one covers 20 s before the job, too.
            cells[device::SM_ACTIVITY] = if second < 40 { 900 } else { 100 };
            usage.see(&seen(second * second_ns, 500), &cells, 10 * second_ns);
            let known = usage.means.units.sm_activity.get();
            assert_eq!(known, (second >= 40).then_some(100.0), "after {second} s");
        }
    }

    #[test]
    fn a_job_is_compared_with_its_gpu_in_the_times_in_which_both_are_known() {
        let mut usage = Use::default();
        let mut cells = vec![MISSING; device::TABLE.columns.len()];
        let second_ns = 1_000_000_000;
        // Which process computes is reported two seconds later than the GPU's activity.
        for (second, own, whole) in
            [(0, MISSING, 0), (1, MISSING, 0), (2, MISSING, 700), (3, 600, 700), (4, 600, 700)]
        {
            cells[device::UTILIZATION] = whole;
            usage.see(&seen(second * second_ns, own), &cells, 10 * second_ns);
        }
        assert_eq!(usage.means.utilization.get(), Some(600.0));
        assert_eq!(usage.means.gpu_utilization.get(), Some(525.0));
        assert_eq!(usage.means.gpu_utilization_beside.get(), Some(700.0));
    }
}
