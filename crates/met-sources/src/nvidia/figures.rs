//! What the slow thread reads of one card: levels, who is on it, and the dear figures.

use met_core::MISSING;
use met_core::gpu::{card, process};
use met_host::clock;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{
    nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationSample_t, nvmlReturn_t,
};

use super::{is_lost, memory_bytes, outcome};

pub(super) const EVERY_MAX_NS: i64 = 20_000_000_000;
/// Figures of so many periods ago are not those of now.
pub(super) const PERIODS_MAX: i64 = 3;
/// Processes that a card is asked for in one call. More are possible and then asked for again.
const PROCESSES_USUAL: usize = 64;
const PROCESSES_MAX: usize = 1 << 16;
const SAMPLES_USUAL: u32 = 256;
const SAMPLES_MAX: u32 = 1 << 16;
/// The driver remembers about this much of what processes did.
const REMEMBERED_US: i64 = 1_000_000;

/// The dear figures of one card, and when they were read.
#[derive(Clone, Default)]
pub(super) struct SlowCard {
    at_ns: i64,
    /// When the levels and the list of processes were read, and after how long they are old.
    levels_at_ns: i64,
    pub levels_age_max_ns: i64,
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
    pub faults: Option<i64>,
    pub fault_last: Option<i64>,
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
    pub fn new() -> SlowCard {
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

/// What changes slowly, and who is on the card.
pub(super) fn read_levels(device: &Device<'_>, buffer: &mut Vec<nvmlProcessInfo_t>, figures: &mut SlowCard) {
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
pub(super) fn pass(device: &Device<'_>, figures: &mut SlowCard) {
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

pub(super) fn read_pcie(device: &Device<'_>, figures: &mut SlowCard) {
    // In KB.
    let rate = |counter| device.pcie_throughput(counter).ok().map(|kb| i64::from(kb) * 1000);
    figures.pcie_received = rate(PcieUtilCounter::Receive);
    figures.pcie_sent = rate(PcieUtilCounter::Send);
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
