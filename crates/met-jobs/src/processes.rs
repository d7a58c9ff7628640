//! The living processes of one job, looked up once: for `met ps`, `met cancel` and reports.

use crate::{JobSpec, Members};
use met_core::MISSING;
use met_core::gpu_holding::{self, Holding};
use met_core::job::{CgroupPaths, Local, Origin, ProcessId, Record, State};
use met_host::cgroup_files::{V1, V2};
use met_host::{Host, parse};

/// What process lists show of a supervisor.
pub const SUPERVISOR_NAME: &std::ffi::CStr = c"met-supervise";
/// The variable by which the processes of a job are found when nothing else is left of it.
pub const MARKER: &str = "MET_JOB";
/// The variable by which a job's own scripts may know their id.
pub const JOB_ID: &str = "MET_JOB_ID";

/// The variable with the file that a job's marks of work are appended to.
pub const MARKS: &str = "MET_MARKS";

/// Unique on a machine: ids are each user's own, and jobs of two users may begin in the same second.
pub fn marker(record: &Record, supervisor_pid: u32) -> String {
    format!("{}:{}:{}:{supervisor_pid}", record.key.manager, record.key.id, record.key.incarnation)
}

#[derive(Clone, Debug)]
pub struct Process {
    pub id: ProcessId,
    pub parent_pid: u32,
    /// The kernel's name for it, at most 15 bytes.
    pub name: String,
    pub state: char,
}

/// Where the processes of a job are to be found, as long as this boot lasts. A process that was attached to is the
/// job's only while it is measured: after `met detach` it runs on outside of any job.
pub fn spec(host: &Host, record: &Record, slot: u32) -> Option<JobSpec> {
    let local = record.local.as_ref().filter(|local| local.boot_id == host.facts().boot_id)?;
    let is_measured = record.state.is_live() || record.state == State::Lost;
    if local.origin == Origin::Attach && !is_measured {
        return None;
    }
    let mut roots: Vec<ProcessId> = local.main.into_iter().collect();
    roots.extend(session_members(host, record));
    Some(JobSpec {
        slot,
        supervisor: local.supervisor.filter(|_| local.origin != Origin::Attach),
        roots,
        cgroup: local.cgroup.clone(),
        more_cgroups: local.more_cgroups.clone(),
    })
}

/// The members of the session or process group that is the job; none if its number was reused.
fn session_members(host: &Host, record: &Record) -> Vec<ProcessId> {
    let by_session = match record.key.manager.as_str() {
        "session" => true,
        "group" => false,
        _ => return Vec::new(),
    };
    let parsed = record
        .key
        .id
        .split_once('-')
        .and_then(|(number, start)| Some((number.parse::<i64>().ok()?, start.parse::<u64>().ok()?)));
    let Some((number, start_ticks)) = parsed else { return Vec::new() };
    let (mut buffer, mut pids) = (Vec::new(), Vec::new());
    let listed = host.proc_dir().list(&mut buffer, |name, _, _| pids.extend(parse::u32(name)));
    let member = |pid: u32, buffer: &mut Vec<u8>| {
        host.read_small(format!("/proc/{pid}/stat"), buffer).ok()?;
        let stat = parse::stat(buffer)?;
        let of = if by_session { stat.session } else { stat.process_group };
        (of == number).then_some(ProcessId { pid, start_ticks: stat.start_ticks })
    };
    let members: Vec<ProcessId> = pids.into_iter().filter_map(|pid| member(pid, &mut buffer)).collect();
    // A leader that began later than the job gave the number to another one.
    let is_other =
        |process: &ProcessId| i64::from(process.pid) == number && process.start_ticks != start_ticks;
    if listed.is_err() || members.iter().any(is_other) { Vec::new() } else { members }
}

/// Everything of the job that is alive. Zombies are not.
pub fn of_job(host: &Host, record: &Record) -> Vec<Process> {
    let Some(spec) = spec(host, record, 0) else { return Vec::new() };
    // A job that another manager started has no marker either.
    let ours = record.key.manager == met_core::job::LOCAL;
    let orphaned = ours
        && spec.cgroup.is_empty()
        && !spec.supervisor.is_some_and(|supervisor| host.is_alive(supervisor));
    let mut ids = Vec::new();
    let mut members = Members::default();
    members.add(spec);
    if members.refresh(host).is_ok() {
        ids.extend(members.processes_of(0));
    }
    if orphaned {
        let supervisor = record.local.as_ref().and_then(|local| local.supervisor);
        let variable = format!("{MARKER}={}", marker(record, supervisor.map_or(0, |id| id.pid)));
        ids.extend(crate::find_by_marker(host, &variable).unwrap_or_default());
    }
    ids.sort_unstable_by_key(|id| (id.start_ticks, id.pid));
    ids.dedup();
    ids.into_iter()
        .filter_map(|id| look_at(host, id))
        .filter(|process| !matches!(process.state, 'Z' | 'X'))
        .collect()
}

/// The pids of a job that another manager started, in the order in which they began. Nothing else is read of them.
pub fn pids_of(host: &Host, record: &Record) -> Vec<u32> {
    let mut members = Members::default();
    if let Some(spec) = spec(host, record, 0) {
        members.add(spec);
    }
    let is_listed = members.refresh(host).is_ok();
    let mut ids: Vec<ProcessId> = members.processes_of(0).filter(|_| is_listed).collect();
    ids.sort_unstable_by_key(|id| (id.start_ticks, id.pid));
    ids.into_iter().map(|id| id.pid).collect()
}

/// The same for a supervised job, with those that left its cgroup: no descendant leaves its supervisor.
pub fn of_supervised(host: &Host, record: &Record) -> Vec<Process> {
    let mut found = of_job(host, record);
    if record.local.as_ref().is_some_and(|local| !local.cgroup.is_empty()) {
        found.extend(of_tree(host, record));
        found.sort_unstable_by_key(|process| (process.id.start_ticks, process.id.pid));
        found.dedup_by_key(|process| process.id);
    }
    found
}

/// The living descendants of a job's supervisor, wherever they are.
pub fn of_tree(host: &Host, record: &Record) -> Vec<Process> {
    let local = record.local.clone().map(|local| Local { cgroup: CgroupPaths::default(), ..local });
    of_job(host, &Record { local, ..record.clone() })
}

/// CPU time of a living process, without its children's.
pub fn cpu_ns(host: &Host, process: ProcessId) -> Option<i64> {
    let mut text = Vec::new();
    host.read_small(format!("/proc/{}/stat", process.pid), &mut text).ok()?;
    let stat = parse::stat(&text).filter(|stat| stat.start_ticks == process.start_ticks)?;
    let ticks = parse::sum(stat.user_ticks, stat.system_ticks);
    Some(parse::scaled(ticks, 1_000_000_000 / host.facts().ticks_per_second)).filter(|&ns| ns != MISSING)
}

/// Which of these jobs a process is part of: the innermost, where they are nested.
pub fn job_of<'a>(host: &Host, jobs: &'a [Record], process: ProcessId) -> Option<&'a Record> {
    let mut members = Members::default();
    for (slot, record) in (0..).zip(jobs) {
        // `Members` keeps one job for each root process: another one with the same would hide this one.
        if record.local.as_ref().and_then(|local| local.main) == Some(process) {
            return Some(record);
        }
        if let Some(spec) = spec(host, record, slot) {
            members.add(spec);
        }
    }
    members.refresh(host).ok()?;
    let of = |slot: &u32| members.processes_of(*slot).any(|member| member == process);
    let found = (0..).zip(jobs).filter(|(slot, _)| of(slot));
    found.map(|(_, record)| record).max_by_key(|record| record.start_ns)
}

/// One process, if it is still there.
pub fn look_at(host: &Host, id: ProcessId) -> Option<Process> {
    let mut text = Vec::new();
    host.read_small(format!("/proc/{}/stat", id.pid), &mut text).ok()?;
    let stat = parse::stat(&text).filter(|stat| stat.start_ticks == id.start_ticks)?;
    Some(Process {
        id,
        parent_pid: stat.parent_pid,
        name: String::from_utf8_lossy(stat.name).into_owned(),
        state: char::from(stat.state),
    })
}

/// Whether a process is a daemon of this very program.
pub fn is_daemon(host: &Host, pid: u32) -> bool {
    is_same_program(pid) == Some(true)
        && command_of(host, pid).get(1).is_some_and(|argument| argument == "daemon")
}

/// Whether a process is a supervisor of this very program whose job is over.
pub fn is_supervisor_at_its_end(host: &Host, pid: u32) -> bool {
    let name = host.process(pid).ok().and_then(|process| host.process_name(process));
    // One that is about to be a zombie has no program any more, and then not even a name.
    name.is_none_or(|name| name.as_bytes() == SUPERVISOR_NAME.to_bytes())
        && is_same_program(pid) != Some(false)
        && children_of(host, pid).is_empty()
}

/// Whether it runs this program; `None` if it runs none any more.
fn is_same_program(pid: u32) -> Option<bool> {
    let (theirs, ours) =
        (std::fs::read_link(format!("/proc/{pid}/exe")).ok()?, std::env::current_exe().ok()?);
    Some(theirs == ours)
}

/// The children of the first thread of a process, which is the only one of a supervisor.
pub fn children_of(host: &Host, pid: u32) -> Vec<u32> {
    let mut text = Vec::new();
    let read = host.read_small(format!("/proc/{pid}/task/{pid}/children"), &mut text);
    read.map_or_else(|_| Vec::new(), |()| parse::fields(&text).filter_map(parse::u32).collect())
}

/// Whether nothing has run in a cgroup yet. One that cannot be read may have been used.
pub fn is_unused(host: &Host, cgroup: &CgroupPaths) -> bool {
    used_ns(host, cgroup) == Some(0)
}

/// CPU time that was used in a cgroup.
pub fn used_ns(host: &Host, cgroup: &CgroupPaths) -> Option<i64> {
    let mut text = Vec::new();
    let used = match (&cgroup.unified, &cgroup.cpuacct) {
        (Some(unified), _) => {
            host.read_small(unified.join(V2.cpu_usage), &mut text).ok()?;
            parse::scaled(parse::value_of(&text, "usage_usec"), 1000)
        }
        (None, Some(cpuacct)) => {
            host.read_small(cpuacct.join(V1.cpu_usage), &mut text).ok()?;
            parse::cell(text.trim_ascii())
        }
        (None, None) => return None,
    };
    Some(used).filter(|&used| used != MISSING)
}

/// The command line of a process; nothing where it has none.
pub fn command_of(host: &Host, pid: u32) -> Vec<String> {
    let mut text = Vec::new();
    if host.read_small(format!("/proc/{pid}/cmdline"), &mut text).is_err() {
        return Vec::new();
    }
    if text.is_empty() {
        return Vec::new();
    }
    let arguments = text.strip_suffix(b"\0").unwrap_or(&text).split(|&byte| byte == 0);
    arguments.map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}

/// The GPUs given to a process, by its environment or else by its devices cgroup; `None` if neither says.
pub fn holdings(host: &Host, process: ProcessId) -> Vec<Holding> {
    let mut text = Vec::new();
    // The devices of others may be looked at, and their environments may not.
    if host.read_small(format!("/proc/{}/environ", process.pid), &mut text).is_err() {
        text.clear();
    }
    let mut held = gpu_holding::of_environ(&text);
    if held.is_empty() {
        held.extend(devices_of(host, process.pid));
    }
    // Read first and looked at then: the number may have become another process's.
    if host.is_alive(process) { held } else { Vec::new() }
}

/// Only cgroup v1 shows which devices are allowed; on v2 it is a program in the kernel.
fn devices_of(host: &Host, pid: u32) -> Option<Holding> {
    let mut text = Vec::new();
    host.read_small(format!("/proc/{pid}/cgroup"), &mut text).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let path = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == "devices").then_some(path)
    })?;
    let mut list = Vec::new();
    host.read_small(format!("/sys/fs/cgroup/devices{path}/devices.list"), &mut list).ok()?;
    gpu_holding::of_devices(&list)
}
