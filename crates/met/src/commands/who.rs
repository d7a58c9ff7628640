//! `met who`: who uses this machine now, by user and process, inside jobs and outside.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use met_core::MISSING;
use met_core::job::{ProcessId, Record, State};
use met_host::{Host, parse, users};
use met_jobs::{Members, processes};
use serde_json::{Value, json};

use crate::cli::WhoArgs;
use crate::output;
use crate::view::who::{self, ProcessUse, UserUse};
use met_query::jobs::{AllJobs, JobsFilter};
use met_query::setting::Setting;

/// Over this time the present use of the CPU is measured.
const LOOK_FOR: Duration = Duration::from_millis(500);
/// Processes that are shown, the busiest.
const SHOWN: usize = 10;

pub fn who(setting: &Setting, args: &WhoArgs) -> Result<i32> {
    let host = &setting.host;
    let states = vec![State::Running, State::Suspended];
    let jobs = AllJobs::open(setting)?.jobs(&JobsFilter { states, ..JobsFilter::default() })?;
    let (before, begin) = (scan(host), Instant::now());
    std::thread::sleep(LOOK_FOR);
    let (after, elapsed) = (scan(host), begin.elapsed().as_secs_f64());
    let labels = labels(host, &jobs);
    let mut found: Vec<ProcessUse> = Vec::new();
    for (id, seen) in &after {
        // One that began meanwhile used what it has used.
        let cpu_before = before.get(id).map_or(0, |seen| seen.cpu_ns);
        let uid = host.owner(ProcessId { pid: id.0, start_ticks: id.1 });
        found.push(ProcessUse {
            pid: id.0,
            user: uid.map(|uid| users::name_of(uid).unwrap_or_else(|| uid.to_string())),
            job: labels.get(id).cloned(),
            cores: (seen.cpu_ns - cpu_before).max(0) as f64 / 1e9 / elapsed,
            memory_bytes: seen.memory_bytes,
            command: Vec::new(),
        });
    }
    let users = by_user(&found);
    found.sort_by(|one, other| {
        other.cores.total_cmp(&one.cores).then(other.memory_bytes.cmp(&one.memory_bytes))
    });
    found.truncate(SHOWN);
    for process in &mut found {
        process.command = processes::command_of(host, process.pid);
    }
    let mut stdout = output::stdout();
    let text = match args.json {
        true => format!("{}\n", object(&users, &found)),
        false => who::text(&users, &found, host.facts().cpu_count, &stdout.style()),
    };
    stdout.write_all(text.as_bytes())?;
    Ok(0)
}

#[derive(Clone, Copy)]
struct Seen {
    cpu_ns: i64,
    memory_bytes: u64,
}

type Id = (u32, u64);

/// Every process but the kernel's own threads.
fn scan(host: &Host) -> BTreeMap<Id, Seen> {
    let (mut buffer, mut pids) = (Vec::new(), Vec::new());
    // What cannot be listed cannot be shown.
    let _ = host.proc_dir().list(&mut buffer, |name, _, _| pids.extend(parse::u32(name)));
    let tick_ns = 1_000_000_000 / host.facts().ticks_per_second;
    let mut found = BTreeMap::new();
    for pid in pids {
        // A process that ended since the listing is not an error.
        if host.read_small(format!("/proc/{pid}/stat"), &mut buffer).is_err() {
            continue;
        }
        let Some(stat) = parse::stat(&buffer) else { continue };
        let cpu_ns = parse::scaled(parse::sum(stat.user_ticks, stat.system_ticks), tick_ns);
        let (start_ticks, is_kernels) = (stat.start_ticks, pid == 2 || stat.parent_pid == 2);
        if is_kernels || cpu_ns == MISSING || matches!(stat.state, b'Z' | b'X') {
            continue;
        }
        let mut pages = 0;
        if host.read_small(format!("/proc/{pid}/statm"), &mut buffer).is_ok() {
            pages = parse::fields(&buffer).nth(1).and_then(parse::u64).unwrap_or(0);
        }
        let memory_bytes = pages.saturating_mul(rustix::param::page_size() as u64);
        found.insert((pid, start_ticks), Seen { cpu_ns, memory_bytes });
    }
    found
}

/// The innermost job of each process that is in one.
fn labels(host: &Host, jobs: &[Record]) -> BTreeMap<Id, String> {
    let mut members = Members::default();
    let mut sorted: Vec<&Record> = jobs.iter().collect();
    sorted.sort_by_key(|record| record.start_ns);
    for (slot, record) in (0..).zip(&sorted) {
        if let Some(spec) = processes::spec(host, record, slot) {
            members.add(spec);
        }
    }
    let mut labels = BTreeMap::new();
    if members.refresh(host).is_ok() {
        for (slot, record) in (0..).zip(&sorted) {
            for process in members.processes_of(slot) {
                labels.insert((process.pid, process.start_ticks), record.label());
            }
        }
    }
    labels
}

fn by_user(found: &[ProcessUse]) -> Vec<UserUse> {
    let mut users: BTreeMap<Option<String>, UserUse> = BTreeMap::new();
    for process in found {
        let user = users.entry(process.user.clone()).or_default();
        user.name.clone_from(&process.user);
        user.processes += 1;
        user.cores += process.cores;
        user.memory_bytes += process.memory_bytes;
        match &process.job {
            Some(job) => drop(user.jobs.insert(job.clone())),
            None => {
                user.outside_cores += process.cores;
                user.outside_memory_bytes += process.memory_bytes;
            }
        }
    }
    let mut users: Vec<UserUse> = users.into_values().collect();
    users.sort_by(|one, other| {
        other.cores.total_cmp(&one.cores).then(other.memory_bytes.cmp(&one.memory_bytes))
    });
    users
}

fn object(users: &[UserUse], processes: &[ProcessUse]) -> Value {
    let user = |user: &UserUse| {
        json!({
            "user": user.name,
            "processes": user.processes,
            "cores": user.cores,
            "memory_bytes": user.memory_bytes,
            "jobs": user.jobs,
            "outside_jobs": { "cores": user.outside_cores, "memory_bytes": user.outside_memory_bytes },
        })
    };
    let process = |process: &ProcessUse| {
        json!({
            "pid": process.pid,
            "user": process.user,
            "job": process.job,
            "cores": process.cores,
            "memory_bytes": process.memory_bytes,
            "command": process.command,
        })
    };
    json!({
        "users": users.iter().map(user).collect::<Vec<_>>(),
        "processes": processes.iter().map(process).collect::<Vec<_>>(),
    })
}
