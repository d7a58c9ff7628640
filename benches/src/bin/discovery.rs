//! What finding the jobs of others costs: at rest, a look at everything, and how soon a job is seen.
//!
//! Run it as root with `cargo run --release -p met-benches --bin discovery`; it makes 1,000 jobs with 4 steps
//! each in the v1 hierarchies that count, or in the v2 one.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use met_host::cgroup::Hierarchies;
use met_host::{Host, clock};
use met_jobs::cgroup_layouts::Layouts;
use met_jobs::discover::{Discovery, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const JOBS: usize = 1000;
const STEPS: usize = 4;
const RESCANS: u32 = 10;
const LATENCIES: usize = 100;
/// The safety net comes round once in it.
const REST: Duration = Duration::from_secs(130);

/// The cgroups made here, removed with this value.
struct Ground {
    tops: Vec<PathBuf>,
    below: PathBuf,
}

impl Ground {
    fn new(host: &Host) -> Result<Ground> {
        let hierarchies = Hierarchies::read(host)?;
        let mounts = match (hierarchies.cpuacct_v1, hierarchies.memory_v1, hierarchies.unified) {
            (Some(cpuacct), memory, _) => [Some(cpuacct), memory],
            (None, memory, unified) => [unified, memory],
        };
        let below = PathBuf::from(format!("met-bench-{}", std::process::id()));
        let tops: Vec<PathBuf> = mounts.into_iter().flatten().map(|mount| mount.point.join(&below)).collect();
        let ground = Ground { tops, below };
        ground.make("slurm_bench").context("no cgroup can be made here")?;
        Ok(ground)
    }

    fn make(&self, path: &str) -> Result<()> {
        self.tops.iter().try_for_each(|top| Ok(fs::create_dir_all(top.join(path))?))
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.tops.iter().try_for_each(|top| Ok(fs::remove_dir(top.join(path))?))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        fn remove(path: PathBuf) {
            for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    remove(entry.path());
                }
            }
            let _ = fs::remove_dir(path);
        }
        self.tops.iter().cloned().for_each(remove);
    }
}

fn job(number: usize) -> String {
    format!("slurm_bench/uid_{}/job_{number}", number % 10)
}

fn main() -> Result<()> {
    met_host::raise_open_file_limit()?;
    let host = Host::real()?;
    let ground = Ground::new(&host)?;
    (0..JOBS).try_for_each(|number| ground.make(&job(number)))?;
    let mut discovery = Discovery::open(&host, &Layouts::builtin(), Some(&ground.below))?;
    let found = discovery.work().iter().filter(|event| matches!(event, Event::Found(_))).count();
    ensure!(found == JOBS, "{found} of {JOBS} jobs found");
    latency(&mut discovery, &ground)?;
    rest(&mut discovery);
    for number in 0..JOBS {
        (0..STEPS).try_for_each(|step| ground.make(&format!("{}/step_{step}", job(number))))?;
    }
    discovery.work();
    rescan(&mut discovery);
    Ok(())
}

/// What the daemon's thread does, until something happened or the time is over.
fn wait(discovery: &mut Discovery, until: Instant) -> Vec<Event> {
    let left = until.saturating_duration_since(Instant::now()).min(discovery.timeout());
    let mut fds = [PollFd::from_borrowed_fd(discovery.fd(), PollFlags::IN)];
    let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
    discovery.work()
}

/// From the creation of a directory until the job is reported, and from its removal until its end is.
fn latency(discovery: &mut Discovery, ground: &Ground) -> Result<()> {
    let (mut found, mut ended) = (Vec::new(), Vec::new());
    for number in 0..LATENCIES {
        let path = job(JOBS + number);
        ground.make(&path)?;
        let begin = Instant::now();
        let deadline = begin + Duration::from_secs(10);
        while !wait(discovery, deadline).iter().any(|event| matches!(event, Event::Found(_))) {
            ensure!(Instant::now() < deadline, "a job was not found");
        }
        found.push(begin.elapsed());
        ground.remove(&path)?;
        let begin = Instant::now();
        while !wait(discovery, deadline).iter().any(|event| matches!(event, Event::Ended(_))) {
            ensure!(Instant::now() < deadline, "an end was not seen");
        }
        ended.push(begin.elapsed());
    }
    for (what, times) in [("found", &mut found), ("ended", &mut ended)] {
        times.sort();
        let (median, most) = (times[LATENCIES / 2], times[LATENCIES - 1]);
        println!("beside {JOBS} jobs one is {what} after {median:.1?}, at most {most:.1?} (target 200 ms)");
    }
    Ok(())
}

fn rest(discovery: &mut Discovery) {
    // Young jobs are read and looked at more often.
    let settled = Instant::now() + Duration::from_secs(60);
    while Instant::now() < settled {
        wait(discovery, settled);
    }
    let (begin, begin_ns, before) = (Instant::now(), clock::thread_cpu_ns(), discovery.health().rescans);
    let (end, mut wakes) = (begin + REST, 0);
    while Instant::now() < end {
        wait(discovery, end);
        wakes += 1;
    }
    let share = (clock::thread_cpu_ns() - begin_ns) as f64 / begin.elapsed().as_nanos() as f64 * 100.0;
    let rescans = discovery.health().rescans - before;
    println!(
        "at rest with {JOBS} jobs: {share:.4} % of a core (target 0.05), {wakes} wakes and {rescans} rescans in {REST:?}"
    );
}

fn rescan(discovery: &mut Discovery) {
    for (what, full) in [("by link counts", false), ("in full", true)] {
        let begin_ns = clock::thread_cpu_ns();
        for _ in 0..RESCANS {
            discovery.rescan(full, clock::boottime_ns());
        }
        let each_ms = (clock::thread_cpu_ns() - begin_ns) as f64 / 1e6 / f64::from(RESCANS);
        println!("a look at {JOBS} jobs with {STEPS} steps each, {what}: {each_ms:.1} ms (target 30)");
    }
}
