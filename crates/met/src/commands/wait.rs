//! `met wait`: until jobs have ended.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use met_core::belief::is_known_end;
use met_core::job::{LOCAL, ProcessId, Record, State};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::cli::WaitArgs;
use crate::managers;
use met_query::jobs::{AllJobs, has_daemon, waits_for_daemon};
use met_query::setting::Setting;

/// Between a supervisor's end and the record of it lies a write to disk.
const RECORD_TRIES: u32 = 100;
const RECORD_PAUSE: Duration = Duration::from_millis(20);
/// How often is looked for the end of a job whose first process is gone, and whose supervisor is not.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_secs(2);
/// Who hands an end over to a daemon is done with it by then.
const HAND_OVER: Duration = Duration::from_secs(5);
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
                true => "its end was not observed",
                false => "its supervisor was killed",
            };
            tracing::error!("job {} was lost: {why}, its exit code is unknown", record.label());
        }
        worst = worst.max(super::exit_code(&record));
    }
    Ok(worst)
}

fn open_living(setting: &Setting, process: ProcessId) -> Option<OwnedFd> {
    let pidfd = pidfd_open(Pid::from_raw(process.pid as i32)?, PidfdFlags::empty()).ok()?;
    // Checked while the descriptor is open: the pid may have been reused.
    setting.host.is_alive(process).then_some(pidfd)
}

/// Until the supervisor is gone. One that stays to report to a daemon that is away has written the end before.
fn wait_for_supervisor(setting: &Setting, record: &Record, supervisor: &OwnedFd) -> Option<Record> {
    let main = record.local.as_ref().and_then(|local| local.main);
    if let Some(main) = main.and_then(|main| open_living(setting, main)) {
        // No job is over before its first process is.
        let mut fds = [PollFd::new(supervisor, PollFlags::IN), PollFd::new(&main, PollFlags::IN)];
        while poll(&mut fds, None).is_err() {}
    }
    let name = format!("{}:{}", record.key.manager, record.key.id);
    let (mut pause, begin, mut ended) = (FIRST_LOOK, Instant::now(), None);
    loop {
        let timeout = Timespec::try_from(pause).ok();
        if poll(&mut [PollFd::new(supervisor, PollFlags::IN)], timeout.as_ref()).is_ok_and(|ready| ready > 0)
        {
            return None;
        }
        pause = (pause * 2).min(LONGEST_LOOK);
        // A daemon that is receiving the end is not queried meanwhile.
        if !waits_for_daemon(setting, record) && begin.elapsed() < HAND_OVER {
            continue;
        }
        // A daemon that comes or goes at this moment is asked again.
        let now = AllJobs::open(setting).and_then(|mut all| all.find(&name)).ok();
        if let Some(end) = now.filter(|now| now.key == record.key && is_known_end(now)) {
            // A daemon that receives the end knows more in a moment.
            let ended = *ended.get_or_insert_with(Instant::now);
            if !has_daemon(setting) || ended.elapsed() > HAND_OVER {
                return Some(end);
            }
        }
    }
}

/// The record of a job that is over.
fn wait_for(setting: &Setting, record: Record) -> Result<Record> {
    let supervisor = record.local.as_ref().and_then(|local| local.supervisor);
    match supervisor.and_then(|supervisor| open_living(setting, supervisor)) {
        // It may have written the end a moment ago, and the daemon does not have it yet.
        Some(pidfd) => {
            if let Some(end) = wait_for_supervisor(setting, &record, &pidfd) {
                return Ok(end);
            }
        }
        None if !record.state.is_live() => return Ok(record),
        None => {}
    }
    let name = format!("{}:{}", record.key.manager, record.key.id);
    let mut now = AllJobs::open(setting)?.find(&name)?;
    // For a job of another program there is only its record to wait for.
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
