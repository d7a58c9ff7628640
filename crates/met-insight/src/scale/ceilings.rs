//! How far a run was from what its machine can do, and which ceiling more workers reach first.

use met_core::job::Record;
use met_core::job_table as column;
use met_core::units;

use super::System;
use crate::answers::Job;
use crate::report::Measure;
use crate::{average, gpu};

/// A shorter job says nothing of a rate that lasts.
const SECONDS_MIN: f64 = 10.0;
/// The share of the time in which a job waited for storage, from which on it had all that there was.
const WAITED: f64 = 0.3;
/// The most that was seen says nothing of storage where no job did more than write a log.
const RATE_LEAST: f64 = 1_048_576.0;
/// What is used less than this is no limit within any size that can be predicted.
const SHARE_LEAST: f64 = 0.02;

/// Where a ceiling is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CeilingFrom {
    Given,
    Machine,
    Configured,
    /// The most that a job was seen to have on this node. It is a limit if that job waited for more; else there may be
    /// more.
    Seen {
        node: String,
        is_limit: bool,
    },
}

impl CeilingFrom {
    pub fn name(&self) -> &'static str {
        match self {
            CeilingFrom::Given => "given",
            CeilingFrom::Machine => "machine",
            CeilingFrom::Configured => "configured",
            CeilingFrom::Seen { .. } => "seen",
        }
    }

    fn words(&self) -> String {
        match self {
            CeilingFrom::Given => "of what it was given".to_owned(),
            CeilingFrom::Machine => "of the machine's".to_owned(),
            CeilingFrom::Configured => "of what is configured".to_owned(),
            CeilingFrom::Seen { node, .. } => {
                format!("of the highest rate seen on {}", met_core::text::escape(node))
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Headroom {
    pub resource: &'static str,
    pub used: f64,
    pub ceiling: f64,
    pub from: CeilingFrom,
    measure: Measure,
}

impl Headroom {
    pub fn share(&self) -> f64 {
        self.used / self.ceiling
    }

    pub fn words(&self) -> String {
        let [used, of] = [self.used, self.ceiling].map(|value| match self.measure {
            Measure::Bytes => units::bytes(value),
            Measure::BytesPerSecond => units::bytes_per_second(value),
            _ => units::cores(value),
        });
        let share = units::percent(self.share());
        format!("{}: {used} of {of} ({share} {})", self.resource, self.from.words())
    }
}

/// What is known of the job's machine besides its record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ceilings {
    /// Bytes per second from and to storage.
    storage: Option<(f64, CeilingFrom)>,
    memory_bytes: Option<f64>,
    cores: Option<f64>,
}

impl Ceilings {
    /// Of the system that has the name of the job's node, or else of the jobs that ran on it.
    pub fn of(record: &Record, systems: &[System], jobs: &[Record], now_ns: i64) -> Ceilings {
        let [node] = record.nodes.as_slice() else { return Ceilings::default() };
        let short = node.split('.').next().unwrap_or(node);
        let system = systems.iter().find(|system| [node, short].contains(&system.name.as_str()));
        let configured = system.and_then(|system| system.storage_rate).filter(|&rate| rate > 0.0);
        let beside = jobs.iter().filter(|job| job.nodes == record.nodes);
        let seen = beside.chain([record]).filter_map(|job| Some((lasting_rate(job, now_ns)?, job)));
        let highest =
            seen.filter(|(rate, _)| *rate >= RATE_LEAST).max_by(|one, other| one.0.total_cmp(&other.0));
        let seen = highest.map(|(rate, job)| {
            let waited = average::waited(job, column::PRESSURE_IO, column::DELAY_IO, now_ns);
            let is_limit = waited.is_some_and(|share| share >= WAITED);
            (rate, CeilingFrom::Seen { node: node.clone(), is_limit })
        });
        Ceilings {
            storage: configured.map(|rate| (rate, CeilingFrom::Configured)).or(seen),
            memory_bytes: system.and_then(|system| system.memory_bytes).map(|bytes| bytes as f64),
            cores: system.map(|system| system.cores as f64).filter(|&cores| cores > 0.0),
        }
    }
}

/// From and to storage, for most of the job's time; its peaks may have gone to memory only.
fn lasting_rate(job: &Record, now_ns: i64) -> Option<f64> {
    let wall_s = average::wall_ns(job, now_ns)? as f64 / 1e9;
    let rate = storage_rate(job, now_ns).filter(|_| wall_s >= SECONDS_MIN && job.nodes.len() == 1)?;
    let p95 = |index: usize| job.summaries.get(index)?.p95;
    let sampled = p95(column::READ).into_iter().chain(p95(column::WRITTEN)).reduce(f64::max);
    Some(sampled.map_or(rate, |sampled| sampled.max(rate)))
}

fn storage_rate(job: &Record, now_ns: i64) -> Option<f64> {
    let [read, written] =
        [column::READ, column::WRITTEN].map(|index| average::per_second(job, index, now_ns));
    Some(read? + written?)
}

/// What a run used of each thing that its machine has only so much of. The order is that of reports.
pub(super) fn headroom(job: &Job<'_>, cores: f64, size: f64, ceilings: &Ceilings) -> Vec<Headroom> {
    let record = job.record;
    let number = |value: Option<i64>| value.map(|value| value as f64);
    let first = |known: [(Option<f64>, CeilingFrom); 3]| {
        known.into_iter().find_map(|(value, from)| Some((value.filter(|&value| value > 0.0)?, from)))
    };
    let given = record.allocated.cpus.or(record.requested.cpus).map(|_| size);
    let of_cores = first([
        (given, CeilingFrom::Given),
        (ceilings.cores, CeilingFrom::Configured),
        (Some(size), CeilingFrom::Machine),
    ]);
    let of_memory = first([
        (number(record.allocated.memory_bytes), CeilingFrom::Given),
        (ceilings.memory_bytes, CeilingFrom::Configured),
        (number(record.node_memory_bytes), CeilingFrom::Machine),
    ]);
    let of_gpus = gpu::all_known(record).then(|| gpu::gpus(record)).filter(|&held| held > 0.0);
    let gpu_memory: Option<Vec<(f64, f64)>> = record
        .gpus
        .iter()
        .map(|gpu| Some((gpu.memory_peak_bytes? as f64, gpu.memory_total_bytes.filter(|&of| of > 0)? as f64)))
        .collect();
    let fullest = gpu_memory.into_iter().flatten().max_by(|one, other| {
        let share = |(used, of): &(f64, f64)| used / of;
        share(one).total_cmp(&share(other))
    });
    let (gpu_used, gpu_of) = fullest.unzip();
    let of = |resource, used: Option<f64>, of: Option<(f64, CeilingFrom)>, measure| {
        let (used, (ceiling, from)) = used.zip(of)?;
        // The most that was seen of others is no ceiling for a job that had as much.
        let is_ceiling = used < ceiling || !matches!(from, CeilingFrom::Seen { is_limit: false, .. });
        is_ceiling.then_some(Headroom { resource, used, ceiling, from, measure })
    };
    let machine = |value: Option<f64>| value.map(|value| (value, CeilingFrom::Machine));
    [
        of("cores", Some(cores), of_cores, Measure::Cores),
        of("memory", average::memory_needed_peak(record), of_memory, Measure::Bytes),
        of("storage", storage_rate(record, job.now_ns), ceilings.storage.clone(), Measure::BytesPerSecond),
        of("GPUs", gpu::computing(record), of_gpus.map(|held| (held, CeilingFrom::Given)), Measure::Gpus),
        of("GPU memory", gpu_used, machine(gpu_of), Measure::Bytes),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What is used most of: with more workers, if its use grows with them, it is what they run out of first.
pub(super) fn first_limit(headroom: &[Headroom]) -> Option<&Headroom> {
    let is_limit = |of: &&Headroom| !matches!(of.from, CeilingFrom::Seen { is_limit: false, .. });
    let limits = headroom.iter().filter(is_limit).filter(|of| of.share() >= SHARE_LEAST);
    limits.max_by(|one, other| one.share().total_cmp(&other.share()))
}

#[cfg(test)]
mod tests {
    use met_core::job::QualityKind;

    use super::*;
    use crate::report::Machine;
    use crate::sample;
    use crate::series_tests::{Made, made};

    fn made_with(rate: f64) -> Made {
        let mut made = made(100).cores(|_| 1.0).rate(column::READ, move |_| rate);
        made = made.rate(column::WRITTEN, |_| 0.0).level(column::MEMORY_NEEDED, |_| 4e9);
        made.record.nodes = vec!["n1".to_owned()];
        made
    }

    fn reported(made: &Made, systems: &[System], jobs: &[Record]) -> (Vec<String>, Option<&'static str>) {
        let ceilings = Ceilings::of(&made.record, systems, jobs, sample::NOW_NS);
        let job = Job::new(&made.record, Machine { cpus: Some(16) }, made.now_ns()).sampled(made.samples());
        let found = headroom(&job, 1.0, 16.0, &ceilings);
        (found.iter().map(Headroom::words).collect(), first_limit(&found).map(|of| of.resource))
    }

    #[test]
    fn a_ceiling_is_configured_or_the_highest_that_was_seen() {
        let (slow, fast) = (made_with(50e6), made_with(100e6).record);
        let (words, first) = reported(&slow, &[], std::slice::from_ref(&fast));
        let expected = [
            "cores: 1 of 16 (6.2% of the machine's)",
            "memory: 3.73 GiB of 64.0 GiB (5.8% of the machine's)",
            "storage: 47.7 MiB/s of 95.4 MiB/s (50% of the highest rate seen on n1)",
        ];
        assert_eq!((words, first), (expected.map(str::to_owned).into(), Some("cores")));
        let mut waited = made_with(100e6).rate(column::PRESSURE_IO, |_| 0.5).record;
        assert_eq!(
            reported(&slow, &[], std::slice::from_ref(&waited)).1,
            Some("storage"),
            "it had all there was"
        );
        waited.totals.remove(column::PRESSURE_IO);
        let delayed = made_with(100e6).rate(column::DELAY_IO, |_| 0.5).record;
        assert_eq!(reported(&slow, &[], &[delayed]).1, Some("storage"), "by the delays of its threads");
        assert_eq!(reported(&slow, &[], &[waited]).1, Some("cores"), "there may be more");
        let elsewhere = Record { nodes: vec!["n2".to_owned()], ..fast.clone() };
        assert_eq!(
            reported(&slow, &[], &[elsewhere]).0.len(),
            2,
            "another machine says nothing, nor does it itself"
        );
        let system = System {
            name: "n1".to_owned(),
            cores: 32,
            memory_bytes: Some(8 << 30),
            storage_rate: Some(1e9),
            ..System::default()
        };
        let (words, first) = reported(&slow, &[system], &[fast]);
        assert_eq!(words[0], "cores: 1 of 32 (3.1% of what is configured)");
        assert_eq!(words[2], "storage: 47.7 MiB/s of 954 MiB/s (5.0% of what is configured)");
        assert_eq!(first, Some("memory"), "4 of 8 GiB");
    }

    #[test]
    fn gpus_have_ceilings_of_their_own() {
        let mut made = made_with(0.0);
        made.record.gpus = vec![sample::gpu()];
        let (words, first) = reported(&made, &[], &[]);
        assert_eq!(
            words[2..],
            [
                "GPUs: 0.60 of 1 (60% of what it was given)",
                "GPU memory: 1.86 GiB of 140 GiB (1.3% of the machine's)"
            ]
        );
        assert_eq!(first, Some("GPUs"));
        made.record.gpus[0].utilization = None;
        assert_eq!(reported(&made, &[], &[]).1, Some("cores"), "what is not known is no limit");
    }

    #[test]
    fn a_short_job_says_nothing_of_a_rate_that_lasts() {
        let mut burst = made_with(9e9).record;
        burst.end_ns = burst.start_ns.map(|start_ns| start_ns + 1_000_000_000);
        burst.totals.set(column::WALL, 1_000_000_000, QualityKind::Measured, "clock");
        let (words, _) = reported(&made_with(50e6), &[], &[burst]);
        assert!(!words.iter().any(|words| words.starts_with("storage")), "{words:?}");
    }
}
