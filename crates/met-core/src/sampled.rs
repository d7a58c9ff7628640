//! Totals by what was sampled.

use crate::ended::{INHERITED, OWN};
use crate::job::QualityKind::{Estimated, LowerBound, Measured, Sampled as SampledKind};
use crate::job::{GpuUse, QualityKind, Totals};
use crate::job_table::*;

use crate::running::Running;

/// Where memory is read of a job without a cgroup.
pub const STATM: &str = "/proc/PID/statm";
/// Of a job with a network namespace of its own.
pub const OF_NETWORK: [usize; 2] = [NETWORK_RECEIVED, NETWORK_SENT];

/// What decides how good a job's samples are.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Counters have a history before the job began.
    pub attached: bool,
    pub counts_cpu: bool,
    pub counts_memory: bool,
    /// A supervisor reaps its processes.
    pub kept: bool,
    /// A living process of it does not show its I/O.
    pub hides_io: bool,
}

/// What comes from `/proc/PID/io` alone.
pub const OF_IO: [usize; 6] = [READ, WRITTEN, READ_CALL, WRITE_CALL, READ_CALLS, WRITE_CALLS];

/// Whether the counter of a job with a process that hides its I/O is unknown, though the other processes have a sum.
pub fn is_unknown_io(column: usize, value: i64) -> bool {
    value == 0 && OF_IO.contains(&column)
}

/// What samples say: counters as last read, levels at their highest.
pub fn totals(running: &Running, profile: Profile) -> Totals {
    let mut totals = Totals::default();
    let counters = if profile.counts_cpu { "cgroup" } else { "/proc" };
    for (column, value) in running.counters(profile.attached) {
        let is_hidden = profile.hides_io && OF_IO.contains(&column);
        if is_hidden && is_unknown_io(column, value) {
            continue;
        }
        let source = match column {
            SWITCHES_VOLUNTARY | SWITCHES_INVOLUNTARY | DELAY_IO | DELAY_MEMORY => "taskstats",
            CPU | CPU_USER | CPU_SYSTEM => counters,
            _ if INHERITED.contains(&column) || OWN.contains(&column) => "/proc",
            _ => counters,
        };
        totals.set(column, value, if is_hidden { LowerBound } else { SampledKind }, source);
    }
    // A network may be older than the job: what it did since it was first looked at is the job's at least.
    for (column, value) in running.counters(true).filter(|(column, _)| OF_NETWORK.contains(column)) {
        totals.set(column, value, LowerBound, "/proc/PID/net/dev");
    }
    if let Some(peak) = running.maximum(MEMORY_NEEDED) {
        match profile.counts_memory {
            true => totals.set(MEMORY_NEEDED_PEAK, peak, SampledKind, "cgroup"),
            false => totals.set(MEMORY_NEEDED_PEAK, peak, Estimated, STATM),
        }
    }
    // The kernel's own peak is read at slow ticks only; meanwhile the samples may know better.
    if let Some(peak) = running.maximum(MEMORY_PEAK) {
        let peak = peak.max(running.maximum(MEMORY_NEEDED).unwrap_or(0));
        totals.set(MEMORY_PEAK, peak, SampledKind, "cgroup");
    }
    for (level, peak) in [(PROCESSES_RUNNING, PROCESSES_PEAK), (THREADS_RUNNING, THREADS_PEAK)] {
        if let Some(value) = running.maximum(level) {
            totals.set(peak, value, SampledKind, "/proc");
        }
    }
    if let Some(cores) = running.peak_cores() {
        totals.set(CORES_PEAK, (cores * 1000.0).round() as i64, SampledKind, counters);
    }
    if let Some(peak) = running.maximum(GPU_MEMORY) {
        totals.set(GPU_MEMORY_PEAK, peak, SampledKind, "cards");
    }
    fit_cpu_parts(&mut totals);
    totals
}

/// User and system time are never more than both together. A clock that counts the sum, and the ticks of which the
/// parts are made, do not begin and end at the same instant, and the kernel tells ticks of 10 ms.
pub fn fit_cpu_parts(totals: &mut Totals) {
    let (Some(whole), Some(user), Some(system)) =
        (totals.figure(CPU).cloned(), totals.get(CPU_USER), totals.get(CPU_SYSTEM))
    else {
        return;
    };
    let parts_ns = user.saturating_add(system);
    if parts_ns <= whole.value {
        return;
    }
    if whole.kind != Measured {
        // What is known of the parts is known of the whole.
        return totals.set(CPU, parts_ns, whole.kind, whole.source);
    }
    let user_ns = (i128::from(whole.value) * i128::from(user) / i128::from(parts_ns)) as i64;
    let source = format!("{}, split by /proc", whole.source);
    totals.set(CPU_USER, user_ns, Estimated, source.clone());
    totals.set(CPU_SYSTEM, whole.value - user_ns, Estimated, source);
}

/// The ledger of the cards knows better than samples what a job is charged.
pub fn set_gpu_energy(totals: &mut Totals, gpus: &[GpuUse], before_uj: (i64, i64)) {
    totals.remove(GPU_ENERGY);
    totals.remove(GPU_ENERGY_IDLE);
    let Some(worst) = gpus.iter().filter_map(|gpu| gpu.energy_kind).max_by_key(|kind| rank(*kind)) else {
        // No card any more, for whatever reason: what it was charged before, it was charged.
        if before_uj.0 > 0 {
            totals.set(GPU_ENERGY, before_uj.0, LowerBound, "samples");
            totals.set(GPU_ENERGY_IDLE, before_uj.1, LowerBound, "samples");
        }
        return;
    };
    // Few texts: which part of it each card's counter stands for is said with the card.
    let says =
        |words: &str| gpus.iter().filter_map(|gpu| gpu.energy_source.as_deref()).any(|s| s.contains(words));
    let source = match (says("counter"), says("integral")) {
        (true, true) => "energy counter, integral of power",
        (true, false) => "energy counter",
        (false, _) => "integral of power",
    };
    let energy_uj: i64 = gpus.iter().map(GpuUse::energy_uj).sum();
    let idle_uj: i64 = gpus.iter().map(|gpu| gpu.energy_idle_uj).sum();
    totals.set(GPU_ENERGY, before_uj.0 + energy_uj, worst, source);
    totals.set(GPU_ENERGY_IDLE, before_uj.1 + idle_uj, worst, source);
}

fn rank(kind: QualityKind) -> Option<usize> {
    QualityKind::ALL.iter().position(|&known| known == kind)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn totals_of(cpu: (i64, QualityKind), user: i64, system: i64) -> Totals {
        let mut totals = Totals::default();
        totals.set(CPU, cpu.0, cpu.1, "perf task-clock");
        totals.set(CPU_USER, user, LowerBound, "/proc");
        totals.set(CPU_SYSTEM, system, LowerBound, "/proc");
        fit_cpu_parts(&mut totals);
        totals
    }

    #[test]
    fn parts_that_fit_stay_as_they_are() {
        let totals = totals_of((100, Measured), 70, 30);
        assert_eq!((totals.get(CPU_USER), totals.get(CPU_SYSTEM)), (Some(70), Some(30)));
        assert_eq!(totals.figure(CPU_USER).unwrap().kind, LowerBound);
    }

    #[test]
    fn ticks_above_a_clock_that_was_measured_only_divide_it() {
        let totals = totals_of((100, Measured), 90, 30);
        assert_eq!((totals.get(CPU_USER), totals.get(CPU_SYSTEM)), (Some(75), Some(25)));
        let user = totals.figure(CPU_USER).unwrap();
        assert_eq!((user.kind, &*user.source), (Estimated, "perf task-clock, split by /proc"));
        assert_eq!(totals.figure(CPU).unwrap().kind, Measured);
    }

    #[test]
    fn what_is_known_of_the_parts_raises_a_whole_that_is_a_lower_bound() {
        let totals = totals_of((100, LowerBound), 90, 30);
        assert_eq!((totals.get(CPU), totals.get(CPU_USER)), (Some(120), Some(90)));
        assert_eq!(totals.figure(CPU).unwrap().kind, LowerBound);
    }

    proptest! {
        #[test]
        fn user_and_system_never_exceed_the_whole(
            cpu in 0..i64::MAX / 2, user in 0..i64::MAX / 4, system in 0..i64::MAX / 4, measured: bool,
        ) {
            let totals = totals_of((cpu, if measured { Measured } else { LowerBound }), user, system);
            let part = |column| totals.get(column).unwrap();
            prop_assert!(part(CPU_USER) >= 0 && part(CPU_SYSTEM) >= 0);
            prop_assert!(part(CPU_USER) + part(CPU_SYSTEM) <= part(CPU));
        }
    }
}
