//! The thread that does what takes milliseconds: loads the library, finds the cards, reads the dear
//! figures. It works only while somebody looks, and as often as its cost allows.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use met_core::MISSING;
use met_core::gpu::{card, process};
use met_host::clock;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationSample_t, nvmlReturn_t,
};

use super::fast::Lender;
use super::{is_lost, memory_bytes, outcome};

const LIBRARIES: [&str; 3] =
    ["libnvidia-ml.so.1", "libnvidia-ml.so", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"];
/// One part in so many of a core may be spent: on levels and processes, on the dear figures, on PCIe.
const LEVELS_COST_INVERSE: i64 = 3000;
const COST_INVERSE: i64 = 2500;
const PCIE_COST_INVERSE: i64 = 20_000;
/// A little less than a second: who looks once a second finds new figures every time.
const EVERY_MIN_NS: i64 = 900_000_000;
const LEVELS_EVERY_MAX_NS: i64 = 5_000_000_000;
const EVERY_MAX_NS: i64 = 20_000_000_000;
const PCIE_EVERY_MIN_NS: i64 = 10_000_000_000;
const PCIE_EVERY_MAX_NS: i64 = 300_000_000_000;
/// Cards are made whole, cut into parts, lost and found again while somebody looks.
const LAYOUT_EVERY_NS: i64 = if cfg!(test) { 100_000_000 } else { 30_000_000_000 };
/// A driver that is gone is looked for this often.
const RELOAD_EVERY: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_millis(50);
/// While the library is loaded nobody can reset a card or reload the driver: it goes when nobody looks.
const UNLOAD_AFTER_NS: i64 = if cfg!(test) { 1_500_000_000 } else { 180_000_000_000 };
/// Figures of so many periods ago are not those of now.
const PERIODS_MAX: i64 = 3;
/// Processes that a card is asked for in one call. More are possible and then asked for again.
const PROCESSES_USUAL: usize = 64;
const PROCESSES_MAX: usize = 1 << 16;
const SAMPLES_USUAL: u32 = 256;
const SAMPLES_MAX: u32 = 1 << 16;
/// The driver remembers about this much of what processes did.
const REMEMBERED_US: i64 = 1_000_000;

/// The library and the cards it shows; cheap to clone. Only the source's own threads have it: the last one
/// who lets go of it shuts it down, and that takes as long as the driver likes.
#[derive(Clone)]
pub(super) struct Loaded {
    /// Tells one loading from the next.
    pub number: u64,
    pub nvml: Arc<Nvml>,
    pub cards: Arc<[CardFacts]>,
}

/// The same without the library, for ticks.
#[derive(Clone)]
pub(super) struct Shown {
    pub number: u64,
    pub cards: Arc<[CardFacts]>,
}

pub(super) struct CardFacts {
    pub index: u32,
    handle: Handle,
    pub labels: Vec<String>,
    /// How many slices it has, if it can be cut into parts and is.
    pub slices: Option<u32>,
    pub parts: Vec<PartFacts>,
}

/// The library's own name of a card; worth something as long as the library stays loaded.
struct Handle(nvmlDevice_t);

// SAFETY: the library may be called from any thread, and never gives its handles up while it is loaded.
unsafe impl Send for Handle {}
unsafe impl Sync for Handle {}

impl CardFacts {
    /// Looking a card up by its number would cost as much as reading it.
    pub fn device<'a>(&self, nvml: &'a Nvml) -> Device<'a> {
        // SAFETY: the handle comes from this very library, which `Loaded` keeps together with it.
        unsafe { Device::new(self.handle.0, nvml) }
    }
}

pub(super) struct PartFacts {
    pub labels: Vec<String>,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    pub slices: u32,
    pub memory_bytes: i64,
}

/// The dear figures of one card, and when they were read.
#[derive(Clone, Default)]
pub(super) struct SlowCard {
    at_ns: i64,
    /// When the levels and the list of processes were read, and after how long they are old.
    levels_at_ns: i64,
    levels_age_max_ns: i64,
    levels: [i64; LEVELS.len()],
    pub processes: Vec<OnCard>,
    /// The driver said who is on the card; else an empty list says nothing.
    pub knows_list: bool,
    energy_uj: Option<i64>,
    /// Use by process since the pass before; `None` where the card does not tell.
    knows_processes: bool,
    pub samples: Vec<Sample>,
    /// Who was on the card then.
    asked_for: Vec<u32>,
    /// Processes that draw and do not compute.
    pub graphics: Vec<(u32, i64)>,
    ecc_corrected: Option<i64>,
    ecc_uncorrected: Option<i64>,
    encoder: Option<i64>,
    decoder: Option<i64>,
    pcie_received: Option<i64>,
    pcie_sent: Option<i64>,
    faults: Option<i64>,
    fault_last: Option<i64>,
    last_seen_us: u64,
}

/// A process that computes on a card.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnCard {
    pub pid: u32,
    pub memory_bytes: i64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// The columns of what changes slowly, in the order in which it is read.
const LEVELS: [usize; 6] = [
    card::TEMPERATURE,
    card::CLOCK,
    card::CLOCK_MEMORY,
    card::THROTTLE,
    card::MEMORY_USED,
    card::MEMORY_TOTAL,
];

/// In thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub pid: u32,
    utilization: i64,
    memory: i64,
    encoder: i64,
    decoder: i64,
}

impl SlowCard {
    fn new() -> SlowCard {
        SlowCard { levels: [MISSING; LEVELS.len()], ..SlowCard::default() }
    }

    /// Every process that is named in it.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        let listed = self.processes.iter().map(|info| info.pid);
        let drawing = self.graphics.iter().map(|&(pid, _)| pid);
        listed.chain(drawing).chain(self.samples.iter().map(|sample| sample.pid))
    }

    /// Whether it tells of now. If not, the thread is kept by a driver that does not answer, or nobody looked.
    pub fn is_fresh(&self, now_ns: i64) -> bool {
        now_ns - self.levels_at_ns <= self.levels_age_max_ns
    }

    pub fn fill(&self, now_ns: i64, cells: &mut [i64]) {
        for (column, level) in LEVELS.into_iter().zip(self.levels) {
            cells[column] = level;
        }
        if self.at_ns == 0 || now_ns - self.at_ns > PERIODS_MAX * EVERY_MAX_NS {
            return;
        }
        cells[card::PASS_AGE] = (now_ns - self.at_ns).max(0);
        for (column, value) in [
            (card::ENERGY, self.energy_uj),
            (card::ECC_CORRECTED, self.ecc_corrected),
            (card::ECC_UNCORRECTED, self.ecc_uncorrected),
            (card::UTILIZATION_ENCODER, self.encoder),
            (card::UTILIZATION_DECODER, self.decoder),
            (card::PCIE_RECEIVED, self.pcie_received),
            (card::PCIE_SENT, self.pcie_sent),
            (card::FAULTS, self.faults),
            (card::FAULT_LAST, self.fault_last),
        ] {
            cells[column] = value.unwrap_or(MISSING);
        }
    }

    /// A process that the library does not name did nothing, unless it is newer than the pass.
    pub fn fill_process(&self, pid: u32, cells: &mut [i64]) {
        let sample = self.samples.iter().find(|sample| sample.pid == pid);
        let idle = (self.knows_processes && self.asked_for.contains(&pid)).then(Sample::default);
        if let Some(sample) = sample.copied().or(idle) {
            cells[process::UTILIZATION] = sample.utilization;
            cells[process::UTILIZATION_MEMORY] = sample.memory;
            cells[process::UTILIZATION_ENCODER] = sample.encoder;
            cells[process::UTILIZATION_DECODER] = sample.decoder;
        }
    }
}

#[derive(Default)]
pub(super) struct State {
    pub shown: Option<Shown>,
    /// Why nothing is loaded, once that was tried.
    pub failure: Option<String>,
    /// While the library is being loaded: since when.
    pub loading_since_ns: Option<i64>,
    pub figures: Vec<SlowCard>,
    /// Counts passes.
    pub number: u64,
    /// When more is to be read: the levels and processes, and the dear figures.
    due_ns: i64,
    pass_due_ns: i64,
    asked: bool,
    /// When figures were asked for that are not there yet.
    pub asked_since_ns: Option<i64>,
    /// When somebody looked last.
    looked_ns: i64,
    reload: bool,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
    cpu_ns: AtomicI64,
}

/// Our end of the thread.
pub(super) struct Slow {
    shared: Arc<Shared>,
}

/// What the thread works with.
struct Worker {
    shared: Arc<Shared>,
    library: Option<PathBuf>,
    lender: Lender,
    /// Between two looks, as far as that is known.
    interval_ns: i64,
}

/// Why the library is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stop,
    Reload,
    /// Nobody looks.
    Unused,
}

impl Slow {
    pub fn start(library: Option<PathBuf>, lender: Lender, interval: Duration) -> io::Result<Slow> {
        let shared = Arc::new(Shared::default());
        lock(&shared.state).loading_since_ns = Some(clock::boottime_ns());
        let interval_ns = i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX / 16);
        let worker = Worker { shared: Arc::clone(&shared), library, lender, interval_ns };
        std::thread::Builder::new().name("nvml".to_owned()).spawn(move || worker.work())?;
        Ok(Slow { shared })
    }

    /// Waits until `enough` and says whether that came in time.
    pub fn wait_until(&self, patience: Duration, enough: impl Fn(&State) -> bool) -> bool {
        let begin = Instant::now();
        let mut state = lock(&self.shared.state);
        while !enough(&state) {
            let Some(left) = patience.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else {
                return false;
            };
            state = self.shared.done.wait_timeout(state, left).unwrap_or_else(|broken| broken.into_inner()).0;
        }
        true
    }

    /// Why there is nothing to be read, if that is known.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.state).failure.clone()
    }

    /// Looks at what there is and asks for more if it is time. `None`: the thread is just writing.
    pub fn glance(&self, now_ns: i64) -> Option<MutexGuard<'_, State>> {
        let mut state = self.shared.state.try_lock().ok()?;
        state.looked_ns = now_ns;
        if !state.asked && now_ns >= state.due_ns {
            state.asked = true;
            state.asked_since_ns.get_or_insert(now_ns);
            self.shared.wake.notify_one();
        }
        Some(state)
    }

    pub fn reload(&self) {
        if let Ok(mut state) = self.shared.state.try_lock() {
            state.reload = true;
            self.shared.wake.notify_one();
        }
    }

    pub fn cpu_ns(&self) -> i64 {
        self.shared.cpu_ns.load(Ordering::Relaxed)
    }
}

impl Drop for Slow {
    /// The thread is not waited for: it may be inside a driver that does not answer.
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.wake.notify_one();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}

impl Worker {
    fn work(&self) {
        let mut number = 0;
        loop {
            number += 1;
            let loaded = self.load(number);
            let end = match &loaded {
                Some(loaded) => self.serve(loaded),
                None if self.pause(RELOAD_EVERY) => End::Stop,
                None => End::Reload,
            };
            self.lender.lend(None);
            // Never under a lock: this may shut the library down.
            drop(loaded);
            let stop = match end {
                End::Stop => true,
                // Whoever still works with the old library lets go of it meanwhile: only then it is loaded anew.
                End::Reload => self.pause(SETTLE),
                End::Unused => self.pause(Duration::ZERO),
            };
            if stop {
                return;
            }
        }
    }

    fn load(&self, number: u64) -> Option<Loaded> {
        lock(&self.shared.state).loading_since_ns = Some(clock::boottime_ns());
        let opened = load(self.library.as_deref(), number);
        self.lender.lend(opened.as_ref().ok().cloned());
        let mut state = lock(&self.shared.state);
        let shown = |loaded: &Loaded| Shown { number, cards: Arc::clone(&loaded.cards) };
        state.shown = opened.as_ref().ok().map(shown);
        state.failure = opened.as_ref().err().cloned();
        (state.reload, state.loading_since_ns, state.asked_since_ns) = (false, None, None);
        (state.due_ns, state.pass_due_ns, state.figures) = (0, 0, Vec::new());
        state.looked_ns = clock::boottime_ns();
        drop(state);
        self.note_cost();
        self.shared.done.notify_all();
        opened.ok()
    }

    fn note_cost(&self) {
        self.shared.cpu_ns.store(clock::thread_cpu_ns(), Ordering::Relaxed);
    }

    /// Waits until it is time to try again; true when told to stop.
    fn pause(&self, time: Duration) -> bool {
        let begin = Instant::now();
        let mut state = lock(&self.shared.state);
        // Without anybody who looks there is no hurry.
        while !state.stop && (begin.elapsed() < time || !state.asked) {
            let left = time.saturating_sub(begin.elapsed()).max(Duration::from_millis(10));
            let wake = &self.shared.wake;
            state = match state.asked {
                true => wake.wait_timeout(state, left).unwrap_or_else(|broken| broken.into_inner()).0,
                false => wake.wait(state).unwrap_or_else(|broken| broken.into_inner()),
            };
        }
        state.asked = false;
        state.stop
    }

    /// Sleeps until somebody asks for figures, or there is a reason to give the library up.
    fn wait_for_order(&self) -> Option<End> {
        let unload_after_ns = UNLOAD_AFTER_NS.max(PERIODS_MAX * self.interval_ns);
        let mut state = lock(&self.shared.state);
        while !(state.asked || state.stop || state.reload) {
            let unused_ns = clock::boottime_ns() - state.looked_ns;
            let Some(left_ns) = u64::try_from(unload_after_ns - unused_ns).ok().filter(|&left| left > 0)
            else {
                (state.shown, state.due_ns) = (None, 0);
                return Some(End::Unused);
            };
            let left = Duration::from_nanos(left_ns);
            state = self.shared.wake.wait_timeout(state, left).unwrap_or_else(|broken| broken.into_inner()).0;
        }
        if state.stop || state.reload {
            (state.shown, state.asked, state.due_ns) = (None, false, 0);
            return Some(if state.stop { End::Stop } else { End::Reload });
        }
        None
    }

    /// Reads the dear figures when asked to, until there is a reason to give the library up.
    fn serve(&self, loaded: &Loaded) -> End {
        let faults = listen(loaded);
        let mut figures: Vec<SlowCard> = loaded.cards.iter().map(|_| SlowCard::new()).collect();
        let mut buffer = Vec::new();
        let mut pcie_due_ns = 0;
        let mut layout_due_ns = clock::boottime_ns() + LAYOUT_EVERY_NS;
        loop {
            if let Some(end) = self.wait_for_order() {
                return end;
            }
            let now_ns = clock::boottime_ns();
            if now_ns >= layout_due_ns {
                layout_due_ns = now_ns + LAYOUT_EVERY_NS;
                let changed = layout_changed(loaded);
                lock(&self.shared.state).reload |= changed;
                // Found at the top of this loop.
                continue;
            }
            let begin_cpu_ns = clock::thread_cpu_ns();
            for (facts, figures) in loaded.cards.iter().zip(&mut figures) {
                read_levels(&facts.device(&loaded.nvml), &mut buffer, figures);
            }
            let levels_cpu_ns = clock::thread_cpu_ns();
            let pass_due_ns = lock(&self.shared.state).pass_due_ns;
            let passed = clock::boottime_ns() >= pass_due_ns;
            if passed {
                for (facts, figures) in loaded.cards.iter().zip(&mut figures) {
                    pass(&facts.device(&loaded.nvml), figures);
                }
                hear(faults.as_ref(), loaded, &mut figures);
            }
            let now_ns = clock::boottime_ns();
            let passed_cpu_ns = passed.then(|| clock::thread_cpu_ns() - levels_cpu_ns);
            self.publish(&mut figures, levels_cpu_ns - begin_cpu_ns, passed_cpu_ns);
            // The first pass is for those who wait; what takes 20 ms and more comes with a later one.
            if now_ns >= pcie_due_ns {
                pcie_due_ns = match pcie_due_ns {
                    0 => now_ns + PCIE_EVERY_MIN_NS,
                    _ => now_ns + read_all_pcie(loaded, &mut figures),
                };
            }
        }
    }

    /// Hands the figures over and says, by what they cost, when more may be read.
    fn publish(&self, figures: &mut [SlowCard], levels_cpu_ns: i64, passed_cpu_ns: Option<i64>) {
        let now_ns = clock::boottime_ns();
        let pace =
            |cost_ns: i64, inverse: i64, longest_ns| (cost_ns * inverse).clamp(EVERY_MIN_NS, longest_ns);
        let levels_every_ns = pace(levels_cpu_ns, LEVELS_COST_INVERSE, LEVELS_EVERY_MAX_NS);
        for card in figures.iter_mut() {
            // A tick takes over what the tick before has asked for.
            card.levels_age_max_ns = PERIODS_MAX * levels_every_ns.max(self.interval_ns);
        }
        let mut state = lock(&self.shared.state);
        state.figures.clear();
        state.figures.extend_from_slice(figures);
        state.number += 1;
        state.due_ns = now_ns + levels_every_ns;
        if let Some(cost_ns) = passed_cpu_ns {
            state.pass_due_ns = now_ns + pace(cost_ns, COST_INVERSE, EVERY_MAX_NS);
        }
        (state.asked, state.asked_since_ns) = (false, None);
        drop(state);
        self.note_cost();
        self.shared.done.notify_all();
    }
}

/// Reads PCIe of every card and says after which time that may be done again.
fn read_all_pcie(loaded: &Loaded, figures: &mut [SlowCard]) -> i64 {
    let begin_ns = clock::thread_cpu_ns();
    for (facts, figures) in loaded.cards.iter().zip(figures) {
        read_pcie(&facts.device(&loaded.nvml), figures);
    }
    let cost_ns = clock::thread_cpu_ns() - begin_ns;
    (cost_ns * PCIE_COST_INVERSE).clamp(PCIE_EVERY_MIN_NS, PCIE_EVERY_MAX_NS)
}

fn load(library: Option<&std::path::Path>, number: u64) -> Result<Loaded, String> {
    let nvml = match library {
        Some(path) => init(path.as_os_str()),
        None => {
            let mut tried = LIBRARIES.iter().map(|name| init(OsStr::new(name)));
            let first = tried.next().unwrap_or(Err(NvmlError::LibraryNotFound));
            let missing = |error: &NvmlError| matches!(error, NvmlError::LibloadingError(_));
            match first {
                Err(error) if missing(&error) => tried.find_map(Result::ok).ok_or(error),
                other => other,
            }
        }
    };
    let nvml = nvml.map_err(|error| match error {
        NvmlError::LibloadingError(why) if library.is_some() => {
            format!("{}: {why}", library.unwrap_or(std::path::Path::new("")).display())
        }
        NvmlError::LibloadingError(_) => {
            "an NVIDIA driver is loaded but its library libnvidia-ml.so.1 is not installed".to_owned()
        }
        NvmlError::LibRmVersionMismatch => {
            "libnvidia-ml.so.1 and the loaded NVIDIA driver are of different versions: reboot, or reload the driver".to_owned()
        }
        error => format!("NVML: {error}"),
    })?;
    let count = nvml.device_count().map_err(|error| format!("NVML: {error}"))?;
    if count == 0 {
        return Err("the NVIDIA driver shows no card".to_owned());
    }
    let mut cards = Vec::new();
    for index in 0..count {
        // A card that is lost or not ours does not take the others with it.
        if let Ok(device) = nvml.device_by_index(index)
            && let Ok(facts) = facts_of(&device, index)
        {
            cards.push(facts);
        }
    }
    if cards.is_empty() {
        return Err(format!("none of the {count} NVIDIA cards may be read"));
    }
    Ok(Loaded { number, nvml: Arc::new(nvml), cards: cards.into() })
}

/// Whether there is a card or a part that is not known, or a part is gone. A card that is lost is no change:
/// its handle may work again, and the others need not suffer for it.
fn layout_changed(loaded: &Loaded) -> bool {
    let uuid = |labels: &[String]| labels[card::label::UUID].clone();
    let known: HashMap<String, Vec<String>> = loaded
        .cards
        .iter()
        .map(|facts| (uuid(&facts.labels), facts.parts.iter().map(|part| uuid(&part.labels)).collect()))
        .collect();
    let count = loaded.nvml.device_count().unwrap_or(0);
    (0..count).any(|index| {
        let facts = loaded.nvml.device_by_index(index).and_then(|device| facts_of(&device, index));
        facts.is_ok_and(|facts| {
            let parts: Vec<String> = facts.parts.iter().map(|part| uuid(&part.labels)).collect();
            known.get(&uuid(&facts.labels)) != Some(&parts)
        })
    })
}

fn init(path: &OsStr) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(path).init()
}

fn facts_of(device: &Device<'_>, index: u32) -> Result<CardFacts, NvmlError> {
    let uuid = device.uuid()?;
    let name = device.name().unwrap_or_else(|_| "NVIDIA".to_owned());
    let minor = device.minor_number().map(|minor| format!("195:{minor}")).unwrap_or_default();
    let mut facts = CardFacts {
        index,
        // SAFETY: kept with the library it comes from.
        handle: Handle(unsafe { device.handle() }),
        labels: vec![
            index.to_string(),
            uuid.clone(),
            name.clone(),
            "nvidia".to_owned(),
            String::new(),
            minor,
        ],
        slices: None,
        parts: Vec::new(),
    };
    if device.mig_mode().is_ok_and(|mode| mode.current != 0) {
        let most = device.mig_device_count().unwrap_or(0);
        facts.slices = Some(most);
        for position in 0..most {
            if let Ok(piece) = device.mig_device_by_index(position)
                && let Some(piece) = part_facts(&piece, index, position, &name, &uuid)
            {
                facts.parts.push(piece);
            }
        }
    }
    Ok(facts)
}

fn part_facts(device: &Device<'_>, card: u32, position: u32, name: &str, parent: &str) -> Option<PartFacts> {
    let library = device.nvml().lib();
    let id = |symbol: &Result<unsafe extern "C" fn(_, *mut u32) -> _, _>| {
        let symbol = symbol.as_ref().ok()?;
        let mut id = 0;
        // SAFETY: the handle is that of a living part, and the library writes one number.
        outcome(unsafe { symbol(device.handle(), &mut id) }).ok()?;
        Some(id)
    };
    let attributes = device.attributes().ok();
    let slices = attributes.as_ref().map_or(1, |found| {
        // Several computing instances may divide the slices of one instance.
        let own = found.compute_instance_slice_count;
        if own > 0 { own } else { found.gpu_instance_slice_count.max(1) }
    });
    let memory =
        attributes.map_or(MISSING, |found| memory_bytes(found.memory_size_mb.saturating_mul(1 << 20)));
    let gpu_instance = id(&library.nvmlDeviceGetGpuInstanceId)?;
    let compute_instance = id(&library.nvmlDeviceGetComputeInstanceId)?;
    let labels = vec![
        format!("{card}.{position}"),
        device.uuid().ok()?,
        format!("{name} MIG {slices}g"),
        "nvidia".to_owned(),
        parent.to_owned(),
        String::new(),
        format!("{gpu_instance}/{compute_instance}"),
    ];
    Some(PartFacts { labels, gpu_instance, compute_instance, slices, memory_bytes: memory })
}

/// What changes slowly, and who is on the card.
fn read_levels(device: &Device<'_>, buffer: &mut Vec<nvmlProcessInfo_t>, figures: &mut SlowCard) {
    let number = |found: Result<i64, NvmlError>| found.unwrap_or(MISSING);
    figures.levels_at_ns = clock::boottime_ns();
    let temperature = device.temperature(TemperatureSensor::Gpu);
    // A lost card keeps every caller waiting: one call is enough to know.
    if temperature.as_ref().is_err_and(is_lost) {
        figures.levels = [MISSING; LEVELS.len()];
        figures.processes.clear();
        figures.knows_list = false;
        return;
    }
    let memory = device.memory_info().ok();
    figures.levels = [
        number(temperature.map(|celsius| i64::from(celsius) * 1000)),
        number(device.clock_info(Clock::SM).map(i64::from)),
        number(device.clock_info(Clock::Memory).map(i64::from)),
        number(device.current_throttle_reasons().map(|reasons| reasons.bits() as i64)),
        memory.as_ref().map_or(MISSING, |memory| memory_bytes(memory.used)),
        memory.as_ref().map_or(MISSING, |memory| memory_bytes(memory.total)),
    ];
    figures.processes.clear();
    figures.knows_list = list_processes(device, buffer).or_else(|_| list_as_before(device, buffer)).is_ok();
    if figures.knows_list {
        figures.processes.extend(buffer.iter().map(|info| OnCard {
            pid: info.pid,
            memory_bytes: memory_bytes(info.usedGpuMemory),
            gpu_instance: info.gpuInstanceId,
            compute_instance: info.computeInstanceId,
        }));
    }
}

/// The same of a driver older than 510, which has parts of cards from 450 on.
fn list_as_before(device: &Device<'_>, buffer: &mut Vec<nvmlProcessInfo_t>) -> Result<(), NvmlError> {
    const NO_PART: u32 = u32::MAX;
    let library = device.nvml().lib();
    buffer.clear();
    if let Ok(symbol) = library.nvmlDeviceGetComputeRunningProcesses_v2.as_ref()
        && list_by(buffer, |count, room| {
            // SAFETY: there is room for `count` entries, and the library says how many it wrote.
            unsafe { symbol(device.handle(), count, room) }
        })
        .is_ok()
    {
        return Ok(());
    }
    let symbol = library.nvmlDeviceGetComputeRunningProcesses.as_ref();
    let symbol = symbol.map_err(|_| NvmlError::FunctionNotFound)?;
    let mut old: Vec<nvmlProcessInfo_v1_t> = Vec::new();
    // SAFETY: as above.
    list_by(&mut old, |count, room| unsafe { symbol(device.handle(), count, room) })?;
    buffer.extend(old.iter().map(|info| nvmlProcessInfo_t {
        pid: info.pid,
        usedGpuMemory: info.usedGpuMemory,
        gpuInstanceId: NO_PART,
        computeInstanceId: NO_PART,
    }));
    Ok(())
}

/// One call into our own buffer: the library's wrapper asks twice.
fn list_processes(device: &Device<'_>, buffer: &mut Vec<nvmlProcessInfo_t>) -> Result<(), NvmlError> {
    let symbol = device.nvml().lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref();
    let symbol = symbol.map_err(|_| NvmlError::FunctionNotFound)?;
    // SAFETY: there is room for `count` entries, and the library says how many it wrote.
    list_by(buffer, |count, room| unsafe { symbol(device.handle(), count, room) })
}

/// Fills the buffer by a call that takes its room and tells how many entries it wrote or would write.
fn list_by<T>(buffer: &mut Vec<T>, call: impl Fn(*mut u32, *mut T) -> nvmlReturn_t) -> Result<(), NvmlError> {
    buffer.clear();
    let mut room = buffer.capacity().max(PROCESSES_USUAL);
    loop {
        buffer.reserve(room);
        let mut count = u32::try_from(room).unwrap_or(u32::MAX);
        match outcome(call(&mut count, buffer.as_mut_ptr())) {
            Ok(()) => {
                // SAFETY: that many were written, and never more than there is room for.
                unsafe { buffer.set_len((count as usize).min(room)) };
                return Ok(());
            }
            Err(NvmlError::InsufficientSize(_)) if room < PROCESSES_MAX => {
                room = (count as usize).max(room * 2).min(PROCESSES_MAX);
            }
            Err(error) => return Err(error),
        }
    }
}

/// One card's dear figures. What fails stays unknown until the next pass.
fn pass(device: &Device<'_>, figures: &mut SlowCard) {
    if figures.last_seen_us == 0 {
        figures.last_seen_us = u64::try_from(clock::realtime_ns() / 1000 - REMEMBERED_US).unwrap_or(0);
    }
    let used = read_use(device, figures.last_seen_us);
    let begin_ns = clock::boottime_ns();
    let energy = device.total_energy_consumption();
    let end_ns = clock::boottime_ns();
    if energy.as_ref().is_err_and(is_lost) {
        return;
    }
    figures.at_ns = begin_ns + (end_ns - begin_ns) / 2;
    figures.energy_uj = energy.ok().and_then(|mj| i64::try_from(mj).ok()).map(|mj| mj.saturating_mul(1000));
    match used {
        Ok((samples, last_seen_us)) => {
            (figures.samples, figures.knows_processes) = (samples, true);
            figures.last_seen_us = last_seen_us.max(figures.last_seen_us);
        }
        Err(_) => {
            // Not known, whatever the reason: nothing is not what they did.
            figures.samples.clear();
            figures.knows_processes = false;
        }
    }
    let count = |found: Result<u64, NvmlError>| found.ok().and_then(|count| i64::try_from(count).ok());
    figures.ecc_corrected = count(device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile));
    figures.ecc_uncorrected = count(device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile));
    figures.encoder = device.encoder_utilization().ok().map(|used| i64::from(used.utilization) * 10);
    figures.decoder = device.decoder_utilization().ok().map(|used| i64::from(used.utilization) * 10);
    let memory = |used: UsedGpuMemory| match used {
        UsedGpuMemory::Used(bytes) => memory_bytes(bytes),
        UsedGpuMemory::Unavailable => MISSING,
    };
    let graphics = device.running_graphics_processes().unwrap_or_default();
    figures.asked_for.clear();
    figures.asked_for.extend(figures.processes.iter().map(|info| info.pid));
    figures.asked_for.extend(graphics.iter().map(|info| info.pid));
    figures.graphics = graphics.into_iter().map(|info| (info.pid, memory(info.used_gpu_memory))).collect();
}

/// Use by process since `since_us`, one entry for each, and the time of the newest.
fn read_use(device: &Device<'_>, since_us: u64) -> Result<(Vec<Sample>, u64), NvmlError> {
    let symbol = device.nvml().lib().nvmlDeviceGetProcessUtilization.as_ref();
    let symbol = symbol.map_err(|_| NvmlError::FunctionNotFound)?;
    let mut raw: Vec<nvmlProcessUtilizationSample_t> = Vec::new();
    let mut room = SAMPLES_USUAL;
    loop {
        raw.reserve(room as usize);
        let mut count = room;
        // SAFETY: the buffer has room for `count` entries, and the library says how many it wrote.
        match outcome(unsafe { symbol(device.handle(), raw.as_mut_ptr(), &mut count, since_us) }) {
            Ok(()) => {
                // SAFETY: that many were written, and never more than there is room for.
                unsafe { raw.set_len(count.min(room) as usize) };
                break;
            }
            Err(NvmlError::InsufficientSize(_)) if room < SAMPLES_MAX => room *= 4,
            // Nobody did anything.
            Err(NvmlError::NotFound) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(by_process(&raw, since_us))
}

/// The mean of each process's samples that are newer than `since_us`.
fn by_process(raw: &[nvmlProcessUtilizationSample_t], since_us: u64) -> (Vec<Sample>, u64) {
    let mut found: Vec<(Sample, i64)> = Vec::new();
    let mut newest_us = since_us;
    // Slots that the library did not use have no pid, those of before an old time.
    for entry in raw.iter().filter(|entry| entry.pid != 0 && entry.timeStamp > since_us) {
        newest_us = newest_us.max(entry.timeStamp);
        let position = found.iter().position(|(sample, _)| sample.pid == entry.pid).unwrap_or_else(|| {
            found.push((Sample { pid: entry.pid, ..Sample::default() }, 0));
            found.len() - 1
        });
        let (sample, count) = &mut found[position];
        // More than all of a card is a fault of the driver's.
        let thousandths = |percent: u32| i64::from(percent.min(100)) * 10;
        sample.utilization += thousandths(entry.smUtil);
        sample.memory += thousandths(entry.memUtil);
        sample.encoder += thousandths(entry.encUtil);
        sample.decoder += thousandths(entry.decUtil);
        *count += 1;
    }
    let mean = |(sample, count): (Sample, i64)| Sample {
        utilization: sample.utilization / count,
        memory: sample.memory / count,
        encoder: sample.encoder / count,
        decoder: sample.decoder / count,
        ..sample
    };
    (found.into_iter().map(mean).collect(), newest_us)
}

fn read_pcie(device: &Device<'_>, figures: &mut SlowCard) {
    // In KB.
    let rate = |counter| device.pcie_throughput(counter).ok().map(|kb| i64::from(kb) * 1000);
    figures.pcie_received = rate(PcieUtilCounter::Receive);
    figures.pcie_sent = rate(PcieUtilCounter::Send);
}

/// Asks the driver to tell of critical errors of every card that can.
fn listen(loaded: &Loaded) -> Option<EventSet<'_>> {
    let mut set = loaded.nvml.create_event_set().ok()?;
    let mut heard = false;
    for facts in loaded.cards.iter() {
        set = match facts.device(&loaded.nvml).register_events(EventTypes::CRITICAL_XID_ERROR, set) {
            Ok(set) => {
                heard = true;
                set
            }
            // The set is gone with the card that refused: begin again without it.
            Err(_) => loaded.nvml.create_event_set().ok()?,
        };
    }
    heard.then_some(set)
}

fn hear(faults: Option<&EventSet<'_>>, loaded: &Loaded, figures: &mut [SlowCard]) {
    const EVENTS_MAX: usize = 64;
    let Some(faults) = faults else { return };
    for figures in figures.iter_mut() {
        figures.faults.get_or_insert(0);
    }
    for _ in 0..EVENTS_MAX {
        let Ok(event) = faults.wait(0) else { return };
        let uuid = event.device.uuid().unwrap_or_default();
        let card = loaded.cards.iter().position(|facts| facts.labels[card::label::UUID] == uuid);
        if let Some(figures) = card.and_then(|index| figures.get_mut(index)) {
            *figures.faults.get_or_insert(0) += 1;
            if let Some(XidError::Value(number)) = event.event_data {
                figures.fault_last = i64::try_from(number).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pid: u32, time_us: u64, percent: u32) -> nvmlProcessUtilizationSample_t {
        nvmlProcessUtilizationSample_t {
            pid,
            timeStamp: time_us,
            smUtil: percent,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        }
    }

    #[test]
    fn use_is_the_mean_of_what_is_new() {
        let entries = [raw(7, 100, 90), raw(7, 200, 40), raw(7, 300, 60), raw(0, 300, 99), raw(8, 250, 999)];
        let (samples, newest_us) = by_process(&entries, 100);
        let found: Vec<_> = samples.iter().map(|sample| (sample.pid, sample.utilization)).collect();
        assert_eq!((found, newest_us), (vec![(7, 500), (8, 1000)], 300));
    }
}
