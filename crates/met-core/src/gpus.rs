//! The GPUs of a machine and what each job did with them: who uses them, who holds them, whose energy
//! it was.

mod charging;
mod devices;
mod holders;
mod processes;
mod usage;
mod views;

use self::devices::Devices;
use self::holders::Holders;
use self::processes::{Presence, Processes};
use self::usage::{Seen, Use, Uses};
pub use self::views::GpuNow;
use crate::attribute::JobMap;
use crate::gpu::{device, process};
use crate::gpu_holding::Holding;
use crate::gpu_idle_power::{IdlePower, IdleRules};
use crate::job::{GpuUse, HeldBy};
use crate::{Batch, MISSING};

/// The rows of one source: its two batches and the labels of its GPUs.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub gpus: &'a Batch,
    pub processes: &'a Batch,
    pub labels: &'a [Vec<String>],
}

#[derive(Default)]
pub struct Gpus {
    devices: Devices,
    processes: Processes,
    holders: Holders,
    uses: Uses,
    /// When the last look was.
    looked_ns: i64,
    /// A longer time between two looks is a gap.
    gap_ns: Option<i64>,
}

/// Since when a job holds a GPU, and since when it does nothing with it. Unix nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuUseSince {
    pub held_ns: i64,
    pub idle_ns: Option<i64>,
}

/// Longer than any pause between two expensive readings.
const REMEMBERED_NS: i64 = 180_000_000_000;
/// A longer span between two looks is a gap, not a time in which a level held.
const GAP_NS: i64 = 60_000_000_000;

impl Gpus {
    pub fn is_empty(&self) -> bool {
        self.devices.gpus.is_empty()
    }

    /// What a job was given. Nothing: it is not known, so it holds what it has open.
    pub fn hold(&mut self, slot: u32, holdings: Vec<Holding>) {
        self.holders.hold(slot, holdings);
    }

    /// Looks this far apart do not belong together; by default a minute.
    pub fn set_gap(&mut self, gap_ns: i64) {
        self.gap_ns = Some(gap_ns);
    }

    fn gap_ns(&self) -> i64 {
        self.gap_ns.unwrap_or(GAP_NS)
    }

    /// A job begins: what GPUs used before is not its.
    pub fn join(&mut self, slot: u32, at_ns: i64) {
        self.holders.join(slot, at_ns);
    }

    /// There is no look until the next job begins.
    pub fn pause(&mut self) {
        self.devices.gpus.iter_mut().for_each(|gpu| gpu.ledger.pause());
        self.uses.all.values_mut().for_each(|usage| usage.time.last_ns = None);
    }

    /// Whether a job has to do with a GPU.
    pub fn has_any(&self, slot: u32) -> bool {
        self.uses.of_slot(slot).next().is_some()
    }

    /// What the configuration says about idle power.
    pub fn set_idle_rules(&mut self, rules: IdleRules) {
        self.devices.idle_rules = rules;
    }

    /// What an earlier process learned about the idle power of a GPU.
    pub fn recall_idle(&mut self, uuid: String, learned_mw: Option<i64>, lowest_mw: Option<i64>) {
        self.devices.idle_before.insert(uuid, IdlePower::recalled(learned_mw, lowest_mw));
    }

    /// Takes in what was read at `at_ns`; `unix_offset_ns` makes it unix time.
    pub fn look(&mut self, rows: &[Rows<'_>], map: &JobMap, at_ns: i64, unix_offset_ns: i64) {
        self.looked_ns = at_ns;
        self.devices.gpus.iter_mut().for_each(|gpu| gpu.present.clear());
        self.holders.nest(map);
        for rows in rows {
            self.meet(rows, map, at_ns);
        }
        self.processes.forget_old(at_ns);
        self.holders.used_ns.retain(|_, seen_ns| at_ns - *seen_ns < REMEMBERED_NS);
        for index in 0..self.devices.gpus.len() {
            // A GPU may be cut into parts, and made whole again, at any time.
            let has_parts = self.devices.parts(index, at_ns).next().is_some();
            self.devices[index].has_parts = has_parts;
        }
        let times_ns = (at_ns, self.gap_ns());
        for index in 0..self.devices.gpus.len() {
            if self.devices[index].seen_ns == at_ns {
                self.devices[index].seen_unix_ns = at_ns + unix_offset_ns;
                if self.devices[index].parent.is_none() {
                    charging::charge(&mut self.devices, &self.holders, &self.processes, index, map, times_ns);
                }
                self.follow(index, map, at_ns, unix_offset_ns);
            } else {
                // A lost GPU is a gap in the figures of the jobs that hold it.
                self.devices[index].ledger.pause();
                for usage in self.uses.of_gpu(index) {
                    usage.lost_it |= usage.present;
                    usage.pause();
                }
            }
        }
        self.holders.joined.clear();
    }

    fn meet(&mut self, rows: &Rows<'_>, map: &JobMap, at_ns: i64) {
        let mut positions = vec![None; rows.labels.len()];
        for (row, cells) in rows.gpus.rows() {
            let Some(labels) = rows.labels.get(row.part as usize) else { continue };
            let is_used = |index: usize| {
                let mut used = self.uses.all.keys().chain(&self.holders.opened);
                used.any(|&(_, used)| used == index)
            };
            let index = self.devices.meet(labels, at_ns, is_used);
            if device::is_lost(cells) {
                let had_it = self.uses.of_gpu(index).filter(|usage| usage.present || usage.lost_it);
                had_it.for_each(|usage| usage.errors.count_faults(cells));
                continue;
            }
            positions[row.part as usize] = Some(index);
            self.devices[index].read(cells, at_ns);
        }
        for (row, cells) in rows.processes.rows() {
            let Some(Some(index)) = positions.get(row.part as usize).copied() else { continue };
            if let Some(presence) = self.processes.meet(row.owner, cells, map, at_ns) {
                self.holders.see(presence.slot, index, cells, at_ns);
                self.devices[index].present.push(presence);
            }
        }
    }

    fn follow(&mut self, index: usize, map: &JobMap, at_ns: i64, unix_offset_ns: i64) {
        let cells = self.devices.cells_of(index).into_owned();
        for &slot in map.slots() {
            let Some((held_by, seen)) = self.seen(slot, index, at_ns, unix_offset_ns) else {
                if let Some(usage) = self.uses.all.get_mut(&(slot, index)) {
                    usage.pause();
                    usage.lost_it = false;
                }
                continue;
            };
            let power = charging::power_share(&self.devices, &self.holders, slot, index);
            // A job that is first seen with a GPU now had it before it was seen, and is charged for that.
            let began_ns = self.holders.began_ns.get(&slot).copied().unwrap_or(i64::MAX);
            let paid_since_ns = self.devices[self.devices.whole(index)].open_since_ns.max(began_ns);
            let first = || Use::new(seen.unix_ns, (at_ns - paid_since_ns).max(0));
            let gap_ns = self.gap_ns();
            let usage = self.uses.all.entry((slot, index)).or_insert_with(first);
            (usage.held_by, usage.now_power) = (held_by, power);
            usage.see(&seen, &cells, gap_ns);
        }
    }

    /// What a job, with the jobs inside it, has of a GPU; nothing if it neither holds nor uses it.
    fn seen(&self, slot: u32, index: usize, at_ns: i64, unix_offset_ns: i64) -> Option<(HeldBy, Seen)> {
        let gpu = &self.devices[index];
        let held_by = self.holders.held_by(&self.devices, slot, index);
        let own = || gpu.present.iter().filter(|presence| self.holders.is_within(presence.slot, slot));
        let open = own().any(|presence| presence.cells[process::OPEN] != 0);
        if held_by.is_none() && !open {
            return None;
        }
        let sum = |column: usize| {
            let known = own().map(|presence| presence.cells[column]).filter(|&cell| cell != MISSING);
            known.reduce(i64::saturating_add)
        };
        let holds_unknown = |presence: &Presence| {
            presence.cells[process::OPEN] != 0 && presence.cells[process::MEMORY] == MISSING
        };
        let knows_who = self.holders.knows_who(&self.devices, slot, index, at_ns);
        // A job alone on a GPU does all its computing: use by process is reported later, and for short times.
        let is_alone = open && gpu.present.iter().all(|presence| self.holders.is_within(presence.slot, slot));
        let utilization = match sum(process::UTILIZATION) {
            _ if is_alone && gpu.cells[device::UTILIZATION] != MISSING => gpu.cells[device::UTILIZATION],
            Some(utilization) => utilization.min(1000),
            None if !open && knows_who => 0,
            None => MISSING,
        };
        let seen = Seen {
            at_ns,
            unix_ns: at_ns + unix_offset_ns,
            utilization,
            encoder: sum(process::UTILIZATION_ENCODER).unwrap_or(MISSING),
            decoder: sum(process::UTILIZATION_DECODER).unwrap_or(MISSING),
            copy: sum(process::UTILIZATION_COPY).unwrap_or(MISSING),
            memory: match sum(process::MEMORY) {
                // What some of them hold is not what all of them do.
                Some(_) if own().any(holds_unknown) => MISSING,
                Some(memory) => memory,
                None if open || !knows_who => MISSING,
                None => 0,
            },
            processes: own().filter(|presence| presence.cells[process::OPEN] != 0).count() as i64,
        };
        Some((held_by.map_or(HeldBy::Open, |by| HeldBy::Given(by.into())), seen))
    }

    /// Ends a job; what it was charged is final.
    pub fn leave(&mut self, slot: u32) -> Vec<GpuUse> {
        let outer = self.holders.outer.get(&slot).copied();
        self.uses.settle(&mut self.devices, slot, outer);
        let report = self.uses_of(slot);
        self.holders.leave(slot);
        self.uses.forget(slot);
        self.processes.leave(slot);
        report
    }
}

#[cfg(test)]
#[path = "gpus_tests.rs"]
mod tests;
