//! `met wait`: until jobs have ended.

use std::time::Duration;

use anyhow::Result;
use met_core::job::{LOCAL, Record, State};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::cli::WaitArgs;
use crate::jobs::AllJobs;
use crate::managers;
use crate::setting::Setting;

/// Between a supervisor's end and the record of it lies a write to disk.
const RECORD_TRIES: u32 = 100;
const RECORD_PAUSE: Duration = Duration::from_millis(20);
const FOUND_PAUSE: Duration = Duration::from_millis(500);

pub fn wait(setting: &Setting, args: &WaitArgs) -> Result<i32> {
    let mut all = AllJobs::open(setting)?;
    let records = args.jobs.iter().map(|job| all.find(job)).collect::<Result<Vec<_>>>()?;
    drop(all);
    let mut worst = 0;
    for record in records {
        let record = wait_for(setting, record)?;
        if record.state == State::Lost {
            let why = match managers::is_foreign(&record) {
                true => "nobody saw its end",
                false => "its supervisor was killed",
            };
            tracing::error!("job {} was lost: {why}, its exit code is not known", record.label());
        }
        worst = worst.max(super::exit_code(&record));
    }
    Ok(worst)
}

/// The record of a job that is over.
fn wait_for(setting: &Setting, record: Record) -> Result<Record> {
    if !record.state.is_live() {
        return Ok(record);
    }
    let supervisor = record.local.as_ref().and_then(|local| local.supervisor);
    if let Some(supervisor) = supervisor.filter(|supervisor| setting.host.is_alive(*supervisor))
        && let Some(pid) = Pid::from_raw(supervisor.pid as i32)
        && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
        && setting.host.is_alive(supervisor)
    {
        while poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).is_err() {}
    }
    let name = format!("{}:{}", record.key.manager, record.key.id);
    let mut now = AllJobs::open(setting)?.find(&name)?;
    // Of a job that somebody else started there is nothing to wait on but its record.
    while record.key.manager != LOCAL && now.key == record.key && now.state.is_live() {
        std::thread::sleep(FOUND_PAUSE);
        now = AllJobs::open(setting)?.find(&name)?;
    }
    for _ in 0..RECORD_TRIES {
        if now.key != record.key || !now.state.is_live() {
            break;
        }
        std::thread::sleep(RECORD_PAUSE);
        now = AllJobs::open(setting)?.find(&name)?;
    }
    Ok(now)
}
