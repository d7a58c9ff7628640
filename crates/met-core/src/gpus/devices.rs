//! The GPUs of the machine, and parts of GPUs.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use super::REMEMBERED_NS;
use super::processes::Presence;
use crate::gpu::{device, device::label, vendor};
use crate::gpu_holding::Named;
use crate::gpu_idle_power::{IdlePower, IdleRules};
use crate::gpu_ledger::{Claim, GpuLedger};
use crate::{MISSING, rate};

/// Of more GPUs and parts than this those that are gone are forgotten.
pub(super) const KNOWN_USUAL: usize = 64;

#[derive(Default)]
pub(super) struct Devices {
    pub gpus: Vec<Gpu>,
    by_uuid: HashMap<String, usize>,
    /// CUDA counts GPUs by speed where they are not all the same.
    pub models_differ: bool,
    pub idle_rules: IdleRules,
    /// What was known of a GPU before this process began, until it is met.
    pub idle_before: HashMap<String, IdlePower>,
}

pub(super) struct Gpu {
    pub labels: Vec<String>,
    pub parent: Option<usize>,
    pub ledger: GpuLedger,
    /// The energy counter of a GPU that does not report its power, and when that was read.
    energy_before: Option<(i64, i64)>,
    pub seen_ns: i64,
    /// The same as unix time.
    pub seen_unix_ns: i64,
    /// Since when it was not settled, at the last look.
    pub open_since_ns: i64,
    /// Who claimed what of it at the last look, and the sums of what is active and held.
    pub claims: Vec<Claim>,
    pub claimed: (u64, u64),
    pub cells: Vec<i64>,
    /// The processes on it at the last look.
    pub present: Vec<Presence>,
    pub has_parts: bool,
}

impl Index<usize> for Devices {
    type Output = Gpu;

    fn index(&self, index: usize) -> &Gpu {
        &self.gpus[index]
    }
}

impl IndexMut<usize> for Devices {
    fn index_mut(&mut self, index: usize) -> &mut Gpu {
        &mut self.gpus[index]
    }
}

impl Devices {
    /// The GPU that this is or is a part of.
    pub fn whole(&self, index: usize) -> usize {
        self[index].parent.unwrap_or(index)
    }

    /// The parts of a GPU that are there.
    pub fn parts(&self, index: usize, at_ns: i64) -> impl Iterator<Item = usize> {
        let is_part = move |part: &Gpu| part.parent == Some(index) && part.seen_ns == at_ns;
        (0..).zip(&self.gpus).filter(move |(_, part)| is_part(part)).map(|(part, _)| part)
    }

    /// The place of a part that is gone for long and that no job had: parts may be made again without end.
    fn free_place(&self, at_ns: i64, is_used: impl Fn(usize) -> bool) -> Option<usize> {
        let is_gone = |gpu: &Gpu| gpu.parent.is_some() && at_ns.saturating_sub(gpu.seen_ns) > REMEMBERED_NS;
        let is_free = |&index: &usize| is_gone(&self[index]) && !is_used(index);
        (0..self.gpus.len()).filter(|_| self.gpus.len() >= KNOWN_USUAL).find(is_free)
    }

    /// The place of a GPU, which it gets when it is first met.
    pub fn meet(&mut self, labels: &[String], at_ns: i64, is_used: impl Fn(usize) -> bool) -> usize {
        let uuid = &labels[label::UUID];
        if let Some(&index) = self.by_uuid.get(uuid) {
            // GPUs are numbered again when one of them is lost or found, and parts when others are made.
            if self[index].labels != labels {
                labels.clone_into(&mut self[index].labels);
            }
            return index;
        }
        let parent = self.by_uuid.get(&labels[label::PARENT]).copied();
        let index = self.free_place(at_ns, is_used).unwrap_or(self.gpus.len());
        self.by_uuid.insert(uuid.clone(), index);
        let of_cuda =
            |labels: &[String]| labels[label::VENDOR] == vendor::NVIDIA && labels[label::PARENT].is_empty();
        self.models_differ |= self.gpus.iter().any(|gpu| {
            of_cuda(&gpu.labels) && of_cuda(labels) && gpu.labels[label::NAME] != labels[label::NAME]
        });
        let mut ledger = GpuLedger::default();
        ledger.idle = self.idle_before.remove(uuid).unwrap_or_default();
        ledger.idle.configured_mw = self.idle_rules.of(uuid, &labels[label::NAME]);
        let gpu = Gpu {
            labels: labels.to_vec(),
            parent,
            ledger,
            energy_before: None,
            seen_ns: i64::MIN,
            seen_unix_ns: 0,
            open_since_ns: i64::MAX,
            claims: Vec::new(),
            claimed: (0, 0),
            cells: Vec::new(),
            present: Vec::new(),
            has_parts: false,
        };
        match self.gpus.get_mut(index) {
            Some(gone) => {
                self.by_uuid.remove(&gone.labels[label::UUID]);
                *gone = gpu;
            }
            None => self.gpus.push(gpu),
        }
        index
    }

    /// Whose GPUs a scheduler numbers, which does not say: those that compute before those that draw.
    pub fn numbered_vendor(&self) -> &'static str {
        let is_there = |vendor: &&str| self.gpus.iter().any(|gpu| gpu.labels[label::VENDOR] == *vendor);
        [vendor::NVIDIA, vendor::AMD, vendor::INTEL].into_iter().find(is_there).unwrap_or(vendor::NVIDIA)
    }

    /// What is read of a GPU, and of a part also what only the whole GPU can say.
    pub fn cells_of(&self, index: usize) -> Cow<'_, [i64]> {
        const OF_THE_WHOLE: [usize; 5] =
            [device::POWER, device::TEMPERATURE, device::CLOCK, device::CLOCK_MEMORY, device::THROTTLE];
        let gpu = &self[index];
        let Some(parent) = gpu.parent else { return Cow::Borrowed(&gpu.cells) };
        let mut cells = gpu.cells.clone();
        let whole = &self[parent];
        for column in OF_THE_WHOLE.into_iter().filter(|_| whole.seen_ns == gpu.seen_ns) {
            if cells[column] == MISSING {
                cells[column] = whole.cells[column];
            }
        }
        Cow::Owned(cells)
    }
}

impl Gpu {
    /// Of these only the processes of jobs are read, and not each reports its activity.
    pub fn hides_others(&self) -> bool {
        self.labels[label::VENDOR] != vendor::NVIDIA
    }

    pub fn read(&mut self, cells: &[i64], at_ns: i64) {
        self.seen_ns = at_ns;
        self.cells.clear();
        self.cells.extend_from_slice(cells);
        self.derive_power(at_ns);
    }

    /// Some GPUs count their energy and do not report their power.
    fn derive_power(&mut self, at_ns: i64) {
        let energy_uj = self.cells[device::ENERGY];
        if self.cells[device::POWER] != MISSING
            || energy_uj == MISSING
            || self.cells[device::PASS_AGE] != MISSING
        {
            return;
        }
        if let Some((before_ns, before_uj)) = self.energy_before.replace((at_ns, energy_uj)) {
            let power_mw = rate::power_mw(before_uj, energy_uj, at_ns - before_ns);
            // What no GPU draws is a wrong reading of its counter.
            let most_mw = self.ledger.most_mw().max(self.cells[device::POWER_LIMIT]);
            let power_mw = power_mw.filter(|power_mw| *power_mw <= most_mw);
            self.cells[device::POWER] = power_mw.unwrap_or(MISSING);
        }
    }

    pub fn named(&self) -> Named<'_> {
        Named {
            index: &self.labels[label::INDEX],
            uuid: &self.labels[label::UUID],
            vendor: &self.labels[label::VENDOR],
            parent: &self.labels[label::PARENT],
            device: &self.labels[label::DEVICE],
            mig: self.labels.get(label::MIG).map_or("", String::as_str),
        }
    }
}
