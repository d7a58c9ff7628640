//! What it takes to keep series in an engine: samples per second and bytes per sample of remote write.
//!
//! `backends URL [FOLDER]`: an engine that is running and empty, and where it keeps its data. Two thousand jobs of
//! forty metrics, ten minutes at ten seconds; CPU figures are of this process, that is of the sending side.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use met_core::job::{JobKey, LOCAL};
use met_core::series::Series;
use met_core::{JOB, Kind};
use met_store::{Backends, Engine, Writer};

const JOBS: usize = 2_000;
const METRICS: usize = 40;
const ROUNDS: usize = 10;
const SAMPLES_PER_ROUND: usize = 6;
const PERIOD_MS: i64 = 10_000;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().context("the address of an engine is needed")?;
    let folder = arguments.next();
    let engine = Engine { url, write_url: None, credentials: None, tenant: None, ca_file: None };
    let state = tempfile::tempdir()?;
    let mut writer = Writer::open_with(state.path(), &Backends { catalogue: None, series: Some(engine) })?;

    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64;
    let begin_ms = now_ms - (ROUNDS * SAMPLES_PER_ROUND) as i64 * PERIOD_MS;
    let keys: Vec<JobKey> = (0..JOBS).map(key).collect();
    let mut jobs: Vec<Job> = (0..JOBS).map(|number| Job::new(number as u64)).collect();
    let (mut wall, mut samples) = (Duration::ZERO, 0);
    let cpu_before = cpu();
    let mut making = Duration::ZERO;
    for round in 0..ROUNDS {
        let cpu_before = cpu();
        let first_ms = begin_ms + (round * SAMPLES_PER_ROUND) as i64 * PERIOD_MS;
        let all_series: Vec<Series> = jobs.iter_mut().map(|job| job.series(first_ms)).collect();
        making += cpu() - cpu_before;
        let both: Vec<(&JobKey, &Series)> = keys.iter().zip(&all_series).collect();
        let begin = Instant::now();
        writer.append_all(&both)?;
        wall += begin.elapsed();
        samples += JOBS * METRICS * SAMPLES_PER_ROUND;
    }
    let cpu = cpu() - cpu_before - making;
    println!("{samples} samples in {:.2} s", wall.as_secs_f64());
    println!(
        "{:.0} samples/s, sent by one thread one request at a time",
        samples as f64 / wall.as_secs_f64()
    );
    println!("{:.0} samples per second of CPU on the sending side", samples as f64 / cpu.as_secs_f64());
    println!("{} samples refused", writer.samples_refused());
    let begin = Instant::now();
    let series = writer.series_of_job_between(&keys[JOBS / 2], begin_ms, now_ms)?;
    let cells = series.columns.iter().flatten().filter(|&&cell| cell != met_core::MISSING).count();
    println!("one job read back: {cells} samples in {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    if let Some(folder) = folder {
        let bytes = bytes_below(Path::new(&folder))?;
        println!("{:.2} bytes per sample on the engine's disk", bytes as f64 / samples as f64);
    }
    Ok(())
}

fn key(number: usize) -> JobKey {
    JobKey { cluster: None, manager: LOCAL.into(), id: number.to_string(), incarnation: 1_794_700_800 }
}

/// A job whose counters grow unevenly and whose levels wander.
struct Job {
    cells: Vec<i64>,
    seed: u64,
}

impl Job {
    fn new(number: u64) -> Job {
        Job { cells: vec![0; JOB.columns.len()], seed: number * 2 + 1 }
    }

    fn series(&mut self, first_ms: i64) -> Series {
        let mut series = Series::new(&JOB);
        for sample in 0..SAMPLES_PER_ROUND as i64 {
            for (number, column) in JOB.columns.iter().enumerate() {
                self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let draw = (self.seed >> 40) as i64;
                self.cells[number] = match (number < METRICS, column.kind) {
                    (false, _) => met_core::MISSING,
                    (true, Kind::Counter) => self.cells[number] + 9_000_000_000 + draw,
                    (true, Kind::Gauge) => (self.cells[number] + (draw % 65_536 - 32_768) * 4096).max(0),
                };
            }
            series.push(first_ms + sample * PERIOD_MS, &self.cells);
        }
        series
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn bytes_below(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => bytes_below(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}
