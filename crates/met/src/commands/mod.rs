//! The commands, one file each.

pub mod annotate;
pub mod attach;
pub mod cancel;
pub mod check;
pub mod colmet;
pub mod compare;
pub mod completions;
pub mod config;
pub mod configure;
pub mod daemon;
pub mod doctor;
pub mod emissions;
pub mod explain;
pub mod export;
pub mod gpus;
pub mod import;
pub mod list;
pub mod logs;
pub mod man;
pub mod mark;
pub mod messages;
pub mod metrics;
pub mod node;
pub mod nodes;
pub mod notify;
pub mod ps;
pub mod react;
pub mod rm;
pub mod run;
pub mod scale;
pub mod server;
pub mod show;
pub mod time;
pub mod token;
pub mod usage;
pub mod wait;
pub mod web;
pub mod who;

use std::io;

use anyhow::Result;
use met_core::job::{Record, State};
use met_insight::report::Machine;

use met_config::Failure;
use met_query::jobs::AllJobs;
use met_query::machines::Machines;
use met_query::setting::Setting;

/// The first job that is named again.
fn given_twice(named: &[Record]) -> Option<&Record> {
    let is_again = |(at, job): &(usize, &Record)| named[..*at].iter().any(|one| one.key == job.key);
    named.iter().enumerate().find(is_again).map(|(_, job)| job)
}

/// What a shell would return for a job: its exit code, or 128 and the signal that ended it.
fn exit_code(record: &Record) -> i32 {
    match (record.exit_code, record.signal) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => i32::from(record.state != State::Finished),
    }
}

/// The id of a job that was started and could not be printed is printed once more, on stderr; the exit code. `what` is said
/// of it, and `end` is the command that ends it.
fn not_announced(record: &Record, error: &io::Error, print_id: bool, what: &str, end: &str) -> i32 {
    // A reader may close the output before the messages; the id was requested and must be written.
    if error.kind() == io::ErrorKind::BrokenPipe && !print_id {
        return 0;
    }
    let id = &record.key.id;
    tracing::error!("job {id} {what} (met show {id}, met {end} {id}), but {error}");
    1
}

/// Whether this machine knows no such job: `7@n1` is how a server names one of a node.
pub fn is_elsewhere(setting: &Setting, job: &str) -> bool {
    AllJobs::open(setting).and_then(|mut jobs| jobs.find(job)).is_err()
}

/// What is only on the node of a job is read there: says which node that is, and the command.
pub fn on_its_node(setting: &Setting, command: &str, job: &str) -> Result<i32> {
    let record = AllJobs::open(setting)?.find(job)?;
    Err(Failure::usage(elsewhere(command, &record)))
}

fn elsewhere(command: &str, record: &Record) -> String {
    let label = record.label();
    let id = label.split('@').next().unwrap_or(&label);
    match record.nodes.as_slice() {
        [] => format!(
            "`met {command}` works on the node of a job only; the server knows no node of job {label}"
        ),
        [node] => format!("job {label} ran on {node}; run there: met {command} {id}"),
        [node, rest @ ..] => {
            let more = rest.len();
            format!("job {label} ran on {node} and {more} more; run there: met {command} {id}")
        }
    }
}

/// The machine a report compares with: this one, if the job ran here, or those that a server says it ran on.
fn machine(setting: &Setting, record: &Record) -> Machine {
    Machines::of(setting).of_job(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_gets_no_id_is_given_the_reason() {
        let record = met_core::sample::bare(1, "x");
        let code =
            |kind: io::ErrorKind, print_id| not_announced(&record, &kind.into(), print_id, "runs", "cancel");
        assert_eq!(code(io::ErrorKind::BrokenPipe, false), 0);
        assert_eq!(code(io::ErrorKind::BrokenPipe, true), 1);
        assert_eq!(code(io::ErrorKind::StorageFull, false), 1);
    }

    #[test]
    fn what_is_only_on_a_node_is_pointed_to() {
        let mut record = met_core::sample::bare(7, "x");
        record.key.cluster = Some("n1".to_owned());
        record.nodes = vec!["n1".to_owned()];
        assert_eq!(elsewhere("logs", &record), "job 7@n1 ran on n1; run there: met logs 7");
        record.nodes.push("n2".to_owned());
        assert_eq!(elsewhere("ps", &record), "job 7@n1 ran on n1 and 1 more; run there: met ps 7");
    }
}
