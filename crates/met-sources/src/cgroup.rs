//! Control groups: what a job's cgroup counted, in the v1, v2 or hybrid layout.

use std::sync::Arc;

use met_core::table::{NANO, ONE};
use met_core::{
    Across, Batch, Column, FastMap, MISSING, Subject, Table, Unit, Unparsed, columns, detail_table as detail,
    job_table,
};
use met_host::cgroup::{CgroupDirs, Hierarchies, Kind};
use met_host::cgroup_files::{V1, V2};
use met_host::{Budget, CgroupTarget, Dir, Host, KeptFile, Look, Share, Targets, clock, parse};

use crate::node::pressure_ns;
use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, Unavailable, is_gone};

columns! { COLUMNS:
    CPU = Column::counter("cpu", Unit::Seconds, NANO, "CPU time of every process that was in the cgroup").feeds(job_table::CPU),
    CPU_USER = Column::counter("cpu_user", Unit::Seconds, NANO, "CPU time spent in user code").feeds(job_table::CPU_USER),
    CPU_SYSTEM = Column::counter("cpu_system", Unit::Seconds, NANO, "CPU time spent in the kernel").feeds(job_table::CPU_SYSTEM),
    MEMORY_NEEDED = Column::gauge("memory_needed", Unit::Bytes, ONE, "anonymous and shared memory, which cannot be dropped").feeds(job_table::MEMORY_NEEDED),
    MEMORY_SHARED = Column::gauge("memory_shared", Unit::Bytes, ONE, "shared memory and files in tmpfs, part of memory_needed").feeds(job_table::MEMORY_SHARED),
    MEMORY_HUGETLB = Column::gauge("memory_hugetlb", Unit::Bytes, ONE, "reserved huge pages, not part of memory_needed").feeds(job_table::MEMORY_HUGETLB),
    MEMORY_CACHE = Column::gauge("memory_cache", Unit::Bytes, ONE, "page cache charged to the cgroup, shared memory excluded").feeds(job_table::MEMORY_CACHE),
    MEMORY_PEAK = Column::gauge("memory_peak", Unit::Bytes, ONE, "largest memory charged, page cache included").across(Across::Max).feeds(job_table::MEMORY_PEAK),
    THREADS = Column::gauge("threads", Unit::Count, ONE, "threads alive").feeds(job_table::THREADS_RUNNING),
    PRESSURE_CPU = Column::counter("pressure_cpu", Unit::Seconds, NANO, "time in which some task waited for a CPU").feeds(job_table::PRESSURE_CPU),
    PRESSURE_MEMORY = Column::counter("pressure_memory", Unit::Seconds, NANO, "time in which some task waited for memory").feeds(job_table::PRESSURE_MEMORY),
    PRESSURE_IO = Column::counter("pressure_io", Unit::Seconds, NANO, "time in which some task waited for I/O").feeds(job_table::PRESSURE_IO),
    PRESSURE_CPU_FULL = Column::counter("pressure_cpu_full", Unit::Seconds, NANO, "time in which every task waited for a CPU"),
    PRESSURE_MEMORY_FULL = Column::counter("pressure_memory_full", Unit::Seconds, NANO, "time in which every task waited for memory").feeds(job_table::PRESSURE_MEMORY_FULL),
    PRESSURE_IO_FULL = Column::counter("pressure_io_full", Unit::Seconds, NANO, "time in which every task waited for I/O").feeds(job_table::PRESSURE_IO_FULL),
    OOM_KILLS = Column::counter("oom_kills", Unit::Count, ONE, "processes killed because the cgroup was out of memory").feeds(job_table::OOM_KILLS),
    THROTTLED = Column::counter("cpu_throttled", Unit::Seconds, NANO, "time in which its CPU quota throttled it, summed over CPUs").feeds(job_table::THROTTLED),
    THROTTLES = Column::counter("cpu_throttles", Unit::Count, ONE, "periods in which its CPU quota throttled it").feeds(job_table::THROTTLES),
    QUOTA_PERIODS = Column::counter("cpu_quota_periods", Unit::Count, ONE, "periods of its CPU quota in which it was runnable").details(detail::QUOTA_PERIODS),
    MEMORY_ANONYMOUS = Column::gauge("memory_anonymous", Unit::Bytes, ONE, "anonymous memory").details(detail::MEMORY_ANONYMOUS),
    MEMORY_HUGE = Column::gauge("memory_huge", Unit::Bytes, ONE, "its part in transparent huge pages").details(detail::MEMORY_HUGE),
    MEMORY_MAPPED = Column::gauge("memory_mapped", Unit::Bytes, ONE, "mapped files and shared memory").details(detail::MEMORY_MAPPED),
    MEMORY_DIRTY = Column::gauge("memory_dirty", Unit::Bytes, ONE, "page cache waiting to be written to disk").details(detail::MEMORY_DIRTY),
    MEMORY_WRITEBACK = Column::gauge("memory_writeback", Unit::Bytes, ONE, "page cache being written to disk").details(detail::MEMORY_WRITEBACK),
    MEMORY_INACTIVE_ANONYMOUS = Column::gauge("memory_inactive_anonymous", Unit::Bytes, ONE, "anonymous and shared memory that would be swapped out first").details(detail::MEMORY_INACTIVE_ANONYMOUS),
    MEMORY_ACTIVE_ANONYMOUS = Column::gauge("memory_active_anonymous", Unit::Bytes, ONE, "recently used anonymous and shared memory").details(detail::MEMORY_ACTIVE_ANONYMOUS),
    MEMORY_INACTIVE_FILE = Column::gauge("memory_inactive_file", Unit::Bytes, ONE, "page cache that would be reclaimed first").details(detail::MEMORY_INACTIVE_FILE),
    MEMORY_ACTIVE_FILE = Column::gauge("memory_active_file", Unit::Bytes, ONE, "recently used page cache").details(detail::MEMORY_ACTIVE_FILE),
    MEMORY_UNEVICTABLE = Column::gauge("memory_unevictable", Unit::Bytes, ONE, "memory that cannot be reclaimed").details(detail::MEMORY_UNEVICTABLE),
    MEMORY_LIMIT = Column::gauge("memory_limit", Unit::Bytes, ONE, "lowest memory limit of it and the cgroups around it; v1 only").across(Across::Max).details(detail::MEMORY_LIMIT),
    PAGES_CHARGED = Column::counter("pages_charged", Unit::Count, ONE, "pages charged to it; v1 only").details(detail::PAGES_CHARGED),
    PAGES_UNCHARGED = Column::counter("pages_uncharged", Unit::Count, ONE, "pages that it released; v1 only").details(detail::PAGES_UNCHARGED),
    PAGE_FAULTS = Column::counter("page_faults", Unit::Count, ONE, "page faults").details(detail::PAGE_FAULTS),
    PAGE_FAULTS_MAJOR = Column::counter("page_faults_major", Unit::Count, ONE, "page faults that waited for storage").details(detail::PAGE_FAULTS_MAJOR),
}

pub static TABLE: Table = Table {
    name: "cgroup",
    subject: "a cgroup of a job, the cgroups below it included",
    labels: &["cgroup"],
    columns: COLUMNS,
};

pub static SPEC: SourceSpec = SourceSpec {
    name: "cgroup",
    help: "CPU time, memory and pressure of a job's cgroup",
    pace: Pace::Tick,
    tables: &[&TABLE],
    charts: &[],
    options: &[],
    open,
};

struct Cgroups {
    budget: Arc<Budget>,
    ns_per_tick: i64,
    known: FastMap<u64, Entry>,
    generation: u64,
    buffer: Vec<u8>,
    /// When this reading began.
    now_ns: i64,
}

struct Entry {
    files: Vec<File>,
    /// Opened while the job is read more often than its memory in full.
    charged: Option<Charged>,
    seen: u64,
    last: Last,
}

/// A cgroup as it was last read. While its CPU time hardly grows, next to nothing ran in it, and the rest is the same.
#[derive(Default)]
struct Last {
    cells: Vec<i64>,
    /// With what is read at slow ticks only.
    is_whole: bool,
    skipped: u32,
    /// When its memory was last read in full.
    memory_ns: i64,
}

/// So often the rest is not read, then once in any case: tasks that wait for a device use no CPU time, and pressure
/// grows.
const SKIPPED_MAX: u32 = 10;

/// Programs that wait wake up now and then. In this much CPU time since it was last read a job can fill some tens of
/// megabytes at most, which is less than what counts as a change of its figures.
pub const QUIET_NS: i64 = 2_000_000;

/// The same for jobs that are read every second, whose memory is known more exactly: a megabyte or two.
const QUIET_OFTEN_NS: i64 = 200_000;

/// Growth of needed memory by more than this, or a 64th of it, is seen at the next look, between two readings in full.
const SAME_BYTES: i64 = 2 << 20;

/// After this time the memory of a job is read in full in any case: every ten seconds, with ticks that come early.
const MEMORY_EVERY_NS: i64 = 9_500_000_000;

/// Whether a job whose CPU time was `then_ns` when it was last read has hardly run since.
pub fn is_quiet(then_ns: i64, now_ns: i64) -> bool {
    ran_at_most(QUIET_NS, then_ns, now_ns)
}

fn ran_at_most(most_ns: i64, then_ns: i64, now_ns: i64) -> bool {
    then_ns != MISSING && (then_ns..=then_ns.saturating_add(most_ns)).contains(&now_ns)
}

impl Last {
    /// Whether the CPU time in `cells` has grown by `quiet_ns` at most since it was last read. Then it completes these.
    fn complete(&mut self, cells: &mut [i64], is_whole: bool, quiet_ns: i64) -> bool {
        let is_quiet = self.cells.get(CPU).is_some_and(|&then_ns| ran_at_most(quiet_ns, then_ns, cells[CPU]));
        if !is_quiet || is_whole && !self.is_whole || self.skipped >= SKIPPED_MAX {
            return false;
        }
        self.skipped += 1;
        // Levels are what they were. Counters may have grown without CPU time, such as pressure: they are not known.
        let levels = COLUMNS.iter().map(|column| column.kind == met_core::Kind::Gauge);
        for ((cell, last), _) in
            cells.iter_mut().zip(&self.cells).zip(levels).filter(|(_, is_level)| *is_level)
        {
            *cell = if *cell == MISSING { *last } else { *cell };
        }
        true
    }

    /// Whether what is charged to it now is the memory that it needed when that was last read. Then that completes `cells`.
    ///
    /// It cannot need more than is charged, so that growth shows even where page cache makes room for it and the sum stays at
    /// a limit. Memory that it frees while page cache takes as much is seen at the next reading in full.
    fn repeat_memory(&self, charged_bytes: i64, now_ns: i64, cells: &mut [i64]) -> bool {
        let needed = self.cells.get(MEMORY_NEEDED).copied().unwrap_or(MISSING);
        let is_same = |needed: i64| (charged_bytes - needed).abs() <= SAME_BYTES.max(needed / 64);
        if [needed, charged_bytes].contains(&MISSING)
            || !is_same(needed)
            || now_ns - self.memory_ns >= MEMORY_EVERY_NS
        {
            return false;
        }
        for column in [MEMORY_NEEDED, MEMORY_SHARED, MEMORY_CACHE] {
            cells[column] = self.cells[column];
        }
        true
    }

    fn keep(&mut self, cells: &[i64], is_whole: bool) {
        // Nothing ran at all: what was read with it before is of now, too.
        if !is_whole && self.cells.get(CPU) == Some(&cells[CPU]) {
            let read = cells.iter().zip(&mut self.cells).filter(|(cell, _)| **cell != MISSING);
            read.for_each(|(cell, last)| *last = *cell);
            return;
        }
        self.skipped = 0;
        self.is_whole = is_whole;
        self.cells.clear();
        self.cells.extend_from_slice(cells);
    }
}

/// One file of one cgroup, and how it is read.
struct File {
    kept: KeptFile,
    format: &'static Format,
}

/// The file that says how much memory is charged to a cgroup: a short one, where that of its parts has dozens of lines.
struct Charged {
    kept: KeptFile,
    dir: fn(&CgroupDirs) -> Option<&Dir>,
    name: &'static [u8],
}

impl Charged {
    fn open(dirs: &CgroupDirs, budget: &Arc<Budget>) -> Option<Charged> {
        type Place = (fn(&CgroupDirs) -> Option<&Dir>, &'static [u8]);
        let places: [Place; 2] =
            [(unified, V2.memory_current.as_bytes()), (memory, V1.memory_current.as_bytes())];
        places.into_iter().find_map(|(dir, name)| {
            let kept = dir(dirs)?.open_kept(name, budget, Share::First).ok()?;
            Some(Charged { kept, dir, name })
        })
    }

    fn read(&self, dirs: &CgroupDirs, buffer: &mut Vec<u8>) -> i64 {
        let is_read = (self.dir)(dirs).is_some_and(|dir| self.kept.read(dir, self.name, buffer).is_ok());
        if is_read { parse::cell(buffer.trim_ascii()) } else { MISSING }
    }
}

/// A file that a cgroup may have: where, how often it is read, and which cells it fills.
struct Format {
    dir: fn(&CgroupDirs) -> Option<&Dir>,
    name: &'static str,
    pace: FilePace,
    /// Whether what a kernel must print could be parsed.
    fill: fn(&[u8], Pass, &mut [i64]) -> bool,
}

/// When a file is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FilePace {
    /// Always.
    Quick,
    /// The same, unless the memory that is charged shows that it would say what it said.
    Memory,
    /// At slow ticks, and with the little that is read of every job.
    Slowly,
    /// At slow ticks only.
    Slow,
}

/// How a file is read this time.
#[derive(Clone, Copy)]
struct Pass {
    ns_per_tick: i64,
    /// With what is needed now and then.
    slow: bool,
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

fn hugetlb(dirs: &CgroupDirs) -> Option<&Dir> {
    dirs.hugetlb.as_ref()
}

/// Of files with the same content, the first that exists is read. This is where v1, v2 and hybrid
/// layouts differ, and it is decided once for each cgroup.
static ALTERNATIVES: &[&[&[Format]]] = &[
    &[
        &[Format { dir: unified, name: V2.cpu_usage, pace: FilePace::Quick, fill: fill_cpu_v2 }],
        // In this order: the split of the second file is applied to the sum of the first. It changes little
        // from tick to tick.
        &[
            Format { dir: cpuacct, name: V1.cpu_usage, pace: FilePace::Quick, fill: fill_cpu_v1 },
            Format { dir: cpuacct, name: "cpuacct.stat", pace: FilePace::Slow, fill: split_cpu_v1 },
        ],
    ],
    &[
        &[Format { dir: unified, name: V2.memory_stat, pace: FilePace::Memory, fill: fill_memory_v2 }],
        &[Format { dir: memory, name: V1.memory_stat, pace: FilePace::Memory, fill: fill_memory_v1 }],
    ],
    &[
        &[Format { dir: unified, name: V2.memory_peak, pace: FilePace::Slowly, fill: fill_peak }],
        &[Format { dir: memory, name: V1.memory_peak, pace: FilePace::Slowly, fill: fill_peak }],
    ],
    &[
        &[Format { dir: unified, name: V2.memory_kills, pace: FilePace::Slow, fill: fill_oom }],
        &[Format { dir: memory, name: V1.memory_kills, pace: FilePace::Slow, fill: fill_oom }],
    ],
    // Where both controllers share a hierarchy, as they mostly do.
    &[&[Format { dir: cpuacct, name: V1.cpu_stat, pace: FilePace::Slow, fill: fill_throttled_v1 }]],
    &[
        &[Format { dir: unified, name: "hugetlb.2MB.current", pace: FilePace::Slow, fill: add_hugetlb }],
        &[Format {
            dir: hugetlb,
            name: "hugetlb.2MB.usage_in_bytes",
            pace: FilePace::Slow,
            fill: add_hugetlb,
        }],
    ],
    &[
        &[Format { dir: unified, name: "hugetlb.1GB.current", pace: FilePace::Slow, fill: add_hugetlb }],
        &[Format {
            dir: hugetlb,
            name: "hugetlb.1GB.usage_in_bytes",
            pace: FilePace::Slow,
            fill: add_hugetlb,
        }],
    ],
    &[&[Format { dir: unified, name: "pids.current", pace: FilePace::Slow, fill: fill_threads }]],
    &[&[Format { dir: unified, name: "cpu.pressure", pace: FilePace::Slow, fill: fill_pressure_cpu }]],
    &[&[Format { dir: unified, name: "memory.pressure", pace: FilePace::Slow, fill: fill_pressure_memory }]],
    &[&[Format { dir: unified, name: "io.pressure", pace: FilePace::Slow, fill: fill_pressure_io }]],
];

fn open(host: &Host, _: &Options) -> Opened {
    let unreadable = |_| Unavailable::Denied { path: "/proc/self/mountinfo".into(), need: "a mounted /proc" };
    // One that was not there when first asked for may be by now.
    if host.hierarchies().kind() == Kind::None
        && Hierarchies::read(host).map_err(unreadable)?.kind() == Kind::None
    {
        return Err(Unavailable::Absent("no cgroup hierarchy is mounted".into()));
    }
    Ok(Box::new(Cgroups {
        budget: Arc::clone(host.budget()),
        ns_per_tick: 1_000_000_000 / host.facts().ticks_per_second,
        known: FastMap::default(),
        generation: 0,
        buffer: Vec::new(),
        now_ns: 0,
    }))
}

impl Source for Cgroups {
    fn read(&mut self, targets: &Targets, tick: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        self.generation += 1;
        self.now_ns = clock::boottime_ns();
        let mut first_error = None;
        let mut unparsed = std::mem::take(&mut batch.unparsed);
        for target in &targets.cgroups {
            if target.look == Look::No {
                self.keep(target, tick);
                continue;
            }
            let error = self.read_one(target, tick.slow, batch, &mut unparsed);
            first_error = first_error.or(error);
        }
        batch.unparsed = unparsed;
        let generation = self.generation;
        if !tick.partial {
            self.known.retain(|_, entry| entry.seen == generation);
        }
        first_error.map_or(Ok(()), Err)
    }
}

impl Cgroups {
    /// Its files stay open though they are not read.
    fn keep(&mut self, target: &CgroupTarget, tick: &TickInfo) {
        if let Some(entry) = self.known.get_mut(&target.dirs.id).filter(|_| !tick.partial) {
            entry.seen = self.generation;
        }
    }

    fn read_one(
        &mut self,
        target: &CgroupTarget,
        slow: bool,
        batch: &mut Batch,
        unparsed: &mut Unparsed,
    ) -> Option<ReadError> {
        let dirs = &*target.dirs;
        let entry = self.known.entry(dirs.id).or_insert_with(|| open_files(dirs, &self.budget));
        // Gone before it was opened, and looked for again at the next tick.
        if entry.files.is_empty() {
            return None;
        }
        entry.seen = self.generation;
        let cells = batch.push(Subject::Cgroup(dirs.id));
        let is_whole = target.is_whole(slow);
        let pass = Pass { ns_per_tick: self.ns_per_tick, slow: is_whole };
        let mut first_error = None;
        // What is read at every tenth tick only is not left out for longer.
        let mut may_skip = target.look != Look::Usual || !is_whole;
        let quiet_ns = if target.look == Look::Usual { QUIET_OFTEN_NS } else { QUIET_NS };
        let may_repeat_memory = target.look == Look::Usual && !is_whole;
        let Entry { files, charged, last, .. } = entry;
        if target.look != Look::Usual {
            *charged = None;
        }
        for (index, File { kept, format }) in files.iter().enumerate() {
            let is_due = match format.pace {
                FilePace::Quick | FilePace::Memory => true,
                FilePace::Slowly => is_whole || target.look == Look::Cheap,
                FilePace::Slow => is_whole,
            };
            let Some(dir) = (format.dir)(dirs).filter(|_| is_due) else { continue };
            // The first one has the CPU time.
            if index > 0 && std::mem::take(&mut may_skip) && last.complete(cells, is_whole, quiet_ns) {
                return None;
            }
            if format.pace == FilePace::Memory {
                if may_repeat_memory {
                    *charged = charged.take().or_else(|| Charged::open(dirs, &self.budget));
                    let now = charged.as_ref().map_or(MISSING, |file| file.read(dirs, &mut self.buffer));
                    if last.repeat_memory(now, self.now_ns, cells) {
                        continue;
                    }
                }
                last.memory_ns = self.now_ns;
            }
            let path = || format!("{} of cgroup {}", format.name, dirs.id);
            match kept.read(dir, format.name.as_bytes(), &mut self.buffer) {
                Ok(()) => {
                    unparsed.expect((format.fill)(&self.buffer, pass, cells), path);
                }
                // All files of a cgroup go at once: what was read of it before may be of an earlier time.
                Err(error) if is_gone(&error) => {
                    batch.pop();
                    return None;
                }
                Err(error) => {
                    first_error.get_or_insert_with(|| ReadError::Retry { path: path(), error });
                }
            }
        }
        match first_error.is_none() {
            true => last.keep(cells, is_whole),
            false => last.cells.clear(),
        }
        first_error
    }
}

fn open_files(dirs: &CgroupDirs, budget: &Arc<Budget>) -> Entry {
    let open_one = |format: &'static Format| {
        let share = if format.pace == FilePace::Slow { Share::Second } else { Share::First };
        let kept = (format.dir)(dirs)?.open_kept(format.name.as_bytes(), budget, share).ok()?;
        Some(File { kept, format })
    };
    let open_group = |group: &'static [Format]| group.iter().map(open_one).collect::<Option<Vec<_>>>();
    let first_of = |groups: &'static [&'static [Format]]| groups.iter().copied().find_map(open_group);
    let files = ALTERNATIVES.iter().copied().filter_map(first_of).flatten().collect();
    Entry { files, charged: None, seen: 0, last: Last::default() }
}

fn fill_cpu_v2(text: &[u8], _: Pass, cells: &mut [i64]) -> bool {
    let mut is_parsed = true;
    for (key, value) in parse::key_values(text) {
        let column = match key {
            b"usage_usec" => CPU,
            b"user_usec" => CPU_USER,
            b"system_usec" => CPU_SYSTEM,
            b"throttled_usec" => THROTTLED,
            b"nr_throttled" => THROTTLES,
            b"nr_periods" => QUOTA_PERIODS,
            _ => continue,
        };
        let scale = if matches!(column, THROTTLES | QUOTA_PERIODS) { 1 } else { 1000 };
        cells[column] = parse::scaled(parse::cell(value), scale);
        is_parsed &= cells[column] != MISSING;
    }
    is_parsed && cells[CPU] != MISSING
}

fn fill_cpu_v1(text: &[u8], _: Pass, cells: &mut [i64]) -> bool {
    fill_one(text, &mut cells[CPU])
}

/// `cpuacct.stat` counts in ticks: its proportions are right, its sum is not that of `cpuacct.usage`.
fn split_cpu_v1(text: &[u8], Pass { ns_per_tick, .. }: Pass, cells: &mut [i64]) -> bool {
    let user_ns = parse::scaled(parse::value_of(text, "user"), ns_per_tick);
    let system_ns = parse::scaled(parse::value_of(text, "system"), ns_per_tick);
    if cells[CPU] < 0 || user_ns < 0 || system_ns < 0 {
        return user_ns >= 0 && system_ns >= 0;
    }
    let (whole, sum) = (i128::from(cells[CPU]), i128::from(user_ns) + i128::from(system_ns));
    // A group that has not used a tick yet is taken to have run in user code.
    let user = if sum == 0 { whole } else { whole * i128::from(user_ns) / sum };
    cells[CPU_USER] = i64::try_from(user).unwrap_or(MISSING);
    cells[CPU_SYSTEM] = parse::difference(cells[CPU], cells[CPU_USER]);
    true
}

/// Without the controller for quotas in this hierarchy there is no such line.
fn fill_throttled_v1(text: &[u8], _: Pass, cells: &mut [i64]) -> bool {
    let counts = [("throttled_time", THROTTLED), ("nr_throttled", THROTTLES), ("nr_periods", QUOTA_PERIODS)];
    counts.iter().fold(true, |parsed, &(key, column)| fill_optional(text, key, &mut cells[column]) && parsed)
}

/// A cgroup has a file for each size of huge pages.
fn add_hugetlb(text: &[u8], _: Pass, cells: &mut [i64]) -> bool {
    let bytes = parse::cell(text.trim_ascii());
    let known = cells[MEMORY_HUGETLB];
    cells[MEMORY_HUGETLB] = if known == MISSING { bytes } else { parse::sum(known, bytes) };
    bytes != MISSING
}

fn fill_memory_v2(text: &[u8], pass: Pass, cells: &mut [i64]) -> bool {
    let ([anon, file, shmem], is_parsed) = match pass.slow {
        true => all_values_of(text, ["anon", "file", "shmem"], detail_v2, cells),
        false => (values_of(text, ["anon", "file", "shmem"]), true),
    };
    cells[MEMORY_NEEDED] = parse::sum(anon, shmem);
    cells[MEMORY_SHARED] = shmem;
    // `file` counts shared memory, which is no cache: nothing on a disk stands behind it.
    cells[MEMORY_CACHE] = parse::difference(file, shmem);
    if pass.slow {
        cells[MEMORY_ANONYMOUS] = anon;
    }
    is_parsed && ![anon, file, shmem].contains(&MISSING)
}

fn fill_memory_v1(text: &[u8], pass: Pass, cells: &mut [i64]) -> bool {
    const KEYS: [&str; 6] = ["rss", "cache", "shmem", "total_rss", "total_cache", "total_shmem"];
    let ([own_rss, own_cache, own_shmem, rss, cache, shmem], is_parsed) = match pass.slow {
        true => all_values_of(text, KEYS, detail_v1, cells),
        false => (values_of(text, KEYS), true),
    };
    let or = |total: i64, own: i64| if total == MISSING { own } else { total };
    cells[MEMORY_NEEDED] = parse::sum(or(rss, own_rss), or(shmem, own_shmem));
    cells[MEMORY_SHARED] = or(shmem, own_shmem);
    cells[MEMORY_CACHE] = parse::difference(or(cache, own_cache), or(shmem, own_shmem));
    if pass.slow {
        cells[MEMORY_ANONYMOUS] = or(rss, own_rss);
        // Without a limit the kernel says the largest number of pages there is.
        cells[MEMORY_LIMIT] = Some(cells[MEMORY_LIMIT]).filter(|&limit| limit < UNLIMITED).unwrap_or(MISSING);
    }
    // Older kernels print no `shmem`.
    is_parsed && or(rss, own_rss) != MISSING && or(cache, own_cache) != MISSING
}

/// More memory than any machine has.
const UNLIMITED: i64 = 1 << 60;

fn detail_v2(key: &[u8]) -> Option<usize> {
    Some(match key {
        b"anon_thp" => MEMORY_HUGE,
        b"file_mapped" => MEMORY_MAPPED,
        b"file_dirty" => MEMORY_DIRTY,
        b"file_writeback" => MEMORY_WRITEBACK,
        b"pgfault" => PAGE_FAULTS,
        b"pgmajfault" => PAGE_FAULTS_MAJOR,
        _ => return detail_of_lists(key),
    })
}

/// With the cgroups below it where that is said, which is after its own.
fn detail_v1(key: &[u8]) -> Option<usize> {
    Some(match key.strip_prefix(b"total_").unwrap_or(key) {
        b"rss_huge" => MEMORY_HUGE,
        b"mapped_file" => MEMORY_MAPPED,
        b"dirty" => MEMORY_DIRTY,
        b"writeback" => MEMORY_WRITEBACK,
        b"pgpgin" => PAGES_CHARGED,
        b"pgpgout" => PAGES_UNCHARGED,
        b"pgfault" => PAGE_FAULTS,
        b"pgmajfault" => PAGE_FAULTS_MAJOR,
        b"hierarchical_memory_limit" => MEMORY_LIMIT,
        key => return detail_of_lists(key),
    })
}

fn detail_of_lists(key: &[u8]) -> Option<usize> {
    Some(match key {
        b"inactive_anon" => MEMORY_INACTIVE_ANONYMOUS,
        b"active_anon" => MEMORY_ACTIVE_ANONYMOUS,
        b"inactive_file" => MEMORY_INACTIVE_FILE,
        b"active_file" => MEMORY_ACTIVE_FILE,
        b"unevictable" => MEMORY_UNEVICTABLE,
        _ => return None,
    })
}

fn fill_peak(text: &[u8], _: Pass, cells: &mut [i64]) -> bool {
    fill_one(text, &mut cells[MEMORY_PEAK])
}

fn fill_threads(text: &[u8], _: Pass, cells: &mut [i64]) -> bool {
    fill_one(text, &mut cells[THREADS])
}

/// Kernels before 4.13 print no such line.
fn fill_oom(text: &[u8], _: Pass, cells: &mut [i64]) -> bool {
    fill_optional(text, "oom_kill", &mut cells[OOM_KILLS])
}

fn fill_one(text: &[u8], cell: &mut i64) -> bool {
    *cell = parse::cell(text.trim_ascii());
    *cell != MISSING
}

fn fill_optional(text: &[u8], key: &str, cell: &mut i64) -> bool {
    *cell = parse::value_of(text, key);
    *cell != MISSING || !parse::key_values(text).any(|(name, _)| name == key.as_bytes())
}

fn fill_pressure_cpu(text: &[u8], _: Pass, cells: &mut [i64]) -> bool {
    [cells[PRESSURE_CPU], cells[PRESSURE_CPU_FULL]] = pressure_ns(text);
    cells[PRESSURE_CPU] != MISSING
}

fn fill_pressure_memory(text: &[u8], _: Pass, cells: &mut [i64]) -> bool {
    [cells[PRESSURE_MEMORY], cells[PRESSURE_MEMORY_FULL]] = pressure_ns(text);
    cells[PRESSURE_MEMORY] != MISSING
}

fn fill_pressure_io(text: &[u8], _: Pass, cells: &mut [i64]) -> bool {
    [cells[PRESSURE_IO], cells[PRESSURE_IO_FULL]] = pressure_ns(text);
    cells[PRESSURE_IO] != MISSING
}

/// The values of several keys in one pass over a memory.stat, which is long: most of its lines are passed
/// by at their first letter, and it ends when all are found.
fn values_of<const COUNT: usize>(text: &[u8], keys: [&str; COUNT]) -> [i64; COUNT] {
    let mut values = [MISSING; COUNT];
    let mut left = COUNT;
    for line in parse::lines(text) {
        let value_of = |key: &str| line.strip_prefix(key.as_bytes())?.strip_prefix(b" ");
        let found = keys.iter().enumerate().find_map(|(index, key)| Some((index, value_of(key)?)));
        if let Some((index, value)) = found {
            values[index] = parse::cell(value.trim_ascii());
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    values
}

/// The same with the details in the same pass: `detail` names the column of a line. Whether all of these were numbers.
fn all_values_of<const COUNT: usize>(
    text: &[u8],
    keys: [&str; COUNT],
    detail: fn(&[u8]) -> Option<usize>,
    cells: &mut [i64],
) -> ([i64; COUNT], bool) {
    let (mut values, mut is_parsed) = ([MISSING; COUNT], true);
    for (key, value) in parse::key_values(text) {
        if let Some(index) = keys.iter().position(|known| known.as_bytes() == key) {
            values[index] = parse::cell(value);
        } else if let Some(column) = detail(key) {
            cells[column] = parse::cell(value);
            is_parsed &= cells[column] != MISSING;
        }
    }
    (values, is_parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{FAST, Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    fn v2() -> Machine {
        let mut machine = Machine::new(include_str!("../../../fixtures/hosts/cgroup-v2.txt"));
        machine.aim("job-1", "/sys/fs/cgroup/met/job-1", "", "");
        machine.aim("job-2", "/sys/fs/cgroup/met/job-2", "", "");
        machine
    }

    #[test]
    fn a_v2_cgroup_tells_everything() {
        expect![[r#"
            job-1
              cpu 7254013000
              cpu_user 6100200000
              cpu_system 1153813000
              memory_needed 109051904
              memory_shared 4194304
              memory_hugetlb 1077936128
              memory_cache 48234496
              memory_peak 167772160
              threads 9
              pressure_cpu 120045000
              pressure_memory 7000
              pressure_io 900000
              pressure_cpu_full 45000
              pressure_memory_full 5000
              pressure_io_full 800000
              oom_kills 2
              cpu_throttled 3200000000
              cpu_throttles 32
              cpu_quota_periods 90
              memory_anonymous 104857600
              memory_huge 62914560
              memory_mapped 2097152
              memory_dirty 405504
              memory_writeback 135168
              memory_inactive_anonymous 99614720
              memory_active_anonymous 9437184
              memory_inactive_file 33554432
              memory_active_file 14680064
              memory_unevictable 8192
              page_faults 51234
              page_faults_major 17
            job-2
              cpu 10000
              cpu_system 4000
              memory_shared 4096
              memory_cache 4096
            3 readings could not be parsed (first: cpu.stat of cgroup job-2)
        "#]]
        .assert_eq(&v2().read(&SPEC, SLOW));
    }

    #[test]
    fn a_tick_between_reads_cpu_and_memory_only() {
        expect![[r#"
            job-1
              cpu 7254013000
              cpu_user 6100200000
              cpu_system 1153813000
              memory_needed 109051904
              memory_shared 4194304
              memory_cache 48234496
              cpu_throttled 3200000000
              cpu_throttles 32
              cpu_quota_periods 90
            job-2
              cpu 10000
              cpu_system 4000
              memory_shared 4096
              memory_cache 4096
            2 readings could not be parsed (first: cpu.stat of cgroup job-2)
        "#]]
        .assert_eq(&v2().read(&SPEC, FAST));
    }

    #[test]
    fn a_cgroup_in_which_hardly_anything_ran_is_not_read_further_and_shows_what_it_showed() {
        let mut machine = v2();
        machine.targets.cgroups.truncate(1);
        let mut source =
            (SPEC.open)(&machine.host, &Options::default()).unwrap_or_else(|why| panic!("{why}"));
        let mut batches = [Batch::new(&TABLE)];
        let mut read = |machine: &mut Machine, look: Look| {
            machine.targets.cgroups[0].look = look;
            batches[0].clear();
            source.read(&machine.targets, &FAST, &mut batches).unwrap();
            batches[0]
                .rows()
                .next()
                .map(|(_, cells)| [CPU, MEMORY_NEEDED, MEMORY_PEAK, THREADS].map(|index| cells[index]))
        };
        let whole = [7_254_013_000, 109_051_904, 167_772_160, 9];
        assert_eq!(read(&mut machine, Look::Whole), Some(whole));
        let folder = machine.path("/sys/fs/cgroup/met/job-1");
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write("memory.stat", "anon 5\nfile 0\nshmem 0\n");
        write("pids.current", "3\n");
        for look in [Look::Cheap, Look::Whole, Look::Cheap] {
            assert_eq!(read(&mut machine, look), Some(whole), "nothing ran: {look:?}");
        }
        assert_eq!(read(&mut machine, Look::No), None);
        // It woke up for a moment. Its CPU time is exact all the same, and small steps add up.
        write("cpu.stat", "usage_usec 7255513\nuser_usec 6100200\nsystem_usec 1155313\n");
        assert_eq!(read(&mut machine, Look::Cheap), Some([7_255_513_000, 109_051_904, 167_772_160, 9]));
        write("cpu.stat", "usage_usec 7257013\nuser_usec 6100200\nsystem_usec 1156813\n");
        assert_eq!(read(&mut machine, Look::Cheap), Some([7_257_013_000, 5, 167_772_160, MISSING]));
        write("cpu.stat", "usage_usec 7258013\nuser_usec 6100200\nsystem_usec 1157813\n");
        assert_eq!(
            read(&mut machine, Look::Whole),
            Some([7_258_013_000, 5, 167_772_160, 3]),
            "not read since"
        );
        write("cpu.stat", "usage_usec 8000000\nuser_usec 8000000\nsystem_usec 0\n");
        assert_eq!(read(&mut machine, Look::Cheap), Some([8_000_000_000, 5, 167_772_160, MISSING]));
        assert_eq!(read(&mut machine, Look::Whole), Some([8_000_000_000, 5, 167_772_160, 3]));
        // Now and then it is read in any case.
        write("memory.stat", "anon 7\nfile 0\nshmem 0\n");
        let looks = (0..=SKIPPED_MAX).map(|_| read(&mut machine, Look::Cheap).unwrap()[1]);
        assert_eq!(looks.last(), Some(7));
        assert_eq!(read(&mut machine, Look::Usual).unwrap()[1], 7);
    }

    #[test]
    fn of_a_cgroup_that_is_read_every_second_the_rest_is_read_after_a_moment_of_cpu_time_and_at_slow_ticks() {
        let mut machine = v2();
        machine.targets.cgroups.truncate(1);
        let folder = machine.path("/sys/fs/cgroup/met/job-1");
        let mut source =
            (SPEC.open)(&machine.host, &Options::default()).unwrap_or_else(|why| panic!("{why}"));
        let mut batches = [Batch::new(&TABLE)];
        let mut memory_after = |cpu_us: i64, memory: i64, tick: &TickInfo| {
            std::fs::write(folder.join("cpu.stat"), format!("usage_usec {cpu_us}\n")).unwrap();
            std::fs::write(folder.join("memory.stat"), format!("anon {memory}\nfile 0\nshmem 0\n")).unwrap();
            batches[0].clear();
            source.read(&machine.targets, tick, &mut batches).unwrap();
            let (_, cells) = batches[0].rows().next().unwrap();
            assert_eq!(cells[CPU], cpu_us * 1000, "this is always read");
            cells[MEMORY_NEEDED]
        };
        assert_eq!(memory_after(1_000_000, 1, &FAST), 1);
        assert_eq!(memory_after(1_000_150, 2, &FAST), 1);
        assert_eq!(memory_after(1_000_300, 3, &FAST), 3, "small steps add up");
        assert_eq!(memory_after(1_000_300, 4, &SLOW), 4);
        assert_eq!(memory_after(1_000_300, 5, &FAST), 4);
    }

    #[test]
    fn the_memory_of_a_cgroup_that_runs_is_read_in_full_if_what_is_charged_differs_from_what_it_needed() {
        const MIB: i64 = 1 << 20;
        let mut machine = v2();
        machine.targets.cgroups.truncate(1);
        let folder = machine.path("/sys/fs/cgroup/met/job-1");
        let mut source =
            (SPEC.open)(&machine.host, &Options::default()).unwrap_or_else(|why| panic!("{why}"));
        let (mut batches, mut cpu_us) = ([Batch::new(&TABLE)], 0);
        let mut needed_by = |tick: &TickInfo, needed: i64, cache: i64| {
            cpu_us += 1_000_000;
            let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
            write("cpu.stat", format!("usage_usec {cpu_us}\n"));
            write("memory.stat", format!("anon {needed}\nfile {cache}\nshmem 0\npgfault {cpu_us}\n"));
            write("memory.current", format!("{}\n", needed + cache));
            batches[0].clear();
            source.read(&machine.targets, tick, &mut batches).unwrap();
            let (_, cells) = batches[0].rows().next().unwrap();
            assert_eq!(cells[CPU], cpu_us * 1000, "this is always read");
            // A counter is not repeated: it would seem to have stood still.
            assert!([MISSING, cpu_us].contains(&cells[PAGE_FAULTS]));
            [cells[MEMORY_NEEDED], cells[MEMORY_CACHE]]
        };
        assert_eq!(needed_by(&FAST, 100 * MIB, 0), [100 * MIB, 0]);
        assert_eq!(needed_by(&FAST, 101 * MIB, 5), [100 * MIB, 0], "hardly any more");
        assert_eq!(needed_by(&FAST, 103 * MIB, 0), [103 * MIB, 0], "small steps add up");
        assert_eq!(needed_by(&FAST, 200 * MIB, 0), [200 * MIB, 0], "it grows");
        assert_eq!(needed_by(&FAST, 20 * MIB, 0), [20 * MIB, 0], "it shrinks");
        assert_eq!(needed_by(&FAST, 20 * MIB, 60 * MIB), [20 * MIB, 60 * MIB]);
        let at_its_limit = needed_by(&FAST, 50 * MIB, 30 * MIB);
        assert_eq!(at_its_limit, [50 * MIB, 30 * MIB], "page cache made room for it");
        assert_eq!(needed_by(&FAST, 8000 * MIB, 0), [8000 * MIB, 0]);
        assert_eq!(needed_by(&FAST, 8100 * MIB, 0), [8000 * MIB, 0], "of a large one more is little");
        assert_eq!(needed_by(&SLOW, 8001 * MIB, 0), [8001 * MIB, 0], "read in any case");
    }

    #[test]
    fn memory_is_read_in_full_every_ten_seconds_and_where_nothing_says_what_is_charged() {
        let mut last = Last::default();
        let mut cells = vec![MISSING; COLUMNS.len()];
        assert!(!last.repeat_memory(7, 0, &mut cells), "never read");
        (cells[MEMORY_NEEDED], cells[MEMORY_CACHE]) = (7, 1);
        last.keep(&cells, false);
        assert!(last.repeat_memory(8, MEMORY_EVERY_NS - 1, &mut cells));
        assert!(!last.repeat_memory(8, MEMORY_EVERY_NS, &mut cells));
        assert!(!last.repeat_memory(MISSING, 1, &mut cells));
        (cells[CPU], cells[MEMORY_NEEDED]) = (5, MISSING);
        last.keep(&cells, false);
        assert!(!last.repeat_memory(8, 1, &mut cells));
    }

    #[test]
    fn a_young_cgroup_is_read_whole_at_every_tick() {
        let mut machine = v2();
        let slow = machine.read(&SPEC, SLOW);
        for target in &mut machine.targets.cgroups {
            target.young = true;
        }
        assert_eq!(machine.read(&SPEC, FAST), slow);
    }

    #[test]
    fn a_v1_cgroup_counts_the_cgroups_below_it_and_splits_its_cpu_time_exactly() {
        let mut machine = Machine::new(include_str!("../../../fixtures/hosts/cgroup-v1.txt"));
        for name in ["ann_1", "bob_2"] {
            let memory = format!("/sys/fs/cgroup/memory/oar/{name}");
            machine.aim(name, "", &memory, &format!("/sys/fs/cgroup/cpu,cpuacct/oar/{name}"));
        }
        expect![[r#"
            ann_1
              cpu 10000000007
              cpu_user 6666666671
              cpu_system 3333333336
              memory_needed 73000
              memory_shared 3000
              memory_hugetlb 1077936128
              memory_cache 47000
              memory_peak 131072
              oom_kills 3
              cpu_throttled 250000000
              cpu_throttles 3
              cpu_quota_periods 7
              memory_anonymous 70000
              memory_huge 2097
              memory_mapped 4000
              memory_dirty 110
              memory_writeback 120
              memory_inactive_anonymous 2100
              memory_active_anonymous 70900
              memory_inactive_file 40000
              memory_active_file 7000
              memory_unevictable 9
              memory_limit 1048576
              pages_charged 500
              pages_uncharged 400
              page_faults 3000
              page_faults_major 12
            bob_2
              cpu 12345
              cpu_user 12345
              cpu_system 0
              memory_needed 2100
              memory_shared 100
              memory_cache 900
              memory_anonymous 2000
              memory_dirty 7
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn a_hybrid_cgroup_is_read_in_both_hierarchies() {
        let mut machine = Machine::new(include_str!("../../../fixtures/hosts/cgroup-hybrid.txt"));
        let (unified, memory) = ("/sys/fs/cgroup/unified/met", "/sys/fs/cgroup/memory/met");
        machine.aim("job-1", &format!("{unified}/job-1"), &format!("{memory}/job-1"), "");
        machine.aim("job-2", &format!("{unified}/job-2"), &format!("{memory}/job-2"), "");
        expect![[r#"
            job-1
              cpu 3000000
              cpu_user 2000000
              cpu_system 1000000
              memory_needed 73000
              memory_shared 3000
              memory_cache 47000
              memory_peak 131072
              pressure_cpu 17000
              pressure_cpu_full 0
              memory_anonymous 70000
            job-2
              cpu 1000
              cpu_user 1000
              cpu_system 0
        "#]]
        .assert_eq(&machine.read(&SPEC, SLOW));
    }

    #[test]
    fn a_removed_cgroup_has_no_row_and_the_others_have() {
        let machine = v2();
        std::fs::remove_dir_all(machine.path("/sys/fs/cgroup/met/job-1")).unwrap();
        expect![[r#"
            job-2
              cpu 10000
              cpu_system 4000
              memory_shared 4096
              memory_cache 4096
            2 readings could not be parsed (first: cpu.stat of cgroup job-2)
        "#]]
        .assert_eq(&machine.read(&SPEC, FAST));
    }

    #[test]
    fn without_cgroups_the_source_is_absent() {
        let machine = Machine::new("-- proc/self/mountinfo --\n22 27 0:21 / /proc rw - proc proc rw\n");
        let opened = (SPEC.open)(&machine.host, &Options::default());
        assert_eq!(opened.err(), Some(Unavailable::Absent("no cgroup hierarchy is mounted".into())));
    }

    /// On this machine, if it lets us make a cgroup.
    #[test]
    fn a_cgroup_removed_under_an_open_file_has_no_row() {
        let host = Host::real().unwrap();
        let Some(mount) = Hierarchies::read(&host).unwrap().unified else {
            met_core::skipped::skipped("no unified cgroup hierarchy");
            return;
        };
        let path = mount.point.join(format!("met-test-{}", std::process::id()));
        if let Err(error) = std::fs::create_dir(&path) {
            met_core::skipped::skipped(format!("no cgroup can be made: {error}"));
            return;
        }
        let paths = met_core::job::CgroupPaths { unified: Some(path.clone()), ..Default::default() };
        let dirs = Arc::new(CgroupDirs::open(&host, &paths).unwrap());
        let targets = Targets {
            cgroups: vec![CgroupTarget {
                dirs,
                counted: false,
                counted_in: None,
                events: None,
                young: false,
                look: Look::Usual,
            }],
            tasks: Vec::new(),
        };
        let mut source = open(&host, &Options::default()).unwrap();
        let mut batches = [Batch::new(&TABLE)];
        source.read(&targets, &SLOW, &mut batches).unwrap();
        std::fs::remove_dir(&path).unwrap();
        let cpu_ns: Vec<i64> = batches[0].rows().map(|(_, cells)| cells[CPU]).collect();
        assert_eq!(cpu_ns, [0], "an empty cgroup has used nothing, and says so");
        batches[0].clear();
        source.read(&targets, &SLOW, &mut batches).unwrap();
        assert!(batches[0].is_empty());
    }

    #[test]
    fn files_of_cgroups_that_are_no_target_any_more_are_closed() {
        let mut machine = v2();
        let mut source = open(&machine.host, &Options::default()).unwrap();
        let mut batches = [Batch::new(&TABLE)];
        source.read(&machine.targets, &SLOW, &mut batches).unwrap();
        assert_eq!(machine.host.budget().kept(), 15);
        machine.targets.clear();
        source.read(&machine.targets, &SLOW, &mut batches).unwrap();
        assert_eq!(machine.host.budget().kept(), 0);
    }

    #[test]
    fn a_file_in_another_format_is_counted_and_an_absent_one_is_not() {
        let read = |name: &str, text: Option<&str>| {
            let mut machine = Machine::new(include_str!("../../../fixtures/hosts/cgroup-v2.txt"));
            let path = machine.path(&format!("/sys/fs/cgroup/met/job-1/{name}"));
            match text {
                Some(text) => std::fs::write(path, text).unwrap(),
                None => std::fs::remove_file(path).unwrap(),
            }
            machine.aim("job-1", "/sys/fs/cgroup/met/job-1", "", "");
            let text = machine.read(&SPEC, SLOW);
            text.lines().last().filter(|line| line.contains("could not be parsed")).map(str::to_owned)
        };
        for (name, text) in [
            ("cpu.stat", "usage 7254013\n"),
            ("cpu.stat", "usage_usec 7\nuser_usec 6\nsystem_usec 1\nthrottled_usec 3us\n"),
            ("memory.stat", "anonymous 1\nfile 2\nshmem 3\n"),
            ("memory.stat", "anon 1kB\nfile 2\nshmem 3\n"),
            ("memory.stat", "anon 1\nfile 2\nshmem 3\nfile_dirty 4kB\n"),
            ("memory.peak", "max\n"),
            ("memory.events", "oom_kill two\n"),
            ("pids.current", "nine\n"),
            ("io.pressure", "some total=1.5\n"),
        ] {
            let expected = format!("1 reading could not be parsed (first: {name} of cgroup job-1)");
            assert_eq!(read(name, Some(text)), Some(expected), "{text}");
            assert_eq!(read(name, None), None, "{name} is absent");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_fill_cells_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut cells = vec![MISSING; COLUMNS.len()];
            for format in ALTERNATIVES.iter().copied().flatten().copied().flatten() {
                (format.fill)(&text, Pass { ns_per_tick: 10_000_000, slow: true }, &mut cells);
            }
        }

        #[test]
        fn user_and_system_time_add_up_to_the_usage(usage in 0..i64::MAX, user in 0..1i64 << 40, system in 0..1i64 << 40) {
            let mut cells = vec![MISSING; COLUMNS.len()];
            let pass = Pass { ns_per_tick: 10_000, slow: true };
            fill_cpu_v1(usage.to_string().as_bytes(), pass, &mut cells);
            split_cpu_v1(format!("user {user}\nsystem {system}\n").as_bytes(), pass, &mut cells);
            prop_assert!(cells[CPU_USER] >= 0 && cells[CPU_SYSTEM] >= 0);
            prop_assert_eq!(cells[CPU_USER] + cells[CPU_SYSTEM], usage);
        }
    }
}
