//! Control groups: what a job's cgroup counted, in the v1, v2 or hybrid layout.

use std::collections::HashMap;
use std::sync::Arc;

use met_core::table::{NANO, ONE};
use met_core::{Across, Batch, Column, MISSING, Subject, Table, Unit, columns};
use met_host::cgroup::{CgroupDirs, Hierarchies, Kind};
use met_host::{Budget, CgroupTarget, Dir, Host, KeptFile, Share, Targets, parse};

use crate::{Opened, Options, ReadError, Source, SourceSpec, TickInfo, Unavailable, is_gone};

columns! { COLUMNS:
    CPU = Column::counter("cpu", Unit::Seconds, NANO, "CPU time of every process that was in the cgroup").feeds("cpu"),
    CPU_USER = Column::counter("cpu_user", Unit::Seconds, NANO, "CPU time spent in user code").feeds("cpu_user"),
    CPU_SYSTEM = Column::counter("cpu_system", Unit::Seconds, NANO, "CPU time spent in the kernel").feeds("cpu_system"),
    MEMORY_NEEDED = Column::gauge("memory_needed", Unit::Bytes, ONE, "anonymous and shared memory, which cannot be dropped").feeds("memory_needed"),
    MEMORY_CACHE = Column::gauge("memory_cache", Unit::Bytes, ONE, "page cache charged to the cgroup, shared memory excluded").feeds("memory_cache"),
    MEMORY_PEAK = Column::gauge("memory_peak", Unit::Bytes, ONE, "largest memory charged, page cache included").across(Across::Max).feeds("memory_peak"),
    THREADS = Column::gauge("threads", Unit::Count, ONE, "threads alive").feeds("threads_running"),
    PRESSURE_CPU = Column::counter("pressure_cpu", Unit::Seconds, NANO, "time in which some task waited for a CPU").feeds("pressure_cpu"),
    PRESSURE_MEMORY = Column::counter("pressure_memory", Unit::Seconds, NANO, "time in which some task waited for memory").feeds("pressure_memory"),
    PRESSURE_IO = Column::counter("pressure_io", Unit::Seconds, NANO, "time in which some task waited for I/O").feeds("pressure_io"),
    PRESSURE_CPU_FULL = Column::counter("pressure_cpu_full", Unit::Seconds, NANO, "time in which every task waited for a CPU"),
    PRESSURE_MEMORY_FULL = Column::counter("pressure_memory_full", Unit::Seconds, NANO, "time in which every task waited for memory").feeds("pressure_memory_full"),
    PRESSURE_IO_FULL = Column::counter("pressure_io_full", Unit::Seconds, NANO, "time in which every task waited for I/O").feeds("pressure_io_full"),
    OOM_KILLS = Column::counter("oom_kills", Unit::Count, ONE, "processes killed because the cgroup was out of memory").feeds("oom_kills"),
}

static TABLE: Table = Table {
    name: "cgroup",
    subject: "a cgroup of a job, the cgroups below it included",
    labels: &["cgroup"],
    columns: COLUMNS,
};

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "cgroup",
    help: "CPU time, memory and pressure of a job's cgroup",
    tables: &[&TABLE],
    open,
};

struct Cgroups {
    budget: Arc<Budget>,
    ns_per_tick: i64,
    known: HashMap<u64, Entry>,
    generation: u64,
    buffer: Vec<u8>,
}

struct Entry {
    files: Vec<File>,
    seen: u64,
}

/// One file of one cgroup, and how it is read.
struct File {
    kept: KeptFile,
    format: &'static Format,
}

/// A file that a cgroup may have: where, how often it is read, and which cells it fills.
struct Format {
    dir: fn(&CgroupDirs) -> Option<&Dir>,
    name: &'static str,
    slow: bool,
    fill: fn(&[u8], i64, &mut [i64]),
}

fn unified(dirs: &CgroupDirs) -> Option<&Dir> {
    dirs.unified.as_ref()
}

fn memory(dirs: &CgroupDirs) -> Option<&Dir> {
    dirs.memory.as_ref()
}

fn cpuacct(dirs: &CgroupDirs) -> Option<&Dir> {
    dirs.cpuacct.as_ref()
}

/// Each group of files tells the same: the first that exists is read. This is where v1, v2 and hybrid
/// layouts differ, and it is decided once for each cgroup.
static ALTERNATIVES: &[&[&[Format]]] = &[
    &[
        &[Format { dir: unified, name: "cpu.stat", slow: false, fill: fill_cpu_v2 }],
        // In this order: the split of the second file is applied to the sum of the first.
        &[
            Format { dir: cpuacct, name: "cpuacct.usage", slow: false, fill: fill_cpu_v1 },
            Format { dir: cpuacct, name: "cpuacct.stat", slow: false, fill: split_cpu_v1 },
        ],
    ],
    &[
        &[Format { dir: unified, name: "memory.stat", slow: false, fill: fill_memory_v2 }],
        &[Format { dir: memory, name: "memory.stat", slow: false, fill: fill_memory_v1 }],
    ],
    &[
        &[Format { dir: unified, name: "memory.peak", slow: true, fill: fill_peak }],
        &[Format { dir: memory, name: "memory.max_usage_in_bytes", slow: true, fill: fill_peak }],
    ],
    &[
        &[Format { dir: unified, name: "memory.events", slow: true, fill: fill_oom }],
        &[Format { dir: memory, name: "memory.oom_control", slow: true, fill: fill_oom }],
    ],
    &[&[Format { dir: unified, name: "pids.current", slow: true, fill: fill_threads }]],
    &[&[Format { dir: unified, name: "cpu.pressure", slow: true, fill: fill_pressure_cpu }]],
    &[&[Format { dir: unified, name: "memory.pressure", slow: true, fill: fill_pressure_memory }]],
    &[&[Format { dir: unified, name: "io.pressure", slow: true, fill: fill_pressure_io }]],
];

fn open(host: &Host, _: &Options) -> Opened {
    let hierarchies = Hierarchies::read(host)
        .map_err(|_| Unavailable::Denied { path: "/proc/self/mountinfo".into(), need: "a mounted /proc" })?;
    if hierarchies.kind() == Kind::None {
        return Err(Unavailable::Absent("no cgroup hierarchy is mounted".into()));
    }
    Ok(Box::new(Cgroups {
        budget: Arc::clone(host.budget()),
        ns_per_tick: 1_000_000_000 / host.facts().ticks_per_second,
        known: HashMap::new(),
        generation: 0,
        buffer: Vec::new(),
    }))
}

impl Source for Cgroups {
    fn read(&mut self, targets: &Targets, tick: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        self.generation += 1;
        let mut first_error = None;
        for target in &targets.cgroups {
            let error = self.read_one(target, tick.slow || target.young, batch);
            first_error = first_error.or(error);
        }
        let generation = self.generation;
        self.known.retain(|_, entry| entry.seen == generation);
        first_error.map_or(Ok(()), Err)
    }
}

impl Cgroups {
    fn read_one(&mut self, target: &CgroupTarget, slow: bool, batch: &mut Batch) -> Option<ReadError> {
        let dirs = &*target.dirs;
        let entry = self.known.entry(dirs.id).or_insert_with(|| open_files(dirs, &self.budget));
        entry.seen = self.generation;
        let cells = batch.push(Subject::Cgroup(dirs.id));
        let mut first_error = None;
        for File { kept, format } in &entry.files {
            let Some(dir) = (format.dir)(dirs).filter(|_| slow || !format.slow) else { continue };
            match kept.read(dir, format.name.as_bytes(), &mut self.buffer) {
                Ok(()) => (format.fill)(&self.buffer, self.ns_per_tick, cells),
                // All files of a cgroup go at once: what was read of it before may be of an earlier time.
                Err(error) if is_gone(&error) => {
                    batch.pop();
                    return None;
                }
                Err(error) => {
                    let path = format!("{} of cgroup {}", format.name, dirs.id);
                    first_error.get_or_insert(ReadError::Retry { path, error });
                }
            }
        }
        first_error
    }
}

fn open_files(dirs: &CgroupDirs, budget: &Arc<Budget>) -> Entry {
    let open_one = |format: &'static Format| {
        let share = if format.slow { Share::Second } else { Share::First };
        let kept = (format.dir)(dirs)?.open_kept(format.name.as_bytes(), budget, share).ok()?;
        Some(File { kept, format })
    };
    let open_group = |group: &'static [Format]| group.iter().map(open_one).collect::<Option<Vec<_>>>();
    let first_of = |groups: &'static [&'static [Format]]| groups.iter().copied().find_map(open_group);
    let files = ALTERNATIVES.iter().copied().filter_map(first_of).flatten().collect();
    Entry { files, seen: 0 }
}

fn fill_cpu_v2(text: &[u8], _: i64, cells: &mut [i64]) {
    for (key, value) in parse::key_values(text).take(3) {
        let column = match key {
            b"usage_usec" => CPU,
            b"user_usec" => CPU_USER,
            b"system_usec" => CPU_SYSTEM,
            _ => continue,
        };
        cells[column] = parse::scaled(parse::cell(value), 1000);
    }
}

fn fill_cpu_v1(text: &[u8], _: i64, cells: &mut [i64]) {
    cells[CPU] = parse::cell(text.trim_ascii());
}

/// `cpuacct.stat` counts in ticks: its proportions are right, its sum is not that of `cpuacct.usage`.
fn split_cpu_v1(text: &[u8], ns_per_tick: i64, cells: &mut [i64]) {
    let user_ns = parse::scaled(parse::value_of(text, "user"), ns_per_tick);
    let system_ns = parse::scaled(parse::value_of(text, "system"), ns_per_tick);
    if cells[CPU] < 0 || user_ns < 0 || system_ns < 0 {
        return;
    }
    let (whole, sum) = (i128::from(cells[CPU]), i128::from(user_ns) + i128::from(system_ns));
    // A group that has not used a tick yet ran in user code as far as anybody can tell.
    let user = if sum == 0 { whole } else { whole * i128::from(user_ns) / sum };
    cells[CPU_USER] = i64::try_from(user).unwrap_or(MISSING);
    cells[CPU_SYSTEM] = parse::difference(cells[CPU], cells[CPU_USER]);
}

fn fill_memory_v2(text: &[u8], _: i64, cells: &mut [i64]) {
    let [anon, file, shmem] = values_of(text, ["anon", "file", "shmem"]);
    cells[MEMORY_NEEDED] = parse::sum(anon, shmem);
    // `file` counts shared memory, which is no cache: nothing on a disk stands behind it.
    cells[MEMORY_CACHE] = parse::difference(file, shmem);
}

fn fill_memory_v1(text: &[u8], _: i64, cells: &mut [i64]) {
    let [own_rss, own_cache, own_shmem, rss, cache, shmem] =
        values_of(text, ["rss", "cache", "shmem", "total_rss", "total_cache", "total_shmem"]);
    let or = |total: i64, own: i64| if total == MISSING { own } else { total };
    cells[MEMORY_NEEDED] = parse::sum(or(rss, own_rss), or(shmem, own_shmem));
    cells[MEMORY_CACHE] = parse::difference(or(cache, own_cache), or(shmem, own_shmem));
}

fn fill_peak(text: &[u8], _: i64, cells: &mut [i64]) {
    cells[MEMORY_PEAK] = parse::cell(text.trim_ascii());
}

fn fill_threads(text: &[u8], _: i64, cells: &mut [i64]) {
    cells[THREADS] = parse::cell(text.trim_ascii());
}

fn fill_oom(text: &[u8], _: i64, cells: &mut [i64]) {
    cells[OOM_KILLS] = parse::value_of(text, "oom_kill");
}

fn fill_pressure_cpu(text: &[u8], _: i64, cells: &mut [i64]) {
    [cells[PRESSURE_CPU], cells[PRESSURE_CPU_FULL]] = pressure_ns(text);
}

fn fill_pressure_memory(text: &[u8], _: i64, cells: &mut [i64]) {
    [cells[PRESSURE_MEMORY], cells[PRESSURE_MEMORY_FULL]] = pressure_ns(text);
}

fn fill_pressure_io(text: &[u8], _: i64, cells: &mut [i64]) {
    [cells[PRESSURE_IO], cells[PRESSURE_IO_FULL]] = pressure_ns(text);
}

/// The totals of the lines `some avg10=0.00 … total=12` and `full …`.
fn pressure_ns(text: &[u8]) -> [i64; 2] {
    let total = |kind: &[u8]| {
        let line = parse::lines(text).find(|line| parse::fields(line).next() == Some(kind))?;
        parse::fields(line).find_map(|field| field.strip_prefix(b"total="))
    };
    [&b"some"[..], b"full"].map(|kind| parse::scaled(total(kind).map_or(MISSING, parse::cell), 1000))
}

/// The values of several keys in one pass; it ends when all are found, for memory.stat is long.
fn values_of<const COUNT: usize>(text: &[u8], keys: [&str; COUNT]) -> [i64; COUNT] {
    let mut values = [MISSING; COUNT];
    let mut left = COUNT;
    for (name, value) in parse::key_values(text) {
        if let Some(index) = keys.iter().position(|key| key.as_bytes() == name) {
            values[index] = parse::cell(value);
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    values
}
