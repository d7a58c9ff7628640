//! `met cancel`: the whole tree of a job, with no orphan left.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use met_core::MISSING;
use met_core::job::QualityKind::{LowerBound, Measured};
use met_core::job::{Origin, ProcessId, Record, State};
use met_core::job_table::{CPU, CPU_SYSTEM, CPU_USER, MEMORY_PEAK, WALL};
use met_core::provenance::Account;
use met_host::Host;
use met_jobs::job_cgroup;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cli::CancelArgs;
use crate::managers;
use crate::output;
use met_agent::supervise::{cancel_signal, parse_signal};
use met_config::Failure;
use met_core::units;
use met_jobs::processes::{self, Process};
use met_query::counters::Reading;
use met_query::jobs::{self, AllJobs};
use met_query::setting::Setting;

/// How often is looked whether a job has ended, and for new processes of one that does not.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A process that survives SIGKILL for so long hangs in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

pub fn cancel(setting: &Setting, args: &CancelArgs) -> Result<i32> {
    let Some(signal) = parse_signal(&args.signal) else {
        return Err(Failure::usage(format!(
            "--signal {}: no such signal; write TERM, INT, KILL or a number",
            args.signal
        )));
    };
    let grace =
        units::parse_duration(&args.grace).map_err(|error| Failure::usage(format!("--grace: {error}")))?;
    let mut all = AllJobs::open(setting)?;
    // A lost job may still have processes.
    let can_be_ended = |record: &Record| record.state.is_live() || record.state == State::Lost;
    let records =
        args.jobs.iter().map(|job| all.find_to_change(job, can_be_ended)).collect::<Result<Vec<_>>>()?;
    drop(all);
    refuse_foreign(&records)?;
    for record in &records {
        cancel_job(setting, record, signal, grace)?;
    }
    Ok(0)
}

/// All or none: a manager's job among the given ones is probably a mistake.
fn refuse_foreign(records: &[Record]) -> Result<()> {
    let Some(record) = records.iter().find(|record| managers::is_foreign(record)) else { return Ok(()) };
    let (label, manager) = (record.label(), &record.key.manager);
    match managers::cancel_command(record) {
        _ if !record.state.is_live() => bail!("job {label} has already ended ({})", record.state.name()),
        Some(command) => bail!("job {label} belongs to {manager}; end it with: {command}"),
        None => bail!("job {label} was not started by met; end its processes yourself: met ps {label}"),
    }
}

fn cancel_job(setting: &Setting, record: &Record, signal: i32, grace: Duration) -> Result<()> {
    let mut stdout = output::stdout();
    let processes = members(setting, record);
    if processes.is_empty() && !record.state.is_live() {
        writeln!(stdout, "Job {} has already ended ({})", record.key.id, record.state.name())?;
        return Ok(());
    }
    // First, so that the end is recorded as what it is.
    send_supervisor(setting, record, cancel_signal())?;
    let count = processes.len();
    end_all(setting, record, signal, grace)?;
    wait_for_supervisor(setting, record);
    if record.state == State::Lost && count > 0 {
        // No other process observed its end.
        let end = end_of_lost(&setting.host, record, jobs::now_ns());
        AllJobs::open(setting)?
            .close(&end)
            .with_context(|| format!("cannot store the end of job {}", record.key.id))?;
    }
    if let Some(local) = &record.local {
        job_cgroup::remove(&local.cgroup);
    }
    let plural = if count == 1 { "" } else { "es" };
    writeln!(stdout, "Cancelled job {} ({count} process{plural})", record.key.id)?;
    Ok(())
}

/// How a job ended whose supervisor did not see it: just now, by us, with what its cgroup has counted. How its main
/// process ended is unknown, and samples stopped when the job was lost.
fn end_of_lost(host: &Host, record: &Record, now_ns: i64) -> Record {
    let mut end = Record { state: State::Cancelled, end_ns: Some(now_ns), ..record.clone() };
    end.totals.set_lower_bounds();
    end.events.iter_mut().for_each(|event| event.kind = LowerBound);
    for gpu in end.gpus.iter_mut().filter(|gpu| gpu.energy_kind.is_some()) {
        gpu.energy_kind = Some(LowerBound);
    }
    if let Some(wall_ns) = end.start_ns.map(|start_ns| now_ns - start_ns).filter(|&wall_ns| wall_ns >= 0) {
        end.totals.set(WALL, wall_ns, Measured, Account::Cancel);
    }
    let counted = Reading::after_end(host, record).cgroup;
    for column in [CPU, CPU_USER, CPU_SYSTEM, MEMORY_PEAK] {
        if counted[column] != MISSING {
            end.totals.set(column, counted[column], Measured, Account::Cgroup);
        }
    }
    end
}

/// The processes to end. A record written by another user is used for that user's processes only.
fn members(setting: &Setting, record: &Record) -> Vec<Process> {
    let mut members = processes::of_job(&setting.host, record);
    if record.uid != Some(rustix::process::getuid().as_raw()) {
        members.retain(|process| setting.host.owner(process.id) == record.uid);
    }
    members
}

fn send_supervisor(setting: &Setting, record: &Record, signal: i32) -> Result<()> {
    supervisor(setting, record).map_or(Ok(()), |supervisor| send(setting, supervisor, signal))
}

/// Signals the supervisor of a job and waits until it has written the end.
pub fn tell_supervisor(setting: &Setting, record: &Record, signal: i32) -> Result<()> {
    send_supervisor(setting, record, signal)?;
    wait_for_supervisor(setting, record);
    Ok(())
}

fn supervisor(setting: &Setting, record: &Record) -> Option<ProcessId> {
    let supervisor = record.local.as_ref()?.supervisor?;
    (setting.host.is_alive(supervisor) && setting.host.owner(supervisor) == record.uid).then_some(supervisor)
}

/// The signal, then, when the grace is over, SIGKILL, until nothing is left. New processes get it too.
fn end_all(setting: &Setting, record: &Record, signal: i32, grace: Duration) -> Result<()> {
    let begin = Instant::now();
    let mut reported = std::collections::HashSet::new();
    let mut progress = Progress::default();
    loop {
        let living = members(setting, record);
        if living.is_empty() {
            progress.clear();
            return Ok(());
        }
        progress.show(begin.elapsed(), grace, living.len());
        let late = begin.elapsed() >= grace;
        if late {
            kill_cgroup(record);
        }
        for process in &living {
            if late {
                send(setting, process.id, libc::SIGKILL)?;
            } else if reported.insert(process.id) {
                send(setting, process.id, signal)?;
                // A stopped process sees no signal before it goes on.
                if process.state == 'T' {
                    send(setting, process.id, libc::SIGCONT)?;
                }
            }
        }
        if begin.elapsed() > grace + KILL_TIMEOUT {
            let pids: Vec<_> = living.iter().map(|process| process.id.pid.to_string()).collect();
            bail!("job {}: these processes are still running: {}", record.key.id, pids.join(", "));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A line on the terminal while a job takes its time to end.
#[derive(Default)]
struct Progress {
    shown: bool,
}

impl Progress {
    fn show(&mut self, elapsed: Duration, grace: Duration, living: usize) {
        if elapsed > Duration::from_secs(1) && io::stderr().is_terminal() {
            let left = grace.saturating_sub(elapsed).as_secs();
            let _ = write!(io::stderr(), "\r\x1b[Kwaiting for {living} processes to end; killed in {left}s");
            self.shown = true;
        }
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Kills everything in a cgroup at once, faster than anything can fork.
fn kill_cgroup(record: &Record) {
    let unified = record.local.as_ref().and_then(|local| local.cgroup.unified.as_ref());
    if let Some(unified) = unified {
        let _ = std::fs::write(unified.join("cgroup.kill"), "1");
    }
}

/// Signals this very process; one that has ended meanwhile is no error.
fn send(setting: &Setting, process: ProcessId, signal: i32) -> Result<()> {
    let Some(pid) = Pid::from_raw(process.pid as i32) else { return Ok(()) };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    // Checked while the descriptor is open: the pid may have been reused.
    if !setting.host.is_alive(process) {
        return Ok(());
    }
    // SAFETY: the number was checked, or is one of libc's.
    let signal = unsafe { Signal::from_raw_unchecked(signal) };
    match pidfd_send_signal(&pidfd, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => {
            Err(io::Error::from(error)).with_context(|| format!("cannot signal process {}", process.pid))
        }
    }
}

/// When this returns, the end of the job is on disk.
fn wait_for_supervisor(setting: &Setting, record: &Record) {
    let attached = record.local.as_ref().is_some_and(|local| local.origin == Origin::Attach);
    let timeout = if attached { Duration::from_secs(3) } else { KILL_TIMEOUT };
    let begin = Instant::now();
    while supervisor(setting, record).is_some()
        && !jobs::waits_for_daemon(setting, record)
        && begin.elapsed() < timeout
    {
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use met_core::job::GpuUse;
    use met_core::job_table::{
        COST, EMISSIONS, ENERGY, GPU_ENERGY, GPU_MEMORY_PEAK, MEMORY_NEEDED, MEMORY_NEEDED_PEAK,
    };
    use met_insight::average;

    use super::*;
    use met_core::sample;

    #[test]
    fn a_lost_job_that_was_ended_is_cancelled_with_the_time_it_ran() {
        let host = Host::real().unwrap();
        let mut lost = sample::bare(1, "x");
        (lost.state, lost.end_ns) = (State::Lost, None);
        let start_ns = lost.start_ns.unwrap();
        let end = end_of_lost(&host, &lost, start_ns + 5_000);
        assert_eq!((end.state, end.end_ns, end.exit_code), (State::Cancelled, Some(start_ns + 5_000), None));
        assert_eq!(end.totals.get(WALL), Some(5_000));
        assert_eq!(end.totals.get(CPU), lost.totals.get(CPU), "without a cgroup nothing more is known");
    }

    #[test]
    fn what_was_not_measured_to_the_end_of_a_lost_job_is_a_lower_bound() {
        let host = Host::real().unwrap();
        let mut lost = sample::full(1, "train");
        (lost.state, lost.end_ns) = (State::Lost, None);
        lost.gpus = vec![GpuUse { energy_kind: Some(Measured), ..GpuUse::default() }];
        for column in [ENERGY, EMISSIONS, COST, GPU_ENERGY, GPU_MEMORY_PEAK, MEMORY_NEEDED_PEAK] {
            lost.totals.set(column, 5, Measured, "test");
        }
        let now_ns = lost.start_ns.unwrap() + 3_600_000_000_000;
        let end = end_of_lost(&host, &lost, now_ns);
        let unmarked = end.totals.iter().filter(|(_, figure)| figure.kind != LowerBound);
        assert_eq!(unmarked.map(|(column, _)| column).collect::<Vec<_>>(), [WALL]);
        assert!(end.gpus.iter().all(|gpu| gpu.energy_kind == Some(LowerBound)));
        assert!(average::level(&lost, MEMORY_NEEDED).is_some(), "a mean of what was seen");
        assert_eq!(average::level(&end, MEMORY_NEEDED), None, "which is not that of the whole");
        assert!(met_insight::json::object(&end, now_ns)["average"].get("memory_ratio").is_none());
    }

    #[test]
    fn a_job_of_a_manager_is_left_to_it() {
        let mut record = sample::scheduled();
        record.state = met_core::job::State::Running;
        let own = sample::bare(1, "x");
        assert!(refuse_foreign(std::slice::from_ref(&own)).is_ok());
        let refusal =
            |record: &Record| refuse_foreign(&[own.clone(), record.clone()]).unwrap_err().to_string();
        assert_eq!(refusal(&record), "job slurm:1234_7 belongs to slurm; end it with: scancel 1234_7");
        record.key.manager = "session".to_owned();
        record.key.cluster = None;
        record.scheduling.alias = None;
        let words =
            "job session:1240 was not started by met; end its processes yourself: met ps session:1240";
        assert_eq!(refusal(&record), words);
    }
}
