//! The machine as a whole: CPU time by mode, load, memory, paging, interrupts and pressure.

use std::time::Duration;

use met_core::chart::{MachineChart, Unit as ChartUnit};
use met_core::node::NodeRow;
use met_core::node_block::{NodeBlock, NodeLine};
use met_core::table::{MILLI, NANO, ONE};
use met_core::{Batch, Column, MISSING, Subject, Table, Unit, columns, units};
use met_host::{Host, KeptFile, Share, Targets, parse};

use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable, is_gone};

columns! { COLUMNS:
    UPTIME = Column::gauge("uptime", Unit::Seconds, NANO, "time since the machine was started").usual(),
    UPTIME_IDLE = Column::counter("uptime_idle", Unit::Seconds, NANO, "idle time since the machine was started, summed over CPUs"),
    LOAD_1 = Column::gauge("load_1", Unit::Count, MILLI, "threads that ran or waited for a CPU or a disk, mean of about one minute").usual(),
    LOAD_5 = Column::gauge("load_5", Unit::Count, MILLI, "the same, mean of five minutes").usual(),
    LOAD_15 = Column::gauge("load_15", Unit::Count, MILLI, "the same, mean of fifteen minutes").usual(),
    THREADS_RUNNABLE = Column::gauge("threads_runnable", Unit::Count, ONE, "runnable threads"),
    THREADS = Column::gauge("threads", Unit::Count, ONE, "threads alive"),
    CPU_USER = Column::counter("cpu_user", Unit::Seconds, NANO, "CPU time of user code, that of virtual machines included").usual(),
    CPU_NICE = Column::counter("cpu_nice", Unit::Seconds, NANO, "CPU time of user code of low priority").usual(),
    CPU_SYSTEM = Column::counter("cpu_system", Unit::Seconds, NANO, "CPU time of the kernel").usual(),
    CPU_IDLE = Column::counter("cpu_idle", Unit::Seconds, NANO, "time in which CPUs were idle").minimal(),
    CPU_IO_WAIT = Column::counter("cpu_io_wait", Unit::Seconds, NANO, "time in which CPUs were idle while I/O was pending").usual(),
    CPU_INTERRUPT = Column::counter("cpu_interrupt", Unit::Seconds, NANO, "CPU time of interrupts").usual(),
    CPU_SOFT_INTERRUPT = Column::counter("cpu_soft_interrupt", Unit::Seconds, NANO, "CPU time of soft interrupts: network, timers").usual(),
    CPU_STEAL = Column::counter("cpu_steal", Unit::Seconds, NANO, "time in which a hypervisor gave the CPUs to others").usual(),
    CPU_GUEST = Column::counter("cpu_guest", Unit::Seconds, NANO, "CPU time of virtual machines run here"),
    CPU_GUEST_NICE = Column::counter("cpu_guest_nice", Unit::Seconds, NANO, "CPU time of virtual machines of low priority"),
    INTERRUPTS = Column::counter("interrupts", Unit::Count, ONE, "interrupts served"),
    SOFT_INTERRUPTS = Column::counter("soft_interrupts", Unit::Count, ONE, "soft interrupts served"),
    CONTEXT_SWITCHES = Column::counter("context_switches", Unit::Count, ONE, "times a CPU went from one thread to another"),
    FORKS = Column::counter("forks", Unit::Count, ONE, "processes and threads started"),
    THREADS_BLOCKED = Column::gauge("threads_blocked", Unit::Count, ONE, "threads waiting for I/O"),
    MEMORY_TOTAL = Column::gauge("memory_total", Unit::Bytes, ONE, "total memory").minimal(),
    MEMORY_FREE = Column::gauge("memory_free", Unit::Bytes, ONE, "free memory").usual(),
    MEMORY_AVAILABLE = Column::gauge("memory_available", Unit::Bytes, ONE, "memory that a new program could have without swapping").minimal(),
    MEMORY_BUFFERS = Column::gauge("memory_buffers", Unit::Bytes, ONE, "cache of block devices"),
    MEMORY_CACHED = Column::gauge("memory_cached", Unit::Bytes, ONE, "cache of files, shared memory included").usual(),
    MEMORY_SWAP_CACHED = Column::gauge("memory_swap_cached", Unit::Bytes, ONE, "memory that is also in swap"),
    MEMORY_ACTIVE = Column::gauge("memory_active", Unit::Bytes, ONE, "recently used memory"),
    MEMORY_INACTIVE = Column::gauge("memory_inactive", Unit::Bytes, ONE, "memory that would be reclaimed first"),
    MEMORY_UNEVICTABLE = Column::gauge("memory_unevictable", Unit::Bytes, ONE, "memory that cannot be reclaimed"),
    MEMORY_LOCKED = Column::gauge("memory_locked", Unit::Bytes, ONE, "memory locked by mlock"),
    SWAP_TOTAL = Column::gauge("swap_total", Unit::Bytes, ONE, "total swap").usual(),
    SWAP_FREE = Column::gauge("swap_free", Unit::Bytes, ONE, "free swap").usual(),
    MEMORY_DIRTY = Column::gauge("memory_dirty", Unit::Bytes, ONE, "data waiting to be written to disk"),
    MEMORY_WRITEBACK = Column::gauge("memory_writeback", Unit::Bytes, ONE, "data being written to disk"),
    MEMORY_ANONYMOUS = Column::gauge("memory_anonymous", Unit::Bytes, ONE, "anonymous memory"),
    MEMORY_MAPPED = Column::gauge("memory_mapped", Unit::Bytes, ONE, "mapped files"),
    MEMORY_SHARED = Column::gauge("memory_shared", Unit::Bytes, ONE, "shared memory and files of tmpfs"),
    MEMORY_SLAB = Column::gauge("memory_slab", Unit::Bytes, ONE, "memory of the kernel's own objects"),
    MEMORY_SLAB_RECLAIMABLE = Column::gauge("memory_slab_reclaimable", Unit::Bytes, ONE, "its reclaimable part"),
    MEMORY_SLAB_UNRECLAIMABLE = Column::gauge("memory_slab_unreclaimable", Unit::Bytes, ONE, "its unreclaimable part"),
    MEMORY_KERNEL_STACK = Column::gauge("memory_kernel_stack", Unit::Bytes, ONE, "stacks of threads in the kernel"),
    MEMORY_PAGE_TABLES = Column::gauge("memory_page_tables", Unit::Bytes, ONE, "page tables"),
    MEMORY_NFS_UNSTABLE = Column::gauge("memory_nfs_unstable", Unit::Bytes, ONE, "data sent to an NFS server and not yet on its stable storage"),
    MEMORY_BOUNCE = Column::gauge("memory_bounce", Unit::Bytes, ONE, "bounce buffers"),
    MEMORY_WRITEBACK_TEMPORARY = Column::gauge("memory_writeback_temporary", Unit::Bytes, ONE, "buffers of FUSE for writing"),
    MEMORY_COMMIT_LIMIT = Column::gauge("memory_commit_limit", Unit::Bytes, ONE, "commit limit under strict accounting"),
    MEMORY_COMMITTED = Column::gauge("memory_committed", Unit::Bytes, ONE, "memory committed to programs"),
    MEMORY_VMALLOC_TOTAL = Column::gauge("memory_vmalloc_total", Unit::Bytes, ONE, "address space of vmalloc"),
    MEMORY_VMALLOC_USED = Column::gauge("memory_vmalloc_used", Unit::Bytes, ONE, "the part of it in use"),
    MEMORY_VMALLOC_CHUNK = Column::gauge("memory_vmalloc_chunk", Unit::Bytes, ONE, "its largest free block; 0 on newer kernels"),
    MEMORY_HUGE_ANONYMOUS = Column::gauge("memory_huge_anonymous", Unit::Bytes, ONE, "memory of programs in transparent huge pages"),
    HUGE_PAGES_TOTAL = Column::gauge("huge_pages", Unit::Count, ONE, "reserved pool of huge pages"),
    HUGE_PAGES_FREE = Column::gauge("huge_pages_free", Unit::Count, ONE, "free huge pages"),
    HUGE_PAGES_RESERVED = Column::gauge("huge_pages_reserved", Unit::Count, ONE, "huge pages reserved and not yet allocated"),
    HUGE_PAGES_SURPLUS = Column::gauge("huge_pages_surplus", Unit::Count, ONE, "huge pages above the size of the pool"),
    HUGE_PAGE_SIZE = Column::gauge("huge_page_size", Unit::Bytes, ONE, "size of a huge page"),
    MEMORY_DIRECT_MAP_4K = Column::gauge("memory_direct_map_4k", Unit::Bytes, ONE, "memory that the kernel maps by small pages"),
    MEMORY_DIRECT_MAP_2M = Column::gauge("memory_direct_map_2m", Unit::Bytes, ONE, "memory that the kernel maps by pages of 2 or 4 MiB"),
    MEMORY_DIRECT_MAP_1G = Column::gauge("memory_direct_map_1g", Unit::Bytes, ONE, "memory that the kernel maps by pages of 1 GiB"),
    PAGED_IN = Column::counter("paged_in", Unit::Bytes, ONE, "bytes read from disks"),
    PAGED_OUT = Column::counter("paged_out", Unit::Bytes, ONE, "bytes written to disks"),
    SWAPPED_IN = Column::counter("swapped_in", Unit::Bytes, ONE, "bytes read from swap"),
    SWAPPED_OUT = Column::counter("swapped_out", Unit::Bytes, ONE, "bytes written to swap"),
    PAGE_FAULTS = Column::counter("page_faults", Unit::Count, ONE, "page faults"),
    PAGE_FAULTS_MAJOR = Column::counter("page_faults_major", Unit::Count, ONE, "page faults that waited for a disk"),
    OOM_KILLS = Column::counter("oom_kills", Unit::Count, ONE, "processes killed because memory ran out").usual(),
    PRESSURE_CPU = Column::counter("pressure_cpu", Unit::Seconds, NANO, "time in which some thread waited for a CPU").usual(),
    PRESSURE_MEMORY = Column::counter("pressure_memory", Unit::Seconds, NANO, "time in which some thread waited for memory").usual(),
    PRESSURE_MEMORY_FULL = Column::counter("pressure_memory_full", Unit::Seconds, NANO, "time in which all threads waited for memory"),
    PRESSURE_IO = Column::counter("pressure_io", Unit::Seconds, NANO, "time in which some thread waited for I/O").usual(),
    PRESSURE_IO_FULL = Column::counter("pressure_io_full", Unit::Seconds, NANO, "time in which all threads waited for I/O"),
    PRESSURE_INTERRUPT_FULL = Column::counter("pressure_interrupt_full", Unit::Seconds, NANO, "time in which all threads waited for interrupts"),
    GPUS = Column::gauge("gpus", Unit::Count, ONE, "GPUs that jobs can be given, as last counted; one that is cut into MIG instances counts by these; 0 only where there is certainly none"),
}

pub static TABLE: Table =
    Table { name: "node", subject: "the machine as a whole", labels: &[], columns: COLUMNS };

/// The modes in which CPUs work; their sum is the number of cores in use.
pub const CPU_BUSY: &[usize] = &[CPU_USER, CPU_NICE, CPU_SYSTEM, CPU_INTERRUPT, CPU_SOFT_INTERRUPT];

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "node",
    help: "CPU, load, memory, paging, interrupts and pressure of the machine",
    pace: Pace::Every(Duration::from_secs(1)),
    tables: &[&TABLE],
    charts: &[
        MachineChart::new("cpu", ["CPU cores in use"; 2], ChartUnit::Cores, &TABLE, CPU_BUSY).main(),
        MachineChart::new(
            "memory",
            ["Memory in use", "memory in use"],
            ChartUnit::Bytes,
            &TABLE,
            &[MEMORY_TOTAL],
        )
        .minus(MEMORY_AVAILABLE)
        .main(),
        MachineChart::new("load", ["Load", "load"], ChartUnit::Cores, &TABLE, &[LOAD_1]),
        MachineChart::new(
            "pressure-cpu",
            ["Waiting for CPUs (pressure)", "pressure, CPU"],
            ChartUnit::Percent,
            &TABLE,
            &[PRESSURE_CPU],
        ),
        MachineChart::new(
            "pressure-memory",
            ["Waiting for memory (pressure)", "pressure, memory"],
            ChartUnit::Percent,
            &TABLE,
            &[PRESSURE_MEMORY],
        ),
        MachineChart::new(
            "pressure-io",
            ["Waiting for I/O (pressure)", "pressure, I/O"],
            ChartUnit::Percent,
            &TABLE,
            &[PRESSURE_IO],
        ),
    ],
    options: &[],
    open,
};

pub(crate) static CPU_BLOCK: NodeBlock = NodeBlock::new("CPU", &TABLE, cpu_now);
pub(crate) static MEMORY_BLOCK: NodeBlock = NodeBlock::new("Memory", &TABLE, memory_now);
pub(crate) static PRESSURE_BLOCK: NodeBlock = NodeBlock::new("Pressure", &TABLE, pressure_now);

fn cpu_now(row: &NodeRow, cpus: u32) -> Vec<NodeLine> {
    let share = |words: &str, columns: &[usize]| {
        let cores: Option<f64> = columns.iter().map(|&column| row.rate(column)).sum();
        Some(format!("{words} {}", units::percent(cores? / f64::from(cpus.max(1)))))
    };
    let shares = [
        share("user", &[CPU_USER, CPU_NICE]),
        share("system", &[CPU_SYSTEM, CPU_INTERRUPT, CPU_SOFT_INTERRUPT]),
        share("waiting for I/O", &[CPU_IO_WAIT]),
        share("stolen", &[CPU_STEAL]),
        share("idle", &[CPU_IDLE]),
    ];
    let load = match [LOAD_1, LOAD_5, LOAD_15].map(|column| row.level(column)) {
        [Some(one), Some(five), Some(fifteen)] => Some(format!("load {one:.2} {five:.2} {fifteen:.2}")),
        _ => None,
    };
    let threads = row.level(THREADS_RUNNABLE).zip(row.level(THREADS)).filter(|_| load.is_some());
    let threads = threads
        .map(|(ready, all)| format!("{} of {} threads runnable", units::count(ready), units::count(all)));
    let per_second = |words: &str, column| Some(format!("{} {words}/s", units::count(row.rate(column)?)));
    let rates = [
        per_second("context switches", CONTEXT_SWITCHES),
        per_second("interrupts", INTERRUPTS),
        per_second("forks", FORKS),
    ];
    vec![NodeLine::of_machine(shares), NodeLine::of_machine([load, threads]), NodeLine::of_machine(rates)]
}

fn memory_now(row: &NodeRow, _: u32) -> Vec<NodeLine> {
    let memory = row.level(MEMORY_TOTAL).zip(row.level(MEMORY_AVAILABLE)).map(|(total, available)| {
        let used = total - available;
        let (used_text, total_text) = (units::bytes(used), units::bytes(total));
        format!("{used_text} of {total_text} in use ({})", units::percent(used / total.max(1.0)))
    });
    let cache = row.level(MEMORY_CACHED).filter(|_| memory.is_some());
    let cache = cache.map(|cache| format!("cache {}", units::bytes(cache)));
    let swap = row.level(SWAP_TOTAL).zip(row.level(SWAP_FREE)).filter(|(total, _)| *total > 0.0);
    let moved = row.rate(SWAPPED_IN).zip(row.rate(SWAPPED_OUT)).filter(|_| swap.is_some());
    let swap = [
        swap.map(|(total, free)| {
            format!("swap {} of {} in use", units::bytes(total - free), units::bytes(total))
        }),
        moved.map(|(back, _)| format!("in {}", units::bytes_per_second(back))),
        moved.map(|(_, out)| format!("out {}", units::bytes_per_second(out))),
    ];
    vec![NodeLine::of_machine([memory, cache]), NodeLine::of_machine(swap)]
}

fn pressure_now(row: &NodeRow, _: u32) -> Vec<NodeLine> {
    let share = |words: &str, column| Some(format!("{words} {}", units::percent(row.rate(column)?)));
    let shares = [share("CPU", PRESSURE_CPU), share("memory", PRESSURE_MEMORY), share("I/O", PRESSURE_IO)];
    let is_known = shares.iter().any(Option::is_some);
    let meaning = is_known.then(|| "(share of time in which some task waited)".to_owned());
    vec![NodeLine::of_machine(shares.into_iter().chain([meaning]))]
}

struct Node {
    host: Host,
    scale: Scale,
    files: Vec<(KeptFile, &'static Format)>,
    buffer: Vec<u8>,
}

/// What the kernel's units are here.
#[derive(Clone, Copy)]
struct Scale {
    ns_per_tick: i64,
    page_bytes: i64,
}

struct Format {
    path: &'static str,
    /// Whether what a kernel must print could be parsed.
    fill: fn(&[u8], Scale, &mut [i64]) -> bool,
}

static FORMATS: &[Format] = &[
    Format { path: "stat", fill: fill_stat },
    Format { path: "meminfo", fill: fill_memory },
    Format { path: "vmstat", fill: fill_paging },
    Format { path: "loadavg", fill: fill_load },
    Format { path: "uptime", fill: fill_uptime },
    Format { path: "pressure/cpu", fill: fill_pressure_cpu },
    Format { path: "pressure/memory", fill: fill_pressure_memory },
    Format { path: "pressure/io", fill: fill_pressure_io },
    Format { path: "pressure/irq", fill: fill_pressure_interrupt },
];

fn open(host: &Host, _: &Options) -> Opened {
    let open_one = |format: &'static Format| {
        let file = host.proc_dir().open_kept(format.path.as_bytes(), host.budget(), Share::First).ok()?;
        Some((file, format))
    };
    let files: Vec<_> = FORMATS.iter().filter_map(open_one).collect();
    if files.is_empty() {
        return Err(Unavailable::Absent("/proc has no figures of the machine".to_owned()));
    }
    let facts = host.facts();
    let scale =
        Scale { ns_per_tick: 1_000_000_000 / facts.ticks_per_second, page_bytes: facts.page_size_bytes };
    Ok(Box::new(Node { host: host.clone(), scale, files, buffer: Vec::new() }))
}

impl Source for Node {
    fn read(&mut self, _: &Targets, tick: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        let mut unparsed = std::mem::take(&mut batch.unparsed);
        let cells = batch.push(Subject::Node);
        let mut first_error = None;
        for (file, format) in &self.files {
            let path = || format!("/proc/{}", format.path);
            match file.read_list(self.host.proc_dir(), format.path.as_bytes(), &mut self.buffer) {
                Ok(()) => unparsed.expect((format.fill)(&self.buffer, self.scale, cells), path),
                // A kernel that keeps no pressure has the files all the same, and refuses to read them.
                Err(error) if is_gone(&error) || error.kind() == std::io::ErrorKind::Unsupported => {}
                Err(error) => {
                    first_error.get_or_insert_with(|| ReadError::Retry { path: path(), error });
                }
            }
        }
        cells[GPUS] = tick.gpus.unwrap_or(MISSING);
        batch.unparsed = unparsed;
        first_error.map_or(Ok(()), Err)
    }
}

const CPU_MODES: [usize; 10] = [
    CPU_USER,
    CPU_NICE,
    CPU_SYSTEM,
    CPU_IDLE,
    CPU_IO_WAIT,
    CPU_INTERRUPT,
    CPU_SOFT_INTERRUPT,
    CPU_STEAL,
    CPU_GUEST,
    CPU_GUEST_NICE,
];

fn fill_stat(text: &[u8], scale: Scale, cells: &mut [i64]) -> bool {
    let mut is_parsed = true;
    for line in parse::lines(text) {
        let mut fields = parse::fields(line);
        let column = match fields.next() {
            Some(b"cpu") => {
                for (column, field) in CPU_MODES.into_iter().zip(fields) {
                    cells[column] = parse::scaled(parse::cell(field), scale.ns_per_tick);
                    is_parsed &= cells[column] != MISSING;
                }
                continue;
            }
            Some(b"intr") => INTERRUPTS,
            Some(b"softirq") => SOFT_INTERRUPTS,
            Some(b"ctxt") => CONTEXT_SWITCHES,
            Some(b"processes") => FORKS,
            Some(b"procs_running") => THREADS_RUNNABLE,
            Some(b"procs_blocked") => THREADS_BLOCKED,
            _ => continue,
        };
        cells[column] = fields.next().map_or(MISSING, parse::cell);
        is_parsed &= cells[column] != MISSING;
    }
    is_parsed && cells[CPU_USER] != MISSING
}

fn memory_column(key: &[u8]) -> Option<usize> {
    Some(match key {
        b"MemTotal" => MEMORY_TOTAL,
        b"MemFree" => MEMORY_FREE,
        b"MemAvailable" => MEMORY_AVAILABLE,
        b"Buffers" => MEMORY_BUFFERS,
        b"Cached" => MEMORY_CACHED,
        b"SwapCached" => MEMORY_SWAP_CACHED,
        b"Active" => MEMORY_ACTIVE,
        b"Inactive" => MEMORY_INACTIVE,
        b"Unevictable" => MEMORY_UNEVICTABLE,
        b"Mlocked" => MEMORY_LOCKED,
        b"SwapTotal" => SWAP_TOTAL,
        b"SwapFree" => SWAP_FREE,
        b"Dirty" => MEMORY_DIRTY,
        b"Writeback" => MEMORY_WRITEBACK,
        b"AnonPages" => MEMORY_ANONYMOUS,
        b"Mapped" => MEMORY_MAPPED,
        b"Shmem" => MEMORY_SHARED,
        b"Slab" => MEMORY_SLAB,
        b"SReclaimable" => MEMORY_SLAB_RECLAIMABLE,
        b"SUnreclaim" => MEMORY_SLAB_UNRECLAIMABLE,
        b"KernelStack" => MEMORY_KERNEL_STACK,
        b"PageTables" => MEMORY_PAGE_TABLES,
        b"NFS_Unstable" => MEMORY_NFS_UNSTABLE,
        b"Bounce" => MEMORY_BOUNCE,
        b"WritebackTmp" => MEMORY_WRITEBACK_TEMPORARY,
        b"CommitLimit" => MEMORY_COMMIT_LIMIT,
        b"Committed_AS" => MEMORY_COMMITTED,
        b"VmallocTotal" => MEMORY_VMALLOC_TOTAL,
        b"VmallocUsed" => MEMORY_VMALLOC_USED,
        b"VmallocChunk" => MEMORY_VMALLOC_CHUNK,
        b"AnonHugePages" => MEMORY_HUGE_ANONYMOUS,
        b"HugePages_Total" => HUGE_PAGES_TOTAL,
        b"HugePages_Free" => HUGE_PAGES_FREE,
        b"HugePages_Rsvd" => HUGE_PAGES_RESERVED,
        b"HugePages_Surp" => HUGE_PAGES_SURPLUS,
        b"Hugepagesize" => HUGE_PAGE_SIZE,
        b"DirectMap4k" => MEMORY_DIRECT_MAP_4K,
        b"DirectMap2M" | b"DirectMap4M" => MEMORY_DIRECT_MAP_2M,
        b"DirectMap1G" => MEMORY_DIRECT_MAP_1G,
        _ => return None,
    })
}

fn fill_memory(text: &[u8], _: Scale, cells: &mut [i64]) -> bool {
    let mut is_parsed = true;
    for (key, value) in parse::key_values(text) {
        if let Some(column) = memory_column(key) {
            let unit = if COLUMNS[column].unit == Unit::Bytes { 1024 } else { 1 };
            cells[column] = parse::scaled(parse::cell(value), unit);
            is_parsed &= cells[column] != MISSING;
        }
    }
    is_parsed && cells[MEMORY_TOTAL] != MISSING
}

fn fill_paging(text: &[u8], scale: Scale, cells: &mut [i64]) -> bool {
    let mut is_parsed = true;
    for (key, value) in parse::key_values(text) {
        let (column, unit) = match key {
            b"pgpgin" => (PAGED_IN, 1024),
            b"pgpgout" => (PAGED_OUT, 1024),
            b"pswpin" => (SWAPPED_IN, scale.page_bytes),
            b"pswpout" => (SWAPPED_OUT, scale.page_bytes),
            b"pgfault" => (PAGE_FAULTS, 1),
            b"pgmajfault" => (PAGE_FAULTS_MAJOR, 1),
            b"oom_kill" => (OOM_KILLS, 1),
            _ => continue,
        };
        cells[column] = parse::scaled(parse::cell(value), unit);
        is_parsed &= cells[column] != MISSING;
    }
    is_parsed && cells[PAGE_FAULTS] != MISSING
}

/// `0.52 0.58 0.59 2/391 12345`.
fn fill_load(text: &[u8], _: Scale, cells: &mut [i64]) -> bool {
    let mut fields = parse::fields(text);
    for column in [LOAD_1, LOAD_5, LOAD_15] {
        cells[column] = fields.next().map_or(MISSING, |field| decimal(field, 3));
    }
    let counts = fields.next().unwrap_or_default();
    let slash = counts.iter().position(|&byte| byte == b'/').unwrap_or(counts.len());
    cells[THREADS] = counts.get(slash + 1..).map_or(MISSING, parse::cell);
    [LOAD_1, LOAD_5, LOAD_15, THREADS].iter().all(|&column| cells[column] != MISSING)
}

fn fill_uptime(text: &[u8], _: Scale, cells: &mut [i64]) -> bool {
    let mut seconds = parse::fields(text).map(|field| decimal(field, 9));
    cells[UPTIME] = seconds.next().unwrap_or(MISSING);
    cells[UPTIME_IDLE] = seconds.next().unwrap_or(MISSING);
    cells[UPTIME] != MISSING
}

/// `1.25` as 1250 with three decimals: no digit passes through a float.
pub(crate) fn decimal(text: &[u8], decimals: usize) -> i64 {
    let point = text.iter().position(|&byte| byte == b'.').unwrap_or(text.len());
    let (whole, fraction) = (&text[..point], text.get(point + 1..).unwrap_or_default());
    if whole.is_empty() || whole.len() > 18 || text.last() == Some(&b'.') {
        return MISSING;
    }
    let mut value = parse::cell(whole);
    let negative = whole.starts_with(b"-");
    if !fraction.iter().all(u8::is_ascii_digit) {
        return MISSING;
    }
    for place in 0..decimals {
        let digit = i64::from(fraction.get(place).map_or(0, |digit| digit - b'0'));
        value = parse::sum(parse::scaled(value, 10), if negative { -digit } else { digit });
    }
    value
}

fn fill_pressure_cpu(text: &[u8], _: Scale, cells: &mut [i64]) -> bool {
    // Of the whole machine, not all threads can wait for a CPU: `full` is 0 for ever.
    [cells[PRESSURE_CPU], _] = pressure_ns(text);
    cells[PRESSURE_CPU] != MISSING
}

fn fill_pressure_memory(text: &[u8], _: Scale, cells: &mut [i64]) -> bool {
    [cells[PRESSURE_MEMORY], cells[PRESSURE_MEMORY_FULL]] = pressure_ns(text);
    cells[PRESSURE_MEMORY] != MISSING
}

fn fill_pressure_io(text: &[u8], _: Scale, cells: &mut [i64]) -> bool {
    [cells[PRESSURE_IO], cells[PRESSURE_IO_FULL]] = pressure_ns(text);
    cells[PRESSURE_IO] != MISSING
}

fn fill_pressure_interrupt(text: &[u8], _: Scale, cells: &mut [i64]) -> bool {
    [_, cells[PRESSURE_INTERRUPT_FULL]] = pressure_ns(text);
    cells[PRESSURE_INTERRUPT_FULL] != MISSING
}

/// The totals of the lines `some avg10=0.00 … total=12` and `full …`.
pub(crate) fn pressure_ns(text: &[u8]) -> [i64; 2] {
    let total = |kind: &[u8]| {
        let line = parse::lines(text).find(|line| parse::fields(line).next() == Some(kind))?;
        parse::fields(line).find_map(|field| field.strip_prefix(b"total="))
    };
    [&b"some"[..], b"full"].map(|kind| parse::scaled(total(kind).map_or(MISSING, parse::cell), 1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    /// The lines of memory, or the others.
    fn read_lines(of_memory: bool) -> String {
        let text = Machine::new(include_str!("../../../fixtures/hosts/node.txt")).read(&SPEC, SLOW);
        let is_memory =
            |line: &&str| ["memory", "huge", "swap_"].iter().any(|word| line.trim().starts_with(word));
        text.lines()
            .filter(|line| is_memory(line) == of_memory)
            .map(|line| format!("{}\n", line.trim()))
            .collect()
    }

    #[test]
    fn a_machine_is_read_whole() {
        expect![[r#"
            Node
            uptime 12345670000000
            uptime_idle 23456780000000
            load_1 1250
            load_5 500
            load_15 50
            threads_runnable 3
            threads 456
            cpu_user 12040000000
            cpu_nice 170000000
            cpu_system 5300000000
            cpu_idle 902100000000
            cpu_io_wait 880000000
            cpu_interrupt 30000000
            cpu_soft_interrupt 440000000
            cpu_steal 120000000
            cpu_guest 50000000
            cpu_guest_nice 10000000
            interrupts 987654
            soft_interrupts 55555
            context_switches 1234567
            forks 4321
            threads_blocked 1
            paged_in 113777664
            paged_out 227555328
            swapped_in 40960
            swapped_out 81920
            page_faults 987654
            page_faults_major 321
            oom_kills 2
            pressure_cpu 1000000
            pressure_memory 200000
            pressure_memory_full 100000
            pressure_io 30000000
            pressure_io_full 20000000
            pressure_interrupt_full 77000
        "#]]
        .assert_eq(&read_lines(false));
    }

    #[test]
    fn memory_is_reported_in_bytes() {
        expect![[r#"
            memory_total 16777216000
            memory_free 4194304000
            memory_available 12582912000
            memory_buffers 209715200
            memory_cached 6291456000
            memory_swap_cached 102400
            memory_active 5120000000
            memory_inactive 4096000000
            memory_unevictable 524288
            memory_locked 262144
            swap_total 2147483648
            swap_free 2048000000
            memory_dirty 4424704
            memory_writeback 17408
            memory_anonymous 2662400000
            memory_mapped 716800000
            memory_shared 126418944
            memory_slab 614400000
            memory_slab_reclaimable 409600000
            memory_slab_unreclaimable 204800000
            memory_kernel_stack 12288000
            memory_page_tables 34816000
            memory_nfs_unstable 0
            memory_bounce 0
            memory_writeback_temporary 0
            memory_commit_limit 10536091648
            memory_committed 7838024704
            memory_vmalloc_total 35184372087808
            memory_vmalloc_used 46774272
            memory_vmalloc_chunk 0
            memory_huge_anonymous 838860800
            huge_pages 16
            huge_pages_free 12
            huge_pages_reserved 2
            huge_pages_surplus 0
            huge_page_size 2097152
            memory_direct_map_4k 307200000
            memory_direct_map_2m 12288000000
            memory_direct_map_1g 4294967296
        "#]]
        .assert_eq(&read_lines(true));
    }

    #[test]
    fn gpus_are_those_that_others_counted_and_unknown_otherwise() {
        let machine = Machine::new(include_str!("../../../fixtures/hosts/node.txt"));
        let read = |gpus: Option<i64>| {
            let text = machine.read(&SPEC, TickInfo { gpus, ..SLOW });
            text.lines().find_map(|line| line.trim().strip_prefix("gpus ").map(str::to_owned))
        };
        assert_eq!(read(None), None);
        assert_eq!((read(Some(0)).as_deref(), read(Some(4)).as_deref()), (Some("0"), Some("4")));
    }

    #[test]
    fn decimals_are_exact_and_what_is_none_is_missing() {
        assert_eq!([decimal(b"1.25", 3), decimal(b"0.5", 3), decimal(b"7", 3)], [1250, 500, 7000]);
        assert_eq!([decimal(b"-1.5", 3), decimal(b"-0.5", 3)], [-1500, -500]);
        assert_eq!(decimal(b"12345.678901", 3), 12_345_678);
        for text in [&b""[..], b".", b".5", b"5.", b"1.x", b"x", b"99999999999999999999.0", b"1,5"] {
            assert_eq!(decimal(text, 3), MISSING, "{}", String::from_utf8_lossy(text));
        }
    }

    /// On this machine: what it says fits together.
    #[test]
    fn this_machine_adds_up() {
        let host = Host::real().unwrap();
        let mut source = open(&host, &Options::default()).unwrap();
        let mut batches = [Batch::new(&TABLE)];
        source.read(&Targets::default(), &SLOW, &mut batches).unwrap();
        let (_, cells) = batches[0].rows().next().unwrap();
        assert_eq!(Some(cells[MEMORY_TOTAL]), host.facts().memory_total_bytes);
        assert!(cells[MEMORY_AVAILABLE] <= cells[MEMORY_TOTAL]);
        let cpu_ns: i64 = [CPU_USER, CPU_SYSTEM, CPU_IDLE, CPU_IO_WAIT].iter().map(|&mode| cells[mode]).sum();
        let (cpus, up_ns) = (i64::from(host.facts().cpu_count), cells[UPTIME]);
        assert!(cpu_ns <= (cpus + 1) * (up_ns + 1_000_000_000), "{cpu_ns} ns in {up_ns} ns on {cpus} CPUs");
        assert!(cells[FORKS] > 0 && cells[CONTEXT_SWITCHES] > 0 && cells[THREADS] > 0);
    }

    proptest! {
        #[test]
        fn any_bytes_fill_cells_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut cells = vec![MISSING; COLUMNS.len()];
            for format in FORMATS {
                (format.fill)(&text, Scale { ns_per_tick: 10_000_000, page_bytes: 4096 }, &mut cells);
            }
            let _ = decimal(&text, 9);
        }
    }
}
