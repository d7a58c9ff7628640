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
    /// Index into the source's labels (a GPU, a disk, a mount); 0 where a row has none.
    pub part: u32,
}

/// When the cells were read, in nanoseconds of CLOCK_BOOTTIME.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub begin_ns: i64,
    pub end_ns: i64,
}

/// Counts readings that were there and could not be parsed, so that a changed kernel format does not go unnoticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unparsed {
    pub count: i64,
    /// The file of the first one.
    pub first: Option<String>,
}

impl Unparsed {
    /// Calls `file` for the first one only: counting does not allocate.
    pub fn add(&mut self, file: impl FnOnce() -> String) {
        self.count += 1;
        self.first.get_or_insert_with(file);
    }

    /// Counts a reading if one of its cells is missing, although its file was read.
    pub fn expect(&mut self, is_parsed: bool, file: impl FnOnce() -> String) {
        if !is_parsed {
            self.add(file);
        }
    }

    /// Adds what another one has counted since the last call.
    pub fn take_from(&mut self, other: &mut Unparsed) {
        self.count += std::mem::take(&mut other.count);
        if self.first.is_none() {
            self.first.clone_from(&other.first);
        }
    }
}

impl std::fmt::Display for Unparsed {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let readings = if self.count == 1 { "reading" } else { "readings" };
        write!(to, "{} {readings} could not be parsed", self.count)?;
        self.first.as_ref().map_or(Ok(()), |file| write!(to, " (first: {file})"))
    }
}

/// Rows of one table. The caller owns it and reuses it: in the steady state nothing is allocated.
#[derive(Clone, Debug)]
pub struct Batch {
    pub table: &'static Table,
    pub window: Window,
    /// Of the readings since the owner of the batch last took it.
    pub unparsed: Unparsed,
    rows: Vec<Row>,
    cells: Vec<i64>,
}

impl Batch {
    pub fn new(table: &'static Table) -> Batch {
        let (window, unparsed) = (Window::default(), Unparsed::default());
        Batch { table, window, unparsed, rows: Vec::new(), cells: Vec::new() }
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
