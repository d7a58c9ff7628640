//! NVIDIA cards through NVML, the driver's own library, loaded when there is a card and never linked.
//!
//! Power and use are read at every tick. A call that costs 1 µs in a loop costs 30 µs once a second, when
//! nothing of the driver is in a cache any more, and a list of eight processes 400 µs: all else, and loading
//! the library itself, is done by a thread of its own, which hands over its last figures: a tick waits for
//! nothing.

mod slow;

use std::collections::{HashMap, HashSet};
use std::io;

use met_core::gpu::{card, process};
use met_core::{Batch, MISSING, Subject};
use met_host::{Host, Targets, clock};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlReturn_t;

use self::slow::{Loaded, Slow, SlowCard};
use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable, sysfs};

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "nvidia",
    help: "NVIDIA cards: use, memory, power and energy, by process too",
    pace: Pace::Tick,
    tables: &[&card::TABLE, &process::TABLE],
    open,
};

/// A machine whose driver is loaded has one of these, also in a container.
const SIGNS: [&str; 3] = ["/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg"];
struct Nvidia {
    host: Host,
    slow: Slow,
    /// When processes that are no target began, as of when the driver named them; 0 where they had ended.
    strangers: HashMap<u32, u64>,
    /// What the thread has loaded, and the figures it has handed over.
    loaded: Option<Loaded>,
    figures: Vec<SlowCard>,
    figures_number: u64,
    /// By row: a card, or a part of one. Only ever longer; a part is found again by its uuid.
    labels: Vec<Vec<String>>,
    /// Calls that a card does not know, by card.
    unsupported: Vec<u32>,
}

fn open(host: &Host, options: &Options) -> Opened {
    if options.nvml_library.is_none() && !SIGNS.iter().any(|path| sysfs::exists(host, path)) {
        return Err(Unavailable::Absent("no NVIDIA driver is loaded".to_owned()));
    }
    let slow = Slow::start(options.nvml_library.clone())
        .map_err(|error| Unavailable::Absent(format!("no thread for NVML: {error}")))?;
    if let Some(why) = slow.wait_until_loaded(options.patience) {
        return Err(Unavailable::Absent(why));
    }
    Ok(Box::new(Nvidia {
        host: host.clone(),
        slow,
        strangers: HashMap::new(),
        loaded: None,
        figures: Vec::new(),
        figures_number: 0,
        labels: Vec::new(),
        unsupported: Vec::new(),
    }))
}

impl Source for Nvidia {
    fn read(&mut self, targets: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [cards, processes] = out else { return Ok(()) };
        let now_ns = clock::boottime_ns();
        if self.take_over(now_ns)? {
            self.meet_strangers(targets);
        }
        let Some(loaded) = self.loaded.clone() else { return Ok(()) };
        let mut first_error = None;
        for (index, facts) in loaded.cards.iter().enumerate() {
            if let Err(error) = self.read_card(&loaded, index, now_ns, targets, cards, processes) {
                // One that is lost has no row; the others have theirs.
                if needs_reload(&error) {
                    self.slow.reload();
                }
                let path = format!("NVML, card {}", facts.index);
                first_error.get_or_insert_with(|| retry(path, &error));
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }

    fn background_cpu_ns(&self) -> i64 {
        self.slow.cpu_ns()
    }
}

fn retry(path: String, error: &NvmlError) -> ReadError {
    ReadError::Retry { path, error: io::Error::other(error.to_string()) }
}

/// The driver went away and may be back: handles of before are worth nothing.
fn needs_reload(error: &NvmlError) -> bool {
    matches!(error, NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch)
}

/// Whether the whole card is out of reach, not just one figure of it.
fn is_lost(error: &NvmlError) -> bool {
    needs_reload(error) || matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired)
}

fn is_unsupported(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::LibloadingError(_)
            | NvmlError::NoPermission
    )
}

impl Nvidia {
    /// Takes what the thread has, if it is not just writing it; true if there was something new.
    fn take_over(&mut self, now_ns: i64) -> Result<bool, ReadError> {
        let Some(state) = self.slow.glance(now_ns) else { return Ok(false) };
        if let Some(why) = &state.failure {
            let error = io::Error::other(why.clone());
            (self.loaded, self.figures_number) = (None, 0);
            return Err(ReadError::Retry { path: "NVML".to_owned(), error });
        }
        let known = |loaded: &Loaded| loaded.number;
        if self.loaded.as_ref().map(known) != state.loaded.as_ref().map(known) {
            self.loaded = state.loaded.clone();
            self.figures.clear();
            let cards = self.loaded.as_ref().map_or(&[][..], |loaded| &loaded.cards);
            self.unsupported = vec![0; cards.len()];
            for facts in cards {
                add_labels(&mut self.labels, &facts.labels);
                facts.parts.iter().for_each(|part| add_labels(&mut self.labels, &part.labels));
            }
        }
        if state.number == self.figures_number {
            return Ok(false);
        }
        self.figures_number = state.number;
        self.figures.clone_from(&state.figures);
        Ok(true)
    }

    /// A number alone may be another process's by now: those that are no target are looked at once.
    fn meet_strangers(&mut self, targets: &Targets) {
        let targets: HashSet<u32> = targets.tasks.iter().map(|task| task.pid).collect();
        let before = std::mem::take(&mut self.strangers);
        for pid in self.figures.iter().flat_map(SlowCard::pids).filter(|pid| !targets.contains(pid)) {
            let began = || self.host.process(pid).map_or(0, |process| process.start_ticks);
            let start_ticks = before.get(&pid).copied().unwrap_or_else(began);
            self.strangers.insert(pid, start_ticks);
        }
    }

    fn read_card(
        &mut self,
        loaded: &Loaded,
        index: usize,
        now_ns: i64,
        targets: &Targets,
        cards: &mut Batch,
        processes: &mut Batch,
    ) -> Result<(), NvmlError> {
        let facts = &loaded.cards[index];
        let device = facts.device(&loaded.nvml);
        let part = part_of(&self.labels, &facts.labels);
        let mut cells = [MISSING; card::SLICES + 1];
        let told = fill_fast(&device, &mut self.unsupported[index], &mut cells);
        if told.as_ref().is_err_and(is_lost) {
            return told;
        }
        if let Some(figures) = self.figures.get(index) {
            figures.fill(now_ns, &mut cells);
        }
        let known = self.figures.get(index).filter(|figures| figures.knows_list);
        cells[card::PROCESSES] = known.map_or(MISSING, |figures| figures.processes.len() as i64);
        cells[card::SLICES] = facts.slices.map_or(MISSING, i64::from);
        cards.push_part(Subject::Node, part).copy_from_slice(&cells);
        for piece in &facts.parts {
            let cells = cards.push_part(Subject::Node, part_of(&self.labels, &piece.labels));
            cells[card::SLICES] = i64::from(piece.slices);
            cells[card::MEMORY_TOTAL] = piece.memory_bytes;
        }
        self.push_processes(facts, index, part, targets, processes);
        told
    }

    /// A process of a job, or one of nobody's. One that has ended has no beginning any more: who follows
    /// processes knows whose it was.
    fn subject(&self, pid: u32, targets: &Targets) -> Subject {
        let task = targets.tasks.iter().find(|task| task.pid == pid);
        let stranger = || self.strangers.get(&pid).copied().unwrap_or(0);
        Subject::Task { pid, start_ticks: task.map_or_else(stranger, |task| task.start_ticks) }
    }

    fn push_processes(
        &self,
        facts: &slow::CardFacts,
        index: usize,
        whole: u32,
        targets: &Targets,
        processes: &mut Batch,
    ) {
        let Some(figures) = self.figures.get(index) else { return };
        let first_row = processes.len();
        for info in &figures.processes {
            let piece = facts.parts.iter().find(|piece| {
                (piece.gpu_instance, piece.compute_instance) == (info.gpu_instance, info.compute_instance)
            });
            let part = piece.map_or(whole, |piece| part_of(&self.labels, &piece.labels));
            let cells = processes.push_part(self.subject(info.pid, targets), part);
            cells[process::OPEN] = 1;
            cells[process::MEMORY] = info.memory_bytes;
            figures.fill_process(info.pid, cells);
        }
        for &(pid, memory) in &figures.graphics {
            if !figures.processes.iter().any(|info| info.pid == pid) {
                let cells = processes.push_part(self.subject(pid, targets), whole);
                (cells[process::OPEN], cells[process::MEMORY]) = (1, memory);
                figures.fill_process(pid, cells);
            }
        }
        // Who computed and has ended since: the energy of its time is still to be charged.
        for sample in &figures.samples {
            let listed = processes
                .rows()
                .skip(first_row)
                .any(|(row, _)| row.owner == self.subject(sample.pid, targets));
            if !listed {
                let cells = processes.push_part(self.subject(sample.pid, targets), whole);
                cells[process::OPEN] = 0;
                figures.fill_process(sample.pid, cells);
            }
        }
    }
}

fn add_labels(known: &mut Vec<Vec<String>>, labels: &[String]) {
    if !known.iter().any(|known| known[card::label::UUID] == labels[card::label::UUID]) {
        known.push(labels.to_vec());
    }
}

fn part_of(known: &[Vec<String>], labels: &[String]) -> u32 {
    let uuid = &labels[card::label::UUID];
    known.iter().position(|known| known[card::label::UUID] == *uuid).map_or(0, |part| part as u32)
}

/// In a container whose pids are its own, or without permission, the library does not know.
fn memory_bytes(used: u64) -> i64 {
    if used == u64::MAX { MISSING } else { i64::try_from(used).unwrap_or(MISSING) }
}

fn outcome(code: nvmlReturn_t) -> Result<(), NvmlError> {
    nvml_wrapper::error::nvml_try(code)
}

/// What changes all the time. A figure that the card does not know is asked for once.
fn fill_fast(device: &Device<'_>, unsupported: &mut u32, cells: &mut [i64]) -> Result<(), NvmlError> {
    const POWER: u32 = 1;
    const UTILIZATION: u32 = 2;
    let mut first_error = None;
    if *unsupported & POWER == 0 {
        match device.power_usage() {
            Ok(mw) => cells[card::POWER] = i64::from(mw),
            Err(error) if is_unsupported(&error) => *unsupported |= POWER,
            Err(error) if is_lost(&error) => return Err(error),
            Err(error) => first_error = Some(error),
        }
    }
    if *unsupported & UTILIZATION == 0 {
        match device.utilization_rates() {
            Ok(rates) => {
                cells[card::UTILIZATION] = i64::from(rates.gpu) * 10;
                cells[card::UTILIZATION_MEMORY] = i64::from(rates.memory) * 10;
            }
            Err(error) if is_unsupported(&error) => *unsupported |= UTILIZATION,
            Err(error) => return Err(error),
        }
    }
    first_error.map_or(Ok(()), Err)
}

#[cfg(test)]
#[path = "nvidia/tests.rs"]
mod tests;
