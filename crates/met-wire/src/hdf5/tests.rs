use std::io::Read;

use proptest::prelude::*;

use super::chunk::{Encoder, decode};
use super::*;

/// By another decoder: the whole stream must be read, with its sum.
fn inflated(stored: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    flate2::read::ZlibDecoder::new(stored).read_to_end(&mut found).unwrap();
    found
}

fn shuffled(rows: &[u8], row_bytes: usize, chunk_rows: usize) -> Vec<u8> {
    let byte = |at: usize| rows.get(at % chunk_rows * row_bytes + at / chunk_rows).copied().unwrap_or(0);
    (0..row_bytes * chunk_rows).map(byte).collect()
}

#[test]
fn chunks_with_long_runs_of_zeros_are_stored_as_their_bytes() {
    for (row_bytes, chunk_rows) in [(9000, 1), (9000, 56), (800, 20), (5000, 7), (4096, 1)] {
        for rows in [0, 1, chunk_rows / 2, chunk_rows] {
            for level in 1..=9 {
                let mut bytes = vec![0; row_bytes * rows];
                for row in bytes.chunks_mut(row_bytes) {
                    row[200..210].copy_from_slice(b"0123456789");
                    row[row_bytes - 100] = 7;
                }
                let stored = Encoder::new(level).encode(&bytes, row_bytes, chunk_rows).unwrap();
                assert_eq!(inflated(&stored), shuffled(&bytes, row_bytes, chunk_rows));
                bytes.resize(row_bytes * chunk_rows, 0);
                assert_eq!(decode(&stored, row_bytes, chunk_rows), Some(bytes));
            }
        }
    }
}

#[test]
fn a_stored_chunk_that_is_cut_off_or_too_long_is_refused() {
    let rows: Vec<u8> = (0..=255).cycle().take(4000).collect();
    let stored = Encoder::new(6).encode(&rows, 400, 10).unwrap();
    assert_eq!(decode(&stored, 400, 10).as_deref(), Some(&rows[..]));
    for end in 0..stored.len() {
        assert!(decode(&stored[..end], 400, 10).is_none(), "{end} of {} bytes", stored.len());
    }
    assert_eq!(decode(&stored, 400, 9), None);
    assert_eq!(decode(&stored, 0, 10), None);
    let nothing = [0x78, 0x9c, 3, 0, 0, 0, 0, 1];
    assert_eq!(decode(&nothing, 400, 0), None);
}

proptest! {
    #[test]
    fn any_rows_are_stored_as_their_bytes(
        texts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), 0_usize..6000), 1..6),
        rows in 1_usize..5,
        level in 1_u32..10,
    ) {
        let row: Vec<u8> = texts.iter().flat_map(|(text, zeros)| [&text[..], &vec![0; *zeros]].concat()).collect();
        prop_assume!(!row.is_empty());
        let bytes = row.repeat(rows);
        let mut encoder = Encoder::new(level);
        // One encoder makes many chunks.
        for chunk_rows in [rows, rows + 3] {
            let stored = encoder.encode(&bytes, row.len(), chunk_rows).unwrap();
            prop_assert_eq!(inflated(&stored), shuffled(&bytes, row.len(), chunk_rows));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), rows in 0_usize..9) {
        let _ = decode(&bytes, rows, 3);
        for start in [&b""[..], b"TREE\0", b"TREE\x01", b"SNOD\x01", b"HEAP\0", b"\x01\0"] {
            let bytes = [start, &bytes].concat();
            let _ = (read_superblock(&bytes), read_group(&bytes), read_table(&bytes), read_heap(&bytes));
            let _ = (read_group_node(&bytes), read_group_leaf(&bytes), read_chunk_node(&bytes), name_in(&bytes, 3));
        }
    }
}

#[test]
fn what_is_written_is_read() {
    let columns = [Column { name: "a", kind: Kind::Int }, Column { name: "b", kind: Kind::Text(20) }];
    assert_eq!(read_superblock(&superblock(96, 1234)), Some((96, 1234)));
    let group = group_header(5, 6, &[("TITLE".to_owned(), Attribute::Text("x"))]);
    assert_eq!(read_group(&group), Some(GroupAt { tree: 5, heap: 6, tree_at: 24 }));
    for level in [0, 9] {
        let header = table_header(&columns, 7, level, &[("N".to_owned(), Attribute::Int(1))]);
        let found = read_table(&header).unwrap();
        assert_eq!((found.rows, found.tree, found.chunk_rows, found.level), (0, UNDEFINED, 7, level));
        assert!(found.datatype.starts_with(&datatype(&columns)));
        assert_eq!(header[found.rows_at..][..8], [0; 8]);
        assert_eq!(header[found.tree_at..][..8], [0xff; 8]);
    }
    let chunks = [Chunk { stored_bytes: 3, row: 0, at: 100 }, Chunk { stored_bytes: 4, row: 7, at: 200 }];
    assert_eq!(read_chunk_node(&chunk_node(2, 9, &chunks, 7)), Some((2, chunks.to_vec())));
    let names = [Name { name: 8, header: 1 }, Name { name: 16, header: 2 }];
    assert_eq!(read_group_leaf(&group_leaf(&names)), Some(names.to_vec()));
    let children = [ChildOfGroup { at: 3, last_name: 8 }];
    assert_eq!(read_group_node(&group_node(1, 0, &children)), Some((1, vec![3])));
    assert_eq!(read_heap(&heap(64, 99)), Some((64, 99)));
    // As h5py leaves it: free space from byte 8 on.
    let with_free_space = [&heap(64, 99)[..16], &8_u64.to_le_bytes(), &99_u64.to_le_bytes()].concat();
    assert_eq!(read_heap(&with_free_space), None);
}
