//! Two looks at one job's use of a GPU, one after the other, as one.

use crate::job::{EnergySource, GpuUse, QualityKind};

impl GpuUse {
    /// Merges `earlier` with this, which began after the earlier one was forgotten. Means are weighted by the time
    /// each of them saw.
    pub fn after(&self, earlier: &GpuUse) -> GpuUse {
        let (before, now) = (earlier, self);
        let mean = |one: Option<f64>, other: Option<f64>| weighted(one, before.held_ns, other, now.held_ns);
        // Where only one of them knows for how long its use was read, that is not known of both.
        let known = before.known_ns.zip(now.known_ns);
        GpuUse {
            held_since_ns: before.held_since_ns.or(now.held_since_ns),
            // Idle all the time since: it idles since then.
            idle_since_ns: match (now.idle_since_ns, before.idle_since_ns) {
                (Some(_), Some(since_ns)) if now.used_ns == 0 => Some(since_ns),
                (since_ns, _) => since_ns,
            },
            held_ns: before.held_ns + now.held_ns,
            paid_ns: before.paid_ns.max(before.held_ns) + now.paid_ns.max(now.held_ns),
            used_ns: before.used_ns + now.used_ns,
            known_ns: known.map(|(before_ns, now_ns)| before_ns + now_ns),
            utilization: match known {
                Some((before_ns, now_ns)) => weighted(before.utilization, before_ns, now.utilization, now_ns),
                None => mean(before.utilization, now.utilization),
            },
            gpu_utilization: mean(before.gpu_utilization, now.gpu_utilization),
            encoder: mean(before.encoder, now.encoder),
            decoder: mean(before.decoder, now.decoder),
            copy: mean(before.copy, now.copy),
            memory_mean_bytes: mean(before.memory_mean_bytes, now.memory_mean_bytes),
            memory_peak_bytes: before.memory_peak_bytes.max(now.memory_peak_bytes),
            memory_total_bytes: now.memory_total_bytes.or(before.memory_total_bytes),
            energy_active_uj: before.energy_active_uj + now.energy_active_uj,
            energy_idle_uj: before.energy_idle_uj + now.energy_idle_uj,
            energy_kind: worst(before.energy_kind, now.energy_kind),
            energy_source: both_sources(before, now),
            idle_power_mw: now.idle_power_mw.or(before.idle_power_mw),
            idle_power_source: now.idle_power_source.clone().or_else(|| before.idle_power_source.clone()),
            gpu_power_mw: mean(before.gpu_power_mw, now.gpu_power_mw),
            temperature_max_mc: before.temperature_max_mc.max(now.temperature_max_mc),
            clock_mean_mhz: mean(before.clock_mean_mhz, now.clock_mean_mhz),
            clock_max_mhz: before.clock_max_mhz.max(now.clock_max_mhz),
            throttled: all_words(&before.throttled, &now.throttled),
            throttled_ns: sum(before.throttled_ns, now.throttled_ns),
            ecc_corrected: sum(before.ecc_corrected, now.ecc_corrected),
            ecc_uncorrected: sum(before.ecc_uncorrected, now.ecc_uncorrected),
            faults: sum(before.faults, now.faults),
            fault_last: now.fault_last.or(before.fault_last),
            pcie_received_rate: mean(before.pcie_received_rate, now.pcie_received_rate),
            pcie_sent_rate: mean(before.pcie_sent_rate, now.pcie_sent_rate),
            sm_activity: mean(before.sm_activity, now.sm_activity),
            tensor_activity: mean(before.tensor_activity, now.tensor_activity),
            memory_bandwidth: mean(before.memory_bandwidth, now.memory_bandwidth),
            processes: before.processes.max(now.processes),
            ..now.clone()
        }
    }
}

/// The GPUs of a job: those that `earlier` knows go on in `now`, the others are as either says.
pub fn together(earlier: &[GpuUse], now: Vec<GpuUse>) -> Vec<GpuUse> {
    if earlier.is_empty() {
        return now;
    }
    let mut all: Vec<GpuUse> = earlier.to_vec();
    for usage in now {
        match all.iter_mut().find(|before| before.uuid == usage.uuid) {
            Some(before) => *before = usage.after(before),
            None => all.push(usage),
        }
    }
    all.sort_by_key(|usage| {
        let mut numbers = usage.index.split('.').map(|number| number.parse().unwrap_or(u32::MAX));
        (usage.vendor.clone(), numbers.next(), numbers.next())
    });
    all
}

fn weighted(one: Option<f64>, one_ns: i64, other: Option<f64>, other_ns: i64) -> Option<f64> {
    let (Some(one), Some(other)) = (one, other) else { return one.or(other) };
    let (one_ns, other_ns) = (one_ns.max(0) as f64, other_ns.max(0) as f64);
    let whole_ns = one_ns + other_ns;
    Some(if whole_ns > 0.0 { (one * one_ns + other * other_ns) / whole_ns } else { other })
}

fn sum(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}

fn worst(one: Option<QualityKind>, other: Option<QualityKind>) -> Option<QualityKind> {
    let rank = |kind: &QualityKind| QualityKind::ALL.iter().position(|known| known == kind);
    one.into_iter().chain(other).max_by_key(rank)
}

fn both_sources(before: &GpuUse, now: &GpuUse) -> Option<EnergySource> {
    match (&before.energy_source, &now.energy_source) {
        (Some(before), Some(now)) => Some(before.with(now)),
        (before, now) => now.clone().or_else(|| before.clone()),
    }
}

fn all_words(one: &[String], other: &[String]) -> Vec<String> {
    let mut words = one.to_vec();
    words.extend(other.iter().filter(|word| !one.contains(word)).cloned());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: i64 = 1_000_000_000;

    fn usage(held_s: i64, used_s: i64, utilization: f64) -> GpuUse {
        GpuUse {
            uuid: "GPU-a".into(),
            index: "0".into(),
            held_since_ns: Some(5),
            idle_since_ns: (used_s == 0).then_some(7),
            held_ns: held_s * SECOND_NS,
            used_ns: used_s * SECOND_NS,
            utilization: Some(utilization),
            memory_peak_bytes: Some(held_s),
            energy_active_uj: 10,
            energy_kind: Some(QualityKind::Measured),
            energy_source: Some(EnergySource::Counter),
            throttled: vec!["power cap".into()],
            throttled_ns: Some(3),
            ecc_corrected: Some(2),
            ..GpuUse::default()
        }
    }

    #[test]
    fn use_is_weighed_by_the_time_in_which_it_was_read() {
        let known = |held_s: i64, known_s: i64, utilization: f64| GpuUse {
            known_ns: Some(known_s * SECOND_NS),
            ..usage(held_s, held_s, utilization)
        };
        let both = known(10, 10, 0.4).after(&known(100, 30, 0.8));
        assert_eq!((both.utilization, both.known_ns), (Some(0.7), Some(40 * SECOND_NS)));
        let older = known(10, 10, 0.4).after(&usage(100, 100, 0.8));
        assert_eq!(older.known_ns, None, "for how long the earlier one was read is not known");
    }

    #[test]
    fn a_use_that_goes_on_adds_times_weighs_means_and_keeps_peaks() {
        let before = GpuUse { temperature_max_mc: Some(70_000), ..usage(30, 30, 0.8) };
        let now = GpuUse {
            held_since_ns: Some(99),
            throttled: vec!["temperature".into()],
            energy_kind: Some(QualityKind::Sampled),
            energy_source: Some(EnergySource::Power),
            ..usage(10, 10, 0.4)
        };
        let both = now.after(&before);
        assert_eq!((both.held_ns, both.used_ns), (40 * SECOND_NS, 40 * SECOND_NS));
        assert_eq!(both.utilization, Some((0.8 * 30.0 + 0.4 * 10.0) / 40.0));
        assert_eq!((both.memory_peak_bytes, both.temperature_max_mc), (Some(30), Some(70_000)));
        assert_eq!((both.held_since_ns, both.energy_uj(), both.ecc_corrected), (Some(5), 20, Some(4)));
        assert_eq!((both.throttled_ns, both.throttled.len()), (Some(6), 2));
        assert_eq!(both.energy_kind, Some(QualityKind::Sampled));
        assert_eq!(both.energy_source, Some(EnergySource::Both { counted_percent: None }));
    }

    #[test]
    fn a_gpu_idles_since_it_was_last_used() {
        let now = GpuUse { idle_since_ns: Some(50), ..usage(10, 0, 0.0) };
        assert_eq!(now.after(&usage(5, 0, 0.0)).idle_since_ns, Some(7));
        assert_eq!(now.after(&usage(5, 5, 0.5)).idle_since_ns, Some(50));
        assert_eq!(usage(10, 3, 0.1).after(&usage(5, 0, 0.0)).idle_since_ns, None);
    }

    #[test]
    fn gpus_of_before_stay_and_new_ones_come_in_order() {
        let gpu =
            |index: &str| GpuUse { uuid: format!("GPU-{index}"), index: index.into(), ..usage(1, 1, 1.0) };
        let all = together(&[gpu("10"), gpu("1")], vec![gpu("2"), gpu("1")]);
        assert_eq!(all.iter().map(|usage| usage.index.as_str()).collect::<Vec<_>>(), ["1", "2", "10"]);
        assert_eq!(all.iter().map(|usage| usage.held_ns / SECOND_NS).collect::<Vec<_>>(), [2, 1, 1]);
    }
}
