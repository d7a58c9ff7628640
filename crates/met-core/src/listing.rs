//! The order of job lists: newest first, or by a column; total, so that a list can be continued after any job.

mod pages;

use std::cmp::Ordering;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::conditions::searched_command;
use crate::job::{JobKey, Record, State, named};
use crate::job_table::{
    CPU, EMISSIONS, ENERGY, GPU_UTILIZATION, GPUS, MEMORY_NEEDED_PEAK, MEMORY_PEAK, READ, WALL, WRITTEN,
};

pub use pages::{Cursor, Order, Sorted, Unsettled, sort};

/// The start that lists sort by. A job that has not started yet sorts as the newest.
pub fn sort_ns(job: &impl Listed) -> i64 {
    job.start_ns().or(job.end_ns()).unwrap_or(i64::MAX)
}

/// The digits an id begins with: `12` sorts after `9`, and `12_3` beside `12`.
pub fn id_number(id: &str) -> i64 {
    let digits = id.bytes().take_while(u8::is_ascii_digit).take(18);
    digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// What lists filter and sort by: a record has it, and so has the narrow row of a job that runs.
pub trait Listed {
    fn key(&self) -> &JobKey;
    fn name(&self) -> &str;
    fn user(&self) -> Option<&str>;
    fn uid(&self) -> Option<u32>;
    fn account(&self) -> Option<&str>;
    fn partition(&self) -> Option<&str>;
    fn state(&self) -> State;
    fn start_ns(&self) -> Option<i64>;
    fn end_ns(&self) -> Option<i64>;
    fn as_of_ns(&self) -> Option<i64>;
    /// One of [`FIGURES`], or the wall time of a job that is over.
    fn total(&self, column: usize) -> Option<i64>;
    /// The mean of all its GPUs together.
    fn gpu_utilization(&self) -> Option<f64>;
    fn cpu_count(&self) -> Option<i64>;
    fn node_count(&self) -> Option<i64>;
    fn gpu_count(&self) -> Option<i64>;
    fn covers_all_nodes(&self) -> bool;
    fn scheduler_cpu_ns(&self) -> Option<i64>;
    fn submit_ns(&self) -> Option<i64>;
    /// Of a job that is over: its exit code, or what a shell makes of its signal.
    fn exit_status(&self) -> Option<i64>;
    /// Each between spaces; `None` without any. Asked only where [`SortColumn::needs_record`].
    fn tags(&self) -> Option<String>;
    /// The begin of its command line. Asked only where [`SortColumn::needs_record`].
    fn command(&self) -> Option<String>;
}

/// What a shell adds to the number of a signal.
const SIGNALLED: i64 = 128;
/// Letters of a command line that jobs are sorted by: a cursor holds them.
pub const COMMAND_LETTERS: usize = 60;

/// The totals that lists filter and sort by.
pub const FIGURES: [usize; 8] =
    [CPU, MEMORY_NEEDED_PEAK, MEMORY_PEAK, READ, WRITTEN, GPUS, ENERGY, EMISSIONS];

impl Listed for Record {
    fn key(&self) -> &JobKey {
        &self.key
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
    fn uid(&self) -> Option<u32> {
        self.uid
    }
    fn account(&self) -> Option<&str> {
        self.account.as_deref()
    }
    fn partition(&self) -> Option<&str> {
        self.scheduling.partition.as_deref()
    }
    fn state(&self) -> State {
        self.state
    }
    fn start_ns(&self) -> Option<i64> {
        self.start_ns
    }
    fn end_ns(&self) -> Option<i64> {
        self.end_ns
    }
    fn as_of_ns(&self) -> Option<i64> {
        self.as_of_ns
    }
    fn total(&self, column: usize) -> Option<i64> {
        self.totals.get(column)
    }
    fn gpu_utilization(&self) -> Option<f64> {
        self.summaries.get(GPU_UTILIZATION).map(|summary| summary.mean)
    }
    fn cpu_count(&self) -> Option<i64> {
        cpus(self)
    }
    fn node_count(&self) -> Option<i64> {
        nodes(self)
    }
    fn gpu_count(&self) -> Option<i64> {
        gpus(self)
    }
    fn covers_all_nodes(&self) -> bool {
        Record::covers_all_nodes(self)
    }
    fn scheduler_cpu_ns(&self) -> Option<i64> {
        self.scheduling.cpu_ns
    }
    fn submit_ns(&self) -> Option<i64> {
        self.scheduling.submit_ns
    }
    fn exit_status(&self) -> Option<i64> {
        exit_status(self)
    }
    fn tags(&self) -> Option<String> {
        let tags = &self.annotation.tags;
        let text = tags.iter().fold(String::from(" "), |text, tag| text + tag + " ");
        (!tags.is_empty()).then_some(text)
    }
    fn command(&self) -> Option<String> {
        // As SQL has it: a text ends at a NUL there.
        let command = searched_command(self);
        let head: String =
            command.chars().take_while(|&letter| letter != '\0').take(COMMAND_LETTERS).collect();
        (!head.is_empty()).then_some(head)
    }
}

named! {
    /// What a list can be sorted by.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum SortColumn {
        Start = "start",
        End = "end",
        Duration = "duration",
        Job = "job",
        Name = "name",
        User = "user",
        Account = "account",
        State = "state",
        Manager = "manager",
        Partition = "partition",
        Nodes = "nodes",
        Cpu = "cpu",
        Cores = "cores",
        Efficiency = "efficiency",
        Memory = "memory",
        MemoryPeak = "memory_peak",
        Read = "read",
        Written = "written",
        Gpus = "gpus",
        GpuUtilization = "gpu_utilization",
        Energy = "energy",
        Emissions = "emissions",
        Queued = "queued",
        Exit = "exit",
        Tags = "tags",
        Command = "command",
    }
}

impl SortColumn {
    /// Whether the value of a running job grows while it runs, and is known better by its sampler than by the store.
    pub fn is_figure(self) -> bool {
        use SortColumn::*;
        matches!(
            self,
            Cpu | Cores
                | Efficiency
                | Memory
                | MemoryPeak
                | Read
                | Written
                | Gpus
                | GpuUtilization
                | Energy
                | Emissions
        )
    }

    /// Whether the value of a job may be another one on the next page of a list: it grows, or changes when the job ends.
    pub fn changes(self) -> bool {
        use SortColumn::*;
        self.is_figure() || matches!(self, End | Duration | State | Nodes | Exit)
    }

    /// Whether the row of a running job in memory does not have it.
    pub fn needs_record(self) -> bool {
        matches!(self, SortColumn::Tags | SortColumn::Command)
    }
}

/// How a list is sorted. Jobs whose value is unknown come last, whatever the direction; among jobs of one value the
/// newest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sort {
    pub column: SortColumn,
    #[serde(default)]
    pub descending: bool,
}

impl FromStr for Sort {
    type Err = String;

    /// `cpu`, `cpu:asc` or `cpu:desc`.
    fn from_str(text: &str) -> Result<Sort, String> {
        let (name, direction) = text.split_once(':').unwrap_or((text, "asc"));
        let column = SortColumn::parse(name).ok_or_else(|| {
            let known = SortColumn::ALL.map(SortColumn::name).join(", ");
            format!("cannot sort by {name:?}; columns: {known}")
        })?;
        match direction {
            "asc" => Ok(Sort { column, descending: false }),
            "desc" => Ok(Sort { column, descending: true }),
            _ => Err(format!("{direction:?} is not a direction; write {name}:asc or {name}:desc")),
        }
    }
}

/// The value by which a job is sorted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SortValue {
    Number(i64),
    Text(String),
}

/// Parts of one in the ratios here.
pub const MILLION: i64 = 1_000_000;

impl Sort {
    /// The value of a job, which has run until `as_of_ns` if it runs; `None` if it is unknown.
    pub fn value(self, job: &impl Listed, as_of_ns: i64) -> Option<SortValue> {
        let text = |text: &str| Some(SortValue::Text(text.to_owned()));
        let number = match self.column {
            SortColumn::Name => return text(job.name()),
            SortColumn::User => return job.user().and_then(text),
            SortColumn::Account => return job.account().and_then(text),
            SortColumn::State => return text(job.state().name()),
            SortColumn::Manager => return text(&job.key().manager),
            SortColumn::Partition => return job.partition().and_then(text),
            SortColumn::Tags => return job.tags().map(SortValue::Text),
            SortColumn::Command => return job.command().map(SortValue::Text),
            SortColumn::Queued => queued_ns(job, as_of_ns),
            SortColumn::Exit => job.exit_status(),
            SortColumn::Start => job.start_ns(),
            SortColumn::End => job.end_ns(),
            SortColumn::Duration => duration_ns(job, as_of_ns),
            SortColumn::Job => Some(id_number(&job.key().id)),
            SortColumn::Nodes => job.node_count(),
            SortColumn::Cpu => job.total(CPU),
            SortColumn::Cores => cores_millionths(job, as_of_ns),
            SortColumn::Efficiency => efficiency_millionths(job, as_of_ns),
            SortColumn::Memory => job.total(MEMORY_NEEDED_PEAK),
            SortColumn::MemoryPeak => job.total(MEMORY_PEAK),
            SortColumn::Read => job.total(READ),
            SortColumn::Written => job.total(WRITTEN),
            SortColumn::Gpus => job.gpu_count(),
            SortColumn::GpuUtilization => gpu_millionths(job),
            SortColumn::Energy => job.total(ENERGY),
            SortColumn::Emissions => job.total(EMISSIONS),
        };
        number.map(SortValue::Number)
    }

    /// The order of two values: what is unknown last.
    fn compare(self, left: Option<&SortValue>, right: Option<&SortValue>) -> Ordering {
        match (left, right) {
            (Some(left), Some(right)) if self.descending => right.cmp(left),
            (Some(left), Some(right)) => left.cmp(right),
            (left, right) => right.is_some().cmp(&left.is_some()),
        }
    }
}

/// How long a job ran; of one that runs, until now. `None` before its start, and where its end is unknown.
pub fn duration_ns(job: &impl Listed, now_ns: i64) -> Option<i64> {
    let until_ns = match job.state() {
        State::Pending => return None,
        state if state.is_live() && job.end_ns().is_none() => Some(now_ns),
        _ => job.end_ns(),
    };
    let counted = job.total(WALL).filter(|_| !job.state().is_live());
    counted.or_else(|| Some(until_ns?.saturating_sub(job.start_ns()?).max(0)))
}

/// How long a job has waited to begin, by this time: one that began or ended later was still waiting then, so that its
/// place in a list stays the same on all pages.
pub fn queued_ns(job: &impl Listed, as_of_ns: i64) -> Option<i64> {
    let until_ns = match (job.start_ns(), job.state()) {
        (Some(start_ns), _) => start_ns,
        (None, State::Pending) => as_of_ns,
        // Cancelled in the queue.
        (None, _) => job.end_ns()?,
    };
    Some(until_ns.min(as_of_ns).saturating_sub(job.submit_ns()?))
}

/// The exit code of a job that is over, or what a shell makes of its signal.
pub fn exit_status(record: &Record) -> Option<i64> {
    let signalled = || record.signal.map(|signal| SIGNALLED + i64::from(signal));
    record.exit_code.map(i64::from).or_else(signalled).filter(|_| !record.state.is_live())
}

/// CPUs that the job was given, or else asked for.
pub fn cpus(record: &Record) -> Option<i64> {
    record.allocated.cpus.or(record.requested.cpus).filter(|&cpus| cpus > 0)
}

pub fn nodes(record: &Record) -> Option<i64> {
    let counted = i64::try_from(record.nodes.len()).ok().filter(|&count| count > 0);
    counted.or(record.allocated.nodes).or(record.requested.nodes)
}

/// GPUs that the job held or used; `None` where none was seen.
pub fn gpus(record: &Record) -> Option<i64> {
    let seen = i64::try_from(record.gpus.len()).ok().filter(|&count| count > 0);
    seen.or_else(|| record.totals.get(GPUS)).or(record.allocated.gpus)
}

/// Mean use of its GPUs: a million is one GPU fully used.
pub fn gpu_millionths(job: &impl Listed) -> Option<i64> {
    let mean = job.gpu_utilization()?;
    mean.is_finite().then_some((mean * 1e3) as i64)
}

/// Cores busy on average.
pub fn cores_millionths(job: &impl Listed, now_ns: i64) -> Option<i64> {
    let until_ns = job.as_of_ns().filter(|_| job.state().is_live()).unwrap_or(now_ns);
    let wall_ns = duration_ns(job, until_ns).filter(|&wall_ns| wall_ns > 0)?;
    ratio(job.total(CPU)?, wall_ns)
}

/// CPU time used of the CPU time that it was given; the figures of a job on several nodes must be of all of them.
pub fn efficiency_millionths(job: &impl Listed, now_ns: i64) -> Option<i64> {
    let cores = match job.covers_all_nodes() && job.total(CPU).is_some() {
        true => cores_millionths(job, now_ns),
        false => {
            let wall_ns = duration_ns(job, now_ns).filter(|&wall_ns| wall_ns > 0)?;
            ratio(job.scheduler_cpu_ns()?, wall_ns)
        }
    };
    Some(cores? / job.cpu_count()?)
}

fn ratio(part: i64, whole: i64) -> Option<i64> {
    i64::try_from(i128::from(part) * i128::from(MILLION) / i128::from(whole)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sort_that_does_not_exist_is_refused_with_those_that_do() {
        assert!("cpu;drop".parse::<Sort>().unwrap_err().contains("columns: start, end, duration"));
        assert!("cpu:down".parse::<Sort>().unwrap_err().contains("write cpu:asc or cpu:desc"));
        let parsed: Sort = "memory:desc".parse().unwrap();
        assert_eq!(parsed, Sort { column: SortColumn::Memory, descending: true });
    }
}
