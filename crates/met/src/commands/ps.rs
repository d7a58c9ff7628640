//! `met ps`: the processes of a running job, as of now, or the largest of one that is over.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use met_core::{MISSING, Subject, gpu};
use met_host::{Targets, TaskRole, TaskTarget};
use met_sources::{Runner, TickInfo, process};

use crate::cli::PsArgs;
use crate::managers;
use crate::output;
use crate::view::ps::{self, ProcessLine};
use crate::view::text;
use met_agent::sampler;
use met_host::users;
use met_jobs::processes::{self, Process};
use met_query::jobs::AllJobs;
use met_query::setting::Setting;

/// A driver without its daemon takes seconds to wake a GPU up.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Over this time the present use of the CPU is measured.
const LOOK_FOR: Duration = Duration::from_millis(200);

pub fn ps(setting: &Setting, args: &PsArgs) -> Result<i32> {
    let record = AllJobs::open(setting)?.find_to_show(&args.job)?;
    let processes = processes::of_job(&setting.host, &record);
    let mut stdout = output::stdout();
    if processes.is_empty() {
        let elsewhere = managers::is_foreign(&record) && record.state.is_live();
        let why = if elsewhere { " on this machine" } else { "" };
        let (label, state) = (record.label(), record.state.name());
        if record.processes.is_empty() {
            writeln!(stdout, "Job {label} has no running processes{why} ({state})")?;
            return Ok(0);
        }
        let style = stdout.style();
        let head = format!("Job {label} ({state}): its largest processes by CPU time, memory and I/O");
        let head = text::hanging(&head, 4, &style);
        write!(stdout, "{head}\n{}", ps::largest(&record, &style))?;
        return Ok(0);
    }
    let lines = look(setting, &processes);
    stdout.write_all(ps::tree(&lines, &stdout.style()).as_bytes())?;
    Ok(0)
}

fn look(setting: &Setting, processes: &[Process]) -> Vec<ProcessLine> {
    let target =
        |process: &Process| TaskTarget::new(process.id.pid, process.id.start_ticks, TaskRole::Member, true);
    let targets = Targets { cgroups: Vec::new(), tasks: processes.iter().map(target).collect() };
    let mut runner = Runner::open(&setting.host, &sampler::options(&setting.config, TIMEOUT));
    let before = read(&mut runner, &targets);
    std::thread::sleep(LOOK_FOR);
    let after = read(&mut runner, &targets);
    let on_gpus = gpus(&runner);
    let line = |process: &Process| {
        let find = |rows: &[(Subject, Vec<i64>)]| {
            let subject = Subject::Task { pid: process.id.pid, start_ticks: process.id.start_ticks };
            rows.iter().find(|(owner, _)| *owner == subject).map(|(_, cells)| cells.clone())
        };
        let mut line = to_line(setting, process, find(&before)?, find(&after)?);
        add_gpus(&mut line, &on_gpus);
        Some(line)
    };
    processes.iter().filter_map(line).collect()
}

fn read(runner: &mut Runner, targets: &Targets) -> Vec<(Subject, Vec<i64>)> {
    runner.read(targets, &TickInfo::of(true));
    let batch = runner.batches().iter().find(|batch| std::ptr::eq(batch.table, &process::TABLE));
    batch
        .map(|batch| batch.rows().map(|(row, cells)| (row.owner, cells.to_vec())).collect())
        .unwrap_or_default()
}

/// A process on a GPU: pid, the GPU's number, memory and use.
type OnGpu = (u32, String, i64, i64);

fn gpus(runner: &Runner) -> Vec<OnGpu> {
    let mut found = Vec::new();
    for (batches, labels) in runner.labelled() {
        for batch in batches.iter().filter(|batch| std::ptr::eq(batch.table, &gpu::process::TABLE)) {
            for (row, cells) in batch.rows().filter(|(_, cells)| cells[gpu::process::OPEN] != 0) {
                if let (Subject::Task { pid, .. }, Some(labels)) = (row.owner, labels.get(row.part as usize))
                {
                    let index = labels[gpu::device::label::INDEX].clone();
                    found.push((pid, index, cells[gpu::process::MEMORY], cells[gpu::process::UTILIZATION]));
                }
            }
        }
    }
    found
}

fn add_gpus(line: &mut ProcessLine, on_gpus: &[OnGpu]) {
    for (_, index, memory, utilization) in on_gpus.iter().filter(|(pid, ..)| *pid == line.pid) {
        line.gpus.push(index.clone());
        if *memory != MISSING {
            line.gpu_memory_bytes = Some(line.gpu_memory_bytes.unwrap_or(0) + memory.unsigned_abs());
        }
        if *utilization != MISSING {
            line.gpu_utilization = Some(line.gpu_utilization.unwrap_or(0.0) + *utilization as f64 / 1e3);
        }
    }
}

fn to_line(setting: &Setting, process: &Process, before: Vec<i64>, after: Vec<i64>) -> ProcessLine {
    let count = |cell: i64| u64::try_from(cell).ok();
    let cpu = |cells: &[i64]| (cells[process::CPU] != MISSING).then(|| cells[process::CPU] as f64 / 1e9);
    let percent = match (cpu(&before), cpu(&after)) {
        (Some(before), Some(after)) => Some((after - before) / LOOK_FOR.as_secs_f64() * 100.0),
        _ => None,
    };
    // A kernel thread, or one that has just ended, has no command line.
    let command = processes::command_of(&setting.host, process.id.pid);
    let uid = setting.host.owner(process.id);
    ProcessLine {
        pid: process.id.pid,
        ppid: process.parent_pid,
        user: uid.map(|uid| users::name_of(uid).unwrap_or_else(|| uid.to_string())),
        state: process.state,
        cpu_seconds: cpu(&after),
        cpu_percent: percent,
        memory_bytes: count(after[process::MEMORY_RESIDENT]),
        threads: count(after[process::THREADS]),
        read_bytes: count(after[process::READ]),
        written_bytes: count(after[process::WRITTEN]),
        gpu_utilization: None,
        gpu_memory_bytes: None,
        gpus: Vec::new(),
        command: if command.is_empty() { vec![format!("[{}]", process.name)] } else { command },
    }
}
