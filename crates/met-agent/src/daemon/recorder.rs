//! What a daemon writes from time to time: samples, what could not be written before, and what is too old.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use met_core::belief::CHARGED;
use met_core::course::Course;
use met_core::job::{CgroupPaths, JobKey, QualityKind, Record};
use met_jobs::enclosure;
use met_sinks::event::Kind;
use met_store::{Device, Writer, inbox};
use met_wire::batch::Subject;

use super::charging::Emitting;
use super::keeping::Keeping;
use super::repairs::Repairs;
use super::sinks;
use super::unwritten::Unwritten;
use crate::idle_power::IdleFile;
use met_config::Presence;
use met_query::jobs;
use met_query::live::Live;

/// All that a daemon writes to its state folder.
pub(super) struct Recorder {
    pub(super) writer: Writer,
    pub(super) repairs: Repairs,
    pub(super) unwritten: Unwritten,
    pub(super) emitting: Emitting,
    pub(super) idle_power: IdleFile,
}

impl Recorder {
    pub(super) fn new(writer: Writer, idle_power: IdleFile) -> Recorder {
        let (repairs, unwritten, emitting) = Default::default();
        Recorder { writer, repairs, unwritten, emitting, idle_power }
    }
}

impl Keeping {
    /// Samples go to disk this often: a killed daemon loses no more.
    pub fn flush_every(&self) -> Duration {
        let buffered = self.standing.config.sampling.buffer_samples;
        let by_size = buffered.map(|samples| {
            self.standing.config.sampling.interval.saturating_mul(samples.min(100_000) as u32)
        });
        let every = self.standing.config.storage.flush_interval;
        let every = self.outputs.bus.within().map_or(every, |within| every.min(within));
        by_size.map_or(every, |by_size| every.min(by_size)).max(Duration::from_millis(100))
    }

    pub fn has_to_flush(&self) -> bool {
        !self.registry.jobs.is_empty() || !self.recorder.unwritten.is_empty()
    }

    /// Tries again what could not be written.
    pub(super) fn write_again(&mut self) {
        let (writer, bus) = (&mut self.recorder.writer, &mut self.outputs.bus);
        self.recorder
            .unwritten
            .write_ends(|record| writer.put(record).inspect(|()| sinks::publish_end(bus, record)));
        if self.recorder.unwritten.told.is_some() {
            self.hear();
        }
    }

    pub fn flush(&mut self) {
        self.write_again();
        self.follow_shadows();
        let drained = self.sampling.drain();
        for (key, course) in drained.jobs {
            self.keep_course(&key, &course);
        }
        for (uuid, course) in drained.cards {
            if let Err(error) = self.recorder.writer.append_device(&uuid, &course) {
                tracing::warn!("card {uuid}: {} samples are lost: {error}", course.len());
            }
            sinks::publish_samples(&mut self.outputs.bus, Subject::Device(uuid), course);
        }
        for (table, part, course) in drained.node {
            if let Err(error) = self.recorder.writer.append_node(&part, &course) {
                tracing::warn!("{} {part}: {} samples are lost: {error}", table.name, course.len());
            }
            sinks::publish_samples(&mut self.outputs.bus, Subject::Node(part), course);
        }
        let has_interim = self.outputs.bus.wants(Kind::Interim);
        let wanted = !drained.devices.is_empty() || has_interim;
        let live = if wanted { self.sampling.live() } else { HashMap::new() };
        if has_interim {
            live.iter().for_each(|(key, live)| sinks::publish_interim(&mut self.outputs.bus, key, live));
        }
        if !drained.devices.is_empty() {
            self.keep_cards(&drained.devices, live);
        }
        if let Err(error) = self.recorder.idle_power.keep(drained.idle) {
            tracing::warn!("what was learned of idle power is not kept: {error}");
        }
    }

    pub(super) fn keep_course(&mut self, key: &JobKey, course: &Course) {
        if course.is_empty() {
            return;
        }
        if let Err(error) = self.recorder.writer.append_course(key, course) {
            tracing::warn!("job {}: {} samples are lost: {error}", key.id, course.len());
        }
        if self.outputs.bus.wants(Kind::Samples) {
            sinks::publish_samples(&mut self.outputs.bus, Subject::Job(key.clone()), course.clone());
        }
    }

    /// What running jobs did with cards so far, and what was learned about these: for the next daemon.
    fn keep_cards(&mut self, devices: &[Device], live: HashMap<JobKey, Live>) {
        let records: Vec<Record> = live
            .into_iter()
            .filter(|(_, live)| !live.gpus.is_empty())
            .filter_map(|(key, live)| {
                let mut record = Record { gpus: live.gpus, ..self.registry.jobs.get(&key)?.record.clone() };
                record.emission = live.emission.or(record.emission);
                for column in CHARGED {
                    // Should nobody see the end of it, this is what is known. Cards are a part of the whole.
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
        let result =
            self.recorder.writer.put_devices(devices).and_then(|()| self.recorder.writer.put_all(&records));
        if let Err(error) = result {
            tracing::warn!("what jobs did with cards is not written: {error}");
        }
    }

    /// Whether the course of the machine is kept.
    pub(super) fn keeps_node(&self) -> bool {
        match self.standing.config.storage.node_series {
            Presence::Auto => self.place.system,
            Presence::Yes => true,
            Presence::No => false,
        }
    }

    /// Removes what supervisors left that died before they announced their job.
    pub fn sweep(&mut self) {
        let in_use = |paths: &CgroupPaths| {
            self.registry
                .jobs
                .values()
                .any(|kept| kept.record.local.as_ref().is_some_and(|local| local.cgroup == *paths))
        };
        let abandoned = self.admission.made.abandoned(|pid| self.host.process(pid).is_err(), in_use);
        for paths in abandoned {
            self.admission.made.forget(&paths);
            if !enclosure::remove(&paths) {
                self.housekeeping.leave([paths]);
            }
        }
    }

    pub fn retain(&mut self) {
        self.admission.announced_bytes = 0;
        if let Err(error) = inbox::clean(&self.place.state) {
            tracing::warn!("{}: {error}", self.place.state.display());
        }
        self.sweep();
        self.look_after_store();
        let retention = jobs::retention(&self.standing.config.storage);
        match self.recorder.writer.retain(&retention, jobs::now_ns()) {
            Ok(retained) => jobs::log_removed(&retained),
            Err(error) => tracing::warn!("old jobs could not be removed: {error}"),
        }
    }

    /// Looks through the store where there is a reason to, and saves what can be read of a damaged one.
    pub(super) fn look_after_store(&mut self) {
        let failure = self.recorder.writer.look_after().err().map(|error| error.to_string());
        if let Some(failure) = self.recorder.repairs.ended(failure) {
            tracing::error!("the store cannot be repaired: {failure}");
        }
        if let Some(salvage) = self.recorder.writer.salvaged.take() {
            self.recorder.writer.moved_aside = None;
            tracing::error!("{}", self.without_kept(salvage).sentence());
        }
    }

    /// `storage.size`: at most so many finished jobs.
    pub(super) fn limit_count(&mut self) -> Result<()> {
        let Some(most) = self.standing.config.storage.jobs_max else { return Ok(()) };
        jobs::log_removed(&self.recorder.writer.retain_count(most)?);
        Ok(())
    }
}
