//! What is reported of GPUs: rows and reports of jobs, and the GPUs as they are now.

use super::processes::Presence;
use std::collections::BTreeMap;

use super::devices::Gpu;
use super::usage::Mean;
use super::{GpuUseSince, Gpus};
use crate::detail_table::{GPU_MEMORY_FREE, GPU_MEMORY_TOTAL, GPU_UTILIZATION_MEMORY};
use crate::gpu::{self, device, device::label, process};
use crate::gpu_idle_power::IdlePower;
use crate::gpu_ledger::Line;
use crate::job::{EnergySource, GpuUse, QualityKind};
use crate::job_table::*;
use crate::{MISSING, Subject};

/// A GPU as it is now, for `met gpus`.
#[derive(Clone, Debug)]
pub struct GpuNow<'a> {
    pub labels: &'a [String],
    pub cells: &'a [i64],
    pub processes: Vec<(Subject, Option<u32>, i64, i64)>,
    pub holders: Vec<(u32, &'a GpuUseSince)>,
}

/// What is missing adds nothing.
fn add(sum: &mut i64, cell: i64) {
    if cell != MISSING {
        *sum = if *sum == MISSING { cell } else { sum.saturating_add(cell) };
    }
}

impl Gpus {
    /// Writes the job's sums over its GPUs into its row. A job without a GPU has none.
    pub fn fill(&self, slot: u32, cells: &mut [i64]) {
        let mut energy: Option<Line> = None;
        let (mut gpus, mut idle, mut power) = (0, 0, MISSING);
        let (mut utilization, mut memory, mut temperature) = (MISSING, MISSING, MISSING);
        let mut any = false;
        for (index, usage) in self.uses.of_slot(slot) {
            any = true;
            if self.uses.owns_line(&self.devices, slot, index) {
                let line = self.uses.line(&self.devices, &self.holders, slot, index);
                let sum = energy.get_or_insert_default();
                sum.active_uj += line.active_uj;
                sum.idle_uj += line.idle_uj;
            }
            if usage.present {
                gpus += 1;
                idle += i64::from(usage.time.since.idle_ns.is_some());
                add(&mut utilization, usage.now_utilization);
                add(&mut memory, usage.now_memory);
                // Parts of one GPU have the job's part of it each.
                if self.uses.is_first_present(&self.devices, slot, index) {
                    add(&mut power, usage.now_power);
                }
                temperature = temperature.max(self.devices.cells_of(index)[device::TEMPERATURE]);
            }
        }
        if !any {
            return;
        }
        (cells[GPUS], cells[GPUS_IDLE]) = (gpus, idle);
        (cells[GPU_UTILIZATION], cells[GPU_MEMORY]) = (utilization, memory);
        (cells[GPU_POWER], cells[GPU_TEMPERATURE]) = (power, temperature);
        if let Some(energy) = energy {
            cells[GPU_ENERGY] = energy.total_uj() as i64;
            cells[GPU_ENERGY_IDLE] = energy.idle_uj as i64;
        }
    }

    /// Writes what holds for the job's GPUs as a whole, other jobs on them included, into its details.
    pub fn fill_details(&self, slot: u32, cells: &mut [i64]) {
        for (index, _) in self.uses.of_slot(slot).filter(|(_, usage)| usage.present) {
            let of_gpu = self.devices.cells_of(index);
            let (total, used) = (of_gpu[device::MEMORY_TOTAL], of_gpu[device::MEMORY_USED]);
            add(&mut cells[GPU_MEMORY_TOTAL], total);
            if total != MISSING && used != MISSING {
                add(&mut cells[GPU_MEMORY_FREE], (total - used).max(0));
            }
            add(&mut cells[GPU_UTILIZATION_MEMORY], of_gpu[device::UTILIZATION_MEMORY]);
        }
    }

    /// What the job did with each GPU so far, in the order of the GPUs.
    pub fn uses_of(&self, slot: u32) -> Vec<GpuUse> {
        self.uses.of_slot(slot).map(|(index, _)| self.report(slot, index)).collect()
    }

    fn report(&self, slot: u32, index: usize) -> GpuUse {
        let gpu = &self.devices[index];
        let usage = &self.uses.all[&(slot, index)];
        // The parts of one GPU that a job holds are charged together, to the first of them.
        let line = match self.uses.owns_line(&self.devices, slot, index) {
            true => self.uses.line(&self.devices, &self.holders, slot, index),
            false => Line::default(),
        };
        let idle = self.devices[self.devices.whole(index)].ledger.idle.get();
        let known = |cell: i64| (cell != MISSING).then_some(cell);
        let ratio = |mean: Mean| mean.get().map(|mean| mean / 1000.0);
        let counted = line.counted_uj > 0 && line.counted_uj / 9 >= line.total_uj() / 10;
        GpuUse {
            uuid: gpu.labels[label::UUID].clone(),
            node: None,
            index: gpu.labels[label::INDEX].clone(),
            name: gpu.labels[label::NAME].clone(),
            vendor: gpu.labels[label::VENDOR].clone(),
            parent: Some(gpu.labels[label::PARENT].clone()).filter(|parent| !parent.is_empty()),
            held_by: usage.held_by.clone(),
            held_since_ns: Some(usage.time.since.held_ns),
            idle_since_ns: usage.time.since.idle_ns,
            lost_since_ns: (gpu.seen_ns < self.looked_ns).then_some(gpu.seen_unix_ns),
            held_ns: usage.time.held_ns,
            paid_ns: usage.time.held_ns + usage.time.paid_early_ns,
            used_ns: usage.time.used_ns,
            known_ns: Some(usage.means.utilization.covered_ns),
            utilization: ratio(usage.means.utilization),
            // Of the same times as the job's: else a part may be more than the whole.
            gpu_utilization: ratio(usage.means.gpu_utilization_beside)
                .or_else(|| ratio(usage.means.gpu_utilization)),
            encoder: ratio(usage.means.encoder),
            decoder: ratio(usage.means.decoder),
            copy: ratio(usage.means.copy),
            memory_mean_bytes: usage.means.memory.get(),
            memory_peak_bytes: usage.most.memory,
            memory_total_bytes: gpu.cells.get(device::MEMORY_TOTAL).copied().and_then(known),
            energy_active_uj: line.active_uj as i64,
            energy_idle_uj: line.idle_uj as i64,
            energy_kind: (line.total_uj() > 0).then_some(match (line.shared, counted) {
                _ if line.estimated => QualityKind::Estimated,
                (true, _) => QualityKind::Attributed,
                (false, true) => QualityKind::Measured,
                (false, false) => QualityKind::Sampled,
            }),
            energy_source: (line.total_uj() > 0).then(|| energy_source(&line)),
            idle_power_mw: idle.map(|(idle_mw, _)| idle_mw),
            idle_power_source: idle.map(|(_, source)| source.name().to_owned()),
            gpu_power_mw: usage.means.power.get(),
            temperature_max_mc: usage.most.temperature,
            clock_mean_mhz: usage.means.clock.get(),
            clock_max_mhz: usage.most.clock,
            throttled: gpu::throttle_words(usage.most.throttle_bits).into_iter().map(str::to_owned).collect(),
            throttled_ns: usage.most.throttled_ns,
            ecc_corrected: usage.errors.ecc_corrected.get(),
            ecc_uncorrected: usage.errors.ecc_uncorrected.get(),
            faults: usage.errors.faults.get(),
            fault_last: usage.errors.fault_last,
            pcie_received_rate: usage.means.pcie_received.get(),
            pcie_sent_rate: usage.means.pcie_sent.get(),
            sm_activity: ratio(usage.means.units.sm_activity),
            tensor_activity: ratio(usage.means.units.tensor_activity),
            memory_bandwidth: ratio(usage.means.units.memory_bandwidth),
            processes: usage.processes,
        }
    }

    /// What is known of the idle power of each whole GPU, to be restored after a restart: its uuid, what was
    /// learned, and the lowest power seen.
    pub fn idle_powers(&self) -> impl Iterator<Item = (&[String], Option<i64>, Option<i64>)> {
        self.devices.gpus.iter().filter(|gpu| gpu.parent.is_none()).map(|gpu| {
            let IdlePower { learned_mw, lowest_mw, .. } = gpu.ledger.idle;
            (gpu.labels.as_slice(), learned_mw, lowest_mw)
        })
    }

    /// GPUs that jobs can be given, as of the last look: one that is cut into parts counts by its parts. `None` where
    /// none was met.
    pub fn count(&self) -> Option<i64> {
        let is_given = |gpu: &&Gpu| gpu.seen_ns == self.looked_ns && !gpu.has_parts;
        let count = self.devices.gpus.iter().filter(is_given).count();
        i64::try_from(count).ok().filter(|&count| count > 0)
    }

    /// The GPUs that a job holds or uses, as read at the last look.
    pub fn in_use(&self) -> impl Iterator<Item = (&[String], &[i64])> {
        let latest_ns = self.looked_ns;
        self.devices.gpus.iter().enumerate().filter_map(move |(index, gpu)| {
            let is_used = || self.uses.all.iter().any(|((_, used), usage)| *used == index && usage.present);
            (gpu.seen_ns == latest_ns && is_used()).then_some((gpu.labels.as_slice(), gpu.cells.as_slice()))
        })
    }

    /// Who was charged what on all GPUs together up to now, provisionally in windows that are open.
    pub fn charged(&self) -> BTreeMap<Option<u32>, (u64, u64)> {
        let mut sums = BTreeMap::<Option<u32>, (u64, u64)>::new();
        for (who, line) in self.devices.gpus.iter().flat_map(|gpu| gpu.ledger.charged()) {
            let (active_uj, idle_uj) = sums.entry(who).or_default();
            *active_uj += line.active_uj;
            *idle_uj += line.idle_uj;
        }
        sums
    }

    /// What a job was charged up to now, active and idle, without the jobs inside it: final if it leaves now.
    pub fn own_uj(&self, slot: u32) -> (u64, u64) {
        let lines = self.devices.gpus.iter().map(|gpu| gpu.ledger.line(Some(slot)));
        lines.fold((0, 0), |sum, line| (sum.0 + line.active_uj, sum.1 + line.idle_uj))
    }

    /// The last power of all GPUs, and their limit, as far as they report it.
    pub fn power_mw(&self) -> (i64, i64) {
        let whole =
            self.devices.gpus.iter().filter(|gpu| gpu.seen_ns == self.looked_ns && gpu.parent.is_none());
        whole.fold((0, 0), |(drawn_mw, limit_mw), gpu| {
            let known = |column: usize| gpu.cells[column].max(0);
            (drawn_mw + known(device::POWER), limit_mw + known(device::POWER_LIMIT))
        })
    }

    /// The GPUs as last read.
    pub fn now(&self) -> impl Iterator<Item = GpuNow<'_>> {
        let latest_ns = self.looked_ns;
        self.devices.gpus.iter().enumerate().filter(move |(_, gpu)| gpu.seen_ns == latest_ns).map(
            |(index, gpu)| {
                let process = |presence: &Presence| {
                    let cells = &presence.cells;
                    (presence.subject, presence.slot, cells[process::MEMORY], cells[process::UTILIZATION])
                };
                let open = gpu.present.iter().filter(|presence| presence.cells[process::OPEN] != 0);
                let holders = self.uses.all.iter().filter(|((_, gpu), usage)| *gpu == index && usage.present);
                GpuNow {
                    labels: &gpu.labels,
                    cells: &gpu.cells,
                    processes: open.map(process).collect(),
                    holders: holders.map(|((slot, _), usage)| (*slot, &usage.time.since)).collect(),
                }
            },
        )
    }
}

fn energy_source(line: &Line) -> EnergySource {
    match line.counted_uj {
        0 => EnergySource::Power,
        counted if counted == line.total_uj() => EnergySource::Counter,
        counted => {
            let percent = counted as f64 / line.total_uj() as f64 * 100.0;
            EnergySource::Both { counted_percent: Some(percent as u8) }
        }
    }
}
