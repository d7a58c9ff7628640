//! JSON lines: a line for each job, followed by a line for each of its samples and of the runs before it.

use std::io::{BufRead, Read, Write};

use anyhow::{Context, Result, bail, ensure};
use met_core::job::Record;
use met_core::series::{SPREAD_NAMES, Series, Spread, Spreads};
use met_core::{Column, Kind, MISSING, Table};
use met_insight::answers::Beside;
use met_insight::json;
use serde_json::{Map, Value, json};

use crate::foreign::{self, CELLS_MAX, SERIES_MAX};
use crate::{ExportedJob, JobWriter, PartSeries, earlier_json, identity, tables};

/// A record is bounded to half a megabyte, and a job's line has its figures twice.
pub const LINE_BYTES_MAX: usize = 4 << 20;

const TYPE: &str = "type";
const JOB_LINE: &str = "job";
const SAMPLE_LINE: &str = "sample";
const EARLIER_LINE: &str = "earlier";
const EXPORTED: &str = "exported";
const CPUS: &str = "cpus";
const BESIDE: &str = "beside";
const RECORD: &str = "record";
const CLUSTER: &str = "cluster";
const JOB: &str = "job";
const INCARNATION: &str = "incarnation";
const TABLE: &str = "table";
const PART: &str = "part";
const TIME: &str = "time";
const THINNED: &str = "thinned";

pub struct Jsonl<W: Write> {
    to: W,
}

impl<W: Write> Jsonl<W> {
    pub fn new(to: W) -> Jsonl<W> {
        Jsonl { to }
    }

    fn line(&mut self, line: &Map<String, Value>) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        Ok(self.to.write_all(&bytes)?)
    }
}

impl<W: Write> JobWriter for Jsonl<W> {
    fn job(&mut self, job: &ExportedJob) -> Result<()> {
        let mut line = Map::new();
        line.insert(TYPE.to_owned(), JOB_LINE.into());
        line.insert(EXPORTED.to_owned(), json::time(job.exported_ns).into());
        line.insert(CPUS.to_owned(), job.cpus.into());
        if let Some(Beside { gpus, pressure, cores }) = job.beside {
            line.insert(BESIDE.to_owned(), json!({ "gpus": gpus, "pressure": pressure, "cores": cores }));
        }
        if let Value::Object(object) = json::object(&job.record, job.exported_ns) {
            line.extend(object);
        }
        line.insert(RECORD.to_owned(), serde_json::to_value(&job.record)?);
        self.line(&line)?;
        for series in &job.series {
            for index in 0..series.series.len() {
                self.line(&sample(&job.record, series, index))?;
            }
        }
        for run in &job.earlier {
            let mut line = named(EARLIER_LINE, &job.record);
            line.insert(RECORD.to_owned(), earlier_json(run)?);
            self.line(&line)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        Ok(self.to.flush()?)
    }
}

/// The beginning of a line that belongs to a job.
fn named(kind: &str, record: &Record) -> Map<String, Value> {
    let (cluster, label, incarnation) = identity(record);
    let first = [
        (TYPE, kind.into()),
        (CLUSTER, cluster.into()),
        (JOB, label.into()),
        (INCARNATION, incarnation.into()),
    ];
    Map::from_iter(first.map(|(name, value): (&str, Value)| (name.to_owned(), value)))
}

fn sample(record: &Record, PartSeries { part, series }: &PartSeries, index: usize) -> Map<String, Value> {
    let mut line = named(SAMPLE_LINE, record);
    line.insert(TABLE.to_owned(), series.table.name.into());
    line.insert(PART.to_owned(), part.as_str().into());
    line.insert(TIME.to_owned(), json::time(series.times_ms[index].saturating_mul(1_000_000)).into());
    let mut thinned = Map::new();
    for (at, (column, cells)) in series.table.columns.iter().zip(&series.columns).enumerate() {
        if cells[index] != MISSING {
            line.insert(column.json_name(), json::number(column, cells[index]));
        }
        if let Some(Spread { low, mean, high }) = series.spread(at, index) {
            let known = SPREAD_NAMES.iter().zip([Some(low), mean, Some(high)]);
            let known = known
                .filter_map(|(name, value)| Some(((*name).to_owned(), Value::from(value? * column.scale))));
            thinned.insert(column.json_name(), Value::Object(known.collect()));
        }
    }
    if !thinned.is_empty() {
        line.insert(THINNED.to_owned(), thinned.into());
    }
    line
}

/// Calls `each` with every job of a file, one after the other; of what follows `each` only one is in memory.
pub fn read(mut from: impl BufRead, each: &mut dyn FnMut(ExportedJob) -> Result<()>) -> Result<()> {
    let (mut line, mut number) = (Vec::new(), 0_u64);
    let mut reader = Reader::default();
    loop {
        line.clear();
        number += 1;
        let bytes = from.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        ensure!(bytes <= LINE_BYTES_MAX, "line {number}: longer than {} MiB", LINE_BYTES_MAX >> 20);
        if bytes == 0 {
            break;
        }
        if let Some(whole) = reader.take(&line).with_context(|| format!("line {number}"))? {
            each(whole)?;
        }
    }
    match reader.job {
        Some(job) => each(job),
        None => bail!("no job in it; `met export` writes such files"),
    }
}

/// The job whose samples are being read.
#[derive(Default)]
struct Reader {
    job: Option<ExportedJob>,
    /// Values of its samples, those of removed ones included.
    cells: usize,
}

impl Reader {
    /// Adds a line to the job, or begins another one: then the earlier is whole.
    fn take(&mut self, line: &[u8]) -> Result<Option<ExportedJob>> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let mut line: Map<String, Value> = serde_json::from_slice(line).context("not a JSON object")?;
        match line.get(TYPE).and_then(Value::as_str) {
            Some(JOB_LINE) => {
                let record = foreign::record(line.remove(RECORD).context("the job has no record")?)?;
                let exported = line.get(EXPORTED).and_then(Value::as_str).and_then(json::parse_time);
                let exported_ns = foreign::time_ns(exported.context("the time of the export is missing")?)?;
                let cpus = line.get(CPUS).and_then(Value::as_u64).and_then(|cpus| u32::try_from(cpus).ok());
                let beside = |name: &str| line.get(BESIDE)?.get(name)?.as_f64();
                let beside = foreign::beside(beside("gpus"), beside("pressure"), beside("cores"));
                self.cells = 0;
                let job = ExportedJob { beside, ..ExportedJob::of(record, cpus, exported_ns) };
                Ok(self.job.replace(job))
            }
            Some(SAMPLE_LINE) => self.add_sample(&line).map(|()| None),
            Some(EARLIER_LINE) => {
                let run = line.remove(RECORD).context("the earlier run has no record")?;
                foreign::add_earlier(&mut self.its_job(&line)?.earlier, run).map(|()| None)
            }
            // A later version may have more to say.
            Some(_) => Ok(None),
            None => bail!("the line has no \"{TYPE}\""),
        }
    }

    /// The job that a line belongs to.
    fn its_job(&mut self, line: &Map<String, Value>) -> Result<&mut ExportedJob> {
        let job = self.job.as_mut().context("a line of a job before the first job")?;
        let (_, label, incarnation) = identity(&job.record);
        let is_its = line.get(JOB).and_then(Value::as_str) == Some(&label)
            && line.get(INCARNATION) == Some(&incarnation.into());
        ensure!(is_its, "a line of another job than the one above");
        Ok(job)
    }

    fn add_sample(&mut self, line: &Map<String, Value>) -> Result<()> {
        let text = |name: &str| line.get(name).and_then(Value::as_str);
        let job = self.its_job(line)?;
        let name = text(TABLE).context("the sample has no table")?;
        // What a later version measures has no name here.
        let Some(table) = tables().into_iter().find(|table| table.name == name) else { return Ok(()) };
        let time_ns = text(TIME).and_then(json::parse_time).context("the sample has no time")?;
        let series = series_of(&mut job.series, table, text(PART).unwrap_or_default())?;
        let row: Vec<i64> = table.columns.iter().map(|column| cell(column, line)).collect();
        push(series, time_ns, &row)?;
        if let Some(thinned) = line.get(THINNED).and_then(Value::as_object) {
            add_spreads(series, thinned);
        }
        let kinds = if series.spreads.is_some() { 1 + SPREAD_NAMES.len() } else { 1 };
        self.cells += row.len() * kinds;
        ensure!(self.cells <= CELLS_MAX, "more than {CELLS_MAX} values in one job");
        Ok(())
    }
}

/// Adds a sample behind those that there are.
pub fn push(series: &mut Series, time_ns: i64, row: &[i64]) -> Result<()> {
    let time_ms = foreign::time_ns(time_ns)?.div_euclid(1_000_000);
    let is_later = series.times_ms.last().is_none_or(|&last| last < time_ms);
    ensure!(is_later, "samples are not in the order of time");
    series.push(time_ms, row);
    Ok(())
}

/// The series of a part; a new one where there is none yet.
pub fn series_of<'a>(
    parts: &'a mut Vec<PartSeries>,
    table: &'static Table,
    part: &str,
) -> Result<&'a mut Series> {
    let is_it = |known: &PartSeries| known.part == part && known.series.table.name == table.name;
    let at = match parts.iter().rposition(is_it) {
        Some(at) => at,
        None => {
            ensure!(parts.len() < SERIES_MAX, "more than {SERIES_MAX} series in one job");
            parts.push(PartSeries { part: foreign::part(part), series: Series::new(table) });
            parts.len() - 1
        }
    };
    Ok(&mut parts[at].series)
}

fn cell(column: &Column, line: &Map<String, Value>) -> i64 {
    let value = line.get(&column.json_name());
    let whole = value.and_then(Value::as_i64).filter(|_| column.scale == 1.0);
    let known = whole.and_then(foreign::cell);
    known.or_else(|| foreign::scaled_cell(column, value?.as_f64()?)).unwrap_or(MISSING)
}

fn add_spreads(series: &mut Series, thinned: &Map<String, Value>) {
    let last = series.len() - 1;
    for (at, column) in series.table.columns.iter().enumerate() {
        let Some(known) = thinned.get(&column.json_name()).and_then(Value::as_object) else { continue };
        let value = |which: usize| known.get(SPREAD_NAMES[which])?.as_f64().map(|value| value / column.scale);
        // What has no extremes has no spread; the samples of a counter say its mean.
        let (Some(low), Some(high)) = (value(0), value(2)) else { continue };
        let mean = value(1).filter(|_| column.kind == Kind::Gauge);
        let spreads = series.spreads.get_or_insert_with(|| Box::new(Spreads::new(series.table)));
        spreads.set(at, last, Spread { low, mean, high });
    }
    if let Some(spreads) = &mut series.spreads {
        spreads.resize(last + 1);
    }
}
