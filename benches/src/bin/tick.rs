//! What a tick costs: 2,000 sleeping processes without cgroups, and 500 and 1,000 jobs with a cgroup each; what
//! the sources of GPUs cost where there is no GPU, and what 500 jobs that hold one GPU cost.
//!
//! Run it with `cargo run --release -p met-benches --bin tick`. The second part needs root and cgroups.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use met_core::attribute::{Fold, JobMap};
use met_core::gpus::{Gpus, Rows};
use met_core::job::CgroupPaths;
use met_core::{Batch, JOB, Subject, gpu, gpu_holding};
use met_host::cgroup::Hierarchies;
use met_host::{Host, Targets, clock, parse};
use met_jobs::{JobSpec, Members};
use met_sources::{Options, Runner, TickInfo};

const PROCESSES: usize = 2_000;
const CGROUPS: [usize; 2] = [500, 1000];
const TICKS: u64 = 50;
const SLOW_EVERY: u64 = 10;
/// Jobs are young for ten ticks, which cost more; a daemon spends its life after them.
const WARM_UP_TICKS: u64 = 12;
const PS_RUNS: u32 = 5;
/// Whatever happens to this program, what it started ends by itself.
const SLEEP_SECONDS: u32 = 300;

fn main() -> Result<()> {
    met_host::raise_open_file_limit()?;
    let host = Host::real()?;
    bench_without_gpus(&host)?;
    bench_holders();
    bench_processes(&host)?;
    CGROUPS.into_iter().try_for_each(|count| bench_cgroups(&host, count))
}

/// What the daemon does at each tick.
struct Sampler {
    host: Host,
    members: Members,
    runner: Runner,
    targets: Targets,
    map: JobMap,
    fold: Fold,
    jobs: Batch,
    number: u64,
    /// Every job has one: between slow ticks the daemon reads nothing else.
    has_cgroups: bool,
}

impl Sampler {
    fn new(host: &Host, has_cgroups: bool) -> Sampler {
        Sampler::with(host, has_cgroups, &Options::default())
    }

    fn with(host: &Host, has_cgroups: bool, options: &Options) -> Sampler {
        Sampler {
            host: host.clone(),
            members: Members::new(),
            runner: Runner::open(host, options),
            targets: Targets::default(),
            map: JobMap::default(),
            fold: Fold::new(),
            jobs: Batch::new(&JOB),
            number: 0,
            has_cgroups,
        }
    }

    fn tick(&mut self) -> Result<()> {
        self.number += 1;
        let slow = self.number.is_multiple_of(SLOW_EVERY);
        let cgroups_only = self.has_cgroups && !slow && self.number > WARM_UP_TICKS;
        if !cgroups_only {
            self.members.refresh(&self.host)?;
            self.members.fill(&mut self.targets, &mut self.map);
        }
        self.runner.read(&self.targets, &TickInfo { cgroups_only, ..TickInfo::of(slow) });
        self.fold.jobs(self.runner.batches(), &self.map, &mut self.jobs);
        Ok(())
    }

    /// CPU time of one tick in µs, averaged. The pause lets caches cool as they do between real ticks.
    fn measure_us(&mut self) -> Result<f64> {
        for _ in 0..WARM_UP_TICKS {
            self.tick()?;
        }
        let mut spent_ns = 0;
        for _ in 0..TICKS {
            std::thread::sleep(Duration::from_millis(20));
            let begin_ns = clock::thread_cpu_ns();
            self.tick()?;
            spent_ns += clock::thread_cpu_ns() - begin_ns;
        }
        Ok(spent_ns as f64 / 1000.0 / TICKS as f64)
    }
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

/// A few processes, read by every source and, in turn, by those of processes and cgroups alone.
fn bench_without_gpus(host: &Host) -> Result<()> {
    const FEW: usize = 16;
    const ROUNDS: u32 = 2_000;
    let script = format!("i=0; while [ $i -lt {FEW} ]; do sleep {SLEEP_SECONDS} & i=$((i+1)); done; wait");
    let group = Group::start(&script)?;
    let plain = Options { only: Some(&["cgroup", "process"]), ..Options::default() };
    let mut samplers = [Sampler::new(host, false), Sampler::with(host, false, &plain)];
    if samplers[0].runner.unavailable().len() < 2 {
        println!("cards: there are some here, so what their absence costs cannot be measured");
        return Ok(());
    }
    std::thread::sleep(Duration::from_millis(300));
    for sampler in &mut samplers {
        let roots = vec![host.process(group.0.id())?];
        sampler.members.add(JobSpec { slot: 1, roots, ..JobSpec::default() });
    }
    let mut spent_ns = [0i64; 2];
    for round in 0..ROUNDS {
        // Who comes first finds colder caches: that takes turns.
        for turn in 0..2 {
            let which = (round as usize + turn) % 2;
            let begin_ns = clock::thread_cpu_ns();
            samplers[which].tick()?;
            spent_ns[which] += clock::thread_cpu_ns() - begin_ns;
        }
    }
    let [all_us, plain_us] = spent_ns.map(|ns| ns as f64 / 1000.0 / f64::from(ROUNDS));
    println!(
        "no card: a tick of {FEW} processes {all_us:.2} µs, with cgroup and process alone {plain_us:.2} µs ({:+.1} %)",
        (all_us / plain_us - 1.0) * 100.0
    );
    Ok(())
}

/// Jobs that were all given the same GPU, as a shell that exports CUDA_VISIBLE_DEVICES makes them.
fn bench_holders() {
    const LOOKS: i64 = 20;
    for holders in [1u32, 100, 500] {
        let (mut gpus, mut map) = (Gpus::default(), JobMap::default());
        for slot in 0..holders {
            map.add_job(slot, None);
            gpus.hold(slot, gpu_holding::of_environ(b"CUDA_VISIBLE_DEVICES=0"));
        }
        let labels = vec![["0", "GPU-a", "Card", "nvidia", "", ""].map(str::to_owned).to_vec()];
        let (mut gpu_rows, process_rows) =
            (Batch::new(&gpu::device::TABLE), Batch::new(&gpu::process::TABLE));
        gpu_rows.push_part(Subject::Node, 0)[gpu::device::POWER] = 110_000;
        let mut cells = vec![0; JOB.columns.len()];
        let begin_ns = clock::thread_cpu_ns();
        for look in 1..=LOOKS {
            let rows = Rows { gpus: &gpu_rows, processes: &process_rows, labels: &labels };
            gpus.look(&[rows], &map, look * 1_000_000_000, 0);
            (0..holders).for_each(|slot| gpus.fill(slot, &mut cells));
        }
        let spent_us = (clock::thread_cpu_ns() - begin_ns) as f64 / 1000.0 / LOOKS as f64;
        println!("cards: {holders} jobs that hold one card, per tick {spent_us:.0} µs");
    }
}

fn bench_processes(host: &Host) -> Result<()> {
    let script =
        format!("i=0; while [ $i -lt {PROCESSES} ]; do sleep {SLEEP_SECONDS} & i=$((i+1)); done; wait");
    let group = Group::start(&script)?;
    let mut sampler = Sampler::new(host, false);
    let roots = vec![host.process(group.0.id())?];
    sampler.members.add(JobSpec { slot: 1, roots, ..JobSpec::default() });
    let begin = Instant::now();
    while sampler.members.processes_of(1).count() < PROCESSES {
        ensure!(begin.elapsed() < Duration::from_secs(60), "the processes did not start in a minute");
        std::thread::sleep(Duration::from_millis(100));
        sampler.members.refresh(host)?;
    }
    let count = sampler.members.processes_of(1).count() as f64;
    let tick_us = sampler.measure_us()?;
    println!("processes: {count}, per process and tick {:.2} µs (target 12)", tick_us / count);
    let (seen, ps_us) = ps_cost(host)?;
    println!("ps aux: {seen} processes, per process {:.2} µs", ps_us / seen);
    Ok(())
}

/// How many processes ps sees, and its CPU time for one run in µs.
fn ps_cost(host: &Host) -> Result<(f64, f64)> {
    let mut seen = 0;
    let begin_us = children_cpu_us(host)?;
    for _ in 0..PS_RUNS {
        let output = Command::new("ps").arg("aux").output().context("ps")?;
        seen = parse::lines(&output.stdout).count().saturating_sub(1);
    }
    Ok((seen as f64, (children_cpu_us(host)? - begin_us) / f64::from(PS_RUNS)))
}

fn children_cpu_us(host: &Host) -> Result<f64> {
    let mut text = Vec::new();
    host.read_small("/proc/self/stat", &mut text)?;
    let stat = parse::stat(&text).context("/proc/self/stat")?;
    let ticks = stat.user_reaped_ticks + stat.system_reaped_ticks;
    Ok(ticks as f64 * 1e6 / host.facts().ticks_per_second as f64)
}

/// Directories of cgroups, removed with this value.
struct Cgroups(Vec<PathBuf>);

impl Cgroups {
    fn make(&mut self, path: &Path) -> std::io::Result<()> {
        std::fs::create_dir(path)?;
        self.0.push(path.to_path_buf());
        Ok(())
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // The last processes need a moment to leave.
            let begin = Instant::now();
            while std::fs::remove_dir(path).is_err() && begin.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn bench_cgroups(host: &Host, cgroups: usize) -> Result<()> {
    let mut made = Cgroups(Vec::new());
    let Some(parents) = make_parents(host, &mut made) else {
        println!("cgroups: none can be made here");
        return Ok(());
    };
    let mut sampler = Sampler::new(host, true);
    let mut jobs = Vec::new();
    for slot in 0..cgroups {
        let below = |parent: &Option<PathBuf>| parent.as_ref().map(|path| path.join(format!("job-{slot}")));
        let cgroup = CgroupPaths {
            unified: below(&parents.unified),
            memory: below(&parents.memory),
            cpuacct: below(&parents.cpuacct),
        };
        for path in [&cgroup.unified, &cgroup.memory, &cgroup.cpuacct].into_iter().flatten() {
            made.make(path)?;
        }
        jobs.push(cgroup.clone());
        sampler.members.add(JobSpec { slot: u32::try_from(slot)?, cgroup, ..JobSpec::default() });
    }
    let count = cgroups as f64;
    println!("cgroups: {count}, empty, per job and tick {:.2} µs (target 15)", sampler.measure_us()? / count);
    let group = fill_cgroups(&jobs)?;
    let begin = Instant::now();
    while sampler.targets.tasks.len() < cgroups {
        ensure!(begin.elapsed() < Duration::from_secs(120), "the processes did not enter in two minutes");
        std::thread::sleep(Duration::from_millis(200));
        sampler.tick()?;
    }
    let tick_us = sampler.measure_us()?;
    println!("cgroups: {count}, with a process each, per job and tick {:.2} µs", tick_us / count);
    drop(group);
    Ok(())
}

/// A directory for the jobs in each hierarchy that `met` would use.
fn make_parents(host: &Host, made: &mut Cgroups) -> Option<CgroupPaths> {
    let hierarchies = Hierarchies::read(host).ok()?;
    let name = format!("met-bench-{}", std::process::id());
    let below = |mount: &Option<met_host::cgroup::Mount>| Some(mount.as_ref()?.point.join(&name));
    let unified = below(&hierarchies.unified);
    // CPU time comes from the v2 directory where there is one.
    let cpuacct = below(&hierarchies.cpuacct_v1).filter(|_| unified.is_none());
    let parents = CgroupPaths { unified, memory: below(&hierarchies.memory_v1), cpuacct };
    for path in [&parents.unified, &parents.memory, &parents.cpuacct].into_iter().flatten() {
        made.make(path).ok()?;
    }
    // On a pure v2 machine memory is counted if the controller is passed on.
    if let Some(path) = &parents.unified {
        let _ = std::fs::write(path.join("cgroup.subtree_control"), "+memory +pids");
    }
    (!parents.is_empty()).then_some(parents)
}

/// A sleeping process for each; they enter side by side, since each entry waits for the kernel.
fn fill_cgroups(jobs: &[CgroupPaths]) -> Result<Group> {
    let mut script = String::new();
    for job in jobs {
        script.push_str("sh -c '");
        for path in [&job.unified, &job.memory, &job.cpuacct].into_iter().flatten() {
            script.push_str(&format!("echo $$ > {}/cgroup.procs; ", path.display()));
        }
        script.push_str(&format!("exec sleep {SLEEP_SECONDS}' &\n"));
    }
    script.push_str("wait");
    let mut command = Command::new("sh");
    command.args(["-s"]).stdin(Stdio::piped()).process_group(0);
    let mut child = command.spawn().context("sh")?;
    let mut stdin = child.stdin.take().context("stdin of sh")?;
    let group = Group(child);
    std::io::Write::write_all(&mut stdin, script.as_bytes())?;
    Ok(group)
}
