//! What one run says of other sizes: bounds, and what limits first.

use met_core::job_table as column;
use met_core::units;

use crate::answers::Job;
use crate::rules::fields;
use crate::{allocation, average, gpu};

#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// Workers that the run had.
    pub size: f64,
    /// Busy cores on average.
    pub cores: f64,
    /// The most that can be serial of the work on one core.
    pub serial_high: Option<f64>,
    /// What limits its speed-up with any number of cores is at least this.
    pub speedup_limit_min: Option<f64>,
    /// What else limits, with how far it is used, in words.
    pub headroom: Vec<String>,
}

/// From the cores that were really used. If all of them work in the parallel part, the mean of busy cores says how long
/// only one can have been; samples may show more. As a share of the work it bounds the serial fraction from above.
pub fn bounds(job: &Job<'_>) -> Option<Bounds> {
    let size = allocation::usable_cpus(job.record, job.machine)?;
    if !job.is_whole() {
        return None;
    }
    let cores = average::cores(job.record, job.now_ns).filter(|&cores| cores > 0.0)?;
    let serial_share = fields::find("serial_share")?.of_job(job).map(|fact| fact.value);
    // On one core all of the run is serial by necessity.
    let serial_high = serial_share.filter(|_| size > 1.0).map(|share| {
        let by_mean = ((size - cores) / (size - 1.0)).clamp(0.0, 1.0);
        (share.max(by_mean) / cores).min(1.0)
    });
    let speedup_limit_min = serial_high.filter(|&serial| serial > 0.01).map(|serial| 1.0 / serial);
    Some(Bounds { size, cores, serial_high, speedup_limit_min, headroom: headroom(job, size, cores) })
}

/// The CPUs that it was given. What was busy is no size: it differs between runs of one size.
pub fn size(job: &Job<'_>) -> Option<f64> {
    job.record.allocated.cpus.or(job.record.requested.cpus).map(|cpus| cpus as f64)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Machine;
    use crate::series_tests::{Made, made};

    fn serial_high(made: &Made) -> f64 {
        let job = Job::new(&made.record, Machine { cpus: Some(4) }, made.now_ns()).sampled(made.samples());
        bounds(&job).unwrap().serial_high.unwrap()
    }

    #[test]
    fn what_alternates_between_samples_is_within_the_bound() {
        // On one core and on four by turns, a fifth of the work serial: samples see 2.5 cores busy.
        let high = serial_high(&made(100).cores(|_| 2.5));
        assert!((high - 0.2).abs() < 0.01, "{high}");
        let phases = serial_high(&made(100).cores(|second| if second < 50 { 1.0 } else { 4.0 }));
        assert!((phases - 0.2).abs() < 0.01, "{phases}");
        assert!(serial_high(&made(100).cores(|_| 4.0)) < 0.01);
    }

    #[test]
    fn what_was_busy_is_no_size() {
        let mut made = made(100).cores(|_| 7.4);
        made.record.totals.set(column::CORES_PEAK, 7_400, met_core::job::QualityKind::Sampled, "proc");
        let of = |made: &Made| size(&Job::new(&made.record, Machine { cpus: Some(8) }, made.now_ns()));
        assert_eq!(of(&made), None);
        made.record.allocated.cpus = Some(8);
        assert_eq!(of(&made), Some(8.0));
    }
}
