//! The columns of a table of jobs, by the names and units of the catalogue: of exported files and of the API's CSV.

use met_core::JOB;
use met_core::job::Record;
use serde_json::{Value, json};

use crate::json;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Text,
    Whole,
    Real,
    Time,
}

/// A column of the jobs that is not a total: its name, where it is in the object of a job, type, unit and meaning.
pub type JobColumn = (&'static str, &'static str, Type, &'static str, &'static str);

pub const JOB_COLUMNS: &[JobColumn] = &[
    ("cluster", "/identity/cluster", Type::Text, "", "cluster that has it in its accounting"),
    ("job", "/identity/job", Type::Text, "", "how people name the job"),
    ("incarnation", "/identity/incarnation", Type::Whole, "", "distinguishes earlier jobs with the same id"),
    ("manager", "/job/manager", Type::Text, "", "resource manager"),
    ("id", "/job/id", Type::Text, "", "id as its users know it"),
    ("raw_id", "/job/raw_id", Type::Text, "", "id as its cgroups are named"),
    ("name", "/job/name", Type::Text, "", "name of the job"),
    ("user", "/job/user", Type::Text, "", "owner"),
    ("account", "/job/account", Type::Text, "", "account or project"),
    ("command", "/identity/command", Type::Text, "", "command, quoted for a shell"),
    ("state", "/job/state", Type::Text, "", "state of the job"),
    ("manager_state", "/job/manager_state", Type::Text, "", "state in the words of its manager"),
    ("exit_code", "/job/exit_code", Type::Whole, "", "exit code of the command"),
    ("signal", "/job/signal", Type::Whole, "", "signal that ended it"),
    ("start", "/job/start", Type::Time, "", "start of the job"),
    ("end", "/job/end", Type::Time, "", "end of the job"),
    ("nodes", "/identity/nodes", Type::Text, "", "nodes, separated by commas"),
    ("inside", "/job/inside", Type::Text, "", "job that it ran in, whose figures include this one's"),
    ("partition", "/scheduling/partition", Type::Text, "", "partition or queue"),
    ("qos", "/scheduling/qos", Type::Text, "", "quality of service"),
    ("submit", "/scheduling/submit", Type::Time, "", "time of submission"),
    ("queue_wait_seconds", "/scheduling/queue_wait_seconds", Type::Real, "seconds", "time in the queue"),
    ("requested_nodes", "/requested/nodes", Type::Whole, "", "nodes requested"),
    ("requested_cpus", "/requested/cpus", Type::Whole, "", "CPUs requested"),
    ("requested_memory_bytes", "/requested/memory_bytes", Type::Whole, "bytes", "memory requested"),
    ("requested_gpus", "/requested/gpus", Type::Whole, "", "GPUs requested"),
    (
        "requested_time_limit_seconds",
        "/requested/time_limit_seconds",
        Type::Real,
        "seconds",
        "time limit requested",
    ),
    ("allocated_nodes", "/allocated/nodes", Type::Whole, "", "nodes allocated"),
    ("allocated_cpus", "/allocated/cpus", Type::Whole, "", "CPUs allocated"),
    ("allocated_memory_bytes", "/allocated/memory_bytes", Type::Whole, "bytes", "memory allocated"),
    ("allocated_gpus", "/allocated/gpus", Type::Whole, "", "GPUs allocated"),
    ("efficiency_cpu_ratio", "/efficiency/cpu_ratio", Type::Real, "ratio", "share of its CPUs used"),
    ("efficiency_memory_ratio", "/efficiency/memory_ratio", Type::Real, "ratio", "share of its memory used"),
    ("efficiency_gpu_ratio", "/efficiency/gpu_ratio", Type::Real, "ratio", "share of its GPUs used"),
    ("efficiency_time_ratio", "/efficiency/time_ratio", Type::Real, "ratio", "share of its time limit used"),
    ("average_cores", "/average/cores", Type::Real, "", "cores busy on average"),
    (
        "average_memory_needed_bytes",
        "/average/memory_needed_bytes",
        Type::Real,
        "bytes",
        "memory needed on average",
    ),
    ("average_power_watts", "/average/power_watts", Type::Real, "watts", "power on average"),
];

/// The public object of the job, with what a table needs beside it.
pub fn object(record: &Record, now_ns: i64) -> Value {
    let mut object = json::object(record, now_ns);
    object["identity"] = json!({
        "cluster": record.cluster(),
        "job": record.label(),
        "incarnation": record.key.incarnation,
        "command": met_core::text::command_line(&record.command),
        "nodes": record.nodes.join(","),
    });
    object
}

/// Every column by name, and where it is in [`object`].
pub fn places() -> impl Iterator<Item = (String, String)> {
    let named = JOB_COLUMNS.iter().map(|&(name, place, ..)| (name.to_owned(), place.to_owned()));
    named.chain(JOB.columns.iter().map(|column| {
        let name = column.json_name();
        let place = format!("/totals/{name}");
        (name, place)
    }))
}
