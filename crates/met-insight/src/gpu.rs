//! What a job did with its GPUs, for programs and in sums.

use met_core::job::{GpuUse, Record};
use serde_json::{Value, json};

use crate::json::time;

/// One entry of the public object's `gpus`. Every key is always there; what is not known is null. Only the node is
/// absent where the job has one.
pub fn object(gpu: &GpuUse) -> Value {
    let mut object = figures(gpu);
    if let (Some(node), Some(object)) = (&gpu.node, object.as_object_mut()) {
        object.insert("node".to_owned(), json!(node));
    }
    object
}

fn figures(gpu: &GpuUse) -> Value {
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
        "known_seconds": gpu.known_ns.map(|ns| ns as f64 / 1e9),
        "used_seconds": gpu.utilization.map(|_| gpu.used_ns as f64 / 1e9),
        "processes": gpu.processes,
        "utilization_ratio": gpu.utilization,
        "card_utilization_ratio": gpu.gpu_utilization,
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
        "card_power_watts": gpu.gpu_power_mw.map(|mw| mw / 1e3),
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
        "sm_activity_ratio": gpu.sm_activity,
        "tensor_activity_ratio": gpu.tensor_activity,
        "memory_bandwidth_ratio": gpu.memory_bandwidth,
    })
}

/// The job's part of the GPU's power, on average.
pub fn power_watts(gpu: &GpuUse) -> Option<f64> {
    gpu.energy_kind?;
    let paid_ns = gpu.paid_ns.max(gpu.held_ns);
    (paid_ns > 0).then(|| gpu.energy_uj() as f64 * 1e3 / paid_ns as f64)
}

/// From this share of its memory on a GPU holds something that it must hold.
pub const MEMORY_FULL: f64 = 0.7;

/// GPUs that a job was given, or had.
pub fn count(record: &Record) -> i64 {
    let given = record.allocated.gpus.or(record.requested.gpus).unwrap_or(0);
    given.max(record.gpus.len() as i64)
}

/// Whether the use of every GPU of a job is known. A GPU that was lost, cannot be read, or was allocated and never seen
/// must not count as idle.
pub fn all_known(record: &Record) -> bool {
    let is_known = |gpu: &GpuUse| {
        gpu.lost_since_ns.is_none() && gpu.utilization.is_some_and(|used| (0.0..=1.0 + 1e-6).contains(&used))
    };
    record.gpus.len() as i64 >= count(record) && record.gpus.iter().all(is_known)
}

/// Peak use of its memory.
pub fn memory_share(gpu: &GpuUse) -> Option<f64> {
    Some(gpu.memory_peak_bytes? as f64 / gpu.memory_total_bytes.filter(|&of| of > 0)? as f64)
}

/// A part of a GPU that MIG can make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuPart {
    /// Compute slices, of how many.
    pub slices: u32,
    pub of: u32,
    /// The share of the GPU's memory that comes with them.
    pub memory_share: f64,
}

/// Compute slices and eighths of the memory of GPUs with seven slices, and of those with four.
const PARTS_OF_7: [(u32, f64); 5] = [(1, 0.125), (2, 0.25), (3, 0.5), (4, 0.5), (7, 1.0)];
const PARTS_OF_4: [(u32, f64); 3] = [(1, 0.25), (2, 0.5), (4, 1.0)];
/// Room above what was used of compute units on average and of memory at most.
const PART_ROOM: f64 = 1.2;
/// GPUs that can be divided, by a word of their names.
const WITH_7_SLICES: [&str; 12] =
    ["A100", "A800", "H100", "H800", "H200", "H20", "GH200", "B100", "B200", "GB200", "B300", "GB300"];
const WITH_4_SLICES: [&str; 1] = ["A30"];

impl GpuPart {
    pub fn share(&self) -> f64 {
        f64::from(self.slices) / f64::from(self.of)
    }
}

/// The smallest part that has the memory and the compute units that every GPU of the job used: those that worked while
/// it was busy. Of a GPU that cannot be divided it is the share that a smaller one needs.
pub fn smallest_part(record: &Record) -> Option<GpuPart> {
    let of_gpu = |gpu: &GpuUse| {
        let busy = gpu.utilization.filter(|&used| used > 0.0)?;
        let units = (gpu.sm_activity? / busy).min(1.0) * PART_ROOM;
        let memory = memory_share(gpu)? * PART_ROOM;
        let (of, parts): (u32, &[(u32, f64)]) =
            if slices(gpu) == Some(4) { (4, &PARTS_OF_4) } else { (7, &PARTS_OF_7) };
        let part = |&(slices, memory_share): &(u32, f64)| GpuPart { slices, of, memory_share };
        let mut parts = parts.iter().map(part);
        let whole = parts.next_back()?;
        Some(parts.find(|part| part.share() >= units && part.memory_share >= memory).unwrap_or(whole))
    };
    let parts: Vec<GpuPart> = record.gpus.iter().map(of_gpu).collect::<Option<_>>()?;
    parts.into_iter().max_by(|one, other| one.share().total_cmp(&other.share()))
}

/// Into how many slices a GPU can be divided.
fn slices(gpu: &GpuUse) -> Option<u32> {
    let has = |names: &[&str]| gpu.name.split([' ', '-', '_']).any(|word| names.contains(&word));
    if has(&WITH_7_SLICES) {
        return Some(7);
    }
    has(&WITH_4_SLICES).then_some(4)
}

/// That part by the name of its profile, with its memory; `None` where a GPU cannot be divided, or that would be all.
/// None of several GPUs either: a process uses one MIG instance, and none sends data to another.
pub fn part_words(record: &Record) -> Option<String> {
    let part = smallest_part(record).filter(|part| part.slices < part.of && count(record) == 1)?;
    let total = record.gpus.iter().filter_map(|gpu| gpu.memory_total_bytes).min()? as f64;
    let divisible = record.gpus.iter().all(|gpu| slices(gpu) == Some(part.of));
    let memory = met_core::units::bytes(part.memory_share * total);
    divisible.then(|| format!("{}g ({} of {} slices, {memory})", part.slices, part.slices, part.of))
}

/// What a job can do that needs less than the GPUs that it has; nothing where it has a part of one already.
pub fn less_words(record: &Record) -> Option<&'static str> {
    match record.gpus.as_slice() {
        gpus if gpus.iter().any(|gpu| gpu.parent.is_some()) => None,
        _ if count(record) > 1 => Some("ask for fewer GPUs"),
        [gpu] if slices(gpu).is_some() => Some("use a part of the GPU (a MIG instance)"),
        _ => Some("use a smaller GPU"),
    }
}

/// GPUs computing on average over the time of the one held longest, as the GPUs' own means say: 1 is one GPU fully
/// used. A GPU without readings does not count as idle.
pub fn computing(record: &Record) -> Option<f64> {
    Some(gpu_seconds(record)? / held(record).fold(0.0, f64::max))
}

/// The same as a share of the GPUs held: 1 is every one of them fully used as long as it was held.
pub fn ratio(record: &Record) -> Option<f64> {
    Some(computing(record)? / gpus(record))
}

/// GPUs held on average over the same time, of those whose use is known.
pub fn gpus(record: &Record) -> f64 {
    held(record).sum::<f64>() / held(record).fold(0.0, f64::max)
}

/// The time in which GPUs were computed on, all together.
fn gpu_seconds(record: &Record) -> Option<f64> {
    let seconds = |gpu: &GpuUse| Some(gpu.utilization? * held_seconds(gpu));
    record.gpus.iter().filter_map(seconds).reduce(|sum, seconds| sum + seconds)
}

/// How long each GPU was held whose use is known.
fn held(record: &Record) -> impl Iterator<Item = f64> {
    record.gpus.iter().filter(|gpu| gpu.utilization.is_some()).map(held_seconds)
}

/// A GPU that was seen once counts, however little.
fn held_seconds(gpu: &GpuUse) -> f64 {
    gpu.held_ns.max(1) as f64 / 1e9
}

/// Memory of all GPUs together, on average.
pub fn memory_bytes(record: &Record) -> Option<f64> {
    let known = record.gpus.iter().filter_map(|gpu| gpu.memory_mean_bytes);
    known.reduce(|sum, bytes| sum + bytes)
}

pub fn temperature_celsius(record: &Record) -> Option<f64> {
    record.gpus.iter().filter_map(|gpu| gpu.temperature_max_mc).max().map(|mc| mc as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_gpu_names_its_node_in_a_job_of_several() {
        let named = GpuUse { node: Some("n2".to_owned()), ..sample::gpu() };
        let (one, two) = (object(&sample::gpu()), object(&named));
        assert_eq!((one.get("node"), two["node"].as_str()), (None, Some("n2")));
        let report = crate::report::report(
            &Record { gpus: vec![named], ..sample::finished() },
            Default::default(),
            sample::NOW_NS,
        );
        let labels: Vec<_> = report
            .sections
            .iter()
            .filter_map(|section| section.heading.as_ref())
            .map(|heading| heading.label.clone())
            .collect();
        assert!(labels.contains(&"GPU 0 on n2".to_owned()), "{labels:?}");
    }

    #[test]
    fn one_job_has_one_mean_over_its_gpus_by_whatever_name() {
        let mut record = sample::finished();
        assert_eq!((computing(&record), ratio(&record)), (None, None));
        let unknown = GpuUse { utilization: None, ..sample::gpu() };
        let short = GpuUse { held_ns: 30_000_000_000, utilization: Some(0.2), ..sample::gpu() };
        record.gpus = vec![sample::gpu(), short, unknown];
        // 0.6 for 10 s and 0.2 for 30 s.
        let (used, share) = (0.4, 0.30000000000000004);
        assert_eq!((computing(&record), ratio(&record)), (Some(used), Some(share)));
        assert_eq!(memory_bytes(&record), Some(3e9));
        assert_eq!(power_watts(&record.gpus[0]), Some(240.0));
        // Samples know of the times in which a GPU was lost, and of nothing better.
        let mut series = met_core::series::Series::new(&met_core::JOB);
        let mut cells = vec![met_core::MISSING; met_core::JOB.columns.len()];
        cells[met_core::job_table::GPU_UTILIZATION] = 300;
        (0..3).for_each(|second| series.push(second * 1000, &cells));
        record.summaries = series.summaries(5000);
        record.allocated.gpus = Some(2);
        let shown = crate::json::object(&record, sample::NOW_NS);
        assert_eq!(shown["average"]["gpu_utilization_ratio"], used);
        assert_eq!(shown["average"]["gpu_ratio"], share);
        assert_eq!(shown["average"]["gpu_memory_bytes"], 3e9);
        assert_eq!(shown["efficiency"]["gpu_ratio"], used / 2.0, "of the GPUs that were given");
        let report = crate::report::report(&record, crate::report::Machine::default(), sample::NOW_NS);
        let meter = report.meters.iter().find(|meter| meter.label == "GPU").unwrap();
        assert_eq!((meter.used.value, meter.share), (used, share));
    }

    #[test]
    fn the_smallest_part_has_the_memory_and_the_compute_units() {
        let of = |name: &str, units: f64, gib: i64, total_gib: i64| {
            let mut record = sample::finished();
            record.gpus = vec![GpuUse {
                name: name.to_owned(),
                utilization: Some(0.5),
                sm_activity: Some(units * 0.5),
                memory_peak_bytes: Some(gib << 30),
                memory_total_bytes: Some(total_gib << 30),
                ..sample::gpu()
            }];
            let of_one = part_words(&record);
            record.gpus.push(record.gpus[0].clone());
            assert_eq!(part_words(&record), None, "a program on two GPUs does not run on MIG instances");
            of_one
        };
        let a100 = |units: f64, gib: i64| of("NVIDIA A100-SXM4-80GB", units, gib, 80);
        assert_eq!(a100(0.1, 8).unwrap(), "1g (1 of 7 slices, 10.0 GiB)");
        assert_eq!(a100(0.1, 9).unwrap(), "2g (2 of 7 slices, 20.0 GiB)", "too little room in an eighth");
        assert_eq!(a100(0.2, 2).unwrap(), "2g (2 of 7 slices, 20.0 GiB)");
        assert_eq!(a100(0.1, 30).unwrap(), "3g (3 of 7 slices, 40.0 GiB)");
        assert_eq!(a100(0.4, 30).unwrap(), "4g (4 of 7 slices, 40.0 GiB)");
        assert_eq!(a100(0.5, 8), None, "all of it");
        assert_eq!(a100(0.1, 40), None, "all of its memory");
        assert_eq!(of("NVIDIA A30", 0.1, 2, 24).unwrap(), "1g (1 of 4 slices, 6.00 GiB)");
        assert_eq!(of("NVIDIA L40S", 0.1, 2, 48), None, "it cannot be divided");
    }

    #[test]
    fn less_of_several_gpus_is_fewer_of_them() {
        let of = |gpus: Vec<GpuUse>| less_words(&Record { gpus, ..sample::finished() });
        let gpu = |name: &str| GpuUse { name: name.to_owned(), ..sample::gpu() };
        assert_eq!(of(vec![gpu("NVIDIA H100")]), Some("use a part of the GPU (a MIG instance)"));
        assert_eq!(of(vec![gpu("NVIDIA L40S")]), Some("use a smaller GPU"));
        assert_eq!(of(vec![gpu("NVIDIA H100"), gpu("NVIDIA H100")]), Some("ask for fewer GPUs"));
        assert_eq!(of(vec![GpuUse { parent: Some("GPU-whole".to_owned()), ..gpu("NVIDIA H100") }]), None);
    }

    #[test]
    fn the_page_about_it_has_every_key() {
        let page = include_str!("../../../docs/json.md");
        for key in object(&sample::gpu()).as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{key}`")), "docs/json.md lacks gpus[].{key}");
        }
    }
}
