//! Processes: what each process of a job used, and what it took over from children it reaped.

use std::io;

use met_core::table::{NANO, ONE};
use met_core::{
    Across, Batch, Column, FastMap, MISSING, Subject, Table, Unit, Unparsed, columns, detail_table as detail,
    job_table,
};
use met_host::parse::{self, Stat};
use met_host::{Host, KeptFile, Look, PidPath, Share, Targets, TaskRole, TaskTarget};

use crate::{Opened, Options, Pace, ReadError, Source, SourceSpec, TickInfo, is_gone};

columns! { COLUMNS:
    CPU = Column::counter("cpu", Unit::Seconds, NANO, "CPU time of the process itself").feeds(job_table::CPU),
    CPU_USER = Column::counter("cpu_user", Unit::Seconds, NANO, "CPU time of the process in user code").feeds(job_table::CPU_USER),
    CPU_SYSTEM = Column::counter("cpu_system", Unit::Seconds, NANO, "CPU time of the process in the kernel").feeds(job_table::CPU_SYSTEM),
    CPU_REAPED = Column::counter("cpu_reaped", Unit::Seconds, NANO, "CPU time of children that ended and were waited for").feeds(job_table::CPU),
    CPU_USER_REAPED = Column::counter("cpu_user_reaped", Unit::Seconds, NANO, "CPU time of ended children in user code").feeds(job_table::CPU_USER),
    CPU_SYSTEM_REAPED = Column::counter("cpu_system_reaped", Unit::Seconds, NANO, "CPU time of ended children in the kernel").feeds(job_table::CPU_SYSTEM),
    ALIVE = Column::gauge("alive", Unit::Count, ONE, "1 while the process is alive").feeds(job_table::PROCESSES_RUNNING),
    THREADS = Column::gauge("threads", Unit::Count, ONE, "threads of the process").feeds(job_table::THREADS_RUNNING),
    FAULTS_MINOR = Column::counter("page_faults_minor", Unit::Count, ONE, "page faults served without storage").feeds(job_table::PAGE_FAULTS_MINOR),
    FAULTS_MAJOR = Column::counter("page_faults_major", Unit::Count, ONE, "page faults that waited for storage").feeds(job_table::PAGE_FAULTS_MAJOR),
    FAULTS_MINOR_REAPED = Column::counter("page_faults_minor_reaped", Unit::Count, ONE, "page faults of ended children, served without storage").feeds(job_table::PAGE_FAULTS_MINOR),
    FAULTS_MAJOR_REAPED = Column::counter("page_faults_major_reaped", Unit::Count, ONE, "page faults of ended children that waited for storage").feeds(job_table::PAGE_FAULTS_MAJOR),
    MEMORY_RESIDENT = Column::gauge("memory_resident", Unit::Bytes, ONE, "memory in RAM, shared pages included").details(detail::MEMORY_RESIDENT),
    MEMORY_VIRTUAL = Column::gauge("memory_virtual", Unit::Bytes, ONE, "address space").details(detail::MEMORY_VIRTUAL),
    MEMORY_SHARED = Column::gauge("memory_shared", Unit::Bytes, ONE, "memory in RAM that is backed by files or shared memory"),
    MEMORY_PRIVATE = Column::gauge("memory_private", Unit::Bytes, ONE, "resident less shared memory; counted again in every fork").feeds(job_table::MEMORY_NEEDED),
    MEMORY_SHMEM = Column::gauge("memory_shmem", Unit::Bytes, ONE, "memory in RAM that is shared memory or a file in tmpfs").across(Across::Max).feeds(job_table::MEMORY_SHARED).details(detail::MEMORY_SHMEM),
    MEMORY_HUGETLB = Column::gauge("memory_hugetlb", Unit::Bytes, ONE, "reserved huge pages that it maps").feeds(job_table::MEMORY_HUGETLB),
    READ = Column::counter("read", Unit::Bytes, ONE, "bytes read from storage, ended children included").feeds(job_table::READ),
    WRITTEN = Column::counter("written", Unit::Bytes, ONE, "bytes written to storage, ended children included").feeds(job_table::WRITTEN),
    WRITE_CANCELLED = Column::counter("write_cancelled", Unit::Bytes, ONE, "bytes of written whose file was truncated or removed before they reached storage, ended children included").feeds(job_table::WRITE_CANCELLED),
    READ_CALL = Column::counter("read_call", Unit::Bytes, ONE, "bytes returned by read calls, ended children included").feeds(job_table::READ_CALL),
    WRITE_CALL = Column::counter("write_call", Unit::Bytes, ONE, "bytes passed to write calls, ended children included").feeds(job_table::WRITE_CALL),
    READ_CALLS = Column::counter("read_calls", Unit::Count, ONE, "read calls, ended children included").feeds(job_table::READ_CALLS),
    WRITE_CALLS = Column::counter("write_calls", Unit::Count, ONE, "write calls, ended children included").feeds(job_table::WRITE_CALLS),
    RUN_QUEUE_WAIT = Column::counter("run_queue_wait", Unit::Seconds, NANO, "time its living threads were runnable and waited for a CPU").feeds(job_table::RUN_QUEUE_WAIT),
}

/// Threads of one process whose wait is read.
const THREADS_READ_MAX: usize = 256;

pub static TABLE: Table = Table {
    name: "process",
    subject: "a process of a job, or a job's supervisor with the processes it reaped",
    labels: &["pid"],
    columns: COLUMNS,
};

pub static SPEC: SourceSpec = SourceSpec {
    name: "process",
    help: "CPU time, memory and I/O of a job's processes",
    pace: Pace::Tick,
    tables: &[&TABLE],
    charts: &[],
    options: &[],
    open,
};

struct Processes {
    host: Host,
    ns_per_tick: i64,
    page_size_bytes: i64,
    known: FastMap<u32, Entry>,
    generation: u64,
    buffer: Vec<u8>,
    threads: Vec<u32>,
}

struct Entry {
    start_ticks: u64,
    /// A member of one job may turn out to be the supervisor of another, which is read otherwise.
    role: TaskRole,
    seen: u64,
    stat: KeptFile,
    /// Opened at the first slow reading: many processes do not live to see one.
    slow: Option<SlowFiles>,
    status: Option<Status>,
}

/// What the expensive `status` of a process said, and what its cheaper files showed then. While these show the same it
/// has mapped no page since, and its shared memory is what it was.
struct Status {
    shown: [i64; SHOWN.len()],
    cells: [i64; OF_STATUS.len()],
    held: u32,
}

/// What changes with the shared pages that a process maps. Page faults are not among them: programs that wake up only
/// to wait have some, and shared memory that grew shows as resident and shared.
const SHOWN: [usize; 3] = [MEMORY_VIRTUAL, MEMORY_RESIDENT, MEMORY_SHARED];
const OF_STATUS: [usize; 2] = [MEMORY_SHMEM, MEMORY_HUGETLB];
/// So often what it said holds, then it is read in any case: shared memory may have taken the place of files.
const HELD_MAX: u32 = 10;

/// Without permission, or in a kernel without the accounting, a file is not there.
struct SlowFiles {
    statm: Option<KeptFile>,
    io: Option<KeptFile>,
    own_thread_io: Option<KeptFile>,
    schedstat: Option<KeptFile>,
}

fn open(host: &Host, _: &Options) -> Opened {
    Ok(Box::new(Processes {
        host: host.clone(),
        ns_per_tick: 1_000_000_000 / host.facts().ticks_per_second,
        page_size_bytes: host.facts().page_size_bytes,
        known: FastMap::default(),
        generation: 0,
        buffer: Vec::new(),
        threads: Vec::new(),
    }))
}

impl Source for Processes {
    fn read(&mut self, targets: &Targets, tick: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        if tick.cgroups_only {
            return Ok(());
        }
        self.generation += 1;
        let mut first_error = None;
        let mut unparsed = std::mem::take(&mut batch.unparsed);
        for target in &targets.tasks {
            if target.look == Look::No {
                if let Some(entry) = self.known.get_mut(&target.pid).filter(|_| !tick.partial) {
                    entry.seen = self.generation;
                }
                continue;
            }
            match self.read_one(target, tick.slow, batch, &mut unparsed) {
                // A process that ended since the listing is not an error.
                Err(error) if !is_gone(&error) => {
                    let path = || format!("/proc/{}/stat", target.pid);
                    first_error.get_or_insert_with(|| ReadError::Retry { path: path(), error });
                }
                _ => {}
            }
        }
        batch.unparsed = unparsed;
        let generation = self.generation;
        if !tick.partial {
            self.known.retain(|_, entry| entry.seen == generation);
        }
        first_error.map_or(Ok(()), Err)
    }
}

impl Processes {
    /// The kernel keeps this for each thread and nowhere for the process.
    fn wait_of_threads(&mut self, pid: u32) -> i64 {
        let Processes { host, buffer, threads, .. } = self;
        threads.clear();
        let listed = host
            .proc_dir()
            .open_dir(PidPath::new(pid, "task").as_path())
            .and_then(|folder| folder.list(buffer, |name, _, _| threads.extend(parse::u32(name))));
        let mut wait_ns = None;
        // So many that the rest would cost more than it adds; what is summed stays a lower bound.
        for &tid in threads.iter().take(THREADS_READ_MAX) {
            let path = PidPath::of_thread(pid, tid, "schedstat");
            if listed.is_ok() && host.proc_dir().read(path.as_path(), buffer).is_ok() {
                let of_thread = Some(wait_of(buffer)).filter(|&wait_ns| wait_ns != MISSING);
                wait_ns = of_thread.map(|ns| ns.saturating_add(wait_ns.unwrap_or(0))).or(wait_ns);
            }
        }
        wait_ns.unwrap_or(MISSING)
    }

    fn read_one(
        &mut self,
        target: &TaskTarget,
        slow: bool,
        batch: &mut Batch,
        unparsed: &mut Unparsed,
    ) -> io::Result<()> {
        let path = PidPath::new(target.pid, "stat");
        let entry = match self.known.get_mut(&target.pid) {
            Some(entry) if (entry.start_ticks, entry.role) == (target.start_ticks, target.role) => entry,
            _ => {
                let stat =
                    self.host.proc_dir().open_kept(path.as_bytes(), self.host.budget(), Share::First)?;
                let TaskTarget { start_ticks, role, .. } = *target;
                let entry = Entry { start_ticks, role, seen: 0, stat, slow: None, status: None };
                self.known.insert(target.pid, entry);
                let Some(entry) = self.known.get_mut(&target.pid) else { return Ok(()) };
                entry
            }
        };
        let owner = Subject::Task { pid: target.pid, start_ticks: target.start_ticks };
        // An open file is that of the process, even if another process has its number by now.
        if target.look == Look::Cheap
            && target.is_counted
            && let Some(files) = entry.slow.as_ref().filter(|files| files.keeps_io())
        {
            entry.seen = self.generation;
            files.read_io(&self.host, target, &mut self.buffer, batch.push(owner), unparsed);
            return Ok(());
        }
        entry.stat.read(self.host.proc_dir(), path.as_bytes(), &mut self.buffer)?;
        let file = |name: &str| format!("/proc/{}/{name}", target.pid);
        let Some(stat) = parse::stat(&self.buffer) else {
            unparsed.add(|| file("stat"));
            return Ok(());
        };
        // Otherwise another process has the pid by now, and the entry goes at the end of this reading.
        if stat.start_ticks != target.start_ticks {
            return Ok(());
        }
        entry.seen = self.generation;
        let cells = batch.push(owner);
        fill_reaped(&stat, self.ns_per_tick, cells);
        if target.role == TaskRole::Member {
            fill_own(&stat, self.ns_per_tick, cells);
        }
        unparsed.expect(stat.is_whole(), || file("stat"));
        let is_whole = target.is_whole(slow);
        if is_whole || target.look == Look::Cheap {
            let files = entry.slow.get_or_insert_with(|| SlowFiles::open(&self.host, target));
            files.read_memory(&self.host, target, self.page_size_bytes, &mut self.buffer, cells, unparsed);
            files.read_io(&self.host, target, &mut self.buffer, cells, unparsed);
            if is_whole {
                files.read_wait(&self.host, target, &mut self.buffer, cells, unparsed);
            }
            if target.role == TaskRole::Member {
                entry.read_status(&self.host, target, &mut self.buffer, cells, unparsed);
            }
            if is_whole && cells[THREADS] > 1 {
                cells[RUN_QUEUE_WAIT] = self.wait_of_threads(target.pid);
            }
        }
        Ok(())
    }
}

impl Entry {
    /// Reads what `statm` does not show, if that may have changed.
    fn read_status(
        &mut self,
        host: &Host,
        target: &TaskTarget,
        buffer: &mut Vec<u8>,
        cells: &mut [i64],
        unparsed: &mut Unparsed,
    ) {
        if self.status.as_mut().is_some_and(|status| status.fill(cells)) {
            return;
        }
        // Not kept open: a descriptor more for each process is not worth what it saves.
        let path = PidPath::new(target.pid, "status");
        if host.proc_dir().read(path.as_path(), buffer).is_ok() {
            unparsed.expect(fill_shared(buffer, cells), || format!("/proc/{}", path.as_path().display()));
            self.status = Some(Status::of(cells));
        }
    }
}

impl Status {
    fn of(cells: &[i64]) -> Status {
        Status {
            shown: SHOWN.map(|column| cells[column]),
            cells: OF_STATUS.map(|column| cells[column]),
            held: 0,
        }
    }

    /// Fills what is as it was. False if that has to be read.
    fn fill(&mut self, cells: &mut [i64]) -> bool {
        if self.shown != SHOWN.map(|column| cells[column]) || self.held >= HELD_MAX {
            return false;
        }
        self.held += 1;
        OF_STATUS.iter().zip(self.cells).for_each(|(&column, cell)| cells[column] = cell);
        true
    }
}

impl SlowFiles {
    fn open(host: &Host, target: &TaskTarget) -> SlowFiles {
        let open =
            |path: PidPath| host.proc_dir().open_kept(path.as_bytes(), host.budget(), Share::Second).ok();
        let of_process = |name: &str| open(PidPath::new(target.pid, name));
        match target.role {
            TaskRole::Member => SlowFiles {
                statm: of_process("statm"),
                io: of_process("io"),
                own_thread_io: None,
                schedstat: of_process("schedstat"),
            },
            TaskRole::Supervisor => SlowFiles {
                statm: None,
                io: of_process("io"),
                own_thread_io: open(PidPath::of_main_thread(target.pid, "io")),
                schedstat: None,
            },
        }
    }

    /// Whether its I/O can be read without opening a file.
    fn keeps_io(&self) -> bool {
        let is_open = |file: &Option<KeptFile>| file.as_ref().is_none_or(KeptFile::is_open);
        is_open(&self.io) && is_open(&self.own_thread_io)
    }

    fn read_memory(
        &self,
        host: &Host,
        target: &TaskTarget,
        page_size_bytes: i64,
        buffer: &mut Vec<u8>,
        cells: &mut [i64],
        unparsed: &mut Unparsed,
    ) {
        let path = PidPath::new(target.pid, "statm");
        let fill = &mut |text: &[u8]| fill_memory(text, page_size_bytes, cells);
        read(&self.statm, path, host, buffer, unparsed, fill);
    }

    fn read_wait(
        &self,
        host: &Host,
        target: &TaskTarget,
        buffer: &mut Vec<u8>,
        cells: &mut [i64],
        unparsed: &mut Unparsed,
    ) {
        read(&self.schedstat, PidPath::new(target.pid, "schedstat"), host, buffer, unparsed, &mut |text| {
            cells[RUN_QUEUE_WAIT] = wait_of(text);
            cells[RUN_QUEUE_WAIT] != MISSING
        });
    }

    fn read_io(
        &self,
        host: &Host,
        target: &TaskTarget,
        buffer: &mut Vec<u8>,
        cells: &mut [i64],
        unparsed: &mut Unparsed,
    ) {
        let (mut io, mut io_bytes) = ([MISSING; IO_COLUMNS.len()], 0);
        read(&self.io, PidPath::new(target.pid, "io"), host, buffer, unparsed, &mut |text| {
            (io, io_bytes) = (io_of(text), text.len() as i64);
            !io.contains(&MISSING)
        });
        if target.role == TaskRole::Supervisor {
            let mut own = [MISSING; IO_COLUMNS.len()];
            let path = PidPath::of_main_thread(target.pid, "io");
            read(&self.own_thread_io, path, host, buffer, unparsed, &mut |text| {
                own = io_of(text);
                !own.contains(&MISSING)
            });
            if target.pid == std::process::id() {
                remove_reading(&mut own, io_bytes);
            }
            for (whole, own) in io.iter_mut().zip(own) {
                *whole = parse::difference(*whole, own);
            }
        }
        for ((_, column), value) in IO_COLUMNS.iter().zip(io) {
            cells[*column] = value;
        }
    }
}

/// What cannot be read stays missing: the process may have ended meanwhile, or belong to another user.
fn read(
    kept: &Option<KeptFile>,
    path: PidPath,
    host: &Host,
    buffer: &mut Vec<u8>,
    unparsed: &mut Unparsed,
    fill: &mut dyn FnMut(&[u8]) -> bool,
) {
    if let Some(kept) = kept
        && kept.read(host.proc_dir(), path.as_bytes(), buffer).is_ok()
    {
        unparsed.expect(fill(buffer), || format!("/proc/{}", path.as_path().display()));
    }
}

/// A process that reads its own counters changes them: its second file counts the read of the first one.
fn remove_reading(io: &mut [i64; IO_COLUMNS.len()], bytes: i64) {
    for ((_, column), value) in IO_COLUMNS.iter().zip(io) {
        let more = match *column {
            READ_CALL => bytes,
            READ_CALLS => 1,
            _ => 0,
        };
        *value = parse::difference(*value, more);
    }
}

fn fill_reaped(stat: &Stat<'_>, ns_per_tick: i64, cells: &mut [i64]) {
    cells[CPU_USER_REAPED] = parse::scaled(stat.user_reaped_ticks, ns_per_tick);
    cells[CPU_SYSTEM_REAPED] = parse::scaled(stat.system_reaped_ticks, ns_per_tick);
    cells[CPU_REAPED] = parse::sum(cells[CPU_USER_REAPED], cells[CPU_SYSTEM_REAPED]);
    cells[FAULTS_MINOR_REAPED] = stat.faults_minor_reaped;
    cells[FAULTS_MAJOR_REAPED] = stat.faults_major_reaped;
}

fn fill_own(stat: &Stat<'_>, ns_per_tick: i64, cells: &mut [i64]) {
    cells[CPU_USER] = parse::scaled(stat.user_ticks, ns_per_tick);
    cells[CPU_SYSTEM] = parse::scaled(stat.system_ticks, ns_per_tick);
    cells[CPU] = parse::sum(cells[CPU_USER], cells[CPU_SYSTEM]);
    cells[FAULTS_MINOR] = stat.faults_minor;
    cells[FAULTS_MAJOR] = stat.faults_major;
    // A zombie uses nothing any more, but no other process shows what it used until its parent reaps it.
    let ended = matches!(stat.state, b'Z' | b'X');
    cells[ALIVE] = i64::from(!ended);
    cells[THREADS] = if ended { 0 } else { stat.threads };
}

/// statm: size, resident, shared, … in pages.
fn fill_memory(text: &[u8], page_size_bytes: i64, cells: &mut [i64]) -> bool {
    let mut fields = parse::fields(text).map(|field| parse::scaled(parse::cell(field), page_size_bytes));
    cells[MEMORY_VIRTUAL] = fields.next().unwrap_or(MISSING);
    cells[MEMORY_RESIDENT] = fields.next().unwrap_or(MISSING);
    cells[MEMORY_SHARED] = fields.next().unwrap_or(MISSING);
    cells[MEMORY_PRIVATE] = parse::difference(cells[MEMORY_RESIDENT], cells[MEMORY_SHARED]);
    cells[MEMORY_PRIVATE] != MISSING
}

/// status: what `statm` counts as shared with files, or not at all. Kernel threads and zombies have no such lines.
/// Whether what is there could be parsed.
fn fill_shared(text: &[u8], cells: &mut [i64]) -> bool {
    let mut is_parsed = true;
    let kilobytes = |line: &[u8], key: &str| {
        let value = line.strip_prefix(key.as_bytes())?.strip_prefix(b":")?;
        parse::fields(value).next().map(parse::cell)
    };
    for line in parse::lines(text) {
        if let Some(shmem) = kilobytes(line, "RssShmem") {
            cells[MEMORY_SHMEM] = parse::scaled(shmem, 1024);
            is_parsed &= shmem != MISSING;
        }
        if let Some(hugetlb) = kilobytes(line, "HugetlbPages") {
            cells[MEMORY_HUGETLB] = parse::scaled(hugetlb, 1024);
            is_parsed &= hugetlb != MISSING;
            break;
        }
    }
    is_parsed
}

/// schedstat: time on a CPU, time waiting for one, time slices.
fn wait_of(text: &[u8]) -> i64 {
    parse::fields(text).nth(1).map_or(MISSING, parse::cell)
}

const IO_COLUMNS: [(&[u8], usize); 7] = [
    (b"rchar", READ_CALL),
    (b"wchar", WRITE_CALL),
    (b"syscr", READ_CALLS),
    (b"syscw", WRITE_CALLS),
    (b"read_bytes", READ),
    (b"write_bytes", WRITTEN),
    (b"cancelled_write_bytes", WRITE_CANCELLED),
];

/// The values of an `io` file in the order of `IO_COLUMNS`.
fn io_of(text: &[u8]) -> [i64; IO_COLUMNS.len()] {
    let mut values = [MISSING; IO_COLUMNS.len()];
    for (key, value) in parse::key_values(text) {
        if let Some(index) = IO_COLUMNS.iter().position(|(name, _)| *name == key) {
            values[index] = parse::cell(value);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{FAST, Machine, SLOW};
    use expect_test::expect;
    use proptest::prelude::*;

    fn machine() -> Machine {
        let mut machine = Machine::new(include_str!("../../../fixtures/hosts/processes.txt"));
        let starts =
            [(40, 88000), (41, 88100), (42, 88200), (43, 88300), (44, 88400), (45, 88500), (46, 88600)];
        machine.targets.tasks.extend(starts.map(|(pid, start_ticks)| {
            let role = if pid == 40 { TaskRole::Supervisor } else { TaskRole::Member };
            TaskTarget::new(pid, start_ticks, role, false)
        }));
        machine
    }

    #[test]
    fn the_expensive_file_is_read_when_a_process_mapped_pages_and_now_and_then() {
        let row = |pages: i64, shmem: i64| {
            let mut cells = vec![MISSING; COLUMNS.len()];
            (cells[MEMORY_RESIDENT], cells[MEMORY_SHARED]) = ((pages + 1) * 4096, pages * 4096);
            (cells[FAULTS_MINOR], cells[MEMORY_SHMEM]) = (shmem, shmem);
            cells
        };
        let mut status = Status::of(&row(7, 512));
        for _ in 0..HELD_MAX {
            let mut cells = row(7, MISSING);
            assert!(status.fill(&mut cells));
            assert_eq!((cells[MEMORY_SHMEM], cells[MEMORY_HUGETLB]), (512, MISSING));
        }
        assert!(!status.fill(&mut row(7, MISSING)), "shared memory may have taken the place of files");
        assert!(!Status::of(&row(7, 512)).fill(&mut row(8, MISSING)), "it has mapped a page");
    }

    #[test]
    fn a_process_that_reads_its_own_counters_does_not_count_the_reading() {
        let whole = b"rchar: 4100\nwchar: 7\nsyscr: 12\nsyscw: 1\nread_bytes: 0\nwrite_bytes: 0\ncancelled_write_bytes: 0\n";
        let own = b"rchar: 219\nwchar: 7\nsyscr: 3\nsyscw: 1\nread_bytes: 0\nwrite_bytes: 0\ncancelled_write_bytes: 0\n";
        let mut own = io_of(own);
        remove_reading(&mut own, whole.len() as i64);
        let reaped: Vec<i64> =
            io_of(whole).iter().zip(own).map(|(whole, own)| parse::difference(*whole, own)).collect();
        assert_eq!(reaped[..3], [4100 - 219 + whole.len() as i64, 0, 10]);
    }

    #[test]
    fn members_show_what_they_did_and_a_supervisor_what_it_reaped() {
        expect![[r#"
            40
              cpu_reaped 15400000000
              cpu_user_reaped 12000000000
              cpu_system_reaped 3400000000
              page_faults_minor_reaped 5400
              page_faults_major_reaped 31
              read 4096
              written 65536
              write_cancelled 0
              read_call 800000
              write_call 69000
              read_calls 800
              write_calls 75
            41
              cpu 55550000000
              cpu_user 43210000000
              cpu_system 12340000000
              cpu_reaped 1500000000
              cpu_user_reaped 1000000000
              cpu_system_reaped 500000000
              alive 1
              threads 8
              page_faults_minor 5000
              page_faults_major 3
              page_faults_minor_reaped 12
              page_faults_major_reaped 0
              memory_resident 1966080
              memory_virtual 5345280
              memory_shared 1638400
              memory_private 327680
              memory_shmem 409600
              memory_hugetlb 2097152
              read 4096
              written 12288
              write_cancelled 4096
              read_call 123
              write_call 456
              read_calls 7
              write_calls 8
        "#]]
        .assert_eq(&of_members().0);
    }

    /// Of the supervisor and the first member; of the others, whose files are cut or of a zombie.
    fn of_members() -> (String, String) {
        let text = machine().read(&SPEC, SLOW);
        let (first, others) = text.split_once("\n42\n").unwrap();
        (format!("{first}\n"), others.to_owned())
    }

    #[test]
    fn what_cannot_be_parsed_is_missing_and_a_zombie_is_not_alive() {
        expect![[r#"
              cpu 50000000
              cpu_user 30000000
              cpu_system 20000000
              cpu_reaped 0
              cpu_user_reaped 0
              cpu_system_reaped 0
              alive 1
              threads 2
              page_faults_minor 10
              page_faults_major 0
              page_faults_minor_reaped 0
              page_faults_major_reaped 0
              memory_virtual 409600
              memory_shared 122880
            43
              cpu_user 7000000000
              cpu_reaped 0
              cpu_user_reaped 0
              cpu_system_reaped 0
              alive 0
              threads 0
              page_faults_minor 10
              page_faults_major 0
              page_faults_minor_reaped 0
              page_faults_major_reaped 0
            3 readings could not be parsed (first: /proc/42/statm)
        "#]]
        .assert_eq(&of_members().1);
    }

    #[test]
    fn a_tick_between_reads_stat_only() {
        expect![[r#"
            40
              cpu_reaped 15400000000
              cpu_user_reaped 12000000000
              cpu_system_reaped 3400000000
              page_faults_minor_reaped 5400
              page_faults_major_reaped 31
            41
              cpu 55550000000
              cpu_user 43210000000
              cpu_system 12340000000
              cpu_reaped 1500000000
              cpu_user_reaped 1000000000
              cpu_system_reaped 500000000
              alive 1
              threads 8
              page_faults_minor 5000
              page_faults_major 3
              page_faults_minor_reaped 12
              page_faults_major_reaped 0
            42
              cpu 50000000
              cpu_user 30000000
              cpu_system 20000000
              cpu_reaped 0
              cpu_user_reaped 0
              cpu_system_reaped 0
              alive 1
              threads 2
              page_faults_minor 10
              page_faults_major 0
              page_faults_minor_reaped 0
              page_faults_major_reaped 0
            43
              cpu_user 7000000000
              cpu_reaped 0
              cpu_user_reaped 0
              cpu_system_reaped 0
              alive 0
              threads 0
              page_faults_minor 10
              page_faults_major 0
              page_faults_minor_reaped 0
              page_faults_major_reaped 0
            2 readings could not be parsed (first: /proc/43/stat)
        "#]]
        .assert_eq(&machine().read(&SPEC, FAST));
    }

    #[test]
    fn files_of_processes_that_are_no_target_any_more_are_closed() {
        let mut machine = machine();
        let mut source = open(&machine.host, &Options::default()).unwrap_or_else(|why| panic!("{why}"));
        let mut batches = [Batch::new(&TABLE)];
        let _ = source.read(&machine.targets, &SLOW, &mut batches);
        assert_eq!(machine.host.budget().kept(), 4 + 6, "44 is another process, 45 unreadable, 46 gone");
        machine.targets.tasks.truncate(1);
        source.read(&machine.targets, &FAST, &mut batches).unwrap();
        assert_eq!(machine.host.budget().kept(), 3);
    }

    #[test]
    fn a_member_that_turns_out_to_be_a_supervisor_is_read_as_one() {
        let mut machine = machine();
        let mut source = open(&machine.host, &Options::default()).unwrap_or_else(|why| panic!("{why}"));
        let mut batches = [Batch::new(&TABLE)];
        machine.targets.tasks.truncate(1);
        for (role, read_bytes, alive) in [(TaskRole::Member, 8192, 1), (TaskRole::Supervisor, 4096, MISSING)]
        {
            machine.targets.tasks[0].role = role;
            batches[0].clear();
            source.read(&machine.targets, &SLOW, &mut batches).unwrap();
            let (_, cells) = batches[0].rows().next().unwrap();
            assert_eq!((cells[READ], cells[ALIVE]), (read_bytes, alive));
        }
    }

    #[test]
    fn this_process_finds_itself() {
        let host = Host::real().unwrap();
        let me = host.process(std::process::id()).unwrap();
        let target = TaskTarget::new(me.pid, me.start_ticks, TaskRole::Member, true);
        let targets = Targets { tasks: vec![target], ..Targets::default() };
        let mut source = open(&host, &Options::default()).unwrap_or_else(|why| panic!("{why}"));
        let mut batches = [Batch::new(&TABLE)];
        source.read(&targets, &FAST, &mut batches).unwrap();
        let (_, cells) = batches[0].rows().next().unwrap();
        assert_eq!(cells[ALIVE], 1);
        assert!(cells[THREADS] >= 1 && cells[MEMORY_PRIVATE] > 0 && cells[FAULTS_MINOR] > 0);
    }

    #[test]
    fn a_file_in_another_format_is_counted_once_and_named() {
        for (name, text) in [
            ("stat", "42 python S 41\n"),
            ("stat", "42 (python) S 41 40 40 0 -1 4194304 10 0 0 0 0x1f 5 0 0 20 0 1 0 88200 0 0 0\n"),
            ("statm", "100 kB\n"),
            ("io", "rchar: 1 kB\nwchar 2\n"),
            ("schedstat", "v17\n"),
            ("status", "Name:\tpython\nRssShmem:\tfew kB\n"),
        ] {
            let mut machine = machine();
            machine.targets.tasks.retain(|task| task.pid == 41);
            assert!(!machine.read(&SPEC, SLOW).contains("could not be parsed"));
            let text = text.replacen("42", "41", 1).replace("88200", "88100");
            std::fs::write(machine.path(&format!("/proc/41/{name}")), text).unwrap();
            let line = format!("1 reading could not be parsed (first: /proc/41/{name})\n");
            let text = machine.read(&SPEC, SLOW);
            assert!(text.ends_with(&line), "{name}: {text}");
        }
    }

    #[test]
    fn a_process_that_has_ended_or_hides_its_files_is_not_counted() {
        let mut machine = machine();
        machine.targets.tasks.retain(|task| task.pid == 41);
        for name in ["io", "statm", "schedstat", "status", "stat"] {
            let _ = std::fs::remove_file(machine.path(&format!("/proc/41/{name}")));
            assert!(!machine.read(&SPEC, SLOW).contains("could not be parsed"), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_fill_cells_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut cells = vec![MISSING; COLUMNS.len()];
            fill_memory(&text, 4096, &mut cells);
            fill_shared(&text, &mut cells);
            wait_of(&text);
            let _ = io_of(&text);
        }
    }
}
