//! Parquet, one table in a file, without Arrow. Units and meanings are in the metadata of the file.

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, Result};
use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use crate::frame::{self, Cells, Frame, FrameColumn};
use crate::{ExportedJob, JobWriter, PartSeries, Rows};

/// Samples and jobs that are held before they are written.
const GROUP_ROWS: usize = 50_000;
const GROUP_JOBS: usize = 5_000;

pub struct Parquet<W: Write + Send> {
    rows: Rows,
    writer: SerializedFileWriter<W>,
    held: Vec<ExportedJob>,
    held_rows: usize,
}

impl<W: Write + Send> Parquet<W> {
    pub fn new(rows: Rows, to: W) -> Result<Parquet<W>> {
        let frame = frame::of(&[], rows);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(format!("met {}", env!("CARGO_PKG_VERSION")))
            .set_key_value_metadata(Some(about(&frame)))
            .build();
        let writer = SerializedFileWriter::new(to, schema(rows.name(), &frame)?, Arc::new(properties))?;
        Ok(Parquet { rows, writer, held: Vec::new(), held_rows: 0 })
    }

    fn write_held(&mut self) -> Result<()> {
        let frame = frame::of(&self.held.iter().collect::<Vec<_>>(), self.rows);
        if !frame.is_empty() {
            let mut group = self.writer.next_row_group()?;
            for column in &frame.columns {
                write_column(&mut group, &column.cells).with_context(|| column.name.clone())?;
            }
            group.close()?;
        }
        self.held.clear();
        self.held_rows = 0;
        Ok(())
    }
}

impl<W: Write + Send> JobWriter for Parquet<W> {
    fn job(&mut self, job: &ExportedJob) -> Result<()> {
        let is_wanted = |series: &&PartSeries| matches!(self.rows, Rows::Samples(table) if table.name == series.series.table.name);
        let series: Vec<PartSeries> = job.series.iter().filter(is_wanted).cloned().collect();
        self.held_rows += series.iter().map(|series| series.series.len()).sum::<usize>();
        self.held
            .push(ExportedJob { series, ..ExportedJob::of(job.record.clone(), job.cpus, job.exported_ns) });
        if self.held_rows >= GROUP_ROWS || self.held.len() >= GROUP_JOBS { self.write_held() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.write_held()?;
        let mut to = self.writer.into_inner()?;
        Ok(to.flush()?)
    }
}

fn schema(name: &str, frame: &Frame) -> Result<TypePtr> {
    let field = |column: &FrameColumn| {
        let (physical, logical) = match column.cells {
            Cells::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Cells::Whole(_) => (Physical::INT64, None),
            Cells::Real(_) => (Physical::DOUBLE, None),
            Cells::Time(_) => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
        };
        let field = Type::primitive_type_builder(&column.name, physical);
        let field = field.with_repetition(Repetition::OPTIONAL).with_logical_type(logical);
        Ok(Arc::new(field.build()?))
    };
    let fields = frame.columns.iter().map(field).collect::<Result<_>>()?;
    Ok(Arc::new(Type::group_type_builder(name).with_fields(fields).build()?))
}

/// `unit:COLUMN` and `help:COLUMN`.
fn about(frame: &Frame) -> Vec<KeyValue> {
    let of = |column: &FrameColumn| {
        let unit = (!column.unit.is_empty())
            .then(|| KeyValue::new(format!("unit:{}", column.name), column.unit.to_owned()));
        unit.into_iter().chain([KeyValue::new(format!("help:{}", column.name), column.help.clone())])
    };
    frame.columns.iter().flat_map(of).collect()
}

fn write_column<W: Write + Send>(group: &mut SerializedRowGroupWriter<'_, W>, cells: &Cells) -> Result<()> {
    match cells {
        Cells::Text(cells) => {
            write::<ByteArrayType, _, _>(group, cells, |text: &String| ByteArray::from(text.as_str()))
        }
        Cells::Whole(cells) => write::<Int64Type, _, _>(group, cells, |value: &i64| *value),
        Cells::Real(cells) => write::<DoubleType, _, _>(group, cells, |value: &f64| *value),
        Cells::Time(cells) => {
            write::<Int64Type, _, _>(group, cells, |time_ns: &i64| time_ns.div_euclid(1000))
        }
    }
}

fn write<D: DataType, W: Write + Send, T>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    cells: &[Option<T>],
    value: impl Fn(&T) -> D::T,
) -> Result<()> {
    let known: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
    let values: Vec<D::T> = cells.iter().flatten().map(value).collect();
    let mut column = group.next_column()?.context("more columns than the schema has")?;
    column.typed::<D>().write_batch(&values, Some(&known), None)?;
    Ok(column.close()?)
}
