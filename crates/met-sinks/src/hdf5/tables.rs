//! The tables of one file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use foldhash::fast::RandomState;
use met_wire::colmet::shape::Shape;
use met_wire::colmet::{LAYOUTS, Record};
use met_wire::hdf5::chunk::Encoder;
use met_wire::hdf5::{Attribute, superblock};
use rustix::fs::{FlockOperation, OFlags};

use super::disk::{CANNOT_CONTINUE, Disk};
use super::group::Group;
use super::table::Table;
use super::unsaved::{Key, Unsaved};

/// Tables that are open; the others are opened again when they get rows.
const OPEN_MAX: usize = 16_384;
/// Rows of all tables that wait, also while the file cannot be written.
const WAITING_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 32 << 20 };
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
    /// One for each kind of record.
    shapes: Vec<Shape>,
    tables: HashMap<Key, Table, RandomState>,
    waiting_bytes: usize,
    added: u64,
    /// Rows that wait until the file is opened again.
    unsaved: Unsaved,
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
    fn note(&mut self, count: u64, reason: String) {
        if !std::mem::replace(&mut self.is_logged, true) {
            tracing::warn!("sink hdf5: {reason}; records of such tables are dropped");
        }
        self.count += count;
        self.reason = Some(reason);
    }
}

/// Whether an error is one of a single table: it is damaged, or has other columns.
fn is_of_table(error: &anyhow::Error) -> bool {
    !error.chain().any(|cause| cause.is::<std::io::Error>())
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
            shapes: LAYOUTS.iter().map(Shape::of).collect(),
            tables: HashMap::default(),
            waiting_bytes: 0,
            added: 0,
            unsaved: Unsaved::default(),
            refused: Refused::default(),
        })
    }

    /// Lets another process, or this one, open the file. Nothing is written from now on.
    pub fn release(&mut self) {
        self.disk.close();
        self._lock = None;
    }

    /// Rows go to the disk past the page cache.
    pub fn write_past_cache(&mut self) {
        self.disk.write_past_cache();
    }

    pub fn has_rows(&self) -> bool {
        self.waiting_bytes > 0
    }

    /// Rows that are not in the file.
    pub fn waiting_rows(&self) -> usize {
        let row_bytes = |key: &Key| self.shapes[key.1 as usize].row_bytes;
        let of_tables = self.tables.iter().map(|(key, table)| table.waiting_bytes() / row_bytes(key));
        of_tables.sum::<usize>() + self.unsaved.count(|backend| self.shapes[backend as usize].row_bytes)
    }

    /// Records that were dropped since the last call, and why the last one was.
    pub fn refused(&mut self) -> (u64, Option<String>) {
        (std::mem::take(&mut self.refused.count), self.refused.reason.take())
    }

    /// Adds a row. A table that is damaged or has other columns refuses it; the other tables go on. After an error the row
    /// waits, too.
    pub fn add(&mut self, record: &Record) -> Result<()> {
        let key = (record.job_id, record.backend);
        if self.unsaved.takes_all {
            self.add_unsaved(record);
            return Ok(());
        }
        let table = match self.tables.get_mut(&key) {
            Some(table) => table,
            None => match self.open_table(key) {
                Ok(table) => self.tables.entry(key).or_insert(table),
                Err(error) if is_of_table(&error) => {
                    self.refuse(key, 1, &error);
                    return Ok(());
                }
                Err(error) => {
                    self.add_unsaved(record);
                    return Err(error);
                }
            },
        };
        let shape = &self.shapes[record.backend as usize];
        table.add(|row, is_used| shape.put_row(record, row, is_used));
        self.added += 1;
        table.used = self.added;
        self.waiting_bytes += shape.row_bytes;
        if table.is_due() {
            let waiting = table.waiting_bytes();
            table.write(&mut self.disk, &mut self.encoder, false)?;
            self.waiting_bytes -= waiting - table.waiting_bytes();
        }
        if self.waiting_bytes > WAITING_BYTES_MAX {
            self.flush(false)?;
        }
        Ok(())
    }

    fn refuse(&mut self, (job, backend): Key, count: u64, error: &anyhow::Error) {
        let path = self.path.display();
        self.refused.note(count, format!("{path}: job_{job}/{}: {error:#}", backend.name()));
    }

    fn add_unsaved(&mut self, record: &Record) {
        let shape = &self.shapes[record.backend as usize];
        if self.unsaved.bytes() + shape.row_bytes > WAITING_BYTES_MAX {
            self.refused.count += 1;
            return;
        }
        self.unsaved.add((record.job_id, record.backend), None, |out| {
            let start = out.len();
            out.resize(start + shape.row_bytes, 0);
            shape.put_row(record, &mut out[start..], false);
        });
        self.waiting_bytes = self.unsaved.bytes();
    }

    /// After an error: rows that are not in the file wait until it is opened again, since what was written of the rest is not
    /// known.
    pub fn break_off(&mut self) {
        for (key, table) in self.tables.drain().filter(|(_, table)| table.waiting_bytes() > 0) {
            self.unsaved.add(key, Some(table.rows()), |out| out.extend_from_slice(table.waiting()));
        }
        self.waiting_bytes = self.unsaved.bytes();
        self.unsaved.takes_all = true;
        self.disk.close();
    }

    /// Opens the file again after `break_off`, or begins it again if it was moved away.
    pub fn reopen(&mut self) -> Result<()> {
        self.release();
        let mut fresh = Tables::open(&self.path, self.level)?;
        fresh.unsaved = std::mem::take(&mut self.unsaved);
        (fresh.refused, fresh.added) = (std::mem::take(&mut self.refused), self.added);
        *self = fresh;
        self.restore()
    }

    /// Takes over rows that wait for another file.
    pub fn take_over(&mut self, other: &mut Tables) -> Result<()> {
        self.unsaved = std::mem::take(&mut other.unsaved).for_another_file();
        self.refused = std::mem::take(&mut other.refused);
        self.restore()
    }

    fn restore(&mut self) -> Result<()> {
        self.unsaved.takes_all = false;
        while let Some(key) = self.unsaved.next() {
            let opened = match self.open_table(key) {
                Err(error) if !is_of_table(&error) => return Err(error),
                opened => opened,
            };
            let Some(rows) = self.unsaved.take(key) else { continue };
            let row_bytes = self.shapes[key.1 as usize].row_bytes;
            match opened {
                Ok(mut table) => {
                    let waiting = rows.behind(table.rows(), row_bytes);
                    table.extend(waiting);
                    self.waiting_bytes += waiting.len();
                    self.tables.insert(key, table);
                }
                Err(error) => self.refuse(key, (rows.bytes.len() / row_bytes) as u64, &error),
            }
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
        self.waiting_bytes = 0;
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

    /// Opens a table, or begins one. It is not among the open ones yet.
    fn open_table(&mut self, (job, backend): Key) -> Result<Table> {
        let shape = &self.shapes[backend as usize];
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
        Ok(table)
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
    disk.cut_off()?;
    disk.sync()?;
    std::fs::rename(&part, path).with_context(|| format!("cannot create {}", path.display()))
}
