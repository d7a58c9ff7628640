//! `met rm`: forgets finished jobs.

use std::io::Write;

use anyhow::Result;
use met_core::job::{Origin, Record, State};
use met_store::inbox::JobDir;

use super::import;
use crate::cli::RmArgs;
use crate::managers;
use crate::output;
use met_config::Failure;
use met_jobs::processes;
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;

pub fn rm(setting: &Setting, args: &RmArgs) -> Result<i32> {
    let (imported, others): (Vec<&String>, Vec<&String>) =
        args.jobs.iter().partition(|job| import::is_imported(job));
    let mut all = AllJobs::open(setting)?;
    // All or none: a mistyped job must not cost the others their record.
    // A name that a running job has as well may mean that one.
    let mut records: Vec<Record> = Vec::new();
    for job in others {
        let record = all.find_to_change(job, |_| true)?;
        if records.iter().all(|one| one.key != record.key) {
            records.push(record);
        }
    }
    refuse_live(setting, &records)?;
    if !imported.is_empty() {
        import::remove(setting, &imported)?;
    }
    for record in records {
        all.remove(&record.key)?;
        forget_unreported(setting, &record);
        // Its processes may outlive its record.
        if setting.user.check_own().is_ok() && !managers::is_foreign(&record) {
            jobs::leave_cgroup(&setting.host, &setting.user.state, &record);
        }
        writeln!(output::stdout(), "Removed job {}", record.label())?;
    }
    Ok(0)
}

/// A job that is running, or has processes or a report to deliver, stays.
fn refuse_live(setting: &Setting, records: &[Record]) -> Result<()> {
    if let Some(running) = records.iter().find(|record| record.state.is_live()) {
        let id = &running.label();
        let attached = running.local.as_ref().is_some_and(|local| local.origin == Origin::Attach);
        if attached {
            return Err(Failure::usage(format!(
                "job {id} is still measured; stop that first with: met detach {id}"
            )));
        }
        let command = match managers::is_foreign(running) {
            false => Some(format!("met cancel {id}")),
            true => managers::cancel_command(running),
        };
        return Err(Failure::usage(match command {
            Some(command) => format!("job {id} is still running; end it first with: {command}"),
            None => format!("job {id} is still running"),
        }));
    }
    // Its record is all by which its processes are still known.
    let lost = records.iter().filter(|record| record.state == State::Lost && !managers::is_foreign(record));
    for record in lost {
        let count = processes::of_job(&setting.host, record).len();
        if count > 0 {
            let (id, plural) = (
                record.label(),
                if count == 1 {
                    " is still running"
                } else {
                    "es are still \
                running"
                },
            );
            return Err(Failure::usage(format!(
                "job {id} is lost, and {count} process{plural}; end it first with: met cancel {id}"
            )));
        }
    }
    if let Some(record) = records.iter().find(|record| waits_to_be_reported(setting, record)) {
        let id = record.label();
        let why = "is not yet reported to the system daemon, which would list it again; try again when the \
            daemon answers";
        return Err(Failure::with_code(1, format!("job {id} {why}")));
    }
    Ok(())
}

/// Whether the supervisor of a finished job is still there, to report it to a system daemon that did not answer.
fn waits_to_be_reported(setting: &Setting, record: &Record) -> bool {
    let folder = record.key.id.parse().ok().map(|id| JobDir::open(&setting.user.state, id));
    let supervisor = record.local.as_ref().and_then(|local| local.supervisor);
    folder.is_some_and(|folder| folder.has_own_id())
        && supervisor.is_some_and(|supervisor| setting.host.is_alive(supervisor))
}

/// A job that the system daemon does not know yet is not reported to it after it was removed.
fn forget_unreported(setting: &Setting, record: &Record) {
    let folder = record.key.id.parse().ok().map(|id| JobDir::open(&setting.user.state, id));
    let is_it = |folder: &JobDir| folder.read_unreported().is_some_and(|end| end.key == record.key);
    if let Some(folder) = folder.filter(|folder| folder.has_own_id() && is_it(folder)) {
        let _ = folder.forget_unreported();
    }
}
