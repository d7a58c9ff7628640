//! A GPU, and what the job did with it.

use met_core::job::{GpuUse, HeldBy, QualityKind};

use super::{Amount, Detail, Heading, Measure, Section};

/// `resolution` is that of the peak of its memory.
pub(super) fn gpu(gpu: &GpuUse, resolution: Option<Detail>) -> Section {
    let some = |value: Option<f64>, measure, quality| Some(Amount { value: value?, measure, quality });
    let sampled = |value: Option<f64>, measure| some(value, measure, QualityKind::Sampled);
    let mut section = Section::new("GPU");
    section.heading = Some(heading(gpu));
    let busy = Detail::before("whole GPU", sampled(gpu.gpu_utilization, Measure::Share));
    let works = [("encoder", gpu.encoder), ("decoder", gpu.decoder), ("copy engine", gpu.copy)]
        .map(|(name, used)| Detail::before(name, sampled(used.filter(|&used| used > 0.0), Measure::Share)));
    let [encoder, decoder, copy] = works;
    let used = sampled(gpu.utilization, Measure::Share);
    section.put("GPU use", used, [Detail::words("average"), busy, encoder, decoder, copy]);
    let tensor = Detail::before("tensor cores", sampled(gpu.tensor_activity, Measure::Share));
    let bandwidth = Detail::before("memory bandwidth", sampled(gpu.memory_bandwidth, Measure::Share));
    let units = sampled(gpu.sm_activity, Measure::Share);
    section.put("GPU activity", units, [Detail::words("compute units of the whole GPU"), tensor, bandwidth]);
    let total = sampled(gpu.memory_total_bytes.map(|bytes| bytes as f64), Measure::Bytes);
    let peak = sampled(gpu.memory_peak_bytes.map(|bytes| bytes as f64), Measure::Bytes);
    let mean = Detail::before("average", sampled(gpu.memory_mean_bytes, Measure::Bytes));
    section.put("GPU memory", peak, [Detail::words("peak"), mean, Detail::before("of", total), resolution]);
    if let Some(kind) = gpu.energy_kind {
        let energy = |uj: i64| some(Some(uj as f64 / 1e6), Measure::Joules, kind);
        // The idle power of a GPU that was never seen idle is unknown.
        let guessed = gpu.idle_power_source.as_deref() == Some("bound") && gpu.energy_active_uj > 0;
        let idle_kind = if guessed { QualityKind::Estimated } else { kind };
        let idle_joules = Some(gpu.energy_idle_uj as f64 / 1e6).filter(|&joules| joules > 0.0);
        let idle = some(idle_joules, Measure::Joules, idle_kind);
        let details = [
            Detail::before("idle part", idle),
            Detail::text(gpu.energy_source.as_ref().map(|source| source.text().into_owned())),
        ];
        section.put("GPU energy", energy(gpu.energy_uj()), details);
    }
    let whole = Detail::before("whole GPU", sampled(gpu.gpu_power_mw.map(|mw| mw / 1e3), Measure::Watts));
    let share =
        some(crate::gpu::power_watts(gpu), Measure::Watts, gpu.energy_kind.unwrap_or(QualityKind::Sampled));
    section.put("GPU power", share, [Detail::words("average"), whole]);
    let hottest = sampled(gpu.temperature_max_mc.map(|mc| mc as f64 / 1e3), Measure::Celsius);
    let clock = Detail::before("clock", sampled(gpu.clock_mean_mhz.map(|mhz| mhz * 1e6), Measure::Hertz));
    section.put("temperature", hottest, [Detail::words("highest"), clock]);
    let throttled = gpu.throttled_ns.filter(|&ns| ns > 0).map(|ns| ns as f64 / 1e9);
    let held_down = sampled(throttled, Measure::Seconds);
    section.put("throttled", held_down, [Detail::text(Some(gpu.throttled.join(", ")))]);
    let received = sampled(gpu.pcie_received_rate, Measure::BytesPerSecond);
    let sent = Detail::before("sent", sampled(gpu.pcie_sent_rate, Measure::BytesPerSecond));
    section.put("PCIe received", received, [sent]);
    let count = |count: Option<i64>| {
        sampled(count.filter(|&count| count > 0).map(|count| count as f64), Measure::Count)
    };
    let last = gpu.fault_last.map(|number| format!("the last was Xid {number}"));
    section.put("GPU faults", count(gpu.faults), [Detail::text(last)]);
    let corrected = Detail::after(count(gpu.ecc_corrected), "corrected");
    section.put("memory errors", count(gpu.ecc_uncorrected), [Detail::words("not corrected"), corrected]);
    section
}

fn heading(gpu: &GpuUse) -> Heading {
    let (state, since) = match (gpu.lost_since_ns, gpu.idle_since_ns, gpu.used_ns) {
        (Some(since_ns), _, _) => ("", Some(("lost since", since_ns))),
        (None, Some(_), 0) => ("never used", None),
        (None, Some(since_ns), _) => ("", Some(("idle since", since_ns))),
        (None, None, _) => ("", None),
    };
    let by = match &gpu.held_by {
        HeldBy::Unknown | HeldBy::Open => String::new(),
        HeldBy::Given(by) => format!("given by {by}"),
    };
    let mut words = vec![gpu.name.clone(), by, state.to_owned()];
    words.retain(|part| !part.is_empty());
    Heading { label: gpu.label(), words, since }
}
