//! Jobs of cgroup v1 that run out of memory. The kernel counts kills only in the cgroup of the process, which
//! is gone a moment later; so an event is registered for each cgroup.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// Events taken in one call; the rest is taken by the next.
const RINGS_MAX: usize = 64;
/// Marks the notices of directories.
const NOTICES: u64 = u64::MAX;

/// Everything that is waited for, in one descriptor.
pub(crate) struct Ear {
    epoll: OwnedFd,
}

impl Ear {
    pub(crate) fn new(notices: Option<BorrowedFd<'_>>) -> io::Result<Ear> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        if let Some(notices) = notices {
            epoll::add(&epoll, notices, EventData::new_u64(NOTICES), EventFlags::IN)?;
        }
        Ok(Ear { epoll })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The nodes of the jobs whose bell rang.
    pub(crate) fn rung(&self) -> Vec<u32> {
        let mut events = Vec::with_capacity(RINGS_MAX);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now));
        let nodes = events.iter().filter(|_| waited.is_ok()).map(|event| event.data.u64());
        nodes.filter_map(|node| u32::try_from(node).ok()).collect()
    }
}

/// One job's bell, which rings for each of its cgroups that runs out of memory, and once when it is removed.
pub(crate) struct Bell {
    bell: OwnedFd,
    /// By node, the cgroups that ring it.
    pub(crate) hung: HashMap<u32, PathBuf>,
    /// Those that rang it and are forgotten.
    taken_down: u64,
    rings: u64,
}

impl Bell {
    pub(crate) fn new(ear: &Ear, node: u32) -> Option<Bell> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        epoll::add(&ear.epoll, &bell, EventData::new_u64(u64::from(node)), EventFlags::IN).ok()?;
        Some(Bell { bell, hung: HashMap::new(), taken_down: 0, rings: 0 })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.bell
    }

    /// A cgroup is gone: it has rung for that, or will.
    pub(crate) fn take_down(&mut self, node: u32) {
        self.taken_down += u64::from(self.hung.remove(&node).is_some());
    }

    /// Whether it rang more often than its cgroups were removed.
    pub(crate) fn is_alarm(&mut self, is_there: impl Fn(&PathBuf) -> bool) -> bool {
        let mut count = [0; 8];
        if rustix::io::read(&self.bell, &mut count).is_ok() {
            self.rings = self.rings.saturating_add(u64::from_ne_bytes(count));
        }
        // Checked after the reading: a cgroup that still exists has not signalled its removal before it.
        let removed = self.hung.values().filter(|path| !is_there(path)).count();
        self.rings > self.taken_down.saturating_add(removed as u64)
    }
}
