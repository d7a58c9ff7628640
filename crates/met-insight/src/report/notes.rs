//! What a reader must know to understand the figures.

use met_core::job::{Origin, QualityKind};
use met_core::job_table as column;

use super::reader::Reader;

impl Reader<'_> {
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.figure(column::ENERGY).is_some_and(|figure| figure.kind == QualityKind::Estimated) {
            let how = "no meter of energy was read; `met doctor` says what would make one readable";
            notes.push(how.to_owned());
        }
        let found = self.record.local.as_ref().is_some_and(|local| local.origin == Origin::Found);
        let is_bound = self.figure(column::CPU).is_some_and(|figure| figure.kind == QualityKind::LowerBound);
        if found && is_bound && !self.record.state.is_live() {
            let how =
                "nobody here saw it end: what is marked ≥ was read before that, and it used at least as much";
            notes.push(how.to_owned());
        }
        let left_over = self.record.local.as_ref().map(|local| local.left_over.as_slice()).unwrap_or(&[]);
        if !left_over.is_empty() {
            let named: Vec<String> =
                left_over.iter().map(|process| format!("{} ({})", process.name, process.pid)).collect();
            notes.push(format!("still running: {}", named.join(", ")));
        }
        notes
    }
}
