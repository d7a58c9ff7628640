//! Jobs and their series as files: one writer for each format behind [`JobWriter`], and readers of those that hold
//! a whole job. Every file that is read may be hostile: sizes are bounded, values checked.

pub mod csv;
mod foreign;
pub mod frame;
mod hdf5;
pub mod imported;
pub mod js1;
mod jsonl;
mod output;
mod parquet;
mod read;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use met_core::job::{Local, Record};
use met_core::series::Series;
use met_core::{DETAIL, JOB, Table, event, gpu};
use met_insight::answers::{self, Beside};
use met_insight::report::Machine;
use serde_json::Value;

pub use output::OutputFile;
pub use read::{Choice, choose, read};

/// A job with all that is needed to show it anywhere.
#[derive(Clone, Debug)]
pub struct ExportedJob {
    pub record: Record,
    /// CPUs of its nodes together, if all are known.
    pub cpus: Option<u32>,
    /// Unix time of the export: what "now" is for a job that was still running.
    pub exported_ns: i64,
    pub series: Vec<PartSeries>,
    /// What its answers read of the runs of its lineage before it, newest first.
    pub earlier: Vec<Record>,
    /// What its answers read of other jobs on its node: sums, without the names of any.
    pub beside: Option<Beside>,
}

/// The samples of one table; the part is the name of an event or the uuid of a GPU.
#[derive(Clone, Debug)]
pub struct PartSeries {
    pub part: String,
    pub series: Series,
}

impl ExportedJob {
    pub fn new(record: &Record, cpus: Option<u32>, exported_ns: i64) -> ExportedJob {
        // Files have microseconds.
        let exported_ns = exported_ns / 1000 * 1000;
        ExportedJob::of(portable(record), cpus, exported_ns)
    }

    /// One without series, earlier runs and neighbours.
    fn of(record: Record, cpus: Option<u32>, exported_ns: i64) -> ExportedJob {
        ExportedJob { record, cpus, exported_ns, series: Vec::new(), earlier: Vec::new(), beside: None }
    }

    /// Adds what answers read of the runs of its lineage before it, newest first.
    pub fn add_earlier(&mut self, runs: &[&Record]) {
        let evidence = answers::evidence(&self.record, runs, self.exported_ns);
        self.earlier = evidence.iter().map(portable).collect();
    }

    /// Adds what other jobs on its node say of it, unless nothing is known of them.
    pub fn add_beside(&mut self, beside: Option<Beside>) {
        self.beside = beside.and_then(|Beside { gpus, pressure, cores }| {
            foreign::beside(gpus.map(f64::from), pressure.map(|share| share.min(1.0)), cores)
        });
    }

    /// Adds a series unless it is empty.
    pub fn add(&mut self, part: &str, series: Series) {
        if !series.is_empty() {
            self.series.push(PartSeries { part: part.to_owned(), series });
        }
    }

    /// The samples of a table and part; none where the file has none.
    pub fn series(&self, table: &'static Table, part: &str) -> Series {
        let known = |series: &&PartSeries| series.series.table.name == table.name && series.part == part;
        self.series.iter().find(known).map_or_else(|| Series::new(table), |series| series.series.clone())
    }
}

/// The tables of samples that a job may have.
pub fn tables() -> [&'static Table; 4] {
    [&JOB, &DETAIL, &event::TABLE, &gpu::device::TABLE]
}

/// Which parts of these tables a job has.
pub fn parts(record: &Record) -> impl Iterator<Item = (&'static Table, &str)> {
    let whole = [(&JOB, ""), (&DETAIL, "")].into_iter();
    let events = record.events.iter().map(|event| (&event::TABLE, event.name.as_str()));
    whole.chain(events).chain(record.gpus.iter().map(|gpu| (&gpu::device::TABLE, gpu.uuid.as_str())))
}

/// The record without what means something only on the machine of the job: processes, cgroups and paths.
fn portable(record: &Record) -> Record {
    let local = record.local.as_ref().map(|local| Local {
        left_over: local.left_over.clone(),
        memory_limit: local.memory_limit,
        cpus_usable: local.cpus_usable,
        ..Local::new("", local.origin, "")
    });
    Record { local, ..record.clone() }
}

/// An earlier run as JSON, without fields that have no value: most have none.
fn earlier_json(run: &Record) -> Result<Value> {
    let mut json = serde_json::to_value(run)?;
    drop_nulls(&mut json);
    Ok(json)
}

fn drop_nulls(json: &mut Value) {
    match json {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// A format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Csv,
    Jsonl,
    Parquet,
    Hdf5,
}

impl Format {
    pub const ALL: [Format; 4] = [Format::Csv, Format::Jsonl, Format::Parquet, Format::Hdf5];

    pub fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Jsonl => "jsonl",
            Format::Parquet => "parquet",
            Format::Hdf5 => "h5",
        }
    }

    /// By the end of a file's name.
    pub fn of(path: &Path) -> Option<Format> {
        Format::parse(path.extension()?.to_str()?)
    }

    pub fn parse(name: &str) -> Option<Format> {
        match name.to_ascii_lowercase().as_str() {
            "hdf5" => Some(Format::Hdf5),
            "ndjson" => Some(Format::Jsonl),
            name => Format::ALL.into_iter().find(|format| format.name() == name),
        }
    }

    /// Whether a file of it holds jobs and all their series; the others hold one table.
    pub fn is_whole(self) -> bool {
        matches!(self, Format::Jsonl | Format::Hdf5)
    }
}

/// Which table a file of one table holds.
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    /// One row per job.
    Jobs,
    /// One row per sample of this table.
    Samples(&'static Table),
}

impl Rows {
    /// What the table is called: `jobs`, or as in the catalogue.
    pub fn name(self) -> &'static str {
        match self {
            Rows::Jobs => "jobs",
            Rows::Samples(table) => table.name,
        }
    }

    pub fn all() -> impl Iterator<Item = Rows> {
        [Rows::Jobs].into_iter().chain(tables().into_iter().map(Rows::Samples))
    }

    pub fn parse(name: &str) -> Option<Rows> {
        Rows::all().find(|rows| rows.name() == name)
    }
}

/// Takes jobs one by one. What is written is whole only after [`JobWriter::finish`].
pub trait JobWriter {
    fn job(&mut self, job: &ExportedJob) -> Result<()>;
    fn finish(self: Box<Self>) -> Result<()>;
}

/// The writer of a format. `rows` says which table a format of one table gets.
pub fn writer<'a>(format: Format, rows: Rows, to: impl Write + Send + 'a) -> Result<Box<dyn JobWriter + 'a>> {
    Ok(match format {
        Format::Parquet => Box::new(parquet::Parquet::new(rows, to)?),
        Format::Hdf5 => Box::new(hdf5::Hdf5::new(to)),
        Format::Csv | Format::Jsonl => return text_writer(format, rows, to),
    })
}

/// The same for text, which may go anywhere.
pub fn text_writer<'a>(format: Format, rows: Rows, to: impl Write + 'a) -> Result<Box<dyn JobWriter + 'a>> {
    match format {
        Format::Csv => Ok(Box::new(csv::Csv::new(rows, to))),
        Format::Jsonl => Ok(Box::new(jsonl::Jsonl::new(to))),
        Format::Parquet | Format::Hdf5 => bail!("{} is not text", format.name()),
    }
}

/// By what samples and jobs are joined: cluster, label and incarnation.
fn identity(record: &Record) -> (Option<&str>, String, i64) {
    (record.cluster(), record.label(), record.key.incarnation)
}

/// For fuzzing: bytes of a JSON lines or HDF5 file. What was read of them is shown as JSON with its answers and by
/// `more`, and imported: written and read again it is the same.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8], mut more: impl FnMut(&ExportedJob)) {
    let mut show = |job: ExportedJob| {
        let (record, machine, now_ns) = (&job.record, Machine { cpus: job.cpus }, job.exported_ns);
        let object = met_insight::json::object(record, now_ns);
        assert_eq!(object["job"]["name"], record.name.as_str());
        let known = answers::Known::read(Duration::from_secs(1), record, machine, &mut |table, part| {
            anyhow::Ok(job.series(table, part))
        })?;
        let known = known.beside(job.beside);
        answers::object(&known.answers(record, &job.earlier, now_ns));
        met_insight::work::object_of(record, &known, now_ns);
        met_insight::report::report(record, machine, now_ns);
        more(&job);
        let mut csv = text_writer(Format::Csv, Rows::Samples(&JOB), std::io::sink())?;
        csv.job(&job)?;
        import_for_fuzzing(&job)
    };
    let _ = match bytes.starts_with(b"\x89HDF") {
        true => hdf5::read_bytes(bytes.to_vec(), &mut show),
        false => jsonl::read(bytes, &mut show),
    };
}

fn import_for_fuzzing(job: &ExportedJob) -> Result<()> {
    let written = |job: &ExportedJob| {
        let mut bytes = Vec::new();
        text_writer(Format::Jsonl, Rows::Jobs, &mut bytes)?.job(job)?;
        anyhow::Ok(bytes)
    };
    let bytes = written(job)?;
    jsonl::read(&bytes[..], &mut |again| {
        assert_eq!(written(&again)?, bytes);
        Ok(())
    })
}

#[cfg(test)]
#[path = "round_trip_tests.rs"]
mod round_trip_tests;
