//! What a reader must know to understand the figures.

use met_core::belief::CHARGED;
use met_core::job::{Origin, QualityKind};
use met_core::job_table as column;
use met_core::provenance::Caveat;
use met_core::work::NAMES_MAX;

use super::reader::Reader;

/// Nodes send about this often.
const OLD_SECONDS: i64 = 30;
/// Samples of young jobs are more recent.
const SAMPLED_SECONDS: i64 = 2;

impl Reader<'_> {
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        notes.extend(self.age_note());
        notes.extend(self.energy_note().map(str::to_owned));
        if self.figure(column::CPU).is_some_and(|figure| figure.source.has(Caveat::NoContainers)) {
            let why = "a container service did part of the work: work of its containers is not included; \
                where containers are discovered as jobs, `met list` shows them";
            notes.push(why.to_owned());
        }
        if self.figure(column::CPU).is_some_and(|figure| figure.source.has(Caveat::SomeContainers)) {
            let why =
                "the job ran more containers at once than met follows: work of the others is not included";
            notes.push(why.to_owned());
        }
        if self.figure(column::MEMORY_PEAK).is_some_and(|figure| figure.source.has(Caveat::EnteredLate)) {
            let why = "the command started before it was moved into its cgroup (jobs.start_before_cgroup): memory \
                allocated before the move is not included";
            notes.push(why.to_owned());
        }
        if self.record.work.iter().any(|one| one.others_left_out) {
            notes.push(format!(
                "the job marked more than {NAMES_MAX} names: only the first {NAMES_MAX} are kept"
            ));
        }
        notes.extend(self.event_notes());
        let found = self.record.local.as_ref().is_some_and(|local| local.origin == Origin::Found);
        let is_bound = self.figure(column::CPU).is_some_and(|figure| figure.kind == QualityKind::LowerBound);
        if found && is_bound && !self.record.state.is_live() {
            let how = "its end was not observed: figures marked ≥ were read before it and are lower bounds";
            notes.push(how.to_owned());
        }
        let left_over = self.record.local.as_ref().map(|local| local.left_over.as_slice()).unwrap_or(&[]);
        if !left_over.is_empty() {
            let named: Vec<String> =
                left_over.iter().map(|process| format!("{} ({})", process.name, process.pid)).collect();
            notes.push(format!("still running: {}", named.join(", ")));
        }
        notes
    }

    /// What was done for the figures that are attributed, each once.
    pub(super) fn attributed(&self) -> Vec<&'static str> {
        let of = |column: usize| match column {
            column::OOM_KILLS | column::THROTTLED => "counted in a cgroup around the job",
            column::CPU_USER | column::CPU_SYSTEM => "split as another account says",
            column if CHARGED.contains(&column) => "share of an energy meter",
            _ => "share of a counter of several jobs",
        };
        let totals =
            [&self.record.totals].into_iter().chain(self.record.parts.iter().map(|part| &part.totals));
        let figures = totals.flat_map(|totals| totals.iter());
        let gpus = self.record.gpus.iter().filter(|gpu| gpu.energy_kind == Some(QualityKind::Attributed));
        let columns = figures.filter(|(_, figure)| figure.kind == QualityKind::Attributed);
        let columns = columns.map(|(column, _)| column).chain(gpus.map(|_| column::GPU_ENERGY));
        let mut said: Vec<&str> = columns.map(of).collect();
        said.sort_unstable();
        said.dedup();
        said
    }

    /// Events that could not be counted, those with one reason together.
    fn event_notes(&self) -> Vec<String> {
        let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
        for event in &self.record.uncounted_events {
            match by_reason.iter_mut().find(|(reason, _)| *reason == event.reason) {
                Some((_, names)) => names.push(&event.name),
                None => by_reason.push((&event.reason, vec![&event.name])),
            }
        }
        let note = |(reason, names): (&str, Vec<&str>)| {
            format!("perf events not counted: {} ({reason})", names.join(", "))
        };
        by_reason.into_iter().map(note).collect()
    }

    /// What is as old as nodes send anyway needs no word.
    fn age_note(&self) -> Option<String> {
        let as_of_ns = self.record.as_of_ns.filter(|_| self.record.state.is_live())?;
        let old_s = self.now_ns.saturating_sub(as_of_ns) / 1_000_000_000;
        let is_here = self.record.local.is_some();
        if old_s <= if is_here { SAMPLED_SECONDS } else { OLD_SECONDS } {
            return None;
        }
        let old = match old_s {
            ..=119 => format!("{old_s} s"),
            120..=7199 => format!("{} min", old_s / 60),
            _ => format!("{} h", old_s / 3600),
        };
        if is_here {
            return Some(format!("figures and averages are as of the last sample, {old} ago"));
        }
        Some(format!("the figures are {old} old: the node has sent nothing since; see `met nodes`"))
    }

    /// Of all but the GPUs, as far as there is a separate figure.
    fn is_host_estimated(&self) -> bool {
        let mut parts =
            [column::ENERGY_CPU, column::ENERGY_REST].into_iter().filter_map(|part| self.figure(part));
        parts.all(|part| part.kind == QualityKind::Estimated)
    }

    /// Whether what is not of GPUs does not matter.
    fn is_of_gpus(&self) -> bool {
        let value = |index: usize| self.figure(index).map_or(0, |figure| figure.value);
        let (all, gpus) = (value(column::ENERGY), value(column::GPU_ENERGY));
        gpus > 0 && gpus >= all - all / 100
    }

    fn energy_note(&self) -> Option<&'static str> {
        let figure = self.figure(column::ENERGY)?;
        match figure.kind {
            QualityKind::Estimated if figure.source.has(Caveat::IdleEstimated) => Some(
                "the idle power of the machine was unknown and was estimated; a daemon learns it while no \
                 job runs, or set energy.idle_power",
            ),
            // A share of a GPU is an estimate while its idle power is unknown: that is shown with the GPU.
            QualityKind::Estimated if !self.is_host_estimated() || self.is_of_gpus() => None,
            QualityKind::Estimated if self.figure(column::GPU_ENERGY).is_some() => {
                Some("only GPU energy was metered: the rest is an estimate; see `met doctor`")
            }
            QualityKind::Estimated => Some("no energy meter could be read; see `met doctor`"),
            QualityKind::LowerBound if figure.source.has(Caveat::MeterMissing) => {
                Some("an energy meter could not be read at times; see `met doctor`")
            }
            QualityKind::LowerBound if figure.source.has(Caveat::EnergyUnassigned) => Some(
                "energy used while the meter could not be read is not included; `met node` shows it as \
                 unassigned",
            ),
            QualityKind::LowerBound if figure.source.has(Caveat::MeterShort) => {
                Some("the node's meter shows less than the sum of GPUs, CPUs and memory")
            }
            QualityKind::LowerBound if figure.source.has(Caveat::NotWatched) => {
                Some("energy used while no daemon sampled the job is not included")
            }
            QualityKind::LowerBound if figure.source.has(Caveat::CpuUnseen) => Some(
                "energy of processes that left the tree of the attached process is not included; `met run` \
                 follows all processes",
            ),
            _ => None,
        }
    }
}
