//! Nodes of another version, and what of theirs is not understood here.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use met_core::Table;
use met_wire::batch::Header;
use met_wire::schema::{Compared, Meaning};

/// More nodes than any cluster has.
const NODES_MAX: usize = 100_000;
/// At most this much of an ignored item is reported.
const REPORTED_MAX: usize = 5;
/// A refused sender retries within a minute or two.
const CONFLICT_HOLDS: Duration = Duration::from_secs(180);
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The problem reported for a node, by its name, since it last sent something valid.
#[derive(Clone, Default)]
pub struct Incompatible {
    nodes: Arc<Mutex<HashMap<String, String>>>,
    /// Nodes under whose name two machines send, and when the second was last refused.
    conflicts: Arc<Mutex<HashMap<String, (String, Instant)>>>,
    /// What is meant by tables here, as it was first needed: every batch is compared with it.
    meanings: Arc<Mutex<HashMap<&'static str, Meaning>>>,
}

/// What a batch says that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It would be misread: it waits on its node until both are of one version.
    Misread(String),
    /// Something is passed over.
    PassedOver(String),
}

impl Incompatible {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn of(&self, node: &str) -> Option<String> {
        let conflicts = self.conflicts.lock().unwrap_or_else(PoisonError::into_inner);
        let conflict = conflicts.get(node).filter(|(_, at)| at.elapsed() < CONFLICT_HOLDS);
        conflict.map(|(what, _)| what.clone()).or_else(|| self.lock().get(node).cloned())
    }

    /// Records that another sender uses the name of a node; true if that is new.
    pub fn conflict(&self, node: &str, what: String) -> bool {
        let mut conflicts = self.conflicts.lock().unwrap_or_else(PoisonError::into_inner);
        conflicts.retain(|_, (_, at)| at.elapsed() < CONFLICT_HOLDS);
        conflicts.insert(node.to_owned(), (what, Instant::now())).is_none()
    }

    /// Remembers what was found in the newest batch of a node.
    pub fn note(&self, node: &str, trouble: Option<&Trouble>) {
        let mut nodes = self.lock();
        match trouble {
            None => _ = nodes.remove(node),
            Some(Trouble::Misread(what) | Trouble::PassedOver(what)) => {
                if nodes.len() < NODES_MAX || nodes.contains_key(node) {
                    nodes.insert(node.to_owned(), what.clone());
                }
            }
        }
    }

    /// Whether what a batch says of its columns is what is meant by them here; `named` knows the tables there are.
    pub fn trouble(
        &self,
        header: &Header,
        named: impl Fn(&str) -> Option<&'static Table>,
    ) -> Option<Trouble> {
        let mut meanings = self.meanings.lock().unwrap_or_else(PoisonError::into_inner);
        let mut compare = |name: &str, said: &str, in_letters: bool| {
            let table = named(name)?;
            let meaning = meanings.entry(table.name).or_insert_with(|| Meaning::of(table));
            Some(if in_letters { meaning.compare_letters(said) } else { meaning.compare(said) })
        };
        trouble(header, &mut compare)
    }
}

fn trouble(
    header: &Header,
    compare: &mut dyn FnMut(&str, &str, bool) -> Option<Compared>,
) -> Option<Trouble> {
    let mut unknown: BTreeMap<&str, usize> = BTreeMap::new();
    let in_words = header.columns.iter().map(|(name, said)| (name, said, false));
    for (name, said, in_letters) in
        in_words.chain(header.tables.iter().map(|(name, said)| (name, said, true)))
    {
        match compare(name, said, in_letters) {
            Some(Compared::Same) => {}
            Some(Compared::Differs(column)) => {
                return Some(Trouble::Misread(format!(
                    "by {name}.{column} version {} of node {} has another meaning than in version {VERSION} \
                     of this server; its batches stay queued there until the older of the two is updated",
                    header.version, header.node
                )));
            }
            Some(Compared::Unknown(columns)) => _ = unknown.insert(name, columns),
            None => _ = unknown.insert(name, 0),
        }
    }
    if unknown.is_empty() {
        return None;
    }
    let words: Vec<String> = unknown
        .into_iter()
        .map(|(name, columns)| match columns {
            0 => format!("table {name}"),
            columns => format!("{columns} columns of {name}"),
        })
        .take(REPORTED_MAX)
        .collect();
    Some(Trouble::PassedOver(format!(
        "this server, version {VERSION}, ignores what it does not know: {}",
        words.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use met_core::table::{MICRO, MILLI};
    use met_core::{Column, Unit};
    use met_wire::schema::describe;

    use super::*;

    static OURS: Table = Table {
        name: "meter",
        subject: "",
        labels: &[],
        columns: &[Column::gauge("power", Unit::Watts, MILLI, "")],
    };
    static OTHER: Table = Table { columns: &[Column::gauge("power", Unit::Watts, MICRO, "")], ..OURS_SHAPE };
    const OURS_SHAPE: Table = Table { name: "meter", subject: "", labels: &[], columns: &[] };
    static MORE: Table = Table {
        columns: &[
            Column::gauge("power", Unit::Watts, MILLI, ""),
            Column::gauge("cap", Unit::Watts, MILLI, ""),
        ],
        ..OURS_SHAPE
    };

    fn header(tables: &[(&str, &Table)]) -> Header {
        let columns = tables.iter().map(|(name, table)| ((*name).to_owned(), describe(table))).collect();
        Header { node: "n1".to_owned(), version: "9".to_owned(), columns, ..Header::default() }
    }

    #[test]
    fn what_is_unknown_is_passed_over_and_what_would_be_misread_is_not_taken() {
        let known = Incompatible::default();
        let named = |name: &str| (name == "meter").then_some(&OURS);
        assert_eq!(known.trouble(&header(&[]), named), None, "an older node says nothing of it");
        assert_eq!(known.trouble(&header(&[("meter", &OURS)]), named), None);
        let Some(Trouble::PassedOver(what)) =
            known.trouble(&header(&[("meter", &MORE), ("fan", &OURS)]), named)
        else {
            panic!("it is accepted, with a report")
        };
        assert!(what.ends_with("table fan, 1 columns of meter"), "{what}");
        let Some(Trouble::Misread(what)) = known.trouble(&header(&[("meter", &OTHER)]), named) else {
            panic!("it would be misread")
        };
        assert!(what.contains("meter.power version 9 of node n1"), "{what}");
        let older = Header { tables: [("meter".to_owned(), "01cdb40c".to_owned())].into(), ..header(&[]) };
        assert_eq!(known.trouble(&older, named), None, "the letters of the first version");
        let older = Header { tables: [("meter".to_owned(), "01cdffff".to_owned())].into(), ..header(&[]) };
        assert!(matches!(known.trouble(&older, named), Some(Trouble::Misread(_))));
        known.note("n1", Some(&Trouble::Misread(what.clone())));
        assert_eq!(known.of("n1"), Some(what));
        known.note("n1", None);
        assert_eq!(known.of("n1"), None);
    }
}
