//! NVIDIA cards through NVML, the driver's own library, loaded when there is a card and never linked.
//!
//! Power, use, temperature, clocks and processes are cheap and read at every tick. What takes milliseconds
//! (the energy counter, use by process, PCIe), and loading the library itself, is done by a thread of its
//! own, which hands over its last figures with their age: a tick waits for nothing.

mod slow;

use std::collections::HashMap;
use std::io;

use met_core::gpu::{card, process};
use met_core::{Batch, MISSING, Subject};
use met_host::{Host, Targets, clock};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{nvmlProcessInfo_t, nvmlReturn_t};

use self::slow::{Loaded, Slow, SlowCard};
use crate::{Opened, Options, ReadError, Source, SourceSpec, TickInfo, Unavailable};

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "nvidia",
    help: "NVIDIA cards: use, memory, power and energy, by process too",
    tables: &[&card::TABLE, &process::TABLE],
    open,
};

/// A machine whose driver is loaded has one of these, also in a container.
const SIGNS: [&str; 3] = ["/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg"];
/// Processes that a card is asked for in one call. More are possible and then asked for again.
const PROCESSES_USUAL: usize = 64;
const PROCESSES_MAX: usize = 1 << 16;

struct Nvidia {
    slow: Slow,
    /// What the thread has loaded, and the figures it has handed over.
    loaded: Option<Loaded>,
    figures: Vec<SlowCard>,
    figures_number: u64,
    /// By row: a card, or a part of one. Only ever longer; a part is found again by its uuid.
    labels: Vec<Vec<String>>,
    /// Calls that a card does not know, by card.
    unsupported: Vec<u32>,
    /// When a process was first seen on a card: one that is new has not been asked for its use.
    first_seen_ns: HashMap<(u32, u32), (i64, u64)>,
    generation: u64,
    buffer: Vec<nvmlProcessInfo_t>,
}

fn open(host: &Host, options: &Options) -> Opened {
    if options.nvml_library.is_none() && !SIGNS.iter().any(|path| exists(host, path)) {
        return Err(Unavailable::Absent("no NVIDIA driver is loaded".to_owned()));
    }
    let slow = Slow::start(options.nvml_library.clone())
        .map_err(|error| Unavailable::Absent(format!("no thread for NVML: {error}")))?;
    if let Some(why) = slow.wait_until_loaded(options.patience) {
        return Err(Unavailable::Absent(why));
    }
    Ok(Box::new(Nvidia {
        slow,
        loaded: None,
        figures: Vec::new(),
        figures_number: 0,
        labels: Vec::new(),
        unsupported: Vec::new(),
        first_seen_ns: HashMap::new(),
        generation: 0,
        buffer: Vec::new(),
    }))
}

/// A device file cannot be read, but its directory says that it is there.
fn exists(host: &Host, path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    let mut found = false;
    if let Ok(folder) = host.open_dir(folder) {
        let _ = folder.list(&mut Vec::new(), |entry, _, _| found |= entry == name.as_bytes());
    }
    found
}

impl Source for Nvidia {
    fn read(&mut self, targets: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [cards, processes] = out else { return Ok(()) };
        let now_ns = clock::boottime_ns();
        self.take_over(now_ns)?;
        let Some(loaded) = self.loaded.clone() else { return Ok(()) };
        self.generation += 1;
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
        let generation = self.generation;
        self.first_seen_ns.retain(|_, (_, seen)| *seen == generation);
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
    /// Takes what the thread has, if it is not just writing it.
    fn take_over(&mut self, now_ns: i64) -> Result<(), ReadError> {
        let Some(state) = self.slow.glance(now_ns) else { return Ok(()) };
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
        if state.number != self.figures_number {
            self.figures_number = state.number;
            self.figures.clone_from(&state.figures);
        }
        Ok(())
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
        let device = loaded.nvml.device_by_index(facts.index)?;
        let part = part_of(&self.labels, &facts.labels);
        let mut cells = [MISSING; card::SLICES + 1];
        let mut told = fill_fast(&device, &mut self.unsupported[index], &mut cells);
        if !told.as_ref().is_err_and(is_lost) {
            told = told.and(self.list_processes(&device));
        }
        if told.as_ref().is_err_and(is_lost) {
            return told;
        }
        if let Some(figures) = self.figures.get(index) {
            figures.fill(now_ns, &mut cells);
        }
        cells[card::SLICES] = facts.slices.map_or(MISSING, i64::from);
        cards.push_part(Subject::Node, part).copy_from_slice(&cells);
        for piece in &facts.parts {
            let cells = cards.push_part(Subject::Node, part_of(&self.labels, &piece.labels));
            cells[card::SLICES] = i64::from(piece.slices);
            cells[card::MEMORY_TOTAL] = piece.memory_bytes;
        }
        self.push_processes(facts, index, part, now_ns, targets, processes);
        told
    }

    /// One call into our own buffer: the library's wrapper asks twice, and each time costs 24 µs.
    fn list_processes(&mut self, device: &Device<'_>) -> Result<(), NvmlError> {
        let symbol = device.nvml().lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref();
        let Ok(symbol) = symbol else {
            self.buffer.clear();
            return Ok(());
        };
        let mut room = self.buffer.capacity().max(PROCESSES_USUAL);
        loop {
            self.buffer.clear();
            self.buffer.reserve(room);
            let mut count = u32::try_from(room).unwrap_or(u32::MAX);
            // SAFETY: the buffer has room for `count` entries, and the library says how many it wrote.
            let code = unsafe { symbol(device.handle(), &mut count, self.buffer.as_mut_ptr()) };
            match outcome(code) {
                Ok(()) => {
                    // SAFETY: that many were written, and never more than there is room for.
                    unsafe { self.buffer.set_len((count as usize).min(room)) };
                    return Ok(());
                }
                Err(NvmlError::InsufficientSize(_)) if room < PROCESSES_MAX => {
                    room = (count as usize).max(room * 2).min(PROCESSES_MAX);
                }
                Err(error) if is_unsupported(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn push_processes(
        &mut self,
        facts: &slow::CardFacts,
        index: usize,
        whole: u32,
        now_ns: i64,
        targets: &Targets,
        processes: &mut Batch,
    ) {
        let figures = self.figures.get(index);
        let first_row = processes.len();
        for info in &self.buffer {
            let piece = facts.parts.iter().find(|piece| {
                (piece.gpu_instance, piece.compute_instance) == (info.gpuInstanceId, info.computeInstanceId)
            });
            let part = piece.map_or(whole, |piece| part_of(&self.labels, &piece.labels));
            let seen = self.first_seen_ns.entry((info.pid, part)).or_insert((now_ns, 0));
            seen.1 = self.generation;
            let cells = processes.push_part(subject(info.pid, targets), part);
            cells[process::OPEN] = 1;
            cells[process::MEMORY] = memory_bytes(info.usedGpuMemory);
            if let Some(figures) = figures {
                figures.fill_process(info.pid, seen.0, cells);
            }
        }
        let Some(figures) = figures else { return };
        for &(pid, memory) in &figures.graphics {
            if !self.buffer.iter().any(|info| info.pid == pid) {
                let cells = processes.push_part(subject(pid, targets), whole);
                (cells[process::OPEN], cells[process::MEMORY]) = (1, memory);
                figures.fill_process(pid, i64::MIN, cells);
            }
        }
        // Who computed and has ended since: the energy of its time is still to be charged.
        for sample in &figures.samples {
            let listed =
                processes.rows().skip(first_row).any(|(row, _)| row.owner == subject(sample.pid, targets));
            if !listed {
                let cells = processes.push_part(subject(sample.pid, targets), whole);
                cells[process::OPEN] = 0;
                figures.fill_process(sample.pid, i64::MIN, cells);
            }
        }
    }
}

/// A process of a job, or one of nobody's.
fn subject(pid: u32, targets: &Targets) -> Subject {
    let task = targets.tasks.iter().find(|task| task.pid == pid);
    Subject::Task { pid, start_ticks: task.map_or(0, |task| task.start_ticks) }
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

/// What costs a microsecond or two each. A figure that the card does not know is asked for once.
fn fill_fast(device: &Device<'_>, unsupported: &mut u32, cells: &mut [i64]) -> Result<(), NvmlError> {
    let mut first_error = None;
    let mut bit = 1u32;
    let mut ask = |get: &mut dyn FnMut() -> Result<(), NvmlError>| {
        let this = bit;
        bit <<= 1;
        // Once a card is lost every further call would only wait for it again.
        if *unsupported & this != 0 || first_error.as_ref().is_some_and(is_lost) {
            return;
        }
        match get() {
            Ok(()) => {}
            Err(error) if is_unsupported(&error) => *unsupported |= this,
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    };
    ask(&mut || device.power_usage().map(|mw| cells[card::POWER] = i64::from(mw)));
    ask(&mut || {
        device.utilization_rates().map(|rates| {
            cells[card::UTILIZATION] = i64::from(rates.gpu) * 10;
            cells[card::UTILIZATION_MEMORY] = i64::from(rates.memory) * 10;
        })
    });
    ask(&mut || {
        let celsius = device.temperature(TemperatureSensor::Gpu);
        celsius.map(|celsius| cells[card::TEMPERATURE] = i64::from(celsius) * 1000)
    });
    ask(&mut || device.clock_info(Clock::SM).map(|mhz| cells[card::CLOCK] = i64::from(mhz)));
    ask(&mut || device.clock_info(Clock::Memory).map(|mhz| cells[card::CLOCK_MEMORY] = i64::from(mhz)));
    ask(&mut || {
        let reasons = device.current_throttle_reasons();
        reasons.map(|reasons| cells[card::THROTTLE] = reasons.bits() as i64)
    });
    ask(&mut || {
        device.memory_info().map(|memory| {
            cells[card::MEMORY_USED] = memory_bytes(memory.used);
            cells[card::MEMORY_TOTAL] = memory_bytes(memory.total);
        })
    });
    first_error.map_or(Ok(()), Err)
}

#[cfg(test)]
#[path = "nvidia/tests.rs"]
mod tests;
