//! What a user waits for: `met time -- true` beside `true`, `met run -- true` with a running daemon, and
//! `met list` over many jobs. Runs are 100 ms apart, as a person's are.
//!
//! `MET=target/release/met cargo run --release -p met-benches --bin latency`

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use met_benches::{met_command, met_path, say};

const RUNS: usize = 60;
const APART: Duration = Duration::from_millis(100);

fn main() -> Result<()> {
    let met = met_path()?;
    let state = tempfile::tempdir()?;
    let root = state.path();
    let plain = || Command::new("true");
    let time = || with_args(met_command(&met, root), &["time", "--quiet", "--", "true"]);
    let run = || {
        with_args(met_command(&met, root), &["run", "--out", "/dev/null", "--err", "/dev/null", "--", "true"])
    };
    let [truth_ms, time_ms] = medians(&mut [&mut || plain(), &mut || time()])?;
    say(&format!("true                  {truth_ms:6.2} ms"));
    say(&format!("met time -- true      {time_ms:6.2} ms, {:.2} over true", time_ms - truth_ms));
    keep_daemon(&met, root)?;
    let [run_ms, list_ms] =
        medians(&mut [&mut || run(), &mut || with_args(met_command(&met, root), &["list"])])?;
    say(&format!("met run -- true       {run_ms:6.2} ms with a running daemon"));
    say(&format!("met list              {list_ms:6.2} ms through the daemon, some hundred jobs"));
    with_args(met_command(&met, root), &["cancel", "keeper"]).stdout(Stdio::null()).status()?;
    with_args(met_command(&met, root), &["daemon", "--stop", "--user"]).stdout(Stdio::null()).status()?;
    Ok(())
}

/// A job that lasts keeps the daemon alive while others come and go.
fn keep_daemon(met: &Path, root: &Path) -> Result<()> {
    let args = ["run", "-n", "keeper", "--out", "/dev/null", "--err", "/dev/null", "--", "sleep", "600"];
    with_args(met_command(met, root), &args).stdout(Stdio::null()).status()?;
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

fn with_args(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}

/// The commands take turns, so that a busy machine is busy for all of them.
fn medians<const N: usize>(commands: &mut [&mut dyn FnMut() -> Command; N]) -> Result<[f64; N]> {
    let mut times: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
    for _ in 0..RUNS {
        for (command, times) in commands.iter_mut().zip(&mut times) {
            std::thread::sleep(APART);
            let mut command = command();
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let begin = Instant::now();
            command.status().context("cannot run it")?;
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(times.map(|mut times| {
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2]
    }))
}
