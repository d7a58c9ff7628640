//! Whose the energy of a GPU is: what each job claims of it at a look.

use super::devices::{Devices, Gpu};
use super::holders::Holders;
use super::processes::{Presence, Processes};
use crate::MISSING;
use crate::attribute::JobMap;
use crate::gpu::{device, process};
use crate::gpu_ledger::{Activity, Claim, Look};

/// A slice in the units in which parts are shared.
const SLICE: u64 = 5040;
/// Noise in a GPU's utilisation: unexplained computing below this is unassigned.
const NOISE_THOUSANDTHS: u64 = 50;

/// Splits the GPU's energy among those who use and hold it, or who use and hold its parts.
pub(super) fn charge(
    devices: &mut Devices,
    holders: &Holders,
    processes: &Processes,
    index: usize,
    map: &JobMap,
    (at_ns, gap_ns): (i64, i64),
) {
    devices[index].open_since_ns = devices[index].ledger.open_since_ns();
    let mut claims = std::mem::take(&mut devices[index].claims);
    claims.clear();
    let mut unseen = false;
    if devices.parts(index, at_ns).next().is_none() {
        holders.claim(devices, index, map, &mut claims);
        unseen = devices[index].claim_unseen(&mut claims) && !adopt_unseen(holders, index, &mut claims);
    }
    for part in devices.parts(index, at_ns) {
        let first = claims.len();
        holders.claim(devices, part, map, &mut claims);
        share_slices(&mut claims[first..], devices[part].cells[device::SLICES].max(1) as u64);
    }
    let gpu = &mut devices[index];
    let read_ns = |column: usize| (gpu.cells[column] != MISSING).then(|| at_ns - gpu.cells[column]);
    let (pass_ns, use_ns) = (read_ns(device::PASS_AGE), read_ns(device::USE_AGE));
    let use_before_ns = gpu.ledger.use_read_ns();
    if use_ns.is_some_and(|use_ns| use_ns > use_before_ns) {
        // Of a job that had a process since the reading before that is gone now, what the others did is not all.
        for claim in claims.iter_mut().filter(|claim| claim.activity == Activity::Idle) {
            if processes.has_lost(claim.who, use_before_ns, at_ns) {
                claim.activity = Activity::IdleButEnded;
            }
        }
    }
    gpu.ledger.look(&Look {
        at_ns,
        power_mw: gpu.cells[device::POWER],
        power_limit_mw: gpu.cells[device::POWER_LIMIT],
        utilization: gpu.cells[device::UTILIZATION],
        pass_ns,
        counter_uj: gpu.cells[device::ENERGY],
        use_ns,
        claims: &claims,
        unseen,
        slices: if gpu.has_parts { gpu.cells[device::SLICES].max(0) as u64 * SLICE } else { 0 },
        joined: &holders.joined,
        gap_ns,
    });
    let sum = |of: fn(&Claim) -> u64| claims.iter().map(of).sum::<u64>();
    gpu.claimed = (sum(|claim| claim.active), sum(|claim| claim.held));
    gpu.claims = claims;
}

/// What a GPU computes while no process has it open is of the job that alone holds it and computed there lately: of
/// processes that come and go between two lists. Whether there is such a job.
fn adopt_unseen(holders: &Holders, index: usize, claims: &mut Vec<Claim>) -> bool {
    let mut holding = claims.iter().filter(|claim| claim.held > 0).filter_map(|claim| claim.who);
    let Some(holder) = holding.next().filter(|_| holding.next().is_none()) else { return false };
    let Some(unseen) = claims.iter().position(|claim| claim.who.is_none()) else { return false };
    if !holders.used_ns.contains_key(&(holder, index)) {
        return false;
    }
    let active = claims.remove(unseen).active;
    put_active(claims, Some(holder), active);
    true
}

/// The job's part of the GPU's power at this moment.
pub(super) fn power_share(devices: &Devices, holders: &Holders, slot: u32, index: usize) -> i64 {
    let gpu = &devices[devices.whole(index)];
    let power_mw = gpu.cells[device::POWER];
    if power_mw == MISSING {
        return MISSING;
    }
    // Most jobs have one claim at most.
    let claims = &gpu.claims;
    let alone = holders.outer.is_empty() && !gpu.has_parts;
    let found = claims.binary_search_by_key(&Some(slot), |claim| claim.who).ok().filter(|_| alone);
    let mine = match (alone, found) {
        (true, found) => found.map_or(&[][..], |at| &claims[at..=at]),
        (false, _) => claims,
    };
    let own = |of: fn(&Claim) -> u64| {
        mine.iter().filter(|claim| holders.is_within(claim.who, slot)).map(of).sum::<u64>() as f64
    };
    let (active, held) = (gpu.claimed.0 as f64, gpu.claimed.1.max(1) as f64);
    let power = power_mw as f64;
    let idle = if active > 0.0 { gpu.ledger.idle_mw().unwrap_or(0) as f64 } else { power }.min(power);
    let busy = if active > 0.0 { (power - idle) * own(|claim| claim.active) / active } else { 0.0 };
    let slices = if gpu.has_parts { (gpu.cells[device::SLICES].max(1) * SLICE as i64) as f64 } else { held };
    (busy + idle * own(|claim| claim.held) / slices.max(held)).round() as i64
}

impl Gpu {
    /// The GPU computes, but none of the jobs with known activity do: the energy does not belong to mere holders.
    /// Returns whether no known job could have computed.
    fn claim_unseen(&self, claims: &mut Vec<Claim>) -> bool {
        let Ok(busy) = u64::try_from(self.cells[device::UTILIZATION]) else { return false };
        let active: u64 = claims.iter().map(|claim| claim.active).sum();
        let open = || self.present.iter().filter(|presence| presence.cells[process::OPEN] != 0);
        let all_known = || open().all(|presence| presence.cells[process::UTILIZATION] != MISSING);
        if self.hides_others() && all_known() {
            if busy > active + NOISE_THOUSANDTHS {
                put_active(claims, None, busy - active);
            }
        } else if busy > 0 && active == 0 {
            if open().next().is_none() {
                put_active(claims, None, busy);
                return true;
            }
            open().for_each(|presence| put_active(claims, presence.slot, 1));
        }
        false
    }

    /// How much a process computed, compared with the others on the GPU.
    pub(super) fn activity(&self, presence: &Presence) -> u64 {
        let open = presence.cells[process::OPEN] != 0;
        let known = self.present.iter().map(|other| other.cells[process::UTILIZATION]);
        let known = known.filter(|&utilization| utilization != MISSING);
        let (sum, count) =
            known.fold((0i64, 0i64), |(sum, count), used| (sum.saturating_add(used), count + 1));
        let is_unknown = |presence: &&Presence| {
            presence.cells[process::OPEN] != 0 && presence.cells[process::UTILIZATION] == MISSING
        };
        match presence.cells[process::UTILIZATION] {
            // Here it does not depend on when they came: what others do not report is theirs.
            MISSING
                if count > 0 && open && self.hides_others() && self.cells[device::UTILIZATION] != MISSING =>
            {
                let rest = self.cells[device::UTILIZATION].saturating_sub(sum);
                let unknown = self.present.iter().filter(is_unknown).count().max(1) as i64;
                return u64::try_from(rest / unknown).unwrap_or(0);
            }
            MISSING if count > 0 && open && presence.young => {
                // Newer than the last expensive reading: until the next it is treated like the others.
                return u64::try_from(sum / count).unwrap_or(0);
            }
            MISSING if count > 0 => return 0,
            MISSING => {}
            used => return u64::try_from(used).unwrap_or(0),
        }
        // They cannot be separated: if the GPU computes, or does not say, they share its energy.
        u64::from(open && self.cells[device::UTILIZATION] != 0)
    }
}

fn put_active(claims: &mut Vec<Claim>, who: Option<u32>, active: u64) {
    match claims.iter_mut().find(|claim| claim.who == who) {
        Some(claim) => claim.active += active,
        None => {
            let at = claims.partition_point(|claim| claim.who < who);
            claims.insert(at, Claim { who, active, held: 0, activity: Activity::Active });
        }
    }
}

/// A part counts by its slices, however many processes are on it: the jobs that compute on it and hold it
/// divide them.
fn share_slices(claims: &mut [Claim], slices: u64) {
    let active: u64 = claims.iter().map(|claim| claim.active).sum();
    let holders = claims.iter().filter(|claim| claim.held > 0).count() as u64;
    for claim in claims {
        if claim.active > 0 {
            let share = u128::from(claim.active) * u128::from(slices * SLICE) / u128::from(active);
            claim.active = u64::try_from(share).unwrap_or(u64::MAX).max(1);
        }
        claim.held = if claim.held > 0 { slices * SLICE / holders } else { 0 };
    }
}
