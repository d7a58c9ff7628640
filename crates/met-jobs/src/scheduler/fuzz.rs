//! The answers of schedulers, as fuzz/ calls their parsers.

use super::{Parser, Recorded, kinds};

/// As in the captured answers.
pub(super) const DELIMITER: &str = "|~|";
/// A time at which they were captured.
pub(super) const NOW_S: i64 = 1_794_722_500;

pub(super) fn parsers() -> impl Iterator<Item = Parser> {
    kinds().flat_map(|kind| kind.parsers).copied()
}

/// The first byte says which parser reads, the others are its answer.
pub fn answers(bytes: &[u8]) {
    let Some((&which, answer)) = bytes.split_first() else { return };
    let parsers: Vec<_> = parsers().collect();
    let recorded = parsers[usize::from(which) % parsers.len()](answer);
    // A job is made of bytes: there are never more of them.
    assert!(recorded.len() <= bytes.len(), "{} jobs", recorded.len());
    let is_named = |run: &Recorded| !run.id.is_empty();
    assert!(recorded.iter().all(is_named), "a job without a number");
}
