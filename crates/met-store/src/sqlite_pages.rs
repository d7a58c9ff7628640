//! Reads the pages of an SQLite file without SQLite: what is still whole in a file that SQLite gives up on. Every number
//! in it may be wrong, so nothing is followed without a bound.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::schema::beside;

/// The default of SQLite, which this program never changes; the header may be damaged.
const PAGE_BYTES: usize = 4096;
const HEADER_BYTES: usize = 100;
const WAL_HEADER_BYTES: u64 = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// More than any record has.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;
const COLUMNS_MAX: usize = 64;

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    /// A blob, or text that is not UTF-8.
    Bytes(Vec<u8>),
}

/// What kind of page a row was on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A table with this rowid.
    Table(i64),
    /// An index, or a table without rowids.
    Index,
}

/// A database file with its log.
pub(crate) struct Pages {
    file: File,
    wal: Option<File>,
    /// The newest image of a page in the log, by its offset.
    in_wal: HashMap<u32, u64>,
    count: u32,
    free: HashSet<u32>,
}

impl Pages {
    pub fn open(path: &Path) -> io::Result<Pages> {
        let file = File::open(path)?;
        let wal = File::open(beside(path, "-wal")).ok();
        let in_wal = wal.as_ref().map(frames).unwrap_or_default();
        let in_file = file.metadata()?.len() / PAGE_BYTES as u64;
        let highest = in_wal.keys().copied().max().unwrap_or(0);
        let count = u32::try_from(in_file).unwrap_or(u32::MAX).max(highest);
        let mut pages = Pages { file, wal, in_wal, count, free: HashSet::new() };
        pages.free = pages.free_pages();
        Ok(pages)
    }

    /// Calls back with every row of every page in use, of any table.
    pub fn rows(&self, each: &mut dyn FnMut(Kind, Vec<Cell>)) {
        for number in (1..=self.count).filter(|number| !self.free.contains(number)) {
            if let Some(page) = self.page(number) {
                self.rows_of(number, &page, each);
            }
        }
    }

    fn page(&self, number: u32) -> Option<Vec<u8>> {
        let mut page = vec![0; PAGE_BYTES];
        match (self.in_wal.get(&number), &self.wal) {
            (Some(&offset), Some(wal)) => wal.read_exact_at(&mut page, offset).ok()?,
            _ => {
                let offset = u64::from(number.checked_sub(1)?) * PAGE_BYTES as u64;
                self.file.read_exact_at(&mut page, offset).ok()?;
            }
        }
        Some(page)
    }

    /// Pages that hold nothing but what was removed.
    fn free_pages(&self) -> HashSet<u32> {
        let mut free = HashSet::new();
        let header = self.page(1);
        let mut trunk = header.and_then(|header| number_at(&header, 32)).unwrap_or(0);
        while trunk > 1 && trunk <= self.count && free.insert(trunk) {
            let Some(page) = self.page(trunk) else { break };
            let leaves = number_at(&page, 4).unwrap_or(0).min(PAGE_BYTES as u32 / 4 - 2) as usize;
            free.extend((0..leaves).filter_map(|leaf| number_at(&page, 8 + 4 * leaf)));
            trunk = number_at(&page, 0).unwrap_or(0);
        }
        free
    }

    fn rows_of(&self, number: u32, page: &[u8], each: &mut dyn FnMut(Kind, Vec<Cell>)) {
        let begin = if number == 1 { HEADER_BYTES } else { 0 };
        let (is_table, header_bytes, child_bytes) = match page[begin] {
            13 => (true, 8, 0),
            10 => (false, 8, 0),
            2 => (false, 12, 4),
            _ => return,
        };
        let cells = usize::from(u16::from_be_bytes([page[begin + 3], page[begin + 4]]));
        for cell in 0..cells {
            let at = begin + header_bytes + 2 * cell;
            let Some(pointer) = page.get(at..at + 2) else { return };
            let offset = usize::from(u16::from_be_bytes([pointer[0], pointer[1]])) + child_bytes;
            if let Some(row) = page.get(offset..).and_then(|cell| self.row(cell, is_table)) {
                each(row.0, row.1);
            }
        }
    }

    fn row(&self, cell: &[u8], is_table: bool) -> Option<(Kind, Vec<Cell>)> {
        let (length, mut cell) = varint(cell)?;
        let mut kind = Kind::Index;
        if is_table {
            let (rowid, rest) = varint(cell)?;
            (kind, cell) = (Kind::Table(rowid as i64), rest);
        }
        let payload = self.payload(cell, length, is_table)?;
        Some((kind, decode(&payload)?))
    }

    /// The bytes of a row, those on further pages included.
    fn payload(&self, cell: &[u8], length: u64, is_table: bool) -> Option<Vec<u8>> {
        if length > PAYLOAD_BYTES_MAX {
            return None;
        }
        let (length, usable) = (length as usize, PAGE_BYTES);
        let most = if is_table { usable - 35 } else { (usable - 12) * 64 / 255 - 23 };
        if length <= most {
            return Some(cell.get(..length)?.to_vec());
        }
        let least = (usable - 12) * 32 / 255 - 23;
        let here = least + (length - least) % (usable - 4);
        let here = if here <= most { here } else { least };
        let mut payload = cell.get(..here)?.to_vec();
        let mut next = number_at(cell, here)?;
        let mut seen = HashSet::new();
        while payload.len() < length {
            // A chain that comes back to itself never ends.
            if next == 0 || !seen.insert(next) || self.free.contains(&next) {
                return None;
            }
            let page = self.page(next)?;
            let more = (length - payload.len()).min(usable - 4);
            payload.extend_from_slice(&page[4..4 + more]);
            next = number_at(&page, 0)?;
        }
        Some(payload)
    }
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The pages in a log up to its last commit. Frames of an earlier use of the log have other salts.
fn frames(wal: &File) -> HashMap<u32, u64> {
    let (mut committed, mut pending) = (HashMap::new(), HashMap::new());
    let mut header = [0; WAL_HEADER_BYTES as usize];
    if wal.read_exact_at(&mut header, 0).is_err() {
        return committed;
    }
    let mut at = WAL_HEADER_BYTES;
    let mut frame = [0; FRAME_HEADER_BYTES];
    while wal.read_exact_at(&mut frame, at).is_ok() && frame[8..16] == header[16..24] {
        let (page, commit) = (number_at(&frame, 0).unwrap_or(0), number_at(&frame, 4).unwrap_or(0));
        pending.insert(page, at + FRAME_HEADER_BYTES as u64);
        if commit > 0 {
            committed.extend(pending.drain());
        }
        at += (FRAME_HEADER_BYTES + PAGE_BYTES) as u64;
    }
    committed
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (number, &byte) in bytes.iter().take(9).enumerate() {
        if number == 8 {
            return Some((value << 8 | u64::from(byte), &bytes[9..]));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, &bytes[number + 1..]));
        }
    }
    None
}

/// The values of a row.
fn decode(payload: &[u8]) -> Option<Vec<Cell>> {
    let (header_bytes, rest) = varint(payload)?;
    let header_bytes = usize::try_from(header_bytes).ok().filter(|&bytes| bytes <= payload.len())?;
    let mut types = rest.get(..header_bytes.checked_sub(payload.len() - rest.len())?)?;
    let mut body = &payload[header_bytes..];
    let mut cells = Vec::new();
    while !types.is_empty() {
        let (kind, behind) = varint(types)?;
        types = behind;
        let length = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            _ => usize::try_from((kind - 12) / 2).ok()?,
        };
        let (bytes, behind) = body.split_at_checked(length)?;
        body = behind;
        if cells.len() == COLUMNS_MAX {
            return None;
        }
        cells.push(match kind {
            0 => Cell::Null,
            8 | 9 => Cell::Integer(kind as i64 - 8),
            1..=6 => Cell::Integer(integer(bytes)),
            7 => Cell::Real(f64::from_be_bytes(bytes.try_into().ok()?)),
            _ if kind % 2 == 1 => {
                let text = std::str::from_utf8(bytes).ok().map(|text| Cell::Text(text.to_owned()));
                text.unwrap_or_else(|| Cell::Bytes(bytes.to_vec()))
            }
            _ => Cell::Bytes(bytes.to_vec()),
        });
    }
    Some(cells)
}

fn integer(bytes: &[u8]) -> i64 {
    let first = bytes.first().map_or(0, |&byte| i64::from(byte as i8));
    bytes.iter().skip(1).fold(first, |value, &byte| value << 8 | i64::from(byte))
}
