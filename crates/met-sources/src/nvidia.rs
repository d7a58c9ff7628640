//! NVIDIA GPUs through NVML, the driver's own library, loaded when there is a GPU and never linked.
//!
//! Power and use are read at every tick. A call that costs 1 µs in a loop costs 30 µs once a second, when
//! nothing of the driver is in a cache any more, and a list of eight processes 400 µs: all else, and loading
//! the library itself, is done now and then, by a thread that hands over its last figures.
//!
//! A driver may never answer: a GPU that fell off its bus blocks every caller. So no thread that others wait
//! for calls it: one thread reads power and use when a tick begins, another does the rest, and figures have an
//! age. A sampler thread that is replaced when stuck reads power and use itself, which is cheaper.

mod activity;
mod direct;
mod duty;
mod fast;
mod figures;
mod library;
mod numbers;
mod reading;
mod slow;

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use met_core::gpu::{device, process, vendor};
use met_core::{Batch, MISSING, Subject};
use met_host::{Host, Targets, clock};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlReturn_t;

use self::direct::Direct;
use self::fast::{Asked, Fast, TICK_TIMEOUT};
use self::figures::SlowGpu;
use self::library::{GpuFacts, Lender, NO_GPU, Shown};
use self::numbers::Numbers;
use self::reading::{Answer, Reading, Trouble};
use self::slow::Slow;
use crate::{
    DriverCalls, Opened, Options, Pace, ReadError, Shortfall, Source, SourceSpec, TickInfo, Unavailable,
    Unread, sysfs,
};

pub static SPEC: SourceSpec = SourceSpec {
    name: "nvidia",
    help: "NVIDIA GPUs: use, memory, power and energy, also per process",
    pace: Pace::Tick,
    tables: &[&device::TABLE, &process::TABLE],
    charts: device::CHARTS,
    options: &[],
    open,
};

/// A machine whose driver is loaded has one of these, also in a container.
const SIGNS: [&str; 3] = ["/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg"];
pub(crate) const NO_ANSWER: &str = "the NVIDIA driver does not answer";
/// Without its daemon a driver takes seconds to wake a GPU up; longer than this it hangs.
const LOADING_MAX_NS: i64 = 20_000_000_000;
/// Two periods of ticks, and at least this.
const FRESH_MIN_NS: i64 = 1_000_000_000;

/// A process that has another pid here, or none: unowned.
const FOREIGN: Subject = Subject::Task { pid: 0, start_ticks: 0 };
/// The process lists are read before they are due at most this often; without a result, the interval doubles
/// each time.
const HURRY_EVERY_NS: i64 = 900_000_000;
const HURRIES_DOUBLED: u32 = 5;
/// GPUs can be partitioned again and again: more rows than this are not remembered.
const LABELS_MAX: usize = if cfg!(test) { 16 } else { 64 };

struct Nvidia {
    host: Host,
    slow: Slow,
    fresh: Fresh,
    /// Since when the other thread has figures under way.
    slow_since_ns: Option<i64>,
    /// A patient caller waited in vain.
    waited_in_vain: bool,
    hurry: Hurry,
    /// When processes that are no target began, as of when the driver named them; 0 where they had ended.
    unowned_starts: HashMap<u32, u64>,
    numbers: Numbers,
    /// What the thread has loaded, and the figures it has handed over.
    shown: Option<Shown>,
    figures: Vec<SlowGpu>,
    figures_number: u64,
    /// By row: a GPU, or a part of one. A part is found again by its uuid.
    labels: Vec<Vec<String>>,
}

/// When the process lists were last requested before they were due, and how often without a result.
#[derive(Default)]
struct Hurry {
    at_ns: i64,
    in_vain: u32,
}

impl Hurry {
    fn is_due(&self, now_ns: i64) -> bool {
        now_ns - self.at_ns >= HURRY_EVERY_NS << self.in_vain
    }

    fn done(&mut self, now_ns: i64) {
        (self.at_ns, self.in_vain) = (now_ns, (self.in_vain + 1).min(HURRIES_DOUBLED));
    }

    /// A process was listed.
    fn explained(&mut self) {
        self.in_vain = 0;
    }
}

/// Power and use.
struct Fresh {
    caller: Caller,
    /// As last read, and how old that may be.
    now: Answer,
    age_max_ns: i64,
    /// The thread that reads them was asked when this tick began.
    asked: Option<Asked>,
}

impl Fresh {
    /// Asks a thread in advance, if one reads them.
    fn begin(&mut self, is_loaded: bool) -> bool {
        let Caller::Thread(fast) = &self.caller else { return false };
        self.asked = is_loaded.then(|| fast.ask(clock::boottime_ns()));
        self.asked.is_some()
    }

    /// Updates them; readings of another thread, as far as it answers in time.
    fn read(&mut self, now_ns: i64, timeout: Duration, figures: &[SlowGpu]) {
        match &mut self.caller {
            Caller::Thread(fast) => {
                let asked = self.asked.take().unwrap_or_else(|| fast.ask(now_ns));
                fast.take(asked, timeout, &mut self.now);
            }
            Caller::Reader(direct) => direct.read(now_ns, figures, &mut self.now),
        }
    }

    /// Of a GPU, if they are new enough.
    fn of_gpu(&self, shown: &Shown, index: usize, now_ns: i64) -> Option<&Reading> {
        let reading = self.now.gpus.get(index).filter(|_| self.now.loading == shown.number);
        reading.filter(|reading| now_ns - reading.at_ns <= self.age_max_ns)
    }

    fn is_late(&self, now_ns: i64) -> bool {
        let Caller::Thread(fast) = &self.caller else { return false };
        fast.waiting_since_ns().is_some_and(|since_ns| now_ns - since_ns > self.age_max_ns)
    }
}

/// Which thread reads power and use.
enum Caller {
    Thread(Fast),
    Reader(Direct),
}

fn open(host: &Host, options: &Options) -> Opened {
    if options.nvml_library.is_none() && !SIGNS.iter().any(|path| sysfs::exists(host, path)) {
        return Err(Unavailable::Absent("no NVIDIA driver is loaded".to_owned()));
    }
    let no_thread = |error: io::Error| {
        Unavailable::Absent(format!(
            "cannot start a thread for NVML: \
        {error}"
        ))
    };
    let lender = Lender::default();
    let caller = match options.driver_calls {
        DriverCalls::Apart => Caller::Thread(Fast::start(lender.clone()).map_err(no_thread)?),
        DriverCalls::Direct => Caller::Reader(Direct::new(lender.clone())),
    };
    let slow = Slow::start(options.nvml_library.clone(), lender, options.interval).map_err(no_thread)?;
    let is_settled = |state: &slow::State| state.shown.is_some() || state.failure.is_some();
    if !options.timeout.is_zero() && !slow.wait_until(options.timeout, is_settled) {
        return Err(Unavailable::Broken(NO_ANSWER.to_owned()));
    }
    if let Some(why) = slow.failure() {
        let unavailable = if why == NO_GPU { Unavailable::Absent } else { Unavailable::Broken };
        return Err(unavailable(why));
    }
    Ok(Box::new(Nvidia {
        host: host.clone(),
        slow,
        fresh: Fresh {
            caller,
            now: Answer::default(),
            age_max_ns: age_max_ns(options.interval),
            asked: None,
        },
        slow_since_ns: None,
        hurry: Hurry::default(),
        waited_in_vain: false,
        unowned_starts: HashMap::new(),
        numbers: Numbers::new(host),
        shown: None,
        figures: Vec::new(),
        figures_number: 0,
        labels: Vec::new(),
    }))
}

impl Source for Nvidia {
    fn begin(&mut self) -> bool {
        self.fresh.begin(self.shown.is_some())
    }

    fn read(&mut self, targets: &Targets, _: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [gpus, processes] = out else { return Ok(()) };
        let now_ns = clock::boottime_ns();
        if self.take_over(now_ns)? {
            self.meet_strangers(targets);
        }
        let Some(shown) = self.shown.clone() else { return Ok(()) };
        self.fresh.read(now_ns, TICK_TIMEOUT, &self.figures);
        let now_ns = clock::boottime_ns();
        let mut first_error = self.silence(now_ns).map_or(Ok(()), Err);
        for (index, why) in shown.lost.iter() {
            first_error = first_error.and(Err(retry(format!("NVML, GPU {index}"), why.clone())));
        }
        for (index, facts) in shown.gpus.iter().enumerate() {
            let pushed = self.push_gpu(&shown, index, now_ns, targets, gpus, processes);
            if let Err(text) = pushed {
                let path = format!("NVML, GPU {}", facts.index);
                first_error = first_error.and(Err(retry(path, text)));
            }
        }
        self.hurry_if_unexplained(now_ns);
        first_error
    }

    fn unread(&self) -> Vec<Unread> {
        let Some(shown) = &self.shown else { return Vec::new() };
        let lost = shown.lost.iter().map(|(index, why)| {
            let mut labels = vec![String::new(); device::TABLE.labels.len()];
            labels[device::label::INDEX] = index.to_string();
            labels[device::label::VENDOR] = vendor::NVIDIA.to_owned();
            Unread { labels, why: why.clone() }
        });
        let now_ns = clock::boottime_ns();
        let troubled = shown.gpus.iter().enumerate().filter_map(|(index, facts)| {
            let is_silent = self.figures.get(index).is_some_and(|figures| figures.silent);
            let is_unread = |trouble: &Trouble| trouble.lost || is_silent;
            let trouble = self.trouble(shown, index, now_ns).filter(is_unread)?;
            Some(Unread { labels: facts.labels.clone(), why: trouble.text })
        });
        lost.chain(troubled).collect()
    }

    fn wait(&mut self, timeout: Duration) {
        // It begins to read on request.
        drop(self.slow.glance(clock::boottime_ns()));
        if timeout.is_zero() {
            return;
        }
        let deadline = Instant::now() + timeout;
        self.fresh.read(clock::boottime_ns(), timeout, &self.figures);
        let left = deadline.saturating_duration_since(Instant::now());
        let is_read = |state: &slow::State| state.number > 0 || state.failure.is_some();
        self.waited_in_vain = self.fresh.now.at_ns == 0 || !self.slow.wait_until(left, is_read);
    }

    fn set_interval(&mut self, interval: Duration) {
        self.fresh.age_max_ns = age_max_ns(interval);
    }

    fn shortfall(&self) -> Option<Shortfall> {
        if self.numbers.met_foreign {
            return Some(Shortfall {
                detail: "NVIDIA GPUs: use, memory, power and energy; not per process, because the driver \
                    reports host process ids and this container has its own"
                    .to_owned(),
                remedy: Some("run the container in the host's pid namespace (--pid=host)".to_owned()),
            });
        }
        let lists_no_process = !self.figures.is_empty() && self.figures.iter().all(|gpu| !gpu.list.is_known);
        lists_no_process.then(|| Shortfall {
            detail: "NVIDIA GPUs: use, memory, power and energy; not per process, because this driver does \
                not report it"
                .to_owned(),
            remedy: None,
        })
    }

    fn labels(&self) -> &[Vec<String>] {
        &self.labels
    }

    fn errand_cpu_ns(&self) -> i64 {
        match &self.fresh.caller {
            Caller::Thread(fast) => fast.cpu_ns(),
            Caller::Reader(_) => 0,
        }
    }

    fn background_cpu_ns(&self) -> i64 {
        self.slow.cpu_ns()
    }
}

/// How old power and use may be.
fn age_max_ns(interval: Duration) -> i64 {
    let periods_ns = i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX / 16) / 2 * 5;
    periods_ns.max(FRESH_MIN_NS)
}

fn retry(path: String, text: String) -> ReadError {
    ReadError::Retry { path, error: io::Error::other(text) }
}

/// The driver went away and may be back: handles of before are worth nothing.
fn needs_reload(error: &NvmlError) -> bool {
    matches!(error, NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch)
}

/// Whether the whole GPU is out of reach, not just one figure of it.
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
        if let Some(why) = state.failure.clone() {
            (self.shown, self.figures_number) = (None, 0);
            return Err(retry("NVML".to_owned(), why));
        }
        let known = |shown: &Shown| shown.number;
        if self.shown.as_ref().map(known) != state.shown.as_ref().map(known) {
            self.shown = state.shown.clone();
            self.figures.clear();
            let gpus = self.shown.as_ref().map_or(&[][..], |shown| &shown.gpus);
            if self.labels.len() > LABELS_MAX {
                self.labels.clear();
            }
            for facts in gpus {
                add_labels(&mut self.labels, &facts.labels);
                facts.parts.iter().for_each(|part| add_labels(&mut self.labels, &part.labels));
            }
        }
        self.slow_since_ns = state.asked_since_ns;
        if state.loading_since_ns.is_some_and(|since_ns| now_ns - since_ns > LOADING_MAX_NS) {
            return Err(retry("NVML".to_owned(), NO_ANSWER.to_owned()));
        }
        if state.number == self.figures_number {
            return Ok(false);
        }
        self.figures_number = state.number;
        self.figures.clone_from(&state.figures);
        Ok(true)
    }

    /// A GPU computes without a listed process: one has come since. A short-lived one would be gone when the
    /// list is read in its turn. A GPU that never lists a process is not queried all the time.
    fn hurry_if_unexplained(&mut self, now_ns: i64) {
        let mut gpus = self.fresh.now.gpus.iter().zip(&self.figures);
        if self.figures.iter().any(|figures| !figures.list.is_empty()) {
            self.hurry.explained();
        }
        let unexplained = gpus.any(|(reading, figures)| reading.computes() && figures.list.is_empty());
        if unexplained && self.hurry.is_due(now_ns) && self.slow.hurry(now_ns) {
            self.hurry.done(now_ns);
        }
    }

    /// A pid alone may have been reused: processes that are not targets are checked once.
    fn meet_strangers(&mut self, all: &Targets) {
        let targets: HashSet<u32> = all.tasks.iter().map(|task| task.pid).collect();
        let before = std::mem::take(&mut self.unowned_starts);
        for pid in self.figures.iter().flat_map(SlowGpu::pids).filter(|pid| !targets.contains(pid)) {
            let began = || self.host.process(pid).map_or(0, |process| process.start_ticks);
            let start_ticks = before.get(&pid).copied().unwrap_or_else(began);
            self.unowned_starts.insert(pid, start_ticks);
        }
        let named: HashSet<u32> = self.figures.iter().flat_map(SlowGpu::pids).collect();
        let tasks = all.tasks.iter().filter(|task| named.contains(&task.pid));
        let tasks = tasks.map(|task| (task.pid, task.start_ticks));
        let unowned_starts = self.unowned_starts.iter().map(|(&pid, &start_ticks)| (pid, start_ticks));
        self.numbers.meet(&self.host, tasks.chain(unowned_starts));
    }

    /// A driver that has kept a thread for longer than it may.
    fn silence(&self, now_ns: i64) -> Option<ReadError> {
        let is_loading = self.slow_since_ns.is_some_and(|since_ns| now_ns - since_ns > LOADING_MAX_NS);
        (self.fresh.is_late(now_ns) || is_loading || self.waited_in_vain)
            .then(|| retry("NVML".to_owned(), NO_ANSWER.to_owned()))
    }

    /// What is wrong with a GPU now.
    fn trouble(&self, shown: &Shown, index: usize, now_ns: i64) -> Option<Trouble> {
        let reading = self.fresh.of_gpu(shown, index, now_ns);
        let is_silent = self.figures.get(index).is_some_and(|figures| figures.silent);
        let silence = is_silent.then(Trouble::of_silent);
        reading.and_then(|reading| reading.trouble.clone()).or(silence)
    }

    fn push_gpu(
        &mut self,
        shown: &Shown,
        index: usize,
        now_ns: i64,
        targets: &Targets,
        gpus: &mut Batch,
        processes: &mut Batch,
    ) -> Result<(), String> {
        let facts = &shown.gpus[index];
        let part = part_of(&self.labels, &facts.labels);
        let mut cells = [MISSING; device::TABLE.columns.len()];
        let reading = self.fresh.of_gpu(shown, index, now_ns);
        let trouble = self.trouble(shown, index, now_ns);
        if let Some(trouble) = &trouble {
            if trouble.reload {
                self.slow.reload();
            }
            // One that is lost has no row but for why; the others have theirs.
            if trouble.lost {
                let faulty = self.figures.get(index).filter(|figures| figures.faults.count > Some(0));
                if let Some(figures) = faulty {
                    figures.faults.fill(gpus.push_part(Subject::Node, part));
                }
                return Err(trouble.text.clone());
            }
        }
        if let Some(reading) = reading {
            reading.fill(&mut cells);
        }
        let figures = self.figures.get(index).filter(|figures| figures.levels.are_fresh(now_ns));
        if let Some(figures) = figures {
            figures.fill(now_ns, &mut cells);
        }
        cells[device::PROCESSES] = figures.map_or(MISSING, |figures| figures.list.count());
        cells[device::SLICES] = facts.slices.map_or(MISSING, i64::from);
        gpus.push_part(Subject::Node, part).copy_from_slice(&cells);
        for (position, piece) in facts.parts.iter().enumerate() {
            let cells = gpus.push_part(Subject::Node, part_of(&self.labels, &piece.labels));
            cells[device::SLICES] = i64::from(piece.slices);
            cells[device::MEMORY_TOTAL] = piece.memory_bytes;
            if let Some(figures) = figures {
                figures.fill_part(position, now_ns, cells);
            }
        }
        if let Some(figures) = figures {
            self.push_processes(facts, figures, part, targets, processes);
        }
        trouble.map_or(Ok(()), |trouble| Err(trouble.text))
    }

    /// A process of a job, or an unowned one. An ended process has no start time any more: the tracker of
    /// processes knows its job.
    fn subject(&self, pid: u32, targets: &Targets) -> Subject {
        let task = targets.tasks.iter().find(|task| task.pid == pid);
        let unowned = || self.unowned_starts.get(&pid).copied().unwrap_or(0);
        let start_ticks = task.map_or_else(unowned, |task| task.start_ticks);
        match self.numbers.is_ours(pid, start_ticks) {
            true => Subject::Task { pid, start_ticks },
            false => FOREIGN,
        }
    }

    fn push_processes(
        &self,
        facts: &GpuFacts,
        figures: &SlowGpu,
        whole: u32,
        targets: &Targets,
        processes: &mut Batch,
    ) {
        let first_row = processes.len();
        for info in &figures.list.computing {
            let piece = facts.parts.iter().find(|piece| {
                (piece.gpu_instance, piece.compute_instance) == (info.gpu_instance, info.compute_instance)
            });
            let part = piece.map_or(whole, |piece| part_of(&self.labels, &piece.labels));
            let cells = processes.push_part(self.subject(info.pid, targets), part);
            cells[process::OPEN] = 1;
            cells[process::MEMORY] = info.memory_bytes;
            figures.usage.fill_process(info.pid, cells);
        }
        for &(pid, memory) in &figures.list.drawing {
            if !figures.list.computing.iter().any(|info| info.pid == pid) {
                let cells = processes.push_part(self.subject(pid, targets), whole);
                (cells[process::OPEN], cells[process::MEMORY]) = (1, memory);
                figures.usage.fill_process(pid, cells);
            }
        }
        // Processes that computed and have ended since: the energy of their time is still to be charged.
        for sample in &figures.usage.samples {
            let listed = processes
                .rows()
                .skip(first_row)
                .any(|(row, _)| row.owner == self.subject(sample.pid, targets));
            if !listed {
                let cells = processes.push_part(self.subject(sample.pid, targets), whole);
                cells[process::OPEN] = 0;
                figures.usage.fill_process(sample.pid, cells);
            }
        }
    }
}

/// A GPU keeps its row; its number may be another one by now.
fn add_labels(known: &mut Vec<Vec<String>>, labels: &[String]) {
    match known.iter_mut().find(|known| known[device::label::UUID] == labels[device::label::UUID]) {
        Some(known) => labels.clone_into(known),
        None => known.push(labels.to_vec()),
    }
}

fn part_of(known: &[Vec<String>], labels: &[String]) -> u32 {
    let uuid = &labels[device::label::UUID];
    known.iter().position(|known| known[device::label::UUID] == *uuid).map_or(0, |part| part as u32)
}

/// In a container whose pids are its own, or without permission, the library does not know.
fn memory_bytes(used: u64) -> i64 {
    if used == u64::MAX { MISSING } else { i64::try_from(used).unwrap_or(MISSING) }
}

fn outcome(code: nvmlReturn_t) -> Result<(), NvmlError> {
    nvml_wrapper::error::nvml_try(code)
}

#[cfg(test)]
#[path = "nvidia/tests.rs"]
mod tests;
