//! The commands, one file each.

pub mod attach;
pub mod cancel;
pub mod configure;
pub mod daemon;
pub mod doctor;
pub mod emissions;
pub mod gpus;
pub mod list;
pub mod logs;
pub mod man;
pub mod metrics;
pub mod node;
pub mod nodes;
pub mod ps;
pub mod rm;
pub mod run;
pub mod server;
pub mod show;
pub mod time;
pub mod wait;

use std::io;

use met_core::job::{Record, State};
use met_insight::report::Machine;

use crate::setting::Setting;

/// What a shell would return for a job: its exit code, or 128 and the signal that ended it.
fn exit_code(record: &Record) -> i32 {
    match (record.exit_code, record.signal) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => i32::from(record.state != State::Finished),
    }
}

/// A job that is there and whose id did not reach anybody is named once more, on stderr; the exit code. `what` is said
/// of it, and `end` is the command that ends it.
fn untold(record: &Record, error: &io::Error, print_id: bool, what: &str, end: &str) -> i32 {
    // Whoever stops reading sentences has had enough of them; an id was asked for.
    if error.kind() == io::ErrorKind::BrokenPipe && !print_id {
        return 0;
    }
    let id = &record.key.id;
    tracing::error!("job {id} {what} (met show {id}, met {end} {id}), but {error}");
    1
}

/// The machine a report compares with: this one, if the job ran here.
fn machine(setting: &Setting, record: &Record) -> Machine {
    let facts = setting.host.facts();
    let here = record.nodes == [facts.hostname.clone()];
    Machine { cpus: here.then_some(facts.cpu_count) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asked_for_an_id_and_did_not_get_it_is_told_so() {
        let record = crate::view::sample::bare(1, "x");
        let code = |kind: io::ErrorKind, print_id| untold(&record, &kind.into(), print_id, "runs", "cancel");
        assert_eq!(code(io::ErrorKind::BrokenPipe, false), 0);
        assert_eq!(code(io::ErrorKind::BrokenPipe, true), 1);
        assert_eq!(code(io::ErrorKind::StorageFull, false), 1);
    }
}
