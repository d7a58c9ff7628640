//! Standard output, which says what failed where when it cannot be written.

use std::io::{self, ErrorKind, IsTerminal, StdoutLock, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::Result;
use met_agent::timeout::patiently;

use crate::view::Style;
use met_config::Failure;

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

    /// Keeps a text on the screen that is drawn again and again. Ends only with an error.
    pub fn keep_on_screen(
        &mut self,
        every: Duration,
        mut text: impl FnMut(&Style) -> Result<String>,
    ) -> Result<i32> {
        if !self.is_terminal() {
            return Err(Failure::usage("--watch needs a terminal; leave it out to print once"));
        }
        write!(self, "\x1b[2J")?;
        loop {
            let text = text(&self.style())?;
            let size = rustix::termios::tcgetwinsize(&self);
            // A terminal that does not know its size says 0.
            let rows = size.map_or(0, |size| usize::from(size.ws_row));
            let rows = if rows == 0 { usize::MAX } else { rows };
            // Drawn over the old one line by line: a cleared screen flickers. What does not fit is left out.
            let shown = text.lines().take(rows.saturating_sub(1));
            let lines = shown.map(|line| format!("{line}\x1b[K\n")).collect::<String>();
            write!(self, "\x1b[H{lines}\x1b[J")?;
            self.flush()?;
            std::thread::sleep(every);
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        patiently(&mut self.stream, |stream| stream.write(bytes)).map_err(explained)
    }

    fn flush(&mut self) -> io::Result<()> {
        patiently(&mut self.stream, Write::flush).map_err(explained)
    }
}

impl Drop for Output {
    /// At exit, nothing would wait for a slow reader.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The reader of our output has closed it, which is not a failure. Other broken pipes are.
#[derive(Debug, thiserror::Error)]
#[error("broken pipe")]
struct ReaderGone;

/// Whether a command ended because its output was closed.
pub fn is_reader_gone(error: &anyhow::Error) -> bool {
    let marked = |cause: &(dyn std::error::Error + 'static)| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.is_some_and(|inner| inner.is::<ReaderGone>())
    };
    error.chain().any(marked)
}

fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::BrokenPipe => io::Error::new(ErrorKind::BrokenPipe, ReaderGone),
        // `write_all` retries a write that is interrupted.
        ErrorKind::Interrupted => error,
        kind => {
            let place = std::fs::read_link("/proc/self/fd/1").ok().filter(|path| path.is_absolute());
            let place = place.map_or_else(String::new, |path| format!(", {}", path.display()));
            let remedy = if met_config::paths::is_full(kind) {
                "free space there or write elsewhere"
            } else {
                "write elsewhere"
            };
            io::Error::new(kind, format!("cannot write to standard output{place}: {error}; {remedy}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_with_what_was_written_and_what_to_do() {
        let words = explained(ErrorKind::StorageFull.into()).to_string();
        assert!(words.starts_with("cannot write to standard output"), "{words}");
        assert!(words.ends_with("no storage space; free space there or write elsewhere"), "{words}");
        assert_eq!(explained(ErrorKind::StorageFull.into()).kind(), ErrorKind::StorageFull);
    }

    #[test]
    fn a_reader_that_has_gone_stays_known_as_such_and_no_other_pipe_is_taken_for_it() {
        let gone = explained(ErrorKind::BrokenPipe.into());
        assert_eq!((gone.kind(), gone.to_string().as_str()), (ErrorKind::BrokenPipe, "broken pipe"));
        assert!(is_reader_gone(&anyhow::Error::from(gone).context("listing")));
        let other = io::Error::from(ErrorKind::BrokenPipe);
        assert!(!is_reader_gone(&anyhow::Error::from(other).context("the supervisor ended at once")));
    }
}
