//! The answers of schedulers, as fuzz/ calls their parsers.

use super::{Recorded, lsf, oar, pbs, slurm};

/// Any bytes as the answer of each of them.
pub fn answers(bytes: &[u8]) {
    let told = [
        oar::parse(bytes).recorded,
        pbs::parse(bytes).recorded,
        lsf::parse(bytes, 1_794_722_500).recorded,
        slurm::parse_sacct(bytes, "|"),
        slurm::parse_squeue(bytes, "|"),
    ];
    // A job is made of bytes: there are never more of them.
    let count: usize = told.iter().map(Vec::len).sum();
    assert!(count <= 5 * (bytes.len() + 1), "{count} jobs");
    let is_named = |run: &Recorded| !run.id.is_empty();
    assert!(told.iter().flatten().all(is_named), "a job without a number");
}
