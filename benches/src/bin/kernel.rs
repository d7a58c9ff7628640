//! What the kernel's own accounts cost: taskstats per process, perf events per event, CPU and job, and the
//! thread that receives exits.
//!
//! Run it as root with `cargo run --release -p met-benches --bin kernel`.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use met_benches::say;
use met_core::job::CgroupPaths;
use met_host::cgroup::{CgroupDirs, Hierarchies};
use met_host::{CgroupTarget, Host, Look, Targets, TaskRole, TaskTarget, clock};
use met_jobs::{JobSpec, Members};
use met_sources::perf;
use met_sources::taskstats::exits::Exits;
use met_sources::{Options, Runner, TickInfo};

const PROCESSES: usize = 2_000;
const CGROUPS: usize = 100;
const EVENTS: [&str; 4] = ["page_faults", "context_switches", "cpu_migrations", "task_clock"];
const ROUNDS: usize = 50;
/// Exits of processes that are received.
const ENDS: usize = 2_000;
const IDLE: Duration = Duration::from_secs(5);
/// Whatever happens to this program, what it started ends by itself.
const SLEEP_SECONDS: u32 = 300;

fn main() -> Result<()> {
    met_host::raise_open_file_limit()?;
    let host = Host::real()?;
    bench_taskstats(&host)?;
    bench_exits(&host)?;
    bench_perf(&host)
}

/// CPU time of one reading of one source, in µs. The pause lets caches cool as they do between real ticks.
fn measure_us(runner: &mut Runner, targets: &Targets, tick: TickInfo) -> f64 {
    runner.read(targets, &tick);
    let mut spent_ns = 0;
    for _ in 0..ROUNDS {
        std::thread::sleep(Duration::from_millis(20));
        let begin_ns = clock::thread_cpu_ns();
        runner.read(targets, &tick);
        spent_ns += clock::thread_cpu_ns() - begin_ns;
    }
    spent_ns as f64 / 1000.0 / ROUNDS as f64
}

fn only(host: &Host, names: &'static [&'static str], events: &[&str]) -> Runner {
    let events = events.iter().map(|&name| name.to_owned()).collect();
    Runner::open(host, &Options { only: Some(names), events, ..Options::default() })
}

/// Processes in a group of their own, which ends with this value.
struct Group(Child);

impl Group {
    fn start(script: &str) -> Result<Group> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).process_group(0);
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

fn bench_taskstats(host: &Host) -> Result<()> {
    let script =
        format!("i=0; while [ $i -lt {PROCESSES} ]; do sleep {SLEEP_SECONDS} & i=$((i+1)); done; wait");
    let group = Group::start(&script)?;
    let mut members = Members::new();
    members.add(JobSpec { slot: 1, roots: vec![host.process(group.0.id())?], ..JobSpec::default() });
    let begin = Instant::now();
    while members.processes_of(1).count() < PROCESSES {
        ensure!(begin.elapsed() < Duration::from_secs(60), "the processes did not start in a minute");
        std::thread::sleep(Duration::from_millis(100));
        members.refresh(host)?;
    }
    let target = |process: met_core::job::ProcessId| {
        TaskTarget::new(process.pid, process.start_ticks, TaskRole::Member, false)
    };
    let targets = Targets { tasks: members.processes_of(1).map(target).collect(), ..Targets::default() };
    let count = targets.tasks.len() as f64;
    let slow = TickInfo::of(true);
    let mut taskstats = only(host, &["taskstats"], &[]);
    if let Some((_, why)) = taskstats.unavailable().first() {
        say(&format!("taskstats: {why}"));
        return Ok(());
    }
    let us = measure_us(&mut taskstats, &targets, slow) / count;
    ensure!(taskstats.batches()[0].len() >= PROCESSES, "not every process was answered for");
    say(&format!("taskstats: {count} processes, {us:.2} µs each (goal 4)"));
    let mut process = only(host, &["process"], &[]);
    let us = measure_us(&mut process, &targets, TickInfo::default()) / count;
    say(&format!("beside it /proc/PID/stat, kept open: {us:.2} µs each"));
    drop(group);
    Ok(())
}

fn bench_exits(host: &Host) -> Result<()> {
    let exits = match Exits::listen(host) {
        Ok(exits) => exits,
        Err(why) => {
            say(&format!("exits: {why}"));
            return Ok(());
        }
    };
    let mut group = Group::start(&format!("i=0; while [ $i -lt {ENDS} ]; do (:); i=$((i+1)); done"))?;
    group.0.wait()?;
    std::thread::sleep(Duration::from_millis(200));
    let pid = group.0.id();
    let news = exits.take();
    let received = news.ends.iter().filter(|exit| exit.parent_pid == pid).count();
    let us = exits.cpu_ns() as f64 / 1000.0 / news.ends.len().max(1) as f64;
    say(&format!("exits: {received} of {ENDS} received, {} lost, {us:.2} µs each", news.losses));
    drop(group);
    bench_idle_listener(&exits)
}

/// What it costs to listen to the ends of processes that are of no job, at about a thousand a second.
fn bench_idle_listener(exits: &Exits) -> Result<()> {
    let burst = "i=0; while [ $i -lt 100 ]; do (:); i=$((i+1)); done; sleep 0.05";
    let group = Group::start(&format!("while :; do {burst}; done"))?;
    let (mut ends, mut taken_ns) = (0, 0);
    exits.take();
    let (begin, before_ns) = (Instant::now(), exits.cpu_ns());
    while begin.elapsed() < IDLE {
        std::thread::sleep(Duration::from_secs(1));
        let begin_ns = clock::thread_cpu_ns();
        ends += exits.take().ends.len();
        taken_ns += clock::thread_cpu_ns() - begin_ns;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let (rate, spent_ms) =
        (ends as f64 / seconds, (exits.cpu_ns() - before_ns + taken_ns) as f64 / 1e6 / seconds);
    drop(group);
    let each_us = spent_ms / rate.max(1.0) * 1000.0;
    say(&format!("idle listener: {rate:.0} exits/s, {spent_ms:.2} ms/s, {each_us:.2} µs each (goal 1)"));
    Ok(())
}

/// Directories of cgroups, removed with this value.
struct Cgroups(Vec<PathBuf>);

impl Drop for Cgroups {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            let _ = std::fs::remove_dir(path);
        }
    }
}

fn bench_perf(host: &Host) -> Result<()> {
    let Some(mount) = Hierarchies::read(host)?.unified else {
        say("perf: no v2 hierarchy");
        return Ok(());
    };
    let mut made = Cgroups(Vec::new());
    let mut targets = Targets::default();
    let asked: Arc<[String]> = EVENTS.iter().map(|&name| name.to_owned()).collect();
    for number in 0..CGROUPS {
        let path = mount.point.join(format!("met-bench-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        made.0.push(path.clone());
        let paths = CgroupPaths { unified: Some(path), ..CgroupPaths::default() };
        let dirs = Arc::new(CgroupDirs::open(host, &paths)?);
        targets.cgroups.push(CgroupTarget {
            dirs,
            counted: false,
            counted_in: None,
            events: Some(Arc::clone(&asked)),
            young: false,
            look: Look::Usual,
        });
    }
    let mut runner = only(host, &["perf"], &EVENTS);
    if let Some((_, why)) = runner.unavailable().first() {
        say(&format!("perf: {why}"));
        return Ok(());
    }
    let us = measure_us(&mut runner, &targets, TickInfo::default());
    let (events, cpus) = (EVENTS.len(), perf::online_cpus(host).len());
    ensure!(runner.batches()[0].len() == CGROUPS * events, "not every event was read");
    let each = us / (CGROUPS * events * cpus) as f64;
    say(&format!("perf: {CGROUPS} jobs, {events} events, {cpus} CPUs: {each:.2} µs each (goal 1)"));
    Ok(())
}
