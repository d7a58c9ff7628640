//! The tables of one file, with the attributes that PyTables expects.

use std::collections::HashMap;
use std::fs::{File as Lock, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use hdf5_pure::{
    AttrValue, CharacterSet, CompoundTypeBuilder, Dataset, DatasetBuilder, Datatype, File,
    FileAccessProperties, FileBuilder, FileLocking, MaxExtent, StringPadding, SyncPolicy,
};
use met_wire::colmet::{Backend, JOBS_BYTES, Layout, Record, Type, Value};
use rustix::fs::FlockOperation;

const NAME_BYTES: usize = 255;
/// Rows that are written together: an unfinished chunk is written again whenever rows are added to it.
const CHUNK_BYTES: usize = 16 << 10;
/// Tables that are open; the others are opened again when they get rows.
const OPEN_MAX: usize = 2048;
/// Rows of tables that are not full, together.
const BUFFERED_BYTES_MAX: usize = 32 << 20;

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Counter(usize),
    Hostname,
    JobId,
    Backend,
    Timestamp,
    InvolvedJobs,
    /// Columns of Colmet's tables that no record fills: -1, and an empty text.
    Unmeasured,
    EmptyJobs,
}

/// The columns of a table in the order of their names, as PyTables sorts them.
fn fields(layout: &'static Layout) -> Vec<(&'static str, Field)> {
    let counters = layout.counters.iter().enumerate().map(|(index, one)| (one.name, Field::Counter(index)));
    let mut fields: Vec<(&'static str, Field)> = counters.collect();
    fields.extend([
        ("hostname", Field::Hostname),
        ("job_id", Field::JobId),
        ("metric_backend", Field::Backend),
        ("timestamp", Field::Timestamp),
    ]);
    if layout.has_involved_jobs {
        fields.push(("involved_jobs", Field::InvolvedJobs));
    }
    match layout.backend {
        Backend::Procstats => fields.push(("meminfo_hardwarecorrupted", Field::Unmeasured)),
        Backend::Jobproc => fields.push(("involved_jobs", Field::EmptyJobs)),
        _ => {}
    }
    fields.sort_unstable_by_key(|(name, _)| *name);
    fields
}

fn is_float(layout: &Layout, field: Field) -> bool {
    matches!(field, Field::Counter(index) if layout.counters[index].kind == Type::F32)
}

fn text_bytes(field: Field) -> Option<usize> {
    match field {
        Field::Hostname | Field::Backend => Some(NAME_BYTES),
        Field::InvolvedJobs | Field::EmptyJobs => Some(JOBS_BYTES),
        Field::Counter(_) | Field::JobId | Field::Timestamp | Field::Unmeasured => None,
    }
}

struct Shape {
    layout: &'static Layout,
    fields: Vec<(&'static str, Field)>,
    row_bytes: usize,
    chunk_rows: usize,
}

impl Shape {
    fn of(layout: &'static Layout) -> Shape {
        let fields = fields(layout);
        let width = |field: Field| text_bytes(field).unwrap_or(if is_float(layout, field) { 4 } else { 8 });
        let row_bytes: usize = fields.iter().map(|&(_, field)| width(field)).sum();
        Shape { layout, fields, row_bytes, chunk_rows: (CHUNK_BYTES / row_bytes).max(1) }
    }

    fn datatype(&self) -> Result<Datatype> {
        let mut compound = CompoundTypeBuilder::new();
        for &(name, field) in &self.fields {
            compound = match text_bytes(field) {
                Some(bytes) => {
                    let (padding, charset) = (StringPadding::NullTerminate, CharacterSet::Ascii);
                    compound.field(name, Datatype::String { size: bytes as u32, padding, charset })
                }
                None if is_float(self.layout, field) => compound.f32_field(name),
                None => compound.i64_field(name),
            };
        }
        Ok(compound.build()?)
    }

    fn put_row(&self, record: &Record, out: &mut Vec<u8>) {
        for &(_, field) in &self.fields {
            match field {
                Field::Counter(index) if is_float(self.layout, field) => {
                    let float = match record.values[index] {
                        Some(Value::Float(value)) => value,
                        Some(Value::Int(value)) => value as f32,
                        None => -1.0,
                    };
                    out.extend_from_slice(&float.to_le_bytes());
                }
                Field::Counter(index) => {
                    let int = match record.values[index] {
                        Some(Value::Int(value)) => value,
                        Some(Value::Float(value)) => value as i64,
                        None => -1,
                    };
                    out.extend_from_slice(&int.to_le_bytes());
                }
                Field::JobId => out.extend_from_slice(&(record.job_id as i64).to_le_bytes()),
                Field::Timestamp => out.extend_from_slice(&(record.timestamp as i64).to_le_bytes()),
                Field::Hostname => put_text(out, &record.hostname, NAME_BYTES),
                Field::Backend => put_text(out, self.layout.name, NAME_BYTES),
                Field::Unmeasured => out.extend_from_slice(&(-1_i64).to_le_bytes()),
                Field::EmptyJobs => put_text(out, "", JOBS_BYTES),
                Field::InvolvedJobs => put_text(out, &record.involved_jobs_json(), JOBS_BYTES),
            }
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str, bytes: usize) {
    let text = &text.as_bytes()[..text.len().min(bytes)];
    out.extend_from_slice(text);
    out.resize(out.len() + bytes - text.len(), 0);
}

struct Table {
    dataset: Dataset,
    rows: Vec<u8>,
    /// How many rows of the last chunk are in the file.
    in_chunk: usize,
    /// When it last got rows, by number of rows of all tables.
    used: u64,
}

pub(super) struct Tables {
    pub path: PathBuf,
    level: u32,
    file: File,
    _lock: Option<Lock>,
    shapes: HashMap<Backend, Shape>,
    tables: HashMap<(u64, Backend), Table>,
    buffered_bytes: usize,
    added: u64,
}

impl Tables {
    /// Opens a file, or begins one.
    pub fn open(path: &Path, level: u32) -> Result<Tables> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let lock = lock(path)?;
        if !path.exists() {
            begin(path)?;
        }
        // The library's own lock would make readers fail.
        let access = FileAccessProperties::new()
            .with_locking(FileLocking::Disabled)
            .with_sync_policy(SyncPolicy::OnClose);
        let file = File::open_rw_with_options(path, access).context("cannot open it for writing")?;
        Ok(Tables {
            path: path.to_owned(),
            level,
            file,
            _lock: Some(lock),
            shapes: HashMap::new(),
            tables: HashMap::new(),
            buffered_bytes: 0,
            added: 0,
        })
    }

    /// Lets another process, or this one, open the file.
    pub fn release(&mut self) {
        self._lock = None;
    }

    pub fn has_rows(&self) -> bool {
        self.buffered_bytes > 0
    }

    pub fn add(&mut self, record: &Record) -> Result<()> {
        let key = (record.job_id, record.backend);
        if !self.tables.contains_key(&key) {
            self.open_table(key)?;
        }
        let shape = &self.shapes[&record.backend];
        let Some(table) = self.tables.get_mut(&key) else { bail!("no table of job {}", record.job_id) };
        let before = table.rows.len();
        shape.put_row(record, &mut table.rows);
        self.added += 1;
        table.used = self.added;
        self.buffered_bytes += table.rows.len() - before;
        let count = table.rows.len() / shape.row_bytes;
        if table.in_chunk + count >= shape.chunk_rows {
            let whole = count - (table.in_chunk + count) % shape.chunk_rows;
            self.buffered_bytes -= table.write(shape, whole)?;
        }
        if self.buffered_bytes > BUFFERED_BYTES_MAX {
            self.flush(false)?;
        }
        Ok(())
    }

    /// Writes all rows.
    pub fn flush(&mut self, syncs: bool) -> Result<()> {
        for ((_, backend), table) in &mut self.tables {
            let shape = &self.shapes[backend];
            let count = table.rows.len() / shape.row_bytes;
            self.buffered_bytes -= table.write(shape, count)?;
        }
        if syncs {
            self.file.sync()?;
        }
        if self.tables.len() > OPEN_MAX {
            let mut used: Vec<u64> = self.tables.values().map(|table| table.used).collect();
            used.sort_unstable();
            let oldest = used[used.len() / 2];
            self.tables.retain(|_, table| table.used > oldest);
        }
        Ok(())
    }

    fn open_table(&mut self, key: (u64, Backend)) -> Result<()> {
        let (job, backend) = key;
        let shape = self.shapes.entry(backend).or_insert_with(|| Shape::of(backend.layout()));
        let (group, path) = (format!("job_{job}"), format!("job_{job}/{}", backend.name()));
        if self.file.dataset(&path).is_err() {
            let root = self.file.root();
            if self.file.group(&group).is_err() {
                root.create_group_with(&group, |made| {
                    for (name, value) in [("CLASS", "GROUP"), ("TITLE", ""), ("VERSION", "1.0")] {
                        made.set_attr(name, AttrValue::AsciiString(value.to_owned()));
                    }
                })?;
            }
            let (datatype, level) = (shape.datatype()?, self.level);
            root.create_dataset(&path, |made| describe(made, shape, datatype, job, level))?;
            self.file.commit().context("cannot add a table")?;
        }
        let dataset = self.file.dataset(&path)?;
        let rows = dataset.shape()?.first().copied().unwrap_or(0) as usize;
        if dataset.chunk_shape()?.is_none() {
            bail!("{path} is not a table of ours; move the file away, or choose another path");
        }
        // The chunks of a file of another version may be longer or shorter.
        let in_chunk = rows % shape.chunk_rows;
        self.tables.insert(key, Table { dataset, rows: Vec::new(), in_chunk, used: self.added });
        Ok(())
    }
}

impl Table {
    /// Writes the first rows of those that wait; returns how many bytes they were.
    fn write(&mut self, shape: &Shape, count: usize) -> Result<usize> {
        let bytes = count * shape.row_bytes;
        if bytes > 0 {
            self.dataset.append_raw(&self.rows[..bytes]).context("cannot append rows")?;
            self.rows.drain(..bytes);
            self.in_chunk = (self.in_chunk + count) % shape.chunk_rows;
        }
        Ok(bytes)
    }
}

/// Two writers would damage the file.
fn lock(path: &Path) -> Result<Lock> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&name);
    let file = file.with_context(|| format!("cannot open {}", Path::new(&name).display()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => bail!("another process writes it"),
    }
}

/// An empty file, complete before it has its name.
fn begin(path: &Path) -> Result<()> {
    let mut file = FileBuilder::new();
    for (name, value) in
        [("CLASS", "GROUP"), ("PYTABLES_FORMAT_VERSION", "2.1"), ("TITLE", ""), ("VERSION", "1.0")]
    {
        file.set_attr(name, AttrValue::AsciiString(value.to_owned()));
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    file.write(&part).with_context(|| format!("cannot write {}", Path::new(&part).display()))?;
    std::fs::rename(&part, path).with_context(|| format!("cannot create {}", path.display()))
}

fn describe(made: &mut DatasetBuilder, shape: &Shape, datatype: Datatype, job: u64, level: u32) {
    made.with_raw_data(datatype, Vec::new(), 0)
        .with_shape(&[0])
        .with_maxshape(&[MaxExtent::Unlimited])
        .with_chunks(&[shape.chunk_rows as u64]);
    if level > 0 {
        made.with_shuffle().with_deflate(level);
    }
    let title = format!("Metrics for the Job {job}");
    for (name, value) in [("CLASS", "TABLE"), ("VERSION", "2.7"), ("TITLE", title.as_str())] {
        made.set_attr(name, AttrValue::AsciiString(value.to_owned()));
    }
    for (index, &(name, field)) in shape.fields.iter().enumerate() {
        made.set_attr(&format!("FIELD_{index}_NAME"), AttrValue::AsciiString(name.to_owned()));
        let fill = match text_bytes(field) {
            Some(_) => AttrValue::AsciiString(String::new()),
            None if is_float(shape.layout, field) => AttrValue::F32(-1.0),
            None => AttrValue::I64(-1),
        };
        made.set_attr(&format!("FIELD_{index}_FILL"), fill);
    }
    // Readers take the number of rows from the table itself.
    made.set_attr("NROWS", AttrValue::I64(0));
    made.set_attr("backend_version", AttrValue::I64(2));
}
