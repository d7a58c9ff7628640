//! What the store takes: a list out of 100,000 jobs, the series of a week, a job that ends, an import.
//!
//! Builds its stores in a temporary directory (`TMPDIR` says where). Best and median of several rounds.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use met_core::conditions::Conditions;
use met_core::grouping::{SumBy, SumSpan};
use met_core::job::{JobKey, LOCAL, QualityKind, Record, State};
use met_core::job_table::ENERGY;
use met_core::listing::{Sort, SortColumn};
use met_core::series::Series;
use met_core::{JOB, Kind, MISSING};
use met_store::inbox::JobDir;
use met_store::{Filter, JobOwner, PageBounds, Reader, Writer};

const JOBS: u64 = 100_000;
const WEEK_SAMPLES: i64 = 7 * 8640;
/// Long ago: jobs that seem to end in the future are listed like those that run.
const BEGIN_S: i64 = 1_700_000_000;
const ROUNDS: usize = 21;

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    println!("| what | best | median |\n| --- | ---: | ---: |");
    lists(&folder.path().join("lists"))?;
    week(&folder.path().join("week"))?;
    ends(&folder.path().join("ends"))?;
    Ok(())
}

/// Runs `work` often and prints its time.
fn time(what: &str, mut work: impl FnMut() -> Result<()>) -> Result<()> {
    let mut times_ms = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        work()?;
        times_ms.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    times_ms.sort_by(f64::total_cmp);
    println!("| {what} | {:.2} ms | {:.2} ms |", times_ms[0], times_ms[ROUNDS / 2]);
    Ok(())
}

fn job(number: u64) -> Record {
    let start_s = BEGIN_S + number as i64 * 30;
    let mut record = Record {
        user: Some(format!("user{}", number % 40)),
        uid: Some(1000 + number as u32 % 40),
        command: vec!["python3".into(), "train.py".into(), format!("--seed={number}")],
        exit_code: Some(0),
        start_ns: Some(start_s * 1_000_000_000),
        end_ns: Some((start_s + 20) * 1_000_000_000),
        nodes: vec!["node1".into()],
        node_memory_bytes: Some(1 << 37),
        ..Record::new(
            JobKey { cluster: None, manager: LOCAL.into(), id: number.to_string(), incarnation: start_s },
            format!("experiment-{}", number % 500),
            if number % 5000 == 7 { State::Failed } else { State::Finished },
        )
    };
    for column in 0..16 {
        record.totals.set(column, number as i64 * column as i64, QualityKind::Measured, "cgroup");
    }
    record.totals.set(ENERGY, number as i64 * 7919 % 100_003, QualityKind::Measured, "rapl");
    record.allocated.cpus = Some(4);
    record.scheduling.partition = Some(if number.is_multiple_of(3) { "long" } else { "short" }.to_owned());
    record
}

fn lists(state: &Path) -> Result<()> {
    let mut writer = Writer::open(state)?;
    let records: Vec<Record> = (1..=JOBS).map(job).collect();
    let begin = Instant::now();
    for chunk in records.chunks(1000) {
        writer.put_all(chunk)?;
    }
    let each_us = begin.elapsed().as_secs_f64() * 1e6 / JOBS as f64;
    drop(writer);
    let bytes = std::fs::metadata(state.join("store.db"))?.len();
    eprintln!("{JOBS} jobs: {each_us:.0} us and {} bytes each", bytes / JOBS);
    let list = |what: &str, filter: Filter, expected: usize| {
        time(what, || {
            let found = Reader::open(state)?.jobs(&filter)?.len();
            ensure!(found == expected, "{what}: {found} jobs");
            Ok(())
        })
    };
    list("open, newest 20 of 100,000", Filter { page: PageBounds::first(20), ..Filter::default() }, 20)?;
    list("open, newest 50 of 100,000", Filter { page: PageBounds::first(50), ..Filter::default() }, 50)?;
    let user = Filter { owner: JobOwner::of_user("user7"), page: PageBounds::first(50), ..Filter::default() };
    list("open, newest 50 of one user", user, 50)?;
    let failed = Filter { states: vec![State::Failed], page: PageBounds::first(50), ..Filter::default() };
    list("open, the 20 that failed of 100,000", failed, 20)?;
    sorted_lists(state)?;
    time("open, find one by id", || {
        ensure!(Reader::open(state)?.find(None, "50000")?.len() == 1);
        Ok(())
    })?;
    time("open, newest of a name", || {
        let name = Some("experiment-3".into());
        let newest = Filter { name, with_summaries: true, page: PageBounds::first(1), ..Filter::default() };
        ensure!(Reader::open(state)?.jobs(&newest)?.len() == 1);
        Ok(())
    })
}

/// The first 100 by every column, by every condition, and what jobs are together; goal: 100 ms each.
fn sorted_lists(state: &Path) -> Result<()> {
    let text = |text: &str| Some(text.to_owned());
    // Without it all jobs seem to have ended just now.
    let now_ns = met_host::clock::realtime_ns();
    let list = |what: &str, filter: &Filter| {
        time(&format!("open, {what}"), || {
            Reader::open(state)?.jobs(filter)?;
            Ok(())
        })
    };
    for column in SortColumn::ALL {
        let sort = Some(Sort { column, descending: true });
        let filter = Filter {
            with_summaries: true,
            page: PageBounds { sort, limit: Some(100), now_ns, ..PageBounds::default() },
            ..Filter::default()
        };
        list(&format!("first 100 by {}", column.name()), &filter)?;
    }
    let conditions = [
        ("command", Conditions { command: text("--seed=999"), ..Conditions::default() }),
        ("no command has it", Conditions { command: text("nowhere"), ..Conditions::default() }),
        ("node", Conditions { node: text("node1"), ..Conditions::default() }),
        ("partition", Conditions { partition: text("long"), ..Conditions::default() }),
        ("tag", Conditions { tag: text("good"), ..Conditions::default() }),
        ("duration", Conditions { min_duration_ns: Some(1), ..Conditions::default() }),
        ("energy", Conditions { min_energy_uj: Some(1), ..Conditions::default() }),
        ("efficiency", Conditions { max_efficiency: Some(0.5), ..Conditions::default() }),
    ];
    for (what, conditions) in conditions {
        let sort = Some(Sort { column: SortColumn::Cpu, descending: true });
        for (order, sort) in [("newest", None), ("first by cpu", sort)] {
            let conditions = conditions.clone();
            let filter = Filter {
                conditions,
                with_summaries: true,
                page: PageBounds { sort, limit: Some(100), now_ns, ..PageBounds::default() },
                ..Filter::default()
            };
            list(&format!("{order} 100 by condition: {what}"), &filter)?;
        }
    }
    let all = Filter::default();
    time("open, users and accounts", || {
        ensure!(Reader::open(state)?.memberships(&all)?.len() == 40);
        Ok(())
    })?;
    let span = SumSpan { by: SumBy::User, from_ns: 0, to_ns: i64::MAX };
    time("open, energy of all users", || {
        ensure!(Reader::open(state)?.sums(&all, &span)?.len() == 40);
        Ok(())
    })
}

/// A week, one sample each 10 s: counters that grow unevenly, levels that drift, a third never known.
fn week_series() -> Series {
    let mut series = Series::new(&JOB);
    let mut random = 88_172_645_463_325_252_u64;
    let mut cells = vec![MISSING; JOB.columns.len()];
    for sample in 0..WEEK_SAMPLES {
        for (number, column) in JOB.columns.iter().enumerate() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let before = if cells[number] == MISSING { 0 } else { cells[number] };
            cells[number] = match (number % 3, column.kind) {
                (0, _) => MISSING,
                (1, Kind::Counter) => before + 9_990_000_000 + (random % 1000 * 20_000) as i64,
                (1, Kind::Gauge) => (before + (random % 257) as i64 * 4096 - 128 * 4096).max(0),
                _ => before + i64::from(random.is_multiple_of(500)),
            };
        }
        series.push(BEGIN_S * 1000 + sample * 10_000, &cells);
    }
    series
}

fn week(state: &Path) -> Result<()> {
    let series = week_series();
    let mut record = job(1);
    record.end_ns = record.start_ns.map(|start_ns| start_ns + 7 * 86_400_000_000_000);
    let mut writer = Writer::open(state)?;
    writer.put(&record)?;
    let begin = Instant::now();
    writer.append_series(&record.key, &series)?;
    let append_ms = begin.elapsed().as_secs_f64() * 1e3;
    drop(writer);
    let mut bytes = 0;
    for file in std::fs::read_dir(state.join("series"))? {
        bytes += file?.metadata()?.len();
    }
    eprintln!("a week of samples: {append_ms:.0} ms to append, {bytes} bytes on disk");
    time("open, course of 60,480 samples of 31 columns", || {
        let read = Reader::open(state)?.series(&record.key)?;
        ensure!(read.len() == series.len());
        Ok(())
    })?;
    let read = Reader::open(state)?.series(&record.key)?;
    ensure!(read.times_ms == series.times_ms && read.columns == series.columns);
    let mut writer = Writer::open(state)?;
    let key = &job(2).key;
    let sample = |index: usize| series.columns.iter().map(|cells| cells[index]).collect::<Vec<_>>();
    let mut part = Series::new(&JOB);
    (0..1000).for_each(|index| part.push(series.times_ms[index], &sample(index)));
    writer.append_series(key, &part)?;
    let mut next = 1000;
    time("append 6 samples to a block of over 1,000 (31 columns, 21 known)", || {
        part.truncate(0);
        (next..next + 6).for_each(|index| part.push(series.times_ms[index], &sample(index)));
        next += 6;
        Ok(writer.append_series(key, &part)?)
    })
}

fn ends(state: &Path) -> Result<()> {
    let mut writer = Writer::open(state)?;
    let mut number = 0;
    time("a finished job, durable", || {
        number += 1;
        Ok(writer.put(&job(number))?)
    })?;
    time("start and end in the inbox, durable", || {
        let (id, dir) = JobDir::reserve(state, 1000)?;
        dir.write_start(&Record { state: State::Running, ..job(id) })?;
        Ok(dir.write_end(&job(id))?)
    })?;
    let begin = Instant::now();
    let imported = writer.import()?.ended.len();
    let each_ms = begin.elapsed().as_secs_f64() * 1e3 / imported as f64;
    println!("| import of one job from the inbox, durable (mean of {imported}) | | {each_ms:.2} ms |");
    Ok(())
}
