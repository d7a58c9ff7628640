//! GPUs: what jobs do with them, and their own series.

use std::collections::{HashMap, HashSet};

use met_core::attribute::JobMap;
use met_core::gpu::device::{self, label};
use met_core::gpus::{Gpus, Rows};
use met_core::job::JobKey;
use met_core::series::Series;
use met_core::{Batch, MISSING, Subject, gpu};
use met_host::{Host, clock};
use met_jobs::processes;
use met_sinks::snapshot::{self, HeldGpu};
use met_sources::Runner;
use met_store::Device;

use super::gpu_pace::GpuPace;
use super::tracked::Jobs;
use met_config::Config;

/// A GPU is sampled no more often than this for its own series.
const SAMPLES_MS: i64 = 900;
/// Bounds what a daemon that cannot write holds of each GPU: more than an hour.
const SAMPLES_MAX: usize = 4096;
/// How long after it was met the first process of a job is asked which GPUs it was given.
const ASKED_FOR_NS: i64 = 1_000_000_000;
/// A machine whose drivers know no GPU after as many readings without jobs is not asked until a job begins.
const ASKED_MAX: u32 = 5;
/// Ticks may be late by as much before the figures of GPUs have a gap.
const LATE_NS: i64 = 2_000_000_000;

/// A longer time between two looks is a gap in the figures of GPUs.
pub(super) fn gap_ns(interval_ns: i64) -> i64 {
    interval_ns * 3 + LATE_NS
}

/// The GPUs of the machine.
#[derive(Default)]
pub struct SampledGpus {
    pub(super) gpus: Gpus,
    /// Processes on GPUs that are no job's, as far as is known.
    pub(super) strangers: HashSet<Subject>,
    /// Samples that were not taken out yet, by uuid.
    all_series: HashMap<String, Series>,
    pub(super) pace: GpuPace,
    pub(super) dropped_samples: u64,
    /// How often drivers were asked how many there are.
    asked: u32,
}

impl SampledGpus {
    pub(super) fn new(config: &Config, tick_ns: i64) -> SampledGpus {
        let mut gpus = SampledGpus::default();
        gpus.reconfigure(config, tick_ns);
        gpus
    }

    pub(super) fn reconfigure(&mut self, config: &Config, tick_ns: i64) {
        self.gpus.set_idle_rules(config.gpu.idle_power.clone());
        self.pace = GpuPace::new(config.nvidia.interval);
        self.set_tick(tick_ns);
    }

    /// Ticks come by this period.
    pub(super) fn set_tick(&mut self, tick_ns: i64) {
        self.gpus.set_gap(gap_ns(self.pace.interval_ns(tick_ns)));
    }

    /// Takes in what was read of the GPUs.
    pub(super) fn follow(
        &mut self,
        runner: &Runner,
        host: &Host,
        jobs: &mut Jobs,
        map: &JobMap,
        now_ns: i64,
    ) {
        let mut rows = Vec::new();
        for (batches, labels) in runner.labelled() {
            if let [gpus, processes] = batches
                && std::ptr::eq(gpus.table, &gpu::device::TABLE)
            {
                rows.push(Rows { gpus, processes, labels });
            }
        }
        if rows.is_empty() {
            return;
        }
        for (&slot, job) in jobs {
            // Between fork and exec a process still has its parent's environment, so a young one is asked again.
            if let Some((main, since_ns)) = job.main {
                let known = processes::holdings(host, main);
                if !known.is_empty() {
                    self.gpus.hold(slot, known);
                }
                if now_ns - since_ns >= ASKED_FOR_NS {
                    job.main = None;
                }
            }
        }
        let unix_offset_ns = clock::unix_offset_ns();
        self.gpus.look(&rows, map, now_ns, unix_offset_ns);
        self.keep_samples((now_ns + unix_offset_ns) / 1_000_000);
    }

    /// A GPU's own series is stored once for all jobs; one that no job holds has none.
    fn keep_samples(&mut self, time_ms: i64) {
        const KEPT: [usize; 5] =
            [device::UTILIZATION, device::MEMORY_USED, device::POWER, device::TEMPERATURE, device::CLOCK];
        // A period that was chosen for the GPUs is that of their samples; a reading may be late by a tenth of it.
        let least_ms = SAMPLES_MS.min(self.pace.interval_ns(SAMPLES_MS * 1_000_000) * 9 / 10_000_000);
        for (labels, cells) in self.gpus.in_use() {
            let uuid = &labels[label::UUID];
            if !self.all_series.contains_key(uuid) {
                self.all_series.insert(uuid.clone(), Series::new(&device::TABLE));
            }
            let Some(series) = self.all_series.get_mut(uuid) else { continue };
            let mut kept = [MISSING; device::TABLE.columns.len()];
            for column in KEPT {
                kept[column] = cells[column];
            }
            // Early looks at a young job, and a clock that was set back, add nothing to a GPU's series.
            let last_ms = series.times_ms.last().copied().unwrap_or(i64::MIN);
            if time_ms.saturating_sub(least_ms) < last_ms {
                continue;
            }
            match series.len() < SAMPLES_MAX {
                true => series.push(time_ms, &kept),
                false => self.dropped_samples += 1,
            }
        }
    }

    /// Those that jobs can be given; `None` until some were read.
    pub fn count(&self) -> Option<i64> {
        self.gpus.count()
    }

    /// Whether drivers are asked how many there are, on a machine without jobs: some times, since they take a moment.
    pub(super) fn asks_for_count(&mut self) -> bool {
        let asks = self.gpus.count().is_none() && self.asked < ASKED_MAX;
        self.asked += u32::from(asks);
        asks
    }

    /// Whether a living process is on a GPU that was not there before and is of no job. On a busy node it may
    /// be a job's, whose processes were last listed some ticks ago.
    pub(super) fn meets_strangers(&mut self, batches: &[Batch], map: &JobMap) -> bool {
        let of_gpus = |batch: &&Batch| std::ptr::eq(batch.table, &gpu::process::TABLE);
        let lives = |owner: &Subject| matches!(owner, Subject::Task { start_ticks, .. } if *start_ticks != 0);
        let owners = batches.iter().filter(of_gpus).flat_map(Batch::rows).map(|(row, _)| row.owner);
        let strangers: HashSet<Subject> =
            owners.filter(|owner| lives(owner) && map.owner(*owner).is_none()).collect();
        let has_new = strangers.iter().any(|stranger| !self.strangers.contains(stranger));
        self.strangers = strangers;
        has_new
    }

    /// The samples taken since the last call, by uuid.
    pub fn drain(&mut self) -> Vec<(String, Series)> {
        self.all_series.drain().filter(|(_, series)| !series.is_empty()).collect()
    }

    /// The samples of a GPU that are not drained yet.
    pub fn undrained(&self, uuid: &str) -> Option<&Series> {
        self.all_series.get(uuid)
    }

    /// What is known of GPUs and outlives this process.
    pub fn devices(&self) -> Vec<Device> {
        let device = |(labels, idle_mw, lowest_mw): (&[String], Option<i64>, Option<i64>)| Device {
            uuid: labels[label::UUID].clone(),
            name: labels[label::NAME].clone(),
            vendor: labels[label::VENDOR].clone(),
            idle_mw,
            lowest_mw,
        };
        self.gpus.idle_powers().map(device).collect()
    }

    /// Takes over what an earlier process learned about GPUs.
    pub fn recall(&mut self, devices: Vec<Device>) {
        for device in devices {
            self.gpus.recall_idle(device.uuid, device.idle_mw, device.lowest_mw);
        }
    }

    pub(super) fn rows(&self) -> snapshot::Rows {
        let mut rows = snapshot::Rows::new(&device::TABLE);
        for gpu in self.gpus.now() {
            rows.push(gpu.labels, gpu.cells);
        }
        rows
    }

    /// Each GPU that a job holds, with the job.
    pub(super) fn held(&self, jobs: &Jobs) -> Vec<(JobKey, HeldGpu)> {
        let mut held = Vec::new();
        for gpu in self.gpus.now() {
            let text = |index: usize| gpu.labels.get(index).cloned().unwrap_or_default();
            for job in gpu.holders.iter().filter_map(|(slot, _)| jobs.get(slot)) {
                let gpu = HeldGpu {
                    index: text(label::INDEX),
                    uuid: text(label::UUID),
                    parent: text(label::PARENT),
                    vendor: text(label::VENDOR),
                    mig: text(label::MIG),
                };
                held.push((job.key.clone(), gpu));
            }
        }
        held
    }
}
