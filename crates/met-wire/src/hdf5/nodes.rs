//! The nodes of B-trees, and the names of a group.

use super::{UNDEFINED, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// What a node begins with: signature, kind, level, used entries, left and right neighbour.
const NODE_HEAD_BYTES: usize = 24;
/// Where a node says how many entries it has.
pub const USED_AT: u64 = 6;
/// Where a node says which one follows.
pub const RIGHT_AT: u64 = 16;
pub const GROUP_CHILDREN_MAX: usize = 32;
pub const NAMES_MAX: usize = 8;
/// Twice what HDF5 sets for files with this superblock.
pub const CHUNKS_MAX: usize = 64;
const GROUP: u8 = 0;
const CHUNKS: u8 = 1;
const NAME_BYTES: usize = 40;
const LEAF_HEAD_BYTES: usize = 8;
pub const LEAF_BYTES: usize = LEAF_HEAD_BYTES + NAMES_MAX * NAME_BYTES;
const KEY_BYTES: usize = 24;
const CHUNK_ENTRY_BYTES: usize = KEY_BYTES + 8;
pub const GROUP_NODE_BYTES: usize = NODE_HEAD_BYTES + GROUP_CHILDREN_MAX * 16 + 8;
pub const CHUNK_NODE_BYTES: usize = NODE_HEAD_BYTES + CHUNKS_MAX * CHUNK_ENTRY_BYTES + KEY_BYTES;
pub const HEAP_BYTES: usize = 32;
/// No list of free space.
const NO_FREE: u64 = 1;

fn node(kind: u8, level: u8, used: usize, left: u64) -> Vec<u8> {
    let mut out = b"TREE".to_vec();
    out.extend_from_slice(&[kind, level]);
    put_u16(&mut out, used as u16);
    put_u64(&mut out, left);
    put_u64(&mut out, UNDEFINED);
    out
}

/// The level of a node and how many entries it has.
fn read_node(bytes: &[u8], kind: u8, most: usize) -> Option<(u8, usize)> {
    let used = usize::from(u16_at(bytes, USED_AT as usize)?);
    let is_node = bytes.starts_with(b"TREE") && bytes.get(4) == Some(&kind) && used <= most;
    is_node.then_some((*bytes.get(5)?, used))
}

/// A part of a group: a node or a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildOfGroup {
    pub at: u64,
    /// Where its last name is.
    pub last_name: u64,
}

/// A node of a group; its names come behind the one at `before`.
pub fn group_node(level: u8, before: u64, children: &[ChildOfGroup]) -> Vec<u8> {
    let mut out = node(GROUP, level, children.len(), UNDEFINED);
    put_u64(&mut out, before);
    for child in children {
        put_u64(&mut out, child.at);
        put_u64(&mut out, child.last_name);
    }
    out.resize(GROUP_NODE_BYTES, 0);
    out
}

/// The level of a node and the addresses of its children.
pub fn read_group_node(bytes: &[u8]) -> Option<(u8, Vec<u64>)> {
    let (level, used) = read_node(bytes, GROUP, GROUP_CHILDREN_MAX)?;
    let children = (0..used).map(|index| u64_at(bytes, NODE_HEAD_BYTES + 8 + 16 * index));
    Some((level, children.collect::<Option<_>>()?))
}

/// A name in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Where it is among the names.
    pub name: u64,
    /// The header it leads to.
    pub header: u64,
}

pub fn group_leaf(names: &[Name]) -> Vec<u8> {
    let mut out = b"SNOD\x01\0".to_vec();
    put_u16(&mut out, names.len() as u16);
    for one in names {
        put_u64(&mut out, one.name);
        put_u64(&mut out, one.header);
        out.extend_from_slice(&[0; NAME_BYTES - 16]);
    }
    out.resize(LEAF_BYTES, 0);
    out
}

pub fn read_group_leaf(bytes: &[u8]) -> Option<Vec<Name>> {
    let count = usize::from(u16_at(bytes, 6)?);
    if !bytes.starts_with(b"SNOD\x01") || count > NAMES_MAX {
        return None;
    }
    let name = |index: usize| {
        let at = LEAF_HEAD_BYTES + index * NAME_BYTES;
        Some(Name { name: u64_at(bytes, at)?, header: u64_at(bytes, at + 8)? })
    };
    (0..count).map(name).collect()
}

/// Where names are: so many bytes at an address.
pub fn heap(bytes: u64, at: u64) -> Vec<u8> {
    let mut out = b"HEAP\0\0\0\0".to_vec();
    put_u64(&mut out, bytes);
    put_u64(&mut out, NO_FREE);
    put_u64(&mut out, at);
    out
}

/// How many bytes of names there are, and where. Names of other writers may have a list of free space between them, which new
/// names would overwrite: `None`.
pub fn read_heap(bytes: &[u8]) -> Option<(u64, u64)> {
    let (size, free, at) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?, u64_at(bytes, 24)?);
    (bytes.starts_with(b"HEAP\0") && free == NO_FREE).then_some((size, at))
}

/// The name that begins here.
pub fn name_in(names: &[u8], at: u64) -> Option<&str> {
    let rest = names.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

/// A chunk of a table, or a node of such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub stored_bytes: u32,
    /// The first of its rows.
    pub row: u64,
    pub at: u64,
}

/// Where the entry of a node is, within the node.
pub fn chunk_entry_at(index: usize) -> u64 {
    (NODE_HEAD_BYTES + index * CHUNK_ENTRY_BYTES) as u64
}

/// Entries one after the other, and the key that ends a node: no row comes behind it.
pub fn chunk_entries(chunks: &[Chunk], chunk_rows: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(chunks.len() * CHUNK_ENTRY_BYTES + KEY_BYTES);
    let key = |out: &mut Vec<u8>, stored_bytes: u32, row: u64| {
        put_u32(out, stored_bytes);
        // All filters were applied.
        put_u32(out, 0);
        put_u64(out, row);
        put_u64(out, 0);
    };
    for chunk in chunks {
        key(&mut out, chunk.stored_bytes, chunk.row);
        put_u64(&mut out, chunk.at);
    }
    let chunk_rows = u64::from(chunk_rows.max(1));
    key(&mut out, 0, i64::MAX as u64 / chunk_rows * chunk_rows);
    out
}

pub fn chunk_node(level: u8, left: u64, chunks: &[Chunk], chunk_rows: u32) -> Vec<u8> {
    let mut out = node(CHUNKS, level, chunks.len(), left);
    out.extend(chunk_entries(chunks, chunk_rows));
    out.resize(CHUNK_NODE_BYTES, 0);
    out
}

/// The level of a node and its entries.
pub fn read_chunk_node(bytes: &[u8]) -> Option<(u8, Vec<Chunk>)> {
    let (level, used) = read_node(bytes, CHUNKS, CHUNKS_MAX)?;
    let chunk = |index: usize| {
        let at = chunk_entry_at(index) as usize;
        let stored_bytes = u32_at(bytes, at)?;
        Some(Chunk { stored_bytes, row: u64_at(bytes, at + 8)?, at: u64_at(bytes, at + KEY_BYTES)? })
    };
    Some((level, (0..used).map(chunk).collect::<Option<_>>()?))
}
