#![no_main]

use met_wire::hdf5::chunk::{Encoder, decode};
use met_wire::hdf5::{
    UNDEFINED, chunk_node, group_leaf, header_bytes, heap, name_in, read_chunk_node, read_group,
    read_group_leaf, read_group_node, read_heap, read_superblock, read_table, superblock,
};

// Blocks of an HDF5 file that is continued: any bytes are read or refused, and what was read is the same when it is written and
// read again.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = (header_bytes(bytes), read_group(bytes), read_table(bytes), read_group_node(bytes));
    let _ = name_in(bytes, bytes.len() as u64 / 2);
    if let Some((root, end)) = read_superblock(bytes) {
        assert_eq!(read_superblock(&superblock(root, end)), Some((root, end)));
    }
    if let Some((size, at)) = read_heap(bytes) {
        assert_eq!(read_heap(&heap(size, at)), Some((size, at)));
    }
    if let Some(names) = read_group_leaf(bytes) {
        assert_eq!(read_group_leaf(&group_leaf(&names)), Some(names));
    }
    if let Some((level, chunks)) = read_chunk_node(bytes) {
        let again = read_chunk_node(&chunk_node(level, UNDEFINED, &chunks, 1));
        assert_eq!(again, Some((level, chunks)));
    }
    // A chunk behind its shape.
    let [row_bytes, chunk_rows, level, stored @ ..] = bytes else { return };
    let (row_bytes, chunk_rows) = (usize::from(*row_bytes), usize::from(*chunk_rows));
    if let Some(rows) = decode(stored, row_bytes, chunk_rows).filter(|rows| !rows.is_empty()) {
        let again = Encoder::new(u32::from(*level % 9 + 1)).encode(&rows, row_bytes, chunk_rows).unwrap();
        assert_eq!(decode(&again, row_bytes, chunk_rows), Some(rows));
    }
});
