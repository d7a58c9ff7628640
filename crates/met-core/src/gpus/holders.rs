//! The jobs, and which GPUs each of them holds.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::devices::Devices;
use crate::MISSING;
use crate::attribute::JobMap;
use crate::gpu::{device, device::label, process, vendor};
use crate::gpu_holding::Holding;
use crate::gpu_ledger::{Activity, Claim};

#[derive(Default)]
pub(super) struct Holders {
    /// What jobs were given.
    holdings: HashMap<u32, Vec<Holding>>,
    /// GPUs that processes of a job have had open.
    pub opened: BTreeSet<(u32, usize)>,
    /// When a job was last seen to compute on a GPU, in the last minutes.
    pub used_ns: BTreeMap<(u32, usize), i64>,
    /// When each job began.
    pub began_ns: HashMap<u32, i64>,
    /// Jobs that came since the last look, and when.
    pub joined: Vec<(u32, i64)>,
    /// The job around each job that is inside another one.
    pub outer: HashMap<u32, u32>,
}

impl Holders {
    /// What a job was given. Nothing: it is not known, so it holds what it has open.
    pub fn hold(&mut self, slot: u32, holdings: Vec<Holding>) {
        if holdings.is_empty() {
            self.holdings.remove(&slot);
        } else {
            self.holdings.insert(slot, holdings);
        }
    }

    pub fn join(&mut self, slot: u32, at_ns: i64) {
        self.joined.push((slot, at_ns));
        self.began_ns.insert(slot, at_ns);
    }

    /// Takes up which jobs are inside others.
    pub fn nest(&mut self, map: &JobMap) {
        for &slot in map.slots() {
            match map.outer(slot) {
                Some(outer) => drop(self.outer.insert(slot, outer)),
                None => drop(self.outer.remove(&slot)),
            }
        }
    }

    /// A process of a job was seen on a GPU.
    pub fn see(&mut self, slot: Option<u32>, index: usize, cells: &[i64], at_ns: i64) {
        if let Some(slot) = slot.filter(|_| cells[process::UTILIZATION] > 0) {
            self.used_ns.insert((slot, index), at_ns);
        }
        if cells[process::OPEN] == 1 {
            let jobs = std::iter::successors(slot, |slot| self.outer.get(slot).copied());
            self.opened.extend(jobs.map(|slot| (slot, index)));
        }
    }

    /// Whether the job was given the GPU, and the source of that.
    fn given(&self, devices: &Devices, slot: u32, index: usize) -> Option<&'static str> {
        // What is cut into parts is held by its parts.
        let holdings = self.holdings.get(&slot).filter(|_| !devices[index].has_parts)?;
        holdings.iter().find_map(|holding| self.given_by(devices, holding, slot, index))
    }

    fn given_by(
        &self,
        devices: &Devices,
        holding: &Holding,
        slot: u32,
        index: usize,
    ) -> Option<&'static str> {
        let gpu = &devices[index];
        let named = || holding.includes(gpu.named(), devices.numbered_vendor());
        if !holding.is_doubtful() || !devices.models_differ || gpu.labels[label::VENDOR] != vendor::NVIDIA {
            return named().then_some(holding.source);
        }
        // Which GPU a number means is known when the job has opened it.
        let mut opened = self.opened.range((slot, 0)..=(slot, usize::MAX));
        if opened.any(|&(_, opened)| devices[opened].labels[label::VENDOR] == vendor::NVIDIA) {
            return self.opened.contains(&(slot, index)).then_some("CUDA_VISIBLE_DEVICES (as opened)");
        }
        named().then_some("CUDA_VISIBLE_DEVICES (order unknown)")
    }

    /// The same, for it or for a job inside it.
    pub fn held_by(&self, devices: &Devices, slot: u32, index: usize) -> Option<&'static str> {
        let inside = || self.inside(slot).find_map(|inner| self.given(devices, inner, index));
        self.given(devices, slot, index).or_else(inside)
    }

    /// Whether `inner` is the job or one inside it.
    pub fn is_within(&self, inner: Option<u32>, slot: u32) -> bool {
        let mut around = std::iter::successors(inner, |slot| self.outer.get(slot).copied());
        around.any(|around| around == slot)
    }

    /// The jobs inside one.
    pub fn inside(&self, slot: u32) -> impl Iterator<Item = u32> {
        let inner = self.outer.keys().copied().filter(move |&inner| inner != slot);
        inner.filter(move |&inner| self.is_within(Some(inner), slot))
    }

    /// What jobs and others claim of one GPU or part.
    pub fn claim(&self, devices: &Devices, index: usize, map: &JobMap, claims: &mut Vec<Claim>) {
        let gpu = &devices[index];
        // Sorted by `who`, for a binary search.
        let mut by_who: BTreeMap<Option<u32>, Claim> = BTreeMap::new();
        let put =
            |by_who: &mut BTreeMap<_, _>, who: Option<u32>, active: u64, held: u64, activity: Activity| {
                let claim: &mut Claim =
                    by_who.entry(who).or_insert(Claim { who, active: 0, held: 0, activity });
                claim.active += active;
                claim.held = claim.held.max(held);
                if activity == Activity::Active {
                    claim.activity = activity;
                }
            };
        for presence in &gpu.present {
            let open = presence.cells[process::OPEN] != 0;
            let is_idle = open && presence.cells[process::UTILIZATION] == 0;
            let activity = if is_idle { Activity::Idle } else { Activity::Active };
            put(&mut by_who, presence.slot, gpu.activity(presence), u64::from(open), activity);
        }
        let is_given = |&slot: &u32| self.given(devices, slot, index).is_some();
        let given: Vec<u32> = map.slots().iter().copied().filter(is_given).collect();
        for &slot in &given {
            // A job inside another one holds for both.
            let inside = |&inner: &u32| inner != slot && self.is_within(Some(inner), slot);
            if self.outer.is_empty() || !given.iter().any(inside) {
                // Nothing is known of a job without a process here.
                let activity = by_who.get(&Some(slot)).map_or(Activity::Active, |claim| claim.activity);
                put(&mut by_who, Some(slot), 0, 1, activity);
            }
        }
        claims.extend(by_who.into_values());
    }

    /// Whether a job without a listed process on the GPU is known to have none there.
    pub fn knows_who(&self, devices: &Devices, slot: u32, index: usize, at_ns: i64) -> bool {
        let gpu = &devices[index];
        // A driver that does not list the processes on the GPU does not say that there are none.
        let is_listed = gpu.labels[label::VENDOR] != vendor::NVIDIA
            || gpu.parent.is_some()
            || gpu.cells[device::PROCESSES] != MISSING;
        // Nor does a list from before the job began, nor an empty one while the GPU computes.
        let age_ns = gpu.cells[device::LIST_AGE];
        let is_old =
            age_ns != MISSING && self.began_ns.get(&slot).is_some_and(|&began_ns| at_ns - age_ns < began_ns);
        let computes = gpu.cells[device::UTILIZATION] != MISSING && gpu.cells[device::UTILIZATION] > 0;
        let is_explained = gpu.present.iter().any(|presence| presence.cells[process::OPEN] != 0);
        let is_behind = age_ns != MISSING && computes && !is_explained;
        is_listed && !is_old && !is_behind
    }

    /// The job has left. The jobs inside it are inside the one around it.
    pub fn leave(&mut self, slot: u32) {
        let around = self.outer.remove(&slot);
        for outer in self.outer.values_mut().filter(|outer| **outer == slot) {
            *outer = around.unwrap_or(slot);
        }
        self.outer.retain(|_, outer| *outer != slot);
        self.holdings.remove(&slot);
        self.joined.retain(|(owner, _)| *owner != slot);
        self.began_ns.remove(&slot);
        self.opened.retain(|(owner, _)| *owner != slot);
        self.used_ns.retain(|&(user, _), _| user != slot);
    }
}
