//! What a node stores in a day: the machine's history at rest, and the same with ten jobs.
//!
//! The machine is read every second for a while (the argument, 60 s by default). A day is then played by a faster clock:
//! what each counter grew by in a second and what each level was are drawn at random from these readings, and written
//! by the store's own code as often as a daemon writes. A machine that is busy meanwhile makes the figures larger. Jobs
//! are recorded ones (`fixtures/workloads`): ten seconds of one are twenty of its half seconds in a row, from a random
//! moment on.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use met_benches::say;
use met_core::job::{JobKey, LOCAL, QualityKind, Record, State};
use met_core::series::Series;
use met_core::{JOB, Kind, MISSING, Subject, Table};
use met_host::{Host, Targets};
use met_sources::{Options, Runner, TickInfo};
use met_store::Writer;

const DAY_S: i64 = 86_400;
/// `storage.interval`.
const FLUSH_S: i64 = 60;
/// `node.interval`, without and with jobs.
const AT_REST_S: i64 = 60;
const WITH_JOBS_S: i64 = 10;
const JOBS: [&str; 10] = [
    "both_cores",
    "bursty",
    "buffered_writes",
    "leaking",
    "many_files",
    "messages",
    "serial",
    "tiny_children",
    "two_phases",
    "unequal",
];
/// Samples of a recorded job in a second.
const RECORDED_PER_S: i64 = 2;
/// Midnight: all of a day is in one file.
const BEGIN_S: i64 = 1_794_700_800;
const READ_EVERY: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let seconds = match std::env::args().nth(1) {
        Some(text) => text.parse().with_context(|| format!("{text:?}: seconds"))?,
        None => 60,
    };
    let machine = Machine::watch(seconds)?;
    let jobs: Vec<Part> = JOBS.iter().map(|name| recorded(name)).collect::<Result<_>>()?;
    let (parts, columns) = (machine.parts.len(), machine.columns());
    say(&format!("the machine: {parts} parts, {columns} columns that were read, watched for {seconds} s"));
    say("| a day | bytes on disk | of it jobs and totals | goal |\n| --- | ---: | ---: | ---: |");
    let folder = tempfile::tempdir()?;
    let known: usize = jobs.iter().map(Part::columns).sum();
    let busy = format!("with {} jobs of {} columns on average at 10 s", jobs.len(), known / jobs.len());
    let days = [("at rest", &jobs[..0], AT_REST_S, "1 MB"), (&busy, &jobs, WITH_JOBS_S, "6 MB")];
    for (name, jobs, every_s, goal) in days {
        let state = folder.path().join(every_s.to_string());
        play(&state, &machine, jobs, every_s)?;
        let (all, catalogue) = (size(&state)?, std::fs::metadata(state.join("store.db"))?.len());
        let mb = |bytes: u64| format!("{:.2} MB", bytes as f64 / 1e6);
        say(&format!("| {name} | {} | {} | {goal} |", mb(all), mb(catalogue)));
    }
    Ok(())
}

/// What was seen of the machine, by table and label.
struct Machine {
    parts: BTreeMap<String, Part>,
}

struct Part {
    table: &'static Table,
    readings: Vec<Vec<i64>>,
}

impl Part {
    /// Those that were read.
    fn columns(&self) -> usize {
        let is_read = |column: &usize| self.readings.iter().any(|cells| cells[*column] != MISSING);
        (0..self.table.columns.len()).filter(is_read).count()
    }
}

/// The samples of a recorded job.
fn recorded(name: &str) -> Result<Part> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../fixtures/workloads/{name}.jsonl"));
    let mut part = Part { table: &JOB, readings: Vec::new() };
    met_export::read(&path, &mut |job| {
        job.series(&JOB, "").each_row(|_, cells| part.readings.push(cells.to_vec()));
        Ok(())
    })?;
    ensure!(part.readings.len() as i64 > WITH_JOBS_S * RECORDED_PER_S, "{name}: too few samples");
    Ok(part)
}

impl Machine {
    fn watch(seconds: u32) -> Result<Machine> {
        let host = Host::real()?;
        let options = Options { node: true, period_max: Some(READ_EVERY), ..Options::default() };
        let mut runner = Runner::open(&host, &options);
        let mut parts: BTreeMap<String, Part> = BTreeMap::new();
        for _ in 0..=seconds.max(1) {
            runner.read(&Targets::default(), &TickInfo::of(true));
            for (batches, labels) in runner.labelled() {
                for batch in batches {
                    for (row, cells) in batch.rows().filter(|(row, _)| row.owner == Subject::Node) {
                        let label = labels.get(row.part as usize).map(|label| label.join(" "));
                        let name = format!("{} {}", batch.table.name, label.unwrap_or_default());
                        let part =
                            parts.entry(name).or_insert(Part { table: batch.table, readings: Vec::new() });
                        part.readings.push(cells.to_vec());
                    }
                }
            }
            std::thread::sleep(READ_EVERY);
        }
        Ok(Machine { parts })
    }

    fn columns(&self) -> usize {
        self.parts.values().map(Part::columns).sum()
    }
}

/// A part of the machine while the day goes by.
struct Played<'a> {
    part: &'a Part,
    cells: Vec<i64>,
}

impl Played<'_> {
    fn step(&mut self, seconds: i64, random: &mut Random) {
        for (column, definition) in self.part.table.columns.iter().enumerate() {
            let readings = &self.part.readings;
            self.cells[column] = match definition.kind {
                Kind::Gauge => readings[random.below(readings.len())][column],
                Kind::Counter if self.cells[column] == MISSING || readings.len() < 2 => self.cells[column],
                Kind::Counter => {
                    let grown: i64 = (0..seconds).map(|_| growth(readings, column, random)).sum();
                    self.cells[column].saturating_add(grown)
                }
            };
        }
    }
}

/// A recorded job while the day goes by: levels are those of the last of the samples that are played, and counters grow
/// as they did over them.
fn work(cells: &mut [i64], job: &Part, seconds: i64, random: &mut Random) {
    let steps = (seconds * RECORDED_PER_S) as usize;
    let begin = random.below(job.readings.len() - steps);
    let (first, last) = (&job.readings[begin], &job.readings[begin + steps]);
    for (column, definition) in JOB.columns.iter().enumerate() {
        cells[column] = match (definition.kind, first[column], last[column]) {
            (Kind::Gauge, _, level) => level,
            (Kind::Counter, MISSING, _) | (Kind::Counter, _, MISSING) => cells[column],
            (Kind::Counter, before, after) => {
                let so_far = if cells[column] == MISSING { 0 } else { cells[column] };
                so_far.saturating_add(after.saturating_sub(before).max(0))
            }
        };
    }
}

/// What a counter grew by in one of the seconds that were watched.
fn growth(readings: &[Vec<i64>], column: usize, random: &mut Random) -> i64 {
    let at = random.below(readings.len() - 1);
    match (readings[at][column], readings[at + 1][column]) {
        (MISSING, _) | (_, MISSING) => 0,
        (before, after) => after.saturating_sub(before).max(0),
    }
}

fn play(state: &Path, machine: &Machine, jobs: &[Part], every_s: i64) -> Result<()> {
    let mut writer = Writer::open(state)?;
    let mut random = Random(88_172_645_463_325_252);
    let mut parts: Vec<(&str, Played<'_>)> = (machine.parts.iter())
        .map(|(name, part)| (name.as_str(), Played { part, cells: part.readings[0].clone() }))
        .collect();
    let mut running: Vec<(Record, &Part, Vec<i64>)> =
        (1..).zip(jobs).map(|(id, part)| (job(id), part, vec![MISSING; JOB.columns.len()])).collect();
    for (record, ..) in &running {
        writer.put(record)?;
    }
    for flush_s in (0..DAY_S).step_by(FLUSH_S as usize) {
        let times = || (flush_s..flush_s + FLUSH_S).step_by(every_s as usize);
        let time_ms = |second: i64| (BEGIN_S + second) * 1000;
        for (name, played) in &mut parts {
            let mut series = Series::new(played.part.table);
            for second in times() {
                played.step(every_s, &mut random);
                series.push(time_ms(second), &played.cells);
            }
            writer.append_node(name, &series)?;
        }
        for (record, part, cells) in &mut running {
            let mut series = Series::new(&JOB);
            for second in times() {
                work(cells, part, every_s, &mut random);
                series.push(time_ms(second), cells);
            }
            writer.append_series(&record.key, &series)?;
        }
    }
    for (record, _, cells) in &mut running {
        (record.state, record.exit_code) = (State::Finished, Some(0));
        record.end_ns = record.start_ns.map(|start_ns| start_ns + DAY_S * 1_000_000_000);
        for (column, &cell) in cells.iter().enumerate().filter(|(_, cell)| **cell != MISSING) {
            record.totals.set(column, cell, QualityKind::Measured, "cgroup");
        }
        writer.put(record)?;
    }
    Ok(())
}

fn job(id: u32) -> Record {
    let key = JobKey { cluster: None, manager: LOCAL.into(), id: id.to_string(), incarnation: BEGIN_S };
    Record {
        user: Some("alice".into()),
        uid: Some(1000),
        command: vec!["python3".into(), "train.py".into()],
        start_ns: Some(BEGIN_S * 1_000_000_000),
        nodes: vec!["node1".into()],
        ..Record::new(key, "train", State::Running)
    }
}

/// The same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}
