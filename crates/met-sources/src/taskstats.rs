//! Taskstats: what the scheduler and the delay accounting know of a process with all its threads.
//!
//! Asked by process (TGID), the kernel reports CPU time, waits and context switches, and leaves memory and
//! I/O at zero. The records of threads that end are complete; [`exits`] listens to them.

pub mod exits;
mod record;
mod threads;

use std::io;
use std::time::Instant;

use met_core::table::{MICRO, NANO, ONE};
use met_core::{
    Batch, Column, MISSING, Subject, Table, Unit, Unparsed, columns, detail_table as detail, job_table,
};
use met_host::netlink::{self, Datagrams, Socket};
use met_host::{Host, PidPath, Targets, TaskRole, TaskTarget, parse};

use crate::{Opened, Options, Pace, ReadError, Shortfall, Source, SourceSpec, TickInfo, Unavailable};
use record::Record;
use threads::{Kernel, Threads};

columns! { COLUMNS:
    CPU = Column::counter("cpu", Unit::Seconds, NANO, "CPU time of the process, ended threads included").details(detail::CPU_VIRTUAL),
    CPU_RUNS = Column::counter("cpu_runs", Unit::Count, ONE, "times one of its threads was given a CPU").details(detail::CPU_RUNS),
    CPU_REAL = Column::counter("cpu_real", Unit::Seconds, NANO, "CPU time by the kernel's clock ticks").details(detail::CPU_REAL),
    CPU_SCALED = Column::counter("cpu_scaled", Unit::Seconds, NANO, "CPU time scaled by frequency; equals CPU time where the processor does not say").details(detail::CPU_SCALED),
    RUN_QUEUE_WAIT = Column::counter("run_queue_wait", Unit::Seconds, NANO, "time its threads were runnable and waited for a CPU").feeds(job_table::RUN_QUEUE_WAIT),
    DELAY_IO = Column::counter("delay_io", Unit::Seconds, NANO, "time its threads waited for storage").feeds(job_table::DELAY_IO),
    IO_WAITS = Column::counter("io_waits", Unit::Count, ONE, "times its threads waited for storage").details(detail::IO_WAITS),
    SWAP_WAITS = Column::counter("swap_waits", Unit::Count, ONE, "times its threads waited for pages to be swapped in").details(detail::SWAP_WAITS),
    RECLAIM_WAITS = Column::counter("reclaim_waits", Unit::Count, ONE, "times its threads waited for memory reclaim").details(detail::RECLAIM_WAITS),
    DELAY_SWAP = Column::counter("delay_swap", Unit::Seconds, NANO, "time its threads waited for pages to be swapped in").feeds(job_table::DELAY_MEMORY).details(detail::DELAY_SWAP),
    DELAY_RECLAIM = Column::counter("delay_reclaim", Unit::Seconds, NANO, "time its threads waited for memory reclaim").feeds(job_table::DELAY_MEMORY).details(detail::DELAY_RECLAIM),
    DELAY_COMPACT = Column::counter("delay_compact", Unit::Seconds, NANO, "time its threads waited for memory compaction").feeds(job_table::DELAY_MEMORY),
    // Part of it is in delay_swap and delay_io already: no sum of a job may hold it twice.
    DELAY_THRASH = Column::counter("delay_thrash", Unit::Seconds, NANO, "time its threads waited for recently evicted pages (thrashing)"),
    SWITCHES_VOLUNTARY = Column::counter("context_switches_voluntary", Unit::Count, ONE, "times a living thread gave up the CPU to wait").feeds(job_table::SWITCHES_VOLUNTARY),
    SWITCHES_INVOLUNTARY = Column::counter("context_switches_involuntary", Unit::Count, ONE, "times a living thread was preempted").feeds(job_table::SWITCHES_INVOLUNTARY),
    CPU_USER_SCALED = Column::counter("cpu_user_scaled", Unit::Seconds, MICRO, "scaled CPU time of its living threads in user code").details(detail::CPU_USER_SCALED),
    CPU_SYSTEM_SCALED = Column::counter("cpu_system_scaled", Unit::Seconds, MICRO, "scaled CPU time of its living threads in the kernel").details(detail::CPU_SYSTEM_SCALED),
    MEMORY_TIME = Column::counter("memory_time", Unit::Count, ONE, "resident memory times CPU time of its living threads, in megabytes times microseconds").details(detail::MEMORY_TIME),
    VIRTUAL_TIME = Column::counter("virtual_time", Unit::Count, ONE, "address space times CPU time of its living threads, in megabytes times microseconds").details(detail::VIRTUAL_TIME),
}

pub static TABLE: Table = Table {
    name: "taskstats",
    subject: "a process of a job, as the scheduler accounts it",
    labels: &["pid"],
    columns: COLUMNS,
};

pub(crate) static SPEC: SourceSpec = SourceSpec {
    name: "taskstats",
    help: "delays and context switches of a job's processes, and exact records of those that end",
    pace: Pace::Tick,
    tables: &[&TABLE],
    charts: &[],
    options: &[],
    open,
};

const FAMILY: &str = "TASKSTATS";
const COMMAND_GET: u8 = 1;
const ASK_THREAD: u16 = 1;
const ASK_PROCESS: u16 = 2;
/// In an answer: a thread or a process with its statistics.
const OF_THREAD: u16 = 4;
const OF_PROCESS: u16 = 5;
const STATISTICS: u16 = 3;
/// An exit record with that of its process has 1.2 kB today.
const ANSWER_BYTES_MAX: usize = 2048;
const DELAYS_OFF: &str = "sudo sysctl kernel.task_delayacct=1    (applies to processes started afterwards)";

struct TaskStats {
    role: Role,
    host: Host,
    delays: bool,
    asked: Vec<TaskTarget>,
    ids: Vec<u32>,
    threads: Threads,
    buffer: Vec<u8>,
}

/// Asks for many at once, and holds what that takes.
struct Role {
    socket: Socket,
    family: u16,
    request: Vec<u8>,
    answers: Datagrams,
    unparsed: Unparsed,
}

fn open(host: &Host, _: &Options) -> Opened {
    let Connected { socket, family, .. } = connect(host)?;
    let answers = Datagrams::new(netlink::DATAGRAMS, ANSWER_BYTES_MAX);
    let mut source = TaskStats {
        role: Role { socket, family, request: Vec::new(), answers, unparsed: Unparsed::default() },
        host: host.clone(),
        delays: false,
        asked: Vec::new(),
        ids: Vec::new(),
        threads: Threads::default(),
        buffer: Vec::new(),
    };
    source.delays = accounts_delays(host, &mut source.buffer);
    Ok(Box::new(source))
}

/// A socket on which the kernel answers.
struct Connected {
    socket: Socket,
    family: u16,
    /// Records of threads say which process they are of.
    says_process: bool,
}

/// Shown by a question about this very process.
fn connect(host: &Host) -> Result<Connected, Unavailable> {
    if host.root() != std::path::Path::new("/") {
        return Err(Unavailable::Absent("not available on a captured machine".to_owned()));
    }
    let absent = |error: io::Error| Unavailable::Absent(format!("the kernel has no taskstats: {error}"));
    let socket = Socket::open(netlink::GENERIC, 0).map_err(absent)?;
    let family = socket.family(FAMILY).map_err(absent)?;
    let mut request = Vec::new();
    let me = std::process::id().to_ne_bytes();
    netlink::push_generic(&mut request, family, 0, COMMAND_GET, &[(ASK_PROCESS, &me)]);
    let mut answers = Datagrams::new(1, ANSWER_BYTES_MAX);
    socket.send(&request).and_then(|()| socket.receive(&mut answers)).map_err(absent)?;
    let answer = answers.iter().flat_map(netlink::messages).next();
    let answer = answer.ok_or_else(|| absent(io::ErrorKind::UnexpectedEof.into()))?;
    match answer.error() {
        Some(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Unavailable::Denied {
            path: "taskstats".to_owned(),
            need: "sudo met daemon    (it needs CAP_NET_ADMIN)",
        }),
        Some(error) => Err(absent(error)),
        None => {
            let statistics = answer.generic().and_then(|body| statistics(body, OF_PROCESS));
            record::check(statistics.unwrap_or_default()).map_err(Unavailable::Absent)?;
            let says_process = statistics.and_then(Record::parse).is_some_and(|record| record.pid.is_some());
            Ok(Connected { socket, family, says_process })
        }
    }
}

/// Whether the kernel accounts delays; where it does not, it answers 0.
fn accounts_delays(host: &Host, buffer: &mut Vec<u8>) -> bool {
    match host.read_small("/proc/sys/kernel/task_delayacct", buffer) {
        Ok(()) => buffer.trim_ascii() == b"1",
        // Before Linux 5.14 there was no switch at run time: on, unless the boot loader said otherwise.
        Err(_) => {
            host.read_small("/proc/cmdline", buffer).is_ok()
                && !buffer.split(|byte| byte.is_ascii_whitespace()).any(|word| word == b"nodelayacct")
        }
    }
}

/// The statistics of a thread or process in an answer.
fn statistics(body: &[u8], of: u16) -> Option<&[u8]> {
    let (_, nested) = netlink::attributes(body).find(|(kind, _)| *kind == of)?;
    netlink::attributes(nested).find(|(kind, _)| *kind == STATISTICS).map(|(_, bytes)| bytes)
}

fn record_in(body: &[u8], of: u16, unparsed: &mut Unparsed) -> Option<Record> {
    let record = statistics(body, of).and_then(Record::parse);
    unparsed.expect(record.is_some(), || FAMILY.to_lowercase());
    record
}

impl Source for TaskStats {
    fn read(&mut self, targets: &Targets, tick: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError> {
        let [batch] = out else { return Ok(()) };
        if tick.cgroups_only {
            return Ok(());
        }
        if tick.slow {
            self.delays = accounts_delays(&self.host, &mut self.buffer);
        }
        let wanted = |target: &&TaskTarget| target.role == TaskRole::Member && target.is_whole(tick.slow);
        self.asked.clear();
        self.asked.extend(targets.tasks.iter().filter(wanted));
        let retry = |error| ReadError::Retry { path: FAMILY.to_lowercase(), error };
        self.read_processes(batch).map_err(retry)?;
        if tick.slow && self.threads.is_due(Instant::now()) {
            let TaskStats { role, host, threads, buffer, .. } = self;
            threads.read(&mut ThreadFiles { role, host, buffer }, batch).map_err(retry)?;
        }
        batch.unparsed.take_from(&mut self.role.unparsed);
        Ok(())
    }

    fn shortfall(&self) -> Option<Shortfall> {
        let detail =
            "context switches, waits for a CPU and exits; waits for I/O and memory are not accounted";
        (!self.delays).then(|| Shortfall { detail: detail.to_owned(), remedy: Some(DELAYS_OFF.to_owned()) })
    }
}

impl TaskStats {
    fn read_processes(&mut self, batch: &mut Batch) -> io::Result<()> {
        let TaskStats { role, asked, ids, delays, .. } = self;
        ids.clear();
        ids.extend(asked.iter().map(|target| target.pid));
        role.ask(ASK_PROCESS, OF_PROCESS, ids, |index, record| {
            let TaskTarget { pid, start_ticks, .. } = asked[index];
            fill(record, *delays, batch.push(Subject::Task { pid, start_ticks }));
        })
    }
}

/// Where the threads of processes are found.
struct ThreadFiles<'t> {
    role: &'t mut Role,
    host: &'t Host,
    buffer: &'t mut Vec<u8>,
}

impl Kernel for ThreadFiles<'_> {
    fn ask(&mut self, threads: &[u32], each: &mut dyn FnMut(usize, &Record)) -> io::Result<()> {
        self.role.ask(ASK_THREAD, OF_THREAD, threads, each)
    }

    fn list(&mut self, pid: u32, threads: &mut Vec<u32>) -> io::Result<()> {
        let folder = self.host.proc_dir().open_dir(PidPath::new(pid, "task").as_path())?;
        folder.list(self.buffer, |name, _, _| threads.extend(parse::u32(name)))
    }
}

impl Role {
    /// Asks for as many as are answered with one call at a time; the answers wait when `send` returns. `each` gets the
    /// place of who is meant and the record. One that ended since the listing is not an error.
    fn ask(
        &mut self,
        what: u16,
        of: u16,
        ids: &[u32],
        mut each: impl FnMut(usize, &Record),
    ) -> io::Result<()> {
        for (chunk, begin) in ids.chunks(netlink::DATAGRAMS).zip((0..).step_by(netlink::DATAGRAMS)) {
            self.request.clear();
            for (index, id) in (0..).zip(chunk) {
                let id = id.to_ne_bytes();
                let attributes: [(u16, &[u8]); 1] = [(what, &id)];
                netlink::push_generic(&mut self.request, self.family, index, COMMAND_GET, &attributes);
            }
            self.socket.send(&self.request)?;
            let mut answered = 0;
            while answered < chunk.len() {
                let count = self.socket.receive(&mut self.answers)?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                answered += count;
                for answer in self.answers.iter().flat_map(netlink::messages) {
                    let index = answer.sequence as usize;
                    let record = answer.generic().and_then(|body| record_in(body, of, &mut self.unparsed));
                    if let Some(record) = record.filter(|_| index < chunk.len()) {
                        each(begin + index, &record);
                    }
                }
            }
        }
        Ok(())
    }
}

fn fill(record: &Record, delays: bool, cells: &mut [i64]) {
    cells[CPU] = record.cpu_run_ns;
    cells[RUN_QUEUE_WAIT] = record.cpu_wait_ns;
    cells[CPU_RUNS] = record.cpu_runs;
    cells[CPU_REAL] = record.cpu_real_ns;
    cells[CPU_SCALED] = record.cpu_scaled_ns;
    cells[SWITCHES_VOLUNTARY] = record.voluntary;
    cells[SWITCHES_INVOLUNTARY] = record.involuntary;
    let known = |cell: i64| if delays { cell } else { MISSING };
    cells[DELAY_IO] = known(record.io_wait_ns);
    cells[IO_WAITS] = known(record.io_waits);
    cells[SWAP_WAITS] = known(record.swap_waits);
    cells[RECLAIM_WAITS] = known(record.reclaim_waits);
    cells[DELAY_SWAP] = known(record.swap_wait_ns);
    cells[DELAY_RECLAIM] = known(record.reclaim_wait_ns);
    cells[DELAY_COMPACT] = known(record.compact_wait_ns);
    cells[DELAY_THRASH] = known(record.thrash_wait_ns);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn attribute(kind: u16, bytes: &[u8]) -> Vec<u8> {
        let mut attribute = Vec::from(((bytes.len() + 4) as u16).to_ne_bytes());
        attribute.extend(kind.to_ne_bytes());
        attribute.extend(bytes);
        attribute
    }

    #[test]
    fn a_record_that_is_cut_off_is_counted() {
        let answer = |bytes: &[u8]| attribute(OF_PROCESS, &attribute(STATISTICS, bytes));
        let mut whole = vec![0; 512];
        whole[..2].copy_from_slice(&8_u16.to_ne_bytes());
        let mut unparsed = Unparsed::default();
        assert!(record_in(&answer(&whole), OF_PROCESS, &mut unparsed).is_some());
        assert_eq!(unparsed.count, 0);
        assert!(record_in(&answer(&whole[..64]), OF_PROCESS, &mut unparsed).is_none());
        assert_eq!((unparsed.count, unparsed.first.as_deref()), (1, Some("taskstats")));
    }

    fn read_of(pid: u32) -> Option<Vec<i64>> {
        let host = Host::real().unwrap();
        let mut source = match open(&host, &Options::default()) {
            Ok(source) => source,
            Err(why) => {
                met_core::skipped::skipped(why);
                return None;
            }
        };
        let process = host.process(pid).unwrap();
        let target = TaskTarget::new(pid, process.start_ticks, TaskRole::Member, true);
        let gone = TaskTarget { pid: u32::MAX >> 1, ..target };
        // More than fit into one question, some of them gone.
        let tasks = std::iter::repeat_n([target, gone], 70).flatten().collect();
        let mut batches = [Batch::new(&TABLE)];
        source.read(&Targets { tasks, ..Targets::default() }, &TickInfo::default(), &mut batches).unwrap();
        assert_eq!(batches[0].len(), 70);
        batches[0].rows().last().map(|(_, cells)| cells.to_vec())
    }

    fn read_slowly(pid: u32) -> Option<Vec<i64>> {
        let host = Host::real().unwrap();
        let mut source = open(&host, &Options::default()).ok()?;
        let start_ticks = host.process(pid).unwrap().start_ticks;
        let target = TaskTarget::new(pid, start_ticks, TaskRole::Member, false);
        let mut batches = [Batch::new(&TABLE)];
        let tick = TickInfo::of(true);
        source.read(&Targets { tasks: vec![target], ..Targets::default() }, &tick, &mut batches).unwrap();
        batches[0].rows().next().map(|(_, cells)| cells.to_vec())
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test may start a process, and look at it its own way")]
    fn a_process_is_reported_as_the_kernel_tells_it_elsewhere() {
        // One that has computed and waits: of this program other tests' threads come and go.
        let script = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; echo; read line";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let of_child = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
        while !of_child("stat").contains(") S ") {
            std::thread::yield_now();
        }
        let spent_ns: i64 = of_child("schedstat").split_whitespace().next().unwrap().parse().unwrap();
        let status = of_child("status");
        let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let switches: i64 = switches.unwrap().trim().parse().unwrap();
        let cells = read_of(child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        let Some(cells) = cells else { return };
        // The kernel reports microseconds, of user and system time apart.
        assert!(cells[CPU].abs_diff(spent_ns) < 10_000_000, "{spent_ns} {cells:?}");
        assert_eq!(cells[SWITCHES_VOLUNTARY], switches);
        let mut buffer = Vec::new();
        let delays = accounts_delays(&Host::real().unwrap(), &mut buffer);
        assert_eq!(cells[DELAY_IO] != MISSING, delays, "a delay that is not accounted is missing, not 0");
        assert_ne!(cells[RUN_QUEUE_WAIT], MISSING);
        assert!(
            cells[CPU_RUNS] > 0 && cells[CPU_REAL] != MISSING && cells[CPU_SCALED] != MISSING,
            "{cells:?}"
        );
        assert_eq!(cells[IO_WAITS] != MISSING, delays);
        // Read with a request for each thread, at slow readings alone.
        let slow = read_slowly(std::process::id()).unwrap();
        assert!(slow[VIRTUAL_TIME] >= slow[MEMORY_TIME] && slow[MEMORY_TIME] >= 0, "{slow:?}");
        assert_eq!(cells[MEMORY_TIME], MISSING);
    }

    #[test]
    fn where_the_kernel_has_no_switch_delays_are_on_unless_the_boot_line_says_otherwise() {
        let tree = |files: &[(&str, &str)]| {
            let root = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
            for (path, text) in files {
                std::fs::write(root.path().join(path), text).unwrap();
            }
            accounts_delays(&Host::at(root.path()).unwrap(), &mut Vec::new())
        };
        assert!(tree(&[("proc/cmdline", "quiet")]));
        assert!(!tree(&[("proc/cmdline", "quiet nodelayacct\n")]));
        assert!(!tree(&[("proc/sys/kernel/task_delayacct", "0\n"), ("proc/cmdline", "quiet")]));
        assert!(tree(&[("proc/sys/kernel/task_delayacct", "1\n")]));
    }
}
