//! What a page for Prometheus costs: 500 jobs, with the usual figures (the default) and with all figures that a job
//! on a machine with GPUs has.
//!
//! Run it with `cargo run --release -p met-benches --bin page`. With `PEER=http://127.0.0.1:9100/metrics` and
//! `PEER_PID` it also asks another exporter as often, and says what that took of its CPU time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use met_core::job::{JobKey, Resources};
use met_core::{JOB, Kind, MISSING, Selection, Unit};
use met_host::clock;
use met_sinks::prometheus::{self, Format};
use met_sinks::shown_jobs::Contents;
use met_sinks::snapshot::{About, HeldGpu, Job, Person, Rows, Snapshot, allocated};

const JOBS: usize = 500;
const PAGES: usize = 40;
/// Of the machine that has some.
const GPUS: usize = 8;
const LIMIT_MS: f64 = 10.0;
/// Of the default page, compressed, without the series of GPUs.
const LIMIT_BYTES: usize = 40_000;

fn main() -> Result<()> {
    let mut slowest_ms: f64 = 0.0;
    for (gpus, metrics) in [
        (false, Selection::Usual),
        (false, Selection::Minimal),
        (false, Selection::All),
        (true, Selection::Usual),
        (true, Selection::All),
    ] {
        let contents = Contents { metrics, jobs_max: JOBS, ..Contents::default() };
        slowest_ms = slowest_ms.max(pages(&snapshot(gpus), &contents, gpus)?);
    }
    peer()?;
    println!("the slowest page takes {slowest_ms:.2} ms (goal {LIMIT_MS} ms)");
    Ok(())
}

/// The median of the slowest format, in milliseconds.
fn pages(snapshot: &Snapshot, contents: &Contents, gpus: bool) -> Result<f64> {
    let mut page = Vec::new();
    prometheus::page(snapshot, Format::Text, contents, false, &mut page);
    let samples = page.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"met_")).count();
    let machine = if gpus { "8 GPUs" } else { "no GPUs" };
    println!("{} metrics, {machine}: {JOBS} jobs, {samples} samples", contents.metrics.name());
    let mut slowest_ms: f64 = 0.0;
    for (what, format, gzip) in [
        ("text", Format::Text, false),
        ("OpenMetrics", Format::OpenMetrics, false),
        ("text, gzip", Format::Text, true),
        ("OpenMetrics, gzip", Format::OpenMetrics, true),
    ] {
        let (mut times_ms, mut bytes) = (Vec::new(), 0);
        for _ in 0..PAGES {
            let begin_ns = clock::thread_cpu_ns();
            let mut page = Vec::new();
            prometheus::page(snapshot, format, contents, false, &mut page);
            let page = if gzip { prometheus::gzip(&page)? } else { page };
            times_ms.push((clock::thread_cpu_ns() - begin_ns) as f64 / 1e6);
            bytes = page.len();
        }
        times_ms.sort_by(f64::total_cmp);
        let (best_ms, median_ms) = (times_ms[0], times_ms[PAGES / 2]);
        println!("  {what}: {median_ms:.2} ms CPU, best {best_ms:.2}, {bytes} bytes (goal {LIMIT_MS} ms)");
        slowest_ms = slowest_ms.max(median_ms);
        let is_limited = contents.metrics == Selection::default() && gzip && !gpus;
        ensure!(!is_limited || bytes <= LIMIT_BYTES, "{bytes} bytes are more than {LIMIT_BYTES}");
    }
    Ok(slowest_ms)
}

/// Figures with as many digits as real ones have.
fn snapshot(with_gpus: bool) -> Snapshot {
    let job = |number: usize| {
        let seed = number as i64 * 7_919_017 + 1;
        let cell = |(index, column): (usize, &met_core::Column)| match column.kind {
            // Nine jobs in ten have no GPUs, and none has a network namespace of its own.
            _ if column.name.starts_with("gpu") && !(with_gpus && number.is_multiple_of(10)) => MISSING,
            _ if column.name.starts_with("network") => MISSING,
            Kind::Counter if column.unit == Unit::Count => seed % 7,
            // A third of the jobs reads nothing, or writes nothing.
            Kind::Counter if column.unit == Unit::Bytes && (number + index).is_multiple_of(3) => 0,
            Kind::Counter if column.unit == Unit::Bytes => {
                seed.wrapping_mul(index as i64 + 3) % (1 << 24) * 4096
            }
            Kind::Counter => seed.wrapping_mul(index as i64 + 3) * 1_009 % 90_000_000_000_000,
            Kind::Gauge => seed.wrapping_mul(index as i64 + 7) % 64_000_000_000,
        };
        let id = (4_000_000 + number).to_string();
        let given = Resources {
            cpus: Some(16),
            memory_bytes: Some(64 << 30),
            nodes: Some(1),
            ..Resources::default()
        };
        let about = About {
            key: JobKey { cluster: None, manager: "slurm".to_owned(), id: id.clone(), incarnation: 0 },
            shown_id: id,
            state: "running",
            partition: "compute".to_owned(),
            inside: String::new(),
            start_ns: Some(1),
            end_ns: None,
            allocated: allocated(&given),
            person: Person {
                name: format!("simulation-{number}"),
                user: format!("user{}", number % 40),
                account: format!("project{}", number % 12),
            },
        };
        let gpu = HeldGpu {
            index: (number % GPUS).to_string(),
            uuid: format!("GPU-{:032x}", (number % GPUS + 1) as u128 * 0x2545_f491_4f6c_dd1d_9e37_79b9),
            ..HeldGpu::default()
        };
        let gpus = if with_gpus && number.is_multiple_of(10) { vec![gpu] } else { Vec::new() };
        let cells = JOB.columns.iter().enumerate().map(cell).collect();
        Job { about: Arc::new(about), cells, gpus, details: Vec::new(), events: Vec::new() }
    };
    Snapshot { tables: node_tables(with_gpus), jobs: (0..JOBS).map(job).collect() }
}

/// One row of every table about the machine, and several of those with labels.
fn node_tables(gpus: bool) -> Vec<Rows> {
    let of_jobs = |name: &str| matches!(name, "job" | "job_detail" | "event");
    let tables = met_sources::catalogue()
        .into_iter()
        .filter(|table| !of_jobs(table.name) && !table.is_part_of_jobs() && (gpus || table.name != "gpu"));
    let rows = |table| {
        let mut rows = Rows::new(table);
        let count = match table.name {
            _ if table.labels.is_empty() => 1,
            "gpu" => GPUS,
            _ => 2,
        };
        for part in 0..count {
            let labels: Vec<String> = table.labels.iter().map(|label| format!("{label}-{part}")).collect();
            let cells: Vec<i64> =
                (0..table.columns.len() as i64).map(|column| (column + 3) * 123_456_789).collect();
            rows.push(&labels, &cells);
        }
        rows
    };
    tables.map(rows).collect()
}

/// Another exporter on this machine, asked as often as the page was written.
fn peer() -> Result<()> {
    let (Ok(url), Ok(pid)) = (std::env::var("PEER"), std::env::var("PEER_PID")) else { return Ok(()) };
    let (host, path) =
        url.trim_start_matches("http://").split_once('/').context("PEER is no URL with a path")?;
    let ask = || -> Result<usize> {
        let mut stream = TcpStream::connect(host)?;
        write!(
            stream,
            "GET /{path} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        ensure!(answer.starts_with(b"HTTP/1.1 200"), "PEER does not answer");
        Ok(answer.len())
    };
    let cpu_ticks = || -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
    };
    ask()?;
    let before = cpu_ticks()?;
    let mut bytes = 0;
    for _ in 0..PAGES {
        bytes = ask()?;
    }
    let each_ms = (cpu_ticks()? - before) as f64 * 10.0 / PAGES as f64;
    println!("peer {url}: {each_ms:.2} ms CPU, {bytes} bytes of answer");
    Ok(())
}
