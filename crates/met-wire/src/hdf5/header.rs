//! Object headers: what a group or a table is.

use super::{UNDEFINED, pad, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// What a header begins with.
pub const HEADER_PREFIX_BYTES: usize = 16;
const MESSAGE_HEAD_BYTES: usize = 8;
/// Kinds of messages.
const DATASPACE: u16 = 1;
const DATATYPE: u16 = 3;
const FILL_VALUE: u16 = 5;
const LAYOUT: u16 = 8;
const FILTERS: u16 = 11;
const ATTRIBUTE: u16 = 12;
const SYMBOL_TABLE: u16 = 17;
/// Kinds of filters.
const DEFLATE: u16 = 1;
const SHUFFLE: u16 = 2;

pub enum Attribute<'a> {
    Text(&'a str),
    Int(i64),
    Float(f32),
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Int,
    Float,
    /// Text of so many bytes, padded with NUL.
    Text(usize),
}

impl Kind {
    pub fn bytes(self) -> usize {
        match self {
            Kind::Int => 8,
            Kind::Float => 4,
            Kind::Text(bytes) => bytes,
        }
    }

    fn put_datatype(self, out: &mut Vec<u8>) {
        match self {
            // Signed, little-endian, all bits used.
            Kind::Int => out.extend_from_slice(&[0x10, 8, 0, 0, 8, 0, 0, 0, 0, 0, 64, 0]),
            // IEEE: sign at bit 31, exponent of 8 bits at 23 with bias 127, mantissa of 23 bits.
            Kind::Float => out
                .extend_from_slice(&[0x11, 0x20, 31, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0]),
            // ASCII, ends with NUL.
            Kind::Text(bytes) => {
                out.extend_from_slice(&[0x13, 0, 0, 0]);
                put_u32(out, bytes as u32);
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
}

/// The type of a row: columns one after the other.
pub fn datatype(columns: &[Column]) -> Vec<u8> {
    let mut out = vec![0x16];
    put_u16(&mut out, columns.len() as u16);
    out.push(0);
    put_u32(&mut out, columns.iter().map(|column| column.kind.bytes()).sum::<usize>() as u32);
    let mut offset = 0;
    for column in columns {
        // A name ends with NUL and fills a multiple of eight bytes, wherever it begins.
        out.extend_from_slice(column.name.as_bytes());
        out.resize(out.len() + (column.name.len() + 1).next_multiple_of(8) - column.name.len(), 0);
        put_u32(&mut out, offset as u32);
        // No array: no dimensions, no permutation, four sizes.
        out.extend_from_slice(&[0; 28]);
        column.kind.put_datatype(&mut out);
        offset += column.kind.bytes();
    }
    out
}

fn header(messages: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, message) in messages {
        put_u16(&mut body, *kind);
        put_u16(&mut body, message.len().next_multiple_of(8) as u16);
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(message);
        pad(&mut body);
    }
    let mut out = vec![1, 0];
    put_u16(&mut out, messages.len() as u16);
    // One link leads to it.
    put_u32(&mut out, 1);
    put_u32(&mut out, body.len() as u32);
    out.extend_from_slice(&[0; 4]);
    out.extend(body);
    out
}

/// A scalar with its name.
fn attribute(name: &str, value: &Attribute<'_>) -> Vec<u8> {
    let (kind, data) = match value {
        Attribute::Int(value) => (Kind::Int, value.to_le_bytes().to_vec()),
        Attribute::Float(value) => (Kind::Float, value.to_le_bytes().to_vec()),
        Attribute::Text(text) => {
            let data = [text.as_bytes(), b"\0"].concat();
            (Kind::Text(data.len()), data)
        }
    };
    let mut datatype = Vec::new();
    kind.put_datatype(&mut datatype);
    let mut out = vec![1, 0];
    put_u16(&mut out, name.len() as u16 + 1);
    put_u16(&mut out, datatype.len() as u16);
    put_u16(&mut out, 8);
    for part in [name.as_bytes(), b"\0"] {
        out.extend_from_slice(part);
    }
    pad(&mut out);
    out.extend(datatype);
    pad(&mut out);
    // A dataspace without dimensions.
    out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    out.extend(data);
    out
}

fn attributes<'a>(given: &'a [(String, Attribute<'a>)]) -> impl Iterator<Item = (u16, Vec<u8>)> + 'a {
    given.iter().map(|(name, value)| (ATTRIBUTE, attribute(name, value)))
}

/// The header of a group.
pub fn group_header(tree: u64, heap: u64, given: &[(String, Attribute<'_>)]) -> Vec<u8> {
    let table = [tree.to_le_bytes(), heap.to_le_bytes()].concat();
    let messages: Vec<_> = [(SYMBOL_TABLE, table)].into_iter().chain(attributes(given)).collect();
    header(&messages)
}

/// The header of a table without rows. `level` 0: chunks are stored as they are.
pub fn table_header(
    columns: &[Column],
    chunk_rows: u32,
    level: u32,
    given: &[(String, Attribute<'_>)],
) -> Vec<u8> {
    let row_bytes: usize = columns.iter().map(|column| column.kind.bytes()).sum();
    // One dimension of any length.
    let mut space = vec![1, 1, 1, 0, 0, 0, 0, 0];
    put_u64(&mut space, 0);
    put_u64(&mut space, UNDEFINED);
    // In chunks; the size of a row counts as a dimension.
    let mut layout = vec![3, 2, 2];
    put_u64(&mut layout, UNDEFINED);
    put_u32(&mut layout, chunk_rows);
    put_u32(&mut layout, row_bytes as u32);
    let mut messages = vec![
        (DATASPACE, space),
        (LAYOUT, layout),
        (DATATYPE, datatype(columns)),
        // Space is allocated as rows come; the fill value is the library's, which is 0.
        (FILL_VALUE, vec![2, 3, 2, 1, 0, 0, 0, 0]),
    ];
    if level > 0 {
        let mut filters = vec![1, 2, 0, 0, 0, 0, 0, 0];
        for (filter, parameter) in [(SHUFFLE, row_bytes as u32), (DEFLATE, level)] {
            // No name, optional, one parameter, and padding.
            for half in [filter, 0, 1, 1] {
                put_u16(&mut filters, half);
            }
            put_u32(&mut filters, parameter);
            put_u32(&mut filters, 0);
        }
        messages.push((FILTERS, filters));
    }
    messages.extend(attributes(given));
    header(&messages)
}

/// The messages of a header that has one block, each with where it begins.
fn messages(bytes: &[u8]) -> Option<Vec<(u16, usize, &[u8])>> {
    if bytes.first() != Some(&1) {
        return None;
    }
    let (count, length) = (u16_at(bytes, 2)?, u32_at(bytes, 8)? as usize);
    let (mut found, mut at) = (Vec::new(), HEADER_PREFIX_BYTES);
    let end = HEADER_PREFIX_BYTES.checked_add(length)?;
    while at < end && found.len() < usize::from(count) {
        let (kind, size) = (u16_at(bytes, at)?, usize::from(u16_at(bytes, at + 2)?));
        at += MESSAGE_HEAD_BYTES;
        found.push((kind, at, bytes.get(at..at + size)?));
        at += size;
    }
    (found.len() == usize::from(count)).then_some(found)
}

/// How many bytes a header has, from its first ones.
pub fn header_bytes(prefix: &[u8]) -> Option<usize> {
    Some(HEADER_PREFIX_BYTES + u32_at(prefix, 8)? as usize)
}

/// Where a group's B-tree and names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAt {
    pub tree: u64,
    pub heap: u64,
    /// Where in the header the address of the B-tree is.
    pub tree_at: usize,
}

pub fn read_group(bytes: &[u8]) -> Option<GroupAt> {
    let (_, at, message) = messages(bytes)?.into_iter().find(|(kind, ..)| *kind == SYMBOL_TABLE)?;
    Some(GroupAt { tree: u64_at(message, 0)?, heap: u64_at(message, 8)?, tree_at: at })
}

/// What a table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableAt {
    pub rows: u64,
    /// Where in the header the number of rows is.
    pub rows_at: usize,
    /// The B-tree of its chunks.
    pub tree: u64,
    pub tree_at: usize,
    pub chunk_rows: u32,
    /// 0: not compressed.
    pub level: u32,
    pub datatype: Vec<u8>,
}

pub fn read_table(bytes: &[u8]) -> Option<TableAt> {
    let messages = messages(bytes)?;
    let message = |wanted| messages.iter().find(|(kind, ..)| *kind == wanted).copied();
    let (_, space_at, space) = message(DATASPACE)?;
    let (_, layout_at, layout) = message(LAYOUT)?;
    let (_, _, datatype) = message(DATATYPE)?;
    if !space.starts_with(&[1, 1, 1]) || !layout.starts_with(&[3, 2, 2]) {
        return None;
    }
    let level = match message(FILTERS) {
        None => 0,
        // Shuffle and deflate, as they are written here.
        Some((.., filters)) => {
            let names = (u16_at(filters, 8)?, u16_at(filters, 24)?);
            (names == (SHUFFLE, DEFLATE)).then_some(u32_at(filters, 32)?)?
        }
    };
    Some(TableAt {
        rows: u64_at(space, 8)?,
        rows_at: space_at + 8,
        tree: u64_at(layout, 3)?,
        tree_at: layout_at + 3,
        chunk_rows: u32_at(layout, 11).filter(|&rows| rows > 0)?,
        level,
        datatype: datatype.to_vec(),
    })
}
