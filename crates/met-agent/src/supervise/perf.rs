//! The CPU time of a process and of everything it will ever fork, from one perf event.
//!
//! Where a job has no cgroup this closes the one hole of resource usage: children of a process that
//! ignores SIGCHLD are reaped by the kernel and added to no parent.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};

use met_core::evidence::Clock;
use perf_event_open_sys as sys;
use sys::bindings::{
    PERF_COUNT_SW_PAGE_FAULTS_MIN, PERF_COUNT_SW_TASK_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_SOFTWARE,
    perf_event_attr,
};

/// An inherited task clock.
pub struct TaskClock {
    event: OwnedFd,
    /// Minor page faults of the same processes, where those in the kernel may be counted, too.
    faults: Option<OwnedFd>,
    stolen_before_ns: i64,
}

/// The clocks of a job. In a cgroup they may begin after the job did: what was used until then is known from there.
pub struct Clocks {
    clocks: Vec<TaskClock>,
    before_ns: i64,
}

impl Clocks {
    /// From the first instruction of the command on.
    pub fn early(clock: TaskClock) -> Clocks {
        Clocks { clocks: vec![clock], before_ns: 0 }
    }

    /// On every thread that a job has by now.
    pub fn late(clocks: Vec<TaskClock>, before_ns: i64) -> Clocks {
        Clocks { clocks, before_ns }
    }

    /// `None` where nothing could be read.
    pub fn read(&self) -> Option<Clock> {
        let first = self.clocks.first()?;
        let ns: i64 = self.clocks.iter().filter_map(|clock| clock.read_ns().ok()).sum();
        (ns > 0).then(|| Clock {
            ns: ns.saturating_add(self.before_ns),
            stolen_ns: first.stolen_ns(),
            // One that began late may have missed a process.
            sees_all: self.before_ns == 0 && first.sees_all(),
            page_faults: first.page_faults(),
        })
    }
}

/// Whether this user may count at all.
pub fn perf_allowed() -> bool {
    TaskClock::open(0, Begin::Now).is_ok()
}

/// From when on the clock counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    Now,
    /// When the process, which waits at its gate, executes its command.
    AtExec,
}

impl TaskClock {
    /// Fails where perf is not allowed (kernel.perf_event_paranoid above 2, a seccomp filter).
    pub fn open(tid: i32, begin: Begin) -> io::Result<TaskClock> {
        // An ordinary user is refused unless the kernel is excluded; the task clock counts its time all the same.
        let event = open_event(tid, begin, PERF_COUNT_SW_TASK_CLOCK, 1)?;
        let faults = match begin {
            Begin::AtExec => open_event(tid, begin, PERF_COUNT_SW_PAGE_FAULTS_MIN, 0).ok(),
            Begin::Now => None,
        };
        Ok(TaskClock { event, faults, stolen_before_ns: stolen_ns() })
    }

    /// Time that a hypervisor took from this machine since the clock was opened. The clock counts it for
    /// the task that was running then; rusage and cgroups do not.
    pub fn stolen_ns(&self) -> i64 {
        stolen_ns() - self.stolen_before_ns
    }

    /// Whether nothing can stop the clock: the kernel takes it from a process that gains privileges by executing a
    /// program (set-user-ID, file capabilities), which `no_new_privs` rules out for good.
    pub fn sees_all(&self) -> bool {
        rustix::thread::no_new_privs().unwrap_or(false)
    }

    /// Nanoseconds of CPU, of the dead and the living.
    pub fn read_ns(&self) -> io::Result<i64> {
        read_count(&self.event)
    }

    /// Minor page faults of the same processes.
    pub fn page_faults(&self) -> Option<i64> {
        self.faults.as_ref().and_then(|faults| read_count(faults).ok())
    }
}

fn open_event(tid: i32, begin: Begin, event: u32, exclude_kernel: u64) -> io::Result<OwnedFd> {
    let mut attributes = perf_event_attr {
        type_: PERF_TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>() as u32,
        config: event.into(),
        ..Default::default()
    };
    attributes.set_inherit(1);
    attributes.set_exclude_kernel(exclude_kernel);
    attributes.set_exclude_hv(1);
    if begin == Begin::AtExec {
        attributes.set_disabled(1);
        attributes.set_enable_on_exec(1);
    }
    // SAFETY: the attributes are valid for the call.
    let fd = unsafe { sys::perf_event_open(&mut attributes, tid, -1, -1, PERF_FLAG_FD_CLOEXEC as u64) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn read_count(event: &OwnedFd) -> io::Result<i64> {
    let mut value = [0u8; 8];
    let length = rustix::io::read(event, &mut value)?;
    if length != 8 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(i64::from_ne_bytes(value))
}

/// Of all CPUs together since boot; 0 where it is not reported. One read: the first line has it, and a job waits for it.
fn stolen_ns() -> i64 {
    const STEAL_FIELD: usize = 8;
    let mut line = [0; 256];
    let read = File::open("/proc/stat").and_then(|mut file| file.read(&mut line)).unwrap_or(0);
    let line =
        line[..read].split(|&byte| byte == b'\n').next().and_then(|line| std::str::from_utf8(line).ok());
    let steal = line.and_then(|line| line.split_ascii_whitespace().nth(STEAL_FIELD));
    let ticks: i64 = steal.and_then(|field| field.parse().ok()).unwrap_or(0);
    ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_clock_counts_this_thread() {
        let Ok(clock) = TaskClock::open(0, Begin::Now) else {
            met_core::skipped::skipped("perf events are not allowed here");
            return;
        };
        let before = clock.read_ns().unwrap();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(20) {
            std::hint::black_box(0);
        }
        assert!(clock.read_ns().unwrap() > before);
    }
}
