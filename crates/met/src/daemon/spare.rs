//! Descriptors that are held for the moment in which there are no others.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

/// A record is read with one, and a connection needs one.
const COUNT: usize = 4;

#[derive(Default)]
pub struct Spare {
    held: Vec<OwnedFd>,
}

impl Spare {
    pub fn hold() -> Spare {
        let mut spare = Spare::default();
        spare.fill();
        spare
    }

    fn fill(&mut self) {
        while self.held.len() < COUNT {
            match rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
                Ok(fd) => self.held.push(fd),
                Err(_) => return,
            }
        }
    }

    /// Does it once more with these descriptors if it failed.
    pub fn read_with<T>(&mut self, mut attempt: impl FnMut() -> T, has_failed: impl Fn(&T) -> bool) -> T {
        let first = attempt();
        if !has_failed(&first) {
            return first;
        }
        self.held.clear();
        let second = attempt();
        self.fill();
        second
    }

    /// The same where a lack of descriptors says so.
    pub fn try_with<T>(&mut self, attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let is_exhausted = |result: &io::Result<T>| {
            let number = result.as_ref().err().and_then(io::Error::raw_os_error);
            matches!(number, Some(libc::EMFILE | libc::ENFILE))
        };
        self.read_with(attempt, is_exhausted)
    }
}
