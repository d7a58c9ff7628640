//! What the columns of a table mean, so that two versions can tell whether they mean the same.
//!
//! Blocks and records name their columns, and a column that one side does not know is passed over. But a cell is an
//! integer in a sub-unit that the name does not say: a version that counts in others would be misread. So a sender
//! says with eight letters for each column what it means by it: four are of its name, and four of its kind, its unit
//! and its scale. That is little beside the samples, and needs no memory of what was said before.

use met_core::{Column, Kind, Table};

const LETTERS: usize = 8;

/// All columns of a table, as a sender says it.
pub fn describe(table: &Table) -> String {
    describe_some(table, |_| true)
}

/// Those that occur in what he sends.
pub fn describe_some(table: &Table, occurs: impl Fn(usize) -> bool) -> String {
    let columns = table.columns.iter().enumerate().filter(|(index, _)| occurs(*index));
    columns.map(|(_, column)| format!("{:04x}{:04x}", name_of(column), meaning_of(column))).collect()
}

/// How what somebody said of a table is to ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compared {
    Same,
    /// So many columns mean something that we have no name for.
    Unknown(usize),
    /// By this one he means something else.
    Differs(&'static str),
}

/// What is meant by a table here.
pub struct Meaning {
    table: &'static Table,
    columns: Vec<(u16, u16)>,
}

impl Meaning {
    pub fn of(table: &'static Table) -> Meaning {
        let columns = table.columns.iter().map(|column| (name_of(column), meaning_of(column))).collect();
        Meaning { table, columns }
    }

    /// Compares what somebody said of a table with it. What is no description says nothing.
    pub fn compare(&self, said: &str) -> Compared {
        let half = |text: Option<&str>| u16::from_str_radix(text?, 16).ok();
        let letters = said.as_bytes().chunks_exact(LETTERS).filter_map(|one| std::str::from_utf8(one).ok());
        let theirs: Vec<(u16, u16)> =
            letters.filter_map(|one| half(one.get(..4)).zip(half(one.get(4..)))).collect();
        for (ours, column) in self.columns.iter().zip(self.table.columns) {
            if theirs.iter().any(|their| their.0 == ours.0) && !theirs.contains(ours) {
                return Compared::Differs(column.name);
            }
        }
        let is_unknown = |their: &&(u16, u16)| !self.columns.iter().any(|ours| ours.0 == their.0);
        match theirs.iter().filter(is_unknown).count() {
            0 => Compared::Same,
            unknown => Compared::Unknown(unknown),
        }
    }
}

fn name_of(column: &Column) -> u16 {
    folded(column.name.bytes())
}

fn meaning_of(column: &Column) -> u16 {
    let kind = match column.kind {
        Kind::Counter => b'c',
        Kind::Gauge => b'g',
    };
    let scale = column.scale.to_bits().to_le_bytes();
    folded(std::iter::once(kind).chain(column.unit.suffix().bytes()).chain(scale))
}

/// FNV-1a, folded to the letters there is room for.
fn folded(bytes: impl Iterator<Item = u8>) -> u16 {
    let mixed = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let sum = bytes.fold(0xcbf2_9ce4_8422_2325_u64, mixed);
    (sum ^ (sum >> 16) ^ (sum >> 32) ^ (sum >> 48)) as u16
}

#[cfg(test)]
mod tests {
    use met_core::table::{MICRO, MILLI, ONE};
    use met_core::{JOB, Unit};
    use proptest::prelude::*;

    use super::*;

    const fn table(columns: &'static [Column]) -> Table {
        Table { name: "meter", subject: "", labels: &[], columns }
    }

    static POWER: Column = Column::gauge("power", Unit::Watts, MILLI, "");
    static OURS: Table = table(&[
        Column::gauge("power", Unit::Watts, MILLI, ""),
        Column::counter("read", Unit::Bytes, ONE, ""),
    ]);

    #[test]
    fn columns_may_come_go_and_move_but_not_change_their_meaning() {
        static MOVED: Table = table(&[
            Column::counter("read", Unit::Bytes, ONE, "in other words"),
            Column::gauge("power", Unit::Watts, MILLI, ""),
        ]);
        static FEWER: Table = table(&[Column::gauge("power", Unit::Watts, MILLI, "")]);
        static MORE: Table = table(&[
            Column::gauge("power", Unit::Watts, MILLI, ""),
            Column::gauge("cap", Unit::Watts, MILLI, ""),
            Column::gauge("voltage", Unit::Count, MILLI, ""),
        ]);
        assert_eq!(Meaning::of(&OURS).compare(&describe(&OURS)), Compared::Same);
        assert_eq!(Meaning::of(&OURS).compare(&describe(&MOVED)), Compared::Same);
        assert_eq!(Meaning::of(&OURS).compare(&describe(&FEWER)), Compared::Same);
        assert_eq!(Meaning::of(&OURS).compare(&describe(&MORE)), Compared::Unknown(2));
        for changed in [
            Column { scale: MICRO, ..POWER },
            Column { unit: Unit::Joules, ..POWER },
            Column { kind: Kind::Counter, ..POWER },
        ] {
            let theirs = Table { columns: Box::leak(Box::new([changed])), ..table(&[]) };
            assert_eq!(Meaning::of(&OURS).compare(&describe(&theirs)), Compared::Differs("power"));
        }
    }

    #[test]
    fn a_description_is_small() {
        assert_eq!(describe(&JOB).len(), JOB.columns.len() * LETTERS);
        assert_eq!(Meaning::of(&JOB).compare(&describe(&JOB)), Compared::Same);
    }

    proptest! {
        #[test]
        fn any_text_is_compared(text in ".{0,200}", hex in "[0-9a-f]{0,200}") {
            let _ = (Meaning::of(&OURS).compare(&text), Meaning::of(&OURS).compare(&hex));
        }
    }
}
