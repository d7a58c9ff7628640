//! The tables of one file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use met_wire::colmet::{Backend, Record};
use met_wire::hdf5::chunk::Encoder;
use met_wire::hdf5::{Attribute, superblock};
use rustix::fs::{FlockOperation, OFlags};

use super::disk::{CANNOT_CONTINUE, Disk};
use super::group::Group;
use super::shape::Shape;
use super::table::Table;

/// Tables that are open; the others are opened again when they get rows.
const OPEN_MAX: usize = 16_384;
/// Rows of a table that are written together, even before a flush.
const WRITE_BYTES: usize = 256 << 10;
/// Rows of all tables that wait.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Buffers that tables keep at a flush, with the rows of unfinished chunks. Tests need few rows to exceed it.
const KEPT_BYTES_MAX: usize = if cfg!(test) { 256 << 10 } else { 16 << 20 };

pub(super) struct Tables {
    pub path: PathBuf,
    level: u32,
    pub(super) disk: Disk,
    root: Group,
    _lock: Option<File>,
    /// Of the level that new tables have; those of a continued file are written with it, too.
    encoder: Option<Encoder>,
    shapes: HashMap<Backend, Shape>,
    tables: HashMap<(u64, Backend), Table>,
    /// Whether rows were added since the last flush.
    waits: bool,
    waiting_bytes: usize,
    added: u64,
    refused: Refused,
}

/// Records that were dropped because of their table.
#[derive(Default)]
struct Refused {
    count: u64,
    /// Why the last one was.
    reason: Option<String>,
    is_logged: bool,
}

impl Refused {
    fn note(&mut self, reason: String) {
        if !std::mem::replace(&mut self.is_logged, true) {
            tracing::warn!("sink hdf5: {reason}; records of such tables are dropped");
        }
        self.count += 1;
        self.reason = Some(reason);
    }
}

impl Tables {
    /// Opens a file, or begins one.
    pub fn open(path: &Path, level: u32) -> Result<Tables> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let lock = lock(path)?;
        // A symbolic link that leads nowhere is not replaced.
        if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            begin(path)?;
        }
        let file =
            OpenOptions::new().read(true).write(true).open(path).context("cannot open it for writing")?;
        let (disk, root) = Disk::open(file)?;
        let root = Group::open(&disk, root).context(CANNOT_CONTINUE)?;
        Ok(Tables {
            path: path.to_owned(),
            level,
            disk,
            root,
            _lock: Some(lock),
            encoder: (level > 0).then(|| Encoder::new(level)),
            shapes: HashMap::new(),
            tables: HashMap::new(),
            waits: false,
            waiting_bytes: 0,
            added: 0,
            refused: Refused::default(),
        })
    }

    /// Lets another process, or this one, open the file.
    pub fn release(&mut self) {
        self._lock = None;
    }

    pub fn has_rows(&self) -> bool {
        self.waits
    }

    pub fn waiting_rows(&self) -> usize {
        self.tables.values().map(Table::waiting_rows).sum()
    }

    /// Records that were dropped since the last call, and why the last one was.
    pub fn refused(&mut self) -> (u64, Option<String>) {
        (std::mem::take(&mut self.refused.count), self.refused.reason.take())
    }

    /// Adds a row. A table that is damaged or has other columns refuses it; the other tables go on.
    pub fn add(&mut self, record: &Record) -> Result<()> {
        let key = (record.job_id, record.backend);
        if !self.tables.contains_key(&key) {
            match self.open_table(key) {
                Err(error) if !error.chain().any(|cause| cause.is::<std::io::Error>()) => {
                    let (path, backend) = (self.path.display(), record.backend.name());
                    self.refused.note(format!("{path}: job_{}/{backend}: {error:#}", record.job_id));
                    return Ok(());
                }
                opened => opened?,
            }
        }
        let shape = &self.shapes[&record.backend];
        let Some(table) = self.tables.get_mut(&key) else { bail!("no table of job {}", record.job_id) };
        let waiting = table.add(|out| shape.put_row(record, out));
        (self.waits, self.added) = (true, self.added + 1);
        table.used = self.added;
        self.waiting_bytes += shape.row_bytes;
        if waiting >= WRITE_BYTES {
            table.write(&mut self.disk, &mut self.encoder, false)?;
            self.waiting_bytes -= waiting - table.waiting_bytes();
        }
        if self.waiting_bytes > WAITING_BYTES_MAX {
            self.flush(false)?;
        }
        Ok(())
    }

    /// Writes all rows.
    pub fn flush(&mut self, syncs: bool) -> Result<()> {
        let mut left = KEPT_BYTES_MAX;
        for table in self.tables.values_mut() {
            if table.waiting_bytes() > 0 {
                table.write(&mut self.disk, &mut self.encoder, true)?;
            }
            left -= table.shrink(left);
        }
        (self.waits, self.waiting_bytes) = (false, 0);
        if syncs {
            self.disk.sync()?;
        }
        if self.tables.len() > OPEN_MAX {
            let mut used: Vec<u64> = self.tables.values().map(|table| table.used).collect();
            used.sort_unstable();
            let oldest = used[used.len() / 2];
            self.tables.retain(|_, table| table.used > oldest);
        }
        Ok(())
    }

    fn open_table(&mut self, (job, backend): (u64, Backend)) -> Result<()> {
        let shape = self.shapes.entry(backend).or_insert_with(|| Shape::of(backend.layout()));
        let group_name = format!("job_{job}");
        let (disk, known) = (&mut self.disk, self.root.find(&group_name));
        if known.is_none() && !self.root.has_room(&group_name) {
            bail!("the file has too many jobs; begin a new one");
        }
        let mut group = match known {
            Some(header) => Group::open(disk, header)?,
            None => {
                Group::create(disk, &attributes(&[("CLASS", "GROUP"), ("TITLE", ""), ("VERSION", "1.0")]))?
            }
        };
        let header = match group.find(backend.name()) {
            Some(header) => header,
            None => {
                let header = disk.put(&shape.header(job, self.level))?;
                group.insert(disk, backend.name(), header)?;
                header
            }
        };
        if known.is_none() {
            self.root.insert(disk, &group_name, group.header)?;
        }
        let mut table = Table::open(disk, header, shape)?;
        table.used = self.added;
        self.tables.insert((job, backend), table);
        Ok(())
    }
}

fn attributes<'a>(given: &[(&str, &'a str)]) -> Vec<(String, Attribute<'a>)> {
    given.iter().map(|&(name, text)| (name.to_owned(), Attribute::Text(text))).collect()
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Two writers would damage the file.
fn lock(path: &Path) -> Result<File> {
    let name = beside(path, ".lock");
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let file = options.open(&name).with_context(|| format!("cannot open {}", name.display()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => bail!("another process writes it"),
    }
}

/// A file without tables, complete and on disk before it has its name.
fn begin(path: &Path) -> Result<()> {
    let part = beside(path, ".part");
    // From a process that was killed.
    let _ = std::fs::remove_file(&part);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&part);
    let mut disk = Disk::begin(file.with_context(|| format!("cannot write {}", part.display()))?);
    let given = [("CLASS", "GROUP"), ("PYTABLES_FORMAT_VERSION", "2.1"), ("TITLE", ""), ("VERSION", "1.0")];
    let root = Group::create(&mut disk, &attributes(&given))?;
    disk.write_at(0, &superblock(root.header, disk.end()))?;
    disk.publish()?;
    disk.sync()?;
    std::fs::rename(&part, path).with_context(|| format!("cannot create {}", path.display()))
}
