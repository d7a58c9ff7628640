//! `met node`: the machine now, or over time.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use met_core::gpu::device;
use met_core::gpus::GpuNow;
use met_core::node::{Freshness, NodeRow};
use met_core::series::Series;
use met_core::{Kind, MISSING};
use met_host::clock;
use met_sources::{Choice, NO_ANSWER, Options, Pace, SOURCES, SourceSpec, Unread};
use serde_json::{Map, Value, json};

use crate::cli::NodeArgs;
use crate::output;
use crate::view::{self, node, node_part_series, text};
use met_agent::idle_power_file;
use met_agent::sampler::{self, Sampler};
use met_config::Failure;
use met_core::energy::EnergyWindow;
use met_core::units;
use met_query::jobs::{self, AllJobs};
use met_query::protocol::{Reply, Request};
use met_query::setting::Setting;

/// Rates are what happened between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// A controller may take seconds to answer.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The GPUs of a driver that is awake answer within this time; others are shown after the rest.
const GPUS_TIMEOUT: Duration = Duration::from_secs(1);
/// How often is looked whether they have answered.
const LATE_LOOK: Duration = Duration::from_millis(500);
/// Some windows of the slowest meters.
const LEDGER_MAX_AGE: Duration = Duration::from_secs(60);
const NOTHING_KEPT: &str = "no series of the machine are stored for that time; a system daemon stores them, \
    a user's daemon with storage.node_series: true\n";

pub fn node(setting: &Setting, args: &NodeArgs) -> Result<i32> {
    if args.node.is_some() && setting.server.is_none() {
        return Err(Failure::usage("no server given; use --server URL, or leave NODE out for this machine"));
    }
    let of_node = args.node.as_ref().map(|_| "1h");
    if let Some(since) = args.since.as_deref().or(of_node) {
        return series(setting, args, since);
    }
    if args.csv {
        return Err(Failure::usage("--csv prints series; add --since TIME"));
    }
    let progress = Progress::begin();
    let begin = Instant::now();
    let mut sampler = open(setting);
    sampler.energy().recall_idle(idle_power_file::known(setting));
    sampler.look();
    std::thread::sleep(BETWEEN_LOOKS);
    // Asked now, taken over when it is there.
    sampler.look();
    // A program gets one object with everything.
    if args.json {
        sampler.wait(TIMEOUT);
    } else {
        sampler.wait(GPUS_TIMEOUT);
        sampler.wait_but_for_gpus(TIMEOUT);
    }
    sampler.look();
    progress.end();
    let energy = ledger_of_daemon(setting).or_else(|| sampler.energy().now());
    let gpu_errors = if args.json { gpu_errors(&mut sampler) } else { Vec::new() };
    let rows: Vec<(&NodeRow, Freshness)> = sampler.machine.rows().collect();
    let gpus: Vec<GpuNow<'_>> = sampler.gpus().into_iter().map(|(gpu, _)| gpu).collect();
    let mut stdout = output::stdout();
    if args.json {
        let mut object = object(setting, &rows);
        if !gpus.is_empty() {
            object["tables"][device::TABLE.name] = gpus.iter().map(gpu_object).collect();
        }
        if !gpu_errors.is_empty() {
            object["gpu_errors"] = gpu_errors.into();
        }
        object["energy"] = energy.as_ref().map_or(Value::Null, energy_object);
        writeln!(stdout, "{object}")?;
        return Ok(0);
    }
    let style = stdout.style();
    let facts = setting.host.facts();
    let machine = node::Machine { name: &facts.hostname, cpus: facts.cpu_count, gpus: &gpus };
    stdout.write_all(node::machine(&machine, &rows, &style).as_bytes())?;
    if let Some(window) = &energy {
        stdout.write_all(node::energy(window, &style).as_bytes())?;
    }
    drop((rows, gpus));
    let mut late = Vec::new();
    if sampler.has_gpus() && sampler.gpus().is_empty() {
        // The rest is on the screen: only now is a driver waited for that does not answer.
        stdout.flush()?;
        late = late_gpus(&mut sampler, TIMEOUT.saturating_sub(begin.elapsed()));
    }
    let unread = |gpu: &Unread| format!("GPU {}   {}", gpu.labels[device::label::INDEX], gpu.why);
    late.extend(sampler.unread_gpus().iter().map(unread));
    stdout.write_all(node::late_gpus(&late, &style).as_bytes())?;
    Ok(0)
}

/// GPUs that are there and could not be read, and drivers that do not answer.
fn gpu_errors(sampler: &mut Sampler) -> Vec<Value> {
    let mut drivers = sampler.gpu_troubles();
    let unread = sampler.unread_gpus();
    if unread.is_empty() && drivers.is_empty() && sampler.has_gpus() && sampler.gpus().is_empty() {
        drivers.push(NO_ANSWER.to_owned());
    }
    // What is said of a GPU is not said of its driver again.
    drivers.retain(|_| unread.is_empty());
    let of_gpu = |gpu: Unread| json!({ "index": gpu.labels[device::label::INDEX], "error": gpu.why });
    let of_driver = |error: String| json!({ "index": null, "error": error });
    unread.into_iter().map(of_gpu).chain(drivers.into_iter().map(of_driver)).collect()
}

/// The GPUs when their driver answers, or that it does not.
fn late_gpus(sampler: &mut Sampler, timeout: Duration) -> Vec<String> {
    let deadline = Instant::now() + timeout;
    loop {
        sampler.wait(LATE_LOOK.min(deadline.saturating_duration_since(Instant::now())));
        sampler.look();
        let gpus: Vec<GpuNow<'_>> = sampler.gpus().into_iter().map(|(gpu, _)| gpu).collect();
        if !gpus.is_empty() {
            return node::gpu_lines(&gpus);
        }
        drop(gpus);
        let troubles = sampler.gpu_troubles();
        if !troubles.is_empty() {
            return troubles;
        }
        if Instant::now() >= deadline {
            return vec![NO_ANSWER.to_owned()];
        }
    }
}

/// The machine since a time, as a daemon kept it.
fn series(setting: &Setting, args: &NodeArgs, since: &str) -> Result<i32> {
    let now_ns = jobs::now_ns();
    let since_ns = units::parse_since(since, now_ns, &view::local_zone())
        .map_err(|error| Failure::usage(format!("--since: {error}")))?;
    let since_ms = since_ns / 1_000_000;
    let mut parts = match &args.node {
        Some(_) if setting.server_client()?.is_none() => {
            return Err(Failure::usage("no server given; use --server URL or set MET_SERVER"));
        }
        node => AllJobs::open(setting)?.node_series(node.as_deref(), since_ms)?,
    };
    parts.retain(|(_, series)| !series.is_empty());
    let mut stdout = output::stdout();
    if args.json {
        let object = json!({
            "version": 1,
            "node": args.node.as_ref().unwrap_or(&setting.host.facts().hostname),
            "since": met_insight::json::time(since_ns),
            "time": met_insight::json::time(now_ns),
            "series": node_part_series::object(&parts),
        });
        writeln!(stdout, "{object}")?;
    } else if args.csv {
        stdout.write_all(node_part_series::csv(&parts).as_bytes())?;
    } else {
        let gap_ms = |series: &Series| {
            let idle = setting.config.node.idle();
            sampler::gap_ms_of(series, setting.config.sampling.shortest()).max(sampler::node_gap_ms(idle))
        };
        let style = stdout.style();
        let plots = node_part_series::plots(&parts, gap_ms, &style);
        let nothing = match &args.node {
            Some(node) => format!(
                "no series of node {node} have arrived for that time; nodes send them once a minute\n"
            ),
            None => NOTHING_KEPT.to_owned(),
        };
        let nothing = text::hanging_lines(&nothing, 4, &style);
        stdout.write_all(if plots.is_empty() { &nothing } else { &plots }.as_bytes())?;
    }
    Ok(0)
}

/// A window of the daemon's ledger knows jobs; one that is old says nothing of now.
fn ledger_of_daemon(setting: &Setting) -> Option<EnergyWindow> {
    let mut client = setting.system_daemon().or_else(|| setting.user_daemon().ok())?;
    let Ok(Reply::Energy(window)) = client.call(&Request::Energy) else { return None };
    let max_age_ns = i64::try_from(LEDGER_MAX_AGE.as_nanos()).unwrap_or(i64::MAX);
    window.filter(|window| clock::boottime_ns() - window.end_ns < max_age_ns)
}

fn energy_object(window: &EnergyWindow) -> Value {
    let joules = |energy_uj: i64| energy_uj as f64 / 1e6;
    let unix = |boot_ns: i64| met_insight::json::time(boot_ns + clock::unix_offset_ns());
    json!({
        "begin": unix(window.begin_ns),
        "end": unix(window.end_ns),
        "meter": window.meter,
        "kind": window.kind.name(),
        "whole_joules": joules(window.whole_uj),
        "jobs_joules": joules(window.jobs_uj),
        "system_joules": joules(window.system_uj),
        "idle_joules": joules(window.idle_uj),
        "unassigned_joules": joules(window.unassigned_uj),
        "cards_joules": joules(window.gpus_uj),
        "idle_estimated": window.idle_estimated,
    })
}

/// Only what is about the machine, and all of it at every look.
fn open(setting: &Setting) -> Sampler {
    let mut options = Options {
        node: true,
        period_max: Some(BETWEEN_LOOKS),
        // Opening does not wait: a driver that hangs would delay all the rest.
        ..sampler::options(&setting.config, Duration::ZERO)
    };
    // Of what jobs are read by, GPUs are things of the machine, too.
    let of_gpus = |spec: &SourceSpec| spec.tables.iter().any(|table| std::ptr::eq(*table, &device::TABLE));
    for spec in SOURCES.iter().filter(|spec| spec.pace == Pace::Tick && !of_gpus(spec)) {
        options.choices.insert(spec.name, Choice::OFF);
    }
    Sampler::with(setting.host.clone(), BETWEEN_LOOKS, &setting.config, &options)
}

/// Says on a terminal that something is going on, and takes it back.
struct Progress(bool);

impl Progress {
    fn begin() -> Progress {
        let shown = io::stderr().is_terminal();
        if shown {
            let _ = write!(io::stderr(), "sampling the machine for a second");
        }
        Progress(shown)
    }

    fn end(&self) {
        if self.0 {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn object(setting: &Setting, rows: &[(&NodeRow, Freshness)]) -> Value {
    let mut tables = Map::new();
    for (row, freshness) in rows {
        let list = tables.entry(row.table.name).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.push(row_object(row, *freshness));
        }
    }
    json!({
        "version": 1,
        "node": setting.host.facts().hostname,
        "time": met_insight::json::time(clock::realtime_ns()),
        "tables": tables,
    })
}

/// A GPU, or a part of one, with every column that was read.
fn gpu_object(gpu: &GpuNow<'_>) -> Value {
    let labels = device::TABLE.labels.iter().zip(gpu.labels);
    let mut object: Map<String, Value> =
        labels.map(|(name, label)| ((*name).to_owned(), json!(label))).collect();
    for (column, &cell) in device::TABLE.columns.iter().zip(gpu.cells).filter(|(_, cell)| **cell != MISSING) {
        object.insert(column.json_name(), json!(column.scaled(cell)));
    }
    Value::Object(object)
}

/// Labels, then every column that was read; a counter also as what it grew by per second.
fn row_object(row: &NodeRow, freshness: Freshness) -> Value {
    let mut object = Map::new();
    for (name, label) in row.table.labels.iter().zip(&row.labels) {
        object.insert((*name).to_owned(), json!(label));
    }
    object.insert("source".to_owned(), json!(row.source));
    let read_ns = row.window.end_ns + clock::unix_offset_ns();
    object.insert("read_at".to_owned(), json!(met_insight::json::time(read_ns)));
    object.insert("stale".to_owned(), json!(freshness == Freshness::Stale));
    for (index, column) in row.table.columns.iter().enumerate() {
        if row.cells[index] == MISSING {
            continue;
        }
        let name = column.json_name();
        object.insert(name.clone(), json!(column.scaled(row.cells[index])));
        if let Some(rate) = row.rate(index).filter(|_| column.kind == Kind::Counter) {
            object.insert(format!("{name}_per_second"), json!(rate));
        }
    }
    Value::Object(object)
}
