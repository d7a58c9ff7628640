//! Rows that wait because the file cannot be written, as while the disk is full. They go into it when it can be.

use std::collections::HashMap;

use met_wire::colmet::Backend;

pub(super) type Key = (u64, Backend);

/// Rows of one table.
pub(super) struct Rows {
    pub bytes: Vec<u8>,
    /// How many rows the table had before the attempt to write these. Rows beyond are the first ones of these.
    pub before: Option<u64>,
}

impl Rows {
    /// What is not in a table that has so many rows.
    pub fn behind(&self, rows: u64, row_bytes: usize) -> &[u8] {
        let written = self.before.map_or(0, |before| rows.saturating_sub(before)) as usize;
        self.bytes.get(written.saturating_mul(row_bytes)..).unwrap_or_default()
    }
}

#[derive(Default)]
pub(super) struct Unsaved {
    tables: HashMap<Key, Rows>,
    bytes: usize,
    /// Nothing is written until the file is opened again: every row waits here.
    pub takes_all: bool,
}

impl Unsaved {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds rows that `put` appends, behind those that wait.
    pub fn add(&mut self, key: Key, before: Option<u64>, put: impl FnOnce(&mut Vec<u8>)) {
        let rows = self.tables.entry(key).or_insert(Rows { bytes: Vec::new(), before });
        let length = rows.bytes.len();
        put(&mut rows.bytes);
        self.bytes += rows.bytes.len() - length;
    }

    pub fn next(&self) -> Option<Key> {
        self.tables.keys().next().copied()
    }

    pub fn take(&mut self, key: Key) -> Option<Rows> {
        let rows = self.tables.remove(&key)?;
        self.bytes -= rows.bytes.len();
        Some(rows)
    }

    /// All of them for another file, of whose rows nothing is known.
    pub fn for_another_file(mut self) -> Unsaved {
        self.tables.values_mut().for_each(|rows| rows.before = None);
        self
    }

    /// How many rows there are.
    pub fn count(&self, row_bytes: impl Fn(Backend) -> usize) -> usize {
        self.tables.iter().map(|((_, backend), rows)| rows.bytes.len() / row_bytes(*backend)).sum()
    }
}
