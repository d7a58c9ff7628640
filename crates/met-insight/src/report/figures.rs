//! What the job did with processors, memory, storage and network.

use met_core::job::{LimitKind, QualityKind};
use met_core::job_table as column;

use super::reader::{Reader, measured, sum};
use super::{Amount, Detail, Measure, Section};

pub(super) fn cpu(job: &Reader<'_>) -> Section {
    let mut section = Section::new("CPU");
    let used = job.total(column::CPU);
    // Where it was not measured to its end, the manager's own account says more, or as much.
    let is_doubtful = used.is_some_and(|used| used.quality != QualityKind::Measured);
    let account = job.record.scheduling.cpu_ns.map(|cpu_ns| Amount {
        value: cpu_ns as f64 / 1e9,
        measure: Measure::Seconds,
        quality: QualityKind::Sampled,
    });
    let parts = [
        Detail::before("user", job.total(column::CPU_USER)),
        Detail::before("system", job.total(column::CPU_SYSTEM)),
        Detail::before("by its scheduler", account.filter(|_| is_doubtful)),
    ];
    section.put("CPU time", used, parts);
    if used.is_none() {
        section.put("CPU time", account, [Detail::words("by its scheduler")]);
    }
    let cores = job.rate(column::CPU, Measure::Cores);
    // A job that was too short for its samples has a higher average than they have rates.
    let is_peak = |peak: &Amount| cores.is_none_or(|cores| peak.value >= cores.value);
    let peak = Detail::before("peak", job.total(column::CORES_PEAK).filter(is_peak));
    let resolution = job.resolution(column::CORES_PEAK).filter(|_| peak.is_some());
    section.put("cores", cores, [Detail::words("average"), peak, resolution]);
    let throttled = job.total(column::THROTTLED).filter(|throttled| throttled.value > 0.0);
    let place = match throttled.map(|throttled| throttled.quality) {
        Some(QualityKind::Attributed) => Detail::words("of a cgroup around it"),
        _ => None,
    };
    let periods = Detail::after(job.total(column::THROTTLES), "periods");
    section.put("throttled", throttled, [Detail::words("by its CPU quota"), periods, place]);
    let waited = job.total(column::RUN_QUEUE_WAIT);
    let why = match throttled {
        Some(_) => "runnable, waiting for a CPU or the quota",
        None => "runnable, waiting for a CPU",
    };
    section.put("waited", waited, [Detail::words("thread-seconds"), Detail::words(why)]);
    let (gave_up, preempted) =
        (job.total(column::SWITCHES_VOLUNTARY), job.total(column::SWITCHES_INVOLUNTARY));
    let kinds = [Detail::after(gave_up, "voluntary"), Detail::after(preempted, "preempted")];
    section.put("switches", sum(gave_up, preempted), kinds);
    section
}

pub(super) fn memory(job: &Reader<'_>) -> Section {
    let mut section = Section::new("Memory");
    let mean = job.level(column::MEMORY_NEEDED, Measure::Bytes);
    match job.total(column::MEMORY_NEEDED_PEAK) {
        Some(peak) => {
            let resolution = job.resolution(column::MEMORY_NEEDED_PEAK);
            let details = [Detail::words("peak"), Detail::before("average", mean), resolution];
            section.put("memory needed", Some(peak), details);
        }
        None => section.put("memory needed", mean, [Detail::words("average")]),
    }
    let cache = job.level(column::MEMORY_CACHE, Measure::Bytes);
    section.put("cache", cache, [Detail::words("average"), Detail::words("reclaimable")]);
    section.put("peak with cache", job.total(column::MEMORY_PEAK), []);
    let (minor, major) = (job.total(column::PAGE_FAULTS_MINOR), job.total(column::PAGE_FAULTS_MAJOR));
    let kinds = [Detail::after(minor, "minor"), Detail::after(major, "major")];
    section.put("page faults", sum(minor, major), kinds);
    let kills = job.total(column::OOM_KILLS).filter(|kills| kills.value > 0.0);
    let place = match kills.map(|kills| kills.quality) {
        Some(QualityKind::Attributed) => Detail::words("in a cgroup around it"),
        _ => None,
    };
    section.put("OOM kills", kills, [Detail::words("by the kernel, out of memory"), place]);
    if let Some(limit) = job.memory_limit() {
        let whose = match limit.kind {
            LimitKind::Cgroup => "of the cgroup around it",
            LimitKind::Process => "address space of each process (ulimit -v)",
        };
        let amount = measured(limit.bytes as f64, Measure::Bytes);
        section.put("memory limit", Some(amount), [Detail::words(whose)]);
    }
    section
}

pub(super) fn input_output(job: &Reader<'_>) -> Section {
    let mut section = Section::new("I/O");
    let kinds = [("read", column::READ, "from storage"), ("written", column::WRITTEN, "to storage")];
    for (label, index, storage) in kinds {
        let rate = Detail::after(job.rate(index, Measure::BytesPerSecond), "");
        section.put(label, job.total(index), [Detail::words(storage), rate]);
    }
    let calls = [
        ("read calls", column::READ_CALL, column::READ_CALLS),
        ("write calls", column::WRITE_CALL, column::WRITE_CALLS),
    ];
    for (label, bytes, count) in calls {
        let rate = Detail::after(job.rate(bytes, Measure::BytesPerSecond), "");
        let count = job.total(count);
        let word = if count.is_some_and(|count| count.value == 1.0) { "call" } else { "calls" };
        let count = Detail::after(count, word);
        section.put(label, job.total(bytes), [rate, count]);
    }
    for (label, index) in [("received", column::NETWORK_RECEIVED), ("sent", column::NETWORK_SENT)] {
        let rate = Detail::after(job.rate(index, Measure::BytesPerSecond), "");
        section.put(label, job.total(index), [Detail::words("in the job's network namespace"), rate]);
    }
    section
}

pub(super) fn processes(job: &Reader<'_>) -> Section {
    let mut section = Section::new("Processes");
    let at_once = |index: usize| job.total(index).filter(|peak| peak.value > 0.0);
    let peak = Detail::after(at_once(column::PROCESSES_PEAK), "at once");
    let resolution = job.resolution(column::PROCESSES_PEAK).filter(|_| peak.is_some());
    section.put("processes", job.total(column::PROCESSES), [Detail::words("total"), peak, resolution]);
    let resolution = job.resolution(column::THREADS_PEAK);
    section.put("threads", at_once(column::THREADS_PEAK), [Detail::words("at once"), resolution]);
    section
}

pub(super) fn pressure(job: &Reader<'_>) -> Section {
    let mut section = Section::new("Pressure");
    let kinds = [
        ("CPU pressure", column::PRESSURE_CPU, None),
        ("memory pressure", column::PRESSURE_MEMORY, Some(column::PRESSURE_MEMORY_FULL)),
        ("I/O pressure", column::PRESSURE_IO, Some(column::PRESSURE_IO_FULL)),
    ];
    for (label, some, full) in kinds {
        let share = Detail::after(job.rate(some, Measure::Share), "of the time");
        // That every task waited says something only where some did.
        let full = full.and_then(|index| job.rate(index, Measure::Share));
        let full = full.filter(|full| full.value > 0.0);
        section.put(label, job.total(some), [share, Detail::before("all tasks", full)]);
    }
    for (label, index) in [("storage wait", column::DELAY_IO), ("memory wait", column::DELAY_MEMORY)] {
        section.put(label, job.total(index), [Detail::words("of all threads together")]);
    }
    section
}
