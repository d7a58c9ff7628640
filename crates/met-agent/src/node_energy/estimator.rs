//! What a machine without a meter has probably used.

use std::cell::OnceCell;

use met_core::energy::Scope;
use met_core::energy::estimate::Estimate;
use met_host::Host;

use super::machine::estimate_of;

pub(super) struct Estimator {
    host: Host,
    /// Made when it is needed: a table is searched for it.
    estimate: OnceCell<Estimate>,
    cpu_uj: u64,
    memory_uj: u64,
}

impl Estimator {
    pub(super) fn new(host: &Host) -> Estimator {
        Estimator { host: host.clone(), estimate: OnceCell::new(), cpu_uj: 0, memory_uj: 0 }
    }

    pub(super) fn get(&self) -> &Estimate {
        self.estimate.get_or_init(|| estimate_of(&self.host))
    }

    pub(super) fn cpu_count(&self) -> u64 {
        u64::from(self.host.facts().cpu_count)
    }

    /// Adds what was probably used in a time: `busy_ns` is CPU time of `held_ns` that there was.
    pub(super) fn add(&mut self, busy_ns: u64, held_ns: u64, elapsed_ns: u64) {
        let permille = u128::from(busy_ns) * 1000 / u128::from(held_ns.max(1));
        let (cpu_mw, memory_mw) =
            (self.get().cpu_mw(u64::try_from(permille).unwrap_or(1000)), self.get().memory_mw);
        self.cpu_uj += energy_uj(cpu_mw, elapsed_ns);
        self.memory_uj += energy_uj(memory_mw, elapsed_ns);
    }

    /// All that was estimated so far, as meters.
    pub(super) fn counters(&self) -> [(&'static str, Scope, u64); 2] {
        [
            ("estimate of processors", Scope::Package, self.cpu_uj),
            ("estimate of memory", Scope::Memory, self.memory_uj),
        ]
    }
}

fn energy_uj(power_mw: u64, elapsed_ns: u64) -> u64 {
    u64::try_from(u128::from(power_mw) * u128::from(elapsed_ns) / 1_000_000).unwrap_or(u64::MAX)
}
