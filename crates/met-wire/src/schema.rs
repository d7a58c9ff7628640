//! Describes the columns of a table, so that two versions can check whether they agree.
//!
//! Blocks and records name their columns, and a column that one side does not know is passed over. But a cell
//! is an integer in a sub-unit that the name does not say: a version that counts in others would be misread. So
//! a sender describes each column of its batch in full:
//!
//! ```text
//! c_seconds*1e-9 cpu cpu_user;g_bytes*1e0 memory_needed
//! ```
//! kind (`c` counter, `g` gauge), unit and scale, and the names of all columns that share them. Packed, that is less
//! than hashes that never meet by chance would take, and it needs no memory of what was said before.

use std::collections::{BTreeMap, HashMap};

use met_core::{Column, Kind, Table};

/// All columns of a table, as a sender says it.
pub fn describe(table: &Table) -> String {
    describe_some(table, |_| true)
}

/// Those that occur in its batch.
pub fn describe_some(table: &Table, occurs: impl Fn(usize) -> bool) -> String {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (_, column) in table.columns.iter().enumerate().filter(|(index, _)| occurs(*index)) {
        groups.entry(meaning_of(column)).or_default().push(column.name);
    }
    let groups: Vec<String> =
        groups.iter().map(|(meaning, names)| format!("{meaning} {}", names.join(" "))).collect();
    groups.join(";")
}

/// How a peer's description of a table compares with ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compared {
    Same,
    /// So many columns mean something that we have no name for.
    Unknown(usize),
    /// The sender means something else by this one.
    Differs(&'static str),
}

/// What is meant by a table here.
pub struct Meaning {
    table: &'static Table,
    /// By the name of a column: its own, and what it means.
    columns: HashMap<&'static str, (&'static str, String)>,
    letters: Vec<Letters>,
}

impl Meaning {
    pub fn of(table: &'static Table) -> Meaning {
        let named = |column: &Column| (column.name, (column.name, meaning_of(column)));
        let columns = table.columns.iter().map(named).collect();
        Meaning { table, columns, letters: table.columns.iter().map(letters_of).collect() }
    }

    /// Compares a peer's description of a table with ours. A malformed description has no effect.
    pub fn compare(&self, said: &str) -> Compared {
        let mut unknown = 0;
        for (theirs, names) in said.split(';').filter_map(|group| group.split_once(' ')) {
            for name in names.split(' ') {
                match self.columns.get(name) {
                    Some((_, ours)) if ours == theirs => {}
                    Some((name, _)) => return Compared::Differs(name),
                    None => unknown += 1,
                }
            }
        }
        match unknown {
            0 => Compared::Same,
            unknown => Compared::Unknown(unknown),
        }
    }

    /// The same for a batch of the first version, which may still be in a spool: eight letters for each column,
    /// four of its name and four of its meaning. They are too few to be sure.
    pub fn compare_letters(&self, said: &str) -> Compared {
        let half = |text: Option<&str>| u16::from_str_radix(text?, 16).ok();
        let letters = said.as_bytes().chunks_exact(8).filter_map(|one| std::str::from_utf8(one).ok());
        let theirs: Vec<Letters> =
            letters.filter_map(|one| half(one.get(..4)).zip(half(one.get(4..)))).collect();
        for (ours, column) in self.letters.iter().zip(self.table.columns) {
            if theirs.iter().any(|their| their.0 == ours.0) && !theirs.contains(ours) {
                return Compared::Differs(column.name);
            }
        }
        let is_unknown = |their: &&Letters| !self.letters.iter().any(|ours| ours.0 == their.0);
        match theirs.iter().filter(is_unknown).count() {
            0 => Compared::Same,
            unknown => Compared::Unknown(unknown),
        }
    }
}

fn meaning_of(column: &Column) -> String {
    // The shortest number that is this one and no other.
    format!("{}{}*{:e}", kind_of(column), column.unit.suffix(), column.scale)
}

fn kind_of(column: &Column) -> char {
    match column.kind {
        Kind::Counter => 'c',
        Kind::Gauge => 'g',
    }
}

type Letters = (u16, u16);

fn letters_of(column: &Column) -> Letters {
    let scale = column.scale.to_bits().to_le_bytes();
    let meaning = std::iter::once(kind_of(column) as u8).chain(column.unit.suffix().bytes()).chain(scale);
    (folded(column.name.bytes()), folded(meaning))
}

/// FNV-1a, folded to four letters.
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
    fn a_description_is_complete() {
        assert_eq!(describe(&OURS), "c_bytes*1e0 read;g_watts*1e-3 power");
        assert_eq!(describe_some(&OURS, |column| column == 0), "g_watts*1e-3 power");
        assert_eq!(describe_some(&OURS, |_| false), "");
        assert_eq!(Meaning::of(&OURS).compare(""), Compared::Same);
        assert_eq!(Meaning::of(&JOB).compare(&describe(&JOB)), Compared::Same);
    }

    #[test]
    fn names_with_the_same_hash_are_distinguished() {
        static TWINS: Table = table(&[Column::counter("cpu_calls", Unit::Bytes, ONE, "")]);
        let theirs = Column::gauge("power_errors_large", Unit::Watts, MILLI, "");
        assert_eq!(letters_of(&theirs).0, letters_of(&TWINS.columns[0]).0, "else this shows nothing");
        let theirs = Table { columns: Box::leak(Box::new([theirs])), ..table(&[]) };
        assert_eq!(Meaning::of(&TWINS).compare(&describe(&theirs)), Compared::Unknown(1));
    }

    #[test]
    fn the_letters_of_the_first_version_are_still_read() {
        let ours = Meaning::of(&OURS);
        let letters = |columns: &[Column]| -> String {
            let one = |column| letters_of(column);
            columns.iter().map(one).map(|(name, meaning)| format!("{name:04x}{meaning:04x}")).collect()
        };
        assert_eq!(letters(OURS.columns), "01cdb40c76212464");
        assert_eq!(ours.compare_letters(&letters(OURS.columns)), Compared::Same);
        assert_eq!(ours.compare_letters(&letters(&[Column { name: "cap", ..POWER }])), Compared::Unknown(1));
        let changed = [Column { scale: MICRO, ..POWER }];
        assert_eq!(ours.compare_letters(&letters(&changed)), Compared::Differs("power"));
    }

    const UNITS: [Unit; 4] = [Unit::Bytes, Unit::Count, Unit::Seconds, Unit::Watts];

    prop_compose! {
        fn column()(name in "[a-e]{1,2}", gauge: bool, unit in 0_usize..4, exponent in -9_i32..4) -> Column {
            let kind = if gauge { Kind::Gauge } else { Kind::Counter };
            Column { name: name.leak(), kind, unit: UNITS[unit], scale: 10_f64.powi(exponent), ..POWER }
        }
    }

    fn distinct(columns: Vec<Column>) -> Vec<Column> {
        let named: BTreeMap<&str, Column> = columns.into_iter().map(|column| (column.name, column)).collect();
        named.into_values().collect()
    }

    proptest! {
        #[test]
        fn any_text_is_compared(text in ".{0,200}", hex in "[0-9a-f]{0,200}", like in "[cg_*1e; power]{0,200}") {
            for text in [text, hex, like] {
                let _ = (Meaning::of(&OURS).compare(&text), Meaning::of(&OURS).compare_letters(&text));
            }
        }

        /// Whatever two versions have: it is taken if and only if no common name means two things.
        #[test]
        fn nothing_is_misread_and_nothing_refused_that_would_not_be(
            ours in prop::collection::vec(column(), 0..20), theirs in prop::collection::vec(column(), 0..20),
        ) {
            let (ours, theirs) = (distinct(ours), distinct(theirs));
            let same = |one: &Column, other: &Column| {
                (one.kind, one.unit, one.scale) == (other.kind, other.unit, other.scale)
            };
            let known = |their: &&Column| ours.iter().any(|our| our.name == their.name);
            let is_misread = theirs
                .iter()
                .any(|their| ours.iter().any(|our| our.name == their.name && !same(our, their)));
            let unknown = theirs.len() - theirs.iter().filter(known).count();
            let table = |columns: &[Column]| -> &'static Table {
                Box::leak(Box::new(Table { columns: columns.to_vec().leak(), ..table(&[]) }))
            };
            match Meaning::of(table(&ours)).compare(&describe(table(&theirs))) {
                Compared::Differs(_) => prop_assert!(is_misread),
                Compared::Same => prop_assert!(!is_misread && unknown == 0),
                Compared::Unknown(count) => prop_assert!(!is_misread && unknown == count),
            }
        }
    }
}
