//! Notices of directories that are made, removed or change, by inotify.
//!
//! Whoever looks into cgroups may wait a tenth of a second for a lock of the kernel, and meanwhile a user's
//! directory can come and go with a job in it. So a thread does nothing but take notices, and watches at once
//! what is made on the way to jobs: what happens in there is then told, though it is gone when it is looked at.

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
/// Kept until somebody acts on them; the rest waits in the kernel.
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
    /// There were more than the kernel keeps: whatever happened must be looked up.
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
    ears: Option<Arc<Ears>>,
    thread: Option<JoinHandle<()>>,
    /// Why something is not watched, the last time that happened.
    refused: Option<Errno>,
}

struct Ears {
    inotify: OwnedFd,
    /// Readable when there are notices.
    told: OwnedFd,
    stop: OwnedFd,
    heard: Mutex<Heard>,
}

struct Heard {
    buffer: Vec<MaybeUninit<u8>>,
    notices: Vec<Notice>,
    leads: HashMap<Watch, Lead>,
    refused: Option<Errno>,
}

impl Watcher {
    pub(crate) fn new() -> Watcher {
        match Ears::open() {
            Ok(ears) => {
                let ears = Arc::new(ears);
                let theirs = Arc::clone(&ears);
                let thread =
                    std::thread::Builder::new().name("notices".to_owned()).spawn(move || theirs.listen());
                // Without the thread notices are taken when somebody asks for them.
                Watcher { ears: Some(ears), thread: thread.ok(), refused: None }
            }
            Err(error) => Watcher { ears: None, thread: None, refused: Some(error) },
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        let ears = self.ears.as_ref()?;
        Some(if self.thread.is_some() { ears.told.as_fd() } else { ears.inotify.as_fd() })
    }

    /// Whether some of what should be watched is not.
    pub(crate) fn refused(&self) -> Option<io::Error> {
        let ahead = self.ears.as_ref().and_then(|ears| ears.lock().refused);
        self.refused.or(ahead).map(io::Error::from)
    }

    /// Notices what is made and removed in a directory, and watches at once what is made along the trails.
    pub(crate) fn add_dir(&mut self, path: &Path, trails: Vec<Trail>) -> Option<Watch> {
        let ears = Arc::clone(self.ears.as_ref()?);
        // Held, so that nothing is taken from the new watch before its trails are known.
        let mut heard = ears.lock();
        let watch = self.add(&ears, path, DIRECTORY)?;
        if !trails.is_empty() {
            let trails = trails.into_iter().map(|trail| (trail, 0)).collect();
            heard.leads.insert(watch, Lead { path: path.to_path_buf(), trails });
        }
        Some(watch)
    }

    /// Notices changes that the kernel tells of a file.
    pub(crate) fn add_file(&mut self, path: &Path) -> Option<Watch> {
        let ears = Arc::clone(self.ears.as_ref()?);
        self.add(&ears, path, WatchFlags::MODIFY)
    }

    fn add(&mut self, ears: &Ears, path: &Path, flags: WatchFlags) -> Option<Watch> {
        ears.watch(path, flags).unwrap_or_else(|error| {
            self.refused = Some(error);
            None
        })
    }

    pub(crate) fn remove(&mut self, watch: Watch) {
        if let Some(ears) = &self.ears {
            // The kernel removes it by itself when the directory is gone.
            let _ = inotify::remove_watch(&ears.inotify, watch);
            ears.lock().leads.remove(&watch);
        }
    }

    /// How many notices wait to be acted on.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.ears.as_ref().map_or(0, |ears| ears.lock().notices.len())
    }

    /// What has been noticed since the last call, in order.
    pub(crate) fn drain(&mut self) -> Vec<Notice> {
        let Some(ears) = &self.ears else { return Vec::new() };
        // Empty if nothing was told.
        let _ = rustix::io::read(&ears.told, &mut [0; 8]);
        let mut heard = ears.lock();
        heard.hear(ears);
        std::mem::take(&mut heard.notices)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(ears) = &self.ears {
            let _ = rustix::io::write(&ears.stop, &1u64.to_ne_bytes());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const DIRECTORY: WatchFlags =
    WatchFlags::CREATE.union(WatchFlags::DELETE).union(WatchFlags::ONLYDIR).union(WatchFlags::DONT_FOLLOW);

impl Ears {
    fn open() -> Result<Ears, Errno> {
        let signal = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let heard = Heard {
            buffer: vec![MaybeUninit::uninit(); BUFFER_BYTES],
            notices: Vec::new(),
            leads: HashMap::new(),
            refused: None,
        };
        Ok(Ears {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            told: signal()?,
            stop: signal()?,
            heard: Mutex::new(heard),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes notices as they come, until told to stop.
    fn listen(&self) {
        loop {
            let mut fds = [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            // An interrupted wait is one that was short.
            let waited = poll(&mut fds, None).is_ok();
            if waited && !fds[1].revents().is_empty() {
                return;
            }
            let is_full = {
                let mut heard = self.lock();
                heard.hear(self);
                heard.notices.len() >= NOTICES_MAX
            };
            let _ = rustix::io::write(&self.told, &1u64.to_ne_bytes());
            if is_full {
                // Whoever acts on them is behind by far, and takes the rest himself.
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

impl Heard {
    /// Takes what the kernel has noticed up to now.
    fn hear(&mut self, ears: &Ears) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut reader = Reader::new(&ears.inotify, &mut buffer);
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
                    true => Notice::Made { watch, ahead: self.go_ahead(ears, watch, &name), name },
                    false => Notice::Removed { watch, name },
                };
                self.notices.push(notice);
            }
        }
        self.buffer = buffer;
    }

    /// Watches a new directory if it is on a trail.
    fn go_ahead(&mut self, ears: &Ears, watch: Watch, name: &OsStr) -> Option<Watch> {
        let below = self.leads.get(&watch)?.below(name)?;
        let ahead = ears.watch(&below.path, DIRECTORY).unwrap_or_else(|error| {
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
    fn what_is_made_on_a_trail_is_watched_before_anybody_asks() {
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
