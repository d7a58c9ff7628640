//! What a source hands over: rows of integers with the window in which they were read.

use crate::Table;

/// The one reserved cell: not read, not known. Never 0.
pub const MISSING: i64 = i64::MIN;

/// What a row is about. A source does not know jobs: it names a machine, a cgroup or a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    Node,
    /// A cgroup by the inode number of its directory, which the kernel calls its id.
    Cgroup(u64),
    /// A process; with its start time a reused pid is another process.
    Task {
        pid: u32,
        start_ticks: u64,
    },
    /// A job by the slot the sampler gave it.
    Job(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub owner: Subject,
    /// Index into the source's labels (a card, a disk, a mount); 0 where a row has none.
    pub part: u32,
}

/// When the cells were read, in nanoseconds of CLOCK_BOOTTIME.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub begin_ns: i64,
    pub end_ns: i64,
}

/// Rows of one table. The caller owns it and reuses it: in the steady state nothing is allocated.
#[derive(Clone, Debug)]
pub struct Batch {
    pub table: &'static Table,
    pub window: Window,
    rows: Vec<Row>,
    cells: Vec<i64>,
}

impl Batch {
    pub fn new(table: &'static Table) -> Batch {
        Batch { table, window: Window::default(), rows: Vec::new(), cells: Vec::new() }
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.cells.clear();
    }

    /// Adds a row and returns its cells, all missing until the caller fills them.
    pub fn push(&mut self, owner: Subject) -> &mut [i64] {
        self.push_part(owner, 0)
    }

    pub fn push_part(&mut self, owner: Subject, part: u32) -> &mut [i64] {
        self.rows.push(Row { owner, part });
        let begin = self.cells.len();
        self.cells.resize(begin + self.table.columns.len(), MISSING);
        &mut self.cells[begin..]
    }

    /// Takes back the last row: its subject vanished while it was read.
    pub fn pop(&mut self) {
        if self.rows.pop().is_some() {
            self.cells.truncate(self.rows.len() * self.table.columns.len());
        }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn rows(&self) -> impl Iterator<Item = (Row, &[i64])> {
        self.rows.iter().copied().zip(self.cells.chunks_exact(self.table.columns.len()))
    }

    pub fn rows_mut(&mut self) -> impl Iterator<Item = (Row, &mut [i64])> {
        self.rows.iter().copied().zip(self.cells.chunks_exact_mut(self.table.columns.len()))
    }
}
