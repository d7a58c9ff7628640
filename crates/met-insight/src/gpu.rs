//! What a job did with its cards, for programs and in sums.

use met_core::job::{GpuUse, Record};
use serde_json::{Value, json};

use crate::json::time;

/// One entry of the public object's `gpus`. Every key is always there; what is not known is null.
pub fn object(gpu: &GpuUse) -> Value {
    json!({
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "vendor": gpu.vendor,
        "parent": gpu.parent,
        "held_by": gpu.held_by,
        "held_since": gpu.held_since_ns.and_then(time),
        "idle_since": gpu.idle_since_ns.and_then(time),
        "lost_since": gpu.lost_since_ns.and_then(time),
        "held_seconds": gpu.held_ns as f64 / 1e9,
        // How long it computed is known where its use is.
        "used_seconds": gpu.utilization.map(|_| gpu.used_ns as f64 / 1e9),
        "processes": gpu.processes,
        "utilization_ratio": gpu.utilization,
        "card_utilization_ratio": gpu.card_utilization,
        "encoder_ratio": gpu.encoder,
        "decoder_ratio": gpu.decoder,
        "copy_ratio": gpu.copy,
        "memory_bytes": gpu.memory_mean_bytes,
        "memory_peak_bytes": gpu.memory_peak_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
        "energy_joules": gpu.energy_kind.map(|_| gpu.energy_uj() as f64 / 1e6),
        "energy_active_joules": gpu.energy_kind.map(|_| gpu.energy_active_uj as f64 / 1e6),
        "energy_idle_joules": gpu.energy_kind.map(|_| gpu.energy_idle_uj as f64 / 1e6),
        "energy_quality": gpu.energy_kind.map(|kind| json!({
            "kind": kind.name(),
            "source": gpu.energy_source,
        })),
        "idle_power_watts": gpu.idle_power_mw.map(|mw| mw as f64 / 1e3),
        "idle_power_source": gpu.idle_power_source,
        "power_watts": power_watts(gpu),
        "card_power_watts": gpu.card_power_mw.map(|mw| mw / 1e3),
        "temperature_max_celsius": gpu.temperature_max_mc.map(|mc| mc as f64 / 1e3),
        "clock_hertz": gpu.clock_mean_mhz.map(|mhz| mhz * 1e6),
        "clock_max_hertz": gpu.clock_max_mhz.map(|mhz| mhz * 1_000_000),
        "throttled": gpu.throttled,
        "throttled_seconds": gpu.throttled_ns.map(|ns| ns as f64 / 1e9),
        "ecc_corrected": gpu.ecc_corrected,
        "ecc_uncorrected": gpu.ecc_uncorrected,
        "faults": gpu.faults,
        "fault_last": gpu.fault_last,
        "pcie_received_bytes_per_second": gpu.pcie_received_rate,
        "pcie_sent_bytes_per_second": gpu.pcie_sent_rate,
    })
}

/// The job's part of the card's power, on average.
pub fn power_watts(gpu: &GpuUse) -> Option<f64> {
    gpu.energy_kind?;
    (gpu.held_ns > 0).then(|| gpu.energy_uj() as f64 * 1e3 / gpu.held_ns as f64)
}

/// The mean over the job's cards, each for the time it was the job's: 1 is every one of them fully used.
pub fn utilization(record: &Record) -> Option<f64> {
    weighted(record, |gpu| gpu.utilization)
}

/// Memory of all cards together, on average.
pub fn memory_bytes(record: &Record) -> Option<f64> {
    let known = record.gpus.iter().filter_map(|gpu| gpu.memory_mean_bytes);
    known.reduce(|sum, bytes| sum + bytes)
}

pub fn temperature_celsius(record: &Record) -> Option<f64> {
    record.gpus.iter().filter_map(|gpu| gpu.temperature_max_mc).max().map(|mc| mc as f64 / 1e3)
}

fn weighted(record: &Record, value: impl Fn(&GpuUse) -> Option<f64>) -> Option<f64> {
    let known = record.gpus.iter().filter_map(|gpu| Some((value(gpu)?, gpu.held_ns.max(1) as f64)));
    let (sum, weight) =
        known.fold((0.0, 0.0), |(sum, weight), (value, held)| (sum + value * held, weight + held));
    (weight > 0.0).then(|| sum / weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_mean_over_cards_is_weighted_by_time() {
        let mut record = sample::finished();
        assert_eq!(utilization(&record), None);
        record.gpus =
            vec![sample::gpu(), GpuUse { held_ns: 30_000_000_000, utilization: Some(0.2), ..sample::gpu() }];
        assert_eq!(utilization(&record), Some((0.6 * 10.0 + 0.2 * 30.0) / 40.0));
        assert_eq!(memory_bytes(&record), Some(2e9));
        assert_eq!(power_watts(&record.gpus[0]), Some(240.0));
    }

    #[test]
    fn the_page_about_it_has_every_key() {
        let page = include_str!("../../../docs/json.md");
        for key in object(&sample::gpu()).as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{key}`")), "docs/json.md lacks gpus[].{key}");
        }
    }
}
