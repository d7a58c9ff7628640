//! Notices of directories that are made, removed or change, by inotify.

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Room for some hundred notices at a time.
const BUFFER_BYTES: usize = 64 << 10;
/// Read before anything is done about them; the rest waits in the kernel.
const NOTICES_MAX: usize = 1 << 16;

/// A number that the kernel gives to what is watched; used once.
pub(crate) type Watch = i32;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Made {
        watch: Watch,
        name: OsString,
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

pub(crate) struct Watcher {
    /// `None` where the kernel grants none: everything is then found by looking.
    inotify: Option<OwnedFd>,
    buffer: Vec<MaybeUninit<u8>>,
    watches: usize,
    /// Why something is not watched, the last time that happened.
    refused: Option<Errno>,
}

impl Watcher {
    pub(crate) fn new() -> Watcher {
        let opened = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        Watcher {
            refused: opened.as_ref().err().copied(),
            inotify: opened.ok(),
            buffer: vec![MaybeUninit::uninit(); BUFFER_BYTES],
            watches: 0,
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(|inotify| inotify.as_fd())
    }

    pub(crate) fn count(&self) -> usize {
        self.watches
    }

    /// Whether some of what should be watched is not.
    pub(crate) fn refused(&self) -> Option<io::Error> {
        self.refused.map(io::Error::from)
    }

    /// Notices what is made and removed in a directory.
    pub(crate) fn add_dir(&mut self, path: &Path) -> Option<Watch> {
        self.add(
            path,
            WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW,
        )
    }

    /// Notices changes that the kernel tells of a file.
    pub(crate) fn add_file(&mut self, path: &Path) -> Option<Watch> {
        self.add(path, WatchFlags::MODIFY)
    }

    fn add(&mut self, path: &Path, flags: WatchFlags) -> Option<Watch> {
        match inotify::add_watch(self.inotify.as_ref()?, path, flags) {
            Ok(watch) => {
                self.watches += 1;
                Some(watch)
            }
            // What is gone already needs no watch.
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR) => None,
            Err(error) => {
                self.refused = Some(error);
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, watch: Watch) {
        if let Some(inotify) = &self.inotify {
            self.watches = self.watches.saturating_sub(1);
            // The kernel removes it by itself when the directory is gone.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    /// The kernel took a watch away by itself.
    pub(crate) fn ended(&mut self) {
        self.watches = self.watches.saturating_sub(1);
    }

    /// What has been noticed since the last call, in order.
    pub(crate) fn drain(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        let Some(inotify) = &self.inotify else { return notices };
        let mut reader = Reader::new(inotify, &mut self.buffer);
        while notices.len() < NOTICES_MAX {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            let (watch, flags) = (event.wd(), event.events());
            let name = || event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                notices.push(Notice::Overflow);
            } else if flags.contains(ReadFlags::IGNORED) {
                notices.push(Notice::Ended { watch });
            } else if flags.contains(ReadFlags::MODIFY) {
                notices.push(Notice::Changed { watch });
            } else if let Some(name) = name().filter(|_| flags.contains(ReadFlags::ISDIR)) {
                let made = flags.contains(ReadFlags::CREATE);
                notices.push(match made {
                    true => Notice::Made { watch, name },
                    false => Notice::Removed { watch, name },
                });
            }
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_come_and_go_are_noticed_in_order() {
        let root = tempfile::tempdir().unwrap();
        let mut watcher = Watcher::new();
        let watch = watcher.add_dir(root.path()).unwrap();
        std::fs::create_dir(root.path().join("a\nb")).unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        std::fs::remove_dir(root.path().join("a\nb")).unwrap();
        let name = || OsString::from("a\nb");
        let expected = [Notice::Made { watch, name: name() }, Notice::Removed { watch, name: name() }];
        assert_eq!(watcher.drain(), expected);
        assert!(watcher.drain().is_empty());
        assert!(watcher.add_dir(&root.path().join("nowhere")).is_none() && watcher.refused().is_none());
    }
}
