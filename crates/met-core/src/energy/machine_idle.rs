//! What a machine uses when idle: configured, learned or assumed.

use super::idle::{IdlePower, LearnedIdle};
use super::line::{CPU, MEMORY, PARTS, REST, Weights};
use super::whole::Whole;
use crate::apportion::apportion;
use crate::job::QualityKind;

#[derive(Debug, Default)]
pub struct MachineIdle {
    /// Of the whole machine without its GPUs, by configuration.
    pub(super) configured_mw: Option<u64>,
    learned: IdlePower,
    /// Of a machine whose idle power is known by part.
    known_mw: Option<[u64; PARTS]>,
    /// Of processors and memory, where nothing better is known.
    assumed_mw: Option<[u64; 2]>,
    /// The parts of the machine in the last window in which its meters agreed.
    usual_uj: Option<[u64; PARTS]>,
}

impl MachineIdle {
    /// What the machine uses when idle, by part, where that need not be learned.
    pub fn know(&mut self, idle_mw: Option<[u64; PARTS]>) {
        self.known_mw = idle_mw;
    }

    /// What processors and memory probably use when idle, until it is known.
    pub fn assume(&mut self, cpu_mw: u64, memory_mw: u64) {
        self.assumed_mw = Some([cpu_mw, memory_mw]);
    }

    /// Whether that is needed, before anything is learned.
    pub fn is_unknown(&self) -> bool {
        let is_known = self.configured_mw.is_some() || self.known_mw.is_some();
        !is_known && self.assumed_mw.is_none() && self.learned.all().next().is_none()
    }

    /// Whether what is learned is of any use.
    pub fn learns(&self) -> bool {
        self.configured_mw.is_none()
    }

    /// What was learned before this ledger began.
    pub fn recall(&mut self, learned: LearnedIdle) {
        self.learned.recall(learned);
    }

    /// What is known, by the meters that showed it.
    pub fn learned(&self) -> impl Iterator<Item = LearnedIdle> {
        self.learned.all()
    }

    /// A window in which all meters agree shows what the machine uses at such a load.
    pub(super) fn learn(&mut self, whole: &Whole, node: &Weights, window_ns: i64, end_ns: i64) {
        self.usual_uj = Some(whole.host_uj());
        if whole.kind == QualityKind::Measured {
            self.learned.learn(&whole.meters, &whole.host_uj(), node, window_ns, end_ns);
        }
    }

    /// What the machine would have used when idle. Of GPUs it is part of their lines.
    pub(super) fn idle_of(&self, whole: &Whole, node: &Weights, window_ns: i64) -> Idle {
        let (host_uj, outer_uj) = (whole.host_uj(), whole.outer_uj().unwrap_or(0));
        let learned = || self.learned_by_part(whole);
        if let Some(idle_mw) = self.configured_mw {
            let all_uj = energy_uj(idle_mw, window_ns);
            // As much of it is of each part as was seen at rest. Before that, by what each part uses; while meters do
            // not agree, by what it used when they last did.
            let usual = learned().or(self.usual_uj.filter(|_| !whole.agrees));
            let split = match usual {
                Some(usual) => {
                    let mut parts = Vec::new();
                    apportion(all_uj, &usual, &mut parts);
                    std::array::from_fn(|part| parts[part].min(host_uj[part]))
                }
                None => split_by(all_uj.min(host_uj.iter().sum()), &host_uj),
            };
            // What a meter that lags does not show yet is not what the machine has at rest.
            let rest_uj = (all_uj - split[CPU] - split[MEMORY]).min(outer_uj);
            let (cpu_uj, memory_uj) = (split[CPU], split[MEMORY]);
            return Idle { cpu_uj, memory_uj, rest_uj, resting_permille: 0, is_assumed: false };
        }
        let known_mw = self.known_mw.or_else(learned);
        let idle_mw = known_mw.unwrap_or_else(|| self.assumed_by_part(whole.metered));
        // Where it is not known, power above the estimate is charged only as far as work was done: otherwise a
        // sleeping job would pay for a machine that idles at more.
        let resting_permille = match known_mw {
            Some(_) => 0,
            None => 1000 - node.load_permille().unwrap_or(1000),
        };
        let mut idle = Idle { resting_permille, is_assumed: known_mw.is_none(), ..Idle::default() };
        let least_uj = |part: usize| energy_uj(idle_mw[part], window_ns);
        idle.cpu_uj = idle.above(least_uj(CPU), host_uj[CPU]);
        idle.memory_uj = idle.above(least_uj(MEMORY), host_uj[MEMORY]);
        idle.rest_uj = least_uj(REST).min(outer_uj);
        idle
    }

    /// What these meters have shown. Where they have not, what the same meter of the node has shown together with those
    /// of processors or memory that are away now: these are in the rest meanwhile.
    fn learned_by_part(&self, whole: &Whole) -> Option<[u64; PARTS]> {
        let of = |meters: &str| self.learned.of(meters).map(|learned| learned.idle_mw);
        let with = |parts: &[usize]| {
            let mut metered = whole.metered;
            parts.iter().for_each(|&part| metered[part] = true);
            let mut idle_mw = of(&whole.set_of_meters(metered)).filter(|_| whole.outer.is_some())?;
            for part in [CPU, MEMORY].into_iter().filter(|&part| !whole.metered[part]) {
                idle_mw[REST] = idle_mw[REST].saturating_add(std::mem::take(&mut idle_mw[part]));
            }
            Some(idle_mw)
        };
        of(&whole.meters).or_else(|| [&[CPU, MEMORY][..], &[CPU], &[MEMORY]].into_iter().find_map(with))
    }

    /// Processors and memory without meters of their own are in the rest, if there is one for that.
    fn assumed_by_part(&self, metered: [bool; PARTS]) -> [u64; PARTS] {
        let mut idle_mw = [0; PARTS];
        let assumed_mw = self.assumed_mw.unwrap_or_default();
        for (part, mw) in [CPU, MEMORY].into_iter().zip(assumed_mw) {
            idle_mw[if metered[part] { part } else { REST }] += mw;
        }
        idle_mw
    }
}

/// What a machine uses when idle, in one window.
#[derive(Clone, Copy, Default)]
pub(super) struct Idle {
    pub cpu_uj: u64,
    pub memory_uj: u64,
    pub rest_uj: u64,
    /// How much of what is above it counts as idle, too.
    resting_permille: u64,
    pub is_assumed: bool,
}

impl Idle {
    /// The idle part of an amount, if at least this much is idle.
    pub fn above(&self, least_uj: u64, all_uj: u64) -> u64 {
        let least_uj = least_uj.min(all_uj);
        let above_uj = u128::from(all_uj - least_uj) * u128::from(self.resting_permille) / 1000;
        least_uj + u64::try_from(above_uj).unwrap_or(0)
    }
}

fn split_by(whole_uj: u64, weights: &[u64; PARTS]) -> [u64; PARTS] {
    let mut parts = Vec::new();
    apportion(whole_uj, weights, &mut parts);
    std::array::from_fn(|part| parts[part].min(weights[part]))
}

fn energy_uj(power_mw: u64, window_ns: i64) -> u64 {
    let uj = u128::from(power_mw) * u128::from(window_ns.unsigned_abs()) / 1_000_000;
    u64::try_from(uj).unwrap_or(u64::MAX)
}
