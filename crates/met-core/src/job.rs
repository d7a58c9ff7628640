//! A job: who it is, how it lived, and what is known of it.

mod brief;
mod gpu_texts;
mod local;
mod scheduling;
mod totals;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::annotation::Annotation;
use crate::job_processes::JobProcess;
use crate::work::Work;

pub use brief::BriefRecord;
pub use gpu_texts::{EnergySource, HeldBy};
pub use local::{CgroupPaths, FileId, LeftOver, LimitKind, Local, MemoryLimit, Origin};
pub use scheduling::{EarlierRequest, Resources, Scheduling};
pub use totals::{Figure, QualityKind, Summaries, Summary, Totals};

/// The manager of jobs that `met` itself started or attached to.
pub const LOCAL: &str = "local";

/// Identifies a job, also among earlier jobs with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobKey {
    pub cluster: Option<String>,
    pub manager: String,
    pub id: String,
    /// The scheduler's restart count, else the start in unix seconds: a requeued job is another one.
    pub incarnation: i64,
}

/// An enum whose variants have one name each in JSON, files and messages.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $kind:ident { $($(#[$of:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Serialize, Deserialize)]
        pub enum $kind { $($(#[$of])* #[serde(rename = $name)] $variant,)* }

        impl $kind {
            pub const ALL: [$kind; [$($name),*].len()] = [$($kind::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $($kind::$variant => $name),* }
            }

            pub fn parse(name: &str) -> Option<$kind> {
                $kind::ALL.into_iter().find(|one| one.name() == name)
            }
        }
    };
}

pub(crate) use named;

named! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum State {
        #[default]
        Pending = "pending",
        Running = "running",
        Suspended = "suspended",
        Finished = "finished",
        Failed = "failed",
        Cancelled = "cancelled",
        Timeout = "timeout",
        OutOfMemory = "out_of_memory",
        Lost = "lost",
    }
}

impl State {
    /// Whether more may still come of the job.
    pub fn is_live(self) -> bool {
        matches!(self, State::Pending | State::Running | State::Suspended)
    }
}

/// A process that cannot be mistaken for a later one with its pid, within one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    pub start_ticks: u64,
}

/// What is known of one job. Times are unix nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub key: JobKey,
    pub name: String,
    pub user: Option<String>,
    pub uid: Option<u32>,
    pub account: Option<String>,
    /// As given; bytes that are not UTF-8 are shown as U+FFFD.
    pub command: Vec<String>,
    pub state: State,
    /// The scheduler's own word for the state.
    pub manager_state: Option<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub start_ns: Option<i64>,
    pub end_ns: Option<i64>,
    pub nodes: Vec<String>,
    /// The memory of the machine it ran on; what a percentage of memory is a percentage of.
    pub node_memory_bytes: Option<i64>,
    #[serde(default)]
    pub totals: Totals,
    #[serde(default)]
    pub summaries: Summaries,
    /// What it did with each GPU that it held or used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUse>,
    /// How often events happened that were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventCount>,
    /// Events that were asked for and could not be counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncounted_events: Vec<UncountedEvent>,
    /// Units of work that it marked while it ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<Work>,
    /// The largest of its processes, once it is over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<JobProcess>,
    /// What was asked for when it was submitted, and what it was given.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub requested: Resources,
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub allocated: Resources,
    /// What only a resource manager knows of a job.
    #[serde(default, skip_serializing_if = "Scheduling::is_empty")]
    pub scheduling: Scheduling,
    /// The job of a manager that this one runs in, as [`Record::label`] names it by its raw id: what this one
    /// used is in that one's figures, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<String>,
    /// Steps and tasks, and what the job did on each node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// What its emissions were computed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emission: Option<Emission>,
    /// Up to when the totals of a job that runs go, where that is not now: a daemon knows its last sample, and a server
    /// what it was last sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of_ns: Option<i64>,
    /// What people said of it: tags and a note.
    #[serde(default, skip_serializing_if = "Annotation::is_empty")]
    pub annotation: Annotation,
    /// Only senders say so who did not have to prove who they are, such as nodes of Colmet: all others are believed before them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unproven: bool,
    /// How to reach it, for a job of this machine.
    pub local: Option<Local>,
}

impl Record {
    /// A job of which nothing else is known.
    pub fn new(key: JobKey, name: impl Into<String>, state: State) -> Record {
        Record {
            key,
            name: name.into(),
            user: None,
            uid: None,
            account: None,
            command: Vec::new(),
            state,
            manager_state: None,
            exit_code: None,
            signal: None,
            start_ns: None,
            end_ns: None,
            nodes: Vec::new(),
            node_memory_bytes: None,
            totals: Totals::default(),
            summaries: Summaries::default(),
            gpus: Vec::new(),
            events: Vec::new(),
            uncounted_events: Vec::new(),
            work: Vec::new(),
            processes: Vec::new(),
            requested: Resources::default(),
            allocated: Resources::default(),
            scheduling: Scheduling::default(),
            inside: None,
            parts: Vec::new(),
            emission: None,
            as_of_ns: None,
            annotation: Annotation::default(),
            unproven: false,
            local: None,
        }
    }

    /// Whether a process with this number is known to have been its.
    pub fn has_process(&self, pid: u32) -> bool {
        let main = self.local.as_ref().and_then(|local| local.main);
        main.is_some_and(|main| main.pid == pid) || self.processes.iter().any(|process| process.pid == pid)
    }

    /// Whether what was measured is all of the job: on one node of several it is not.
    pub fn covers_all_nodes(&self) -> bool {
        let known = [self.allocated.nodes, self.requested.nodes, i64::try_from(self.nodes.len()).ok()];
        let nodes = known.into_iter().flatten().max().unwrap_or(1);
        // Most have one, and are asked often.
        if nodes <= 1 {
            return true;
        }
        // A step that only the scheduler named has no figures.
        let measured = self.parts.iter().filter(|part| !part.totals.is_empty());
        let measured = measured.map(|part| part.node.as_str()).collect::<BTreeSet<_>>().len();
        i64::try_from(measured).is_ok_and(|measured| measured >= nodes)
    }

    pub fn wall_ns(&self, now_ns: i64) -> Option<i64> {
        Some((self.end_ns.unwrap_or(now_ns) - self.start_ns?).max(0))
    }

    /// The cluster whose accounting has it. A node discovers jobs whose cluster only the scheduler knows.
    pub fn cluster(&self) -> Option<&str> {
        self.key.cluster.as_deref().or(self.scheduling.cluster.as_deref())
    }

    /// The id by which its manager's users know it: `1234_7` for element 7 of the array 1234.
    pub fn shown_id(&self) -> &str {
        self.scheduling.alias.as_deref().unwrap_or(&self.key.id)
    }

    /// On a server: the node whose id it has. Ids of batch systems are those of the whole cluster.
    pub fn own_node(&self) -> Option<&str> {
        self.key.cluster.as_deref().filter(|_| !crate::managers::spans_nodes(&self.key.manager))
    }

    /// How people name it, here and in commands: `12` of our own, `slurm:1234_7` of a manager's, `12@n1` on a server.
    pub fn label(&self) -> String {
        let mut label = match self.key.manager.as_str() {
            LOCAL => self.shown_id().to_owned(),
            manager => format!("{manager}:{}", self.shown_id()),
        };
        if let Some(node) = self.own_node() {
            label.push('@');
            label.push_str(node);
        }
        label
    }
}

/// Where the emissions of a job come from. The factor may have changed while it ran: this is the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emission {
    pub factor_mg_per_kwh: i64,
    pub factor_source: String,
    /// Unix time of the provider's measurement; `None` for a yearly average or a constant.
    pub factor_time_ns: Option<i64>,
    /// What the building used for each unit of energy of the machine, in millionths. Older records have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pue_millionths: Option<i64>,
}

impl Emission {
    pub fn pue(&self) -> Option<f64> {
        self.pue_millionths.map(|millionths| millionths as f64 / 1e6)
    }
}

/// A step or task of a job on one node; the job's part on a node where it has no step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    pub node: String,
    /// `batch`, `0`, `extern`; empty for all of the job on this node.
    pub step: String,
    pub task: Option<String>,
    pub name: Option<String>,
    /// Unix nanoseconds.
    pub start_ns: Option<i64>,
    pub end_ns: Option<i64>,
    pub exit_code: Option<i32>,
    /// How many parts without a line of their own this one sums.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folded: Option<u64>,
    pub totals: Totals,
}

impl Part {
    /// The step, and the task, of the part that sums many.
    pub const OTHERS: &'static str = "others";

    /// Sums no part yet: of steps, or of tasks, which are in their steps, too.
    pub fn others(node: String, of_tasks: bool) -> Part {
        let task = of_tasks.then(|| Part::OTHERS.to_owned());
        Part { node, step: Part::OTHERS.to_owned(), task, folded: Some(0), ..Part::default() }
    }

    /// Adds one more: CPU time is the sum, memory that of the one that had most. It ends with the last.
    pub fn take_in(&mut self, part: &Part) {
        let before = self.folded.unwrap_or(1);
        self.folded = Some(before.saturating_add(part.folded.unwrap_or(1)));
        if before == 0 {
            (self.start_ns, self.end_ns, self.totals) = (part.start_ns, part.end_ns, part.totals.clone());
            return;
        }
        self.start_ns = self.start_ns.into_iter().chain(part.start_ns).min();
        self.end_ns = self.end_ns.zip(part.end_ns).map(|(one, other)| one.max(other));
        for column in 0..crate::JOB.columns.len() {
            let known = [self.totals.figure(column), part.totals.figure(column)];
            let [Some(figure), other] = known else {
                if let [None, Some(figure)] = known {
                    let Figure { value, source, .. } = figure.clone();
                    self.totals.set(column, value, QualityKind::LowerBound, source);
                }
                continue;
            };
            let source = figure.source.clone();
            let (value, kind) = match other {
                Some(other) if column == crate::job_table::CPU => {
                    (figure.value.saturating_add(other.value), figure.kind.max(other.kind))
                }
                Some(other) => (figure.value.max(other.value), figure.kind.max(other.kind)),
                None => (figure.value, QualityKind::LowerBound),
            };
            self.totals.set(column, value, kind, source);
        }
    }
}

/// What a job did with one GPU. Means are over the time in which the job held or used it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuUse {
    pub uuid: String,
    /// The node that has it, in a job of several: each node numbers its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The driver's number; of a part of a GPU with the number of the part: `0.1`.
    pub index: String,
    pub name: String,
    pub vendor: String,
    /// The GPU that this is a part of.
    pub parent: Option<String>,
    pub held_by: HeldBy,
    pub held_since_ns: Option<i64>,
    /// Since when the job has not used it; `None` while it does.
    pub idle_since_ns: Option<i64>,
    /// Since when the GPU cannot be read; `None` while it can.
    pub lost_since_ns: Option<i64>,
    /// How long it was the job's, and how long of that the job computed on it.
    pub held_ns: i64,
    pub used_ns: i64,
    /// How long of the time held its use was read. Older records have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_ns: Option<i64>,
    /// The time that its energy is of: it is charged for a GPU from before it is first seen with it.
    #[serde(default)]
    pub paid_ns: i64,
    /// By the job's own processes; 1 is all of the GPU.
    pub utilization: Option<f64>,
    /// Of the whole GPU, including use by others.
    #[serde(rename = "card_utilization")]
    pub gpu_utilization: Option<f64>,
    pub encoder: Option<f64>,
    pub decoder: Option<f64>,
    pub copy: Option<f64>,
    pub memory_mean_bytes: Option<f64>,
    pub memory_peak_bytes: Option<i64>,
    pub memory_total_bytes: Option<i64>,
    pub energy_active_uj: i64,
    pub energy_idle_uj: i64,
    pub energy_kind: Option<QualityKind>,
    pub energy_source: Option<EnergySource>,
    /// What the whole GPU draws while it does nothing, and who says so: `configured`, `learned`, or `bound`
    /// where it was never seen idle.
    pub idle_power_mw: Option<i64>,
    pub idle_power_source: Option<String>,
    /// Of the whole GPU.
    #[serde(rename = "card_power_mw")]
    pub gpu_power_mw: Option<f64>,
    pub temperature_max_mc: Option<i64>,
    pub clock_mean_mhz: Option<f64>,
    pub clock_max_mhz: Option<i64>,
    /// Why its clocks were held down, in words.
    pub throttled: Vec<String>,
    /// `None` where the GPU does not say.
    pub throttled_ns: Option<i64>,
    pub ecc_corrected: Option<i64>,
    pub ecc_uncorrected: Option<i64>,
    /// Critical errors reported by the driver, and the last one's number.
    pub faults: Option<i64>,
    pub fault_last: Option<i64>,
    pub pcie_received_rate: Option<f64>,
    pub pcie_sent_rate: Option<f64>,
    /// Of the whole GPU: its compute units, its tensor cores, the bandwidth of its memory.
    #[serde(default)]
    pub sm_activity: Option<f64>,
    #[serde(default)]
    pub tensor_activity: Option<f64>,
    #[serde(default)]
    pub memory_bandwidth: Option<f64>,
    /// The most of the job's processes that were seen on it at once.
    pub processes: i64,
}

impl GpuUse {
    /// As people call it: `GPU 0`, in a job of several nodes `GPU 0 on n2`.
    pub fn label(&self) -> String {
        match &self.node {
            Some(node) => format!("GPU {} on {node}", self.index),
            None => format!("GPU {}", self.index),
        }
    }

    pub fn energy_uj(&self) -> i64 {
        self.energy_active_uj + self.energy_idle_uj
    }
}

/// How often something happened in a job, by the kernel's or the processor's counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventCount {
    /// As it was asked for: `page_faults`, `instructions:u`.
    pub name: String,
    /// Clocks count nanoseconds.
    pub count: i64,
    /// The share of the time in which it was counted; where that is below 1 the count is scaled up.
    pub counted: f64,
    pub kind: QualityKind,
    /// What was counted: a cgroup, or the processes below one.
    pub source: String,
}

/// An event that was asked for and could not be counted in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncountedEvent {
    pub name: String,
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_table::{CPU, MEMORY_PEAK};

    #[test]
    fn a_part_that_stands_for_many_is_as_good_as_the_worst_of_them() {
        let part = |cpu: Option<i64>, peak: i64, end_ns: Option<i64>| {
            let mut part = Part { start_ns: Some(peak), end_ns, ..Part::default() };
            cpu.into_iter().for_each(|cpu| part.totals.set(CPU, cpu, QualityKind::Measured, "cgroup"));
            part.totals.set(MEMORY_PEAK, peak, QualityKind::Sampled, "cgroup");
            part
        };
        let mut others = Part::others("n1".to_owned(), false);
        let shown = |others: &Part| {
            let figure = |column| others.totals.figure(column).map(|figure| (figure.value, figure.kind));
            (others.folded, figure(CPU), figure(MEMORY_PEAK), others.start_ns, others.end_ns)
        };
        others.take_in(&part(Some(10), 7, Some(20)));
        others.take_in(&part(Some(5), 9, Some(15)));
        let peak = Some((9, QualityKind::Sampled));
        assert_eq!(shown(&others), (Some(2), Some((15, QualityKind::Measured)), peak, Some(7), Some(20)));
        others.take_in(&part(None, 3, None));
        let at_least = Some((15, QualityKind::LowerBound));
        assert_eq!(shown(&others), (Some(3), at_least, peak, Some(3), None), "one of them goes on");
        let mut twice = others.clone();
        twice.take_in(&others);
        assert_eq!((twice.folded, twice.totals.get(CPU)), (Some(6), Some(30)));
        let mut unknown = Part::others("n1".to_owned(), true);
        unknown.take_in(&part(None, 1, None));
        unknown.take_in(&part(Some(4), 1, None));
        assert_eq!(unknown.totals.figure(CPU).map(|cpu| cpu.kind), Some(QualityKind::LowerBound));
    }
}
