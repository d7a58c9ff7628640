//! What `met node` shows of a table now. Each source says it of its own tables.

use crate::Table;
use crate::node::NodeRow;

/// Lines about the rows of a table, below a title. Blocks with the same title are one.
#[derive(Clone, Copy, Debug)]
pub struct NodeBlock {
    pub title: &'static str,
    pub table: &'static Table,
    /// With fewer rows there is nothing to show.
    pub rows_min: usize,
    /// The lines of one row on a machine with so many CPUs.
    pub lines: fn(&NodeRow, u32) -> Vec<NodeLine>,
}

impl NodeBlock {
    pub const fn new(
        title: &'static str,
        table: &'static Table,
        lines: fn(&NodeRow, u32) -> Vec<NodeLine>,
    ) -> NodeBlock {
        NodeBlock { title, table, rows_min: 1, lines }
    }
}

/// One without parts is not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLine {
    /// Of a device; `None` for the whole machine.
    pub name: Option<String>,
    pub parts: Vec<String>,
}

impl NodeLine {
    /// A device, and each value that is known, after its words.
    pub fn named(name: impl Into<String>, values: &[(&str, Option<String>)]) -> NodeLine {
        let part = |(words, value): &(&str, Option<String>)| Some(format!("{words}{}", value.as_ref()?));
        NodeLine { name: Some(name.into()), parts: values.iter().filter_map(part).collect() }
    }

    /// About the whole machine: each part that is known.
    pub fn of_machine(parts: impl IntoIterator<Item = Option<String>>) -> NodeLine {
        NodeLine { name: None, parts: parts.into_iter().flatten().collect() }
    }
}

/// How the rows of a table of power or temperature are named, where that is not by all their labels.
#[derive(Clone, Copy, Debug)]
pub struct Sensor {
    pub table: &'static Table,
    pub name: fn(&NodeRow) -> String,
    /// The column with the temperature that it must not reach.
    pub critical: Option<usize>,
}
