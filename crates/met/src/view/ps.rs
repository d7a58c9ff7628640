//! The processes of a job as a tree.

use super::Style;

/// One process as it is now. What could not be read is `None`, not 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessLine {
    pub pid: u32,
    pub ppid: u32,
    pub user: Option<String>,
    /// The kernel's letter: R, S, D, T, Z.
    pub state: char,
    pub cpu_seconds: Option<f64>,
    /// Of one core, over the last interval or the process's life.
    pub cpu_percent: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub threads: Option<u64>,
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
    pub command: Vec<String>,
}

pub fn tree(lines: &[ProcessLine], style: &Style) -> String {
    let _ = (lines, style);
    String::new()
}
