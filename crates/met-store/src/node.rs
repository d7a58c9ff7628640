//! Series of the machine itself: one series for each part of each table, such as a disk or a meter.

use met_core::job::JobKey;

use crate::device::DEVICE;

/// Precedes the label of a part; no GPU has such a uuid.
pub(crate) const NODE: &str = "node:";

/// Something of the machine that has a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodePart {
    /// The name of its table.
    pub table: String,
    /// Its labels, divided by spaces; empty where a table has one row.
    pub part: String,
}

/// Under which key the series of a node's part are kept on a server.
pub fn node_on(node: &str, part: &str) -> JobKey {
    JobKey { cluster: Some(node.to_owned()), ..series_key(part) }
}

pub(crate) fn series_key(part: &str) -> JobKey {
    JobKey { cluster: None, manager: DEVICE.to_owned(), id: format!("{NODE}{part}"), incarnation: 0 }
}

#[cfg(test)]
mod tests {
    use met_core::series::Series;
    use met_core::table::{MILLI, ONE};
    use met_core::{Column, Table, Unit};

    use super::*;
    use crate::Writer;
    use crate::samples::MIDNIGHT_S;

    static POWER: &[Column] = &[Column::gauge("power", Unit::Watts, MILLI, "")];
    static METER: Table = Table { name: "meter", subject: "", labels: &["name"], columns: POWER };
    static LOAD: &[Column] = &[Column::gauge("load", Unit::Count, ONE, "")];
    static NODE_TABLE: Table = Table { name: "node", subject: "", labels: &[], columns: LOAD };

    fn series(table: &'static Table, seconds: std::ops::Range<i64>) -> Series {
        let mut series = Series::new(table);
        seconds.for_each(|second| series.push((MIDNIGHT_S + second) * 1000, &[second]));
        series
    }

    #[test]
    fn each_part_of_the_machine_has_its_own_series() {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        assert_eq!(writer.node_parts_between(i64::MIN, i64::MAX).unwrap(), []);
        // Over midnight: two files.
        writer.append_node("psu 1", &series(&METER, -3..3)).unwrap();
        writer.append_node("psu 2", &series(&METER, 1..3)).unwrap();
        writer.append_node("", &series(&NODE_TABLE, 0..2)).unwrap();
        // A GPU is no part of it.
        writer.append_device("GPU-a", &series(&METER, 0..2)).unwrap();
        let part = |table: &str, part: &str| NodePart { table: table.into(), part: part.into() };
        let all = [part("meter", "psu 1"), part("meter", "psu 2"), part("node", "")];
        assert_eq!(writer.node_parts_between(i64::MIN, i64::MAX).unwrap(), all);
        let before = writer.node_parts_between(0, (MIDNIGHT_S - 1) * 1000).unwrap();
        assert_eq!(before, [part("meter", "psu 1")]);
        let from = (MIDNIGHT_S - 2) * 1000;
        let series = writer.node_part_series(&METER, "psu 1", from, from + 3000).unwrap();
        assert_eq!(series.columns[0], [-2, -1, 0, 1]);
        assert_eq!(writer.node_part_series(&METER, "", from, from + 3000).unwrap().len(), 0);
        assert_eq!(writer.node_part_series(&NODE_TABLE, "", from, i64::MAX).unwrap().len(), 2);
    }
}
