//! What a node stores in a day: the machine's history at rest, and the same with ten jobs.
//!
//! The machine is read every second for a while (the argument, 60 s by default). A day is then played by a faster clock:
//! what each counter grew by in a second and what each level was are drawn at random from these readings, and written
//! by the store's own code as often as a daemon writes. A machine that is busy meanwhile makes the figures larger.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use met_benches::say;
use met_core::job::{JobKey, LOCAL, QualityKind, Record, State};
use met_core::series::Course;
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
const JOBS: u32 = 10;
const JOB_COLUMNS: usize = 40;
/// Midnight: all of a day is in one file.
const BEGIN_S: i64 = 1_794_700_800;
const READ_EVERY: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let seconds = match std::env::args().nth(1) {
        Some(text) => text.parse().with_context(|| format!("{text:?}: seconds"))?,
        None => 60,
    };
    let machine = Machine::watch(seconds)?;
    let (parts, columns) = (machine.parts.len(), machine.columns());
    say(&format!("the machine: {parts} parts, {columns} columns that were read, watched for {seconds} s"));
    say("| a day | bytes on disk | of it jobs and totals | goal |\n| --- | ---: | ---: | ---: |");
    let folder = tempfile::tempdir()?;
    for (name, jobs, every_s, goal) in
        [("at rest", 0, AT_REST_S, "1 MB"), ("with 10 jobs of 40 columns at 10 s", JOBS, WITH_JOBS_S, "6 MB")]
    {
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
        let known = |part: &Part| {
            let is_read = |column: &usize| part.readings.iter().any(|cells| cells[*column] != MISSING);
            (0..part.table.columns.len()).filter(is_read).count()
        };
        self.parts.values().map(known).sum()
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

/// What a counter grew by in one of the seconds that were watched.
fn growth(readings: &[Vec<i64>], column: usize, random: &mut Random) -> i64 {
    let at = random.below(readings.len() - 1);
    match (readings[at][column], readings[at + 1][column]) {
        (MISSING, _) | (_, MISSING) => 0,
        (before, after) => after.saturating_sub(before).max(0),
    }
}

fn play(state: &Path, machine: &Machine, jobs: u32, every_s: i64) -> Result<()> {
    let mut writer = Writer::open(state)?;
    let mut random = Random(88_172_645_463_325_252);
    let mut parts: Vec<(&str, Played<'_>)> = (machine.parts.iter())
        .map(|(name, part)| (name.as_str(), Played { part, cells: part.readings[0].clone() }))
        .collect();
    let mut running: Vec<(Record, Vec<i64>)> =
        (1..=jobs).map(|id| (job(id), vec![MISSING; JOB.columns.len()])).collect();
    for (record, _) in &running {
        writer.put(record)?;
    }
    for flush_s in (0..DAY_S).step_by(FLUSH_S as usize) {
        let times = || (flush_s..flush_s + FLUSH_S).step_by(every_s as usize);
        let time_ms = |second: i64| (BEGIN_S + second) * 1000;
        for (name, played) in &mut parts {
            let mut course = Course::new(played.part.table);
            for second in times() {
                played.step(every_s, &mut random);
                course.push(time_ms(second), &played.cells);
            }
            writer.append_node(name, &course)?;
        }
        for (record, cells) in &mut running {
            let mut course = Course::new(&JOB);
            for second in times() {
                work(cells, &mut random);
                course.push(time_ms(second), cells);
            }
            writer.append_course(&record.key, &course)?;
        }
    }
    for (record, cells) in &mut running {
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

/// Ten seconds of a job: a third of its counters grow unevenly by a lot, a third now and then; levels drift by pages.
fn work(cells: &mut [i64], random: &mut Random) {
    for (number, column) in JOB.columns.iter().enumerate().take(JOB_COLUMNS) {
        let before = if cells[number] == MISSING { 1 << 30 } else { cells[number] };
        cells[number] = match (column.kind, number % 3) {
            (Kind::Counter, 0) => before + 9_990_000_000 + random.below(20_000_000) as i64,
            (Kind::Counter, 1) => before + random.below(4096) as i64,
            (Kind::Counter, _) => before + i64::from(random.below(500) == 0),
            (Kind::Gauge, _) => (before + (random.below(257) as i64 - 128) * 4096).max(0),
        };
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
