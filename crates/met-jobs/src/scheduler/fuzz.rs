//! The answers of schedulers, as fuzz/ calls their parsers.

use super::{Recorded, lsf, oar, pbs, slurm};

/// As in the captured answers.
const DELIMITER: &str = "|~|";

/// The first byte says which scheduler answers, the others are its answer.
pub fn answers(bytes: &[u8]) {
    let Some((which, answer)) = bytes.split_first() else { return };
    let recorded = match which {
        b'o' => oar::parse(answer).recorded,
        b'p' => pbs::parse(answer).recorded,
        b'l' => lsf::parse(answer, 1_794_722_500).recorded,
        b'q' => slurm::parse_squeue(answer, DELIMITER),
        _ => slurm::parse_sacct(answer, DELIMITER),
    };
    // A job is made of bytes: there are never more of them.
    assert!(recorded.len() <= bytes.len(), "{} jobs", recorded.len());
    let is_named = |run: &Recorded| !run.id.is_empty();
    assert!(recorded.iter().all(is_named), "a job without a number");
}
