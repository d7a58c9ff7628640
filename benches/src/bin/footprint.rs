//! What met costs while it waits: memory of a daemon at rest and of a supervisor, wake-ups without jobs,
//! the CPU of sampling 500 processes every 10 s, and of 100 jobs with 10 processes each every second.
//!
//! `MET=target/release/met cargo run --release -p met-benches --bin footprint`

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use met_benches::{met_command, met_path, say};

const REST: Duration = Duration::from_secs(20);
const SAMPLED: Duration = Duration::from_secs(60);
/// With all default sources, and the series of the machine kept.
const JOBS: usize = 100;
const OF_MANY: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let met = met_path()?;
    let state = tempfile::tempdir()?;
    let root = state.path();
    fs::write(root.join("met.yaml"), "sampling: {interval: 10s}\n")?;
    run(&met, root, &["run", "--out", "/dev/null", "--err", "/dev/null", "--", "true"])?;
    std::thread::sleep(Duration::from_secs(2));
    let daemon = daemon_pid(&met, root)?;
    let before = switches(daemon)?;
    std::thread::sleep(REST);
    let wakeups = (switches(daemon)? - before) as f64 / REST.as_secs_f64();
    say(&format!("daemon at rest        {:.1} MB RSS, {wakeups:.2} wake-ups/s", rss_mb(daemon)?));

    let many = "for i in $(seq 499); do sleep 300 & done; wait";
    run(
        &met,
        root,
        &["run", "-n", "many", "--out", "/dev/null", "--err", "/dev/null", "--", "sh", "-c", many],
    )?;
    std::thread::sleep(Duration::from_secs(15));
    let supervisor = parent_of_main(&met, root)?;
    say(&format!("supervisor            {:.1} MB RSS", rss_mb(supervisor)?));
    let before = cpu_ns(daemon)?;
    std::thread::sleep(SAMPLED);
    let share = (cpu_ns(daemon)? - before) as f64 / SAMPLED.as_nanos() as f64;
    say(&format!(
        "500 processes at 10 s {:.3} % of a core, daemon {:.1} MB RSS",
        share * 100.0,
        rss_mb(daemon)?
    ));
    run(&met, root, &["cancel", "many", "--grace", "1s"])?;
    run(&met, root, &["daemon", "--stop", "--user"])?;
    many_jobs(&met, root)
}

fn many_jobs(met: &Path, root: &Path) -> Result<()> {
    fs::write(root.join("met.yaml"), "storage: {node_series: true}\n")?;
    let ten = "for i in $(seq 9); do sleep 300 & done; wait";
    for _ in 0..JOBS {
        run(
            met,
            root,
            &["run", "-n", "ten", "--out", "/dev/null", "--err", "/dev/null", "--", "sh", "-c", ten],
        )?;
    }
    // What every job is asked at first is over after ten periods.
    std::thread::sleep(Duration::from_secs(15));
    let daemon = daemon_pid(met, root)?;
    let before = cpu_ns(daemon)?;
    std::thread::sleep(OF_MANY);
    let share = (cpu_ns(daemon)? - before) as f64 / OF_MANY.as_nanos() as f64;
    let (percent, rss_mb) = (share * 100.0, rss_mb(daemon)?);
    say(&format!("{JOBS} jobs of 10 at 1 s  {percent:.3} % of a core, daemon {rss_mb:.1} MB RSS"));
    let listed = met_command(met, root).args(["list", "cpu", "--csv", "--name", "ten"]).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for job in listed.lines().skip(1).filter_map(|line| line.split(',').next()) {
        run(met, root, &["cancel", job, "--grace", "1s"])?;
    }
    run(met, root, &["daemon", "--stop", "--user"])
}

fn run(met: &Path, root: &Path, args: &[&str]) -> Result<()> {
    met_command(met, root).args(args).stdout(Stdio::null()).status()?;
    Ok(())
}

fn daemon_pid(met: &Path, root: &Path) -> Result<u32> {
    let output = met_command(met, root).args(["daemon", "--status", "--user"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let pid = text.split("(pid ").nth(1).and_then(|rest| rest.split(')').next()).context("no daemon")?;
    Ok(pid.parse()?)
}

fn parent_of_main(met: &Path, root: &Path) -> Result<u32> {
    let output = met_command(met, root).args(["list", "cpu", "--csv", "--name", "many"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let main = text.lines().nth(1).and_then(|line| line.split(',').nth(1)).context("no job")?;
    let stat = fs::read_to_string(format!("/proc/{main}/stat"))?;
    let parent =
        stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)).context("no parent")?;
    Ok(parent.parse()?)
}

fn rss_mb(pid: u32) -> Result<f64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages: f64 = statm.split_whitespace().nth(1).context("no RSS")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64 / 1e6)
}

/// Of all threads: each time one of them slept and was woken.
fn switches(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += line.context("no switches")?.trim().parse::<u64>()?;
    }
    Ok(sum)
}

fn cpu_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let schedstat = fs::read_to_string(thread?.path().join("schedstat"))?;
        sum += schedstat.split_whitespace().next().context("no CPU time")?.parse::<u64>()?;
    }
    Ok(sum)
}
