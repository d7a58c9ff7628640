//! What all sources that are on by default cost together: 100 jobs, 1,000 processes, a tick each second.
//!
//! Run it with `cargo run --release -p met-benches --bin sources`. It takes half a minute, because in a loop
//! everything would be in a cache and look cheap. What a machine does not have costs nothing here.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use met_core::attribute::JobMap;
use met_host::{Host, Targets, clock};
use met_jobs::{JobSpec, Members};
use met_sources::{Options, Runner, SOURCES, TickInfo, self_cost};

const JOBS: u32 = 100;
const PROCESSES_OF_A_JOB: usize = 10;
const TICKS: u32 = 30;
const SLOW_EVERY: u32 = 10;
/// Whatever happens to this program, what it started ends by itself.
const SLEEP_SECONDS: u32 = 300;

fn main() -> Result<()> {
    met_host::raise_open_file_limit()?;
    let host = Host::real()?;
    let mut members = Members::new();
    let groups = (0..JOBS).map(|_| Group::start()).collect::<Result<Vec<_>>>()?;
    for (slot, group) in (0..).zip(&groups) {
        members.add(JobSpec { slot, roots: vec![host.process(group.0.id())?], ..JobSpec::default() });
    }
    let (mut targets, mut map) = (Targets::default(), JobMap::default());
    let begin = Instant::now();
    while targets.tasks.len() < JOBS as usize * PROCESSES_OF_A_JOB {
        ensure!(begin.elapsed() < Duration::from_secs(60), "the processes did not start in a minute");
        std::thread::sleep(Duration::from_millis(100));
        members.refresh(&host)?;
        targets.clear();
        map.clear();
        members.fill(&mut targets, &mut map);
    }
    // Jobs are young for ten seconds, which costs more; a daemon spends its life after them.
    targets.tasks.iter_mut().for_each(|task| task.young = false);
    let mut runner = Runner::open(&host, &Options { node: true, ..Options::default() });
    let mut membership_ns = 0;
    for tick in 0..TICKS {
        std::thread::sleep(Duration::from_secs(1));
        let begin_ns = clock::thread_cpu_ns();
        members.refresh(&host)?;
        membership_ns += clock::thread_cpu_ns() - begin_ns;
        let slow = tick.is_multiple_of(SLOW_EVERY);
        runner.read(&targets, &TickInfo::of(slow));
    }
    println!("{} processes of {JOBS} jobs, {TICKS} ticks", targets.tasks.len());
    let mut spent_ns = membership_ns;
    print("membership", membership_ns, i64::from(TICKS));
    for (row, cells) in runner.costs().rows() {
        let ns = cells[self_cost::READ_CPU] + cells[self_cost::BACKGROUND_CPU];
        let name = SOURCES.get(row.part as usize).context("a source without a name")?.name;
        print(name, ns, cells[self_cost::READINGS]);
        spent_ns += ns;
    }
    println!("together {:.2} % of a core (goal 1.5)", spent_ns as f64 / 1e9 / f64::from(TICKS) * 100.0);
    Ok(())
}

fn print(name: &str, spent_ns: i64, readings: i64) {
    let each_us = spent_ns as f64 / 1000.0 / readings.max(1) as f64;
    println!("  {name:<12} {readings:>4} readings, {each_us:>8.1} µs each");
}

/// A job's processes in a group of their own, which ends with this value.
struct Group(Child);

impl Group {
    fn start() -> Result<Group> {
        let sleeping = format!("sleep {SLEEP_SECONDS} & ").repeat(PROCESSES_OF_A_JOB - 1);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{sleeping} wait")]).stdin(Stdio::null()).process_group(0);
        Ok(Group(command.spawn().context("sh")?))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}
