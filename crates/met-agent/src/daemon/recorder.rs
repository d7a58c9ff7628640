//! What a daemon writes from time to time: samples, what could not be written before, and what is too old.

use std::collections::{BTreeSet, HashMap};
use std::slice::from_ref;
use std::time::Duration;

use anyhow::Result;
use met_core::Table;
use met_core::belief::{CHARGED, SAMPLED_PEAKS};
use met_core::event;
use met_core::job::{JobKey, QualityKind, Record};
use met_core::series::{PackedSamples, Series};
use met_jobs::scheduler::join;
use met_sinks::event::Kind;
use met_store::{Device, StoreError, Writer};
use met_wire::batch::Subject;

use super::charging::Emitting;
use super::registry::Registry;
use super::repairs::Repairs;
use super::sampler_thread::Sampling;
use super::scheduler_answers;
use super::schedulers::Schedulers;
use super::sinks::{self, Outputs};
use super::write_retries::{Unwritten, is_hopeless};
use crate::idle_power_file::IdleFile;
use crate::sampler::Sampled;
use met_config::{Config, Storage};
use met_query::jobs;
use met_query::live::Live;

/// Series that are written in one transaction: unpacked they take more memory.
const WRITTEN_TOGETHER: usize = 64;

/// All that a daemon writes to its state folder.
pub(super) struct Recorder {
    pub(super) writer: Writer,
    pub(super) repairs: Repairs,
    pub(super) unwritten: Unwritten,
    pub(super) emitting: Emitting,
    pub(super) idle_power: IdleFile,
    /// Samples that could not be written, as on a full disk.
    pub(super) lost_samples: u64,
}

impl Recorder {
    pub(super) fn new(writer: Writer, idle_power: IdleFile) -> Recorder {
        let (repairs, unwritten, emitting) = Default::default();
        Recorder { writer, repairs, unwritten, emitting, idle_power, lost_samples: 0 }
    }

    /// Writes a record, and says so if it cannot.
    pub(super) fn keep(&mut self, record: &Record) {
        if let Err(error) = self.writer.put(record) {
            tracing::warn!("job {}: {error}", record.key.id);
        }
    }

    /// What is known of a job, also if that is not on disk.
    pub(super) fn known(&mut self, key: &JobKey, registry: &Registry) -> Result<Option<Record>> {
        if let Some(end) = self.unwritten.record_of(key).filter(|record| !record.state.is_live()) {
            return Ok(Some(end.clone()));
        }
        match registry.jobs.get(key) {
            Some(kept) => Ok(Some(kept.record.clone())),
            None => Ok(self.writer.get(key)?),
        }
    }

    /// What an earlier daemon or sampling thread saw of a job.
    pub(super) fn series_before(&self, key: &JobKey) -> Option<Series> {
        self.writer.series(key).ok().filter(|series| !series.is_empty())
    }

    /// Records a new job in the place of what its scheduler had reported before it was found. It is followed as it was
    /// measured; the store joins the two again when it ends.
    pub(super) fn adopt(&mut self, record: &Record, outputs: &mut Outputs) {
        let known = self.writer.find(Some(&record.key.manager), &record.key.id).unwrap_or_default();
        let joined = join::adopt(record, &known);
        if let Err(error) = self.writer.put_instead(&joined.write, &joined.remove) {
            tracing::warn!("job {}: {error}", record.key.id);
        } else {
            outputs.publish_start(record);
        }
    }

    /// Moves what was sampled of a job to its new name, with the series of these events.
    pub(super) fn rename(&mut self, old: &JobKey, new: &JobKey, events: &BTreeSet<String>) {
        let own: [(&'static Table, &str); 2] = [(&met_core::JOB, ""), (&met_core::DETAIL, "")];
        let of_events = events.iter().map(|name| (&event::TABLE, name.as_str()));
        let moved = own.into_iter().chain(of_events).try_for_each(|(table, part)| {
            let series = self.writer.job_series_between(old, table, part, i64::MIN, i64::MAX)?;
            self.writer.append_series(&event::series_key(new, part), &series)
        });
        if let Err(error) = moved.and_then(|()| self.writer.remove(old)) {
            tracing::warn!("job {}: what was known of it as {} stays there: {error}", new.id, old.id);
        }
    }

    /// Completes the record of a job that ended while no daemon ran.
    pub(super) fn fill_as_last_known(&self, record: &mut Record) {
        let series = self.writer.series(&record.key).unwrap_or_else(|_| Series::new(&met_core::JOB));
        let last_ns = series.times_ms.last().map(|&last_ms| last_ms * 1_000_000);
        record.end_ns = last_ns.max(record.start_ns);
        Sampled::of_series(&series, record).fill(record);
    }

    /// Completes the record of a job that is over by what was sampled of it.
    pub(super) fn complete(
        &mut self,
        record: &mut Record,
        mut sampled: Sampled,
        interval: Duration,
        outputs: &mut Outputs,
    ) {
        sampled.settle(record);
        self.keep_series(&record.key, &sampled.series, outputs);
        for (key, series) in std::mem::take(&mut sampled.more) {
            self.keep_series(&key, &series, outputs);
        }
        let series = self.writer.series(&record.key).unwrap_or(sampled.series.clone());
        sampled.complete(record, &series, interval);
    }

    /// Adds to the stored end of a job what was sampled of it, where that came late.
    fn complete_late(&mut self, key: &JobKey, sampled: Sampled, interval: Duration, outputs: &mut Outputs) {
        let waiting = self.unwritten.record_of(key).cloned();
        let stored = waiting.or_else(|| self.writer.get(key).ok().flatten());
        let Some(mut record) = stored.filter(|record| !record.state.is_live()) else { return };
        self.complete(&mut record, sampled, interval, outputs);
        match self.writer.put_instead(from_ref(&record), from_ref(key)) {
            Ok(()) => {
                self.unwritten.forget(key);
                outputs.publish_end(&record);
            }
            Err(error) => {
                tracing::warn!("job {}: its end is not written yet: {error}", key.id);
                self.unwritten.keep(record.clone());
            }
        }
        outputs.on_metrics_cache(|metrics_cache| metrics_cache.knows(&record));
    }

    /// It is on disk when this succeeds; else it is tried again.
    pub(super) fn commit_end(&mut self, record: &Record) -> Result<(), StoreError> {
        self.writer.put(record).inspect_err(|_| self.unwritten.keep(record.clone()))?;
        // Its start may wait, too.
        self.unwritten.forget(&record.key);
        Ok(())
    }

    /// The same for a start: the job is followed, also while nothing can be written.
    pub(super) fn commit_start(&mut self, record: &Record) -> Result<(), StoreError> {
        match self.writer.put(record) {
            Err(error) if is_hopeless(&error) => Err(error),
            Err(error) => {
                tracing::warn!("job {}: its start is not written yet: {error}", record.key.id);
                self.unwritten.keep(record.clone());
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Writes a piece of what schedulers reported, and returns what was written of it.
    pub(super) fn take_scheduler_records(
        &mut self,
        schedulers: &mut Schedulers,
        outputs: &mut Outputs,
    ) -> Vec<Record> {
        let again = self.unwritten.reported.take();
        let is_first = again.is_none();
        let Some(reported) = again.or_else(|| schedulers.take()) else { return Vec::new() };
        match scheduler_answers::keep(&mut self.writer, &reported) {
            Ok(written) => {
                for record in &written {
                    outputs.on_metrics_cache(|metrics_cache| metrics_cache.knows(record));
                    outputs.publish_end(record);
                }
                return written;
            }
            Err(error) if scheduler_answers::is_hopeless(&error) => {
                tracing::warn!("records from {} are lost: {error:#}", reported.manager);
            }
            Err(error) => {
                if is_first {
                    tracing::warn!("records from {} are not written yet: {error:#}", reported.manager);
                }
                self.unwritten.reported = Some(reported);
            }
        }
        Vec::new()
    }

    /// Tries again to write the starts and ends of jobs. Returns those that were.
    pub(super) fn write_records(&mut self) -> Vec<Record> {
        let writer = &mut self.writer;
        self.unwritten.write_records(|record| writer.put(record))
    }

    /// Writes what was sampled since the last time. Returns jobs whose end was completed late.
    pub(super) fn write_samples(
        &mut self,
        sampling: &Sampling,
        registry: &Registry,
        interval: Duration,
        outputs: &mut Outputs,
    ) -> Vec<JobKey> {
        let drained = sampling.drain();
        self.keep_packed(&drained.jobs, outputs);
        let late: Vec<JobKey> = drained.ended.iter().map(|(key, _)| key.clone()).collect();
        for (key, sampled) in drained.ended {
            self.complete_late(&key, sampled, interval, outputs);
        }
        let bus = &mut outputs.bus;
        for (uuid, series) in drained.gpus {
            if let Err(error) = self.writer.append_device(&uuid, &series) {
                tracing::warn!("GPU {uuid}: {} samples are lost: {error}", series.len());
                self.lost_samples += series.len() as u64;
            }
            sinks::publish_samples(bus, Subject::Device(uuid), series);
        }
        for (table, part, series) in drained.node {
            if let Err(error) = self.writer.append_node(&part, &series) {
                tracing::warn!("{} {part}: {} samples are lost: {error}", table.name, series.len());
                self.lost_samples += series.len() as u64;
            }
            sinks::publish_samples(bus, Subject::Node(part), series);
        }
        let has_interim = bus.wants(Kind::Interim);
        outputs.publish_health(|| sampling.health());
        let wanted = !drained.devices.is_empty() || has_interim;
        let live = if wanted { sampling.live() } else { HashMap::new() };
        if has_interim {
            let published = live.iter().filter(|(key, _)| !outputs.is_withheld(key)).collect::<Vec<_>>();
            published.into_iter().for_each(|(key, live)| sinks::publish_interim(&mut outputs.bus, key, live));
        }
        if !drained.devices.is_empty() {
            self.keep_gpus(&drained.devices, live, registry);
        }
        if let Err(error) = self.idle_power.keep(drained.idle) {
            tracing::warn!("cannot store the idle power of the machine: {error}");
        }
        late
    }

    /// Writes the samples of many jobs, some of them in one transaction. If that fails, those that can be written are.
    fn keep_packed(&mut self, packed: &[(JobKey, PackedSamples)], outputs: &mut Outputs) {
        for some in packed.chunks(WRITTEN_TOGETHER) {
            let all_series: Vec<(&JobKey, Series)> =
                some.iter().map(|(key, one)| (key, one.unpack())).collect();
            let together: Vec<(&JobKey, &Series)> = all_series.iter().map(|(key, one)| (*key, one)).collect();
            let are_written = self.writer.append_together(&together).is_ok();
            for (key, series) in &all_series {
                match are_written {
                    true => Recorder::publish_series(key, series, outputs),
                    false => self.keep_series(key, series, outputs),
                }
            }
        }
        jobs::log_moved_aside(&mut self.writer);
    }

    pub(super) fn keep_series(&mut self, key: &JobKey, series: &Series, outputs: &mut Outputs) {
        if series.is_empty() {
            return;
        }
        if let Err(error) = self.writer.append_series(key, series) {
            tracing::warn!("job {}: {} samples are lost: {error}", key.id, series.len());
            self.lost_samples += series.len() as u64;
        }
        Recorder::publish_series(key, series, outputs);
    }

    fn publish_series(key: &JobKey, series: &Series, outputs: &mut Outputs) {
        if outputs.bus.wants(Kind::Samples) && !outputs.is_withheld(&event::of_series_key(key).0) {
            sinks::publish_samples(&mut outputs.bus, Subject::Job(key.clone()), series.clone());
        }
    }

    /// What running jobs did with GPUs so far, and what was learned about these: for the next daemon.
    fn keep_gpus(&mut self, devices: &[Device], live: HashMap<JobKey, Live>, registry: &Registry) {
        if let Err(error) = self.writer.put_devices(devices) {
            tracing::warn!("cannot store the idle power of GPUs: {error}");
        }
        self.keep_charged(live.into_iter().filter(|(_, live)| !live.gpus.is_empty()), registry);
    }

    /// What running jobs were charged so far, and their peaks, in case their end is missed.
    pub(super) fn keep_charged(&mut self, live: impl Iterator<Item = (JobKey, Live)>, registry: &Registry) {
        let records: Vec<Record> = live
            .filter_map(|(key, live)| {
                let mut record = Record { gpus: live.gpus, ..registry.jobs.get(&key)?.record.clone() };
                record.emission = live.emission.or(record.emission);
                // GPUs are a part of the whole.
                for column in CHARGED.into_iter().chain(SAMPLED_PEAKS) {
                    if let Some(figure) = live.totals.figure(column) {
                        record.totals.set(
                            column,
                            figure.value,
                            QualityKind::LowerBound,
                            figure.source.clone(),
                        );
                    }
                }
                Some(record)
            })
            .collect();
        if let Err(error) = self.writer.put_all(&records) {
            tracing::warn!("cannot write what running jobs were charged: {error}");
        }
    }

    /// Removes what is too old or too much.
    pub(super) fn retain(&mut self, storage: &Storage) {
        match self.writer.retain(&jobs::retention(storage), jobs::now_ns()) {
            Ok(retained) => {
                jobs::log_removed(&retained);
                if retained.jobs_removed > 0
                    && let Err(error) = jobs::forget_reactions(&mut self.writer, jobs::now_ns())
                {
                    tracing::warn!("mutes of jobs that were removed stay: {error}");
                }
            }
            Err(error) => tracing::warn!("old jobs could not be removed: {error}"),
        }
    }

    /// Looks through the store where there is a reason to, and saves what can be read of a damaged one.
    pub(super) fn look_after_store(&mut self, registry: &Registry) {
        let failure = self.writer.look_after().err().map(|error| error.to_string());
        if let Some(failure) = self.repairs.ended(failure) {
            tracing::error!("the store cannot be repaired: {failure}");
        }
        if let Some(salvage) = self.writer.salvaged.take() {
            self.writer.moved_aside = None;
            tracing::error!("{}", registry.without_kept(salvage).sentence());
        }
    }

    /// `storage.size`: at most so many finished jobs.
    pub(super) fn limit_count(&mut self, storage: &Storage) -> Result<()> {
        let Some(most) = storage.jobs_max else { return Ok(()) };
        jobs::log_removed(&self.writer.retain_count(most)?);
        Ok(())
    }

    /// What every sampling thread receives before its first job.
    pub(super) fn brief(&mut self, sampling: &Sampling, config: &Config, keeps_node: bool) {
        match self.writer.devices() {
            Ok(devices) => sampling.recall_devices(devices),
            Err(error) => tracing::warn!("cannot read the idle power of GPUs: {error}"),
        }
        sampling.recall_idle(self.idle_power.learned());
        sampling.keep_node(keeps_node);
        self.emitting.send_factor(config, sampling);
    }
}

#[cfg(test)]
mod tests {
    use met_core::job_table::{CORES_PEAK, CPU, MEMORY_NEEDED, MEMORY_NEEDED_PEAK, WALL};

    use super::super::service::Service;
    use super::*;

    #[test]
    fn the_series_of_events_go_with_a_job_to_its_new_name() {
        let state = tempfile::tempdir().unwrap();
        let idle = IdleFile::open(state.path(), &met_host::Host::real().unwrap());
        let mut recorder = Recorder::new(Writer::open(state.path()).unwrap(), idle);
        let old = met_core::sample::bare(1, "x").key;
        let new = JobKey { id: "77".to_owned(), ..old.clone() };
        let series = |table: &'static Table, count: i64| {
            let mut series = Series::new(table);
            series.push(1_000, &vec![count; table.columns.len()]);
            series
        };
        for (table, part, count) in [(&met_core::JOB, "", 1), (&event::TABLE, "page_faults", 2)] {
            let key = event::series_key(&old, part);
            recorder.writer.append_series(&key, &series(table, count)).unwrap();
        }
        let names = ["never_counted", "page_faults"].map(str::to_owned).into();
        recorder.rename(&old, &new, &names);
        let found = |key: &JobKey, table: &'static Table, part: &str| {
            let found = recorder.writer.job_series_between(key, table, part, i64::MIN, i64::MAX);
            found.unwrap().columns[event::COUNT].clone()
        };
        assert_eq!(found(&new, &met_core::JOB, ""), [1]);
        assert_eq!(found(&new, &event::TABLE, "page_faults"), [2]);
        assert!(found(&old, &event::TABLE, "page_faults").is_empty(), "it is under one name only");
    }

    #[test]
    fn samples_that_cannot_be_written_are_counted() {
        let root = tempfile::tempdir().unwrap();
        let mut service = super::super::write_retries::tests::service(root.path());
        let mut series = Series::new(&met_core::JOB);
        for second in 0..3 {
            series.push(86_400_000 + second * 1000, &vec![1; met_core::JOB.columns.len()]);
        }
        // Something else is in the place of the file of that day.
        std::fs::create_dir_all(root.path().join("state/series/1970-01-02.db/x")).unwrap();
        let key = met_core::sample::bare(1, "x").key;
        let Service { recorder, outputs, .. } = &mut service;
        recorder.keep_series(&key, &series, outputs);
        let mut packed = PackedSamples::new(&met_core::JOB);
        series.each_row(|time_ms, cells| packed.push(time_ms, cells));
        recorder.keep_packed(&[(key, packed)], outputs);
        assert_eq!(recorder.lost_samples, 6);
        service.close();
    }

    #[test]
    fn what_was_sampled_of_a_job_is_added_to_its_end_when_it_comes_late() {
        let root = tempfile::tempdir().unwrap();
        let mut service = super::super::write_retries::tests::service(root.path());
        let mut record = met_core::sample::full(1, "x");
        record.local = Some(met_core::job::Local::new("", met_core::job::Origin::Run, "/"));
        for column in [CORES_PEAK, MEMORY_NEEDED_PEAK] {
            record.totals.remove(column);
        }
        record.totals.set(WALL, 10_000_000_000, QualityKind::Measured, "clock");
        record.totals.set(CPU, 4_000_000_000, QualityKind::Measured, "cgroup");
        record.end_ns = record.start_ns.map(|start_ns| start_ns + 10_000_000_000);
        let interval = Duration::from_secs(1);
        let Service { recorder, outputs, .. } = &mut service;
        recorder.complete(&mut record, Sampled::default(), interval, outputs);
        recorder.commit_end(&record).unwrap();
        assert_eq!(record.totals.figure(CORES_PEAK).map(|peak| peak.kind), Some(QualityKind::LowerBound));
        let mut series = Series::new(&met_core::JOB);
        let begin_ms = record.start_ns.unwrap() / 1_000_000;
        for (second, used_ms) in [(0, 0), (1, 100), (2, 3_100)] {
            let mut cells = vec![met_core::MISSING; met_core::JOB.columns.len()];
            (cells[CPU], cells[MEMORY_NEEDED]) = (used_ms * 1_000_000, second << 20);
            series.push(begin_ms + second * 1000, &cells);
        }
        let mut sampled = Sampled::of_series(&series, &record);
        sampled.series = series;
        recorder.complete_late(&record.key, sampled, interval, outputs);
        let stored = recorder.writer.get(&record.key).unwrap().unwrap();
        assert_eq!(stored.totals.get(CORES_PEAK), Some(3_000));
        assert_eq!(stored.totals.get(MEMORY_NEEDED_PEAK), Some(2 << 20));
        assert!(recorder.writer.series(&record.key).unwrap().len() >= 3);
        // Of a job that was removed meanwhile nothing is written.
        recorder.writer.remove(&record.key).unwrap();
        recorder.complete_late(&record.key, Sampled::default(), interval, outputs);
        assert!(recorder.writer.get(&record.key).unwrap().is_none());
    }
}
