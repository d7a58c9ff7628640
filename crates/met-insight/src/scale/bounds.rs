//! What one run says of other sizes: bounds, and what limits first.

use met_core::job_table as column;
use met_core::units;

use crate::answers::Job;
use crate::rules::fields;
use crate::{average, gpu};

#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// Workers that the run had.
    pub size: f64,
    /// Busy cores on average.
    pub cores: f64,
    /// The most and the least that can be serial of the work on one core.
    pub serial_high: Option<f64>,
    pub serial_low: f64,
    /// With more cores it cannot become faster than this many times.
    pub speedup_max: Option<f64>,
    /// What else limits, with how far it is used, in words.
    pub headroom: Vec<String>,
}

/// From the cores that were really used. Time with at most one busy core is serial, or waits: as a share of the work
/// it bounds the serial fraction from above.
pub fn bounds(job: &Job<'_>) -> Option<Bounds> {
    let size = size(job)?;
    let cores = average::cores(job.record, job.now_ns).filter(|&cores| cores > 0.0)?;
    let serial_share = fields::find("serial_share")?.of_job(job).map(|fact| fact.value);
    // On one core all of the run is serial by necessity.
    let serial_high = serial_share.filter(|_| size > 1.0).map(|share| {
        let parallel_work = (cores - share.min(cores)).max(0.0);
        share / (share + parallel_work).max(1e-9)
    });
    let speedup_max = serial_high.filter(|&serial| serial > 0.01).map(|serial| 1.0 / serial);
    Some(Bounds {
        size,
        cores,
        serial_high,
        serial_low: 0.0,
        speedup_max,
        headroom: headroom(job, size, cores),
    })
}

/// Allocated CPUs, or the threads and processes that it had, as far as the machine has cores for them.
pub fn size(job: &Job<'_>) -> Option<f64> {
    let given = job.record.allocated.cpus.or(job.record.requested.cpus).map(|cpus| cpus as f64);
    given.or_else(|| {
        let threads = job.record.totals.get(column::THREADS_PEAK).map(|threads| threads as f64);
        let most = job.machine.cpus.map(f64::from);
        let peak =
            job.record.totals.get(column::CORES_PEAK).map(|thousandths| (thousandths as f64 / 1e3).round());
        let threads = threads.map(|threads| most.map_or(threads, |most| threads.min(most)));
        peak.map(|peak| peak.max(1.0)).or(threads)
    })
}

fn headroom(job: &Job<'_>, size: f64, cores: f64) -> Vec<String> {
    let mut words = vec![format!("cores: {} of {} busy", units::cores(cores), units::cores(size))];
    let needed = job.record.totals.get(column::MEMORY_NEEDED_PEAK).map(|bytes| bytes as f64);
    let ceiling = [
        (job.record.allocated.memory_bytes.map(|bytes| bytes as f64), "given"),
        (job.record.node_memory_bytes.map(|bytes| bytes as f64), "of the machine"),
    ];
    let ceiling = ceiling.into_iter().find_map(|(bytes, what)| Some((bytes?, what)));
    if let Some((needed, (of, what))) = needed.zip(ceiling).filter(|(_, (of, _))| *of > 0.0) {
        words.push(format!("memory: {} of {} {what}", units::percent(needed / of), units::bytes(of)));
    }
    if let Some(share) = average::per_second(job.record, column::PRESSURE_IO, job.now_ns) {
        words.push(format!("storage: waited for it {} of the time", units::percent(share.min(1.0))));
    }
    if let Some(ratio) = gpu::ratio(job.record) {
        words.push(format!("GPU: {} busy", units::percent(ratio)));
    }
    words
}
