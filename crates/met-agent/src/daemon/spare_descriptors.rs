//! Descriptors that are held for the moment in which there are no others.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

/// A record is read with one, and a connection needs one.
const COUNT: usize = 4;
const WARN_EVERY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Spare {
    held: Vec<OwnedFd>,
    warned: Option<Instant>,
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

    /// Whether the lack of others is worth a line in the log: once a minute.
    pub fn is_news(&mut self) -> bool {
        let is_news = self.warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY);
        if is_news {
            self.warned = Some(Instant::now());
        }
        is_news
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

    /// The same for an error caused by a lack of descriptors.
    pub fn try_with<T>(&mut self, attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let is_exhausted = |result: &io::Result<T>| {
            let number = result.as_ref().err().and_then(io::Error::raw_os_error);
            matches!(number, Some(libc::EMFILE | libc::ENFILE))
        };
        self.read_with(attempt, is_exhausted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_for_lack_of_descriptors_is_tried_again_with_these() {
        let mut spare = Spare::hold();
        let mut tries = 0;
        let opened = spare.try_with(|| {
            tries += 1;
            match tries {
                1 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
                _ => Ok(tries),
            }
        });
        assert_eq!((opened.unwrap(), spare.held.len()), (2, COUNT));
        let denied = spare.try_with(|| {
            tries += 1;
            Err::<(), _>(io::Error::from_raw_os_error(libc::EACCES))
        });
        assert_eq!((denied.is_err(), tries), (true, 3), "other errors are final");
    }
}
