//! What a page for Prometheus costs: 500 jobs with every figure that a job on a machine with cards has.
//!
//! Run it with `cargo run --release -p met-benches --bin page`. With `PEER=http://127.0.0.1:9100/metrics` and
//! `PEER_PID` it also asks another exporter as often, and says what that took of its CPU time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use met_core::job::{JobKey, Resources};
use met_core::{JOB, Kind, MISSING};
use met_host::clock;
use met_sinks::prometheus::{self, Disclosure, Format};
use met_sinks::snapshot::{About, HeldCard, Job, Person, Rows, Snapshot, allocated};

const JOBS: usize = 500;
const PAGES: usize = 40;
const LIMIT_MS: f64 = 10.0;

fn main() -> Result<()> {
    let snapshot = snapshot();
    let mut page = Vec::new();
    prometheus::page(&snapshot, Format::Text, Disclosure { people: true, jobs_max: JOBS }, &mut page);
    let samples = page.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"met_")).count();
    println!("{JOBS} jobs, {samples} samples");
    let mut slowest_ms: f64 = 0.0;
    for (what, format, gzip) in [
        ("text", Format::Text, false),
        ("OpenMetrics", Format::OpenMetrics, false),
        ("text, gzip level 1", Format::Text, true),
        ("OpenMetrics, gzip level 1", Format::OpenMetrics, true),
    ] {
        let (mut times_ms, mut bytes) = (Vec::new(), 0);
        for _ in 0..PAGES {
            let begin_ns = clock::thread_cpu_ns();
            let mut page = Vec::new();
            prometheus::page(&snapshot, format, Disclosure { people: true, jobs_max: JOBS }, &mut page);
            let page = if gzip { prometheus::gzip(&page)? } else { page };
            times_ms.push((clock::thread_cpu_ns() - begin_ns) as f64 / 1e6);
            bytes = page.len();
        }
        times_ms.sort_by(f64::total_cmp);
        let (best_ms, median_ms) = (times_ms[0], times_ms[PAGES / 2]);
        println!("{what}: {median_ms:.2} ms CPU, best {best_ms:.2}, {bytes} bytes (goal {LIMIT_MS} ms)");
        slowest_ms = slowest_ms.max(median_ms);
    }
    peer()?;
    ensure!(slowest_ms <= LIMIT_MS, "{slowest_ms:.2} ms are more than {LIMIT_MS} ms");
    Ok(())
}

/// Figures with as many digits as real ones have.
fn snapshot() -> Snapshot {
    let job = |number: usize| {
        let seed = number as i64 * 7_919_017 + 1;
        let cell = |(index, column): (usize, &met_core::Column)| match column.kind {
            Kind::Counter => seed.wrapping_mul(index as i64 + 3) * 1_009 % 90_000_000_000_000,
            // A job without cards has none of these figures; nine in ten have none.
            Kind::Gauge if column.name.starts_with("gpu") && !number.is_multiple_of(10) => MISSING,
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
        let card = HeldCard {
            index: (number % 8).to_string(),
            uuid: format!("GPU-{number:032x}"),
            ..HeldCard::default()
        };
        let cards = if number.is_multiple_of(10) { vec![card] } else { Vec::new() };
        let cells = JOB.columns.iter().enumerate().map(cell).collect();
        Job { about: Arc::new(about), cells, cards, details: Vec::new(), events: Vec::new() }
    };
    Snapshot { tables: node_tables(), jobs: (0..JOBS).map(job).collect() }
}

/// One row of every table about the machine, and eight of those with labels.
fn node_tables() -> Vec<Rows> {
    let of_jobs =
        |name: &str| matches!(name, "job" | "cgroup" | "process" | "taskstats" | "event" | "gpu_process");
    let tables = met_sources::catalogue().into_iter().filter(|table| !of_jobs(table.name));
    let rows = |table| {
        let mut rows = Rows::new(table);
        let count = if table.labels.is_empty() { 1 } else { 8 };
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
