//! For tests only: how a test that cannot run on this machine reports that.

use std::fmt::Display;
use std::io::Write;

/// One line with the name of the test, past the capture of its output: `scripts/test` counts these lines.
pub fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}
