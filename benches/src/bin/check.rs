//! `met check` over many jobs with samples: the whole command, and what of it is reading and analysing.
//!
//! `MET=target/release/met cargo run --release -p met-benches --bin check [JOBS [FOLDER]]`: 100,000 if not given, all
//! within the 30 days that are looked at. What is in a folder from an earlier run is used again: two versions are
//! compared by what they say of the same jobs.
#![allow(clippy::print_stdout, reason = "a program that prints numbers")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use met_benches::{made_up, met_command, met_path, state_folder};
use met_core::job::{JobKey, Record, State};
use met_core::series::{Columns, Series};
use met_core::{JOB, Table};
use met_host::clock;
use met_insight::check::{self, Look};
use met_insight::report::Machine;
use met_insight::rules::Rules;
use met_store::{Filter, Reader, StoreError, Writer, has_catalogue};

const ROUNDS: usize = 5;
/// A little less than what is looked at, so that the length of the command does not push jobs out.
const SPAN_NS: i64 = 29 * 86_400 * 1_000_000_000;
/// As many as a rule needs, and a few more.
const SAMPLES: i64 = 24;
const SHORTEST_NS: i64 = 60_000_000_000;
const INTERVAL: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let jobs: u32 = std::env::args().nth(1).map_or(Ok(100_000), |count| count.parse())?;
    let temporary = tempfile::tempdir_in("/var/tmp")?;
    let root = std::env::args().nth(2).map_or(temporary.path().to_owned(), PathBuf::from);
    let state = state_folder(&root)?;
    let begin = Instant::now();
    let now_ns = clock::realtime_ns();
    if !has_catalogue(&state) {
        fill(&state, jobs, now_ns)?;
        println!("{jobs} jobs with {SAMPLES} samples each written in {:.1} s", begin.elapsed().as_secs_f64());
    }
    // As housekeeping does with a store of an earlier version.
    while !Writer::open(&state)?.complete_lists(Duration::from_secs(60))? {}
    whole_command(&root, jobs)?;
    by_stages(&state, now_ns)
}

/// Over 30 days, evenly; all are over.
fn fill(state: &Path, jobs: u32, now_ns: i64) -> Result<()> {
    let mut writer = Writer::open(state)?;
    let apart_ns = SPAN_NS / i64::from(jobs.max(1));
    let job = |number: u32| {
        let mut record = made_up::job(number + 12, now_ns);
        let length_ns = record.wall_ns(now_ns).unwrap_or(0).min(SPAN_NS / 29);
        let start_ns = now_ns - length_ns - 60_000_000_000 - i64::from(number) * apart_ns;
        (record.start_ns, record.end_ns) = (Some(start_ns), Some(start_ns + length_ns));
        record.key.incarnation = start_ns / 1_000_000_000;
        record
    };
    let all: Vec<u32> = (0..jobs).collect();
    for numbers in all.chunks(1_000) {
        let records: Vec<Record> = numbers.iter().map(|&number| job(number)).collect();
        writer.put_all(&records)?;
        let all_series: Vec<(JobKey, Series)> = records
            .iter()
            .map(|record| (record.key.clone(), made_up::series(record, now_ns, SAMPLES)))
            .collect();
        let all_series: Vec<(&JobKey, &Series)> =
            all_series.iter().map(|(key, series)| (key, series)).collect();
        writer.append_together(&all_series)?;
    }
    drop(writer);
    // As the next writer does: it finds that the store is whole, which readers would look for each time.
    drop(Writer::open(state)?);
    Ok(())
}

fn whole_command(root: &Path, jobs: u32) -> Result<()> {
    let met = met_path()?;
    let mut times_s = Vec::new();
    let mut found = 0;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let output = met_command(&met, root).args(["check", "--json"]).stderr(Stdio::inherit()).output()?;
        times_s.push(begin.elapsed().as_secs_f64());
        ensure!(output.status.success(), "met check: {}", output.status);
        let checked: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let analysed = checked["jobs"].as_u64().context("no count of jobs")?;
        ensure!(analysed == u64::from(jobs), "{analysed} of {jobs} jobs were looked at");
        found = checked["findings"].as_array().map_or(0, Vec::len);
    }
    times_s.sort_by(f64::total_cmp);
    println!("met check: best {:.2} s, median {:.2} s, {found} findings", times_s[0], times_s[ROUNDS / 2]);
    Ok(())
}

/// The same in this process.
fn by_stages(state: &Path, now_ns: i64) -> Result<()> {
    let begin = Instant::now();
    let mut reader = Reader::open_checked(state)?;
    let records = reader.jobs(&Filter { with_summaries: true, is_brief: true, ..Filter::default() })?;
    let read = begin.elapsed();
    ensure!(records.iter().all(|record| record.state != State::Running), "a job is not over");
    let look = Look {
        rules: Rules::built_in(),
        is_wanted: &|_| true,
        machine: &|_| Machine { cpus: None },
        shortest_ns: SHORTEST_NS,
        interval: INTERVAL,
        now_ns,
    };
    let (mut sampled, mut count) = (Duration::ZERO, 0);
    let begin = Instant::now();
    let reader = &mut reader;
    let mut read_series = |record: &Record, table: &'static Table, part: &str, wanted: Columns| {
        let begin = Instant::now();
        let series = series(reader, record, table, part, wanted);
        sampled += begin.elapsed();
        count += 1;
        series
    };
    let (findings, _) = check::of_jobs(&look, &records, &mut [&mut read_series])?;
    let analysed = begin.elapsed() - sampled;
    println!(
        "of it: jobs {:.2} s, {count} series {:.2} s, the rest {:.2} s ({:.1} µs a job, {} findings before the gates \
         of a cluster)",
        read.as_secs_f64(),
        sampled.as_secs_f64(),
        analysed.as_secs_f64(),
        analysed.as_secs_f64() * 1e6 / records.len().max(1) as f64,
        findings.len()
    );
    Ok(())
}

fn series(
    reader: &mut Reader,
    record: &Record,
    table: &'static Table,
    part: &str,
    wanted: Columns,
) -> Result<Series, StoreError> {
    let [from_ms, to_ms] = [record.start_ns, record.end_ns].map(|time_ns| time_ns.unwrap_or(0) / 1_000_000);
    match table.name == JOB.name {
        true => reader.series_of(record, wanted),
        false => reader.device_series(part, from_ms, to_ms),
    }
}
