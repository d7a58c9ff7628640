//! Reads the machine, one file per interface. A source knows cgroups and processes, and no jobs.
//!
//! To add one: a file with its table, its [`SourceSpec`] and its [`Source`], and one word in [`SOURCES`].

mod background;
pub mod block;
pub mod cgroup;
mod command;
pub mod cpufreq;
pub mod cray;
mod drm;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod heartbeat;
pub mod hwmon;
pub mod infiniband;
pub mod ipmi;
pub mod lustre;
pub mod meter;
pub mod network;
pub mod nfs;
pub mod node;
pub mod numa;
mod nvidia;
mod option;
pub mod perf;
pub mod process;
pub mod rapl;
pub mod redfish;
mod row_parts;
mod runner;
pub mod self_cost;
mod sysfs;
pub mod taskstats;
pub mod thermal;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use met_core::chart::MachineChart;
use met_core::node_block::{NodeBlock, Sensor};
use met_core::{Batch, DETAIL, JOB, Table};
use met_host::Host;

pub use nvidia::SPEC as NVIDIA;
/// Shown for a driver that does not return from a call.
pub const NO_ANSWER: &str = nvidia::NO_ANSWER;

pub use heartbeat::{At, Heartbeat};
pub use met_host::{CgroupTarget, Targets, TaskRole, TaskTarget};
pub use option::{Choice, SourceOption};
pub use runner::{Fault, NewError, NodeSource, Runner, Wrong};

/// All sources in order of precedence: of two that feed the same figure of a job, the first is believed.
pub static SOURCES: &[&SourceSpec] = &[
    &cgroup::SPEC,
    &process::SPEC,
    &taskstats::SPEC,
    &perf::SPEC,
    &nvidia::SPEC,
    &drm::SPEC,
    &node::SPEC,
    &cpufreq::SPEC,
    &numa::SPEC,
    &block::SPEC,
    &network::SPEC,
    &infiniband::SPEC,
    &lustre::SPEC,
    &nfs::SPEC,
    &rapl::SPEC,
    &cray::SPEC,
    &ipmi::SPEC,
    &redfish::SPEC,
    &hwmon::SPEC,
    &thermal::SPEC,
];

/// Of several meters of the whole node, and of several that separate processors from memory, the first is believed: counters
/// of the processors and the blade, then what controllers say, then a sensor.
pub static METERS: &[&meter::Meter] =
    &[&rapl::METER, &cray::METER, &ipmi::METER, &redfish::METER, &hwmon::METER];

/// What `met node` shows of tables, in this order, in more words than their charts say. Tables of other sources are shown
/// by their charts.
pub static NODE_BLOCKS: &[&NodeBlock] = &[
    &node::CPU_BLOCK,
    &cpufreq::BLOCK,
    &node::MEMORY_BLOCK,
    &node::PRESSURE_BLOCK,
    &numa::BLOCK,
    &block::BLOCK,
    &network::BLOCK,
    &infiniband::BLOCK,
    &lustre::BLOCK,
    &nfs::BLOCK,
];

/// Sensors that are not named by all their labels.
pub static SENSORS: &[&Sensor] = &[&rapl::SENSOR, &hwmon::SENSOR, &thermal::SENSOR];

/// Every table, in the order of the documentation.
pub fn catalogue() -> Vec<&'static Table> {
    let of_sources = SOURCES.iter().flat_map(|spec| spec.tables.iter().copied());
    let mut tables: Vec<&'static Table> = Vec::new();
    for table in [&JOB, &DETAIL].into_iter().chain(of_sources).chain([&self_cost::TABLE]) {
        // Sources of the same thing, such as GPUs of several makers, fill the same table.
        if !tables.iter().any(|known| std::ptr::eq(*known, table)) {
            tables.push(table);
        }
    }
    tables
}

/// Whether a table of this name has this column. A foreign format that names columns by text asks in a constant: a
/// misspelt name does not compile.
pub const fn has_column(table: &str, column: &str) -> bool {
    let mut found = names(&JOB, table, column) || names(&DETAIL, table, column);
    let mut source = 0;
    while source < SOURCES.len() {
        let tables = SOURCES[source].tables;
        let mut at = 0;
        while at < tables.len() {
            found |= names(tables[at], table, column);
            at += 1;
        }
        source += 1;
    }
    found
}

const fn names(known: &Table, table: &str, column: &str) -> bool {
    let (mut found, mut at) = (false, 0);
    while is_same(known.name, table) && at < known.columns.len() {
        found |= is_same(known.columns[at].name, column);
        at += 1;
    }
    found
}

/// Two texts cannot be compared with `==` in a constant.
const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// The table that a file or another program means by this name.
pub fn table(name: &str) -> Option<&'static Table> {
    catalogue().into_iter().find(|table| table.name == name)
}

/// What is drawn of a machine, in the order of pages and plots: of the machine itself, then of its devices.
pub fn charts() -> Vec<&'static MachineChart> {
    let of_devices = SOURCES.iter().filter(|spec| !std::ptr::eq(**spec, &node::SPEC));
    let mut charts: Vec<&'static MachineChart> = Vec::new();
    for chart in [&node::SPEC].into_iter().chain(of_devices.copied()).flat_map(|spec| spec.charts) {
        // GPUs of several makers have the same.
        let is_same = |known: &&MachineChart| (known.id, known.table.name) == (chart.id, chart.table.name);
        if !charts.iter().any(is_same) {
            charts.push(chart);
        }
    }
    charts.sort_by_key(|chart| chart.rank());
    charts
}

/// What can be said of a source without a machine.
#[derive(Debug)]
pub struct SourceSpec {
    pub name: &'static str,
    pub help: &'static str,
    pub pace: Pace,
    pub tables: &'static [&'static Table],
    /// What people see of the machine over time. Where its tables have no entry in [`NODE_BLOCKS`], `met node` shows these.
    pub charts: &'static [MachineChart],
    /// What a user may set for this source alone.
    pub options: &'static [SourceOption],
    pub open: fn(&Host, &Options) -> Opened,
}

/// How often a source is read, and by whom. The periods are defaults, which a user may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At every tick: it measures jobs.
    Tick,
    /// By a tick, so often: it measures the machine.
    Every(Duration),
    /// As before, by a thread of its own, because a reading may take more than a millisecond. It has no
    /// targets.
    Apart(Duration),
}

impl Pace {
    /// The time between two readings; nothing for what is read at every tick.
    pub fn period(self) -> Option<Duration> {
        match self {
            Pace::Tick => None,
            Pace::Every(period) | Pace::Apart(period) => Some(period),
        }
    }
}

pub type Opened = Result<Box<dyn Source>, Unavailable>;

/// What a user may choose about the sources.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The library of the NVIDIA driver, where it is not found by itself.
    pub nvml_library: Option<PathBuf>,
    /// Events to count in every job.
    pub events: Vec<String>,
    /// How long opening a source may take. What is not ready by then is read as soon as it is.
    pub timeout: Duration,
    /// The time between two ticks, as far as it is known: what is older than some of them is not of now.
    pub interval: Duration,
    /// Of these alone; `None` is all of them.
    pub only: Option<&'static [&'static str]>,
    /// Also those that watch the machine rather than its jobs.
    pub node: bool,
    /// Settings of single sources, by their names.
    pub choices: HashMap<&'static str, Choice>,
    /// The longest time between two readings, for a caller that reads only for a moment.
    pub period_max: Option<Duration>,
    pub driver_calls: DriverCalls,
    /// Sources that are not opened, because a reading of them has hung.
    pub left_out: Vec<&'static str>,
    /// Shows the watchdog what the reader is doing.
    pub heartbeat: Arc<Heartbeat>,
}

/// Who calls a driver that may never answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverCalls {
    /// A thread of the source's own: the reader is never blocked.
    #[default]
    Apart,
    /// The reader. Cheaper, for a thread that is replaced if that blocks it.
    Direct,
}

pub trait Source: Send {
    /// A tick begins: what a thread of its own is to read for it may be asked for now. Whether it was.
    fn begin(&mut self) -> bool {
        false
    }

    /// Adds to `out`, one empty batch for each of the source's tables, what `targets` show now.
    ///
    /// A target that vanished has no row and is no error.
    fn read(&mut self, targets: &Targets, tick: &TickInfo, out: &mut [Batch]) -> Result<(), ReadError>;

    /// The labels of its rows by their part, in the order of the table's labels. Those of GPUs hold for the
    /// last reading, those of all others for good.
    fn labels(&self) -> &[Vec<String>] {
        &[]
    }

    /// What it cannot measure on this machine, though it works.
    fn shortfall(&self) -> Option<Shortfall> {
        None
    }

    /// Labels for which there can be no rows, each with the reason.
    fn missing(&self) -> Vec<(&str, &str)> {
        Vec::new()
    }

    /// Whether the last call of `read` brought a reading: between two readings of a thread it does not.
    fn has_read(&self) -> bool {
        true
    }

    /// What is there and could not be read last time.
    fn unread(&self) -> Vec<Unread> {
        Vec::new()
    }

    /// Asks a thread of its own for a reading and waits for it.
    fn wait(&mut self, _timeout: Duration) {}

    /// Ticks come by another period from now on.
    fn set_interval(&mut self, _interval: Duration) {}

    /// CPU time of a thread that reads for ticks while they wait: a part of what reading costs.
    fn errand_cpu_ns(&self) -> i64 {
        0
    }

    /// CPU time of threads of its own, apart from that.
    fn background_cpu_ns(&self) -> i64 {
        0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TickInfo {
    /// Read also what is expensive and changes little: every tenth tick.
    pub slow: bool,
    /// Leave the processes out: their jobs are counted by cgroups, and they are many.
    pub cgroups_only: bool,
    /// Some targets are not read, and what is known of those stays.
    pub partial: bool,
    /// How many GPUs the other sources have counted, if they know.
    pub gpus: Option<i64>,
}

impl TickInfo {
    /// Of all targets, with what is expensive or without.
    pub const fn of(slow: bool) -> TickInfo {
        TickInfo { slow, cgroups_only: false, partial: false, gpus: None }
    }
}

/// Why a source has nothing to say on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The machine has no such thing.
    Absent(String),
    /// It is read only if it is configured; `enable` says how.
    Unset { what: &'static str, enable: &'static str },
    /// It has, and `need` would make it readable.
    Denied { path: String, need: &'static str },
    /// It has, and it cannot be read.
    Broken(String),
    /// It has, and who read it last never came back.
    Hangs,
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unavailable::Absent(what) | Unavailable::Broken(what) => to.write_str(what),
            Unavailable::Unset { what, .. } => to.write_str(what),
            Unavailable::Denied { path, need } => write!(to, "no permission to read {path}; needs {need}"),
            Unavailable::Hangs => to.write_str("reading it did not return; source disabled"),
        }
    }
}

/// A part of a source, such as a GPU, that cannot be read now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// As in its table; empty where they are not known.
    pub labels: Vec<String>,
    pub why: String,
}

/// Why a source measures less than it might, and the command that would change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    pub detail: String,
    pub remedy: Option<String>,
}

/// What went wrong in a reading, one variant for each reaction.
#[derive(Debug)]
pub enum ReadError {
    /// The source is gone for good: do not read it again.
    Gone { why: String },
    /// What could be read is in the batches; the rest is tried again at the next tick.
    Retry { path: String, error: io::Error },
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReadError::Gone { why } => write!(to, "given up: {why}"),
            ReadError::Retry { path, error } => write!(to, "{path}: {error}"),
        }
    }
}

/// Whether a file is unreadable because its process or cgroup ended.
fn is_gone(error: &io::Error) -> bool {
    const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
    const ENODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();
    const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();
    matches!(error.raw_os_error(), Some(ENOENT | ENODEV | ESRCH))
}

#[cfg(test)]
#[path = "fixture_tests.rs"]
mod fixture;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_source_is_listed() {
        let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        #[allow(clippy::disallowed_methods, reason = "the test looks at the source tree, not at a machine")]
        let entries = std::fs::read_dir(here).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let shared = [
            "lib",
            "runner",
            "self_cost",
            "fixture_tests",
            "fuzz",
            "background",
            "command",
            "row_parts",
            "heartbeat",
            "meter",
            "option",
            "sysfs",
        ];
        for name in names {
            let source = name.trim_end_matches(".rs");
            if shared.contains(&source) {
                continue;
            }
            assert!(SOURCES.iter().any(|spec| spec.name == source), "{name} is not in SOURCES");
        }
    }

    #[test]
    fn what_feeds_a_job_feeds_a_column_of_its_kind_and_unit() {
        for table in catalogue() {
            let fed = table.columns.iter().flat_map(|column| {
                let job = column.feeds.map(|target| &JOB.columns[target]);
                let detail = column.details.map(|target| &DETAIL.columns[target]);
                job.into_iter().chain(detail).map(move |job| (column, job))
            });
            for (column, job) in fed {
                let feeds = format!("{}.{} feeds {}", table.name, column.name, job.name);
                assert_eq!(
                    (job.kind, job.unit, job.scale),
                    (column.kind, column.unit, column.scale),
                    "{feeds}"
                );
            }
        }
    }

    #[test]
    fn people_see_something_of_every_source_that_watches_the_machine() {
        let in_block = |table: &&Table| NODE_BLOCKS.iter().any(|block| std::ptr::eq(block.table, *table));
        let is_drawn = |spec: &&&SourceSpec| {
            !spec.charts.is_empty() || spec.tables.iter().copied().any(|table| in_block(&table))
        };
        let watching = SOURCES.iter().filter(|spec| spec.pace != Pace::Tick);
        let unseen: Vec<&str> = watching.filter(|spec| !is_drawn(spec)).map(|spec| spec.name).collect();
        assert!(unseen.is_empty(), "no charts of {unseen:?}");
        for chart in charts() {
            assert!(
                chart.id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'),
                "{}",
                chart.id
            );
            let columns = chart.plus.iter().chain(&chart.minus).map(|&column| &chart.table.columns[column]);
            let units: Vec<_> = columns.map(|column| (column.kind, column.unit)).collect();
            assert!(units.windows(2).all(|pair| pair[0] == pair[1]), "{} adds unlike things", chart.id);
            assert!(!units.is_empty(), "{} is of nothing", chart.id);
        }
        let mut ids: Vec<&str> = charts().iter().map(|chart| chart.id).collect();
        assert_eq!(ids[..2], ["cpu", "memory"]);
        ids.sort_unstable();
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "{ids:?}");
    }

    #[test]
    fn no_two_tables_or_columns_share_a_name() {
        let tables = catalogue();
        let names = tables.iter().flat_map(|table| table.columns.iter().map(|c| table.prometheus_name(c)));
        let mut seen = std::collections::HashSet::new();
        for name in names {
            assert!(seen.insert(name.clone()), "{name} twice");
        }
    }
}
