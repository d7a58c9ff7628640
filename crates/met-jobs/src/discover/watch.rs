//! Notices of directories that are made, removed or change, by inotify.
//!
//! A reader of cgroups may wait a tenth of a second for a kernel lock, and meanwhile a user's directory can come
//! and go with a job in it. So one thread only takes notices, and at once watches directories made on the way to
//! jobs: their events are then reported even if they are gone when read.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::cgroup_layouts::{Captures, Segment};

/// Room for some hundred notices at a time.
const BUFFER_BYTES: usize = 64 << 10;
/// Kept until they are drained; the rest waits in the kernel.
const NOTICES_MAX: usize = 1 << 16;

/// A number that the kernel gives to what is watched; used once.
pub(crate) type Watch = i32;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Made {
        watch: Watch,
        name: OsString,
        /// By which the new directory is watched already.
        ahead: Option<Watch>,
    },
    Removed {
        watch: Watch,
        name: OsString,
    },
    /// A file has other contents.
    Changed {
        watch: Watch,
    },
    /// What was watched is gone, and the watch with it.
    Ended {
        watch: Watch,
    },
    /// There were more than the kernel keeps: everything must be read again.
    Overflow,
}

/// The names of directories, one below the other, that are watched as soon as they are made.
pub(crate) type Trail = Arc<[Segment]>;

/// A directory in which new ones are watched at once.
struct Lead {
    path: PathBuf,
    /// Each with how many of its names lead here.
    trails: Vec<(Trail, usize)>,
}

impl Lead {
    /// What is to be watched below a directory that was made in this one; `None` if it leads nowhere.
    fn below(&self, name: &OsStr) -> Option<Lead> {
        let fits = |(trail, at): &&(Trail, usize)| {
            let segment = trail.get(*at);
            segment.is_some_and(|segment| segment.capture(name.as_encoded_bytes(), &mut Captures::default()))
        };
        let trails: Vec<(Trail, usize)> =
            self.trails.iter().filter(fits).map(|(trail, at)| (Arc::clone(trail), at + 1)).collect();
        (!trails.is_empty()).then(|| Lead { path: self.path.join(name), trails })
    }
}

pub(crate) struct Watcher {
    /// `None` where the kernel grants none: everything is then found by looking.
    shared: Option<Arc<Shared>>,
    thread: Option<JoinHandle<()>>,
    /// Why something is not watched, the last time that happened.
    refused: Option<Errno>,
}

struct Shared {
    inotify: OwnedFd,
    /// Readable when there are notices.
    ready: OwnedFd,
    stop: OwnedFd,
    queue: Mutex<Queue>,
}

struct Queue {
    buffer: Vec<MaybeUninit<u8>>,
    notices: Vec<Notice>,
    leads: HashMap<Watch, Lead>,
    refused: Option<Errno>,
}

impl Watcher {
    pub(crate) fn new() -> Watcher {
        match Shared::open() {
            Ok(shared) => {
                let shared = Arc::new(shared);
                let for_thread = Arc::clone(&shared);
                let thread =
                    std::thread::Builder::new().name("notices".to_owned()).spawn(move || for_thread.run());
                // Without the thread, notices are taken when they are drained.
                Watcher { shared: Some(shared), thread: thread.ok(), refused: None }
            }
            Err(error) => Watcher { shared: None, thread: None, refused: Some(error) },
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        let shared = self.shared.as_ref()?;
        Some(if self.thread.is_some() { shared.ready.as_fd() } else { shared.inotify.as_fd() })
    }

    /// Whether some of what should be watched is not.
    pub(crate) fn refused(&self) -> Option<io::Error> {
        let ahead = self.shared.as_ref().and_then(|shared| shared.lock().refused);
        self.refused.or(ahead).map(io::Error::from)
    }

    /// Notices what is made and removed in a directory, and watches at once what is made along the trails.
    pub(crate) fn add_dir(&mut self, path: &Path, trails: Vec<Trail>) -> Option<Watch> {
        let shared = Arc::clone(self.shared.as_ref()?);
        // Held, so that nothing is taken from the new watch before its trails are known.
        let mut queue = shared.lock();
        let watch = self.add(&shared, path, DIRECTORY)?;
        if !trails.is_empty() {
            let trails = trails.into_iter().map(|trail| (trail, 0)).collect();
            queue.leads.insert(watch, Lead { path: path.to_path_buf(), trails });
        }
        Some(watch)
    }

    /// Watches a file for changes.
    pub(crate) fn add_file(&mut self, path: &Path) -> Option<Watch> {
        let shared = Arc::clone(self.shared.as_ref()?);
        self.add(&shared, path, WatchFlags::MODIFY)
    }

    fn add(&mut self, shared: &Shared, path: &Path, flags: WatchFlags) -> Option<Watch> {
        shared.watch(path, flags).unwrap_or_else(|error| {
            self.refused = Some(error);
            None
        })
    }

    pub(crate) fn remove(&mut self, watch: Watch) {
        if let Some(shared) = &self.shared {
            // The kernel removes it by itself when the directory is gone.
            let _ = inotify::remove_watch(&shared.inotify, watch);
            shared.lock().leads.remove(&watch);
        }
    }

    /// How many notices wait to be acted on.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.shared.as_ref().map_or(0, |shared| shared.lock().notices.len())
    }

    /// What has been noticed since the last call, in order.
    pub(crate) fn drain(&mut self) -> Vec<Notice> {
        let Some(shared) = &self.shared else { return Vec::new() };
        // Empty if nothing was signalled.
        let _ = rustix::io::read(&shared.ready, &mut [0; 8]);
        let mut queue = shared.lock();
        queue.take(shared);
        std::mem::take(&mut queue.notices)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            let _ = rustix::io::write(&shared.stop, &1u64.to_ne_bytes());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const DIRECTORY: WatchFlags =
    WatchFlags::CREATE.union(WatchFlags::DELETE).union(WatchFlags::ONLYDIR).union(WatchFlags::DONT_FOLLOW);

impl Shared {
    fn open() -> Result<Shared, Errno> {
        let signal = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let queue = Queue {
            buffer: vec![MaybeUninit::uninit(); BUFFER_BYTES],
            notices: Vec::new(),
            leads: HashMap::new(),
            refused: None,
        };
        Ok(Shared {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            ready: signal()?,
            stop: signal()?,
            queue: Mutex::new(queue),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes notices as they come, until `stop` is signalled.
    fn run(&self) {
        loop {
            let mut fds = [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            // An interrupted wait is one that was short.
            let waited = poll(&mut fds, None).is_ok();
            if waited && !fds[1].revents().is_empty() {
                return;
            }
            let is_full = {
                let mut queue = self.lock();
                queue.take(self);
                queue.notices.len() >= NOTICES_MAX
            };
            let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
            if is_full {
                // The consumer is far behind, and takes the rest itself.
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }

    /// `None` for what is gone already, which needs no watch.
    fn watch(&self, path: &Path, flags: WatchFlags) -> Result<Option<Watch>, Errno> {
        match inotify::add_watch(&self.inotify, path, flags) {
            Ok(watch) => Ok(Some(watch)),
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Queue {
    /// Takes what the kernel has noticed up to now.
    fn take(&mut self, shared: &Shared) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut reader = Reader::new(&shared.inotify, &mut buffer);
        while self.notices.len() < NOTICES_MAX {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            let (watch, flags) = (event.wd(), event.events());
            let name = || event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.notices.push(Notice::Overflow);
            } else if flags.contains(ReadFlags::IGNORED) {
                self.leads.remove(&watch);
                self.notices.push(Notice::Ended { watch });
            } else if flags.contains(ReadFlags::MODIFY) {
                self.notices.push(Notice::Changed { watch });
            } else if let Some(name) = name().filter(|_| flags.contains(ReadFlags::ISDIR)) {
                let made = flags.contains(ReadFlags::CREATE);
                let notice = match made {
                    true => Notice::Made { watch, ahead: self.go_ahead(shared, watch, &name), name },
                    false => Notice::Removed { watch, name },
                };
                self.notices.push(notice);
            }
        }
        self.buffer = buffer;
    }

    /// Watches a new directory if it is on a trail.
    fn go_ahead(&mut self, shared: &Shared, watch: Watch, name: &OsStr) -> Option<Watch> {
        let below = self.leads.get(&watch)?.below(name)?;
        let ahead = shared.watch(&below.path, DIRECTORY).unwrap_or_else(|error| {
            self.refused = Some(error);
            None
        })?;
        self.leads.insert(ahead, below);
        Some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_come_and_go_are_noticed_in_order() {
        let root = tempfile::tempdir().unwrap();
        let mut watcher = Watcher::new();
        let watch = watcher.add_dir(root.path(), Vec::new()).unwrap();
        std::fs::create_dir(root.path().join("a\nb")).unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        std::fs::remove_dir(root.path().join("a\nb")).unwrap();
        let name = || OsString::from("a\nb");
        let made = Notice::Made { watch, name: name(), ahead: None };
        assert_eq!(watcher.drain(), [made, Notice::Removed { watch, name: name() }]);
        assert!(watcher.drain().is_empty());
        let nowhere = root.path().join("nowhere");
        assert!(watcher.add_dir(&nowhere, Vec::new()).is_none() && watcher.refused().is_none());
    }

    /// Until the thread has taken this many notices, all of them.
    fn wait_for(watcher: &Watcher, count: usize) {
        let begin = std::time::Instant::now();
        while watcher.waiting() < count {
            assert!(begin.elapsed().as_secs() < 20, "the notices were not taken");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_directory_on_a_trail_is_watched_at_once() {
        let root = tempfile::tempdir().unwrap();
        let mut watcher = Watcher::new();
        let trail: Trail = [Segment::literal(b"users"), Segment::literal(b"one")].into();
        let top = watcher.add_dir(root.path(), vec![trail]).unwrap();
        let users = root.path().join("users");
        std::fs::create_dir(&users).unwrap();
        wait_for(&watcher, 1);
        std::fs::create_dir(users.join("one")).unwrap();
        wait_for(&watcher, 2);
        std::fs::create_dir(users.join("one/job")).unwrap();
        wait_for(&watcher, 3);
        std::fs::remove_dir_all(&users).unwrap();
        let notices = watcher.drain();
        let [Notice::Made { watch, ahead: Some(in_users), .. }, Notice::Made { ahead: Some(in_one), .. }, ..] =
            notices[..]
        else {
            panic!("not watched ahead: {notices:?}");
        };
        assert_eq!(watch, top);
        let job = || OsString::from("job");
        assert_eq!(notices[2], Notice::Made { watch: in_one, name: job(), ahead: None });
        assert!(notices.contains(&Notice::Removed { watch: in_one, name: job() }), "{notices:?}");
        assert!(notices.contains(&Notice::Removed { watch: in_users, name: "one".into() }), "{notices:?}");
    }
}
