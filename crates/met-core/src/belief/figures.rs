//! Which of two figures of one job is believed.

use crate::energy;
use crate::job::QualityKind::{Estimated, LowerBound, Measured, Sampled};
use crate::job::{EnergySource, GpuUse, QualityKind, Totals};
use crate::job_table::*;

/// What a ledger charges a job. It is written while the job runs, too, in case its end is not observed.
pub const CHARGED: [usize; 9] = {
    let [a, b, c, d, e, f, g] = energy::COLUMNS;
    [GPU_ENERGY, GPU_ENERGY_IDLE, a, b, c, d, e, f, g]
};

/// What only samples know of a job at its highest. A daemon that leaves writes it for the next one.
pub const SAMPLED_PEAKS: [usize; 5] =
    [MEMORY_NEEDED_PEAK, CORES_PEAK, PROCESSES_PEAK, THREADS_PEAK, GPU_MEMORY_PEAK];

/// User and system time are never more than both together. A clock that counts the sum, and the ticks of which the
/// parts are made, do not begin and end at the same instant, and ticks are 10 ms long.
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
    let source = whole.source.followed_by(", split by /proc");
    totals.set(CPU_USER, user_ns, Estimated, source.clone());
    totals.set(CPU_SYSTEM, whole.value - user_ns, Estimated, source);
}

/// The peak with page cache is never below the memory needed at one time: what one account lacks or counts twice, the
/// other corrects.
pub fn fit_memory_peaks(totals: &mut Totals) {
    let (Some(peak), Some(needed)) =
        (totals.figure(MEMORY_PEAK).cloned(), totals.figure(MEMORY_NEEDED_PEAK).cloned())
    else {
        return;
    };
    if needed.value <= peak.value {
        return;
    }
    // Processes count what they share once each; a cgroup counts it once. A process that left the cgroup is missing
    // there.
    match (peak.kind, needed.kind) {
        (LowerBound, _) => totals.set(MEMORY_PEAK, needed.value, LowerBound, needed.source),
        (_, Estimated) => totals.set(MEMORY_NEEDED_PEAK, peak.value, Estimated, needed.source),
        // It is not better known than where it comes from.
        (_, kind) => totals.set(MEMORY_PEAK, needed.value, kind, needed.source),
    }
}

/// The ledger of the GPUs is believed, not samples of the job: it looks more often.
pub fn set_gpu_totals(totals: &mut Totals, gpus: &[GpuUse], before_uj: (i64, i64)) {
    set_gpu_energy(totals, gpus, before_uj);
    // What a job holds of one GPU it holds of all.
    let peak = gpus.iter().filter_map(|gpu| gpu.memory_peak_bytes).max();
    if let Some(peak) = peak.filter(|&peak| totals.get(GPU_MEMORY_PEAK).is_none_or(|known| known < peak)) {
        totals.set(GPU_MEMORY_PEAK, peak, Sampled, "cards");
    }
}

fn set_gpu_energy(totals: &mut Totals, gpus: &[GpuUse], before_uj: (i64, i64)) {
    totals.remove(GPU_ENERGY);
    totals.remove(GPU_ENERGY_IDLE);
    let Some(worst) = gpus.iter().filter_map(|gpu| gpu.energy_kind).max_by_key(|kind| rank(*kind)) else {
        // The job has no GPU now: what it was charged before stays charged.
        if before_uj.0 > 0 {
            totals.set(GPU_ENERGY, before_uj.0, LowerBound, "samples");
            totals.set(GPU_ENERGY_IDLE, before_uj.1, LowerBound, "samples");
        }
        return;
    };
    // Few texts: which part each GPU's counter measures is shown with the GPU.
    let sources = || gpus.iter().filter_map(|gpu| gpu.energy_source.as_ref());
    let has_power = sources().any(EnergySource::has_power);
    let source = match sources().any(EnergySource::has_counter) {
        true if has_power => EnergySource::Both { counted_percent: None },
        true => EnergySource::Counter,
        false => EnergySource::Power,
    };
    let source = source.text().into_owned();
    let energy_uj: i64 = gpus.iter().map(GpuUse::energy_uj).sum();
    let idle_uj: i64 = gpus.iter().map(|gpu| gpu.energy_idle_uj).sum();
    totals.set(GPU_ENERGY, before_uj.0 + energy_uj, worst, source.clone());
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
    fn the_peak_with_cache_is_never_below_the_memory_needed() {
        use QualityKind::Sampled;
        let fitted = |peak: (i64, QualityKind), needed: (i64, QualityKind)| {
            let mut totals = Totals::default();
            totals.set(MEMORY_PEAK, peak.0, peak.1, "cgroup");
            totals.set(MEMORY_NEEDED_PEAK, needed.0, needed.1, "/proc/PID/statm");
            fit_memory_peaks(&mut totals);
            [MEMORY_PEAK, MEMORY_NEEDED_PEAK]
                .map(|column| totals.figure(column).map(|figure| (figure.value, figure.kind)).unwrap())
        };
        let source = |peak: QualityKind, needed: QualityKind| {
            let mut totals = Totals::default();
            totals.set(MEMORY_PEAK, 4, peak, "cgroup");
            totals.set(MEMORY_NEEDED_PEAK, 5, needed, "/proc/PID/statm");
            fit_memory_peaks(&mut totals);
            totals.figure(MEMORY_PEAK).map(|figure| figure.source.to_string()).unwrap()
        };
        assert_eq!(fitted((9, Measured), (5, Estimated)), [(9, Measured), (5, Estimated)]);
        assert_eq!(fitted((4, LowerBound), (5, Estimated)), [(5, LowerBound), (5, Estimated)]);
        assert_eq!(fitted((4, Measured), (5, Estimated)), [(4, Measured), (4, Estimated)]);
        assert_eq!(fitted((4, Sampled), (5, Sampled)), [(5, Sampled), (5, Sampled)]);
        // A value that was sampled does not become measured, nor that of a cgroup.
        assert_eq!(fitted((4, Measured), (5, Sampled)), [(5, Sampled), (5, Sampled)]);
        assert_eq!(fitted((4, Measured), (5, LowerBound)), [(5, LowerBound), (5, LowerBound)]);
        assert_eq!(source(Measured, Sampled), "/proc/PID/statm");
        assert_eq!(source(Measured, Estimated), "cgroup");
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
        assert_eq!(
            (user.kind, user.source.to_string().as_str()),
            (Estimated, "perf task-clock, split by /proc")
        );
        assert_eq!(totals.figure(CPU).unwrap().kind, Measured);
    }

    #[test]
    fn what_is_known_of_the_parts_raises_a_whole_that_is_a_lower_bound() {
        let totals = totals_of((100, LowerBound), 90, 30);
        assert_eq!((totals.get(CPU), totals.get(CPU_USER)), (Some(120), Some(90)));
        assert_eq!(totals.figure(CPU).unwrap().kind, LowerBound);
    }

    #[test]
    fn the_peak_of_gpu_memory_is_never_below_that_of_one_of_its_gpus() {
        let of = |peak| GpuUse { memory_peak_bytes: peak, ..GpuUse::default() };
        let peak_after = |before: Option<i64>, gpus: &[GpuUse]| {
            let mut totals = Totals::default();
            if let Some(before) = before {
                totals.set(GPU_MEMORY_PEAK, before, Sampled, "cards");
            }
            set_gpu_totals(&mut totals, gpus, (0, 0));
            totals.get(GPU_MEMORY_PEAK)
        };
        assert_eq!(peak_after(Some(832), &[of(Some(1067)), of(Some(3))]), Some(1067));
        assert_eq!(peak_after(Some(2000), &[of(Some(1067)), of(Some(1000))]), Some(2000), "of both together");
        assert_eq!((peak_after(None, &[of(Some(7))]), peak_after(None, &[of(None)])), (Some(7), None));
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
