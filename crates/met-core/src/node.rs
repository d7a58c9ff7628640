//! The machine itself: the last rows about it, how old they are, and how fast its counters grow.

use std::collections::HashMap;

use crate::rate;
use crate::{Batch, Kind, Subject, Table, Window};

/// Rows without a reading for this many periods are dropped: a disk was removed.
const FORGOTTEN_AFTER: i64 = 10;

/// The last rows of every table about the machine, by part, and the ones before.
#[derive(Debug, Default)]
pub struct NodeRows {
    rows: Vec<NodeRow>,
    index: HashMap<(&'static str, u32), usize>,
}

#[derive(Clone, Debug)]
pub struct NodeRow {
    pub source: &'static str,
    pub table: &'static Table,
    pub part: u32,
    pub labels: Vec<String>,
    /// When it was read, which is not when it was handed over.
    pub window: Window,
    pub cells: Vec<i64>,
    period_ns: i64,
    before: Option<(Window, Vec<i64>)>,
}

/// What a row is worth at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    Current,
    /// Older than its period: to be shown with its age, and not as what is.
    Stale,
    /// Older than two of them: nothing is known.
    Gap,
}

impl NodeRows {
    /// Takes over what a source has read. A row that is not among it keeps its old window, and so ages.
    pub fn take(&mut self, source: &'static str, batch: &Batch, labels: &[Vec<String>], period_ns: i64) {
        for (row, cells) in batch.rows().filter(|(row, _)| row.owner == Subject::Node) {
            let index = *self.index.entry((batch.table.name, row.part)).or_insert_with(|| {
                self.rows.push(NodeRow {
                    source,
                    table: batch.table,
                    part: row.part,
                    labels: labels_of(batch.table, row.part, labels),
                    window: Window::default(),
                    cells: Vec::new(),
                    period_ns,
                    before: None,
                });
                self.rows.len() - 1
            });
            self.rows[index].replace(batch.window, cells);
        }
    }

    /// The rows with a current reading, in the order of their first one.
    pub fn known(&self, now_ns: i64) -> impl Iterator<Item = (&NodeRow, Freshness)> {
        let fresh = move |row| (row, NodeRow::freshness(row, now_ns));
        self.rows.iter().map(fresh).filter(|(_, freshness)| *freshness != Freshness::Gap)
    }

    pub fn forget_old(&mut self, now_ns: i64) {
        let is_old =
            |row: &NodeRow| now_ns - row.window.end_ns > row.period_ns.saturating_mul(FORGOTTEN_AFTER);
        if self.rows.iter().any(is_old) {
            self.rows.retain(|row| !is_old(row));
            self.index.clear();
            let keys = self.rows.iter().map(|row| (row.table.name, row.part));
            self.index.extend(keys.zip(0..));
        }
    }
}

fn labels_of(table: &Table, part: u32, labels: &[Vec<String>]) -> Vec<String> {
    let known = labels.get(part as usize).filter(|_| !table.labels.is_empty());
    known.cloned().unwrap_or_default()
}

impl NodeRow {
    fn replace(&mut self, window: Window, cells: &[i64]) {
        if window == self.window {
            return;
        }
        // The buffer of the reading before last is used again.
        let (_, mut room) = self.before.take().unwrap_or_default();
        room.clear();
        room.extend_from_slice(cells);
        let last = std::mem::replace(&mut self.cells, room);
        self.before = (!last.is_empty()).then_some((self.window, last));
        self.window = window;
    }

    /// The reading before this one, if there was one.
    pub fn before(&self) -> Option<(Window, &[i64])> {
        self.before.as_ref().map(|(window, cells)| (*window, &cells[..]))
    }

    pub fn freshness(&self, now_ns: i64) -> Freshness {
        // A tick may be late, and a reading takes its time: a little more than the period is not late yet.
        let age_ns = now_ns - self.window.end_ns;
        if age_ns > self.period_ns.saturating_mul(2) {
            Freshness::Gap
        } else if age_ns > self.period_ns + self.period_ns / 4 {
            Freshness::Stale
        } else {
            Freshness::Current
        }
    }

    /// Its label at this place of the table's labels; empty where it has none.
    pub fn label(&self, index: usize) -> &str {
        self.labels.get(index).map_or("", String::as_str)
    }

    /// A level in its unit; nothing where it was not read.
    pub fn level(&self, column: usize) -> Option<f64> {
        let cell = *self.cells.get(column)?;
        (cell != crate::MISSING).then(|| self.table.columns[column].scaled(cell))
    }

    /// How much a counter grew per second between the last two readings, in its unit. Nothing across a gap
    /// or a restart: neither is growth.
    pub fn rate(&self, column: usize) -> Option<f64> {
        let (before, cells) = self.before.as_ref()?;
        let schema = self.table.columns.get(column).filter(|column| column.kind == Kind::Counter)?;
        let elapsed_ns = self.window.end_ns - before.end_ns;
        let per_second = rate::per_second(*cells.get(column)?, *self.cells.get(column)?, elapsed_ns)?;
        Some(if schema.scale < 1.0 {
            per_second / (1.0 / schema.scale).round()
        } else {
            per_second * schema.scale
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{MICRO, MILLI};
    use crate::{Column, MISSING, Unit};

    static COLUMNS: &[Column] =
        &[Column::counter("energy", Unit::Joules, MICRO, ""), Column::gauge("power", Unit::Watts, MILLI, "")];
    static TABLE: Table = Table { name: "meter", subject: "", labels: &["name"], columns: COLUMNS };
    const SECOND: i64 = 1_000_000_000;

    fn read(rows: &mut NodeRows, at_s: i64, energy: i64, power: i64) {
        let mut batch = Batch::new(&TABLE);
        batch.push_part(Subject::Node, 0).copy_from_slice(&[energy, power]);
        batch.window = Window { begin_ns: at_s * SECOND - 1, end_ns: at_s * SECOND };
        rows.take("test", &batch, &[vec!["a".into()]], 10 * SECOND);
    }

    #[test]
    fn a_reading_ages_and_is_a_gap_in_the_end() {
        let mut rows = NodeRows::default();
        read(&mut rows, 100, 5, 200_000);
        let seen = |rows: &NodeRows, at_s: i64| rows.known(at_s * SECOND).next().map(|(_, fresh)| fresh);
        assert_eq!(seen(&rows, 110), Some(Freshness::Current));
        assert_eq!(seen(&rows, 115), Some(Freshness::Stale));
        assert_eq!(seen(&rows, 121), None);
        rows.forget_old(201 * SECOND);
        read(&mut rows, 300, 6, MISSING);
        let (row, _) = rows.known(300 * SECOND).next().unwrap();
        assert_eq!((row.labels[0].as_str(), row.before(), row.level(1)), ("a", None, None));
    }

    #[test]
    fn growth_is_given_per_second_and_never_across_a_gap_or_a_restart() {
        let mut rows = NodeRows::default();
        let rate = |rows: &NodeRows| rows.rows[0].rate(0);
        read(&mut rows, 10, 1_000_000, 200_000);
        assert_eq!((rate(&rows), rows.rows[0].level(1)), (None, Some(200.0)));
        read(&mut rows, 20, 2_001_000_000, 0);
        assert_eq!((rate(&rows), rows.rows[0].rate(1)), (Some(200.0), None));
        // The same reading again is not a new one.
        read(&mut rows, 20, 2_001_000_000, 0);
        assert_eq!(rate(&rows), Some(200.0));
        read(&mut rows, 30, MISSING, 0);
        assert_eq!(rate(&rows), None);
        read(&mut rows, 40, 3_000_000_000, 0);
        assert_eq!(rate(&rows), None);
        read(&mut rows, 50, 5, 0);
        assert_eq!(rate(&rows), None);
    }
}
