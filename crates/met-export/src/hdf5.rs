//! HDF5: a group for each table and in it a dataset for each column, with its unit as an attribute. What is not known
//! is NaN, of a time the lowest integer (NumPy's NaT), of a text empty.
//!
//! `/jobs` has a row for each job, and its exact record as JSON. `/samples/TABLE` has a row for each sample: `job` is the
//! row in `/jobs`, `part` the row in `part_names`. `/earlier` has what answers read of the runs before these jobs.

use std::fs::File;
use std::io::{Read, Write};

use anyhow::{Context, Result, bail, ensure};
use hdf5_pure::{
    AttrValue, DType, Dataset, File as Tree, FileBuilder, Group, GroupBuilder, H5Element,
    VlenStringReadOptions,
};
use met_core::series::{SPREAD_NAMES, Series, Spread, Spreads};
use met_core::{Column, Kind, MISSING, Table};
use met_insight::answers::{Beside, EVIDENCE_MAX};
use serde_json::Value;

use crate::foreign::{self, CELLS_MAX};
use crate::frame::{self, Cells, FrameColumn};
use crate::jsonl::{LINE_BYTES_MAX, push, series_of};
use crate::{ExportedJob, JobWriter, PartSeries, Rows, earlier_json, tables};

/// The whole file is read into memory.
const FILE_BYTES_MAX: u64 = 512 << 20;
const JOBS_MAX: usize = 1 << 20;
const STRINGS_BYTES_MAX: usize = 512 << 20;
const CHUNK_ROWS: u64 = 4096;
/// The chunks of others may be larger, and one is unpacked as a whole.
const CHUNK_ROWS_MAX: u64 = 16 << 20;
const DEFLATE_LEVEL: u32 = 4;
const FIXED_BYTES_MAX: usize = 16 << 20;

const LAYOUT: &str = "met_layout";
const LAYOUT_VERSION: i64 = 1;
const JOBS: &str = "jobs";
const SAMPLES: &str = "samples";
const EARLIER: &str = "earlier";
const BESIDE: [&str; 3] = ["beside_gpus", "beside_pressure", "beside_cores"];
const RECORD: &str = "record";
const EXPORTED: &str = "exported";
const CPUS: &str = "cpus";
const JOB: &str = "job";
const PART: &str = "part";
const PART_NAMES: &str = "part_names";
const TIME: &str = "time";
const THINNED: &str = "thinned";
const TIME_UNIT: &str = "nanoseconds since 1970-01-01T00:00:00Z";

/// Holds everything until the end: a dataset is written in one piece.
pub struct Hdf5<W: Write> {
    to: W,
    jobs: Vec<ExportedJob>,
    samples: Vec<Samples>,
    cells: usize,
}

/// The samples of one table.
struct Samples {
    table: &'static Table,
    jobs: Vec<i64>,
    parts: Vec<i64>,
    part_names: Vec<String>,
    times_ns: Vec<i64>,
    columns: Vec<Vec<f64>>,
    /// By which of the spreads and column; empty until a thinned sample comes.
    spreads: [Vec<Vec<f64>>; SPREAD_NAMES.len()],
}

impl<W: Write> Hdf5<W> {
    pub fn new(to: W) -> Hdf5<W> {
        Hdf5 { to, jobs: Vec::new(), samples: tables().map(Samples::new).into(), cells: 0 }
    }
}

impl<W: Write> JobWriter for Hdf5<W> {
    fn job(&mut self, job: &ExportedJob) -> Result<()> {
        let row = self.jobs.len();
        for series in &job.series {
            self.cells += series.series.len() * series.series.columns.len();
            let name = series.series.table.name;
            let samples = self.samples.iter_mut().find(|samples| samples.table.name == name);
            samples.with_context(|| format!("no table {name}"))?.add(row as i64, series);
        }
        ensure!(
            self.cells <= CELLS_MAX && row < JOBS_MAX,
            "too much for one HDF5 file; export fewer jobs, or write .parquet or .jsonl"
        );
        self.jobs.push(ExportedJob { series: Vec::new(), ..job.clone() });
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let mut file = FileBuilder::new();
        file.set_attr(LAYOUT, AttrValue::I64(LAYOUT_VERSION));
        file.set_attr("creator", AttrValue::String(format!("met {}", env!("CARGO_PKG_VERSION"))));
        let mut jobs = file.create_group(JOBS);
        write_jobs(&mut jobs, &self.jobs)?;
        file.add_group(jobs.finish());
        if self.jobs.iter().any(|job| !job.earlier.is_empty()) {
            let mut earlier = file.create_group(EARLIER);
            write_earlier(&mut earlier, &self.jobs)?;
            file.add_group(earlier.finish());
        }
        let mut all = file.create_group(SAMPLES);
        for samples in self.samples.iter().filter(|samples| !samples.jobs.is_empty()) {
            let mut group = all.create_group(samples.table.name);
            samples.write(&mut group);
            all.add_group(group.finish());
        }
        file.add_group(all.finish());
        Ok(file.finish_to(self.to)?)
    }
}

fn write_jobs(group: &mut GroupBuilder, jobs: &[ExportedJob]) -> Result<()> {
    for column in frame::of(&jobs.iter().collect::<Vec<_>>(), Rows::Jobs).columns {
        let FrameColumn { name, unit, help, cells } = column;
        match cells {
            Cells::Text(cells) => {
                let texts: Vec<&str> = cells.iter().map(|text| text.as_deref().unwrap_or_default()).collect();
                self::texts(group, &name, &help, &texts)?;
            }
            Cells::Time(cells) => {
                let times: Vec<i64> = cells.iter().map(|time| time.unwrap_or(MISSING)).collect();
                numbers(group, &name, TIME_UNIT, &help, &times);
            }
            Cells::Whole(cells) => {
                let known: Vec<f64> =
                    cells.iter().map(|cell| cell.map_or(f64::NAN, |cell| cell as f64)).collect();
                numbers(group, &name, unit, &help, &known);
            }
            Cells::Real(cells) => {
                let known: Vec<f64> = cells.iter().map(|cell| cell.unwrap_or(f64::NAN)).collect();
                numbers(group, &name, unit, &help, &known);
            }
        }
    }
    let records = jobs.iter().map(|job| serde_json::to_string(&job.record)).collect::<Result<Vec<_>, _>>()?;
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    strings(group, RECORD, "the exact record, for `met import`", &records);
    let exported: Vec<i64> = jobs.iter().map(|job| job.exported_ns).collect();
    numbers(group, EXPORTED, TIME_UNIT, "time of the export", &exported);
    let cpus: Vec<f64> = jobs.iter().map(|job| job.cpus.map_or(f64::NAN, f64::from)).collect();
    numbers(group, CPUS, "", "CPUs of its nodes", &cpus);
    if jobs.iter().any(|job| job.beside.is_some()) {
        write_beside(group, jobs);
    }
    Ok(())
}

/// What other jobs on its node say of a job, for `met import`.
fn write_beside(group: &mut GroupBuilder, jobs: &[ExportedJob]) {
    let mut write = |name: &str, help: &str, of: &dyn Fn(&Beside) -> Option<f64>| {
        let known: Vec<f64> =
            jobs.iter().map(|job| job.beside.as_ref().and_then(of).unwrap_or(f64::NAN)).collect();
        numbers(group, name, "", help, &known);
    };
    let [gpus, pressure, cores] = BESIDE;
    write(gpus, "GPUs of its node, as far as jobs had them", &|beside| beside.gpus.map(f64::from));
    write(pressure, "share of the time in which jobs of others waited for a CPU", &|beside| beside.pressure);
    write(cores, "cores that other jobs on its node used", &|beside| beside.cores);
}

fn write_earlier(group: &mut GroupBuilder, jobs: &[ExportedJob]) -> Result<()> {
    let (mut rows, mut records) = (Vec::new(), Vec::new());
    for (row, job) in jobs.iter().enumerate() {
        for run in &job.earlier {
            rows.push(row as i64);
            records.push(earlier_json(run)?.to_string());
        }
    }
    numbers(group, JOB, "", "row of the job in /jobs", &rows);
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    strings(group, RECORD, "what answers read of a run before the job, for `met import`", &records);
    Ok(())
}

impl Samples {
    fn new(table: &'static Table) -> Samples {
        Samples {
            table,
            jobs: Vec::new(),
            parts: Vec::new(),
            part_names: Vec::new(),
            times_ns: Vec::new(),
            columns: vec![Vec::new(); table.columns.len()],
            spreads: std::array::from_fn(|_| vec![Vec::new(); table.columns.len()]),
        }
    }

    fn add(&mut self, job: i64, PartSeries { part, series }: &PartSeries) {
        let known = self.part_names.iter().position(|name| name == part);
        let part_row = known.unwrap_or_else(|| {
            self.part_names.push(part.clone());
            self.part_names.len() - 1
        });
        let before = self.jobs.len();
        let count = before + series.len();
        self.jobs.resize(count, job);
        self.parts.resize(count, part_row as i64);
        self.times_ns.extend(series.times_ms.iter().map(|time_ms| time_ms.saturating_mul(1_000_000)));
        for ((at, column), cells) in self.table.columns.iter().enumerate().zip(&series.columns) {
            let value = |&cell: &i64| if cell == MISSING { f64::NAN } else { column.scaled(cell) };
            self.columns[at].extend(cells.iter().map(value));
            if series.spreads.is_some() {
                self.add_spreads(at, column, series, before);
            }
        }
    }

    fn add_spreads(&mut self, at: usize, column: &Column, series: &Series, before: usize) {
        for index in 0..series.len() {
            let Some(Spread { low, mean, high }) = series.spread(at, index) else { continue };
            for (all, value) in self.spreads.iter_mut().zip([Some(low), mean, Some(high)]) {
                all[at].resize(before + index, f64::NAN);
                all[at].push(value.map_or(f64::NAN, |value| value * column.scale));
            }
        }
    }

    fn write(&self, group: &mut GroupBuilder) {
        numbers(group, JOB, "", "row of the job in /jobs", &self.jobs);
        numbers(group, PART, "", "row in part_names", &self.parts);
        let names: Vec<&str> = self.part_names.iter().map(String::as_str).collect();
        strings(group, PART_NAMES, "names of events, uuids of GPUs", &names);
        numbers(group, TIME, TIME_UNIT, "time of the sample", &self.times_ns);
        for (column, cells) in self.table.columns.iter().zip(&self.columns) {
            if cells.iter().any(|cell| !cell.is_nan()) {
                numbers(group, &column.json_name(), unit(column), column.help, cells);
            }
        }
        let mut thinned = group.create_group(THINNED);
        let mut is_thinned = false;
        for (which, columns) in SPREAD_NAMES.iter().zip(&self.spreads) {
            for (column, cells) in self.table.columns.iter().zip(columns) {
                if cells.iter().any(|cell| !cell.is_nan()) {
                    let mut cells = cells.clone();
                    cells.resize(self.jobs.len(), f64::NAN);
                    let name = spread_name(column, which);
                    numbers(
                        &mut thinned,
                        &name,
                        unit(column),
                        "of removed samples; of a counter: per second",
                        &cells,
                    );
                    is_thinned = true;
                }
            }
        }
        if is_thinned {
            group.add_group(thinned.finish());
        }
    }
}

fn spread_name(column: &Column, which: &str) -> String {
    format!("{}_{which}", column.json_name())
}

fn unit(column: &Column) -> &'static str {
    column.unit.suffix().trim_start_matches('_')
}

fn numbers<T: H5Element>(group: &mut GroupBuilder, name: &str, unit: &str, help: &str, values: &[T]) {
    let rows = (values.len() as u64).clamp(1, CHUNK_ROWS);
    let dataset = group.create_dataset(name).with_data(values);
    let dataset = dataset.with_chunks(&[rows]).with_shuffle().with_deflate(DEFLATE_LEVEL);
    dataset.set_attr("units", AttrValue::String(unit.to_owned()));
    dataset.set_attr("help", AttrValue::String(help.to_owned()));
}

/// Texts of one width, which are compressed; unless some are much longer than the others.
fn texts(group: &mut GroupBuilder, name: &str, help: &str, values: &[&str]) -> Result<()> {
    let widest = values.iter().map(|value| value.len()).max().unwrap_or_default();
    if widest.saturating_mul(values.len()) > FIXED_BYTES_MAX {
        strings(group, name, help, values);
        return Ok(());
    }
    let rows = (values.len() as u64).clamp(1, CHUNK_ROWS);
    let dataset = group.create_dataset(name).with_strings(values)?;
    let dataset = dataset.with_chunks(&[rows]).with_deflate(DEFLATE_LEVEL);
    dataset.set_attr("help", AttrValue::String(help.to_owned()));
    Ok(())
}

fn strings(group: &mut GroupBuilder, name: &str, help: &str, values: &[&str]) {
    let dataset = group.create_dataset(name).with_vlen_strings(values);
    dataset.set_attr("help", AttrValue::String(help.to_owned()));
}

/// Calls `each` with every job of a file.
pub fn read(file: File, each: &mut dyn FnMut(ExportedJob) -> Result<()>) -> Result<()> {
    let mut bytes = Vec::new();
    let most = FILE_BYTES_MAX >> 20;
    let count = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)? as u64;
    ensure!(count <= FILE_BYTES_MAX, "HDF5 files above {most} MiB are not read");
    read_bytes(bytes, each)
}

/// The same from memory.
pub fn read_bytes(bytes: Vec<u8>, each: &mut dyn FnMut(ExportedJob) -> Result<()>) -> Result<()> {
    let tree = Tree::from_bytes(bytes).context("not an HDF5 file that can be read")?;
    let layout = tree.root().attrs().ok().and_then(|attrs| attrs.get(LAYOUT)?.as_i64());
    match layout {
        Some(LAYOUT_VERSION) => {}
        Some(other) => bail!("layout {other} of a later version of met"),
        None => bail!("not a file of `met export`: it has no attribute {LAYOUT}"),
    }
    let mut jobs = read_jobs(&tree.group(JOBS)?)?;
    if tree.root().groups()?.iter().any(|name| name == EARLIER) {
        read_earlier(&tree.group(EARLIER)?, &mut jobs).with_context(|| format!("/{EARLIER}"))?;
    }
    let samples = tree.group(SAMPLES)?;
    let names = samples.groups()?;
    let mut cells = 0;
    for table in tables().into_iter().filter(|table| names.iter().any(|name| name == table.name)) {
        let read = read_samples(&samples.group(table.name)?, table, &mut jobs, &mut cells);
        read.with_context(|| format!("/{SAMPLES}/{}", table.name))?;
    }
    jobs.into_iter().try_for_each(each)
}

fn read_jobs(group: &Group) -> Result<Vec<ExportedJob>> {
    let records = read_strings(&group.dataset(RECORD)?, JOBS_MAX)?;
    ensure!(!records.is_empty(), "no job in it");
    let exported = read_integers(&group.dataset(EXPORTED)?, records.len())?;
    let cpus = read_reals(&group.dataset(CPUS)?, records.len())?;
    let beside = read_beside(group, records.len())?;
    let job = |(((record, exported_ns), cpus), beside): (((&String, i64), f64), Option<Beside>)| {
        let record = foreign::record(record_json(record)?)?;
        let cpus = (1.0..f64::from(u32::MAX)).contains(&cpus).then_some(cpus as u32);
        Ok(ExportedJob { beside, ..ExportedJob::of(record, cpus, foreign::time_ns(exported_ns)?) })
    };
    records.iter().zip(exported).zip(cpus).zip(beside).map(job).collect()
}

/// Files of earlier versions have none.
fn read_beside(group: &Group, jobs: usize) -> Result<Vec<Option<Beside>>> {
    let known = group.datasets()?;
    let read = |name: &str| match known.iter().any(|known| known == name) {
        true => read_reals(&group.dataset(name)?, jobs),
        false => Ok(vec![f64::NAN; jobs]),
    };
    let [gpus, pressure, cores] = BESIDE;
    let (gpus, pressure, cores) = (read(gpus)?, read(pressure)?, read(cores)?);
    let of = |row: usize| foreign::beside(Some(gpus[row]), Some(pressure[row]), Some(cores[row]));
    Ok((0..jobs).map(of).collect())
}

fn record_json(record: &str) -> Result<Value> {
    ensure!(record.len() <= LINE_BYTES_MAX, "a record that is too long");
    serde_json::from_str(record).context("record")
}

fn read_earlier(group: &Group, jobs: &mut [ExportedJob]) -> Result<()> {
    let records = read_strings(&group.dataset(RECORD)?, jobs.len().saturating_mul(EVIDENCE_MAX))?;
    let rows = read_integers(&group.dataset(JOB)?, records.len())?;
    for (record, row) in records.iter().zip(rows) {
        let job = usize::try_from(row).ok().and_then(|row| jobs.get_mut(row));
        foreign::add_earlier(&mut job.context("an earlier run of no job")?.earlier, record_json(record)?)?;
    }
    Ok(())
}

fn read_samples(
    group: &Group,
    table: &'static Table,
    jobs: &mut [ExportedJob],
    cells: &mut usize,
) -> Result<()> {
    let known = group.datasets()?;
    let times = group.dataset(TIME)?;
    let count = length(&times)?;
    *cells = cells.saturating_add(count.saturating_mul(table.columns.len()));
    ensure!(*cells <= CELLS_MAX, "more than {CELLS_MAX} values");
    let (times, job_rows) = (read_integers(&times, count)?, read_integers(&group.dataset(JOB)?, count)?);
    let part_rows = read_integers(&group.dataset(PART)?, count)?;
    let names = read_strings(&group.dataset(PART_NAMES)?, count)?;
    let mut columns = Vec::new();
    for column in table.columns {
        let name = column.json_name();
        let is_there = known.contains(&name);
        columns.push(if is_there { Some(read_reals(&group.dataset(&name)?, count)?) } else { None });
    }
    let spreads = read_spreads(group, table, count)?;
    let mut row = vec![MISSING; table.columns.len()];
    for index in 0..count {
        let at = |rows: &[i64]| usize::try_from(rows[index]).ok();
        let job = at(&job_rows).and_then(|at| jobs.get_mut(at)).context("a sample of no job")?;
        let name = at(&part_rows).and_then(|at| names.get(at)).context("a sample of no part")?;
        let series = series_of(&mut job.series, table, name)?;
        for ((cell, column), values) in row.iter_mut().zip(table.columns).zip(&columns) {
            let value = values.as_ref().map(|values| values[index]);
            *cell = value.and_then(|value| foreign::scaled_cell(column, value)).unwrap_or(MISSING);
        }
        push(series, times[index], &row)?;
        for (at, of_column) in spreads.iter().enumerate() {
            add_spread(series, at, of_column, index);
        }
    }
    Ok(())
}

/// The three figures of a column's spread; empty where there is none.
type SpreadValues = [Vec<f64>; SPREAD_NAMES.len()];

fn read_spreads(group: &Group, table: &Table, count: usize) -> Result<Vec<SpreadValues>> {
    if !group.groups()?.iter().any(|name| name == THINNED) {
        return Ok(Vec::new());
    }
    let thinned = group.group(THINNED)?;
    let known = thinned.datasets()?;
    let mut all = Vec::new();
    for column in table.columns {
        let mut values = SpreadValues::default();
        for (which, values) in SPREAD_NAMES.iter().zip(&mut values) {
            let name = spread_name(column, which);
            if known.contains(&name) {
                *values = read_reals(&thinned.dataset(&name)?, count)?;
            }
        }
        all.push(values);
    }
    Ok(all)
}

fn add_spread(series: &mut Series, at: usize, values: &SpreadValues, index: usize) {
    let column = &series.table.columns[at];
    let value = |which: usize| {
        let value: Option<&f64> = values[which].get(index);
        value.filter(|value| value.is_finite()).map(|value| value / column.scale)
    };
    let (Some(low), Some(high)) = (value(0), value(2)) else { return };
    let mean = value(1).filter(|_| column.kind == Kind::Gauge);
    let last = series.len() - 1;
    let spreads = series.spreads.get_or_insert_with(|| Box::new(Spreads::new(series.table)));
    spreads.set(at, last, Spread { low, mean, high });
    spreads.resize(last + 1);
}

/// Of a dataset of one dimension whose chunks can be unpacked.
fn length(dataset: &Dataset) -> Result<usize> {
    let shape = dataset.shape()?;
    let [count] = shape[..] else { bail!("a dataset of {} dimensions", shape.len()) };
    let chunk = dataset.chunk_shape()?.unwrap_or_default();
    ensure!(
        chunk
            .iter()
            .try_fold(1_u64, |all, &one| all.checked_mul(one))
            .is_some_and(|rows| rows <= CHUNK_ROWS_MAX),
        "a dataset with chunks of more than {CHUNK_ROWS_MAX} rows"
    );
    usize::try_from(count).ok().filter(|&count| count <= CELLS_MAX).context("a dataset that is too long")
}

fn check(dataset: &Dataset, kind: &DType, count: usize) -> Result<()> {
    ensure!(length(dataset)? == count, "columns of different lengths");
    ensure!(dataset.dtype()? == *kind, "a column of an unexpected type");
    Ok(())
}

fn read_integers(dataset: &Dataset, count: usize) -> Result<Vec<i64>> {
    check(dataset, &DType::I64, count)?;
    let values = dataset.read_i64()?;
    ensure!(values.len() == count, "a column that is cut off");
    Ok(values)
}

fn read_reals(dataset: &Dataset, count: usize) -> Result<Vec<f64>> {
    check(dataset, &DType::F64, count)?;
    let values = dataset.read_f64()?;
    ensure!(values.len() == count, "a column that is cut off");
    Ok(values)
}

fn read_strings(dataset: &Dataset, most: usize) -> Result<Vec<String>> {
    let count = length(dataset)?;
    ensure!(count <= most, "more than {most} texts");
    check(dataset, &DType::VariableLengthString, count)?;
    let limits =
        VlenStringReadOptions::new().with_max_elements(most).with_max_payload_bytes(STRINGS_BYTES_MAX);
    Ok(dataset.read_vlen_strings(limits)?)
}
