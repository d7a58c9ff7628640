//! HDF5 files as PyTables writes them: superblock 0, object headers 1, groups and chunks in B-trees 1. No block has a checksum,
//! so the last step of a change is to write one number in place: a count, an address or a length. Two are longer: the entry of a
//! chunk that has a new place, and where the names of a group are. A reader at that moment may see half of them, and fails.
//!
//! ```text
//! superblock:    at 0; where the file ends, and the header of the root group
//! object header: messages; a group has the addresses of its B-tree and of its names, a table its shape, type, B-tree of chunks
//!                and attributes
//! group:         B-tree of nodes with at most 32 children, leaves (SNOD) of at most 8 names with the headers they lead to
//! chunks:        B-tree of nodes with at most 64 chunks: stored bytes, first row, address
//! ```

pub mod chunk;
mod header;
mod nodes;

pub use header::{
    Attribute, Column, GroupAt, HEADER_PREFIX_BYTES, Kind, TableAt, datatype, group_header, header_bytes,
    read_group, read_table, table_header,
};
pub use nodes::{
    CHUNK_NODE_BYTES, CHUNKS_MAX, ChildOfGroup, Chunk, GROUP_CHILDREN_MAX, GROUP_NODE_BYTES, HEAP_BYTES,
    LEAF_BYTES, NAMES_MAX, Name, RIGHT_AT, USED_AT, chunk_entries, chunk_entry_at, chunk_node, group_leaf,
    group_node, heap, name_in, read_chunk_node, read_group_leaf, read_group_node, read_heap,
};

/// An address that leads nowhere.
pub const UNDEFINED: u64 = u64::MAX;
pub const SUPERBLOCK_BYTES: usize = 96;
/// Where the superblock says how long the file is.
pub const END_AT: u64 = 40;
const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";
/// Versions of four structures, then eight bytes each for addresses and lengths.
const VERSIONS: [u8; 8] = [0, 0, 0, 0, 0, 8, 8, 0];
const ROOT_AT: usize = 64;

pub fn superblock(root: u64, end: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SUPERBLOCK_BYTES);
    bytes.extend_from_slice(SIGNATURE);
    bytes.extend_from_slice(&VERSIONS);
    // Half of what a leaf and a node of groups hold; no flags.
    put_u16(&mut bytes, NAMES_MAX as u16 / 2);
    put_u16(&mut bytes, GROUP_CHILDREN_MAX as u16 / 2);
    put_u32(&mut bytes, 0);
    // It begins at 0, and has neither a list of free space nor a driver.
    for word in [0, UNDEFINED, end, UNDEFINED, 0, root, 0, 0, 0] {
        put_u64(&mut bytes, word);
    }
    bytes
}

/// The address of the root group's header, and the length of the file.
pub fn read_superblock(bytes: &[u8]) -> Option<(u64, u64)> {
    let (root, end) = (u64_at(bytes, ROOT_AT)?, u64_at(bytes, END_AT as usize)?);
    let expected = superblock(root, end);
    (bytes.get(..ROOT_AT + 8)? == &expected[..ROOT_AT + 8]).then_some((root, end))
}

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Zeros up to the next multiple of eight.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(8), 0);
}

#[cfg(test)]
#[path = "hdf5/tests.rs"]
mod tests;
