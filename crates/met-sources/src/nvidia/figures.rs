//! What the slow thread reads of one GPU: levels, its processes, and the expensive readings.

use met_core::MISSING;
use met_core::gpu::{device, process};
use met_host::clock;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlMemory_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationSample_t, nvmlReturn_t,
};

use super::activity::{Activity, Monitor};
use super::library::GpuFacts;
use super::{is_lost, is_unsupported, memory_bytes, outcome};

pub(super) const EVERY_MAX_NS: i64 = 20_000_000_000;
pub(super) const USE_EVERY_MAX_NS: i64 = 10_000_000_000;
pub(super) const ACTIVITY_EVERY_MAX_NS: i64 = 20_000_000_000;
/// Figures older than this many periods are stale.
pub(super) const PERIODS_MAX: i64 = 3;
/// Room for processes in one call. With more processes the call is repeated.
const PROCESSES_USUAL: usize = 64;
const PROCESSES_MAX: usize = 1 << 16;
const SAMPLES_USUAL: u32 = 256;
const SAMPLES_MAX: u32 = 1 << 16;
/// A sample covers at most this time; the driver takes one about this often.
const COVERED_MAX_US: i64 = 1_000_000;

/// What was read of one GPU, and when.
#[derive(Clone, Default)]
pub(super) struct SlowGpu {
    pub levels: Levels,
    pub list: ProcessList,
    pub usage: ProcessUse,
    pass: Pass,
    activity: UnitActivity,
    pub faults: Faults,
    /// It blocks its callers.
    pub silent: bool,
}

/// What changes slowly; read together with the list of processes.
#[derive(Clone)]
pub(super) struct Levels {
    at_ns: i64,
    /// After how long they and the list are old.
    pub age_max_ns: i64,
    of_gpu: [i64; LEVELS.len()],
    /// Memory in use of each part, in the order of the parts.
    parts_used: Vec<i64>,
    /// The GPU was out of reach.
    pub is_lost: bool,
}

/// The processes on the GPU.
#[derive(Clone, Default)]
pub(super) struct ProcessList {
    pub computing: Vec<OnGpu>,
    /// The driver listed those that compute; otherwise an empty list is meaningless.
    pub is_known: bool,
    /// Processes that draw and do not compute, and whether that could not be read.
    pub drawing: Vec<(u32, i64)>,
    drawing_failed: bool,
}

/// Use by process, which covers the time since the previous reading.
#[derive(Clone, Default)]
pub(super) struct ProcessUse {
    at_ns: i64,
    /// The GPU reports it.
    is_known: bool,
    pub samples: Vec<Sample>,
    /// The processes on the GPU then.
    asked_for: Vec<u32>,
    last_seen_us: u64,
}

/// The expensive readings.
#[derive(Clone, Default)]
struct Pass {
    at_ns: i64,
    energy_uj: Option<i64>,
    power_limit: Option<i64>,
    ecc_corrected: Option<i64>,
    ecc_uncorrected: Option<i64>,
    encoder: Option<i64>,
    decoder: Option<i64>,
    pcie_received: Option<i64>,
    pcie_sent: Option<i64>,
}

/// How busy the units of the GPU and of its parts were.
#[derive(Clone, Default)]
struct UnitActivity {
    at_ns: i64,
    of_gpu: Option<Activity>,
    of_parts: Vec<Option<Activity>>,
}

/// What events reported, without a query.
#[derive(Clone, Default)]
pub(super) struct Faults {
    pub count: Option<i64>,
    pub last: Option<i64>,
}

/// A process that computes on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnGpu {
    pub pid: u32,
    pub memory_bytes: i64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// The columns of what changes slowly, in the order in which it is read.
const LEVELS: [usize; 6] = [
    device::TEMPERATURE,
    device::CLOCK,
    device::CLOCK_MEMORY,
    device::THROTTLE,
    device::MEMORY_USED,
    device::MEMORY_TOTAL,
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

impl SlowGpu {
    /// Every process that is named in it.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.list.pids().chain(self.usage.samples.iter().map(|sample| sample.pid))
    }

    pub fn fill(&self, now_ns: i64, cells: &mut [i64]) {
        self.levels.fill(now_ns, cells);
        self.usage.fill_age(now_ns, cells);
        if self.pass.at_ns == 0 || now_ns - self.pass.at_ns > PERIODS_MAX * EVERY_MAX_NS {
            return;
        }
        self.pass.fill(now_ns, cells);
        self.faults.fill(cells);
        self.activity.fill(self.activity.of_gpu, now_ns, cells);
    }

    /// Of a part, by its position.
    pub fn fill_part(&self, position: usize, now_ns: i64, cells: &mut [i64]) {
        cells[device::MEMORY_USED] = self.levels.parts_used.get(position).copied().unwrap_or(MISSING);
        cells[device::LIST_AGE] = self.levels.age_ns(now_ns);
        self.activity.fill(self.activity.of_parts.get(position).copied().flatten(), now_ns, cells);
    }
}

impl Default for Levels {
    fn default() -> Levels {
        let of_gpu = [MISSING; LEVELS.len()];
        Levels { at_ns: 0, age_max_ns: 0, of_gpu, parts_used: Vec::new(), is_lost: false }
    }
}

impl Levels {
    /// Whether they are current. If not, the driver blocks the thread, or no reading was requested.
    pub fn are_fresh(&self, now_ns: i64) -> bool {
        now_ns - self.at_ns <= self.age_max_ns
    }

    /// The age of the levels and of the process list.
    pub fn age_ns(&self, now_ns: i64) -> i64 {
        (now_ns - self.at_ns).max(0)
    }

    fn fill(&self, now_ns: i64, cells: &mut [i64]) {
        for (column, level) in LEVELS.into_iter().zip(self.of_gpu) {
            cells[column] = level;
        }
        cells[device::LIST_AGE] = self.age_ns(now_ns);
    }
}

impl ProcessList {
    fn pids(&self) -> impl Iterator<Item = u32> {
        let drawing = self.drawing.iter().map(|&(pid, _)| pid);
        self.computing.iter().map(|info| info.pid).chain(drawing)
    }

    /// How many processes compute on the GPU; unknown if any list of it could not be read.
    pub fn count(&self) -> i64 {
        let knows_all = self.is_known && !self.drawing_failed;
        if knows_all { self.computing.len() as i64 } else { MISSING }
    }

    /// Whether the driver listed no process on the GPU.
    pub fn is_empty(&self) -> bool {
        self.count() == 0 && self.drawing.is_empty()
    }
}

impl ProcessUse {
    fn fill_age(&self, now_ns: i64, cells: &mut [i64]) {
        if self.is_known && now_ns - self.at_ns <= PERIODS_MAX * USE_EVERY_MAX_NS {
            cells[device::USE_AGE] = (now_ns - self.at_ns).max(0);
        }
    }

    /// A process that the library does not name did nothing, unless it is newer than the pass.
    pub fn fill_process(&self, pid: u32, cells: &mut [i64]) {
        let sample = self.samples.iter().find(|sample| sample.pid == pid);
        let idle = (self.is_known && self.asked_for.contains(&pid)).then(Sample::default);
        if let Some(sample) = sample.copied().or(idle) {
            cells[process::UTILIZATION] = sample.utilization;
            cells[process::UTILIZATION_MEMORY] = sample.memory;
            cells[process::UTILIZATION_ENCODER] = sample.encoder;
            cells[process::UTILIZATION_DECODER] = sample.decoder;
        }
    }
}

impl Pass {
    fn fill(&self, now_ns: i64, cells: &mut [i64]) {
        cells[device::PASS_AGE] = (now_ns - self.at_ns).max(0);
        for (column, value) in [
            (device::ENERGY, self.energy_uj),
            (device::POWER_LIMIT, self.power_limit),
            (device::ECC_CORRECTED, self.ecc_corrected),
            (device::ECC_UNCORRECTED, self.ecc_uncorrected),
            (device::UTILIZATION_ENCODER, self.encoder),
            (device::UTILIZATION_DECODER, self.decoder),
            (device::PCIE_RECEIVED, self.pcie_received),
            (device::PCIE_SENT, self.pcie_sent),
        ] {
            cells[column] = value.unwrap_or(MISSING);
        }
    }
}

impl UnitActivity {
    /// Fills in the activity of the GPU or of a part, unless it is old.
    fn fill(&self, activity: Option<Activity>, now_ns: i64, cells: &mut [i64]) {
        let is_fresh = now_ns - self.at_ns <= PERIODS_MAX * ACTIVITY_EVERY_MAX_NS;
        if let Some(activity) = activity.filter(|_| is_fresh) {
            activity.fill(cells);
        }
    }
}

impl Faults {
    pub fn fill(&self, cells: &mut [i64]) {
        cells[device::FAULTS] = self.count.unwrap_or(MISSING);
        cells[device::FAULT_LAST] = self.last.unwrap_or(MISSING);
    }
}

/// How busy the units of a GPU were since the last time.
pub(super) fn read_activity<'a>(
    facts: &GpuFacts,
    nvml: &'a Nvml,
    monitor: &mut Monitor<'a>,
    figures: &mut SlowGpu,
) {
    monitor.read(facts, nvml, &mut figures.activity.of_gpu, &mut figures.activity.of_parts);
    figures.activity.at_ns = clock::boottime_ns();
}

/// Slow values, and the processes on the GPU.
pub(super) fn read_levels(
    facts: &GpuFacts,
    device: &Device<'_>,
    buffer: &mut Vec<nvmlProcessInfo_t>,
    figures: &mut SlowGpu,
) {
    let number = |found: Result<i64, NvmlError>| found.unwrap_or(MISSING);
    figures.levels.at_ns = clock::boottime_ns();
    let temperature = device.temperature(TemperatureSensor::Gpu);
    // A lost GPU keeps every caller waiting: one call is enough to know.
    figures.levels.is_lost = temperature.as_ref().is_err_and(is_lost);
    if figures.levels.is_lost {
        figures.levels.of_gpu = [MISSING; LEVELS.len()];
        figures.levels.parts_used.clear();
        figures.list.computing.clear();
        figures.list.is_known = false;
        return;
    }
    let (used, total) = memory_of(device);
    figures.levels.of_gpu = [
        number(temperature.map(|celsius| i64::from(celsius) * 1000)),
        number(device.clock_info(Clock::SM).map(i64::from)),
        number(device.clock_info(Clock::Memory).map(i64::from)),
        number(device.current_throttle_reasons().map(|reasons| reasons.bits() as i64)),
        used,
        total,
    ];
    let used = facts.parts.iter().map(|part| memory_of(&part.device(device.nvml())).0);
    figures.levels.parts_used.clear();
    figures.levels.parts_used.extend(used);
    figures.list.computing.clear();
    figures.list.is_known =
        list_processes(device, buffer).or_else(|_| list_as_before(device, buffer)).is_ok();
    if figures.list.is_known {
        figures.list.computing.extend(buffer.iter().map(|info| OnGpu {
            pid: info.pid,
            memory_bytes: memory_bytes(info.usedGpuMemory),
            gpu_instance: info.gpuInstanceId,
            compute_instance: info.computeInstanceId,
        }));
    }
}

/// Memory in use, and all there is. A driver older than 510 has but the first form of the call.
fn memory_of(device: &Device<'_>) -> (i64, i64) {
    match device.memory_info() {
        Ok(memory) => return (memory_bytes(memory.used), memory_bytes(memory.total)),
        Err(error) if !is_unsupported(&error) => return (MISSING, MISSING),
        Err(_) => {}
    }
    let Ok(symbol) = device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref() else { return (MISSING, MISSING) };
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the library fills a structure of this form.
    match outcome(unsafe { symbol(device.handle(), &mut memory) }) {
        Ok(()) => (memory_bytes(memory.used), memory_bytes(memory.total)),
        Err(_) => (MISSING, MISSING),
    }
}

/// Processes of a driver older than 510, which has parts of GPUs from 450 on.
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

/// Fills the buffer by a call that takes its size and returns how many entries it wrote or would write.
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

/// Use by process since it was last read.
pub(super) fn read_use(device: &Device<'_>, figures: &mut SlowGpu) {
    let usage = &mut figures.usage;
    let now_us = clock::realtime_ns() / 1000;
    // The driver's samples bear the time of day. If that was set back, those since then seem to be of before
    // the last one: until the next reading the use is unknown, not zero.
    let was_set_back = i64::try_from(usage.last_seen_us).is_ok_and(|seen_us| seen_us > now_us);
    if usage.last_seen_us == 0 || was_set_back {
        usage.last_seen_us = u64::try_from(now_us - COVERED_MAX_US).unwrap_or(0);
    }
    usage.at_ns = clock::boottime_ns();
    usage.samples.clear();
    // Not known, whatever the reason: nothing is not what they did.
    usage.is_known = false;
    usage.asked_for.clear();
    usage.asked_for.extend(figures.list.pids());
    if was_set_back {
        return;
    }
    if let Ok(raw) = list_use(device, usage.last_seen_us) {
        let (samples, last_seen_us) = by_process(&raw, usage.last_seen_us, &usage.asked_for);
        (usage.samples, usage.is_known) = (samples, true);
        usage.last_seen_us = last_seen_us.max(usage.last_seen_us);
    }
}

/// One GPU's expensive readings. What fails stays unknown until the next pass.
pub(super) fn pass(device: &Device<'_>, figures: &mut SlowGpu) {
    let begin_ns = clock::boottime_ns();
    let energy = device.total_energy_consumption();
    let end_ns = clock::boottime_ns();
    if energy.as_ref().is_err_and(is_lost) {
        return;
    }
    figures.pass.at_ns = begin_ns + (end_ns - begin_ns) / 2;
    figures.pass.energy_uj =
        energy.ok().and_then(|mj| i64::try_from(mj).ok()).map(|mj| mj.saturating_mul(1000));
    let count = |found: Result<u64, NvmlError>| found.ok().and_then(|count| i64::try_from(count).ok());
    figures.pass.ecc_corrected = count(device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile));
    figures.pass.ecc_uncorrected =
        count(device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile));
    figures.pass.encoder = device.encoder_utilization().ok().map(|used| i64::from(used.utilization) * 10);
    figures.pass.decoder = device.decoder_utilization().ok().map(|used| i64::from(used.utilization) * 10);
    let memory = |used: UsedGpuMemory| match used {
        UsedGpuMemory::Used(bytes) => memory_bytes(bytes),
        UsedGpuMemory::Unavailable => MISSING,
    };
    let limit = device.enforced_power_limit().or_else(|_| device.power_management_limit());
    figures.pass.power_limit = limit.ok().map(i64::from).filter(|&limit_mw| limit_mw > 0);
    let graphics = device.running_graphics_processes();
    // Where there is no such list there are none; one that could not be read is not an empty one.
    figures.list.drawing_failed = graphics.as_ref().is_err_and(|error| !is_unsupported(error));
    let graphics = graphics.unwrap_or_default();
    figures.list.drawing =
        graphics.into_iter().map(|info| (info.pid, memory(info.used_gpu_memory))).collect();
}

/// The samples that the driver kept of what processes did since `since_us`.
fn list_use(device: &Device<'_>, since_us: u64) -> Result<Vec<nvmlProcessUtilizationSample_t>, NvmlError> {
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
                return Ok(raw);
            }
            Err(NvmlError::InsufficientSize(_)) if room < SAMPLES_MAX => room *= 4,
            // No process was active.
            Err(NvmlError::NotFound) => return Ok(raw),
            Err(error) => return Err(error),
        }
    }
}

/// What each process did since `since_us`, and the time of the newest sample.
///
/// A sample covers the time since the previous one of the same process. The driver keeps one or few of each,
/// and not the same number: a living process is assumed to have gone on as last seen. An ended one counts only
/// for the time that its samples cover.
fn by_process(raw: &[nvmlProcessUtilizationSample_t], since_us: u64, living: &[u32]) -> (Vec<Sample>, u64) {
    // Slots that the library did not use have no pid, those of before an old time.
    let is_new = |entry: &&nvmlProcessUtilizationSample_t| entry.pid != 0 && entry.timeStamp > since_us;
    let mut raw: Vec<&nvmlProcessUtilizationSample_t> = raw.iter().filter(is_new).collect();
    raw.sort_by_key(|entry| (entry.pid, entry.timeStamp));
    let newest_us = raw.iter().map(|entry| entry.timeStamp).max().unwrap_or(since_us);
    let mut found: Vec<(Sample, i64)> = Vec::new();
    for entries in raw.chunk_by(|one, next| one.pid == next.pid) {
        let mut sum = Sample { pid: entries[0].pid, ..Sample::default() };
        // The driver may have forgotten what was before the first one: that is like the next.
        let gap_us =
            entries.get(1).map_or(COVERED_MAX_US as u64, |next| next.timeStamp - entries[0].timeStamp);
        let mut before_us = since_us.max(entries[0].timeStamp.saturating_sub(gap_us));
        let mut covered_us = 0;
        for entry in entries {
            let time_us = i64::try_from(entry.timeStamp - before_us).unwrap_or(i64::MAX);
            let time_us = time_us.clamp(1, COVERED_MAX_US);
            (covered_us, before_us) = (covered_us + time_us, entry.timeStamp);
            // More than all of a GPU is a fault of the driver's.
            let add = |sum: &mut i64, percent: u32| *sum += i64::from(percent.min(100)) * 10 * time_us;
            add(&mut sum.utilization, entry.smUtil);
            add(&mut sum.memory, entry.memUtil);
            add(&mut sum.encoder, entry.encUtil);
            add(&mut sum.decoder, entry.decUtil);
        }
        found.push((sum, covered_us));
    }
    let longest_us = found.iter().map(|(_, covered_us)| *covered_us).max().unwrap_or(1);
    let mean = |(sum, covered_us): (Sample, i64)| {
        let time_us = if living.contains(&sum.pid) { covered_us } else { longest_us };
        let of = |sum: i64| sum / time_us;
        Sample {
            pid: sum.pid,
            utilization: of(sum.utilization),
            memory: of(sum.memory),
            encoder: of(sum.encoder),
            decoder: of(sum.decoder),
        }
    };
    (found.into_iter().map(mean).collect(), newest_us)
}

pub(super) fn read_pcie(device: &Device<'_>, figures: &mut SlowGpu) {
    // The mean is better than what 20 ms show, and costs less.
    if figures.activity.of_gpu.is_some() {
        return;
    }
    // In KB.
    let rate = |counter| device.pcie_throughput(counter).ok().map(|kb| i64::from(kb) * 1000);
    figures.pass.pcie_received = rate(PcieUtilCounter::Receive);
    figures.pass.pcie_sent = rate(PcieUtilCounter::Send);
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

    fn used(entries: &[nvmlProcessUtilizationSample_t], since_us: u64, living: &[u32]) -> Vec<(u32, i64)> {
        let (samples, _) = by_process(entries, since_us, living);
        samples.iter().map(|sample| (sample.pid, sample.utilization)).collect()
    }

    #[test]
    fn use_is_the_mean_of_what_is_new() {
        let entries = [raw(7, 100, 90), raw(7, 200, 40), raw(7, 300, 60), raw(0, 300, 99), raw(8, 250, 999)];
        assert_eq!(used(&entries, 100, &[7, 8]), [(7, 500), (8, 1000)]);
        assert_eq!(by_process(&entries, 100, &[]).1, 300);
    }

    #[test]
    fn a_sample_counts_by_the_time_it_covers() {
        // 100 ms, then 400 ms; the order in which the driver returns them does not matter.
        let entries = [raw(7, 500_000, 50), raw(7, 100_000, 100)];
        assert_eq!(used(&entries, 0, &[7]), [(7, 600)]);
    }

    #[test]
    fn an_ended_process_counts_for_the_time_it_was_seen() {
        let lived = [1, 2, 3, 4].map(|second| raw(7, second * 1_000_000, 80));
        let entries: Vec<_> = lived.into_iter().chain([raw(8, 1_000_000, 80)]).collect();
        assert_eq!(used(&entries, 0, &[7]), [(7, 800), (8, 200)]);
        assert_eq!(used(&entries, 0, &[7, 8]), [(7, 800), (8, 800)]);
    }

    /// A GPU that computes for two loads alike, as a driver shows them that keeps one or two noisy samples of
    /// each: what the first one is charged of both. Use is read every 4 s, the counter every 20.
    fn share_of_one(seed: u64, seconds: i64) -> f64 {
        use met_core::gpu_ledger::{Activity, Claim, GpuLedger, Look};
        const SECOND_NS: i64 = 1_000_000_000;
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut draw = |most: u64| {
            // A plain generator of 64 bits (xorshift).
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % most
        };
        let mut ledger = GpuLedger::default();
        let mut claims =
            [1, 2].map(|slot| Claim { who: Some(slot), active: 1, held: 1, activity: Activity::Active });
        for at_s in 1..=seconds + 1 {
            if at_s % 4 == 1 {
                let now_us = at_s as u64 * 1_000_000;
                let mut entries = Vec::new();
                for pid in [1, 2] {
                    for age in 0..=draw(2) {
                        let time_us = now_us - age * 170_000 - draw(50_000);
                        entries.push(raw(pid, time_us, 25 + draw(50) as u32));
                    }
                }
                let (samples, _) = by_process(&entries, now_us.saturating_sub(4_000_000), &[1, 2]);
                for (claim, sample) in claims.iter_mut().zip(&samples) {
                    claim.active = sample.utilization as u64;
                }
            }
            let read_s = |every: i64| (at_s - 1) / every * every + 1;
            ledger.look(&Look {
                at_ns: at_s * SECOND_NS,
                power_mw: 650_000 + draw(50_000) as i64,
                power_limit_mw: 700_000,
                utilization: 990,
                pass_ns: Some(read_s(20) * SECOND_NS),
                counter_uj: read_s(20) * 675_000_000,
                use_ns: Some(read_s(4) * SECOND_NS),
                claims: &claims,
                unseen: false,
                slices: 0,
                joined: &[],
                gap_ns: 60 * SECOND_NS,
            });
        }
        let [one, other] = [1, 2].map(|slot| ledger.leave(slot).active_uj as f64);
        one / (one + other)
    }

    #[test]
    fn two_equal_loads_are_charged_alike_the_longer_the_better() {
        let spread = |seconds: i64| {
            let squares: f64 = (1..=40).map(|seed| (share_of_one(seed, seconds) - 0.5).powi(2)).sum();
            (squares / 40.0).sqrt()
        };
        // Each sample is off by up to a half.
        assert!(spread(40) < 0.035, "{}", spread(40));
        assert!(spread(160) < 0.018, "{}", spread(160));
    }
}
