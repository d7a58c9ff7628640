//! What a reader must know to understand the figures.

use met_core::job::{Origin, QualityKind};
use met_core::job_table as column;

use super::reader::Reader;
use super::{CPU_UNSEEN, IDLE_ESTIMATED, METER_MISSING};

impl Reader<'_> {
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        notes.extend(self.energy_note().map(str::to_owned));
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

    fn energy_note(&self) -> Option<&'static str> {
        let figure = self.figure(column::ENERGY)?;
        match figure.kind {
            QualityKind::Estimated if figure.source.contains(IDLE_ESTIMATED) => Some(
                "what the machine uses doing nothing was not known and was estimated; a daemon learns it while no \
                 job runs, or energy.idle_power says it",
            ),
            QualityKind::Estimated => {
                Some("no meter of energy was read; `met doctor` says what would make one readable")
            }
            QualityKind::LowerBound if figure.source.contains(METER_MISSING) => {
                Some("a meter of energy could not be read at times; `met doctor` says which")
            }
            QualityKind::LowerBound if figure.source.contains(CPU_UNSEEN) => Some(
                "energy lacks what processes used that the attached one left behind; `met run` follows all of them",
            ),
            _ => None,
        }
    }
}
