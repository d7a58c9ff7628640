//! A counter of the kernel: opened, read, and what it read put into words.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use perf_event_open_sys as sys;
use sys::bindings::{
    PERF_FLAG_FD_CLOEXEC, PERF_FLAG_PID_CGROUP, PERF_FORMAT_TOTAL_TIME_ENABLED,
    PERF_FORMAT_TOTAL_TIME_RUNNING, perf_event_attr,
};

use super::event::{Event, Mode};

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// A cgroup of the v2 hierarchy and those below it, on one CPU.
    Cgroup(BorrowedFd<'a>, u32),
    /// A thread and everything it will ever fork.
    Tree(i32),
}

/// From when on it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Now,
    /// When it is enabled.
    Later,
    /// When the process, which waits at its gate, executes its command.
    AtExec,
}

#[derive(Debug)]
pub struct Counter {
    fd: OwnedFd,
}

impl Counter {
    pub fn open(event: &Event, scope: Scope<'_>, begin: Begin) -> io::Result<Counter> {
        let mut attributes = perf_event_attr {
            type_: event.kind,
            size: size_of::<perf_event_attr>() as u32,
            config: event.config,
            read_format: u64::from(PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING),
            ..Default::default()
        };
        attributes.set_exclude_kernel(u64::from(event.mode == Mode::User));
        attributes.set_exclude_hv(u64::from(event.mode != Mode::Everywhere));
        attributes.set_exclude_user(u64::from(event.mode == Mode::Kernel));
        attributes.set_disabled(u64::from(begin != Begin::Now));
        attributes.set_enable_on_exec(u64::from(begin == Begin::AtExec));
        attributes.set_inherit(u64::from(matches!(scope, Scope::Tree(_))));
        let (target, cpu, flags) = match scope {
            Scope::Cgroup(dir, cpu) => (dir.as_raw_fd(), cpu as i32, PERF_FLAG_PID_CGROUP),
            Scope::Tree(tid) => (tid, -1, 0),
        };
        let flags = u64::from(PERF_FLAG_FD_CLOEXEC | flags);
        // SAFETY: the attributes are valid for the call.
        let fd = unsafe { sys::perf_event_open(&mut attributes, target, cpu, -1, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        Ok(Counter { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// One that another process opened; `None` if it is something else, whose reading might block.
    pub fn received(fd: OwnedFd) -> Option<Counter> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let target = rustix::fs::readlink(path, Vec::new()).ok()?;
        (target.as_bytes() == b"anon_inode:[perf_event]").then_some(Counter { fd })
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn begin(&self) {
        // SAFETY: plain request on a descriptor of ours.
        unsafe { sys::ioctls::ENABLE(self.fd.as_raw_fd(), 0) };
    }

    pub fn read(&self) -> io::Result<Count> {
        let mut bytes = [0; 24];
        let length = rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut bytes))?;
        // A counter that lost its place for good reads as nothing.
        Count::parse(&bytes[..length.min(24)]).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// A count, and in how much of its time it was counted: counters are fewer than events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub value: u64,
    pub enabled_ns: u64,
    pub running_ns: u64,
}

impl Count {
    pub fn parse(bytes: &[u8]) -> Option<Count> {
        let word = |index: usize| {
            let bytes = bytes.get(index * 8..index * 8 + 8)?;
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        Some(Count { value: word(0)?, enabled_ns: word(1)?, running_ns: word(2)? })
    }

    /// Of an event that needs no counter of the processor: it is counted whenever it happens, and the kernel's times,
    /// which may lag behind in a cgroup that was just switched to, say nothing about that.
    pub fn unshared(self) -> Count {
        Count { running_ns: self.enabled_ns, ..self }
    }

    /// As if it had been counted all the time; nothing where it never was.
    pub fn scaled(self) -> Option<i64> {
        let whole = match (self.enabled_ns, self.running_ns) {
            // No process ran there: nothing happened.
            (0, _) => u128::from(self.value),
            (_, 0) => return None,
            (enabled, running) => {
                u128::from(self.value) * u128::from(enabled) / u128::from(running.min(enabled))
            }
        };
        Some(i64::try_from(whole).unwrap_or(i64::MAX))
    }
}

/// The counts of one event on several CPUs or threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub count: i64,
    pub enabled_ns: u64,
    pub running_ns: u64,
}

impl Sum {
    /// Nothing where one cannot be read: a sum over the others would look like a total, and like a step back.
    pub fn of_all(counts: impl Iterator<Item = io::Result<Count>>) -> Option<Sum> {
        let counts: Vec<Count> = counts.collect::<io::Result<_>>().ok()?;
        Some(Sum::of(counts.into_iter()))
    }

    pub fn of(counts: impl Iterator<Item = Count>) -> Sum {
        let mut sum = Sum::default();
        for count in counts {
            sum.count = sum.count.saturating_add(count.scaled().unwrap_or(0));
            sum.enabled_ns = sum.enabled_ns.saturating_add(count.enabled_ns);
            sum.running_ns = sum.running_ns.saturating_add(count.running_ns.min(count.enabled_ns));
        }
        sum
    }

    /// With what was counted before, by counters that are closed.
    pub fn and(self, before: Sum) -> Sum {
        Sum {
            count: self.count.saturating_add(before.count),
            enabled_ns: self.enabled_ns.saturating_add(before.enabled_ns),
            running_ns: self.running_ns.saturating_add(before.running_ns),
        }
    }

    /// The share of the time in which it was counted; nothing where it never was.
    pub fn counted(&self) -> Option<f64> {
        match (self.enabled_ns, self.running_ns) {
            (0, _) => Some(1.0),
            (_, 0) => None,
            (enabled, running) => Some(running as f64 / enabled as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(value: u64, enabled_ns: u64, running_ns: u64) -> Count {
        Count { value, enabled_ns, running_ns }
    }

    #[test]
    fn what_needs_no_counter_is_not_scaled() {
        let count = Count { value: 760, enabled_ns: 10_000_000, running_ns: 31 };
        assert!(count.scaled().unwrap() > 200_000_000);
        assert_eq!(count.unshared().scaled(), Some(760));
        assert_eq!(Sum::of([count.unshared()].into_iter()).counted(), Some(1.0));
    }

    #[test]
    fn what_was_counted_half_of_the_time_is_doubled() {
        assert_eq!(count(10, 100, 50).scaled(), Some(20));
        assert_eq!(count(10, 100, 100).scaled(), Some(10));
        assert_eq!(count(0, 100, 0).scaled(), None, "never counted is not 0");
        assert_eq!(count(0, 0, 0).scaled(), Some(0), "nobody ran on that CPU");
        let sum = Sum::of([count(10, 100, 50), count(5, 100, 100), count(0, 0, 0)].into_iter());
        assert_eq!((sum.count, sum.counted()), (25, Some(0.75)));
    }

    #[test]
    fn a_counter_that_cannot_be_read_leaves_no_smaller_sum() {
        let count = |value| Ok(Count { value, enabled_ns: 1, running_ns: 1 });
        let lost = || Err(io::ErrorKind::UnexpectedEof.into());
        assert_eq!(Sum::of_all([count(1), count(2)].into_iter()).map(|sum| sum.count), Some(3));
        assert_eq!(Sum::of_all([count(1), lost()].into_iter()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_count_or_none(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let count = Count::parse(&bytes);
            prop_assert_eq!(count.is_some(), bytes.len() >= 24);
            if let Some(count) = count {
                let sum = Sum::of([count, count].into_iter());
                prop_assert!(sum.counted().is_none_or(|share| (0.0..=1.0).contains(&share)));
            }
        }
    }
}
