//! Watches a process that another program started, until it ends.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use met_core::job::QualityKind::Measured;
use met_core::job::{ProcessId, Record, State};
use met_core::job_table::{CPU, WALL};
use met_host::{Host, clock, parse};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::events::Events;
use super::link::Link;
use super::memory;
use super::memory_limit;
use super::perf::{Begin, TaskClock};
use super::quota::Quota;
use super::signals::{Signals, cancel_signal};
use super::unreported::Unreported;
use super::{Assignment, Channel, Inbox, Notice, usable_cpus};
use met_jobs::processes;

/// Rounds of looking for threads that began while others were being opened.
const ROUNDS_MAX: usize = 8;
/// How long to wait for the process to be reaped: only then its exit status is known.
const REAPED_WITHIN: Duration = Duration::from_secs(1);

/// Waits for the process named as the main one of the assignment's job.
pub fn supervise_attached(assignment: Assignment, mut channel: Channel) {
    let result = watch(assignment, &mut channel);
    channel.close(result);
}

fn watch(mut assignment: Assignment, channel: &mut Channel) -> io::Result<Option<Unreported>> {
    let signals = Signals::block()?;
    rustix::process::setsid()?;
    let host = Host::real()?;
    let main =
        assignment.record.local.as_ref().and_then(|local| local.main).ok_or(io::ErrorKind::InvalidInput)?;
    let pidfd = open_process(&host, main)?;
    let inbox = Inbox::of(&assignment)?;
    assignment.record.start_ns = Some(clock::realtime_ns());
    assignment.record.state = State::Running;
    if let Some(local) = &mut assignment.record.local {
        local.supervisor = host.process(std::process::id()).ok();
        local.memory_limit = memory_limit::inherited(&host, main.pid);
        local.cpus_usable = usable_cpus(main.pid, Quota::of(&host, main.pid).as_ref());
    }
    let begin_boot_ns = clock::boottime_ns();
    let clocks = open_clocks(&host, &assignment.record, usize::MAX);
    let mut events = open_events(&host, &assignment);
    if let Some(inbox) = &inbox {
        inbox.folder.write_start(&assignment.record).map_err(|error| inbox.unkept(&error))?;
    }
    channel.tell(&Notice::Started(Box::new(assignment.record.clone())));
    let mut link = Link::new(assignment.daemon.clone());
    let outcome = wait(&assignment.record, &signals, &pidfd, &mut link, &events);
    events.close(&mut assignment.record);
    let record =
        close(assignment.record, clocks.as_deref(), &pidfd, clock::boottime_ns() - begin_boot_ns, &outcome);
    Ok(inbox.and_then(|inbox| inbox.keep_end(record, Some(link), signals)))
}

fn open_process(host: &Host, process: ProcessId) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(process.pid as i32).ok_or(io::ErrorKind::InvalidInput)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    if host.is_alive(process) { Ok(pidfd) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Why the watching is over.
struct Outcome {
    /// `met cancel` has ended the process.
    cancelled: bool,
    /// `met detach` has ended the watching.
    detached: bool,
}

/// Returns when the process has ended, or is to be watched no more.
fn wait(record: &Record, signals: &Signals, pidfd: &OwnedFd, link: &mut Link, events: &Events) -> Outcome {
    let (mut cancelled, mut detached) = (false, false);
    loop {
        link.keep_up(record);
        let (ended, signalled, farewell) = {
            let mut fds = vec![PollFd::new(pidfd, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            fds.extend(link.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            memory::wait(&mut fds, link.timeout(), link.is_known());
            let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
            (ready(0), ready(1), ready(2))
        };
        while signalled && let Some(signal) = signals.next() {
            cancelled |= signal.number == cancel_signal();
            detached |= matches!(signal.number, libc::SIGTERM | libc::SIGINT);
        }
        if ended || detached {
            return Outcome { cancelled, detached: detached && !ended };
        }
        if farewell {
            link.listen();
            link.pass(&record.key, events);
        }
    }
}

/// A task clock on every thread the job has now, if these are at most so many; what they fork later is inherited.
pub(super) fn open_clocks(host: &Host, record: &Record, threads_max: usize) -> Option<Vec<TaskClock>> {
    let mut known = HashSet::new();
    let mut clocks = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let before = known.len();
        for process in processes::of_job(host, record) {
            for tid in threads(host, process.id.pid) {
                if known.insert(tid) {
                    if known.len() > threads_max {
                        return None;
                    }
                    match TaskClock::open(tid as i32, Begin::Now) {
                        Ok(clock) => clocks.push(clock),
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                        // Not allowed, or too many: then samples must do.
                        Err(_) => return None,
                    }
                }
            }
        }
        if known.len() == before {
            break;
        }
    }
    Some(clocks)
}

/// Counters on every thread the job has now.
fn open_events(host: &Host, assignment: &Assignment) -> Events {
    if assignment.events.is_empty() {
        return Events::default();
    }
    let processes = processes::of_job(host, &assignment.record).into_iter();
    let tids: Vec<i32> =
        processes.flat_map(|process| threads(host, process.id.pid)).map(|tid| tid as i32).collect();
    Events::of_threads(host, &assignment.events, &tids)
}

fn threads(host: &Host, pid: u32) -> Vec<u32> {
    let mut threads = Vec::new();
    if let Ok(folder) = host.open_dir(format!("/proc/{pid}/task")) {
        let _ = folder.list(&mut Vec::new(), |name, _, _| threads.extend(parse::u32(name)));
    }
    threads
}

fn close(
    mut record: Record,
    clocks: Option<&[TaskClock]>,
    pidfd: &OwnedFd,
    wall_ns: i64,
    outcome: &Outcome,
) -> Record {
    record.totals.set(WALL, wall_ns, Measured, "clock");
    record.end_ns = record.start_ns.map(|start_ns| start_ns + wall_ns);
    if let Some(local) = record.local.as_mut().filter(|_| !outcome.detached) {
        local.main_end_ns = record.end_ns;
    }
    if let Some(clocks) = clocks {
        let cpu_ns = clocks.iter().filter_map(|clock| clock.read_ns().ok()).sum();
        record.totals.set(CPU, cpu_ns, Measured, "perf task-clock");
    }
    let status = if outcome.detached { None } else { wait_status(pidfd) };
    if let Some(status) = status {
        match libc::WIFSIGNALED(status) {
            true => record.signal = Some(libc::WTERMSIG(status)),
            false => record.exit_code = Some(libc::WEXITSTATUS(status)),
        }
    }
    record.manager_state = outcome.detached.then(|| "detached".to_owned());
    record.state = match status {
        _ if outcome.cancelled => State::Cancelled,
        // How it ended is not known where the kernel does not say; that it ended is.
        Some(0) | None => State::Finished,
        Some(_) => State::Failed,
    };
    record
}

/// The wait status of a process that is not our child, from Linux 6.15 on.
fn wait_status(pidfd: &OwnedFd) -> Option<i32> {
    /// `struct pidfd_info` in its first size.
    #[repr(C)]
    #[derive(Default)]
    struct PidfdInfo {
        mask: u64,
        cgroup_id: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    const PIDFD_GET_INFO: libc::c_ulong = 0xC040_FF0B;
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    let begin = Instant::now();
    while begin.elapsed() < REAPED_WITHIN {
        let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..Default::default() };
        // SAFETY: the structure has the size that is part of the request's number.
        if unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &mut info) } < 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::ESRCH) {
                return None;
            }
        } else if info.mask & PIDFD_INFO_EXIT != 0 {
            return Some(info.exit_code);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}
