//! Standard output, which says what failed where when it cannot be written.

use std::io::{self, ErrorKind, IsTerminal, StdoutLock, Write};
use std::os::fd::{AsFd, BorrowedFd};

use crate::view::Style;

/// The standard output of a command, locked.
pub struct Output {
    stream: StdoutLock<'static>,
}

pub fn stdout() -> Output {
    Output { stream: io::stdout().lock() }
}

impl Output {
    pub fn style(&self) -> Style {
        Style::of_stream(&self.stream)
    }

    pub fn is_terminal(&self) -> bool {
        self.stream.is_terminal()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes).map_err(explained)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().map_err(explained)
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        // A reader that leaves early is no failure, and a write that is interrupted is tried again.
        ErrorKind::BrokenPipe | ErrorKind::Interrupted | ErrorKind::WouldBlock => error,
        kind => {
            let place = std::fs::read_link("/proc/self/fd/1").ok().filter(|path| path.is_absolute());
            let place = place.map_or_else(String::new, |path| format!(", {}", path.display()));
            let remedy =
                if is_full(kind) { "free space there or write elsewhere" } else { "write elsewhere" };
            io::Error::new(kind, format!("cannot write to standard output{place}: {error}; {remedy}"))
        }
    }
}

/// Whether there was no room for what was to be written.
pub fn is_full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_with_what_was_written_and_what_to_do() {
        let words = explained(ErrorKind::StorageFull.into()).to_string();
        assert!(words.starts_with("cannot write to standard output"), "{words}");
        assert!(words.ends_with("no storage space; free space there or write elsewhere"), "{words}");
        assert_eq!(explained(ErrorKind::StorageFull.into()).kind(), ErrorKind::StorageFull);
    }

    #[test]
    fn a_reader_that_has_gone_stays_known_as_such() {
        assert_eq!(explained(ErrorKind::BrokenPipe.into()).to_string(), "broken pipe");
    }
}
