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

/// The machine a report compares with: this one, if the job ran here.
fn machine(setting: &Setting, record: &Record) -> Machine {
    let facts = setting.host.facts();
    let here = record.nodes == [facts.hostname.clone()];
    Machine { cpus: here.then_some(facts.cpu_count) }
}
