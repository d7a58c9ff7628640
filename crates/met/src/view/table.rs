//! Lists of jobs.

use met_core::job::Record;

use super::Style;

/// Which columns a list has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    Jobs,
    Cpu,
    Io,
    Mem,
    All,
}

impl View {
    pub const ALL: [View; 5] = [View::Jobs, View::Cpu, View::Io, View::Mem, View::All];

    pub fn name(self) -> &'static str {
        match self {
            View::Jobs => "jobs",
            View::Cpu => "cpu",
            View::Io => "io",
            View::Mem => "mem",
            View::All => "all",
        }
    }

    pub fn parse(name: &str) -> Option<View> {
        View::ALL.into_iter().find(|view| view.name() == name)
    }
}

pub fn list(records: &[Record], view: View, now_ns: i64, style: &Style) -> String {
    let _ = (records, view, now_ns, style);
    String::new()
}

pub fn csv(records: &[Record], view: View, now_ns: i64) -> String {
    let _ = (records, view, now_ns);
    String::new()
}
