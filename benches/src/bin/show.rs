//! `met show` of a job of seven days with four GPUs, sampled every 10 s: the whole command, and what of it the answers
//! take: earlier runs of its command, phases, bottleneck, notes.
//!
//! `MET=target/release/met cargo run --release -p met-benches --bin show [OTHER_JOBS]`: among 10,000 if not given.
#![allow(clippy::print_stdout, reason = "a program that prints numbers")]

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use met_benches::{made_up, met_command, met_path, state_folder};
use met_core::job::{QualityKind, Record, State};
use met_core::job_table::WALL;
use met_host::clock;
use met_insight::answers::{Answers, Known};
use met_insight::report::{self, Machine};
use met_query::jobs::JobsFilter;
use met_store::{Reader, Writer};

const ROUNDS: usize = 21;
const WEEK_NS: i64 = 7 * 86_400 * 1_000_000_000;
const WEEK_SAMPLES: i64 = 7 * 8_640;
const INTERVAL: Duration = Duration::from_secs(10);
/// A Slurm job with four GPUs, by its number.
const NUMBER: u32 = 12;

fn main() -> Result<()> {
    let others: u32 = std::env::args().nth(1).map_or(Ok(10_000), |count| count.parse())?;
    let root = tempfile::tempdir_in("/var/tmp")?;
    let state = state_folder(root.path())?;
    let now_ns = clock::realtime_ns();
    let record = fill(&state, others, now_ns)?;
    println!("| what | best | median |\n| --- | ---: | ---: |");
    let met = met_path()?;
    time("met show", || {
        let mut command = met_command(&met, root.path());
        command.arg("show").arg(record.label()).stdout(Stdio::null());
        ensure!(command.status()?.success(), "met show failed");
        Ok(())
    })?;
    by_stages(&state, &record, now_ns)
}

fn time<T>(what: &str, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let mut last = work()?;
    let mut times_ms = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        last = work()?;
        times_ms.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    times_ms.sort_by(f64::total_cmp);
    println!("| {what} | {:.2} ms | {:.2} ms |", times_ms[0], times_ms[ROUNDS / 2]);
    Ok(last)
}

/// The job is the newest; of the others, those of its user are runs of the same command.
fn fill(state: &Path, others: u32, now_ns: i64) -> Result<Record> {
    let mut writer = Writer::open(state)?;
    let earlier: Vec<Record> =
        (0..others).map(|number| made_up::job(number + NUMBER + 1, now_ns - WEEK_NS)).collect();
    for records in earlier.chunks(1_000) {
        writer.put_all(records)?;
    }
    let mut record = made_up::job(NUMBER, now_ns);
    record.state = State::Finished;
    (record.start_ns, record.end_ns) = (Some(now_ns - WEEK_NS), Some(now_ns));
    record.totals.set(WALL, WEEK_NS, QualityKind::Measured, "supervisor");
    writer.put_all(std::slice::from_ref(&record))?;
    writer.append_series(&record.key, &made_up::series(&record, now_ns, WEEK_SAMPLES))?;
    for gpu in &record.gpus {
        writer.append_device(&gpu.uuid, &made_up::gpu_samples(&record, &gpu.index, now_ns, WEEK_SAMPLES))?;
    }
    ensure!(record.gpus.len() == 4, "job {NUMBER} has {} GPUs", record.gpus.len());
    Ok(record)
}

fn by_stages(state: &Path, record: &Record, now_ns: i64) -> Result<()> {
    let reader = Reader::open(state)?;
    let machine = Machine { cpus: None };
    time("figures, without answers", || Ok(report::report(record, machine, now_ns)))?;
    let known = time("samples, as needed for plots", || {
        Ok(Known::read(INTERVAL, record, machine, &mut |_, part| match part {
            "" => reader.series(&record.key),
            uuid => reader.device_series(uuid, i64::MIN, i64::MAX),
        })?)
    })?;
    let earlier = time("answers: earlier runs", || {
        let filter = JobsFilter::perhaps_of_lineage(record, record.start_ns);
        Ok(filter.map(|filter| reader.jobs(&filter.to_store())).transpose()?.unwrap_or_default())
    })?;
    let answers: Answers =
        time("answers: phases, bottleneck, notes", || Ok(known.answers(record, &earlier, now_ns)))?;
    println!(
        "{} samples and {} GPUs, {} earlier jobs of its user: {}",
        known.series.len(),
        known.gpus.len(),
        earlier.len(),
        answers.verdict
    );
    Ok(())
}
