//! `met attach`: measures a process that already runs.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use met_core::job::{LOCAL, Origin, ProcessId, Record, State};
use met_host::{Host, parse};

use crate::cli::{AttachArgs, DetachArgs};
use crate::commands::cancel;
use crate::output;
use met_agent::launch::{self, Draft};
use met_agent::supervise::Notice;
use met_config::Failure;
use met_jobs::processes;
use met_query::jobs::{AllJobs, JobsFilter};
use met_query::protocol;
use met_query::setting::Setting;

pub fn attach(setting: &Setting, args: &AttachArgs) -> Result<i32> {
    let pid = args.pid;
    let gone = || Failure::usage(format!("no process {pid}; `ps -e` lists all"));
    let process = setting.host.process(pid).map_err(|_| gone())?;
    if !setting.host.is_alive(process) {
        return Err(gone());
    }
    if pid == 1 || is_kernel_thread(&setting.host, pid) {
        return Err(Failure::usage(format!("process {pid} belongs to the system; cannot attach")));
    }
    let owner = rustix::fs::stat(format!("/proc/{pid}")).map_err(|_| gone())?.st_uid;
    let me = rustix::process::getuid().as_raw();
    if me != 0 && owner != me {
        return Err(Failure::usage(format!(
            "process {pid} belongs to another user; only root may measure it"
        )));
    }
    refuse_measured(setting, process)?;
    let command = processes::command_of(&setting.host, pid);
    let name = args.name.clone().unwrap_or_else(|| name_of(&setting.host, pid));
    let draft = Draft {
        origin: Origin::Attach,
        name: Some(&name),
        command,
        cwd: std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_else(|_| PathBuf::from("/")),
        stdout: None,
        stderr: None,
        keep: true,
        until_last: false,
        pid: Some(pid),
        env: Vec::new(),
    };
    let mut assignment = launch::assign(setting, draft, None)?;
    if let Some(local) = &mut assignment.record.local {
        local.main = Some(process);
    }
    let mut channel = launch::exec_watcher(&assignment)?;
    let record = match protocol::read_frame(&mut channel).context("the supervisor died before it attached")? {
        Notice::Started(record) => record,
        Notice::Failed { message } => bail!("cannot attach to {pid}: {message}"),
        notice => bail!("unexpected reply {notice:?}"),
    };
    let (id, name) = (&record.key.id, crate::view::text::escape(&record.name));
    let announced = match args.print_id {
        true => writeln!(output::stdout(), "{id}"),
        false => writeln!(output::stdout(), "Attached to pid {pid} as job {id} \"{name}\""),
    };
    let not_announced = |error| super::not_announced(&record, &error, args.print_id, "is measured", "detach");
    Ok(announced.map_or_else(not_announced, |()| 0))
}

/// What is measured already is not measured twice: the two would share what is sampled of it.
fn refuse_measured(setting: &Setting, process: ProcessId) -> Result<()> {
    let live = JobsFilter {
        states: vec![State::Running, State::Suspended, State::Pending],
        manager: Some(LOCAL.to_owned()),
        ..JobsFilter::default()
    };
    let jobs = AllJobs::open(setting)?.jobs(&live)?;
    let Some(job) = processes::job_of(&setting.host, &jobs, process) else { return Ok(()) };
    let (pid, id, name) = (process.pid, &job.key.id, crate::view::text::escape(&job.name));
    Err(Failure::usage(match job.local.as_ref().and_then(|local| local.main) == Some(process) {
        true => format!("process {pid} is already measured as job {id} \"{name}\"; see: met show {id}"),
        false => format!("process {pid} is already part of job {id} \"{name}\"; see: met ps {id}"),
    }))
}

/// Ends the measuring; the process runs on.
pub fn detach(setting: &Setting, args: &DetachArgs) -> Result<i32> {
    let is_measured = |record: &Record| record.state.is_live();
    let record = AllJobs::open(setting)?.find_to_change(&args.job, is_measured)?;
    let id = &record.key.id;
    let attached = record.local.as_ref().is_some_and(|local| local.origin == Origin::Attach);
    if !attached || !record.state.is_live() {
        return Err(Failure::usage(format!("job {id} is not attached to a running process")));
    }
    cancel::tell_supervisor(setting, &record, libc::SIGTERM)?;
    writeln!(output::stdout(), "Detached job {id}; its process keeps running")?;
    Ok(0)
}

/// All of them are children of kthreadd, which has pid 2 and no parent.
fn is_kernel_thread(host: &Host, pid: u32) -> bool {
    let mut text = Vec::new();
    let read = host.read_small(format!("/proc/{pid}/stat"), &mut text);
    pid == 2 || (read.is_ok() && parse::stat(&text).is_some_and(|stat| stat.parent_pid == 2))
}

fn name_of(host: &Host, pid: u32) -> String {
    let mut text = Vec::new();
    let _ = host.read_small(format!("/proc/{pid}/comm"), &mut text);
    let name = String::from_utf8_lossy(&text).trim_end().to_owned();
    if name.is_empty() { "job".to_owned() } else { name }
}
