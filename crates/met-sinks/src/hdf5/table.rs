//! One table: rows that wait, and where the next ones go.

use anyhow::{Context, Result, bail};
use met_wire::colmet::shape::Shape;
use met_wire::hdf5::chunk::{Encoder, decode};
use met_wire::hdf5::{Chunk, read_table};

use super::disk::Disk;
use super::group::read_header;
use super::index::Index;

const CHUNK_BYTES_MAX: usize = 64 << 20;
/// Rows of a table that are written together, even before a flush. Where a chunk is not much less it is a whole chunk.
const WRITE_BYTES: usize = 1 << 20;

/// Room in the file.
#[derive(Clone, Copy)]
struct Place {
    at: u64,
    bytes: usize,
}

/// Rows in memory. What is behind them are rows of before, which the next ones replace: most bytes of a row are padding, and need
/// not be written again.
struct Buffer {
    row_bytes: usize,
    bytes: Vec<u8>,
    filled: usize,
}

impl Buffer {
    fn new(row_bytes: usize) -> Buffer {
        Buffer { row_bytes, bytes: Vec::new(), filled: 0 }
    }

    fn rows(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    fn add(&mut self, put: impl FnOnce(&mut [u8], bool)) {
        let end = self.filled + self.row_bytes;
        let is_used = end <= self.bytes.len();
        if !is_used {
            self.bytes.resize(end, 0);
        }
        put(&mut self.bytes[self.filled..end], is_used);
        self.filled = end;
    }

    fn extend(&mut self, rows: &[u8]) {
        self.bytes.truncate(self.filled);
        self.bytes.extend_from_slice(rows);
        self.filled = self.bytes.len();
    }

    fn prepend(&mut self, rows: &[u8]) {
        self.bytes.truncate(self.filled);
        self.bytes.splice(..0, rows.iter().copied());
        self.filled = self.bytes.len();
    }

    /// Without the first rows.
    fn remove(&mut self, bytes: usize) {
        self.bytes.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
    }
}

pub(super) struct Table {
    row_bytes: usize,
    chunk_rows: usize,
    level: u32,
    /// Rows in the file, and where it says so.
    rows: u64,
    rows_at: u64,
    index: Index,
    /// Rows that are not in the file. Behind those of the unfinished chunk, if it is compressed and they are in memory.
    buffer: Buffer,
    /// How many rows of the buffer are in the file: all of the unfinished chunk, or none.
    kept: usize,
    /// Where the unfinished chunk is stored, and where it was before: the next form of it goes there. A reader that still
    /// follows the old address finds the same rows, or fails; therefore no other chunk goes there.
    place: Option<Place>,
    spare: Option<Place>,
    /// When it last got rows, by number of rows of all tables.
    pub used: u64,
}

impl Table {
    pub fn open(disk: &mut Disk, header: u64, shape: &Shape) -> Result<Table> {
        let found = read_table(&read_header(disk, header)?).filter(|found| shape.is(&found.datatype));
        let Some(found) = found else {
            bail!("a table has other columns; move the file away, or choose another path")
        };
        let (row_bytes, chunk_rows) = (shape.row_bytes, found.chunk_rows as usize);
        if chunk_rows.saturating_mul(row_bytes) > CHUNK_BYTES_MAX {
            bail!("the file is damaged: chunks are too long");
        }
        let tree_at = header + found.tree_at as u64;
        let index = Index::open(disk, found.tree, tree_at, found.chunk_rows, found.rows)?;
        // At least so much room is there.
        let place = index.last.map(|last| Place { at: last.at, bytes: last.stored_bytes as usize });
        let table = Table {
            row_bytes,
            chunk_rows,
            level: found.level,
            rows: found.rows,
            rows_at: header + found.rows_at as u64,
            index,
            buffer: Buffer::new(row_bytes),
            kept: 0,
            place: None,
            spare: None,
            used: 0,
        };
        // A chunk that cannot be read is found now, before rows wait for it.
        let unfinished = table.read_unfinished(disk)?;
        Ok(Table { place: place.filter(|_| !unfinished.is_empty()), ..table })
    }

    /// The rows of the unfinished chunk, if it is compressed.
    fn read_unfinished(&self, disk: &Disk) -> Result<Vec<u8>> {
        let count = (self.rows % self.chunk_rows as u64) as usize;
        let Some(last) = self.index.last.filter(|_| self.level > 0 && count > 0) else {
            return Ok(Vec::new());
        };
        // Compression makes a chunk hardly longer.
        let stored_bytes = last.stored_bytes as usize;
        if stored_bytes > 2 * self.chunk_rows * self.row_bytes {
            bail!("the file is damaged: a chunk is too long");
        }
        let stored = disk.read(last.at, stored_bytes)?;
        let rows = decode(&stored, self.row_bytes, self.chunk_rows);
        let mut rows = rows.context("the file is damaged: a chunk cannot be decompressed")?;
        rows.truncate(count * self.row_bytes);
        Ok(rows)
    }

    /// Adds a row that `put` writes: over zeros, or over a row of before; its second argument says which.
    pub fn add(&mut self, put: impl FnOnce(&mut [u8], bool)) {
        self.buffer.add(put);
    }

    /// Adds rows.
    pub fn extend(&mut self, rows: &[u8]) {
        self.buffer.extend(rows);
    }

    /// Whether so many rows wait that they are written before a flush.
    pub fn is_due(&self) -> bool {
        let left = self.chunk_rows - (self.rows % self.chunk_rows as u64) as usize;
        let is_long = 2 * self.chunk_rows * self.row_bytes > WRITE_BYTES;
        self.waiting_bytes() >= if is_long { left * self.row_bytes } else { WRITE_BYTES }
    }

    /// Rows in the file.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows that are not in the file.
    pub fn waiting(&self) -> &[u8] {
        &self.buffer.rows()[self.kept * self.row_bytes..]
    }

    pub fn waiting_bytes(&self) -> usize {
        self.buffer.filled - self.kept * self.row_bytes
    }

    /// Frees the memory of a table without waiting rows if it is more than `most`; returns how much stays. The unfinished chunk
    /// is read again when it gets rows.
    pub fn shrink(&mut self, most: usize) -> usize {
        if self.buffer.capacity() > most && self.waiting_bytes() == 0 {
            (self.buffer, self.kept) = (Buffer::new(self.row_bytes), 0);
        }
        self.buffer.capacity()
    }

    /// Writes rows that wait. Without `all` those of an unfinished chunk may wait longer.
    pub fn write(&mut self, disk: &mut Disk, encoder: &mut Option<Encoder>, all: bool) -> Result<()> {
        match self.level {
            0 => self.write_plain(disk, all),
            level => self.write_compressed(disk, encoder.get_or_insert_with(|| Encoder::new(level)), all),
        }
    }

    fn publish(&mut self, disk: &mut Disk, rows: u64) -> Result<()> {
        disk.write_at(self.rows_at, &rows.to_le_bytes())?;
        self.rows = rows;
        Ok(())
    }

    /// Into the last chunk and the next ones. Rows beyond the number of rows are not seen.
    fn write_plain(&mut self, disk: &mut Disk, all: bool) -> Result<()> {
        let in_chunk = (self.rows % self.chunk_rows as u64) as usize;
        let mut count = self.buffer.filled / self.row_bytes;
        if !all {
            count -= count.min((in_chunk + count) % self.chunk_rows);
        }
        let mut written = 0;
        if let Some(last) = self.index.last.filter(|_| in_chunk > 0) {
            written = count.min(self.chunk_rows - in_chunk);
            let at = last.at + (in_chunk * self.row_bytes) as u64;
            disk.write_at(at, &self.buffer.rows()[..written * self.row_bytes])?;
        }
        if written < count {
            let (chunk_bytes, number) =
                (self.chunk_rows * self.row_bytes, (count - written).div_ceil(self.chunk_rows));
            let rows = &self.buffer.rows()[written * self.row_bytes..count * self.row_bytes];
            let at = disk.allocate_for(rows, number * chunk_bytes);
            disk.write_rows_at(at, rows)?;
            let first = self.rows + written as u64;
            let chunks: Vec<Chunk> = (0..number)
                .map(|index| Chunk {
                    stored_bytes: chunk_bytes as u32,
                    row: first + (index * self.chunk_rows) as u64,
                    at: at + (index * chunk_bytes) as u64,
                })
                .collect();
            self.index.append(disk, &chunks)?;
        }
        self.publish(disk, self.rows + count as u64)?;
        self.buffer.remove(count * self.row_bytes);
        Ok(())
    }

    fn write_compressed(&mut self, disk: &mut Disk, encoder: &mut Encoder, all: bool) -> Result<()> {
        if self.kept == 0 && !self.rows.is_multiple_of(self.chunk_rows as u64) {
            let rows = self.read_unfinished(disk)?;
            self.kept = rows.len() / self.row_bytes;
            self.buffer.prepend(&rows);
        }
        let total = self.buffer.filled / self.row_bytes;
        let end = if all { total } else { total - total % self.chunk_rows };
        if end <= self.kept {
            return Ok(());
        }
        let buffer = std::mem::replace(&mut self.buffer, Buffer::new(self.row_bytes));
        let written = self.write_chunks(disk, encoder, &buffer.rows()[..end * self.row_bytes]);
        self.buffer = buffer;
        written?;
        self.kept = end % self.chunk_rows;
        self.buffer.remove((end - self.kept) * self.row_bytes);
        Ok(())
    }

    /// Writes rows from the first one of the unfinished chunk on.
    fn write_chunks(&mut self, disk: &mut Disk, encoder: &mut Encoder, rows: &[u8]) -> Result<()> {
        let (chunk_bytes, first) = (self.chunk_rows * self.row_bytes, self.rows - self.kept as u64);
        let mut added = Vec::new();
        for (number, rows) in rows.chunks(chunk_bytes).enumerate() {
            let stored = encoder.encode(rows, self.row_bytes, self.chunk_rows)?;
            let at = self.store(disk, &stored, rows.len() == chunk_bytes)?;
            let row = first + (number * self.chunk_rows) as u64;
            let chunk = Chunk { stored_bytes: stored.len() as u32, row, at };
            match number == 0 && self.kept > 0 {
                true => self.index.replace_last(disk, chunk)?,
                false => added.push(chunk),
            }
        }
        self.index.append(disk, &added)?;
        self.publish(disk, first + (rows.len() / self.row_bytes) as u64)
    }

    /// Writes a chunk where no reader looks for another one.
    fn store(&mut self, disk: &mut Disk, stored: &[u8], is_finished: bool) -> Result<u64> {
        let fits = self.spare.take().filter(|spare| spare.bytes >= stored.len());
        let place = match fits {
            Some(place) => place,
            None => {
                // The next form of it has more rows.
                let bytes = if is_finished { stored.len() } else { stored.len() * 3 / 2 };
                Place { at: disk.allocate(bytes), bytes }
            }
        };
        disk.write_at(place.at, stored)?;
        self.spare = self.place.take().filter(|_| !is_finished);
        self.place = (!is_finished).then_some(place);
        Ok(place.at)
    }
}
